//! Replays operations.

use super::alive::Alive;
use super::course::{Counts, Course};
use super::early::Early;
use super::estimate::{Errors, Estimates};
use super::live::{Block, Live};
use super::stats::BlockStats;
use super::watch::{End, Fate, Watch};
use crate::load::{IdMap, Op, OpKind, Sink};
use prof_trace::capture::Capture;
use prof_trace::records::Folded;
use prof_trace::ticks::Ticks;
use std::collections::HashMap;

mod folded;
mod found;

/// The figures of a whole recording. `live_count = allocations + found - frees + unknown_frees - implied_frees` always
/// holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The figures that groups have, too.
    pub figures: BlockStats,
    /// Number of frees, of known blocks or not. Reallocations are not included.
    pub frees: u64,
    /// Number of frees and reallocations of blocks that were not known to be live: from before the attach, or from a
    /// time in which recording was off.
    pub unknown_frees: u64,
    /// Number of blocks whose free was not recorded, as it happened while recording was off, or was lost. They end when
    /// another block begins at their address.
    pub implied_frees: u64,
    /// Ticks when `peak_bytes` was reached.
    pub peak_ticks: Ticks,
    /// Ticks of the last event.
    pub last_ticks: Ticks,
    /// Number of events with address 0, which are otherwise ignored.
    pub nonsense: u64,
    /// Standard errors, if the figures are estimates; else 0.
    pub errors: Errors,
}

impl Totals {
    /// Adds what the totals of other blocks count besides the figures. The last event is the later one.
    pub(crate) fn join_counts(&mut self, other: &Self) {
        for (sum, n) in [
            (&mut self.frees, other.frees),
            (&mut self.unknown_frees, other.unknown_frees),
            (&mut self.implied_frees, other.implied_frees),
            (&mut self.nonsense, other.nonsense),
        ] {
            *sum = sum.saturating_add(n);
        }
        self.last_ticks = self.last_ticks.max(other.last_ticks);
    }
}

/// The figures of one stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Stack node, see [`Meta::stack`](crate::load::Meta::stack); 0: no stack is known.
    pub node: u32,
    /// Counts and bytes of its blocks.
    pub figures: BlockStats,
    /// Ticks when its oldest live block was allocated.
    pub oldest: Option<Ticks>,
    /// Standard errors, if the figures are estimates; else 0.
    pub errors: Errors,
    /// Ticks when its first block was allocated.
    pub first: Ticks,
    /// Ticks when its last block was allocated.
    pub last: Ticks,
    /// Ticks when its peak of live bytes was first reached.
    pub peak_ticks: Ticks,
}

/// The times of a group.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    first: Ticks,
    last: Ticks,
    peak: Ticks,
}

/// Replays operations: keeps the live blocks, and computes figures.
#[derive(Default)]
pub struct Replay<W: Watch = ()> {
    /// The observer of single blocks.
    pub(crate) watch: W,
    live: Live<Block>,
    totals: Totals,
    figures: Vec<BlockStats>,
    times: Vec<Times>,
    nodes: Vec<u32>,
    by_node: IdMap<u32>,
    /// For each thread index the block that the thread has just allocated, if that was its last event; else 0.
    newest: Vec<u64>,
    /// Addresses of the latest implied frees, with their time and the thread index of the ended block.
    implied: HashMap<u64, (Ticks, u32)>,
    /// Corrects events whose times are too early.
    early: Early,
    /// An operation was applied.
    started: bool,
    /// Some blocks are not recorded.
    partial: bool,
    /// The estimates, if the recording is sampled.
    estimates: Option<Box<Estimates>>,
    course: Course,
    /// Number of recorded frees of known blocks.
    freed: u64,
    places: found::Places,
}

/// An address that no block has: events of it stand for others that were left out of a recording.
pub(crate) const NOWHERE: u64 = 1;
/// Greatest number of implied frees that are remembered.
const IMPLIED: usize = 1 << 16;

/// Number of operations in advance that their blocks' slots are prefetched: about the latency of memory.
const AHEAD: usize = 24;

