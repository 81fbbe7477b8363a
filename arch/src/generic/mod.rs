//! Unwinding code that all architectures share, over a small description of each: [`Isa`].
//!
//! An architecture names its registers, where a signal frame has them, and how a rule is packed; the step from a frame
//! to its caller, the register banks and the conversion of table rows follow from these. Everything is a constant or
//! is inlined, so the hook pays nothing for it.

pub mod capture;
#[cfg(feature = "relocate")]
pub mod insn;
mod link;
pub mod regs;
pub mod rule;
pub mod sigframe;
mod step;
pub mod stopped;
pub mod syscall;
pub mod wide;

use self::regs::{Regs, Step};
use self::rule::{Form, Rule};
use crate::unwind::{CfiModule, FrameInfo, FullStep, Goroutine, Row};
use core::fmt::Debug;
use core::ops::Range;
use gimli::Vendor;

/// Description of an instruction set and its ABI for the unwinder.
///
/// Register numbers are DWARF numbers. The provided methods are those of an architecture whose calls leave the return
/// address in a link register, and whose processes have one instruction set.
pub trait Isa: Copy + Eq + Debug + Default + 'static {
    /// A word for each general register, by number.
    type Bank: AsRef<[u64]> + AsMut<[u64]> + Copy + Eq + Debug + Default;

    /// Number of the stack pointer.
    const SP: u16;
    /// Number of the frame pointer that the fast unwinder carries.
    const FP: u16;
    /// Number of the return address column.
    const RA: u16;
    /// Numbers of the registers that a function leaves as its caller had them, without the stack pointer.
    const PRESERVED: &'static [u16];
    /// Whether a call leaves the return address in the register [`RA`](Self::RA). Otherwise the return address is on
    /// the stack, and that number means the program counter.
    const LINK: bool = true;
    /// Number of the register that is always 0, if there is one.
    const ZERO: Option<u16> = None;
    /// Size of a register, and of a word of memory, in bytes.
    const WORD: u8 = 8;
    /// Vendor whose call frame instructions occur beside DWARF's own.
    const VENDOR: Vendor = Vendor::Default;
    /// Whether code without call frame information keeps a chain of frame pointers: the caller's frame pointer at the
    /// frame pointer, and the return address in the word above it.
    const CHAIN: bool = false;
    /// Bit that marks a stack pointer as a lower bound only; 0 if each step computes the stack pointer itself.
    const BOUND: u64 = 0;
    /// Offsets of the interrupted registers in a signal frame, from [`saved_at`](Self::saved_at).
    const SAVED: Self::Bank;
    /// Offset of the interrupted program counter, from [`saved_at`](Self::saved_at).
    const SAVED_PC: u64;

    /// Returns the code address in a return address, which may have a signature or the mark of an instruction set.
    #[inline(always)]
    #[must_use]
    fn code_address(word: u64) -> u64 {
        word
    }

    /// Returns the address from which [`SAVED`](Self::SAVED) counts in the signal frame at `sp`; `None` if the frame
    /// can't be read.
    #[inline(always)]
    fn saved_at(sp: u64, _read: &mut impl FnMut(u64) -> Option<u64>) -> Option<u64> {
        Some(sp)
    }

    /// Packs a rule of the kinds that count from a register. Returns `None` for offsets that do not fit; here those
    /// that are no multiples of the word, or too large, and slots at the CFA, which no code uses.
    #[must_use]
    fn pack(kind: u64, cfa_off: i32, ra_slot: i32, fp_slot: Option<i32>) -> Option<u64> {
        link::pack::<Self>(kind, cfa_off, ra_slot, fp_slot)
    }

    /// Returns the offset of the CFA from the register that the packed rule `word` counts from.
    #[inline(always)]
    #[must_use]
    fn cfa_off(word: u64) -> i64 {
        (word as u32 as i32 >> 8) as i64 * i64::from(Self::WORD)
    }

    /// Returns the offset of the return address's slot from the CFA.
    #[inline(always)]
    #[must_use]
    fn ra_slot(word: u64) -> i64 {
        i64::from((word >> 32) as i16) * i64::from(Self::WORD)
    }

    /// Returns the offset of the frame pointer's slot from the CFA; 0: the frame pointer is unchanged.
    #[inline(always)]
    #[must_use]
    fn fp_slot(word: u64) -> i64 {
        (word as i64 >> 48) * i64::from(Self::WORD)
    }

    /// Packs a form that few architectures have; `None` if this one has not.
    #[must_use]
    fn pack_own(_form: Form) -> Option<u64> {
        None
    }

    /// Unpacks what [`pack_own`](Self::pack_own) has packed.
    #[must_use]
    fn unpack_own(_word: u64) -> Option<Form> {
        None
    }

    /// Steps by a form of [`pack_own`](Self::pack_own); `None`: the stack can't be followed.
    fn step_own(
        _form: Form,
        _regs: &Regs,
        _read: &mut impl FnMut(u64) -> Option<u64>,
    ) -> Option<Regs> {
        None
    }

    /// Steps out of a frame whose stack pointer is only known to be `regs.sp` or more (see [`BOUND`](Self::BOUND)).
    fn step_above(
        _rule: Rule<Self>,
        _regs: &Regs,
        _read: &mut impl FnMut(u64) -> Option<u64>,
    ) -> Step {
        Step::Cut
    }

    /// Returns where the step from C to a goroutine leads, if `form` is of such a step.
    #[inline(always)]
    fn goroutine(
        _form: Form,
        _regs: &Regs,
        _read: &mut impl FnMut(u64) -> Option<u64>,
    ) -> Option<Goroutine> {
        None
    }

    /// Packs one row of the unwind table for the address `pc`. A row that is not one of the common forms gives
    /// `Complex`: a rule is either exact or not used.
    fn from_row(row: &Row, frame: &FrameInfo<'_>, _pc: u64) -> Rule<Self> {
        link::from_row(row, frame)
    }

    /// See [`CfiRule::from_code`](crate::unwind::CfiRule::from_code).
    fn from_code(
        pc: u64,
        variant: Option<bool>,
        read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> Option<Rule<Self>>;

    /// See [`CfiRule::interrupted_variant`](crate::unwind::CfiRule::interrupted_variant).
    fn interrupted_variant(_sp: u64, _read: &mut impl FnMut(u64) -> Option<u64>) -> Option<bool> {
        None
    }

    /// See [`CfiRule::is_beside_tables`](crate::unwind::CfiRule::is_beside_tables).
    #[must_use]
    fn is_beside_tables(_pc: u64) -> bool {
        false
    }

    /// See [`CfiRule::from_tables`](crate::unwind::CfiRule::from_tables).
    #[must_use]
    fn from_tables(_cfi: &CfiModule<'_>, _pc: u64) -> Rule<Self> {
        Rule::UNKNOWN
    }

    /// See [`CfiRule::range_in_tables`](crate::unwind::CfiRule::range_in_tables).
    #[must_use]
    fn range_in_tables(_cfi: &CfiModule<'_>, _pc: u64) -> Option<Range<u64>> {
        None
    }

    /// See [`RegisterSet::step_tables`](crate::unwind::RegisterSet::step_tables).
    fn step_tables(
        _regs: &regs::FullRegs<Self>,
        _cfi: &CfiModule<'_>,
        _lookup_pc: u64,
        _read: &mut impl FnMut(u64) -> Option<u64>,
    ) -> FullStep<regs::FullRegs<Self>> {
        FullStep::NoCfi
    }
}

/// Returns the offsets of registers that follow each other in a signal frame, the first at `first`.
#[must_use]
pub const fn consecutive<const N: usize>(first: u64, word: u64) -> [u64; N] {
    let mut offsets = [first; N];
    let mut n = 1;
    while n < N {
        offsets[n] = offsets[n - 1] + word;
        n += 1;
    }
    offsets
}
