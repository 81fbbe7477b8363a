//! What planning and building a patch work on, the same for every architecture.

use alloc::vec::Vec;
use core::fmt;

/// What a patch leaves in front of it, beyond what has no effect or what the architecture's stub deals
/// with by itself. A uprobe at the function's entry puts a breakpoint there and executes the file's
/// instruction elsewhere; where that instruction is left alone, neither it nor the patch is harmed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Lead {
    /// Nothing.
    Nothing,
    /// One instruction that may be executed twice: it sets flags, or a register that carries nothing
    /// into a function, from others. The original has it again.
    Again,
    /// One instruction that only moves the stack pointer down by so many bytes, and may write there. The stub
    /// moves it up again before the hook, and the original has the instruction again.
    Down(u32),
}

/// What the breakpoint of a uprobe does that is put at a function's entry while it is patched.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Probed {
    /// No harm: probe and hook both see each call.
    Passes,
    /// The calls go past the hook.
    Hides,
    /// The program runs into the middle of the patch, and crashes.
    Breaks,
}

/// Where to patch a function, and what that displaces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PatchPlan {
    /// Where the patch goes, from the function's start: behind what must stay the first
    /// instruction (`endbr64`, `bti c`, `paciasp`).
    pub patch_offset: usize,
    /// What is executed in front of the patch, which the original must have again.
    pub lead: Lead,
    /// Bytes that are overwritten there.
    pub patch_len: usize,
    /// Length of the displaced instructions: all that the patch touches. Less than `patch_len`
    /// only for a function that ends within the patch, where the rest is padding.
    pub displaced_len: usize,
    /// Start of each displaced instruction, from the function's start.
    pub displaced: Vec<usize>,
    /// The last displaced instruction never goes on to the next one (`ret`, `jmp`), so there is
    /// nothing to return to.
    pub terminated: bool,
}

impl PatchPlan {
    /// A patch that displaces nothing yet.
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

    /// From the function's start: where the code goes on after the displaced instructions.
    #[must_use]
    pub fn continuation(&self) -> usize {
        self.patch_offset.saturating_add(self.displaced_len)
    }

    /// `pc` is inside the bytes that the patch changes, where a thread must not be when they do.
    /// (At the first of them it may be: it goes on with the patch. A thread that is to return to
    /// the first of them cannot exist.)
    #[must_use]
    pub fn covers(&self, func_addr: u64, pc: u64) -> bool {
        let offset = pc.wrapping_sub(func_addr.wrapping_add(self.patch_offset as u64));
        offset > 0 && offset < self.patch_len as u64
    }
}

/// Why a function cannot be patched, or its prologue not moved. Offsets are from the function's
/// start.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The function is shorter than the patch, and what follows is not padding.
    TooShort,
    /// Not all of the function's bytes were given.
    Incomplete {
        /// How many were.
        have: usize,
        /// How many there are.
        need: u64,
    },
    /// A branch in the function leads into the patch.
    BranchIntoPatch {
        /// Where the branch is.
        from: usize,
    },
    /// A branch (not a call) in the function leads back to its entry, so the hook would see one
    /// call as many.
    BranchToEntry {
        /// Where the branch is.
        from: usize,
    },
    /// A jump to a computed address, in a function whose end is so near that it may lead into the
    /// patch.
    IndirectBranch {
        /// Where the jump is.
        from: usize,
    },
    /// Not an instruction, or not all of it.
    Undecodable {
        /// Where.
        at: usize,
    },
    /// A displaced instruction uses its own address for more than reading data nearby: it takes the
    /// address of a displaced instruction, or calls the next instruction to find out where it is.
    OwnAddress {
        /// Where.
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

/// Displaced instructions at their new address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Relocated {
    /// The instructions, and a jump back to where the function goes on.
    pub bytes: Vec<u8>,
    /// For each instruction (those displaced, and a [`Lead`]) its offset in the function and in `bytes`. A thread whose pc
    /// is at the first is to be moved to the second before the patch is written.
    pub map: Vec<(usize, usize)>,
    /// A call is among them: it pushes a return address in the stub, where the stack's unwinding
    /// ends or needs help, and which a thread may hold for as long as the callee takes.
    pub has_call: bool,
}

impl Relocated {
    /// Where a thread at `pc` goes when the function's entry is patched and `bytes` are at
    /// `new_addr`.
    #[must_use]
    pub fn moved_pc(&self, func_addr: u64, new_addr: u64, pc: u64) -> Option<u64> {
        let offset = pc.wrapping_sub(func_addr);
        let (_, new) = self.map.iter().find(|(old, _)| *old as u64 == offset)?;
        Some(new_addr.wrapping_add(*new as u64))
    }
}

/// What `build_stub` builds from.
#[derive(Copy, Clone, Debug)]
pub struct StubParams<'a> {
    /// Where the stub will be; see `stub_window`.
    pub stub_addr: u64,
    /// Address of a `u32`: 0 means that nothing is to be recorded.
    pub flag_addr: u64,
    /// What the stub passes to the hook's entry code: the address of the function's descriptor.
    pub desc_addr: u64,
    /// Address of the hook's entry code.
    pub entry_addr: u64,
    /// Address of the patched function.
    pub func_addr: u64,
    /// The entry is one of [`hook_entry_many`](crate::hook_entry_many): on AMD64 it finds the descriptor's
    /// address on the stack, and the stub changes no register; on MIPS64 `$t8` and `$t9`.
    pub many: bool,
    /// Its bytes from before the patch.
    pub code: &'a [u8],
    /// The plan for it.
    pub plan: &'a PatchPlan,
}

/// The stub of one patched function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stub {
    /// Its code.
    pub bytes: Vec<u8>,
    /// Calling this address calls the function as it was before the patch.
    pub original_addr: u64,
    /// The jump to be written at [`patch_addr`](Self::patch_addr).
    pub patch: Vec<u8>,
    /// Where it is to be written.
    pub patch_addr: u64,
    /// The moved instructions, which are at `original_addr`.
    pub relocated: Relocated,
}
