//! One pass: which blocks are reached, by what memory and registers held while it was read.

use crate::error::{Boxed, Error};
use crate::freed::Freed;
use crate::kernel::Kept;
use crate::mark::{Marker, Words};
use crate::memory::ScannedMemory;
use crate::ranges;
use crate::threads::Threads;
use crate::throttle::Throttle;
use crate::word::{Pointers, WORD};
use prof_graph::{Bits, Keys, Sum, Table};
use prof_inject::isolated;
use prof_inject::isolated::Interrupts;
use prof_inject::stopped::threads::{StopTimes, stop_all};
use prof_inject::stopped::tracee::Tracee;
use prof_os::clock::thread_ns;
use prof_os::memory::Reader;
use prof_os::sharers::Sharers;
use prof_os::status::Status;
use prof_os::{Pid, process};
use prof_trace::shared::MEMFD_NAME;
use prof_trace::ticks::Ticks;
use std::ops::Range;
use std::time::{Duration, Instant};

/// A block that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Address of the block's first byte.
    pub address: u64,
    /// Bytes requested.
    pub size: u64,
    /// Ticks when it was allocated.
    pub time: Ticks,
    /// The number of its stack.
    pub group: u32,
}

/// The one who knows which blocks are live.
pub trait Blocks: Send {
    /// Learns what has happened up to the present, and returns the addresses and sizes of all blocks that were allocated
    /// or freed since the last call. What the first call returns is of no use.
    ///
    /// # Errors
    /// If that can't be learnt.
    fn catch_up(&mut self) -> Result<Vec<(u64, u64)>, Boxed>;

    /// Learns what has happened up to the present, if that can be done in a limited time; returns whether it could.
    ///
    /// # Errors
    /// As [`Self::catch_up`].
    fn catch_up_within(&mut self, most: Duration) -> Result<bool, Boxed>;

    /// Calls `take` with address and size of each live block.
    fn each(&self, take: &mut dyn FnMut(u64, u64));

    /// Returns the live block at an address.
    fn get(&self, address: u64) -> Option<Block>;

    /// Returns the memory that is freed.
    fn freed(&self) -> &Freed;
}

/// Options of a pass.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bits of a word that are an address, if it is a pointer.
    pub mask: u64,
    /// Greatest share of a processor in percent; 0: no limit.
    pub max_cpu: u32,
    /// Time that all threads get to stop.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        // No machine gives programs addresses above, and some ignore the top byte of a pointer.
        let mask = (1 << 56) - 1;
        Self { mask, max_cpu: 0, patience: Duration::from_secs(5) }
    }
}

/// Cost of the passes, and the memory that they did not see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanStats {
    /// Number of passes.
    pub passes: u64,
    /// Bytes that were read.
    pub scanned: u64,
    /// Bytes of memory that could not be read, in the pass that had most.
    pub unreadable: u64,
    /// Bytes of shared mappings without pages at the time.
    pub absent: u64,
    /// Threads whose registers could not be read.
    pub unread_threads: u64,
    /// Threads whose stacks could not be followed to their start.
    pub cut_stacks: u64,
    /// Descriptors of io_uring.
    pub rings: u64,
    /// Blocks that begin inside others, and are not judged.
    pub nested: u64,
    /// Blocks that were judged.
    pub blocks: u64,
    /// Live blocks that are not among them, as they were allocated while they were learnt or read.
    pub left_out: Sum,
    /// Contexts of aio.
    pub aio: bool,
    /// Time that the last pass took.
    pub last: Duration,
    /// Number of threads.
    pub threads: u64,
    /// Time that reading and marking took.
    pub took: Duration,
    /// Processor time that it took.
    pub cpu: Duration,
    /// Processor time of the first pass, which marks every block.
    pub first_cpu: Duration,
    /// The part of it that finding pointers and marking took; the rest is that of reading memory.
    pub first_mark: Duration,
    /// The longest stop of a single thread, or of all.
    pub longest_stop: Duration,
    /// The stop of all threads; `None`: there was none.
    pub stop: Option<Duration>,
}

/// Blocks that no pass has reached so far.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    table: Table,
    /// Others of them point to these.
    held: Bits,
}

impl Candidates {
    /// Returns the number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns the address of each, in order, and whether another of them points to it.
    pub(crate) fn each(&self) -> impl Iterator<Item = (u64, bool)> {
        (0..self.len()).map(|i| (self.table.block(i as u32).0, self.held.has(i)))
    }
}

