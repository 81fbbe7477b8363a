//! Reads the state of a process's recording from outside.

use crate::budget;
use crate::heart::BEAT;
use crate::ring_copy::{RingCopy, unreadable};
use crate::{Clock, Error, totals};
use prof_os::Pid;
use prof_os::pid_namespace::{self, PidNamespace, Place};
use prof_os::process::{self, is_at_work};
use prof_trace::capture::Capture;
use prof_trace::foreign::Foreign;
use prof_trace::records::Counters;
use prof_trace::shared::{Control, FUNCTIONS, Kind, SILENCE_S, Shared, Stable, flags, state};
use prof_trace::ticks::Ticks;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

/// The state of a recorded process at a moment.
#[derive(Clone, Debug)]
pub struct Peek {
    /// Process ID.
    pub pid: Pid,
    /// Attach state, see [`state`].
    pub state: u32,
    /// Recording is on.
    pub recording: bool,
    /// The recording, as an absolute path in the namespace of `prof attach`.
    pub path: PathBuf,
    /// The process records in memory that it has from its parent, and its collector is to come: the recording of its parent, or
    /// of another ancestor, as it says itself.
    pub heir_of: Option<PathBuf>,
    /// Children get memory in which they record from their fork on.
    pub makes_heirs: bool,
    /// The collector's process ID and start time. The ID is that of another pid namespace if the collector is out of sight.
    pub collector: (Pid, u64),
    /// Whether the collector's process exists.
    pub collector_alive: bool,
    /// Whether the collector runs in a pid namespace that can't be seen from here, so that only its heartbeat tells whether
    /// it lives. That may be older than it takes the collector to die.
    pub is_out_of_sight: bool,
    /// Time since the collector's last heartbeat: at most half a second, if it gets a processor.
    pub heartbeat_age: Duration,
    /// The hook has switched recording off, as there was no collector.
    pub orphaned: bool,
    /// The recorded part of the blocks.
    pub capture: Capture,
    /// The toggle signal; 0: none.
    pub signal: u32,
    /// The signal at which a report is written; 0: none.
    pub dump_signal: u32,
    /// The hook's counters.
    pub counters: Counters,
    /// Time that the hook has taken for recorded events in all threads, if there is a budget; else it is not measured.
    pub hook_time: Option<Duration>,
    /// Number of modules for which, or for whose unwind tables, there was no room.
    pub unknown_modules: u32,
    /// Name and module of the hooked functions.
    pub functions: Vec<(String, String)>,
    /// The attached build of prof, if it has another layout. Then only events are known of the counters, and `capture`
    /// is not known.
    pub foreign: Option<Foreign>,
    /// Hooked functions, recorded or not, with the code that other tools may have changed.
    pub probes: Vec<Probe>,
}

/// The bits of `Control::flags` without which the hook makes no memory for children.
const MAKES_HEIRS: u32 = flags::HEIRS | flags::SYSCALLS;

/// A hooked function and its code, to detect uprobes of other tools.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Name of the function.
    pub function: String,
    /// Present code of the function, from the entry to the end of the patch.
    pub code: Vec<u8>,
    /// Address of that code.
    pub addr: u64,
    /// Offset of the patch in the code.
    pub offset: usize,
    /// The bytes of the patch.
    pub patch: Vec<u8>,
    /// The original bytes.
    pub before: Vec<u8>,
}

