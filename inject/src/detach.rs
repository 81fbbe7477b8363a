//! Detaches: takes prof out of a process, whatever state an attach or an earlier detach has left it in.
//!
//! One stop of all threads removes the patches. From then on no thread can enter the hook, so the rest needs no
//! common stop. Each thread is examined by itself, until none has its pc or a return address in prof's memory. Then
//! that memory is unmapped.

use crate::children;
use crate::handler::restore_handlers;
use crate::mapped::library;
use crate::mapped::mapping::{Mapped, Site, unmap_at};
use crate::mapped::memfd::close_left;
use crate::mapped::remains;
use crate::outside::{areas, wait_outside};
use crate::process::rings::{library_still_open, ring_in, still_open};
use crate::recorded::{Patched, Recorded};
use crate::report::DetachReport;
use crate::stopped::fibers;
use crate::stopped::gadgets::Gadgets;
use crate::stopped::pending_calls::await_pending_calls;
use crate::stopped::threads::StopTimes;
use crate::unpatch::unpatch;
use crate::{Error, Refusal, RemoteAddr, RemoteMemory, Result, again, isolated, sandbox, signal};
use nix::errno::Errno;
use prof_os::maps::{self, Map};
use prof_os::{Pid, process};
use prof_trace::shared::{Area, Header, MEMFD_NAME, Purpose, state};
use prof_trace::values::text::time;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Settings of a detach.
#[derive(Clone, Copy, Debug)]
pub struct DetachOptions {
    /// Time to wait for threads that are inside the hook.
    pub timeout: Duration,
    /// Whether prof is also removed from children that were forked while the process was recorded.
    pub children: bool,
    /// Whether a process that a living collector records is refused: only what an earlier recording has left is removed.
    pub leftovers: bool,
}

/// Detaches from `pid`.
///
/// # Errors
/// If the process is not recorded, has ended, or can't be stopped. A later call may complete the detach.
pub fn detach(pid: Pid, options: &DetachOptions) -> Result<DetachReport> {
    let _lock = crate::lock::lock(pid)?;
    crate::shortage::check_descriptors(pid)?;
    crate::process::frozen::thawed(pid)?;
    if options.leftovers && Recorded::open(pid)?.is_attached() {
        return Err(Refusal::Recorded(pid).into());
    }
    detach_locked(pid, options)
}

/// Detaches on behalf of a caller that holds the target's lock.
pub(crate) fn detach_locked(pid: Pid, options: &DetachOptions) -> Result<DetachReport> {
    isolated(|| take_out(pid, options, true))
}

/// Minimum time for which a failed attach tries to remove everything. No thread of the target waits meanwhile.
const UNDO: Duration = Duration::from_secs(30);

/// Longest wait for the collector's look at the target's memory. The target runs meanwhile.
const LOOK: Duration = Duration::from_secs(2);

/// Undoes a failed attach on behalf of the prof that made it, which holds the target's lock.
pub(crate) fn undo_locked(pid: Pid, timeout: Duration) -> Result<DetachReport> {
    let options = DetachOptions { timeout: timeout.max(UNDO), children: false, leftovers: false };
    isolated(|| take_out(pid, &options, false))
}

