//! Sampled and filtered recordings, made from programs whose exact figures are known.

mod common;

use common::{Maker, Random, alloc, free, realloc, target};
use prof_analyze::Analysis;
use prof_analyze::heap::{BlockStats, Errors, probability};
use prof_analyze::report::{Report, ReportOptions, SortKey, Style};
use prof_trace::capture::Capture;
use prof_trace::event::Event;
use prof_trace::pack::Compress;
use prof_trace::records::Target;
use prof_trace::size::{CodedSize, Header};
use prof_trace::ticks::Ticks;

const NODES: u32 = 6;

/// Returns everything that happened, in order. Addresses are never reused.
fn world(seed: u64, steps: usize) -> Vec<Event> {
    let mut r = Random(seed * 0x9e37_79b9 + 1);
    let (mut events, mut blocks, mut next, mut now) = (Vec::new(), Vec::new(), 16, 2000);
    for _ in 0..steps {
        now += 10;
        let node = 1 + r.below(u64::from(NODES)) as u32;
        let size = (16 << r.below(12)) + r.below(16) + u64::from(node) * 8;
        let pick = r.below(10);
        if pick < 2 && !blocks.is_empty() {
            let at = r.below(blocks.len() as u64) as usize;
            events.push(free(now, blocks.swap_remove(at)));
            continue;
        }
        next += 1 << 20;
        if pick < 4 && !blocks.is_empty() {
            let at = r.below(blocks.len() as u64) as usize;
            let old = std::mem::replace(&mut blocks[at], next);
            events.push(realloc(now - 5, now, old, next, size, node));
        } else {
            blocks.push(next);
            events.push(alloc(now, next, size, node));
        }
    }
    events
}

/// Returns what the hook records of it.
fn record(all: &[Event], c: &Capture, r: &mut Random) -> Analysis {
    let mut known = std::collections::HashSet::new();
    let mut count = 0;
    let mut last_rate = 0;
    // Where the distance changes, the thread says so with the next block that it picks.
    let mut picked = |size: u64| {
        count += 1;
        let rate = if c.adapts { 7 + (count / 97 % 9) as u8 } else { 0 };
        let sized = match rate == last_rate {
            true => size,
            false => CodedSize::with_rate(size, Header::default(), rate).0,
        };
        if !(c.min_size..=c.max_size).contains(&size) {
            return None;
        }
        let is_picked = match (c.sample_bytes, c.sample_every) {
            (0, 0..2) => true,
            // Each run begins at another allocation.
            (0, n) => (count + r.0 % n).is_multiple_of(n),
            _ => (r.below(1 << 40) as f64) < probability(c, size, rate) * (1u64 << 40) as f64,
        };
        last_rate = if is_picked { rate } else { last_rate };
        is_picked.then_some(sized)
    };
    let mut out = Vec::new();
    for e in all {
        match *e {
            Event::Alloc { time, addr, size, node } => {
                if let Some(size) = picked(size.0) {
                    known.insert(addr);
                    out.push(alloc(time.0, addr, size, node));
                }
            }
            Event::Free { addr, .. } => out.extend(known.remove(&addr).then_some(*e)),
            Event::Realloc { time_before, time, old, addr, size, node } => {
                let had = known.remove(&old);
                if let Some(size) = picked(size.0) {
                    known.insert(addr);
                    out.push(realloc(time_before.0, time.0, old, addr, size, node));
                } else if had {
                    out.push(free(time_before.0, old));
                }
            }
        }
    }
    let mut m = Maker::of(&Target {
        sample_bytes: c.sample_bytes,
        adapts: c.adapts.into(),
        sample_every: c.sample_every,
        min_size: c.min_size,
        max_size: c.max_size,
        ..target()
    });
    m.compress = Compress::Fast;
    m.pass(1500).events(1, &out).end(1_000_000);
    m.analysis()
}

/// Returns the estimated figures with their errors.
fn figures(f: &BlockStats, e: &Errors) -> Vec<(f64, f64)> {
    [
        (f.live_count, e.live_count),
        (f.live_bytes, e.live_bytes),
        (f.allocations, e.allocations),
        (f.reallocations, e.reallocations),
        (f.allocated_bytes, e.allocated_bytes),
    ]
    .map(|(v, e)| (v as f64, e as f64))
    .to_vec()
}

