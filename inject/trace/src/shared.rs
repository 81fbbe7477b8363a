//! The memory that the target and prof share: one memfd, mapped by both.
//!
//! prof makes its size and contents, seals it against shrinking, and maps it into the target. The
//! target is not trusted: everything in here that prof reads is bounded by prof's own copy of the
//! geometry ([`Geometry`]), never by numbers that stand in the memory.
//!
//! All fields that both sides touch are atomics; the rest is written by prof before the hook runs
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
/// Grows with every change of the layout. Of what has another number, prof knows [`Stable`] alone.
pub const LAYOUT: u32 = 21;
/// Second word of the flag page: tells the attached process from its forked children, in which the
/// kernel has wiped the page and nothing else of prof's memory is mapped.
pub const FLAG_COOKIE: u32 = u32::from_le_bytes(*b"prof");
/// Name of the memfd; in `/proc/PID/maps` it reads `/memfd:prof-ring (deleted)`.
pub const MEMFD_NAME: &str = "prof-ring";

/// Threads that have their slot where it is found at first sight, at the most.
pub const FIRST_SLOTS: usize = 8192;
/// Threads that have room beside them once those are taken: none where address space is short.
pub const MORE_SLOTS: usize = if cfg!(target_pointer_width = "32") { 0 } else { 1 << 16 };
/// Threads that can be recorded at a time.
pub const SLOTS: usize = FIRST_SLOTS + MORE_SLOTS;
/// Entries of [`Control::turned_away`].
pub const TURNED_AWAY: usize = 512;
/// Modules that can be known over a recording's time.
pub const MODULES: usize = 4096;
/// Hooked functions.
pub const FUNCTIONS: usize = 96;
/// Stack mappings that prof tells the hook of.
pub const STACKS: usize = 4096;
/// On/off changes kept until the collector has read them.
pub const TOGGLES: usize = 256;
/// Bytes of one segment of events.
pub const SEGMENT_SIZE: usize = 16 << 10;
/// The most segments (1 GiB of ring).
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
/// Marks of memory in which recorded blocks begin.
pub const SAMPLE_MARKS: usize = 1 << 16;

/// Entries of a level in which a key may stand.
pub const WINDOW: usize = 8;

const PAGE: usize = 64 << 10; // the largest page of any architecture that we run on

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
/// Bytes of a thread's private state. It lies in the shared memory for its account only: nobody but
/// the thread reads it.
pub const STATE_SIZE: usize = 400 << 10;

/// How large the parts are. Only the number of segments varies; prof chooses it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    segments: usize,
    /// How many of them are for more threads than the others suffice for.
    more_segments: usize,
    states: usize,
    more: usize,
    tables: usize,
}

/// The fewest threads at a time that there is room for: less where address space is short.
const MIN_STATES: usize = if cfg!(target_pointer_width = "32") { 128 } else { 1024 };

impl Geometry {
    /// A ring of about `bytes` bytes of events: between 64 segments and [`MAX_SEGMENTS`].
    pub fn for_ring(bytes: usize) -> Self {
        let segments = (bytes / SEGMENT_SIZE).clamp(64, MAX_SEGMENTS) / 64 * 64;
        Self { segments, more_segments: 0, states: MIN_STATES, more: 0, tables: 0 }
    }

    /// The same with room for so many threads at a time: a power of two up to [`FIRST_SLOTS`].
    #[must_use]
    pub fn with_threads(self, threads: usize) -> Self {
        let states = threads.clamp(MIN_STATES, FIRST_SLOTS).next_power_of_two();
        Self { states: states.min(FIRST_SLOTS), ..self }
    }

    /// The same with room for so many threads beside those: none, or a power of two up to [`MORE_SLOTS`].
    /// It is address space alone until there are as many.
    #[must_use]
    pub fn with_more_threads(self, threads: usize) -> Self {
        let more = if threads == 0 { 0 } else { threads.next_power_of_two().min(MORE_SLOTS) };
        let first = self.first_segments();
        // Half of the slots are ever used (see `room.rs`).
        let segments = (first + more / 2).min(MAX_SEGMENTS) / 64 * 64;
        Self { more, segments, more_segments: segments - first, ..self }
    }

    /// The segments that threads take first, and whose memory prof makes. The others are address space alone until
    /// so many threads hold one.
    pub fn first_segments(self) -> usize {
        self.segments - self.more_segments
    }

