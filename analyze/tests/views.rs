//! The views of `prof report` compared with naive counts over the same blocks: by function, file, module, thread and
//! size, merged, and as a tree; of all blocks and of some, at the end and before, and for samples.

mod common;

use common::world::{Block, World, make, write_to};
use common::{Maker, Random, START, Temp, target};
use prof_analyze::index::IndexOptions;
use prof_analyze::query::{Filter, Query};
use prof_analyze::report::{
    Ask, BlockStatsData, GroupBy, Grouped, Histogram, Merged, NodeData, RowData, SortKey, Style,
    SumData, Tree, ViewOptions,
};
use prof_analyze::{Analysis, Index};
use prof_trace::pack::Compress;
use prof_trace::records::{Module, Target};
use prof_trace::ticks::Ticks;
use std::collections::{BTreeMap, HashMap};

const THREADS: u32 = 4;
const NODES: u32 = 20;

/// Every seventh stack goes through malloc.
fn through_malloc(node: u32) -> bool {
    node.is_multiple_of(7)
}

/// Returns the function that asked for the blocks of a stack.
fn asker(node: u32) -> String {
    match through_malloc(node) {
        true => format!("g{}", node % 3),
        false => format!("f{}", node % 5),
    }
}

/// Adds stacks: main calls g0 to g2, which call f0 to f4, or malloc, which is in another module.
fn stacks(m: &mut Maker) {
    for (number, name) in [(1, "app"), (2, "libc.so")] {
        let start = u64::from(number) << 32;
        let path = format!("/nonexistent/{name}");
        let module =
            Module { number, start, end: start + 0x10000, bias: start, path, ..Module::default() };
        m.module(&module);
    }
    let names = ["main", "g0", "g1", "g2", "f0", "f1", "f2", "f3", "f4"];
    let symbols: Vec<_> =
        names.iter().enumerate().map(|(i, n)| (i as u64 * 0x100 + 0x100, 0x100, *n)).collect();
    m.symbols(1, &symbols).symbols(2, &[(0x100, 0x100, "malloc")]);
    let app = |i: u64| (1 << 32) + i * 0x100 + 0x110;
    let mut pcs: Vec<[u64; 3]> = (0..9).map(|i| [i + 1, app(i), 1]).collect();
    pcs.push([10, (2 << 32) + 0x110, 2]);
    m.pcs(&pcs);
    let mut nodes = vec![[200, 0, 1], [100, 200, 2], [101, 200, 3], [102, 200, 4]];
    for n in 1..=NODES {
        let pc = if through_malloc(n) { 10 } else { 5 + u64::from(n % 5) };
        nodes.push([n.into(), 100 + u64::from(n % 3), pc]);
    }
    m.nodes(&nodes);
    for t in 1..=THREADS {
        m.thread(t, 1000 + t, &format!("worker{t}"));
    }
}

/// Makes a recording with stacks; if `sample_bytes` is not 0, its target claims that it is a sample.
fn recording(r: &mut Random, steps: usize, sample_bytes: u64) -> (World, Temp) {
    let w = make(r, steps, THREADS.into());
    let mut m = Maker::of(&Target { sample_bytes, ..target() });
    stacks(&mut m);
    let file = write_to(m, r, &w, THREADS, Compress::Fast).file();
    (w, file)
}

/// Figures by a naive count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    live: (u64, u64),
    peak: (u64, u64),
    allocations: u64,
    reallocations: u64,
    allocated: u64,
    temporary: u64,
}

