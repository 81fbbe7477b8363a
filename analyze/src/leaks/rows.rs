//! Makes the rows of the output: stacks, or parts of a stack that have different verdicts.

use super::judge::{Class, Confidence, Verdict, judge};
use super::parts::{Next, Parts, parts};
use super::series::{MOMENTS, Moments, NOTHING, Series, series};
use super::turnover::{Credit, World, assess, credits};
use crate::Index;
use crate::index::ScanError;
use crate::load::is_before;
use crate::query::Query;

/// Number of stacks, those that hold the most, that are judged by size.
const TAKEN_APART: usize = 256;
/// Least part of its stack's bytes that a part must hold to be a row of its own.
const PART: f64 = 0.05;
/// Part of the time: blocks older than this are judged separately where the stack does not grow.
const OLD: f64 = 0.4;

/// The verdict on blocks from before the recording, as a census has found them.
const CANNOT_GROW: Verdict =
    Verdict { class: Class::Static, confidence: Confidence::High, weakest: 0.0, mean: 0.0 };

/// A stack, or a part of one, with its verdict.
pub(super) struct Judged {
    pub group: usize,
    pub verdict: Verdict,
    pub series: Box<Series>,
    /// Sizes of the smallest and the largest block, if the row is a part of a stack by size.
    pub sizes: Option<(u64, u64)>,
    /// Least age in ticks, if the row is the part of a stack's oldest blocks.
    pub older: Option<u64>,
    /// Number of freed blocks from before the recording that these blocks replaced.
    pub replaced: u64,
}

fn grows(v: &Verdict) -> bool {
    matches!(v.class, Class::Growing | Class::FreedAtTheEnd)
}

/// Judges all stacks that hold memory, by parts where these differ. `resident`: growth of the resident set.
pub(super) fn rows(
    index: &Index,
    query: &Query<'_>,
    moments: &Moments,
    resident: Option<f64>,
) -> Result<Vec<Judged>, ScanError> {
    let mut rows: Vec<Judged> = series(index, query, moments)?
        .into_iter()
        .enumerate()
        .filter_map(|(group, s)| Some((group, s?)))
        .filter(|(_, s)| s.live_bytes > 0 || s.held.last().is_some_and(|h| *h > 0))
        .map(|(group, series)| {
            let verdict = match index.analysis().groups()[group].node {
                // Nothing is allocated there any more: its memory can only become less.
                node if is_before(node) => CANNOT_GROW,
                _ => judge(&series, is_early(&series, moments)),
            };
            Judged { group, verdict, series, sizes: None, older: None, replaced: 0 }
        })
        .collect();
    let groups = index.analysis().groups().len();
    let mut world = World { resident, ..World::default() };
    let open = |c| matches!(c, Class::Growing | Class::FreedAtTheEnd | Class::Saturating);
    let wanted = largest(&rows, groups, open);
    if !wanted.contains(&true) {
        return Ok(rows);
    }
    let apart = parts(index, query, moments, &wanted, None)?;
    let given = credits(&apart, &mut world);
    let mut split = Vec::new();
    for row in rows.iter_mut().filter(|r| wanted[r.group]) {
        split.extend(take_apart(row, &apart, &given, moments, &world));
    }
    rows.extend(split);
    hidden(index, query, moments, &mut rows, &mut world, apart.next)?;
    Ok(rows)
}

pub(super) fn is_early(s: &Series, moments: &Moments) -> bool {
    s.first < moments.at[MOMENTS / 2]
}

/// Marks the groups that hold the most among the chosen classes.
fn largest(rows: &[Judged], groups: usize, class: impl Fn(Class) -> bool) -> Vec<bool> {
    let mut of: Vec<&Judged> = rows.iter().filter(|r| class(r.verdict.class)).collect();
    of.sort_by_key(|r| {
        (!grows(&r.verdict), std::cmp::Reverse(r.series.held[MOMENTS - 1]), r.group)
    });
    let mut wanted = vec![false; groups];
    of.iter().take(TAKEN_APART).for_each(|r| wanted[r.group] = true);
    wanted
}

