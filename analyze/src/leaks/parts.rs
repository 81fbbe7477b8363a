//! Computes series of live bytes by stack and size class, and of freed blocks from before the recording.
//!
//! A free of such a block has a time and an address, but no size. The next block at its address mostly is of the same
//! size, as allocators keep free blocks by size.

use super::series::{MOMENTS, Moments, NOTHING, Row, Series};
use crate::heap::weight;
use crate::index::{Before, Block, Column, Index, ScanError, flags};
use crate::query::{Query, Selection};
use prof_trace::capture::Capture;
use prof_trace::ticks::Ticks;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

pub(super) const CLASSES: usize = 256;

/// Returns the class of a size: steps of 16 bytes up to 128, then four for each doubling, as in allocators.
pub(super) fn class_of(size: u64) -> usize {
    if size <= 128 {
        return (size.max(1) - 1) as usize / 16;
    }
    let last = size - 1;
    let log = last.ilog2();
    (8 + (log - 7) as usize * 4 + ((last >> (log - 2)) & 3) as usize).min(CLASSES - 1)
}

/// Series by stack and size class, and sums by size class.
pub(super) struct Parts {
    /// Series by group and size class.
    pub by: BTreeMap<(u32, u16), Series>,
    /// Blocks of all stacks, whether selected or not, by size class and moment.
    pub all: Vec<[i64; MOMENTS]>,
    /// Freed blocks from before the recording whose size is known, by size class and moment; cumulative.
    pub freed: Vec<[u64; MOMENTS]>,
    /// Freed blocks from before the recording whose size is not known, by moment; cumulative.
    pub unsized_freed: [u64; MOMENTS],
    /// For each free of such a block: time and size of the next block at its address.
    pub next: Next,
}

/// For each free of a block from before the recording: time and size of the next block at its address.
pub(super) type Next = Vec<(u64, u64)>;

/// Finds frees of blocks from before the recording by address.
struct Frees {
    by_addr: HashMap<u64, u32>,
    /// A Bloom filter of the addresses, as nearly all rows have another address.
    bits: Vec<u64>,
}

const BITS: u32 = 20;

fn bit(addr: u64) -> (usize, u64) {
    let h = addr.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BITS);
    (h as usize / 64, 1 << (h % 64))
}

impl Frees {
    fn new(before: &Before) -> Self {
        let mut frees = Self { by_addr: HashMap::new(), bits: vec![0; (1 << BITS) / 64] };
        for (i, (_, addr)) in before.frees().iter().enumerate() {
            frees.by_addr.entry(*addr).or_insert(i as u32);
            let (word, mask) = bit(*addr);
            frees.bits[word] |= mask;
        }
        frees
    }

    #[inline]
    fn of(&self, addr: u64) -> Option<usize> {
        let (word, mask) = bit(addr);
        if self.bits[word] & mask == 0 {
            return None;
        }
        self.by_addr.get(&addr).map(|i| *i as usize)
    }
}

/// A fast hash of two small numbers, since one is computed for each block. It does not resist attacks: a made-up
/// recording can only make its own report slow.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u32((*b).into()));
    }

    fn write_u32(&mut self, n: u32) {
        self.0 = (self.0.rotate_left(29) ^ u64::from(n)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_u16(&mut self, n: u16) {
        self.write_u32(n.into());
    }
}

/// Series summed up by one thread.
struct State {
    selection: Selection,
    columns: [Vec<u64>; 6],
    addrs: Vec<u64>,
    by: HashMap<(u32, u16), Box<Series>, BuildHasherDefault<Mix>>,
    all: Vec<[i64; MOMENTS]>,
    next: Next,
}

/// Computes the series of the `wanted` groups by size class. `next`: that of other parts of the same recording.
pub(super) fn parts(
    index: &Index,
    query: &Query<'_>,
    moments: &Moments,
    wanted: &[bool],
    next: Option<Next>,
) -> Result<Parts, ScanError> {
    let before = index.before();
    let unseen = match &next {
        Some(_) => 0,
        None => before.frees().len(),
    };
    let scan = Scan {
        query,
        moments,
        wanted,
        capture: index.analysis().capture(),
        before,
        frees: (unseen > 0).then(|| Frees::new(before)),
        half: moments.at[MOMENTS / 2],
    };
    let state = || State {
        selection: Selection::default(),
        columns: Default::default(),
        addrs: Vec::new(),
        by: HashMap::default(),
        all: vec![[0; MOMENTS]; CLASSES],
        next: vec![(u64::MAX, 0); unseen],
    };
    let work = |s: &mut State, block: &mut Block<'_>| {
        scan.find_next(s, block)?;
        if moments.are_brief(block) { scan.begin(s, block) } else { scan.collect(s, block) }
    };
    let mut states = index.scan(state, work)?.into_iter();
    let mut all = states.next().unwrap_or_else(state);
    for s in states {
        for (key, series) in s.by {
            all.by.entry(key).or_insert_with(|| Box::new(NOTHING)).add(&series);
        }
        for (a, b) in all.all.iter_mut().flatten().zip(s.all.iter().flatten()) {
            *a += b;
        }
        for (a, b) in all.next.iter_mut().zip(s.next) {
            *a = (*a).min(b);
        }
    }
    for steps in &mut all.all {
        for i in 1..MOMENTS {
            steps[i] += steps[i - 1];
        }
    }
    let next = next.unwrap_or(all.next);
    let (freed, unsized_freed) = freed(before, &next, moments);
    let mut by: BTreeMap<_, _> = all.by.into_iter().map(|(k, s)| (k, *s)).collect();
    by.values_mut().for_each(Series::sum_up);
    Ok(Parts { by, all: all.all, freed, unsized_freed, next })
}

