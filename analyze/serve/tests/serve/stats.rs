//! The figures of the API are those of the analysis, and add up.

use super::client::{Served, last, sum};
use prof_analyze::query::{Filter, Query};
use prof_analyze::report::{Ask, GroupBy, Grouped, Histogram, Stats, ViewOptions};
use serde_json::Value;

/// Filters, as the parameters of a request.
const FILTERS: [&str; 10] = [
    "",
    "min-size=1000",
    "max-size=3000&lifetime=leaked",
    "from=20%25&to=70%25",
    "alive-at=50%25",
    "lifetime=freed",
    "function=function_1",
    "thread=101",
    "min-group-allocations=50",
    "stacks=1,2,5&min-chain-length=2",
];

fn filter(text: &str) -> Filter {
    let mut f = Filter::default();
    for (name, value) in text.split('&').filter_map(|p| p.split_once('=')) {
        f.set(name, &value.replace("%25", "%")).expect("a field");
    }
    f
}

#[test]
fn timelines_groups_and_trees_add_up_to_the_totals() {
    for seed in [1, 2, 3] {
        let s = Served::new(seed);
        for text in FILTERS {
            let of = format!("seed {seed}, {text}");
            let query = Query::new(&s.index, &filter(text)).expect("a query");
            let totals = *query.analysis(None).expect("figures").totals();
            let f = totals.figures;
            let head = s.own(&format!("head?{text}"));
            assert_eq!(head["totals"]["live_bytes"], f.live_bytes, "{of}");
            assert_eq!(head["totals"]["peak_bytes"], f.peak_bytes, "{of}");
            assert_eq!(head["totals"]["allocations"], f.allocations, "{of}");

            let line = s.own(&format!("timeline?{text}&width=37"));
            let of_series = |name: &str, kind: &str| line["series"][name][kind].clone();
            assert_eq!(sum(&of_series("allocations", "sum")), f.allocations, "{of}");
            assert_eq!(sum(&of_series("reallocations", "sum")), f.reallocations, "{of}");
            assert_eq!(sum(&of_series("allocated_bytes", "sum")), f.allocated_bytes, "{of}");
            assert_eq!(last(&of_series("live_bytes", "last")), f.live_bytes, "{of}");
            assert_eq!(last(&of_series("live_blocks", "last")), f.live_count, "{of}");
            let most = of_series("live_bytes", "max");
            let most = most.as_array().expect("an array").iter().filter_map(Value::as_u64).max();
            assert!(most.unwrap_or(0) <= f.peak_bytes, "{of}");
            let peak =
                line["marks"].as_array().and_then(|m| m.iter().find(|m| m["kind"] == "peak"));
            let at = peak.and_then(|m| m["at_ns"].as_f64()).unwrap_or(0.0);
            let step = line["step_ns"].as_f64().expect("a step");
            let column = of_series("live_bytes", "max")[(at / step) as usize].as_u64();
            assert!(text.is_empty() || column == most, "{of}: the peak is at {at}");

            let groups = s.own(&format!("groups?{text}&count=3&spark=5"));
            let rows = groups["rows"].as_array().expect("rows");
            let of_rows = |name: &str| rows.iter().filter_map(|r| r[name].as_u64()).sum::<u64>();
            for (name, all) in [
                ("live_bytes", f.live_bytes),
                ("live_count", f.live_count),
                ("allocations", f.allocations),
                ("allocated_bytes", f.allocated_bytes),
            ] {
                let rest = groups["rest"][name].as_u64().unwrap_or(0);
                assert_eq!(of_rows(name) + rest, all, "{of}: {name} of groups and rest");
            }
            for metric in ["live", "allocated"] {
                let all = if metric == "live" { f.live_bytes } else { f.allocated_bytes };
                for dir in ["down", "up"] {
                    let flame = s.own(&format!("flame?{text}&metric={metric}&dir={dir}"));
                    assert_eq!(flame["total"], all, "{of}: {metric} {dir}");
                    assert_eq!(sum(&flame["nodes"]["self"]), all, "{of}: {metric} {dir}");
                }
            }
            for way in ["", "&bottom-up=true"] {
                let tree = s.own(&format!("tree?{text}{way}"));
                assert_eq!(tree["node"]["live_bytes"], f.live_bytes, "{of}");
                let children = tree["children"].as_array().expect("children");
                let below: u64 =
                    children.iter().filter_map(|c| c["allocated_bytes"].as_u64()).sum();
                assert_eq!(below, f.allocated_bytes, "{of}");
            }
            let blocks = s.own(&format!("blocks?{text}&count=1"));
            assert_eq!(blocks["total_count"], f.allocations + f.reallocations, "{of}");
            let space = s.own(&format!("space?{text}&bins=64"));
            let stretches = space["stretches"].as_array().expect("stretches");
            let live: u64 = stretches.iter().map(|x| sum(&x["live_bytes"])).sum();
            assert_eq!(live, f.live_bytes, "{of}");
        }
    }
}

