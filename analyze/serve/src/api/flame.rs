//! Flame graphs, in columns, and the two halves of a sandwich.

use crate::data;
use crate::names::Names;
use crate::reply::{Answer, Failure};
use crate::route::Ask;
use prof_analyze::export::Cost;
use prof_analyze::model::Group;
use prof_analyze::query::{By, Filter, Query};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Nodes that have less than this part of the total are put together.
const SMALLEST: u64 = 2000;
/// Greatest number of nodes of a reply.
const MOST_NODES: usize = 20_000;
/// Greatest depth.
const DEEPEST: usize = 4096;
/// The frame of nodes that are put together, and of the root.
const NO_FRAME: i64 = -1;

/// A node while the graph is built.
#[derive(Default)]
struct Node {
    value: u64,
    own: u64,
    base: u64,
    children: HashMap<u32, usize>,
}

/// A graph while it is built.
pub(super) struct Graph {
    nodes: Vec<Node>,
}

/// A graph in columns. The parents of nodes come before them.
#[derive(Default, Serialize)]
pub(super) struct Columns {
    parent: Vec<i64>,
    frame: Vec<i64>,
    value: Vec<u64>,
    #[serde(rename = "self")]
    own: Vec<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base: Option<Vec<u64>>,
}

impl Graph {
    pub(super) fn new() -> Self {
        Self { nodes: vec![Node::default()] }
    }

    /// Adds a stack, the outermost place first.
    pub(super) fn add(&mut self, places: impl Iterator<Item = u32>, value: u64, base: u64) {
        let mut at = 0;
        self.count(at, value, base);
        for place in places.take(DEEPEST) {
            let next = self.nodes.len();
            let child = *self.nodes[at].children.entry(place).or_insert(next);
            if child == next {
                self.nodes.push(Node::default());
            }
            at = child;
            self.count(at, value, base);
        }
        self.nodes[at].own = self.nodes[at].own.saturating_add(value);
    }

    fn count(&mut self, node: usize, value: u64, base: u64) {
        let n = &mut self.nodes[node];
        n.value = n.value.saturating_add(value);
        n.base = n.base.saturating_add(base);
    }

    /// Returns the graph in columns, largest children first, with the places that it uses and the number of nodes that
    /// were put together.
    pub(super) fn columns(&self, names: &Names, with_base: bool, prune: u64) -> Value {
        let total = self.nodes[0].value.max(self.nodes[0].base);
        let least = (total / prune.max(1)).max(1);
        let mut c = Columns { base: with_base.then(Vec::new), ..Columns::default() };
        let mut frames: HashMap<u32, i64> = HashMap::new();
        let mut used: Vec<u32> = Vec::new();
        let mut others = 0u64;
        // Breadth first, so that the limit takes the deepest.
        let mut queue = std::collections::VecDeque::from([(0usize, -1i64, None::<u32>)]);
        while let Some((node, parent, place)) = queue.pop_front() {
            let n = &self.nodes[node];
            let frame = place.map_or(NO_FRAME, |p| {
                *frames.entry(p).or_insert_with(|| {
                    used.push(p);
                    used.len() as i64 - 1
                })
            });
            let here = c.push(parent, frame, n.value, n.own, n.base);
            let mut children: Vec<(&u32, &usize)> = n.children.iter().collect();
            let weight = |i: usize| self.nodes[i].value.max(self.nodes[i].base);
            let name = |p: &u32| &names.places[*p as usize];
            children.sort_by(|a, b| {
                weight(*b.1).cmp(&weight(*a.1)).then_with(|| name(a.0).cmp(name(b.0)))
            });
            let (mut cut, mut cut_value, mut cut_base) = (0u64, 0u64, 0u64);
            for (place, &child) in children {
                if weight(child) < least || c.parent.len() + queue.len() >= MOST_NODES {
                    cut += 1;
                    cut_value = cut_value.saturating_add(self.nodes[child].value);
                    cut_base = cut_base.saturating_add(self.nodes[child].base);
                } else {
                    queue.push_back((child, here, Some(*place)));
                }
            }
            if cut > 0 && cut_value.max(cut_base) > 0 {
                c.push(here, NO_FRAME, cut_value, cut_value, cut_base);
                others += cut;
            }
        }
        let frame = |p: &u32| {
            let (place, (file, line, inlined)) =
                (&names.places[*p as usize], &names.seen[*p as usize]);
            json!({
                "name": place.name,
                "module": place.module,
                "file": file.as_deref(),
                "line": line,
                "inlined": inlined,
            })
        };
        json!({
            "total": self.nodes[0].value,
            "base_total": with_base.then_some(self.nodes[0].base),
            "frames": used.iter().map(frame).collect::<Vec<_>>(),
            "nodes": c,
            "others": others,
        })
    }
}

impl Columns {
    fn push(&mut self, parent: i64, frame: i64, value: u64, own: u64, base: u64) -> i64 {
        self.parent.push(parent);
        self.frame.push(frame);
        self.value.push(value);
        self.own.push(own);
        if let Some(column) = &mut self.base {
            column.push(base);
        }
        self.parent.len() as i64 - 1
    }
}

/// Returns the value of a group.
pub(super) fn cost(g: &Group, cost: Cost) -> u64 {
    let f = &g.figures;
    match cost {
        Cost::Live | Cost::Leaked | Cost::Peak => f.live_bytes,
        Cost::Allocated => f.allocated_bytes,
        Cost::Allocations => f.allocations + f.reallocations,
        Cost::Temporary => f.temporary,
    }
}

