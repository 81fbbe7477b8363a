//! Measures the memory that a recording has added to its target's cgroup.

use crate::process::cgroup::{Level, levels};
use crate::process::rings::ring_in;
use crate::recorded::Recorded;
use prof_os::pid_namespace::Place;
use prof_os::process::folder;
use prof_os::{Pid, maps};
use prof_trace::shared::{Control, STATE_SIZE, SharedArea};
use prof_trace::values::text::bytes;
use std::fs::{self, File};
use std::mem::offset_of;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Upper bound on the length of a private mapping of prof's; those of the hook and of stubs are smaller.
const MOST_PRIVATE: u64 = 4 << 20;

/// Memory that a recording has added to its target's cgroup so far.
#[derive(Clone, Debug)]
pub struct Added {
    /// Bytes of prof's mappings that the target has touched first.
    pub target: u64,
    /// Bytes of the ring that prof touched first.
    pub ring: u64,
    /// Cgroups of the target; those that the collector is in, too, are marked as shared.
    pub levels: Vec<Level>,
}

impl Added {
    /// Measures a recorded process. Returns `None` if the process is not recorded, or is recorded by another build.
    #[must_use]
    pub fn of(pid: Pid) -> Option<Self> {
        let r = Recorded::open(pid).ok().filter(|r| r.foreign().is_none())?;
        let c = &r.control;
        let field = |offset: usize| r.mem.word(r.ring.plus(offset as u64)).ok();
        let count = field(offset_of!(Control, states_count))? as usize;
        let end = r.ring.0.saturating_add(r.ring_len);
        // The target can write to this field, so the value is kept within the ring.
        let states = field(offset_of!(Control, states_addr))?.clamp(r.ring.0, end);
        let first = field(offset_of!(Control, first_segments))?;
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        let geometry = r.geometry()?.with_threads(count).with_first_segments(first);
        let pages = Pages::open(pid)?;
        let at = |offset: usize| r.ring.0.saturating_add(offset as u64);
        let hot = geometry.hot_ranges().map(|(from, len)| at(from)..at(from + len));
        let private = c.stubs.iter().chain([&c.place]).map(SharedArea::get);
        let private = private.map(|a| a.addr..a.addr.saturating_add(a.len.min(MOST_PRIVATE)));
        // The unwind tables, between segments and thread states, are left out: prof has written them.
        let first = r.ring.0..at(geometry.tables().start).min(states);
        // The states of many more threads are reserved address space, which takes long to look through.
        let crowded = field(offset_of!(Control, more_count))? != 0;
        let some = states.saturating_add((geometry.states() * STATE_SIZE) as u64).min(end);
        let own = private.map(|p| pages.there(p, &[])).sum::<u64>();
        let in_ring =
            pages.there(first, &hot) + pages.there(states..if crowded { end } else { some }, &[]);
        let made = || {
            let tables = field(offset_of!(Control, tables_len))?;
            let next = field(offset_of!(Control, tables_next))?;
            let from = field(offset_of!(Control, tables_at))?;
            let hot = hot.iter().map(|h| h.end - h.start).sum::<u64>();
            Some(hot + next.saturating_sub(from).min(tables).min(r.ring_len))
        };
        let ring = match allocated(pid) {
            Some(all) => all.saturating_sub(in_ring),
            None => made()?,
        };
        let collector = match r.collector() {
            Place::Here(collector) => collector,
            Place::Gone | Place::OutOfSight => Pid::NONE,
        };
        let mut levels = levels(pid, collector);
        // The pages stay charged to the cgroup of a collector that has ended.
        if let Some(l) = levels.first_mut().filter(|_| !r.collector_lives()) {
            l.shared = field(offset_of!(Control, ring_beside))? != 0;
        }
        Some(Self { target: own + in_ring, ring, levels })
    }

    /// Returns the number of bytes charged to the target's own cgroup.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let shared = self.levels.first().is_some_and(|l| l.shared);
        self.target + if shared { self.ring } else { 0 }
    }

    /// Describes the figures for the user.
    #[must_use]
    pub fn describe(&self) -> String {
        let Some(own) = self.levels.first() else {
            return format!("{} in the process, {} in prof", bytes(self.target), bytes(self.ring));
        };
        let limit = own.limit.map_or("no limit".to_owned(), |(file, n)| {
            format!("{} of {} used, {file}", bytes(own.used), bytes(n))
        });
        let ring =
            if own.shared { "including the ring" } else { "the ring counts in prof's cgroup" };
        format!("{} in the process's cgroup {} ({limit}), {ring}", bytes(self.bytes()), own.group)
    }
}

/// Returns the number of bytes that the kernel has allocated for the ring. `None` without the rights to look at mapped
/// files (CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE).
fn allocated(pid: Pid) -> Option<u64> {
    /// Unit of the kernel's count of a file's blocks, independent of the page size (stat(2)).
    const BLOCK: u64 = 512;
    let maps = maps::of(pid).ok()?;
    let m = ring_in(&maps)?;
    let path = format!("{}/map_files/{:x}-{:x}", folder(pid), m.start.0, m.end.0);
    Some(fs::metadata(path).ok()?.blocks() * BLOCK)
}

/// Reader of a process's page map (proc_pid_pagemap(5)).
struct Pages {
    file: File,
    page: u64,
}

impl Pages {
    fn open(pid: Pid) -> Option<Self> {
        let file = File::open(format!("/proc/{pid}/pagemap")).ok()?;
        Some(Self { file, page: prof_os::page_size() })
    }

    /// Returns the number of bytes of a range that have a page, without those in `without`. The map is read in
    /// pieces, since the kernel holds the lock of the target's mappings during each read.
    fn there(&self, range: Range<u64>, without: &[Range<u64>]) -> u64 {
        const PIECE: u64 = 4096;
        const ENTRY: u64 = 8;
        // Bits of a page that is present, or swapped out.
        const THERE: u64 = 0b11 << 62;
        let (mut at, end) = (range.start / self.page, range.end.div_ceil(self.page));
        let mut found = 0;
        let mut bytes = [0; (PIECE * ENTRY) as usize];
        while at < end {
            let n = (end - at).min(PIECE);
            let part = &mut bytes[..(n * ENTRY) as usize];
            if self.file.read_exact_at(part, at * ENTRY).is_err() {
                break;
            }
            for (k, entry) in part.as_chunks::<8>().0.iter().enumerate() {
                let addr = (at + k as u64) * self.page;
                if u64::from_ne_bytes(*entry) & THERE != 0
                    && !without.iter().any(|w| w.contains(&addr))
                {
                    found += self.page;
                }
            }
            at += n;
        }
        found
    }
}
