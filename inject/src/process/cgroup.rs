//! Computes what prof's memory adds to the target's cgroup, and checks that there is room for it.
//!
//! The kernel charges a page to the cgroup of whoever touches it first. prof touches those pages of the ring that are
//! used from the first event on, so they are charged to prof's cgroup. The target touches the hook, the stubs, the
//! thread states and the tables as they grow, so they are charged to the target's. If prof runs in the target's
//! cgroup, as in a container, everything counts there.

use crate::install::Options;
use crate::preflight::Target;
use crate::process::proc;
use crate::recorded::{Recorded, ring_in};
use crate::{Refusal, Result};
use prof_trace::process::folder;
use prof_trace::shared::{Control, Geometry, MAX_SEGMENTS, SEGMENT_SIZE, STATE_SIZE};
use prof_trace::values::text::bytes;
use std::cmp::Ordering;
use std::fs::{self, File};
use std::mem::offset_of;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

/// Bytes of a thread state that are used, as measured by `tests/bench/run memory`.
const THREAD: u64 = 64 << 10;
/// Number of threads to allow for beyond those at the attach.
const MORE_THREADS: u64 = 8;
/// Bytes of the hook, the stubs and the tables that grow with the number of stacks, from the same measurement.
const TABLES: u64 = 2 << 20;
/// Bytes that a collector takes beside the ring.
const COLLECTOR: u64 = 32 << 20;
/// Upper bound on the length of a private mapping of prof's; those of the hook and of stubs are smaller.
const MOST_PRIVATE: u64 = 4 << 20;
/// Size of the smallest ring, in bytes of events.
const SMALLEST: usize = 1 << 20;
/// Size of the largest ring, in bytes of events.
const LARGEST: usize = MAX_SEGMENTS * SEGMENT_SIZE;

/// A cgroup of the target, or one above it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// Path, as `/proc/PID/cgroup` shows it.
    pub group: String,
    /// File with the lowest limit, and the bytes that it allows; `None`: unlimited.
    pub limit: Option<(&'static str, u64)>,
    /// Bytes charged to it, without inactive pages of files, which can be read again.
    pub used: u64,
    /// Whether the other process ([`levels`]) is in it, too, or in a cgroup below it.
    pub shared: bool,
}

impl Level {
    /// Returns the number of bytes that may still be charged to it.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.limit.map_or(u64::MAX, |(_, limit)| limit.saturating_sub(self.used))
    }
}

/// Returns the cgroups that count a process's memory, from its own to the topmost visible one; empty if none is
/// visible. `other` is the process that makes the ring.
#[must_use]
pub fn levels(pid: i32, other: i32) -> Vec<Level> {
    let read = |path: String| fs::read_to_string(path).unwrap_or_default();
    let mounts = read("/proc/self/mountinfo".into());
    // A first thread that has ended before the others is in no cgroup any more: `folder` finds one that lives.
    let of = |pid: i32| read(folder(pid) + "/cgroup");
    levels_in(&mounts, &of(pid), &of(other))
}

/// Computes the levels from the texts of `/proc/self/mountinfo` and of both processes' `cgroup` files.
fn levels_in(mounts: &str, own: &str, other: &str) -> Vec<Level> {
    for controller in ["memory", V2] {
        let Some((group, mount, below)) = place_in(mounts, own, controller) else { continue };
        let (v2, other) = (controller == V2, group_in(other, controller));
        let mut all = Vec::new();
        let mut at = PathBuf::from(group);
        let mut dir = mount.join(below);
        loop {
            let shared = other.is_some_and(|o| Path::new(o).starts_with(&at));
            all.extend(read_level(&dir, at.display().to_string(), v2, shared));
            if dir == mount || !at.pop() || !dir.pop() {
                break;
            }
        }
        if !all.is_empty() {
            return all;
        }
    }
    Vec::new()
}

/// Name that stands for version 2's hierarchy, which has all controllers.
pub(crate) const V2: &str = "";

