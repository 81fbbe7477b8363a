//! Writes who points to whom: the nodes of a graph (roots and blocks), and the pointers between them.

#[cfg(feature = "parquet")]
use super::{ExportError, parquet};
#[cfg(feature = "parquet")]
use crate::Analysis;
use serde::Serialize;
use std::io::{self, Write};

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
}
