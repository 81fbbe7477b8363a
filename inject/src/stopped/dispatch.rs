//! The dispatch of a thread's system calls to a handler of the program (`PR_SET_SYSCALL_USER_DISPATCH`, which Wine uses).

use crate::{RemoteAddr, RemoteMemory};

/// `PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG` (Linux 6.4).
pub(crate) const GET_DISPATCH: libc::c_uint = 0x4211;

/// The dispatch of a thread's system calls (`struct ptrace_sud_config`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dispatch {
    mode: u64,
    /// Address of a byte that switches the dispatch on and off; 0: it is always on.
    selector: u64,
    /// Start of the code whose calls are not dispatched.
    offset: u64,
    /// Length of that code.
    len: u64,
}

impl Dispatch {
    /// Returns whether the thread has set up a dispatch.
    pub(crate) fn is_on(&self) -> bool {
        self.mode != 0
    }

    /// Returns whether a system call in this code would raise a signal in the stopped thread.
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
