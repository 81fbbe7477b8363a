//! Unwinding by `.ARM.exidx` and `.ARM.extab`: "Exception Handling ABI for the Arm Architecture"
//! (ehabi32), sections 6 (tables) and 10.3 (unwinding instructions).
//!
//! The index table has a row per function, in the order of addresses: the function's start, and either its
//! unwinding instructions or their place in the other table. The instructions run backwards through the
//! frame: each pops registers off a virtual stack pointer, or moves that.

use super::regs::{FullRegs, LR, PC, R7, Rule, SP};
use crate::generic::rule::Form;
use crate::unwind::{CfiModule, FullStep, RegisterSet};

/// Size of a row of the index table, in bytes.
const ROW: usize = 8;
/// Value in place of instructions: the function can't be unwound.
const CANT_UNWIND: u32 = 1;
/// Flag of a word in the compact form: it has instructions, and not a distance.
const COMPACT: u32 = 1 << 31;
/// Maximum number of instructions of one function; compilers make 20 bytes at most.
const MOST: usize = 1024;

/// The table `.ARM.exidx` of one module.
#[derive(Copy, Clone, Debug, Default)]
pub struct Exidx<'a> {
    /// Content of the table.
    pub bytes: &'a [u8],
    /// Address of the table.
    pub addr: u64,
}

/// Row of the table for a code address.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// Start of the function, without the Thumb bit.
    pub function: u64,
    /// Second word of the row.
    word: u32,
    /// Address of that word.
    addr: u64,
}

/// Returns the address at the 31-bit distance `word` from `place`.
fn prel31(word: u32, place: u64) -> u64 {
    let distance = (word << 1) as i32 >> 1;
    place.wrapping_add_signed(i64::from(distance)) & 0xffff_ffff
}

impl Exidx<'_> {
    fn word(&self, offset: usize) -> Option<u32> {
        Some(u32::from_le_bytes(*self.bytes.get(offset..)?.first_chunk()?))
    }

    /// Returns the start of the function of row `n`.
    fn start(&self, n: usize) -> Option<u64> {
        let offset = n.checked_mul(ROW)?;
        Some(prel31(self.word(offset)?, self.addr.wrapping_add(offset as u64)) & !1)
    }

    /// Returns the row of the function that the code address lies in: the last one that starts at or before
    /// it. The last row covers whatever follows; the linker puts one that can't be unwound at the end of a
    /// module's code.
    #[must_use]
    pub fn find(&self, pc: u64) -> Option<Row> {
        let (mut low, mut high) = (0, self.bytes.len() / ROW);
        while low < high {
            let middle = low.midpoint(high);
            if self.start(middle)? <= pc {
                low = middle.checked_add(1)?;
            } else {
                high = middle;
            }
        }
        let n = low.checked_sub(1)?;
        let offset = n.checked_mul(ROW)?.checked_add(4)?;
        let addr = self.addr.wrapping_add(offset as u64);
        Some(Row { function: self.start(n)?, word: self.word(offset)?, addr })
    }
}

impl Exidx<'_> {
    /// Returns the range from the start of the function that the code address lies in to that of the next
    /// one.
    #[must_use]
    pub fn range(&self, pc: u64) -> Option<core::ops::Range<u64>> {
        let row = self.find(pc).filter(|row| row.word != CANT_UNWIND)?;
        let offset = row.addr.wrapping_add(4).wrapping_sub(self.addr);
        let next = self.start(usize::try_from(offset).ok()? / ROW)?;
        Some(row.function..next)
    }
}

/// Returns the index table of a module, and a function that reads words of its tables.
pub(super) fn tables<'a>(
    cfi: &'a CfiModule<'_>,
) -> (Exidx<'a>, impl FnMut(u64) -> Option<u32> + use<'a>) {
    let in_slice = |bytes: &[u8], start: u64, at: u64| {
        let offset = usize::try_from(at.checked_sub(start)?).ok()?;
        Some(u32::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
    };
    let read = move |at| {
        in_slice(cfi.extab, cfi.extab_addr, at).or_else(|| in_slice(cfi.exidx, cfi.exidx_addr, at))
    };
    (Exidx { bytes: cfi.exidx, addr: cfi.exidx_addr }, read)
}

/// Unwinding instructions of one function, read byte by byte.
struct Code<'a, F> {
    read: &'a mut F,
    /// Bytes left of the current word, the next one on top.
    word: u32,
    bytes: u32,
    /// Number of words that follow, and their address.
    words: u32,
    next: u64,
}

