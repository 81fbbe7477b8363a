//! Reads all pointers of a process once, for a [`Heap`].

use crate::classes;
use crate::edges::Collector;
use crate::error::Error;
use crate::frames;
use crate::freed::Freed;
use crate::kernel::Kept;
use crate::locals;
use crate::memory::ScannedMemory;
use crate::pass::{Blocks, Scanner};
use crate::prove::Stop;
use crate::ranges;
use crate::threads::{ThreadLook, Threads, has_guard, named_end};
use crate::word::WORD;
use prof_graph::{Edges, Heap, Root, Sum, Table};
use prof_inject::isolated;
use prof_inject::stopped::threads::{StopTimes, stop_all};
use prof_os::clock::thread_ns;
use prof_os::memory::Reader;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Bytes that are read in a second at least, on one core, for an estimate of how long a stop would be.
const RATE: u64 = 700 << 20;

/// Time that the recorder of the blocks takes, as a rule, until it has told what happened up to a moment.
const TELLING: Duration = Duration::from_millis(150);
/// Longest time that threads stand still for it where a stop is demanded: a recorder that is held up tells nothing.
const LONGEST_TELLING: Duration = Duration::from_secs(2);
/// A block of so many that came to be in the time of a look: with more of them, that moment's blocks are asked for while
/// all threads are stopped.
const YOUNG: usize = 20;

/// The state of the process during a survey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The process runs.
    Running,
    /// All threads are stopped. The blocks are those that were known before.
    Stopped,
    /// All threads are stopped. The blocks are those of that moment.
    Exact,
    /// A copy is read. The blocks are those that were known before.
    Copied,
}

impl Scanner {
    /// Reads all pointers to blocks, from blocks and from roots: while the process runs, or in one moment with all threads
    /// stopped. With [`Stop::Within`] they are stopped if that takes no longer by an estimate; with [`Stop::Always`] until
    /// the blocks of that moment are known, too, but for no more than two seconds.
    ///
    /// While the process runs, the pointers are those of different moments. Blocks that are freed meanwhile are left out,
    /// and so are those that are allocated. So they are with [`Stop::Within`], unless they are more than a few and the
    /// blocks of the moment can be known in that time. [`ScanStats`](crate::ScanStats) has how many are missing.
    ///
    /// # Errors
    /// If the process ends, can't be read, or time is up; if a thread does not stop, and a stop is demanded.
    pub fn survey<B: Blocks + ?Sized>(
        &mut self,
        blocks: &mut B,
        stop: Stop,
        until: Instant,
    ) -> Result<Heap, Error> {
        self.until = Some(until);
        blocks.catch_up()?;
        let young = match stop {
            Stop::Within(_) => known(blocks.catch_up()?, blocks).blocks,
            _ => 0,
        };
        let began = Instant::now();
        let mut table = self.table(blocks)?;
        let mut memory = self.memory()?;
        let mut way = self.way(stop, &memory, began.elapsed(), young);
        if way == Way::Exact {
            match self.survey_exact(blocks, stop) {
                Ok(Some(heap)) => return Ok(heap),
                Err(e) if stop == Stop::Always || !matches!(e, Error::Threads(_)) => return Err(e),
                Ok(None) | Err(_) => {}
            }
            blocks.catch_up()?;
            (table, memory) = (self.table(blocks)?, self.memory()?);
            way = Way::Stopped;
        }
        let mut collector = Collector::new(&table, self.options.mask, &memory.maps);
        let stopped = match way {
            Way::Running => Ok(None),
            Way::Copied => Ok(Some(self.survey_copied(&mut collector, blocks.freed())?)),
            _ => self.survey_stopped(&mut collector, blocks.freed()).map(Some),
        };
        let looks = match stopped {
            Ok(Some(looks)) => looks,
            Err(e) if !matches!(e, Error::Threads(_)) => return Err(e),
            Ok(None) | Err(_) => {
                collector = Collector::new(&table, self.options.mask, &memory.maps);
                self.survey_running(&mut collector, memory, blocks.freed())?
            }
        };
        let edges = collector.finish();
        let edges = self.with_frames(edges, &table, &looks);
        // Blocks that were freed, and those at their addresses, were not what was read.
        let changed = blocks.catch_up()?;
        let addresses: Vec<u64> = changed.iter().map(|(address, _)| *address).collect();
        self.figures.left_out = known(changed, blocks);
        Ok(Heap::new(table, edges, addresses, |at| blocks.get(at).map(|b| (b.group, b.size))))
    }