/// Returns the figures of the totals, then those of the groups by node.
fn all_figures(a: &Analysis) -> Vec<(f64, f64)> {
    let t = a.totals();
    let mut all = figures(&t.figures, &t.errors);
    all.push((t.frees as f64, t.errors.frees as f64));
    for node in 1..=NODES {
        let none = Default::default();
        let g = a.groups().iter().find(|g| g.node == node).unwrap_or(&none);
        all.extend(figures(&g.figures, &g.errors));
    }
    all
}

#[test]
fn estimates_have_no_bias_and_their_errors_are_true() {
    const ROUNDS: u64 = 300;
    let sampled =
        |sample_bytes, sample_every| Capture { sample_bytes, sample_every, ..Capture::default() };
    let events = world(5, 4000);
    let exact = all_figures(&record(&events, &Capture::default(), &mut Random(1)));
    assert!(exact.iter().all(|f| f.0 > 20.0 && f.1 == 0.0), "{exact:?}");
    // With few samples of small blocks the errors of counts are too small as often as not, but the mean is right.
    let adapts = Capture { adapts: true, ..sampled(1 << 15, 0) };
    for (capture, least_covered) in
        [(sampled(128, 0), 0.88), (sampled(20_000, 0), 0.0), (sampled(0, 7), 0.88), (adapts, 0.0)]
    {
        let mut sums = vec![(0.0, 0.0, 0.0, 0u64); exact.len()];
        for seed in 1..=ROUNDS {
            let mut r = Random(seed * 0x1234_5679);
            for _ in 0..20 {
                r.next();
            }
            let a = record(&events, &capture, &mut r);
            assert_eq!((a.totals().unknown_frees, a.totals().implied_frees), (0, 0));
            for (s, ((v, e), truth)) in sums.iter_mut().zip(all_figures(&a).iter().zip(&exact)) {
                s.0 += v;
                s.1 += v * v;
                s.2 += e * e;
                s.3 += u64::from((v - truth.0).abs() <= 2.0 * e);
            }
        }
        let n = ROUNDS as f64;
        for (i, ((sum, squares, variances, covered), truth)) in sums.iter().zip(&exact).enumerate()
        {
            let mean = sum / n;
            let variance = (squares / n - mean * mean).max(1.0);
            // Rounding may account for half a block.
            let off = (mean - truth.0).abs();
            assert!(
                off < 4.0 * (variance / n).sqrt() + 0.5,
                "{capture:?}, figure {i}: {mean} of {}",
                truth.0
            );
            if i >= 6 {
                continue; // a group may have one or two small blocks that are picked or are not
            }
            // The error is an upper bound for every Nth, which is more even than chance, and for frees, which are a
            // difference of dependent figures.
            let ratio = variances / n / variance;
            let most = if capture.sample_every > 0 || i == 5 { f64::MAX } else { 1.4 };
            assert!(
                (0.6..most).contains(&ratio),
                "{capture:?}, figure {i}: variance times {ratio}"
            );
            let covered = *covered as f64 / n;
            assert!(
                covered > least_covered,
                "{capture:?}, figure {i}: {covered} within two errors"
            );
        }
    }
}

#[test]
fn blocks_far_above_the_distance_are_exact() {
    let events: Vec<_> = (0..50).map(|i| alloc(2000 + i, 16 + i * 16, 1 << 20, 1)).collect();
    let capture = Capture { sample_bytes: 10_000, ..Capture::default() };
    let a = record(&events, &capture, &mut Random(3));
    let t = a.totals();
    assert_eq!((t.figures.live_count, t.figures.live_bytes), (50, 50 << 20));
    assert_eq!(t.errors, Errors::default());
    assert!(
        (probability(&capture, 0, 0) - 1e-4).abs() < 1e-7,
        "a block of no size counts as a byte"
    );
}

