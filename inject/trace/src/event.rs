//! Encoding of events.
//!
//! An event is a 16-bit little-endian head (kind in bits 0..4, then four 3-bit lengths) followed by up to
//! four integers of 0 to 7 bytes. Integers are deltas against the state that the previous event of the same
//! segment left ([`Codec`]), so that a typical allocation takes 7 to 10 bytes. The lengths stand together in
//! the head, so that encoding and decoding need no branch per byte.

use crate::call::{MAX_NAME, RawCall};

/// Maximum length of an encoded event, in bytes; also the free space that the encoder needs.
pub const MAX_EVENT: usize = 64;

/// Flag in the kind: the address delta is not a multiple of 16 and is not shifted.
const UNALIGNED: u8 = 8;
const ALLOC: u8 = 1;
const FREE: u8 = 2;
const FREE_STACK: u8 = 3;
const REALLOC: u8 = 4;
const DEFINE: u8 = 5;
const CALL: u8 = 6;
const TEXT: u8 = 7;

/// Maximum number of nodes in one definition.
pub const DEFINE_NODES: usize = 3;
/// Bytes of text in one entry.
pub const TEXT_BYTES: usize = 28;
/// Greatest number of entries in front of a call, which hold its name.
pub const TEXTS: usize = MAX_NAME.div_ceil(TEXT_BYTES);
/// Addresses in calls are cut to this: any two then have a difference that can be encoded.
const CALL_ADDRESS: u64 = (1 << 55) - 1;

/// Maximum length of an encoded definition; the encoder may write a few bytes beyond it.
pub const MAX_DEFINE: usize = 16;

/// A decoded event. Times are ticks of the recording's clock; addresses are the target's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The allocator returned a block. The time is taken after the return.
    Alloc {
        /// Ticks.
        time: u64,
        /// Address of the block.
        addr: u64,
        /// Requested bytes.
        size: u64,
        /// Stack node: its number in the segment (see [`Entry`]), or its id in a recording.
        node: u32,
    },
    /// The program frees a block. The time is taken before the allocator is entered.
    Free {
        /// Ticks.
        time: u64,
        /// Address of the block.
        addr: u64,
        /// Stack node of the free if the recording has those; else 0.
        node: u32,
    },
    /// The block `old` was freed at `time_before` and `addr` was allocated at `time`, possibly in place.
    Realloc {
        /// Ticks before the allocator was entered: end of the old block.
        time_before: u64,
        /// Ticks after it returned: start of the new block.
        time: u64,
        /// Address of the old block.
        old: u64,
        /// Address of the new block.
        addr: u64,
        /// Requested bytes.
        size: u64,
        /// Stack node, as in [`Event::Alloc`].
        node: u32,
    },
}

/// An entry of a segment: an event, or a definition of stack nodes that events name.
///
/// The nodes of a segment are numbered from 1 in the order of their definitions. A segment can be decoded
/// without anything outside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// An event.
    Event(Event),
    /// New nodes, as a chain: the first is a child of `parent`, each other one a child of the node before it.
    Define {
        /// Number of the first node's parent; 0: the root (the first node is an outermost frame).
        parent: u32,
        /// Code address ids (see [`crate::pcs`]), outermost first; 0 behind the last.
        pcs: [u32; DEFINE_NODES],
    },
    /// A call that changes mappings, or the settings of the allocator. Recordings have these elsewhere.
    Call(RawCall),
    /// The next bytes of the name in the next call, and their number.
    Text([u8; TEXT_BYTES], usize),
}

impl Event {
    /// Returns the stack node; 0: none.
    #[inline(always)]
    pub fn node(&self) -> u32 {
        match *self {
            Event::Alloc { node, .. } | Event::Free { node, .. } | Event::Realloc { node, .. } => {
                node
            }
        }
    }

    /// Returns the time that orders the event within its thread: when it was written.
    pub fn time(&self) -> u64 {
        match *self {
            Event::Alloc { time, .. } | Event::Free { time, .. } | Event::Realloc { time, .. } => {
                time
            }
        }
    }
}

/// State that encoder and decoder carry from event to event of one segment.
///
/// It is all zeroes at the start of a segment; a chunk of a recording carries the state at its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Codec {
    /// Time of the last event.
    pub time: u64,
    /// Address of the last event.
    pub addr: u64,
    /// Stack node of the last event that had one.
    pub node: u32,
    /// Number of stack nodes defined so far; 0 in a recording.
    pub defined: u32,
}

#[inline(always)]
fn zigzag(v: i64) -> u64 {
    ((v << 1) ^ (v >> 63)) as u64
}

