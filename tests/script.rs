//! `prof script`, end to end: the investigation of a leak as a script, the script of a filter, prompts and streams.

use common::build::{line_of, program};
use common::{Output, Scene};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

/// Records a program that leaks in several ways, from start to end.
fn leaking(name: &str) -> Scene {
    let scene = Scene::new(name);
    let mut c = Command::new(Scene::binary());
    c.args(["run", "-o", "r.prof", "--"]).arg(program("leaks.c")).arg("1200");
    scene.run(c).ok("prof run");
    scene
}

/// Runs a script on the recording, and returns what it prints.
#[track_caller]
fn script(scene: &Scene, code: &str) -> String {
    fs::write(scene.path("s.rhai"), code).expect("written");
    let out = scene.prof(&["script", "s.rhai", "--data", "r.prof"]);
    assert_eq!(out.code, 0, "{code}\n{out:?}");
    out.stdout
}

fn json(scene: &Scene, args: &[&str]) -> Value {
    let out = scene.prof(&[&["report", "r.prof", "-f", "json", "-n", "0"], args].concat());
    serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}\n{out:?}"))
}

fn line(marker: &str) -> String {
    format!("[leaks.c:{}]", line_of("leaks.c", marker.trim_start_matches('@')))
}

/// The book's investigation: what is never freed, what of it grows, what is freed only at the end.
#[test]
fn an_investigation_finds_what_leaks_and_how() {
    let scene = leaking("investigation");
    let out = script(
        &scene,
        r#"
        let groups = allocations().only_leaked().group_by_backtrace().sort_by_size();
        graph().add("Leaked", allocations().only_leaked()).add("Temporary", allocations()).save("all.svg");
        graph().add(groups).save("groups.png");
        fn analyze(list) {
            let all = allocations().only_matching_backtraces(list);
            println("{} of {}", all.only_leaked().len(), all.len());
            println(all[0].backtrace().strip());
        }
        for group in groups { analyze(group); }
        println("---");
        let remaining = allocations().only_not_matching_backtraces(groups);
        let until_end = remaining.only_alive_for_at_least(ms(300));
        for group in until_end.group_by_backtrace().sort_by_size().take(1) {
            let all = allocations().only_matching_backtraces(group);
            let last = all[all.len() - 1].allocated_at();
            println("{} of {}", all.only_deallocated_after_at_least(last).len(), all.len());
            println(all[0].backtrace().strip());
        }
        "#,
    );
    let (leaked, at_end) = out.split_once("---\n").expect("two parts");
    let numbers = |text: &str, marker: &str| -> (u64, u64) {
        let at = text.find(&line(marker)).unwrap_or_else(|| panic!("no {marker} in {text}"));
        let counts = text[..at].lines().rev().find_map(|l| l.split_once(" of ")).expect("counts");
        (counts.0.parse().expect("a number"), counts.1.parse().expect("a number"))
    };
    let (some, all) = numbers(leaked, "@linear");
    assert!(some == all && all > 100, "a clear leak: {some} of {all}");
    let (some, all) = numbers(leaked, "@bounded");
    assert!(some == 64 && all > 100, "a cache of 64 blocks: {some} of {all}");
    assert_eq!(numbers(leaked, "@fixed"), (32, 32), "a table");
    let (some, all) = numbers(leaked, "@both");
    assert!(some * 4 < all && some > 20, "few of many: {some} of {all}");
    assert!(!leaked.contains(&line("@temporary")) && !leaked.contains(&line("@freed_at_the_end")));
    let (some, all) = numbers(at_end, "@freed_at_the_end");
    assert!(some == all && all > 100, "freed at the end: {some} of {all}");
    let svg = fs::read_to_string(scene.path("all.svg")).expect("a graph");
    assert!(svg.contains("Leaked") && svg.contains("<polygon"), "{svg:.300}");
    let png = fs::read(scene.path("groups.png")).expect("a graph");
    assert!(png.starts_with(b"\x89PNG"), "{:?}", &png[..8]);
    // The verdicts of prof itself are objects.
    let verdicts = script(
        &scene,
        r#"for l in allocations().leaks() {
            if l.class == "growing" || l.class == "freed-at-the-end" {
                println(l.allocations[0].backtrace());
            }
        }"#,
    );
    for marker in ["@linear", "@freed_at_the_end", "@both"] {
        assert!(verdicts.contains(&line(marker)), "{marker}: {verdicts}");
    }
    assert!(!verdicts.contains(&line("@fixed")), "{verdicts}");
}