/// Detaches. `taken_over`: a prof that was killed may have made the mappings in the target.
fn take_out(pid: Pid, options: &DetachOptions, taken_over: bool) -> Result<DetachReport> {
    let timeout = options.timeout;
    let r = Recorded::open(pid)?;
    let mut report = DetachReport { path: r.path(), ..DetachReport::default() };
    let set_state = |s: u32| {
        let at = r.ring.plus(core::mem::offset_of!(Header, state) as u64);
        r.mem.write(at, &s.to_ne_bytes())
    };
    let c = &r.control;
    let functions = r.functions();
    sandbox::kept_word(c.flags.load(Relaxed));
    if taken_over && c.state.load(Relaxed) != state::ATTACHED {
        let gadgets = Gadgets::find(pid, &r.mem, &maps::of(pid)?)?;
        await_pending_calls(pid, gadgets, timeout)?;
        library::await_calls(pid, c.linker_stack.get(), timeout)?;
    }
    // Before the patches are written, a thread can reach the hook only through its handler of signals.
    let entered = c.state.load(Relaxed) != state::SETUP
        || Purpose::ALL.iter().any(|p| c.taken(*p).signal.load(Relaxed) != 0)
        || functions.iter().any(|f| f.is_patched);
    if c.flag_addr.load(Relaxed) != 0 {
        // The flag page may not be mapped yet, or not any more.
        if r.is_on().unwrap_or(false) {
            if taken_over {
                r.have_memory_looked_at(LOOK);
            }
            r.switch(false)?;
        }
        set_state(state::DETACHING)?;
        unpatch(&r, timeout, &mut report).map_err(|e| match e {
            Error::Gone(_) => e,
            e => Error::Unfinished { pid, why: Box::new(e) },
        })?;
    }
    // No function leads to the hook any more. Calls of fibers must be looked for now, as long as the ring is mapped.
    let fibers = options.children && fibers::may_be(&r);
    // After an error from here on, the detach is unfinished, but the rest of prof in the target has no effect.
    let unfinished = |e: Error| Error::Unfinished { pid, why: Box::new(e) };
    match remove(&r, &functions, entered, timeout, &mut report) {
        Err(e) if matches!(e, Error::Gone(_)) || process::has_ended(pid) => return Err(e),
        // No thread can be made to make the system calls that prof needs.
        Err(
            e @ Error::Refused(
                Refusal::Dispatched(..)
                | Refusal::FilterKills { .. }
                | Refusal::Seccomp { .. }
                | Refusal::TrialFailed { .. }
                | Refusal::StrictSeccomp(..),
            ),
        ) => {
            return Err(unfinished(e));
        }
        Err(e) => {
            let why = e.without_claim();
            report
                .left
                .push(format!("prof's memory (no thread could be made to unmap it: {why}); run `prof detach {pid}` again"));
        }
        Ok(()) => {}
    }
    if options.children {
        children::take_out(r, &functions, fibers, timeout, &mut report);
    } else {
        children::note(&r, &functions, &mut report);
    }
    Ok(report)
}

/// Removes everything but the patches, which are gone already.
fn remove(
    r: &Recorded,
    functions: &[Patched],
    entered: bool,
    timeout: Duration,
    report: &mut DetachReport,
) -> Result<()> {
    let (pid, c) = (r.pid, &r.control);
    let maps = maps::of(pid)?;
    let gadgets = Gadgets::find(pid, &r.mem, &maps)?;
    let (restored, kept) = restore_handlers(r, gadgets, timeout, report)?;
    let ours = areas(r);
    // Originals of named functions return by way of a bridge, which is the target's own code.
    let inside: Vec<Range<u64>> =
        ours.iter().cloned().chain(crate::mapped::bridge::range(c.bridge)).collect();
    let came = c.flag_addr.load(Relaxed) != 0 && entered;
    let mut mapped = Mapped { kept, ..Mapped::of(r) };
    for _ in 0..again::TRIES {
        if came && let Some(why) = under_way(r, &inside, timeout, report)? {
            report.left.push(why);
            return Ok(());
        }
        // The collector has its own mapping of the ring, in which it sees this state even after the target's is gone.
        let at = r.ring.plus(core::mem::offset_of!(Header, state) as u64);
        r.mem.write(at, &state::DETACHED.to_ne_bytes())?;
        if let Some(page) = kept {
            signal::clear_page(&r.mem, c.handler.load(Relaxed))?;
            log::debug!("kept: {:#x}", page.addr);
        }
        let mut site = Site::new(pid, &r.mem, gadgets, timeout, &mut report.stops);
        site.hooked = functions;
        let gone = site.unmap_all(&mut mapped);
        report.stays = site.refused() == Some(Errno::EPERM);
        if gone || !again::are_back(&r.mem, functions) {
            break;
        }
        // Threads may have come in through these jumps since.
        again::take_out(r, functions, timeout, report)?;
    }
    if still_open(pid) || ring_in(&maps::of(pid)?).is_some() {
        // These are left from an earlier attach that was interrupted.
        sweep(pid, timeout)?;
    }
    remains::verify(r, &mapped, functions, timeout, report);
    for signal in restored {
        remains::verify_handler(r, &ours, gadgets, signal, timeout, report);
    }
    Ok(())
}

