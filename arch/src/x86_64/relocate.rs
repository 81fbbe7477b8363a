//! Relocation of displaced instructions, and the stub that a patched function jumps to.

use super::insn::{Lead, PatchPlan, Refusal, branch_target, decode};
use super::jump::{encode_jump, near_window};
pub use crate::patch::{Relocated, Stub, StubParams};
use alloc::vec::Vec;
use core::ops::Range;
use iced_x86::{
    BlockEncoder, BlockEncoderOptions, BlockEncoderResult, FlowControl, Instruction,
    InstructionBlock,
};

/// Decodes, again from `code`, the instruction that is left in front of the patch, if the original needs it,
/// and the displaced ones.
fn displaced(plan: &PatchPlan, code: &[u8], func_addr: u64) -> Result<Vec<Instruction>, Refusal> {
    let list: Option<Vec<_>> = copied(plan).map(|at| decode(code, func_addr, at)).collect();
    let list = list.ok_or(Refusal::Changed)?;
    let len: usize = list.iter().map(Instruction::len).sum();
    let lead = if plan.lead == Lead::Nothing { 0 } else { plan.patch_offset };
    let all = len == plan.displaced_len.saturating_add(lead);
    if plan.displaced.is_empty() || !all { Err(Refusal::Changed) } else { Ok(list) }
}

/// Returns the offsets of the instructions that the original is made of.
fn copied(plan: &PatchPlan) -> impl Iterator<Item = usize> {
    let lead = (plan.lead != Lead::Nothing).then_some(0);
    lead.into_iter().chain(plan.displaced.iter().copied())
}

/// Returns the range of addresses for the stub of this function: in reach of the function, and of whatever
/// its displaced instructions refer to relative to their own address. It is empty if there are none.
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

/// Relocates the displaced instructions to `new_addr`.
///
/// # Errors
///
/// [`Refusal::CannotMove`] or [`Refusal::OutOfReach`] if it can't be there, [`Refusal::Changed`] if `code` is
/// not what the plan was made for.
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

/// Returns the offset of each instruction in the encoded block. The encoder does not tell those of
/// instructions that it replaced by several (`jrcxz`, `loop`): such a one begins where the one before it
/// ends.
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

/// Builds the stub that a patched function jumps to:
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
/// The instruction in front of the patch has been executed when the stub is reached. One that sets flags is
/// executed again while recording is off, as the stub uses the flags.
///
/// `r11` is free at a function's entry: neither argument nor preserved (System V ABI, AMD64
/// supplement, figure 3.4). So are the flags. Where that is not certain (`many`), neither is used: the
/// flag is tested with `jrcxz`, with rcx on the stack meanwhile, and the descriptor's address is pushed.
///
/// # Errors
///
/// See [`relocate`].
pub fn build_stub(params: &StubParams<'_>) -> Result<Stub, Refusal> {
    let StubParams { stub_addr, func_addr, plan, .. } = *params;
    let mut head = Head::new(params);
    let original_addr = stub_addr.wrapping_add(head.bytes.len() as u64);
    let relocated = relocate(plan, params.code, func_addr, original_addr)?;
    if let Lead::Down(_) = plan.lead {
        let lead = relocated.map.get(1).map_or(0, |(_, new)| *new);
        head.skip(lead).ok_or(Refusal::CannotMove)?;
    }
    let slots = head.bytes.len().saturating_add(relocated.bytes.len()).next_multiple_of(8);
    head.fill_in_slots(slots).ok_or(Refusal::CannotMove)?;
    let mut bytes = head.bytes;
    bytes.extend_from_slice(&relocated.bytes);
    bytes.resize(slots, 0xcc);
    bytes.extend_from_slice(&params.entry_addr.to_le_bytes());
    if params.many {
        bytes.extend_from_slice(&params.desc_addr.to_le_bytes());
    }
    let patch_addr = func_addr.wrapping_add(plan.patch_offset as u64);
    let patch = encode_jump(patch_addr, stub_addr).ok_or(Refusal::OutOfReach)?.to_vec();
    Ok(Stub { bytes, original_addr, patch, patch_addr, relocated })
}

