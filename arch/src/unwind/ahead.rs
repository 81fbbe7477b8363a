//! The rule for code without unwind tables, from the instructions ahead.
//!
//! Code is followed from an address on to where its function returns: whatever way it takes, there the
//! stack pointer is the CFA, and the return address and the frame pointer have been loaded from where they
//! were saved, or are in their registers still. So the function's start need not be found, and what compilers do
//! to make a frame need not be understood. A path is given up where that does not show (a call that never
//! comes back is one, and what stands behind it is another function's code): then those are followed that
//! branch off before.
//!
//! What an instruction does is the architecture's to say: see [`Code`].

/// Instructions that are looked at, at most.
pub(crate) const MOST: u32 = 2048;
/// Places that branches lead to and that are still to be followed, at most.
const AHEAD: usize = 16;
/// Pieces of code that have been followed, at most.
const SEEN: usize = 32;
/// Words of data among instructions that are remembered.
const DATA: usize = 32;

/// The registers that matter.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Register {
    /// The stack pointer.
    Sp,
    /// The frame pointer.
    Fp,
    /// What calls leave the return address in.
    Lr,
}

/// What an instruction does with them.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    None,
    /// The stack pointer is set to that much above it, or above the frame pointer.
    SpFrom(Register, i32),
    /// The same for the frame pointer.
    FpFrom(Register, i32),
    /// They get values that are not known.
    Lose {
        sp: bool,
        fp: bool,
        lr: bool,
    },
    /// Registers are loaded or stored, at an offset from the stack pointer or the frame pointer, which is moved
    /// afterwards; of the registers only these two are named, with further offsets. A return address that
    /// is loaded to be gone to counts as loaded.
    Move {
        load: bool,
        base: Register,
        offset: i32,
        by: i32,
        registers: [Option<(Register, i32)>; 2],
    },
    /// Stands only where functions begin.
    Entry,
}

/// Where an instruction leads.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    Next,
    /// Behind it, when the function that it calls returns.
    Call,
    Branch(u64),
    Conditional(u64),
    /// To the return address.
    Return,
    /// To the address in the register with this number.
    Register(u32),
    /// Nowhere, or to what is not known.
    Stop,
}

/// An instruction.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Instruction {
    /// Its bytes.
    pub len: u64,
    /// It does nothing unless a condition holds.
    pub conditional: bool,
    /// So many of those behind it do nothing unless a condition holds.
    pub block: u32,
    /// Where it leads, after what it does.
    pub flow: Flow,
    /// What it does, in this order.
    pub effects: [Effect; 2],
    /// Where data stands that it loads, and the bytes of that.
    pub data: Option<(u64, u64)>,
}

/// How a frame is found from the registers.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Frame {
    /// The CFA is that far above the stack pointer, or the frame pointer.
    pub base: Register,
    pub cfa_off: i32,
    /// Where the return address is, from the CFA; `None` if it is in its register.
    pub ra_slot: Option<i32>,
    /// The same of the caller's frame pointer.
    pub fp_slot: Option<i32>,
}

/// An instruction set, and code of it.
pub(crate) trait Code {
    /// The architecture's packed rule.
    type Rule;

    /// Packs a frame; `None` if it does not fit.
    fn rule(frame: Frame) -> Option<Self::Rule>;

    /// The instruction at an address; `None` where there is no code.
    fn instruction(&mut self, at: u64) -> Option<Instruction>;

    /// The frame at the search's start, if the jump at `at` to a register is a stub's, which leads to another
    /// function. `state` is the registers there.
    fn stub(&mut self, state: &State, at: u64, register: u32, start: u64) -> Option<Frame>;
}

/// A place in memory, or an address: how far above what the stack pointer, or the frame pointer, was where the
/// search has begun.
pub(crate) type Place = Option<(Register, i32)>;

/// What a register holds.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Value {
    /// What it held where the search has begun.
    Initial,
    /// An address.
    Address(Register, i32),
    /// A word of memory, which stood there when the search began.
    Loaded(Register, i32),
    Other,
}

/// What a path has done to the registers.
#[derive(Copy, Clone, Debug)]
pub(crate) struct State {
    /// The next instruction.
    at: u64,
    /// The stack pointer; `None` where it is not known.
    pub sp: Place,
    pub fp: Value,
    pub lr: Value,
    /// Where what they held at first was saved on the way.
    fp_saved: Place,
    lr_saved: Place,
    /// The return address was loaded on the way.
    pub loaded: bool,
    /// Instructions that are left of those that a condition is for.
    conditional: u32,
}

impl State {
    fn at(at: u64, lr: Value) -> Self {
        Self {
            at,
            sp: Some((Register::Sp, 0)),
            fp: Value::Initial,
            lr,
            fp_saved: None,
            lr_saved: None,
            loaded: false,
            conditional: 0,
        }
    }

