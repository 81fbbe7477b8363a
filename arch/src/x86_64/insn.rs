//! Analysis of functions: whether one can be patched at its entry, and which instructions the patch
//! displaces.

use super::jump::PATCH_LEN;
pub use super::prologue::rule_by_code;
pub use crate::generic::insn::{called_slots, find_reference_by_table, function_around};
pub use crate::patch::{Lead, PatchPlan, Probed, Refusal};
use alloc::vec::Vec;
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};

/// Returns whether the program has no more use for the value of this argument of a system call, whatever it
/// is. `code` follows the system call instruction. Only what is certain counts.
#[must_use]
pub fn argument_is_forgotten(code: &[u8], index: usize) -> bool {
    /// Maximum number of instructions that are followed.
    const MOST: usize = 64;
    // The fourth argument is in r10. Functions get nothing there, and return nothing there; the registers of
    // the others may be a caller's own, if the function is local to it.
    if index != 3 {
        return false;
    }
    let mut factory = InstructionInfoFactory::new();
    let mut seen: Vec<u64> = Vec::new();
    let mut open = alloc::vec![0_u64];
    while let Some(at) = open.pop() {
        if seen.contains(&at) {
            continue;
        }
        let bytes = usize::try_from(at).ok().and_then(|n| code.get(n..)).unwrap_or_default();
        let i = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
        if seen.len() >= MOST || i.is_invalid() || i.mnemonic() == Mnemonic::Syscall {
            return false;
        }
        seen.push(at);
        let uses = factory.info(&i).used_registers();
        let mut its = uses.iter().filter(|u| u.register().full_register() == Register::R10);
        if let Some(first) = its.next() {
            let whole = matches!(first.register(), Register::R10 | Register::R10D);
            if !(whole && first.access() == OpAccess::Write && its.next().is_none()) {
                return false;
            }
            continue;
        }
        match i.flow_control() {
            FlowControl::Next => open.push(i.next_ip()),
            FlowControl::UnconditionalBranch => open.push(i.near_branch_target()),
            FlowControl::ConditionalBranch => open.extend([i.next_ip(), i.near_branch_target()]),
            FlowControl::Return | FlowControl::Call | FlowControl::IndirectCall => {}
            _ => return false,
        }
    }
    true
}

/// Returns the address of the first instruction in `code`, which is at `code_addr`, that loads the address
/// `target` relative to its own: `lea reg, [rip + d]`.
#[must_use]
pub fn find_reference(code: &[u8], code_addr: u64, target: u64) -> Option<u64> {
    code.windows(7).enumerate().find_map(|(at, w)| {
        let &[rex, 0x8d, modrm, a, b, c, d] = w else { return None };
        if rex & 0xfb != 0x48 || modrm & 0xc7 != 0x05 {
            return None;
        }
        let start = code_addr.wrapping_add(at as u64);
        let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
        (start.wrapping_add(7).wrapping_add_signed(distance) == target).then_some(start)
    })
}

/// Returns the offsets at which `code` loads the number of a system call right in front of a system call
/// instruction.
#[must_use]
pub fn find_calls(code: &[u8], number: u64) -> Vec<usize> {
    let Ok(number) = u32::try_from(number) else { return Vec::new() };
    let [a, b, c, d] = number.to_le_bytes();
    // mov eax, number; syscall
    let wanted = [0xb8, a, b, c, d, 0x0f, 0x05];
    memchr::memmem::find_iter(code, &wanted).collect()
}

/// Returns the targets of direct calls and jumps in `code`, which is at `code_addr`, that are outside of it.
#[must_use]
pub fn calls(code: &[u8], code_addr: u64) -> Vec<u64> {
    let end = code_addr.wrapping_add(code.len() as u64);
    let mut decoder = Decoder::with_ip(64, code, code_addr, DecoderOptions::NONE);
    let mut found = Vec::new();
    while decoder.can_decode() {
        let i = decoder.decode();
        if i.is_invalid() {
            break;
        }
        if i.is_call_near() || i.is_jmp_short_or_near() {
            let to = i.near_branch_target();
            if !(code_addr..end).contains(&to) {
                found.push(to);
            }
        }
    }
    found
}

/// Returns the address of the word that `code`, which is at `code_addr`, jumps through, if it is a stub of a
/// linkage table.
#[must_use]
pub fn indirect_jump(code: &[u8], code_addr: u64) -> Option<u64> {
    let mut decoder = Decoder::with_ip(64, code, code_addr, DecoderOptions::NONE);
    let mut i = decoder.decode();
    if i.code() == iced_x86::Code::Endbr64 {
        i = decoder.decode();
    }
    (i.is_jmp_near_indirect() && i.is_ip_rel_memory_operand()).then(|| i.ip_rel_memory_address())
}

