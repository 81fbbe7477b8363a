//! Models of the algorithms on the shared memory, run under loom: in every order in which the threads'
//! accesses can take effect, also on machines that reorder them, up to the bound that each model names.
//!
//! The checked files are compiled here a second time, unchanged: `pcs`, `ring` and `slots` of prof-trace,
//! `drain`, `parts`, `tree` and `census` of prof-collect. What they use of their crates is replaced by this crate's:
//! loom's atomics in a small memory (`shared`), and an output and a `/proc` that tests can inspect. So
//! normal builds know nothing of the models.
#![cfg(test)]
#![allow(clippy::arc_with_non_send_sync)] // loom runs a model's threads in one, and checks them itself
#![allow(unreachable_pub)] // prof-trace's files, whose items are public there

extern crate self as prof_trace;

#[allow(dead_code)] // what only the collector's rest needs
#[path = "../../collect/src/census.rs"]
mod census;
#[path = "../../collect/src/decoded.rs"]
mod decoded;
#[allow(dead_code)]
#[path = "../../collect/src/drain.rs"]
mod drain;
#[allow(dead_code)]
#[path = "../../collect/src/known.rs"]
mod known;
#[allow(dead_code)]
#[path = "../../collect/src/missing.rs"]
mod missing;
#[allow(dead_code)] // the models read each look in one part
#[path = "../../collect/src/parts.rs"]
mod parts;
#[allow(dead_code)]
#[path = "../../trace/src/pcs.rs"]
mod pcs;
#[path = "../../collect/src/plain.rs"]
mod plain;
#[allow(dead_code)]
#[path = "../../trace/src/ring.rs"]
mod ring;
#[allow(dead_code)]
#[path = "../../trace/src/slots.rs"]
mod slots;
#[allow(dead_code)]
#[path = "../../collect/src/tree.rs"]
mod tree;

mod epochs;
mod output;
mod pcs_model;
mod ring_model;
mod shared;
mod slots_model;
mod sync;
mod threads;

pub use trace::{call, event, ids, pack, records, size, ticks};

/// Stand-in for the tests of `tree`, which are compiled as well.
mod ring_copy {
    pub(crate) fn empty() -> crate::shared::Shared<'static> {
        crate::shared::Shared::default()
    }
}

/// Checks a model in all orders with at most `preemptions` switches away from a thread that could have gone
/// on; `None`: in all orders.
fn check(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 20_000;
    let runs = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = runs.clone();
    let began = std::time::Instant::now();
    builder.check(move || {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        model();
    });
    println!("{} orders, {:?}", runs.load(std::sync::atomic::Ordering::Relaxed), began.elapsed());
}