    /// That much above what a register holds now.
    pub fn address(&self, base: Register, offset: i32) -> Place {
        let (base, from) = match (base, self.fp) {
            (Register::Sp, _) => self.sp?,
            (_, Value::Initial) => (Register::Fp, 0),
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
                        let makes = base == Register::Sp && by < 0;
                        if makes && register == Register::Lr && self.lr == Value::Other {
                            return None;
                        }
                        self.save(register, place);
                    }
                }
                match base {
                    Register::Sp if by != 0 => self.sp = self.address(base, by),
                    Register::Fp if by != 0 => self.fp = Value::Other,
                    _ => {}
                }
            }
            Effect::Entry if self.lr == Value::Other => return None,
            Effect::Entry => {}
        }
        Some(())
    }

    fn apply_all(&mut self, insn: &Instruction) -> Option<()> {
        insn.effects.into_iter().try_for_each(|effect| self.apply(effect))
    }

    /// What is done under a condition ends the path, or changes nothing but what it writes.
    fn may_apply(&mut self, effect: Effect) {
        match effect {
            Effect::FpFrom(..) => self.fp = Value::Other,
            Effect::Lose { fp, lr, .. } => {
                self.fp = if fp { Value::Other } else { self.fp };
                self.lr = if lr { Value::Other } else { self.lr };
            }
            Effect::Move { by: 0, registers, .. } => {
                for (register, _) in registers.into_iter().flatten() {
                    match register {
                        Register::Lr => self.lr = Value::Other,
                        _ => self.fp = Value::Other,
                    }
                }
            }
            _ => {}
        }
    }

    fn save(&mut self, register: Register, place: Place) {
        let (value, saved) = match register {
            Register::Lr => (self.lr, &mut self.lr_saved),
            _ => (self.fp, &mut self.fp_saved),
        };
        if value == Value::Initial {
            *saved = saved.or(place);
        } else if *saved == place {
            *saved = None;
        }
    }

    fn load(&mut self, register: Register, place: Place) {
        let saved = if register == Register::Lr { self.lr_saved } else { self.fp_saved };
        let value = match place {
            Some(_) if place == saved => Value::Initial,
            // What lies below the stack pointer that the search began with was put there later.
            Some((Register::Sp, offset)) if offset < 0 => Value::Other,
            Some((base, offset)) => Value::Loaded(base, offset),
            None => Value::Other,
        };
        if register == Register::Lr {
            (self.lr, self.loaded) = (value, true);
        } else {
            self.fp = value;
        }
    }

    /// The frame at the search's start, if the function ends here.
    pub fn frame(&self) -> Option<Frame> {
        let (base, cfa_off) = self.sp?;
        let slot = |value: Value| match value {
            Value::Initial => Some(None),
            Value::Loaded(of, at) if of == base => {
                at.checked_sub(cfa_off).filter(|slot| *slot < 0).map(Some)
            }
            _ => None,
        };
        let (ra_slot, fp_slot) = (slot(self.lr)?, slot(self.fp)?);
        // Spilled within the function: it was no return address.
        let spilled = matches!(self.lr_saved, Some((Register::Sp, at)) if at >= cfa_off);
        let leaf = base == Register::Sp && cfa_off >= 0 && !spilled;
        (ra_slot.is_some() || leaf).then_some(Frame { base, cfa_off, ra_slot, fp_slot })
    }
}

/// How a piece ends.
enum End<R> {
    Rule(R),
    Jump(u64),
    Lost,
}

/// Follows the paths from one address on, until one of them shows how its function ends.
struct Search<'a, C> {
    code: &'a mut C,
    start: u64,
    /// Instructions that may still be looked at.
    left: u32,
    /// To be followed, the first first.
    ahead: [Option<State>; AHEAD],
    /// Where pieces begin and end that have been followed.
    seen: [(u64, u64); SEEN],
    pieces: usize,
    /// Where data begins and ends: no instructions stand there.
    data: [(u64, u64); DATA],
    literals: usize,
}

