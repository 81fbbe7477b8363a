//! Recordings of several processes, joined: the figures of all blocks are the sums, also of blocks that are in the figures of
//! their recordings only.

mod common;

use common::figures::aggregated;
use common::remade::{by_node, open};
use common::world::{describe, make, write_to};
use common::{Maker, Random, START, Temp, alloc, free, target};
use prof_analyze::heap::{BlockStats, Group};
use prof_analyze::query::{By, Filter, Query, SIZE_CLASSES};
use prof_analyze::rewrite::{JoinOptions, fold, join, strip};
use prof_analyze::symbols::SymbolOptions;
use prof_analyze::{Analysis, Index, Note};
use prof_trace::chunk::{self, Next};
use prof_trace::derived::Zipped;
use prof_trace::event::Event;
use prof_trace::pack::Compress;
use prof_trace::records::{
    Census, CensusAt, CensusBlock, Folded, Joined, SizeStep, StackStep, Step, Stripped, Target,
    kind,
};
use prof_trace::ticks::Ticks;
use std::collections::HashMap;

/// The counter of the last process goes so many ticks ahead of that of the others: it was on another machine.
const AHEAD: u64 = 2_000_000;

/// Makes the recordings of three processes whose times overlap, and of one without events; `sample_bytes` 0: of all their
/// blocks. The last one has no end.
fn processes(seed: u64, sample_bytes: u64) -> Vec<Maker> {
    let one = |number: u32| {
        let mut r = Random((seed * 8 + u64::from(number)) * 0x51_7cc1_b727);
        let ahead = if number == 3 { AHEAD } else { 0 };
        let of = Target {
            pid: 4_000_001 + number,
            wall_ns: target().wall_ns + u64::from(number),
            start_ticks: Ticks(START + ahead),
            // Steps are at least 10 ticks apart.
            ticks_per_sec: 10_000,
            sample_bytes,
            ..target()
        };
        let mut m = Maker::of(&of);
        describe(&mut m, START + 50);
        if number == 1 {
            m.pass(START).pass(START + 60).end(START + 60);
            return m;
        }
        let mut w = make(&mut r, 800 + 900 * number as usize, 3);
        if number < 3 {
            return write_to(m, &mut r, &w, 3, Compress::None);
        }
        w.steps.iter_mut().for_each(|(_, event)| later(event, ahead));
        for part in w.steps.chunks(60) {
            m.pass(part[0].1.time().0);
            for thread in 1..=3 {
                let of_thread = part.iter().filter(|s| s.0 == thread).map(|s| s.1);
                m.events(thread, &of_thread.collect::<Vec<_>>());
            }
        }
        m.pass(w.steps.last().expect("a step").1.time().0 + 1);
        m
    };
    (0..4).map(one).collect()
}

fn later(event: &mut Event, by: u64) {
    match event {
        Event::Alloc { time, .. } | Event::Free { time, .. } => time.0 += by,
        Event::Realloc { time_before, time, .. } => {
            (time_before.0, time.0) = (time_before.0 + by, time.0 + by)
        }
    }
}

fn options() -> JoinOptions {
    JoinOptions {
        name: "some".into(),
        path: "/some".into(),
        symbols: SymbolOptions::default(),
        lost: 0,
        missed: 0,
        more: false,
    }
}

fn joined(files: &[Temp]) -> Temp {
    let options = options();
    let paths: Vec<_> = files.iter().map(|f| f.0.clone()).collect();
    let mut out = Vec::new();
    let done = join(&paths, &options, &mut out).expect("joined");
    assert_eq!((done.recordings, done.left_out), (files.len() as u64, Vec::new()));
    Temp::new(&out)
}

/// Leaves out what only blocks tell.
fn sums(f: &BlockStats) -> BlockStats {
    BlockStats { peak_bytes: 0, peak_count: 0, ..*f }
}

