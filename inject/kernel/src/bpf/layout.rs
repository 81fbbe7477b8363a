//! Where programs and this process put what they share. All offsets and lengths are in bytes.

/// Words of a record, of which one of a free has the first three: time in ns, address, index of the tracepoint with a
/// number above (an order of pages, or the number of a stack), size or order, and thread with process above.
pub(super) const TIME: i16 = 0;
pub(super) const ADDRESS: i16 = 8;
pub(super) const TAG: i16 = 16;
pub(super) const SIZE: i16 = 24;
pub(super) const THREAD: i16 = 32;
/// A record with a whole stack goes on: the word by which its first node is found, lengths of frames and of the copy of
/// the stack's memory, name of the cache, start of the copy, then frames and copy.
pub(super) const FIRST: i16 = 40;
pub(super) const FRAMES_BYTES: i16 = 48;
pub(super) const RAW_BYTES: i16 = 56;
pub(super) const NAME: i16 = 64;
/// Address of the end of the program's frame, where the copy of the stack's memory begins.
pub(super) const FRAME: i16 = 120;
pub(super) const FRAMES: i16 = 128;

pub(super) const FREE_LENGTH: i16 = 24;
pub(super) const ALLOC_LENGTH: i16 = 40;
pub(super) const NAME_LENGTH: i32 = 56;
/// 127 frames.
pub(super) const FRAMES_LENGTH: i32 = 1016;
/// Most bytes of a stack's memory that are looked at.
pub(super) const RAW_LENGTH: i32 = 4096;

/// Bytes of a thread's stack on AMD64.
pub(super) const STACK: i32 = 1 << 14;

/// The own room of a program: a record as above, at whose end there is place for a copy of the stack's memory behind as
/// many frames as there may be; then the address of a name.
pub(super) const RAW: i16 = FRAMES + FRAMES_LENGTH as i16;
pub(super) const NAME_POINTER: i16 = RAW + RAW_LENGTH as i16;
pub(super) const SCRATCH: usize = NAME_POINTER as usize + 8;

/// Most tracepoints.
pub(super) const TRACEPOINTS: usize = 10;
/// Words that each tracepoint has of a kind.
pub(super) const WORDS: i16 = 5;
const ALL_WORDS: i16 = TRACEPOINTS as i16 * WORDS * 8;
/// The counts of a processor: what is lost as a ring is full; then for each tracepoint what is under way, how many events
/// of three kinds were recorded, and how many by each copy since one was taken as a sample.
pub(super) const FULL_ALLOCS: i16 = 0;
pub(super) const FULL_FREES: i16 = 8;
pub(super) const OWNERS: i16 = 16;
pub(super) const HITS: i16 = OWNERS + ALL_WORDS;
pub(super) const SAMPLED: i16 = HITS + ALL_WORDS;
pub(super) const STATE: usize = (SAMPLED + ALL_WORDS) as usize;
/// What is under way, as `programs.rs` says: the owner, the event that the first copy has taken and the one before, whether
/// the second copy records, and a word for a moment.
pub(super) const OWNER: i16 = 0;
pub(super) const TAKEN: i16 = 1;
pub(super) const TAKEN_BEFORE: i16 = 2;
pub(super) const ACTIVE: i16 = 3;
pub(super) const NUMBER: i16 = 4;
/// Kinds of events that are counted.
pub(super) const KINDS: usize = 3;

/// The settings, in front of the table: the process whose allocations are recorded (0: all), one of how many is, whether
/// known stacks are looked for, whether new ones are told of with their memory, and the bits of the time in units of
/// 64 ns of which one must be set lest a known stack is compared.
pub(super) const SCOPE: i16 = 0;
pub(super) const EVERY: i16 = 8;
pub(super) const USES_TABLE: i16 = 16;
pub(super) const LEARNS: i16 = 24;
pub(super) const COMPARED: i16 = 32;
/// The smallest and the largest size that is recorded, in bytes, and of pages as an order.
pub(super) const SIZES: i16 = 40;
pub(super) const ORDERS: i16 = 56;
pub(super) const SETTINGS: usize = 128;

/// An entry of the table: return address, node of the frames before it, node of all with it and the way to the next
/// return address above (0: unknown), and, where a stack ends here, its number + 1 and the distance to the end
/// of its memory above.
pub(super) const ENTRY_ADDRESS: i16 = 0;
pub(super) const ENTRY_PARENT: i16 = 8;
pub(super) const ENTRY_NEXT: i16 = 16;
pub(super) const ENTRY_END: i16 = 24;
pub(super) const ENTRY: usize = 32;
/// Ways, beside a distance: the next return address lies so far from the stack's end; or behind the word to which
/// another word points that lies so far below.
pub(super) const FROM_END: u32 = 1 << 30;
pub(super) const BY_WORD: u32 = 1 << 31;
pub(super) const DISTANCE: u32 = FROM_END - 1;
/// Number of places for entries: a power of two.
pub(super) const ENTRIES: usize = 1 << 16;
/// Number of places from the first one on in which an entry may be.
pub(super) const PROBES: usize = 4;
pub(super) const TABLE: usize = SETTINGS + (ENTRIES + PROBES) * ENTRY;
/// Most frames of a stack that is known.
pub(super) const DEPTH: i32 = 64;

/// What the place of an entry is computed with.
pub(super) const MULTIPLIER: i32 = 0x9e37_79b1_u32 as i32;
pub(super) const NODE_MULTIPLIER: i32 = 0x85eb_ca6b_u32 as i32;
pub(super) const HASH_SHIFT: i32 = 24;

/// Returns the first place of an entry.
pub(super) fn place(parent: u32, address: u64) -> usize {
    let by = |n: i32| i64::from(n) as u64;
    let mixed = u64::from(parent).wrapping_mul(by(NODE_MULTIPLIER)).wrapping_add(address);
    (mixed.wrapping_mul(by(MULTIPLIER)) >> HASH_SHIFT) as usize & (ENTRIES - 1)
}
