//! glibc's chunk headers: the size of a block's chunk, and its arena.
//!
//! A header is one word in front of the block: the size of the chunk, and in the lowest bits whether the
//! chunk in front is in use, and whether this one is a mapping of its own or of another arena than the main
//! one. Mostly all of this follows from the requested size and from the thread's last block, and then nothing
//! is recorded.

use crate::state::{SAY, Thread, UNKNOWN};
use prof_trace::shared::Function;
use prof_trace::size::{CodedSize, GlibcChunks, Header, can_have_header};

const IN_USE: u64 = 1;
const MAPPED: u64 = 2;
const OTHER_ARENA: u64 = 4;
const STEP: u64 = GlibcChunks::NATIVE.step();
/// Address bits that are clear if a block begins at the start of a page.
const IN_PAGE: u64 = 0x1000 - STEP;

/// Returns the size of a new block as it is recorded: with its header, if that is not as expected.
#[inline(always)]
pub fn look(f: &Function, t: &mut Thread, addr: u64, size: u64) -> CodedSize {
    // No header is read for a function without headers. None is read at the start of a page, as the page in
    // front may be unmapped, unless all blocks are glibc's. None is read at an unaligned or tagged address.
    if f.headers < 2 && (f.headers == 0 || addr & IN_PAGE == 0)
        || addr & (0xff << 56 | (STEP - 1)) != 0
    {
        return if t.flags == UNKNOWN { CodedSize(size) } else { other(t, size) };
    }
    // SAFETY: the word lies on the page that the block begins on, or the block is glibc's and has a header.
    // It is aligned. Volatile, as another thread may change its lowest bit at any time.
    let header = unsafe {
        core::ptr::with_exposed_provenance::<usize>(addr as usize - size_of::<usize>())
            .read_volatile()
    } as u64;
    // If this overflows, the two are not equal.
    let chunk = GlibcChunks::NATIVE.smallest(size);
    if header & !IN_USE == chunk | t.flags {
        return CodedSize(size);
    }
    unusual(t, header, size)
}

/// Encodes the size of a block of another allocator, or of one whose header can't be read.
#[cold]
#[inline(never)]
fn other(t: &mut Thread, size: u64) -> CodedSize {
    let flags = core::mem::replace(&mut t.flags, UNKNOWN);
    encode(t, flags == SAY, size, Header::default())
}

/// Encodes a size with its header, and with the sampling distance if that has to be stated.
fn encode(t: &mut Thread, say: bool, size: u64, header: Header) -> CodedSize {
    if !say {
        return CodedSize::with_header(size, header);
    }
    let sized = CodedSize::with_rate(size, header, t.rate);
    if sized.rate() == 0 {
        // A block this large has no bits left for the distance. The next block states it.
        t.rate = 0;
    }
    sized
}

#[cold]
#[inline(never)]
fn unusual(t: &mut Thread, header: u64, size: u64) -> CodedSize {
    let steps = (header & !(STEP - 1)).wrapping_sub(GlibcChunks::NATIVE.smallest(size)) / STEP;
    // Bit 3 of a 64-bit header is clear.
    if header & (STEP - 1) & !7 != 0 || !can_have_header(size, steps) {
        return if t.flags == UNKNOWN { CodedSize(size) } else { other(t, size) };
    }
    let mapped = header & MAPPED != 0;
    let say = t.flags == SAY;
    if !mapped {
        t.flags = header & OTHER_ARENA;
    } else if say {
        t.flags = UNKNOWN;
    }
    let arena = match (mapped, header & OTHER_ARENA) {
        (true, _) => 0,
        (_, 0) => 1,
        _ => 2,
    };
    encode(t, say, size, Header { arena, mapped, extra: steps as u32 })
}
