//! Sampling: decides which allocations are recorded, before anything else is done for them.
//!
//! By bytes: a Poisson process places points on the allocated bytes of a thread, and an allocation is
//! recorded if a point falls into it. The distance to the next point is drawn from an exponential
//! distribution, which has no memory: so each allocation of `s` bytes has the probability `1 - exp(-s /
//! mean)`, whatever came before it (Knuth, The Art of Computer Programming, volume 2, 3.4.1 D).
//!
//! The mean may change while recording is on ([`flags::ADAPTS`]); the hook reads it only when it draws. A distance that
//! was drawn before stays valid, and the block at its end states the mean with which it was drawn. The probability of
//! that block follows from that mean, as the rest of an exponential distance is distributed as the whole was. So
//! estimates have no bias, however the mean is chosen from what was seen before.
//!
//! By number: one of each `N` allocations in a row, at a random place among them. A fixed place would be in
//! step with programs that repeat themselves, and select the same allocation each time.

use crate::state::{SAY, Thread};
use crate::{clock, header};
use core::sync::atomic::Ordering::Relaxed;
use prof_trace::shared::{Control, Slot, flags};
use prof_trace::size::RATES;

/// Returns whether an allocation of `size` bytes by the slot's thread is recorded. To be called only if
/// `flags::SELECT` is set.
#[inline(always)]
pub fn selects(c: &Control, slot: &Slot, t: &mut Thread, size: u64) -> bool {
    let step = step(c, size);
    !passes_by(c, slot, size, step) && (step == 0 || arrived(c, slot, t, step))
}

/// Returns whether an allocation is certainly not recorded. If so, the allocation has been counted. Otherwise nothing
/// has been changed, and [`selects`] decides.
#[inline(always)]
fn passes(c: &Control, slot: &Slot, size: u64) -> bool {
    passes_by(c, slot, size, step(c, size))
}

/// Decides as `passes` for most allocations, in less time; returns false for some that pass, too.
#[inline(always)]
pub fn plainly_passes(c: &Control, slot: &Slot, size: u64) -> bool {
    match c.sample_bytes.load(Relaxed) {
        0 => passes(c, slot, size),
        _ => size.wrapping_sub(1) < MOST && passes_by(c, slot, size, size),
    }
}

#[inline(always)]
fn passes_by(c: &Control, slot: &Slot, size: u64, step: u64) -> bool {
    if size < c.min_size || size > c.max_size {
        return true;
    }
    let left = slot.distance.load(Relaxed) as i64 - step as i64;
    if step == 0 || left <= 0 {
        return false;
    }
    slot.distance.store(left as u64, Relaxed);
    true
}

/// Returns how far an allocation advances towards the next point; 0: all are recorded.
#[inline(always)]
fn step(c: &Control, size: u64) -> u64 {
    match (c.sample_bytes.load(Relaxed), c.sample_every) {
        (0, every) => (every > 1) as u64,
        // A block of 0 bytes counts as one of 1 byte.
        _ => size.clamp(1, MOST),
    }
}

/// Maximum of a distance, and of what a block counts for.
const MOST: u64 = 1 << 60;

/// Handles an allocation that reaches the next point, or the thread's first; returns whether it is recorded.
#[cold]
#[inline(never)]
fn arrived(c: &Control, slot: &Slot, t: &mut Thread, step: u64) -> bool {
    // At least 1, whatever the target has written there.
    let every = c.sample_every.max(1);
    let (mean, rate) = mean(c);
    let mut random = slot.random.load(Relaxed);
    if random == 0 {
        slot.drawn.store(rate, Relaxed);
        random = clock::seed(header::shared()) ^ (slot.serial.load(Relaxed) as u64) << 40;
        let bits = next(&mut random);
        let start = match mean {
            0 => 1 + bits % every,
            _ => exponential(mean, bits),
        };
        if start > step {
            slot.random.store(random, Relaxed);
            slot.distance.store(start - step, Relaxed);
            return false;
        }
    }
    let last = output(random);
    let bits = next(&mut random);
    let distance = match mean {
        // From the place in this row to its end, and on to the place in the next row.
        0 => every - last % every + bits % every,
        _ => exponential(mean, bits),
    };
    slot.drawn.store(slot.drawn.load(Relaxed) << 8 | rate, Relaxed);
    say(slot, t);
    slot.random.store(random, Relaxed);
    slot.distance.store(distance, Relaxed);
    true
}

