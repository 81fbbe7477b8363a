//! The live blocks of a process, by its recording as it grows: what the scan asks.

use super::before::{BEFORE, Before, is_before};
use crate::failure::refused;
use anyhow::{Result, anyhow};
use prof_analyze::heap::{End, Watch};
use prof_analyze::{Follower, load::Op};
use prof_census::{Census, Options, Snapshot, own_words, take};
use prof_inject::Recorded;
use prof_os::{Pid, maps};
use prof_scan::{Block, Blocks, Boxed, Freed};
use prof_trace::ticks::Ticks;
use std::collections::HashSet;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time that the collector gets for two passes.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time for the search of words of jemalloc's own; those that are not found by then count as pointers.
const OWN: Duration = Duration::from_secs(2);
/// Interval at which its sign of life is looked at.
const LOOK: Duration = Duration::from_millis(1);
/// Least time between two signs of life that the collector gives while a write keeps it busy.
const BEATS: Duration = Duration::from_millis(450);

/// Facts of the recording beside the live blocks: the freed memory, and the latest changes.
#[derive(Default)]
pub(crate) struct Noted {
    freed: Freed,
    before: Before,
    changed: Vec<(u64, u64)>,
    /// Changes are wanted.
    on: bool,
    /// Addresses of blocks that were freed and are not known, while a census is taken: it may have them as live.
    unknown: Option<HashSet<u64>>,
}

impl Noted {
    fn change(&mut self, address: u64, size: u64) {
        if self.on {
            self.changed.push((address, size));
            // A process that allocates much uses the same addresses again and again.
            if self.changed.len() == self.changed.capacity() && self.changed.len() >= 1 << 16 {
                self.changed.sort_unstable();
                self.changed.dedup();
            }
        }
    }

    /// Counts the block from before the attach as freed that an address lies in, if there is one.
    fn free_before(&mut self, address: u64) {
        if let Some((address, size)) = self.before.free(address) {
            self.freed.add(address, size);
            self.change(address, size);
        }
    }
}

impl Watch for Noted {
    fn notes(&self, _: &Op) -> bool {
        true
    }

    fn begin(&mut self, op: &Op) {
        self.free_before(op.addr);
        self.freed.remove(op.addr, op.size);
        self.change(op.addr, op.size);
    }

    fn found(&mut self, _: u32, op: &Op) {
        self.change(op.addr, op.size);
    }

    fn end(&mut self, addr: u64, block: &prof_analyze::heap::Block, _: End) {
        self.freed.add(addr, block.size());
        self.change(addr, block.size());
    }

    fn unknown(&mut self, op: &Op) {
        self.free_before(op.addr);
        if let Some(unknown) = &mut self.unknown {
            unknown.insert(op.addr);
        }
    }

    fn before(&mut self, _: &Op) {}
}

/// A recording that is read as it grows.
pub(crate) struct Ledger {
    /// The process.
    pub(crate) pid: Pid,
    recorded: Recorded,
    pub(crate) follower: Follower<Noted>,
    /// Ticks from which on recording was on without a break.
    since: Ticks,
    /// Value of `since` when the census was taken. In a later pause, blocks from before the attach may have been freed.
    census_since: Ticks,
    nothing: Freed,
    /// The name of a function that the user has named as one of an allocator. What such a function allocates and frees
    /// inside is not recorded.
    named: Option<String>,
    /// Deadline of reading.
    pub(crate) until: Instant,
}

