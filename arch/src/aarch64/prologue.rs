//! Frames of code that has no call frame information, from its instructions.
//!
//! Code is followed from the address on to where its function returns: whatever way it takes, there the
//! stack pointer is the CFA, and `x30` and `x29` have been loaded from where they were saved, or never
//! changed. So the function's start need not be found, and what compilers do to make a frame need not be
//! understood. A path is given up where that does not show (a call that never comes back is one, and what
//! stands behind it is another function's code): then those are followed that branch off before.

use super::effect::{Effect, FP_N, Flow, LR_N, SP_N, effect, flow};
use super::rule::{Form, Rule};

/// Instructions that are looked at, at most.
const MOST: u32 = 2048;
/// Bytes of code that are read at a time.
const PIECE: u64 = 256;
/// Places that branches lead to and that are still to be followed, at most.
const AHEAD: usize = 16;
/// Pieces of code that have been followed, at most.
const SEEN: usize = 32;

/// `stp x16, x30, [sp, #-16]!`: linkage tables begin with it, and what they jump to takes it back.
const PUSH: u32 = 0xa9bf_7bf0;
/// Instructions from there to the jump, at most.
const STUB: u64 = 8;
/// `autia1716`
const AUTIA1716: u32 = 0xd503_219f;

/// Reads instructions; `None` where there is no code.
type Fetch<'a> = dyn FnMut(u64) -> Option<u32> + 'a;

/// What offsets count from.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Base {
    /// The stack pointer where the search has begun.
    Sp,
    /// `x29` there.
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

/// What a path has done to the registers.
#[derive(Copy, Clone)]
struct State {
    /// The next instruction.
    at: u64,
    /// The stack pointer; `None` where it is not known.
    sp: Option<(Base, i32)>,
    fp: Value,
    lr: Value,
    /// Where what they held at first was saved on the way.
    fp_saved: Option<(Base, i32)>,
    lr_saved: Option<(Base, i32)>,
    /// `x30` was loaded on the way.
    loaded: bool,
}

impl State {
    fn address(&self, base: u32, offset: i32) -> Option<(Base, i32)> {
        let (base, from) = match (base, self.fp) {
            (SP_N, _) => self.sp?,
            (_, Value::Initial) => (Base::Fp, 0),
            (_, Value::Address(base, from)) => (base, from),
            _ => return None,
        };
        Some((base, from.checked_add(offset)?))
    }

    /// Does what an instruction does; `None` if it is of another function.
    fn apply(&mut self, effect: Effect) -> Option<()> {
        match effect {
            Effect::None => {}
            Effect::SpFrom(base, n) => self.sp = self.address(base, n),
            Effect::FpFrom(base, n) => {
                self.fp = self
                    .address(base, n)
                    .map_or(Value::Other, |(base, offset)| Value::Address(base, offset));
            }
            Effect::Lose { sp, fp, lr } => {
                self.sp = self.sp.filter(|_| !sp);
                self.fp = if fp { Value::Other } else { self.fp };
                self.lr = if lr { Value::Other } else { self.lr };
            }
            Effect::Move { load, base, offset, by, registers } => {
                for (register, n) in registers.into_iter().flatten() {
                    let place = offset.checked_add(n).and_then(|n| self.address(base, n));
                    if load {
                        self.load(register, place);
                    } else {
                        // A frame is made, but the return address is gone.
                        let makes = base == SP_N && by < 0;
                        if makes && register == LR_N && self.lr == Value::Other {
                            return None;
                        }
                        self.save(register, place);
                    }
                }
                if by != 0 && base == SP_N {
                    self.sp = self.address(SP_N, by);
                } else if by != 0 && base == FP_N {
                    self.fp = Value::Other;
                }
            }
            Effect::Entry if self.lr == Value::Other => return None,
            Effect::Entry => {}
        }
        Some(())
    }

    fn save(&mut self, register: u32, place: Option<(Base, i32)>) {
        let (value, saved) = match register {
            LR_N => (self.lr, &mut self.lr_saved),
            _ => (self.fp, &mut self.fp_saved),
        };
        if value == Value::Initial {
            *saved = saved.or(place);
        } else if *saved == place {
            *saved = None;
        }
    }