impl<F: FnMut(u64) -> Option<u32>> Code<'_, F> {
    /// Returns the next byte; `Ok(None)` at the end.
    fn byte(&mut self) -> Result<Option<u8>, ()> {
        if self.bytes == 0 {
            let Some(left) = self.words.checked_sub(1) else { return Ok(None) };
            self.word = (self.read)(self.next).ok_or(())?;
            (self.bytes, self.words) = (4, left);
            self.next = self.next.wrapping_add(4);
        }
        let byte = (self.word >> 24) as u8;
        self.word <<= 8;
        self.bytes = self.bytes.wrapping_sub(1);
        Ok(Some(byte))
    }

    /// Returns the second byte of an instruction.
    fn operand(&mut self) -> Result<u8, ()> {
        self.byte()?.ok_or(())
    }

    fn uleb128(&mut self) -> Result<u64, ()> {
        let (mut value, mut shift) = (0_u64, 0_u32);
        loop {
            let byte = self.operand()?;
            if shift > 28 {
                return Err(());
            }
            value |= u64::from(byte & 0x7f) << shift;
            shift = shift.wrapping_add(7);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
    }
}

/// Returns the instructions that a row leads to.
fn code<F: FnMut(u64) -> Option<u32>>(row: Row, read: &mut F) -> Option<Code<'_, F>> {
    let (mut word, mut at) = (row.word, row.addr);
    if word & COMPACT == 0 {
        at = prel31(word, at);
        word = read(at)?;
    } else if word >> 24 != 0x80 {
        return None; // only the first form fits into a row
    }
    at = at.wrapping_add(4);
    if word & COMPACT == 0 {
        // The function has a personality routine of its own. For GNU's, the number of further words and three
        // bytes of instructions are next (`__gnu_unwind_frame` of libgcc).
        word = read(at)?;
        at = at.wrapping_add(4);
        return Some(Code { read, word: word << 8, bytes: 3, words: word >> 24, next: at });
    }
    match word >> 24 {
        0x80 => Some(Code { read, word: word << 8, bytes: 3, words: 0, next: at }),
        0x81 | 0x82 => {
            Some(Code { read, word: word << 16, bytes: 2, words: word >> 16 & 0xff, next: at })
        }
        _ => None,
    }
}

/// An unwinding instruction, as far as it concerns general registers.
#[derive(Copy, Clone)]
enum Op {
    /// Moves the virtual stack pointer by this many bytes.
    Skip(u64),
    /// Pops vector registers of this many bytes.
    Vectors(u64),
    /// Pops the general registers whose bits are set.
    Pop(u32),
    /// Takes the virtual stack pointer from a register.
    From(u16),
    /// Does nothing that matters here.
    Nothing,
    /// Ends the instructions.
    Finish,
}

