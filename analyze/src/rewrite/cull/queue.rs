//! The events of which it is not decided whether they are written, in the order of time.

use super::Gate;
use super::slab::Slab;
use crate::heap::{Block, End, Fate, Handle, NOWHERE, Watch};
use crate::load::{Op, OpKind};
use prof_trace::ticks::Ticks;

/// No entry of the queue.
const NONE: u32 = u32::MAX;

/// Kind of an event that is held back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum What {
    #[default]
    Alloc,
    Realloc,
    Free,
    /// The end of a block whose free was not recorded. It is only written if the block is not that stands there next.
    Implied,
}

/// An entry of the queue: an event that is written if it is still there when it is old enough.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(super) struct Held {
    /// Place of the entry in the queue: the event's time, or that of the entry before it if that is later.
    pub order: Ticks,
    pub time: Ticks,
    pub addr: u64,
    pub size: u64,
    pub node: u32,
    pub thread_index: u32,
    /// Neighbours in the queue.
    previous: u32,
    next: u32,
    /// Index in [`Queue::reallocs`] if this is a reallocation.
    realloc: u32,
    pub header: u16,
    pub rate: u8,
    pub what: What,
    pub temporary: bool,
    /// The block has ended, and the entry stays: the block is written, or a chain goes on.
    ended: bool,
}

// An entry is one cache line: there is one for each block that is young.
const _: () = assert!(size_of::<Held>() == 64);

/// The part of an entry that only a block which `realloc` returned has.
#[derive(Clone, Copy, Debug)]
struct Realloc {
    /// Address of the block that was passed to `realloc`, and when.
    old: (u64, Ticks),
    /// The entry of that block, or [`NONE`].
    link: u32,
    chain: Chain,
}

/// Begin of the first block of a chain of reallocations, and that one's place in the queue; both 0 where it has left the
/// queue.
#[derive(Clone, Copy, Debug, Default)]
struct Chain {
    time: Ticks,
    order: Ticks,
}

/// The index of a live block's entry in the queue. The entry is there while the block began at the line or later: entries
/// leave in their order, which is never before their time, or as the block ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry(u32);

impl Default for Entry {
    fn default() -> Self {
        Self(NONE)
    }
}

impl Handle for Entry {
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
    chain: Chain,
}

/// Bytes that an entry takes, its place in the list of free ones included, and what one of a reallocation takes besides.
const ENTRY: usize = size_of::<Held>() + size_of::<u32>();
const REALLOC: usize = size_of::<Realloc>() + size_of::<u32>();

/// The blocks of which it is not decided whether they are written, and what is written behind them.
pub(super) struct Queue {
    pub threshold: u64,
    /// Entries before this time have left the queue; chains that began before it are written.
    line: Ticks,
    slab: Slab<Held>,
    reallocs: Vec<Realloc>,
    /// Free places in `reallocs`.
    free_reallocs: Vec<u32>,
    head: u32,
    tail: u32,
    len: usize,
    /// Place in time of the last entry.
    last: Ticks,
    /// By thread index.
    old_blocks: Vec<OldBlock>,
    /// Number and bytes of the blocks that were left out.
    pub culled: (u64, u64),
    /// Number of blocks that were written before it was known how long they live.
    pub early: u64,
}

