//! Packed events survive the round trip, and malformed chunks do no harm.
#![cfg(feature = "std")]

use prof_trace::event::{Codec, Event, MAX_EVENT};
use prof_trace::pack::{Compress, MAX_EVENTS, Packed, Packer, Run, Unpacker};
use prof_trace::ticks::Ticks;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Generates events as a program might produce them; if `wild`, also some that no program does.
fn events(r: &mut Random, n: usize, wild: bool) -> Vec<Event> {
    let (mut time, mut blocks, mut next) = (1u64 << 50, Vec::new(), 0x7f00_0000_0010u64);
    let mut all = Vec::new();
    for _ in 0..n {
        time += 20 * (1 + r.below(40));
        let (node, size) = (1 + r.below(30) as u32, 8 << r.below(9));
        let wildly = wild && r.below(20) == 0;
        let node = if wildly { r.next() as u32 } else { node };
        let size = if wildly { r.next() } else { size };
        all.push(match r.below(if blocks.is_empty() { 1 } else { 5 }) {
            0 | 1 => {
                next = if wildly { r.next() >> 4 } else { next + (size + 24) / 16 * 16 };
                blocks.push(next);
                Event::Alloc { time: Ticks(time), addr: next, size: size.into(), node }
            }
            2 | 3 => {
                let at = if r.below(2) == 0 { 0 } else { r.below(blocks.len() as u64) as usize };
                let addr = blocks.remove(at);
                let node = if r.below(4) == 0 { node } else { 0 };
                Event::Free { time: Ticks(time), addr, node }
            }
            _ => {
                let old = blocks.pop().unwrap_or(16);
                time += if wildly { r.next() >> 4 } else { 0 };
                let time_before = time - r.below(1000).min(time);
                blocks.push(old + 32);
                Event::Realloc {
                    time_before: Ticks(time_before),
                    time: Ticks(time),
                    old,
                    addr: old + 32,
                    size: size.into(),
                    node,
                }
            }
        });
    }
    all
}

fn encode(from: Codec, events: &[Event]) -> (Vec<u8>, Codec) {
    let (mut w, mut bytes) = (from, Vec::new());
    for e in events {
        let at = bytes.len();
        bytes.resize(at + MAX_EVENT, 0);
        let p = bytes[at..].as_mut_ptr();
        // SAFETY: MAX_EVENT bytes were added on the line before.
        let n = unsafe {
            match *e {
                Event::Alloc { time, addr, size, node } => w.put_alloc(p, time, addr, size, node),
                Event::Free { time, addr, node } => w.put_free(p, time, addr, node),
                Event::Realloc { time_before, time, old, addr, size, node } => {
                    w.put_realloc(p, time_before, time, old, addr, size, node)
                }
            }
        };
        assert!(n > 0, "{e:?}");
        bytes.truncate(at + n);
    }
    (bytes, w)
}

fn unpack(payload: &[u8]) -> Option<(Vec<Run>, Vec<Vec<Event>>)> {
    let packed = Packed::read(payload)?;
    let mut runs = vec![Vec::new(); packed.runs.len()];
    Unpacker::default().unpack(&packed, |run, e| runs[run].push(e))?;
    assert_eq!(runs.iter().map(Vec::len).sum::<usize>(), packed.events());
    Some((packed.runs, runs))
}

const ALL: [Compress; 3] = [Compress::None, Compress::Fast, Compress::Best];

/// Packs a run with few guesses from the bytes of a segment; returns the number of bytes packed.
fn few(packer: &mut Packer, thread: u32, codec: &mut Codec, bytes: &[u8]) -> usize {
    let mut run = packer.begin::<false>(thread, codec, bytes.len());
    let taken = codec.visit(bytes, &mut run);
    run.end();
    taken
}

