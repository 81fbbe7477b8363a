//! Recordings whose oldest part is folded: the figures stay, and so do the blocks that were live.

mod common;

use common::remade::{by_node, open};
use common::world::{World, describe, make, write_to};
use common::{Maker, Random, Temp, alloc, free, target};
use prof_analyze::rewrite::fold;
use prof_analyze::{Analysis, Follower, Note};
use prof_trace::chunk;
use prof_trace::pack::Compress;
use prof_trace::records::{FoldEnd, Folded, Target, ThreadsLeft, kind};
use prof_trace::ticks::Ticks;
use std::path::Path;

/// Folds a recording and appends the rest of it, as the collector does. Returns `None` if it is too short for that.
fn folded(path: &Path, keep: u64) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let done = fold(path, keep, &mut out).ok()?;
    assert_eq!(out.len() as u64, done.bytes);
    let all = std::fs::read(path).expect("the recording");
    out.extend_from_slice(&all[done.cut as usize..]);
    Some(out)
}

fn recording(r: &mut Random, compress: Compress) -> (World, Maker) {
    let w = make(r, 3000, 4);
    let mut m = Maker::new();
    describe(&mut m, w.steps[w.steps.len() / 2].1.time().0);
    let m = write_to(m, r, &w, 4, compress);
    (w, m)
}

#[test]
fn totals_stacks_and_the_course_stay_however_often_it_is_folded() {
    let mut folds = 0;
    for seed in 1..40u64 {
        let mut r = Random(seed * 0x51_7cc1_b727);
        let compress = if seed % 2 == 0 { Compress::Fast } else { Compress::None };
        let (_, m) = recording(&mut r, compress);
        let whole = m.file();
        let before = open(&whole);
        let mut last = std::fs::read(&whole.0).expect("the recording");
        let len = last.len() as u64;
        for keep in [len * 3 / 4, len / 2, len / 3, len / 8, 100] {
            let Some(bytes) = folded(&Temp::new(&last).0, keep) else { continue };
            folds += 1;
            last = bytes;
            let new = Temp::new(&last);
            let after = open(&new);
            let (a, b): (&Analysis, &Analysis) = (before.analysis(), after.analysis());
            assert_eq!(a.totals(), b.totals(), "seed {seed}, the last {keep} bytes");
            assert_eq!(by_node(a.groups()), by_node(b.groups()), "seed {seed}");
            assert!(b.complete() && a.duration_ns() == b.duration_ns());
            let note = b.notes().iter().find(|n| matches!(n, Note::Folded { blocks: 1.., .. }));
            assert!(note.is_some(), "{:?}", b.notes());
            // Buckets may have become wider.
            let ends = |a: &prof_analyze::Index| {
                let all = a.course().buckets();
                let most = all.iter().map(|b| (b.bytes.max, b.blocks.max));
                let most = most.fold((0, 0), |m, b| (m.0.max(b.0), m.1.max(b.1)));
                (most, all.last().map(|b| (b.counts, b.bytes.last, b.blocks.last)))
            };
            assert_eq!(ends(&before), ends(&after), "seed {seed}");
        }
    }
    assert!(folds > 150, "{folds} folds");
}

#[test]
fn a_follower_goes_on_in_the_folded_file_and_counts_nothing_twice() {
    for seed in 1..12u64 {
        let mut r = Random(seed * 0x9e37_79b9 + 7);
        let (w, m) = recording(&mut r, Compress::Fast);
        let all = std::fs::read(&m.file().0).expect("the recording");
        let file = Temp::new(&all[..all.len() / 2]);
        let mut follower = Follower::open(&file.0).expect("a recording");
        follower.poll().expect("half of it");
        let mut new = folded(&file.0, 2000).expect("long enough");
        // The file has events from before the end of the fold, and events behind it.
        std::fs::write(&file.0, &all[..all.len() / 2]).expect("the same file");
        let other = file.0.with_extension("new");
        new.extend_from_slice(&all[all.len() / 2..all.len() * 3 / 4]);
        std::fs::write(&other, &new).expect("another file");
        std::fs::rename(&other, &file.0).expect("rename");
        follower.poll().expect("the new file");
        new.extend_from_slice(&all[all.len() * 3 / 4..]);
        std::fs::write(&file.0, &new).expect("the same file");
        follower.poll().expect("the rest");
        let done = follower.poll().expect("the same");
        assert!(done.finished);
        let t = done.totals;
        let [allocations, frees, reallocations, ..] = w.counts;
        let f = t.figures;
        assert_eq!((f.allocations, t.frees, f.reallocations), (allocations, frees, reallocations));
        assert_eq!((f.live_bytes, f.peak_bytes, t.peak_ticks.0), (w.live, w.peak, w.peak_at));
    }
}

