//! Parquet files, read back.

mod common;

use common::world::{make, write};
use common::{Maker, Random, Temp, alloc};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use prof_analyze::export::graph::{self, Graph, GraphNode, GraphPointer, TakeNode, TakePointer};
use prof_analyze::export::{Cost, Format, Source};
use prof_analyze::query::{Filter, Query};
use prof_analyze::{Index, IndexOptions, Job};
use prof_trace::pack::Compress;
use prof_trace::records::Module;
use prof_trace::size::GlibcChunks;
use std::collections::HashMap;
use std::fs::File;

fn rows(bytes: &[u8]) -> Vec<Row> {
    let file = Temp::new(bytes);
    let reader = SerializedFileReader::new(File::open(&file.0).expect("a file")).expect("Parquet");
    let about = reader.metadata().file_metadata().key_value_metadata().expect("metadata");
    assert!(about.iter().any(|k| k.key == "prof.version"));
    reader.get_row_iter(None).expect("rows").map(|r| r.expect("a row")).collect()
}

fn number(row: &Row, name: &str) -> Option<u64> {
    let field = row.get_column_iter().find(|c| c.0 == name).expect("a column").1;
    match field {
        Field::Null => None,
        Field::ULong(n) => Some(*n),
        Field::UInt(n) => Some((*n).into()),
        Field::Bool(b) => Some((*b).into()),
        other => panic!("{name}: {other:?}"),
    }
}

