//! Takes prof's handler of the toggle signal out of the target.

use crate::mapped::mapping::{Kind, is_ours};
use crate::outside::areas;
use crate::process::sharing::about;
use crate::recorded::Recorded;
use crate::report::DetachReport;
use crate::stopped::candidates::with_caller;
use crate::stopped::gadgets::Gadgets;
use crate::{RemoteAddr, Result, signal};
use prof_arch::native::syscall::{SIGSET_LEN, sigaction_handler};
use prof_os::maps;
use prof_os::sharers::Sharers;
use prof_os::status::Status;
use prof_trace::shared::{Area, MEMFD_NAME, Stable};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Restores the toggle signal's earlier action. Returns the signal if it has no handler now, so that a handler of
/// prof's would be left over, and the page of prof's handler if that has to stay mapped.
pub(crate) fn restore_handlers(
    r: &Recorded,
    gadgets: Gadgets,
    timeout: Duration,
    report: &mut DetachReport,
) -> Result<(Option<u32>, Option<Area>)> {
    let c = &r.control;
    // An earlier detach has restored the action before it unmapped the hook.
    if c.hook_len == 0 || !(1..=8 * SIGSET_LEN as u32).contains(&c.signal.load(Relaxed)) {
        return Ok((None, None));
    }
    let old: Vec<u8> = c.old_action.iter().flat_map(|w| w.load(Relaxed).to_ne_bytes()).collect();
    let old = &old[..(c.old_action_len.load(Relaxed) as usize).min(32)];
    let at = r.stable_at(core::mem::offset_of!(Stable, signal_ignored));
    let flag = Area { addr: c.flag_addr.load(Relaxed), len: c.flag_len };
    let action = signal::OldAction {
        signal: c.signal.load(Relaxed),
        old,
        ours: c.hook_addr..c.hook_addr.saturating_add(c.hook_len),
        ignored: (c.signal_ignored.load(Relaxed) != 0, at),
        scratch: is_ours(&maps::of(r.pid)?, flag, Kind::Any)
            .then(|| RemoteAddr(c.flag_addr.load(Relaxed)).plus(1024)),
        // The target may have begun to wait for the signal (sigwait, signalfd) while it was recorded. Pending ones
        // are then meant for that.
        keep_pending: signal::taken(r.pid, &r.mem, c.signal.load(Relaxed))?.is_some(),
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
    let sharers = Sharers::of(r.pid, MEMFD_NAME);
    for other in sharers.others().iter().copied() {
        if caught(other) >> (c.signal.load(Relaxed) - 1) & 1 == 1 && sharers.still_shares(other) {
            all_restored &= restore(other).map_err(|e| about(r.pid, other, e))?;
        }
    }
    if !restored {
        report.notes.push(format!(
            "the target has installed its own handler for {} meanwhile, and keeps it",
            signal::signal_name(c.signal.load(Relaxed) as i32)
        ));
    }
    let default = restored && sigaction_handler(old) <= libc::SIG_IGN as u64;
    let kept = keep_handler(r, all_restored, timeout, report)?;
    Ok((default.then_some(c.signal.load(Relaxed)), kept))
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
    if !hook.contains(&c.handler.load(Relaxed)) {
        return Ok(None);
    }
    let mut ours = areas(r);
    let flag = c.flag_addr.load(Relaxed);
    ours.push(flag..flag.saturating_add(c.flag_len));
    let maps = maps::of(r.pid)?;
    if restored && !signal::is_remembered(r.pid, &r.mem, &maps, c.handler.load(Relaxed), &ours) {
        return Ok(None);
    }
    if !signal::silence(r.pid, &r.mem, c.handler.load(Relaxed), timeout, &mut report.stops)? {
        log::warn!(
            "a thread is in prof's handler for {} right now, so that could not be replaced by a return",
            signal::signal_name(c.signal.load(Relaxed) as i32)
        );
    }
    let page = signal::page_of(c.handler.load(Relaxed));
    report.notes.push(format!(
        "the target may still call prof's handler for {}: the page at {:#x} stays mapped, with nothing but a return in it, and has no effect",
        signal::signal_name(c.signal.load(Relaxed) as i32),
        page.addr
    ));
    Ok(Some(page))
}
