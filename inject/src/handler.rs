//! Takes prof's handler of signals out of the target.

use crate::mapped::ours::{Kind, is_ours};
use crate::outside::areas;
use crate::process::sharing::about;
use crate::recorded::Recorded;
use crate::report::DetachReport;
use crate::stopped::candidates::with_caller;
use crate::stopped::gadgets::Gadgets;
use crate::{RemoteAddr, Result, signal};
use prof_arch::native::syscall::{SIGSET_LEN, sigaction_handler};
use prof_os::sharers::Sharers;
use prof_os::status::Status;
use prof_os::{Pid, maps};
use prof_trace::shared::{Area, MEMFD_NAME, Purpose, Taken};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Restores the earlier actions of the signals that prof has taken. Returns the signals that have no handler now, so that
/// a handler of prof's would be left over, and the page of prof's handler if that has to stay mapped.
pub(crate) fn restore_handlers(
    r: &Recorded,
    gadgets: Gadgets,
    timeout: Duration,
    report: &mut DetachReport,
) -> Result<(Vec<u32>, Option<Area>)> {
    let (mut default, mut any, mut all_restored) = (Vec::new(), false, true);
    for purpose in Purpose::ALL {
        let taken = r.control.taken(purpose);
        let signal = taken.signal.load(Relaxed);
        // An earlier detach has restored the action before it unmapped the hook.
        if r.control.hook_len == 0 || !is_signal(signal) {
            continue;
        }
        any = true;
        match restore_one(r, taken, gadgets, timeout, report)? {
            Restored::Here { default: to_default, everywhere } => {
                default.extend(to_default.then_some(signal));
                all_restored &= everywhere;
            }
            Restored::Not => {
                all_restored = false;
                report.notes.push(format!(
                    "the target has installed its own handler for {} meanwhile, and keeps it",
                    signal::signal_name(signal as i32)
                ));
            }
        }
    }
    let kept = if any { keep_handler(r, all_restored, timeout, report)? } else { None };
    Ok((default, kept))
}

/// Returns whether a number is that of a signal.
pub(crate) fn is_signal(signal: u32) -> bool {
    (1..=8 * SIGSET_LEN as u32).contains(&signal)
}

/// Result of restoring the action of a signal.
enum Restored {
    /// The old action is in force, and ignores the signal or is the default if `default`; in the processes that share
    /// the target's memory as well if `everywhere`.
    Here { default: bool, everywhere: bool },
    /// The target has installed another meanwhile.
    Not,
}

fn restore_one(
    r: &Recorded,
    taken: Taken<'_>,
    gadgets: Gadgets,
    timeout: Duration,
    report: &mut DetachReport,
) -> Result<Restored> {
    let (c, number) = (&r.control, taken.signal.load(Relaxed));
    let old: Vec<u8> = taken.action.iter().flat_map(|w| w.load(Relaxed).to_ne_bytes()).collect();
    let old = &old[..(taken.action_len.load(Relaxed) as usize).min(32)];
    let flag = Area { addr: c.flag_addr.load(Relaxed), len: c.flag_len };
    let action = signal::OldAction {
        signal: number,
        old,
        ours: c.hook_addr..c.hook_addr.saturating_add(c.hook_len),
        ignored: (taken.ignored.load(Relaxed) != 0, r.stable_at(taken.ignored_at)),
        scratch: is_ours(&maps::of(r.pid)?, flag, Kind::Any)
            .then(|| RemoteAddr(c.flag_addr.load(Relaxed)).plus(1024)),
        // The target may have begun to wait for the signal (sigwait, signalfd) while it was recorded. Pending ones
        // are then meant for that.
        keep_pending: signal::taken(r.pid, &r.mem, number)?.is_some(),
    };
    let mut restore = |pid: Pid| {
        with_caller(pid, &r.mem, gadgets, timeout, &mut report.stops, |c| {
            signal::restore(c, &r.mem, &action)
        })
    };
    let restored = restore(r.pid)?;
    let mut everywhere = restored;
    // A process that shares the target's memory and was made since the attach may have its own copy of the handlers.
    let caught =
        |pid: Pid| Status::of(pid).map_or(0, |s| s.signals("SigCgt") | s.signals("SigIgn"));
    let sharers = Sharers::of(r.pid, MEMFD_NAME);
    for other in sharers.others().iter().copied() {
        if caught(other) >> (number - 1) & 1 == 1 && sharers.still_shares(other) {
            everywhere &= restore(other).map_err(|e| about(r.pid, other, e))?;
        }
    }
    let default = sigaction_handler(old) <= libc::SIG_IGN as u64;
    Ok(if restored { Restored::Here { default, everywhere } } else { Restored::Not })
}

/// Names the signals that prof has taken.
fn names(r: &Recorded) -> String {
    let signals = Purpose::ALL.map(|p| r.control.taken(p).signal.load(Relaxed));
    let names: Vec<String> = signals
        .into_iter()
        .filter(|s| is_signal(*s))
        .map(|s| signal::signal_name(s as i32))
        .collect();
    names.join(" and ")
}

/// Returns the page of prof's handler if the target may call that handler later: a handler of its own
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
    let handler = c.handler.load(Relaxed);
    if restored && !signal::is_remembered(r.pid, &r.mem, &maps, handler, &ours, timeout) {
        return Ok(None);
    }
    if !signal::silence(r.pid, &r.mem, c.handler.load(Relaxed), timeout, &mut report.stops)? {
        log::warn!(
            "a thread is in prof's handler for {} right now, so that could not be replaced by a return",
            names(r)
        );
    }
    let page = signal::page_of(c.handler.load(Relaxed));
    report.notes.push(format!(
        "the target may still call prof's handler for {}: the page at {:#x} stays mapped, with nothing but a return in it, and has no effect",
        names(r),
        page.addr
    ));
    Ok(Some(page))
}
