//! The bridge: calls a function so that it returns by way of code of the target's own, and changes nothing
//! that its caller may rely on. It is for functions that the user has named: they may throw exceptions, and
//! callers that are compiled with them (gcc's `-fipa-ra`) know which registers they leave alone.

use super::capture::Call;
use super::regs::{FullRegs, R12, R13, R14, R15, RBP, RBX, RSP};
pub use crate::laid::{Bridge, Layout, Slots};
use crate::unwind::{CfiContext, CfiModule, FullStep, RegisterSet, step_full};

/// Registers that may be called, in the order of [`Call::saved`].
const REGISTERS: [u16; 5] = [RBX, R12, R13, R14, R15];
/// Slots of these registers and `rbp` in a frame, counted down from behind its return address: as gcc and
/// clang push them.
const SLOTS: [(u16, u64); 6] = [(RBX, 56), (RBP, 48), (R12, 40), (R13, 32), (R14, 24), (R15, 16)];

/// Maximum number of words of stack arguments that are copied from the caller to the original.
pub const STACK_WORDS: usize = 32;
/// Offset of the [`Call`] from the original's return address: behind the arguments.
pub const CALL_AT: usize = 8 + 8 * STACK_WORDS;
/// Size of the smallest frame: the return address, arguments, the [`Call`], six registers.
pub const LEAST_FRAME: u64 = (CALL_AT + size_of::<Call>() + 48).next_multiple_of(16) as u64;
/// Length of a [`Bridge`]'s code. A thread whose PC is in it is on its way into the hook.
pub const BRIDGE_LEN: u64 = 1;
/// Values of the registers of [`Call::saved`] at the entry of the original.
pub type Loads = [u64; 5];

/// Returns the original's stack pointer at its entry and the address of the word that shows that the frame is
/// there, its return address, for the caller's stack pointer `top`.
#[must_use]
pub const fn places(top: u64, frame: u64) -> (u64, u64) {
    let base = top.wrapping_sub(8).wrapping_sub(frame);
    (base, base)
}

/// Maximum size of a frame: larger ones would take more of a small stack than the hook does otherwise.
const MOST_FRAME: u64 = 2048;

/// Returns the best bridge in `code`, which is at `addr`: in a frame that has all registers in the usual
/// slots and no language's handler, where no other call returns to.
#[must_use]
pub fn bridges(cfi: &CfiModule<'_>, code: &[u8], addr: u64) -> Option<Bridge> {
    let mut best: Option<Bridge> = None;
    for at in 8..code.len() {
        let register = match code.get(at..) {
            Some([0xff, 0xd3, ..]) if code.get(at.wrapping_sub(1)) != Some(&0x41) => 0,
            Some([0x41, 0xff, m @ 0xd4..=0xd7, ..]) => m.wrapping_sub(0xd3),
            _ => continue,
        };
        let back = addr.wrapping_add(at as u64);
        if code.get(at.wrapping_sub(8)..at).is_none_or(may_end_in_call) {
            continue;
        }
        let Some(frame) = frame(cfi, back, register) else { continue };
        if best.is_none_or(|b| frame < b.frame) {
            best = Some(Bridge { back, frame, register, slots: Slots::default() });
        }
    }
    best
}

/// Returns whether the instruction that ends here may be a call, which returns to what follows it.
fn may_end_in_call(before: &[u8]) -> bool {
    let byte = |back: usize| before.len().checked_sub(back).and_then(|at| before.get(at)).copied();
    let modrm = |back: usize| {
        // ff /2
        byte(back) == Some(0xff) && byte(back.wrapping_sub(1)).is_some_and(|m| m >> 3 & 7 == 2)
    };
    byte(5) == Some(0xe8) || [2, 3, 4, 6, 7].into_iter().any(modrm)
}

/// Returns the size of the frame of a return to `back`, if the frame is as the hook lays it out.
fn frame(cfi: &CfiModule<'_>, back: u64, register: u8) -> Option<u64> {
    const SP: u64 = 1 << 40;
    if cfi.has_handler(back.wrapping_sub(1)) {
        return None;
    }
    let mut regs = FullRegs { pc: back, ..FullRegs::default() };
    // A frame that is counted from another register than sp then has an impossible size.
    for (n, r) in regs.gpr.iter_mut().enumerate() {
        *r = (n as u64).wrapping_add(1) << 50;
    }
    regs.gpr[RSP as usize] = SP;
    // Each word holds its own address.
    let step = step_full(cfi, &regs, back.wrapping_sub(1), &mut CfiContext::new(), &mut Some);
    let FullStep::Next { regs: next, signal: false } = step else { return None };
    let cfa = next.get(RSP)?;
    let frame = cfa.wrapping_sub(SP);
    let saved = SLOTS.iter().all(|(r, below)| next.get(*r) == Some(cfa.wrapping_sub(*below)));
    let fits = (LEAST_FRAME..=MOST_FRAME).contains(&frame) && frame.is_multiple_of(16);
    (saved && fits && next.pc == cfa.wrapping_sub(8) && usize::from(register) < REGISTERS.len())
        .then_some(frame)
}

