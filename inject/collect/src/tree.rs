//! The stack tree of a recording, and what of it and of the code addresses has been written.
//!
//! In the ring each segment names its stack nodes for itself. Here each (parent, code address) gets the
//! one id that it has in the recording.

use crate::output::Output;
use prof_arch::native::Rule;
use prof_trace::event::DEFINE_NODES;
use prof_trace::pcs::{pc_parts, rule};
use prof_trace::records::{Nodes, PC_IS_TRAMPOLINE, Pcs, kind};
use prof_trace::shared::{MODULES, PC_LEVEL0, PC_LEVELS, Shared};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Frames of one stack; the hook cuts stacks long before.
const MAX_DEPTH: u16 = 4096;
/// Nodes that are kept apart; what would come after them is counted as part of its parent.
const MAX_NODES: usize = 1 << 25;
/// Numbers in a chunk of triples.
const CHUNK_INTS: usize = 3 << 16;

/// A set of small numbers.
#[derive(Debug)]
pub struct Bits {
    words: Vec<u64>,
}

impl Bits {
    /// For numbers below `n`.
    pub fn new(n: usize) -> Self {
        Self { words: vec![0; n.div_ceil(64)] }
    }

    /// Whether it has `i`; `None` if it never can.
    #[inline(always)]
    pub fn get(&self, i: usize) -> Option<bool> {
        Some(self.words.get(i / 64)? >> (i % 64) & 1 == 1)
    }

    /// Adds `i`; false if it was there or can't be.
    #[inline(always)]
    pub fn add(&mut self, i: usize) -> bool {
        let Some(w) = self.words.get_mut(i / 64) else { return false };
        let new = *w >> (i % 64) & 1 == 0;
        *w |= 1 << (i % 64);
        new
    }
}

/// Spreads the keys of nodes; they are chosen by nobody who could gain by collisions but the target,
/// whose recording then takes longer.
#[derive(Debug, Default)]
struct NodeHasher(u64);

impl Hasher for NodeHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }

    fn write_u64(&mut self, v: u64) {
        let wide = u128::from(self.0 ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        self.0 = (wide >> 64) as u64 ^ wide as u64;
    }
}

/// A stack node of the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its id; 0: none.
    pub id: u32,
    /// Frames up to the root.
    depth: u16,
    /// It stands for others that were not told apart any more.
    pub is_cut: bool,
}

/// The nodes of one segment, by their numbers there.
#[derive(Debug, Default)]
pub struct Names(Vec<Node>);

impl Names {
    /// The node with this number; none for 0, and for a number that was not defined.
    #[inline(always)]
    pub fn get(&self, number: u32) -> Node {
        (number as usize).checked_sub(1).and_then(|i| self.0.get(i)).copied().unwrap_or_default()
    }

    /// For a new segment.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// The nodes that there are, and what of them and the code addresses has been written.
#[derive(Debug)]
pub struct Tree {
    nodes: HashMap<u64, u32, BuildHasherDefault<NodeHasher>>,
    max_nodes: usize,
    last: u32,
    pcs: Bits,
    modules: Bits,
    node_triples: Vec<u64>,
    pc_triples: Vec<u64>,
    /// Modules that were named for the first time.
    pub new_modules: Vec<u16>,
}

impl Tree {
    /// With nothing written.
    pub fn new() -> Self {
        Self {
            nodes: HashMap::default(),
            max_nodes: MAX_NODES,
            last: 0,
            pcs: Bits::new(PC_LEVEL0 * ((1 << PC_LEVELS) - 1) + 1),
            modules: Bits::new(MODULES + 1),
            node_triples: Vec::new(),
            pc_triples: Vec::new(),
            new_modules: Vec::new(),
        }
    }

    /// Goes on with the nodes of a recording: triples of id, parent and code address id.
    pub fn restore(&mut self, triples: &[u64]) {
        for [id, parent, pc] in triples.as_chunks::<3>().0 {
            let (Ok(id), Ok(parent), Ok(pc)) =
                (u32::try_from(*id), u32::try_from(*parent), u32::try_from(*pc))
            else {
                continue;
            };
            self.nodes.insert(key(parent, pc), id);
            self.last = self.last.max(id);
        }
    }

    /// A segment defines a chain of nodes below its number `parent`.
    #[inline]
    pub fn define(
        &mut self,
        shared: &Shared,
        names: &mut Names,
        parent: u32,
        pcs: [u32; DEFINE_NODES],
    ) {
        let mut at = names.get(parent);
        for pc in pcs.into_iter().filter(|pc| *pc != 0) {
            at = self.child(shared, at, pc);
            names.0.push(at);
        }
    }

