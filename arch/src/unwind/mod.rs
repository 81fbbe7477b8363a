//! Stack unwinding from call frame information, independent of the instruction set.
//!
//! Two ways through the same tables:
//!
//! * [`compile`] turns the row for one code address into a rule of eight bytes (the architecture's
//!   `Rule`), once; the rule is then kept and applied for every stack that passes through that
//!   address.
//! * [`step_full`] evaluates the whole row with all registers, DWARF expressions included, for the
//!   few frames that no packed rule describes.
//!
//! Code addresses: a return address belongs to the *call*, which may be the last instruction of its
//! function, so its row is looked up at `pc - 1`. The pc of an interrupted instruction (the
//! innermost frame, and the frame above a signal frame) is looked up as it is. The functions here
//! take the address to look up and subtract nothing.

mod cfi;
mod expr;
mod full;

pub use cfi::{CfiContext, CfiModule, FrameInfo, Row, compile, eh_frame_address, function_range};
pub use full::{FullStep, step_full};

/// A packed unwind rule of one architecture.
pub trait CfiRule: Copy {
    /// There is no call frame information for the address.
    const UNKNOWN: Self;
    /// There is, but it takes the full evaluation.
    const COMPLEX: Self;

    /// Packs one row of the unwind table. `pc` is the address looked up.
    fn from_row(row: &Row, frame: &FrameInfo<'_>, pc: u64) -> Self;
}

/// All registers of one architecture, by DWARF number.
pub trait RegisterSet: Copy {
    /// The stack pointer's number.
    const SP: u16;
    /// The number of the return address column, under which `get` and `set` mean the program
    /// counter.
    const RA: u16;

    /// A register's value; `None` for one that is not carried (vector registers and such).
    fn get(&self, register: u16) -> Option<u64>;
    /// Sets a register; those not carried are ignored.
    fn set(&mut self, register: u16, value: u64);
}
