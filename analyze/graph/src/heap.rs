//! The blocks of a process with the pointers between them: what holds them, and what they hold.

use crate::bits::Bits;
use crate::dominators::{Dominators, OFTEN, Successors};
use crate::edges::{Edges, NONE, Root, RootEdge};
use crate::held::{Builder, Held, Holder};
use crate::roots::Parts;
use crate::table::Table;
use std::collections::HashMap;
use std::ops::{AddAssign, Range};

/// Bytes and blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sum {
    /// Bytes requested.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
}

impl AddAssign for Sum {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.blocks += other.blocks;
    }
}

/// The live blocks of a process at a moment, and all pointers to them.
#[derive(Debug)]
pub struct Heap {
    pub(crate) table: Table,
    pub(crate) edges: Edges,
    /// For each block its stack as numbered by the caller, or [`NONE`] if it was freed meanwhile.
    pub(crate) stacks: Vec<u32>,
    /// Bytes requested of each block.
    pub(crate) sizes: Vec<u64>,
    pub(crate) roots: Vec<Root>,
    pub(crate) root_parts: Parts,
    pub(crate) of_roots: Vec<RootEdge>,
    /// For each root, the index of its first pointer in `of_roots`; at last, the end of the last root's pointers.
    root_starts: Vec<u32>,
}

/// A way from a root to a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The root.
    pub root: Root,
    /// Address of the word in the root that points to the first block; 0: it has none.
    pub at: u64,
    /// The blocks, each pointing to the next.
    pub blocks: Vec<Range<u64>>,
}

impl Heap {
    /// Makes the graph of what was read. `get` returns the stack and the size of the block at an address. Blocks that it
    /// does not know any more, and those at the addresses in `changed`, don't count.
    #[must_use]
    pub fn new(
        table: Table,
        edges: Edges,
        changed: impl IntoIterator<Item = u64>,
        get: impl Fn(u64) -> Option<(u32, u64)>,
    ) -> Self {
        let n = table.len();
        let (mut stacks, mut sizes) = (vec![NONE; n], vec![0; n]);
        for i in 0..n {
            if let Some(known) = get(table.block(i as u32).0) {
                (stacks[i], sizes[i]) = known;
            }
        }
        for at in changed {
            if let Some(i) = table.starting_at(at) {
                (stacks[i as usize], sizes[i as usize]) = (NONE, 0);
            }
        }
        Self::of_parts(table, edges, stacks, sizes)
    }

    /// Makes the graph of blocks with their stacks and sizes. Pointers of roots must be in order.
    pub(crate) fn of_parts(
        table: Table,
        mut edges: Edges,
        stacks: Vec<u32>,
        sizes: Vec<u64>,
    ) -> Self {
        let roots = std::mem::take(&mut edges.roots);
        let of_roots = std::mem::take(&mut edges.of_roots);
        let root_parts = Parts::new(std::mem::take(&mut edges.above), roots.len());
        let root_starts = Vec::new();
        let mut heap =
            Self { table, edges, stacks, sizes, roots, root_parts, of_roots, root_starts };
        heap.count_roots();
        heap
    }

    fn count_roots(&mut self) {
        let mut starts = vec![0u32; self.roots.len() + 1];
        self.of_roots.iter().for_each(|e| starts[e.root as usize + 1] += 1);
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        self.root_starts = starts;
    }

    /// Returns the roots that hold blocks, by number.
    #[must_use]
    pub fn roots(&self) -> &[Root] {
        &self.roots
    }

    /// Returns the number of roots that are no parts of others.
    #[must_use]
    pub fn root_count(&self) -> usize {
        self.root_parts.of(None).len()
    }

    /// Returns the number of the root that a root is a part of.
    #[must_use]
    pub fn root_above(&self, root: u32) -> Option<u32> {
        self.root_parts.above.get(root as usize).copied().filter(|above| *above != NONE)
    }

    /// Makes roots with the same key one, which then stands for the first of them: words of one variable, say.
    pub fn merge_roots<K: std::hash::Hash + Eq>(&mut self, key: impl Fn(&Root) -> K) {
        let (mut numbers, mut kept) = (HashMap::new(), Vec::new());
        let mut renumbered = Vec::with_capacity(self.roots.len());
        for root in &self.roots {
            let number = *numbers.entry(key(root)).or_insert_with(|| {
                kept.push(root.clone());
                (kept.len() - 1) as u32
            });
            renumbered.push(number);
        }
        self.root_parts = self.root_parts.renumbered(&renumbered, kept.len());
        self.roots = kept;
        self.of_roots.iter_mut().for_each(|e| e.root = renumbered[e.root as usize]);
        self.of_roots.sort_unstable();
        self.of_roots.dedup_by_key(|e| (e.root, e.to));
        self.count_roots();
    }