    /// Gives pointers on stacks and in registers to the frames that they stand in, and puts all in order. The process may run:
    /// `looks` has what was copied of each stack together with the registers.
    fn with_frames(&mut self, mut edges: Edges, table: &Table, looks: &[ThreadLook]) -> Edges {
        let found = self.frames(looks);
        self.figures.cut_stacks = found.cut;
        frames::assign(&mut edges, (table, self.options.mask), looks, &found);
        edges.settled()
    }

    /// Decides how to survey. `learnt`: time that it took to list the blocks and the memory; a page table of terabytes takes
    /// long on old kernels. `young`: number of blocks that came to be while the last were learnt.
    fn way(&self, stop: Stop, memory: &ScannedMemory, learnt: Duration, young: u64) -> Way {
        let most = match stop {
            Stop::Never => return Way::Running,
            Stop::Always => return Way::Exact,
            Stop::Copy => return Way::Copied,
            Stop::Within(most) => most,
        };
        let all: u64 = memory.parts.iter().map(|p| p.end - p.start).sum();
        let brief = Duration::from_secs_f64(all as f64 / RATE as f64) + learnt;
        let many = young * YOUNG as u64 > self.figures.blocks;
        match (brief <= most, many && brief + TELLING <= most) {
            (false, _) => Way::Running,
            (true, false) => Way::Stopped,
            (true, true) => Way::Exact,
        }
    }

    /// Surveys a moment, with the blocks of that moment: they are learnt while all threads are stopped. `None`: that took
    /// too long.
    fn survey_exact<B: Blocks + ?Sized>(
        &mut self,
        blocks: &mut B,
        stop: Stop,
    ) -> Result<Option<Heap>, Error> {
        let began = Instant::now();
        let done = isolated(|| {
            let before = thread_ns();
            let mut stopped = stop_all(self.reader.pid(), self.options.patience)?;
            let seen = self.moment(blocks, stop, &mut stopped.threads);
            let mut times = StopTimes::default();
            stopped.resume(&mut times);
            self.figures.longest_stop = self.figures.longest_stop.max(times.longest);
            let seen = seen?;
            if seen.is_some() {
                self.figures.stop = Some(times.longest);
            }
            Ok::<_, Error>(seen.map(|seen| (seen, thread_ns() - before)))
        })?;
        let Some(((table, edges, looks), cpu)) = done else { return Ok(None) };
        self.end(began, cpu);
        let edges = self.with_frames(edges, &table, &looks);
        Ok(Some(Heap::new(table, edges, [], |at| blocks.get(at).map(|b| (b.group, b.size)))))
    }

    fn moment<B: Blocks + ?Sized>(
        &mut self,
        blocks: &mut B,
        stop: Stop,
        threads: &mut [prof_inject::stopped::tracee::Tracee],
    ) -> Result<Option<(Table, Edges, Vec<ThreadLook>)>, Error> {
        let most = if let Stop::Within(most) = stop { most } else { LONGEST_TELLING };
        if !blocks.catch_up_within(most)? {
            return Ok(None);
        }
        let table = self.table(blocks)?;
        let mut memory = self.memory()?;
        let mut collector = Collector::new(&table, self.options.mask, &memory.maps);
        let threads = Threads::of_stopped(&self.reader, &memory, threads);
        let kept = Kept::of(self.reader.pid());
        let seen = (&threads, &kept);
        self.collect(&mut collector, &mut memory, seen, blocks.freed(), 0)?;
        let edges = collector.finish();
        Ok(Some((table, edges, threads.all)))
    }

    fn survey_stopped(
        &mut self,
        collector: &mut Collector<'_>,
        freed: &Freed,
    ) -> Result<Vec<ThreadLook>, Error> {
        let began = Instant::now();
        let (looks, cpu) = isolated(|| {
            let before = thread_ns();
            let mut stopped = stop_all(self.reader.pid(), self.options.patience)?;
            let read = self.read_stopped(collector, freed, &mut stopped.threads);
            let mut times = StopTimes::default();
            stopped.resume(&mut times);
            self.figures.stop = Some(times.longest);
            self.figures.longest_stop = self.figures.longest_stop.max(times.longest);
            read.map(|looks| (looks, thread_ns() - before))
        })?;
        self.end(began, cpu);
        Ok(looks)
    }

    fn read_stopped(
        &mut self,
        collector: &mut Collector<'_>,
        freed: &Freed,
        threads: &mut [prof_inject::stopped::tracee::Tracee],
    ) -> Result<Vec<ThreadLook>, Error> {
        let mut memory = self.memory()?;
        let threads = Threads::of_stopped(&self.reader, &memory, threads);
        let kept = Kept::of(self.reader.pid());
        self.collect(collector, &mut memory, (&threads, &kept), freed, 0)?;
        Ok(threads.all)
    }

