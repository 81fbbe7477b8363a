//! Types for planning and building a patch, the same for every architecture.

use alloc::vec::Vec;
use core::fmt;

/// Instructions that a patch leaves in front of it, besides those that have no effect or that the
/// architecture's stub handles by itself. A uprobe at the function's entry puts a breakpoint there and executes
/// the file's instruction elsewhere; if that instruction is left alone, neither the uprobe nor the patch is
/// harmed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Lead {
    /// No instruction stays in front of the patch.
    Nothing,
    /// One instruction that may be executed twice: it sets flags, or a register that carries nothing into a
    /// function, from others. The original executes it again.
    Again,
    /// One instruction that only moves the stack pointer down by this many bytes, and may write there. The
    /// stub moves it up again before the hook, and the original executes the instruction again.
    Down(u32),
}

/// Effect of a uprobe that is put at the entry of a patched function.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Probed {
    /// No harm is done: probe and hook both see each call.
    Passes,
    /// Calls go past the hook.
    Hides,
    /// The program runs into the middle of the patch, and crashes.
    Breaks,
}

/// Plan of a patch: where it is in a function, and what it displaces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PatchPlan {
    /// Offset of the patch from the function's start: behind what must stay the first instruction (`endbr64`,
    /// `bti c`, `paciasp`).
    pub patch_offset: usize,
    /// The instruction that is executed in front of the patch, and again in the original.
    pub lead: Lead,
    /// Length of the patch, in bytes.
    pub patch_len: usize,
    /// Length of the displaced instructions: all that the patch touches. It is less than `patch_len` only for
    /// a function that ends within the patch, where the rest is padding.
    pub displaced_len: usize,
    /// Offset of each displaced instruction from the function's start.
    pub displaced: Vec<usize>,
    /// Whether the last displaced instruction never continues with the next one (`ret`, `jmp`), so that there
    /// is nothing to return to.
    pub terminated: bool,
}

impl PatchPlan {
    /// Makes a plan that displaces nothing yet.
    pub(crate) fn at(patch_offset: usize, patch_len: usize) -> Self {
        PatchPlan {
            patch_offset,
            lead: Lead::Nothing,
            patch_len,
            displaced_len: 0,
            displaced: Vec::new(),
            terminated: false,
        }
    }

    /// Returns the offset at which the code continues behind the displaced instructions.
    #[must_use]
    pub fn continuation(&self) -> usize {
        self.patch_offset.saturating_add(self.displaced_len)
    }

    /// Returns whether `pc` is inside the bytes that the patch changes, where no thread may be when they do.
    /// A thread may be at the first of them: it continues with the patch. No thread can be about to return to
    /// the first of them.
    #[must_use]
    pub fn covers(&self, func_addr: u64, pc: u64) -> bool {
        let offset = pc.wrapping_sub(func_addr.wrapping_add(self.patch_offset as u64));
        offset > 0 && offset < self.patch_len as u64
    }
}

