//! Rules of architectures whose calls leave the return address in a register.

use super::Isa;
use super::rule::{Form, LEAF, Rule};
use crate::unwind::{FrameInfo, Row};
use gimli::{CfaRule, Register, RegisterRule};

/// See [`Isa::pack`].
pub(super) fn pack<I: Isa>(
    kind: u64,
    cfa_off: i32,
    ra_slot: i32,
    fp_slot: Option<i32>,
) -> Option<u64> {
    const CFA_MOST: i32 = (1 << 23) - 1;
    let word = i32::from(I::WORD);
    let words =
        |offset: i32| offset.checked_div(word).filter(|n| n.checked_mul(word) == Some(offset));
    let (cfa, ra) = (words(cfa_off)?, i16::try_from(words(ra_slot)?).ok()?);
    let fp = i16::try_from(words(fp_slot.unwrap_or(0))?).ok()?;
    let at_cfa = fp_slot == Some(0) || (ra == 0) != (kind == LEAF);
    if at_cfa || !(-CFA_MOST..=CFA_MOST).contains(&cfa) {
        return None;
    }
    let cfa = u64::from(cfa as u32 & 0xff_ffff);
    Some(kind | cfa << 8 | u64::from(ra as u16) << 32 | u64::from(fp as u16) << 48)
}

/// See [`Isa::from_row`].
pub(super) fn from_row<I: Isa>(row: &Row, frame: &FrameInfo<'_>) -> Rule<I> {
    if frame.ra != I::RA || frame.signal {
        return Rule::COMPLEX;
    }
    let offset = |register| match row.register(Register(register)) {
        None | Some(RegisterRule::SameValue) => Some(None),
        Some(RegisterRule::Offset(n)) => i32::try_from(n).ok().map(Some),
        Some(_) => None,
    };
    if row.register(Register(I::RA)) == Some(RegisterRule::Undefined) {
        return Rule::END;
    }
    // A row that changes the stack pointer is not supported: the caller's stack pointer is the CFA.
    if row.register(Register(I::SP)).is_some_and(|rule| rule != RegisterRule::ValOffset(0)) {
        return Rule::COMPLEX;
    }
    let (Some(Some(ra_slot)), Some(fp_slot)) = (offset(I::RA), offset(I::FP)) else {
        return Rule::COMPLEX;
    };
    let CfaRule::RegisterAndOffset { register, offset } = row.cfa() else {
        return Rule::COMPLEX;
    };
    let Ok(cfa_off) = i32::try_from(*offset) else { return Rule::COMPLEX };
    Rule::from_form(match register.0 {
        n if n == I::SP => Form::CfaSp { cfa_off, ra_slot, fp_slot },
        n if n == I::FP => Form::CfaFp { cfa_off, ra_slot, fp_slot },
        _ => Form::Complex,
    })
}
