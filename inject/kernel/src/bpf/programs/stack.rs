//! Looks a stack up in the table of known ones, or hands it out whole.

use super::*;

impl Program<'_> {
    /// Mixes a register into `R8`.
    pub(super) fn mix(&mut self, word: Reg) {
        self.a.alu(Alu::Mul, R8, MULTIPLIER);
        self.a.alu(Alu::Xor, R8, word);
    }

    /// `R8 = ` the bytes from the end of the program's frame to the end of the thread's stack, if they are not too many
    /// to be looked at; `R3 = ` the address of the former. A program's frame lies on the stack of the thread that it
    /// interrupts, and that stack begins at a multiple of its size. (With KASAN it is two or four times as
    /// large: what this finds is the end for the last 16 KiB, and else something that is the end of no known stack.)
    fn extent(&mut self, too_many: Label) {
        // What goes by memory is a number for the kernel's verifier, and no pointer.
        self.a.store(Width::Double, R7, FRAME, R10);
        self.a.load(Width::Double, R3, R7, FRAME);
        self.a.mov(R1, R3);
        self.a.alu(Alu::And, R1, STACK - 1);
        self.a.mov(R8, STACK);
        self.a.alu(Alu::Sub, R8, R1);
        self.a.jump(If::Greater, R8, RAW_LENGTH, too_many);
    }

    /// Looks whether the stack is a known one; see `memo.rs`. If so, hands out a record with its number, or, for one of
    /// some, goes on to `output` with the number in `R8`, so that it can be compared.
    pub(super) fn known_stack(&mut self, slow: Label, output: Label) {
        self.a.store(Width::Double, R10, SAVED, R9);
        self.a.map_value(R1, self.maps.table, 0);
        self.a.load(Width::Double, R2, R1, USES_TABLE);
        self.a.jump(If::Equal, R2, 0, slow);
        self.extent(slow);
        self.a.mov(R1, R7);
        self.a.alu(Alu::Add, R1, i32::from(RAW));
        self.a.mov(R2, R8);
        self.call(function::PROBE_READ_KERNEL);
        self.a.jump(If::NotEqual, R0, 0, slow);
        self.a.load(Width::Double, R3, R7, FIRST);
        self.a.mov(R4, 0);
        self.a.mov(R5, 0);
        self.a.mov(R9, 0);
        let (again, known) = (self.a.label(), self.a.label());
        self.a.place(again);
        self.step(slow, known);
        self.a.alu(Alu::Add, R9, 1);
        self.a.jump(If::Less, R9, DEPTH, again);
        self.a.goto(slow);
        self.a.place(known);
        self.a.load(Width::Double, R9, R10, SAVED);
        self.a.map_value(R1, self.maps.table, 0);
        self.a.load(Width::Double, R2, R1, COMPARED);
        self.a.load(Width::Double, R1, R7, TIME);
        self.a.alu(Alu::Rsh, R1, 6);
        self.a.alu(Alu::And, R1, R2);
        self.a.jump(If::Equal, R1, 0, output);
        self.reserve(ALLOC_LENGTH);
        self.tag(R8);
        self.a.store(Width::Double, R0, TAG, R8);
        for field in [TIME, ADDRESS, SIZE, THREAD] {
            self.a.load(Width::Double, R1, R7, field);
            self.a.store(Width::Double, R0, field, R1);
        }
        self.a.mov(R1, R0);
        self.submit();
        self.a.goto(self.done);
    }

    /// Goes from a frame to its caller's: `R3` is the return address, `R5` the node of the frames before it, `R4` the
    /// place of the return address from the end of the program's frame on, and `R8` the bytes up to the stack's end.
    fn step(&mut self, slow: Label, known: Label) {
        let [found, goes_on] = [self.a.label(), self.a.label()];
        self.a.mov(R1, R5);
        self.a.alu(Alu::Mul, R1, NODE_MULTIPLIER);
        self.a.alu(Alu::Add, R1, R3);
        self.a.alu(Alu::Mul, R1, MULTIPLIER);
        self.a.alu(Alu::Rsh, R1, HASH_SHIFT);
        self.a.alu(Alu::And, R1, ENTRIES as i32 - 1);
        self.a.alu(Alu::Mul, R1, ENTRY as i32);
        self.a.map_value(R0, self.maps.table, SETTINGS as i32);
        self.a.alu(Alu::Add, R0, R1);
        for i in 0..PROBES {
            let next = self.a.label();
            if i > 0 {
                self.a.alu(Alu::Add, R0, ENTRY as i32);
            }
            self.a.load(Width::Double, R2, R0, ENTRY_ADDRESS);
            self.a.jump(If::NotEqual, R2, R3, next);
            self.a.load(Width::Double, R2, R0, ENTRY_PARENT);
            self.a.jump(If::Equal, R2, R5, found);
            self.a.place(next);
        }
        self.a.goto(slow);
        self.a.place(found);
        self.a.load(Width::Double, R1, R0, ENTRY_END);
        self.a.jump(If::Equal, R1, 0, goes_on);
        self.a.mov(R2, R1);
        self.a.alu(Alu::Rsh, R2, 32);
        self.a.alu(Alu::Add, R2, R4);
        self.a.jump(If::NotEqual, R2, R8, goes_on);
        self.a.mov(R8, R1);
        self.a.alu(Alu::Lsh, R8, 32);
        self.a.alu(Alu::Rsh, R8, 32);
        self.a.alu(Alu::Sub, R8, 1);
        self.a.goto(known);
        self.a.place(goes_on);
        self.a.load(Width::Double, R1, R0, ENTRY_NEXT);
        self.a.mov(R5, R1);
        self.a.alu(Alu::Lsh, R5, 32);
        self.a.alu(Alu::Rsh, R5, 32);
        self.a.alu(Alu::Rsh, R1, 32);
        self.a.jump(If::Equal, R1, 0, slow);
        self.way(slow);
        self.a.jump(If::Greater, R4, RAW_LENGTH - 8, slow);
        self.a.jump(If::AtLeast, R4, R8, slow);
        self.a.mov(R1, R7);
        self.a.alu(Alu::Add, R1, R4);
        self.a.load(Width::Double, R3, R1, RAW);
    }

    /// Adds the way in `R1` to the place in `R4`.
    fn way(&mut self, slow: Label) {
        let [by_word, from_end, there] = [self.a.label(), self.a.label(), self.a.label()];
        self.a.jump(If::AnyBit, R1, BY_WORD as i32, by_word);
        self.a.jump(If::AnyBit, R1, FROM_END as i32, from_end);
        self.a.alu(Alu::Add, R4, R1);
        self.a.goto(there);
        self.a.place(from_end);
        self.a.alu(Alu::And, R1, DISTANCE as i32);
        self.a.mov(R4, R8);
        self.a.alu(Alu::Sub, R4, R1);
        self.a.goto(there);
        self.a.place(by_word);
        self.a.alu(Alu::And, R1, DISTANCE as i32);
        self.a.alu(Alu::Sub, R4, R1);
        self.a.jump(If::Greater, R4, RAW_LENGTH - 8, slow);
        self.a.mov(R2, R7);
        self.a.alu(Alu::Add, R2, R4);
        self.a.load(Width::Double, R4, R2, RAW);
        self.a.load(Width::Double, R1, R7, FRAME);
        self.a.alu(Alu::Sub, R4, R1);
        self.a.alu(Alu::Add, R4, 8);
        self.a.place(there);
    }

    /// Hands out a record with the whole stack, and for some with a copy of its memory, so that it becomes known. `R8`
    /// is the number that it has, or -1.
    pub(super) fn whole_stack(&mut self) {
        self.tag(R8);
        self.a.store(Width::Double, R7, TAG, R8);
        self.a.store(Width::Double, R7, NAME, 0);
        if self.purpose.arguments.cache.is_some() {
            self.a.mov(R1, R7);
            self.a.alu(Alu::Add, R1, i32::from(NAME));
            self.a.mov(R2, NAME_LENGTH);
            self.a.load(Width::Double, R3, R7, NAME_POINTER);
            self.call(function::PROBE_READ_KERNEL_STR);
        }
        self.a.mov(R1, R6);
        self.a.mov(R2, R7);
        self.a.alu(Alu::Add, R2, i32::from(FRAMES));
        self.a.mov(R3, FRAMES_LENGTH);
        self.a.mov(R4, 0);
        self.call(function::GET_STACK);
        let [none, some] = [self.a.label(), self.a.label()];
        self.a.jump(If::Negative, R0, 0, none);
        self.a.jump(If::Greater, R0, FRAMES_LENGTH, none);
        self.a.goto(some);
        self.a.place(none);
        self.a.mov(R0, 0);
        self.a.place(some);
        self.a.store(Width::Double, R7, FRAMES_BYTES, R0);
        self.a.store(Width::Double, R7, RAW_BYTES, 0);
        self.a.mov(R8, R0);
        self.memory();
        self.ring();
        self.a.mov(R2, R7);
        self.a.mov(R3, R8);
        self.a.alu(Alu::Add, R3, i32::from(FRAMES));
        self.a.mov(R4, NO_WAKEUP);
        self.call(function::RINGBUF_OUTPUT);
        self.a.jump(If::NotEqual, R0, 0, self.lost);
        self.a.goto(self.done);
    }

    /// Puts a copy of the stack's memory behind the frames, whose bytes `R8` has, and adds its bytes to `R8`. That is done
    /// for one of eight, by chance.
    fn memory(&mut self) {
        let [without, too_many] = [self.a.label(), self.a.label()];
        self.a.map_value(R1, self.maps.table, 0);
        self.a.load(Width::Double, R2, R1, LEARNS);
        self.a.jump(If::Equal, R2, 0, without);
        self.a.load(Width::Double, R1, R7, TIME);
        self.a.alu(Alu::Rsh, R1, 4);
        self.a.jump(If::AnyBit, R1, 7, without);
        self.a.store(Width::Double, R10, SAVED, R9);
        self.a.mov(R9, R8);
        self.extent(too_many);
        self.a.mov(R1, R7);
        self.a.alu(Alu::Add, R1, i32::from(FRAMES));
        self.a.alu(Alu::Add, R1, R9);
        self.a.mov(R2, R8);
        self.call(function::PROBE_READ_KERNEL);
        self.a.jump(If::NotEqual, R0, 0, too_many);
        self.a.store(Width::Double, R7, RAW_BYTES, R8);
        self.a.alu(Alu::Add, R9, R8);
        self.a.place(too_many);
        self.a.mov(R8, R9);
        self.a.load(Width::Double, R9, R10, SAVED);
        self.a.place(without);
    }
}
