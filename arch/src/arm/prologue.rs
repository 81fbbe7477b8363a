//! Unwind rules for calls in Thumb code without unwind tables, from the instructions before them.
//!
//! At a function's start compilers make `push {..., lr}`, before it `push {r1, r2, r3}` if the function takes
//! any number of arguments, behind it `sub sp, #n` and `vpush`, and `add r7, sp, #n` if the function moves
//! the stack pointer again; at its end the opposite. Other instructions stand between those. Code that is not
//! understood gives [`Rule::UNKNOWN`].
//!
//! Only calls are examined: a caller has saved its return address. For interrupted instructions, and for code
//! in the ARM state, see [`follow`].

use super::decode::{PcUse, pc_use_thumb};
use super::effect::{Effect, Fetch, bytes, effect, instruction, is_first, leaves};
use super::follow;
use super::regs::Rule;
use super::regs::{LR, R7};
use crate::generic::rule::Form;
use core::ops::Range;

/// Maximum number of bytes of code that are examined.
const MOST: u64 = 16 << 10;
/// Bytes of code that are read at a time.
const PIECE: u64 = 256;
/// Maximum number of branches whose targets are still ahead, and of words of data that are.
const AHEAD: usize = 32;
/// Maximum number of places that are tried as a function's start.
const TRIES: u32 = 4;
/// Maximum distance from where arguments are saved to where the return address is, in bytes.
const ARGUMENTS: u64 = 16;
/// `push {...}` with `lr`.
const PUSH_LR: u32 = 0xb500;
/// Registers of arguments, as bits of a list.
const ARGUMENT_REGISTERS: u32 = 15;

/// Frame at one instruction, as the instructions before it have made it. Offsets are from the stack pointer
/// at the function's start, which is the CFA.
#[derive(Copy, Clone, PartialEq, Eq)]
struct Frame {
    /// Stack pointer; `None`: unknown.
    sp: Option<i32>,
    /// `r7`, if it was set from the stack pointer.
    fp: Option<i32>,
    ra_slot: Option<i32>,
    fp_slot: Option<i32>,
}

impl Frame {
    const ENTRY: Frame = Frame { sp: Some(0), fp: None, ra_slot: None, fp_slot: None };

    fn apply(&mut self, effect: Effect) {
        let above = |base: Option<i32>, n: i32| base.and_then(|base| base.checked_add(n));
        match effect {
            Effect::None => {}
            Effect::AddSp(n) => self.sp = above(self.sp, n),
            Effect::LoseSp => self.sp = None,
            Effect::FpFromSp(n) => self.fp = above(self.sp, n),
            Effect::AddFp(n) => self.fp = above(self.fp, n),
            Effect::SpFromFp => self.sp = self.fp,
            Effect::LoseFp => self.fp = None,
            Effect::Push(list, by) => {
                self.sp = above(self.sp, by.wrapping_neg());
                // The register with the lowest number is stored lowest.
                let below = |register: u16| list & (1_u32 << register).wrapping_sub(1);
                let slot = |register: u16| {
                    let is_there = list >> register & 1 == 1;
                    above(self.sp.filter(|_| is_there), bytes(below(register)))
                };
                // A register that is saved later no longer holds the caller's value.
                let (ra, fp) = (slot(LR), slot(R7));
                self.ra_slot = self.ra_slot.or(ra);
                self.fp_slot = self.fp_slot.or(fp);
            }
            Effect::Pop(list, by) => {
                self.sp = above(self.sp, by);
                if list >> LR & 1 == 1 {
                    self.ra_slot = None;
                }
                if list >> R7 & 1 == 1 {
                    (self.fp, self.fp_slot) = (None, None);
                }
            }
        }
    }

    /// Returns whether the frame saves the return address and at least what `other` saves, with a stack
    /// pointer that is at least as low.
    fn has_all_of(&self, other: &Frame) -> bool {
        let less = |a: Option<i32>, b: Option<i32>| a.is_none() && b.is_some();
        let deep = match (self.sp, other.sp) {
            (Some(this), Some(that)) => this <= that,
            (Some(_), None) => false,
            (None, Some(_)) => self.fp.is_some(),
            (None, None) => self.fp.is_some() && self.fp <= other.fp,
        };
        let whole = !less(self.fp_slot, other.fp_slot) && !less(self.fp, other.fp);
        self.ra_slot.is_some() && deep && whole
    }

