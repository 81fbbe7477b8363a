//! The address space at a moment, in bins, and the regions that blocks ever took.

use crate::index::{Column, ScanError};
use crate::query::{Query, Selection};
use prof_trace::ticks::Ticks;
use serde::Serialize;

/// Greatest number of bins.
pub const MOST_BINS: usize = 8192;

/// A question for the address space.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpaceAsk {
    /// Nanoseconds since the start of the moment; `None`: the end of the recording.
    pub at_ns: Option<u64>,
    /// The lowest address; `None`: that of the lowest block.
    pub from: Option<u64>,
    /// The address behind the highest; `None`: the end of the highest block.
    pub to: Option<u64>,
    /// Number of bins of equal size, from 1 to [`MOST_BINS`].
    pub bins: usize,
}

/// The address space in bins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Space {
    /// The lowest address of the first bin.
    pub from: u64,
    /// The address behind the last bin.
    pub to: u64,
    /// Bytes of a bin; the last one may be shorter.
    pub bin_bytes: u64,
    /// For each bin its live bytes. A block that reaches into several bins counts in each by its part there.
    pub bytes: Vec<u64>,
    /// For each bin the number of live blocks that begin there.
    pub blocks: Vec<u64>,
    /// For each bin the time of the oldest allocation of a block that begins there, in nanoseconds since the start.
    pub oldest_ns: Vec<Option<u64>>,
}

/// Sums of a thread.
struct Bins {
    selection: Selection,
    columns: [Vec<u64>; 4],
    bytes: Vec<u64>,
    blocks: Vec<u64>,
    oldest: Vec<u64>,
    /// Change of the number of blocks that cover a whole bin.
    covers: Vec<i64>,
}

