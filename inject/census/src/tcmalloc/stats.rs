//! The figures of a heap of tcmalloc.

use super::Heap;
use crate::bits::count;
use crate::sums::{SizeClass, Sum, class_of};
use std::collections::BTreeMap;

/// A tcmalloc that a process has. Bytes are those that a program can use of blocks: there are no headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcmallocStats {
    /// Whether its variables were found. If not, no block is counted.
    pub known: bool,
    /// Number of caches of threads that were found. If there are none, blocks in caches count as in use.
    pub caches: u64,
    /// Blocks that the program has.
    pub in_use: Sum,
    /// The part of `in_use` that has spans of its own.
    pub large: Sum,
    /// Free blocks on lists of spans.
    pub central: Sum,
    /// Free blocks in the central lists, in batches for caches.
    pub transfer: Sum,
    /// Free blocks in the caches of threads.
    pub cached: Sum,
    /// Bytes of free pages with contents.
    pub free: u64,
    /// Bytes of free pages whose contents the kernel has taken.
    pub returned: u64,
}

impl Heap {
    /// Returns its numbers.
    pub(crate) fn stats(&self) -> TcmallocStats {
        let mut all = TcmallocStats {
            known: self.known,
            caches: self.caches,
            central: self.central,
            transfer: self.transfer,
            cached: self.cached,
            free: self.free[0],
            returned: self.free[1],
            ..TcmallocStats::default()
        };
        for (run, n) in self.counts() {
            let sums = [Some(&mut all.in_use), run.is_large.then_some(&mut all.large)];
            for sum in sums.into_iter().flatten() {
                sum.blocks += n;
                sum.bytes = sum.bytes.saturating_add(n * run.size);
            }
        }
        all
    }

    /// Returns each run with the number of its blocks.
    fn counts(&self) -> impl Iterator<Item = (&super::Run, u64)> {
        self.runs.iter().map(|r| (r, count(&self.used[r.bits as usize..], r.places())))
    }

    /// Adds the blocks of each size to what is counted by least and greatest size.
    pub(crate) fn count_sizes(&self, all: &mut BTreeMap<(u64, u64), SizeClass>) {
        for (run, n) in self.counts() {
            let sizes = class_of(run.size);
            let key = (sizes.1, sizes.0 - 1);
            let class = all.entry(key).or_insert(SizeClass { sizes, ..SizeClass::default() });
            for (to, n) in [(&mut class.in_use, n), (&mut class.free, run.places() - n)] {
                to.blocks += n;
                to.bytes = to.bytes.saturating_add(n * run.size);
            }
        }
    }
}
