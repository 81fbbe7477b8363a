//! Leaves short-lived blocks out of a recording while it is made, but keeps the figures of all stacks.
//!
//! The events are merged and replayed as a reader does it, so the figures are those that a reader of all events would
//! get. Blocks that may yet turn out to be short-lived wait in a queue in the order of time. A chain of reallocations
//! that ends too soon leaves the queue; what is still there when it is as old as the threshold is written. So the
//! recording lags behind by the threshold, and is in the order of time, with the passes of the collector in between.

use super::kept::Kept;
use super::out::Passes;
use crate::heap::{Block, End, Fate, Group, Live, NOWHERE, Replay, Value, Watch, to_records};
use crate::load::{Merge, Op, OpKind, Payload, Sink, Waiting};
use prof_trace::event::{Codec, Event};
use prof_trace::records::{self, Pass, Target};
use prof_trace::sieve::{Figures, Sieve, Sieved};
use prof_trace::ticks::Ticks;
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;

/// Number of operations that are replayed at a time.
const BATCH: usize = 4096;
/// No entry of the queue.
const NONE: u32 = u32::MAX;

/// Selects the blocks that are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CullOptions {
    /// Blocks that lived shorter than this are not written, in nanoseconds.
    pub threshold_ns: u64,
    /// Bytes of memory that may be taken by what is held back.
    pub pending: u64,
}

/// Leaves short-lived blocks out of a recording that is made.
pub struct Cull {
    options: CullOptions,
    merge: Merge,
    batch: Vec<Op>,
    replay: Replay<Queue>,
    keep: Passes,
    /// The passes that are to be written, which wait for the events before them.
    passes: VecDeque<Pass>,
    /// Ticks of the last pass.
    last: Option<Ticks>,
    kept: Kept,
    /// The numbers of the threads, by thread index.
    thread_numbers: Vec<u32>,
    /// The groups as they were told last, by node.
    told: HashMap<u32, Group>,
    finished: bool,
}

impl std::fmt::Debug for Cull {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cull").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Cull {
    /// Creates one for a recording of `target`.
    pub fn new(target: &Target, options: CullOptions) -> Self {
        let per_sec = u128::from(target.ticks_per_sec.max(1));
        let ticks = (u128::from(options.threshold_ns) * per_sec).div_ceil(1_000_000_000);
        let threshold = u64::try_from(ticks).unwrap_or(u64::MAX);
        let mut replay = Replay::new(Queue::new(threshold));
        replay.begin(&target.capture(), target.early);
        Self {
            options,
            merge: Merge::default(),
            batch: Vec::with_capacity(BATCH),
            replay,
            keep: Passes::new(target),
            passes: VecDeque::new(),
            last: None,
            kept: Kept::default(),
            thread_numbers: Vec::new(),
            told: HashMap::new(),
            finished: false,
        }
    }

    /// Replays the events from before `limit`, or all, and passes on what is old enough by then.
    fn replay(&mut self, limit: Option<Ticks>, to: &mut dyn Sieved) {
        let Self { merge, batch, replay, kept, passes, thread_numbers, .. } = self;
        thread_numbers
            .extend_from_slice(merge.numbers().get(thread_numbers.len()..).unwrap_or_default());
        let most = (self.options.pending / size_of::<Held>() as u64).max(1);
        let mut gate = Gate { kept, passes, thread_numbers, to };
        merge.drain(limit, &mut |_, _| None, &mut |op| {
            batch.push(op);
            if batch.len() == BATCH {
                replay.take(batch);
                batch.clear();
                replay.watch.shorten(most, &mut gate);
            }
        });
        replay.take(batch);
        batch.clear();
        replay.watch.shorten(most, &mut gate);
        let queue = &mut replay.watch;
        let line = limit.map_or(Ticks::MAX, |l| l.saturating_sub(queue.threshold));
        queue.release(line, &mut gate);
    }
}