impl<W: Watch> Replay<W> {
    /// Creates an empty replay, observed by `watch`.
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
            course: Course::default(),
            freed: 0,
            places: found::Places::default(),
        }
    }

    /// Returns the live blocks, in runs sorted by time, and the observer.
    pub(crate) fn into_live(self) -> (impl Iterator<Item = (u64, Block)>, W) {
        (self.live.drain(), self.watch)
    }

    /// Returns the live blocks, in runs sorted by time.
    pub(crate) fn live_by_time(&self) -> impl Iterator<Item = (u64, Block)> {
        self.live.by_time()
    }

    /// Returns the totals so far.
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

    /// Returns the number of live blocks.
    pub fn live_len(&self) -> usize {
        self.live.len()
    }

    /// Returns the live block at an address, and the node of its stack.
    pub(crate) fn block_at(&self, addr: u64) -> Option<(Block, u32)> {
        let block = self.live.get(addr)?;
        Some((block, self.nodes.get(block.group as usize).copied().unwrap_or_default()))
    }

    /// Returns the live blocks, in no particular order.
    pub fn live(&self) -> impl Iterator<Item = (u64, Block)> {
        self.live.iter()
    }

    /// Returns the observer of single blocks.
    pub fn watch(&self) -> &W {
        &self.watch
    }

    /// Returns the observer of single blocks, to be told something.
    pub fn watch_mut(&mut self) -> &mut W {
        &mut self.watch
    }

    /// Returns the observer and the live blocks.
    pub(crate) fn watch_and_alive(&mut self) -> (&mut W, Alive<'_>) {
        (&mut self.watch, Alive::new(&self.live, &self.nodes))
    }

    /// Returns the stack nodes of the groups, in their order.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// Returns the groups, in the order in which their stacks first appeared.
    pub fn groups(&self) -> Vec<Group> {
        let mut groups = self.ageless_groups();
        for (_, b) in self.live() {
            let oldest = &mut groups[b.group as usize].oldest;
            *oldest = Some(oldest.map_or(b.time, |t| t.min(b.time)));
        }
        groups
    }

    /// Returns the groups without the ages of their blocks, for which a pass over all live blocks is needed.
    pub fn ageless_groups(&self) -> Vec<Group> {
        let most = self.totals.figures;
        let group = |((&node, &figures), t): ((&u32, &BlockStats), &Times)| {
            let (first, last, peak_ticks) = (t.first, t.last, t.peak);
            // Upper bounds of peaks, as joined recordings have them, are no higher than the peak of all.
            let figures = figures.within(&most);
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
        groups
    }

    /// Returns a group without the age of its oldest block, of a recording that is no sample; `None` if there is none.
    pub(crate) fn ageless_group(&self, group: u32) -> Option<Group> {
        let at = group as usize;
        let (mut figures, t) = (*self.figures.get(at)?, self.times.get(at)?);
        if self.partial {
            figures.temporary = 0;
        }
        let (first, last, peak_ticks) = (t.first, t.last, t.peak);
        Some(Group { node: self.nodes[at], figures, first, last, peak_ticks, ..Group::default() })
    }

    /// Returns the number of frees of known blocks, least and most live bytes, and least and most live blocks since the
    /// last call.
    pub(crate) fn take_course(&mut self) -> [u64; 5] {
        let (bytes, blocks) = self.course.restart(self.now());
        [self.freed, bytes.min, bytes.max, blocks.min, blocks.max]
    }

    /// Returns the figures of all blocks over time, up to the last operation.
    pub fn course(&self) -> Course {
        let mut course = self.course.clone();
        let live = self.live().map(|(_, b)| {
            let weight = self.estimates.as_ref().map_or(1.0, |e| e.weight(&b));
            (b.time, b.size() as f64 * weight, weight)
        });
        course.finish(self.counts(), self.now(), live);
        course
    }

    /// Returns the counts of the course up to now.
    fn counts(&self) -> Counts {
        if let Some(e) = &self.estimates {
            return e.counts();
        }
        let f = &self.totals.figures;
        Counts {
            allocations: f.allocations,
            reallocations: f.reallocations,
            frees: self.freed,
            ends: f.begun().wrapping_sub(f.live_count),
            allocated_bytes: f.allocated_bytes,
            freed_bytes: f.begun_bytes().wrapping_sub(f.live_bytes),
            temporary: if self.partial { 0 } else { f.temporary },
            ..Counts::default()
        }
    }

    /// Returns live bytes and blocks.
    #[inline(always)]
    fn now(&self) -> (u64, u64) {
        match &self.estimates {
            None => (self.totals.figures.live_bytes, self.totals.figures.live_count),
            Some(e) => e.live(),
        }
    }

    /// Notes in the course that there is more live.
    #[inline(always)]
    fn rise(&mut self) {
        if W::HAS_COURSE {
            let (bytes, blocks) = self.now();
            self.course.rise(bytes, blocks);
        }
    }

    /// Notes in the course that there is less live.
    #[inline(always)]
    fn fall(&mut self) {
        if W::HAS_COURSE {
            let (bytes, blocks) = self.now();
            self.course.fall(bytes, blocks);
        }
    }

    #[inline(always)]
    fn group(&mut self, node: u32, time: Ticks) -> u32 {
        match self.by_node.get(node) {
            Some(g) => g,
            None => self.new_group(node, time),
        }
    }

    #[cold]
    fn new_group(&mut self, node: u32, time: Ticks) -> u32 {
        let g = self.nodes.len() as u32;
        self.nodes.push(node);
        self.figures.push(BlockStats::default());
        self.times.push(Times { first: time, last: time, peak: time });
        self.by_node.set(node, g);
        g
    }

    /// Forgets which block a thread had allocated last: the index is another thread's from now on.
    pub(crate) fn forget_thread(&mut self, thread_index: u32) {
        *self.newest(thread_index) = 0;
    }

    #[inline(always)]
    fn newest(&mut self, thread_index: u32) -> &mut u64 {
        let at = thread_index as usize;
        if at >= self.newest.len() {
            self.newest.resize(at + 1, 0);
        }
        &mut self.newest[at]
    }

    /// Applies an operation. The address is 0 only in invalid events: a `realloc` of NULL is recorded as an allocation,
    /// and one that frees as a free.
    #[inline(always)]
    fn apply(&mut self, op: &Op) {
        if W::HAS_COURSE && self.course.is_over(op.time) {
            self.course.advance(op.time, self.counts(), self.now());
        }
        match op.kind {
            OpKind::Alloc | OpKind::ReallocNew if op.addr == 0 => self.totals.nonsense += 1,
            OpKind::Alloc => self.begin(op, false),
            OpKind::ReallocNew => self.begin(op, true),
            OpKind::Free | OpKind::ReallocOld if op.addr <= NOWHERE => self.end_nothing(op),
            OpKind::Free => {
                self.totals.frees += 1;
                self.end(op);
            }
            OpKind::ReallocOld => self.end(op),
            OpKind::Found => self.find(op),
        }
    }

    #[inline(always)]
    fn begin(&mut self, op: &Op, again: bool) {
        let group = self.group(op.node, op.time);
        let block = Block::new(op, group, self.watch.notes(op));
        if let Some(b) = self.live.insert(op.addr, block) {
            self.imply(op, b);
        }
        if block.is_noted() {
            self.watch.begin(op);
        }
        self.watch.starts(group, op);
        let f = &mut self.figures[group as usize];
        f.allocations += !again as u64;
        f.reallocations += again as u64;
        let higher = f.gain(op.size);
        let t = &mut self.times[group as usize];
        // Operations that were read behind damage may be older.
        t.first = t.first.min(op.time);
        t.last = t.last.max(op.time);
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
        self.rise();
        *self.newest(op.thread_index) = op.addr;
        if let Some(free) = self.early.of(op) {
            self.end_at_once(op, free);
        }
    }

    #[inline(always)]
    fn end(&mut self, op: &Op) {
        let newest = std::mem::take(self.newest(op.thread_index));
        let Some(b) = self.live.remove(op.addr) else {
            return self.end_inside(op);
        };
        if b.thread_index != op.thread_index && self.is_of_another(op, &b) {
            self.live.insert(op.addr, b);
            return;
        }
        let freed = op.kind == OpKind::Free;
        let temporary = (freed && newest == op.addr && b.thread_index == op.thread_index) as u64;
        self.totals.figures.lose(b.size());
        self.totals.figures.temporary += temporary;
        let f = &mut self.figures[b.group as usize];
        f.lose(b.size());
        f.temporary += temporary;
        if let Some(e) = &mut self.estimates {
            e.end(&b);
        }
        self.freed += u64::from(freed);
        self.fall();
        let fate = match op.kind {
            OpKind::ReallocOld => Fate::Reallocated,
            _ => Fate::Freed,
        };
        let time = op.time.max(b.time);
        let end = End {
            time,
            thread_index: op.thread_index,
            node: op.node,
            fate,
            temporary: temporary != 0,
        };
        self.watch.end(op.addr, &b, end);
    }
}