/// Checks the figures of a joined recording against those of one with all blocks. Peaks lie between the true ones and the
/// sums of all peaks.
fn assert_same(all: &Analysis, got: &Analysis, of_each: &[Index], seed: u64) {
    let (a, b) = (all.totals(), got.totals());
    assert_eq!(sums(&a.figures), sums(&b.figures), "{seed}");
    let counts = |t: &prof_analyze::heap::Totals| {
        (t.frees, t.unknown_frees, t.implied_frees, t.nonsense, t.last_ticks)
    };
    assert_eq!(counts(a), counts(b), "{seed}");
    let (mut most, mut by_stack) = ([0; 2], HashMap::<Vec<u64>, [u64; 2]>::new());
    for one in of_each {
        let f = one.analysis().totals().figures;
        most = [most[0] + f.peak_count, most[1] + f.peak_bytes];
        for g in one.analysis().groups() {
            let of_stack = by_stack.entry(stack(one.analysis(), g.node)).or_default();
            *of_stack = [of_stack[0] + g.figures.peak_count, of_stack[1] + g.figures.peak_bytes];
        }
    }
    let peaks = |f: &BlockStats| [f.peak_count, f.peak_bytes];
    let is_between = |low: [u64; 2], n: [u64; 2], high: [u64; 2]| {
        (0..2).all(|i| low[i] <= n[i] && n[i] <= high[i])
    };
    let (low, n) = (peaks(&a.figures), peaks(&b.figures));
    assert!(is_between(low, n, most), "{seed}: {low:?} {n:?} {most:?}");
    let (before, after) = (by_frames(all), by_frames(got));
    assert_eq!(before.len(), after.len(), "{seed}");
    for (frames, g) in &before {
        let new = &after[frames];
        assert_eq!(sums(&g.figures), sums(&new.figures), "{seed}, {frames:?}");
        let high = by_stack[frames];
        assert!(peaks(&new.figures).iter().zip(high).all(|(n, high)| *n <= high), "{seed}");
        if !got.meta().is_aggregated() {
            assert_eq!((g.first, g.last), (new.first, new.last), "{seed}, {frames:?}");
            assert!(is_between(peaks(&g.figures), peaks(&new.figures), high), "{seed}");
            assert!(is_between([0; 2], peaks(&new.figures), n), "{seed}: more than that of all");
        }
    }
    // One of them has no end.
    let joined = got.meta().joined.clone().unwrap_or_default();
    assert_eq!((got.complete(), joined.incomplete, joined.lost), (false, 1, 0), "{seed}");
}

/// Returns the code addresses of a stack.
fn stack(a: &Analysis, node: u32) -> Vec<u64> {
    a.meta().stack(node).iter().map(|pc| pc.address).collect()
}

fn by_frames(a: &Analysis) -> HashMap<Vec<u64>, Group> {
    let all: HashMap<_, _> = a.groups().iter().map(|g| (stack(a, g.node), *g)).collect();
    assert_eq!(all.len(), by_node(a.groups()).len(), "a stack has two groups");
    all
}

/// Folds some recordings, not all as far.
fn some_folded(all: &[Temp], seed: u64) -> Vec<Temp> {
    let one = |(i, file): (u64, &Temp)| {
        let bytes = std::fs::read(&file.0).expect("a recording");
        if (seed + i).is_multiple_of(3) {
            return Temp::new(&bytes);
        }
        let part = bytes.len() as u64 / (2 + (seed + i) % 3);
        let mut out = Vec::new();
        match fold(&file.0, part, &mut out) {
            Ok(done) => out.extend_from_slice(&bytes[done.cut as usize..]),
            // One without events has nothing to fold.
            Err(e) => assert_eq!(i, 1, "{e}"),
        }
        Temp::new(if out.is_empty() { &bytes } else { &out })
    };
    (0..).zip(all).map(one).collect()
}

