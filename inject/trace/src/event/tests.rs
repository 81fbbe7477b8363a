use super::*;
use crate::call::{MAX_NAME, TEXTS};
use crate::size::CodedSize;

fn round(events: &[Event]) -> usize {
    let mut buf = [0u8; 4096];
    let mut w = Codec::default();
    let mut len = 0;
    for e in events {
        let at = buf[len..].as_mut_ptr();
        assert!(buf.len() - len >= MAX_EVENT);
        // SAFETY: the line above checks that MAX_EVENT bytes are left.
        let n = unsafe {
            match *e {
                Event::Alloc { time, addr, size, node } => w.put_alloc(at, time, addr, size, node),
                Event::Free { time, addr, node } => w.put_free(at, time, addr, node),
                Event::Realloc { time_before, time, old, addr, size, node } => {
                    w.put_realloc(at, time_before, time, old, addr, size, node)
                }
            }
        };
        assert!(n > 0 && n <= MAX_EVENT - 8, "{n}");
        len += n;
    }
    let mut r = Codec::default();
    let mut pos = 0;
    for e in events {
        let mut follows = r;
        let (got, n) = r.get(&buf[pos..len]).expect("an event");
        follows.follow(&got);
        assert_eq!((got, follows), (*e, r));
        pos += n;
    }
    assert_eq!(pos, len);
    assert_eq!(r, w);
    for cut in 1..len.min(200) {
        let mut r = Codec::default();
        let mut pos = 0;
        while let Some((_, n)) = r.get(&buf[pos..cut]) {
            pos += n;
            assert!(pos <= cut);
        }
    }
    len
}

#[test]
fn events_come_back_as_written() {
    let e = [
        Event::Alloc {
            time: Ticks(1 << 50),
            addr: 0x7f00_1234_5670,
            size: CodedSize(24),
            node: 900,
        },
        Event::Alloc {
            time: Ticks((1 << 50) + 300),
            addr: 0x7f00_1234_5690,
            size: CodedSize(24),
            node: 900,
        },
        Event::Free { time: Ticks((1 << 50) + 500), addr: 0x7f00_1234_5690, node: 0 },
        Event::Free { time: Ticks((1 << 50) + 501), addr: 0x10, node: 7 },
        Event::Alloc {
            time: Ticks((1 << 50) + 800),
            addr: 0x13,
            size: CodedSize(0),
            node: u32::MAX,
        },
        Event::Realloc {
            time_before: Ticks((1 << 50) + 900),
            time: Ticks((1 << 50) + 1000),
            old: 0x13,
            addr: 0xffff_ffff_fff0,
            size: CodedSize(1 << 47),
            node: 1,
        },
        Event::Alloc {
            time: Ticks((1 << 50) + 1000),
            addr: 0xffff_ffff_fff1,
            size: CodedSize((1 << 56) - 1),
            node: 0,
        },
    ];
    round(&e);
}

#[test]
fn definitions_come_back_as_written() {
    let mut buf = [0u8; 1024];
    let (mut w, mut r) = (Codec::default(), Codec::default());
    let all = [(0, [7, 0, 0]), (1, [500, 3, 0]), (3, [70_000, 1, 2_000_000]), (2, [9, 9, 9])];
    let all = all.map(|(parent, pcs)| (SegmentNode(parent), pcs.map(PcId)));
    let mut len = 0;
    for (parent, pcs) in all {
        // SAFETY: more than MAX_EVENT bytes are left in the buffer.
        let n = unsafe { w.put_define(buf[len..].as_mut_ptr(), parent, pcs) };
        assert!(n <= MAX_DEFINE);
        len += n;
    }
    // SAFETY: as above.
    len += unsafe { w.put_free(buf[len..].as_mut_ptr(), Ticks(5), 16, 3) };
    let mut pos = 0;
    for (parent, pcs) in all {
        let (e, n) = r.get_entry(&buf[pos..len]).expect("an entry");
        assert_eq!(e, Entry::Define { parent, pcs });
        pos += n;
    }
    let free = Entry::Event(Event::Free { time: Ticks(5), addr: 16, node: SegmentNode(3) });
    assert_eq!(r.get_entry(&buf[pos..len]).map(|(e, n)| (e, n + pos)), Some((free, len)));
    assert_eq!((r, r.defined), (w, 9));
    // A parent that is not defined, and a definition without nodes.
    assert_eq!(Codec::default().get_entry(&[5 | 1 << 4, 4, 0, 1]), None);
    assert_eq!(Codec::default().get_entry(&[5 | 1 << 4, 0, 1]), None);
    // `get` refuses definitions: a recording has none.
    assert_eq!(Codec::default().get(&buf), None);
}