    fn load(&mut self, register: u32, place: Option<(Base, i32)>) {
        let saved = if register == LR_N { self.lr_saved } else { self.fp_saved };
        let value = match place {
            Some(_) if place == saved => Value::Initial,
            // What lies below the stack pointer that the search began with was put there later.
            Some((Base::Sp, offset)) if offset < 0 => Value::Other,
            Some((base, offset)) => Value::Loaded(base, offset),
            None => Value::Other,
        };
        if register == LR_N {
            (self.lr, self.loaded) = (value, true);
        } else {
            self.fp = value;
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

/// Follows the paths from one address on, until one of them shows how its function ends.
struct Search<'a, 'b> {
    fetch: &'a mut Fetch<'b>,
    start: u64,
    /// Instructions that may still be looked at.
    left: u32,
    /// To be followed, the first first.
    ahead: [Option<State>; AHEAD],
    /// Where pieces begin and end that have been followed.
    seen: [(u64, u64); SEEN],
    pieces: usize,
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

    /// Notes a piece; `None` if there are too many.
    fn passed(&mut self, from: u64, to: u64) -> Option<()> {
        *self.seen.get_mut(self.pieces)? = (from, to);
        self.pieces = self.pieces.wrapping_add(1);
        Some(())
    }

    fn follow(&mut self, mut state: State) -> Option<Rule> {
        while !self.is_seen(state.at) {
            let from = state.at;
            let limit = self.limit(from);
            let found = self.follow_piece(&mut state, limit);
            self.passed(from, state.at)?;
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
            let Some(left) = self.left.checked_sub(1) else { return End::Lost };
            self.left = left;
            let Some(insn) = (self.fetch)(here) else { return End::Lost };
            state.at = here.wrapping_add(4);
            match flow(insn, here) {
                Flow::Next => {
                    if state.apply(effect(insn)).is_none() {
                        return End::Lost;
                    }
                }
                Flow::Call => state.lr = Value::Other,
                Flow::Conditional(to) => {
                    if let Some(free) = self.ahead.iter_mut().find(|slot| slot.is_none()) {
                        *free = Some(State { at: to, ..*state });
                    }
                }
                Flow::Branch(to) if state.loaded => {
                    return state.rule().map_or(End::Jump(to), End::Rule);
                }
                Flow::Branch(to) => return End::Jump(to),
                Flow::Return => return state.rule().map_or(End::Lost, End::Rule),
                Flow::Register(register) => {
                    return self.leaves(state, here, register).map_or(End::Lost, End::Rule);
                }
                Flow::Stop => return End::Lost,
            }
        }
        End::Lost
    }

    /// The rule, if the jump at `at` leaves the function, and is not one to a place from a table.
    fn leaves(&mut self, state: &State, at: u64, register: u32) -> Option<Rule> {
        let gave_back = matches!(state.sp, Some((Base::Sp, moved)) if moved > 0);
        if state.loaded || gave_back && state.lr == Value::Initial {
            return state.rule();
        }
        if register != 17 || state.lr != Value::Initial || !self.is_stub(at) {
            return None;
        }
        let mut place = (1..STUB).map(|n| at.wrapping_sub(n.wrapping_mul(4)));
        match place.find(|at| (self.fetch)(*at) == Some(PUSH)) {
            Some(push) if push >= self.start => {
                let undone = state.address(SP_N, 16);
                State { sp: undone, ..*state }.rule()
            }
            Some(_) if state.sp == Some((Base::Sp, 0)) => {
                Some(Rule::from_form(Form::CfaSp { cfa_off: 16, ra_slot: -8, fp_slot: None }))
            }
            Some(_) => None,
            None => state.rule(),
        }
    }

    /// Whether the `br x17` at `at` is that of a linkage table: `ldr x17, [x16, n]`, then
    /// `add x16, x16, n`, and `autia1716` or not.
    fn is_stub(&mut self, at: u64) -> bool {
        let mut before = (1..4).map(|n| (self.fetch)(at.wrapping_sub(n * 4)).unwrap_or(0));
        let between = |insn: &u32| insn & 0xffc0_03ff == 0x9100_0210 || *insn == AUTIA1716;
        before.find(|insn| !between(insn)).is_some_and(|insn| insn & 0xffc0_03ff == 0xf940_0211)
    }
}

/// How a piece ends.
enum End {
    Rule(Rule),
    Jump(u64),
    Lost,
}

/// The rule for the instruction at `at`, or for the call in front of it. `None` if that does not show.
fn from(at: u64, is_call: bool, fetch: &mut Fetch<'_>) -> Option<Rule> {
    let state = State {
        at,
        sp: Some((Base::Sp, 0)),
        fp: Value::Initial,
        lr: if is_call { Value::Other } else { Value::Initial },
        fp_saved: None,
        lr_saved: None,
        loaded: false,
    };
    let mut ahead = [None; AHEAD];
    ahead[0] = Some(state);
    Search { fetch, start: at, left: MOST, ahead, seen: [(0, 0); SEEN], pieces: 0 }.run()
}

/// The rule for the return address `pc`, or, if `pc - 1` is the address of an instruction, for that: one
/// that a signal has interrupted. `None` where it is not certain: a return address may then be of code that
/// keeps a chain of frame pointers. An interrupted instruction may be where its function has not added to
/// that chain yet, and is [`Rule::UNKNOWN`].
pub fn before(pc: u64, read: &mut dyn FnMut(u64, &mut [u8]) -> bool) -> Option<Rule> {
    let (mut piece, mut from_piece) = ([0; PIECE as usize], None);
    // Pieces of pages: what is not there is not read, and what is, in few calls.
    let mut fetch = |at: u64| {
        let base = at & !PIECE.wrapping_sub(1);
        if from_piece != Some(base) {
            from_piece = None;
            read(base, &mut piece).then_some(())?;
            from_piece = Some(base);
        }
        let word = piece.get(at.wrapping_sub(base) as usize..)?.first_chunk()?;
        Some(u32::from_le_bytes(*word))
    };
    match pc & 3 {
        0 => from(pc, true, &mut fetch),
        1 => Some(from(pc.wrapping_sub(1), false, &mut fetch).unwrap_or(Rule::UNKNOWN)),
        _ => None,
    }
}

#[cfg(test)]
#[path = "prologue_tests.rs"]
mod tests;
