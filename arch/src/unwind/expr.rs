//! A small evaluator for DWARF expressions in call frame information (DWARF 5, section 2.5).
//!
//! gimli's own evaluator needs more storage; expressions in call frame information are arithmetic on
//! registers and memory. This one has a fixed stack, a bounded number of steps, no allocation, and no panic.

use super::cfi::Slice;
use super::traits::RegisterSet;
use gimli::{Encoding, EndianSlice, Format, NativeEndian, Operation, Reader};

/// Depth of the evaluation stack.
const DEPTH: usize = 64;
/// Maximum number of operations of one evaluation (there are backward branches).
const STEPS: usize = 1024;

/// An evaluation stack that checks for overflow and underflow.
struct Stack {
    values: [u64; DEPTH],
    len: usize,
}

impl Stack {
    fn push(&mut self, value: u64) -> Option<()> {
        *self.values.get_mut(self.len)? = value;
        self.len = self.len.wrapping_add(1);
        Some(())
    }

    fn pop(&mut self) -> Option<u64> {
        self.len = self.len.checked_sub(1)?;
        self.values.get(self.len).copied()
    }

    /// Returns the value `index` places below the top.
    fn pick(&self, index: usize) -> Option<u64> {
        self.values.get(self.len.checked_sub(index)?.checked_sub(1)?).copied()
    }

    fn unary(&mut self, f: impl FnOnce(u64) -> u64) -> Option<()> {
        let a = self.pop()?;
        self.push(f(a))
    }

    /// Replaces the two values on top by `f(second, top)`.
    fn binary(&mut self, f: impl FnOnce(u64, u64) -> u64) -> Option<()> {
        let top = self.pop()?;
        let second = self.pop()?;
        self.push(f(second, top))
    }

    /// Does so for a comparison; comparisons are signed (DWARF 5, 2.5.1.5).
    fn compare(&mut self, f: impl FnOnce(i64, i64) -> bool) -> Option<()> {
        self.binary(|a, b| u64::from(f(a as i64, b as i64)))
    }
}

/// Inputs of an expression.
pub(super) struct Machine<'m, R, F> {
    pub(super) regs: &'m R,
    /// CFA; it is known for register rules, not for the CFA's own rule.
    pub(super) cfa: Option<u64>,
    pub(super) read: &'m mut F,
}

impl<R: RegisterSet, F: FnMut(u64) -> Option<u64>> Machine<'_, R, F> {
    /// Runs `code` on a stack that begins with `initial` (register rules begin with the CFA), and returns the
    /// top.
    pub(super) fn eval(&mut self, code: &[u8], initial: Option<u64>) -> Option<u64> {
        let code = EndianSlice::new(code, NativeEndian);
        let encoding = Encoding { address_size: R::WORD, format: Format::Dwarf32, version: 4 };
        let mut stack = Stack { values: [0; DEPTH], len: 0 };
        if let Some(value) = initial {
            stack.push(value)?;
        }
        let mut rest = code;
        for _ in 0..STEPS {
            if rest.is_empty() {
                return stack.pop();
            }
            let operation = Operation::parse(&mut rest, encoding).ok()?;
            match operation {
                Operation::Skip { target } => rest = branch(code, rest, target)?,
                Operation::Bra { target } => {
                    if stack.pop()? != 0 {
                        rest = branch(code, rest, target)?;
                    }
                }
                other => self.operate(&mut stack, other)?,
            }
        }
        None
    }

    /// Executes all operations but branches.
    fn operate(&mut self, stack: &mut Stack, operation: Operation<Slice<'_>>) -> Option<()> {
        match operation {
            Operation::UnsignedConstant { value } => stack.push(value),
            Operation::SignedConstant { value } => stack.push(value as u64),
            Operation::Address { address } => stack.push(address),
            Operation::RegisterOffset { register, offset, base_type } if base_type.0 == 0 => {
                stack.push(self.regs.get(register.0)?.wrapping_add(offset as u64))
            }
            Operation::CallFrameCFA => stack.push(self.cfa?),
            Operation::Deref { base_type, size, space: false } if base_type.0 == 0 => {
                let address = stack.pop()?;
                stack.push(self.load(address, size)?)
            }
            Operation::Drop => stack.pop().map(|_| ()),
            Operation::Pick { index } => stack.push(stack.pick(usize::from(index))?),
            Operation::Swap => {
                let (top, second) = (stack.pop()?, stack.pop()?);
                stack.push(top)?;
                stack.push(second)
            }
            Operation::Rot => {
                let (top, second, third) = (stack.pop()?, stack.pop()?, stack.pop()?);
                stack.push(top)?;
                stack.push(third)?;
                stack.push(second)
            }
            Operation::Nop => Some(()),
            other => arithmetic(stack, other),
        }
    }

    /// Returns `size` bytes at `address`, zero-extended. Memory is read in aligned words, which never cross a
    /// page.
    fn load(&mut self, address: u64, size: u8) -> Option<u64> {
        if size == R::WORD {
            return (self.read)(address);
        }
        let word = u32::from(R::WORD);
        let size = u32::from(size);
        let within = u64::from(word).wrapping_sub(1);
        let (aligned, offset) = (address & !within, (address & within) as u32);
        let end = offset.checked_add(size).filter(|_| size > 0 && size < word)?;
        let mut words = [u128::from((self.read)(aligned)?), 0];
        if end > word {
            words[1] = u128::from((self.read)(aligned.wrapping_add(word.into()))?);
        }
        let bits = |bytes: u32| bytes.wrapping_mul(8);
        let [first, second] = words;
        let value = if cfg!(target_endian = "big") {
            let both = first.wrapping_shl(bits(word)) | second;
            both.wrapping_shr(bits(word.wrapping_mul(2).checked_sub(end)?))
        } else {
            (first | second.wrapping_shl(bits(word))).wrapping_shr(bits(offset))
        };
        Some(value as u64 & 1_u64.wrapping_shl(bits(size)).wrapping_sub(1))
    }
}

