//! Goes over from events to figures alone, in another file.

use super::{Output, Plain};
use prof_trace::chunk;
use prof_trace::event::{Codec, Event};
use prof_trace::pack::{Compress, Packed, Unpacker};
use prof_trace::records::kind;
use prof_trace::sieve::Sieve;
use prof_trace::ticks::Ticks;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

impl Output {
    /// Begins a recording of figures alone in an empty file, given the payload of the target's record. Figures are written
    /// by [`Output::put_step`] alone, until another output takes it over.
    ///
    /// # Errors
    /// If the file can't be written.
    pub(crate) fn of_figures(
        file: File,
        target: &[u8],
        sieve: Box<dyn Sieve>,
        compress: Compress,
    ) -> io::Result<Self> {
        file.write_all_at(&chunk::file_header(), 0)?;
        let mut out = Self::new(file).map_err(io::Error::other)?;
        out.compress = compress;
        chunk::put(&mut out.meta, kind::TARGET, target);
        out.set_sieve(sieve);
        out.put_off_figures();
        Ok(out)
    }

    /// Adds a chunk as it is.
    pub(crate) fn copy(&mut self, kind: u16, payload: &[u8]) {
        chunk::put(&mut self.meta, kind, payload);
    }

    /// Passes the events of a packed chunk to the sieve. Returns their number.
    pub(crate) fn put_packed(&mut self, payload: &[u8], unpacker: &mut Unpacker) -> u64 {
        let Some(packed) = Packed::read(payload) else { return 0 };
        let mut runs: Vec<Vec<Event>> =
            packed.runs.iter().map(|r| Vec::with_capacity(r.count as usize)).collect();
        // Of a chunk that this collector has written nothing is malformed.
        let _ = unpacker.unpack(&packed, |run, event| runs[run].push(event));
        let mut all = 0;
        for (run, events) in packed.runs.iter().zip(runs) {
            let time = events.first().map_or(Ticks::ZERO, Event::time);
            let from = Codec { time, ..Codec::default() };
            let mut bytes = Vec::with_capacity(events.len() * 8);
            let mut plain = Plain { codec: from, to: &mut bytes, events: 0 };
            events.iter().for_each(|e| _ = e.show(&mut plain));
            let count = plain.events;
            self.lost += events.len() as u64 - u64::from(count);
            self.put_events(run.thread, &from, count, &bytes);
            all += u64::from(count);
        }
        all
    }

    /// Writes the sieve's figures now.
    pub(crate) fn put_step(&mut self) {
        let Some(mut s) = self.sieve.take() else { return };
        self.put_figures(&mut s);
        self.sieve = Some(s);
        self.put_off_figures();
    }

    fn put_off_figures(&mut self) {
        if let Some(s) = &mut self.sieve {
            s.due = Duration::MAX;
        }
    }

    /// Goes on with the sieve and in the file of another output, which has all that this one has; both have nothing that
    /// waits to be written.
    ///
    /// # Errors
    /// If the system does not let it.
    pub(crate) fn go_over(&mut self, new: &mut Output) -> io::Result<()> {
        self.replace(&new.file, new.end)?;
        self.lost += new.lost;
        (self.sieve, self.sifting) = (new.sieve.take(), new.sifting);
        if let Some(s) = &mut self.sieve {
            s.due = s.sieve.every().unwrap_or(super::sifted::FIGURES[0]);
        }
        Ok(())
    }
}
