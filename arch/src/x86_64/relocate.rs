//! Moving displaced instructions to another address, and the stub that a patched function jumps to.

use super::insn::{Lead, PatchPlan, Refusal, branch_target, decode};
use super::jump::{GO_LEN, encode_jump, near_window};
pub use crate::patch::{Relocated, Stub, StubParams};
use alloc::vec::Vec;
use core::ops::Range;
use iced_x86::{
    BlockEncoder, BlockEncoderOptions, BlockEncoderResult, FlowControl, Instruction,
    InstructionBlock,
};

/// The instruction that is left in front of the patch, if the original needs it, and the displaced ones, decoded
/// again from `code`.
fn displaced(plan: &PatchPlan, code: &[u8], func_addr: u64) -> Result<Vec<Instruction>, Refusal> {
    let list: Option<Vec<_>> = copied(plan).map(|at| decode(code, func_addr, at)).collect();
    let list = list.ok_or(Refusal::Changed)?;
    let len: usize = list.iter().map(Instruction::len).sum();
    let lead = if plan.lead == Lead::Nothing { 0 } else { plan.patch_offset };
    let all = len == plan.displaced_len.saturating_add(lead);
    if plan.displaced.is_empty() || !all { Err(Refusal::Changed) } else { Ok(list) }
}

/// Where the instructions stand that the original is made of.
fn copied(plan: &PatchPlan) -> impl Iterator<Item = usize> {
    let lead = (plan.lead != Lead::Nothing).then_some(0);
    lead.into_iter().chain(plan.displaced.iter().copied())
}

/// The addresses where the stub for this function may be: in reach of the function, and of whatever
/// its displaced instructions refer to relative to their own address. Empty if nothing is.
///
/// # Errors
///
/// [`Refusal::Changed`] if `code` is not what the plan was made for.
pub fn stub_window(plan: &PatchPlan, code: &[u8], func_addr: u64) -> Result<Range<u64>, Refusal> {
    let mut window = near_window(func_addr);
    for instruction in displaced(plan, code, func_addr)? {
        let data =
            instruction.is_ip_rel_memory_operand().then(|| instruction.ip_rel_memory_address());
        for address in [branch_target(&instruction), data].into_iter().flatten() {
            let near = near_window(address);
            window = window.start.max(near.start)..window.end.min(near.end);
        }
    }
    Ok(window)
}