#[inline(always)]
fn unzigzag(v: u64) -> i64 {
    ((v >> 1) as i64) ^ -((v & 1) as i64)
}

/// Returns the bytes needed for `v`. Callers exclude values that need more than 7.
#[inline(always)]
fn len_of(v: u64) -> u32 {
    ((64 - v.leading_zeros()) + 7) >> 3
}

/// Values from here on do not fit 7 bytes and can't be encoded.
const LIMIT: u64 = 1 << 56;

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
        time: u64,
        addr: u64,
        size: u64,
        node: u32,
    ) -> usize {
        let t = time.wrapping_sub(self.time);
        let (a, k) = self.addr_delta(addr);
        let n = zigzag(node as i64 - self.node as i64);
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
    pub unsafe fn put_free(&mut self, at: *mut u8, time: u64, addr: u64, node: u32) -> usize {
        let t = time.wrapping_sub(self.time);
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
        time_before: u64,
        time: u64,
        old: u64,
        addr: u64,
        size: u64,
        node: u32,
    ) -> usize {
        let t = time.wrapping_sub(self.time);
        let back = time.wrapping_sub(time_before);
        let (a, k) = self.addr_delta(addr);
        let o = zigzag(old.wrapping_sub(addr) as i64);
        let n = zigzag(node as i64 - self.node as i64);
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
        parent: u32,
        pcs: [u32; DEFINE_NODES],
    ) -> usize {
        let back = (self.defined + 1).wrapping_sub(parent) as u64;
        self.defined += pcs.iter().filter(|pc| **pc != 0).count() as u32;
        let [a, b, c] = pcs.map(u64::from);
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
        let t = call.time.wrapping_sub(self.time);
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

    /// Decodes the entries at the front of a segment's `bytes` and passes them to `v`. Stops at the first
    /// that is malformed, truncated or rejected by `v`, or behind which `v` does not go on; only in the last case
    /// can the decoding be continued there. Returns the bytes decoded.
    ///
    /// Unlike [`Codec::get_entry`] this keeps its state in registers if all of `v` is inlined: the collector
    /// must keep up with all threads.
    #[inline(always)]
    pub fn visit(&mut self, bytes: &[u8], v: &mut impl Visit) -> usize {
        let (mut codec, mut at) = (*self, 0);
        let mut good = true;
        while good && let Some(window) = bytes[at..].first_chunk::<MAX_EVENT>() {
            match codec.visit_from(window, MAX_EVENT, v) {
                Some((n, true)) => (at, good) = (at + n, v.goes_on()),
                _ => good = false,
            }
        }
        while good && at < bytes.len() {
            match codec.visit_from(&padded_with_zeroes(&bytes[at..]), bytes.len() - at, v) {
                Some((n, true)) => (at, good) = (at + n, v.goes_on()),
                _ => good = false,
            }
        }
        *self = codec;
        at
    }

    /// Decodes the entry at the start of a segment's `bytes`; returns what [`Codec::get`] returns for events.
    #[inline(always)]
    pub fn get_entry(&mut self, bytes: &[u8]) -> Option<(Entry, usize)> {
        match bytes.first_chunk::<MAX_EVENT>() {
            Some(b) => self.get_from(b, MAX_EVENT),
            None => self.get_last_entry(bytes),
        }
    }

    /// Returns the encoded length of an event, 0 if it can't be encoded; changes the state as encoding does.
    pub fn length(&mut self, event: &Event) -> usize {
        let mut b = [0u8; MAX_EVENT];
        let at = b.as_mut_ptr();
        // SAFETY: the buffer has MAX_EVENT bytes.
        unsafe {
            match *event {
                Event::Alloc { time, addr, size, node } => {
                    self.put_alloc(at, time, addr, size, node)
                }
                Event::Free { time, addr, node } => self.put_free(at, time, addr, node),
                Event::Realloc { time_before, time, old, addr, size, node } => {
                    self.put_realloc(at, time_before, time, old, addr, size, node)
                }
            }
        }
    }

    /// Changes the state as encoding or decoding `event` does.
    pub fn follow(&mut self, event: &Event) {
        let (Event::Alloc { addr, .. } | Event::Free { addr, .. } | Event::Realloc { addr, .. }) =
            *event;
        self.time = event.time();
        self.addr = addr;
        if !matches!(event, Event::Free { node: 0, .. }) {
            self.node = event.node();
        }
    }

    /// Decodes the event at the start of `bytes`; returns it with its length, or `None` if the bytes are
    /// malformed, truncated or another entry than an event.
    #[inline(always)]
    pub fn get(&mut self, bytes: &[u8]) -> Option<(Event, usize)> {
        if matches!(bytes.first()? & 7, DEFINE | CALL | TEXT) {
            return None;
        }
        match self.get_entry(bytes)? {
            (Entry::Event(e), n) => Some((e, n)),
            _ => None,
        }
    }

    #[cold]
    fn get_last_entry(&mut self, bytes: &[u8]) -> Option<(Entry, usize)> {
        self.get_from(&padded_with_zeroes(bytes), bytes.len())
    }

    #[inline(always)]
    fn get_from(&mut self, bytes: &[u8; MAX_EVENT], len: usize) -> Option<(Entry, usize)> {
        let mut kept = Kept(None);
        let (n, _) = self.visit_from(bytes, len, &mut kept)?;
        Some((kept.0?, n))
    }

    /// Decodes one entry, of which `len` bytes are valid, and passes it to `v`; returns its length and the
    /// answer of `v`. No entry exceeds [`MAX_EVENT`], so that callers with a whole window pass that constant
    /// and the length checks are compiled out.
    #[inline(always)]
    fn visit_from(
        &mut self,
        bytes: &[u8; MAX_EVENT],
        len: usize,
        v: &mut impl Visit,
    ) -> Option<(usize, bool)> {
        let (kind, lens) = head(bytes, 0);
        let mut pos = 2;
        let t = int(bytes, &mut pos, lens[0]);
        let a = int(bytes, &mut pos, lens[1]);
        let size = int(bytes, &mut pos, lens[2]);
        let n = int(bytes, &mut pos, lens[3]);
        if len < MAX_EVENT && pos > len {
            return None;
        }
        if kind == DEFINE {
            return Some((pos, self.defined(t, [a, size, n], v)?));
        }
        let time = self.time.wrapping_add(t);
        let d = if kind & UNALIGNED == 0 { unzigzag(a).wrapping_shl(4) } else { unzigzag(a) };
        let addr = self.addr.wrapping_add(d as u64);
        let node = (self.node as i64).wrapping_add(unzigzag(n)) as u32;
        let kind = kind & 7;
        if !(ALLOC..=REALLOC).contains(&kind) {
            if kind == TEXT {
                return Some((pos, self.text(bytes, lens, v)));
            }
            if kind != CALL {
                return None;
            }
            let (_, more) = head(bytes, pos);
            pos += 2;
            let rest = more.map(|len| int(bytes, &mut pos, len));
            if len < MAX_EVENT && pos > len {
                return None;
            }
            let call = called(time, addr, size, node, rest)?;
            (self.time, self.addr, self.node) = (time, addr, node);
            return Some((pos, v.call(&call)));
        }
        let (mut back, mut old) = (0, 0);
        if kind == REALLOC {
            let (_, more) = head(bytes, pos);
            pos += 2;
            back = int(bytes, &mut pos, more[0]);
            old = addr.wrapping_add(unzigzag(int(bytes, &mut pos, more[1])) as u64);
            if len < MAX_EVENT && pos > len {
                return None;
            }
        }
        self.time = time;
        self.addr = addr;
        if kind == FREE {
            return Some((pos, v.free(time, addr, 0)));
        }
        self.node = node;
        let said = match kind {
            ALLOC => v.alloc(time, addr, size, node),
            FREE_STACK => v.free(time, addr, node),
            _ => v.realloc([time.wrapping_sub(back), time], old, addr, size, node),
        };
        Some((pos, said))
    }

    /// Passes the text of an entry on, whose four integers have these lengths.
    #[inline(always)]
    fn text(&self, bytes: &[u8; MAX_EVENT], lens: [u32; 4], v: &mut impl Visit) -> bool {
        let count = lens.iter().sum::<u32>() as usize;
        v.text(bytes.get(2..2 + count).unwrap_or(&[]))
    }

    #[inline(always)]
    fn defined(&mut self, back: u64, pcs: [u64; 3], v: &mut impl Visit) -> Option<bool> {
        let [a, b, c] = pcs;
        let parent = (self.defined as u64 + 1).checked_sub(back)? as u32;
        let gap = a == 0 || (b == 0 && c != 0);
        if gap || back == 0 || (a | b | c) > u64::from(u32::MAX) {
            return None;
        }
        self.defined = self.defined.checked_add(1 + u32::from(b != 0) + u32::from(c != 0))?;
        Some(v.define(parent, [a as u32, b as u32, c as u32]))
    }
}

/// Returns the call with these integers of its entry; `None` if its kind is unknown.
#[cold]
#[inline(never)]
fn called(time: u64, addr: u64, len: u64, node: u32, rest: [u64; 4]) -> Option<RawCall> {
    let [head, took, first, second] = rest;
    Some(RawCall { time, took, addr, len, first, second, node, ..RawCall::from_head(head)? })
}

/// Receiver of the entries that [`Codec::visit`] decodes. A method returns false to stop before its entry:
/// the entry is invalid, or there is no room for it.
pub trait Visit {
    /// Receives an [`Entry::Define`].
    fn define(&mut self, parent: u32, pcs: [u32; DEFINE_NODES]) -> bool;
    /// Receives an [`Event::Alloc`].
    fn alloc(&mut self, time: u64, addr: u64, size: u64, node: u32) -> bool;
    /// Receives an [`Event::Free`].
    fn free(&mut self, time: u64, addr: u64, node: u32) -> bool;
    /// Receives an [`Event::Realloc`]; `times` are its `time_before` and `time`.
    fn realloc(&mut self, times: [u64; 2], old: u64, addr: u64, size: u64, node: u32) -> bool;
    /// Receives an [`Entry::Call`], which only segments have.
    fn call(&mut self, _call: &RawCall) -> bool {
        false
    }
    /// Receives an [`Entry::Text`], which only segments have.
    fn text(&mut self, _text: &[u8]) -> bool {
        false
    }
    /// Returns whether it wants the entry behind the last one that it received.
    #[inline(always)]
    fn goes_on(&self) -> bool {
        true
    }
}

/// Keeps the visited entry as a value.
struct Kept(Option<Entry>);

impl Visit for Kept {
    #[inline(always)]
    fn define(&mut self, parent: u32, pcs: [u32; DEFINE_NODES]) -> bool {
        self.0 = Some(Entry::Define { parent, pcs });
        true
    }

    #[inline(always)]
    fn alloc(&mut self, time: u64, addr: u64, size: u64, node: u32) -> bool {
        self.0 = Some(Entry::Event(Event::Alloc { time, addr, size, node }));
        true
    }

    #[inline(always)]
    fn free(&mut self, time: u64, addr: u64, node: u32) -> bool {
        self.0 = Some(Entry::Event(Event::Free { time, addr, node }));
        true
    }

    #[inline(always)]
    fn realloc(&mut self, times: [u64; 2], old: u64, addr: u64, size: u64, node: u32) -> bool {
        let [time_before, time] = times;
        self.0 = Some(Entry::Event(Event::Realloc { time_before, time, old, addr, size, node }));
        true
    }

    fn call(&mut self, call: &RawCall) -> bool {
        self.0 = Some(Entry::Call(*call));
        true
    }

    fn text(&mut self, text: &[u8]) -> bool {
        let mut bytes = [0; TEXT_BYTES];
        let n = text.len().min(TEXT_BYTES);
        bytes[..n].copy_from_slice(&text[..n]);
        self.0 = Some(Entry::Text(bytes, n));
        true
    }
}

impl Event {
    /// Passes the event to the method of `v` for its kind; returns the answer.
    #[inline(always)]
    pub fn show(&self, v: &mut impl Visit) -> bool {
        match *self {
            Event::Alloc { time, addr, size, node } => v.alloc(time, addr, size, node),
            Event::Free { time, addr, node } => v.free(time, addr, node),
            Event::Realloc { time_before, time, old, addr, size, node } => {
                v.realloc([time_before, time], old, addr, size, node)
            }
        }
    }
}

/// Copies the last bytes of a buffer, fewer than [`MAX_EVENT`], and pads them with zeroes.
#[cold]
fn padded_with_zeroes(bytes: &[u8]) -> [u8; MAX_EVENT] {
    let mut padded = [0; MAX_EVENT];
    padded[..bytes.len()].copy_from_slice(bytes);
    padded
}

/// Returns the 8 bytes at `pos`, which is at most 2 + 4 * 7 + 2 + 7.
#[inline(always)]
fn word(bytes: &[u8; MAX_EVENT], pos: usize) -> u64 {
    let at = pos.min(MAX_EVENT - 8);
    let mut w = [0; 8];
    w.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(w)
}

#[inline(always)]
fn head(bytes: &[u8; MAX_EVENT], pos: usize) -> (u8, [u32; 4]) {
    let h = word(bytes, pos) as u32;
    ((h & 15) as u8, [h >> 4 & 7, h >> 7 & 7, h >> 10 & 7, h >> 13 & 7])
}

#[inline(always)]
fn int(bytes: &[u8; MAX_EVENT], pos: &mut usize, len: u32) -> u64 {
    let mask = (1u64 << (len * 8)) - 1;
    let v = word(bytes, *pos) & mask;
    *pos += len as usize;
    v
}

#[cfg(test)]
mod tests;
