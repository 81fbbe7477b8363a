//! Computes the figures of the selected blocks.

use super::aggregated::Figured;
use super::plan::{Query, Selection, Suppressed};
use crate::analysis::{Analysis, LeftOut};
use crate::heap::{BlockStats, Estimates, Group, Totals};
use crate::index::{Block, Column, ScanError, flags};
use prof_trace::ticks::Ticks;

/// Sums of a class.
#[derive(Clone, Copy, Default)]
pub(super) struct Sum {
    pub figures: BlockStats,
    frees: u64,
    implied: u64,
    first: Ticks,
    last: Ticks,
    oldest: Ticks,
}

pub(super) const NOTHING: Sum = Sum {
    figures: BlockStats {
        live_count: 0,
        live_bytes: 0,
        peak_count: 0,
        peak_bytes: 0,
        allocations: 0,
        reallocations: 0,
        allocated_bytes: 0,
        temporary: 0,
        found: 0,
        found_bytes: 0,
    },
    frees: 0,
    implied: 0,
    first: Ticks::MAX,
    last: Ticks::ZERO,
    oldest: Ticks::MAX,
};

#[derive(Default)]
struct State {
    selection: Selection,
    columns: [Vec<u64>; 5],
    sums: Vec<Sum>,
}

impl Sum {
    fn row(&mut self, begin: u64, end: u64, size: u64, flag: u64, until: Ticks) {
        let f = &mut self.figures;
        if flag & flags::FOUND != 0 {
            f.found += 1;
            f.found_bytes = f.found_bytes.wrapping_add(size);
        } else {
            let again = u64::from(flag & flags::REALLOCATED != 0);
            f.allocations += 1 - again;
            f.reallocations += again;
            f.allocated_bytes = f.allocated_bytes.wrapping_add(size);
        }
        self.first = self.first.min(Ticks(begin));
        self.last = self.last.max(Ticks(begin));
        if end > until.0 {
            f.live_count += 1;
            f.live_bytes = f.live_bytes.wrapping_add(size);
            self.oldest = self.oldest.min(Ticks(begin));
        } else {
            f.temporary += u64::from(flag & flags::TEMPORARY != 0);
            self.implied += u64::from(flag & flags::IMPLIED != 0);
            self.frees += u64::from(flag & (flags::IMPLIED | flags::CONTINUED) == 0);
        }
    }

    /// Adds what a recording without blocks knows of a group. Each reallocation has ended a block, of this stack or another.
    pub(super) fn group(&mut self, g: &Group) {
        let f = g.figures;
        let begun = f.begun();
        let frees = begun.wrapping_sub(f.live_count).saturating_sub(f.reallocations);
        let (first, last) = (g.first, g.last);
        self.add(&Self { figures: f, frees, first, last, ..NOTHING });
    }

    fn add(&mut self, other: &Self) {
        let (f, o) = (&mut self.figures, &other.figures);
        f.allocations += o.allocations;
        f.reallocations += o.reallocations;
        f.allocated_bytes = f.allocated_bytes.wrapping_add(o.allocated_bytes);
        f.live_count += o.live_count;
        f.live_bytes = f.live_bytes.wrapping_add(o.live_bytes);
        f.temporary += o.temporary;
        f.found += o.found;
        f.found_bytes = f.found_bytes.wrapping_add(o.found_bytes);
        self.frees += other.frees;
        self.implied += other.implied;
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
        self.oldest = self.oldest.min(other.oldest);
    }
}

/// Live blocks and bytes as time advances, and their peaks.
#[derive(Clone, Copy, Default)]
pub(super) struct Level {
    count: u64,
    bytes: u64,
    peak_count: u64,
    peak_bytes: u64,
    peak_at: Ticks,
}

impl Level {
    /// Changes live blocks and bytes, modulo 2^64.
    pub(super) fn shift(&mut self, blocks: u64, bytes: u64) {
        self.count = self.count.wrapping_add(blocks);
        self.bytes = self.bytes.wrapping_add(bytes);
    }

    /// Takes the present blocks and bytes for a moment's.
    pub(super) fn note(&mut self, time: Ticks) {
        if self.bytes > self.peak_bytes {
            self.raise(self.count, self.bytes, time);
        }
        self.peak_count = self.peak_count.max(self.count);
    }

    /// Raises the peaks to these, which were reached, if they are not higher.
    pub(super) fn raise(&mut self, blocks: u64, bytes: u64, time: Ticks) {
        self.peak_count = self.peak_count.max(blocks);
        if bytes >= self.peak_bytes {
            (self.peak_bytes, self.peak_at) = (bytes, time);
        }
    }

