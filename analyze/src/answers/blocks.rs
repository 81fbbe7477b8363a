//! Single blocks: pages of them in any order, and one with its chain of reallocations and its neighbours.

mod page;

use crate::Index;
use crate::Job;
use crate::index::{Column, ScanError, flags};
use crate::query::{Query, Selection};
use prof_trace::size::{GlibcChunks, Header};
use prof_trace::ticks::Ticks;
use serde::Serialize;
use std::collections::{HashMap, HashSet};

pub use page::{BlockPage, BlockSort, BlocksAsk, Cursor, MOST_BLOCKS, MOST_SKIPPED};

/// Greatest number of neighbours of a block on each side.
const NEIGHBOURS: usize = 8;

/// A block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BlockRow {
    /// Number of its row, the same each time that the recording is read.
    pub row: u64,
    /// Address.
    pub address: u64,
    /// Bytes requested.
    pub size: u64,
    /// Bytes that glibc made usable, if its header is known.
    pub usable: Option<u64>,
    /// Time of its allocation in nanoseconds since the start.
    pub begin_ns: u64,
    /// Time of its end in nanoseconds since the start; `None` if it is live at the end of the recording.
    pub end_ns: Option<u64>,
    /// Nanoseconds that it lived, up to the end of the recording.
    pub lifetime_ns: u64,
    /// Index of its stack's group.
    pub group: u32,
    /// Stack node.
    pub stack: u32,
    /// Number of the thread that allocated it.
    pub thread: u32,
    /// Stack node of its end, if that was recorded.
    pub end_stack: Option<u32>,
    /// Number of the thread that ended it.
    pub end_thread: Option<u32>,
    /// The block's free was the next event of its thread.
    pub temporary: bool,
    /// `realloc` returned it.
    pub reallocated: bool,
    /// The block was passed to `realloc`.
    pub continued: bool,
    /// The block's free was not recorded; another block at its address implies it.
    pub implied: bool,
    /// Number of its chain of reallocations; 0: none.
    pub chain: u32,
    /// Position in that chain, from 0.
    pub position: u32,
    /// glibc mapped it on its own, if its header is known.
    pub mapped: Option<bool>,
    /// Whether the block is in glibc's main arena, if its header is known and says so.
    pub main_arena: Option<bool>,
}

/// A block with what belongs to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BlockDetails {
    /// The block.
    pub block: BlockRow,
    /// The blocks of its chain of reallocations in their order, itself included, at most [`MOST_BLOCKS`]; empty if it has
    /// none.
    pub chain: Vec<BlockRow>,
    /// Blocks below it in memory that were live when it was allocated, the nearest first.
    pub below: Vec<BlockRow>,
    /// Blocks above it in memory that were live when it was allocated, the nearest first.
    pub above: Vec<BlockRow>,
}

/// A chain of reallocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChainRow {
    /// Number of its blocks.
    pub length: u64,
    /// Time when its first block was allocated, in nanoseconds since the start.
    pub begin_ns: u64,
    /// The last block of the chain.
    pub last: BlockRow,
}

/// A chain while its blocks are found.
#[derive(Clone, Copy, Default)]
struct Links {
    length: u64,
    /// Ticks of the first block's begin.
    begin: Ticks,
    /// Position and row of the last block.
    last: (u64, u64),
}

impl Links {
    fn add(&mut self, other: Self) {
        if self.length == 0 {
            *self = other;
            return;
        }
        self.length += other.length;
        self.begin = self.begin.min(other.begin);
        self.last = self.last.max(other.last);
    }
}

/// Number and bytes of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FreedAt {
    /// Number of blocks.
    pub count: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
}

impl Query<'_> {
    /// Returns for each stack node at which selected blocks were freed their number and bytes, as far as that was
    /// recorded.
    ///
    /// # Errors
    /// If the index can't be read, or the job of this thread is cancelled.
    pub fn freed_at(&self) -> Result<HashMap<u32, FreedAt>, ScanError> {
        type State = (Selection, Vec<u64>, Vec<u64>, HashMap<u32, FreedAt>);
        let states =
            self.index.scan(State::default, |(selection, nodes, sizes, found), block| {
                if block.range(Column::EndNode).1 == 0 {
                    return Some(());
                }
                self.select(block, selection)?;
                if !selection.rows.is_empty() {
                    block.read(Column::EndNode, nodes)?;
                    block.read(Column::Size, sizes)?;
                }
                for i in selection.rows.iter().map(|i| *i as usize).filter(|i| nodes[*i] != 0) {
                    let sum = found.entry(nodes[i] as u32).or_default();
                    sum.count += 1;
                    sum.bytes = sum.bytes.saturating_add(sizes[i]);
                }
                Some(())
            })?;
        let mut all: HashMap<u32, FreedAt> = HashMap::new();
        for (node, found) in states.into_iter().flat_map(|s| s.3) {
            let sum = all.entry(node).or_default();
            sum.count += found.count;
            sum.bytes = sum.bytes.saturating_add(found.bytes);
        }
        Ok(all)
    }
}

