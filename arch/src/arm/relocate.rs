//! Relocation of a function's first instructions, and the stub that a patched function jumps to.

use super::decode::{
    Condition, IfThen, PcUse, State, is_if_then, pc_use_arm, pc_use_thumb, thumb_len,
};
use super::jump::{code_at, encode_jump, near_window, state_at};
use super::regs::THUMB;
use crate::patch::{PatchPlan, Refusal};
pub use crate::patch::{Relocated, Stub, StubParams};
use alloc::vec::Vec;
use core::ops::Range;

/// `r12`, which a call may change on its way (AAPCS32, 6.1.1).
const IP: u32 = 12;
const SP: u32 = 13;
const PC: u32 = 15;
/// The condition that always holds.
const ALWAYS: u32 = 14;

/// An instruction of a function.
#[derive(Copy, Clone)]
pub(super) struct Insn {
    /// The instruction; one of two halves has the first in the upper 16 bits.
    pub word: u32,
    pub len: usize,
    pub pc_use: Option<PcUse>,
}

/// Decodes the instruction `offset` bytes into `code`, which is at `address`.
pub(super) fn decode(code: &[u8], address: u32, state: State, offset: usize) -> Option<Insn> {
    let rest = code.get(offset..)?;
    let pc = address.wrapping_add(offset as u32);
    if state == State::Arm {
        let word = u32::from_le_bytes(*rest.first_chunk()?);
        return Some(Insn { word, len: 4, pc_use: pc_use_arm(word, pc) });
    }
    let half = u16::from_le_bytes(*rest.first_chunk()?);
    let word = match thumb_len(half) {
        2 => half.into(),
        _ => u32::from_le_bytes(*rest.first_chunk()?).rotate_left(16),
    };
    Some(Insn { word, len: thumb_len(half), pc_use: pc_use_thumb(word, pc) })
}

/// Code under construction, and the words that it loads.
struct Block {
    state: State,
    bytes: Vec<u8>,
    /// Each word, and the offset of the instruction that loads it.
    literals: Vec<(u32, usize)>,
}

impl Block {
    /// Appends an instruction; Thumb's of two halves are those with bits above the lower 16.
    fn push(&mut self, insn: u32) {
        match self.state {
            State::Arm => self.bytes.extend_from_slice(&insn.to_le_bytes()),
            State::Thumb if insn >> 16 != 0 => {
                self.bytes.extend_from_slice(&insn.rotate_left(16).to_le_bytes());
            }
            State::Thumb => self.bytes.extend_from_slice(&(insn as u16).to_le_bytes()),
        }
    }

    fn in_state(&mut self, arm: u32, thumb: u32) {
        self.push(if self.state == State::Arm { arm } else { thumb });
    }

    /// Appends `ldr <register>, =value`; into pc, it branches to the value.
    fn load(&mut self, register: u32, value: u32) {
        self.literals.push((value, self.bytes.len()));
        self.in_state(0xe59f_0000 | register << 12, 0xf8df_0000 | register << 12);
    }

    /// Appends a jump to an address in the same state.
    fn jump(&mut self, to: u32) {
        self.load(PC, address_of(to, self.state));
    }

    /// Appends code that uses a register which holds `value` and is not one of `others`; all registers are
    /// then as before.
    fn with(&mut self, value: u32, others: u32, f: impl FnOnce(&mut Self, u32)) {
        let scratch = if others == 0 { 1 } else { 0 };
        self.in_state(0xe52d_0004 | scratch << 12, 0xb400 | 1 << scratch); // push
        self.load(scratch, value);
        f(self, scratch);
        self.in_state(0xe49d_0004 | scratch << 12, 0xbc00 | 1 << scratch); // pop
    }

