//! AArch64 under Linux: AAPCS64, LP64, little-endian.

pub mod bridge;
pub mod call;
pub mod capture;
mod effect;
#[cfg(feature = "relocate")]
pub mod insn;
pub mod jump;
pub mod prologue;
pub mod regs;
#[cfg(feature = "relocate")]
pub mod relocate;
pub mod rule;
pub mod sigframe;
pub mod syscall;

pub use crate::generic::wide;
pub use call::UserRegs;
pub use regs::{FullRegs, Regs};
pub use rule::{Rule, Step};
