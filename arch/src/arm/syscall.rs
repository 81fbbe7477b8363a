//! System calls: numbers, instruction bytes, gadgets, and raw calls for code that runs natively
//! without a libc.
//!
//! Numbers: `arch/arm/tools/syscall.tbl` of the kernel. Convention (EABI): number in `r7`, arguments
//! in `r0` to `r5`, result in `r0`; the kernel preserves all other registers
//! (`arch/arm/kernel/entry-common.S`). Offsets of code have bit 0 set where it is Thumb code, as
//! addresses of it have.

use super::regs::THUMB;
use crate::generic::syscall;
pub use crate::generic::syscall::{
    ALL_BUT_FAULTS, ALL_SIGNALS, SIGSET_LEN, SignalSet, find_pop_number_gadget,
};

/// The longest system call instruction.
pub const SYSCALL_INSN: [u8; 4] = [0x00, 0x00, 0x00, 0xef];
/// `svc 0; pop {r7}; bx lr` in Thumb code: the end of glibc's functions.
pub const SYSCALL_RET: [u8; 6] = [0x00, 0xdf, 0x80, 0xbc, 0x70, 0x47];
/// `svc 0; pop {r7}; bx lr` in ARM code.
const SYSCALL_RET_ARM: [u8; 12] = [0, 0, 0, 0xef, 0x04, 0x70, 0x9d, 0xe4, 0x1e, 0xff, 0x2f, 0xe1];
/// `svc 0; mov r7, rN; bx lr` in Thumb code, the register left open: the end of musl's functions.
const KEPT_RET: [u8; 6] = [0x00, 0xdf, 0x07, 0x46, 0x70, 0x47];
/// `svc 0; mov r7, rN; bx lr` in ARM code.
const KEPT_RET_ARM: [u8; 12] = [0, 0, 0, 0xef, 0x00, 0x70, 0xa0, 0xe1, 0x1e, 0xff, 0x2f, 0xe1];

/// Returns the number of words that code pops behind a system call instruction before it returns; `code`
/// begins with the instruction.
#[must_use]
pub fn popped(code: &[u8]) -> usize {
    usize::from(code.starts_with(&SYSCALL_RET) || code.starts_with(&SYSCALL_RET_ARM))
}

/// Returns whether `code` begins with a system call instruction and a return that restores the number's
/// register from another one.
fn keeps(code: &[u8], ret: &[u8], register_at: usize, mask: u8) -> bool {
    let same = |(at, (code, ret)): (usize, (&u8, &u8))| {
        let mask = if at == register_at { mask } else { 0 };
        code & !mask == *ret
    };
    code.len() >= ret.len() && code.iter().zip(ret).enumerate().all(same)
}
/// Length of the longest instruction that loads a system call's number, in bytes.
pub const LOAD_NUMBER_LEN: usize = 4;

/// Size of the kernel's `struct sigaction`, in bytes: handler, flags, restorer, mask.
pub const SIGACTION_LEN: usize = 20;

/// Returns the kernel's `struct sigaction` for a handler with these flags and an empty mask.
#[must_use]
pub fn sigaction(handler: u64, flags: u64, restorer: u64) -> [u8; SIGACTION_LEN] {
    syscall::sigaction(4, handler, flags, restorer)
}

/// Returns the handler in such a structure.
#[must_use]
pub fn sigaction_handler(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |b| u32::from_le_bytes(*b).into())
}

