//! Writes DHAT's JSON, for dh_view: totals, the peak, the end, and lifetimes, by stack. DHAT's counts of reads and
//! writes are not recorded.

use super::profile::{base, label};
use super::{ExportError, Profile, Source};
use crate::index::Column;
use crate::query::Selection;
use prof_trace::ticks::Ticks;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::Write;

/// Returns for each group the sum of its blocks' lifetimes in nanoseconds, counted to the end of the recording at most.
fn lifetimes(source: &Source<'_>) -> Result<Vec<u64>, crate::index::ScanError> {
    let analysis = source.index.analysis();
    let clock = &analysis.meta().clock;
    let end = source.at.unwrap_or_else(|| analysis.end_ticks());
    let groups = analysis.groups().len();
    let state = || (Selection::default(), [const { Vec::new() }; 3], vec![0u64; groups]);
    let states = source.index.scan(state, |(selection, columns, sums), block| {
        source.query.select(block, selection)?;
        for (c, values) in
            [Column::Begin, Column::End, Column::Group].into_iter().zip(&mut *columns)
        {
            block.read(c, values)?;
        }
        for &i in &selection.rows {
            let [begin, to, group] = [0, 1, 2].map(|c: usize| columns[c][i as usize]);
            let sum = sums.get_mut(group as usize)?;
            *sum = sum.saturating_add(clock.between(Ticks(begin), Ticks(to).min(end)));
        }
        Some(())
    })?;
    let mut all = vec![0u64; groups];
    for (_, _, sums) in states {
        all.iter_mut().zip(sums).for_each(|(a, b)| *a = a.saturating_add(b));
    }
    Ok(all)
}

pub(super) fn write(source: &Source<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    let whole = source.index.analysis();
    let analysis = source.query.analysis(source.at)?;
    let meta = analysis.meta();
    let profile = Profile::new(&analysis);
    let peak = source.query.analysis(Some(analysis.totals().peak_ticks))?;
    let at_peak: HashMap<u32, _> = peak.groups().iter().map(|g| (g.node, g.figures)).collect();
    let lived = lifetimes(source)?;
    let lived: HashMap<u32, u64> =
        whole.groups().iter().map(|g| g.node).zip(lived.iter().copied()).collect();
    let mut table = vec!["[root]".to_owned()];
    let mut known: HashMap<String, usize> = HashMap::new();
    let mut points: Vec<Value> = Vec::new();
    for s in &profile.stacks {
        let mut frames: Vec<usize> = profile
            .frames(s)
            .map(|f| {
                let text = match (&f.file, f.line, &f.module) {
                    (Some(file), Some(line), _) => {
                        format!("{:#X}: {} ({file}:{line})", f.address, label(f))
                    }
                    (_, _, Some(m)) => format!("{:#X}: {} (in {})", f.address, label(f), base(m)),
                    _ => format!("{:#X}: {}", f.address, label(f)),
                };
                *known.entry(text).or_insert_with_key(|text| {
                    table.push(text.clone());
                    table.len() - 1
                })
            })
            .collect();
        if frames.is_empty() {
            frames.push(0);
        }
        let f = &s.figures;
        let g = at_peak.get(&s.node).copied().unwrap_or_default();
        points.push(json!({
            "tb": f.allocated_bytes, "tbk": f.allocations + f.reallocations,
            "tl": lived.get(&s.node).copied().unwrap_or(0) / 1000,
            "mb": f.peak_bytes, "mbk": f.peak_count,
            "gb": g.live_bytes, "gbk": g.live_count,
            "eb": f.live_bytes, "ebk": f.live_count,
            "fs": frames,
        }));
    }
    let command = meta.target.command();
    let end = analysis.at_ns().unwrap_or(analysis.duration_ns());
    let file = json!({
        "dhatFileVersion": 2, "mode": "heap", "verb": "Allocated",
        "bklt": true, "bkacc": false,
        "tu": "µs", "Mtu": "s", "tuth": 10,
        "cmd": command, "pid": meta.target.pid,
        "tg": analysis.peak_at_ns() / 1000, "te": end / 1000,
        "pps": points, "ftbl": table,
    });
    serde_json::to_writer(&mut *out, &file).map_err(std::io::Error::from)?;
    writeln!(out)?;
    Ok(())
}
