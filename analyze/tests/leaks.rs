//! Verdicts on made-up programs: caches that were full before the recording began, leaks, and both at once.

mod common;

use common::{Maker, Random, START, Temp, alloc, free};
use prof_analyze::leaks::{Class, Confidence, LeakData, LeakOptions, Leaks};
use prof_analyze::query::{Filter, Query};
use prof_analyze::{Index, IndexOptions};
use prof_trace::event::Event;
use prof_trace::records::Target;
use std::collections::HashMap;

/// A heap that reuses the block of a size that was freed last, as allocators do.
struct Heap {
    free: HashMap<u64, Vec<u64>>,
    top: u64,
    now: u64,
    events: Vec<Event>,
    rss: u64,
    /// Sizes of the blocks, by address.
    sizes: HashMap<u64, u64>,
    recording: bool,
}

const MS: u64 = 1_000_000;
/// Number of steps: one per millisecond for a minute.
const STEPS: u64 = 60_000;

impl Heap {
    fn new() -> Self {
        Self {
            free: HashMap::new(),
            top: 0x10_0000,
            now: START,
            events: Vec::new(),
            rss: 64 << 20,
            sizes: HashMap::new(),
            recording: false,
        }
    }

    fn get(&mut self, size: u64, node: u32) -> u64 {
        let addr = self.free.get_mut(&size).and_then(Vec::pop).unwrap_or_else(|| {
            self.top += size.div_ceil(16) * 16 + 16;
            self.rss += if self.recording { size } else { 0 };
            self.top - size.div_ceil(16) * 16
        });
        self.sizes.insert(addr, size);
        self.now += 1000;
        if self.recording {
            self.events.push(alloc(self.now, addr, size, node));
        }
        addr
    }

    fn give(&mut self, addr: u64) {
        let size = self.sizes.remove(&addr).expect("a block");
        self.free.entry(size).or_default().push(addr);
        self.now += 1000;
        if self.recording {
            self.events.push(free(self.now, addr));
        }
    }
}

/// Runs a program: what it does before it is recorded, and in each millisecond afterwards.
fn record(
    r: &mut Random,
    mut before: impl FnMut(&mut Heap, &mut Random),
    mut step: impl FnMut(u64, &mut Heap, &mut Random),
) -> Leaks {
    let mut h = Heap::new();
    before(&mut h, r);
    (h.recording, h.now) = (true, START);
    let mut m = Maker::new();
    m.pcs(&[[1, 0x10, 0], [2, 0x20, 0], [3, 0x30, 0]]);
    m.nodes(&[[1, 0, 1], [2, 0, 2], [3, 0, 3]]);
    for i in 0..STEPS {
        h.now = START + i * MS;
        step(i, &mut h, r);
        if i % 50 == 49 {
            m.pages(START + (i + 1) * MS, h.rss / 4096, 1 << 20);
            m.events(1, &std::mem::take(&mut h.events));
        }
    }
    m.end(START + STEPS * MS);
    let file = Temp::new(&m.bytes);
    let index = Index::open(&file.0, &IndexOptions::default()).expect("a recording");
    let query = Query::new(&index, &Filter::default()).expect("a query");
    let options = LeakOptions { top: 0, classes: Class::ALL.to_vec(), ..LeakOptions::default() };
    Leaks::new(&index, &query, &options).expect("verdicts")
}

/// Returns the number of a stack, which is the address of its only frame.
fn node(s: &LeakData) -> u64 {
    s.id.into()
}

fn verdicts(l: &Leaks) -> Vec<(u64, Class, Confidence)> {
    l.stacks.iter().map(|s| (node(s), s.class, s.confidence)).collect()
}

fn nothing_grows(l: &Leaks) {
    assert!(l.stacks.iter().all(|s| s.class != Class::Growing), "{:?}", verdicts(l));
}

/// Fills a cache before it is recorded.
fn full(cache: &mut Vec<u64>, n: usize, h: &mut Heap, mut size: impl FnMut() -> u64) {
    cache.extend((0..n).map(|_| h.get(size(), 1)));
}

