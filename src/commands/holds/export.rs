//! Writes a scan to a file for other programs: nodes and pointers as JSON, CSV or Parquet, a heap dump of Java's, or a page for
//! a browser.

use super::looked::Looked;
use crate::failure::usage;
use crate::part::Part;
use crate::term;
use anyhow::{Context, Result};
use prof_analyze::export::graph;
use prof_analyze::export::hprof::Sink;
use prof_analyze::holds::{HoldsData, ScanGraph, Sum};
use prof_trace::values::text::{bytes, count};
use serde_json::json;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A format of the file, by its ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Html,
    Json,
    Csv,
    Parquet,
    Hprof,
}

impl Ending {
    fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "html" => Some(Self::Html),
            "json" => Some(Self::Json),
            "csv" => Some(Self::Csv),
            "parquet" => Some(Self::Parquet),
            "hprof" => Some(Self::Hprof),
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
        None => Err(
            "the name ends in .html, .json, .csv, .parquet or .hprof, which says what is written"
                .into(),
        ),
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
        Some(Ending::Hprof) => hprof(path, looked, force),
        Some(Ending::Csv) => {
            let pointers = graph::beside(path);
            let graph = ScanGraph::new(&looked.of, &looked.analysis, &mut looked.names);
            put(path, force, |out| Ok(graph::csv_nodes(&graph, out)?))?;
            put(&pointers, force, |out| Ok(graph::csv_pointers(&graph, out)?))?;
            Ok(vec![path.to_owned(), pointers])
        }
        _ => {
            let head = json!({
                "version": 1, "pid": looked.of.pid, "at_ns": looked.of.at_ns, "saved": looked.of.saved, "scan": looked.of.scan,
            });
            let graph = ScanGraph::new(&looked.of, &looked.analysis, &mut looked.names);
            put(path, force, |out| Ok(graph::json(&head, &graph, out)?))?;
            Ok(vec![path.to_owned()])
        }
    }
}

/// Writes a heap dump, and says how much of large blocks is left out.
fn hprof(path: &Path, looked: &mut Looked<'_>, force: bool) -> Result<Vec<PathBuf>> {
    let unix_ns = looked.analysis.meta().target.wall_ns.saturating_add(looked.of.at_ns);
    let graph = ScanGraph::new(&looked.of, &looked.analysis, &mut looked.names);
    let mut cut = Sum::default();
    put(path, force, |out| {
        cut = graph.hprof(unix_ns / 1_000_000, out)?;
        Ok(())
    })?;
    if cut.blocks > 0 {
        term::say(&format!(
            "{} in {} are left out: blocks are too large for a heap dump",
            bytes(cut.bytes),
            count(cut.blocks, "block", "blocks")
        ));
    }
    Ok(vec![path.to_owned()])
}

#[cfg(feature = "parquet")]
fn parquet(path: &Path, looked: &mut Looked<'_>, force: bool) -> Result<Vec<PathBuf>> {
    let pointers = graph::beside(path);
    let analysis: &prof_analyze::Analysis = &looked.analysis;
    let graph = ScanGraph::new(&looked.of, analysis, &mut looked.names);
    put(path, force, |out| Ok(graph::parquet_nodes(analysis, &graph, out)?))?;
    put(&pointers, force, |out| Ok(graph::parquet_pointers(analysis, &graph, out)?))?;
    Ok(vec![path.to_owned(), pointers])
}

#[cfg(not(feature = "parquet"))]
fn parquet(_: &Path, _: &mut Looked<'_>, _: bool) -> Result<Vec<PathBuf>> {
    Err(usage("this build of prof has no Parquet: it was built without the feature `parquet`"))
}

/// Zeros from this many on are a hole in a file.
const HOLE: u64 = 1 << 16;

/// A file that is written to, with holes where it can have some.
struct Holes<'a> {
    out: BufWriter<&'a File>,
    holes: bool,
}

impl Write for Holes<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Sink for Holes<'_> {
    fn zeros(&mut self, n: u64) -> io::Result<()> {
        match i64::try_from(n) {
            Ok(distance) if self.holes && n >= HOLE => {
                self.out.seek(SeekFrom::Current(distance)).map(drop)
            }
            _ => io::copy(&mut io::repeat(0).take(n), &mut self.out).map(drop),
        }
    }
}

fn put(path: &Path, force: bool, write: impl FnOnce(&mut dyn Sink) -> Result<()>) -> Result<()> {
    let hint = "name another, or give --force";
    let part = Part::create(path, force, hint)?;
    let cannot = || format!("cannot write {}", path.display());
    let mut out = Holes { out: BufWriter::new(&part.file), holes: !part.is_stream() };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_says_what_is_written() {
        assert!(
            ["a.json", "b.html", "c.d.parquet", "e.csv", "f.hprof"]
                .iter()
                .all(|n| parse(n).is_ok())
        );
        assert!(["a", "json", "a.txt", ".json"].iter().all(|n| parse(n).is_err()));
    }
}
