//! If the table of code addresses is full, the hook cuts stacks and counts them.

#[allow(dead_code)]
mod common;

use prof_trace::event::Event;
use prof_trace::shared::{PC_LEVEL0, PC_LEVELS};
use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;

#[inline(never)]
fn deep(hook: &common::Hook, depth: usize) {
    if depth == 0 {
        let p = hook.malloc(black_box(24));
        hook.free(p);
    } else {
        deep(hook, depth - 1);
    }
    black_box(depth);
}

/// Calls `deep`; this frame is unknown until its first call.
#[inline(never)]
fn stranger(hook: &common::Hook, depth: usize) {
    deep(hook, depth);
    black_box(depth);
}

fn truncated(hook: &common::Hook) -> u64 {
    (0..64).filter_map(|i| hook.shared.slot(i)).map(|s| s.truncated.load(Relaxed)).sum()
}

/// Returns the stack of the last allocation, innermost first.
fn last(hook: &common::Hook) -> Vec<u64> {
    let events = hook.drain();
    let mut nodes = events.iter().filter_map(|e| match *e {
        Event::Alloc { node, .. } => Some(node),
        _ => None,
    });
    hook.stack(nodes.next_back().expect("an allocation"))
}

fn fill_pcs(hook: &common::Hook) {
    let all = (0..PC_LEVEL0 * ((1 << PC_LEVELS) - 1)).filter_map(|i| hook.shared.pc(i));
    for e in all.filter(|e| e.key.load(Relaxed) == 0) {
        e.key.store(u64::MAX, Relaxed);
    }
}

#[test]
fn a_full_table_cuts_stacks_and_they_are_counted() {
    let hook = common::install(0);
    let nothing: fn(&common::Hook) = |_| {};
    type Call = fn(&common::Hook, usize);
    let known: Call = deep;
    // All calls come from one place, so that stacks of one depth are equal: the loop must not be unrolled.
    let steps = vec![
        (known, 10, nothing),
        (known, 30, nothing),
        (known, 10, fill_pcs),
        (stranger, 10, nothing),
        (known, 30, nothing),
        (stranger, 10, nothing),
        (stranger, 10, nothing),
    ];
    let mut seen = Vec::new();
    for (call, depth, before) in black_box(&steps) {
        before(&hook);
        call(&hook, *depth);
        seen.push((last(&hook), truncated(&hook)));
    }
    let (ten, thirty) = (seen[0].0.clone(), seen[1].0.clone());
    assert!(ten.len() > 10 && thirty.len() == ten.len() + 20);
    for (i, whole, count) in [(0, &ten, 0), (1, &thirty, 0), (2, &ten, 0), (4, &thirty, 1)] {
        assert_eq!(seen[i], (whole.clone(), count), "step {i}: what is in the table is found");
    }
    // Inside of the frame for which there is no room, all frames are known; outside of it none is looked at.
    for (i, count) in [(3, 1), (5, 2), (6, 3)] {
        let (cut, truncated) = &seen[i];
        assert_eq!(*truncated, count, "step {i}");
        assert_eq!(cut, &seen[3].0, "step {i}");
        assert!(cut.len() >= 10 && ten.starts_with(cut), "step {i}: {cut:x?} of {ten:x?}");
    }
}
