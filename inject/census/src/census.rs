//! The census: all chunks with their states, and what follows from them.

use crate::arena::{Arena, Arenas};
use crate::chunk::{HEADER, LEAST, State};
use crate::error::Error;
use crate::jemalloc::{Heap, JemallocStats};
use crate::mapped::Own;
use crate::mimalloc::{self, MimallocStats};
use crate::moment::Walk;
use crate::musl::{self, MuslStats};
use crate::sums::{Block, SizeClass, Sum, class_of};
use crate::tcmalloc::{self, TcmallocStats};
use crate::walk::Walked;
use prof_inject::isolated;
use prof_inject::isolated::{Interrupts, at_ease};
use prof_inject::stopped::copy::MemoryCopy;
use prof_inject::stopped::copyable::{may_copy, not_copied};
use prof_inject::stopped::threads::{StopTimes, stop_all};
use prof_os::Pid;
use prof_os::maps::Map;
use prof_os::memory::Reader;
use prof_os::page_size;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Whether all threads are stopped for the walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Snapshot {
    /// No thread is stopped. Changes during the walk may be missed, or a block may count as it was before one.
    Never,
    /// All threads are stopped if the walk takes no longer than this by an estimate, and all of them stop. If it takes more
    /// than four times as long, it is given up, and the process runs during another.
    Within(Duration),
    /// All threads are stopped. A thread that does not stop is an error.
    Always,
    /// All threads are stopped until a copy of the memory is made, which is walked then. It is an error if there can be none.
    Copied,
}

/// Options of a census.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether all threads are stopped.
    pub snapshot: Snapshot,
    /// Time limit for the threads to stop.
    pub patience: Duration,
    /// Time limit of the walk. The rest of the heap counts as lost.
    pub timeout: Duration,
}

/// An arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaStats {
    /// Address of the arena's data (`malloc_state`).
    pub address: u64,
    /// Whether this is the main arena, whose heap grows by `brk`.
    pub main: bool,
    /// Number of its heaps; of the main arena, of its pieces.
    pub heaps: u64,
    /// Threads that use it; `None` before glibc 2.23, which does not count them.
    pub threads: Option<u64>,
    /// Bytes that it has from the kernel, and the most that it had.
    pub system: u64,
    /// See `system`.
    pub most_system: u64,
    /// Blocks that the program has.
    pub in_use: Sum,
    /// Free blocks in the caches of threads, which `mallinfo2` counts as in use.
    pub cached: Sum,
    /// Free blocks in fast bins.
    pub fast: Sum,
    /// Free blocks in other bins.
    pub binned: Sum,
    /// Bytes of the free end of its memory.
    pub top: u64,
}

impl ArenaStats {
    /// Returns the bytes of `system` that are none of these: the arena's own data, ends of heaps, and what was lost.
    pub fn rest(&self) -> u64 {
        let parts = [self.in_use, self.cached, self.fast, self.binned];
        let all = parts.iter().map(|s| s.bytes).fold(self.top, u64::saturating_add);
        self.system.saturating_sub(all)
    }
}

/// Memory that `malloc_trim(0)` would give back to the kernel: whole pages of free memory that are resident.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trim {
    /// Bytes at the end of the main arena.
    pub top: u64,
    /// Bytes inside of free blocks.
    pub inside: u64,
}

/// Memory and lists that the walk could not follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Bytes of heaps that were not walked, as something in front of them makes no sense.
    pub bytes: u64,
    /// Number of places at which a walk has ended that way.
    pub places: u64,
    /// Links of lists that make no sense: the blocks behind them count as in use.
    pub links: u64,
    /// Bytes in the main arena's heap that others have taken by `sbrk`.
    pub others: u64,
    /// A jemalloc, mimalloc or tcmalloc is laid out in a way that is not known, so that none of its blocks is counted.
    pub unknown: bool,
    /// Of a jemalloc or tcmalloc no cache of a thread was found: blocks in such caches count as in use.
    pub caches: bool,
    /// Time was up before the end.
    pub late: bool,
}

impl Lost {
    /// Returns whether nothing was lost that makes blocks uncertain.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        let n = self.bytes + self.places + self.links;
        n == 0 && !self.unknown && !self.caches && !self.late
    }
}

