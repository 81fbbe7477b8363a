//! Waits until no thread is inside prof's code.

use crate::Result;
use crate::process::elf;
use crate::process::sharing::about;
use crate::recorded::Recorded;
use crate::report::DetachReport;
use crate::stopped::tracee::Tracee;
use crate::stopped::walk::Walker;
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::UserRegs;
use prof_os::sharers::Sharers;
use prof_os::{Pid, maps, task};
use prof_trace::protocol::remote::ThreadSlot;
use prof_trace::shared::{Area, MEMFD_NAME, SharedArea};
use std::collections::HashSet;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Returns the address ranges of prof's code: stubs and hook.
pub(crate) fn areas(r: &Recorded) -> Vec<Range<u64>> {
    let c = &r.control;
    let hook = Area { addr: c.hook_addr, len: c.hook_len };
    c.stubs
        .iter()
        .map(SharedArea::get)
        .chain([hook])
        .filter(|a| a.len != 0)
        .map(|a| range(&a))
        .collect()
}

/// Returns an area as a range.
fn range(a: &Area) -> std::ops::Range<u64> {
    a.addr..a.addr.saturating_add(a.len)
}

/// Waits until no thread is inside prof's code. Returns `false` after `timeout`.
pub(crate) fn wait_outside(
    r: &Recorded,
    ours: &[Range<u64>],
    timeout: Duration,
    report: &mut DetachReport,
) -> Result<bool> {
    let deadline = Instant::now() + timeout;
    let maps = maps::of(r.pid)?;
    let mut walker = Walker::new(&r.mem, elf::modules(&r.mem, &maps), maps);
    walker.read_tables();
    let mut clear: HashSet<Pid> = HashSet::new();
    let mut sharers = Sharers::of(r.pid, MEMFD_NAME);
    loop {
        let mut waiting = false;
        for (pid, tid) in sharers.threads()? {
            if clear.contains(&tid) {
                continue;
            }
            // The patches are gone, so a thread that is outside now stays outside.
            if task::asleep(pid, tid).is_some_and(|a| walker.is_clear(&a, ours)) {
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

/// Returns whether the thread's slot says that it is inside the hook. A mark of a frame below the stack pointer is
/// stale: that frame was left by a jump.
fn is_marked(r: &Recorded, regs: &UserRegs) -> bool {
    let thread_slots = r.slots();
    let is_its = |s: &&ThreadSlot| s.tp == regs.thread_pointer() && s.is_live;
    let Some(slot) = thread_slots.iter().find(is_its) else { return false };
    let at = |sp: u64| sp != 0 && !(regs.sp() > sp && regs.sp() - sp < 1 << 20);
    slot.inside.into_iter().any(at)
}