    fn child(&mut self, shared: &Shared, parent: Node, pc: u32) -> Node {
        let cut = Node { is_cut: true, ..parent };
        if parent.depth >= MAX_DEPTH {
            return cut;
        }
        let full = self.nodes.len() >= self.max_nodes || self.last == u32::MAX;
        let id = match self.nodes.entry(key(parent.id, pc)) {
            std::collections::hash_map::Entry::Occupied(e) => *e.get(),
            _ if full => return cut,
            std::collections::hash_map::Entry::Vacant(e) => {
                self.last += 1;
                e.insert(self.last);
                self.node_triples.extend([self.last, parent.id, pc].map(u64::from));
                self.see_pc(shared, pc);
                self.last
            }
        };
        Node { id, depth: parent.depth + 1, is_cut: parent.is_cut }
    }

    fn see_pc(&mut self, shared: &Shared, id: u32) {
        if id == 0 || self.pcs.get(id as usize) != Some(false) {
            return;
        }
        let Some((pc, module)) = pc_parts(shared, id) else { return };
        self.pcs.add(id as usize);
        // The caller of a signal trampoline is no caller: readers must know.
        let rule = rule(shared, id);
        let signal = if Rule::from_u64(rule).is_signal() { PC_IS_TRAMPOLINE } else { 0 };
        self.pc_triples.extend([u64::from(id), pc, u64::from(module) | signal]);
        if module != 0 && self.modules.add(module as usize) {
            self.new_modules.push(module);
        }
    }

    /// Adds what was found since the last time to the recording: addresses, then nodes.
    pub fn write(&mut self, out: &mut Output) {
        for part in self.pc_triples.chunks(CHUNK_INTS) {
            out.put(kind::PCS, &Pcs { triples: part.to_vec() }.encode());
        }
        for part in self.node_triples.chunks(CHUNK_INTS) {
            out.put(kind::NODES, &Nodes { triples: part.to_vec() }.encode());
        }
        self.pc_triples.clear();
        self.node_triples.clear();
    }
}

fn key(parent: u32, pc: u32) -> u64 {
    u64::from(parent) << 32 | u64::from(pc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_one_id_in_all_segments() {
        let ring = crate::ring_copy::empty();
        let (mut tree, mut a, mut b) = (Tree::new(), Names::default(), Names::default());
        tree.define(&ring, &mut a, 0, [5, 6, 7]);
        tree.define(&ring, &mut b, 0, [5, 0, 0]);
        tree.define(&ring, &mut b, 1, [8, 0, 0]);
        tree.define(&ring, &mut b, 1, [6, 9, 0]);
        let ids = |n: &Names, k: u32| (1..=k).map(|i| n.get(i).id).collect::<Vec<_>>();
        assert_eq!((ids(&a, 4), ids(&b, 4)), (vec![1, 2, 3, 0], vec![1, 4, 2, 5]));
        assert_eq!(tree.node_triples.as_chunks::<3>().0[3], [4, 1, 8]);
        let mut again = Tree::new();
        again.restore(&tree.node_triples);
        let mut c = Names::default();
        again.define(&ring, &mut c, 0, [5, 6, 10]);
        assert_eq!(ids(&c, 3), [1, 2, 6]);
    }

    #[test]
    fn a_full_tree_says_what_it_cuts() {
        let ring = crate::ring_copy::empty();
        let (mut tree, mut names) = (Tree::new(), Names::default());
        tree.max_nodes = 2;
        tree.define(&ring, &mut names, 0, [1, 2, 3]);
        tree.define(&ring, &mut names, 3, [4, 0, 0]);
        let got: Vec<_> = (1..5).map(|i| (names.get(i).id, names.get(i).is_cut)).collect();
        assert_eq!(got, [(1, false), (2, false), (2, true), (2, true)]);
        // Nor does a chain that is deeper than any stack.
        tree.max_nodes = 1 << 20;
        names.clear();
        for i in 0..2 * u32::from(MAX_DEPTH) {
            tree.define(&ring, &mut names, i, [7, 0, 0]);
        }
        assert!(names.get(2 * u32::from(MAX_DEPTH)).is_cut);
        assert!(tree.nodes.len() <= 2 + usize::from(MAX_DEPTH));
    }
}