impl<W: Watch> Replay<W> {
    /// Handles a free that seems to be of `b`, another thread's block. If it is really of a block that had the address
    /// before `b`, the function counts it as such and returns true.
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

    /// Checks whether the time of `b` was too early: then its address seemed to be in use, and the block before it, of
    /// another thread, was taken for ended. In that case this is the free of that block.
    #[cold]
    fn was_implied(&mut self, op: &Op, b: &Block) -> bool {
        let Some(&(time, thread_index)) = self.implied.get(&op.addr) else { return false };
        let before = op.kind == OpKind::Free && time == b.time && thread_index != b.thread_index;
        if before {
            *self.newest(op.thread_index) = 0;
            self.implied.remove(&op.addr);
            self.totals.implied_frees -= 1;
        }
        before
    }

    /// Ends a block as soon as `op` has begun it, by a free whose time was too early.
    #[cold]
    fn end_at_once(&mut self, op: &Op, free: Op) {
        self.totals.unknown_frees -= 1;
        let newest = *self.newest(free.thread_index);
        self.end(&Op { time: op.time, ..free });
        *self.newest(free.thread_index) = newest;
    }

    /// Handles the end of a block that is not live. Either the block is from before the attach. Or a `realloc`, whose
    /// event is written after it has freed the block, was recorded after the address had been allocated again; then the
    /// block's end was already counted as an implied free.
    #[cold]
    fn not_live(&mut self, op: &Op) {
        self.watch.unknown(op);
        match self.implied.get(&op.addr) {
            Some((time, _)) if op.time < *time => {
                self.implied.remove(&op.addr);
                self.totals.implied_frees -= 1;
            }
            // The old block may not be in the sample.
            _ if self.partial && op.kind == OpKind::ReallocOld => {}
            _ => {
                self.totals.unknown_frees += 1;
                self.early.push(op);
                self.watch.before(op);
            }
        }
    }

    #[cold]
    fn imply(&mut self, op: &Op, b: Block) {
        let (addr, time) = (op.addr, op.time);
        self.totals.implied_frees += 1;
        self.totals.figures.lose(b.size());
        self.figures[b.group as usize].lose(b.size());
        if let Some(e) = &mut self.estimates {
            e.end(&b);
        }
        self.fall();
        if self.implied.len() >= IMPLIED {
            self.implied.clear();
        }
        self.implied.insert(addr, (time, b.thread_index));
        let end = End {
            time,
            thread_index: op.thread_index,
            node: 0,
            fate: Fate::Implied,
            temporary: false,
        };
        self.watch.end(addr, &b, end);
    }
}

impl<W: Watch> Sink for Replay<W> {
    fn fold(&mut self, folded: &Folded) {
        self.seed(folded);
    }

    fn begin(&mut self, capture: &Capture, early: u64) {
        if self.started {
            return;
        }
        self.early = Early::new(early);
        self.partial = !capture.is_everything();
        self.watch.start(capture);
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
