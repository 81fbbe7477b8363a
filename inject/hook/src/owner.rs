//! Ownership cache: the blocks that this thread was the last to allocate or free, as far as it knows.
//!
//! Events of these blocks need no ordered reading of the clock: see `clock.rs`.

use crate::mapping::Shared;
use core::sync::atomic::Ordering::Relaxed;

/// Number of entries of [`Owned`]: some allocators' threads keep about as many blocks to themselves.
const BLOCKS: usize = 256;

/// Blocks, each at the index that its address names: its key if the thread allocated it last, the complement
/// of its key if the thread freed it last; 0: none.
#[repr(transparent)]
pub struct Owned([u64; BLOCKS]);

/// Key of a block: its address, and the number of times that ownership caches were invalidated.
#[derive(Clone, Copy)]
pub struct Key(u64);

/// Returns the key of the block at `addr`.
#[inline(always)]
pub(crate) fn key(shared: &Shared, addr: u64) -> Key {
    Key(addr ^ shared.control().unseen.load(Relaxed) << 48)
}

impl Owned {
    #[inline(always)]
    fn place(&mut self, key: Key) -> &mut u64 {
        &mut self.0[(key.0 >> 4) as usize % BLOCKS]
    }

    /// Notes that the thread gets a block; returns whether it was the last to free it.
    #[inline(always)]
    pub fn get(&mut self, key: Key) -> bool {
        core::mem::replace(self.place(key), key.0) == !key.0
    }

    /// Notes that the thread frees a block; returns whether it was the last to get it.
    #[inline(always)]
    pub fn give(&mut self, key: Key) -> bool {
        core::mem::replace(self.place(key), !key.0) == key.0
    }

    /// Forgets a block.
    #[inline(always)]
    pub fn forget(&mut self, key: Key) {
        *self.place(key) = 0;
    }

    /// Forgets all blocks.
    pub fn clear(&mut self) {
        self.0 = [0; BLOCKS];
    }
}