impl Ledger {
    /// Opens the recording of a process.
    ///
    /// # Errors
    /// If the process is not recorded, recording is off, or the recording can't be read.
    pub(crate) fn open(pid: Pid, until: Instant) -> Result<Self> {
        let not = || {
            refused(format!(
                "process {pid} is not recorded, and only blocks that are recorded are judged: `prof attach {pid}` \
                 first, and let it run"
            ))
        };
        let recorded = Recorded::open(pid).map_err(|e| match e {
            prof_inject::Error::Refused(prof_inject::Refusal::NotRecorded(_)) => not(),
            e => refused(e.to_string()),
        })?;
        if !recorded.is_attached() {
            return Err(not());
        }
        if !recorded.is_on().unwrap_or(false) {
            return Err(refused(format!(
                "recording of process {pid} is paused, so that its blocks are not known: `prof resume {pid}` first"
            )));
        }
        let named = recorded.user_named();
        let path: PathBuf = recorded.path();
        // Each extent of jemalloc's has the address of its first block.
        let timeout = until.saturating_duration_since(Instant::now()).min(OWN);
        let own: Arc<[_]> = own_words(pid, timeout).map_err(|e| refused(e.to_string()))?.into();
        let freed = Freed::from(heap_of(pid).map_or(u64::MAX, |h| h.start)).with_own(own.clone());
        let noted = Noted { freed, ..Noted::default() };
        let follower = Follower::observed(&path, noted)?;
        Ok(Self {
            pid,
            recorded,
            follower,
            since: Ticks::ZERO,
            census_since: Ticks::ZERO,
            nothing: Freed::default().with_own(own),
            named,
            until,
        })
    }

    /// Opens the recording of a process of whose blocks something is to be proved.
    ///
    /// # Errors
    /// As [`Self::open`], and if blocks and frees may be missing in the recording.
    pub(crate) fn to_prove(pid: Pid, until: Instant) -> Result<Self> {
        let ledger = Self::open(pid, until)?;
        match &ledger.named {
            None => Ok(ledger),
            Some(name) => Err(refused(format!(
                "a function of process {pid} is named as an allocator's ({name}), and what such a function allocates and frees \
                 inside is not recorded, so that nothing can be proved of blocks: `prof detach {pid}`, and attach without \
                 --alloc-fn, --realloc-fn and --free-fn"
            ))),
        }
    }

    /// Adds the blocks from before the attach: all threads are stopped for a moment, in which the heap is walked.
    ///
    /// # Errors
    /// If the walk can't be exact, or fails.
    pub(crate) fn add_census(&mut self, snapshot: Snapshot) -> Result<Census> {
        self.catch_up()?;
        if !self.follower.meta().target.capture().is_everything() {
            return Err(refused(format!(
                "the recording of process {} leaves blocks out (a sample, --min-size, --max-size), and so the frees of \
                 blocks from before the attach: attach without that for --census",
                self.pid
            )));
        }
        self.census_since = self.since;
        let noted = self.follower.observer_mut();
        (noted.on, noted.changed, noted.unknown) = (true, Vec::new(), Some(HashSet::new()));
        let timeout = self.until.saturating_duration_since(Instant::now());
        let options = Options { snapshot, patience: PATIENCE, timeout };
        let census = take(self.pid, &options).map_err(|e| refused(e.to_string()))?;
        self.check(&census, snapshot)?;
        self.catch_up()?;
        // A block that has begun or ended meanwhile may be none that the walk has seen.
        let noted = self.follower.observer_mut();
        let mut changed: Vec<u64> = noted.unknown.take().unwrap_or_default().into_iter().collect();
        changed.extend(noted.changed.drain(..).map(|(at, _)| at));
        changed.sort_unstable();
        noted.on = false;
        // An aligned block may begin later than its place.
        let shifted = census.mimallocs.iter().any(|m| m.shifted.blocks > 0);
        let recorded = self.follower.blocks().filter(|_| shifted).map(|(at, _)| at);
        let mut recorded: Vec<u64> = recorded.collect();
        recorded.sort_unstable();
        let is_recorded = |at: u64, size: u64| {
            self.follower.block_at(at).is_some() || has_one(&recorded, at, size)
        };
        let was_there = |at: u64, size: u64| !has_one(&changed, at, size) && !is_recorded(at, size);
        let blocks = census.blocks().map(|b| (b.address, b.size));
        let blocks = blocks.filter(|(at, size)| was_there(*at, *size));
        let before = Before::of(blocks.collect());
        self.follower.observer_mut().before = before;
        Ok(census)
    }