#[test]
fn reports_are_those_of_the_command_line() {
    let s = Served::new(4);
    for text in FILTERS {
        let given = filter(text);
        let query = Query::new(&s.index, &given).expect("a query");
        let data = |f: &Filter| {
            f.given()
                .iter()
                .map(|(name, value)| prof_analyze::report::FilterData {
                    name: (*name).to_owned(),
                    value: value.clone(),
                })
                .collect()
        };
        let options = |top| ViewOptions {
            top,
            empty: top == 0,
            filter: data(&given),
            ..ViewOptions::default()
        };
        let ask = |top| Ask::new(&s.index, &query, options(top)).expect("figures");
        let same = |route: &str, cli: String| {
            let cli: Value = serde_json::from_str(&cli).expect("JSON");
            assert_eq!(s.own(&format!("{route}?{text}")), cli, "{route}?{text}");
        };
        same("histogram", Histogram::new(&ask(10)).expect("a histogram").json());
        same("stats", Stats::new(&ask(5)).expect("statistics").json());
        same("threads", Grouped::new(&ask(0), GroupBy::Thread).expect("threads").json());
    }
}

#[test]
fn pages_of_blocks_are_all_blocks_in_order() {
    let s = Served::new(5);
    let n = s.world.blocks.len();
    for (sort, key) in [("time", "allocated_ns"), ("size", "size"), ("address", "address")] {
        for reverse in [false, true] {
            let mut seen = Vec::new();
            let mut after = String::new();
            loop {
                let page = s.own(&format!("blocks?sort={sort}&reverse={reverse}&count=777{after}"));
                assert_eq!(page["total_count"], n as u64);
                seen.extend(page["rows"].as_array().expect("rows").clone());
                match page["next"].as_str() {
                    Some(next) => after = format!("&after={next}"),
                    None => break,
                }
            }
            assert_eq!(seen.len(), n, "{sort}");
            let mut ids: Vec<u64> = seen.iter().filter_map(|r| r["id"].as_u64()).collect();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), n, "{sort}: a block twice");
            let value = |r: &Value| match &r[key] {
                Value::String(hex) => u64::from_str_radix(&hex[2..], 16).expect("an address"),
                other => other.as_u64().expect("a number"),
            };
            let keys: Vec<u64> = seen.iter().map(value).collect();
            let in_order = |w: &[u64]| if reverse { w[0] >= w[1] } else { w[0] <= w[1] };
            assert!(keys.windows(2).all(in_order), "{sort} {reverse}");
        }
    }
    let one = s.own("blocks?count=1&min-chain-length=3");
    let id = one["rows"][0]["id"].as_u64().expect("a block of a chain");
    let block = s.own(&format!("blocks/{id}"));
    assert_eq!(block["block"]["id"], id);
    let chain = block["chain"].as_array().expect("a chain");
    assert_eq!(chain.len() as u64, block["block"]["chain"]["length"].as_u64().expect("a length"));
    let neighbours = block["neighbours"].as_array().expect("neighbours");
    assert!(neighbours.iter().any(|b| b["id"] == id), "it is among its neighbours");
    assert_eq!(s.get("/api/v1/last/blocks/99999999").status, 404);
    assert_eq!(s.get("/api/v1/last/blocks/x").status, 404);
}