/// Numbers of the system calls that `prof` makes, in itself or in a target, and of those that it must know.
#[allow(missing_docs)]
pub mod nr {
    pub const RESTART_SYSCALL: u64 = 0;
    pub const READ: u64 = 3;
    pub const WRITE: u64 = 4;
    pub const CLOSE: u64 = 6;
    pub const GETPID: u64 = 20;
    pub const CLONE: u64 = 120;
    pub const EXIT_GROUP: u64 = 248;
    pub const WAIT4: u64 = 114;
    pub const FORK: u64 = 2;
    pub const CLONE3: u64 = 435;
    pub const FCNTL: u64 = 55;
    pub const MUNMAP: u64 = 91;
    pub const MREMAP: u64 = 163;
    pub const MUNLOCK: u64 = 151;
    pub const FTRUNCATE: u64 = 93;
    pub const SIGRETURN: u64 = 119;
    pub const MPROTECT: u64 = 125;
    pub const SCHED_YIELD: u64 = 158;
    pub const NANOSLEEP: u64 = 162;
    pub const POLL: u64 = 168;
    pub const PRCTL: u64 = 172;
    pub const RT_SIGRETURN: u64 = 173;
    pub const RT_SIGACTION: u64 = 174;
    pub const RT_SIGPROCMASK: u64 = 175;
    pub const SIGALTSTACK: u64 = 186;
    /// `mmap2`: the file's offset counts in units of 4096 bytes.
    pub const MMAP: u64 = 192;
    pub const MADVISE: u64 = 220;
    pub const GETTID: u64 = 224;
    pub const FUTEX: u64 = 240;
    pub const CLOCK_GETTIME: u64 = 263;
    pub const CLOCK_NANOSLEEP: u64 = 265;
    pub const TGKILL: u64 = 268;
    pub const PROCESS_VM_READV: u64 = 376;
    pub const MEMFD_CREATE: u64 = 385;
    pub const UNSHARE: u64 = 337;
    pub const CLOCK_NANOSLEEP_TIME64: u64 = 407;
    pub const FUTEX_TIME64: u64 = 422;
}

/// Returns the system call that the signal restorer `code` makes: that for the frame of a handler with or
/// without `SA_SIGINFO`.
pub(super) fn restorer_of(code: &[u8]) -> Option<u64> {
    let half = |at: usize| Some(u16::from_le_bytes(*code.get(at..)?.first_chunk()?));
    let (number, svc) = match (half(0)?, half(2)?) {
        // mov.w r7, #number; svc 0: glibc's
        (0xf04f, mov) if mov >> 8 == 0x07 => (mov & 0xff, half(4)? == 0xdf00),
        // movs r7, #number; svc 0: the kernel's
        (mov, svc) if mov >> 8 == 0x27 => (mov & 0xff, svc == 0xdf00),
        // ARM code: mov r7, #number; svc
        (mov, 0xe3a0) if mov >> 8 == 0x70 => (mov & 0xff, half(6)? >> 8 == 0xef),
        _ => return None,
    };
    let number = u64::from(number);
    (svc && [nr::SIGRETURN, nr::RT_SIGRETURN].contains(&number)).then_some(number)
}

/// Returns the offset, with the Thumb bit, of the first code in `bytes` of which `is` returns the state.
fn find(bytes: &[u8], is: impl Fn(&[u8]) -> Option<bool>) -> Option<usize> {
    (0..bytes.len()).step_by(2).find_map(|at| match is(bytes.get(at..)?)? {
        true => Some(at | THUMB as usize),
        false => (at & 3 == 0).then_some(at),
    })
}

/// Returns the offset, in executable bytes (of libc, say), of a system call instruction after which
/// [`popped`] words are popped and the link register is returned to.
#[must_use]
pub fn find_syscall_ret_gadget(bytes: &[u8]) -> Option<usize> {
    (0..bytes.len()).step_by(2).find_map(|at| {
        let rest = bytes.get(at..)?;
        // mov r7, rN: N in bits 3 to 6 of the second half, or in the lowest of the word.
        if rest.starts_with(&SYSCALL_RET) || keeps(rest, &KEPT_RET, 2, 0x78) {
            return Some(at | THUMB as usize);
        }
        let arm = || rest.starts_with(&SYSCALL_RET_ARM) || keeps(rest, &KEPT_RET_ARM, 4, 0x0f);
        (at & 3 == 0 && arm()).then_some(at)
    })
}