#[test]
fn all_guesses_are_not_made_behind_few() {
    let (bytes, _) = encode(Codec::default(), &events(&mut Random(13), 500, true));
    let all = |p: &mut Packer| p.run(1, &mut Codec::default(), &bytes, |_| {}).1;
    let mut p = Packer::new();
    assert_eq!(all(&mut p), bytes.len());
    assert_eq!(few(&mut p, 2, &mut Codec::default(), &bytes), bytes.len());
    let mut run = p.begin::<true>(3, &Codec::default(), bytes.len());
    assert_eq!(Codec::default().visit(&bytes, &mut run), 0);
    run.end();
    assert_eq!(few(&mut p, 4, &mut Codec::default(), &bytes), bytes.len());
    let mut payload = Vec::new();
    p.finish(Compress::Fast, &mut payload);
    let (heads, got) = unpack(&payload).expect("packed");
    assert_eq!(heads.iter().map(|h| h.thread).collect::<Vec<_>>(), [1, 2, 4]);
    assert!(got.iter().all(|run| *run == got[0]));
    assert_eq!(all(&mut p), bytes.len(), "in the next chunk they are");
}

#[test]
fn events_come_back_as_they_were() {
    let mut r = Random(7);
    let mut packer = Packer::new();
    for (round, how) in ALL.into_iter().cycle().take(60).enumerate() {
        let mut runs = Vec::new();
        for thread in 0..1 + r.below(6) as u32 {
            let n = 1 + r.below(3000) as usize;
            let mut from = Codec::default();
            if r.below(2) == 0 {
                let past =
                    Event::Alloc { time: Ticks(r.next() >> 8), addr: 64, size: 1.into(), node: 77 };
                from = encode(from, &[past]).1;
            }
            let made = events(&mut r, n, thread % 2 == 1);
            let (bytes, end) = encode(from, &made);
            let (mut codec, mut nodes) = (from, Vec::new());
            if round % 2 == 0 {
                let got = packer.run(thread, &mut codec, &bytes, |n| nodes.push(n));
                assert_eq!((got, codec), ((n as u32, bytes.len()), end));
                assert_eq!(nodes, made.iter().map(Event::node).collect::<Vec<_>>());
            } else {
                assert_eq!(
                    (few(&mut packer, thread, &mut codec, &bytes), codec),
                    (bytes.len(), end)
                );
            }
            runs.push((Run { thread, count: n as u32, time: from.time, node: from.node }, made));
        }
        let mut payload = Vec::new();
        packer.finish(how, &mut payload);
        assert_eq!(packer.events(), 0);
        let (heads, got) = unpack(&payload).expect("packed");
        assert_eq!(heads, runs.iter().map(|r| r.0).collect::<Vec<_>>());
        assert_eq!(got, runs.into_iter().map(|r| r.1).collect::<Vec<_>>());
    }
}

#[test]
fn what_is_no_event_ends_a_run_and_a_full_chunk_takes_no_more() {
    let made = events(&mut Random(9), 10, false);
    let (mut bytes, _) = encode(Codec::default(), &made);
    let good = bytes.len();
    bytes.extend([0xff; 5]);
    let mut p = Packer::new();
    assert_eq!(p.run(1, &mut Codec::default(), &bytes, |_| {}), (10, good));
    assert_eq!(p.run(1, &mut Codec::default(), &[0xff; 5], |_| {}), (0, 0));
    let small = [0x12, 0x00, 1]; // a free of the last address
    let full: Vec<u8> = small.repeat((MAX_EVENTS - 10) / 3 * 2);
    assert!(p.has_room(full.len()));
    let (n, _) = p.run(1, &mut Codec::default(), &full, |_| {});
    assert_eq!(n as usize, full.len() / 3);
    assert_eq!(p.run(1, &mut Codec::default(), &[0; 2 * MAX_EVENTS], |_| {}), (0, 0));
    let mut payload = Vec::new();
    p.finish(Compress::Fast, &mut payload);
    assert_eq!(unpack(&payload).expect("packed").1[0], made);
    p.finish(Compress::Fast, &mut payload);
    p.finish(Compress::Fast, &mut payload);
    assert!(payload.len() < 5000);
}

