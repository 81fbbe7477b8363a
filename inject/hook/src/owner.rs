//! Which blocks this thread was the last to get, or to give back, as far as it knows.
//!
//! Their order needs no ordered reading of the clock: see `clock.rs`.

use core::sync::atomic::Ordering::Relaxed;
use prof_trace::shared::Shared;

/// Entries of [`Owned`]: some allocators' threads keep about as many blocks to themselves.
const BLOCKS: usize = 256;

/// Blocks, each at the place that its address names: its key if the thread got it, the key's complement if
/// the thread gave it back; 0: none.
#[repr(transparent)]
pub struct Owned([u64; BLOCKS]);

/// What stands for a block: its address, and how often what is known of blocks has become void.
#[derive(Clone, Copy)]
pub struct Key(u64);

/// The key of the block at `addr`.
#[inline(always)]
pub fn key(shared: &Shared, addr: u64) -> Key {
    Key(addr ^ shared.control().unseen.load(Relaxed) << 48)
}

impl Owned {
    #[inline(always)]
    fn place(&mut self, key: Key) -> &mut u64 {
        &mut self.0[(key.0 >> 4) as usize % BLOCKS]
    }

    /// The thread gets a block; whether it was the last to give it back.
    #[inline(always)]
    pub fn get(&mut self, key: Key) -> bool {
        core::mem::replace(self.place(key), key.0) == !key.0
    }

    /// The thread gives a block back; whether it had got it.
    #[inline(always)]
    pub fn give(&mut self, key: Key) -> bool {
        core::mem::replace(self.place(key), !key.0) == key.0
    }

    /// No more is known of a block.
    #[inline(always)]
    pub fn forget(&mut self, key: Key) {
        *self.place(key) = 0;
    }

    /// No more is known of any.
    pub fn clear(&mut self) {
        self.0 = [0; BLOCKS];
    }
}
