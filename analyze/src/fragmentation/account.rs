//! Breaks down the memory that the kernel counts as resident.

use super::pages::{self, Found, Within};
use crate::Index;
use crate::index::ScanError;
use crate::maps::{Kind, Totals};
use prof_trace::records::{Memory, PIECE, cgroup_stat, map_kind, part_kind};
use prof_trace::ticks::Ticks;
use serde::Serialize;
use std::collections::BTreeMap;

/// A breakdown of resident memory: `rss_bytes` = `live_bytes` + `beside_bytes` - `not_resident_bytes` + `before_bytes`
/// + `slack_bytes` + `other_anonymous_bytes` + all of `maps` but heap and anonymous + `unexplained_bytes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Bytes of the resident set.
    pub rss_bytes: u64,
    /// glibc's arenas were read: the figures of used and free memory are the allocator's own.
    pub by_allocator: bool,
    /// Bytes of live blocks on the heap, as requested.
    pub live_bytes: u64,
    /// Overhead beside live blocks. By the allocator: chunk headers and rounding. Otherwise the rest of the blocks'
    /// pages, which may be free, or blocks from before the attach.
    pub beside_bytes: u64,
    /// Bytes of live blocks, their overhead, or older blocks that are not resident: never written to, or swapped out.
    pub not_resident_bytes: u64,
    /// Bytes of older blocks. By the allocator: all other blocks in use, which are from before the attach or in thread
    /// caches. Otherwise resident bytes of other heap pages, up to what was resident at the attach.
    pub before_bytes: u64,
    /// Least and most of `before_bytes`, by the allocator: the program allocates and frees while its lists are read.
    /// Absent if events were lost.
    pub before_between_bytes: Option<[u64; 2]>,
    /// Nanoseconds for which recording was off when the allocator was looked at. What was allocated or freed in them
    /// is missing in the lines of blocks.
    pub unrecorded_ns: u64,
    /// Resident bytes that the allocator keeps. By the allocator: those of free chunks. Otherwise the rest of the other
    /// heap pages.
    pub slack_bytes: u64,
    /// Bytes of free chunks, resident or not, if the allocator's figures were read.
    pub free_bytes: Option<u64>,
    /// Resident anonymous memory in which no recorded block ever was: mapped by the program, or a runtime, for itself.
    pub other_anonymous_bytes: u64,
    /// Bytes of live blocks that are not on the heap; they are included in the mappings below.
    pub elsewhere_bytes: u64,
    /// All mappings, by kind.
    pub maps: Vec<MapData>,
    /// Resident bytes that the mappings don't account for; negative if the mappings sum up to more.
    pub unexplained_bytes: i64,
    /// Bytes that are swapped out.
    pub swap_bytes: u64,
    /// Parts of the mappings of files; absent if the recording does not tell them apart.
    pub files: Option<FilesData>,
    /// Bytes of the page tables, which are not part of the resident set; 0: unknown.
    pub page_tables_bytes: u64,
    /// Figures of the target's memory cgroup, by the kernel's names. Other processes may be in it.
    pub cgroup: BTreeMap<&'static str, u64>,
}

/// Resident bytes of the mappings of files, by what the files are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FilesData {
    /// Code of programs and libraries.
    pub code_bytes: u64,
    /// Data of programs and libraries, in bytes.
    pub data_bytes: u64,
    /// Memory that processes share: memfd, `/dev/shm`, System V.
    pub shared_bytes: u64,
    /// Other files.
    pub other_bytes: u64,
}

impl FilesData {
    /// Divides the resident bytes of files by what was seen of each at the same look. What is not of another kind is
    /// data: variables that are zero at first are anonymous memory behind a library's data.
    fn of(files: u64, t: &Totals) -> Self {
        let code_bytes = t.of(Kind::Code).min(files);
        let other_bytes = t.of(Kind::File).min(files - code_bytes);
        let shared_bytes = t.of(Kind::Shared).min(files - code_bytes - other_bytes);
        let data_bytes = files - code_bytes - other_bytes - shared_bytes;
        Self { code_bytes, data_bytes, shared_bytes, other_bytes }
    }
}

/// The mappings of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MapData {
    /// Kind of the mappings: `heap`, `anonymous`, `stacks`, `files`, `prof`, `other`.
    pub kind: &'static str,
    /// Bytes of address space.
    pub size_bytes: u64,
    /// Resident bytes.
    pub rss_bytes: u64,
}

/// An address range of anonymous memory.
#[derive(Clone, Copy, Debug)]
struct Part {
    start: u64,
    end: u64,
    rss: u64,
    kind: u64,
}