/// Returns the next instruction.
fn operation<F: FnMut(u64) -> Option<u32>>(code: &mut Code<'_, F>) -> Result<Op, ()> {
    /// Returns the bytes of `count` + 1 vector registers.
    const fn vectors(count: u8) -> u64 {
        (count as u64).wrapping_add(1).wrapping_mul(8)
    }
    let Some(byte) = code.byte()? else { return Ok(Op::Finish) };
    let low = byte & 7;
    Ok(match byte {
        0x00..=0x3f => Op::Skip((u64::from(byte) << 2).wrapping_add(4)),
        0x40..=0x7f => Op::Skip((u64::from(byte & 0x3f) << 2).wrapping_add(4).wrapping_neg()),
        0x80..=0x8f => match u32::from(byte & 15) << 12 | u32::from(code.operand()?) << 4 {
            0 => return Err(()), // refuse to unwind
            mask => Op::Pop(mask),
        },
        0x9d | 0x9f => return Err(()),
        0x90..=0x9f => Op::From(u16::from(byte & 15)),
        0xa0..=0xaf => {
            let link = u32::from(byte >> 3 & 1) << LR;
            Op::Pop(0xff_u32 >> 7_u32.wrapping_sub(u32::from(low)) << 4 | link)
        }
        0xb0 => Op::Finish,
        0xb1 => match code.operand()? {
            mask @ 1..=15 => Op::Pop(u32::from(mask)),
            _ => return Err(()),
        },
        0xb2 => Op::Skip((code.uleb128()? << 2).wrapping_add(0x204)),
        // These were stored by FSTMFDX, with one more word.
        0xb3 => Op::Vectors(vectors(code.operand()? & 15).wrapping_add(4)),
        // The first is the signature of the return address; the second says that it was made with this stack
        // pointer.
        0xb4 => Op::Skip(4),
        0xb5 => Op::Nothing,
        0xb8..=0xbf => Op::Vectors(vectors(low).wrapping_add(4)),
        0xc0..=0xc5 | 0xd0..=0xd7 => Op::Vectors(vectors(low)),
        0xc6 | 0xc8 | 0xc9 => Op::Vectors(vectors(code.operand()? & 15)),
        0xc7 => match code.operand()? {
            mask @ 1..=15 => Op::Vectors(u64::from(mask.count_ones()).wrapping_mul(4)),
            _ => return Err(()),
        },
        _ => return Err(()), // spare
    })
}

/// A frame whose instructions are being executed.
struct Frame<'a, F> {
    regs: FullRegs,
    vsp: u64,
    /// Return address, if it was popped.
    pc: Option<u64>,
    code: Code<'a, F>,
}

impl<F: FnMut(u64) -> Option<u32>> Frame<'_, F> {
    fn skip(&mut self, bytes: u64) {
        self.vsp = self.vsp.wrapping_add(bytes) & 0xffff_ffff;
    }

    /// Pops the general registers whose bits are set in `mask`.
    fn pop(&mut self, mask: u32) -> Result<(), ()> {
        let mut sp = None;
        for register in (0_u16..16).filter(|n| mask >> n & 1 == 1) {
            let value = u64::from((self.code.read)(self.vsp).ok_or(())?);
            self.skip(4);
            match register {
                PC => self.pc = Some(value),
                SP => sp = Some(value),
                _ => self.regs.set(register, value),
            }
        }
        self.vsp = sp.unwrap_or(self.vsp);
        Ok(())
    }

    /// Executes one instruction; returns `Ok(false)` if there are no more.
    fn step(&mut self) -> Result<bool, ()> {
        match operation(&mut self.code)? {
            Op::Skip(bytes) | Op::Vectors(bytes) => self.skip(bytes),
            Op::Pop(mask) => self.pop(mask)?,
            Op::From(register) => self.vsp = self.regs.get(register).ok_or(())?,
            Op::Nothing => {}
            Op::Finish => return Ok(false),
        }
        Ok(true)
    }
}

/// Steps from `regs` to the caller, by the row for `lookup_pc` (see [`unwind`](crate::unwind) about
/// return addresses).
///
/// `read` returns the 32-bit word at an address, or `None` where there is no memory.
pub fn step_exidx<F: FnMut(u64) -> Option<u32>>(
    exidx: &Exidx<'_>,
    regs: &FullRegs,
    lookup_pc: u64,
    read: &mut F,
) -> FullStep<FullRegs> {
    let Some(row) = exidx.find(lookup_pc) else { return FullStep::NoCfi };
    if row.word == CANT_UNWIND {
        return if is_outermost(row, lookup_pc) { FullStep::End } else { FullStep::NoCfi };
    }
    let Some(code) = code(row, read) else { return FullStep::Cut };
    let sp = regs.gpr[SP as usize];
    let mut frame = Frame { regs: *regs, vsp: sp, pc: None, code };
    for _ in 0..MOST {
        match frame.step() {
            Ok(true) => {}
            Ok(false) => return caller(frame, regs, sp),
            Err(()) => return FullStep::Cut,
        }
    }
    FullStep::Cut
}

