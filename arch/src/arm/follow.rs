//! The rule for an interrupted instruction of Thumb code that has no unwind tables, from the code ahead.
//!
//! Code is followed from the instruction on to where its function returns: whatever way it takes, there the
//! stack pointer is the CFA, and the return address and `r7` have been loaded from where they were saved, or
//! are in their registers still. So the function's start need not be found. A path is given up where that
//! does not show (a call that never comes back is one, and what stands behind it is another function's
//! code): then those are followed that branch off before.
//!
//! In the ARM state only the stubs of linkage tables are known. In which state the interrupted instruction
//! is does not stand in its address: where nothing else says it, code that looks like that state's is not
//! followed.

use super::effect::{Effect, Fetch, bytes, effect, instruction, leaves};
use super::insn::{PcUse, pc_use_thumb};
use super::regs::{LR, PC, R7, SP};
use super::rule::{Form, Rule};

/// Instructions that are looked at, at most.
const MOST: u32 = 2048;
/// Places that branches lead to and that are still to be followed, at most.
const AHEAD: usize = 16;
/// Pieces of code that have been followed, at most.
const SEEN: usize = 32;
/// Literals that are remembered: no instructions stand there.
const DATA: usize = 32;

/// What offsets count from.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Base {
    /// The stack pointer where the search has begun.
    Sp,
    /// `r7` there.
    Fp,
}

/// What a register holds.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Value {
    /// What it held where the search has begun.
    Initial,
    /// That much above a base.
    Address(Base, i32),
    /// A word of memory, which stood there when the search began.
    Loaded(Base, i32),
    Other,
}

type Place = Option<(Base, i32)>;

/// What a path has done to the registers.
#[derive(Copy, Clone)]
struct State {
    /// The next instruction.
    at: u64,
    /// The stack pointer; `None` where it is not known.
    sp: Place,
    fp: Value,
    lr: Value,
    /// Where what they held at first was saved on the way.
    fp_saved: Place,
    lr_saved: Place,
    /// The return address was loaded on the way.
    loaded: bool,
    /// Instructions that are left of an if-then block.
    conditional: u32,
}

fn above(place: Place, by: i32) -> Place {
    let (base, from) = place?;
    Some((base, from.checked_add(by)?))
}

/// What an instruction does with `lr`, but to push and pop it, and to call.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum OnLr {
    None,
    Lose,
    /// Stored or loaded so far above the stack pointer.
    Store(i32),
    Load(i32),
}

/// Instructions of four bytes have what they write in one of two fields; what those mean otherwise is not
/// asked.
fn on_lr(insn: u32) -> OnLr {
    let lr = u32::from(LR);
    if insn >> 16 == 0 {
        let writes = matches!(insn & 0xff87, 0x4686 | 0x4486);
        return if writes { OnLr::Lose } else { OnLr::None };
    }
    let (n, t, d) = (insn >> 16 & 15, insn >> 12 & 15, insn >> 8 & 15);
    let offset = (insn & 0xfff) as i32;
    match insn >> 16 {
        0xf8dd if t == lr => return OnLr::Load(offset),
        0xf8cd if t == lr => return OnLr::Store(offset),
        0xe92d | 0xe8bd | 0xf84d | 0xf85d => return OnLr::None, // push and pop
        _ => {}
    }
    let stores = (insn >> 24 == 0xf8 || insn >> 25 == 0b111_0100) && insn >> 20 & 1 == 0;
    if n == lr && insn >> 25 != 0b111_0101 || !stores && (t == lr || d == lr) {
        return OnLr::Lose;
    }
    OnLr::None
}

