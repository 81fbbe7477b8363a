//! Relocation of the displaced instruction, and the stub that a patched function jumps to.

use super::insn::{PatchPlan, PcUse, Refusal, is_call, pc_use, unsign, word};
use super::jump::{encode_jump, imm26, near_window};
use crate::patch::Lead;
pub use crate::patch::{Relocated, Stub, StubParams};
use alloc::vec::Vec;
use core::ops::Range;

const NOP: u32 = 0xd503_201f;
/// `x16` and `x17` are free at an entry: a call may change them on its way (AAPCS64, 6.1.1).
const X16: u32 = 16;
const X17: u32 = 17;

/// Encodes `ldr x<register>, <distance bytes on>`.
fn load_literal(register: u32, distance: usize) -> u32 {
    0x5800_0000 | ((distance >> 2) as u32 & 0x7_ffff) << 5 | register
}

/// Reads the displaced instruction again from `code`, and the one in front of it if the stub has to repeat
/// it.
fn displaced(plan: &PatchPlan, code: &[u8]) -> Result<(u32, Option<u32>), Refusal> {
    let (&[at], 4) = (&plan.displaced[..], plan.displaced_len) else {
        return Err(Refusal::Changed);
    };
    let insn = word(code, at).ok_or(Refusal::Changed)?;
    let before = at.checked_sub(4).and_then(|at| word(code, at));
    Ok((insn, before.filter(|&insn| plan.lead != Lead::Nothing || unsign(insn).is_some())))
}

/// Returns the range of addresses for the stub of this function: in reach of the function, and of the target
/// of its displaced instruction. It is empty if there are none.
///
/// # Errors
///
/// [`Refusal::Changed`] if `code` is not what the plan was made for.
pub fn stub_window(plan: &PatchPlan, code: &[u8], func_addr: u64) -> Result<Range<u64>, Refusal> {
    let window = near_window(func_addr);
    let (insn, _) = displaced(plan, code)?;
    let address = func_addr.wrapping_add(plan.patch_offset as u64);
    Ok(match pc_use(insn, address) {
        Some(PcUse::Branch(to) | PcUse::Call(to) | PcUse::Conditional(to, _)) => {
            let near = near_window(to);
            window.start.max(near.start)..window.end.min(near.end)
        }
        _ => window,
    })
}

/// Code under construction, and the words that it loads.
struct Block {
    address: u64,
    insns: Vec<u32>,
    /// Each word, and the index of the instruction that loads it.
    literals: Vec<(u64, usize)>,
}

impl Block {
    fn here(&self) -> u64 {
        self.address.wrapping_add((self.insns.len() as u64).wrapping_mul(4))
    }

    fn push(&mut self, insn: u32) {
        self.insns.push(insn);
    }

    /// Appends `ldr x<register>, =value`.
    fn load(&mut self, register: u32, value: u64) {
        self.literals.push((value, self.insns.len()));
        self.push(load_literal(register, 0));
    }

    fn branch(&mut self, opcode: u32, to: u64) -> Result<(), Refusal> {
        let imm = imm26(self.here(), to).ok_or(Refusal::OutOfReach)?;
        self.push(opcode | imm);
        Ok(())
    }

    /// Appends the instruction that stood at `address`.
    fn moved(&mut self, insn: u32, address: u64) -> Result<(), Refusal> {
        match pc_use(insn, address) {
            None => self.push(insn),
            Some(PcUse::Branch(to)) => self.branch(0x1400_0000, to)?,
            Some(PcUse::Call(to)) => self.branch(0x9400_0000, to)?,
            Some(PcUse::Conditional(to, bits)) => {
                // Two encodings mean "always".
                if insn & 0xff00_000e != 0x5400_000e {
                    // The opposite condition skips the branch.
                    let opposite = if insn >> 24 == 0x54 { 1 } else { 1 << 24 };
                    let distance = (1_u32.wrapping_shl(bits).wrapping_sub(1)) << 5;
                    self.push((insn ^ opposite) & !distance | 2 << 5);
                }
                self.branch(0x1400_0000, to)?;
            }
            Some(PcUse::Address(value)) => self.load(insn & 31, value),
            Some(PcUse::Literal(from)) => self.load_from(insn, from),
            Some(PcUse::Other) => return Err(Refusal::CannotMove),
        }
        Ok(())
    }

    /// Appends the load `insn` from the address `from`.
    fn load_from(&mut self, insn: u32, from: u64) {
        let (kind, register) = (insn >> 30, insn & 31);
        let vector = insn >> 26 & 1 == 1;
        let opcode = match (vector, kind) {
            (false, 0) => 0xb940_0000, // ldr w
            (false, 1) => 0xf940_0000, // ldr x
            (false, 2) => 0xb980_0000, // ldrsw
            (false, _) => 0xf980_0000, // prfm
            (true, 0) => 0xbd40_0000,  // ldr s
            (true, 1) => 0xfd40_0000,  // ldr d
            (true, _) => 0x3dc0_0000,  // ldr q
        };
        // The address goes into the loaded register, if that is one that can hold it.
        let holds = !vector && kind != 3 && register != 31;
        let base = if holds { register } else { X16 };
        self.load(base, from);
        self.push(opcode | base << 5 | register);
    }

