//! The function that asked for the blocks of a stack.

use crate::recording::Recording;
use std::collections::HashMap;

/// Finds the functions that asked for the blocks of stacks.
pub(crate) struct Askers<'a> {
    of: &'a Recording,
    /// Indices of the groups of stacks, by node.
    groups: HashMap<u32, usize>,
}

impl<'a> Askers<'a> {
    pub(crate) fn new(of: &'a Recording) -> Self {
        let groups = of.analysis().groups().iter().enumerate().map(|(i, g)| (g.node, i));
        Self { of, groups: groups.collect() }
    }

    /// Returns the function that asked for the blocks of a stack.
    pub(crate) fn function(&self, node: u32) -> String {
        let stacks = self.of.index().stacks();
        let place = self.groups.get(&node).and_then(|g| stacks.stack(*g).get(stacks.asker(*g)));
        let place = place.map(|p| stacks.place(*p));
        place.and_then(|p| p.function.clone().or_else(|| p.offset.clone())).unwrap_or_default()
    }
}
