//! The events of which it is not decided whether they are written.
//!
//! A live block needs no entry here: the replay's table has all that is written of it. A block that ends too soon is
//! counted, and no more. What stays is found by a look through the table, now and then. So only ends, blocks that ended
//! and stay, and the blocks of chains of reallocations are held here.

use super::Gate;
use crate::heap::{Alive, Block, End, Fate, Live, NOWHERE, Value, Watch};
use crate::load::{Op, OpKind};
use prof_trace::ticks::Ticks;
use std::collections::HashMap;

/// Number of bytes for what is held that each place of the table of live blocks brings along: an eighth of its own.
const A_PLACE: u64 = 4;
/// A table of a few blocks has so many places, which are looked through in no time.
const FEW_PLACES: u64 = 2048;

/// Number of blocks in advance that their places in the table are fetched.
const AHEAD: usize = 24;

/// No entry.
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

impl What {
    pub(super) fn begins(self) -> bool {
        matches!(self, Self::Alloc | Self::Realloc)
    }
}

/// An event that is written, unless its chain turns out to be short-lived.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    /// Place of the event in what is written: its time, or that up to which all was written before, if that is later.
    pub order: Ticks,
    /// Number of the event among those of one place.
    number: u64,
    pub time: Ticks,
    pub addr: u64,
    pub size: u64,
    /// For [`What::Realloc`]: the block that was passed to `realloc`, and when.
    pub old: (u64, Ticks),
    /// The group of a block that begins; the stack node of an end.
    pub stack: u32,
    pub thread_index: u32,
    pub header: u16,
    pub rate: u8,
    pub what: What,
    pub temporary: bool,
}

impl Held {
    /// Creates the event of a block's begin.
    fn begin(addr: u64, b: &Block, again: Option<&Again>) -> Self {
        let (size, header) = b.sized().decode();
        let held = Self {
            order: b.time,
            time: b.time,
            addr,
            size,
            stack: b.group,
            thread_index: b.thread_index,
            header: header.unwrap_or_default().code(),
            rate: b.rate(),
            ..Self::default()
        };
        again.map_or(held, |a| held.again(a.old))
    }

    /// Makes it the event of a block that `realloc` returned.
    fn again(self, old: (u64, Ticks)) -> Self {
        Self { what: What::Realloc, old, ..self }
    }
}

/// Data of a live block that `realloc` returned and that is not written yet, besides those in the replay's table.
#[derive(Clone, Copy, Debug, Default)]
struct Again {
    time: Ticks,
    /// The block that was passed to `realloc`, and when.
    old: (u64, Ticks),
    /// That block's place among those that were passed on, or [`NONE`].
    before: u32,
    chain: Chain,
}

impl Value for Again {
    type Align = ();
}

/// A block that was passed to `realloc`, in a chain that may yet turn out to be short-lived.
#[derive(Clone, Copy, Debug)]
struct PassedOn {
    begin: Held,
    /// Place of the block before it in the chain, or [`NONE`].
    before: u32,
    /// The chain up to this block.
    chain: Chain,
}

/// Begin of the first block of a chain of reallocations, and the least time at which a block of it begins; both 0 where
/// it is decided that the chain stays.
#[derive(Clone, Copy, Debug, Default)]
struct Chain {
    start: Ticks,
    least: Ticks,
}

impl Chain {
    fn from(time: Ticks) -> Self {
        Self { start: time, least: time }
    }

    /// Returns whether nothing of it is written, where everything from before `line` is.
    fn is_open(self, line: Ticks) -> bool {
        self.least >= line
    }
}

/// The block that a thread has passed to `realloc`.
#[derive(Clone, Copy, Debug, Default)]
struct OldBlock {
    /// Address of the block, and the time at which it was passed; address 0: both are unknown.
    addr: u64,
    time: Ticks,
    /// Place of the block among those that were passed on, while the chain may still turn out to be short-lived.
    at: Option<u32>,
    chain: Chain,
}

/// The blocks of which it is not decided whether they are written, and what is written behind them.
pub(super) struct Undecided {
    pub threshold: u64,
    /// Bytes of memory that may be taken by what is held, and as many by a list of what is written next; see
    /// [`Self::most`].
    most: u64,
    /// Everything from before this time is written; chains that began before it stay.
    line: Ticks,
    /// Events that are written when the line has passed them.
    staying: Vec<Held>,
    /// The live blocks that `realloc` returned and that are not written, by address.
    again: Live<Again>,
    passed_on: Vec<Option<PassedOn>>,
    /// Free places in `passed_on`.
    free: Vec<u32>,
    /// Number of events that were ever held.
    numbers: u64,
    /// By thread index.
    old_blocks: Vec<OldBlock>,
    /// Number and bytes of the blocks that were left out.
    pub culled: (u64, u64),
    /// Time of the last operation.
    now: Ticks,
    /// Number of blocks that were written before it was known how long they live.
    pub early: u64,
    /// Number of looks through the live blocks.
    #[cfg(test)]
    pub looks: u64,
}

