//! Analysis of functions: whether one can be patched at its entry, and which instructions the patch
//! displaces.

pub use super::decode::{PcUse, Slot, pc_use, slot};
use super::decode::{compact_register_jump, field, is_terminator, is_transfer, register_jump};
use super::jump::PATCH_LEN;
use super::regs::{RA, SP, T9};
use super::variant::{NOP, Variant};
pub use crate::generic::insn::{find_calls, rule_by_code};
use crate::patch::Lead;
pub use crate::patch::{PatchPlan, Probed, Refusal};
use alloc::vec::Vec;
use core::ops::Range;

/// Returns the instructions in `code`.
fn words(variant: Variant, code: &[u8]) -> impl Iterator<Item = u32> + '_ {
    code.as_chunks::<4>().0.iter().filter_map(move |b| variant.order.word4(b, 0))
}

/// Offset in the global offset table at which the pointer to it points (System V ABI, MIPS RISC Processor
/// Supplement, 4-18).
const POINTER: usize = 0x7ff0;

/// Returns whether the program has no more use for the value of this argument of a system call, whatever it
/// is. `code` follows the system call instruction. Only what is certain counts.
#[must_use]
pub fn argument_is_forgotten(_code: &[u8], index: usize) -> bool {
    // The kernel says in its register whether the call has failed.
    index == 3
}

/// Returns the address of the first instructions in `code`, which is at `code_addr`, that make the address
/// `target`: `lui` and a `daddiu` or `addiu` not far behind, or, in release 6, `addiupc`.
///
/// Position-independent code loads addresses from its global offset table, which the code itself does not
/// show.
#[must_use]
pub fn find_reference_in(
    variant: Variant,
    code: &[u8],
    code_addr: u64,
    target: u64,
) -> Option<u64> {
    /// Maximum distance in instructions: compilers put others between the two.
    const NEAR: usize = 16;
    let list: Vec<u32> = words(variant, code).collect();
    let low = target as u16;
    let high = target.wrapping_sub(i64::from(low as i16) as u64);
    // The part that `lui` can make.
    let high = (high as i32 as i64 as u64 == high).then_some((high >> 16) as u32 & 0xffff);
    list.iter().zip(0_usize..).find_map(|(&insn, n)| {
        let pc = code_addr.wrapping_add((n as u64).wrapping_mul(4));
        if let Some(PcUse::Address(address)) = pc_use(variant, insn, pc) {
            return (address == target).then_some(pc);
        }
        if insn & 0xffe0_0000 != 0x3c00_0000 || Some(insn & 0xffff) != high {
            return None;
        }
        // addiu or daddiu <any>, <that>, low
        let adds = |i: &u32| {
            matches!(i >> 26, 0x09 | 0x19) && field(*i, 21) == field(insn, 16) && *i as u16 == low
        };
        list.iter().skip(n.wrapping_add(1)).take(NEAR).any(adds).then_some(pc)
    })
}

/// Does what [`find_reference_in`] does, for this machine.
#[must_use]
pub fn find_reference(code: &[u8], code_addr: u64, target: u64) -> Option<u64> {
    find_reference_in(Variant::NATIVE, code, code_addr, target)
}

/// Does what [`find_reference_in`] does for code that loads addresses from its module's global offset table,
/// whose bytes are `table`: `ld` of the entry for what is around `target`, and a `daddiu` not far behind
/// (System V ABI, MIPS RISC Processor Supplement, 4-18: the pointer to the table points into it).
#[must_use]
pub fn find_reference_by_table_in(
    variant: Variant,
    code: &[u8],
    code_addr: u64,
    target: u64,
    table: &[u8],
) -> Option<u64> {
    const NEAR: usize = 16;
    let low = target as u16;
    let around = target.wrapping_sub(i64::from(low as i16) as u64);
    let entry = |offset: i16| {
        let at = usize::try_from(POINTER as isize + isize::from(offset)).ok()?;
        variant.order.word8(table, at)
    };
    let list: Vec<u32> = words(variant, code).collect();
    let found = (0..list.len()).find(|&n| {
        let loads = list[n] >> 26 == 0x37 && entry(list[n] as i16) == Some(around);
        let register = field(list[n], 16);
        let adds = |i: &u32| i >> 26 == 0x19 && field(*i, 21) == register && *i as u16 == low;
        loads && list[n + 1..].iter().take(NEAR).any(adds)
    })?;
    Some(code_addr.wrapping_add(found as u64 * 4))
}

