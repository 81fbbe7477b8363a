//! Looks for what a detach has left in a process.

use crate::mapped::library_file;
use crate::mapped::mapping::Mapped;
use crate::mapped::ours::{Kind, is_ours};
use crate::process::elf;
use crate::process::rings::{ring_in, still_open};
use crate::recorded::{Patched, Recorded};
use crate::report::DetachReport;
use crate::stopped::candidates::with_caller;
use crate::stopped::gadgets::Gadgets;
use crate::{again, signal};
use prof_os::maps;
use prof_os::status::Status;
use std::ops::Range;
use std::time::Duration;

/// Reports the remains of prof in the target. `mapped` has the mappings that could not be unmapped, `functions` those
/// that were hooked.
pub(crate) fn verify(
    r: &Recorded,
    mapped: &Mapped,
    functions: &[Patched],
    timeout: Duration,
    report: &mut DetachReport,
) {
    let pid = r.pid;
    // The code that a jump leads to may be unmapped, so no thread may execute the jump.
    if again::are_back(&r.mem, functions)
        && let Err(e) = again::take_out(r, functions, timeout, report)
    {
        e.warn(pid, "a jump to prof has come back");
    }
    let Ok(maps) = maps::of(pid) else { return };
    if ring_in(&maps).is_some() {
        report.left.push("prof's shared memory (still mapped)".into());
    }
    // The target may have mapped something of its own where prof's memory was.
    let place = mapped.place_kind();
    let code = mapped.stubs.iter().chain([&mapped.hook]).map(|a| (a, Kind::Code));
    for (a, kind) in code.chain([(&mapped.place, place)]) {
        if a.len != 0 && is_ours(&maps, *a, kind) {
            let what = if kind == Kind::Code { "code" } else { "stack for the dynamic linker" };
            report.left.push(format!("prof's {what} at {:#x}", a.addr));
        }
    }
    if mapped.library != 0 && maps.iter().any(|m| library_file::is_of(m, mapped.library)) {
        match mapped.kept {
            Some(page) => report.notes.push(format!(
                "the hook's library stays loaded for that handler, at {:#x}",
                page.addr
            )),
            None => report.left.push(format!(
                "the hook's library, loaded at {:#x} and without effect",
                mapped.hook.addr
            )),
        }
    }
    for a in mapped.guards.iter().filter(|a| a.len != 0 && is_ours(&maps, **a, Kind::Guard)) {
        report.left.push(format!("a guard page of prof's at {:#x}", a.addr));
    }
    let mem = &r.mem;
    for f in functions.iter().filter(|f| again::are_back(mem, std::slice::from_ref(f))) {
        report.left.push(format!("prof's patch in {}", f.name));
    }
    if still_open(pid) {
        report.left.push("a descriptor of prof's shared memory".into());
    }
    for m in elf::modules(mem, &maps) {
        if let Some(what) = crate::hooked::verify::text_differs(pid, mem, &m, &maps) {
            report.notes.push(what);
        }
    }
}

/// Reports the signal's handler as left if it is still prof's. The target may have installed one of its own since.
pub(crate) fn verify_handler(
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
    // If the target can't be asked, nothing is reported: the handler was restored before.
    if handler.is_ok_and(|at| ours.iter().any(|a| a.contains(&at))) {
        report.left.push(format!("prof's handler for {}", signal::signal_name(signal as i32)));
    }
}
