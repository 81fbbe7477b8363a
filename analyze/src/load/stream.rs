//! Reads a recording as a stream of operations, and its other records beside them.

use super::file::{ChunkFile, Item};
use super::held::{Payload, Waiting};
use super::merge::Merge;
use super::{BEFORE_THREAD, MapEvent, Meta, Op, calls};
use crate::Error;
use crate::progress::Step;
use prof_trace::capture::Capture;
use prof_trace::pack::Packed;
use prof_trace::records::{Events, FoldEnd, Folded, kind};
use prof_trace::ticks::Ticks;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Options for loading a recording.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// Limit of the bytes of events that wait in memory for their turn. Further events are read again from the file
    /// later.
    pub pending_bytes: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { pending_bytes: 64 << 20 }
    }
}

/// Receives operations in the order of time.
pub trait Sink {
    /// Called before the first operation, with the blocks that are recorded, and the number of ticks by which times may
    /// be too early (see `Target`).
    fn begin(&mut self, _capture: &Capture, _early: u64) {}

    /// Called before the first operation, with the figures of blocks that were left out, if there are any.
    fn fold(&mut self, _folded: &Folded) {}

    /// Receives the next operations.
    fn take(&mut self, ops: &[Op]);

    /// Receives the next operations in a buffer, which it may keep. Leaves an empty one.
    fn take_all(&mut self, ops: &mut Vec<Op>) {
        self.take(ops);
        ops.clear();
    }

    /// Receives the next calls that change mappings, in the order of `Call::at`. They are in order among themselves;
    /// the operations from before the same pass follow them.
    fn take_calls(&mut self, _calls: &[MapEvent]) {}
}

/// The end of the part of a file that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// With a whole chunk.
    Whole,
    /// In the middle of a chunk.
    Partial {
        /// File offset of that chunk.
        at: u64,
        /// Bytes that were not read.
        unread: u64,
    },
    /// With bytes that are not a chunk, or fail its checksum.
    Damaged {
        /// File offset of the damage.
        at: u64,
        /// Bytes that were not read.
        unread: u64,
    },
}

/// Greatest exponent of a sampling distance.
const MOST_RATE: u8 = 28;
/// Number of operations that are passed on at a time.
pub(crate) const BATCH: usize = 4096;

/// Fractions of a byte in which the length of an event is given.
pub(crate) const EVENT_UNIT: u64 = 256;

/// Reads a recording from the front, and continues when the file has grown.
pub struct Stream {
    pub(super) file: ChunkFile,
    pub(super) meta: Meta,
    merge: Merge,
    batch: Vec<Op>,
    calls: calls::Waiting,
    options: LoadOptions,
    /// Ticks of the pass that is being read.
    pass: Option<Ticks>,
    pub(super) tail: Tail,
    /// The error of reading waiting events again.
    reread_failed: Option<Error>,
    packed_events: bool,
    /// Number of events in the chunks read so far.
    counted: u64,
    /// Number of events that were recorded up to here, also of those that were folded away; `None`: not known.
    recorded: Option<u64>,
    /// Length of an event; see [`Stream::event_bytes`].
    event_bytes: Arc<AtomicU64>,
    /// The sink need not be told of blocks that were left out, or was.
    folded: bool,
    /// Whether another file of the same recording is followed, see [`follow`](super::replaced).
    pub(super) follows: bool,
    /// The file before this one, from which waiting events are read again.
    pub(super) old: Option<ChunkFile>,
    /// Flag of places in the present file.
    pub(super) tag: u64,
    /// Another file with the same figures is read from its front on, see [`Stream::is_anew`].
    pub(super) anew: bool,
}

impl Stream {
    /// Opens a recording.
    ///
    /// # Errors
    /// If the file can't be read, or is not a recording that this version understands.
    pub fn open(path: &Path, options: &LoadOptions) -> Result<Self, Error> {
        Ok(Self {
            file: ChunkFile::open(path)?,
            meta: Meta::passing_calls_on(),
            merge: Merge::new(options.pending_bytes),
            batch: Vec::with_capacity(BATCH),
            calls: calls::Waiting::default(),
            options: *options,
            pass: None,
            tail: Tail::Whole,
            reread_failed: None,
            packed_events: false,
            counted: 0,
            recorded: Some(0),
            event_bytes: Arc::default(),
            folded: false,
            follows: false,
            old: None,
            tag: 0,
            anew: false,
        })
    }

    /// Goes on in the file that replaces this one when the recording is folded.
    pub(crate) fn follow(&mut self) {
        self.follows = true;
    }

