//! Merges the events of all threads into one order.
//!
//! The events of a thread are in order; between threads, time decides. The collector reads the threads in passes. When
//! pass `k + 1` begins in the file, all events from before the start of pass `k` have been read, and their order is
//! final. Later events wait.

use super::before::stack_of;
use super::held::{Load, Payload, Pending, Source, Waiting, room};
use prof_trace::event::{Codec, Event, Visit};
use prof_trace::records::CensusBlocks;
use prof_trace::size::{CodedSize, Header};
use prof_trace::ticks::Ticks;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// The kind of an operation on a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// The block is allocated.
    Alloc,
    /// The block is freed.
    Free,
    /// The block is passed to `realloc`. The thread's [`OpKind::ReallocNew`] that follows has the result.
    ReallocOld,
    /// The block was returned by `realloc`.
    ReallocNew,
    /// The block is from before the recording, and is found by a census.
    Found,
}

/// Latest time of an operation: later ones are made up.
const LATEST: Ticks = Ticks(u64::MAX >> 1);

/// Bytes that decoded events may take while they wait: those of a pass at a million events a second. Encoded ones take a
/// tenth of that.
const DECODED: usize = 4 << 20;

/// Upper limit of sizes: larger ones, of made-up recordings, are reduced to this.
const MAX_SIZE: u64 = (1 << 56) - 1;

/// An event, or one half of a reallocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Ticks.
    pub time: Ticks,
    /// Address of the block.
    pub addr: u64,
    /// Bytes requested, less than 2^56; 0 for a block that is freed.
    pub size: u64,
    /// Stack node; 0 if there is none.
    pub node: u32,
    /// Thread index: an index into [`Merge`]'s threads, in the order in which threads first appear.
    pub thread_index: u32,
    /// Kind of the operation.
    pub kind: OpKind,
    /// glibc's chunk header of a new block (see [`Header::code`]).
    pub header: u16,
    /// Exponent of the distance at which a new block was sampled (see [`CodedSize::rate`]); 0: the recording's.
    pub rate: u8,
}

impl Op {
    /// Returns the sort key: time, and at the same time frees before allocations.
    #[inline(always)]
    fn key(&self) -> u64 {
        key(self.time) | !matches!(self.kind, OpKind::Free | OpKind::ReallocOld) as u64
    }
}

#[inline(always)]
fn key(time: Ticks) -> u64 {
    time.min(LATEST).0 << 1
}

/// State of one thread.
#[derive(Debug, Default)]
struct ThreadQueue {
    waiting: VecDeque<Waiting>,
    source: Source,
    /// Bytes of the source's decoded events, which are among those of [`Pending`].
    decoded: usize,
    /// The thread's next operation.
    head: Option<Op>,
    /// The second half of a reallocation, if that is the next operation but one.
    second: Option<Op>,
    carried: Carried,
}

/// State that a thread's events pass on to its next event.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    last_time: Ticks,
    /// Chunk header of blocks whose events have none.
    usual: u16,
    /// Exponent of the sampling distance of blocks that state none; 0: the recording's.
    rate: u8,
}

/// The operations whose turn has come: those of a thread up to the next one of another thread, and before a time.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// Sort key and thread index of the next operation of another thread.
    until: (u64, u32),
    /// Sort key of the time; `u64::MAX`: no such limit.
    limit: u64,
}

impl Turn {
    /// Contains no operation.
    const NONE: Self = Self { until: (0, 0), limit: 0 };

    #[inline(always)]
    fn holds(&self, op: &Op) -> bool {
        let k = op.key();
        (k, op.thread_index) <= self.until && (k < self.limit || self.limit == u64::MAX)
    }
}

/// Passes on a thread's operations while it is their turn. They are made where they are decoded, and are not copied:
/// reading a value whose parts have just been written separately takes longer than decoding an event.
struct Run<'a, F> {
    carried: Carried,
    thread_index: u32,
    turn: Turn,
    out: &'a mut F,
    events: u64,
    /// The first operation whose turn has not come.
    head: Option<Op>,
    /// The second half of a reallocation, behind `head`.
    second: Option<Op>,
}

