//! Relocation of the displaced instructions, and the stub that a patched function jumps to.
//!
//! A delay slot moves with its branch. A call that is moved leaves the return address that it would have left
//! at its old place, so nothing ever returns into the stub; only a compact call (release 6) at the very
//! entry, which would return into the patch, returns to the stub.

use super::decode::{
    PcUse, Slot, compact_register_jump, distance_bits, field, is_terminator, pc_use, register_jump,
    slot,
};
use super::insn::{PatchPlan, Refusal};
use super::jump::{encode_j, encode_jump_in, near_window};
use super::regs::{AT, RA, T8, T9, ZERO};
use super::variant::{NOP, Variant, beq, jump_register, load_address, lw};
use crate::patch::Lead;
pub use crate::patch::{Relocated, Stub, StubParams};
use alloc::vec::Vec;
use core::ops::Range;

/// Register that a function may change at its entry, and that holds no argument.
const SCRATCH: u32 = AT as u32;
/// Register in which the hook's entry takes the descriptor.
const DESCRIPTOR: u32 = T8 as u32;
const FUNCTION: u32 = T9 as u32;
const LINK: u32 = RA as u32;

/// `jal`.
const JAL: u32 = 0x0c00_0000;

/// Returns the range of addresses for the stub of this function: in reach of the function. The targets of its
/// displaced instructions are then in reach, too, except for branches across the edge of two regions, which
/// [`relocate`] refuses.
///
/// # Errors
///
/// [`Refusal::Changed`] if `code` is not what the plan was made for.
pub fn stub_window(plan: &PatchPlan, code: &[u8], func_addr: u64) -> Result<Range<u64>, Refusal> {
    if code.len() < plan.continuation() {
        return Err(Refusal::Changed);
    }
    Ok(near_window(func_addr))
}

/// Code under construction, and the branches whose targets come behind it.
struct Block {
    variant: Variant,
    address: u64,
    insns: Vec<u32>,
    /// Index of each branch, and its target.
    branches: Vec<(usize, u64)>,
}

impl Block {
    fn new(variant: Variant, address: u64) -> Self {
        Block { variant, address, insns: Vec::new(), branches: Vec::new() }
    }

    fn len(&self) -> usize {
        self.insns.len().wrapping_mul(4)
    }

    fn push(&mut self, insn: u32) {
        self.insns.push(insn);
    }

    fn load(&mut self, register: u32, value: u64) {
        let (insns, n) = load_address(register, value);
        self.insns.extend(insns.iter().take(n));
    }

    /// Appends `j to`, or `jal to`, and its delay slot.
    fn jump(&mut self, link: u32, to: u64, delayed: u32) -> Result<(), Refusal> {
        let here = self.address.wrapping_add(self.len() as u64);
        let insn = encode_j(here, to).ok_or(Refusal::OutOfReach)?;
        self.push(insn | link);
        self.push(delayed);
        Ok(())
    }

    /// Appends a branch and its delay slot (or an instruction that may stand behind a compact branch). The
    /// jump that it leads to follows later.
    fn branch(&mut self, insn: u32, to: u64, delayed: u32) {
        self.branches.push((self.insns.len(), to));
        self.push(insn);
        self.push(delayed);
    }

    /// Appends the jumps that the branches lead to.
    fn finish_branches(&mut self) -> Result<(), Refusal> {
        for (user, to) in core::mem::take(&mut self.branches) {
            let distance = self.insns.len().wrapping_sub(user.wrapping_add(1)) as u32;
            if let Some(insn) = self.insns.get_mut(user) {
                let bits = distance_bits(self.variant, *insn).ok_or(Refusal::CannotMove)?;
                let mask = 1_u32.wrapping_shl(bits).wrapping_sub(1);
                *insn = *insn & !mask | distance & mask;
            }
            self.jump(0, to, NOP)?;
        }
        Ok(())
    }

