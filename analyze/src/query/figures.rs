//! The figures of the blocks that are meant.

use super::plan::{Query, Selection};
use crate::index::{Block, Column, Damaged, flags};
use crate::model::{Analysis, Estimates, Figures, Group, Totals};

/// What is counted of a group on the way.
#[derive(Clone, Copy, Default)]
struct Sum {
    figures: Figures,
    frees: u64,
    implied: u64,
    first: u64,
    last: u64,
    oldest: u64,
}

const NOTHING: Sum = Sum {
    figures: Figures {
        live_count: 0,
        live_bytes: 0,
        peak_count: 0,
        peak_bytes: 0,
        allocations: 0,
        reallocations: 0,
        allocated_bytes: 0,
        temporary: 0,
    },
    frees: 0,
    implied: 0,
    first: u64::MAX,
    last: 0,
    oldest: u64::MAX,
};

#[derive(Default)]
struct State {
    selection: Selection,
    columns: [Vec<u64>; 5],
    sums: Vec<Sum>,
}

impl Sum {
    fn row(&mut self, begin: u64, end: u64, size: u64, flag: u64, until: u64) {
        let f = &mut self.figures;
        let again = u64::from(flag & flags::REALLOCATED != 0);
        f.allocations += 1 - again;
        f.reallocations += again;
        f.allocated_bytes = f.allocated_bytes.wrapping_add(size);
        self.first = self.first.min(begin);
        self.last = self.last.max(begin);
        if end > until {
            f.live_count += 1;
            f.live_bytes = f.live_bytes.wrapping_add(size);
            self.oldest = self.oldest.min(begin);
        } else {
            f.temporary += u64::from(flag & flags::TEMPORARY != 0);
            self.implied += u64::from(flag & flags::IMPLIED != 0);
            self.frees += u64::from(flag & (flags::IMPLIED | flags::CONTINUED) == 0);
        }
    }

    fn add(&mut self, other: &Self) {
        let (f, o) = (&mut self.figures, &other.figures);
        f.allocations += o.allocations;
        f.reallocations += o.reallocations;
        f.allocated_bytes = f.allocated_bytes.wrapping_add(o.allocated_bytes);
        f.live_count += o.live_count;
        f.live_bytes = f.live_bytes.wrapping_add(o.live_bytes);
        f.temporary += o.temporary;
        self.frees += other.frees;
        self.implied += other.implied;
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
        self.oldest = self.oldest.min(other.oldest);
    }
}

/// Live blocks and bytes on the way through time, and the most of them.
#[derive(Clone, Copy, Default)]
struct Level {
    count: u64,
    bytes: u64,
    peak_count: u64,
    peak_bytes: u64,
    peak_at: u64,
}

impl Level {
    #[inline(always)]
    fn step(&mut self, begins: bool, size: u64, time: u64) {
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

impl Query<'_> {
    /// The recording with the figures of the blocks that are meant, as they were at the ticks `at`:
    /// as if it had ended there. Stacks without such blocks are not in it.
    ///
    /// # Errors
    /// If the index can't be read.
    pub fn analysis(&self, at: Option<u64>) -> Result<Analysis, Damaged> {
        let whole = self.index.analysis();
        if self.is_all() && at.is_none() {
            return Ok(whole.with_figures(*whole.totals(), whole.groups().to_vec(), None));
        }
        // What never ended does so later than anything else.
        let until = at.unwrap_or(u64::MAX - 1).min(u64::MAX - 1);
        let sums = self.sums(until)?;
        let (levels, all, estimates) = self.levels(until)?;
        let mut totals = Totals {
            unknown_frees: whole.totals().unknown_frees,
            nonsense: whole.totals().nonsense,
            peak_ticks: all.peak_at,
            last_ticks: whole.totals().last_ticks.min(until),
            ..Totals::default()
        };
        let mut sum = NOTHING;
        let mut groups = Vec::new();
        let partial = !whole.capture().is_everything();
        for (i, ((g, s), level)) in whole.groups().iter().zip(&sums).zip(&levels).enumerate() {
            if s.figures.allocations + s.figures.reallocations == 0 {
                continue;
            }
            sum.add(s);
            let mut figures = with_peak(s.figures, level);
            if partial {
                figures.temporary = 0;
            }
            let errors = estimates.as_ref().map(|e| e.group(i, &mut figures));
            groups.push(Group {
                node: g.node,
                figures,
                errors: errors.unwrap_or_default(),
                oldest: (s.oldest != u64::MAX).then_some(s.oldest),
                first: s.first,
                last: s.last,
                peak_ticks: if level.peak_bytes > 0 { level.peak_at } else { s.first },
            });
        }
        totals.figures = with_peak(sum.figures, &all);
        totals.frees = sum.frees;
        totals.implied_frees = sum.implied;
        if partial {
            totals.figures.temporary = 0;
        }
        if let Some(e) = &estimates {
            (totals.frees, totals.peak_ticks, totals.errors) = e.totals(&mut totals.figures);
        }
        Ok(whole.with_figures(totals, groups, at))
    }

    fn sums(&self, until: u64) -> Result<Vec<Sum>, Damaged> {
        let groups = self.index.analysis().groups().len();
        let state = || State { sums: vec![NOTHING; groups], ..State::default() };
        let states = self.index.scan(state, |s, block| self.add(s, block, until))?;
        let mut states = states.into_iter().map(|s| s.sums);
        let mut all = states.next().unwrap_or_default();
        for other in states {
            all.iter_mut().zip(&other).for_each(|(a, b)| a.add(b));
        }
        Ok(all)
    }

    fn add(&self, s: &mut State, block: &mut Block<'_>, until: u64) -> Option<()> {
        if block.range(Column::Begin).0 > until {
            return Some(());
        }
        self.select(block, &mut s.selection)?;
        if s.selection.rows.is_empty() {
            return Some(());
        }
        const READ: [Column; 5] =
            [Column::Begin, Column::End, Column::Size, Column::Flags, Column::Group];
        for (c, values) in READ.into_iter().zip(&mut s.columns) {
            block.read(c, values)?;
        }
        let [begins, ends, sizes, flag, groups] = &s.columns;
        for &i in &s.selection.rows {
            let i = i as usize;
            if begins[i] <= until {
                let sum = s.sums.get_mut(groups[i] as usize)?;
                sum.row(begins[i], ends[i], sizes[i], flag[i], until);
            }
        }
        Some(())
    }

    /// By group, and of all: how high it rose; and estimates of all figures, if blocks are a sample.
    fn levels(&self, until: u64) -> Result<(Vec<Level>, Level, Option<Estimates>), Damaged> {
        let capture = self.index.analysis().capture();
        let mut estimates = capture.is_sampled().then(|| Estimates::new(capture));
        let mut levels = vec![Level::default(); self.index.analysis().groups().len()];
        let mut all = Level::default();
        self.in_order(until, |e| {
            let (begins, time) = (e.begins(), e.time());
            if let Some(l) = levels.get_mut(e.group as usize) {
                l.step(begins, e.size, time);
                all.step(begins, e.size, time);
            }
            if let Some(estimates) = &mut estimates {
                let (size, group, lane) = (e.size, e.group, e.lane);
                let b = crate::model::Block { size, time, group, lane, tag: () };
                match begins {
                    true => estimates.begin(&b, e.again),
                    false => estimates.end(&b),
                }
            }
        })?;
        Ok((levels, all, estimates))
    }
}

fn with_peak(f: Figures, level: &Level) -> Figures {
    Figures { peak_count: level.peak_count, peak_bytes: level.peak_bytes, ..f }
}
