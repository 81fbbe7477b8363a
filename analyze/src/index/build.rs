//! One pass over a recording: rows for its blocks.

use super::format::{HEADER, Identity, Summary};
use super::rows::{COLUMNS, Out, Store, Writer, flags};
use crate::Error;
use crate::load::{LoadOptions, Op, OpKind, Sink, Stream, open_file};
use crate::model::{Block, End, Fate, Group, Replay, Source, Totals, Watch, read_all};
use prof_trace::capture::Capture;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};

/// Operations that are handed over at a time.
const BATCH: usize = 4096;
/// Batches that are on their way at most.
const BATCHES: usize = 4;

/// Of which chain of reallocations a block is part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    chain: u32,
    position: u32,
}

/// Makes a row of each block that ends.
pub(crate) struct Rows {
    writer: Writer,
    /// By lane: the chain of the block that its thread has given to `realloc`.
    given: Vec<Link>,
    chains: u32,
}

impl Rows {
    fn given(&mut self, lane: u32) -> &mut Link {
        let lane = lane as usize;
        if lane >= self.given.len() {
            self.given.resize(lane + 1, Link::default());
        }
        &mut self.given[lane]
    }

    #[inline(always)]
    fn push(&mut self, addr: u64, b: &Block<Link>, end: u64, end_node: u32, lane: u32, flags: u64) {
        let moved = if b.tag.position > 0 { flags::REALLOCATED } else { 0 };
        let row: [u64; COLUMNS] = [
            addr,
            b.size(),
            b.time,
            end,
            b.group.into(),
            b.lane.into(),
            end_node.into(),
            lane.into(),
            flags | moved,
            b.tag.chain.into(),
            b.tag.position.into(),
            b.header().into(),
        ];
        self.writer.push(row);
    }
}

impl Watch for Rows {
    type Tag = Link;

    #[inline(always)]
    fn begin(&mut self, op: &Op, _: u32) -> Link {
        match op.kind {
            OpKind::Grown => {
                let link = std::mem::take(self.given(op.lane));
                // What came out of `realloc` is never the first of a chain, even if what it came
                // from is not known.
                Link { chain: link.chain, position: link.position.saturating_add(1) }
            }
            _ => Link::default(),
        }
    }

    #[inline(always)]
    fn end(&mut self, addr: u64, b: &Block<Link>, end: End) {
        let mut block = *b;
        let mut flags = if end.temporary { flags::TEMPORARY } else { 0 };
        match end.fate {
            Fate::Freed => {}
            Fate::Implied => flags |= flags::IMPLIED,
            Fate::Reallocated => {
                flags |= flags::CONTINUED;
                if block.tag.chain == 0 && self.chains < u32::MAX {
                    self.chains += 1;
                    block.tag.chain = self.chains;
                }
                *self.given(end.lane) = block.tag;
            }
        }
        self.push(addr, &block, end.time.max(b.time), end.node, end.lane, flags);
    }

    fn unknown(&mut self, op: &Op) {
        if op.kind == OpKind::Given {
            *self.given(op.lane) = Link::default();
        }
    }
}

/// Sends operations to another thread.
struct Pipe {
    to: SyncSender<Message>,
    back: Receiver<Vec<Op>>,
    batch: Vec<Op>,
}

/// What is handed over.
enum Message {
    /// Which blocks the operations are of.
    Begin(Capture),
    /// The next operations.
    Ops(Vec<Op>),
}

impl Pipe {
    fn send(&mut self) {
        let next = self.back.try_recv().unwrap_or_else(|_| Vec::with_capacity(BATCH));
        let batch = std::mem::replace(&mut self.batch, next);
        // If the other side is gone, it says itself why.
        let _ = self.to.send(Message::Ops(batch));
    }
}

impl Sink for Pipe {
    fn begin(&mut self, capture: &Capture) {
        if !self.batch.is_empty() {
            self.send();
        }
        let _ = self.to.send(Message::Begin(*capture));
    }

    fn take(&mut self, ops: &[Op]) {
        if self.batch.len() + ops.len() > BATCH && !self.batch.is_empty() {
            self.send();
        }
        self.batch.extend_from_slice(ops);
    }
}

/// What a pass over a recording came to.
pub(super) struct Built {
    pub source: Source,
    pub store: Store,
    pub summary: Summary,
}

/// Why there is none.
pub(super) enum Failure {
    /// The recording can't be read.
    Recording(Error),
    /// The index can't be written.
    Index(io::Error),
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Failure::Recording(e)
    }
}

/// Reads a recording and writes its index to `to`, or keeps it in memory.
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
    let rows = Rows { writer: Writer::new(out, HEADER), given: Vec::new(), chains: 0 };
    let (to, ops) = sync_channel::<Message>(BATCHES);
    let (give_back, back) = channel();
    let (read, done) = std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let mut replay = Replay::new(rows);
            for message in ops {
                match message {
                    Message::Begin(capture) => Sink::begin(&mut replay, &capture),
                    Message::Ops(mut batch) => {
                        replay.take(&batch);
                        batch.clear();
                        let _ = give_back.send(batch);
                    }
                }
            }
            finish(replay)
        });
        let mut pipe = Pipe { to, back, batch: Vec::with_capacity(BATCH) };
        let read = read_all(&mut stream, &mut pipe);
        pipe.send();
        drop(pipe);
        (read, worker.join())
    });
    read?;
    let (mut totals, mut groups, mut writer, chains) = match done {
        Ok(d) => d,
        Err(panic) => std::panic::resume_unwind(panic),
    };
    if let Some(s) = &stream.meta().stripped {
        crate::model::restore(s, &mut totals, &mut groups);
    }
    let lanes = (0..).map_while(|lane| stream.thread_of(lane)).collect();
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
        lanes,
        blocks: std::mem::take(&mut writer.blocks),
    };
    let tables_at = writer.at;
    writer.write(&summary.tables());
    let store = writer.finish(&summary.header(tables_at)).map_err(Failure::Index)?;
    Ok(Built { source, store, summary })
}

/// Writes the rows of the blocks that are live at the end.
fn finish(replay: Replay<Rows>) -> (Totals, Vec<Group>, Writer, u32) {
    let (totals, groups) = (replay.totals(), replay.groups());
    let (live, mut rows) = replay.into_live();
    for (addr, b) in live {
        rows.push(addr, &b, u64::MAX, 0, 0, flags::LIVE);
    }
    rows.writer.finish_rows();
    (totals, groups, rows.writer, rows.chains)
}
