//! Calls that change mappings, in the order of time.

#[allow(unused_imports)] // for the documentation
use super::Op;
use super::file::{ChunkFile, Item};
use super::meta::{Meta, SymbolsAt};
use crate::Error;
use prof_trace::records::{Call, CallFile, Calls, kind};
use prof_trace::ticks::Ticks;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::path::Path;
use std::sync::Arc;

/// A call that changes the address space, or the settings of the allocator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapEvent {
    /// Number of the thread.
    pub thread: u32,
    /// The call. Its node is the canonical id, as that of an [`Op`].
    pub call: Call,
    /// The file that it has mapped, as far as the collector has found it.
    pub file: Option<Arc<CallFile>>,
}

/// A call that waits for its turn.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    at: Ticks,
    /// Position in the recording, which decides between calls of one moment.
    number: u64,
    thread: u32,
    call: Call,
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Puts the calls of all threads in the order of time. A call is final when it comes from before a pass, as an event
/// is.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    heap: BinaryHeap<Reverse<Held>>,
    number: u64,
    batch: Vec<MapEvent>,
}

impl Waiting {
    /// Adds calls, each with its thread.
    pub(super) fn add(&mut self, calls: &mut Vec<(u32, Call)>) {
        for (thread, call) in calls.drain(..) {
            self.number += 1;
            let held = Held { at: call.at(), number: self.number, thread, call };
            self.heap.push(Reverse(held));
        }
    }

    /// Passes on the calls from before `limit`, or all if that is `None`.
    pub(super) fn drain(
        &mut self,
        limit: Option<Ticks>,
        meta: &Meta,
        mut out: impl FnMut(&[MapEvent]),
    ) {
        loop {
            while self.batch.len() < super::BATCH
                && let Some(Reverse(held)) = self.heap.peek()
                && limit.is_none_or(|limit| held.at < limit)
                && let Some(Reverse(Held { thread, mut call, .. })) = self.heap.pop()
            {
                call.node = meta.one_id(call.node);
                let file = meta.call_files.get(&call.file).cloned();
                self.batch.push(MapEvent { thread, call, file });
            }
            if self.batch.is_empty() {
                return;
            }
            out(&self.batch);
            self.batch.clear();
        }
    }
}

/// Reads the calls that change mappings, in the order of [`Call::at`], and no other events. Returns the records other
/// than events.
///
/// # Errors
/// If the file can't be read, or is not a recording that this version understands.
pub fn calls(path: &Path, mut out: impl FnMut(&MapEvent)) -> Result<Meta, Error> {
    let mut file = ChunkFile::open(path)?;
    let mut meta = Meta::passing_calls_on();
    let mut waiting = Waiting::default();
    let mut give = |batch: &[MapEvent]| batch.iter().for_each(&mut out);
    let mut pass = None;
    let enough = file.len();
    while file.position() < enough {
        match file.next()? {
            Item::Chunk(kind::EVENTS | kind::PACKED, ..) => {}
            Item::Chunk(kind, payload, at) => {
                // All calls from before a pass stand before the next one.
                let began = meta.take(kind, payload, at);
                waiting.add(&mut meta.new_calls);
                if let Some(ticks) = began
                    && let Some(final_until) = pass.replace(ticks)
                {
                    waiting.drain(Some(final_until), &meta, &mut give);
                }
            }
            _ => break,
        }
    }
    waiting.drain(None, &meta, &mut give);
    Ok(meta)
}

/// Reads the payload of a chunk.
type Read<'a> = Box<dyn Fn(&SymbolsAt) -> Option<Vec<u8>> + 'a>;

/// Reads the calls of a recording that has been read before, in the order of [`Call::at`], a chunk at a time. It holds
/// the calls between two passes, and those that came late.
pub(crate) struct CallReader<'a> {
    meta: &'a Meta,
    payload: Read<'a>,
    heap: BinaryHeap<Reverse<Held>>,
    number: u64,
    /// Number of chunks that have been read.
    read: usize,
}

impl<'a> CallReader<'a> {
    /// Creates it; `payload` reads a chunk.
    pub(crate) fn new(
        meta: &'a Meta,
        payload: impl Fn(&SymbolsAt) -> Option<Vec<u8>> + 'a,
    ) -> Self {
        let mut all =
            Self { meta, payload: Box::new(payload), heap: BinaryHeap::new(), number: 0, read: 0 };
        meta.late_calls.iter().for_each(|(thread, call)| all.add(*thread, call.clone()));
        all
    }

    fn add(&mut self, thread: u32, call: Call) {
        self.number += 1;
        self.heap.push(Reverse(Held { at: call.at(), number: self.number, thread, call }));
    }

    /// Returns the next call, if it is not later than `until`.
    pub(crate) fn next_until(&mut self, until: Ticks) -> Option<MapEvent> {
        while let Some(chunk) = self.meta.calls.get(self.read).copied()
            && self.heap.peek().is_none_or(|h| h.0.at >= chunk.since)
            && chunk.since <= until
        {
            self.read += 1;
            let all = (self.payload)(&chunk.at).and_then(|p| Calls::decode(&p));
            let all = all.map_or(Vec::new(), |c| c.calls).into_iter();
            all.filter(|c| c.1.at() >= chunk.since).for_each(|(t, c)| self.add(t, c));
        }
        self.heap.peek().filter(|h| h.0.at <= until)?;
        let Reverse(Held { thread, mut call, .. }) = self.heap.pop()?;
        call.node = self.meta.one_id(call.node);
        let file = self.meta.call_files.get(&call.file).cloned();
        Some(MapEvent { thread, call, file })
    }
}
