//! Whatever the shared memory contains, the collector finishes with a readable recording.

mod common;
use common::*;
use prof_collect::Collector;
use prof_os::Pid;
use prof_trace::event::Codec;
use prof_trace::ids::{PcId, SegmentNode};
use prof_trace::pack::Compress;
use prof_trace::ring;
use prof_trace::shared::{SEGMENT_SIZE, Shared, segment};
use prof_trace::ticks::Ticks;
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

    /// Returns a small or a large number, rarely one in between.
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

fn collector(shared: Shared<'static>, name: &str) -> (Collector<'static>, std::path::PathBuf) {
    let path = temp(name);
    (Collector::new(Pid::this(), shared, start(&path)).expect("collector"), path)
}

fn finish(mut c: Collector<'_>, path: std::path::PathBuf) -> Recording {
    let ended = c.finish("stopped");
    assert!(ended.failure.is_none());
    let r = read(&path);
    std::fs::remove_file(path).expect("remove");
    r
}

#[test]
fn numbers_that_name_nothing_end() {
    let shared = new_ring(0);
    let (mut c, path) = collector(shared, "numbers");
    let index = ring::take(&shared, 0).expect("a segment");
    let data = shared.data(index).expect("data");
    let mut codec = Codec::default();
    let mut pos = 0;
    // SAFETY: a few bytes at the front of the segment are written, and no other thread uses it.
    unsafe {
        // Code addresses that do not exist, and an event that names a node not defined yet.
        pos += codec.put_define(data, SegmentNode::NONE, [1, u32::MAX, 4_000_000].map(PcId));
        pos += codec.put_alloc(data.add(pos), Ticks(10), 16, 1.into(), 900);
        pos += codec.put_alloc(data.add(pos), Ticks(11), 32, 1.into(), 3);
    }
    // The slot's thread is the segment's, so it may go on writing.
    shared.slot(0).expect("a slot").serial.store(1, Release);
    ring::open(&shared, index, 0, 1, 1, 1);
    shared.head(index).expect("head").committed.store(pos as u32, Release);
    c.pass(false);
    // A definition below a node not defined yet: hooks never write that, and what follows can't be read.
    // SAFETY: the writes stay near the front of the segment, which no other thread uses.
    unsafe {
        pos += codec.put_define(data.add(pos), SegmentNode(500), [1, 0, 0].map(PcId));
        pos += codec.put_alloc(data.add(pos), Ticks(12), 48, 1.into(), 1);
    }
    shared.head(index).expect("head").committed.store(pos as u32, Release);
    c.pass(false);
    let r = finish(c, path);
    assert_eq!(r.events[&1].len(), 2);
    assert_eq!(r.nodes.len(), 3);
    assert!(r.counters.expect("counters").damaged_bytes > 0);
}

#[test]
fn garbage_everywhere_does_no_harm() {
    let shared = new_ring(0);
    let mut x = Random(0x1234_5678_9abc_def1);
    let (mut c, path) = collector(shared, "garbage");
    let began = Instant::now();
    let segments = shared.geometry().segments();
    for round in 0..400 {
        c.set_compress(Compress::ALL[round % 3].0);
        for i in 0..segments {
            let h = shared.head(i).expect("head");
            h.serial.store(x.odd() as u32, Relaxed);
            h.tid.store(x.odd() as u32, Relaxed);
            h.slot.store(x.odd() as u32, Relaxed);
            h.seq.store(x.odd(), Relaxed);
            h.committed.store(x.odd() as u32, Relaxed);
            let data = shared.data(i).expect("data");
            for at in (0..SEGMENT_SIZE).step_by(if round % 2 == 0 { 8 } else { 512 }) {
                // SAFETY: the offset is in bounds of the segment.
                unsafe { data.add(at).cast::<u64>().write_unaligned(x.next()) };
            }
            h.state.store(
                if x.next().is_multiple_of(2) { segment::ACTIVE } else { segment::CLOSED },
                Release,
            );
            let pc = shared.pc(x.next() as usize % 1_000_000).expect("pc");
            pc.key.store(x.odd(), Relaxed);
            pc.rule.store(x.odd(), Relaxed);
        }
        for w in 0..segments / 64 {
            shared.free_word(w).expect("word").store(x.odd(), Relaxed);
        }
        for i in 0..100 {
            let index = x.next() as usize % 8192;
            shared.note_slot(index);
            let s = shared.slot(index).expect("slot");
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
    // SAFETY: the 40 bytes are in bounds of the segment.
    unsafe { shared.data(first).expect("data").add(8000).write_bytes(0, 40) };
    for i in 5000..10_000 {
        w.put(&event(w.serial, i, 0));
        c.pass(false);
    }
    let r = finish(c, path);
    let n = r.events[&1].len();
    let damaged = r.counters.expect("counters").damaged_bytes;
    assert!(damaged > 7000 && damaged < SEGMENT_SIZE as u64, "{damaged}");
    assert!(n > 8000 && n < 10_000, "{n}");
    let last = r.events[&1].last().expect("some");
    assert!(is_event(last, 1, 9999));
}

#[test]
fn counters_that_the_target_writes_over_are_not_believed() {
    let shared = new_ring(0);
    let (mut c, path) = collector(shared, "counters");
    let mut w = Writer::new(shared, 0);
    for i in 0..2000 {
        w.put(&event(w.serial, i, 0));
    }
    let slot = shared.used_slots().next().expect("a slot");
    slot.events.store(2000, Relaxed);
    slot.lost.store(7, Relaxed);
    c.pass(false);
    let t = c.counters();
    assert_eq!((t.events, t.lost, t.doubtful), (2000, 7, 0));
    for nonsense in [u64::MAX, 0, u64::MAX / 2] {
        slot.lost.store(nonsense, Relaxed);
        let t = c.counters();
        assert_eq!((t.events, t.lost, t.doubtful), (2000, 7, 1), "{nonsense}");
    }
    let r = finish(c, path);
    let t = r.counters.expect("counters");
    assert_eq!((t.lost, t.doubtful), (7, 1));
}

#[test]
fn events_that_are_gone_before_they_were_read_are_lost() {
    let shared = new_ring(0);
    let (c, path) = collector(shared, "unread");
    let mut w = Writer::new(shared, 0);
    for i in 0..500 {
        w.put(&event(w.serial, i, 0));
    }
    shared.used_slots().next().expect("a slot").events.store(500, Relaxed);
    // The heads claim that nothing was written.
    for i in 0..shared.geometry().segments() {
        if let Some(head) = shared.head(i) {
            head.committed.store(0, Relaxed);
        }
    }
    let t = finish(c, path).counters.expect("counters");
    assert_eq!(t.lost, 500);
}
