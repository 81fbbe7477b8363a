//! Scans against a naive evaluation: what is reached is found by going there, with each holder left out in turn.

use super::*;
use prof_graph::{Edges, Heap, NONE, Naming, Root, RootEdge, Table};
use prof_trace::records::{Scan, ScanFigures, ScanRoot, ScanStack, root_kind};
use prof_trace::ticks::Ticks;
use serde_json::Value;
use std::collections::BTreeSet;

/// A scan of a random program: its live blocks, with random pointers.
pub(crate) struct Graph {
    ticks: u64,
    name: &'static str,
    blocks: Vec<Block>,
    /// The blocks that each block points to.
    to: Vec<Vec<u32>>,
    /// The blocks that each root points to.
    roots: Vec<Vec<u32>>,
}

impl Naming for Graph {
    fn root(&self, root: &Root) -> ScanRoot {
        let Root::Global(n) = root else { panic!("{root:?}") };
        ScanRoot { kind: root_kind::VARIABLE, name: format!("v{n}"), ..ScanRoot::default() }
    }

    fn class(&self, table: u64) -> Option<String> {
        Some(format!("{}Kind{}", 4 + table.to_string().len(), table))
    }

    fn stack(&self, number: u32) -> ScanStack {
        ScanStack::Node(number)
    }
}

impl Graph {
    fn new(r: &mut Random, w: &World, ticks: u64, name: &'static str) -> Self {
        let is_live = |b: &&Block| b.begin <= ticks && b.end.is_none_or(|e| e.0 > ticks);
        let mut blocks: Vec<Block> = w.blocks.iter().filter(is_live).copied().collect();
        blocks.sort_by_key(|b| b.addr);
        let n = blocks.len() as u64;
        let mut some = |most: u64| -> Vec<u32> {
            let set: BTreeSet<u32> = (0..r.below(most)).map(|_| r.below(n) as u32).collect();
            set.into_iter().collect()
        };
        let to = (0..n).map(|_| some(3)).collect();
        let roots = (0..5).map(|_| some(6)).collect();
        Self { ticks, name, blocks, to, roots }
    }

    fn heap(&self) -> Heap {
        // Blocks of the random programs overlap: a scan has none that do.
        let table: Table = self.blocks.iter().map(|b| (b.addr, b.size.min(16))).collect();
        let mut starts = vec![0];
        for to in &self.to {
            starts.push(starts[starts.len() - 1] + to.len() as u32);
        }
        let edge = |root: usize, to: &u32| RootEdge { root: root as u32, to: *to, at: 8 };
        let of_roots = self.roots.iter().enumerate();
        let edges = Edges {
            starts,
            to: self.to.concat(),
            roots: (0..self.roots.len() as u64).map(Root::Global).collect(),
            above: Vec::new(),
            of_roots: of_roots.flat_map(|(i, to)| to.iter().map(move |t| edge(i, t))).collect(),
            classes: self
                .blocks
                .iter()
                .map(|b| if b.node.is_multiple_of(3) { 0 } else { NONE })
                .collect(),
            tables: vec![7],
            left_out: 0,
        };
        let get = |at: u64| {
            let block = self.blocks.iter().find(|b| b.addr == at)?;
            Some((block.node, block.size))
        };
        Heap::new(table, edges, [], get)
    }

    fn write(&self, m: &mut common::Maker) {
        let figures = ScanFigures { scanned: 4096, took_ns: 5, ..ScanFigures::default() }.encode();
        let (ticks, name) = (self.ticks, self.name.to_owned());
        let head = Scan { ticks: Ticks(ticks), name, figures, ..Scan::default() };
        let put = |kind, payload: &[u8]| {
            m.put(kind, payload);
            Ok::<_, ()>(())
        };
        self.heap().save(head, self, put).expect("saved");
    }

