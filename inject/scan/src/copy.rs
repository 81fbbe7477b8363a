//! A look at one moment that stops the process only as long as a copy of its memory takes: the copy is read afterwards.

use crate::error::Error;
use crate::freed::Freed;
use crate::kernel::Kept;
use crate::mark::{Marker, Words};
use crate::memory::{ScannedMemory, may_point};
use crate::pass::{Blocks, Candidates, Scanner};
use crate::ranges::{common, joined, whole, without};
use crate::threads::Threads;
use prof_inject::isolated;
use prof_inject::isolated::{Interrupts, at_ease};
use prof_inject::stopped::copy::MemoryCopy;
use prof_inject::stopped::copyable::{Unlike, may_copy, not_copied};
use prof_inject::stopped::threads::StopTimes;
use prof_inject::stopped::tracee::Tracee;
use prof_os::Pid;
use prof_os::clock::thread_ns;
use prof_os::maps;
use prof_os::memory::Reader;
use prof_trace::values::text::bytes;
use std::ops::Range;
use std::time::Instant;

/// Most bytes that are read while all threads are stopped, as a copy does not have them: some 0.2 s.
const MOST: u64 = 256 << 20;

/// What has to be of one moment.
pub(crate) struct Moment {
    /// The memory that the copy has. Parts that are no memory of a program are left out, and so are those in `apart`.
    pub memory: ScannedMemory,
    /// The threads.
    pub threads: Threads,
    /// What the kernel keeps.
    pub kept: Kept,
    /// Memory that the copy has not as it was: addresses and contents.
    pub apart: Vec<(u64, Vec<u8>)>,
}

impl Scanner {
    /// Does what [`Scanner::again_stopped`] does on a copy of the process's memory.
    ///
    /// # Errors
    /// As [`Scanner::first`], or if no copy can be made.
    pub(crate) fn again_copied<B: Blocks + ?Sized>(
        &mut self,
        blocks: &mut B,
        candidates: &Candidates,
    ) -> Result<Candidates, Error> {
        let mut marker = self.before_moment(blocks, candidates)?;
        self.copied(|scanner, moment| {
            let freed = blocks.freed();
            scanner.mark_moment(&mut marker, &moment, freed)?;
            scanner.after_moment(blocks, marker, &moment.memory)
        })
    }

    fn mark_moment(
        &mut self,
        marker: &mut Marker<'_>,
        moment: &Moment,
        freed: &Freed,
    ) -> Result<(), Error> {
        self.take(marker, &moment.threads, &moment.kept);
        for (at, bytes) in &moment.apart {
            marker.feed(*at, bytes, bytes.len(), Words::Owned(freed));
            self.figures.scanned += bytes.len() as u64;
        }
        self.read(marker, &moment.memory, freed, 0, self.options.max_cpu)?;
        self.read_again(marker, &moment.memory)
    }

    /// Copies the process's memory, and calls `then` with what is of that moment while this scanner reads the copy.
    ///
    /// # Errors
    /// If no copy can be made, the kernel ends it for want of memory, or `then` fails.
    pub(crate) fn copied<T: Send>(
        &mut self,
        then: impl FnOnce(&mut Self, Moment) -> Result<T, Error> + Send,
    ) -> Result<T, Error> {
        let pid = self.reader.pid();
        let apart = joined(may_copy(pid)?);
        self.little_apart(&apart)?;
        // An end of prof would leave a zombie in the process.
        let interrupts = Interrupts::hold();
        let began = Instant::now();
        let done = isolated(|| {
            let before = thread_ns();
            let mut stops = StopTimes::default();
            let mut seen = None;
            let mut look =
                |threads: &mut [Tracee]| seen = Some(look(&self.reader, &apart, threads));
            let copy = MemoryCopy::of(pid, self.options.patience, &mut stops, &mut look)?;
            at_ease();
            self.figures.stop = Some(stops.longest);
            let done = seen.ok_or(Error::Ended(pid)).flatten();
            let done = done.and_then(|moment| self.read_copy(&copy, &apart, moment, then));
            let done = match done {
                Err(_) if !copy.is_there() => {
                    let why = "the kernel has ended the copy, as memory was short";
                    Err(not_copied(pid, why.into()).into())
                }
                done => done,
            };
            copy.end_or_warn(self.options.patience, &mut stops);
            self.figures.longest_stop = self.figures.longest_stop.max(stops.longest);
            done.map(|value| (value, thread_ns() - before))
        });
        drop(interrupts);
        let (value, cpu) = done?;
        self.end(began, cpu);
        Ok(value)
    }

