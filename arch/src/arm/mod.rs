//! 32-bit ARM under Linux: AAPCS with hardware floating point (armv7), ARM and Thumb-2 code,
//! little-endian.
//!
//! Not complete: prof does not run there yet.

pub mod exidx;
pub mod insn;
pub mod regs;
#[cfg(feature = "relocate")]
pub mod relocate;

pub use regs::{FullRegs, Regs};
