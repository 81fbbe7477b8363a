//! Assembles programs for the kernel's BPF machine.
//!
//! The machine has eleven registers of 64 bits. A call takes its arguments from `R1` to `R5`, returns in `R0`, and
//! leaves `R6` to `R9` as they are; `R10` is the end of the stack frame and can't be written.

use std::fmt;

/// A register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// The second operand of an instruction.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operand {
    /// A register.
    Reg(Reg),
    /// A number, which the machine extends to 64 bits with its sign.
    Imm(i32),
}

impl From<Reg> for Operand {
    fn from(r: Reg) -> Self {
        Self::Reg(r)
    }
}

impl From<i32> for Operand {
    fn from(n: i32) -> Self {
        Self::Imm(n)
    }
}

/// An operation of arithmetic on 64 bits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Alu {
    Add = 0x00,
    Sub = 0x10,
    Mul = 0x20,
    And = 0x50,
    Lsh = 0x60,
    Rsh = 0x70,
    Xor = 0xa0,
    Mov = 0xb0,
}

/// The condition of a jump. Numbers have no sign but where it is said.
#[derive(Clone, Copy, Debug)]
pub(super) enum If {
    Equal = 0x10,
    Greater = 0x20,
    AtLeast = 0x30,
    /// A bit of the second operand is set in the first one.
    AnyBit = 0x40,
    NotEqual = 0x50,
    /// Less, with signs.
    Negative = 0xc0,
    Less = 0xa0,
}

/// The width of a memory access.
#[derive(Clone, Copy, Debug)]
pub(super) enum Width {
    /// 4 bytes.
    Word = 0x00,
    /// 8 bytes.
    Double = 0x18,
}

/// A place in a program that is jumped to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(usize);

/// Why a program can't be assembled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AsmError {
    /// A label that is jumped to stands nowhere.
    NoPlace(Label),
    /// A jump goes over more instructions than it can hold.
    TooFar(Label),
}

impl fmt::Display for AsmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPlace(l) => write!(f, "label {} stands nowhere", l.0),
            Self::TooFar(l) => write!(f, "label {} is too far from its jump", l.0),
        }
    }
}

/// An instruction as the kernel's `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Insn {
    code: u8,
    registers: u8,
    offset: i16,
    imm: i32,
}

const CLASS_LD: u8 = 0;
const CLASS_LDX: u8 = 1;
const CLASS_ST: u8 = 2;
const CLASS_STX: u8 = 3;
const CLASS_JMP: u8 = 5;
const CLASS_ALU64: u8 = 7;
const MODE_MEM: u8 = 0x60;
const MODE_ATOMIC: u8 = 0xc0;
const SOURCE_REG: u8 = 0x08;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;
/// What the number of a wide load is: the descriptor of a map, and that of a map whose content is meant.
const PSEUDO_MAP: u8 = 1;
const PSEUDO_MAP_VALUE: u8 = 2;

/// A program that is being assembled.
#[derive(Debug, Default)]
pub(super) struct Asm {
    insns: Vec<Insn>,
    places: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

impl Asm {
    fn put(&mut self, code: u8, dst: Reg, src: u8, offset: i16, imm: i32) {
        let (dst, src) = if cfg!(target_endian = "little") {
            (dst as u8, src << 4)
        } else {
            ((dst as u8) << 4, src) // bit fields
        };
        self.insns.push(Insn { code, registers: dst | src, offset, imm });
    }

    fn with(&mut self, code: u8, dst: Reg, operand: Operand, offset: i16) {
        match operand {
            Operand::Reg(src) => self.put(code | SOURCE_REG, dst, src as u8, offset, 0),
            Operand::Imm(n) => self.put(code, dst, 0, offset, n),
        }
    }

    /// Makes a label, which [`Asm::place`] puts somewhere.
    pub(super) fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// Puts a label here.
    pub(super) fn place(&mut self, label: Label) {
        self.places[label.0] = Some(self.insns.len());
    }

    /// `dst = dst op operand`.
    pub(super) fn alu(&mut self, op: Alu, dst: Reg, operand: impl Into<Operand>) {
        self.with(CLASS_ALU64 | op as u8, dst, operand.into(), 0);
    }

    /// `dst = operand`.
    pub(super) fn mov(&mut self, dst: Reg, operand: impl Into<Operand>) {
        self.alu(Alu::Mov, dst, operand);
    }

    /// `dst = ` the map.
    pub(super) fn map(&mut self, dst: Reg, fd: i32) {
        self.load_wide(dst, PSEUDO_MAP, fd, 0);
    }

    /// `dst = ` the address of a byte in the only element of an array.
    pub(super) fn map_value(&mut self, dst: Reg, fd: i32, offset: i32) {
        self.load_wide(dst, PSEUDO_MAP_VALUE, fd, offset);
    }

    fn load_wide(&mut self, dst: Reg, kind: u8, low: i32, high: i32) {
        self.put(CLASS_LD | Width::Double as u8, dst, kind, 0, low);
        self.put(0, Reg::R0, 0, 0, high);
    }

    /// `dst = *(src + offset)`.
    pub(super) fn load(&mut self, width: Width, dst: Reg, src: Reg, offset: i16) {
        self.put(CLASS_LDX | MODE_MEM | width as u8, dst, src as u8, offset, 0);
    }

