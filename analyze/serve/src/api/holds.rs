//! The scans of a recording, which `prof holds PID --save` writes: the holders of the live blocks.

use super::reports::MOST_ROWS;
use crate::ask::Ask;
use crate::reply::{Answer, Failure, JSON};
use crate::scans::Kept;
use prof_analyze::holds::{
    Comparison, Holder, HoldsData, HoldsError, HoldsOptions, SumData, Wanted, find,
};
use prof_analyze::report::Style;
use prof_trace::values::parse;
use serde_json::{Value, json};
use std::sync::Arc;

/// Greatest number of levels of a report.
const DEEPEST: u64 = 50;
/// The node of what several roots hold, each of which leads to it.
const SEVERAL: &str = "several";

/// The scans of the recording.
pub(crate) fn scans(ask: &mut Ask) -> Result<Answer, Failure> {
    let meta = ask.index().analysis().meta();
    let row = |(i, s): (usize, &prof_analyze::load::ScanAt)| {
        json!({
            "number": i + 1,
            "name": s.name,
            "at_ns": meta.clock.ns(s.ticks),
            "blocks": s.blocks,
            "pointers": s.pointers,
            "census": s.census,
        })
    };
    let rows: Vec<Value> = meta.scans.iter().enumerate().map(row).collect();
    Answer::json(&json!({ "pid": meta.target.pid, "rows": rows }))
}

/// Returns the scan that a parameter names; without it the last one, or `None`.
fn scan(ask: &mut Ask, name: &str, or_last: bool) -> Result<Option<Arc<Kept>>, Failure> {
    let given = ask.params.take(name)?;
    let Some(which) = given.or_else(|| or_last.then(|| "last".to_owned())) else { return Ok(None) };
    let fails = |e: HoldsError| match e {
        HoldsError::Cancelled => Failure::gone(),
        HoldsError::Unusable(why) => {
            Failure { name: Some(name.to_owned()), ..Failure::new(404, why) }
        }
    };
    let at = find(ask.index().analysis(), &which).map_err(fails)?;
    let (scans, analysis) = (&ask.shared.scans, ask.index().analysis());
    scans.get(analysis, ask.open.generation, at).map(Some)
}

/// Returns the scan that is asked about.
fn wanted_scan(ask: &mut Ask) -> Result<Arc<Kept>, Failure> {
    let found = scan(ask, "scan", true)?;
    found.ok_or_else(|| Failure::internal("no scan was chosen"))
}

/// Returns an error if the client is gone: what was computed meanwhile is no answer.
fn unless_gone<T>(ask: &Ask, value: T) -> Result<T, Failure> {
    if ask.cancel.is_cancelled() { Err(Failure::gone()) } else { Ok(value) }
}

/// `prof holds FILE`, or `--since-scan`.
pub(crate) fn holds(ask: &mut Ask) -> Result<Answer, Failure> {
    let top = match ask.params.number("top", MOST_ROWS)? {
        Some(0) => MOST_ROWS as usize,
        top => top.unwrap_or(10) as usize,
    };
    let depth = ask.params.number("depth", DEEPEST)?.unwrap_or(4);
    let depth = if depth == 0 { DEEPEST } else { depth } as usize;
    let paths = ask.params.take_all("path");
    let paths: Vec<Wanted> = paths.iter().map(|t| to_wanted(t)).collect::<Result<_, _>>()?;
    let by = [
        ("both", (true, true)),
        ("root", (true, false)),
        ("stack", (false, true)),
        ("none", (false, false)),
    ];
    let (roots, stacks) = ask.params.one_of("by", &by)?.unwrap_or((true, true));
    let new = wanted_scan(ask)?;
    let old = scan(ask, "since", false)?;
    let analysis = ask.index().analysis();
    let names = &mut new.names();
    let text = match &old {
        Some(old) => Comparison::new((&old.holders, &new.holders), analysis, names, top).json(),
        None => {
            if let Some(at) = paths.iter().find(|w| !w.is_in(&new.holders.heap)) {
                let what = match at {
                    Wanted::Block(at) => format!("no block that is known lay at {at:#x}"),
                    Wanted::Stack(n) => format!("no live block is of stack {n}"),
                };
                return Err(Failure::of("path", what));
            }
            let style = Style::default();
            let options = HoldsOptions { roots, stacks, top, depth, paths: &paths, style };
            HoldsData::new(&new.holders, analysis, names, &options).json()
        }
    };
    unless_gone(ask, Answer::new(JSON, text))
}

