//! The figures of a heap of mimalloc.

use super::Heap;
use super::segment::SLICE;
use crate::bits::count;
use crate::sums::{SizeClass, Sum, class_of};
use std::collections::BTreeMap;

/// A mimalloc that a process has. Bytes are those that a program can use of blocks: there are no headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MimallocStats {
    /// The version whose layout fits, major and minor: 2.0 to 2.3, 3.1 or 3.3. `None`: none fits, so that no block is counted.
    pub version: Option<(u32, u32)>,
    /// Number of segments, and bytes of their address space. Version 3 has none.
    pub segments: u64,
    /// See `segments`.
    pub system: u64,
    /// Number of those segments, of version 3 of pages, whose thread has ended, and that no other thread has taken over.
    pub abandoned: u64,
    /// Number of those segments that have no page, and are kept for later.
    pub kept: u64,
    /// Bytes of pages with places for blocks.
    pub pages: u64,
    /// Blocks that the program has.
    pub in_use: Sum,
    /// The part of `in_use` that has segments of its own, of version 3 pages.
    pub huge: Sum,
    /// The part of `in_use` in whose pages a block is aligned so that it may begin later than its place.
    pub shifted: Sum,
    /// Free places that were used before.
    pub free: Sum,
}

impl Heap {
    /// Returns its numbers.
    pub(crate) fn stats(&self) -> MimallocStats {
        let segments =
            |of: fn(&super::Segment) -> bool| self.segments.iter().filter(|s| of(s)).count() as u64;
        let mut all = MimallocStats {
            version: self.version,
            segments: self.segments.len() as u64,
            system: self.segments.iter().map(|s| s.slices * SLICE).fold(0, u64::saturating_add),
            abandoned: self.abandoned + segments(|s| s.is_abandoned && !s.is_free),
            kept: segments(|s| s.is_free),
            pages: self.active(),
            ..MimallocStats::default()
        };
        for (page, n) in self.counts() {
            let add = |to: &mut Sum, n: u64| {
                to.blocks += n;
                to.bytes = to.bytes.saturating_add(n * page.size());
            };
            add(&mut all.in_use, n);
            add(&mut all.free, page.places() - n);
            if page.is_huge() {
                add(&mut all.huge, n);
            }
            if page.is_shifted() {
                add(&mut all.shifted, n);
            }
        }
        all
    }

    /// Returns each page with the number of its blocks.
    fn counts(&self) -> impl Iterator<Item = (&super::Page, u64)> {
        self.pages.iter().map(|p| (p, count(&self.used[p.bits as usize..], p.places())))
    }

    /// Adds the blocks of each size to what is counted by least and greatest size.
    pub(crate) fn count_sizes(&self, all: &mut BTreeMap<(u64, u64), SizeClass>) {
        for (page, n) in self.counts() {
            let sizes = class_of(page.size());
            let key = (sizes.1, sizes.0 - 1);
            let class = all.entry(key).or_insert(SizeClass { sizes, ..SizeClass::default() });
            for (to, n) in [(&mut class.in_use, n), (&mut class.free, page.places() - n)] {
                to.blocks += n;
                to.bytes = to.bytes.saturating_add(n * page.size());
            }
        }
    }
}
