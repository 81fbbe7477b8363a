//! The memory that stacks held over time, of recordings that have figures by stack in place of blocks.

use super::judge::{Class, Confidence, judge};
use super::rows::{Judged, is_early};
use super::series::{MOMENTS, Moments, NOTHING, Series};
use crate::Index;
use crate::index::ScanError;
use crate::query::Query;
use prof_trace::ticks::Ticks;

/// Judges the selected stacks. Nothing is known of the age of blocks: as old at a moment counts what was live all the time
/// for which blocks are young.
pub(super) fn rows(
    index: &Index,
    query: &Query<'_>,
    moments: &Moments,
) -> Result<Vec<Judged>, ScanError> {
    let unknown = index.analysis().totals().unknown_frees;
    let series = series(query, moments)?.into_iter().enumerate();
    let rows = series.filter_map(|(group, s)| Some((group, s?)));
    let held = rows.filter(|(_, s)| s.live_bytes > 0 || s.held[MOMENTS - 1] > 0);
    let judged = held.map(|(group, series)| {
        let mut verdict = judge(&series, is_early(&series, moments));
        let grown = series.counts[MOMENTS - 1].saturating_sub(series.counts[0]);
        // Blocks from before the recording, whose size is not known, may have made room for these.
        let grows = matches!(verdict.class, Class::Growing | Class::FreedAtTheEnd);
        if grows && unknown >= grown / 2 {
            verdict.confidence = Confidence::Low;
        }
        Judged { group, verdict, series, sizes: None, older: None, replaced: 0 }
    });
    Ok(judged.collect())
}

/// Live blocks and bytes of a group, and the least that it has had since each of the moments' windows began.
#[derive(Clone, Copy)]
struct Held {
    now: [u64; 2],
    least: [[u64; 2]; MOMENTS],
}

/// The windows of time in which what is live all the time is old at their ends, the moments.
struct Windows<'a> {
    moments: &'a Moments,
    /// Number of windows that have begun, and that have ended.
    begun: usize,
    ended: usize,
}

impl Windows<'_> {
    /// Begins the windows that begin before a time, with what is live now.
    fn begin(&mut self, before: Ticks, groups: &mut [Held]) {
        let m = self.moments;
        while self.begun < MOMENTS && m.at[self.begun].saturating_sub(m.young) < before.0 {
            groups.iter_mut().for_each(|g| g.least[self.begun] = g.now);
            self.begun += 1;
        }
    }
}

/// Returns the series by group; `None` for a group that is not selected.
fn series(query: &Query<'_>, moments: &Moments) -> Result<Vec<Option<Box<Series>>>, ScanError> {
    let mut groups: Vec<Held> = Vec::new();
    let mut windows = Windows { moments, begun: 0, ended: 0 };
    let sum = query.steps(|before, step| {
        let at = moments.recorded.before(step.end);
        windows.begin(Ticks(at), &mut groups);
        while windows.ended < windows.begun && moments.at[windows.ended] < at {
            windows.ended += 1;
        }
        for s in &step.stacks {
            let group = before.place(s.node).unwrap_or(groups.len());
            if group >= groups.len() {
                groups.resize(group + 1, Held { now: [0; 2], least: [[0; 2]; MOMENTS] });
            }
            let held = &mut groups[group];
            held.now[0] = held.now[0].wrapping_add(s.figures[0]);
            held.now[1] = held.now[1].wrapping_add(s.figures[1]);
            for least in &mut held.least[windows.ended..windows.begun] {
                *least = [least[0].min(held.now[0]), least[1].min(held.now[1])];
            }
        }
        true
    })?;
    windows.begin(Ticks::MAX, &mut groups);
    let all = groups.iter().zip(&sum.groups).enumerate().map(|(i, (held, g))| {
        query.has_group(i).then(|| {
            let counts = held.least.map(|l| l[0]);
            let bytes = held.least.map(|l| l[1]);
            Box::new(Series {
                held: bytes,
                counts,
                live_blocks: g.figures.live_count,
                live_bytes: g.figures.live_bytes,
                freed_after: bytes[MOMENTS - 1].saturating_sub(g.figures.live_bytes),
                kept: counts.into_iter().max().unwrap_or(0),
                first: moments.recorded.before(g.first),
                first_ticks: g.first,
                ..NOTHING
            })
        })
    });
    Ok(all.collect())
}
