//! Finds calls of hooked functions that are in progress on stacks which no thread is on: those of fibers that were
//! switched away inside an original. When such a fiber goes on, by whichever thread, the call returns into the hook.
//!
//! The hook keeps no list of them. But the frame of each such call holds two addresses in the shared memory: that of
//! the function's entry in the table of functions, and that of a thread's slot. The hook removes the second when the
//! original has returned. So prof searches all private writable memory for frames, if the slots say that there may be
//! any at all.

use crate::recorded::Recorded;
use crate::stopped::tracee::Tracee;
use crate::{RemoteAddr, Result};
use core::mem::offset_of;
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::capture::Call;
use prof_os::maps::{self, Map};
use prof_os::process;
use prof_trace::shared::{FUNCTIONS, Function, LAYOUT, MEMFD_NAME, SLOTS, Shared, Slot};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Maximum duration of a search.
const SEARCH: Duration = Duration::from_secs(10);
/// Number of bytes that are read together.
const PIECE: u64 = 4 << 20;
/// Maximum distance from a frame to its caller's stack pointer.
const NEAR: u64 = 64 << 10;

/// Result of a search.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Frames {
    /// Addresses of the frames that were found.
    pub at: Vec<u64>,
    /// Whether some memory was not searched, as the time was over.
    pub partly: bool,
}

/// Address ranges that the words of a frame point into.
struct Shape {
    functions: Range<u64>,
    slots: Range<u64>,
}

impl Shape {
    fn of(r: &Recorded) -> Self {
        let part = |at: usize, len: usize| {
            let start = r.ring.0.wrapping_add(at as u64);
            start..start.wrapping_add(len as u64)
        };
        Self {
            functions: part(Shared::function_offset(0), FUNCTIONS * size_of::<Function>()),
            slots: part(Shared::slot_offset(0), SLOTS * size_of::<Slot>()),
        }
    }

    /// Returns whether the bytes, from address `at`, are the frame of a call whose original has not returned.
    fn is_frame(&self, at: u64, bytes: &[u8]) -> bool {
        let word = |offset: usize| {
            let b = bytes.get(offset..)?.first_chunk::<8>()?;
            Some(u64::from_ne_bytes(*b))
        };
        let entry = |value: Option<u64>, table: &Range<u64>, size: usize| {
            value.is_some_and(|v| {
                table.contains(&v) && (v - table.start).is_multiple_of(size as u64)
            })
        };
        // The hook keeps notes of its own in the lowest bits.
        let slot = word(offset_of!(Call, note)).map(|n| n & !(align_of::<Slot>() as u64 - 1));
        let caller = word(offset_of!(Call, regs) + offset_of!(prof_arch::native::Regs, sp));
        entry(word(offset_of!(Call, function)), &self.functions, size_of::<Function>())
            && entry(slot, &self.slots, size_of::<Slot>())
            && caller.is_some_and(|sp| sp > at && sp - at < NEAR)
    }
}

/// Returns whether there may be such calls: the hook has seen a call end elsewhere than it began, or a slot says that
/// a thread is inside, though none is.
pub(crate) fn may_be(r: &Recorded) -> bool {
    r.control.layout == LAYOUT
        && r.slots().iter().any(|s| s.abandoned != 0 || s.inside.iter().any(|sp| *sp != 0))
}

/// Searches for frames, in the smallest mappings first.
pub(crate) fn find(r: &Recorded) -> Result<Frames> {
    let deadline = Instant::now() + SEARCH;
    let mut maps = maps::of(r.pid)?;
    maps.retain(|m| m.read && m.write && !m.shared && !m.is_memfd(MEMFD_NAME));
    maps.sort_by_key(Map::len);
    let pagemap = File::open(format!("/proc/{}/pagemap", r.pid)).ok();
    let shape = Shape::of(r);
    let mut found = Frames::default();
    for m in &maps {
        for at in (m.start.0..m.end.0).step_by(PIECE as usize) {
            if Instant::now() >= deadline {
                found.partly = true;
                return Ok(found);
            }
            for part in present(pagemap.as_ref(), at..m.end.0.min(at + PIECE)) {
                look(r, &shape, part, m.end.0, &mut found.at);
            }
        }
    }
    found.at.sort_unstable();
    found.at.dedup();
    if !found.at.is_empty() {
        let tops = tops(r, &maps)?;
        found.at.retain(|at| !tops.iter().any(|dead| dead.contains(at)));
    }
    Ok(found)
}

/// Returns whether a call whose frame was found has not returned yet.
pub(crate) fn is_under_way(r: &Recorded, at: u64) -> bool {
    let bytes = r.memory().read_some(RemoteAddr(at), size_of::<Call>());
    Shape::of(r).is_frame(at, &bytes)
}

/// Returns the parts of a range that have pages. Reading the others would make the kernel allocate pages for them.
fn present(pagemap: Option<&File>, all: Range<u64>) -> Vec<Range<u64>> {
    let page = prof_os::page_size();
    let pages = ((all.end - all.start) / page) as usize;
    let mut entries = vec![0u8; pages * 8];
    let read = pagemap.map(|f| f.read_exact_at(&mut entries, all.start / page * 8));
    if !matches!(read, Some(Ok(()))) {
        return vec![all];
    }
    let mut parts: Vec<Range<u64>> = Vec::new();
    for (i, e) in entries.as_chunks::<8>().0.iter().enumerate() {
        // The page is in memory, or swapped out.
        if u64::from_ne_bytes(*e) >> 62 == 0 {
            continue;
        }
        let at = all.start + i as u64 * page;
        match parts.last_mut().filter(|p| p.end == at) {
            Some(p) => p.end = at + page,
            None => parts.push(at..at + page),
        }
    }
    parts
}

/// Adds the frames that begin in this part of a mapping, which ends at `end`.
fn look(r: &Recorded, shape: &Shape, part: Range<u64>, end: u64, found: &mut Vec<u64>) {
    let to = end.min(part.end + size_of::<Call>() as u64);
    let bytes = r.memory().read_some(RemoteAddr(part.start), (to - part.start) as usize);
    // Frames are aligned to 8 bytes on every architecture.
    let (low, high) = (shape.functions.start, shape.functions.end);
    for (i, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
        let word = u64::from_ne_bytes(*word);
        let Some(from) = (i * 8).checked_sub(offset_of!(Call, function)) else { continue };
        if low <= word && word < high {
            let at = part.start + from as u64;
            if shape.is_frame(at, &bytes[from..]) {
                found.push(at);
            }
        }
    }
}

/// Returns the ranges below the stack pointers of threads, on the threads' own stacks. Frames there are stale: they
/// were left by a jump or an exception. A stack is a thread's own if libc's descriptor of the thread is on it, or if
/// the kernel names it as the process's stack.
fn tops(r: &Recorded, maps: &[Map]) -> Result<Vec<Range<u64>>> {
    let mut dead = Vec::new();
    for tid in process::threads(r.pid)? {
        let Some(mut t) = Tracee::seize(r.pid, tid)? else { continue };
        t.interrupt();
        if let Ok(true) = t.wait_stopped(Instant::now() + Duration::from_secs(1))
            && let Ok(regs) = t.regs()
        {
            let (sp, tp) = (RemoteAddr(regs.sp()), RemoteAddr(regs.thread_pointer()));
            let own = |m: &&Map| m.holds(sp) && (m.holds(tp) || m.name == b"[stack]");
            dead.extend(maps.iter().find(own).map(|m| m.start.0..sp.0));
        }
        t.detach();
    }
    Ok(dead)
}
