//! What the hook keeps of a thread, in memory that only that thread touches.

use prof_trace::event::Codec;
use prof_trace::shared::Slot;

/// Frames that a stack is remembered with; deeper ones are cut (see `Control::max_depth`).
pub const FRAMES: usize = 1024;
/// Words of memory that a remembered stack may rest on.
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
    /// Frame pointer register.
    pub fp: u64,
    /// Stack node of this frame; while the stack is being taken: code address id.
    pub node: u32,
    /// Words that the steps from the root down to and including the step out of this frame read.
    pub words: u32,
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

/// A stack node that this thread has met.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SeenNode {
    /// `parent << 32 | code address id`; 0: none.
    pub key: u64,
    /// Its id.
    pub id: u64,
}

/// Entries of [`Thread::codes`].
pub const CODES: usize = 256;
/// Entries of [`Thread::nodes`].
pub const NODES: usize = 512;

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
    /// Words of the remembered stack, from the root.
    pub words_len: u32,
    /// The remembered stack runs over more than one piece of memory (signal stacks).
    pub scattered: u32,
    /// The remembered stack was cut.
    pub cut: u32,
    /// Code addresses, each at the place that its hash names.
    pub codes: [SeenCode; CODES],
    /// Stack nodes, likewise.
    pub nodes: [SeenNode; NODES],
    /// The remembered frames.
    pub frames: [Frame; FRAMES],
    /// The remembered words.
    pub words: [Word; WORDS],
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
        self.slot = slot;
        self.index = index;
        self.seq = 0;
        self.extents = [Extent { start: 0, end: 0 }; 4];
        self.next_extent = 0;
        self.forget();
    }

    /// Forgets the remembered stack.
    pub fn forget(&mut self) {
        self.frames_len = 0;
        self.words_len = 0;
        self.scattered = 0;
        self.cut = 0;
    }
}
