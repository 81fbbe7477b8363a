//! Builds a signal frame like the kernel's own, so that a thread whose registers were changed gets all of
//! them back by `rt_sigreturn`, with nobody's help.
//!
//! Layout: `struct rt_sigframe` (`arch/x86/include/asm/sigframe.h`), `struct ucontext`, `struct
//! sigcontext_64` and `struct _fpx_sw_bytes` (`arch/x86/include/uapi/asm/`); what is checked on
//! return: `rt_sigreturn` in `arch/x86/kernel/signal_64.c` and `check_xstate_in_sigframe` in
//! `arch/x86/kernel/fpu/signal.c`.
//!
//! The thread runs `syscall; ret` with `rsp` at the frame; the `ret` goes to the restorer that the
//! frame's first word names (`mov eax, 15; syscall`), with `rsp` at the `ucontext`, as at the end
//! of a signal handler.
//!
//! A frame cannot restore everything: a thread with user shadow stacks (CET) would need a token on the shadow
//! stack, so such threads must be refused (`x86_Thread_features` in `/proc/PID/status`). `fs_base` and
//! `gs_base` are not in the frame, and the kernel does not change them on the way.

use super::call::UserRegs;
use crate::generic::sigframe::{SS_INVALID, put};
#[allow(unused_imports)] // for the documentation
use crate::generic::stopped::StoppedRegs;

pub use crate::generic::sigframe::{Sigframe, SigframeError};

/// Register set with the vector registers: `NT_X86_XSTATE`.
pub const VECTOR_REGSET: i32 = 0x202;

/// Register sets that a system call discards: there are none.
pub const SCALABLE_REGSETS: &[i32] = &[];

/// Returns whether the first bytes of such a set say that the thread uses it.
#[must_use]
pub fn is_scalable_in_use(_header: &[u8]) -> bool {
    false
}

const UC_FP_XSTATE: u64 = 1;
const UC_SIGCONTEXT_SS: u64 = 2;
const UC_STRICT_RESTORE_SS: u64 = 4;
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;

/// Offset from the frame's start: the word with the restorer's address comes first.
const UCONTEXT: usize = 8;
/// Offsets from the ucontext's start.
const UC_STACK_FLAGS: usize = 24;
const UC_MCONTEXT: usize = 40;
const UC_SEGMENTS: usize = 184;
const UC_FPSTATE: usize = 224;
const UC_SIGMASK: usize = 296;
/// Length of return word, ucontext and siginfo.
const FPSTATE_MIN: usize = 8 + 304 + 128;
/// Length of the legacy region and the xsave header.
const XSAVE_MIN: usize = 576;
/// Offset in the legacy region where the kernel's ptrace interface tells of the features in the image, and
/// where the signal frame has its `_fpx_sw_bytes`.
const SW_RESERVED: usize = 464;
/// Offset in the image of the features that are not in their initial state.
const XSTATE_BV: usize = 512;

/// The features that a thread's state has no room for before it uses them: the tiles of AMX
/// (`XFEATURE_MASK_USER_DYNAMIC`).
const DYNAMIC: u64 = 1 << 18;

/// Ends of the features of an xsave image in standard format. They differ between machines: `cpuid` leaf 0xd.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct VectorLayout {
    /// End offset of each feature's area; 0: not supported.
    pub end: [u32; 64],
}

impl VectorLayout {
    /// Returns this machine's layout.
    #[cfg(target_arch = "x86_64")]
    #[must_use]
    pub fn native() -> Self {
        let mut end = [XSAVE_MIN as u32; 64];
        let supported = core::arch::x86_64::__cpuid_count(0, 0).eax >= 0xd;
        for (index, slot) in (0_u32..).zip(&mut end).skip(2) {
            *slot = 0;
            if supported {
                let leaf = core::arch::x86_64::__cpuid_count(0xd, index);
                *slot = leaf.ebx.checked_add(leaf.eax).filter(|_| leaf.eax > 0).unwrap_or(0);
            }
        }
        VectorLayout { end }
    }

    /// Returns how many bytes of an image with these features have a meaning.
    #[must_use]
    pub fn used(&self, features: u64) -> usize {
        let ends = self.end.iter().enumerate();
        let used =
            ends.filter(|(bit, _)| features >> (bit & 63) & 1 == 1).map(|(_, &end)| end as usize);
        used.fold(XSAVE_MIN, usize::max)
    }
}

/// Returns the maximum length of a frame with an xsave image of `xsave_len` bytes.
#[must_use]
pub const fn sigframe_len(xsave_len: usize) -> usize {
    // Return word, ucontext and siginfo; up to 63 bytes to the next multiple of 64; the image; the
    // second magic number.
    FPSTATE_MIN.saturating_add(63 + 4).saturating_add(xsave_len)
}

