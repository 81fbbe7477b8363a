//! Takes the figures of blocks that were left out of a recording, and makes them.

use super::super::course::Course;
use super::super::estimate::Estimates;
use super::super::stats::BlockStats;
use super::super::stripped::{figures, to_figures, to_totals, totals_of};
use super::{Replay, Times, Totals, Watch};
use crate::index::{decode_course, encode_course};
use crate::load::{Op, OpKind};
use prof_trace::records::Folded;
use prof_trace::ticks::Ticks;

/// Greatest number of buckets of time that are kept.
const BUCKETS: usize = 4096;
/// Greatest number of stacks in a record, so that it fits into a chunk: a number takes up to ten bytes.
const GROUPS: usize = 200_000;
/// Greatest count that is believed, so that counting goes on without an overflow.
const MOST: u64 = 1 << 60;

/// Returns the figures of blocks of which none is live any more, from those of a record.
fn seeds(f: &[u64; 8]) -> BlockStats {
    let f = to_figures(f);
    BlockStats {
        live_count: 0,
        live_bytes: 0,
        allocations: f.allocations.min(MOST),
        reallocations: f.reallocations.min(MOST),
        temporary: f.temporary.min(MOST),
        ..f
    }
}

/// Returns the figures of the blocks that `left` does not have; of peaks, those of all.
fn without(all: &BlockStats, left: &BlockStats) -> BlockStats {
    BlockStats {
        live_count: 0,
        live_bytes: 0,
        allocations: all.allocations.saturating_sub(left.allocations),
        reallocations: all.reallocations.saturating_sub(left.reallocations),
        allocated_bytes: all.allocated_bytes.wrapping_sub(left.allocated_bytes),
        temporary: all.temporary.saturating_sub(left.temporary),
        ..*all
    }
}

impl<W: Watch> Replay<W> {
    /// Takes an event that ends no block: an invalid one, or one that stands for others that were left out.
    #[cold]
    pub(super) fn end_nothing(&mut self, op: &Op) {
        if op.addr == 0 {
            self.totals.nonsense += 1;
            return;
        }
        *self.newest(op.thread_index) = 0;
        if op.kind == OpKind::ReallocOld {
            self.watch.unknown(op);
        }
    }

    /// Counts on from the figures of blocks that were left out, before the first operation.
    pub(super) fn seed(&mut self, folded: &Folded) {
        let Some(totals) = to_totals(&folded.totals).filter(|_| !self.started) else { return };
        self.totals = Totals {
            figures: seeds(&figures(&totals.figures)),
            frees: totals.frees.min(MOST),
            unknown_frees: totals.unknown_frees.min(MOST),
            implied_frees: totals.implied_frees.min(MOST),
            nonsense: totals.nonsense.min(MOST),
            ..totals
        };
        self.freed = folded.freed.min(MOST);
        let mut groups = Vec::new();
        for n in folded.groups.as_chunks::<{ Folded::GROUP }>().0 {
            let ([node, first, last, peak], Some(f)) = ([n[0], n[1], n[2], n[3]], n.last_chunk())
            else {
                continue;
            };
            let group = self.group(u32::try_from(node).unwrap_or(0), Ticks(first));
            self.figures[group as usize] = seeds(f);
            let (first, last, peak) = (Ticks(first), Ticks(last), Ticks(peak));
            self.times[group as usize] = Times { first, last, peak };
            groups.push(group);
        }
        if let Some(estimates) = &mut self.estimates {
            estimates.seed(&folded.sums, &groups, self.totals.peak_ticks);
        }
        self.course = decode_course(&folded.course)
            .and_then(|c| Course::resumed(c, folded.until))
            .unwrap_or_default();
    }

    /// Returns records with the figures of all blocks but those that `left` has, of the same recording up to the same
    /// moment. `left` was not told of what was left out before.
    pub(crate) fn folded(&self, left: &Self, about: &Folded) -> Vec<Folded> {
        let (t, l) = (&self.totals, &left.totals);
        let totals = Totals {
            figures: without(&t.figures, &l.figures),
            frees: t.frees.saturating_sub(l.frees),
            unknown_frees: t.unknown_frees.saturating_sub(l.unknown_frees),
            implied_frees: t.implied_frees.saturating_sub(l.implied_frees),
            nonsense: t.nonsense.saturating_sub(l.nonsense),
            peak_ticks: self.estimates.as_ref().map_or(t.peak_ticks, |e| e.peak_ticks()),
            ..*t
        };
        let mut groups = Vec::with_capacity(self.nodes.len() * Folded::GROUP);
        for (i, node) in self.nodes.iter().enumerate() {
            let at = left.by_node.get(*node).map(|g| left.figures[g as usize]);
            let times = &self.times[i];
            groups.extend([u64::from(*node), times.first.0, times.last.0, times.peak.0]);
            groups.extend(figures(&without(&self.figures[i], &at.unwrap_or_default())));
        }
        let sums = match (&self.estimates, &left.estimates) {
            (Some(all), Some(of_left)) => {
                all.sums_without(&left.in_order_of(self, of_left), groups.len() / Folded::GROUP)
            }
            _ => Vec::new(),
        };
        let first = Folded {
            blocks: totals.figures.begun(),
            bytes: totals.figures.allocated_bytes,
            totals: totals_of(&totals),
            freed: self.freed.saturating_sub(left.freed),
            course: encode_course(&self.course().coarser(BUCKETS)),
            ..about.clone()
        };
        let (of_all, of_groups) = sums.split_at(sums.len().min(Folded::SUMS));
        let mut sums = of_groups.chunks(GROUPS * Folded::SUMS);
        let mut parts = groups.chunks(GROUPS * Folded::GROUP);
        let part = |groups: Option<&[u64]>, sums: &[u64]| Folded {
            groups: groups.unwrap_or_default().to_vec(),
            sums: sums.to_vec(),
            ..first.clone()
        };
        let front = [of_all, sums.next().unwrap_or_default()].concat();
        let mut all = vec![part(parts.next(), &front)];
        all.extend(parts.map(|groups| part(Some(groups), sums.next().unwrap_or_default())));
        all
    }

    /// Returns these estimates with the groups in the order of another replay.
    fn in_order_of(&self, other: &Self, estimates: &Estimates) -> Estimates {
        estimates.reordered(other.nodes.iter().map(|node| self.by_node.get(*node)))
    }

    /// Returns the block that a thread has just allocated, if that was its last event; else 0.
    pub(crate) fn newest_of(&self, thread_index: u32) -> u64 {
        self.newest.get(thread_index as usize).copied().unwrap_or(0)
    }
}
