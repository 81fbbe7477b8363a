//! Unwind rules packed into eight bytes.
//!
//! The lowest byte is the kind; the word 0 means that no rule was computed yet. The layout of the other bytes is the
//! architecture's. With a link register ([`Isa::LINK`]) the kinds `CfaSp`, `CfaFp` and `Leaf` have signed numbers of
//! words:
//!
//! | bits   | meaning                                                           |
//! |--------|-------------------------------------------------------------------|
//! | 8..32  | CFA, relative to the stack pointer or the frame pointer           |
//! | 32..48 | return address's slot, relative to the CFA; 0 for `Leaf`          |
//! | 48..64 | frame pointer's slot, relative to the CFA; 0: unchanged           |
//!
//! A frame whose return address is still in the link register needs all registers: its rule is `Complex` if there is
//! call frame information, and `Leaf` if there is none and the code shows it. Only the innermost frame, and one that a
//! signal has interrupted, can be of this kind.

use super::Isa;
use super::regs::Regs;
use crate::unwind::{CfiModule, CfiRule, FrameInfo, Goroutine, Row};
use core::marker::PhantomData;
use core::ops::Range;
use gimli::Vendor;

pub(crate) const CFA_SP: u64 = 1;
pub(crate) const CFA_FP: u64 = 2;
pub(crate) const CFA_FP_DEREF: u64 = 3;
pub(super) const FRAME_POINTER: u64 = 4;
/// Kinds that can step have numbers below this one, unless the step may lead to another stack.
pub(super) const SIGNAL: u64 = 5;
const END: u64 = 6;
const COMPLEX: u64 = 7;
const UNKNOWN: u64 = 8;
pub(crate) const GO_CALL: u64 = 9;
pub(super) const LEAF: u64 = 10;

/// Flag of `CfaFpDeref`: the caller's frame pointer is in the frame.
pub(crate) const RESTORES_FP: u64 = 0x100;

/// Rule that steps from a frame to its caller, for one code address.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Rule<I: Isa>(pub(super) u64, PhantomData<I>);

/// An unpacked [`Rule`].
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Form {
    /// No rule was computed yet.
    None,
    /// CFA = stack pointer + `cfa_off`.
    CfaSp {
        /// Offset of the CFA from the stack pointer.
        cfa_off: i32,
        /// Offset of the return address's slot from the CFA.
        ra_slot: i32,
        /// Offset of the slot with the caller's frame pointer from the CFA; `None`: the frame pointer is unchanged.
        fp_slot: Option<i32>,
    },
    /// CFA = frame pointer + `cfa_off`.
    CfaFp {
        /// Offset of the CFA from the frame pointer.
        cfa_off: i32,
        /// Offset of the return address's slot from the CFA.
        ra_slot: i32,
        /// Offset of the slot with the caller's frame pointer from the CFA; `None`: the frame pointer is unchanged.
        fp_slot: Option<i32>,
    },
    /// CFA = *(frame pointer + `cfa_at`): functions of AMD64 that realign their stack.
    CfaFpDeref {
        /// Offset from the frame pointer of the word that holds the CFA.
        cfa_at: i32,
        /// Offset from the frame pointer of the slot with the caller's; `None`: the frame pointer is unchanged.
        fp_at: Option<i16>,
    },
    /// Code without call frame information. The chain of frame pointers is followed where the architecture has one
    /// ([`Isa::CHAIN`]) and the frame pointer is plausible; otherwise the stack ends.
    FramePointer,
    /// The return address is in the link register. CFA = stack pointer + `cfa_off`.
    Leaf {
        /// Offset of the CFA from the stack pointer.
        cfa_off: i32,
        /// Offset of the slot with the caller's frame pointer from the CFA; `None`: the frame pointer is unchanged.
        fp_slot: Option<i32>,
    },
    /// Go's `asmcgocall`, which calls C on the thread's own stack (AMD64). Both offsets are relative to the stack
    /// pointer.
    GoCall {
        /// Offset of the pointer to the calling goroutine (`g`).
        g_at: i16,
        /// Offset of the distance from the goroutine's stack pointer to the end of its stack.
        depth_at: i32,
    },
    /// The kernel's signal frame.
    Signal,
    /// The outermost frame of a thread.
    End,
    /// The frame needs [`step_full`](crate::unwind::step_full).
    Complex,
    /// The address has no call frame information.
    Unknown,
}

impl<I: Isa> Rule<I> {
    /// No rule was computed yet.
    pub const NONE: Self = Self::from_u64(0);
    /// See [`Form::FramePointer`].
    pub const FRAME_POINTER: Self = Self::from_u64(FRAME_POINTER);
    /// See [`Form::Signal`].
    pub const SIGNAL: Self = Self::from_u64(SIGNAL);
    /// See [`Form::End`].
    pub const END: Self = Self::from_u64(END);
    /// See [`Form::Complex`].
    pub const COMPLEX: Self = Self::from_u64(COMPLEX);
    /// See [`Form::Unknown`].
    pub const UNKNOWN: Self = Self::from_u64(UNKNOWN);

