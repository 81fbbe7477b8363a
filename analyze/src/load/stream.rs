//! A recording as a stream of operations, with what it says beside them.

use super::file::{ChunkFile, Item};
use super::held::{Place, Waiting};
use super::merge::Merge;
use super::{Meta, Op};
use crate::Error;
use crate::progress::Step;
use prof_trace::capture::Capture;
use prof_trace::pack::Packed;
use prof_trace::records::{Events, kind};
use std::path::Path;

/// How to load.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// Bytes of events that may wait in memory for their turn; what is beyond is read again from
    /// the file when its turn comes.
    pub pending_bytes: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { pending_bytes: 64 << 20 }
    }
}

/// Takes operations in the order of time.
pub trait Sink {
    /// Which blocks the operations are of, and by how many ticks times may be too early (see `Target`).
    /// Called before the first.
    fn begin(&mut self, _capture: &Capture, _early: u64) {}

    /// The next operations.
    fn take(&mut self, ops: &[Op]);
}

/// How what was read of a file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// With a whole chunk.
    Whole,
    /// In the middle of a chunk.
    Partial {
        /// Where that chunk begins.
        at: u64,
        /// Bytes that were not read.
        unread: u64,
    },
    /// With something that is no chunk, or not as it was written.
    Damaged {
        /// Where.
        at: u64,
        /// Bytes that were not read.
        unread: u64,
    },
}

const BATCH: usize = 256;

/// Reads a recording from the front; can go on when the file has grown.
pub struct Stream {
    file: ChunkFile,
    meta: Meta,
    merge: Merge,
    batch: Vec<Op>,
    options: LoadOptions,
    /// Ticks of the pass that is being read.
    pass: Option<u64>,
    tail: Tail,
    /// Waiting events could not be read again.
    reread_failed: Option<Error>,
    packed_events: bool,
}

impl Stream {
    /// Opens a recording.
    ///
    /// # Errors
    /// If the file can't be read, or is no recording that this version understands.
    pub fn open(path: &Path, options: &LoadOptions) -> Result<Self, Error> {
        Ok(Self {
            file: ChunkFile::open(path)?,
            meta: Meta::default(),
            merge: Merge::new(options.pending_bytes),
            batch: Vec::with_capacity(BATCH),
            options: *options,
            pass: None,
            tail: Tail::Whole,
            reread_failed: None,
            packed_events: false,
        })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// What the recording says beside its events, as far as it was read.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Events decoded so far.
    pub fn events(&self) -> u64 {
        self.merge.events
    }

    /// Bytes of the file that were read.
    pub fn bytes_read(&self) -> u64 {
        self.file.position()
    }

    /// Bytes of events that could not be decoded although their chunks were whole.
    pub fn damaged_bytes(&self) -> u64 {
        self.merge.damaged_bytes
    }

    /// Whether any of the events are packed.
    pub fn is_packed(&self) -> bool {
        self.packed_events
    }

    /// Number of the thread of a lane (see [`Op::lane`]).
    pub fn thread_of(&self, lane: u32) -> Option<u32> {
        self.merge.numbers().get(lane as usize).copied()
    }

    /// How what was read ends.
    pub fn tail(&self) -> Tail {
        self.tail
    }

    /// What the recording says beside its events; the stream is used up.
    pub fn into_meta(self) -> Meta {
        self.meta
    }

    /// Reads all whole chunks that are there and gives `sink` what is in order for good.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn advance(&mut self, sink: &mut impl Sink) -> Result<(), Error> {
        if matches!(self.tail, Tail::Damaged { .. }) {
            return Ok(());
        }
        // What is added meanwhile is for the next call: a fast writer must not keep us here.
        let enough = self.file.len();
        let step = Step::begin("reading the recording", enough);
        loop {
            step.set(self.file.position());
            if self.file.position() >= enough {
                self.tail = Tail::Whole;
                return self.reread_failed.take().map_or(Ok(()), Err);
            }
            let limit = match self.file.next()? {
                Item::Chunk(kind::EVENTS, payload, at) => {
                    self.meta.end = None;
                    let len = payload.len();
                    match Events::decode(payload) {
                        Some(e) => self.hold(e, at, len),
                        None => self.meta.bad_chunks += 1,
                    }
                    continue;
                }
                Item::Chunk(kind::PACKED, payload, at) => {
                    self.meta.end = None;
                    match Packed::read(payload) {
                        Some(packed) => {
                            let threads = packed.runs.iter().map(|r| r.thread).collect();
                            let payload = payload.to_vec();
                            self.hold_packed(threads, payload, at);
                        }
                        None => self.meta.bad_chunks += 1,
                    }
                    continue;
                }
                Item::Chunk(kind, payload, at) => {
                    let pass = self.meta.take(kind, payload, at);
                    if kind == kind::TARGET {
                        let target = &self.meta.target;
                        sink.begin(&target.capture(), target.early);
                    }
                    match pass {
                        Some(ticks) => self.pass.replace(ticks),
                        None => continue,
                    }
                }
                end => {
                    let damaged = matches!(end, Item::Damaged);
                    let whole = matches!(end, Item::End);
                    let at = self.file.position();
                    let unread = self.file.len().saturating_sub(at);
                    self.tail = match (whole, damaged) {
                        (true, _) => Tail::Whole,
                        (_, true) => Tail::Damaged { at, unread },
                        _ => Tail::Partial { at, unread },
                    };
                    return self.reread_failed.take().map_or(Ok(()), Err);
                }
            };
            if let Some(ticks) = limit {
                self.drain(Some(ticks), sink);
            }
        }
    }

