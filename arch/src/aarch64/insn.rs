//! Analysis of functions: whether one can be patched at its entry, and which instruction the patch displaces.
//!
//! Encodings: Arm Architecture Reference Manual for A-profile, C4.1 ("A64 instruction set
//! encoding").

use super::jump::PATCH_LEN;
pub use crate::generic::insn::{
    argument_is_forgotten, called_slots, find_reference_by_table, function_around, rule_by_code,
};
use crate::patch::Lead;
pub use crate::patch::{PatchPlan, Probed, Refusal};
use alloc::vec::Vec;

/// An instruction's use of its own address.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum PcUse {
    /// `b`: branches to this address.
    Branch(u64),
    /// `bl`: calls this address.
    Call(u64),
    /// `b.cond`, `cbz`, `tbz` and their like: may branch to this address. The field of the distance begins at
    /// bit 5 and has this many bits.
    Conditional(u64, u32),
    /// `adr`, `adrp`: puts this address into a register.
    Address(u64),
    /// `ldr`, `ldrsw`, `prfm`: loads from this address.
    Literal(u64),
    /// Uses its address in a way that can't be moved, for example signs it.
    Other,
}

/// Returns `bits` bits of `insn` from bit `low` on, as a signed number.
pub(super) fn field(insn: u32, low: u32, bits: u32) -> i64 {
    let left = 32_u32.wrapping_sub(low.wrapping_add(bits));
    i64::from(insn.wrapping_shl(left) as i32 >> 32_u32.wrapping_sub(bits))
}

/// Returns how the instruction at `pc` uses its own address, if it does. Calls of registers set the link
/// register from it, but do not read it.
#[must_use]
pub fn pc_use(insn: u32, pc: u64) -> Option<PcUse> {
    let to = |words: i64| pc.wrapping_add_signed(words.wrapping_mul(4));
    if insn & 0x7c00_0000 == 0x1400_0000 {
        let target = to(field(insn, 0, 26));
        return Some(if insn >> 31 == 0 { PcUse::Branch(target) } else { PcUse::Call(target) });
    }
    if insn & 0xff00_0000 == 0x5400_0000 || insn & 0x7e00_0000 == 0x3400_0000 {
        return Some(PcUse::Conditional(to(field(insn, 5, 19)), 19));
    }
    if insn & 0x7e00_0000 == 0x3600_0000 {
        return Some(PcUse::Conditional(to(field(insn, 5, 14)), 14));
    }
    if insn & 0x1f00_0000 == 0x1000_0000 {
        let distance = field(insn, 5, 19) << 2 | i64::from(insn >> 29 & 3);
        let page = is_adrp(insn);
        let base = if page { pc & !0xfff } else { pc };
        let distance = if page { distance << 12 } else { distance };
        return Some(PcUse::Address(base.wrapping_add_signed(distance)));
    }
    // The last of the vector forms is not allocated.
    if insn & 0x3b00_0000 == 0x1800_0000 && insn & 0xff00_0000 != 0xdc00_0000 {
        return Some(PcUse::Literal(to(field(insn, 5, 19))));
    }
    let other = insn & 0x7e00_0000 == 0x7400_0000 // compare and branch (FEAT_CMPBR)
        || insn & 0xffc0_0000 == 0x5500_0000 // retaasppc, retabsppc (FEAT_PAuth_LR)
        || insn & 0xff80_0000 == 0xf380_0000 // autiasppc, autibsppc, from a label
        || insn & 0xffff_dbff == 0xdac1_83fe // paciasppc, pacnbiasppc and theirs of key B
        || insn == 0xd503_24ff; // pacm: makes the next paciasp sign the pc, too
    other.then_some(PcUse::Other)
}

fn is_adrp(insn: u32) -> bool {
    insn & 0x9f00_0000 == 0x9000_0000
}

/// Returns whether this is `bti`, `bti c`, `bti j` or `bti jc`.
fn is_bti(insn: u32) -> bool {
    insn & 0xffff_ff3f == 0xd503_241f
}

/// Returns the instruction that undoes what `insn` does to the link register, if that is `paciasp` or
/// `pacibsp`.
pub(super) fn unsign(insn: u32) -> Option<u32> {
    (insn & 0xffff_ffbf == 0xd503_233f).then_some(insn | 0x80)
}

/// Returns the instruction at offset `at`.
pub(super) fn word(code: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*code.get(at..)?.first_chunk()?))
}