    /// Returns the blocks that are reached without a root and without the blocks of a stack, each with the least number
    /// of blocks on a way to it.
    fn reached(&self, no_root: Option<usize>, no_stack: Option<u32>) -> HashMap<u32, usize> {
        let (mut found, mut length) = (HashMap::new(), 1);
        let roots = self.roots.iter().enumerate().filter(|(i, _)| Some(*i) != no_root);
        let mut next: Vec<u32> = roots.flat_map(|(_, to)| to.iter().copied()).collect();
        while !next.is_empty() {
            let mut further = Vec::new();
            for b in next {
                let is_gone = Some(self.blocks[b as usize].node) == no_stack;
                if !is_gone && !found.contains_key(&b) {
                    found.insert(b, length);
                    further.extend(self.to[b as usize].iter().copied());
                }
            }
            (next, length) = (further, length + 1);
        }
        found
    }

    /// Returns the blocks that would go without a root or a stack.
    fn retained(&self, root: Option<usize>, stack: Option<u32>) -> Vec<u32> {
        let rest = self.reached(root, stack);
        let all = self.reached(None, None).into_keys();
        all.filter(|b| !rest.contains_key(b)).collect()
    }

    fn sum(&self, blocks: &[u32]) -> (u64, u64) {
        (blocks.iter().map(|b| self.blocks[*b as usize].size).sum(), blocks.len() as u64)
    }

    fn all(&self, which: impl Fn(u32) -> bool) -> Vec<u32> {
        (0..self.blocks.len() as u32).filter(|b| which(*b)).collect()
    }

    /// Returns blocks as lists of scripts are read.
    fn places(&self, blocks: &[u32]) -> Vec<(u64, u64)> {
        let place = |b: &u32| (ns(self.blocks[*b as usize].begin), self.blocks[*b as usize].addr);
        let mut all: Vec<_> = blocks.iter().map(place).collect();
        all.sort_unstable();
        all
    }
}

/// Returns two scans of a program, of those of a hundred moments at which the most blocks are live.
pub(crate) fn graphs(r: &mut Random, w: &World) -> Vec<Graph> {
    let live = |ticks: u64| {
        let is_live = |b: &&Block| b.begin <= ticks && b.end.is_none_or(|e| e.0 > ticks);
        w.blocks.iter().filter(is_live).count()
    };
    let at = |part: usize| w.steps[w.steps.len() * part / 100].1.time().0;
    let mut moments: Vec<u64> = (1..100).map(at).filter(|t| live(*t) > 0).collect();
    moments.dedup();
    moments.sort_by_key(|t| std::cmp::Reverse(live(*t)));
    moments.truncate(2);
    moments.sort_unstable();
    moments.iter().zip(["first", ""]).map(|(t, name)| Graph::new(r, w, *t, name)).collect()
}

pub(crate) fn write_all(graphs: &[Graph], m: &mut common::Maker) {
    graphs.iter().for_each(|g| g.write(m));
}

fn numbers(line: &str) -> Vec<u64> {
    line.split(' ').filter_map(|w| w.parse().ok()).collect()
}

#[test]
fn scans_say_what_each_root_and_each_stack_retains() {
    for seed in [3, 5, 8] {
        let mut b = bench(seed, 1200);
        let graphs: Vec<_> = std::mem::take(&mut b.graphs);
        assert!(graphs.iter().all(|g| g.blocks.len() > 20), "too few blocks");
        heads(&mut b, &graphs);
        for (i, g) in graphs.iter().enumerate() {
            let s = format!("scan({})", i + 1);
            roots(&mut b, g, &s);
            stacks(&mut b, g, &s);
            lists(&mut b, g, &s);
            paths(&mut b, g, &s);
        }
        since(&mut b, &graphs);
        files(&mut b, &graphs[1]);
    }
}

fn heads(b: &mut Bench, graphs: &[Graph]) {
    let lines = b.lines(
        "for s in scans() { println(\"{} {} {}\", s.number(), s.name(), s.at() / ns(1)); println(s.len()); println(s.size()); }\n\
         println(data().scans().len()); println(data().scan(\"first\").number()); println(scan(\"last\").number());\n\
         println(scan(\"#1\"));\n\
         let f = scan(2).figures(); println(f.live.bytes); println(f.unreachable.blocks); println(f.roots); println(\"top_roots\" in f);",
    );
    let mut expected = Vec::new();
    for (i, g) in graphs.iter().enumerate() {
        let (bytes, blocks) = g.sum(&g.all(|_| true));
        expected.push(format!("{} {} {}", i + 1, g.name, ns(g.ticks)));
        expected.extend([blocks.to_string(), bytes.to_string()]);
    }
    let last = &graphs[1];
    let lost = last.blocks.len() - last.reached(None, None).len();
    expected.extend(["2", "1", "2"].map(String::from));
    let first = graphs[0].blocks.len();
    assert!(lines[9].starts_with("Scan (#1 first at ") && lines[9].contains(&format!("({first} ")));
    expected.push(lines[9].clone());
    let roots = last.roots.len();
    let live = last.sum(&last.all(|_| true)).0;
    expected.extend([live.to_string(), lost.to_string(), roots.to_string(), "false".into()]);
    assert_eq!(lines, expected);
}

