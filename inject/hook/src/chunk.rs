//! glibc's headers: how large a block has become, and where it comes from.
//!
//! A header is one word in front of the block: the size of its chunk, and in the lowest bits whether it is
//! in use, mapped on its own, or of another arena than the main one. What it says mostly follows from the
//! size that was asked for and from the block before, and then nothing is written.

use crate::state::Thread;
use prof_trace::shared::Function;
use prof_trace::size::{self, Chunks, Header};

/// [`Thread::flags`] that no header has, its lowest bit aside.
pub const UNKNOWN: u64 = IN_USE;
const IN_USE: u64 = 1;
const MAPPED: u64 = 2;
const OTHER_ARENA: u64 = 4;
const STEP: u64 = Chunks::NATIVE.step();
/// What a block at the start of a page has clear.
const IN_PAGE: u64 = 0x1000 - STEP;

/// The size of a new block as it is to be recorded.
#[inline(always)]
pub fn look(f: &Function, t: &mut Thread, addr: u64, size: u64) -> u64 {
    // A function without headers; a block at the start of a page, as what is in front of that may not be
    // there; one that is not aligned, or whose address has a tag.
    if f.headers < 2 && (f.headers == 0 || addr & IN_PAGE == 0)
        || addr & (0xff << 56 | (STEP - 1)) != 0
    {
        return if t.flags == UNKNOWN { size } else { other(t, size) };
    }
    // SAFETY: the word lies on the page that the block begins on, whoever has made it, or the block is
    // glibc's for sure. It is aligned, and another thread may change its lowest bit at any time.
    let header = unsafe {
        core::ptr::with_exposed_provenance::<usize>(addr as usize - size_of::<usize>())
            .read_volatile()
    } as u64;
    // Should this overflow, they are not equal.
    let chunk = Chunks::NATIVE.smallest(size);
    if header & !IN_USE == chunk | t.flags {
        return size;
    }
    unusual(t, header, size)
}

/// A block of another allocator, or one whose header can't be read.
#[cold]
#[inline(never)]
fn other(t: &mut Thread, size: u64) -> u64 {
    t.flags = UNKNOWN;
    size::with_header(size, Header::default())
}

#[cold]
#[inline(never)]
fn unusual(t: &mut Thread, header: u64, size: u64) -> u64 {
    let steps = (header & !(STEP - 1)).wrapping_sub(Chunks::NATIVE.smallest(size)) / STEP;
    // Of 64-bit headers, the bit beside the flags is clear.
    if header & (STEP - 1) & !7 != 0 || !size::can_have_header(size, steps) {
        return if t.flags == UNKNOWN { size } else { other(t, size) };
    }
    let mapped = header & MAPPED != 0;
    if !mapped {
        t.flags = header & OTHER_ARENA;
    }
    let arena = match (mapped, header & OTHER_ARENA) {
        (true, _) => 0,
        (_, 0) => 1,
        _ => 2,
    };
    size::with_header(size, Header { arena, mapped, extra: steps as u32 })
}
