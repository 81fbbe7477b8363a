//! Flame graphs: trees of functions with the figures of the stacks that go through them, pruned, in columns.

use crate::Index;
use crate::heap::Group;
use crate::index::ScanError;
use crate::query::{By, Query};
use crate::stacks::{FunctionData, Stacks};
use prof_trace::ticks::Ticks;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// The figure that a flame graph shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Live bytes.
    #[default]
    Live,
    /// Live blocks.
    LiveBlocks,
    /// Bytes ever allocated.
    Allocated,
    /// Number of allocations and reallocations.
    Allocations,
    /// Number of temporary blocks.
    Temporary,
    /// Live bytes at the moment when the selected blocks held the most.
    Peak,
}

impl Metric {
    fn of(self, g: &Group) -> u64 {
        let f = &g.figures;
        match self {
            Metric::Live | Metric::Peak => f.live_bytes,
            Metric::LiveBlocks => f.live_count,
            Metric::Allocated => f.allocated_bytes,
            Metric::Allocations => f.allocations + f.reallocations,
            Metric::Temporary => f.temporary,
        }
    }
}

/// A change of all stacks before a flame graph is made of them. Functions are named by their numbers in
/// [`Stacks::functions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transform {
    /// Keeps the stacks that go through a function, from its outermost call inwards.
    Focus(u32),
    /// Removes the frames of a function; its callees become its callers'.
    Merge(u32),
    /// Removes the stacks that go through a function.
    Drop(u32),
    /// Puts frames of a function that called itself together.
    CollapseRecursion,
    /// Puts frames of the module of a function that call each other together.
    CollapseModule(u32),
}

/// A question for a flame graph.
#[derive(Clone, Debug)]
pub struct FlameAsk {
    /// The figure.
    pub metric: Metric,
    /// The root's children are the functions that ask for memory, and their children are the callers.
    pub bottom_up: bool,
    /// Shows the part below this path of functions, from the root on.
    pub root: Vec<u32>,
    /// Greatest number of levels below the root; 0: all.
    pub depth: usize,
    /// Nodes smaller than one of this many parts of the shown total are put together; 0: none is.
    pub prune: u64,
    /// Greatest number of nodes.
    pub most: usize,
    /// Changes of the stacks, one after the other.
    pub transforms: Vec<Transform>,
    /// Ticks of the moment that the figures describe; `None`: the end.
    pub at: Option<Ticks>,
}

impl Default for FlameAsk {
    fn default() -> Self {
        Self {
            metric: Metric::Live,
            bottom_up: false,
            root: Vec::new(),
            depth: 0,
            prune: 2000,
            most: 20_000,
            transforms: Vec::new(),
            at: None,
        }
    }
}

/// A flame graph. Node 0 is the root; a node stands behind its parent, and children of a node follow each other by
/// value, the largest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Flame {
    /// The functions of the nodes.
    pub names: Vec<FlameName>,
    /// For each node its parent; of the root itself.
    pub parent: Vec<u32>,
    /// For each node the index of its function in `names`.
    pub name: Vec<u32>,
    /// For each node its value.
    pub value: Vec<u64>,
    /// For each node the value of the stacks that end there.
    pub own: Vec<u64>,
    /// For each node its value in what it is compared with; empty without a comparison.
    pub base: Vec<u64>,
    /// For each node the number of its children that are not shown.
    pub others: Vec<u32>,
    /// For each node the value of these children.
    pub others_value: Vec<u64>,
    /// For each node the value of these children in what it is compared with; empty without a comparison.
    pub others_base: Vec<u64>,
    /// Value of all stacks.
    pub total: u64,
    /// Value of all stacks in what it is compared with.
    pub base_total: u64,
}

/// A function of a flame graph.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FlameName {
    /// Number of the function, for `root` and transforms; `None` of the root, and of nodes that are no functions.
    pub id: Option<u32>,
    /// The function.
    #[serde(flatten)]
    pub function: FunctionData,
}

