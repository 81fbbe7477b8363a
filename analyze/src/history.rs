//! Replays the beginnings and ends of blocks in the order of time, with all that the index knows of them.
//!
//! In addition to [`query::Event`](crate::query::Event), a step says how its block ended, and which chain of
//! reallocations it belongs to, so that the program's calls can be reconstructed.

use crate::index::{Column, Index, ScanError, flags};
use crate::query::{Entry, Key, Select, in_order};
use prof_trace::ticks::Ticks;

/// The beginning or end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    key: Key,
    pub addr: u64,
    pub size: u64,
    /// Index into [`Analysis::groups`](crate::Analysis::groups).
    pub group: u32,
    /// Thread index of the thread that did it.
    pub thread_index: u32,
    /// Stack that freed the block, if it is known.
    pub end_node: u32,
    /// Number of its chain of reallocations; 0: none.
    pub chain: u32,
    flags: u8,
    /// glibc's chunk header, in the code of [`Header`](prof_trace::size::Header).
    pub header: u16,
    /// [`Column::Rate`] of the block.
    pub rate: u8,
}

impl Step {
    /// Returns the time in ticks.
    pub(crate) fn time(&self) -> Ticks {
        self.key.time()
    }

    /// Returns whether the block begins here; otherwise it ends.
    pub(crate) fn begins(&self) -> bool {
        self.key.begins()
    }

    fn has(&self, flag: u64) -> bool {
        u64::from(self.flags) & flag != 0
    }

    /// Returns whether the block was returned by `realloc`.
    pub(crate) fn again(&self) -> bool {
        self.has(flags::REALLOCATED)
    }

    /// Returns whether the block ends by being passed to `realloc`.
    pub(crate) fn continues(&self) -> bool {
        self.has(flags::CONTINUED)
    }

    /// Returns whether the block's free was not recorded: its end is implied by another block at its address.
    pub(crate) fn implied(&self) -> bool {
        self.has(flags::IMPLIED)
    }

    /// Returns whether the block is from before the recording, and was found by a census.
    pub(crate) fn found(&self) -> bool {
        self.has(flags::FOUND)
    }

    /// Returns whether the block was temporary.
    pub(crate) fn temporary(&self) -> bool {
        self.has(flags::TEMPORARY)
    }
}

impl Entry for Step {
    const COLUMNS: &'static [Column] = &[
        Column::Addr,
        Column::Size,
        Column::Group,
        Column::ThreadIndex,
        Column::EndNode,
        Column::Chain,
        Column::Flags,
        Column::Header,
        Column::Rate,
        Column::EndThreadIndex,
    ];

    fn begin(key: Key, columns: &[Vec<u64>], row: usize) -> Self {
        let value = |i: usize| columns[i][row];
        Self {
            key,
            addr: value(0),
            size: value(1),
            group: value(2) as u32,
            thread_index: value(3) as u32,
            end_node: value(4) as u32,
            chain: value(5) as u32,
            flags: value(6) as u8,
            header: value(7) as u16,
            rate: value(8) as u8,
        }
    }

    fn end(self, key: Key, columns: &[Vec<u64>], row: usize) -> Self {
        Self { key, thread_index: columns[9][row] as u32, ..self }
    }

    fn key(&self) -> Key {
        self.key
    }

    fn addr(&self) -> u64 {
        self.addr
    }
}

/// Calls `take` for each beginning and end of the selected blocks, up to the ticks `until`.
///
/// # Errors
/// If the index can't be read, or `take` fails.
pub(crate) fn steps<E: From<ScanError>>(
    index: &Index,
    select: impl Select,
    until: Ticks,
    take: impl FnMut(&Step) -> Result<(), E>,
) -> Result<(), E> {
    in_order(index, select, until, take)
}
