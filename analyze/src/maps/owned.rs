//! Says which part of the mappings is an allocator's.

use super::{Kind, Map};
use crate::askers::is_allocator;
use crate::index::{Index, ScanError};
use crate::report::FrameData;
use prof_trace::records::{PIECE, part_kind};
use serde::Serialize;

/// The memory that a report is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Blocks of the heap.
    #[default]
    Heap,
    /// Mappings, the allocator's included.
    Maps,
    /// Blocks, and mappings that are not the allocator's.
    All,
}

/// Ranges of memory that belong to allocators: start, end, resident bytes.
pub(super) struct Owned(Vec<(u64, u64, u64)>);

impl Owned {
    /// Finds them: glibc's heaps and mapped blocks, and the pieces of other memory in which recorded blocks ever lay.
    pub(super) fn of(index: &Index) -> Result<Self, ScanError> {
        let Some(m) = &index.analysis().meta().memory.last else { return Ok(Self(Vec::new())) };
        let parts: Vec<[u64; 4]> =
            m.parts.as_chunks::<4>().0.iter().filter(|p| p[0] < p[1]).copied().collect();
        let unknown = |p: &&[u64; 4]| p[3] == part_kind::UNKNOWN;
        let of_interest = |piece: u64| {
            let end = piece.saturating_add(PIECE);
            parts.iter().filter(unknown).any(|p| p[0] < end && piece < p[1])
        };
        let used = match parts.iter().any(|p| unknown(&p)) {
            true => crate::fragmentation::used_pieces(index, m.arenas.is_empty(), of_interest)?,
            false => Vec::new(),
        };
        let mut all = Vec::new();
        for [start, end, rss, kind] in parts {
            if kind != part_kind::UNKNOWN {
                all.push((start, end, rss));
                continue;
            }
            let from = used.partition_point(|u| u.saturating_add(PIECE) <= start);
            for u in used[from..].iter().take_while(|u| **u < end) {
                let (a, b) = ((*u).max(start), u.saturating_add(PIECE).min(end));
                all.push((a, b, share(rss, b - a, end - start)));
            }
        }
        Ok(Self(all))
    }

    /// Returns the bytes of address space, and the resident ones, of a mapping that are the allocator's.
    pub(super) fn of_map(&self, m: &Map) -> (u64, u64) {
        if m.kind != Kind::Anonymous {
            return (0, 0);
        }
        let live = m.regions.iter().filter(|r| r.end.is_none());
        let owned = live.map(|r| self.within(r.address, r.address.saturating_add(r.size)));
        owned.fold((0, 0), |s, o| (s.0.saturating_add(o.0), s.1.saturating_add(o.1)))
    }

    /// Returns the bytes of address space, and the resident ones, that are the allocator's between two addresses.
    fn within(&self, start: u64, end: u64) -> (u64, u64) {
        let over = self.0.iter().filter(|o| o.0 < end && start < o.1);
        over.fold((0u64, 0u64), |(size, rss), o| {
            let both = o.1.min(end) - o.0.max(start);
            (size.saturating_add(both), rss.saturating_add(share(o.2, both, o.1 - o.0)))
        })
    }
}

fn share(whole: u64, part: u64, of: u64) -> u64 {
    (u128::from(whole) * u128::from(part) / u128::from(of.max(1))) as u64
}

/// Returns whether a stack is one of an allocator that takes memory from the kernel.
pub(super) fn is_of_allocator(frames: &[FrameData]) -> bool {
    frames.iter().any(|f| f.function.as_deref().is_some_and(is_allocator))
}
