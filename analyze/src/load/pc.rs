//! Code addresses of the target.

/// A code address of the target: a return address, or the instruction at which a signal handler interrupted the thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pc {
    /// The address.
    pub address: u64,
    /// Number of the module; 0: none.
    pub module: u32,
    /// The address is that of an interrupted instruction, not of one behind a call.
    pub exact: bool,
}