    /// Returns the file that is read.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub(crate) fn same_file(&self) -> Result<File, Error> {
        self.file.same_file()
    }

    /// Opens a recording that grows, and passes over the events that it has by now: only its other records are read.
    ///
    /// # Errors
    /// If the file can't be read, or is not a recording that this version understands.
    pub fn open_at_end(path: &Path, options: &LoadOptions) -> Result<Self, Error> {
        let mut all = Self::open(path, options)?;
        let end = all.file.len();
        all.skip_to(end)?;
        Ok(all)
    }

    /// Passes over the events in front of an offset: only other records are read.
    pub(super) fn skip_to(&mut self, end: u64) -> Result<(), Error> {
        self.file.set_sparse(true);
        while self.file.position() < end {
            if self.file.pass_over(&[kind::EVENTS, kind::PACKED, kind::CALLS])? {
                continue;
            }
            let Item::Chunk(kind, payload, at) = self.file.next()? else { break };
            if let Some(ticks) = self.meta.take(kind, payload, at) {
                self.pass = Some(ticks);
            }
        }
        self.file.set_sparse(false);
        self.meta.new_calls.clear();
        self.meta.new_census.clear();
        self.folded = true;
        Ok(())
    }

    /// Returns the path it was opened by.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the records other than events, as far as they were read.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Returns the number of events decoded so far.
    pub fn events(&self) -> u64 {
        self.merge.events
    }

    /// Returns the number of bytes of the file that were not read yet.
    pub fn bytes_left(&self) -> u64 {
        self.file.len().saturating_sub(self.file.position())
    }

    /// Returns the number of bytes of the file that were read.
    pub fn bytes_read(&self) -> u64 {
        self.file.position()
    }

    /// Returns the average length of an event in the part of the file that was read so far, in units of 1/[`EVENT_UNIT`]
    /// bytes. Another thread sees it change while this one reads on.
    pub(crate) fn event_bytes(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.event_bytes)
    }

    /// Returns the bytes of events that could not be decoded, and those between whole chunks.
    pub fn damaged_bytes(&self) -> u64 {
        self.merge.damaged_bytes.saturating_add(self.file.skipped())
    }

    /// Returns whether any of the events are packed.
    pub fn is_packed(&self) -> bool {
        self.packed_events
    }

    /// Returns the number of a thread, given its index (see [`Op::thread_index`]).
    pub fn thread_of(&self, thread_index: u32) -> Option<u32> {
        self.merge.numbers().get(thread_index as usize).copied()
    }

    /// Returns how the part that was read ends.
    pub fn tail(&self) -> Tail {
        self.tail
    }

    /// Returns the records other than events, and drops the stream.
    pub fn into_meta(self) -> Meta {
        self.meta
    }

    /// Reads all whole chunks of the file, and passes `sink` the operations whose order is final.
    ///
    /// # Errors
    /// If the file can't be read, or the job of this thread is cancelled.
    pub fn advance(&mut self, sink: &mut impl Sink) -> Result<(), Error> {
        self.advance_by(u64::MAX, sink)
    }

    /// Does the same with whole chunks of about `most` bytes.
    ///
    /// # Errors
    /// As [`Self::advance`].
    pub fn advance_by(&mut self, most: u64, sink: &mut impl Sink) -> Result<(), Error> {
        if matches!(self.tail, Tail::Damaged { .. }) {
            return Ok(());
        }
        if self.is_over() {
            self.turn_to_new_file()?;
        }
        // Chunks that are added meanwhile are left to the next call: a fast writer must not make this endless.
        let enough = self.file.len().min(self.file.position().saturating_add(most));
        let step = Step::begin("reading the recording", enough);
        loop {
            step.set(self.file.position());
            if step.is_cancelled() {
                return Err(Error::Cancelled { path: self.file.path().to_owned() });
            }
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
                            let events = packed.runs.iter().map(|r| u64::from(r.count)).sum();
                            let payload = payload.to_vec();
                            self.count(events);
                            self.hold_packed(threads, payload, at);
                        }
                        None => self.meta.bad_chunks += 1,
                    }
                    continue;
                }
                Item::Chunk(kind, payload, at) => {
                    let end = FoldEnd::decode(payload).filter(|_| kind == kind::FOLD_END);
                    let pass = self.meta.take(kind, payload, at);
                    if let Some(end) = end {
                        self.carry(&end);
                    }
                    self.calls.add(&mut self.meta.new_calls);
                    self.hold_census();
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

    /// Passes all waiting operations to `sink`. Operations read later are ordered among themselves only.
    ///
    /// # Errors
    /// If events that waited in the file can't be read again.
    pub fn finish(&mut self, sink: &mut impl Sink) -> Result<(), Error> {
        self.drain(None, sink);
        self.reread_failed.take().map_or(Ok(()), Err)
    }

    /// Passes the waiting operations from before `ticks` to `sink`.
    ///
    /// # Errors
    /// If events that waited in the file can't be read again.
    pub(crate) fn pass_on(&mut self, ticks: Ticks, sink: &mut impl Sink) -> Result<(), Error> {
        self.drain(Some(ticks), sink);
        self.reread_failed.take().map_or(Ok(()), Err)
    }

    /// Takes what the events of threads behind a fold rely on.
    fn carry(&mut self, end: &FoldEnd) {
        self.recorded = Some(end.events).filter(|events| *events > 0);
        for [thread, usual, rate, last] in end.threads.as_chunks::<{ FoldEnd::THREAD }>().0 {
            let codes = (u32::try_from(*thread), u16::try_from(*usual), u8::try_from(*rate));
            let (Ok(thread), Ok(usual), Ok(rate @ 0..=MOST_RATE)) = codes else { continue };
            let files = Files { now: &self.file, old: self.old.as_ref(), tag: self.tag };
            let failed = &mut self.reread_failed;
            self.merge.push(
                thread,
                Waiting::Carry(usual, rate, Ticks(*last).min(Ticks::LAST)),
                &mut reader(files, failed),
            );
        }
    }

    /// Returns the number of events that were recorded up to here, also of those that were folded away. `None`: an earlier
    /// build has folded the recording.
    pub(crate) fn recorded(&self) -> Option<u64> {
        self.recorded
    }

    /// Returns, for each thread index, what its next events rely on (see [`Merge::carried`]).
    pub(crate) fn carried(&self) -> Vec<(u16, u8, Ticks)> {
        self.merge.carried().collect()
    }

    /// Returns the indices of the threads of which events wait.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = u32> {
        self.merge.waiting()
    }

    /// Returns the indices of the threads of which half of a reallocation is passed on.
    pub(crate) fn halved(&self) -> Vec<u32> {
        self.merge.halved().collect()
    }

    fn count(&mut self, events: u64) {
        self.counted = self.counted.saturating_add(events);
        self.recorded = self.recorded.map(|all| all.saturating_add(events));
        let units = self.file.position().saturating_mul(EVENT_UNIT);
        self.event_bytes.store(units / self.counted.max(1), Relaxed);
    }

    fn hold(&mut self, e: Events, at: u64, len: usize) {
        self.count(u64::from(e.count));
        let (codec, thread, count) = (e.codec(), e.thread, e.count);
        let place = self.place(e.bytes, at, len, 1);
        self.merge.pending.hold(&place);
        let files = Files { now: &self.file, old: self.old.as_ref(), tag: self.tag };
        let failed = &mut self.reread_failed;
        let waiting = Waiting::Plain { codec, count, place };
        self.merge.push(thread, waiting, &mut reader(files, failed));
    }

    fn hold_packed(&mut self, threads: Vec<u32>, payload: Vec<u8>, at: u64) {
        self.packed_events = true;
        let len = payload.len();
        // The other half of the memory is for unpacked events.
        let place = self.place(payload, at, len, 2);
        let chunk = self.merge.pending.add(threads.len(), place);
        let files = Files { now: &self.file, old: self.old.as_ref(), tag: self.tag };
        let failed = &mut self.reread_failed;
        for (run, thread) in threads.into_iter().enumerate() {
            self.merge.push(thread, Waiting::Run { chunk, run }, &mut reader(files, failed));
        }
    }

    /// Has the parts of a census wait in the file, as they are read but once.
    fn hold_census(&mut self) {
        let files = Files { now: &self.file, old: self.old.as_ref(), tag: self.tag };
        let failed = &mut self.reread_failed;
        for place in self.meta.new_census.drain(..) {
            self.merge.push(BEFORE_THREAD, Waiting::Census(place), &mut reader(files, failed));
        }
    }

    /// Decides where bytes wait: in memory, if they fit into this part of the limit, or in the file.
    fn place(&self, bytes: Vec<u8>, at: u64, len: usize, part: usize) -> Payload {
        if self.merge.pending.bytes + bytes.len() <= self.options.pending_bytes / part {
            Payload::Here(bytes)
        } else {
            Payload::There(at | self.tag, len)
        }
    }

    fn drain(&mut self, limit: Option<Ticks>, sink: &mut impl Sink) {
        if let Some(folded) = self.meta.folded.as_ref().filter(|_| !self.folded) {
            self.folded = true;
            sink.fold(folded);
        }
        self.calls.drain(limit, &self.meta, |batch| sink.take_calls(batch));
        let files = Files { now: &self.file, old: self.old.as_ref(), tag: self.tag };
        let (failed, batch) = (&mut self.reread_failed, &mut self.batch);
        let meta = &self.meta;
        let mut give = |batch: &mut Vec<Op>| {
            // Only here are IDs made canonical: receivers of operations see one ID for each node.
            if meta.has_other_ids() {
                batch.iter_mut().for_each(|op| op.node = meta.one_id(op.node));
            }
            sink.take_all(batch);
        };
        self.merge.drain(limit, &mut reader(files, failed), &mut |op| {
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

/// The files in which events wait.
#[derive(Clone, Copy)]
struct Files<'a> {
    now: &'a ChunkFile,
    old: Option<&'a ChunkFile>,
    tag: u64,
}

/// Flag of the place of a payload, which tells two files that follow each other apart.
pub(super) const OTHER_FILE: u64 = 1 << 63;

/// Returns a function that reads a payload again, given its offset and length.
fn reader<'a>(
    files: Files<'a>,
    failed: &'a mut Option<Error>,
) -> impl FnMut(u64, usize) -> Option<Vec<u8>> + 'a {
    move |at, len| {
        let is_now = at & OTHER_FILE == files.tag;
        let file = if is_now { files.now } else { files.old.unwrap_or(files.now) };
        match file.reread(at & !OTHER_FILE, len) {
            Ok(payload) => Some(payload),
            Err(e) => {
                failed.get_or_insert(e);
                None
            }
        }
    }
}
