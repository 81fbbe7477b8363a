//! Figures of recordings whose contents are known.

mod common;

use common::{Maker, alloc, free, realloc};
use prof_analyze::Analysis;
use prof_analyze::heap::{BlockStats, Group, Totals};
use prof_analyze::report::Head;
use prof_trace::records::{Counters, Hook, Hooks, Target, kind};

fn group(a: &Analysis, node: u32) -> Group {
    *a.groups().iter().find(|g| g.node == node).expect("a group")
}

fn check_sums(a: &Analysis) {
    let sum = |f: fn(&BlockStats) -> u64| a.groups().iter().map(|g| f(&g.figures)).sum::<u64>();
    let t = a.totals();
    let all: [fn(&BlockStats) -> u64; 6] = [
        |f| f.live_count,
        |f| f.live_bytes,
        |f| f.allocations,
        |f| f.reallocations,
        |f| f.allocated_bytes,
        |f| f.temporary,
    ];
    for f in all {
        assert_eq!(sum(f), f(&t.figures), "{t:?}");
    }
    let Totals { figures, frees, unknown_frees, implied_frees, .. } = t;
    assert_eq!(
        figures.live_count + frees + implied_frees,
        figures.allocations + unknown_frees,
        "{t:?}"
    );
}

#[test]
fn totals_peaks_and_ages_of_one_thread() {
    let mut m = Maker::new();
    m.pass(2000);
    m.events(
        1,
        &[
            alloc(1100, 0x10, 100, 1),
            alloc(1200, 0x20, 50, 2),
            alloc(1300, 0x30, 30, 1),
            free(1400, 0x10),
            alloc(1500, 0x40, 60, 2),
            free(1600, 0x99), // from before the attach
            free(1700, 0x20),
        ],
    );
    m.end(5000);
    let a = m.analysis();
    check_sums(&a);
    let t = *a.totals();
    assert_eq!((t.figures.allocations, t.frees, t.figures.reallocations), (4, 3, 0));
    assert_eq!((t.figures.live_count, t.figures.live_bytes), (2, 90));
    assert_eq!((t.figures.peak_count, t.figures.peak_bytes), (3, 180));
    assert_eq!((t.unknown_frees, t.implied_frees, t.figures.temporary), (1, 0, 0));
    assert_eq!(t.figures.allocated_bytes, 240);
    assert_eq!((a.peak_at_ns(), a.duration_ns(), a.events()), (300, 4000, 7));
    assert!(a.complete() && a.notes().is_empty(), "{:?}", a.notes());
    let (one, two) = (group(&a, 1), group(&a, 2));
    assert_eq!((one.figures.peak_count, one.figures.peak_bytes), (2, 130));
    assert_eq!((two.figures.peak_count, two.figures.peak_bytes), (2, 110));
    assert_eq!((one.figures.live_bytes, two.figures.live_bytes), (30, 60));
    assert_eq!(a.oldest_age_ns(&one), Some(3700));
    assert_eq!(a.oldest_age_ns(&two), Some(3500));
}

#[test]
fn temporary_is_what_the_same_thread_frees_next() {
    let mut m = Maker::new();
    m.pass(9000);
    m.events(
        1,
        &[
            alloc(1100, 0x10, 1, 1),
            free(1110, 0x10), // temporary
            alloc(1120, 0x10, 1, 1),
            alloc(1130, 0x20, 1, 2),
            free(1140, 0x10), // not the newest
            free(1150, 0x20), // not the next event
            alloc(1200, 0x30, 1, 3),
            alloc(1400, 0x40, 1, 4),
        ],
    );
    // Another thread frees 0x30, and allocates and frees in between; its events do not count for the first thread's.
    m.events(2, &[free(1300, 0x30), alloc(1310, 0x50, 1, 5), free(1320, 0x50)]);
    m.events(1, &[free(1500, 0x40)]); // temporary: the other thread's events don't matter
    let a = m.analysis();
    check_sums(&a);
    let temporary = |n| group(&a, n).figures.temporary;
    let all: Vec<_> = (1..=5).map(temporary).collect();
    assert_eq!(all, [1, 0, 0, 1, 1]);
}

#[test]
fn a_block_that_another_thread_got_is_not_temporary() {
    let mut m = Maker::new();
    m.pass(9000);
    m.events(1, &[alloc(1100, 0x10, 1, 1), free(1500, 0x10)]);
    m.events(2, &[free(1200, 0x10), alloc(1300, 0x10, 1, 2)]);
    let a = m.analysis();
    check_sums(&a);
    assert_eq!((a.totals().figures.temporary, a.totals().unknown_frees), (0, 0));
    assert_eq!(a.totals().figures.live_count, 0);
}

