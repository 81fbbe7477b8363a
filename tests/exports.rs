//! The exports without a tool of their own to check them (the page, Firefox's profile, Parquet, calls to replay), and
//! the contents of a recording.

use common::build::program;
use common::{Output, Scene, Target, installed, skip};
use serde_json::Value;
use std::process::Command;

/// Records a program of `tests/programs` from start to end.
fn record(scene: &Scene, source: &str, options: &[&str]) -> String {
    let mut c = Command::new(Scene::binary());
    c.args(["run", "-o", "r.prof"]).args(options).arg("--").arg(program(source));
    scene.run(c).ok("prof run");
    "r.prof".into()
}

/// The functions of `figures.c`, and their live bytes.
const ONLY: [&str; 2] = ["--function", "^(small|large|moved|brief)$"];
const LIVE: u64 = 54 * 24 + 10 * 5000 + 640;

#[track_caller]
fn export(scene: &Scene, format: &str, more: &[&str]) -> String {
    let name = format!("out-{}.{format}", more.join("").len());
    let args = [&["export", format, "r.prof", "-o", &name], more].concat();
    scene.prof(&args).ok("prof export");
    name
}

#[track_caller]
fn parsed(scene: &Scene, name: &str) -> Value {
    let bytes = std::fs::read(scene.path(name)).expect("an export");
    serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[track_caller]
fn tool(scene: &Scene, name: &str, args: &[&str]) -> Output {
    let mut c = Command::new(name);
    c.args(args);
    scene.run(c).ok(name)
}

#[test]
fn info_says_what_is_in_the_file() {
    let scene = Scene::new("info");
    let file = record(&scene, "figures.c", &["--compress", "best", "--free-stacks"]);
    let out = scene.prof(&["info", &file, "--format", "json"]).ok("prof info");
    let i: Value = serde_json::from_str(&out.stdout).expect("JSON");
    let bytes = std::fs::metadata(scene.path(&file)).expect("a file").len();
    let chunks = i["chunks"].as_array().expect("chunks");
    let sum = chunks.iter().filter_map(|c| c["bytes"].as_u64()).sum::<u64>();
    assert_eq!((i["file"]["bytes"].as_u64(), sum + 16), (Some(bytes), bytes));
    assert!(chunks.iter().all(|c| c["name"] != "unknown"), "{i:#}");
    let events = i["events"].as_array().expect("events");
    let of =
        |kind: &str| events.iter().find(|e| e["kind"] == kind).expect("a kind")["count"].clone();
    assert_eq!(of("realloc").as_u64(), i["totals"]["reallocations"].as_u64());
    assert_eq!((of("free").as_u64(), of("free with stack").as_u64() >= Some(95)), (Some(0), true));
    assert_eq!(i["file"]["compression"][0]["name"], "best");
    assert!(i["threads"].as_array().is_some_and(|t| t.len() == 2), "{i:#}");
    let modules = i["modules"].as_array().expect("modules");
    assert!(modules.iter().any(|m| m["path"].as_str().is_some_and(|p| p.contains("libc.so"))));
    let text = scene.prof(&["info", &file]).ok("prof info").stdout;
    assert!(text.contains("still live") && text.contains("2 threads"), "{text}");
    std::fs::write(scene.path("none.prof"), "nothing").expect("written");
    let none = scene.prof(&["info", "none.prof"]);
    assert!(none.code == 2 && none.stderr.contains("not a recording"), "{none:#?}");
}

/// Returns the number of rows in a table of a Firefox profile; each column must have that many.
#[track_caller]
fn rows(table: &Value, name: &str) -> u64 {
    let n = table["length"].as_u64().expect("a length");
    for (column, values) in table.as_object().expect("a table") {
        if let Some(values) = values.as_array() {
            assert_eq!(values.len() as u64, n, "{name}.{column}");
        }
    }
    n
}

/// Returns the numbers of a column, null or -1 meaning none, all of which must be below `limit`.
#[track_caller]
fn below(table: &Value, column: &str, limit: u64) -> Vec<Option<u64>> {
    let values = table[column].as_array().unwrap_or_else(|| panic!("no {column}"));
    let number = |v: &Value| {
        let n = v.as_i64().and_then(|n| u64::try_from(n).ok());
        assert!(n.is_none_or(|n| n < limit), "{column}: {v} of {limit}");
        n
    };
    values.iter().map(number).collect()
}

#[test]
fn firefox_profiles_are_as_their_format_says() {
    let scene = Scene::new("firefox");
    record(&scene, "figures.c", &[]);
    let p = parsed(&scene, &export(&scene, "firefox", &ONLY));
    assert_eq!(p["meta"]["preprocessedProfileVersion"], 48);
    let t = &p["threads"][0];
    let count = |name: &str| rows(&t[name], name);
    let (stacks, frames) = (count("stackTable"), count("frameTable"));
    let (functions, resources) = (count("funcTable"), count("resourceTable"));
    let strings = t["stringArray"].as_array().expect("strings").len() as u64;
    let libs = p["libs"].as_array().expect("libraries").len() as u64;
    let samples = count("samples");
    count("markers");
    count("nativeSymbols");
    let prefixes = below(&t["stackTable"], "prefix", stacks);
    // A prefix precedes the stacks that it is the prefix of.
    assert!(prefixes.iter().enumerate().all(|(i, p)| p.is_none_or(|p| p < i as u64)));
    assert!(below(&t["stackTable"], "frame", frames).iter().all(Option::is_some));
    assert!(below(&t["frameTable"], "func", functions).iter().all(Option::is_some));
    assert!(below(&t["funcTable"], "name", strings).iter().all(Option::is_some));
    below(&t["funcTable"], "fileName", strings);
    below(&t["funcTable"], "resource", resources);
    below(&t["resourceTable"], "lib", libs);
    assert!(below(&t["resourceTable"], "name", strings).iter().all(Option::is_some));
    assert!(below(&t["samples"], "stack", stacks).iter().all(Option::is_some));
    let numbers = |v: &Value| -> Vec<f64> {
        v.as_array().expect("numbers").iter().map(|n| n.as_f64().expect("a number")).collect()
    };
    assert!(numbers(&t["samples"]["time"]).is_sorted());
    assert_eq!(numbers(&t["samples"]["weight"]).iter().sum::<f64>(), LIVE as f64);
    assert_eq!((samples, t["samples"]["weightType"].as_str()), (3, Some("bytes")));
    let names = t["stringArray"].as_array().expect("strings");
    assert!(names.iter().any(|n| n == "large"), "{names:?}");
    let c = &p["counters"][0];
    rows(&c["samples"], "counter");
    assert!(numbers(&c["samples"]["time"]).is_sorted());
    assert_eq!(numbers(&c["samples"]["count"]).iter().sum::<f64>(), LIVE as f64);
    for l in p["libs"].as_array().expect("libraries") {
        assert_eq!(l["breakpadId"].as_str().map(str::len), Some(33), "{l}");
    }
}

#[test]
fn every_format_of_one_number_takes_every_cost() {
    let scene = Scene::new("costs");
    record(&scene, "figures.c", &[]);
    let sum = |format: &str, cost: &str| -> u64 {
        let more = [&ONLY[..], &["--cost", cost]].concat();
        let name = format!("{format}.{cost}");
        let args = [&["export", format, "r.prof", "-o", &name], &more[..]].concat();
        scene.prof(&args).ok("prof export");
        let text = std::fs::read_to_string(scene.path(&name)).expect("text");
        let json = || serde_json::from_str::<Value>(&text).expect("JSON");
        let all = |v: &Value| v.as_array().expect("weights").iter().filter_map(Value::as_u64).sum();
        match format {
            "folded" => text
                .lines()
                .map(|l| l.rsplit(' ').next().unwrap_or_default().parse::<u64>().expect("a cost"))
                .sum(),
            "speedscope" => all(&json()["profiles"][0]["weights"]),
            "firefox" => all(&json()["threads"][0]["samples"]["weight"]),
            _ => {
                // The sum is in the title of the graph's outermost frame.
                let unit =
                    if cost == "allocations" || cost == "temporary" { "blocks" } else { "bytes" };
                let at = text.find("<title>all (").expect("a graph") + "<title>all (".len();
                let end = text[at..].find(&format!(" {unit},")).expect("a unit") + at;
                text[at..end].replace(',', "").parse().expect("a number")
            }
        }
    };
    let allocated = 100 * 24 + 10 * 5000 + 20 + 40 + 80 + 160 + 320 + 640 + 50 * 333;
    for (cost, want) in [
        ("live", LIVE),
        ("leaked", LIVE),
        ("allocated", allocated),
        ("allocations", 100 + 10 + 1 + 5 + 50),
        ("temporary", 50),
    ] {
        for format in ["folded", "flamegraph", "speedscope", "firefox"] {
            assert_eq!(sum(format, cost), want, "{format} --cost {cost}");
        }
    }
    let peak = sum("folded", "peak");
    assert!(peak > LIVE && peak < allocated, "{peak}");
    for format in ["flamegraph", "speedscope", "firefox"] {
        assert_eq!(sum(format, "peak"), peak, "{format} --cost peak");
    }
}

#[test]
fn samples_say_that_they_are_samples() {
    let scene = Scene::new("weights");
    record(&scene, "figures.c", &["--sample=1KiB"]);
    let all = parsed(&scene, &export(&scene, "json", &["--json-version", "1"]));
    assert_eq!(all["capture"]["sample_bytes"], 1024);
    let rows = all["allocations"].as_array().expect("allocations");
    for r in rows {
        let (size, weight) = (r["size"].as_f64().expect("a size"), r["weight"].as_f64());
        let p = 1.0 - (-size.max(1.0) / 1024.0).exp();
        assert!(weight.is_some_and(|w| (w * p - 1.0).abs() < 1e-9), "{r}");
    }
    let csv = std::fs::read_to_string(scene.path(&export(&scene, "csv", &[]))).expect("CSV");
    let mut lines = csv.lines();
    assert!(lines.next().is_some_and(|l| l.ends_with(",weight")), "{csv:.300}");
    let weights = lines.map(|l| l.rsplit(',').next().and_then(|w| w.parse::<f64>().ok()));
    let sum: f64 = weights.map(|w| w.expect("a weight")).sum();
    let wanted: f64 = rows.iter().filter_map(|r| r["weight"].as_f64()).sum();
    assert!((sum - wanted).abs() < 1e-6 && sum > rows.len() as f64, "{sum} {wanted}");
    let refused = scene.prof(&["export", "replay", "r.prof", "-o", "x"]);
    assert!(refused.code == 1 && refused.stderr.contains("parquet"), "{refused:#?}");
    let page = std::fs::read_to_string(scene.path(&export(&scene, "html", &[]))).expect("HTML");
    assert!(page.contains("\"sample_bytes\":1024"));
    // Without sampling all blocks have the weight 1.
    std::fs::remove_file(scene.path("r.prof")).expect("removed");
    record(&scene, "figures.c", &[]);
    let args = ["export", "csv", "r.prof"];
    let csv = scene.prof(&args).ok("prof export").stdout;
    assert!(csv.lines().skip(1).all(|l| l.ends_with(",1")), "{csv:.300}");
}

#[test]
fn calls_are_made_again() {
    let scene = Scene::new("replay");
    record(&scene, "figures.c", &[]);
    let calls = export(&scene, "replay", &ONLY);
    let run = |more: &[&str]| {
        let out = scene.prof(&[&["replay", &calls, "--format", "json"], more].concat());
        serde_json::from_str::<Value>(&out.ok("prof replay").stdout).expect("JSON")
    };
    let r = run(&[]);
    // The blocks that are not temporary, and the freed ones: 46 small ones.
    assert_eq!(r["calls"].as_u64(), Some(100 + 46 + 10 + 1 + 5 + 50 + 50), "{r:#}");
    assert_eq!((r["failed"].as_u64(), r["slots"].as_u64() >= Some(65)), (Some(0), true));
    assert!(r["peak_bytes"].as_u64() >= Some(LIVE) && r["time_ns"].as_u64() > Some(0), "{r:#}");
    assert!(r["allocator"].as_str().is_some_and(|a| a.contains("libc.so")), "{r:#}");
    assert!(r["peak_rss_bytes"].as_u64() >= r["rss_before_bytes"].as_u64(), "{r:#}");
    for touch in ["none", "all"] {
        assert_eq!(run(&["--touch", touch])["calls"], r["calls"]);
    }
    let text = scene.prof(&["replay", &calls]).ok("prof replay").stdout;
    assert!(text.contains("ns a call") && text.contains("RSS"), "{text}");
    for (file, part) in
        [("r.prof", "no calls"), ("none", "cannot open"), ("/dev/zero", "cannot open")]
    {
        let out = scene.prof(&["replay", file]);
        assert!(out.code == 2 && out.stderr.contains(part), "{file}: {out:#?}");
    }
    // A file that asks for more memory than there is: one call of 2^50 bytes, and the sums.
    let big = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02];
    let hostile = [&b"PROFRPL\n\x01\0\0\0"[..], &[1], &big, &[0, 1, 1], &big].concat();
    std::fs::write(scene.path("hostile"), hostile).expect("written");
    let out = scene.prof(&["replay", "hostile"]);
    assert!(out.code == 2 && out.stderr.contains("--touch none"), "{out:#?}");
    let out = scene.prof(&["replay", "hostile", "--touch", "none"]).ok("prof replay");
    assert!(out.stdout.contains("1 calls got no memory"), "{out:#?}");
    let other = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
    if !std::path::Path::new(other).exists() {
        return skip("calls_are_made_again", "libjemalloc2 is not installed");
    }
    let mut c = Command::new(Scene::binary());
    c.args(["replay", &calls]).env("LD_PRELOAD", other);
    let out = scene.run(c).ok("prof replay");
    assert!(out.stdout.contains("libjemalloc.so.2"), "{out:#?}");
}