    /// The same with room for so many bytes of unwind tables.
    #[must_use]
    pub fn with_tables(self, bytes: usize) -> Self {
        Self { tables: up(bytes), ..self }
    }

    /// Threads that have room at a time, at first sight.
    pub fn states(self) -> usize {
        self.states
    }

    /// Threads that have room beside them.
    pub fn more_states(self) -> usize {
        self.more
    }

    /// Where the unwind tables are.
    pub fn tables(self) -> Range<usize> {
        let at = DATA_AT + up(self.segments * SEGMENT_SIZE);
        at..at + self.tables
    }

    /// Where the thread states begin.
    pub fn states_at(self) -> usize {
        self.tables().end
    }

    /// From the number of segments that a control page names, if it can be one.
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

    /// For the hook, whose number of segments prof has checked.
    #[inline(always)]
    pub const fn trusted(segments: usize) -> Self {
        Self { segments, more_segments: 0, states: 0, more: 0, tables: 0 }
    }

    /// Number of segments.
    #[inline(always)]
    pub fn segments(self) -> usize {
        self.segments
    }

    /// Bytes of the whole memory; without thread states if it was made from a number of segments.
    pub fn size(self) -> usize {
        up(self.states_at() + (self.states + self.more) * STATE_SIZE)
    }

    /// The parts, by name and by where they lie.
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

    /// What of the memory may have pages, if so many segments were ever to be used; `more`: there have been more
    /// threads than have room at first sight.
    pub fn in_use(self, more: bool, segments: usize) -> [Range<usize>; 2] {
        let states = self.states + if more { self.more } else { 0 };
        let events = DATA_AT + segments.min(self.segments) * SEGMENT_SIZE;
        [0..events, self.tables().start..self.states_at() + states * STATE_SIZE]
    }

    /// The ranges (offset, length) that are written from the first event on, so that prof can
    /// allocate their pages beforehand and on its own account.
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
    /// prof is still setting up.
    pub const SETUP: u32 = 0;
    /// Hooks are in.
    pub const ATTACHED: u32 = 1;
    /// A detach is under way, or was left half-way.
    pub const DETACHING: u32 = 2;
    /// Nothing of prof is left in the code; the collector may finish.
    pub const DETACHED: u32 = 3;
}

/// Bits of [`Control::flags`].
pub mod flags {
    /// Record a stack with each free, too.
    pub const FREE_STACKS: u32 = 1;
    /// The hook may make harmless system calls where it needs one (no seccomp filter).
    pub const SYSCALLS: u32 = 2;
    /// Compare each memoized stack with a full unwind (debugging; slow).
    pub const VERIFY: u32 = 4;
    /// Not all blocks are recorded: see [`crate::capture`].
    pub const SELECT: u32 = 8;
    /// The dynamic linker tells the hook of changes, while recording is on.
    pub const LOADER: u32 = 16;
    /// There is a seccomp filter, and it is known to let the hook block signals and ask for a signal stack.
    pub const MASKS: u32 = 32;
    /// The target has a garbage collector that stops threads by signals: no handler may see a stack of the hook's.
    pub const COLLECTS: u32 = 64;
}

/// Values of [`Control::clock`].
pub mod clock {
    /// The processor's own counter (TSC, CNTVCT).
    pub const COUNTER: u32 = 1;
    /// `clock_gettime(CLOCK_MONOTONIC)` by the vDSO's function at [`super::Control::vdso_clock`], which makes no
    /// system call for it.
    pub const VDSO: u32 = 2;
    /// The same where it does, or where there is no such function; only while system calls are allowed.
    pub const SYSCALL: u32 = 3;
    /// The processor's own counter, which the target's threads may not read any more: to them it is what the
    /// collector has seen last.
    pub const COARSE: u32 = 4;

    /// Whether times are ticks of the processor's counter.
    #[must_use]
    pub const fn is_counter(source: u32) -> bool {
        matches!(source, COUNTER | COARSE)
    }
}

/// One change between recording and paused.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Toggle {
    /// Ticks. 0: not yet written.
    pub time: AtomicU64,
    /// 1: recording from here on; 0: paused.
    pub on: AtomicU64,
}