fn get_u64(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// Builds, in `out`, the signal frame for `frame_addr` (a multiple of 8) that restores `regs`, the vector
/// state `xsave` and the signal mask `sigmask`.
///
/// `regs` should come from [`for_sigframe`](StoppedRegs::for_sigframe). `xsave` is the image that ptrace returns
/// (`NT_X86_XSTATE`: standard format). The frame's image has the size of the *thread's* state (`fpstate->user_size`), as the
/// kernel refuses a larger one. A smaller one would do only where memory follows it: a processor may read behind what is in
/// use, and then Linux 6.8 and later want to read the whole size; some look there for the second magic number as well. On
/// machines with AMX the thread's state is smaller than ptrace's image, as the tiles belong to it only if it uses them.
/// `restorer` is the address of `mov eax, 15; syscall`.
///
/// # Errors
///
/// See [`SigframeError`].
pub fn build_sigframe(
    out: &mut [u8],
    frame_addr: u64,
    regs: &UserRegs,
    xsave: &[u8],
    layout: &VectorLayout,
    sigmask: u64,
    restorer: u64,
) -> Result<Sigframe, SigframeError> {
    if frame_addr & 7 != 0 {
        return Err(SigframeError::Misaligned { align: 8 });
    }
    let in_use = get_u64(xsave, XSTATE_BV).ok_or(SigframeError::BadVector)?;
    let enabled = get_u64(xsave, SW_RESERVED).ok_or(SigframeError::BadVector)?;
    let len = layout.used(enabled & !DYNAMIC | in_use);
    let image = xsave.get(..len).ok_or(SigframeError::BadVector)?;
    let need = sigframe_len(image.len());
    if out.len() < need {
        return Err(SigframeError::NoRoom { need });
    }
    let fp_addr = frame_addr.wrapping_add(FPSTATE_MIN as u64 + 63) & !63;
    let fp_offset = fp_addr.wrapping_sub(frame_addr) as usize;
    out.fill(0);
    ucontext(out, regs, fp_addr, sigmask, restorer)
        .and_then(|()| fpstate(out.get_mut(fp_offset..)?, image, in_use))
        .map(|fp_len| Sigframe { len: fp_offset.wrapping_add(fp_len), sp: frame_addr })
        .ok_or(SigframeError::NoRoom { need })
}

/// Writes the return word and the ucontext.
fn ucontext(
    out: &mut [u8],
    regs: &UserRegs,
    fp_addr: u64,
    sigmask: u64,
    restorer: u64,
) -> Option<()> {
    put(out, 0, restorer.to_le_bytes())?;
    let uc = out.get_mut(UCONTEXT..)?;
    let flags = UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS;
    put(uc, 0, flags.to_le_bytes())?;
    put(uc, UC_STACK_FLAGS, SS_INVALID.to_le_bytes())?;
    let r = regs;
    let general = [
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx,
        r.rax, r.rcx, r.rsp, r.rip, r.eflags,
    ];
    let offsets = (UC_MCONTEXT..).step_by(8);
    for (offset, value) in offsets.zip(general) {
        put(uc, offset, value.to_le_bytes())?;
    }
    let segments = [r.cs, r.gs, r.fs, r.ss];
    for (offset, value) in (UC_SEGMENTS..).step_by(2).zip(segments) {
        put(uc, offset, (value as u16).to_le_bytes())?;
    }
    put(uc, UC_FPSTATE, fp_addr.to_le_bytes())?;
    put(uc, UC_SIGMASK, sigmask.to_le_bytes())
}

/// Writes the vector state, marked as the kernel does in a signal frame; returns its length.
fn fpstate(out: &mut [u8], image: &[u8], in_use: u64) -> Option<usize> {
    put(out, 0, image)?;
    // All features that the image speaks of are restored, also those in their initial state; x87
    // and SSE always, since MXCSR comes with them.
    let features = get_u64(image, SW_RESERVED)? | in_use | 3;
    let size = image.len() as u32;
    out.get_mut(SW_RESERVED..XSTATE_BV)?.fill(0);
    put(out, SW_RESERVED, FP_XSTATE_MAGIC1.to_le_bytes())?;
    put(out, SW_RESERVED.wrapping_add(4), size.wrapping_add(4).to_le_bytes())?;
    put(out, SW_RESERVED.wrapping_add(8), features.to_le_bytes())?;
    put(out, SW_RESERVED.wrapping_add(16), size.to_le_bytes())?;
    put(out, image.len(), FP_XSTATE_MAGIC2.to_le_bytes())?;
    image.len().checked_add(4)
}
