//! bytehound's routes, parameters and shapes.

mod blocks;
pub(crate) mod filter;
mod graph;
mod lists;
pub(crate) mod script;
mod shape;
mod tree;

use crate::api::files::export_of;
use crate::ask::Ask;
use crate::reply::{Answer, Failure, JSON, TEXT, Writer};
use crate::route::{Does, Param, Route};
use prof_analyze::export::{Cost, Format};

const STRIP: Param = ("strip_template_args", "functions without template arguments");
const CUSTOM: Param = ("custom_filter", "a script whose value is a list");
const SKIP: Param = ("skip", "how many to pass over");
const COUNT: Param = ("count", "how many to return");
const ORDER: Param = ("order", "asc or dsc");
const GRAPHS: Param = ("generate_graphs", "give each group the addresses of its graphs");
const NO_GRAPHS: Param = ("generate_graphs", "mappings have none");

/// A route without a filter, whose answers are kept.
const fn plain(
    path: &'static str,
    about: &'static str,
    params: &'static [Param],
    kind: &'static str,
    does: Does,
) -> Route {
    Route { path, about, params, filter: false, kind, does }
}

/// A route with a filter.
const fn data(
    path: &'static str,
    about: &'static str,
    params: &'static [Param],
    kind: &'static str,
    does: Does,
) -> Route {
    Route { path, about, params, filter: true, kind, does }
}

const BYTES: &str = "application/octet-stream";
const SVG: &str = "image/svg+xml";

fn export(mut ask: Ask, format: Format, kind: &'static str) -> Result<(Answer, Writer), Failure> {
    let filter = filter::take(&mut ask)?;
    export_of(ask, filter, None, (format, kind), Cost::Live)
}

fn flamegraph(ask: Ask) -> Result<(Answer, Writer), Failure> {
    export(ask, Format::Flamegraph, SVG)
}

fn folded(ask: Ask) -> Result<(Answer, Writer), Failure> {
    export(ask, Format::Folded, BYTES)
}

fn heaptrack(ask: Ask) -> Result<(Answer, Writer), Failure> {
    export(ask, Format::Heaptrack, BYTES)
}

fn replay(ask: Ask) -> Result<(Answer, Writer), Failure> {
    export(ask, Format::Replay, BYTES)
}

const FLAMEGRAPH: &str = "a flame graph of the live bytes";
const FOLDED: &str = "folded stacks";
const HEAPTRACK: &str = "for heaptrack";
const REPLAY: &str = "the calls, to be replayed";
const CONSTANTS: &str = "constants that static initialisers make, by source file and line";
const STATICS: &str = "variables that static initialisers make, by source file and line";

