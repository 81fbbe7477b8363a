//! Compares two recordings, or two moments of one recording: what grew and what shrank.
//!
//! Two stacks are equal if their frames are equal by module, function and offset in the function, never by address, so
//! that recordings of two runs can be compared. Where the two runs had different builds of a module (by build ID),
//! offsets are meaningless, and only functions are compared.

mod maps;
mod text;

use crate::Analysis;
pub use crate::change::{Change, Side};
use crate::load::Pc;
use crate::report::{FilterData, FrameData, Head, frames_of};
use crate::symbols::Symbolizer;
pub use maps::{MapChange, MapDiffData, MapFigures, MapsDiff, MapsSide};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Options of a comparison.
#[derive(Clone, Debug, Default)]
pub struct DiffOptions {
    /// Number of stacks to show; 0: all.
    pub top: usize,
    /// The filter in effect, to be named in the output.
    pub filter: Vec<FilterData>,
}

/// A comparison of two recordings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// Version of this format: 1.
    pub version: u32,
    /// The recording, or moment, compared with.
    pub before: Head,
    /// The recording, or moment, that is compared.
    pub after: Head,
    /// The difference of the totals.
    pub total: Change,
    /// The stacks shown: those that differ, by the largest difference of live bytes first.
    pub stacks: Vec<DiffData>,
    /// Sum of the differences of all other stacks.
    pub rest: Change,
    /// Number of these other stacks.
    pub rest_stacks: u64,
    /// Number of stacks that do not differ.
    pub same_stacks: u64,
    /// Paths of the modules of which the two recordings have different builds.
    pub rebuilt: Vec<String>,
    /// The mappings, if they are compared, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maps: Option<MapsDiff>,
}

/// A stack whose figures differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiffData {
    /// Figures before; zero if the stack did not occur.
    pub before: Side,
    /// Figures after; zero if the stack did not occur.
    pub after: Side,
    /// After minus before.
    pub change: Change,
    /// The frames, innermost first, named as in the second recording, or as in the first if the stack occurs only
    /// there.
    pub frames: Vec<FrameData>,
    /// The stack was cut short: outer frames are missing.
    pub truncated: bool,
}

/// Computes keys of stacks: stacks with equal keys are compared with each other.
struct Keys<'a> {
    analysis: &'a Analysis,
    symbols: Symbolizer<'a>,
    /// Paths of the modules whose builds differ.
    rebuilt: &'a HashSet<String>,
    known: HashMap<Pc, String>,
}

impl Keys<'_> {
    fn of(&mut self, node: u32) -> String {
        let mut key = String::new();
        for pc in self.analysis.meta().stack(node) {
            key += self.frame(pc);
            key.push('\n');
        }
        if self.analysis.meta().is_cut(node) {
            key.push('~');
        }
        key
    }

    fn frame(&mut self, pc: Pc) -> &str {
        let Self { symbols, rebuilt, known, .. } = self;
        known.entry(pc).or_insert_with(|| {
            let frames = symbols.frames(pc);
            let Some(f) = frames.last() else { return format!("{:#x}", pc.address) };
            let Some(module) = f.module.as_deref() else { return format!("{:#x}", pc.address) };
            let offset = f.offset.unwrap_or(0);
            match (&f.function, rebuilt.contains(module)) {
                (Some(name), true) => format!("{module} {name}"),
                (Some(name), false) => {
                    format!("{module} {name}+{:#x}", f.function_offset.unwrap_or(offset))
                }
                (None, _) => format!("{module} +{offset:#x}"),
            }
        })
    }
}

/// Returns the paths of the modules of which two recordings have different builds.
fn rebuilt(a: &Analysis, b: &Analysis) -> HashSet<String> {
    let ids = |x: &Analysis| -> HashMap<String, Vec<u8>> {
        let known = x.meta().modules.values().filter(|m| !m.build_id.is_empty());
        known.map(|m| (m.path.clone(), m.build_id.to_vec())).collect()
    };
    let (a, b) = (ids(a), ids(b));
    let differs = |(path, id): &(&String, &Vec<u8>)| b.get(*path).is_some_and(|other| other != *id);
    a.iter().filter(differs).map(|(path, _)| path.clone()).collect()
}

/// The group indices and figures of one stack on both sides.
#[derive(Default)]
struct Pair {
    groups: [Option<usize>; 2],
    sides: [Side; 2],
}

impl Diff {
    /// Compares two recordings, or two moments of one recording.
    pub fn new(before: &Analysis, after: &Analysis, options: &DiffOptions) -> Self {
        let rebuilt = rebuilt(before, after);
        let mut pairs: BTreeMap<String, Pair> = BTreeMap::new();
        for (side, analysis) in [before, after].into_iter().enumerate() {
            let symbols = Symbolizer::new(analysis);
            let mut keys = Keys { analysis, symbols, rebuilt: &rebuilt, known: HashMap::new() };
            for (i, g) in analysis.groups().iter().enumerate() {
                let pair = pairs.entry(keys.of(g.node)).or_default();
                pair.groups[side].get_or_insert(i);
                pair.sides[side].add(&g.figures);
            }
        }
        let all = pairs.len();
        let mut changed: Vec<(Change, Pair)> = pairs
            .into_values()
            .map(|p| (p.sides[0].to(&p.sides[1]), p))
            .filter(|(c, _)| *c != Change::default())
            .collect();
        changed.sort_by_key(|(c, p)| {
            let size = c.live_bytes.unsigned_abs();
            (std::cmp::Reverse((size, c.allocated_bytes.unsigned_abs())), p.groups)
        });
        let same_stacks = (all - changed.len()) as u64;
        let shown = if options.top == 0 { changed.len() } else { options.top.min(changed.len()) };
        let mut rest = Change::default();
        changed[shown..].iter().for_each(|(c, _)| rest.add(c));
        let rest_stacks = (changed.len() - shown) as u64;
        let mut symbols = [Symbolizer::new(before), Symbolizer::new(after)];
        let stacks = changed[..shown].iter().filter_map(|(change, p)| {
            let side = usize::from(p.groups[1].is_some());
            let analysis = [before, after][side];
            let node = analysis.groups()[p.groups[side]?].node;
            Some(DiffData {
                before: p.sides[0],
                after: p.sides[1],
                change: *change,
                frames: frames_of(analysis, node, &mut symbols[side]),
                truncated: analysis.meta().is_cut(node),
            })
        });
        let mut totals = [Side::default(); 2];
        totals[0].add(&before.totals().figures);
        totals[1].add(&after.totals().figures);
        let mut rebuilt: Vec<String> = rebuilt.iter().cloned().collect();
        rebuilt.sort();
        Self {
            version: 1,
            before: Head::new(before, &options.filter),
            after: Head::new(after, &options.filter),
            total: totals[0].to(&totals[1]),
            stacks: stacks.collect(),
            rest,
            rest_stacks,
            same_stacks,
            rebuilt,
            maps: None,
        }
    }

    /// Returns the comparison as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}
