//! bytehound's API: its routes, parameters and shapes.

use super::client::Served;
use serde_json::Value;

const START_MS: u64 = 1_700_000_000_000;

/// Checks the keys of an object: those that must be there; those with a question mark may be missing.
#[track_caller]
fn shape(of: &str, v: &Value, keys: &str) {
    let object = v.as_object().unwrap_or_else(|| panic!("{of} is no object: {v}"));
    let mut known = Vec::new();
    for word in keys.split_whitespace() {
        let (key, kind) = word.split_once(':').unwrap_or((word, "any"));
        let (key, optional) = match key.strip_suffix('?') {
            Some(key) => (key, true),
            None => (key, false),
        };
        known.push(key.to_owned());
        let Some(value) = object.get(key) else {
            assert!(optional, "{of} has no {key}: {v}");
            continue;
        };
        let is = match kind {
            "n" => value.is_u64() || value.is_i64(),
            "f" => value.is_number(),
            "s" => value.is_string(),
            "b" => value.is_boolean(),
            "a" => value.is_array(),
            "o" => value.is_object(),
            "null" => value.is_null(),
            "t" => value["secs"].is_u64() && value["fract_nsecs"].is_u64(),
            _ => true,
        };
        assert!(is, "{of}: {key} is no {kind}: {value}");
    }
    for key in object.keys() {
        assert!(known.contains(key), "{of} has {key}, which is not in the list");
    }
}

/// The three forms of a moment.
fn moment(name: &str) -> String {
    format!("{name}:t {name}_relative:t {name}_relative_p:f")
}

const FRAME: &str = "address:n address_s:s count:n library?:s function?:s raw_function?:s source?:s line?:n \
                     column?:n is_inline:b";

