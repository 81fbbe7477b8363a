//! Chooses the size of the ring by what the target's cgroups have left.

use crate::installed::Options;
use crate::process::cgroup::{Level, levels};
use crate::target::Target;
use crate::{Refusal, Result};
use prof_os::{Pid, process};
use prof_trace::shared::{Geometry, MAX_SEGMENTS, SEGMENT_SIZE};
use prof_trace::values::text::bytes;
use std::cmp::Ordering;

/// Bytes of a thread state that are used, as measured by `tests/bench/run memory`.
const THREAD: u64 = 64 << 10;

/// Number of threads to allow for beyond those at the attach.
const MORE_THREADS: u64 = 8;

/// Bytes of the hook, the stubs and the tables that grow with the number of stacks, from the same measurement.
const TABLES: u64 = 2 << 20;

/// Bytes that a collector takes beside the ring.
const COLLECTOR: u64 = 32 << 20;

/// Size of the smallest ring, in bytes of events.
const SMALLEST: usize = 1 << 20;

/// Size of the largest ring, in bytes of events.
const LARGEST: usize = MAX_SEGMENTS * SEGMENT_SIZE;

/// Maximum number of bytes that a recording adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
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
    let threads = process::threads(target.pid)?.len();
    let all = levels(target.pid, Pid::this());
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn the_ring_is_as_large_as_there_is_room() {
        let target = Target {
            pid: Pid::from_raw(7),
            name: "app".into(),
            exe: PathBuf::new(),
            cmdline: Vec::new(),
        };
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