/// The displaced instructions as they have to be at `new_addr`.
///
/// # Errors
///
/// [`Refusal::CannotMove`] or [`Refusal::OutOfReach`] where that is too far away,
/// [`Refusal::Changed`] if `code` is not what the plan was made for.
pub fn relocate(
    plan: &PatchPlan,
    code: &[u8],
    func_addr: u64,
    new_addr: u64,
) -> Result<Relocated, Refusal> {
    let list = displaced(plan, code, func_addr)?;
    let block = InstructionBlock::new(&list, new_addr);
    let options = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
    let encoded = BlockEncoder::encode(64, block, options).map_err(|_| Refusal::CannotMove)?;
    let offsets = new_offsets(&encoded, new_addr).ok_or(Refusal::CannotMove)?;
    let mut bytes = encoded.code_buffer;
    if !plan.terminated {
        let back = func_addr.wrapping_add(plan.continuation() as u64);
        let from = new_addr.wrapping_add(bytes.len() as u64);
        bytes.extend_from_slice(&encode_jump(from, back).ok_or(Refusal::OutOfReach)?);
    }
    let is_call =
        |i: &Instruction| matches!(i.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
    Ok(Relocated {
        bytes,
        map: copied(plan).zip(offsets).collect(),
        has_call: list.iter().any(is_call),
    })
}

/// Where each instruction is in the encoded block. The encoder does not say so for those that it
/// replaced by several (`jrcxz`, `loop`): such a one begins where the one before it ends.
fn new_offsets(encoded: &BlockEncoderResult, new_addr: u64) -> Option<Vec<usize>> {
    let mut offsets: Vec<usize> = Vec::new();
    let mut previous_known = true;
    for &offset in &encoded.new_instruction_offsets {
        let known = offset != u32::MAX;
        let start = match offsets.last() {
            _ if known => offset as usize,
            None => 0,
            Some(&last) if previous_known => {
                last.checked_add(decode(&encoded.code_buffer, new_addr, last)?.len())?
            }
            Some(_) => return None,
        };
        previous_known = known;
        offsets.push(start);
    }
    Some(offsets)
}

/// The stub that a patched function jumps to:
///
/// ```text
///           mov  r11, flag_addr
///           cmp  dword ptr [r11], 0
///           je   paused
///           mov  r11, desc_addr
///           <the stack pointer as it was at the entry>
///           jmp  [rip + slot]
/// original: <the instruction in front of the patch>
/// paused:   <moved instructions>
///           jmp  function + n
///           <padding>
/// slot:     .quad entry_addr
/// ```
///
/// What stands in front of the patch has been executed when the stub is come to. One that sets flags is
/// executed again while recording is off, as the stub uses them.
///
/// `r11` is free at a function's entry: neither argument nor preserved (System V ABI, AMD64
/// supplement, figure 3.4). So are the flags.
///
/// # Errors
///
/// See [`relocate`].
pub fn build_stub(params: &StubParams<'_>) -> Result<Stub, Refusal> {
    let StubParams { stub_addr, func_addr, plan, .. } = *params;
    let mut record = alloc::vec![0x49, 0xbb];
    record.extend_from_slice(&params.desc_addr.to_le_bytes());
    if let Lead::Down(bytes) = plan.lead {
        record.extend_from_slice(&move_up(bytes));
    }
    let head = PAUSE_LEN.saturating_add(record.len()).saturating_add(GO_LEN);
    let original_addr = stub_addr.wrapping_add(head as u64);
    let relocated = relocate(plan, params.code, func_addr, original_addr)?;
    let paused = match plan.lead {
        Lead::Down(_) => relocated.map.get(1).map_or(0, |(_, new)| *new),
        Lead::Nothing | Lead::Again => 0,
    };
    let skip = record.len().saturating_add(GO_LEN).saturating_add(paused);
    let skip = u8::try_from(skip).ok().filter(|n| *n < 0x80).ok_or(Refusal::CannotMove)?;
    let slot = head.saturating_add(relocated.bytes.len()).next_multiple_of(8);
    let to_slot = u32::try_from(slot.saturating_sub(head)).map_err(|_| Refusal::CannotMove)?;
    let mut bytes = Vec::with_capacity(slot.saturating_add(8));
    bytes.extend_from_slice(&[0x49, 0xbb]);
    bytes.extend_from_slice(&params.flag_addr.to_le_bytes());
    bytes.extend_from_slice(&[0x41, 0x83, 0x3b, 0x00, 0x74, skip]);
    debug_assert_eq!(bytes.len(), PAUSE_LEN);
    bytes.extend_from_slice(&record);
    bytes.extend_from_slice(&[0xff, 0x25]);
    bytes.extend_from_slice(&to_slot.to_le_bytes());
    debug_assert_eq!(bytes.len(), head);
    bytes.extend_from_slice(&relocated.bytes);
    bytes.resize(slot, 0xcc);
    bytes.extend_from_slice(&params.entry_addr.to_le_bytes());
    let patch_addr = func_addr.wrapping_add(plan.patch_offset as u64);
    let patch = encode_jump(patch_addr, stub_addr).ok_or(Refusal::OutOfReach)?.to_vec();
    Ok(Stub { bytes, original_addr, patch, patch_addr, relocated })
}

/// Length of the part of a stub that looks whether recording is on.
const PAUSE_LEN: usize = 16;

/// `lea rsp, [rsp + bytes]`, which leaves the flags alone.
fn move_up(bytes: u32) -> Vec<u8> {
    match i8::try_from(bytes) {
        Ok(n) => alloc::vec![0x48, 0x8d, 0x64, 0x24, n as u8],
        Err(_) => {
            let [a, b, c, d] = bytes.to_le_bytes();
            alloc::vec![0x48, 0x8d, 0xa4, 0x24, a, b, c, d]
        }
    }
}
