//! Finds the live blocks on each page.

use super::course::Course;
use crate::Index;
use crate::index::{Block, Column, ScanError};
use crate::query::{Query, Selection};
use prof_trace::records::PIECE;
use prof_trace::size::{GlibcChunks, Header};
use prof_trace::ticks::Ticks;
use serde::Serialize;
use std::collections::HashSet;

/// Number of steps of the histogram of page use.
pub const STEPS: usize = 10;

/// The pages with live blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pages {
    /// Bytes per page.
    pub size: u64,
    /// Number of pages.
    pub count: u64,
    /// Number of live blocks on the pages.
    pub live_count: u64,
    /// Bytes of these blocks, as requested.
    pub live_bytes: u64,
    /// Bytes of the pages that belong to no live block: the allocator's own, free, or of blocks from before the attach.
    pub unused_bytes: u64,
    /// Number of sparse pages.
    pub sparse: u64,
    /// Bytes of sparse pages that belong to no live block.
    pub sparse_unused_bytes: u64,
    /// Pages by how much of them is used, in tenths: up to 10 %, up to 20 %, ...
    pub by_use: [u64; STEPS],
}

/// Counts of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Group {
    pub blocks: u64,
    pub bytes: u64,
    pub pages: u64,
    pub alone: u64,
    pub sparse_alone: u64,
    pub unused_alone: u64,
}

/// Result of [`find`].
pub(super) struct Found {
    pub pages: Pages,
    pub groups: Vec<Group>,
    /// Runs of adjacent pages with live blocks, ascending.
    pub runs: Vec<Run>,
    /// Live blocks in each of the requested ranges.
    pub within: Vec<Within>,
    /// The chunks on glibc's heaps that were in use in the requested period.
    pub course: Course,
}

/// Live blocks in a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Within {
    /// Bytes requested.
    pub bytes: u64,
    /// Bytes of the chunks they occupy, as far as glibc's chunk headers say.
    pub chunks: u64,
}

/// Input of [`find`], besides the blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask<'a> {
    /// Ticks of the moment.
    pub at: Option<Ticks>,
    /// Bytes per page.
    pub page: u64,
    /// A page is sparse if less than this part of it is used.
    pub sparse: f64,
    /// Layout of glibc's chunks.
    pub chunks: GlibcChunks,
    /// Address ranges, ascending: first address, and first address behind the end.
    pub ranges: &'a [(u64, u64)],
    /// Whether each of them is a heap of glibc's.
    pub heaps: &'a [bool],
    /// Period for which the chunks in use on these heaps are wanted.
    pub time: Option<(Ticks, Ticks)>,
}

/// A run of adjacent pages with live blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Number of the first page.
    pub page: u64,
    /// Number of the first page behind the run.
    pub end: u64,
    /// Bytes of live blocks on them.
    pub used: u64,
}

/// The part of a page that a group uses, or several pages that one block uses whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    page: u64,
    /// Number of pages; if more than one, all are used whole.
    count: u64,
    bytes: u32,
    group: u32,
}

#[derive(Default)]
struct State {
    selection: Selection,
    columns: [Vec<u64>; 6],
    parts: Vec<Part>,
    groups: Vec<(u64, u64)>,
    within: Vec<Within>,
    course: Course,
}

/// Adds the parts of pages that a block covers. These are three at most, whatever the size of the block.
fn add(parts: &mut Vec<Part>, addr: u64, size: u64, group: u32, page: u64) {
    // A block of no bytes still occupies a byte.
    let end = addr.saturating_add(size.max(1));
    let (first, last) = (addr / page, (end - 1) / page);
    let mut put = |at: u64, count: u64, bytes: u64| {
        parts.push(Part { page: at, count, bytes: bytes as u32, group });
    };
    if first == last {
        return put(first, 1, end - addr);
    }
    put(first, 1, (first + 1) * page - addr);
    if last - first > 1 {
        put(first + 1, last - first - 1, page);
    }
    put(last, 1, end - last * page);
}

