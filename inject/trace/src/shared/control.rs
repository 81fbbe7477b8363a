//! The control page: identity and settings of a recording, and the values that its fields have.

use crate::shared::{Area, SLOTS, Stable, TOGGLES, TURNED_AWAY, TurnedAway};
use core::ffi::CStr;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// First word of the control page.
pub const MAGIC: u64 = u64::from_le_bytes(*b"profring");
/// Layout number, raised with every change of the layout. prof reads only [`Stable`] of a memory with another
/// number.
pub const LAYOUT: u32 = 34;
/// Second word of the flag page. It tells the attached process from its forked children, in which the kernel
/// has wiped the page and maps nothing else of prof's memory.
pub const FLAG_COOKIE: u32 = u32::from_le_bytes(*b"prof");
/// Name of the memfd; in `/proc/PID/maps` it reads `/memfd:prof-ring (deleted)`.
pub const MEMFD_NAME: &str = match MEMFD_CNAME.to_str() {
    Ok(name) => name,
    Err(_) => panic!("not ASCII"),
};
/// [`MEMFD_NAME`] for `memfd_create`.
pub const MEMFD_CNAME: &CStr = c"prof-ring";

/// Greatest length of a mark's name, in bytes.
pub const MARK_NAME: usize = 128;

/// Values of [`Control::state`].
pub mod state {
    /// prof is setting up the recording.
    pub const SETUP: u32 = 0;
    /// The hooks are installed.
    pub const ATTACHED: u32 = 1;
    /// A detach is in progress, or was interrupted.
    pub const DETACHING: u32 = 2;
    /// No patch is left in the code; the collector may finish.
    pub const DETACHED: u32 = 3;
}

/// Values of [`Control::scan_answer`].
pub mod scan_answer {
    /// The scan is in the recording.
    pub const WRITTEN: u64 = 1;
    /// The collector could not read the file, or it does not hold a scan.
    pub const UNREADABLE: u64 = 2;
    /// The recording may not become as long, or could not be written to.
    pub const NO_ROOM: u64 = 3;
}

/// Bits of [`Control::flags`].
pub mod flags {
    /// Frees are recorded with their stacks.
    pub const FREE_STACKS: u32 = 1;
    /// The hook may make harmless system calls where it needs one (no seccomp filter).
    pub const SYSCALLS: u32 = 2;
    /// Each memoized stack is compared with a full unwind (debugging; slow).
    pub const VERIFY: u32 = 4;
    /// Not all blocks are recorded, see [`crate::capture`].
    pub const SELECT: u32 = 8;
    /// The dynamic linker calls the hook at changes of its list, while recording is on.
    pub const LOADER: u32 = 16;
    /// A seccomp filter, known to permit blocking signals and asking for the signal stack.
    pub const MASKS: u32 = 32;
    /// The target has a garbage collector that stops threads by signals: no handler may see a stack of the
    /// hook's.
    pub const COLLECTS: u32 = 64;
    /// A seccomp filter, known to permit private mappings, too, for
    /// [`Kind::Fork`](crate::shared::Kind::Fork).
    pub const MAPS: u32 = 128;
    /// All that permit system calls.
    pub const CALLS: u32 = SYSCALLS | MASKS | MAPS;
    /// The sampling distance changes, and each sampled block states its own.
    pub const ADAPTS: u32 = 256;
    /// Threads add up how long their events take, in [`Slot::spent`](crate::shared::Slot::spent). The collector sets this.
    pub const COSTS: u32 = 1024;
    /// Calls that change mappings are recorded, see [`Kind::is_call`](crate::shared::Kind::is_call).
    pub const MAPPINGS: u32 = 512;
    /// A thread that forks makes the child's shared memory, see [`HEIR_AT`](crate::shared::HEIR_AT).
    pub const HEIRS: u32 = 2048;
}

/// Values of [`Control::clock`].
pub mod clock {
    /// The processor's own counter (TSC, CNTVCT).
    pub const COUNTER: u32 = 1;
    /// `clock_gettime(CLOCK_MONOTONIC)` through the vDSO's function at [`super::Control::vdso_clock`], which
    /// makes no system call.
    pub const VDSO: u32 = 2;
    /// `clock_gettime` by a system call, made by the vDSO's function or directly; only while system calls are
    /// allowed.
    pub const SYSCALL: u32 = 3;
    /// The processor's own counter, which the target's threads may no longer read: they use the value that
    /// the collector has read last.
    pub const COARSE: u32 = 4;

