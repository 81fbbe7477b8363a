//! Walks regions chunk by chunk: each begins where the one before ends.

use crate::arena::Region;
use crate::chunk::{ALIGN, Chunk, HEADER, SizeField, State};
use crate::view::{Memory as _, View, WORD};
use std::ops::Range;

/// Attempts to read a chunk anew that makes no sense: the target may be about to change it.
const TRIES: usize = 4;
/// Links of a chain that show that chunks begin there.
const LINKS: usize = 64;
/// Bytes of a gap in the main arena's memory that are searched for the next chunk: somebody else has called `sbrk`.
const GAP: u64 = 64 << 20;

/// The chunks of all regions, in the order of their addresses.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    pub chunks: Vec<Chunk>,
    /// For each region that was walked: its arena, and the indices of its chunks.
    pub regions: Vec<(usize, Range<usize>)>,
    /// Memory behind a chunk that makes no sense, up to the end of its region.
    pub lost: Vec<Range<u64>>,
    /// Bytes of the main arena's memory that other callers of `sbrk` own.
    pub gaps: u64,
}

impl Walked {
    /// Walks regions, which must be in the order of their addresses and not overlap.
    pub(crate) fn of(view: &mut View<'_>, regions: &[Region]) -> Self {
        let mut all = Self::default();
        for r in regions {
            let first = all.chunks.len();
            all.walk(view, r);
            all.regions.push((r.arena, first..all.chunks.len()));
        }
        all
    }

    /// Returns the index of the chunk whose memory the program has, or had, by this address.
    pub(crate) fn find(&self, user: u64) -> Option<usize> {
        let at = user.checked_sub(HEADER)?;
        self.chunks.binary_search_by_key(&at, |c| c.at).ok()
    }

    fn walk(&mut self, view: &mut View<'_>, region: &Region) {
        let end = region.end;
        let Some(mut at) = begin(view, region) else {
            self.lost.push(region.start..end);
            return;
        };
        self.gaps += at - region.start;
        while at < end {
            match step(view, at, end) {
                Step::Chunk(chunk) => {
                    self.chunks.push(chunk);
                    at += chunk.size();
                }
                // These are the last chunks of a heap. The main arena goes on behind memory that other callers have
                // taken.
                Step::Fence => {
                    let behind = at + 2 * HEADER;
                    let next = region.main.then(|| chain_behind(view, behind, end)).flatten();
                    let Some(next) = next else {
                        if view.is_late() {
                            self.lost.push(behind.min(end)..end);
                        }
                        return;
                    };
                    self.gaps += next.saturating_sub(behind);
                    at = next;
                }
                Step::Nonsense => {
                    self.lost.push(at..end);
                    return;
                }
            }
        }
    }
}

/// The thing at an address.
enum Step {
    Chunk(Chunk),
    Fence,
    Nonsense,
}

fn step(view: &mut View<'_>, at: u64, end: u64) -> Step {
    for _ in 0..TRIES {
        // The size of the top chunk, which follows the region, tells whether the last chunk is in use.
        let limit = end + HEADER;
        let Some(size) = view.word(at + WORD, limit).map(SizeField) else { break };
        if size.is_fence() {
            return Step::Fence;
        }
        let next = at.saturating_add(size.size());
        if size.is_sane()
            && next <= end
            && let Some(behind) = view.word(next + WORD, limit).map(SizeField)
        {
            let state = if behind.before_in_use() { State::InUse } else { State::Binned };
            return Step::Chunk(Chunk::new(at, size.size(), state));
        }
        view.forget();
    }
    Step::Nonsense
}

/// Returns where the first chunk of a region begins. The main arena's may lie behind memory that others took by `sbrk`.
fn begin(view: &mut View<'_>, region: &Region) -> Option<u64> {
    let Region { start, end, main, .. } = *region;
    if !main || start == end {
        return Some(start);
    }
    chain_behind(view, start, end)
}

/// Returns the first address from one on at which a chain of chunks begins.
fn chain_behind(view: &mut View<'_>, from: u64, end: u64) -> Option<u64> {
    let most = end.min(from.saturating_add(GAP));
    let mut at = from;
    while at < most {
        let size = view.word(at + WORD, end + HEADER).map(SizeField)?;
        // What is in front of the first chunk can't be free.
        let next = at.saturating_add(size.size());
        if size.is_sane() && size.before_in_use() && next <= end && is_chain(view, at, end) {
            return Some(at);
        }
        at += ALIGN;
    }
    (from >= end).then_some(end)
}

/// Returns whether many chunks follow each other from an address on, or all up to the end.
fn is_chain(view: &mut View<'_>, mut at: u64, end: u64) -> bool {
    for _ in 0..LINKS {
        let Some([_, size]) = view.words(at) else { return false };
        let size = SizeField(size);
        let next = at.saturating_add(size.size());
        if size.is_fence() {
            return true;
        }
        if !size.is_sane() || next > end {
            return false;
        }
        if next == end {
            return true;
        }
        at = next;
    }
    true
}
