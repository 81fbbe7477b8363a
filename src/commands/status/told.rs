//! Describes the options that the collector of a recording was started with.

use crate::commands::collect::Told;
use prof_analyze::rewrite::{AggregateOptions, CullOptions};
use prof_collect::{Budget, Limits, Room};
use prof_trace::values::text;
use serde_json::Value;

impl Told {
    /// Returns the lines of the text, each with its name.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let mut all = vec![("bounds", bounds(&self.limits, self.drop_oldest.is_some()))];
        all.extend(self.cull.map(|cull| ("cull", culled(&cull))));
        all.extend(self.aggregate.map(|aggregate| ("aggregate", aggregated(&aggregate))));
        all.extend(self.budget.map(|budget| ("budget", budgeted(&budget))));
        all
    }

    /// Adds the fields of the JSON.
    pub(super) fn put(&self, v: &mut Value) {
        v["max_disk"] = self.limits.max_disk.into();
        v["keep_free"] = self.limits.keep_free.to_string().into();
        v["on_limit"] = if self.drop_oldest.is_some() { "drop-oldest" } else { "stop" }.into();
        if let Some(memory) = self.drop_oldest {
            v["fold_memory"] = memory.into();
        }
        if let Some(aggregate) = self.aggregate {
            v["aggregate_ns"] = aggregate.every_ns.into();
        }
        if let Some(budget) = self.budget {
            v["max_cpu_percent"] = budget.cpu.map(percent).into();
            v["max_overhead_percent"] = budget.overhead.map(percent).into();
        }
        if let Some(cull) = self.cull {
            v["cull_ns"] = cull.threshold_ns.into();
            v["cull_pending"] = cull.pending.into();
        }
    }
}

/// Converts millionths to percent.
fn percent(millionths: u64) -> f64 {
    millionths as f64 / 10_000.0
}

/// Describes which blocks are only counted.
fn culled(cull: &CullOptions) -> String {
    format!(
        "blocks that lived shorter than {} are counted, but not written; up to {} of memory for those of which that is not known yet",
        text::duration(cull.threshold_ns),
        text::bytes(cull.pending)
    )
}

/// Describes a recording of figures alone.
fn aggregated(aggregate: &AggregateOptions) -> String {
    let every = text::duration(aggregate.every_ns);
    format!(
        "figures by stack are written every {every} (less often, if they are many), and no blocks"
    )
}

/// Describes what recording may cost.
fn budgeted(budget: &Budget) -> String {
    let cpu = budget.cpu.map(|n| format!("at most {} % of a processor", percent(n)));
    let own = budget.overhead.map(|n| {
        format!("the hook takes at most {} % of what the program uses itself", percent(n))
    });
    let both: Vec<String> = cpu.into_iter().chain(own).collect();
    format!("{}; a sample is as coarse as that needs", both.join(", and "))
}

/// Describes the bounds of a recording, and the action at each.
fn bounds(limits: &Limits, drop_oldest: bool) -> String {
    let most = limits.max_disk.map(|n| format!("at most {}", text::bytes(n)));
    let free = match limits.keep_free {
        Room::Bytes(0) => None,
        Room::Bytes(n) => Some(format!("{} of the file system stay free", text::bytes(n))),
        Room::Usual => Some("5 % of the file system, at most 1 GiB, stay free".into()),
        share @ Room::Share(_) => Some(format!("{share} of the file system stay free")),
    };
    let all: Vec<String> = most.into_iter().chain(free).collect();
    match all.is_empty() {
        true => "none: it may fill the disk".into(),
        false if drop_oldest => format!(
            "{}; before a bound is met, the blocks that ended in the oldest part go, and their figures stay",
            all.join(", ")
        ),
        false => format!("{}; at a bound it is finished, and prof detaches", all.join(", ")),
    }
}