/// Makes passes over a process.
#[derive(Debug)]
pub struct Scanner {
    pub(crate) reader: Reader,
    pub(crate) sharers: Sharers,
    pub(crate) options: Options,
    /// The moment at which a pass is given up.
    pub(crate) until: Option<Instant>,
    /// Cost so far.
    pub figures: ScanStats,
}

impl Scanner {
    /// Opens a process.
    ///
    /// # Errors
    /// If its memory may not be read.
    pub fn open(pid: Pid, options: Options) -> Result<Self, Error> {
        let reader = Reader::open(pid).map_err(|e| match prof_os::process::has_ended(pid) {
            true => Error::Ended(pid),
            false => Error::Memory(pid, e),
        })?;
        let sharers = Sharers::of(pid, MEMFD_NAME);
        Ok(Self { reader, sharers, options, until: None, figures: ScanStats::default() })
    }

    /// Fails if the process has ended.
    pub(crate) fn ended(&self) -> Result<(), Error> {
        let pid = self.reader.pid();
        if prof_os::process::has_ended(pid) { Err(Error::Ended(pid)) } else { Ok(()) }
    }

    /// Returns whether time is up, or prof was asked to end.
    pub(crate) fn is_late(&self) -> bool {
        Interrupts::are_due() || self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Lists the memory that is there.
    pub(crate) fn memory(&mut self) -> Result<ScannedMemory, Error> {
        let pid = self.reader.pid();
        let memory = ScannedMemory::of(&self.reader).map_err(|_| Error::Ended(pid))?;
        if memory.maps.is_empty() {
            return Err(Error::Ended(pid));
        }
        self.figures.absent = self.figures.absent.max(memory.absent);
        self.figures.aio |= memory.maps.iter().any(|m| m.name.starts_with(b"/[aio]"));
        Ok(memory)
    }

    /// Makes the table of the live blocks.
    ///
    /// # Errors
    /// If time is up.
    pub(crate) fn table<B: Blocks + ?Sized>(&mut self, blocks: &B) -> Result<Table, Error> {
        let mut keys = Keys::default();
        blocks.each(&mut |address, size| keys.push(address, size));
        self.in_time()?;
        let table = Table::new(keys);
        self.figures.nested = table.nested();
        self.figures.blocks = table.len() as u64;
        Ok(table)
    }

    /// Marks all blocks that there are, and returns those that were not reached.
    ///
    /// # Errors
    /// If the process ends, can't be read, or time is up.
    pub(crate) fn first<B: Blocks + ?Sized>(
        &mut self,
        blocks: &mut B,
    ) -> Result<Candidates, Error> {
        blocks.catch_up()?;
        let table = self.table(blocks)?;
        self.in_time()?;
        let pointers = Pointers { mask: self.options.mask, unaligned: false };
        let mut marker = Marker::new(&table, pointers);
        self.running(&mut marker, blocks)?;
        Ok(self.candidates(&marker))
    }

    /// Takes those blocks out that something points to: anything but a block that was not reached so far. All other
    /// blocks count as reached, so nothing has to be known of them.
    ///
    /// # Errors
    /// As [`Self::first`].
    pub(crate) fn again<B: Blocks + ?Sized>(
        &mut self,
        blocks: &mut B,
        candidates: &Candidates,
    ) -> Result<Candidates, Error> {
        // Pointers at odd addresses, as in packed structs, are rare: looking for them once is enough.
        let unaligned = self.figures.passes == 1;
        let pointers = Pointers { mask: self.options.mask, unaligned };
        let mut marker = Marker::new(&candidates.table, pointers);
        blocks.catch_up()?.iter().for_each(|(at, _)| marker.gone(*at));
        self.running(&mut marker, blocks)?;
        Ok(self.candidates(&marker))
    }

    /// Prepares a pass that sees one moment: blocks that were freed since the last one count as reached.
    ///
    /// # Errors
    /// If that can't be learnt.
    pub(crate) fn before_moment<'c, B: Blocks + ?Sized>(
        &self,
        blocks: &mut B,
        candidates: &'c Candidates,
    ) -> Result<Marker<'c>, Error> {
        let pointers = Pointers { mask: self.options.mask, unaligned: false };
        let mut marker = Marker::new(&candidates.table, pointers).doubting();
        blocks.catch_up()?.iter().for_each(|(at, _)| marker.gone(*at));
        Ok(marker)
    }

    /// Ends a pass that has seen one moment: what the recording did not have by then is waited for, and counts.
    ///
    /// # Errors
    /// As [`Self::first`].
    pub(crate) fn after_moment<B: Blocks + ?Sized>(
        &mut self,
        blocks: &mut B,
        mut marker: Marker<'_>,
        memory: &ScannedMemory,
    ) -> Result<Candidates, Error> {
        let changed = blocks.catch_up()?;
        changed.iter().for_each(|(at, _)| marker.gone(*at));
        marker.mark_doubted(&ranges_of(changed));
        self.read_again(&mut marker, memory)?;
        Ok(self.candidates(&marker))
    }

    /// Does what [`Self::again`] does while all threads are stopped, so that it sees one moment. What the recording does not have by then
    /// is waited for afterwards.
    ///
    /// # Errors
    /// As [`Self::first`], or if a thread does not stop.
    pub(crate) fn again_stopped<B: Blocks + ?Sized>(
        &mut self,
        blocks: &mut B,
        candidates: &Candidates,
    ) -> Result<Candidates, Error> {
        let mut marker = self.before_moment(blocks, candidates)?;
        let began = Instant::now();
        let freed = blocks.freed();
        let (memory, cpu) = isolated(|| {
            let before = thread_ns();
            let mut stopped = stop_all(self.reader.pid(), self.options.patience)?;
            let done = self.stopped(&mut marker, freed, &mut stopped.threads);
            let mut times = StopTimes::default();
            stopped.resume(&mut times);
            self.figures.stop = Some(times.longest);
            self.figures.longest_stop = self.figures.longest_stop.max(times.longest);
            // This is a thread of its own.
            done.map(|memory| (memory, thread_ns() - before))
        })?;
        self.end(began, cpu);
        self.after_moment(blocks, marker, &memory)
    }

    /// Returns the blocks that nothing reaches, of a process whose threads the caller holds. Pointers at odd addresses
    /// are rare, so only the blocks that no other reaches are looked for at those, too.
    ///
    /// # Errors
    /// As [`Self::first`].
    pub(crate) fn held<B: Blocks + ?Sized>(
        &mut self,
        blocks: &mut B,
        threads: &mut [Tracee],
    ) -> Result<Candidates, Error> {
        blocks.catch_up()?;
        let mut left = None;
        for unaligned in [false, true] {
            let (began, before) = (Instant::now(), thread_ns());
            let table = match left.take() {
                None => self.table(blocks)?,
                Some(Candidates { table, .. }) => table,
            };
            let pointers = Pointers { mask: self.options.mask, unaligned };
            let mut marker = Marker::new(&table, pointers);
            self.stopped(&mut marker, blocks.freed(), threads)?;
            left = Some(self.candidates(&marker));
            self.end(began, thread_ns() - before);
        }
        self.ended()?;
        // A thread that was killed anew has not waited, and other threads may have made use of the memory meanwhile.
        if !self.holds_all(threads) {
            return Err(Error::Moving(self.reader.pid()));
        }
        // All of it is one stop, by the one who holds the threads.
        self.figures.stop = Some(self.figures.took);
        self.figures.longest_stop = self.figures.took;
        Ok(left.unwrap_or_default())
    }

    /// Returns whether these are all threads that have the process's memory, and still stopped.
    fn holds_all(&mut self, threads: &mut [Tracee]) -> bool {
        self.sharers.look_again();
        let pid = self.reader.pid();
        let lives = |tid: &Pid| {
            let status = Status::of_thread(pid, *tid);
            status.is_ok_and(|s| s.field("State").is_some_and(|f| !f.starts_with(['Z', 'X'])))
        };
        let all = process::threads(pid).unwrap_or_default();
        let is_one = |tid: &Pid| threads.iter().any(|t| t.tid == *tid);
        let no_others = all.iter().filter(|tid| lives(tid)).all(is_one);
        no_others
            && self.sharers.others().is_empty()
            && threads.iter_mut().all(|t| t.state().is_ok())
    }

    fn stopped(
        &mut self,
        marker: &mut Marker<'_>,
        freed: &Freed,
        threads: &mut [Tracee],
    ) -> Result<ScannedMemory, Error> {
        let mut memory = self.memory()?;
        let threads = Threads::of_stopped(&self.reader, &memory, threads);
        self.take(marker, &threads, &Kept::of(self.reader.pid()));
        memory.leave_out(&threads.dead(&self.reader, &memory));
        self.read(marker, &memory, freed, 0, 0)?;
        self.read_again(marker, &memory)?;
        Ok(memory)
    }

    /// Marks what the process's memory and registers hold while it runs.
    fn running<B: Blocks + ?Sized>(
        &mut self,
        marker: &mut Marker<'_>,
        blocks: &mut B,
    ) -> Result<(), Error> {
        let (began, before) = (Instant::now(), thread_ns());
        let mut memory = self.memory()?;
        self.look_at_threads(marker, &mut memory)?;
        self.read(marker, &memory, blocks.freed(), self.figures.passes, self.options.max_cpu)?;
        let mut after = self.memory()?;
        self.look_at_threads(marker, &mut after)?;
        let new = ranges::without(&after.parts, &memory.parts);
        self.read_some(&new, |at, bytes| {
            marker.feed(at, bytes, bytes.len(), Words::Owned(blocks.freed()));
        })?;
        self.read_again(marker, &after)?;
        self.end(began, thread_ns() - before);
        // Memory that was changed during the pass may have been read before the change.
        let changed = blocks.catch_up()?;
        changed.iter().for_each(|(at, _)| marker.gone(*at));
        let changed = ranges::common(&ranges_of(changed), &after.parts);
        self.read_some(&changed, |at, bytes| marker.feed(at, bytes, bytes.len(), Words::Roots))?;
        self.read_again(marker, &after)?;
        self.ended()
    }

    /// Fails if time is up.
    pub(crate) fn in_time(&self) -> Result<(), Error> {
        if self.is_late() { Err(Error::Late(self.reader.pid())) } else { Ok(()) }
    }

    /// Counts a pass that has come to its end.
    pub(crate) fn end(&mut self, began: Instant, cpu_ns: u64) {
        let f = &mut self.figures;
        f.last = began.elapsed();
        f.took += f.last;
        f.cpu += Duration::from_nanos(cpu_ns);
        if f.passes == 0 {
            f.first_cpu = f.cpu;
        }
        f.passes += 1;
    }

    /// Returns the blocks that were not reached.
    fn candidates(&self, marker: &Marker<'_>) -> Candidates {
        let all = marker.table();
        let table = Table::of_some(all, |i| !marker.is_reached(i));
        let pointers = Pointers { mask: self.options.mask, unaligned: false };
        let (mut held, unknown) = marker.held();
        let ranges = unknown.iter().map(|i| all.block(*i)).map(|(start, end)| start..end);
        let ranges = ranges::joined(ranges.collect());
        ranges::read(
            &self.reader,
            &ranges,
            || !self.is_late(),
            |at, bytes| {
                for (k, w) in bytes.as_chunks::<WORD>().0.iter().enumerate() {
                    let w = usize::from_ne_bytes(*w) as u64;
                    let to = pointers.find(all, w);
                    let from = all.find(at + (k * WORD) as u64);
                    if let Some(to) = to.filter(|to| Some(*to) != from) {
                        held.set(to as usize);
                    }
                }
            },
        );
        let mut kept = Bits::new(table.len());
        let left = (0..all.len() as u32).filter(|i| !marker.is_reached(*i));
        left.enumerate().filter(|(_, i)| held.has(*i as usize)).for_each(|(n, _)| kept.set(n));
        Candidates { table, held: kept }
    }

    fn look_at_threads(
        &mut self,
        marker: &mut Marker<'_>,
        memory: &mut ScannedMemory,
    ) -> Result<(), Error> {
        let threads = Threads::look(&self.reader, memory, &mut self.sharers)?;
        self.take(marker, &threads, &Kept::of(self.reader.pid()));
        memory.leave_out(&threads.dead(&self.reader, memory));
        Ok(())
    }

    /// Counts registers, stacks, and what the kernel keeps.
    pub(crate) fn take(&mut self, marker: &mut Marker<'_>, threads: &Threads, kept: &Kept) {
        let table = marker.table();
        for t in &threads.all {
            marker.feed(0, &t.state.bytes, t.state.bytes.len(), Words::Roots);
            let (at, mut bytes) = (t.stack.0, t.stack.1.as_slice());
            // A stack that lies in a block ends with it.
            if let Some(b) = table.find(t.state.sp) {
                let len = table.block(b).1.saturating_sub(at).next_multiple_of(8) as usize;
                bytes = &bytes[..len.min(bytes.len())];
            }
            marker.feed(at, bytes, bytes.len(), Words::Roots);
        }
        kept.words.iter().for_each(|w| marker.root(*w));
        let f = &mut self.figures;
        f.rings = f.rings.max(kept.rings);
        f.threads = threads.all.len() as u64;
        f.unread_threads = f.unread_threads.max(threads.unread.len() as u64);
        f.longest_stop = f.longest_stop.max(threads.longest);
    }

    /// Reads all memory once.
    pub(crate) fn read(
        &mut self,
        marker: &mut Marker<'_>,
        memory: &ScannedMemory,
        freed: &Freed,
        order: u64,
        max_cpu: u32,
    ) -> Result<(), Error> {
        let mut pieces = memory.pieces(order);
        if order == 0 {
            // Pointers of blocks that are known to be reached need not be kept.
            let table = marker.table();
            let has_blocks =
                |p: &Range<u64>| table.first_behind(p.start) < table.first_behind(p.end);
            pieces.sort_by_cached_key(has_blocks);
        }
        // A word at an odd address may begin in one piece and end in the next.
        let pieces = pieces.into_iter().map(|piece| (memory.beyond(&piece), piece.end));
        let (is_first, mut marking) = (self.figures.passes == 0, 0);
        let clock = || if is_first { thread_ns() } else { 0 };
        self.read_pieces(pieces, memory.devices, max_cpu, |at, bytes, end| {
            let (len, before) = (bytes.len() as u64, clock());
            let len = len.min(end.saturating_sub(at)) as usize;
            marker.feed(at, bytes, len, Words::Owned(freed));
            marking += clock() - before;
        })?;
        if is_first {
            self.figures.first_mark = Duration::from_nanos(marking);
        }
        Ok(())
    }

    /// Reads pieces of memory, each with the end of what counts as read, and calls `take` with their contents and that
    /// end. `devices` is the number of bytes that were left out.
    ///
    /// # Errors
    /// If the process ends, or time is up.
    pub(crate) fn read_pieces(
        &mut self,
        pieces: impl IntoIterator<Item = (Range<u64>, u64)>,
        devices: u64,
        max_cpu: u32,
        mut take: impl FnMut(u64, &[u8], u64),
    ) -> Result<(), Error> {
        let throttle = Throttle::new(max_cpu);
        let (mut buffer, mut lost) = (Vec::new(), 0);
        for (piece, end) in pieces {
            let len = end - piece.start;
            let mut give = |at: u64, bytes: &[u8]| take(at, bytes, end);
            let missed = ranges::whole(&self.reader, piece, &mut buffer, &mut give).min(len);
            if missed > 0 {
                self.ended()?;
            }
            lost += missed;
            self.figures.scanned += len - missed;
            throttle.rest();
            self.in_time()?;
        }
        self.figures.unreadable = self.figures.unreadable.max(lost + devices);
        self.ended()
    }

    /// Reads ranges, which are in order.
    fn read_some(
        &mut self,
        ranges: &[Range<u64>],
        mut take: impl FnMut(u64, &[u8]),
    ) -> Result<(), Error> {
        let mut scanned = 0;
        ranges::read(
            &self.reader,
            ranges,
            || !self.is_late(),
            |at, bytes| {
                scanned += bytes.len() as u64;
                take(at, bytes);
            },
        );
        self.figures.scanned += scanned;
        self.in_time()
    }

    /// Reads blocks that were reached, and whose pointers were not kept.
    pub(crate) fn read_again(
        &mut self,
        marker: &mut Marker<'_>,
        memory: &ScannedMemory,
    ) -> Result<(), Error> {
        let (table, nothing) = (marker.table(), Freed::default());
        loop {
            let again = marker.take_again();
            if again.is_empty() {
                return Ok(());
            }
            let all = again.iter().map(|b| table.block(*b)).map(|(start, end)| start..end);
            let all = ranges::common(&ranges::joined(all.collect()), &memory.parts);
            self.read_some(&all, |at, bytes| {
                marker.feed(at, bytes, bytes.len(), Words::Owned(&nothing));
            })?;
        }
    }
}

/// Returns the memory of blocks, in order.
fn ranges_of(blocks: Vec<(u64, u64)>) -> Vec<Range<u64>> {
    let range = |(at, size): (u64, u64)| at..at.saturating_add(size.max(1));
    ranges::joined(blocks.into_iter().map(range).collect())
}
