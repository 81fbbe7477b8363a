//! A child process under ptrace.
#![allow(dead_code)]

use prof_arch::x86_64::UserRegs;
use std::ptr::null_mut;

const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;
const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;
const NT_X86_XSTATE: usize = 0x202;

/// A child process under ptrace; killed when dropped.
pub(crate) struct Child(pub libc::pid_t);

impl Child {
    pub(crate) fn ptrace(&self, request: libc::c_uint, addr: usize, data: *mut libc::c_void) {
        // SAFETY: the requests are for our own stopped child; the caller keeps the buffer `data` alive.
        let result = unsafe { libc::ptrace(request, self.0, addr, data) };
        assert!(result >= 0, "ptrace {request:#x}: {}", std::io::Error::last_os_error());
    }

    pub(crate) fn wait_stopped(&self) -> i32 {
        let mut status = 0;
        // SAFETY: the call waits for our own child and writes to `status`.
        assert_eq!(unsafe { libc::waitpid(self.0, &mut status, 0) }, self.0);
        assert!(libc::WIFSTOPPED(status), "{status:#x}");
        libc::WSTOPSIG(status)
    }

    pub(crate) fn regs(&self) -> UserRegs {
        let mut regs = UserRegs::default();
        self.ptrace(libc::PTRACE_GETREGS, 0, (&raw mut regs).cast());
        regs
    }

    pub(crate) fn set_regs(&self, regs: &UserRegs) {
        let mut regs = *regs;
        self.ptrace(libc::PTRACE_SETREGS, 0, (&raw mut regs).cast());
    }

    pub(crate) fn xsave(&self) -> Vec<u8> {
        let mut image = vec![0; 16384];
        let mut iov = libc::iovec { iov_base: image.as_mut_ptr().cast(), iov_len: image.len() };
        self.ptrace(libc::PTRACE_GETREGSET, NT_X86_XSTATE, (&raw mut iov).cast());
        image.truncate(iov.iov_len);
        image
    }

    pub(crate) fn set_xsave(&self, image: &[u8]) {
        let mut iov =
            libc::iovec { iov_base: image.as_ptr().cast_mut().cast(), iov_len: image.len() };
        self.ptrace(libc::PTRACE_SETREGSET, NT_X86_XSTATE, (&raw mut iov).cast());
    }

    pub(crate) fn sigmask(&self) -> u64 {
        let mut mask = 0_u64;
        self.ptrace(PTRACE_GETSIGMASK, 8, (&raw mut mask).cast());
        mask
    }

    pub(crate) fn set_sigmask(&self, mut mask: u64) {
        self.ptrace(PTRACE_SETSIGMASK, 8, (&raw mut mask).cast());
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: the process is our own child, which is not yet waited for, so that its id is not reused.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, null_mut(), 0);
        }
    }
}

/// Memory shared with the child, so that both see what is written to it.
pub(crate) fn shared(len: usize) -> *mut u8 {
    let prot = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    // SAFETY: the call makes a new anonymous mapping.
    let p =
        unsafe { libc::mmap(null_mut(), len, prot, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0) };
    assert_ne!(p, libc::MAP_FAILED);
    p.cast()
}
