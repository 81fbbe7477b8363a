//! Recordings of threads that pass blocks to each other, with times that are too early, as the hook may take them.

mod common;

use common::{Maker, Random, alloc, free};
use prof_trace::event::Event;
use prof_trace::records::Target;
use std::collections::HashMap;

/// Number of ticks by which times may be too early.
const EARLY: u64 = 40;

/// The last event at an address.
#[derive(Clone, Copy)]
struct Last {
    time: u64,
    thread: usize,
    live: bool,
}

/// Makes threads that allocate and free blocks at few addresses. A thread that believes to be the last one that had the
/// block may take its time before the event that its own one follows, but not before the event preceding that.
fn write(
    r: &mut Random,
    m: &mut Maker,
    threads: usize,
    addresses: u64,
) -> (u64, HashMap<u64, Last>) {
    let mut events: Vec<Vec<Event>> = vec![Vec::new(); threads];
    let mut knows: Vec<HashMap<u64, bool>> = vec![HashMap::new(); threads];
    let mut own_time = vec![0; threads];
    let mut last: HashMap<u64, [Last; 2]> = HashMap::new();
    let (mut now, mut moved) = (1100, 0);
    for _ in 0..4000 {
        now += 2 + 2 * r.below(15);
        let addr = 0x10 * (1 + r.below(addresses));
        let thread = r.below(threads as u64) as usize;
        let before = Last { time: 0, thread, live: false };
        let [older, newer] = *last.get(&addr).unwrap_or(&[before; 2]);
        let is_free = newer.live;
        let owned = knows[thread].insert(addr, !is_free) == Some(is_free);
        let near = newer.thread != thread && now - newer.time < EARLY;
        let earliest = own_time[thread].max(older.time + 1).max(now.saturating_sub(EARLY));
        let mut time = now;
        if owned && near && earliest <= newer.time {
            time = earliest + r.below(newer.time - earliest + 1);
            moved += 1;
        }
        if owned {
            time |= 1;
        }
        own_time[thread] = time;
        let event = if is_free { free(time, addr) } else { alloc(time, addr, addr, 1) };
        events[thread].push(event);
        // An odd time may be one tick later than the real one.
        last.insert(addr, [newer, Last { time: now.max(time), thread, live: !is_free }]);
    }
    m.pass(now + 1);
    for (thread, events) in events.iter().enumerate() {
        m.events(1 + thread as u32, events);
    }
    m.end(now + 2);
    (moved, last.into_iter().map(|(addr, l)| (addr, l[1])).collect())
}

#[test]
fn times_that_are_too_early_make_no_difference() {
    let (mut moved, mut wrong) = (0, 0);
    for seed in 1..40u64 {
        let mut r = Random(seed * 0x9e37_79b9);
        let (threads, addresses) = (2 + r.below(4) as usize, 1 + r.below(12));
        for early in [EARLY, 0] {
            let mut m = Maker::of(&Target { early, ..common::target() });
            let (n, truth) = write(&mut Random(seed), &mut m, threads, addresses);
            moved += n;
            let a = m.analysis();
            let t = a.totals();
            let live: u64 = truth.iter().filter(|(_, l)| l.live).map(|(addr, _)| addr).sum();
            let good = (t.figures.live_bytes, t.unknown_frees, t.implied_frees) == (live, 0, 0);
            assert!(good || early == 0, "seed {seed}: {t:?}, {live} are live");
            wrong += u64::from(!good);
        }
    }
    // Times were indeed too early, and a reader that ignores that gets wrong figures.
    assert!(moved > 1000 && wrong > 20, "{moved} {wrong}");
}
