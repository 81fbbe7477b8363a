//! Looks at a growing recording: each finds the stacks that hold memory at that moment, as memleak shows them.

use super::{Names, Only};
use crate::Error;
use crate::analysis::Follower;
use crate::heap::weight;
use crate::report::{AskedData, FrameData, frame_lines};
use crate::style::{Style, printable};
use prof_trace::ticks::Ticks;
use serde::Serialize;
use std::fmt::Write;

/// The key that stacks are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Order {
    /// Outstanding bytes
    #[default]
    Size,
    /// Outstanding blocks
    Count,
}

/// Options of a look.
#[derive(Clone, Debug, Default)]
pub struct OutstandingOptions {
    /// Selects the blocks that count.
    pub only: Only,
    /// Least age in nanoseconds of the blocks that count, unless the filter names one.
    pub older_ns: u64,
    /// Number of stacks; 0: all.
    pub top: usize,
    /// The key that stacks are sorted by, largest first.
    pub order: Order,
    /// Puts the largest last.
    pub ascending: bool,
    /// Names each block.
    pub blocks: bool,
    /// Takes the figures that are kept by stack, in which blocks of any age count.
    pub combined: bool,
    /// Number of frames of each stack, innermost first; 0: all.
    pub depth: usize,
}

/// A block that is outstanding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlockData {
    /// Address of the block, in hexadecimal.
    pub address: String,
    /// Bytes requested.
    pub size: u64,
    /// Time since the allocation, in nanoseconds.
    pub age_ns: u64,
}

/// A stack with what it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StackData {
    /// Number of the stack in this recording, for `--stacks`.
    pub id: u32,
    /// Outstanding bytes.
    pub bytes: u64,
    /// Number of outstanding blocks.
    pub count: u64,
    /// Age in nanoseconds of the oldest one, unless blocks were not looked at.
    pub oldest_age_ns: Option<u64>,
    /// The frame that asked for the memory.
    pub asked_by: Option<AskedData>,
    /// The frames, innermost first.
    pub frames: Vec<FrameData>,
    /// Whether the outer frames are missing.
    pub truncated: bool,
    /// The blocks, oldest first, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<Vec<BlockData>>,
}

/// A look: the stacks that hold blocks at a moment, and their sums.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outstanding {
    /// The moment, in nanoseconds since the start of the recording.
    pub at_ns: u64,
    /// Outstanding bytes of all stacks that count.
    pub bytes: u64,
    /// Number of their outstanding blocks.
    pub count: u64,
    /// Number of stacks with outstanding blocks.
    pub stacks: u64,
    /// Number of events lost so far.
    pub lost: u64,
    /// The ids and names of threads that were asked for, and that no thread has by now.
    pub unknown_threads: Vec<String>,
    /// The stacks that are shown, in the order in which they are shown.
    pub top: Vec<StackData>,
}

/// Live blocks of a group of equal stacks, weighted where the recording is a sample.
#[derive(Clone, Copy, Default)]
struct Held {
    bytes: f64,
    count: f64,
    oldest: Option<Ticks>,
}

impl Outstanding {
    /// Looks at what a recording has now; `names` keeps the names for the next look. Where blocks have to be looked at,
    /// it takes a pass over the live ones.
    ///
    /// # Errors
    /// If the recording can't be opened for its symbols.
    pub fn new(
        follower: &Follower,
        names: &mut Names,
        options: &OutstandingOptions,
    ) -> Result<Self, Error> {
        let nodes: Vec<u32> = follower.groups().iter().map(|g| g.node).collect();
        let held = match options.combined {
            true => combined(follower),
            false => held(follower, options),
        };
        let mut rows: Vec<usize> = (0..held.len()).filter(|g| held[*g].count > 0.0).collect();
        if options.only.asks_for_stacks() {
            names.look_up(follower, rows.iter().map(|g| nodes[*g]))?;
            rows.retain(|g| options.only.has_stack(&names.get(nodes[*g])));
        }
        let key = |g: usize| match options.order {
            Order::Size => (held[g].bytes, held[g].count),
            Order::Count => (held[g].count, held[g].bytes),
        };
        rows.sort_by(|a, b| {
            let (a, b) = ((key(*a), *a), (key(*b), *b));
            b.0.0.total_cmp(&a.0.0).then(b.0.1.total_cmp(&a.0.1)).then(a.1.cmp(&b.1))
        });
        let sum = |of: fn(&Held) -> f64| rows.iter().map(|g| of(&held[*g])).sum::<f64>();
        let (bytes, count) = (sum(|h| h.bytes), sum(|h| h.count));
        let stacks = rows.len() as u64;
        if options.top > 0 {
            rows.truncate(options.top);
        }
        names.look_up(follower, rows.iter().map(|g| nodes[*g]))?;
        let (clock, now) = (&follower.meta().clock, follower.now_ticks());
        let top = rows.iter().map(|&g| {
            let (stack, h) = (names.get(nodes[g]), held[g]);
            let most = if options.depth == 0 { usize::MAX } else { options.depth };
            StackData {
                id: nodes[g],
                bytes: h.bytes.round() as u64,
                count: h.count.round() as u64,
                oldest_age_ns: h.oldest.map(|t| clock.between(t, now)),
                asked_by: stack.asked.clone(),
                frames: stack.frames.iter().take(most).cloned().collect(),
                truncated: stack.cut && stack.frames.len() <= most,
                blocks: None,
            }
        });
        let mut top: Vec<StackData> = top.collect();
        if options.blocks && !options.combined {
            add_blocks(follower, options, &rows, &mut top);
        }
        if options.ascending {
            top.reverse();
        }
        Ok(Self {
            at_ns: follower.now_ns(),
            bytes: bytes.round() as u64,
            count: count.round() as u64,
            stacks,
            lost: follower.meta().counters.lost,
            unknown_threads: options.only.threads(follower.meta()).unknown,
            top,
        })
    }