/// The blocks of a process.
#[derive(Debug, Default)]
pub struct Census {
    /// glibc's arenas, the main one first. None: glibc's allocator is not there, or was never used.
    pub arenas: Vec<ArenaStats>,
    /// Blocks of glibc's that have a mapping of their own.
    pub mapped: Sum,
    /// The jemallocs that the process has, mostly none or one.
    pub jemallocs: Vec<JemallocStats>,
    /// The allocators of musl's that the process has, mostly none or one.
    pub musls: Vec<MuslStats>,
    /// The mimallocs that the process has, mostly none or one.
    pub mimallocs: Vec<MimallocStats>,
    /// The tcmallocs that the process has, mostly none or one.
    pub tcmallocs: Vec<TcmallocStats>,
    /// Blocks by size, smallest first.
    pub sizes: Vec<SizeClass>,
    /// Memory that `malloc_trim(0)` would give back.
    pub trim: Trim,
    /// Memory and lists that could not be followed.
    pub lost: Lost,
    /// Bytes of anonymous memory that the process has touched and no walk explains, by name of the mapping (empty for
    /// those without), largest first, with the number of mappings: stacks, other allocators, the program's own.
    pub others: Vec<(String, u64, u64)>,
    /// Time for which all threads were stopped; `None`: the process ran.
    pub stop: Option<Duration>,
    /// Time for which all threads were stopped for a walk that was given up, before the one in which the process ran.
    pub given_up: Option<Duration>,
    /// Time that the census took.
    pub took: Duration,
    /// Bytes that were read.
    pub read: u64,
    walked: Walked,
    blocks: Vec<Own>,
    heaps: Vec<Heap>,
    musl: Vec<musl::Heap>,
    mimalloc: Vec<mimalloc::Heap>,
    tcmalloc: Vec<tcmalloc::Heap>,
}

impl Census {
    /// Returns whether there is a heap that can be walked.
    #[must_use]
    pub fn has_heap(&self) -> bool {
        let others = self.jemallocs.len() + self.musls.len();
        let more = self.mimallocs.len() + self.tcmallocs.len();
        !self.arenas.is_empty() || others + more > 0
    }

    /// Returns the blocks that the program has: those in heaps of glibc's in the order of their addresses, then those that
    /// have mappings of their own, then jemalloc's in the order of their addresses, then musl's, then mimalloc's, then tcmalloc's. Blocks that
    /// jemalloc has made for itself, and may free without a call of `free`, are none of them. A block of mimalloc's may begin later than said
    /// here, if the process has any that count as [`MimallocStats::shifted`].
    pub fn blocks(&self) -> impl Iterator<Item = Block> {
        let in_use = self.walked.chunks.iter().filter(|c| c.state() == State::InUse);
        let in_heaps = in_use.map(|c| Block { address: c.user(), size: c.usable() });
        // No chunk follows one that has a mapping of its own, so it has no word of the next one.
        let own = self.blocks.iter().map(|b| b.chunk);
        let own = own.map(|c| Block { address: c.user(), size: c.size() - HEADER });
        let others = self.heaps.iter().flat_map(Heap::blocks);
        let others = others.map(|p| Block { address: p.address, size: p.size });
        let others = others.chain(self.musl.iter().flat_map(musl::Heap::blocks));
        let others = others.chain(self.mimalloc.iter().flat_map(mimalloc::Heap::blocks));
        let others = others.chain(self.tcmalloc.iter().flat_map(tcmalloc::Heap::blocks));
        in_heaps.chain(own).chain(others)
    }

    /// Returns the blocks that the program has, together.
    pub fn in_use(&self) -> Sum {
        let others = self.jemallocs.iter().map(|j| j.sum(|a| a.in_use));
        let others = others.chain(self.musls.iter().map(|m| m.in_use));
        let others = others.chain(self.mimallocs.iter().map(|m| m.in_use));
        let others = others.chain(self.tcmallocs.iter().map(|t| t.in_use));
        self.arenas.iter().map(|a| a.in_use).chain(others).fold(self.mapped, |all, s| Sum {
            bytes: all.bytes + s.bytes,
            blocks: all.blocks + s.blocks,
        })
    }
}