#[test]
fn parquet_is_read_by_duckdb() {
    const NAME: &str = "parquet_is_read_by_duckdb";
    let scene = Scene::new("parquet");
    record(&scene, "figures.c", &[]);
    let blocks = export(&scene, "parquet", &ONLY);
    let stacks = export(&scene, "parquet-stacks", &ONLY);
    for file in [&blocks, &stacks] {
        let bytes = std::fs::read(scene.path(file)).expect("a file");
        assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"), "{file}");
    }
    let python = std::env::var("PROF_TESTS_PYTHON").unwrap_or_else(|_| "python3".into());
    let with = Command::new(&python).args(["-c", "import duckdb"]).output();
    if !with.is_ok_and(|o| o.status.success()) {
        // analyze/tests/parquet.rs reads such files with the crate's own reader.
        return eprintln!("skipped: {NAME}: no duckdb (pip install duckdb; PROF_TESTS_PYTHON=...)");
    }
    let ask = format!(
        "import duckdb\n\
         q = '''select count(*), sum(size), count(freed_at_ns), count(distinct thread), sum(weight) from read_parquet('{blocks}') '''\n\
         print(*duckdb.sql(q).fetchall()[0])\n\
         q = '''select sum(b.size) from read_parquet('{blocks}') b join read_parquet('{stacks}') s using (stack)\n\
         where s.function = 'large' and b.freed_at_ns is null'''\n\
         print(*duckdb.sql(q).fetchall()[0])"
    );
    let out = tool(&scene, &python, &["-c", &ask]);
    let allocated = 100 * 24 + 10 * 5000 + 20 + 40 + 80 + 160 + 320 + 640 + 50 * 333;
    assert_eq!(out.stdout, format!("166 {allocated} 101 2 166.0\n50000\n"), "{out:#?}");
}

