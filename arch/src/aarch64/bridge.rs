//! The bridge: calls a function so that it returns by way of code of the target's own, and changes nothing
//! that its caller may rely on. See `x86_64/bridge.rs` and [`laid`](crate::laid).

use super::capture::Call;
use super::regs::{Aarch64, FP, FullRegs, LR, X19};
use crate::generic::capture::Entry;
pub use crate::laid::{Bridge, Layout, Slots};
use crate::laid::{FP_AT, Frame, SIGNED_AT, better, fit, put};
use crate::unwind::{CfiModule, SLOTS, shape};

/// Callee-saved registers, and the return address.
const REGISTERS: [u16; 12] = [X19, 20, 21, 22, 23, 24, 25, 26, 27, 28, FP, LR];
/// Values of these registers at the entry of the original.
pub type Loads = [u64; 12];
// The saved registers, the frame pointer and the return address.
const _: () = assert!(size_of::<Loads>() == size_of::<<Aarch64 as Entry>::Saved>() + 16);

/// Maximum number of words of stack arguments that are copied from the caller to the original.
pub const STACK_WORDS: usize = 32;
/// Offset of the mark, which shows that the frame is there, from the frame's lower end.
const MARK_AT: u64 = 8 * STACK_WORDS as u64;
/// Offset of the [`Call`] from the frame's lower end.
pub const CALL_AT: usize = MARK_AT as usize + 16;
/// Bytes below the registers of a frame.
const NEEDED: u64 = CALL_AT as u64 + size_of::<Call>() as u64;
/// Size of the smallest frame: it has the frame record alone.
pub const LEAST_FRAME: u64 = NEEDED + 16;
/// Length of a [`Bridge`]'s code. A thread whose PC is in it is on its way into the hook.
pub const BRIDGE_LEN: u64 = 4;

/// Returns the original's stack pointer at its entry and the address of the mark, for the caller's stack
/// pointer `top`.
#[must_use]
pub const fn places(top: u64, frame: u64) -> (u64, u64) {
    let base = top.wrapping_sub(frame);
    (base, base.wrapping_add(MARK_AT))
}

/// Returns the best bridge in `code`, which is at `addr`: `blr` of a callee-saved register, in a frame that
/// the tables describe completely, where no other call returns to.
#[must_use]
pub fn bridges(cfi: &CfiModule<'_>, code: &[u8], addr: u64) -> Option<Bridge> {
    let word = |at: usize| Some(u32::from_le_bytes(*code.get(at..)?.first_chunk()?));
    let is_call = |insn: u32| insn >> 26 == 0b10_0101 || insn & 0xfe9f_f000 == 0xd61f_0000;
    let mut best = None;
    for at in (4..code.len()).step_by(4) {
        let Some(insn) = word(at).filter(|insn| insn & 0xffff_fc1f == 0xd63f_0000) else {
            continue;
        };
        let register = usize::from(insn as u16 >> 5 & 31).wrapping_sub(X19 as usize);
        let before = word(at.wrapping_sub(4));
        if register > 9 || before.is_none_or(is_call) {
            continue;
        }
        let back = addr.wrapping_add(at as u64);
        let found = shape::<FullRegs>(cfi, back.wrapping_sub(1), &REGISTERS, FP);
        better(&mut best, found.and_then(|s| fit(&s, back, register, NEEDED, 8)));
    }
    best
}

/// Slots of a frame of the hook's own: only the frame record, for unwinders that follow frame pointers.
const OWN: Slots = {
    let mut slots = [0; SLOTS + 2];
    slots[10] = 2;
    slots[11] = 1;
    slots[FP_AT] = 2;
    slots
};

