//! Finds the stacks that leak: judges each by the bytes that it held over time.
//!
//! The recording is sampled at [`series::MOMENTS`] moments. At each of them only blocks older than a part of the
//! runtime count, so temporary blocks and short-lived caches are not seen at all. A stack grows if it has grown in
//! every one of eight intervals (or, with less confidence, of four): the weakest interval decides, not the mean. See
//! [`judge`]. Frees of blocks from before the recording of the same size are subtracted from its growth ([`turnover`]),
//! and sizes of one stack are judged separately ([`rows`]).

mod judge;
mod limit;
mod parts;
mod proved;
mod rows;
mod series;
mod steps;
mod text;
mod turnover;

use crate::askers::Askers;
use crate::index::ScanError;
use crate::load::Meta;
use crate::maps::{GrowingMap, Maps, growing};
use crate::objects::ObjectData;
use crate::query::Query;
use crate::report::{AskedData, FilterData, FrameData, Head, asked_by, frames_of};
use crate::symbols::Symbolizer;
use crate::{Analysis, Index};
use prof_trace::ticks::Ticks;
use prof_trace::values::parse::Time;
use rows::Judged;
use serde::Serialize;

pub use judge::{Class, Confidence};
pub use limit::{Limit, parse_limit};
pub use proved::{Proof, ProvedBlock, Unreachable};

/// Options of the search for leaks.
#[derive(Clone, Debug)]
pub struct LeakOptions {
    /// Age that a block needs at a moment to count there.
    pub young: Time,
    /// The last part of the runtime that counts as the end of the program.
    pub end: f64,
    /// Number of stacks of each class to show; 0: all.
    pub top: usize,
    /// The classes to show.
    pub classes: Vec<Class>,
    /// The filter in effect, to be named in the output.
    pub filter: Vec<FilterData>,
    /// Unreachable blocks that a scan of the process's memory has found, if there was a scan.
    pub proof: Option<Proof>,
}

impl Default for LeakOptions {
    fn default() -> Self {
        Self {
            young: Time::Part(0.05),
            end: 0.05,
            top: 10,
            classes: vec![
                Class::Proved,
                Class::Growing,
                Class::FreedAtTheEnd,
                Class::Turnover,
                Class::Saturating,
            ],
            filter: Vec::new(),
            proof: None,
        }
    }
}

/// The verdicts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Leaks {
    /// Version of this format: 1.
    pub version: u32,
    /// Describes the recording.
    #[serde(flatten)]
    pub head: Head,
    /// Age in nanoseconds that a block needs at a moment to count there.
    pub young_ns: u64,
    /// Only for samples by bytes: growth in bytes per hour that a stack needs to be almost surely seen as growing in a
    /// recording of this length.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen_per_hour: Option<u64>,
    /// Whether a scan of the process's memory came to a verdict; `None`: there was no scan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scan_settled: Option<bool>,
    /// Sums over all stacks by class, the worst class first. [`Class::Proved`] is there only after a scan.
    pub classes: Vec<ClassData>,
    /// The stacks that are shown, by class, those with the most bytes first.
    pub stacks: Vec<LeakData>,
    /// Mappings whose resident memory only grew, if the filter selects all blocks.
    pub growing_mappings: Vec<GrowingMap>,
}

/// Sums over the stacks of one class.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClassData {
    /// The class.
    pub class: Class,
    /// Number of stacks.
    pub stacks: u64,
    /// Bytes held at the last moment, or at the end if that is more; of [`Class::Proved`] the unreachable ones.
    pub bytes: u64,
    /// Growth in bytes per hour, in the weakest interval.
    pub growth_per_hour: u64,
    /// Average growth in bytes per hour.
    pub mean_growth_per_hour: u64,
}