#[test]
fn a_usual_pair_is_small() {
    let pair = [
        Event::Alloc { time: Ticks(0), addr: 0, size: CodedSize(0), node: 0 },
        Event::Alloc { time: Ticks(300), addr: 0x2000, size: CodedSize(48), node: 1000 },
        Event::Free { time: Ticks(600), addr: 0x2000, node: 0 },
    ];
    assert!(round(&pair) <= 2 + 9 + 4 + 1);
}

#[test]
fn values_that_do_not_fit_are_refused() {
    let mut buf = [0u8; MAX_EVENT];
    let mut c = Codec::default();
    // SAFETY: the buffer has MAX_EVENT bytes.
    let n = unsafe { c.put_alloc(buf.as_mut_ptr(), Ticks(1), 16, CodedSize(1 << 56), 1) };
    assert_eq!((n, c), (0, Codec::default()));
}

#[test]
fn arbitrary_bytes_do_no_harm() {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut buf = [0u8; 512];
    for _ in 0..2000 {
        for b in &mut buf {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            *b = x as u8;
        }
        let mut c = Codec::default();
        let mut pos = 0;
        while let Some((_, n)) = c.get(&buf[pos..]) {
            assert!(n >= 2);
            pos += n;
        }
    }
}

#[test]
fn calls_and_names_come_back_as_written() {
    use crate::call::CallKind;
    let full = RawCall {
        kind: CallKind::Mremap,
        time: Ticks((1 << 50) + 9),
        took: (1 << 56) - 1,
        addr: (1 << 55) - 1,
        len: u64::MAX,
        first: (1 << 56) - 1,
        second: (1 << 56) - 1,
        prot: 0xff,
        flags: u32::MAX,
        errno: 2047,
        node: u32::MAX,
    };
    let small = RawCall { time: Ticks((1 << 50) + 9), addr: 4096, node: 1, ..RawCall::default() };
    let mut buf = [0u8; 1024];
    let (mut w, mut r) = (Codec::default(), Codec::default());
    let mut ends = std::vec::Vec::new();
    let mut len = 0;
    let name = [b'n'; MAX_NAME];
    for call in [full, small, full] {
        for part in name.chunks(TEXT_BYTES) {
            // SAFETY: more than MAX_EVENT bytes are left in the buffer.
            len += unsafe { w.put_text(buf[len..].as_mut_ptr(), part) };
            ends.push(len);
        }
        // SAFETY: more than MAX_EVENT bytes are left in the buffer.
        let n = unsafe { w.put_call(buf[len..].as_mut_ptr(), &call) };
        assert!(n > 0 && n <= MAX_EVENT);
        len += n;
        ends.push(len);
    }
    let mut pos = 0;
    for call in [full, small, full] {
        let mut named = std::vec::Vec::new();
        for _ in 0..TEXTS {
            let Some((Entry::Text(bytes, n), used)) = r.get_entry(&buf[pos..len]) else {
                panic!("no text at {pos}")
            };
            named.extend_from_slice(&bytes[..n]);
            pos += used;
        }
        assert_eq!(named, name);
        let (got, used) = r.get_entry(&buf[pos..len]).expect("a call");
        // Numbers have 56 bits.
        let call = RawCall { len: call.len & ((1 << 56) - 1), ..call };
        assert_eq!(got, Entry::Call(call));
        pos += used;
    }
    assert_eq!((pos, r), (len, w));
    for cut in 0..len {
        let (mut r, mut pos) = (Codec::default(), 0);
        while let Some((_, n)) = r.get_entry(&buf[pos..cut]) {
            pos += n;
        }
        let whole = ends.iter().rev().find(|e| **e <= cut).copied().unwrap_or(0);
        assert_eq!(pos, whole, "cut at {cut}");
    }
    assert_eq!(Codec::default().get(&buf), None, "no event of a recording");
}
