//! Finds the place in libc's thread descriptor that holds a thread's id.

use crate::installed::Installed;
use crate::stopped::candidates::{Fitness, candidates};
use crate::stopped::tracee::Tracee;
use crate::{RemoteAddr, RemoteMemory, Result};
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::capture::DESCRIPTOR;
use prof_os::Pid;
use prof_os::status::Status;
use prof_trace::records::NotHooked;
use std::time::{Duration, Instant};

/// Returns the offset from the thread pointer at which libc keeps a thread's id: the one that all examined threads
/// have in common. Of several offsets the nearest to the thread pointer is taken, since memory further away may be
/// stack.
pub(crate) fn tid_offset(pid: Pid, i: &mut Installed) -> Result<Option<i32>> {
    const SPAN: usize = (DESCRIPTOR.end - DESCRIPTOR.start) as usize;
    let mut common: Option<Vec<usize>> = None;
    let fit = candidates(pid)?;
    let best = fit.first().map_or(Fitness::Running, |f| f.0).max(Fitness::Running);
    for (_, tid) in fit.into_iter().take_while(|f| f.0 <= best).take(8) {
        let Ok(Some(mut t)) = Tracee::seize(pid, tid) else { continue };
        let since = Instant::now();
        t.interrupt();
        let Ok(true) = t.wait_stopped(since + Duration::from_secs(1)) else { continue };
        let regs = t.regs().map(|r| (r.thread_pointer(), r.sp()));
        t.detach();
        i.stops.add(since);
        let Ok((tp, sp)) = regs else { continue };
        // Threads that the kernel itself has in the process (io_uring's) have no stack.
        if tp == 0 && sp != 0 {
            leave_out_calls(i);
        }
        let Some(id) = Status::of_thread(pid, tid).ok().and_then(|s| s.ns_pid()) else { continue };
        let start = RemoteAddr(tp.wrapping_add_signed(i64::from(DESCRIPTOR.start)));
        let bytes = descriptor(&i.mem, start, SPAN);
        let here = |o: &usize| bytes.get(*o..*o + 4) == Some(&id.as_raw().to_ne_bytes()[..]);
        let found: Vec<usize> = match common {
            None => (0..SPAN).step_by(4).filter(here).collect(),
            Some(c) => c.into_iter().filter(here).collect(),
        };
        common = Some(found);
    }
    let offsets = common.into_iter().flatten().map(|o| o as i32 + DESCRIPTOR.start);
    Ok(offsets.min_by_key(|o| o.unsigned_abs()))
}

/// Leaves out the functions that change mappings, as a thread has no thread pointer. The hook finds a thread's state by
/// the thread pointer, which libc sets up before anybody calls an allocator, but maps memory without.
fn leave_out_calls(i: &mut Installed) {
    let all = std::mem::take(&mut i.planned);
    let (calls, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|p| p.found.kind.is_call());
    i.planned = others;
    for p in calls {
        i.not_hooked.push(NotHooked {
            function: p.found.name,
            module: i.modules[p.found.module].path.display().to_string(),
            reason: "a thread has no thread pointer, by which prof would know it: the program has just started. Attach again later to record these calls".into(),
        });
    }
}

/// Reads the memory in which a thread descriptor may lie, with zeroes where nothing is mapped.
fn descriptor(mem: &RemoteMemory, start: RemoteAddr, len: usize) -> Vec<u8> {
    let mut all = Vec::with_capacity(len);
    // The memory is read page by page, in pieces that fit any page size.
    while all.len() < len {
        let at = start.plus(all.len() as u64);
        let n = ((4096 - (at.0 & 4095)) as usize).min(len - all.len());
        let mut piece = mem.read_some(at, n);
        piece.resize(n, 0);
        all.append(&mut piece);
    }
    all
}