/// The verdict on a stack.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LeakData {
    /// Number of the stack in this recording, for `--stacks`.
    pub id: u32,
    /// Class of the stack.
    pub class: Class,
    /// The class that it has by the memory that it held over time, if it is [`Class::Proved`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trend: Option<Class>,
    /// Unreachable blocks of the stack, if the stack is [`Class::Proved`].
    #[serde(flatten)]
    pub unreachable: Option<Unreachable>,
    /// The C++ classes of the unreachable blocks, those of most bytes first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ObjectData>,
    /// Confidence in the verdict.
    pub confidence: Confidence,
    /// Bytes held at the last moment, or at the end if that is more.
    pub bytes: u64,
    /// Bytes that are live at the end.
    pub live_bytes: u64,
    /// Blocks that are live at the end.
    pub live_count: u64,
    /// Bytes that were freed only at the end.
    pub freed_at_end_bytes: u64,
    /// Growth in bytes per hour, in the weakest interval.
    pub growth_per_hour: u64,
    /// Average growth in bytes per hour.
    pub mean_growth_per_hour: u64,
    /// Number of freed blocks from before the recording that these blocks replaced, which do not count as growth.
    pub replaced_count: u64,
    /// Size of the smallest and the largest block judged, if other sizes of the stack have another verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sizes: Option<[u64; 2]>,
    /// Least age in nanoseconds of the blocks judged, if the verdict is on the oldest blocks alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older_ns: Option<u64>,
    /// Bytes held at evenly spaced moments.
    pub held: Vec<u64>,
    /// The stack was cut short: outer frames are missing.
    pub truncated: bool,
    /// The function that asked for the blocks; `None` for a stack without frames.
    pub asked_by: Option<AskedData>,
    /// The frames, innermost first.
    pub frames: Vec<FrameData>,
}

/// A row of the output before its frames are symbolised.
struct Row {
    judged: Judged,
    bytes: u64,
    growth: [u64; 2],
    /// The class by the memory that it held over time.
    trend: Class,
    proved: Option<Unreachable>,
    /// The C++ classes of the blocks that are proved.
    objects: Vec<ObjectData>,
}

impl Row {
    /// Returns the bytes that count for its class.
    fn counted(&self) -> u64 {
        self.proved.map_or(self.bytes, |u| u.unreachable_bytes)
    }
}

/// Returns by how many bytes resident memory has grown from the first fifth of a period to the last, without its very
/// beginning; `None` if it is not known.
fn resident_growth(meta: &Meta, start: Ticks, end: Ticks) -> Option<f64> {
    let least = |part: std::ops::Range<f64>| {
        let at = |p: f64| start + ((end - start) as f64 * p) as u64;
        meta.resident.least(at(part.start), at(part.end)).map(|bytes| bytes as f64)
    };
    least(0.05..0.2).zip(least(0.85..1.0)).map(|(a, b)| b - a)
}

/// Returns the rows of the wanted classes, with their frames. `start`: ticks at which recording began.
fn leak_data(
    analysis: &Analysis,
    options: &LeakOptions,
    judged: &[Row],
    start: Ticks,
) -> Vec<LeakData> {
    let meta = analysis.meta();
    let mut symbols = Symbolizer::new(analysis);
    let askers = Askers::new(analysis, &mut symbols);
    let mut stacks = Vec::new();
    for class in Class::ALL.into_iter().filter(|c| options.classes.contains(c)) {
        let of = judged.iter().filter(|j| j.judged.verdict.class == class);
        let most = if options.top == 0 { usize::MAX } else { options.top };
        stacks.extend(of.take(most).map(|row| {
            let j = &row.judged;
            let g = &analysis.groups()[j.group];
            let frames = frames_of(analysis, g.node, &mut symbols);
            LeakData {
                id: g.node,
                class,
                trend: row.proved.map(|_| row.trend),
                unreachable: row.proved,
                classes: row.objects.clone(),
                confidence: j.verdict.confidence,
                bytes: row.bytes,
                live_bytes: j.series.live_bytes,
                live_count: j.series.live_blocks,
                freed_at_end_bytes: j.series.freed_after,
                growth_per_hour: row.growth[0],
                mean_growth_per_hour: row.growth[1],
                replaced_count: j.replaced,
                sizes: j.sizes.map(|(least, most)| [least, most]),
                older_ns: j.older.map(|t| meta.clock.between(start, start.saturating_add(t))),
                held: j.series.held.to_vec(),
                truncated: meta.is_cut(g.node),
                asked_by: asked_by(&frames, &askers),
                frames,
            }
        }));
    }
    stacks
}

