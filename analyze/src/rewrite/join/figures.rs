//! Adds up the figures of recordings of which some lack blocks (`--cull`, `--on-limit drop-oldest`, `prof strip`), so that
//! the joined recording has those of all blocks.

use super::code::Ids;
use super::course::Adder;
use super::together::{Held, Together};
use crate::heap::{
    BlockStats, Course, Errors, Group, Totals, errors_of, figures_of, to_errors, to_figures,
    to_records, to_totals, totals_of,
};
use crate::index::{decode_course, encode_course};
use crate::load::Meta;
use prof_trace::records::{Folded, Stripped};
use prof_trace::ticks::Ticks;
use std::collections::BTreeMap;

/// Least and greatest number of buckets of a recording's course that are kept until all are added up, and how many there may be
/// in all.
const KEPT: [usize; 2] = [64, 1024];
const ALL_KEPT: usize = 1 << 18;
/// Number of sums of a sample, each a value and its variance.
const SUMS: usize = Folded::SUMS / 2;
/// Greatest number of stacks in a record, so that it fits into a chunk.
const STACKS: usize = 200_000;

/// The figures of one recording, in its own numbers and times.
pub(super) struct FiguresOfOne<'a> {
    pub meta: &'a Meta,
    /// The figures of all its blocks, also of those that it lacks.
    pub totals: Totals,
    pub groups: Vec<Group>,
    /// The numbers that its stacks have among those of all.
    pub ids: &'a Ids,
    /// Ticks to be added to its times.
    pub shift: u64,
    /// Ticks, with that, from which to which it was recorded; [`Ticks::MAX`]: it still is.
    pub span: [Ticks; 2],
}

/// The sums for a stack, or for all blocks.
#[derive(Clone, Debug, Default)]
struct Sums {
    figures: BlockStats,
    /// Squares of the standard errors.
    variances: [f64; 8],
    first: Option<Ticks>,
    last: Ticks,
    together: Together,
    /// The figures that records of folds have, with first and last block, and the sums of a sample.
    folded: Option<(BlockStats, [Ticks; 2])>,
    /// Value and variance of each.
    sums: [[f64; 2]; SUMS],
}

/// Adds up the figures of recordings, in the order in which they began.
#[derive(Default)]
pub(super) struct FiguresOfAll {
    is_sample: bool,
    /// Number of buckets of a recording's course that are kept.
    kept: usize,
    all: Sums,
    counts: Totals,
    stacks: BTreeMap<u32, Sums>,
    stripped: Option<Stripped>,
    folded: Option<Folded>,
    folded_counts: Totals,
    /// The courses of all recordings, packed, with the ticks to be added to their times.
    courses: Vec<(Vec<u8>, u64)>,
}

impl FiguresOfAll {
    /// Creates sums of nothing, for so many recordings, which are samples or not.
    pub(super) fn new(is_sample: bool, recordings: usize) -> Self {
        let kept = (ALL_KEPT / recordings.max(1)).clamp(KEPT[0], KEPT[1]);
        Self { is_sample, kept, ..Self::default() }
    }

    /// Adds those of a recording, with its course if blocks are missing that a fold has left out of it or another.
    pub(super) fn add(&mut self, one: &FiguresOfOne<'_>, course: Option<Course>) {
        let [begin, end] = one.span;
        let held = |f: &BlockStats, at: Ticks| Held {
            begin,
            end,
            most: [f.peak_count, f.peak_bytes],
            last: [f.live_count, f.live_bytes],
            at: at.wrapping_add(one.shift),
        };
        let t = &one.totals;
        self.all.add(&t.figures, &t.errors, &held(&t.figures, t.peak_ticks));
        self.counts.join_counts(&later(t, one.shift));
        for g in &one.groups {
            let sum = self.stacks.entry(one.ids.of(g.node)).or_default();
            sum.add(&g.figures, &g.errors, &held(&g.figures, g.peak_ticks));
            sum.seen(g.first.wrapping_add(one.shift), g.last.wrapping_add(one.shift));
        }
        if let Some(s) = &one.meta.stripped {
            self.strip(s);
        }
        if let Some(f) = &one.meta.folded {
            self.fold(f, one);
        }
        // One without events has no time at which it begins.
        if let Some(course) = course.filter(|c| !c.buckets().is_empty()) {
            self.courses.push((encode_course(&course.coarser(self.kept)), one.shift));
        }
    }

