//! A growing recording as lines: one for each event, in the order of time.

use super::{Names, Only};
use crate::Error;
use crate::analysis::{Follower, Progress, Seen};
use crate::heap::Block;
use crate::load::{OpKind, is_before};
use crate::report::{AskedData, FrameData, frame_lines};
use crate::style::{Style, base, printable};
use prof_trace::records::Call;
use prof_trace::ticks::Ticks;
use prof_trace::values::text::duration;
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::Write;

/// Number of bytes of the recording that are read at a time, so that a fast target does not fill the memory.
const STEP: u64 = 128 << 10;

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum What {
    /// malloc, calloc, operator new and their like
    Alloc,
    /// free, operator delete and their like
    Free,
    /// realloc and its like
    Realloc,
    /// mmap, munmap, brk, madvise and other calls that change mappings, and the allocator's settings
    Maps,
}

/// Options of a trace.
#[derive(Clone, Debug, Default)]
pub struct TraceOptions {
    /// Selects the events that get lines, by size, thread and stack.
    pub only: Only,
    /// The kinds that have lines; empty: all.
    pub kinds: Vec<What>,
    /// Number of frames below each line, innermost first; `Some(0)`: all of them; `None`: no frames.
    pub frames: Option<usize>,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LineData {
    /// Nanoseconds since the start of the recording.
    pub at_ns: u64,
    /// Nanoseconds since 1970.
    pub wall_ns: u64,
    /// The thread's id.
    pub tid: u32,
    /// The thread's name.
    pub thread: String,
    /// `alloc`, `free`, `realloc`, or the name of the function that changes mappings.
    pub function: &'static str,
    /// Bytes asked for; of a free, bytes of the block, if that was allocated since the trace began.
    pub size: Option<u64>,
    /// Address of the block or mapping, in hexadecimal.
    pub address: String,
    /// Address before `realloc`, `mremap` or `brk`, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_address: Option<String>,
    /// Bytes before `realloc` or `mremap`, if they are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_size: Option<u64>,
    /// Lifetime of the block that has ended, in nanoseconds, if it was allocated since the trace began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lived_ns: Option<u64>,
    /// Error number of a call that has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errno: Option<u16>,
    /// The file that was mapped, or the name that was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Number of the stack in this recording; 0: none, as of most frees.
    pub stack: u32,
    /// The frame that asked for the event.
    pub asked_by: Option<AskedData>,
    /// The frame that had allocated the block, of frees that are recorded without a stack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocated_by: Option<AskedData>,
    /// The frames, innermost first, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames: Option<Vec<FrameData>>,
    /// Whether the outer frames are missing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// An event whose stack has no names yet.
struct Event {
    ticks: Ticks,
    /// Number of the thread.
    thread: Option<u32>,
    what: What,
    function: &'static str,
    size: Option<u64>,
    address: u64,
    old: Option<(u64, Option<u64>)>,
    /// Ticks when the block was allocated that has ended.
    since: Option<Ticks>,
    errno: u16,
    name: Option<String>,
    node: u32,
    /// Node of the stack that had allocated the block that has ended.
    allocated: u32,
}

/// By thread index: address, and, if it is known, block and node of its stack.
type OldBlocks = HashMap<u32, (u64, Option<(Block, u32)>)>;

/// Turns the events of a growing recording into lines.
pub struct Trace {
    follower: Follower,
    names: Names,
    options: TraceOptions,
    /// The blocks that were passed to a `realloc` that has not returned.
    old_blocks: OldBlocks,
    /// Number of events that had no line, as the options left them out.
    pub left_out: u64,
    /// Number of events lost before the trace began.
    lost_before: u64,
}

impl Trace {
    /// Begins a trace. The follower has been opened, and may have read nothing.
    pub fn new(follower: Follower, names: Names, options: TraceOptions) -> Self {
        let lost_before = follower.meta().counters.lost;
        Self { follower, names, options, old_blocks: HashMap::new(), left_out: 0, lost_before }
    }

    /// Returns the follower.
    pub fn follower(&self) -> &Follower {
        &self.follower
    }

    /// Returns the number of events that were lost since the trace began.
    pub fn lost(&self) -> u64 {
        self.follower.meta().counters.lost.saturating_sub(self.lost_before)
    }

    /// Returns the ids and names of threads in the filter that no thread has by now.
    pub fn unknown_threads(&self) -> Vec<String> {
        self.options.only.threads(self.follower.meta()).unknown
    }

    /// Reads a part of what was added to the recording, and returns its events in the order of time.
    ///
    /// # Errors
    /// If the recording can't be read.
    pub fn read(&mut self) -> Result<(Progress, Vec<LineData>), Error> {
        let mut events: Vec<Event> = Vec::new();
        let old_blocks = &mut self.old_blocks;
        let mut thread_indexes: Vec<Option<u32>> = Vec::new();
        let progress = self.follower.watch(STEP, |seen| {
            if let Some((event, thread_index)) = event(seen, old_blocks) {
                events.push(event);
                thread_indexes.push(thread_index);
            }
        })?;
        for (event, thread_index) in events.iter_mut().zip(thread_indexes) {
            if let Some(thread_index) = thread_index {
                event.thread = self.follower.thread_of(thread_index);
            }
        }
        // Calls and operations come in batches of their own.
        events.sort_by_key(|e| e.ticks);
        let before = events.len();
        self.keep_wanted(&mut events)?;
        self.left_out += (before - events.len()) as u64;
        let nodes = events.iter().flat_map(|e| [e.node, e.allocated]).filter(|n| *n != 0);
        self.names.look_up(&self.follower, nodes)?;
        let lines = events.into_iter().map(|e| self.line(e)).collect();
        Ok((progress, lines))
    }

    /// Removes the events that the options leave out.
    fn keep_wanted(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        let (only, kinds) = (&self.options.only, &self.options.kinds);
        let threads = only.threads(self.follower.meta());
        let sizes = only.asks_for_sizes();
        events.retain(|e| {
            (kinds.is_empty() || kinds.contains(&e.what))
                && threads.has(e.thread)
                && (!sizes || e.size.is_some_and(|size| only.has_size(size)))
        });
        if only.asks_for_stacks() {
            let stack = |e: &Event| if e.node == 0 { e.allocated } else { e.node };
            self.names.look_up(&self.follower, events.iter().map(stack).filter(|n| *n != 0))?;
            let names = &self.names;
            events.retain(|e| stack(e) != 0 && only.has_stack(&names.get(stack(e))));
        }
        Ok(())
    }

    fn line(&self, e: Event) -> LineData {
        let meta = self.follower.meta();
        let thread = e.thread.and_then(|n| meta.threads.get(&n));
        let at_ns = meta.clock.ns(e.ticks);
        let stack = self.names.get(e.node);
        let frames = self.options.frames.filter(|_| e.node != 0).map(|n| match n {
            0 => stack.frames.clone(),
            n => stack.frames.iter().take(n).cloned().collect(),
        });
        let truncated = stack.cut && frames.as_ref().is_some_and(|f| f.len() == stack.frames.len());
        let allocated = (e.allocated != 0 && e.node == 0).then(|| self.names.get(e.allocated));
        LineData {
            at_ns,
            wall_ns: meta.target.wall_ns.saturating_add(at_ns),
            tid: thread.map_or(0, |t| t.tid),
            thread: thread.map(|t| printable(&t.name)).unwrap_or_default(),
            function: e.function,
            size: e.size,
            address: format!("{:#x}", e.address),
            old_address: e.old.map(|o| format!("{:#x}", o.0)),
            old_size: e.old.and_then(|o| o.1),
            lived_ns: e.since.map(|since| meta.clock.between(since, e.ticks)),
            errno: (e.errno != 0).then_some(e.errno),
            name: e.name.as_deref().map(printable),
            stack: e.node,
            asked_by: stack.asked.clone(),
            allocated_by: allocated.and_then(|s| s.asked.clone()),
            frames,
            truncated,
        }
    }
}

/// Returns an event, and the index of its thread unless its number is known. A reallocation is one event, at its end.
fn event(seen: Seen<'_>, old_blocks: &mut OldBlocks) -> Option<(Event, Option<u32>)> {
    let (op, block) = match seen {
        Seen::Op(op, block) => (op, block),
        Seen::Call(call) => {
            let mut event = of_call(&call.call);
            event.thread = Some(call.thread);
            if let Some(file) = &call.file {
                event.name = Some(file.path.clone());
            }
            return Some((event, None));
        }
    };
    let new = Event {
        ticks: op.time,
        thread: None,
        what: What::Alloc,
        function: "alloc",
        size: Some(op.size),
        address: op.addr,
        old: None,
        since: None,
        errno: 0,
        name: None,
        node: op.node,
        allocated: 0,
    };
    let size = |b: &Option<(Block, u32)>| b.map(|(b, _)| b.size());
    let since = |(b, node): (Block, u32)| (!is_before(node)).then_some(b.time);
    let event = match op.kind {
        OpKind::ReallocOld => {
            old_blocks.insert(op.thread_index, (op.addr, block));
            return None;
        }
        // Nobody saw who has allocated it, and when.
        OpKind::Found => return None,
        OpKind::Alloc => new,
        OpKind::Free => Event {
            what: What::Free,
            function: "free",
            size: size(&block),
            since: block.and_then(since),
            allocated: block.map_or(0, |(_, node)| node),
            ..new
        },
        OpKind::ReallocNew => {
            let old = old_blocks.remove(&op.thread_index);
            Event {
                what: What::Realloc,
                function: "realloc",
                since: old.and_then(|(_, b)| b).and_then(since),
                old: old.map(|(addr, b)| (addr, size(&b))),
                ..new
            }
        }
    };
    Some((event, Some(op.thread_index)))
}

fn of_call(call: &Call) -> Event {
    let old = (call.old_addr != 0).then_some((call.old_addr, Some(call.old_len)));
    Event {
        ticks: call.at(),
        thread: None,
        what: What::Maps,
        function: call.kind.name(),
        size: (call.len > 0).then_some(call.len),
        address: call.addr,
        old: old.map(|(addr, len)| (addr, len.filter(|n| *n > 0))),
        since: None,
        errno: call.errno,
        name: (!call.name.is_empty()).then(|| call.name.clone()),
        node: call.node,
        allocated: 0,
    }
}

impl LineData {
    /// Returns the event as text, with a newline: a line, and its frames below; `when` stands in front.
    pub fn text(&self, when: &str, style: Style) -> String {
        let size = self.size.map_or("-".into(), |n| n.to_string());
        let Self { tid, thread, function, address, .. } = self;
        let mut out =
            format!("{when} {tid:>7} {thread:<15} {function:<8} {size:>10} {address:<14}");
        // Writing to a string can't fail.
        if let Some(old) = &self.old_address {
            let _ = match self.old_size {
                Some(size) => write!(out, " was {size} at {old}"),
                None => write!(out, " was at {old}"),
            };
        }
        if let Some(lived) = self.lived_ns {
            let _ = write!(out, " lived {}", duration(lived));
        }
        if let Some(errno) = self.errno {
            let error = std::io::Error::from_raw_os_error(errno.into());
            let _ = write!(out, " failed: {error}");
        }
        if let Some(name) = &self.name {
            let _ = write!(out, " {name}");
        }
        if let Some(by) = &self.asked_by {
            let _ = write!(out, "  {}", place(by));
        } else if let Some(by) = &self.allocated_by {
            let _ = write!(out, "  of {}", place(by));
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
        if let Some(frames) = &self.frames {
            let _ = frame_lines(frames, self.truncated, style, &mut out);
        }
        out
    }

    /// Returns the event as JSON, in one line without a newline.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Returns function, line and module of a place: `insert cache.c:7 (server)`.
fn place(asked: &AskedData) -> String {
    let p = &asked.place;
    let mut text = match (&p.function, &p.offset) {
        (Some(name), _) => printable(name),
        (None, Some(offset)) => format!("?? {offset}"),
        (None, None) => "??".to_owned(),
    };
    let _ = match (&p.file, p.line) {
        (Some(file), Some(line)) => write!(text, " {}:{line}", printable(base(file))),
        _ => Ok(()),
    };
    if let Some(m) = &p.module {
        let _ = write!(text, " ({})", printable(base(m)));
    }
    text
}