fn page_data(scene: &Scene, name: &str) -> Value {
    let page = std::fs::read_to_string(scene.path(name)).expect("HTML");
    let data = page.split("id=\"data\">\n").nth(1).and_then(|p| p.split("</script>").next());
    serde_json::from_str(data.expect("data")).expect("JSON")
}

#[test]
fn the_page_runs_and_draws() {
    const NAME: &str = "the_page_runs_and_draws";
    let scene = Scene::new("html");
    record(&scene, "figures.c", &[]);
    let name = export(&scene, "html", &ONLY);
    let page = std::fs::read_to_string(scene.path(&name)).expect("HTML");
    assert!(page.contains("default-src 'none'"));
    for outside in ["http://", "https://", "src=", "href=", "@import", "innerHTML", "eval("] {
        let at = page.find("<script>\n\"use strict\"").expect("the script");
        assert!(!page[at..].contains(outside), "{outside} in the script");
    }
    let data = page_data(&scene, &name);
    let stacks = data["stacks"].as_array().expect("stacks");
    let sum = |cost: usize| stacks.iter().filter_map(|s| s["costs"][cost].as_u64()).sum::<u64>();
    assert_eq!((sum(0), sum(3), sum(4)), (LIVE, 166, 50));
    // Live bytes at the end have a column of their own if another moment is shown.
    let last = |data: &Value| {
        data["costs"].as_array().and_then(|c| c.last()?["name"].as_str().map(str::to_owned))
    };
    assert_eq!(last(&data).as_deref(), Some("temporary"));
    let then = page_data(&scene, &export(&scene, "html", &[&ONLY[..], &["--at", "50%"]].concat()));
    assert_eq!(last(&then).as_deref(), Some("leaked"));
    assert_eq!(
        data["timeline"]["most"]
            .as_array()
            .expect("a timeline")
            .iter()
            .max_by_key(|v| v.as_u64())
            .and_then(Value::as_u64),
        data["head"]["totals"]["peak_bytes"].as_u64()
    );
    if !installed("node") {
        return skip(NAME, "node is not installed");
    }
    // The part of the script that does not touch the document: the tree adds up, and a search finds the right frames.
    let check = "\
        const page = require('fs').readFileSync(process.argv[1], 'utf8');\n\
        const script = page.split('\"use strict\";')[1].split('</script>')[0];\n\
        new Function(script);\n\
        const data = JSON.parse(page.split('id=\"data\">')[1].split('</script>')[0]);\n\
        const pure = script.split('const data = JSON.parse')[0];\n\
        const f = new Function(pure + '; return { buildTree, fromStacks, layoutFlame, searchFrames, matchedValue, bytes, duration };')();\n\
        const stacks = data.stacks.map((s) => ({ frames: s.frames, value: s.costs[0] }));\n\
        const [root, bottom] = [false, true].map((up) => f.buildTree(f.fromStacks(stacks, up), data.frames, 'value'));\n\
        const sum = (t) => { let s = 0; for (let c = t.first[0]; c >= 0; c = t.next[c]) s += t.value[c]; return s; };\n\
        const boxes = f.layoutFlame(root, 0, 1000, 0);\n\
        const hits = f.searchFrames(data.frames, 'LARGE');\n\
        const asker = data.stacks.map((s) => data.frames[s.frames[s.asked[0]]].name).sort().join();\n\
        console.log(root.value[0], sum(root), sum(bottom), boxes.count > 5, f.matchedValue(root, hits).value, f.bytes(51936), f.duration(61e9), asker);";
    let out = tool(&scene, "node", &["-e", check, &name]);
    let want =
        format!("{LIVE} {LIVE} {LIVE} true 50000 50.7 KiB 1m 01s brief,large,moved,moved,small\n");
    assert_eq!(out.stdout, want, "{out:#?}");
    if !installed("chromium") {
        // node has run the code that can go wrong.
        return eprintln!("skipped: the drawing of {NAME}: chromium is not installed");
    }
    let path = format!("file://{}", scene.path(&name).display());
    let profile = format!("--user-data-dir={}", scene.path("chromium").display());
    let args =
        ["--headless", "--no-sandbox", "--disable-gpu", &profile, "--virtual-time-budget=5000"];
    let dom = tool(&scene, "chromium", &[&args[..], &["--dump-dom", &path]].concat()).stdout;
    assert!(dom.contains("<tr class=\"stack\"") && dom.contains("figures.c:"), "{dom:.3000}");
}

