//! Jumps that come back into the code after a detach has taken them out: a program may copy the text of a library while
//! it is hooked, and put that copy in the place of the original later (to have it in huge pages).

use crate::recorded::{Patched, Recorded};
use crate::report::DetachReport;
use crate::stopped::threads::stop_all;
use crate::{RemoteMemory, Result};
use std::time::Duration;

/// Maximum number of times that a detach takes such jumps out before it leaves prof's memory where it is.
pub(crate) const TRIES: usize = 8;

/// Returns whether any of the functions has prof's jump.
pub(crate) fn are_back(mem: &RemoteMemory, functions: &[Patched]) -> bool {
    functions.iter().any(|f| is_back(mem, f))
}

fn is_back(mem: &RemoteMemory, f: &Patched) -> bool {
    let mut now = vec![0; f.new_bytes.len()];
    mem.read(f.patch_addr, &mut now).is_ok() && now == f.new_bytes && now != f.old_bytes
}

/// Stops all threads and takes the jumps out once more.
///
/// # Errors
/// If the threads can't be stopped, or the code can't be written. All other jumps are taken out then.
pub(crate) fn take_out(
    r: &Recorded,
    functions: &[Patched],
    timeout: Duration,
    report: &mut DetachReport,
) -> Result<()> {
    let stopped = stop_all(r.pid, timeout)?;
    let mut done = Ok(());
    for f in functions.iter().filter(|f| is_back(&r.mem, f)) {
        match r.mem.write(f.patch_addr, &f.old_bytes) {
            Ok(()) => report.notes.push(format!(
                "{}: the jump to prof had come back with an older copy of the code, and is taken out again",
                f.name
            )),
            Err(e) => done = Err(e),
        }
    }
    stopped.resume(&mut report.stops);
    done
}
