//! Single blocks: pages of them in an order, one of them, its chain, and what lay beside it.

use crate::reply::Failure;
use prof_analyze::Index;
use prof_analyze::answers::{BlockPage, BlockSort, BlocksAsk, MOST_BLOCKS};
use prof_analyze::index::{Block, Column, ScanError, flags};
use prof_analyze::query::{Query, Selection};
use std::collections::{BinaryHeap, HashMap, HashSet};

/// A block of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    /// Number of the row in the index.
    pub number: u64,
    pub addr: u64,
    pub size: u64,
    pub begin: u64,
    /// `u64::MAX`: it is live.
    pub end: u64,
    pub group: u64,
    pub lane: u64,
    pub end_node: u64,
    pub end_lane: u64,
    pub flags: u64,
    pub chain: u64,
    pub position: u64,
    pub header: u64,
}

const COLUMNS: [Column; 12] = [
    Column::Addr,
    Column::Size,
    Column::Begin,
    Column::End,
    Column::Group,
    Column::Lane,
    Column::EndNode,
    Column::EndLane,
    Column::Flags,
    Column::Chain,
    Column::Position,
    Column::Header,
];

impl Row {
    fn of(number: u64, columns: &[Vec<u64>; 12], i: usize) -> Self {
        let at = |c: usize| columns[c][i];
        Self {
            number,
            addr: at(0),
            size: at(1),
            begin: at(2),
            end: at(3),
            group: at(4),
            lane: at(5),
            end_node: at(6),
            end_lane: at(7),
            flags: at(8),
            chain: at(9),
            position: at(10),
            header: at(11),
        }
    }

    /// Returns whether it was passed to `realloc`.
    pub(crate) fn is_continued(&self) -> bool {
        self.flags & flags::CONTINUED != 0
    }
}

fn read(block: &mut Block<'_>, columns: &mut [Vec<u64>; 12]) -> Option<()> {
    for (c, values) in COLUMNS.into_iter().zip(columns) {
        block.read(c, values)?;
    }
    Some(())
}

/// The order of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Time,
    Address,
    Size,
}

/// The parameters of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub by: By,
    /// The largest first.
    pub reverse: bool,
    pub skip: usize,
    pub count: usize,
}

/// A page of blocks.
pub(crate) struct Page {
    pub rows: Vec<Row>,
    /// Number of the blocks that are selected.
    pub total: u64,
    /// Whether others follow.
    pub more: bool,
}

/// Returns a page of the selected blocks: two passes, the first of which reads only what the order needs.
pub(crate) fn page(query: &Query<'_>, index: &Index, wanted: Wanted) -> Result<Page, ScanError> {
    if wanted.count <= MOST_BLOCKS {
        return short_page(query, index, wanted);
    }
    let most = wanted.skip + wanted.count + 1;
    // The largest of those that are kept is at the top.
    let mut kept: BinaryHeap<(u64, u64)> = BinaryHeap::with_capacity(most.min(1 << 16) + 1);
    let (mut selection, mut a) = (Selection::default(), Vec::new());
    let (mut first, mut total) = (0u64, 0u64);
    let turned = |key: u64| if wanted.reverse { !key } else { key };
    index.each(|block| {
        let rows = block.rows() as u64;
        query.select(block, &mut selection)?;
        total += selection.rows.len() as u64;
        if !selection.rows.is_empty() {
            let column = match wanted.by {
                By::Time => Column::Begin,
                By::Address => Column::Addr,
                By::Size => Column::Size,
            };
            block.read(column, &mut a)?;
            for &i in &selection.rows {
                let entry = (turned(a[i as usize]), first + u64::from(i));
                if kept.len() == most && kept.peek().is_some_and(|largest| entry >= *largest) {
                    continue;
                }
                kept.push(entry);
                if kept.len() > most {
                    kept.pop();
                }
            }
        }
        first += rows;
        Some(())
    })?;
    let all = kept.into_sorted_vec();
    let more = all.len() == most;
    let page: Vec<u64> =
        all.into_iter().skip(wanted.skip).take(wanted.count).map(|entry| entry.1).collect();
    let rows = numbered(index, &page.iter().copied().collect())?;
    let rows = page.iter().filter_map(|n| rows.get(n).copied()).collect();
    Ok(Page { rows, total, more })
}

/// Returns a page that is short enough for the index to find it on all processors.
fn short_page(query: &Query<'_>, index: &Index, wanted: Wanted) -> Result<Page, ScanError> {
    let sort = match wanted.by {
        By::Time => BlockSort::Time,
        By::Address => BlockSort::Address,
        By::Size => BlockSort::Size,
    };
    let (descending, skip, count) = (wanted.reverse, wanted.skip as u64, wanted.count);
    let page = query.blocks(&BlocksAsk { sort, descending, skip, count, after: None })?;
    let (rows, more) = (of_page(index, &page)?, page.next.is_some());
    Ok(Page { rows, total: page.total, more })
}

/// Reads the whole rows of a page.
pub(crate) fn of_page(index: &Index, page: &BlockPage) -> Result<Vec<Row>, ScanError> {
    let rows = numbered(index, &page.blocks.iter().map(|b| b.row).collect())?;
    Ok(page.blocks.iter().filter_map(|b| rows.get(&b.row).copied()).collect())
}