#[test]
fn realloc_moves_bytes_between_groups() {
    let mut m = Maker::new();
    m.pass(9000);
    m.events(
        1,
        &[
            alloc(1100, 0x10, 10, 1),
            alloc(1110, 0x20, 5, 9),
            realloc(1200, 1210, 0x10, 0x10, 30, 2), // in place
            realloc(1300, 1310, 0x10, 0x80, 70, 2), // moved; what goes on is not temporary
            realloc(1400, 1410, 0x777, 0x90, 8, 3), // from before the attach
            free(1500, 0x20),
        ],
    );
    let a = m.analysis();
    check_sums(&a);
    let t = a.totals();
    assert_eq!((t.figures.allocations, t.figures.reallocations, t.frees), (2, 3, 1));
    assert_eq!((t.unknown_frees, t.implied_frees), (1, 0));
    assert_eq!((t.figures.live_count, t.figures.live_bytes), (2, 78));
    assert_eq!(t.figures.allocated_bytes, 10 + 5 + 30 + 70 + 8);
    // The old block ends before the new one begins.
    assert_eq!(t.figures.peak_bytes, 83);
    let two = group(&a, 2).figures;
    assert_eq!((two.live_bytes, two.peak_bytes, two.peak_count), (70, 70, 1));
    assert_eq!((two.temporary, two.allocations, two.reallocations), (0, 0, 2));
    assert_eq!(group(&a, 1).figures.live_count, 0);
}

#[test]
fn names_of_one_function_count_its_calls_once() {
    let mut m = Maker::new();
    let hook = |index, name: &str| Hook {
        index,
        function: name.into(),
        module: "/lib/libc.so.6".into(),
        method: "inline".into(),
    };
    let hooked = vec![hook(0, "malloc"), hook(0, "__libc_malloc"), hook(1, "free")];
    m.put(kind::HOOKS, &Hooks { hooked, not_hooked: Vec::new() }.encode());
    m.counters(&Counters { events: 9, calls: vec![5, 4], ..Counters::default() });
    m.events(1, &[alloc(1100, 0x10, 10, 1)]);
    let head = Head::new(&m.analysis(), &[]);
    let hooks: Vec<_> = head
        .recording
        .hooks
        .iter()
        .map(|h| (h.function.as_str(), h.calls, h.alias_of.as_deref()))
        .collect();
    let alias = Some("malloc");
    assert_eq!(hooks, [("malloc", 5, None), ("__libc_malloc", 0, alias), ("free", 4, None)]);
}

#[test]
fn addresses_reused_across_threads_and_passes_come_in_order() {
    // Thread 1 frees at 1500 the address that thread 2 allocates at 1501, but thread 2 is drained in the pass before:
    // its later event must wait.
    let mut m = Maker::new();
    m.pass(1400);
    m.events(1, &[alloc(1100, 0x10, 10, 1)]);
    m.events(2, &[alloc(1501, 0x10, 20, 2), free(1700, 0x10)]);
    m.pass(1800);
    m.events(1, &[free(1500, 0x10), alloc(1701, 0x10, 30, 3)]);
    m.pass(1900);
    m.end(2000);
    let a = m.analysis();
    check_sums(&a);
    let t = a.totals();
    assert_eq!((t.unknown_frees, t.implied_frees), (0, 0));
    assert_eq!((t.figures.live_bytes, t.figures.peak_bytes), (30, 30));
}

#[test]
fn frees_come_before_allocations_of_the_same_moment() {
    let mut m = Maker::new();
    m.pass(9000);
    m.events(1, &[alloc(1200, 0x10, 2, 2)]);
    m.events(2, &[alloc(1100, 0x10, 1, 1), free(1200, 0x10)]);
    let a = m.analysis();
    assert_eq!((a.totals().implied_frees, a.totals().figures.live_bytes), (0, 2));
    assert_eq!(a.totals().figures.peak_bytes, 2);
}

#[test]
fn a_late_realloc_does_not_take_the_next_owner_s_block() {
    // Thread 1 was interrupted after its realloc freed 0x10 and before it could write the event. Thread 2 allocated at
    // 0x10 meanwhile, and the order of its events was final long ago.
    let mut m = Maker::new();
    m.pass(1200);
    m.events(1, &[alloc(1100, 0x10, 10, 1)]);
    m.events(2, &[alloc(1300, 0x10, 20, 2)]);
    m.pass(2000).pass(3000).pass(4000);
    m.events(1, &[realloc(1250, 3900, 0x10, 0x50, 40, 1)]);
    m.pass(5000);
    let a = m.analysis();
    check_sums(&a);
    assert_eq!(a.totals().figures.live_bytes, 60);
    assert_eq!((a.totals().implied_frees, a.totals().unknown_frees), (0, 0));
    assert_eq!(a.totals().figures.live_count, 2);
}