    /// Gives the stacks other numbers.
    pub fn renumber_stacks(&mut self, number: impl Fn(u32) -> u32) {
        self.stacks.iter_mut().filter(|s| **s != NONE).for_each(|s| *s = number(*s));
    }

    /// Returns the live blocks: how many there are, and their bytes.
    #[must_use]
    pub fn live(&self) -> Sum {
        let mut all = Sum::default();
        (0..self.stacks.len()).for_each(|i| all += self.sum(i));
        all
    }

    pub(crate) fn sum(&self, block: usize) -> Sum {
        match self.stacks[block] {
            NONE => Sum::default(),
            _ => Sum { bytes: self.sizes[block], blocks: 1 },
        }
    }

    /// Returns the number of pointers for which there was no room.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.edges.left_out
    }

    /// Computes the tree of holders, with what each retains.
    #[must_use]
    pub fn held(&self) -> Held {
        self.held_unless(&|| false).unwrap_or_default()
    }

    /// Computes the tree of holders, unless that is cancelled meanwhile.
    #[must_use]
    pub fn held_unless(&self, cancelled: &dyn Fn() -> bool) -> Option<Held> {
        let graph = Graph(self);
        let tree = Dominators::of(&graph, cancelled)?;
        let mut builder = Builder::new(self);
        // For each place in the preorder its node in the tree that is shown.
        let mut nodes = vec![0u32; tree.order.len()];
        for (i, node) in tree.order.iter().enumerate().skip(1) {
            if i.is_multiple_of(OFTEN) && cancelled() {
                return None;
            }
            let above = nodes[tree.immediate[i] as usize];
            nodes[i] = match graph.block(*node) {
                None => builder.root(above, node - 1),
                Some(block) => builder.block(above, block as usize),
            };
        }
        let mut held = builder.finish();
        let all = self.live();
        let reached = held.nodes.first().map(|n| n.retained).unwrap_or_default();
        held.unreachable =
            Sum { bytes: all.bytes - reached.bytes, blocks: all.blocks - reached.blocks };
        Some(held)
    }

    /// Returns what would go if all blocks of a stack were gone: those blocks, and what only they hold together. `None`:
    /// the work was cancelled.
    #[must_use]
    pub fn retained_by(
        &self,
        held: &Held,
        stack: u32,
        cancelled: &dyn Fn() -> bool,
    ) -> Option<Sum> {
        let with = held.nodes.first().map(|n| n.retained).unwrap_or_default();
        let (_, without) = self.reached(Some(Holder::Stack(stack)), cancelled)?;
        Some(Sum { bytes: with.bytes - without.bytes, blocks: with.blocks - without.blocks })
    }

    /// Returns the numbers of the blocks that roots lead to, and their sum: of all, or of those that would be left without
    /// a holder. `None`: the work was cancelled.
    #[must_use]
    pub fn reached(
        &self,
        without: Option<Holder>,
        cancelled: &dyn Fn() -> bool,
    ) -> Option<(Bits, Sum)> {
        let graph = Graph(self);
        let is_gone = |node: u32| match without {
            None => false,
            Some(Holder::All) => true,
            Some(Holder::Root(root)) => node == root + 1,
            Some(Holder::Stack(s)) => {
                graph.block(node).is_some_and(|b| self.stacks[b as usize] == s)
            }
        };
        let mut seen = Bits::new(graph.nodes());
        let (mut blocks, mut all) = (Bits::new(self.table.len()), Sum::default());
        let (mut work, mut steps) = (vec![0], 0usize);
        seen.set(0);
        while let Some(node) = work.pop() {
            steps += 1;
            if steps.is_multiple_of(OFTEN) && cancelled() {
                return None;
            }
            if let Some(b) = graph.block(node) {
                all += self.sum(b as usize);
                blocks.set(b as usize);
            }
            graph.each(node, |next| {
                if !seen.has(next as usize) && !is_gone(next) {
                    seen.set(next as usize);
                    work.push(next);
                }
            });
        }
        Some((blocks, all))
    }

    /// Returns the number of the live block that begins at an address, and its stack.
    #[must_use]
    pub fn starting_at(&self, address: u64) -> Option<(u32, u32)> {
        let block = self.table.starting_at(address)?;
        let stack = self.stacks[block as usize];
        (stack != NONE).then_some((block, stack))
    }

    /// Returns an estimate of the bytes that the heap takes in memory.
    #[must_use]
    pub fn weight(&self) -> u64 {
        let of_roots = self.of_roots.len() * size_of::<RootEdge>();
        (self.table.len() * 40 + self.edges.to.len() * 4 + of_roots) as u64
    }

    /// Returns the block at an address or around it.
    #[must_use]
    pub fn block_at(&self, address: u64) -> Option<Range<u64>> {
        let (start, end) = self.table.block(self.table.find(address)?);
        Some(start..end)
    }

    /// Returns the stack of the block that begins at an address.
    #[must_use]
    pub fn stack_of(&self, address: u64) -> Option<u32> {
        self.starting_at(address).map(|(_, stack)| stack)
    }

    /// Returns the table of virtual functions that the block at an address begins with.
    #[must_use]
    pub fn class_of(&self, address: u64) -> Option<u64> {
        let block = self.table.starting_at(address)?;
        let class = self.edges.classes.get(block as usize)?;
        self.edges.tables.get(*class as usize).copied()
    }

    /// Returns whether a live block is of a stack.
    #[must_use]
    pub fn has_stack(&self, stack: u32) -> bool {
        stack != NONE && self.stacks.contains(&stack)
    }

    /// Returns a shortest way from a root to a block that satisfies `wanted`, which is asked with the block's address and
    /// stack; `None`: there is none.
    #[must_use]
    pub fn path(&self, wanted: impl Fn(u64, u32) -> bool) -> Option<Path> {
        let graph = Graph(self);
        let mut from = vec![NONE; graph.nodes()];
        let mut work = std::collections::VecDeque::from([0u32]);
        from[0] = 0;
        let is_wanted = |node: u32| {
            graph.block(node).is_some_and(|b| {
                let stack = self.stacks[b as usize];
                stack != NONE && wanted(self.table.block(b).0, stack)
            })
        };
        let mut last = loop {
            let node = work.pop_front()?;
            if is_wanted(node) {
                break node;
            }
            graph.each(node, |next| {
                if from[next as usize] == NONE {
                    from[next as usize] = node;
                    work.push_back(next);
                }
            });
        };
        let mut blocks = Vec::new();
        while let Some(b) = graph.block(last) {
            blocks.push(b);
            last = from[last as usize];
        }
        blocks.reverse();
        let root = last - 1;
        let edges = &self.of_roots[self.root_range(root)];
        let at = edges.iter().find(|e| Some(&e.to) == blocks.first()).map_or(0, |e| e.at);
        let range = |b: &u32| {
            let (start, end) = self.table.block(*b);
            start..end
        };
        let blocks = blocks.iter().map(range).collect();
        Some(Path { root: self.roots[root as usize].clone(), at, blocks })
    }

    pub(crate) fn root_range(&self, root: u32) -> Range<usize> {
        let i = root as usize;
        self.root_starts[i] as usize..self.root_starts[i + 1] as usize
    }
}

