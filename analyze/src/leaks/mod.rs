//! Which stacks leak: a verdict on each, by what it held over time.
//!
//! The recording is looked at in [`series::MOMENTS`] moments. At each of them only those blocks count
//! that are older than a part of the runtime, so temporary blocks, and caches between two turns, are
//! not seen at all. A stack grows if it has grown in every one of eight intervals (or, less surely, of
//! four): the weakest decides, not the mean. See [`judge`]. From its growth is taken what blocks from before
//! the recording have given back of the same size ([`turnover`]), and sizes of one stack are told apart
//! ([`rows`]).

mod judge;
mod limit;
mod parts;
mod rows;
mod series;
mod text;
mod turnover;

use crate::Index;
use crate::askers::Askers;
use crate::index::Damaged;
use crate::query::{Query, value::Time};
use crate::report::{AskedData, FilterData, FrameData, Head, asked_by, frames_of};
use crate::symbols::Symbolizer;
use rows::Judged;
use serde::Serialize;

pub use judge::{Class, Confidence};
pub use limit::{Limit, parse_limit};

/// How to look.
#[derive(Clone, Debug)]
pub struct LeakOptions {
    /// Blocks that are younger at a moment don't count then.
    pub young: Time,
    /// What happens later is the end of the program: this part of the runtime.
    pub end: f64,
    /// How many stacks of each class are shown; 0: all.
    pub top: usize,
    /// The classes that are shown.
    pub classes: Vec<Class>,
    /// The filter, to be named.
    pub filter: Vec<FilterData>,
}

impl Default for LeakOptions {
    fn default() -> Self {
        Self {
            young: Time::Part(0.05),
            end: 0.05,
            top: 10,
            classes: vec![Class::Growing, Class::FreedAtTheEnd, Class::Turnover, Class::Saturating],
            filter: Vec::new(),
        }
    }
}

/// The verdicts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Leaks {
    /// Version of this format: 1.
    pub version: u32,
    /// Which recording.
    #[serde(flatten)]
    pub head: Head,
    /// Blocks that were younger at a moment did not count, in nanoseconds.
    pub young_ns: u64,
    /// Of a sample by bytes: what a stack has to grow by, in bytes an hour, to be seen growing nearly surely in so
    /// long a recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen_per_hour: Option<u64>,
    /// Of all stacks, by class, the worst first.
    pub classes: Vec<ClassData>,
    /// The stacks that are shown, by class, those that hold the most first.
    pub stacks: Vec<LeakData>,
}

/// The stacks of a class.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClassData {
    /// Which.
    pub class: Class,
    /// How many stacks.
    pub stacks: u64,
    /// Bytes that they hold: at the last moment, or at the end if that is more.
    pub bytes: u64,
    /// By how much they grow at least, in bytes an hour.
    pub growth_per_hour: u64,
    /// By how much they grew on average.
    pub mean_growth_per_hour: u64,
}

/// The verdict on a stack.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LeakData {
    /// Its number in this recording, for `--stacks`.
    pub id: u32,
    /// What becomes of its memory.
    pub class: Class,
    /// How sure that is.
    pub confidence: Confidence,
    /// Bytes that it held at the last moment, or holds at the end if that is more.
    pub bytes: u64,
    /// Bytes that are live at the end.
    pub live_bytes: u64,
    /// Blocks that are live at the end.
    pub live_count: u64,
    /// Bytes that were given back at the end.
    pub freed_at_end_bytes: u64,
    /// By how much it grows at least, in bytes an hour: in its weakest interval.
    pub growth_per_hour: u64,
    /// By how much it grew on average.
    pub mean_growth_per_hour: u64,
    /// Blocks from before the recording that were given back in the place of these: their growth is not
    /// counted.
    pub replaced_count: u64,
    /// If other sizes of the same stack have another verdict: the smallest and the largest block of this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sizes: Option<[u64; 2]>,
    /// If the verdict is on the oldest blocks alone: how old they are at least, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older_ns: Option<u64>,
    /// What it held at evenly spaced moments.
    pub held: Vec<u64>,
    /// The stack was cut short.
    pub truncated: bool,
    /// Who asked for the blocks; `None` for a stack without frames.
    pub asked_by: Option<AskedData>,
    /// The frames, innermost first.
    pub frames: Vec<FrameData>,
}

/// A row of the list, before its frames are looked up.
struct Row {
    judged: Judged,
    bytes: u64,
    growth: [u64; 2],
}

