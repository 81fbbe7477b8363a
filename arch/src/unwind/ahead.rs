//! Unwind rules for code without unwind tables, from the instructions ahead.
//!
//! Code is followed from an address to where its function returns. Whatever path it takes, there the stack
//! pointer is the CFA, and the return address and the frame pointer have been loaded from where they were
//! saved, or are still in their registers. So the function's start need not be found, and the way in which
//! compilers make frames need not be understood. A path that does not show this is given up (a call that
//! never returns is one: behind it is another function's code); then paths that branch off before are
//! followed.
//!
//! The architecture says what the effects of instructions are: see [`Code`].

/// Maximum number of instructions that are examined.
pub(crate) const MOST: u32 = 2048;
/// Maximum number of branches' targets that are still to be followed.
const AHEAD: usize = 16;
/// Maximum number of pieces of code that have been followed.
const SEEN: usize = 32;
/// Maximum number of words of data among instructions that are remembered.
const DATA: usize = 32;

/// The registers that matter.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Register {
    /// The stack pointer.
    Sp,
    /// The frame pointer.
    Fp,
    /// The register in which calls leave the return address.
    Lr,
}

/// Effect of an instruction on these registers.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    None,
    /// Sets the stack pointer to this much above itself, or above the frame pointer.
    SpFrom(Register, i32),
    /// Sets the frame pointer to this much above the stack pointer, or above itself.
    FpFrom(Register, i32),
    /// Gives these registers unknown values.
    Lose {
        sp: bool,
        fp: bool,
        lr: bool,
    },
    /// Loads or stores registers, at an offset from the stack pointer or the frame pointer, which is moved
    /// afterwards. Only frame pointer and link register are listed, with further offsets. A return address
    /// that is loaded into the program counter counts as loaded.
    Move {
        load: bool,
        base: Register,
        offset: i32,
        by: i32,
        registers: [Option<(Register, i32)>; 2],
    },
    /// Occurs only where functions begin.
    Entry,
}

/// Destination of an instruction.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    Next,
    /// Behind the instruction, when the function that it calls returns.
    Call,
    Branch(u64),
    Conditional(u64),
    /// To the return address.
    Return,
    /// To the address in the register with this number.
    Register(u32),
    /// Nowhere, or to an unknown address.
    Stop,
}

/// An instruction.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Instruction {
    /// Length, in bytes.
    pub len: u64,
    /// Whether the instruction does nothing unless a condition holds.
    pub conditional: bool,
    /// Number of instructions behind it that do nothing unless a condition holds.
    pub block: u32,
    /// Destination, after the effects.
    pub flow: Flow,
    /// Effects, in this order.
    pub effects: [Effect; 2],
    /// Address and length of the data that it loads.
    pub data: Option<(u64, u64)>,
}

/// Description of how a frame is found from the registers.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Frame {
    /// Register, stack pointer or frame pointer, that the CFA is `cfa_off` above of.
    pub base: Register,
    pub cfa_off: i32,
    /// Offset of the return address's slot from the CFA; `None`: it is in its register.
    pub ra_slot: Option<i32>,
    /// Offset of the slot with the caller's frame pointer from the CFA; `None`: it is in its register.
    pub fp_slot: Option<i32>,
}

/// An instruction set, and code of it.
pub(crate) trait Code {
    /// The architecture's packed rule.
    type Rule;

    /// Packs a frame; returns `None` if it does not fit.
    fn rule(frame: Frame) -> Option<Self::Rule>;

    /// Returns the instruction at an address; `None` where there is no code.
    fn instruction(&mut self, at: u64) -> Option<Instruction>;

    /// Returns the frame at the search's start, if the jump at `at` to a register is that of a stub, which
    /// leads to another function. `state` has the registers at the jump.
    fn stub(&mut self, state: &State, at: u64, register: u32, start: u64) -> Option<Frame>;
}

/// A place in memory, or an address: how far it is above the stack pointer, or the frame pointer, at the
/// search's start.
pub(crate) type BaseOffset = Option<(Register, i32)>;

/// Content of a register.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Value {
    /// The register's value at the start of the search.
    Initial,
    /// An address.
    Address(Register, i32),
    /// The word of memory that was at this place when the search began.
    Loaded(Register, i32),
    Other,
}

/// Values that a path has given to the registers so far.
#[derive(Copy, Clone, Debug)]
pub(crate) struct State {
    /// Returns the next instruction.
    at: u64,
    /// Stack pointer; `None`: unknown.
    pub sp: BaseOffset,
    pub fp: Value,
    pub lr: Value,
    /// Places where the values from the search's start were saved on the way.
    fp_saved: BaseOffset,
    lr_saved: BaseOffset,
    /// Whether the return address was loaded on the way.
    pub loaded: bool,
    /// Instructions left of those that a condition holds for.
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

