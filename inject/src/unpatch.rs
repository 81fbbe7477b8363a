//! Takes prof's patches out of the target's functions.

use crate::Result;
use crate::hooked::probed;
use crate::recorded::{Patched, Recorded};
use crate::report::DetachReport;
use crate::stopped::threads::stop_all;
use prof_os::Pid;
use std::collections::BTreeSet;
use std::time::Duration;

/// Stops all threads and restores the functions' original bytes.
pub(crate) fn unpatch(r: &Recorded, timeout: Duration, report: &mut DetachReport) -> Result<()> {
    let functions = r.functions();
    if !functions.iter().any(|f| f.is_patched) {
        return Ok(());
    }
    let stopped = stop_all(r.pid, timeout)?;
    let others: BTreeSet<Pid> =
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
        let (bytes, what) = probed::restored(at, &now, f);
        if bytes != now {
            r.mem.write(at, &bytes)?;
        }
        report.notes.push(format!("{} (at {at}): {what}", f.name));
    }
    Ok(())
}
