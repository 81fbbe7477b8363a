//! The programs that tracepoints run.
//!
//! The kernel does not run a program on a processor on which it is running already, and so passes over what an interrupt
//! does that interrupts the program. Therefore each tracepoint has three copies of its program, which it runs one after
//! the other. An event is known by the address of the program's frame, which is the same for the copies, and is not that
//! of an event that interrupts this one. Each processor has a word for the event that is under way (`OWNER`):
//!
//! * the *first* copy makes an event the owner if there is none. Else the event is one that interrupts: the copy records
//!   it, and says so (`TAKEN`);
//! * the *second* copy records the owner, and what the first one has not taken because it was passed over;
//! * the *last* copy ends the owner's time, and records what both others were passed over for.
//!
//! So the owner's time begins before the second copy runs, and ends behind it, and no interrupt finds a moment at which
//! nobody records. Only one that interrupts an interrupt that interrupts a program may, for some ns. What is lost so is
//! known: for each time that the kernel passes over the first copy, another one must have recorded.

mod stack;

use super::asm::Reg::*;
use super::asm::{Alu, Asm, AsmError, If, Insn, Label, Reg, Width};
use super::facts::{Arguments, Facts};
use super::layout::*;
use crate::live::Kind;
use crate::tracepoints::Tracepoint;

/// Numbers of the kernel's functions for programs.
mod function {
    pub(super) const MAP_LOOKUP_ELEM: i32 = 1;
    pub(super) const KTIME_GET_NS: i32 = 5;
    pub(super) const GET_SMP_PROCESSOR_ID: i32 = 8;
    pub(super) const GET_CURRENT_PID_TGID: i32 = 14;
    pub(super) const GET_STACK: i32 = 67;
    pub(super) const PROBE_READ_KERNEL: i32 = 113;
    pub(super) const PROBE_READ_KERNEL_STR: i32 = 115;
    pub(super) const RINGBUF_OUTPUT: i32 = 130;
    pub(super) const RINGBUF_RESERVE: i32 = 131;
    pub(super) const RINGBUF_SUBMIT: i32 = 132;
}

/// The reader of a ring looks by itself: nobody is woken.
const NO_WAKEUP: i32 = 1;
/// Words on the stack: a key, and a register that is needed again.
const KEY: i16 = -8;
const SAVED: i16 = -16;

/// A copy of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    First,
    Second,
    Last,
}

impl Which {
    /// All copies, in the order in which they must run.
    pub(super) const ALL: [Self; 3] = [Self::First, Self::Second, Self::Last];
}

/// The maps that programs use, by their descriptors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Maps {
    /// The rings by processor.
    pub rings: i32,
    /// Counts of each processor.
    pub state: i32,
    /// The settings and the table of known stacks.
    pub table: i32,
    /// Room of this program's own, on each processor.
    pub scratch: i32,
}

/// What a program is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Purpose<'a> {
    /// The tracepoint, its index, and where its arguments are.
    pub tracepoint: &'a Tracepoint,
    pub index: usize,
    pub arguments: Arguments,
    pub copy: Which,
}

/// Assembles a program.
pub(super) fn assemble(
    purpose: &Purpose<'_>,
    maps: Maps,
    facts: &Facts,
) -> Result<Vec<Insn>, AsmError> {
    let mut a = Asm::default();
    let [done, lost, passed] = [a.label(), a.label(), a.label()];
    let mut p = Program { a, purpose: *purpose, maps, facts, done, lost };
    p.begin(passed);
    if purpose.tracepoint.is_alloc {
        p.alloc()
    } else {
        p.free()
    }
    p.end(passed);
    p.a.finish()
}

/// A program that is being assembled. `R6` has the tracepoint's arguments, `R9` the counts of the processor, and `R7` in
/// one for allocations the room of its own.
struct Program<'a> {
    a: Asm,
    purpose: Purpose<'a>,
    maps: Maps,
    facts: &'a Facts,
    done: Label,
    lost: Label,
}

