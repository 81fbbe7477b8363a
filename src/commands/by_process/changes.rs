//! `prof diff --by-process`: compares the figures of each process of two families.

use super::super::diff::DiffArgs;
use super::super::input::Locate;
use super::super::report::{Format, Of, given, print};
use super::{below, columns, of_one, processes};
use crate::failure::usage;
use crate::family::joined::Member;
use crate::term::one_line;
use anyhow::Result;
use prof_analyze::query::Query;
use prof_analyze::report::{FilterData, Head};
use prof_trace::records::Target;
use prof_trace::values::text::{bytes, number};
use serde::Serialize;
use std::process::ExitCode;

/// Two processes that are compared, or one that only one family has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Change {
    name: String,
    /// Process id before and after; `None`: that family has no such process.
    pids: [Option<u32>; 2],
    live_bytes: [u64; 2],
    live_count: [u64; 2],
    allocated_bytes: [u64; 2],
    allocations: [u64; 2],
}

/// Runs `prof diff --by-process`. The processes whose live bytes have changed the most come first.
///
/// # Errors
/// If one of the recordings can't be read, or is none of a family.
pub(crate) fn diff(args: &DiffArgs, locate: Locate<'_>) -> Result<ExitCode> {
    if args.what != Of::Heap {
        return Err(usage("--by-process compares blocks, so it does not go with --what"));
    }
    let [before, after] =
        [&args.before, &args.after].map(|name| processes(Some(name), &args.index.pid, locate));
    let (before, after) = (before?, after?);
    let filter = given(&args.filter.0);
    let mut heads = Vec::new();
    let mut changes: Vec<Change> = pairs(&before, &after)
        .into_iter()
        .map(|pair| change(args, pair, &filter, &mut heads))
        .collect::<Result<_>>()?;
    changes.sort_by_key(|c| std::cmp::Reverse(c.live_bytes[0].abs_diff(c.live_bytes[1])));
    let left_out = match args.top {
        0 => 0,
        top => changes.split_off(top.min(changes.len())).len(),
    };
    print(&match args.format {
        Format::Json => serde_json::to_string_pretty(&changes)? + "\n",
        Format::Text => format!("{}{}", table(&changes), below(&heads, left_out)),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns which processes are compared with which: each with itself if both families have it (its id and name are the same),
/// else with the next of the same name that is left. Both lists are in the order in which the recordings began.
fn pairs<'a>(before: &'a [Member], after: &'a [Member]) -> Vec<[Option<&'a Member>; 2]> {
    let which = |t: &Target| (t.pid, t.pid_namespace, t.comm.clone());
    let is_same = |a: &Member, b: &Member| which(&a.target) == which(&b.target);
    let mut left: Vec<Option<&Member>> = after.iter().map(Some).collect();
    let mut take = |is_it: &dyn Fn(&Member) -> bool| {
        left.iter_mut().find(|m| m.is_some_and(is_it)).and_then(Option::take)
    };
    // A process that was attached to twice has two recordings, which are told by their begin.
    let is_one = |a: &Member, b: &Member| is_same(a, b) && a.target.wall_ns == b.target.wall_ns;
    let mut all: Vec<[Option<&Member>; 2]> =
        before.iter().map(|m| [Some(m), take(&|o| is_one(m, o))]).collect();
    for pair in all.iter_mut().filter(|p| p[1].is_none()) {
        pair[1] = pair[0].and_then(|m| take(&|o| is_same(m, o)));
    }
    for pair in all.iter_mut().filter(|p| p[1].is_none()) {
        pair[1] = pair[0].and_then(|m| take(&|o| o.target.comm == m.target.comm));
    }
    all.extend(left.into_iter().flatten().map(|m| [None, Some(m)]));
    all
}

/// Reads the figures of two processes, and keeps what is known of their recordings in `heads`.
fn change(
    args: &DiffArgs,
    pair: [Option<&Member>; 2],
    filter: &[FilterData],
    heads: &mut Vec<Head>,
) -> Result<Change> {
    let name = pair.iter().flatten().next().map_or(String::new(), |m| m.target.comm.clone());
    let mut all = Change {
        name,
        pids: pair.map(|m| m.map(|m| m.target.pid)),
        live_bytes: [0; 2],
        live_count: [0; 2],
        allocated_bytes: [0; 2],
        allocations: [0; 2],
    };
    for (i, m) in pair.into_iter().enumerate() {
        let Some(m) = m else { continue };
        let index = of_one(&args.index)?.open(&m.path)?;
        let query = Query::new(&index, &args.filter.0).map_err(|e| usage(e.to_string()))?;
        let head = Head::new(&query.analysis(None)?, filter);
        let t = &head.totals;
        all.live_bytes[i] = t.live_bytes;
        all.live_count[i] = t.live_count;
        all.allocated_bytes[i] = t.allocated_bytes;
        all.allocations[i] = t.allocations.saturating_add(t.reallocations);
        heads.push(head);
    }
    Ok(all)
}

/// Returns a line for each pair, with what has changed.
fn table(all: &[Change]) -> String {
    let titles = ["pid", "name", "live", "blocks", "allocated", "allocations", "live after"];
    let mut rows: Vec<[String; 7]> = vec![titles.map(str::to_owned)];
    let mut ends = vec![""];
    for c in all {
        let pid = match c.pids {
            [Some(a), Some(b)] if a != b => format!("{a} > {b}"),
            [a, b] => a.or(b).map_or(String::new(), |pid| pid.to_string()),
        };
        rows.push([
            pid,
            one_line(&c.name),
            signed(c.live_bytes, bytes),
            signed(c.live_count, number),
            signed(c.allocated_bytes, bytes),
            signed(c.allocations, number),
            bytes(c.live_bytes[1]),
        ]);
        ends.push(match c.pids {
            [_, None] => "only before",
            [None, _] => "only after",
            _ => "",
        });
    }
    columns(&rows, &ends)
}

/// Returns a difference with its sign.
fn signed([before, after]: [u64; 2], show: fn(u64) -> String) -> String {
    let sign = if after < before { '-' } else { '+' };
    format!("{sign}{}", show(before.abs_diff(after)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_compared_with_themselves_or_with_the_next_of_their_name() {
        let member = |pid: u32, wall_ns: u64, comm: &str| Member {
            path: format!("{comm}.{pid}.prof").into(),
            target: Target { pid, wall_ns, comm: comm.into(), ..Target::default() },
        };
        let before =
            [member(1, 10, "a"), member(2, 20, "w"), member(3, 30, "w"), member(4, 40, "x")];
        // The first goes on; of the workers, one is a new process, and the other is one of before, attached to anew.
        let after =
            [member(1, 10, "a"), member(3, 70, "w"), member(9, 80, "w"), member(8, 90, "y")];
        let all = pairs(&before, &after);
        let pids: Vec<_> = all.iter().map(|p| p.map(|m| m.map(|m| m.target.pid))).collect();
        assert_eq!(
            pids,
            [
                [Some(1), Some(1)],
                [Some(2), Some(9)],
                [Some(3), Some(3)],
                [Some(4), None],
                [None, Some(8)],
            ]
        );
        assert_eq!(signed([5, 3], number), "-2");
        assert_eq!(signed([0, 3000], number), "+3,000");
    }
}