    /// Appends the instruction that stood at `at` in a function at `func`, with the one behind it. Returns
    /// whether the result has a call in the stub.
    fn moved(
        &mut self,
        insn: u32,
        delayed: u32,
        at: usize,
        func: u64,
        into_patch: bool,
    ) -> Result<bool, Refusal> {
        let variant = self.variant;
        let address = func.wrapping_add(at as u64);
        let kind = slot(variant, insn);
        let delayed = if kind.is_delay() { delayed } else { NOP };
        let back = address.wrapping_add(if kind.is_delay() { 8 } else { 4 });
        match pc_use(variant, insn, address) {
            None => return self.moved_by_register(insn, delayed, back, into_patch),
            Some(PcUse::Branch(to)) => self.jump(0, to, delayed)?,
            // At its old place it would return into the patch.
            Some(PcUse::Call(to)) if into_patch && kind == Slot::None => {
                self.jump(JAL, to, NOP)?;
                return Ok(true);
            }
            Some(PcUse::Call(to)) => {
                self.load(LINK, back);
                self.jump(0, to, delayed)?;
            }
            Some(PcUse::Conditional(to)) => self.branch(insn, to, delayed),
            Some(PcUse::ConditionalCall(to)) => {
                if field(insn, 21) == LINK {
                    return Err(Refusal::CannotMove);
                }
                self.load(LINK, back);
                self.branch(insn & !(1 << 20), to, delayed);
            }
            Some(PcUse::Address(value)) => {
                let register = field(insn, 21);
                if register == u32::from(ZERO) {
                    self.push(NOP);
                } else {
                    self.load(register, value);
                }
            }
            Some(PcUse::Literal(from)) => self.load_from(insn, from)?,
            Some(PcUse::Other) => return Err(Refusal::CannotMove),
        }
        Ok(false)
    }

    /// Appends an instruction that does not read its own address; a call may still leave one.
    fn moved_by_register(
        &mut self,
        insn: u32,
        delayed: u32,
        back: u64,
        into_patch: bool,
    ) -> Result<bool, Refusal> {
        /// Field of the register for the return address.
        const TO: u32 = 31 << 11;
        match (register_jump(insn), compact_register_jump(self.variant, insn)) {
            (Some((_, link)), _) => {
                if link != 0 {
                    self.load(link, back);
                }
                // It keeps its barrier, and becomes `jalr $0`, which every release has.
                self.push(insn & !TO | 1);
                self.push(delayed);
            }
            (_, Some((_, true))) if !into_patch => {
                self.load(LINK, back);
                // jialc to jic
                self.push(insn & !(1 << 29));
            }
            (_, Some((_, call))) => {
                self.push(insn);
                return Ok(call);
            }
            _ => self.push(insn),
        }
        Ok(false)
    }

    /// Appends the load `insn` from the address `from`.
    fn load_from(&mut self, insn: u32, from: u64) -> Result<(), Refusal> {
        let register = field(insn, 21);
        if register == u32::from(ZERO) {
            return Err(Refusal::CannotMove);
        }
        let opcode = match insn >> 19 & 3 {
            1 => 0x8c00_0000, // lw
            2 => 0x9c00_0000, // lwu
            _ => 0xdc00_0000, // ld
        };
        self.load(register, from);
        self.push(opcode | register << 21 | register << 16);
        Ok(())
    }

    fn bytes(&self) -> Vec<u8> {
        self.insns.iter().flat_map(|&insn| self.variant.order.bytes4(insn)).collect()
    }
}

/// Returns whether execution continues behind the moved form of the displaced instruction: a call continues
/// behind its old place.
fn goes_on(variant: Variant, insn: u32, into_patch: bool) -> bool {
    let in_stub = into_patch && slot(variant, insn) == Slot::None;
    let call = matches!(pc_use(variant, insn, 0), Some(PcUse::Call(_)))
        || register_jump(insn).is_some()
        || matches!(compact_register_jump(variant, insn), Some((_, true)));
    !is_terminator(variant, insn) && (!call || in_stub)
}

/// Relocates the displaced instructions to `new_addr` (a multiple of 4). If `with_t9`, `$t9` is set first to
/// the function's address, as it is at a function's entry: `lui gp; daddu gp, gp, t9` relies on it.
///
/// # Errors
///
/// [`Refusal::CannotMove`] or [`Refusal::OutOfReach`] if they cannot be there, [`Refusal::Changed`] if `code`
/// is not what the plan was made for.
pub fn relocate_in(
    variant: Variant,
    plan: &PatchPlan,
    code: &[u8],
    func_addr: u64,
    new_addr: u64,
    with_t9: bool,
) -> Result<Relocated, Refusal> {
    let word = |at: usize| variant.order.word4(code, at).ok_or(Refusal::Changed);
    let mut block = Block::new(variant, new_addr);
    let (mut map, mut has_call, mut on) = (Vec::new(), false, true);
    if with_t9 {
        block.load(FUNCTION, func_addr);
    }
    let lead = (plan.lead != Lead::Nothing).then_some(0);
    for at in lead.into_iter().chain(plan.displaced.iter().copied()) {
        let insn = word(at)?;
        let delayed = if slot(variant, insn).is_delay() { word(at.wrapping_add(4))? } else { NOP };
        map.push((at, block.len()));
        // Whether a call in the same place would return into the patch.
        let into_patch = at == plan.patch_offset;
        has_call |= block.moved(insn, delayed, at, func_addr, into_patch)?;
        on = goes_on(variant, insn, into_patch);
    }
    if on {
        block.jump(0, func_addr.wrapping_add(plan.continuation() as u64), NOP)?;
    }
    block.finish_branches()?;
    Ok(Relocated { bytes: block.bytes(), map, has_call })
}