#[test]
fn estimates_and_their_errors_stay() {
    for seed in 1..12u64 {
        let mut r = Random(seed * 0x2545_f491 + 3);
        let w = make(&mut r, 3000, 4);
        let sampled = Target { sample_bytes: 700, ..target() };
        let m = write_to(Maker::of(&sampled), &mut r, &w, 4, Compress::Fast);
        let whole = m.file();
        let once = Temp::new(&folded(&whole.0, 9000).expect("long enough"));
        let twice = Temp::new(&folded(&once.0, 4000).expect("long enough"));
        let (before, after) = (open(&whole), open(&twice));
        let (a, b) = (before.analysis().totals(), after.analysis().totals());
        // Sums of floating-point numbers depend on their order.
        let near = |x: u64, y: u64| x.abs_diff(y) <= 1 + x / 1_000_000;
        let all = |t: &prof_analyze::heap::Totals| {
            let (f, e) = (t.figures, t.errors);
            [
                f.allocations,
                f.allocated_bytes,
                f.reallocations,
                f.live_bytes,
                f.peak_bytes,
                t.frees,
                e.allocated_bytes,
            ]
        };
        for (x, y) in all(a).into_iter().zip(all(b)) {
            assert!(near(x, y), "{a:?} {b:?}");
        }
        assert!(a.errors.allocated_bytes > 0);
        let groups = by_node(after.analysis().groups());
        for g in before.analysis().groups() {
            let other = groups[&g.node].figures;
            assert!(near(g.figures.allocations, other.allocations), "{g:?}");
            assert!(near(g.figures.peak_bytes, other.peak_bytes), "{g:?}");
        }
    }
}

#[test]
fn made_up_figures_do_no_harm() {
    let mut r = Random(0x1234_5678_9abc);
    for round in 0..300 {
        let mut any = |n: u64| -> Vec<u64> {
            let one =
                |r: &mut Random| if r.below(2) == 0 { u64::MAX - r.below(3) } else { r.next() };
            (0..n).map(|_| one(&mut r)).collect()
        };
        let sampled = Target { sample_bytes: if round % 2 == 0 { 100 } else { 0 }, ..target() };
        let mut m = Maker::of(&sampled);
        let record = Folded {
            folds: 1,
            until: Ticks(u64::MAX),
            blocks: u64::MAX,
            bytes: u64::MAX,
            totals: any(22 + round % 3),
            freed: u64::MAX,
            groups: any(12 * 5 + round % 12),
            sums: any(12 * 4 + round % 12),
            course: any(round).into_iter().flat_map(u64::to_le_bytes).collect(),
        };
        m.put(kind::FOLDED, &record.encode());
        m.put(kind::FOLDED, &Folded { folds: 2, ..record.clone() }.encode());
        m.pass(1000).events(1, &[alloc(1001, 16, 5, 1), alloc(1002, 32, 5, 2), free(1003, 16)]);
        m.put(
            kind::FOLD_END,
            &FoldEnd { folds: 9, cut: u64::MAX, threads: any(43), events: u64::MAX }.encode(),
        );
        m.events(1, &[free(1004, 32), alloc(1005, 48, 7, 3)]).pass(1010).end(1010);
        let file = m.file();
        let index = open(&file);
        assert!(index.analysis().notes().iter().any(|n| matches!(n, Note::Folded { .. })));
        let _ = fold(&file.0, 0, &mut Vec::new());
        let mut follower = Follower::open(&file.0).expect("a recording");
        follower.poll().expect("read");
        let _ = follower.course();
    }
}

