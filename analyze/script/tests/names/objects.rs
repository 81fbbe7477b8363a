//! Objects and files against a naive evaluation: verdicts, differences, pages, tables, and what is written.

use super::*;
use std::collections::BTreeMap;

fn file(b: &mut Bench, code: &str) -> (String, FileKind, Vec<u8>) {
    b.lines(code);
    let out = b.out.borrow();
    match out.first() {
        Some(Output::File { path, kind, bytes, .. }) => (path.clone(), *kind, bytes.clone()),
        other => panic!("{code}: {other:?}"),
    }
}

fn live(blocks: &[Block]) -> Vec<&Block> {
    blocks.iter().filter(|b| b.end.is_none()).collect()
}

/// Live bytes and blocks of each stack.
fn by_node(blocks: &[Block]) -> BTreeMap<u32, (u64, u64)> {
    let mut sums: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for b in live(blocks) {
        let s = sums.entry(b.node).or_default();
        *s = (s.0 + b.size, s.1 + 1);
    }
    sums
}

fn leaks(b: &mut Bench) {
    let printed = b.lines(
        "for l in allocations().leaks() { let a = l.allocations; let k = a.only_leaked();\n\
         println(\"{} {} {}\", l.id, l.live_bytes, l.live_count);\n\
         assert(k.size() == l.live_bytes && k.len() == l.live_count, \"its blocks\");\n\
         assert(a[0].backtrace().id() == l.id, \"its stack\"); }",
    );
    let mut printed: Vec<String> = printed;
    printed.sort();
    // Of all stacks with live blocks; others are named if they are freed at the end.
    let expected = by_node(&b.w.blocks);
    for (node, (bytes, count)) in &expected {
        let line = format!("{node} {bytes} {count}");
        assert!(printed.contains(&line), "{line} is not in {printed:?}");
    }
    for line in &printed {
        let mut words = line.split(' ').map(|w| w.parse::<u64>().expect("a number"));
        let node = words.next().and_then(|n| u32::try_from(n).ok()).expect("a node");
        let figures = expected.get(&node).copied().unwrap_or_default();
        assert_eq!((words.next(), words.next()), (Some(figures.0), Some(figures.1)), "{line}");
    }
}

fn diff(b: &mut Bench) {
    // Of two lists, of which the first has a part of the second's blocks.
    let printed = b.lines(
        "let d = diff(allocations().only_smaller(2000), allocations());\n\
         println(\"{} {}\", d.total.live_bytes, d.total.live_count);\n\
         for s in d.stacks { println(\"{} {}\", s.change.live_bytes, s.change.live_count); }",
    );
    let large: Vec<Block> = b.w.blocks.iter().filter(|b| b.size >= 2000).copied().collect();
    let sums = by_node(&large);
    let of = |s: (u64, u64)| format!("{} {}", s.0, s.1);
    let all = sums.values().fold((0, 0), |a, s| (a.0 + s.0, a.1 + s.1));
    assert_eq!(printed[0], of(all));
    let mut rows: Vec<String> = printed[1..].iter().filter(|l| *l != "0 0").cloned().collect();
    let mut expected: Vec<String> = sums.values().map(|s| of(*s)).collect();
    rows.sort();
    expected.sort();
    assert_eq!(rows, expected);
    assert_eq!(b.lines("println(diff(allocations(), allocations()).total.live_bytes);"), ["0"]);
}

fn fragmentation(b: &mut Bench) {
    let printed = b.lines(
        "let f = allocations().fragmentation(); println(f.pages.count); println(f.totals.live_bytes);",
    );
    let live = live(&b.w.blocks);
    let mut pages: Vec<u64> =
        live.iter().flat_map(|b| b.addr / 4096..=(b.addr + b.size.max(1) - 1) / 4096).collect();
    pages.sort_unstable();
    pages.dedup();
    let bytes: u64 = live.iter().map(|b| b.size).sum();
    assert_eq!(printed, [pages.len().to_string(), bytes.to_string()]);
}

