//! Ownership of thread slots: the hook finds and claims them, the collector takes them from ended threads.
//!
//! The low bits of a slot's state word say whether a living thread owns the slot; the bits above are the low
//! bits of that thread's serial. No two owners have the same word, so that a compare-and-swap of a word seen
//! before succeeds only for the owner that it was seen with.

use crate::shared::{Shared, Slot, slot};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Maximum number of slots probed in each part of the table.
const PROBES: usize = 64;
/// Slots of the second part that are probed before those of the first.
const NEAR: usize = 4;

/// Returns the state word of a slot owned by the thread with this serial.
const fn live(serial: u32) -> u32 {
    serial << slot::BITS | slot::LIVE
}

/// Returns whether a state word says that a thread owns the slot.
#[inline(always)]
pub const fn is_live(word: u32) -> bool {
    word & slot::LIVE != 0
}

/// Returns whether the slot with a thread's thread pointer was taken by this thread, and not by an ended one
/// whose memory this thread got. Without a thread id, the thread pointer decides.
#[inline(always)]
pub fn is_of(s: &Slot, tid: impl FnOnce() -> Option<u32>) -> bool {
    if !is_live(s.state.load(Relaxed)) {
        return false;
    }
    match tid() {
        Some(tid) => tid == s.tid.load(Relaxed),
        None => true,
    }
}

/// Result of a search for a thread's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The thread owns this slot.
    Own(usize),
    /// The thread has just claimed this slot; [`name`] and [`publish`] have to follow.
    New(usize),
    /// A signal has interrupted the thread while it was claiming a slot.
    Busy,
    /// All slots that the thread may take are taken.
    None,
}

/// Probe sequence of a thread: slots of the first part of the table, and of the second if there is no room.
/// So threads use as few pages as they need, and most find their slot at the first probe.
#[derive(Clone, Copy, Debug)]
pub struct ProbeSequence {
    start: usize,
    mask: usize,
    more: usize,
}

impl ProbeSequence {
    /// Makes the sequence from a hash of the thread pointer and the number of slots in either part: powers of
    /// two; the second may be 0.
    #[inline(always)]
    pub fn new(hash: usize, first: usize, more: usize) -> Self {
        Self { start: hash, mask: first.wrapping_sub(1), more }
    }

    /// Returns the first probe, where nearly all threads have their slot.
    #[inline(always)]
    pub fn home(&self) -> usize {
        self.start & self.mask
    }

    /// Returns whether there is a second part.
    #[inline(always)]
    pub fn has_more(&self) -> bool {
        self.more != 0
    }

    /// Returns the probes in the second part, in order.
    fn further(self) -> impl Iterator<Item = usize> {
        let first = self.mask.wrapping_add(1);
        let at = move |i: usize| first + (self.start.wrapping_add(i) & (self.more - 1));
        (0..PROBES.min(self.more)).map(at)
    }

    /// Returns all probes, in the order in which slots are taken.
    fn all(self) -> impl Iterator<Item = usize> {
        let first = PROBES.min(self.mask.wrapping_add(1));
        let at = move |i: usize| self.start.wrapping_add(i) & self.mask;
        (0..first).map(at).chain(self.further())
    }
}

/// Looks for the slot of the thread with this thread pointer, or claims one.
pub fn claim(
    shared: &Shared,
    tp: u64,
    probes: ProbeSequence,
    tid: impl Fn() -> Option<u32>,
) -> Claim {
    // Once the first part is full, most threads have their slot near the front of the second. Slots that were
    // never taken are not read, as that would allocate pages.
    for index in probes.further().take(NEAR).take_while(|i| shared.is_noted(*i)) {
        let Some(s) = shared.slot(index) else { return Claim::None };
        if s.tp.load(Acquire) == tp && is_of(s, &tid) {
            return Claim::Own(index);
        }
    }
    // An entry with our thread pointer may be ours or our predecessor's.
    for index in probes.all() {
        // It was never taken, so that no thread has looked further.
        if index > probes.mask && !shared.is_noted(index) {
            break;
        }
        let Some(s) = shared.slot(index) else { return Claim::None };
        // The state is read before the thread pointer, which then belongs to its owner or to a later one.
        let word = s.state.load(Acquire);
        let key = s.tp.load(Acquire);
        if key == 0 {
            break;
        }
        if key != tp {
            continue;
        }
        if is_of(s, &tid) {
            return Claim::Own(index);
        }
        // A signal has interrupted this thread's claim: a second slot would split the thread in two.
        if word == slot::FREE {
            return Claim::Busy;
        }
        // This fails if the slot was taken since: a thread without a slot may want it, too.
        if s.state.compare_exchange(word, slot::FREE, AcqRel, Relaxed).is_ok() {
            return Claim::New(index);
        }
    }
    for index in probes.all() {
        let Some(s) = shared.slot(index) else { return Claim::None };
        if s.tp.load(Relaxed) == 0 {
            // The note comes first, so that whoever sees an event of the owner also sees the note.
            shared.note_slot(index);
            if s.tp.compare_exchange(0, tp, AcqRel, Relaxed).is_ok() {
                return Claim::New(index);
            }
        }
        // A signal handler may have claimed a slot for this thread meanwhile.
        if s.tp.load(Acquire) == tp && is_of(s, &tid) {
            return Claim::Own(index);
        }
        let word = s.state.load(Relaxed);
        if word & slot::DEAD != 0
            && s.state.compare_exchange(word, slot::FREE, AcqRel, Relaxed).is_ok()
        {
            return Claim::New(index);
        }
    }
    Claim::None
}

/// Returns the slot of the thread with this thread pointer, or the one that it is just claiming; claims none.
pub fn find(
    shared: &Shared,
    tp: u64,
    probes: ProbeSequence,
    tid: impl Fn() -> Option<u32>,
) -> Option<usize> {
    let mut taking = None;
    for index in probes.all() {
        if index > probes.mask && !shared.is_noted(index) {
            break;
        }
        let s = shared.slot(index)?;
        let key = s.tp.load(Acquire);
        if key == tp && is_of(s, &tid) {
            return Some(index);
        }
        if key == tp && s.state.load(Relaxed) == slot::FREE {
            taking = Some(index);
        }
    }
    taking
}

/// Writes the identity of the owner into a claimed slot.
pub fn name(s: &Slot, tp: u64, tid: u32, serial: u32) {
    // These are release stores after the state: a reader that sees one of them sees the changed state.
    s.tp.store(tp, Release);
    s.tid.store(tid, Release);
    s.serial.store(serial, Release);
}

/// Publishes a claimed slot as owned by its thread.
pub fn publish(s: &Slot) {
    s.state.store(live(s.serial.load(Relaxed)), Release);
}

/// Owner of a slot at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    word: u32,
    /// Thread id.
    pub tid: u32,
    /// Serial of the thread.
    pub serial: u32,
}

/// Returns the owner of a slot; `None` if it has none, or if the owner is just changing.
pub fn owner(s: &Slot) -> Option<Owner> {
    let word = s.state.load(Acquire);
    let (tid, serial) = (s.tid.load(Acquire), s.serial.load(Acquire));
    (is_live(word) && s.state.load(Relaxed) == word).then_some(Owner { word, tid, serial })
}

/// Marks the slot of an ended thread as dead, so that others can take it. Returns false if it has another
/// owner by now. Only the collector may call this.
pub fn mark_dead(s: &Slot, owner: Owner) -> bool {
    let dead = owner.word & !slot::LIVE | slot::DEAD;
    s.state.compare_exchange(owner.word, dead, AcqRel, Relaxed).is_ok()
}
