//! `prof holds`: who holds blocks whose holders are known, and how much would go with whom.

use common::build::{program_with, sources};
use common::hprof::HprofDump;
use common::library::BY_DLOPEN;
use common::{Scene, Target};
use prof_trace::chunk;
use prof_trace::derived::Zipped;
use prof_trace::records::{Scan, kind};
use prof_trace::ticks::Ticks;
use serde_json::Value;
use std::collections::HashMap;

/// Returns the roots or stacks of a report whose name, or place, contains a text.
fn find<'a>(list: &'a Value, key: &str, text: &str) -> Vec<&'a Value> {
    let all = list.as_array().expect("a list").iter();
    all.filter(|r| r[key].as_str().is_some_and(|t| t.contains(text))).collect()
}

fn sum(of: &Value) -> (u64, u64) {
    (of["bytes"].as_u64().expect("bytes"), of["blocks"].as_u64().expect("blocks"))
}

/// Returns what the variable with a name retains, and what it holds.
fn variable<'a>(report: &'a Value, name: &str) -> ((u64, u64), &'a Value) {
    let all = report["top_roots"].as_array().expect("roots");
    let root = all.iter().find(|r| r["variable"] == name);
    let root = root.unwrap_or_else(|| panic!("no {name} in {report:#}"));
    (sum(&root["retained"]), &root["holds"])
}

/// The dynamic linker leaves addresses of blocks on its stack that the program is given later (`--by dlopen`).
#[test]
fn the_linkers_stack_holds_nothing() {
    let scene = Scene::new("holds-linker");
    let mut target = Target::start(&program_with("holds.cpp", &["-O1", "-pthread"]), &[]);
    scene.attach_with(&target, &BY_DLOPEN);
    target.ask("begin");
    let pid = target.pid.to_string();
    let args = ["holds", &pid, "--top", "0", "--format", "json", "--snapshot", "stop"];
    let report = scene.prof(&args).ok("prof holds").stdout;
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let (retained, holds) = variable(&report, "sessions");
    assert_eq!(retained, (40 * (3 * size_of::<usize>() as u64 + 1000), 80), "{holds:#}");
    target.ask("end");
    scene.detach(&target);
    target.quit();
}

