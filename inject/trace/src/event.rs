//! The encoding of one event.
//!
//! An event is a 16-bit little-endian head (kind in bits 0..4, then four 3-bit lengths) followed by
//! up to four integers of 0 to 7 bytes. Integers are differences to the state that the previous
//! event of the same segment left ([`Codec`]), so that a usual allocation takes 7 to 10 bytes. The
//! lengths stand together in the head so that writing and reading need no branch per byte.

/// The most bytes that one event may take, and what a buffer must have free before one is written.
pub const MAX_EVENT: usize = 64;

/// Bit of the kind: the address difference is not a multiple of 16 and is not shifted.
const UNALIGNED: u8 = 8;
const ALLOC: u8 = 1;
const FREE: u8 = 2;
const FREE_STACK: u8 = 3;
const REALLOC: u8 = 4;
const DEFINE: u8 = 5;

/// Nodes that one definition may add.
pub const DEFINE_NODES: usize = 3;
/// The most bytes that a definition may take (it may write a few more).
pub const MAX_DEFINE: usize = 16;

/// One event, decoded. Times are in ticks of the recording's clock, addresses are the target's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A block was handed out. The time is taken after the allocator returned.
    Alloc {
        /// Ticks.
        time: u64,
        /// First byte of the block.
        addr: u64,
        /// Bytes asked for.
        size: u64,
        /// Stack node: in a segment, its number there (see [`Entry`]); in a recording, its id.
        node: u32,
    },
    /// A block is about to be given back. The time is taken before the allocator is entered.
    Free {
        /// Ticks.
        time: u64,
        /// First byte of the block.
        addr: u64,
        /// Where from, if the recording was asked for it; 0 otherwise.
        node: u32,
    },
    /// `old` was given back at `time_before` and `addr` handed out at `time`, possibly in place.
    Realloc {
        /// Ticks before the allocator was entered: the old block ends here.
        time_before: u64,
        /// Ticks after it returned: the new block begins here.
        time: u64,
        /// The block before.
        old: u64,
        /// The block after.
        addr: u64,
        /// Bytes asked for.
        size: u64,
        /// Stack node, as above.
        node: u32,
    },
}

/// What stands in a segment: events, and the stack nodes that they name.
///
/// The nodes of a segment are numbered from 1 in the order of their definitions. Nothing outside of
/// the segment is needed to understand it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// An event.
    Event(Event),
    /// New nodes, each the child of the one before it, the first that of `parent`.
    Define {
        /// Number of the node outside of the first one; 0: it is an outermost frame.
        parent: u32,
        /// Code address ids (see [`crate::tree`]); 0 where there are fewer.
        pcs: [u32; DEFINE_NODES],
    },
}

impl Event {
    /// Its stack node; 0: none.
    #[inline(always)]
    pub fn node(&self) -> u32 {
        match *self {
            Event::Alloc { node, .. } | Event::Free { node, .. } | Event::Realloc { node, .. } => {
                node
            }
        }
    }

    /// The same with another stack node.
    #[inline(always)]
    #[must_use]
    pub fn with_node(mut self, to: u32) -> Self {
        match &mut self {
            Event::Alloc { node, .. } | Event::Free { node, .. } | Event::Realloc { node, .. } => {
                *node = to;
            }
        }
        self
    }

    /// The time at which the event stands in its thread's order: when it was written.
    pub fn time(&self) -> u64 {
        match *self {
            Event::Alloc { time, .. } | Event::Free { time, .. } | Event::Realloc { time, .. } => {
                time
            }
        }
    }
}

/// The state that both sides of the encoding carry from event to event of one segment.
///
/// A fresh segment starts from all zeroes; a chunk of a recording carries the state it starts from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Codec {
    /// Time of the last event.
    pub time: u64,
    /// Address of the last event.
    pub addr: u64,
    /// Stack node of the last event that had one.
    pub node: u32,
    /// Stack nodes defined so far; 0 in a recording.
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

/// Bytes needed for `v`, at most 7: larger values are cut, which callers exclude.
#[inline(always)]
fn len_of(v: u64) -> u32 {
    ((64 - v.leading_zeros()) + 7) >> 3
}

/// Values that do not fit 7 bytes can't be written.
const LIMIT: u64 = 1 << 56;

/// A place that events are written to.
struct Pen {
    at: *mut u8,
}

impl Pen {
    /// # Safety
    /// 8 bytes from the current position must be writable.
    #[inline(always)]
    unsafe fn int(&mut self, v: u64, len: u32) {
        // SAFETY: the caller's promise; unaligned by design.
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
        // SAFETY: the caller's promise.
        unsafe { self.int(h as u64, 2) }
    }
}

impl Codec {
    /// The address as a difference to the last one, and the kind bit that goes with it.
    #[inline(always)]
    fn addr_delta(&self, addr: u64) -> (u64, u8) {
        let d = addr.wrapping_sub(self.addr) as i64;
        if d & 15 == 0 { (zigzag(d >> 4), 0) } else { (zigzag(d), UNALIGNED) }
    }

