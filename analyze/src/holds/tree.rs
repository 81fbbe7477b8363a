//! The tree of holders from above, and the sums of stacks.

use super::{Holders, Memory};
use crate::job::Job;
use prof_graph::{Held, Holder, Sum};
use std::cmp::Reverse;
use std::collections::HashMap;

/// Blocks that may be passed over to compute exactly what stacks retain, for all stacks together.
const EXACT: u64 = 100_000_000;

/// The nodes below each node, those that retain most first.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// For each node where those below it begin in `below`, and the last one's end.
    starts: Vec<u32>,
    below: Vec<u32>,
}

impl Tree {
    /// Makes the lists of a tree of holders.
    #[must_use]
    pub fn new(held: &Held) -> Self {
        let nodes = &held.nodes;
        let mut starts = vec![0u32; nodes.len() + 1];
        nodes.iter().skip(1).for_each(|n| starts[n.parent as usize + 1] += 1);
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        let mut below: Vec<u32> = (1..nodes.len() as u32).collect();
        below.sort_unstable_by_key(|i| {
            let n = &nodes[*i as usize];
            (n.parent, Reverse(n.retained), *i)
        });
        Self { starts, below }
    }

    /// Returns the nodes right below a node.
    #[must_use]
    pub fn below(&self, node: u32) -> &[u32] {
        let at = |i: usize| self.starts.get(i).map_or(0, |n| *n as usize);
        self.below.get(at(node as usize)..at(node as usize + 1)).unwrap_or_default()
    }
}

/// Figures of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackSums {
    /// Number of the stack in the recording, or [`BEFORE`](super::BEFORE).
    pub stack: u32,
    /// Sum of the stack's reachable blocks.
    pub own: Sum,
    /// Sum of these blocks and of all that would be unreachable without them.
    pub retained: Sum,
    /// There may be more that only several of its blocks hold together.
    pub at_least: bool,
    /// The table of virtual functions that most of its blocks begin with, and how many do.
    pub class: Option<(u64, u64)>,
}

impl<M: Memory> Holders<M> {
    /// Returns the nodes of the roots that hold something, those that retain most first.
    pub fn root_nodes(&self) -> impl Iterator<Item = u32> {
        let nodes = &self.held.nodes;
        self.tree.below(0).iter().copied().filter(|i| {
            let n = &nodes[*i as usize];
            matches!(n.holder, Holder::Root(_)) && n.retained.blocks > 0
        })
    }

    /// Returns the nodes that hang on several roots, those that retain most first.
    #[must_use]
    pub fn shared_nodes(&self) -> Vec<u32> {
        let is_stack = |i: &u32| matches!(self.held.nodes[*i as usize].holder, Holder::Stack(_));
        self.tree.below(0).iter().copied().filter(is_stack).collect()
    }

    /// Returns the sum of what nodes retain.
    #[must_use]
    pub fn sum(&self, nodes: &[u32]) -> Sum {
        let mut sum = Sum::default();
        nodes.iter().for_each(|i| sum += self.held.nodes[*i as usize].retained);
        sum
    }

    /// Returns the stacks that retain most, at most `top`. If the job of this thread is cancelled, what they retain is a
    /// lower bound.
    #[must_use]
    pub fn stacks(&self, top: usize) -> Vec<StackSums> {
        let mut by_stack: HashMap<u32, StackSums> = HashMap::new();
        for n in &self.held.nodes {
            if let Holder::Stack(stack) = n.holder {
                let sums = by_stack.entry(stack).or_default();
                (sums.stack, sums.at_least) = (stack, true);
                sums.own += n.own;
                sums.retained += n.retained;
                sums.class = match (sums.class, n.class) {
                    (Some(a), Some(b)) if a.1 >= b.1 => Some(a),
                    (a, b) => b.or(a),
                };
            }
        }
        let mut all: Vec<StackSums> = by_stack.into_values().collect();
        let order = |s: &StackSums| (Reverse(s.retained), s.stack);
        all.sort_by_key(order);
        all.truncate(top);
        let each = self.held.nodes.first().map_or(1, |n| n.retained.blocks.max(1));
        let exact = (EXACT / each) as usize;
        for s in all.iter_mut().take(exact) {
            let found = self.heap.retained_by(&self.held, s.stack, &Job::is_current_cancelled);
            let Some(retained) = found else { break };
            (s.retained, s.at_least) = (retained, false);
        }
        all.sort_by_key(order);
        all
    }
}