/// Returns the cumulative numbers of freed blocks from before the recording. A free counts when the block that replaced
/// it is no longer young.
fn freed(
    before: &Before,
    next: &[(u64, u64)],
    moments: &Moments,
) -> (Vec<[u64; MOMENTS]>, [u64; MOMENTS]) {
    let mut freed = vec![[0u64; MOMENTS]; CLASSES];
    let mut unsized_freed = [0u64; MOMENTS];
    for ((time, _), (again, size)) in before.frees().iter().zip(next) {
        let at = moments.recorded.before(*time).saturating_add(moments.young);
        let into = match again {
            &u64::MAX => &mut unsized_freed,
            _ => &mut freed[class_of(*size)],
        };
        for n in &mut into[moments.from(at)..] {
            *n = n.saturating_add(before.each());
        }
    }
    (freed, unsized_freed)
}

/// Input of a scan for parts: the blocks that it selects, and the moments at which it counts them.
struct Scan<'a> {
    query: &'a Query<'a>,
    moments: &'a Moments,
    wanted: &'a [bool],
    capture: Capture,
    before: &'a Before,
    /// `None` if there is nothing to look for.
    frees: Option<Frees>,
    /// Moment up to which it counts when a series began.
    half: u64,
}

/// Columns of [`State::columns`].
const READ: [Column; 6] =
    [Column::Begin, Column::End, Column::Size, Column::Group, Column::Flags, Column::Rate];

impl Scan<'_> {
    /// Finds the next blocks at the addresses of freed ones.
    fn find_next(&self, s: &mut State, block: &mut Block<'_>) -> Option<()> {
        let Some(frees) = &self.frees else { return Some(()) };
        block.read(Column::Addr, &mut s.addrs)?;
        let mut sized = false;
        for (i, addr) in s.addrs.iter().enumerate() {
            let Some(f) = frees.of(*addr) else { continue };
            if !sized {
                for k in [0, 2] {
                    block.read(READ[k], &mut s.columns[k])?;
                }
                sized = true;
            }
            let (begin, size) = (s.columns[0][i], s.columns[2][i]);
            if begin >= self.before.frees()[f].0.0 {
                s.next[f] = s.next[f].min((begin, size));
            }
        }
        Some(())
    }

    /// Notes when series begin, of a block of rows with brief blocks alone: nothing else of them counts.
    fn begin(&self, s: &mut State, block: &mut Block<'_>) -> Option<()> {
        if self.moments.recorded.before(Ticks(block.range(Column::Begin).0)) >= self.half {
            return Some(());
        }
        self.query.select(block, &mut s.selection)?;
        for k in [0, 2, 3] {
            block.read(READ[k], &mut s.columns[k])?;
        }
        let [begins, _, sizes, groups, ..] = &s.columns;
        for &i in &s.selection.rows {
            let i = i as usize;
            if !*self.wanted.get(groups[i] as usize)? {
                continue;
            }
            let key = (groups[i] as u32, class_of(sizes[i]) as u16);
            let series = s.by.entry(key).or_insert_with(|| Box::new(NOTHING));
            if begins[i] < series.first_ticks.0 {
                series.first_ticks = Ticks(begins[i]);
                series.first = series.first.min(self.moments.recorded.before(Ticks(begins[i])));
            }
        }
        Some(())
    }

    fn collect(&self, s: &mut State, block: &mut Block<'_>) -> Option<()> {
        for (c, values) in READ.into_iter().zip(&mut s.columns) {
            block.read(c, values)?;
        }
        let moments = self.moments;
        let [begins, ends, sizes, groups, flag, rates] = &s.columns;
        for i in 0..begins.len() {
            if moments.is_brief(Ticks(begins[i]), Ticks(ends[i])) {
                continue;
            }
            let from = moments.recorded.before(Ticks(begins[i])).saturating_add(moments.young);
            let (from, to) =
                (moments.from(from), moments.from(moments.recorded.end(Ticks(ends[i]))));
            if from < to {
                let steps = &mut s.all[class_of(sizes[i])];
                steps[from] += 1;
                if to < MOMENTS {
                    steps[to] -= 1;
                }
            }
        }
        self.query.select(block, &mut s.selection)?;
        for &i in &s.selection.rows {
            let i = i as usize;
            if !*self.wanted.get(groups[i] as usize)? {
                continue;
            }
            let key = (groups[i] as u32, class_of(sizes[i]) as u16);
            let series = s.by.entry(key).or_insert_with(|| Box::new(NOTHING));
            if moments.is_brief(Ticks(begins[i]), Ticks(ends[i]))
                && begins[i] >= series.first_ticks.0
            {
                continue;
            }
            series.first_ticks = series.first_ticks.min(Ticks(begins[i]));
            let row = Row {
                begin: moments.recorded.before(Ticks(begins[i])),
                end: moments.recorded.end(Ticks(ends[i])),
                size: sizes[i],
                stands_for: weight(&self.capture, sizes[i], rates[i] as u8),
                live: flag[i] & flags::LIVE != 0,
            };
            series.take(&row, moments);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_narrow_and_in_order() {
        assert_eq!((class_of(0), class_of(16), class_of(17), class_of(128)), (0, 0, 1, 7));
        assert_eq!((class_of(129), class_of(160), class_of(161), class_of(256)), (8, 8, 9, 11));
        assert_eq!((class_of(257), class_of(1 << 20)), (12, 8 + 13 * 4 - 1));
        assert!(class_of(u64::MAX) < CLASSES);
        let sizes: Vec<usize> = (1..100_000).map(class_of).collect();
        assert!(sizes.is_sorted());
    }
}
