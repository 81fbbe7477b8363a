//! The memory that the target and prof share: one memfd, mapped by both.
//!
//! prof creates it, seals it against shrinking, and maps it into the target. The target is not trusted: prof
//! bounds each access by its own copy of the geometry ([`Geometry`]), never by numbers in the memory.
//!
//! Fields that both sides access while the hook runs are atomics; prof writes the others before the hook runs
//! its first instruction.

pub use crate::hook_header::*;
pub use crate::stable::*;
pub use crate::tables::*;
use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// First word of the control page.
pub const MAGIC: u64 = u64::from_le_bytes(*b"profring");
/// Layout number, raised with every change of the layout. prof reads only [`Stable`] of a memory with another
/// number.
pub const LAYOUT: u32 = 25;
/// Second word of the flag page. It tells the attached process from its forked children, in which the kernel
/// has wiped the page and maps nothing else of prof's memory.
pub const FLAG_COOKIE: u32 = u32::from_le_bytes(*b"prof");
/// Name of the memfd; in `/proc/PID/maps` it reads `/memfd:prof-ring (deleted)`.
pub const MEMFD_NAME: &str = "prof-ring";

/// Maximum number of slots in the first part of the slot table, where a thread's first probe leads.
pub const FIRST_SLOTS: usize = 8192;
/// Maximum number of slots in the second part, used once the first is full; none where address space is
/// short.
pub const MORE_SLOTS: usize = if cfg!(target_pointer_width = "32") { 0 } else { 1 << 16 };
/// Maximum number of threads recorded at a time.
pub const SLOTS: usize = FIRST_SLOTS + MORE_SLOTS;
/// Entries of [`Control::turned_away`].
pub const TURNED_AWAY: usize = 512;
/// Maximum number of modules over a recording's time.
pub const MODULES: usize = 4096;
/// Maximum number of hooked functions.
pub const FUNCTIONS: usize = 128;
/// Maximum number of stack mappings that prof lists for the hook.
pub const STACKS: usize = 4096;
/// Number of on/off changes kept until the collector has read them.
pub const TOGGLES: usize = 256;
/// Size of a segment of events, in bytes.
pub const SEGMENT_SIZE: usize = 16 << 10;
/// Maximum number of segments (1 GiB of ring).
pub const MAX_SEGMENTS: usize = 1 << 16;
/// Levels of the table of code addresses; level `k` has `PC_LEVEL0 << k` entries.
pub const PC_LEVELS: usize = 9;
/// Entries of the first level of the table of code addresses.
pub const PC_LEVEL0: usize = 1 << 12;
/// Levels of the set of recorded blocks; level `k` has `SAMPLE_LEVEL0 << 2k` entries.
pub const SAMPLE_LEVELS: u32 = 6;
/// Entries of the first level of the set of recorded blocks.
pub const SAMPLE_LEVEL0: usize = 1 << 12;
const SAMPLES: usize = SAMPLE_LEVEL0 * (((1 << (2 * SAMPLE_LEVELS)) - 1) / 3);
/// Number of marks, see [`crate::samples`].
pub const SAMPLE_MARKS: usize = 1 << 16;

/// Number of entries of a level that a key may occupy.
pub const WINDOW: usize = 8;

const PAGE: usize = 64 << 10; // the largest page size of the supported architectures

const fn up(n: usize) -> usize {
    n.div_ceil(PAGE) * PAGE
}

const SLOTS_AT: usize = up(size_of::<Control>());
const FUNCTIONS_AT: usize = SLOTS_AT + up(SLOTS * size_of::<Slot>());
const MODULES_AT: usize = FUNCTIONS_AT + up(FUNCTIONS * size_of::<Function>());
const STACKS_AT: usize = MODULES_AT + up(MODULES * size_of::<Module>());
const PCS_AT: usize = STACKS_AT + up(STACKS * size_of::<StackRange>());
const SAMPLES_AT: usize = PCS_AT + up(PC_LEVEL0 * ((1 << PC_LEVELS) - 1) * size_of::<PcEntry>());
/// Offset of the marks of [`crate::samples`] in the memory.
pub const MARKS_AT: usize = SAMPLES_AT + up(SAMPLES * 8);
const HEADS_AT: usize = MARKS_AT + up(SAMPLE_MARKS);
const FREE_AT: usize = HEADS_AT + up(MAX_SEGMENTS * size_of::<SegmentHead>());
const DATA_AT: usize = FREE_AT + up(MAX_SEGMENTS / 8);
/// Size of a thread's private state, in bytes. It lies in the shared memory so that the target's own mappings
/// stay small; no other thread reads it.
pub const STATE_SIZE: usize = 400 << 10;

