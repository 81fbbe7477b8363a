//! Builds stacks with names and figures, which most formats are made of.

use super::Cost;
use crate::askers::{Askers, Seen};
use crate::load::Pc;
use crate::model::{Analysis, Figures, Totals};
use crate::progress::Step;
use crate::symbols::{Frame, Symbolizer};
use std::collections::HashMap;
use std::sync::Arc;

/// A code address with its frames.
#[derive(Clone, Debug)]
pub struct Location {
    /// The code address.
    pub pc: Pc,
    /// Its frames: the function itself, preceded by those inlined into it, innermost first.
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
    /// Counts and bytes of its blocks.
    pub figures: Figures,
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
        let mut symbols = Symbolizer::new(analysis);
        let askers = Askers::new(analysis, &mut symbols);
        let mut known: HashMap<Pc, u32> = HashMap::new();
        let mut locations = Vec::new();
        let mut locate = |pc: Pc| {
            *known.entry(pc).or_insert_with(|| {
                locations.push(Location { pc, frames: symbols.frames(pc) });
                locations.len() as u32 - 1
            })
        };
        let step = Step::begin("looking names up", analysis.groups().len() as u64);
        let stack = |g: &crate::model::Group| {
            step.add(1);
            Stack {
                node: g.node,
                locations: analysis.meta().stack(g.node).into_iter().map(&mut locate).collect(),
                truncated: analysis.meta().is_cut(g.node),
                figures: g.figures,
            }
        };
        let stacks = analysis.groups().iter().map(stack).collect();
        Self { stacks, locations, totals: *analysis.totals(), askers }
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
