//! MIPS64 under Linux: the n64 ABI, little- and big-endian, releases 2 to 5 and release 6.
//!
//! What depends on byte order or release takes an [`Isa`] (functions named `..._in`), so that all of
//! it is tested on every host; the functions that the other architectures have, too, do it for
//! [`Isa::NATIVE`].

pub mod bridge;
pub mod call;
pub mod capture;
pub mod decode;
#[cfg(feature = "relocate")]
pub mod insn;
pub mod isa;
pub mod jump;
pub mod prologue;
pub mod regs;
#[cfg(feature = "relocate")]
pub mod relocate;
pub mod rule;
pub mod sigframe;
pub mod syscall;

pub use call::UserRegs;
pub use isa::{Isa, Order};
pub use regs::{FullRegs, Regs};
pub use rule::{Rule, Step};