    /// Gives `sink` everything that waits. More may be read afterwards, but it is then only in
    /// order with itself.
    ///
    /// # Errors
    /// If events that waited in the file can't be read again.
    pub fn finish(&mut self, sink: &mut impl Sink) -> Result<(), Error> {
        self.drain(None, sink);
        self.reread_failed.take().map_or(Ok(()), Err)
    }

    fn hold(&mut self, e: Events, at: u64, len: usize) {
        let (codec, thread, count) = (e.codec(), e.thread, e.count);
        let place = self.place(e.bytes, at, len, 1);
        self.merge.pending.hold(&place);
        let (file, failed) = (&self.file, &mut self.reread_failed);
        let waiting = Waiting::Plain { codec, count, place };
        self.merge.push(thread, waiting, &mut reader(file, failed));
    }

    fn hold_packed(&mut self, threads: Vec<u32>, payload: Vec<u8>, at: u64) {
        self.packed_events = true;
        let len = payload.len();
        // The other half is for what is unpacked.
        let place = self.place(payload, at, len, 2);
        let chunk = self.merge.pending.add(threads.len(), place);
        let (file, failed) = (&self.file, &mut self.reread_failed);
        for (run, thread) in threads.into_iter().enumerate() {
            self.merge.push(thread, Waiting::Run { chunk, run }, &mut reader(file, failed));
        }
    }

    /// Where bytes are to wait: in memory, if they fill no more than a part of what there is.
    fn place(&self, bytes: Vec<u8>, at: u64, len: usize, part: usize) -> Place {
        if self.merge.pending.bytes + bytes.len() <= self.options.pending_bytes / part {
            Place::Here(bytes)
        } else {
            Place::There(at, len)
        }
    }

    fn drain(&mut self, limit: Option<u64>, sink: &mut impl Sink) {
        let (file, failed, batch) = (&self.file, &mut self.reread_failed, &mut self.batch);
        let meta = &self.meta;
        let mut give = |batch: &mut Vec<Op>| {
            // Here alone: whoever takes operations sees one id for each node.
            if meta.has_other_ids() {
                batch.iter_mut().for_each(|op| op.node = meta.one_id(op.node));
            }
            sink.take(batch);
            batch.clear();
        };
        self.merge.drain(limit, &mut reader(file, failed), &mut |op| {
            batch.push(op);
            if batch.len() == BATCH {
                give(batch);
            }
        });
        if !batch.is_empty() {
            give(batch);
        }
    }
}

/// Reads the payload of a chunk again, given where it stands.
fn reader<'a>(
    file: &'a ChunkFile,
    failed: &'a mut Option<Error>,
) -> impl FnMut(u64, usize) -> Option<Vec<u8>> + 'a {
    move |at, len| match file.reread(at, len) {
        Ok(payload) => Some(payload),
        Err(e) => {
            failed.get_or_insert(e);
            None
        }
    }
}
