//! Whatever stands in the shared memory, the collector comes to an end with a readable recording.

mod common;
use common::*;
use prof_collect::Collector;
use prof_trace::ring;
use prof_trace::shared::{SEGMENT_SIZE, Shared, segment};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Small or large, seldom in between.
    fn odd(&mut self) -> u64 {
        let v = self.next();
        match v % 4 {
            0 => v >> 60,
            1 => u64::MAX - (v >> 60),
            2 => v >> 40,
            _ => v,
        }
    }
}

fn collector(shared: Shared, name: &str) -> (Collector, std::path::PathBuf) {
    let path = temp(name);
    (Collector::new(std::process::id(), shared, start(&path)).expect("collector"), path)
}

fn finish(mut c: Collector, path: std::path::PathBuf) -> Recording {
    let ended = c.finish("stopped");
    assert!(ended.failure.is_none());
    let r = read(&path);
    std::fs::remove_file(path).expect("remove");
    r
}

#[test]
fn cycles_and_bad_ids_end() {
    let shared = new_ring(0);
    let good = stack(&shared, 0x1234, 10);
    let set = |i: usize, parent: u32, pc: u32| {
        shared.node(i - 1).expect("node").store((parent as u64) << 32 | pc as u64, Relaxed);
    };
    // Two that are each other's parents, one that is its own, one with a parent beyond the table, one
    // whose parent is free, one with a code address beyond the table, and a chain that is too long.
    let base = 500_000;
    set(base, base as u32 + 1, 1);
    set(base + 1, base as u32, 1);
    set(base + 2, base as u32 + 2, 1);
    set(base + 3, u32::MAX, 1);
    set(base + 4, 700_000, 1);
    set(base + 5, good, u32::MAX);
    for i in 0..10_000 {
        set(600_000 + i, if i == 0 { 0 } else { 600_000 + i as u32 - 1 }, 1);
    }
    let mut ids: Vec<u32> = (0..6).map(|i| base as u32 + i).collect();
    ids.extend([609_999, 605_000, u32::MAX, u32::MAX - 1, 8_380_417, 8_380_416, good]);
    let (mut c, path) = collector(shared, "cycles");
    let mut w = Writer::new(shared, 0);
    for i in 0..100_000 {
        w.put(&event(w.serial, i, ids[i as usize % ids.len()]));
        if i % 1000 == 0 {
            c.pass(false);
        }
    }
    let r = finish(c, path);
    assert_eq!(r.events[&1].len(), 100_000);
    assert_eq!(r.depth(good), 10);
}

#[test]
fn garbage_everywhere_does_no_harm() {
    let shared = new_ring(0);
    let mut x = Random(0x1234_5678_9abc_def1);
    let (mut c, path) = collector(shared, "garbage");
    let began = Instant::now();
    let segments = shared.geometry().segments();
    for round in 0..400 {
        for i in 0..segments {
            let h = shared.head(i).expect("head");
            h.serial.store(x.odd() as u32, Relaxed);
            h.tid.store(x.odd() as u32, Relaxed);
            h.slot.store(x.odd() as u32, Relaxed);
            h.seq.store(x.odd(), Relaxed);
            h.committed.store(x.odd() as u32, Relaxed);
            let data = shared.data(i).expect("data");
            for at in (0..SEGMENT_SIZE).step_by(if round % 2 == 0 { 8 } else { 512 }) {
                // SAFETY: in bounds of the segment.
                unsafe { data.add(at).cast::<u64>().write_unaligned(x.next()) };
            }
            h.state.store(
                if x.next().is_multiple_of(2) { segment::ACTIVE } else { segment::CLOSED },
                Release,
            );
            shared.node(x.next() as usize % 8_000_000).expect("node").store(x.odd(), Relaxed);
        }
        for w in 0..segments / 64 {
            shared.free_word(w).expect("word").store(x.odd(), Relaxed);
        }
        for i in 0..100 {
            let s = shared.slot(x.next() as usize % 8192).expect("slot");
            s.serial.store(x.odd() as u32, Relaxed);
            s.tid.store(x.odd() as u32, Relaxed);
            s.state.store(x.odd() as u32, Relaxed);
            let m = shared.module(i).expect("module");
            m.start.store(x.odd(), Relaxed);
            m.bias.store(x.odd(), Relaxed);
            m.ready.store(1, Relaxed);
        }
        shared.control().toggle_count.store(x.odd(), Relaxed);
        shared.control().functions.store(x.odd() as u32, Relaxed);
        shared.control().stacks_seq.store(x.odd() as u32, Relaxed);
        c.pass(round % 10 == 0);
        if round % 50 == 0 {
            c.every_second();
        }
    }
    let r = finish(c, path);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    let n: usize = r.events.values().map(Vec::len).sum();
    println!("{n} events of garbage, {} bytes of recording, {:?}", r.len, began.elapsed());
    assert!(r.counters.expect("counters").damaged_bytes > 0);
}

#[test]
fn a_damaged_segment_costs_no_more_than_itself() {
    let shared = new_ring(0);
    let (mut c, path) = collector(shared, "damaged");
    let mut w = Writer::new(shared, 0);
    for i in 0..5000 {
        w.put(&event(w.serial, i, 0));
    }
    let first =
        (0..64).find(|i| ring::view(&shared, *i).is_some_and(|v| v.seq == 2)).expect("open");
    // SAFETY: in bounds of the segment.
    unsafe { shared.data(first).expect("data").add(8000).write_bytes(0, 40) };
    for i in 5000..10_000 {
        w.put(&event(w.serial, i, 0));
        c.pass(false);
    }
    let r = finish(c, path);
    let n = r.events[&1].len();
    let damaged = r.counters.expect("counters").damaged_bytes;
    assert!(damaged > 8000 - 100 && damaged < SEGMENT_SIZE as u64, "{damaged}");
    assert!(n > 8000 && n < 10_000, "{n}");
    let last = r.events[&1].last().expect("some");
    assert!(is_event(last, 1, 9999));
}