/// The part of a stub before the original.
struct Head {
    bytes: Vec<u8>,
    /// Offset of the distance to what is executed while recording is off.
    paused_at: usize,
    /// Offsets of distances to the slots, and the number of each slot.
    slots: Vec<(usize, usize)>,
}

impl Head {
    fn new(params: &StubParams<'_>) -> Self {
        let flag = params.flag_addr.to_le_bytes();
        let up = match params.plan.lead {
            Lead::Down(bytes) => move_up(bytes),
            Lead::Nothing | Lead::Again => Vec::new(),
        };
        let mut head = Head { bytes: Vec::new(), paused_at: 0, slots: Vec::new() };
        if !params.many {
            head.put(&[&[0x49, 0xbb], &flag[..], &[0x41, 0x83, 0x3b, 0x00, 0x74, 0]]);
            head.paused_at = head.bytes.len().saturating_sub(1);
            head.put(&[&[0x49, 0xbb], &params.desc_addr.to_le_bytes(), &up]);
            head.put_with_slot([0xff, 0x25], 0);
            head.end_at(0);
            return head;
        }
        // push rcx; mov rcx, flag_addr; mov ecx, [rcx]; jrcxz paused; pop rcx
        head.put(&[&[0x51, 0x48, 0xb9], &flag, &[0x8b, 0x09, 0xe3, 0]]);
        head.paused_at = head.bytes.len().saturating_sub(1);
        head.put(&[&[0x59], &up]);
        // push [rip + slot 1]; jmp [rip + slot 0]
        head.put_with_slot([0xff, 0x35], 1);
        head.put_with_slot([0xff, 0x25], 0);
        head.end_at(0);
        // paused: pop rcx, and over what has been executed already
        head.put(&[&[0x59]]);
        if !up.is_empty() {
            head.put(&[&[0xeb, 0]]);
            head.paused_at = head.bytes.len().saturating_sub(1);
        }
        head
    }

    fn put(&mut self, parts: &[&[u8]]) {
        parts.iter().for_each(|p| self.bytes.extend_from_slice(p));
    }

    fn put_with_slot(&mut self, instruction: [u8; 2], slot: usize) {
        self.put(&[&instruction]);
        self.slots.push((self.bytes.len(), slot));
        self.put(&[&[0; 4]]);
    }

    /// Sets the distance: what is executed while recording is off begins `more` bytes behind the present end.
    fn end_at(&mut self, more: usize) -> Option<()> {
        let from = self.paused_at.saturating_add(1);
        let distance = self.bytes.len().saturating_add(more).checked_sub(from)?;
        *self.bytes.get_mut(self.paused_at)? = i8::try_from(distance).ok()? as u8;
        Some(())
    }

    /// Makes the stub skip the original's first `more` bytes while recording is off.
    fn skip(&mut self, more: usize) -> Option<()> {
        self.end_at(more)
    }

    /// Sets the distances to the slots, which are at this offset of the stub.
    fn fill_in_slots(&mut self, at: usize) -> Option<()> {
        for (place, slot) in &self.slots {
            let to = slot.checked_mul(8)?.checked_add(at)?;
            let from = place.checked_add(4)?;
            let distance = u32::try_from(to.checked_sub(from)?).ok()?;
            self.bytes.get_mut(*place..from)?.copy_from_slice(&distance.to_le_bytes());
        }
        Some(())
    }
}

/// Returns `lea rsp, [rsp + bytes]`, which leaves the flags alone.
fn move_up(bytes: u32) -> Vec<u8> {
    match i8::try_from(bytes) {
        Ok(n) => alloc::vec![0x48, 0x8d, 0x64, 0x24, n as u8],
        Err(_) => {
            let [a, b, c, d] = bytes.to_le_bytes();
            alloc::vec![0x48, 0x8d, 0xa4, 0x24, a, b, c, d]
        }
    }
}