/// The columns of a row, in the order in which [`Index::block_rows`] reads them.
const ALL: [Column; 12] = [
    Column::Addr,
    Column::Size,
    Column::Begin,
    Column::End,
    Column::Group,
    Column::ThreadIndex,
    Column::EndNode,
    Column::EndThreadIndex,
    Column::Flags,
    Column::Chain,
    Column::Position,
    Column::Header,
];

impl Index {
    /// Returns blocks by the numbers of their rows, in this order; numbers that no row has are left out.
    ///
    /// # Errors
    /// If the index can't be read.
    pub fn block_rows(&self, rows: &[u64]) -> Result<Vec<BlockRow>, ScanError> {
        let mut places: Vec<(u64, usize)> = rows.iter().copied().zip(0..).collect();
        places.sort_unstable();
        let mut out = vec![None; rows.len()];
        let mut columns = [const { Vec::new() }; ALL.len()];
        let mut have = None;
        for (row, place) in places {
            let (number, at) = Self::place_of(row);
            if have != Some(number) {
                // Rows that lie far from each other need a block of rows each.
                if Job::is_current_cancelled() {
                    return Err(ScanError::Cancelled);
                }
                let read = self.block_of_rows(number, |block| {
                    for (c, values) in ALL.into_iter().zip(&mut columns) {
                        block.read(c, values)?;
                    }
                    Some(())
                })?;
                if !read {
                    continue;
                }
                have = Some(number);
            }
            if at < columns[0].len() {
                out[place] = Some(self.block_row(row, columns.each_ref().map(|c| c[at])));
            }
        }
        Ok(out.into_iter().flatten().collect())
    }

    fn block_row(&self, row: u64, values: [u64; ALL.len()]) -> BlockRow {
        let [
            address,
            size,
            begin,
            end,
            group,
            thread_index,
            end_node,
            end_thread_index,
            flag,
            chain,
            position,
            code,
        ] = values;
        let analysis = self.analysis();
        let (meta, clock) = (analysis.meta(), &analysis.meta().clock);
        let thread = |thread_index: u64| self.thread_numbers().get(thread_index as usize).copied();
        let header = Header::from_code(code as u16);
        let known = header.is_known();
        let ended = end != u64::MAX;
        BlockRow {
            row,
            address,
            size,
            usable: if known {
                GlibcChunks::of(meta.target.pointer_size).usable(size, header)
            } else {
                None
            },
            begin_ns: clock.ns(Ticks(begin)),
            end_ns: ended.then(|| clock.ns(Ticks(end))),
            lifetime_ns: clock
                .between(Ticks(begin), Ticks(end).min(analysis.end_ticks().max(Ticks(begin)))),
            group: group as u32,
            stack: analysis.groups().get(group as usize).map_or(0, |g| g.node),
            thread: thread(thread_index).unwrap_or(0),
            end_stack: (end_node != 0).then_some(end_node as u32),
            end_thread: if ended { thread(end_thread_index) } else { None },
            temporary: flag & flags::TEMPORARY != 0 && analysis.capture().is_everything(),
            reallocated: flag & flags::REALLOCATED != 0,
            continued: flag & flags::CONTINUED != 0,
            implied: flag & flags::IMPLIED != 0,
            chain: chain as u32,
            position: position as u32,
            mapped: known.then_some(header.mapped),
            main_arena: (header.arena != 0).then_some(header.arena == 1),
        }
    }