/// Sizes of the parts that vary; prof chooses them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    segments: usize,
    /// How many of the segments are for threads beyond those that the others suffice for.
    more_segments: usize,
    states: usize,
    more: usize,
    tables: usize,
}

/// Minimum number of thread states; less where address space is short.
const MIN_STATES: usize = if cfg!(target_pointer_width = "32") { 128 } else { 1024 };

impl Geometry {
    /// Makes a ring of about `bytes` bytes of events: between 64 segments and [`MAX_SEGMENTS`].
    pub fn for_ring(bytes: usize) -> Self {
        let segments = (bytes / SEGMENT_SIZE).clamp(64, MAX_SEGMENTS) / 64 * 64;
        Self { segments, more_segments: 0, states: MIN_STATES, more: 0, tables: 0 }
    }

    /// Sets the number of threads with room in the first part, rounded up to a power of two, at most
    /// [`FIRST_SLOTS`].
    #[must_use]
    pub fn with_threads(self, threads: usize) -> Self {
        let states = threads.clamp(MIN_STATES, FIRST_SLOTS).next_power_of_two();
        Self { states: states.min(FIRST_SLOTS), ..self }
    }

    /// Sets the number of threads with room in the second part: none, or rounded up to a power of two, at
    /// most [`MORE_SLOTS`]. This is address space alone until there are so many threads.
    #[must_use]
    pub fn with_more_threads(self, threads: usize) -> Self {
        let more = if threads == 0 { 0 } else { threads.next_power_of_two().min(MORE_SLOTS) };
        let first = self.first_segments();
        // Half of the slots at most are ever used (see `inject/src/mapped/room.rs`).
        let segments = (first + more / 2).min(MAX_SEGMENTS) / 64 * 64;
        Self { more, segments, more_segments: segments - first, ..self }
    }

    /// Returns the number of segments that threads take first and whose pages prof allocates. The others are
    /// address space alone until so many threads hold one.
    pub fn first_segments(self) -> usize {
        self.segments - self.more_segments
    }

    /// Sets how many of the segments are the first ones ([`Geometry::first_segments`]).
    #[must_use]
    pub fn with_first_segments(self, first: usize) -> Self {
        Self { more_segments: self.segments - first.min(self.segments), ..self }
    }

    /// Sets the room for unwind tables, in bytes.
    #[must_use]
    pub fn with_tables(self, bytes: usize) -> Self {
        Self { tables: up(bytes), ..self }
    }

    /// Returns the number of thread states in the first part.
    pub fn states(self) -> usize {
        self.states
    }

    /// Returns the number of thread states in the second part.
    pub fn more_states(self) -> usize {
        self.more
    }

    /// Returns the offsets of the unwind tables.
    pub fn tables(self) -> Range<usize> {
        let at = DATA_AT + up(self.segments * SEGMENT_SIZE);
        at..at + self.tables
    }

    /// Returns the offset of the thread states.
    pub fn states_at(self) -> usize {
        self.tables().end
    }

    /// Makes the geometry from the number of segments in a control page; `None` if that is out of range.
    pub fn from_segments(segments: u32) -> Option<Self> {
        let segments = segments as usize;
        ((64..=MAX_SEGMENTS).contains(&segments) && segments.is_multiple_of(64)).then_some(Self {
            segments,
            more_segments: 0,
            states: 0,
            more: 0,
            tables: 0,
        })
    }

