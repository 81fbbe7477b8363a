//! What scripts print and draw, how they fail, and how they end.

use super::*;

#[test]
fn values_print_as_bytehound_prints_them() {
    let mut b = bench(13, 300);
    let printed = b.lines(
        "println(); println(5); println(\"a {} b {}\", 1, \"x\"); println(\"{1}{0}{{}}\", 1, 2);\n\
         println(s(0.5)); println(s(90) + ms(3)); println(kb(2) + mb(1) + gb(1));\n\
         println((allocations().only_leaked())[0].deallocated_at());\n\
         println([1, \"a\", s(1)]); println(h(2) * 0.5); println(2 * m(1)); println(s(1) - ms(1));\n\
         println(dirname(\"a/b\")); println(data().runtime() == data().runtime());",
    );
    let meant = [
        "",
        "5",
        "a 1 b x",
        "21{}",
        "500ms",
        "1m 30s 3ms",
        "1001002000",
        "None",
        "[1, \"a\", 1s]",
        "1h",
        "2m",
        "999ms",
        "a",
        "true",
    ];
    assert_eq!(printed, meant);
    let trace = b.lines("println(allocations()[0].backtrace());");
    let first = b.w.blocks.iter().min_by_key(|b| b.begin).expect("a block");
    let frames: Vec<String> = functions(first.node)
        .iter()
        .rev()
        .enumerate()
        .map(|(i, f)| format!("#{i:02} [{}.so] f{f}_", if f % 2 == 0 { "one" } else { "two" }))
        .collect();
    assert_eq!(trace, [frames.join("\n")]);
}

fn failing(code: &str, limits: Option<Limits>) -> ScriptError {
    let b = bench(15, 400);
    let (mut script, _) = engine(std::slice::from_ref(&b.data), limits);
    match script.run(code) {
        Err(e) => e,
        Ok(ran) => panic!("{code}: {ran:?}"),
    }
}

#[test]
fn errors_have_their_place() {
    for (code, kind, line, column, text) in [
        ("let a = 1;\nlet b = ;", ErrorKind::Syntax, 2, 9, "';'"),
        ("\n  nonsense(1)", ErrorKind::Runtime, 2, 3, "nonsense"),
        ("allocations()\n  .only_larger(\"x\")", ErrorKind::Runtime, 2, 4, "only_larger"),
        (
            "fn f() { allocations().only_passing_through_function(\"(\") }\nf();",
            ErrorKind::Runtime,
            1,
            24,
            "--function",
        ),
        ("assert(1 > 2, \"no\");", ErrorKind::Assertion, 1, 1, "no"),
        ("graph().save();", ErrorKind::Runtime, 1, 9, "no series"),
        ("graph().add(allocations()).add(maps());", ErrorKind::Runtime, 1, 28, "either"),
        (
            "graph().with_gradient_color_scheme(\"nocolour\", \"red\");",
            ErrorKind::Runtime,
            1,
            9,
            "nocolour",
        ),
    ] {
        let e = failing(code, None);
        assert_eq!((e.kind, e.line, e.column), (kind, Some(line), Some(column)), "{code}: {e}");
        assert!(e.message.contains(text) && !e.message.contains('\n'), "{code}: {e}");
    }
}

#[test]
fn scripts_in_a_server_end() {
    let limits = Limits { operations: 100_000, ..Limits::default() };
    for code in [
        "loop {}",
        "while true { let x = 1; }",
        "fn f(x) { f(x + 1) } f(0);",
        "let a = []; loop { a.push(1); }",
        "let a = \"x\"; loop { a += a; }",
        "loop { try { loop {} } catch {} }",
        "for i in 0..1000000000 { let x = i; }",
        "loop { println(1); }",
        "let all = []; loop { all.push(allocations() - allocations().only_larger(5)); }",
    ] {
        let e = failing(code, Some(limits));
        assert!(!e.message.is_empty(), "{code}");
    }
    let few = Limits { selections: 60, ..limits };
    let e = failing("let a = allocations() - allocations().only_larger(5);", Some(few));
    assert!(e.message.contains("memory"), "{e}");
    let short =
        Limits { operations: u64::MAX, time: std::time::Duration::from_millis(50), ..limits };
    let e = failing("loop {}", Some(short));
    assert_eq!((e.kind, e.line), (ErrorKind::Stopped, Some(1)), "{e}");
    assert!(e.message.contains("longer than"), "{e}");
    for (code, text) in [
        ("load(\"/etc/passwd\")", "prof script"),
        ("eval(\"1\")", "eval"),
        ("sleep(1)", "sleep"),
        ("import \"a\" as b;", "import"),
    ] {
        let e = failing(code, Some(limits));
        assert!(e.message.contains(text), "{code}: {e}");
    }
}