/// Number of the node of stacks whose outer frames are missing.
const CUT: u32 = u32::MAX;
/// Number of the node of blocks without a stack.
const NO_STACK: u32 = u32::MAX - 1;

/// Hashes pairs of small numbers.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }

    fn write_u64(&mut self, n: u64) {
        let mixed = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Clone, Copy, Default)]
struct Node {
    parent: u32,
    function: u32,
    value: u64,
    own: u64,
    base: u64,
}

/// A tree while it grows.
struct Tree {
    nodes: Vec<Node>,
    children: HashMap<u64, u32, BuildHasherDefault<Mix>>,
}

impl Tree {
    fn new() -> Self {
        Self { nodes: vec![Node::default()], children: HashMap::default() }
    }

    fn add(&mut self, path: &[u32], value: u64, base: u64) {
        let mut at = 0u32;
        let add = |n: &mut Node| {
            n.value = n.value.wrapping_add(value);
            n.base = n.base.wrapping_add(base);
        };
        add(&mut self.nodes[0]);
        for &function in path {
            let next = self.nodes.len() as u32;
            let key = u64::from(at) << 32 | u64::from(function);
            let child = *self.children.entry(key).or_insert(next);
            if child == next {
                self.nodes.push(Node { parent: at, function, ..Node::default() });
            }
            add(&mut self.nodes[child as usize]);
            at = child;
        }
        let last = &mut self.nodes[at as usize];
        last.own = last.own.wrapping_add(value);
    }
}

/// Returns the path of a group's stack from the root on; `None` if a transform removes it.
fn path_of(stacks: &Stacks, group: usize, ask: &FlameAsk, out: &mut Vec<u32>) -> Option<()> {
    out.clear();
    let cut = stacks.is_cut(group);
    // Innermost last, while transforms are applied.
    out.extend(cut.then_some(CUT));
    let asker = if ask.bottom_up { stacks.asker(group) } else { 0 };
    let inwards = stacks.functions_of(group).rev();
    let shown = stacks.stack(group).len().saturating_sub(asker);
    out.extend(inwards.take(shown));
    if out.is_empty() {
        out.push(NO_STACK);
    }
    let functions = stacks.functions();
    for t in &ask.transforms {
        match t {
            Transform::Focus(f) => {
                let at = out.iter().position(|o| o == f)?;
                out.drain(..at);
            }
            Transform::Merge(f) => out.retain(|o| o != f),
            Transform::Drop(f) if out.contains(f) => return None,
            Transform::Drop(_) => {}
            Transform::CollapseRecursion => out.dedup(),
            Transform::CollapseModule(f) => {
                let module = functions.get(*f as usize).and_then(|f| f.module.as_ref());
                let is = |o: &u32| {
                    module.is_some()
                        && functions.get(*o as usize).and_then(|f| f.module.as_ref()) == module
                };
                out.dedup_by(|next, before| is(next) && is(before));
            }
        }
    }
    if ask.bottom_up {
        out.reverse();
    }
    if !out.starts_with(&ask.root) {
        return None;
    }
    out.drain(..ask.root.len());
    if ask.depth > 0 {
        out.truncate(ask.depth);
    }
    Some(())
}

/// Returns the selected blocks' figures by group.
fn sums(index: &Index, query: &Query<'_>, ask: &FlameAsk) -> Result<Vec<Group>, ScanError> {
    let analysis = index.analysis();
    let at = match ask.metric {
        Metric::Peak if query.is_all() && ask.at.is_none() => Some(analysis.totals().peak_ticks),
        Metric::Peak => Some(query.analysis(ask.at)?.totals().peak_ticks),
        _ => ask.at,
    };
    Ok(query.sums(By::Stacks, analysis.groups().len(), at)?.0)
}

/// Makes a flame graph of the selected blocks.
///
/// # Errors
/// If the index can't be read, or the job of this thread is cancelled.
pub fn flame(index: &Index, query: &Query<'_>, ask: &FlameAsk) -> Result<Flame, ScanError> {
    Ok(flame_of(index.stacks(), &sums(index, query, ask)?, ask))
}

