//! Hands events to what decides which of them are written, and writes the figures of all.

use super::{Output, Plain, show};
use prof_trace::chunk::{self, Next};
use prof_trace::event::{Codec, Event};
use prof_trace::pack::{Compress, MAX_EVENTS};
use prof_trace::records::{Pass, kind};
use prof_trace::sieve::{Sieve, Sieved};
use prof_trace::ticks::Ticks;
use std::time::{Duration, Instant};

/// A sieve, and when its figures are due.
#[derive(Debug)]
pub(super) struct Sifted {
    pub sieve: Box<dyn Sieve>,
    /// When the figures of all were written last, and the interval after which they are due again.
    pub written: Instant,
    pub due: Duration,
    /// When the process's figures and the hook's counters were written last, of a recording of figures alone.
    noted: [Option<Instant>; 2],
}

/// Number of events that a sieve was given, and how many of them figures have that are written.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sifting {
    pub given: u64,
    /// Number of those in the figures that are to be written next.
    next: u64,
    written: u64,
}

impl Sifting {
    /// Notes that the last figures are written.
    pub(super) fn wrote(&mut self) {
        self.written = self.next;
    }

    /// Returns the number of events that are in no figures that are written.
    pub(super) fn lacks(&self) -> u64 {
        self.given.saturating_sub(self.written)
    }
}

impl Sifted {
    /// Returns whether a recording of figures alone leaves out a chunk, as such chunks are many in the long run.
    pub(super) fn leaves_out(&mut self, kind: u16) -> bool {
        if !self.sieve.has_only_figures() {
            return false;
        }
        let noted = match kind {
            kind::THREAD | kind::THREADS_LEFT | kind::MAPPINGS | kind::CALL_FILE => return true,
            kind::PROCESS => &mut self.noted[0],
            kind::COUNTERS => &mut self.noted[1],
            _ => return false,
        };
        let every = self.sieve.every().unwrap_or(FIGURES[0]);
        let is_early = noted.is_some_and(|at| at.elapsed() < every);
        if !is_early {
            *noted = Some(Instant::now());
        }
        is_early
    }
}

/// Shortest and longest interval between two records of the figures of what is left out.
pub(super) const FIGURES: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(300)];
/// Greatest number of bytes a second that these records may take, unless they are due.
const FIGURES_RATE: u64 = 4 << 10;

impl Output {
    /// Sets what decides which events are written. It must see all of them.
    pub(crate) fn set_sieve(&mut self, sieve: Box<dyn Sieve>) {
        // A reader must know from the start on that not all blocks are here.
        if sieve.has_only_figures() {
            // The first look at the mappings would seem to be the last one.
            let all = std::mem::take(&mut self.meta);
            let mut at = 0;
            while let Next::Chunk(kind, payload, n) = chunk::next(&all[at..]) {
                at += n;
                if kind != kind::MAPPINGS {
                    chunk::put(&mut self.meta, kind, payload);
                }
            }
        }
        self.put(kind::STRIPPED, &sieve.about().encode());
        self.flush();
        let due = sieve.every().unwrap_or(FIGURES[0]);
        self.sieve = Some(Sifted { sieve, written: Instant::now(), due, noted: [None; 2] });
    }

    /// Writes what the sieve has held back, and its figures: no more events follow. All stack nodes must have been added.
    pub(crate) fn end_sieve(&mut self) {
        let Some(mut s) = self.sieve.take() else { return };
        self.ends_sieve = true;
        s.sieve.finish(self);
        self.ends_sieve = false;
        self.put_figures(&mut s);
        self.flush();
    }

    pub(super) fn put_figures(&mut self, s: &mut Sifted) {
        let before = self.meta.len();
        for record in s.sieve.figures() {
            let (kind, payload) = record.encode();
            self.put(kind, &payload);
        }
        self.sifting.next = s.sieve.counted();
        let took = (self.meta.len() - before) as u64;
        s.sieve.wrote(took);
        s.written = Instant::now();
        s.due = s.sieve.every().unwrap_or_else(|| {
            Duration::from_millis(took * 1000 / FIGURES_RATE).clamp(FIGURES[0], FIGURES[1])
        });
    }

    /// Returns whether events go to [`Output::put_decoded`] rather than to [`Output::put_events`].
    pub(crate) fn takes_decoded(&self) -> bool {
        self.sieve.as_ref().is_some_and(|s| s.sieve.takes_decoded())
    }

    /// Hands events to the sieve, which took so many bytes in the ring.
    pub(crate) fn put_decoded(&mut self, thread: u32, events: Vec<Event>, bytes: usize) {
        self.added += bytes;
        self.sifting.given += events.len() as u64;
        if let Some(s) = &mut self.sieve {
            s.sieve.decoded(thread, events);
        }
    }
}

impl Sieved for Output {
    fn pass(&mut self, pass: &Pass) {
        self.end_pack();
        chunk::put(&mut self.events, kind::PASS, &pass.encode());
    }

    fn events(&mut self, thread: u32, events: &[Event]) {
        // A packed event counts as one of the least length.
        for part in events.chunks(MAX_EVENTS / 2) {
            let from =
                Codec { time: part.first().map_or(Ticks::ZERO, Event::time), ..Codec::default() };
            let small = self.packs_small();
            match self.compress {
                Compress::None => {
                    let (mut bytes, count) = (Vec::new(), part.len() as u32);
                    let mut plain = Plain { codec: from, to: &mut bytes, events: 0 };
                    part.iter().for_each(|e| _ = e.show(&mut plain));
                    self.lost += u64::from(count - plain.events);
                    let written = plain.events;
                    self.added += bytes.len();
                    self.put_chunk(thread, &from, written, &bytes);
                }
                _ if small => show::<true>(self.packer(2 * part.len()), thread, &from, part),
                _ => show::<false>(self.packer(2 * part.len()), thread, &from, part),
            }
            // Within a pass, the pass and its nodes have to come first.
            if self.ends_sieve && self.is_full() {
                self.flush();
            }
        }
    }
}