impl Peek {
    /// Reads the state of process `pid`; `None` if it is not recorded.
    ///
    /// # Errors
    /// If its memory can't be read.
    pub fn of(pid: Pid) -> Result<Option<Self>, Error> {
        let mut ring = match RingCopy::of(pid) {
            Ok(ring) => ring,
            Err(Error::NoRing) => return Ok(None),
            Err(Error::OtherLayout { addr, .. }) => return crate::foreign::peek(pid, addr),
            Err(e) => return Err(e),
        };
        // prof's own processes map the ring, too.
        if ring.shared().control().ring_addr.load(Relaxed) != ring.addr() {
            return Ok(None);
        }
        match ring.copy_control().map_err(|e| unreadable(pid, ring.addr(), e)) {
            Err(Error::NoRing) => return Ok(None),
            copied => copied?,
        }
        let shared = ring.shared();
        let c = shared.control();
        let mut flag = [0u8; 4];
        let flag_addr = c.flag_addr.load(Relaxed);
        let read = flag_addr != 0 && ring.mem().read_exact_at(&mut flag, flag_addr).is_ok();
        let clock = Clock::of(&shared);
        let collector = collector(pid, c, clock);
        let mut counters = totals(&shared);
        let (functions, calls) = functions(&shared, &counters.calls);
        counters.calls = calls;
        let has_budget = c.flags.load(Relaxed) & flags::COSTS != 0;
        let probes = probes(&shared, |at, to| ring.mem().read_exact_at(to, at).is_ok());
        Ok(Some(Self {
            pid,
            state: c.state.load(Acquire),
            recording: read && u32::from_ne_bytes(flag) == 1,
            path: path_of(c, (c.path_len as usize).min(c.path.len())),
            heir_of: heir_of(c),
            makes_heirs: c.flags.load(Relaxed) & MAKES_HEIRS == MAKES_HEIRS,
            collector: collector.id,
            collector_alive: collector.lives,
            is_out_of_sight: collector.by_heartbeat,
            heartbeat_age: heartbeat_age(c, clock),
            foreign: None,
            orphaned: c.orphaned.load(Relaxed) != 0,
            capture: capture_of(c),
            signal: c.signal.load(Relaxed),
            dump_signal: c.dump_signal.load(Relaxed),
            unknown_modules: c
                .modules_lost
                .load(Relaxed)
                .saturating_add(c.tables_lost.load(Relaxed)),
            hook_time: has_budget.then(|| budget::hook_time(&shared, clock, counters.events)),
            counters,
            functions,
            probes,
        }))
    }

    /// Reads the state, as [`Peek::of`] does. If only the heartbeat tells whether the collector lives, this waits for the next
    /// one, or until it stays away.
    ///
    /// # Errors
    /// If its memory can't be read.
    pub fn settled(pid: Pid) -> Result<Option<Self>, Error> {
        let mut last = match Self::of(pid)? {
            Some(first) if first.is_out_of_sight && first.collector_alive => first,
            settled => return Ok(settled),
        };
        loop {
            std::thread::sleep(BEAT / 10);
            match Self::of(pid)? {
                Some(now) if is_undecided(&last, &now) => last = now,
                settled => return Ok(settled),
            }
        }
    }

    /// Returns whether the hooks are in the target, or being removed.
    pub fn is_attached(&self) -> bool {
        self.state != state::DETACHED
    }
}

/// A process's collector, as far as this process can see it.
pub(crate) struct Seen {
    /// The collector's process id and start time. The id is that of this process's pid namespace, if the collector has one there.
    pub id: (Pid, u64),
    /// Whether the collector exists.
    pub lives: bool,
    /// Whether that is known only by its heartbeat.
    pub by_heartbeat: bool,
}

/// Finds the collector of process `pid`: by its number and its pid namespace, or by its heartbeat if that namespace is out of
/// sight.
pub(crate) fn collector(pid: Pid, c: &Stable, clock: Clock) -> Seen {
    let (id, start) =
        (Pid::from_u32(c.collector_pid.load(Acquire)), c.collector_start.load(Acquire));
    let space = PidNamespace::from_raw(c.collector_ns.load(Acquire));
    match pid_namespace::find(id, start, space, pid) {
        Place::Here(id) => {
            Seen { id: (id, start), lives: is_at_work(id, start), by_heartbeat: false }
        }
        Place::Gone => Seen { id: (id, start), lives: false, by_heartbeat: false },
        Place::OutOfSight => {
            let lives = id != Pid::NONE && heartbeat_age(c, clock) < Duration::from_secs(SILENCE_S);
            Seen { id: (id, start), lives, by_heartbeat: true }
        }
    }
}