/// Takes the census of a process.
///
/// # Errors
/// If the process has ended or can't be read, or a thread does not stop that has to.
pub fn take(pid: Pid, options: &Options) -> Result<Census, Error> {
    let began = Instant::now();
    let mut walk = Walk::prepare(pid, options.timeout)?;
    let walk_until = walk.until;
    let stop = match options.snapshot {
        Snapshot::Never => false,
        Snapshot::Always | Snapshot::Copied => true,
        Snapshot::Within(most) => walk.estimate() <= most,
    };
    // A heap whose own figures lie must not make the stop much longer than it was to be.
    let limit = match options.snapshot {
        Snapshot::Within(most) => most * 4,
        _ => options.timeout,
    };
    let look = || match options.snapshot {
        Snapshot::Copied => copied(&mut walk, options.patience),
        _ => stopped(&walk, options.patience, limit),
    };
    let is_brief = matches!(options.snapshot, Snapshot::Within(_));
    let is_over = || Instant::now() >= walk_until || Interrupts::are_due();
    let (mut given_up, mut before) = (None, 0);
    let raw = match stop.then(look) {
        None => walk.raw(walk.until)?,
        // The census is taken without a stop instead: a thread does not stop, or the walk takes longer than was thought.
        // Blocks in caches that it had no time to find would count as in use.
        Some(Err(Error::Threads(_))) if is_brief => walk.raw(walk.until)?,
        Some(Ok(raw)) if is_brief && raw.late && !is_over() => {
            (given_up, before) = (raw.stop, raw.bytes);
            walk.raw(walk.until)?
        }
        Some(raw) => raw?,
    };
    let bytes = raw.bytes + walk.bytes + before;
    let raw = Raw { bytes, late: raw.late || walk.late, ..raw };
    Ok(Census { took: began.elapsed(), given_up, ..raw.census(&walk.reader) })
}

/// Reads while all threads are stopped, for a limited time.
fn stopped(walk: &Walk, patience: Duration, limit: Duration) -> Result<Raw, Error> {
    isolated(|| {
        let stopped = stop_all(walk.pid, patience)?;
        let done = walk.raw(walk.until.min(Instant::now() + limit));
        let mut times = StopTimes::default();
        stopped.resume(&mut times);
        done.map(|raw| Raw { stop: Some(times.longest), ..raw })
    })
}

/// Reads a copy of the memory.
fn copied(walk: &mut Walk, patience: Duration) -> Result<Raw, Error> {
    let pid = walk.pid;
    may_copy(pid)?;
    // An end of prof would leave a zombie in the process.
    let _interrupts = Interrupts::hold();
    isolated(|| {
        let mut times = StopTimes::default();
        let copy = MemoryCopy::of(pid, patience, &mut times, &mut |_| {})?;
        at_ease();
        let stop = Some(times.longest);
        let done = walk.of_copy(copy.pid(), |walk| walk.raw(walk.until));
        let done = match done {
            Err(_) if !copy.is_there() => {
                Err(not_copied(pid, "the kernel has ended the copy, as memory was short".into())
                    .into())
            }
            done => done.map(|raw| Raw { stop, ..raw }),
        };
        copy.end_or_warn(patience, &mut times);
        done
    })
}

/// All that has to be of one moment.
pub(crate) struct Raw {
    pub maps: Vec<Map>,
    pub arenas: Arenas,
    pub walked: Walked,
    /// Caches of threads, by the addresses of their blocks, in order.
    pub caches: Vec<u64>,
    /// Links of lists that make no sense.
    pub links: u64,
    pub own: Vec<Own>,
    /// The heaps of jemallocs.
    pub heaps: Vec<Heap>,
    /// The heaps of musl's allocators.
    pub musl: Vec<musl::Heap>,
    /// The heaps of mimallocs.
    pub mimalloc: Vec<mimalloc::Heap>,
    /// The heaps of tcmallocs.
    pub tcmalloc: Vec<tcmalloc::Heap>,
    /// Memory of arenas and of the heaps of others, in order.
    pub taken: Vec<Range<u64>>,
    pub bytes: u64,
    /// Time was up before the end.
    pub late: bool,
    pub stop: Option<Duration>,
}