/// Returns the opcode of an unconditional branch to a register: bits 24 to 21.
fn register_branch(insn: u32) -> Option<u32> {
    (insn >> 25 == 0x6b).then_some(insn >> 21 & 0xf)
}

/// Returns whether this is `blr` or one of its authenticating forms.
fn calls_register(insn: u32) -> bool {
    matches!(register_branch(insn), Some(1 | 9))
}

/// Returns whether execution never continues behind this instruction.
fn is_terminator(insn: u32) -> bool {
    insn & 0xfc00_0000 == 0x1400_0000 // b
        || matches!(register_branch(insn), Some(opc) if opc & 7 != 1) // all but calls
        || insn & 0xffe0_001f == 0xd420_0000 // brk
        || insn & 0xffff_0000 == 0 // udf
}

/// Returns the address of the first instructions in `code`, which is at `code_addr`, that load the address
/// `target` relative to their own: `adr`, or `adrp` and an `add` not far behind.
#[must_use]
pub fn find_reference(code: &[u8], code_addr: u64, target: u64) -> Option<u64> {
    /// Maximum distance in instructions: compilers put others between the two.
    const NEAR: usize = 16;
    let count = code.len() / 4;
    let at = |n: usize| word(code, n.wrapping_mul(4)).unwrap_or(0);
    (0..count).find_map(|n| {
        let (insn, pc) = (at(n), code_addr.wrapping_add((n as u64).wrapping_mul(4)));
        let PcUse::Address(address) = pc_use(insn, pc)? else { return None };
        if !is_adrp(insn) {
            return (address == target).then_some(pc);
        }
        let low = target.wrapping_sub(address);
        // add x<any>, x<that>, #low
        let add = 0x9100_0000 | (low as u32 & 0xfff) << 10 | (insn & 31) << 5;
        let mut next = n.wrapping_add(1)..n.wrapping_add(NEAR);
        (low < 0x1000 && next.any(|k| at(k) & !31 == add)).then_some(pc)
    })
}

/// Returns the offsets at which `code` loads the number of a system call right in front of a system call
/// instruction.
#[must_use]
pub fn find_calls(code: &[u8], number: u64) -> Vec<usize> {
    let Ok(number) = u16::try_from(number) else { return Vec::new() };
    // movz x8, number; svc #0
    let wanted = [0xd280_0008 | u32::from(number) << 5, 0xd400_0001];
    let words: Vec<u32> = code.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    let found = words.windows(2).enumerate().filter(|(_, w)| **w == wanted);
    found.map(|(at, _)| at * 4).collect()
}

/// Returns the targets of direct calls and jumps in `code`, which is at `code_addr`, that are outside of it.
#[must_use]
pub fn calls(code: &[u8], code_addr: u64) -> Vec<u64> {
    let end = code_addr.wrapping_add(code.len() as u64);
    let words = code.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b));
    let targets = words.zip((0..).step_by(4)).filter_map(|(insn, at)| {
        match pc_use(insn, code_addr.wrapping_add(at)) {
            Some(PcUse::Branch(to) | PcUse::Call(to)) => Some(to),
            _ => None,
        }
    });
    targets.filter(|to| !(code_addr..end).contains(to)).collect()
}

/// Returns the address of the word that `code`, which is at `code_addr`, jumps through, if it is a stub of a
/// linkage table: `adrp x16, page; ldr x17, [x16, offset]`, an `add`, and `br x17` (aaelf64, 10), with or
/// without a landing pad before them.
#[must_use]
pub fn indirect_jump(code: &[u8], code_addr: u64) -> Option<u64> {
    const AUTIA1716: u32 = 0xd503_219f;
    const BR_X17: u32 = 0xd61f_0220;
    let first = usize::from(is_bti(word(code, 0)?));
    let at = |n: usize| word(code, first.wrapping_add(n).wrapping_mul(4));
    let pc = code_addr.wrapping_add((first as u64).wrapping_mul(4));
    let (adrp, load) = (at(0)?, at(1)?);
    let Some(PcUse::Address(page)) = pc_use(adrp, pc) else { return None };
    if !is_adrp(adrp) || adrp & 31 != 16 || load & 0xffc0_03ff != 0xf940_0211 {
        return None;
    }
    // add x16, x16, #offset
    let between = |insn: &u32| insn & 0xffc0_03ff == 0x9100_0210 || *insn == AUTIA1716;
    let jump = (2_usize..5).filter_map(at).find(|insn| !between(insn))?;
    let offset = u64::from(load >> 10 & 0xfff).wrapping_mul(8);
    (jump == BR_X17).then(|| page.wrapping_add(offset))
}

