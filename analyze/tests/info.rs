//! The description of a file compared with what was put there.

mod common;

use common::world::{make, write};
use common::{Maker, Random, alloc, free, realloc};
use prof_analyze::info::Info;
use prof_analyze::report::Style;
use prof_analyze::{Index, IndexOptions, Note};
use prof_trace::event::Event;
use prof_trace::pack::Compress;
use prof_trace::records::{Epoch, kind};
use prof_trace::ticks::Ticks;

fn info(m: &Maker) -> Info {
    let file = m.file();
    let index = Index::open(&file.0, &IndexOptions::default()).expect("a recording");
    Info::new(&index).expect("an answer")
}

#[test]
fn chunks_and_events_are_counted_however_they_are_compressed() {
    for compress in [Compress::None, Compress::Fast, Compress::Best] {
        let mut r = Random(0x1234_5678_9abc);
        let w = make(&mut r, 4000, 3);
        let m = write(&mut r, &w, 3, compress);
        let i = info(&m);
        let count = |wanted: &dyn Fn(&Event) -> bool| {
            w.steps.iter().filter(|(_, e)| wanted(e)).count() as u64
        };
        let found = |kind: &str| {
            let e = i.events.iter().find(|e| e.kind == kind).expect("a kind");
            assert_eq!(e.count > 0, e.bytes > 0 && e.ring_bytes > 0, "{e:?}");
            e.count
        };
        assert_eq!(found("alloc"), count(&|e| matches!(e, Event::Alloc { .. })));
        assert_eq!(found("free"), count(&|e| matches!(e, Event::Free { .. })));
        assert_eq!(found("realloc"), count(&|e| matches!(e, Event::Realloc { .. })));
        assert_eq!(found("free with stack"), 0);
        for t in &i.threads {
            let own = w.steps.iter().filter(|s| s.0 == t.number).count() as u64;
            assert_eq!(t.events, own, "{t:?}");
        }
        // Every byte of the file belongs to the header or a chunk, and every byte of events to a chunk.
        assert_eq!(i.chunks.iter().map(|c| c.bytes).sum::<u64>() + 16, i.file.bytes);
        let of_events = |n: &str| n == "events" || n == "packed";
        let chunks = i.chunks.iter().filter(|c| of_events(c.name)).map(|c| c.bytes).sum::<u64>();
        let events = i.events.iter().map(|e| e.bytes).sum::<u64>();
        assert!(chunks.abs_diff(events) <= 4, "{chunks} {events}");
        let [c] = &i.file.compression[..] else { panic!("{:?}", i.file.compression) };
        assert_eq!((c.name, c.events), (compress.name(), w.steps.len() as u64));
        assert_eq!(c.bytes, chunks);
        // Every block has a lifetime.
        let blocks = i.lifetimes.iter().map(|l| l.count).sum::<u64>();
        assert_eq!(blocks, w.blocks.len() as u64);
        let live = i.lifetimes.last().expect("a last one");
        assert_eq!((live.live, live.bytes), (true, w.live));
        let text = i.text(Style::default());
        assert!(text.contains("still live") && text.contains("realloc"), "{text}");
    }
}

#[test]
fn lifetimes_fall_where_they_belong() {
    const MS: u64 = 1_000_000;
    let mut m = Maker::new();
    m.pass(1000);
    m.events(
        1,
        &[
            alloc(2000, 0x1000, 10, 0),
            alloc(2000, 0x2000, 20, 0),
            alloc(2000, 0x3000, 40, 0),
            free(2000 + MS - 1, 0x1000),
            free(2000 + MS, 0x2000),
            realloc(2000 + 20_000 * MS, 2001 + 20_000 * MS, 0x3000, 0x3000, 80, 0),
        ],
    );
    m.end(2000 + 40_000 * MS);
    let i = info(&m);
    let below = |ns: u64| {
        let l = i.lifetimes.iter().find(|l| l.below_ns == Some(ns)).expect("a bucket");
        (l.count, l.bytes)
    };
    assert_eq!(below(MS), (1, 10));
    assert_eq!(below(10 * MS), (1, 20));
    assert_eq!(below(30_000 * MS), (1, 40));
    let live = i.lifetimes.last().expect("a last one");
    assert_eq!((live.live, live.count, live.bytes), (true, 1, 80));
}

#[test]
fn what_is_damaged_unknown_or_hostile_is_counted_too() {
    let mut m = Maker::new();
    m.pass(1000).thread(1, 77, "a\x1b[2Jb").events(1, &[alloc(2000, 0x1000, 10, 0)]);
    m.put(999, b"from the future").put(13, b"no packed events");
    let whole = m.bytes.len();
    m.put(3, b"cut off").bytes.truncate(whole + 9);
    let i = info(&m);
    let future = i.chunks.iter().find(|c| c.kind == 999).expect("an unknown kind");
    assert_eq!((future.name, future.count, future.bytes), ("unknown", 1, 16 + 15));
    assert_eq!((i.file.read_bytes, i.file.bytes), (whole as u64, whole as u64 + 9));
    assert_eq!(i.threads[0].name, "a\\u{1b}[2Jb");
    assert!(i.head.recording.notes.iter().any(|n| n.contains("can't be decoded")));
    let text = i.text(Style::default());
    assert!(text.contains("kind 999") && !text.contains('\x1b'), "{text}");
    assert_eq!(info(&Maker::new()).events.iter().map(|e| e.count).sum::<u64>(), 0);
}

#[test]
fn that_the_counter_went_back_is_said() {
    let mut m = Maker::new();
    m.pass(2000).events(1, &[alloc(2001, 0x10, 8, 0)]);
    m.put(kind::EPOCH, &Epoch { ticks: Ticks(3000), back: 7_000_000_000, offset: 9 }.encode());
    m.pass(3000).events(2, &[free(3001, 0x10)]).pass(3100).end(3200);
    let a = m.analysis();
    let [note] = a.notes() else { panic!("{:?}", a.notes()) };
    assert_eq!(*note, Note::Epochs { times: 1, back_ns: 7_000_000_000 });
    assert!(note.to_string().contains("went back once, by 7.0 s"), "{note}");
    assert_eq!((a.totals().figures.live_count, a.totals().unknown_frees), (0, 0));
    // A build that did not notice the jump backwards.
    let mut m = Maker::new();
    m.pass(2000).events(1, &[alloc(2001, 0x10, 8, 0)]);
    m.pass(100).events(2, &[free(101, 0x10)]).pass(200).end(300);
    let a = m.analysis();
    assert_eq!(a.notes(), [Note::WentBack(1)]);
    assert!(a.notes()[0].to_string().contains("times go back once"), "{}", a.notes()[0]);
}
