//! The routes of prof's own API.

pub(crate) mod blocks;
pub(crate) mod control;
pub(crate) mod files;
mod flame;
mod groups;
mod holds;
mod maps;
pub(crate) mod recordings;
mod reports;
#[cfg(feature = "script")]
pub(crate) mod script;
mod space;
mod timeline;
mod tree;

pub(crate) use blocks::chains_of;
pub(crate) use maps::{NOT_RECORDED, with_header};

use crate::ask::Ask;
use crate::jobs::Act;
use crate::reply::{Answer, Failure, JSON};
use crate::route::{Does, Param, Route};

const AT: Param = ("at", "the figures as of this time, as if the recording had ended there");
const SORT: Param = ("sort", "the key to sort by, largest first");
const REVERSE: Param = ("reverse", "the smallest first");
const SKIP: Param = ("skip", "how many to pass over");
const COUNT: Param = ("count", "how many to return");
const TOP: Param = ("top", "how many rows to return; 0: all");
const METRIC: Param = (
    "metric",
    "the figure: live, leaked, peak, allocated, allocations or temporary; none: live or, where nothing is \
     live, peak or allocated, with the reason as `why`",
);
const SCAN: Param = ("scan", "number or name of the scan; none: the last one");
const PEAK: Param = ("peak", "the figures at the peak of live bytes");
const DIRECTION: Param =
    ("dir", "down: from the start of the threads; up: from the functions that asked");
const DEPTH: Param = ("depth", "greatest number of levels; 0: all");
const TRANSFORMS: Param = (
    "transforms",
    "changes of all stacks, separated by commas: focus.ID, merge.ID, drop.ID, collapse-module.ID (ids of frames), \
     collapse-recursion",
);
const PRUNE: Param = ("prune", "nodes with less than 1/N of the total are put together");
const START: Param = ("start", "start of the window: a time, or nanoseconds");
const END: Param = ("end", "end of the window");

/// A route that reads a recording, takes a filter, and answers JSON.
const fn data(
    path: &'static str,
    about: &'static str,
    params: &'static [Param],
    make: fn(&mut Ask) -> Result<Answer, Failure>,
) -> Route {
    Route { path, about, params, filter: true, kind: JSON, does: Does::Data(make) }
}

/// A route without a filter.
const fn plain(
    path: &'static str,
    about: &'static str,
    params: &'static [Param],
    does: Does,
) -> Route {
    Route { path, about, params, filter: false, kind: JSON, does }
}