    /// Refuses a census by which a free block might count as one that the program has lost.
    fn check(&self, census: &Census, snapshot: Snapshot) -> Result<()> {
        let pid = self.pid;
        if !census.has_heap() {
            return Err(refused(format!(
                "process {pid} has no heap of glibc's, jemalloc's, mimalloc's, tcmalloc's or musl's, so that the blocks from before the \
                 attach are not known"
            )));
        }
        if census.stop.is_none() {
            let how = match snapshot {
                Snapshot::Never => "give --snapshot auto or --snapshot stop",
                _ => {
                    "the heap is large, or a thread did not stop: --snapshot stop allows a longer stop"
                }
            };
            return Err(refused(format!(
                "blocks from before the attach are known only of a moment in which all threads of process {pid} are \
                 stopped; {how}"
            )));
        }
        if !census.lost.is_nothing() {
            return Err(refused(format!(
                "the heap of process {pid} could not be walked as a whole (`prof heap {pid}` says why), so that free \
                 blocks can't be told from those that the program has"
            )));
        }
        Ok(())
    }

    /// Returns the blocks from before the attach, if no pause has made them uncertain.
    fn before(&self) -> Option<&Before> {
        Some(&self.follower.observer().before).filter(|_| self.since == self.census_since)
    }

    /// Returns the number of the stack of a group of blocks.
    pub(crate) fn node_of(&self, group: u32) -> u32 {
        if group == BEFORE { BEFORE } else { self.follower.node_of(group) }
    }

    /// Forgets changes, and notes none until the next call of [`Blocks::catch_up`].
    pub(crate) fn rest(&mut self) {
        let noted = self.follower.observer_mut();
        (noted.on, noted.changed) = (false, Vec::new());
    }