impl Raw {
    /// Computes the census from the memory that was read.
    fn census(self, reader: &Reader) -> Census {
        let lost = self.lost();
        let mut mapped = Sum::default();
        for range in self.own.iter().map(Own::mapping) {
            mapped.add(range.end - range.start);
        }
        Census {
            arenas: statistics(&self.arenas, &self.walked),
            mapped,
            jemallocs: self.heaps.iter().map(Heap::stats).collect(),
            musls: self.musl.iter().map(musl::Heap::stats).collect(),
            mimallocs: self.mimalloc.iter().map(mimalloc::Heap::stats).collect(),
            tcmallocs: self.tcmalloc.iter().map(tcmalloc::Heap::stats).collect(),
            sizes: sizes(&self),
            trim: trim(reader, &self.arenas, &self.walked),
            lost,
            others: others(reader, &self.maps, &self.taken, &self.own),
            stop: self.stop,
            given_up: None,
            took: Duration::ZERO,
            read: self.bytes,
            walked: self.walked,
            blocks: self.own,
            heaps: self.heaps,
            musl: self.musl,
            mimalloc: self.mimalloc,
            tcmalloc: self.tcmalloc,
        }
    }

    /// Returns what could not be followed.
    pub(crate) fn lost(&self) -> Lost {
        let heaps = self.heaps.iter();
        let behind = self.walked.lost.iter().chain(&self.arenas.lost_heaps);
        let behind = behind.chain(heaps.clone().flat_map(|h| &h.lost));
        let behind = behind.chain(self.musl.iter().flat_map(|h| &h.lost));
        let behind = behind.chain(self.mimalloc.iter().flat_map(|h| &h.lost));
        let behind = behind.chain(self.tcmalloc.iter().flat_map(|h| &h.lost));
        let links = heaps.clone().map(|h| h.links).chain(self.mimalloc.iter().map(|h| h.links));
        let links = links.chain(self.tcmalloc.iter().map(|h| h.links));
        let tcmallocs = self.tcmalloc.iter();
        let missing = self.arenas.missing();
        Lost {
            bytes: behind.clone().map(|r| r.end - r.start).fold(missing, u64::saturating_add),
            places: behind.count() as u64 + u64::from(missing > 0),
            links: self.links + links.sum::<u64>(),
            others: self.walked.gaps,
            unknown: heaps.clone().any(|h| !h.is_known())
                || self.mimalloc.iter().any(|h| !h.is_known())
                || tcmallocs.clone().any(|h| !h.is_known()),
            caches: heaps.clone().any(|h| h.is_known() && !h.has_caches())
                || tcmallocs.clone().any(|h| h.is_known() && !h.has_caches()),
            late: self.late,
        }
    }
}

/// Returns the memory of arenas and of others' heaps, given by its ranges, in order.
pub(crate) fn taken(
    arenas: &Arenas,
    maps: &[Map],
    others: impl Iterator<Item = Range<u64>>,
) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = arenas.all.iter().flat_map(|a| a.heaps.clone()).collect();
    // The newest region of the main arena ends with its top chunk, but for the heap that grows by `brk`.
    let main = arenas.regions.iter().filter(|r| r.main);
    all.extend(main.map(
        |r| match maps.iter().find(|m| m.start.0 <= r.start && r.start < m.end.0) {
            Some(m) if m.name != b"[heap]" && r.end == arenas.all[0].top.0 => {
                let top = arenas.all[0].top;
                r.start..top.0.saturating_add(top.1).clamp(r.start, m.end.0)
            }
            _ => r.start..r.end,
        },
    ));
    all.extend(others);
    all.sort_by_key(|r| r.start);
    all
}

fn sum_of(states: &[Sum; 4], state: State) -> Sum {
    states[state as usize]
}

fn statistics(arenas: &Arenas, walked: &Walked) -> Vec<ArenaStats> {
    let mut sums = vec![[Sum::default(); 4]; arenas.all.len()];
    let mut pieces = vec![0u64; arenas.all.len()];
    for (arena, chunks) in &walked.regions {
        pieces[*arena] += 1;
        for c in &walked.chunks[chunks.clone()] {
            sums[*arena][c.state() as usize].add(c.size());
        }
    }
    let of = |(i, a): (usize, &Arena)| ArenaStats {
        address: a.at,
        main: i == 0,
        heaps: if i == 0 { pieces[0] } else { a.heaps.len() as u64 },
        threads: a.threads,
        system: a.system,
        most_system: a.most_system,
        in_use: sum_of(&sums[i], State::InUse),
        cached: sum_of(&sums[i], State::Cached),
        fast: sum_of(&sums[i], State::Fast),
        binned: sum_of(&sums[i], State::Binned),
        top: a.top.1,
    };
    arenas.all.iter().enumerate().map(of).collect()
}