fn roots(b: &mut Bench, g: &Graph, s: &str) {
    let lines = b.lines(&format!(
        "let s = {s}; let below = 0; let own = 0;\n\
         fn sum(s, x) {{ let n = if \"own\" in x {{ x.own_blocks }} else {{ 0 }}; for y in s.held_by(x) {{ n += sum(s, y); }} n }}\n\
         for x in s.roots() {{\n\
           println(`${{x.name}} ${{x.retained}} ${{x.retained_blocks}}`);\n\
           assert(x.kind == \"variable\" && sum(s, x) == x.retained_blocks, \"what it holds\");\n\
           below += x.retained; }}\n\
         let several = 0; for x in s.held_by_several() {{ several += x.retained; assert(sum(s, x) == x.retained_blocks, \"several\"); }}\n\
         println(below + several);"
    ));
    let mut expected: Vec<(u64, u64, String)> = Vec::new();
    for i in 0..g.roots.len() {
        let (bytes, blocks) = g.sum(&g.retained(Some(i), None));
        if blocks > 0 {
            expected.push((bytes, blocks, format!("v{i} {bytes} {blocks}")));
        }
    }
    let mut found = lines[..lines.len() - 1].to_vec();
    assert!(found.windows(2).all(|w| numbers(&w[0])[0] >= numbers(&w[1])[0]), "{found:?}");
    found.sort();
    let mut texts: Vec<String> = expected.into_iter().map(|e| e.2).collect();
    texts.sort();
    assert_eq!(found, texts);
    let reached: Vec<u32> = g.reached(None, None).into_keys().collect();
    assert_eq!(lines.last(), Some(&g.sum(&reached).0.to_string()));
}

fn stacks(b: &mut Bench, g: &Graph, s: &str) {
    let mut lines = b.lines(&format!(
        "for x in {s}.stacks() {{ println(`${{x.stack}} ${{x.own}} ${{x.own_blocks}} ${{x.retained}} ${{x.retained_blocks}} ${{x.at_least}} ${{x.class}}`); }}"
    ));
    let reached = g.reached(None, None);
    let nodes: BTreeSet<u32> = reached.keys().map(|b| g.blocks[*b as usize].node).collect();
    let line = |node: &u32| {
        let own: Vec<u32> =
            reached.keys().copied().filter(|b| g.blocks[*b as usize].node == *node).collect();
        let (own, retained) = (g.sum(&own), g.sum(&g.retained(None, Some(*node))));
        let class = if node.is_multiple_of(3) { "Kind7" } else { "" };
        format!("{node} {} {} {} {} false {class}", own.0, own.1, retained.0, retained.1)
    };
    let mut expected: Vec<String> = nodes.iter().map(line).collect();
    expected.sort();
    lines.iter_mut().for_each(|l| *l = l.replace("()", "").to_owned());
    lines.sort();
    assert_eq!(lines, expected);
}

fn lists(b: &mut Bench, g: &Graph, s: &str) {
    assert_eq!(b.blocks(&format!("{s}.allocations()")), g.places(&g.all(|_| true)));
    let reached = g.reached(None, None);
    let lost = g.all(|b| !reached.contains_key(&b));
    assert_eq!(b.blocks(&format!("{s}.unreachable()")), g.places(&lost));
    for i in 0..g.roots.len() {
        let code = format!(
            "let r = {s}.roots().filter(|r| r.name == \"v{i}\"); if r.len() == 1 {{ {s}.retained_by(r[0]) }} else {{ {s}.unreachable() - {s}.unreachable() }}"
        );
        assert_eq!(b.blocks(&code), g.places(&g.retained(Some(i), None)), "v{i}");
    }
    for node in [1, 2, 3] {
        let there = g.places(&g.retained(None, Some(node)));
        assert_eq!(b.blocks(&format!("{s}.retained_by({node})")), there, "{node}");
    }
}