    /// Waits until the collector has written all that happened before a moment: a pass that has begun after it is over
    /// when another one begins. Its sign of life changes with each pass, and also every half second beside.
    fn wait_for(&self, ticks: Ticks) -> Result<()> {
        let began = Instant::now();
        let (mut last, mut seen, mut first) = (Ticks::ZERO, 0u32, None);
        loop {
            let beat = Ticks(self.recorded.heartbeat()?);
            if beat != last && beat.wrapping_since(ticks).cast_signed() > 0 {
                (last, seen) = (beat, seen + 1);
                let since = first.get_or_insert_with(Instant::now).elapsed();
                let others = 1 + (since.as_millis() / BEATS.as_millis()) as u32;
                if seen >= 2 + others {
                    return Ok(());
                }
            }
            if prof_os::process::has_ended(self.pid) {
                return Err(prof_inject::Error::Gone(self.pid).into());
            }
            if Instant::now() >= self.until {
                return Err(self.late());
            }
            if began.elapsed() > PATIENCE || !self.recorded.collector_lives() {
                return Err(anyhow!(
                    "the collector of process {} has ended or does not answer, so that its blocks are not known",
                    self.pid
                ));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn late(&self) -> anyhow::Error {
        anyhow!(
            "the recording of process {} was not read within the time limit; give more with --timeout",
            self.pid
        )
    }

    /// Reads up to the present.
    fn catch_up(&mut self) -> Result<()> {
        let done = self.read_on();
        // A detach unmaps the memory that is read here, piece by piece.
        if done.is_err() && !self.recorded.is_attached() && !prof_os::process::has_ended(self.pid) {
            return Err(refused(format!(
                "the recording of process {pid} has ended meanwhile, so that its blocks are not known: `prof attach \
                 {pid}` begins another",
                pid = self.pid
            )));
        }
        done
    }

    fn read_on(&mut self) -> Result<()> {
        let end = heap_of(self.pid).map_or(0, |h| h.end);
        self.follower.observer_mut().freed.end_at(end);
        let now = self.recorded.now();
        self.wait_for(now)?;
        let until = self.until;
        if !self.follower.poll_until(now, || Instant::now() < until)? {
            return Err(self.late());
        }
        let meta = self.follower.meta();
        if meta.is_aggregated() {
            return Err(refused(format!(
                "the recording of process {pid} has only figures by stack, and no blocks ({by}): `prof detach {pid}`, \
                 and attach without {by}",
                pid = self.pid,
                by = meta.figures_by()
            )));
        }
        if meta.stripped.is_some() {
            return Err(refused(format!(
                "the recording of process {pid} has events only when they are some time old (--cull), so that a block \
                 that was just freed would count as live: `prof detach {pid}`, and attach without --cull",
                pid = self.pid
            )));
        }
        let c = &meta.counters;
        let lost =
            c.lost + c.reentered + c.damaged_bytes + meta.bad_chunks + meta.epochs.len() as u64;
        if lost > 0 {
            return Err(anyhow!(
                "events of the recording were lost (prof info says how many), so that nothing can be proved of blocks: \
                 `prof detach {}`, and attach again",
                self.pid
            ));
        }
        self.since = match meta.parts(Ticks::MAX).as_slice() {
            [] | [_] => Ticks::ZERO,
            [.., last] => last.start,
        };
        Ok(())
    }
}

/// Returns the addresses of the heap that grows by `brk`.
fn heap_of(pid: Pid) -> Option<Range<u64>> {
    let maps = maps::of(pid).ok()?;
    let mut parts = maps.iter().filter(|m| m.name == b"[heap]");
    let first = parts.next()?;
    Some(first.start.0..parts.next_back().unwrap_or(first).end.0)
}

/// Returns whether one of the addresses, which are in order, is that of a place or lies in it.
fn has_one(addresses: &[u64], at: u64, size: u64) -> bool {
    let next = addresses.partition_point(|a| *a < at);
    addresses.get(next).is_some_and(|a| *a == at || a - at < size)
}

/// Makes an error of one that keeps what the end of the process is known by.
fn boxed(e: anyhow::Error) -> Boxed {
    e.into()
}

impl Blocks for Ledger {
    fn catch_up(&mut self) -> Result<Vec<(u64, u64)>, Boxed> {
        Ledger::catch_up(self).map_err(boxed)?;
        let noted = self.follower.observer_mut();
        noted.on = true;
        Ok(std::mem::take(&mut noted.changed))
    }

    fn catch_up_within(&mut self, most: Duration) -> Result<bool, Boxed> {
        let all = self.until;
        self.until = all.min(Instant::now() + most);
        let done = Ledger::catch_up(self);
        let is_late = Instant::now() >= self.until;
        self.until = all;
        match done {
            Ok(()) => Ok(true),
            // The follower keeps the events that it has read by then.
            Err(_) if is_late && Instant::now() < all => Ok(false),
            Err(e) => Err(boxed(e)),
        }
    }

    fn each(&self, take: &mut dyn FnMut(u64, u64)) {
        for (address, b) in self.follower.blocks() {
            // While recording was off, blocks may have been freed.
            if b.time >= self.since {
                take(address, b.size());
            }
        }
        if let Some(before) = self.before() {
            before.each().for_each(|(address, size)| take(address, size));
        }
    }

    fn get(&self, address: u64) -> Option<Block> {
        let recorded = self.follower.block_at(address);
        let recorded = recorded.map(|b| {
            // The recording may have a census of its own.
            let is_found = is_before(self.follower.node_of(b.group));
            let group = if is_found { BEFORE } else { b.group };
            Block { address, size: b.size(), time: b.time, group }
        });
        let start = self.follower.meta().target.start_ticks;
        let before = || self.before()?.get(address);
        recorded
            .or_else(|| before().map(|size| Block { address, size, time: start, group: BEFORE }))
    }

    fn freed(&self) -> &Freed {
        // A block that is not recorded may lie where a recorded block was freed.
        let all = self.follower.meta().target.capture().is_everything() && self.named.is_none();
        if all && self.since == Ticks::ZERO {
            &self.follower.observer().freed
        } else {
            &self.nothing
        }
    }
}