#[test]
fn each_holder_is_named_with_all_that_only_it_holds() {
    let scene = Scene::new("holds");
    let mut target = Target::start(&program_with("holds.cpp", &["-O1", "-pthread"]), &[]);
    let pid = target.pid.to_string();
    let refused = scene.prof(&["holds", &pid]);
    assert!(refused.code == 3 && refused.stderr.contains("prof attach"), "{refused:?}");
    scene.attach(&target);
    target.ask("begin");
    let word = size_of::<usize>() as u64;
    for how in ["stop", "fork", "none"] {
        let args =
            ["holds", &pid, "--top", "0", "--depth", "0", "--format", "json", "--snapshot", how];
        let out = scene.prof(&args).ok("prof holds").stdout;
        let report: Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!(report["scan"]["stop_ns"].is_u64(), how != "none", "{out}");
        let node = 4 * word;
        // Sessions hold each other in a ring, but the array holds each of them.
        let (retained, holds) = variable(&report, "sessions");
        assert_eq!(retained, (40 * (3 * word + 1000), 80), "{holds:#}");
        let source = std::fs::read_to_string(sources().join("holds.cpp")).expect("the source");
        let line = source.lines().position(|l| l.starts_with("Session *sessions")).expect("a line");
        let roots = find(&report["top_roots"], "variable", "sessions");
        let place = (&roots[0]["file"], &roots[0]["line"]);
        assert_eq!(place, (&"holds.cpp".into(), &(line + 1).into()));
        assert_eq!(
            (&holds[0]["class"], &holds[0]["class_blocks"]),
            (&"Session".into(), &40.into())
        );
        assert_eq!(sum(&holds[0]["own"]), (40 * 3 * word, 40));
        assert_eq!(sum(&holds[0]["holds"][0]["own"]), (40_000, 40));
        // A list is one node, however long.
        let (retained, holds) = variable(&report, "list_head");
        assert_eq!((retained, holds.as_array().map(Vec::len)), ((1000 * node, 1000), Some(1)));
        assert_eq!(holds[0]["holds"], serde_json::json!([]));
        assert_eq!(variable(&report, "cycle").0, (3 * node, 3));
        let (retained, holds) = variable(&report, "cart");
        assert_eq!(retained.1, 2);
        assert_eq!(holds[0]["class"], "shop::Cart");
        // Two kinds of blocks that hold each other in turn are two nodes, not a hundred.
        let (retained, holds) = variable(&report, "outer");
        assert_eq!(retained, (100 * node, 100));
        assert_eq!((sum(&holds[0]["own"]).1, sum(&holds[0]["holds"][0]["own"]).1), (50, 50));
        // Nobody retains alone what two variables hold.
        assert!(find(&report["top_roots"], "name", "shared_").is_empty(), "{out}");
        let shared = find(&report["shared"]["holds"], "from", "make_shared");
        assert_eq!(shared.iter().map(|s| sum(&s["own"])).collect::<Vec<_>>(), [(700, 1)]);
        // Memory from before is known by its mapping, a stack by its thread.
        let from = |root: &Value, text| !find(&root["holds"], "from", text).is_empty();
        let heap = find(&report["top_roots"], "name", "from before the attach");
        assert!(heap.iter().any(|r| from(r, "make_for_before")), "{out}");
        frames(&report, target.pid);
        // Lost blocks are nobody's.
        assert!(sum(&report["unreachable"]).1 >= 7, "{out}");
        let lists = report["top_stacks"].as_array().expect("stacks");
        let named = |s: &&Value| s["asked_by"]["function"].as_str() == Some("open_session()");
        let session = lists.iter().find(named).unwrap_or_else(|| panic!("no sessions in {out}"));
        assert_eq!(sum(&session["retained"]), (40 * (3 * word + 1000), 80));
        assert_eq!(session["at_least"], false);
    }
    chains(&scene, &pid);
    target.ask("end");
    scene.detach(&target);
    target.quit();
}

/// What a frame of a stack holds hangs on that, and what several do on the stack.
fn frames(report: &Value, pid: i32) {
    let from = |of: &Value, text| find(&of["holds"], "from", text).len();
    let of_function = |root: &Value, name: &str| -> Option<Value> {
        let all = root["holds"].as_array().expect("a list").iter();
        let mut all = all.filter(|n| n["frame"]["function"] == name);
        all.next().cloned()
    };
    let stacks = find(&report["top_roots"], "kind", "stack");
    let found = stacks.iter().find_map(|s| Some((s, of_function(s, "thread")?)));
    let (stack, outer) = found.unwrap_or_else(|| panic!("no frame of thread() in {report:#}"));
    let thread = stack["thread"].as_i64().expect("a thread");
    assert_ne!(thread, i64::from(pid));
    let frame = &outer["frame"];
    assert_eq!((&frame["kind"], frame["thread"].as_i64()), (&"frame".into(), Some(thread)));
    let source = std::fs::read_to_string(sources().join("holds.cpp")).expect("the source");
    let line = |text: &str| source.lines().position(|l| l.trim() == text).expect("a line") + 1;
    let call = (&frame["file"], &frame["line"]);
    assert_eq!(call, (&"holds.cpp".into(), &line("inner(both);").into()), "{outer:#}");
    let number = frame["frame"].as_u64().expect("a number");
    let name = frame["name"].as_str().expect("a name");
    assert!(name.contains(&format!("thread {thread} ")), "{name}");
    assert!(name.contains("in thread (") && name.ends_with(&format!("(frame {number})")), "{name}");
    assert_eq!((from(&outer, "make_for_stack"), sum(&outer["retained"]).1 > 0), (1, true));
    // Two frames have this one; the thread's variables stand behind its stack, in no frame.
    assert_eq!([from(stack, "make_for_both"), from(stack, "make_for_thread")], [1, 1], "{stack:#}");
}

