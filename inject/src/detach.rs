//! Taking prof out of a process again, from whatever state it is in.
//!
//! The patches go first, in one stop of all threads; from then on no thread can enter the hook
//! anew, so the rest needs no common stop: each thread is looked at by itself, until none has a pc
//! or a return address in prof's memory, and then the memory goes.

use crate::children;
use crate::fibers;
use crate::install::with_caller;
use crate::mapping::{Kind, Mapped, Site, is_ours, unmap_at};
use crate::proc::{Map, Status};
use crate::recorded::{Patched, Recorded, SlotNote, ring_in};
use crate::remote::Gadgets;
use crate::ring::{close_left, left};
use crate::settle::settle;
use crate::setup::range;
use crate::sharing::about;
use crate::threads::{StopTimes, stop_all};
use crate::tracee::Tracee;
use crate::walk::Walker;
use crate::{
    Error, Refusal, RemoteAddr, RemoteMemory, Result, activate, elf, isolated, proc, sandbox,
    signal,
};
use nix::errno::Errno;
use prof_arch::native::UserRegs;
use prof_arch::native::syscall::{SIGSET_LEN, sigaction_handler};
use prof_trace::process::Sharers;
use prof_trace::shared::{Area, Header, Stable, state};
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How to detach.
#[derive(Clone, Copy, Debug)]
pub struct DetachOptions {
    /// How long to wait for threads that are inside the hook.
    pub timeout: Duration,
    /// Whether prof is taken out of children, too, that were forked while the process was recorded.
    pub children: bool,
}

/// What detaching came to.
#[derive(Debug, Default)]
pub struct DetachReport {
    /// The recording.
    pub path: PathBuf,
    /// How long the target was stopped.
    pub stops: StopTimes,
    /// What has stayed behind, in words; empty: nothing.
    pub left: Vec<String>,
    /// It can't be removed for as long as the process runs this program.
    pub stays: bool,
    /// What was not as expected, but harms nobody.
    pub notes: Vec<String>,
}

/// Detaches from `pid`.
///
/// # Errors
/// If it is not recorded, gone, or can't be stopped; a later call may go on.
pub fn detach(pid: i32, options: &DetachOptions) -> Result<DetachReport> {
    let _lock = crate::lock::lock(pid)?;
    crate::shortage::check_descriptors(pid)?;
    detach_locked(pid, options)
}

/// The same, by somebody who holds the target's lock.
pub(crate) fn detach_locked(pid: i32, options: &DetachOptions) -> Result<DetachReport> {
    isolated(|| take_out(pid, options, true))
}

/// How long an attach that has failed tries to leave nothing behind. No thread waits for that.
const UNDO: Duration = Duration::from_secs(30);

/// The same, by the prof that has attached itself.
pub(crate) fn undo_locked(pid: i32, timeout: Duration) -> Result<DetachReport> {
    let options = DetachOptions { timeout: timeout.max(UNDO), children: false };
    isolated(|| take_out(pid, &options, false))
}

/// `taken_over`: what is there may be of a prof that was killed.
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
    // Before the hooks were in, no thread can have come to the hook, but by the toggle signal.
    let entered = c.state.load(Relaxed) != state::SETUP
        || c.signal != 0
        || functions.iter().any(|f| f.is_patched);
    if c.flag_addr != 0 {
        // The page of the flag may not be there yet, or not any more.
        if r.is_on().unwrap_or(false) {
            r.switch(false)?;
        }
        set_state(state::DETACHING)?;
        unpatch(&r, timeout, &mut report).map_err(|e| match e {
            Error::Gone(_) => e,
            e => Error::Unfinished { pid, why: Box::new(e) },
        })?;
    }
    // From here on no function leads to the hook. Calls of fibers are known as long as the ring is there.
    let fibers = options.children && fibers::may_be(&r);
    // From here on no function leads to the hook.
    let unfinished = |e: Error| Error::Unfinished { pid, why: Box::new(e) };
    match remove(&r, &functions, entered, timeout, &mut report) {
        Err(e) if matches!(e, Error::Gone(_)) || proc::has_ended(pid) => return Err(e),
        // Of no thread can be asked what prof needs.
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
                .push(format!("prof's memory, as no thread could be made to unmap it: {why}"));
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

/// Takes out all that is left when the functions are as they were.
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
    // Originals of named functions return by way of code of the target's own.
    let inside: Vec<Range<u64>> =
        ours.iter().cloned().chain(crate::bridge::range(c.bridge)).collect();
    let came = c.flag_addr != 0 && entered;
    if came && !wait_outside(r, &inside, timeout, report)? {
        report.left.push(format!(
            "a thread is still inside prof's code after {} s: the hook stays mapped, without effect; run `prof detach {pid}` again later",
            timeout.as_secs()
        ));
        return Ok(());
    }
    if came && let Some(why) = wait_for_fibers(r, &inside, timeout, report)? {
        report.left.push(format!(
            "{why}: the hook stays mapped, without effect; run `prof detach {pid}` again later"
        ));
        return Ok(());
    }
    // The collector has the ring mapped itself, and sees this after the target has let go of it.
    let at = r.ring.plus(core::mem::offset_of!(Header, state) as u64);
    r.mem.write(at, &state::DETACHED.to_ne_bytes())?;
    let mapped = Mapped { kept, ..mapped(r) };
    if let Some(page) = kept {
        signal::clear_page(&r.mem, c.handler)?;
        log::debug!("kept: {:#x}", page.addr);
    }
    let stops = &mut report.stops;
    let mut site = Site { pid, mem: &r.mem, gadgets, timeout, stops, refused: None };
    site.unmap_all(&mapped);
    report.stays = site.refused == Some(Errno::EPERM);
    if still_open(pid) || ring_in(&proc::maps(pid)?).is_some() {
        // Of an earlier attach that was interrupted.
        sweep(pid, timeout)?;
    }
    verify(r, &ours, functions, report);
    if let Some(signal) = handler {
        verify_handler(r, &ours, gadgets, signal, timeout, report);
    }
    Ok(())
}

