//! Private state of a thread, in memory that only the thread accesses.

use crate::goroutine::Goroutines;
use crate::owner::Owned;
use crate::range::Extent;
use prof_arch::native::Regs;
use prof_trace::event::Codec;
use prof_trace::ids::PcId;
use prof_trace::shared::Slot;

/// Maximum number of frames of a remembered stack; deeper ones are cut (see `Control::max_depth`).
pub const FRAMES: usize = 1024;
/// Maximum number of memory words that a remembered stack depends on; fewer than `Frame::LIVE`.
pub const WORDS: usize = 2304;
/// Size of the scratch stack, in bytes.
pub const SCRATCH: usize = 72 << 10;
/// Size of a thread's state with its scratch stack, in bytes.
pub const SIZE: usize = prof_trace::shared::STATE_SIZE;

/// A frame of the remembered stack: its registers, and the results of looking them up.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Frame {
    /// Return address.
    pub pc: u64,
    /// Stack pointer after the return.
    pub sp: u64,
    /// Frame pointer register; meaningful only if [`Frame::is_live`].
    pub fp: u64,
    /// Code address id of `pc`.
    pub code: PcId,
    /// Number of the frame's node in the current segment, for the first [`Thread::named`] frames.
    pub node: u16,
    /// Number of words that the steps from this frame to the root depend on, and the flag [`Frame::LIVE`].
    words: u16,
}

impl Frame {
    /// Flag: the steps from this frame to the root depend on its frame pointer register.
    const LIVE: u16 = 1 << 15;

    /// Makes a frame without a node.
    #[inline(always)]
    pub fn new(r: &Regs, code: PcId, words: usize, live: bool) -> Self {
        let words = words as u16 | if live { Self::LIVE } else { 0 };
        Self { pc: r.pc, sp: r.sp, fp: r.fp, code, node: 0, words }
    }

    /// Returns the number of words that the steps from this frame to the root depend on.
    #[inline(always)]
    pub fn words(&self) -> usize {
        (self.words & !Self::LIVE) as usize
    }

    /// Returns whether [`Frame::fp`] is meaningful.
    #[inline(always)]
    pub fn is_live(&self) -> bool {
        self.words & Self::LIVE != 0
    }

    /// Returns whether the steps from registers `r` are those from this frame, as far as registers decide it.
    #[inline(always)]
    pub fn matches(&self, r: &Regs) -> bool {
        self.pc == r.pc && self.sp == r.sp && (self.fp == r.fp || !self.is_live())
    }
}

/// A frame found by the current walk.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Fresh {
    /// Registers in the frame.
    pub regs: Regs,
    /// Code address id.
    pub code: PcId,
    /// Whether the step out of it read the frame pointer.
    pub reads_fp: bool,
    /// Whether the last word that the step read is the caller's frame pointer, and nothing but that.
    pub writes_fp: bool,
    /// Number of words that the step read.
    pub words: u16,
}

/// A word of memory that a step read.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Word {
    /// Address of the word.
    pub addr: u64,
    /// Value at that time.
    pub value: u64,
}

/// Cache entry: a code address that this thread has met, with its id and rule from the shared table.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SeenCode {
    /// The code address; 0: none.
    pub pc: u64,
    /// Packed unwind rule.
    pub rule: u64,
    /// Code address id.
    pub id: PcId,
    /// `Control::modules_seq` at the lookup; any other value invalidates this entry.
    pub modules: u32,
}

/// Cache entry: a stack node that this thread has defined.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SeenName {
    /// Key of the node, see `node_ids.rs`; 0: none.
    pub key: u64,
    /// Number of the node in the segment.
    pub number: u16,
}

/// Number of entries of [`Thread::codes`].
pub const CODES: usize = 512;
/// Number of entries of [`Thread::names`].
pub const NAMES: usize = 1024;

/// Value of [`Thread::flags`] that equals no header's flags, whose lowest bit is masked out.
pub const UNKNOWN: u64 = 1;
/// Value of [`Thread::flags`] that equals no header's flags either, and says that the next event has to state
/// the sampling distance [`Thread::rate`].
pub const SAY: u64 = UNKNOWN | 8;

/// Maximum number of words, and of frames, of a kept stack.
pub const MOST_RECENT: usize = 40;
/// Entries of [`Thread::recent`] that one stack may occupy.
pub const WAYS: usize = 8;
/// Number of entries of [`Thread::recent`].
pub const RECENT: usize = WAYS * 32;

/// A kept stack, and what it depends on.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Recent {
    /// Registers of the innermost frame.
    pub regs: Regs,
    /// Value of [`Thread::epoch`] when the stack was last named; 0: no stack.
    pub epoch: u32,
    /// Value of `Control::modules_seq` when the stack was kept.
    pub modules: u32,
    /// Number of the stack's node in that segment.
    pub node: u16,
    /// Number of words that the stack depends on.
    pub words: u8,
    /// Number of frames.
    pub len: u8,
    /// Whether the stack was cut.
    pub cut: bool,
    /// Whether the frame pointer matters.
    pub live: bool,
    /// Code address ids, from the root.
    pub codes: [PcId; MOST_RECENT],
    /// Offsets of the words from the stack pointer, in words; from the root.
    pub places: [u16; MOST_RECENT],
    /// Values of the words.
    pub values: [u64; MOST_RECENT],
}

