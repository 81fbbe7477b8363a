//! Shows mappings beside the heap's stacks, without counting a byte twice.

use super::data::{MapGroupData, Shower};
use super::{Kind, Map, Maps, Usage};
use crate::askers::is_allocator;
use crate::index::{Index, ScanError};
use crate::report::FrameData;
use crate::report::units::{bytes, count};
use crate::report::{Style, frame_lines};
use prof_trace::records::{PIECE, part_kind};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// The memory that a report is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Blocks of the heap.
    #[default]
    Heap,
    /// Mappings, the allocator's included.
    Maps,
    /// Blocks, and mappings that are not the allocator's.
    All,
}

/// Live mappings, grouped by stack or, where that is not known, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Beside {
    /// The memory that the report is about.
    pub what: What,
    /// The recording tells of mappings.
    pub recorded: bool,
    /// The groups, most resident first.
    pub groups: Vec<MapGroupData>,
    /// Number of groups that are not shown.
    pub other_groups: u64,
    /// Sums over all groups.
    pub total: MapGroupData,
    /// The part of all mappings that is the allocator's; with [`What::All`] it is not in the groups, as blocks are in
    /// it.
    pub allocator: MapGroupData,
}

/// Ranges of memory that belong to allocators: start, end, resident bytes.
pub(super) struct Owned(Vec<(u64, u64, u64)>);

impl Owned {
    /// Finds them: glibc's heaps and mapped blocks, and the pieces of other memory in which recorded blocks ever lay.
    pub(super) fn of(index: &Index) -> Result<Self, ScanError> {
        let Some(m) = &index.analysis().meta().memory.last else { return Ok(Self(Vec::new())) };
        let parts: Vec<[u64; 4]> =
            m.parts.as_chunks::<4>().0.iter().filter(|p| p[0] < p[1]).copied().collect();
        let unknown = |p: &&[u64; 4]| p[3] == part_kind::UNKNOWN;
        let of_interest = |piece: u64| {
            let end = piece.saturating_add(PIECE);
            parts.iter().filter(unknown).any(|p| p[0] < end && piece < p[1])
        };
        let used = match parts.iter().any(|p| unknown(&p)) {
            true => crate::fragmentation::used_pieces(index, m.arenas.is_empty(), of_interest)?,
            false => Vec::new(),
        };
        let mut all = Vec::new();
        for [start, end, rss, kind] in parts {
            if kind != part_kind::UNKNOWN {
                all.push((start, end, rss));
                continue;
            }
            let from = used.partition_point(|u| u.saturating_add(PIECE) <= start);
            for u in used[from..].iter().take_while(|u| **u < end) {
                let (a, b) = ((*u).max(start), u.saturating_add(PIECE).min(end));
                all.push((a, b, share(rss, b - a, end - start)));
            }
        }
        Ok(Self(all))
    }

    /// Returns the bytes of address space, and the resident ones, of a mapping that are the allocator's.
    pub(super) fn of_map(&self, m: &Map) -> (u64, u64) {
        if m.kind != Kind::Anonymous {
            return (0, 0);
        }
        let live = m.regions.iter().filter(|r| r.end.is_none());
        let owned = live.map(|r| self.within(r.address, r.address.saturating_add(r.size)));
        owned.fold((0, 0), |s, o| (s.0.saturating_add(o.0), s.1.saturating_add(o.1)))
    }

    /// Returns the bytes of address space, and the resident ones, that are the allocator's between two addresses.
    fn within(&self, start: u64, end: u64) -> (u64, u64) {
        let over = self.0.iter().filter(|o| o.0 < end && start < o.1);
        over.fold((0u64, 0u64), |(size, rss), o| {
            let both = o.1.min(end) - o.0.max(start);
            (size.saturating_add(both), rss.saturating_add(share(o.2, both, o.1 - o.0)))
        })
    }
}

fn share(whole: u64, part: u64, of: u64) -> u64 {
    (u128::from(whole) * u128::from(part) / u128::from(of.max(1))) as u64
}

/// Returns whether a stack is one of an allocator that takes memory from the kernel.
pub(super) fn is_of_allocator(frames: &[FrameData]) -> bool {
    frames.iter().any(|f| f.function.as_deref().is_some_and(is_allocator))
}

