//! Groups, pages of blocks and flame graphs, compared with the reports and with a naive evaluation.

mod common;

use common::world::{Block, World, describe, functions, make, write};
use common::{Random, START};
use prof_analyze::Index;
use prof_analyze::answers::{
    BlockSort, BlocksAsk, Cursor, Flame, FlameAsk, GroupKey, GroupsAsk, Metric, Transform, flame,
    flame_diff, groups, sandwich,
};
use prof_analyze::index::{IndexOptions, Keep};
use prof_analyze::query::{By, Filter, Query};
use prof_analyze::report::{Ask, GroupBy, Grouped, SortKey, ViewOptions};
use prof_trace::pack::Compress;
use std::collections::BTreeMap;

const NEVER: IndexOptions = IndexOptions {
    keep: Keep::Never,
    load: prof_analyze::LoadOptions { pending_bytes: 64 << 20 },
    dir: None,
};

const FILTERS: [&[(&str, &str)]; 5] = [
    &[],
    &[("min-size", "900")],
    &[("function", "f7_")],
    &[("lifetime", "leaked")],
    &[("to", "60%"), ("thread", "even")],
];

fn filter(given: &[(&str, &str)]) -> Filter {
    let mut f = Filter::default();
    given.iter().for_each(|(name, text)| f.set(name, text).expect("a filter"));
    f
}

fn recording(seed: u64, steps: usize) -> (World, Index) {
    let mut r = Random(seed * 0x9e37_79b9);
    let w = make(&mut r, steps, 7);
    let mut m = write(&mut r, &w, 7, Compress::None);
    describe(&mut m, START + 500);
    let index = Index::open(&m.file().0, &NEVER).expect("an index");
    (w, index)
}

#[test]
fn groups_are_those_of_the_reports_and_add_up() {
    let (_, index) = recording(3, 1500);
    for given in FILTERS {
        let query = Query::new(&index, &filter(given)).expect("a query");
        for at in [None, Some(index.analysis().duration_ns() / 2)] {
            let ticks = at.map(|ns| index.analysis().ticks_at(ns));
            let whole = query.analysis(ticks).expect("figures");
            for (key, by) in [
                (GroupKey::Function, GroupBy::Function),
                (GroupKey::Module, GroupBy::Module),
                (GroupKey::File, GroupBy::File),
                (GroupKey::Thread, GroupBy::Thread),
            ] {
                let options =
                    ViewOptions { top: 0, empty: true, at: ticks, ..ViewOptions::default() };
                let ask = Ask::new(&index, &query, options).expect("figures");
                let report = Grouped::new(&ask, by).expect("a report");
                let ask = GroupsAsk {
                    by: key,
                    at_ns: at,
                    peaks: true,
                    count: 1000,
                    ..GroupsAsk::default()
                };
                let got = groups(&index, &query, &ask).expect("groups");
                assert!(got.peaks);
                let rows: BTreeMap<_, _> =
                    got.rows.iter().map(|r| ((&r.name, &r.module, r.tid), r.figures)).collect();
                for row in report.rows.iter().filter(|r| r.row.figures.allocations > 0) {
                    let key = (&row.name, &row.module, row.tid);
                    assert_eq!(rows.get(&key), Some(&row.row), "{given:?} {by:?}");
                }
                // Without peaks all else is equal.
                let quick = GroupsAsk { peaks: false, ..ask };
                let quick = groups(&index, &query, &quick).expect("groups");
                assert_eq!((&quick.totals, quick.total_rows), (&got.totals, got.total_rows));
                for (a, b) in quick.rows.iter().zip(&got.rows) {
                    let (a, b) = (&a.figures.figures, &b.figures.figures);
                    assert_eq!(
                        (a.live_bytes, a.allocated_bytes),
                        (b.live_bytes, b.allocated_bytes)
                    );
                }
                let t = &whole.totals().figures;
                assert_eq!(
                    (got.totals.live_bytes, got.totals.allocations),
                    (t.live_bytes, t.allocations)
                );
                assert_eq!(got.totals.temporary, Some(t.temporary));
            }
        }
    }
}