#[test]
fn blocks_freed_in_a_pause_end_when_their_address_comes_again() {
    let mut m = Maker::new();
    m.toggle(1000, 1);
    m.pass(3000);
    m.events(1, &[alloc(1100, 0x10, 10, 1), alloc(2100, 0x10, 20, 1)]);
    m.toggle(1500, 0).toggle(2000, 1);
    m.end(3000);
    let a = m.analysis();
    check_sums(&a);
    assert_eq!((a.totals().implied_frees, a.totals().figures.live_bytes), (1, 20));
    assert_eq!(group(&a, 1).figures.peak_bytes, 20);
    let parts: Vec<_> = a.parts().iter().map(|p| (p.start.0, p.end.0)).collect();
    assert_eq!(parts, [(1000, 1500), (2000, 3000)]);
}

#[test]
fn a_long_segment_may_span_chunks_with_their_own_decoding_state() {
    let events: Vec<_> = (0..1000).map(|i| alloc(1100 + i, 16 * (i + 1), i, 1)).collect();
    let mut m = Maker::new();
    m.pass(9000);
    let mut codec = prof_trace::event::Codec::default();
    for part in events.chunks(7) {
        let e = common::encode(3, codec, part);
        codec = e.codec();
        let mut pos = 0;
        while let Some((_, n)) = codec.get(&e.bytes[pos..]) {
            pos += n;
        }
        m.put(prof_trace::records::kind::EVENTS, &e.encode());
    }
    let a = m.analysis();
    assert_eq!((a.events(), a.totals().figures.live_count), (1000, 1000));
    assert_eq!(a.totals().figures.live_bytes, 499_500);
}

#[test]
fn waiting_events_may_stay_in_the_file() {
    let mut m = Maker::new();
    for pass in 0..20u64 {
        m.pass(2000 + pass * 1000);
        for thread in 0..5 {
            let at = 2000 + pass * 1000 + u64::from(thread);
            let addr = 16 + 16 * u64::from(thread);
            m.events(thread, &[alloc(at, addr, 7, 1), free(at + 500, addr)]);
        }
    }
    let file = m.file();
    let plain = Analysis::from_file(&file.0, &Default::default()).expect("a recording");
    let options = prof_analyze::LoadOptions { pending_bytes: 0 };
    let spilled = Analysis::from_file(&file.0, &options).expect("a recording");
    assert_eq!(plain.totals(), spilled.totals());
    assert_eq!(plain.totals().figures.allocations, 100);
    assert_eq!(plain.totals().figures.peak_bytes, 35);
    check_sums(&spilled);
}

#[test]
fn a_follower_gets_where_the_analysis_gets() {
    use std::io::Write;
    let mut m = Maker::new();
    let file = m.file();
    let mut f = prof_analyze::Follower::open(&file.0).expect("a recording");
    let mut grow = |m: &Maker, from: usize| {
        let mut w = std::fs::File::options().append(true).open(&file.0).expect("open");
        w.write_all(&m.bytes[from..]).expect("write");
        f.poll().expect("poll")
    };
    assert_eq!(grow(&m, m.bytes.len()).events, 0);
    let from = m.bytes.len();
    m.pass(1500).events(1, &[alloc(1100, 0x10, 10, 1), alloc(1600, 0x20, 7, 1)]);
    let p = grow(&m, from);
    assert_eq!((p.totals.figures.live_bytes, p.finished), (0, false));
    let from = m.bytes.len();
    m.pass(2500);
    assert_eq!(grow(&m, from).totals.figures.live_bytes, 10);
    let from = m.bytes.len();
    m.pass(3500).events(1, &[free(3000, 0x10)]);
    assert_eq!(grow(&m, from).totals.figures.live_bytes, 17);
    let from = m.bytes.len();
    m.end(4000);
    let p = grow(&m, from);
    assert_eq!((p.totals.figures.live_bytes, p.finished, p.events), (7, true, 3));
    assert_eq!(p.totals, *m.analysis().totals());
    let s = prof_analyze::live_summary(&file.0, &Default::default()).expect("a recording");
    assert_eq!((s.on, s.parts, s.complete, s.events), (true, 1, true, 3));
    assert_eq!((s.totals, s.duration_ns, s.bytes), (p.totals, 3000, m.bytes.len() as u64));
}