/// Does what [`find_reference_by_table_in`] does, for this machine.
#[must_use]
pub fn find_reference_by_table(
    code: &[u8],
    code_addr: u64,
    target: u64,
    table: &[u8],
) -> Option<u64> {
    find_reference_by_table_in(Variant::NATIVE, code, code_addr, target, table)
}

/// Returns the addresses of the entries of the global offset table at `table` from which code loads a
/// function to be called: `ld $25, N($gp)`, or by another register that holds the same pointer.
#[must_use]
pub fn called_slots_in(variant: Variant, code: &[u8], table: u64) -> Vec<u64> {
    let pointer = table.wrapping_add(POINTER as u64);
    let loads =
        |i: &u32| i & 0xfc1f_0000 == 0xdc19_0000 && field(*i, 21) != u32::from(super::regs::SP);
    let slot = |i: u32| pointer.wrapping_add_signed(i64::from(i as i16));
    words(variant, code).filter(loads).map(slot).collect()
}

/// Does what [`called_slots_in`] does, for this machine.
#[must_use]
pub fn called_slots(code: &[u8], table: u64) -> Vec<u64> {
    called_slots_in(Variant::NATIVE, code, table)
}

/// Returns the function that `at` is in, where no table knows it: from where the last frame before is made to
/// where the next is. All return addresses of its calls are in between, and no others.
#[must_use]
pub fn function_around_in(
    variant: Variant,
    code: &[u8],
    code_addr: u64,
    at: u64,
) -> Option<Range<u64>> {
    /// `daddiu $sp, $sp, -N`.
    const DOWN: u32 = 0x67bd_8000;
    let list: Vec<u32> = words(variant, code).collect();
    let here = usize::try_from(at.checked_sub(code_addr)? / 4).ok()?;
    let makes = |i: &u32| i & 0xffff_8000 == DOWN;
    let from = list.get(..=here)?.iter().rposition(makes)?;
    let to = list[here + 1..].iter().position(makes).map_or(list.len(), |n| here + 1 + n);
    let place = |n: usize| code_addr.wrapping_add(n as u64 * 4);
    Some(place(from)..place(to))
}

/// Does what [`function_around_in`] does, for this machine.
#[must_use]
pub fn function_around(code: &[u8], code_addr: u64, at: u64) -> Option<Range<u64>> {
    function_around_in(Variant::NATIVE, code, code_addr, at)
}

/// Returns the targets of direct calls and jumps in `code`, which is at `code_addr`, that are outside of it.
#[must_use]
pub fn calls_in(variant: Variant, code: &[u8], code_addr: u64) -> Vec<u64> {
    let end = code_addr.wrapping_add(code.len() as u64);
    let targets =
        words(variant, code).zip((0..).step_by(4)).filter_map(|(insn, at)| {
            match pc_use(variant, insn, code_addr.wrapping_add(at)) {
                Some(PcUse::Branch(to) | PcUse::Call(to)) => Some(to),
                _ => None,
            }
        });
    targets.filter(|to| !(code_addr..end).contains(to)).collect()
}

/// Does what [`calls_in`] does, for this machine.
#[must_use]
pub fn calls(code: &[u8], code_addr: u64) -> Vec<u64> {
    calls_in(Variant::NATIVE, code, code_addr)
}

/// Returns the address of the word that `code` jumps through, if it is an entry of a linkage table: `lui r,
/// page; ld $t9, offset(r)`, and, right behind or one further, `jr $t9`. Position-independent code has none:
/// it loads from its global offset table itself.
#[must_use]
pub fn indirect_jump_in(variant: Variant, code: &[u8]) -> Option<u64> {
    let at = |n: usize| variant.order.word4(code, n.wrapping_mul(4));
    let (lui, load) = (at(0)?, at(1)?);
    let loads = load & 0xfc1f_0000 == 0xdc00_0000 | u32::from(T9) << 16;
    if lui & 0xffe0_0000 != 0x3c00_0000 || !loads || field(load, 21) != field(lui, 16) {
        return None;
    }
    let jumps = |n| at(n).and_then(register_jump) == Some((u32::from(T9), 0));
    let page = i64::from((lui << 16) as i32);
    let slot = page.wrapping_add(i64::from(load as u16 as i16)) as u64;
    (jumps(2) || jumps(3)).then_some(slot)
}

/// Does what [`indirect_jump_in`] does, for this machine.
#[must_use]
pub fn indirect_jump(code: &[u8], _code_addr: u64) -> Option<u64> {
    indirect_jump_in(Variant::NATIVE, code)
}

