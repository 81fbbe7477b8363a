//! The stack tree under many threads, compared with a sequential model.

mod common;
use common::*;
use prof_collect::Collector;
use prof_os::Pid;
use prof_trace::event::Event;
use prof_trace::shared::{Shared, state};
use prof_trace::ticks::Ticks;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Release;

const THREADS: usize = 8;
const EVENTS: u64 = 10_000;
const STACKS: usize = 2_000;
const DEPTH: u64 = 30;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Returns distinct stacks, from the root inwards, that share beginnings as a program's do.
fn stacks() -> Vec<Vec<u64>> {
    let mut r = Random(88_172_645_463_325_252);
    let mut all: Vec<Vec<u64>> = Vec::new();
    let mut seen = HashSet::new();
    while all.len() < STACKS {
        let mut s = match all.len() as u64 {
            0 => Vec::new(),
            n => all[r.below(n) as usize].clone(),
        };
        s.truncate(r.below(DEPTH) as usize);
        for _ in 0..1 + r.below(DEPTH - s.len() as u64) {
            s.push(0x40_0000 + r.below(3000) * 4);
        }
        if seen.insert(s.clone()) {
            all.push(s);
        }
    }
    all
}

/// Records stacks in an order of this thread's own, one in ten events without a stack; returns the thread's serial and
/// the indices of the stacks.
fn write(shared: Shared<'static>, slot: usize, stacks: &[Vec<u64>]) -> (u32, Vec<Option<usize>>) {
    let mut r = Random((slot as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut w = Writer::new(shared, slot);
    let mut seen = HashMap::new();
    let mut which = Vec::new();
    for i in 0..EVENTS {
        let k = (r.below(10) != 0).then(|| r.below(STACKS as u64) as usize);
        // Enter the code addresses now, while other threads do the same.
        let stack = k.map_or(&[][..], |k| &stacks[k]);
        let ids: Vec<u32> = stack.iter().map(|pc| pc_id(&shared, *pc)).collect();
        let e = Event::Alloc { time: Ticks(now()), addr: i * 16, size: i.into(), node: 0 };
        w.put_stack(&e, &ids, &mut seen);
        which.push(k);
    }
    (w.serial, which)
}

#[test]
fn many_threads_make_one_tree() {
    // A small ring, so that segments go from thread to thread.
    let (shared, stacks) = (new_ring(0), stacks());
    let path = temp("tree");
    let mut c = Collector::new(Pid::this(), shared, start(&path)).expect("collector");
    let written: Vec<_> = std::thread::scope(|s| {
        let never = AtomicBool::new(false);
        let h = s.spawn(move || c.run(&never));
        let stacks = &stacks;
        let all: Vec<_> = (0..THREADS).map(|i| s.spawn(move || write(shared, i, stacks))).collect();
        let written: Vec<_> = all.into_iter().map(|h| h.join()).collect();
        shared.control().state.store(state::DETACHED, Release);
        assert!(h.join().expect("collector").failure.is_none());
        written.into_iter().map(|w| w.expect("writer")).collect()
    });
    let r = read(&path);
    std::fs::remove_file(path).expect("remove");
    assert_eq!((r.unknown_nodes, r.counters.as_ref().map(|c| c.damaged_bytes)), (0, Some(0)));
    // A node may have several IDs, as the collector remembers only the latest ones: map them to the first.
    let (mut first, mut one) = (BTreeMap::new(), BTreeMap::from([(0, 0)]));
    for (id, (parent, pc)) in &r.nodes {
        one.insert(*id, *first.entry((one[parent], *pc)).or_insert(*id));
    }
    // All events with the same stack must have the same node, whatever their thread and segment.
    let mut nodes = BTreeMap::new();
    for (serial, which) in &written {
        let events = &r.events[serial];
        assert_eq!(events.len(), which.len());
        for (e, k) in events.iter().zip(which) {
            match k {
                Some(k) => assert_eq!(*nodes.entry(*k).or_insert(one[&e.node()]), one[&e.node()]),
                None => assert_eq!(e.node(), 0),
            }
        }
    }
    // In the model there is a node for each distinct beginning of a recorded stack.
    let mut model: BTreeMap<&[u64], u32> = BTreeMap::new();
    for (k, mut node) in nodes {
        let stack = &stacks[k];
        let pcs: Vec<u64> = r.stack(node).iter().map(|pc| r.pcs[pc].0).collect();
        assert_eq!(pcs, *stack);
        for n in (1..=stack.len()).rev() {
            assert_eq!(*model.entry(&stack[..n]).or_insert(node), node);
            node = one[&r.nodes[&node].0];
        }
    }
    assert_eq!(first.len(), model.len(), "nothing but the model's nodes");
    let codes: HashSet<u64> = model.keys().flat_map(|s| s.iter().copied()).collect();
    assert_eq!(r.pcs.len(), codes.len(), "nothing but the model's code addresses");
}
