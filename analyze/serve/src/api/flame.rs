//! Flame graphs, in columns, and the two halves of a sandwich.

use crate::ask::Ask;
use crate::data;
use crate::reply::{Answer, Failure};
use prof_analyze::answers::{self, Flame, FlameAsk, Metric, Transform};
use prof_analyze::heap::Group;
use prof_analyze::query::{Filter, Query};
use prof_analyze::stacks::Stacks;
use prof_analyze::{Analysis, Index};
use serde_json::{Value, json};

/// Nodes that have less than this part of the total are put together.
const SMALLEST: u64 = 2000;
/// Greatest number of nodes of a reply.
const MOST_NODES: usize = 20_000;
/// Greatest number of levels of a root, and of transforms.
const DEEPEST: usize = 1000;
/// The frame of nodes that are put together, and of the root.
const NO_FRAME: i64 = -1;

/// The parameters of a graph, besides the filter.
struct Wanted {
    /// Name and unit of the metric.
    metric: (&'static str, &'static str),
    /// The metric was asked for; else another one may take its place.
    given: bool,
    ask: FlameAsk,
}

/// A node's place among the parameters: the numbers of functions from the root on, with dots between them.
fn root(text: &str) -> Result<Vec<u32>, Failure> {
    let parts: Vec<&str> = text.split('.').filter(|p| !p.is_empty()).collect();
    if parts.len() > DEEPEST {
        return Err(Failure::of("root", "is too deep"));
    }
    let id = |p: &&str| p.parse().map_err(|_| Failure::of("root", format!("{p:?} is no id")));
    parts.iter().map(id).collect()
}

/// Changes of the stacks: words with the number of a function behind a dot, with commas between them.
fn transforms(text: &str) -> Result<Vec<Transform>, Failure> {
    let wrong = |part: &str| {
        let words = "focus.ID, merge.ID, drop.ID, collapse-module.ID, collapse-recursion";
        Failure::of("transforms", format!("{part:?}: give {words}, separated by commas"))
    };
    let parts: Vec<&str> = text.split(',').filter(|p| !p.is_empty()).collect();
    if parts.len() > DEEPEST {
        return Err(Failure::of("transforms", "are too many"));
    }
    let one = |part: &&str| {
        if *part == "collapse-recursion" {
            return Ok(Transform::CollapseRecursion);
        }
        let (word, id) = part.split_once('.').ok_or_else(|| wrong(part))?;
        let id = id.parse().map_err(|_| wrong(part))?;
        match word {
            "focus" => Ok(Transform::Focus(id)),
            "merge" => Ok(Transform::Merge(id)),
            "drop" => Ok(Transform::Drop(id)),
            "collapse-module" => Ok(Transform::CollapseModule(id)),
            _ => Err(wrong(part)),
        }
    };
    parts.iter().map(one).collect()
}

/// Takes the parameters that graphs have in common.
fn wanted(ask: &mut Ask) -> Result<Wanted, Failure> {
    let words = data::METRICS.map(|m| (m.0, m));
    let found = ask.params.one_of("metric", &words)?;
    let (name, _, unit, _, metric) = found.unwrap_or(data::METRICS[0]);
    let peak = ask.params.switch("peak")?.unwrap_or(false);
    let at = data::moment(ask.open.index.analysis(), &mut ask.params, "at")?;
    let at = if peak { Some(ask.index().analysis().totals().peak_ticks) } else { at };
    let at = if name == "leaked" { None } else { at };
    let prune = ask.params.number("prune", 1 << 20)?.unwrap_or(SMALLEST).max(1);
    let depth = ask.params.number("depth", DEEPEST as u64)?.unwrap_or(0) as usize;
    let transforms = transforms(&ask.params.take("transforms")?.unwrap_or_default())?;
    let ask =
        FlameAsk { metric, depth, prune, most: MOST_NODES, transforms, at, ..FlameAsk::default() };
    Ok(Wanted { metric: (name, unit), given: found.is_some(), ask })
}

