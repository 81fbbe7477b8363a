//! Finds out whether a process is frozen by its cgroup (`docker pause`, suspended units). No thread of it can stop then,
//! nor make a system call, until the cgroup is thawed.

use crate::{Refusal, Result};
use prof_os::cgroup::{Cgroups, Hierarchy, read};
use prof_os::{Pid, process};
use std::path::PathBuf;

/// Checks that no cgroup of a process is frozen.
pub(crate) fn thawed(pid: Pid) -> Result<()> {
    match frozen_by(pid) {
        Some(file) => Err(Refusal::Frozen { pid, comm: process::comm(pid), file }.into()),
        None => Ok(()),
    }
}

/// Returns the file that shows a process as frozen; `None` if none does, or none can be read.
pub(crate) fn frozen_by(pid: Pid) -> Option<PathBuf> {
    let groups = Cgroups::of(pid);
    let files = [(Hierarchy::V1("freezer"), "freezer.state"), (Hierarchy::V2, "cgroup.freeze")];
    files.into_iter().find_map(|(hierarchy, name)| {
        let is_set = |file: &PathBuf| {
            let state = read(file).unwrap_or_default();
            ["1", "FROZEN", "FREEZING"].contains(&state.trim())
        };
        // A cgroup freezes those below it.
        groups.in_hierarchy(hierarchy)?.levels().map(|(dir, _)| dir.join(name)).find(is_set)
    })
}
