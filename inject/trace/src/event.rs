//! Encoding of events.
//!
//! An event is a 16-bit little-endian head (kind in bits 0..4, then four 3-bit lengths) followed by up to
//! four integers of 0 to 7 bytes. Integers are deltas against the state that the previous event of the same
//! segment left ([`Codec`]), so that a typical allocation takes 7 to 10 bytes. The lengths stand together in
//! the head, so that encoding and decoding need no branch per byte.

mod decode;
mod encode;

pub use decode::Visit;

use crate::call::{RawCall, TEXT_BYTES};
use crate::ids::{PcId, SegmentNode};
use crate::size::CodedSize;
use crate::ticks::Ticks;

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

/// Maximum length of an encoded definition; the encoder may write a few bytes beyond it.
pub const MAX_DEFINE: usize = 16;

/// A decoded event. Times are ticks of the recording's clock; addresses are the target's. `N` is the type of stack nodes:
/// their ids in a recording, or [`SegmentNode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<N = u32> {
    /// The allocator returned a block. The time is taken after the return.
    Alloc {
        /// Ticks.
        time: Ticks,
        /// Address of the block.
        addr: u64,
        /// Requested bytes, chunk header and sampling distance.
        size: CodedSize,
        /// Stack node.
        node: N,
    },
    /// The program frees a block. The time is taken before the allocator is entered.
    Free {
        /// Ticks.
        time: Ticks,
        /// Address of the block.
        addr: u64,
        /// Stack node of the free if the recording has those; else 0.
        node: N,
    },
    /// The block `old` was freed at `time_before` and `addr` was allocated at `time`, possibly in place.
    Realloc {
        /// Ticks before the allocator was entered: end of the old block.
        time_before: Ticks,
        /// Ticks after it returned: start of the new block.
        time: Ticks,
        /// Address of the old block.
        old: u64,
        /// Address of the new block.
        addr: u64,
        /// Requested bytes, chunk header and sampling distance.
        size: CodedSize,
        /// Stack node.
        node: N,
    },
}

/// An entry of a segment: an event, or a definition of stack nodes that events name.
///
/// The nodes of a segment are numbered from 1 in the order of their definitions. A segment can be decoded
/// without anything outside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// An event.
    Event(Event<SegmentNode>),
    /// New nodes, as a chain: the first is a child of `parent`, each other one a child of the node before it.
    Define {
        /// The first node's parent; [`SegmentNode::NONE`]: the root (the first node is an outermost frame).
        parent: SegmentNode,
        /// Code address ids, outermost first; [`PcId::NONE`] behind the last.
        pcs: [PcId; DEFINE_NODES],
    },
    /// A call that changes mappings, or the settings of the allocator. Recordings have these elsewhere.
    Call(RawCall),
    /// The next bytes of the name in the next call, and their number.
    Text([u8; TEXT_BYTES], usize),
}

impl<N: Copy> Event<N> {
    /// Returns the stack node; 0: none.
    #[inline(always)]
    pub fn node(&self) -> N {
        match *self {
            Event::Alloc { node, .. } | Event::Free { node, .. } | Event::Realloc { node, .. } => {
                node
            }
        }
    }

    /// Returns the event with another stack node.
    #[inline(always)]
    pub fn map_node<M>(self, f: impl FnOnce(N) -> M) -> Event<M> {
        match self {
            Event::Alloc { time, addr, size, node } => {
                Event::Alloc { time, addr, size, node: f(node) }
            }
            Event::Free { time, addr, node } => Event::Free { time, addr, node: f(node) },
            Event::Realloc { time_before, time, old, addr, size, node } => {
                Event::Realloc { time_before, time, old, addr, size, node: f(node) }
            }
        }
    }

    /// Returns the time that orders the event within its thread: when it was written.
    pub fn time(&self) -> Ticks {
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
    pub time: Ticks,
    /// Address of the last event.
    pub addr: u64,
    /// Stack node of the last event that had one: its number in the segment, or its id in a recording.
    pub node: u32,
    /// Number of stack nodes defined so far; 0 in a recording.
    pub defined: u32,
}

impl Codec {
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
}

impl Event {
    /// Passes the event to the method of `v` for its kind; returns the answer.
    #[inline(always)]
    pub fn show(&self, v: &mut impl Visit<Node = u32>) -> bool {
        match *self {
            Event::Alloc { time, addr, size, node } => v.alloc(time, addr, size, node),
            Event::Free { time, addr, node } => v.free(time, addr, node),
            Event::Realloc { time_before, time, old, addr, size, node } => {
                v.realloc([time_before, time], old, addr, size, node)
            }
        }
    }
}

#[cfg(test)]
mod tests;