    /// Adds what is said of the blocks that were left out.
    fn strip(&mut self, s: &Stripped) {
        let new = Stripped { totals: Vec::new(), groups: Vec::new(), ..s.clone() };
        let Some(all) = &mut self.stripped else {
            self.stripped = Some(new);
            return;
        };
        all.threshold_ns = all.threshold_ns.max(s.threshold_ns);
        all.blocks = all.blocks.saturating_add(s.blocks);
        all.bytes = all.bytes.saturating_add(s.bytes);
        all.early = all.early.saturating_add(s.early);
        all.how = match [all.how, s.how] {
            [a, b] if a == b => a,
            hows if hows.contains(&Stripped::CULLED) => Stripped::CULLED,
            _ => Stripped::CULLED_TO_THE_END,
        };
    }

    /// Adds the figures of the blocks that a fold has left out.
    fn fold(&mut self, f: &Folded, one: &FiguresOfOne<'_>) {
        let all = self.folded.get_or_insert_default();
        all.folds = 1;
        all.until = all.until.max(f.until.wrapping_add(one.shift));
        all.blocks = all.blocks.saturating_add(f.blocks);
        all.bytes = all.bytes.saturating_add(f.bytes);
        all.freed = all.freed.saturating_add(f.freed);
        let Some(totals) = to_totals(&f.totals) else { return };
        self.folded_counts.join_counts(&later(&totals, one.shift));
        let mut sums = f.sums.as_chunks::<{ Folded::SUMS }>().0.iter();
        self.all.fold(&totals.figures, [Ticks::ZERO; 2], sums.next());
        for n in f.groups.as_chunks::<{ Folded::GROUP }>().0 {
            let of_stack = sums.next();
            let (Ok(node), Some(figures)) = (u32::try_from(n[0]), n.last_chunk()) else { continue };
            let times = [n[1], n[2]].map(|t| Ticks(t).wrapping_add(one.shift));
            let sum = self.stacks.entry(one.ids.of(node)).or_default();
            sum.fold(&to_figures(figures), times, of_stack);
        }
    }

    /// Returns the records that tell a reader how much the joined recording lacks: in front of its events.
    pub(super) fn finish(mut self) -> (Vec<Folded>, Vec<Stripped>) {
        let folded = self.folded.take().map(|f| self.folded(f)).unwrap_or_default();
        let stripped = self.stripped.take().map(|s| self.stripped(&s)).unwrap_or_default();
        (folded, stripped)
    }

    fn stripped(&self, about: &Stripped) -> Vec<Stripped> {
        let totals = Totals {
            figures: self.all.of_all(),
            errors: self.all.errors(),
            peak_ticks: self.all.together.at,
            ..self.counts
        };
        let group = |(&node, sum): (&u32, &Sums)| Group {
            node,
            figures: sum.of_all().within(&totals.figures),
            errors: sum.errors(),
            first: sum.first.unwrap_or_default(),
            last: sum.last,
            peak_ticks: sum.together.at,
            ..Group::default()
        };
        let groups: Vec<Group> = self.stacks.iter().map(group).collect();
        to_records(about, &totals, &groups)
    }