#[test]
fn pages_of_groups_and_their_rest_are_all_groups() {
    let (w, index) = recording(4, 1500);
    for given in FILTERS {
        let query = Query::new(&index, &filter(given)).expect("a query");
        let whole = query.analysis(None).expect("figures");
        for by in [GroupKey::Stack, GroupKey::Size, GroupKey::Thread] {
            let ask = GroupsAsk {
                by,
                sort: SortKey::Allocated,
                count: 3,
                spark: 5,
                ..GroupsAsk::default()
            };
            let (mut seen, mut last, mut skip) = (Vec::new(), u64::MAX, 0);
            loop {
                let got = groups(&index, &query, &GroupsAsk { skip, ..ask }).expect("groups");
                let sum: u64 = got.rows.iter().map(|r| r.figures.figures.allocated_bytes).sum();
                assert_eq!(sum + got.rest.sums.allocated_bytes, got.totals.allocated_bytes);
                assert_eq!(got.totals.allocated_bytes, whole.totals().figures.allocated_bytes);
                assert_eq!(got.rest.rows + got.rows.len() as u64, got.total_rows);
                for r in &got.rows {
                    assert!(r.figures.figures.allocated_bytes <= last, "they are sorted");
                    last = r.figures.figures.allocated_bytes;
                    assert_eq!(r.spark.last(), Some(&r.figures.figures.live_bytes), "{by:?}");
                }
                seen.extend(got.rows.iter().map(|r| (r.id, r.stack, r.figures)));
                skip += 3;
                if got.rows.len() < 3 {
                    break;
                }
            }
            if by == GroupKey::Stack {
                assert_eq!(seen.len(), whole.groups().len());
                for g in whole.groups() {
                    let row = seen.iter().find(|r| r.1 == Some(g.node)).expect("a row");
                    assert_eq!(row.2.figures.live_count, g.figures.live_count);
                    assert_eq!(row.2.first_ns, Some(g.first.0 - START));
                    assert_eq!(row.2.last_ns, Some(g.last.0 - START));
                }
            }
        }
    }
    assert!(w.blocks.len() > 500);
    // Without a filter, or with one of stacks, peaks of stacks are known at once.
    for (given, known) in [(FILTERS[0], true), (FILTERS[1], false), (FILTERS[2], true)] {
        let query = Query::new(&index, &filter(given)).expect("a query");
        let n = index.analysis().groups().len();
        let (quick, peaks) = query.sums(By::Stacks, n, None).expect("sums");
        assert_eq!(peaks, known, "{given:?}");
        let slow = query.by(By::Stacks, n, None).expect("figures");
        assert_eq!(quick.len(), slow.len());
        for (a, b) in quick.iter().zip(&slow).filter(|_| known) {
            assert_eq!((a.node, a.figures), (b.node, b.figures));
        }
    }
}

fn naive(w: &World, given: &[(&str, &str)], end: u64) -> Vec<Block> {
    let runtime = end - START;
    let is = |b: &&Block| {
        given.iter().all(|(name, text)| match *name {
            "min-size" => b.size >= text.parse().expect("a number"),
            "function" => functions(b.node).contains(&7),
            "lifetime" => b.end.is_none(),
            "to" => b.begin - START <= (runtime as f64 * 0.6).round() as u64,
            _ => b.thread.is_multiple_of(2),
        })
    };
    w.blocks.iter().filter(is).copied().collect()
}

#[test]
fn pages_of_blocks_are_those_of_a_sorted_list() {
    // More rows than one block of them has.
    let (w, index) = recording(6, 16_000);
    assert!(index.rows() > 8192);
    let end = index.analysis().end_ticks().0;
    for given in FILTERS {
        let query = Query::new(&index, &filter(given)).expect("a query");
        let all = naive(&w, given, end);
        for sort in [BlockSort::Time, BlockSort::Address, BlockSort::Size, BlockSort::Lifetime] {
            let key = |b: &Block| match sort {
                BlockSort::Time => b.begin,
                BlockSort::Address => b.addr,
                BlockSort::Size => b.size,
                BlockSort::Lifetime => b.end.map_or(end, |e| e.0) - b.begin,
            };
            let mut keys: Vec<u64> = all.iter().map(key).collect();
            keys.sort_unstable();
            for descending in [false, true] {
                if descending {
                    keys.reverse();
                }
                let mut ask = BlocksAsk { sort, descending, count: 300, ..BlocksAsk::default() };
                let (mut seen, mut at) = (std::collections::HashSet::new(), 0);
                for _ in 0..4 {
                    let page = query.blocks(&ask).expect("a page");
                    assert_eq!(page.total, all.len() as u64, "{given:?}");
                    let expected = &keys[at.min(keys.len())..(at + 300).min(keys.len())];
                    let got: Vec<u64> = page
                        .blocks
                        .iter()
                        .map(|b| match sort {
                            BlockSort::Time => b.begin_ns + START,
                            BlockSort::Address => b.address,
                            BlockSort::Size => b.size,
                            BlockSort::Lifetime => b.lifetime_ns,
                        })
                        .collect();
                    assert_eq!(got, expected, "{given:?} {sort:?} {descending} {at}");
                    assert!(page.blocks.iter().all(|b| seen.insert(b.row)), "no block twice");
                    let skipped = BlocksAsk { skip: at as u64, after: None, ..ask };
                    let same = query.blocks(&skipped).expect("a page");
                    assert_eq!((&same.blocks, same.next), (&page.blocks, page.next));
                    at += 300;
                    assert_eq!(page.next.is_some(), at < keys.len());
                    let Some(next) = page.next else { break };
                    let text = next.to_string();
                    ask.after = Some(text.parse::<Cursor>().expect("a cursor"));
                }
            }
        }
    }
    assert!("x:1".parse::<Cursor>().is_err() && "1".parse::<Cursor>().is_err());
}

