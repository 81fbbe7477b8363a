//! Turns a recording of events into one of figures alone, while it goes on: its events are read again, a little between two
//! passes over the ring, and go through the sieve that takes the events of the ring afterwards. So the sieve knows all
//! blocks, as if it had been there from the begin on.

use crate::output::Output;
use prof_trace::chunk::{self, CHUNK_HEADER, FILE_HEADER, MAX_PAYLOAD, Next};
use prof_trace::derived::Zipped;
use prof_trace::pack::Unpacker;
use prof_trace::records::{Events, Pass, Process, Target, WentOver, kind};
use prof_trace::sieve::Sieve;
use prof_trace::ticks::Ticks;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time that may pass between two looks at the ring.
const SLICE: Duration = Duration::from_millis(5);
/// Bytes that are read at a time.
const PIECE: usize = 256 << 10;
/// Greatest number of steps that are made of the events, so that the file stays short.
const STEPS: u64 = 1024;

/// Makes the sieve through which events become figures. A try that fails spoils it, and the next takes another.
pub type MakeSieve = Box<dyn Fn() -> Box<dyn Sieve> + Send>;

/// A recording of figures that is made of one of events.
#[derive(Debug)]
pub(super) struct Over {
    new: Output,
    unpacker: Unpacker,
    /// Offset in the recording up to which it was read.
    from: u64,
    window: Vec<u8>,
    /// Least interval between two steps.
    every: Duration,
    /// Time of the last step by the clock of the passes, and the interval that is kept, both in ns.
    stepped: Option<u64>,
    interval: u64,
    /// The clock of the last pass.
    now: u64,
    /// Ticks of the last figures of the process that were copied, and the ticks of `interval`.
    process: Option<Ticks>,
    ticks_per_ns: f64,
    /// The hook's counters, of which the last ones count.
    counters: Option<Vec<u8>>,
    /// Number of events that were read.
    events: u64,
    syncs: Option<JoinHandle<io::Result<()>>>,
    is_synced: bool,
}

impl Over {
    /// Begins with an empty file. The last pass of the recording was about `clock_ns` by the kernel's clock.
    ///
    /// # Errors
    /// If the recording can't be read, or the file can't be written.
    pub(super) fn begin(
        old: &Output,
        file: File,
        sieve: Box<dyn Sieve>,
        clock_ns: u64,
    ) -> io::Result<Self> {
        let every = sieve.every().unwrap_or_default();
        let mut window = Vec::new();
        let from = FILE_HEADER as u64;
        let len = read(old, from, &mut window)?;
        let Next::Chunk(kind::TARGET, target, n) = chunk::next(&window[..len]) else {
            return Err(damaged(from));
        };
        let per_sec = Target::decode(target).map_or(0, |t| t.ticks_per_sec);
        let new = Output::of_figures(file, target, sieve, old.compress())?;
        Ok(Self {
            new,
            unpacker: Unpacker::default(),
            from: from + n as u64,
            window,
            every,
            stepped: None,
            interval: 0,
            now: clock_ns,
            process: None,
            ticks_per_ns: per_sec as f64 / 1e9,
            counters: None,
            events: 0,
            syncs: None,
            is_synced: false,
        })
    }

    /// Returns the new file.
    pub(super) fn file(&self) -> &File {
        self.new.file()
    }

    /// Returns the length of the new file.
    pub(super) fn len(&self) -> u64 {
        self.new.len()
    }

    /// Returns whether there is something to do at once: not while the disk writes.
    pub(super) fn is_busy(&self) -> bool {
        self.syncs.is_none()
    }

    /// Reads on for a short time. Returns whether all was read, and the disk has it.
    ///
    /// # Errors
    /// If the recording can't be read, or the new file can't be written.
    pub(super) fn step(&mut self, old: &Output) -> io::Result<bool> {
        if !self.read_on(old, Some(Instant::now() + SLICE))? {
            return Ok(false);
        }
        if self.is_synced {
            return Ok(true);
        }
        // A machine that fails later has one file or the other. The ring can't wait for a slow disk.
        match &self.syncs {
            None => {
                self.flush()?;
                let file = self.file().try_clone()?;
                let sync = move || file.sync_data();
                self.syncs = Some(std::thread::Builder::new().name("sync".into()).spawn(sync)?);
            }
            Some(syncs) if !syncs.is_finished() => {}
            Some(_) => {
                let done = self.syncs.take().map(JoinHandle::join);
                done.and_then(Result::ok).unwrap_or(Ok(()))?;
                self.is_synced = true;
            }
        }
        Ok(self.is_synced)
    }

