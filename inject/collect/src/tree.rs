//! The stack tree of a recording, and which of its nodes and code addresses have been written.
//!
//! In the ring each segment numbers its stack nodes separately. Here each (parent, code address) gets an ID for the
//! recording. Only the IDs of the latest nodes are remembered: a program with millions of stacks must cost neither
//! unbounded memory nor a cache miss for each node. So a node may have several IDs, which readers treat as one.

use crate::known::Known;
use crate::output::Output;
use prof_arch::native::Rule;
use prof_trace::event::DEFINE_NODES;
use prof_trace::ids::{PcId, SegmentNode};
use prof_trace::pcs::{pc_parts, rule};
use prof_trace::records::{NodeRun, PC_IS_TRAMPOLINE, Pcs, kind};
use prof_trace::shared::{MODULES, PC_LEVEL0, PC_LEVELS, Shared};

/// Greatest depth of a stack; the hook cuts stacks long before.
const MAX_DEPTH: u16 = 4096;
/// Number of cache sets, each of two nodes and 32 bytes; together they fit into a second-level cache.
const SETS: usize = 1 << 14;
/// Number of bytes of nodes after which another chunk begins.
const RUN_BYTES: usize = 1 << 19;
/// Number of integers in a chunk of triples.
const CHUNK_INTS: usize = 3 << 16;

/// A set of small integers.
#[derive(Debug)]
pub(crate) struct Bits {
    words: Vec<u64>,
}

impl Bits {
    /// Creates an empty set of integers below `n`.
    pub(crate) fn new(n: usize) -> Self {
        Self { words: vec![0; n.div_ceil(64)] }
    }

    /// Returns whether it contains `i`; `None` if `i` is out of range.
    #[inline(always)]
    pub(crate) fn get(&self, i: usize) -> Option<bool> {
        Some(self.words.get(i / 64)? >> (i % 64) & 1 == 1)
    }

    /// Adds `i`; returns false if it was contained already, or is out of range.
    #[inline(always)]
    pub(crate) fn add(&mut self, i: usize) -> bool {
        let Some(w) = self.words.get_mut(i / 64) else { return false };
        let new = *w >> (i % 64) & 1 == 0;
        *w |= 1 << (i % 64);
        new
    }
}

/// A cache of nodes by parent and code address. A node that was evicted gets another ID when it occurs again.
#[derive(Debug)]
struct Cache {
    sets: Box<[Set]>,
}

/// Entries with the same index, the most recently used first. An ID of 0 marks an empty entry.
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

    /// Returns the ID of the node with this key and hash. If it is not cached, it is added with the ID `new`, unless
    /// that is 0.
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

    /// Changes the ID of the node that was added last, whose hash is given.
    fn rename(&mut self, hash: u32, id: u32) {
        let mask = self.sets.len() - 1;
        self.sets[(hash >> 16) as usize & mask].ids[0] = id;
    }
}

/// A stack node of the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Node {
    /// ID of the node; 0: none.
    pub id: u32,
    /// Hash of its code addresses up to the root, which is its place in the cache. Unlike an ID it can be computed
    /// before the parent has been found, so that look-ups of a stack's nodes overlap.
    hash: u32,
    /// Number of frames up to the root.
    depth: u16,
    /// The stack was cut here: the node represents all deeper ones.
    pub is_cut: bool,
}

/// The nodes of one segment, by their numbers there.
#[derive(Debug, Default)]
pub(crate) struct Names(Vec<Node>);

impl Names {
    /// Returns the node with this number; an empty one for 0, and for a number that was not defined.
    #[inline(always)]
    pub(crate) fn get(&self, number: SegmentNode) -> Node {
        (number.0 as usize).checked_sub(1).and_then(|i| self.0.get(i)).copied().unwrap_or_default()
    }

    /// Clears the table for a new segment.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// The nodes of a recording, and which of the nodes and code addresses have been written.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: Cache,
    last: u32,
    pcs: Bits,
    modules: Bits,
    /// New nodes, in chunks.
    runs: Vec<NodeRun>,
    pc_triples: Vec<u64>,
    /// Modules that were named for the first time.
    pub new_modules: Vec<u16>,
    /// Address ranges of prof's own mappings in the target.
    ours: Vec<(u64, u64)>,
    /// The IDs of all nodes, by parent and code address, if each is to have only one.
    all: Option<Known>,
    /// Greatest number of these.
    most: usize,
}