impl State {
    /// Does what an instruction does; `None` if it is of another function.
    fn apply(&mut self, insn: u32) -> Option<()> {
        match on_lr(insn) {
            OnLr::None => {}
            OnLr::Lose => self.lr = Value::Other,
            OnLr::Store(n) => self.save(LR, above(self.sp, n)),
            OnLr::Load(n) => self.load(LR, above(self.sp, n)),
        }
        let address =
            |place: Place| place.map_or(Value::Other, |(base, n)| Value::Address(base, n));
        let of_fp = match self.fp {
            Value::Initial => Some((Base::Fp, 0)),
            Value::Address(base, n) => Some((base, n)),
            _ => None,
        };
        match effect(insn) {
            Effect::None => {}
            Effect::AddSp(n) => self.sp = above(self.sp, n),
            Effect::LoseSp => self.sp = None,
            Effect::FpFromSp(n) => self.fp = address(above(self.sp, n)),
            Effect::AddFp(n) => self.fp = address(above(of_fp, n)),
            Effect::SpFromFp => self.sp = of_fp,
            Effect::LoseFp => self.fp = Value::Other,
            Effect::Push(list, by) => {
                // A frame is made, but the return address is gone.
                if list >> LR & 1 == 1 && self.lr == Value::Other {
                    return None;
                }
                self.sp = above(self.sp, by.wrapping_neg());
                self.each_of(list, Self::save);
            }
            Effect::Pop(list, by) => {
                self.each_of(list, Self::load);
                self.sp = above(self.sp, by);
            }
        }
        Some(())
    }

    /// For each register of a list that matters, with its place from the stack pointer on.
    fn each_of(&mut self, list: u32, act: fn(&mut Self, u16, Place)) {
        for register in [R7, LR, PC] {
            if list >> register & 1 == 1 {
                let below = list & (1_u32 << register).wrapping_sub(1);
                act(self, register, above(self.sp, bytes(below)));
            }
        }
    }

    fn save(&mut self, register: u16, place: Place) {
        let (value, saved) = match register {
            R7 => (self.fp, &mut self.fp_saved),
            _ => (self.lr, &mut self.lr_saved),
        };
        if value == Value::Initial {
            *saved = saved.or(place);
        } else if *saved == place {
            *saved = None;
        }
    }

    fn load(&mut self, register: u16, place: Place) {
        let saved = if register == R7 { self.fp_saved } else { self.lr_saved };
        let value = match place {
            Some(_) if place == saved => Value::Initial,
            // What lies below the stack pointer that the search began with was put there later.
            Some((Base::Sp, offset)) if offset < 0 => Value::Other,
            Some((base, offset)) => Value::Loaded(base, offset),
            None => Value::Other,
        };
        if register == R7 {
            self.fp = value;
        } else {
            (self.lr, self.loaded) = (value, true);
        }
    }

    /// The rule, if the function ends here.
    fn rule(&self) -> Option<Rule> {
        let (base, cfa_off) = self.sp?;
        let slot = |value: Value| match value {
            Value::Initial => Some(None),
            Value::Loaded(of, at) if of == base => {
                at.checked_sub(cfa_off).filter(|slot| *slot < 0).map(Some)
            }
            _ => None,
        };
        let fp_slot = slot(self.fp)?;
        // Spilled within the function: it was no return address.
        let spilled = matches!(self.lr_saved, Some((Base::Sp, at)) if at >= cfa_off);
        let form = match (slot(self.lr)?, base) {
            (Some(ra_slot), Base::Sp) => Form::CfaSp { cfa_off, ra_slot, fp_slot },
            (Some(ra_slot), Base::Fp) => Form::CfaFp { cfa_off, ra_slot, fp_slot },
            (None, Base::Sp) if cfa_off >= 0 && !spilled => Form::Leaf { cfa_off, fp_slot },
            (None, _) => return None,
        };
        let rule = Rule::from_form(form);
        (rule != Rule::COMPLEX).then_some(rule)
    }
}

/// How a piece ends.
enum End {
    Rule(Rule),
    Jump(u64),
    Lost,
}

/// Follows the paths from one address on, until one of them shows how its function ends.
struct Search<'a, 'b> {
    fetch: &'a mut Fetch<'b>,
    /// Instructions that may still be looked at.
    left: u32,
    /// To be followed, the first first.
    ahead: [Option<State>; AHEAD],
    /// Where pieces begin and end that have been followed.
    seen: [(u64, u64); SEEN],
    pieces: usize,
    data: [u64; DATA],
    literals: usize,
}

