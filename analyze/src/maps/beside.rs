//! Shows mappings beside the heap's stacks, without counting a byte twice.

use super::data::{MapGroupData, Shower};
use super::held::{Held, HeldGroup, HeldSums};
use super::owned::What;
use crate::Analysis;
use crate::report::units::{bytes, count};
use crate::report::{Style, frame_lines};
use prof_trace::ticks::Ticks;
use serde::Serialize;
use std::fmt::{self, Write};

/// Live mappings, grouped by stack or, where that is not known, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Beside {
    /// The memory that the report is about.
    pub what: What,
    /// The recording tells of mappings.
    pub recorded: bool,
    /// Why it does not, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not: Option<&'static str>,
    /// The groups, most resident first.
    pub groups: Vec<MapGroupData>,
    /// Number of groups that are not shown.
    pub other_groups: u64,
    /// Sums over all groups.
    pub total: MapGroupData,
    /// The part of all mappings that is the allocator's; with [`What::All`] it is not in the groups, as blocks are in
    /// it.
    pub allocator: MapGroupData,
}

impl Beside {
    /// Groups the mappings that are there at a moment (`None`: the end).
    #[must_use]
    pub fn new(analysis: &Analysis, held: &Held<'_>, at: Option<Ticks>, top: usize) -> Self {
        let now = held.at(at);
        let mut shower = Shower::new(analysis);
        let mut total = HeldSums::default();
        let mut all: Vec<HeldGroup> = now.groups;
        all.retain(|g| g.sums.count > 0);
        all.iter().for_each(|g| total.add(&g.sums));
        all.sort_by_key(|g| std::cmp::Reverse((g.sums.rss, g.sums.size)));
        let most = if top == 0 { all.len() } else { top.min(all.len()) };
        let other_groups = (all.len() - most) as u64;
        let shown = all[..most].iter().map(|g| {
            let name = if g.node == 0 { g.name.clone() } else { g.node.to_string() };
            MapGroupData { name, frames: shower.frames(g.node), ..g.sums.data() }
        });
        Self {
            what: held.what,
            recorded: held.maps().is_recorded(),
            why_not: (!held.maps().is_recorded()).then(|| super::why_unrecorded(analysis.meta())),
            groups: shown.collect(),
            other_groups,
            total: total.data(),
            allocator: now.allocator.data(),
        }
    }

    /// Returns the groups as text, to stand below the stacks of the heap.
    #[must_use]
    pub fn text(&self, style: Style) -> String {
        let mut out = String::new();
        // Writing to a string can't fail.
        let _ = self.write(style, &mut out);
        out
    }

    fn write(&self, style: Style, out: &mut String) -> fmt::Result {
        if let Some(why) = self.why_not {
            return writeln!(out, "\nmappings   the recording does not tell of them: {why}");
        }
        writeln!(
            out,
            "\n{:>8} {:>11} {:>11} {:>11}  mappings",
            "number", "size", "RSS", "peak RSS"
        )?;
        for g in &self.groups {
            let name =
                if g.frames.is_empty() { g.name.clone() } else { format!("stack {}", g.name) };
            let (size, rss, peak) = (bytes(g.size), bytes(g.rss), bytes(g.peak_rss));
            writeln!(out, "{:>8} {size:>11} {rss:>11} {peak:>11}  {name}", g.count)?;
            if !g.frames.is_empty() {
                frame_lines(&g.frames, false, style, out)?;
            }
        }
        if self.other_groups > 0 {
            writeln!(
                out,
                "{} (--top 0 shows all)",
                count(self.other_groups, "other group", "other groups")
            )?;
        }
        let (t, a) = (&self.total, &self.allocator);
        writeln!(out, "mappings   {} resident of {}", bytes(t.rss), bytes(t.size))?;
        let where_to = if self.what == What::All {
            "not among these, as its blocks are above"
        } else {
            "among these"
        };
        writeln!(out, "allocator  {} resident of {}, {where_to}", bytes(a.rss), bytes(a.size))
    }
}
