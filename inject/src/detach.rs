//! Detaches: takes prof out of a process, whatever state an attach or an earlier detach has left it in.
//!
//! One stop of all threads removes the patches. From then on no thread can enter the hook, so the rest needs no
//! common stop. Each thread is examined by itself, until none has its pc or a return address in prof's memory. Then
//! that memory is unmapped.

use crate::children;
use crate::install::with_caller;
use crate::mapped::mapping::{Kind, Mapped, Site, is_ours, unmap_at};
use crate::mapped::remains;
use crate::mapped::ring::{close_left, left};
use crate::mapped::setup::range;
use crate::process::proc::{Map, Status};
use crate::process::sharing::about;
use crate::process::{elf, proc};
use crate::recorded::{Patched, Recorded, SlotNote, ring_in};
use crate::stopped::fibers;
use crate::stopped::remote::Gadgets;
use crate::stopped::settle::settle;
use crate::stopped::threads::{StopTimes, stop_all};
use crate::stopped::tracee::Tracee;
use crate::stopped::walk::Walker;
use crate::{
    Error, Refusal, RemoteAddr, RemoteMemory, Result, activate, again, isolated, sandbox, signal,
};
use nix::errno::Errno;
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::UserRegs;
use prof_arch::native::syscall::{SIGSET_LEN, sigaction_handler};
use prof_trace::process::Sharers;
use prof_trace::shared::{Area, Header, Stable, state};
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Settings of a detach.
#[derive(Clone, Copy, Debug)]
pub struct DetachOptions {
    /// Time to wait for threads that are inside the hook.
    pub timeout: Duration,
    /// Whether prof is also taken out of children that were forked while the process was recorded.
    pub children: bool,
    /// Whether a process that a living collector records is refused: only what an earlier recording has left is removed.
    pub leftovers: bool,
}

/// Result of a detach.
#[derive(Debug, Default)]
pub struct DetachReport {
    /// Path of the recording.
    pub path: PathBuf,
    /// Times for which the target was stopped.
    pub stops: StopTimes,
    /// Descriptions of what could not be removed; empty if nothing of prof is left.
    pub left: Vec<String>,
    /// Whether the kernel refuses to unmap prof's memory for as long as the process runs this program.
    pub stays: bool,
    /// Observations that were unexpected, but are harmless.
    pub notes: Vec<String>,
}

/// Detaches from `pid`.
///
/// # Errors
/// If the process is not recorded, has ended, or can't be stopped. A later call may complete the detach.
pub fn detach(pid: i32, options: &DetachOptions) -> Result<DetachReport> {
    let _lock = crate::lock::lock(pid)?;
    crate::shortage::check_descriptors(pid)?;
    crate::process::frozen::thawed(pid)?;
    if options.leftovers && Recorded::open(pid)?.is_attached() {
        return Err(Refusal::Recorded(pid).into());
    }
    detach_locked(pid, options)
}

/// Detaches on behalf of a caller that holds the target's lock.
pub(crate) fn detach_locked(pid: i32, options: &DetachOptions) -> Result<DetachReport> {
    isolated(|| take_out(pid, options, true))
}

/// Minimum time for which a failed attach tries to remove everything. No thread of the target waits meanwhile.
const UNDO: Duration = Duration::from_secs(30);

/// Longest wait for the collector's look at the target's memory. The target runs meanwhile.
const LOOK: Duration = Duration::from_secs(2);

/// Undoes a failed attach on behalf of the prof that made it, which holds the target's lock.
pub(crate) fn undo_locked(pid: i32, timeout: Duration) -> Result<DetachReport> {
    let options = DetachOptions { timeout: timeout.max(UNDO), children: false, leftovers: false };
    isolated(|| take_out(pid, &options, false))
}