fn table(b: &mut Bench) {
    let words = |lines: &[String]| -> Vec<Vec<String>> {
        let words = |l: &String| l.split_whitespace().map(|w| w.replace(',', "")).collect();
        lines.iter().map(words).collect()
    };
    let printed = b.lines("table(allocations(), [\"size\", \"address\", \"stack\"]);");
    let mut all = b.w.blocks.clone();
    all.sort_by_key(|b| b.begin);
    let expected: Vec<Vec<String>> = all
        .iter()
        .map(|b| vec![b.size.to_string(), format!("{:#x}", b.addr), b.node.to_string()])
        .collect();
    assert_eq!(words(&printed[1..]), expected);
    // Numbers end, and texts begin, in the same column.
    let ends = |l: &String| l.find("0x").expect("an address");
    assert!(printed[1..].iter().all(|l| ends(l) == ends(&printed[1])), "{printed:?}");
    let groups = b.lines(
        "table(allocations().group_by_backtrace().sort_by_count(), [\"stack\", \"count\", \"size\"]);",
    );
    let t = Truth::of(&b.w);
    let mut expected: Vec<Vec<String>> = t
        .groups
        .iter()
        .map(|(node, blocks)| {
            let bytes: u64 = blocks.iter().map(|b| b.size).sum();
            vec![node.to_string(), blocks.len().to_string(), bytes.to_string()]
        })
        .collect();
    let mut rows = words(&groups[1..]);
    let counts: Vec<u64> = rows.iter().map(|r| r[1].parse().expect("a count")).collect();
    assert!(counts.is_sorted_by(|a, b| a >= b), "{counts:?}");
    rows.sort();
    expected.sort();
    assert_eq!(rows, expected);
}

fn saved(b: &mut Bench, name: &str) {
    let all = b.w.blocks.clone();
    let some: Vec<&Block> = all.iter().filter(|b| b.size > 1000).collect();
    let bytes: u64 = some.iter().map(|b| b.size).sum();
    let path = "x/y.svg";
    let code = format!("allocations().only_larger(1000).{name}(\"{path}\");");
    let (to, kind, content) = file(b, &code);
    assert_eq!(to, format!("/{path}"));
    let text = String::from_utf8_lossy(&content).into_owned();
    match name {
        "save_as_flamegraph" => {
            assert_eq!(kind, FileKind::Svg);
            let plain = text.replace(',', "");
            assert!(plain.contains(&format!("{bytes} bytes")), "{bytes} at the root: {text:.300}");
            for n in some.iter().flat_map(|b| functions(b.node)) {
                assert!(text.contains(&format!("f{n}_")), "f{n}_");
            }
        }
        "save_as_graph" => {
            assert_eq!(kind, FileKind::Svg);
            let graph = "graph().add(allocations().only_larger(1000)).save(\"x/y.svg\");";
            assert_eq!(file(b, graph).2, content, "it is the graph of one series");
        }
        other => panic!("{other} is not tested"),
    }
}

