//! Access to the mapped memory, within its bounds.

use super::geometry::{
    DATA_AT, FREE_AT, FUNCTIONS_AT, HEADS_AT, MARKS_AT, MODULES_AT, PCS_AT, SAMPLES_AT, SLOTS_AT,
    STACKS_AT,
};
use super::limits::SAMPLES;
#[allow(unused_imports)] // for the documentation
use crate::shared::Stable;
use crate::shared::{
    Control, FUNCTIONS, Function, Geometry, MODULES, Module, PC_LEVEL0, PC_LEVELS, PcEntry,
    SAMPLE_MARKS, SEGMENT_SIZE, SLOTS, STACKS, SegmentHead, Slot, StackRange,
};
use core::marker::PhantomData;
use core::mem::offset_of;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// Access to the mapped memory. All accessors bound their index by prof's geometry; none reads it from the
/// memory. Nothing that it gives outlives `'a`, for which the memory stays mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a> {
    base: *mut u8,
    geometry: Geometry,
    mapping: PhantomData<&'a ()>,
}

const _: () = assert!(offset_of!(Shared<'static>, base) == 0);

// SAFETY: what the pointer leads to is atomics, or is written before the memory is shared.
unsafe impl Send for Shared<'_> {}
// SAFETY: as above.
unsafe impl Sync for Shared<'_> {}

macro_rules! table {
    ($(#[$doc:meta])* $name:ident, $at:expr, $ty:ty, $count:expr) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(&self, index: usize) -> Option<&'a $ty> {
            if index >= $count(self) {
                return None;
            }
            // SAFETY: the index is in bounds, the entry is inside the mapping and aligned, and its type is
            // valid for any bytes.
            Some(unsafe { &*self.base.add($at + index * size_of::<$ty>()).cast::<$ty>() })
        }
    };
}

impl<'a> Shared<'a> {
    /// Offset of the number of segments (a `usize`) in this struct; that of the address is 0.
    pub(crate) const SEGMENTS: usize = offset_of!(Self, geometry) + offset_of!(Geometry, segments);

    /// An empty value, overwritten before it is used.
    pub(crate) const NONE: Self =
        Self { base: core::ptr::null_mut(), geometry: Geometry::trusted(0), mapping: PhantomData };

    /// Wraps a mapping of the memory.
    ///
    /// # Safety
    /// `base` must point to a mapping of `geometry.size()` bytes, aligned to a page, that stays
    /// mapped for `'a`. Only thread states, which this type does not lead to, may have no access.
    pub const unsafe fn new(base: *mut u8, geometry: Geometry) -> Self {
        Self { base, geometry, mapping: PhantomData }
    }

    /// Returns the geometry that bounds all accesses.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Returns the address of the mapping in this process.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Returns the control page.
    #[inline(always)]
    pub fn control(&self) -> &'a Control {
        // SAFETY: the mapping begins with the control page, which is valid for any bytes.
        unsafe { &*self.base.cast::<Control>() }
    }

    /// Returns the control page, to be filled in before anybody else maps this memory.
    ///
    /// # Safety
    /// No other reference to the control page may be in use.
    #[allow(clippy::mut_from_ref)] // the memory is not owned by `self`
    pub unsafe fn control_mut(&self) -> &mut Control {
        // SAFETY: the mapping begins with the control page; nobody else uses it, by the caller's promise.
        unsafe { &mut *self.base.cast::<Control>() }
    }

    /// Returns a function entry, to be filled in before its stub can be reached.
    ///
    /// # Safety
    /// No other reference to the entry may be in use.
    #[allow(clippy::mut_from_ref)] // the memory is not owned by `self`
    pub unsafe fn function_mut(&self, index: usize) -> Option<&mut Function> {
        if index >= FUNCTIONS {
            return None;
        }
        let at = FUNCTIONS_AT + index * size_of::<Function>();
        // SAFETY: the entry is in bounds and aligned; nobody else uses it, by the caller's promise.
        Some(unsafe { &mut *self.base.add(at).cast::<Function>() })
    }

    table!(/// Returns a thread slot.
        slot, SLOTS_AT, Slot, |_: &Self| SLOTS);
    table!(/// Returns a hooked function.
        function, FUNCTIONS_AT, Function, |_: &Self| FUNCTIONS);
    table!(/// Returns a module, by its number minus 1.
        module, MODULES_AT, Module, |_: &Self| MODULES);
    table!(/// Returns a stack range.
        stack, STACKS_AT, StackRange, |_: &Self| STACKS);
    table!(/// Returns a code address, by its id minus 1 (see [`crate::pcs`]).
        pc, PCS_AT, PcEntry, |_: &Self| PC_LEVEL0 * ((1 << PC_LEVELS) - 1));
    table!(/// Returns a window of the set of recorded blocks, see [`crate::samples`].
        sample_window, SAMPLES_AT, [AtomicU64; crate::samples::WINDOW],
        |_: &Self| SAMPLES / crate::samples::WINDOW);
    table!(/// Returns a mark of the set of recorded blocks, see [`crate::samples`].
        sample_mark, MARKS_AT, AtomicU8, |_: &Self| SAMPLE_MARKS);
    table!(/// Returns the head of a segment.
        head, HEADS_AT, SegmentHead, |s: &Self| s.geometry.segments);
    table!(/// Returns a word of the free list, which has 64 segments: a set bit is a free one.
        free_word, FREE_AT, AtomicU64, |s: &Self| s.geometry.segments / 64);

    /// Returns a function's [`kind`](Function::kind) and [`headers`](Function::headers) for prof, which reads them while
    /// the target may write to them.
    pub fn kind_and_headers(&self, index: usize) -> Option<(u32, u8)> {
        if index >= FUNCTIONS {
            return None;
        }
        let at = FUNCTIONS_AT + index * size_of::<Function>();
        // SAFETY: the entry is in bounds and aligned, and prof has no reference to these fields.
        unsafe {
            let f = self.base.add(at).cast::<Function>();
            let kind = AtomicU32::from_ptr(&raw mut (*f).kind).load(Relaxed);
            Some((kind, AtomicU8::from_ptr(&raw mut (*f).headers).load(Relaxed)))
        }
    }

    /// Returns how many segments are taken first, and how many may be taken in all.
    pub fn segments_now(&self) -> (usize, usize) {
        let c = self.control();
        let all = self.geometry.segments;
        let first = (c.first_segments.load(Relaxed) as usize).min(all) / 64 * 64;
        // Nobody has divided the segments: all are alike.
        if first == 0 {
            return (all, all);
        }
        let more = (c.more_segments.load(Relaxed).min(all as u64)) as usize / 64 * 64;
        (first, (first + more).min(all))
    }

    /// Returns the first of a segment's [`SEGMENT_SIZE`] bytes.
    #[inline(always)]
    pub fn data(&self, index: usize) -> Option<*mut u8> {
        if index >= self.geometry.segments {
            return None;
        }
        // SAFETY: the segment is inside the mapping.
        Some(unsafe { self.base.add(DATA_AT + index * SEGMENT_SIZE) })
    }

    /// Copies a part of a segment that its thread has committed; does nothing if the part exceeds the
    /// segment.
    pub fn copy_out(&self, index: usize, from: usize, to: &mut [u8]) {
        let Some(data) = self.data(index) else { return };
        if from + to.len() > SEGMENT_SIZE {
            return;
        }
        // SAFETY: the part is inside the segment. A hostile target may write to it meanwhile: the copy is
        // then arbitrary, and it is checked after it was made.
        unsafe { core::ptr::copy_nonoverlapping(data.add(from), to.as_mut_ptr(), to.len()) }
    }

    /// Returns the offset of a function entry in the memory. Its address in the target is
    /// [`Stable::ring_addr`] plus this.
    pub const fn function_offset(index: usize) -> usize {
        FUNCTIONS_AT + index * size_of::<Function>()
    }

    /// Returns the offset of a thread slot in the memory.
    pub const fn slot_offset(index: usize) -> usize {
        SLOTS_AT + index * size_of::<Slot>()
    }

    /// Notes that a slot is about to be taken.
    pub fn note_slot(&self, index: usize) {
        if let Some(word) = self.control().slots_used.get(index / 64) {
            word.fetch_or(1 << (index % 64), Relaxed);
        }
    }

    /// Returns whether a slot was ever taken.
    #[inline(always)]
    pub fn is_noted(&self, index: usize) -> bool {
        let word = self.control().slots_used.get(index / 64);
        word.is_some_and(|w| w.load(Relaxed) >> (index % 64) & 1 == 1)
    }

    /// Returns the number of calls that were not recorded because their thread had no slot.
    pub fn lost_without_slot(&self) -> u64 {
        let all = self.control().turned_away.iter().map(|t| t.lost.load(Relaxed));
        all.fold(0, u64::wrapping_add)
    }

    /// Returns the slots that were ever taken. To read the others, nearly all, would take milliseconds and
    /// allocate their pages.
    pub fn used_slots(&self) -> impl Iterator<Item = &'a Slot> + use<'_, 'a> {
        let words = self.control().slots_used.iter().map(|w| w.load(Relaxed));
        set_bits(words).filter_map(|i| self.slot(i))
    }
}