#[test]
fn both_versions_of_json_say_the_same() {
    let scene = Scene::new("versions");
    record(&scene, "figures.c", &[]);
    let first = parsed(&scene, &export(&scene, "json", &["--json-version", "1"]));
    let second = parsed(&scene, &export(&scene, "json", &[]));
    assert_eq!((&first["version"], &second["version"]), (&1.into(), &2.into()));
    let columns = second["columns"].as_array().expect("columns");
    let object = |row: &Value| -> Value {
        let names = columns.iter().filter_map(|c| c.as_str().map(str::to_owned));
        names.zip(row.as_array().into_iter().flatten().cloned()).collect()
    };
    let numbers = |mut v: Value| -> Value {
        // 1 and 1.0 are the same weight.
        v["weight"] = v["weight"].as_f64().into();
        v
    };
    let rows = second["allocations"].as_array().expect("rows").iter().map(object).map(numbers);
    let wanted = first["allocations"].as_array().expect("rows").iter().cloned().map(numbers);
    // Live blocks are in no particular order.
    let sorted = |mut rows: Vec<Value>| {
        rows.sort_by_key(|r| (r["allocated_at_ns"].as_u64(), r["address"].as_u64()));
        rows
    };
    let (rows, wanted) = (sorted(rows.collect()), sorted(wanted.collect()));
    assert!(rows.len() >= 166 && rows == wanted, "{rows:.3?}");
    let frames = second["frames"].as_array().expect("frames");
    let whole = |s: &Value| -> Value {
        let mut s = s.clone();
        let of = s["frames"].as_array().into_iter().flatten();
        s["frames"] = of.map(|i| frames[i.as_u64().expect("an index") as usize].clone()).collect();
        s
    };
    let stacks: Vec<Value> =
        second["stacks"].as_array().expect("stacks").iter().map(whole).collect();
    assert_eq!(&stacks, first["stacks"].as_array().expect("stacks"));
}