/// Returns a process's cgroup in the hierarchy of a controller, that hierarchy's mount point, and the path of the cgroup
/// below that.
pub(crate) fn place_in<'a>(
    mounts: &'a str,
    own: &'a str,
    controller: &str,
) -> Option<(&'a str, &'a Path, &'a str)> {
    let group = group_in(own, controller)?;
    let (root, mount) = mount_in(mounts, controller)?;
    Some((group, mount, inside(group, root)?))
}

/// Returns a process's cgroup in the hierarchy of a controller (cgroups(7)).
fn group_in<'a>(text: &'a str, controller: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = if controller == V2 {
            number == "0" && controllers.is_empty()
        } else {
            controllers.split(',').any(|c| c == controller)
        };
        // A cgroup outside of prof's own cgroup namespace can't be read.
        (is_it && !path.starts_with("/..")).then_some(path)
    })
}

/// Returns the part of that hierarchy that is mounted, and the mount point (proc_pid_mountinfo(5)).
fn mount_in<'a>(mounts: &'a str, controller: &str) -> Option<(&'a str, &'a Path)> {
    mounts.lines().find_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        let mut back = back.split(' ');
        let (kind, options) = (back.next()?, back.nth(1)?);
        let is_it = if controller == V2 {
            kind == "cgroup2"
        } else {
            kind == "cgroup" && options.split(',').any(|o| o == controller)
        };
        let mut front = front.split(' ').skip(3);
        is_it.then_some((front.next()?, Path::new(front.next()?)))
    })
}

fn inside<'a>(group: &'a str, root: &str) -> Option<&'a str> {
    let rest = group.strip_prefix(root.trim_end_matches('/'))?;
    (rest.is_empty() || rest.starts_with('/')).then(|| rest.trim_start_matches('/'))
}

/// Reads the figures of one cgroup. Returns `None` where the memory controller is not enabled, as in the root cgroup.
fn read_level(dir: &Path, group: String, v2: bool, shared: bool) -> Option<Level> {
    let number = |name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok();
    let (usage, cache, limits): (_, _, &[_]) = if v2 {
        ("memory.current", "inactive_file", &["memory.max", "memory.high"])
    } else {
        ("memory.usage_in_bytes", "total_inactive_file", &["memory.limit_in_bytes"])
    };
    let charged = number(usage)?;
    let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let cache = stat.lines().find_map(|l| l.strip_prefix(cache)?.trim().parse::<u64>().ok());
    // Version 1 shows "no limit" as the largest number of whole pages.
    let limit = |name: &&'static str| Some((*name, number(name).filter(|n| *n < 1 << 62)?));
    Some(Level {
        group,
        limit: limits.iter().filter_map(limit).min_by_key(|l| l.1),
        used: charged.saturating_sub(cache.unwrap_or(0)),
        shared,
    })
}

/// Maximum number of bytes that a recording adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Bytes that the target touches first.
    pub target: u64,
    /// Bytes that prof touches first: the ring, and the collector's own memory.
    pub prof: u64,
}

impl Need {
    fn of(geometry: Geometry, threads: usize, tables: usize) -> Self {
        let ring: usize = geometry.hot_ranges().iter().map(|r| r.1).sum();
        let target = TABLES + (threads as u64 + MORE_THREADS) * THREAD;
        Self { target, prof: (ring + tables) as u64 + COLLECTOR }
    }

    fn at(self, level: &Level) -> u64 {
        if level.shared { self.target + self.prof } else { self.target }
    }
}

/// Chooses the size of the ring by what the target's cgroups have left, and adds notes about what the recording adds
/// to them. `tables`: bytes of unwind tables that are copied now, and bytes of unwind tables to have room for in all.
///
/// # Errors
/// If the smallest ring would not fit.
pub(crate) fn fit(
    target: &Target,
    options: &Options,
    tables: (usize, usize),
    notes: &mut Vec<String>,
) -> Result<Geometry> {
    let threads = proc::threads(target.pid)?.len();
    let all = levels(target.pid, std::process::id() as i32);
    fit_in(target, options.ring_size, threads, tables, &all, notes)
}

