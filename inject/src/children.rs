//! Finds children that were forked from a recorded process, and takes prof out of them.
//!
//! Such a child has copies of the patched functions, of the hook and of its handler of signals, all switched
//! off, and no mapping of the ring.

use crate::handler::{is_signal, keep_handler};
use crate::mapped::mapping::{Mapped, Site};
use crate::outside::{areas, wait_outside};
use crate::permission::may_trace;
use crate::process::rings::ring_in;
use crate::recorded::{Patched, Recorded};
use crate::report::DetachReport;
use crate::stopped::candidates::with_caller;
use crate::stopped::fibers;
use crate::stopped::gadgets::Gadgets;
use crate::stopped::threads::stop_all;
use crate::unpatch::put_back;
use crate::{Error, RemoteAddr, RemoteMemory, Result, isolated, signal};
use prof_os::status::Status;
use prof_os::{Pid, maps, process};
use prof_trace::shared::{Area, FLAG_COOKIE, LAYOUT, Purpose};
use prof_trace::values::text::time;
use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Returns the processes that run the program `exe` and have prof's patches in them, except `parent` and those that are
/// recorded themselves.
fn with_jumps(parent: Pid, exe: &Path, functions: &[Patched]) -> Vec<Pid> {
    let has = |mem: &RemoteMemory, f: &Patched| {
        let mut now = vec![0u8; f.new_bytes.len()];
        f.new_bytes != f.old_bytes && mem.read(f.patch_addr, &mut now).is_ok() && now == f.new_bytes
    };
    let has_jump = |pid: &Pid| {
        process::exe(*pid) == exe
            && RemoteMemory::open(*pid).is_ok_and(|m| functions.iter().any(|f| has(&m, f)))
            && !maps::of(*pid).is_ok_and(|maps| ring_in(&maps).is_some())
    };
    let dir = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = dir.filter_map(|e| e.file_name().to_str()?.parse::<Pid>().ok());
    pids.filter(|p| *p != parent).filter(has_jump).collect()
}

/// Returns the number of children in words, and a list of their pids that ends after a few.
fn named(all: &[Pid]) -> (String, String) {
    const NAMED: usize = 8;
    let mut names: Vec<String> = all.iter().take(NAMED).map(Pid::to_string).collect();
    if all.len() > NAMED {
        names.push(format!("and {} more", all.len() - NAMED));
    }
    let many = if all.len() == 1 { "1 child".into() } else { format!("{} children", all.len()) };
    (many, names.join(", "))
}

/// Returns the message on the rest of prof that an error leaves in a child. Most errors name the process themselves.
fn in_child(pid: Pid, error: &str) -> String {
    let names_it = error.contains(&format!("pid {pid}"));
    if names_it { format!("in a child: {error}") } else { format!("in child {pid}: {error}") }
}

/// Adds a note to the report that names the children with prof's patches.
pub(crate) fn note(r: &Recorded, functions: &[Patched], report: &mut DetachReport) {
    let all = with_jumps(r.pid, &process::exe(r.pid), functions);
    if all.is_empty() {
        return;
    }
    let (many, names) = named(&all);
    report.notes.push(format!(
        "{many} forked while it was recorded {} prof's patches and code, inactive, until they end or run another program (`prof detach --children`, or `prof detach` of each, takes them out): {names}",
        if all.len() == 1 { "keeps" } else { "keep" }
    ));
}

/// Takes prof out of the children. `fibers`: the process may have calls in progress on stacks that no thread is on,
/// and so may its children.
pub(crate) fn take_out(
    mut r: Recorded,
    functions: &[Patched],
    fibers: bool,
    timeout: Duration,
    report: &mut DetachReport,
) {
    let (parent, exe) = (r.pid, process::exe(r.pid));
    let (mut seen, mut done) = (HashSet::new(), Vec::new());
    loop {
        // Children that these fork meanwhile have copies as well.
        let mut all = with_jumps(parent, &exe, functions);
        all.retain(|pid| seen.insert(*pid));
        if all.is_empty() {
            break;
        }
        for pid in all {
            match take_out_one(&mut r, pid, functions, fibers, timeout, report) {
                Ok(()) => done.push(pid),
                Err(_) if process::has_ended(pid) => {}
                Err(e) => report.left.push(in_child(pid, &e.to_string())),
            }
        }
    }
    if !done.is_empty() {
        let (many, names) = named(&done);
        report.notes.push(format!(
            "{many} forked while it was recorded: prof's patches are removed: {names}"
        ));
    }
}

/// Takes prof out of a process that was forked while its parent was recorded, even if the parent has ended. Returns
/// `None` if nothing in the process says that it was.
///
/// # Errors
/// If the process may not be traced, or can't be stopped.
pub fn take_out_alone(pid: Pid, timeout: Duration) -> Result<Option<DetachReport>> {
    if !crate::inherited::is_copy(pid) {
        return Ok(None);
    }
    let Some((mut r, functions)) = crate::inherited::as_parent(pid)? else { return Ok(None) };
    let mut report = DetachReport::default();
    // Nothing is known about the parent's stacks at the fork, so calls of fibers are looked for, if this build knows
    // how.
    let fibers = r.control.layout == LAYOUT;
    let done = isolated(|| take_out_one(&mut r, pid, &functions, fibers, timeout, &mut report));
    match done {
        Ok(()) => {}
        Err(Error::Nonsense { what, .. }) => report.left.push(what),
        Err(e) => return Err(e),
    }
    Ok(Some(report))
}