#[test]
fn a_node_with_several_ids_is_one_group() {
    let write = |ids: [u32; 4]| {
        let mut m = Maker::new();
        m.pcs(&[[1, 0x1000, 0], [2, 0x2000, 0], [3, 0x3000, 0]]).pass(2000);
        m.nodes(&[[1, 0, 1], [2, 1, 2]]);
        m.events(1, &[alloc(1100, 0x10, 100, ids[0]), alloc(1150, 0x20, 7, 1)]);
        // The same stack under another ID, and one below it by way of the second ID.
        m.nodes(&[[3, 0, 1], [4, 3, 2], [5, 4, 3], [6, 2, 3]]).pass(3000);
        m.events(2, &[alloc(2100, 0x30, 50, ids[1]), free(2200, 0x10)]);
        m.events(1, &[realloc(2300, 2301, 0x20, 0x28, 9, ids[2]), alloc(2400, 0x40, 1, ids[3])]);
        m.end(5000);
        m.analysis()
    };
    let (several, one) = (write([2, 4, 5, 6]), write([2, 2, 5, 5]));
    check_sums(&several);
    assert_eq!(several.groups(), one.groups());
    assert_eq!(several.totals(), one.totals());
    assert_eq!(several.groups().len(), 3);
    assert_eq!(group(&several, 2).figures.allocations, 2);
    assert_eq!(several.meta().stack(5), several.meta().stack(6));
}

/// Makes a recording in which times may be too early by 10 ticks. Thread 1 allocates 0x10, thread 2 frees it, allocates
/// it again, and passes it to thread 1.
fn handed_back(m: &mut Maker) {
    m.pass(9000);
    m.events(2, &[free(1200, 0x10), alloc(1300, 0x10, 20, 2)]);
}

fn with_early_times() -> Maker {
    Maker::of(&Target { early: 10, ..common::target() })
}

#[test]
fn a_free_that_is_too_early_is_of_the_block_that_follows() {
    for (time, unknown) in [(1291, 0), (1305, 0), (1289, 1), (1292, 1)] {
        let mut m = with_early_times();
        handed_back(&mut m);
        m.events(1, &[alloc(1100, 0x10, 10, 1), free(time, 0x10), alloc(1400, 0x20, 30, 3)]);
        let a = m.analysis();
        check_sums(&a);
        let t = a.totals();
        assert_eq!((t.unknown_frees, t.implied_frees), (unknown, 0), "{time}");
        assert_eq!(t.figures.live_bytes, 30 + 20 * unknown, "{time}");
        assert_eq!(t.figures.peak_bytes, 30 + 20 * unknown, "{time}");
        assert_eq!(group(&a, 2).figures.allocated_bytes, 20);
    }
    // This does not apply where times are never too early.
    let mut m = Maker::new();
    handed_back(&mut m);
    m.events(1, &[alloc(1100, 0x10, 10, 1), free(1295, 0x10)]);
    let t = *m.analysis().totals();
    assert_eq!((t.unknown_frees, t.figures.live_bytes), (1, 20));
}

#[test]
fn a_free_that_is_too_early_and_read_late_is_of_the_block_that_follows() {
    let mut m = with_early_times();
    m.pass(1150);
    m.events(1, &[alloc(1100, 0x10, 10, 1)]);
    m.events(2, &[free(1200, 0x10), alloc(1300, 0x10, 20, 2)]);
    m.pass(2000).pass(3000).pass(4000);
    m.events(1, &[free(1295, 0x10)]);
    m.pass(5000);
    let a = m.analysis();
    check_sums(&a);
    assert_eq!((a.totals().unknown_frees, a.totals().figures.live_bytes), (0, 0));
}

#[test]
fn blocks_from_before_are_none_that_follow() {
    // Thread 1 can't have had the block, or its time would be odd.
    let mut m = with_early_times();
    m.pass(9000);
    m.events(1, &[free(1296, 0x10)]);
    m.events(2, &[alloc(1300, 0x10, 20, 2)]);
    let t = *m.analysis().totals();
    assert_eq!((t.unknown_frees, t.figures.live_bytes), (1, 20));
}

#[test]
fn an_allocation_that_is_too_early_does_not_end_with_the_block_before() {
    // Thread 1 had 0x10 first, thread 2 next, and then thread 1 again. The last free is of thread 2's block, by thread
    // 2 or 3. Or, if thread 1's time can't be too early (1489 is too far off, 1492 is even), it is of thread 1's block.
    for (time, freed_by, live) in
        [(1491, 2, 30), (1491, 3, 30), (1505, 2, 30), (1489, 2, 0), (1492, 2, 0)]
    {
        let mut m = with_early_times();
        m.pass(9000);
        m.events(1, &[alloc(1100, 0x10, 10, 1), free(1200, 0x10), alloc(time, 0x10, 30, 3)]);
        m.events(2, &[alloc(1300, 0x10, 20, 2)]);
        m.events(freed_by, &[free(1500, 0x10)]);
        let a = m.analysis();
        check_sums(&a);
        let t = a.totals();
        assert_eq!((t.implied_frees, t.unknown_frees), (u64::from(live == 0), 0), "{time}");
        assert_eq!(t.figures.live_bytes, live, "{time}");
    }
}