    /// Makes the geometry for the hook, from a number of segments that prof has checked.
    #[inline(always)]
    pub const fn trusted(segments: usize) -> Self {
        Self { segments, more_segments: 0, states: 0, more: 0, tables: 0 }
    }

    /// Returns the number of segments.
    #[inline(always)]
    pub fn segments(self) -> usize {
        self.segments
    }

    /// Returns the size of the whole memory, in bytes; without thread states if it was made from a number of
    /// segments.
    pub fn size(self) -> usize {
        up(self.states_at() + (self.states + self.more) * STATE_SIZE)
    }

    /// Returns the parts: name and offsets.
    pub fn parts(self) -> [(&'static str, Range<usize>); 11] {
        [
            ("control", 0..SLOTS_AT),
            ("slots", SLOTS_AT..FUNCTIONS_AT),
            ("functions", FUNCTIONS_AT..MODULES_AT),
            ("modules", MODULES_AT..STACKS_AT),
            ("stacks", STACKS_AT..PCS_AT),
            ("pcs", PCS_AT..SAMPLES_AT),
            ("samples", SAMPLES_AT..HEADS_AT),
            ("heads", HEADS_AT..DATA_AT),
            ("events", DATA_AT..self.tables().start),
            ("tables", self.tables()),
            ("states", self.states_at()..self.size()),
        ]
    }

    /// Returns the ranges that may have pages if `segments` segments at most are ever used; `more`: threads
    /// use the second part, too.
    pub fn in_use(self, more: bool, segments: usize) -> [Range<usize>; 2] {
        let states = self.states + if more { self.more } else { 0 };
        let events = DATA_AT + segments.min(self.segments) * SEGMENT_SIZE;
        [0..events, self.tables().start..self.states_at() + states * STATE_SIZE]
    }

    /// Returns the ranges (offset, length) that are written from the first event on. prof allocates their
    /// pages beforehand and on its own account.
    pub fn hot_ranges(self) -> [(usize, usize); 5] {
        [
            (0, SLOTS_AT + self.states * size_of::<Slot>()),
            (FUNCTIONS_AT, FUNCTIONS * size_of::<Function>()),
            (PCS_AT, PC_LEVEL0 * 3 * size_of::<PcEntry>()),
            (HEADS_AT, self.first_segments() * size_of::<SegmentHead>()),
            (DATA_AT, self.first_segments() * SEGMENT_SIZE),
        ]
    }
}

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
    /// There is a seccomp filter, and it is known to permit blocking signals and asking for the signal stack.
    pub const MASKS: u32 = 32;
    /// The target has a garbage collector that stops threads by signals: no handler may see a stack of the
    /// hook's.
    pub const COLLECTS: u32 = 64;
    /// There is a seccomp filter, and it is known to permit private mappings, too, for
    /// [`Kind::Fork`](super::Kind::Fork).
    pub const MAPS: u32 = 128;
    /// All that permit system calls.
    pub const CALLS: u32 = SYSCALLS | MASKS | MAPS;
    /// The sampling distance changes, and each sampled block states its own.
    pub const ADAPTS: u32 = 256;
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
/// of [`Control::stable`] are those that the hook reads most.
#[repr(C)]
#[derive(Debug)]
pub struct Control {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`LAYOUT`].
    pub layout: u32,
    /// Number of segments, see [`Geometry::from_segments`].
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
    pub r_debug: u64,
    /// How long threads wait for a free segment before they drop events, in ns from when none was free.
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
    /// then [`Control::more_count`] more.
    pub states_addr: u64,
    /// Bytes from one thread state to the next.
    pub states_stride: u64,
    /// Number of thread states in the first part.
    pub states_count: u64,
    /// Fields that are the same in every build; they are accessible as fields of this struct.
    pub stable: Stable,
    /// Number of [`Module`]s in use.
    pub modules: AtomicU32,
    /// Number of [`StackRange`]s in use; valid only while [`Control::stacks_seq`] is even.
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
    /// Number of thread states in the second part, for threads that find no room in the first.
    pub more_count: u64,
    /// [`Geometry::first_segments`].
    pub first_segments: u64,
    /// 1 if prof was in the target's own cgroup at the attach, so that the ring counts there; else 0.
    pub ring_beside: u64,
    /// How many of the segments behind those may be taken: about as many as threads hold open. So the ring
    /// has as much room with a thousand idle threads as with one.
    pub more_segments: AtomicU64,
    /// Number of times that the collector has freed slots.
    pub slots_freed: AtomicU64,
    /// Number of looks at the target's memory that a detach has asked for, while events are still recorded.
    pub looks_asked: AtomicU64,
    /// The last of these that the collector has made, or will not make.
    pub looks_done: AtomicU64,
    /// Threads that found no slot, see [`TurnedAway`].
    pub turned_away: [TurnedAway; TURNED_AWAY],
    /// Code whose calls are not recorded, as it frees blocks that the program has freed before (glibc's
    /// cleanup of a thread). First address, and length; 0: none.
    pub quiet: Area,
    /// Ticks since when no segment is free; 0: some are.
    pub full_since: AtomicU64,
    /// A bit per [`Slot`], set before the slot is first taken, see [`Shared::used_slots`].
    pub slots_used: [AtomicU64; SLOTS / 64],
    /// The recording's absolute path, in prof's mount namespace.
    pub path: [AtomicU8; 4096],
    /// Absolute path of the prof that attached.
    pub exe: [AtomicU8; 1024],
}

