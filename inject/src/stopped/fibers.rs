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
use prof_os::sharers::Sharers;
use prof_trace::shared::{FUNCTIONS, Function, LAYOUT, MEMFD_NAME, SLOTS, Shared, Slot};
use std::collections::HashSet;
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
        let slot = word(offset_of!(Call, note)).map(slot_in);
        let caller = word(offset_of!(Call, regs) + offset_of!(prof_arch::native::Regs, sp));
        entry(word(offset_of!(Call, function)), &self.functions, size_of::<Function>())
            && entry(slot, &self.slots, size_of::<Slot>())
            && caller.is_some_and(|sp| sp > at && sp - at < NEAR)
    }
}

/// Returns whether there may be calls on such stacks: the hook has seen a call end elsewhere than it began, or a slot says that
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
        let living = Living::of(r, &maps)?;
        found.at.retain(|at| !living.have_left(r, &maps, *at));
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

/// The threads that live.
struct Living {
    /// Ranges below their stack pointers, on their own stacks.
    below: Vec<Range<u64>>,
    /// Their thread pointers; `None` if one of the threads could not be stopped.
    pointers: Option<HashSet<u64>>,
}

impl Living {
    /// Stops each thread for a moment.
    fn of(r: &Recorded, maps: &[Map]) -> Result<Self> {
        let (mut below, mut pointers) = (Vec::new(), Some(HashSet::new()));
        for (pid, tid) in Sharers::of(r.pid, MEMFD_NAME).threads()? {
            let Some(mut t) = Tracee::seize(pid, tid)? else { continue };
            t.interrupt();
            match t.wait_stopped(Instant::now() + Duration::from_secs(1)) {
                Ok(true) => {
                    let Ok(regs) = t.regs() else { continue };
                    let (sp, tp) = (RemoteAddr(regs.sp()), RemoteAddr(regs.thread_pointer()));
                    let own = maps.iter().find(|m| m.holds(sp) && is_own_stack(m, tp));
                    below.extend(own.map(|m| m.start.0..sp.0));
                    pointers.iter_mut().for_each(|all| _ = all.insert(tp.0));
                }
                // The thread has ended.
                Ok(false) => {}
                Err(_) => pointers = None,
            }
            t.detach();
        }
        Ok(Self { below, pointers })
    }

    /// Returns whether a frame is stale:
    ///
    /// - It is below the stack pointer of a thread, on its own stack: a jump or an exception has left it.
    /// - It is on the own stack of a thread that has ended. If a process ends whose memory another process shares, the
    ///   stacks of its threads stay, with the calls in whose midst they were killed.
    fn have_left(&self, r: &Recorded, maps: &[Map], at: u64) -> bool {
        let ended = || {
            let tp = slot_of(r, at)?;
            let map = maps.iter().find(|m| m.holds(RemoteAddr(at)))?;
            let all = self.pointers.as_ref()?;
            Some(!all.contains(&tp.0) && is_own_stack(map, tp))
        };
        self.below.iter().any(|range| range.contains(&at)) || ended() == Some(true)
    }
}

/// Returns whether a mapping is the stack of the thread with this thread pointer: libc's descriptor of the thread is on
/// it, or the kernel names it as the process's stack.
fn is_own_stack(map: &Map, tp: RemoteAddr) -> bool {
    map.holds(tp) || map.name == b"[stack]"
}

/// Returns the thread pointer of the thread that made the call with this frame; 0 if its slot is free again.
fn slot_of(r: &Recorded, at: u64) -> Option<RemoteAddr> {
    let word = |at: u64| {
        let mut bytes = [0; 8];
        r.memory().read(RemoteAddr(at), &mut bytes).ok()?;
        Some(u64::from_ne_bytes(bytes))
    };
    let slot = slot_in(word(at.wrapping_add(offset_of!(Call, note) as u64))?);
    word(slot.wrapping_add(offset_of!(Slot, tp) as u64)).map(RemoteAddr)
}

/// Returns the address of the slot from a note in a frame. The hook keeps notes of its own in the lowest bits.
fn slot_in(note: u64) -> u64 {
    note & !(align_of::<Slot>() as u64 - 1)
}