/// Returns all instructions of the function. If its size is unknown it ends at the first instruction that
/// execution does not continue behind, and that no branch before it jumps over.
fn instructions(
    variant: Variant,
    code: &[u8],
    func_addr: u64,
    size: Option<u64>,
) -> Result<Vec<u32>, Refusal> {
    let body = match size {
        Some(need) if need > code.len() as u64 => {
            return Err(Refusal::Incomplete { have: code.len(), need });
        }
        Some(size) => code.get(..size as usize).unwrap_or(code),
        None => code,
    };
    let (mut list, mut furthest, mut ends) = (Vec::new(), 0, None);
    for (insn, at) in words(variant, body).zip((0..).step_by(4)) {
        list.push(insn);
        let target = match pc_use(variant, insn, func_addr.wrapping_add(at)) {
            Some(PcUse::Branch(to) | PcUse::Conditional(to)) => to.wrapping_sub(func_addr),
            _ => 0,
        };
        // A branch beyond all known code leaves the function.
        if target < body.len() as u64 {
            furthest = furthest.max(target);
        }
        if size.is_none() && is_terminator(variant, insn) {
            let last = if slot(variant, insn).is_delay() { at.wrapping_add(4) } else { at };
            ends = Some(last);
        }
        if ends == Some(at) && furthest <= at {
            break;
        }
    }
    Ok(list)
}

/// Returns the effect of a uprobe that is put at the entry of a patched function: the program may run into
/// the middle of the patch, which is two instructions.
#[must_use]
pub fn uprobe(patch_offset: u64, _before: &[u8], _addr: u64) -> Probed {
    if patch_offset == 0 { Probed::Breaks } else { Probed::Passes }
}

/// Plans as [`plan_patch`] does, but leaves nothing in front of the patch.
///
/// # Errors
///
/// See [`Refusal`].
pub fn plan_at_entry(
    code: &[u8],
    func_addr: u64,
    func_size: Option<u64>,
) -> Result<PatchPlan, Refusal> {
    plan_at_entry_in(Variant::NATIVE, code, func_addr, func_size)
}

/// Does what [`plan_at_entry`] does, for any machine.
///
/// # Errors
///
/// See [`Refusal`].
pub fn plan_at_entry_in(
    variant: Variant,
    code: &[u8],
    func_addr: u64,
    func_size: Option<u64>,
) -> Result<PatchPlan, Refusal> {
    plan_at(variant, code, func_addr, func_size, (0, Lead::Nothing))
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
    let variant = Variant::NATIVE;
    // beqz $a0, with nothing in its delay slot
    let looks = variant.order.word4(code, 0).is_some_and(|insn| insn & 0xffff_0000 == 0x1080_0000);
    let behind = if looks && variant.order.word4(code, 4) == Some(NOP) {
        plan_at(variant, code, func_addr, func_size, (8, Lead::Again)).ok()
    } else {
        None
    };
    behind.map_or_else(|| plan_patch(code, func_addr, func_size), Ok)
}

