//! The entries of the shared memory's tables: threads, functions, modules, stacks, code addresses and
//! the heads of segments. Used through [`crate::shared`].

use crate::shared::FUNCTIONS;
#[allow(unused_imports)] // for the documentation
use crate::shared::flags;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// The low bits of [`Slot::state`]; above them are those of the owner's serial, see
/// [`crate::slots`].
pub mod slot {
    /// Never used, or being taken.
    pub const FREE: u32 = 0;
    /// Belongs to a thread.
    pub const LIVE: u32 = 1;
    /// Its thread has ended; may be taken over.
    pub const DEAD: u32 = 2;
    /// How many bits these take.
    pub const BITS: u32 = 2;
}

/// What is known of a thread. The first line is read at each event, the counters are its own.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    /// Thread pointer; 0: free.
    pub tp: AtomicU64,
    /// Thread id in the target's namespace.
    pub tid: AtomicU32,
    /// See [`slot`].
    pub state: AtomicU32,
    /// Unique over the recording; the thread's number in the file.
    pub serial: AtomicU32,
    /// Keeps the words below in place.
    pub pad: u32,
    /// Stack pointer at which the hook was entered, while its own code runs; 0 otherwise.
    pub busy_sp: AtomicU64,
    /// Stack pointer at which the hook was entered, while the original function runs; else 0.
    /// Bit 0 is set where exceptions may pass through that call.
    pub inner_sp: AtomicU64,
    /// Bytes or allocations up to the next one that is recorded, as a signed number; where not all are.
    pub distance: AtomicU64,
    /// State of the random numbers for it; 0: there was none yet.
    pub random: AtomicU64,
    /// Events whose stack was taken both ways ([`flags::VERIFY`]).
    pub verified: AtomicU64,
    /// Events written.
    pub events: AtomicU64,
    /// Events lost as no segment was free in time.
    pub lost: AtomicU64,
    /// Calls passed through since the thread was inside the hook (a signal handler).
    pub reentered: AtomicU64,
    /// Stacks that were cut short.
    pub truncated: AtomicU64,
    /// Events whose memoized stack differed from a full unwind ([`flags::VERIFY`]).
    pub mismatches: AtomicU64,
    /// How often a note of a call was given up, as the next call did not come from within: the frame was left
    /// by a jump, or is on a stack that the thread has left.
    pub abandoned: AtomicU64,
    /// Calls per hooked function, nested ones not counted.
    pub calls: [AtomicU64; FUNCTIONS],
}

/// A thread that found no slot, so that it need not look again at its next call. On a cache line of its own,
/// as others have theirs.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct TurnedAway {
    /// Which thread that was, and when: see `slots::turned_away`.
    pub key: AtomicU64,
    /// Calls that were not recorded.
    pub lost: AtomicU64,
}

/// What a hooked function does; decides which entry of the hook its stub jumps to.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `size` is argument 0; returns the block (malloc, valloc, pvalloc, operator new).
    Malloc = 0,
    /// `count` and `size` (calloc).
    Calloc = 1,
    /// `old`, `size` (realloc).
    Realloc = 2,
    /// `old`, `count`, `size` (reallocarray).
    ReallocArray = 3,
    /// `alignment`, `size` (memalign, aligned_alloc).
    Memalign = 4,
    /// `out`, `alignment`, `size`; returns 0 on success (posix_memalign).
    PosixMemalign = 5,
    /// Block is argument 0 (free, cfree, free_sized, operator delete).
    Free = 6,
    /// As `Malloc`, but throws: called as [`Function::nothrow`] first (operator new).
    New = 7,
    /// As `New`, with an alignment as argument 1 (operator new for over-aligned types).
    NewAligned = 8,
    /// As `Free`, but may itself end in a hooked function (operator delete, free_sized).
    Delete = 9,
    /// The dynamic linker's `_dl_debug_state`: the set of modules is about to change or has.
    Loader = 10,
    /// `block`, `size`, `extra`: makes the block as large as can be between `size` and `size + extra`
    /// where it is, and returns its size then, which is less than `size` if it failed (xallocx).
    Resize = 11,
    /// A function that the user has named: the size is argument [`Function::size_arg`]; returns the
    /// block.
    NamedAlloc = 12,
    /// As `Realloc`, with the block as argument [`Function::block_arg`] and the size as argument
    /// [`Function::size_arg`].
    NamedRealloc = 13,
    /// As `Delete`, with the block as argument [`Function::block_arg`].
    NamedFree = 14,
    /// libc's `prctl` or `syscall`: the target may be about to restrict its system calls, which it is if
    /// argument 0 is [`Function::nothrow`] or, if that is not 0, [`Function::size_arg`].
    Sandbox = 15,
    /// libc's `fork`, or the function that it makes the child with: a handler that has interrupted the hook may be
    /// who calls it.
    Fork = 16,
}

impl Kind {
    /// Whether calls of it are recorded; the others keep prof informed.
    #[must_use]
    pub fn is_recorded(self) -> bool {
        !matches!(self, Self::Loader | Self::Sandbox | Self::Fork)
    }

    /// Whether its stub leads to the hook while recording is paused, too: what is under way there since before counts.
    #[must_use]
    pub fn is_always_on(self) -> bool {
        matches!(self, Self::Sandbox | Self::Fork)
    }

    /// Whether it may be any function, whose callers may rely on more than those of malloc do.
    #[must_use]
    pub fn has_many_entry(self) -> bool {
        matches!(self, Self::Resize | Self::NamedAlloc | Self::NamedRealloc | Self::NamedFree)
    }

