//! Analysis of functions: whether one can be patched at its entry, which instructions the patch displaces,
//! and where code leads. Addresses of functions have bit 0 set if they are Thumb code.

use super::decode::IfThen;
pub use super::decode::{PcUse, State, pc_use_arm, pc_use_thumb, thumb_len};
use super::jump::{PATCH_LEN, code_at, state_at};
use super::prologue::{compared, table};
use super::regs::THUMB;
use super::relocate::{Insn, decode};
pub use crate::generic::insn::{
    argument_is_forgotten, called_slots, find_calls, find_reference_by_table, rule_by_code,
};
pub use crate::patch::{PatchPlan, Probed, Refusal};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Range;

/// An instruction and its position.
#[derive(Copy, Clone)]
struct Decoded {
    /// Offset in the code.
    at: usize,
    insn: Insn,
    /// Whether execution never continues behind it.
    ends: bool,
    /// Whether the if-then block that it begins, or is in, continues behind it.
    open: bool,
}

/// Iterator over the instructions of code in one state. It skips the data among them that they load.
struct Sweep<'a> {
    code: &'a [u8],
    address: u32,
    state: State,
    at: usize,
    /// Addresses of words that instructions before have loaded.
    data: BTreeSet<u32>,
    block: IfThen,
    /// Register and number of the last comparison with a number.
    compared: Option<(u32, u32)>,
    /// Furthest offset that a table of `tbb` or `tbh` leads to.
    furthest: usize,
}

impl<'a> Sweep<'a> {
    fn new(code: &'a [u8], addr: u64) -> Self {
        let (address, state) = (code_at(addr) as u32, state_at(addr));
        let (data, block) = (BTreeSet::new(), IfThen::default());
        Sweep { code, address, state, at: 0, data, block, compared: None, furthest: 0 }
    }

    /// Skips the table of the jump `insn`, which ends here, if the table is right behind it.
    fn pass_table(&mut self, insn: u32) -> Option<()> {
        if insn >> 16 & 15 != 15 {
            return Some(());
        }
        let mut fetch = |at: u64| half(self.code, at as usize);
        let places = table(insn, self.at as u64, self.compared, &mut fetch)?;
        self.at = places.start as usize;
        self.furthest = self.furthest.max(places.end as usize);
        Some(())
    }
}

impl Iterator for Sweep<'_> {
    type Item = Decoded;

    fn next(&mut self) -> Option<Self::Item> {
        while self.data.contains(&self.address.wrapping_add(self.at as u32)) {
            self.at = self.at.checked_add(4)?;
        }
        let (at, insn) = (self.at, decode(self.code, self.address, self.state, self.at)?);
        self.at = at.checked_add(insn.len)?;
        match insn.pc_use {
            Some(PcUse::Literal(from)) => {
                self.data.insert(from);
                if is_double(insn.word, self.state) {
                    self.data.insert(from.wrapping_add(4));
                }
            }
            // If the table is truncated, there is no next instruction.
            Some(PcUse::Table(_)) if self.pass_table(insn.word).is_none() => {
                self.at = self.code.len();
            }
            _ => {}
        }
        let always = self.block.condition().is_none();
        if self.state == State::Thumb {
            self.block = self.block.behind(insn.word);
            self.compared = compared(insn.word).or(self.compared);
        }
        let open = self.block.condition().is_some();
        Some(Decoded { at, insn, ends: always && is_terminator(insn, self.state), open })
    }
}

/// Returns whether a load of a literal takes 8 bytes: `ldrd`, `vldr` of a double.
fn is_double(word: u32, state: State) -> bool {
    let pair = match state {
        State::Arm => word & 0x0e10_00f0 == 0x0000_00d0,
        State::Thumb => word & 0xfe5f_0000 == 0xe85f_0000 || word & 0xff7f_0000 == 0xe95f_0000,
    };
    pair || word & 0x0f3f_0f00 == 0x0d1f_0b00
}

