//! Functions of libc that are hooked because of what they do to the process rather than to record their calls: those
//! that restrict its system calls, those that make a child, and those by which a child limits its address space.

use crate::RemoteMemory;
use crate::hooked::found::{Found, is_libc};
use crate::process::elf::{Module, Symbol};
use prof_os::Pid;
use prof_trace::shared::Kind;

const PR_SET_SYSCALL_USER_DISPATCH: u8 = 59;

/// Functions of libc that can set up such a restriction, and those that make a child. Newer libcs use the first of
/// [`FORKS`] in all the others.
pub const FUNCTIONS: [&str; 10] = [
    "prctl",
    "syscall",
    FORKS[0],
    FORKS[1],
    FORKS[2],
    FORKS[3],
    LIMITS[0].0,
    LIMITS[1].0,
    LIMITS[2].0,
    LIMITS[3].0,
];

/// Functions of libc that make a child.
pub const FORKS: [&str; 4] = ["_Fork", "fork", "__libc_fork", "__fork"];

/// Functions of libc that limit resources, with the argument that says which one. They are watched where children have memory
/// from their parents.
const LIMITS: [(&str, u8); 4] =
    [("setrlimit", 0), ("setrlimit64", 0), ("prlimit", 1), ("prlimit64", 1)];

/// Returns the functions of libc that are watched, so that the hook stops making system calls when the target begins
/// to restrict its own. `alone`: the program is a static one; `heirs`: children get memory from their parents.
pub(crate) fn watched(
    pid: Pid,
    mem: &RemoteMemory,
    index: usize,
    module: &Module,
    (alone, heirs): (bool, bool),
) -> Vec<Found> {
    if !(alone || is_libc(module)) {
        return Vec::new();
    }
    let symbols = module.symbols(pid, mem, |n| FUNCTIONS.contains(&n));
    let named = |name: &str| symbols.iter().find(|s| !s.indirect && s.name == name);
    let asked = ["prctl", "syscall"].into_iter().filter_map(named).map(|s| watch(s, index));
    let forks = FORKS.into_iter().find_map(named).map(|s| Found::new(s, Kind::Fork, index));
    let limits = LIMITS.iter().filter(|_| heirs).filter_map(|(name, resource)| {
        let symbol = named(name)?;
        Some(Found { args: (*resource, 0), ..Found::new(symbol, Kind::Limit, index) })
    });
    asked.chain(forks).chain(limits).collect()
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