/// Whether the signal's handler is still prof's; the target may have set one of its own since.
fn verify_handler(
    r: &Recorded,
    ours: &[Range<u64>],
    gadgets: Gadgets,
    signal: u32,
    timeout: Duration,
    report: &mut DetachReport,
) {
    let caught = |s: Status| s.signals("SigCgt") >> (signal - 1) & 1 == 1;
    if !Status::of(r.pid).is_ok_and(caught) {
        return;
    }
    let handler = with_caller(r.pid, &r.mem, gadgets, timeout, &mut report.stops, |c| {
        signal::handler_of(c, &r.mem, signal, None)
    });
    // What can't be asked was put back before.
    if handler.is_ok_and(|at| ours.iter().any(|a| a.contains(&at))) {
        report.left.push(format!("a handler of {}", activate::signal_name(signal as i32)));
    }
}

/// Puts back what the toggle signal did before; returns the signal if its handler was prof's, and no other
/// is left, and the page of the handler if that stays.
fn restore_handlers(
    r: &Recorded,
    gadgets: Gadgets,
    timeout: Duration,
    report: &mut DetachReport,
) -> Result<(Option<u32>, Option<Area>)> {
    let c = &r.control;
    if !(1..=8 * SIGSET_LEN as u32).contains(&c.signal) {
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
        // It may have begun to wait for the signal while it was recorded.
        keep_pending: signal::taken(r.pid, &r.mem, c.signal)?.is_some(),
    };
    let mut restore = |pid: i32| {
        with_caller(pid, &r.mem, gadgets, timeout, &mut report.stops, |c| {
            signal::restore(c, &r.mem, &action)
        })
    };
    let restored = restore(r.pid)?;
    let mut all_restored = restored;
    // A process that was made since has a copy of the handlers.
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

/// The page of the toggle signal's handler, if the target may call that later: it has a handler of its own
/// by now, and may chain to the one from before, or it keeps the address somewhere.
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
        log::warn!("a thread stands at the handler of {}", activate::signal_name(c.signal as i32));
    }
    let page = signal::page_of(c.handler);
    report.notes.push(format!(
        "the target may have kept the address of prof's handler for {}: the page at {:#x} stays mapped, with a return and nothing else in it",
        activate::signal_name(c.signal as i32),
        page.addr
    ));
    Ok(Some(page))
}

/// Where prof's code is.
pub(crate) fn areas(r: &Recorded) -> Vec<Range<u64>> {
    let c = &r.control;
    let hook = Area { addr: c.hook_addr, len: c.hook_len };
    c.stubs.iter().chain([&hook]).filter(|a| a.len != 0).map(range).collect()
}

/// Puts the functions' bytes back, with all threads stopped.
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
        report.notes.push(format!("process {other} has the same memory, and is rid of prof, too"));
    }
    failed
}

fn unpatch_one(r: &Recorded, f: &Patched, report: &mut DetachReport) -> Result<()> {
    put_back(r, f, report)?;
    r.mem.write(f.patched_at, &0u32.to_ne_bytes())
}

/// Puts a function's bytes back, if prof's are there.
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
        let (bytes, what) = crate::probed::restored(at, &now, f);
        if bytes != now {
            r.mem.write(at, &bytes)?;
        }
        report.notes.push(format!("{}: {what} at {at}", f.name));
    }
    Ok(())
}

/// Waits until no thread is inside prof's code.
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
            // Patches are gone, so a thread that is outside now stays outside.
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
                // It can't be seen now: it may be inside.
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