#[test]
fn a_block_has_its_chain_and_its_neighbours() {
    let (w, index) = recording(8, 3000);
    let query = Query::new(&index, &Filter::default()).expect("a query");
    let ask = BlocksAsk { count: 10_000, ..BlocksAsk::default() };
    let page = query.blocks(&ask).expect("a page");
    let by_begin: BTreeMap<u64, &Block> = w.blocks.iter().map(|b| (b.begin, b)).collect();
    let mut chains = 0;
    for row in page.blocks.iter().step_by(37) {
        let block = by_begin[&(row.begin_ns + START)];
        assert_eq!((row.address, row.size, row.stack), (block.addr, block.size, block.node));
        assert_eq!(row.end_ns, block.end.map(|e| e.0 - START));
        assert_eq!(index.analysis().meta().threads[&row.thread].tid, 100 + block.thread);
        assert_eq!((row.temporary, row.continued), (block.temporary, block.continued));
        let d = index.block_details(row.row).expect("readable").expect("a block");
        assert_eq!(d.block, *row);
        let mut chain: Vec<_> =
            w.blocks.iter().filter(|b| b.chain != 0 && b.chain == block.chain).collect();
        chain.sort_by_key(|b| b.position);
        let begins: Vec<u64> = chain.iter().map(|b| b.begin - START).collect();
        assert_eq!(d.chain.iter().map(|b| b.begin_ns).collect::<Vec<_>>(), begins);
        chains += usize::from(begins.len() > 1);
        let live = |b: &&Block| {
            b.begin <= block.begin && b.end.is_none_or(|e| e.0 > block.begin) && *b != block
        };
        let mut above: Vec<u64> =
            w.blocks.iter().filter(live).map(|b| b.addr).filter(|a| *a > block.addr).collect();
        let mut below: Vec<u64> =
            w.blocks.iter().filter(live).map(|b| b.addr).filter(|a| *a < block.addr).collect();
        above.sort_unstable();
        below.sort_unstable_by(|a, b| b.cmp(a));
        above.truncate(8);
        below.truncate(8);
        assert_eq!(d.above.iter().map(|b| b.address).collect::<Vec<_>>(), above);
        assert_eq!(d.below.iter().map(|b| b.address).collect::<Vec<_>>(), below);
    }
    assert!(chains > 5, "{chains}");
    assert!(index.block_details(index.rows()).expect("readable").is_none());
}

/// Checks that children, own values and others add up to each node; returns the values by path of names.
fn check(f: &Flame) -> BTreeMap<Vec<String>, (u64, u64)> {
    let n = f.parent.len();
    let mut sums: Vec<u64> = (0..n).map(|i| f.own[i] + f.others_value[i]).collect();
    for i in 1..n {
        assert!((f.parent[i] as usize) < i, "nodes stand behind their parents");
        sums[f.parent[i] as usize] += f.value[i];
    }
    assert_eq!(sums, f.value);
    assert_eq!(f.value[0], f.total);
    let mut paths: Vec<Vec<String>> = vec![Vec::new()];
    for i in 1..n {
        let mut path = paths[f.parent[i] as usize].clone();
        path.push(f.names[f.name[i] as usize].function.name.clone());
        paths.push(path);
    }
    let base = |i: usize| f.base.get(i).copied().unwrap_or(0);
    paths.into_iter().enumerate().map(|(i, p)| (p, (f.value[i], base(i)))).collect()
}

/// Returns the values by path of a naive evaluation; `path` makes the path of the functions, the outermost first.
fn paths(
    blocks: &[Block],
    path: &dyn Fn(Vec<u32>) -> Option<Vec<u32>>,
) -> BTreeMap<Vec<String>, u64> {
    let mut all = BTreeMap::new();
    *all.entry(Vec::new()).or_default() += 0;
    for b in blocks {
        let stack: Vec<u32> = functions(b.node).into_iter().rev().collect();
        let Some(path) = path(stack) else { continue };
        for n in 0..=path.len() {
            let names = path[..n].iter().map(|f| format!("f{f}_")).collect::<Vec<_>>();
            *all.entry(names).or_default() += b.size;
        }
    }
    all
}

