//! Writes a scan to a file for other programs: nodes and pointers as JSON or Parquet, or a page for a browser.

use super::looked::Looked;
use crate::failure::usage;
use crate::part::Part;
use anyhow::{Context, Result};
use prof_analyze::export::graph::{self, Graph, GraphNode, GraphPointer, TakeNode, TakePointer};
use prof_analyze::holds::{Heap, Holders, HoldsData, Root, RootData};
use prof_analyze::live::Names;
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A format of the file, by its ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Html,
    Json,
    Parquet,
}

impl Ending {
    fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "html" => Some(Self::Html),
            "json" => Some(Self::Json),
            "parquet" => Some(Self::Parquet),
            _ => None,
        }
    }
}

/// Parses the name of the file.
///
/// # Errors
/// A message that names the endings that there are.
pub(super) fn parse(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match Ending::of(&path) {
        Some(_) => Ok(path),
        None => Err("the name ends in .html, .json or .parquet, which says what is written".into()),
    }
}

/// Writes the file; returns the paths that were written.
///
/// # Errors
/// If a file exists and may not be replaced, or can't be written.
pub(super) fn write(
    path: &Path,
    looked: &mut Looked<'_>,
    report: &HoldsData,
    force: bool,
) -> Result<Vec<PathBuf>> {
    match Ending::of(path) {
        Some(Ending::Html) => {
            put(path, force, |out| Ok(out.write_all(report.html().as_bytes())?))?;
            Ok(vec![path.to_owned()])
        }
        Some(Ending::Parquet) => parquet(path, looked, force),
        _ => {
            let head = json!({
                "version": 1, "pid": looked.of.pid, "at_ns": looked.of.at_ns, "saved": looked.of.saved, "scan": looked.of.scan,
            });
            let graph = ScanGraph::new(looked);
            put(path, force, |out| Ok(graph::json(&head, &graph, out)?))?;
            Ok(vec![path.to_owned()])
        }
    }
}

#[cfg(feature = "parquet")]
fn parquet(path: &Path, looked: &mut Looked<'_>, force: bool) -> Result<Vec<PathBuf>> {
    let pointers = path.with_extension("pointers.parquet");
    let graph = ScanGraph::new(looked);
    put(path, force, |out| Ok(graph::parquet_nodes(graph.analysis, &graph, out)?))?;
    put(&pointers, force, |out| Ok(graph::parquet_pointers(graph.analysis, &graph, out)?))?;
    Ok(vec![path.to_owned(), pointers])
}

#[cfg(not(feature = "parquet"))]
fn parquet(_: &Path, _: &mut Looked<'_>, _: bool) -> Result<Vec<PathBuf>> {
    Err(usage("this build of prof has no Parquet: it was built without the feature `parquet`"))
}

fn put(path: &Path, force: bool, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let hint = "name another, or give --force";
    let part = Part::create(path, force, hint)?;
    let cannot = || format!("cannot write {}", path.display());
    let mut out = BufWriter::new(&part.file);
    write(&mut out).with_context(cannot)?;
    out.flush().with_context(cannot)?;
    drop(out);
    match part.keep() {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            Err(usage(format!("{} exists already; {hint}", path.display())))
        }
        kept => kept.with_context(cannot),
    }
}

/// The blocks, roots and pointers, with their names.
struct ScanGraph<'a> {
    heap: &'a Heap,
    roots: &'a HashMap<Root, RootData>,
    names: &'a Names,
    classes: HashMap<u64, String>,
    #[cfg_attr(not(feature = "parquet"), allow(dead_code))]
    analysis: &'a prof_analyze::Analysis,
}

impl<'a> ScanGraph<'a> {
    fn new(looked: &'a mut Looked<'_>) -> Self {
        let Looked { of, analysis, names, .. } = looked;
        let Holders { heap, roots, .. } = &*of;
        let (mut stacks, mut tables) = (HashSet::new(), HashSet::new());
        for b in heap.blocks() {
            stacks.extend(b.stack);
            tables.extend(b.class);
        }
        names.look_up_in(analysis, stacks);
        let named = |table: u64| Some((table, of.class(table)?));
        let classes = tables.into_iter().filter_map(named).collect();
        Self { heap, roots, names, classes, analysis }
    }

    fn first_block(&self) -> u64 {
        self.heap.roots().len() as u64
    }
}

impl Graph for ScanGraph<'_> {
    fn each_node(&self, take: TakeNode<'_>) -> io::Result<()> {
        for (id, root) in (0..).zip(self.heap.roots()) {
            let Some(data) = self.roots.get(root) else { continue };
            take(GraphNode {
                id,
                kind: data.kind.word(),
                name: Some(&data.name),
                address: data.start(),
                ..GraphNode::default()
            })?;
        }
        let mut labels: HashMap<u32, String> = HashMap::new();
        for (id, b) in (self.first_block()..).zip(self.heap.blocks()) {
            let label =
                b.stack.map(|s| &**labels.entry(s).or_insert_with(|| self.names.get(s).label()));
            take(GraphNode {
                id,
                kind: if b.stack.is_some() { "block" } else { "freed" },
                name: None,
                address: Some(b.address),
                size: Some(b.size),
                stack: b.stack,
                class: b.class.and_then(|c| self.classes.get(&c)).map(String::as_str),
                allocated_by: label,
            })?;
        }
        Ok(())
    }

    fn each_pointer(&self, take: TakePointer<'_>) -> io::Result<()> {
        let first = self.first_block();
        for (root, to, at) in self.heap.root_pointers() {
            let at = Some(at).filter(|at| *at != 0);
            take(GraphPointer { from: root.into(), to: first + u64::from(to), at })?;
        }
        for (from, b) in (first..).zip(self.heap.blocks()) {
            for to in b.to {
                take(GraphPointer { from, to: first + u64::from(*to), at: None })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_says_what_is_written() {
        assert!(["a.json", "b.html", "c.d.parquet"].iter().all(|n| parse(n).is_ok()));
        assert!(["a", "json", "a.csv", ".json"].iter().all(|n| parse(n).is_err()));
    }
}