/// A chain leads from the variable through each block to the one that was asked for.
fn chains(scene: &Scene, pid: &str) {
    let json = ["--format", "json", "--top", "0", "--depth", "0"];
    let out = scene.prof(&[&["holds", pid][..], &json].concat()).ok("prof holds").stdout;
    let report: Value = serde_json::from_str(&out).expect("JSON");
    let buffers = &variable(&report, "cart").1[0]["holds"][0]["stack"];
    let stack = buffers.as_u64().expect("a stack").to_string();
    let chain = |to: &str| -> Value {
        let out = scene.prof(&[&["holds", pid, "--path", to][..], &json].concat()).ok("--path");
        let report: Value = serde_json::from_str(&out.stdout).expect("JSON");
        report["paths"][0].clone()
    };
    let path = chain(&stack);
    assert_eq!(path["root"]["variable"], "cart", "{path:#}");
    let blocks = path["blocks"].as_array().expect("blocks");
    assert_eq!(blocks.len(), 2, "{path:#}");
    assert_eq!(
        (&blocks[0]["class"], blocks[0]["offset"].as_u64()),
        (&Value::from("shop::Cart"), Some(size_of::<usize>() as u64))
    );
    // The same block by an address in it.
    let address = blocks[1]["address"].as_str().expect("an address");
    let inside = u64::from_str_radix(&address[2..], 16).expect("a number") + 500;
    assert_eq!(chain(&format!("{inside:#x}"))["blocks"], path["blocks"]);
    // One from a frame names the thread and the function.
    let stacks = find(&report["top_roots"], "kind", "stack");
    let mut nodes = stacks.iter().flat_map(|s| s["holds"].as_array().expect("a list"));
    let outer = nodes.find(|n| n["frame"]["function"].as_str().is_some_and(|f| f == "thread"));
    let on_stack = find(&outer.expect("a frame")["holds"], "from", "make_for_stack")[0];
    let path = chain(&on_stack["stack"].to_string());
    assert_eq!((&path["root"]["kind"], &path["root_offset"]), (&"frame".into(), &Value::Null));
    let text = scene.prof(&["holds", pid, "--path", &on_stack["stack"].to_string()]).ok("--path");
    assert!(text.stdout.contains(", in thread (frame "), "{text:?}");
    assert!(text.stdout.contains(": frame "), "{text:?}");
    let text = scene.prof(&["holds", pid, "--path", &stack, "--by", "root"]).ok("prof holds");
    assert!(text.stdout.contains("cart in "), "{text:?}");
    assert!(text.stdout.contains(&format!("-> {address}: ")), "{text:?}");
    for (bad, reason) in [("0x1", "no block"), ("999999", "no live block"), ("x", "neither")] {
        let out = scene.prof(&["holds", pid, "--path", bad]);
        assert!(out.code == 2 && out.stderr.contains(reason), "{out:?}");
    }
}

