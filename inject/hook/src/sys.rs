//! The few system calls of the hook.
//!
//! `gettid` is made once per thread, where libc does not keep the id in reach. The others, and `gettid` at each call
//! that changes mappings, are made only where the injector has found no seccomp filter ([`flags::SYSCALLS`]), or
//! knows that the filter permits them ([`flags::MASKS`], [`flags::MAPS`]).

use crate::mapping::Shared;
use core::sync::atomic::Ordering::Relaxed;
use prof_arch::native::syscall::{SIGSET_LEN, nr, syscall0, syscall2, syscall6};
use prof_trace::shared::flags;

/// Returns whether system calls are safe in this target.
#[inline]
pub fn allowed(shared: &Shared) -> bool {
    shared.control().flags.load(Relaxed) & flags::SYSCALLS != 0
}

/// Returns the calling thread's id.
pub fn gettid() -> u32 {
    // SAFETY: the call takes no arguments and has no effect.
    unsafe { syscall0(nr::GETTID) as u32 }
}

/// Restores the default action of a signal, and sends the signal to this thread once more. In its own handler
/// it is blocked, and arrives when the handler has returned.
pub fn by_default(signal: i32) {
    // The default action is all zeroes, in whatever order the kernel has the fields.
    let action = [0u64; 8];
    // SAFETY: the kernel reads fewer bytes than `action` has; the fourth argument is the size of a signal
    // set.
    unsafe {
        let (signal, at) = (signal as u64, action.as_ptr() as u64);
        syscall6(nr::RT_SIGACTION, signal, at, 0, SIGSET_LEN as u64, 0, 0);
        let (pid, tid) = (syscall0(nr::GETPID) as u64, syscall0(nr::GETTID) as u64);
        syscall6(nr::TGKILL, pid, tid, signal, 0, 0, 0);
    }
}

/// Set of blocked signals, as the kernel has it.
pub type Mask = [u64; 2];

/// `SIG_SETMASK`.
const SET_MASK: u64 = if cfg!(target_arch = "mips64") { 3 } else { 2 };

/// Numbers of the signals that report a fault of an instruction (ILL, TRAP, FPE, BUS, SEGV and, except on
/// MIPS, SYS). If they were blocked, a fault would kill the process.
const FAULTS: &[u32] =
    if cfg!(target_arch = "mips64") { &[4, 5, 8, 10, 11, 12] } else { &[4, 5, 7, 8, 11, 31] };

fn set_mask(new: &Mask, old: &mut Mask) -> bool {
    let (new, old) = (new.as_ptr() as u64, old.as_mut_ptr() as u64);
    // SAFETY: the kernel reads and writes at most the 16 bytes of the largest signal set of any architecture.
    let r = unsafe { syscall6(nr::RT_SIGPROCMASK, SET_MASK, new, old, SIGSET_LEN as u64, 0, 0) };
    r == 0
}

/// Returns whether the hook may block signals and ask for the signal stack.
fn may_mask(shared: &Shared) -> bool {
    shared.control().flags.load(Relaxed) & (flags::SYSCALLS | flags::MASKS) != 0
}

/// Blocks all signals but faults in the calling thread; returns the old mask, or `None` where that is not
/// allowed.
pub fn block_signals(shared: &Shared) -> Option<Mask> {
    may_mask(shared).then(block_always).flatten()
}

/// Blocks them as [`block_signals`] does, in a child of a process where that is allowed.
pub fn block_always() -> Option<Mask> {
    let faults = FAULTS.iter().fold(0u64, |m, s| m | 1 << (s - 1));
    let (new, mut old) = ([!faults, u64::MAX], [0; 2]);
    set_mask(&new, &mut old).then_some(old)
}

/// Returns whether a signal handler may see a stack of the hook's.
pub fn may_be_seen(shared: &Shared) -> bool {
    shared.control().flags.load(Relaxed) & flags::COLLECTS == 0
}

/// Restores the mask that [`block_signals`] returned.
pub fn unblock_signals(old: &Mask) {
    set_mask(old, &mut [0; 2]);
}