fn paths(b: &mut Bench, g: &Graph, s: &str) {
    let reached = g.reached(None, None);
    for block in g.all(|b| b % 5 == 0) {
        let at = g.blocks[block as usize].addr;
        let code = format!(
            "let p = {s}.path(\"{at:#x}\"); println(p.blocks.len()); println(type_of(p.root) == \"()\");\n\
             if p.blocks.len() > 0 {{ println(p.blocks[p.blocks.len() - 1].address); }}"
        );
        let expected = match reached.get(&block) {
            None => vec!["0".to_owned(), "true".into()],
            Some(n) => vec![n.to_string(), "false".into(), format!("{at:#x}")],
        };
        assert_eq!(b.lines(&code), expected, "{at:#x}");
    }
    let nearest = |node: u32| {
        let of = reached.iter().filter(|(b, _)| g.blocks[**b as usize].node == node);
        of.map(|(_, n)| *n).min()
    };
    for x in b.lines(&format!("for x in {s}.stacks() {{ println(`${{x.stack}} ${{{s}.path(x).blocks.len()}} ${{{s}.path(x.stack).blocks.len()}}`); }}")) {
        let n = numbers(&x);
        let least = nearest(n[0] as u32).map(|n| n as u64);
        assert_eq!((least, n[1]), (Some(n[1]), n[2]), "{x}");
    }
}

fn since(b: &mut Bench, graphs: &[Graph]) {
    let lines = b.lines(
        "for x in scan(2).since(scan(1)) { println(`${x.name} ${x.before} ${x.before_blocks} ${x.after} ${x.after_blocks} ${x.change} ${x.change_blocks} ${x.was} ${x.is}`); }",
    );
    let of = |g: &Graph, i: usize| g.sum(&g.retained(Some(i), None));
    for i in 0..graphs[0].roots.len() {
        let (old, new) = (of(&graphs[0], i), of(&graphs[1], i));
        let less = |a: u64, b: u64| a as i64 - b as i64;
        let line = format!(
            "v{i} {} {} {} {} {} {} {} {}",
            old.0,
            old.1,
            new.0,
            new.1,
            less(new.0, old.0),
            less(new.1, old.1),
            old.1 > 0,
            new.1 > 0
        );
        assert_eq!(
            lines.contains(&line),
            old != new || lines.iter().any(|l| l.starts_with(&format!("v{i} "))),
            "{line} in {lines:?}"
        );
    }
}

