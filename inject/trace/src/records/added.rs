//! Records that are added to a recording later: statistics of removed blocks, and files.

use crate::wire::{Reader, Writer};
use std::string::String;
use std::vec::Vec;

record! {
    /// Statistics of all blocks in a recording from which short-lived blocks were removed, or that never got
    /// them. If there are several such chunks, all but the groups is that of the last one, and a group is that
    /// of the last one with its node.
    Stripped {
        /// Lifetime threshold, in ns. Chains of reallocations (most of one block) that lived shorter were
        /// removed.
        threshold_ns: int,
        /// Number of blocks removed.
        blocks: int,
        /// Bytes of the blocks removed.
        bytes: int,
        /// Statistics of all blocks: eight values, eight standard errors, frees, unknown and implied frees,
        /// ticks of the peak and of the last event, events of address 0.
        totals: ints,
        /// For each stack: node, ticks of its first and last block and of its peak, eight values, eight
        /// standard errors.
        groups: ints,
        /// The way in which the blocks were removed: one of the constants of this type.
        how: later,
        /// Number of blocks that are recorded though they lived short, as too many were held back.
        early: later,
    }
}

record! {
    /// A piece of a file that is kept in the recording. The pieces of a file follow each other.
    FilePart {
        /// Path of the file in the target.
        path: text,
        /// Length of the file, in bytes.
        length: int,
        /// Offset of the piece in the file.
        offset: int,
        /// Content of the piece.
        bytes: bytes,
    }
}

impl Stripped {
    /// Number of values of a stack in [`Self::groups`], the first of which is its node.
    pub const GROUP: usize = 20;
    /// The blocks were removed from a finished recording.
    pub const LATER: u64 = 0;
    /// The blocks are not written while recording; the figures are those up to the last event that they name.
    pub const CULLED: u64 = 1;
    /// As [`Self::CULLED`], and the figures are those of the whole recording.
    pub const CULLED_TO_THE_END: u64 = 2;
    /// No block is written; the figures are in [`Step`](super::Step)s.
    pub const AGGREGATED: u64 = 3;
    /// As [`Self::AGGREGATED`], and the figures are those of the whole recording.
    pub const AGGREGATED_TO_THE_END: u64 = 4;

    /// Returns the number of events that these [`totals`](Self::totals) count, which must not be those of a sample; 0 if
    /// there are none.
    #[must_use]
    pub fn events_of(totals: &[u64]) -> u64 {
        // Allocations, reallocations, frees, and events of address 0.
        [4, 5, 16, 21]
            .iter()
            .filter_map(|i| totals.get(*i))
            .fold(0, |sum, n| sum.saturating_add(*n))
    }
}