/// Removes prof from one child. `r` describes the parts to remove, and refers to the child afterwards.
fn take_out_one(
    r: &mut Recorded,
    pid: Pid,
    functions: &[Patched],
    fibers: bool,
    timeout: Duration,
    report: &mut DetachReport,
) -> Result<()> {
    let _lock = crate::lock::lock(pid)?;
    may_trace(pid)?;
    r.pid = pid;
    r.mem = RemoteMemory::open(pid)?;
    // A process that shares its parent's memory, or is recorded itself, has prof in use. In a mere copy the kernel
    // has wiped the cookie.
    let mut cookie = [0; 4];
    r.mem.read(RemoteAddr(r.control.flag_addr.load(Relaxed)).plus(4), &mut cookie)?;
    if u32::from_ne_bytes(cookie) == FLAG_COOKIE || ring_in(&maps::of(pid)?).is_some() {
        return Err(Error::Nonsense {
            pid,
            what: format!("it is recorded itself; `prof detach {pid}` ends that"),
        });
    }
    let stopped = stop_all(pid, timeout)?;
    let done = functions.iter().try_for_each(|f| put_back(r, f, report));
    stopped.resume(&mut report.stops);
    done?;
    let gadgets = Gadgets::find(pid, &r.mem, &maps::of(pid)?)?;
    let kept = restore_handler(r, gadgets, timeout, report)?;
    let ours = areas(r);
    let inside: Vec<_> =
        ours.iter().cloned().chain(crate::mapped::bridge::range(r.control.bridge)).collect();
    if !wait_outside(r, &inside, timeout, report)? {
        let what = format!(
            "a thread is still inside prof's code after {}: the hook stays mapped, without effect; run `prof detach {pid}` again later",
            time(timeout)
        );
        return Err(Error::Nonsense { pid, what });
    }
    if fibers {
        let frames = fibers::find(r)?;
        if frames.partly || !frames.at.is_empty() {
            let what = format!(
                "fibers (coroutines) that are not running at the moment may be inside a hooked function: the hook stays mapped, without effect; run `prof detach {pid}` again later"
            );
            return Err(Error::Nonsense { pid, what });
        }
    }
    if kept.is_some() {
        signal::clear_page(&r.mem, r.control.handler.load(Relaxed))?;
    }
    let ring = Area { addr: r.ring.0, len: r.ring_len };
    let mut all = Mapped { kept, ring: Area::default(), ..Mapped::of(r) };
    let mut site = Site::new(pid, &r.mem, gadgets, timeout, &mut report.stops);
    site.hooked = functions;
    let gone = site.unmap_all(&mut all) & site.unmap_copies(ring);
    match site.failed {
        _ if gone => Ok(()),
        Some(e) => Err(e),
        None => Err(Error::Nonsense { pid, what: "a jump to prof came back into its code".into() }),
    }
}

/// Restores the earlier actions of prof's signals in a child. Returns the page of the handler if that has to stay mapped.
fn restore_handler(
    r: &Recorded,
    gadgets: Gadgets,
    timeout: Duration,
    report: &mut DetachReport,
) -> Result<Option<Area>> {
    let c = &r.control;
    let (mut any, mut all_restored) = (false, true);
    for taken in Purpose::ALL.map(|p| c.taken(p)) {
        let number = taken.signal.load(Relaxed);
        let caught = |s: Status| s.signals("SigCgt") >> (number - 1) & 1 == 1;
        if !is_signal(number) || !Status::of(r.pid).is_ok_and(caught) {
            continue;
        }
        any = true;
        let old: Vec<u8> =
            taken.action.iter().flat_map(|w| w.load(Relaxed).to_ne_bytes()).collect();
        let action = signal::OldAction {
            signal: number,
            old: &old[..(taken.action_len.load(Relaxed) as usize).min(32)],
            ours: c.hook_addr..c.hook_addr.saturating_add(c.hook_len),
            // A child has no ring to note in that the signal is ignored for a moment. So pending signals are not
            // discarded.
            ignored: (false, RemoteAddr(0)),
            scratch: Some(RemoteAddr(c.flag_addr.load(Relaxed)).plus(1024)),
            keep_pending: true,
        };
        all_restored &= with_caller(r.pid, &r.mem, gadgets, timeout, &mut report.stops, |c| {
            signal::restore(c, &r.mem, &action)
        })?;
    }
    if any { keep_handler(r, all_restored, timeout, report) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_named_once() {
        let text = in_child(Pid::from_raw(17), &Error::Gone(Pid::from_raw(17)).to_string());
        assert_eq!(
            (text.matches("17").count(), text.starts_with("in a child: ")),
            (1, true),
            "{text}"
        );
        let text = in_child(Pid::from_raw(17), &Error::FileLimit(4096).to_string());
        assert!(text.starts_with("in child 17: "), "{text}");
    }
}
