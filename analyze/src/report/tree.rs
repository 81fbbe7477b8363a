//! Reports blocks by stack, as a tree: from the start of the threads inwards, or from the functions that ask for memory
//! outwards.

use super::block_stats::{Adder, SumData};
use super::places::{PlaceData, Places};
use super::rows::{Ask, ViewOptions, side};
use super::unnamed::SymbolsData;
use super::{Head, KernelData, SortKey};
use crate::Analysis;
use crate::change::{Change, Side};
use crate::heap::Group;
use prof_trace::ticks::Ticks;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::HashMap;

/// Greatest depth of a tree, as its readers may use recursion.
pub const DEEPEST: usize = 512;

/// Nodes with less than one of this many parts of the total are summed up, unless all are asked for.
const LEAST: u64 = 1000;

/// A tree of stacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tree {
    /// Version of this format: 1.
    pub version: u32,
    /// Describes the recording.
    #[serde(flatten)]
    pub head: Head,
    /// The last reading of the target's memory.
    pub kernel: Option<KernelData>,
    /// The root's children are the functions that ask for memory, and their children are the callers.
    pub bottom_up: bool,
    /// The key that children are sorted by.
    pub sort: SortKey,
    /// The earlier moment of a comparison, in nanoseconds since the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_ns: Option<u64>,
    /// The root: all stacks.
    pub tree: NodeData,
    /// Statistics of the symbolised code addresses.
    pub symbols: SymbolsData,
}

/// A node: all stacks that begin with the same frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeData {
    /// Frame of the node; `None` for the root, and for nodes with `what`.
    pub place: Option<PlaceData>,
    /// Text for a node that is not a frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub what: Option<&'static str>,
    /// Figures of all its stacks.
    #[serde(flatten)]
    pub sums: SumData,
    /// Time when the first of its blocks was allocated, in nanoseconds since the start.
    pub first_ns: u64,
    /// Time when the last of its blocks was allocated, in nanoseconds since the start.
    pub last_ns: u64,
    /// Figures at the earlier moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Side>,
    /// Change since the earlier moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
    /// Figures of the stacks that end here, or continue deeper than is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own: Option<SumData>,
    /// Some of its stacks continue deeper than is shown.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deeper: bool,
    /// The next frames, the largest first.
    pub children: Vec<NodeData>,
    /// Sums of the children that are not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rest: Option<RestNodeData>,
}

/// Sums of the children that are not shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RestNodeData {
    /// Number of these children.
    pub nodes: u64,
    /// Sums of their figures.
    #[serde(flatten)]
    pub sums: SumData,
}

/// The kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    All,
    Place(u32),
    CutShort,
    NoStack,
}

#[derive(Clone)]
struct Node {
    what: What,
    sum: Adder,
    before: Side,
    own: Adder,
    stacks_here: bool,
    first: Ticks,
    last: Ticks,
    oldest: Ticks,
    deeper: bool,
    children: Vec<usize>,
}

impl Node {
    fn new(what: What) -> Self {
        Self {
            what,
            sum: Adder::default(),
            before: Side::default(),
            own: Adder::default(),
            stacks_here: false,
            first: Ticks::MAX,
            last: Ticks::ZERO,
            oldest: Ticks::MAX,
            deeper: false,
            children: Vec::new(),
        }
    }

    fn add(&mut self, g: &Group, before: &Side) {
        self.sum.add(g);
        self.before.live_bytes = self.before.live_bytes.wrapping_add(before.live_bytes);
        self.before.live_count += before.live_count;
        self.before.allocated_bytes =
            self.before.allocated_bytes.wrapping_add(before.allocated_bytes);
        self.before.allocations += before.allocations;
        self.before.temporary += before.temporary;
        self.first = self.first.min(g.first);
        self.last = self.last.max(g.last);
        self.oldest = self.oldest.min(g.oldest.unwrap_or(Ticks::MAX));
    }

    fn change(&self) -> Change {
        self.before.to(&side(self.sum.figures()))
    }

    fn value(&self, sort: SortKey, changes: bool) -> u64 {
        if changes {
            let c = self.change();
            let value = match sort {
                SortKey::Count => c.live_count,
                SortKey::Allocated => c.allocated_bytes,
                SortKey::Allocations => c.allocations,
                SortKey::Temporary => c.temporary,
                _ => c.live_bytes,
            };
            return value.unsigned_abs();
        }
        let f = self.sum.figures();
        match sort {
            SortKey::Count => f.live_count,
            SortKey::Allocated => f.allocated_bytes,
            SortKey::Allocations => f.allocations + f.reallocations,
            SortKey::Temporary => f.temporary,
            SortKey::Age if self.oldest == Ticks::MAX => 0,
            SortKey::Age => Ticks::MAX - self.oldest,
            SortKey::First => self.first.0,
            SortKey::Last => self.last.0,
            SortKey::Interval => self.last.since(self.first),
            _ => f.live_bytes,
        }
    }
}

impl SortKey {
    /// Returns whether the values of children add up to that of their parent.
    fn adds_up(self) -> bool {
        !matches!(self, SortKey::Age | SortKey::First | SortKey::Last | SortKey::Interval)
    }

    /// Returns whether trees can be sorted by this key: peaks of stacks do not add up.
    pub fn is_of_trees(self) -> bool {
        !matches!(self, SortKey::PeakSize | SortKey::PeakCount | SortKey::PeakAt)
    }
}

