//! Unwind rules for code without call frame information, from its instructions.
//!
//! At a function's start compilers make `daddiu $sp, $sp, -N`, then `sd $ra, n($sp)` and `sd $fp, n($sp)`,
//! and `move $fp, $sp` if the function moves `$sp` again; at its end the opposite. Most functions have no
//! frame pointer: `$fp` is then a general register, and may well hold an address within the frame (see
//! [`Walk::keep_fp`]). Other instructions stand between those. Assembly code may do as it likes: code that is
//! not understood gives [`Rule::UNKNOWN`].

use super::decode::{
    PcUse, Slot, compact_register_jump, field, is_terminator, pc_use, register_jump, slot,
};
use super::regs::Rule;
use super::regs::{FP, RA, SP};
use super::variant::{NOP, Order, Variant};
use crate::generic::rule::Form;
use core::ops::Range;

/// Maximum number of instructions that are examined: the longest functions, interpreters' loops, have some
/// ten thousand.
const MOST: usize = 1 << 16;

/// `move $ra, $zero`, in its two forms.
const NO_RETURN: [u32; 2] = [0x0000_f825, 0x0000_f82d];

/// Bytes of code that are read at a time.
const PIECE: u64 = 256;

/// Maximum number of times that a function makes more room.
const INNER: usize = 8;

/// Maximum number of instructions between the first and the last of the steps that make a frame.
const STEPS: u64 = 32;

/// Number of instructions in which a function makes the address of its data.
const SOON: u64 = 10;

/// Number of instructions before and behind one that are examined for what belongs to it.
const NEAR: u64 = 6;

/// Maximum number of instructions of a loop.
const LOOP: u64 = 256;

/// Maximum number of branches whose targets are still ahead.
const AHEAD: usize = 16;

/// Effect of an instruction on the frame.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Effect {
    None,
    /// Moves `$sp` by this many bytes.
    AddSp(i32),
    /// Gives `$sp` an unknown value.
    LoseSp,
    /// Sets `$fp` to this many bytes above `$sp`.
    FpFromSp(i32),
    /// Sets `$sp` to this many bytes above `$fp`.
    SpFromFp(i32),
    /// Gives `$fp` another value.
    LoseFp,
    /// Saves a register, at an offset from another.
    Save {
        register: u32,
        base: u32,
        offset: i32,
    },
    /// Loads a register from memory.
    Load {
        register: u32,
        base: u32,
        offset: i32,
    },
}

const SP_N: u32 = SP as u32;
const FP_N: u32 = FP as u32;
const RA_N: u32 = RA as u32;
/// `$t9`: by the ABI it holds the address of a function when that is called.
const T9_N: u32 = 25;
/// Register in which lazy binding's stubs keep the return address, as their call of the linker overwrites
/// `$ra`.
const KEPT_RA: u32 = 15;

/// Returns the register that an instruction writes, for those with three registers or two and a number, and
/// for loads.
fn written(insn: u32) -> Option<u32> {
    match insn >> 26 {
        // Shifts, moves, arithmetic; not jumps, traps, system calls, multiplications.
        0 => match insn & 0x3f {
            0x00..=0x07 | 0x0a | 0x0b | 0x10 | 0x12 | 0x14..=0x17 | 0x20..=0x2f | 0x38..=0x3f => {
                Some(field(insn, 11))
            }
            _ => None,
        },
        0x08..=0x0f | 0x18..=0x1b | 0x20..=0x27 | 0x30 | 0x34 | 0x37 => Some(field(insn, 16)),
        _ => None,
    }
}

