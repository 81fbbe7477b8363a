//! AMD64 under Linux: System V ABI, 64-bit processes.

pub mod bridge;
pub mod call;
pub mod capture;
mod goroutine;
#[cfg(feature = "relocate")]
pub mod insn;
pub mod jump;
#[cfg(feature = "relocate")]
pub mod prologue;
pub mod regs;
#[cfg(feature = "relocate")]
pub mod relocate;
pub mod rule;
pub mod sigframe;
pub mod syscall;
pub mod wide;

pub use call::UserRegs;
pub use regs::{FullRegs, Regs};
pub use rule::{Rule, Step};