#[test]
fn folded_recordings_have_the_same_sums_and_course() {
    for seed in 1..30 {
        let all: Vec<Temp> = processes(seed, 0).iter().map(Maker::file).collect();
        let exact = open(&joined(&all));
        let some = some_folded(&all, seed);
        let file = joined(&some);
        let got = open(&file);
        let of_each: Vec<Index> = all.iter().map(open).collect();
        assert_same(exact.analysis(), got.analysis(), &of_each, seed);
        assert!(got.analysis().notes().contains(&Note::PeaksAtMost));
        let ends = |a: &Index| {
            let last = *a.course().buckets().last().expect("a bucket");
            (last.counts, last.bytes.last, last.blocks.last)
        };
        assert_eq!(ends(&exact), ends(&got), "{seed}");
        assert_within(&exact, &got, seed);
    }
}

/// Checks that the course of all blocks lies within what the other one says.
fn assert_within(exact: &Index, got: &Index, seed: u64) {
    let (a, b) = (exact.course(), got.course());
    let at = |i: usize| a.start().0 + ((i as u64) << a.shift());
    let of = |ticks: u64| ((ticks.saturating_sub(b.start().0)) >> b.shift()) as usize;
    assert!(b.start() <= a.start(), "{seed}");
    for (i, bucket) in a.buckets().iter().enumerate() {
        let last = b.buckets().len() - 1;
        let span = of(at(i)).min(last)..=of(at(i + 1) - 1).min(last);
        let most = b.buckets()[span.clone()].iter().map(|b| b.bytes.max).max().unwrap_or(0);
        let least = b.buckets()[span].iter().map(|b| b.bytes.min).min().unwrap_or(0);
        let inside = least <= bucket.bytes.min && bucket.bytes.max <= most;
        assert!(inside, "{seed}, bucket {i}: {least} <= {:?} <= {most}", bucket.bytes);
    }
}

#[test]
fn estimates_of_folded_recordings_are_the_same() {
    for seed in 1..12 {
        let all: Vec<Temp> = processes(seed, 700).iter().map(Maker::file).collect();
        let exact = open(&joined(&all));
        let got = open(&joined(&some_folded(&all, seed)));
        // Sums of floating-point numbers depend on their order.
        let near = |x: u64, y: u64| x.abs_diff(y) <= 2 + x / 1_000_000;
        let of = |index: &Index| {
            let t = *index.analysis().totals();
            let (f, e) = (t.figures, t.errors);
            [
                f.allocations,
                f.reallocations,
                f.allocated_bytes,
                f.live_bytes,
                f.live_count,
                t.frees,
                e.allocated_bytes,
                e.live_bytes,
            ]
        };
        let pairs: Vec<_> = of(&exact).into_iter().zip(of(&got)).collect();
        assert!(pairs.iter().all(|(x, y)| near(*x, *y)), "{seed}: {pairs:?}");
        assert!(pairs[6].0 > 0 && pairs[7].0 > 0, "{pairs:?}");
        let after = by_frames(got.analysis());
        for (frames, g) in by_frames(exact.analysis()) {
            let (f, other) = (g.figures, after[&frames].figures);
            assert!(near(f.allocated_bytes, other.allocated_bytes), "{seed}: {f:?} {other:?}");
            assert!(f.peak_bytes <= other.peak_bytes + 2, "{seed}: {f:?} {other:?}");
        }
    }
}

#[test]
fn recordings_without_short_lived_blocks_have_the_same_sums() {
    for seed in 1..30 {
        let all: Vec<Temp> = processes(seed, 0).iter().map(Maker::file).collect();
        let exact = open(&joined(&all));
        let of_each: Vec<Index> = all.iter().map(open).collect();
        let some = of_each.iter().zip(&all).enumerate().map(|(i, (index, file))| {
            let mut out = Vec::new();
            match i {
                1 => out = std::fs::read(&file.0).expect("a recording"),
                _ => _ = strip(index, 40, &mut out).expect("stripped"),
            }
            Temp::new(&out)
        });
        let some: Vec<Temp> = some.collect();
        let got = open(&joined(&some));
        assert_same(exact.analysis(), got.analysis(), &of_each, seed);
        let left_out = |n: &Note| matches!(n, Note::Stripped { blocks: 1.., .. });
        assert!(got.analysis().notes().iter().any(left_out));
        assert!(got.analysis().notes().contains(&Note::PeaksAtMost));
    }
}

