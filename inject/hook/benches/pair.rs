//! What the hook adds to a malloc and free pair, in this process, without patches or injector:
//! nanoseconds by stack depth, medians of interleaved rounds. `cargo bench -p prof-hook`.

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

fn time(n: usize, f: impl FnOnce()) -> f64 {
    let t = Instant::now();
    f();
    t.elapsed().as_nanos() as f64 / n as f64
}

fn main() {
    let hook = common::install(0);
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
        let native = |_: usize| {
            // SAFETY: a pair.
            unsafe { free(black_box(malloc(black_box(48)))) }
        };
        let hooked = |_: usize| hook.free(black_box(hook.malloc(black_box(48))));
        println!("{:>8} {:>10} {:>10} {:>10}", "depth", "native ns", "hooked ns", "added ns");
        for depth in [1usize, 10, 40, 200] {
            let mut rows: Vec<(f64, f64)> = (0..9)
                .map(|_| {
                    let n = time(PAIRS, || deep(depth, &|| (0..PAIRS).for_each(native)));
                    let h = time(PAIRS, || deep(depth, &|| (0..PAIRS).for_each(hooked)));
                    (n, h)
                })
                .collect();
            rows.sort_by(|a, b| (a.1 - a.0).total_cmp(&(b.1 - b.0)));
            let (n, h) = rows[rows.len() / 2];
            println!("{depth:>8} {n:>10.1} {h:>10.1} {:>10.1}", h - n);
        }
        let run = |f: &dyn Fn()| {
            // 100 paths of 5 to 30 frames, in random order.
            let mut order = 88172645463325252u64;
            for _ in 0..PAIRS / 4 {
                order ^= order << 13;
                order ^= order >> 7;
                order ^= order << 17;
                let site = order % 100;
                mixed(&mut (site * 0x9e37_79b9_7f4a_7c15 + 1), 5 + site % 26, f);
            }
        };
        let mut rows: Vec<(f64, f64)> = (0..9)
            .map(|_| {
                let n = time(PAIRS / 4, || run(&|| native(0)));
                let h = time(PAIRS / 4, || run(&|| hooked(0)));
                (n, h)
            })
            .collect();
        rows.sort_by(|a, b| (a.1 - a.0).total_cmp(&(b.1 - b.0)));
        let (n, h) = rows[rows.len() / 2];
        println!("{:>8} {n:>10.1} {h:>10.1} {:>10.1}", "random", h - n);
        stop.store(true, Relaxed);
    });
}