impl Beside {
    /// Groups the mappings that are there at a moment (`None`: the end).
    ///
    /// # Errors
    /// If the index can't be read.
    pub fn new(
        index: &Index,
        maps: &Maps,
        what: What,
        at: Option<u64>,
        top: usize,
    ) -> Result<Self, ScanError> {
        let analysis = index.analysis();
        let owned = Owned::of(index)?;
        let at = at.unwrap_or_else(|| analysis.end_ticks());
        let mut shower = Shower::new(analysis);
        let mut groups: BTreeMap<(String, u32), MapGroupData> = BTreeMap::new();
        let mut allocator = MapGroupData::default();
        let there = |m: &&Map| !m.ours && m.begun <= at && m.end.is_none_or(|e| e.ticks > at);
        for m in maps.all().iter().filter(there) {
            let use_of = m.usage_at(at);
            let node = m.source.map_or(0, |s| s.node);
            let frames = shower.frames(node);
            let whole = m.kind == Kind::Heap || is_of_allocator(&frames);
            let theirs = match whole {
                true => (m.size, use_of.rss),
                false => owned.of_map(m),
            };
            let theirs = (theirs.0.min(m.size), theirs.1.min(use_of.rss));
            add(&mut allocator, (theirs.0, theirs.1), &Usage::default(), 0);
            let left = match what {
                What::All => (m.size - theirs.0, use_of.rss - theirs.1),
                _ => (m.size, use_of.rss),
            };
            if left.0 == 0 {
                continue;
            }
            let name = match (node, &*m.name) {
                (0, "") => format!("[{}]", m.kind.name()),
                (0, name) => crate::style::printable(name),
                _ => String::new(),
            };
            let g = groups.entry((name, node)).or_default();
            g.frames = frames;
            add(g, left, &use_of, m.peak_rss);
        }
        let mut total = MapGroupData::default();
        let mut all = Vec::new();
        for ((name, node), g) in groups {
            add_group(&mut total, &g);
            let name = if node == 0 { name } else { node.to_string() };
            all.push(MapGroupData { name, ..g });
        }
        all.sort_by_key(|g| std::cmp::Reverse((g.rss, g.size)));
        let most = if top == 0 { all.len() } else { top.min(all.len()) };
        let other_groups = (all.len() - most) as u64;
        all.truncate(most);
        Ok(Self { what, recorded: maps.is_recorded(), groups: all, other_groups, total, allocator })
    }

    /// Returns the groups as text, to stand below the stacks of the heap.
    #[must_use]
    pub fn text(&self, style: Style) -> String {
        let mut out = String::new();
        // Writing to a string can't fail.
        let _ = self.write(style, &mut out);
        out
    }

    fn write(&self, style: Style, out: &mut String) -> fmt::Result {
        if !self.recorded {
            return writeln!(out, "\nmappings   the recording does not tell of them");
        }
        writeln!(
            out,
            "\n{:>8} {:>11} {:>11} {:>11}  mappings",
            "number", "size", "RSS", "peak RSS"
        )?;
        for g in &self.groups {
            let name =
                if g.frames.is_empty() { g.name.clone() } else { format!("stack {}", g.name) };
            let (size, rss, peak) = (bytes(g.size), bytes(g.rss), bytes(g.peak_rss));
            writeln!(out, "{:>8} {size:>11} {rss:>11} {peak:>11}  {name}", g.count)?;
            if !g.frames.is_empty() {
                frame_lines(&g.frames, false, style, out)?;
            }
        }
        if self.other_groups > 0 {
            writeln!(
                out,
                "{} (--top 0 shows all)",
                count(self.other_groups, "other group", "other groups")
            )?;
        }
        let (t, a) = (&self.total, &self.allocator);
        writeln!(out, "mappings   {} resident of {}", bytes(t.rss), bytes(t.size))?;
        let where_to = if self.what == What::All {
            "not among these, as its blocks are above"
        } else {
            "among these"
        };
        writeln!(out, "allocator  {} resident of {}, {where_to}", bytes(a.rss), bytes(a.size))
    }
}

fn add(g: &mut MapGroupData, (size, rss): (u64, u64), u: &Usage, peak: u64) {
    g.count += 1;
    g.size = g.size.saturating_add(size);
    g.rss = g.rss.saturating_add(rss);
    g.peak_rss = g.peak_rss.saturating_add(peak);
    g.dirty = g.dirty.saturating_add(u.shared_dirty.saturating_add(u.private_dirty).min(rss));
    g.swap = g.swap.saturating_add(u.swap);
}

fn add_group(to: &mut MapGroupData, g: &MapGroupData) {
    to.count += g.count;
    to.size = to.size.saturating_add(g.size);
    to.rss = to.rss.saturating_add(g.rss);
    to.peak_rss = to.peak_rss.saturating_add(g.peak_rss);
    to.dirty = to.dirty.saturating_add(g.dirty);
    to.swap = to.swap.saturating_add(g.swap);
}
