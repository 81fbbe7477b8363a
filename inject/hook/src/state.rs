//! What the hook keeps of a thread, in memory that only that thread touches.

use crate::owner::Owned;
use crate::recent::{RECENT, Recent};
use prof_arch::native::Regs;
use prof_trace::event::Codec;
use prof_trace::shared::Slot;

/// Frames that a stack is remembered with; deeper ones are cut (see `Control::max_depth`).
pub const FRAMES: usize = 1024;
/// Words of memory that a remembered stack may rest on; fewer than `Frame::LIVE`.
pub const WORDS: usize = 2304;
/// Bytes of the scratch stack.
pub const SCRATCH: usize = 72 << 10;
/// Bytes of a thread's state.
pub const SIZE: usize = prof_trace::shared::STATE_SIZE;

/// A frame of the remembered stack: the registers in it, and what they led to.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Frame {
    /// Return address.
    pub pc: u64,
    /// Stack pointer after the return.
    pub sp: u64,
    /// Frame pointer register; means something only if [`Frame::is_live`].
    pub fp: u64,
    /// Code address id of `pc`.
    pub code: u32,
    /// Number of its node in the segment being written, for the first [`Thread::named`] frames.
    pub node: u16,
    /// Words that the steps from the root down to and including the step out of this frame rest on,
    /// and [`Frame::LIVE`].
    words: u16,
}

impl Frame {
    /// The steps from this frame to the root depend on what the frame pointer register holds in it.
    const LIVE: u16 = 1 << 15;

    /// A frame without a name.
    #[inline(always)]
    pub fn new(r: &Regs, code: u32, words: usize, live: bool) -> Self {
        let words = words as u16 | if live { Self::LIVE } else { 0 };
        Self { pc: r.pc, sp: r.sp, fp: r.fp, code, node: 0, words }
    }

    /// See the field.
    #[inline(always)]
    pub fn words(&self) -> usize {
        (self.words & !Self::LIVE) as usize
    }

    /// See [`Frame::fp`].
    #[inline(always)]
    pub fn is_live(&self) -> bool {
        self.words & Self::LIVE != 0
    }

    /// Whether the steps from registers `r` are those from this frame, as far as registers decide it.
    #[inline(always)]
    pub fn matches(&self, r: &Regs) -> bool {
        self.pc == r.pc && self.sp == r.sp && (self.fp == r.fp || !self.is_live())
    }
}

/// A frame that a walk has found.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Fresh {
    /// The registers in it.
    pub regs: Regs,
    /// Code address id.
    pub code: u32,
    /// The step out of it looked at the frame pointer.
    pub reads_fp: bool,
    /// The last word that the step read is the caller's frame pointer, and nothing but that.
    pub writes_fp: bool,
    /// Words that the step read.
    pub words: u16,
}

/// A word of memory that a step read.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Word {
    /// Where.
    pub addr: u64,
    /// What stood there.
    pub value: u64,
}

/// A code address that this thread has met: a copy of what the shared table says.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SeenCode {
    /// The code address; 0: none.
    pub pc: u64,
    /// Its rule.
    pub rule: u64,
    /// Its id.
    pub id: u32,
    /// `Control::modules_seq` when it was looked up; another value makes this entry void.
    pub modules: u32,
}

/// A stack node that this thread has defined.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SeenName {
    /// See `name.rs`; 0: none.
    pub key: u64,
    /// Its number in the segment.
    pub number: u16,
}

/// Entries of [`Thread::codes`].
pub const CODES: usize = 512;
/// Entries of [`Thread::names`].
pub const NAMES: usize = 1024;

/// A part of the address space that can be read.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Extent {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
}

/// The state of a thread. All zeroes is a valid, empty state.
#[repr(C, align(64))]
pub struct Thread {
    /// Head of the segment being written, or null.
    pub head: *const prof_trace::shared::SegmentHead,
    /// Its data.
    pub data: *mut u8,
    /// Bytes written to it.
    pub pos: usize,
    /// Encoding state.
    pub codec: Codec,
    /// Flags that glibc's headers of the thread's blocks have, as the last one of the segment had them.
    pub flags: u64,
    /// The thread's slot.
    pub slot: *const Slot,
    /// Index of that.
    pub index: u32,
    /// Index of the segment.
    pub segment: u32,
    /// Number of the segment among the thread's.
    pub seq: u64,
    /// The stack that the thread runs on, as far as known; and others it has run on.
    pub extents: [Extent; 4],
    /// Entry of `extents` to be replaced next.
    pub next_extent: u32,
    /// Frames of the remembered stack, from the root.
    pub frames_len: u32,
    /// The remembered stack runs over more than one piece of memory (signal stacks).
    pub scattered: u32,
    /// The remembered stack was cut.
    pub cut: u32,
    /// Frames of the remembered stack, from the root, whose nodes are defined in the segment.
    pub named: u32,
    /// Number of the segment, as the keys of `names` have it: never 0. It goes on from thread to thread,
    /// so what a former owner of this state has named means nothing to the next one.
    pub epoch: u32,
    /// Frames that walks have to take: 16 times a mean that follows the last few.
    pub walked: u32,
    /// Looks into `recent` of the present round, and how many of them found something.
    pub looks: (u16, u16),
    /// Walks up to the next look, and how many there were between the last two rounds.
    pub rest: (u32, u32),
    /// Entry of a set of `recent` to be replaced next.
    pub next_recent: u32,
    /// `Control::modules_seq` when the remembered stack was taken.
    pub modules: u32,
    /// The remembered stack can't be compared with the next one.
    pub passing: bool,
    /// The blocks of which it was the last to have.
    pub owned: Owned,
    /// Code addresses, each at the place that its hash names.
    pub codes: [SeenCode; CODES],
    /// Stack nodes, likewise.
    pub names: [SeenName; NAMES],
    /// The remembered frames, from the root.
    pub frames: [Frame; FRAMES],
    /// The words that they rest on, from the root.
    pub words: [Word; WORDS],
    /// What the walk under way has found, from the innermost frame.
    pub fresh: [Fresh; FRAMES],
    /// The words that its steps have read, likewise.
    pub fresh_words: [Word; WORDS],
    /// Stacks of long walks.
    pub recent: [Recent; RECENT],
}

const _: () = assert!(size_of::<Thread>() + SCRATCH <= SIZE);

impl Thread {
    /// Top of the scratch stack, which grows down towards the state's end.
    #[inline(always)]
    pub fn scratch(&mut self) -> *mut u8 {
        // SAFETY: SIZE bytes from here are this thread's.
        unsafe { core::ptr::from_mut(self).cast::<u8>().add(SIZE - 64) }
    }

    /// Empties it for a new thread.
    pub fn reset(&mut self, slot: *const Slot, index: u32) {
        self.head = core::ptr::null();
        self.data = core::ptr::null_mut();
        self.pos = usize::MAX;
        self.codec = Codec::default();
        self.flags = crate::chunk::UNKNOWN;
        self.slot = slot;
        self.index = index;
        self.seq = 0;
        self.extents = [Extent { start: 0, end: 0 }; 4];
        self.next_extent = 0;
        self.owned.clear();
        self.forget();
    }

    /// Forgets the remembered stack.
    pub fn forget(&mut self) {
        self.frames_len = 0;
        self.scattered = 0;
        self.cut = 0;
        self.named = 0;
        self.passing = false;
    }
}
