//! A slice that huge pages hold if it is large, for tables that are accessed at random: with small pages the processor
//! waits for page tables at each access, even at a prefetch.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Size and alignment of a huge page. Where they are larger, there are none.
pub(crate) const HUGE: usize = 2 << 20;

/// A slice of plain values.
pub(crate) struct Huge<T: Copy> {
    first: NonNull<T>,
    layout: Layout,
    len: usize,
}

// SAFETY: the slice is this value's own, as that of a `Box<[T]>` is.
unsafe impl<T: Copy + Send> Send for Huge<T> {}
// SAFETY: shared access only reads the slice.
unsafe impl<T: Copy + Sync> Sync for Huge<T> {}

impl<T: Copy> Huge<T> {
    /// Creates a slice with `len` times this value. The length must not be 0.
    pub(crate) fn new(value: T, len: usize) -> Self {
        let layout = Layout::array::<T>(len).expect("a table that fits into the address space");
        let large = layout.size() >= HUGE;
        let layout = match layout.align_to(HUGE) {
            Ok(aligned) if large => aligned,
            _ => layout,
        };
        assert!(layout.size() > 0, "a slice of no bytes");
        // SAFETY: the layout's size is not 0.
        let first = unsafe { alloc(layout) }.cast::<T>();
        let Some(first) = NonNull::new(first) else { handle_alloc_error(layout) };
        if large {
            let whole = layout.size() / HUGE * HUGE;
            // SAFETY: these bytes were just allocated; the advice changes nothing in them. Without it, if the kernel
            // refuses, the pages are small.
            unsafe { libc::madvise(first.as_ptr().cast(), whole, libc::MADV_HUGEPAGE) };
        }
        for i in 0..len {
            // SAFETY: the allocation has room for `len` values.
            unsafe { first.add(i).write(value) };
        }
        Self { first, layout, len }
    }
}

impl<T: Copy> Drop for Huge<T> {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout, and its values need no drop.
        unsafe { dealloc(self.first.as_ptr().cast(), self.layout) }
    }
}

impl<T: Copy> Deref for Huge<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `new` has written `len` values there.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl<T: Copy> DerefMut for Huge<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: `new` has written `len` values there, and this is the only reference to them.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_slices_begin_with_a_huge_page() {
        for len in [1, 1000, HUGE / 8 - 1, HUGE / 8, HUGE / 8 * 3 + 77] {
            let mut all = Huge::new(7u64, len);
            assert!(all.len() == len && all.iter().all(|n| *n == 7));
            let begin = all.as_ptr() as usize;
            assert!(
                begin.is_multiple_of(if len * 8 >= HUGE { HUGE } else { 8 }),
                "{len}: {begin:#x}"
            );
            (all[0], all[len - 1]) = (1, 2);
            assert_eq!(all.iter().filter(|n| **n == 7).count(), len.saturating_sub(2));
        }
    }
}
