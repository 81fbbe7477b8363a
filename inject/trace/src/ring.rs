//! Taking, filling, reading and returning segments.
//!
//! A free segment is a set bit in the free list. A thread clears the bit, fills in the head and sets the
//! state to active. It appends events to the data and publishes each with a release store of the committed
//! length. The collector reads up to that length, in the order of the thread's segment numbers, and returns
//! closed segments to the free list. A thread that dies leaves an active segment, which the collector returns
//! once it knows that the thread is gone.

use crate::event::MAX_EVENT;
use crate::shared::{SEGMENT_SIZE, SegmentHead, Shared, segment};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Committed length above which a segment is full.
pub const SEGMENT_FULL: usize = SEGMENT_SIZE - MAX_EVENT;

/// Takes a free segment; `start` spreads threads over the list. Returns `None` if the ring is full.
pub fn take(shared: &Shared, start: usize) -> Option<usize> {
    let (first, all) = shared.segments_now();
    take_in(shared, start, first / 64, all / 64)
}

/// Takes the first segment of a thread. Threads that write little hold theirs for long, and there may be many
/// of them. So half of the segments that are taken first are left to threads that write much.
pub fn take_first(shared: &Shared, start: usize) -> Option<usize> {
    let (first, all) = (shared.segments_now().0 / 64, shared.geometry().segments() / 64);
    if first < all && free_in(shared, first) <= first * 32 {
        let found = take_from(shared, first..all);
        if found.is_some() {
            return found;
        }
    }
    take_in(shared, start, first, all)
}

/// Takes a free segment in the first `first` words of the list, or else behind them.
fn take_in(shared: &Shared, start: usize, first: usize, all: usize) -> Option<usize> {
    take_from(shared, (0..first).map(|i| (start + i) % first).chain(first..all))
}

fn take_from(shared: &Shared, words: impl Iterator<Item = usize>) -> Option<usize> {
    for w in words {
        let word = shared.free_word(w)?;
        let mut bits = word.load(Relaxed);
        while bits != 0 {
            let bit = bits & bits.wrapping_neg();
            match word.compare_exchange(bits, bits ^ bit, AcqRel, Relaxed) {
                Ok(_) => return Some(w * 64 + bit.trailing_zeros() as usize),
                Err(now) => bits = now,
            }
        }
    }
    None
}

/// Makes a taken segment active, owned by the thread with this slot, serial and id.
pub fn open(shared: &Shared, index: usize, slot: u32, serial: u32, tid: u32, seq: u64) {
    let Some(h) = shared.head(index) else { return };
    h.committed.store(0, Relaxed);
    h.serial.store(serial, Relaxed);
    h.tid.store(tid, Relaxed);
    h.slot.store(slot, Relaxed);
    h.seq.store(seq, Relaxed);
    h.state.store(segment::ACTIVE, Release);
}

/// Publishes the first `len` bytes of a segment. Only the thread that opened it may call this.
#[inline(always)]
pub fn commit(head: &SegmentHead, len: usize) {
    head.committed.store(len as u32, Release);
}

/// Marks a segment as complete. Only the thread that opened it may call this.
pub fn close(shared: &Shared, index: usize) {
    if let Some(h) = shared.head(index) {
        h.state.store(segment::CLOSED, Release);
    }
}

/// Returns a segment to the free list. Only the collector may call this, after it has read all of it.
pub fn give_back(shared: &Shared, index: usize) {
    let (Some(h), Some(w)) = (shared.head(index), shared.free_word(index / 64)) else { return };
    h.state.store(segment::FREE, Relaxed);
    w.fetch_or(1 << (index % 64), Release);
}

/// Puts all segments on the free list. To be called before the memory is shared.
pub fn fill(shared: &Shared) {
    for w in 0..shared.geometry().segments() / 64 {
        if let Some(w) = shared.free_word(w) {
            w.store(u64::MAX, Release);
        }
    }
}

/// Returns the number of segments on the free list.
pub fn free_count(shared: &Shared) -> usize {
    free_in(shared, shared.geometry().segments() / 64)
}

/// Returns the number of free segments in the first words of the list.
fn free_in(shared: &Shared, words: usize) -> usize {
    (0..words)
        .filter_map(|w| shared.free_word(w))
        .map(|w| w.load(Relaxed).count_ones() as usize)
        .sum()
}

/// Returns whether the thread of an active segment has ended, as another one has its slot now. Then all that it has
/// committed can be seen.
pub fn is_left(shared: &Shared, v: &View) -> bool {
    // Whoever opens a segment has named the slot before.
    let slot = shared.slot(v.slot as usize);
    !v.closed && slot.is_some_and(|s| s.serial.load(Acquire) != v.serial)
}

/// Head of a segment in use, as the collector sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Index of the segment.
    pub index: usize,
    /// Serial of the writing thread.
    pub serial: u32,
    /// Id of the writing thread.
    pub tid: u32,
    /// Slot of the writing thread.
    pub slot: u32,
    /// Sequence number among the thread's segments.
    pub seq: u64,
    /// Whether the segment is complete.
    pub closed: bool,
    /// Readable bytes, at most [`SEGMENT_SIZE`].
    pub committed: usize,
}

/// Reads the head of a segment; returns `None` if the segment is free. The state is read before the length,
/// so that a segment seen closed is seen whole.
pub fn view(shared: &Shared, index: usize) -> Option<View> {
    let h = shared.head(index)?;
    let state = h.state.load(Acquire);
    if state != segment::ACTIVE && state != segment::CLOSED {
        return None;
    }
    Some(View {
        index,
        serial: h.serial.load(Relaxed),
        tid: h.tid.load(Relaxed),
        slot: h.slot.load(Relaxed),
        seq: h.seq.load(Relaxed),
        closed: state == segment::CLOSED,
        committed: (h.committed.load(Acquire) as usize).min(SEGMENT_SIZE),
    })
}
