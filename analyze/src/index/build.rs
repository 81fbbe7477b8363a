//! Builds an index: one pass over a recording that makes a row of each block.

use super::batches::{Feed, batched_channel, here, nowhere};
use super::before::Before;
use super::format::{HEADER, Identity, Summary};
use super::rows::{Out, Row, Store, Writer, flags};
use crate::Error;
use crate::analysis::{Source, read_all};
use crate::heap::{Block, Course, End, Fate, Group, Live, Replay, Totals, Value, Watch};
use crate::load::{BATCH, LoadOptions, Meta, Op, OpKind, Sink, Stream};
use prof_trace::capture::Capture;
use prof_trace::records::Folded;
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
pub(super) struct Rows {
    /// The feed that takes the rows. It drops them between two runs, when there are none.
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

impl Default for Rows {
    fn default() -> Self {
        Self {
            to: nowhere(),
            links: Live::default(),
            old_links: Vec::new(),
            chains: 0,
            before: Before::default(),
            finder: u32::MAX,
        }
    }
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

    /// Returns the row of a block that is live.
    pub(super) fn live(&self, addr: u64, b: &Block) -> Row {
        let link = if b.is_noted() { self.links.get(addr) } else { None };
        self.row(addr, b, link.unwrap_or_default(), &NEVER)
    }

