//! Decides where a recording is cut, and which of the chunks that come again and again stay in its folded part.

use super::RewriteError;
use crate::load::{ChunkFile, Clock, Item};
use prof_trace::derived::Zipped;
use prof_trace::records::{Pass, Target, ThreadsLeft, kind};
use prof_trace::ticks::Ticks;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

/// Greatest number of chunks of one kind that stay.
const MOST: usize = 1024;
/// Kinds of which each chunk says the same of another moment.
const REPEATED: [u16; 4] = [kind::MEMORY, kind::PROCESS, kind::ALLOCATORS, kind::DISTANCE];

/// A pass of the collector.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Offset of its chunk.
    at: u64,
    ticks: Ticks,
    /// The clock needs it, so that times stay the same to the nanosecond.
    is_timed: bool,
    /// It tells the size of the target.
    is_sized: bool,
}

/// The places of a recording's passes, and of the chunks that are repeated.
#[derive(Debug, Default)]
pub(super) struct History {
    passes: Vec<Place>,
    repeated: BTreeMap<u16, Vec<u64>>,
    /// The chunks that name threads which have ended: offset of each, and the threads.
    left: Vec<(u64, Vec<u64>)>,
    /// Offset behind the part that was folded before.
    folded: u64,
    /// Length of the whole chunks.
    len: u64,
}

impl History {
    /// Reads a recording, but for its events.
    ///
    /// # Errors
    /// If it can't be read.
    pub(super) fn read(path: &Path) -> Result<Self, RewriteError> {
        let mut file = ChunkFile::open(path)?;
        file.set_sparse(true);
        let mut all = Self::default();
        let mut clock = Clock::new(&Target::default());
        loop {
            all.len = file.position();
            if file.pass_over(&[kind::EVENTS, kind::PACKED, kind::CALLS, kind::NODE_RUN])? {
                continue;
            }
            let Item::Chunk(kind, payload, _) = file.next()? else { return Ok(all) };
            let zipped = Zipped::decode(payload).filter(|_| kind == kind::ZIPPED);
            match zipped.as_ref().map_or(kind, |z| z.kind) {
                kind::TARGET => {
                    if let Some(target) = Target::decode(payload) {
                        clock = Clock::new(&target);
                    }
                }
                kind::PASS => {
                    let Some(p) = Pass::decode(payload) else { continue };
                    let is_timed = clock.sample(&p);
                    let (ticks, is_sized) = (p.ticks, p.rss_pages != 0);
                    all.passes.push(Place { at: all.len, ticks, is_timed, is_sized });
                }
                kind::THREADS_LEFT => {
                    let plain = zipped.and_then(|z| z.unzip());
                    let left = ThreadsLeft::decode(plain.as_deref().unwrap_or(payload));
                    let left = left.unwrap_or_default();
                    all.left.push((all.len, left.numbers));
                }
                kind::FOLD_END => all.folded = file.position(),
                kind if REPEATED.contains(&kind) => {
                    all.repeated.entry(kind).or_default().push(all.len);
                }
                _ => {}
            }
        }
    }

    /// Returns the offset behind the part that is folded, where a pass begins, so that about `keep` bytes are left; and
    /// the moment from before which all events stand in front of it: when the pass before it began.
    pub(super) fn cut(&self, keep: u64) -> Option<(u64, Ticks)> {
        let line = self.len.checked_sub(keep)?;
        let first = self.passes.partition_point(|p| p.at < self.folded);
        let last = self.passes.partition_point(|p| p.at <= line).checked_sub(1)?;
        let (cut, before) = (self.passes.get(last)?, self.passes.get(last.checked_sub(1)?)?);
        // Times that have gone back are no order.
        (last > first && before.ticks.0 > 0 && before.ticks <= cut.ticks)
            .then_some((cut.at, before.ticks))
    }

    /// Returns the threads that have ended, and have no events behind `cut`.
    pub(super) fn left(&self, cut: u64) -> HashSet<u32> {
        let before = self.left.iter().filter(|(at, _)| *at < cut);
        before.flat_map(|(_, all)| all).filter_map(|n| u32::try_from(*n).ok()).collect()
    }

    /// Returns what stays in front of `cut`.
    pub(super) fn stays(&self, cut: u64) -> Stays {
        let before = self.passes.partition_point(|p| p.at < cut);
        let passes = &self.passes[..before];
        let sized: Vec<u64> = passes.iter().filter(|p| p.is_sized).map(|p| p.at).collect();
        let sized: HashSet<u64> = thinned(&sized).collect();
        let last = passes.last().map(|p| p.at);
        let stays = |p: &&Place| p.is_timed || sized.contains(&p.at) || Some(p.at) == last;
        let passes = passes.iter().filter(stays).map(|p| (p.at, p.ticks)).collect();
        let mut dropped = HashSet::new();
        for all in self.repeated.values() {
            let all: Vec<u64> = all.iter().copied().filter(|at| *at < cut).collect();
            let stay: HashSet<u64> = thinned(&all).collect();
            dropped.extend(all.into_iter().filter(|at| !stay.contains(at)));
        }
        Stays { passes, dropped }
    }
}

/// Returns at most [`MOST`] of these, evenly, and always the first and the last.
fn thinned(all: &[u64]) -> impl Iterator<Item = u64> {
    let count = all.len().min(MOST);
    (0..count).map(move |i| all[i * (all.len() - 1) / (count - 1).max(1)])
}

/// The repeated chunks that stay.
#[derive(Debug)]
pub(super) struct Stays {
    passes: HashMap<u64, Ticks>,
    dropped: HashSet<u64>,
}

impl Stays {
    /// Returns the ticks of the pass at an offset, if it stays.
    pub(super) fn pass(&self, at: u64) -> Option<Ticks> {
        self.passes.get(&at).copied()
    }

    /// Returns whether the chunk at an offset goes.
    pub(super) fn drops(&self, at: u64) -> bool {
        self.dropped.contains(&at)
    }
}