/// Lays out a frame below the caller's stack pointer. It sets `loads`, the registers at the entry of the
/// original. `come_back` is the address that the original's return has to reach.
///
/// # Safety
/// The stack below the caller's stack pointer must be free but for the [`Call`] itself at its place, and
/// `layout.words` words above it must be readable.
pub unsafe fn lay_out(
    call: &Call,
    layout: &Layout,
    loads: &mut Loads,
    come_back: u64,
    _returned: u64,
) {
    let top = call.regs.sp;
    let (slots, back) =
        if layout.back == 0 { (&OWN, come_back) } else { (&layout.slots, layout.back) };
    let values = |link: u64| call.saved.into_iter().chain([call.regs.fp, link]);
    loads.iter_mut().zip(values(back)).for_each(|(to, value)| *to = value);
    if layout.back != 0
        && let Some(load) = loads.get_mut(usize::from(layout.register))
    {
        *load = come_back;
    }
    if slots[FP_AT] != 0 {
        loads[10] = top.wrapping_sub(u64::from(slots[FP_AT]).wrapping_mul(8));
    }
    let link = if slots[SIGNED_AT] == 0 { call.regs.pc } else { signed(call.regs.pc, top) };
    let words = layout.words.min(STACK_WORDS);
    let f = Frame { top, len: layout.frame, slots, words, mark: (layout.back, MARK_AT) };
    // SAFETY: the caller promises that the frame is free, and that the words above it are readable.
    unsafe { put(&f, values(link).map(|value| value as usize)) };
}

/// Returns a return address with the signature that the unwinder removes, where signatures are in use:
/// `pacia1716`.
fn signed(address: u64, _cfa: u64) -> u64 {
    #[cfg(target_arch = "aarch64")]
    {
        let mut signed = address;
        // SAFETY: the instruction changes only the named registers.
        unsafe {
            core::arch::asm!("hint #8", inlateout("x17") signed, in("x16") _cfa,
                options(nostack, nomem, preserves_flags));
        }
        signed
    }
    #[cfg(not(target_arch = "aarch64"))]
    address
}

/// Stores, from the stack pointer up, the registers that calls do not preserve, except x16 and x17, which
/// calls may change on their way (AAPCS64, 6.1.1). The hook changes the vector registers' lower halves, and
/// no others.
#[cfg(target_arch = "aarch64")]
#[macro_export]
macro_rules! save_all {
    () => {
        concat!(
            "stp x0, x1, [sp]\nstp x2, x3, [sp, #16]\nstp x4, x5, [sp, #32]\n",
            "stp x6, x7, [sp, #48]\nstp x8, x9, [sp, #64]\nstp x10, x11, [sp, #80]\n",
            "stp x12, x13, [sp, #96]\nstp x14, x15, [sp, #112]\n",
            "mrs x16, nzcv\nstp x18, x16, [sp, #128]\n",
            "stp q0, q1, [sp, #240]\nstp q2, q3, [sp, #272]\nstp q4, q5, [sp, #304]\n",
            "stp q6, q7, [sp, #336]\nstp q8, q9, [sp, #368]\nstp q10, q11, [sp, #400]\n",
            "stp q12, q13, [sp, #432]\nstp q14, q15, [sp, #464]\nstp q16, q17, [sp, #496]\n",
            "stp q18, q19, [sp, #528]\nstp q20, q21, [sp, #560]\nstp q22, q23, [sp, #592]\n",
            "stp q24, q25, [sp, #624]\nstp q26, q27, [sp, #656]\nstp q28, q29, [sp, #688]\n",
            "stp q30, q31, [sp, #720]\n",
        )
    };
}

/// Loads the registers that [`save_all`](crate::save_all) has stored.
#[cfg(target_arch = "aarch64")]
#[macro_export]
macro_rules! restore_all {
    () => {
        concat!(
            "ldp x0, x1, [sp]\nldp x2, x3, [sp, #16]\nldp x4, x5, [sp, #32]\n",
            "ldp x6, x7, [sp, #48]\nldp x8, x9, [sp, #64]\nldp x10, x11, [sp, #80]\n",
            "ldp x12, x13, [sp, #96]\nldp x14, x15, [sp, #112]\n",
            "ldp x18, x16, [sp, #128]\nmsr nzcv, x16\n",
            "ldp q0, q1, [sp, #240]\nldp q2, q3, [sp, #272]\nldp q4, q5, [sp, #304]\n",
            "ldp q6, q7, [sp, #336]\nldp q8, q9, [sp, #368]\nldp q10, q11, [sp, #400]\n",
            "ldp q12, q13, [sp, #432]\nldp q14, q15, [sp, #464]\nldp q16, q17, [sp, #496]\n",
            "ldp q18, q19, [sp, #528]\nldp q20, q21, [sp, #560]\nldp q22, q23, [sp, #592]\n",
            "ldp q24, q25, [sp, #624]\nldp q26, q27, [sp, #656]\nldp q28, q29, [sp, #688]\n",
            "ldp q30, q31, [sp, #720]\n",
        )
    };
}

