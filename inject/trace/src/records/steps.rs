//! Figures over time, of a recording that has no events (`--aggregate`).

use crate::ticks::Ticks;
use crate::wire::{Reader, Writer};
use std::vec::Vec;

/// Number of figures of a stack: live blocks, live bytes, the maxima of both, allocations, reallocations, bytes
/// allocated, temporary blocks.
pub const FIGURES: usize = 8;
/// Number of figures of a size class: those of a stack without the maxima.
pub const SIZE_FIGURES: usize = 6;
/// Indices of the figures of a size class among those of a stack.
pub const OF_SIZE: [usize; SIZE_FIGURES] = [0, 1, 4, 5, 6, 7];

/// The figures of a recording at the end of a step, and what has changed by stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Ticks when the step begins: when the one before it ended.
    pub begin: Ticks,
    /// Ticks when the step ends. All events from before are counted.
    pub end: Ticks,
    /// Statistics of all blocks at the end, as in [`Stripped::totals`](super::Stripped::totals).
    pub totals: Vec<u64>,
    /// Frees of known blocks up to the end; least and most live bytes, and least and most live blocks, within the step.
    pub course: [u64; 5],
    /// For each size class whose greatest number of live bytes or blocks has changed: the class, the greatest number of
    /// blocks, of bytes, and ticks when the latter was reached.
    pub peaks: Vec<[u64; 4]>,
    /// Stacks whose figures have changed since the last step that had stacks, by ascending node.
    pub stacks: Vec<StackStep>,
}

/// The change of a stack's figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackStep {
    /// The stack's node.
    pub node: u32,
    /// Change of each figure, modulo 2^64.
    pub figures: [u64; FIGURES],
    /// Ticks of the stack's first block, if the stack is new.
    pub first: Option<Ticks>,
    /// Ticks of its last block, if it has had any in the step. They may be late by 1/64 of the step.
    pub last: Option<Ticks>,
    /// Ticks of its peak of live bytes, if that has changed. They may be late by 1/64 of the step.
    pub peak: Option<Ticks>,
    /// Changes by class of size.
    pub sizes: Vec<SizeStep>,
    /// Blocks that have ended, by class of lifetime.
    pub lifetimes: Vec<LifetimeStep>,
}

/// The change of the figures of a stack's blocks of one size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeStep {
    /// The class.
    pub class: u8,
    /// Change of each figure in [`OF_SIZE`], modulo 2^64.
    pub figures: [u64; SIZE_FIGURES],
}

/// A stack's blocks of one class of lifetime that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LifetimeStep {
    /// The class.
    pub class: u8,
    /// Number of blocks.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

fn zigzag(n: u64) -> u64 {
    let n = n as i64;
    (n << 1 ^ n >> 63) as u64
}

fn from_zigzag(n: u64) -> u64 {
    n >> 1 ^ (n & 1).wrapping_neg()
}

/// Bits of a stack's mask, behind one for each figure.
const FIRST: u64 = 1 << FIGURES;
const LAST: u64 = 2 << FIGURES;
const PEAK: u64 = 4 << FIGURES;
const SIZES: u64 = 8 << FIGURES;
const LIFETIMES: u64 = 16 << FIGURES;

