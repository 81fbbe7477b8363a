//! Tests of what is held back, and of the looks through the live blocks.

use super::*;
use prof_trace::event::Event;
use prof_trace::size::CodedSize;

/// The events that a sieve lets through, and the number of its passes.
#[derive(Default)]
struct Out {
    events: Vec<Event>,
    passes: usize,
}

impl Sieved for Out {
    fn pass(&mut self, _: &Pass) {
        self.passes += 1;
    }

    fn events(&mut self, _: u32, events: &[Event]) {
        self.events.extend(events);
    }
}

fn alloc(time: u64, addr: u64) -> Event {
    Event::Alloc { time: Ticks(time), addr, size: CodedSize(8), node: 1 }
}

fn free(time: u64, addr: u64) -> Event {
    Event::Free { time: Ticks(time), addr, node: 0 }
}

fn pass(cull: &mut Cull, ticks: u64, out: &mut Out) {
    cull.pass(&Pass { ticks: Ticks(ticks), ..Pass::default() }, out);
}

fn realloc(time: u64, old: u64, addr: u64) -> Event {
    let [time_before, time] = [time - 1, time].map(Ticks);
    Event::Realloc { time_before, time, old, addr, size: CodedSize(8), node: 1 }
}

/// Creates one for times in nanoseconds.
fn cull(threshold_ns: u64, pending: u64) -> Cull {
    let target = Target { ticks_per_sec: 1_000_000_000, ..Target::default() };
    Cull::new(&target, CullOptions { threshold_ns, pending })
}

/// Returns the addresses of `n` blocks.
fn addrs(n: u64) -> impl Iterator<Item = u64> {
    (1..=n).map(|i| i * 16)
}

#[test]
fn looks_are_paid_for_by_many_events_also_if_little_may_be_held() {
    let (n, old) = (100_000, 30_000);
    let (mut cull, mut out) = (cull(1000, 0), Out::default());
    cull.decoded(1, addrs(n).map(|addr| alloc(2 + addr / 16, addr)).collect());
    pass(&mut cull, 1_000_000_000, &mut out);
    pass(&mut cull, 2_000_000_000, &mut out);
    // Many blocks end that stay, each of which is held for a while.
    cull.decoded(1, addrs(old).map(|addr| free(1_500_000_000 + addr, addr)).collect());
    let before = cull.replay.watch.looks;
    pass(&mut cull, 3_000_000_000, &mut out);
    let looks = cull.replay.watch.looks - before;
    let places = cull.replay.watch_and_alive().1.places() as u64;
    // A batch has more events than a small table lets wait, but not than this one.
    assert!((1..=old * 256 / places).contains(&looks), "{looks} looks through {places} places");
    cull.finish(&mut out);
    assert_eq!(out.events.len() as u64, n + old);
    assert_eq!(cull.replay.watch.early, 0);
}

#[test]
fn many_blocks_are_written_a_part_in_each_pass() {
    let (n, second) = (100_000, 1_000_000_000);
    let (mut cull, mut out) = (cull(1000, 0), Out::default());
    cull.decoded(1, addrs(n).map(|addr| alloc(2 + addr / 16, addr)).collect());
    let (mut parts, mut before) = (0, 0);
    for i in 1..=20 {
        pass(&mut cull, i * second, &mut out);
        let written = out.events.len() - before;
        before = out.events.len();
        // Each place of the table holds four bytes of a list of 16 for each block.
        let places = cull.replay.watch_and_alive().1.places();
        assert!(written <= places / 4 + 20_000, "{written} at once, with {places} places");
        parts += usize::from(written > 0);
    }
    assert!(parts > 1 && cull.replay.watch.looks < 20, "{parts} parts");
    assert_eq!((out.events.len(), cull.replay.watch.early), (n as usize, 0));
    assert!(out.events.is_sorted_by_key(Event::time));
    cull.finish(&mut out);
    assert_eq!(out.events.len(), n as usize);
}

/// Returns the events of 100 chains of three blocks each, which begin at `start`.
fn chains(start: u64) -> Vec<Event> {
    let of = |i| {
        let (time, addr) = (start + 10 * i, 64 * (start + i));
        let again = [realloc(time + 2, addr, addr + 16), realloc(time + 4, addr + 16, addr + 32)];
        [vec![alloc(time, addr)], again.to_vec()].concat()
    };
    (0..100).flat_map(of).collect()
}

#[test]
fn only_blocks_that_are_young_when_they_are_written_count_as_early() {
    // There is room for some 200 of the blocks of chains.
    let (mut cull, mut out) = (cull(5000, 15_000), Out::default());
    // Blocks that will be old, and chains that are young when there is no more room.
    let old = addrs(50).map(|addr| alloc(2 + addr / 16, addr));
    cull.decoded(1, old.chain(chains(10_000)).collect());
    pass(&mut cull, 12_000, &mut out);
    pass(&mut cull, 12_001, &mut out);
    // Half of the blocks of chains are written, up to the first block of a chain.
    let watch = &cull.replay.watch;
    assert_eq!((watch.line(), watch.early, watch.looks), (Ticks(10_501), 151, 1));
    // The others of that chain stay, so they do not count when they are written.
    cull.decoded(1, chains(12_000));
    pass(&mut cull, 13_500, &mut out);
    pass(&mut cull, 13_501, &mut out);
    let watch = &cull.replay.watch;
    assert_eq!((watch.line(), watch.looks), (Ticks(12_625), 3));
    assert_eq!(watch.early, 3 * 100 - 2 + 3 * 63 - 2);
    cull.finish(&mut out);
    assert_eq!(cull.replay.watch.early, 485);
    let begun = out.events.iter().filter(|e| !matches!(e, Event::Free { .. }));
    assert_eq!(begun.count(), 50 + 2 * 300);
}

#[test]
fn many_ends_of_one_moment_that_went_unseen_take_no_long_time() {
    let (n, then) = (50_000, 1_000_000);
    let (mut cull, mut out) = (cull(1000, 64 << 20), Out::default());
    let old = addrs(n).map(|addr| alloc(2 + addr / 16, addr));
    // The blocks that imply the ends are left out.
    let again = addrs(n).flat_map(|addr| [alloc(then, addr), free(then, addr)]);
    let (old, again) = (old.collect(), again.collect());
    cull.decoded(1, old);
    cull.decoded(1, again);
    cull.finish(&mut out);
    let ends = out.events.iter().filter(|e| matches!(e, Event::Free { .. }));
    assert_eq!(ends.filter(|e| e.time() == Ticks(then)).count() as u64, n);
    assert_eq!((out.events.len() as u64, cull.replay.watch.culled.0), (2 * n, n));
}
