//! Finds prof's rings in a process: in its mappings, and among its open descriptors.

use crate::process::proc::{self, Map};
use prof_trace::shared::MEMFD_NAME;
use std::path::{Path, PathBuf};

/// Beginning of the name of the ring's mapping in maps.
const RING_NAME: &[u8] = b"/memfd:prof-ring";

/// Number of threads whose descriptors are examined. Nearly always all threads share one table of descriptors.
const MOST_TABLES: usize = 64;

/// Returns the first mapping of a ring.
#[must_use]
pub fn ring_in(maps: &[Map]) -> Option<&Map> {
    maps.iter().find(|m| m.shared && m.name.starts_with(RING_NAME))
}

/// Returns the length of the contiguous mappings from `first` on that are of the same file.
pub(crate) fn ring_len(maps: &[Map], first: &Map) -> u64 {
    let mut end = first.start;
    for m in maps.iter().filter(|m| m.start >= first.start) {
        if m.start != end || m.inode != first.inode || !m.name.starts_with(RING_NAME) {
            break;
        }
        end = m.end;
    }
    end.0 - first.start.0
}

/// Returns all processes other than this one that have a ring mapped and that prof may look at.
pub(crate) fn with_ring() -> impl Iterator<Item = i32> {
    let dir = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = dir.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let me = std::process::id() as i32;
    let has_ring = |pid: &i32| proc::maps(*pid).is_ok_and(|maps| ring_in(&maps).is_some());
    pids.filter(move |p| *p != me).filter(has_ring)
}

pub(crate) fn is_named(path: &Path) -> bool {
    let name = format!("/memfd:{MEMFD_NAME}");
    std::fs::read_link(path)
        .is_ok_and(|link| link.as_os_str().as_encoded_bytes().starts_with(name.as_bytes()))
}

/// The descriptors that a killed prof has left in the table of a thread.
pub(crate) fn left(dir: &Path) -> Vec<(u64, PathBuf)> {
    let all = std::fs::read_dir(dir.join("fd")).into_iter().flatten().flatten();
    let number = |p: PathBuf| Some((p.file_name()?.to_str()?.parse().ok()?, p));
    all.filter_map(|e| number(e.path())).filter(|(_, path)| is_named(path)).collect()
}

pub(crate) fn still_open(pid: i32) -> bool {
    let dirs = proc::threads(pid).unwrap_or_default();
    // The folder of a thread that has ended shows no descriptors.
    let dirs = dirs.iter().take(MOST_TABLES).map(|tid| format!("/proc/{pid}/task/{tid}"));
    dirs.into_iter().any(|dir| !left(dir.as_ref()).is_empty())
}

/// Returns whether a process has anything of prof's: its memory, or a descriptor of it.
#[must_use]
pub fn has_parts(pid: i32) -> bool {
    proc::maps(pid).is_ok_and(|maps| ring_in(&maps).is_some()) || still_open(pid)
}
