//! Counts the chunks of a file and the events in them.

use super::{ChunkData, CompressionData, EventData};
use crate::Error;
use crate::load::{ChunkFile, Item};
use prof_trace::chunk::CHUNK_HEADER;
use prof_trace::event::{Codec, Event};
use prof_trace::pack::{Compress, Packed, Unpacker};
use prof_trace::records::{Events, kind};
use std::collections::BTreeMap;
use std::path::Path;

/// Kinds of events, in the order of [`of`].
const EVENTS: [&str; 4] = ["alloc", "free", "free with stack", "realloc"];

/// Counts of one kind of event: number, bytes in the ring, bytes in the file.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    count: u64,
    ring: u64,
    file: f64,
}

/// Counts of a whole file.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    pub format: u32,
    pub file_bytes: u64,
    pub read_bytes: u64,
    /// Number of events, by thread number.
    pub threads: BTreeMap<u32, u64>,
    /// Number and bytes of the chunks, by kind.
    kinds: BTreeMap<u16, (u64, u64)>,
    events: [Sum; EVENTS.len()],
    /// Number and bytes of the events, by compression.
    coded: [(u64, u64); Compress::ALL.len()],
}

fn of(event: &Event) -> usize {
    match event {
        Event::Alloc { .. } => 0,
        Event::Free { node: 0, .. } => 1,
        Event::Free { .. } => 2,
        Event::Realloc { .. } => 3,
    }
}

/// Counts of one chunk.
#[derive(Default)]
struct Within {
    sums: [(u64, u64); EVENTS.len()],
}

impl Within {
    fn add(&mut self, event: &Event, ring: usize) {
        let (count, bytes) = &mut self.sums[of(event)];
        *count += 1;
        *bytes += ring as u64;
    }
}

impl Chunks {
    /// Counts a recording up to its last whole chunk.
    pub(super) fn of(path: &Path) -> Result<Self, Error> {
        let mut file = ChunkFile::open(path)?;
        let mut all = Self { format: file.version(), ..Self::default() };
        let mut unpacker = Unpacker::default();
        // Chunks that are added meanwhile are ignored: a fast writer must not make this endless.
        let enough = file.len();
        while file.position() < enough {
            let Item::Chunk(kind, payload, _) = file.next()? else { break };
            all.chunk(kind, payload, &mut unpacker);
        }
        all.read_bytes = file.position();
        all.file_bytes = file.len();
        Ok(all)
    }

    fn chunk(&mut self, kind: u16, payload: &[u8], unpacker: &mut Unpacker) {
        let bytes = (payload.len() + CHUNK_HEADER) as u64;
        let (count, sum) = self.kinds.entry(kind).or_default();
        (*count, *sum) = (*count + 1, *sum + bytes);
        let mut within = Within::default();
        let how = match kind {
            kind::EVENTS => {
                let Some(e) = Events::decode(payload) else { return };
                let (mut codec, mut at) = (e.codec(), 0);
                while let Some((event, n)) = codec.get(&e.bytes[at..]) {
                    at += n;
                    within.add(&event, n);
                }
                let events = within.sums.iter().map(|s| s.0).sum::<u64>();
                *self.threads.entry(e.thread).or_default() += events;
                Compress::None
            }
            kind::PACKED => {
                let Some(packed) = Packed::read(payload) else { return };
                let (mut codec, mut last) = (Codec::default(), usize::MAX);
                // Events in front of damage count, as they do for a reader of the events.
                let _ = unpacker.unpack(&packed, |run, event| {
                    if last != run {
                        let r = &packed.runs[run];
                        last = run;
                        codec = Codec { time: r.time, node: r.node, addr: codec.addr, defined: 0 };
                    }
                    let ring = codec.length(&event);
                    codec.follow(&event);
                    within.add(&event, ring);
                    *self.threads.entry(packed.runs[run].thread).or_default() += 1;
                });
                packed.compress()
            }
            _ => return,
        };
        let (events, ring) = within.sums.iter().fold((0, 0), |s, w| (s.0 + w.0, s.1 + w.1));
        if let Some(i) = Compress::ALL.iter().position(|c| c.0 == how) {
            self.coded[i].0 += events;
            self.coded[i].1 += bytes;
        }
        for (all, (count, in_ring)) in self.events.iter_mut().zip(within.sums) {
            all.count += count;
            all.ring += in_ring;
            all.file += bytes as f64 * in_ring as f64 / (ring as f64).max(1.0);
        }
    }

    /// Returns the counts of the kinds of chunks, those with the most bytes first.
    pub(super) fn chunks(&self) -> Vec<ChunkData> {
        let chunk = |(kind, (count, bytes)): (&u16, &(u64, u64))| ChunkData {
            kind: *kind,
            name: kind::name(*kind).unwrap_or("unknown"),
            count: *count,
            bytes: *bytes,
        };
        let mut all: Vec<ChunkData> = self.kinds.iter().map(chunk).collect();
        all.sort_by_key(|c| (std::cmp::Reverse(c.bytes), c.kind));
        all
    }

    /// Returns the counts of the kinds of events.
    pub(super) fn events(&self) -> Vec<EventData> {
        let event = |(kind, s): (&'static str, &Sum)| EventData {
            kind,
            count: s.count,
            ring_bytes: s.ring,
            bytes: s.file.round() as u64,
        };
        EVENTS.into_iter().zip(&self.events).map(event).collect()
    }

    /// Returns the bytes of all events in the ring.
    pub(super) fn ring_bytes(&self) -> u64 {
        self.events.iter().map(|s| s.ring).sum()
    }

    /// Returns the compressions in use, with the number and bytes of their events.
    pub(super) fn compression(&self) -> Vec<CompressionData> {
        let used = Compress::ALL.iter().zip(self.coded).filter(|(_, s)| s.0 > 0);
        used.map(|(c, (events, bytes))| CompressionData { name: c.1, events, bytes }).collect()
    }
}
