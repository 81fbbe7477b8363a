//! Replaying the operations.

use super::early::Early;
use super::estimate::{Errors, Estimates};
use super::live::{Block, Live};
use crate::load::{IdMap, Op, OpKind, Sink};
use prof_trace::capture::Capture;
use std::collections::HashMap;

/// What is counted of a set of blocks: of all, or of those of one stack.
///
/// A block belongs to the stack that asked for it; a reallocated one, from then on, to the stack
/// that called `realloc`. So `allocations`, `reallocations`, `allocated_bytes`, `live_count`,
/// `live_bytes` and `temporary` of all groups add up to those of the totals. Peaks don't: each is
/// the highest that its own set ever had, and they lie at different times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Blocks that are live at the end of the recording.
    pub live_count: u64,
    /// Their bytes, as asked for.
    pub live_bytes: u64,
    /// The most blocks that were live at a time.
    pub peak_count: u64,
    /// The most bytes that were live at a time.
    pub peak_bytes: u64,
    /// Blocks handed out, other than by reallocation.
    pub allocations: u64,
    /// Reallocations: each is one block given back and one handed out.
    pub reallocations: u64,
    /// Bytes ever handed out: the sizes of all allocations and the new sizes of all reallocations.
    pub allocated_bytes: u64,
    /// Blocks that the thread that got them gave back as the very next thing that it did with the heap. 0 if not all blocks are recorded: what came next is not known.
    pub temporary: u64,
}

impl Figures {
    // A recording that nobody wrote in earnest can have sizes up to 2^56; their sums wrap.
    #[inline(always)]
    fn gain(&mut self, size: u64) -> bool {
        self.allocated_bytes = self.allocated_bytes.wrapping_add(size);
        self.live_count += 1;
        self.live_bytes = self.live_bytes.wrapping_add(size);
        self.peak_count = self.peak_count.max(self.live_count);
        let higher = self.live_bytes > self.peak_bytes;
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
        higher
    }

    #[inline(always)]
    fn lose(&mut self, size: u64) {
        self.live_count -= 1;
        self.live_bytes = self.live_bytes.wrapping_sub(size);
    }
}

/// The figures of a recording as a whole. It always holds that
/// `live_count = allocations - frees + unknown_frees - implied_frees`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// As for a group.
    pub figures: Figures,
    /// Calls that gave a block back, known or not. Reallocations are not among them.
    pub frees: u64,
    /// Blocks given back or reallocated that were not known to be live: from before the attach, or
    /// from a time in which recording was off.
    pub unknown_frees: u64,
    /// Blocks whose address was handed out again without their having been given back: that
    /// happened while recording was off, or was lost. They end where the new block begins.
    pub implied_frees: u64,
    /// Ticks when `peak_bytes` was reached.
    pub peak_ticks: u64,
    /// Ticks of the last event.
    pub last_ticks: u64,
    /// Events with address 0, which are not counted.
    pub nonsense: u64,
    /// Standard errors, if the figures are estimates.
    pub errors: Errors,
}

/// The figures of one stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Its stack node, see [`Meta::stack`](crate::load::Meta::stack); 0: no stack is known.
    pub node: u32,
    /// The figures.
    pub figures: Figures,
    /// Ticks when its oldest live block was handed out.
    pub oldest: Option<u64>,
    /// Standard errors, if the figures are estimates.
    pub errors: Errors,
    /// Ticks when its first block was handed out.
    pub first: u64,
    /// Ticks when its last block was handed out.
    pub last: u64,
    /// Ticks when it first had the most live bytes.
    pub peak_ticks: u64,
}

/// The times of a group.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    first: u64,
    last: u64,
    peak: u64,
}

/// How a block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was given back.
    Freed,
    /// It was given to `realloc`.
    Reallocated,
    /// Its address was handed out again; its end went unseen.
    Implied,
}