impl Wanted {
    /// Takes another metric if the one that nobody asked for is 0, as it is of a program that has freed everything.
    /// Returns why.
    fn fall_back(&mut self, query: &Query<'_>) -> Option<&'static str> {
        if self.given {
            return None;
        }
        // The peak of a filter's blocks needs all events in their order, which takes long.
        let (name, metric, why) = if query.is_all() && self.ask.at.is_none() {
            (
                "peak",
                Metric::Peak,
                "nothing is live at the end: these are the live bytes at the peak",
            )
        } else {
            ("allocated", Metric::Allocated, "nothing is live there: these are the bytes allocated")
        };
        self.metric = (name, "bytes");
        self.ask.metric = metric;
        Some(why)
    }

    /// Makes a graph; with the reason if it is not of the metric that is usual.
    fn flame(
        &mut self,
        index: &Index,
        query: &Query<'_>,
    ) -> Result<(Flame, Option<&'static str>), Failure> {
        let flame = answers::flame(index, query, &self.ask)?;
        match if flame.total == 0 { self.fall_back(query) } else { None } {
            Some(why) => Ok((answers::flame(index, query, &self.ask)?, Some(why))),
            None => Ok((flame, None)),
        }
    }

    /// Makes a graph of the figures that are kept as a recording grows.
    fn in_place(&mut self, analysis: &Analysis, stacks: &Stacks, dir: &str) -> Value {
        let groups = analysis.groups().iter().zip(0..);
        let groups: Vec<Group> = groups.map(|(g, i)| Group { node: i, ..*g }).collect();
        let mut flame = answers::flame_of(stacks, &groups, &self.ask);
        let mut why = None;
        if flame.total == 0 && !self.given {
            why = Some("nothing is live now: these are the bytes allocated");
            (self.metric, self.ask.metric) = (("allocated", "bytes"), Metric::Allocated);
            flame = answers::flame_of(stacks, &groups, &self.ask);
        }
        self.reply(stacks, &flame, dir, why)
    }

    /// Returns a graph as the reply has it.
    fn reply(&self, stacks: &Stacks, flame: &Flame, dir: &str, why: Option<&str>) -> Value {
        let mut graph = columns(stacks, flame);
        graph["metric"] = self.metric.0.into();
        graph["unit"] = self.metric.1.into();
        graph["dir"] = dir.into();
        graph["why"] = why.into();
        graph
    }
}

/// Returns a graph in columns: parents before their children, and the nodes that are put together as a child without a
/// frame.
fn columns(stacks: &Stacks, flame: &Flame) -> Value {
    let compares = !flame.base.is_empty();
    let (mut parent, mut frame) = (Vec::new(), Vec::new());
    let (mut value, mut own, mut base) = (Vec::new(), Vec::new(), Vec::new());
    // Nodes that are put together stand between the others, so numbers differ.
    let mut numbers: Vec<i64> = Vec::with_capacity(flame.parent.len());
    let mut others = 0u64;
    for i in 0..flame.parent.len() {
        let number = parent.len() as i64;
        numbers.push(number);
        parent.push(if i == 0 { -1 } else { numbers[flame.parent[i] as usize] });
        frame.push(i64::from(flame.name[i]) - 1);
        value.push(flame.value[i]);
        own.push(flame.own[i]);
        base.extend(flame.base.get(i));
        others += u64::from(flame.others[i]);
        let cut = flame.others_value[i];
        let cut_base = flame.others_base.get(i).copied().unwrap_or(0);
        if flame.others[i] > 0 && cut.max(cut_base) > 0 {
            parent.push(number);
            frame.push(NO_FRAME);
            value.push(cut);
            own.push(cut);
            if compares {
                base.push(cut_base);
            }
        }
    }
    let frames: Vec<Value> = flame
        .names
        .iter()
        .skip(1)
        .map(|n| {
            let id = n.id.filter(|id| (*id as usize) < stacks.functions().len());
            let place =
                id.map(|id| stacks.first_place(id)).filter(|p| p.module == n.function.module);
            json!({
                "id": n.id,
                "name": n.function.name,
                "module": n.function.module,
                "file": n.function.file,
                "line": place.and_then(|p| p.line),
                "inlined": place.is_some_and(|p| p.inlined),
            })
        })
        .collect();
    let mut nodes = json!({ "parent": parent, "frame": frame, "value": value, "self": own });
    if compares {
        nodes["base"] = json!(base);
    }
    json!({
        "total": flame.total,
        "base_total": compares.then_some(flame.base_total),
        "frames": frames,
        "nodes": nodes,
        "others": others,
    })
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

/// Takes the direction of a graph.
fn direction(ask: &mut Ask) -> Result<bool, Failure> {
    Ok(ask.params.one_of("dir", &[("down", false), ("up", true)])?.unwrap_or(false))
}

fn word(up: bool) -> &'static str {
    if up { "up" } else { "down" }
}

/// A flame graph: from the start of the threads inwards, or from the functions that asked for memory outwards.
pub(crate) fn flame(ask: &mut Ask) -> Result<Answer, Failure> {
    let up = direction(ask)?;
    let mut wanted = wanted(ask)?;
    wanted.ask.bottom_up = up;
    wanted.ask.root = root(&ask.params.take("root")?.unwrap_or_default())?;
    if ask.in_place
        && let Some(now) = ask.now(|f, like| (f.analysis(like), f.stacks(like)))
    {
        let (analysis, stacks) = (now.0?, now.1?);
        return Answer::json(&wanted.in_place(&analysis, &stacks, word(up)));
    }
    let filter = ask.params.filter()?;
    let base = base(ask, &filter)?;
    let (index, query) = (ask.index(), data::query(ask, &filter)?);
    let (flame, why) = match &base {
        Some(base) => {
            let base = data::query(ask, base)?;
            let sides = ((index, &query), (index, &base));
            let mut flame = answers::flame_diff(sides.0, sides.1, &wanted.ask)?;
            let nothing = flame.total.max(flame.base_total) == 0;
            let why = if nothing { wanted.fall_back(&query) } else { None };
            if why.is_some() {
                flame = answers::flame_diff(sides.0, sides.1, &wanted.ask)?;
            }
            (flame, why)
        }
        None => wanted.flame(index, &query)?,
    };
    Answer::json(&wanted.reply(index.stacks(), &flame, word(up), why))
}

/// Two recordings, as a flame graph of the second with the values of the first beside it.
pub(crate) fn of_two(ask: &mut Ask) -> Result<Answer, Failure> {
    for side in ["before", "after"] {
        if !ask.variable(side).is_empty() {
            return Err(Failure::of(
                side,
                "graphs compare whole recordings: give an id without a time",
            ));
        }
    }
    let up = direction(ask)?;
    let mut wanted = wanted(ask)?;
    wanted.ask.bottom_up = up;
    let filter = ask.params.filter()?;
    let other = ask.other.clone();
    let other = other.ok_or_else(|| Failure::internal("no recording to compare with"))?;
    let (index, query) = (ask.index(), data::query(ask, &filter)?);
    let theirs = Query::new(&other.index, &filter)?;
    let sides = ((index, &query), (&other.index, &theirs));
    let mut flame = answers::flame_diff(sides.0, sides.1, &wanted.ask)?;
    let nothing = flame.total.max(flame.base_total) == 0;
    let why = if nothing { wanted.fall_back(&query) } else { None };
    if why.is_some() {
        flame = answers::flame_diff(sides.0, sides.1, &wanted.ask)?;
    }
    Answer::json(&wanted.reply(index.stacks(), &flame, word(up), why))
}

/// The callers and the callees of a function. A stack counts once, also if the function is in it several times.
pub(crate) fn sandwich(ask: &mut Ask) -> Result<Answer, Failure> {
    let function =
        ask.params.take("function")?.ok_or_else(|| Failure::of("function", "is needed"))?;
    let mut wanted = wanted(ask)?;
    // The function of a sandwich is the one in its middle, not a condition on stacks.
    let filter = ask.params.filter()?;
    let (index, query) = (ask.index(), data::query(ask, &filter)?);
    let functions = index.stacks().functions();
    let is: Vec<bool> = functions.iter().map(|f| f.name == function).collect();
    let is_it = |f: u32| is.get(f as usize).copied().unwrap_or(false);
    let mut found = answers::sandwich(index, &query, is_it, &wanted.ask)?;
    let nothing = found.callers.total == 0 && is.contains(&true);
    let why = if nothing { wanted.fall_back(&query) } else { None };
    if why.is_some() {
        found = answers::sandwich(index, &query, is_it, &wanted.ask)?;
    }
    Answer::json(&json!({
        "function": function,
        "callers": wanted.reply(index.stacks(), &found.callers, "up", why),
        "callees": wanted.reply(index.stacks(), &found.callees, "down", why),
    }))
}
