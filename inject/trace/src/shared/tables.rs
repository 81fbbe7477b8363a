//! Entry types of the tables in the shared memory: threads, functions, modules, stacks, code addresses and
//! heads of segments. They are used through [`crate::shared`].

use crate::shared::{Area, FUNCTIONS};
#[allow(unused_imports)] // for the documentation
use crate::shared::{Kind, flags};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// Low bits of [`Slot::state`]; the bits above are those of the owner's serial, see [`crate::slots`].
pub mod slot {
    /// The slot was never used, or a thread is claiming it.
    pub const FREE: u32 = 0;
    /// A thread owns the slot.
    pub const LIVE: u32 = 1;
    /// The owner has ended; another thread may take the slot.
    pub const DEAD: u32 = 2;
    /// Number of these bits.
    pub const BITS: u32 = 2;
}

/// Shared state of a thread. The first cache line is read at each event; only the thread writes the counters.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    /// Thread pointer; 0: free.
    pub tp: AtomicU64,
    /// Thread id in the target's namespace.
    pub tid: AtomicU32,
    /// See [`slot`].
    pub state: AtomicU32,
    /// Serial number, unique within the recording; the thread's number in the file.
    pub serial: AtomicU32,
    /// Sampling distances, if they adapt: in the low 8 bits the exponent of the mean with which [`Slot::distance`] was
    /// drawn, above them that of the distance before, which led to the last sampled block.
    pub drawn: AtomicU32,
    /// Stack pointer at entry to the hook while the hook's own code runs; else 0.
    pub busy_sp: AtomicU64,
    /// Stack pointer at entry to the hook while the original function runs; else 0. Bit 0 is set if
    /// exceptions may pass through that call, bit 1 if it changes mappings.
    pub inner_sp: AtomicU64,
    /// Bytes or allocations up to the next sampled one, signed; used if blocks are sampled.
    pub distance: AtomicU64,
    /// State of the random number generator for sampling; 0: not seeded.
    pub random: AtomicU64,
    /// Events whose stack was unwound both with and without the memo ([`flags::VERIFY`]).
    pub verified: AtomicU64,
    /// Events written.
    pub events: AtomicU64,
    /// Events lost because no segment was free in time.
    pub lost: AtomicU64,
    /// Calls not recorded because a signal handler made them inside the hook.
    pub reentered: AtomicU64,
    /// Stacks that were cut.
    pub truncated: AtomicU64,
    /// Events whose memoized stack differed from a full unwind ([`flags::VERIFY`]).
    pub mismatches: AtomicU64,
    /// Number of times that a mark of a call was found stale: the frame was left by a jump, or is on a stack
    /// that the thread has left.
    pub abandoned: AtomicU64,
    /// Ticks from the time of each event until it was written, if [`flags::COSTS`] is set.
    pub spent: AtomicU64,
    /// Calls per hooked function, without nested ones.
    pub calls: [AtomicU64; FUNCTIONS],
}

/// Note of a thread that found no slot, so that it need not search again at its next call. It has a cache
/// line of its own, to avoid false sharing.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct TurnedAway {
    /// Hash of the thread pointer and of [`Control::slots_freed`](crate::shared::Control::slots_freed) at
    /// that time.
    pub key: AtomicU64,
    /// Calls that were not recorded.
    pub lost: AtomicU64,
}