fn count<'a>(blocks: impl Iterator<Item = &'a Block>, until: u64) -> Count {
    let mut c = Count::default();
    let mut events: Vec<(u64, bool, u64)> = Vec::new();
    for b in blocks.filter(|b| b.begin <= until) {
        let again = u64::from(b.position > 0);
        c.reallocations += again;
        c.allocations += 1 - again;
        c.allocated += b.size;
        events.push((b.begin, true, b.size));
        match b.end.filter(|(t, _)| *t <= until) {
            Some((t, _)) => {
                events.push((t, false, b.size));
                c.temporary += u64::from(b.temporary);
            }
            None => c.live = (c.live.0 + 1, c.live.1 + b.size),
        }
    }
    events.sort_unstable();
    let mut now = (0, 0);
    for (_, begins, size) in events {
        now = match begins {
            true => (now.0 + 1, now.1 + size),
            false => (now.0 - 1, now.1 - size),
        };
        c.peak = (c.peak.0.max(now.0), c.peak.1.max(now.1));
    }
    c
}

fn figures(f: &BlockStatsData) -> Count {
    Count {
        live: (f.live_count, f.live_bytes),
        peak: (f.peak_count, f.peak_bytes),
        allocations: f.allocations,
        reallocations: f.reallocations,
        allocated: f.allocated_bytes,
        temporary: f.temporary.expect("no sample"),
    }
}

/// Returns the figures without peaks, which do not add up.
fn sums(s: &SumData) -> Count {
    Count {
        live: (s.live_count, s.live_bytes),
        peak: (0, 0),
        allocations: s.allocations,
        reallocations: s.reallocations,
        allocated: s.allocated_bytes,
        temporary: s.temporary.unwrap_or(0),
    }
}

fn add(a: Count, b: Count) -> Count {
    Count {
        live: (a.live.0 + b.live.0, a.live.1 + b.live.1),
        peak: (0, 0),
        allocations: a.allocations + b.allocations,
        reallocations: a.reallocations + b.reallocations,
        allocated: a.allocated + b.allocated,
        temporary: a.temporary + b.temporary,
    }
}

fn whole(a: &Analysis) -> Count {
    let f = &a.totals().figures;
    Count {
        live: (f.live_count, f.live_bytes),
        peak: (0, 0),
        allocations: f.allocations,
        reallocations: f.reallocations,
        allocated: f.allocated_bytes,
        temporary: f.temporary,
    }
}

/// A filter, a moment, and an earlier moment to compare with.
struct Case {
    min_size: u64,
    at: Option<u64>,
    base: Option<u64>,
}

fn cases(end: u64) -> Vec<Case> {
    let middle = Some((START + end) / 2);
    let early = Some(START + (end - START) / 4);
    vec![
        Case { min_size: 0, at: None, base: None },
        Case { min_size: 2000, at: None, base: middle },
        Case { min_size: 0, at: middle, base: early },
        Case { min_size: 500, at: middle, base: None },
    ]
}