/// Decodes the instruction at `at`; returns `None` if that is not a whole valid one.
pub(super) fn decode(code: &[u8], func_addr: u64, at: usize) -> Option<Instruction> {
    let ip = func_addr.wrapping_add(at as u64);
    let mut decoder = Decoder::with_ip(64, code.get(at..)?, ip, DecoderOptions::NONE);
    let instruction = decoder.can_decode().then(|| decoder.decode())?;
    (!instruction.is_invalid()).then_some(instruction)
}

/// Returns whether execution never continues behind this instruction.
fn is_terminator(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch | FlowControl::IndirectBranch | FlowControl::Return
    ) || matches!(
        instruction.mnemonic(),
        Mnemonic::Ud0 | Mnemonic::Ud1 | Mnemonic::Ud2 | Mnemonic::Hlt
    )
}

fn is_padding(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3)
}

/// Returns the target of a direct branch or call; `None` for any other instruction.
pub(super) fn branch_target(instruction: &Instruction) -> Option<u64> {
    let direct = matches!(
        instruction.op0_kind(),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
    );
    (instruction.op_count() > 0 && direct).then(|| instruction.near_branch_target())
}

/// An instruction and its offset from the function's start.
struct Located {
    at: usize,
    instruction: Instruction,
}

impl Located {
    fn end(&self) -> usize {
        self.at.saturating_add(self.instruction.len())
    }
}

/// Returns all instructions of the function. If its size is unknown it ends at the first instruction that
/// execution does not continue behind, and that no branch before it jumps over.
fn instructions(
    code: &[u8],
    func_addr: u64,
    func_size: Option<u64>,
) -> Result<Vec<Located>, Refusal> {
    let size = match func_size {
        Some(size) if size > code.len() as u64 => {
            return Err(Refusal::Incomplete { have: code.len(), need: size });
        }
        Some(size) => Some(size as usize),
        None => None,
    };
    let body = code.get(..size.unwrap_or(code.len())).unwrap_or(code);
    let (mut list, mut at, mut furthest) = (Vec::new(), 0, 0);
    while at < body.len() {
        let Some(instruction) = decode(body, func_addr, at) else {
            return Err(Refusal::Undecodable { at });
        };
        let located = Located { at, instruction };
        at = located.end();
        if let Some(target) = branch_target(&instruction)
            && instruction.flow_control() != FlowControl::Call
        {
            let offset = target.wrapping_sub(func_addr);
            // A branch beyond all known code leaves the function.
            if offset < body.len() as u64 {
                furthest = furthest.max(offset as usize);
            }
        }
        list.push(located);
        if size.is_none() && is_terminator(&instruction) && furthest < at {
            break;
        }
    }
    Ok(list)
}

/// Plans the patch of the function with the bytes `code`: behind the first instruction if that is possible
/// (see [`Lead`]), else at the entry.
///
/// `func_size` is the size that its symbol (or its call frame information) gives; then `code` must have all
/// of it. For a function shorter than the patch, `code` must have the padding behind it, too. `None` or
/// `Some(0)`: unknown.
///
/// # Errors
///
/// See [`Refusal`].
pub fn plan_patch(
    code: &[u8],
    func_addr: u64,
    func_size: Option<u64>,
) -> Result<PatchPlan, Refusal> {
    let list = instructions(code, func_addr, func_size.filter(|&size| size > 0))?;
    if let Some(first) = list.first()
        && let Some(lead) = lead(&first.instruction)
        && let Ok(plan) = plan_behind(code, func_addr, &list, first.end(), lead)
    {
        return Ok(plan);
    }
    plan_in_front(code, func_addr, &list)
}

/// Plans the patch at the entry, with nothing left in front but `endbr64`: for functions whose bytes behind
/// the first instruction can't be patched.
///
/// # Errors
///
/// See [`Refusal`].
pub fn plan_at_entry(
    code: &[u8],
    func_addr: u64,
    func_size: Option<u64>,
) -> Result<PatchPlan, Refusal> {
    plan_in_front(code, func_addr, &instructions(code, func_addr, func_size.filter(|&n| n > 0))?)
}

