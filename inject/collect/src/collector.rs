//! The collector's loop.

use crate::Error;
use crate::calls::Files;
use crate::clock::Clock;
use crate::counters::Checked;
use crate::drain::Drain;
use crate::epochs::Epochs;
use crate::fineness::Chooser;
use crate::folding::Folding;
use crate::heart::Heart;
use crate::limits::{Guard, Limits};
use crate::mappings::Mapped;
use crate::maps::Maps;
use crate::modules::Modules;
use crate::output::Output;
use crate::pace::Pace;
use crate::smaps::Smaps;
use crate::target::{Watched, switch_off};
use crate::threads::Threads;
use crate::tree::Tree;
use crate::watch::Watch;
use prof_os::Pid;
use prof_os::pid_namespace::PidNamespace;
use prof_os::process::start_time;
use prof_trace::chunk;
use prof_trace::pack::Compress;
use prof_trace::records::{Counters, End, Pass, Toggle, kind};
use prof_trace::shared::{FUNCTIONS, Kind, Shared, state};
use prof_trace::sieve::Sieve;
use prof_trace::ticks::Ticks;
use prof_trace::values::text::duration;
use std::fs::File;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

mod bounds;
mod hold;
mod memory_stats;
mod passes;
mod requests;
mod scans;
mod slow;
mod toggles;

use passes::Part;
use toggles::Toggles;

/// Time after which the target's workers are looked for first.
const SECOND: Duration = Duration::from_secs(1);
/// Longest wait for the first look at the target's mappings.
const FIRST_LOOK: Duration = Duration::from_millis(250);
/// Time that a process whose memory is gone may take to end; if it still runs then, it has called exec.
const GONE_WAIT: Duration = Duration::from_millis(200);
/// Shortest interval between two searches for stacks, which are due when a thread appears.
const STACKS_EVERY: Duration = Duration::from_millis(50);
/// Longest interval between two searches for the target's workers; the first ones are a second, two, four ... apart.
const FAMILY_GAP: Duration = Duration::from_secs(30);
/// A look at the target's memory that is not older than this need not be repeated at the end.
const LOOKED: Duration = Duration::from_secs(10);

/// Why a recording that was finished in place of a dead collector ends where it does.
const REST: &str =
    "its collector had died, and not all that was in memory fits (--max-disk, --keep-free)";

/// The result of a finished recording.
#[derive(Debug)]
pub struct Ended {
    /// Why the recording ended, see [`End::reason`].
    pub reason: String,
    /// prof was taken out of the target, which goes on.
    pub detached: bool,
    /// The error that kept the recording from being completed.
    pub failure: Option<std::io::Error>,
    /// Number of recorded events.
    pub events: u64,
    /// Number of events for which there was no room in the file.
    pub unwritten: u64,
    /// Number of events that were to be in the file and are not: they could not be read, or were cut off.
    pub missing: u64,
    /// Length of the recording in bytes.
    pub bytes: u64,
    /// Whether the target has ended, but another process shares its memory, which still exists.
    pub memory_lives: bool,
}

/// State of the ring's mapping in the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// The ring is mapped.
    There,
    /// The recorded program is gone, or the process has called exec.
    Gone,
    /// Another process has removed prof from the target.
    Unmapped,
}

/// Drains the ring of one target into one recording.
#[derive(Debug)]
pub struct Collector<'a> {
    shared: Shared<'a>,
    epochs: Epochs,
    target: Watched,
    maps: Option<Maps>,
    mapped: Mapped,
    smaps: Smaps,
    ring_addr: u64,
    drain: Drain,
    threads: Threads,
    tree: Tree,
    modules: Modules,
    files: Files,
    watch: Watch,
    out: Output,
    pass: u64,
    /// The look at the ring that is being read.
    reading: Option<passes::Reading>,
    /// Ticks of the last pass.
    passed: Ticks,
    /// Events from before these ticks may follow, as another collector died in the midst of that pass.
    late: Option<Ticks>,
    toggles: Toggles,
    pace: Pace,
    stacks_read: Instant,
    family_next: Instant,
    family_gap: Duration,
    maps_took: Duration,
    /// Number of the target's seccomp filters when the hook was told which system calls it may make.
    filters: u32,
    failed: bool,
    guard: Guard,
    /// Drops the oldest part of the recording, if that is wanted.
    folding: Option<Folding>,
    /// The bounds that are wanted, and the length of the recording, while it is folded to fit them.
    eased: Option<(Limits, u64)>,
    /// Number of marks that were written.
    marks: usize,
    on_failure: Option<Callback>,
    /// Number of dump signals that were passed on.
    dumps: u64,
    on_dump: Option<OnDump>,
    heart: Option<Heart>,
    counted: Checked,
    /// Whether the recording was continued, so that counts do not include its earlier events.
    continued: bool,
    /// Whether events that are left are lost for another reason than the recording's bounds.
    drops_rest: bool,
    /// Number of these earlier events; `None`: not known.
    recorded: Option<u64>,
    fineness: Chooser,
    /// End of the last look at the target's memory that a detach had asked for.
    looked: Option<Instant>,
    /// When dump signals were passed on last.
    dumped: Option<Instant>,
    /// A scan that is being taken into the recording.
    incoming: Option<scans::Incoming>,
    /// The process that is to hand over a census before events are read, and its start time.
    awaits: Option<(Pid, u64)>,
}

