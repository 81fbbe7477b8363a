//! Writes events to the thread's segment of the ring.

use crate::mapping::{Shared, add};
use crate::node_ids::EPOCHS;
use crate::state::{SAY, SeenName, Thread, UNKNOWN};
use crate::{clock, header, sample, sys, toggle};
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use prof_trace::event::Codec;
use prof_trace::ring::{self, SEGMENT_FULL};
use prof_trace::shared::Slot;
use prof_trace::ticks::Ticks;

/// Time without a sign of life after which the collector counts as dead, in ns.
const COLLECTOR_DEAD_NS: u64 = 5_000_000_000;

/// Maximum number of rounds waited without a clock: each is 1,000 pause instructions of some 30 ns, so about
/// a tenth of a second in all.
const ROUNDS: u32 = 4000;

/// Writes one event with `put`. It gets the encoding state and a place with `MAX_EVENT` bytes, and returns
/// the encoded length, 0 if the event can't be encoded. Returns whether the event was written.
#[inline(always)]
pub fn event(
    shared: &Shared,
    slot: &Slot,
    t: &mut Thread,
    put: impl FnOnce(&mut Codec, *mut u8) -> usize,
) -> bool {
    if !has_room(shared, slot, t) {
        add(&slot.lost, 1);
        return false;
    }
    // SAFETY: `pos` is at most SEGMENT_FULL, so MAX_EVENT bytes are left in the segment.
    let at = unsafe { t.data.add(t.pos) };
    let n = put(&mut t.codec, at);
    if n == 0 {
        add(&slot.lost, 1);
        return false;
    }
    t.pos += n;
    // SAFETY: `head` is set together with `data`; the segment is this thread's until it closes it.
    ring::commit(unsafe { &*t.head }, t.pos);
    add(&slot.events, 1);
    true
}

/// Writes an entry that is no event by itself, in a segment with room for an event.
pub fn extra(t: &mut Thread, put: impl FnOnce(&mut Codec, *mut u8) -> usize) {
    // SAFETY: `pos` is at most SEGMENT_FULL, so MAX_EVENT bytes are left in the segment.
    let at = unsafe { t.data.add(t.pos) };
    t.pos += put(&mut t.codec, at);
    // SAFETY: `head` is set together with `data`; the segment is this thread's until it closes it.
    ring::commit(unsafe { &*t.head }, t.pos);
}

/// Ensures that the thread's segment has room for an event; returns false if the ring has none. Called before
/// the stack of an event is taken, since the stack's node belongs to the segment.
#[inline(always)]
pub fn has_room(shared: &Shared, slot: &Slot, t: &mut Thread) -> bool {
    t.pos <= SEGMENT_FULL || next_segment(shared, slot, t)
}

/// Function that takes a segment.
type Take = fn(&Shared, usize) -> Option<usize>;

/// Takes the next segment; waits for one as long as the recording allows. Returns false if there is none.
#[cold]
#[inline(never)]
pub fn next_segment(shared: &Shared, slot: &Slot, t: &mut Thread) -> bool {
    if !t.head.is_null() {
        ring::close(shared, t.segment as usize);
        t.head = core::ptr::null();
        t.pos = usize::MAX;
    }
    // A thread's search always starts at the same place: the segments there that the collector returned last are still
    // in the processor's cache.
    let start = t.index as usize;
    let take: Take = if t.seq == 0 { ring::take_first } else { ring::take };
    let Some(index) = take(shared, start).or_else(|| wait(shared, start, take)) else {
        return false;
    };
    let full = &shared.control().full_since;
    if full.load(Relaxed) != 0 {
        full.store(0, Relaxed);
    }
    let (Some(head), Some(data)) = (shared.head(index), shared.data(index)) else { return false };
    t.seq += 1;
    ring::open(shared, index, t.index, slot.serial.load(Relaxed), slot.tid.load(Relaxed), t.seq);
    t.head = head;
    t.data = data;
    t.pos = 0;
    t.segment = index as u32;
    t.codec = Codec::default();
    // Each segment states anew what its events rely on.
    t.rate = sample::sampled_at(slot);
    t.flags = if t.rate == 0 { UNKNOWN } else { SAY };
    t.named = 0;
    t.epoch += 1;
    if t.epoch == EPOCHS {
        t.epoch = 1;
        t.names.fill(SeenName { key: 0, number: 0 });
    }
    true
}

/// Waits for a free segment; turns recording off if the collector is dead. All threads together wait once,
/// and then run at full speed, without recording, until a segment is free again.
fn wait(shared: &Shared, start: usize, take: Take) -> Option<usize> {
    let c = shared.control();
    let per_ns =
        |ns: u64| (ns as u128 * c.ticks_per_sec.load(Relaxed) as u128 / 1_000_000_000) as u64;
    let began = clock::before(shared);
    let patience = per_ns(c.wait_ns.load(Relaxed));
    let full = Ticks(c.full_since.load(Relaxed));
    // If the counter has gone back since, that time means nothing.
    let since = if full == Ticks::ZERO || full > began { began } else { full };
    c.full_since.store(since.0, Relaxed);
    let mut rounds = 0u32;
    loop {
        // A child that was forked meanwhile has nobody to wait for.
        if !header::attached() {
            return None;
        }
        rounds = rounds.saturating_add(1);
        // Without a clock that advances by itself, this thread waits for a number of rounds, and no thread
        // after it waits: time stands still while nobody collects.
        if rounds > ROUNDS && !clock::goes_on(shared) {
            c.full_since
                .store(clock::before(shared).wrapping_sub(patience).max(Ticks(1)).0, Relaxed);
            return None;
        }
        let now = clock::before(shared);
        let seen = Ticks(c.heartbeat.load(Relaxed));
        if now.wrapping_since(seen) as i64 > per_ns(COLLECTOR_DEAD_NS) as i64 {
            if header::flag()[0].swap(0, AcqRel) == 1 {
                c.orphaned.store(1, Relaxed);
                toggle::note(shared, 0);
            }
            return None;
        }
        if now.wrapping_since(since) as i64 >= patience as i64 {
            return None;
        }
        if sys::allowed(shared) {
            sys::sleep(50_000);
        } else {
            for _ in 0..1000 {
                core::hint::spin_loop();
            }
        }
        if let Some(index) = take(shared, start) {
            return Some(index);
        }
    }
}