/// The graph: one node for all roots, then the roots, then the blocks.
struct Graph<'a>(&'a Heap);

impl Graph<'_> {
    /// Returns the block that a node is.
    fn block(&self, node: u32) -> Option<u32> {
        node.checked_sub(1 + self.0.roots.len() as u32)
    }
}

impl Successors for Graph<'_> {
    fn nodes(&self) -> usize {
        1 + self.0.roots.len() + self.0.table.len()
    }

    #[inline]
    fn successor(&self, node: u32, index: u32) -> Option<u32> {
        let h = self.0;
        let roots = h.roots.len() as u32;
        let behind = 1 + roots;
        if let Some(b) = node.checked_sub(behind) {
            let (from, to) = (h.edges.starts[b as usize], h.edges.starts[b as usize + 1]);
            return (index < to - from).then(|| h.edges.to[(from + index) as usize] + behind);
        }
        // Parts of a root come before its own pointers.
        let root = node.checked_sub(1);
        let parts = h.root_parts.of(root);
        if let Some(part) = parts.get(index as usize) {
            return Some(part + 1);
        }
        let edges = &h.of_roots[h.root_range(root?)];
        edges.get(index as usize - parts.len()).map(|e| e.to + behind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A heap of blocks of 16 bytes each, with pointers between them and from roots; a block's stack is its number modulo
    /// this.
    fn heap(n: u32, edges: &[(u32, u32)], roots: &[(u64, u32)], stacks: u32) -> Heap {
        let t = (0..n).map(|i| (u64::from(i) * 16 + 0x1000, 16)).collect();
        let mut sorted = edges.to_vec();
        sorted.sort_unstable();
        let starts = (0..=n).map(|b| sorted.partition_point(|e| e.0 < b) as u32).collect();
        let to = sorted.iter().map(|e| e.1).collect();
        let mut numbers: Vec<u64> = roots.iter().map(|r| r.0).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let of = |(address, to): &(u64, u32)| {
            let root = numbers.partition_point(|n| n < address) as u32;
            RootEdge { root, to: *to, at: *address }
        };
        let mut of_roots: Vec<RootEdge> = roots.iter().map(of).collect();
        of_roots.sort_unstable();
        let roots = numbers.iter().map(|n| Root::Global(*n)).collect();
        let edges = Edges {
            starts,
            to,
            roots,
            above: Vec::new(),
            of_roots,
            classes: Vec::new(),
            tables: Vec::new(),
            left_out: 0,
        };
        Heap::new(t, edges, [], |address| Some((((address - 0x1000) / 16) as u32 % stacks, 10)))
    }

    /// Returns what is reached without some roots and some blocks.
    fn reached(
        edges: &[(u32, u32)],
        roots: &[(u64, u32)],
        no_root: Option<u64>,
        no_block: impl Fn(u32) -> bool,
    ) -> BTreeSet<u32> {
        let mut work: Vec<u32> =
            roots.iter().filter(|r| Some(r.0) != no_root).map(|r| r.1).collect();
        let mut found = BTreeSet::new();
        while let Some(b) = work.pop() {
            if !no_block(b) && found.insert(b) {
                work.extend(edges.iter().filter(|e| e.0 == b).map(|e| e.1));
            }
        }
        found
    }

    #[test]
    fn what_is_retained_is_what_is_not_reached_without() {
        let mut x = 0x2545_f491_4f6c_dd1du64;
        let mut random = move |n: u64| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 11) % n
        };
        for _ in 0..200 {
            let (n, stacks) = (2 + random(30) as u32, 1 + random(6) as u32);
            let edges: Vec<(u32, u32)> = (0..random(60))
                .map(|_| (random(n.into()) as u32, random(n.into()) as u32))
                .collect();
            let roots: Vec<(u64, u32)> = (0..1 + random(5))
                .map(|_| (8 * (1 + random(4)), random(n.into()) as u32))
                .collect();
            let h = heap(n, &edges, &roots, stacks);
            let held = h.held();
            let all = reached(&edges, &roots, None, |_| false);
            let numbers = |without| -> BTreeSet<u32> {
                let (bits, sum) = h.reached(without, &|| false).expect("blocks");
                let found: BTreeSet<u32> = (0..n).filter(|b| bits.has(*b as usize)).collect();
                assert_eq!(sum.blocks, found.len() as u64);
                found
            };
            assert_eq!((numbers(None), numbers(Some(Holder::All)).len()), (all.clone(), 0));
            assert_eq!(held.nodes[0].retained.blocks, all.len() as u64);
            assert_eq!(held.unreachable.blocks, u64::from(n) - all.len() as u64);
            for node in &held.nodes {
                if let Holder::Root(r) = node.holder {
                    let Root::Global(address) = h.roots()[r as usize] else { panic!("a root") };
                    let without = reached(&edges, &roots, Some(address), |_| false);
                    assert_eq!(node.retained.blocks, (all.len() - without.len()) as u64);
                    assert_eq!(numbers(Some(Holder::Root(r))), without);
                }
            }
            let own: u64 = held.nodes.iter().map(|n| n.own.blocks).sum();
            assert_eq!(own, all.len() as u64);
            for s in 0..stacks {
                let without = reached(&edges, &roots, None, |b| b % stacks == s);
                let exact = h.retained_by(&held, s, &|| false).expect("a sum").blocks;
                assert_eq!(exact, (all.len() - without.len()) as u64);
                // What single blocks retain is at most what they retain together.
                let of = |n: &&crate::held::Node| n.holder == Holder::Stack(s);
                let single: u64 = held.nodes.iter().filter(of).map(|n| n.retained.blocks).sum();
                assert!(single <= exact, "{single} of {exact}");
            }
        }
    }

    #[test]
    fn what_several_frames_hold_hangs_on_their_stack() {
        let thread = prof_os::Pid::from_raw(7);
        let frame = |number| Root::Frame { thread, number, pc: 0x500, exact: false };
        let roots = vec![Root::Stack(thread), frame(0), frame(3), Root::Registers(thread)];
        let of = |root, to| RootEdge { root, to, at: 0 };
        // Block 0 is frame 0's, 1 frame 3's with 2 below it, 3 of both, 4 the register's and frame 3's.
        let of_roots = vec![of(1, 0), of(1, 3), of(2, 1), of(2, 3), of(2, 4), of(3, 4)];
        let edges = Edges {
            starts: vec![0, 0, 1, 1, 1, 1],
            to: vec![2],
            roots,
            above: vec![NONE, 0, 0],
            of_roots,
            classes: Vec::new(),
            tables: Vec::new(),
            left_out: 0,
        };
        let table = (0..5).map(|i| (i * 16 + 0x1000, 16)).collect();
        let mut h = Heap::new(table, edges, [], |address| Some((address as u32, 10)));
        assert_eq!(h.root_count(), 2);
        h.merge_roots(|root| match root {
            Root::Registers(t) => Root::Stack(*t),
            other => other.clone(),
        });
        assert_eq!((h.roots().len(), h.root_count(), h.root_above(2)), (3, 1, Some(0)));
        let held = h.held();
        let retained = |holder| {
            let node = held.nodes.iter().find(|n| n.holder == holder).expect("a node");
            (node.retained.blocks, held.nodes[node.parent as usize].holder)
        };
        assert_eq!(retained(Holder::Root(0)), (5, Holder::All));
        assert_eq!(retained(Holder::Root(1)), (1, Holder::Root(0)));
        assert_eq!(retained(Holder::Root(2)), (2, Holder::Root(0)));
        assert_eq!(retained(Holder::Stack(0x1030)), (1, Holder::Root(0)));
        assert_eq!(retained(Holder::Stack(0x1040)), (1, Holder::Root(0)));
        let gone = h.reached(Some(Holder::Root(2)), &|| false).expect("a sum").1;
        assert_eq!(gone.blocks, 3);
        let way = h.path(|address, _| address == 0x1020).expect("a way");
        assert_eq!((way.root, way.blocks.len()), (frame(3), 2));
    }

    #[test]
    fn ways_are_shortest_and_blocks_that_hold_each_other_are_one_node() {
        // A root to a list of 0, 1, 2, 3, and a short cut from another root to 2.
        let edges = [(0, 1), (1, 2), (2, 3), (3, 0)];
        let mut h = heap(5, &edges, &[(8, 0), (16, 2)], 1);
        let way = h.path(|address, _| address == 0x1030).expect("a way");
        assert_eq!((way.root, way.at), (Root::Global(16), 16));
        assert_eq!(way.blocks, [0x1020..0x1030, 0x1030..0x1040]);
        assert_eq!(h.path(|address, _| address == 0x1040), None);
        // The first two are the first root's alone only as long as the others don't lead to them.
        let held = h.held();
        assert_eq!(held.nodes[0].retained, Sum { bytes: 40, blocks: 4 });
        assert_eq!(held.unreachable, Sum { bytes: 10, blocks: 1 });
        h.merge_roots(|_| "one");
        assert_eq!(h.roots().len(), 1);
        let held = h.held();
        let shape: Vec<_> =
            held.nodes.iter().map(|n| (n.parent, n.holder, n.retained.blocks)).collect();
        let (root, stack) = (Holder::Root(0), Holder::Stack(0));
        // All four are of one stack, and so one node.
        assert_eq!(shape[..2], [(0, Holder::All, 4), (0, root, 4)]);
        assert!(shape[2..].iter().all(|s| s.0 == 1 && s.1 == stack), "{shape:?}");
        assert_eq!(shape.len(), 3);
    }
}
