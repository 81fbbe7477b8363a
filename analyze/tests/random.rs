//! The replay compared with a plain one, and hostile files.

mod common;

use common::world::{World, make, write};
use common::{Maker, Random, Temp, alloc, free, realloc};
use prof_analyze::report::{Report, ReportOptions, SortKey, Style};
use prof_analyze::{Analysis, Error, LoadOptions};
use prof_trace::pack::Compress;
use prof_trace::records::{Counters, Module};
use prof_trace::ticks::Ticks;

#[test]
fn the_replay_is_that_of_a_plain_model() {
    for seed in 1..60u64 {
        let mut r = Random(seed * 0x9e37_79b9);
        let threads = 1 + r.below(7);
        let w = make(&mut r, 3000, threads);
        for (how, name) in Compress::ALL {
            let file = write(&mut r, &w, threads as u32, how).file();
            // With little memory, waiting events are read again from the file.
            for pending_bytes in [1 << 20, 20_000, 100] {
                let a = Analysis::from_file(&file.0, &LoadOptions { pending_bytes });
                let a = a.expect("a recording");
                assert!(a.notes().is_empty(), "{:?}", a.notes());
                check(&w, &a, &format!("seed {seed}, {name}, {pending_bytes}"));
            }
        }
    }
}

fn check(w: &World, a: &Analysis, of: &str) {
    let t = a.totals();
    let f = &t.figures;
    let got = [f.allocations, t.frees, f.reallocations, t.unknown_frees, t.implied_frees];
    assert_eq!(got, w.counts, "{of}");
    assert_eq!((f.live_bytes, f.peak_bytes), (w.live, w.peak), "{of}");
    assert_eq!(t.peak_ticks, Ticks(w.peak_at), "{of}");
    for g in a.groups() {
        let f = &g.figures;
        let got = [f.live_bytes, f.live_count, f.allocated_bytes, f.temporary];
        assert_eq!(got, w.nodes[&g.node], "{of}, node {}", g.node);
    }
}

fn sample() -> Vec<u8> {
    let mut m = Maker::new();
    m.hooks(&["malloc", "free"], &[("calloc", "too short")]);
    m.module(&Module {
        number: 1,
        start: 0x1000,
        end: 0x9000,
        path: "/x".into(),
        ..Default::default()
    });
    m.symbols(1, &[(0x10, 0x100, "_ZN3foo3barEv"), (0x200, 0, "main")]);
    m.pcs(&[[1, 0x1020, 1], [2, 0x1210, 1]]).nodes(&[[1, 0, 2], [2, 1, 1]]);
    m.thread(1, 77, "worker").pages(1500, 10, 20);
    m.events(1, &[alloc(1100, 0x10, 100, 2), realloc(1200, 1210, 0x10, 0x20, 50, 1)]);
    m.toggle(1600, 0).toggle(1700, 1).pass(2000);
    m.compress = Compress::Best;
    m.events(2, &[free(1800, 0x20)]);
    m.counters(&Counters { events: 3, calls: vec![1, 2], ..Default::default() });
    m.end(3000);
    m.bytes
}

/// Makes all reports of a recording, in every form, none of which may panic.
fn look(bytes: &[u8]) -> Result<Analysis, Error> {
    let file = Temp::new(bytes);
    let a = Analysis::from_file(&file.0, &LoadOptions::default())?;
    for sort in [SortKey::Size, SortKey::Temporary] {
        let r = Report::new(
            &a,
            &ReportOptions { top: 0, sort, empty: true, ..ReportOptions::default() },
        );
        assert!(!r.json().is_empty());
        assert!(!r.text(Style { color: true, width: Some(20), ..Style::default() }).is_empty());
    }
    Ok(a)
}

#[test]
fn every_truncation_is_reported_up_to_its_last_whole_chunk() {
    let all = sample();
    let whole = look(&all).expect("a recording");
    assert!(whole.complete());
    let mut reported = 0;
    for cut in 0..all.len() {
        match look(&all[..cut]) {
            Ok(a) => {
                reported += 1;
                assert!(!a.complete() && !a.notes().is_empty());
                assert!(a.events() <= 3);
            }
            Err(Error::Empty { .. }) => assert!(cut < 200),
            Err(e) => panic!("{e}"),
        }
    }
    assert!(reported > 300, "{reported}");
}

#[test]
fn flipped_bits_do_no_harm() {
    let all = sample();
    for bit in (0..all.len() * 8).step_by(3) {
        let mut b = all.clone();
        b[bit / 8] ^= 1 << (bit % 8);
        match look(&b) {
            // Only the header has no checksum: its version may become an older one, and other bytes are not used.
            Ok(a) => assert!(!a.complete() || (8 * 8..16 * 8).contains(&bit), "bit {bit}"),
            Err(e) => assert!(!e.to_string().is_empty()),
        }
    }
}

/// Splits a recording into its chunks.
fn chunks(bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut at = prof_trace::chunk::FILE_HEADER;
    let mut out = Vec::new();
    while let prof_trace::chunk::Next::Chunk(kind, payload, n) =
        prof_trace::chunk::next(&bytes[at..])
    {
        out.push((kind, payload.to_vec()));
        at += n;
    }
    out
}

#[test]
fn nonsense_behind_good_checksums_does_no_harm() {
    let all = chunks(&sample());
    let mut r = Random(0x1234_5678_9abc);
    for _ in 0..500 {
        let mut bytes = prof_trace::chunk::file_header().to_vec();
        for (kind, payload) in &all {
            let mut p = payload.clone();
            for _ in 0..r.below(4) {
                let at = r.below(p.len().max(1) as u64) as usize;
                match r.below(4) {
                    0 if at < p.len() => p[at] = r.next() as u8,
                    1 => p.truncate(at),
                    2 => p.insert(at, 0xff),
                    _ => p.extend([r.next() as u8; 3]),
                }
            }
            for _ in 0..1 + r.below(8) / 7 {
                prof_trace::chunk::put(&mut bytes, *kind, &p);
            }
        }
        let _ = look(&bytes);
    }
    for _ in 0..500 {
        let mut m = Maker::new();
        for _ in 0..r.below(30) {
            let payload: Vec<u8> = (0..r.below(60)).map(|_| r.next() as u8 >> r.below(8)).collect();
            m.put(1 + r.below(15) as u16, &payload);
        }
        let _ = look(&m.bytes);
    }
}

#[test]
fn files_that_are_no_recordings_are_refused() {
    assert!(matches!(look(b""), Err(Error::Empty { .. })), "of a killed attach");
    for bytes in [&b"x"[..], b"\x7fELF", &[0; 4096], b"PROFREX\n........"] {
        assert!(matches!(look(bytes), Err(Error::NotARecording { .. })));
    }
    let mut newer = sample();
    newer[8] = 9;
    let e = look(&newer).map(|_| ()).expect_err("too new");
    assert!(matches!(e, Error::Newer { found: 9, .. }), "{e}");
    let folder = Analysis::from_file(&std::env::temp_dir(), &LoadOptions::default());
    assert!(matches!(folder, Err(Error::NotARecording { .. })));
    let none = Analysis::from_file("/nonexistent/file".as_ref(), &LoadOptions::default());
    let text = none.map(|_| ()).expect_err("no file").to_string();
    assert!(text.contains("/nonexistent/file"), "{text}");
}
