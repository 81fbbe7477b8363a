//! Events that wait for their turn: in memory, or to be read again from the file.

use prof_trace::event::{Codec, Event};
use prof_trace::pack::{Packed, Unpacker};
use prof_trace::records::Events;
use std::collections::HashMap;

/// Where the payload of a chunk is.
#[derive(Debug)]
pub(crate) enum Place {
    /// In memory.
    Here(Vec<u8>),
    /// In the file: position and length.
    There(u64, usize),
}

/// Reads the payload of a chunk again.
pub(crate) type Load<'a> = &'a mut dyn FnMut(u64, usize) -> Option<Vec<u8>>;

/// Events of a thread that wait.
#[derive(Debug)]
pub(crate) enum Waiting {
    /// As they stand in the ring.
    Plain {
        /// Decoding state before them.
        codec: Codec,
        /// How many.
        count: u32,
        /// The events, or the whole chunk.
        place: Place,
    },
    /// A run of a packed chunk.
    Run {
        /// Key of the chunk.
        chunk: u64,
        /// Which run.
        run: usize,
    },
}

/// Events of a thread whose turn it is.
#[derive(Debug)]
pub(crate) enum Source {
    /// As they stand in the ring.
    Plain {
        /// The bytes.
        bytes: Vec<u8>,
        /// How many have been read.
        pos: usize,
        /// Events that are left.
        left: u32,
        /// Decoding state.
        codec: Codec,
    },
    /// Unpacked.
    Unpacked(std::vec::IntoIter<Event>),
}

impl Default for Source {
    fn default() -> Self {
        Source::Unpacked(Vec::new().into_iter())
    }
}

impl Source {
    /// The next event. `damaged` grows by the bytes that are none.
    #[inline(always)]
    pub(crate) fn next(&mut self, damaged: &mut u64) -> Option<Event> {
        match self {
            Source::Unpacked(events) => events.next(),
            Source::Plain { bytes, pos, left, codec } => {
                if *left > 0 {
                    if let Some((event, n)) = codec.get(&bytes[*pos..]) {
                        *pos += n;
                        *left -= 1;
                        return Some(event);
                    }
                    // An event is missing even if no byte is left.
                    *damaged += (*pos == bytes.len()) as u64;
                }
                *damaged += (bytes.len() - *pos) as u64;
                (*left, *pos) = (0, bytes.len());
                None
            }
        }
    }
}

/// A packed chunk of which runs wait.
#[derive(Debug)]
struct Chunk {
    place: Place,
    runs: Vec<Unpacked>,
    waiting: usize,
}

/// What has become of a run.
#[derive(Debug)]
enum Unpacked {
    /// It is not unpacked.
    No,
    /// It is unpacked, and waits.
    Yes(Vec<Event>),
    /// It was given out.
    Gone,
}

/// All that waits of packed chunks, and how many bytes of memory anything takes that waits.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    chunks: HashMap<u64, Chunk>,
    next: u64,
    unpacker: Option<Unpacker>,
    /// Bytes of payloads and of unpacked events that wait in memory.
    pub(crate) bytes: usize,
    most: usize,
}

fn size(events: &[Event]) -> usize {
    size_of_val(events)
}

impl Pending {
    /// `most`: bytes that may wait in memory.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    /// Takes a packed chunk; returns its key.
    pub(crate) fn add(&mut self, runs: usize, place: Place) -> u64 {
        let key = self.next;
        self.next += 1;
        self.hold(&place);
        let runs: Vec<_> = std::iter::repeat_with(|| Unpacked::No).take(runs).collect();
        self.chunks.insert(key, Chunk { place, waiting: runs.len(), runs });
        key
    }

    /// Counts what waits in memory.
    pub(crate) fn hold(&mut self, place: &Place) {
        if let Place::Here(b) = place {
            self.bytes += b.len();
        }
    }

    /// The events of a plain chunk or of a run. What could not be read is counted in `damaged`.
    pub(crate) fn take(&mut self, w: Waiting, load: Load<'_>, damaged: &mut u64) -> Source {
        match w {
            Waiting::Plain { codec, count, place } => {
                let bytes = match place {
                    Place::Here(b) => {
                        self.bytes -= b.len();
                        Some(b)
                    }
                    Place::There(at, len) => {
                        load(at, len).and_then(|p| Events::decode(&p)).map(|e| e.bytes)
                    }
                };
                Source::Plain { bytes: bytes.unwrap_or_default(), pos: 0, left: count, codec }
            }
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
        } else if let Place::Here(b) = &chunk.place {
            self.bytes -= b.len();
        }
        events
    }

    /// Unpacks a chunk for one of its runs, and keeps the others if there is room.
    fn unpack(
        &mut self,
        chunk: &mut Chunk,
        wanted: usize,
        load: Load<'_>,
        damaged: &mut u64,
    ) -> Option<Vec<Event>> {
        let loaded;
        let payload = match &chunk.place {
            Place::Here(b) => b,
            Place::There(at, len) => {
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
            // What was read before the damage counts, once.
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