    /// Encodes an allocation at `at`; returns the bytes written, 0 if a value can't be represented.
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
        // SAFETY: 2 + 4 * 7 + 8 bytes are fewer than the caller promised.
        unsafe {
            pen.head(ALLOC | k, lens);
            pen.int(t, lens[0]);
            pen.int(a, lens[1]);
            pen.int(size, lens[2]);
            pen.int(n, lens[3]);
            pen.at.offset_from_unsigned(at)
        }
    }

    /// Encodes a free (`node` 0: without a stack); returns as [`Codec::put_alloc`].
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
            // SAFETY: as in put_alloc.
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

    /// Encodes a reallocation; returns as [`Codec::put_alloc`].
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
        // SAFETY: 2 + 28 + 2 + 14 + 8 bytes are fewer than MAX_EVENT.
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

    /// Encodes the definition of up to [`DEFINE_NODES`] nodes below node number `parent`: a chain, of
    /// which the last has the number [`Codec::defined`] afterwards. Returns the bytes written.
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
        // SAFETY: 2 + 4 * 4 + 8 bytes are fewer than the caller promised.
        unsafe {
            pen.head(DEFINE, lens);
            pen.int(back, lens[0]);
            pen.int(a, lens[1]);
            pen.int(b, lens[2]);
            pen.int(c, lens[3]);
            pen.at.offset_from_unsigned(at)
        }
    }

    /// Gives the entries at the front of `bytes`, of a segment, to `v`: up to the first that is none or is cut
    /// off, or of which `v` says so. Returns how many bytes they are.
    ///
    /// Unlike [`Codec::get_entry`] this keeps everything in registers, if all of `v` is inlined: whoever reads all
    /// that threads write has no time for more.
    #[inline(always)]
    pub fn visit(&mut self, bytes: &[u8], v: &mut impl Visit) -> usize {
        let (mut codec, mut at) = (*self, 0);
        let mut good = true;
        while good && let Some(window) = bytes[at..].first_chunk::<MAX_EVENT>() {
            match codec.visit_from(window, MAX_EVENT, v) {
                Some((n, true)) => at += n,
                _ => good = false,
            }
        }
        while good && at < bytes.len() {
            match codec.visit_from(&padded_with_zeroes(&bytes[at..]), bytes.len() - at, v) {
                Some((n, true)) => at += n,
                _ => good = false,
            }
        }
        *self = codec;
        at
    }

    /// Decodes what stands at the start of `bytes` in a segment, as [`Codec::get`] does for events.
    #[inline(always)]
    pub fn get_entry(&mut self, bytes: &[u8]) -> Option<(Entry, usize)> {
        match bytes.first_chunk::<MAX_EVENT>() {
            Some(b) => self.get_from(b, MAX_EVENT),
            None => self.get_last_entry(bytes),
        }
    }

    /// Bytes that an event takes when it is written here, 0 if it can't be; takes the state that writing it
    /// leaves.
    pub fn length(&mut self, event: &Event) -> usize {
        let mut b = [0u8; MAX_EVENT];
        let at = b.as_mut_ptr();
        // SAFETY: there are MAX_EVENT bytes.
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

    /// Takes the state that writing or reading `event` leaves.
    pub fn follow(&mut self, event: &Event) {
        let (Event::Alloc { addr, .. } | Event::Free { addr, .. } | Event::Realloc { addr, .. }) =
            *event;
        self.time = event.time();
        self.addr = addr;
        if !matches!(event, Event::Free { node: 0, .. }) {
            self.node = event.node();
        }
    }

    /// Decodes the event at the start of `bytes`; returns it with its length, or `None` if the
    /// bytes are no event or are cut off.
    #[inline(always)]
    pub fn get(&mut self, bytes: &[u8]) -> Option<(Event, usize)> {
        if bytes.first()? & 15 == DEFINE {
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

    /// Only `len` of `bytes` are there. No entry is longer than [`MAX_EVENT`], so that whoever has all of them says
    /// that, and the comparison is none.
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
            return None;
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

/// What [`Codec::visit`] gives entries to. Each method may answer that the entry can't be one, whatever
/// its bytes say, with false.
pub trait Visit {
    /// [`Entry::Define`].
    fn define(&mut self, parent: u32, pcs: [u32; DEFINE_NODES]) -> bool;
    /// [`Event::Alloc`].
    fn alloc(&mut self, time: u64, addr: u64, size: u64, node: u32) -> bool;
    /// [`Event::Free`].
    fn free(&mut self, time: u64, addr: u64, node: u32) -> bool;
    /// [`Event::Realloc`]; the times are `time_before` and `time`.
    fn realloc(&mut self, times: [u64; 2], old: u64, addr: u64, size: u64, node: u32) -> bool;
}

/// The entry as a value.
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
}

impl Event {
    /// Gives itself to whoever takes entries apart.
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

/// The last few bytes, fewer than [`MAX_EVENT`].
#[cold]
fn padded_with_zeroes(bytes: &[u8]) -> [u8; MAX_EVENT] {
    let mut padded = [0; MAX_EVENT];
    padded[..bytes.len()].copy_from_slice(bytes);
    padded
}

/// 8 bytes at `pos`, which is at most 2 + 4 * 7 + 2 + 7.
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
