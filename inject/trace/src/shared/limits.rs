//! Maximum numbers of the entries in each table of the shared memory, and sizes of parts. The layout follows
//! from them.

/// Maximum number of slots in the first part of the slot table, where a thread's first probe leads.
pub const FIRST_SLOTS: usize = 8192;
/// Maximum number of slots in the second part, used once the first is full; none where address space is
/// short.
pub const MORE_SLOTS: usize = if cfg!(target_pointer_width = "32") { 0 } else { 1 << 16 };
/// Maximum number of threads recorded at a time.
pub const SLOTS: usize = FIRST_SLOTS + MORE_SLOTS;
/// Entries of [`Control::turned_away`](crate::shared::Control::turned_away).
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
pub(super) const SAMPLES: usize = SAMPLE_LEVEL0 * (((1 << (2 * SAMPLE_LEVELS)) - 1) / 3);
/// Number of marks, see [`crate::samples`].
pub const SAMPLE_MARKS: usize = 1 << 16;

/// Number of entries of a level that a key may occupy.
pub const WINDOW: usize = 8;