    /// Fails if there is too much memory to be read while all threads are stopped.
    fn little_apart(&self, apart: &[Range<u64>]) -> Result<(), Error> {
        let pid = self.reader.pid();
        let maps = maps::of(pid).map_err(|_| Error::Ended(pid))?;
        let touched = maps.iter().filter(|m| may_point(m)).flat_map(|m| {
            let all = self.reader.touched(m.start.0..m.end.0, m.shared).unwrap_or_default();
            common(&all, apart)
        });
        let total: u64 = touched.map(|r| r.end - r.start).sum();
        if total > MOST { Err(too_much(pid, total)) } else { Ok(()) }
    }

    /// Calls `then` while this scanner reads a copy.
    fn read_copy<T>(
        &mut self,
        copy: &MemoryCopy,
        apart: &[Range<u64>],
        mut moment: Moment,
        then: impl FnOnce(&mut Self, Moment) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let pid = self.reader.pid();
        let reader = Reader::open(copy.pid()).map_err(|e| Error::Memory(copy.pid(), e))?;
        let memory = &mut moment.memory;
        // A mapping may have been made, or its flags changed, between the look at the flags and the stop.
        let has = Unlike::of(copy.pid())?;
        let there: Vec<_> = maps::of(copy.pid())
            .map_err(|_| Error::Ended(pid))?
            .iter()
            .map(|m| m.start.0..m.end.0)
            .collect();
        let own = memory.maps.iter().filter(|m| may_point(m) && !m.is_device());
        let own = without(&joined(own.map(|m| m.start.0..m.end.0).collect()), apart);
        let missing = without(&own, &joined(there));
        if !without(&joined(has.ranges), apart).is_empty() || !missing.is_empty() {
            let why = "it has mapped memory meanwhile that a copy does not get; try again";
            return Err(not_copied(pid, why.into()).into());
        }
        for m in std::mem::take(&mut memory.maps) {
            match m.shared || m.is_device() {
                true => memory.maps.push(m),
                false => memory.add(&reader, m),
            }
        }
        memory.leave_out(apart);
        memory.leave_out(&moment.threads.dead(&reader, memory));
        let original = std::mem::replace(&mut self.reader, reader);
        let done = then(self, moment);
        self.reader = original;
        done
    }
}

/// Looks at what has to be of the moment in which the copy is made, while all threads are stopped.
fn look(reader: &Reader, apart: &[Range<u64>], stopped: &mut [Tracee]) -> Result<Moment, Error> {
    let pid = reader.pid();
    let maps = maps::of(pid).map_err(|_| Error::Ended(pid))?;
    let memory = ScannedMemory { maps, ..ScannedMemory::default() };
    let threads = Threads::of_stopped(reader, &memory, stopped);
    let (mut contents, mut buffer, mut total) = (Vec::new(), Vec::new(), 0);
    for m in memory.maps.iter().filter(|m| may_point(m) && !m.is_device()) {
        let own = m.start.0..m.end.0;
        let all = reader.touched(own, m.shared).unwrap_or_default();
        for part in common(&all, apart) {
            total += part.end - part.start;
            if total > 2 * MOST {
                return Err(too_much(pid, total));
            }
            whole(reader, part, &mut buffer, &mut |at, bytes: &[u8]| {
                contents.push((at, bytes.to_vec()));
            });
        }
    }
    Ok(Moment { memory, threads, kept: Kept::of(pid), apart: contents })
}

fn too_much(pid: Pid, has: u64) -> Error {
    let has = bytes(has);
    not_copied(pid, format!("{has} of its memory would be the same in a copy (shared memory)"))
        .into()
}
