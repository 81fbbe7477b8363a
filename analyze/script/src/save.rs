//! Lists as files: flame graphs, graphs, and the formats of `prof export`.

use crate::askers::Askers;
use crate::error::{Fault, fault, of_query, of_scan};
use crate::graph;
use crate::group::{AllocationGroupList, One};
use crate::host::FileKind;
use crate::list::AllocationList;
use crate::maplist::MapList;
use crate::recording::Shared;
use crate::registry::Registry;
use prof_analyze::export::{Cost, ExportError, Format, GroupRow, Source};
use prof_analyze::maps::{Held, MapFilter, What};
use prof_analyze::query::{Filter, Query};
use prof_analyze::report::FilterData;
use std::io;
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
    let mut out = Vec::new();
    source(list, &query).write(Format::Flamegraph, &mut out).map_err(failed)?;
    Ok(out)
}

/// Writes a file through the host.
pub(crate) fn write(
    shared: &Shared,
    path: &str,
    kind: FileKind,
    mut content: impl FnMut(&mut dyn io::Write) -> Result<(), ExportError>,
) -> Result<(), Fault> {
    let mut error = None;
    let mut write = |out: &mut dyn io::Write| {
        content(out).map_err(|e| {
            let text = e.to_string();
            error = Some(e);
            text
        })
    };
    let written = shared.host.borrow_mut().file(path, kind, None, &mut write);
    match (written, error) {
        (Ok(()), _) => Ok(()),
        (Err(_), Some(ExportError::Scan(e))) => Err(of_scan(e)),
        (Err(text), _) => Err(fault(text)),
    }
}

/// Returns the source of an export of a list's blocks.
fn source<'a>(list: &'a AllocationList, query: &'a Query<'a>) -> Source<'a> {
    let (index, filter) = (list.of.index(), filter_of(list));
    Source { index, query, at: None, cost: Cost::Allocated, filter, held: None }
}

fn save_blocks(list: &AllocationList, path: &str, kind: FileKind, format: Format) -> Done {
    let query = list.query()?;
    let source = source(list, &query);
    write(&list.shared, path, kind, |out| source.write(format, out))
}

/// The result of a function that saves a file.
pub(crate) type Done = Result<(), Fault>;

fn save_groups(groups: &AllocationGroupList, path: &str, kind: FileKind, format: Format) -> Done {
    let list = groups.ungroup()?;
    let query = list.query()?;
    let source = source(&list, &query);
    let (askers, clock) = (Askers::new(&list.of), &list.of.analysis().meta().clock);
    let row = |g: &One| GroupRow {
        size: g.bytes,
        count: g.count,
        leaked_size: g.live_bytes,
        leaked_count: g.live_count,
        first_allocated_at_ns: clock.ns(g.first),
        stack: g.node,
        function: askers.function(g.node),
    };
    let rows: Vec<GroupRow> = groups.groups.iter().map(row).collect();
    write(&list.shared, path, kind, |out| source.write_groups(&rows, format, out))
}

fn save_maps(shared: &Shared, list: &MapList, path: &str, kind: FileKind, format: Format) -> Done {
    let (index, maps) = (list.of.index(), list.of.maps()?);
    let filter = MapFilter::of_ids(list.ids.to_vec());
    let held = Held::new(index, maps, What::Maps, filter).map_err(of_scan)?.and_ours();
    let query = Query::new(index, &Filter::default()).map_err(of_query)?;
    let (held, filter) = (Some(&held), Vec::new());
    let source = Source { index, query: &query, at: None, cost: Cost::Live, filter, held };
    write(shared, path, kind, |out| source.write(format, out))
}

/// The formats that lists are saved in, with the ending of a file's name and what is in it: of blocks, of groups and of
/// mappings.
const FORMATS: [(&str, &str, FileKind, Format, [&str; 3]); 4] = [
    (
        "save_as_csv",
        "csv",
        FileKind::Csv,
        Format::Csv,
        [
            "Writes every block, a line each, as `prof export csv`.",
            "Writes every group, a line each: size, count, leaked_size, leaked_count, first_allocated_at_ns, stack, \
             function, and backtrace with the outermost function first.",
            "Writes every mapping of the list, a line each, as `prof export csv --what maps`.",
        ],
    ),
    (
        "save_as_json",
        "json",
        FileKind::Json,
        Format::Json,
        [
            "Writes every block and stack, as `prof export json`.",
            "Writes every group with the fields of save_as_csv, and its frames, innermost first.",
            "Writes every mapping of the list, and the stacks, as `prof export json --what maps`.",
        ],
    ),
    (
        "save_as_html",
        "html",
        FileKind::Html,
        Format::Html,
        [
            "Writes a page for browsers, as `prof export html`.",
            "Writes a page for browsers about the blocks of all groups, as `prof export html`.",
            "Writes a page for browsers, as `prof export html --what maps`.",
        ],
    ),
    (
        "save_as_parquet",
        "parquet",
        FileKind::Parquet,
        Format::Parquet,
        [
            "Writes every block, as `prof export parquet`.",
            "Writes every group, with the columns of save_as_csv.",
            "Writes every mapping of the list, as `prof export parquet --what maps`.",
        ],
    ),
];

fn register_formats(r: &mut Registry, shared: &Rc<Shared>) {
    for (name, ending, kind, format, docs) in FORMATS.into_iter().filter(|f| f.3.is_built()) {
        type L = AllocationList;
        let example = format!("allocations().only_leaked().{name}(\"leaked.{ending}\");");
        let write = move |list: &mut L, path: &str| {
            save_blocks(list, path, kind, format).map(|()| list.clone())
        };
        let of = "(path: String) -> AllocationList";
        r.of("AllocationList").def(name, of, docs[0], example, write).note("New in prof.");
        type G = AllocationGroupList;
        let example = format!(
            "allocations().group_by_backtrace().sort_by_size().take(10).{name}(\"stacks.{ending}\");"
        );
        let write = move |groups: &mut G, path: &str| {
            save_groups(groups, path, kind, format).map(|()| groups.clone())
        };
        let of = "(path: String) -> AllocationGroupList";
        r.of("AllocationGroupList").def(name, of, docs[1], example, write).note("New in prof.");
        let own = shared.clone();
        let example = format!("maps().only_writable().{name}(\"maps.{ending}\");");
        let write = move |list: &mut MapList, path: &str| {
            save_maps(&own, list, path, kind, format).map(|()| list.clone())
        };
        let of = "(path: String) -> MapList";
        r.of("MapList").def(name, of, docs[2], example, write).note("New in prof.");
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
    register_formats(r, shared);
}
