//! Measures what the hook adds to a malloc and free pair, in this process, without patches or injector:
//! nanoseconds by stack depth, medians of interleaved rounds. `cargo bench -p prof-hook`.
//!
//! `cargo bench -p prof-hook -- count HOW WHERE PAIRS` makes so many pairs and nothing else, for
//! valgrind to count instructions: HOW is `native` or `hooked`, WHERE a depth, `random` or `settled`.

#[path = "../tests/common/mod.rs"]
#[allow(dead_code)]
mod common;

use prof_trace::ring;
use prof_trace::shared::segment;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

const PAIRS: usize = 200_000;

unsafe extern "C" {
    fn malloc(n: usize) -> *mut u8;
    fn free(p: *mut u8);
}

#[inline(never)]
fn deep(depth: usize, f: &dyn Fn()) {
    if depth <= 1 {
        f();
    } else {
        deep(depth - 1, f);
    }
    black_box(depth);
}

#[inline(never)]
fn mixed(seed: &mut u64, depth: u64, f: &dyn Fn()) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    if depth == 0 {
        return f();
    }
    match *seed % 4 {
        0 => mixed(seed, depth - 1, f),
        1 => mixed(seed, depth - 1, black_box(f)),
        2 => {
            mixed(seed, depth - 1, f);
            black_box(());
        }
        _ => {
            let x = black_box([1u8; 64]);
            mixed(seed, depth - 1, f);
            black_box(x);
        }
    }
    black_box(depth);
}

/// Calls `f` from 100 call paths of 5 to 30 frames, in random order.
fn random(pairs: usize, f: &dyn Fn()) {
    let mut order = 88172645463325252u64;
    for _ in 0..pairs {
        order ^= order << 13;
        order ^= order >> 7;
        order ^= order << 17;
        let site = order % 100;
        mixed(&mut (site * 0x9e37_79b9_7f4a_7c15 + 1), 5 + site % 26, f);
    }
}

#[inline(never)]
fn again(pairs: usize, f: &dyn Fn()) {
    for _ in 0..pairs {
        f();
    }
    black_box(pairs);
}

/// Calls `f` 10 frames deep, after this stack has taken turns with others.
fn settled(pairs: usize, f: &dyn Fn()) {
    for round in 0..=20 {
        let pairs = if round < 20 { 1 } else { pairs };
        deep(10, &|| again(pairs, f));
        if round < 20 {
            random(1 + round, f);
        }
    }
}

/// Call stack that pairs are made from.
#[derive(Clone, Copy)]
enum Place {
    Depth(usize),
    Random,
    Settled,
}

impl Place {
    fn run(self, pairs: usize, f: &dyn Fn()) {
        match self {
            Self::Depth(depth) => deep(depth, &|| (0..pairs).for_each(|_| f())),
            Self::Random => random(pairs, f),
            Self::Settled => settled(pairs, f),
        }
    }

    /// Returns the number of pairs in one measurement.
    fn pairs(self) -> usize {
        if let Self::Random = self { PAIRS / 4 } else { PAIRS }
    }

    fn name(self) -> String {
        match self {
            Self::Depth(depth) => depth.to_string(),
            Self::Random => "random".into(),
            Self::Settled => "settled".into(),
        }
    }
}

fn native() {
    // SAFETY: it frees what it has just allocated.
    unsafe { free(black_box(malloc(black_box(48)))) }
}

/// Returns the medians of nine rounds: ns of a native pair, and of a hooked one.
fn measure(place: Place, hooked: &dyn Fn()) -> (f64, f64) {
    let time = |f: &dyn Fn()| {
        let t = Instant::now();
        place.run(place.pairs(), f);
        t.elapsed().as_nanos() as f64 / place.pairs() as f64
    };
    let mut rows: Vec<(f64, f64)> = (0..9).map(|_| (time(&native), time(hooked))).collect();
    rows.sort_by(|a, b| (a.1 - a.0).total_cmp(&(b.1 - b.0)));
    rows[rows.len() / 2]
}

/// Makes the pairs of `count HOW WHERE PAIRS`. The ring has room for some hundred thousand pairs.
fn count(hooked: &dyn Fn(), args: &[String]) {
    let [how, place, pairs] = args else {
        panic!("count native|hooked DEPTH|random|settled PAIRS")
    };
    let place = match &**place {
        "random" => Place::Random,
        "settled" => Place::Settled,
        depth => Place::Depth(depth.parse().expect("a depth")),
    };
    let pairs = pairs.parse().expect("PAIRS is a number");
    place.run(pairs, if how == "native" { &native } else { hooked });
}

fn main() {
    let hook = common::install(0);
    let hooked = || hook.free(black_box(hook.malloc(black_box(48))));
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    if args.first().is_some_and(|a| a == "count") {
        return count(&hooked, &args[1..]);
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                for i in 0..hook.shared.geometry().segments() {
                    if hook.shared.head(i).is_some_and(|h| h.state.load(Relaxed) == segment::CLOSED)
                    {
                        ring::give_back(&hook.shared, i);
                    }
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        println!("{:>8} {:>10} {:>10} {:>10}", "depth", "native ns", "hooked ns", "added ns");
        let depths = [1, 10, 40, 200].map(Place::Depth);
        for place in depths.into_iter().chain([Place::Random, Place::Settled]) {
            let (n, h) = measure(place, &hooked);
            println!("{:>8} {n:>10.1} {h:>10.1} {:>10.1}", place.name(), h - n);
        }
        stop.store(true, Relaxed);
    });
}