/// Waits until nobody is inside prof's code. Returns what keeps it mapped if somebody still is after `timeout`.
fn under_way(
    r: &Recorded,
    inside: &[Range<u64>],
    timeout: Duration,
    report: &mut DetachReport,
) -> Result<Option<String>> {
    let pid = r.pid;
    if !wait_outside(r, inside, timeout, report)? {
        return Ok(Some(format!(
            "a thread is still inside prof's code after {}: the hook stays mapped, without effect; run `prof detach {pid}` again later",
            time(timeout)
        )));
    }
    let why = wait_for_fibers(r, inside, timeout, report)?;
    Ok(why.map(|why| {
        format!("{why}: the hook stays mapped, without effect; run `prof detach {pid}` again later")
    }))
}

/// Waits until no call is in progress on a stack that no thread is on. Returns the reason if that can't be said in
/// time.
fn wait_for_fibers(
    r: &Recorded,
    ours: &[Range<u64>],
    timeout: Duration,
    report: &mut DetachReport,
) -> Result<Option<String>> {
    if !fibers::may_be(r) {
        return Ok(None);
    }
    let deadline = Instant::now() + timeout;
    let mut frames = fibers::find(r)?;
    loop {
        frames.at.retain(|at| fibers::is_under_way(r, *at));
        if frames.at.is_empty() || Instant::now() >= deadline {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    if let Some(first) = frames.at.first() {
        return Ok(Some(format!(
            "calls of hooked functions belong to fibers (coroutines) that are not running at the moment ({} of them, one frame at {first:#x})",
            frames.at.len()
        )));
    }
    if frames.partly {
        return Ok(Some("calls that were left by a jump, or by fibers (coroutines) that are not running, may still return, and the search of memory for their frames took too long".into()));
    }
    // A call that has just returned to the hook must have left it, too.
    let outside = wait_outside(r, ours, timeout, report)?;
    Ok((!outside).then(|| "a thread is still inside prof's code".into()))
}

/// Removes what an interrupted attach has left before it had a control page: an empty ring, or a descriptor of one. Later
/// on, it may have left a descriptor of the library. Returns `false` if there is nothing of that kind.
///
/// # Errors
/// If the target can't be stopped.
pub fn clean(pid: Pid, timeout: Duration) -> Result<bool> {
    let _lock = crate::lock::lock(pid)?;
    crate::shortage::check_descriptors(pid)?;
    crate::process::frozen::thawed(pid)?;
    clean_locked(pid, timeout)
}

/// Cleans like [`clean`], on behalf of a caller that holds the target's lock.
pub(crate) fn clean_locked(pid: Pid, timeout: Duration) -> Result<bool> {
    if Recorded::open(pid).is_ok() && !library_still_open(pid) {
        return Ok(false);
    }
    isolated(|| sweep(pid, timeout))
}

/// Returns whether a control page begins at `at`.
fn is_in_use(mem: &RemoteMemory, at: RemoteAddr) -> bool {
    let mut magic = [0; 8];
    mem.read(at, &mut magic).is_ok() && u64::from_ne_bytes(magic) == prof_trace::shared::MAGIC
}

/// Unmaps all rings, unless one of them is in use, and closes all descriptors of memfds of prof's. Returns whether there was
/// any.
fn sweep(pid: Pid, timeout: Duration) -> Result<bool> {
    let mem = RemoteMemory::open(pid)?;
    // This comes first, as a thread may be about to make the system call that creates a ring. A process without
    // gadgets can't have been made to create one.
    let gadgets = Gadgets::find(pid, &mem, &maps::of(pid)?);
    if let Ok(gadgets) = &gadgets {
        await_pending_calls(pid, *gadgets, timeout)?;
    }
    let rings = |maps: &[Map]| -> Vec<Area> {
        let named = |m: &&Map| m.shared && m.is_memfd(MEMFD_NAME);
        maps.iter().filter(named).map(|m| Area { addr: m.start.0, len: m.len() }).collect()
    };
    let there = rings(&maps::of(pid)?);
    // This process is recorded, or it is a collector, which has the ring of another process mapped.
    let in_use = there.iter().any(|a| is_in_use(&mem, RemoteAddr(a.addr)));
    let nothing_left = match in_use {
        true => !library_still_open(pid),
        false => there.is_empty() && !still_open(pid),
    };
    if nothing_left {
        return Ok(false);
    }
    let stops = &mut StopTimes::default();
    Site::new(pid, &mem, gadgets?, timeout, stops).alone(|c| {
        // The mappings are read again, as the target may have mapped something of its own there since.
        let empty = if in_use { Vec::new() } else { rings(&maps::of(pid)?) };
        for a in empty {
            unmap_at(c, a)?;
        }
        close_left(pid, c)?;
        Ok(true)
    })
}