    /// Reads what is left, and says that the events end here, at `now`. The new file is complete then.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub(super) fn finish(&mut self, old: &mut Output, now: Ticks) -> io::Result<()> {
        old.flush();
        self.read_on(old, None)?;
        if let Some(counters) = self.counters.take() {
            self.new.copy(kind::COUNTERS, &counters);
        }
        let over = WentOver { ticks: now, events: self.events };
        self.new.copy(kind::WENT_OVER, &over.encode());
        self.new.put_step();
        self.flush()
    }

    /// Has the recording's output go on in the new file, which has the recording's name by now.
    ///
    /// # Errors
    /// If the system does not let it.
    pub(super) fn hand_over(&mut self, old: &mut Output) -> io::Result<()> {
        old.go_over(&mut self.new)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.new.flush();
        self.new.take_failure().map_or(Ok(()), Err)
    }

    /// Reads the recording up to its present end, or until a moment. Returns whether it has come to the end.
    fn read_on(&mut self, old: &Output, until: Option<Instant>) -> io::Result<bool> {
        let is_over = || until.is_some_and(|until| Instant::now() >= until);
        let mut window = std::mem::take(&mut self.window);
        while self.from < old.len() {
            if is_over() {
                self.window = window;
                return Ok(false);
            }
            let (len, mut at) = (read(old, self.from, &mut window)?, 0);
            while let Next::Chunk(kind, payload, n) = chunk::next(&window[at..len]) {
                self.take(kind, payload)?;
                at += n;
                if is_over() {
                    break;
                }
            }
            if at == 0 {
                return Err(damaged(self.from));
            }
            self.from += at as u64;
        }
        self.window = window;
        Ok(true)
    }

    /// Takes a chunk of the recording.
    fn take(&mut self, kind: u16, payload: &[u8]) -> io::Result<()> {
        let zipped = Zipped::decode(payload).filter(|_| kind == kind::ZIPPED);
        match zipped.map_or(kind, |z| z.kind) {
            kind::EVENTS => {
                if let Some(e) = Events::decode(payload) {
                    self.events += u64::from(e.count);
                    self.new.put_events(e.thread, &e.codec(), e.count, &e.bytes);
                }
            }
            kind::PACKED => self.events += self.new.put_packed(payload, &mut self.unpacker),
            kind::PASS => self.pass(payload),
            kind::COUNTERS => self.counters = Some(payload.to_vec()),
            kind::PROCESS => self.process(payload),
            kind::THREADS_LEFT => self.new.put(kind, payload),
            // What a recording of figures alone does not have.
            kind::THREAD
            | kind::CALLS
            | kind::CALL_FILE
            | kind::MAPPINGS
            | kind::SCAN
            | kind::SCAN_ROOTS
            | kind::SCAN_BLOCKS
            | kind::SCAN_POINTERS => {}
            _ => self.new.copy(kind, payload),
        }
        if self.new.is_full() { self.flush() } else { Ok(()) }
    }

    /// Takes a pass, behind which a step may be due.
    fn pass(&mut self, payload: &[u8]) {
        let Some(pass) = Pass::decode(payload) else { return };
        self.new.put(kind::PASS, payload);
        let clock = pass.clock_ns;
        let begun = *self.stepped.get_or_insert(clock);
        if self.interval == 0 {
            let all = self.now.saturating_sub(clock) / STEPS;
            self.interval = all.max(self.every.as_nanos() as u64).max(1);
        }
        if clock.saturating_sub(begun) >= self.interval {
            self.new.put_step();
            self.stepped = Some(clock);
        }
    }

    /// Takes figures of the process, which are as rare afterwards as steps are.
    fn process(&mut self, payload: &[u8]) {
        let Some(p) = Process::decode(payload) else { return };
        let least = (self.interval as f64 * self.ticks_per_ns) as u64;
        if self.process.is_none_or(|at| p.ticks.since(at) >= least) {
            self.process = Some(p.ticks);
            self.new.copy(kind::PROCESS, payload);
        }
    }
}

fn damaged(at: u64) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("it is damaged at byte {at}"))
}