fn by_leaked_size(b: &mut Bench) {
    let printed = b.lines(
        "for g in allocations().group_by_backtrace().sort_by_leaked_size() { println(g.leaked_size()); }",
    );
    let kept = by_node(&b.w.blocks);
    let mut nodes: Vec<u32> = b.w.blocks.iter().map(|b| b.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let mut expected: Vec<u64> = nodes.iter().map(|n| kept.get(n).map_or(0, |s| s.0)).collect();
    expected.sort_unstable_by(|a, b| b.cmp(a));
    assert_eq!(printed, expected.iter().map(u64::to_string).collect::<Vec<_>>());
}

/// A report of the stacks with the most allocated bytes, as the command line has it.
fn report(b: &mut Bench) {
    let printed = b.lines("println(allocations().only_larger(100).report(2, \"allocated\"));");
    let mut sums: BTreeMap<u32, u64> = BTreeMap::new();
    let large = b.w.blocks.iter().filter(|b| b.size > 100);
    large.for_each(|b| *sums.entry(b.node).or_default() += b.size);
    let mut order: Vec<(u64, u32)> = sums.into_iter().map(|(node, bytes)| (bytes, node)).collect();
    order.sort_unstable();
    let text = printed.join("\n");
    let place = |i: usize| {
        let node = order[order.len() - i].1;
        let frame = format!("f{node}_");
        text.find(&frame).unwrap_or_else(|| panic!("{frame} is not in {text}"))
    };
    assert!(place(1) < place(2), "the stack with the most bytes comes first: {text}");
}

fn recordings(b: &Bench) {
    let other = bench(63, 200);
    let (mut script, out) = engine(&[b.data.clone(), other.data.clone()], None);
    let code = "for d in recordings() { println(d.allocations().len()); } info(\"said\");";
    assert_eq!(script.run(code), Ok(Ran::Whole));
    let line = |o: &Output| if let Output::Line(text) = o { text.clone() } else { panic!("{o:?}") };
    let lines: Vec<String> = out.borrow().iter().map(line).collect();
    let expected =
        [b.w.blocks.len().to_string(), other.w.blocks.len().to_string(), "note: said".into()];
    assert_eq!(lines, expected);
}

/// Names whose results are objects, files or tables; the other tests have the rest.
#[test]
fn objects_and_files_are_those_of_a_naive_evaluation() {
    let mut b = bench(61, 500);
    for n in names() {
        match n.name.as_str() {
            "leaks" => leaks(&mut b),
            "diff" => diff(&mut b),
            "fragmentation" => fragmentation(&mut b),
            "table" => table(&mut b),
            "sort_by_leaked_size" => by_leaked_size(&mut b),
            "report" => report(&mut b),
            "recordings" | "info" => recordings(&b),
            // No module has source files: the blocks are of two unknown files, one of each module.
            "by_file" => {
                let of = |odd| b.w.blocks.iter().filter(move |b| b.node % 2 == odd).map(|b| b.size);
                let mut expected = [of(0).sum::<u64>(), of(1).sum()];
                expected.sort_unstable_by(|a, b| b.cmp(a));
                let code = "for x in allocations().by_file() { println(x.allocated_bytes); }";
                assert_eq!(b.lines(code), expected.map(|n| n.to_string()));
            }
            name @ ("save_as_flamegraph" | "save_as_graph") => saved(&mut b, name),
            _ => {}
        }
    }
}

/// Fields whose names Rhai keeps for itself are reached by a dot as well.
#[test]
fn fields_with_reserved_names_are_fields() {
    let mut b = bench(62, 200);
    let code = "let x = allocations().by_function()[0]; println(x.module == x[\"module\"]);\n\
                let module = 5; println(module);\n\
                let o = #{ \"default\": 1, \"new\": #{ \"match\": 2 } }; println(o.default + o?.new.match);\n\
                o.new.match = 7; println(o.new.match); let f = |x| x + 1; println(f.call(2));";
    assert_eq!(b.lines(code), ["true", "5", "3", "7", "3"]);
    for code in
        ["let default = 1;", "new", "x.eval(\"1\")", "import \"a\" as b;", "let x = 1; x.import"]
    {
        assert!(b.script.check(code).is_err() || b.script.run(code).is_err(), "{code}");
    }
}

/// Returns the names that the tests of this folder know, by the pieces of text in them.
#[test]
fn every_name_is_in_a_test_of_its_values() {
    let texts = [
        include_str!("main.rs"),
        include_str!("each.rs"),
        include_str!("graphs.rs"),
        include_str!("maps.rs"),
        include_str!("objects.rs"),
        include_str!("running.rs"),
        include_str!("saved.rs"),
        include_str!("scans.rs"),
    ];
    let is_there = |name: &str| {
        texts.iter().any(|t| {
            [format!("\"{name}\""), format!(".{name}("), format!("{name}(")]
                .iter()
                .any(|p| t.contains(p.as_str()))
        })
    };
    let missing: Vec<String> = names()
        .iter()
        .filter(|n| !n.name.starts_with("only_") && n.name.starts_with(|c: char| c.is_alphabetic()))
        .filter(|n| n.of != "Graph" && n.of != "Map" && !is_there(&n.name))
        .map(|n| n.title())
        .collect();
    assert!(missing.is_empty(), "no test of values has {missing:#?}");
}