/// The anonymous memory at one moment.
#[derive(Debug, Default)]
pub(super) struct AnonymousMemory {
    parts: Vec<Part>,
    /// The address range of each part.
    pub ranges: Vec<(u64, u64)>,
    /// glibc's own figures, if they could be read: bytes taken from the kernel, free bytes, free bytes that are
    /// resident.
    arenas: Option<[u64; 3]>,
    /// The reading of these figures.
    walk: Option<Walk>,
    /// An earlier prof recorded this without kinds: all of it is taken for the allocator's.
    old: bool,
}

/// A reading of glibc's arenas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Walk {
    /// Begin and end, in ticks.
    time: (Ticks, Ticks),
    in_use: u64,
    /// Bytes of `in_use` that may have been free all the time.
    unsure: u64,
}

/// Returns the shortest reading of glibc's arenas in a look: the program had the least time to change what was read.
fn walk_of(m: &Memory) -> Option<Walk> {
    let all = m.walks.as_chunks::<5>().0.iter().filter(|w| w[0] <= w[1] && w[3] <= w[2]);
    let all =
        all.map(|w| Walk { time: (Ticks(w[0]), Ticks(w[1])), in_use: w[2] - w[3], unsure: w[4] });
    all.min_by_key(|w| w.time.1 - w.time.0)
}

/// Sums over the parts of heaps.
#[derive(Default)]
struct Sums {
    live: u64,
    beside: u64,
    missing: u64,
    before: u64,
    slack: u64,
    foreign: u64,
}

/// Returns the anonymous address ranges of a moment, and whether an earlier prof recorded them.
fn parts_of(m: &Memory) -> (Vec<Part>, bool) {
    let new = m.parts.as_chunks::<4>().0.iter();
    let mut all: Vec<Part> =
        new.map(|&[start, end, rss, kind]| Part { start, end, rss, kind }).collect();
    let old = all.is_empty();
    if old {
        let heaps = m.heaps.as_chunks::<3>().0.iter();
        let part = |&[start, end, rss]: &[u64; 3]| Part { start, end, rss, kind: part_kind::HEAP };
        all.extend(heaps.map(part));
    }
    // Damaged recordings may have any ranges here; the searches need them sorted and disjoint.
    all.retain(|p| p.start < p.end);
    all.sort_unstable_by_key(|p| (p.start, p.end));
    let mut last = 0;
    all.retain(|p| {
        let apart = p.start >= last;
        last = last.max(p.end);
        apart
    });
    (all, old)
}

/// Returns the bytes of a part in those pieces in which recorded blocks ever began.
fn used_bytes(p: &Part, used: &[u64]) -> u64 {
    let from = used.partition_point(|u| u.saturating_add(PIECE) <= p.start);
    let pieces = used[from..].iter().take_while(|u| **u < p.end);
    let overlap = |u: &u64| u.saturating_add(PIECE).min(p.end).saturating_sub((*u).max(p.start));
    pieces.map(overlap).fold(0, u64::saturating_add)
}

fn share(whole: u64, part: u64, of: u64) -> u64 {
    (u128::from(whole) * u128::from(part) / u128::from(of.max(1))) as u64
}

/// Returns the bytes that were resident at the attach in those pieces of a part in which no recorded block ever
/// began.
fn unused_of(p: &Part, first: &[Part], used: &[u64]) -> u64 {
    let from = first.partition_point(|f| f.end <= p.start);
    let there = first[from..].iter().take_while(|f| f.start < p.end);
    let bytes = |f: &Part| {
        let both = Part { start: f.start.max(p.start), end: f.end.min(p.end), ..*f };
        let unused = (both.end - both.start) - used_bytes(&both, used);
        share(f.rss, unused, f.end - f.start)
    };
    there.map(bytes).fold(0, u64::saturating_add)
}

impl Part {
    /// Returns the resident bytes of the part that count as the allocator's.
    fn allocators(&self, used: &[u64]) -> u64 {
        match self.kind {
            part_kind::UNKNOWN => share(self.rss, used_bytes(self, used), self.end - self.start),
            _ => self.rss,
        }
    }
}

impl AnonymousMemory {
    pub(super) fn of(m: &Memory) -> Self {
        let (parts, old) = parts_of(m);
        let ranges = parts.iter().map(|p| (p.start, p.end)).collect();
        let arenas = m.arenas.first_chunk::<3>().copied().filter(|a| a[0] > 0 && a[1] <= a[0]);
        Self { parts, ranges, arenas, walk: walk_of(m), old }
    }