    #[inline(always)]
    fn step(&mut self, begins: bool, size: u64, time: Ticks) {
        if !begins {
            self.count = self.count.saturating_sub(1);
            self.bytes = self.bytes.wrapping_sub(size);
            return;
        }
        self.count += 1;
        self.bytes = self.bytes.wrapping_add(size);
        self.peak_count = self.peak_count.max(self.count);
        if self.bytes > self.peak_bytes {
            (self.peak_bytes, self.peak_at) = (self.bytes, time);
        }
    }
}

/// The criterion by which blocks are grouped into classes.
#[derive(Clone, Copy, Debug)]
pub enum By<'a> {
    /// By stack: a class for each group of the index.
    Stacks,
    /// By the class given for each group of the index.
    Classes(&'a [u32]),
    /// By the thread that allocated them: a class for each thread index.
    Threads,
    /// By size: see [`size_class`].
    Sizes,
}

/// Number of size classes.
pub const SIZE_CLASSES: usize = 62;

/// Returns the class of a size: up to 8 bytes, up to 16, up to 32, and so on.
pub fn size_class(size: u64) -> usize {
    (64 - size.saturating_sub(1).leading_zeros() as usize).max(3) - 3
}

impl By<'_> {
    #[inline(always)]
    pub(super) fn class(&self, group: u64, thread_index: u64, size: u64) -> usize {
        match self {
            By::Stacks => group as usize,
            By::Classes(of) => of.get(group as usize).map_or(usize::MAX, |c| *c as usize),
            By::Threads => thread_index as usize,
            By::Sizes => size_class(size),
        }
    }
}

/// The figures of classes while they are computed.
struct Classes {
    sums: Vec<Sum>,
    levels: Vec<Level>,
    /// Live bytes and blocks of all classes together.
    all: Level,
    estimates: Option<Estimates>,
    /// The figures of all blocks, if a recording without blocks has told them.
    totals: Option<Totals>,
    /// The moment that the figures describe.
    at: Ticks,
}

impl Classes {
    /// Returns a class as a group whose node is the number of the class; `None` if it never had a block.
    fn group(&self, i: usize, partial: bool) -> Option<Group> {
        let (s, level) = (self.sums.get(i)?, self.levels.get(i)?);
        if s.figures.begun() == 0 {
            return None;
        }
        let mut figures = with_peak(s.figures, level);
        if partial {
            figures.temporary = 0;
        }
        let errors = self.estimates.as_ref().map(|e| e.group(i, &mut figures));
        Some(Group {
            node: i as u32,
            figures,
            errors: errors.unwrap_or_default(),
            oldest: (s.oldest != Ticks::MAX).then_some(s.oldest),
            first: s.first,
            last: s.last,
            peak_ticks: if level.peak_bytes > 0 { level.peak_at } else { s.first },
        })
    }
}

