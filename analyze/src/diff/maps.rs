//! Compares the mappings of two recordings, or of two moments of one.

use super::Keys;
use crate::Analysis;
use crate::maps::{HeldMaps, HeldSums, What};
use crate::report::{FrameData, Style, frame_lines, frames_of};
use crate::symbols::Symbolizer;
use prof_trace::values::text::{bytes, count, number, signed_bytes as signed, signed_number};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::{self, Write};

/// One side of a comparison of mappings.
pub struct MapsSide<'a> {
    /// The recording.
    pub analysis: &'a Analysis,
    /// The mappings of the recording at the moment that is compared.
    pub held: HeldMaps,
    /// The recording tells of mappings.
    pub recorded: bool,
}

/// A comparison of mappings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MapsDiff {
    /// The memory that the comparison is about.
    pub what: What,
    /// Whether the recordings tell of mappings: before, after.
    pub recorded: [bool; 2],
    /// Sums of all mappings before.
    pub before: MapFigures,
    /// Sums of all mappings after.
    pub after: MapFigures,
    /// After minus before.
    pub change: MapChange,
    /// The groups shown: those that differ, by the largest difference of resident bytes first.
    pub groups: Vec<MapDiffData>,
    /// Number of groups that differ and are not shown.
    pub rest_groups: u64,
    /// Sum of the differences of these.
    pub rest: MapChange,
    /// Number of groups that do not differ.
    pub same_groups: u64,
}

/// Mappings of one stack or name whose figures differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MapDiffData {
    /// Figures before; zero if there were none.
    pub before: MapFigures,
    /// Figures after; zero if there are none.
    pub after: MapFigures,
    /// After minus before.
    pub change: MapChange,
    /// Name of mappings whose stack is not known; empty for others.
    pub name: String,
    /// The frames of the stack, innermost first.
    pub frames: Vec<FrameData>,
}

/// Sums over mappings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MapFigures {
    /// Number of mappings.
    pub count: u64,
    /// Bytes of address space.
    pub size: u64,
    /// Resident bytes.
    pub rss: u64,
    /// Resident bytes that were written to.
    pub dirty: u64,
    /// Bytes that are swapped out.
    pub swap: u64,
}

/// Differences: after minus before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MapChange {
    /// Mappings.
    pub count: i64,
    /// Bytes of address space.
    pub size: i64,
    /// Resident bytes.
    pub rss: i64,
    /// Resident bytes that were written to.
    pub dirty: i64,
    /// Bytes that are swapped out.
    pub swap: i64,
}

impl MapFigures {
    fn add(&mut self, s: &HeldSums) {
        self.count += s.count;
        self.size = self.size.saturating_add(s.size);
        self.rss = self.rss.saturating_add(s.rss);
        self.dirty = self.dirty.saturating_add(s.dirty);
        self.swap = self.swap.saturating_add(s.swap);
    }

    fn to(&self, after: &Self) -> MapChange {
        let less = |a: u64, b: u64| b.wrapping_sub(a) as i64;
        MapChange {
            count: less(self.count, after.count),
            size: less(self.size, after.size),
            rss: less(self.rss, after.rss),
            dirty: less(self.dirty, after.dirty),
            swap: less(self.swap, after.swap),
        }
    }
}

impl MapChange {
    fn add(&mut self, o: &Self) {
        self.count = self.count.wrapping_add(o.count);
        self.size = self.size.wrapping_add(o.size);
        self.rss = self.rss.wrapping_add(o.rss);
        self.dirty = self.dirty.wrapping_add(o.dirty);
        self.swap = self.swap.wrapping_add(o.swap);
    }
}

/// Returns the part of a name that two runs have in common: no thread's id, and no mark that a file was deleted.
fn common(name: &str) -> &str {
    let name = name.strip_suffix(" (deleted)").unwrap_or(name);
    if name.starts_with("[stack:") { "[stack of a thread]" } else { name }
}

#[derive(Default)]
struct Pair {
    sides: [MapFigures; 2],
    /// The node and the name on each side.
    of: [Option<(u32, String)>; 2],
}