/// Merges the events of all threads.
#[derive(Debug, Default)]
pub(crate) struct Merge {
    threads: Vec<ThreadQueue>,
    /// Indices of the threads by number. Blocks of a census have one of their own, whatever the events say.
    by_number: HashMap<(u32, bool), u32>,
    numbers: Vec<u32>,
    /// Threads that have ended, whose events wait or are being passed on.
    leaving: Vec<u32>,
    /// Indices of threads that have ended, for new ones.
    free: Vec<u32>,
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

    /// Returns the number of events that were passed on, at least in part.
    pub(crate) fn passed(&self) -> u64 {
        let waits = |t: &&ThreadQueue| {
            t.head.is_some_and(|op| !matches!(op.kind, OpKind::ReallocNew | OpKind::Found))
        };
        self.events - self.threads.iter().filter(waits).count() as u64
    }

    /// Returns what the next events of each thread rely on, if all before them are passed on: the code of the chunk header
    /// and the exponent of the sampling distance of blocks that state none, and the ticks of the last event.
    pub(crate) fn carried(&self) -> impl Iterator<Item = (u16, u8, Ticks)> {
        self.threads.iter().map(|t| (t.carried.usual, t.carried.rate, t.carried.last_time))
    }

    /// Returns the indices of the threads of which events wait.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = u32> {
        let waits = |t: &ThreadQueue| t.head.is_some() || !t.waiting.is_empty();
        (0..).zip(&self.threads).filter(move |(_, t)| waits(t)).map(|(i, _)| i)
    }

    /// Returns the indices of the threads of which half of a reallocation is passed on.
    pub(crate) fn halved(&self) -> impl Iterator<Item = u32> {
        let halved = |t: &ThreadQueue| t.head.is_some_and(|op| op.kind == OpKind::ReallocNew);
        (0..).zip(&self.threads).filter(move |(_, t)| halved(t)).map(|(i, _)| i)
    }

    /// Adds events of a thread.
    pub(crate) fn push(&mut self, thread: u32, waiting: Waiting, load: Load<'_>) {
        let is_census = matches!(waiting, Waiting::Census(_));
        let next = self.free.last().copied().unwrap_or(self.threads.len() as u32);
        let thread_index = *self.by_number.entry((thread, is_census)).or_insert(next);
        if thread_index == next && self.free.pop().is_some() {
            self.threads[next as usize] = ThreadQueue::default();
            self.numbers[next as usize] = thread;
        } else if thread_index == next {
            self.threads.push(ThreadQueue::default());
            self.numbers.push(thread);
        }
        self.threads[thread_index as usize].waiting.push_back(waiting);
        if self.threads[thread_index as usize].head.is_none() {
            self.pass(thread_index, Turn::NONE, load, &mut |_| ());
        }
    }

    /// Notes that threads have ended, and that all their events were added.
    pub(crate) fn leave(&mut self, threads: &[u64]) {
        self.leaving.extend(threads.iter().filter_map(|n| u32::try_from(*n).ok()));
    }

    /// Forgets the threads that have ended and of which all is passed on, and returns their indices, which new threads will have:
    /// for those who need to know threads only while they have events.
    pub(crate) fn forget_ended(&mut self) -> Vec<u32> {
        let Self { threads, by_number, leaving, free, .. } = self;
        let before = free.len();
        leaving.retain(|number| {
            let Some(&index) = by_number.get(&(*number, false)) else { return false };
            let queue = &threads[index as usize];
            let waits = queue.head.is_some() || !queue.waiting.is_empty();
            if !waits {
                by_number.remove(&(*number, false));
                free.push(index);
            }
            waits
        });
        free[before..].to_vec()
    }

    /// Adds events of a thread that are encoded as in the ring; `from` is the decoding state before them.
    pub(crate) fn push_encoded(&mut self, thread: u32, from: &Codec, count: u32, bytes: &[u8]) {
        let place = Payload::Here(bytes.to_vec());
        self.pending.hold(&place);
        let waiting = Waiting::Plain { codec: *from, count, place };
        self.push(thread, waiting, &mut |_, _| None);
    }

    /// Returns whether there is room for decoded events.
    pub(crate) fn takes_decoded(&self) -> bool {
        self.pending.bytes < DECODED
    }

    /// Adds decoded events of a thread.
    pub(crate) fn push_decoded(&mut self, thread: u32, events: Vec<Event>) {
        self.pending.hold_events(&events);
        self.push(thread, Waiting::Events(events), &mut |_, _| None);
    }

    /// Makes an operation the next of its thread.
    fn hold(&mut self, op: Op) {
        self.heap.push(Reverse((op.key(), op.thread_index)));
        self.threads[op.thread_index as usize].head = Some(op);
    }

    /// Passes the operations of a thread whose turn it is to `out`, and holds the next one.
    #[inline(always)]
    fn pass(&mut self, thread_index: u32, turn: Turn, load: Load<'_>, out: &mut impl FnMut(Op)) {
        let queue = &mut self.threads[thread_index as usize];
        let mut next = queue.head.take();
        while let Some(op) = next {
            if !turn.holds(&op) {
                return self.hold(op);
            }
            out(op);
            next = queue.second.take();
        }
        loop {
            let queue = &mut self.threads[thread_index as usize];
            let carried = queue.carried;
            let mut run =
                Run { carried, thread_index, turn, out, events: 0, head: None, second: None };
            if let Source::Census(ticks, blocks) = &mut queue.source {
                run.found(*ticks, blocks);
            }
            if run.goes_on() {
                queue.source.pass(&mut run, &mut self.damaged_bytes);
            }
            self.events += run.events;
            queue.carried = run.carried;
            if let Some(op) = run.head {
                queue.second = run.second;
                return self.hold(op);
            }
            self.pending.bytes -= std::mem::take(&mut queue.decoded);
            let Some(w) = queue.waiting.pop_front() else {
                queue.source = Source::default();
                return;
            };
            if let Waiting::Carry(usual, rate, last) = w {
                (queue.carried.usual, queue.carried.rate) = (usual, rate);
                queue.carried.time(last);
            }
            if let Waiting::Events(events) = &w {
                queue.decoded = room(events);
            }
            queue.source = self.pending.take(w, load, &mut self.damaged_bytes);
        }
    }

    /// Passes the operations from before `limit`, or all if that is `None`, to `out` in order.
    pub(crate) fn drain(&mut self, limit: Option<Ticks>, load: Load<'_>, out: &mut impl FnMut(Op)) {
        let limit = limit.map_or(u64::MAX, key);
        while let Some(&Reverse((first, thread_index))) = self.heap.peek() {
            if first >= limit && limit != u64::MAX {
                return;
            }
            self.heap.pop();
            // Up to the next operation of another thread this one needs no comparisons in the heap.
            let until = self.heap.peek().map_or((u64::MAX, u32::MAX), |r| r.0);
            self.pass(thread_index, Turn { until, limit }, load, out);
        }
    }
}