/// Returns how the stub can treat an instruction that stays in front of the patch; `None`: it can't stay.
fn lead(insn: u32) -> Option<Lead> {
    // $v0, $v1 and $t0 to $t2 carry nothing into a function.
    let scratch = |register: u32| matches!(register, 2 | 3 | 12..=14);
    let (from, other, to) = (field(insn, 21), field(insn, 16), field(insn, 11));
    let again = match (insn >> 26, insn & 0x3f) {
        // daddiu sp, sp, -n
        (0x19, _) if from == u32::from(SP) && other == from => {
            let down = u32::from((insn as u16).wrapping_neg());
            return (insn & 0x8000 != 0).then_some(Lead::Down(down));
        }
        // addiu, daddiu; sltiu and slti, andi, ori, xori
        (0x09 | 0x19 | 0x0a..=0x0e, _) => scratch(other) && other != from,
        // lui
        (0x0f, _) => scratch(other) && from == 0,
        // addu, subu, and, or, xor, nor, slt, sltu, daddu, dsubu
        (0, 0x21 | 0x23..=0x27 | 0x2a | 0x2b | 0x2d | 0x2f) => {
            scratch(to) && ![from, other].contains(&to)
        }
        // mult to ddivu: into hi and lo
        (0, 0x18..=0x1f) => insn & 0xffc0 == 0,
        _ => false,
    };
    again.then_some(Lead::Again)
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
pub fn plan_patch_in(
    variant: Variant,
    code: &[u8],
    func_addr: u64,
    func_size: Option<u64>,
) -> Result<PatchPlan, Refusal> {
    // In release 6 a call may return to right behind it, which would be inside of the patch.
    let first = variant.order.word4(code, 0).filter(|_| !variant.release6);
    let lead = first.and_then(lead);
    let behind = lead.and_then(|l| plan_at(variant, code, func_addr, func_size, (4, l)).ok());
    behind.map_or_else(|| plan_at_entry_in(variant, code, func_addr, func_size), Ok)
}

/// Plans the patch at an offset, with the treatment of what stands in front of it.
fn plan_at(
    variant: Variant,
    code: &[u8],
    func_addr: u64,
    func_size: Option<u64>,
    (offset, lead): (usize, Lead),
) -> Result<PatchPlan, Refusal> {
    // An odd address is one of another instruction set.
    if func_addr & 3 != 0 {
        return Err(Refusal::Undecodable { at: 0 });
    }
    let list = instructions(variant, code, func_addr, func_size.filter(|&size| size > 0))?;
    let mut plan = PatchPlan { lead, ..PatchPlan::at(offset, PATCH_LEN) };
    while plan.displaced_len < PATCH_LEN && !plan.terminated {
        let at = plan.continuation();
        let &insn = list.get(at / 4).ok_or(Refusal::TooShort)?;
        plan.displaced.push(at);
        plan.displaced_len = plan.displaced_len.wrapping_add(4);
        if slot(variant, insn).is_delay() {
            let at = plan.continuation();
            let &delayed = list.get(at / 4).ok_or(Refusal::TooShort)?;
            if is_transfer(variant, delayed) {
                return Err(Refusal::Undecodable { at });
            }
            if pc_use(variant, delayed, 0).is_some() {
                return Err(Refusal::OwnAddress { at });
            }
            plan.displaced_len = plan.displaced_len.wrapping_add(4);
        }
        plan.terminated = is_terminator(variant, insn);
    }
    let end = plan.continuation().max(offset.saturating_add(PATCH_LEN));
    let rest = code.get(plan.continuation()..end).ok_or(Refusal::TooShort)?;
    if list.len() > plan.continuation() / 4 && !rest.is_empty()
        || words(variant, rest).any(|insn| insn != NOP)
    {
        return Err(Refusal::TooShort);
    }
    check(variant, &plan, &list, func_addr)?;
    Ok(plan)
}

/// Does what [`plan_patch_in`] does, for this machine.
///
/// # Errors
///
/// See [`Refusal`].
pub fn plan_patch(
    code: &[u8],
    func_addr: u64,
    func_size: Option<u64>,
) -> Result<PatchPlan, Refusal> {
    plan_patch_in(Variant::NATIVE, code, func_addr, func_size)
}

/// Checks that the displaced instructions do not refer to themselves, and that no branch of the function
/// leads into the patch, or makes the hook see one call twice.
fn check(variant: Variant, plan: &PatchPlan, list: &[u32], func_addr: u64) -> Result<(), Refusal> {
    let entry = plan.patch_offset as u64;
    let end = entry.wrapping_add(plan.patch_len as u64);
    for (&insn, at) in list.iter().zip((0_usize..).step_by(4)) {
        let moved = plan.displaced.contains(&at);
        let offset = |address: u64| address.wrapping_sub(func_addr);
        match pc_use(variant, insn, func_addr.wrapping_add(at as u64)) {
            Some(PcUse::Branch(to) | PcUse::Conditional(to))
                if offset(to) == 0 || offset(to) == entry =>
            {
                return Err(Refusal::BranchToEntry { from: at });
            }
            Some(
                PcUse::Branch(to)
                | PcUse::Conditional(to)
                | PcUse::Call(to)
                | PcUse::ConditionalCall(to),
            ) if (1..end).contains(&offset(to)) => {
                return Err(Refusal::BranchIntoPatch { from: at });
            }
            // The instruction reads itself.
            Some(PcUse::Literal(from)) if moved && offset(from) < end => {
                return Err(Refusal::OwnAddress { at });
            }
            Some(PcUse::Other) if moved => return Err(Refusal::OwnAddress { at }),
            _ => {}
        }
        // The register that it branches to, or the one that it returns by, would be changed before it
        // branches.
        let bad_link = match register_jump(insn) {
            Some((rs, rd)) => rd != 0 && rs == rd,
            None => compact_register_jump(variant, insn) == Some((u32::from(RA), true)),
        };
        if moved && bad_link {
            return Err(Refusal::Undecodable { at });
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "insn_tests.rs"]
mod tests;
