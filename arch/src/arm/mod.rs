//! 32-bit ARM under Linux: AAPCS with hardware floating point (armv7), ARM and Thumb-2 code,
//! little-endian.

pub mod bridge;
pub mod call;
pub mod capture;
pub mod decode;
mod effect;
mod effect_arm;
pub mod exidx;
mod follow;
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