/// Returns the offset, in executable bytes, of a restorer for the frame of a handler with `SA_SIGINFO` (glibc
/// has one, and the kernel's own page).
#[must_use]
pub fn find_restorer(bytes: &[u8]) -> Option<usize> {
    find(bytes, |code| {
        // A restorer begins with one of these bytes; most code is excluded here.
        let first = *code.first()?;
        if ![0x4f, nr::RT_SIGRETURN as u8].contains(&first) {
            return None;
        }
        let is = restorer_of(code) == Some(nr::RT_SIGRETURN);
        is.then(|| code.get(3) != Some(&0xe3))
    })
}

/// Returns the number of the system call that `code` ends before, if it is loaded right before it: `mov r7,
/// #number`.
#[must_use]
pub fn number_before(code: &[u8], thumb: bool) -> Option<u64> {
    let word = u32::from_le_bytes(*code.last_chunk::<LOAD_NUMBER_LEN>()?);
    if !thumb {
        return (word & 0xffff_ff00 == 0xe3a0_7000).then_some((word & 0xff).into());
    }
    // movs r7, #number; mov.w r7, #number, below 256, or from there on (a byte shifted, not needed here)
    let short = (word >> 24 == 0x27).then_some((word >> 16 & 0xff).into());
    short.or((word & 0xff00_ffff == 0x0700_f04f).then_some((word >> 16 & 0xff).into()))
}

#[cfg(target_arch = "arm")]
pub use raw::*;

/// Raw system calls of this process. Results are the kernel's: -4095 to -1 are negated error numbers.
#[cfg(target_arch = "arm")]
mod raw {
    use core::arch::asm;