/// Returns whether execution never continues behind this instruction.
fn is_terminator(insn: Insn, state: State) -> bool {
    if matches!(insn.pc_use, Some(PcUse::Branch(_))) {
        return true;
    }
    let word = insn.word;
    match state {
        State::Arm => {
            word & 0xffff_fff0 == 0xe12f_ff10 // bx
                || word & 0xfe10_8000 == 0xe810_8000 // ldm with pc
                || word & 0xfc10_f000 == 0xe410_f000 // ldr pc
                || word & 0xfdf0_f000 == 0xe1a0_f000 // mov pc
                || word & 0xfff0_00f0 == 0xe7f0_00f0 // udf
        }
        State::Thumb if insn.len == 2 => {
            word & 0xff87 == 0x4700 // bx
                || word & 0xff87 == 0x4687 // mov pc
                || word >> 8 == 0xbd // pop with pc
                || word >> 8 == 0xde // udf
        }
        State::Thumb => {
            word & 0xffd0_8000 == 0xe890_8000 // ldm with pc
                || word & 0xff70_f000 == 0xf850_f000 // ldr pc
                || word & 0xfff0_ffe0 == 0xe8d0_f000 // tbb, tbh
                || word & 0xfff0_f000 == 0xf7f0_a000 // udf
        }
    }
}

/// Returns all instructions of the function, and its length. If its size is unknown it ends at the first
/// instruction that execution does not continue behind, and that no branch before it jumps over.
fn instructions(
    code: &[u8],
    func_addr: u64,
    size: Option<u64>,
) -> Result<(Vec<Decoded>, usize), Refusal> {
    let body = match size {
        Some(need) if need > code.len() as u64 => {
            return Err(Refusal::Incomplete { have: code.len(), need });
        }
        Some(size) => code.get(..size as usize).unwrap_or(code),
        None => code,
    };
    let start = code_at(func_addr) as u32;
    let (mut list, mut furthest) = (Vec::new(), 0);
    let mut sweep = Sweep::new(body, func_addr);
    while let Some(place) = sweep.next() {
        list.push(place);
        if let Some(PcUse::Branch(to) | PcUse::Conditional(to, _)) = place.insn.pc_use {
            let offset = to.wrapping_sub(start) as usize;
            // A branch beyond all known code leaves the function.
            if offset < body.len() {
                furthest = furthest.max(offset);
            }
        }
        if size.is_none() && place.ends && furthest.max(sweep.furthest) <= place.at {
            return Ok((list, sweep.at.min(body.len())));
        }
    }
    Ok((list, body.len()))
}

/// Returns the effect of a uprobe that is put at the entry of a patched function: its breakpoint replaces the
/// patch, which is one instruction of ARM code, so that calls go past the hook. Thumb code has no uprobes.
#[must_use]
pub fn uprobe(_patch_offset: u64, _before: &[u8], addr: u64) -> Probed {
    if state_at(addr) == State::Arm { Probed::Hides } else { Probed::Passes }
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

/// Plans as [`plan_patch`] does, which leaves nothing in front of the patch.
///
/// # Errors
///
/// See [`Refusal`].
pub fn plan_at_entry(
    code: &[u8],
    func_addr: u64,
    func_size: Option<u64>,
) -> Result<PatchPlan, Refusal> {
    plan_patch(code, func_addr, func_size)
}

/// Plans the patch of the function with the bytes `code`, from its start.
///
/// `func_size` is the size that its symbol (or its unwind table) gives; then `code` must have all of it.
/// `None` or `Some(0)`: unknown.
///
/// # Errors
///
/// See [`Refusal`].
pub fn plan_patch(
    code: &[u8],
    func_addr: u64,
    func_size: Option<u64>,
) -> Result<PatchPlan, Refusal> {
    if state_at(func_addr) == State::Arm && func_addr & 3 != 0 {
        return Err(Refusal::Undecodable { at: 0 });
    }
    let (list, len) = instructions(code, func_addr, func_size.filter(|&size| size > 0))?;
    let mut plan = PatchPlan::at(0, PATCH_LEN);
    let mut in_block = false;
    for &Decoded { at, insn, ends, open } in &list {
        if !in_block && (plan.displaced_len >= PATCH_LEN || plan.terminated) {
            break;
        }
        if at != plan.displaced_len {
            return Err(Refusal::OwnAddress { at: 0 }); // it loads what stands right behind it
        }
        if insn.word == 0 {
            return Err(Refusal::Undecodable { at });
        }
        plan.displaced.push(at);
        plan.displaced_len = at.saturating_add(insn.len);
        plan.terminated = ends;
        in_block = open;
    }
    if in_block {
        return Err(Refusal::Undecodable { at: plan.displaced_len }); // the function ends before
    }
    if plan.displaced_len < PATCH_LEN {
        let rest = code.get(plan.displaced_len..PATCH_LEN).unwrap_or(&[]);
        if !plan.terminated || !is_padding(rest) {
            return Err(Refusal::TooShort);
        }
    }
    let body = code.get(..len).unwrap_or(code);
    let halves = by_halves(body, func_addr, plan.displaced_len);
    check(&plan, list.iter().chain(&halves), code_at(func_addr) as u32)?;
    Ok(plan)
}

/// Returns all that may be instructions behind the displaced ones, one at each half, if the function has
/// jumps by tables: where those tables end is not known for certain.
fn by_halves(body: &[u8], func_addr: u64, from: usize) -> Vec<Decoded> {
    if state_at(func_addr) == State::Arm {
        return Vec::new();
    }
    let address = code_at(func_addr) as u32;
    let at_half = |at| Some((at, decode(body, address, State::Thumb, at)?));
    let all = || (0..body.len()).step_by(2).filter_map(at_half);
    if !all().any(|(_, insn)| matches!(insn.pc_use, Some(PcUse::Table(_)))) {
        return Vec::new();
    }
    let place = |(at, insn)| Decoded { at, insn, ends: false, open: false };
    all().filter(|(at, _)| *at >= from).map(place).collect()
}

/// Returns whether one half of a word between two functions is padding.
fn is_padding(half: &[u8]) -> bool {
    [&[0x00, 0xbf][..], &[0xc0, 0x46], &[0, 0]].contains(&half)
}

/// Checks that no branch of the function leads into the patch, or makes the hook see one call twice.
fn check<'a>(
    plan: &PatchPlan,
    places: impl Iterator<Item = &'a Decoded>,
    start: u32,
) -> Result<(), Refusal> {
    for &Decoded { at: from, insn, .. } in places {
        match insn.pc_use {
            Some(PcUse::Branch(to) | PcUse::Conditional(to, _)) if to == start => {
                return Err(Refusal::BranchToEntry { from });
            }
            Some(PcUse::Branch(to) | PcUse::Conditional(to, _))
                if (to.wrapping_sub(start) as usize) < plan.displaced_len =>
            {
                return Err(Refusal::BranchIntoPatch { from });
            }
            Some(PcUse::Other) if from < plan.displaced_len => {
                return Err(Refusal::OwnAddress { at: from });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the little-endian half at an offset.
fn half(code: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*code.get(at..)?.first_chunk()?))
}

/// Returns the little-endian word at an offset.
fn word(code: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*code.get(at..)?.first_chunk()?))
}

