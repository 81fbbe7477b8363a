//! 32-bit ARM under Linux: AAPCS with hardware floating point (armv7), ARM and Thumb-2 code,
//! little-endian.
//!
//! Not complete: prof does not run there yet. What is here is what unwinding needs beyond DWARF.

pub mod exidx;
pub mod regs;

pub use regs::{FullRegs, Regs};
