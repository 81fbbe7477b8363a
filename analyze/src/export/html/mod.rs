//! Writes one page for browsers: the live bytes over time, a flame graph and a table of stacks. The page is
//! self-contained: its policy forbids requests over the network.
//!
//! Names come from the recorded process and are not trusted. The page holds them as JSON that can't end its element,
//! and its script inserts them as text only.

use super::profile::{Stack, base, label};
use super::timeline::Timeline;
use super::{Cost, ExportError, Profile, Source};
use crate::askers::Seen;
use crate::index::ScanError;
use crate::maps::{Held, HeldSums, What};
use crate::report::Head;
use crate::symbols::Frame;
use prof_trace::ticks::Ticks;
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

/// Number of stacks, those with the most of a cost, that the page shows for each cost. All others are added up.
const STACKS: usize = 2000;
/// Number of moments of the timeline.
const MOMENTS: usize = 800;

const COSTS: [Cost; 6] =
    [Cost::Live, Cost::Peak, Cost::Allocated, Cost::Allocations, Cost::Temporary, Cost::Leaked];

/// Returns the costs that differ from each other: at the end of the recording, leaked bytes are the live bytes.
fn different(source: &Source<'_>) -> &'static [Cost] {
    if source.at.is_some() { &COSTS } else { &COSTS[..COSTS.len() - 1] }
}

#[derive(Serialize)]
struct Page<'a> {
    version: u32,
    head: Head,
    costs: Vec<CostData>,
    /// Index of the cost that is shown first.
    cost: usize,
    timeline: TimelineData<'a>,
    peak_at_ns: u64,
    frames: Vec<FrameData>,
    stacks: Vec<StackData>,
    /// Sums of the stacks that are left out.
    rest: RestData,
    /// The mappings, if the page has them.
    maps: Option<MapsPart>,
}

/// The mappings of a page. In the costs of their stacks, bytes are resident.
#[derive(Serialize)]
struct MapsPart {
    what: What,
    recorded: bool,
    count: u64,
    rss: u64,
    size: u64,
}

#[derive(Serialize)]
struct CostData {
    name: &'static str,
    unit: &'static str,
}

#[derive(Serialize)]
struct TimelineData<'a> {
    end_ns: u64,
    most: &'a [u64],
}

#[derive(Serialize)]
struct FrameData {
    name: String,
    module: String,
    place: String,
    inlined: bool,
}

#[derive(Serialize)]
struct StackData {
    id: u32,
    /// Number of live blocks.
    live: u64,
    cut: bool,
    /// Values in the order of `Page::costs`.
    costs: Vec<u64>,
    /// Indices into `Page::frames`, innermost first.
    frames: Vec<usize>,
    /// Index of the frame that asked for the blocks, and of the frame it called if that is no allocator.
    asked: [Option<usize>; 2],
}

#[derive(Default, Serialize)]
struct RestData {
    stacks: u64,
    costs: Vec<u64>,
}

/// The stacks of a page.
struct Costs {
    profile: Profile,
    /// The costs of each stack.
    all: Vec<[u64; COSTS.len()]>,
    /// Ticks of the peak.
    peak: Ticks,
    maps: Option<MapsPart>,
}

/// Returns all stacks and their costs.
fn costs(source: &Source<'_>) -> Result<Costs, ScanError> {
    let now = source.query.analysis(source.at)?;
    let at = now.totals().peak_ticks;
    let peak = source.query.analysis(Some(at))?;
    let end = source.query.analysis(None)?;
    let live = |a: &crate::Analysis| -> HashMap<u32, u64> {
        a.groups().iter().map(|g| (g.node, g.figures.live_bytes)).collect()
    };
    let (at_peak, at_end) = (live(&peak), live(&end));
    let then: HashMap<u32, _> = now.groups().iter().map(|g| (g.node, g.figures)).collect();
    // The stacks at the end include those of any earlier moment.
    let mut profile = source.profile_of(&end, None);
    profile.totals = *now.totals();
    for s in profile.stacks.iter_mut().filter(|s| !s.of_maps) {
        s.figures = then.get(&s.node).copied().unwrap_or_default();
    }
    let of = |s: &Stack| {
        COSTS.map(|c| match c {
            Cost::Leaked => at_end.get(&s.node).copied().unwrap_or(0),
            Cost::Peak => at_peak.get(&s.node).copied().unwrap_or(0),
            c => s.cost(c),
        })
    };
    let blocks = profile.stacks.iter().filter(|s| !s.of_maps);
    let mut all: Vec<_> = blocks.map(of).collect();
    let maps = source.held.map(|held| maps_costs(source, held, at, &mut profile, &mut all));
    Ok(Costs { profile, all, peak: at, maps })
}