/// Returns the address of the first instructions in `code`, which is at `code_addr` and may be of both
/// states, that form the address `target` relative to their own: a load of a literal, and an `add` of the
/// program counter not far behind.
#[must_use]
pub fn find_reference(code: &[u8], code_addr: u64, target: u64) -> Option<u64> {
    /// Maximum distance in instructions: compilers put others between the two.
    const NEAR: usize = 64;
    let (base, target) = (code_addr as u32, target as u32);
    let half = |at: usize| half(code, at).map(u32::from);
    (0..code.len()).step_by(2).find_map(|at| {
        let pc = base.wrapping_add(at as u32);
        let (register, from, thumb) = match half(at)? {
            ldr @ 0x4800..=0x4fff => {
                let from = (pc.wrapping_add(4) & !3).wrapping_add((ldr & 0xff) << 2);
                (ldr >> 8 & 7, from, true)
            }
            0xf8df => {
                let ldr = half(at.checked_add(2)?)?;
                (ldr >> 12, (pc.wrapping_add(4) & !3).wrapping_add(ldr & 0xfff), true)
            }
            _ => {
                let ldr =
                    word(code, at).filter(|w| w & 0xffff_0000 == 0xe59f_0000 && pc & 3 == 0)?;
                (ldr >> 12 & 15, pc.wrapping_add(8).wrapping_add(ldr & 0xfff), false)
            }
        };
        let value = word(code, from.wrapping_sub(base) as usize)?;
        let ahead = if thumb { 4 } else { 8 };
        // Place at which the program counter must be added.
        let add_at = target.wrapping_sub(value).wrapping_sub(ahead);
        let away = add_at.wrapping_sub(pc) as usize;
        if away == 0 || away > NEAR {
            return None;
        }
        let there = at.checked_add(away)?;
        let adds = match thumb {
            true => half(there)? == 0x4478 | (register & 8) << 4 | register & 7,
            false => word(code, there)? == 0xe08f_0000 | register << 12 | register,
        };
        adds.then_some(u64::from(add_at))
    })
}

