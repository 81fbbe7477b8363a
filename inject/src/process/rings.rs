//! Finds prof's rings in a process: in its mappings, and among its open descriptors, where a library may be, too.

use crate::mapped::library_file;
use prof_os::maps::{self, Map, memfd_name};
use prof_os::{Pid, process};
use prof_trace::shared::{HEIR_AT, HEIR_LEAD, MEMFD_NAME, begins_ring, is_ring};
use std::path::{Path, PathBuf};

/// Number of threads whose descriptors are examined. Nearly always all threads share one table of descriptors.
const MOST_TABLES: usize = 64;

/// Returns the first mapping of a ring.
#[must_use]
pub fn ring_in(maps: &[Map]) -> Option<&Map> {
    maps.iter().find(|m| m.shared && begins_ring(&m.name, m.offset))
}

/// Returns the length of the contiguous mappings from `first` on that are of the same file.
pub(crate) fn ring_len(maps: &[Map], first: &Map) -> u64 {
    let mut end = first.start;
    for m in maps.iter().filter(|m| m.start >= first.start) {
        if m.start != end || !m.is_of_file_of(first) {
            break;
        }
        end = m.end;
    }
    end.0 - first.start.0
}

/// Returns all processes other than this one that have a ring mapped and that prof may look at.
pub(crate) fn with_ring() -> impl Iterator<Item = Pid> {
    let me = Pid::this();
    let has_ring = |pid: &Pid| maps::of(*pid).is_ok_and(|maps| ring_in(&maps).is_some());
    process::all().into_iter().filter(move |p| *p != me).filter(has_ring)
}

/// Returns whether a process that was just forked is about to take memory into use that its parent has made for it, or the parent
/// is about to unmap that.
#[must_use]
pub fn are_on_their_way() -> bool {
    let is_lead = |m: &Map| is_ring(&m.name, m.offset) && m.offset == HEIR_AT - HEIR_LEAD;
    process::all().into_iter().any(|pid| maps::of(pid).is_ok_and(|maps| maps.iter().any(is_lead)))
}

/// Returns the name of the memfd that a descriptor's link leads to.
fn name_of(path: &Path) -> Option<Vec<u8>> {
    let link = std::fs::read_link(path).ok()?;
    memfd_name(link.as_os_str().as_encoded_bytes()).map(<[u8]>::to_vec)
}

/// Returns whether a descriptor's link leads to a memfd with a name that prof gives: a ring's, or a library's.
pub(crate) fn is_named(path: &Path) -> bool {
    name_of(path).is_some_and(|name| name == MEMFD_NAME.as_bytes()) || is_library(path)
}

fn is_library(path: &Path) -> bool {
    name_of(path).is_some_and(|name| library_file::is_library(&name))
}

/// Returns the descriptors in the table of a thread whose links fulfil `is`.
fn descriptors(dir: &Path, is: fn(&Path) -> bool) -> Vec<(u64, PathBuf)> {
    let all = std::fs::read_dir(dir.join("fd")).into_iter().flatten().flatten();
    let number = |p: PathBuf| Some((p.file_name()?.to_str()?.parse().ok()?, p));
    all.filter_map(|e| number(e.path())).filter(|(_, path)| is(path)).collect()
}

/// The descriptors that a killed prof has left in the table of a thread.
pub(crate) fn left(dir: &Path) -> Vec<(u64, PathBuf)> {
    descriptors(dir, is_named)
}

fn has_open(pid: Pid, is: fn(&Path) -> bool) -> bool {
    let dirs = process::threads(pid).unwrap_or_default();
    // The folder of a thread that has ended shows no descriptors.
    let dirs = dirs.iter().take(MOST_TABLES).map(|tid| format!("/proc/{pid}/task/{tid}"));
    dirs.into_iter().any(|dir| !descriptors(dir.as_ref(), is).is_empty())
}

pub(crate) fn still_open(pid: Pid) -> bool {
    has_open(pid, is_named)
}

/// Returns whether a process has a descriptor of the hook's library.
pub(crate) fn library_still_open(pid: Pid) -> bool {
    has_open(pid, is_library)
}

/// Returns whether a process has anything of prof's: its memory, or a descriptor of it.
#[must_use]
pub fn has_parts(pid: Pid) -> bool {
    maps::of(pid).is_ok_and(|maps| ring_in(&maps).is_some()) || still_open(pid)
}
