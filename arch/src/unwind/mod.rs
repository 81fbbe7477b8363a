//! Stack unwinding from call frame information, independent of the instruction set.
//!
//! There are two ways through the same tables:
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

pub(crate) mod ahead;
mod cfi;
mod expr;
mod full_step;
mod loaded;
mod rows;
mod shape;
mod traits;

pub use cfi::{CfiContext, CfiModule, FrameInfo, Row, eh_frame_address};
pub use full_step::{saved_registers, step_full};
pub use loaded::{Loaded, Part, loaded};
pub use rows::{compile, function_range};
pub use shape::{SLOTS, Shape, shape};
pub use traits::{CfiRule, FullStep, Goroutine, RegisterSet};