/// Does what [`relocate_in`] does, for this machine.
///
/// # Errors
///
/// See [`relocate_in`].
pub fn relocate(
    plan: &PatchPlan,
    code: &[u8],
    func_addr: u64,
    new_addr: u64,
) -> Result<Relocated, Refusal> {
    relocate_in(Variant::NATIVE, plan, code, func_addr, new_addr, true)
}

/// Builds the stub that a patched function jumps to:
///
/// ```text
///           li   $at, flag_addr
///           lw   $at, 0($at)
///           beqz $at, original
///           nop
///           li   $t8, desc_addr
///           li   $t9, entry_addr
///           jr   $t9
///           nop
/// original: li   $t9, function
///           <moved instructions>
///           j    function + n
///           nop
///           <jumps that moved branches lead to>
/// ```
///
/// (`li` stands for the two to six instructions that make an address.) `$at`, `$t8` and `$t9` are free at a
/// function's entry. So are `$t0` to `$t3`, but a nested function of GNU C has its chain in the last of them.
///
/// The instruction in front of the patch is executed again, whether recording is on or off. If it has moved
/// the stack pointer down, that is undone first (`daddiu $sp, $sp, n`).
///
/// Callers of a function that the user has named may rely on it to leave `$t8` and `$t9` alone. So its stub
/// saves them before the hook's entry (`daddiu $sp, $sp, -32; sd $t8, 0($sp); sd $t9, 8($sp)`), and the
/// original is entered with the caller's `$t9`.
///
/// # Errors
///
/// See [`relocate_in`].
pub fn build_stub_in(variant: Variant, params: &StubParams<'_>) -> Result<Stub, Refusal> {
    let StubParams { stub_addr, func_addr, plan, .. } = *params;
    let mut head = Block::new(variant, stub_addr);
    if let Lead::Down(n) = plan.lead {
        // daddiu $sp, $sp, n
        head.push(0x67bd_0000 | n & 0xffff);
    }
    head.load(SCRATCH, params.flag_addr);
    head.push(lw(SCRATCH, 0, SCRATCH));
    let test = head.insns.len();
    head.push(NOP);
    head.push(NOP);
    if params.many {
        // daddiu $sp, $sp, -32; sd $t8, 0($sp); sd $t9, 8($sp)
        [0x67bd_ffe0, 0xffb8_0000, 0xffb9_0008].into_iter().for_each(|insn| head.push(insn));
    }
    head.load(DESCRIPTOR, params.desc_addr);
    head.load(FUNCTION, params.entry_addr);
    head.push(jump_register(FUNCTION));
    head.push(NOP);
    let distance = head.insns.len().wrapping_sub(test.wrapping_add(1)) as u16;
    if let Some(insn) = head.insns.get_mut(test) {
        *insn = beq(SCRATCH, u32::from(ZERO), distance);
    }
    let original_addr = stub_addr.wrapping_add(head.len() as u64);
    let relocated =
        relocate_in(variant, plan, params.code, func_addr, original_addr, !params.many)?;
    let mut bytes = head.bytes();
    bytes.extend_from_slice(&relocated.bytes);
    let patch_addr = func_addr.wrapping_add(plan.patch_offset as u64);
    let patch = encode_jump_in(variant.order, patch_addr, stub_addr).ok_or(Refusal::OutOfReach)?;
    Ok(Stub { bytes, original_addr, patch: patch.to_vec(), patch_addr, relocated })
}

/// Does what [`build_stub_in`] does, for this machine.
///
/// # Errors
///
/// See [`relocate_in`].
pub fn build_stub(params: &StubParams<'_>) -> Result<Stub, Refusal> {
    build_stub_in(Variant::NATIVE, params)
}

#[cfg(test)]
#[path = "relocate_tests.rs"]
mod tests;