/// Runs scripts one after the other as `docs/guide/build` does, and returns what each prints and draws.
fn slave(scene: &Scene, scripts: &[&str]) -> Vec<(String, Vec<String>)> {
    let mut child = Command::new(Scene::binary())
        .args(["script", "--serve-stdin", "--data"])
        .arg(scene.path("r.prof"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let input: Vec<u8> = scripts.iter().flat_map(|s| [s.as_bytes(), b"\0"].concat()).collect();
    // The answers of this many scripts do not fit into the pipe: it is read while they are written.
    let mut to = child.stdin.take().expect("a pipe");
    let writer = std::thread::spawn(move || to.write_all(&input));
    let out = child.wait_with_output().expect("ended");
    writer.join().expect("a thread").expect("written");
    let mut all = vec![(String::new(), Vec::new())];
    for line in String::from_utf8(out.stdout).expect("UTF-8").lines() {
        let answer: Value = serde_json::from_str(line).expect("JSON");
        let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
        let last = all.last_mut().expect("one");
        match answer["kind"].as_str() {
            Some("println") => last.0 += &(text("message") + "\n"),
            Some("image") => last.1.push(text("path")),
            Some("idle") => all.push(Default::default()),
            _ => panic!("{}\nfails: {line}", scripts[all.len() - 1]),
        }
    }
    all.pop();
    all
}

/// The chapter of the guide: its code runs, draws the pictures that the chapter shows, and comes to its conclusions.
#[test]
fn the_guide_comes_to_its_conclusions() {
    let scene = Scene::new("guide");
    let mut c = Command::new(Scene::binary());
    c.args(["run", "-o", "r.prof", "--"]).arg(program("leaks.c")).arg("3200");
    scene.run(c).ok("prof run");
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let read = |path: &str| fs::read_to_string(docs.join(path)).expect(path);
    let (source, chapter) = (read("guide/leak.md"), read("src/leak.md"));
    fn pieces(text: &str) -> Vec<&str> {
        let after = text.split("```rust,ignore\n").skip(1);
        after.map(|t| t.split("```").next().unwrap_or_default()).collect()
    }
    let code = pieces(&source);
    assert_eq!(code, pieces(&chapter), "docs/src/leak.md is old: run docs/guide/build");
    let answers = slave(&scene, &code);
    assert_eq!(answers.len(), code.len());
    for path in answers.iter().flat_map(|a| &a.1) {
        let image = format!("images/leak-{path}");
        assert!(chapter.contains(&image), "the chapter does not show {image}");
        assert!(docs.join("src").join(&image).exists(), "{image}: run docs/guide/build");
    }
    let all: Vec<&str> = answers.iter().map(|a| a.0.as_str()).collect();
    let of = |marker: &str| all.iter().find(|t| t.contains(&line(marker))).expect(marker);
    let counts = |text: &str, head: &str| -> Vec<u64> {
        let line = text.lines().rfind(|l| l.contains(head)).unwrap_or_default();
        line.split(' ').filter_map(|w| w.parse().ok()).collect()
    };
    // The table of stacks, with most bytes first.
    let table = all.iter().find(|t| t.contains("leaked_size")).expect("a table");
    let names: Vec<&str> =
        table.lines().skip(1).filter_map(|l| l.split_whitespace().last()).collect();
    assert_eq!(names, ["linear", "both", "fixed", "bounded"], "{table}");
    let leak = counts(of("@linear"), "never freed");
    assert!(leak[0] == leak[1] && leak[0] > 500, "every block is kept: {leak:?}");
    let neglect = counts(of("@both"), "never freed");
    assert!(neglect[1] * 4 < neglect[0] && neglect[1] > 100, "few of many: {neglect:?}");
    let cache = counts(of("@bounded"), "never freed");
    assert!(cache[1] == 64 && cache[0] > 500, "as many as it has room for: {cache:?}");
    assert!(of("@fixed").contains("32 blocks, 32 never freed"));
    let late = counts(of("@freed_at_the_end"), "until the end");
    assert!(late[1] * 10 > late[0] * 9 && late[0] > 500, "nearly all: {late:?}");
    // prof's own verdicts say the same.
    let verdict = |class: &str, marker: &str| {
        let said = |l: &str| l.starts_with(&format!("{class}: ")) && l.ends_with(&line(marker));
        let verdicts = all[all.len() - 2];
        assert!(verdicts.lines().any(said), "{marker} is {class}: {verdicts}");
    };
    verdict("growing", "@linear");
    verdict("growing", "@both");
    verdict("freed-at-the-end", "@freed_at_the_end");
    assert_eq!(all[all.len() - 1], "no new leaks\n");
}

#[test]
fn lists_and_objects_have_the_figures_of_the_reports() {
    let scene = leaking("figures");
    for (call, args) in [
        ("", &[][..]),
        (".only_leaked()", &["--lifetime", "leaked"]),
        (".only_larger_or_equal(900)", &["--min-size", "900"]),
        (".only_passing_through_function(\"^bounded$\")", &["--function", "^bounded$"]),
        (".only(\"from\", \"50%\")", &["--from", "50%"]),
    ] {
        let out = script(
            &scene,
            &format!(
                "let l = allocations(){call};\nlet f = l.figures();\n\
                 println(\"{{}} {{}} {{}}\", l.len(), l.size(), l.leaked_size());\n\
                 println(\"{{}} {{}}\", f.live_count, f.peak_bytes);"
            ),
        );
        let totals = &json(&scene, args)["totals"];
        let n = |name: &str| totals[name].as_u64().unwrap_or_else(|| panic!("{name}: {totals}"));
        let all = n("allocations") + n("reallocations");
        let meant = format!(
            "{all} {} {}\n{} {}\n",
            n("allocated_bytes"),
            n("live_bytes"),
            n("live_count"),
            n("peak_bytes")
        );
        assert_eq!(out, meant, "{call}");
    }
    // Mappings, threads, sizes and pages.
    let maps = scene
        .prof(&["maps", "r.prof", "-f", "json", "-n", "0", "--lifetime", "all"])
        .ok("prof maps")
        .stdout;
    let maps: Value = serde_json::from_str(&maps).expect("JSON");
    let all = maps["maps"].as_array().map_or(0, Vec::len);
    let out = script(
        &scene,
        "let own = maps().only_not_bytehound();\n\
         println(\"{} {}\", own.len(), (own.only_readable() + own.only_not_readable()).len() == own.len());\n\
         println(\"{} {}\", (own - own.only_writable()).len() == own.only_not_writable().len(), own.only_executable().len() > 0);\n\
         let heap = own.only_kind(\"heap\");\n\
         println(allocations().only_from_maps(heap).len() > 0);\n\
         println(allocations().by_thread()[0].name.starts_with(\"leaks\"));\n\
         println(allocations().sizes().filter(|s| s.size == 5000)[0].count > 0);\n\
         println(allocations().fragmentation().version == 1);\n\
         graph().add(maps()).show_address_space().save(\"maps.svg\");\n\
         table(allocations().group_by_backtrace().sort_by_size().take(2), [\"count\", \"function\"]);",
    );
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], format!("{all} true"), "{out}");
    assert_eq!(lines[1..6], ["true true", "true", "true", "true", "true"], "{out}");
    assert!(lines[6].starts_with("count") && lines[7].ends_with("temporary"), "{out}");
}