/// A moment's blocks are all known if all threads stand still until they are, also where each lives for milliseconds only;
/// what is left out otherwise is counted. The table that holds them lies beside the first thread's variables, in a mapping
/// that the kernel has made one.
#[test]
fn blocks_that_come_and_go_are_those_of_the_moment() {
    let scene = Scene::new("turnover");
    let mut target = Target::start(&program_with("turnover.c", &["-O1", "-pthread"]), &[]);
    let pid = target.pid.to_string();
    scene.attach(&target);
    target.ask("begin");
    let look = |how: &str| -> Value {
        let args = ["holds", &pid, "--top", "0", "--format", "json", "--snapshot", how];
        serde_json::from_str(&scene.prof(&args).ok("prof holds").stdout).expect("JSON")
    };
    let report = look("stop");
    // The thread has the last ones in registers, too; one may have been freed, and its successor not be allocated yet.
    let holder = |r: &&Value| sum(&r["retained"]).1 >= 1990;
    let roots = report["top_roots"].as_array().expect("roots");
    let table = roots.iter().find(holder).unwrap_or_else(|| panic!("no table in {report:#}"));
    assert_eq!(sum(&table["retained"]).0 / sum(&table["retained"]).1, 100);
    assert_eq!(table["kind"], "mapping", "{table:#}");
    assert_eq!(
        (&report["scan"]["left_out_blocks"], report["live"]["blocks"].as_u64() >= Some(1999)),
        (&0.into(), true)
    );
    // While it runs, only those are known that are there from before to after.
    let report = look("none");
    let left_out = report["scan"]["left_out_blocks"].as_u64().expect("a number");
    let known = sum(&report["live"]).1;
    assert!(left_out > 0 && known + left_out >= 1999, "{report:#}");
    let text = scene.prof(&["holds", &pid, "--snapshot", "none"]).ok("prof holds").stdout;
    assert!(text.contains("more are not in this"), "{text}");
    target.ask("end");
    scene.detach(&target);
    target.quit();
}

/// A scan in the recording says later, and on a packed copy, what it said of the process; two of them can be compared.
#[test]
fn scans_are_kept_in_the_recording_and_compared() {
    let scene = Scene::new("kept-scans");
    let mut target = Target::start(&program_with("holds.cpp", &["-O1", "-pthread"]), &[]);
    let pid = target.pid.to_string();
    let recording = scene.attach(&target);
    let file = recording.to_str().expect("a path").to_owned();
    target.ask("begin");
    let none = scene.prof(&["holds", &file]);
    assert!(none.code == 2 && none.stderr.contains("--save"), "{none:?}");
    let all = ["--top", "0", "--depth", "0", "--format", "json"];
    let json = |args: &[&str]| -> Value {
        let out = scene.prof(&[&["holds"][..], args, &all].concat()).ok("prof holds");
        serde_json::from_str(&out.stdout).expect("JSON")
    };
    let live = json(&[&pid, "--save=first", "--snapshot", "stop"]);
    target.ask("more");
    let said = scene.prof(&["holds", &pid, "--save", "--snapshot", "stop"]).ok("--save");
    assert!(said.stderr.contains("--scan 2"), "{said:?}");
    let later = json(&[&pid, "--snapshot", "stop"]);
    let check = |file: &str| {
        let of = |scan: &str| json(&[file, "--scan", scan]);
        let first = of("first");
        assert_eq!(first["saved"], serde_json::json!({"number": 1, "name": "first", "of": 2}));
        // All but the header is as it was.
        for key in ["pid", "live", "unreachable", "scan", "roots", "top_roots", "shared"] {
            assert_eq!(first[key], live[key], "{key}");
        }
        let frames = |r: &Value| -> Vec<Value> {
            let stacks = r["top_stacks"].as_array().expect("stacks");
            stacks.iter().map(|s| s["asked_by"]["function"].clone()).collect()
        };
        assert_eq!(frames(&first), frames(&live));
        // Each sample of the clocks that a growing recording gets moves times by some nanoseconds.
        let timeless = |mut of: Value| {
            assert!(of["at_ns"].take().as_u64().is_some_and(|ns| ns > 0), "{of:#}");
            of
        };
        let first = timeless(first);
        assert_eq!((timeless(of("1")), timeless(of("#1"))), (first.clone(), first));
        let last = timeless(of("last"));
        assert_eq!(last["live"], later["live"]);
        assert_eq!((&last, &timeless(json(&[file]))), (&timeless(of("2")), &last));
        compared(&scene, file, &json(&[file, "--since-scan", "first"]));
        // A way to a block of the moment.
        let stack = &variable(&last, "list_head").1[0]["stack"];
        let path = &json(&[file, "--path", &stack.to_string()])["paths"][0];
        assert_eq!(path["root"]["variable"], "list_head", "{path:#}");
        for (scan, reason) in [("3", "no scan"), ("x", "#1 first at"), ("", "no scan")] {
            let out = scene.prof(&["holds", file, "--scan", scan]);
            assert!(out.code == 2 && out.stderr.contains(reason), "{out:?}");
        }
        let out = scene.prof(&["holds", file, "--census"]);
        assert!(out.code == 2 && out.stderr.contains("--census"), "{out:?}");
    };
    check(&file);
    assert_eq!(json(&[&pid, "--scan", "2"])["saved"]["number"], 2);
    target.ask("end");
    scene.detach(&target);
    target.quit();
    check(&file);
    scene.prof(&["pack", &file, "-o", "packed.prof"]).ok("prof pack");
    check(scene.path("packed.prof").to_str().expect("a path"));
    exported(&scene, &file);
    dumped(&scene, &json(&[&file, "--scan", "1"]));
    #[cfg(feature = "script")]
    scripted(&scene, &file);
    anonymous(&scene, &file);
    damaged(&scene, &file);
}