    /// `*(dst + offset) = operand`.
    pub(super) fn store(
        &mut self,
        width: Width,
        dst: Reg,
        offset: i16,
        operand: impl Into<Operand>,
    ) {
        match operand.into() {
            Operand::Reg(src) => {
                self.put(CLASS_STX | MODE_MEM | width as u8, dst, src as u8, offset, 0);
            }
            Operand::Imm(n) => self.put(CLASS_ST | MODE_MEM | width as u8, dst, 0, offset, n),
        }
    }

    /// `*(dst + offset) += src`, of 64 bits, at once for all processors.
    pub(super) fn atomic_add(&mut self, dst: Reg, offset: i16, src: Reg) {
        let code = CLASS_STX | MODE_ATOMIC | Width::Double as u8;
        self.put(code, dst, src as u8, offset, 0);
    }

    /// Jumps to a label if a condition holds.
    pub(super) fn jump(
        &mut self,
        condition: If,
        dst: Reg,
        operand: impl Into<Operand>,
        label: Label,
    ) {
        self.jumps.push((self.insns.len(), label));
        self.with(CLASS_JMP | condition as u8, dst, operand.into(), 0);
    }

    /// Jumps to a label.
    pub(super) fn goto(&mut self, label: Label) {
        self.jumps.push((self.insns.len(), label));
        self.put(CLASS_JMP, Reg::R0, 0, 0, 0);
    }

    /// Calls a function of the kernel's by its number.
    pub(super) fn call(&mut self, function: i32) {
        self.put(CLASS_JMP | CALL, Reg::R0, 0, 0, function);
    }

    /// Ends the program with the result 0.
    pub(super) fn exit(&mut self) {
        self.mov(Reg::R0, 0);
        self.put(CLASS_JMP | EXIT, Reg::R0, 0, 0, 0);
    }

    /// Returns the instructions.
    ///
    /// # Errors
    /// If a jump has no target, or one that is too far away.
    pub(super) fn finish(mut self) -> Result<Vec<Insn>, AsmError> {
        for (at, label) in self.jumps {
            let place = self.places[label.0].ok_or(AsmError::NoPlace(label))?;
            let distance = place as i64 - at as i64 - 1;
            self.insns[at].offset = distance.try_into().map_err(|_| AsmError::TooFar(label))?;
        }
        Ok(self.insns)
    }
}

#[cfg(test)]
mod tests {
    use super::Reg::*;
    use super::*;

    fn bytes(asm: Asm) -> Vec<[u8; 8]> {
        let encode = |i: Insn| {
            let (o, n) = (i.offset.to_le_bytes(), i.imm.to_le_bytes());
            [i.code, i.registers, o[0], o[1], n[0], n[1], n[2], n[3]]
        };
        asm.finish().expect("a program").into_iter().map(encode).collect()
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn instructions_are_the_kernels() {
        let mut a = Asm::default();
        a.mov(R6, R1);
        a.mov(R2, -4);
        a.alu(Alu::Add, R2, R10);
        a.map_value(R3, 9, 0x0506_0708);
        a.map(R1, 7);
        a.load(Width::Double, R8, R6, 16);
        a.store(Width::Word, R10, -4, 0);
        a.store(Width::Double, R7, 8, R8);
        a.atomic_add(R9, 24, R1);
        a.call(14);
        a.exit();
        assert_eq!(
            bytes(a),
            [
                [0xbf, 0x16, 0, 0, 0, 0, 0, 0],
                [0xb7, 0x02, 0, 0, 0xfc, 0xff, 0xff, 0xff],
                [0x0f, 0xa2, 0, 0, 0, 0, 0, 0],
                [0x18, 0x23, 0, 0, 9, 0, 0, 0],
                [0x00, 0x00, 0, 0, 8, 7, 6, 5],
                [0x18, 0x11, 0, 0, 7, 0, 0, 0],
                [0x00, 0x00, 0, 0, 0, 0, 0, 0],
                [0x79, 0x68, 16, 0, 0, 0, 0, 0],
                [0x62, 0x0a, 0xfc, 0xff, 0, 0, 0, 0],
                [0x7b, 0x87, 8, 0, 0, 0, 0, 0],
                [0xdb, 0x19, 24, 0, 0, 0, 0, 0],
                [0x85, 0x00, 0, 0, 14, 0, 0, 0],
                [0xb7, 0x00, 0, 0, 0, 0, 0, 0],
                [0x95, 0x00, 0, 0, 0, 0, 0, 0],
            ]
        );
    }

    #[test]
    fn jumps_go_forwards_and_backwards() {
        let mut a = Asm::default();
        let (again, out) = (a.label(), a.label());
        a.place(again);
        a.jump(If::Equal, R1, 5, out);
        a.jump(If::Less, R1, R2, again);
        a.goto(again);
        a.place(out);
        a.exit();
        let all = a.finish().expect("a program");
        let offsets: Vec<i16> = all.iter().map(|i| i.offset).collect();
        assert_eq!(offsets, [2, -2, -3, 0, 0]);
        assert_eq!((all[0].code, all[1].code, all[2].code), (0x15, 0xad, 0x05));
    }

    #[test]
    fn jumps_without_a_target_are_refused() {
        let mut a = Asm::default();
        let nowhere = a.label();
        a.goto(nowhere);
        assert_eq!(a.finish(), Err(AsmError::NoPlace(nowhere)));
        let mut a = Asm::default();
        let far = a.label();
        a.goto(far);
        (0..=i16::MAX as usize).for_each(|_| a.mov(R0, 0));
        a.place(far);
        assert_eq!(a.finish(), Err(AsmError::TooFar(far)));
    }
}
