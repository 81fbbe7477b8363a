//! Offset and size of each part of the shared memory.

use super::limits::SAMPLES;
use crate::shared::{
    Control, FIRST_SLOTS, FUNCTIONS, Function, MAX_SEGMENTS, MODULES, MORE_SLOTS, Module,
    PC_LEVEL0, PC_LEVELS, PcEntry, SAMPLE_MARKS, SEGMENT_SIZE, SLOTS, STACKS, SegmentHead, Slot,
    StackRange,
};
use core::ops::Range;

const PAGE: usize = 64 << 10; // the largest page size of the supported architectures

const fn up(n: usize) -> usize {
    n.div_ceil(PAGE) * PAGE
}

pub(super) const SLOTS_AT: usize = up(size_of::<Control>());
pub(super) const FUNCTIONS_AT: usize = SLOTS_AT + up(SLOTS * size_of::<Slot>());
pub(super) const MODULES_AT: usize = FUNCTIONS_AT + up(FUNCTIONS * size_of::<Function>());
pub(super) const STACKS_AT: usize = MODULES_AT + up(MODULES * size_of::<Module>());
pub(super) const PCS_AT: usize = STACKS_AT + up(STACKS * size_of::<StackRange>());
pub(super) const SAMPLES_AT: usize =
    PCS_AT + up(PC_LEVEL0 * ((1 << PC_LEVELS) - 1) * size_of::<PcEntry>());
/// Offset of the marks of [`crate::samples`] in the memory.
pub const MARKS_AT: usize = SAMPLES_AT + up(SAMPLES * 8);
pub(super) const HEADS_AT: usize = MARKS_AT + up(SAMPLE_MARKS);
pub(super) const FREE_AT: usize = HEADS_AT + up(MAX_SEGMENTS * size_of::<SegmentHead>());
pub(super) const DATA_AT: usize = FREE_AT + up(MAX_SEGMENTS / 8);
/// Size of a thread's private state, in bytes. It lies in the shared memory so that the target's own mappings
/// stay small; no other thread reads it.
pub const STATE_SIZE: usize = 400 << 10;

/// Sizes of the parts that vary; prof chooses them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub(super) segments: usize,
    /// Number of the segments that are for threads beyond those that the others suffice for.
    more_segments: usize,
    pub(super) states: usize,
    more: usize,
    tables: usize,
}

/// Minimum number of thread states; less where address space is short.
const MIN_STATES: usize = if cfg!(target_pointer_width = "32") { 128 } else { 1024 };

impl Geometry {
    /// Makes a ring of about `bytes` bytes of events: between 64 segments and [`MAX_SEGMENTS`].
    pub fn for_ring(bytes: usize) -> Self {
        let segments = (bytes / SEGMENT_SIZE).clamp(64, MAX_SEGMENTS) / 64 * 64;
        Self { segments, more_segments: 0, states: MIN_STATES, more: 0, tables: 0 }
    }

    /// Sets the number of threads with room in the first part, rounded up to a power of two, at most
    /// [`FIRST_SLOTS`].
    #[must_use]
    pub fn with_threads(self, threads: usize) -> Self {
        let states = threads.clamp(MIN_STATES, FIRST_SLOTS).next_power_of_two();
        Self { states: states.min(FIRST_SLOTS), ..self }
    }

    /// Sets the number of threads with room in the second part: none, or rounded up to a power of two, at
    /// most [`MORE_SLOTS`]. This is address space alone until there are so many threads.
    #[must_use]
    pub fn with_more_threads(self, threads: usize) -> Self {
        let more = if threads == 0 { 0 } else { threads.next_power_of_two().min(MORE_SLOTS) };
        let first = self.first_segments();
        // Half of the slots at most are ever used (see `inject/src/mapped/room.rs`).
        let segments = (first + more / 2).min(MAX_SEGMENTS) / 64 * 64;
        Self { more, segments, more_segments: segments - first, ..self }
    }

    /// Returns the number of segments that threads take first and whose pages prof allocates. The others are
    /// address space alone until so many threads hold one.
    pub fn first_segments(self) -> usize {
        self.segments - self.more_segments
    }

    /// Sets how many of the segments are the first ones ([`Geometry::first_segments`]).
    #[must_use]
    pub fn with_first_segments(self, first: usize) -> Self {
        Self { more_segments: self.segments - first.min(self.segments), ..self }
    }

    /// Sets the numbers of thread states of both parts, as a control page has them; `None` if prof makes no such ring.
    pub fn with_states(self, first: u64, more: u64) -> Option<Self> {
        let (states, more) = (usize::try_from(first).ok()?, usize::try_from(more).ok()?);
        let is_made = states.is_power_of_two() && (MIN_STATES..=FIRST_SLOTS).contains(&states);
        let has_more = more.is_power_of_two() && more <= MORE_SLOTS;
        (is_made && (has_more || more == 0)).then_some(Self { states, more, ..self })
    }

    /// Sets the room for unwind tables, in bytes.
    #[must_use]
    pub fn with_tables(self, bytes: usize) -> Self {
        Self { tables: up(bytes), ..self }
    }

    /// Returns the number of thread states in the first part.
    pub fn states(self) -> usize {
        self.states
    }

    /// Returns the number of thread states in the second part.
    pub fn more_states(self) -> usize {
        self.more
    }

