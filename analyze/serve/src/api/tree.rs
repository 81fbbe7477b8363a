//! The tree of calls, a node at a time.

use crate::ask::Ask;
use crate::data;
use crate::reply::{Answer, Failure};
use prof_analyze::report::{NodeData, SortKey, Tree, ViewOptions};
use serde_json::{Value, json};
use std::sync::Arc;

/// Greatest number of levels of a path.
const DEEPEST: usize = 1000;
/// Why children are not sorted by what is live.
const NOTHING_LIVE: &str = "nothing is live there: sorted by the bytes allocated";

/// Returns the name of a node among its siblings: a hash of its place.
fn name(node: &NodeData) -> String {
    let text = serde_json::to_string(&(&node.place, &node.what)).unwrap_or_default();
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}

/// Returns a node without its children.
fn alone(mut node: NodeData, path: &str, has_children: bool) -> Result<Value, Failure> {
    node.children.clear();
    node.rest = None;
    let mut value = serde_json::to_value(&node).map_err(|e| Failure::internal(e.to_string()))?;
    if let Value::Object(fields) = &mut value {
        fields.remove("children");
    }
    value["node"] = path.into();
    value["deeper"] = has_children.into();
    Ok(value)
}

/// A node of the tree and its children: the same tree as `prof report --tree` shows.
pub(crate) fn tree(ask: &mut Ask) -> Result<Answer, Failure> {
    let path = ask.params.take("node")?.unwrap_or_default();
    let names: Vec<&str> = path.split('.').filter(|n| !n.is_empty()).collect();
    if names.len() > DEEPEST {
        return Err(Failure::of("node", "is too deep"));
    }
    let bottom_up = ask.params.switch("bottom-up")?.unwrap_or(false);
    let is_given = ask.params.rest().any(|name| name == "sort");
    let sort = data::sort(&mut ask.params)?;
    if !sort.is_of_trees() {
        return Err(Failure::of(
            "sort",
            "a tree has no peaks of its own, as those of stacks lie at different times",
        ));
    }
    let reverse = ask.params.switch("reverse")?.unwrap_or(false);
    let at = data::moment(ask.open.index.analysis(), &mut ask.params, "at")?;
    let now = if ask.in_place { ask.now(|f, like| f.analysis(like)) } else { None };
    let filter = ask.params.filter()?;
    let analysis = match now {
        Some(now) => now?,
        None => Arc::new(data::query(ask, &filter)?.analysis(at)?),
    };
    let options = ViewOptions {
        at,
        filter: data::given(&filter),
        ..options(names.len(), bottom_up, sort, reverse)
    };
    let tree = Tree::of(&analysis, None, &options);
    // Of a program that has freed everything all branches would be equal.
    if is_given || tree.head.totals.live_bytes > 0 {
        return reply(tree, &path, None);
    }
    let options = ViewOptions { sort: SortKey::Allocated, ..options };
    reply(Tree::of(&analysis, None, &options), &path, Some(NOTHING_LIVE))
}

/// Returns how a tree is built whose nodes at this depth are shown with their children.
fn options(depth: usize, bottom_up: bool, sort: SortKey, reverse: bool) -> ViewOptions {
    ViewOptions {
        top: 0,
        sort,
        reverse,
        empty: true,
        // The level below those that are returned says whether they have children.
        depth: depth + 2,
        bottom_up,
        ..ViewOptions::default()
    }
}

/// Returns the node at a path of a tree, with its children.
fn reply(tree: Tree, path: &str, why: Option<&str>) -> Result<Answer, Failure> {
    let sort = tree.sort;
    let totals = json!(tree.head.totals);
    let mut node = tree.tree;
    for wanted in path.split('.').filter(|n| !n.is_empty()) {
        let found = node.children.into_iter().find(|c| name(c) == wanted);
        node = found.ok_or_else(|| Failure::missing("there is no such node in this tree"))?;
    }
    let children: Result<Vec<Value>, Failure> = std::mem::take(&mut node.children)
        .into_iter()
        .map(|child| {
            let own =
                if path.is_empty() { name(&child) } else { format!("{path}.{}", name(&child)) };
            let deeper = child.deeper || !child.children.is_empty();
            alone(child, &own, deeper)
        })
        .collect();
    let children = children?;
    let deeper = !children.is_empty();
    Answer::json(&json!({
        "node": alone(node, path, deeper)?,
        "children": children,
        "totals": totals,
        "sort": sort,
        "why": why,
    }))
}