fn effect(insn: u32) -> Effect {
    let (rs, rt) = (field(insn, 21), field(insn, 16));
    let number = i32::from(insn as u16 as i16);
    let (opcode, to) = (insn >> 26, written(insn));
    let saved = [RA_N, FP_N, KEPT_RA].contains(&rt);
    if opcode == 0x3f && saved && (rs == SP_N || rs == FP_N) {
        return Effect::Save { register: rt, base: rs, offset: number };
    }
    if opcode == 0x37 && (rt == RA_N || rt == FP_N) {
        return Effect::Load { register: rt, base: rs, offset: number };
    }
    // move: or, or daddu, with $zero.
    let moves = opcode == 0 && rt == 0 && matches!(insn & 0x7ff, 0x25 | 0x2d);
    let adds = opcode == 0x19;
    match (to, rs) {
        (Some(SP_N), SP_N) if adds => Effect::AddSp(number),
        (Some(SP_N), FP_N) if adds => Effect::SpFromFp(number),
        (Some(SP_N), FP_N) if moves => Effect::SpFromFp(0),
        (Some(SP_N), _) => Effect::LoseSp,
        (Some(FP_N), SP_N) if adds => Effect::FpFromSp(number),
        (Some(FP_N), SP_N) if moves => Effect::FpFromSp(0),
        (Some(FP_N), _) => Effect::LoseFp,
        _ => Effect::None,
    }
}

fn above(base: Option<i32>, n: i32) -> Option<i32> {
    base.and_then(|base| base.checked_add(n))
}

/// Frame at one instruction, as the instructions before it have made it. Offsets are from the stack pointer
/// at the function's start, which is the CFA.
#[derive(Copy, Clone, PartialEq, Eq)]
struct Frame {
    /// `$sp`; `None`: unknown.
    sp: Option<i32>,
    /// `$fp`, if it was set from `$sp`.
    fp: Option<i32>,
    ra_slot: Option<i32>,
    fp_slot: Option<i32>,
    kept_slot: Option<i32>,
}

impl Frame {
    const ENTRY: Frame =
        Frame { sp: Some(0), fp: None, ra_slot: None, fp_slot: None, kept_slot: None };

    /// Returns the place at an offset from a register, if the register is known.
    fn place(&self, base: u32, offset: i32) -> Option<i32> {
        let base = match base {
            SP_N => self.sp,
            FP_N => self.fp,
            _ => None,
        };
        above(base, offset)
    }

    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::None => {}
            Effect::AddSp(n) => {
                self.sp = above(self.sp, n);
                // Slots below it are given up.
                let kept = |slot: &i32| self.sp.is_none_or(|sp| *slot >= sp);
                for slot in [&mut self.ra_slot, &mut self.fp_slot, &mut self.kept_slot] {
                    *slot = slot.filter(kept);
                }
            }
            Effect::LoseSp => self.sp = None,
            Effect::FpFromSp(n) => self.fp = above(self.sp, n),
            Effect::SpFromFp(n) => self.sp = above(self.fp, n),
            Effect::LoseFp => self.fp = None,
            Effect::Save { register, base, offset } => {
                let at = self.place(base, offset).filter(|&slot| slot < 0);
                let slot = match register {
                    RA_N => &mut self.ra_slot,
                    KEPT_RA => &mut self.kept_slot,
                    _ => &mut self.fp_slot,
                };
                // A register that is saved later no longer holds the caller's value.
                *slot = slot.or(at);
            }
            // The slot stays valid: a register that is loaded early, for a branch that is not taken, or in
            // the delay slot of one that is, may be lost again.
            Effect::Load { register: RA_N, .. } => {}
            Effect::Load { .. } => self.fp = None,
        }
    }

    /// Returns whether this is a frame that saves at least what `other` saves.
    fn has_all_of(&self, other: &Frame) -> bool {
        let less = |a: Option<i32>, b: Option<i32>| a.is_none() && b.is_some();
        !less(self.ra_slot, other.ra_slot)
            && self.sp != Some(0)
            && !less(self.fp_slot, other.fp_slot)
            && !less(self.fp, other.fp)
    }

    /// Returns the rule for code that makes a call: the return address is in its frame, or unknown.
    fn rule_of_caller(self) -> Rule {
        let ra_slot = self.ra_slot.or(self.kept_slot);
        if ra_slot.is_none() { Rule::UNKNOWN } else { Frame { ra_slot, ..self }.rule() }
    }

    fn rule(&self) -> Rule {
        let Frame { sp, fp, ra_slot, fp_slot, .. } = *self;
        match (ra_slot, sp, fp) {
            (Some(ra_slot), _, Some(fp)) => {
                Rule::from_form(Form::CfaFp { cfa_off: fp.wrapping_neg(), ra_slot, fp_slot })
            }
            (Some(ra_slot), Some(sp), None) => {
                Rule::from_form(Form::CfaSp { cfa_off: sp.wrapping_neg(), ra_slot, fp_slot })
            }
            // It is not saved yet, or restored already, or never saved at all.
            (None, Some(sp), _) => {
                Rule::from_form(Form::Leaf { cfa_off: sp.wrapping_neg(), fp_slot })
            }
            _ => Rule::UNKNOWN,
        }
    }
}

