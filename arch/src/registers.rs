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