    fn survey_copied(
        &mut self,
        collector: &mut Collector<'_>,
        freed: &Freed,
    ) -> Result<Vec<ThreadLook>, Error> {
        self.copied(|scanner, mut moment| {
            for (at, bytes) in &moment.apart {
                collector.feed(*at, bytes, freed);
                scanner.figures.scanned += bytes.len() as u64;
            }
            let (seen, max_cpu) = ((&moment.threads, &moment.kept), scanner.options.max_cpu);
            scanner.collect(collector, &mut moment.memory, seen, freed, max_cpu)?;
            Ok(moment.threads.all)
        })
    }

    fn survey_running(
        &mut self,
        collector: &mut Collector<'_>,
        mut memory: ScannedMemory,
        freed: &Freed,
    ) -> Result<Vec<ThreadLook>, Error> {
        let (began, before) = (Instant::now(), thread_ns());
        let threads = Threads::look(&self.reader, &memory, &mut self.sharers)?;
        let kept = Kept::of(self.reader.pid());
        self.collect(collector, &mut memory, (&threads, &kept), freed, self.options.max_cpu)?;
        self.end(began, thread_ns() - before);
        self.ended()?;
        Ok(threads.all)
    }

    /// Reads all memory. Pointers in registers are left to [`frames::assign`].
    fn collect(
        &mut self,
        collector: &mut Collector<'_>,
        memory: &mut ScannedMemory,
        (threads, kept): (&Threads, &Kept),
        freed: &Freed,
        max_cpu: u32,
    ) -> Result<(), Error> {
        memory.leave_out(&threads.dead(&self.reader, memory));
        let locals = locals::size(&self.reader, &memory.maps);
        collector.learn(&memory.maps, &stacks(&self.reader, memory, threads, locals));
        let copies = copies(collector, threads);
        collector.words(&Root::Kernel, kept.words.iter().copied());
        let f = &mut self.figures;
        (f.rings, f.threads) = (kept.rings, threads.all.len() as u64);
        f.unread_threads = threads.unread.len() as u64;
        f.longest_stop = f.longest_stop.max(threads.longest);
        let pieces = memory.pieces(0).into_iter().map(|piece| (piece.clone(), piece.end));
        self.read_pieces(pieces, memory.devices, max_cpu, |at, bytes, _| {
            feed(collector, at, bytes, freed, &copies);
        })
    }

    /// Returns the offset in a block, or in any other memory, of the first word that points into a range; `None`: there is
    /// none now, or it can't be read.
    #[must_use]
    pub fn offset_of(&self, from: Range<u64>, to: &Range<u64>) -> Option<u64> {
        let mut found = None;
        let mut buffer = Vec::new();
        let start = from.start;
        let mut take = |at: u64, bytes: &[u8]| {
            let words = bytes.as_chunks::<WORD>().0.iter().enumerate();
            let mut words = words.map(|(k, w)| (k, usize::from_ne_bytes(*w) as u64));
            let is_pointer = |w: u64| to.contains(&w) || to.contains(&(w & self.options.mask));
            if let (None, Some((k, _))) = (found, words.find(|(_, w)| is_pointer(*w))) {
                found = Some(at + (k * WORD) as u64 - start);
            }
        };
        let len = (from.end - start).min(crate::memory::PIECE);
        ranges::whole(&self.reader, start..start + len, &mut buffer, &mut take);
        found
    }

    /// Returns the mangled name of the class that a table of virtual functions belongs to.
    #[must_use]
    pub fn class_of(&self, table: u64) -> Option<String> {
        classes::name_of(&self.reader, table)
    }
}

/// Returns the copies of stacks, in order: what is read later of a stack whose thread runs does not fit its registers. A stack
/// that lies in a block belongs to that.
fn copies<'t>(collector: &Collector<'_>, threads: &'t Threads) -> Vec<(u64, &'t [u8])> {
    let own = threads.all.iter().filter(|t| !collector.is_block(t.state.sp));
    let mut all: Vec<_> = own.map(|t| (t.stack.0, t.stack.1.as_slice())).collect();
    all.sort_unstable_by_key(|(at, _)| *at);
    all.dedup_by(|next, one| next.0 < one.0 + one.1.len() as u64);
    all
}

