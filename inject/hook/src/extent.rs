//! Extents of the stacks that a thread runs on, so that words on them can be read without asking the kernel
//! each time.

use crate::mapping::Shared;
use crate::memory::{PAGE, readable};
use crate::range::Extent;
use crate::state::Thread;
use crate::{sys, thread};
use prof_arch::native::capture::thread_pointer;
use prof_trace::protocol::stack_of;

/// Bytes below the end of the first thread's stack that are nothing but stack: the kernel keeps at least this
/// much free for it.
const MAIN_REACH: u64 = 128 << 20;
/// Maximum size of a stack that is recognised by the thread descriptor at its end.
const THREAD_REACH: u64 = 1 << 30;
/// Maximum number of pages of an unknown stack (a fiber's, a signal stack) that are checked.
const FIBER_PAGES: u64 = 256;
/// Without system calls: maximum distance below the known part at which a stack is taken to continue.
const TRUST: u64 = 1 << 20;

/// Returns whether `sp` lies on the stack that the thread was last seen on.
#[inline(always)]
pub fn is_current(t: &Thread, sp: u64) -> bool {
    t.extents[0].holds(sp)
}

/// Returns whether the word at `addr` is on a stack that the thread is known to have run on.
#[inline(always)]
pub fn is_known(t: &Thread, addr: u64) -> bool {
    t.extents.iter().any(|e| e.has_word(addr))
}

/// Makes the stack that `sp` lies on the current one: the first of the thread's extents.
pub fn enter(shared: &Shared, tid: u32, t: &mut Thread, sp: u64) {
    if let Some(i) = t.extents.iter().position(|e| e.holds(sp)) {
        t.extents.swap(0, i);
        return;
    }
    if let Some(i) = (0..t.extents.len()).find(|i| continues(shared, &t.extents[*i], sp)) {
        t.extents[i].start = sp & !(PAGE - 1);
        t.extents.swap(0, i);
        return;
    }
    let found = main_stack(shared, tid, sp)
        .or_else(|| listed(shared, sp))
        .or_else(|| thread_stack(shared, sp))
        .or_else(|| unknown_stack(shared, sp))
        // Nothing is known but that the page of sp can be read.
        .unwrap_or(Extent { start: sp & !(PAGE - 1), end: (sp | (PAGE - 1)) + 1 });
    let i = 1 + t.next_extent as usize % (t.extents.len() - 1);
    t.next_extent = t.next_extent.wrapping_add(1);
    t.extents[i] = found;
    t.extents.swap(0, i);
}

/// Forgets the stacks of this thread of which memory was taken away: other memory may come to their place, and end at
/// another address.
#[inline(always)]
pub fn release(t: &mut Thread, start: u64, len: u64) {
    let end = start.saturating_add(len);
    if t.extents.iter().any(|e| e.start < end && start < e.end) {
        forget(t, start, end);
    }
}

#[cold]
#[inline(never)]
fn forget(t: &mut Thread, start: u64, end: u64) {
    for e in t.extents.iter_mut().filter(|e| e.start < end && start < e.end) {
        *e = Extent { start: 0, end: 0 };
    }
    // The remembered stack may depend on words of these stacks.
    t.forget();
}

/// Returns whether the known part of a stack has grown downwards to `sp`.
fn continues(shared: &Shared, e: &Extent, sp: u64) -> bool {
    if e.end == 0 || sp >= e.start {
        return false;
    }
    let from = sp & !(PAGE - 1);
    let gap = e.start - from;
    if !sys::allowed(shared) {
        return gap <= TRUST;
    }
    gap <= 16 * PAGE && readable(shared, from, gap / PAGE)
}

/// Returns the end of the calling thread's own stack, if `sp` lies on it and everything between can be read.
pub fn end_of_own(shared: &Shared, sp: u64) -> Option<u64> {
    let tid = if sys::allowed(shared) { Some(sys::gettid()) } else { thread::own_tid(shared) };
    let own = tid.and_then(|t| main_stack(shared, t, sp)).or_else(|| thread_stack(shared, sp));
    own.map(|e| e.end)
}

fn main_stack(shared: &Shared, tid: u32, sp: u64) -> Option<Extent> {
    let c = shared.control();
    let end = c.main_stack_end;
    (tid == c.main_tid && sp < end && end - sp < MAIN_REACH)
        .then(|| Extent { start: end.saturating_sub(MAIN_REACH), end })
}

/// Returns the extent of a mapping that prof has listed as a stack.
fn listed(shared: &Shared, sp: u64) -> Option<Extent> {
    // The entry may name memory that is unmapped by now, so the part that matters is checked.
    let (_, end) = stack_of(shared, sp)?;
    let from = sp & !(PAGE - 1);
    // The kernel merges a thread's stack with other memory of the program. Only what is checked counts, and the check
    // takes 0.4 us a page; words beyond are read through the kernel.
    let end = end.min(from.saturating_add(16 * FIBER_PAGES * PAGE));
    let ok = !sys::allowed(shared) || readable(shared, from, (end - from).div_ceil(PAGE));
    ok.then_some(Extent { start: from, end })
}

/// Returns the extent up to the thread descriptor. Every libc puts the descriptor, to which the thread
/// pointer points, at the end of the thread's stack: between `sp` and there everything is stack.
fn thread_stack(shared: &Shared, sp: u64) -> Option<Extent> {
    let tp = thread_pointer();
    if sp >= tp || tp - sp > THREAD_REACH {
        return None;
    }
    let from = sp & !(PAGE - 1);
    let pages = (tp - from).div_ceil(PAGE);
    if sys::allowed(shared) {
        if pages > 16 * FIBER_PAGES || !readable(shared, from, pages) {
            return None;
        }
    } else if tp - sp > 8 * TRUST {
        return None;
    }
    Some(Extent { start: from, end: tp })
}

/// Returns the extent of a stack of unknown origin: the readable pages from `sp` on.
fn unknown_stack(shared: &Shared, sp: u64) -> Option<Extent> {
    if !sys::allowed(shared) {
        return None;
    }
    let from = sp & !(PAGE - 1);
    let mut pages = 0;
    while pages < FIBER_PAGES {
        let got = sys::readable_pages(shared.control().main_tid, from + pages * PAGE, PAGE, 16);
        pages += got;
        if got < 16 {
            break;
        }
    }
    (pages > 0).then(|| Extent { start: from, end: from + pages * PAGE })
}
