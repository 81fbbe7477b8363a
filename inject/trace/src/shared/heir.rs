//! The shared memory that a thread of the target makes for a child, before it forks: the child's heir ring.
//!
//! It is shared anonymous memory, as a thread that runs can't have a descriptor that no other thread sees. The kernel names all
//! such memory alike (`/dev/zero (deleted)`), so it is known by the offset of its mapping in its file: nobody else has reason to
//! unmap just as much of what is in front.

use super::{Control, FIRST_THREAD, MEMFD_NAME, SLOTS};
use crate::ticks::Ticks;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Offset of the shared memory in the file that a child of the target has mapped. It is a multiple of all page sizes, and of no
/// size to which programs align memory.
pub const HEIR_AT: u64 = 0x0707_0000;
/// Bytes in front of [`HEIR_AT`] that stay mapped until the child has moved the memory to its place: by its offset, the mapping
/// begins no shared memory until then.
pub const HEIR_LEAD: u64 = 64 << 10;
/// Number of segments that a child may use before a collector has taken its memory: 4 MiB.
pub const HEIR_SEGMENTS: u64 = 256;

/// Returns whether a mapping is the first part of the shared memory of a recorded process: by its name in `/proc/PID/maps`, and
/// its offset in its file.
#[must_use]
pub fn begins_ring(name: &[u8], offset: u64) -> bool {
    offset == if is_zero(name) { HEIR_AT } else { 0 } && is_ring(name, offset)
}

/// Returns whether a mapping is a part of shared memory that prof has made, also of such that a child is about to get.
#[must_use]
pub fn is_ring(name: &[u8], offset: u64) -> bool {
    if is_zero(name) {
        return offset == HEIR_AT || offset == HEIR_AT - HEIR_LEAD;
    }
    let name = name.strip_prefix(b"/memfd:").and_then(|n| n.strip_suffix(b" (deleted)"));
    name == Some(MEMFD_NAME.as_bytes())
}

/// Returns whether this is the kernel's name of shared anonymous memory.
fn is_zero(name: &[u8]) -> bool {
    name == b"/dev/zero (deleted)"
}

impl Control {
    /// Makes a copy of a process's control page that of its child, which has done nothing yet and has no collector. The child
    /// itself enters its process id as [`Control::main_tid`]. `now` is the time of the fork. [`Control::path`] keeps the bytes of its parent's path, with a length
    /// of 0.
    pub fn make_heir(&mut self, now: Ticks) {
        let all = |of: &[AtomicU64]| of.iter().for_each(|n| n.store(0, Relaxed));
        let zero = |n: &AtomicU64| n.store(0, Relaxed);
        let none = |n: &AtomicU32| n.store(0, Relaxed);
        let first = self.first_segments.load(Relaxed);
        self.heir_segments.store(first, Relaxed);
        self.first_segments.store(first.min(HEIR_SEGMENTS), Relaxed);
        self.next_thread.store(FIRST_THREAD, Relaxed);
        all(&self.slots_used);
        for away in &self.turned_away {
            away.key.store(0, Relaxed);
            away.lost.store(0, Relaxed);
        }
        for toggle in &self.toggles {
            zero(&toggle.time);
        }
        [&self.samples_full, &self.stacks, &self.stacks_seq].into_iter().for_each(none);
        [&self.more_count, &self.more_offered].into_iter().for_each(zero);
        [&self.full_since, &self.more_segments, &self.slots_freed, &self.dumps_asked]
            .into_iter()
            .for_each(zero);
        [&self.looks_asked, &self.looks_done, &self.marks_asked, &self.marks_done]
            .into_iter()
            .for_each(zero);
        [&self.scans_asked, &self.scans_done, &self.scan_from, &self.scan_answer]
            .into_iter()
            .for_each(zero);
        if self.forks.fetch_add(1, Relaxed) == 0 {
            self.forked_at[1].store(now.0, Relaxed);
        }
        self.forked_at[0].store(now.0, Relaxed);
        let s = &mut self.stable;
        (s.pid, s.path_len) = (0, 0);
        [&s.unseen, &s.toggle_count, &s.collector_start, &s.collector_ns]
            .into_iter()
            .for_each(zero);
        [&s.collector_pid, &s.orphaned].into_iter().for_each(none);
    }
}

const _: () = assert!(SLOTS.is_multiple_of(64) && HEIR_AT.is_multiple_of(HEIR_LEAD));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_known_by_name_and_offset() {
        let zero = b"/dev/zero (deleted)";
        assert!(begins_ring(zero, HEIR_AT) && is_ring(zero, HEIR_AT));
        assert!(!begins_ring(zero, HEIR_AT - HEIR_LEAD) && is_ring(zero, HEIR_AT - HEIR_LEAD));
        assert!(!is_ring(zero, 0) && !is_ring(zero, 2 * HEIR_AT));
        let memfd = b"/memfd:prof-ring (deleted)";
        assert!(begins_ring(memfd, 0) && is_ring(memfd, 4096) && !begins_ring(memfd, HEIR_AT));
        assert!(!is_ring(b"/memfd:prof-ring2 (deleted)", 0) && !is_ring(b"/memfd:prof-ring", 0));
    }
}