/// Returns whether `sp` lies on the thread's signal stack; false where that may not be asked for.
pub fn is_on_signal_stack(shared: &Shared, sp: u64) -> bool {
    if !may_mask(shared) {
        return false;
    }
    // Address, flags, size; on MIPS address, size, flags. The flags are an int.
    let mut stack = [0usize; 3];
    // SAFETY: the kernel writes at most the three words.
    let r = unsafe { syscall2(nr::SIGALTSTACK, 0, stack.as_mut_ptr() as u64) };
    let size = stack[if cfg!(target_arch = "mips64") { 1 } else { 2 }];
    r == 0 && sp.wrapping_sub(stack[0] as u64) < size as u64
}

/// Returns whether the hook may map and unmap memory of its own.
pub fn may_map(shared: &Shared) -> bool {
    shared.control().flags.load(Relaxed) & (flags::SYSCALLS | flags::MAPS) != 0
}

/// `PROT_READ | PROT_WRITE`.
const READ_WRITE: u64 = 3;
/// `MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE`.
const PRIVATE: u64 = 2 | if cfg!(target_arch = "mips64") { 0x800 | 0x400 } else { 0x20 | 0x4000 };
/// `MAP_FIXED_NOREPLACE`.
const FIXED_NOREPLACE: u64 = 0x10_0000;
/// `MADV_NOHUGEPAGE`.
const NO_HUGE_PAGES: u64 = 15;

/// Maps private memory, if `addr` is not 0 exactly there. Returns the address, or 0 on failure. Only used
/// pages are allocated.
pub fn map(addr: u64, len: u64) -> u64 {
    let flags = PRIVATE | if addr == 0 { 0 } else { FIXED_NOREPLACE };
    // SAFETY: no existing mapping is replaced; a kernel before 4.17 takes the address as a hint.
    let at = unsafe { syscall6(nr::MMAP, addr, len, READ_WRITE, flags, u64::MAX, 0) };
    if (-4095..0).contains(&at) {
        return 0;
    }
    let at = at as u64;
    if addr != 0 && at != addr {
        unmap(at, len);
        return 0;
    }
    // SAFETY: advice on memory that was just mapped.
    unsafe { syscall6(nr::MADVISE, at, len, NO_HUGE_PAGES, 0, 0, 0) };
    at
}

/// `MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE`.
const SHARED: u64 = PRIVATE ^ 3;

/// Maps shared memory, of which only used pages are allocated, and which nothing locks; `cut` bytes of its file come before
/// the mapping. Returns the address, or 0 on failure.
pub fn map_shared(cut: u64, len: u64) -> u64 {
    const NO_ACCESS: u64 = 0;
    // Memory that a process locks from now on (`mlockall(MCL_FUTURE)`) is allocated at once, unless it has no access.
    // SAFETY: no existing mapping is replaced.
    let at = unsafe { syscall6(nr::MMAP, 0, cut + len, NO_ACCESS, SHARED, u64::MAX, 0) };
    if (-4095..0).contains(&at) {
        return 0;
    }
    let rest = at as u64 + cut;
    unmap(at as u64, cut);
    // SAFETY: the memory was just mapped, and nobody uses it.
    let opened = unsafe {
        syscall2(nr::MUNLOCK, rest, len);
        syscall6(nr::MPROTECT, rest, len, READ_WRITE, 0, 0, 0)
    };
    if opened != 0 {
        unmap(rest, len);
        return 0;
    }
    // SAFETY: advice on memory that was just mapped.
    unsafe { syscall6(nr::MADVISE, rest, len, NO_HUGE_PAGES, 0, 0, 0) };
    rest
}

/// Lets this process read and write shared memory that had no access. Returns whether that was possible.
pub fn open(addr: u64, len: u64) -> bool {
    // SAFETY: nobody uses the memory yet, and more access harms nobody.
    unsafe { syscall6(nr::MPROTECT, addr, len, READ_WRITE, 0, 0, 0) == 0 }
}

