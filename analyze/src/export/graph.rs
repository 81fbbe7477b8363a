//! Writes who points to whom: the nodes of a graph (roots and blocks), and the pointers between them.

use super::mapped::field;
#[cfg(feature = "parquet")]
use super::{ExportError, parquet};
#[cfg(feature = "parquet")]
use crate::Analysis;
use crate::Job;
use crate::index::ScanError;
use serde::Serialize;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A root, or a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GraphNode<'a> {
    /// Number of the node. Roots come first.
    pub id: u64,
    /// `block`, or the kind of the root.
    pub kind: &'a str,
    /// Name of the root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    /// Address of the first byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<u64>,
    /// Bytes requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Number of the stack that allocated the block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<u32>,
    /// C++ class that the block begins with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<&'a str>,
    /// Function that asked for the memory, with its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocated_by: Option<&'a str>,
}

/// A pointer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphPointer {
    /// Number of the node that it stands in.
    pub from: u64,
    /// Number of the block that it leads to.
    pub to: u64,
    /// Address of the word; `None`: it is not known.
    pub at: Option<u64>,
}

/// Takes a node, and may fail.
pub type TakeNode<'a> = &'a mut dyn FnMut(GraphNode<'_>) -> io::Result<()>;
/// Takes a pointer, and may fail.
pub type TakePointer<'a> = &'a mut dyn FnMut(GraphPointer) -> io::Result<()>;

/// A graph of roots and blocks.
pub trait Graph {
    /// Calls `take` with each node, in the order of their numbers.
    ///
    /// # Errors
    /// Returns the first error of `take`.
    fn each_node(&self, take: TakeNode<'_>) -> io::Result<()>;

    /// Calls `take` with each pointer.
    ///
    /// # Errors
    /// Returns the first error of `take`.
    fn each_pointer(&self, take: TakePointer<'_>) -> io::Result<()>;
}

/// Writes a graph as JSON: `head` with the lists `nodes` and `pointers` added, each of which has a line for each entry. A
/// pointer is a list of two or three numbers: node, node, and address of the word.
///
/// # Errors
/// If `out` can't be written to.
pub fn json(head: &serde_json::Value, graph: &dyn Graph, out: &mut dyn Write) -> io::Result<()> {
    let text = head.to_string();
    out.write_all(text.strip_suffix('}').unwrap_or("{").as_bytes())?;
    let mut separator = if text.len() > 2 { ",\n\"nodes\":[\n" } else { "\"nodes\":[\n" };
    graph.each_node(&mut |n| {
        out.write_all(separator.as_bytes())?;
        separator = ",\n";
        Ok(serde_json::to_writer(&mut *out, &n)?)
    })?;
    if separator != ",\n" {
        out.write_all(separator.as_bytes())?;
    }
    let mut separator = "\n],\n\"pointers\":[\n";
    graph.each_pointer(&mut |p| {
        out.write_all(separator.as_bytes())?;
        separator = ",\n";
        match p.at {
            Some(at) => write!(out, "[{},{},{at}]", p.from, p.to),
            None => write!(out, "[{},{}]", p.from, p.to),
        }
    })?;
    if separator != ",\n" {
        out.write_all(separator.as_bytes())?;
    }
    out.write_all(b"\n]}\n")
}

/// Returns the name of the file of pointers beside that of nodes: `NAME.pointers.csv`.
#[must_use]
pub fn beside(nodes: &Path) -> PathBuf {
    let ending = nodes.extension().unwrap_or_default().to_string_lossy();
    nodes.with_extension(format!("pointers.{ending}"))
}

/// Number of lines after which a writer looks whether it is to end.
const BATCH: u64 = 1 << 16;

/// Counts lines, and fails when the job of this thread is cancelled.
fn count_line(lines: &mut u64) -> io::Result<()> {
    *lines += 1;
    match lines.is_multiple_of(BATCH) && Job::is_current_cancelled() {
        true => Err(io::Error::other(ScanError::Cancelled)),
        false => Ok(()),
    }
}

fn cell(n: Option<impl ToString>) -> String {
    n.map_or(String::new(), |n| n.to_string())
}

/// Writes the nodes as CSV, with the columns of Parquet.
///
/// # Errors
/// If `out` can't be written to, or the job of this thread is cancelled.
pub fn csv_nodes(graph: &dyn Graph, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "id,address,size,stack,kind,name,class,allocated_by")?;
    let mut lines = 0;
    graph.each_node(&mut |n| {
        count_line(&mut lines)?;
        let [address, size] = [n.address, n.size].map(cell);
        let [name, class, by] =
            [n.name, n.class, n.allocated_by].map(|t| t.map_or(String::new(), field));
        let (id, stack, kind) = (n.id, cell(n.stack), field(n.kind));
        writeln!(out, "{id},{address},{size},{stack},{kind},{name},{class},{by}")
    })
}

/// Writes the pointers as CSV.
///
/// # Errors
/// If `out` can't be written to, or the job of this thread is cancelled.
pub fn csv_pointers(graph: &dyn Graph, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "from_id,to_id,address")?;
    let mut lines = 0;
    graph.each_pointer(&mut |p| {
        count_line(&mut lines)?;
        writeln!(out, "{},{},{}", p.from, p.to, cell(p.at))
    })
}

/// Writes the nodes as Parquet.
///
/// # Errors
/// If `out` can't be written to.
#[cfg(feature = "parquet")]
pub fn parquet_nodes(
    analysis: &Analysis,
    graph: &dyn Graph,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    parquet::nodes(analysis, graph, out)
}

/// Writes the pointers as Parquet.
///
/// # Errors
/// If `out` can't be written to.
#[cfg(feature = "parquet")]
pub fn parquet_pointers(
    analysis: &Analysis,
    graph: &dyn Graph,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    parquet::pointers(analysis, graph, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Small(u64);

    impl Graph for Small {
        fn each_node(&self, take: TakeNode<'_>) -> io::Result<()> {
            (0..self.0)
                .try_for_each(|id| take(GraphNode { id, kind: "block", ..GraphNode::default() }))
        }

        fn each_pointer(&self, take: TakePointer<'_>) -> io::Result<()> {
            let at = |to: u64| to.is_multiple_of(2).then_some(16);
            (1..self.0).try_for_each(|to| take(GraphPointer { from: 0, to, at: at(to) }))
        }
    }

    #[test]
    fn json_is_whole_with_any_number_of_nodes() {
        for n in 0..4 {
            for head in [serde_json::json!({}), serde_json::json!({"pid": 7})] {
                let mut out = Vec::new();
                json(&head, &Small(n), &mut out).expect("written");
                let v: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
                assert_eq!(v["nodes"].as_array().map(Vec::len), Some(n as usize), "{v}");
                assert_eq!(v["pid"], head["pid"]);
                let pointers = v["pointers"].as_array().expect("a list");
                assert_eq!(pointers.len() as u64, n.saturating_sub(1));
                if n > 2 {
                    assert_eq!(pointers[1], serde_json::json!([0, 2, 16]));
                }
            }
        }
    }

    #[test]
    fn csv_has_a_line_for_each() {
        let lines = |write: fn(&dyn Graph, &mut dyn Write) -> io::Result<()>| {
            let mut out = Vec::new();
            write(&Small(3), &mut out).expect("written");
            String::from_utf8(out)
                .expect("text")
                .lines()
                .skip(1)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(lines(csv_nodes), ["0,,,,block,,,", "1,,,,block,,,", "2,,,,block,,,"]);
        assert_eq!(lines(csv_pointers), ["0,1,", "0,2,16"]);
        assert_eq!(beside(Path::new("a/b.c.csv")), Path::new("a/b.c.pointers.csv"));
    }
}