fn text<'a>(row: &'a Row, name: &str) -> Option<&'a str> {
    match row.get_column_iter().find(|c| c.0 == name).expect("a column").1 {
        Field::Null => None,
        Field::Str(s) => Some(s),
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn there_may_be_more_rows_than_a_group_has() {
    const ROWS: u64 = 300_000;
    let mut m = Maker::new();
    for from in (0..ROWS).step_by(1000) {
        let events: Vec<_> =
            (from..from + 1000).map(|i| alloc(2000 + i, 0x1000 + 16 * i, i, 0)).collect();
        m.events(1, &events);
    }
    let file = m.file();
    let index = Index::open(&file.0, &IndexOptions::default()).expect("a recording");
    let query = Query::new(&index, &Filter::default()).expect("no filter");
    let (cost, filter, mut out) = (Cost::Live, Vec::new(), Vec::new());
    let source = Source { index: &index, query: &query, at: None, cost, filter, held: None };
    source.write(Format::Parquet, &mut out).expect("an export");
    let sum: u64 = rows(&out).iter().filter_map(|r| number(r, "size")).sum();
    assert_eq!(sum, ROWS * (ROWS - 1) / 2);
}

/// Cancels a job when the first rows have been written to it.
struct Cancels(Job, u64);

impl std::io::Write for Cancels {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.1 += bytes.len() as u64;
        if self.1 > 20_000 {
            self.0.cancel();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// An export ends in the midst of a block of rows: writing one takes longer than a user waits after Ctrl-C.
#[test]
fn an_export_that_is_cancelled_ends_in_the_midst() {
    const ROWS: u64 = 140_000;
    let mut m = Maker::new();
    for from in (0..ROWS).step_by(1000) {
        let events: Vec<_> =
            (from..from + 1000).map(|i| alloc(2000 + i, 0x1000 + 16 * i, i, 0)).collect();
        m.events(1, &events);
    }
    let file = m.file();
    let index = Index::open(&file.0, &IndexOptions::default()).expect("a recording");
    let query = Query::new(&index, &Filter::default()).expect("no filter");
    for format in [Format::Csv, Format::Json, Format::Parquet] {
        let (cost, filter) = (Cost::Live, Vec::new());
        let source = Source { index: &index, query: &query, at: None, cost, filter, held: None };
        let mut whole = Vec::new();
        source.write(format, &mut whole).expect("an export");
        let mut out = Cancels(Job::default(), 0);
        let error = out.0.clone().run(|| source.write(format, &mut out)).expect_err("cancelled");
        assert_eq!(error.to_string(), "cancelled", "{format:?}");
        let most = whole.len() as u64 * if format == Format::Parquet { 99 } else { 5 } / 100;
        assert!(out.1 < most, "{format:?}: {} of {}", out.1, whole.len());
    }
}

#[test]
fn blocks_and_stacks_come_back() {
    let mut r = Random(0x9e37_79b9_7f4a_7c15);
    let w = make(&mut r, 5000, 3);
    let mut m = write(&mut r, &w, 3, Compress::Fast);
    let module = Module { number: 1, end: 0x9000, path: "/lib/one.so".into(), ..Module::default() };
    m.module(&module).symbols(1, &[(0x100, 0x100, "outer"), (0x200, 0x100, "in\"ner")]);
    m.pcs(&[[1, 0x108, 1], [2, 0x208, 1]]).nodes(&[[7, 0, 1], [8, 7, 2]]);
    let file = m.file();
    let index = Index::open(&file.0, &IndexOptions::default()).expect("a recording");
    let query = Query::new(&index, &Filter::default()).expect("no filter");
    let export = |format| {
        let (cost, filter) = (Cost::Live, Vec::new());
        let mut out = Vec::new();
        let source = Source { index: &index, query: &query, at: None, cost, filter, held: None };
        source.write(format, &mut out).expect("an export");
        out
    };
    let all = rows(&export(Format::Parquet));
    assert_eq!(all.len(), w.blocks.len());
    let mut wanted = HashMap::new();
    for b in &w.blocks {
        let ns = |t: u64| t - common::START;
        let end = b.end.map(|e| ns(e.0));
        let temporary = u64::from(b.temporary);
        let value = (
            b.size,
            u64::from(b.node),
            end,
            temporary,
            u64::from(b.position),
            GlibcChunks::of(8).usable(b.size, b.header),
        );
        assert_eq!(wanted.insert((ns(b.begin), b.addr), value), None);
    }
    for row in &all {
        let n = |name| number(row, name);
        let key = (n("allocated_at_ns").expect("a time"), n("address").expect("an address"));
        let temporary = n("temporary").expect("a flag");
        let found = (
            n("size").expect("a size"),
            n("stack").expect("a stack"),
            n("freed_at_ns"),
            temporary,
            n("chain_position").expect("a position"),
            n("usable_size"),
        );
        assert_eq!(wanted.remove(&key), Some(found), "{row}");
    }
    let frames = rows(&export(Format::ParquetStacks));
    let of = |stack| frames.iter().filter(move |r| number(r, "stack") == Some(stack));
    let names: Vec<_> = of(8).map(|r| (number(r, "depth"), text(r, "function"))).collect();
    assert_eq!(names, [(Some(0), Some("in\"ner")), (Some(1), Some("outer"))]);
    assert_eq!(of(7).count(), 1);
    assert!(of(7).all(|r| text(r, "file").is_none() && text(r, "module") == Some("/lib/one.so")));
}

/// A root, and blocks that point to the next one each.
struct Chain(u64);

impl Graph for Chain {
    fn each_node(&self, take: TakeNode<'_>) -> std::io::Result<()> {
        take(GraphNode { kind: "variable", name: Some("head"), ..GraphNode::default() })?;
        (1..=self.0).try_for_each(|id| {
            let (address, class) = (Some(id << 40), Some("Node").filter(|_| id % 2 == 0));
            let (size, stack) = (Some(id * 8), Some(u32::MAX));
            let allocated_by = Some("make_node() a.c:5");
            take(GraphNode {
                id,
                kind: "block",
                name: None,
                address,
                size,
                stack,
                class,
                allocated_by,
            })
        })
    }

    fn each_pointer(&self, take: TakePointer<'_>) -> std::io::Result<()> {
        (0..self.0).try_for_each(|from| {
            take(GraphPointer { from, to: from + 1, at: (from == 0).then_some(1 << 63) })
        })
    }
}

#[test]
fn graphs_are_read_back() {
    const BLOCKS: u64 = 140_000;
    let file = Maker::new().file();
    let index = Index::open(&file.0, &IndexOptions::default()).expect("a recording");
    let (mut nodes, mut pointers) = (Vec::new(), Vec::new());
    graph::parquet_nodes(index.analysis(), &Chain(BLOCKS), &mut nodes).expect("written");
    graph::parquet_pointers(index.analysis(), &Chain(BLOCKS), &mut pointers).expect("written");
    let (nodes, pointers) = (rows(&nodes), rows(&pointers));
    assert_eq!((nodes.len() as u64, pointers.len() as u64), (BLOCKS + 1, BLOCKS));
    let root = &nodes[0];
    assert_eq!((text(root, "kind"), text(root, "name")), (Some("variable"), Some("head")));
    assert_eq!((number(root, "address"), text(root, "allocated_by")), (None, None));
    for (id, n) in (0..).zip(&nodes).skip(1) {
        assert_eq!((number(n, "id"), number(n, "address")), (Some(id), Some(id << 40)));
        assert_eq!((number(n, "size"), number(n, "stack")), (Some(id * 8), Some(u32::MAX.into())));
        let (class, by) = (text(n, "class"), text(n, "allocated_by"));
        assert_eq!((class.is_some(), by), (id % 2 == 0, Some("make_node() a.c:5")));
    }
    for (from, p) in (0..).zip(&pointers) {
        let ends = (number(p, "from_id"), number(p, "to_id"), number(p, "address"));
        assert_eq!(ends, (Some(from), Some(from + 1), (from == 0).then_some(1 << 63)));
    }
}
