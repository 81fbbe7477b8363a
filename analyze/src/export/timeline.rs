//! Computes the live bytes over time.

use super::Source;
use crate::index::{Column, ScanError};
use crate::query::{Selection, Span};
use prof_trace::ticks::Ticks;

/// With more blocks than these, events are not sorted.
const MANY: u64 = 2 << 20;
/// Number of short steps in a part of the timeline.
const STEPS: usize = 256;

/// The bytes live in each of a number of equally long parts of the recording's time.
pub(super) struct Timeline {
    /// End of the last part, in nanoseconds since the start.
    pub end_ns: u64,
    /// Greatest number of live bytes within each part.
    pub most: Vec<u64>,
    /// Live bytes at the end of each part.
    pub last: Vec<u64>,
}

impl Timeline {
    /// Computes the timeline with this number of parts.
    pub(super) fn new(source: &Source<'_>, parts: usize) -> Result<Self, ScanError> {
        let analysis = source.index.analysis();
        let clock = &analysis.meta().clock;
        let end_ns = source.at.map_or(analysis.duration_ns(), |t| clock.ns(t)).max(1);
        if analysis.meta().is_aggregated() {
            let span = Span { from_ns: 0, to_ns: end_ns, width: parts };
            let t = source.query.timeline(&span, false)?;
            return Ok(Self { end_ns, most: t.live_bytes.max, last: t.live_bytes.last });
        }
        if source.index.rows() > MANY {
            return Self::by_steps(source, parts, end_ns);
        }
        let (mut most, mut last) = (vec![0f64; parts], vec![0f64; parts]);
        let (mut live, mut at) = (0f64, 0);
        source.query.in_order(source.until(), |e| {
            let ns = clock.ns(e.time()).min(end_ns);
            let part = (ns as u128 * parts as u128 / u128::from(end_ns)) as usize;
            // A part without events has the value of the one before.
            while at < part.min(parts - 1) {
                last[at] = live;
                at += 1;
                most[at] = live;
            }
            let bytes = e.size as f64 * source.weight(e.size, e.rate);
            live = if e.begins() { live + bytes } else { (live - bytes).max(0.0) };
            most[at] = most[at].max(live);
        })?;
        for i in at..parts {
            last[i] = live;
            most[i] = most[i].max(live);
        }
        let whole = |v: Vec<f64>| v.into_iter().map(|v| v.round() as u64).collect();
        Ok(Self { end_ns, most: whole(most), last: whole(last) })
    }

    /// Computes the timeline of very many blocks without sorting them: it adds up allocations and frees in short steps
    /// of time, many to a part. Within a step only their sum counts, and the peak, which is known.
    fn by_steps(source: &Source<'_>, parts: usize, end_ns: u64) -> Result<Self, ScanError> {
        let analysis = source.index.analysis();
        let clock = &analysis.meta().clock;
        let start = analysis.meta().target.start_ticks;
        let until = source.until();
        let end = analysis.end_ticks().min(until).max(start);
        let steps = parts * STEPS;
        let width = ((end - start) / steps as u64 + 1).max(1);
        let step_of = |t: u64| ((Ticks(t).since(start) / width) as usize).min(steps - 1);
        let state = || (Selection::default(), <[Vec<u64>; 4]>::default(), vec![0f64; steps]);
        let states = source.index.scan(state, |(selection, columns, sums), block| {
            source.query.select(block, selection)?;
            if selection.rows.is_empty() {
                return Some(());
            }
            let read = [Column::Begin, Column::End, Column::Size, Column::Rate];
            for (c, v) in read.into_iter().zip(&mut *columns) {
                block.read(c, v)?;
            }
            let [begins, ends, sizes, rates] = &*columns;
            for &i in &selection.rows {
                let i = i as usize;
                let bytes = sizes[i] as f64 * source.weight(sizes[i], rates[i] as u8);
                if begins[i] <= until.0 {
                    sums[step_of(begins[i])] += bytes;
                }
                if ends[i] <= until.0 {
                    sums[step_of(ends[i])] -= bytes;
                }
            }
            Some(())
        })?;
        let (mut most, mut last) = (vec![0f64; parts], vec![0f64; parts]);
        let part_of = |ticks: Ticks| {
            let part = u128::from(clock.ns(ticks).min(end_ns)) * parts as u128 / u128::from(end_ns);
            (part as usize).min(parts - 1)
        };
        let (mut live, mut at) = (0f64, 0);
        for i in 0..steps {
            let sum: f64 = states.iter().map(|s| s.2[i]).sum();
            let part = part_of(start.saturating_add(i as u64 * width));
            while at < part {
                last[at] = live;
                at += 1;
                most[at] = live;
            }
            live = (live + sum).max(0.0);
            most[at] = most[at].max(live);
        }
        for i in at..parts {
            last[i] = live;
            most[i] = most[i].max(live);
        }
        let totals = source.query.analysis(source.at)?;
        let totals = totals.totals();
        if totals.peak_ticks <= until {
            let part = part_of(totals.peak_ticks);
            most[part] = most[part].max(totals.figures.peak_bytes as f64);
        }
        let whole = |v: Vec<f64>| v.into_iter().map(|v| v.round() as u64).collect();
        Ok(Self { end_ns, most: whole(most), last: whole(last) })
    }
}
