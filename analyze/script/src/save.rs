//! Lists as files: flame graphs, graphs, and the formats of `prof export`.

use crate::error::{Fault, fault, of_scan};
use crate::graph;
use crate::host::FileKind;
use crate::list::AllocationList;
use crate::recording::Shared;
use crate::registry::Registry;
use prof_analyze::export::{Cost, ExportError, Format, Source};
use prof_analyze::report::FilterData;
use std::rc::Rc;

/// Returns the filters that a list was made by.
pub(crate) fn filter_of(list: &AllocationList) -> Vec<FilterData> {
    let data = |(name, value): &(&str, String)| FilterData {
        name: (*name).to_owned(),
        value: value.clone(),
    };
    list.given().iter().map(data).collect()
}

fn failed(e: ExportError) -> Fault {
    match e {
        ExportError::Scan(e) => of_scan(e),
        e => fault(e.to_string()),
    }
}

/// Returns a flame graph of the bytes that a list allocated.
pub(crate) fn flamegraph(list: &AllocationList) -> Result<Vec<u8>, Fault> {
    let query = list.query()?;
    let source = Source {
        index: list.of.index(),
        query: &query,
        at: None,
        cost: Cost::Allocated,
        filter: filter_of(list),
        held: None,
    };
    let mut out = Vec::new();
    source.write(Format::Flamegraph, &mut out).map_err(failed)?;
    Ok(out)
}

fn save(
    list: &AllocationList,
    path: &str,
    kind: FileKind,
    format: Format,
) -> Result<AllocationList, Fault> {
    let query = list.query()?;
    let source = Source {
        index: list.of.index(),
        query: &query,
        at: None,
        cost: Cost::Allocated,
        filter: filter_of(list),
        held: None,
    };
    let mut error = None;
    let mut write = |out: &mut dyn std::io::Write| {
        source.write(format, out).map_err(|e| {
            let text = e.to_string();
            error = Some(e);
            text
        })
    };
    let written = list.shared.host.borrow_mut().file(path, kind, None, &mut write);
    match (written, error) {
        (Ok(()), _) => Ok(list.clone()),
        (Err(_), Some(ExportError::Scan(e))) => Err(of_scan(e)),
        (Err(text), _) => Err(fault(text)),
    }
}

/// Registers the methods.
pub(crate) fn register(r: &mut Registry, shared: &Rc<Shared>) {
    type L = AllocationList;
    let own = shared.clone();
    let save_flame = |shared: &Shared, list: &L, path: &str| {
        shared.write(path, FileKind::Svg, None, &flamegraph(list)?)?;
        Ok::<_, Fault>(list.clone())
    };
    let named = shared.clone();
    r.of("AllocationList")
        .def(
            "save_as_flamegraph",
            "(path: String) -> AllocationList",
            "Writes a flame graph of all bytes that the list allocated; without a path to `Flamegraph #0.svg`.",
            "allocations().only_temporary().save_as_flamegraph(\"allocations.svg\");",
            move |list: &mut L| {
                let n = own.flamegraphs.get();
                own.flamegraphs.set(n + 1);
                save_flame(&own, list, &format!("Flamegraph #{n}.svg"))
            },
        )
        .also(move |list: &mut L, path: &str| save_flame(&named, list, path))
        .def(
            "save_as_graph",
            "(path: String) -> AllocationList",
            "Writes a graph of the list's live bytes; without a path to `Graph #0.svg`.",
            "allocations().only_temporary().save_as_graph(\"allocations.svg\");",
            |list: &mut L| graph::save_list(list, None).map(|()| list.clone()),
        )
        .also(|list: &mut L, path: &str| graph::save_list(list, Some(path)).map(|()| list.clone()));
    let formats: [(&str, &str, FileKind, Format, &str); 4] = [
        (
            "save_as_csv",
            "csv",
            FileKind::Csv,
            Format::Csv,
            "Writes every block, a line each, as `prof export csv`.",
        ),
        (
            "save_as_json",
            "json",
            FileKind::Json,
            Format::Json,
            "Writes every block and stack, as `prof export json`.",
        ),
        (
            "save_as_html",
            "html",
            FileKind::Html,
            Format::Html,
            "Writes a page for browsers, as `prof export html`.",
        ),
        (
            "save_as_parquet",
            "parquet",
            FileKind::Parquet,
            Format::Parquet,
            "Writes every block, as `prof export parquet`.",
        ),
    ];
    for (name, ending, kind, format, doc) in formats.into_iter().filter(|f| f.3.is_built()) {
        let example = format!("allocations().only_leaked().{name}(\"leaked.{ending}\");");
        let write = move |list: &mut L, path: &str| save(list, path, kind, format);
        r.def(name, "(path: String) -> AllocationList", doc, example, write).note("New in prof.");
    }
}