fn id_of(index: &Index, name: &str) -> u32 {
    let all = index.stacks().functions();
    all.iter().position(|f| f.name == name).expect("a function") as u32
}

#[test]
fn flame_graphs_have_the_sums_of_their_stacks() {
    let (w, index) = recording(9, 2000);
    let end = index.analysis().end_ticks().0;
    let seven = id_of(&index, "f7_");
    let everything = FlameAsk { metric: Metric::Allocated, prune: 0, ..FlameAsk::default() };
    for given in FILTERS {
        let query = Query::new(&index, &filter(given)).expect("a query");
        let blocks = naive(&w, given, end);
        let look = |ask: &FlameAsk, path: &dyn Fn(Vec<u32>) -> Option<Vec<u32>>| {
            let got = check(&flame(&index, &query, ask).expect("a flame graph"));
            let got: BTreeMap<_, _> = got.into_iter().map(|(p, v)| (p, v.0)).collect();
            assert_eq!(got, paths(&blocks, path), "{given:?} {ask:?}");
        };
        look(&everything, &Some);
        let up = FlameAsk { bottom_up: true, ..everything.clone() };
        look(&up, &|s| Some(s.into_iter().rev().collect()));
        look(&FlameAsk { depth: 2, ..everything.clone() }, &|mut s| {
            s.truncate(2);
            Some(s)
        });
        let of = |t: Transform| FlameAsk { transforms: vec![t], ..everything.clone() };
        look(&of(Transform::Focus(seven)), &|s| {
            s.iter().position(|f| *f == 7).map(|at| s[at..].to_vec())
        });
        look(&of(Transform::Drop(seven)), &|s| (!s.contains(&7)).then_some(s));
        look(&of(Transform::Merge(seven)), &|s| Some(s.into_iter().filter(|f| *f != 7).collect()));
        let root = vec![id_of(&index, "f4_"), id_of(&index, "f5_")];
        look(&FlameAsk { root, ..everything.clone() }, &|s| {
            s.starts_with(&[4, 5]).then(|| s[2..].to_vec())
        });
        let s = sandwich(&index, &query, |f| f == seven, &everything).expect("a sandwich");
        let through = |s: Vec<u32>| s.iter().position(|f| *f == 7).map(|at| (s, at));
        let values =
            |f: &Flame| -> BTreeMap<_, _> { check(f).into_iter().map(|(p, v)| (p, v.0)).collect() };
        let callees = paths(&blocks, &|s| through(s).map(|(s, at)| s[at..].to_vec()));
        assert_eq!(values(&s.callees), callees);
        let callers =
            paths(&blocks, &|s| through(s).map(|(s, at)| s[..=at].iter().rev().copied().collect()));
        assert_eq!(values(&s.callers), callers);
        // Pruning keeps the totals.
        for (prune, most) in [(10, 20_000), (0, 3), (2000, 1)] {
            let ask = FlameAsk { prune, most, ..everything.clone() };
            let small = flame(&index, &query, &ask).expect("a flame graph");
            check(&small);
            assert!(small.parent.len() <= most + 1);
            assert_eq!(small.total, blocks.iter().map(|b| b.size).sum::<u64>());
        }
    }
}

#[test]
fn flame_graphs_of_two_ranges_or_recordings_are_compared() {
    let (w, index) = recording(10, 2000);
    let (v, other) = recording(11, 1000);
    let ask = FlameAsk { metric: Metric::Allocated, prune: 0, ..FlameAsk::default() };
    let query = Query::new(&index, &Filter::default()).expect("a query");
    let base = Query::new(&other, &Filter::default()).expect("a query");
    let got = flame_diff((&index, &query), (&other, &base), &ask).expect("a flame graph");
    let (here, there) = (paths(&w.blocks, &Some), paths(&v.blocks, &Some));
    let got = check(&got);
    let value = |of: &BTreeMap<Vec<String>, u64>, p: &Vec<String>| of.get(p).copied().unwrap_or(0);
    for (path, values) in &got {
        assert_eq!(*values, (value(&here, path), value(&there, path)), "{path:?}");
    }
    assert!(here.keys().chain(there.keys()).all(|p| got.contains_key(p)));
    // The live bytes at the peak are the peak.
    let ask = FlameAsk { metric: Metric::Peak, ..ask };
    let peak = flame(&index, &query, &ask).expect("a flame graph").total;
    assert_eq!(peak, index.analysis().totals().figures.peak_bytes);
}