#[test]
fn recordings_of_figures_are_added_up_and_others_become_such() {
    let mut steps = 0;
    for seed in 1..30 {
        let makers = processes(seed, 0);
        let all: Vec<Temp> = makers.iter().map(Maker::file).collect();
        let exact = open(&joined(&all));
        let of_each: Vec<Index> = all.iter().map(open).collect();
        let some = makers.iter().enumerate().map(|(i, m)| match (seed + i as u64) % 4 {
            0 => m.file(),
            every => aggregated(&m.bytes, every, true).0,
        });
        let some: Vec<Temp> = some.collect();
        let file = joined(&some);
        let got = open(&file);
        assert_same(exact.analysis(), got.analysis(), &of_each, seed);
        steps += assert_steps_hold(&exact, &file, seed);
        let (eq, gq) = (all_of(&exact), all_of(&got));
        let spread = |q: &Query<'_>| q.spread(None).expect("a spread").lifetimes;
        assert_eq!(spread(&eq), spread(&gq), "{seed}");
        let sizes = |q: &Query<'_>| {
            let rows = q.by(By::Sizes, SIZE_CLASSES, None).expect("sizes");
            rows.into_iter().map(|g| (g.node, sums(&g.figures))).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&eq), sizes(&gq), "{seed}");
        let notes = got.analysis().notes();
        assert!(notes.contains(&Note::PeaksBySteps), "{notes:?}");
        let whole = Note::Aggregated { until_ns: None, killed: false, events: None };
        assert!(notes.contains(&whole), "{notes:?}");
    }
    assert!(steps > 300, "{steps} steps");
}

/// Checks that all processes held at any moment what the step of that moment says. Returns the number of steps.
fn assert_steps_hold(exact: &Index, file: &Temp, seed: u64) -> usize {
    let course = exact.course();
    let bytes = std::fs::read(&file.0).expect("a recording");
    let (mut at, mut steps) = (chunk::file_header().len(), Vec::new());
    while let Next::Chunk(k, payload, n) = chunk::next(&bytes[at..]) {
        at += n;
        let zipped = Zipped::decode(payload).filter(|z| k == kind::ZIPPED && z.kind == kind::STEP);
        let step = match zipped.and_then(|z| z.unzip()) {
            Some(payload) => Step::decode(&payload),
            None if k == kind::STEP => Step::decode(payload),
            None => continue,
        };
        steps.push(step.expect("a step"));
    }
    for s in &steps {
        let [_, least, most, ..] = s.course;
        let place = |t: Ticks| ((t.since(course.start())) >> course.shift()) as usize;
        let within = place(s.begin)..place(s.end - 1).min(course.buckets().len() - 1);
        for b in &course.buckets()[within] {
            let holds = least <= b.bytes.min && b.bytes.max <= most;
            assert!(
                holds,
                "{seed}: {:?} in {least} to {most} of {} to {}",
                b.bytes, s.begin, s.end
            );
        }
    }
    steps.len()
}

fn all_of(index: &Index) -> Query<'_> {
    Query::new(index, &Filter::default()).expect("a query")
}

