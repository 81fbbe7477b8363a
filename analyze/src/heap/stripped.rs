//! Saves and restores the figures of a recording from which short-lived blocks were removed.

use super::estimate::Errors;
use super::replay::{Group, Totals};
use super::stats::BlockStats;
use prof_trace::records::Stripped;
use prof_trace::ticks::Ticks;
use std::collections::HashMap;

const FIGURES: usize = 8;
/// Number of values of the totals.
const TOTALS: usize = 2 * FIGURES + 6;
const GROUP: usize = Stripped::GROUP;
const _: () = assert!(GROUP == 4 + 2 * FIGURES);
/// Number of groups in a record, so that it fits into a chunk: a value takes up to ten bytes.
const GROUPS: usize = 200_000;

/// Returns the figures in their order in records.
pub(crate) fn figures(f: &BlockStats) -> [u64; FIGURES] {
    let BlockStats {
        live_count,
        live_bytes,
        peak_count,
        peak_bytes,
        allocations,
        reallocations,
        allocated_bytes,
        temporary,
        ..
    } = *f;
    [
        live_count,
        live_bytes,
        peak_count,
        peak_bytes,
        allocations,
        reallocations,
        allocated_bytes,
        temporary,
    ]
}

/// Returns the figures of a record.
pub(crate) fn to_figures(n: &[u64; FIGURES]) -> BlockStats {
    let [
        live_count,
        live_bytes,
        peak_count,
        peak_bytes,
        allocations,
        reallocations,
        allocated_bytes,
        temporary,
    ] = *n;
    BlockStats {
        live_count,
        live_bytes,
        peak_count,
        peak_bytes,
        allocations,
        reallocations,
        allocated_bytes,
        temporary,
        ..BlockStats::default()
    }
}

/// Returns standard errors in their order in records.
pub(crate) fn errors(e: &Errors) -> [u64; FIGURES] {
    let Errors {
        live_count,
        live_bytes,
        peak_count,
        peak_bytes,
        allocations,
        reallocations,
        allocated_bytes,
        frees,
    } = *e;
    [
        live_count,
        live_bytes,
        peak_count,
        peak_bytes,
        allocations,
        reallocations,
        allocated_bytes,
        frees,
    ]
}

/// Returns the standard errors of a record.
pub(crate) fn to_errors(n: &[u64; FIGURES]) -> Errors {
    let [
        live_count,
        live_bytes,
        peak_count,
        peak_bytes,
        allocations,
        reallocations,
        allocated_bytes,
        frees,
    ] = *n;
    Errors {
        live_count,
        live_bytes,
        peak_count,
        peak_bytes,
        allocations,
        reallocations,
        allocated_bytes,
        frees,
    }
}

/// Returns the figures of all blocks as a record has them.
pub(crate) fn totals_of(t: &Totals) -> Vec<u64> {
    let mut all = figures(&t.figures).to_vec();
    all.extend(errors(&t.errors));
    let counts = [t.frees, t.unknown_frees, t.implied_frees];
    all.extend(counts);
    all.extend([t.peak_ticks.0, t.last_ticks.0, t.nonsense]);
    all
}

/// Returns the figures of all blocks of a record; `None` if it has none.
pub(crate) fn to_totals(n: &[u64]) -> Option<Totals> {
    let n = n.first_chunk::<TOTALS>()?;
    let (f, rest) = n.split_first_chunk::<FIGURES>()?;
    let (e, rest) = rest.split_first_chunk::<FIGURES>()?;
    let [frees, unknown_frees, implied_frees, peak_ticks, last_ticks, nonsense] = *rest else {
        return None;
    };
    Some(Totals {
        figures: to_figures(f),
        errors: to_errors(e),
        frees,
        unknown_frees,
        implied_frees,
        peak_ticks: Ticks(peak_ticks),
        last_ticks: Ticks(last_ticks),
        nonsense,
    })
}

/// Makes records with all figures, each with a part of the groups.
pub(crate) fn to_records(about: &Stripped, totals: &Totals, groups: &[Group]) -> Vec<Stripped> {
    let all = totals_of(totals);
    let record = |groups: &[Group]| {
        let mut numbers = Vec::with_capacity(groups.len() * GROUP);
        for g in groups {
            numbers.extend([u64::from(g.node), g.first.0, g.last.0, g.peak_ticks.0]);
            numbers.extend(figures(&g.figures));
            numbers.extend(errors(&g.errors));
        }
        Stripped { totals: all.clone(), groups: numbers, ..about.clone() }
    };
    match groups {
        [] => vec![record(&[])],
        groups => groups.chunks(GROUPS).map(record).collect(),
    }
}

/// Replaces the figures of the remaining blocks by those of all blocks. Groups without remaining blocks come last.
pub(crate) fn restore(s: &Stripped, totals: &mut Totals, groups: &mut Vec<Group>) {
    let Some(all) = to_totals(&s.totals) else { return };
    // The blocks of a census are all there, and count as they do.
    let found = |f: &BlockStats| (f.found, f.found_bytes);
    let of_all = found(&totals.figures);
    *totals = all;
    (totals.figures.found, totals.figures.found_bytes) = of_all;
    let mut places: HashMap<u32, usize> =
        groups.iter().enumerate().map(|(i, g)| (g.node, i)).collect();
    for n in s.groups.as_chunks::<GROUP>().0 {
        let Ok(node) = u32::try_from(n[0]) else { continue };
        let (Some(f), Some(e)) = (n[4..].first_chunk(), n[4 + FIGURES..].first_chunk()) else {
            continue;
        };
        let next = groups.len();
        let at = *places.entry(node).or_insert(next);
        if at == next {
            groups.push(Group { node, ..Group::default() });
        }
        let oldest = groups[at].oldest;
        let (mut figures, errors) = (to_figures(f), to_errors(e));
        (figures.found, figures.found_bytes) = found(&groups[at].figures);
        let [first, last, peak_ticks] = [n[1], n[2], n[3]];
        groups[at] = Group {
            node,
            figures,
            oldest,
            errors,
            first: Ticks(first),
            last: Ticks(last),
            peak_ticks: Ticks(peak_ticks),
        };
    }
}