/// A mapping that prof made in the target.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Area {
    /// First address.
    pub addr: u64,
    /// Length in bytes; 0: unused.
    pub len: u64,
}

/// Access to the mapped memory. All accessors bound their index by prof's geometry; none reads it from the
/// memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    base: *mut u8,
    geometry: Geometry,
}

const _: () = assert!(offset_of!(Shared, base) == 0);

// SAFETY: what the pointer leads to is atomics, or is written before the memory is shared.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

macro_rules! table {
    ($(#[$doc:meta])* $name:ident, $at:expr, $ty:ty, $count:expr) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(&self, index: usize) -> Option<&'static $ty> {
            if index >= $count(self) {
                return None;
            }
            // SAFETY: the index is in bounds, the entry is inside the mapping and aligned, and its type is
            // valid for any bytes.
            Some(unsafe { &*self.base.add($at + index * size_of::<$ty>()).cast::<$ty>() })
        }
    };
}

impl Shared {
    /// Offset of the number of segments (a `usize`) in this struct; that of the address is 0.
    pub(crate) const SEGMENTS: usize = offset_of!(Self, geometry) + offset_of!(Geometry, segments);

    /// An empty value, overwritten before it is used.
    pub(crate) const NONE: Self =
        Self { base: core::ptr::null_mut(), geometry: Geometry::trusted(0) };

    /// Wraps a mapping of the memory.
    ///
    /// # Safety
    /// `base` must point to a mapping of `geometry.size()` bytes, aligned to a page, that stays
    /// mapped for as long as anything obtained from this value is in use.
    pub const unsafe fn new(base: *mut u8, geometry: Geometry) -> Self {
        Self { base, geometry }
    }