    #[inline(always)]
    fn row(&self, addr: u64, b: &Block, link: Link, how: &End) -> Row {
        Row {
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
        }
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
        let row = self.row(addr, b, link, &end);
        self.to.push(row);
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
pub(super) struct Pipe(Feed<Op, Message>);

/// A message between the reading and the replaying thread.
enum Message {
    /// The arguments of [`Sink::begin`].
    Begin(Capture, u64),
    /// The argument of [`Sink::fold`].
    Fold(Box<Folded>),
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

    fn fold(&mut self, folded: &Folded) {
        self.0.say(Message::Fold(folded.clone().into()));
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
    // The path may lead to another file by now.
    let file = stream.same_file()?;
    let identity = Identity::of(&file).map_err(|e| Error::read(path, e))?;
    let mut out = match to {
        Some(f) => Out::file(f),
        None => Out::Memory(Vec::new()),
    };
    out.write(&[0; HEADER as usize]).map_err(Failure::Index)?;
    let writer = Writer::new(out, HEADER, stream.event_bytes());
    let (read, replay, mut writer) =
        run(&mut stream, Replay::new(Rows::default()), writer, read_all);
    read?;
    let figures = Figures::of(&replay, stream.meta(), &file);
    let (live, rows) = replay.into_live();
    live.for_each(|(addr, b)| writer.push(&rows.live(addr, &b)));
    writer.finish_rows();
    let thread_numbers = thread_numbers(&stream);
    let source = Source::new(stream, file);
    let summary = figures.summary(identity, &source, thread_numbers, &mut writer, &rows);
    let course_at = writer.at;
    writer.write(&super::course::encode(&summary.course));
    let tables_at = writer.at;
    let tables = summary.tables(writer.is_in_file());
    writer.write(&tables);
    let header = summary.header(course_at, tables_at);
    let store = writer.finish(&header).map_err(Failure::Index)?;
    Ok(Built { source, store, summary })
}

/// Returns the numbers of the threads, by thread index.
pub(super) fn thread_numbers(stream: &Stream) -> Vec<u32> {
    (0..).map_while(|thread_index| stream.thread_of(thread_index)).collect()
}

/// The figures of a recording, as far as it was read.
pub(super) struct Figures {
    totals: Totals,
    groups: Vec<Group>,
    /// The figures of all blocks over time.
    course: Course,
}

impl Figures {
    /// Returns those of the blocks that were replayed, or those that the recording states.
    pub(super) fn of(replay: &Replay<Rows>, meta: &Meta, file: &File) -> Self {
        if let Some(sum) = crate::aggregate::sum(file, meta) {
            return Self { totals: sum.totals, groups: sum.groups, course: sum.steps.course() };
        }
        let (mut totals, mut groups) = (replay.totals(), replay.groups());
        if let Some(s) = &meta.stripped {
            crate::heap::restore(s, &mut totals, &mut groups);
        }
        Self { totals, groups, course: replay.course() }
    }

    /// Returns the summary of an index whose rows are written.
    pub(super) fn summary(
        self,
        identity: Identity,
        source: &Source,
        thread_numbers: Vec<u32>,
        writer: &mut Writer,
        rows: &Rows,
    ) -> Summary {
        Summary {
            identity,
            tail: source.tail,
            bytes: source.bytes,
            events: source.events,
            damaged_bytes: source.damaged_bytes,
            packed: source.packed,
            totals: self.totals,
            rows: writer.rows,
            chains: rows.chains.into(),
            groups: self.groups,
            thread_numbers,
            before: rows.before.clone(),
            blocks: std::mem::take(&mut writer.blocks),
            course: self.course,
        }
    }
}

/// Reads with `read`, replays and writes, each on a thread of its own, as the three take about equally long. Where no
/// threads can be had (`ulimit -u`, pids.max), this one does all. Returns replay and writer, with all rows of blocks that
/// have ended, in any case.
pub(super) fn run(
    stream: &mut Stream,
    replay: Replay<Rows>,
    writer: Writer,
    read: impl FnOnce(&mut Stream, &mut Pipe) -> Result<(), Error>,
) -> (Result<(), Error>, Replay<Rows>, Writer) {
    let (ops, from_ops) = batched_channel(BATCH);
    let (rows, from_rows) = batched_channel::<Row, Vec<Row>>(ROWS);
    std::thread::scope(|scope| {
        // A thread gets its work when both are there.
        let (start_replay, replays) = sync_channel::<Replay<Rows>>(1);
        let (start_writing, writes) = sync_channel::<Writer>(1);
        let replayer = Builder::new().spawn_scoped(scope, move || {
            let mut replay = replays.recv().ok()?;
            replay.watch_mut().to = rows;
            while let Some(message) = from_ops.next() {
                if let Some(ops) = take(&mut replay, message) {
                    from_ops.done(ops);
                }
            }
            Some(stopped(replay))
        });
        let written = Builder::new().spawn_scoped(scope, move || {
            let mut writer = writes.recv().ok()?;
            while let Some(rows) = from_rows.next() {
                rows.iter().for_each(|row| writer.push(row));
                from_rows.done(rows);
            }
            Some(writer)
        });
        let (Ok(replayer), Ok(written)) = (replayer, written) else {
            drop((start_replay, start_writing));
            return run_here(stream, replay, writer, read);
        };
        let _ = start_replay.send(replay);
        let _ = start_writing.send(writer);
        let mut pipe = Pipe(ops);
        let read = read(stream, &mut pipe);
        pipe.0.send();
        drop(pipe);
        let replayed = replayer.join().unwrap_or_else(|panic| resume_unwind(panic));
        let written = written.join().unwrap_or_else(|panic| resume_unwind(panic));
        // Both have got their work above.
        (read, replayed.expect("a replay"), written.expect("a writer"))
    })
}

/// Sends the last rows, and lets go of where they went.
fn stopped(mut replay: Replay<Rows>) -> Replay<Rows> {
    let rows = replay.watch_mut();
    rows.to.send();
    rows.to = nowhere();
    replay
}

/// Reads, replays and writes on this thread.
fn run_here(
    stream: &mut Stream,
    mut replay: Replay<Rows>,
    writer: Writer,
    read: impl FnOnce(&mut Stream, &mut Pipe) -> Result<(), Error>,
) -> (Result<(), Error>, Replay<Rows>, Writer) {
    let writer = Arc::new(Mutex::new(writer));
    let to = Arc::clone(&writer);
    replay.watch_mut().to = here(ROWS, move |rows: Vec<Row>| {
        let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
        rows.iter().for_each(|row| to.push(row));
    });
    let replay = Arc::new(Mutex::new(replay));
    let to = Arc::clone(&replay);
    let ops = here(BATCH, move |message| {
        let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
        take(&mut to, message);
    });
    let mut pipe = Pipe(ops);
    let read = read(stream, &mut pipe);
    pipe.0.send();
    drop(pipe);
    // Only the pipe had another reference to the replay, and only the replay had one to the writer.
    let replayed = stopped(own(replay));
    (read, replayed, own(writer))
}

fn own<T>(shared: Arc<Mutex<T>>) -> T {
    let only = Arc::into_inner(shared).expect("the only reference");
    only.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Replays a message; returns its buffer.
fn take(replay: &mut Replay<Rows>, message: Message) -> Option<Vec<Op>> {
    match message {
        Message::Begin(capture, early) => {
            Sink::begin(replay, &capture, early);
            None
        }
        Message::Fold(folded) => {
            Sink::fold(replay, &folded);
            None
        }
        Message::Ops(ops) => {
            replay.take(&ops);
            Some(ops)
        }
    }
}

/// The end of a block that is never freed.
const NEVER: End =
    End { time: Ticks::MAX, thread_index: 0, node: 0, fate: Fate::Freed, temporary: false };