/// Reads the rows of these numbers.
pub(crate) fn numbered(
    index: &Index,
    wanted: &HashSet<u64>,
) -> Result<HashMap<u64, Row>, ScanError> {
    let mut found = HashMap::new();
    let mut sorted: Vec<u64> = wanted.iter().copied().collect();
    sorted.sort_unstable();
    let mut columns = <[Vec<u64>; 12]>::default();
    let mut first = 0u64;
    index.each(|block| {
        let end = first + block.rows() as u64;
        let from = sorted.partition_point(|n| *n < first);
        let to = sorted.partition_point(|n| *n < end);
        if from < to {
            read(block, &mut columns)?;
            for &n in &sorted[from..to] {
                found.insert(n, Row::of(n, &columns, (n - first) as usize));
            }
        }
        first = end;
        Some(())
    })?;
    Ok(found)
}

/// A chain of reallocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    /// Number of its blocks.
    pub length: u64,
    /// Ticks of its first block's begin.
    pub begin: u64,
    /// The last block of the chain.
    pub last: Row,
}

/// Finds the chains of these numbers.
pub(crate) fn chains(
    index: &Index,
    wanted: &HashSet<u64>,
) -> Result<HashMap<u64, Chain>, ScanError> {
    let mut found: HashMap<u64, Chain> = HashMap::new();
    each_of_chains(index, wanted, |row| {
        let c = found.entry(row.chain).or_insert(Chain { begin: u64::MAX, ..Chain::default() });
        if c.length == 0 || row.position >= c.last.position {
            c.last = row;
        }
        c.length += 1;
        c.begin = c.begin.min(row.begin);
    })?;
    Ok(found)
}

/// Calls `take` for each block of the chains of these numbers.
pub(crate) fn each_of_chains(
    index: &Index,
    wanted: &HashSet<u64>,
    mut take: impl FnMut(Row),
) -> Result<(), ScanError> {
    let (Some(least), Some(most)) = (wanted.iter().min(), wanted.iter().max()) else {
        return Ok(());
    };
    let (mut ids, mut columns) = (Vec::new(), <[Vec<u64>; 12]>::default());
    let mut first = 0u64;
    index.each(|block| {
        let rows = block.rows() as u64;
        let (min, max) = block.range(Column::Chain);
        if max >= *least && min <= *most {
            block.read(Column::Chain, &mut ids)?;
            if ids.iter().any(|id| wanted.contains(id)) {
                read(block, &mut columns)?;
                for (i, id) in ids.iter().enumerate() {
                    if wanted.contains(id) {
                        take(Row::of(first + i as u64, &columns, i));
                    }
                }
            }
        }
        first += rows;
        Some(())
    })
}

/// Returns the blocks that were live at a moment and lie nearest to an address, in the order of addresses: at most
/// `count` below it and as many from it on.
pub(crate) fn neighbours(
    index: &Index,
    addr: u64,
    at: u64,
    count: usize,
) -> Result<Vec<Row>, ScanError> {
    let mut below: BinaryHeap<std::cmp::Reverse<(u64, u64)>> = BinaryHeap::new();
    let mut above: BinaryHeap<(u64, u64)> = BinaryHeap::new();
    let mut columns = <[Vec<u64>; 3]>::default();
    let mut first = 0u64;
    index.each(|block| {
        let rows = block.rows();
        let (earliest, _) = block.range(Column::Begin);
        let (_, latest) = block.range(Column::End);
        if earliest <= at && latest > at {
            for (c, v) in [Column::Begin, Column::End, Column::Addr].into_iter().zip(&mut columns) {
                block.read(c, v)?;
            }
            let [begins, ends, addrs] = &columns;
            for (i, ((begin, end), addr_of)) in begins.iter().zip(ends).zip(addrs).enumerate() {
                if *begin > at || *end <= at {
                    continue;
                }
                let entry = (*addr_of, first + i as u64);
                if entry.0 < addr {
                    below.push(std::cmp::Reverse(entry));
                    if below.len() > count {
                        below.pop();
                    }
                } else {
                    above.push(entry);
                    if above.len() > count + 1 {
                        above.pop();
                    }
                }
            }
        }
        first += rows as u64;
        Some(())
    })?;
    let numbers = below.into_iter().map(|r| r.0.1).chain(above.into_iter().map(|r| r.1)).collect();
    let mut rows: Vec<Row> = numbered(index, &numbers)?.into_values().collect();
    rows.sort_by_key(|r| (r.addr, r.number));
    Ok(rows)
}

/// Returns how many of the selected blocks were freed at each stack, with their bytes.
pub(crate) fn freed_at(
    query: &Query<'_>,
    index: &Index,
) -> Result<HashMap<u64, (u64, u64)>, Failure> {
    let state = || (Selection::default(), Vec::new(), Vec::new(), HashMap::new());
    let states = index.scan(state, |(selection, nodes, sizes, found), block| {
        if block.range(Column::EndNode).1 == 0 {
            return Some(());
        }
        query.select(block, selection)?;
        if !selection.rows.is_empty() {
            block.read(Column::EndNode, nodes)?;
            block.read(Column::Size, sizes)?;
            for &i in &selection.rows {
                let node = nodes[i as usize];
                if node != 0 {
                    let sum: &mut (u64, u64) = found.entry(node).or_default();
                    sum.0 += 1;
                    sum.1 = sum.1.saturating_add(sizes[i as usize]);
                }
            }
        }
        Some(())
    })?;
    let mut all: HashMap<u64, (u64, u64)> = HashMap::new();
    for (_, _, _, found) in states {
        for (node, (count, bytes)) in found {
            let sum = all.entry(node).or_default();
            sum.0 += count;
            sum.1 = sum.1.saturating_add(bytes);
        }
    }
    Ok(all)
}
