//! The stack tree of a recording, and what of it and of the code addresses has been written.
//!
//! In the ring each segment names its stack nodes for itself. Here each (parent, code address) gets an id
//! for the recording. What was given is remembered for the nodes that were named last only: a program
//! with millions of stacks must cost neither memory without bounds nor a cache miss for each node. So
//! a node may have several ids, which readers take as one.

use crate::output::Output;
use prof_arch::native::Rule;
use prof_trace::event::DEFINE_NODES;
use prof_trace::pcs::{pc_parts, rule};
use prof_trace::records::{NodeRun, PC_IS_TRAMPOLINE, Pcs, kind};
use prof_trace::shared::{MODULES, PC_LEVEL0, PC_LEVELS, Shared};

/// Frames of one stack; the hook cuts stacks long before.
const MAX_DEPTH: u16 = 4096;
/// Pairs of nodes whose ids are remembered; 32 bytes each, which together fit into a second-level cache.
const SETS: usize = 1 << 14;
/// Bytes of nodes after which another chunk begins.
const RUN_BYTES: usize = 1 << 19;
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

/// The nodes that were named last, by parent and code address: what has no place any more gets
/// another id when it is named again.
#[derive(Debug)]
struct Cache {
    sets: Box<[Set]>,
}

/// Entries that share a place, the one that was used last in front. An id of 0: nothing.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(32))]
struct Set {
    keys: [u64; 2],
    ids: [u32; 2],
}

impl Cache {
    fn new(sets: usize) -> Self {
        Self { sets: vec![Set::default(); sets.next_power_of_two()].into() }
    }

    /// The id of the node with this key and hash; or else `new` is, from now on, if it is not 0.
    #[inline(always)]
    fn get(&mut self, hash: u32, key: u64, new: u32) -> u32 {
        let mask = self.sets.len() - 1;
        let set = &mut self.sets[(hash >> 16) as usize & mask];
        if set.keys[0] == key && set.ids[0] != 0 {
            return set.ids[0];
        }
        let id = if set.keys[1] == key && set.ids[1] != 0 { set.ids[1] } else { new };
        if id != 0 {
            *set = Set { keys: [key, set.keys[0]], ids: [id, set.ids[0]] };
        }
        id
    }
}

/// A stack node of the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its id; 0: none.
    pub id: u32,
    /// Hash of its code addresses up to the root: where it is looked for. Unlike an id it can be told
    /// before the parent has been found, so that the nodes of a stack are fetched side by side.
    hash: u32,
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
    nodes: Cache,
    last: u32,
    pcs: Bits,
    modules: Bits,
    /// New nodes, in chunks.
    runs: Vec<NodeRun>,
    pc_triples: Vec<u64>,
    /// Modules that were named for the first time.
    pub new_modules: Vec<u16>,
}

impl Tree {
    /// With nothing written.
    pub fn new() -> Self {
        Self {
            nodes: Cache::new(SETS),
            last: 0,
            pcs: Bits::new(PC_LEVEL0 * ((1 << PC_LEVELS) - 1) + 1),
            modules: Bits::new(MODULES + 1),
            runs: Vec::new(),
            pc_triples: Vec::new(),
            new_modules: Vec::new(),
        }
    }