/// The serial number of the first thread that is seen.
pub const FIRST_THREAD: u32 = 1;

/// The control page: who records whom, how, and what is where in the target. What stands in front of
/// [`Control::stable`] is what the hook reads most.
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
    /// Frames at which a stack is cut.
    pub max_depth: u32,
    /// Offset of the thread id from the thread pointer; `i32::MIN`: unknown, use gettid.
    pub tid_offset: i32,
    /// Id of the target's first thread, in the target's own pid namespace.
    pub main_tid: u32,
    /// End of the first thread's stack.
    pub main_stack_end: u64,
    /// Address of the vDSO's `clock_gettime`, for [`clock::VDSO`].
    pub vdso_clock: u64,
    /// Address of the dynamic linker's `r_debug`, 0 if there is none.
    pub r_debug: u64,
    /// Nanoseconds that threads may wait for a free segment, from when there is none, before they drop
    /// events.
    pub wait_ns: AtomicU64,
    /// See [`Capture::sample_bytes`](crate::capture::Capture); 0: off.
    pub sample_bytes: u64,
    /// See [`Capture::sample_every`](crate::capture::Capture); 0 or 1: off.
    pub sample_every: u64,
    /// Smaller blocks are not recorded.
    pub min_size: u64,
    /// Larger blocks are not recorded; `u64::MAX`: no limit.
    pub max_size: u64,
    /// Set by the hook when [`crate::samples`] had no room: from then on all frees are recorded.
    pub samples_full: AtomicU32,
    /// The private thread states in the target: [`Control::states_count`] of `states_stride` bytes.
    pub states_addr: u64,
    /// Bytes from one thread state to the next.
    pub states_stride: u64,
    /// Number of thread states whose slots are looked at first.
    pub states_count: u64,
    /// What builds with another layout know of, too. Its fields are read and written as this one's own.
    pub stable: Stable,
    /// Number of [`Module`]s in use.
    pub modules: AtomicU32,
    /// Number of [`StackRange`]s in use; even [`Control::stacks_seq`] only.
    pub stacks: AtomicU32,
    /// Odd while prof is rewriting the stack ranges.
    pub stacks_seq: AtomicU32,
    /// Serial number for the next thread that is seen; begins with [`FIRST_THREAD`].
    pub next_thread: AtomicU32,
    /// What [`Stable::doubts`] was when what there is was looked at last.
    pub doubts_settled: AtomicU32,
    /// Modules of the attach: the first in the table.
    pub first_modules: u32,
    /// Modules for which there was no room in the table.
    pub modules_lost: AtomicU32,
    /// Modules for whose unwind tables there was no room, or which could not be read.
    pub tables_lost: AtomicU32,
    /// Offset in the entries of the dynamic linker's list of the address at which the module begins; 0:
    /// not known.
    pub start_in_list: u32,
    /// Where the copies of unwind tables begin in this memory; bytes for them.
    pub tables_at: u64,
    /// See [`Control::tables_at`].
    pub tables_len: u64,
    /// Where the next copy goes.
    pub tables_next: AtomicU64,
    /// See [`Toggle`].
    pub toggles: [Toggle; TOGGLES],
    /// Number of thread states behind the first [`Control::states_count`], for threads that find no room there.
    pub more_count: u64,
    /// [`Geometry::first_segments`].
    pub first_segments: u64,
    /// How many of the segments behind those may be taken: about as many as threads hold open. So with a thousand
    /// idle threads the ring has room for as much as with one.
    pub more_segments: AtomicU64,
    /// How often the collector has freed slots.
    pub slots_freed: AtomicU64,
    /// Threads that found no room; see [`TurnedAway`].
    pub turned_away: [TurnedAway; TURNED_AWAY],
    /// Code that gives back blocks which the program has given back before (glibc's cleaning up after
    /// a thread): calls from there are not recorded. First address, and length; 0: none.
    pub quiet: Area,
    /// Since when no segment is free (ticks); 0: some are.
    pub full_since: AtomicU64,
    /// A bit for each [`Slot`] that was ever taken, set before it is: see [`Shared::used_slots`].
    pub slots_used: [AtomicU64; SLOTS / 64],
    /// The recording's absolute path, in prof's mount namespace.
    pub path: [AtomicU8; 4096],
    /// The absolute path of the prof that has attached.
    pub exe: [AtomicU8; 1024],
}