/// Returns all instructions of the function. If its size is unknown it ends at the first instruction that
/// execution does not continue behind, and that no branch before it jumps over.
fn instructions(code: &[u8], func_addr: u64, size: Option<u64>) -> Result<Vec<u32>, Refusal> {
    let body = match size {
        Some(need) if need > code.len() as u64 => {
            return Err(Refusal::Incomplete { have: code.len(), need });
        }
        Some(size) => code.get(..size as usize).unwrap_or(code),
        None => code,
    };
    let (mut list, mut furthest) = (Vec::new(), 0);
    for (insn, at) in
        body.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).zip((0..).step_by(4))
    {
        list.push(insn);
        let pc = func_addr.wrapping_add(at);
        if let Some(PcUse::Branch(target) | PcUse::Conditional(target, _)) = pc_use(insn, pc) {
            let offset = target.wrapping_sub(func_addr);
            // A branch beyond all known code leaves the function.
            if offset < body.len() as u64 {
                furthest = furthest.max(offset);
            }
        }
        if size.is_none() && is_terminator(insn) && furthest <= at {
            break;
        }
    }
    Ok(list)
}

/// Returns the effect of a uprobe that is put at the entry of a patched function: if its breakpoint replaces
/// the patch, which is one instruction, calls go past the hook.
#[must_use]
pub fn uprobe(patch_offset: u64, _before: &[u8], _addr: u64) -> Probed {
    if patch_offset == 0 { Probed::Hides } else { Probed::Passes }
}

/// Plans as [`plan_patch`] does, but leaves only a landing pad or a signing instruction in front.
///
/// # Errors
///
/// See [`Refusal`].
pub fn plan_at_entry(
    code: &[u8],
    func_addr: u64,
    func_size: Option<u64>,
) -> Result<PatchPlan, Refusal> {
    let list = listed(code, func_addr, func_size)?;
    let &first = list.first().ok_or(Refusal::TooShort)?;
    // A landing pad must stay where indirect branches lead.
    let entry = if is_bti(first) || unsign(first).is_some() { 1 } else { 0 };
    plan_at(&list, func_addr, entry, Lead::Nothing)
}

/// Plans as [`plan_patch`] does for a function that does nothing if its first argument is null: a first
/// instruction that checks this can stay in front.
///
/// # Errors
///
/// See [`Refusal`].
pub fn plan_free(
    code: &[u8],
    func_addr: u64,
    func_size: Option<u64>,
) -> Result<PatchPlan, Refusal> {
    let list = listed(code, func_addr, func_size)?;
    // cbz x0
    let looks = list.first().is_some_and(|insn| insn & 0xff00_001f == 0xb400_0000);
    let behind = if looks { plan_at(&list, func_addr, 1, Lead::Again).ok() } else { None };
    behind.map_or_else(|| plan_patch(code, func_addr, func_size), Ok)
}

/// Returns how the stub can treat an instruction that stays in front of the patch; `None`: it can't stay.
fn lead(insn: u32) -> Option<Lead> {
    let bits = |low: u32, count: u32| insn >> low & 1_u32.wrapping_shl(count).wrapping_sub(1);
    // x9 to x15 carry nothing into a function, and the stub itself changes x16 and x17.
    let scratch = |register: u32| (9..16).contains(&register);
    let (to, from, other) = (bits(0, 5), bits(5, 5), bits(16, 5));
    let down = |bytes: u32| (bytes != 0).then_some(Lead::Down(bytes));
    // stp x, x, [sp, #-n]!; of d registers
    if matches!(insn & 0xffc0_03e0, 0xa980_03e0 | 0x6d80_03e0) {
        return down(128_u32.saturating_sub(bits(15, 7)).wrapping_mul(8))
            .filter(|_| bits(21, 1) == 1);
    }
    // str x, [sp, #-n]!
    if insn & 0xffe0_0fe0 == 0xf800_0fe0 {
        return down(512_u32.saturating_sub(bits(12, 9))).filter(|_| bits(20, 1) == 1);
    }
    // sub sp, sp, #n
    if insn & 0xff80_03ff == 0xd100_03ff {
        return down(bits(10, 12).wrapping_shl(12_u32.wrapping_mul(bits(22, 1))));
    }
    let again = match insn {
        // cmp, cmn, tst: of a number, of a register
        _ if insn & 0x3f80_001f == 0x3100_001f || insn & 0x7f80_001f == 0x7200_001f => true,
        _ if insn & 0x3f20_001f == 0x2b00_001f || insn & 0x7f20_001f == 0x6a00_001f => true,
        // adrp
        _ if is_adrp(insn) => scratch(to),
        // movn, movz
        _ if insn & 0x1f80_0000 == 0x1280_0000 => scratch(to) && bits(29, 2) & 1 == 0,
        // mov
        _ if insn & 0x7fe0_ffe0 == 0x2a00_03e0 => scratch(to) && other != to,
        // add, sub of a number; ldr
        _ if insn & 0x3f80_0000 == 0x1100_0000 => scratch(to) && from != to,
        _ if insn & 0xbfc0_0000 == 0xb940_0000 => scratch(to) && from != to,
        // mrs, of the thread pointer
        _ if insn & 0xffff_ffe0 == 0xd53b_d040 => scratch(to),
        _ => false,
    };
    again.then_some(Lead::Again)
}