#[test]
fn usual_events_are_small() {
    // A program that repeats one thing, at varying intervals.
    let (mut r, mut made, mut time) = (Random(3), Vec::new(), 1u64 << 50);
    let addr = |i: u64| 0x7f00_0000_0010 + i % 5 * 112;
    for i in 0..5000u64 {
        time += 50 + r.below(200);
        let node = 40 + (i % 7) as u32;
        made.push(Event::Alloc {
            time: Ticks(time),
            addr: addr(i),
            size: (24 + i % 7 * 8).into(),
            node,
        });
        time += 50 + r.below(200);
        if i >= 3 {
            made.push(Event::Free { time: Ticks(time), addr: addr(i - 3), node: 0 });
        }
    }
    let (bytes, _) = encode(Codec::default(), &made);
    let small = |how| {
        let mut p = Packer::new();
        assert_eq!(p.run(1, &mut Codec::default(), &bytes, |_| {}).0 as usize, made.len());
        let mut payload = Vec::new();
        p.finish(how, &mut payload);
        payload.len() as f64 / made.len() as f64
    };
    let [columns, fast, best] = ALL.map(small);
    assert!(columns < 2.2 && fast < 1.3 && best < 1.1, "{columns} {fast} {best}");
}

#[test]
fn hostile_chunks_do_no_harm() {
    let mut r = Random(11);
    for how in ALL {
        let mut p = Packer::new();
        for thread in 0..3 {
            let (bytes, _) = encode(Codec::default(), &events(&mut r, 300, true));
            p.run(thread, &mut Codec::default(), &bytes, |_| {});
        }
        let mut payload = Vec::new();
        p.finish(how, &mut payload);
        assert!(unpack(&payload).is_some());
        for cut in 0..payload.len() {
            assert!(unpack(&payload[..cut]).is_none(), "{how:?} cut at {cut}");
        }
        for _ in 0..1000 {
            let mut bad = payload.clone();
            for _ in 0..1 + r.below(4) {
                let front = r.below(2) == 0;
                let at = r.below(if front { 40 } else { bad.len() as u64 }) as usize;
                bad[at] = r.next() as u8;
            }
            let _ = unpack(&bad);
        }
    }
    for _ in 0..5000 {
        let head = [r.below(4) as u8, 1 + r.below(3) as u8];
        let n = r.below(100);
        let mut chunk = head.to_vec();
        for _ in 0..n {
            let small = r.below(8);
            chunk.push(r.next() as u8 >> small);
        }
        let _ = unpack(&chunk);
    }
    // Sizes that are declared, but whose bytes are missing.
    for coder in 0..3 {
        let mut huge = vec![coder, 1, 1, 0x80, 0x80, 0x02, 0, 0];
        for _ in 0..6 {
            huge.extend([0xff, 0xff, 0xff, 0x7f]);
        }
        assert!(unpack(&huge).is_none());
    }
}

/// The written bytes do not depend on the machine's byte order: recordings are read elsewhere. (tests/vm/user
/// runs this on a big-endian machine.)
#[test]
fn the_bytes_are_the_same_on_every_machine() {
    use prof_trace::chunk::{FILE_VERSION, checksum, file_header, folded_header, put};
    use prof_trace::records::{Target, kind};
    let made = events(&mut Random(21), 1000, true);
    let (bytes, _) = encode(Codec::default(), &made);
    let mut packer = Packer::new();
    packer.run(7, &mut Codec::default(), &bytes, |_| {});
    let mut payload = Vec::new();
    packer.finish(Compress::None, &mut payload);
    let target =
        Target { pid: 0x1234, exe: "/bin/x".into(), wall_ns: 1 << 40, ..Target::default() };
    assert_eq!(file_header()[8..12], 5u32.to_le_bytes());
    assert_eq!(folded_header()[8..12], FILE_VERSION.to_le_bytes());
    let mut file = Vec::new();
    put(&mut file, kind::TARGET, &target.encode());
    put(&mut file, kind::PACKED, &payload);
    assert_eq!(file[..4], [1, 0, 0, 0]);
    assert_eq!((bytes.len(), checksum(0, &bytes)), EVENTS);
    assert_eq!((file.len(), checksum(0, &file)), WHOLE);
}

/// Lengths and checksums, which a change of the format changes.
const EVENTS: (usize, u64) = (9686, 5096042207071016620);
const WHOLE: (usize, u64) = (8023, 15258618760034686653);