/// Returns whether `code`, which may be of both states, makes the constant `target` by a `movw` and a `movt`
/// not far behind (ARM ARM, A8.8.102 and A8.8.106).
#[must_use]
pub fn moves(code: &[u8], target: u64) -> bool {
    /// Maximum distance in instructions: compilers put others between the two.
    const NEAR: usize = 64;
    let Ok(target) = u32::try_from(target) else { return false };
    // Returns which half of a constant goes to which register, and its value.
    let part = |at: usize| {
        let arm = word(code, at).filter(|w| at & 3 == 0 && w & 0xffb0_0000 == 0xe300_0000);
        if let Some(w) = arm {
            return Some((w >> 22 & 1, w >> 12 & 15, w >> 4 & 0xf000 | w & 0xfff));
        }
        let [a, b] = [half(code, at)?, half(code, at.checked_add(2)?)?].map(u32::from);
        let value = (a & 15) << 12 | (a >> 10 & 1) << 11 | (b >> 12 & 7) << 8 | b & 0xff;
        (a & 0xfb70 == 0xf240 && b >> 15 == 0).then_some((a >> 7 & 1, b >> 8 & 15, value))
    };
    (0..code.len()).step_by(2).any(|at| {
        let Some((0, register, low)) = part(at) else { return false };
        let high = |at| part(at) == Some((1, register, target >> 16));
        low == target & 0xffff && (at..code.len()).step_by(2).take(NEAR).any(high)
    })
}

/// Returns the function of Thumb code that `at` is in, where no table knows it: from where the last frame
/// before is made (`push {..., lr}`) to where the next is, or to literals that look like that. The return
/// addresses of its calls are in between, and no others.
#[must_use]
pub fn function_around(code: &[u8], code_addr: u64, at: u64) -> Option<Range<u64>> {
    const LR: u16 = 1 << 14;
    let halves: Vec<u16> = code.as_chunks().0.iter().map(|h| u16::from_le_bytes(*h)).collect();
    let here = usize::try_from(at.checked_sub(code_addr)? / 2).ok()?;
    let makes = |n: &usize| match halves[*n] {
        0xb500..=0xb5ff => true,
        0xe92d => halves.get(n + 1).is_some_and(|list| list & LR != 0),
        _ => false,
    };
    let from = (0..halves.len().min(here)).rev().find(makes)?;
    let to = (here + 1..halves.len()).find(makes).unwrap_or(halves.len());
    let place = |n: usize| code_addr.wrapping_add(n as u64 * 2);
    Some(place(from)..place(to))
}

/// Returns the targets of direct calls and jumps in `code`, the function at `code_addr`, that are outside of
/// it.
#[must_use]
pub fn calls(code: &[u8], code_addr: u64) -> Vec<u64> {
    let start = code_at(code_addr) as u32;
    let inside = |to: u32| (to.wrapping_sub(start) as usize) < code.len();
    let bit = |state: State| if state == State::Thumb { THUMB } else { 0 };
    Sweep::new(code, code_addr)
        .filter_map(|place| match place.insn.pc_use {
            Some(PcUse::Branch(to)) if !inside(to) => Some(u64::from(to) | code_addr & THUMB),
            Some(PcUse::Call(to, state)) if !inside(to) => Some(u64::from(to) | bit(state)),
            _ => None,
        })
        .collect()
}

/// Returns the address of the word that `code`, which is at `code_addr`, jumps through, if it is a stub of a
/// linkage table: `add ip, pc, #..; add ip, ip, #..; ldr pc, [ip, #..]!`, with or without a change to ARM
/// code before.
#[must_use]
pub fn indirect_jump(code: &[u8], code_addr: u64) -> Option<u64> {
    const BX_PC: [u8; 2] = [0x78, 0x47];
    let mut at = 0_usize;
    if state_at(code_addr) == State::Thumb {
        if !code.starts_with(&BX_PC) {
            return None;
        }
        at = 4;
    }
    let mut ip = (code_at(code_addr) as u32).wrapping_add(at as u32).wrapping_add(8);
    let first = word(code, at)?;
    if first & 0xffff_f000 != 0xe28f_c000 {
        return None;
    }
    for n in 0..4_usize {
        let insn = word(code, at)?;
        let immediate = (insn & 0xff).rotate_right(insn >> 7 & 30);
        match insn & 0xffff_f000 {
            0xe28f_c000 if n == 0 => ip = ip.wrapping_add(immediate),
            0xe28c_c000 if n > 0 => ip = ip.wrapping_add(immediate),
            0xe5bc_f000 | 0xe59c_f000 => return Some(ip.wrapping_add(insn & 0xfff).into()),
            _ => return None,
        }
        at = at.checked_add(4)?;
    }
    None
}

#[cfg(test)]
#[path = "insn_tests.rs"]
mod tests;