#[test]
fn names_of_files_say_how_they_are_compressed() {
    let scene = Scene::new("packed");
    record(&scene, "figures.c", &[]);
    // Live blocks are in no particular order.
    let lines = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    let read = |name: &str| std::fs::read_to_string(scene.path(name)).expect("a file");
    let plain = lines(&read(&export(&scene, "csv", &[])));
    for (name, unpack) in [("x.csv.gz", "gzip"), ("x.csv.zst", "zstd")] {
        scene.prof(&["export", "csv", "r.prof", "-o", name]).ok("prof export");
        let out = tool(&scene, unpack, &["-dc", name]);
        assert!(lines(&out.stdout) == plain, "{name}: {:.300}", out.stdout);
    }
    // An existing file stays as it is, unless it may be replaced.
    std::fs::write(scene.path("mine"), "mine").expect("written");
    let out = scene.prof(&["export", "csv", "r.prof", "-o", "mine"]);
    assert!(out.code == 2 && out.stderr.contains("mine exists already; --force"), "{out:#?}");
    assert_eq!(read("mine"), "mine");
    scene.prof(&["export", "csv", "r.prof", "-o", "mine", "--force"]).ok("prof export --force");
    assert_eq!(lines(&read("mine")), plain);
    // An export does not replace its recording, under whatever name.
    let recording = std::fs::read(scene.path("r.prof")).expect("a recording");
    std::os::unix::fs::symlink("r.prof", scene.path("also")).expect("a link");
    for name in ["r.prof", "./r.prof", "also"] {
        let out = scene.prof(&["export", "csv", "r.prof", "-o", name, "--force"]);
        assert!(out.code == 2 && out.stderr.contains("is the recording itself"), "{out:#?}");
    }
    assert_eq!(std::fs::read(scene.path("r.prof")).expect("a recording"), recording);
    // A failed export leaves nothing behind, and does not change the file.
    let out = scene.prof(&["export", "csv", "missing.prof", "-o", "mine", "--force"]);
    assert_ne!(out.code, 0, "{out:#?}");
    assert_eq!(lines(&read("mine")), plain);
    let parts = std::fs::read_dir(scene.path(".")).expect("a folder").flatten();
    assert!(parts.into_iter().all(|e| !e.file_name().to_string_lossy().ends_with(".part")));
}