#[test]
fn only_folded_recordings_have_the_newer_version_and_another_recording_is_not_followed() {
    let mut r = Random(99);
    let (_, m) = recording(&mut r, Compress::None);
    let file = m.file();
    let all = std::fs::read(&file.0).expect("the recording");
    assert!(all.starts_with(&chunk::file_header()));
    let new = folded(&file.0, 1000).expect("long enough");
    assert!(new.starts_with(&chunk::folded_header()));
    let mut follower = Follower::open(&file.0).expect("a recording");
    let before = follower.poll().expect("all of it").totals;
    // Another recording of the same name, and one that was folded twice.
    let (_, other) = recording(&mut r, Compress::None);
    let path = file.0.with_extension("other");
    std::fs::rename(&other.file().0, &path).expect("rename");
    std::fs::rename(&path, &file.0).expect("rename");
    assert_eq!(follower.poll().expect("nothing new").totals, before);
    let twice = folded(&Temp::new(&new).0, 500);
    let (first, second) = (Temp::new(&all), Temp::new(&twice.expect("long enough")));
    let mut follower = Follower::open(&first.0).expect("a recording");
    follower.poll().expect("all of it");
    std::fs::rename(&second.0, &first.0).expect("rename");
    let error = follower.poll().expect_err("events are gone").to_string();
    assert!(error.contains("begin"), "{error}");
}

#[test]
fn threads_that_have_ended_leave_only_their_live_blocks() {
    const EACH: u64 = 100;
    let mut m = Maker::new();
    m.nodes(&[[1, 0, 1]]).pcs(&[[1, 0x10, 0]]);
    let at = |thread: u64| 1000 + 1000 * thread;
    // Each thread makes two blocks, and frees one. Every tenth keeps the other, which the last thread else frees.
    for thread in 1..=EACH {
        let (number, addr) = (thread as u32, 4096 * thread);
        m.thread(number, 7 + number, &format!("t{thread}")).pass(at(thread));
        let (first, kept) =
            (alloc(at(thread) + 10, addr, 16, 1), alloc(at(thread) + 30, addr + 64, 32, 1));
        m.events(number, &[first, free(at(thread) + 20, addr), kept]);
    }
    let freed = (1..=EACH).filter(|n| n % 10 != 0).map(|n| free(at(EACH) + 100 + n, 4096 * n + 64));
    m.events(EACH as u32, &freed.collect::<Vec<_>>());
    let numbers = (1..EACH).collect();
    m.pass(at(EACH + 1)).put(kind::THREADS_LEFT, &ThreadsLeft { numbers }.encode());
    (EACH + 2..EACH + 20).for_each(|n| _ = m.pass(at(n)));
    let last = |n: u64| [alloc(at(n), 16, 8, 1), free(at(n) + 1, 16)];
    m.events(EACH as u32, &last(EACH + 19));
    let names = |bytes: &[u8]| -> Vec<u32> {
        let all = open(&Temp::new(bytes));
        let mut names: Vec<u32> = all.analysis().meta().threads.keys().copied().collect();
        names.sort_unstable();
        names
    };
    let carried = |bytes: &[u8]| -> Vec<u64> {
        let (mut rest, mut found) = (&bytes[chunk::file_header().len()..], Vec::new());
        while let chunk::Next::Chunk(k, payload, n) = chunk::next(rest) {
            if k == kind::FOLD_END {
                let end = FoldEnd::decode(payload).expect("whole");
                found = end.threads.chunks(FoldEnd::THREAD).map(|t| t[0]).collect();
            }
            rest = &rest[n..];
        }
        found
    };
    let whole = m.bytes.clone();
    let once = folded(&m.file().0, 100).expect("long enough");
    let tens: Vec<u32> = (1..=EACH as u32).filter(|n| n % 10 == 0).collect();
    assert_eq!(names(&once), tens, "all others have ended, and nothing of theirs is live");
    assert_eq!(carried(&once), tens.iter().map(|n| u64::from(*n)).collect::<Vec<_>>());
    // The blocks of the ones that are left go, too, and so do the threads at the next fold, but for the one that lives.
    let mut m = Maker::new();
    m.bytes = once.clone();
    let rest = tens.iter().map(|n| free(at(EACH + 21) + u64::from(*n), 4096 * u64::from(*n) + 64));
    m.pass(at(EACH + 21)).events(EACH as u32, &rest.collect::<Vec<_>>());
    (EACH + 22..EACH + 40).for_each(|n| _ = m.pass(at(n)));
    m.events(EACH as u32, &last(EACH + 39));
    let long = m.bytes.clone();
    let twice = folded(&m.file().0, 100).expect("long enough");
    assert_eq!((names(&twice), carried(&twice)), (vec![EACH as u32], vec![EACH]));
    for (before, after) in [(&whole, &once), (&long, &twice)] {
        let [a, b] = [before, after].map(|bytes| open(&Temp::new(bytes)));
        assert_eq!(a.analysis().totals(), b.analysis().totals());
        assert_eq!(by_node(a.analysis().groups()), by_node(b.analysis().groups()));
    }
}