/// Returns the positions of the set bits, in ascending order.
pub fn set_bits(words: impl Iterator<Item = u64>) -> impl Iterator<Item = usize> {
    words.enumerate().flat_map(|(w, word)| {
        let next = |bits: &u64| Some(bits & (bits - 1)).filter(|bits| *bits != 0);
        let lowest = move |bits: u64| w * 64 + bits.trailing_zeros() as usize;
        core::iter::successors(Some(word).filter(|w| *w != 0), next).map(lowest)
    })
}

#[cfg(all(test, feature = "std"))]
impl Shared<'static> {
    /// Returns memory for a test, leaked. It is zero because it is new, and only used pages are allocated.
    pub(crate) fn leaked() -> Self {
        Self::leaked_with(0)
    }

    /// Returns such memory with `tables` bytes of room for unwind tables.
    pub(crate) fn leaked_with(tables: usize) -> Self {
        const ALIGN: usize = 65536;
        let g = Geometry::for_ring(0).with_tables(tables);
        let layout = std::alloc::Layout::from_size_align(g.size() + ALIGN, 8).expect("layout");
        // SAFETY: the size is not zero, and the allocation has room behind the next boundary.
        unsafe {
            let at = std::alloc::alloc_zeroed(layout);
            Self::new(at.add(at.align_offset(ALIGN)), g)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_bits_are_found() {
        let found = |words: &[u64]| set_bits(words.iter().copied()).collect::<std::vec::Vec<_>>();
        assert_eq!(found(&[0, 0]), []);
        assert_eq!(found(&[0b1001, 0, 1 << 63 | 1]), [0, 3, 128, 191]);
        assert_eq!(found(&[u64::MAX]).len(), 64);
    }
}
