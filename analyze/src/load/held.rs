//! Holds events that wait for their turn, in memory or to be read again from the file.

use super::SymbolsAt;
use prof_trace::derived::Zipped;
use prof_trace::event::{Codec, Event, Visit};
use prof_trace::pack::{Packed, Unpacker};
use prof_trace::records::{Census, CensusBlocks, Events};
use prof_trace::size::CodedSize;
use prof_trace::ticks::Ticks;
use std::collections::HashMap;

/// Location of a chunk's payload.
#[derive(Debug)]
pub(crate) enum Payload {
    /// In memory.
    Here(Vec<u8>),
    /// In the file: offset and length.
    There(u64, usize),
}

/// Reads the payload of a chunk again, given offset and length.
pub(crate) type Load<'a> = &'a mut dyn FnMut(u64, usize) -> Option<Vec<u8>>;

/// Waiting events of a thread.
#[derive(Debug)]
pub(crate) enum Waiting {
    /// Uncompressed events, as in the ring.
    Plain {
        /// Decoder state before the first event.
        codec: Codec,
        /// Number of events.
        count: u32,
        /// The events, or the chunk that holds only them.
        place: Payload,
    },
    /// Decoded events.
    Events(Vec<Event>),
    /// Blocks from before the recording.
    Census(SymbolsAt),
    /// No events, but what the thread's next ones rely on: the code of the chunk header, the exponent of the distance, and
    /// the ticks of the last event.
    Carry(u16, u8, Ticks),
    /// A run of a packed chunk.
    Run {
        /// Key of the chunk in [`Pending`].
        chunk: u64,
        /// Index of the run in the chunk.
        run: usize,
    },
}

/// The events of a thread that are being merged.
#[derive(Debug)]
pub(crate) enum Source {
    /// Uncompressed events, as in the ring.
    Plain {
        /// The encoded events.
        bytes: Vec<u8>,
        /// Number of bytes decoded.
        pos: usize,
        /// Number of events left.
        left: u32,
        /// Decoder state.
        codec: Codec,
    },
    /// Events of an unpacked run.
    Unpacked(std::vec::IntoIter<Event>),
    /// Blocks from before the recording, and the ticks when they were found.
    Census(Ticks, CensusBlocks),
}

impl Default for Source {
    fn default() -> Self {
        Source::Unpacked(Vec::new().into_iter())
    }
}

impl Source {
    /// Passes the next events to `v`, until it does not [go on](Visit::goes_on) or none is left. Bytes that can't be
    /// decoded are added to `damaged`.
    #[inline(always)]
    pub(crate) fn pass(&mut self, v: &mut impl Visit<Node = u32>, damaged: &mut u64) {
        match self {
            Source::Unpacked(events) => {
                while v.goes_on()
                    && let Some(event) = events.next()
                {
                    event.show(v);
                }
            }
            Source::Plain { bytes, pos, left, codec } => {
                if *left > 0 {
                    let mut counted = Counted { v, left: *left };
                    *pos += codec.visit(&bytes[*pos..], &mut counted);
                    *left = counted.left;
                    if !v.goes_on() {
                        return;
                    }
                    // A missing event counts as a byte even if no byte is left.
                    *damaged += (*left > 0 && *pos == bytes.len()) as u64;
                }
                *damaged += (bytes.len() - *pos) as u64;
                (*left, *pos) = (0, bytes.len());
            }
            // Blocks of a census are no events: the caller has taken them.
            Source::Census(_, blocks) => *damaged += blocks.damaged(),
        }
    }
}

/// Passes on a number of events. A recording has no definitions among its events.
struct Counted<'a, V> {
    v: &'a mut V,
    left: u32,
}

impl<V: Visit<Node = u32>> Visit for Counted<'_, V> {
    type Node = u32;

    #[inline(always)]
    fn alloc(&mut self, time: Ticks, addr: u64, size: CodedSize, node: u32) -> bool {
        self.left -= 1;
        self.v.alloc(time, addr, size, node)
    }

    #[inline(always)]
    fn free(&mut self, time: Ticks, addr: u64, node: u32) -> bool {
        self.left -= 1;
        self.v.free(time, addr, node)
    }

    #[inline(always)]
    fn realloc(
        &mut self,
        times: [Ticks; 2],
        old: u64,
        addr: u64,
        size: CodedSize,
        node: u32,
    ) -> bool {
        self.left -= 1;
        self.v.realloc(times, old, addr, size, node)
    }

    #[inline(always)]
    fn goes_on(&self) -> bool {
        self.left > 0 && self.v.goes_on()
    }
}

fn census_of(payload: &[u8], zipped: bool) -> Option<Census> {
    match zipped {
        true => Census::decode(&Zipped::decode(payload)?.unzip()?),
        false => Census::decode(payload),
    }
}

/// A packed chunk with waiting runs.
#[derive(Debug)]
struct PackedChunk {
    place: Payload,
    runs: Vec<Unpacked>,
    waiting: usize,
}

/// State of a run.
#[derive(Debug)]
enum Unpacked {
    /// Not unpacked yet.
    No,
    /// Unpacked, and waiting.
    Yes(Vec<Event>),
    /// Already returned.
    Gone,
}