/// The list has become longer, and the cart is gone.
fn compared(scene: &Scene, file: &str, c: &Value) {
    let word = size_of::<usize>() as i64;
    let change = |of: &Value| {
        let n = |side: &str, key: &str| of[side][key].as_i64().expect("a number");
        (n("after", "bytes") - n("before", "bytes"), n("after", "blocks") - n("before", "blocks"))
    };
    let roots = &c["roots"];
    let list = find(roots, "name", "list_head")[0];
    assert_eq!(change(list), (500 * 4 * word, 500), "{c:#}");
    assert_eq!(change(find(&list["stacks"], "from", "add_node")[0]), change(list));
    let cart = find(roots, "name", "cart in")[0];
    assert_eq!((&cart["was"], &cart["is"], change(cart).1), (&true.into(), &false.into(), -2));
    assert!(find(roots, "name", "sessions").is_empty(), "{c:#}");
    let out = scene.prof(&["holds", file, "--since-scan", "first"]).ok("--since-scan");
    for line in ["+500 blocks", "which holds nothing any more", "scan #1 (first) of 2"] {
        assert!(out.stdout.contains(line), "no {line} in {out:?}");
    }
}

/// Scripts have the same figures.
#[cfg(feature = "script")]
fn scripted(scene: &Scene, file: &str) {
    let script = |code: &str| scene.prof(&["script", "--data", file, "-e", code]).ok("prof script");
    let all = ["holds", file, "--scan", "first", "--top", "0", "--format", "json"];
    script("scan(\"first\").save_as_json(\"first.json\");");
    let saved = std::fs::read_to_string(scene.path("first.json")).expect("a file");
    assert_eq!(saved, scene.prof(&all).ok("prof holds").stdout);
    let report: Value = serde_json::from_str(&saved).expect("JSON");
    let code = "let s = scan(\"first\");\n\
                for r in s.roots() { println(`${r.kind} ${r.name} ${r.retained} ${r.retained_blocks}`); }\n\
                for x in s.stacks() { println(`${x.stack} ${x.from} ${x.class} ${x.own} ${x.own_blocks} ${x.retained}`); }\n\
                println(`${s.size()} ${s.unreachable().size()} ${s.unreachable().len()}`);";
    let mut expected = Vec::new();
    for r in report["top_roots"].as_array().expect("roots") {
        let ((bytes, blocks), kind) = (sum(&r["retained"]), r["kind"].as_str().expect("a kind"));
        expected.push(format!("{kind} {} {bytes} {blocks}", r["name"].as_str().expect("a name")));
    }
    let count = expected.len();
    let out = script(code).stdout;
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[..count], expected);
    let stacks = report["top_stacks"].as_array().expect("stacks");
    assert_eq!(lines.len(), count + stacks.len() + 1, "{out}");
    for (line, s) in lines[count..].iter().zip(stacks) {
        let ((own, blocks), retained) = (sum(&s["own"]), sum(&s["retained"]).0);
        assert!(line.starts_with(&format!("{} ", s["stack"])), "{line} for {s:#}");
        let class = s["class"].as_str().unwrap_or("");
        assert!(line.ends_with(&format!(" {class} {own} {blocks} {retained}")), "{line} for {s:#}");
    }
    let (lost, n) = sum(&report["unreachable"]);
    assert_eq!(lines[lines.len() - 1], format!("{} {lost} {n}", sum(&report["live"]).0));
    // What has changed is what --since-scan says.
    let out = script(
        "for r in scan(2).since(scan(1)) { println(`${r.name} ${r.change} ${r.change_blocks} ${r.was} ${r.is}`); }",
    );
    let json = ["holds", file, "--since-scan", "first", "--top", "0", "--format", "json"];
    let c: Value = serde_json::from_str(&scene.prof(&json).ok("prof holds").stdout).expect("JSON");
    let change = |r: &Value, key: &str| {
        let of = |side: &str| r[side][key].as_i64().expect("a number");
        of("after") - of("before")
    };
    let line = |r: &Value| {
        let name = r["name"].as_str().expect("a name");
        let (bytes, blocks) = (change(r, "bytes"), change(r, "blocks"));
        format!("{name} {bytes} {blocks} {} {}", r["was"], r["is"])
    };
    let expected: Vec<String> = c["roots"].as_array().expect("roots").iter().map(line).collect();
    assert_eq!(out.stdout.lines().collect::<Vec<_>>(), expected);
}

