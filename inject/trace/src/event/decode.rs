//! Reads entries of a segment, and events of a recording.

use crate::call::{RawCall, TEXT_BYTES};
use crate::event::{
    ALLOC, CALL, Codec, DEFINE, DEFINE_NODES, Entry, Event, FREE, FREE_STACK, MAX_EVENT, REALLOC,
    TEXT, UNALIGNED,
};
use crate::ids::{PcId, SegmentNode};
use crate::size::CodedSize;
use crate::ticks::Ticks;

#[inline(always)]
fn unzigzag(v: u64) -> i64 {
    ((v >> 1) as i64) ^ -((v & 1) as i64)
}

impl Codec {
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

    /// Decodes the event at the start of `bytes`; returns it with its length, or `None` if the bytes are
    /// malformed, truncated or another entry than an event.
    #[inline(always)]
    pub fn get(&mut self, bytes: &[u8]) -> Option<(Event, usize)> {
        if matches!(bytes.first()? & 7, DEFINE | CALL | TEXT) {
            return None;
        }
        match self.get_entry(bytes)? {
            (Entry::Event(e), n) => Some((e.map_node(|node| node.0), n)),
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
    fn visit_from<V: Visit>(
        &mut self,
        bytes: &[u8; MAX_EVENT],
        len: usize,
        v: &mut V,
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
            return Some((pos, v.free(time, addr, V::Node::from(0))));
        }
        self.node = node;
        let node = V::Node::from(node);
        let event = match kind {
            ALLOC => v.alloc(time, addr, CodedSize(size), node),
            FREE_STACK => v.free(time, addr, node),
            _ => v.realloc([time.wrapping_sub(back), time], old, addr, CodedSize(size), node),
        };
        Some((pos, event))
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
        Some(v.define(SegmentNode(parent), [a, b, c].map(|id| PcId(id as u32))))
    }
}

/// Returns the call with these integers of its entry; `None` if its kind is unknown.
#[cold]
#[inline(never)]
fn called(time: Ticks, addr: u64, len: u64, node: u32, rest: [u64; 4]) -> Option<RawCall> {
    let [head, took, first, second] = rest;
    Some(RawCall { time, took, addr, len, first, second, node, ..RawCall::from_head(head)? })
}

/// Receiver of the entries that [`Codec::visit`] decodes. A method returns false to stop before its entry:
/// the entry is invalid, or there is no room for it.
pub trait Visit {
    /// Stack nodes: [`SegmentNode`] where a segment is read, an id where a recording is.
    type Node: Copy + From<u32>;
    /// Receives an [`Entry::Define`], which only segments have.
    fn define(&mut self, _parent: SegmentNode, _pcs: [PcId; DEFINE_NODES]) -> bool {
        false
    }
    /// Receives an [`Event::Alloc`].
    fn alloc(&mut self, time: Ticks, addr: u64, size: CodedSize, node: Self::Node) -> bool;
    /// Receives an [`Event::Free`].
    fn free(&mut self, time: Ticks, addr: u64, node: Self::Node) -> bool;
    /// Receives an [`Event::Realloc`]; `times` are its `time_before` and `time`.
    fn realloc(
        &mut self,
        times: [Ticks; 2],
        old: u64,
        addr: u64,
        size: CodedSize,
        node: Self::Node,
    ) -> bool;
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
    type Node = SegmentNode;

    #[inline(always)]
    fn define(&mut self, parent: SegmentNode, pcs: [PcId; DEFINE_NODES]) -> bool {
        self.0 = Some(Entry::Define { parent, pcs });
        true
    }

    #[inline(always)]
    fn alloc(&mut self, time: Ticks, addr: u64, size: CodedSize, node: SegmentNode) -> bool {
        self.0 = Some(Entry::Event(Event::Alloc { time, addr, size, node }));
        true
    }

    #[inline(always)]
    fn free(&mut self, time: Ticks, addr: u64, node: SegmentNode) -> bool {
        self.0 = Some(Entry::Event(Event::Free { time, addr, node }));
        true
    }

    #[inline(always)]
    fn realloc(
        &mut self,
        times: [Ticks; 2],
        old: u64,
        addr: u64,
        size: CodedSize,
        node: SegmentNode,
    ) -> bool {
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