/// Executes the operations on the stack's values alone.
fn arithmetic(stack: &mut Stack, operation: Operation<Slice<'_>>) -> Option<()> {
    match operation {
        Operation::Plus => stack.binary(u64::wrapping_add),
        Operation::Minus => stack.binary(u64::wrapping_sub),
        Operation::Mul => stack.binary(u64::wrapping_mul),
        Operation::And => stack.binary(|a, b| a & b),
        Operation::Or => stack.binary(|a, b| a | b),
        Operation::Xor => stack.binary(|a, b| a ^ b),
        Operation::PlusConstant { value } => stack.unary(|a| a.wrapping_add(value)),
        Operation::Neg => stack.unary(u64::wrapping_neg),
        Operation::Not => stack.unary(|a| !a),
        Operation::Abs => stack.unary(|a| (a as i64).wrapping_abs() as u64),
        Operation::Shl => stack.binary(|a, b| if b < 64 { a << b } else { 0 }),
        Operation::Shr => stack.binary(|a, b| if b < 64 { a >> b } else { 0 }),
        Operation::Shra => stack.binary(|a, b| ((a as i64) >> b.min(63)) as u64),
        Operation::Div | Operation::Mod => {
            let (divisor, dividend) = (stack.pop()?, stack.pop()?);
            stack.push(if matches!(operation, Operation::Div) {
                (dividend as i64).checked_div(divisor as i64)? as u64
            } else {
                dividend.checked_rem(divisor)?
            })
        }
        Operation::Eq => stack.compare(|a, b| a == b),
        Operation::Ne => stack.compare(|a, b| a != b),
        Operation::Ge => stack.compare(|a, b| a >= b),
        Operation::Gt => stack.compare(|a, b| a > b),
        Operation::Le => stack.compare(|a, b| a <= b),
        Operation::Lt => stack.compare(|a, b| a < b),
        _ => None,
    }
}

/// Returns the code from `target` bytes after (or before) the start of `rest`.
fn branch<'a>(code: Slice<'a>, rest: Slice<'a>, target: i16) -> Option<Slice<'a>> {
    let here = code.len().checked_sub(rest.len())?;
    let there = here.checked_add_signed(isize::from(target))?;
    Some(EndianSlice::new(code.slice().get(there..)?, NativeEndian))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x86_64::FullRegs;

    fn run(code: &[u8]) -> Option<u64> {
        let mut regs = FullRegs { pc: 0x100b, ..FullRegs::default() };
        regs.gpr[7] = 0x7000;
        let mut read = |address: u64| (address == 0x7010).then_some(0x1122_3344_5566_7788);
        Machine { regs: &regs, cfa: Some(0x8000), read: &mut read }.eval(code, None)
    }

    /// Two bytes of the word that [`run`] returns, from its second on.
    const TWO: u64 = if cfg!(target_endian = "big") { 0x2233 } else { 0x6677 };
    /// Distances of branches.
    const BY_1: [u8; 2] = 1_i16.to_ne_bytes();
    const BY_3: [u8; 2] = (-3_i16).to_ne_bytes();
    const FAR: [u8; 2] = i16::MIN.to_ne_bytes();

    #[test]
    fn operations() {
        let cases: &[(&[u8], Option<u64>)] = &[
            (&[0x77, 0x08], Some(0x7008)),                           // breg7 8
            (&[0x77, 0x10, 0x06], Some(0x1122_3344_5566_7788)),      // breg7 16; deref
            (&[0x77, 0x11, 0x94, 0x02], Some(TWO)),                  // breg7 17; deref_size 2
            (&[0x77, 0x18, 0x06], None),                             // unreadable
            (&[0x9c], Some(0x8000)),                                 // call_frame_cfa
            (&[0x35, 0x33, 0x1c], Some(2)),                          // lit5; lit3; minus
            (&[0x33, 0x35, 0x1c, 0x19], Some(2)),                    // lit3; lit5; minus; abs
            (&[0x33, 0x35, 0x1c, 0x1f], Some(2)),                    // ... neg
            (&[0x31, 0x32, 0x33, 0x17], Some(2)),                    // rot: 1 2 3 -> 3 1 2
            (&[0x31, 0x32, 0x16], Some(1)),                          // swap
            (&[0x31, 0x32, 0x14], Some(1)),                          // over
            (&[0x31, 0x32, 0x12, 0x1e], Some(4)),                    // dup; mul
            (&[0x3f, 0x32, 0x1b], Some(7)),                          // div
            (&[0x3f, 0x32, 0x1d], Some(1)),                          // mod
            (&[0x3f, 0x30, 0x1b], None),                             // div by 0
            (&[0x23, 0x05], None), // plus_uconst on an empty stack
            (&[0x31, 0x28, BY_1[0], BY_1[1], 0x96, 0x3a], Some(10)), // lit1; bra +1; nop; lit10
            (&[0x3a, 0x2f, BY_3[0], BY_3[1]], None), // endless: lit10; skip -3
            (&[0x2f, FAR[0], FAR[1]], None), // branch out of the code
            (&[0x11, 0x7f, 0x30, 0x2d], Some(1)), // consts -1; lit0; lt
            // The expression of linkage tables.
            (&[0x77, 0x08, 0x80, 0x00, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22], Some(0x7010)),
            (&[], None),
        ];
        for (code, want) in cases {
            assert_eq!(run(code), *want, "{code:02x?}");
        }
    }
}