    /// Appends an instruction of an if-then block so that it needs no block around it.
    fn moved_if(&mut self, insn: Insn, condition: u32) -> Result<(), Refusal> {
        if insn.pc_use.is_none() {
            // It gets a block of its own: outside of any it might set flags.
            self.push(0xbf08 | condition << 4);
            self.push(insn.word);
            return Ok(());
        }
        if condition == ALWAYS {
            return self.moved(insn);
        }
        // A branch on the opposite condition skips it. No moved form sets flags.
        let (branch, pc) = (self.bytes.len(), self.bytes.len().saturating_add(4));
        self.push(0xd000 | (condition ^ 1) << 8);
        self.moved(insn)?;
        let distance = self.bytes.len().saturating_sub(pc) / 2;
        let field = self.bytes.get_mut(branch).filter(|_| distance < 0x80);
        *field.ok_or(Refusal::CannotMove)? = distance as u8;
        Ok(())
    }

    fn moved(&mut self, insn: Insn) -> Result<(), Refusal> {
        match insn.pc_use {
            None => self.push(insn.word),
            Some(PcUse::Branch(to)) => self.jump(to),
            Some(PcUse::Call(to, state)) => {
                self.load(IP, address_of(to, state));
                self.in_state(0xe12f_ff3c, 0x47e0); // blx ip
            }
            Some(PcUse::Conditional(to, when)) => self.jump_if(to, when),
            Some(PcUse::Address(SP, _) | PcUse::Add(SP, _) | PcUse::Other) => {
                return Err(Refusal::CannotMove);
            }
            Some(PcUse::Address(register, value)) => self.load(register, value),
            Some(PcUse::Add(to, value)) => self.with(value, to, |b, from| {
                let thumb = 0x4400 | (to & 8) << 4 | from << 3 | to & 7;
                b.in_state(0xe080_0000 | to << 16 | to << 12 | from, thumb);
            }),
            Some(PcUse::Literal(from)) => self.load_from(insn.word, from)?,
            Some(PcUse::Table(from)) => self.jump_by_table(insn.word, from),
        }
        Ok(())
    }

    /// Appends a `tbb` or `tbh`: a jump as far behind `from` as the table's entry says. No register and no
    /// flag may change, so the target is computed on the stack.
    fn jump_by_table(&mut self, insn: u32, from: u32) {
        let (n, m, wide) = (insn >> 16 & 15, insn & 15, insn >> 4 & 1);
        // Two registers that the instruction does not read.
        let mut free = (0..4).filter(|r| *r != n && *r != m);
        let (base, entry) = (free.next().unwrap_or(0), free.next().unwrap_or(1));
        let both = 1 << base | 1 << entry;
        self.push(0xb480 | both); // push {base, entry, r7}: the last makes room
        let table = if n == PC { base } else { n };
        if n == PC {
            self.load(base, from);
        }
        // ldrb entry, [table, m]; or ldrh entry, [table, m, lsl #1]
        self.push(0xf810_0000 | wide << 21 | table << 16 | entry << 12 | wide << 4 | m);
        self.load(base, address_of(from, State::Thumb));
        self.push(0xeb00_0040 | base << 16 | base << 8 | entry); // add base, base, entry, lsl #1
        self.push(0x9002 | base << 8); // str base, [sp, #8]
        self.push(0xbd00 | both); // pop {base, entry, pc}
    }

    fn jump_if(&mut self, to: u32, when: Condition) {
        /// Distance of a Thumb branch over the four bytes that follow.
        const OVER: u32 = 1;
        match (self.state, when) {
            (State::Arm, Condition::Flags(c)) => {
                self.literals.push((to, self.bytes.len()));
                self.push(0x059f_f000 | c << 28);
                return;
            }
            (_, Condition::Flags(c)) => self.push(0xd000 | (c ^ 1) << 8 | OVER),
            (_, Condition::Zero(register)) => self.push(0xb900 | OVER << 3 | register),
            (_, Condition::NotZero(register)) => self.push(0xb100 | OVER << 3 | register),
        }
        self.jump(to);
    }

