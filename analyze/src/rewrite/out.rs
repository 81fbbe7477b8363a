//! Writes a recording.

use crate::load::Clock;
use prof_trace::chunk;
use prof_trace::derived::Zipped;
use prof_trace::event::{Codec, Event};
use prof_trace::pack::{Compress, MAX_EVENTS, Packer};
use prof_trace::records::{Pass, Target, kind};
use prof_trace::size::{CodedSize, Header};
use prof_trace::ticks::Ticks;
use std::io::{self, Write};

/// Shorter payloads are not compressed.
const WORTH_IT: usize = 256;
/// Number of the collector's passes that are kept per second.
const PASSES: u64 = 10;

/// A recording that is being written.
pub(super) struct Out<'a> {
    out: &'a mut dyn Write,
    packer: Packer,
    compress: Compress,
    payload: Vec<u8>,
    /// Number of bytes written.
    pub bytes: u64,
}

impl<'a> Out<'a> {
    /// Writes the header of a file.
    pub(super) fn new(out: &'a mut dyn Write) -> io::Result<Self> {
        Self::with_header(out, &chunk::file_header())
    }

    /// Writes this header of a file.
    fn with_header(out: &'a mut dyn Write, header: &[u8]) -> io::Result<Self> {
        out.write_all(header)?;
        let bytes = header.len() as u64;
        let (packer, compress) = (Packer::new(), Compress::Best);
        Ok(Self { out, packer, compress, payload: Vec::new(), bytes })
    }

    /// Writes the header of a file that has a fold.
    pub(super) fn folded(out: &'a mut dyn Write) -> io::Result<Self> {
        Self::with_header(out, &chunk::folded_header())
    }

    /// Writes the header of a file that is soon written anew, and need not be as small as it can be.
    pub(super) fn fast(out: &'a mut dyn Write) -> io::Result<Self> {
        Ok(Self { compress: Compress::Fast, ..Self::new(out)? })
    }

    /// Does the same for a file that has a fold.
    pub(super) fn fast_folded(out: &'a mut dyn Write) -> io::Result<Self> {
        Ok(Self { compress: Compress::Fast, ..Self::folded(out)? })
    }

    /// Writes a chunk behind the waiting events.
    pub(super) fn put(&mut self, kind: u16, payload: &[u8]) -> io::Result<()> {
        self.flush()?;
        self.put_before(kind, payload)
    }

    /// Writes a chunk in front of the waiting events.
    pub(super) fn put_before(&mut self, kind: u16, payload: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(payload.len() + chunk::CHUNK_HEADER);
        chunk::put(&mut bytes, kind, payload);
        self.bytes += bytes.len() as u64;
        self.out.write_all(&bytes)
    }

    /// Writes a chunk other than events in front of the waiting events, compressed if that pays. One that is compressed
    /// stays as it is: readers take no compressed chunk out of another.
    pub(super) fn put_zipped(&mut self, kind: u16, payload: &[u8]) -> io::Result<()> {
        let is_worth_it = payload.len() >= WORTH_IT && kind != kind::ZIPPED;
        let zipped = is_worth_it.then(|| Zipped::encode(kind, payload)).flatten();
        match zipped.filter(|z| z.len() < payload.len()) {
            Some(z) => self.put_before(kind::ZIPPED, &z),
            None => self.put_before(kind, payload),
        }
    }

    /// Adds events of a thread.
    pub(super) fn events(&mut self, thread: u32, events: &[Event]) -> io::Result<()> {
        for part in events.chunks(MAX_EVENTS / 2) {
            // Reserve room for the greatest number of bytes that these events can take.
            let bytes = part.len() * 2;
            if !self.packer.has_room(bytes) {
                self.flush()?;
            }
            let time = part.first().map_or(Ticks::ZERO, Event::time);
            let mut run =
                self.packer.begin::<true>(thread, &Codec { time, ..Codec::default() }, bytes);
            for e in part {
                e.show(&mut run);
            }
            run.end();
        }
        Ok(())
    }

    /// Writes the waiting events.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.packer.events() == 0 {
            return Ok(());
        }
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear();
        self.packer.finish(self.compress, &mut payload);
        let written = self.put_before(kind::PACKED, &payload);
        self.payload = payload;
        written
    }
}

/// The chunk header and sampling distance that a reader assumes of a thread's next block if it states neither.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usual {
    header: u16,
    rate: u8,
}

impl Usual {
    /// Returns the size of a new block, with its chunk header and the exponent of its distance if a reader would assume
    /// others.
    pub(super) fn sized(&mut self, size: u64, header: u16, rate: u8) -> CodedSize {
        let plain = CodedSize(size);
        if (self.header, self.rate) == (header, rate) || !plain.is_plain() {
            return plain;
        }
        let code = Header::from_code(header);
        let coded = CodedSize::with_rate(size, code, rate);
        if !code.mapped && coded != plain {
            self.header = Header { extra: 0, ..code }.code();
        }
        if coded.rate() != 0 {
            self.rate = rate;
        }
        coded
    }
}

/// Chooses the collector's passes that are kept: those that the clock needs, so that times stay the same to the
/// nanosecond; enough for the order of events; and all that tell the size of the target. To leave out a pass is to join
/// two, for which FORMAT.md's rules on the order of events hold as well.
pub(super) struct Passes {
    clock: Clock,
    step: u64,
    last: Option<Ticks>,
}

impl Passes {
    pub(super) fn new(target: &Target) -> Self {
        Self { clock: Clock::new(target), step: target.ticks_per_sec / PASSES, last: None }
    }

    pub(super) fn keep(&mut self, pass: &Pass) -> bool {
        let timed = self.clock.sample(pass);
        let due = self.last.is_none_or(|l| pass.ticks.since(l) >= self.step);
        let keep = timed || due || pass.rss_pages != 0;
        if keep {
            self.last = Some(pass.ticks);
        }
        keep
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prof_trace::chunk::{FILE_HEADER, Next};

    #[test]
    fn a_compressed_chunk_is_not_compressed_again() {
        // A payload that repeats itself for long becomes a frame that can be compressed once more.
        let payload = b"stack nodes, ".repeat(1_000_000);
        let once = Zipped::encode(kind::NODE_RUN, &payload).expect("compressed");
        let twice = Zipped::encode(kind::ZIPPED, &once).expect("compressed");
        assert!(
            once.len() >= WORTH_IT && twice.len() < once.len(),
            "{} {}",
            once.len(),
            twice.len()
        );
        let mut bytes = Vec::new();
        Out::new(&mut bytes).expect("a file").put_zipped(kind::ZIPPED, &once).expect("written");
        let Next::Chunk(of, written, _) = chunk::next(&bytes[FILE_HEADER..]) else {
            panic!("none")
        };
        assert_eq!((of, written), (kind::ZIPPED, &once[..]));
        assert_eq!(Zipped::decode(written).and_then(|z| z.unzip()), Some(payload));
    }
}