/// Defines an entry `$name` for functions that the user has named, around `$before` and `$after` as
/// [`hook_entry`](crate::hook_entry) does. All registers are as they would be without it. Two items must be
/// in scope: `named_frame(call, loads, come_back, returned)`, which lays out the original's frame (see
/// [`lay_out`]), and `FRAME`, the offset of [`Bridge::frame`] in the descriptor.
#[cfg(target_arch = "aarch64")]
#[macro_export]
macro_rules! hook_entry_many {
    ($(#[$doc:meta])* $name:ident, $before:path, $after:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "hint #34", // bti c
                "ldr x16, [x17, #{frame}]",
                "sub sp, sp, x16",
                "sub sp, sp, #752",
                $crate::save_all!(),
                "ldr x1, [x17, #{frame}]",
                "add x1, sp, x1",
                "add x1, x1, #752", // the caller's stack pointer
                "ldr x0, [sp]",
                "add x16, sp, #(752 + {call})",
                "str x0, [x16]",
                "ldr x0, [sp, #8]",
                "stp x0, x2, [x16, #8]",
                "stp x3, x4, [x16, #24]",
                "stp x5, x17, [x16, #40]",
                "stp x30, x1, [x16, #64]",
                "stp x29, x19, [x16, #80]",
                "stp x20, x21, [x16, #96]",
                "stp x22, x23, [x16, #112]",
                "stp x24, x25, [x16, #128]",
                "stp x26, x27, [x16, #144]",
                "str x28, [x16, #160]",
                "mov x19, x16",
                "mov x0, x16",
                "bl {before}",
                "str x0, [x19, #56]", // where to go
                "cbz x1, 2f",
                "mov x0, x19",
                "add x1, sp, #144",
                "adr x2, 5f",
                "mov x3, x2",
                "bl {named_frame}",
                $crate::restore_all!(),
                "ldr x17, [x19, #56]",
                "ldp x19, x20, [sp, #144]",
                "ldp x21, x22, [sp, #160]",
                "ldp x23, x24, [sp, #176]",
                "ldp x25, x26, [sp, #192]",
                "ldp x27, x28, [sp, #208]",
                "ldp x29, x30, [sp, #224]",
                "add sp, sp, #752",
                "br x17",
                "2:", // jump, as if the hook had never been entered
                $crate::restore_all!(),
                "ldr x16, [x19, #56]",
                "ldp x30, x17, [x19, #64]",
                "ldr x19, [x19, #88]",
                "mov sp, x17",
                "br x16",
                "5:", // back from the original
                "hint #34",
                "sub sp, sp, #752",
                $crate::save_all!(),
                "add x19, sp, #(752 + {call})",
                "str x0, [x19, #56]",
                "mov x0, x19",
                "bl {after}",
                $crate::restore_all!(),
                "ldp x30, x17, [x19, #64]",
                "ldr x29, [x19, #80]",
                "ldp x20, x21, [x19, #96]",
                "ldp x22, x23, [x19, #112]",
                "ldp x24, x25, [x19, #128]",
                "ldp x26, x27, [x19, #144]",
                "ldr x28, [x19, #160]",
                "ldr x19, [x19, #88]",
                "mov sp, x17",
                "ret",
                before = sym $before,
                after = sym $after,
                named_frame = sym named_frame,
                frame = const FRAME,
                call = const $crate::aarch64::bridge::CALL_AT,
            )
        }
    };
}