/// Computes the values of stacks by a metric, with their nodes.
pub(super) fn values(
    ask: &Ask,
    query: &Query<'_>,
    metric: Cost,
    at: Option<u64>,
) -> Result<Vec<(u32, u64)>, Failure> {
    let at = match metric {
        Cost::Peak => Some(query.analysis(at)?.totals().peak_ticks),
        Cost::Leaked => None,
        _ => at,
    };
    let groups = ask.index().analysis().groups();
    let (sums, _) = query.sums(By::Stacks, groups.len(), at)?;
    // The class of a stack is the index of its group.
    let value = |g: &Group| Some((groups.get(g.node as usize)?.node, cost(g, metric)));
    Ok(sums.iter().filter_map(value).collect())
}

/// The parameters of a graph, besides the filter.
pub(super) struct Wanted {
    pub metric: Cost,
    pub at: Option<u64>,
    pub prune: u64,
}

/// Takes the parameters that graphs have in common.
pub(super) fn wanted(ask: &mut Ask) -> Result<Wanted, Failure> {
    let words: Vec<(&str, Cost)> = data::METRICS.iter().map(|m| (m.0, m.3)).collect();
    let metric = ask.params.one_of("metric", &words)?.unwrap_or_default();
    let peak = ask.params.switch("peak")?.unwrap_or(false);
    let at = data::moment(ask.open.index.analysis(), &mut ask.params, "at")?;
    let at = if peak { Some(ask.index().analysis().totals().peak_ticks) } else { at };
    let prune = ask.params.number("prune", 1 << 20)?.unwrap_or(SMALLEST);
    Ok(Wanted { metric, at, prune })
}

/// Takes the range of time that a graph is compared with.
fn base(ask: &mut Ask, filter: &Filter) -> Result<Option<Filter>, Failure> {
    let (start, end) = (ask.params.take("base-start")?, ask.params.take("base-end")?);
    if start.is_none() && end.is_none() {
        return Ok(None);
    }
    // The range takes the place of that of the filter.
    let mut other = Filter::default();
    for (name, value) in filter.given().iter().filter(|(n, _)| !matches!(*n, "from" | "to")) {
        other.set(name, value).map_err(|e| Failure::bad(e.to_string()))?;
    }
    for (name, bound) in [("from", start), ("to", end)] {
        if let Some(text) = bound {
            let text =
                if text.bytes().all(|b| b.is_ascii_digit()) { format!("{text}ns") } else { text };
            other.set(name, &text).map_err(|e| Failure::bad(e.to_string()))?;
        }
    }
    Ok(Some(other))
}

fn with_head(mut graph: Value, wanted: &Wanted, dir: &str) -> Value {
    let unit = data::METRICS.iter().find(|m| m.3 == wanted.metric).map_or("bytes", |m| m.2);
    graph["metric"] = wanted.metric.name().into();
    graph["unit"] = unit.into();
    graph["dir"] = dir.into();
    graph
}

/// A flame graph: from the start of the threads inwards, or from the functions that asked for memory outwards.
pub(crate) fn flame(ask: &mut Ask) -> Result<Answer, Failure> {
    let up = ask.params.one_of("dir", &[("down", false), ("up", true)])?.unwrap_or(false);
    let wanted = wanted(ask)?;
    let filter = ask.params.filter()?;
    let base = base(ask, &filter)?;
    let now = values(ask, &data::query(ask, &filter)?, wanted.metric, wanted.at)?;
    let before = match &base {
        Some(base) => values(ask, &data::query(ask, base)?, wanted.metric, None)?,
        None => Vec::new(),
    };
    let names = ask.open.names();
    let mut both: HashMap<u32, (u64, u64)> = HashMap::new();
    for (node, value) in now {
        both.entry(node).or_default().0 += value;
    }
    for (node, value) in before {
        both.entry(node).or_default().1 += value;
    }
    let mut graph = Graph::new();
    for (node, (value, base)) in both {
        if value == 0 && base == 0 {
            continue;
        }
        let Some(stack) = names.stack(node) else { continue };
        if up {
            let from = stack.asker.min(stack.places.len());
            graph.add(stack.places[from..].iter().copied(), value, base);
        } else {
            graph.add(stack.places.iter().rev().copied(), value, base);
        }
    }
    let columns = graph.columns(names, base.is_some(), wanted.prune);
    Answer::json(&with_head(columns, &wanted, if up { "up" } else { "down" }))
}

/// The callers and the callees of a function. A stack counts once, also if the function is in it several times.
pub(crate) fn sandwich(ask: &mut Ask) -> Result<Answer, Failure> {
    let function =
        ask.params.take("function")?.ok_or_else(|| Failure::of("function", "is needed"))?;
    let wanted = wanted(ask)?;
    // The function of a sandwich is the one in its middle, not a condition on stacks.
    let filter = ask.params.filter()?;
    let values = values(ask, &data::query(ask, &filter)?, wanted.metric, wanted.at)?;
    let names = ask.open.names();
    let (mut callers, mut callees) = (Graph::new(), Graph::new());
    for (node, value) in values.into_iter().filter(|v| v.1 > 0) {
        let Some(stack) = names.stack(node) else { continue };
        let is = |p: &u32| names.places[*p as usize].name == function;
        let Some(outermost) = stack.places.iter().rposition(is) else { continue };
        callers.add(stack.places[outermost..].iter().copied(), value, 0);
        callees.add(stack.places[..=outermost].iter().rev().copied(), value, 0);
    }
    let half =
        |graph: Graph, dir| with_head(graph.columns(names, false, wanted.prune), &wanted, dir);
    Answer::json(&json!({
        "function": function,
        "callers": half(callers, "up"),
        "callees": half(callees, "down"),
    }))
}