impl Tree {
    /// Creates an empty tree.
    pub(crate) fn new() -> Self {
        Self {
            nodes: Cache::new(SETS),
            last: 0,
            pcs: Bits::new(PC_LEVEL0 * ((1 << PC_LEVELS) - 1) + 1),
            modules: Bits::new(MODULES + 1),
            runs: Vec::new(),
            pc_triples: Vec::new(),
            new_modules: Vec::new(),
            ours: Vec::new(),
            all: None,
            most: usize::MAX,
        }
    }

    /// Gives no node a second ID from now on, at the cost of memory for all of them: so figures by stack can be kept.
    /// When there are `most` nodes, further ones are cut off: their parents stand for them.
    pub(crate) fn remember_all(&mut self, most: usize) {
        self.all.get_or_insert_default();
        self.most = most;
    }

    /// Continues a recording whose nodes have IDs up to `last`.
    pub(crate) fn restore(&mut self, last: u32) {
        self.last = self.last.max(last);
    }

    /// Defines a chain of nodes below the segment's node `parent`.
    #[inline]
    pub(crate) fn define(
        &mut self,
        shared: &Shared,
        names: &mut Names,
        parent: SegmentNode,
        pcs: [PcId; DEFINE_NODES],
    ) {
        let mut at = names.get(parent);
        if let Some(all) = self.all.as_ref().filter(|all| all.len() > 2 * SETS) {
            // They are not in the cache, and each is wanted as soon as the one before it is found.
            pcs.iter().fold(at.hash, |of_parent, pc| {
                let hash = path(of_parent, *pc);
                all.prefetch(hash);
                hash
            });
        }
        for pc in pcs.into_iter().filter(|pc| *pc != PcId::NONE) {
            at = self.child(shared, at, pc);
            names.0.push(at);
        }
    }

    #[inline(always)]
    fn child(&mut self, shared: &Shared, parent: Node, pc: PcId) -> Node {
        if parent.is_cut || parent.depth >= MAX_DEPTH {
            return Node { is_cut: true, ..parent };
        }
        // It is 0 when all IDs are used up.
        let new = self.last.wrapping_add(1);
        let hash = path(parent.hash, pc);
        let id = self.nodes.get(hash, key(parent.id, pc), new);
        if id == 0 {
            return Node { is_cut: true, ..parent };
        }
        if id == new {
            let known = self.all.as_ref().and_then(|all| all.get(hash, key(parent.id, pc)));
            if let Some(id) = known {
                self.nodes.rename(hash, id);
                return Node { id, hash, depth: parent.depth + 1, is_cut: parent.is_cut };
            }
            if parent.id != 0 && self.is_ours(shared, pc) {
                // Calls that are recorded inside of a hooked function have prof's own code in their stacks.
                self.nodes.rename(hash, parent.id);
                return Node { depth: parent.depth + 1, ..parent };
            }
            if self.all.as_ref().is_some_and(|all| all.len() >= self.most) {
                self.nodes.rename(hash, 0);
                return Node { is_cut: true, ..parent };
            }
            self.last = new;
            if let Some(all) = &mut self.all {
                all.add(hash, key(parent.id, pc), new);
            }
            self.announce(shared, new, parent.id, pc);
        }
        // A frame of prof's own code is left out: a node's hash follows from its ID.
        let hash = if id == parent.id { parent.hash } else { hash };
        Node { id, hash, depth: parent.depth + 1, is_cut: parent.is_cut }
    }

    fn announce(&mut self, shared: &Shared, id: u32, parent: u32, pc: PcId) {
        match self.runs.last_mut().filter(|r| r.pairs.len() < RUN_BYTES) {
            Some(run) => run.push(id, parent, pc.0),
            None => {
                let mut run = NodeRun::default();
                run.push(id, parent, pc.0);
                self.runs.push(run);
            }
        }
        self.see_pc(shared, pc);
    }

