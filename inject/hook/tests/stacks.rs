//! Compares stacks that the hook takes in this process with glibc's `backtrace`, and each memoized stack with
//! a full unwind.

mod common;

use prof_trace::event::Event;
use prof_trace::shared::flags;
use std::hint::black_box;

unsafe extern "C" {
    fn backtrace(to: *mut usize, n: i32) -> i32;
}

/// Maximum number of samples in a round. Emulated processors, as those of other architectures mostly are,
/// take a minute for the larger number.
const SAMPLES: usize = if cfg!(target_arch = "x86_64") { 20_000 } else { 2_000 };

/// Frames beyond the end of `backtrace`: on these architectures libc's functions that start a thread have no
/// unwind tables.
const BEYOND: usize = if cfg!(any(target_arch = "arm", target_arch = "mips64")) { 2 } else { 0 };

struct Sample {
    block: u64,
    expect: Vec<u64>,
}

struct Walk {
    hook: common::Hook,
    samples: Vec<Sample>,
    seed: u64,
}

impl Walk {
    fn random(&mut self, n: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % n
    }

    /// Allocates, and notes the backtrace of the same place.
    #[inline(never)]
    fn sample(&mut self) {
        let mut pcs = [0usize; 2048];
        let block = self.hook.malloc(black_box(24));
        // SAFETY: the array has that many elements.
        let n = unsafe { backtrace(pcs.as_mut_ptr(), 2048) };
        self.hook.free(block);
        let expect = pcs[..n as usize].iter().map(|pc| *pc as u64).collect();
        self.samples.push(Sample { block: block as u64, expect });
    }

    #[inline(never)]
    fn a(&mut self, depth: u64) {
        self.go(depth);
        black_box(());
    }

    #[inline(never)]
    fn b(&mut self, depth: u64) {
        let room = black_box([depth; 40]);
        self.go(depth);
        self.go(depth / 2);
        black_box(room);
    }

    #[inline(never)]
    fn c(&mut self, depth: u64) {
        for _ in 0..2 {
            self.go(depth);
        }
        self.sample();
    }

    #[inline(never)]
    fn go(&mut self, depth: u64) {
        if self.random(4) == 0 {
            self.sample();
        }
        if depth == 0 || self.samples.len() > SAMPLES {
            return self.sample();
        }
        match self.random(3) {
            0 => self.a(depth - 1),
            1 => self.b(depth - 1),
            _ => self.c(depth - 1),
        }
    }
}

#[test]
fn stacks_equal_backtraces_at_every_depth() {
    let mut w =
        Walk { hook: common::install(flags::VERIFY), samples: Vec::new(), seed: 88172645463325252 };
    let mut checked = 0;
    for round in 0..12u64 {
        w.samples.clear();
        w.go([0, 3, 9, 30, 100, 400][round as usize % 6]);
        let events = w.hook.drain();
        let allocs: Vec<_> = events
            .iter()
            .filter_map(|e| match *e {
                Event::Alloc { addr, node, size, .. } => Some((addr, node, size)),
                _ => None,
            })
            .collect();
        let new = &allocs[allocs.len() - w.samples.len()..];
        for (s, (addr, node, size)) in w.samples.iter().zip(new) {
            assert_eq!((s.block, 24), (*addr, size.decode().0));
            let got = w.hook.stack(*node);
            // The innermost frame of both is in `sample`, at two different calls.
            let (same, beyond) = got.split_at(s.expect.len().min(got.len()));
            assert_eq!(same[1..], s.expect[1..], "round {round}");
            assert!((0..=BEYOND).contains(&beyond.len()), "round {round}: {beyond:x?}");
            checked += 1;
        }
    }
    assert!(checked > SAMPLES / 2, "{checked}");
    assert_eq!(w.hook.mismatches(), 0);
}