    /// Goes on with a recording whose nodes have ids up to `last`.
    pub fn restore(&mut self, last: u32) {
        self.last = self.last.max(last);
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

    #[inline(always)]
    fn child(&mut self, shared: &Shared, parent: Node, pc: u32) -> Node {
        if parent.depth >= MAX_DEPTH {
            return Node { is_cut: true, ..parent };
        }
        // 0 when all ids are used up.
        let new = self.last.wrapping_add(1);
        let hash = (parent.hash.rotate_left(7) ^ pc).wrapping_mul(0x9e37_79b1);
        let id = self.nodes.get(hash, key(parent.id, pc), new);
        if id == 0 {
            return Node { is_cut: true, ..parent };
        }
        if id == new {
            self.last = new;
            self.announce(shared, new, parent.id, pc);
        }
        Node { id, hash, depth: parent.depth + 1, is_cut: parent.is_cut }
    }

    fn announce(&mut self, shared: &Shared, id: u32, parent: u32, pc: u32) {
        match self.runs.last_mut().filter(|r| r.pairs.len() < RUN_BYTES) {
            Some(run) => run.push(id, parent, pc),
            None => {
                let mut run = NodeRun::default();
                run.push(id, parent, pc);
                self.runs.push(run);
            }
        }
        self.see_pc(shared, pc);
    }

    /// Whether it is time to [`Tree::write`], within a pass.
    pub fn is_full(&self) -> bool {
        self.runs.len() > 1
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
        for run in self.runs.drain(..) {
            out.put(kind::NODE_RUN, &run.encode());
        }
        self.pc_triples.clear();
    }
}

fn key(parent: u32, pc: u32) -> u64 {
    u64::from(parent) << 32 | u64::from(pc)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(tree: &Tree) -> Vec<u64> {
        tree.runs.iter().flat_map(|r| r.nodes().expect("nodes").triples).collect()
    }

    #[test]
    fn a_node_keeps_its_id_while_it_is_remembered() {
        let ring = crate::ring_copy::empty();
        let (mut tree, mut a, mut b) = (Tree::new(), Names::default(), Names::default());
        tree.define(&ring, &mut a, 0, [5, 6, 7]);
        tree.define(&ring, &mut b, 0, [5, 0, 0]);
        tree.define(&ring, &mut b, 1, [8, 0, 0]);
        tree.define(&ring, &mut b, 1, [6, 9, 0]);
        let ids = |n: &Names, k: u32| (1..=k).map(|i| n.get(i).id).collect::<Vec<_>>();
        assert_eq!((ids(&a, 4), ids(&b, 4)), (vec![1, 2, 3, 0], vec![1, 4, 2, 5]));
        assert_eq!(announced(&tree)[9..12], [4, 1, 8]);
        let mut again = Tree::new();
        again.restore(tree.last);
        let mut c = Names::default();
        again.define(&ring, &mut c, 0, [5, 6, 10]);
        assert_eq!(ids(&c, 3), [6, 7, 8]);
        assert_eq!(announced(&again), [6, 0, 5, 7, 6, 6, 8, 7, 10]);
    }

    #[test]
    fn a_forgotten_node_gets_another_id() {
        let ring = crate::ring_copy::empty();
        let (mut tree, mut names) = (Tree::new(), Names::default());
        tree.nodes = Cache::new(1);
        for pc in [1, 2, 1, 3, 1, 2] {
            tree.define(&ring, &mut names, 0, [pc, 0, 0]);
        }
        let got: Vec<_> = (1..7).map(|i| names.get(i).id).collect();
        assert_eq!(got, [1, 2, 1, 3, 1, 4]);
        assert_eq!(announced(&tree), [1, 0, 1, 2, 0, 2, 3, 0, 3, 4, 0, 2]);
    }

    #[test]
    fn what_is_cut_is_known() {
        let ring = crate::ring_copy::empty();
        let (mut tree, mut names) = (Tree::new(), Names::default());
        // There are no more ids.
        tree.restore(u32::MAX - 2);
        tree.define(&ring, &mut names, 0, [1, 2, 3]);
        tree.define(&ring, &mut names, 3, [4, 0, 0]);
        tree.define(&ring, &mut names, 0, [1, 9, 0]);
        let got: Vec<_> = (1..7).map(|i| (names.get(i).id, names.get(i).is_cut)).collect();
        let (a, b) = (u32::MAX - 1, u32::MAX);
        assert_eq!(got, [(a, false), (b, false), (b, true), (b, true), (a, false), (a, true)]);
        // A chain that is deeper than any stack.
        (tree, names) = (Tree::new(), Names::default());
        for i in 0..2 * u32::from(MAX_DEPTH) {
            tree.define(&ring, &mut names, i, [7, 0, 0]);
        }
        assert!(names.get(2 * u32::from(MAX_DEPTH)).is_cut);
        assert!(!names.get(u32::from(MAX_DEPTH)).is_cut);
        assert_eq!(announced(&tree).len(), 3 * usize::from(MAX_DEPTH));
    }
}