    /// Appends the load `insn` from the address `from`.
    fn load_from(&mut self, insn: u32, from: u32) -> Result<(), Refusal> {
        // The load gets another base, and no offset.
        const BASE: u32 = 15 << 16;
        const UP: u32 = 1 << 23;
        if insn >> 16 == 0 {
            let to = insn >> 8 & 7;
            self.load(to, from);
            self.push(0x6800 | to << 3 | to);
            return Ok(());
        }
        if insn >> 25 & 7 == 6 && insn & 0x0f00_0e00 == 0x0d00_0a00 {
            let vector = insn & !(BASE | 0xff) | UP;
            self.with(from, PC, |b, base| b.push(vector | base << 16));
            return Ok(());
        }
        let to = insn >> 12 & 15;
        if to == PC {
            self.in_state(0xe320_f000, 0xbf00); // a preload: a nop does
            return Ok(());
        }
        if to == SP {
            return Err(Refusal::CannotMove);
        }
        let distance = match self.state {
            State::Arm if insn >> 25 & 7 == 0 => 0xf0f, // of halves and pairs
            State::Thumb if insn >> 25 == 0b1110100 => 0xff, // a pair
            _ => 0xfff,
        };
        self.load(to, from);
        self.push(insn & !(BASE | distance) | UP | to << 16);
        Ok(())
    }

    /// Returns the bytes of the code, with the literals behind it.
    fn finish(mut self) -> Result<Vec<u8>, Refusal> {
        if !self.bytes.len().is_multiple_of(4) {
            self.push(0xbf00); // only Thumb code can be that
        }
        if self.state == State::Arm && self.literals.len() == 1 {
            self.push(0xe320_f000); // a nop: pc is two instructions on, and distances are not negative
        }
        let base = if self.state == State::Arm { 8 } else { 4 };
        for &(value, user) in &self.literals {
            let here = user.wrapping_add(base) & !3;
            let distance = self.bytes.len().checked_sub(here).filter(|d| *d < 0x1000);
            let distance = distance.ok_or(Refusal::CannotMove)? as u16;
            // The distance is in the low half of an ARM instruction, and in the second half of a Thumb one.
            let at = if self.state == State::Arm { user } else { user.wrapping_add(2) };
            let field = self.bytes.get_mut(at..).and_then(|b| b.first_chunk_mut::<2>());
            let field = field.ok_or(Refusal::CannotMove)?;
            *field = (u16::from_le_bytes(*field) | distance).to_le_bytes();
            self.bytes.extend_from_slice(&value.to_le_bytes());
        }
        Ok(self.bytes)
    }
}

/// Returns an address as a register holds it: bit 0 says the state.
fn address_of(to: u32, state: State) -> u32 {
    if state == State::Thumb { to | 1 } else { to }
}

/// Relocates the instructions that the first `len` bytes of `code` touch, which is at `address`, to any other
/// address that is a multiple of four. A jump to the instructions that follow is appended.
///
/// If-then blocks are taken apart: each of their instructions has its condition with it, so that a thread can
/// be sent to any of them as if outside of a block.
///
/// # Errors
///
/// [`Refusal::CannotMove`] if one has no equivalent, or depends on its place; [`Refusal::Undecodable`] if
/// `code` is truncated, or one is in an if-then block that can't be there.
pub fn relocate(code: &[u8], address: u32, state: State, len: usize) -> Result<Relocated, Refusal> {
    let mut block = Block { state, bytes: Vec::new(), literals: Vec::new() };
    let (mut at, mut map, mut has_call) = (0_usize, Vec::new(), false);
    let mut if_then = IfThen::default();
    while at < len || if_then.condition().is_some() {
        let insn = decode(code, address, state, at).ok_or(Refusal::Undecodable { at })?;
        map.push((at, block.bytes.len()));
        let begins = state == State::Thumb && is_if_then(insn.word) && insn.pc_use.is_none();
        match (if_then.condition(), insn.pc_use) {
            (Some(_), Some(PcUse::Conditional(..))) => return Err(Refusal::Undecodable { at }),
            (Some(_), _) if begins => return Err(Refusal::Undecodable { at }),
            (Some(condition), _) => block.moved_if(insn, condition)?,
            (None, _) if begins => {}
            (None, _) => block.moved(insn)?,
        }
        if state == State::Thumb {
            if_then = if_then.behind(insn.word);
        }
        has_call |= is_call(insn, state);
        at = at.saturating_add(insn.len);
    }
    // No displaced instruction may branch to another, or read one: these are changed there.
    let inside = |to: u32| to.wrapping_sub(address) < at as u32;
    for &(offset, _) in &map {
        let Some(insn) = decode(code, address, state, offset) else { continue };
        match insn.pc_use {
            Some(
                PcUse::Branch(to)
                | PcUse::Call(to, _)
                | PcUse::Conditional(to, _)
                | PcUse::Literal(to)
                | PcUse::Address(_, to),
            ) if inside(to) => return Err(Refusal::OwnAddress { at: offset }),
            _ => {}
        }
    }
    block.jump(address.wrapping_add(at as u32));
    Ok(Relocated { bytes: block.finish()?, map, has_call })
}

