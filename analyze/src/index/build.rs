//! Builds an index: one pass over a recording that makes a row of each block.

use super::batches::{Feed, Take, batched_channel, here};
use super::before::Before;
use super::format::{HEADER, Identity, Summary};
use super::rows::{Out, Row, Store, Writer, flags};
use crate::Error;
use crate::analysis::{Source, read_all};
use crate::heap::{Block, Course, End, Fate, Group, Live, Replay, Totals, Value, Watch};
use crate::load::{BATCH, LoadOptions, Op, OpKind, Sink, Stream, open_file};
use prof_trace::capture::Capture;
use prof_trace::ticks::Ticks;
use std::fs::File;
use std::io;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

/// Number of rows in a batch.
const ROWS: usize = 1024;

/// A block's place in a chain of reallocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    chain: u32,
    position: u32,
}

impl Value for Link {
    type Align = ();
}

/// Makes a row of each block that ends.
struct Rows {
    to: Feed<Row, Vec<Row>>,
    /// Links of the live blocks that `realloc` returned, by address.
    links: Live<Link>,
    /// For each thread index: the link of the block that the thread has passed to `realloc`.
    old_links: Vec<Link>,
    chains: u32,
    before: Before,
    /// Thread index of the blocks that a census has found; `u32::MAX`: there are none.
    finder: u32,
}

impl Rows {
    fn old_link(&mut self, thread_index: u32) -> &mut Link {
        let thread_index = thread_index as usize;
        if thread_index >= self.old_links.len() {
            self.old_links.resize(thread_index + 1, Link::default());
        }
        &mut self.old_links[thread_index]
    }

    /// Removes and returns the link of a block that ends.
    #[inline(always)]
    fn link(&mut self, addr: u64, b: &Block) -> Link {
        if b.is_noted() { self.links.remove(addr).unwrap_or_default() } else { Link::default() }
    }

    #[inline(always)]
    fn push(&mut self, addr: u64, b: &Block, link: Link, how: &End) {
        self.to.push(Row {
            addr,
            sized: b.sized(),
            begin: b.time,
            end: how.time.max(b.time),
            group: b.group,
            thread_index: b.thread_index,
            end_node: how.node,
            end_thread_index: how.thread_index,
            chain: link.chain,
            position: link.position,
            flags: if how.temporary { flags::TEMPORARY } else { 0 }
                | if link.position > 0 { flags::REALLOCATED } else { 0 }
                | match how.fate {
                    Fate::Freed if how.time == Ticks::MAX => flags::LIVE,
                    Fate::Freed => 0,
                    Fate::Implied => flags::IMPLIED,
                    Fate::Reallocated => flags::CONTINUED,
                }
                | if b.thread_index == self.finder { flags::FOUND } else { 0 },
        });
    }
}

impl Watch for Rows {
    #[inline(always)]
    fn notes(&self, op: &Op) -> bool {
        op.kind == OpKind::ReallocNew
    }

    fn begin(&mut self, op: &Op) {
        let link = std::mem::take(self.old_link(op.thread_index));
        // A block that `realloc` returned is never the first of its chain, even if the old block is not known.
        let link = Link { chain: link.chain, position: link.position.saturating_add(1) };
        self.links.insert(op.addr, link);
    }

    fn found(&mut self, _: u32, op: &Op) {
        self.finder = op.thread_index;
    }

    #[inline(always)]
    fn end(&mut self, addr: u64, b: &Block, end: End) {
        if b.thread_index == self.finder {
            // Growth that replaces blocks from before is no leak: this list has the frees of these blocks, with a census, too.
            self.before.push(end.time, addr);
        }
        let mut link = self.link(addr, b);
        if end.fate == Fate::Reallocated {
            if link.chain == 0 && self.chains < u32::MAX {
                self.chains += 1;
                link.chain = self.chains;
            }
            *self.old_link(end.thread_index) = link;
        }
        self.push(addr, b, link, &end);
    }

    fn unknown(&mut self, op: &Op) {
        if op.kind == OpKind::ReallocOld {
            *self.old_link(op.thread_index) = Link::default();
        }
    }