    /// Returns whether it is time to call [`Tree::write`] within a pass.
    pub(crate) fn is_full(&self) -> bool {
        self.runs.len() > 1
    }

    /// Sets the address ranges of prof's own mappings in the target: frames there are left out.
    pub(crate) fn set_ours(&mut self, ours: Vec<(u64, u64)>) {
        self.ours = ours;
    }

    /// Returns whether a code address lies in prof's own code in the target.
    fn is_ours(&self, shared: &Shared, pc: PcId) -> bool {
        let Some((addr, 0)) = pc_parts(shared, pc) else { return false };
        let before = addr.wrapping_sub(1);
        self.ours.iter().any(|(start, end)| (*start..*end).contains(&before))
    }

    fn see_pc(&mut self, shared: &Shared, id: PcId) {
        if id == PcId::NONE || self.pcs.get(id.0 as usize) != Some(false) {
            return;
        }
        let Some((pc, module)) = pc_parts(shared, id) else { return };
        self.pcs.add(id.0 as usize);
        // Readers must know that the frame outside of a signal trampoline is not its caller.
        let rule = rule(shared, id);
        let signal = if Rule::from_u64(rule).is_signal() { PC_IS_TRAMPOLINE } else { 0 };
        self.pc_triples.extend([u64::from(id.0), pc, u64::from(module) | signal]);
        if module != 0 && self.modules.add(module as usize) {
            self.new_modules.push(module);
        }
    }

    /// Writes the new code addresses, then the new nodes.
    pub(crate) fn write(&mut self, out: &mut Output) {
        for part in self.pc_triples.chunks(CHUNK_INTS) {
            out.put(kind::PCS, &Pcs { triples: part.to_vec() }.encode());
        }
        for run in self.runs.drain(..) {
            out.put(kind::NODE_RUN, &run.encode());
        }
        self.pc_triples.clear();
    }
}

/// Returns the hash of a node's path, given that of its parent.
#[inline(always)]
fn path(of_parent: u32, pc: PcId) -> u32 {
    (of_parent.rotate_left(7) ^ pc.0).wrapping_mul(0x9e37_79b1)
}