    /// Returns the geometry that bounds all accesses.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Returns the address of the mapping in this process.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Returns the control page.
    #[inline(always)]
    pub fn control(&self) -> &'static Control {
        // SAFETY: the mapping begins with the control page, which is valid for any bytes.
        unsafe { &*self.base.cast::<Control>() }
    }

    /// Returns the control page, to be filled in before anybody else maps this memory.
    ///
    /// # Safety
    /// No other reference to the control page may be in use.
    #[allow(clippy::mut_from_ref)] // the memory is not owned by `self`
    pub unsafe fn control_mut(&self) -> &mut Control {
        // SAFETY: the mapping begins with the control page; nobody else uses it, by the caller's promise.
        unsafe { &mut *self.base.cast::<Control>() }
    }

    /// Returns a function entry, to be filled in before its stub can be reached.
    ///
    /// # Safety
    /// No other reference to the entry may be in use.
    #[allow(clippy::mut_from_ref)] // the memory is not owned by `self`
    pub unsafe fn function_mut(&self, index: usize) -> Option<&mut Function> {
        if index >= FUNCTIONS {
            return None;
        }
        let at = FUNCTIONS_AT + index * size_of::<Function>();
        // SAFETY: the entry is in bounds and aligned; nobody else uses it, by the caller's promise.
        Some(unsafe { &mut *self.base.add(at).cast::<Function>() })
    }

    table!(/// Returns a thread slot.
        slot, SLOTS_AT, Slot, |_: &Self| SLOTS);
    table!(/// Returns a hooked function.
        function, FUNCTIONS_AT, Function, |_: &Self| FUNCTIONS);
    table!(/// Returns a module, by its number minus 1.
        module, MODULES_AT, Module, |_: &Self| MODULES);
    table!(/// Returns a stack range.
        stack, STACKS_AT, StackRange, |_: &Self| STACKS);
    table!(/// Returns a code address, by its id minus 1 (see [`crate::pcs`]).
        pc, PCS_AT, PcEntry, |_: &Self| PC_LEVEL0 * ((1 << PC_LEVELS) - 1));
    table!(/// Returns a window of the set of recorded blocks, see [`crate::samples`].
        sample_window, SAMPLES_AT, [AtomicU64; crate::samples::WINDOW],
        |_: &Self| SAMPLES / crate::samples::WINDOW);
    table!(/// Returns a mark of the set of recorded blocks, see [`crate::samples`].
        sample_mark, MARKS_AT, AtomicU8, |_: &Self| SAMPLE_MARKS);
    table!(/// Returns the head of a segment.
        head, HEADS_AT, SegmentHead, |s: &Self| s.geometry.segments);
    table!(/// Returns a word of the free list, which has 64 segments: a set bit is a free one.
        free_word, FREE_AT, AtomicU64, |s: &Self| s.geometry.segments / 64);

    /// Returns how many segments are taken first, and how many may be taken in all.
    pub fn segments_now(&self) -> (usize, usize) {
        let c = self.control();
        let all = self.geometry.segments;
        let first = (c.first_segments as usize).min(all) / 64 * 64;
        // Nobody has divided the segments: all are alike.
        if first == 0 {
            return (all, all);
        }
        let more = (c.more_segments.load(Relaxed).min(all as u64)) as usize / 64 * 64;
        (first, (first + more).min(all))
    }

    /// Returns the first of a segment's [`SEGMENT_SIZE`] bytes.
    #[inline(always)]
    pub fn data(&self, index: usize) -> Option<*mut u8> {
        if index >= self.geometry.segments {
            return None;
        }
        // SAFETY: the segment is inside the mapping.
        Some(unsafe { self.base.add(DATA_AT + index * SEGMENT_SIZE) })
    }

    /// Copies a part of a segment that its thread has committed; does nothing if the part exceeds the
    /// segment.
    pub fn copy_out(&self, index: usize, from: usize, to: &mut [u8]) {
        let Some(data) = self.data(index) else { return };
        if from + to.len() > SEGMENT_SIZE {
            return;
        }
        // SAFETY: the part is inside the segment. A hostile target may write to it meanwhile: the copy is
        // then arbitrary, and it is checked after it was made.
        unsafe { core::ptr::copy_nonoverlapping(data.add(from), to.as_mut_ptr(), to.len()) }
    }

    /// Returns the offset of a function entry in the memory. Its address in the target is
    /// [`Stable::ring_addr`] plus this.
    pub const fn function_offset(index: usize) -> usize {
        FUNCTIONS_AT + index * size_of::<Function>()
    }

    /// Returns the offset of a thread slot in the memory.
    pub const fn slot_offset(index: usize) -> usize {
        SLOTS_AT + index * size_of::<Slot>()
    }

    /// Notes that a slot is about to be taken.
    pub fn note_slot(&self, index: usize) {
        if let Some(word) = self.control().slots_used.get(index / 64) {
            word.fetch_or(1 << (index % 64), Relaxed);
        }
    }

    /// Returns whether a slot was ever taken.
    #[inline(always)]
    pub fn is_noted(&self, index: usize) -> bool {
        let word = self.control().slots_used.get(index / 64);
        word.is_some_and(|w| w.load(Relaxed) >> (index % 64) & 1 == 1)
    }

    /// Returns whether a slot of the second part was ever taken.
    pub fn has_more_threads(&self) -> bool {
        let first = self.geometry.states;
        let mut words = self.control().slots_used.iter().enumerate().skip(first / 64);
        words.any(|(i, w)| w.load(Relaxed) >> first.saturating_sub(i * 64).min(63) != 0)
    }

    /// Returns the number of calls that were not recorded because their thread had no slot.
    pub fn lost_without_slot(&self) -> u64 {
        let all = self.control().turned_away.iter().map(|t| t.lost.load(Relaxed));
        all.fold(0, u64::wrapping_add)
    }

    /// Returns the slots that were ever taken. To read the others, nearly all, would take milliseconds and
    /// allocate their pages.
    pub fn used_slots(&self) -> impl Iterator<Item = &'static Slot> + use<'_> {
        let words = self.control().slots_used.iter().map(|w| w.load(Relaxed));
        set_bits(words).filter_map(|i| self.slot(i))
    }
}