fn plan_in_front(code: &[u8], func_addr: u64, list: &[Located]) -> Result<PatchPlan, Refusal> {
    let offset = match list.first() {
        Some(first) if first.instruction.mnemonic() == Mnemonic::Endbr64 => first.end(),
        _ => 0,
    };
    plan_behind(code, func_addr, list, offset, Lead::Nothing)
}

fn plan_behind(
    code: &[u8],
    func_addr: u64,
    list: &[Located],
    patch_offset: usize,
    lead: Lead,
) -> Result<PatchPlan, Refusal> {
    let patch_end = patch_offset.saturating_add(PATCH_LEN);
    let mut plan = PatchPlan { lead, ..PatchPlan::at(patch_offset, PATCH_LEN) };
    for located in list.iter().filter(|l| l.at >= patch_offset) {
        if plan.continuation() >= patch_end {
            break;
        }
        plan.displaced.push(located.at);
        plan.displaced_len = located.end().saturating_sub(patch_offset);
        plan.terminated = is_terminator(&located.instruction);
    }
    if plan.continuation() < patch_end {
        let end = list.last().map_or(0, Located::end);
        trim_padding(&mut plan, list);
        if !plan.terminated || !padded(code, func_addr, end, patch_end) {
            return Err(Refusal::TooShort);
        }
    }
    check_branches(&plan, list, func_addr)?;
    Ok(plan)
}

/// Returns how this instruction can be left in front of a patch; `None` if it can't.
fn lead(i: &Instruction) -> Option<Lead> {
    // rax and r11 carry nothing into a function. Functions with a variable number of arguments could look at
    // rax; their stubs execute the instruction again before anything else is done.
    let scratch = |r: Register| matches!(r.full_register(), Register::RAX | Register::R11);
    let from_others = || {
        !scratch(i.memory_base())
            && !scratch(i.memory_index())
            && (1..i.op_count())
                .all(|k| i.op_kind(k) != OpKind::Register || !scratch(i.op_register(k)))
    };
    let sets_scratch = i.op0_kind() == OpKind::Register
        && scratch(i.op0_register())
        && i.op0_register().size() >= 4;
    match i.mnemonic() {
        Mnemonic::Endbr64 | Mnemonic::Nop => Some(Lead::Nothing),
        Mnemonic::Test | Mnemonic::Cmp | Mnemonic::Bt => Some(Lead::Again),
        Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movsx | Mnemonic::Movsxd | Mnemonic::Lea => {
            (sets_scratch && from_others()).then_some(Lead::Again)
        }
        // Of a register and itself: the result is 0.
        Mnemonic::Xor | Mnemonic::Sub if sets_scratch => (i.op1_kind() == OpKind::Register
            && i.op0_register() == i.op1_register())
        .then_some(Lead::Again),
        Mnemonic::Push => {
            let whole = i.op0_kind() == OpKind::Register && i.op0_register().is_gpr64();
            (whole && i.op0_register() != Register::RSP).then_some(Lead::Down(8))
        }
        Mnemonic::Sub if i.op0_kind() == OpKind::Register && i.op0_register() == Register::RSP => {
            let by = (i.op1_kind() != OpKind::Register && i.op1_kind() != OpKind::Memory)
                .then(|| i32::try_from(i.immediate(1) as i64).ok());
            by.flatten().and_then(|n| u32::try_from(n).ok()).map(Lead::Down)
        }
        _ => None,
    }
}

/// Returns the effect of a uprobe that is put at the entry of a patched function: the program may run into
/// the middle of the patch. `before` are the bytes that the patch has replaced.
#[must_use]
pub fn uprobe(patch_offset: u64, before: &[u8], _addr: u64) -> Probed {
    let first = decode(before, 0, 0);
    let breaks = patch_offset == 0 && !first.is_some_and(|i| is_terminator(&i));
    if breaks { Probed::Breaks } else { Probed::Passes }
}

/// Plans as [`plan_patch`] does; that the function does nothing if its first argument is null makes no
/// difference.
///
/// # Errors
///
/// See [`Refusal`].
pub fn plan_free(
    code: &[u8],
    func_addr: u64,
    func_size: Option<u64>,
) -> Result<PatchPlan, Refusal> {
    plan_patch(code, func_addr, func_size)
}

/// Removes padding from the displaced instructions of a function that ends within the patch: padding counted
/// into its size need not be moved.
fn trim_padding(plan: &mut PatchPlan, list: &[Located]) {
    let code = |l: &&Located| l.at >= plan.patch_offset && !is_padding(&l.instruction);
    if let Some(last) = list.iter().rfind(code) {
        plan.displaced.retain(|&at| at <= last.at);
        plan.displaced_len = last.end().saturating_sub(plan.patch_offset);
        plan.terminated = is_terminator(&last.instruction);
    }
}