/// The state of a thread. All zeroes is a valid, empty state.
#[repr(C, align(64))]
pub struct Thread {
    /// Head of the current segment, or null.
    pub head: *const prof_trace::shared::SegmentHead,
    /// Data of the current segment.
    pub data: *mut u8,
    /// Bytes written to the current segment; `usize::MAX`: there is none.
    pub pos: usize,
    /// Encoding state of the current segment.
    pub codec: Codec,
    /// Arena flag in glibc's header of the thread's last block in this segment that was no mapping of its
    /// own; or [`UNKNOWN`].
    pub flags: u64,
    /// The thread's slot.
    pub slot: *const Slot,
    /// Index of the slot.
    pub index: u32,
    /// Index of the current segment.
    pub segment: u32,
    /// Sequence number of the current segment among the thread's.
    pub seq: u64,
    /// Extents of the thread's stacks: first the one that it runs on, then others that it has run on.
    pub extents: [Extent; 4],
    /// Entry of `extents` to be replaced next.
    pub next_extent: u32,
    /// Number of frames of the remembered stack.
    pub frames_len: u32,
    /// Nonzero if the remembered stack has words outside of the current stack (signal stacks).
    pub scattered: u32,
    /// Nonzero if the remembered stack was cut.
    pub cut: u32,
    /// Number of frames of the remembered stack, from the root, whose nodes are defined in the current
    /// segment.
    pub named: u32,
    /// Number of the segment in the keys of `names`; never 0. It continues when another thread gets this
    /// state, so that the former owner's nodes mean nothing to the new one.
    pub epoch: u32,
    /// Moving average of frames per walk, times 16.
    pub walked: u32,
    /// Lookups in `recent` in the present round, and how many of them were hits.
    pub looks: (u16, u16),
    /// Walks left of the present pause of lookups, and length of the last pause.
    pub rest: (u32, u32),
    /// Entry of a set of `recent` to be replaced next.
    pub next_recent: u32,
    /// Entry of `recent` that the last lookup has found, and number of lookups in a row that have found it.
    pub met: (u32, u32),
    /// `Control::modules_seq` when the remembered stack was taken.
    pub modules: u32,
    /// Whether the remembered stack is not reusable.
    pub passing: bool,
    /// The stack has more frames than are remembered: the outermost of these is as far from the top as it may be.
    pub deep: bool,
    /// Whether `goroutines` has been used: its memory is not touched where Go is not.
    pub met_goroutines: bool,
    /// Exponent of the sampling distance that the segment's events have stated last; 0: none has.
    pub rate: u8,
    /// Blocks this thread allocated or freed last.
    pub owned: Owned,
    /// Cache of code addresses, indexed by hash.
    pub codes: [SeenCode; CODES],
    /// Cache of stack nodes, indexed by hash.
    pub names: [SeenName; NAMES],
    /// Frames of the remembered stack, from the root.
    pub frames: [Frame; FRAMES],
    /// Words that these frames depend on, from the root.
    pub words: [Word; WORDS],
    /// Frames that the current walk has found, from the innermost.
    pub fresh: [Fresh; FRAMES],
    /// Words that the steps out of these frames read, from the innermost.
    pub fresh_words: [Word; WORDS],
    /// Cache of stacks of long walks.
    pub recent: [Recent; RECENT],
    /// Stacks of goroutines that have called C on this thread.
    pub goroutines: Goroutines,
}

const _: () = assert!(size_of::<Thread>() + SCRATCH <= SIZE);

impl Thread {
    /// Returns the top of the scratch stack, which grows down towards the end of this struct.
    #[inline(always)]
    pub fn scratch(&mut self) -> *mut u8 {
        // SAFETY: SIZE bytes from here are this thread's.
        unsafe { core::ptr::from_mut(self).cast::<u8>().add(SIZE - 64) }
    }

    /// Resets the state for a new thread.
    pub fn reset(&mut self, slot: *const Slot, index: u32) {
        self.head = core::ptr::null();
        self.data = core::ptr::null_mut();
        self.pos = usize::MAX;
        self.codec = Codec::default();
        self.flags = UNKNOWN;
        self.rate = 0;
        self.slot = slot;
        self.index = index;
        self.seq = 0;
        self.extents = [Extent { start: 0, end: 0 }; 4];
        self.next_extent = 0;
        self.forget_goroutines();
        self.owned.clear();
        self.forget();
    }

    /// Forgets the stacks of goroutines.
    pub fn forget_goroutines(&mut self) {
        if self.met_goroutines {
            self.goroutines.clear();
            self.met_goroutines = false;
        }
    }

    /// Forgets the remembered stack.
    pub fn forget(&mut self) {
        self.frames_len = 0;
        self.scattered = 0;
        self.cut = 0;
        self.named = 0;
        self.passing = false;
        self.deep = false;
    }
}
