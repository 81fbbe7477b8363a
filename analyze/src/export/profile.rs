//! Builds stacks with names and figures, which most formats are made of.

use super::Cost;
use crate::analysis::Analysis;
use crate::askers::{Askers, Seen};
use crate::heap::{BlockStats, Totals};
use crate::load::Pc;
use crate::maps::HeldGroup;
use crate::progress::Step;
use crate::symbols::{Frame, Symbolizer};
use std::collections::HashMap;
use std::sync::Arc;

/// A code address with its frames.
#[derive(Clone, Debug)]
pub struct Location {
    /// The code address.
    pub pc: Pc,
    /// Frames at the address: the function itself, preceded by those inlined into it, innermost first.
    pub frames: Arc<[Frame]>,
}

/// A stack with its figures.
#[derive(Clone, Debug)]
pub struct Stack {
    /// Number of the stack in the recording.
    pub node: u32,
    /// Indices into [`Profile::locations`], innermost first.
    pub locations: Vec<u32>,
    /// The stack was cut short: outer frames are missing.
    pub truncated: bool,
    /// Counts and bytes of its blocks. Of mappings: live bytes are the resident ones, allocations the mappings made, and
    /// allocated bytes their address space.
    pub figures: BlockStats,
    /// The stack is one of mappings, not of blocks.
    pub of_maps: bool,
}

/// All stacks of a recording that have at least one selected block.
pub struct Profile {
    /// All code addresses.
    pub locations: Vec<Location>,
    /// All stacks.
    pub stacks: Vec<Stack>,
    /// Totals of all stacks.
    pub totals: Totals,
    pub(super) askers: Askers,
}

impl Profile {
    /// Symbolises all stacks of an analysis.
    pub fn new(analysis: &Analysis) -> Self {
        Self::of(analysis, true, &[])
    }

    /// Symbolises the stacks of an analysis, if `blocks` is set, and then those of mappings. Mappings whose stack is not
    /// known get one that says so, and has their name.
    pub(super) fn of(analysis: &Analysis, blocks: bool, maps: &[HeldGroup]) -> Self {
        let mut symbols = Symbolizer::new(analysis);
        let askers = Askers::new(analysis, &mut symbols);
        let groups = if blocks { analysis.groups() } else { &[] };
        let step = Step::begin("looking names up", (groups.len() + maps.len()) as u64);
        let mut locator =
            Locator { symbols, known: HashMap::new(), locations: Vec::new(), seen: None };
        let mut stacks = Vec::with_capacity(groups.len() + maps.len());
        for g in groups {
            step.add(1);
            stacks.push(locator.stack(analysis, g.node, g.figures));
        }
        let mut totals = if blocks { *analysis.totals() } else { Totals::default() };
        for g in maps {
            step.add(1);
            let figures = BlockStats {
                live_count: g.sums.count,
                live_bytes: g.sums.rss,
                peak_count: g.sums.count,
                peak_bytes: g.sums.peak_rss,
                allocations: g.sums.made,
                allocated_bytes: g.sums.made_bytes,
                ..BlockStats::default()
            };
            totals.figures.live_count += figures.live_count;
            totals.figures.live_bytes =
                totals.figures.live_bytes.saturating_add(figures.live_bytes);
            let mut stack = locator.stack(analysis, g.node, figures);
            if g.node == 0 {
                stack.locations = locator.named(&g.name);
            }
            stacks.push(Stack { of_maps: true, ..stack });
        }
        Self { stacks, locations: locator.locations, totals, askers }
    }

    /// Returns the frames of a stack, innermost first, including inlined ones.
    pub fn frames<'a>(&'a self, stack: &'a Stack) -> impl DoubleEndedIterator<Item = &'a Frame> {
        stack.locations.iter().flat_map(|l| self.locations[*l as usize].frames.iter())
    }

    /// Returns the index, in [`Self::frames`], of the frame that asked for the memory; `None` for a stack without
    /// frames.
    pub fn asker(&self, stack: &Stack) -> Option<usize> {
        let frames: Vec<&Frame> = self.frames(stack).collect();
        Some(self.askers.find(|i| frames.get(i).map(|f| Seen::of(f)))?.asker)
    }
}

/// Numbers the code addresses of stacks.
struct Locator<'a> {
    symbols: Symbolizer<'a>,
    known: HashMap<Pc, u32>,
    locations: Vec<Location>,
    /// The outermost frame of mappings whose stack is not known.
    seen: Option<u32>,
}

impl Locator<'_> {
    fn stack(&mut self, analysis: &Analysis, node: u32, figures: BlockStats) -> Stack {
        let Self { symbols, known, locations, .. } = self;
        let mut locate = |pc: Pc| {
            *known.entry(pc).or_insert_with(|| {
                locations.push(Location { pc, frames: symbols.frames(pc) });
                locations.len() as u32 - 1
            })
        };
        let meta = analysis.meta();
        let locations = meta.stack(node).into_iter().map(&mut locate).collect();
        Stack { node, locations, truncated: meta.is_cut(node), figures, of_maps: false }
    }

    /// Adds a stack for mappings of a name.
    fn named(&mut self, name: &str) -> Vec<u32> {
        let locations = &mut self.locations;
        let mut add = |text: &str| {
            let frames = Arc::new([Frame { function: Some(text.into()), ..Frame::default() }]);
            locations.push(Location { pc: Pc::default(), frames });
            locations.len() as u32 - 1
        };
        let inner = add(name);
        let outer = self.seen.unwrap_or_else(|| add(SEEN));
        self.seen = Some(outer);
        vec![inner, outer]
    }
}

/// The outermost frame of mappings whose stack is not known.
const SEEN: &str = "[mapped: seen, not caught]";

impl Stack {
    /// Returns the value of a cost for this stack.
    pub fn cost(&self, cost: Cost) -> u64 {
        let f = &self.figures;
        match cost {
            Cost::Live | Cost::Leaked | Cost::Peak => f.live_bytes,
            Cost::Allocated => f.allocated_bytes,
            Cost::Allocations => f.allocations + f.reallocations,
            Cost::Temporary => f.temporary,
        }
    }
}

/// Returns the last component of a path.
pub(super) fn base(path: &str) -> &str {
    path.rsplit('/').find(|s| !s.is_empty()).unwrap_or(path)
}

/// Returns the label of a frame: its function, or else module and offset, or else its address.
pub(super) fn label(f: &Frame) -> String {
    match (&f.function, &f.module, f.offset) {
        (Some(name), ..) => super::one_line(name),
        (None, Some(m), Some(o)) => format!("{}+{o:#x}", super::one_line(base(m))),
        _ => format!("{:#x}", f.address),
    }
}