#[test]
fn a_cache_that_was_full_before_does_not_grow() {
    // Entries are replaced at random, between a tenth of them and three times all of them in a minute.
    for n in [200_000usize, 60_000, 20_000] {
        let mut cache = Vec::new();
        let mut other = Random(n as u64 | 1);
        let shared = std::cell::RefCell::new(&mut cache);
        let l = record(
            &mut other,
            |h, _| full(&mut shared.borrow_mut(), n, h, || 500),
            |_, h, r| {
                let mut c = shared.borrow_mut();
                let at = r.below(c.len() as u64) as usize;
                h.give(c[at]);
                c[at] = h.get(500, 1);
            },
        );
        nothing_grows(&l);
        let s = &l.stacks[0];
        assert!(n != 200_000 || s.class == Class::Turnover && s.replaced_count > 40_000, "{s:?}");
    }
}

#[test]
fn a_cache_that_drops_the_oldest_does_not_grow() {
    // The new block is allocated first, and sizes differ; within the minute 60 % of the entries are replaced.
    let cache = std::cell::RefCell::new(std::collections::VecDeque::new());
    let mut sizes = Random(3);
    let l = record(
        &mut Random(5),
        |h, _| {
            let mut v = Vec::new();
            full(&mut v, 100_000, h, || 64 + sizes.below(20) * 16);
            cache.borrow_mut().extend(v);
        },
        |_, h, r| {
            let mut c = cache.borrow_mut();
            c.push_back(h.get(64 + r.below(20) * 16, 1));
            h.give(c.pop_front().expect("a block"));
        },
    );
    nothing_grows(&l);
    assert_eq!(l.stacks[0].class, Class::Turnover);
}

#[test]
fn a_leak_is_found_beside_a_steady_cache() {
    // A leak in a stack of its own or the same, of the same size or not, at a tenth of the rate, which the frees could
    // hide.
    for (leak_node, leak_size) in [(2, 500), (2, 300), (1, 300)] {
        let cache = std::cell::RefCell::new(Vec::new());
        let l = record(
            &mut Random(9),
            |h, _| full(&mut cache.borrow_mut(), 100_000, h, || 500),
            |i, h, r| {
                let mut c = cache.borrow_mut();
                let at = r.below(c.len() as u64) as usize;
                h.give(c[at]);
                c[at] = h.get(500, 1);
                if i % 10 == 0 {
                    h.get(leak_size, leak_node);
                }
            },
        );
        let first = &l.stacks[0];
        let what = (leak_node, leak_size, verdicts(&l));
        assert!(first.class == Class::Growing && node(first) == u64::from(leak_node), "{what:?}");
        let growing = l.stacks.iter().filter(|s| s.class == Class::Growing).count();
        assert_eq!(growing, 1, "{what:?}");
        // 6,000 blocks in a minute.
        let rate = 6000 * leak_size * 60;
        let found = first.mean_growth_per_hour;
        assert!((rate * 7 / 10..rate * 13 / 10).contains(&found), "{found} of {rate}, {what:?}");
        if leak_node == 1 {
            assert_eq!(first.sizes, Some([300, 300]), "{what:?}");
            assert!(l.stacks[1..].iter().any(|s| s.class == Class::Turnover && node(s) == 1));
        }
    }
}

#[test]
fn a_leak_behind_a_cache_of_the_same_stack_and_size_is_found_by_its_age() {
    let cache = std::cell::RefCell::new(Vec::new());
    let l = record(
        &mut Random(11),
        |h, _| full(&mut cache.borrow_mut(), 8000, h, || 500),
        |i, h, r| {
            let mut c = cache.borrow_mut();
            // The number of blocks rises and falls between 4,000 and 8,000, all replaced every few seconds.
            for _ in 0..3 {
                let grow = (i / 1500) % 2 == 0;
                if c.len() > 4000 && (!grow || r.below(2) == 0) || c.len() >= 8000 {
                    h.give(c.remove(0));
                }
                if c.len() < 4000 || grow {
                    c.push(h.get(500, 1));
                }
            }
            if i % 40 == 0 {
                h.get(500, 1);
            }
        },
    );
    let first = &l.stacks[0];
    assert!(first.class == Class::Growing && first.older_ns.is_some(), "{:?}", verdicts(&l));
}