/// All roots, blocks and pointers are in the files for other programs.
fn exported(scene: &Scene, file: &str) {
    let export = |name: &str, more: &[&str]| {
        let args = [&["holds", file, "--scan", "1", "--export", name][..], more].concat();
        scene.prof(&args)
    };
    let out = export("graph.json", &[]).ok("--export").stdout;
    assert_eq!(out, "graph.json\n");
    let text = std::fs::read(scene.path("graph.json")).expect("a file");
    let graph: Value = serde_json::from_slice(&text).expect("JSON");
    let nodes = graph["nodes"].as_array().expect("nodes");
    let blocks = |by: &str| {
        let of = |n: &&Value| n["allocated_by"].as_str().is_some_and(|t| t.contains(by));
        nodes.iter().filter(of).collect::<Vec<_>>()
    };
    assert_eq!(blocks("add_node").len(), 1003);
    assert!(blocks("open_session").iter().all(|n| n["class"] == "Session"));
    assert!(nodes.iter().enumerate().all(|(i, n)| n["id"] == i), "nodes are numbered");
    // The array of sessions points to each of them.
    let id = |n: &Value| n["id"].as_u64().expect("an id");
    let sessions: Vec<u64> = blocks("open_session").into_iter().map(id).collect();
    let root = nodes.iter().find(|n| n["name"].as_str().is_some_and(|t| t.starts_with("sessions")));
    let root = id(root.expect("a root"));
    let pointers = graph["pointers"].as_array().expect("pointers");
    let of_root = pointers.iter().filter(|p| p[0] == root);
    assert_eq!(of_root.filter(|p| sessions.contains(&p[1].as_u64().expect("an id"))).count(), 40);
    let again = export("graph.json", &[]);
    assert!(again.code == 2 && again.stderr.contains("--force"), "{again:?}");
    export("graph.json", &["--force"]).ok("--force");
    export("page.html", &["--top", "0"]).ok("html");
    let page = std::fs::read_to_string(scene.path("page.html")).expect("a page");
    for part in ["list_head in", "<code>Session</code>", "add_node()", "</html>"] {
        assert!(page.contains(part), "no {part} in {page}");
    }
    let out = export("graph.txt", &[]);
    assert!(out.code == 2 && out.stderr.contains(".parquet"), "{out:?}");
    let out = export("graph.csv", &[]).ok("csv").stdout;
    assert_eq!(out, "graph.csv\ngraph.pointers.csv\n");
    let lines =
        |name: &str| std::fs::read_to_string(scene.path(name)).expect("a file").lines().count() - 1;
    assert_eq!([lines("graph.csv"), lines("graph.pointers.csv")], [nodes.len(), pointers.len()]);
    let out = export("graph.parquet", &[]);
    if out.code == 0 {
        assert_eq!(out.stdout, "graph.parquet\ngraph.pointers.parquet\n");
        for name in ["graph.parquet", "graph.pointers.parquet"] {
            let bytes = std::fs::read(scene.path(name)).expect("a file");
            assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"), "{name}");
        }
    } else {
        assert!(out.stderr.contains("feature"), "{out:?}");
    }
}

