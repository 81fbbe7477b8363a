//! The names of a recording's stacks, looked up once for all requests.

use prof_analyze::Analysis;
use prof_analyze::export::Profile;
use prof_analyze::heap::BlockStats;
use prof_analyze::report::FrameData;
use prof_analyze::symbols::Frame;
use serde::Serialize;
use std::collections::HashMap;

/// A function in a module, as trees and flame graphs show it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ModuleFunction {
    /// The function or, if that is not known, the address in the module's file, or the address itself.
    pub name: String,
    /// Path of the module.
    pub module: Option<String>,
}

/// A stack.
pub(crate) struct Stack {
    /// Indices of [`Names::places`], innermost first.
    pub places: Vec<u32>,
    /// Index in `places` of the frame that asked for the memory.
    pub asker: usize,
}

/// The names of all stacks of a recording.
pub(crate) struct Names {
    pub profile: Profile,
    pub places: Vec<ModuleFunction>,
    stacks: HashMap<u32, Stack>,
    by_node: HashMap<u32, usize>,
}

fn place(f: &Frame) -> ModuleFunction {
    let f = FrameData::new(f);
    ModuleFunction { name: f.function.or(f.offset).unwrap_or(f.address), module: f.module }
}

impl Names {
    /// Looks the names of all stacks up.
    pub(crate) fn new(analysis: &Analysis) -> Self {
        let profile = Profile::new(analysis);
        let (mut ids, mut places) = (HashMap::new(), Vec::new());
        let mut stacks = HashMap::new();
        let mut by_node = HashMap::new();
        for (i, s) in profile.stacks.iter().enumerate() {
            let of = profile.frames(s).map(|f| {
                *ids.entry(place(f)).or_insert_with_key(|p: &ModuleFunction| {
                    places.push(p.clone());
                    places.len() as u32 - 1
                })
            });
            let places = of.collect();
            let asker = profile.asker(s).unwrap_or(0);
            stacks.insert(s.node, Stack { places, asker });
            by_node.insert(s.node, i);
        }
        Self { profile, places, stacks, by_node }
    }

    /// Returns a stack by its number in the recording.
    pub(crate) fn stack(&self, node: u32) -> Option<&Stack> {
        self.stacks.get(&node)
    }

    /// Returns the frames of a stack, innermost first.
    pub(crate) fn frames(&self, node: u32) -> impl DoubleEndedIterator<Item = &Frame> {
        let stack = self.by_node.get(&node).map(|i| &self.profile.stacks[*i]);
        stack.into_iter().flat_map(|s| self.profile.frames(s))
    }

    /// Returns whether the outer frames of a stack are missing.
    pub(crate) fn is_cut(&self, node: u32) -> bool {
        self.by_node.get(&node).is_some_and(|i| self.profile.stacks[*i].truncated)
    }
}

/// Figures as JSON has them.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct BlockStatsOf {
    pub live_bytes: u64,
    pub live_count: u64,
    pub peak_bytes: u64,
    pub peak_count: u64,
    pub allocations: u64,
    pub reallocations: u64,
    pub allocated_bytes: u64,
    pub temporary: u64,
}

impl From<&BlockStats> for BlockStatsOf {
    fn from(f: &BlockStats) -> Self {
        Self {
            live_bytes: f.live_bytes,
            live_count: f.live_count,
            peak_bytes: f.peak_bytes,
            peak_count: f.peak_count,
            allocations: f.allocations,
            reallocations: f.reallocations,
            allocated_bytes: f.allocated_bytes,
            temporary: f.temporary,
        }
    }
}
