//! Figures by stack in place of blocks: they are those of a recording of all blocks.

mod common;

use common::figures::aggregated;
use common::remade::open;
use common::world::{make, write};
use common::{Maker, Random, Temp, alloc, free};
use prof_analyze::export::{Cost, ExportError, Format, Source};
use prof_analyze::heap::Group;
use prof_analyze::leaks::{Class, LeakOptions, Leaks};
use prof_analyze::query::{By, Filter, Query, QueryError, SIZE_CLASSES, Span};
use prof_analyze::rewrite::fold;
use prof_analyze::{Follower, Index, Note};
use prof_trace::chunk::{self, Next};
use prof_trace::derived::Zipped;
use prof_trace::event::Event;
use prof_trace::pack::Compress;
use prof_trace::records::{Step, ThreadsLeft, kind};
use prof_trace::ticks::Ticks;
use std::collections::BTreeMap;

fn all(index: &Index) -> Query<'_> {
    Query::new(index, &Filter::default()).expect("a query")
}

/// Returns groups by node, without the times that steps round.
fn exact(groups: &[Group]) -> BTreeMap<u32, Group> {
    let plain =
        |g: &Group| Group { last: Ticks::ZERO, peak_ticks: Ticks::ZERO, oldest: None, ..*g };
    groups.iter().map(|g| (g.node, plain(g))).collect()
}

#[test]
fn the_figures_are_those_of_all_blocks() {
    let mut moments = 0;
    for seed in 1..40u64 {
        let mut r = Random(seed * 0x51_7cc1_b727);
        let w = make(&mut r, 1500, 4);
        let events = write(&mut r, &w, 4, Compress::None);
        let full = open(&events.file());
        let (file, steps) = aggregated(&events.bytes, 1 + seed % 7, true);
        let got = open(&file);
        let (a, b) = (full.analysis(), got.analysis());
        assert_eq!((a.totals(), exact(a.groups())), (b.totals(), exact(b.groups())), "{seed}");
        assert!(b.complete() && a.duration_ns() == b.duration_ns());
        let note = b.notes().iter().find(|n| matches!(n, Note::Aggregated { .. }));
        assert_eq!(note, Some(&Note::Aggregated { until_ns: None, killed: false, events: None }));
        let (fq, gq) = (all(&full), all(&got));
        let spread = |q: &Query<'_>| q.spread(None).expect("a spread").lifetimes;
        assert_eq!(spread(&fq), spread(&gq), "{seed}");
        let sizes = |q: &Query<'_>| {
            let rows = q.by(By::Sizes, SIZE_CLASSES, None).expect("sizes");
            rows.into_iter().map(|g| (g.node, g.figures, g.peak_ticks)).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&fq), sizes(&gq), "{seed}");
        // At the ends of steps they are those of that moment.
        // The last one counts what happened at its end, too.
        let whole = &steps[..steps.len() - 1];
        // A reallocation under way then is known when it has ended, and counts in the next.
        let under_way = |at: u64| {
            let spans = |e: &Event| matches!(*e, Event::Realloc { time_before, time, .. } if time_before < Ticks(at) && at <= time.0);
            w.steps.iter().any(|(_, e)| spans(e))
        };
        let settled = |s: &&Step| s.end > s.begin && !under_way(s.end.0);
        for s in whole.iter().step_by(3).filter(settled) {
            moments += 1;
            let [a, b] = [(&fq, s.end - 1), (&gq, s.end)].map(|(q, at)| q.analysis(Some(at)));
            let (a, b) = (a.expect("figures"), b.expect("figures"));
            assert_eq!(a.totals().figures, b.totals().figures, "{seed}, {}", s.end);
            assert_eq!(exact(a.groups()), exact(b.groups()), "{seed}, {}", s.end);
        }
    }
    assert!(moments > 100, "{moments} moments were compared");
}

/// Returns a recording whose oldest figures are added up: all but its last `keep` bytes.
fn added_up(file: &Temp, keep: u64) -> Vec<u8> {
    let all = std::fs::read(&file.0).expect("the recording");
    let mut new = Vec::new();
    let done = fold(&file.0, keep, &mut new).expect("long enough");
    assert_eq!(new.len() as u64, done.bytes);
    new.extend_from_slice(&all[done.cut as usize..]);
    new
}