impl Sieve for Cull {
    fn events(&mut self, thread: u32, from: &Codec, count: u32, bytes: &[u8]) {
        let place = Payload::Here(bytes.to_vec());
        self.merge.pending.hold(&place);
        let waiting = Waiting::Plain { codec: *from, count, place };
        self.merge.push(thread, waiting, &mut |_, _| None);
    }

    fn pass(&mut self, pass: &Pass, to: &mut dyn Sieved) {
        if self.keep.keep(pass) {
            self.passes.push_back(pass.clone());
        }
        if let Some(limit) = self.last.replace(pass.ticks) {
            self.replay(Some(limit), to);
        }
    }

    fn finish(&mut self, to: &mut dyn Sieved) {
        self.replay(None, to);
        self.finished = true;
    }

    fn about(&self) -> records::Stripped {
        records::Stripped {
            threshold_ns: self.options.threshold_ns,
            how: records::Stripped::CULLED,
            ..records::Stripped::default()
        }
    }

    fn figures(&mut self) -> Vec<Figures> {
        let (queue, told) = (&self.replay.watch, &mut self.told);
        let mut groups = self.replay.ageless_groups();
        groups.retain(|g| told.insert(g.node, *g) != Some(*g));
        let how = match self.finished {
            true => records::Stripped::CULLED_TO_THE_END,
            false => records::Stripped::CULLED,
        };
        let about = records::Stripped {
            threshold_ns: self.options.threshold_ns,
            blocks: queue.culled.0,
            bytes: queue.culled.1,
            how,
            early: queue.early,
            ..records::Stripped::default()
        };
        let records = to_records(&about, &self.replay.totals(), &groups);
        records.into_iter().map(Figures::Whole).collect()
    }
}

/// Receives the events of blocks that are written, and puts them in the order in which they are written.
struct Gate<'a> {
    kept: &'a mut Kept,
    passes: &'a mut VecDeque<Pass>,
    /// The numbers of the threads, by thread index.
    thread_numbers: &'a [u32],
    to: &'a mut dyn Sieved,
}

impl Gate<'_> {
    fn write(&mut self) {
        let Self { kept, thread_numbers, to, .. } = self;
        let Ok(()) = kept.write::<Infallible>(|thread_index, events| {
            to.events(thread_numbers.get(thread_index as usize).copied().unwrap_or(0), events);
            Ok(())
        });
    }

    /// Passes on the collector's passes up to `ticks`.
    fn passes(&mut self, ticks: Ticks) {
        while let Some(pass) = self.passes.front().filter(|p| p.ticks <= ticks).cloned() {
            self.write();
            self.to.pass(&pass);
            self.passes.pop_front();
        }
    }

    /// Passes on an event.
    fn add(&mut self, h: &Held) {
        self.passes(h.order);
        let Held { time, addr, old, thread_index, node, .. } = *h;
        let size = match h.what {
            What::Alloc | What::Realloc => self.kept.sized(thread_index, h.size, h.header, h.rate),
            What::Free | What::Implied => 0.into(),
        };
        let (event, old) = match h.what {
            What::Alloc => (Event::Alloc { time, addr, size, node }, addr),
            What::Realloc => {
                let time_before = h.before;
                (Event::Realloc { time_before, time, old, addr, size, node }, old)
            }
            What::Free | What::Implied => (Event::Free { time, addr, node }, addr),
        };
        if self.kept.add(thread_index, event, old, h.temporary) {
            self.write();
        }
    }
}

/// Kind of an event that is held back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum What {
    #[default]
    Alloc,
    Realloc,
    Free,
    /// The end of a block whose free was not recorded. It is only written if the block is not that stands there next.
    Implied,
}

/// An entry of the queue: an event that is written if it is still there when it is old enough.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// Place of the entry in the queue: the event's time, or that of the entry before it if that is later.
    order: Ticks,
    time: Ticks,
    addr: u64,
    size: u64,
    /// Address of the block that was passed to `realloc`, and when.
    old: u64,
    before: Ticks,
    /// Begin of the first block of its chain, and that one's place in time.
    chain: (Ticks, Ticks),
    node: u32,
    thread_index: u32,
    /// Neighbours in the queue; `next` also in the list of free entries.
    previous: u32,
    next: u32,
    /// The entry of the block that was passed to `realloc`.
    link: u32,
    header: u16,
    rate: u8,
    what: What,
    temporary: bool,
}

