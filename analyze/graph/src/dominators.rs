//! The dominator tree of a graph: for each node the nearest one that lies on all paths from the root to it.
//!
//! The algorithm is the simple one of Lengauer and Tarjan, "A fast algorithm for finding dominators in a flowgraph" (TOPLAS
//! 1979), which takes O(m log n) steps for any graph. Nothing recurses, as a list of ten million blocks is as deep as long.

use crate::edges::NONE;

/// Nodes between two looks at whether the work is cancelled: a few milliseconds.
pub(crate) const OFTEN: usize = 1 << 16;

/// A graph whose nodes are numbers, with node 0 as its root.
pub(crate) trait Successors {
    /// Returns the number of nodes.
    fn nodes(&self) -> usize;

    /// Returns the successor of a node with this index, or `None` behind the last.
    fn successor(&self, node: u32, index: u32) -> Option<u32>;

    /// Calls `take` with each successor of a node.
    fn each(&self, node: u32, mut take: impl FnMut(u32)) {
        for k in 0.. {
            let Some(next) = self.successor(node, k) else { break };
            take(next);
        }
    }
}

/// The nodes that are reached from the root, in preorder of a depth-first search, and their dominators.
#[derive(Debug)]
pub(crate) struct Dominators {
    /// The nodes, in preorder. The first is the root.
    pub order: Vec<u32>,
    /// For each place in `order` the place of its immediate dominator, which is smaller; 0 for the root itself.
    pub immediate: Vec<u32>,
}

impl Dominators {
    /// Computes the tree; `None`: it was cancelled. It takes some 32 bytes a node and 4 an edge meanwhile, and leaves 8
    /// bytes a node.
    #[must_use]
    pub(crate) fn of(graph: &impl Successors, cancelled: &dyn Fn() -> bool) -> Option<Self> {
        let is_over = |i: usize| i.is_multiple_of(OFTEN) && cancelled();
        let (order, numbers, parents) = depth_first(graph, is_over)?;
        let (starts, from) = predecessors(graph, &order, &numbers, is_over)?;
        drop(numbers);
        let n = order.len();
        let mut forest = Forest::new(n);
        let mut immediate = vec![0; n];
        // The nodes whose semidominator a node is, as lists.
        let (mut first, mut next) = (vec![NONE; n], vec![NONE; n]);
        for w in (1..n as u32).rev() {
            if is_over(w as usize) {
                return None;
            }
            let range = starts[w as usize] as usize..starts[w as usize + 1] as usize;
            let mut semi = w;
            for v in &from[range] {
                let u = forest.least(*v);
                semi = semi.min(forest.semi[u as usize]);
            }
            forest.semi[w as usize] = semi;
            next[w as usize] = std::mem::replace(&mut first[semi as usize], w);
            let parent = parents[w as usize];
            forest.ancestors[w as usize] = parent;
            let mut v = std::mem::replace(&mut first[parent as usize], NONE);
            while v != NONE {
                let u = forest.least(v);
                let is_less = forest.semi[u as usize] < forest.semi[v as usize];
                immediate[v as usize] = if is_less { u } else { parent };
                v = next[v as usize];
            }
        }
        for w in 1..n {
            if immediate[w] != forest.semi[w] {
                immediate[w] = immediate[immediate[w] as usize];
            }
        }
        Some(Self { order, immediate })
    }
}

type Preorder = (Vec<u32>, Vec<u32>, Vec<u32>);

/// Returns the nodes in preorder, the place of each node in it ([`NONE`]: it is not reached), and the places of their
/// parents.
fn depth_first(graph: &impl Successors, is_over: impl Fn(usize) -> bool) -> Option<Preorder> {
    let mut numbers = vec![NONE; graph.nodes()];
    let (mut order, mut parents) = (vec![0], vec![0]);
    numbers[0] = 0;
    let mut path: Vec<(u32, u32)> = vec![(0, 0)];
    while let Some((node, index)) = path.last_mut() {
        let Some(next) = graph.successor(*node, *index) else {
            path.pop();
            continue;
        };
        *index += 1;
        if numbers[next as usize] == NONE {
            if is_over(order.len()) {
                return None;
            }
            parents.push(numbers[*node as usize]);
            numbers[next as usize] = order.len() as u32;
            order.push(next);
            path.push((next, 0));
        }
    }
    Some((order, numbers, parents))
}

/// Returns the predecessors of the nodes, all by places in the preorder: where those of each place begin, and all of them.
fn predecessors(
    graph: &impl Successors,
    order: &[u32],
    numbers: &[u32],
    is_over: impl Fn(usize) -> bool,
) -> Option<(Vec<u32>, Vec<u32>)> {
    let mut starts = vec![0u32; order.len() + 2];
    for node in order {
        graph.each(*node, |to| starts[numbers[to as usize] as usize + 2] += 1);
    }
    for i in 2..starts.len() {
        starts[i] += starts[i - 1];
    }
    let mut from = vec![0; starts.last().map_or(0, |n| *n as usize)];
    for (i, node) in order.iter().enumerate() {
        if is_over(i) {
            return None;
        }
        graph.each(*node, |to| {
            let at = &mut starts[numbers[to as usize] as usize + 1];
            from[*at as usize] = i as u32;
            *at += 1;
        });
    }
    starts.pop();
    Some((starts, from))
}