/// Returns the range of addresses for the stub of this function: in reach of the function. The targets of its
/// displaced instructions are reached from anywhere.
///
/// # Errors
///
/// None; other architectures have some.
pub fn stub_window(_plan: &PatchPlan, _code: &[u8], func_addr: u64) -> Result<Range<u64>, Refusal> {
    Ok(near_window(code_at(func_addr)))
}

/// Length of the stub's code before the moved instructions, in bytes: six instructions and three words.
const HEAD_LEN: usize = 36;

/// Builds the stub that a patched function jumps to, in the function's state:
///
/// ```text
///           ldr  ip, =flag_addr
///           ldr  ip, [ip]
///           cmp  ip, #0
///           beq  original
///           ldr  ip, =desc_addr
///           ldr  pc, =entry_addr
///           <literals>
/// original: <moved instructions>
///           ldr  pc, =function + n
///           <literals>
/// ```
///
/// `ip` and the flags are free at a function's entry.
///
/// # Errors
///
/// See [`relocate`].
pub fn build_stub(params: &StubParams<'_>) -> Result<Stub, Refusal> {
    let StubParams { stub_addr, func_addr, plan, code, .. } = *params;
    let (state, patch_addr) = (state_at(func_addr), code_at(func_addr));
    let relocated = relocate(code, patch_addr as u32, state, plan.displaced_len)?;
    if !relocated.map.iter().map(|(at, _)| at).eq(&plan.displaced) {
        return Err(Refusal::Changed);
    }
    let mut head = Block { state, bytes: Vec::new(), literals: Vec::new() };
    head.load(IP, params.flag_addr as u32);
    head.in_state(0xe59c_c000, 0xf8dc_c000); // ldr ip, [ip]
    head.in_state(0xe35c_0000, 0xf1bc_0f00); // cmp ip, #0
    head.in_state(0x0a00_0004, 0xf000_800a); // beq, to 24 bytes on
    head.load(IP, params.desc_addr as u32);
    head.load(PC, params.entry_addr as u32);
    let mut bytes = head.finish()?;
    debug_assert_eq!(bytes.len(), HEAD_LEN);
    bytes.extend_from_slice(&relocated.bytes);
    let bit = func_addr & THUMB;
    let patch = encode_jump(func_addr, stub_addr).ok_or(Refusal::OutOfReach)?.to_vec();
    let original_addr = stub_addr.wrapping_add(HEAD_LEN as u64) | bit;
    Ok(Stub { bytes, original_addr, patch, patch_addr, relocated })
}

/// Returns whether an instruction leaves a return address in the moved code.
fn is_call(insn: Insn, state: State) -> bool {
    let register = match state {
        State::Arm => insn.word & 0x0fff_fff0 == 0x012f_ff30,
        State::Thumb => insn.word & 0xffff_ff87 == 0x4780,
    };
    register || matches!(insn.pc_use, Some(PcUse::Call(..)))
}

#[cfg(test)]
#[path = "relocate_tests.rs"]
mod tests;