/// Detaches. `taken_over`: what is mapped in the target may come from a prof that was killed.
fn take_out(pid: i32, options: &DetachOptions, taken_over: bool) -> Result<DetachReport> {
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
        let gadgets = Gadgets::find(pid, &r.mem, &proc::maps(pid)?)?;
        settle(pid, gadgets, timeout)?;
    }
    // Before the patches are written, a thread can reach the hook only through the toggle signal's handler.
    let entered = c.state.load(Relaxed) != state::SETUP
        || c.signal != 0
        || functions.iter().any(|f| f.is_patched);
    if c.flag_addr != 0 {
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
    // After an error from here on, the detach is unfinished, but what is left in the target does nothing.
    let unfinished = |e: Error| Error::Unfinished { pid, why: Box::new(e) };
    match remove(&r, &functions, entered, timeout, &mut report) {
        Err(e) if matches!(e, Error::Gone(_)) || proc::has_ended(pid) => return Err(e),
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
    let maps = proc::maps(pid)?;
    let gadgets = Gadgets::find(pid, &r.mem, &maps)?;
    let (handler, kept) = restore_handlers(r, gadgets, timeout, report)?;
    let ours = areas(r);
    // Originals of named functions return by way of a bridge, which is the target's own code.
    let inside: Vec<Range<u64>> =
        ours.iter().cloned().chain(crate::mapped::bridge::range(c.bridge)).collect();
    let came = c.flag_addr != 0 && entered;
    let mut mapped = Mapped { kept, ..mapped(r) };
    for _ in 0..again::TRIES {
        if came && let Some(why) = under_way(r, &inside, timeout, report)? {
            report.left.push(why);
            return Ok(());
        }
        // The collector has its own mapping of the ring, in which it sees this state even after the target's is gone.
        let at = r.ring.plus(core::mem::offset_of!(Header, state) as u64);
        r.mem.write(at, &state::DETACHED.to_ne_bytes())?;
        if let Some(page) = kept {
            signal::clear_page(&r.mem, c.handler)?;
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
    if still_open(pid) || ring_in(&proc::maps(pid)?).is_some() {
        // These are left from an earlier attach that was interrupted.
        sweep(pid, timeout)?;
    }
    remains::verify(r, &mapped, functions, timeout, report);
    if let Some(signal) = handler {
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
            "a thread is still inside prof's code after {} s: the hook stays mapped, without effect; run `prof detach {pid}` again later",
            timeout.as_secs()
        )));
    }
    let why = wait_for_fibers(r, inside, timeout, report)?;
    Ok(why.map(|why| {
        format!("{why}: the hook stays mapped, without effect; run `prof detach {pid}` again later")
    }))
}

/// Restores the toggle signal's earlier action. Returns the signal if it has no handler now, so that a handler of
/// prof's would be left over, and the page of prof's handler if that has to stay mapped.
fn restore_handlers(
    r: &Recorded,
    gadgets: Gadgets,
    timeout: Duration,
    report: &mut DetachReport,
) -> Result<(Option<u32>, Option<Area>)> {
    let c = &r.control;
    // An earlier detach has restored the action before it unmapped the hook.
    if c.hook_len == 0 || !(1..=8 * SIGSET_LEN as u32).contains(&c.signal) {
        return Ok((None, None));
    }
    let old: Vec<u8> = c.old_action.iter().flat_map(|w| w.to_ne_bytes()).collect();
    let old = &old[..(c.old_action_len as usize).min(32)];
    let at = r.stable_at(core::mem::offset_of!(Stable, signal_ignored));
    let flag = Area { addr: c.flag_addr, len: c.flag_len };
    let action = signal::OldAction {
        signal: c.signal,
        old,
        ours: c.hook_addr..c.hook_addr.saturating_add(c.hook_len),
        ignored: (c.signal_ignored.load(Relaxed) != 0, at),
        scratch: is_ours(&proc::maps(r.pid)?, flag, Kind::Any)
            .then(|| RemoteAddr(c.flag_addr).plus(1024)),
        // The target may have begun to wait for the signal (sigwait, signalfd) while it was recorded. Pending ones
        // are then meant for that.
        keep_pending: signal::taken(r.pid, &r.mem, c.signal)?.is_some(),
    };
    let mut restore = |pid: i32| {
        with_caller(pid, &r.mem, gadgets, timeout, &mut report.stops, |c| {
            signal::restore(c, &r.mem, &action)
        })
    };
    let restored = restore(r.pid)?;
    let mut all_restored = restored;
    // A process that shares the target's memory and was made since the attach may have its own copy of the handlers.
    let caught =
        |pid: i32| Status::of(pid).map_or(0, |s| s.signals("SigCgt") | s.signals("SigIgn"));
    let sharers = Sharers::of(r.pid);
    for other in sharers.others().iter().copied() {
        if caught(other) >> (c.signal - 1) & 1 == 1 && sharers.still_shares(other) {
            all_restored &= restore(other).map_err(|e| about(r.pid, other, e))?;
        }
    }
    if !restored {
        report.notes.push(format!(
            "the target has installed its own handler for {} meanwhile, and keeps it",
            activate::signal_name(c.signal as i32)
        ));
    }
    let default = restored && sigaction_handler(old) <= libc::SIG_IGN as u64;
    let kept = keep_handler(r, all_restored, timeout, report)?;
    Ok((default.then_some(c.signal), kept))
}

pub(crate) fn mapped(r: &Recorded) -> Mapped {
    let c = &r.control;
    let area = |addr, len| Area { addr, len };
    Mapped {
        ring: area(r.ring.0, c.ring_len.min(r.ring_len)),
        guards: c.guards,
        place: c.place,
        flag: area(c.flag_addr, c.flag_len),
        hook: area(c.hook_addr, c.hook_len),
        stubs: c.stubs.to_vec(),
        kept: None,
    }
}

