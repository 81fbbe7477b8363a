//! Merges the events of all threads into one order.
//!
//! The events of a thread are in order; between threads, time decides. The collector reads the threads in passes. When
//! pass `k + 1` begins in the file, all events from before the start of pass `k` have been read, and their order is
//! final. Later events wait.

use super::held::{Load, Pending, Source, Waiting};
use prof_trace::event::Event;
use prof_trace::size::{self, Header};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// The kind of an operation on a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// The block is allocated.
    Alloc,
    /// The block is freed.
    Free,
    /// The block is passed to `realloc`. The thread's [`OpKind::Grown`] that follows has the result.
    Given,
    /// The block was returned by `realloc`.
    Grown,
}

/// Upper limit of sizes: larger ones, of made-up recordings, are reduced to this.
const MAX_SIZE: u64 = (1 << 56) - 1;

/// An event, or one half of a reallocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Ticks.
    pub time: u64,
    /// Address of the block.
    pub addr: u64,
    /// Bytes requested, less than 2^56; 0 for a block that is freed.
    pub size: u64,
    /// Stack node; 0 if there is none.
    pub node: u32,
    /// Thread index: an index into [`Merge`]'s lanes, in the order in which threads first appear.
    pub lane: u32,
    /// Kind of the operation.
    pub kind: OpKind,
    /// glibc's chunk header of a new block (see [`Header::code`]).
    pub header: u16,
    /// Exponent of the distance at which a new block was sampled (see [`size::rate`]); 0: the recording's.
    pub rate: u8,
}

impl Op {
    /// Returns the sort key: time, and at the same time frees before allocations.
    #[inline(always)]
    fn key(&self) -> u64 {
        key(self.time) | matches!(self.kind, OpKind::Alloc | OpKind::Grown) as u64
    }
}

#[inline(always)]
fn key(time: u64) -> u64 {
    time.min(u64::MAX >> 1) << 1
}

/// State of one thread.
#[derive(Debug, Default)]
struct Lane {
    waiting: VecDeque<Waiting>,
    source: Source,
    /// The thread's next operation.
    head: Option<Op>,
    /// The second half of a reallocation, if that is the next operation but one.
    second: Option<Op>,
    last_time: u64,
    /// Chunk header of blocks whose events have none.
    usual: u16,
    /// Exponent of the sampling distance of blocks that state none; 0: the recording's.
    rate: u8,
}

/// Merges the events of all threads.
#[derive(Debug, Default)]
pub(crate) struct Merge {
    lanes: Vec<Lane>,
    by_number: HashMap<u32, u32>,
    numbers: Vec<u32>,
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    /// Waiting packed chunks, and the memory of all waiting events.
    pub(crate) pending: Pending,
    /// Number of events decoded.
    pub(crate) events: u64,
    /// Bytes that could not be decoded, within otherwise whole chunks.
    pub(crate) damaged_bytes: u64,
}

impl Merge {
    /// Creates it with a limit of `most` bytes of waiting events in memory.
    pub(crate) fn new(most: usize) -> Self {
        Self { pending: Pending::new(most), ..Self::default() }
    }

    /// Returns the numbers of the threads, by thread index.
    pub(crate) fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// Adds events of a thread.
    pub(crate) fn push(&mut self, thread: u32, waiting: Waiting, load: Load<'_>) {
        let next = self.lanes.len() as u32;
        let lane = *self.by_number.entry(thread).or_insert(next);
        if lane == next {
            self.lanes.push(Lane::default());
            self.numbers.push(thread);
        }
        self.lanes[lane as usize].waiting.push_back(waiting);
        if self.lanes[lane as usize].head.is_none()
            && let Some(op) = self.next_op(lane, load)
        {
            self.hold(op);
        }
    }

    /// Makes an operation the next of its thread.
    fn hold(&mut self, op: Op) {
        self.heap.push(Reverse((op.key(), op.lane)));
        self.lanes[op.lane as usize].head = Some(op);
    }

    /// Returns the next operation of a thread.
    #[inline(always)]
    fn next_op(&mut self, lane: u32, load: Load<'_>) -> Option<Op> {
        let l = &mut self.lanes[lane as usize];
        if let Some(op) = l.second.take() {
            return Some(op);
        }
        loop {
            if let Some(event) = l.source.next(&mut self.damaged_bytes) {
                self.events += 1;
                return Some(l.first_op(event, lane));
            }
            let Some(w) = l.waiting.pop_front() else {
                l.source = Source::default();
                return None;
            };
            l.source = self.pending.take(w, load, &mut self.damaged_bytes);
        }
    }

    /// Passes the operations from before `limit`, or all if that is `None`, to `out` in order.
    pub(crate) fn drain(&mut self, limit: Option<u64>, load: Load<'_>, out: &mut impl FnMut(Op)) {
        let limit = limit.map_or(u64::MAX, key);
        while let Some(&Reverse((first, lane))) = self.heap.peek() {
            if first >= limit && limit != u64::MAX {
                return;
            }
            self.heap.pop();
            // Up to the next operation of another thread this one needs no comparisons in the heap.
            let until = self.heap.peek().map_or((u64::MAX, u32::MAX), |r| r.0);
            let mut next = self.lanes[lane as usize].head.take();
            while let Some(op) = next {
                let k = op.key();
                if (k, lane) > until || (k >= limit && limit != u64::MAX) {
                    self.hold(op);
                    break;
                }
                out(op);
                next = self.next_op(lane, load);
            }
        }
    }
}

impl Lane {
    /// Returns the size and the chunk header of a new block.
    #[inline(always)]
    fn sized(&mut self, size: u64) -> (u64, u16) {
        if size >> size::BITS == 0 { (size, self.usual) } else { self.unusual(size) }
    }

    #[cold]
    fn unusual(&mut self, size: u64) -> (u64, u16) {
        let said = size::rate(size);
        if said != 0 {
            self.rate = said;
        }
        let (size, header) = size::apart(size);
        let Some(header) = header else { return (size.min(MAX_SIZE), 0) };
        if !header.mapped {
            self.usual = Header { extra: 0, ..header }.code();
        }
        (size, header.code())
    }

    /// Returns the event, or its first half, as an operation. Times never decrease within a thread: the order in which
    /// it wrote its events is the order in which they happened.
    #[inline(always)]
    fn first_op(&mut self, event: Event, lane: u32) -> Op {
        let begin = match event {
            Event::Realloc { time_before, time, .. } => time_before.min(time),
            _ => event.time(),
        }
        .max(self.last_time);
        self.last_time = event.time().max(begin);
        match event {
            Event::Alloc { addr, size, node, .. } => {
                let (size, header) = self.sized(size);
                let rate = self.rate;
                Op { time: begin, addr, size, node, lane, kind: OpKind::Alloc, header, rate }
            }
            Event::Free { addr, node, .. } => {
                let (kind, header, rate) = (OpKind::Free, 0, 0);
                Op { time: begin, addr, size: 0, node, lane, kind, header, rate }
            }
            Event::Realloc { old, addr, size, node, .. } => {
                let time = self.last_time;
                let (size, header) = self.sized(size);
                let (kind, rate) = (OpKind::Grown, self.rate);
                self.second = Some(Op { time, addr, size, node, lane, kind, header, rate });
                let (kind, header, rate) = (OpKind::Given, 0, 0);
                Op { time: begin, addr: old, size: 0, node, lane, kind, header, rate }
            }
        }
    }
}