/// The process of a collector. One that has ended has no process ID, as another may have that by now.
struct Process {
    pid: Pid,
    target: Watched,
    maps: Option<Maps>,
}

/// A function to be called once.
struct Callback(Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Callback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Callback")
    }
}

/// A function to be called with a number of dump signals.
struct OnDump(Box<dyn FnMut(u64) + Send>);

impl std::fmt::Debug for OnDump {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnDump")
    }
}

/// Returns whether a malloc other than glibc's is recorded.
fn has_other_allocator(shared: &Shared) -> bool {
    let n = (shared.control().functions.load(Relaxed) as usize).min(FUNCTIONS);
    (0..n).any(|i| shared.kind_and_headers(i) == Some((Kind::Malloc as u32, 0)))
}

impl Collector<'static> {
    /// Creates the collector of process `pid`, which appends to `file`; that must end with a whole chunk. Publishes the
    /// stacks to the hook, and the heartbeat from now on.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn new(pid: Pid, shared: Shared<'static>, file: File) -> Result<Self, Error> {
        let mut all = Self::of_copy(pid, shared, file)?;
        all.begin_to_live();
        Ok(all)
    }

    /// Publishes the heartbeat from now on.
    pub(crate) fn begin_to_live(&mut self) {
        self.heart = Some(Heart::start(self.shared, Clock::of(&self.shared)));
    }
}

