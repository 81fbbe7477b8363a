//! Adds what a scan of the process's memory has proved to the verdicts.

use super::Row;
use super::judge::{Class, Confidence, Verdict};
use super::rows::Judged;
use super::series::NOTHING;
use crate::index::{Column, Index, ScanError};
use crate::objects::{ObjectData, in_order};
use crate::query::{Query, Selection};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// The blocks that a scan of the process's memory has not reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// Whether the scan came to a verdict; if not, the blocks count for nothing.
    pub settled: bool,
    /// The unreachable blocks that are live at the end of the recording, by address.
    pub blocks: HashMap<u64, ProvedBlock>,
    /// Names of C++ classes.
    pub classes: Vec<String>,
}

/// A block that a scan has not reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProvedBlock {
    /// Whether another such block points to it.
    pub held: bool,
    /// Index in [`Proof::classes`] of the class of the object that it begins with, if that is known.
    pub class: Option<usize>,
}

/// The unreachable blocks of a stack.
#[derive(Default)]
struct Group {
    sum: Unreachable,
    /// Bytes and number of those of each class.
    classes: BTreeMap<usize, (u64, u64)>,
}

impl Group {
    fn add(&mut self, other: Self) {
        self.sum.add(&other.sum);
        for (class, (bytes, blocks)) in other.classes {
            let of = self.classes.entry(class).or_default();
            *of = (of.0 + bytes, of.1 + blocks);
        }
    }

    fn objects(&self, names: &[String]) -> Vec<ObjectData> {
        let of = |(class, (bytes, blocks)): (&usize, &(u64, u64))| {
            Some(ObjectData { class: names.get(*class)?.clone(), bytes: *bytes, blocks: *blocks })
        };
        in_order(self.classes.iter().filter_map(of).collect())
    }
}

/// Unreachable memory, as LeakSanitizer counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Unreachable {
    /// Bytes of blocks that nothing but other unreachable blocks points to.
    pub unreachable_bytes: u64,
    /// Number of these blocks.
    pub unreachable_count: u64,
    /// Bytes of those that another unreachable block points to.
    pub indirect_bytes: u64,
    /// Number of those.
    pub indirect_count: u64,
}

impl Unreachable {
    pub(super) fn add(&mut self, other: &Self) {
        self.unreachable_bytes += other.unreachable_bytes;
        self.unreachable_count += other.unreachable_count;
        self.indirect_bytes += other.indirect_bytes;
        self.indirect_count += other.indirect_count;
    }
}

/// Returns the unreachable blocks among the selected ones, by group.
///
/// # Errors
/// If the index can't be read.
fn by_group(
    index: &Index,
    query: &Query<'_>,
    proof: &Proof,
) -> Result<BTreeMap<usize, Group>, ScanError> {
    let (least, most) = match (proof.blocks.keys().min(), proof.blocks.keys().max()) {
        (Some(least), Some(most)) if proof.settled => (*least, *most),
        _ => return Ok(BTreeMap::new()),
    };
    type State = (Selection, [Vec<u64>; 4], BTreeMap<usize, Group>);
    let states = index.scan(State::default, |(selection, columns, sums), block| {
        let (first, last) = block.range(Column::Addr);
        // Blocks that are live have no end.
        if last < least || first > most || block.range(Column::End).1 != u64::MAX {
            return Some(());
        }
        query.select(block, selection)?;
        const READ: [Column; 4] = [Column::Addr, Column::End, Column::Size, Column::Group];
        for (c, values) in READ.into_iter().zip(columns.iter_mut()) {
            block.read(c, values)?;
        }
        let [addresses, ends, sizes, groups] = columns;
        for &i in &selection.rows {
            let i = i as usize;
            let found = proof.blocks.get(&addresses[i]).filter(|_| ends[i] == u64::MAX);
            let Some(ProvedBlock { held, class }) = found else { continue };
            let mut one = Unreachable {
                unreachable_bytes: sizes[i],
                unreachable_count: 1,
                ..Unreachable::default()
            };
            if *held {
                (one.indirect_bytes, one.indirect_count) = (sizes[i], 1);
            }
            let classes = class.iter().map(|class| (*class, (sizes[i], 1))).collect();
            sums.entry(groups[i] as usize).or_default().add(Group { sum: one, classes });
        }
        Some(())
    })?;
    let mut all = BTreeMap::<usize, Group>::new();
    for (number, group) in states.into_iter().flat_map(|s| s.2) {
        all.entry(number).or_default().add(group);
    }
    Ok(all)
}

/// Gives each stack with unreachable blocks the class [`Class::Proved`], and a row if it has none. Of several rows of a
/// stack the first one of the worst class gets them.
///
/// # Errors
/// If the index can't be read.
pub(super) fn add(
    index: &Index,
    query: &Query<'_>,
    proof: &Proof,
    rows: &mut Vec<Row>,
) -> Result<(), ScanError> {
    let mut found = by_group(index, query, proof)?;
    rows.sort_by_key(|r| r.judged.verdict.class);
    for row in rows.iter_mut() {
        if let Some(group) = found.remove(&row.judged.group) {
            row.prove(&group, proof);
        }
    }
    // The blocks of the others are too young to be judged by time.
    for (number, group) in found {
        let sum = &group.sum;
        let class = Class::TooYoung;
        let verdict = Verdict { class, confidence: Confidence::Low, weakest: 0.0, mean: 0.0 };
        let mut series = Box::new(NOTHING);
        (series.live_bytes, series.live_blocks) = (sum.unreachable_bytes, sum.unreachable_count);
        let judged =
            Judged { group: number, verdict, series, sizes: None, older: None, replaced: 0 };
        let mut row = Row {
            judged,
            bytes: sum.unreachable_bytes,
            growth: [0; 2],
            trend: class,
            proved: None,
            objects: Vec::new(),
        };
        row.prove(&group, proof);
        rows.push(row);
    }
    Ok(())
}

impl Row {
    fn prove(&mut self, group: &Group, proof: &Proof) {
        let verdict = &mut self.judged.verdict;
        (verdict.class, verdict.confidence) = (Class::Proved, Confidence::High);
        self.proved = Some(group.sum);
        self.objects = group.objects(&proof.classes);
    }
}