fn each(seed: u64, mut check: impl FnMut(&World, &Ask<'_>, &Case)) {
    let mut r = Random(seed);
    for _ in 0..4 {
        let (w, file) = recording(&mut r, 3000, 0);
        let index = Index::open(&file.0, &IndexOptions::default()).expect("a recording");
        for case in cases(index.analysis().end_ticks().0) {
            let mut filter = Filter::default();
            filter.set("min-size", &case.min_size.to_string()).expect("a size");
            let query = Query::new(&index, &filter).expect("a filter");
            let options = ViewOptions {
                top: 0,
                paths: 0,
                empty: true,
                at: case.at.map(Ticks),
                base: case.base.map(Ticks),
                ..ViewOptions::default()
            };
            let ask = Ask::new(&index, &query, options).expect("figures");
            check(&w, &ask, &case);
        }
    }
}

/// Compares rows with the naive figures of the blocks to which `of` gives the same key.
fn check_rows<'a, K: Ord + std::fmt::Debug>(
    w: &World,
    case: &Case,
    rows: impl Iterator<Item = (K, &'a RowData)>,
    of: impl Fn(&Block) -> K,
) {
    let mut naive: BTreeMap<K, Vec<&Block>> = BTreeMap::new();
    for b in w.blocks.iter().filter(|b| b.size >= case.min_size) {
        naive.entry(of(b)).or_default().push(b);
    }
    let mut seen = 0;
    for (key, row) in rows.filter(|(_, r)| r.figures.allocations + r.figures.reallocations > 0) {
        let blocks = naive.get(&key).unwrap_or_else(|| panic!("{key:?} is not there"));
        let after = count(blocks.iter().copied(), case.at.unwrap_or(u64::MAX));
        assert_eq!(figures(&row.figures), after, "{key:?}");
        if let Some(base) = case.base {
            let before = count(blocks.iter().copied(), base);
            let (b, c) = (row.before.expect("before"), row.change.expect("a change"));
            assert_eq!((b.live_count, b.live_bytes), before.live, "{key:?}");
            assert_eq!(c.live_bytes, after.live.1 as i64 - before.live.1 as i64);
            let calls = |c: &Count| (c.allocations + c.reallocations) as i64;
            assert_eq!(c.allocations, calls(&after) - calls(&before));
        }
        seen += 1;
    }
    let until = case.at.unwrap_or(u64::MAX);
    let there = naive.values().filter(|b| b.iter().any(|b| b.begin <= until)).count();
    assert_eq!(seen, there);
}

#[test]
fn groups_have_the_figures_of_a_naive_count() {
    each(11, |w, ask, case| {
        let by = |by| Grouped::new(ask, by).expect("rows");
        let name = |n: &Option<String>| n.clone().unwrap_or_default();
        let g = by(GroupBy::Function);
        check_rows(w, case, g.rows.iter().map(|r| (name(&r.name), &r.row)), |b| asker(b.node));
        let g = by(GroupBy::Module);
        check_rows(w, case, g.rows.iter().map(|r| (name(&r.name), &r.row)), |_| {
            "/nonexistent/app".to_owned()
        });
        let g = by(GroupBy::File);
        check_rows(w, case, g.rows.iter().map(|r| (name(&r.name), &r.row)), |_| String::new());
        let g = by(GroupBy::Thread);
        let tid = |t: u32| 1000 + t;
        check_rows(w, case, g.rows.iter().map(|r| (r.tid.unwrap_or(0), &r.row)), |b| tid(b.thread));
        let until = case.at.unwrap_or(u64::MAX);
        for r in &g.rows {
            let by_thread = |b: &&Block| {
                let end = b.end.filter(|e| e.0 <= until && tid(e.1) == r.tid.unwrap_or(0));
                end.is_some() && !b.continued && b.size >= case.min_size
            };
            let naive = w.blocks.iter().filter(by_thread).count() as u64;
            assert_eq!(r.frees, Some(naive), "{r:?}");
        }
    });
}

#[test]
fn a_histogram_has_every_block_in_its_place() {
    each(12, |w, ask, case| {
        let h = Histogram::new(ask).expect("sizes");
        let of = |size: u64| size.max(8).next_power_of_two();
        check_rows(w, case, h.sizes.iter().map(|s| (s.max_size, &s.row)), |b| of(b.size));
        for s in &h.sizes {
            assert!(s.min_size <= s.max_size && of(s.min_size) == s.max_size, "{s:?}");
        }
        assert_eq!(
            h.sizes.iter().fold(Count::default(), |a, s| add(a, figures(&s.row.figures))),
            { whole(&ask.analysis) }
        );
    });
}

#[test]
fn merged_places_and_their_stacks_add_up() {
    each(13, |w, ask, case| {
        let m = Merged::new(ask).expect("places");
        let name = |l: &prof_analyze::report::LocationData| {
            l.place.as_ref().and_then(|p| p.function.clone()).unwrap_or_default()
        };
        check_rows(w, case, m.locations.iter().map(|l| (name(l), &l.row)), |b| asker(b.node));
        for l in &m.locations {
            let stacks =
                l.stacks.iter().fold(Count::default(), |a, s| add(a, figures(&s.row.figures)));
            assert_eq!(Count { peak: (0, 0), ..figures(&l.row.figures) }, stacks);
            for s in &l.stacks {
                let at = usize::try_from(s.at).expect("a place");
                assert_eq!(s.frames[at].function.as_deref(), Some(name(l).as_str()));
            }
        }
    });
}

/// Checks that a node is the sum of its own stacks, its children and the rest.
fn check_node(n: &NodeData) {
    let mut all = n.own.as_ref().map_or(Count::default(), sums);
    all = n.children.iter().fold(all, |a, c| add(a, sums(&c.sums)));
    all = n.rest.as_ref().map_or(all, |r| add(all, sums(&r.sums)));
    assert_eq!(sums(&n.sums), all, "{:?}", n.place);
    n.children.iter().for_each(check_node);
}

fn leaves<'a>(n: &'a NodeData, path: &str, out: &mut HashMap<String, &'a SumData>) {
    let name = n.place.as_ref().and_then(|p| p.function.clone()).unwrap_or_default();
    let path = format!("{path}/{name}");
    if let Some(own) = &n.own {
        out.insert(path.clone(), own);
    }
    n.children.iter().for_each(|c| leaves(c, &path, out));
}

