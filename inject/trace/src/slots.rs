//! Whose thread slots are: finding and taking them in the hook, and taking them from the dead in
//! the collector.
//!
//! A slot's state word says in its low bits whether a living thread owns it, and above them holds
//! the low bits of that thread's serial. No two takings have the same word, so that a
//! compare-and-swap of a word that was seen before speaks of the owner that it was seen with, and
//! of no later one.

use crate::shared::{Shared, Slot, slot};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Slots of each part that are looked at before giving up.
const PROBES: usize = 64;
/// Slots of the second part that are looked at before those of the first.
const NEAR: usize = 4;

/// The state word of a slot that the thread with this serial owns.
const fn live(serial: u32) -> u32 {
    serial << slot::BITS | slot::LIVE
}

/// Whether a slot's state word says that a thread owns it.
#[inline(always)]
pub const fn is_live(word: u32) -> bool {
    word & slot::LIVE != 0
}

/// Whether the slot with a thread's thread pointer was taken by this thread, and not by one that has
/// ended and whose memory it got. Without a thread id, the thread pointer decides.
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

/// What looking for a slot came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The thread has this one.
    Own(usize),
    /// This one is the thread's alone now; to be made known with [`name`] and [`publish`].
    New(usize),
    /// The thread was interrupted while it was taking one.
    Busy,
    /// No room.
    None,
}

/// Where the slot of a thread may be: in the first part of the table, and in the second if there is no room.
/// So what threads use of it is no more than they need, and few look further than their first place.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    start: usize,
    mask: usize,
    more: usize,
}

impl Places {
    /// From a hash of the thread pointer, and the number of slots in either part: powers of two, the second
    /// may be 0.
    #[inline(always)]
    pub fn new(hash: usize, first: usize, more: usize) -> Self {
        Self { start: hash, mask: first.wrapping_sub(1), more }
    }

    /// The place at which nearly all have theirs.
    #[inline(always)]
    pub fn home(&self) -> usize {
        self.start & self.mask
    }

    /// The places in the second part, from the first one on.
    fn further(self) -> impl Iterator<Item = usize> {
        let first = self.mask.wrapping_add(1);
        let at = move |i: usize| first + (self.start.wrapping_add(i) & (self.more - 1));
        (0..PROBES.min(self.more)).map(at)
    }

    /// All places, in the order in which they are taken.
    fn all(self) -> impl Iterator<Item = usize> {
        let first = PROBES.min(self.mask.wrapping_add(1));
        let at = move |i: usize| self.start.wrapping_add(i) & self.mask;
        (0..first).map(at).chain(self.further())
    }
}

/// Looks for the slot of the thread with this thread pointer, or claims one.
pub fn claim(shared: &Shared, tp: u64, places: Places, tid: impl Fn() -> Option<u32>) -> Claim {
    // Once the first part is full, most have theirs near the front of the second. Slots that nobody has ever
    // had are not touched, as that would make memory.
    for index in places.further().take(NEAR).take_while(|i| shared.is_noted(*i)) {
        let Some(s) = shared.slot(index) else { return Claim::None };
        if s.tp.load(Acquire) == tp && is_of(s, &tid) {
            return Claim::Own(index);
        }
    }
    // An entry with our thread pointer may be ours or our predecessor's.
    for index in places.all() {
        // Never taken: nobody has looked further.
        if index > places.mask && !shared.is_noted(index) {
            break;
        }
        let Some(s) = shared.slot(index) else { return Claim::None };
        // Before the thread pointer: it is that of the word's owner, or of a later one.
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
        // A signal came while this thread was taking it: a second slot would make two of it.
        if word == slot::FREE {
            return Claim::Busy;
        }
        // Not if it has been taken since: a thread without a slot may want it, too.
        if s.state.compare_exchange(word, slot::FREE, AcqRel, Relaxed).is_ok() {
            return Claim::New(index);
        }
    }
    for index in places.all() {
        let Some(s) = shared.slot(index) else { return Claim::None };
        if s.tp.load(Relaxed) == 0 {
            // Before: whoever sees an event of its owner sees this.
            shared.note_slot(index);
            if s.tp.compare_exchange(0, tp, AcqRel, Relaxed).is_ok() {
                return Claim::New(index);
            }
        }
        // A signal came since, and its handler has taken one.
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

/// The place of the slot of the thread with this thread pointer, without taking one; also of one that it is just
/// taking.
pub fn find(
    shared: &Shared,
    tp: u64,
    places: Places,
    tid: impl Fn() -> Option<u32>,
) -> Option<usize> {
    let mut taking = None;
    for index in places.all() {
        if index > places.mask && !shared.is_noted(index) {
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

/// Writes into a claimed slot whose it is.
pub fn name(s: &Slot, tp: u64, tid: u32, serial: u32) {
    // With release, after the state: who reads one of them sees that the state has changed.
    s.tp.store(tp, Release);
    s.tid.store(tid, Release);
    s.serial.store(serial, Release);
}

/// Makes a claimed slot its thread's.
pub fn publish(s: &Slot) {
    s.state.store(live(s.serial.load(Relaxed)), Release);
}

/// The thread that owned a slot at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    word: u32,
    /// Its id.
    pub tid: u32,
    /// Its serial.
    pub serial: u32,
}

/// Who owns a slot; `None` if nobody does, or if the owner is changing just now.
pub fn owner(s: &Slot) -> Option<Owner> {
    let word = s.state.load(Acquire);
    let (tid, serial) = (s.tid.load(Acquire), s.serial.load(Acquire));
    (is_live(word) && s.state.load(Relaxed) == word).then_some(Owner { word, tid, serial })
}

/// Marks the slot of a thread that has ended, so that others can take it. False if it has another
/// owner by now. Only by the collector.
pub fn mark_dead(s: &Slot, owner: Owner) -> bool {
    let dead = owner.word & !slot::LIVE | slot::DEAD;
    s.state.compare_exchange(owner.word, dead, AcqRel, Relaxed).is_ok()
}
