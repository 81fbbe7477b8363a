//! Describes the options that the collector of a recording was started with, and what has happened at its bound.

use crate::commands::collect::Told;
use crate::notes;
use prof_analyze::Summary;
use prof_analyze::rewrite::{AggregateOptions, CullOptions};
use prof_collect::{Budget, Limits, Room};
use prof_os::Pid;
use prof_trace::values::text;
use serde_json::Value;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the time since the last figures of a recording that has figures by stack alone, which are its end.
pub(super) fn figures_age(summary: &Summary) -> Option<Duration> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(
        now.saturating_sub(Duration::from_nanos(
            summary.began_ns.saturating_add(summary.duration_ns),
        )),
    )
}

/// What the notes say of the bound of a recording that is made.
pub(super) struct AtBound {
    /// Folds that have failed.
    folds: Option<Value>,
    /// Since when there are figures by stack alone, in seconds since 1970.
    figures_since: Option<u64>,
}

impl AtBound {
    /// Reads the note on a process.
    pub(super) fn of(pid: Pid) -> Self {
        let figures_since = notes::about(pid, "figures_since").and_then(|v| v.as_u64());
        Self { folds: notes::about(pid, "folds"), figures_since }
    }

    /// Returns whether there are figures by stack alone by now.
    pub(super) fn went_over(&self) -> bool {
        self.figures_since.is_some()
    }

    /// Returns the lines of the text, each with its name.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let failed = self.folds.as_ref().map(|folds| {
            let times = match folds["failed"].as_u64().unwrap_or(0) {
                1 => "once".into(),
                n => format!("{} times", text::number(n)),
            };
            let why = folds["error"].as_str().unwrap_or("it is not known why");
            match folds["over"].as_bool().unwrap_or(false) {
                true => (
                    "figures",
                    format!("could not be made of the events {times}; the last time: {why}"),
                ),
                false => (
                    "folds",
                    format!("the oldest part could not be dropped {times}; the last time: {why}"),
                ),
            }
        });
        let figures = self.figures_since.map(|since| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let ago = now.saturating_sub(Duration::from_secs(since));
            let ago = text::duration(ago.as_secs() * 1_000_000_000);
            ("figures", format!("by stack alone since {ago} ago, when it met its bound; they count all before, too"))
        });
        figures.into_iter().chain(failed).collect()
    }

    /// Adds the fields of the JSON.
    pub(super) fn put(&self, v: &mut Value) {
        if let Some(folds) = &self.folds {
            v["folds"] = folds.clone();
        }
        if let Some(since) = self.figures_since {
            v["figures_since"] = since.into();
        }
    }
}

impl Told {
    /// Returns the lines of the text, each with its name.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let mut all = vec![("bounds", bounds(&self.limits, self))];
        all.extend(self.cull.map(|cull| ("cull", culled(&cull))));
        all.extend(self.aggregate.map(|aggregate| ("aggregate", aggregated(&aggregate))));
        all.extend(self.budget.map(|budget| ("budget", budgeted(&budget))));
        all
    }

    /// Adds the fields of the JSON.
    pub(super) fn put(&self, v: &mut Value) {
        v["max_disk"] = self.limits.max_disk.into();
        v["keep_free"] = self.limits.keep_free.to_string().into();
        v["on_limit"] = match (self.goes_over, self.drop_oldest) {
            (Some(_), _) => "aggregate",
            (None, Some(_)) => "drop-oldest",
            (None, None) => "stop",
        }
        .into();
        if let Some(memory) = self.drop_oldest {
            v["fold_memory"] = memory.into();
        }
        if let Some(aggregate) = self.aggregate.or(self.goes_over) {
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
        "blocks that lived shorter than {} are counted, but not written; up to {} of memory for events that wait beside the live blocks",
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
fn bounds(limits: &Limits, told: &Told) -> String {
    let most = limits.max_disk.map(|n| format!("at most {}", text::bytes(n)));
    let free = match limits.keep_free {
        Room::Bytes(0) => None,
        Room::Bytes(n) => Some(format!("{} of the file system stay free", text::bytes(n))),
        Room::Usual => Some("5 % of the file system, at most 1 GiB, stay free".into()),
        share @ Room::Share(_) => Some(format!("{share} of the file system stay free")),
    };
    let all: Vec<String> = most.into_iter().chain(free).collect();
    let all = all.join(", ");
    match (told.goes_over, told.drop_oldest) {
        _ if all.is_empty() => "none: it may fill the disk".into(),
        (Some(figures), _) => format!(
            "{all}; before a bound is met, figures by stack are made of the events, and then only these are written, \
             every {}",
            text::duration(figures.every_ns)
        ),
        (None, Some(_)) => format!(
            "{all}; before a bound is met, the blocks that ended in the oldest part go, and their figures stay"
        ),
        (None, None) => format!("{all}; at a bound it is finished, and prof detaches"),
    }
}