/// A heap dump has the blocks and pointers of the graph that was exported before, and readers that know nothing of the report
/// come to its figures.
fn dumped(scene: &Scene, report: &Value) {
    let args = ["holds", "graph.prof", "--scan", "1", "--export", "graph.hprof"];
    std::os::unix::fs::symlink("packed.prof", scene.path("graph.prof")).expect("a link");
    assert_eq!(scene.prof(&args).ok("hprof").stdout, "graph.hprof\n");
    let again = scene.prof(&args);
    assert!(again.code == 2 && again.stderr.contains("--force"), "{again:?}");
    let dump = HprofDump::read(&scene.path("graph.hprof"));
    let graph = std::fs::read(scene.path("graph.json")).expect("a graph");
    let graph: Value = serde_json::from_slice(&graph).expect("JSON");
    let text = |of: &Value| of.as_str().unwrap_or_default().replace('/', "\u{2215}");
    let nodes = graph["nodes"].as_array().expect("nodes");
    let mut wanted: HashMap<u64, Vec<u64>> = HashMap::new();
    let mut ids = Vec::new();
    for n in nodes {
        let id = match n["kind"].as_str() {
            Some("block" | "freed") => n["address"].as_u64().expect("an address"),
            Some(kind) => {
                let variable = if kind == "variable" { "variable " } else { "" };
                let name = format!("{variable}{}", text(&n["name"]));
                // Behind the name may be a place.
                let found: Vec<u64> = dump
                    .named(&name)
                    .into_iter()
                    .filter(|id| {
                        let class = dump.objects[id].class.trim_end_matches("[]");
                        class == name
                            || class.rsplit_once(", ").is_some_and(|(front, _)| front == name)
                    })
                    .collect();
                assert_eq!(found.len(), 1, "{n}");
                found[0]
            }
            None => panic!("a node without a kind: {n}"),
        };
        let o = &dump.objects[&id];
        if let Some(size) = n["size"].as_u64().filter(|_| n["kind"] == "block") {
            let by = n["allocated_by"].as_str().expect("a function");
            let name = n["class"].as_str().or(by.split(' ').next()).expect("a word");
            assert!(o.class.starts_with(&text(&name.into())), "{o:?} for {n}");
            let more = o.size - size.next_multiple_of(8).max(16);
            assert!(more == 0 || size < 32, "{o:?} for {n}");
            let is_there = o.stack.iter().any(|f| f.starts_with("add_node"));
            assert_eq!(is_there, by.starts_with("add_node"), "{o:?} for {n}");
        }
        ids.push(id);
        wanted.insert(id, Vec::new());
    }
    let id = |n: &Value| ids[n.as_u64().expect("a node") as usize];
    for p in graph["pointers"].as_array().expect("pointers") {
        wanted.get_mut(&id(&p[0])).expect("a node").push(id(&p[1]));
    }
    for (id, mut to) in wanted {
        let mut found: Vec<u64> = dump.objects[&id].to.iter().map(|(_, to)| *to).collect();
        found.sort_unstable();
        to.sort_unstable();
        assert_eq!(found, to, "{:?}", dump.objects[&id]);
    }
    let all = dump.reached(&[]);
    let retained = |class: &str| {
        let of = dump.named(class);
        assert_eq!(of.len(), 1, "{class}");
        let rest = dump.reached(&of);
        (all.0 - rest.0 - dump.objects[&of[0]].size, all.1 - rest.1 - 1)
    };
    // Sizes of these are multiples of 8, as they are for readers, who take 8 bytes for each pointer.
    for name in ["sessions", "list_head", "cycle"] {
        let (found, told) = (retained(&format!("variable {name} in ")), variable(report, name).0);
        assert_eq!(found.1, told.1, "{name}");
        assert!(found.0 == told.0 || size_of::<usize>() < 8, "{name}: {found:?} {told:?}");
    }
    assert_eq!(retained("no root leads to").1, sum(&report["unreachable"]).1);
    // A dump tells the place of a pointer in a root: the second session is a word behind the first.
    let sessions = &dump.objects[&dump.named("variable sessions in ")[0]].to;
    let second = format!("+{:#x}", size_of::<usize>());
    let fields: Vec<&str> = sessions.iter().map(|(field, _)| &**field).collect();
    assert!(fields.contains(&"+0x0") && fields.contains(&&*second), "{fields:?}");
}