/// Walk through a function's instructions, in the order of their addresses.
struct Walk {
    /// Frame that the instructions so far have made; `None` behind the end of a path.
    frame: Option<Frame>,
    /// The most complete frame so far, for code that only a computed jump leads to.
    body: Frame,
    /// Targets of branches, and the frame there.
    ahead: [Option<(u64, Frame)>; AHEAD],
    /// Whether more may be reached from before than is noted there.
    more: bool,
    /// Start of the function.
    start: u64,
    /// Whether another function starts behind the end of a path that nothing leads past.
    next_starts: bool,
    /// Whether the function may start here.
    may_start: bool,
    /// Whether no branch and no call has been passed yet.
    straight: bool,
    /// Whether `$fp` is no frame pointer in this function.
    free_fp: bool,
}

impl Walk {
    /// Notes that a branch leads to `target`, where the frame is the same as here.
    fn note(&mut self, target: u64, frame: Frame) {
        match self.ahead.iter_mut().find(|slot| slot.is_none()) {
            Some(free) => *free = Some((target, frame)),
            None => self.more = true,
        }
    }

    /// Starts another function at `at`: nothing from before leads there.
    fn start_anew(&mut self, at: u64) {
        (self.body, self.start, self.frame) = (Frame::ENTRY, at, Some(Frame::ENTRY));
        (self.ahead, self.more) = ([None; AHEAD], false);
        (self.straight, self.free_fp) = (true, false);
    }

    /// Notes whether a use of `$fp` shows that it is no frame pointer. Compilers make a frame pointer by
    /// `move $fp, $sp` before anything else can happen, and then leave it alone up to the end, where the
    /// caller's is loaded from where it was saved. After any other use it has another value elsewhere in the
    /// function, at places that may be reached from anywhere. But in such a function, `$sp` is not moved by
    /// an unknown distance.
    fn keep_fp(&mut self, effect: Effect, frame: &Frame) {
        self.free_fp |= match effect {
            Effect::FpFromSp(n) => n != 0 || !self.straight,
            Effect::LoseFp => true,
            Effect::Load { register: FP_N, base, offset } => {
                frame.fp_slot.is_none() || frame.place(base, offset) != frame.fp_slot
            }
            _ => false,
        };
    }

    /// Returns the frame, without a frame pointer that is none.
    fn known(&self, frame: Frame) -> Frame {
        if self.free_fp { Frame { fp: None, ..frame } } else { frame }
    }

    /// Returns whether nothing is known to lead to `at` from the instruction before: that ends a path, or is
    /// behind a call, which may never return, or only fills the space up to `at`.
    fn may_start(&mut self, variant: Variant, at: u64, fetch: &mut Fetch<'_>) -> bool {
        if !self.next_starts {
            return false;
        }
        let before = |n: u64| at.checked_sub(n).filter(|b| *b >= self.start);
        let filled = self.may_start && before(4).and_then(&mut *fetch) == Some(NOP);
        let called = before(8).and_then(&mut *fetch).is_some_and(|insn| is_call(variant, insn));
        self.may_start = self.frame.is_none() || called || filled;
        self.may_start
    }