    /// Returns whether times are ticks of the processor's counter.
    #[must_use]
    pub const fn is_counter(source: u32) -> bool {
        matches!(source, COUNTER | COARSE)
    }
}

/// A change between recording and paused.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Toggle {
    /// Ticks. 0: not yet written.
    pub time: AtomicU64,
    /// 1: recording from here on; 0: paused.
    pub on: AtomicU64,
}

/// Serial number of the first thread.
pub const FIRST_THREAD: u32 = 1;

/// The control page: identity and settings of the recording, and addresses in the target. The fields in front
/// of [`Control::stable`] are those that the hook reads most. A field that says what has happened in one process is
/// reset for its children in [`Control::make_heir`].
#[repr(C)]
#[derive(Debug)]
pub struct Control {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`LAYOUT`].
    pub layout: u32,
    /// Number of segments, see [`Geometry::from_segments`](crate::shared::Geometry::from_segments).
    pub segments: u32,
    /// See [`state`].
    pub state: AtomicU32,
    /// See [`flags`].
    pub flags: AtomicU32,
    /// See [`clock`].
    pub clock: AtomicU32,
    /// Maximum number of frames per stack; deeper stacks are cut.
    pub max_depth: u32,
    /// Offset of the thread id from the thread pointer; `i32::MIN`: unknown, use gettid.
    pub tid_offset: i32,
    /// Id of the target's first thread, in the target's own pid namespace.
    pub main_tid: u32,
    /// End address of the first thread's stack.
    pub main_stack_end: u64,
    /// Address of the vDSO's `clock_gettime`, for [`clock::VDSO`].
    pub vdso_clock: u64,
    /// Address of the dynamic linker's `r_debug`, 0 if there is none.
    pub r_debug: AtomicU64,
    /// Longest time that threads wait for a free segment before they drop events, in ns from when none was free.
    pub wait_ns: AtomicU64,
    /// See [`Capture::sample_bytes`](crate::capture::Capture); 0: off. With [`flags::ADAPTS`] the collector changes it.
    pub sample_bytes: AtomicU64,
    /// See [`Capture::sample_every`](crate::capture::Capture); 0 or 1: off.
    pub sample_every: u64,
    /// Smallest block size recorded, in bytes.
    pub min_size: u64,
    /// Largest block size recorded, in bytes; `u64::MAX`: no limit.
    pub max_size: u64,
    /// Set by the hook when [`crate::samples`] is full: from then on all frees are recorded.
    pub samples_full: AtomicU32,
    /// Address of the thread states in the target: [`Control::states_count`] of `states_stride` bytes, and
    /// then [`Control::more_count`] more. Those have no access until that number is set.
    pub states_addr: u64,
    /// Bytes from one thread state to the next.
    pub states_stride: u64,
    /// Number of thread states in the first part.
    pub states_count: u64,
    /// Fields that are the same in every build; they are accessible as fields of this struct.
    pub stable: Stable,
    /// Number of [`Module`](crate::shared::Module)s in use.
    pub modules: AtomicU32,
    /// Number of [`StackRange`](crate::shared::StackRange)s in use; valid only while [`Control::stacks_seq`] is even.
    pub stacks: AtomicU32,
    /// Sequence number of the stack ranges; odd while prof rewrites them.
    pub stacks_seq: AtomicU32,
    /// Serial number of the next new thread; starts at [`FIRST_THREAD`].
    pub next_thread: AtomicU32,
    /// Value of [`Stable::doubts`] when the set of modules was last checked.
    pub doubts_settled: AtomicU32,
    /// Number of modules that the attach has entered: the first in the table.
    pub first_modules: u32,
    /// Modules for which there was no room in the table.
    pub modules_lost: AtomicU32,
    /// Modules for whose unwind tables there was no room, or which could not be read.
    pub tables_lost: AtomicU32,
    /// Offset, in the entries of the dynamic linker's list, of the address at which the module begins; 0:
    /// unknown.
    pub start_in_list: u32,
    /// Offset of the copies of unwind tables in this memory.
    pub tables_at: u64,
    /// Size of the area for these copies, in bytes.
    pub tables_len: u64,
    /// Offset of the next copy.
    pub tables_next: AtomicU64,
    /// Ring of the last on/off changes, see [`Toggle`].
    pub toggles: [Toggle; TOGGLES],
    /// Number of thread states in the second part, for threads that find no room in the first; 0 until one of them has
    /// opened it.
    pub more_count: AtomicU64,
    /// The value that [`Control::more_count`] can get; 0: none.
    pub more_offered: AtomicU64,
    /// [`Geometry::first_segments`](crate::shared::Geometry::first_segments).
    pub first_segments: AtomicU64,
    /// 1 if prof was in the target's own cgroup at the attach, so that the ring counts there; else 0.
    pub ring_beside: u64,
    /// Number of the segments behind those that may be taken: about as many as threads hold open. So the ring
    /// has as much room with a thousand idle threads as with one.
    pub more_segments: AtomicU64,
    /// In the memory of a child that no collector has taken yet: the value that [`Control::first_segments`] is to get then.
    /// Until then it has [`HEIR_SEGMENTS`](crate::shared::HEIR_SEGMENTS), so that a child of which nobody takes notice does not
    /// fill memory. Else 0.
    pub heir_segments: AtomicU64,
    /// Ticks of the fork of this process, and of the first of [`Control::forks`]; 0: prof has attached to this process.
    pub forked_at: [AtomicU64; 2],
    /// Ticks before which threads that fork make no memory for their children; 0: they do. The supervisor sets this where
    /// children are short.
    pub no_heirs_until: AtomicU64,
    /// Number of forks since the process whose recording [`Control::path`] is; 0: that is this process.
    pub forks: AtomicU32,
    /// Number of times that slots were freed or opened.
    pub slots_freed: AtomicU64,
    /// Number of looks at the target's memory that a detach has asked for, while events are still recorded.
    pub looks_asked: AtomicU64,
    /// The last of these that the collector has made, or will not make.
    pub looks_done: AtomicU64,
    /// Number of marks that `prof mark` has asked for.
    pub marks_asked: AtomicU64,
    /// The last of these that the collector has written, or refused as there are too many.
    pub marks_done: AtomicU64,
    /// Ticks of the last mark; 0: the collector has refused it.
    pub mark_ticks: AtomicU64,
    /// Name of the mark that is asked for, in UTF-8, ended by a zero byte if it is shorter than this field.
    pub mark_name: [AtomicU8; MARK_NAME],
    /// Number of scans that `prof holds --save` has offered.
    pub scans_asked: AtomicU64,
    /// The last of these that the collector has written or refused.
    pub scans_done: AtomicU64,
    /// The file that holds the scan, as chunks of a recording: process id in the upper half, descriptor in the lower one.
    pub scan_from: AtomicU64,
    /// Outcome of the last scan, see [`scan_answer`].
    pub scan_answer: AtomicU64,
    /// Number of dump signals that have come.
    pub dumps_asked: AtomicU64,
    /// Threads that found no slot, see [`TurnedAway`].
    pub turned_away: [TurnedAway; TURNED_AWAY],
    /// Code whose calls are not recorded, as it frees blocks that the program has freed before (glibc's
    /// cleanup of a thread). First address, and length; 0: none.
    pub quiet: Area,
    /// Ticks since when no segment is free; 0: some are.
    pub full_since: AtomicU64,
    /// A bit per [`Slot`](crate::shared::Slot), set before the slot is first taken, see [`Shared::used_slots`](crate::shared::Shared::used_slots).
    pub slots_used: [AtomicU64; SLOTS / 64],
    /// The recording's absolute path, in prof's mount namespace.
    pub path: [AtomicU8; 4096],
    /// Absolute path of the prof that attached.
    pub exe: [AtomicU8; 1024],
}

impl core::ops::Deref for Control {
    type Target = Stable;

    #[inline(always)]
    fn deref(&self) -> &Stable {
        &self.stable
    }
}

impl core::ops::DerefMut for Control {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Stable {
        &mut self.stable
    }
}
