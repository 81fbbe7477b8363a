//! The events of all threads in one order.
//!
//! The events of a thread are in order; between threads time decides. The collector goes through
//! the threads in passes, so when pass `k + 1` begins in the file, all events from before the start
//! of pass `k` have been read, and can be put in order for good. The later ones wait.

use super::held::{Load, Pending, Source, Waiting};
use prof_trace::event::Event;
use prof_trace::size::{self, Header};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// What happens to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// It is handed out.
    Alloc,
    /// It is given back.
    Free,
    /// It is given to `realloc`. The [`OpKind::Grown`] of the same thread that follows says what
    /// became of it.
    Given,
    /// It came out of `realloc`.
    Grown,
}

/// No size is larger: of one that a made-up recording has, this much is believed.
const MAX_SIZE: u64 = (1 << 56) - 1;

/// An event, or one half of a reallocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Ticks.
    pub time: u64,
    /// Address of the block.
    pub addr: u64,
    /// Bytes asked for, less than 2^56; 0 for what is given back.
    pub size: u64,
    /// Stack node; 0 if there is none.
    pub node: u32,
    /// The thread: an index into [`Merge`]'s lanes, in the order in which threads first appear.
    pub lane: u32,
    /// What happens.
    pub kind: OpKind,
    /// What glibc's header of a new block says (see [`Header::code`]).
    pub header: u16,
}

impl Op {
    /// Orders by time; at the same time blocks are given back before others are handed out.
    #[inline(always)]
    fn key(&self) -> u64 {
        key(self.time) | matches!(self.kind, OpKind::Alloc | OpKind::Grown) as u64
    }
}

#[inline(always)]
fn key(time: u64) -> u64 {
    time.min(u64::MAX >> 1) << 1
}

/// One thread.
#[derive(Debug, Default)]
struct Lane {
    waiting: VecDeque<Waiting>,
    source: Source,
    /// What comes next of it.
    head: Option<Op>,
    /// The second half of a reallocation.
    second: Option<Op>,
    last_time: u64,
    /// The header of blocks of which nothing else is said.
    usual: u16,
}

/// The merge of all threads.
#[derive(Debug, Default)]
pub(crate) struct Merge {
    lanes: Vec<Lane>,
    by_number: HashMap<u32, u32>,
    numbers: Vec<u32>,
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    /// What waits of packed chunks, and how much memory all takes that waits.
    pub(crate) pending: Pending,
    /// Events decoded.
    pub(crate) events: u64,
    /// Bytes that could not be decoded, in otherwise whole chunks.
    pub(crate) damaged_bytes: u64,
}

impl Merge {
    /// `most`: bytes that may wait in memory.
    pub(crate) fn new(most: usize) -> Self {
        Self { pending: Pending::new(most), ..Self::default() }
    }

    /// Numbers of the threads, by lane.
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

    /// Makes an operation the next of its lane.
    fn hold(&mut self, op: Op) {
        self.heap.push(Reverse((op.key(), op.lane)));
        self.lanes[op.lane as usize].head = Some(op);
    }

    /// The next operation of a lane.
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

    /// Gives the operations from before `limit`, in order, to `out`; all if `limit` is `None`.
    pub(crate) fn drain(&mut self, limit: Option<u64>, load: Load<'_>, out: &mut impl FnMut(Op)) {
        let limit = limit.map_or(u64::MAX, key);
        while let Some(&Reverse((first, lane))) = self.heap.peek() {
            if first >= limit && limit != u64::MAX {
                return;
            }
            self.heap.pop();
            // What other lane comes next, and up to where this one may run.
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
    /// The size of a new block, and its header.
    #[inline(always)]
    fn sized(&mut self, size: u64) -> (u64, u16) {
        if size >> size::BITS == 0 { (size, self.usual) } else { self.unusual(size) }
    }

    #[cold]
    fn unusual(&mut self, size: u64) -> (u64, u16) {
        let (size, header) = size::apart(size);
        let Some(header) = header else { return (size.min(MAX_SIZE), 0) };
        if !header.mapped {
            self.usual = Header { extra: 0, ..header }.code();
        }
        (size, header.code())
    }

    /// The event, or its first half. Times never go back within a thread: the order in which it
    /// wrote its events is the order in which things happened.
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
                Op { time: begin, addr, size, node, lane, kind: OpKind::Alloc, header }
            }
            Event::Free { addr, node, .. } => {
                Op { time: begin, addr, size: 0, node, lane, kind: OpKind::Free, header: 0 }
            }
            Event::Realloc { old, addr, size, node, .. } => {
                let time = self.last_time;
                let (size, header) = self.sized(size);
                self.second =
                    Some(Op { time, addr, size, node, lane, kind: OpKind::Grown, header });
                Op { time: begin, addr: old, size: 0, node, lane, kind: OpKind::Given, header: 0 }
            }
        }
    }
}
