//! Table of code addresses that threads fill without locks.
//!
//! The table has levels, each twice as large as the one before. In a level, the hash of a key selects a
//! window of [`WINDOW`] entries. A free entry is taken with one compare-and-swap, and nothing is ever
//! removed; so a key that is not in a window with a free entry is not in the table. A full window sends its
//! keys on to the next level. The id of an entry is its position plus one and never changes; 0 means "none".
//!
//! A stack is a chain of nodes. A node is a parent node and a code address id; the children of the root are
//! the outermost frames. This table holds no nodes: each segment of events defines those that its events name
//! (see [`crate::event::Entry`]).

use crate::ids::PcId;
use crate::shared::{PC_LEVEL0, PC_LEVELS, Shared, WINDOW};
use crate::sync::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Bits of a key that hold the code address.
pub const PC_BITS: u32 = 48;

/// Pseudo code address: as the outermost frame it marks a stack that was cut.
pub const CUT: u64 = 1;

#[inline(always)]
fn mix(key: u64) -> u64 {
    let h = (key ^ key >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    h ^ h >> 29
}

/// Returns the key of a code address in module number `module` (1-based; 0: none).
#[inline(always)]
pub fn pc_key(pc: u64, module: u16) -> u64 {
    pc & ((1 << PC_BITS) - 1) | (module as u64) << PC_BITS
}

/// Returns the code address of a key.
#[inline(always)]
pub fn key_pc(key: u64) -> u64 {
    key & ((1 << PC_BITS) - 1)
}

/// Returns the module number of a key (1-based; 0: none).
#[inline(always)]
pub fn key_module(key: u64) -> u16 {
    (key >> PC_BITS) as u16
}

/// Result of a search for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The id of the key's entry, found or just added.
    Id(PcId),
    /// The key is not in the table.
    Absent,
    /// All entries that the key may occupy are taken.
    Full,
}

/// Visits the entries that a code address may occupy, in the order in which they are filled, until `look`
/// returns a result for a position.
#[inline(always)]
fn search(pc: u64, mut look: impl FnMut(usize) -> Option<Found>) -> Found {
    let hash = mix(pc);
    let mut base = 0;
    for level in 0..PC_LEVELS {
        let len = PC_LEVEL0 << level;
        let first = (hash as usize) & (len - WINDOW);
        for i in 0..WINDOW {
            if let Some(found) = look(base + first + i) {
                return found;
            }
        }
        base += len;
    }
    Found::Full
}

/// Returns the id of the entry at a position.
#[inline(always)]
fn id_at(at: usize) -> Found {
    Found::Id(PcId(at as u32 + 1))
}

/// Stores `key` in the entry if that is free; returns whether the entry holds `key` now.
#[inline(always)]
fn claim(e: &AtomicU64, key: u64) -> bool {
    let mut seen = e.load(Relaxed);
    if seen == 0 {
        match e.compare_exchange(0, key, Release, Relaxed) {
            Ok(_) => return true,
            Err(other) => seen = other,
        }
    }
    seen == key
}

/// Looks for a code address whose module satisfies `valid` (called with the 1-based module number). The hash
/// covers the address only, so that one address in several modules over time shares a window.
#[inline]
pub fn find_pc(shared: &Shared, pc: u64, mut valid: impl FnMut(u16) -> bool) -> Found {
    search(pc, |at| {
        let Some(e) = shared.pc(at) else { return Some(Found::Full) };
        let key = e.key.load(Acquire);
        if key == 0 {
            return Some(Found::Absent);
        }
        (key_pc(key) == pc && valid(key_module(key))).then_some(id_at(at))
    })
}

/// Adds a code address of a given module unless it is there; returns its id.
pub fn add_pc(shared: &Shared, pc: u64, module: u16) -> Found {
    let want = pc_key(pc, module);
    search(pc, |at| {
        let Some(e) = shared.pc(at) else { return Some(Found::Full) };
        claim(&e.key, want).then_some(id_at(at))
    })
}

/// Returns the packed unwind rule of a code address id; 0: not computed yet, or no such id.
#[inline(always)]
pub fn rule(shared: &Shared, id: PcId) -> u64 {
    let e = id.position().and_then(|at| shared.pc(at));
    e.map_or(0, |e| e.rule.load(Acquire))
}

/// Stores the packed unwind rule of a code address id.
pub fn set_rule(shared: &Shared, id: PcId, rule: u64) {
    if let Some(e) = id.position().and_then(|at| shared.pc(at)) {
        e.rule.store(rule, Release);
    }
}

/// Returns address and 1-based module number of a code address id; `None`: no such id.
pub fn pc_parts(shared: &Shared, id: PcId) -> Option<(u64, u16)> {
    let key = shared.pc(id.position()?)?.key.load(Relaxed);
    (key != 0).then_some((key_pc(key), key_module(key)))
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn addresses_are_found_again_under_many_threads() {
        let s = Shared::leaked();
        let ids: Vec<Vec<PcId>> = std::thread::scope(|scope| {
            let hs: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(move || {
                        (1..60_000u64)
                            .map(|i| match add_pc(&s, 0x40_0000 + i * 3, (i % 5) as u16) {
                                Found::Id(id) => id,
                                other => panic!("{other:?}"),
                            })
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            hs.into_iter().map(|h| h.join().expect("thread")).collect()
        });
        for other in &ids[1..] {
            assert_eq!(&ids[0], other);
        }
        for (i, id) in ids[0].iter().enumerate() {
            let i = i as u64 + 1;
            assert_eq!(pc_parts(&s, *id), Some((0x40_0000 + i * 3, (i % 5) as u16)));
        }
        assert_eq!(pc_parts(&s, PcId::NONE), None);
        assert_eq!(pc_parts(&s, PcId(u32::MAX)), None);
    }

    #[test]
    fn an_address_may_belong_to_another_module_later() {
        let s = Shared::leaked();
        let a = add_pc(&s, 0x7f00_1234, 1);
        assert_eq!(find_pc(&s, 0x7f00_1234, |m| m == 1), a);
        assert_eq!(find_pc(&s, 0x7f00_1234, |m| m == 2), Found::Absent);
        let b = add_pc(&s, 0x7f00_1234, 2);
        assert_ne!(a, b);
        assert_eq!(find_pc(&s, 0x7f00_1234, |m| m == 2), b);
        let Found::Id(id) = b else { panic!("{b:?}") };
        assert_eq!(pc_parts(&s, id), Some((0x7f00_1234, 2)));
    }
}