    fn rule(&self) -> Rule {
        let Frame { sp, fp, ra_slot, fp_slot } = *self;
        let Some(ra_slot) = ra_slot else { return Rule::UNKNOWN };
        match (sp, fp) {
            (Some(sp), _) => {
                Rule::from_form(Form::CfaSp { cfa_off: sp.wrapping_neg(), ra_slot, fp_slot })
            }
            (None, Some(fp)) => {
                Rule::from_form(Form::CfaFp { cfa_off: fp.wrapping_neg(), ra_slot, fp_slot })
            }
            (None, None) => Rule::UNKNOWN,
        }
    }
}

/// Walk through a function's instructions, in the order of their addresses.
struct Walk {
    /// Frame that the instructions so far have made; `None` behind the end of a path.
    frame: Option<Frame>,
    /// The most complete frame so far, for code that only later instructions lead to.
    body: Frame,
    /// Targets of branches, and the frame there.
    ahead: [Option<(u64, Frame)>; AHEAD],
    /// Words among the instructions that are data, as loads of literals show.
    data: [u64; AHEAD],
    /// Instructions left of an if-then block.
    conditional: u32,
    /// Register and number of the last comparison with a number.
    compared: Option<(u32, u32)>,
    /// Address that may be an instruction's; `None` once it was found to be data.
    doubt: Option<u64>,
}

impl Walk {
    /// Notes that a branch leads to `target`, where the frame is the same as here.
    fn note(&mut self, target: u64, frame: Frame) {
        if let Some(free) = self.ahead.iter_mut().find(|slot| slot.is_none()) {
            *free = Some((target, frame));
        }
    }

    fn note_data(&mut self, here: u64, at: u64) {
        if at > here && !self.data.contains(&at) {
            // The place of a word that has been passed is free.
            if let Some(free) = self.data.iter_mut().find(|word| **word < here) {
                *free = at;
            }
        }
    }

    /// Returns the frame at `at`, to which either the instruction before or branches lead.
    fn arrive(&mut self, at: u64) -> Frame {
        let noted = self.ahead.iter().flatten().find(|(target, _)| *target == at);
        // Branches come first: the instruction before may be a call that does not return.
        let frame = noted.map(|(_, frame)| *frame).or(self.frame).unwrap_or(self.body);
        for slot in &mut self.ahead {
            if slot.is_some_and(|(target, _)| target <= at) {
                *slot = None;
            }
        }
        self.frame = Some(frame);
        frame
    }

    /// Executes the instruction at `here`; returns the address of the next one.
    fn step(&mut self, here: u64, fetch: &mut Fetch<'_>) -> Option<u64> {
        if self.data.contains(&here) {
            return self.over_data(here, here.checked_add(4)?);
        }
        let (insn, len) = instruction(here, fetch)?;
        let next = here.checked_add(len)?;
        let mut frame = self.arrive(here);
        let conditional = self.conditional > 0;
        self.conditional = self.conditional.saturating_sub(1);
        if insn >> 8 == 0xbf && insn & 15 != 0 {
            self.conditional = 4_u32.wrapping_sub(insn.trailing_zeros());
        }
        self.compared = compared(insn).or(self.compared);
        let effect = effect(insn);
        if matches!(effect, Effect::Push(list, _) if list >> LR & 1 == 1) && frame.ra_slot.is_some()
        {
            return None; // another function
        }
        // An instruction under a condition ends the path, or changes nothing that matters.
        if !conditional {
            frame.apply(effect);
        }
        self.frame = Some(frame);
        if frame.has_all_of(&self.body) {
            self.body = frame;
        }
        let to = |target: u32| u64::from(target);
        match pc_use_thumb(insn, here as u32) {
            Some(PcUse::Branch(target)) => {
                self.note(to(target), frame);
                self.end(conditional);
            }
            Some(PcUse::Conditional(target, _)) => self.note(to(target), frame),
            Some(PcUse::Literal(at)) => {
                self.note_data(here, to(at));
                // ldrd, and vldr of a double, load two words.
                let double =
                    insn >> 25 == 0b111_0100 || insn >> 25 == 0b111_0110 && insn & 0x100 != 0;
                if double {
                    self.note_data(here, to(at).wrapping_add(4));
                }
            }
            _ if insn & 0xfff0_ffe0 == 0xe8d0_f000 => {
                self.end(conditional);
                return self.over_data(next, table(insn, next, self.compared, fetch)?.start);
            }
            _ if leaves(insn) => self.end(conditional),
            _ => {}
        }
        Some(next)
    }