    /// Returns whether each range is a heap of glibc's.
    pub(super) fn heaps(&self) -> Vec<bool> {
        self.parts.iter().map(|p| p.kind == part_kind::HEAP).collect()
    }

    /// Returns the period of the reading.
    pub(super) fn time(&self) -> Option<(Ticks, Ticks)> {
        self.walk.map(|w| w.time)
    }

    /// Returns bounds on the blocks in use that were not recorded. What was read as in use was so at some moment of the
    /// reading, but for what is unsure; what was in use at all of them was read so.
    fn between(&self, found: &Found, figure: u64) -> Option<[u64; 2]> {
        let w = self.walk?;
        let low = match found.course.at_some_moment() {
            Some(most) => w.in_use.saturating_sub(w.unsure).saturating_sub(most),
            None => 0,
        };
        let high = w.in_use.saturating_sub(found.course.at_each_moment());
        Some([low.min(figure), high.max(figure)])
    }

    /// Returns the pieces of parts of unknown kind in which recorded blocks ever began, as ascending multiples of
    /// [`PIECE`].
    pub(super) fn used(&self, index: &Index) -> Result<Vec<u64>, ScanError> {
        let unknown = |p: &&Part| p.kind == part_kind::UNKNOWN;
        if !self.parts.iter().any(|p| unknown(&p)) {
            return Ok(Vec::new());
        }
        let of_interest = |piece: u64| {
            let from = self.parts.partition_point(|p| p.end <= piece);
            let end = piece.saturating_add(PIECE);
            self.parts[from..].iter().take_while(|p| p.start < end).any(|p| unknown(&p))
        };
        pages::used_pieces(index, self.arenas.is_none(), of_interest)
    }

    /// Returns the bytes of a part's pages that have live blocks.
    fn under(p: &Part, found: &Found, page: u64) -> u64 {
        let (from, to) = (p.start / page, p.end.div_ceil(page));
        let i = found.runs.partition_point(|r| r.end <= from);
        let runs = found.runs[i..].iter().take_while(|r| r.page < to);
        let pages = |r: &super::pages::Run| r.end.min(to).saturating_sub(r.page.max(from));
        runs.map(pages).fold(0, u64::saturating_add).saturating_mul(page)
    }

    /// Estimates the sums of parts without the allocator's figures: pages with live blocks count as the blocks', and
    /// `older` resident bytes of the other pages as from before the attach.
    fn estimate(&self, which: impl Fn(u64) -> bool, older: u64, ask: &Known<'_>) -> Sums {
        let mut s = Sums::default();
        let mut other = 0u64;
        for (p, w) in self.parts.iter().zip(&ask.found.within).filter(|(p, _)| which(p.kind)) {
            let under = Self::under(p, ask.found, ask.page);
            // If glibc has mapped blocks here on their own, only their pages are the allocator's, not the rest of the
            // part.
            let theirs = p.allocators(ask.used).max(under.min(p.rss));
            // Where another allocator was recorded, memory that was resident at the attach may belong to it.
            let was = if ask.used.is_empty() { 0 } else { unused_of(p, ask.first, ask.used) };
            let was = was.min(p.rss - theirs);
            s.before = s.before.saturating_add(was);
            s.foreign = s.foreign.saturating_add(p.rss - theirs - was);
            s.live = s.live.saturating_add(w.bytes.min(under));
            s.beside = s.beside.saturating_add(under.saturating_sub(w.bytes));
            s.missing = s.missing.saturating_add(under.saturating_sub(theirs));
            other = other.saturating_add(theirs.saturating_sub(under));
        }
        let older = older.min(other);
        s.before = s.before.saturating_add(older);
        s.slack = other - older;
        s
    }

    /// Computes the sums of glibc's heaps from the arenas' own figures.
    fn told(&self, [system, free, resident]: [u64; 3], found: &Found) -> Sums {
        let heaps =
            || self.parts.iter().zip(&found.within).filter(|(p, _)| p.kind == part_kind::HEAP);
        let sum = |f: &dyn Fn(&Part, &Within) -> u64| {
            heaps().map(|(p, w)| f(p, w)).fold(0, u64::saturating_add)
        };
        let (rss, live) = (sum(&|p, _| p.rss), sum(&|_, w| w.bytes));
        let chunks = sum(&|_, w| w.chunks).max(live);
        let (before, slack) = ((system - free).saturating_sub(chunks), resident.min(rss));
        let counted = chunks.saturating_add(before).saturating_add(slack);
        // Resident memory beyond that (arena headers, rests of pages) is the allocator's overhead.
        let beside = (chunks - live).saturating_add(rss.saturating_sub(counted));
        Sums { live, beside, missing: counted.saturating_sub(rss), before, slack, foreign: 0 }
    }

