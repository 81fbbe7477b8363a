//! How a tracer gets at the registers of a stopped thread.

/// Where the kernel has a part of a stopped thread's registers.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Registers {
    /// In a register set of this number, for `PTRACE_GETREGSET` and `PTRACE_SETREGSET`.
    Set(i32),
    /// Behind requests of their own, which put them at an address and take them from one.
    Requests {
        /// Reads them.
        get: u32,
        /// Writes them; 0 where nobody needs to.
        set: u32,
    },
}

/// The register set of AArch64's guarded control stacks (`NT_ARM_GCS`): features that are on, features that are
/// locked, the stack pointer, 8 bytes each.
pub const GUARDED_STACK: i32 = 0x410;
/// The bit of `AT_HWCAP` by which an AArch64 kernel says that there are such stacks.
pub const HWCAP_GUARDED_STACK: u64 = 1 << 32;

/// Whether a thread with this register set has returns checked (`PR_SHADOW_STACK_ENABLE`).
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