impl Query<'_> {
    /// Returns the recording with the figures of the selected blocks at the ticks `at`, as if it had ended there.
    /// Stacks without such blocks are left out.
    ///
    /// # Errors
    /// If the index can't be read.
    pub fn analysis(&self, at: Option<Ticks>) -> Result<Analysis, ScanError> {
        let whole = self.index.analysis();
        if self.is_all() && at.is_none() {
            return Ok(whole.with_figures(*whole.totals(), whole.groups().to_vec(), None));
        }
        // A live block's end is `u64::MAX`, which must lie behind every moment.
        let until = at.unwrap_or(Ticks::LAST).min(Ticks::LAST);
        let classes = self.collect_by(By::Stacks, whole.groups().len(), until)?;
        let mut totals = Totals {
            unknown_frees: whole.totals().unknown_frees,
            nonsense: whole.totals().nonsense,
            peak_ticks: classes.all.peak_at,
            last_ticks: whole.totals().last_ticks.min(until),
            ..Totals::default()
        };
        let mut sum = NOTHING;
        let mut groups = Vec::new();
        let partial = !whole.capture().is_everything();
        for (i, g) in whole.groups().iter().enumerate() {
            let Some(group) = classes.group(i, partial) else { continue };
            sum.add(&classes.sums[i]);
            groups.push(Group { node: g.node, ..group });
        }
        totals.figures = with_peak(sum.figures, &classes.all);
        totals.frees = sum.frees;
        totals.implied_frees = sum.implied;
        if partial {
            totals.figures.temporary = 0;
        }
        if let Some(told) = classes.totals {
            totals = told;
        }
        if let Some(e) = &classes.estimates {
            (totals.frees, totals.peak_ticks, totals.errors) = e.totals(&mut totals.figures);
        }
        let mut analysis = whole.with_figures(totals, groups, at.map(|at| at.min(classes.at)));
        if let Some(s) = &self.suppressed {
            analysis.set_suppressed(self.suppressed(s, at)?);
        }
        Ok(analysis)
    }

    /// Computes the figures that suppression rules removed.
    fn suppressed(&self, s: &Suppressed, at: Option<Ticks>) -> Result<LeftOut, ScanError> {
        let mut stacks = vec![0; s.rules.len()];
        for rule in s.by_group.iter().filter(|r| **r != u32::MAX) {
            stacks[*rule as usize] += 1;
        }
        let groups = self.left_out(&s.by_group).by(By::Classes(&s.by_group), s.rules.len(), at)?;
        let mut rules: Vec<_> = s.rules.iter().map(|r| (r.clone(), 0, Group::default())).collect();
        for g in groups {
            let rule = &mut rules[g.node as usize];
            (rule.1, rule.2) = (stacks[g.node as usize], g);
        }
        Ok(LeftOut { rules, unread: s.unread.clone() })
    }

    /// Returns the figures of `count` classes of the selected blocks at the ticks `at`, peaks included; the node of
    /// each is the number of its class. Classes without blocks are left out.
    ///
    /// # Errors
    /// If the index can't be read.
    pub fn by(&self, by: By<'_>, count: usize, at: Option<Ticks>) -> Result<Vec<Group>, ScanError> {
        let until = at.unwrap_or(Ticks::LAST).min(Ticks::LAST);
        let classes = self.collect_by(by, count, until)?;
        let partial = !self.index.analysis().capture().is_everything();
        Ok((0..count).filter_map(|i| classes.group(i, partial)).collect())
    }

    /// Returns the figures of `count` classes as [`Self::by`] does, but peaks only if they are known without the order
    /// of time; else they are 0, and the times of peaks those of the first blocks. The second value says whether
    /// they are known.
    ///
    /// # Errors
    /// If the index can't be read, or the job of this thread is cancelled.
    pub fn sums(
        &self,
        by: By<'_>,
        count: usize,
        at: Option<Ticks>,
    ) -> Result<(Vec<Group>, bool), ScanError> {
        let analysis = self.index.analysis();
        if let Some(groups) = self.kept(by, count, at) {
            return Ok((groups, matches!(by, By::Stacks)));
        }
        if analysis.capture().is_sampled() || self.is_aggregated() {
            // Estimates need the order of time, and samples are few.
            return Ok((self.by(by, count, at)?, true));
        }
        let until = at.unwrap_or(Ticks::LAST).min(Ticks::LAST);
        let sums = self.scan_sums(by, count, until)?;
        let levels = vec![Level::default(); count];
        let classes = Classes {
            sums,
            levels,
            all: Level::default(),
            estimates: None,
            totals: None,
            at: until,
        };
        let partial = !analysis.capture().is_everything();
        Ok(((0..count).filter_map(|i| classes.group(i, partial)).collect(), false))
    }

    /// Returns the figures of classes of stacks from those that the index keeps, if blocks are selected by their stacks
    /// alone.
    fn kept(&self, by: By<'_>, count: usize, at: Option<Ticks>) -> Option<Vec<Group>> {
        let analysis = self.index.analysis();
        // The kept figures of stripped recordings count blocks that no filter finds any more.
        let stripped = analysis.meta().lacks_blocks() && !self.is_aggregated();
        let whole = self.is_all() || !stripped;
        if at.is_some() || !self.is_of_stacks() || !whole {
            return None;
        }
        let groups = analysis.groups().iter().enumerate().filter(|(i, _)| self.has_group(*i));
        match by {
            By::Threads | By::Sizes => None,
            By::Stacks => Some(groups.map(|(i, g)| Group { node: i as u32, ..*g }).collect()),
            // Errors of estimates are not sums.
            By::Classes(_) if analysis.capture().is_sampled() => None,
            By::Classes(of) => {
                let mut all = vec![Group::default(); count];
                for (i, g) in groups {
                    let class = of.get(i).map_or(usize::MAX, |c| *c as usize);
                    if let Some(sum) = all.get_mut(class) {
                        join(sum, g, class as u32);
                    }
                }
                let used = |g: &Group| g.figures.begun() > 0;
                Some(all.into_iter().filter(used).collect())
            }
        }
    }

    fn collect_by(&self, by: By<'_>, count: usize, until: Ticks) -> Result<Classes, ScanError> {
        if self.is_aggregated() {
            let Figured { sums, levels, all, totals, at } = self.figured(by, count, until)?;
            return Ok(Classes { sums, levels, all, estimates: None, totals, at });
        }
        let sums = self.scan_sums(by, count, until)?;
        let (levels, all, estimates) = self.levels(by, count, until)?;
        Ok(Classes { sums, levels, all, estimates, totals: None, at: until })
    }

    fn scan_sums(&self, by: By<'_>, count: usize, until: Ticks) -> Result<Vec<Sum>, ScanError> {
        let state = || State { sums: vec![NOTHING; count], ..State::default() };
        let states = self.index.scan(state, |s, block| self.add(s, block, by, until))?;
        let mut states = states.into_iter().map(|s| s.sums);
        let mut all = states.next().unwrap_or_default();
        for other in states {
            all.iter_mut().zip(&other).for_each(|(a, b)| a.add(b));
        }
        Ok(all)
    }

    fn add(&self, s: &mut State, block: &mut Block<'_>, by: By<'_>, until: Ticks) -> Option<()> {
        if block.range(Column::Begin).0 > until.0 {
            return Some(());
        }
        self.select(block, &mut s.selection)?;
        if s.selection.rows.is_empty() {
            return Some(());
        }
        // Only one column says of what class a row is.
        let class = match by {
            By::Stacks | By::Classes(_) => Column::Group,
            By::Threads => Column::ThreadIndex,
            By::Sizes => Column::Size,
        };
        let read = [Column::Begin, Column::End, Column::Size, Column::Flags, class];
        for (c, values) in read.into_iter().zip(&mut s.columns) {
            block.read(c, values)?;
        }
        let [begins, ends, sizes, flag, class] = &s.columns;
        for &i in &s.selection.rows {
            let i = i as usize;
            if begins[i] <= until.0 {
                let sum = s.sums.get_mut(by.class(class[i], class[i], sizes[i]))?;
                sum.row(begins[i], ends[i], sizes[i], flag[i], until);
            }
        }
        Some(())
    }

    /// Computes the peaks by class and of all together, and estimates of all figures if the recording is sampled.
    fn levels(
        &self,
        by: By<'_>,
        count: usize,
        until: Ticks,
    ) -> Result<(Vec<Level>, Level, Option<Estimates>), ScanError> {
        let capture = self.index.analysis().capture();
        let mut estimates = capture.is_sampled().then(|| Estimates::new(capture));
        let mut levels = vec![Level::default(); count];
        let mut all = Level::default();
        self.in_order(until, |e| {
            let (begins, time) = (e.begins(), e.time());
            let class = by.class(e.group.into(), e.owner.into(), e.size);
            let Some(l) = levels.get_mut(class) else { return };
            l.step(begins, e.size, time);
            all.step(begins, e.size, time);
            if let Some(estimates) = &mut estimates {
                let b =
                    crate::heap::Block::plain(e.size, e.rate, time, class as u32, e.thread_index);
                match begins {
                    true => estimates.begin(&b, e.again),
                    false => estimates.end(&b),
                }
            }
        })?;
        Ok((levels, all, estimates))
    }
}