impl Queue {
    /// Creates an empty queue, which leaves out blocks that live shorter than `threshold` ticks.
    pub(super) fn new(threshold: u64) -> Self {
        Self {
            threshold,
            line: Ticks(1),
            slab: Slab::default(),
            reallocs: Vec::new(),
            free_reallocs: Vec::new(),
            head: NONE,
            tail: NONE,
            len: 0,
            last: Ticks(1),
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

    /// Puts an entry that was free at the end.
    #[inline(always)]
    fn push_at(&mut self, at: u32, held: Held) {
        self.last = self.last.max(held.time);
        self.slab[at] = Held { order: self.last, previous: self.tail, next: NONE, ..held };
        match self.tail {
            NONE => self.head = at,
            tail => self.slab[tail].next = at,
        }
        self.tail = at;
        self.len += 1;
    }

    fn push(&mut self, held: Held) {
        let at = self.slab.take();
        self.push_at(at, held);
    }

    /// Removes and returns an entry, with what it has as a reallocation.
    #[inline(always)]
    fn take(&mut self, at: u32) -> (Held, Option<Realloc>) {
        let held = self.slab[at];
        match held.previous {
            NONE => self.head = held.next,
            previous => self.slab[previous].next = held.next,
        }
        match held.next {
            NONE => self.tail = held.previous,
            next => self.slab[next].previous = held.previous,
        }
        self.slab.give_back(at);
        self.len -= 1;
        let is_realloc = held.what == What::Realloc;
        let realloc = is_realloc.then(|| {
            self.free_reallocs.push(held.realloc);
            self.reallocs[held.realloc as usize]
        });
        (held, realloc)
    }

    fn add_realloc(&mut self, realloc: Realloc) -> u32 {
        if let Some(at) = self.free_reallocs.pop() {
            self.reallocs[at as usize] = realloc;
            return at;
        }
        self.reallocs.push(realloc);
        (self.reallocs.len() - 1) as u32
    }

    /// Returns the chain that the block of an entry belongs to.
    #[inline(always)]
    fn chain(&self, at: u32) -> Chain {
        let held = &self.slab[at];
        match held.what {
            What::Realloc => self.reallocs[held.realloc as usize].chain,
            _ => Chain { time: held.time, order: held.order },
        }
    }

    /// Leaves out a chain, given the entry of its last block.
    #[inline(always)]
    fn cull(&mut self, mut at: u32) {
        while at != NONE {
            let (held, realloc) = self.take(at);
            self.culled.0 += 1;
            self.culled.1 = self.culled.1.saturating_add(held.size);
            at = realloc.map_or(NONE, |r| r.link);
        }
    }

    /// Passes on all entries from before `line`.
    pub(super) fn release(&mut self, line: Ticks, gate: &mut Gate<'_>) {
        self.line = self.line.max(line);
        while self.head != NONE && self.slab[self.head].order < self.line {
            self.pass_first(gate);
        }
        gate.passes(self.line);
        if line == Ticks::MAX {
            gate.write();
        }
    }

    /// Passes on the first entry. Returns whether it was that of a live block whose end might still have left it out.
    fn pass_first(&mut self, gate: &mut Gate<'_>) -> bool {
        let (held, realloc) = self.take(self.head);
        if held.what == What::Implied {
            let next = (self.head != NONE).then(|| self.slab[self.head]);
            let again = |n: &Held| matches!(n.what, What::Alloc | What::Realloc);
            let implies = |n: &Held| (n.time, n.addr) == (held.time, held.addr) && again(n);
            if next.as_ref().is_some_and(implies) {
                return false;
            }
        }
        gate.add(&held, realloc.map_or((0, Ticks::ZERO), |r| r.old));
        let is_new = matches!(held.what, What::Alloc | What::Realloc);
        is_new && !held.ended && realloc.is_none_or(|r| r.chain.order != Ticks::ZERO)
    }

    /// Returns the bytes that the entries take.
    fn bytes(&self) -> u64 {
        let reallocs = self.reallocs.len() - self.free_reallocs.len();
        (self.len * ENTRY + reallocs * REALLOC) as u64
    }

    /// Passes on the oldest entries, also if it is not known how long they live, until they take at most `most` bytes.
    pub(super) fn shorten(&mut self, most: u64, gate: &mut Gate<'_>) {
        while self.bytes() > most && self.head != NONE {
            // All of one moment: what is at one address belongs together.
            let line = self.slab[self.head].order.saturating_add(1);
            self.line = self.line.max(line);
            while self.head != NONE && self.slab[self.head].order < line {
                self.early += u64::from(self.pass_first(gate));
            }
        }
    }

    /// Returns the entry of the block that ends, and its chain, if that may yet turn out to be short-lived.
    #[inline(always)]
    fn undecided(&mut self, b: &Block, Entry(at): Entry) -> Option<(u32, Chain)> {
        if b.time < self.line || at == NONE {
            return None;
        }
        debug_assert_eq!(self.slab[at].time, b.time);
        let chain = self.chain(at);
        if chain.order >= self.line {
            return Some((at, chain));
        }
        self.slab[at].ended = true;
        None
    }

    /// Holds back the end of a block that stays.
    fn push_end(&mut self, addr: u64, end: End, what: What) {
        let End { time, thread_index, node, temporary, .. } = end;
        self.push(Held { time, addr, thread_index, node, what, temporary, ..Held::default() });
    }
}

impl Watch for Queue {
    type Handle = Entry;

    const FORESEES: bool = true;

    #[inline(always)]
    fn notes(&self, _: &Op) -> bool {
        true
    }

    #[inline(always)]
    fn foresee(&self, Entry(at): Entry) {
        self.slab.prefetch(at);
    }

    #[inline(always)]
    fn handle(&mut self, _: &Op) -> Entry {
        Entry(self.slab.take())
    }

    #[inline(always)]
    fn begin(&mut self, op: &Op, Entry(at): Entry) {
        let Op { time, addr, size, node, thread_index, header, rate, .. } = *op;
        let new = Held { time, addr, size, node, thread_index, header, rate, ..Held::default() };
        if op.kind == OpKind::Alloc {
            return self.push_at(at, new);
        }
        let old_block = std::mem::take(self.old_of(thread_index));
        let old = (old_block.addr, old_block.time);
        let alone = Chain { time, order: self.last.max(time) };
        let realloc = match old_block.entry.filter(|_| old_block.chain.order >= self.line) {
            Some(link) => Realloc { old, link, chain: old_block.chain },
            None if old_block.addr == 0 => {
                Realloc { old: (NOWHERE, time), link: NONE, chain: alone }
            }
            None => Realloc { old, link: NONE, chain: Chain::default() },
        };
        let realloc = self.add_realloc(realloc);
        self.push_at(at, Held { what: What::Realloc, realloc, ..new });
    }

    /// The collector has written these by now: they are no events.
    fn found(&mut self, _: u32, _: &Op) {}

    #[inline(always)]
    fn end(&mut self, addr: u64, b: &Block, entry: Entry, end: End) {
        let entry = self.undecided(b, entry);
        let time = end.time;
        match (end.fate, entry) {
            (Fate::Reallocated, entry) => {
                let (entry, chain) = entry.unzip();
                if let Some(at) = entry {
                    self.slab[at].ended = true;
                }
                let chain = chain.unwrap_or_default();
                *self.old_of(end.thread_index) = OldBlock { addr, time, entry, chain };
            }
            (_, Some((at, chain))) if time.since(chain.time) < self.threshold => self.cull(at),
            (fate, entry) => {
                if let Some((at, _)) = entry {
                    self.slab[at].ended = true;
                }
                let what = if fate == Fate::Freed { What::Free } else { What::Implied };
                self.push_end(addr, end, what);
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