    /// Returns the chains of reallocations of these numbers.
    ///
    /// # Errors
    /// If the index can't be read, or the job of this thread is cancelled.
    pub fn chain_rows(&self, wanted: &HashSet<u32>) -> Result<HashMap<u32, ChainRow>, ScanError> {
        let (Some(least), Some(most)) = (wanted.iter().min(), wanted.iter().max()) else {
            return Ok(HashMap::new());
        };
        type State = ([Vec<u64>; 3], HashMap<u32, Links>);
        let states = self.scan(State::default, |([ids, positions, begins], found), block| {
            let (min, max) = block.range(Column::Chain);
            if max < u64::from(*least) || min > u64::from(*most) {
                return Some(());
            }
            block.read(Column::Chain, ids)?;
            let mut is_read = false;
            for (i, id) in ids.iter().enumerate() {
                let Some(id) = u32::try_from(*id).ok().filter(|id| wanted.contains(id)) else {
                    continue;
                };
                if !is_read {
                    block.read(Column::Position, positions)?;
                    block.read(Column::Begin, begins)?;
                    is_read = true;
                }
                let last = (positions[i], block.first_row() + i as u64);
                found.entry(id).or_default().add(Links {
                    length: 1,
                    begin: Ticks(begins[i]),
                    last,
                });
            }
            Some(())
        })?;
        let mut all: HashMap<u32, Links> = HashMap::new();
        for (id, links) in states.into_iter().flat_map(|s| s.1) {
            all.entry(id).or_default().add(links);
        }
        let rows: Vec<u64> = all.values().map(|l| l.last.1).collect();
        let clock = &self.analysis().meta().clock;
        let chain = |last: BlockRow| {
            let links = all.get(&last.chain)?;
            let begin_ns = clock.ns(links.begin);
            Some((last.chain, ChainRow { length: links.length, begin_ns, last }))
        };
        Ok(self.block_rows(&rows)?.into_iter().filter_map(chain).collect())
    }

    /// Returns a block with its chain of reallocations and its neighbours; `None` if there is no such row.
    ///
    /// # Errors
    /// If the index can't be read, or the job of this thread is cancelled.
    pub fn block_details(&self, row: u64) -> Result<Option<BlockDetails>, ScanError> {
        let Some(block) = self.block_rows(&[row])?.pop() else { return Ok(None) };
        let mut begin = Vec::new();
        let (number, at) = Self::place_of(row);
        self.block_of_rows(number, |b| b.read(Column::Begin, &mut begin))?;
        let when = begin.get(at).copied().unwrap_or(0);
        let around = self.around(block.address, row, Ticks(when))?;
        let mut chain = if block.chain == 0 { Vec::new() } else { self.chain(block.chain.into())? };
        chain.truncate(MOST_BLOCKS);
        let [below, above] = around;
        Ok(Some(BlockDetails {
            block,
            chain: self.block_rows(&chain)?,
            below: self.block_rows(&below)?,
            above: self.block_rows(&above)?,
        }))
    }

    /// Returns the rows of a chain of reallocations, in their order.
    fn chain(&self, chain: u64) -> Result<Vec<u64>, ScanError> {
        let state = || (Vec::new(), Vec::new(), Vec::new());
        let states = self.scan(state, |(found, ids, positions), block| {
            let (min, max) = block.range(Column::Chain);
            if chain < min || chain > max {
                return Some(());
            }
            block.read(Column::Chain, ids)?;
            if ids.contains(&chain) {
                block.read(Column::Position, positions)?;
                let all = ids.iter().zip(&*positions).enumerate();
                let of_chain = all.filter(|(_, (id, _))| **id == chain);
                let first = block.first_row();
                found.extend(of_chain.map(|(i, (_, position))| (*position, first + i as u64)));
            }
            Some(())
        })?;
        let mut all: Vec<(u64, u64)> = states.into_iter().flat_map(|s| s.0).collect();
        all.sort_unstable();
        Ok(all.into_iter().map(|(_, row)| row).collect())
    }

    /// Returns the rows of the blocks next to an address, below and above, that were live at the ticks `when`.
    fn around(&self, address: u64, row: u64, when: Ticks) -> Result<[Vec<u64>; 2], ScanError> {
        let state = || ([const { Vec::new() }; 3], [const { Vec::<(u64, u64)>::new() }; 2]);
        let states = self.scan(state, |(columns, near), block| {
            if block.range(Column::Begin).0 > when.0 || block.range(Column::End).1 <= when.0 {
                return Some(());
            }
            let [begins, ends, addrs] = columns;
            block.read(Column::Begin, begins)?;
            block.read(Column::End, ends)?;
            block.read(Column::Addr, addrs)?;
            let first = block.first_row();
            for (i, addr) in addrs.iter().enumerate() {
                let other = first + i as u64;
                if begins[i] <= when.0 && ends[i] > when.0 && other != row {
                    let above = *addr > address;
                    near[usize::from(above)].push((addr.abs_diff(address), other));
                }
            }
            for near in near {
                near.sort_unstable();
                near.truncate(NEIGHBOURS);
            }
            Some(())
        })?;
        Ok([0, 1].map(|side: usize| {
            let mut all: Vec<_> = states.iter().flat_map(|s| s.1[side].iter().copied()).collect();
            all.sort_unstable();
            all.truncate(NEIGHBOURS);
            all.into_iter().map(|(_, row)| row).collect()
        }))
    }
}