    fn before(&mut self, op: &Op) {
        self.before.push(op.time, op.addr);
    }
}

/// Sends operations to the thread that replays them.
struct Pipe(Feed<Op, Message>);

/// A message between the reading and the replaying thread.
enum Message {
    /// The arguments of [`Sink::begin`].
    Begin(Capture, u64),
    /// A batch of operations.
    Ops(Vec<Op>),
}

impl From<Vec<Op>> for Message {
    fn from(ops: Vec<Op>) -> Self {
        Message::Ops(ops)
    }
}

impl Sink for Pipe {
    fn begin(&mut self, capture: &Capture, early: u64) {
        self.0.say(Message::Begin(*capture, early));
    }

    fn take(&mut self, ops: &[Op]) {
        self.0.exchange(&mut ops.to_vec());
    }

    fn take_all(&mut self, ops: &mut Vec<Op>) {
        self.0.exchange(ops);
    }
}

/// The result of a pass over a recording.
pub(super) struct Built {
    pub source: Source,
    pub store: Store,
    pub summary: Summary,
}

/// Why an index could not be built.
pub(super) enum Failure {
    /// The recording could not be read.
    Recording(Error),
    /// The index could not be written.
    Index(io::Error),
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Failure::Recording(e)
    }
}

/// Reads a recording and writes its index to `to`, or keeps the index in memory.
pub(super) fn build(
    path: &Path,
    options: &LoadOptions,
    to: Option<File>,
) -> Result<Built, Failure> {
    let mut stream = Stream::open(path, options)?;
    let file = open_file(path)?;
    let identity = Identity::of(&file).map_err(|e| Error::read(path, e))?;
    let mut out = match to {
        Some(f) => Out::File(io::BufWriter::with_capacity(1 << 20, f)),
        None => Out::Memory(Vec::new()),
    };
    out.write(&[0; HEADER as usize]).map_err(Failure::Index)?;
    let writer = Writer::new(out, HEADER, stream.event_bytes());
    let (read, replayed, written) = run(&mut stream, writer);
    read?;
    let Replayed { mut totals, mut groups, chains, before, mut course } = replayed;
    let mut writer = written;
    if let Some(sum) = crate::aggregate::sum(&file, stream.meta()) {
        course = sum.steps.course();
        (totals, groups) = (sum.totals, sum.groups);
    } else if let Some(s) = &stream.meta().stripped {
        crate::heap::restore(s, &mut totals, &mut groups);
    }
    let thread_numbers = (0..).map_while(|thread_index| stream.thread_of(thread_index)).collect();
    let source = Source::new(stream, file);
    let summary = Summary {
        identity,
        tail: source.tail,
        bytes: source.bytes,
        events: source.events,
        damaged_bytes: source.damaged_bytes,
        packed: source.packed,
        totals,
        rows: writer.rows,
        chains: chains.into(),
        groups,
        thread_numbers,
        before,
        blocks: std::mem::take(&mut writer.blocks),
        course,
    };
    let course_at = writer.at;
    writer.write(&super::course::encode(&summary.course));
    let tables_at = writer.at;
    let tables = summary.tables(writer.is_in_file());
    writer.write(&tables);
    let header = summary.header(course_at, tables_at);
    let store = writer.finish(&header).map_err(Failure::Index)?;
    Ok(Built { source, store, summary })
}

/// Result of a replay.
struct Replayed {
    totals: Totals,
    groups: Vec<Group>,
    /// Number of chains of reallocations.
    chains: u32,
    /// Frees of blocks from before the recording.
    before: Before,
    /// The figures of all blocks over time.
    course: Course,
}