    /// Returns whether `at` is behind padding. Space is filled up to functions, and hardly up to loops:
    /// behind a call that never returns, two instructions or more that do nothing, up to a multiple of 16.
    /// No branch behind the place leads to before it.
    fn is_behind_padding(
        &self,
        variant: Variant,
        insn: u32,
        at: u64,
        fetch: &mut Fetch<'_>,
    ) -> bool {
        self.frame.is_some()
            && at.is_multiple_of(16)
            && insn != NOP
            && [4, 8].iter().all(|n| at.checked_sub(*n).and_then(&mut *fetch) == Some(NOP))
            && !is_looped_to(variant, self.start..at, at, fetch)
    }

    /// Returns the frame at `at`, to which either the instruction before or branches lead.
    fn arrive(&mut self, variant: Variant, at: u64, fetch: &mut Fetch<'_>) -> Frame {
        let noted = self.ahead.iter().flatten().find(|(target, _)| *target == at);
        let known = self.frame.or(noted.map(|(_, frame)| *frame));
        if known.is_none() && self.next_starts {
            let nothing = !self.more && self.ahead == [None; AHEAD];
            // A function that calls nothing has no body that a jump might lead to, except loops.
            let leaf = self.body.ra_slot.is_none() && self.body != Frame::ENTRY;
            if nothing
                || (leaf && !is_looped_to(variant, self.start..at.saturating_add(4), at, fetch))
            {
                (self.body, self.start) = (Frame::ENTRY, at);
            }
        }
        let frame = known.unwrap_or(self.body);
        for slot in &mut self.ahead {
            if slot.is_some_and(|(target, _)| target <= at) {
                *slot = None;
            }
        }
        self.frame = Some(frame);
        frame
    }
}

/// Function that reads instructions; it returns `None` where there is no code.
type Fetch<'a> = dyn FnMut(u64) -> Option<u32> + 'a;

/// Returns the rule for the instruction at `at`, in a function that starts at `start`, or, if `next_starts`,
/// in one behind that. If it `calls`, its return address must be in its frame.
fn walk(
    variant: Variant,
    start: u64,
    at: u64,
    next_starts: bool,
    calls: bool,
    fetch: &mut Fetch<'_>,
) -> Option<Rule> {
    let mut walk = Walk {
        frame: Some(Frame::ENTRY),
        body: Frame::ENTRY,
        ahead: [None; AHEAD],
        more: false,
        start,
        next_starts,
        may_start: false,
        straight: true,
        free_fp: false,
    };
    // The end of a path, and the target of a branch, take effect behind the delay slot.
    let (mut ends, mut branch, mut before) = (None, None, Slot::None);
    for here in (start..at).step_by(4) {
        let insn = fetch(here)?;
        if walk.may_start(variant, here, fetch)
            && (walk.is_behind_padding(variant, insn, here, fetch)
                || starts_function(insn, here, fetch))
        {
            walk.start_anew(here);
        }
        let mut frame = walk.arrive(variant, here, fetch);
        let effect = effect(insn);
        walk.keep_fp(effect, &frame);
        frame.apply(effect);
        walk.frame = Some(frame);
        if frame.has_all_of(&walk.body) {
            walk.body = frame;
        }
        let last = if slot(variant, insn).is_delay() { here.wrapping_add(4) } else { here };
        match pc_use(variant, insn, here) {
            Some(PcUse::Branch(to) | PcUse::Conditional(to)) if to > last => {
                branch = Some((last, to));
            }
            // The code before it was no other function.
            Some(PcUse::Conditional(to)) if to < walk.start && to >= start => return None,
            _ => {}
        }
        // A jump by a table, unless it is the return, or a tail call: those go by $t9.
        walk.more |=
            register_jump(insn).is_some_and(|(to, link)| link == 0 && to != RA_N && to != T9_N);
        if is_terminator(variant, insn) {
            ends = Some(last);
        }
        walk.straight &= before == Slot::None;
        before = slot(variant, insn);
        if let Some((_, to)) = branch.take_if(|(last, _)| *last == here) {
            walk.note(to, frame);
        }
        if ends == Some(here) {
            walk.frame = None;
        }
    }
    if walk.may_start(variant, at, fetch) {
        let insn = fetch(at)?;
        let padded = walk.is_behind_padding(variant, insn, at, fetch);
        if padded || makes_room(insn) || starts_function(insn, at, fetch) {
            walk.start_anew(at);
        }
    }
    let frame = walk.arrive(variant, at, fetch);
    let frame = walk.known(frame);
    Some(if calls { frame.rule_of_caller() } else { frame.rule() })
}