    /// The kind with this number.
    pub fn from_u32(v: u32) -> Option<Self> {
        Some(match v {
            0 => Self::Malloc,
            1 => Self::Calloc,
            2 => Self::Realloc,
            3 => Self::ReallocArray,
            4 => Self::Memalign,
            5 => Self::PosixMemalign,
            6 => Self::Free,
            7 => Self::New,
            8 => Self::NewAligned,
            9 => Self::Delete,
            10 => Self::Loader,
            11 => Self::Resize,
            12 => Self::NamedAlloc,
            13 => Self::NamedRealloc,
            14 => Self::NamedFree,
            15 => Self::Sandbox,
            16 => Self::Fork,
            _ => return None,
        })
    }
}

/// A hooked function: what the hook needs at each call, and what detaching needs.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Function {
    /// Callable address of the original (its displaced prologue, then the rest).
    pub original: u64,
    /// For [`Kind::New`] and [`Kind::NewAligned`]: callable address of the `nothrow` form. For
    /// [`Kind::Sandbox`]: a number.
    pub nothrow: u64,
    /// See [`Kind`].
    pub kind: u32,
    /// Index in the function table and in [`Slot::calls`].
    pub index: u32,
    /// 1 once the patch stands in the code, 0 when it has been taken back.
    pub patched: AtomicU32,
    /// Bytes patched.
    pub patch_len: u32,
    /// Address of the patched bytes.
    pub patch_addr: u64,
    /// What stood there.
    pub old_bytes: [u8; 32],
    /// What stands there now.
    pub new_bytes: [u8; 32],
    /// Address of the stub.
    pub stub_addr: u64,
    /// Length of the stub.
    pub stub_len: u64,
    /// For each byte of the displaced instructions in the stub, counted from
    /// [`Function::original`], the place of its instruction, counted from the function's start.
    pub places: [u8; 80],
    /// Address of the function.
    pub addr: u64,
    /// For functions that the user has named: code of the target's own that the original returns to, 0 if that
    /// is the hook itself.
    pub back: u64,
    /// Bytes of the frame of that code, or of the hook's.
    pub frame: u64,
    /// The function's name and module path, separated by a NUL and padded with NULs.
    pub name: [u8; 204],
    /// Where the frame of that code has registers, as the architecture has it.
    pub back_slots: [u8; 16],
    /// The register through which `back` calls the hook.
    pub back_register: u8,
    /// 1 if it hands out glibc's blocks, with its header in front; 2 if it can hand out no others.
    pub headers: u8,
    /// For functions that the user has named: which argument is the size, from 0.
    pub size_arg: u8,
    /// The same for the block.
    pub block_arg: u8,
}

/// One of a module's unwind tables.
#[repr(C)]
#[derive(Debug)]
pub struct UnwindTable {
    /// Where it is, or was: the base of what it says relative to itself.
    pub addr: AtomicU64,
    /// Its length; 0: there is none.
    pub len: AtomicU64,
    /// Offset of its copy in the shared memory.
    pub at: AtomicU64,
}

/// How many a module may have.
pub const TABLES: usize = 4;

/// A mapped module (executable, library, vDSO) as the unwinder needs it.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Module {
    /// See [`crate::modules::ready`]; 0: not (yet) valid.
    pub ready: AtomicU32,
    /// See [`crate::modules::bits`].
    pub flags: AtomicU32,
    /// First mapped address.
    pub start: AtomicU64,
    /// End of the last mapping.
    pub end: AtomicU64,
    /// Load bias: address minus the ELF file's virtual address.
    pub bias: AtomicU64,
    /// `.eh_frame_hdr` and `.eh_frame`, or what prof has made of `.debug_frame`; `.ARM.exidx` and what that
    /// leads to. A table may have more behind it that does not belong to it.
    pub tables: [UnwindTable; TABLES],
    /// Path as the dynamic linker has it, NUL padded (empty: found through maps).
    pub name: [AtomicU8; 192],
}

/// A mapping that some thread's stack lies in.
#[repr(C)]
#[derive(Debug)]
pub struct StackRange {
    /// First readable address.
    pub start: AtomicU64,
    /// First address behind it.
    pub end: AtomicU64,
}

/// A code address that occurs in stacks.
#[repr(C)]
#[derive(Debug)]
pub struct PcEntry {
    /// `pc | module index << 48`; 0: free. The module index is 1-based, 0 is "no module".
    pub key: AtomicU64,
    /// The unwind rule, as the architecture packs it; 0: not computed.
    pub rule: AtomicU64,
}

/// Values of [`SegmentHead::state`].
pub mod segment {
    /// On the free list, or being taken.
    pub const FREE: u32 = 0;
    /// A thread writes to it.
    pub const ACTIVE: u32 = 1;
    /// Complete.
    pub const CLOSED: u32 = 2;
}

/// The head of a segment of events, on a cache line of its own.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct SegmentHead {
    /// See [`segment`].
    pub state: AtomicU32,
    /// Bytes of whole events, published with release.
    pub committed: AtomicU32,
    /// [`Slot::serial`] of the writing thread.
    pub serial: AtomicU32,
    /// Its thread id.
    pub tid: AtomicU32,
    /// Index of its slot.
    pub slot: AtomicU32,
    /// Keeps the words below in place.
    pub pad: u32,
    /// Number of this segment among its thread's.
    pub seq: AtomicU64,
}
