//! Short-lived blocks that are left out while recording: the result is that of leaving them out of all.

mod common;

use common::remade::{blocks, by_node, open};
use common::world::{World, make, write};
use common::{Maker, Random, Temp, alloc, free, realloc, target};
use prof_analyze::rewrite::{Cull, CullOptions, strip};
use prof_analyze::{Index, Note};
use prof_trace::chunk::{self, Next};
use prof_trace::event::{Codec, Event};
use prof_trace::pack::Compress;
use prof_trace::records::{Events, Pass, kind};
use prof_trace::sieve::{Figures, Sieve, Sieved};
use prof_trace::ticks::Ticks;

/// Writes what a sieve lets through.
struct Out(Maker);

impl Sieved for Out {
    fn pass(&mut self, pass: &Pass) {
        self.0.put(kind::PASS, &pass.encode());
    }

    fn events(&mut self, thread: u32, events: &[Event]) {
        self.0.events(thread, events);
    }
}

fn put(out: &mut Out, record: &Figures) {
    let (kind, payload) = record.encode();
    out.0.put(kind, &payload);
}

/// Makes the recording that a collector would have made of the same events. With `told`, it writes its figures after
/// each pass, as it does now and then.
fn culled(all: &[u8], threshold_ns: u64, pending: u64, told: bool) -> Temp {
    let mut cull = Cull::new(&target(), CullOptions { threshold_ns, pending });
    let mut out = Out(Maker::new());
    let (mut at, mut last) = (chunk::file_header().len(), Vec::new());
    while let Next::Chunk(k, payload, n) = chunk::next(&all[at..]) {
        at += n;
        match k {
            kind::TARGET => {}
            kind::EVENTS => {
                let e = Events::decode(payload).expect("events");
                // Both ways have the same result, also in turns.
                if at % 2 == 0 && cull.takes_decoded() {
                    cull.decoded(e.thread, e.decoded().expect("whole events"));
                } else {
                    cull.events(e.thread, &e.codec(), e.count, &e.bytes);
                }
            }
            kind::PASS => {
                cull.pass(&Pass::decode(payload).expect("a pass"), &mut out);
                for record in told.then(|| cull.figures()).into_iter().flatten() {
                    put(&mut out, &record);
                }
            }
            kind::END | kind::COUNTERS => last.push((k, payload.to_vec())),
            _ => _ = out.0.put(k, payload),
        }
    }
    cull.finish(&mut out);
    for record in cull.figures() {
        put(&mut out, &record);
    }
    for (k, payload) in last {
        out.0.put(k, &payload);
    }
    out.0.file()
}

fn note(index: &Index) -> Option<&Note> {
    index.analysis().notes().iter().find(|n| matches!(n, Note::Culled { .. }))
}

/// Loses some frees and reallocations, as a full ring does: ends are implied by the blocks that follow at an address, and
/// chains are cut.
fn lose(r: &mut Random, w: &mut World) {
    w.steps.retain(|(_, event)| matches!(event, Event::Alloc { .. }) || r.below(8) != 0);
}

#[test]
fn what_is_left_out_while_recording_is_what_strip_leaves_out() {
    for seed in 1..40u64 {
        let mut r = Random(seed * 0x51_7cc1_b727);
        // The large ones are replayed in several parts.
        let mut w = make(&mut r, if seed % 13 == 0 { 12_000 } else { 1500 }, 4);
        if seed % 3 == 0 {
            lose(&mut r, &mut w);
        }
        let all = write(&mut r, &w, 4, Compress::None);
        let file = all.file();
        let full = open(&file);
        for threshold in [4, 40, 400, 1 << 40] {
            let mut out = Vec::new();
            strip(&full, threshold, &mut out).expect("stripped");
            let wanted = open(&Temp::new(&out));
            let got = open(&culled(&all.bytes, threshold, 1 << 20, seed % 2 == 0));
            let (a, b) = (full.analysis(), got.analysis());
            let (of_all, of_got) = (by_node(a.groups()), by_node(b.groups()));
            assert_eq!((a.totals(), of_all), (b.totals(), of_got), "{seed}");
            assert_eq!(blocks(&got), blocks(&wanted), "seed {seed}, threshold {threshold}");
            assert!(b.complete() && a.duration_ns() == b.duration_ns());
            let expected = (full.rows() - got.rows(), 0, None);
            let Some(Note::Culled { blocks, early, until_ns, .. }) = note(&got) else {
                panic!("no note: {:?}", b.notes());
            };
            assert_eq!((*blocks, *early, *until_ns), expected);
        }
    }
}

