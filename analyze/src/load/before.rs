//! Blocks from before the recording: who has allocated them nobody saw, so they have a number, a frame and a thread of
//! their own.

use prof_trace::ticks::Ticks;

/// Number of the stack of blocks from before the attach. No recording gives it to a stack.
pub const BEFORE: u32 = u32::MAX - 1;

/// Text that stands for the stack and the thread of blocks from before the attach.
pub const LABEL: &str = "(before the attach)";

/// Number of the thread of blocks from before the attach.
pub(crate) const BEFORE_THREAD: u32 = u32::MAX;

/// A census, as far as its chunks were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CensusSeen {
    /// Ticks of its moment.
    pub ticks: Ticks,
    /// Time for which the process was stopped for it, in nanoseconds.
    pub stop_ns: u64,
    /// Number of its blocks.
    pub blocks: u64,
}