/// Returns the positions of the set bits, in ascending order.
pub fn set_bits(words: impl Iterator<Item = u64>) -> impl Iterator<Item = usize> {
    words.enumerate().flat_map(|(w, word)| {
        let next = |bits: &u64| Some(bits & (bits - 1)).filter(|bits| *bits != 0);
        let lowest = move |bits: u64| w * 64 + bits.trailing_zeros() as usize;
        core::iter::successors(Some(word).filter(|w| *w != 0), next).map(lowest)
    })
}

#[cfg(all(test, feature = "std"))]
impl Shared {
    /// Returns memory for a test, leaked. It is zero because it is new, and only used pages are allocated.
    pub(crate) fn leaked() -> Self {
        Self::leaked_with(0)
    }

    /// Returns such memory with `tables` bytes of room for unwind tables.
    pub(crate) fn leaked_with(tables: usize) -> Self {
        const ALIGN: usize = 65536;
        let g = Geometry::for_ring(0).with_tables(tables);
        let layout = std::alloc::Layout::from_size_align(g.size() + ALIGN, 8).expect("layout");
        // SAFETY: the size is not zero, and the allocation has room behind the next boundary.
        unsafe {
            let at = std::alloc::alloc_zeroed(layout);
            Self::new(at.add(at.align_offset(ALIGN)), g)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_do_not_overlap_and_fit() {
        let g = Geometry::for_ring(64 << 20);
        assert_eq!(g.segments(), 4096);
        assert!(DATA_AT.is_multiple_of(4096));
        let mut end = 0;
        for (at, len) in g.hot_ranges() {
            assert!(at >= end && at + len <= g.size());
            end = at + len;
        }
        assert_eq!(Geometry::from_segments(4096).map(|g| g.segments), Some(4096));
        assert_eq!(Geometry::from_segments(63), None);
        let more = g.with_threads(3000).with_more_threads(20_000).with_tables(1);
        assert_eq!((more.first_segments(), g.first_segments()), (4096, 4096));
        assert_eq!(more.segments(), 4096 + more.more_states() / 2);
        assert_eq!((more.states(), more.more_states()), (4096, 32768.min(MORE_SLOTS)));
        let states = (4096 + more.more_states()) * STATE_SIZE;
        assert_eq!(more.size(), up(more.states_at() + states));
        assert_eq!(more.states_at(), more.tables().end);
        assert_eq!(more.hot_ranges(), g.with_threads(4096).hot_ranges());
        assert_eq!(Geometry::from_segments(u32::MAX), None);
        assert_eq!(core::mem::offset_of!(Slot, events), 64);
    }

    #[test]
    fn set_bits_are_found() {
        let found = |words: &[u64]| set_bits(words.iter().copied()).collect::<std::vec::Vec<_>>();
        assert_eq!(found(&[0, 0]), []);
        assert_eq!(found(&[0b1001, 0, 1 << 63 | 1]), [0, 3, 128, 191]);
        assert_eq!(found(&[u64::MAX]).len(), 64);
    }
}