#[test]
fn leaks_stay_leaks() {
    // The leak alone, and while many blocks from before the recording are freed for other reasons.
    for burst in [false, true] {
        let old = std::cell::RefCell::new(Vec::new());
        let l = record(
            &mut Random(13),
            |h, _| full(&mut old.borrow_mut(), 50_000, h, || 500),
            |i, h, _| {
                if i % 20 == 0 {
                    h.get(500, 2);
                }
                if burst && (20_000..20_100).contains(&i) {
                    (0..5).for_each(|_| h.give(old.borrow_mut().pop().expect("a block")));
                }
            },
        );
        let first = &l.stacks[0];
        assert_eq!((first.class, node(first)), (Class::Growing, 2), "{:?}", verdicts(&l));
        assert_eq!(first.confidence, Confidence::High, "{burst}");
    }
}

#[test]
fn growth_that_the_kernel_does_not_see_is_not_sure() {
    // 30 MB that fit into what was free in the heap before.
    let l = record(
        &mut Random(15),
        |h, _| {
            let mut v = Vec::new();
            full(&mut v, 60_000, h, || 500);
            v.into_iter().for_each(|b| h.give(b));
        },
        |_, h, _| {
            h.get(500, 2);
        },
    );
    let v = verdicts(&l);
    assert_eq!(v, [(2, Class::Growing, Confidence::Low)]);
}

/// Makes a recording of two minutes of a stack that leaks blocks of 256 bytes, sampled at one per `mean` bytes.
fn sampled_leak(seed: u64, mean: u64, per_hour: u64) -> Leaks {
    const SECONDS: u64 = 120;
    let target = Target { sample_bytes: mean, max_size: u64::MAX, ..common::target() };
    let mut m = Maker::of(&target);
    m.pass(START);
    let mut random = Random(seed * 0x9e37_79b9 + 1);
    let each_ns = 256.0 / (per_hour as f64 / 3600e9);
    let picked = 1.0 - (-256.0 / mean as f64).exp();
    let (mut at, mut addr) = (0.0, 0x10_0000);
    loop {
        let u = (random.below(1 << 40) + 1) as f64 / (1u64 << 40) as f64;
        at += -u.ln() * each_ns / picked;
        if at >= SECONDS as f64 * 1e9 {
            break;
        }
        addr += 272;
        m.events(1, &[alloc(START + at as u64, addr, 256, 1)]);
    }
    m.end(START + SECONDS * 1000 * MS);
    let file = m.file();
    let index = Index::open(&file.0, &IndexOptions::default()).expect("a recording");
    let query = Query::new(&index, &Filter::default()).expect("a filter");
    Leaks::new(&index, &query, &LeakOptions::default()).expect("verdicts")
}

#[test]
fn a_leak_in_a_sample_is_seen_from_some_size_on() {
    const MEAN: u64 = 64 << 10;
    const SEEDS: u64 = 40;
    let limit = sampled_leak(1, MEAN, 1 << 20).seen_per_hour.expect("a sample has a limit");
    let found = |per_hour: u64| {
        let grows = |l: &Leaks| l.stacks.iter().any(|s| s.class == Class::Growing);
        (1..=SEEDS).filter(|seed| grows(&sampled_leak(*seed, MEAN, per_hour))).count()
    };
    let by_part: Vec<usize> = [1, 4, 16].iter().map(|n| found(limit / n)).collect();
    eprintln!("limit {limit}: found {by_part:?} of {SEEDS} at the limit, a quarter, a sixteenth");
    assert!(by_part[0] as u64 >= SEEDS * 9 / 10, "{by_part:?}");
    assert!(by_part[2] < by_part[0] / 2, "{by_part:?}");
    let text = sampled_leak(1, MEAN, limit).text(prof_analyze::report::Style::default());
    assert!(text.contains("shows what grows by"), "{text}");
}

#[test]
fn when_a_stack_began_is_known_though_its_brief_blocks_are_passed_over() {
    // One stack's blocks are brief for a minute, but for a last one; the other's first block comes late.
    let mut r = Random(29);
    let l = record(
        &mut r,
        |_, _| {},
        |i, h, _| {
            let addr = h.get(48, 1);
            h.give(addr);
            if i == STEPS - 100 {
                h.get(48, 1);
                h.get(64, 2);
            }
        },
    );
    let expected =
        [(1, Class::Saturating, Confidence::Medium), (2, Class::TooYoung, Confidence::Low)];
    assert_eq!(verdicts(&l), expected);
}