/// Reason why a function cannot be patched, or its prologue not moved. Offsets are from the function's start.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The function is shorter than the patch, and what follows is not padding.
    TooShort,
    /// Not all of the function's bytes were given.
    Incomplete {
        /// Number of bytes given.
        have: usize,
        /// Number of bytes of the function.
        need: u64,
    },
    /// A branch in the function leads into the patch.
    BranchIntoPatch {
        /// Offset of the branch.
        from: usize,
    },
    /// A branch (not a call) in the function leads back to its entry, so that the hook would see one call as
    /// many.
    BranchToEntry {
        /// Offset of the branch.
        from: usize,
    },
    /// A computed jump, in a function whose end is so near that it may lead into the patch.
    IndirectBranch {
        /// Offset of the jump.
        from: usize,
    },
    /// The bytes are no instruction, or not all of one.
    Undecodable {
        /// Offset of these bytes.
        at: usize,
    },
    /// A displaced instruction uses its own address for more than reading data nearby: it takes the
    /// address of a displaced instruction, or calls the next instruction to find out where it is.
    OwnAddress {
        /// Offset of the instruction.
        at: usize,
    },
    /// A displaced instruction has no equivalent at the stub's address (most often: its data is too
    /// far away).
    CannotMove,
    /// The stub is not in reach of the function.
    OutOfReach,
    /// The code is not what the plan was made for.
    Changed,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::TooShort => write!(f, "the function is shorter than the patch"),
            Refusal::Incomplete { have, need } => {
                write!(f, "only {have} of the function's {need} bytes are readable")
            }
            Refusal::BranchIntoPatch { from } => {
                write!(f, "a branch at +{from:#x} leads into the bytes to be patched")
            }
            Refusal::BranchToEntry { from } => {
                write!(f, "a branch at +{from:#x} leads back to the function's entry")
            }
            Refusal::IndirectBranch { from } => {
                write!(f, "the computed jump at +{from:#x} may lead into the bytes to be patched")
            }
            Refusal::Undecodable { at } => write!(f, "no instruction can be decoded at +{at:#x}"),
            Refusal::OwnAddress { at } => {
                write!(f, "the instruction at +{at:#x} depends on its own address")
            }
            Refusal::CannotMove => {
                write!(f, "the function's first instructions cannot be moved to the stub")
            }
            Refusal::OutOfReach => {
                write!(f, "the stub is too far away from the function for a jump")
            }
            Refusal::Changed => write!(f, "the function's code has changed"),
        }
    }
}

impl core::error::Error for Refusal {}

/// Displaced instructions, relocated to their new address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Relocated {
    /// The instructions, and a jump back to where the function continues.
    pub bytes: Vec<u8>,
    /// For each instruction (those displaced, and a [`Lead`]) its offset in the function and in `bytes`. A
    /// thread whose pc is at the first is moved to the second before the patch is written.
    pub map: Vec<(usize, usize)>,
    /// Whether a call is among them. It pushes a return address in the stub, where unwinding ends or needs
    /// help, and which a thread may hold for as long as the callee takes.
    pub has_call: bool,
}

impl Relocated {
    /// Returns the new pc of a thread at `pc` when the function's entry is patched and `bytes` are at
    /// `new_addr`.
    #[must_use]
    pub fn moved_pc(&self, func_addr: u64, new_addr: u64, pc: u64) -> Option<u64> {
        let offset = pc.wrapping_sub(func_addr);
        let (_, new) = self.map.iter().find(|(old, _)| *old as u64 == offset)?;
        Some(new_addr.wrapping_add(*new as u64))
    }
}

/// Parameters of `build_stub`.
#[derive(Copy, Clone, Debug)]
pub struct StubParams<'a> {
    /// Address of the stub; see `stub_window`.
    pub stub_addr: u64,
    /// Address of a `u32` flag: 0 means that nothing is recorded.
    pub flag_addr: u64,
    /// Address of the function's descriptor, which the stub passes to the hook's entry.
    pub desc_addr: u64,
    /// Address of the hook's entry.
    pub entry_addr: u64,
    /// Address of the patched function.
    pub func_addr: u64,
    /// Whether the entry is one of [`hook_entry_many`](crate::hook_entry_many): on AMD64 it finds the
    /// descriptor's address on the stack, and the stub changes no register; on MIPS64 `$t8` and `$t9`.
    pub many: bool,
    /// Bytes of the function from before the patch.
    pub code: &'a [u8],
    /// Plan of the patch.
    pub plan: &'a PatchPlan,
}

/// The stub of one patched function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stub {
    /// Code of the stub.
    pub bytes: Vec<u8>,
    /// Address to call for the function as it was before the patch.
    pub original_addr: u64,
    /// Jump to be written at [`patch_addr`](Self::patch_addr).
    pub patch: Vec<u8>,
    /// Address of the patch.
    pub patch_addr: u64,
    /// The relocated instructions, which are at `original_addr`.
    pub relocated: Relocated,
}