impl<C: Code> Search<'_, C> {
    fn run(&mut self) -> Option<C::Rule> {
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

    fn follow(&mut self, mut state: State) -> Option<C::Rule> {
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
    fn follow_piece(&mut self, state: &mut State, limit: u64) -> End<C::Rule> {
        while state.at < limit {
            let here = state.at;
            if self.data.iter().any(|(from, to)| (*from..*to).contains(&here)) {
                return End::Lost;
            }
            let Some(left) = self.left.checked_sub(1) else { return End::Lost };
            self.left = left;
            let Some(mut insn) = self.code.instruction(here) else { return End::Lost };
            state.at = here.wrapping_add(insn.len);
            insn.conditional |= state.conditional > 0;
            state.conditional = state.conditional.saturating_sub(1).max(insn.block);
            if let Some((at, len)) = insn.data {
                self.note_data(at, len);
            }
            if let Some(end) = self.step(state, &insn, here) {
                return end;
            }
        }
        End::Lost
    }

    /// Does one instruction; `None` if the one behind it follows.
    fn step(&mut self, state: &mut State, insn: &Instruction, here: u64) -> Option<End<C::Rule>> {
        let found = match insn.flow {
            Flow::Next if insn.conditional => {
                insn.effects.into_iter().for_each(|effect| state.may_apply(effect));
                return None;
            }
            Flow::Next => return state.apply_all(insn).is_none().then_some(End::Lost),
            Flow::Call => {
                state.lr = Value::Other;
                return None;
            }
            Flow::Conditional(to) => {
                self.later(state, to);
                return None;
            }
            Flow::Branch(to) if insn.conditional => {
                self.later(state, to);
                return None;
            }
            Flow::Branch(to) => {
                let frame = if state.loaded { state.frame() } else { None };
                return Some(frame.and_then(C::rule).map_or(End::Jump(to), End::Rule));
            }
            Flow::Return => {
                // Where it does not go on here, what it loads matters no more.
                let mut state = *state;
                state.apply_all(insn).and_then(|()| state.frame())
            }
            Flow::Register(register) => self.leaves(state, here, register),
            Flow::Stop => None,
        };
        let lost = if insn.conditional { None } else { Some(End::Lost) };
        found.and_then(C::rule).map(End::Rule).or(lost)
    }

    fn later(&mut self, state: &State, to: u64) {
        if let Some(free) = self.ahead.iter_mut().find(|slot| slot.is_none()) {
            *free = Some(State { at: to, conditional: 0, ..*state });
        }
    }

    fn note_data(&mut self, at: u64, len: u64) {
        if let Some(place) = self.data.get_mut(self.literals % DATA) {
            *place = (at, at.wrapping_add(len));
            self.literals = self.literals.wrapping_add(1);
        }
    }

    /// The frame, if the jump at `at` leaves the function, and is not one to a place from a table.
    fn leaves(&mut self, state: &State, at: u64, register: u32) -> Option<Frame> {
        let gave_back = matches!(state.sp, Some((Register::Sp, moved)) if moved > 0);
        if state.loaded || gave_back && state.lr == Value::Initial {
            return state.frame();
        }
        self.code.stub(state, at, register, self.start)
    }
}

/// The rule for the instruction at `at`, or, if that is where a call returns to, of that call. `None` if it
/// does not show.
pub(crate) fn from<C: Code>(at: u64, is_call: bool, code: &mut C) -> Option<C::Rule> {
    let lr = if is_call { Value::Other } else { Value::Initial };
    let mut ahead = [None; AHEAD];
    ahead[0] = Some(State::at(at, lr));
    let (seen, data) = ([(0, 0); SEEN], [(0, 0); DATA]);
    Search { code, start: at, left: MOST, ahead, seen, pieces: 0, data, literals: 0 }.run()
}

/// The rule for the call at `call`, in a function that has nothing on its stack at `start`, by what the
/// instructions in between do: for functions that never return. They are taken in the order in which they
/// stand. What gives back memory of the stack is on a way out, up to where that ends. `None` where the stack
/// pointer is not known, or the return address is not saved.
pub(crate) fn up_to<C: Code>(start: u64, call: u64, code: &mut C) -> Option<C::Rule> {
    let mut state = State::at(start, Value::Initial);
    // As it is where no way out is.
    let mut body = state;
    let (mut data, mut literals) = ([(0, 0); DATA], 0_usize);
    let mut at = start;
    while at < call {
        if let Some((_, end)) = data.iter().find(|(from, to)| (*from..*to).contains(&at)) {
            at = *end;
            continue;
        }
        let insn = code.instruction(at)?;
        at = at.checked_add(insn.len)?;
        if let (Some((from, len)), Some(place)) = (insn.data, data.get_mut(literals % DATA)) {
            *place = (from, from.wrapping_add(len));
            literals = literals.wrapping_add(1);
        }
        if insn.conditional {
            continue;
        }
        let before = state.sp?;
        state.apply_all(&insn)?;
        let leaves =
            matches!(insn.flow, Flow::Return | Flow::Register(_) | Flow::Branch(_) | Flow::Stop);
        if leaves {
            state = body;
        } else if state.sp?.1 <= before.1 && before == body.sp? {
            body = state;
        }
    }
    let (Register::Sp, down) = body.sp? else { return None };
    let slot = |place: Place| match place {
        Some((Register::Sp, at)) if at < 0 => Some(at),
        _ => None,
    };
    let fp_slot = slot(body.fp_saved);
    let keeps = fp_slot.is_some() || body.fp == Value::Initial;
    let ra_slot = Some(slot(body.lr_saved)?);
    let cfa_off = down.checked_neg()?;
    let frame = Frame { base: Register::Sp, cfa_off, ra_slot, fp_slot };
    (at == call && keeps && body.sp == state.sp).then(|| C::rule(frame))?
}