/// Appends the costs of the mappings' stacks, which come last.
fn maps_costs(
    source: &Source<'_>,
    held: &Held<'_>,
    peak: Ticks,
    profile: &mut Profile,
    all: &mut Vec<[u64; COSTS.len()]>,
) -> MapsPart {
    let sums = |at: Option<Ticks>| -> HashMap<(u32, String), HeldSums> {
        let groups = held.at(at).groups.into_iter();
        groups.map(|g| ((g.node, g.name), g.sums)).collect()
    };
    let (now, then) = (sums(source.at), sums(Some(peak)));
    let mut part = MapsPart {
        what: held.what,
        recorded: held.maps().is_recorded(),
        count: 0,
        rss: 0,
        size: 0,
    };
    let groups = held.at(None).groups;
    for (g, s) in groups.into_iter().zip(profile.stacks.iter_mut().filter(|s| s.of_maps)) {
        let key = (g.node, g.name);
        let is = now.get(&key).copied().unwrap_or_default();
        part.count += is.count;
        part.rss = part.rss.saturating_add(is.rss);
        part.size = part.size.saturating_add(is.size);
        s.figures.live_count = is.count;
        all.push(COSTS.map(|c| match c {
            Cost::Live => is.rss,
            Cost::Peak => then.get(&key).map_or(0, |s| s.rss),
            Cost::Allocated => is.made_bytes,
            Cost::Allocations => is.made,
            Cost::Temporary => 0,
            Cost::Leaked => g.sums.rss,
        }));
    }
    part
}

/// Returns the indices of the stacks that are shown: those with the most by any cost.
fn shown(all: &[[u64; COSTS.len()]]) -> HashSet<usize> {
    let mut shown = HashSet::new();
    for c in 0..COSTS.len() {
        let mut order: Vec<usize> = (0..all.len()).filter(|i| all[*i][c] > 0).collect();
        order.sort_by_key(|i| (std::cmp::Reverse(all[*i][c]), *i));
        shown.extend(order.into_iter().take(STACKS));
    }
    shown
}

fn page<'a>(source: &Source<'_>, timeline: &'a Timeline) -> Result<Page<'a>, ScanError> {
    let Costs { profile, all, peak, maps } = costs(source)?;
    let which = shown(&all);
    let different = different(source);
    let mut known: HashMap<Frame, usize> = HashMap::new();
    let (mut frames, mut stacks, mut rest) = (Vec::new(), Vec::new(), RestData::default());
    rest.costs = vec![0; different.len()];
    for (i, (s, costs)) in profile.stacks.iter().zip(all).enumerate() {
        if !which.contains(&i) {
            rest.stacks += 1;
            rest.costs.iter_mut().zip(costs).for_each(|(a, b)| *a = a.saturating_add(b));
            continue;
        }
        let of = profile.frames(s).map(|f| {
            // Two calls in the same line are one frame.
            let key = Frame { address: 0, offset: None, function_offset: None, ..f.clone() };
            let key = if f.function.is_some() { key } else { f.clone() };
            *known.entry(key).or_insert_with(|| {
                frames.push(frame(f));
                frames.len() - 1
            })
        });
        let frames_of = of.collect();
        let of: Vec<&Frame> = profile.frames(s).collect();
        let frame = |i: usize| Some(Seen::of(of.get(i)?));
        let asked = profile.askers.find(frame);
        let asked = [asked.map(|a| a.asker), asked.and_then(|a| a.through)];
        let live = s.figures.live_count;
        let costs = costs[..different.len()].to_vec();
        // Each stack needs a number of its own on the page; numbers of nodes are small.
        let id = if s.of_maps { u32::MAX - i as u32 } else { s.node };
        stacks.push(StackData { id, live, cut: s.truncated, costs, frames: frames_of, asked });
    }
    let analysis = source.query.analysis(source.at)?;
    Ok(Page {
        version: 1,
        head: Head::new(&analysis, &source.filter),
        costs: different.iter().map(|c| CostData { name: c.name(), unit: c.unit() }).collect(),
        cost: different.iter().position(|c| *c == source.cost).unwrap_or(0),
        timeline: TimelineData { end_ns: timeline.end_ns, most: &timeline.most },
        peak_at_ns: analysis.meta().clock.ns(peak),
        frames,
        stacks,
        rest,
        maps,
    })
}

