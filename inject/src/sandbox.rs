//! What a target has put between itself and the kernel: seccomp filters, and the dispatch of its own
//! system calls to a handler of its own (`PR_SET_SYSCALL_USER_DISPATCH`, as Wine uses it). A call that
//! either does not expect may kill it.

use crate::elf::{Module, Symbol};
use crate::proc::{self, Status};
use crate::search::{Found, is_libc};
use crate::{RemoteAddr, RemoteMemory};
use prof_trace::process::Sharers;
use prof_trace::shared::Kind;

/// `PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG` (Linux 6.4).
pub(crate) const GET_DISPATCH: libc::c_uint = 0x4211;
const PR_SET_SYSCALL_USER_DISPATCH: u8 = 59;
/// Functions of libc that such a thing is asked for with.
pub const FUNCTIONS: [&str; 2] = ["prctl", "syscall"];
/// More threads are not looked at.
const MOST: usize = 4096;

/// How a thread's system calls are dispatched (`struct ptrace_sud_config`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dispatch {
    mode: u64,
    /// Address of a byte that says whether they are at the moment; 0: always.
    selector: u64,
    /// From here on they are not,
    offset: u64,
    /// for so many bytes.
    len: u64,
}

impl Dispatch {
    /// Whether they are dispatched at all.
    pub(crate) fn is_on(&self) -> bool {
        self.mode != 0
    }

    /// Whether a call in this code of the stopped thread would end in a signal.
    pub(crate) fn catches(&self, mem: &RemoteMemory, code: RemoteAddr) -> bool {
        let mut byte = [1];
        let mut allowed = || {
            self.selector != 0
                && mem.read(RemoteAddr(self.selector), &mut byte).is_ok()
                && byte == [0]
        };
        self.is_on() && code.0.wrapping_sub(self.offset) >= self.len && !allowed()
    }
}

/// Whether a thread that runs the process's code has a seccomp filter: one of its own, or of a process that
/// shares its memory.
pub(crate) fn is_filtered(pid: i32) -> bool {
    let filtered = |s: Status| s.number("Seccomp") == Some(2);
    let has_filter = |pid: i32| {
        let tids = proc::threads(pid).unwrap_or_default();
        tids.into_iter().take(MOST).any(|tid| Status::of_thread(pid, tid).is_ok_and(filtered))
    };
    has_filter(pid) || Sharers::of(pid).others().iter().copied().any(has_filter)
}

/// The functions of libc that are watched, so that the hook makes no system calls any more from the
/// moment on in which the target begins to restrict its own.
pub(crate) fn watched(
    pid: i32,
    mem: &RemoteMemory,
    index: usize,
    module: &Module,
    alone: bool,
) -> Vec<Found> {
    if !(alone || is_libc(module)) {
        return Vec::new();
    }
    let symbols = module.symbols(pid, mem, |n| FUNCTIONS.contains(&n));
    symbols.iter().filter(|s| !s.indirect).map(|s| watch(s, index)).collect()
}

fn watch(s: &Symbol, index: usize) -> Found {
    let is_prctl = s.name == "prctl";
    let number = if is_prctl { libc::PR_SET_SECCOMP as u64 } else { libc::SYS_seccomp as u64 };
    Found {
        // See `Kind::Sandbox`.
        nothrow: Some(RemoteAddr(number)),
        args: (if is_prctl { PR_SET_SYSCALL_USER_DISPATCH } else { 0 }, 0),
        ..Found::new(s, Kind::Sandbox, index)
    }
}