#[test]
fn figures_that_are_added_up_stay_what_they_were() {
    for seed in 1..30u64 {
        let mut r = Random(seed * 0x2f1_97b1);
        let w = make(&mut r, 3000, 4);
        let events = write(&mut r, &w, 4, Compress::None);
        let (file, _) = aggregated(&events.bytes, 1 + seed % 3, true);
        let once = Temp::new(&added_up(&file, 4000));
        let twice = Temp::new(&added_up(&once, 1500));
        let full = open(&file);
        let mut before = full.analysis().meta().steps_len();
        for shorter in [&once, &twice] {
            let got = open(shorter);
            let (a, b) = (full.analysis(), got.analysis());
            assert!(b.meta().steps_len() < before, "{seed}: {before} steps");
            before = b.meta().steps_len();
            assert_eq!((a.totals(), exact(a.groups())), (b.totals(), exact(b.groups())), "{seed}");
            let order = |groups: &[Group]| groups.iter().map(|g| g.node).collect::<Vec<_>>();
            assert_eq!(order(a.groups()), order(b.groups()), "{seed}");
            assert!(b.complete() && a.duration_ns() == b.duration_ns());
            let (fq, gq) = (all(&full), all(&got));
            let spread = |q: &Query<'_>| q.spread(None).expect("a spread").lifetimes;
            assert_eq!(spread(&fq), spread(&gq), "{seed}");
            let sizes = |q: &Query<'_>| {
                let rows = q.by(By::Sizes, SIZE_CLASSES, None).expect("sizes");
                rows.into_iter().map(|g| (g.node, g.figures, g.peak_ticks)).collect::<Vec<_>>()
            };
            assert_eq!(sizes(&fq), sizes(&gq), "{seed}");
            let line = |i: &Index| all(i).timeline(&Span::whole(i, 1), false).expect("a timeline");
            let (a, b) = (line(&full), line(&got));
            assert_eq!(
                (a.live_bytes.max, a.live_bytes.last),
                (b.live_bytes.max, b.live_bytes.last)
            );
            assert_eq!((a.allocations, a.frees), (b.allocations, b.frees));
        }
    }
}

#[test]
fn a_follower_goes_on_in_a_file_whose_figures_were_added_up() {
    let (whole, _) = aggregated(&growing(3000), 10, true);
    let all = std::fs::read(&whole.0).expect("the recording");
    let file = Temp::new(&all[..all.len() / 2]);
    let mut follower = Follower::open(&file.0).expect("a follower");
    follower.poll().expect("half of it");
    let (groups, before) = (follower.groups(), follower.groups_len());
    let mut new = added_up(&file, 500);
    assert!(new.len() < all.len() / 2, "{} of {}", new.len(), all.len() / 2);
    new.extend_from_slice(&all[all.len() / 2..]);
    let other = file.0.with_extension("new");
    std::fs::write(&other, &new).expect("another file");
    std::fs::rename(&other, &file.0).expect("rename");
    let mut done = follower.poll().expect("the new file");
    while !done.finished {
        done = follower.poll().expect("the rest");
    }
    assert_eq!(&done.totals, open(&whole).analysis().totals());
    let after: Vec<u32> = follower.groups().iter().take(before).map(|g| g.node).collect();
    assert_eq!(after, groups.iter().map(|g| g.node).collect::<Vec<_>>());
}

#[test]
fn the_timeline_is_exact_at_the_ends_of_steps_and_peaks_are_within() {
    let mut r = Random(0x5_1234_5678);
    let w = make(&mut r, 4000, 3);
    let events = write(&mut r, &w, 3, Compress::None);
    let (full, (file, steps)) = (open(&events.file()), aggregated(&events.bytes, 2, true));
    let got = open(&file);
    for width in [1, 7, 40] {
        let line = |i: &Index| all(i).timeline(&Span::whole(i, width), false).expect("a timeline");
        let (a, b) = (line(&full), line(&got));
        assert_eq!(a.live_bytes.last.last(), b.live_bytes.last.last());
        assert_eq!(a.live_bytes.max.iter().max(), b.live_bytes.max.iter().max(), "the peak");
        let sum = |v: &[u64]| v.iter().sum::<u64>();
        assert_eq!(sum(&a.allocations), sum(&b.allocations));
        assert_eq!(sum(&a.frees), sum(&b.frees));
        assert_eq!(sum(&a.freed_bytes), sum(&b.freed_bytes));
        assert!(b.within_ns > 0, "{} steps are not exact", steps.len());
    }
    // Of one stack, too.
    let node = got.analysis().groups()[0].node;
    let mut only = Filter::default();
    only.set("stacks", &node.to_string()).expect("a filter");
    let of = |i: &Index| {
        let q = Query::new(i, &only).expect("a query");
        let t = q.timeline(&Span::whole(i, 5), false).expect("a timeline");
        let by = q.timelines(&Span::whole(i, 5), By::Sizes, SIZE_CLASSES).expect("by size");
        let last: u64 = by.iter().map(|v| v[4]).sum();
        let f = q.analysis(None).expect("figures").totals().figures;
        (t.live_bytes.last[4], t.allocations.iter().sum::<u64>(), last, f.live_bytes, f.peak_bytes)
    };
    assert_eq!(of(&full), of(&got));
}