impl<'a> Collector<'a> {
    /// Creates the collector of a copy of the ring of process `pid`, which appends to `file`; that must end with a whole
    /// chunk. It publishes no heartbeat, which nobody would see.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn of_copy(pid: Pid, shared: Shared<'a>, file: File) -> Result<Self, Error> {
        let (target, maps) = (Watched::new(pid)?, Maps::open(pid).ok());
        Self::with(Process { pid, target, maps }, shared, file)
    }

    /// Creates the collector of the memory of a process that has ended, which appends to `file`; that must end with a whole
    /// chunk. `maps` are the process's last mappings that are known, and `root` is its root folder, if it saw other files than
    /// this process.
    ///
    /// # Errors
    /// If the file can't be written to.
    pub(crate) fn of_ended(
        shared: Shared<'a>,
        file: File,
        maps: Maps,
        root: Option<File>,
    ) -> Result<Self, Error> {
        let (target, maps) = (Watched::ended(root), Some(maps.kept()));
        Self::with(Process { pid: Pid::NONE, target, maps }, shared, file)
    }

    fn with(process: Process, shared: Shared<'a>, file: File) -> Result<Self, Error> {
        let Process { pid, target, maps } = process;
        let clock = Clock::of(&shared);
        let ring_addr = shared.control().ring_addr.load(Relaxed);
        let now = Instant::now();
        let mut all = Self {
            shared,
            epochs: Epochs::new(clock),
            target,
            maps,
            mapped: Mapped::new(),
            smaps: Smaps::open(pid),
            ring_addr,
            drain: Drain::new(&shared),
            threads: Threads::new(pid),
            tree: Tree::new(),
            modules: Modules::new(),
            files: Files::default(),
            watch: Watch::default(),
            out: Output::new(file)?,
            pass: 0,
            reading: None,
            passed: Ticks::ZERO,
            late: None,
            toggles: Toggles::default(),
            pace: Pace::new(),
            stacks_read: now,
            family_next: now,
            family_gap: SECOND,
            maps_took: Duration::ZERO,
            filters: 0,
            failed: false,
            guard: Guard::new(Limits::NONE),
            folding: None,
            eased: None,
            marks: 0,
            on_failure: None,
            dumps: 0,
            on_dump: None,
            heart: None,
            counted: Checked::default(),
            continued: false,
            drops_rest: false,
            recorded: Some(0),
            fineness: Chooser::new(now),
            looked: None,
            dumped: None,
            incoming: None,
            awaits: None,
        };
        all.filters = all.most_filters();
        all.look_at_maps();
        all.modules.note_cwd(&all.target);
        let c = shared.control();
        let me = Pid::this();
        c.collector_start.store(start_time(me).unwrap_or(0), Release);
        c.collector_ns.store(PidNamespace::own().as_raw(), Release);
        c.collector_pid.store(me.as_u32(), Release);
        Ok(all)
    }

    /// Sets a function that is called at the first error in writing, which makes recording pointless, or when the recording
    /// has reached a bound.
    pub fn on_failure(&mut self, f: impl FnOnce() + Send + 'static) {
        self.on_failure = Some(Callback(Box::new(f)));
    }

    /// Sets a function that is called when dump signals have come, with their number. All that was recorded before them is
    /// in the file by then.
    pub fn on_dump(&mut self, f: impl FnMut(u64) + Send + 'static) {
        self.on_dump = Some(OnDump(Box::new(f)));
    }

    /// Sets the compression of events, which is applied when there is time for it. The default is none.
    pub fn set_compress(&mut self, how: Compress) {
        self.out.set_compress(how);
    }

    /// Lets this process move to a session of its own when it falls behind: it is a process made for collecting.
    pub fn let_leave_session(&mut self) {
        self.pace.let_leave();
    }

    /// Sets what decides which events are written.
    pub fn set_sieve(&mut self, sieve: Box<dyn Sieve>) {
        self.tree.remember_all(sieve.most_nodes());
        self.out.set_sieve(sieve);
    }

    /// Reads the target's memory statistics before anything is recorded: recorded blocks can't account for what is
    /// resident now. If the kernel takes long to answer, as for a very large process, this does not wait.
    pub fn look_before(&mut self) {
        self.look_at_process();
        self.look_at_memory(false);
        self.smaps.wait(FIRST_LOOK);
        self.look_at_memory(false);
        // Whoever finishes the recording if this process is killed at once has to know its bounds.
        self.out.flush();
    }

    /// Continues a recording, given its last pass, its number of toggles, and the offset of its last epoch.
    pub(crate) fn continue_from(
        &mut self,
        last: Option<&Pass>,
        toggles: u64,
        offset: u64,
        last_file: u32,
    ) {
        self.files.continue_from(last_file);
        // The number of filters at the attach is not known.
        self.filters = 0;
        self.pass = last.map_or(0, |p| p.number + 1);
        self.late = last.map(|p| p.ticks);
        self.passed = self.late.unwrap_or_default();
        let count = self.shared.control().toggle_count.load(Acquire);
        self.toggles.continue_from(toggles, count);
        self.epochs.continue_from(last, offset);
        self.continued = true;
        // Whoever asked for reports of the collector before does not wait for them any more.
        self.dumps = self.shared.control().dumps_asked.load(Acquire);
    }

    /// Sets the number of events that the recording has from before it was continued, if it is known.
    pub(crate) fn set_recorded(&mut self, events: Option<u64>) {
        self.recorded = events;
    }

    pub(crate) fn drain_mut(&mut self) -> (&mut Drain, &mut Tree, &mut Output) {
        (&mut self.drain, &mut self.tree, &mut self.out)
    }

    /// Collects until the target has ended, prof has detached, or `stop` is set.
    pub fn run(&mut self, stop: &AtomicBool) -> Ended {
        self.look_at_memory(false);
        self.hold(stop);
        loop {
            let state = self.shared.control().state.load(Acquire);
            let part = self.part(false);
            let mut busy = part.is_busy();
            self.answer();
            self.write_mark();
            busy |= self.take_scan();
            busy |= self.fold();
            self.answer_dumps();
            if state == state::DETACHED {
                return self.finish("detached");
            }
            if stop.load(Relaxed) {
                return self.stop();
            }
            if self.pace.is_time_to_bury() {
                // The next pass returns the segments of ended threads to the ring: it should not wait.
                busy |= self.bury();
            }
            let memory = match self.pace.is_second() {
                true => self.every_second(),
                false if self.target.has_left() => Memory::Gone,
                false if self.mapped.is_due(self.stacks_read, self.maps_took) => {
                    self.look_at_maps()
                }
                false => Memory::There,
            };
            let sleep = if busy { Duration::ZERO } else { self.pace.sleep() };
            let waits = part == Part::Held || self.smaps.asked().is_some();
            let sleep = if waits { sleep.min(memory_stats::TICK) } else { sleep };
            // A process that has memory again runs another program, which may end during the wait.
            let is_exec = memory == Memory::Gone && !self.target.is_ending();
            if self.target.wait(if memory == Memory::Gone { GONE_WAIT } else { sleep }) {
                let how = if is_exec { "exec".into() } else { self.target.how_it_ended() };
                let memory_lives = self.target.memory_lives();
                return Ended { memory_lives, ..self.finish(&how) };
            }
            match memory {
                Memory::There => {}
                Memory::Gone if self.target.is_ending() => {}
                Memory::Gone => return self.finish("exec"),
                Memory::Unmapped => return self.finish("detached"),
            }
        }
    }

    /// Switches recording off, as nobody will collect any more, and finishes.
    fn stop(&mut self) -> Ended {
        self.look_while_on();
        if let Some(mem) = self.target.mem() {
            let _ = switch_off(mem, &self.shared);
            // Threads that have already seen the flag on finish their events.
            std::thread::sleep(Duration::from_millis(5));
        }
        self.finish("stopped")
    }

    /// Reports, in the recording and in the log, that the counter has gone back.
    fn put_epochs(&mut self) {
        let per_sec = self.epochs.clock().ticks_per_sec() as f64;
        for e in self.epochs.begun() {
            let back = duration((e.back as f64 / per_sec * 1e9) as u64);
            log::warn!(
                "the machine's counter went back by {back} (was it suspended, or moved to another host?); times in the recording go on"
            );
            self.out.put(kind::EPOCH, &e.encode());
        }
    }

    fn look_at_toggles(&mut self) {
        let c = self.shared.control();
        // The toggles that the look before has read are in the file by now.
        self.toggles.are_written(&c.toggles);
        for taken in self.toggles.take(&c.toggles, c.toggle_count.load(Acquire)) {
            let ticks = taken.time.map_or(self.passed, |time| self.epochs.recorded(Ticks(time)));
            self.out.put(kind::TOGGLE, &Toggle { ticks, on: taken.on.into() }.encode());
        }
    }

    fn put_counters(&mut self) {
        let t = self.counters();
        self.out.put(kind::COUNTERS, &t.encode());
    }

    /// Returns the hook's counters, as far as they are plausible, and the collector's own.
    pub fn counters(&mut self) -> Counters {
        let mut t = self.counted.totals(&self.shared);
        t.lost = t.lost.saturating_add(self.out.lost());
        t.truncated = t.truncated.wrapping_add(self.drain.truncated);
        t.damaged_bytes = self.drain.damaged;
        t
    }

    /// Returns whether the recording can't be written any more.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Reads the rest of the ring, and writes the end.
    pub fn finish(&mut self, reason: &str) -> Ended {
        // Two passes, as the first may leave a segment to the second (see `Drain::pass`).
        self.pass(false);
        if self.looked.is_none_or(|at| at.elapsed() > LOOKED) {
            self.look_at_memory(true);
        }
        let begun = self.epochs.clock().now();
        if self.maps.as_mut().is_some_and(Maps::read) {
            self.note_mappings(begun);
        }
        self.pass(true);
        if let Some(folding) = self.folding.take() {
            folding.ended();
        }
        self.modules.look(&self.shared, &self.target, self.epochs.clock().now(), &mut self.out);
        self.modules.finish(&mut self.out);
        self.drain.flush(&self.shared, &mut self.out);
        self.out.end_sieve();
        let mut t = self.counters();
        let [unwritten, missing] = self.losses(t.events);
        let lost_before = t.lost.saturating_sub(self.out.lost());
        t.lost = lost_before.saturating_add(unwritten).saturating_add(missing);
        let detached = reason == "detached";
        let reason = match self.out.failure() {
            Some(e) => format!("stopped: {e}"),
            None => match &self.guard.reached {
                Some(why) => format!("{}{why}", End::LIMIT),
                None if self.continued && self.out.lost() > 0 && !self.drops_rest => {
                    format!("{}{REST}", End::LIMIT)
                }
                None => reason.to_owned(),
            },
        };
        let mut last = Vec::new();
        chunk::put(&mut last, kind::COUNTERS, &t.encode());
        let end = End { ticks: self.epochs.clock().now(), reason: reason.clone() };
        chunk::put(&mut last, kind::END, &end.encode());
        self.out.put_last(&last);
        self.pass_on_dumps();
        let failure = self.out.take_failure();
        let bytes = self.out.len();
        let events = self.drain.events.saturating_sub(self.out.lost());
        let memory_lives = false;
        Ended { reason, detached, failure, events, unwritten, missing, bytes, memory_lives }
    }
}
