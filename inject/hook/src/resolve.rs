//! Unwind rule of a code address: from the table, or computed when the address is first seen.

use crate::mapping::Shared;
use crate::{memory, modules, sys};
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use prof_arch::native::jump::{code_at, place_before_original};
use prof_arch::native::rule::{Rule, is_sigreturn_code};
use prof_arch::unwind::{CfiContext, CfiRule, compile};
use prof_trace::ids::PcId;
use prof_trace::pcs::{self, Found};
use prof_trace::shared::{FUNCTIONS, Function};

/// Id of a code address in the table, and its unwind rule.
#[derive(Clone, Copy)]
pub struct Code {
    /// Id; [`PcId::NONE`] if the address is not in the table.
    pub id: PcId,
    /// Rule that steps out of the address's frame.
    pub rule: Rule,
}

/// Returns id and rule of the return address `pc` (or one more than the address of an interrupted
/// instruction), if it has been seen before.
#[inline(always)]
pub fn known(shared: &Shared, pc: u64) -> Option<Code> {
    let Found::Id(id) = pcs::find_pc(shared, pc, |m| modules::is_loaded(shared, pc, m)) else {
        return None;
    };
    let word = pcs::rule(shared, id);
    (word != 0).then_some(Code { id, rule: Rule::from_u64(word) })
}

/// Computes the rule for an address and enters it into the table. Needs some KiB of stack. For `variant` see
/// [`CfiRule::from_code`].
#[inline(never)]
pub fn compute(shared: &Shared, pc: u64, variant: Option<bool>) -> Code {
    let look = pc.wrapping_sub(1);
    if let Some(rule) = in_stub(shared, look) {
        return enter(shared, pc, 0, rule);
    }
    let mut found = modules::find(shared, look);
    if found.is_none() && modules::refresh(shared) {
        found = modules::find(shared, look);
    }
    let (number, rule) = match found {
        // Guesses no rule for code whose tables may not be known yet.
        None if modules::is_uncertain(shared) => {
            return Code { id: PcId::NONE, rule: Rule::UNKNOWN };
        }
        // Unmapped memory of no module is no code.
        None if sys::allowed(shared) && !memory::read(shared, look, &mut [0]) => (0, Rule::UNKNOWN),
        None => (0, without_cfi(shared, pc).unwrap_or_else(|| from_code(shared, pc, variant))),
        Some((number, m)) => {
            // This comes before the tables: a trampoline without tables of its own (musl's) may stand right
            // behind a function that has some.
            let rule = without_cfi(shared, pc).unwrap_or_else(|| {
                let Some(cfi) = modules::cfi(shared, m) else { return Rule::UNKNOWN };
                match compile(&cfi, look, &mut CfiContext::new()) {
                    Rule::UNKNOWN => from_code(shared, pc, variant),
                    listed if Rule::is_beside_tables(pc) && !cfi.covers(look) => {
                        // Thumb code that was followed without a result is rarely where the tables are wrong;
                        // of ARM code that is not known.
                        match from_code(shared, pc, variant) {
                            Rule::FRAME_POINTER if variant != Some(false) => listed,
                            seen => seen,
                        }
                    }
                    listed => listed,
                }
            });
            (number, rule)
        }
    };
    enter(shared, pc, number, rule)
}

/// Returns the rule for an address in a stub, which a signal may interrupt. In the stub's first part the
/// stack is as at the function's entry; in the displaced instructions it is as in the function.
fn in_stub(shared: &Shared, look: u64) -> Option<Rule> {
    let count = (shared.control().functions.load(Acquire) as usize).min(FUNCTIONS);
    let f = (0..count)
        .filter_map(|i| shared.function(i))
        .find(|f| look >= f.stub_addr && look < f.stub_addr.wrapping_add(f.stub_len))?;
    let original = code_at(f.original);
    let place = match look.checked_sub(original) {
        None => place_before_original(
            original.wrapping_sub(look),
            f.patch_addr.wrapping_sub(code_at(f.addr)),
        ) as u8,
        Some(n) => *f.places.get(n as usize)?,
    };
    let at = code_at(f.addr).wrapping_add(place as u64);
    let (_, m) = modules::find(shared, at)?;
    let cfi = modules::cfi(shared, m)?;
    Some(compile(&cfi, at, &mut CfiContext::new()))
}

/// Enters a rule into the table.
fn enter(shared: &Shared, pc: u64, number: u16, rule: Rule) -> Code {
    let Found::Id(id) = pcs::add_pc(shared, pc, number) else {
        return Code { id: PcId::NONE, rule };
    };
    pcs::set_rule(shared, id, rule.to_u64());
    Code { id, rule }
}

/// Returns the rule of a signal trampoline, if `pc` is at one.
fn without_cfi(shared: &Shared, pc: u64) -> Option<Rule> {
    let mut code = [0u8; 16];
    (memory::read(shared, pc, &mut code) && is_sigreturn_code(&code)).then_some(Rule::SIGNAL)
}

/// Returns the rule for code without tables: from its instructions, or by frame pointer if these show none.
fn from_code(shared: &Shared, pc: u64, variant: Option<bool>) -> Rule {
    let mut read = |at: u64, to: &mut [u8]| {
        let is_read = memory::read(shared, at, to);
        if is_read {
            without_patches(shared, at, to);
        }
        is_read
    };
    Rule::from_code(pc, variant, &mut read).unwrap_or(Rule::FRAME_POINTER)
}

/// Puts the original instructions back into `code`, which was read at `at`: a patch hides the prologue of the hooked
/// function, which shows the frame of a call that the function makes.
fn without_patches(shared: &Shared, at: u64, code: &mut [u8]) {
    let count = (shared.control().functions.load(Acquire) as usize).min(FUNCTIONS);
    let patched = |f: &&Function| f.patched.load(Relaxed) != 0;
    for f in (0..count).filter_map(|i| shared.function(i)).filter(patched) {
        for (n, byte) in f.old_bytes.iter().take(f.patch_len as usize).enumerate() {
            let place = f.patch_addr.wrapping_add(n as u64).wrapping_sub(at);
            if let Some(to) = usize::try_from(place).ok().and_then(|n| code.get_mut(n)) {
                *to = *byte;
            }
        }
    }
}