    /// Returns the address that is `offset` above what a register holds now.
    pub(crate) fn address(&self, base: Register, offset: i32) -> BaseOffset {
        let (base, from) = match (base, self.fp) {
            (Register::Sp, _) => self.sp?,
            (_, Value::Initial) => (Register::Fp, 0),
            (_, Value::Address(base, from)) => (base, from),
            _ => return None,
        };
        Some((base, from.checked_add(offset)?))
    }

    /// Applies the effect of an instruction; returns `None` if the instruction belongs to another function.
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
                        // A frame is made although the return address is gone.
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

    /// Applies an effect under a condition: it ends the path, or changes nothing but what it writes.
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

    fn save(&mut self, register: Register, place: BaseOffset) {
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

    fn load(&mut self, register: Register, place: BaseOffset) {
        let saved = if register == Register::Lr { self.lr_saved } else { self.fp_saved };
        let value = match place {
            Some(_) if place == saved => Value::Initial,
            // A word below the stack pointer of the search's start was put there later.
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

    /// Returns the frame at the search's start, if the function ends here.
    pub(crate) fn frame(&self) -> Option<Frame> {
        let (base, cfa_off) = self.sp?;
        let slot = |value: Value| match value {
            Value::Initial => Some(None),
            Value::Loaded(of, at) if of == base => {
                at.checked_sub(cfa_off).filter(|slot| *slot < 0).map(Some)
            }
            _ => None,
        };
        let (ra_slot, fp_slot) = (slot(self.lr)?, slot(self.fp)?);
        // The register was spilled within the function, so it held no return address.
        let spilled = matches!(self.lr_saved, Some((Register::Sp, at)) if at >= cfa_off);
        let leaf = base == Register::Sp && cfa_off >= 0 && !spilled;
        (ra_slot.is_some() || leaf).then_some(Frame { base, cfa_off, ra_slot, fp_slot })
    }
}

/// End of a piece of code.
enum End<R> {
    Rule(R),
    Jump(u64),
    Lost,
}

/// Follows the paths from one address on, until one of them shows how its function ends.
struct Search<'a, C> {
    code: &'a mut C,
    start: u64,
    /// Number of instructions that may still be examined.
    left: u32,
    /// Paths to be followed, the next one first.
    ahead: [Option<State>; AHEAD],
    /// Start and end of the pieces that have been followed.
    seen: [(u64, u64); SEEN],
    pieces: usize,
    /// Start and end of data, where there are no instructions.
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

    /// Returns where the piece that begins at `from` meets one that has been followed.
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

    /// Follows code up to the next unconditional branch; `state.at` is then behind the last instruction.
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

    /// Executes one instruction; returns `None` if the one behind it follows.
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
                // Works on a copy, as under a condition the code behind continues with the state from before.
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

    /// Returns the frame, if the jump at `at` leaves the function, and is not one by a table.
    fn leaves(&mut self, state: &State, at: u64, register: u32) -> Option<Frame> {
        let gave_back = matches!(state.sp, Some((Register::Sp, moved)) if moved > 0);
        if state.loaded || gave_back && state.lr == Value::Initial {
            return state.frame();
        }
        self.code.stub(state, at, register, self.start)
    }
}

/// Returns the rule for the instruction at `at`, or, if a call returns to it, for that call. Returns `None`
/// if the code does not show it.
pub(crate) fn from<C: Code>(at: u64, is_call: bool, code: &mut C) -> Option<C::Rule> {
    let lr = if is_call { Value::Other } else { Value::Initial };
    let mut ahead = [None; AHEAD];
    ahead[0] = Some(State::at(at, lr));
    let (seen, data) = ([(0, 0); SEEN], [(0, 0); DATA]);
    Search { code, start: at, left: MOST, ahead, seen, pieces: 0, data, literals: 0 }.run()
}

/// Returns the rule for the call at `call`, in a function that has nothing on its stack at `start`, by what
/// the instructions in between do: for functions that never return. The instructions are taken in the order
/// of their addresses. Code that gives back memory of the stack is on a way out, up to where that ends.
/// Returns `None` if the stack pointer is unknown, or the return address is not saved.
pub(crate) fn up_to<C: Code>(start: u64, call: u64, code: &mut C) -> Option<C::Rule> {
    let mut state = State::at(start, Value::Initial);
    // State outside of all ways out.
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
    let slot = |place: BaseOffset| match place {
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