/// Returns the rows of a report's stacks: what a script must have as well.
fn stacks(report: &Value) -> String {
    let groups = report["groups"].as_array().cloned().unwrap_or_default();
    let of = |g: &Value| format!("{} {} {}", g["id"], g["live_count"], g["live_bytes"]);
    groups.iter().map(of).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_filter_as_a_script_selects_the_same_blocks() {
    let scene = leaking("as-script");
    let cases: &[&[&str]] = &[
        &[],
        &["--min-size", "0.5KiB", "--max-size", "900", "--lifetime", "leaked"],
        &["--function", "^(linear|both)$|\"\\\\n", "--not-function", "x\"y'\\d{3}"],
        &["--source", "leaks\\.c$", "--from", "20%", "--to", "1h", "--older", "7ns"],
        &["--alive-at", "50%", "--alive-at-2", "300.5ms", "--min-lifetime", "1us"],
        &["--min-group-leaked", "12.5%", "--max-group-allocations", "100,000", "--thread", "leaks"],
        &["--min-address", "0x1000", "--max-address", "0xffffffffffffffff", "--min-depth", "2"],
        &[
            "--mmapped",
            "no",
            "--arena",
            "main",
            "--freed-to",
            "99%",
            "--lifetime",
            "only_temporary",
        ],
        &["--held-until", "40%", "--module", "leaks", "--not-module", "\u{e9}\t\"", "--part", "1"],
        &["--min-chain-length", "1", "--max-first-size", "1K", "--stacks", "1,2,3,4,5,6,7,8,9"],
    ];
    for args in cases {
        let out = scene.prof(&[&["report", "r.prof", "--as-script"], *args].concat()).ok("code");
        let report = json(&scene, args);
        // The printed script runs as it is.
        let text = script(&scene, &out.stdout);
        assert!(text.contains("leaks") || text.contains("no "), "{args:?}: {text}");
        let list = out.stdout.split_once("println").expect("a script").0;
        let figures = script(
            &scene,
            &format!(
                "{list}\nlet f = list.figures();\nprintln(\"{{}} {{}} {{}}\", f.live_bytes, f.allocated_bytes, f.allocations);"
            ),
        );
        let t = &report["totals"];
        let meant = format!("{} {} {}\n", t["live_bytes"], t["allocated_bytes"], t["allocations"]);
        assert_eq!(figures, meant, "{args:?}\n{}", out.stdout);
        let rows = script(
            &scene,
            &format!(
                "{list}\nfor g in list.group_by_backtrace().sort_by_leaked_size() {{\n\
                 let l = g.only_leaked(); println(\"{{}} {{}} {{}}\", g[0].backtrace().id(), l.len(), l.size()); }}"
            ),
        );
        let (mut rows, all) = (rows.lines().collect::<Vec<_>>(), stacks(&report));
        let mut meant: Vec<&str> = all.lines().collect();
        rows.sort_unstable();
        meant.sort_unstable();
        assert_eq!(rows, meant, "{args:?}");
    }
    let out = scene.prof(&["report", "r.prof", "--as-script", "--tree"]);
    assert_eq!(out.code, 2, "{out:?}");
}

#[test]
fn a_filter_of_mappings_as_a_script_lists_the_same_mappings() {
    let scene = leaking("maps-as-script");
    let cases: &[&[&str]] = &[
        &[],
        &["--lifetime", "all", "--sort", "address", "--top", "0"],
        &["--kind", "heap", "--kind", "stack,prof", "--min-size", "4KiB"],
        &["--bytehound", "yes", "--sort", "peak-rss"],
        &["--name", "libc|\"\\\\d\\n|leaks", "--executable", "yes", "--top", "2"],
        &["--min-rss", "8K", "--writable", "yes", "--alive-at", "50%", "--sort", "time"],
    ];
    let mut rows = 0;
    for args in cases {
        let code = scene.prof(&[&["maps", "r.prof", "--as-script"], *args].concat()).ok("code");
        let table = scene.prof(&[&["maps", "r.prof"], *args].concat()).ok("prof maps").stdout;
        let table = table.lines().filter(|l| !l.contains("--lifetime all shows"));
        let table = table.map(|l| l.replace("(--top 0 shows all)", "(report(0) shows all)"));
        let table: Vec<String> = table.collect();
        let printed = script(&scene, &code.stdout);
        assert_eq!(printed.lines().collect::<Vec<_>>(), table, "{args:?}\n{}", code.stdout);
        rows += table.len();
    }
    assert!(rows > 60, "{rows} lines");
    let out = scene.prof(&["maps", "r.prof", "--as-script", "--group-by", "kind"]);
    assert_eq!(out.code, 2, "{out:?}");
}

#[test]
fn errors_arguments_and_exit_codes() {
    let scene = leaking("codes");
    let run = |args: &[&str]| -> Output { scene.prof(&[&["script"], args].concat()) };
    // A number with a sign is code as well, and no count of failures becomes success.
    let out = run(&["-e", "-5 + 3"]);
    assert_eq!((out.code, out.stdout.as_str()), (0, "-2\n"), "{out:?}");
    for (code, ends) in [("exit(256)", 255), ("exit(-1)", 255), ("exit(255)", 255), ("exit(0)", 0)]
    {
        assert_eq!(run(&["-e", code]).code, ends, "{code}");
    }
    let out = run(&["-e", "println(argv()); exit(7)", "-d", "r.prof", "a", "b c"]);
    assert_eq!((out.code, out.stdout.as_str()), (7, "[\"a\", \"b c\"]\n"), "{out:?}");
    fs::write(scene.path("args.rhai"), "#!/usr/bin/env -S prof script\nprintln(argv());")
        .expect("written");
    let out = run(&["--data", "r.prof", "args.rhai", "--flag", "x"]);
    assert_eq!((out.code, out.stdout.as_str()), (0, "[\"--flag\", \"x\"]\n"), "{out:?}");
    let out = run(&["-e", "assert(allocations().len() < 5, \"too many blocks\");", "-d", "r.prof"]);
    assert_eq!((out.code, out.stderr.trim()), (1, "prof: -e:1:1: too many blocks"), "{out:?}");
    let out = run(&["-e", "let x = ;"]);
    assert_eq!(out.code, 2, "{out:?}");
    assert!(out.stderr.starts_with("prof: -e:1:9: "), "{out:?}");
    let out = run(&["missing.rhai"]);
    assert_eq!(out.code, 2, "{out:?}");
    // A list is computed when it is printed: what is wrong with it is wrong where it is made.
    let late = "let n = 5;\n  allocations().only_thread(\"nobody\")";
    let out = run(&["-e", late, "-d", "r.prof"]);
    assert_eq!(out.code, 1, "{out:?}");
    assert!(out.stderr.starts_with("prof: -e:2:3: only_thread nobody: no thread"), "{out:?}");
    // The newest recording of the folder, if none is given; several at once; and one that is loaded.
    let out =
        run(&["-e", "println(data().allocations().len() == load(\"r.prof\").allocations().len())"]);
    assert_eq!((out.code, out.stdout.as_str()), (0, "true\n"), "{out:?}");
    assert!(out.stderr.contains("r.prof is the newest"), "{out:?}");
    let code = "println(recordings().len()); println(diff(data(0).allocations(), data(1).allocations()).total.live_bytes); data(0).allocations() + data(1).allocations()";
    let out = run(&["-e", code, "-d", "r.prof", "-d", "r.prof"]);
    assert_eq!((out.code, out.stdout.as_str()), (1, "2\n0\n"), "{out:?}");
    assert!(out.stderr.contains("different recordings"), "{out:?}");
    let out = run(&["--help-names", "only_la*"]);
    assert!(
        out.stdout.contains("AllocationList.only_larger(n: Integer) -> AllocationList"),
        "{out:?}"
    );
    // The value of code on the command line is its answer; a semicolon says that none is wanted.
    for (code, meant) in [
        ("allocations().len() > 5", "true\n"),
        ("1 + 1 // two\n// or more", "2\n"),
        ("1 + 1;", ""),
        ("1 + 1;\n// or more", ""),
        ("let x = 5", ""),
        ("allocations().only_larger(1999).only_smaller(2001)", "AllocationList (32 allocations)\n"),
        (
            "println(allocations().only_larger(1999).only_smaller(2001).group_by_backtrace())",
            "AllocationGroupList (1 group)\n",
        ),
        ("println(\"{}\", maps() - maps())", "MapList (0 maps)\n"),
        ("[allocations(), 1]", "[AllocationList, 1]\n"),
        ("graph().add(allocations())", ""),
    ] {
        let out = run(&["-e", code, "-d", "r.prof"]).ok(code);
        assert_eq!(out.stdout, meant, "{code}");
    }
    let out = run(&["-e", "graph().add(allocations()).save()", "-d", "r.prof"]);
    assert_eq!(out.stderr, "prof: wrote Graph #0.svg\n", "{out:?}");
    fs::write(scene.path("value.rhai"), "graph().add(allocations()).save(); 5").expect("written");
    let out = run(&["value.rhai", "-d", "r.prof"]);
    assert_eq!((out.stdout.as_str(), out.stderr.as_str()), ("", ""), "{out:?}");
    // Files: in a folder of the script's, and never over a recording.
    let code = "mkdir_p(\"a/b\"); chdir(\"a\"); allocations().only_leaked().save_as_csv(\"b/x.csv\").save_as_flamegraph();\n\
                graph().add(allocations()).save_each_series_as_graph(\"b\"); allocations().save_as_csv(\"../r.prof\");";
    let out = run(&["-e", code, "-d", "r.prof"]);
    assert_eq!(out.code, 1, "{out:?}");
    assert!(out.stderr.contains("it is a recording"), "{out:?}");
    for file in ["a/b/x.csv", "a/Flamegraph #0.svg", "a/b/Series #0.svg"] {
        assert!(scene.path(file).exists(), "{file}");
    }
}

/// What is missing in a recording is told beside a script's figures, which are numbers alone.
#[test]
fn scripts_are_told_what_is_missing_in_a_recording() {
    let scene = leaking("cut-off");
    let whole = fs::read(scene.path("r.prof")).expect("a recording");
    fs::write(scene.path("cut.prof"), &whole[..whole.len() - 100]).expect("written");
    let code = "allocations().len() > 0";
    let out = scene.prof(&["script", "-d", "cut.prof", "-e", code]);
    assert_eq!((out.code, out.stdout.as_str()), (0, "true\n"), "{out:?}");
    assert!(out.stderr.contains("cut.prof: recording cut off"), "{out:?}");
    let loaded = format!("load(\"cut.prof\"); {code}");
    let out = scene.prof(&["script", "-d", "r.prof", "-e", &loaded]);
    assert!(out.stderr.contains("cut.prof: ") && !out.stderr.contains("r.prof: rec"), "{out:?}");
}

/// A list of mappings has prof's own as well, and so has its file; groups and objects are tables.
#[test]
fn saved_files_have_what_the_lists_have() {
    let scene = leaking("saved");
    let out = script(
        &scene,
        r#"
        println(maps().save_as_csv("maps.csv").len());
        println(maps().only_bytehound().len());
        println(allocations().group_by_backtrace().save_as_csv("groups.csv").len());
        println(allocations().by_thread().save_as_json("threads.json").len());
        allocations().only_leaked().save_as_csv("/dev/stdout");
        println("end");
        "#,
    );
    let mut lines = out.lines();
    let mut number = || lines.next().and_then(|l| l.parse::<usize>().ok()).expect("a number");
    let [maps, ours, groups, threads] = [number(), number(), number(), number()];
    let text = |name: &str| fs::read_to_string(scene.path(name)).expect("a file");
    assert_eq!(text("maps.csv").lines().count(), 1 + maps);
    assert_eq!(text("maps.csv").lines().filter(|l| l.contains(",prof,")).count(), ours);
    assert!(ours > 0 && maps > ours, "{maps} {ours}");
    assert_eq!(text("groups.csv").lines().count(), 1 + groups);
    assert!(text("groups.csv").contains("main;"), "{}", text("groups.csv"));
    let json: Value = serde_json::from_str(&text("threads.json")).expect("JSON");
    assert_eq!(json.as_array().map(Vec::len), Some(threads));
    // What goes to standard output stands between the script's own lines.
    assert!(lines.next().is_some_and(|l| l.starts_with("address,size")), "{out}");
    assert!(out.ends_with("\nend\n"), "{out}");
    for name in ["maps.csv", "groups.csv", "threads.json"] {
        let mode = fs::metadata(scene.path(name)).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn a_stream_of_scripts_is_answered_in_lines() {
    let scene = leaking("stream");
    let mut child = Command::new(Scene::binary())
        .args(["script-slave", "--data"])
        .arg(scene.path("r.prof"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let input = "let x = 2; fn twice(n) { n * 2 }\0println(twice(x));\ngraph().add(allocations()).save();\0let = ;\0nonsense();\0";
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("written");
    let out = child.wait_with_output().expect("ended");
    let lines: Vec<Value> = String::from_utf8(out.stdout)
        .expect("UTF-8")
        .lines()
        .map(|l| serde_json::from_str(l).expect("JSON"))
        .collect();
    let kinds: Vec<&str> = lines.iter().filter_map(|l| l["kind"].as_str()).collect();
    let meant =
        ["idle", "println", "image", "idle", "syntax_error", "idle", "runtime_error", "idle"];
    assert_eq!(kinds, meant, "{lines:?}");
    assert_eq!(lines[1]["message"], "4");
    assert_eq!(lines[2]["path"], "Graph #0.svg");
    let bytes: Vec<u8> = serde_json::from_value(lines[2]["data"].clone()).expect("bytes");
    assert!(bytes.starts_with(b"<svg"), "a picture");
    assert_eq!((&lines[4]["line"], &lines[4]["column"]), (&1.into(), &5.into()), "{:?}", lines[4]);
}

/// A recording of figures has no blocks to count, and a script must not find that there were none.
#[test]
fn figures_alone_are_not_taken_for_an_answer() {
    let scene = Scene::new("script-aggregate");
    let mut c = Command::new(Scene::binary());
    c.args(["run", "--aggregate", "-o", "r.prof", "--"]).arg(program("leaks.c")).arg("100");
    scene.run(c).ok("prof run");
    for code in ["allocations().len()", "allocations()", "allocations().only_larger(5)"] {
        let out = scene.prof(&["script", "-d", "r.prof", "-e", code]);
        assert_eq!((out.code, out.stdout.as_str()), (1, ""), "{code}: {out:?}");
        assert!(out.stderr.contains("only figures by stack (--aggregate)"), "{code}: {out:?}");
    }
    let code = "println(maps().len()); println(allocations().group_by_backtrace().len() > 0)";
    let out = scene.prof(&["script", "-d", "r.prof", "-e", code]).ok("script");
    assert_eq!(out.stdout, "0\ntrue\n", "{out:?}");
    let why = "does not tell of mappings (it has only figures by stack (--aggregate))";
    assert!(out.stderr.contains(why), "{out:?}");
}