    /// Breaks down the resident memory of a moment, given the blocks on its pages and the pieces where blocks ever
    /// began.
    pub(super) fn account(
        &self,
        m: &Memory,
        first: Option<&Memory>,
        found: &Found,
        page: u64,
        used: &[u64],
    ) -> Account {
        let first = first.map(|f| parts_of(f).0).unwrap_or_default();
        let ask = Known { found, page, used, first: &first };
        let older = |which: &dyn Fn(u64) -> bool| {
            let all = first.iter().filter(|p| which(p.kind)).map(|p| p.allocators(used));
            all.fold(0, u64::saturating_add)
        };
        let all = match self.arenas.filter(|_| !self.old) {
            Some(arenas) => vec![
                self.told(arenas, found),
                // A block that has a mapping of its own and was not recorded is from before the attach.
                self.estimate(|k| k == part_kind::BLOCK, u64::MAX, &ask),
                self.estimate(
                    |k| k == part_kind::UNKNOWN,
                    older(&|k| k == part_kind::UNKNOWN),
                    &ask,
                ),
            ],
            None => vec![self.estimate(|_| true, older(&|_| true), &ask)],
        };
        let sum = |f: fn(&Sums) -> u64| all.iter().map(f).fold(0, u64::saturating_add);
        let told = all.first().filter(|_| self.arenas.is_some() && !self.old);
        let between = told.and_then(|s| {
            let others = sum(|s| s.before).saturating_sub(s.before);
            let bounds = self.between(found, s.before)?;
            Some(bounds.map(|n| n.saturating_add(others)))
        });
        let live = sum(|s| s.live).min(found.pages.live_bytes);
        let kinds = m.maps.as_chunks::<3>().0.iter().filter_map(|t| {
            let kind = *map_kind::NAMES.get(usize::try_from(t[0]).ok()?)?;
            Some(MapData { kind, size_bytes: t[1], rss_bytes: t[2] })
        });
        let maps: Vec<MapData> = kinds.collect();
        let of = |anonymous: bool| {
            let is = |m: &&MapData| matches!(m.kind, "heap" | "anonymous") == anonymous;
            maps.iter().filter(is).map(|m| m.rss_bytes).fold(0, u64::saturating_add)
        };
        // Anonymous memory that is not writable can't be a heap.
        let parts = self.parts.iter().map(|p| p.rss).fold(0, u64::saturating_add);
        let foreign = sum(|s| s.foreign).saturating_add(of(true).saturating_sub(parts));
        let mapped = parts.max(of(true)).saturating_add(of(false));
        Account {
            rss_bytes: m.rss,
            by_allocator: self.arenas.is_some() && !self.old,
            live_bytes: live,
            beside_bytes: sum(|s| s.beside),
            not_resident_bytes: sum(|s| s.missing),
            before_bytes: sum(|s| s.before),
            slack_bytes: sum(|s| s.slack),
            free_bytes: self.arenas.filter(|_| !self.old).map(|a| a[1]),
            other_anonymous_bytes: foreign,
            elsewhere_bytes: found.pages.live_bytes - live,
            unexplained_bytes: (m.rss as i64).saturating_sub(mapped as i64),
            swap_bytes: m.swap,
            before_between_bytes: between,
            unrecorded_ns: 0,
            files: None,
            page_tables_bytes: m.page_tables,
            cgroup: cgroup_of(m),
            maps,
        }
    }
}

/// Returns the figures of the target's memory cgroup, by name.
pub(super) fn cgroup_of(m: &Memory) -> BTreeMap<&'static str, u64> {
    let pairs = m.cgroup.as_chunks::<2>().0.iter();
    let named =
        pairs.filter_map(|&[k, v]| Some((*cgroup_stat::NAMES.get(usize::try_from(k).ok()?)?, v)));
    named.collect()
}

impl Account {
    /// Divides the mappings of files, given the sums of the same look.
    pub(super) fn divide_files(&mut self, t: &Totals) {
        let files = self.maps.iter().find(|m| m.kind == "files").map(|m| m.rss_bytes);
        self.files = files.map(|n| FilesData::of(n, t));
    }
}

/// The inputs of an estimate.
struct Known<'a> {
    found: &'a Found,
    page: u64,
    used: &'a [u64],
    /// The parts that were resident at the attach.
    first: &'a [Part],
}