/// Finds the pages of the blocks that are live at a moment.
pub(super) fn find(index: &Index, query: &Query<'_>, ask: &Ask<'_>) -> Result<Found, ScanError> {
    let (page, sparse) = (ask.page, ask.sparse);
    let groups = index.analysis().groups().len();
    let none = vec![Within::default(); ask.ranges.len()];
    let mut course = Course::of(ask.time);
    let state = || State {
        groups: vec![(0, 0); groups],
        within: none.clone(),
        course: Course::of(ask.time),
        ..State::default()
    };
    let states = index.scan(state, |s, block| collect(s, query, block, ask))?;
    let mut within = none.clone();
    let mut all = vec![Group::default(); groups];
    let mut parts: Vec<Part> = Vec::new();
    for s in states {
        for (g, (blocks, bytes)) in all.iter_mut().zip(s.groups) {
            g.blocks += blocks;
            g.bytes = g.bytes.saturating_add(bytes);
        }
        for (to, from) in within.iter_mut().zip(s.within) {
            to.bytes = to.bytes.saturating_add(from.bytes);
            to.chunks = to.chunks.saturating_add(from.chunks);
        }
        course.merge(s.course);
        match parts.is_empty() {
            true => parts = s.parts,
            false => parts.extend(s.parts),
        }
    }
    parts.sort_unstable();
    let pages = Pages { size: page, ..Pages::default() };
    let mut found = Found { pages, groups: all, runs: Vec::new(), within, course };
    for g in &found.groups {
        found.pages.live_count += g.blocks;
        found.pages.live_bytes = found.pages.live_bytes.saturating_add(g.bytes);
    }
    let mut on_page: Vec<(u32, u64)> = Vec::new();
    for same in parts.chunk_by(|a, b| a.page == b.page) {
        // Damaged recordings may have several blocks on the same whole pages: the pages count once.
        let count = same.iter().map(|p| p.count).max().unwrap_or(1);
        on_page.clear();
        for p in same {
            match on_page.last_mut().filter(|l| l.0 == p.group) {
                Some(l) => l.1 += u64::from(p.bytes),
                None => on_page.push((p.group, p.bytes.into())),
            }
        }
        // Parts are sorted by bytes before group, so equal groups are not adjacent yet.
        on_page.sort_unstable();
        on_page.dedup_by(|b, a| {
            a.0 == b.0 && {
                a.1 += b.1;
                true
            }
        });
        found.page(same[0].page, count, &on_page, sparse);
    }
    Ok(found)
}

impl Found {
    /// Counts a number of pages that are used alike.
    fn page(&mut self, at: u64, count: u64, on: &[(u32, u64)], sparse: f64) {
        let size = self.pages.size;
        let used = on.iter().map(|o| o.1).fold(0, u64::saturating_add).min(size);
        let unused = (size - used).saturating_mul(count);
        let is_sparse = (used as f64) < sparse * size as f64;
        let p = &mut self.pages;
        p.count = p.count.saturating_add(count);
        p.unused_bytes = p.unused_bytes.saturating_add(unused);
        let step = &mut p.by_use[((used.max(1) - 1) * STEPS as u64 / size) as usize];
        *step = step.saturating_add(count);
        if is_sparse {
            p.sparse = p.sparse.saturating_add(count);
            p.sparse_unused_bytes = p.sparse_unused_bytes.saturating_add(unused);
        }
        for (group, _) in on {
            let Some(g) = self.groups.get_mut(*group as usize) else { continue };
            g.pages = g.pages.saturating_add(count);
            if on.len() == 1 {
                g.alone = g.alone.saturating_add(count);
                g.unused_alone = g.unused_alone.saturating_add(unused);
                g.sparse_alone = g.sparse_alone.saturating_add(if is_sparse { count } else { 0 });
            }
        }
        let (end, used) = (at.saturating_add(count), used.saturating_mul(count));
        match self.runs.last_mut().filter(|r| r.end >= at) {
            Some(run) => {
                run.end = run.end.max(end);
                run.used = run.used.saturating_add(used);
            }
            None => self.runs.push(Run { page: at, end, used }),
        }
    }
}

