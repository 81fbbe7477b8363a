//! Live bytes over time.

use super::Source;
use crate::index::Damaged;

/// What was live in each of so many parts of the time, all as long.
pub(super) struct Timeline {
    /// Nanoseconds since the start when the last part ends.
    pub end_ns: u64,
    /// The most bytes in each part.
    pub most: Vec<u64>,
    /// Bytes at the end of each part.
    pub last: Vec<u64>,
}

impl Timeline {
    /// In `parts` parts.
    pub(super) fn new(source: &Source<'_>, parts: usize) -> Result<Self, Damaged> {
        let analysis = source.index.analysis();
        let clock = &analysis.meta().clock;
        let end_ns = source.at.map_or(analysis.duration_ns(), |t| clock.ns(t)).max(1);
        let (mut most, mut last) = (vec![0f64; parts], vec![0f64; parts]);
        let (mut live, mut at) = (0f64, 0);
        source.query.in_order(source.until(), |e| {
            let ns = clock.ns(e.time()).min(end_ns);
            let part = (ns as u128 * parts as u128 / u128::from(end_ns)) as usize;
            // Parts in which nothing happens are as the one before.
            while at < part.min(parts - 1) {
                last[at] = live;
                at += 1;
                most[at] = live;
            }
            let bytes = e.size as f64 * source.weight(e.size);
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
}