fn key(parent: u32, pc: PcId) -> u64 {
    u64::from(parent) << 32 | u64::from(pc.0)
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
        tree.define(&ring, &mut a, SegmentNode(0), [5, 6, 7].map(PcId));
        tree.define(&ring, &mut b, SegmentNode(0), [5, 0, 0].map(PcId));
        tree.define(&ring, &mut b, SegmentNode(1), [8, 0, 0].map(PcId));
        tree.define(&ring, &mut b, SegmentNode(1), [6, 9, 0].map(PcId));
        let ids = |n: &Names, k: u32| (1..=k).map(|i| n.get(SegmentNode(i)).id).collect::<Vec<_>>();
        assert_eq!((ids(&a, 4), ids(&b, 4)), (vec![1, 2, 3, 0], vec![1, 4, 2, 5]));
        assert_eq!(announced(&tree)[9..12], [4, 1, 8]);
        let mut again = Tree::new();
        again.restore(tree.last);
        let mut c = Names::default();
        again.define(&ring, &mut c, SegmentNode(0), [5, 6, 10].map(PcId));
        assert_eq!(ids(&c, 3), [6, 7, 8]);
        assert_eq!(announced(&again), [6, 0, 5, 7, 6, 6, 8, 7, 10]);
    }

    #[test]
    fn a_forgotten_node_gets_another_id() {
        let ring = crate::ring_copy::empty();
        let (mut tree, mut names) = (Tree::new(), Names::default());
        tree.nodes = Cache::new(1);
        for pc in [1, 2, 1, 3, 1, 2] {
            tree.define(&ring, &mut names, SegmentNode(0), [pc, 0, 0].map(PcId));
        }
        let got: Vec<_> = (1..7).map(|i| names.get(SegmentNode(i)).id).collect();
        assert_eq!(got, [1, 2, 1, 3, 1, 4]);
        assert_eq!(announced(&tree), [1, 0, 1, 2, 0, 2, 3, 0, 3, 4, 0, 2]);
    }

    #[test]
    fn a_full_tree_takes_callers_for_new_stacks_and_says_so() {
        let ring = crate::ring_copy::empty();
        let (mut tree, mut names) = (Tree::new(), Names::default());
        tree.remember_all(3);
        tree.define(&ring, &mut names, SegmentNode(0), [1, 2, 3].map(PcId));
        // The node of 4 has no room; 3 is known below 2, but not below 4.
        for _ in 0..2 {
            tree.define(&ring, &mut names, SegmentNode(2), [4, 3, 0].map(PcId));
        }
        tree.define(&ring, &mut names, SegmentNode(2), [3, 0, 0].map(PcId));
        let of = |i| (names.get(SegmentNode(i)).id, names.get(SegmentNode(i)).is_cut);
        let got: Vec<_> = (1..9).map(of).collect();
        let cut = (2, true);
        assert_eq!(got, [(1, false), (2, false), (3, false), cut, cut, cut, cut, (3, false)]);
        assert_eq!(announced(&tree).len(), 9);
    }

    #[test]
    fn frames_of_our_own_code_give_no_node_a_second_id() {
        // The models, which compile this file as well, have no table of addresses outside of a model.
        if env!("CARGO_PKG_NAME") != "prof-collect" {
            return;
        }
        let ring = crate::ring_copy::empty();
        let (mut tree, mut names) = (Tree::new(), Names::default());
        tree.remember_all(usize::MAX);
        tree.set_ours(vec![(0x1000, 0x2000)]);
        let id = |pc| match prof_trace::pcs::add_pc(&ring, pc, 0) {
            prof_trace::pcs::Found::Id(id) => id,
            found => panic!("{found:?}"),
        };
        let [outer, inner, first, second] = [0x8000, 0x9000, 0x1100, 0x1200].map(id);
        // Each stack is defined twice, as the second look-up finds its nodes in the cache.
        for stack in [[first, inner], [second, inner], [first, second], [inner, PcId::NONE]] {
            for _ in 0..2 {
                tree.define(&ring, &mut names, SegmentNode(0), [outer, stack[0], stack[1]]);
            }
        }
        let got: Vec<_> = names.0.iter().map(|n| n.id).collect();
        let both = [1, 1, 2];
        let wanted = [both, both, both, both, [1, 1, 1], [1, 1, 1]].concat();
        assert_eq!(got, [wanted, vec![1, 2, 1, 2]].concat());
        assert_eq!(announced(&tree).len(), 6);
        let hashes = |of: u32| names.0.iter().filter(move |n| n.id == of).map(|n| n.hash);
        assert!([1, 2].iter().all(|id| hashes(*id).all(|h| Some(h) == hashes(*id).next())));
    }

    #[test]
    fn what_is_cut_is_known() {
        let ring = crate::ring_copy::empty();
        let (mut tree, mut names) = (Tree::new(), Names::default());
        // Use up all IDs.
        tree.restore(u32::MAX - 2);
        tree.define(&ring, &mut names, SegmentNode(0), [1, 2, 3].map(PcId));
        tree.define(&ring, &mut names, SegmentNode(3), [4, 0, 0].map(PcId));
        tree.define(&ring, &mut names, SegmentNode(0), [1, 9, 0].map(PcId));
        let got: Vec<_> = (1..7)
            .map(|i| (names.get(SegmentNode(i)).id, names.get(SegmentNode(i)).is_cut))
            .collect();
        let (a, b) = (u32::MAX - 1, u32::MAX);
        assert_eq!(got, [(a, false), (b, false), (b, true), (b, true), (a, false), (a, true)]);
        // A chain that is deeper than any stack.
        (tree, names) = (Tree::new(), Names::default());
        for i in 0..2 * u32::from(MAX_DEPTH) {
            tree.define(&ring, &mut names, SegmentNode(i), [7, 0, 0].map(PcId));
        }
        assert!(names.get(SegmentNode(2 * u32::from(MAX_DEPTH))).is_cut);
        assert!(!names.get(SegmentNode(MAX_DEPTH.into())).is_cut);
        assert_eq!(announced(&tree).len(), 3 * usize::from(MAX_DEPTH));
    }
}
