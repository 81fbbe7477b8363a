//! The bridge: calls a function so that it returns by way of code of the target's own, and changes nothing
//! that its caller may rely on. See `x86_64/bridge.rs` and [`laid`](crate::laid).

use super::capture::Call;
use super::exidx::{Exidx, is_plain};
use super::regs::{Arm, FullRegs, LR, R7, THUMB};
use crate::generic::capture::Entry;
pub use crate::laid::{Bridge, Layout, Slots};
use crate::laid::{FP_AT, Frame, better, fit, put};
use crate::unwind::{CfiModule, SLOTS, shape};

/// Callee-saved registers, and the return address.
const REGISTERS: [u16; 9] = [4, 5, 6, R7, 8, 9, 10, 11, LR];
/// Values of these registers at the entry of the original.
pub type Loads = [u32; 9];
// The saved registers, the return address.
const _: () = assert!(size_of::<Loads>() == size_of::<<Arm as Entry>::Saved>() + 4);

/// Maximum number of words of stack arguments that are copied from the caller to the original.
pub const STACK_WORDS: usize = 32;
/// Offset of the mark, which shows that the frame is there, from the frame's lower end.
const MARK_AT: u64 = 4 * STACK_WORDS as u64;
/// Offset of the [`Call`] from the frame's lower end. The return address, with the Thumb bit, is two words in
/// front of it.
pub const CALL_AT: usize = MARK_AT as usize + 16;
/// Bytes below the registers of a frame.
const NEEDED: u64 = CALL_AT as u64 + size_of::<Call>() as u64;
/// Size of the smallest frame: the entry saves four registers in it for a moment.
pub const LEAST_FRAME: u64 = NEEDED + 16;
/// Length of a [`Bridge`]'s code. A thread whose PC is in it is on its way into the hook.
pub const BRIDGE_LEN: u64 = 2;

/// Returns the original's stack pointer at its entry and the address of the mark, for the caller's stack
/// pointer `top`.
#[must_use]
pub const fn places(top: u64, frame: u64) -> (u64, u64) {
    let base = top.wrapping_sub(frame);
    (base, base.wrapping_add(MARK_AT))
}

/// Returns the best bridge in `code`, which is at `addr`: Thumb's `blx` of a callee-saved register, in a
/// frame that the tables describe completely, where no other call returns to.
#[must_use]
pub fn bridges(cfi: &CfiModule<'_>, code: &[u8], addr: u64) -> Option<Bridge> {
    let half = |at: usize| Some(u16::from_le_bytes(*code.get(at..)?.first_chunk()?));
    let exidx = Exidx { bytes: cfi.exidx, addr: cfi.exidx_addr };
    let mut best = None;
    for at in (4..code.len()).step_by(2) {
        let Some(insn) = half(at).filter(|insn| insn & 0xff87 == 0x4780) else { continue };
        let register = usize::from(insn >> 3 & 15).wrapping_sub(4);
        // `blx`, or the second half of `bl` or `blx`.
        let may_be_call = |insn: u16| insn & 0xff87 == 0x4780 || insn & 0xc000 == 0xc000;
        let back = addr.wrapping_add(at as u64);
        let looked_up = back.wrapping_sub(1);
        let before = half(at.wrapping_sub(2));
        if register > 7 || before.is_none_or(may_be_call) || !is_plain(&exidx, looked_up) {
            continue;
        }
        let found = shape::<FullRegs>(cfi, looked_up, &REGISTERS, R7);
        let new = found.and_then(|s| fit(&s, back | THUMB, register, NEEDED, 4));
        // The entry knows a frame without a bridge by its length.
        better(&mut best, new.filter(|b| b.frame > LEAST_FRAME && b.frame & 7 == 0));
    }
    best
}

/// Slots of a frame of the hook's own: none, as nothing looks for registers in it.
const OWN: Slots = [0; SLOTS + 2];

/// Lays out a frame below the caller's stack pointer. It sets `loads`, the registers at the entry of the
/// original. `come_back` is the address that the original's return has to reach.
///
/// # Safety
/// The stack below the caller's stack pointer must be free but for the [`Call`] itself at its place and the
/// words in front of it, and `layout.words` words above it must be readable.
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
    let values = |link: u32| call.saved.into_iter().chain([link]);
    loads.iter_mut().zip(values(back as u32)).for_each(|(to, value)| *to = value);
    if layout.back != 0
        && let Some(load) = loads.get_mut(usize::from(layout.register))
    {
        *load = come_back as u32;
    }
    if slots[FP_AT] != 0 {
        loads[3] = top.wrapping_sub(u64::from(slots[FP_AT]).wrapping_mul(4)) as u32;
    }
    // SAFETY: the entry has put the return address there.
    let link = unsafe { (core::ptr::from_ref(call).cast::<u32>()).wrapping_sub(2).read() };
    let words = layout.words.min(STACK_WORDS);
    let mark = (layout.back & !THUMB, MARK_AT);
    let f = Frame { top, len: layout.frame, slots, words, mark };
    // SAFETY: the caller promises that the frame is free, and that the words above it are readable.
    unsafe { put(&f, values(link).map(|value| value as usize)) };
}