#[test]
fn an_export_with_nothing_in_it_says_so() {
    let scene = Scene::new("empty");
    let mut target = Target::start(&program("counts.c"), &[]);
    scene.attach_with(&target, &["-o", "r.prof"]);
    scene.detach(&target);
    target.quit();
    for format in ["folded", "flamegraph", "speedscope"] {
        for (cost, word) in [("live", "--cost peak"), ("allocated", "no such blocks")] {
            let out = scene.prof(&["export", format, "r.prof", "--cost", cost]).ok("prof export");
            assert!(out.stderr.contains(word), "{format} --cost {cost}: {out:?}");
        }
    }
    assert_eq!(scene.prof(&["export", "csv", "r.prof"]).ok("prof export").stderr, "");
}

/// Standard output has several names, and is what the shell has made it: none of them is replaced.
#[test]
fn standard_output_has_several_names() {
    let scene = Scene::new("stdout");
    record(&scene, "figures.c", &[]);
    let plain = scene.prof(&["export", "folded", "r.prof"]).ok("prof export").stdout;
    assert!(plain.contains("large"), "{plain}");
    let before = std::fs::read_link("/dev/stdout").expect("a link");
    let (log, link) = (scene.path("log"), scene.path("link"));
    std::os::unix::fs::symlink("/dev/stdout", &link).expect("a link");
    std::fs::write(&log, "head\n").expect("written");
    let mut all = "head\n".to_owned();
    let names = ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link"];
    for (name, force) in names.into_iter().flat_map(|n| [(n, false), (n, true)]) {
        let out = std::fs::File::options().append(true).open(&log).expect("open");
        let mut c = Command::new(Scene::binary());
        c.current_dir(scene.path(".")).args(["export", "folded", "r.prof", "-o", name]).stdout(out);
        c.args(force.then_some("--force"));
        assert!(c.status().expect("started").success(), "{name}");
        all += &plain;
        assert_eq!(std::fs::read_to_string(&log).expect("read"), all, "{name} {force}");
    }
    assert_eq!(std::fs::read_link("/dev/stdout").expect("a link"), before);
    assert!(std::fs::symlink_metadata(&link).expect("there").is_symlink());
    assert!(!scene.path("-").exists());
    // Devices need not be replaced.
    scene.prof(&["export", "folded", "r.prof", "-o", "/dev/null"]).ok("prof export");
}