#[test]
fn made_up_figures_do_no_harm() {
    let mut r = Random(0x1234_5678_9abc);
    let numbers = |r: &mut Random, n: u64| -> Vec<u64> {
        let one = |r: &mut Random| if r.below(2) == 0 { u64::MAX - r.below(3) } else { r.next() };
        (0..n).map(|_| one(r)).collect()
    };
    for round in 0..200u64 {
        let mut one = |number: u32| {
            let of = Target {
                pid: 4_000_001 + number,
                // Some have another counter, so that their times are moved.
                start_ticks: Ticks(if round % 5 == 0 { r.next() } else { START }),
                sample_bytes: if round % 2 == 0 { 100 } else { 0 },
                ..target()
            };
            let mut m = Maker::of(&of);
            let n = numbers(&mut r, 12 * 5);
            match round % 3 {
                0 => {
                    let record = Folded {
                        folds: 1,
                        until: Ticks(n[0]),
                        blocks: n[1],
                        bytes: n[2],
                        totals: numbers(&mut r, 22),
                        freed: n[3],
                        groups: n,
                        sums: numbers(&mut r, 12 * 4),
                        course: Vec::new(),
                    };
                    m.put(kind::FOLDED, &record.encode());
                }
                1 => {
                    let totals = numbers(&mut r, 22);
                    let groups = numbers(&mut r, 20 * 3);
                    let record = Stripped { totals, groups, how: round % 4, ..Stripped::default() };
                    m.put(kind::STRIPPED, &record.encode());
                }
                _ => {
                    let how = Stripped::AGGREGATED;
                    m.put(kind::STRIPPED, &Stripped { how, ..Stripped::default() }.encode());
                    for i in 0..4 {
                        let stack = |node: u32| StackStep {
                            node,
                            figures: [
                                n[i],
                                n[i + 1],
                                n[i + 2],
                                n[i + 3],
                                n[9],
                                n[10],
                                n[11],
                                n[12],
                            ],
                            first: Some(Ticks(n[i + 13])),
                            last: Some(Ticks(n[i + 14])),
                            peak: Some(Ticks(n[i + 15])),
                            sizes: vec![SizeStep { class: n[i + 16] as u8, figures: [n[17]; 6] }],
                            lifetimes: Vec::new(),
                        };
                        let step = Step {
                            begin: Ticks(n[i]),
                            end: Ticks(n[i + 5]),
                            totals: numbers(&mut r, 22),
                            course: [n[1], n[2], n[3], n[4], n[5]],
                            peaks: vec![[n[i + 6], n[7], n[8], n[9]]],
                            stacks: vec![stack(1), stack(2), stack(n[40] as u32 | 4)],
                        };
                        m.put(kind::STEP, &step.encode());
                    }
                }
            }
            if round % 3 != 2 {
                m.pass(1000)
                    .events(1, &[alloc(1001, 16, 5, 1), free(1003, 16), alloc(1004, 32, 7, 3)]);
            }
            m.pass(1010).end(1010);
            m.file()
        };
        let files: Vec<Temp> = (0..3).map(&mut one).collect();
        let got = open(&joined(&files));
        let notes = got.analysis().notes();
        assert!(notes.iter().any(|n| matches!(n, Note::PeaksAtMost | Note::PeaksBySteps)));
    }
}

#[test]
fn no_stack_has_held_more_than_all_together() {
    // Two processes have held a block of the same stack one after the other, and both parts are folded.
    let one = |number: u32| {
        let of = Target { pid: 4_000_001 + number, ticks_per_sec: 10_000, ..target() };
        let mut m = Maker::of(&of);
        describe(&mut m, START + 50);
        let at = START + 100 + 50_000 * u64::from(number);
        m.pass(START).events(1, &[alloc(at, 16, 1000, 1), free(at + 100, 16)]);
        (12..200).for_each(|i| _ = m.pass(START + 10_000 * i));
        m.end(START + 2_000_000);
        let (file, mut out) = (m.file(), Vec::new());
        let done = fold(&file.0, 1000, &mut out).expect("folded");
        out.extend_from_slice(&m.bytes[done.cut as usize..]);
        Temp::new(&out)
    };
    let all = open(&joined(&[one(0), one(1)]));
    let (f, groups) = (all.analysis().totals().figures, all.analysis().groups());
    assert_eq!((f.allocations, f.peak_bytes, groups.len()), (2, 1000, 1));
    assert_eq!((groups[0].figures.allocations, groups[0].figures.peak_bytes), (2, 1000));
}

