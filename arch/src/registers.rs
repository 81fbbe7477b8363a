//! Access of a tracer to the registers of a stopped thread.

/// Place of a part of a stopped thread's registers in the kernel's interface.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Registers {
    /// A register set of this number, for `PTRACE_GETREGSET` and `PTRACE_SETREGSET`.
    Set(i32),
    /// Requests of their own, which copy the registers to an address and from one.
    Requests {
        /// Request that reads them.
        get: u32,
        /// Request that writes them; 0: nobody needs to.
        set: u32,
    },
}

/// Register set with AArch64's guarded control stacks (`NT_ARM_GCS`): features that are on, features that are
/// locked, the stack pointer, 8 bytes each.
pub const GUARDED_STACK: i32 = 0x410;
/// Bit of `AT_HWCAP` by which an AArch64 kernel says that there are such stacks.
pub const HWCAP_GUARDED_STACK: u64 = 1 << 32;

/// Returns whether the returns of a thread with this register set are checked (`PR_SHADOW_STACK_ENABLE`).
#[must_use]
pub fn is_guarded(set: &[u8]) -> bool {
    set.first_chunk().is_some_and(|features| u64::from_ne_bytes(*features) & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::is_guarded;

    #[test]
    fn guarded_stacks_are_known_by_their_features() {
        let set = |features: u64| [features.to_ne_bytes(), [0xff; 8], [0x70; 8]].concat();
        assert!(is_guarded(&set(1)) && is_guarded(&set(7)));
        // Off, but locked; writes or pushes allowed without it; no such set.
        assert!(!is_guarded(&set(0)) && !is_guarded(&set(6)) && !is_guarded(&[]));
    }
}