impl Program<'_> {
    /// Returns the offset of a word that each tracepoint has several of.
    fn word(&self, first: i16, number: i16) -> i16 {
        first + (self.purpose.index as i16 * WORDS + number) * 8
    }

    fn call(&mut self, function: i32) {
        self.a.call(function);
    }

    /// `R2 = ` the address of the key on the stack.
    fn key(&mut self) {
        self.a.mov(R2, R10);
        self.a.alu(Alu::Add, R2, i32::from(KEY));
    }

    /// `R0 = ` the element 0 of an array that each processor has.
    fn own(&mut self, map: i32, missing: Label) {
        self.a.store(Width::Word, R10, KEY, 0);
        self.a.map(R1, map);
        self.key();
        self.call(function::MAP_LOOKUP_ELEM);
        self.a.jump(If::Equal, R0, 0, missing);
    }

    /// Finds the counts, and goes on if this copy is to record the event.
    fn begin(&mut self, passed: Label) {
        self.a.mov(R6, R1);
        self.own(self.maps.state, passed);
        self.a.mov(R9, R0);
        let owner = self.word(OWNERS, OWNER);
        self.a.load(Width::Double, R1, R9, owner);
        self.a.mov(R2, R10);
        match self.purpose.copy {
            Which::First => self.first(owner, passed),
            Which::Second => self.second(passed),
            Which::Last => self.last(owner, passed),
        }
    }

    /// `R1` is the owner, `R2` the event.
    fn first(&mut self, owner: i16, passed: Label) {
        let [mine, other] = [self.a.label(), self.a.label()];
        let taken = self.word(OWNERS, TAKEN);
        self.a.jump(If::Equal, R1, 0, mine);
        self.number(R2);
        self.a.jump(If::NotEqual, R1, R2, other);
        self.a.place(mine);
        self.a.store(Width::Double, R9, taken, 0);
        self.a.store(Width::Double, R9, owner, R10);
        self.a.goto(passed);
        self.a.place(other);
        self.a.load(Width::Double, R1, R9, taken);
        self.a.store(Width::Double, R9, self.word(OWNERS, TAKEN_BEFORE), R1);
        self.a.store(Width::Double, R9, taken, R10);
        self.count(2);
    }

    /// Makes a number of the address of the frame in a register: as what goes by memory, it is no pointer for the
    /// kernel's verifier.
    fn number(&mut self, reg: Reg) {
        self.a.store(Width::Double, R9, self.word(OWNERS, NUMBER), R10);
        self.a.load(Width::Double, reg, R9, self.word(OWNERS, NUMBER));
    }

    fn second(&mut self, passed: Label) {
        let [mine, mark, record] = [self.a.label(), self.a.label(), self.a.label()];
        self.number(R2);
        self.a.jump(If::Equal, R1, R2, mine);
        self.a.jump(If::Equal, R1, 0, mark);
        self.a.load(Width::Double, R1, R9, self.word(OWNERS, TAKEN));
        self.a.jump(If::Equal, R1, R2, passed);
        self.a.place(mark);
        self.count(1);
        self.a.goto(record);
        self.a.place(mine);
        self.count(0);
        self.a.place(record);
        self.a.store(Width::Double, R9, self.word(OWNERS, ACTIVE), 1);
    }

    fn last(&mut self, owner: i16, passed: Label) {
        let [other, taken, record] = [self.a.label(), self.a.label(), self.a.label()];
        self.number(R2);
        self.a.jump(If::NotEqual, R1, R2, other);
        self.a.store(Width::Double, R9, owner, 0);
        self.a.goto(passed);
        self.a.place(other);
        self.a.jump(If::Equal, R1, 0, passed);
        self.a.load(Width::Double, R1, R9, self.word(OWNERS, TAKEN));
        self.a.jump(If::Equal, R1, R2, taken);
        self.a.load(Width::Double, R1, R9, self.word(OWNERS, ACTIVE));
        self.a.jump(If::Equal, R1, 0, passed);
        self.a.goto(record);
        self.a.place(taken);
        self.a.load(Width::Double, R1, R9, self.word(OWNERS, TAKEN_BEFORE));
        self.a.store(Width::Double, R9, self.word(OWNERS, TAKEN), R1);
        self.a.goto(passed);
        self.a.place(record);
        self.count(1);
    }

    /// Counts an event as one of three kinds: an owner, one that the first copy was passed over for, and one that
    /// interrupts and that the first copy has.
    fn count(&mut self, kind: i16) {
        let at = self.word(HITS, kind);
        self.a.load(Width::Double, R1, R9, at);
        self.a.alu(Alu::Add, R1, 1);
        self.a.store(Width::Double, R9, at, R1);
    }

    fn end(&mut self, passed: Label) {
        let full = if self.purpose.tracepoint.is_alloc { FULL_ALLOCS } else { FULL_FREES };
        self.a.place(self.lost);
        self.a.mov(R1, 1);
        self.a.atomic_add(R9, full, R1);
        self.a.place(self.done);
        if self.purpose.copy == Which::Second {
            self.a.store(Width::Double, R9, self.word(OWNERS, ACTIVE), 0);
        }
        self.a.place(passed);
        self.a.exit();
    }

    /// `R1 = ` the ring of this processor.
    fn ring(&mut self) {
        self.call(function::GET_SMP_PROCESSOR_ID);
        self.a.store(Width::Word, R10, KEY, R0);
        self.a.map(R1, self.maps.rings);
        self.key();
        self.call(function::MAP_LOOKUP_ELEM);
        self.a.jump(If::Equal, R0, 0, self.lost);
        self.a.mov(R1, R0);
    }

    /// `R0 = ` room for a record of so many bytes in the ring.
    fn reserve(&mut self, bytes: i16) {
        self.ring();
        self.a.mov(R2, i32::from(bytes));
        self.a.mov(R3, 0);
        self.call(function::RINGBUF_RESERVE);
        self.a.jump(If::Equal, R0, 0, self.lost);
    }

    /// Hands the record in `R1` over.
    fn submit(&mut self) {
        self.a.mov(R2, NO_WAKEUP);
        self.call(function::RINGBUF_SUBMIT);
    }

    /// `dst = ` an argument of the tracepoint.
    fn argument(&mut self, dst: Reg, index: u8) {
        self.a.load(Width::Double, dst, R6, i16::from(index) * 8);
    }

    /// `reg = ` the record's word of tracepoint and number, where `reg` is the number.
    fn tag(&mut self, reg: Reg) {
        self.a.alu(Alu::Lsh, reg, 32);
        self.a.alu(Alu::Add, reg, self.purpose.index as i32);
    }

    fn free(&mut self) {
        self.reserve(FREE_LENGTH);
        self.a.mov(R7, R0);
        self.call(function::KTIME_GET_NS);
        self.a.store(Width::Double, R7, TIME, R0);
        self.argument(R1, self.purpose.arguments.address);
        self.a.store(Width::Double, R7, ADDRESS, R1);
        match self.purpose.arguments.size {
            Some(order) => self.argument(R1, order),
            None => self.a.mov(R1, 0),
        }
        self.tag(R1);
        self.a.store(Width::Double, R7, TAG, R1);
        self.a.mov(R1, R7);
        self.submit();
        self.a.goto(self.done);
    }

    fn alloc(&mut self) {
        self.own(self.maps.scratch, self.done);
        self.a.mov(R7, R0);
        self.call(function::KTIME_GET_NS);
        self.a.store(Width::Double, R7, TIME, R0);
        self.scope();
        self.block();
        self.sample();
        let (slow, output) = (self.a.label(), self.a.label());
        self.known_stack(slow, output);
        self.a.place(slow);
        self.a.load(Width::Double, R9, R10, SAVED);
        self.a.mov(R8, -1);
        self.a.place(output);
        self.whole_stack();
    }

    /// Goes on for the process of the scope only.
    fn scope(&mut self) {
        let all = self.a.label();
        self.call(function::GET_CURRENT_PID_TGID);
        self.a.store(Width::Double, R7, THREAD, R0);
        self.a.map_value(R1, self.maps.table, 0);
        self.a.load(Width::Double, R2, R1, SCOPE);
        self.a.jump(If::Equal, R2, 0, all);
        self.a.alu(Alu::Rsh, R0, 32);
        self.a.jump(If::NotEqual, R0, R2, self.done);
        self.a.place(all);
    }

    /// Notes address, size and cache; goes on for the sizes that are wanted.
    fn block(&mut self) {
        let arguments = self.purpose.arguments;
        self.argument(R1, arguments.address);
        self.a.jump(If::Equal, R1, 0, self.done); // none was to be had
        self.a.store(Width::Double, R7, ADDRESS, R1);
        if let Some(size) = arguments.size {
            self.argument(R1, size);
            if self.purpose.tracepoint.kind == Kind::Page {
                self.a.alu(Alu::And, R1, 0xff);
            }
            self.a.store(Width::Double, R7, SIZE, R1);
        }
        match arguments.cache {
            Some(cache) => self.cache(cache),
            None => self.a.store(Width::Double, R7, FIRST, self.purpose.index as i32 + 1),
        }
        let limits = if self.purpose.tracepoint.kind == Kind::Page { ORDERS } else { SIZES };
        self.a.load(Width::Double, R1, R7, SIZE);
        self.a.map_value(R2, self.maps.table, i32::from(limits));
        self.a.load(Width::Double, R3, R2, 0);
        self.a.jump(If::Less, R1, R3, self.done);
        self.a.load(Width::Double, R3, R2, 8);
        self.a.jump(If::Greater, R1, R3, self.done);
    }

    /// `R0 = ` the result of reading memory of the kernel's at `R3` to an offset in the own room.
    fn read(&mut self, offset: i16, length: i32) {
        self.a.mov(R1, R7);
        self.a.alu(Alu::Add, R1, i32::from(offset));
        self.a.mov(R2, length);
        self.call(function::PROBE_READ_KERNEL);
    }

    /// Reads the size of a slab cache's objects, and makes of its address, its name and its size the word by which it is
    /// known. With that the name need not be in each event, and another cache at the same address is another one.
    fn cache(&mut self, argument: u8) {
        let (size, name) = (self.facts.cache_size, self.facts.cache_name);
        let low = size.min(name) & !7;
        let span = size.max(name) + 8 - low;
        self.argument(R3, argument);
        self.a.alu(Alu::Add, R3, i32::from(low));
        self.read(RAW, i32::from(span));
        self.a.jump(If::NotEqual, R0, 0, self.lost);
        self.a.load(Width::Double, R8, R7, RAW + name - low);
        self.a.store(Width::Double, R7, NAME_POINTER, R8);
        self.a.load(Width::Word, R1, R7, RAW + size - low);
        if self.purpose.arguments.size.is_none() {
            self.a.store(Width::Double, R7, SIZE, R1);
        }
        self.a.mov(R3, R8);
        self.argument(R8, argument);
        self.mix(R1);
        self.a.load(Width::Double, R1, R7, NAME_POINTER);
        self.mix(R1);
        self.read(RAW, 16);
        for word in [0, 8] {
            self.a.load(Width::Double, R1, R7, RAW + word);
            self.mix(R1);
        }
        // Without the name's text it is not known well enough.
        let read = self.a.label();
        self.a.jump(If::Equal, R0, 0, read);
        self.a.mov(R8, 0);
        self.a.place(read);
        self.a.store(Width::Double, R7, FIRST, R8);
    }

    /// Goes on for one of so many events.
    fn sample(&mut self) {
        let taken = self.a.label();
        let count = self.word(SAMPLED, self.purpose.copy as i16);
        self.a.map_value(R1, self.maps.table, 0);
        self.a.load(Width::Double, R2, R1, EVERY);
        self.a.jump(If::Less, R2, 2, taken);
        self.a.load(Width::Double, R3, R9, count);
        self.a.alu(Alu::Add, R3, 1);
        self.a.store(Width::Double, R9, count, R3);
        self.a.jump(If::Less, R3, R2, self.done);
        self.a.store(Width::Double, R9, count, 0);
        self.a.place(taken);
    }
}
