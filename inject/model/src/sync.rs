//! loom's atomics, with a remedy for orders that loom 0.7 misses. loom remembers one last access of each
//! object. If one thread loads and another loads and then swaps, the second load hides the first, and the
//! order in which the swap comes before the first load is never run. So each access here first takes a turn:
//! a read-modify-write, which loom orders in all ways against the turns of all other accesses. Turns are
//! relaxed: they make nothing visible.

use loom::sync::atomic::{AtomicUsize, Ordering};

macro_rules! atomic {
    ($name:ident, $int:ty) => {
        #[derive(Debug, Default)]
        pub struct $name {
            turn: AtomicUsize,
            value: loom::sync::atomic::$name,
        }

        #[allow(dead_code)] // not every type is used with every operation
        impl $name {
            pub fn new(v: $int) -> Self {
                Self { turn: AtomicUsize::default(), value: loom::sync::atomic::$name::new(v) }
            }

            fn turn(&self) -> &loom::sync::atomic::$name {
                self.turn.fetch_add(1, Ordering::Relaxed);
                &self.value
            }

            pub fn load(&self, o: Ordering) -> $int {
                self.turn().load(o)
            }

            pub fn store(&self, v: $int, o: Ordering) {
                self.turn().store(v, o);
            }

            pub fn fetch_add(&self, v: $int, o: Ordering) -> $int {
                self.turn().fetch_add(v, o)
            }

            pub fn fetch_or(&self, v: $int, o: Ordering) -> $int {
                self.turn().fetch_or(v, o)
            }

            pub fn compare_exchange(
                &self,
                old: $int,
                new: $int,
                done: Ordering,
                failed: Ordering,
            ) -> Result<$int, $int> {
                self.turn().compare_exchange(old, new, done, failed)
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