impl Undecided {
    /// Creates it without any, with a limit of `most` bytes. Blocks that live shorter than `threshold` ticks are left out.
    pub(super) fn new(threshold: u64, most: u64) -> Self {
        Self {
            threshold,
            most,
            line: Ticks(1),
            staying: Vec::new(),
            again: Live::default(),
            passed_on: Vec::new(),
            free: Vec::new(),
            numbers: 0,
            old_blocks: Vec::new(),
            culled: (0, 0),
            now: Ticks::ZERO,
            early: 0,
            #[cfg(test)]
            looks: 0,
        }
    }

    /// Returns the bytes that may be taken by what is held. Each time when they are full, all live blocks are looked
    /// through; with many of these, more is held, so that a look is paid for by many events.
    fn most(&self, alive: &Alive<'_>) -> u64 {
        self.most.max((alive.places() as u64).saturating_sub(FEW_PLACES) * A_PLACE)
    }

    /// Returns the time before which everything is written.
    pub(super) fn line(&self) -> Ticks {
        self.line
    }

    fn old_of(&mut self, thread_index: u32) -> &mut OldBlock {
        let at = thread_index as usize;
        if at >= self.old_blocks.len() {
            self.old_blocks.resize(at + 1, OldBlock::default());
        }
        &mut self.old_blocks[at]
    }

    /// Returns an event with its number.
    fn numbered(&mut self, held: Held) -> Held {
        self.numbers += 1;
        Held { number: self.numbers, order: held.time.max(self.line), ..held }
    }

    /// Adds an event that is written.
    fn stay(&mut self, held: Held) {
        let held = self.numbered(held);
        self.staying.push(held);
    }

    /// Adds a block that was passed to `realloc`. Returns its place.
    fn pass_on(&mut self, begin: Held, before: u32, chain: Chain) -> u32 {
        let begin = self.numbered(begin);
        let at = self.free.pop().unwrap_or_else(|| {
            self.passed_on.push(None);
            (self.passed_on.len() - 1) as u32
        });
        self.passed_on[at as usize] = Some(PassedOn { begin, before, chain });
        at
    }

    /// Removes and returns the block at a place, if there is one.
    fn take_passed_on(&mut self, at: u32) -> Option<PassedOn> {
        let block = self.passed_on.get_mut(at as usize)?.take()?;
        self.free.push(at);
        Some(block)
    }

    /// Removes and returns what a block has that ends, if `realloc` returned it and it is not written.
    #[inline(always)]
    fn take_again(&mut self, addr: u64, b: &Block) -> Option<Again> {
        let has_it = b.is_noted() && b.time >= self.line;
        if has_it { self.again.remove(addr) } else { None }
    }

    /// Returns the chain of a block that ends, if it may yet turn out to be short-lived.
    #[inline(always)]
    fn open_chain(&self, b: &Block, again: Option<&Again>) -> Option<Chain> {
        let chain = again.map_or(Chain::from(b.time), |a| a.chain);
        (b.time >= self.line && chain.is_open(self.line)).then_some(chain)
    }

    /// Leaves out a block and the blocks before it in its chain.
    #[inline(always)]
    fn cull(&mut self, b: &Block, again: Option<&Again>) {
        self.culled.0 += 1;
        self.culled.1 = self.culled.1.saturating_add(b.size());
        if let Some(a) = again {
            self.cull_before(a.before);
        }
    }

    /// Leaves out a block that was passed on, and the blocks before it in its chain.
    fn cull_before(&mut self, mut at: u32) {
        while let Some(block) = self.take_passed_on(at) {
            self.culled.0 += 1;
            self.culled.1 = self.culled.1.saturating_add(block.begin.size);
            at = block.before;
        }
    }

    /// Notes that a block was passed to `realloc`.
    fn pass_to_realloc(&mut self, addr: u64, b: &Block, again: Option<&Again>, end: End) {
        let open = self.open_chain(b, again);
        let at = match open {
            Some(chain) => {
                let before = again.map_or(NONE, |a| a.before);
                Some(self.pass_on(Held::begin(addr, b, again), before, chain))
            }
            None => {
                self.keep_begin(addr, b, again);
                None
            }
        };
        let chain = open.unwrap_or_default();
        *self.old_of(end.thread_index) = OldBlock { addr, time: end.time, at, chain };
    }