#[test]
fn unknown_and_refused_parameters_are_named() {
    let s = Served::new(6);
    for (path, part) in [
        ("head?colour=red", "colour"),
        ("head?readable=yes", "property of mappings"),
        ("head?marker=99", "the recording has no marks"),
        ("timeline?series=nonsense", "nonsense"),
        ("groups?sort=nonsense", "nonsense"),
        ("groups?group-by=nonsense", "nonsense"),
        ("flame?metric=nonsense", "nonsense"),
        ("tree?sort=peak-size", "peaks"),
        ("tree?node=nonsense", "no such node"),
        ("head?at=nonsense", "nonsense"),
        ("head?min-size=1&min-size=nonsense", "nonsense"),
        ("stacks/99999", "no such stack"),
        ("sandwich", "function"),
        ("space?start=5&end=4", "start"),
        ("blocks?after=nonsense", "cursor"),
        ("export/nonsense", "no format"),
        ("fragmentation?at=1&at=2", "more than once"),
    ] {
        let got = s.get(&format!("/api/v1/last/{path}"));
        assert!(matches!(got.status, 400 | 404), "{path}: {}", got.status);
        let error = got.json()["error"].as_str().unwrap_or_default().to_owned();
        assert!(error.contains(part) && !error.contains('\n'), "{path}: {error}");
    }
    assert_eq!(s.get("/api/v1/00000000000000000000000000000000/head").status, 404);
}

#[test]
fn every_documented_route_is_there_and_no_other() {
    let s = Served::new(7);
    let document = s.json("/api/openapi.json");
    let paths = document["paths"].as_object().expect("paths");
    assert!(paths.len() > 60, "{}", paths.len());
    for (path, methods) in paths {
        let real = path
            .replace("{r}", "last")
            .replace("{format}", "csv")
            .replace("{n}", "1")
            .replace("{pid}", "1")
            .replace("{backtrace_id}", "1")
            .replace("{filename}", "x")
            .replace("{hash}", "x");
        let post = methods.get("post").is_some();
        if path == "/api/v1/events" {
            continue; // it never ends
        }
        let got = if post {
            s.ask("POST", &real, "Content-Type: application/json\r\n", "{}")
        } else {
            s.get(&real)
        };
        assert!(
            got.status != 405 && !got.body.contains("nothing at this path"),
            "{path}: {}",
            got.body
        );
        assert!(got.status < 500, "{path}: {} {}", got.status, got.body);
        if post {
            assert_eq!(s.get(&real).status, 405, "{path}");
        }
    }
    let (lifetimes, stats) = (s.own("lifetimes?min-size=9"), s.own("stats?min-size=9"));
    for key in ["version", "filter", "totals", "lifetimes"] {
        assert!(!lifetimes[key].is_null() && lifetimes[key] == stats[key], "{key}: {lifetimes}");
    }
    assert!(s.own("head")["max_depth"].as_u64() > Some(1));
    let stack = s.own("stacks/1");
    for key in
        ["id", "frames", "all", "matched", "timeline", "sizes", "lifetimes", "leak", "freed_at"]
    {
        assert!(stack.get(key).is_some(), "{key}");
    }
    for export in s.json("/api/v1/fields")["exports"].as_array().expect("exports") {
        let name = export["name"].as_str().expect("a name");
        let got = s.ask("GET", &format!("/api/v1/last/export/{name}"), "", "");
        assert_eq!(got.status, 200, "{name}: {}", got.body);
        assert!(
            got.header("content-disposition").is_some_and(|d| d.contains("attachment")),
            "{name}"
        );
        assert!(!got.body.is_empty(), "{name}");
        // The body is shown as text, so of a binary file only what is ASCII is as it was.
        if name.starts_with("parquet") {
            assert!(got.body.starts_with("PAR1") && got.body.ends_with("PAR1"), "{name}");
        }
    }
}