/// Makes a flame graph of groups whose figures are known, as those of a recording that grows are. The node of a group
/// is the index of its stack.
pub fn flame_of(stacks: &Stacks, groups: &[Group], ask: &FlameAsk) -> Flame {
    let (mut tree, mut path) = (Tree::new(), Vec::new());
    for g in groups {
        if path_of(stacks, g.node as usize, ask, &mut path).is_some() {
            tree.add(&path, ask.metric.of(g), 0);
        }
    }
    pruned(&tree, stacks.functions(), ask, false)
}

/// Makes a flame graph of the selected blocks of one recording, compared with those of another one, or of the same.
/// Functions are matched by name and module; transforms and root name functions of the first.
///
/// # Errors
/// If an index can't be read, or the job of this thread is cancelled.
pub fn flame_diff(
    (index, query): (&Index, &Query<'_>),
    (other, base): (&Index, &Query<'_>),
    ask: &FlameAsk,
) -> Result<Flame, ScanError> {
    let stacks = index.stacks();
    let mut functions = stacks.functions().to_vec();
    let mut tree = Tree::new();
    let mut path = Vec::new();
    for g in &sums(index, query, ask)? {
        if path_of(stacks, g.node as usize, ask, &mut path).is_some() {
            tree.add(&path, ask.metric.of(g), 0);
        }
    }
    // The other recording's functions get the numbers of this one's, or further ones.
    let key = |f: &FunctionData| (f.name.clone(), f.module.clone());
    let mut ids: HashMap<_, u32> = functions.iter().map(key).zip(0..).collect();
    let theirs = other.stacks();
    let mut here = Vec::new();
    for f in theirs.functions() {
        let next = functions.len() as u32;
        let id = *ids.entry(key(f)).or_insert(next);
        if id == next {
            functions.push(f.clone());
        }
        here.push(id);
    }
    let there: HashMap<u32, u32> = here.iter().copied().zip(0..).collect();
    let id = |f: &u32| there.get(f).copied().unwrap_or(NO_STACK - 1);
    let transforms = ask.transforms.iter().map(|t| match t {
        Transform::Focus(f) => Transform::Focus(id(f)),
        Transform::Merge(f) => Transform::Merge(id(f)),
        Transform::Drop(f) => Transform::Drop(id(f)),
        Transform::CollapseModule(f) => Transform::CollapseModule(id(f)),
        Transform::CollapseRecursion => Transform::CollapseRecursion,
    });
    let special = |f: &u32| if *f >= NO_STACK { *f } else { id(f) };
    let their_ask = FlameAsk {
        transforms: transforms.collect(),
        root: ask.root.iter().map(special).collect(),
        ..ask.clone()
    };
    for g in &sums(other, base, &their_ask)? {
        if path_of(theirs, g.node as usize, &their_ask, &mut path).is_some() {
            path.iter_mut().filter(|f| **f < NO_STACK).for_each(|f| *f = here[*f as usize]);
            tree.add(&path, 0, ask.metric.of(g));
        }
    }
    Ok(pruned(&tree, &functions, ask, true))
}

/// The callers and the callees of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sandwich {
    /// The root's child is the function, and its children are its callers.
    pub callers: Flame,
    /// The root's child is the function, and its children are what it calls.
    pub callees: Flame,
}

/// Makes flame graphs of the callers and of the callees of a function, or of those that have its name in several
/// modules. Of a function that calls itself, the outermost call counts, so that each block counts once.
///
/// # Errors
/// If the index can't be read, or the job of this thread is cancelled.
pub fn sandwich(
    index: &Index,
    query: &Query<'_>,
    is_function: impl Fn(u32) -> bool,
    ask: &FlameAsk,
) -> Result<Sandwich, ScanError> {
    let (stacks, groups) = (index.stacks(), sums(index, query, ask)?);
    let ask = FlameAsk { root: Vec::new(), bottom_up: false, ..ask.clone() };
    let (mut callers, mut callees, mut path) = (Tree::new(), Tree::new(), Vec::new());
    let depth = if ask.depth == 0 { usize::MAX } else { ask.depth };
    let whole = FlameAsk { depth: 0, ..ask.clone() };
    for g in &groups {
        if path_of(stacks, g.node as usize, &whole, &mut path).is_none() {
            continue;
        }
        let Some(at) = path.iter().position(|f| is_function(*f)) else { continue };
        let value = ask.metric.of(g);
        callees.add(&path[at..path.len().min(at.saturating_add(depth))], value, 0);
        path.truncate(at + 1);
        path.reverse();
        callers.add(&path[..path.len().min(depth)], value, 0);
    }
    let functions = stacks.functions();
    Ok(Sandwich {
        callers: pruned(&callers, functions, &ask, false),
        callees: pruned(&callees, functions, &ask, false),
    })
}

/// Returns the nodes of a tree that are large enough, in columns.
fn pruned(tree: &Tree, functions: &[FunctionData], ask: &FlameAsk, compares: bool) -> Flame {
    let nodes = &tree.nodes;
    let size = |n: &Node| n.value.max(n.base);
    let mut least = size(&nodes[0]).checked_div(ask.prune).unwrap_or(0);
    let mut sizes: Vec<u64> = nodes[1..].iter().map(size).filter(|s| *s >= least).collect();
    if sizes.len() > ask.most {
        // A parent is at least as large as its child, so all nodes above a limit are a tree.
        let (_, at, _) = sizes.select_nth_unstable_by_key(ask.most, |s| Reverse(*s));
        least = at.saturating_add(1);
    }
    let mut children: Vec<Vec<u32>> = vec![Vec::new(); nodes.len()];
    let mut others = vec![(0u32, 0u64, 0u64); nodes.len()];
    for (i, n) in nodes.iter().enumerate().skip(1) {
        // Nodes without a value are shown only if everything is.
        if size(n) < least.max(u64::from(ask.prune > 0)) {
            let o = &mut others[n.parent as usize];
            *o = (o.0 + 1, o.1.wrapping_add(n.value), o.2.wrapping_add(n.base));
        } else {
            children[n.parent as usize].push(i as u32);
        }
    }
    let mut f = Flame { total: nodes[0].value, base_total: nodes[0].base, ..Flame::default() };
    let mut names: HashMap<u32, u32> = HashMap::new();
    f.names.push(FlameName::default());
    let mut open = vec![(0u32, 0u32)];
    while let Some((i, parent)) = open.pop() {
        let n = &nodes[i as usize];
        let at = f.parent.len() as u32;
        let name = match i {
            0 => 0,
            _ => *names.entry(n.function).or_insert_with(|| {
                f.names.push(name_of(n.function, functions));
                f.names.len() as u32 - 1
            }),
        };
        f.parent.push(parent);
        f.name.push(name);
        f.value.push(n.value);
        f.own.push(n.own);
        if compares {
            f.base.push(n.base);
            f.others_base.push(others[i as usize].2);
        }
        f.others.push(others[i as usize].0);
        f.others_value.push(others[i as usize].1);
        let mut below = std::mem::take(&mut children[i as usize]);
        below.sort_by_key(|c| (size(&nodes[*c as usize]), Reverse(nodes[*c as usize].function)));
        // The last that is pushed, the largest, comes next.
        open.extend(below.into_iter().map(|c| (c, at)));
    }
    f
}

fn name_of(function: u32, functions: &[FunctionData]) -> FlameName {
    let special = |name: &str| FlameName {
        id: Some(function),
        function: FunctionData { name: name.to_owned(), ..FunctionData::default() },
    };
    match function {
        CUT => special("cut short: the outer frames are not known"),
        NO_STACK => special("no stack"),
        f => FlameName {
            id: Some(f),
            function: functions.get(f as usize).cloned().unwrap_or_default(),
        },
    }
}
