//! What a recorded process says about its recording, read from outside.

use crate::ring_copy::{RingCopy, unreadable};
use crate::{Clock, Error, totals};
use prof_trace::capture::Capture;
use prof_trace::foreign::Foreign;
use prof_trace::records::Counters;
use prof_trace::shared::{Control, FUNCTIONS, Kind, Shared, Stable, state};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

/// A recorded process, at a moment.
#[derive(Clone, Debug)]
pub struct Peek {
    /// The process.
    pub pid: u32,
    /// See [`state`].
    pub state: u32,
    /// Events are being written.
    pub recording: bool,
    /// The recording, as an absolute path where `prof attach` ran.
    pub path: PathBuf,
    /// The collector's process id and start time.
    pub collector: (u32, u64),
    /// Whether that process is there.
    pub collector_alive: bool,
    /// How long ago it last gave a sign of life: at most half a second, if it gets a processor.
    pub heartbeat_age: Duration,
    /// The hook has switched recording off, as nobody collected.
    pub orphaned: bool,
    /// Which blocks are recorded.
    pub capture: Capture,
    /// The toggle signal; 0: none.
    pub signal: u32,
    /// The hook's counters.
    pub counters: Counters,
    /// Modules for which, or for whose unwind tables, there was no room.
    pub unknown_modules: u32,
    /// The hooked functions: name and module.
    pub functions: Vec<(String, String)>,
    /// The build of prof that has attached, if its layout is another: then of the counters only events are
    /// known, and what is recorded is not.
    pub foreign: Option<Foreign>,
    /// What other tools have done, or may not do, to functions that are hooked, recorded or not.
    pub probes: Vec<Probe>,
}

/// A hooked function, as somebody else's uprobes see it.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Its name.
    pub function: String,
    /// Its code from its entry to the end of the patch, as it stands now.
    pub code: Vec<u8>,
    /// Address of that code.
    pub addr: u64,
    /// Where the patch begins in it.
    pub offset: usize,
    /// The patch.
    pub patch: Vec<u8>,
    /// What was there before.
    pub before: Vec<u8>,
}

impl Peek {
    /// Looks at process `pid`; `None` if it is not recorded.
    ///
    /// # Errors
    /// If its memory can't be read.
    pub fn of(pid: u32) -> Result<Option<Self>, Error> {
        let mut ring = match RingCopy::of(pid) {
            Ok(ring) => ring,
            Err(Error::NoRing) => return Ok(None),
            Err(Error::OtherLayout { addr, .. }) => return crate::foreign::peek(pid, addr),
            Err(e) => return Err(e),
        };
        // prof's own processes map it, too.
        if ring.shared().control().ring_addr != ring.addr() {
            return Ok(None);
        }
        match ring.copy_control().map_err(|e| unreadable(pid, ring.addr(), e)) {
            Err(Error::NoRing) => return Ok(None),
            copied => copied?,
        }
        let shared = ring.shared();
        let c = shared.control();
        let mut flag = [0u8; 4];
        let read = c.flag_addr != 0 && ring.mem().read_exact_at(&mut flag, c.flag_addr).is_ok();
        let clock = Clock::of(&shared);
        let collector = (c.collector_pid.load(Acquire), c.collector_start.load(Acquire));
        let mut counters = totals(&shared);
        let (functions, calls) = functions(&shared, &counters.calls);
        counters.calls = calls;
        let probes = probes(&shared, |at, to| ring.mem().read_exact_at(to, at).is_ok());
        Ok(Some(Self {
            pid,
            state: c.state.load(Acquire),
            recording: read && u32::from_ne_bytes(flag) == 1,
            path: path_of(c),
            collector,
            collector_alive: alive(c, clock, collector),
            heartbeat_age: heartbeat_age(c, clock),
            foreign: None,
            orphaned: c.orphaned.load(Relaxed) != 0,
            capture: Capture {
                sample_bytes: c.sample_bytes,
                sample_every: c.sample_every,
                min_size: c.min_size,
                max_size: c.max_size,
            },
            signal: c.signal,
            unknown_modules: c
                .modules_lost
                .load(Relaxed)
                .saturating_add(c.tables_lost.load(Relaxed)),
            counters,
            functions,
            probes,
        }))
    }