fn collect(s: &mut State, query: &Query<'_>, block: &mut Block<'_>, ask: &Ask<'_>) -> Option<()> {
    // A block that never ends has the end `u64::MAX`, later than any moment.
    let at = ask.at.unwrap_or(Ticks::LAST).min(Ticks::LAST);
    let (from, to) = s.course.time().unwrap_or((at, at));
    if block.range(Column::Begin).0 > at.max(to).0 || block.range(Column::End).1 < at.min(from).0 {
        return Some(());
    }
    query.select(block, &mut s.selection)?;
    if s.selection.rows.is_empty() {
        return Some(());
    }
    const READ: [Column; 6] =
        [Column::Begin, Column::End, Column::Addr, Column::Size, Column::Group, Column::Header];
    for (c, values) in READ.into_iter().zip(&mut s.columns) {
        block.read(c, values)?;
    }
    let [begins, ends, addrs, sizes, groups, headers] = &s.columns;
    for &i in &s.selection.rows {
        let i = i as usize;
        let range = ask.ranges.partition_point(|r| r.1 <= addrs[i]);
        let range = ask.ranges.get(range).filter(|r| r.0 <= addrs[i]).map(|_| range);
        let header = Header::from_code(headers[i] as u16);
        if range.is_some_and(|r| ask.heaps.get(r) == Some(&true)) {
            let bytes = ask.chunks.bytes(sizes[i], header);
            s.course.add((Ticks(begins[i]), Ticks(ends[i])), addrs[i], bytes);
        }
        if begins[i] > at.0 || ends[i] <= at.0 {
            continue;
        }
        let sum = s.groups.get_mut(groups[i] as usize)?;
        sum.0 += 1;
        sum.1 = sum.1.saturating_add(sizes[i]);
        add(&mut s.parts, addrs[i], sizes[i], groups[i] as u32, ask.page);
        if let Some(within) = range.and_then(|r| s.within.get_mut(r)) {
            within.bytes = within.bytes.saturating_add(sizes[i]);
            let chunk = ask.chunks.bytes(sizes[i], header);
            within.chunks = within.chunks.saturating_add(chunk);
        }
    }
    Some(())
}

/// Returns the multiples of [`PIECE`] at which recorded blocks ever began, as far as `of_interest` accepts them;
/// ascending. glibc's blocks count only if `all` is set, and never those with a mapping of their own.
pub(crate) fn used_pieces(
    index: &Index,
    all: bool,
    of_interest: impl Fn(u64) -> bool,
) -> Result<Vec<u64>, ScanError> {
    type Seen = (HashSet<u64>, [Vec<u64>; 2]);
    let states = index.scan(Seen::default, |(seen, [addrs, headers]), block| {
        let (low, high) = block.range(Column::Addr);
        if low / PIECE == high / PIECE && seen.contains(&(low / PIECE)) {
            return Some(());
        }
        block.read(Column::Addr, addrs)?;
        block.read(Column::Header, headers)?;
        let mut last = None;
        for (addr, header) in addrs.iter().zip(headers.iter()) {
            let piece = addr / PIECE;
            let header = Header::from_code(*header as u16);
            if last != Some(piece) && !header.mapped && (all || !header.is_known()) {
                seen.insert(piece);
                last = Some(piece);
            }
        }
        Some(())
    })?;
    let made = states.into_iter().flat_map(|s| s.0).map(|p| p * PIECE);
    let mut all: Vec<u64> = made.filter(|p| of_interest(*p)).collect();
    if !all.is_empty() {
        // Blocks from before the recording are known by their frees only.
        let freed = index.before().frees().iter().map(|f| f.1 / PIECE * PIECE);
        all.extend(freed.filter(|p| of_interest(*p)));
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(addr: u64, size: u64) -> Vec<(u64, u64, u32)> {
        let mut all = Vec::new();
        add(&mut all, addr, size, 0, 4096);
        all.iter().map(|p| (p.page, p.count, p.bytes)).collect()
    }

    #[test]
    fn blocks_are_on_their_pages() {
        assert_eq!(parts(4096, 0), [(1, 1, 1)]);
        assert_eq!(parts(4096, 4096), [(1, 1, 4096)]);
        assert_eq!(parts(4095, 2), [(0, 1, 1), (1, 1, 1)]);
        assert_eq!(parts(4000, 10_000), [(0, 1, 96), (1, 2, 4096), (3, 1, 1712)]);
        assert_eq!(parts(u64::MAX - 10, u64::MAX).len(), 1);
        let huge = parts(10, u64::MAX);
        assert_eq!((huge.len(), huge[1].0), (3, 1));
    }
}