#[test]
fn trees_add_up_from_either_end() {
    each(14, |w, ask, case| {
        let until = case.at.unwrap_or(u64::MAX);
        let mut naive: HashMap<[String; 2], Vec<&Block>> = HashMap::new();
        for b in w.blocks.iter().filter(|b| b.size >= case.min_size && b.begin <= until) {
            let (g, n) = (format!("g{}", b.node % 3), b.node);
            let inner = if through_malloc(n) { "malloc".into() } else { format!("f{}", n % 5) };
            let inwards = format!("//main/{g}/{inner}");
            let outwards = match through_malloc(n) {
                true => format!("//{g}/main"),
                false => format!("//{inner}/{g}/main"),
            };
            naive.entry([inwards, outwards]).or_default().push(b);
        }
        for (i, bottom_up) in [false, true].into_iter().enumerate() {
            let options = ViewOptions { bottom_up, ..ask.options.clone() };
            let ask = Ask::new(ask.index, ask.query, options).expect("figures");
            let t = Tree::new(&ask);
            check_node(&t.tree);
            assert_eq!(sums(&t.tree.sums), whole(&ask.analysis));
            let mut found = HashMap::new();
            leaves(&t.tree, "", &mut found);
            let mut by_path: HashMap<&str, Count> = HashMap::new();
            for (paths, blocks) in &naive {
                let c = count(blocks.iter().copied(), until);
                let sum = by_path.entry(paths[i].as_str()).or_default();
                *sum = add(*sum, c);
            }
            assert_eq!(found.len(), by_path.len());
            for (path, c) in by_path {
                assert_eq!(sums(found[path]), c, "{path}");
            }
        }
        // The rest includes what is not shown.
        let cut = ViewOptions { top: 2, depth: 2, ..ask.options.clone() };
        let ask = Ask::new(ask.index, ask.query, cut).expect("figures");
        let t = Tree::new(&ask);
        check_node(&t.tree);
        assert_eq!(sums(&t.tree.sums), whole(&ask.analysis));
        let depth = |n: &NodeData| n.children.iter().any(|c| !c.children.is_empty());
        assert!(t.tree.children.iter().all(|c| !depth(c)), "{t:?}");
        assert!(t.text(Style::default()).contains("main"), "{t:?}");
    });
}