#[test]
fn shapes_are_those_that_clients_know() {
    let s = Served::new(20);
    let list = s.json("/list");
    shape(
        "metadata",
        &list[0],
        "id:s executable:s cmdline:s architecture:s final_allocated:n final_allocated_count:n runtime:t \
         unique_backtrace_count:n maximum_backtrace_depth:n timestamp:t",
    );
    let id = list[0]["id"].as_str().expect("an id");
    assert!(id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()), "{id}");
    let lines = "xs:a size_delta:a count_delta:a allocated_size:a allocated_count:a allocations:a deallocations:a";
    for route in ["timeline", "timeline_leaked"] {
        let line = s.json(&format!("/data/{id}/{route}"));
        shape(route, &line, lines);
        let n = line["xs"].as_array().expect("xs").len();
        assert!(
            line.as_object()
                .expect("lines")
                .values()
                .all(|v| v.as_array().map(Vec::len) == Some(n))
        );
        assert!((1000..=1002).contains(&n), "{n}");
    }
    let maps = "xs:a address_space:a rss:a anonymous:a dirty:a clean:a swap:a";
    shape("timeline_maps", &s.json("/data/last/timeline_maps"), maps);

    let blocks = s.json("/data/last/allocations");
    shape("allocations", &blocks, "allocations:a total_count:n");
    let ended = format!("{} thread:n backtrace_id?:n backtrace?:a", moment("timestamp"));
    for b in blocks["allocations"].as_array().expect("blocks") {
        let keys = format!(
            "id:n address:n address_s:s {} thread:n size:n backtrace_id:n backtrace:a deallocation?:o \
             chain_deallocation?:o is_mmaped:b is_jemalloc:b in_main_arena:b extra_space:n chain_lifetime?:t \
             position_in_chain:n chain_length:n",
            moment("timestamp")
        );
        shape("allocation", b, &keys);
        for key in ["deallocation", "chain_deallocation"] {
            if let Some(d) = b.get(key) {
                shape(key, d, &ended);
            }
        }
        b["backtrace"].as_array().expect("frames").iter().for_each(|f| shape("frame", f, FRAME));
    }
    let groups = s.json("/data/last/allocation_groups");
    shape("groups", &groups, "allocations:a total_count:n");
    let figures = format!(
        "size:n min_size:n max_size:n {} {} interval:t leaked_count:n allocated_count:n graph_url:null \
         graph_preview_url:null",
        moment("min_timestamp"),
        moment("max_timestamp")
    );
    for g in groups["allocations"].as_array().expect("groups") {
        shape("group", g, "all:o only_matched:o backtrace_id:n backtrace:a");
        shape("all", &g["all"], &format!("{figures} {}", moment("max_total_usage_first_seen_at")));
        let matched = format!("{figures} max_total_usage_first_seen_at:null");
        shape("only_matched", &g["only_matched"], &matched);
    }
    let got = s.get("/data/last/maps?peak_rss=1&with_regions=true");
    assert!(got.header("x-prof-not-recorded").is_some_and(|h| h.contains("maps")));
    shape("maps", &got.json(), "maps:a total_count:n");
    let stacks = s.json("/data/last/backtraces");
    shape("backtraces", &stacks, "backtraces:a total_count:n");
    assert!(stacks["backtraces"][0].is_array());
    shape("backtrace", &s.json("/data/last/backtrace/5"), "frames:a");
    for wrong in ["x", "-1", "99999999", "99999999999999999999"] {
        assert_eq!(s.get(&format!("/data/last/backtrace/{wrong}")).status, 404, "{wrong}");
    }
    let raw = s.json("/data/last/raw_allocations");
    let raw = raw.as_array().expect("blocks");
    assert_eq!(raw.len(), s.world.blocks.len());
    shape("raw", &raw[0], "backtrace:a");
    let node = "size:n count:n first:n last:n value?:o children:a";
    let tree = s.json("/data/last/tree");
    shape("tree", &tree, node);
    assert!(tree.get("value").is_none());
    shape("node", &tree["children"][0], node);
    shape("frame", &tree["children"][0]["value"], FRAME);
    let regions =
        "main_heap_start:n main_heap_end:n main_heap_start_s:s main_heap_end_s:s regions:a";
    let got = s.json("/data/last/regions");
    shape("regions", &got, regions);
    assert!(got["regions"][0].as_array().is_some_and(|r| r.len() == 2));
    assert_eq!(got["main_heap_start_s"].as_str().map(str::len), Some(16));
    let got = s.get("/data/last/mallopts");
    assert_eq!(got.header("x-prof-not-recorded"), None);
    let settings = got.json();
    let keys = format!(
        "{} thread:n backtrace_id:n backtrace:a raw_param:n param?:s value:n result:n",
        moment("timestamp")
    );
    for v in settings.as_array().expect("calls") {
        shape("mallopt", v, &keys);
        assert_eq!((&v["value"], &v["result"]), (&Value::from(-2), &Value::from(1)));
        let last = v["backtrace"].as_array().and_then(|b| b.last()).expect("a frame");
        assert_eq!((&v["backtrace_id"], &last["function"]), (&5.into(), &"function_5".into()));
    }
    let params: Vec<_> = settings.as_array().into_iter().flatten().collect();
    let of = |i: usize| (&params[i]["raw_param"], params[i].get("param"), &params[i]["thread"]);
    assert_eq!(of(0), (&Value::from(-8), Some(&"M_ARENA_MAX".into()), &101.into()));
    assert_eq!(of(1), (&Value::from(77), None, &102.into()));
    assert_eq!(params.len(), 2);
    for route in ["dynamic_constants", "dynamic_statics", "dynamic_statics/x.json"] {
        shape(route, &s.json(&format!("/data/last/{route}")), "count:n size:n per_file:o");
    }
    assert!(s.json("/data/last/dynamic_statics")["count"].as_u64() > Some(0));
    let code = s.json("/data/last/allocation_filter_to_script?size_min=5");
    shape("code", &code, "prologue:s code:s");
    assert_eq!(code["code"], "allocations()\n  .only_larger_or_equal(5)\n");
    assert_eq!(s.json("/data/last/map_filter_to_script")["code"], "maps()\n");
    let post = "Content-Type: text/plain\r\n";
    let ran = s.ask("POST", "/data/last/execute_script", post, "println(1);").json();
    assert!(ran["status"].is_string() && ran["output"].is_array(), "{ran}");
}

#[test]
fn files_and_texts_are_there() {
    let s = Served::new(21);
    for route in [
        "export/flamegraph",
        "export/flamegraph/x.svg",
        "export/flamegraph.pl",
        "export/flamegraph.pl/x.txt",
        "export/heaptrack",
        "export/heaptrack/x.dat",
        "export/replay",
        "export/replay/x.dat",
        "allocation_ascii_tree",
        "dynamic_constants_ascii_tree",
        "dynamic_constants_ascii_tree/x.txt",
        "dynamic_statics_ascii_tree",
        "dynamic_statics_ascii_tree/x.txt",
    ] {
        let got = s.get(&format!("/data/last/{route}"));
        assert_eq!(got.status, 200, "{route}: {}", got.body);
        assert!(!got.body.is_empty(), "{route}");
    }
    assert!(s.get("/data/last/export/flamegraph").body.contains("<svg"));
    assert!(s.get("/data/last/allocation_ascii_tree").body.contains("function_1"));
    assert!(s.get("/data/last/dynamic_statics_ascii_tree").body.contains("(all)"));
}