fn frame(f: &Frame) -> FrameData {
    let place = match (&f.file, f.line) {
        (Some(file), Some(line)) => format!("{file}:{line}"),
        (Some(file), None) => file.to_string(),
        _ => f.offset.map_or(String::new(), |o| format!("+{o:#x}")),
    };
    let module = f.module.as_deref().map(base).unwrap_or_default().to_owned();
    FrameData { name: label(f), module, place, inlined: f.inlined }
}

/// Escapes JSON such that no string in it can end its HTML element or begin another.
struct Escape<'a>(&'a mut dyn Write);

impl Write for Escape<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // These characters occur in strings only, and are never a part of a longer UTF-8 sequence.
        for part in bytes.split_inclusive(|b| matches!(b, b'<' | b'>' | b'&')) {
            let (text, last) = match part.split_last() {
                Some((last @ (b'<' | b'>' | b'&'), text)) => (text, Some(*last)),
                _ => (part, None),
            };
            self.0.write_all(text)?;
            if let Some(b) = last {
                write!(self.0, "\\u{b:04x}")?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The components of the page of `prof serve` that this page is made of, each behind those that it uses.
const MODULES: [&str; 10] = [
    include_str!("../../../serve/ui/js/core/format.js"),
    include_str!("../../../serve/ui/js/core/dom.js"),
    include_str!("../../../serve/ui/js/charts/scale.js"),
    include_str!("../../../serve/ui/js/charts/color.js"),
    include_str!("../../../serve/ui/js/charts/canvas.js"),
    include_str!("../../../serve/ui/js/widgets/tip.js"),
    include_str!("../../../serve/ui/js/charts/brush.js"),
    include_str!("../../../serve/ui/js/charts/series.js"),
    include_str!("../../../serve/ui/js/charts/layout.js"),
    include_str!("../../../serve/ui/js/charts/flame.js"),
];

/// The style sheets, shared with the same page but for the last.
const STYLES: [&str; 3] = [
    include_str!("../../../serve/ui/css/base.css"),
    include_str!("../../../serve/ui/css/parts.css"),
    include_str!("page.css"),
];

/// Writes the modules as one script: without imports, as all that they name is above them, without exports, and without
/// the comments that describe types.
fn script(out: &mut dyn Write) -> io::Result<()> {
    for module in MODULES {
        let mut comment = false;
        for line in module.lines() {
            let text = line.trim_start();
            if comment || (text.starts_with("/*") && !text.contains("*/")) {
                comment = !text.contains("*/");
            } else if !(text.is_empty()
                || ["import ", "//", "/*"].iter().any(|s| text.starts_with(s))
                    && !text.contains("*/ "))
            {
                writeln!(out, "{}", line.strip_prefix("export ").unwrap_or(line))?;
            }
        }
    }
    out.write_all(include_bytes!("page.js"))
}

pub(super) fn write(source: &Source<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    const PAGE: &str = include_str!("page.html");
    let timeline = Timeline::new(source, MOMENTS)?;
    let page = page(source, &timeline)?;
    for part in PAGE.split_inclusive('\n') {
        match part.trim() {
            "@style@" => STYLES.iter().try_for_each(|s| out.write_all(s.as_bytes()))?,
            "@data@" => serde_json::to_writer(Escape(out), &page).map_err(io::Error::from)?,
            "@script@" => script(out)?,
            _ => out.write_all(part.as_bytes())?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_ends_the_element() {
        let name = "</script><script>alert(1)//<!-- & \u{2028} \" \\ é";
        let mut out = Vec::new();
        serde_json::to_writer(Escape(&mut out), &[name]).expect("written");
        let text = String::from_utf8(out).expect("UTF-8");
        assert!(!text.contains(['<', '>', '&']), "{text}");
        let back: Vec<String> = serde_json::from_str(&text).expect("JSON");
        assert_eq!(back, [name]);
    }

    #[test]
    fn the_script_is_one_without_modules() {
        let mut out = Vec::new();
        script(&mut out).expect("written");
        let text = String::from_utf8(out).expect("UTF-8");
        let mut names = HashSet::new();
        for line in text.lines() {
            assert!(!line.starts_with("import ") && !line.starts_with("export "), "{line}");
            let name = ["function ", "const ", "let "].iter().find_map(|k| line.strip_prefix(k));
            let end = |c: char| !(c.is_alphanumeric() || c == '_');
            if let Some(name) = name.and_then(|n| n.split(end).next()).filter(|n| !n.is_empty()) {
                assert!(names.insert(name), "{name} is there twice");
            }
        }
        assert!(
            names.contains("flameChart") && names.contains("timeChart") && !text.contains("</")
        );
    }
}