fn fit_in(
    target: &Target,
    wanted: usize,
    threads: usize,
    tables: (usize, usize),
    all: &[Level],
    notes: &mut Vec<String>,
) -> Result<Geometry> {
    // Room for four times the present threads is reserved; what of it is not used takes no memory.
    let geometry = |size| Geometry::for_ring(size).with_threads(4 * threads).with_tables(tables.1);
    let mut size = wanted.clamp(SMALLEST, LARGEST);
    let mut other = match size.cmp(&wanted) {
        Ordering::Equal => None,
        Ordering::Greater => Some("that is the smallest that works".to_owned()),
        Ordering::Less => Some("that is the largest that prof supports".to_owned()),
    };
    loop {
        let need = Need::of(geometry(size), threads, tables.0);
        let short = all.iter().find(|l| need.at(l) > l.left());
        match short {
            None => {
                if let Some(why) = other {
                    let (has, asked) = (bytes(size as u64), bytes(wanted as u64));
                    notes.push(format!("the ring has {has}, not {asked}: {why}"));
                }
                notes.push(describe(need, all));
                return Ok(geometry(size));
            }
            Some(l) if l.shared && size > SMALLEST => {
                size = (size / 2).max(SMALLEST);
                other = Some(little(l));
            }
            Some(l) => {
                return Err(Refusal::Memory {
                    pid: target.pid,
                    comm: target.name.clone(),
                    needed: bytes(need.at(l)),
                    little: little(l),
                }
                .into());
            }
        }
    }
}

fn little(l: &Level) -> String {
    let (file, limit) = l.limit.unwrap_or(("", u64::MAX));
    format!("its cgroup {} has {} left ({file} is {})", l.group, bytes(l.left()), bytes(limit))
}