/// The files of nodes and pointers have all roots, blocks and pointers of the scan.
fn graph_files(b: &mut Bench, g: &Graph) {
    let mut files = |code: &str| {
        b.out.borrow_mut().clear();
        b.script.run(code).unwrap_or_else(|e| panic!("{code}: {e}"));
        let file = |o: Output| match o {
            Output::File { path, kind, bytes, .. } => (path, kind, bytes),
            other => panic!("{code}: {other:?}"),
        };
        b.out.take().into_iter().map(file).collect::<Vec<_>>()
    };
    let all = files("scan(2).save_as_csv(\"x/graph.csv\");");
    let paths: Vec<_> = all.iter().map(|f| (f.0.as_str(), f.1)).collect();
    assert_eq!(paths, [("/x/graph.csv", FileKind::Csv), ("/x/graph.pointers.csv", FileKind::Csv)]);
    let lines = |i: usize| String::from_utf8(all[i].2.clone()).expect("text");
    let first = g.roots.len();
    let mut nodes = vec!["id,address,size,stack,kind,name,class,allocated_by".to_owned()];
    nodes.extend((0..first).map(|i| format!("{i},,,,variable,v{i},,")));
    let found = lines(0);
    let found: Vec<&str> = found.lines().collect();
    assert_eq!(found[..=first], nodes);
    for (i, block) in g.blocks.iter().enumerate() {
        let Block { addr, size, node, .. } = block;
        let class = if node.is_multiple_of(3) { "Kind7" } else { "" };
        let begin = format!("{},{addr},{size},{node},block,,{class},", first + i);
        assert!(found[1 + first + i].starts_with(&begin), "{begin}: {}", found[1 + first + i]);
    }
    assert_eq!(found.len(), 1 + first + g.blocks.len());
    let of_roots = g.roots.iter().enumerate();
    let from_roots = of_roots.flat_map(|(i, to)| to.iter().map(move |t| (i, *t as usize)));
    let of_blocks = g.to.iter().enumerate();
    let from_blocks =
        of_blocks.flat_map(|(i, to)| to.iter().map(move |t| (first + i, *t as usize)));
    let mut pointers: Vec<String> =
        from_roots.chain(from_blocks).map(|(i, t)| format!("{i},{}", first + t)).collect();
    pointers.sort_unstable();
    let found = lines(1);
    let ends = |l: &str| l.split(',').take(2).collect::<Vec<_>>().join(",");
    let mut found: Vec<String> = found.lines().skip(1).map(ends).collect();
    found.sort_unstable();
    assert_eq!(found, pointers);
    #[cfg(feature = "parquet")]
    {
        let files = files("scan(2).save_as_parquet(\"graph.parquet\");");
        let rows = files.iter().map(|f| saved::of_parquet(&f.2).len()).collect::<Vec<_>>();
        assert_eq!(rows, [first + g.blocks.len(), pointers.len()]);
        assert_eq!(files[1].0, "/graph.pointers.parquet");
    }
}

fn files(b: &mut Bench, g: &Graph) {
    let mut file = |code: &str| {
        b.out.borrow_mut().clear();
        b.script.run(code).unwrap_or_else(|e| panic!("{code}: {e}"));
        match b.out.take().pop() {
            Some(Output::File { bytes, kind, .. }) => {
                (String::from_utf8(bytes).expect("text"), kind)
            }
            other => panic!("{code}: {other:?}"),
        }
    };
    let (text, kind) = file("scan(2).save_as_json(\"a.json\");");
    let json: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((kind, &json["live"]["blocks"]), (FileKind::Json, &g.blocks.len().into()));
    let holding = (0..g.roots.len()).filter(|i| !g.retained(Some(*i), None).is_empty()).count();
    assert_eq!(json["top_roots"].as_array().map(Vec::len), Some(holding));
    let (html, kind) = file("scan(2).save_as_html(\"a.html\");");
    assert!(kind == FileKind::Html && html.contains("Who holds the memory of process 4000001"));
    graph_files(b, g);
    let text = b.lines("println(scan(2).report()); println(scan(2).report(1));");
    let reports = text.iter().map(|t| t.matches("=== stack #").count()).collect::<Vec<_>>();
    assert!(reports[0] > 1 && reports[1] == 1 && text[0].starts_with("scan #2 of 2, "), "{text:?}");
    for (wrong, why) in [
        ("scan(9)", "no scan"),
        ("scan(\"x\")", "#1 first at"),
        ("scan(1.5)", "number or the name"),
        ("scan(1).path(\"0x3\")", "no such block"),
        ("scan(1).path(true)", "Boolean"),
        ("scan(1).held_by(3)", "roots()"),
        ("scan(1).held_by(#{node: 99999})", "roots()"),
        ("scan(1).retained_by(\"x\")", "number of a stack"),
        ("scan(1).report(-1)", "negative"),
        ("scan(1).save_as_csv(\"/dev/stdout\")", "give a name that ends in .csv"),
    ] {
        let e = b.script.run(wrong).expect_err(wrong);
        assert!(e.message.contains(why), "{wrong}: {e}");
    }
}

#[test]
fn scans_count_as_memory_of_a_script_with_limits() {
    let b = bench(4, 1200);
    let limits = Limits { selections: 64, ..Limits::default() };
    let (mut script, _) = engine(std::slice::from_ref(&b.data), Some(limits));
    let e = script.run("scan(1).len()").expect_err("no memory");
    assert!(e.message.contains("lists and scans take more than"), "{e}");
}