/// Lays out a frame below the call's return address, with the original's return address at its lower end. It
/// sets `loads`, the registers at the entry of the original. `come_back` is the address that a return by way
/// of [`Layout::back`] has to reach, `returned` the one for a plain return.
///
/// # Safety
/// The stack below the call's return address must be free but for the [`Call`] itself at its place, and
/// `layout.words` words above it must be readable.
pub unsafe fn lay_out(
    call: &Call,
    layout: &Layout,
    loads: &mut Loads,
    come_back: u64,
    returned: u64,
) {
    let top = call.regs.sp;
    let base = top.wrapping_sub(8).wrapping_sub(layout.frame);
    let put = |at: u64, value: u64| {
        // SAFETY: the address is inside the frame, which is free by the caller's promise.
        unsafe { (at as *mut u64).write_unaligned(value) };
    };
    *loads = call.saved;
    if layout.back == 0 {
        put(base, returned);
    } else {
        put(base, layout.back);
        if let Some(load) = loads.get_mut(usize::from(layout.register)) {
            *load = come_back;
        }
    }
    for n in 0..layout.words.min(STACK_WORDS) as u64 {
        // SAFETY: the caller promises that the frame is free, and that the words above it are readable.
        let word = unsafe { (top.wrapping_add(8 * n) as *const u64).read_unaligned() };
        put(base.wrapping_add(8).wrapping_add(8 * n), word);
    }
    let [rbx, r12, r13, r14, r15] = call.saved;
    let values = [rbx, call.regs.fp, r12, r13, r14, r15];
    for ((_, below), value) in SLOTS.iter().zip(values) {
        put(top.wrapping_sub(*below), value);
    }
}

/// Stores, from the stack pointer up, the registers that calls do not preserve, except r11 and the flags. The
/// hook has no instructions that change more of the vector registers than these bytes, nor any other
/// registers.
#[cfg(target_arch = "x86_64")]
#[macro_export]
macro_rules! save_all {
    () => {
        concat!(
            "mov [rsp + 256], rax\n",
            "mov [rsp + 264], rcx\n",
            "mov [rsp + 272], rdx\n",
            "mov [rsp + 280], rsi\n",
            "mov [rsp + 288], rdi\n",
            "mov [rsp + 296], r8\n",
            "mov [rsp + 304], r9\n",
            "mov [rsp + 312], r10\n",
            "movups [rsp + 0], xmm0\n",
            "movups [rsp + 16], xmm1\n",
            "movups [rsp + 32], xmm2\n",
            "movups [rsp + 48], xmm3\n",
            "movups [rsp + 64], xmm4\n",
            "movups [rsp + 80], xmm5\n",
            "movups [rsp + 96], xmm6\n",
            "movups [rsp + 112], xmm7\n",
            "movups [rsp + 128], xmm8\n",
            "movups [rsp + 144], xmm9\n",
            "movups [rsp + 160], xmm10\n",
            "movups [rsp + 176], xmm11\n",
            "movups [rsp + 192], xmm12\n",
            "movups [rsp + 208], xmm13\n",
            "movups [rsp + 224], xmm14\n",
            "movups [rsp + 240], xmm15\n",
        )
    };
}

/// Loads the registers that [`save_all`] has stored.
#[cfg(target_arch = "x86_64")]
#[macro_export]
macro_rules! restore_all {
    () => {
        concat!(
            "mov rax, [rsp + 256]\n",
            "mov rcx, [rsp + 264]\n",
            "mov rdx, [rsp + 272]\n",
            "mov rsi, [rsp + 280]\n",
            "mov rdi, [rsp + 288]\n",
            "mov r8, [rsp + 296]\n",
            "mov r9, [rsp + 304]\n",
            "mov r10, [rsp + 312]\n",
            "movups xmm0, [rsp + 0]\n",
            "movups xmm1, [rsp + 16]\n",
            "movups xmm2, [rsp + 32]\n",
            "movups xmm3, [rsp + 48]\n",
            "movups xmm4, [rsp + 64]\n",
            "movups xmm5, [rsp + 80]\n",
            "movups xmm6, [rsp + 96]\n",
            "movups xmm7, [rsp + 112]\n",
            "movups xmm8, [rsp + 128]\n",
            "movups xmm9, [rsp + 144]\n",
            "movups xmm10, [rsp + 160]\n",
            "movups xmm11, [rsp + 176]\n",
            "movups xmm12, [rsp + 192]\n",
            "movups xmm13, [rsp + 208]\n",
            "movups xmm14, [rsp + 224]\n",
            "movups xmm15, [rsp + 240]\n",
        )
    };
}