/// Defines an entry `$name` for functions that the user has named, around `$before` and `$after` as
/// [`hook_entry`](crate::hook_entry) does. All registers are as they would be without it, except ip and the
/// flags, which calls may change on their way (AAPCS32, 6.1.1), as gcc assumes; the hook has no instructions
/// that change vector registers. Two items must be in scope: `named_frame(call, loads, come_back, returned)`,
/// which lays out the original's frame (see [`lay_out`]), and `FRAME`, the offset of [`Bridge::frame`] in the
/// descriptor.
///
/// Stack layout, from the stack pointer up: `Go`, r0 to r3, the registers for the original.
#[cfg(target_arch = "arm")]
#[macro_export]
macro_rules! hook_entry_many {
    ($(#[$doc:meta])* $name:ident, $before:path, $after:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "push {{r4, r5, ip, lr}}",
                "add r5, sp, #16", // the caller's stack pointer
                "ldr r4, [ip, #{frame}]",
                "sub r4, r5, r4",
                "sub sp, r4, #72",
                "str r0, [sp, #16]",
                "str r1, [sp, #20]",
                "str r2, [sp, #24]",
                "str r3, [sp, #28]",
                "add r4, sp, #(72 + {call})",
                "mov lr, #0", // the upper halves
                "str r0, [r4]",
                "str lr, [r4, #4]",
                "str r1, [r4, #8]",
                "str lr, [r4, #12]",
                "str r2, [r4, #16]",
                "str lr, [r4, #20]",
                "str r3, [r4, #24]",
                "str lr, [r4, #28]",
                "ldr r0, [r5]",
                "ldr r1, [r5, #4]",
                "str r0, [r4, #32]",
                "str lr, [r4, #36]",
                "str r1, [r4, #40]",
                "str lr, [r4, #44]",
                "str ip, [r4, #48]",
                "str lr, [r4, #52]",
                "str lr, [r4, #60]",
                "ldr r0, [r5, #-4]",
                "str r0, [r4, #-8]",
                "bic r0, r0, #1",
                "str r0, [r4, #64]",
                "str lr, [r4, #68]",
                "str r5, [r4, #72]",
                "str lr, [r4, #76]",
                "str r7, [r4, #80]",
                "str lr, [r4, #84]",
                "ldr r0, [r5, #-16]",
                "str r0, [r4, #88]",
                "ldr r0, [r5, #-12]",
                "str r0, [r4, #92]",
                "add r0, r4, #96",
                "stmia r0, {{r6-r11}}",
                "mov r0, sp",
                "mov r1, r4",
                "bl {before}",
                "ldr r0, [sp]",
                "ldr r1, [sp, #8]",
                "cmp r1, #0",
                "beq 2f",
                "str r0, [r4, #56]", // where to go
                // Arguments of 64 bits; the fourth is on the stack.
                "adr r0, 5f",
                "mov r1, #0",
                "push {{r0, r1}}",
                "push {{r0, r1}}",
                "mov r2, r0",
                "mov r3, r1",
                "mov r0, r4",
                "add r1, sp, #48",
                "bl {named_frame}",
                "add sp, sp, #16",
                "ldr ip, [r4, #48]",
                "ldr ip, [ip, #{frame}]",
                "cmp ip, #{least}",
                "ldr ip, [r4, #56]",
                "ldr r0, [sp, #16]",
                "ldr r1, [sp, #20]",
                "ldr r2, [sp, #24]",
                "ldr r3, [sp, #28]",
                "add lr, sp, #32",
                "ldmia lr, {{r4-r11, lr}}",
                "add sp, sp, #72",
                "bxne ip", // returns by way of a bridge
                "blx ip",
                "5:", // back from the original
                "sub sp, sp, #72",
                "str r0, [sp, #16]",
                "str r1, [sp, #20]",
                "str r2, [sp, #24]",
                "str r3, [sp, #28]",
                "add r4, sp, #(72 + {call})",
                "str r0, [r4, #56]",
                "mov r0, r4",
                "bl {after}",
                "ldr r0, [sp, #16]",
                "ldr r1, [sp, #20]",
                "ldr r2, [sp, #24]",
                "ldr r3, [sp, #28]",
                "ldr ip, [r4, #48]",
                "ldr ip, [ip, #{frame}]",
                "cmp ip, #{least}",
                "beq 7f",
                "add ip, r4, #96",
                "ldmia ip, {{r6-r11}}",
                "ldr lr, [r4, #-8]",
                "ldr r5, [r4, #92]",
                "ldr ip, [r4, #72]",
                "ldr r4, [r4, #88]",
                "mov sp, ip",
                "bx lr",
                // The smallest frame, which is not a bridge's, and in whose end the return address still is. All by
                // the stack pointer: unwinding follows this when the original calls another hooked function.
                "7:",
                "add sp, sp, #(72 + {call} + 88)",
                "pop {{r4-r11}}",
                "add sp, sp, #({least} - {call} - 124)",
                "pop {{pc}}",
                "2:", // jump, as if the hook had never been entered
                "ldr r5, [r4, #72]",
                "str r0, [r5, #-8]",
                "ldr r0, [sp, #16]",
                "ldr r1, [sp, #20]",
                "ldr r2, [sp, #24]",
                "ldr r3, [sp, #28]",
                "sub sp, r5, #16",
                "pop {{r4, r5, ip, lr}}",
                "bx ip",
                before = sym $before,
                after = sym $after,
                named_frame = sym named_frame,
                frame = const FRAME,
                call = const $crate::arm::bridge::CALL_AT,
                least = const $crate::arm::bridge::LEAST_FRAME,
            )
        }
    };
}