    /// Holds back the begin of a block that ends and stays, if it is not written yet.
    fn keep_begin(&mut self, addr: u64, b: &Block, again: Option<&Again>) {
        if b.time >= self.line {
            self.stay(Held::begin(addr, b, again));
        }
    }

    /// Holds back the begin, if it is not written yet, and the end of a block that stays.
    #[cold]
    fn keep(&mut self, addr: u64, b: &Block, again: Option<&Again>, end: End) {
        self.keep_begin(addr, b, again);
        let what = if end.fate == Fate::Freed { What::Free } else { What::Implied };
        let End { time, thread_index, node: stack, temporary, .. } = end;
        let held = Held { time, addr, stack, thread_index, what, temporary, ..Held::default() };
        self.stay(held);
    }

    /// Returns what a block has that the thread's `realloc` returns.
    fn continued(&mut self, op: &Op) -> Again {
        let (OldBlock { addr, time: end, at, chain }, time) =
            (std::mem::take(self.old_of(op.thread_index)), op.time);
        let (old, before, chain) = match at.filter(|_| chain.is_open(self.line)) {
            Some(at) => ((addr, end), at, Chain { least: chain.least.min(time), ..chain }),
            None if addr == 0 => ((NOWHERE, time), NONE, Chain::from(time)),
            None => ((addr, end), NONE, Chain::default()),
        };
        Again { time, old, before, chain }
    }

    /// Holds back the begin of a block at a time before which everything is written.
    #[cold]
    fn begin_late(&mut self, group: u32, op: &Op) {
        let Op { time, addr, size, thread_index, header, rate, .. } = *op;
        let stack = group;
        let held = Held { time, addr, size, stack, thread_index, header, rate, ..Held::default() };
        let held = match op.kind {
            OpKind::ReallocNew => held.again(self.continued(op).old),
            _ => held,
        };
        // A later end could have left it out.
        self.early += 1;
        self.stay(held);
    }
}

/// The looks through the live blocks, and the writing of those that stay.
impl Undecided {
    /// Passes on everything from before `line`. Returns the number of the blocks among it that a later end could have left
    /// out.
    pub(super) fn release(&mut self, line: Ticks, alive: &Alive<'_>, gate: &mut Gate<'_>) -> u64 {
        let mut undecided = 0;
        while self.line < line {
            undecided += self.release_part(line, alive, gate);
        }
        if line == Ticks::MAX {
            gate.write();
        }
        undecided
    }

    /// Passes on the oldest part of what is from before `line`, so much as one list has. Returns the same number.
    pub(super) fn release_part(
        &mut self,
        line: Ticks,
        alive: &Alive<'_>,
        gate: &mut Gate<'_>,
    ) -> u64 {
        let (until, due) = self.due(line, alive);
        let undecided = self.write(until, &due, alive, gate);
        gate.passes(until);
        undecided
    }

    /// Returns the live blocks that are not written yet and began before `line`, by time, with their addresses. If there
    /// are too many, these are only those from before the time that is returned with them.
    fn due(&mut self, line: Ticks, alive: &Alive<'_>) -> (Ticks, Vec<(Ticks, u64)>) {
        #[cfg(test)]
        {
            self.looks += 1;
        }
        let (mut until, mut due) = (line, Vec::new());
        let most = self.most(alive) / size_of::<(Ticks, u64)>() as u64;
        let most = usize::try_from(most).unwrap_or(usize::MAX).max(2);
        // All of one moment are written together.
        let least = self.line.saturating_add(1);
        for (addr, time) in alive.times() {
            if time < self.line || time >= until {
                continue;
            }
            due.push((time, addr));
            if due.len() > most && until > least {
                let middle = due.len() / 2;
                until = due.select_nth_unstable(middle).1.0.max(least);
                due.retain(|(time, _)| *time < until);
            }
        }
        due.sort_unstable();
        (until, due)
    }

