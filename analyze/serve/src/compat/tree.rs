//! Trees, and the memory of static initialisers.

use super::filter;
use super::shape::{Clock, Frames};
use crate::ask::Ask;
use crate::reply::{Answer, Failure, TEXT};
use prof_analyze::query::{Filter, Query};
use prof_analyze::symbols::Frame;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

/// Greatest depth of a tree.
const DEEPEST: usize = 500;

struct Node<'a> {
    size: u64,
    count: u64,
    first: u64,
    last: u64,
    frame: Option<&'a Frame>,
    children: Vec<usize>,
}

/// A tree of calls; parents come before their children.
struct Tree<'a> {
    nodes: Vec<Node<'a>>,
}

/// Tells the frames of a node's children apart.
type Key = (Option<std::sync::Arc<str>>, Option<std::sync::Arc<str>>, Option<u32>, u64);

fn key(f: &Frame) -> Key {
    let address = if f.function.is_some() { 0 } else { f.address };
    (f.function.clone(), f.file.clone(), f.line, address)
}

impl<'a> Tree<'a> {
    fn new() -> Self {
        let root =
            Node { size: 0, count: 0, first: u64::MAX, last: 0, frame: None, children: Vec::new() };
        Self { nodes: vec![root] }
    }

    fn of(ask: &'a Ask, filter: &Filter) -> Result<Self, Failure> {
        let matched = Query::new(ask.index(), filter)?.analysis(None)?;
        let clock = Clock::of(ask.index());
        let mut tree = Self::new();
        let mut ids: HashMap<(usize, Key), usize> = HashMap::new();
        for g in matched.groups() {
            let f = &g.figures;
            let (size, count) = (f.allocated_bytes, f.allocations + f.reallocations);
            let (first, last) = (clock.ns(g.first), clock.ns(g.last));
            let mut at = 0;
            tree.nodes[0].add(size, count, first, last);
            for frame in ask.open.names().frames(g.node).rev().take(DEEPEST) {
                let next = tree.nodes.len();
                let child = *ids.entry((at, key(frame))).or_insert(next);
                if child == next {
                    tree.nodes[at].children.push(child);
                    let frame = Some(frame);
                    tree.nodes.push(Node { frame, ..Node::empty() });
                }
                at = child;
                tree.nodes[at].add(size, count, first, last);
            }
        }
        for i in 0..tree.nodes.len() {
            let mut children = std::mem::take(&mut tree.nodes[i].children);
            children.sort_by_key(|c| (std::cmp::Reverse(tree.nodes[*c].size), *c));
            tree.nodes[i].children = children;
        }
        Ok(tree)
    }

    fn json(&self, frames: &Frames<'_>) -> Value {
        let mut made: Vec<Option<Value>> = vec![None; self.nodes.len()];
        for (i, n) in self.nodes.iter().enumerate().rev() {
            let children: Vec<Value> = n.children.iter().filter_map(|c| made[*c].take()).collect();
            let mut v = Map::new();
            v.insert("size".into(), n.size.into());
            v.insert("count".into(), n.count.into());
            let first = if n.first == u64::MAX { 0 } else { n.first };
            v.insert("first".into(), (first / 1_000_000_000).into());
            v.insert("last".into(), (n.last / 1_000_000_000).into());
            if let Some(frame) = n.frame {
                v.insert("value".into(), frames.frame(frame));
            }
            v.insert("children".into(), children.into());
            made[i] = Some(v.into());
        }
        made.first_mut().and_then(Option::take).unwrap_or_default()
    }

    fn text(&self) -> String {
        let mut out =
            format!("{:>14} {:>10} {:>8} {:>8}   SOURCE\n", "SIZE", "COUNT", "FIRST", "LAST");
        let mut stack = vec![(0usize, 0usize)];
        while let Some((i, depth)) = stack.pop() {
            let n = &self.nodes[i];
            let first = if n.first == u64::MAX { 0 } else { n.first };
            let (first, last) = (first / 1_000_000_000, n.last / 1_000_000_000);
            let name = n.frame.map_or("(all)".to_owned(), label);
            // Writing to a string can't fail.
            let _ = writeln!(
                out,
                "{:>14} {:>10} {:>8} {:>8}   {}{name}",
                n.size,
                n.count,
                first,
                last,
                "  ".repeat(depth)
            );
            stack.extend(n.children.iter().rev().map(|c| (*c, depth + 1)));
        }
        out
    }
}

impl Node<'_> {
    fn empty() -> Self {
        Self { size: 0, count: 0, first: u64::MAX, last: 0, frame: None, children: Vec::new() }
    }

    fn add(&mut self, size: u64, count: u64, first: u64, last: u64) {
        self.size = self.size.saturating_add(size);
        self.count += count;
        self.first = self.first.min(first);
        self.last = self.last.max(last);
    }
}

fn label(f: &Frame) -> String {
    let data = prof_analyze::report::FrameData::new(f);
    let mut text = data.function.unwrap_or(data.address);
    if let Some(file) = data.file {
        let _ = write!(
            text,
            " [{}:{}]",
            file.rsplit('/').next().unwrap_or(&file),
            data.line.unwrap_or(0)
        );
    } else if let Some(module) = data.module {
        let _ = write!(text, " [{}]", module.rsplit('/').next().unwrap_or(&module));
    }
    text
}

