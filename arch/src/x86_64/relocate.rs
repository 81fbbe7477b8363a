//! Moving displaced instructions to another address, and the stub that a patched function jumps to.

use super::insn::{PatchPlan, Refusal, branch_target, decode};
use super::jump::{encode_jump, near_window};
use alloc::vec::Vec;
use core::ops::Range;
use iced_x86::{
    BlockEncoder, BlockEncoderOptions, BlockEncoderResult, FlowControl, Instruction,
    InstructionBlock,
};

/// Displaced instructions at their new address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Relocated {
    /// The instructions, and a jump back to where the function goes on.
    pub bytes: Vec<u8>,
    /// For each displaced instruction its offset in the function and in `bytes`. A thread whose pc
    /// is at the first is to be moved to the second before the patch is written.
    pub map: Vec<(usize, usize)>,
    /// A call is among them: it pushes a return address in the stub, where the stack's unwinding
    /// ends or needs help, and which a thread may hold for as long as the callee takes.
    pub has_call: bool,
}

impl Relocated {
    /// Where a thread at `pc` goes when the function's entry is patched and `bytes` are at
    /// `new_addr`.
    #[must_use]
    pub fn moved_pc(&self, func_addr: u64, new_addr: u64, pc: u64) -> Option<u64> {
        let offset = pc.wrapping_sub(func_addr);
        let (_, new) = self.map.iter().find(|(old, _)| *old as u64 == offset)?;
        Some(new_addr.wrapping_add(*new as u64))
    }

    /// The way back, for a thread in the moved instructions when the patch is removed. `None` if
    /// `pc` is not at the start of one of them; the jump behind them leads back by itself.
    #[must_use]
    pub fn original_pc(&self, func_addr: u64, new_addr: u64, pc: u64) -> Option<u64> {
        let offset = pc.wrapping_sub(new_addr);
        let (old, _) = self.map.iter().find(|(_, new)| *new as u64 == offset)?;
        Some(func_addr.wrapping_add(*old as u64))
    }
}

/// The displaced instructions, decoded again from `code`.
fn displaced(plan: &PatchPlan, code: &[u8], func_addr: u64) -> Result<Vec<Instruction>, Refusal> {
    let list: Option<Vec<_>> =
        plan.displaced.iter().map(|&at| decode(code, func_addr, at)).collect();
    let list = list.ok_or(Refusal::Changed)?;
    let len: usize = list.iter().map(Instruction::len).sum();
    if list.is_empty() || len != plan.displaced_len { Err(Refusal::Changed) } else { Ok(list) }
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
        map: plan.displaced.iter().copied().zip(offsets).collect(),
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

/// What [`build_stub`] builds from.
#[derive(Copy, Clone, Debug)]
pub struct StubParams<'a> {
    /// Where the stub will be; see [`stub_window`].
    pub stub_addr: u64,
    /// Address of a `u32`: 0 means that nothing is to be recorded.
    pub flag_addr: u64,
    /// What the hook's entry code finds in `r11`: the address of the function's descriptor.
    pub desc_addr: u64,
    /// Address of the hook's entry code.
    pub entry_addr: u64,
    /// Address of the patched function.
    pub func_addr: u64,
    /// Its bytes from before the patch.
    pub code: &'a [u8],
    /// The plan for it.
    pub plan: &'a PatchPlan,
}

/// The stub of one patched function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stub {
    /// Its code.
    pub bytes: Vec<u8>,
    /// Calling this address calls the function as it was before the patch.
    pub original_addr: u64,
    /// The jump to be written at [`patch_addr`](Self::patch_addr).
    pub patch: [u8; super::jump::PATCH_LEN],
    /// Where it is to be written.
    pub patch_addr: u64,
    /// The moved instructions, which are at `original_addr`.
    pub relocated: Relocated,
}

/// Length of the stub's code before the moved instructions.
const HEAD_LEN: usize = 32;
/// Length of the part that only runs while recording is on.
const RECORD_LEN: u8 = 16;

/// The stub that a patched function jumps to:
///
/// ```text
///           mov  r11, flag_addr
///           cmp  dword ptr [r11], 0
///           je   original
///           mov  r11, desc_addr
///           jmp  [rip + slot]
/// original: <moved instructions>
///           jmp  function + n
///           <padding>
/// slot:     .quad entry_addr
/// ```
///
/// `r11` is free at a function's entry: neither argument nor preserved (System V ABI, AMD64
/// supplement, figure 3.4). So are the flags.
///
/// # Errors
///
/// See [`relocate`].
pub fn build_stub(params: &StubParams<'_>) -> Result<Stub, Refusal> {
    let StubParams { stub_addr, func_addr, plan, .. } = *params;
    let original_addr = stub_addr.wrapping_add(HEAD_LEN as u64);
    let relocated = relocate(plan, params.code, func_addr, original_addr)?;
    let slot = HEAD_LEN.saturating_add(relocated.bytes.len()).next_multiple_of(8);
    let to_slot = u32::try_from(slot.saturating_sub(HEAD_LEN)).map_err(|_| Refusal::CannotMove)?;
    let mut bytes = Vec::with_capacity(slot.saturating_add(8));
    bytes.extend_from_slice(&[0x49, 0xbb]);
    bytes.extend_from_slice(&params.flag_addr.to_le_bytes());
    bytes.extend_from_slice(&[0x41, 0x83, 0x3b, 0x00, 0x74, RECORD_LEN, 0x49, 0xbb]);
    bytes.extend_from_slice(&params.desc_addr.to_le_bytes());
    bytes.extend_from_slice(&[0xff, 0x25]);
    bytes.extend_from_slice(&to_slot.to_le_bytes());
    debug_assert_eq!(bytes.len(), HEAD_LEN);
    bytes.extend_from_slice(&relocated.bytes);
    bytes.resize(slot, 0xcc);
    bytes.extend_from_slice(&params.entry_addr.to_le_bytes());
    let patch_addr = func_addr.wrapping_add(plan.patch_offset as u64);
    let patch = encode_jump(patch_addr, stub_addr).ok_or(Refusal::OutOfReach)?;
    Ok(Stub { bytes, original_addr, patch, patch_addr, relocated })
}