/// A mapping of the target that prof made.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Area {
    /// First address.
    pub addr: u64,
    /// Length in bytes; 0: unused.
    pub len: u64,
}

/// The mapped memory. All accessors bound their index; none reads geometry from the memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    base: *mut u8,
    geometry: Geometry,
}

const _: () = assert!(offset_of!(Shared, base) == 0);

// SAFETY: everything behind the pointer is atomics, or written before it is shared.
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
            // SAFETY: in bounds of the mapping, aligned, and valid for any bytes.
            Some(unsafe { &*self.base.add($at + index * size_of::<$ty>()).cast::<$ty>() })
        }
    };
}

impl Shared {
    /// Offset of the number of segments (a `usize`) in this; that of the address is 0.
    pub(crate) const SEGMENTS: usize = offset_of!(Self, geometry) + offset_of!(Geometry, segments);

    /// Nothing, to be overwritten before it is used.
    pub(crate) const NONE: Self =
        Self { base: core::ptr::null_mut(), geometry: Geometry::trusted(0) };

    /// # Safety
    /// `base` must point to a mapping of `geometry.size()` bytes, aligned to a page, that stays
    /// mapped for as long as anything obtained from this value is in use.
    pub const unsafe fn new(base: *mut u8, geometry: Geometry) -> Self {
        Self { base, geometry }
    }