/// The tree of calls.
pub(super) fn tree(ask: &mut Ask) -> Result<Answer, Failure> {
    let strip = ask.params.switch("strip_template_args")?.unwrap_or(false);
    let filter = filter::take(ask)?;
    let frames = Frames::new(ask.open.names(), ask.index(), strip);
    Answer::json(&Tree::of(ask, &filter)?.json(&frames))
}

/// The tree of calls, as text.
pub(super) fn ascii_tree(ask: &mut Ask) -> Result<Answer, Failure> {
    let filter = filter::take(ask)?;
    Ok(Answer::new(TEXT, Tree::of(ask, &filter)?.text()))
}

/// The purpose of a static initialiser.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Constants,
    Statics,
}

/// Returns what a function initialises, if it is one that a compiler made for that: gcc's, clang's, or a constructor of
/// a whole file.
fn initialises(function: &str) -> Option<What> {
    const NAMES: [&str; 3] =
        ["__static_initialization_and_destruction_0", "_GLOBAL__sub_I_", "__cxx_global_var_init"];
    NAMES
        .iter()
        .any(|n| function.contains(n))
        .then(|| if function.contains(".constprop") { What::Constants } else { What::Statics })
}

/// Returns the path of a source file with the folders of distcc made one.
fn plain(path: &str) -> String {
    match path.split_once("/distccd_") {
        Some((start, rest)) => {
            let rest = rest.split_once('/').map_or("", |(_, rest)| rest);
            format!("{start}/distccd/{rest}")
        }
        None => path.to_owned(),
    }
}

/// Number and bytes of blocks.
#[derive(Clone, Copy, Default)]
struct Sum {
    count: u64,
    size: u64,
}

type Files = BTreeMap<String, BTreeMap<u32, Sum>>;

fn initialised(ask: &Ask, wanted: What) -> Files {
    let names = ask.open.names();
    let mut files = Files::new();
    for g in ask.index().analysis().groups() {
        let found = names
            .frames(g.node)
            .find(|f| f.function.as_deref().is_some_and(|n| initialises(n) == Some(wanted)));
        let Some(f) = found else { continue };
        let data = prof_analyze::report::FrameData::new(f);
        let file = data.file.or(data.module).unwrap_or_default();
        let sum = files.entry(plain(&file)).or_default().entry(f.line.unwrap_or(0)).or_default();
        sum.count += g.figures.allocations + g.figures.reallocations;
        sum.size = sum.size.saturating_add(g.figures.allocated_bytes);
    }
    files
}

fn all<'a>(sums: impl Iterator<Item = &'a Sum>) -> Sum {
    sums.fold(Sum::default(), |a, b| Sum {
        count: a.count + b.count,
        size: a.size.saturating_add(b.size),
    })
}

fn json_of(files: &Files) -> Value {
    let total = all(files.values().flat_map(BTreeMap::values));
    let per_file: Map<String, Value> = files
        .iter()
        .map(|(file, lines)| {
            let sum = all(lines.values());
            let per_line: Map<String, Value> = lines
                .iter()
                .map(|(line, s)| (line.to_string(), json!({ "count": s.count, "size": s.size })))
                .collect();
            let v = json!({ "count": sum.count, "size": sum.size, "per_line": per_line });
            (file.clone(), v)
        })
        .collect();
    json!({ "count": total.count, "size": total.size, "per_file": per_file })
}

fn text_of(files: &Files) -> String {
    let mut out = format!("{:>14} {:>10}   SOURCE\n", "SIZE", "COUNT");
    let mut line = |s: Sum, name: &str| {
        let _ = writeln!(out, "{:>14} {:>10}   {name}", s.size, s.count);
    };
    line(all(files.values().flat_map(BTreeMap::values)), "(all)");
    let mut sorted: Vec<_> =
        files.iter().map(|(f, lines)| (all(lines.values()), f, lines)).collect();
    sorted.sort_by(|a, b| b.0.size.cmp(&a.0.size).then(a.1.cmp(b.1)));
    for (sum, file, lines) in sorted {
        line(sum, &format!("  {file}"));
        lines.iter().for_each(|(n, s)| line(*s, &format!("    :{n}")));
    }
    out
}

/// Constants that are made when the program starts.
pub(super) fn constants(ask: &mut Ask) -> Result<Answer, Failure> {
    Answer::json(&json_of(&initialised(ask, What::Constants)))
}

/// Answers with [`constants`] as text.
pub(super) fn constants_text(ask: &mut Ask) -> Result<Answer, Failure> {
    Ok(Answer::new(TEXT, text_of(&initialised(ask, What::Constants))))
}

/// Variables that are made when the program starts.
pub(super) fn statics(ask: &mut Ask) -> Result<Answer, Failure> {
    Answer::json(&json_of(&initialised(ask, What::Statics)))
}

/// Answers with [`statics`] as text.
pub(super) fn statics_text(ask: &mut Ask) -> Result<Answer, Failure> {
    Ok(Answer::new(TEXT, text_of(&initialised(ask, What::Statics))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initialisers_are_told_apart() {
        let gcc = "__static_initialization_and_destruction_0(int, int)";
        assert!(initialises(gcc) == Some(What::Statics));
        assert!(initialises(&format!("{gcc} [clone .constprop.0]")) == Some(What::Constants));
        assert!(initialises("_GLOBAL__sub_I_main.cpp") == Some(What::Statics));
        assert!(initialises("main").is_none());
        assert_eq!(plain("/tmp/distccd_Ab12/src/a.cpp"), "/tmp/distccd/src/a.cpp");
    }
}