impl Leaks {
    /// Judges the stacks of the selected blocks.
    ///
    /// # Errors
    /// If the index can't be read.
    pub fn new(index: &Index, query: &Query<'_>, options: &LeakOptions) -> Result<Self, ScanError> {
        let analysis = index.analysis();
        let meta = analysis.meta();
        // A process that has exited did so after its last event; how long prof took to notice is meaningless.
        let exits = ["exited", "ended"];
        let exited = meta.end.as_ref().is_some_and(|e| exits.iter().any(|r| e.reason == *r));
        let end = match exited {
            true => analysis.totals().last_ticks.max(meta.target.start_ticks),
            false => analysis.end_ticks(),
        };
        let young_ns = options.young.ns(analysis.duration_ns());
        // The attach lies between the recording's start and the first event.
        let parts = analysis.parts();
        let start = parts.first().map_or(meta.target.start_ticks, |p| p.start).min(end);
        let recorded = series::Recorded::new(&parts, start, end);
        let young = analysis.ticks_at(young_ns).since(meta.target.start_ticks);
        let young = young.min(recorded.total);
        let recorded_ticks = recorded.total;
        let moments = series::Moments::new(recorded, young, options.end.clamp(0.0, 1.0));
        let between = moments.at[series::MOMENTS - 1] - moments.at[0];
        let step_ns = meta.clock.between(start, start.saturating_add(between)) as f64
            / (series::MOMENTS - 1) as f64;
        let per_hour = |step: f64| if step_ns > 0.0 { (step / step_ns * 3600e9) as u64 } else { 0 };
        let resident = resident_growth(meta, start, end);
        let rows = match meta.is_aggregated() {
            true => steps::rows(index, query, &moments)?,
            false => rows::rows(index, query, &moments, resident)?,
        };
        let mut judged: Vec<Row> = rows
            .into_iter()
            .map(|j| {
                let bytes = j.series.held[series::MOMENTS - 1];
                let bytes = if j.older.is_some() { bytes } else { bytes.max(j.series.live_bytes) };
                let growth = [j.verdict.weakest, j.verdict.mean].map(per_hour);
                let trend = j.verdict.class;
                Row { judged: j, bytes, growth, trend, proved: None, objects: Vec::new() }
            })
            .collect();
        if let Some(proof) = &options.proof {
            proved::add(index, query, proof, &mut judged)?;
        }
        judged.sort_by_key(|j| {
            let growth = if j.proved.is_some() { 0 } else { j.growth[0] };
            let by = (growth, j.counted());
            (j.judged.verdict.class, std::cmp::Reverse(by), j.judged.group)
        });
        let asked = |c: &Class| *c != Class::Proved || options.proof.is_some();
        let classes = Class::ALL.into_iter().filter(asked);
        let classes = classes.map(|c| class_data(c, &judged)).collect();
        let stacks = leak_data(analysis, options, &judged, start);
        let head = Head::new(analysis, &options.filter);
        let duration_ns = meta.clock.between(start, start.saturating_add(recorded_ticks));
        let seen_per_hour = seen_per_hour(meta.points_per_byte(start, end), duration_ns);
        // Mappings that can't be read are no reason to say nothing of blocks.
        let growing_mappings =
            match Maps::of(analysis).ok().filter(|_| query.is_all() && !meta.is_aggregated()) {
                Some(maps) => growing(index, &maps)?,
                None => Vec::new(),
            };
        Ok(Self {
            version: 1,
            head,
            young_ns,
            seen_per_hour,
            scan_settled: options.proof.as_ref().map(|p| p.settled),
            classes,
            stacks,
            growing_mappings,
        })
    }

    /// Returns the verdicts as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Returns the sums of a class.
    pub fn class(&self, class: Class) -> Option<&ClassData> {
        self.classes.iter().find(|c| c.class == class)
    }
}

/// Number of sampled blocks that a growing stack needs so that each interval has some. With fewer, an interval may have
/// none by chance (`a_leak_in_a_sample_is_seen_from_some_size_on`, in the tests).
const BLOCKS_TO_SEE: u64 = 50;

/// Computes [`Leaks::seen_per_hour`].
fn seen_per_hour(points_per_byte: f64, duration_ns: u64) -> Option<u64> {
    let hours = duration_ns as f64 / 3600e9;
    let sampled = points_per_byte > 0.0 && hours > 0.0;
    sampled.then(|| (BLOCKS_TO_SEE as f64 / points_per_byte / hours) as u64)
}

fn class_data(class: Class, judged: &[Row]) -> ClassData {
    let mut data =
        ClassData { class, stacks: 0, bytes: 0, growth_per_hour: 0, mean_growth_per_hour: 0 };
    for j in judged.iter().filter(|j| j.judged.verdict.class == class) {
        data.stacks += 1;
        data.bytes = data.bytes.saturating_add(j.counted());
        data.growth_per_hour = data.growth_per_hour.saturating_add(j.growth[0]);
        data.mean_growth_per_hour = data.mean_growth_per_hour.saturating_add(j.growth[1]);
    }
    data
}
