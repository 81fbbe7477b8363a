//! Whose thread slots are: finding and taking them in the hook, and taking them from the dead in
//! the collector.
//!
//! A slot's state word says in its low bits whether a living thread owns it, and above them holds
//! the low bits of that thread's serial. No two takings have the same word, so that a
//! compare-and-swap of a word that was seen before speaks of the owner that it was seen with, and
//! of no later one.

use crate::shared::{Shared, Slot, slot};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Slots that are looked at before giving up.
const PROBES: usize = 64;

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
    /// No room; or the thread was interrupted while it was taking one.
    None,
}

/// Looks for the slot of the thread with this thread pointer, from `start` on, or claims one.
pub fn claim(
    shared: &Shared,
    tp: u64,
    start: usize,
    mask: usize,
    tid: impl Fn() -> Option<u32>,
) -> Claim {
    let probes = PROBES.min(mask.wrapping_add(1));
    // First an entry with our thread pointer, since that may be ours or our predecessor's.
    for i in 0..probes {
        let index = start.wrapping_add(i) & mask;
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
            return Claim::None;
        }
        // Not if it has been taken since: a thread without a slot may want it, too.
        if s.state.compare_exchange(word, slot::FREE, AcqRel, Relaxed).is_ok() {
            return Claim::New(index);
        }
    }
    for i in 0..probes {
        let index = start.wrapping_add(i) & mask;
        let Some(s) = shared.slot(index) else { return Claim::None };
        if s.tp.load(Relaxed) == 0 {
            // Before: whoever sees an event of its owner sees this.
            shared.note_slot(index);
        }
        if s.tp.compare_exchange(0, tp, AcqRel, Relaxed).is_ok() {
            return Claim::New(index);
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