/// Returns the function's instructions.
fn listed(code: &[u8], func_addr: u64, size: Option<u64>) -> Result<Vec<u32>, Refusal> {
    if func_addr & 3 != 0 {
        return Err(Refusal::Undecodable { at: 0 });
    }
    instructions(code, func_addr, size.filter(|&size| size > 0))
}

/// Plans the patch of the function with the bytes `code`: behind its first instruction, if that can stay in
/// front.
///
/// `func_size` is the size that its symbol (or its call frame information) gives; then `code` must have all
/// of it. `None` or `Some(0)`: unknown.
///
/// # Errors
///
/// See [`Refusal`].
pub fn plan_patch(
    code: &[u8],
    func_addr: u64,
    func_size: Option<u64>,
) -> Result<PatchPlan, Refusal> {
    let list = listed(code, func_addr, func_size)?;
    let lead = list.first().and_then(|first| lead(*first));
    let behind = lead.and_then(|lead| plan_at(&list, func_addr, 1, lead).ok());
    behind.map_or_else(|| plan_at_entry(code, func_addr, func_size), Ok)
}

/// Plans the patch at instruction number `entry`.
fn plan_at(list: &[u32], func_addr: u64, entry: usize, lead: Lead) -> Result<PatchPlan, Refusal> {
    let &moved = list.get(entry).ok_or(Refusal::TooShort)?;
    let offset = entry.wrapping_mul(PATCH_LEN);
    if moved & 0xffff_0000 == 0 {
        return Err(Refusal::Undecodable { at: offset });
    }
    let mut plan = PatchPlan { lead, ..PatchPlan::at(offset, PATCH_LEN) };
    plan.displaced.push(offset);
    plan.displaced_len = PATCH_LEN;
    plan.terminated = is_terminator(moved);
    check(&plan, list, func_addr)?;
    Ok(plan)
}

/// Checks that the displaced instruction does not refer to itself, and that no branch of the function makes
/// the hook see one call twice.
fn check(plan: &PatchPlan, list: &[u32], func_addr: u64) -> Result<(), Refusal> {
    let entry = plan.patch_offset as u64;
    for (&insn, at) in list.iter().zip((0_usize..).step_by(4)) {
        let moved = at == plan.patch_offset;
        let offset = |address: u64| address.wrapping_sub(func_addr);
        let next = (at as u64).wrapping_add(4);
        match pc_use(insn, func_addr.wrapping_add(at as u64)) {
            Some(PcUse::Branch(target) | PcUse::Conditional(target, _))
                if offset(target) <= entry =>
            {
                return Err(Refusal::BranchToEntry { from: at });
            }
            // Such an instruction finds out where it is, or reads itself.
            Some(PcUse::Call(target)) if moved && offset(target) == next => {
                return Err(Refusal::OwnAddress { at });
            }
            Some(PcUse::Address(address) | PcUse::Literal(address))
                if moved && offset(address) < next && !is_adrp(insn) =>
            {
                return Err(Refusal::OwnAddress { at });
            }
            Some(PcUse::Other) if moved => return Err(Refusal::OwnAddress { at }),
            _ => {}
        }
    }
    Ok(())
}

/// Returns whether the displaced instruction is a call, which leaves a return address in the stub.
pub(super) fn is_call(insn: u32) -> bool {
    matches!(pc_use(insn, 0), Some(PcUse::Call(_))) || calls_register(insn)
}

#[cfg(test)]
#[path = "insn_tests.rs"]
mod tests;