/// Counts the words of memory that was read at an address, with the copies in place of what was read there.
fn feed(
    collector: &mut Collector<'_>,
    mut at: u64,
    mut bytes: &[u8],
    freed: &Freed,
    copies: &[(u64, &[u8])],
) {
    let first = copies.partition_point(|(from, copy)| from + copy.len() as u64 <= at);
    for (from, copy) in &copies[first..] {
        let start = (*from).max(at);
        let end = (from + copy.len() as u64).min(at + bytes.len() as u64);
        if start >= end {
            break;
        }
        collector.feed(at, &bytes[..(start - at) as usize], freed);
        collector.feed(start, &copy[(start - from) as usize..(end - from) as usize], freed);
        (bytes, at) = (&bytes[(end - at) as usize..], end);
    }
    collector.feed(at, bytes, freed);
}

/// Returns those of some blocks that are live, each once.
fn known<B: Blocks + ?Sized>(mut blocks: Vec<(u64, u64)>, now: &B) -> Sum {
    blocks.sort_unstable();
    blocks.dedup_by_key(|b| b.0);
    let mut all = Sum::default();
    for b in blocks.iter().filter_map(|(at, _)| now.get(*at)) {
        all += Sum { bytes: b.size, blocks: 1 };
    }
    all
}

/// Returns the threads' stacks, and where their thread-local variables are that lie elsewhere. A thread may run on a fiber's
/// stack: what is not known to be made for a thread is left out. `locals`: the size of such variables.
fn stacks(
    reader: &Reader,
    memory: &ScannedMemory,
    threads: &Threads,
    locals: u64,
) -> Vec<(Range<u64>, Root)> {
    let mut all: Vec<(Range<u64>, Root)> = Vec::new();
    for t in &threads.all {
        let border = locals::border(t.state.thread_pointer);
        let of = |address: u64| {
            let i = memory.maps.partition_point(|m| m.start.0 <= address).checked_sub(1)?;
            let m = memory.maps.get(i).filter(|m| address < m.end.0 && m.write && m.inode == 0)?;
            Some((i, m))
        };
        let is_first = |i: usize| memory.maps[i].name == b"[stack]";
        let stack = of(t.state.sp).filter(|(i, _)| is_first(*i) || has_guard(memory, *i));
        all.extend(stack.and_then(|(i, m)| {
            // The kernel may have joined the mapping with others behind the thread's descriptor.
            let end = named_end(reader, memory, i, border).unwrap_or(m.end.0);
            (t.state.sp < end).then_some((m.start.0..end, Root::Stack(t.state.tid)))
        }));
        // The first thread's variables may lie in a mapping that begins with another thread's stack.
        let is_stacks =
            |i: usize| has_guard(memory, i) && named_end(reader, memory, i, border).is_some();
        let local = of(border).filter(|(i, m)| m.is_anonymous() && !is_stacks(*i));
        all.extend(local.map(|(_, m)| {
            let own = locals::range(border, locals);
            let own = own.start.max(m.start.0)..own.end.min(m.end.0);
            (own, Root::ThreadLocal(t.state.tid))
        }));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Boxed;
    use crate::freed::Freed;
    use crate::pass::{Block, Options};
    use prof_os::Pid;
    use prof_os::stat::Stat;
    use std::process::Command;

    /// A recorder that is held up.
    struct HeldUp {
        pid: Pid,
        freed: Freed,
        /// The times that it was given, and whether it was asked without a limit while the process was stopped.
        given: Vec<Duration>,
        unlimited: bool,
    }

    impl HeldUp {
        fn is_stopped(&self) -> bool {
            Stat::of(self.pid).is_some_and(|s| s.state() == b't')
        }
    }

    impl Blocks for HeldUp {
        fn catch_up(&mut self) -> Result<Vec<(u64, u64)>, Boxed> {
            self.unlimited |= self.is_stopped();
            Ok(Vec::new())
        }

        fn catch_up_within(&mut self, most: Duration) -> Result<bool, Boxed> {
            assert!(self.is_stopped());
            self.given.push(most);
            Ok(false)
        }

        fn each(&self, _: &mut dyn FnMut(u64, u64)) {}

        fn get(&self, _: u64) -> Option<Block> {
            None
        }

        fn freed(&self) -> &Freed {
            &self.freed
        }
    }

    #[test]
    fn a_recorder_that_is_held_up_keeps_no_process_stopped() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
        let pid = Pid::from_raw(child.id() as i32);
        let mut blocks =
            HeldUp { pid, freed: Freed::default(), given: Vec::new(), unlimited: false };
        let mut scanner = Scanner::open(pid, Options::default()).expect("the process");
        let until = Instant::now() + Duration::from_secs(60);
        let heap = scanner.survey(&mut blocks, Stop::Always, until);
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert!(heap.is_ok() && scanner.figures.stop.is_some(), "{heap:?}");
        assert_eq!(blocks.given, [LONGEST_TELLING]);
        assert!(!blocks.unlimited, "it was asked without a limit while the process stood still");
    }
}