    fn over_data(&mut self, from: u64, to: u64) -> Option<u64> {
        self.doubt = self.doubt.filter(|at| !(from..to).contains(at));
        Some(to)
    }

    fn end(&mut self, conditional: bool) {
        if !conditional {
            self.frame = None;
        }
    }
}

/// Returns the register that `cmp` compares with a number, and the number.
pub(super) fn compared(insn: u32) -> Option<(u32, u32)> {
    let register = match insn {
        _ if insn >> 11 == 0b00101 => insn >> 8 & 7,
        _ if insn & 0xfff0_ff00 == 0xf1b0_0f00 => insn >> 16 & 15,
        _ => return None,
    };
    Some((register, insn & 0xff))
}

/// Returns where the jump by the table of `tbb` or `tbh` leads: from where the code continues behind the
/// table to behind the last target. The table ends where the comparison `limit` says, if that is of its
/// register, and at its first target.
pub(super) fn table(
    insn: u32,
    table: u64,
    limit: Option<(u32, u32)>,
    fetch: &mut Fetch<'_>,
) -> Option<Range<u64>> {
    let len = if insn >> 4 & 1 == 1 { 2 } else { 1 };
    let limit = limit.filter(|(register, _)| *register == insn & 15);
    let entries = limit.map_or(u64::MAX, |(_, last)| u64::from(last).saturating_add(1));
    let end = table.saturating_add(entries.saturating_mul(len)).checked_next_multiple_of(2);
    let (mut at, mut places) = (table, end.unwrap_or(u64::MAX)..0);
    while at < places.start {
        let half = fetch(at & !1)?;
        let entry = match (len, at & 1) {
            (2, _) => half,
            (_, 0) => half & 0xff,
            _ => half >> 8,
        };
        let (place, next) = (table.checked_add(u64::from(entry) << 1)?, at.checked_add(len)?);
        if place < next {
            places.start = at.checked_next_multiple_of(2)?; // what fills up a table, or follows it
            break;
        }
        places = places.start.min(place)..places.end.max(place.checked_add(2)?);
        at = next;
    }
    Some(places)
}

/// Returns the rule for the call at `at`, of a function that starts at `start`, if `doubt` is the address of
/// data.
fn walk(start: u64, at: u64, doubt: Option<u64>, fetch: &mut Fetch<'_>) -> Option<Rule> {
    let mut walk = Walk {
        frame: Some(Frame::ENTRY),
        body: Frame::ENTRY,
        ahead: [None; AHEAD],
        data: [0; AHEAD],
        conditional: 0,
        compared: None,
        doubt,
    };
    let mut here = start;
    while here < at {
        here = walk.step(here, fetch)?;
    }
    (here == at && walk.doubt.is_none()).then(|| walk.arrive(at).rule())
}

/// Returns whether an instruction begins at `at`, given that one does a little later: right before it, halves
/// that can only be the first of two come in pairs.
fn begins(at: u64, fetch: &mut Fetch<'_>) -> bool {
    let mut first = 0_u32;
    let mut here = at;
    while first < 64 {
        here = here.wrapping_sub(2);
        match fetch(here) {
            Some(half) if is_first(half) => first = first.wrapping_add(1),
            _ => break,
        }
    }
    first.is_multiple_of(2)
}