#[test]
fn two_moments_and_two_ranges_are_compared() {
    let s = Served::new(8);
    let id =
        s.json("/api/v1/recordings")["recordings"][0]["id"].as_str().expect("an id").to_owned();
    assert_eq!(id.len(), 32);
    let diff = s.json(&format!("/api/v1/diff?before={id}@10%25&after=last"));
    let groups = diff["stacks"].as_array().expect("stacks");
    assert!(!groups.is_empty());
    let none = s.json(&format!("/api/v1/diff?before={id}&after={id}"));
    assert_eq!(none["total"]["live_bytes"], 0, "{none}");
    assert_eq!(none["stacks"].as_array().map(Vec::len), Some(0), "{none}");
    s.own("diff?before-from=0&before-to=50%25&after-from=50%25&after-to=100%25");
    let flame = s.own("flame?metric=allocated&base-start=0&base-end=100&from=50%25");
    assert!(flame["nodes"]["base"].is_array() && flame["base_total"].is_u64());
    let own = |g: &Value| (sum(&g["nodes"]["self"]), g["total"].as_u64().expect("a total"));
    assert_eq!(own(&flame).0, own(&flame).1);
    let graph = format!("/api/v1/flame?before={id}&after=last&metric=allocated");
    for prune in ["", "&prune=3", "&prune=1048576"] {
        let both = s.json(&format!("{graph}{prune}"));
        assert_eq!(both["nodes"]["base"], both["nodes"]["value"], "{prune}");
        assert!(both["total"].as_u64() > Some(0) && both["total"] == both["base_total"]);
    }
    assert_eq!(s.get(&format!("/api/v1/flame?before={id}@10%25&after=last")).status, 400);
}

#[test]
fn graphs_are_rooted_and_transformed_by_the_ids_of_frames() {
    let s = Served::new(10);
    let of = |more: &str| s.own(&format!("flame?metric=allocated&prune=1048576{more}"));
    let whole = of("");
    let all = whole["total"].as_u64().expect("a total");
    let column = |g: &Value, name: &str| -> Vec<i64> {
        let values = g["nodes"][name].as_array().expect("a column");
        values.iter().filter_map(Value::as_i64).collect()
    };
    let (parents, frames, values) =
        (column(&whole, "parent"), column(&whole, "frame"), column(&whole, "value"));
    assert!(parents.iter().enumerate().skip(1).all(|(i, p)| *p >= 0 && (*p as usize) < i));
    let id = |frame: i64| whole["frames"][frame as usize]["id"].as_u64().expect("an id");
    // The path to the deepest node.
    let depth = |mut i: usize| {
        let mut path = Vec::new();
        while i > 0 {
            path.insert(0, i);
            i = parents[i] as usize;
        }
        path
    };
    let deepest = (0..parents.len()).map(depth).max_by_key(Vec::len).expect("nodes");
    assert!(deepest.len() >= 3, "{deepest:?}");
    let ids: Vec<String> = deepest.iter().map(|i| id(frames[*i]).to_string()).collect();
    for n in 1..=deepest.len() {
        let below = of(&format!("&root={}", ids[..n].join(".")));
        assert_eq!(below["total"], values[deepest[n - 1]], "{n}");
    }
    assert_eq!(column(&of("&depth=1"), "parent").iter().filter(|p| **p > 0).count(), 0);
    let inner = &ids[1];
    let dropped = of(&format!("&transforms=drop.{inner}"))["total"].as_u64().expect("a total");
    let kept = of(&format!("&transforms=focus.{inner}"))["total"].as_u64().expect("a total");
    assert!(kept > 0 && dropped < all && dropped + kept == all, "{dropped} + {kept} of {all}");
    let merged = of(&format!("&transforms=collapse-recursion,merge.{inner}"));
    assert_eq!(merged["total"], all);
    let named = merged["frames"].as_array().expect("frames");
    assert!(named.iter().all(|f| f["id"].as_u64() != inner.parse().ok()));
    assert_eq!(of("&root=4000000")["total"], 0);
    for wrong in ["root=x", "transforms=focus", "transforms=turn.1", "transforms=drop.x"] {
        assert_eq!(s.get(&format!("/api/v1/last/flame?{wrong}")).status, 400, "{wrong}");
    }
}

