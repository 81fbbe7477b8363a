//! Scans as files: the report, and all blocks and pointers.

use crate::error::{Fault, fault};
use crate::host::FileKind;
use crate::registry::Registry;
use crate::save::write;
use crate::scans::{Scan, unless_stopped, with};
use prof_analyze::Analysis;
use prof_analyze::export::{ExportError, graph};
use prof_analyze::holds::ScanGraph;
use std::io;
use std::path::Path;

/// A format of nodes and pointers.
#[derive(Clone, Copy, Debug)]
enum GraphFormat {
    Csv,
    #[cfg(feature = "parquet")]
    Parquet,
}

type Written = Result<(), ExportError>;

impl GraphFormat {
    /// Returns the kind of its files, the ending of their names, and the method that writes them.
    fn described(self) -> (FileKind, &'static str, &'static str) {
        match self {
            Self::Csv => (FileKind::Csv, "csv", "save_as_csv"),
            #[cfg(feature = "parquet")]
            Self::Parquet => (FileKind::Parquet, "parquet", "save_as_parquet"),
        }
    }

    fn nodes(self, _of: &Analysis, graph: &ScanGraph<'_>, out: &mut dyn io::Write) -> Written {
        match self {
            Self::Csv => Ok(graph::csv_nodes(graph, out)?),
            #[cfg(feature = "parquet")]
            Self::Parquet => graph::parquet_nodes(_of, graph, out),
        }
    }

    fn pointers(self, _of: &Analysis, graph: &ScanGraph<'_>, out: &mut dyn io::Write) -> Written {
        match self {
            Self::Csv => Ok(graph::csv_pointers(graph, out)?),
            #[cfg(feature = "parquet")]
            Self::Parquet => graph::parquet_pointers(_of, graph, out),
        }
    }
}

/// Writes the blocks and roots to a file of nodes, and the pointers to one beside it.
fn save_graph(scan: &Scan, path: &str, format: GraphFormat) -> Result<Scan, Fault> {
    let (kind, ending, by) = format.described();
    let nodes = Path::new(path);
    if nodes.extension().is_none_or(|e| e != ending) {
        return Err(fault(format!(
            "{by} of a scan writes two files, NAME.{ending} and NAME.pointers.{ending}: give a name that ends in \
             .{ending}, and not {path:?}"
        )));
    }
    let (of, analysis) = (scan.load()?, scan.of.index().analysis());
    let names = &mut of.names.borrow_mut();
    let graph = unless_stopped(ScanGraph::new(&of.holders, analysis, names))?;
    write(&scan.shared, path, kind, |out| format.nodes(analysis, &graph, out))?;
    let pointers = graph::beside(nodes);
    write(&scan.shared, &pointers.to_string_lossy(), kind, |out| {
        format.pointers(analysis, &graph, out)
    })?;
    Ok(scan.clone())
}

fn save(scan: &Scan, path: &str, kind: FileKind, text: &str) -> Result<Scan, Fault> {
    write(&scan.shared, path, kind, |out| Ok(out.write_all(text.as_bytes())?))?;
    Ok(scan.clone())
}

/// Registers the methods.
pub(crate) fn register(r: &mut Registry) {
    r.of("Scan")
        .def(
            "save_as_json",
            "(path: String) -> Scan",
            "Writes all roots and stacks, as `prof holds --top 0 --format json`.",
            with("s.save_as_json(\"holders.json\");"),
            |s: &mut Scan, path: &str| {
                let text = s.whole(0)?.json();
                save(s, path, FileKind::Json, &text)
            },
        )
        .note("New in prof.")
        .def(
            "save_as_html",
            "(path: String) -> Scan",
            "Writes the report as a page for browsers, as `prof holds --export FILE.html`.",
            with("s.save_as_html(\"holders.html\");"),
            |s: &mut Scan, path: &str| {
                let text = s.whole(10)?.html();
                save(s, path, FileKind::Html, &text)
            },
        )
        .note("New in prof.")
        .def(
            "save_as_csv",
            "(path: String) -> Scan",
            "Writes all roots and blocks, a line each, and beside them the pointers, as `prof holds --export NAME.csv`: NAME.csv and NAME.pointers.csv.",
            with("s.save_as_csv(\"scan.csv\");"),
            |s: &mut Scan, path: &str| save_graph(s, path, GraphFormat::Csv),
        )
        .note("New in prof.");
    #[cfg(feature = "parquet")]
    r.def(
        "save_as_parquet",
        "(path: String) -> Scan",
        "Writes all roots and blocks, a row each, and beside them the pointers, as `prof holds --export NAME.parquet`: NAME.parquet and NAME.pointers.parquet.",
        with("s.save_as_parquet(\"scan.parquet\");"),
        |s: &mut Scan, path: &str| save_graph(s, path, GraphFormat::Parquet),
    )
    .note("New in prof.");
}
