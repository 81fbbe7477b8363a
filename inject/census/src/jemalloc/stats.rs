//! The figures of a heap of jemalloc.

use super::Heap;
use super::extent::Use;
use crate::sums::{SizeClass, Sum};
use std::collections::BTreeMap;

/// A jemalloc that a process has. Bytes are those that a program can use of blocks: there are no headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JemallocStats {
    /// The version whose layout fits, major and minor: 5.0 to 5.3; without caches, 5.2 may be 5.1. `None`: none fits, so that no block is counted.
    pub version: Option<(u32, u32)>,
    /// The arenas, in the order of their numbers.
    pub arenas: Vec<JemallocArena>,
    /// Number of caches of threads that were found. If there are none, blocks in caches count as in use.
    pub caches: u64,
    /// Blocks in which jemalloc keeps the lists of these caches; they are part of those in use.
    pub own: Sum,
}

/// An arena of jemalloc.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JemallocArena {
    /// Number of the arena.
    pub number: u16,
    /// Blocks that the program has, and jemalloc itself.
    pub in_use: Sum,
    /// Free blocks in the caches of threads, which jemalloc counts as allocated.
    pub cached: Sum,
    /// Free places in slabs.
    pub free: Sum,
    /// Bytes of pages with blocks, free places included (`stats.active`).
    pub active: u64,
    /// Bytes of free pages with contents, those that the kernel may take the contents of, and free address space.
    pub dirty: u64,
    /// See `dirty`.
    pub muzzy: u64,
    /// See `dirty`.
    pub retained: u64,
}

impl JemallocStats {
    /// Returns the sum over all arenas.
    #[must_use]
    pub fn sum(&self, of: fn(&JemallocArena) -> Sum) -> Sum {
        self.arenas.iter().map(of).fold(Sum::default(), |all, s| Sum {
            bytes: all.bytes + s.bytes,
            blocks: all.blocks + s.blocks,
        })
    }
}

impl Heap {
    /// Returns its numbers.
    pub(crate) fn stats(&self) -> JemallocStats {
        let mut all: BTreeMap<u16, JemallocArena> = BTreeMap::new();
        for (i, e) in self.extents.iter().enumerate() {
            let sum = all.entry(e.arena).or_default();
            sum.number = e.arena;
            match e.state {
                Use::Active => sum.active += e.size,
                Use::Dirty => sum.dirty += e.size,
                Use::Muzzy => sum.muzzy += e.size,
                Use::Retained => sum.retained += e.size,
                Use::Changing => {}
            }
            let Some((size, counts)) = self.counts(i) else { continue };
            let of = [&mut sum.in_use, &mut sum.cached, &mut sum.free];
            for (to, n) in of.into_iter().zip(counts) {
                (to.bytes, to.blocks) = (to.bytes + n * size, to.blocks + n);
            }
        }
        let (bytes, blocks) = self.own();
        JemallocStats {
            version: self.version(),
            arenas: all.into_values().collect(),
            caches: self.caches,
            own: Sum { bytes, blocks },
        }
    }

    /// Adds the blocks of each size class to what is counted by least and greatest size.
    pub(crate) fn count_sizes(&self, all: &mut BTreeMap<(u64, u64), SizeClass>) {
        for i in 0..self.extents.len() {
            let Some((size, [in_use, cached, free])) = self.counts(i) else { continue };
            let classes = self.form.as_ref().map_or(&[][..], |f| &f.classes);
            let class = usize::from(self.extents[i].class);
            let most = classes[class];
            let before = class.checked_sub(1).map_or(0, |c| classes[c]);
            let sizes = (before + 1, most);
            let class =
                all.entry((most, before)).or_insert(SizeClass { sizes, ..SizeClass::default() });
            let free = cached + free;
            class.in_use.bytes += in_use * size;
            class.in_use.blocks += in_use;
            class.free.bytes += free * size;
            class.free.blocks += free;
        }
    }
}