/// The entry of a live block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct At(u32);

impl Value for At {
    type Align = ();
}

/// The block that a thread has passed to `realloc`.
#[derive(Clone, Copy, Debug, Default)]
struct OldBlock {
    /// Address of the block, and the time at which it was allocated; address 0: both are unknown.
    addr: u64,
    time: Ticks,
    /// Entry of the block in the queue, while the block may still turn out to be short-lived.
    entry: Option<u32>,
    chain: (Ticks, Ticks),
}

/// The blocks of which it is not decided whether they are written, and what is written behind them.
struct Queue {
    threshold: u64,
    /// Entries before this time have left the queue; chains that began before it are written.
    line: Ticks,
    slab: Vec<Held>,
    free: u32,
    head: u32,
    tail: u32,
    len: usize,
    /// Place in time of the last entry.
    last: Ticks,
    at: Live<At>,
    /// By thread index.
    old_blocks: Vec<OldBlock>,
    /// Number and bytes of the blocks that were left out.
    culled: (u64, u64),
    /// Number of blocks that were written before it was known how long they live.
    early: u64,
}

impl Queue {
    fn new(threshold: u64) -> Self {
        Self {
            threshold,
            line: Ticks(1),
            slab: Vec::new(),
            free: NONE,
            head: NONE,
            tail: NONE,
            len: 0,
            last: Ticks(1),
            at: Live::default(),
            old_blocks: Vec::new(),
            culled: (0, 0),
            early: 0,
        }
    }

    fn old_of(&mut self, thread_index: u32) -> &mut OldBlock {
        let at = thread_index as usize;
        if at >= self.old_blocks.len() {
            self.old_blocks.resize(at + 1, OldBlock::default());
        }
        &mut self.old_blocks[at]
    }

    /// Adds an entry at the end; returns its index.
    fn push(&mut self, held: Held) -> u32 {
        self.last = self.last.max(held.time);
        let held = Held { order: self.last, previous: self.tail, next: NONE, ..held };
        let at = match self.free {
            NONE => {
                self.slab.push(held);
                (self.slab.len() - 1) as u32
            }
            at => {
                self.free = self.slab[at as usize].next;
                self.slab[at as usize] = held;
                at
            }
        };
        match self.tail {
            NONE => self.head = at,
            tail => self.slab[tail as usize].next = at,
        }
        self.tail = at;
        self.len += 1;
        at
    }

    /// Removes and returns an entry.
    fn take(&mut self, at: u32) -> Held {
        let held = self.slab[at as usize];
        match held.previous {
            NONE => self.head = held.next,
            previous => self.slab[previous as usize].next = held.next,
        }
        match held.next {
            NONE => self.tail = held.previous,
            next => self.slab[next as usize].previous = held.previous,
        }
        self.slab[at as usize].next = self.free;
        self.free = at;
        self.len -= 1;
        held
    }

    /// Leaves out a chain, given the entry of its last block.
    fn cull(&mut self, mut at: u32) {
        while at != NONE {
            let held = self.take(at);
            self.culled.0 += 1;
            self.culled.1 = self.culled.1.saturating_add(held.size);
            at = held.link;
        }
    }

    /// Passes on all entries from before `line`.
    fn release(&mut self, line: Ticks, gate: &mut Gate<'_>) {
        self.line = self.line.max(line);
        while self.head != NONE && self.slab[self.head as usize].order < self.line {
            self.pass_first(gate);
        }
        gate.passes(self.line);
        if line == Ticks::MAX {
            gate.write();
        }
    }