    /// Returns the bytes of the code, with the literals behind it.
    fn finish(mut self) -> Vec<u8> {
        if !self.literals.is_empty() && self.insns.len() % 2 == 1 {
            self.push(NOP);
        }
        let mut at = self.insns.len().wrapping_mul(4);
        let mut bytes =
            Vec::with_capacity(at.saturating_add(self.literals.len().saturating_mul(8)));
        for &(_, user) in &self.literals {
            if let Some(insn) = self.insns.get_mut(user) {
                let distance = at.wrapping_sub(user.wrapping_mul(4));
                *insn |= load_literal(0, distance);
            }
            at = at.wrapping_add(8);
        }
        bytes.extend(self.insns.iter().flat_map(|insn| insn.to_le_bytes()));
        bytes.extend(self.literals.iter().flat_map(|(value, _)| value.to_le_bytes()));
        bytes
    }
}

/// Relocates the displaced instruction to `new_addr` (a multiple of 8). The instruction in front of it is
/// repeated first if the stub has undone it: behind a `paciasp`, another `paciasp`.
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
    let (insn, before) = displaced(plan, code)?;
    let mut block = Block { address: new_addr, insns: Vec::new(), literals: Vec::new() };
    if let Some(before) = before {
        let at = func_addr.wrapping_add(plan.patch_offset as u64).wrapping_sub(4);
        block.moved(before, at)?;
    }
    let start = block.insns.len().wrapping_mul(4);
    block.moved(insn, func_addr.wrapping_add(plan.patch_offset as u64))?;
    if !plan.terminated {
        block.branch(0x1400_0000, func_addr.wrapping_add(plan.continuation() as u64))?;
    }
    Ok(Relocated {
        bytes: block.finish(),
        map: plan.displaced.iter().map(|&at| (at, start)).collect(),
        has_call: is_call(insn),
    })
}

/// Returns the instruction that undoes one in front of the patch.
fn undo(insn: u32, lead: Lead) -> Option<u32> {
    match lead {
        Lead::Nothing => unsign(insn),
        Lead::Again => None,
        // add sp, sp, #n
        Lead::Down(n) if n & 0xfff == 0 => Some(0x9140_03ff | (n >> 12) << 10),
        Lead::Down(n) => Some(0x9100_03ff | n << 10),
    }
}

/// Length of the stub's code before the moved instruction, in bytes.
const HEAD_LEN: usize = 32;

/// Builds the stub that a patched function jumps to:
///
/// ```text
///           ldr  x16, =flag_addr
///           ldr  w16, [x16]
///           cbz  w16, moved
///           autiasp                 (behind a paciasp; add sp, sp, #n behind what moves it down)
///           ldr  x17, =desc_addr
///           ldr  x16, =entry_addr
///           br   x16
///           nop
/// original: paciasp                 (or what else stands in front of the patch)
/// moved:    <moved instruction>
///           b    function + n
///           <literals>
/// ```
///
/// `x16` and `x17` are free at a function's entry. The stub removes the signature of the return address
/// before it enters the hook, so that the hook can call `original` like any function.
///
/// # Errors
///
/// See [`relocate`].
pub fn build_stub(params: &StubParams<'_>) -> Result<Stub, Refusal> {
    let StubParams { stub_addr, func_addr, plan, .. } = *params;
    let original_addr = stub_addr.wrapping_add(HEAD_LEN as u64);
    let relocated = relocate(plan, params.code, func_addr, original_addr)?;
    let (_, before) = displaced(plan, params.code)?;
    let literals = HEAD_LEN.saturating_add(relocated.bytes.len()).next_multiple_of(8);
    // Loads the word number `n`, by the instruction at `at`.
    let load = |register, at: usize, n: usize| {
        load_literal(register, literals.saturating_add(n.wrapping_mul(8)).saturating_sub(at))
    };
    // The instruction in front of the patch has been executed already.
    let moved = HEAD_LEN.saturating_add(relocated.map.first().map_or(0, |(_, new)| *new));
    let head: [u32; HEAD_LEN / 4] = [
        load(X16, 0, 0),
        0xb940_0210, // ldr w16, [x16]
        0x3400_0000 | ((moved.saturating_sub(8) >> 2) as u32) << 5 | X16,
        before.and_then(|insn| undo(insn, plan.lead)).unwrap_or(NOP),
        load(X17, 16, 1),
        load(X16, 20, 2),
        0xd61f_0200, // br x16
        NOP,
    ];
    let mut bytes = Vec::with_capacity(literals.saturating_add(24));
    bytes.extend(head.iter().flat_map(|insn| insn.to_le_bytes()));
    bytes.extend_from_slice(&relocated.bytes);
    bytes.resize(literals, 0);
    for word in [params.flag_addr, params.desc_addr, params.entry_addr] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    let patch_addr = func_addr.wrapping_add(plan.patch_offset as u64);
    let patch = encode_jump(patch_addr, stub_addr).ok_or(Refusal::OutOfReach)?.to_vec();
    Ok(Stub { bytes, original_addr, patch, patch_addr, relocated })
}

#[cfg(test)]
#[path = "relocate_tests.rs"]
mod tests;
