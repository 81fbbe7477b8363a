//! Models of the thread slots: threads that begin and end, beside a collector that frees the slots of ended
//! ones.

use crate::census::Census;
use crate::shared::{SLOTS, Shared};
use crate::slots::{self, Claim, ProbeSequence};
use crate::sync::AtomicU32;
use loom::cell::UnsafeCell;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use loom::thread;
use std::sync::Arc;

/// Thread pointers: the first of an ended thread and of one that got its memory, the others of two more.
const OLD: u64 = 64;
const OTHER: u64 = 128;
const THIRD: u64 = 192;

/// The slots, and for each a thread state, which only the owner of the slot may touch. loom reports it if two
/// threads do.
struct Target {
    shared: Shared<'static>,
    /// Number of slots in the first part; the others are the second.
    first: usize,
    states: Vec<UnsafeCell<u32>>,
    next_thread: AtomicU32,
    /// Number of threads with the ids 5 and 6 that the kernel has, as `/proc` shows them, and the serials under
    /// which events of them can be seen.
    alive: [AtomicU32; 2],
    serials: [AtomicU32; 2],
}

/// Ids of an ended thread, of the first thread of a model, and of a thread outside of the model.
const DEAD_TID: u32 = 4;
const FIRST_TID: u32 = 5;
const LIVING_TID: u32 = 9;

impl Target {
    /// Makes a target with slots owned by threads outside of the model: pairs of thread pointer and id.
    fn new(owners: &[(u64, u32)], alive: [u32; 2]) -> Self {
        Self::with_parts(SLOTS, owners, alive)
    }

    /// Makes such a target with `first` slots in the first part.
    fn with_parts(first: usize, owners: &[(u64, u32)], alive: [u32; 2]) -> Self {
        let t = Self {
            shared: Shared::with_slots(),
            first,
            states: (0..SLOTS).map(|_| UnsafeCell::new(0)).collect(),
            next_thread: AtomicU32::new(1),
            alive: alive.map(AtomicU32::new),
            serials: [AtomicU32::new(0), AtomicU32::new(0)],
        };
        for (tp, tid) in owners {
            t.enter(*tp, *tid).expect("room");
        }
        t
    }

    fn probes(&self) -> ProbeSequence {
        ProbeSequence::new(0, self.first, SLOTS - self.first)
    }

    /// Does what the hook does at each event: finds the slot or claims one, and then uses its state.
    fn enter(&self, tp: u64, tid: u32) -> Option<(usize, u32)> {
        let index = match slots::claim(&self.shared, tp, self.probes(), || Some(tid)) {
            Claim::Own(index) => index,
            Claim::New(index) => {
                let serial = self.next_thread.fetch_add(1, Relaxed);
                let s = self.shared.slot(index).expect("slot");
                slots::name(s, tp, tid, serial);
                // SAFETY: loom has checked that nobody else accesses the state.
                self.states[index].with_mut(|p| unsafe { *p = serial });
                slots::publish(s);
                index
            }
            Claim::Busy | Claim::None => return None,
        };
        // SAFETY: as above.
        Some((index, self.states[index].with_mut(|p| unsafe { *p })))
    }

    /// Runs a thread with two events.
    fn live(&self, tp: u64, tid: u32) {
        let i = (tid - FIRST_TID) as usize;
        if let Some(first) = self.enter(tp, tid) {
            self.serials[i].store(first.1, Release);
            assert_eq!(
                self.enter(tp, tid),
                Some(first),
                "a living thread keeps its slot and number"
            );
        }
        self.alive[i].store(0, Release);
    }

    fn is_alive(&self, tid: u32) -> bool {
        match tid.checked_sub(FIRST_TID).and_then(|i| self.alive.get(i as usize)) {
            Some(alive) => alive.load(Acquire) != 0,
            None => tid != DEAD_TID,
        }
    }

    /// Does what the collector does once a second.
    fn census(&self) {
        let census = Census::take(&self.shared, |tid| self.is_alive(tid));
        for (i, serial) in self.serials.iter().enumerate() {
            let (tid, serial) = (FIRST_TID + i as u32, serial.load(Acquire));
            if serial != 0 && census.has_ended(tid, serial, |tid| self.is_alive(tid)) {
                assert!(!self.is_alive(tid), "its segment would be taken from a living thread");
            }
        }
        census.free_slots(&self.shared);
    }
}