    macro_rules! raw_syscall {
        ($(#[$doc:meta])* $name:ident($($arg:ident in $reg:tt),*)) => {
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// The call's effects must be such as this process can stand: the kernel does what it is told.
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            pub unsafe fn $name(nr: u64, first: u64 $(, $arg: u64)*) -> i64 {
                let result: u32;
                // SAFETY: the instruction clobbers nothing but what is declared; the caller answers for its
                // effects.
                unsafe {
                    asm!(
                        "svc #0",
                        in("r7") nr as u32,
                        inlateout("r0") first as u32 => result,
                        $(in($reg) $arg as u32,)*
                        options(nostack, preserves_flags),
                    );
                }
                super::result(result)
            }
        };
    }

    /// Makes a system call without arguments.
    ///
    /// # Safety
    ///
    /// As for [`syscall1`].
    #[inline(always)]
    pub unsafe fn syscall0(nr: u64) -> i64 {
        // SAFETY: the caller answers for the effects; an extra argument does no harm.
        unsafe { syscall1(nr, 0) }
    }

    raw_syscall!(
        /// Makes a system call with one argument.
        syscall1()
    );
    raw_syscall!(
        /// Makes a system call with two arguments.
        syscall2(b in "r1")
    );
    raw_syscall!(
        /// Makes a system call with three arguments.
        syscall3(b in "r1", c in "r2")
    );
    raw_syscall!(
        /// Makes a system call with four arguments.
        syscall4(b in "r1", c in "r2", d in "r3")
    );
    raw_syscall!(
        /// Makes a system call with five arguments.
        syscall5(b in "r1", c in "r2", d in "r3", e in "r4")
    );
    raw_syscall!(
        /// Makes a system call with six arguments.
        syscall6(b in "r1", c in "r2", d in "r3", e in "r4", f in "r5")
    );
}

/// Returns what the kernel has left in `r0`: an error, or a number or address that may have the highest bit.
#[inline(always)]
#[must_use]
pub(super) const fn result(r0: u32) -> i64 {
    if r0 > 0xffff_f000 { r0 as i32 as i64 } else { r0 as i64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generic::syscall::test_raw_calls;

    fn halves(halves: &[u16]) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes
            .chunks_exact_mut(2)
            .zip(halves)
            .for_each(|(b, h)| b.copy_from_slice(&h.to_le_bytes()));
        bytes
    }

    #[test]
    fn gadgets() {
        let thumb = halves(&[0xbf00, 0xdf00, 0xbc80, 0x4770]);
        assert_eq!(find_syscall_ret_gadget(&thumb), Some(3));
        let arm = halves(&[0, 0, 0, 0xef00, 0x7004, 0xe49d, 0xff1e, 0xe12f]);
        assert_eq!(find_syscall_ret_gadget(&arm), Some(4));
        assert_eq!(find_syscall_ret_gadget(&arm[2..]), None, "not aligned");
        assert_eq!(find_syscall_ret_gadget(&thumb[..7]), None);
        assert_eq!((popped(&thumb[2..]), popped(&arm[4..])), (1, 1));
        // mov r7, r3, and mov r7, ip; mov r6, r3 is another
        for (mov, found) in [(0x461f, Some(1)), (0x4667, Some(1)), (0x461e, None)] {
            let kept = halves(&[0xdf00, mov, 0x4770]);
            assert_eq!((find_syscall_ret_gadget(&kept), popped(&kept)), (found, 0));
        }
        let kept = halves(&[0, 0xef00, 0x700c, 0xe1a0, 0xff1e, 0xe12f]);
        assert_eq!((find_syscall_ret_gadget(&kept), popped(&kept)), (Some(0), 0));
        assert_eq!(find_syscall_ret_gadget(&kept[..11]), None);
        assert_eq!(find_restorer(&halves(&[0, 0xf04f, 0x07ad, 0xdf00])), Some(3));
        assert_eq!(find_restorer(&halves(&[0x27ad, 0xdf00])), Some(1));
        assert_eq!(find_restorer(&halves(&[0, 0, 0x70ad, 0xe3a0, 0x00ad, 0xef90])), Some(4));
        // Restorers of the other kind of frame.
        assert_eq!(find_restorer(&halves(&[0x2777, 0xdf00])), None);
        assert_eq!(restorer_of(&halves(&[0x2777, 0xdf00])), Some(nr::SIGRETURN));
        assert_eq!(restorer_of(&halves(&[0x27ad, 0xdf01])), None);
        assert_eq!(restorer_of(&halves(&[0x26ad, 0xdf00])), None);
        assert_eq!((restorer_of(&[0xad]), find_restorer(&[])), (None, None));
    }

    #[test]
    fn numbers() {
        let code = |a: u16, b: u16| [a.to_le_bytes(), b.to_le_bytes()].concat();
        assert_eq!(number_before(&code(0xbf00, 0x27a2), true), Some(nr::NANOSLEEP));
        assert_eq!(number_before(&code(0xf04f, 0x07f0), true), Some(nr::FUTEX));
        assert_eq!(number_before(&code(0x70a8, 0xe3a0), false), Some(nr::POLL));
        for (a, b, thumb) in [(0, 0x26a2, true), (0xf04f, 0x06f0, true), (0x60a8, 0xe3a0, false)] {
            assert_eq!(number_before(&code(a, b), thumb), None);
        }
        assert_eq!(number_before(&[0xa2, 0x27], true), None);
    }

    #[test]
    fn results() {
        assert_eq!((result(0xb6f0_0000), result(0xffff_fffc)), (0xb6f0_0000, -4));
        assert_eq!((result(0xffff_f001), result(0xffff_f000)), (-4095, 0xffff_f000));
    }

    #[test]
    fn sigactions() {
        assert_eq!(sigaction_handler(&sigaction(0xb6f0_1234, 1 << 28, 0x5678)), 0xb6f0_1234);
        assert_eq!(sigaction_handler(&[1, 2, 3]), 0);
    }

    test_raw_calls!("arm");
}
