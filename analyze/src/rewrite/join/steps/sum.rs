//! The sum of the figures of several recordings, step by step.

use crate::heap::{BlockStats, Totals, errors_of, to_errors, to_totals, totals_of};
use crate::rewrite::add_up::add_stack;
use prof_trace::records::{FIGURES, StackStep, Step};
use prof_trace::ticks::Ticks;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Indices of live blocks and bytes, and of the most of them, among the figures of a stack.
const LIVE: [usize; 2] = [0, 1];
const PEAK: [usize; 2] = [2, 3];

/// Blocks and bytes.
type Both = [u64; 2];

/// The figures of a recording up to its last step.
#[derive(Default)]
struct OfMember {
    totals: Totals,
    /// Number of frees of known blocks.
    freed: u64,
    /// By stack and by class of size: live now, and the most at any time.
    stacks: HashMap<u32, [Both; 2]>,
    classes: HashMap<u8, [Both; 2]>,
    /// Least and most live bytes, and least and most live blocks, within the present interval.
    extents: Option<[u64; 4]>,
    is_over: bool,
}

/// The memory that all recordings hold of a stack, or in a class of sizes.
#[derive(Clone, Copy, Debug, Default)]
struct Holds {
    live: Both,
    most: Both,
    /// Ticks of the last block of a stack.
    last: Ticks,
}

/// The most that recordings held of a stack, or in a class, within the present interval.
type Heights<K> = HashMap<K, HashMap<usize, Both>>;

/// Adds up the steps of several recordings.
pub(super) struct StepSum {
    /// The recordings that have had steps, and whose steps are not over; by index.
    open: BTreeMap<usize, OfMember>,
    /// The figures of those whose steps are over.
    over: OfAll,
    stacks: HashMap<u32, Holds>,
    classes: HashMap<u8, Holds>,
    stack_heights: Heights<u32>,
    class_heights: Heights<u8>,
    /// Changes by stack in the present interval.
    changes: BTreeMap<u32, StackStep>,
    known: HashSet<u32>,
    most: Both,
    at: Ticks,
    begin: Ticks,
    /// Ticks when the last step ends that was added.
    pub end: Ticks,
    is_empty: bool,
}

/// Sums over recordings.
#[derive(Clone, Debug, Default)]
struct OfAll {
    totals: Totals,
    variances: [f64; FIGURES],
    freed: u64,
    /// Least and most live bytes, and least and most live blocks.
    extents: [u64; 4],
}

impl OfAll {
    fn add(&mut self, one: &OfMember) {
        let (t, f) = (&one.totals, &one.totals.figures);
        self.totals.figures.join(f);
        self.totals.join_counts(t);
        for (sum, error) in self.variances.iter_mut().zip(errors_of(&t.errors)) {
            *sum += (error as f64).powi(2);
        }
        self.freed = self.freed.wrapping_add(one.freed);
        let still = [f.live_bytes, f.live_bytes, f.live_count, f.live_count];
        let extents = one.extents.unwrap_or(still);
        self.extents.iter_mut().zip(extents).for_each(|(sum, n)| *sum = sum.wrapping_add(n));
    }
}

impl StepSum {
    /// Creates a sum that begins at a time.
    pub(super) fn new(begin: Ticks) -> Self {
        Self {
            open: BTreeMap::new(),
            over: OfAll::default(),
            stacks: HashMap::new(),
            classes: HashMap::new(),
            stack_heights: HashMap::new(),
            class_heights: HashMap::new(),
            changes: BTreeMap::new(),
            known: HashSet::new(),
            most: [0; 2],
            at: begin,
            begin,
            end: begin,
            is_empty: true,
        }
    }

    /// Widens what the recording with this index holds in the present interval by what a step of it has: frees of known
    /// blocks, least and most live bytes, and least and most live blocks.
    pub(super) fn widen(&mut self, index: usize, course: &[u64; 5]) {
        let [_, least_bytes, most_bytes, least, most] = *course;
        let one = self.open.entry(index).or_default();
        let now = one.extents.unwrap_or([u64::MAX, 0, u64::MAX, 0]);
        one.extents = Some([
            now[0].min(least_bytes),
            now[1].max(most_bytes),
            now[2].min(least),
            now[3].max(most),
        ]);
    }

    /// Adds the next step of the recording with this index. `shift` was added to its times, and `is_last` says that no step of
    /// it follows.
    pub(super) fn add(&mut self, index: usize, step: &Step, shift: u64, is_last: bool) {
        self.is_empty = false;
        self.end = self.end.max(step.end);
        self.widen(index, &step.course);
        let one = self.open.entry(index).or_default();
        one.is_over = is_last;
        one.freed = step.course[0];
        if let Some(totals) = to_totals(&step.totals) {
            let last_ticks = totals.last_ticks.wrapping_add(shift);
            one.totals = Totals { last_ticks, ..totals };
        }
        let mut classes: HashMap<u8, Both> = HashMap::new();
        for s in &step.stacks {
            let change = |at: [usize; 2]| at.map(|i| s.figures[i]);
            let of_one = one.stacks.entry(s.node).or_default();
            let height = moved(of_one, change(LIVE), change(PEAK));
            raise(&mut self.stack_heights, s.node, index, height);
            let all = self.stacks.entry(s.node).or_default();
            all.live = plus(all.live, change(LIVE));
            for size in &s.sizes {
                let of_class = classes.entry(size.class).or_default();
                *of_class = plus(*of_class, LIVE.map(|i| size.figures[i]));
            }
            let sum = self.changes.entry(s.node);
            sum.and_modify(|sum| join_stack(sum, s)).or_insert_with(|| s.clone());
        }
        for &[class, count, bytes, _] in &step.peaks {
            let class = class as u8;
            let of_one = one.classes.entry(class).or_default();
            of_one[1] = [count, bytes];
            raise(&mut self.class_heights, class, index, of_one[1]);
            classes.entry(class).or_default();
        }
        for (class, change) in classes {
            let of_one = one.classes.entry(class).or_default();
            let height = moved(of_one, change, [0; 2]);
            // It may have been told in several parts, of which the first have more than there was at any time.
            let [_, most] = *of_one;
            let height =
                [0, 1].map(|i| if most[i] > 0 { height[i].min(most[i]) } else { height[i] });
            raise(&mut self.class_heights, class, index, height);
            let all = self.classes.entry(class).or_default();
            all.live = plus(all.live, change);
        }
    }

