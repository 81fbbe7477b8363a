//! System calls: what is the same on several architectures.

/// Size of the kernel's signal set, in bytes.
pub const SIGSET_LEN: usize = 8;
/// The kernel's signal set.
pub type SignalSet = u64;
/// Set of all signals.
pub const ALL_SIGNALS: SignalSet = u64::MAX;
/// Set of all signals but those by which the kernel reports a fault to the thread that has made it: SIGILL, SIGTRAP, SIGBUS,
/// SIGFPE, SIGSEGV and SIGSYS (signal(7)). If a thread has blocked such a signal, the kernel kills the process instead.
pub const ALL_BUT_FAULTS: SignalSet = !(1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 30);

/// Returns the kernel's `struct sigaction` (handler, flags, restorer, mask; each but the mask of `word` bytes) for a
/// handler with these flags and an empty mask.
pub(crate) fn sigaction<const N: usize>(
    word: usize,
    handler: u64,
    flags: u64,
    restorer: u64,
) -> [u8; N] {
    /// Flag: a restorer is given (`arch/*/include/uapi/asm/signal.h`).
    const SA_RESTORER: u64 = 0x0400_0000;
    let mut bytes = [0; N];
    let flags = if restorer == 0 { flags } else { flags | SA_RESTORER };
    for (to, from) in bytes.chunks_exact_mut(word).zip([handler, flags, restorer]) {
        to.iter_mut().zip(from.to_le_bytes()).for_each(|(to, from)| *to = from);
    }
    bytes
}

/// Returns the number of words that code pops behind a system call instruction before it returns, where gadgets pop
/// none; `_code` begins with the instruction.
#[must_use]
pub const fn popped(_code: &[u8]) -> usize {
    0
}

/// Returns the offset of code that pops a system call's number, for a program without a restorer. Every program has a
/// restorer where the kernel gives it one: in the vDSO, or on ARM in a page of its own.
#[must_use]
pub fn find_pop_number_gadget(_bytes: &[u8]) -> Option<usize> {
    None
}

/// Defines the test of an architecture's raw system calls, which only run there.
#[cfg(test)]
macro_rules! test_raw_calls {
    ($arch:literal) => {
        #[cfg(target_arch = $arch)]
        #[test]
        fn raw_calls() {
            // SAFETY: getpid and a failing close have no effect.
            unsafe {
                assert_eq!(syscall0(nr::GETPID), i64::from(libc::getpid()));
                assert_eq!(syscall1(nr::CLOSE, u64::MAX), -i64::from(libc::EBADF));
            }
        }
    };
}
#[cfg(test)]
pub(crate) use test_raw_calls;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sigactions() {
        let bytes: [u8; 32] = sigaction(8, 0x1234, 1 << 28, 0x5678);
        assert_eq!(bytes[..8], 0x1234_u64.to_le_bytes());
        assert_eq!(bytes[8..16], 0x1400_0000_u64.to_le_bytes());
        assert_eq!(bytes[16..24], 0x5678_u64.to_le_bytes());
        assert_eq!(sigaction::<32>(8, 1, 0, 0)[8..], [0; 24]);
        let bytes: [u8; 20] = sigaction(4, 0xb6f0_1234, 1 << 28, 0x5678);
        assert_eq!(bytes[..4], 0xb6f0_1234_u32.to_le_bytes());
        assert_eq!(bytes[4..8], 0x1400_0000_u32.to_le_bytes());
        assert_eq!(bytes[8..12], 0x5678_u32.to_le_bytes());
        assert_eq!(sigaction::<20>(4, 1, 0, 0)[4..], [0; 16]);
    }
}