/// The end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Ticks.
    pub time: u64,
    /// Lane of the thread that ended it.
    pub lane: u32,
    /// Where from, if that was recorded; else 0.
    pub node: u32,
    /// How.
    pub fate: Fate,
    /// It is one of [`Figures::temporary`].
    pub temporary: bool,
}

/// What follows the single blocks of a replay, beside what is counted of them.
pub trait Watch {
    /// Whether it has something to remember of the block that begins: then the block
    /// [is noted](Block::is_noted).
    fn notes(&self, op: &Op) -> bool;

    /// A block begins that is noted; what was at its address before has ended.
    fn begin(&mut self, op: &Op);

    /// A block ends.
    fn end(&mut self, addr: u64, block: &Block, end: End);

    /// A thread gives back a block that is not known to be live.
    fn unknown(&mut self, op: &Op);

    /// That block is from before the recording, or from a time when recording was off.
    fn before(&mut self, op: &Op);
}

/// Nobody watches.
impl Watch for () {
    #[inline(always)]
    fn notes(&self, _: &Op) -> bool {
        false
    }

    #[inline(always)]
    fn begin(&mut self, _: &Op) {}

    #[inline(always)]
    fn end(&mut self, _: u64, _: &Block, _: End) {}

    #[inline(always)]
    fn unknown(&mut self, _: &Op) {}

    #[inline(always)]
    fn before(&mut self, _: &Op) {}
}

/// Keeps the live blocks and counts.
#[derive(Default)]
pub struct Replay<W: Watch = ()> {
    /// Who follows the single blocks.
    pub(crate) watch: W,
    live: Live,
    totals: Totals,
    figures: Vec<Figures>,
    times: Vec<Times>,
    nodes: Vec<u32>,
    by_node: IdMap<u32>,
    /// By lane: the block that the thread got last, if that was the last thing it did; else 0.
    newest: Vec<u64>,
    /// Addresses of the last implied frees, when they were, and the lane whose block they ended.
    implied: HashMap<u64, (u64, u32)>,
    /// Events that are too early.
    early: Early,
    /// There were operations.
    started: bool,
    /// Some blocks are not in the recording.
    partial: bool,
    /// Estimates, if blocks are a sample.
    estimates: Option<Box<Estimates>>,
}

/// So many implied frees are remembered.
const IMPLIED: usize = 1 << 16;

/// So many operations in advance their blocks' places are fetched: in the time that these take,
/// memory has answered.
const AHEAD: usize = 24;

impl<W: Watch> Replay<W> {
    /// Of nothing yet, followed by `watch`.
    pub fn new(watch: W) -> Self {
        Self {
            watch,
            live: Live::default(),
            totals: Totals::default(),
            figures: Vec::new(),
            times: Vec::new(),
            nodes: Vec::new(),
            by_node: IdMap::default(),
            newest: Vec::new(),
            implied: HashMap::new(),
            early: Early::default(),
            started: false,
            partial: false,
            estimates: None,
        }
    }

    /// The live blocks, in runs in the order of time, and who followed the replay.
    pub(crate) fn into_live(self) -> (impl Iterator<Item = (u64, Block)>, W) {
        (self.live.drain(), self.watch)
    }

    /// The totals so far.
    pub fn totals(&self) -> Totals {
        let mut t = self.totals;
        if self.partial {
            t.figures.temporary = 0;
        }
        if let Some(e) = &self.estimates {
            (t.frees, t.peak_ticks, t.errors) = e.totals(&mut t.figures);
        }
        t
    }

    /// How many blocks are live.
    pub fn live_len(&self) -> usize {
        self.live.len()
    }

    /// The live blocks, in no particular order.
    pub fn live(&self) -> impl Iterator<Item = (u64, Block)> {
        self.live.iter()
    }

