//! The few system calls of the hook.
//!
//! `gettid` once per thread where libc does not keep the id in reach; the others only where the
//! injector has found no seccomp filter ([`flags::SYSCALLS`]).

use core::sync::atomic::Ordering::Relaxed;
use prof_arch::native::syscall::{SIGSET_LEN, nr, syscall0, syscall2, syscall6};
use prof_trace::shared::{Shared, flags};

/// Whether system calls are safe in this target.
#[inline]
pub fn allowed(shared: &Shared) -> bool {
    shared.control().flags.load(Relaxed) & flags::SYSCALLS != 0
}

/// The calling thread's id.
pub fn gettid() -> u32 {
    // SAFETY: no arguments, no effect.
    unsafe { syscall0(nr::GETTID) as u32 }
}

/// Gives a signal back its default, and sends it to this thread once more: where it is blocked, as in its
/// own handler, it arrives when that has returned.
pub fn by_default(signal: i32) {
    // The default is zero, and so is all that belongs to it, in whatever order the kernel wants it.
    let action = [0u64; 8];
    // SAFETY: reads less than those bytes; the last argument is the size of a signal set.
    unsafe {
        let (signal, at) = (signal as u64, action.as_ptr() as u64);
        syscall6(nr::RT_SIGACTION, signal, at, 0, SIGSET_LEN as u64, 0, 0);
        let (pid, tid) = (syscall0(nr::GETPID) as u64, syscall0(nr::GETTID) as u64);
        syscall6(nr::TGKILL, pid, tid, signal, 0, 0, 0);
    }
}

/// Sleeps for `ns` nanoseconds, below a second; less if a signal comes.
pub fn sleep(ns: u64) {
    let request = [0usize, ns.min(999_999_999) as usize];
    // SAFETY: reads the two words of the request.
    unsafe { syscall2(nr::NANOSLEEP, request.as_ptr() as u64, 0) };
}

/// `CLOCK_MONOTONIC` in nanoseconds, as a system call.
pub fn clock() -> u64 {
    let mut t = [0usize; 2];
    // SAFETY: writes the two words.
    unsafe { syscall2(nr::CLOCK_GETTIME, 1, t.as_mut_ptr() as u64) };
    (t[0] as u64).wrapping_mul(1_000_000_000).wrapping_add(t[1] as u64)
}

/// Copies from this process's own memory; returns the bytes copied, less than asked for where
/// memory ends, and 0 where there is none.
pub fn read_own(pid: u32, addr: u64, to: *mut u8, len: usize) -> usize {
    let local = [to as usize, len];
    let remote = [addr as usize, len];
    // SAFETY: the kernel writes at most `len` bytes to `to`, which the callers own.
    let n = unsafe {
        syscall6(
            nr::PROCESS_VM_READV,
            pid as u64,
            local.as_ptr() as u64,
            1,
            remote.as_ptr() as u64,
            1,
            0,
        )
    };
    n.max(0) as usize
}

/// How many of the `count` pages from `addr` on can be read, without a gap, by touching a byte of
/// each; at most 16 are looked at.
pub fn readable_pages(pid: u32, addr: u64, page: u64, count: u64) -> u64 {
    let mut bytes = [0u8; 16];
    let count = count.min(16);
    let local = [bytes.as_mut_ptr() as usize, count as usize];
    let mut remote = [[0usize; 2]; 16];
    let mut at = addr;
    for r in &mut remote {
        *r = [at as usize, 1];
        at = at.wrapping_add(page);
    }
    // SAFETY: the kernel writes at most 16 bytes to `bytes`.
    let n = unsafe {
        syscall6(
            nr::PROCESS_VM_READV,
            pid as u64,
            local.as_ptr() as u64,
            1,
            remote.as_ptr() as u64,
            count,
            0,
        )
    };
    n.max(0) as u64
}