#[test]
fn filters_select_what_they_say() {
    let s = Served::new(22);
    let count = |query: &str| {
        s.json(&format!("/data/last/allocations?count=1&{query}"))["total_count"]
            .as_u64()
            .expect("a count")
    };
    let blocks = &s.world.blocks;
    let of = |is: &dyn Fn(&super::common::world::Block) -> bool| {
        blocks.iter().filter(|b| is(b)).count() as u64
    };
    assert_eq!(count(""), blocks.len() as u64);
    assert_eq!(count("size_min=1000&size_max=2000"), of(&|b| (1000..=2000).contains(&b.size)));
    assert_eq!(count("lifetime=only_leaked"), of(&|b| b.end.is_none()));
    // bytehound's word for a block that was freed at all.
    assert_eq!(count("lifetime=only_temporary"), of(&|b| b.end.is_some()));
    assert_eq!(count("lifetime=all"), blocks.len() as u64);
    assert_eq!(count("backtraces=7"), of(&|b| b.node == 7));
    // An interval without a unit is in seconds, and the recording lasts microseconds.
    assert_eq!(count("lifetime_min=1"), 0);
    assert_eq!(count("lifetime_max=1"), blocks.len() as u64);
    assert_eq!(count("lifetime_max=0us"), of(&|b| b.end.is_some_and(|e| e.0 == b.begin)));
    // Times are Unix milliseconds; the whole recording lies within one of them.
    assert_eq!(count(&format!("from={START_MS}&to={START_MS}")), blocks.len() as u64);
    assert_eq!(count(&format!("from={}", START_MS + 1)), 0);
    assert_eq!(count(&format!("to={}", START_MS - 1)), 0);
    assert_eq!(count(&format!("from={}", START_MS - 1000)), blocks.len() as u64);
    assert_eq!(count("to=99999999999999"), blocks.len() as u64);
    assert!(count("from=50%25") < blocks.len() as u64);
    assert_eq!(count("arena=non_main") + count("arena=main"), of(&|b| b.header.arena != 0));
    assert_eq!(count("mmaped=yes"), of(&|b| b.header.mapped));
    assert!(count("function_regex=function_1%24") > 0);
    assert_eq!(count("function_regex="), blocks.len() as u64, "an empty field is none");
    // No function of these stacks is jemalloc's, and the recording has no marks.
    assert_eq!((count("jemalloc=yes"), count("jemalloc=no")), (0, blocks.len() as u64));
    assert_eq!(count("marker=0"), blocks.len() as u64);
    for (query, part) in [
        ("marker=1", "prof mark PID NAME"),
        ("jemalloc=perhaps", "yes"),
        ("from_map=1", "from-map"),
        ("custom_filter=5", "script"),
        ("size_min=x", "size"),
        ("function_regex=(", "regex"),
        ("lifetime=only_sometimes", "lifetime"),
        ("sort_by=colour", "colour"),
        ("order=up", "up"),
        ("backtraces=x", "x"),
    ] {
        let got = s.get(&format!("/data/last/allocations?{query}"));
        assert_eq!(got.status, 400, "{query}");
        assert!(got.body.contains(part), "{query}: {}", got.body);
    }
    let got = s.get("/data/last/allocations?count=1&colour=red&size_min=1&shape=round");
    assert_eq!((got.status, got.header("x-prof-ignored")), (200, Some("colour, shape")));
    assert_eq!(s.get("/data/0123/timeline").status, 404);
}