    fn folded(&mut self, about: Folded) -> Vec<Folded> {
        let courses = std::mem::take(&mut self.courses);
        let decoded = || courses.iter().filter_map(|(c, later)| Some((decode_course(c)?, *later)));
        let spans = decoded().map(|(c, later)| (c.start().wrapping_add(later), c.shift()));
        let mut adder = Adder::new(spans, about.until);
        decoded().for_each(|(course, later)| adder.add(&course, later));
        let (course, most, at) = adder.finish();
        let (figures, _) = self.all.folded.unwrap_or_default();
        let [peak_count, peak_bytes] = most;
        let totals = Totals {
            figures: BlockStats { peak_count, peak_bytes, ..figures },
            peak_ticks: at,
            ..self.folded_counts
        };
        let stacks: Vec<(u32, &Sums)> =
            self.stacks.iter().filter(|(_, s)| s.folded.is_some()).map(|(n, s)| (*n, s)).collect();
        let is_sample = self.is_sample;
        let first = Folded { totals: totals_of(&totals), course: encode_course(&course), ..about };
        let mut parts = stacks.chunks(STACKS);
        let part = |stacks: &[(u32, &Sums)]| Folded {
            groups: stacks.iter().flat_map(|(node, sum)| sum.group(*node)).collect(),
            sums: match is_sample {
                true => stacks.iter().flat_map(|(_, sum)| sum.sums(sum.together.most)).collect(),
                false => Vec::new(),
            },
            ..first.clone()
        };
        let mut front = part(parts.next().unwrap_or_default());
        if is_sample {
            front.sums.splice(0..0, self.all.sums(most));
        }
        let mut all = vec![front];
        all.extend(parts.map(part));
        all
    }
}

/// Returns totals with the time of their last event among those of all recordings.
fn later(t: &Totals, shift: u64) -> Totals {
    Totals { last_ticks: t.last_ticks.wrapping_add(shift), ..*t }
}

impl Sums {
    fn add(&mut self, f: &BlockStats, e: &Errors, held: &Held) {
        self.figures.join(f);
        for (sum, e) in self.variances.iter_mut().zip(errors_of(e)) {
            *sum += (e as f64).powi(2);
        }
        self.together.add(held);
    }

    fn seen(&mut self, first: Ticks, last: Ticks) {
        self.first = Some(self.first.map_or(first, |f| f.min(first)));
        self.last = self.last.max(last);
    }

    fn fold(&mut self, f: &BlockStats, [first, last]: [Ticks; 2], sums: Option<&[u64; 12]>) {
        let (all, times) = self.folded.get_or_insert((BlockStats::default(), [first, last]));
        all.join(f);
        *times = [times[0].min(first), times[1].max(last)];
        let numbers = sums.into_iter().flatten().map(|bits| f64::from_bits(*bits));
        let all = self.sums.as_flattened_mut().iter_mut();
        all.zip(numbers).for_each(|(sum, n)| *sum += n);
    }

    /// Returns the figures of all blocks. Of those that were live at one moment it is an upper bound.
    fn of_all(&self) -> BlockStats {
        let [peak_count, peak_bytes] = self.together.most;
        BlockStats { peak_count, peak_bytes, ..self.figures }
    }

    fn errors(&self) -> Errors {
        to_errors(&self.variances.map(|v| v.sqrt().round() as u64))
    }

    /// Returns the numbers of a stack as [`Folded::groups`] has them.
    fn group(&self, node: u32) -> [u64; Folded::GROUP] {
        let (figures, [first, last]) = self.folded.unwrap_or_default();
        let [peak_count, peak_bytes] = self.together.most;
        let mut numbers = [0; Folded::GROUP];
        numbers[..4].copy_from_slice(&[u64::from(node), first.0, last.0, self.together.at.0]);
        let figures = BlockStats { peak_count, peak_bytes, ..figures };
        numbers[4..].copy_from_slice(&figures_of(&figures));
        numbers
    }

    /// Returns the sums of a sample as [`Folded::sums`] has them, with these most blocks and bytes.
    fn sums(&self, most: [u64; 2]) -> impl Iterator<Item = u64> {
        let mut sums = self.sums;
        sums.iter_mut().zip(most).for_each(|(sum, most)| sum[0] = most as f64);
        sums.into_iter().flatten().map(f64::to_bits)
    }
}