#[test]
fn what_the_joined_recordings_lack_is_in_the_joined_one() {
    let makers = processes(3, 0);
    let whole: Vec<Temp> = makers[..3].iter().map(Maker::file).collect();
    let lacks = |files: &[Temp], lost, missed| {
        let options = JoinOptions { lost, missed, ..options() };
        let paths: Vec<_> = files.iter().map(|f| f.0.clone()).collect();
        let mut out = Vec::new();
        join(&paths, &options, &mut out).expect("joined");
        let file = Temp::new(&out);
        let all = open(&file);
        let a = all.analysis();
        let notes = a.notes().iter().filter(|n| matches!(n, Note::Joined(_))).count();
        let joined = a.meta().joined.clone().expect("it was joined");
        assert_eq!(a.complete() && joined.paused == 0, notes == 0);
        // Some were off for a time, by chance.
        (a.complete(), Joined { paused: 0, ..joined })
    };
    let none = Joined { recordings: 3, ..Joined::default() };
    assert_eq!(lacks(&whole, 0, 0), (true, none.clone()));
    assert_eq!(lacks(&whole, 2, 0), (false, Joined { lost: 2, ..none.clone() }));
    assert_eq!(lacks(&whole, 0, 3), (false, Joined { missed: 3, ..none.clone() }));
    // One has no end, and its process is gone; one is cut off.
    let mut some = whole;
    some[1] = makers[3].file();
    let bytes = std::fs::read(&some[2].0).expect("a recording");
    some[2] = Temp::new(&bytes[..bytes.len() - 3]);
    assert_eq!(lacks(&some, 0, 0), (false, Joined { incomplete: 2, ..none }));
}

#[test]
fn a_pause_of_a_joined_recording_is_told() {
    let maker = |pid| {
        let mut m = Maker::of(&Target { pid, ..target() });
        m.pass(START);
        m
    };
    let (mut on, mut off) = (maker(4_000_008), maker(4_000_009));
    on.pass(START + 60).end(START + 60);
    off.toggle(START + 10, 0).toggle(START + 40, 1).pass(START + 60).end(START + 60);
    let files = [on.file(), off.file()];
    let paths: Vec<_> = files.iter().map(|f| f.0.clone()).collect();
    let mut out = Vec::new();
    join(&paths, &options(), &mut out).expect("joined");
    let file = Temp::new(&out);
    let all = open(&file);
    let a = all.analysis();
    assert_eq!(a.meta().joined, Some(Joined { recordings: 2, paused: 1, ..Joined::default() }));
    let told: Vec<String> = a.notes().iter().map(ToString::to_string).collect();
    assert!(
        a.complete() && told.iter().any(|n| n.contains("1 of 2 recordings was off")),
        "{told:?}"
    );
}

#[test]
fn figures_of_different_kinds_are_not_joined() {
    let makers = processes(1, 0);
    let all: Vec<Temp> = makers.iter().map(Maker::file).collect();
    let mut out = Vec::new();
    strip(&open(&all[0]), 40, &mut out).expect("stripped");
    let stripped = Temp::new(&out);
    let figures = aggregated(&makers[2].bytes, 2, true).0;
    let folded = some_folded(&all, 1).pop().expect("a recording");
    let mut before = Maker::of(&Target { ticks_per_sec: 10_000, ..target() });
    let mut c = Census { ticks: Ticks(START + 5), ..Census::default() };
    c.put(
        &mut CensusAt::default(),
        &CensusBlock { address: 64, size: 32, ..CensusBlock::default() },
    );
    before.put(kind::CENSUS, &c.encode()).pass(START + 10).end(START + 20);
    let before = before.file();
    for ([a, b], why) in [
        ([&stripped, &figures], "in place of different blocks"),
        ([&figures, &folded], "in place of different blocks"),
        ([&folded, &stripped], "in place of different blocks"),
        ([&before, &figures], "blocks from before the attach"),
    ] {
        let error = join(&[a.0.clone(), b.0.clone()], &options(), &mut Vec::new());
        let error = error.expect_err("they are of different kinds").to_string();
        assert!(error.contains(why), "{error}");
    }
}
