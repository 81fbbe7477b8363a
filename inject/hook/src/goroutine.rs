//! Stacks of goroutines, on which the stack of C code that Go has called goes on.
//!
//! Such a stack lies in Go's heap, and nothing but the goroutine's `g` says how far it reaches. So when a walk first comes
//! to a page of one, or to a page with a `g`, that page is read by a system call, which can't fault. Later walks read it
//! directly, which is safe for these reasons:
//!
//! - A `g` is never freed, and what Go gives back to the system of its heap can still be read: that is `madvise`. (With
//!   `GODEBUG=efence=1` freed memory can't be read; but nothing that is freed is read here.)
//! - The goroutine waits for the C code that the walk has come from, so its stack is neither freed nor moved: Go shrinks
//!   no stack in a system call, as which a call of C counts (`isShrinkStackSafe` in Go's `runtime/stack.go`), and nobody
//!   but the goroutine lets its stack grow.
//!
//! One system call for each word or each stack was tried first: it takes up to 2 µs, as much as five allocations.
//! The hook learns of no further pages where it may make no system calls. Stacks on such pages end at the call from Go.

use crate::mapping::Shared;
use crate::memory::{PAGE, readable};
use crate::range::Extent;
use crate::sys;
use prof_arch::unwind::Goroutine;

/// Number of regions of which a thread knows pages, and its logarithm.
const REGIONS: usize = 1 << REGIONS_LOG;
const REGIONS_LOG: u32 = 8;
/// Maximum number of pages of a stack that are learned, from the stack pointer on. Deeper parts are read word by word.
const PAGES: u64 = 128;

/// Sixty-four pages of Go's heap.
#[repr(C)]
#[derive(Clone, Copy)]
struct Region {
    /// Number of the first page, divided by 64.
    number: u64,
    /// A bit for each page that was found readable.
    known: u64,
}

/// Pages with stacks of goroutines, and with what leads there. All zeroes is a valid, empty state.
#[repr(C)]
pub struct Goroutines {
    regions: [Region; REGIONS],
}

impl Goroutines {
    /// Forgets all pages.
    pub fn clear(&mut self) {
        self.regions = [Region { number: 0, known: 0 }; REGIONS];
    }

    /// Returns the entry for an address, the number of its region, and the bit of its page.
    #[inline]
    fn find(&mut self, addr: u64) -> (Option<&mut Region>, u64, u64) {
        let (number, bit) = (addr / PAGE / 64, 1 << (addr / PAGE % 64));
        let h = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - REGIONS_LOG);
        (self.regions.get_mut(h as usize), number, bit)
    }

    #[inline]
    fn knows(&mut self, addr: u64) -> bool {
        let (region, number, bit) = self.find(addr);
        region.is_some_and(|r| r.number == number && r.known & bit != 0)
    }

    fn learn(&mut self, addr: u64) {
        let (region, number, bit) = self.find(addr);
        let Some(region) = region else { return };
        if region.number != number {
            *region = Region { number, known: 0 };
        }
        region.known |= bit;
    }

    /// Returns the page of an address if the page is known to be readable.
    #[inline]
    pub fn page(&mut self, addr: u64) -> Option<Extent> {
        let start = addr & !(PAGE - 1);
        self.knows(addr).then(|| Extent { start, end: start.saturating_add(PAGE) })
    }

    /// Learns the pages on which the stack of a goroutine goes on, and the page that has its end. The word at its end
    /// and the word at the stack pointer have been read.
    pub fn enter(&mut self, shared: &Shared, g: &Goroutine) {
        if !sys::allowed(shared) {
            return;
        }
        self.learn(g.end_at);
        let first = g.sp & !(PAGE - 1);
        for at in (first..g.end).step_by(PAGE as usize).take(PAGES as usize) {
            if !self.knows(at) {
                if !readable(shared, at, 1) {
                    return;
                }
                self.learn(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;

    #[test]
    fn pages_are_known_that_were_learned() {
        // SAFETY: all zeroes is a valid state.
        let mut g: Box<Goroutines> = unsafe { Box::new_zeroed().assume_init() };
        let at = 0xc000_0123_4560;
        let page = |g: &mut Goroutines, at| g.page(at).map(|e| (e.start, e.end));
        assert_eq!([0, 8, at].map(|at| page(&mut g, at)), [None; 3]);
        g.learn(at);
        let mine = Some((0xc000_0123_4000, 0xc000_0123_5000));
        assert_eq!([at & !0xfff, at, at | 0xfff].map(|at| page(&mut g, at)), [mine; 3]);
        assert_eq!([at - PAGE, at + PAGE, at ^ 1 << 30].map(|at| page(&mut g, at)), [None; 3]);
        g.learn(at + PAGE);
        assert_eq!(page(&mut g, at), mine);
        assert!(g.page(at + PAGE).is_some());
        // A region that falls on the same entry replaces it, and does not inherit its pages.
        let entry = |g: &mut Goroutines, at| g.find(at).0.map(core::ptr::from_mut);
        let first = entry(&mut g, at);
        let other = (1..).map(|n| at + n * 64 * PAGE).find(|at| entry(&mut g, *at) == first);
        let other = other.expect("an address");
        g.learn(other);
        assert_eq!([at, at + PAGE, other + PAGE].map(|at| page(&mut g, at)), [None; 3]);
        g.clear();
        assert_eq!(page(&mut g, other), None);
    }
}