    /// The sizes that bound everything.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Where it is mapped in this process.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// The control page.
    #[inline(always)]
    pub fn control(&self) -> &'static Control {
        // SAFETY: the mapping begins with it; valid for any bytes.
        unsafe { &*self.base.cast::<Control>() }
    }

    /// The control page, to be filled in before anybody else maps this memory.
    ///
    /// # Safety
    /// No other reference to the control page may be in use.
    #[allow(clippy::mut_from_ref)] // the memory is not owned by `self`
    pub unsafe fn control_mut(&self) -> &mut Control {
        // SAFETY: the mapping begins with it; exclusive by the caller's promise.
        unsafe { &mut *self.base.cast::<Control>() }
    }

    /// A function entry, to be filled in before its stub can be reached.
    ///
    /// # Safety
    /// No other reference to the entry may be in use.
    #[allow(clippy::mut_from_ref)] // the memory is not owned by `self`
    pub unsafe fn function_mut(&self, index: usize) -> Option<&mut Function> {
        if index >= FUNCTIONS {
            return None;
        }
        let at = FUNCTIONS_AT + index * size_of::<Function>();
        // SAFETY: in bounds, aligned, exclusive by the caller's promise.
        Some(unsafe { &mut *self.base.add(at).cast::<Function>() })
    }

    table!(/// Thread slot.
        slot, SLOTS_AT, Slot, |_: &Self| SLOTS);
    table!(/// Hooked function.
        function, FUNCTIONS_AT, Function, |_: &Self| FUNCTIONS);
    table!(/// Module.
        module, MODULES_AT, Module, |_: &Self| MODULES);
    table!(/// Stack range.
        stack, STACKS_AT, StackRange, |_: &Self| STACKS);
    table!(/// Code address, by its id minus 1 (see [`crate::tree`]).
        pc, PCS_AT, PcEntry, |_: &Self| PC_LEVEL0 * ((1 << PC_LEVELS) - 1));
    table!(/// A window of the set of recorded blocks, see [`crate::samples`].
        sample_window, SAMPLES_AT, [AtomicU64; crate::samples::WINDOW],
        |_: &Self| SAMPLES / crate::samples::WINDOW);
    table!(/// A mark of memory in which recorded blocks begin, see [`crate::samples`].
        sample_mark, MARKS_AT, AtomicU8, |_: &Self| SAMPLE_MARKS);
    table!(/// Head of a segment.
        head, HEADS_AT, SegmentHead, |s: &Self| s.geometry.segments);
    table!(/// 64 segments' worth of the free list: a set bit is a free segment.
        free_word, FREE_AT, AtomicU64, |s: &Self| s.geometry.segments / 64);

    /// How many segments are taken first, and how many may be taken in all.
    pub fn segments_now(&self) -> (usize, usize) {
        let c = self.control();
        let all = self.geometry.segments;
        let first = (c.first_segments as usize).min(all) / 64 * 64;
        // Where nobody has said so, all are alike.
        if first == 0 {
            return (all, all);
        }
        let more = (c.more_segments.load(Relaxed).min(all as u64)) as usize / 64 * 64;
        (first, (first + more).min(all))
    }

    /// First byte of a segment's [`SEGMENT_SIZE`] bytes.
    #[inline(always)]
    pub fn data(&self, index: usize) -> Option<*mut u8> {
        if index >= self.geometry.segments {
            return None;
        }
        // SAFETY: in bounds of the mapping.
        Some(unsafe { self.base.add(DATA_AT + index * SEGMENT_SIZE) })
    }

    /// Copies a part of a segment that its thread has committed; nothing if it is no part of one.
    pub fn copy_out(&self, index: usize, from: usize, to: &mut [u8]) {
        let Some(data) = self.data(index) else { return };
        if from + to.len() > SEGMENT_SIZE {
            return;
        }
        // SAFETY: in bounds of the segment. The target may write to it meanwhile (an honest one does
        // not): what is copied is then arbitrary, and is checked after it was copied.
        unsafe { core::ptr::copy_nonoverlapping(data.add(from), to.as_mut_ptr(), to.len()) }
    }

    /// Offset of a function entry in the memory (its address in the target is
    /// [`Control::ring_addr`] plus this).
    pub const fn function_offset(index: usize) -> usize {
        FUNCTIONS_AT + index * size_of::<Function>()
    }

    /// Offset of a thread slot, likewise.
    pub const fn slot_offset(index: usize) -> usize {
        SLOTS_AT + index * size_of::<Slot>()
    }

    /// Says that a slot is about to be taken.
    pub fn note_slot(&self, index: usize) {
        if let Some(word) = self.control().slots_used.get(index / 64) {
            word.fetch_or(1 << (index % 64), Relaxed);
        }
    }

    /// Whether a slot was ever taken.
    #[inline(always)]
    pub fn is_noted(&self, index: usize) -> bool {
        let word = self.control().slots_used.get(index / 64);
        word.is_some_and(|w| w.load(Relaxed) >> (index % 64) & 1 == 1)
    }

    /// Whether there have been more threads than have room at first sight.
    pub fn has_more_threads(&self) -> bool {
        let first = self.geometry.states;
        let mut words = self.control().slots_used.iter().enumerate().skip(first / 64);
        words.any(|(i, w)| w.load(Relaxed) >> first.saturating_sub(i * 64).min(63) != 0)
    }

    /// Calls that were not recorded as their thread had no slot.
    pub fn lost_without_slot(&self) -> u64 {
        let all = self.control().turned_away.iter().map(|t| t.lost.load(Relaxed));
        all.fold(0, u64::wrapping_add)
    }

    /// The slots that were ever taken. The others, nearly all, need not be looked at: that would take
    /// milliseconds, and make memory that nobody else uses.
    pub fn used_slots(&self) -> impl Iterator<Item = &'static Slot> + use<'_> {
        let words = self.control().slots_used.iter().map(|w| w.load(Relaxed));
        set_bits(words).filter_map(|i| self.slot(i))
    }
}

/// The numbers of the bits that are set, from the lowest of the first word on.
pub fn set_bits(words: impl Iterator<Item = u64>) -> impl Iterator<Item = usize> {
    words.enumerate().flat_map(|(w, word)| {
        let next = |bits: &u64| Some(bits & (bits - 1)).filter(|bits| *bits != 0);
        let lowest = move |bits: u64| w * 64 + bits.trailing_zeros() as usize;
        core::iter::successors(Some(word).filter(|w| *w != 0), next).map(lowest)
    })
}

#[cfg(all(test, feature = "std"))]
impl Shared {
    /// Memory of its own for a test, leaked. It is zero because it is new: only what is used is made.
    pub(crate) fn leaked() -> Self {
        Self::leaked_with(0)
    }

    /// The same, with so much room for unwind tables.
    pub(crate) fn leaked_with(tables: usize) -> Self {
        const ALIGN: usize = 65536;
        let g = Geometry::for_ring(0).with_tables(tables);
        let layout = std::alloc::Layout::from_size_align(g.size() + ALIGN, 8).expect("layout");
        // SAFETY: the size is not zero, and there is room behind the next boundary.
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