/// Returns the page of the toggle signal's handler if the target may call that handler later: a handler of its own
/// may chain to it, or the target may have stored the address.
pub(crate) fn keep_handler(
    r: &Recorded,
    restored: bool,
    timeout: Duration,
    report: &mut DetachReport,
) -> Result<Option<Area>> {
    let c = &r.control;
    let hook = c.hook_addr..c.hook_addr.saturating_add(c.hook_len);
    if !hook.contains(&c.handler) {
        return Ok(None);
    }
    let mut ours = areas(r);
    ours.push(c.flag_addr..c.flag_addr.saturating_add(c.flag_len));
    let maps = proc::maps(r.pid)?;
    if restored && !signal::is_remembered(r.pid, &r.mem, &maps, c.handler, &ours) {
        return Ok(None);
    }
    if !signal::silence(r.pid, &r.mem, c.handler, timeout, &mut report.stops)? {
        log::warn!(
            "a thread is in prof's handler for {} right now, so that could not be replaced by a return",
            activate::signal_name(c.signal as i32)
        );
    }
    let page = signal::page_of(c.handler);
    report.notes.push(format!(
        "the target may still call prof's handler for {}: the page at {:#x} stays mapped, with nothing but a return in it, and has no effect",
        activate::signal_name(c.signal as i32),
        page.addr
    ));
    Ok(Some(page))
}

/// Returns the address ranges of prof's code: stubs and hook.
pub(crate) fn areas(r: &Recorded) -> Vec<Range<u64>> {
    let c = &r.control;
    let hook = Area { addr: c.hook_addr, len: c.hook_len };
    c.stubs.iter().chain([&hook]).filter(|a| a.len != 0).map(range).collect()
}

/// Stops all threads and restores the functions' original bytes.
fn unpatch(r: &Recorded, timeout: Duration, report: &mut DetachReport) -> Result<()> {
    let functions = r.functions();
    if !functions.iter().any(|f| f.is_patched) {
        return Ok(());
    }
    let stopped = stop_all(r.pid, timeout)?;
    let others: BTreeSet<i32> =
        stopped.threads.iter().map(|t| t.pid).filter(|p| *p != r.pid).collect();
    let mut failed = Ok(());
    for f in functions.iter().filter(|f| f.is_patched) {
        if let Err(e) = unpatch_one(r, f, report) {
            failed = Err(e);
        }
    }
    stopped.resume(&mut report.stops);
    for other in others {
        report.notes.push(format!(
            "process {other} shares the target's memory, so prof is removed from it, too"
        ));
    }
    failed
}

fn unpatch_one(r: &Recorded, f: &Patched, report: &mut DetachReport) -> Result<()> {
    put_back(r, f, report)?;
    r.mem.write(f.patched_at, &0u32.to_ne_bytes())
}

/// Restores a function's original bytes if prof's patch is there.
pub(crate) fn put_back(r: &Recorded, f: &Patched, report: &mut DetachReport) -> Result<()> {
    let at = f.patch_addr;
    let mut now = vec![0u8; f.new_bytes.len()];
    if r.mem.read(at, &mut now).is_err() {
        report.notes.push(format!(
            "the library with {} has been unloaded meanwhile, and its hook with it",
            f.name
        ));
    } else if now == f.new_bytes {
        r.mem.write(at, &f.old_bytes)?;
    } else if now != f.old_bytes {
        let (bytes, what) = crate::hooked::probed::restored(at, &now, f);
        if bytes != now {
            r.mem.write(at, &bytes)?;
        }
        report.notes.push(format!("{} (at {at}): {what}", f.name));
    }
    Ok(())
}