fn to_wanted(text: &str) -> Result<Wanted, Failure> {
    if text.starts_with("0x") {
        return parse::address(text).map(Wanted::Block).map_err(|e| Failure::of("path", e));
    }
    let stack = text.parse().map(Wanted::Stack);
    stack.map_err(|_| {
        let why = format!("{text:?} is neither an address (0x...) nor the number of a stack");
        Failure::of("path", why)
    })
}

/// A node of the tree of holders, and what hangs on it.
pub(crate) fn holders(ask: &mut Ask) -> Result<Answer, Failure> {
    let count = ask.params.number("count", MOST_ROWS)?.unwrap_or(100).max(1) as usize;
    let node = ask.params.take("node")?.unwrap_or_else(|| "0".to_owned());
    let of = wanted_scan(ask)?;
    let h = &of.holders;
    let several = h.shared_nodes();
    let below: Vec<u32> = match node.as_str() {
        "0" => h.root_nodes().collect(),
        SEVERAL => several.clone(),
        text => {
            let n: Option<u32> = text.parse().ok().filter(|n| (*n as usize) < h.held.nodes.len());
            let n = n.ok_or_else(|| Failure::missing("there is no such node in this tree"))?;
            h.tree.below(n).to_vec()
        }
    };
    let shown = &below[..below.len().min(count)];
    let names = &mut of.names();
    let stack_of = |i: &u32| match h.held.nodes[*i as usize].holder {
        Holder::Stack(stack) => Some(stack),
        _ => None,
    };
    names.look_up_in(ask.index().analysis(), shown.iter().filter_map(stack_of));
    let mut children: Vec<Value> = shown.iter().map(|i| child(&of, names, *i)).collect();
    if node == "0" && !several.is_empty() {
        let retained = SumData::from(h.sum(&several));
        let at =
            children.partition_point(|c| c["retained"]["bytes"].as_u64() > Some(retained.bytes));
        let name = "several roots";
        children.insert(at, json!({ "node": SEVERAL, "name": name, "kind": SEVERAL, "retained": retained, "deeper": true }));
    }
    let rest = &below[shown.len()..];
    let answer = Answer::json(&json!({
        "saved": h.saved,
        "at_ns": h.at_ns,
        "live": SumData::from(h.heap.live()),
        "unreachable": SumData::from(h.held.unreachable),
        "node": node,
        "children": children,
        "more": (!rest.is_empty()).then(|| json!({ "count": rest.len(), "retained": SumData::from(h.sum(rest)) })),
    }))?;
    unless_gone(ask, answer)
}

/// Returns what is said of a node.
fn child(of: &Kept, names: &prof_analyze::live::Names, node: u32) -> Value {
    let h = &of.holders;
    let n = &h.held.nodes[node as usize];
    let mut value = match n.holder {
        Holder::Root(number) => h.root(number).map(|r| json!(r)).unwrap_or_default(),
        Holder::Stack(stack) => {
            let (asked, named) = (names.get(stack), n.class);
            let class = named.and_then(|(table, n)| Some((h.class(table)?, n)));
            json!({
                "stack": stack,
                "from": asked.label(),
                "asked_by": asked.asked,
                "class": class.as_ref().map(|c| &c.0),
                "class_blocks": class.as_ref().map(|c| c.1),
                "own": SumData::from(n.own),
            })
        }
        Holder::All => json!({}),
    };
    value["node"] = node.into();
    value["retained"] = json!(SumData::from(n.retained));
    value["deeper"] = (!h.tree.below(node).is_empty()).into();
    value
}
