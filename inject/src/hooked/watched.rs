//! Functions of libc that are hooked because of what they do to the process rather than to record their calls: those
//! that restrict its system calls, and those that make a child.

use crate::RemoteMemory;
use crate::hooked::found::{Found, is_libc};
use crate::process::elf::{Module, Symbol};
use prof_os::Pid;
use prof_trace::shared::Kind;

const PR_SET_SYSCALL_USER_DISPATCH: u8 = 59;

/// Functions of libc that can set up such a restriction, and those that make a child. Newer libcs use the first of
/// [`FORKS`] in all the others.
pub const FUNCTIONS: [&str; 6] = ["prctl", "syscall", FORKS[0], FORKS[1], FORKS[2], FORKS[3]];

/// Functions of libc that make a child.
pub const FORKS: [&str; 4] = ["_Fork", "fork", "__libc_fork", "__fork"];

/// Returns the functions of libc that are watched, so that the hook stops making system calls when the target begins
/// to restrict its own.
pub(crate) fn watched(
    pid: Pid,
    mem: &RemoteMemory,
    index: usize,
    module: &Module,
    alone: bool,
) -> Vec<Found> {
    if !(alone || is_libc(module)) {
        return Vec::new();
    }
    let symbols = module.symbols(pid, mem, |n| FUNCTIONS.contains(&n));
    let named = |name: &str| symbols.iter().find(|s| !s.indirect && s.name == name);
    let asked = ["prctl", "syscall"].into_iter().filter_map(named).map(|s| watch(s, index));
    let forks = FORKS.into_iter().find_map(named).map(|s| Found::new(s, Kind::Fork, index));
    asked.chain(forks).collect()
}

fn watch(s: &Symbol, index: usize) -> Found {
    let is_prctl = s.name == "prctl";
    let number = if is_prctl { libc::PR_SET_SECCOMP as u64 } else { libc::SYS_seccomp as u64 };
    Found {
        // See `Kind::Sandbox` for these fields.
        asks: number,
        args: (if is_prctl { PR_SET_SYSCALL_USER_DISPATCH } else { 0 }, 0),
        ..Found::new(s, Kind::Sandbox, index)
    }
}