impl Carried {
    /// Returns the size and the chunk header of a new block.
    #[inline(always)]
    fn decoded(&mut self, size: CodedSize) -> (u64, u16) {
        if size.is_plain() { (size.0, self.usual) } else { self.unusual(size) }
    }

    #[cold]
    fn unusual(&mut self, size: CodedSize) -> (u64, u16) {
        let rate = size.rate();
        if rate != 0 {
            self.rate = rate;
        }
        let (size, header) = size.decode();
        let Some(header) = header else { return (size.min(MAX_SIZE), 0) };
        if !header.mapped {
            self.usual = Header { extra: 0, ..header }.code();
        }
        (size, header.code())
    }

    /// Returns the time of an event. Times never decrease within a thread: the order in which it wrote its events is
    /// the order in which they happened.
    #[inline(always)]
    fn time(&mut self, time: Ticks) -> Ticks {
        self.last_time = self.last_time.max(time.min(LATEST));
        self.last_time
    }
}

impl<F: FnMut(Op)> Run<'_, F> {
    #[inline(always)]
    fn give(&mut self, op: Op) {
        if self.head.is_some() {
            self.second = Some(op);
        } else if self.turn.holds(&op) {
            (self.out)(op);
        } else {
            self.head = Some(op);
        }
    }

    /// Gives blocks from before the recording.
    fn found(&mut self, ticks: Ticks, blocks: &mut CensusBlocks) {
        let (thread_index, kind, rate) = (self.thread_index, OpKind::Found, 0);
        while self.goes_on()
            && let Some(b) = blocks.next()
        {
            let time = self.carried.time(ticks);
            let (addr, size, header) = (b.address, b.size.min(MAX_SIZE), b.header.code());
            let node = stack_of(b.class);
            self.give(Op { time, addr, size, node, thread_index, kind, header, rate });
        }
    }

    /// Gives the end of a block.
    #[inline(always)]
    fn give_end(&mut self, kind: OpKind, time: Ticks, addr: u64, node: u32) -> bool {
        let (thread_index, size, header, rate) = (self.thread_index, 0, 0, 0);
        self.give(Op { time, addr, size, node, thread_index, kind, header, rate });
        true
    }

    /// Gives the beginning of a block.
    #[inline(always)]
    fn give_new(
        &mut self,
        kind: OpKind,
        time: Ticks,
        addr: u64,
        size: CodedSize,
        node: u32,
    ) -> bool {
        let (size, header) = self.carried.decoded(size);
        let (thread_index, rate) = (self.thread_index, self.carried.rate);
        self.give(Op { time, addr, size, node, thread_index, kind, header, rate });
        true
    }
}