    /// Passes on the first entry. Returns whether it was that of a live block.
    fn pass_first(&mut self, gate: &mut Gate<'_>) -> bool {
        let at = self.head;
        let held = self.take(at);
        match held.what {
            What::Alloc | What::Realloc => {
                gate.add(&held);
                let lives = self.at.get(held.addr) == Some(At(at));
                if lives {
                    self.at.remove(held.addr);
                }
                lives
            }
            What::Free => {
                gate.add(&held);
                false
            }
            What::Implied => {
                let next = self.slab.get(self.head as usize).filter(|_| self.head != NONE);
                let again = |n: &Held| matches!(n.what, What::Alloc | What::Realloc);
                let implies = |n: &Held| (n.time, n.addr) == (held.time, held.addr) && again(n);
                if !next.is_some_and(implies) {
                    gate.add(&held);
                }
                false
            }
        }
    }

    /// Passes on the oldest entries, also if it is not known how long they live, until there are at most `most`.
    fn shorten(&mut self, most: u64, gate: &mut Gate<'_>) {
        while self.len as u64 > most && self.head != NONE {
            // All of one moment: what is at one address belongs together.
            let line = self.slab[self.head as usize].order.saturating_add(1);
            self.line = self.line.max(line);
            while self.head != NONE && self.slab[self.head as usize].order < line {
                self.early += u64::from(self.pass_first(gate));
            }
        }
    }

    /// Returns the entry of the block that ends, if its chain may yet turn out to be short-lived.
    #[inline]
    fn undecided(&mut self, addr: u64, b: &Block) -> Option<u32> {
        if b.time < self.line {
            return None;
        }
        let At(at) = self.at.remove(addr)?;
        (self.slab[at as usize].chain.1 >= self.line).then_some(at)
    }
}

impl Watch for Queue {
    #[inline(always)]
    fn notes(&self, _: &Op) -> bool {
        true
    }

    fn begin(&mut self, op: &Op) {
        let Op { time, addr, size, node, thread_index, header, rate, .. } = *op;
        let order = self.last.max(time);
        let chain = (time, order);
        let new = Held {
            time,
            addr,
            size,
            node,
            thread_index,
            header,
            rate,
            chain,
            link: NONE,
            ..Held::default()
        };
        if op.kind == OpKind::Alloc {
            let at = self.push(new);
            self.at.insert(addr, At(at));
            return;
        }
        let old_block = std::mem::take(self.old_of(thread_index));
        let new = Held { what: What::Realloc, old: old_block.addr, before: old_block.time, ..new };
        match old_block.entry.filter(|_| old_block.chain.1 >= self.line) {
            Some(link) => {
                let at = self.push(Held { link, chain: old_block.chain, ..new });
                self.at.insert(addr, At(at));
            }
            None if old_block.addr == 0 => {
                let at = self.push(Held { old: NOWHERE, before: time, ..new });
                self.at.insert(addr, At(at));
            }
            None => {
                self.push(Held { chain: (Ticks::ZERO, Ticks::ZERO), ..new });
            }
        }
    }

    /// The collector has written these by now: they are no events.
    fn found(&mut self, _: u32, _: &Op) {}

    fn end(&mut self, addr: u64, b: &Block, end: End) {
        let entry = self.undecided(addr, b);
        let chain = entry.map_or((Ticks::ZERO, Ticks::ZERO), |at| self.slab[at as usize].chain);
        let End { time, thread_index, node, fate, temporary } = end;
        let what = match fate {
            Fate::Reallocated => {
                *self.old_of(thread_index) = OldBlock { addr, time, entry, chain };
                return;
            }
            Fate::Freed => What::Free,
            Fate::Implied => What::Implied,
        };
        match entry.filter(|_| time.since(chain.0) < self.threshold) {
            Some(at) => self.cull(at),
            None => {
                let link = NONE;
                self.push(Held {
                    time,
                    addr,
                    thread_index,
                    node,
                    what,
                    temporary,
                    link,
                    ..Held::default()
                });
            }
        }
    }

    fn unknown(&mut self, op: &Op) {
        if op.kind == OpKind::ReallocOld {
            *self.old_of(op.thread_index) = OldBlock::default();
        }
    }

    fn before(&mut self, _: &Op) {}
}
