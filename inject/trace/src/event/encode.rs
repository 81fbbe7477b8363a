//! Writes entries of a segment, and events of a recording.

use crate::call::RawCall;
#[allow(unused_imports)] // for the documentation
use crate::call::TEXT_BYTES;
#[allow(unused_imports)] // for the documentation
use crate::event::MAX_EVENT;
use crate::event::{
    ALLOC, CALL, Codec, DEFINE, DEFINE_NODES, FREE, FREE_STACK, REALLOC, TEXT, UNALIGNED,
};
use crate::ids::{PcId, SegmentNode};
use crate::size::CodedSize;
use crate::ticks::Ticks;

/// Addresses in calls are cut to this: any two then have a difference that can be encoded.
const CALL_ADDRESS: u64 = (1 << 55) - 1;
/// Values from here on do not fit 7 bytes and can't be encoded.
const LIMIT: u64 = 1 << 56;

#[inline(always)]
fn zigzag(v: i64) -> u64 {
    ((v << 1) ^ (v >> 63)) as u64
}

/// Returns the bytes needed for `v`. Callers exclude values that need more than 7.
#[inline(always)]
fn len_of(v: u64) -> u32 {
    ((64 - v.leading_zeros()) + 7) >> 3
}

/// Write position of the encoder.
struct Pen {
    at: *mut u8,
}

impl Pen {
    /// # Safety
    /// 8 bytes from the current position must be writable.
    #[inline(always)]
    unsafe fn int(&mut self, v: u64, len: u32) {
        // SAFETY: the 8 bytes are writable by the caller's promise; the write may be unaligned.
        unsafe {
            self.at.cast::<u64>().write_unaligned(v.to_le());
            self.at = self.at.add(len as usize);
        }
    }

    /// # Safety
    /// As for [`Pen::int`].
    #[inline(always)]
    unsafe fn head(&mut self, kind: u8, lens: [u32; 4]) {
        let h = kind as u32 | lens[0] << 4 | lens[1] << 7 | lens[2] << 10 | lens[3] << 13;
        // SAFETY: the 8 bytes are writable by the caller's promise.
        unsafe { self.int(h as u64, 2) }
    }
}

impl Codec {
    /// Returns the address as a delta to the last one, and the kind flag that goes with it.
    #[inline(always)]
    fn addr_delta(&self, addr: u64) -> (u64, u8) {
        let d = addr.wrapping_sub(self.addr) as i64;
        if d & 15 == 0 { (zigzag(d >> 4), 0) } else { (zigzag(d), UNALIGNED) }
    }

    /// Encodes an allocation at `at`; returns the bytes written, or 0 if a value does not fit.
    ///
    /// # Safety
    /// [`MAX_EVENT`] bytes from `at` must be writable.
    #[inline(always)]
    pub unsafe fn put_alloc(
        &mut self,
        at: *mut u8,
        time: Ticks,
        addr: u64,
        size: CodedSize,
        node: u32,
    ) -> usize {
        let t = time.wrapping_since(self.time);
        let (a, k) = self.addr_delta(addr);
        let n = zigzag(node as i64 - self.node as i64);
        let size = size.0;
        if (t | a | size) >= LIMIT {
            return 0;
        }
        self.time = time;
        self.addr = addr;
        self.node = node;
        let lens = [len_of(t), len_of(a), len_of(size), len_of(n)];
        let mut pen = Pen { at };
        // SAFETY: 2 + 4 * 7 + 8 bytes are fewer than the MAX_EVENT that the caller promised.
        unsafe {
            pen.head(ALLOC | k, lens);
            pen.int(t, lens[0]);
            pen.int(a, lens[1]);
            pen.int(size, lens[2]);
            pen.int(n, lens[3]);
            pen.at.offset_from_unsigned(at)
        }
    }

    /// Encodes a free (`node` 0: without a stack); returns what [`Codec::put_alloc`] returns.
    ///
    /// # Safety
    /// [`MAX_EVENT`] bytes from `at` must be writable.
    #[inline(always)]
    pub unsafe fn put_free(&mut self, at: *mut u8, time: Ticks, addr: u64, node: u32) -> usize {
        let t = time.wrapping_since(self.time);
        let (a, k) = self.addr_delta(addr);
        if (t | a) >= LIMIT {
            return 0;
        }
        self.time = time;
        self.addr = addr;
        let mut pen = Pen { at };
        if node == 0 {
            let lens = [len_of(t), len_of(a), 0, 0];
            // SAFETY: writes no more than put_alloc, and MAX_EVENT bytes are writable.
            return unsafe {
                pen.head(FREE | k, lens);
                pen.int(t, lens[0]);
                pen.int(a, lens[1]);
                pen.at.offset_from_unsigned(at)
            };
        }
        let n = zigzag(node as i64 - self.node as i64);
        self.node = node;
        let lens = [len_of(t), len_of(a), 0, len_of(n)];
        // SAFETY: as above.
        unsafe {
            pen.head(FREE_STACK | k, lens);
            pen.int(t, lens[0]);
            pen.int(a, lens[1]);
            pen.int(n, lens[3]);
            pen.at.offset_from_unsigned(at)
        }
    }

