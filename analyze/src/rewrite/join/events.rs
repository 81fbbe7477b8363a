//! Writes the events of one of several recordings that are joined, with numbers that no other has.

use crate::heap::NOWHERE;
use crate::load::{Op, OpKind, Sink, class_of};
use crate::rewrite::out::{Out, Usual};
use prof_trace::event::Event;
use prof_trace::records::{Census, CensusAt, CensusBlock, kind};
use prof_trace::size::Header;
use prof_trace::ticks::Ticks;
use std::io;

/// Number of events that are written at a time.
const BATCH: usize = 16_384;

/// The state of a thread that its next event depends on.
#[derive(Default)]
struct ThreadState {
    /// Time and address of the block that was passed to `realloc`.
    old_block: Option<(Ticks, u64)>,
    usual: Usual,
}

/// The values that are added to the numbers of a recording, so that they differ from those of all others.
pub(super) struct Numbers {
    /// To addresses.
    pub base: u64,
    /// To the numbers of nodes.
    pub nodes: u32,
    /// To the numbers of threads.
    pub threads: u32,
    /// To the numbers of classes of blocks from before the attach.
    pub classes: u32,
    /// To times, in ticks.
    pub shift: u64,
}

/// Writes the events of a recording.
pub(super) struct Joining<'a, 'b> {
    to: &'a mut Out<'b>,
    states: Vec<ThreadState>,
    batch: Vec<(u32, Event)>,
    add: Numbers,
    /// Time of the last event.
    pub last: Ticks,
    failed: Option<io::Error>,
    /// Blocks of a census that are to be written, and where the last one ends.
    found: Census,
    found_at: CensusAt,
    /// Greatest number of a class of these, as the recording has it.
    pub most_class: u32,
}

impl Sink for Joining<'_, '_> {
    fn take(&mut self, ops: &[Op]) {
        ops.iter().for_each(|op| self.op(op));
    }
}

impl<'a, 'b> Joining<'a, 'b> {
    /// Prepares for the events of one recording.
    pub(super) fn new(to: &'a mut Out<'b>, add: Numbers) -> Self {
        Self {
            to,
            states: Vec::new(),
            batch: Vec::new(),
            add,
            last: Ticks::ZERO,
            failed: None,
            found: Census::default(),
            found_at: CensusAt::default(),
            most_class: 0,
        }
    }

    /// Returns the number of threads that had events.
    pub(super) fn thread_count(&self) -> u32 {
        self.states.len() as u32
    }

    fn op(&mut self, op: &Op) {
        let at = op.thread_index as usize;
        if at >= self.states.len() {
            self.states.resize_with(at + 1, ThreadState::default);
        }
        let state = &mut self.states[at];
        let time = op.time.wrapping_add(self.add.shift);
        let node = if op.node == 0 { 0 } else { self.add.nodes.wrapping_add(op.node) };
        // Address 1 is no block's, and stands for events that were left out.
        let is_block = op.addr > NOWHERE;
        let addr = if is_block { op.addr.wrapping_add(self.add.base) } else { op.addr };
        let event = match op.kind {
            OpKind::Found => {
                let header = Header::from_code(op.header);
                let class = match class_of(op.node) {
                    0 => 0,
                    class => {
                        self.most_class = self.most_class.max(class);
                        self.add.classes.saturating_add(class)
                    }
                };
                let block = CensusBlock { address: addr, size: op.size, header, class };
                self.found.ticks = time;
                self.found.put(&mut self.found_at, &block);
                if self.found.count as usize >= Census::PART {
                    self.write_found();
                }
                return;
            }
            OpKind::Free => Event::Free { time, addr, node },
            OpKind::ReallocOld => {
                state.old_block = Some((time, addr));
                return;
            }
            OpKind::Alloc | OpKind::ReallocNew => {
                let size = state.usual.sized(op.size, op.header, op.rate);
                match state.old_block.take().filter(|_| op.kind == OpKind::ReallocNew) {
                    Some((time_before, old)) => {
                        Event::Realloc { time_before, time, old, addr, size, node }
                    }
                    None => Event::Alloc { time, addr, size, node },
                }
            }
        };
        self.last = self.last.max(time);
        self.batch.push((op.thread_index, event));
        if self.batch.len() >= BATCH {
            self.write();
        }
    }

    /// Writes the blocks that a census has found.
    fn write_found(&mut self) {
        let part = std::mem::take(&mut self.found);
        self.found_at = CensusAt::default();
        if part.count > 0
            && let Err(e) = self.to.put_zipped(kind::CENSUS, &part.encode())
        {
            self.failed.get_or_insert(e);
        }
    }

    /// Writes the batch, thread by thread.
    fn write(&mut self) {
        // The sort is stable, so events of a thread stay in order.
        self.batch.sort_by_key(|e| e.0);
        for run in self.batch.chunk_by(|a, b| a.0 == b.0) {
            let thread = self.add.threads.wrapping_add(run[0].0 + 1);
            let events: Vec<Event> = run.iter().map(|e| e.1).collect();
            if let Err(e) = self.to.events(thread, &events) {
                self.failed.get_or_insert(e);
            }
        }
        self.batch.clear();
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// If the output can't be written.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        for (thread_index, state) in (0..).zip(&mut self.states) {
            if let Some((time, addr)) = state.old_block.take() {
                self.batch.push((thread_index, Event::Free { time, addr, node: 0 }));
            }
        }
        self.write_found();
        self.write();
        self.failed.take().map_or(Ok(()), Err)
    }
}
