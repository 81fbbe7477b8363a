//! Writes the events of the blocks that stay when others are left out.

use super::out::Usual;
use crate::heap::NOWHERE;
use prof_trace::event::Event;
use prof_trace::size::CodedSize;

/// Number of events that are written at a time.
const BATCH: usize = 16_384;

/// The events of the blocks that stay, in the order of time, on their way to a recording.
#[derive(Default)]
pub(super) struct Kept {
    /// Events with their thread indices.
    batch: Vec<(u32, Event)>,
    /// For each thread index: the block that the thread has just allocated, if a reader sees that as its last event.
    newest: Vec<u64>,
    /// For each thread index: what a reader assumes of blocks that state nothing.
    usual: Vec<Usual>,
    events: Vec<Event>,
}

impl Kept {
    /// Returns the size of a new block, with what a reader would not assume.
    pub(super) fn sized(
        &mut self,
        thread_index: u32,
        size: u64,
        header: u16,
        rate: u8,
    ) -> CodedSize {
        let at = thread_index as usize;
        if at >= self.usual.len() {
            self.usual.resize(at + 1, Usual::default());
        }
        self.usual[at].sized(size, header, rate)
    }

    /// Returns the block that the thread has just allocated, if a reader sees that as its last event; else 0.
    pub(super) fn newest(&self, thread_index: u32) -> u64 {
        self.newest.get(thread_index as usize).copied().unwrap_or(0)
    }

    /// Adds an event, which ends the block `old` unless it is an allocation. Returns whether it is time to write.
    pub(super) fn add(
        &mut self,
        thread_index: u32,
        event: Event,
        old: u64,
        temporary: bool,
    ) -> bool {
        let at = thread_index as usize;
        if at >= self.newest.len() {
            self.newest.resize(at + 1, 0);
        }
        let begins = match event {
            Event::Alloc { addr, .. } | Event::Realloc { addr, .. } => addr,
            Event::Free { .. } => 0,
        };
        let ends = !matches!(event, Event::Alloc { .. });
        let newest = std::mem::replace(&mut self.newest[at], begins);
        if ends && newest == old && !temporary {
            let time = match event {
                Event::Realloc { time_before, .. } => time_before,
                e => e.time(),
            };
            self.batch.push((thread_index, Event::Free { time, addr: NOWHERE, node: 0 }));
        }
        self.batch.push((thread_index, event));
        self.batch.len() >= BATCH
    }

    /// Passes on what was added, thread by thread: thread index and events.
    pub(super) fn write<E>(
        &mut self,
        mut to: impl FnMut(u32, &[Event]) -> Result<(), E>,
    ) -> Result<(), E> {
        // The sort is stable, so events of a thread stay in order.
        self.batch.sort_by_key(|e| e.0);
        for run in self.batch.chunk_by(|a, b| a.0 == b.0) {
            self.events.clear();
            self.events.extend(run.iter().map(|e| e.1));
            to(run[0].0, &self.events)?;
        }
        self.batch.clear();
        Ok(())
    }
}