/// Nothing of what the program names is left in a recording that is given away.
fn anonymous(scene: &Scene, file: &str) {
    scene.prof(&["pack", file, "-o", "nobody.prof", "--anonymize", "full"]).ok("prof pack");
    let bytes = std::fs::read(scene.path("nobody.prof")).expect("a recording");
    let packed = scene.path("nobody.prof");
    let out = scene.prof(&["holds", packed.to_str().expect("a path"), "--top", "0"]).ok("holds");
    for name in ["list_head", "sessions", "first", "holds.cpp", "inner("] {
        assert!(!out.stdout.contains(name), "{name}: {out:?}");
        let has = bytes.windows(name.len()).any(|w| w == name.as_bytes());
        assert!(!has, "{name} is in the file");
    }
    assert!(out.stdout.contains("variable_") || out.stdout.contains("root_"), "{out:?}");
}

/// A scan of which a part is missing is refused, and the rest of the recording is read.
fn damaged(scene: &Scene, file: &str) {
    let mut bytes = std::fs::read(file).expect("a recording");
    let (mut at, mut parts) = (16, Vec::new());
    while at + 16 <= bytes.len() {
        let kind = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let len = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().expect("4 bytes"));
        // A compressed chunk begins with the kind of what is in it.
        if matches!((kind, bytes[at + 16]), (30..=32, _) | (15, 30..=32)) {
            parts.push(at + 16 + len as usize / 2);
        }
        at += 16 + len as usize;
    }
    assert!(parts.len() >= 6, "{parts:?}");
    for part in parts {
        bytes[part] ^= 0x55;
        std::fs::write(scene.path("damaged.prof"), &bytes).expect("written");
        bytes[part] ^= 0x55;
        let outs = ["1", "2"].map(|n| scene.prof(&["holds", "damaged.prof", "--scan", n]));
        let refused = outs.iter().filter(|o| o.code != 0).collect::<Vec<_>>();
        assert_eq!(refused.len(), 1, "{outs:?}");
        assert!(refused[0].stderr.contains("missing or damaged"), "{refused:?}");
    }
    scene.prof(&["report", "damaged.prof"]).ok("prof report");
    // A small file whose scan would fill the memory.
    let head = Scan { ticks: Ticks(1), blocks: 1 << 40, ..Scan::default() };
    chunk::put(&mut bytes, kind::SCAN, &head.encode());
    let part = Zipped::encode(kind::SCAN_BLOCKS, &vec![0; 60 << 20]).expect("zstd");
    for _ in 0..8 {
        chunk::put(&mut bytes, kind::ZIPPED, &part);
    }
    assert!(bytes.len() < 8 << 20);
    std::fs::write(scene.path("bomb.prof"), &bytes).expect("written");
    let out = scene.prof(&["holds", "bomb.prof"]);
    assert!(out.code == 2 && out.stderr.contains("compressed as no scan is"), "{out:?}");
    scene.prof(&["holds", "bomb.prof", "--scan", "1"]).ok("the scan before it");
}