/// Reads the bytes of a recording from an offset on, so many that a whole chunk is among them. Returns their number.
fn read(old: &Output, from: u64, window: &mut Vec<u8>) -> io::Result<usize> {
    let left = old.len().saturating_sub(from).min((CHUNK_HEADER + MAX_PAYLOAD) as u64) as usize;
    let mut len = left.min(PIECE);
    loop {
        if window.len() < len {
            window.resize(len, 0);
        }
        old.file().read_exact_at(&mut window[..len], from)?;
        if len == left || chunk::next(&window[..len]) != Next::Partial {
            return Ok(len);
        }
        len = (len * 4).min(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::create_recording;
    use prof_trace::event::Codec;
    use prof_trace::pack::Compress;
    use prof_trace::records::{Counters, Step, Stripped, Thread};
    use prof_trace::sieve::{Figures, Sieved};
    use std::sync::{Arc, Mutex};

    /// Notes the passes and events that it gets.
    #[derive(Debug, Default)]
    struct Notes(Arc<Mutex<Vec<(u64, u32)>>>);

    impl Sieve for Notes {
        fn events(&mut self, thread: u32, _: &Codec, count: u32, _: &[u8]) {
            self.0.lock().expect("a lock").push((u64::from(thread), count));
        }

        fn pass(&mut self, pass: &Pass, _: &mut dyn Sieved) {
            self.0.lock().expect("a lock").push((pass.number, 0));
        }

        fn finish(&mut self, _: &mut dyn Sieved) {}

        fn about(&self) -> Stripped {
            Stripped { how: Stripped::AGGREGATED, ..Stripped::default() }
        }

        fn counted(&self) -> u64 {
            0
        }

        fn figures(&mut self) -> Vec<Figures> {
            vec![Figures::Step(Step::default())]
        }

        fn every(&self) -> Option<Duration> {
            Some(Duration::from_secs(1))
        }

        fn has_only_figures(&self) -> bool {
            true
        }
    }

    #[test]
    fn the_sieve_gets_all_events_and_the_file_no_other_than_what_figures_have() {
        let dir = std::env::temp_dir().join(format!("prof-over-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        let (path, to) = (dir.join("r.prof"), dir.join(".r.prof.fold"));
        let file = create_recording(&path).expect("a file");
        file.write_all_at(&chunk::file_header(), 0).expect("written");
        let mut old = Output::new(file).expect("output");
        old.set_compress(Compress::Fast);
        let target = Target { ticks_per_sec: 1_000_000_000, ..Target::default() };
        old.put(kind::TARGET, &target.encode());
        let events: u32 = 5;
        for number in 0..20u64 {
            let ticks = Ticks(1_000_000_000 * number);
            let pass = Pass { number, ticks, clock_ns: ticks.0, ..Pass::default() };
            old.put(kind::PASS, &pass.encode());
            old.put(kind::THREAD, &Thread::default().encode());
            let counters = Counters { events: number, ..Counters::default() };
            old.put(kind::COUNTERS, &counters.encode());
            // Frees of the address before, packed and not.
            let frees = [0x02, 0].repeat(events as usize);
            match number % 2 {
                0 => old.put_events(7, &Codec::default(), events, &frees),
                _ => _ = old.packer(64).run(7, &mut Codec::default(), &frees, |_| {}),
            }
            old.flush();
        }
        let seen = Notes::default();
        let notes = Arc::clone(&seen.0);
        let new = create_recording(&to).expect("a file");
        let mut over = Over::begin(&old, new, Box::new(seen), 20_000_000_000).expect("begun");
        while !over.step(&old).expect("a step") {}
        // What comes at the last moment counts, too.
        old.put_events(9, &Codec::default(), 1, &[0x02, 0]);
        over.finish(&mut old, Ticks(77)).expect("finished");
        over.hand_over(&mut old).expect("handed over");
        old.put_events(11, &Codec::default(), 1, &[0x02, 0]);
        old.put(kind::THREAD, &Thread::default().encode());
        old.flush();
        let notes = notes.lock().expect("a lock");
        let expected = (0..20).flat_map(|n| [(n, 0), (7, events)]).chain([(9, 1), (11, 1)]);
        assert_eq!(*notes, expected.collect::<Vec<_>>());
        let bytes = std::fs::read(&to).expect("read");
        let (mut at, mut kinds, mut counted) = (FILE_HEADER, Vec::new(), Vec::new());
        while let Next::Chunk(kind, payload, n) = chunk::next(&bytes[at..]) {
            at += n;
            kinds.push(kind);
            counted.extend(WentOver::decode(payload).filter(|_| kind == kind::WENT_OVER));
        }
        assert_eq!(at, bytes.len(), "whole chunks");
        assert_eq!(counted, [WentOver { ticks: Ticks(77), events: 101 }]);
        assert_eq!(kinds[..2], [kind::TARGET, kind::STRIPPED]);
        let of = |k: u16| kinds.iter().filter(|kind| **kind == k).count();
        assert_eq!((of(kind::STEP), of(kind::COUNTERS), of(kind::THREAD)), (20, 1, 0), "{kinds:?}");
        assert_eq!((of(kind::EVENTS), of(kind::PACKED)), (0, 0));
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