#[test]
fn of_what_is_freed_another_metric_is_shown_with_the_reason() {
    let s = Served::new(11);
    let flame = s.own("flame?lifetime=freed");
    assert_eq!(flame["metric"], "allocated");
    assert!(flame["total"].as_u64() > Some(0) && flame["why"].is_string(), "{}", flame["why"]);
    let live = s.own("flame?lifetime=freed&metric=live");
    assert_eq!((&live["total"], &live["why"]), (&Value::from(0), &Value::Null));
    let usual = s.own("flame");
    assert_eq!((&usual["metric"], &usual["why"]), (&Value::from("live"), &Value::Null));
    let halves = s.own("sandwich?function=function_1&lifetime=freed");
    assert_eq!(halves["callers"]["metric"], "allocated");
    assert!(halves["callees"]["total"].as_u64() > Some(0));
    let tree = s.own("tree?lifetime=freed");
    assert!(tree["sort"] == "allocated" && tree["why"].is_string(), "{}", tree["why"]);
    let sizes: Vec<u64> = tree["children"]
        .as_array()
        .expect("children")
        .iter()
        .filter_map(|c| c["allocated_bytes"].as_u64())
        .collect();
    assert!(!sizes.is_empty() && sizes.windows(2).all(|w| w[0] >= w[1]), "{sizes:?}");
    let asked = s.own("tree?lifetime=freed&sort=size");
    assert_eq!((&asked["sort"], &asked["why"]), (&Value::from("size"), &Value::Null));
}

#[test]
fn answers_can_be_fetched_later() {
    let s = Served::new(12);
    let prefer = "Prefer: respond-async\r\n";
    let path = "/api/v1/last/groups?peaks=true&count=3&min-size=9";
    let begun = s.ask("GET", path, prefer, "");
    assert_eq!(begun.status, 202, "{}", begun.body);
    assert_eq!(begun.header("preference-applied"), Some("respond-async"));
    let place = begun.header("location").expect("where the job is").to_owned();
    let mut state = begun.json();
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while state["state"] == "running" {
        assert!(std::time::Instant::now() < limit, "{state}");
        std::thread::sleep(std::time::Duration::from_millis(5));
        state = s.json(&place);
    }
    assert_eq!(state["state"], "done", "{state}");
    let fetched = s.json(state["result"].as_str().expect("a path"));
    assert_eq!(fetched, s.json(path));
    assert_eq!(s.json("/api/v1/jobs")["jobs"][0], state);
    // The answer is there now, so nothing needs to be waited for.
    assert_eq!(s.ask("GET", path, prefer, "").status, 200);
    let wrong = s.ask("GET", "/api/v1/last/groups?sort=nonsense", prefer, "");
    let failed = s.json(wrong.header("location").expect("where the job is"));
    assert!(matches!(failed["state"].as_str(), Some("running" | "failed")), "{failed}");
    let over =
        s.ask("POST", &format!("{place}/cancel"), "Content-Type: application/json\r\n", "{}");
    assert_eq!(over.json()["state"], "done", "{}", over.body);
    for missing in ["/api/v1/jobs/99", "/api/v1/jobs/x/result"] {
        assert_eq!(s.get(missing).status, 404, "{missing}");
    }
}

#[test]
fn the_page_and_its_files_are_served() {
    let s = Served::new(9);
    let page = s.get("/");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(!page.body.contains("@assets@") && !page.body.contains("@preload@"), "{}", page.body);
    let parts = page.body.split(['"', '\'']).filter(|p| p.starts_with("/assets/"));
    let mut n = 0;
    for path in parts {
        assert_eq!(s.get(path).status, 200, "{path}");
        n += 1;
    }
    assert!(n > 0, "{}", page.body);
    let head = s.ask("HEAD", "/", "", "");
    assert_eq!((head.status, &*head.body), (200, ""));
}
