//! Timelines compared with a naive evaluation, on random programs.

mod common;

use common::world::{Block, World, make, write};
use common::{Maker, Random, START, target};
use prof_analyze::index::{IndexOptions, Keep};
use prof_analyze::query::{Band, By, Filter, Query, Span, Timeline};
use prof_analyze::{Index, Job};
use prof_trace::pack::Compress;
use prof_trace::records::Target;

const NEVER: IndexOptions = IndexOptions {
    keep: Keep::Never,
    load: prof_analyze::LoadOptions { pending_bytes: 64 << 20 },
    dir: None,
};

/// A filter, and whether it selects a block.
type Case = (Vec<(&'static str, String)>, Box<dyn Fn(&Block) -> bool>);

fn cases(r: &mut Random, runtime: u64) -> Vec<Case> {
    let (size, from, to) = (r.below(5000), r.below(runtime), r.below(runtime));
    let (from, to) = (from.min(to), from.max(to));
    let node = 1 + r.below(20) as u32;
    let one = |name, text: String| vec![(name, text)];
    vec![
        (Vec::new(), Box::new(|_| true)),
        (one("min-size", "0".into()), Box::new(|_| true)),
        (one("min-size", size.to_string()), Box::new(move |b| b.size >= size)),
        (one("lifetime", "leaked".into()), Box::new(|b| b.end.is_none())),
        (one("lifetime", "temporary".into()), Box::new(|b| b.temporary)),
        (one("stacks", node.to_string()), Box::new(move |b| b.node == node)),
        (
            vec![("from", format!("{from}ns")), ("to", format!("{to}ns"))],
            Box::new(move |b| (from..=to).contains(&(b.begin - START))),
        ),
        (one("min-size", "1000000".into()), Box::new(|_| false)),
    ]
}

fn filter(given: &[(&str, String)]) -> Filter {
    let mut f = Filter::default();
    given.iter().for_each(|(name, text)| f.set(name, text).expect("a filter"));
    f
}

/// Computes a timeline by going through all columns for all events.
fn naive(blocks: &[Block], span: &Span, end: u64) -> Timeline {
    let mut events: Vec<(u64, bool, Block)> = Vec::new();
    for b in blocks {
        events.push((b.begin - START, true, *b));
        events.extend(b.end.map(|e| (e.0 - START, false, *b)));
    }
    events.sort_by_key(|e| (e.0, e.1));
    let mut t = Timeline {
        edges_ns: (0..=span.width).map(|i| span.edge_ns(i)).collect(),
        ..Timeline::default()
    };
    let before = |b: &&Block| b.begin - START < span.from_ns && b.end.is_none();
    let leaked = blocks.iter().filter(before);
    t.leaked_before = (leaked.clone().map(|b| b.size).sum(), leaked.count() as u64);
    for i in 0..span.width {
        let from = span.edge_ns(i);
        let to = match i + 1 == span.width {
            true if span.to_ns >= end => u64::MAX,
            true => span.to_ns + 1,
            false => span.edge_ns(i + 1),
        };
        let within: Vec<_> = events.iter().filter(|e| (from..to).contains(&e.0)).collect();
        for (band, of) in
            [(&mut t.live_bytes, (|b| b.size) as fn(&Block) -> u64), (&mut t.live_blocks, |_| 1)]
        {
            let step = |live: u64, e: &(u64, bool, Block)| match e.1 {
                true => live + of(&e.2),
                false => live - of(&e.2),
            };
            let mut live = events.iter().filter(|e| e.0 < from).fold(0, step);
            let (mut min, mut max) = (live, live);
            for e in &within {
                live = step(live, e);
                (min, max) = (min.min(live), max.max(live));
            }
            band.min.push(min);
            band.max.push(max);
            band.last.push(live);
        }
        let begun = || within.iter().filter(|e| e.1).map(|e| &e.2);
        let ended = || within.iter().filter(|e| !e.1).map(|e| &e.2);
        let count = |n: usize| n as u64;
        t.allocations.push(count(begun().filter(|b| b.position == 0).count()));
        t.reallocations.push(count(begun().filter(|b| b.position > 0).count()));
        t.frees.push(count(ended().filter(|b| !b.continued).count()));
        t.ends.push(count(ended().count()));
        t.allocated_bytes.push(begun().map(|b| b.size).sum());
        t.freed_bytes.push(ended().map(|b| b.size).sum());
        t.temporary.push(count(ended().filter(|b| b.temporary).count()));
        t.leaked_bytes.push(begun().filter(|b| b.end.is_none()).map(|b| b.size).sum());
        t.leaked_blocks.push(count(begun().filter(|b| b.end.is_none()).count()));
    }
    t
}

fn world(r: &mut Random, steps: usize) -> (World, Maker, u64) {
    let w = make(r, steps, 5);
    let m = write(r, &w, 5, Compress::None);
    let end = w.steps.last().expect("steps").1.time() + 1 - START;
    (w, m, end.0)
}

fn spans(r: &mut Random, end: u64) -> Vec<Span> {
    let mut spans = vec![Span { from_ns: 0, to_ns: end, width: 1 + r.below(50) as usize }];
    for width in [1, 7, 40] {
        let (a, b) = (r.below(end), r.below(end));
        spans.push(Span { from_ns: a.min(b), to_ns: a.max(b), width });
    }
    spans
}

#[test]
fn timelines_are_those_of_a_naive_evaluation() {
    let mut full = 0;
    for seed in 1..=6u64 {
        let mut r = Random(seed * 0x9e37_79b9);
        let (w, m, end) = world(&mut r, 800);
        let file = m.file();
        let index = Index::open(&file.0, &NEVER).expect("an index");
        assert_eq!(index.analysis().duration_ns(), end);
        for (given, selects) in cases(&mut r, end) {
            let blocks: Vec<Block> = w.blocks.iter().filter(|b| selects(b)).copied().collect();
            let query = Query::new(&index, &filter(&given)).expect("a query");
            for span in spans(&mut r, end) {
                let expected = naive(&blocks, &span, end);
                full += u64::from(expected.live_bytes.max.iter().any(|v| *v > 0));
                for exact in [false, true] {
                    let mut got = query.timeline(&span, exact).expect("a timeline");
                    // So short a recording has a step for each tick.
                    assert!(got.within_ns <= 1 && !(exact && got.within_ns > 0));
                    got.within_ns = 0;
                    assert_eq!(got, expected, "seed {seed}, {given:?}, {span:?}, {exact}");
                }
            }
        }
    }
    assert!(full > 60, "{full}");
}

/// Checks that a band is one that misses only what is shorter than `within`.
fn is_within(got: &Band, exact: &Band, what: &str) {
    for i in 0..got.min.len() {
        let around = i.saturating_sub(1)..=(i + 1).min(got.min.len() - 1);
        let least = around.clone().map(|k| exact.min[k]).min().unwrap_or(0);
        let most = around.map(|k| exact.max[k]).max().unwrap_or(0);
        assert!(got.min[i] >= least && got.max[i] <= most, "{what}, column {i}");
        assert!(got.min[i] <= got.last[i] && got.last[i] <= got.max[i], "{what}, column {i}");
    }
}

#[test]
fn long_recordings_have_coarser_buckets_that_add_up() {
    let mut r = Random(77);
    let (w, m, end) = world(&mut r, 25_000);
    let file = m.file();
    let index = Index::open(&file.0, &NEVER).expect("an index");
    let (course, totals) = (index.course(), index.analysis().totals());
    assert!(course.shift() >= 2 && course.buckets().len() > 8000, "{}", course.shift());
    let most = course.buckets().iter().map(|b| b.bytes.max).max();
    assert_eq!(most, Some(totals.figures.peak_bytes), "no bucket loses the peak");
    let most = course.buckets().iter().map(|b| b.blocks.max).max();
    assert_eq!(most, Some(totals.figures.peak_count));
    let all = Query::new(&index, &Filter::default()).expect("a query");
    let same = Query::new(&index, &filter(&[("min-size", "0".into())])).expect("a query");
    let span = Span { from_ns: 0, to_ns: end, width: 100 };
    let exact = all.timeline(&span, true).expect("a timeline");
    assert_eq!((exact.within_ns, exact.clone()), (0, naive(&w.blocks, &span, end)));
    for (query, steps) in [(&all, false), (&same, true)] {
        let got = query.timeline(&span, false).expect("a timeline");
        assert!(got.within_ns > 1 && got.within_ns < 100, "{}", got.within_ns);
        is_within(&got.live_bytes, &exact.live_bytes, "bytes");
        is_within(&got.live_blocks, &exact.live_blocks, "blocks");
        let sum = |v: &[u64]| v.iter().sum::<u64>();
        let f = &totals.figures;
        assert_eq!(sum(&got.allocations), f.allocations);
        assert_eq!(sum(&got.reallocations), f.reallocations);
        assert_eq!(sum(&got.allocated_bytes) - sum(&got.freed_bytes), f.live_bytes);
        assert_eq!(sum(&got.leaked_bytes), f.live_bytes);
        assert_eq!(sum(&got.leaked_blocks), f.live_count);
        assert_eq!(sum(&got.temporary), f.temporary);
        assert_eq!(got.live_bytes.last[99], f.live_bytes);
        if steps {
            assert_eq!(got.live_bytes.last, exact.live_bytes.last, "ends of columns are exact");
            assert_eq!((&got.frees, &got.ends), (&exact.frees, &exact.ends));
        }
    }
    // Part of the time is divided more finely than the course is.
    let span = Span { from_ns: end / 2, to_ns: end / 2 + 300, width: 300 };
    let got = all.timeline(&span, false).expect("a timeline");
    assert_eq!(Timeline { within_ns: 0, ..got }, naive(&w.blocks, &span, end));
}

#[test]
fn timelines_of_classes_end_as_their_blocks_do() {
    let mut r = Random(3);
    let (w, m, end) = world(&mut r, 2000);
    let file = m.file();
    let index = Index::open(&file.0, &NEVER).expect("an index");
    let groups = index.analysis().groups();
    let query = Query::new(&index, &filter(&[("min-size", "700".into())])).expect("a query");
    for span in spans(&mut r, end) {
        let got = query.timelines(&span, By::Stacks, groups.len()).expect("timelines");
        for (g, got) in groups.iter().zip(got) {
            let is = |b: &&Block| b.node == g.node && b.size >= 700;
            let blocks: Vec<Block> = w.blocks.iter().filter(is).copied().collect();
            assert_eq!(got, naive(&blocks, &span, end).live_bytes.last, "{span:?}");
        }
    }
}

#[test]
fn samples_are_estimated_over_time() {
    let mut r = Random(12);
    let (_, mut m, end) = world(&mut r, 10_000);
    let mut head = Maker::of(&Target { sample_bytes: 4096, ..target() }).bytes;
    head.extend_from_slice(&m.bytes[Maker::new().bytes.len()..]);
    m.bytes = head;
    let file = m.file();
    let index = Index::open(&file.0, &NEVER).expect("an index");
    let totals = index.analysis().totals();
    let all = Query::new(&index, &Filter::default()).expect("a query");
    let same = Query::new(&index, &filter(&[("min-size", "0".into())])).expect("a query");
    let span = Span { from_ns: 0, to_ns: end, width: 30 };
    let [course, steps] = [&all, &same].map(|q| q.timeline(&span, false).expect("a timeline"));
    let f = &totals.figures;
    for t in [&course, &steps] {
        let near = |a: u64, b: u64| assert!(a.abs_diff(b) <= 30, "{a} {b}");
        near(t.live_bytes.last[29], f.live_bytes);
        near(t.allocations.iter().sum(), f.allocations);
        near(t.allocated_bytes.iter().sum(), f.allocated_bytes);
        near(t.leaked_bytes.iter().sum(), f.live_bytes);
        near(t.frees.iter().sum(), totals.frees);
        assert_eq!(t.temporary.iter().sum::<u64>(), 0);
    }
    assert!(f.allocations > index.rows() / 2, "they are estimates");
    // The exact order of time has the same peak as the replay.
    let exact = same.timeline(&span, true).expect("a timeline");
    let most = exact.live_bytes.max.iter().max().copied().unwrap_or(0);
    assert!(most.abs_diff(f.peak_bytes) <= 1, "{most} {}", f.peak_bytes);
}

#[test]
fn the_resident_set_is_read_off_the_passes() {
    let mut m = Maker::new();
    m.pages(START, 10, 100).pages(START + 500, 30, 100).pages(START + 600, 20, 110);
    m.events(1, &[common::alloc(START + 10, 16, 5, 1)]).end(START + 1000);
    let file = m.file();
    let index = Index::open(&file.0, &NEVER).expect("an index");
    let query = Query::new(&index, &Filter::default()).expect("a query");
    let span = Span::whole(&index, 4);
    let t = query.timeline(&span, false).expect("a timeline");
    let (rss, vss) = (t.rss.expect("readings"), t.vss.expect("readings"));
    let pages = |v: &[u64]| v.iter().map(|b| b / 4096).collect::<Vec<_>>();
    assert_eq!(pages(&rss.min), [10, 10, 20, 20]);
    assert_eq!(pages(&rss.max), [10, 10, 30, 20]);
    assert_eq!(pages(&rss.last), [10, 10, 20, 20]);
    assert_eq!(pages(&vss.max), [100, 100, 110, 110]);
}

#[test]
fn a_cancelled_job_ends_every_query() {
    let mut r = Random(5);
    let (_, m, end) = world(&mut r, 3000);
    let file = m.file();
    let index = Index::open(&file.0, &NEVER).expect("an index");
    let query = Query::new(&index, &filter(&[("min-size", "1".into())])).expect("a query");
    let span = Span { from_ns: 0, to_ns: end, width: 10 };
    let job = Job::default();
    assert!(job.run(|| query.timeline(&span, true)).is_ok());
    assert!(job.progress().done > 0);
    job.cancel();
    job.run(|| {
        let is = |e: &dyn std::fmt::Display| assert_eq!(e.to_string(), "cancelled");
        is(&query.timeline(&span, false).expect_err("cancelled"));
        is(&query.by(By::Sizes, 62, None).expect_err("cancelled"));
        is(&query.spread(None).expect_err("cancelled"));
        is(&index.block_rows(&[0]).expect_err("cancelled"));
        let e = Index::open(&file.0, &NEVER).map(|_| ()).expect_err("cancelled");
        assert!(e.to_string().contains("cancelled"), "{e}");
    });
    assert!(query.timeline(&span, false).is_ok(), "other threads go on");
}