    /// Ends the present interval. Returns the sum of all steps in it, if there are any.
    pub(super) fn finish(&mut self) -> Option<Step> {
        if std::mem::replace(&mut self.is_empty, true) {
            return None;
        }
        let mut all = self.over.clone();
        self.open.values().for_each(|one| all.add(one));
        let [least_bytes, most_bytes, least, most] = all.extents;
        if most_bytes > self.most[1] {
            self.at = self.end;
        }
        self.most = [self.most[0].max(most), self.most[1].max(most_bytes)];
        let [peak_count, peak_bytes] = self.most;
        let totals = Totals {
            figures: BlockStats { peak_count, peak_bytes, ..all.totals.figures },
            errors: to_errors(&all.variances.map(|v| v.sqrt().round() as u64)),
            peak_ticks: self.at,
            ..all.totals
        };
        let begin = std::mem::replace(&mut self.begin, self.end);
        let step = Step {
            begin,
            end: self.end,
            totals: totals_of(&totals),
            course: [all.freed, least_bytes, most_bytes, least, most],
            peaks: self.peaks(),
            stacks: self.stacks(),
        };
        for one in self.open.values_mut() {
            one.extents = None;
        }
        let over = &mut self.over;
        self.open.retain(|_, one| {
            if one.is_over {
                over.add(one);
            }
            !one.is_over
        });
        Some(step)
    }

    /// Returns the classes of which more is live than ever before.
    fn peaks(&mut self) -> Vec<[u64; 4]> {
        let mut all = Vec::new();
        for (class, heights) in self.class_heights.drain() {
            let holds = self.classes.entry(class).or_default();
            let now = |i: &usize| Some(self.open.get(i)?.classes.get(&class)?[0]);
            if holds.rise(heights.iter().map(|(i, height)| (*height, now(i)))) != [0; 2] {
                let [count, bytes] = holds.most;
                all.push([u64::from(class), count, bytes, self.end.0]);
            }
        }
        all.sort_unstable();
        all
    }

    /// Returns what has changed by stack.
    fn stacks(&mut self) -> Vec<StackStep> {
        let mut all: Vec<StackStep> = std::mem::take(&mut self.changes).into_values().collect();
        for s in &mut all {
            let heights = self.stack_heights.remove(&s.node).unwrap_or_default();
            let holds = self.stacks.entry(s.node).or_default();
            let now = |i: &usize| Some(self.open.get(i)?.stacks.get(&s.node)?[0]);
            let higher = holds.rise(heights.iter().map(|(i, height)| (*height, now(i))));
            PEAK.into_iter().zip(higher).for_each(|(i, higher)| s.figures[i] = higher);
            s.peak = (higher[1] > 0).then(|| s.peak.unwrap_or(self.end));
            s.last = s.last.filter(|last| *last > holds.last);
            holds.last = s.last.unwrap_or(holds.last);
            // The first step that has a stack tells of its first block.
            if !self.known.insert(s.node) {
                s.first = None;
            }
        }
        all
    }
}

impl Holds {
    /// Takes the most that each of several recordings held within an interval, and what it holds now. Returns by how much
    /// the most of all has grown.
    fn rise(&mut self, heights: impl Iterator<Item = (Both, Option<Both>)>) -> Both {
        let above = |(height, now): (Both, Option<Both>)| {
            let now = now.unwrap_or_default();
            [0, 1].map(|i| height[i].saturating_sub(now[i]))
        };
        let height = heights.map(above).fold(self.live, plus);
        let most = [0, 1].map(|i| self.most[i].max(height[i]));
        let before = std::mem::replace(&mut self.most, most);
        [0, 1].map(|i| most[i] - before[i])
    }
}

/// Adds the change of a stack in another step, which may be one of another recording.
fn join_stack(sum: &mut StackStep, other: &StackStep) {
    let first = [sum.first, other.first].into_iter().flatten().min();
    let last = sum.last.max(other.last);
    add_stack(sum, other);
    (sum.first, sum.last) = (first, last);
}

/// Takes a change of what a recording holds, and of the most. Returns the most that it may have held meanwhile.
fn moved(of_one: &mut [Both; 2], change: Both, higher: Both) -> Both {
    let [live, most] = *of_one;
    let now = plus(live, change);
    *of_one = [now, plus(most, higher)];
    [0, 1].map(|i| if higher[i] > 0 { of_one[1][i] } else { live[i].max(now[i]) })
}

fn raise<K: std::hash::Hash + Eq>(all: &mut Heights<K>, key: K, index: usize, height: Both) {
    let of_one = all.entry(key).or_default().entry(index).or_default();
    *of_one = [0, 1].map(|i| of_one[i].max(height[i]));
}

fn plus(a: Both, b: Both) -> Both {
    [0, 1].map(|i| a[i].wrapping_add(b[i]))
}