/// Waits until no call that was begun on a stack which no thread is on is under way; why not, if some are.
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
            "calls of hooked functions are under way on stacks that no thread is on, of fibers that were switched away ({} of them, one frame at {first:#x})",
            frames.at.len()
        )));
    }
    if frames.partly {
        return Ok(Some("calls were left by a jump, or by fibers, and there was not the time to look at all memory for their frames".into()));
    }
    // Whoever has just returned to the hook must have left it, too.
    let outside = wait_outside(r, ours, timeout, report)?;
    Ok((!outside).then(|| "a thread is still inside prof's code".into()))
}

/// Whether the hook's own note for a thread says that it is inside. A note of a frame below the stack
/// pointer is stale: the frame was left by a jump.
fn is_marked(r: &Recorded, regs: &UserRegs) -> bool {
    let thread_slots = r.slots();
    let is_its = |s: &&SlotNote| s.tp == regs.thread_pointer() && s.is_live;
    let Some(slot) = thread_slots.iter().find(is_its) else { return false };
    let at = |sp: u64| sp != 0 && !(regs.sp() > sp && regs.sp() - sp < 1 << 20);
    slot.inside.into_iter().any(at)
}

/// Looks for what should be gone. `functions` were hooked.
fn verify(r: &Recorded, ours: &[Range<u64>], functions: &[Patched], report: &mut DetachReport) {
    let pid = r.pid;
    let Ok(maps) = proc::maps(pid) else { return };
    if ring_in(&maps).is_some() {
        report.left.push("the mapping of the ring".into());
    }
    let place = range(&r.control.place);
    for a in ours.iter().chain([&place]).filter(|a| !a.is_empty()) {
        let area = Area { addr: a.start, len: a.end - a.start };
        if is_ours(&maps, area, Kind::Code) {
            report.left.push(format!("memory at {:#x}", a.start));
        }
    }
    let mem = &r.mem;
    for f in functions {
        let mut now = vec![0u8; f.new_bytes.len()];
        if mem.read(f.patch_addr, &mut now).is_ok() && now == f.new_bytes && now != f.old_bytes {
            report.left.push(format!("the hook of {}", f.name));
        }
    }
    if still_open(pid) {
        report.left.push("a descriptor of the ring".into());
    }
    for m in elf::modules(mem, &maps) {
        if let Some(what) = crate::verify::text_differs(pid, mem, &m, &maps) {
            report.notes.push(what);
        }
    }
}

pub(crate) fn still_open(pid: i32) -> bool {
    let dirs = proc::threads(pid).unwrap_or_default();
    // One that has ended shows none.
    let dirs = dirs.iter().take(MOST_TABLES).map(|tid| format!("/proc/{pid}/task/{tid}"));
    dirs.into_iter().any(|dir| !left(dir.as_ref()).is_empty())
}

/// Removes what an attach left that was interrupted before it could say what it had done: an empty
/// ring, or a descriptor of it. `false`: there is nothing of that kind.
///
/// # Errors
/// If the target can't be stopped.
pub fn clean(pid: i32, timeout: Duration) -> Result<bool> {
    let _lock = crate::lock::lock(pid)?;
    crate::shortage::check_descriptors(pid)?;
    clean_locked(pid, timeout)
}

/// The same, by somebody who holds the target's lock.
pub(crate) fn clean_locked(pid: i32, timeout: Duration) -> Result<bool> {
    if Recorded::open(pid).is_ok() {
        return Ok(false);
    }
    isolated(|| sweep(pid, timeout))
}

/// Whether a control page stands there.
fn is_in_use(mem: &RemoteMemory, at: RemoteAddr) -> bool {
    let mut magic = [0; 8];
    mem.read(at, &mut magic).is_ok() && u64::from_ne_bytes(magic) == prof_trace::shared::MAGIC
}

/// Threads whose descriptors are looked at; nearly always they have one table.
const MOST_TABLES: usize = 64;

/// Unmaps all rings and closes all their descriptors.
fn sweep(pid: i32, timeout: Duration) -> Result<bool> {
    let mem = RemoteMemory::open(pid)?;
    // First: a thread may still have to make the call that makes a ring. A process without the code
    // that calls are made with has none of them.
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
        // In use: a collector has the ring of another process mapped.
        return Ok(false);
    }
    if there.is_empty() && !still_open(pid) {
        return Ok(false);
    }
    let stops = &mut StopTimes::default();
    Site { pid, mem: &mem, gadgets: gadgets?, timeout, stops, refused: None }.alone(|c| {
        // As they are now: the target may have put something of its own there since.
        for a in rings(&proc::maps(pid)?) {
            unmap_at(c, a)?;
        }
        close_left(pid, c)?;
        Ok(true)
    })
}