impl Step {
    /// Encodes the step.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.int(self.begin.0).int(self.end.wrapping_since(self.begin));
        w.int(self.totals.len() as u64);
        self.totals.iter().for_each(|n| _ = w.int(*n));
        self.course.iter().for_each(|n| _ = w.int(*n));
        w.int(self.peaks.len() as u64);
        self.peaks.iter().flatten().for_each(|n| _ = w.int(*n));
        let mut node = 0;
        for s in &self.stacks {
            w.int(s.node.wrapping_sub(node).into());
            node = s.node;
            s.encode(self, &mut w);
        }
        w.bytes
    }

    /// Decodes a step; returns `None` if it is malformed.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader::new(bytes);
        let begin = Ticks(r.int()?);
        let mut step = Self { begin, end: begin.wrapping_add(r.int()?), ..Self::default() };
        for _ in 0..r.int()? {
            step.totals.push(r.int()?);
        }
        for n in &mut step.course {
            *n = r.int()?;
        }
        for _ in 0..r.int()? {
            step.peaks.push([r.int()?, r.int()?, r.int()?, r.int()?]);
        }
        let mut node = 0u32;
        while !r.rest().is_empty() {
            node = node.wrapping_add(r.int32()?);
            let stack = StackStep::decode(node, &step, &mut r)?;
            step.stacks.push(stack);
        }
        Some(step)
    }

    /// Returns the ticks when an encoded step ends, or `None` if it is malformed.
    pub fn end_of(bytes: &[u8]) -> Option<Ticks> {
        let mut r = Reader::new(bytes);
        Some(Ticks(r.int()?).wrapping_add(r.int()?))
    }

    /// Returns by how many bits times within the step are shortened.
    fn shift(&self) -> u32 {
        let bits = 64 - self.end.wrapping_since(self.begin).leading_zeros();
        bits.saturating_sub(7)
    }

    fn put_time(&self, ticks: Ticks, w: &mut Writer) {
        // Rounded up to a later time, but never behind the end.
        let before = self.end.wrapping_since(ticks) as i64;
        w.int(zigzag((before >> self.shift()) as u64));
    }

    fn time(&self, r: &mut Reader<'_>) -> Option<Ticks> {
        let before = from_zigzag(r.int()?) as i64;
        Some(self.end.wrapping_sub((before << self.shift()) as u64))
    }
}

impl StackStep {
    /// Returns how many blocks have ended, and their bytes.
    fn ended(&self) -> [u64; 2] {
        let [live_count, live_bytes, _, _, allocations, reallocations, bytes, _] = self.figures;
        let begun = allocations.wrapping_add(reallocations);
        [begun.wrapping_sub(live_count), bytes.wrapping_sub(live_bytes)]
    }

    fn encode(&self, step: &Step, w: &mut Writer) {
        let mut mask = 0;
        for (i, _) in self.figures.iter().enumerate().filter(|(_, n)| **n != 0) {
            mask |= 1 << i;
        }
        let has = [
            (self.first.is_some(), FIRST),
            (self.last.is_some(), LAST),
            (self.peak.is_some(), PEAK),
            (!self.sizes.is_empty(), SIZES),
            (!self.lifetimes.is_empty(), LIFETIMES),
        ];
        has.into_iter().filter(|h| h.0).for_each(|h| mask |= h.1);
        w.int(mask);
        self.figures.iter().filter(|n| **n != 0).for_each(|n| _ = w.int(zigzag(*n)));
        if let Some(first) = self.first {
            w.int(zigzag(first.wrapping_since(step.begin)));
        }
        self.last.into_iter().chain(self.peak).for_each(|t| step.put_time(t, w));
        // What the last class has follows from the stack's own figures.
        if let Some((last, others)) = self.sizes.split_last() {
            w.int(self.sizes.len() as u64);
            for s in others {
                w.int(s.class.into());
                s.figures.iter().for_each(|n| _ = w.int(zigzag(*n)));
            }
            w.int(last.class.into());
        }
        if let Some((last, others)) = self.lifetimes.split_last() {
            w.int(self.lifetimes.len() as u64);
            for l in others {
                w.int(l.class.into()).int(l.count).int(l.bytes);
            }
            w.int(last.class.into());
        }
    }