    /// The groups, in the order in which their stacks first appeared.
    pub fn groups(&self) -> Vec<Group> {
        let group = |((&node, &figures), t): ((&u32, &Figures), &Times)| {
            let (first, last, peak_ticks) = (t.first, t.last, t.peak);
            Group { node, figures, first, last, peak_ticks, ..Group::default() }
        };
        let parts = std::iter::zip(&self.nodes, &self.figures).zip(&self.times);
        let mut groups: Vec<Group> = parts.map(group).collect();
        for (i, g) in groups.iter_mut().enumerate().filter(|_| self.partial) {
            g.figures.temporary = 0;
            if let Some(e) = &self.estimates {
                g.errors = e.group(i, &mut g.figures);
            }
        }
        for (_, b) in self.live.iter() {
            let oldest = &mut groups[b.group as usize].oldest;
            *oldest = Some(oldest.map_or(b.time, |t| t.min(b.time)));
        }
        groups
    }

    #[inline(always)]
    fn group(&mut self, node: u32, time: u64) -> u32 {
        match self.by_node.get(node) {
            Some(g) => g,
            None => self.new_group(node, time),
        }
    }

    #[cold]
    fn new_group(&mut self, node: u32, time: u64) -> u32 {
        let g = self.nodes.len() as u32;
        self.nodes.push(node);
        self.figures.push(Figures::default());
        self.times.push(Times { first: time, last: time, peak: time });
        self.by_node.set(node, g);
        g
    }

    #[inline(always)]
    fn newest(&mut self, lane: u32) -> &mut u64 {
        let at = lane as usize;
        if at >= self.newest.len() {
            self.newest.resize(at + 1, 0);
        }
        &mut self.newest[at]
    }

    /// A `realloc` of nothing is an allocation, one to nothing is a free.
    #[inline(always)]
    fn apply(&mut self, op: &Op) {
        match op.kind {
            OpKind::Alloc | OpKind::Grown if op.addr == 0 => self.totals.nonsense += 1,
            OpKind::Alloc => self.begin(op, false),
            OpKind::Grown => self.begin(op, true),
            OpKind::Free | OpKind::Given if op.addr == 0 => self.totals.nonsense += 1,
            OpKind::Free => {
                self.totals.frees += 1;
                self.end(op);
            }
            OpKind::Given => self.end(op),
        }
    }

    #[inline(always)]
    fn begin(&mut self, op: &Op, again: bool) {
        let group = self.group(op.node, op.time);
        let block = Block::new(op, group, self.watch.notes(op));
        if let Some(b) = self.live.insert(op.addr, block) {
            self.imply(op, &b);
        }
        if block.is_noted() {
            self.watch.begin(op);
        }
        let f = &mut self.figures[group as usize];
        f.allocations += !again as u64;
        f.reallocations += again as u64;
        let higher = f.gain(op.size);
        let t = &mut self.times[group as usize];
        t.last = op.time;
        if higher {
            t.peak = op.time;
        }
        let all = &mut self.totals.figures;
        all.allocations += !again as u64;
        all.reallocations += again as u64;
        if all.gain(op.size) {
            self.totals.peak_ticks = op.time;
        }
        if let Some(e) = &mut self.estimates {
            e.begin(&block, again);
        }
        *self.newest(op.lane) = op.addr;
        if let Some(free) = self.early.of(op) {
            self.end_at_once(op, free);
        }
    }

    #[inline(always)]
    fn end(&mut self, op: &Op) {
        let newest = std::mem::take(self.newest(op.lane));
        let Some(b) = self.live.remove(op.addr) else {
            return self.not_live(op);
        };
        if b.lane != op.lane && self.is_of_another(op, &b) {
            self.live.insert(op.addr, b);
            return;
        }
        let freed = op.kind == OpKind::Free;
        let temporary = (freed && newest == op.addr && b.lane == op.lane) as u64;
        self.totals.figures.lose(b.size());
        self.totals.figures.temporary += temporary;
        let f = &mut self.figures[b.group as usize];
        f.lose(b.size());
        f.temporary += temporary;
        if let Some(e) = &mut self.estimates {
            e.end(&b);
        }
        let fate = match op.kind {
            OpKind::Given => Fate::Reallocated,
            _ => Fate::Freed,
        };
        let time = op.time.max(b.time);
        let end = End { time, lane: op.lane, node: op.node, fate, temporary: temporary != 0 };
        self.watch.end(op.addr, &b, end);
    }
}