    /// Returns the look as text; `when` stands in its first line.
    pub fn text(&self, when: &str, style: Style) -> String {
        let n = self.top.len();
        let mut out = format!("[{when}] Top {n} stacks with outstanding allocations:\n");
        for s in &self.top {
            // Writing to a string can't fail.
            for b in s.blocks.iter().flatten() {
                let _ = writeln!(out, "\taddr = {} size = {}", b.address, b.size);
            }
            let (bytes, count) = (s.bytes, s.count);
            let _ = writeln!(out, "\t{bytes} bytes in {count} allocations from stack");
            let _ = frame_lines(&s.frames, s.truncated, style, &mut out);
        }
        if !self.unknown_threads.is_empty() {
            let all = self.unknown_threads.iter().map(|t| printable(t)).collect::<Vec<_>>();
            let _ = writeln!(out, "no thread has the id or name {} by now", all.join(", "));
        }
        if self.lost > 0 {
            let _ = writeln!(
                out,
                "{} events were lost so far: blocks whose frees are among them count as outstanding",
                self.lost
            );
        }
        out
    }

    /// Returns the look as JSON, in one line.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Returns what each group holds by the figures that are kept.
fn combined(follower: &Follower) -> Vec<Held> {
    let groups = follower.groups();
    let held = groups.iter().map(|g| Held {
        bytes: g.figures.live_bytes as f64,
        count: g.figures.live_count as f64,
        oldest: None,
    });
    held.collect()
}

/// Calls `take` with each block that counts.
fn each(
    follower: &Follower,
    options: &OutstandingOptions,
    mut take: impl FnMut(u64, &crate::heap::Block),
) {
    let (clock, now) = (&follower.meta().clock, follower.now_ticks());
    let older = options.only.older_ns(follower.now_ns()).unwrap_or(options.older_ns);
    let threads = options.only.threads(follower.meta());
    for (addr, b) in follower.blocks() {
        let wanted = options.only.has_size(b.size())
            && (older == 0 || clock.between(b.time, now) >= older)
            && threads.has(follower.thread_of(b.thread_index));
        if wanted {
            take(addr, &b);
        }
    }
}

/// Returns what each group holds by its blocks.
fn held(follower: &Follower, options: &OutstandingOptions) -> Vec<Held> {
    let capture = follower.meta().target.capture();
    let mut all: Vec<Held> = Vec::new();
    each(follower, options, |_, b| {
        let g = b.group as usize;
        if g >= all.len() {
            all.resize(g + 1, Held::default());
        }
        let (h, weight) = (&mut all[g], weight(&capture, b.size(), b.rate()));
        h.bytes += b.size() as f64 * weight;
        h.count += weight;
        h.oldest = Some(h.oldest.map_or(b.time, |t| t.min(b.time)));
    });
    all
}

/// Adds the blocks to the rows of their groups.
fn add_blocks(
    follower: &Follower,
    options: &OutstandingOptions,
    rows: &[usize],
    top: &mut [StackData],
) {
    let (clock, now) = (&follower.meta().clock, follower.now_ticks());
    top.iter_mut().for_each(|s| s.blocks = Some(Vec::new()));
    each(follower, options, |addr, b| {
        let row = rows.iter().position(|g| *g == b.group as usize);
        let Some(blocks) = row.and_then(|i| top[i].blocks.as_mut()) else { return };
        let (address, age_ns) = (format!("{addr:#x}"), clock.between(b.time, now));
        blocks.push(BlockData { address, size: b.size(), age_ns });
    });
    for blocks in top.iter_mut().filter_map(|s| s.blocks.as_mut()) {
        blocks.sort_by(|a, b| b.age_ns.cmp(&a.age_ns).then(a.address.cmp(&b.address)));
    }
}