    /// Returns the offsets of the unwind tables.
    pub fn tables(self) -> Range<usize> {
        let at = DATA_AT + up(self.segments * SEGMENT_SIZE);
        at..at + self.tables
    }

    /// Returns the offset of the thread states.
    pub fn states_at(self) -> usize {
        self.tables().end
    }

    /// Makes the geometry from the number of segments in a control page; `None` if that is out of range.
    pub fn from_segments(segments: u32) -> Option<Self> {
        let segments = segments as usize;
        ((64..=MAX_SEGMENTS).contains(&segments) && segments.is_multiple_of(64)).then_some(Self {
            segments,
            more_segments: 0,
            states: 0,
            more: 0,
            tables: 0,
        })
    }

    /// Makes the geometry for the hook, from a number of segments that prof has checked.
    #[inline(always)]
    pub const fn trusted(segments: usize) -> Self {
        Self { segments, more_segments: 0, states: 0, more: 0, tables: 0 }
    }

    /// Returns the number of segments.
    #[inline(always)]
    pub fn segments(self) -> usize {
        self.segments
    }

    /// Returns the size of the whole memory, in bytes; without thread states if it was made from a number of
    /// segments.
    pub fn size(self) -> usize {
        up(self.states_at() + (self.states + self.more) * STATE_SIZE)
    }

    /// Returns the offsets of the thread states of the second part.
    pub fn second_part(self) -> Range<usize> {
        let at = self.states_at() + self.states * STATE_SIZE;
        at..at + self.more * STATE_SIZE
    }

    /// Returns the parts: name and offsets.
    pub fn parts(self) -> [(&'static str, Range<usize>); 11] {
        [
            ("control", 0..SLOTS_AT),
            ("slots", SLOTS_AT..FUNCTIONS_AT),
            ("functions", FUNCTIONS_AT..MODULES_AT),
            ("modules", MODULES_AT..STACKS_AT),
            ("stacks", STACKS_AT..PCS_AT),
            ("pcs", PCS_AT..SAMPLES_AT),
            ("samples", SAMPLES_AT..HEADS_AT),
            ("heads", HEADS_AT..DATA_AT),
            ("events", DATA_AT..self.tables().start),
            ("tables", self.tables()),
            ("states", self.states_at()..self.size()),
        ]
    }

    /// Returns the ranges that may have pages if `segments` segments at most are ever used.
    pub fn in_use(self, segments: usize) -> [Range<usize>; 2] {
        let events = DATA_AT + segments.min(self.segments) * SEGMENT_SIZE;
        let states = (self.states + self.more) * STATE_SIZE;
        [0..events, self.tables().start..self.states_at() + states]
    }

    /// Returns the ranges (offset, length) that are written from the first event on. prof allocates their
    /// pages beforehand and on its own account.
    pub fn hot_ranges(self) -> [(usize, usize); 5] {
        [
            (0, SLOTS_AT + self.states * size_of::<Slot>()),
            (FUNCTIONS_AT, FUNCTIONS * size_of::<Function>()),
            (PCS_AT, PC_LEVEL0 * 3 * size_of::<PcEntry>()),
            (HEADS_AT, self.first_segments() * size_of::<SegmentHead>()),
            (DATA_AT, self.first_segments() * SEGMENT_SIZE),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_do_not_overlap_and_fit() {
        let g = Geometry::for_ring(64 << 20);
        assert_eq!(g.segments(), 4096);
        assert!(DATA_AT.is_multiple_of(4096));
        let mut end = 0;
        for (at, len) in g.hot_ranges() {
            assert!(at >= end && at + len <= g.size());
            end = at + len;
        }
        assert_eq!(Geometry::from_segments(4096).map(|g| g.segments), Some(4096));
        assert_eq!(Geometry::from_segments(63), None);
        let more = g.with_threads(3000).with_more_threads(20_000).with_tables(1);
        assert_eq!((more.first_segments(), g.first_segments()), (4096, 4096));
        assert_eq!(more.segments(), 4096 + more.more_states() / 2);
        assert_eq!((more.states(), more.more_states()), (4096, 32768.min(MORE_SLOTS)));
        let states = (4096 + more.more_states()) * STATE_SIZE;
        assert_eq!(more.size(), up(more.states_at() + states));
        assert_eq!(more.states_at(), more.tables().end);
        assert_eq!(more.second_part(), more.states_at() + 4096 * STATE_SIZE..more.size());
        // It can have another access than the first part, whatever the size of pages.
        for g in [g, more, g.with_threads(1).with_more_threads(1)] {
            assert!(g.second_part().start.is_multiple_of(PAGE), "{g:?}");
        }
        assert_eq!(more.hot_ranges(), g.with_threads(4096).hot_ranges());
        let segments = more.segments() as u32;
        let again = Geometry::from_segments(segments).expect("as many").with_tables(1);
        let again = again.with_states(4096, more.more_states() as u64).expect("as many");
        assert_eq!((again.size(), again.second_part()), (more.size(), more.second_part()));
        for (first, more) in [(0, 0), (1025, 0), (1024, 3), (1 << 40, 0), (1024, 1 << 40)] {
            assert_eq!(g.with_states(first, more), None);
        }
        assert_eq!(Geometry::from_segments(u32::MAX), None);
        assert_eq!(core::mem::offset_of!(Slot, events), 64);
    }
}
