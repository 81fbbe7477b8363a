//! The set of recorded blocks, used if not all blocks are recorded, so that frees of the others can be
//! skipped. Threads change it without locks.
//!
//! It is a hash table in levels, each four times as large as the one before. In a level an address may stand
//! in one window of [`WINDOW`] entries (a cache line). An address that finds its window full goes to the next
//! level, and the window is marked as overflown: only then is the next level searched for an address that the
//! window lacks. Entries may become free again, so a window is always searched as a whole.
//!
//! A mark is checked before the table. It is a byte per [`MARKED`] bytes of memory that counts the recorded
//! blocks beginning there. There are only [`SAMPLE_MARKS`] marks, so that distant pieces of memory share one.
//! Blocks that are freed one after the other often lie side by side, and so do their marks, whereas their
//! table entries are spread over many cache lines.
//!
//! A thread that frees a block has got its address from the thread that allocated it, so that it sees what
//! that thread wrote here.

use crate::shared::{SAMPLE_LEVEL0, SAMPLE_LEVELS, SAMPLE_MARKS, Shared};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicU64};

/// Entries per window.
pub const WINDOW: usize = 8;

/// Bytes of memory per mark.
pub const MARKED: u64 = 512;

/// Count at which a mark is saturated and no longer changes.
const UNCOUNTED: u8 = u8::MAX;

/// Flag in the first entry of a window that once had no room for an address.
const OVERFLOWN: u64 = 1 << 63;

#[inline(always)]
fn window<'a>(
    shared: &Shared<'a>,
    hash: u64,
    level: u32,
    base: usize,
) -> Option<&'a [AtomicU64; WINDOW]> {
    let len = SAMPLE_LEVEL0 << (2 * level);
    shared.sample_window((base + (hash as usize & (len - WINDOW))) / WINDOW)
}

#[inline(always)]
fn mix(addr: u64) -> u64 {
    let h = (addr >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    h ^ h >> 32
}

#[inline(always)]
fn mark<'a>(shared: &Shared<'a>, addr: u64) -> Option<&'a AtomicU8> {
    shared.sample_mark((addr / MARKED) as usize % SAMPLE_MARKS)
}

/// Changes the mark of an address by `step`. A mark is never less than the number of blocks that it counts.
fn count(shared: &Shared, addr: u64, step: impl Fn(u8) -> u8) {
    let Some(mark) = mark(shared, addr) else { return };
    let mut seen = mark.load(Relaxed);
    while seen != UNCOUNTED {
        match mark.compare_exchange_weak(seen, step(seen), Relaxed, Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

/// Adds an address (below 2^63, not 0) to the set; returns false if there is no room for it.
pub fn insert(shared: &Shared, addr: u64) -> bool {
    let (hash, mut base) = (mix(addr), 0);
    count(shared, addr, |n| n.saturating_add(1));
    for level in 0..SAMPLE_LEVELS {
        let Some(w) = window(shared, hash, level, base) else { return false };
        for e in w {
            let mut seen = e.load(Relaxed);
            while seen & !OVERFLOWN == 0 {
                match e.compare_exchange_weak(seen, seen | addr, Relaxed, Relaxed) {
                    Ok(_) => return true,
                    Err(now) => seen = now,
                }
            }
        }
        w[0].fetch_or(OVERFLOWN, Relaxed);
        base += SAMPLE_LEVEL0 << (2 * level);
    }
    false
}

/// Removes an address from the set; returns false if it was not in it.
#[inline(always)]
pub fn remove(shared: &Shared, addr: u64) -> bool {
    !is_absent(shared, addr) && search(shared, addr, mix(addr))
}

/// Returns whether the mark, or the first window, shows that an address is not in the set.
#[inline(always)]
pub fn is_absent(shared: &Shared, addr: u64) -> bool {
    mark(shared, addr).is_none_or(|m| m.load(Relaxed) == 0)
        || window(shared, mix(addr), 0, 0).is_none_or(|w| is_not_in(w, addr))
}

/// Returns whether a window that has not overflown lacks an address. It makes no call, for which its callers
/// might have to save registers.
#[inline(always)]
fn is_not_in(w: &[AtomicU64; WINDOW], addr: u64) -> bool {
    let first = w[0].load(Relaxed);
    let mut hit = first & !OVERFLOWN == addr;
    for e in &w[1..] {
        hit |= e.load(Relaxed) == addr;
    }
    !hit && first & OVERFLOWN == 0
}

#[cold]
#[inline(never)]
fn search(shared: &Shared, addr: u64, hash: u64) -> bool {
    let mut base = 0;
    for level in 0..SAMPLE_LEVELS {
        let Some(w) = window(shared, hash, level, base) else { return false };
        for e in w {
            let mut seen = e.load(Relaxed);
            while seen & !OVERFLOWN == addr {
                match e.compare_exchange_weak(seen, seen & OVERFLOWN, Relaxed, Relaxed) {
                    Ok(_) => {
                        count(shared, addr, |n| n.saturating_sub(1));
                        return true;
                    }
                    Err(now) => seen = now,
                }
            }
        }
        if w[0].load(Relaxed) & OVERFLOWN == 0 {
            return false;
        }
        base += SAMPLE_LEVEL0 << (2 * level);
    }
    false
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::vec::Vec;

    fn next(x: &mut u64) -> u64 {
        *x ^= *x << 13;
        *x ^= *x >> 7;
        *x ^= *x << 17;
        *x
    }

    #[test]
    fn it_is_a_set_also_beyond_its_first_levels() {
        let s = Shared::leaked();
        let (mut x, mut model) = (88172645463325252u64, HashSet::new());
        for round in 0..400_000 {
            // The set grows, then shrinks; the addresses are close together, as those of a heap are.
            let addr = 0x5500_0000_0000 + next(&mut x) % 300_000 * 16;
            if next(&mut x) % 8 < if round < 200_000 { 7 } else { 1 } {
                if model.insert(addr) {
                    assert!(insert(&s, addr));
                }
            } else {
                assert_eq!(remove(&s, addr), model.remove(&addr), "{addr:x}");
            }
        }
        for addr in model.drain() {
            assert!(remove(&s, addr));
            assert!(!remove(&s, addr));
        }
        let marks = (0..SAMPLE_MARKS).map(|i| s.sample_mark(i).expect("a mark").load(Relaxed));
        assert_eq!(marks.filter(|m| *m != 0).count(), 0);
        // More blocks share a mark than it can count.
        let many: Vec<u64> = (1..400).map(|i| i * MARKED * SAMPLE_MARKS as u64 + 64).collect();
        many.iter().for_each(|a| assert!(insert(&s, *a)));
        assert!(many.iter().all(|a| remove(&s, *a) && !remove(&s, *a)));
    }

    #[test]
    fn threads_do_not_lose_each_others_addresses() {
        let s = Shared::leaked();
        std::thread::scope(|scope| {
            for t in 0..4u64 {
                scope.spawn(move || {
                    let mut x = 12345 + t;
                    let mut mine = std::vec::Vec::new();
                    for _ in 0..60_000 {
                        let addr = 0x7f00_0000_0000 + (next(&mut x) % 200_000 * 4 + t) * 16;
                        if !mine.contains(&addr) {
                            assert!(insert(&s, addr));
                            mine.push(addr);
                        }
                        if mine.len() > 300 {
                            let gone = mine.swap_remove(next(&mut x) as usize % 300);
                            assert!(remove(&s, gone));
                        }
                    }
                    assert!(mine.into_iter().all(|addr| remove(&s, addr)));
                });
            }
        });
    }
}
