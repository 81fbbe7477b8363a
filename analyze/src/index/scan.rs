//! Scans all rows, on all processors.

use super::rows::{BLOCK, Block};
use super::{Index, path_of};
use crate::progress::Step;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Why rows of an index were not all looked at.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// A block of rows could not be read, or is damaged.
    #[error("the index {0} is damaged or can't be read; remove it, and it is made anew")]
    Damaged(PathBuf),
    /// The recording has figures by stack, and no single blocks.
    #[error(
        "this asks for single blocks, and the recording has only figures by stack (--aggregate), perhaps \
         since it met its bound (--on-limit aggregate); one made with --cull has the blocks that live long"
    )]
    NoBlocks,
    /// The [job](crate::Job) that the query is part of was cancelled.
    #[error("cancelled")]
    Cancelled,
}

/// Number of adjacent blocks that a thread takes at a time, so that the rows it sees stay in order for a while.
const RUN: usize = 4;

impl Index {
    /// Number of rows of a block of rows; the last one may have fewer.
    pub(crate) const ROWS_OF_BLOCK: u64 = BLOCK as u64;

    /// Calls `work` for each block of rows with the state of the thread it runs on, in no particular order; returns the
    /// states.
    ///
    /// # Errors
    /// If `work` returns `None`, as it does if the block can't be read, or the job of this thread is cancelled.
    pub fn scan<S: Send>(
        &self,
        state: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, &mut Block<'_>) -> Option<()> + Sync,
    ) -> Result<Vec<S>, ScanError> {
        self.has_blocks()?;
        let next = AtomicUsize::new(0);
        let step = Step::begin("going through the index", self.blocks.len() as u64);
        let failed = AtomicBool::new(false);
        let run = || {
            let mut s = state();
            let mut buffer = Vec::new();
            loop {
                let from = next.fetch_add(RUN, Ordering::Relaxed);
                let Some(rest) = self.blocks.get(from..).filter(|r| !r.is_empty()) else { break };
                for (number, &at) in (from..).zip(rest.iter().take(RUN)) {
                    if failed.load(Ordering::Relaxed) || step.is_cancelled() {
                        return s;
                    }
                    let done = Block::open(&self.store, (number, at), std::mem::take(&mut buffer))
                        .and_then(|mut b| work(&mut s, &mut b).map(|()| b.into_buffer()));
                    match done {
                        Some(b) => (buffer, ()) = (b, step.add(1)),
                        None => failed.store(true, Ordering::Relaxed),
                    }
                }
            }
            s
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.min(self.blocks.len().div_ceil(RUN)).max(1);
        let states = std::thread::scope(|scope| {
            // Fewer threads do the work if the system refuses more (`ulimit -u`, pids.max).
            let more = |_| std::thread::Builder::new().spawn_scoped(scope, run).ok();
            let others: Vec<_> = (1..threads).map_while(more).collect();
            let mut states = vec![run()];
            for o in others {
                match o.join() {
                    Ok(s) => states.push(s),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            states
        });
        match failed.into_inner() {
            _ if step.is_cancelled() => Err(ScanError::Cancelled),
            true => Err(self.damaged()),
            false => Ok(states),
        }
    }

    /// Calls `work` for each block of rows, in their order.
    ///
    /// # Errors
    /// If `work` returns `None`, as it does if the block can't be read, or the job of this thread is cancelled.
    pub fn each(
        &self,
        mut work: impl FnMut(&mut Block<'_>) -> Option<()>,
    ) -> Result<(), ScanError> {
        self.has_blocks()?;
        let mut buffer = Vec::new();
        let step = Step::begin("going through the index", self.blocks.len() as u64);
        for place in self.blocks.iter().copied().enumerate() {
            if step.is_cancelled() {
                return Err(ScanError::Cancelled);
            }
            step.add(1);
            let done = Block::open(&self.store, place, buffer)
                .and_then(|mut b| work(&mut b).map(|()| b.into_buffer()));
            buffer = done.ok_or_else(|| self.damaged())?;
        }
        Ok(())
    }

    /// Returns the number of the block of rows that has a row, and the row's index in it.
    pub(crate) fn place_of(row: u64) -> (u64, usize) {
        (row / BLOCK as u64, (row % BLOCK as u64) as usize)
    }

    /// Calls `work` for a block of rows, by its number. Returns whether there is one.
    ///
    /// # Errors
    /// If `work` returns `None`, as it does if the block can't be read.
    pub(crate) fn block_of_rows(
        &self,
        number: u64,
        work: impl FnOnce(&mut Block<'_>) -> Option<()>,
    ) -> Result<bool, ScanError> {
        self.has_blocks()?;
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        let Some(&at) = self.blocks.get(number) else { return Ok(false) };
        let block = Block::open(&self.store, (number, at), Vec::new());
        match block.and_then(|mut b| work(&mut b)) {
            Some(()) => Ok(true),
            None => Err(self.damaged()),
        }
    }

    /// Returns an error if the recording has no single blocks: to find none would be taken for an answer.
    fn has_blocks(&self) -> Result<(), ScanError> {
        if self.analysis.meta().is_aggregated() { Err(ScanError::NoBlocks) } else { Ok(()) }
    }

    fn damaged(&self) -> ScanError {
        let named = self.path.clone();
        ScanError::Damaged(named.unwrap_or_else(|| path_of(&self.analysis.path())))
    }
}