/// The waiting packed chunks, and the memory that all waiting events take.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    chunks: HashMap<u64, PackedChunk>,
    next: u64,
    unpacker: Option<Unpacker>,
    /// Bytes of payloads and of unpacked events in memory.
    pub(crate) bytes: usize,
    most: usize,
}

/// Returns the bytes that the buffer of decoded events takes.
pub(super) fn room(events: &Vec<Event>) -> usize {
    events.capacity() * size_of::<Event>()
}

fn size(events: &[Event]) -> usize {
    size_of_val(events)
}

impl Pending {
    /// Creates it with a limit of `most` bytes in memory.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    /// Adds a packed chunk; returns its key.
    pub(crate) fn add(&mut self, runs: usize, place: Payload) -> u64 {
        let key = self.next;
        self.next += 1;
        self.hold(&place);
        let runs: Vec<_> = std::iter::repeat_with(|| Unpacked::No).take(runs).collect();
        self.chunks.insert(key, PackedChunk { place, waiting: runs.len(), runs });
        key
    }

    /// Adds a payload in memory to `bytes`.
    pub(crate) fn hold(&mut self, place: &Payload) {
        if let Payload::Here(b) = place {
            self.bytes += b.len();
        }
    }

    /// Adds decoded events to `bytes`, with the room of their buffer.
    pub(crate) fn hold_events(&mut self, events: &Vec<Event>) {
        self.bytes += room(events);
    }

    /// Returns the events of a plain chunk or of a run. Bytes that could not be read are added to `damaged`.
    pub(crate) fn take(&mut self, w: Waiting, load: Load<'_>, damaged: &mut u64) -> Source {
        match w {
            Waiting::Plain { codec, count, place } => {
                let bytes = match place {
                    Payload::Here(b) => {
                        self.bytes -= b.len();
                        Some(b)
                    }
                    Payload::There(at, len) => {
                        load(at, len).and_then(|p| Events::decode(&p)).map(|e| e.bytes)
                    }
                };
                Source::Plain { bytes: bytes.unwrap_or_default(), pos: 0, left: count, codec }
            }
            // The events count in `bytes` until their source is used up: the merge subtracts them.
            Waiting::Events(events) => Source::Unpacked(events.into_iter()),
            Waiting::Census(place) => {
                let census = load(place.at, place.len).and_then(|p| census_of(&p, place.zipped));
                // It was whole when it was read first.
                *damaged += if census.is_none() { place.len as u64 } else { 0 };
                let census = census.unwrap_or_default();
                Source::Census(census.ticks, census.into_blocks())
            }
            // The merge has taken it.
            Waiting::Carry(..) => Source::default(),
            Waiting::Run { chunk, run } => {
                let events = self.take_run(chunk, run, load, damaged);
                Source::Unpacked(events.unwrap_or_default().into_iter())
            }
        }
    }

    fn take_run(
        &mut self,
        key: u64,
        run: usize,
        load: Load<'_>,
        damaged: &mut u64,
    ) -> Option<Vec<Event>> {
        let mut chunk = self.chunks.remove(&key)?;
        let events = match std::mem::replace(chunk.runs.get_mut(run)?, Unpacked::Gone) {
            Unpacked::Yes(events) => {
                self.bytes -= size(&events);
                Some(events)
            }
            Unpacked::No => self.unpack(&mut chunk, run, load, damaged),
            Unpacked::Gone => None,
        };
        chunk.waiting -= 1;
        if chunk.waiting > 0 {
            self.chunks.insert(key, chunk);
        } else if let Payload::Here(b) = &chunk.place {
            self.bytes -= b.len();
        }
        events
    }

    /// Unpacks a chunk for one of its runs, and keeps the others if memory permits.
    fn unpack(
        &mut self,
        chunk: &mut PackedChunk,
        wanted: usize,
        load: Load<'_>,
        damaged: &mut u64,
    ) -> Option<Vec<Event>> {
        let loaded;
        let payload = match &chunk.place {
            Payload::Here(b) => b,
            Payload::There(at, len) => {
                loaded = load(*at, *len)?;
                &loaded
            }
        };
        let packed = Packed::read(payload)?;
        let mut events = Vec::with_capacity(packed.runs.get(wanted)?.count as usize);
        let mut rest: Vec<Vec<Event>> = vec![Vec::new(); chunk.runs.len()];
        let room = self.most.saturating_sub(self.bytes) / size_of::<Event>();
        let keeps = packed.events() <= room;
        let unpacker = self.unpacker.get_or_insert_default();
        let whole = unpacker.unpack(&packed, |run, event| {
            if run == wanted {
                events.push(event);
            } else if keeps && matches!(chunk.runs.get(run), Some(Unpacked::No)) {
                rest[run].push(event);
            }
        });
        if whole.is_none() {
            // The events in front of the damage count; the damaged chunk is counted once.
            *damaged += payload.len() as u64;
        }
        if keeps || whole.is_none() {
            for (to, events) in chunk.runs.iter_mut().zip(rest) {
                if matches!(to, Unpacked::No) {
                    self.bytes += size(&events);
                    *to = Unpacked::Yes(events);
                }
            }
        }
        Some(events)
    }
}
