//! Finds out whether a process is frozen by its cgroup (`docker pause`, suspended units). No thread of it can stop then,
//! nor make a system call, until the cgroup is thawed.

use crate::process::cgroup::{V2, place_in};
use crate::{Refusal, Result};
use prof_os::process;
use prof_os::process::folder;
use std::fs;
use std::path::{Path, PathBuf};

/// Checks that no cgroup of a process is frozen.
pub(crate) fn thawed(pid: i32) -> Result<()> {
    match frozen_by(pid) {
        Some(file) => Err(Refusal::Frozen { pid, comm: process::comm(pid), file }.into()),
        None => Ok(()),
    }
}

/// Returns the file that shows a process as frozen; `None` if none does, or none can be read.
pub(crate) fn frozen_by(pid: i32) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let own = fs::read_to_string(folder(pid) + "/cgroup").ok()?;
    ["freezer", V2].into_iter().find_map(|controller| {
        let (_, mount, below) = place_in(&mounts, &own, controller)?;
        let name = if controller == V2 { "cgroup.freeze" } else { "freezer.state" };
        let is_set = |file: &PathBuf| {
            let state = fs::read_to_string(file).unwrap_or_default();
            ["1", "FROZEN", "FREEZING"].contains(&state.trim())
        };
        // A cgroup freezes those below it.
        let all = Path::new(below).ancestors().map(|dir| mount.join(dir).join(name));
        all.into_iter().find(is_set)
    })
}