impl<F: FnMut(Op)> Visit for Run<'_, F> {
    type Node = u32;

    #[inline(always)]
    fn alloc(&mut self, time: Ticks, addr: u64, size: CodedSize, node: u32) -> bool {
        self.events += 1;
        let time = self.carried.time(time);
        self.give_new(OpKind::Alloc, time, addr, size, node)
    }

    #[inline(always)]
    fn free(&mut self, time: Ticks, addr: u64, node: u32) -> bool {
        self.events += 1;
        let time = self.carried.time(time);
        self.give_end(OpKind::Free, time, addr, node)
    }

    #[inline(always)]
    fn realloc(
        &mut self,
        times: [Ticks; 2],
        old: u64,
        addr: u64,
        size: CodedSize,
        node: u32,
    ) -> bool {
        self.events += 1;
        let begin = self.carried.time(times[0].min(times[1]));
        self.give_end(OpKind::ReallocOld, begin, old, node);
        let end = self.carried.time(times[1]);
        self.give_new(OpKind::ReallocNew, end, addr, size, node)
    }

    #[inline(always)]
    fn goes_on(&self) -> bool {
        self.head.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoded_events_are_bounded_until_they_are_passed_on() {
        let events = |from: u64| -> Vec<Event> {
            let alloc = |i| (Ticks(from + i), 0x1000 + 16 * (from + i));
            let size = CodedSize(8);
            (0..1000)
                .map(alloc)
                .map(|(time, addr)| Event::Alloc { time, addr, size, node: 1 })
                .collect()
        };
        let mut merge = Merge::default();
        let mut rounds = 0;
        while merge.takes_decoded() {
            // Each thread has one list at its head, which counts as the others do.
            (0..10).for_each(|thread| merge.push_decoded(thread, events(1 + rounds * 1000)));
            rounds += 1;
        }
        let held = rounds as usize * 10 * 1000 * size_of::<Event>();
        assert!((DECODED..DECODED + DECODED / 4).contains(&held), "{held} bytes are held");
        let mut passed = 0;
        merge.drain(None, &mut |_, _| None, &mut |_| passed += 1);
        assert_eq!((passed, merge.pending.bytes), (rounds * 10_000, 0));
        assert!(merge.takes_decoded());
    }
    #[test]
    fn new_threads_have_the_indices_of_ended_ones() {
        let (mut merge, mut passed) = (Merge::default(), Vec::new());
        for thread in 1..=1000u32 {
            let time = u64::from(thread) * 10;
            let event = |n| Event::Free { time: Ticks(time + n), addr: 0x1000, node: thread };
            merge.push_decoded(thread, vec![event(0), event(2)]);
            merge.leave(&[u64::from(thread)]);
            let mut pass = |merge: &mut Merge, limit| {
                merge.drain(Some(Ticks(limit)), &mut |_, _| None, &mut |op| passed.push(op.node));
            };
            pass(&mut merge, time + 1);
            assert_eq!(merge.forget_ended(), [0; 0], "an event of it waits");
            pass(&mut merge, time + 3);
            assert_eq!((merge.forget_ended(), merge.numbers()), (vec![0], &[thread][..]));
        }
        assert_eq!(passed, (1..=1000).flat_map(|n| [n, n]).collect::<Vec<_>>());
        merge.leave(&[7]);
        assert_eq!(merge.forget_ended(), [0; 0], "it is not there");
        // Two that live have indices of their own.
        for thread in [2001, 2002, 2001] {
            let (time, addr) = (Ticks(1 << 20), 16);
            merge.push_decoded(thread, vec![Event::Free { time, addr, node: 0 }]);
        }
        assert_eq!(merge.numbers(), [2001, 2002]);
    }
}