#[test]
fn what_asks_for_blocks_says_that_there_are_none() {
    let mut r = Random(77);
    let w = make(&mut r, 500, 2);
    let (file, _) = aggregated(&write(&mut r, &w, 2, Compress::None).bytes, 3, true);
    let got = open(&file);
    let q = all(&got);
    for (name, value) in
        [("min-size", "8"), ("from", "0"), ("only-leaked", "true"), ("thread", "1")]
    {
        let mut filter = Filter::default();
        if filter.set(name, value).is_err() {
            continue;
        }
        let Err(e) = Query::new(&got, &filter) else { panic!("--{name} was taken") };
        let text = e.to_string();
        assert!(matches!(e, QueryError::Missing(_) | QueryError::Scan(_)), "{text}");
    }
    let export = |format| {
        let (query, held) = (&q, None);
        let source =
            Source { index: &got, query, at: None, cost: Cost::Live, filter: Vec::new(), held };
        let mut out = Vec::new();
        source.write(format, &mut out).map(|()| out.len())
    };
    for format in Format::ALL.into_iter().filter(|f| f.is_built()) {
        let blocks = matches!(
            format,
            Format::Heaptrack
                | Format::Dhat
                | Format::Csv
                | Format::Json
                | Format::Replay
                | Format::Parquet
        );
        match export(format) {
            Ok(n) => assert!(!blocks && n > 0, "{}", format.name()),
            Err(ExportError::Scan(e)) => {
                assert!(blocks && e.to_string().contains("--aggregate"), "{}: {e}", format.name());
            }
            Err(e) => panic!("{}: {e}", format.name()),
        }
    }
}

/// Makes a recording of `n` blocks a thousand ticks apart: one stack keeps all of them, another its last 100.
fn growing(n: u64) -> Vec<u8> {
    let mut m = Maker::new();
    for i in 0..n {
        let at = 1000 * (i + 1);
        let kept = alloc(at, 0x10_0000 + i * 64, 50, 1);
        let cached = alloc(at + 1, 0x9000_0000 + i * 64, 50, 2);
        let mut events = vec![kept, cached];
        if let Some(old) = i.checked_sub(100) {
            events.push(free(at + 2, 0x9000_0000 + old * 64));
        }
        m.pass(at).events(1, &events);
    }
    m.end(1000 * n + 500);
    m.bytes
}

#[test]
fn a_leak_is_told_from_a_cache() {
    let (file, _) = aggregated(&growing(4000), 40, true);
    let got = open(&file);
    let q = all(&got);
    let leaks = Leaks::new(&got, &q, &LeakOptions::default()).expect("leaks");
    let class = |node: u32| leaks.stacks.iter().find(|s| s.id == node).map(|s| s.class);
    assert_eq!((class(1), class(2)), (Some(Class::Growing), Some(Class::Saturating)), "{leaks:?}");
    assert_eq!(leaks.stacks[0].live_bytes, 4000 * 50);
}

