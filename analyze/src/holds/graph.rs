//! A scan as a graph of roots and blocks, for files.

use super::{Heap, Holders, Memory, Root, RootData};
use crate::Analysis;
use crate::export::graph::{Graph, GraphNode, GraphPointer, TakeNode, TakePointer};
use crate::live::Names;
use std::collections::{HashMap, HashSet};
use std::io;

/// The blocks, roots and pointers of a scan, with their names.
pub struct ScanGraph<'a> {
    pub(super) heap: &'a Heap,
    pub(super) roots: &'a HashMap<Root, RootData>,
    pub(super) names: &'a Names,
    pub(super) classes: HashMap<u64, String>,
}

impl<'a> ScanGraph<'a> {
    /// Creates the graph, and looks up the functions that asked for its blocks.
    pub fn new<M: Memory>(of: &'a Holders<M>, analysis: &Analysis, names: &'a mut Names) -> Self {
        let Holders { heap, roots, .. } = of;
        let (mut stacks, mut tables) = (HashSet::new(), HashSet::new());
        for b in heap.blocks() {
            stacks.extend(b.stack);
            tables.extend(b.class);
        }
        names.look_up_in(analysis, stacks);
        let named = |table: u64| Some((table, of.class(table)?));
        let classes = tables.into_iter().filter_map(named).collect();
        Self { heap, roots, names, classes }
    }

    fn first_block(&self) -> u64 {
        self.heap.roots().len() as u64
    }
}

impl Graph for ScanGraph<'_> {
    fn each_node(&self, take: TakeNode<'_>) -> io::Result<()> {
        for (id, root) in (0..).zip(self.heap.roots()) {
            let Some(data) = self.roots.get(root) else { continue };
            take(GraphNode {
                id,
                kind: data.kind.word(),
                name: Some(&data.name),
                address: data.start(),
                ..GraphNode::default()
            })?;
        }
        let mut labels: HashMap<u32, String> = HashMap::new();
        for (id, b) in (self.first_block()..).zip(self.heap.blocks()) {
            let label =
                b.stack.map(|s| &**labels.entry(s).or_insert_with(|| self.names.get(s).label()));
            take(GraphNode {
                id,
                kind: if b.stack.is_some() { "block" } else { "freed" },
                name: None,
                address: Some(b.address),
                size: Some(b.size),
                stack: b.stack,
                class: b.class.and_then(|c| self.classes.get(&c)).map(String::as_str),
                allocated_by: label,
            })?;
        }
        Ok(())
    }

    fn each_pointer(&self, take: TakePointer<'_>) -> io::Result<()> {
        let first = self.first_block();
        // A stack has a pointer to each of its frames.
        for to in 0..self.heap.roots().len() as u32 {
            if let Some(from) = self.heap.root_above(to) {
                take(GraphPointer { from: from.into(), to: to.into(), at: None })?;
            }
        }
        for (root, to, at) in self.heap.root_pointers() {
            let at = Some(at).filter(|at| *at != 0);
            take(GraphPointer { from: root.into(), to: first + u64::from(to), at })?;
        }
        for (from, b) in (first..).zip(self.heap.blocks()) {
            for to in b.to {
                take(GraphPointer { from, to: first + u64::from(*to), at: None })?;
            }
        }
        Ok(())
    }
}