/// Reads, replays and writes, each on a thread of its own, as the three take about equally long. Where no threads can be
/// had (`ulimit -u`, pids.max), this one does all.
fn run(stream: &mut Stream, writer: Writer) -> (Result<(), Error>, Replayed, Writer) {
    let (ops, from_ops) = batched_channel(BATCH);
    let (rows, from_rows) = batched_channel::<Row, Vec<Row>>(ROWS);
    std::thread::scope(|scope| {
        // A thread gets its work when both are there.
        let (start_replay, replays) = sync_channel(1);
        let (start_writing, writes) = sync_channel::<Writer>(1);
        let replayer = Builder::new().spawn_scoped(scope, move || {
            let rows = replays.recv().ok()?;
            Some(replay(&from_ops, rows))
        });
        let written = Builder::new().spawn_scoped(scope, move || {
            let mut writer = writes.recv().ok()?;
            while let Some(rows) = from_rows.next() {
                rows.iter().for_each(|row| writer.push(row));
                from_rows.done(rows);
            }
            writer.finish_rows();
            Some(writer)
        });
        let (Ok(replayer), Ok(written)) = (replayer, written) else {
            drop((start_replay, start_writing));
            return run_here(stream, writer);
        };
        let _ = start_replay.send(rows);
        let _ = start_writing.send(writer);
        let mut pipe = Pipe(ops);
        let read = read_all(stream, &mut pipe);
        pipe.0.send();
        drop(pipe);
        let replayed = replayer.join().unwrap_or_else(|panic| resume_unwind(panic));
        let written = written.join().unwrap_or_else(|panic| resume_unwind(panic));
        // Both have got their work above.
        (read, replayed.expect("rows to replay to"), written.expect("a writer"))
    })
}

/// Reads, replays and writes on this thread.
fn run_here(stream: &mut Stream, writer: Writer) -> (Result<(), Error>, Replayed, Writer) {
    let writer = Arc::new(Mutex::new(writer));
    let to = Arc::clone(&writer);
    let rows = here(ROWS, move |rows: Vec<Row>| {
        let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
        rows.iter().for_each(|row| to.push(row));
    });
    let replay = Arc::new(Mutex::new(begin(rows)));
    let to = Arc::clone(&replay);
    let ops = here(BATCH, move |message| {
        let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
        take(&mut to, message);
    });
    let mut pipe = Pipe(ops);
    let read = read_all(stream, &mut pipe);
    pipe.0.send();
    drop(pipe);
    // Only the pipe had another reference to the replay, and only the replay had one to the writer.
    let replayed = finish(own(replay));
    let mut writer = own(writer);
    writer.finish_rows();
    (read, replayed, writer)
}

fn own<T>(shared: Arc<Mutex<T>>) -> T {
    let only = Arc::into_inner(shared).expect("the only reference");
    only.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Replays operations, and makes rows of the blocks; those still live at the end come last.
fn replay(from: &Take<Op, Message>, to: Feed<Row, Vec<Row>>) -> Replayed {
    let mut replay = begin(to);
    while let Some(message) = from.next() {
        if let Some(ops) = take(&mut replay, message) {
            from.done(ops);
        }
    }
    finish(replay)
}

fn begin(to: Feed<Row, Vec<Row>>) -> Replay<Rows> {
    Replay::new(Rows {
        to,
        links: Live::default(),
        old_links: Vec::new(),
        chains: 0,
        before: Before::default(),
        finder: u32::MAX,
    })
}

/// Replays a message; returns its buffer.
fn take(replay: &mut Replay<Rows>, message: Message) -> Option<Vec<Op>> {
    match message {
        Message::Begin(capture, early) => {
            Sink::begin(replay, &capture, early);
            None
        }
        Message::Ops(ops) => {
            replay.take(&ops);
            Some(ops)
        }
    }
}

fn finish(replay: Replay<Rows>) -> Replayed {
    let (totals, groups, course) = (replay.totals(), replay.groups(), replay.course());
    let (live, mut rows) = replay.into_live();
    for (addr, b) in live {
        let link = rows.link(addr, &b);
        rows.push(addr, &b, link, &NEVER);
    }
    rows.to.send();
    Replayed { totals, groups, chains: rows.chains, before: rows.before, course }
}

/// The end of a block that is never freed.
const NEVER: End =
    End { time: Ticks::MAX, thread_index: 0, node: 0, fate: Fate::Freed, temporary: false };
