//! Models of the code address table: threads that add equal and different addresses, and readers told of one.

use crate::ids::PcId;
use crate::pcs::{self, Found};
use crate::shared::Shared;
use crate::sync::AtomicU32;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use loom::thread;
use std::sync::Arc;

fn id(found: Found) -> PcId {
    match found {
        Found::Id(id) => id,
        other => panic!("{other:?}"),
    }
}

/// Runs threads that add these pairs of address and module to a table whose first level has one entry left.
fn add(preemptions: Option<usize>, threads: &'static [&'static [(u64, u16)]]) {
    crate::check(preemptions, move || {
        let shared = Arc::new(Shared::with_pcs());
        let old = id(pcs::add_pc(&shared, 7, 7));
        let enter = |s: &Shared, keys: &[(u64, u16)]| -> Vec<_> {
            keys.iter().map(|k| (*k, id(pcs::add_pc(s, k.0, k.1)))).collect()
        };
        let spawn = |keys: &'static [(u64, u16)]| {
            let s = shared.clone();
            thread::spawn(move || enter(&s, keys))
        };
        let all: Vec<_> = threads[1..].iter().map(|k| spawn(k)).collect();
        let mut ids = enter(&shared, threads[0]);
        for h in all {
            ids.extend(h.join().expect("thread"));
        }
        ids.sort_unstable();
        ids.dedup();
        let mut keys: Vec<_> = threads.concat();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(ids.iter().map(|i| i.0).collect::<Vec<_>>(), keys, "one id for each");
        for ((pc, module), i) in &ids {
            assert_eq!(pcs::pc_parts(&shared, *i), Some((*pc, *module)));
            assert_eq!(id(pcs::find_pc(&shared, *pc, |m| m == *module)), *i, "found again");
        }
        assert_eq!(id(pcs::find_pc(&shared, 7, |_| true)), old);
    });
}

#[test]
fn the_same_address_has_one_id() {
    add(None, &[&[(1, 1)], &[(1, 1)]]);
    add(Some(3), &[&[(1, 1)], &[(1, 1)], &[(1, 1)]]);
}

#[test]
fn an_address_in_two_modules_has_two() {
    add(None, &[&[(1, 1)], &[(1, 2)]]);
    add(Some(3), &[&[(1, 1)], &[(1, 2)], &[(1, 1)]]);
}

#[test]
fn full_windows_send_addresses_to_the_next_level() {
    add(Some(3), &[&[(1, 1), (2, 1)], &[(2, 1), (1, 1)]]);
    add(Some(2), &[&[(1, 1)], &[(2, 1)], &[(1, 1), (2, 1)]]);
}

pub(crate) const PC: u64 = 0x1234;
pub(crate) const MODULE: u16 = 3;
/// Value of `Rule::SIGNAL`, which the collector looks for.
pub(crate) const RULE: u64 = 5;

/// Does what the hook does at a code address: lists the module, adds the address, then enters the rule.
/// `module` stands for the module's entry, which is only read if an address leads to it.
pub(crate) fn code(shared: &Shared, module: &AtomicU32) -> PcId {
    let known = pcs::find_pc(shared, PC, |m| {
        assert_eq!((m, module.load(Relaxed)), (MODULE, 1), "its module is listed");
        true
    });
    if let Found::Id(id) = known
        && pcs::rule(shared, id) == RULE
    {
        return id;
    }
    module.store(1, Relaxed);
    let id = id(pcs::add_pc(shared, PC, MODULE));
    pcs::set_rule(shared, id, RULE);
    id
}

#[test]
fn who_is_told_of_an_address_sees_all_of_it() {
    crate::check(Some(2), || {
        let shared = Arc::new(Shared::with_pcs());
        let module = Arc::new(AtomicU32::new(0));
        let published = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let spawn = |i: usize| {
            let (shared, module, published) = (shared.clone(), module.clone(), published.clone());
            thread::spawn(move || {
                let id = code(&shared, &module);
                // This stands for the commit of an event whose stack has the address.
                published[i].store(id.0, Release);
            })
        };
        let all = [spawn(0), spawn(1)];
        for p in published.iter() {
            let id = PcId(p.load(Acquire));
            if id != PcId::NONE {
                assert_eq!(pcs::pc_parts(&shared, id), Some((PC, MODULE)));
                assert_eq!(pcs::rule(&shared, id), RULE);
                assert_eq!(module.load(Relaxed), 1);
            }
        }
        for h in all {
            h.join().expect("thread");
        }
    });
}

#[test]
fn a_full_table_says_so() {
    crate::check(Some(2), || {
        let shared = Arc::new(Shared::with_pcs());
        let s = shared.clone();
        let add = |s: &Shared, pcs: std::ops::Range<u64>| -> Vec<Found> {
            pcs.map(|pc| pcs::add_pc(s, pc, 1)).collect()
        };
        // An address may occupy two entries in each level.
        let h = thread::spawn(move || add(&s, 1..4));
        let mut all = add(&shared, 4..7);
        all.extend(h.join().expect("thread"));
        let mut ids: Vec<PcId> = Vec::new();
        for (pc, found) in (4..7).chain(1..4).zip(all) {
            match found {
                Found::Id(id) => {
                    assert_eq!(pcs::pc_parts(&shared, id), Some((pc, 1)));
                    ids.push(id);
                }
                other => assert_eq!(other, Found::Full),
            }
            // The result stays the same.
            assert_eq!(pcs::add_pc(&shared, pc, 1), found);
        }
        ids.sort_unstable();
        assert!(ids.len() >= 4 && ids.windows(2).all(|w| w[0] < w[1]), "{ids:?}");
    });
}