/// Returns whether a collector that is out of sight has given no sign between two looks, and may yet.
fn is_undecided(last: &Peek, now: &Peek) -> bool {
    now.is_out_of_sight
        && now.collector_alive
        && now.collector == last.collector
        && now.heartbeat_age >= last.heartbeat_age
}

/// Returns the time since the collector's last heartbeat.
pub(crate) fn heartbeat_age(c: &Stable, clock: Clock) -> Duration {
    // The heartbeat may be newer than the reading of the clock.
    let age = clock.now().wrapping_since(Ticks(c.heartbeat.load(Acquire))) as i64;
    Duration::from_secs_f64(age.max(0) as f64 / clock.ticks_per_sec() as f64)
}

/// Returns the recorded processes that can be read from here.
pub fn all_recorded() -> Vec<Peek> {
    let mut pids = process::all();
    pids.sort_unstable();
    pids.into_iter().filter_map(|pid| Peek::of(pid).ok().flatten()).collect()
}

/// Returns [`Peek::capture`].
pub(crate) fn capture_of(c: &Control) -> Capture {
    Capture {
        sample_bytes: c.sample_bytes.load(Relaxed),
        adapts: c.flags.load(Relaxed) & flags::ADAPTS != 0,
        sample_every: c.sample_every,
        min_size: c.min_size,
        max_size: c.max_size,
    }
}

/// Returns [`Peek::heir_of`].
pub(crate) fn heir_of(c: &Control) -> Option<PathBuf> {
    let is_heir = c.state.load(Acquire) == state::ATTACHED && c.forks.load(Relaxed) != 0;
    let len = c.path.iter().take_while(|b| b.load(Relaxed) != 0).count();
    (is_heir && c.path_len == 0 && c.collector_pid.load(Acquire) == 0).then(|| path_of(c, len))
}

fn path_of(c: &Control, len: usize) -> PathBuf {
    let bytes: Vec<u8> = c.path[..len].iter().map(|b| b.load(Relaxed)).collect();
    OsString::from_vec(bytes).into()
}

/// Returns the functions that are patched, with their code.
fn probes(shared: &Shared, read: impl Fn(u64, &mut [u8]) -> bool) -> Vec<Probe> {
    let n = (shared.control().functions.load(Acquire) as usize).min(FUNCTIONS);
    let all = (0..n).filter_map(|i| shared.function(i)).filter(|f| f.patched.load(Acquire) != 0);
    all.filter_map(|f| {
        // On ARM, bit 0 of an address is the instruction set.
        let len = (f.patch_len as usize).min(f.new_bytes.len());
        let offset = (f.patch_addr.checked_sub(f.addr & !1)? as usize).min(64);
        let addr = f.patch_addr.checked_sub(offset as u64)?;
        let mut code = vec![0; offset + len];
        let name = f.name.split(|b| *b == 0).next().unwrap_or_default();
        read(addr, &mut code).then(|| Probe {
            function: String::from_utf8_lossy(name).into_owned(),
            code,
            // On ARM, keep the bit for the instruction set.
            addr: if cfg!(target_arch = "arm") { addr | f.addr & 1 } else { addr },
            offset,
            patch: f.new_bytes[..len].to_vec(),
            before: f.old_bytes[..len].to_vec(),
        })
    })
    .collect()
}

/// Returns name and module of each hooked function that is recorded, and its number of calls.
fn functions(shared: &Shared, calls: &[u64]) -> (Vec<(String, String)>, Vec<u64>) {
    let n = (shared.control().functions.load(Acquire) as usize).min(FUNCTIONS);
    let all = (0..n).filter_map(|i| Some((shared.function(i)?, calls.get(i).copied())));
    all.filter(|(f, _)| Kind::from_u32(f.kind).is_some_and(Kind::is_recorded))
        .map(|(f, calls)| (name_and_module(&f.name), calls.unwrap_or(0)))
        .unzip()
}

/// Splits [`Function::name`](prof_trace::shared::Function) into name and module.
pub(crate) fn name_and_module(text: &[u8]) -> (String, String) {
    let mut parts = text.split(|b| *b == 0).map(|b| String::from_utf8_lossy(b).into_owned());
    (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}