/// A hooked function: what the hook needs at each call, and what a detach needs.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Function {
    /// Address to call for the original: its displaced prologue, then the rest of the function.
    pub original: u64,
    /// For [`Kind::New`] and [`Kind::NewAligned`]: address to call for the `nothrow` form.
    pub nothrow: u64,
    /// For [`Kind::Sandbox`]: a value of argument 0, by which a filter is asked for.
    pub asks: u64,
    /// For [`Kind::is_call`]: address of libc's function that returns the address of the thread's error number; 0:
    /// unknown.
    pub errno_at: u64,
    /// For [`Kind::Brk`]: address of libc's variable that holds the break; 0: unknown.
    pub break_at: u64,
    /// For [`Kind::Brk`]: code of libc's `sbrk`, which calls it.
    pub caller: Area,
    /// See [`Kind`].
    pub kind: u32,
    /// Index in the function table and in [`Slot::calls`].
    pub index: u32,
    /// 1 while the patch is in the code, 0 once it was removed.
    pub patched: AtomicU32,
    /// Length of the patch, in bytes.
    pub patch_len: u32,
    /// Address of the patch.
    pub patch_addr: u64,
    /// Original bytes at that address.
    pub old_bytes: [u8; 32],
    /// Patched bytes at that address.
    pub new_bytes: [u8; 32],
    /// Address of the stub.
    pub stub_addr: u64,
    /// Length of the stub.
    pub stub_len: u64,
    /// For each byte of the displaced instructions in the stub, counted from [`Function::original`]: the
    /// offset of its instruction from the function's start.
    pub places: [u8; 80],
    /// Address of the function.
    pub addr: u64,
    /// For functions that the user has named: address of the bridge, code of the target's own that the
    /// original returns to. 0: it returns to the hook.
    pub back: u64,
    /// Size of the bridge's frame, or of the hook's, in bytes.
    pub frame: u64,
    /// The function's name and module path, separated by a NUL and padded with NULs.
    pub name: [u8; 204],
    /// Slots of the bridge's frame that hold registers, as the architecture encodes them.
    pub back_slots: [u8; 16],
    /// Register through which the bridge calls the hook.
    pub back_register: u8,
    /// 1: some blocks it returns are glibc's, with a chunk header; 2: all are; 0: none is.
    pub headers: u8,
    /// For functions that the user has named: index of the size argument, from 0.
    pub size_arg: u8,
    /// For functions that the user has named: index of the block argument, from 0.
    pub block_arg: u8,
}

/// An unwind table of a module.
#[repr(C)]
#[derive(Debug)]
pub struct UnwindTable {
    /// Address of the original, which relative values in the table refer to. It may be unmapped by now.
    pub addr: AtomicU64,
    /// Length, in bytes; 0: there is no such table.
    pub len: AtomicU64,
    /// Offset of the copy in the shared memory.
    pub at: AtomicU64,
}

/// Number of unwind tables per module.
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
    /// End address of the last mapping.
    pub end: AtomicU64,
    /// Load bias: address minus the ELF file's virtual address.
    pub bias: AtomicU64,
    /// `.eh_frame_hdr` and `.eh_frame`, or what prof has made of `.debug_frame`; `.ARM.exidx` and what that
    /// leads to. A copy may end with bytes that do not belong to the table.
    pub tables: [UnwindTable; TABLES],
    /// Path in the dynamic linker's list, NUL padded; empty: the module was found through its mappings.
    pub name: [AtomicU8; 192],
}

/// A mapping that contains the stack of a thread.
#[repr(C)]
#[derive(Debug)]
pub struct StackRange {
    /// First readable address.
    pub start: AtomicU64,
    /// End address.
    pub end: AtomicU64,
}

/// A code address that occurs in stacks.
#[repr(C)]
#[derive(Debug)]
pub struct PcEntry {
    /// `pc | module index << 48`; 0: free. The module index is 1-based, 0 is "no module".
    pub key: AtomicU64,
    /// Unwind rule, as the architecture packs it; 0: not computed.
    pub rule: AtomicU64,
}

/// Values of [`SegmentHead::state`].
pub mod segment {
    /// The segment is on the free list, or being taken.
    pub const FREE: u32 = 0;
    /// A thread writes to the segment.
    pub const ACTIVE: u32 = 1;
    /// The segment is complete.
    pub const CLOSED: u32 = 2;
}

/// The head of a segment of events, on a cache line of its own.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct SegmentHead {
    /// See [`segment`].
    pub state: AtomicU32,
    /// Committed bytes, which are whole events; published with release.
    pub committed: AtomicU32,
    /// [`Slot::serial`] of the writing thread.
    pub serial: AtomicU32,
    /// Id of the writing thread.
    pub tid: AtomicU32,
    /// Slot index of the writing thread.
    pub slot: AtomicU32,
    /// Padding.
    pub pad: u32,
    /// Sequence number among the thread's segments.
    pub seq: AtomicU64,
}
