//! Parts that an architecture has in unwinding: its rules, and its registers.

use super::cfi::{CfiModule, FrameInfo, Row};

/// A packed unwind rule of one architecture.
pub trait CfiRule: Copy {
    /// The address has no call frame information.
    const UNKNOWN: Self;
    /// The address has call frame information that needs the full evaluation.
    const COMPLEX: Self;
    /// Vendor whose call frame instructions occur beside DWARF's own.
    const VENDOR: gimli::Vendor;

    /// Packs one row of the unwind table. `pc` is the address looked up.
    fn from_row(row: &Row, frame: &FrameInfo<'_>, pc: u64) -> Self;

    /// Returns the rule for the return address `pc` (or one more than the address of an interrupted
    /// instruction) by the code around it, on architectures whose compilers leave unwind tables out and whose
    /// code can be understood. `variant` is what [`interrupted_variant`](Self::interrupted_variant) has
    /// returned for the instruction. `read` reads code of this process, and returns false if not all of it
    /// can be read.
    fn from_code(
        pc: u64,
        variant: Option<bool>,
        read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> Option<Self> {
        let _ = (pc, variant, read);
        None
    }

    /// Returns in which of two instruction sets the code was that the signal frame at `sp` has interrupted,
    /// where a process may run two.
    fn interrupted_variant(_sp: u64, _read: &mut impl FnMut(u64) -> Option<u64>) -> Option<bool> {
        None
    }

    /// Returns whether tables of another kind may be wrong for `pc`, taken as [`from_code`](Self::from_code)
    /// does: they hold for calls only, and `pc` is that of an interrupted instruction.
    #[must_use]
    fn is_beside_tables(_pc: u64) -> bool {
        false
    }

    /// Returns the rule for an address that no call frame information covers, from tables of another kind.
    #[must_use]
    fn from_tables(_cfi: &CfiModule<'_>, _pc: u64) -> Self {
        Self::UNKNOWN
    }

    /// Returns start and end of the function that covers `pc` by tables of another kind.
    #[must_use]
    fn range_in_tables(_cfi: &CfiModule<'_>, _pc: u64) -> Option<core::ops::Range<u64>> {
        None
    }
}

/// A goroutine that has called C, as the step out of the C code finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goroutine {
    /// Address of the word that has the end of the goroutine's stack.
    pub end_at: u64,
    /// End of the goroutine's stack.
    pub end: u64,
    /// Stack pointer at the call, at the return address.
    pub sp: u64,
}

/// All registers of one architecture, by DWARF number.
pub trait RegisterSet: Copy {
    /// Number of the stack pointer.
    const SP: u16;
    /// Number of the return address column.
    const RA: u16;
    /// Whether a call leaves the return address in a register, which is the one of that column. Otherwise it
    /// is on the stack, and `get` and `set` of that number mean the program counter.
    const LINK: bool;
    /// Numbers of the registers that a function leaves as its caller had them, without the stack pointer.
    const PRESERVED: &'static [u16];
    /// Vendor whose call frame instructions occur beside DWARF's own.
    const VENDOR: gimli::Vendor;
    /// Size of a register, and of a word of memory, in bytes.
    const WORD: u8 = 8;

    /// Returns a register's value; `None` if it is not carried (vector registers and such).
    fn get(&self, register: u16) -> Option<u64>;
    /// Sets a register; those that are not carried are ignored.
    fn set(&mut self, register: u16, value: u64);
    /// The program counter.
    fn pc(&self) -> u64;
    /// Sets the program counter to a return address, which may be signed.
    fn set_pc(&mut self, pc: u64);

    /// Steps to the caller by tables of another kind, where call frame information does not cover
    /// `lookup_pc`.
    fn step_tables(
        &self,
        _cfi: &CfiModule<'_>,
        _lookup_pc: u64,
        _read: &mut impl FnMut(u64) -> Option<u64>,
    ) -> FullStep<Self> {
        FullStep::NoCfi
    }
}

/// Result of a full step.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum FullStep<R> {
    /// The caller's registers.
    Next {
        /// Registers of the caller.
        regs: R,
        /// Whether the frame just left is a signal trampoline: `regs` are then those of an interrupted
        /// instruction, whose pc is looked up as it is.
        signal: bool,
    },
    /// The frame was the outermost one.
    End,
    /// The stack cannot be followed further.
    Cut,
    /// No call frame information covers the address.
    NoCfi,
}