#[test]
fn the_peak_is_that_of_the_estimate() {
    // Grow to 1000 blocks, and fall to 100.
    let mut events: Vec<_> = (0..1000).map(|i| alloc(2000 + i, 16 + i * 16, 500, 1)).collect();
    events.extend((0..900).map(|i| free(4000 + i, 16 + i * 16)));
    let capture = Capture { sample_every: 10, ..Capture::default() };
    let t = *record(&events, &capture, &mut Random(8)).totals();
    assert_eq!((t.figures.peak_count, t.figures.peak_bytes), (1000, 500_000));
    // 100 blocks of weight 10 each give the root of 100 * 0.9 / 0.01.
    assert_eq!((t.errors.peak_count, t.errors.peak_bytes), (95, 47_434));
    assert!(t.peak_ticks < Ticks(4000) && t.figures.live_count == 100, "{t:?}");
    assert_eq!(t.frees, 900);
}

#[test]
fn filtered_figures_are_exact_and_say_what_is_missing() {
    let events = world(9, 3000);
    let capture = Capture { min_size: 100, max_size: 5000, ..Capture::default() };
    let a = record(&events, &capture, &mut Random(1));
    let t = a.totals();
    let all: Vec<u64> = events
        .iter()
        .filter_map(|e| match *e {
            Event::Alloc { size, .. } | Event::Realloc { size, .. } => Some(size.0),
            Event::Free { .. } => None,
        })
        .filter(|s| (100..=5000).contains(s))
        .collect();
    assert_eq!(t.figures.allocations + t.figures.reallocations, all.len() as u64);
    assert_eq!(t.figures.allocated_bytes, all.iter().sum::<u64>());
    assert_eq!((t.unknown_frees, t.errors), (0, Errors::default()));
    let report = Report::new(&a, &ReportOptions::default());
    let text = report.text(Style::default());
    let line =
        "\nfiltered   blocks smaller than 100 B or larger than 4.9 KiB are not in the recording\n";
    assert!(text.contains(line) && !text.contains('±'), "{text}");
    assert!(!text.contains("temporary") && report.head.totals.temporary.is_none(), "{text}");
    let v: serde_json::Value = serde_json::from_str(&report.json()).expect("JSON");
    assert_eq!(v["recording"]["capture"]["max_size"], 5000);
    assert!(v["totals"].get("live_bytes_stderr").is_none());
}

#[test]
fn estimates_say_that_they_are() {
    let events: Vec<_> = (0..100).map(|i| alloc(2000 + i, 16 + i * 16, 2048, 1)).collect();
    let capture = Capture { sample_every: 4, ..Capture::default() };
    let a = record(&events, &capture, &mut Random(4));
    let report =
        Report::new(&a, &ReportOptions { sort: SortKey::Allocations, ..Default::default() });
    let text = report.text(Style::default());
    for part in [
        "calls      100 ±17 allocations, 0 frees, 0 reallocations, 0 events lost\n",
        "sampled    one in 4 allocations of each thread; figures are estimates, ± their standard",
        "live       200.0 KiB ±34.6 in 100 ±17 blocks\n",
        "[count/peak: 100 ±17/100 ±17] [size/peak: 200.0 KiB ±34.6/200.0 KiB ±34.6]",
        "[allocations: 100 ±17]",
        "unknown    frees of blocks that are not in the recording are not counted\n",
        "traced     200.0 KiB ±34.6 live in 100 ±17 blocks\n",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let v: serde_json::Value = serde_json::from_str(&report.json()).expect("JSON");
    for (pointer, value) in [
        ("/recording/capture/sample_every", 4),
        ("/totals/live_bytes", 204_800),
        ("/totals/live_bytes_stderr", 35_472),
        ("/groups/0/live_count_stderr", 17),
        ("/rest/live_bytes_stderr", 0),
    ] {
        assert_eq!(v.pointer(pointer).and_then(|v| v.as_u64()), Some(value), "{pointer}");
    }
    let none = Report::new(&a, &ReportOptions { sort: SortKey::Temporary, ..Default::default() });
    assert!(none.text(Style::default()).contains("temporary allocations are not known"));
}