impl Leaks {
    /// Judges the stacks of the blocks that are meant.
    ///
    /// # Errors
    /// If the index can't be read.
    pub fn new(index: &Index, query: &Query<'_>, options: &LeakOptions) -> Result<Self, Damaged> {
        let analysis = index.analysis();
        let meta = analysis.meta();
        // A process that has exited did so after its last event; what time passed until that was
        // noticed says nothing.
        let exits = ["exited", "ended"];
        let exited = meta.end.as_ref().is_some_and(|e| exits.iter().any(|r| e.reason == *r));
        let end = match exited {
            true => analysis.totals().last_ticks.max(meta.target.start_ticks),
            false => analysis.end_ticks(),
        };
        let young_ns = options.young.ns(analysis.duration_ns());
        // Between its start and the first event lies the attach.
        let parts = analysis.parts();
        let start = parts.first().map_or(meta.target.start_ticks, |p| p.start).min(end);
        let recorded = series::Recorded::new(&parts, start, end);
        let young = analysis.ticks_at(young_ns).saturating_sub(meta.target.start_ticks);
        let young = young.min(recorded.total);
        let recorded_ticks = recorded.total;
        let moments = series::Moments::new(recorded, young, options.end.clamp(0.0, 1.0));
        let between = moments.at[series::MOMENTS - 1] - moments.at[0];
        let step_ns = meta.clock.between(start, start.saturating_add(between)) as f64
            / (series::MOMENTS - 1) as f64;
        let per_hour = |step: f64| if step_ns > 0.0 { (step / step_ns * 3600e9) as u64 } else { 0 };
        let grown = |part: std::ops::Range<f64>| {
            let at = |p: f64| start + ((end - start) as f64 * p) as u64;
            meta.resident.least(at(part.start), at(part.end)).map(|bytes| bytes as f64)
        };
        let resident = grown(0.05..0.2).zip(grown(0.85..1.0)).map(|(a, b)| b - a);
        let mut judged: Vec<Row> = rows::rows(index, query, &moments, resident)?
            .into_iter()
            .map(|j| {
                let bytes = j.series.held[series::MOMENTS - 1];
                let bytes = if j.older.is_some() { bytes } else { bytes.max(j.series.live_bytes) };
                let growth = [j.verdict.weakest, j.verdict.mean].map(per_hour);
                Row { judged: j, bytes, growth }
            })
            .collect();
        judged.sort_by_key(|j| {
            let by = (j.growth[0], j.bytes);
            (j.judged.verdict.class, std::cmp::Reverse(by), j.judged.group)
        });
        let classes = Class::ALL.map(|c| class_data(c, &judged)).to_vec();
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
        let head = Head::new(analysis, &options.filter);
        let duration_ns = meta.clock.between(start, start.saturating_add(recorded_ticks));
        let seen_per_hour = seen_per_hour(analysis.capture().sample_bytes, duration_ns);
        Ok(Self { version: 1, head, young_ns, seen_per_hour, classes, stacks })
    }

    /// As JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// The figures of a class.
    pub fn class(&self, class: Class) -> Option<&ClassData> {
        self.classes.iter().find(|c| c.class == class)
    }
}

/// So many blocks of a growing stack have to be in a sample for each of the intervals to have some: with fewer,
/// one of them has none by chance (`a_leak_in_a_sample_is_seen_from_some_size_on`, in the tests).
const BLOCKS_TO_SEE: u64 = 50;

/// See [`Leaks::seen_per_hour`].
fn seen_per_hour(sample_bytes: u64, duration_ns: u64) -> Option<u64> {
    let hours = duration_ns as f64 / 3600e9;
    let sampled = sample_bytes > 0 && hours > 0.0;
    sampled.then(|| (BLOCKS_TO_SEE as f64 * sample_bytes as f64 / hours) as u64)
}

fn class_data(class: Class, judged: &[Row]) -> ClassData {
    let mut data =
        ClassData { class, stacks: 0, bytes: 0, growth_per_hour: 0, mean_growth_per_hour: 0 };
    for j in judged.iter().filter(|j| j.judged.verdict.class == class) {
        data.stacks += 1;
        data.bytes = data.bytes.saturating_add(j.bytes);
        data.growth_per_hour = data.growth_per_hour.saturating_add(j.growth[0]);
        data.mean_growth_per_hour = data.mean_growth_per_hour.saturating_add(j.growth[1]);
    }
    data
}