/// Returns whether the bytes from a function's `end` up to the next multiple of 16 are padding, and reach to
/// `patch_end`.
fn padded(code: &[u8], func_addr: u64, end: usize, patch_end: usize) -> bool {
    let end_addr = func_addr.wrapping_add(end as u64);
    let room = (end_addr.wrapping_neg() & 15) as usize;
    let limit = end.saturating_add(room);
    if limit < patch_end || limit > code.len() {
        return false;
    }
    let mut at = end;
    while at < limit {
        match code.get(..limit).and_then(|code| decode(code, func_addr, at)) {
            Some(instruction) if is_padding(&instruction) => {
                at = at.saturating_add(instruction.len())
            }
            _ => return false,
        }
    }
    true
}

/// Checks that no branch of the function leads into the patch, or makes the hook see one call twice.
fn check_branches(plan: &PatchPlan, list: &[Located], func_addr: u64) -> Result<(), Refusal> {
    let entry = plan.patch_offset as u64;
    let end = plan.continuation().max(plan.patch_offset.saturating_add(PATCH_LEN)) as u64;
    let mut ended = false;
    for Located { at, instruction } in list {
        let copied = *at == 0 && plan.lead != Lead::Nothing;
        let (at, moved) = (*at, plan.displaced.contains(at));
        let is_call = instruction.flow_control() == FlowControl::Call;
        let next = at.saturating_add(instruction.len());
        let calls = is_call || instruction.flow_control() == FlowControl::IndirectCall;
        if moved && calls && next < plan.patch_offset.saturating_add(PATCH_LEN) {
            // A thread may be in the callee, about to return into the patch.
            return Err(Refusal::BranchIntoPatch { from: at });
        }
        if let Some(target) = branch_target(instruction) {
            let target = target.wrapping_sub(func_addr);
            let to_moved = plan.displaced.iter().any(|&to| to as u64 == target);
            if is_call && target == next as u64 {
                if moved {
                    return Err(Refusal::OwnAddress { at });
                }
            } else if moved && to_moved && !is_call {
                // The branch stays inside the moved copy.
            } else if target <= entry {
                if !is_call {
                    return Err(Refusal::BranchToEntry { from: at });
                }
            } else if target < end {
                return Err(Refusal::BranchIntoPatch { from: at });
            }
        }
        if (moved || copied) && instruction.is_ip_rel_memory_operand() {
            let operand = instruction.ip_rel_memory_address().wrapping_sub(func_addr);
            if operand >= entry && operand < end {
                return Err(Refusal::OwnAddress { at });
            }
        }
        // Code behind a terminator inside the patch can only be reached by jumps, among which may be a
        // computed one.
        ended |= moved && is_terminator(instruction) && next < end as usize;
        let computed = instruction.flow_control() == FlowControl::IndirectBranch;
        if computed && ended && !moved {
            return Err(Refusal::IndirectBranch { from: at });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_call_leaves_in_a_register() {
        // cmp rax, -4095; jae +1; ret; neg eax; ret
        let wrapper = [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x73, 0x01, 0xc3, 0xf7, 0xd8, 0xc3];
        assert!(argument_is_forgotten(&wrapper, 3));
        // The registers of other arguments may be the caller's.
        assert!(!argument_is_forgotten(&wrapper, 2));
        let cases: [(&[u8], bool); 7] = [
            (&[0x4d, 0x89, 0xd0, 0xc3], false),            // mov r8, r10; ret
            (&[0x49, 0x89, 0xca, 0x4d, 0x89, 0xd0], true), // mov r10, rcx; ..
            (&[0x41, 0x88, 0xca, 0xc3], false),            // mov r10b, cl; ret
            (&[0xe8, 0, 0, 0, 0], true),                   // call
            (&[0x0f, 0x05, 0xc3], false),                  // syscall; ret
            (&[0xff, 0xe0], false),                        // jmp rax
            (&[0x90, 0x90], false),                        // the code ends
        ];
        for (code, forgotten) in cases {
            assert_eq!(argument_is_forgotten(code, 3), forgotten, "{code:x?}");
        }
        // A loop that makes the call again with what is there: mov eax, 232; syscall; jmp back
        let again = [0x90, 0xb8, 0xe8, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf6];
        assert!(!argument_is_forgotten(&again, 3));
    }
}