/// Moves memory of this process to an address where nothing is mapped, and keeps it from children and core files.
/// Returns whether that was possible; if not, it is where it was.
pub fn move_free(from: u64, len: u64, to: u64) -> bool {
    /// `MREMAP_MAYMOVE | MREMAP_FIXED`.
    const TO_FIXED: u64 = 3;
    /// `MADV_DONTFORK`, `MADV_DONTDUMP`.
    const ADVICE: [u64; 2] = [10, 16];
    // A mapping that replaces nothing shows that the place is free.
    if map(to, len) == 0 {
        return false;
    }
    // SAFETY: the memory that is replaced was just mapped, and that which is moved is the caller's own.
    let at = unsafe { syscall6(nr::MREMAP, from, len, len, TO_FIXED, to, 0) };
    if at as u64 != to {
        unmap(to, len);
        return false;
    }
    for advice in ADVICE {
        // SAFETY: advice on memory of the caller's own.
        unsafe { syscall6(nr::MADVISE, to, len, advice, 0, 0, 0) };
    }
    true
}

/// Unmaps memory that [`map`] or [`map_shared`] has returned.
pub fn unmap(addr: u64, len: u64) {
    // SAFETY: the memory is the caller's own.
    unsafe { syscall2(nr::MUNMAP, addr, len) };
}

/// Returns whether no other thread has the memory of this process; false where that may not be asked for.
pub fn is_alone(shared: &Shared) -> bool {
    /// `CLONE_VM`.
    const MEMORY: u64 = 0x100;
    // SAFETY: the call fails unless the thread is alone, and has no effect then, by unshare(2).
    allowed(shared) && unsafe { syscall2(nr::UNSHARE, MEMORY, 0) } == 0
}

/// Returns the calling process's id.
pub fn getpid() -> u32 {
    // SAFETY: the call takes no arguments and has no effect.
    unsafe { syscall0(nr::GETPID) as u32 }
}

/// Sleeps for `ns` nanoseconds, less than a second; shorter if a signal comes.
pub fn sleep(ns: u64) {
    let request = [0usize, ns.min(999_999_999) as usize];
    // SAFETY: the kernel reads the two words of the request.
    unsafe { syscall2(nr::NANOSLEEP, request.as_ptr() as u64, 0) };
}

/// Returns `CLOCK_MONOTONIC` in nanoseconds, by a system call.
pub fn clock() -> u64 {
    let mut t = [0usize; 2];
    // SAFETY: the kernel writes the two words.
    unsafe { syscall2(nr::CLOCK_GETTIME, 1, t.as_mut_ptr() as u64) };
    (t[0] as u64).wrapping_mul(1_000_000_000).wrapping_add(t[1] as u64)
}

/// Copies from this process's own memory. Returns the bytes copied: fewer than `len` if the memory ends
/// before, 0 if there is none.
pub fn read_own(pid: u32, addr: u64, to: *mut u8, len: usize) -> usize {
    let local = [to as usize, len];
    let remote = [[addr as usize, len]];
    // SAFETY: the callers own the `len` bytes at `to`.
    unsafe { read_vectors(pid, &local, &remote) as usize }
}

/// Copies the ranges `remote` to the range `local`; returns the bytes copied. `pid` is the first thread of
/// the process; if that has ended alone, the calling thread's id is used instead.
///
/// # Safety
/// `local` must be a writable range.
unsafe fn read_vectors(pid: u32, local: &[usize; 2], remote: &[[usize; 2]]) -> u64 {
    const NO_SUCH_PROCESS: i64 = -3;
    // SAFETY: `local` is writable, by the caller's promise; the kernel writes no more than that.
    let read = |id: u32| unsafe {
        let (local, count) = (local.as_ptr() as u64, remote.len() as u64);
        let remote = remote.as_ptr() as u64;
        syscall6(nr::PROCESS_VM_READV, id as u64, local, 1, remote, count, 0) as i64
    };
    let mut n = read(pid);
    if n == NO_SUCH_PROCESS {
        n = read(gettid());
    }
    n.max(0) as u64
}

/// Returns how many of the `count` pages from `addr` on can be read, up to the first that can't. It reads a
/// byte of each, of at most 16.
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
    // SAFETY: the range is a local array.
    unsafe { read_vectors(pid, &local, remote.get(..count as usize).unwrap_or(&[])) }
}
