//! Writing a recording.

use crate::load::Clock;
use prof_trace::chunk;
use prof_trace::derived::Zipped;
use prof_trace::event::{Codec, Event};
use prof_trace::pack::{Compress, MAX_EVENTS, Packer};
use prof_trace::records::{Pass, Target, kind};
use std::io::{self, Write};

/// Shorter payloads are not compressed.
const WORTH_IT: usize = 256;
/// So many passes are kept for each second.
const PASSES: u64 = 10;

/// A recording that is being written.
pub(super) struct Out<'a> {
    out: &'a mut dyn Write,
    packer: Packer,
    payload: Vec<u8>,
    /// Bytes written.
    pub bytes: u64,
}

impl<'a> Out<'a> {
    /// Begins a file.
    pub(super) fn new(out: &'a mut dyn Write) -> io::Result<Self> {
        let header = chunk::file_header();
        out.write_all(&header)?;
        let bytes = header.len() as u64;
        Ok(Self { out, packer: Packer::new(), payload: Vec::new(), bytes })
    }

    /// Writes a chunk, behind the events that were given.
    pub(super) fn put(&mut self, kind: u16, payload: &[u8]) -> io::Result<()> {
        self.flush()?;
        self.put_before(kind, payload)
    }

    /// Writes a chunk, in front of the events that wait.
    pub(super) fn put_before(&mut self, kind: u16, payload: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(payload.len() + chunk::CHUNK_HEADER);
        chunk::put(&mut bytes, kind, payload);
        self.bytes += bytes.len() as u64;
        self.out.write_all(&bytes)
    }

    /// Writes a chunk that describes, compressed if that pays, in front of the events that wait.
    pub(super) fn put_zipped(&mut self, kind: u16, payload: &[u8]) -> io::Result<()> {
        let zipped = (payload.len() >= WORTH_IT).then(|| Zipped::encode(kind, payload)).flatten();
        match zipped.filter(|z| z.len() < payload.len()) {
            Some(z) => self.put_before(kind::ZIPPED, &z),
            None => self.put_before(kind, payload),
        }
    }

    /// Adds events of a thread.
    pub(super) fn events(&mut self, thread: u32, events: &[Event]) -> io::Result<()> {
        for part in events.chunks(MAX_EVENTS / 2) {
            // As many as so many bytes can be.
            let bytes = part.len() * 2;
            if !self.packer.has_room(bytes) {
                self.flush()?;
            }
            let time = part.first().map_or(0, Event::time);
            let mut run =
                self.packer.begin::<true>(thread, &Codec { time, ..Codec::default() }, bytes);
            for e in part {
                e.show(&mut run);
            }
            run.end();
        }
        Ok(())
    }

    /// Writes the events that wait.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.packer.events() == 0 {
            return Ok(());
        }
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear();
        self.packer.finish(Compress::Best, &mut payload);
        let written = self.put_before(kind::PACKED, &payload);
        self.payload = payload;
        written
    }
}

/// Which passes of the collector are kept: those that the clock goes by, so that times are the same to the
/// nanosecond; enough for the order of events; and all that say how large the target is. One that is left
/// out makes one of two: what FORMAT.md says of the order of events holds for that as well.
pub(super) struct Passes {
    clock: Clock,
    step: u64,
    last: Option<u64>,
}

impl Passes {
    pub(super) fn new(target: &Target) -> Self {
        Self { clock: Clock::new(target), step: target.ticks_per_sec / PASSES, last: None }
    }

    pub(super) fn keep(&mut self, pass: &Pass) -> bool {
        let timed = self.clock.sample(pass);
        let due = self.last.is_none_or(|l| pass.ticks.saturating_sub(l) >= self.step);
        let keep = timed || due || pass.rss_pages != 0;
        if keep {
            self.last = Some(pass.ticks);
        }
        keep
    }
}
