//! Decides what can be done about a recording by another build of prof.

use crate::process::rings::ring_in;
use crate::{Refusal, Result};
use prof_os::Pid;
use prof_os::maps::{self, Map};
use prof_trace::foreign::{Foreign, has_stable};
use prof_trace::shared::{EDITION, Header};
use std::path::PathBuf;

/// Checks that this prof can work on a recording with this control page.
///
/// # Errors
/// If it can't. The error names the prof that can.
pub(crate) fn check(
    pid: Pid,
    ring: &Map,
    h: &Header,
    read: impl Fn(u64, usize) -> Vec<u8>,
) -> Result<()> {
    let Some(mut by) = Foreign::of(h, read) else { return Ok(()) };
    if has_stable(h) && h.needs <= EDITION {
        return Ok(());
    }
    if by.exe.as_os_str().is_empty() {
        by.exe = collector_exe(pid, ring).unwrap_or_default();
    }
    Err(Refusal::OtherVersion { pid, by: by.describe() }.into())
}

/// Returns the program of an older build's collector, which did not say where it is: that of the other process that
/// has the ring mapped.
fn collector_exe(pid: Pid, ring: &Map) -> Option<PathBuf> {
    let dir = std::fs::read_dir("/proc").ok()?;
    let pids = dir.flatten().filter_map(|e| e.file_name().to_str()?.parse::<Pid>().ok());
    let is_it = |m: &Map| m.is_of_file_of(ring);
    let maps_it = |p: &Pid| maps::of(*p).is_ok_and(|m| ring_in(&m).is_some_and(is_it));
    let collector = pids.filter(|p| *p != pid).find(maps_it)?;
    std::fs::read_link(format!("/proc/{collector}/exe")).ok()
}