    /// Passes on what is held from before `until`, and the live blocks that are due, which are all others. Returns the
    /// number of the blocks that a later end could have left out.
    fn write(
        &mut self,
        until: Ticks,
        due: &[(Ticks, u64)],
        alive: &Alive<'_>,
        gate: &mut Gate<'_>,
    ) -> u64 {
        let mut held: Vec<Held> = self.staying.extract_if(.., |h| h.order < until).collect();
        let (line, now, threshold) = (self.line, self.now, self.threshold);
        let is_young = |chain: Chain| chain.is_open(line) && now.since(chain.start) < threshold;
        let (mut at, mut undecided) = (0, 0);
        for b in self.passed_on.iter().flatten().filter(|b| b.begin.order < until) {
            held.push(b.begin);
            undecided += u64::from(is_young(b.chain));
        }
        held.sort_unstable_by_key(|h| (h.order, h.number));
        for (i, &(time, addr)) in due.iter().enumerate() {
            if let Some((_, later)) = due.get(i + AHEAD) {
                alive.prefetch(*later);
            }
            // At one time, what has ended comes first: a live block may stand where another one did.
            let n = held[at..].partition_point(|h| h.order <= time);
            add(&held[at..at + n], alive, gate);
            at += n;
            if let Some(b) = alive.get(addr) {
                let again = if b.is_noted() { self.again.remove(addr) } else { None };
                gate.add(&Held::begin(addr, &b, again.as_ref()), alive);
                undecided += u64::from(is_young(again.map_or(Chain::from(time), |a| a.chain)));
            }
        }
        add(&held[at..], alive, gate);
        self.staying.shrink_to(2 * self.staying.len());
        self.line = until;
        for at in 0..self.passed_on.len() as u32 {
            if self.passed_on[at as usize].is_some_and(|b| b.begin.order < until) {
                self.take_passed_on(at);
            }
        }
        undecided
    }

    /// Returns the bytes that the events take.
    fn bytes(&self) -> u64 {
        let passed_on = self.passed_on.len() - self.free.len();
        let one = size_of::<Option<PassedOn>>() + size_of::<u32>();
        let again = self.again.len() * (size_of::<u64>() + size_of::<Again>());
        (self.staying.len() * size_of::<Held>() + passed_on * one + again) as u64
    }

    /// Passes on the oldest events, also if it is not known how long their blocks live, until they take no more memory than
    /// they may; `now` is the time of the last operation.
    pub(super) fn shorten(&mut self, now: Ticks, alive: &Alive<'_>, gate: &mut Gate<'_>) {
        self.now = now;
        while self.bytes() > self.most(alive) {
            let passed_on = self.passed_on.iter().flatten().map(|b| b.begin.order);
            let again = self.again.iter().map(|(_, a)| a.time);
            let staying = self.staying.iter().map(|h| h.order);
            let mut orders: Vec<Ticks> = staying.chain(passed_on).chain(again).collect();
            let middle = orders.len() / 2;
            // All of one moment: what is at one address belongs together.
            let line = orders.select_nth_unstable(middle).1.saturating_add(1);
            self.early += self.release(line, alive, gate);
        }
    }
}

/// Passes on a part of what was held, which has all of the events of each place.
fn add(held: &[Held], alive: &Alive<'_>, gate: &mut Gate<'_>) {
    for run in held.chunk_by(|a, b| a.order == b.order) {
        let mut begins = HashMap::new();
        if run.iter().any(|h| h.what == What::Implied) {
            let of = |(at, h): (usize, &Held)| ((h.time, h.addr), at);
            begins.extend(run.iter().enumerate().filter(|(_, h)| h.what.begins()).map(of));
        }
        for (at, h) in run.iter().enumerate() {
            let is_implied = h.what == What::Implied
                && (begins.get(&(h.time, h.addr)).is_some_and(|last| *last > at)
                    || alive.get(h.addr).is_some_and(|b| b.time == h.time));
            if !is_implied {
                gate.add(h, alive);
            }
        }
    }
}

impl Watch for Undecided {
    /// The figures that are written have no course.
    const HAS_COURSE: bool = false;

    #[inline(always)]
    fn notes(&self, op: &Op) -> bool {
        op.kind == OpKind::ReallocNew && op.time >= self.line
    }

    fn begin(&mut self, op: &Op) {
        let again = self.continued(op);
        self.again.insert(op.addr, again);
    }

    #[inline(always)]
    fn starts(&mut self, group: u32, op: &Op) {
        if op.time < self.line {
            self.begin_late(group, op);
        }
    }

    /// The collector has written these by now: they are no events.
    fn found(&mut self, _: u32, _: &Op) {}

    #[inline(always)]
    fn end(&mut self, addr: u64, b: &Block, end: End) {
        let again = self.take_again(addr, b);
        let (again, chain) = (again.as_ref(), self.open_chain(b, again.as_ref()));
        match end.fate {
            Fate::Reallocated => self.pass_to_realloc(addr, b, again, end),
            _ if chain.is_some_and(|c| end.time.since(c.start) < self.threshold) => {
                self.cull(b, again);
            }
            _ => self.keep(addr, b, again, end),
        }
    }

    fn unknown(&mut self, op: &Op) {
        if op.kind == OpKind::ReallocOld {
            *self.old_of(op.thread_index) = OldBlock::default();
        }
    }

    fn before(&mut self, _: &Op) {}
}
