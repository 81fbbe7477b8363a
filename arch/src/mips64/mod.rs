//! MIPS64 under Linux: the n64 ABI, little- and big-endian, releases 2 to 5 and release 6.
//!
//! Functions that depend on byte order or release take a [`Variant`] and are named `..._in`, so that all of them
//! are tested on every host. The functions that the other architectures have, too, use [`Variant::NATIVE`].

pub mod bridge;
pub mod call;
pub mod capture;
pub mod decode;
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
pub mod variant;

pub use crate::generic::wide;
pub use call::UserRegs;
pub use regs::{FullRegs, Regs};
pub use rule::{Rule, Step};
pub use variant::{Order, Variant};