/// Waits until no thread is inside prof's code. Returns `false` after `timeout`.
pub(crate) fn wait_outside(
    r: &Recorded,
    ours: &[Range<u64>],
    timeout: Duration,
    report: &mut DetachReport,
) -> Result<bool> {
    let deadline = Instant::now() + timeout;
    let maps = proc::maps(r.pid)?;
    let mut walker = Walker::new(&r.mem, elf::modules(&r.mem, &maps), maps);
    walker.read_tables();
    let mut clear: HashSet<i32> = HashSet::new();
    let mut sharers = Sharers::of(r.pid);
    loop {
        let mut tids: Vec<(i32, i32)> =
            proc::threads(r.pid)?.into_iter().map(|tid| (r.pid, tid)).collect();
        sharers.look_again();
        for other in sharers.others().iter().filter(|p| sharers.still_shares(**p)) {
            let its = proc::threads(*other).unwrap_or_default();
            tids.extend(its.into_iter().map(|tid| (*other, tid)));
        }
        let mut waiting = false;
        for (pid, tid) in tids {
            if clear.contains(&tid) {
                continue;
            }
            // The patches are gone, so a thread that is outside now stays outside.
            if proc::asleep(pid, tid).is_some_and(|a| walker.is_clear(&a, ours)) {
                clear.insert(tid);
                continue;
            }
            let seized = Tracee::seize(pid, tid).map_err(|e| about(r.pid, pid, e));
            let Some(mut t) = seized? else { continue };
            let since = Instant::now();
            t.interrupt();
            let inside = match t.wait_stopped(since + Duration::from_secs(1)) {
                Ok(true) => {
                    let regs = t.regs()?;
                    walker.touches(&regs, ours, || is_marked(r, &regs))
                }
                Ok(false) => false,
                // The thread could not be stopped or read, so it may be inside.
                Err(_) => true,
            };
            t.detach();
            report.stops.add(since);
            if inside {
                waiting = true;
            } else {
                clear.insert(tid);
            }
        }
        if !waiting {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
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

/// Returns whether the thread's slot says that it is inside the hook. A mark of a frame below the stack pointer is
/// stale: that frame was left by a jump.
fn is_marked(r: &Recorded, regs: &UserRegs) -> bool {
    let thread_slots = r.slots();
    let is_its = |s: &&SlotNote| s.tp == regs.thread_pointer() && s.is_live;
    let Some(slot) = thread_slots.iter().find(is_its) else { return false };
    let at = |sp: u64| sp != 0 && !(regs.sp() > sp && regs.sp() - sp < 1 << 20);
    slot.inside.into_iter().any(at)
}

pub(crate) fn still_open(pid: i32) -> bool {
    let dirs = proc::threads(pid).unwrap_or_default();
    // The folder of a thread that has ended shows no descriptors.
    let dirs = dirs.iter().take(MOST_TABLES).map(|tid| format!("/proc/{pid}/task/{tid}"));
    dirs.into_iter().any(|dir| !left(dir.as_ref()).is_empty())
}

/// Removes what an interrupted attach has left before it had a control page: an empty ring, or a descriptor of one.
/// Returns `false` if there is nothing of that kind.
///
/// # Errors
/// If the target can't be stopped.
pub fn clean(pid: i32, timeout: Duration) -> Result<bool> {
    let _lock = crate::lock::lock(pid)?;
    crate::shortage::check_descriptors(pid)?;
    crate::process::frozen::thawed(pid)?;
    clean_locked(pid, timeout)
}

/// Cleans like [`clean`], on behalf of a caller that holds the target's lock.
pub(crate) fn clean_locked(pid: i32, timeout: Duration) -> Result<bool> {
    if Recorded::open(pid).is_ok() {
        return Ok(false);
    }
    isolated(|| sweep(pid, timeout))
}

/// Returns whether a control page begins at `at`.
fn is_in_use(mem: &RemoteMemory, at: RemoteAddr) -> bool {
    let mut magic = [0; 8];
    mem.read(at, &mut magic).is_ok() && u64::from_ne_bytes(magic) == prof_trace::shared::MAGIC
}

/// Number of threads whose descriptors are examined. Nearly always all threads share one table of descriptors.
const MOST_TABLES: usize = 64;

/// Unmaps all rings and closes all their descriptors, unless one of the rings is in use. Returns whether there was
/// any.
fn sweep(pid: i32, timeout: Duration) -> Result<bool> {
    let mem = RemoteMemory::open(pid)?;
    // This comes first, as a thread may be about to make the system call that creates a ring. A process without
    // gadgets can't have been made to create one.
    let gadgets = Gadgets::find(pid, &mem, &proc::maps(pid)?);
    if let Ok(gadgets) = &gadgets {
        settle(pid, *gadgets, timeout)?;
    }
    let rings = |maps: &[Map]| -> Vec<Area> {
        let named = |m: &&Map| m.shared && m.name.starts_with(b"/memfd:prof-ring");
        maps.iter().filter(named).map(|m| Area { addr: m.start.0, len: m.len() }).collect()
    };
    let there = rings(&proc::maps(pid)?);
    if there.iter().any(|a| is_in_use(&mem, RemoteAddr(a.addr))) {
        // This process is a collector, which has the ring of another process mapped.
        return Ok(false);
    }
    if there.is_empty() && !still_open(pid) {
        return Ok(false);
    }
    let stops = &mut StopTimes::default();
    Site::new(pid, &mem, gadgets?, timeout, stops).alone(|c| {
        // The mappings are read again, as the target may have mapped something of its own there since.
        for a in rings(&proc::maps(pid)?) {
            unmap_at(c, a)?;
        }
        close_left(pid, c)?;
        Ok(true)
    })
}