#[test]
fn figures_stay_exact_if_little_may_be_held_back() {
    for seed in 1..20u64 {
        let mut r = Random(seed * 0x51_7cc1_b727);
        let w = make(&mut r, 1500, 4);
        let all = write(&mut r, &w, 4, Compress::None);
        let full = open(&all.file());
        let got = open(&culled(&all.bytes, 1 << 40, 300, true));
        let (a, b) = (full.analysis(), got.analysis());
        assert_eq!((a.totals(), by_node(a.groups())), (b.totals(), by_node(b.groups())), "{seed}");
        assert!(matches!(note(&got), Some(Note::Culled { early: 1.., .. })), "{:?}", b.notes());
        // A full queue lets more blocks through than asked for, but each of them is one of the full recording.
        let rows = blocks(&full);
        assert!(blocks(&got).iter().all(|row| rows.contains(row)), "seed {seed}");
    }
}

#[test]
fn chains_stay_or_go_as_a_whole_also_where_ends_went_unseen() {
    let mut m = Maker::new();
    m.pass(1000).events(
        1,
        &[
            alloc(1001, 0x1000, 10, 0),
            alloc(1002, 0x2000, 20, 0),
            // A chain of which each block lives short, but not the whole.
            alloc(1003, 0x6000, 80, 0),
            realloc(1500, 1501, 0x6000, 0x7000, 90, 0),
            realloc(2000, 2001, 0x7000, 0x6000, 91, 0),
            free(2400, 0x6000),
            // A block that lived long; its end is implied by one that is left out.
            alloc(5000, 0x1000, 30, 0),
            free(5001, 0x1000),
            // A block whose end is implied by one that stays.
            alloc(6000, 0x2000, 40, 0),
            // A block returned by realloc, whose old block is not known.
            realloc(6001, 6002, 0x9000, 0x3000, 50, 0),
            // A chain that lives short.
            alloc(6010, 0x8000, 60, 0),
            realloc(6011, 6012, 0x8000, 0xa000, 61, 0),
            free(6013, 0xa000),
        ],
    );
    m.end(10_000);
    let full = open(&m.file());
    let got = open(&culled(&m.bytes, 1000, 1 << 20, false));
    let gone = |l: &String| [30, 60, 61].iter().any(|s| l.contains(&format!(",{s},")));
    let wanted: Vec<String> = blocks(&full).into_iter().filter(|l| !gone(l)).collect();
    assert_eq!(blocks(&got), wanted);
    assert_eq!(full.analysis().totals(), got.analysis().totals());
}

/// Checks that what is left out of a recording while it is made is what `strip` leaves out, for several thresholds.
fn check_like_strip(m: &Maker) {
    let file = m.file();
    let full = open(&file);
    for threshold in [2, 50, 400, 3000, 1 << 40] {
        let mut out = Vec::new();
        strip(&full, threshold, &mut out).expect("stripped");
        let (got, wanted) = (open(&culled(&m.bytes, threshold, 1 << 20, false)), Temp::new(&out));
        assert_eq!(blocks(&got), blocks(&open(&wanted)), "threshold {threshold}");
        assert_eq!(got.analysis().totals(), full.analysis().totals(), "threshold {threshold}");
    }
}

#[test]
fn events_of_one_moment_stay_in_order() {
    let mut m = Maker::new();
    m.pass(1000).events(
        1,
        &[
            alloc(1001, 0x1000, 10, 0),
            free(1001, 0x1000),
            alloc(1001, 0x1000, 11, 0),
            realloc(1001, 1001, 0x1000, 0x2000, 12, 0),
            free(1001, 0x2000),
            // A block that begins and ends where another one has just ended.
            alloc(1001, 0x2000, 13, 0),
            free(1500, 0x2000),
            alloc(1500, 0x2000, 14, 0),
            free(1500, 0x2000),
            alloc(1500, 0x2000, 15, 0),
            // Ends that are implied by the block after it.
            alloc(1500, 0x2000, 16, 0),
            alloc(1700, 0x3000, 17, 0),
            alloc(2200, 0x3000, 18, 0),
            free(2200, 0x3000),
        ],
    );
    for ticks in [1100, 1600, 1601, 2300, 2800, 6000, 6001] {
        m.pass(ticks);
    }
    m.end(10_000);
    check_like_strip(&m);
}

