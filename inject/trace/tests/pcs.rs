//! The table of code addresses under many threads, against a sequential model of it.

use prof_trace::ids::PcId;
use prof_trace::pcs::{self, Found};
use prof_trace::shared::{Geometry, PC_LEVEL0, PC_LEVELS, Shared};
use std::alloc::{Layout, alloc_zeroed};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

const THREADS: usize = 8;
const PLACES: usize = PC_LEVEL0 * ((1 << PC_LEVELS) - 1);
/// A key that no address has.
const FOREIGN: u64 = u64::MAX;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Returns memory that is zero because it is new; only used pages are allocated.
fn shared() -> Shared<'static> {
    const ALIGN: usize = 65536;
    let g = Geometry::for_ring(0);
    let layout = Layout::from_size_align(g.size() + ALIGN, 8).expect("layout");
    // SAFETY: the size is not zero, there is room behind the next boundary, and the memory is leaked.
    unsafe {
        let at = alloc_zeroed(layout);
        Shared::new(at.add(at.align_offset(ALIGN)), g)
    }
}

/// Returns distinct pairs of address and module; some addresses occur in several modules.
fn addresses(n: usize) -> Vec<(u64, u16)> {
    let mut r = Random(88_172_645_463_325_252);
    let mut all = Vec::new();
    let mut seen = HashSet::new();
    while all.len() < n {
        let key = (0x40_0000 + r.below(n as u64) * 4, 1 + r.below(5) as u16);
        if seen.insert(key) {
            all.push(key);
        }
    }
    all
}

/// Returns the word that stands for the rule of an address.
fn rule((pc, module): (u64, u16)) -> u64 {
    pc << 16 | u64::from(module)
}

/// Enters an address as the hook does; returns [`PcId::NONE`] if there is no room.
fn enter(s: &Shared, key: (u64, u16)) -> PcId {
    if let Found::Id(id) = pcs::find_pc(s, key.0, |m| m == key.1)
        && pcs::rule(s, id) != 0
    {
        assert_eq!(pcs::rule(s, id), rule(key));
        return id;
    }
    let Found::Id(id) = pcs::add_pc(s, key.0, key.1) else { return PcId::NONE };
    pcs::set_rule(s, id, rule(key));
    id
}

/// Checks what the collector finds under an id that it was told.
fn check(s: &Shared, id: PcId, key: (u64, u16)) {
    if id != PcId::NONE {
        assert_eq!((pcs::pc_parts(s, id), pcs::rule(s, id)), (Some(key), rule(key)));
    }
}

/// Lets threads enter all addresses, each in another order, while a reader checks what they publish. Returns
/// the ids, which are the same for all threads.
fn enter_by_many(s: &Shared, keys: &[(u64, u16)]) -> Vec<PcId> {
    let published: Vec<AtomicU32> = keys.iter().map(|_| AtomicU32::new(0)).collect();
    let work = |seed: usize| {
        let mut order: Vec<usize> = (0..keys.len()).collect();
        let mut r = Random((seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for i in (1..order.len()).rev() {
            order.swap(i, r.below(i as u64 + 1) as usize);
        }
        let mut ids = vec![PcId::NONE; keys.len()];
        for i in order {
            ids[i] = enter(s, keys[i]);
            published[i].store(ids[i].0, Release);
        }
        ids
    };
    let read = || {
        for (key, id) in keys.iter().zip(&published) {
            check(s, PcId(id.load(Acquire)), *key);
        }
    };
    let all: Vec<_> = std::thread::scope(|scope| {
        let work = &work;
        let all: Vec<_> = (1..=THREADS).map(|t| scope.spawn(move || work(t))).collect();
        while all.iter().any(|h| !h.is_finished()) {
            read();
        }
        all.into_iter().map(|h| h.join().expect("thread")).collect()
    });
    for other in &all[1..] {
        assert!(all[0] == *other, "two threads have different ids for one address");
    }
    all.into_iter().next().expect("a thread")
}

#[test]
fn many_threads_fill_one_table() {
    let (s, keys) = (shared(), addresses(30_000));
    let ids = enter_by_many(&s, &keys);
    for (key, id) in keys.iter().zip(&ids) {
        assert_ne!(*id, PcId::NONE);
        check(&s, *id, *key);
    }
    let distinct: HashSet<PcId> = ids.iter().copied().collect();
    assert_eq!(distinct.len(), keys.len());
    let used = (0..PLACES).filter(|i| s.pc(*i).is_some_and(|e| e.key.load(Relaxed) != 0)).count();
    assert_eq!(used, keys.len(), "nothing but these");
}

#[test]
fn a_full_table_is_full_for_all() {
    let (s, keys) = (shared(), addresses(10_000));
    let mut r = Random(362_436_069);
    // One entry in a hundred is left free, in all levels.
    for e in (0..PLACES).filter_map(|i| s.pc(i)) {
        e.key.store(if r.below(100) == 0 { 0 } else { FOREIGN }, Relaxed);
    }
    let ids = enter_by_many(&s, &keys);
    let none = ids.iter().filter(|id| **id == PcId::NONE).count();
    assert!(none > 0 && none < keys.len(), "{none} without an id");
    for (key, id) in keys.iter().zip(&ids) {
        check(&s, *id, *key);
        assert_eq!(enter(&s, *key), *id, "what had no room has none, what was found is found");
    }
}