    /// Whether the hooks are in, or on their way out.
    pub fn is_attached(&self) -> bool {
        self.state != state::DETACHED
    }
}

/// Whether the collector lives. Its pid says so where it means something; for one of another pid
/// namespace, whether it has looked at the ring lately.
pub(crate) fn alive(c: &Stable, clock: Clock, collector: (u32, u64)) -> bool {
    if c.collector_ns.load(Acquire) == pid_namespace() {
        return is_process(collector.0, collector.1);
    }
    collector.0 != 0 && heartbeat_age(c, clock) < Duration::from_secs(3)
}

/// Time since the collector's last sign of life.
pub(crate) fn heartbeat_age(c: &Stable, clock: Clock) -> Duration {
    // It may have beaten since the clock was read.
    let age = clock.now().wrapping_sub(c.heartbeat.load(Acquire)) as i64;
    Duration::from_secs_f64(age.max(0) as f64 / clock.ticks_per_sec() as f64)
}

/// This process's pid namespace; 0 if it can't be told.
pub(crate) fn pid_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |m| m.ino())
}

/// The recorded processes that can be looked at from here.
pub fn all_recorded() -> Vec<Peek> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> =
        pids.filter_map(|e| e.file_name().to_str().and_then(|n| n.parse().ok())).collect();
    pids.sort_unstable();
    pids.into_iter().filter_map(|pid| Peek::of(pid).ok().flatten()).collect()
}

/// Start time of a process, in clock ticks since boot: with its id, it names a process for good.
pub fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after = &stat[stat.rfind(')')? + 1..];
    let mut fields = after.split_whitespace();
    if matches!(fields.next(), Some("Z" | "X")) {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Whether this very process runs.
pub fn is_process(pid: u32, start: u64) -> bool {
    pid != 0 && start_time(pid) == Some(start)
}

fn path_of(c: &Control) -> PathBuf {
    let len = (c.path_len as usize).min(c.path.len());
    let bytes: Vec<u8> = c.path[..len].iter().map(|b| b.load(Relaxed)).collect();
    OsString::from_vec(bytes).into()
}

/// The functions that are patched, with their code.
fn probes(shared: &Shared, read: impl Fn(u64, &mut [u8]) -> bool) -> Vec<Probe> {
    let n = (shared.control().functions.load(Acquire) as usize).min(FUNCTIONS);
    let all = (0..n).filter_map(|i| shared.function(i)).filter(|f| f.patched.load(Acquire) != 0);
    all.filter_map(|f| {
        // Bit 0 of an address may say which instruction set its code is of.
        let len = (f.patch_len as usize).min(f.new_bytes.len());
        let offset = (f.patch_addr.checked_sub(f.addr & !1)? as usize).min(64);
        let addr = f.patch_addr.checked_sub(offset as u64)?;
        let mut code = vec![0; offset + len];
        let name = f.name.split(|b| *b == 0).next().unwrap_or_default();
        read(addr, &mut code).then(|| Probe {
            function: String::from_utf8_lossy(name).into_owned(),
            code,
            // With the bit that says which instruction set it is, where there are two.
            addr: if cfg!(target_arch = "arm") { addr | f.addr & 1 } else { addr },
            offset,
            patch: f.new_bytes[..len].to_vec(),
            before: f.old_bytes[..len].to_vec(),
        })
    })
    .collect()
}

/// Name and module of each hooked function that is recorded, and how often it was called.
fn functions(shared: &Shared, calls: &[u64]) -> (Vec<(String, String)>, Vec<u64>) {
    let n = (shared.control().functions.load(Acquire) as usize).min(FUNCTIONS);
    let all = (0..n).filter_map(|i| Some((shared.function(i)?, calls.get(i).copied())));
    all.filter(|(f, _)| Kind::from_u32(f.kind).is_some_and(Kind::is_recorded))
        .map(|(f, calls)| (name_and_module(&f.name), calls.unwrap_or(0)))
        .unzip()
}

/// The two parts of [`Function::name`](prof_trace::shared::Function).
pub(crate) fn name_and_module(text: &[u8]) -> (String, String) {
    let mut parts = text.split(|b| *b == 0).map(|b| String::from_utf8_lossy(b).into_owned());
    (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}