#[test]
fn a_cancelled_job_ends_a_filter() {
    let b = bench(17, 400);
    let (mut script, _) = engine(std::slice::from_ref(&b.data), None);
    let job = prof_analyze::Job::default();
    script.set_job(job.clone());
    job.cancel();
    let e = script.run("println(allocations().only_larger(5).len());").expect_err("stopped");
    assert_eq!(e.kind, ErrorKind::Stopped, "{e}");
    // The next run has a job of its own, and what was made before is there.
    script.set_job(prof_analyze::Job::default());
    assert_eq!(script.run("let x = 5; fn twice(n) { n * 2 }"), Ok(Ran::Whole));
    assert_eq!(script.run("assert(twice(x) == 10);"), Ok(Ran::Whole));
    assert_eq!(script.run("exit(3);"), Ok(Ran::Exit(3)));
    assert!(script.is_unfinished("fn f() {") && script.is_unfinished("let a = (1 +"));
    assert!(!script.is_unfinished("let a = 1;") && !script.is_unfinished("let = 5;"));
}

/// Returns the greatest live bytes of blocks in each of the columns of a time.
fn columns(blocks: &[&Block], from: u64, to: u64, count: usize) -> Vec<u64> {
    let mut steps: Vec<(u64, i64)> = Vec::new();
    for b in blocks {
        steps.push((ns(b.begin), b.size as i64));
        steps.extend(b.end.map(|e| (ns(e.0), -(b.size as i64))));
    }
    steps.sort_unstable();
    let edge = |i: usize| from + ((to - from) as u128 * i as u128 / count as u128) as u64;
    let (mut now, mut at) = (0i64, 0);
    (0..count)
        .map(|i| {
            let end = if i + 1 == count { u64::MAX } else { edge(i + 1) };
            let mut most = now;
            while let Some((time, step)) = steps.get(at).filter(|s| s.0 < end) {
                (now, at) = (now + step, at + 1);
                let more = steps.get(at).is_some_and(|s| s.0 == *time);
                if !more {
                    most = most.max(now);
                }
            }
            most as u64
        })
        .collect()
}

#[test]
fn graphs_have_each_block_in_its_first_series() {
    let mut b = bench(19, 1200);
    b.lines(
        "graph().add(\"Leaked\", allocations().only_leaked()).add(\"Large\", allocations().only_larger(3000))\n\
         .add(\"All\", allocations()).save(\"dir/../a.svg\");",
    );
    let out = b.out.borrow().clone();
    let [Output::File { path, kind, bytes, data: Some(data) }] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!((path.as_str(), *kind), ("/a.svg", FileKind::Svg));
    let text = String::from_utf8_lossy(bytes);
    assert!(
        text.starts_with("<svg width=\"1024\" height=\"768\"") && text.contains("Leaked"),
        "{text:.200}"
    );
    let of = |allows: &dyn Fn(&Block) -> bool| {
        let own: Vec<&Block> = b.w.blocks.iter().filter(|b| allows(b)).collect();
        columns(&own, 0, ns(b.end), 1000)
    };
    let meant = [
        of(&|b| b.end.is_none()),
        of(&|b| b.end.is_some() && b.size > 3000),
        of(&|b| b.end.is_some() && b.size <= 3000),
    ];
    for (i, meant) in meant.iter().enumerate() {
        let values: Vec<u64> =
            serde_json::from_value(data["series"][i]["values"].clone()).expect("numbers");
        assert_eq!(&values, meant, "series {i}");
    }
    // The same graph is the same file.
    let first = bytes.clone();
    b.lines(
        "graph().add(\"Leaked\", allocations().only_leaked()).add(\"Large\", allocations().only_larger(3000))\n\
         .add(\"All\", allocations()).save(\"a.svg\");",
    );
    let out = b.out.borrow().clone();
    assert!(matches!(&out[..], [Output::File { bytes, .. }] if *bytes == first));
}