struct Builder<'a> {
    analysis: &'a Analysis,
    options: &'a ViewOptions,
    /// The tree is compared with an earlier moment.
    changes: bool,
    places: Places<'a>,
    nodes: Vec<Node>,
    by_parent: HashMap<(usize, What), usize>,
}

impl Builder<'_> {
    fn path(&mut self, g: &Group, depth: usize) -> (Vec<What>, bool) {
        let mut stack = self.places.stack(g.node);
        let cut = self.analysis.meta().is_cut(g.node);
        if stack.is_empty() && !cut {
            return (vec![What::NoStack], false);
        }
        let mut path = Vec::new();
        if self.options.bottom_up {
            let at = self.places.asker(&stack).unwrap_or(0);
            path.extend(stack.drain(..).skip(at).map(What::Place));
            path.extend(cut.then_some(What::CutShort));
        } else {
            path.extend(cut.then_some(What::CutShort));
            path.extend(stack.drain(..).rev().map(What::Place));
        }
        let deeper = path.len() > depth;
        path.truncate(depth);
        (path, deeper)
    }

    fn add(&mut self, g: &Group, before: &Side, depth: usize) {
        let (path, deeper) = self.path(g, depth);
        let mut at = 0;
        self.nodes[0].add(g, before);
        for what in path {
            let next = match self.by_parent.get(&(at, what)) {
                Some(next) => *next,
                None => {
                    let next = self.nodes.len();
                    self.nodes.push(Node::new(what));
                    self.nodes[at].children.push(next);
                    self.by_parent.insert((at, what), next);
                    next
                }
            };
            self.nodes[next].add(g, before);
            at = next;
        }
        let last = &mut self.nodes[at];
        last.own.add(g);
        last.stacks_here = true;
        last.deeper |= deeper;
    }

    fn data(&self, at: usize) -> NodeData {
        let (node, options, changes) = (&self.nodes[at], self.options, self.changes);
        let value = |i: usize| self.nodes[i].value(options.sort, changes);
        let mut children = node.children.clone();
        children.sort_by_key(|i| {
            let f = self.nodes[*i].sum.figures();
            (Reverse((value(*i), f.live_bytes, f.allocated_bytes, f.allocations)), *i)
        });
        let shown = match options.top {
            0 => children.len(),
            top => {
                let least = match options.sort.adds_up() {
                    true => value(0) / LEAST,
                    false => 0,
                };
                let nothing = |i: &usize| value(*i) < least.max(u64::from(!options.empty));
                children.iter().position(nothing).unwrap_or(children.len()).min(top)
            }
        };
        if options.reverse {
            children[..shown].reverse();
        }
        let capture = self.analysis.capture();
        let clock = &self.analysis.meta().clock;
        let rest = (shown < children.len()).then(|| {
            let mut sum = Adder::default();
            children[shown..].iter().for_each(|i| sum.join(&self.nodes[*i].sum));
            let nodes = (children.len() - shown) as u64;
            RestNodeData { nodes, sums: sum.data(capture) }
        });
        let (place, what) = match node.what {
            What::Place(id) => (Some(self.places.get(id).clone()), None),
            What::All => (None, None),
            What::CutShort => (None, Some("cut short: the outer frames are not known")),
            What::NoStack => (None, Some("no stack")),
        };
        let time = |t: Ticks| if t == Ticks::MAX { 0 } else { clock.ns(t) };
        NodeData {
            place,
            what,
            sums: node.sum.data(capture),
            first_ns: time(node.first),
            last_ns: time(node.last),
            before: changes.then_some(node.before),
            change: changes.then(|| node.change()),
            own: node.stacks_here.then(|| node.own.data(capture)),
            deeper: node.deeper,
            children: children[..shown].iter().map(|i| self.data(*i)).collect(),
            rest,
        }
    }
}

impl Tree {
    /// Builds the tree of the selected blocks.
    pub fn new(ask: &Ask<'_>) -> Self {
        Self::of(&ask.analysis, ask.before.as_ref(), &ask.options)
    }

    /// Builds the tree of all stacks of a recording, compared with those of an earlier moment.
    pub fn of(analysis: &Analysis, before: Option<&Analysis>, options: &ViewOptions) -> Self {
        let depth = match options.depth {
            0 => DEEPEST,
            n => n.min(DEEPEST),
        };
        let mut builder = Builder {
            analysis,
            options,
            changes: before.is_some(),
            places: Places::new(analysis),
            nodes: vec![Node::new(What::All)],
            by_parent: HashMap::new(),
        };
        let earlier = before.iter().flat_map(|b| b.groups());
        let earlier: HashMap<u32, Side> = earlier.map(|g| (g.node, side(&g.figures))).collect();
        for g in analysis.groups() {
            let before = earlier.get(&g.node).copied().unwrap_or_default();
            builder.add(g, &before, depth);
        }
        Self {
            version: 1,
            head: Head::new(analysis, &options.filter),
            kernel: KernelData::new(analysis),
            bottom_up: options.bottom_up,
            sort: options.sort,
            base_ns: options.base.map(|t| analysis.meta().clock.ns(t)),
            tree: builder.data(0),
            symbols: SymbolsData::new(&builder.places.symbols),
        }
    }

    /// Returns the tree as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}