    /// Encodes a reallocation; returns what [`Codec::put_alloc`] returns.
    ///
    /// # Safety
    /// [`MAX_EVENT`] bytes from `at` must be writable.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)] // one per field of the event; a struct would be copied
    pub unsafe fn put_realloc(
        &mut self,
        at: *mut u8,
        time_before: Ticks,
        time: Ticks,
        old: u64,
        addr: u64,
        size: CodedSize,
        node: u32,
    ) -> usize {
        let t = time.wrapping_since(self.time);
        let back = time.wrapping_since(time_before);
        let (a, k) = self.addr_delta(addr);
        let o = zigzag(old.wrapping_sub(addr) as i64);
        let n = zigzag(node as i64 - self.node as i64);
        let size = size.0;
        if (t | a | size | back | o) >= LIMIT {
            return 0;
        }
        self.time = time;
        self.addr = addr;
        self.node = node;
        let lens = [len_of(t), len_of(a), len_of(size), len_of(n)];
        let more = [len_of(back), len_of(o), 0, 0];
        let mut pen = Pen { at };
        // SAFETY: 2 + 28 + 2 + 14 + 8 bytes are fewer than the MAX_EVENT that the caller promised.
        unsafe {
            pen.head(REALLOC | k, lens);
            pen.int(t, lens[0]);
            pen.int(a, lens[1]);
            pen.int(size, lens[2]);
            pen.int(n, lens[3]);
            pen.head(0, more);
            pen.int(back, more[0]);
            pen.int(o, more[1]);
            pen.at.offset_from_unsigned(at)
        }
    }

    /// Encodes a definition of up to [`DEFINE_NODES`] nodes: a chain below node number `parent`, whose last
    /// node has the number [`Codec::defined`] afterwards. Returns the bytes written.
    ///
    /// # Safety
    /// [`MAX_EVENT`] bytes from `at` must be writable.
    #[inline(always)]
    pub unsafe fn put_define(
        &mut self,
        at: *mut u8,
        parent: SegmentNode,
        pcs: [PcId; DEFINE_NODES],
    ) -> usize {
        let back = (self.defined + 1).wrapping_sub(parent.0) as u64;
        self.defined += pcs.iter().filter(|pc| **pc != PcId::NONE).count() as u32;
        let [a, b, c] = pcs.map(|id| u64::from(id.0));
        let lens = [len_of(back), len_of(a), len_of(b), len_of(c)];
        let mut pen = Pen { at };
        // SAFETY: 2 + 4 * 4 + 8 bytes are fewer than the MAX_EVENT that the caller promised.
        unsafe {
            pen.head(DEFINE, lens);
            pen.int(back, lens[0]);
            pen.int(a, lens[1]);
            pen.int(b, lens[2]);
            pen.int(c, lens[3]);
            pen.at.offset_from_unsigned(at)
        }
    }

    /// Encodes a call; returns what [`Codec::put_alloc`] returns. Numbers are cut to 56 bits, addresses to 55.
    ///
    /// # Safety
    /// [`MAX_EVENT`] bytes from `at` must be writable.
    #[inline(always)]
    pub unsafe fn put_call(&mut self, at: *mut u8, call: &RawCall) -> usize {
        let addr = call.addr & CALL_ADDRESS;
        let t = call.time.wrapping_since(self.time);
        let (a, k) = self.addr_delta(addr);
        let n = zigzag(call.node as i64 - self.node as i64);
        if (t | a) >= LIMIT {
            return 0;
        }
        self.time = call.time;
        self.addr = addr;
        self.node = call.node;
        let len = call.len & (LIMIT - 1);
        let rest = [call.head(), call.took, call.first, call.second].map(|v| v & (LIMIT - 1));
        let lens = [len_of(t), len_of(a), len_of(len), len_of(n)];
        let more = rest.map(len_of);
        let mut pen = Pen { at };
        // SAFETY: 2 + 28 + 2 + 21 + 8 bytes are fewer than the MAX_EVENT that the caller promised.
        unsafe {
            pen.head(CALL | k, lens);
            pen.int(t, lens[0]);
            pen.int(a, lens[1]);
            pen.int(len, lens[2]);
            pen.int(n, lens[3]);
            pen.head(0, more);
            for (v, len) in rest.into_iter().zip(more) {
                pen.int(v, len);
            }
            pen.at.offset_from_unsigned(at)
        }
    }

    /// Encodes up to [`TEXT_BYTES`] bytes of text, which belong to the name in the next call. Returns the bytes
    /// written.
    ///
    /// # Safety
    /// [`MAX_EVENT`] bytes from `at` must be writable.
    pub unsafe fn put_text(&self, at: *mut u8, text: &[u8]) -> usize {
        let mut lens = [0; 4];
        for (len, part) in lens.iter_mut().zip(text.chunks(7)) {
            *len = part.len() as u32;
        }
        let mut pen = Pen { at };
        // SAFETY: 2 + 3 * 7 + 8 bytes are fewer than the MAX_EVENT that the caller promised.
        unsafe {
            pen.head(TEXT, lens);
            for (part, len) in text.chunks(7).zip(lens) {
                let mut word = 0;
                for b in part.iter().rev() {
                    word = word << 8 | u64::from(*b);
                }
                pen.int(word, len);
            }
            pen.at.offset_from_unsigned(at)
        }
    }
}
