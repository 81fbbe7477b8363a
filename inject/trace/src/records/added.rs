//! What is added to a recording: statistics of removed blocks, and files.

use crate::wire::{Reader, Writer};
use std::string::String;
use std::vec::Vec;

record! {
    /// Statistics of all blocks in a recording from which short-lived blocks were removed. If there are
    /// several such chunks, their groups belong together.
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
