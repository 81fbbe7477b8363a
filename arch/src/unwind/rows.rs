//! Compiles rows of the unwind table to packed rules.

use super::cfi::{CfiContext, CfiModule, NoRow};
use super::traits::CfiRule;

/// Compiles the rule for the code address `pc` (see the [module](super) about return addresses).
///
/// Returns `UNKNOWN` if no function of the module covers it. Returns `COMPLEX` if the rule cannot be packed,
/// which includes information that cannot be read: [`step_full`](super::step_full) then ends the stack there.
pub fn compile<R: CfiRule>(cfi: &CfiModule<'_>, pc: u64, ctx: &mut CfiContext) -> R {
    match cfi.row(pc, ctx, R::VENDOR) {
        Ok((row, frame)) => R::from_row(row, &frame, pc),
        Err(NoRow::NotCovered) => R::from_tables(cfi, pc),
        Err(NoRow::Malformed) => R::COMPLEX,
    }
}

/// Returns start and end of the function (strictly: of the FDE) that covers `pc`. `R` is the architecture's rule,
/// which knows tables of other kinds.
#[must_use]
pub fn function_range<R: CfiRule>(cfi: &CfiModule<'_>, pc: u64) -> Option<core::ops::Range<u64>> {
    match cfi.find_fde(pc) {
        Ok(fde) => Some(fde.initial_address()..fde.end_address()),
        Err(_) => R::range_in_tables(cfi, pc),
    }
}
