//! Compares recordings that were made from others.

use super::Temp;
use prof_analyze::export::{Cost, Format, Source};
use prof_analyze::heap::Group;
use prof_analyze::query::{Filter, Query};
use prof_analyze::{Index, IndexOptions};
use std::collections::HashMap;

/// Opens a recording with a new index.
pub(crate) fn open(file: &Temp) -> Index {
    Index::open(&file.0, &IndexOptions::default()).expect("a recording")
}

/// Returns the groups by the nodes of their stacks.
pub(crate) fn by_node(groups: &[Group]) -> HashMap<u32, Group> {
    groups.iter().map(|g| (g.node, *g)).collect()
}

/// Returns all blocks of a recording as text, without the numbers that a reader assigns.
pub(crate) fn blocks(index: &Index) -> Vec<String> {
    let query = Query::new(index, &Filter::default()).expect("no filter");
    let (cost, filter, mut out) = (Cost::Live, Vec::new(), Vec::new());
    let source = Source { index, query: &query, at: None, cost, filter, held: None };
    source.write(Format::Csv, &mut out).expect("CSV");
    let text = String::from_utf8(out).expect("UTF-8");
    let row = |l: &str| {
        let columns: Vec<_> = l.split(',').collect();
        // Leave out the number of the chain, and whether the free was recorded.
        [&columns[..11], &columns[13..]].concat().join(",")
    };
    let mut all: Vec<_> = text.lines().skip(1).map(row).collect();
    all.sort();
    all
}