/// Adds the sums of a group to those of a class.
pub(crate) fn join(sum: &mut Group, g: &Group, class: u32) {
    let (f, o) = (&mut sum.figures, &g.figures);
    let first = f.begun() == 0;
    f.allocations += o.allocations;
    f.reallocations += o.reallocations;
    f.allocated_bytes = f.allocated_bytes.wrapping_add(o.allocated_bytes);
    f.live_count += o.live_count;
    f.live_bytes = f.live_bytes.wrapping_add(o.live_bytes);
    f.temporary += o.temporary;
    f.found += o.found;
    f.found_bytes = f.found_bytes.wrapping_add(o.found_bytes);
    sum.node = class;
    sum.first = if first { g.first } else { sum.first.min(g.first) };
    sum.last = sum.last.max(g.last);
    sum.peak_ticks = sum.first;
    sum.oldest = match (sum.oldest, g.oldest) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
}

fn with_peak(f: BlockStats, level: &Level) -> BlockStats {
    BlockStats { peak_count: level.peak_count, peak_bytes: level.peak_bytes, ..f }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fall_into_powers_of_two() {
        let cases = [(0, 0), (1, 0), (8, 0), (9, 1), (16, 1), (17, 2), (32, 2), (1 << 20, 17)];
        for (size, class) in cases {
            assert_eq!(size_class(size), class, "{size}");
        }
        assert_eq!(size_class(u64::MAX), SIZE_CLASSES - 1);
        assert_eq!(size_class((1 << 63) + 1), SIZE_CLASSES - 1);
        assert_eq!(size_class(1 << 63), SIZE_CLASSES - 2);
    }
}