/// Returns whether a branch from soon behind `at` leads into the range.
fn is_looped_to(variant: Variant, range: Range<u64>, at: u64, fetch: &mut Fetch<'_>) -> bool {
    (0..LOOP).map(|n| at.wrapping_add(n * 4)).any(|here| {
        let to = fetch(here).and_then(|insn| pc_use(variant, insn, here));
        matches!(to, Some(PcUse::Branch(to) | PcUse::Conditional(to)) if range.contains(&to))
    })
}

/// Returns whether a function of a shared object starts here. Such functions begin by making the address of
/// their data from their own, in `$t9`, which no longer has it behind the first call: `lui $x, n`, soon
/// followed by `daddu $x, $x, $t9`.
fn starts_function(insn: u32, at: u64, fetch: &mut Fetch<'_>) -> bool {
    if insn >> 21 != 0x0f << 5 {
        return false;
    }
    let to = field(insn, 16);
    let adds = to << 21 | T9_N << 16 | 0x2d;
    (1..SOON).any(|n| fetch(at.wrapping_add(n * 4)).is_some_and(|i| i & !(31 << 11) == adds))
}

/// Returns whether an instruction that is no jump reads `$ra`, so that it is used as a general register.
fn reads_ra(insn: u32) -> bool {
    let (opcode, rs, rt) = (insn >> 26, field(insn, 21), field(insn, 16));
    let reads_rt = matches!(opcode, 0 | 4 | 5 | 0x14 | 0x15 | 0x28..=0x2e | 0x3f);
    opcode > 1 && rs == RA_N || reads_rt && rt == RA_N
}

/// Returns whether an instruction moves `$sp` down by a number.
fn makes_room(insn: u32) -> bool {
    matches!(effect(insn), Effect::AddSp(by) if by < 0)
}

/// Returns whether this is a call, which continues behind its delay slot, or never returns.
fn is_call(variant: Variant, insn: u32) -> bool {
    matches!(pc_use(variant, insn, 0), Some(PcUse::Call(_)))
        || register_jump(insn).is_some_and(|(_, link)| link == RA_N)
        || compact_register_jump(variant, insn).is_some_and(|(_, links)| links)
}

/// Returns the first of the steps that make a frame and end with the one at `last`: large frames are made in
/// two.
fn first_of_steps(variant: Variant, last: u64, fetch: &mut Fetch<'_>) -> u64 {
    let mut first = last;
    for n in 1..=STEPS {
        let at = last.wrapping_sub(n * 4);
        let Some(insn) = fetch(at) else { break };
        if slot(variant, insn) != Slot::None || is_terminator(variant, insn) {
            break;
        }
        if makes_room(insn) {
            first = at;
        }
    }
    first
}

