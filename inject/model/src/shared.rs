//! The shared memory in its smallest form: two segments, two slots, a table with windows of two.

use crate::ring::SEGMENT_FULL;
use crate::sync::{AtomicU32, AtomicU64};
use loom::cell::UnsafeCell;
use loom::sync::atomic::Ordering::Relaxed;
use std::marker::PhantomData;
use trace::event::MAX_EVENT;
pub(crate) use trace::shared::{MODULES, segment, slot};

/// A segment is full after the second event of 6 bytes, or the first of 12, or the second of those that bring
/// the definition of their stack.
pub(crate) const SEGMENT_SIZE: usize = MAX_EVENT + 11;
/// Bytes of a segment that are written before it is full, those behind the last event included.
const USED: usize = 24;
pub(crate) const SEGMENTS: usize = 2;
pub(crate) const SLOTS: usize = 2;
pub(crate) const PC_LEVELS: usize = 2;
pub(crate) const PC_LEVEL0: usize = 2;
pub(crate) const WINDOW: usize = 2;

const _: () = assert!(SEGMENT_FULL == 11);

/// Stand-in for `trace::shared::SegmentHead`.
#[derive(Debug, Default)]
pub(crate) struct SegmentHead {
    pub state: AtomicU32,
    pub committed: AtomicU32,
    pub serial: AtomicU32,
    pub tid: AtomicU32,
    pub slot: AtomicU32,
    pub seq: AtomicU64,
}

/// Stand-in for `trace::shared::Slot`.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub tp: AtomicU64,
    pub tid: AtomicU32,
    pub state: AtomicU32,
    pub serial: AtomicU32,
}

/// Stand-in for `trace::shared::PcEntry`.
#[derive(Debug, Default)]
pub(crate) struct PcEntry {
    pub key: AtomicU64,
    pub rule: AtomicU64,
}

/// Stand-in for `trace::shared::Geometry`.
pub(crate) struct Geometry;

impl Geometry {
    /// Returns the segments of one word of the free list, of which fewer exist.
    pub(crate) fn segments(&self) -> usize {
        64
    }
}

/// Stand-in for `trace::shared::Shared`. A part is only made if a model uses it.
#[derive(Debug, Default)]
pub(crate) struct Shared<'a> {
    heads: Vec<SegmentHead>,
    free: Vec<AtomicU64>,
    data: Vec<Vec<UnsafeCell<u8>>>,
    slots: Vec<Slot>,
    used: Vec<AtomicU64>,
    pcs: Vec<PcEntry>,
    mapping: PhantomData<&'a ()>,
}

fn many<T: Default>(n: usize) -> Vec<T> {
    (0..n).map(|_| T::default()).collect()
}

impl Shared<'_> {
    /// Returns that all segments are alike.
    pub(crate) fn segments_now(&self) -> (usize, usize) {
        (64, 64)
    }

    /// Makes a memory with free segments.
    pub(crate) fn with_ring() -> Self {
        let data = (0..SEGMENTS).map(|_| many(USED)).collect();
        let free = vec![AtomicU64::new((1 << SEGMENTS) - 1)];
        Self { heads: many(SEGMENTS), free, data, ..Self::default() }
    }

    /// Makes a memory with slots that were never used.
    pub(crate) fn with_slots() -> Self {
        Self { slots: many(SLOTS), used: many(1), ..Self::default() }
    }

    /// Makes a memory with an empty table of code addresses.
    pub(crate) fn with_pcs() -> Self {
        Self { pcs: many(PC_LEVEL0 * ((1 << PC_LEVELS) - 1)), ..Self::default() }
    }

    /// Makes a memory with slots and free segments.
    pub(crate) fn with_ring_and_slots() -> Self {
        Self { slots: many(SLOTS), used: many(1), ..Self::with_ring() }
    }

    /// Makes a memory with free segments and an empty table of code addresses.
    pub(crate) fn with_ring_and_pcs() -> Self {
        Self { pcs: Self::with_pcs().pcs, ..Self::with_ring() }
    }

    pub(crate) fn geometry(&self) -> Geometry {
        Geometry
    }

    pub(crate) fn head(&self, index: usize) -> Option<&SegmentHead> {
        self.heads.get(index)
    }

    pub(crate) fn free_word(&self, index: usize) -> Option<&AtomicU64> {
        self.free.get(index)
    }

    pub(crate) fn slot(&self, index: usize) -> Option<&Slot> {
        self.slots.get(index)
    }

    pub(crate) fn note_slot(&self, index: usize) {
        self.used[0].fetch_or(1 << index, Relaxed);
    }

    pub(crate) fn is_noted(&self, index: usize) -> bool {
        self.used[0].load(Relaxed) >> index & 1 == 1
    }

    pub(crate) fn used_slots(&self) -> impl Iterator<Item = &Slot> {
        let used = self.used[0].load(Relaxed);
        self.slots.iter().enumerate().filter(move |(i, _)| used >> i & 1 != 0).map(|(_, s)| s)
    }

    pub(crate) fn pc(&self, index: usize) -> Option<&PcEntry> {
        self.pcs.get(index)
    }

    /// Writes by plain accesses: loom reports one that is not ordered before or after every other.
    pub(crate) fn write(&self, index: usize, from: usize, bytes: &[u8]) {
        for (cell, byte) in self.data[index][from..].iter().zip(bytes) {
            // SAFETY: loom has checked that nobody else accesses the cell.
            cell.with_mut(|p| unsafe { *p = *byte });
        }
    }

    /// Reads by plain accesses, likewise.
    pub(crate) fn copy_out(&self, index: usize, from: usize, to: &mut [u8]) {
        for (cell, byte) in self.data[index][from..].iter().zip(to) {
            // SAFETY: loom has checked that nobody writes to the cell.
            cell.with(|p| unsafe { *byte = *p });
        }
    }
}