/// Returns the mean to draw with, and its exponent if blocks state it, else 0.
fn mean(c: &Control) -> (u64, u32) {
    let mean = c.sample_bytes.load(Relaxed);
    if c.flags.load(Relaxed) & flags::ADAPTS == 0 || mean == 0 {
        return (mean, 0);
    }
    let rate = mean.ilog2().clamp((*RATES.start()).into(), (*RATES.end()).into());
    (1 << rate, rate)
}

/// Makes [`look`](crate::block_header::look) state the distance of the block that is being sampled, unless the thread's last
/// event had the same distance.
fn say(slot: &Slot, t: &mut Thread) {
    let rate = sampled_at(slot);
    if rate != t.rate {
        t.rate = rate;
        t.flags = SAY;
    }
}

/// Returns the exponent of the distance of the thread's last sampled block; 0 if blocks do not state it.
pub fn sampled_at(slot: &Slot) -> u8 {
    (slot.drawn.load(Relaxed) >> 8) as u8
}

/// Returns the next number of SplitMix64 (Steele, Lea, Flood, 2014); the state is never 0 afterwards.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15).max(1);
    output(*state)
}

/// Returns the number that belongs to a state of the generator.
fn output(state: u64) -> u64 {
    let mut z = state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Returns an exponentially distributed number with this mean: `-ln(u) * mean` for the `u` in (0, 1) that the
/// 64 random bits stand for, in integers.
fn exponential(mean: u64, bits: u64) -> u64 {
    const LN_2: u128 = 0xb172_17f7; // times 2^32
    let u = bits | 1;
    // -log2(u), with 32 binary places; those of the mantissa's logarithm are computed one by one.
    let zeros = u.leading_zeros() as u64;
    let mut mantissa = u << zeros; // 1 to 2, times 2^63
    let mut log = 0u64;
    for _ in 0..32 {
        let square = mantissa as u128 * mantissa as u128; // 1 to 4, times 2^126
        let two = (square >> 127) as u64;
        mantissa = (square >> (63 + two)) as u64;
        log = log << 1 | two;
    }
    let minus_log2 = ((zeros + 1) << 32) - log;
    let minus_ln = (minus_log2 as u128 * LN_2) >> 32;
    let distance = (minus_ln * mean.min(MOST >> 8) as u128) >> 32;
    // Rounded up: the result is at most `s` with the same probability as the real number is below `s`.
    (distance as u64).min(MOST) + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::vec::Vec;

    #[test]
    fn what_plainly_passes_passes_and_is_counted_alike() {
        // SAFETY: integers and atomics, for which zeroes are valid.
        let (mut c, quick, full): (Control, Slot, Slot) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed(), std::mem::zeroed()) };
        let mut passed = 0;
        for (bytes, every, min, max) in
            [(512, 0, 0, u64::MAX), (512, 0, 16, 99), (0, 7, 0, u64::MAX), (0, 0, 2, u64::MAX)]
        {
            c.sample_bytes.store(bytes, Relaxed);
            (c.sample_every, c.min_size, c.max_size) = (every, min, max);
            for size in [0, 1, 15, 16, 99, 100, MOST - 1, MOST, MOST + 1, u64::MAX] {
                for distance in [0, 1, 50, 100, 101, 1 << 59, MOST, u64::MAX] {
                    quick.distance.store(distance, Relaxed);
                    full.distance.store(distance, Relaxed);
                    let plain = plainly_passes(&c, &quick, size);
                    assert!(passes(&c, &full, size) || !plain, "{size} at {distance}");
                    let expect = if plain { full.distance.load(Relaxed) } else { distance };
                    assert_eq!(quick.distance.load(Relaxed), expect, "{size} at {distance}");
                    passed += u32::from(plain);
                }
            }
        }
        assert!(passed > 100, "{passed}");
    }

    /// Checks that estimates of blocks and bytes are within 4.5 standard errors of the true numbers while `next_rate`
    /// changes the mean.
    fn changing(seed: u64, sizes: &[u64], mut next_rate: impl FnMut(u64, u64) -> u32) {
        // SAFETY: the type consists of integers and atomics, for which all zeroes is valid.
        let (mut c, slot): (Control, Slot) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: all zeroes is a valid state.
        let mut t: Box<Thread> = unsafe { Box::new_zeroed().assume_init() };
        c.max_size = u64::MAX;
        c.flags.store(flags::SELECT | flags::ADAPTS, Relaxed);
        c.sample_bytes.store(1 << 12, Relaxed);
        let mut state = seed;
        slot.random.store(next(&mut state).max(1), Relaxed);
        slot.drawn.store(12, Relaxed);
        slot.distance.store(exponential(1 << 12, next(&mut state)), Relaxed);
        let (mut counts, mut bytes) = ([0f64; 3], [0f64; 3]);
        let mut picked = [0u64; 32];
        for i in 0..400_000u64 {
            let size = sizes[(next(&mut state) % sizes.len() as u64) as usize];
            counts[0] += 1.0;
            bytes[0] += size as f64;
            let was_picked = selects(&c, &slot, &mut t, size);
            if was_picked {
                let rate = usize::from(sampled_at(&slot));
                assert_eq!(usize::from(t.rate), rate);
                picked[rate] += 1;
                let p = 1.0 - (-(size as f64) / (1u64 << rate) as f64).exp();
                for (sums, value) in [(&mut counts, 1.0), (&mut bytes, size as f64)] {
                    sums[1] += value / p;
                    sums[2] += (1.0 - p) / (p * p) * value * value;
                }
            }
            let rate = next_rate(i, picked.iter().sum());
            c.sample_bytes.store(1 << rate, Relaxed);
        }
        for sums in [counts, bytes] {
            let off = (sums[1] - sums[0]) / sums[2].sqrt();
            assert!(off.abs() < 4.5, "{sums:?}, {off} standard errors, of {picked:?}");
            assert!(sums[2].sqrt() < sums[0] * 0.05, "{sums:?}");
        }
        assert!(picked.iter().filter(|n| **n > 100).count() >= 3, "{picked:?}");
    }

    #[test]
    fn estimates_have_no_bias_while_the_mean_changes() {
        for seed in 1..9 {
            // By the clock, and by what has been picked: the worst that a controller could do.
            changing(seed, &[16, 64, 100, 3000], |i, _| 8 + (i / 777 % 8) as u32);
            changing(seed + 99, &[48, 70_000], |_, n| 8 + (n / 10 % 7) as u32);
            changing(seed + 999, &[24, 500], |_, n| 7 + (n % 5) as u32);
        }
    }

    #[test]
    fn distances_are_exponentially_distributed() {
        let mut state = 7;
        let (n, mean) = (200_000, 512u64 << 10);
        let all: Vec<f64> =
            (0..n).map(|_| exponential(mean, next(&mut state)) as f64 / mean as f64).collect();
        let average = all.iter().sum::<f64>() / n as f64;
        // The standard error is 1 / sqrt(n); five of them are allowed.
        assert!((average - 1.0).abs() < 5.0 / (n as f64).sqrt(), "{average}");
        for (at, share) in [(0.1f64, 0.904_837), (1.0, 0.367_879), (3.0, 0.049_787)] {
            let got = all.iter().filter(|d| **d > at).count() as f64 / n as f64;
            let error = (share * (1.0 - share) / n as f64).sqrt();
            assert!((got - share).abs() < 5.0 * error, "{at}: {got}");
        }
        for (bits, expect) in [(u64::MAX, 0.0), (1 << 63, core::f64::consts::LN_2), (0, 44.361)] {
            let got = exponential(1 << 40, bits) as f64 / (1u64 << 40) as f64;
            assert!((got - expect).abs() < 1e-3, "{bits:x}: {got}");
        }
    }
}