#[test]
fn a_follower_and_a_recording_without_an_end_say_until_when() {
    let (file, steps) = aggregated(&growing(500), 100, false);
    let mut follower = Follower::open(&file.0).expect("a follower");
    let progress = follower.poll().expect("read");
    let groups = follower.groups();
    let live: u64 = groups.iter().map(|g| g.figures.live_count).sum();
    assert_eq!(progress.totals.figures.live_count, live);
    assert!(progress.totals.figures.live_count > 0 && groups.len() == follower.groups_len());
    let got = open(&file);
    assert_eq!(got.analysis().totals(), &progress.totals);
    let until = got.analysis().meta().clock.ns(steps.last().expect("steps").end);
    let note = Note::Aggregated { until_ns: Some(until.max(1)), killed: true, events: None };
    assert!(got.analysis().notes().contains(&note), "{:?}", got.analysis().notes());
}

/// Writes each step with more than one stack as two records with the same end, as steps with very many stacks are.
fn halved(file: &Temp) -> Temp {
    let bytes = std::fs::read(&file.0).expect("a recording");
    let mut at = chunk::file_header().len();
    let mut new = bytes[..at].to_vec();
    while let Next::Chunk(k, payload, n) = chunk::next(&bytes[at..]) {
        at += n;
        let zipped = Zipped::decode(payload).filter(|z| k == kind::ZIPPED && z.kind == kind::STEP);
        let unzipped = zipped.and_then(|z| z.unzip());
        let step = match &unzipped {
            Some(payload) => Step::decode(payload),
            None => Step::decode(payload).filter(|_| k == kind::STEP),
        };
        let Some(step) = step.filter(|step| step.stacks.len() > 1) else {
            chunk::put(&mut new, k, payload);
            continue;
        };
        for half in step.stacks.chunks(step.stacks.len().div_ceil(2)) {
            let record = Step { stacks: half.to_vec(), ..step.clone() };
            chunk::put(&mut new, kind::STEP, &record.encode());
        }
    }
    Temp::new(&new)
}

#[test]
fn a_step_in_several_records_is_one_moment() {
    for seed in 1..20u64 {
        let mut r = Random(seed * 0x2f1_97b1);
        let w = make(&mut r, 3000, 4);
        let events = write(&mut r, &w, 4, Compress::None);
        let (file, _) = aggregated(&events.bytes, 5, true);
        let (whole, half) = (open(&file), open(&halved(&file)));
        let nodes = whole.analysis().groups().iter().map(|g| g.node);
        let some: Vec<String> = nodes.step_by(2).map(|n| n.to_string()).collect();
        let mut only = Filter::default();
        only.set("stacks", &some.join(",")).expect("a filter");
        let of = |i: &Index, filter: &Filter| {
            let q = Query::new(i, filter).expect("a query");
            let t = q.timeline(&Span::whole(i, 40), false).expect("a timeline");
            let f = q.analysis(None).expect("figures").totals().figures;
            let sizes = q.by(By::Sizes, SIZE_CLASSES, None).expect("sizes");
            let sizes: Vec<_> = sizes.iter().map(|g| (g.node, g.figures)).collect();
            (t.live_bytes.max, t.live_bytes.last, t.allocations, f, sizes)
        };
        for filter in [&only, &Filter::default()] {
            assert_eq!(of(&whole, filter), of(&half, filter), "{seed}");
        }
    }
}

#[test]
fn threads_that_end_and_begin_are_not_mixed_up() {
    let mut m = Maker::new();
    m.nodes(&[[1, 0, 1]]).pcs(&[[1, 0x10, 0]]);
    let at = |n: u64| 1000 + 1000 * n;
    // Each thread frees first what the one before it has allocated last, and leaves a block to the next.
    for n in 1..=200u64 {
        m.pass(at(n));
        let last = (n > 1).then(|| free(at(n) + 10, 64 * (n - 1)));
        let own =
            [alloc(at(n) + 20, 16, 8, 1), free(at(n) + 30, 16), alloc(at(n) + 40, 64 * n, 32, 1)];
        m.events(n as u32, &last.into_iter().chain(own).collect::<Vec<_>>());
        m.pass(at(n) + 500);
        m.put(kind::THREADS_LEFT, &ThreadsLeft { numbers: vec![n] }.encode());
    }
    m.pass(at(201)).pass(at(202)).end(at(202));
    let (file, _) = aggregated(&m.bytes, 3, true);
    let (full, got) = (open(&m.file()), open(&file));
    let (a, b) = (full.analysis(), got.analysis());
    assert_eq!((a.totals(), exact(a.groups())), (b.totals(), exact(b.groups())));
    assert_eq!(b.totals().figures.temporary, 200);
}