#[test]
fn new_threads_want_the_slot_of_a_dead_one() {
    crate::check(Some(1), || {
        let target = Arc::new(Target::new(&[(OLD, DEAD_TID), (THIRD, LIVING_TID)], [1, 1]));
        let live = |tp, tid| {
            let t = target.clone();
            thread::spawn(move || t.live(tp, tid))
        };
        // One has the memory of the ended thread, the other has its own.
        let all = [live(OLD, 5), live(OTHER, 6)];
        target.census();
        for h in all {
            h.join().expect("thread");
        }
        target.census();
        // A thread that comes now has room.
        let left = target.shared.used_slots().filter_map(slots::owner);
        assert_eq!(left.map(|o| o.tid).collect::<Vec<_>>(), [LIVING_TID]);
    });
}

#[test]
fn a_slot_marked_dead_goes_to_one_thread() {
    crate::check(Some(3), || {
        let target = Arc::new(Target::new(&[(OLD, DEAD_TID), (THIRD, LIVING_TID)], [1, 1]));
        target.census();
        assert_eq!(slots::owner(target.shared.slot(0).expect("slot")), None);
        let heir = target.clone();
        let heir = thread::spawn(move || heir.live(OLD, 5));
        target.live(OTHER, 6);
        heir.join().expect("thread");
    });
}

#[test]
fn the_id_of_a_dead_thread_comes_again() {
    crate::check(Some(2), || {
        // A thread has the id of an ended one, whose slot another thread takes.
        let target = Arc::new(Target::new(&[(OLD, 5), (OTHER, 5)], [1, 1]));
        target.serials[0].store(2, Relaxed);
        let heir = target.clone();
        let heir = thread::spawn(move || heir.live(OLD, 6));
        target.census();
        assert_eq!(target.enter(OTHER, 5), Some((1, 2)), "it is alive");
        heir.join().expect("thread");
    });
}

/// The first part has one slot, which a living thread owns.
#[test]
fn who_finds_no_room_gets_some_beside() {
    crate::check(Some(2), || {
        let target = Arc::new(Target::with_parts(1, &[(THIRD, LIVING_TID)], [1, 1]));
        let live = |tp, tid| {
            let t = target.clone();
            thread::spawn(move || t.live(tp, tid))
        };
        let all = [live(OLD, 5), live(OTHER, 6)];
        for h in all {
            h.join().expect("thread");
        }
        let serials = target.serials.each_ref().map(|s| s.load(Relaxed));
        assert_eq!(serials.iter().filter(|s| **s != 0).count(), 1, "one slot, one thread");
    });
}

#[test]
fn who_has_room_beside_keeps_it_when_some_gets_free() {
    crate::check(Some(2), || {
        // The first slot's thread has ended, and a new one wants it.
        let target = Arc::new(Target::with_parts(1, &[(THIRD, DEAD_TID), (OLD, 5)], [1, 1]));
        target.serials[0].store(2, Relaxed);
        let other = target.clone();
        let other = thread::spawn(move || other.live(OTHER, 6));
        target.census();
        assert_eq!(target.enter(OLD, 5), Some((1, 2)), "it is where it was");
        other.join().expect("thread");
        target.census();
        assert_eq!(target.enter(OLD, 5), Some((1, 2)), "it is where it was");
    });
}

#[test]
fn a_signal_while_a_slot_is_taken_takes_no_second() {
    crate::check(None, || {
        let target = Target::new(&[], [1, 1]);
        let claim = || slots::claim(&target.shared, OLD, target.probes(), || Some(5));
        assert_eq!(claim(), Claim::New(0));
        assert_eq!(claim(), Claim::Busy);
        let s = target.shared.slot(0).expect("slot");
        slots::name(s, OLD, 5, 1);
        assert_eq!(claim(), Claim::Busy);
        slots::publish(s);
        assert_eq!(claim(), Claim::Own(0));
    });
}