fn sizes(raw: &Raw) -> Vec<SizeClass> {
    let mut classes: BTreeMap<(u64, u64), SizeClass> = BTreeMap::new();
    for c in raw.walked.chunks.iter().chain(raw.own.iter().map(|b| &b.chunk)) {
        let sizes = class_of(c.usable());
        let key = (sizes.1, sizes.0 - 1);
        let class = classes.entry(key).or_insert(SizeClass { sizes, ..SizeClass::default() });
        match c.state() {
            State::InUse => class.in_use.add(c.size()),
            _ => class.free.add(c.size()),
        }
    }
    raw.heaps.iter().for_each(|h| h.count_sizes(&mut classes));
    raw.musl.iter().for_each(|h| h.count_sizes(&mut classes));
    raw.mimalloc.iter().for_each(|h| h.count_sizes(&mut classes));
    raw.tcmalloc.iter().for_each(|h| h.count_sizes(&mut classes));
    classes.into_values().collect()
}

/// Computes what `malloc_trim(0)` would give back, as it does: whole pages inside of free chunks, but for their headers,
/// and of the main arena's top chunk all but the least size of one.
fn trim(reader: &Reader, arenas: &Arenas, walked: &Walked) -> Trim {
    let page = page_size();
    let mut trim = Trim::default();
    let inside = |at: u64, size: u64| {
        // Six words of a chunk in a bin are its own.
        let from = (at + 3 * LEAST / 2).next_multiple_of(page);
        from..((at + size) / page * page).max(from)
    };
    let resident = |range: Range<u64>| {
        let touched = if range.is_empty() { Ok(Vec::new()) } else { reader.touched(range, false) };
        touched.unwrap_or_default().iter().map(|r| r.end - r.start).sum::<u64>()
    };
    let free = walked.chunks.iter().filter(|c| c.state() == State::Binned && c.size() > page);
    trim.inside = free.map(|c| resident(inside(c.at, c.size()))).sum();
    if let Some(main) = arenas.all.first() {
        let (at, size) = main.top;
        let from = (at + LEAST + 1).next_multiple_of(page);
        trim.top = resident(from..((at + size) / page * page).max(from));
    }
    trim
}

/// Returns the touched anonymous memory that is neither an arena's nor a block's, by name.
fn others(
    reader: &Reader,
    maps: &[Map],
    taken: &[Range<u64>],
    blocks: &[Own],
) -> Vec<(String, u64, u64)> {
    let mapped = blocks.iter().map(Own::mapping);
    let mut known: Vec<Range<u64>> = taken.iter().cloned().chain(mapped).collect();
    known.sort_by_key(|r| r.start);
    let mut all: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for m in maps.iter().filter(|m| m.is_anonymous() && m.write) {
        let touched = reader.touched(m.start.0..m.end.0, m.shared).unwrap_or_default();
        let rest: u64 = touched.iter().map(|r| outside(r, &known)).sum();
        if rest > 0 {
            let sum = all.entry(m.text().into_owned()).or_default();
            (sum.0, sum.1) = (sum.0 + rest, sum.1 + 1);
        }
    }
    let mut all: Vec<_> = all.into_iter().map(|(name, (bytes, n))| (name, bytes, n)).collect();
    all.sort_by_key(|(_, bytes, _)| std::cmp::Reverse(*bytes));
    all
}

/// Returns the bytes of a range that are in none of the known ones, which are in order.
fn outside(range: &Range<u64>, known: &[Range<u64>]) -> u64 {
    let first = known.partition_point(|k| k.end <= range.start);
    let near = known[first..].iter().take_while(|k| k.start < range.end);
    let inside: u64 = near.map(|k| k.end.min(range.end) - k.start.max(range.start)).sum();
    (range.end - range.start).saturating_sub(inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_taken_out() {
        let known = [0..10, 20..30, 30..35, 90..100];
        assert_eq!(outside(&(0..100), &known), 65);
        assert_eq!(outside(&(25..32), &known), 0);
        assert_eq!(outside(&(40..50), &known), 10);
        assert_eq!(outside(&(5..6), &[]), 1);
    }
}