/// All routes.
pub(crate) const ROUTES: &[Route] = &[
    plain(
        "/api/v1/recordings",
        "the recordings, and whether they are open",
        &[],
        Does::Now(recordings::list),
    ),
    plain(
        "/api/v1/fields",
        "the fields of filters, the metrics, the sort keys, and the export formats",
        &[],
        Does::Now(recordings::fields),
    ),
    #[cfg(feature = "script")]
    plain(
        "/api/v1/script-names",
        "the names that scripts can use: type, name, signature, description, example",
        &[],
        Does::Now(|_, _| Answer::json(&serde_json::json!({ "names": script::names() }))),
    ),
    #[cfg(feature = "script")]
    Route {
        path: "/api/v1/{r}/script",
        about: "runs the body, a script: a line of JSON for each piece of output (println, image), then done or error; \
                before it, while others run, lines that say how many begin before it (waiting), and that it begins \
                (running)",
        params: &[],
        filter: false,
        kind: script::LINES,
        does: Does::PostStream(script::stream),
    },
    plain("/api/openapi.json", "this description", &[], Does::Now(crate::openapi::document)),
    Route {
        path: "/api/v1/events",
        about: "events (text/event-stream): recordings that change, and ticks of those that grow",
        params: &[],
        filter: false,
        kind: "text/event-stream",
        does: Does::Events,
    },
    plain(
        "/api/v1/jobs",
        "the jobs of requests with `Prefer: respond-async`",
        &[],
        Does::Now(recordings::jobs),
    ),
    plain("/api/v1/jobs/{n}", "how far a job is", &[], Does::Job(Act::Status)),
    plain(
        "/api/v1/jobs/{n}/result",
        "the answer of a job that is done",
        &[],
        Does::Job(Act::Result),
    ),
    plain("/api/v1/jobs/{n}/cancel", "ends a job", &[], Does::Job(Act::Cancel)),
    plain("/api/v1/live/{pid}/pause", "recording off", &[], Does::Control(control::pause)),
    plain("/api/v1/live/{pid}/resume", "recording on", &[], Does::Control(control::resume)),
    plain(
        "/api/v1/live/{pid}/detach",
        "prof out of the process",
        &[],
        Does::Control(control::detach),
    ),
    data("/api/v1/{r}/head", "the recording and its totals", &[AT], recordings::head),
    data(
        "/api/v1/{r}/timeline",
        "figures over time: smallest, largest and last value, or sum, of each column",
        &[
            START,
            END,
            ("width", "number of columns"),
            (
                "series",
                "which series, separated by commas; anonymous, dirty, clean and swap are of the mappings",
            ),
            ("exact", "no short rise may be missing from the smallest and largest values"),
            ("by", "also live bytes of the largest parts: by stack, function, module or thread"),
            ("top", "how many parts"),
        ],
        timeline::timeline,
    ),
    data(
        "/api/v1/{r}/groups",
        "groups of blocks with their figures, and the sums of all others",
        &[
            ("group-by", "stack, function, file, module, thread or size"),
            SORT,
            REVERSE,
            SKIP,
            COUNT,
            ("spark", "number of points of a line of live bytes beside each row"),
            ("peaks", "peaks too, where they need the order of time: takes long"),
            AT,
        ],
        groups::groups,
    ),
    data(
        "/api/v1/{r}/blocks",
        "single blocks, a page at a time",
        &[
            ("sort", "time, address, size or lifetime"),
            REVERSE,
            SKIP,
            COUNT,
            ("after", "the cursor that the page before gave as `next`"),
        ],
        blocks::blocks,
    ),
    plain(
        "/api/v1/{r}/blocks/{n}",
        "one block, its chain of reallocations, and the blocks beside it in memory",
        &[],
        Does::Data(blocks::block),
    ),
    data("/api/v1/{r}/stacks/{n}", "all that is known of a stack", &[], blocks::one_stack),
    data(
        "/api/v1/{r}/flame",
        "a flame graph in columns; with a second range of time, compared with that",
        &[
            METRIC,
            DIRECTION,
            PEAK,
            PRUNE,
            DEPTH,
            TRANSFORMS,
            (
                "root",
                "only what is below this path: ids of frames from the root on, with dots between",
            ),
            ("base-start", "start of the range to compare with: a time, or nanoseconds"),
            ("base-end", "end of that range"),
            AT,
        ],
        flame::flame,
    ),
    data(
        "/api/v1/{r}/sandwich",
        "the callers and the callees of a function, as flame graphs. `function` is that function here",
        &[("function", "name of the function"), METRIC, PEAK, PRUNE, DEPTH, TRANSFORMS, AT],
        flame::sandwich,
    ),
    data(
        "/api/v1/{r}/tree",
        "a node of the tree of calls, and its children",
        &[
            ("node", "the node, as given for it; none: the root"),
            ("bottom-up", "from the functions that asked"),
            SORT,
            REVERSE,
            AT,
        ],
        tree::tree,
    ),
    data(
        "/api/v1/{r}/histogram",
        "blocks by size: `prof report --histogram`",
        &[SORT, REVERSE, TOP, AT],
        reports::histogram,
    ),
    data(
        "/api/v1/{r}/stats",
        "rates, sizes, lifetimes: `prof report --stats`",
        &[SORT, REVERSE, TOP, AT],
        reports::stats,
    ),
    data(
        "/api/v1/{r}/lifetimes",
        "how long blocks lived: a part of `prof report --stats`",
        &[AT],
        reports::lifetimes,
    ),
    data(
        "/api/v1/{r}/threads",
        "blocks by thread: `prof report --threads`",
        &[SORT, REVERSE, TOP, AT],
        reports::threads,
    ),
    data(
        "/api/v1/{r}/leaks",
        "verdicts on all stacks: `prof leaks --all`",
        &[TOP, ("young", "blocks younger than this don't count")],
        reports::leaks,
    ),
    data(
        "/api/v1/{r}/fragmentation",
        "what resident memory consists of: `prof fragmentation`",
        &[TOP, AT],
        reports::fragmentation,
    ),
    plain(
        "/api/v1/{r}/info",
        "what is in the recording: `prof info`",
        &[],
        Does::Data(reports::info),
    ),
    data(
        "/api/v1/{r}/diff",
        "the blocks that were allocated in two ranges of time, compared as by `prof diff`",
        &[
            ("before-from", "start of the first range"),
            ("before-to", "end of the first range"),
            ("after-from", "start of the second range"),
            ("after-to", "end of the second range"),
            TOP,
        ],
        reports::diff_ranges,
    ),
    Route {
        path: "/api/v1/flame",
        about: "a flame graph of one recording, compared with another one",
        params: &[
            ("before", "id of the recording to compare with"),
            ("after", "id of the recording to show"),
            METRIC,
            DIRECTION,
            PRUNE,
            DEPTH,
            TRANSFORMS,
        ],
        filter: true,
        kind: JSON,
        does: Does::Two(flame::of_two),
    },
    Route {
        path: "/api/v1/diff",
        about: "two recordings, or two moments, compared: `prof diff`",
        params: &[
            ("before", "id of the first recording, or ID@TIME for a moment of it"),
            ("after", "id of the second recording, or ID@TIME"),
            TOP,
        ],
        filter: true,
        kind: JSON,
        does: Does::Two(reports::diff),
    },
    data(
        "/api/v1/{r}/space",
        "live blocks by their addresses, in bins",
        &[("start", "lowest address"), ("end", "highest address"), ("bins", "number of bins"), AT],
        space::space,
    ),
    data(
        "/api/v1/{r}/maps",
        "the mappings of the process; the fields are those of `prof maps`",
        &[("sort", "size, rss, peak-rss, time or address"), REVERSE, SKIP, COUNT],
        maps::maps,
    ),
    plain(
        "/api/v1/{r}/maps/{n}",
        "one mapping, its regions, and its use over time",
        &[],
        Does::Data(maps::map),
    ),
    plain(
        "/api/v1/{r}/scans",
        "the scans of the recording, which `prof holds PID --save` puts there",
        &[],
        Does::Data(holds::scans),
    ),
    plain(
        "/api/v1/{r}/holds",
        "who holds the live blocks: `prof holds FILE`; with `since`, what has changed from one scan to another",
        &[
            SCAN,
            ("since", "compare with this scan: `--since-scan`"),
            ("by", "what to list: both, root, stack or none"),
            ("top", "how many roots and how many stacks; 0: all"),
            ("depth", "greatest number of levels below a root; 0: 50"),
            (
                "path",
                "a shortest chain of pointers to this block (0x...), or to a block of the stack of this number",
            ),
        ],
        Does::Data(holds::holds),
    ),
    plain(
        "/api/v1/{r}/holders",
        "a node of the tree of holders, and what hangs on it: of stacks by all that only they lead to",
        &[
            SCAN,
            (
                "node",
                "the node, as given for it; none: the roots; several: what several roots hold",
            ),
            COUNT,
        ],
        Does::Data(holds::holders),
    ),
    Route {
        path: "/api/v1/{r}/export/{format}",
        about: "a file in the format of another tool: `prof export`",
        params: &[("cost", "the figure that stacks are shown by, as `metric`"), AT],
        filter: true,
        kind: "application/octet-stream",
        does: Does::Stream(files::export),
    },
    plain(
        "/api/v1/{r}/source",
        "lines of a source file that the recording's stacks name; only with --sources",
        &[("file", "the file, as frames name it"), ("line", "the line in the middle")],
        Does::Data(files::source),
    ),
    data(
        "/api/v1/{r}/to_command",
        "the command line that shows the same blocks",
        &[("view", "report, leaks, tree, threads, histogram, stats or fragmentation")],
        files::to_command,
    ),
];