fn describe(need: Need, all: &[Level]) -> String {
    let Some(own) = all.first() else {
        let prof = bytes(need.prof);
        return format!(
            "memory: at most {} is added to the process, {prof} to prof; its cgroup can't be seen from here",
            bytes(need.target)
        );
    };
    let beside = if own.shared {
        ", including prof's ring and collector".to_owned()
    } else {
        format!(", and {} to prof's own cgroup", bytes(need.prof))
    };
    // This cgroup would be full first.
    let tightest = all.iter().filter(|l| l.limit.is_some()).min_by_key(|l| l.left());
    let room = match tightest {
        None => "no limit".to_owned(),
        Some(l) if l.group == own.group => format!("{} left", bytes(l.left())),
        Some(l) => format!("{} left in {}", bytes(l.left()), l.group),
    };
    format!(
        "memory: at most {} is added to the process's cgroup {} ({room}){beside}",
        bytes(need.at(own)),
        own.group
    )
}

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
    pub fn of(pid: i32) -> Option<Self> {
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
        let private = c.stubs.iter().chain([&c.place]);
        let private = private.map(|a| a.addr..a.addr.saturating_add(a.len.min(MOST_PRIVATE)));
        // The unwind tables, between segments and thread states, are left out: prof has written them.
        let first = r.ring.0..at(geometry.tables().start).min(states);
        // The states of many more threads are reserved address space, which takes long to look through: only where
        // there are many threads may it be in use.
        let crowded = proc::threads(pid).is_ok_and(|t| t.len() > geometry.states() / 4);
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
        let mut levels = levels(pid, c.collector_pid.load(Relaxed) as i32);
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
fn allocated(pid: i32) -> Option<u64> {
    /// The kernel counts a file's blocks in this unit, whatever the size of its pages (stat(2)).
    const BLOCK: u64 = 512;
    let maps = proc::maps(pid).ok()?;
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
    fn open(pid: i32) -> Option<Self> {
        let file = File::open(format!("/proc/{pid}/pagemap")).ok()?;
        Some(Self { file, page: proc::page_size() })
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

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "25 30 0:22 / MOUNT rw,relatime shared:9 - cgroup cgroup rw,cpu,memory\n";
    const V2: &str = "30 23 0:26 /a MOUNT rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    /// Makes a folder with the files of a hierarchy, given as path, name and text.
    fn tree(name: &str, files: &[(&str, &str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("prof-cgroup-{name}-{}", std::process::id()));
        for (dir, file, text) in files {
            fs::create_dir_all(root.join(dir)).expect("folder");
            fs::write(root.join(dir).join(file), text).expect("file");
        }
        root
    }

    fn mounted(mounts: &str, root: &Path) -> String {
        mounts.replace("MOUNT", root.to_str().expect("UTF-8"))
    }

    #[test]
    fn limits_of_both_versions_are_read() {
        let one = tree(
            "one",
            &[
                ("pod/c", "memory.usage_in_bytes", "9000000\n"),
                ("pod/c", "memory.limit_in_bytes", "9223372036854771712\n"),
                ("pod/c", "memory.stat", "inactive_file 5\ntotal_inactive_file 1000000\n"),
                ("pod", "memory.usage_in_bytes", "10000000\n"),
                ("pod", "memory.limit_in_bytes", "50000000\n"),
            ],
        );
        let own = "5:cpu,memory:/pod/c\n0::/elsewhere\n";
        let all = levels_in(&mounted(V1, &one), own, "5:cpu,memory:/pod/d\n");
        let level =
            |group: &str, limit, used, shared| Level { group: group.into(), limit, used, shared };
        let limit = Some(("memory.limit_in_bytes", 50_000_000));
        assert_eq!(
            all,
            [level("/pod/c", None, 8_000_000, false), level("/pod", limit, 10_000_000, true)]
        );
        let two = tree(
            "two",
            &[
                ("b", "memory.current", "7000\n"),
                ("b", "memory.max", "max\n"),
                ("b", "memory.high", "9000\n"),
                ("", "memory.current", "8000\n"),
                ("", "memory.max", "20000\n"),
            ],
        );
        let all = levels_in(&mounted(V2, &two), "0::/a/b\n", "0::/a/b/d\n");
        assert_eq!(
            all,
            [
                level("/a/b", Some(("memory.high", 9000)), 7000, true),
                level("/a", Some(("memory.max", 20000)), 8000, true)
            ]
        );
        assert_eq!(all[0].left(), 2000);
        // A cgroup of another namespace, one of a part that is not mounted, and none.
        for own in ["0::/../x\n", "0::/ab\n", ""] {
            assert_eq!(levels_in(&mounted(V2, &two), own, own), [], "{own}");
        }
        fs::remove_dir_all(one).expect("remove");
        fs::remove_dir_all(two).expect("remove");
    }

    #[test]
    fn the_ring_is_as_large_as_there_is_room() {
        let target =
            Target { pid: 7, name: "app".into(), exe: PathBuf::new(), cmdline: Vec::new() };
        let level = |left: u64, shared| Level {
            group: "/g".into(),
            limit: Some(("memory.max", left + 1000)),
            used: 1000,
            shared,
        };
        let fit = |l: Level| {
            let mut notes = Vec::new();
            let g = fit_in(&target, 64 << 20, 2, (0, 0), &[l], &mut notes);
            (g.map(|g| g.segments()).map_err(|e| e.to_string()), notes)
        };
        let (all, some) =
            (Geometry::for_ring(64 << 20).segments(), Geometry::for_ring(16 << 20).segments());
        // The ring does not count if prof is in another cgroup.
        let (g, notes) = fit(level(4 << 20, false));
        assert_eq!((g, notes.len()), (Ok(all), 1));
        assert!(notes[0].contains("(4.0 MiB left)"), "{notes:?}");
        let (g, notes) = fit(level(200 << 20, true));
        assert_eq!((g, notes.len()), (Ok(all), 1));
        let (g, notes) = fit(level(60 << 20, true));
        assert_eq!(g, Ok(some));
        assert!(notes[0].contains("16.0 MiB, not 64.0 MiB"), "{notes:?}");
        for little in [level(1 << 20, false), level(30 << 20, true)] {
            let e = fit(little).0.expect_err("refused");
            assert!(e.contains("memory.max") && e.contains("nothing was changed"), "{e}");
        }
    }
}
