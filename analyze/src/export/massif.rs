//! Writes Massif's output: the live bytes over time, with the tree of stacks at the peak and at the end.

use super::profile::{base, label};
use super::{ExportError, Profile, Source, one_line};
use crate::analysis::Analysis;
use crate::index::ScanError;
use crate::symbols::Frame;
use prof_trace::ticks::Ticks;
use std::io::{self, Write};

/// Number of snapshots, besides that of the peak.
const SNAPSHOTS: u64 = 100;
/// Nodes with a smaller part of the total are summed up in one line.
const THRESHOLD: f64 = 0.01;
/// Greatest depth of the trees.
const DEPTH: usize = 64;

pub(super) fn write(source: &Source<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    let end = source.query.analysis(source.at)?;
    let meta = end.meta();
    let peak_at = end.totals().peak_ticks;
    let start = meta.target.start_ticks;
    let last = source.at.unwrap_or_else(|| end.end_ticks()).max(start);
    let mut at: Vec<Ticks> = (0..SNAPSHOTS)
        .map(|i| {
            start + ((last - start) as u128 * u128::from(i) / u128::from(SNAPSHOTS - 1)) as u64
        })
        .collect();
    at.push(peak_at);
    at.sort_unstable();
    at.dedup();
    let peak = source.query.analysis(Some(peak_at))?;
    let mut live = live_at(source, &at)?;
    if let Some(at) = at.iter().position(|t| *t == peak_at) {
        // Of a recording without events, this is the end of the step beside the peak.
        live[at] = peak.totals().figures.live_bytes;
    }
    let command = meta.target.command();
    writeln!(out, "desc: recorded by prof {}", one_line(&meta.target.prof_version))?;
    writeln!(out, "cmd: {}\ntime_unit: ms", one_line(&command))?;
    for (i, (t, bytes)) in at.iter().zip(&live).enumerate() {
        let ms = meta.clock.ns(*t) / 1_000_000;
        writeln!(out, "#-----------\nsnapshot={i}\n#-----------\ntime={ms}")?;
        writeln!(out, "mem_heap_B={bytes}\nmem_heap_extra_B=0\nmem_stacks_B=0")?;
        if *t == peak_at {
            writeln!(out, "heap_tree=peak")?;
            tree(&peak, out)?;
        } else if i + 1 == at.len() {
            writeln!(out, "heap_tree=detailed")?;
            tree(&end, out)?;
        } else {
            writeln!(out, "heap_tree=empty")?;
        }
    }
    Ok(())
}

/// Returns the bytes live at each of the moments, all events of that moment included.
fn live_at(source: &Source<'_>, at: &[Ticks]) -> Result<Vec<u64>, ScanError> {
    if source.index.analysis().meta().is_aggregated() {
        return source.query.live_at(at);
    }
    let mut live = vec![0u64; at.len()];
    source.query.in_order(source.until(), |e| {
        let i = at.partition_point(|t| *t < e.time());
        if let Some(l) = live.get_mut(i) {
            *l = if e.begins() { l.wrapping_add(e.size) } else { l.wrapping_sub(e.size) };
        }
    })?;
    let mut bytes = 0u64;
    for l in &mut live {
        bytes = bytes.wrapping_add(*l);
        *l = bytes;
    }
    Ok(live)
}

/// Writes the stacks as a tree from the innermost frame outwards, as Massif does.
fn tree(analysis: &Analysis, out: &mut dyn Write) -> io::Result<()> {
    let profile = Profile::new(analysis);
    let stacks: Vec<(Vec<&Frame>, u64)> = profile
        .stacks
        .iter()
        .filter(|s| s.figures.live_bytes > 0)
        .map(|s| (profile.frames(s).collect(), s.figures.live_bytes))
        .collect();
    let total = stacks.iter().map(|s| s.1).fold(0, u64::saturating_add);
    let stacks: Vec<Part<'_>> = stacks.iter().map(|s| (s.0.as_slice(), s.1)).collect();
    let name = "(heap allocation functions) malloc/new/new[], --alloc-fns, etc.";
    node(0, total, name, &stacks, total, out)
}

/// A stack from some frame outwards, and its live bytes.
type Part<'a> = (&'a [&'a Frame], u64);

fn node(
    depth: usize,
    bytes: u64,
    name: &str,
    stacks: &[Part<'_>],
    total: u64,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut children: Vec<(&Frame, u64, Vec<Part<'_>>)> = Vec::new();
    for &(frames, n) in stacks {
        let Some((first, rest)) = frames.split_first() else { continue };
        let same = |f: &Frame| {
            f.address == first.address && f.function == first.function && f.line == first.line
        };
        match children.iter_mut().find(|c| same(c.0)) {
            Some(c) => {
                c.1 = c.1.saturating_add(n);
                c.2.push((rest, n));
            }
            None => children.push((first, n, vec![(rest, n)])),
        }
    }
    children.sort_by_key(|c| (std::cmp::Reverse(c.1), c.0.address));
    if depth >= DEPTH {
        children.clear();
    }
    let shown = children.iter().filter(|c| c.1 as f64 >= total as f64 * THRESHOLD).count();
    let below = children.len() - shown;
    let indent = " ".repeat(depth);
    writeln!(out, "{indent}n{}: {bytes} {name}", shown + usize::from(below > 0))?;
    for (frame, n, rest) in &children[..shown] {
        node(depth + 1, *n, &place(frame), rest, total, out)?;
    }
    if below > 0 {
        let n = children[shown..].iter().map(|c| c.1).fold(0, u64::saturating_add);
        let places = if below == 1 { "place" } else { "places, all" };
        let text = format!("in {below} {places} below massif's threshold (1.00%)");
        writeln!(out, "{indent} n0: {n} {text}")?;
    }
    Ok(())
}

/// Returns a frame as Massif names it: `0x1234: function (file.c:12)`.
fn place(f: &Frame) -> String {
    let name = label(f);
    match (&f.file, f.line, &f.module) {
        (Some(file), Some(line), _) => {
            format!("{:#X}: {name} ({}:{line})", f.address, one_line(base(file)))
        }
        (_, _, Some(m)) => format!("{:#X}: {name} (in {})", f.address, one_line(m)),
        _ => format!("{:#X}: {name}", f.address),
    }
}