#[test]
fn a_look_between_the_halves_of_a_realloc_changes_nothing() {
    let mut m = Maker::new();
    m.pass(1000).events(
        1,
        &[
            alloc(1100, 0x1000, 10, 0),
            alloc(1200, 0x2000, 20, 0),
            // The events of this one are there while a pass lies between the halves.
            realloc(1300, 2500, 0x1000, 0x3000, 11, 0),
            free(2600, 0x3000),
        ],
    );
    for ticks in [1250, 1350, 1700, 2000, 2001] {
        m.pass(ticks);
    }
    // The first half of this one lies before passes that are over.
    m.events(2, &[realloc(1400, 2700, 0x2000, 0x4000, 21, 0)]);
    m.pass(2800).events(2, &[free(2900, 0x4000)]);
    for ticks in [3000, 3500, 6000, 6001] {
        m.pass(ticks);
    }
    m.end(10_000);
    check_like_strip(&m);
}

#[test]
fn times_that_go_back_leave_the_figures_exact() {
    let mut m = Maker::new();
    let put = |m: &mut Maker, events: &[Event]| {
        // Within a chunk times can't go back.
        for event in events {
            m.events(1, &[*event]);
        }
    };
    m.pass(1000);
    put(
        &mut m,
        &[
            alloc(5000, 0x1000, 10, 0),
            alloc(4000, 0x2000, 20, 0),
            free(4500, 0x1000),
            realloc(4300, 4400, 0x2000, 0x3000, 30, 0),
            free(6500, 0x3000),
        ],
    );
    for ticks in [7000, 7001, 9000, 9001] {
        m.pass(ticks);
    }
    // Everything before these is written, unless the threshold is long.
    put(
        &mut m,
        &[
            alloc(2000, 0x1000, 40, 0),
            realloc(2000, 2001, 0x1000, 0x1000, 41, 0),
            free(1999, 0x1000),
            alloc(8999, 0x2000, 50, 0),
        ],
    );
    m.pass(9500).pass(9600).end(10_000);
    let full = open(&m.file());
    for threshold in [2, 50, 400, 3000, 1 << 40] {
        let got = open(&culled(&m.bytes, threshold, 1 << 20, false));
        assert_eq!(got.analysis().totals(), full.analysis().totals(), "threshold {threshold}");
        let (all, rows) = (blocks(&full), blocks(&got));
        assert!(rows.iter().all(|row| all.contains(row)), "threshold {threshold}: {rows:#?}");
        // The result has the block that is live at the end.
        assert!(rows.iter().any(|row| row.contains(",50,")), "threshold {threshold}: {rows:#?}");
    }
}

#[test]
fn a_recording_that_is_made_says_what_its_figures_count() {
    let cull = |told: bool| {
        let mut cull = Cull::new(&target(), CullOptions { threshold_ns: 1000, pending: 1 << 20 });
        let mut out = Out(Maker::new());
        out.0.put(kind::STRIPPED, &cull.about().encode());
        let bytes = {
            let mut m = Maker::new();
            m.events(
                1,
                &[alloc(1001, 0x1000, 10, 0), alloc(1002, 0x2000, 20, 0), free(1003, 0x2000)],
            );
            m.bytes
        };
        let mut at = chunk::file_header().len();
        while let Next::Chunk(k, payload, n) = chunk::next(&bytes[at..]) {
            at += n;
            if k == kind::EVENTS {
                let e = Events::decode(payload).expect("events");
                cull.events(e.thread, &Codec { ..e.codec() }, e.count, &e.bytes);
            }
        }
        for (number, ticks) in [(0, 1000), (1, 200_000_000), (2, 400_000_000), (3, 600_000_000)] {
            cull.pass(
                &Pass { number, ticks: Ticks(ticks), clock_ns: ticks, ..Pass::default() },
                &mut out,
            );
        }
        for record in told.then(|| cull.figures()).into_iter().flatten() {
            put(&mut out, &record);
        }
        open(&out.0.file())
    };
    let (before, after) = (cull(false), cull(true));
    assert!(matches!(note(&before), Some(Note::Culled { until_ns: Some(0), .. })));
    assert_eq!(before.analysis().totals().figures.allocations, 1);
    let found = note(&after);
    assert!(matches!(found, Some(Note::Culled { until_ns: Some(3), blocks: 1, .. })), "{found:?}");
    assert_eq!(after.analysis().totals().figures.allocations, 2);
    // No process has this recording any more, and its end is missing.
    let found = found.expect("a note").to_string();
    assert!(found.contains("killed: the figures are those at 3 ns, and"), "{found}");
    let found = note(&before).expect("a note").to_string();
    assert!(found.contains("killed before it had written figures"), "{found}");
    assert!(found.contains("before it was killed are missing"), "{found}");
}