/// Returns the series and credits of a group's parts.
fn parts_of<'a>(
    group: usize,
    parts: &'a Parts,
    credits: &'a [Credit],
) -> Vec<(&'a Series, &'a Credit)> {
    let all = parts.by.iter().zip(credits);
    all.filter(|((k, _), _)| k.0 as usize == group).map(|((_, s), c)| (s, c)).collect()
}

fn sum(parts: &[&(&Series, &Credit)]) -> (Box<Series>, Credit) {
    let mut all = (Box::new(NOTHING), Credit::default());
    for (s, c) in parts {
        all.0.add(s);
        all.1.add(c);
    }
    all
}

/// Judges a stack anew, net of the freed blocks that it replaced. If only some of its sizes grow, `row` keeps the
/// others, and the row of those that grow is returned.
fn take_apart(
    row: &mut Judged,
    parts: &Parts,
    credits: &[Credit],
    moments: &Moments,
    world: &World,
) -> Option<Judged> {
    let of = parts_of(row.group, parts, credits);
    let judged = |of: &[&(&Series, &Credit)]| {
        let (series, credit) = sum(of);
        let verdict = assess(&series, is_early(&series, moments), &credit, world);
        (series, credit, verdict)
    };
    let (whole, credit, verdict) = judged(&of.iter().collect::<Vec<_>>());
    row.verdict = verdict;
    row.replaced = credit.blocks();
    let least = whole.held[MOMENTS - 1] as f64 * PART;
    let counts = |v: &Verdict| {
        let sure = if grows(&verdict) { Confidence::Medium } else { Confidence::High };
        grows(v) && v.confidence >= sure
    };
    let is_leak = |p: &&(&Series, &Credit)| {
        let v = assess(p.0, is_early(p.0, moments), p.1, world);
        counts(&v) && p.0.held[MOMENTS - 1] as f64 >= least
    };
    let (leaks, others): (Vec<_>, Vec<_>) = of.iter().partition(is_leak);
    let (series, given, grown) = judged(&leaks);
    let (rest, rest_given, other) = judged(&others);
    let is_apart = !leaks.is_empty()
        && grows(&grown)
        && !grows(&other)
        && rest.held[MOMENTS - 1] as f64 >= whole.held[MOMENTS - 1] as f64 * PART;
    if !is_apart {
        return None;
    }
    (row.sizes, row.replaced, row.verdict) = (Some(rest.sizes), rest_given.blocks(), other);
    row.series = rest;
    let (sizes, replaced) = (Some(series.sizes), given.blocks());
    Some(Judged { group: row.group, verdict: grown, series, sizes, older: None, replaced })
}

/// Finds leaks hidden by a cache of the same stack and size, among blocks older than a cache's blocks usually become.
fn hidden(
    index: &Index,
    query: &Query<'_>,
    moments: &Moments,
    rows: &mut [Judged],
    world: &mut World,
    next: Next,
) -> Result<(), ScanError> {
    let groups = index.analysis().groups().len();
    let wanted = largest(rows, groups, |c| c == Class::Saturating);
    let old = moments.older((moments.recorded.total as f64 * OLD) as u64);
    if !wanted.contains(&true) || old.young <= moments.young {
        return Ok(());
    }
    let apart = parts(index, query, &old, &wanted, Some(next))?;
    let given = credits(&apart, world);
    for row in rows.iter_mut() {
        let saturating = row.verdict.class == Class::Saturating && row.sizes.is_none();
        if !wanted[row.group] || !saturating {
            continue;
        }
        let of = parts_of(row.group, &apart, &given);
        let (series, credit) = sum(&of.iter().collect::<Vec<_>>());
        let v = assess(&series, is_early(&series, &old), &credit, world);
        if grows(&v) && v.confidence == Confidence::High {
            row.verdict = Verdict { confidence: Confidence::Medium, ..v };
            (row.older, row.replaced, row.series) = (Some(old.young), credit.blocks(), series);
        }
    }
    Ok(())
}