impl<W: Watch> Replay<W> {
    /// A thread gives back a block `b` of another one, or so it seems. If it has given back one of the same
    /// address that was there before or after it, that is counted, and it holds true.
    #[inline(always)]
    fn is_of_another(&mut self, op: &Op, b: &Block) -> bool {
        if b.time > op.time {
            if op.kind == OpKind::Free && self.early.may_follow(op.time, b.time) {
                return false;
            }
            self.not_live(op);
            return true;
        }
        self.early.may_follow(b.time, op.time) && self.was_implied(op, b)
    }

    /// Whether `b` was handed out too early: its address then seemed to be in use, and the block before
    /// it, which another thread had, was taken to have ended. This is that block's free.
    #[cold]
    fn was_implied(&mut self, op: &Op, b: &Block) -> bool {
        let Some(&(time, lane)) = self.implied.get(&op.addr) else { return false };
        let before = op.kind == OpKind::Free && time == b.time && lane != b.lane;
        if before {
            *self.newest(op.lane) = 0;
            self.implied.remove(&op.addr);
            self.totals.implied_frees -= 1;
        }
        before
    }

    /// A block was given back before it was handed out, as it seemed: it ends right after it begins.
    #[cold]
    fn end_at_once(&mut self, op: &Op, free: Op) {
        self.totals.unknown_frees -= 1;
        let newest = *self.newest(free.lane);
        self.end(&Op { time: op.time, ..free });
        *self.newest(free.lane) = newest;
    }

    /// A block is given back that is not live: it is from before the attach; or it was given to a
    /// `realloc`, whose event is written after the block is gone, so late that the address had
    /// been handed out again before. In that case its end has been seen, as an implied free.
    #[cold]
    fn not_live(&mut self, op: &Op) {
        self.watch.unknown(op);
        match self.implied.get(&op.addr) {
            Some((time, _)) if op.time < *time => {
                self.implied.remove(&op.addr);
                self.totals.implied_frees -= 1;
            }
            // The old block may just not have been recorded.
            _ if self.partial && op.kind == OpKind::Given => {}
            _ => {
                self.totals.unknown_frees += 1;
                self.early.push(op);
                self.watch.before(op);
            }
        }
    }

    #[cold]
    fn imply(&mut self, op: &Op, b: &Block) {
        let (addr, time) = (op.addr, op.time);
        self.totals.implied_frees += 1;
        self.totals.figures.lose(b.size());
        self.figures[b.group as usize].lose(b.size());
        if let Some(e) = &mut self.estimates {
            e.end(b);
        }
        if self.implied.len() >= IMPLIED {
            self.implied.clear();
        }
        self.implied.insert(addr, (time, b.lane));
        let end = End { time, lane: op.lane, node: 0, fate: Fate::Implied, temporary: false };
        self.watch.end(addr, b, end);
    }
}

impl<W: Watch> Sink for Replay<W> {
    fn begin(&mut self, capture: &Capture, early: u64) {
        if self.started {
            return;
        }
        self.early = Early::new(early);
        self.partial = !capture.is_everything();
        if capture.is_sampled() {
            self.estimates = Some(Box::new(Estimates::new(*capture)));
        }
    }

    fn take(&mut self, ops: &[Op]) {
        self.started = true;
        for op in ops.iter().take(AHEAD) {
            self.live.prefetch(op.addr);
        }
        for (i, op) in ops.iter().enumerate() {
            if let Some(later) = ops.get(i + AHEAD) {
                self.live.prefetch(later.addr);
            }
            self.apply(op);
        }
        if let Some(op) = ops.last() {
            self.totals.last_ticks = self.totals.last_ticks.max(op.time);
        }
    }
}
