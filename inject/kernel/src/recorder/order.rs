//! Puts the events of all processors in the order of time, and follows what is outstanding.

use super::KernelStats;
use crate::live::{Block, Kind, Outstanding};
use crate::pages;
use crate::sample::Sample;
use crate::stacks::Stacks;
use crate::tracepoints::Tracepoint;
use crate::write::Recording;
use prof_trace::event::Event;
use prof_trace::ticks::Ticks;

/// Addresses below are none: a failed allocation, or one of no bytes.
const NO_BLOCK: u64 = 17;
/// Number of a free's stack.
const NO_STACK: u32 = u32::MAX;

/// An allocation or a free.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    time: Ticks,
    /// The address as it is recorded; 0: none.
    address: u64,
    size: u64,
    stack: u32,
    thread: u32,
}

impl Change {
    /// Makes a free. `address` may be the number of a page, and `size` an order.
    #[inline]
    pub(super) fn free(kind: Kind, time: Ticks, address: u64, size: u64, page: u64) -> Self {
        let (address, size) = place(kind, address, size, page);
        Self { time, address, size, stack: NO_STACK, thread: 0 }
    }

    /// Makes it an allocation.
    #[inline]
    pub(super) fn by(self, stack: u32, thread: u32) -> Self {
        Self { stack, thread, ..self }
    }

    /// Makes a free of the sample of a tracepoint.
    #[inline]
    pub(super) fn of(t: &Tracepoint, s: &Sample<'_>, page: u64) -> Self {
        let size = t.size.map_or(0, |f| f.int(s.raw));
        Self::free(t.kind, s.time, t.address.int(s.raw), size, page)
    }
}

/// Returns the address as it is recorded (0: none), and the size in bytes.
#[inline]
fn place(kind: Kind, address: u64, size: u64, page: u64) -> (u64, u64) {
    match kind {
        // The page with the highest number is none.
        Kind::Page if address >= u64::MAX / page => (0, 0),
        Kind::Page => (kind.mark(address * page), page << size.min(32)),
        _ if address < NO_BLOCK => (0, 0),
        _ => (kind.mark(address), size),
    }
}

/// The consumers of the events, in their order.
#[derive(Debug)]
pub(super) struct Sink<'a> {
    pub live: &'a mut Outstanding,
    pub recording: Option<&'a mut Recording>,
    pub figures: &'a mut KernelStats,
    pub stacks: &'a Stacks,
}

/// Events that wait until all earlier ones are there.
///
/// A processor may publish an event after another processor's later one. But an event that happened before a pass began
/// has been published when the next pass has begun.
#[derive(Debug)]
pub(super) struct Order {
    waiting: Vec<Change>,
    /// Start of the last pass.
    last_pass: Ticks,
    /// Time up to which events were taken.
    taken: Ticks,
}

impl Order {
    /// Creates an empty queue.
    pub(super) fn new(start: Ticks) -> Self {
        Self { waiting: Vec::new(), last_pass: start, taken: start }
    }

    /// Adds an event.
    #[inline]
    pub(super) fn push(&mut self, change: Change) {
        self.waiting.push(change);
    }

    /// Returns the time before which all events are there, now that the rings have been read.
    pub(super) fn safe(&self) -> u64 {
        self.last_pass.0
    }

    /// Notes that the rings were read from this time on.
    pub(super) fn next_pass(&mut self, start: Ticks) {
        self.last_pass = start;
    }

    /// Passes the events before a time on, in order. Returns a time before which none of them, and none of the later
    /// ones, lies.
    pub(super) fn take(&mut self, before: Ticks, page: u64, sink: &mut Sink<'_>) -> u64 {
        // The events of each processor are nearly in order, which a merge sort makes use of.
        self.waiting.sort_by_key(|c| c.time);
        let n = self.waiting.partition_point(|c| c.time < before);
        let first = self.taken;
        for c in self.waiting.drain(..n) {
            sink.figures.late += u64::from(c.time < self.taken);
            self.taken = self.taken.max(c.time);
            if c.address != 0 {
                sink.apply(Change { time: self.taken, ..c }, page);
            }
        }
        if before != Ticks(u64::MAX) {
            self.taken = self.taken.max(before);
        }
        first.0
    }
}

impl Sink<'_> {
    fn apply(&mut self, c: Change, page: u64) {
        if c.stack != NO_STACK {
            self.figures.allocations += 1;
            let block = Block { size: c.size, time: c.time, stack: c.stack, thread: c.thread };
            return self.alloc(c.address, block, c.time);
        }
        if let Some(block) = self.live.get(c.address)
            && (Kind::of(c.address).0 != Kind::Page || block.size <= c.size)
        {
            self.free(c.address, block, c.time);
        } else if Kind::of(c.address).0 != Kind::Page || !self.free_part(c, page) {
            self.figures.unknown_frees += 1;
        }
    }

    /// Adds a block, with an event of this time.
    fn alloc(&mut self, address: u64, block: Block, time: Ticks) {
        if self.live.add(address, block).is_some() {
            self.figures.implied_frees += 1;
        }
        if let Some(r) = &mut self.recording {
            let node = self.stacks.get(block.stack).node;
            let Block { size, thread, .. } = block;
            r.push(thread, Event::Alloc { time, addr: address, size: size.into(), node });
        }
    }

    fn free(&mut self, address: u64, block: Block, time: Ticks) {
        self.live.remove(address);
        self.figures.frees += 1;
        if let Some(r) = &mut self.recording {
            // A free has no stack, and only its time matters: it goes with the thread of the block.
            r.push(block.thread, Event::Free { time, addr: address, node: 0 });
        }
    }

    /// Frees a part of pages that were allocated together: the rest is recorded as blocks of the same stack,
    /// and keeps its age.
    fn free_part(&mut self, c: Change, page: u64) -> bool {
        let (_, address) = Kind::of(c.address);
        let Some((at, block)) = pages::containing(self.live, address, c.size, page) else {
            return false;
        };
        self.free(Kind::Page.mark(at), block, c.time);
        for (at, size) in pages::remains(at, block.size, address, c.size) {
            self.alloc(Kind::Page.mark(at), Block { size, ..block }, c.time);
        }
        true
    }
}