/// Returns whether the instruction at `at` plainly does not begin a function: the code before continues to it
/// from a branch, or the code around it addresses memory by `$fp`, which no function does before it has made
/// its frame.
fn is_within(variant: Variant, at: u64, fetch: &mut Fetch<'_>) -> bool {
    let by_fp = |insn: u32| insn >> 29 >= 4 && field(insn, 21) == FP_N;
    let around = at.saturating_sub(NEAR * 4)..at.saturating_add(NEAR * 4);
    if around.step_by(4).filter_map(&mut *fetch).any(by_fp) {
        return true;
    }
    let before = |n: u64| at.checked_sub(n * 4).and_then(&mut *fetch);
    let other = |insn: &u32| slot(variant, *insn) != Slot::None || is_terminator(variant, *insn);
    let last = (1..=STEPS).map_while(before).find(other);
    last.is_some_and(|insn| !is_terminator(variant, insn) && !is_call(variant, insn))
}

/// Returns a function that reads the instructions of `code`, the first of which is at 0.
/// Returns the rule for the instruction at `at`, in a function whose start is unknown. The start is taken to
/// be the last `daddiu $sp, $sp, -N`.
///
/// If a path ends behind it, the instruction may be in the next function, one without a frame, where nothing
/// before leads to; but not if it `is_call`, or the delay slot of one: a caller has a frame. Code that sets
/// its return address to 0 before it calls, and for nothing else, is where its thread begins.
pub fn before_in(variant: Variant, at: u64, is_call: bool, fetch: &mut Fetch<'_>) -> Rule {
    let mut calls = |at: u64| fetch(at).is_some_and(|insn| self::is_call(variant, insn));
    if is_call && !calls(at.wrapping_sub(4)) && !calls(at) {
        // This is no return address, whoever took it for one.
        return Rule::UNKNOWN;
    }
    let (mut here, mut straight, mut inner, mut first) = (at, is_call, 0, None);
    for _ in 0..MOST {
        here = here.wrapping_sub(4);
        let Some(insn) = fetch(here) else { break };
        if makes_room(insn) {
            let start = first_of_steps(variant, here, fetch);
            let rule = walk(variant, start, at, !is_call, is_call, fetch).unwrap_or(Rule::UNKNOWN);
            // This may be room that a function makes later; functions that do so have a frame pointer.
            let by_fp = matches!(rule.form(), Form::CfaFp { .. });
            let whole = by_fp || (inner == 0 && rule != Rule::UNKNOWN);
            let may_be_inner = if is_call {
                !whole
            } else {
                let saved = by_fp || matches!(rule.form(), Form::CfaSp { .. });
                first.get_or_insert(rule);
                !saved && is_within(variant, start, fetch)
            };
            if !may_be_inner || inner == INNER {
                let found = if whole { Some(rule) } else { first };
                return found.unwrap_or(Rule::UNKNOWN);
            }
            (inner, straight) = (inner + 1, false);
        } else if straight && NO_RETURN.contains(&insn) {
            return Rule::END;
        } else {
            straight &= !is_terminator(variant, insn) && !reads_ra(insn);
        }
    }
    // No function before it has a frame: `at` is the first instruction of the first function that makes room.
    if !is_call && fetch(at).is_some_and(makes_room) {
        return Frame::ENTRY.rule();
    }
    Rule::UNKNOWN
}

/// Returns the rule for the last instruction before the return address `pc`, or, if `pc - 1` is the address
/// of an instruction, for that interrupted instruction. `read` reads code of this process.
pub fn before(pc: u64, read: &mut dyn FnMut(u64, &mut [u8]) -> bool) -> Rule {
    let look = pc.wrapping_sub(1);
    let (mut piece, mut from) = ([0; PIECE as usize], None);
    // Code is read in pieces of pages, so that nothing unmapped is read, and in few calls.
    let mut fetch = |at: u64| {
        let base = at & !(PIECE - 1);
        if from != Some(base) {
            from = None;
            read(base, &mut piece).then_some(())?;
            from = Some(base);
        }
        Order::NATIVE.word4(&piece, at.wrapping_sub(base) as usize)
    };
    before_in(Variant::NATIVE, look & !3, look & 3 != 0, &mut fetch)
}

#[cfg(test)]
#[path = "prologue_tests.rs"]
mod tests;