impl MapsDiff {
    /// Compares the mappings of two recordings, or of two moments of one.
    #[must_use]
    pub fn new(before: &MapsSide<'_>, after: &MapsSide<'_>, what: What, top: usize) -> Self {
        let rebuilt: HashSet<String> = super::rebuilt(before.analysis, after.analysis);
        let mut pairs: BTreeMap<String, Pair> = BTreeMap::new();
        let mut totals = [MapFigures::default(); 2];
        for (i, side) in [before, after].into_iter().enumerate() {
            let analysis = side.analysis;
            let symbols = Symbolizer::new(analysis);
            let mut keys = Keys { analysis, symbols, rebuilt: &rebuilt, known: HashMap::new() };
            for g in side.held.groups.iter().filter(|g| g.sums.count > 0) {
                let key = match g.node {
                    0 => format!("name {}", common(&g.name)),
                    node => format!("stack {}", keys.of(node)),
                };
                let pair = pairs.entry(key).or_default();
                pair.sides[i].add(&g.sums);
                pair.of[i].get_or_insert_with(|| (g.node, common(&g.name).to_owned()));
                totals[i].add(&g.sums);
            }
        }
        let all = pairs.len();
        let changed = pairs.into_values().map(|p| (p.sides[0].to(&p.sides[1]), p));
        let mut changed: Vec<(MapChange, Pair)> =
            changed.filter(|(c, _)| *c != MapChange::default()).collect();
        changed
            .sort_by_key(|(c, _)| std::cmp::Reverse((c.rss.unsigned_abs(), c.size.unsigned_abs())));
        let shown = if top == 0 { changed.len() } else { top.min(changed.len()) };
        let mut rest = MapChange::default();
        changed[shown..].iter().for_each(|(c, _)| rest.add(c));
        let mut symbols = [Symbolizer::new(before.analysis), Symbolizer::new(after.analysis)];
        let groups = changed[..shown].iter().filter_map(|(change, p)| {
            let side = usize::from(p.of[1].is_some());
            let (node, name) = p.of[side].clone()?;
            let analysis = [before, after][side].analysis;
            let frames = frames_of(analysis, node, &mut symbols[side]);
            Some(MapDiffData {
                before: p.sides[0],
                after: p.sides[1],
                change: *change,
                name,
                frames,
            })
        });
        Self {
            what,
            recorded: [before.recorded, after.recorded],
            groups: groups.collect(),
            before: totals[0],
            after: totals[1],
            change: totals[0].to(&totals[1]),
            rest_groups: (changed.len() - shown) as u64,
            rest,
            same_groups: (all - changed.len()) as u64,
        }
    }

    pub(super) fn write(&self, style: Style, out: &mut String) -> fmt::Result {
        if self.recorded.contains(&false) {
            let which = match self.recorded {
                [false, false] => "neither recording tells",
                [false, true] => "the first recording does not tell",
                _ => "the second recording does not tell",
            };
            return writeln!(out, "\nmappings   {which} of them");
        }
        writeln!(out, "\nmappings   {}", change(&self.change))?;
        for (i, g) in self.groups.iter().enumerate() {
            group(i + 1, g, style, out)?;
        }
        writeln!(out)?;
        if self.rest_groups > 0 {
            let n = count(self.rest_groups, "other group", "other groups");
            writeln!(
                out,
                "rest       {n} of mappings: {} (--top 0 shows all)",
                change(&self.rest)
            )?;
        }
        let n = count(self.same_groups, "group of mappings is", "groups of mappings are");
        writeln!(out, "same       {n} as before")
    }
}

fn change(c: &MapChange) -> String {
    format!(
        "{} resident, {} of address space in {} mappings",
        signed(c.rss),
        signed(c.size),
        signed_number(c.count)
    )
}

fn group(rank: usize, g: &MapDiffData, style: Style, out: &mut String) -> fmt::Result {
    let how = match (g.before.count, g.after.count) {
        (0, _) => "new",
        (_, 0) => "gone",
        _ => match g.change.rss.signum() {
            1 => "grown",
            -1 => "shrunk",
            _ => "changed",
        },
    };
    let title = format!("=== {how} mapping #{rank} ===");
    let title = if style.color { format!("\x1b[1m{title}\x1b[0m") } else { title };
    let (b, a) = (&g.before, &g.after);
    writeln!(
        out,
        "\n{title} [resident: {} -> {}, {}] [size: {} -> {}] [mappings: {} -> {}]",
        bytes(b.rss),
        bytes(a.rss),
        signed(g.change.rss),
        bytes(b.size),
        bytes(a.size),
        number(b.count),
        number(a.count)
    )?;
    if g.frames.is_empty() {
        return writeln!(out, "  {}", g.name);
    }
    frame_lines(&g.frames, false, style, out)
}
