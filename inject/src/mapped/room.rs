//! The room for threads in the shared memory.

use crate::sandbox::is_filtered;
use prof_os::Pid;
use prof_os::cgroup::{Cgroups, lowest_limit};
use prof_os::limits::soft_limit;
use prof_os::memory::available;
use prof_os::status::Status;
use prof_trace::shared::{Geometry, MORE_SLOTS};
use std::fs;
use std::path::Path;

/// Returns how many thread slots to add to those of a geometry: twice the number of threads that the kernel lets the process
/// have, at most [`MORE_SLOTS`], or none if the first ones suffice. Returns 0 also where the whole ring would count, although
/// few pages are used: against a limit of address space or file size, or if the process locks its memory. A process that locks
/// its memory (`mlockall`) later gets pages for all of these slots if they are open by then. Where a filter keeps the hook from
/// opening them they are open from the attach on, so there are no more than the machine, or the container, has memory for.
pub(crate) fn more_threads(pid: Pid, geometry: Geometry) -> usize {
    let locks = Status::of(pid).is_ok_and(|s| s.number("VmLck").is_some_and(|kb| kb > 0));
    let ours = Pid::this();
    let limited = [pid, ours].iter().any(|p| {
        ["Max address space", "Max file size"].iter().any(|name| soft_limit(*p, name).is_some())
    });
    if locks || limited {
        return 0;
    }
    let kernel = ["/proc/sys/kernel/threads-max", "/proc/sys/kernel/pid_max"];
    let kernel = kernel.iter().filter_map(|f| number(Path::new(f)));
    let most = kernel.chain(of_cgroups(pid)).min().unwrap_or(usize::MAX);
    // With at most half of the slots in use, few threads need to look beyond the slot that they try first.
    let wanted = most.saturating_mul(2);
    if wanted <= geometry.states() {
        return 0;
    }
    if !is_filtered(pid) {
        return wanted.min(MORE_SLOTS);
    }
    let memory = of_memory(pid);
    let mut slots = wanted.min(MORE_SLOTS).next_power_of_two();
    let reserve = |slots| geometry.with_more_threads(slots).size().saturating_sub(geometry.size());
    while slots >= LEAST && reserve(slots) as u64 > memory {
        slots /= 2;
    }
    if slots < LEAST { 0 } else { slots.min(wanted) }
}

/// Least number of slots that are added.
const LEAST: usize = 128;

/// Returns the bytes that prof's memory may take at the very most, if all of it is locked: two thirds of what is available, or
/// of what the process's cgroups let it have.
fn of_memory(pid: Pid) -> u64 {
    let group = Cgroups::of(pid).with_controller("memory");
    let limit = group.and_then(|g| lowest_limit(&g, "memory.max")).map(|l| l.0);
    let all = available().into_iter().chain(limit).min().unwrap_or(u64::MAX);
    all / 3 * 2
}

fn number(file: &Path) -> Option<usize> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Returns the least number of tasks that the process's cgroups allow.
fn of_cgroups(pid: Pid) -> Option<usize> {
    let group = Cgroups::of(pid).with_controller("pids")?;
    usize::try_from(lowest_limit(&group, "pids.max")?.0).ok()
}
