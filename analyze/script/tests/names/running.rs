//! Tests of what scripts print and draw, how they fail, and how they end.

use super::*;

#[test]
fn values_print_as_bytehound_prints_them() {
    let mut b = bench(13, 300);
    let printed = b.lines(
        "println(); println(5); println(\"a {} b {}\", 1, \"x\"); println(\"{1}{0}{{}}\", 1, 2); println(4.0 / 2.0); println(\"{} {}\", 1e20, -0.25);\n\
         println(s(0.5)); println(s(90) + ms(3)); println(kb(2) + mb(1) + gb(1));\n\
         println((allocations().only_leaked())[0].deallocated_at());\n\
         println([1, \"a\", s(1)]); println(h(2) * 0.5); println(2 * m(1)); println(s(1) - ms(1));\n\
         println(dirname(\"a/b\")); println(data().runtime() == data().runtime());",
    );
    let expected = [
        "",
        "5",
        "a 1 b x",
        "21{}}",
        "2",
        "100000000000000000000 -0.25",
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
    assert_eq!(printed, expected);
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

#[test]
fn older_scripts_are_told_once_what_has_changed() {
    let b = bench(17, 300);
    let notes = |code: &str| -> Vec<String> {
        let (mut script, out) = engine(std::slice::from_ref(&b.data), None);
        script.run(code).unwrap_or_else(|e| panic!("{code}: {e}"));
        let lines = out.take().into_iter().filter_map(|o| match o {
            Output::Line(text) => text.strip_prefix("note: ").map(str::to_owned),
            Output::File { .. } => None,
        });
        lines.collect()
    };
    for (name, arg, of) in [
        ("only_mmaped", "", "only_ptmalloc_mmaped"),
        ("only_not_mmaped", "", "only_ptmalloc_not_mmaped"),
        ("only_from_main_arena", "", "only_ptmalloc_from_main_arena"),
        ("only_from_not_main_arena", "", "only_ptmalloc_not_from_main_arena"),
        ("only_not_deallocated_after_at_least", "s(1)", "removed it in 2022"),
        ("only_not_deallocated_until_at_most", "s(1)", "removed it in 2022"),
    ] {
        let told = notes(&format!("for i in 0..3 {{ allocations().{name}({arg}); }}"));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with(&format!("{name}: bytehound ")), "{told:?}");
        assert!(told[0].contains(of), "{told:?}");
    }
    let told = notes("for i in 0..3 { s(0.5); }");
    assert!(told.len() == 1 && told[0].contains("500,000 seconds"), "{told:?}");
    assert!(notes("s(5); ms(0.5); allocations().only_ptmalloc_mmaped()").is_empty());
}

#[test]
fn scripts_without_limits_nest_as_deeply_as_the_stack_allows() {
    let b = bench(19, 100);
    let run = |code: &str| {
        prof_script::on_stack(|| {
            let (mut script, out) = engine(std::slice::from_ref(&b.data), None);
            let ran = script.run(code).map_err(|e| (e.kind, e.message));
            let lines = out.take().into_iter().map(|o| format!("{o:?}"));
            ran.map(|_| lines.collect::<String>())
        })
        .expect("a thread")
    };
    let deep = "fn f(n) { if n == 0 { 0 } else { 1 + f(n - 1) } } println(f(5000));";
    assert_eq!(run(deep).as_deref(), Ok("Line(\"5000\")"));
    let long = format!("graph(){};", ".add(allocations())".repeat(1000));
    assert_eq!(run(&long).as_deref(), Ok(""));
    for endless in [
        "fn f(n) { f(n + 1) } f(0)",
        "fn f(n) { [[#{ a: (1 + (2 * f(n + 1))) }]] } f(0)",
        "let f = |x| x; for i in 0..1_000_000 { let g = f; f = |x| g.call(x) + 1; } f.call(1)",
    ] {
        let (kind, message) = run(endless).expect_err(endless);
        assert_eq!(kind, ErrorKind::Stopped, "{endless}: {message}");
        assert!(message.contains("too deeply"), "{endless}: {message}");
    }
    let (_, message) = run("fn f(n) { if n == 0 { throw \"x\" } else { f(n - 1) } } f(900)")
        .expect_err("an error");
    assert_eq!(message, "x, in the function f");
}

#[test]
fn objects_print_in_lines_that_people_read() {
    let mut b = bench(13, 300);
    let printed = b.lines(
        "println(()); println([(), 'c', \"a\\\"b\"]); println(#{ a: (), b: [()] });\n\
         println(\"{} {}\", (), [()]); let n = 0; let long = []; while n < 60 { long.push(n); n += 1; }\n\
         println(#{ numbers: long, one: #{ two: 2 } });",
    );
    let short = ["()", "[(), 'c', \"a\\\"b\"]", "#{\"a\": (), \"b\": [()]}", "() [()]"];
    assert_eq!(printed[..4], short);
    let lines: Vec<&str> = printed[4].lines().collect();
    assert_eq!((lines[0], lines[1]), ("#{", "  \"numbers\": ["), "{}", printed[4]);
    assert!(lines.iter().all(|l| l.chars().count() <= 100), "{}", printed[4]);
    assert_eq!(lines[lines.len() - 3..], ["  ],", "  \"one\": #{\"two\": 2}", "}"]);
    let fields = b.lines(
        "let l = allocations().leaks()[0]; println(l); println(allocations().by_thread()[0]);",
    );
    for kind in ["\"class\": \"", "\"bytes\": ", "\"allocations\": AllocationList"] {
        assert!(fields[0].contains(kind), "{}", fields[0]);
    }
    assert!(
        fields[1].contains("\"peak_bytes\": ") && !fields[1].contains("\"peak_bytes\": 0,"),
        "{}",
        fields[1]
    );
}

/// What scripts in a server can nest: up to the limits on arrays and maps, and on calls of functions.
#[test]
fn values_that_are_nested_deeply_are_no_end_of_the_process() {
    let ran = prof_script::on_stack(|| {
        let mut b = bench(13, 100);
        let nest = "let a = []; for i in 0..3000 { a = [a]; } let m = #{}; for i in 0..500 { m = #{ a: [m] }; }\n";
        for ask in [
            "println(a); println(m);",
            "let t = `${a}` + m.to_string();",
            "a == [a] || m == #{ a: [m] }",
            "let b = a; b += a;",
            "throw a;",
        ] {
            let _ = b.script.run(&format!("{nest}{ask}"));
        }
        let deep = b.lines(&format!("{nest}println(a);"));
        assert!(deep[0].contains('…') && deep[0].len() < 10_000, "{:.200}", deep[0]);
        let inner = format!("{}f(n + 1){}", "[".repeat(30), "]".repeat(30));
        let e = b.script.run(&format!("fn f(n) {{ {inner} }} f(0)")).expect_err("too deep");
        assert!(e.message.contains("overflow") || e.message.contains("deep"), "{e}");
    });
    ran.expect("a thread");
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
fn texts_of_other_systems_are_scripts() {
    let mut b = bench(7, 20);
    for code in
        ["\u{feff}println(1);\r\nprintln(2);\r\n", "\u{feff}#!/bin/x\nprintln(1); println(2);"]
    {
        assert_eq!(b.lines(code), ["1", "2"], "{code:?}");
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
            "only_passing_through_function: ",
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
        "let a = [1]; loop { a += a; }",
        "let a = [1]; loop { a = [a, a]; }",
        "let m = #{}; let n = 0; loop { m[`${n}`] = n; n += 1; }",
        "let a = []; a.pad(1000000000, 1);",
        "let s = \"\"; s.pad(1000000000, 'x');",
        "let b = blob(1000000000, 1);",
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
    // Functions that would make much of little, whatever they are called by.
    for code in [
        "let f = \"\"; f.pad(200000, \"{0}\"); println(format(f, [f]));",
        "let f = \"\"; f.pad(200000, \"{0}\"); println(f, f);",
        "let s = \"\"; s.pad(200000, \"x\"); let t = s + \"y\"; s.replace(\"x\", t);",
        "let s = \"\"; s.pad(200000, \"x\"); let t = s + \"y\"; s.replace('x', t);",
        "let a = [0]; a.pad(90, 0); let s = \"\"; s.pad(200000, \"x\"); for i in 0..90 { a[i] = s; } println(a);",
        "let a = [0]; a.pad(200, 0); let s = \"\"; s.pad(200000, \"x\"); for i in 0..200 { a[i] = s; } `${a}`;",
        "let a = [0]; a.pad(90, 0); let s = \"\"; s.pad(200000, \"x\"); for i in 0..90 { a[i] = s; } print(a);",
        "let m = #{}; let s = \"\"; s.pad(200000, \"x\"); for i in 0..90 { m[`k${i}`] = s; } m.to_json();",
    ] {
        let e = failing(code, Some(limits));
        let refused = ["longer than 4 MiB", "a value becomes too large (length of string)"];
        assert!(refused.iter().any(|text| e.message.contains(text)), "{code}: {e}");
    }
    for code in ["loop { print(1); }", "loop { debug(1); }"] {
        let e = failing(code, Some(limits));
        assert!(e.message.contains("lines"), "{code}: {e}");
    }
    // These functions make a value of each letter.
    for code in
        ["s.split()", "s.split(\"\")", "s.split_rev('x')", "s.split(\"x\", 9)", "s.to_chars()"]
    {
        let e = failing(&format!("let s = \"\"; s.pad(300000, \"x\"); {code}"), Some(limits));
        assert!(e.message.contains("longer than 256 KiB"), "{code}: {e}");
    }
    for name in ["only_passing_through_function(", "only(\"source\", "] {
        let code = format!("let s = \"\"; s.pad(300000, \"x\"); allocations().{name}s)");
        let e = failing(&code, Some(limits));
        assert!(e.message.contains("longer than 256 KiB"), "{code}: {e}");
    }
    let e = failing("let s = \"\"; s.pad(3000000, \"x\"); throw s", Some(limits));
    assert!(e.message.len() < 20_000, "{}", e.message.len());
    // What grows by elements that are assigned.
    let small = Limits { memory: 64 << 20, operations: 50_000_000, ..limits };
    for change in ["m[`k${i}`] = s + i", "a[i] = s + i"] {
        let e = failing(
            &format!(
                "let s = \"\"; s.pad(200000, \"x\"); let m = #{{}}; let a = []; a.pad(20000, 0); let f = |x| x;\n\
                 for i in 0..20000 {{ {change}; }}"
            ),
            Some(small),
        );
        assert_eq!((e.kind, e.line), (ErrorKind::Stopped, Some(2)), "{change}: {e}");
        assert!(e.message.contains("more than 64 MiB"), "{change}: {e}");
    }
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

/// A value that holds a closure which has captured the value keeps itself alive.
#[test]
fn values_that_hold_themselves_end_with_their_script() {
    for code in [
        "let a = [0, allocations()]; let f = || a; a[0] = f;",
        "for i in 0..9 { let a = #{ x: allocations() }; let f = || a; a.f = [f]; }",
        "fn g(l) { let a = [l]; let f = |x| x + a.len(); a[0] = f; f.call(1) } g(allocations());",
        "let a = [allocations()]; let b = [0]; let f = || a; let g = || b; a[0] = [g, a[0]]; b[0] = f;",
    ] {
        let b = bench(3, 60);
        let (mut script, _) = engine(std::slice::from_ref(&b.data), Some(Limits::default()));
        let before = Arc::strong_count(&b.data);
        script.run(code).expect(code);
        drop(script);
        // The engine has held one.
        assert_eq!(Arc::strong_count(&b.data), before - 1, "{code}");
    }
}

/// The limits of a server let through what the functions on a large recording make.
#[test]
fn limits_leave_room_for_thousands_of_objects() {
    let b = bench(23, 100);
    let (mut script, out) = engine(std::slice::from_ref(&b.data), Some(Limits::default()));
    let code = "let all = []; let text = \"\"; text.pad(300, \"x\");\n\
                for i in 0..300 { all.push([]); for j in 0..50 { all[i].push(#{ a: text, b: i, c: text }); } }\n\
                println(all.len());\n\
                println(\" a b  c \".split()); println(\"a,b,c\".split(\",\")); println(\"a,b,c\".split(',', 2));\n\
                println(\"a,b,c\".split_rev(\",\", 2)); println(\"\".split(\",\")); println(\"ab\".split(\"x\"));\n\
                println(\"ab\".to_chars()); println(\"ab\".split(',', 0)); println(\"abc\".split(1));";
    assert_eq!(script.run(code), Ok(Ran::Whole));
    let text = |o: &Output| match o {
        Output::Line(text) => text.clone(),
        Output::File { .. } => String::new(),
    };
    let lines: Vec<String> = out.borrow().iter().map(text).collect();
    let expected = [
        "300",
        "[\"a\", \"b\", \"c\"]",
        "[\"a\", \"b\", \"c\"]",
        "[\"a\", \"b,c\"]",
        "[\"c\", \"a,b\"]",
        "[\"\"]",
        "[\"ab\"]",
        "['a', 'b']",
        "[\"ab\"]",
        "[\"a\", \"bc\"]",
    ];
    assert_eq!(lines, expected);
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
    let expected = [
        of(&|b| b.end.is_none()),
        of(&|b| b.end.is_some() && b.size > 3000),
        of(&|b| b.end.is_some() && b.size <= 3000),
    ];
    for (i, expected) in expected.iter().enumerate() {
        let values: Vec<u64> =
            serde_json::from_value(data["series"][i]["values"].clone()).expect("numbers");
        assert_eq!(&values, expected, "series {i}");
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

/// Code that is nearly right: pieces of the examples, put together at random, with the server's limits.
#[test]
fn code_that_is_put_together_at_random_ends() {
    let ran = prof_script::on_stack(|| {
        let b = bench(27, 200);
        let mut pieces: Vec<String> = [
            "(",
            ")",
            "[",
            "]",
            "{",
            "}",
            ";",
            "-1",
            "0",
            "9223372036854775807",
            "1e308",
            "()",
            "\"(\"",
            "loop ",
            "fn f(x) ",
            "|x| ",
            "throw ",
        ]
        .map(str::to_owned)
        .to_vec();
        for n in names() {
            pieces.extend(n.example.split_inclusive(['(', ')', '.', ';', ' ']).map(str::to_owned));
            pieces.push(n.example);
        }
        let mut r = Random(4321);
        let limits = Limits { operations: 3000, selections: 1 << 16, ..Limits::default() };
        let (mut ended, mut failed) = (0, 0);
        for _ in 0..3000 {
            let count = 1 + r.below(3);
            let code: String = (0..count)
                .map(|_| pieces[r.below(pieces.len() as u64) as usize].as_str())
                .collect();
            let (mut script, _) = engine(std::slice::from_ref(&b.data), Some(limits));
            let _ = (script.is_unfinished(&code), script.complete(&code));
            match script.run_and_print(&code) {
                Ok(_) => ended += 1,
                Err(e) => {
                    assert!(!e.message.contains("bug of prof"), "{code}: {e}");
                    failed += 1;
                }
            }
        }
        assert!(ended > 200 && failed > 300, "{ended} ended, {failed} failed");
    });
    ran.expect("a thread");
}
