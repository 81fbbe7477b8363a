//! The replay against a plain one, and hostile files.

mod common;

use common::{Maker, Random, Temp, alloc, free, realloc};
use prof_analyze::report::{Report, ReportOptions, SortKey, Style};
use prof_analyze::{Analysis, Error, LoadOptions};
use prof_trace::event::Event;
use prof_trace::pack::Compress;
use prof_trace::records::{Counters, Module};
use std::collections::HashMap;

/// What happened, one step after the other, by thread.
struct World {
    steps: Vec<(u32, Event)>,
    /// (live bytes, live blocks, allocated, temporary) by node.
    nodes: HashMap<u32, [u64; 4]>,
    live: u64,
    peak: u64,
    peak_at: u64,
    counts: [u64; 5],
}

struct Block {
    addr: u64,
    size: u64,
    node: u32,
    thread: u32,
}

/// Threads allocate, free their own and others' blocks, and reallocate; addresses come again at
/// once. Every step takes a tick or two.
fn make(r: &mut Random, steps: usize, threads: u64) -> World {
    let mut w = World {
        steps: Vec::new(),
        nodes: HashMap::new(),
        live: 0,
        peak: 0,
        peak_at: 0,
        counts: [0; 5],
    };
    let mut blocks: Vec<Block> = Vec::new();
    let mut free_addrs: Vec<u64> = (1..400).map(|i| i * 16).collect();
    let mut newest: HashMap<u32, u64> = HashMap::new();
    let mut now = common::START;
    for _ in 0..steps {
        now += 1 + r.below(3);
        let thread = 1 + r.below(threads) as u32;
        let (node, size) = (1 + r.below(20) as u32, r.below(5000));
        let pick = r.below(100);
        let own = newest.remove(&thread);
        let lose = |w: &mut World, b: &Block| {
            let n = w.nodes.entry(b.node).or_default();
            let temporary = own == Some(b.addr) && b.thread == thread;
            n[0] -= b.size;
            n[1] -= 1;
            n[3] += u64::from(temporary);
            w.live -= b.size;
        };
        let mut gain = |w: &mut World, addr, now| {
            let n = w.nodes.entry(node).or_default();
            *n = [n[0] + size, n[1] + 1, n[2] + size, n[3]];
            w.live += size;
            if w.live > w.peak {
                (w.peak, w.peak_at) = (w.live, now);
            }
            newest.insert(thread, addr);
        };
        if pick < 5 {
            w.counts[3] += 1;
            w.counts[1] += 1;
            w.steps.push((thread, free(now, 0x10_0000 + 16 * r.below(50))));
        } else if pick < 45 && !blocks.is_empty() {
            let newest_of = blocks.iter().position(|b| own == Some(b.addr));
            let at = newest_of.filter(|_| r.below(3) == 0);
            let at = at.unwrap_or(r.below(blocks.len() as u64) as usize);
            let b = blocks.swap_remove(at);
            lose(&mut w, &b);
            w.counts[1] += 1;
            free_addrs.push(b.addr);
            w.steps.push((thread, free(now, b.addr)));
        } else if pick < 60 && !blocks.is_empty() {
            let at = r.below(blocks.len() as u64) as usize;
            let b = blocks.swap_remove(at);
            lose(&mut w, &b);
            w.counts[2] += 1;
            let before = now;
            now += 1 + r.below(9);
            let addr = if r.below(2) == 0 { b.addr } else { free_addrs.pop().unwrap_or(b.addr) };
            if addr != b.addr {
                free_addrs.push(b.addr);
            }
            gain(&mut w, addr, now);
            blocks.push(Block { addr, size, node, thread });
            w.steps.push((thread, realloc(before, now, b.addr, addr, size, node)));
        } else if let Some(addr) = free_addrs.pop() {
            w.counts[0] += 1;
            gain(&mut w, addr, now);
            blocks.push(Block { addr, size, node, thread });
            w.steps.push((thread, alloc(now, addr, size, node)));
        }
    }
    w
}

/// Writes the steps down as a collector would: in passes, thread by thread, where some threads'
/// newest events are seen and others' not.
fn write(r: &mut Random, w: &World, threads: u32, compress: Compress) -> Maker {
    let mut m = Maker::new();
    m.compress = compress;
    let end = w.steps.last().map_or(2000, |s| s.1.time()) + 1;
    let mut done = vec![0u64; threads as usize + 1]; // by thread: written up to that time
    let mut begin = common::START;
    while begin < end {
        m.pass(begin);
        let mut order: Vec<u32> = (1..=threads).collect();
        order.sort_by_key(|_| r.next());
        let mut now = begin;
        for t in order {
            now += r.below(30);
            let from = std::mem::replace(&mut done[t as usize], now);
            let events: Vec<Event> = w
                .steps
                .iter()
                .filter(|s| s.0 == t && (from..now).contains(&s.1.time()))
                .map(|s| s.1)
                .collect();
            for part in events.chunks(1 + r.below(40) as usize) {
                m.events(t, part);
            }
        }
        begin = now + r.below(100);
    }
    m.pass(end);
    for t in 1..=threads {
        let rest: Vec<Event> = w
            .steps
            .iter()
            .filter(|s| s.0 == t && s.1.time() >= done[t as usize])
            .map(|s| s.1)
            .collect();
        m.events(t, &rest);
    }
    m.end(end);
    m
}

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
    assert_eq!(t.peak_ticks, w.peak_at, "{of}");
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

/// All of a report, in every form; nothing may panic.
fn look(bytes: &[u8]) -> Result<Analysis, Error> {
    let file = Temp::new(bytes);
    let a = Analysis::from_file(&file.0, &LoadOptions::default())?;
    for sort in [SortKey::Size, SortKey::Temporary] {
        let r = Report::new(&a, &ReportOptions { top: 0, sort, empty: true });
        assert!(!r.json().is_empty());
        assert!(!r.text(Style { color: true, width: Some(20) }).is_empty());
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
            Err(Error::NotARecording { .. }) => assert_eq!(cut, 0),
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
            // Nothing but the header's unused bytes is without a checksum.
            Ok(a) => assert!(!a.complete() || (12 * 8..16 * 8).contains(&bit), "bit {bit}"),
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
    for bytes in [&b""[..], b"x", b"\x7fELF", &[0; 4096], b"PROFREX\n........"] {
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