impl Search<'_, '_> {
    fn run(&mut self) -> Option<Rule> {
        loop {
            let state = self.ahead.first_mut()?.take()?;
            self.ahead.rotate_left(1);
            if let Some(rule) = self.follow(state) {
                return Some(rule);
            }
        }
    }

    fn is_seen(&self, at: u64) -> bool {
        self.seen.iter().take(self.pieces).any(|(from, to)| (*from..*to).contains(&at))
    }

    /// Where the piece that begins at `from` meets one that has been followed.
    fn limit(&self, from: u64) -> u64 {
        let starts = self.seen.iter().take(self.pieces).map(|piece| piece.0);
        starts.filter(|start| *start > from).min().unwrap_or(u64::MAX)
    }

    fn follow(&mut self, mut state: State) -> Option<Rule> {
        while !self.is_seen(state.at) {
            let from = state.at;
            let limit = self.limit(from);
            let found = self.follow_piece(&mut state, limit);
            *self.seen.get_mut(self.pieces)? = (from, state.at);
            self.pieces = self.pieces.wrapping_add(1);
            match found {
                End::Rule(rule) => return Some(rule),
                End::Jump(to) => state.at = to,
                End::Lost => return None,
            }
        }
        None
    }

    /// To the next unconditional branch; `state.at` is left behind the last instruction.
    fn follow_piece(&mut self, state: &mut State, limit: u64) -> End {
        while state.at < limit {
            let here = state.at;
            if self.data.contains(&(here & !3)) {
                return End::Lost;
            }
            let Some(left) = self.left.checked_sub(1) else { return End::Lost };
            self.left = left;
            let Some((insn, len)) = instruction(here, self.fetch) else { return End::Lost };
            state.at = here.wrapping_add(len);
            let conditional = state.conditional > 0;
            state.conditional = state.conditional.saturating_sub(1);
            if insn >> 8 == 0xbf && insn & 15 != 0 {
                state.conditional = 4_u32.wrapping_sub(insn.trailing_zeros());
                continue;
            }
            if let Some(end) = self.step(state, insn, here, conditional) {
                return end;
            }
        }
        End::Lost
    }

    /// Does one instruction; `None` if the one behind it follows.
    fn step(&mut self, state: &mut State, insn: u32, here: u64, conditional: bool) -> Option<End> {
        let goes_on = |end| if conditional { None } else { Some(end) };
        let pc_use = pc_use_thumb(insn, here as u32);
        if let Some(PcUse::Literal(at)) = pc_use {
            self.note_data(at.into());
            // ldrd, and vldr of a double
            if insn >> 25 == 0b111_0100 || insn >> 25 == 0b111_0110 && insn & 0x100 != 0 {
                self.note_data(u64::from(at).wrapping_add(4));
            }
        }
        match pc_use {
            Some(PcUse::Branch(to)) if conditional => self.later(state, to),
            Some(PcUse::Branch(to)) => {
                let jump = End::Jump(to.into());
                let rule = if state.loaded { state.rule() } else { None };
                return Some(rule.map_or(jump, End::Rule));
            }
            Some(PcUse::Conditional(to, _)) => self.later(state, to),
            Some(PcUse::Call(..)) => state.lr = Value::Other,
            Some(PcUse::Table(_)) => return Some(End::Lost),
            // blx of a register
            _ if insn >> 16 == 0 && insn & 0xff87 == 0x4780 => state.lr = Value::Other,
            _ if leaves(insn) => {
                // Where it does not go on here, what it loads matters no more.
                let rule = self.leave(&mut { *state }, insn, here);
                return rule.map(End::Rule).or_else(|| goes_on(End::Lost));
            }
            // udf; and zeros, which are data
            _ if insn & 0xfff0_f000 == 0xf7f0_a000 || insn == 0 => return goes_on(End::Lost),
            // What is done under a condition ends the path, or changes nothing but what is lost.
            _ if conditional && on_lr(insn) != OnLr::None => state.lr = Value::Other,
            _ if conditional => {}
            _ if state.apply(insn).is_none() => return Some(End::Lost),
            _ => {}
        }
        None
    }