#[test]
fn samples_are_estimated_with_their_errors() {
    let mut r = Random(15);
    let (_, file) = recording(&mut r, 3000, 2000);
    let index = Index::open(&file.0, &IndexOptions::default()).expect("a recording");
    let query = Query::new(&index, &Filter::default()).expect("a filter");
    let options = ViewOptions { top: 0, paths: 0, empty: true, ..ViewOptions::default() };
    let ask = Ask::new(&index, &query, options).expect("figures");
    let totals = &ask.analysis.totals().figures;
    let near = |a: u64, b: u64, rows: usize| {
        assert!(a.abs_diff(b) <= rows as u64, "{a} and {b}, {rows} rows")
    };
    for by in [GroupBy::Function, GroupBy::Thread, GroupBy::Module] {
        let g = Grouped::new(&ask, by).expect("rows");
        let sum = |of: fn(&BlockStatsData) -> u64| g.rows.iter().map(|r| of(&r.row.figures)).sum();
        near(sum(|f| f.live_bytes), totals.live_bytes, g.rows.len());
        near(sum(|f| f.allocations), totals.allocations, g.rows.len());
        near(sum(|f| f.allocated_bytes), totals.allocated_bytes, g.rows.len());
        for r in g.rows.iter().filter(|r| r.row.figures.allocations > 0) {
            assert!(r.row.figures.allocations_stderr.is_some_and(|e| e > 0), "{r:?}");
            assert_eq!(r.row.figures.temporary, None);
        }
        let text = g.text(Style::default());
        assert!(text.contains('±') && !text.contains("TEMPORARY"), "{text}");
    }
    let h = Histogram::new(&ask).expect("sizes");
    let all = h.sizes.iter().map(|s| s.row.figures.live_bytes).sum::<u64>();
    near(all, totals.live_bytes, h.sizes.len());
    let frees: u64 = Grouped::new(&ask, GroupBy::Thread)
        .expect("rows")
        .rows
        .iter()
        .map(|r| r.frees.unwrap_or(0))
        .sum();
    // In the totals, frees are ends less reallocations, which is another estimate of the same figure.
    let whole = ask.analysis.totals();
    near(frees, whole.frees, 5 * whole.errors.frees as usize);
    let t = Tree::new(&ask);
    near(t.tree.sums.live_bytes, totals.live_bytes, 30);
}

#[test]
fn rows_come_in_the_order_that_is_asked_for() {
    let mut r = Random(16);
    let (_, file) = recording(&mut r, 3000, 0);
    let index = Index::open(&file.0, &IndexOptions::default()).expect("a recording");
    let query = Query::new(&index, &Filter::default()).expect("a filter");
    for (sort, name) in SortKey::ALL {
        for reverse in [false, true] {
            let options = ViewOptions { top: 0, sort, reverse, ..ViewOptions::default() };
            let ask = Ask::new(&index, &query, options).expect("figures");
            let g = Grouped::new(&ask, GroupBy::Function).expect("rows");
            let value = |r: &RowData| {
                let f = &r.figures;
                match sort {
                    SortKey::Size => f.live_bytes,
                    SortKey::Count => f.live_count,
                    SortKey::PeakSize => f.peak_bytes,
                    SortKey::PeakCount => f.peak_count,
                    SortKey::Allocated => f.allocated_bytes,
                    SortKey::Allocations => f.allocations,
                    SortKey::Age => r.oldest_live_age_ns.unwrap_or(0),
                    SortKey::Temporary => f.temporary.unwrap_or(0),
                    SortKey::First => r.first_ns.unwrap_or(0),
                    SortKey::Last => r.last_ns.unwrap_or(0),
                    SortKey::Interval => r.last_ns.unwrap_or(0) - r.first_ns.unwrap_or(0),
                    SortKey::PeakAt => r.peak_at_ns.unwrap_or(0),
                    SortKey::Total => r.total.map_or(0, |t| t.live_bytes),
                }
            };
            let mut values: Vec<u64> = g.rows.iter().map(|r| value(&r.row)).collect();
            assert!(values.len() > 4, "{name}: {values:?}");
            if reverse {
                values.reverse();
            }
            assert!(values.is_sorted_by(|a, b| a >= b), "{name}: {values:?}");
        }
    }
}