    fn decode(node: u32, step: &Step, r: &mut Reader<'_>) -> Option<Self> {
        let mask = r.int()?;
        let mut s = Self { node, ..Self::default() };
        for (i, n) in s.figures.iter_mut().enumerate() {
            if mask >> i & 1 == 1 {
                *n = from_zigzag(r.int()?);
            }
        }
        if mask & FIRST != 0 {
            s.first = Some(step.begin.wrapping_add(from_zigzag(r.int()?)));
        }
        if mask & LAST != 0 {
            s.last = Some(step.time(r)?);
        }
        if mask & PEAK != 0 {
            s.peak = Some(step.time(r)?);
        }
        if mask & SIZES != 0 {
            let mut rest = OF_SIZE.map(|i| s.figures[i]);
            for _ in 1..r.int()? {
                let class = u8::try_from(r.int()?).ok()?;
                let mut figures = [0; SIZE_FIGURES];
                for (n, rest) in figures.iter_mut().zip(&mut rest) {
                    *n = from_zigzag(r.int()?);
                    *rest = rest.wrapping_sub(*n);
                }
                s.sizes.push(SizeStep { class, figures });
            }
            s.sizes.push(SizeStep { class: u8::try_from(r.int()?).ok()?, figures: rest });
        }
        if mask & LIFETIMES != 0 {
            let [mut count, mut bytes] = s.ended();
            for _ in 1..r.int()? {
                let class = u8::try_from(r.int()?).ok()?;
                let l = LifetimeStep { class, count: r.int()?, bytes: r.int()? };
                (count, bytes) = (count.wrapping_sub(l.count), bytes.wrapping_sub(l.bytes));
                s.lifetimes.push(l);
            }
            s.lifetimes.push(LifetimeStep { class: u8::try_from(r.int()?).ok()?, count, bytes });
        }
        Some(s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    fn step() -> Step {
        let minus = |n: u64| n.wrapping_neg();
        let sized = |class, figures| SizeStep { class, figures };
        let lived = |class, count, bytes| LifetimeStep { class, count, bytes };
        let a = StackStep {
            node: 7,
            figures: [minus(2), minus(200), 0, 0, 5, 1, 600, 3],
            first: None,
            last: Some(Ticks(1_000_000)),
            peak: None,
            sizes: vec![
                sized(3, [minus(1), minus(150), 2, 0, 100, 1]),
                sized(9, [minus(1), minus(50), 3, 1, 500, 2]),
            ],
            lifetimes: vec![lived(0, 3, 30), lived(14, 5, 770)],
        };
        let b = StackStep {
            node: u32::MAX,
            figures: [1, 9, 1, 9, 1, 0, 9, 0],
            first: Some(Ticks(10)),
            last: Some(Ticks(1_000_000)),
            peak: Some(Ticks(1_000_000)),
            sizes: vec![sized(0, [1, 9, 1, 0, 9, 0])],
            lifetimes: Vec::new(),
        };
        Step {
            begin: Ticks(500_000),
            end: Ticks(1_000_000),
            totals: vec![1, u64::MAX, 3],
            course: [9, 1, 2, 3, 4],
            peaks: vec![[5, 6, 7, 8]],
            stacks: vec![a, b],
        }
    }

    #[test]
    fn a_step_comes_back_and_half_a_one_does_not() {
        let bytes = step().encode();
        assert_eq!(Step::decode(&bytes), Some(step()));
        assert_eq!(Step::end_of(&bytes), Some(Ticks(1_000_000)));
        let lone = Step { stacks: Vec::new(), ..step() }.encode().len();
        let first = Step { stacks: vec![step().stacks.remove(0)], ..step() }.encode().len();
        for cut in (0..bytes.len()).filter(|n| ![lone, first].contains(n)) {
            assert_eq!(Step::decode(&bytes[..cut]), None, "{cut} of {}", bytes.len());
        }
    }

    #[test]
    fn times_are_late_by_a_small_part_of_the_step() {
        let mut s = step();
        for t in [500_001, 700_003, 999_999, 1_000_000, 3, 1_000_900] {
            s.stacks[0].last = Some(Ticks(t));
            let back = Step::decode(&s.encode()).and_then(|s| s.stacks[0].last).expect("a time");
            assert!((t..t + 500_000 / 64).contains(&back.0), "{t}: {back}");
        }
    }
}
