//! The tree of holders: the dominator tree, collapsed by call stack.

use crate::edges::NONE;
use crate::heap::{Heap, Sum};
use std::collections::HashMap;

/// Greatest number of nodes of a [`Held`] tree. Blocks for which there would be more count as their holders' own.
const MOST_NODES: usize = 1 << 22;
/// Nodes above one in which the same stack is looked for.
const ABOVE: usize = 256;

/// A holder of blocks: a node of a [`Held`] tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// All roots together: what hangs on this node is held by several of them.
    All,
    /// A root, by its number. One that is a part of another stands below that.
    Root(u32),
    /// Blocks that one stack allocated.
    Stack(u32),
}

/// A node of the tree that says what would go with what: the dominator tree, in which the blocks of one stack below one
/// node are one node, and so are blocks of a stack that hold each other.
#[derive(Clone, Debug)]
pub struct Node {
    /// Index of the node above. The first one's is its own.
    pub parent: u32,
    /// The holder that the node stands for.
    pub holder: Holder,
    /// Blocks that are part of the holder itself.
    pub own: Sum,
    /// Blocks that would be unreachable without the holder, its own included.
    pub retained: Sum,
    /// The table of virtual functions that most of its blocks begin with, and how many do.
    pub class: Option<(u64, u64)>,
}

/// The tree of holders.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// The nodes. The first is the one of all roots; each other stands behind its parent.
    pub nodes: Vec<Node>,
    /// Blocks that no root leads to.
    pub unreachable: Sum,
}

/// Makes the tree that is shown of the dominator tree, whose nodes come parents first.
pub(crate) struct Builder<'a> {
    heap: &'a Heap,
    nodes: Vec<Node>,
    children: HashMap<(u32, u32), u32>,
    /// Number of a node's blocks that begin with the address of a table of virtual functions.
    classes: HashMap<(u32, u32), u64>,
}

impl<'a> Builder<'a> {
    pub(crate) fn new(heap: &'a Heap) -> Self {
        let mut b =
            Self { heap, nodes: Vec::new(), children: HashMap::new(), classes: HashMap::new() };
        b.push(0, Holder::All);
        b
    }

    fn push(&mut self, parent: u32, holder: Holder) -> u32 {
        let none = Sum::default();
        self.nodes.push(Node { parent, holder, own: none, retained: none, class: None });
        (self.nodes.len() - 1) as u32
    }

    pub(crate) fn root(&mut self, above: u32, root: u32) -> u32 {
        self.push(above, Holder::Root(root))
    }

    /// Counts a block below a node, and returns the node that it is part of.
    pub(crate) fn block(&mut self, above: u32, block: usize) -> u32 {
        let stack = self.heap.stacks[block];
        if stack == NONE {
            return above;
        }
        let mut at = above;
        for _ in 0..ABOVE {
            let node = &self.nodes[at as usize];
            if node.holder == Holder::Stack(stack) {
                return self.count(at, block);
            }
            if node.parent == at {
                break;
            }
            at = node.parent;
        }
        let known = self.children.get(&(above, stack)).copied();
        let node = match known {
            Some(node) => node,
            None if self.nodes.len() >= MOST_NODES => above,
            None => {
                let node = self.push(above, Holder::Stack(stack));
                self.children.insert((above, stack), node);
                node
            }
        };
        self.count(node, block)
    }

    fn count(&mut self, node: u32, block: usize) -> u32 {
        self.nodes[node as usize].own += self.heap.sum(block);
        let class = self.heap.edges.classes.get(block).copied().unwrap_or(NONE);
        if class != NONE {
            *self.classes.entry((node, class)).or_default() += 1;
        }
        node
    }

    pub(crate) fn finish(mut self) -> Held {
        for ((node, class), n) in self.classes {
            let known = &mut self.nodes[node as usize].class;
            let table = self.heap.edges.tables[class as usize];
            // Of two that are equally frequent the one at the higher address is chosen, so that the order in which a map
            // lists them does not matter.
            if known.is_none_or(|(t, m)| (n, t) > (m, table)) {
                *known = Some((table, n));
            }
        }
        for i in (0..self.nodes.len()).rev() {
            let own = self.nodes[i].own;
            self.nodes[i].retained += own;
            let (parent, all) = (self.nodes[i].parent as usize, self.nodes[i].retained);
            if parent != i {
                self.nodes[parent].retained += all;
            }
        }
        Held { nodes: self.nodes, unreachable: Sum::default() }
    }
}