/// Defines an entry `$name` for functions that the user has named, around `$before` and `$after` as
/// [`hook_entry`](crate::hook_entry) does. All registers are as they would be without it. Two items must be
/// in scope: `named_frame(call, loads, come_back, returned)`, which lays out the original's frame (see
/// [`lay_out`]), and `FRAME`, the offset of [`Bridge::frame`] in the descriptor.
///
/// The stub has left the descriptor's address on the stack, and every register as it was.
#[cfg(target_arch = "x86_64")]
#[macro_export]
macro_rules! hook_entry_many {
    ($(#[$doc:meta])* $name:ident, $before:path, $after:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "endbr64",
                "push rbp",
                "mov rbp, rsp", // rbp + 16: the return address
                "pushfq",
                "push r11",
                "mov r11, [rbp + 8]",
                "lea rsp, [rsp - 400]",
                "sub rsp, [r11 + {frame}]",
                // gcc's -fipa-stack-alignment: callers in the same file may not have aligned it.
                "and rsp, -16",
                $crate::save_all!(),
                "mov rax, [rbp - 16]", // r11
                "mov [rsp + 320], rax",
                "mov rax, [rbp - 8]", // flags
                "mov [rsp + 328], rax",
                "mov rax, [rbp]", // the caller's rbp
                "mov [rsp + 376], rax",
                "lea rax, [rbp + 16]",
                "sub rax, [r11 + {frame}]",
                "mov [rsp + 384], rax", // where the original's return address will be
                "add rax, {call}",
                "mov [rax], rdi",
                "mov [rax + 8], rsi",
                "mov [rax + 16], rdx",
                "mov [rax + 24], rcx",
                "mov [rax + 32], r8",
                "mov [rax + 40], r9",
                "mov [rax + 48], r11",
                "mov rcx, [rbp + 16]",
                "mov [rax + 64], rcx",
                "lea rcx, [rbp + 24]",
                "mov [rax + 72], rcx",
                "mov rcx, [rbp]",
                "mov [rax + 80], rcx",
                "mov [rax + 88], rbx",
                "mov [rax + 96], r12",
                "mov [rax + 104], r13",
                "mov [rax + 112], r14",
                "mov [rax + 120], r15",
                "mov rbx, rax",
                "mov rdi, rax",
                "call {before}",
                "test rdx, rdx",
                "jz 2f",
                "mov [rbx + 56], rax", // where to go
                "mov rdi, rbx",
                "lea rsi, [rsp + 336]",
                "lea rdx, [rip + 5f]",
                "lea rcx, [rip + 4f]",
                "call {named_frame}",
                $crate::restore_all!(),
                "mov rbx, [rsp + 336]",
                "mov r12, [rsp + 344]",
                "mov r13, [rsp + 352]",
                "mov r14, [rsp + 360]",
                "mov r15, [rsp + 368]",
                "mov rbp, [rsp + 376]",
                "push qword ptr [rsp + 328]",
                "popfq",
                "mov r11, [rsp + 320]",
                "mov rsp, [rsp + 384]",
                "jmp qword ptr [rsp + {call} + 56]",
                "2:", // jump, as if the hook had never been entered
                "mov [rbp + 8], rax",
                "mov rbx, [rbx + 88]",
                $crate::restore_all!(),
                "mov r11, [rbp - 16]",
                "lea rsp, [rbp - 8]",
                "popfq",
                "pop rbp",
                "lea rsp, [rsp + 8]",
                // The kernel leaves 128 bytes below the stack pointer alone.
                "jmp qword ptr [rsp - 8]",
                "4:", // a plain return: the same place as a call from there
                "lea rsp, [rsp - 8]",
                "5:", // back from the original
                "endbr64",
                "pushfq",
                "push rbp",
                "mov rbp, rsp",
                "lea rsp, [rsp - 400]",
                "and rsp, -16",
                $crate::save_all!(),
                "mov [rsp + 320], r11",
                "lea rdi, [rbp + 16 + {call}]",
                "mov [rdi + 56], rax",
                "call {after}",
                "lea rcx, [rbp + 16 + {call}]",
                "mov rax, [rcx + 72]", // where the caller goes on
                "sub rax, 8",
                "mov [rcx + 128], rax",
                "mov rbx, [rcx + 88]",
                "mov r12, [rcx + 96]",
                "mov r13, [rcx + 104]",
                "mov r14, [rcx + 112]",
                "mov r15, [rcx + 120]",
                $crate::restore_all!(),
                "mov r11, [rsp + 320]",
                "mov rsp, rbp",
                "pop rbp",
                "popfq",
                "mov rsp, [rsp + {call} + 128]",
                "ret",
                before = sym $before,
                after = sym $after,
                named_frame = sym named_frame,
                frame = const FRAME,
                call = const $crate::x86_64::bridge::CALL_AT,
            )
        }
    };
}
