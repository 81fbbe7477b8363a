//! What a recording keeps of its oldest part when that is folded: the figures of the blocks that have ended there.

use crate::ticks::Ticks;
use crate::wire::{Reader, Writer};
use std::string::String;
use std::vec::Vec;

record! {
    /// The figures of the blocks that were left out of a recording, as they had ended before a moment. A reader adds them
    /// to its own counts; of peaks it takes the greater. Several records have a part of the stacks each, and the rest in
    /// common.
    Folded {
        /// Number of times that the recording was folded.
        folds: int,
        /// Ticks of the moment: all events from before it that are left are those of blocks that were live then.
        until: ticks,
        /// Number of blocks left out.
        blocks: int,
        /// Bytes of these blocks.
        bytes: int,
        /// Figures of all of them, as in [`Stripped::totals`](super::Stripped::totals).
        totals: ints,
        /// Number of recorded frees of known blocks among them.
        freed: int,
        /// Figures by stack, [`Folded::GROUP`] numbers each: node, ticks of the first and of the last block, ticks of the
        /// peak, and the 8 figures of [`Stripped`](super::Stripped).
        groups: ints,
        /// Of a sample, the sums for all blocks and then for each stack, [`Folded::SUMS`] numbers each: greatest number of
        /// live blocks, most live bytes, allocations, reallocations, allocated bytes, blocks that ended; value and variance
        /// of each, as the bits of a floating-point number.
        sums: ints,
        /// Figures of all blocks over time, up to the moment, as an index has them.
        course: bytes,
    }
}

impl Folded {
    /// Count of the numbers of a stack.
    pub const GROUP: usize = 12;
    /// Count of the numbers of a sample's sums.
    pub const SUMS: usize = 12;
}

record! {
    /// The end of what a fold has written: behind it the recording goes on as it was.
    FoldEnd {
        /// Number of times that the recording was folded.
        folds: int,
        /// Offset in the file before it at which that went on.
        cut: int,
        /// What the events of threads behind it rely on, [`FoldEnd::THREAD`] numbers each: the thread, the code of the chunk
        /// header that its blocks have if they state none (see [`Header::code`](crate::size::Header::code)), the exponent of
        /// the sampling distance likewise, and the ticks of its last event.
        threads: ints,
        /// Number of events that had been recorded in front of the cut, those of earlier folds among them; 0: not known.
        events: later,
    }
}

impl FoldEnd {
    /// Count of the numbers of a thread.
    pub const THREAD: usize = 4;
}

record! {
    /// A fold of the oldest part has failed. Of several records the last counts.
    FoldFailed {
        /// Ticks when that was known.
        ticks: ticks,
        /// Number of folds that have failed so far.
        failures: int,
        /// Why this one has.
        reason: text,
        /// 1: it was the one that turns the events into figures by stack ([`WentOver`]).
        over: later,
    }
}

record! {
    /// The recording had events up to here, and has figures by stack alone from here on, also of what was before.
    WentOver {
        /// Ticks when it went over.
        ticks: ticks,
        /// Number of events that were recorded until then.
        events: int,
    }
}

record! {
    /// The bounds of the recording's file that its collector was given. Of several records the last counts.
    Bounds {
        /// Greatest length of the file in bytes; 0: any.
        max_disk: int,
        /// Room that is left to others on the file system: bytes, a percentage, or the usual, as `--keep-free` takes it.
        keep_free: text,
    }
}