    /// Returns the word, to be kept in an atomic.
    #[inline(always)]
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        self.0
    }

    /// Makes a rule from a word that [`to_u64`](Self::to_u64) returned. Any word is safe; a meaningless one
    /// steps to `Cut`.
    #[inline(always)]
    #[must_use]
    pub const fn from_u64(word: u64) -> Self {
        Rule(word, PhantomData)
    }

    #[inline(always)]
    pub(super) const fn kind(self) -> u64 {
        self.0 & 0xff
    }

    /// Returns whether no rule was computed yet.
    #[inline(always)]
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Returns whether the frame is a signal trampoline. The pc of the next frame is then that of an
    /// interrupted instruction, and is looked up as it is, not at pc - 1.
    #[inline(always)]
    #[must_use]
    pub const fn is_signal(self) -> bool {
        self.0 == SIGNAL
    }

    /// Returns whether the code itself shows that the frame's return address is still in the link register.
    #[inline(always)]
    #[must_use]
    pub const fn is_leaf(self) -> bool {
        I::LINK && self.kind() == LEAF
    }

    /// Returns whether the step leads to another stack, or may: out of a signal handler, or from C to the goroutine
    /// that called it. Only for rules that have stepped.
    #[inline(always)]
    #[must_use]
    pub const fn leaves_stack(self) -> bool {
        self.0 as u8 >= SIGNAL as u8
    }

    /// Returns whether the step reads the frame pointer, so that the register's value in this frame matters.
    #[inline(always)]
    #[must_use]
    pub const fn reads_fp(self) -> bool {
        match self.kind() {
            CFA_FP | CFA_FP_DEREF => true,
            FRAME_POINTER => I::CHAIN,
            _ => false,
        }
    }

    /// Returns whether the step loads the caller's frame pointer from memory; it is then the last word read.
    #[inline(always)]
    #[must_use]
    pub fn writes_fp(self) -> bool {
        match self.kind() {
            CFA_SP | CFA_FP => I::fp_slot(self.0) != 0,
            CFA_FP_DEREF => self.0 & RESTORES_FP != 0,
            FRAME_POINTER => I::CHAIN,
            SIGNAL => true,
            _ => false,
        }
    }

    /// Packs `form`; returns `Complex` if it does not fit, or if the architecture has no such form.
    #[must_use]
    pub fn from_form(form: Form) -> Self {
        let word = match form {
            Form::None => return Rule::NONE,
            Form::CfaSp { cfa_off, ra_slot, fp_slot } => I::pack(CFA_SP, cfa_off, ra_slot, fp_slot),
            Form::CfaFp { cfa_off, ra_slot, fp_slot } => I::pack(CFA_FP, cfa_off, ra_slot, fp_slot),
            Form::Leaf { cfa_off, fp_slot } if I::LINK => I::pack(LEAF, cfa_off, 0, fp_slot),
            Form::CfaFpDeref { .. } | Form::GoCall { .. } => I::pack_own(form),
            Form::FramePointer => return Rule::FRAME_POINTER,
            Form::Signal => return Rule::SIGNAL,
            Form::End => return Rule::END,
            Form::Complex | Form::Leaf { .. } => None,
            Form::Unknown => return Rule::UNKNOWN,
        };
        word.map_or(Rule::COMPLEX, Rule::from_u64)
    }

    /// Unpacks the rule, for tests, messages, and matching.
    #[must_use]
    pub fn form(self) -> Form {
        let (cfa_off, ra_slot) = (I::cfa_off(self.0) as i32, I::ra_slot(self.0) as i32);
        let fp_slot = Some(I::fp_slot(self.0) as i32).filter(|slot| *slot != 0);
        match self.kind() {
            0 => Form::None,
            CFA_SP => Form::CfaSp { cfa_off, ra_slot, fp_slot },
            CFA_FP => Form::CfaFp { cfa_off, ra_slot, fp_slot },
            FRAME_POINTER => Form::FramePointer,
            LEAF if I::LINK => Form::Leaf { cfa_off, fp_slot },
            CFA_FP_DEREF | GO_CALL => I::unpack_own(self.0).unwrap_or(Form::Unknown),
            SIGNAL => Form::Signal,
            END => Form::End,
            COMPLEX => Form::Complex,
            _ => Form::Unknown,
        }
    }

    /// Returns where the step from C to a goroutine leads; `None` for other rules.
    #[inline]
    pub fn goroutine(
        self,
        regs: &Regs,
        read: &mut impl FnMut(u64) -> Option<u64>,
    ) -> Option<Goroutine> {
        I::goroutine(self.form(), regs, read)
    }
}

impl<I: Isa> CfiRule for Rule<I> {
    const UNKNOWN: Self = Rule::UNKNOWN;
    const COMPLEX: Self = Rule::COMPLEX;
    const VENDOR: Vendor = I::VENDOR;

    fn from_row(row: &Row, frame: &FrameInfo<'_>, pc: u64) -> Self {
        I::from_row(row, frame, pc)
    }

    fn from_code(
        pc: u64,
        variant: Option<bool>,
        read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> Option<Self> {
        I::from_code(pc, variant, read)
    }

    fn interrupted_variant(sp: u64, read: &mut impl FnMut(u64) -> Option<u64>) -> Option<bool> {
        I::interrupted_variant(sp, read)
    }

    fn is_beside_tables(pc: u64) -> bool {
        I::is_beside_tables(pc)
    }

    fn from_tables(cfi: &CfiModule<'_>, pc: u64) -> Self {
        I::from_tables(cfi, pc)
    }

    fn range_in_tables(cfi: &CfiModule<'_>, pc: u64) -> Option<Range<u64>> {
        I::range_in_tables(cfi, pc)
    }
}

#[cfg(test)]
#[path = "rule_tests.rs"]
mod tests;