/// Returns whether the instruction at `at` saves the return address.
fn saves_return(at: u64, fetch: &mut Fetch<'_>) -> bool {
    let Some(half) = fetch(at) else { return false };
    let is_push = u32::from(half) & 0xff00 == PUSH_LR || half == 0xe92d || half == 0xf84d;
    let Some((insn, _)) = instruction(at, fetch).filter(|_| is_push) else { return false };
    matches!(effect(insn), Effect::Push(list, _) if list >> LR & 1 == 1) && begins(at, fetch)
}

/// Returns the start of the function that saves its return address at `push`: there, or where it saves
/// arguments right before.
fn start(push: u64, fetch: &mut Fetch<'_>) -> u64 {
    let mut here = push;
    while push.wrapping_sub(here) < ARGUMENTS {
        here = here.wrapping_sub(2);
        let Some(half) = fetch(here) else { break };
        if !begins(here, fetch) {
            continue;
        }
        let Some((insn, _)) = instruction(here, fetch) else { break };
        match effect(insn) {
            Effect::Push(list, _) if list & !ARGUMENT_REGISTERS == 0 && half >> 8 == 0xb4 => {
                return here;
            }
            // Room for arguments that are stored later.
            Effect::AddSp(-16..0) if here.wrapping_add(2) == push => return here,
            Effect::None if !leaves(insn) => {}
            _ => break,
        }
        if matches!(pc_use_thumb(insn, here as u32), Some(PcUse::Branch(_) | PcUse::Call(..))) {
            break;
        }
    }
    push
}

/// Returns the address of the call that returns to `pc`, in Thumb code.
fn call_before(pc: u64, fetch: &mut Fetch<'_>) -> Option<u64> {
    let (wide, narrow) = (pc.wrapping_sub(4), pc.wrapping_sub(2));
    let (first, second) = (u32::from(fetch(wide)?), u32::from(fetch(narrow)?));
    let direct = first & 0xf800 == 0xf000 && second & 0xc000 == 0xc000;
    if direct && (second & 0x1000 != 0 || second & 1 == 0) {
        return Some(wide);
    }
    (second & 0xff87 == 0x4780).then_some(narrow)
}

/// Returns the rule for the return address `pc`; `fetch` reads code.
pub(super) fn before_in(pc: u64, fetch: &mut Fetch<'_>) -> Option<Rule> {
    let call = call_before(pc, fetch)?;
    let (mut here, mut tries) = (call, 0_u32);
    let (mut found, mut doubt) = (None, None);
    // Data may look like the start of a function; the walk from the real start skips it.
    while call.wrapping_sub(here) < MOST && tries < TRIES {
        here = here.wrapping_sub(2);
        if fetch(here).is_none() {
            break;
        }
        if saves_return(here, fetch) {
            let start = start(here, fetch);
            if let Some(rule) = walk(start, call, doubt, fetch) {
                (found, doubt) = (Some(rule), Some(here));
            }
            tries = tries.wrapping_add(1);
        }
    }
    found
}

/// Returns the rule for the return address `pc`, or, if that is odd, for the interrupted instruction at `pc -
/// 1`, in the state `thumb` if that is known. `read` reads code of this process. Returns `None` if the rule
/// is uncertain.
pub fn before(
    pc: u64,
    thumb: Option<bool>,
    read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
) -> Option<Rule> {
    let (mut piece, mut from) = ([0; PIECE as usize], None);
    // Code is read in pieces of pages, so that nothing unmapped is read, and in few calls.
    let mut fetch = |at: u64| {
        let base = at & !(PIECE - 1);
        if from != Some(base) {
            from = None;
            read(base, &mut piece).then_some(())?;
            from = Some(base);
        }
        let offset = usize::try_from(at.wrapping_sub(base)).ok()?;
        Some(u16::from_le_bytes(*piece.get(offset..)?.first_chunk()?))
    };
    let rule = match pc & 1 {
        0 => follow::from_call(pc, &mut fetch).or_else(|| before_in(pc, &mut fetch)),
        _ => follow::from(pc.wrapping_sub(1), thumb, &mut fetch),
    };
    rule.filter(|rule| *rule != Rule::UNKNOWN)
}

#[cfg(test)]
#[path = "prologue_tests.rs"]
mod tests;