#[test]
fn orders_and_pages_are_those_of_the_server() {
    let s = Served::new(23);
    let page =
        |query: &str| s.json(&format!("/data/last/allocations?{query}"))["allocations"].clone();
    let values = |v: &Value, key: &str| -> Vec<u64> {
        v.as_array().expect("rows").iter().filter_map(|r| r[key].as_u64()).collect()
    };
    let all = values(&page("sort_by=size&order=dsc"), "size");
    assert!(all.windows(2).all(|w| w[0] >= w[1]) && all.len() == s.world.blocks.len());
    let part = values(&page("sort_by=size&order=dsc&skip=5&count=7"), "size");
    assert_eq!(part, all[5..12]);
    for key in [
        "only_matched.size",
        "all.leaked_count",
        "all.max_total_usage_first_seen_at",
        "only_matched.interval",
    ] {
        let got = s.json(&format!("/data/last/allocation_groups?sort_by={key}&order=dsc&count=5"));
        assert_eq!(got["allocations"].as_array().map(Vec::len), Some(5), "{key}");
    }
    let groups =
        s.json("/data/last/allocation_groups?sort_by=only_matched.size&order=dsc&size_min=100");
    let sizes: Vec<u64> = groups["allocations"]
        .as_array()
        .expect("groups")
        .iter()
        .filter_map(|g| g["only_matched"]["size"].as_u64())
        .collect();
    assert!(sizes.windows(2).all(|w| w[0] >= w[1]));
    let of_blocks: u64 = s.world.blocks.iter().filter(|b| b.size >= 100).map(|b| b.size).sum();
    assert_eq!(sizes.iter().sum::<u64>(), of_blocks);
    let max = groups["allocations"][0]["only_matched"]["max_size"].as_u64();
    assert!(max.is_some_and(|m| (100..5000).contains(&m)));
    assert_eq!(
        s.get("/data/last/allocation_groups?sort_by=only_matched.max_total_usage_first_seen_at")
            .status,
        400
    );
}

#[test]
fn groups_have_graphs_where_they_are_asked_for() {
    let s = Served::new(25);
    let path = "/data/last/allocation_groups?count=2&generate_graphs=true&size_min=100&function_regex=function_1%26%7C1";
    let groups = s.json(path);
    let groups = groups["allocations"].as_array().expect("groups");
    assert!(!groups.is_empty());
    for group in groups {
        let url = |of: &str, which: &str| group[of][which].as_str().expect("an address").to_owned();
        let highest = |url: &str| {
            let got = s.get(url);
            assert_eq!(
                (got.status, got.header("content-type")),
                (200, Some("image/svg+xml")),
                "{url}"
            );
            let most = got.body.split("at most ").nth(1).and_then(|t| t.split('<').next());
            most.and_then(|n| n.parse::<u64>().ok()).expect("a number")
        };
        let (all, own) = (url("all", "graph_url"), url("only_matched", "graph_url"));
        assert!(own.contains("size%5Fmin=100") && !all.contains("size"), "{own} {all}");
        assert!(highest(&all) > 0 && highest(&own) <= highest(&all), "{own}");
        assert_eq!(highest(&url("all", "graph_preview_url")), highest(&all));
        let live = s.json("/data/last/timeline")["allocated_size"].clone();
        let most = live.as_array().and_then(|a| a.iter().filter_map(Value::as_u64).max());
        assert!(most >= Some(highest(&all)));
    }
    assert_eq!(s.get("/data/last/group_graph/999999").status, 404);
    assert_eq!(s.get("/data/last/group_graph/5?readable=yes").status, 400);
}

#[test]
fn timelines_add_up_to_the_totals() {
    let s = Served::new(24);
    let line = s.json("/data/last/timeline");
    let sum = |key: &str| -> i64 {
        line[key].as_array().expect("a line").iter().filter_map(Value::as_i64).sum()
    };
    let list = s.json("/list");
    assert_eq!(sum("size_delta") as u64, list[0]["final_allocated"].as_u64().expect("bytes"));
    assert_eq!(
        sum("count_delta") as u64,
        list[0]["final_allocated_count"].as_u64().expect("blocks")
    );
    assert_eq!(sum("allocations") as usize, s.world.blocks.len());
    let last = line["allocated_size"].as_array().and_then(|a| a.last()?.as_u64());
    assert_eq!(last, Some(s.world.live));
    let most =
        line["allocated_size"].as_array().and_then(|a| a.iter().filter_map(Value::as_u64).max());
    assert_eq!(most, Some(s.world.peak));
    let tree = s.json("/data/last/tree");
    let bytes: u64 = s.world.blocks.iter().map(|b| b.size).sum();
    assert_eq!(
        (tree["size"].as_u64(), tree["count"].as_u64()),
        (Some(bytes), Some(s.world.blocks.len() as u64))
    );
}