    fn note_data(&mut self, at: u64) {
        if let Some(place) = self.data.get_mut(self.literals % DATA) {
            *place = at & !3;
            self.literals = self.literals.wrapping_add(1);
        }
    }

    fn later(&mut self, state: &State, to: u32) {
        if let Some(free) = self.ahead.iter_mut().find(|slot| slot.is_none()) {
            *free = Some(State { at: to.into(), conditional: 0, ..*state });
        }
    }

    /// The rule, if the jump at `here` leaves the function.
    fn leave(&mut self, state: &mut State, insn: u32, here: u64) -> Option<Rule> {
        let register = match insn & 0xffff_ff87 {
            0x4700 | 0x4687 => insn >> 3 & 15,
            _ => {
                // What is popped into pc is the return address, or nothing that is known here.
                matches!(effect(insn), Effect::Pop(list, _) if list >> PC & 1 == 1).then_some(())?;
                state.apply(insn)?;
                return state.rule();
            }
        };
        if register == u32::from(PC) {
            // To a stub in the other state.
            let to = here.wrapping_add(4) & !3;
            let at_start = state.sp == Some((Base::Sp, 0)) && state.lr == Value::Initial;
            return if at_start { stub(to, self.fetch) } else { None };
        }
        let gave_back = matches!(state.sp, Some((Base::Sp, moved)) if moved > 0);
        let returns = register == u32::from(LR);
        let leaves = returns || state.loaded || gave_back && state.lr == Value::Initial;
        if leaves && register != u32::from(SP) { state.rule() } else { None }
    }
}

/// The rule for the stub of a linkage table that `at` lies in, in the ARM state:
/// `add ip, pc, #a; add ip, ip, #b; ldr pc, [ip, #c]!`, the one in the middle not always.
fn stub(at: u64, fetch: &mut Fetch<'_>) -> Option<Rule> {
    at.is_multiple_of(4).then_some(())?;
    for n in 0..3_u64 {
        let here = at.wrapping_add(n.wrapping_mul(4));
        let (low, high) = (fetch(here)?, fetch(here.wrapping_add(2))?);
        match (high, low >> 12) {
            (0xe28f | 0xe28c, 0xc) => {}
            (0xe5bc, 0xf) => {
                return Some(Rule::from_form(Form::Leaf { cfa_off: 0, fp_slot: None }));
            }
            _ => return None,
        }
    }
    None
}

/// Whether what stands at `at` looks like instructions of the ARM state: most of them are executed always,
/// which is the highest number that words of code begin with. Thumb code has it in few places.
fn looks_like_arm(at: u64, fetch: &mut Fetch<'_>) -> bool {
    const WORDS: u64 = 8;
    let mut always = |n: &u64| {
        let half = fetch(at.wrapping_add(n.wrapping_mul(4)).wrapping_add(2));
        half.is_some_and(|half| half >> 12 == 0xe)
    };
    at.is_multiple_of(4) && (0..WORDS).filter(|n| always(n)).count() >= 6
}

/// The rule for the interrupted instruction at `at`. `None` if it does not show.
pub(super) fn from(at: u64, thumb: Option<bool>, fetch: &mut Fetch<'_>) -> Option<Rule> {
    if thumb != Some(true)
        && let Some(rule) = stub(at, fetch)
    {
        return Some(rule);
    }
    if !thumb.unwrap_or_else(|| !looks_like_arm(at, fetch)) {
        return None;
    }
    let state = State {
        at,
        sp: Some((Base::Sp, 0)),
        fp: Value::Initial,
        lr: Value::Initial,
        fp_saved: None,
        lr_saved: None,
        loaded: false,
        conditional: 0,
    };
    let mut ahead = [None; AHEAD];
    ahead[0] = Some(state);
    let (seen, data) = ([(0, 0); SEEN], [0; DATA]);
    Search { fetch, left: MOST, ahead, seen, pieces: 0, data, literals: 0 }.run()
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