/// All routes.
pub(crate) const ROUTES: &[Route] = &[
    plain("/list", "the recordings", &[], JSON, Does::Open(lists::list)),
    plain("/data/{r}/timeline", "figures over time", &[], JSON, Does::Data(lists::timeline)),
    plain(
        "/data/{r}/timeline_leaked",
        "figures over time of the blocks that are never freed",
        &[],
        JSON,
        Does::Data(lists::timeline_leaked),
    ),
    plain(
        "/data/{r}/timeline_maps",
        "the memory of the process over time",
        &[],
        JSON,
        Does::Data(lists::timeline_maps),
    ),
    data(
        "/data/{r}/allocations",
        "blocks",
        &[("sort_by", "timestamp, address or size"), ORDER, SKIP, COUNT, STRIP, CUSTOM],
        JSON,
        Does::Stream(blocks::allocations),
    ),
    data(
        "/data/{r}/allocation_groups",
        "groups of blocks by their stack",
        &[
            (
                "sort_by",
                "only_matched. or all. and min_timestamp, max_timestamp, interval, allocated_count, leaked_count or size; all.max_total_usage_first_seen_at",
            ),
            ORDER,
            SKIP,
            COUNT,
            GRAPHS,
            STRIP,
            CUSTOM,
        ],
        JSON,
        Does::Data(blocks::allocation_groups),
    ),
    data(
        "/data/{r}/maps",
        "mappings",
        &[
            ("sort_by", "timestamp, address, size or peak_rss"),
            ORDER,
            SKIP,
            COUNT,
            NO_GRAPHS,
            ("with_regions", "with their regions"),
            ("with_usage_history", "with their use over time"),
            STRIP,
            CUSTOM,
        ],
        JSON,
        Does::Data(lists::maps),
    ),
    data("/data/{r}/backtraces", "stacks", &[STRIP], JSON, Does::Stream(blocks::backtraces)),
    plain(
        "/data/{r}/backtrace/{backtrace_id}",
        "one stack",
        &[STRIP],
        JSON,
        Does::Data(blocks::backtrace),
    ),
    plain(
        "/data/{r}/raw_allocations",
        "the addresses of every block's stack",
        &[],
        JSON,
        Does::Stream(blocks::raw_allocations),
    ),
    data("/data/{r}/tree", "the tree of calls", &[STRIP, CUSTOM], JSON, Does::Data(tree::tree)),
    data(
        "/data/{r}/regions",
        "the addresses that blocks took",
        &[CUSTOM],
        JSON,
        Does::Data(blocks::regions),
    ),
    data(
        "/data/{r}/group_graph/{backtrace_id}",
        "the live bytes of a group over time, as groups give its address",
        &[("preview", "a small one"), CUSTOM],
        SVG,
        Does::Data(graph::graph),
    ),
    plain("/data/{r}/mallopts", "calls of mallopt", &[STRIP], JSON, Does::Data(lists::mallopts)),
    data("/data/{r}/export/flamegraph", FLAMEGRAPH, &[CUSTOM], SVG, Does::Stream(flamegraph)),
    data(
        "/data/{r}/export/flamegraph/{filename}",
        FLAMEGRAPH,
        &[CUSTOM],
        SVG,
        Does::Stream(flamegraph),
    ),
    data("/data/{r}/export/flamegraph.pl", FOLDED, &[CUSTOM], BYTES, Does::Stream(folded)),
    data(
        "/data/{r}/export/flamegraph.pl/{filename}",
        FOLDED,
        &[CUSTOM],
        BYTES,
        Does::Stream(folded),
    ),
    data("/data/{r}/export/heaptrack", HEAPTRACK, &[CUSTOM], BYTES, Does::Stream(heaptrack)),
    data(
        "/data/{r}/export/heaptrack/{filename}",
        HEAPTRACK,
        &[CUSTOM],
        BYTES,
        Does::Stream(heaptrack),
    ),
    data("/data/{r}/export/replay", REPLAY, &[CUSTOM], BYTES, Does::Stream(replay)),
    data("/data/{r}/export/replay/{filename}", REPLAY, &[CUSTOM], BYTES, Does::Stream(replay)),
    data(
        "/data/{r}/allocation_ascii_tree",
        "the tree of calls, as text",
        &[CUSTOM],
        TEXT,
        Does::Data(tree::ascii_tree),
    ),
    plain("/data/{r}/dynamic_constants", CONSTANTS, &[], JSON, Does::Data(tree::constants)),
    plain(
        "/data/{r}/dynamic_constants/{filename}",
        CONSTANTS,
        &[],
        JSON,
        Does::Data(tree::constants),
    ),
    plain(
        "/data/{r}/dynamic_constants_ascii_tree",
        CONSTANTS,
        &[],
        TEXT,
        Does::Data(tree::constants_text),
    ),
    plain(
        "/data/{r}/dynamic_constants_ascii_tree/{filename}",
        CONSTANTS,
        &[],
        TEXT,
        Does::Data(tree::constants_text),
    ),
    plain("/data/{r}/dynamic_statics", STATICS, &[], JSON, Does::Data(tree::statics)),
    plain("/data/{r}/dynamic_statics/{filename}", STATICS, &[], JSON, Does::Data(tree::statics)),
    plain(
        "/data/{r}/dynamic_statics_ascii_tree",
        STATICS,
        &[],
        TEXT,
        Does::Data(tree::statics_text),
    ),
    plain(
        "/data/{r}/dynamic_statics_ascii_tree/{filename}",
        STATICS,
        &[],
        TEXT,
        Does::Data(tree::statics_text),
    ),
    plain(
        "/data/{r}/execute_script",
        "runs a script",
        &[],
        JSON,
        Does::Post(script::execute, script::failed),
    ),
    plain(
        "/data/{r}/script_files/{hash}/{filename}",
        "files that scripts have made",
        &[],
        SVG,
        Does::Data(script::files),
    ),
    data(
        "/data/{r}/allocation_filter_to_script",
        "a filter of blocks as code",
        &[CUSTOM],
        JSON,
        Does::Data(script::of_allocations),
    ),
    data(
        "/data/{r}/map_filter_to_script",
        "a filter of mappings as code",
        &[("bytehound", "of the profiler itself"), CUSTOM],
        JSON,
        Does::Data(script::of_maps),
    ),
];