impl Query<'_> {
    /// Returns the address space of the selected blocks that are live at a moment, in bins.
    ///
    /// # Errors
    /// If the index can't be read, or the job of this thread is cancelled.
    pub fn space(&self, ask: &SpaceAsk) -> Result<Space, ScanError> {
        let analysis = self.index.analysis();
        let at = ask.at_ns.map_or(u64::MAX - 1, |ns| analysis.ticks_at(ns).0);
        let (from, to) = match (ask.from, ask.to) {
            (Some(from), Some(to)) => (from, to),
            (from, to) => {
                let (low, high) = self.reach(at)?;
                (from.unwrap_or(low), to.unwrap_or(high))
            }
        };
        let to = to.max(from.saturating_add(1));
        let count = ask.bins.clamp(1, MOST_BINS) as u64;
        let width = (to - from).div_ceil(count).max(1);
        let count = (to - from).div_ceil(width) as usize;
        let state = || Bins {
            selection: Selection::default(),
            columns: Default::default(),
            bytes: vec![0; count],
            blocks: vec![0; count],
            oldest: vec![u64::MAX; count],
            covers: vec![0; count + 1],
        };
        let states = self.index.scan(state, |s, block| {
            let [begins, _, addrs, sizes] =
                match live(self, block, at, &mut s.selection, &mut s.columns)? {
                    true => &s.columns,
                    false => return Some(()),
                };
            for &i in &s.selection.rows {
                let i = i as usize;
                let (low, high) = (addrs[i], addrs[i].saturating_add(sizes[i]));
                if low >= to || (high <= from && low < from) {
                    continue;
                }
                let bin = |a: u64| ((a - from) / width) as usize;
                if low >= from {
                    s.blocks[bin(low)] += 1;
                    s.oldest[bin(low)] = s.oldest[bin(low)].min(begins[i]);
                }
                let (low, high) = (low.max(from), high.min(to));
                if low >= high {
                    continue;
                }
                let (first, last) = (bin(low), bin(high - 1));
                if first == last {
                    s.bytes[first] = s.bytes[first].wrapping_add(high - low);
                    continue;
                }
                let edge = |bin: usize| from + bin as u64 * width;
                s.bytes[first] = s.bytes[first].wrapping_add(edge(first + 1) - low);
                s.bytes[last] = s.bytes[last].wrapping_add(high - edge(last));
                s.covers[first + 1] += 1;
                s.covers[last] -= 1;
            }
            Some(())
        })?;
        let clock = &analysis.meta().clock;
        let mut space = Space { from, to, bin_bytes: width, ..Space::default() };
        let mut covers = 0i64;
        for i in 0..count {
            covers += states.iter().map(|s| s.covers[i]).sum::<i64>();
            let whole = (covers.max(0) as u64).wrapping_mul(width);
            let parts = states.iter().fold(0u64, |sum, s| sum.wrapping_add(s.bytes[i]));
            space.bytes.push(whole.wrapping_add(parts));
            space.blocks.push(states.iter().map(|s| s.blocks[i]).sum());
            let oldest = states.iter().map(|s| s.oldest[i]).min().unwrap_or(u64::MAX);
            space.oldest_ns.push((oldest != u64::MAX).then(|| clock.ns(Ticks(oldest))));
        }
        Ok(space)
    }

    /// Returns the lowest address of the selected blocks that are live at the ticks `at`, and the address behind the
    /// highest.
    fn reach(&self, at: u64) -> Result<(u64, u64), ScanError> {
        let state = || (Selection::default(), <[Vec<u64>; 4]>::default(), (u64::MAX, 0));
        let states = self.index.scan(state, |(selection, columns, reach), block| {
            if live(self, block, at, selection, columns)? {
                for &i in &selection.rows {
                    let (low, size) = (columns[2][i as usize], columns[3][i as usize]);
                    *reach = (reach.0.min(low), reach.1.max(low.saturating_add(size)));
                }
            }
            Some(())
        })?;
        let join = |a: (u64, u64), b: (u64, u64)| (a.0.min(b.0), a.1.max(b.1));
        let (low, high) = states.iter().map(|s| s.2).fold((u64::MAX, 0), join);
        Ok(if low == u64::MAX { (0, 0) } else { (low, high) })
    }

    /// Returns the address ranges that the selected blocks ever took, ascending. Ranges are widened to multiples of
    /// `granule` bytes, and those that overlap or adjoin are one.
    ///
    /// # Errors
    /// If the index can't be read, or the job of this thread is cancelled.
    pub fn regions(&self, granule: u64) -> Result<Vec<(u64, u64)>, ScanError> {
        let granule = granule.max(1);
        let state = || (Selection::default(), <[Vec<u64>; 2]>::default(), Ranges::default());
        let states = self.index.scan(state, |(selection, columns, ranges), block| {
            self.select(block, selection)?;
            if selection.rows.is_empty() {
                return Some(());
            }
            let [addrs, sizes] = columns;
            block.read(Column::Addr, addrs)?;
            block.read(Column::Size, sizes)?;
            for &i in &selection.rows {
                let (low, size) = (addrs[i as usize], sizes[i as usize]);
                let high = low.saturating_add(size);
                let up = high.div_ceil(granule).saturating_mul(granule);
                ranges.push(low / granule * granule, up);
            }
            Some(())
        })?;
        let mut all = Ranges::default();
        for s in states {
            all.new.extend(s.2.merged);
            all.new.extend(s.2.new);
        }
        all.merge();
        Ok(all.merged)
    }
}

/// Selects the rows of a block of rows that are live at the ticks `at`, and reads begins, ends, addresses and sizes;
/// returns whether there are any.
fn live(
    query: &Query<'_>,
    block: &mut crate::index::Block<'_>,
    at: u64,
    selection: &mut Selection,
    columns: &mut [Vec<u64>; 4],
) -> Option<bool> {
    if block.range(Column::Begin).0 > at || block.range(Column::End).1 <= at {
        return Some(false);
    }
    query.select(block, selection)?;
    if selection.rows.is_empty() {
        return Some(false);
    }
    const READ: [Column; 4] = [Column::Begin, Column::End, Column::Addr, Column::Size];
    for (c, values) in READ.into_iter().zip(columns.iter_mut()) {
        block.read(c, values)?;
    }
    selection.rows.retain(|&i| columns[0][i as usize] <= at && columns[1][i as usize] > at);
    Some(!selection.rows.is_empty())
}

/// Address ranges that are merged now and then.
#[derive(Default)]
struct Ranges {
    merged: Vec<(u64, u64)>,
    new: Vec<(u64, u64)>,
}

impl Ranges {
    fn push(&mut self, low: u64, high: u64) {
        if low >= high {
            return;
        }
        self.new.push((low, high));
        if self.new.len() > (1 << 16) + self.merged.len() {
            self.merge();
        }
    }

    fn merge(&mut self) {
        self.new.append(&mut self.merged);
        self.new.sort_unstable();
        for (low, high) in self.new.drain(..) {
            match self.merged.last_mut() {
                Some(last) if last.1 >= low => last.1 = last.1.max(high),
                _ => self.merged.push((low, high)),
            }
        }
    }
}