/// The forest of the nodes that were visited, with path compression.
struct Forest {
    ancestors: Vec<u32>,
    labels: Vec<u32>,
    semi: Vec<u32>,
    path: Vec<u32>,
}

impl Forest {
    fn new(n: usize) -> Self {
        let own: Vec<u32> = (0..n as u32).collect();
        Self { ancestors: vec![NONE; n], labels: own.clone(), semi: own, path: Vec::new() }
    }

    /// Returns the node with the least semidominator on the way from a node up to below the root of its tree.
    fn least(&mut self, v: u32) -> u32 {
        let mut at = v;
        while self.ancestors[at as usize] != NONE {
            self.path.push(at);
            at = self.ancestors[at as usize];
        }
        // The last on the path is below the root: it has nothing to be compressed.
        let Some(mut above) = self.path.pop() else { return v };
        let root = at;
        while let Some(node) = self.path.pop() {
            let (best, own) = (self.labels[above as usize], self.labels[node as usize]);
            if self.semi[best as usize] < self.semi[own as usize] {
                self.labels[node as usize] = best;
            }
            self.ancestors[node as usize] = root;
            above = node;
        }
        self.labels[v as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    struct Lists(Vec<Vec<u32>>);

    impl Successors for Lists {
        fn nodes(&self) -> usize {
            self.0.len()
        }

        fn successor(&self, node: u32, index: u32) -> Option<u32> {
            self.0[node as usize].get(index as usize).copied()
        }
    }

    /// Returns the nodes that are reached without passing through one of them.
    fn reached(graph: &Lists, without: Option<u32>) -> BTreeSet<u32> {
        let (mut found, mut work) = (BTreeSet::new(), vec![0]);
        while let Some(node) = work.pop() {
            if Some(node) != without && found.insert(node) {
                work.extend(&graph.0[node as usize]);
            }
        }
        found
    }

    /// Returns each node's immediate dominator, by leaving out each node in turn.
    fn naive(graph: &Lists) -> BTreeMap<u32, u32> {
        let all = reached(graph, None);
        let mut strict: BTreeMap<u32, Vec<u32>> = all.iter().map(|n| (*n, vec![])).collect();
        for d in &all {
            for gone in all.difference(&reached(graph, Some(*d))).filter(|n| *n != d) {
                strict.get_mut(gone).expect("a node").push(*d);
            }
        }
        // The nearest dominator is the one that has the most dominators itself.
        let depth: BTreeMap<u32, usize> = strict.iter().map(|(n, d)| (*n, d.len())).collect();
        let nearest = |d: &Vec<u32>| d.iter().copied().max_by_key(|d| depth[d]);
        strict.iter().filter_map(|(n, d)| Some((*n, nearest(d)?))).collect()
    }

    fn computed(graph: &Lists) -> BTreeMap<u32, u32> {
        let d = Dominators::of(graph, &|| false).expect("a tree");
        assert!(d.immediate.iter().enumerate().skip(1).all(|(i, k)| (*k as usize) < i));
        let pairs = d.order.iter().zip(&d.immediate).skip(1);
        pairs.map(|(node, k)| (*node, d.order[*k as usize])).collect()
    }

    #[test]
    fn trees_of_random_graphs_are_as_leaving_out_each_node_says() {
        let mut x = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = move |n: u64| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 11) % n
        };
        for round in 0..300 {
            let n = 2 + random(40);
            let edges = random(n * 3 + 1);
            let mut graph = Lists(vec![Vec::new(); n as usize]);
            for _ in 0..edges {
                graph.0[random(n) as usize].push(random(n) as u32);
            }
            assert_eq!(computed(&graph), naive(&graph), "round {round}: {:?}", graph.0);
        }
    }

    #[test]
    fn a_list_as_long_as_a_heap_and_a_root_alone_have_trees() {
        let n = 1_000_000u32;
        let graph = Lists((1..=n).map(|k| if k < n { vec![k] } else { vec![0] }).collect());
        let d = Dominators::of(&graph, &|| false).expect("a tree");
        assert_eq!(d.order.len(), n as usize);
        assert!(d.immediate.iter().skip(1).enumerate().all(|(i, k)| *k == i as u32));
        let alone = Dominators::of(&Lists(vec![vec![], vec![0]]), &|| false).expect("a tree");
        assert_eq!((alone.order, alone.immediate), (vec![0], vec![0]));
        assert!(Dominators::of(&graph, &|| true).is_none());
    }
}