/// Returns whether the row for a code address has its instructions in itself, so that no language's handler
/// looks at the frame, and whether they concern general registers only.
#[must_use]
pub fn is_plain(exidx: &Exidx<'_>, lookup_pc: u64) -> bool {
    let row =
        exidx.find(lookup_pc).filter(|row| row.word != CANT_UNWIND && row.word & COMPACT != 0);
    let mut read = |_| None;
    let Some(mut code) = row.and_then(|row| code(row, &mut read)) else { return false };
    for _ in 0..MOST {
        match operation(&mut code) {
            Ok(Op::Finish) => return true,
            Ok(Op::Vectors(_)) | Err(()) => return false,
            Ok(_) => {}
        }
    }
    false
}

/// Returns whether a code address in a row that can't be unwound is where a thread begins. The functions in
/// libc's assembly that are marked so are short (`_start`, the other side of `clone`). Behind them, up to the
/// next row, is code compiled without tables, of which nothing is known.
fn is_outermost(row: Row, pc: u64) -> bool {
    const SHORT: u64 = 128;
    pc.wrapping_sub(row.function) < SHORT
}

/// Packs the row for a code address into a rule of eight bytes.
pub fn compile_exidx<F: FnMut(u64) -> Option<u32>>(
    exidx: &Exidx<'_>,
    lookup_pc: u64,
    read: &mut F,
) -> Rule {
    let Some(row) = exidx.find(lookup_pc) else { return Rule::UNKNOWN };
    if row.word == CANT_UNWIND {
        return if is_outermost(row, lookup_pc) { Rule::END } else { Rule::UNKNOWN };
    }
    let Some(mut code) = code(row, read) else { return Rule::COMPLEX };
    form(&mut code).map_or(Rule::COMPLEX, Rule::from_form)
}

/// Returns the form of the instructions, if it fits into a rule: registers are popped relative to the stack
/// pointer, or to `r7` if the instructions begin with it, and the return address is among them.
fn form<F: FnMut(u64) -> Option<u32>>(code: &mut Code<'_, F>) -> Option<Form> {
    let (mut by_fp, mut vsp) = (false, 0_i32);
    let (mut ra, mut fp, mut popped) = (None, None, false);
    for _ in 0..MOST {
        match operation(code).ok()? {
            Op::Skip(bytes) | Op::Vectors(bytes) => {
                vsp = vsp.checked_add(i32::try_from(bytes as i64).ok()?)?
            }
            Op::Pop(mask) => {
                popped = true;
                for register in (0_u16..16).filter(|n| mask >> n & 1 == 1) {
                    match register {
                        SP => return None,
                        // No code saves both.
                        LR | PC => ra = Some(vsp),
                        R7 => fp = Some(vsp),
                        _ => {}
                    }
                    vsp = vsp.checked_add(4)?;
                }
            }
            Op::From(R7) if !popped => (by_fp, vsp) = (true, 0),
            Op::From(_) => return None,
            Op::Nothing => {}
            Op::Finish => {
                let slot = |at: i32| at.checked_sub(vsp);
                let ra_slot = slot(ra?)?;
                let fp_slot = match fp {
                    Some(at) => Some(slot(at)?),
                    None => None,
                };
                return Some(match by_fp {
                    true => Form::CfaFp { cfa_off: vsp, ra_slot, fp_slot },
                    false => Form::CfaSp { cfa_off: vsp, ra_slot, fp_slot },
                });
            }
        }
    }
    None
}

fn caller<F>(frame: Frame<'_, F>, old: &FullRegs, sp: u64) -> FullStep<FullRegs> {
    let mut next = frame.regs;
    next.set(SP, frame.vsp);
    let pc = frame.pc.unwrap_or(next.gpr[LR as usize]);
    if pc & !1 == 0 {
        return FullStep::End;
    }
    next.set_pc(pc);
    // A function without a frame has its caller's stack pointer.
    if frame.vsp < sp || frame.vsp == sp && next.pc == old.pc {
        return FullStep::Cut;
    }
    FullStep::Next { regs: next, signal: false }
}

#[cfg(test)]
#[path = "exidx_tests.rs"]
mod tests;
