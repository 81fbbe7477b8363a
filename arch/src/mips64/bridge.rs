//! The bridge: calls a function so that it returns by way of code of the target's own, and changes nothing
//! that its caller may rely on. See `x86_64/bridge.rs` and [`laid`](crate::laid).

use super::capture::Call;
use super::regs::{FP, FullRegs, GP, Mips64, RA, S0};
use super::variant::Variant;
use crate::generic::capture::Entry;
pub use crate::laid::{Bridge, Layout, Slots};
use crate::laid::{FP_AT, Frame, better, fit, put};
use crate::unwind::{CfiModule, SLOTS, shape};

/// Callee-saved registers, and the return address.
const REGISTERS: [u16; 11] = [S0, 17, 18, 19, 20, 21, 22, 23, GP, FP, RA];
/// Values of these registers at the entry of the original.
pub type Loads = [u64; 11];
// The saved registers, the frame pointer and the return address.
const _: () = assert!(size_of::<Loads>() == size_of::<<Mips64 as Entry>::Saved>() + 16);

/// Maximum number of words of stack arguments that are copied from the caller to the original.
pub const STACK_WORDS: usize = 32;
/// Offset of the mark, which shows that the frame is there, from the frame's lower end.
const MARK_AT: u64 = 8 * STACK_WORDS as u64;
/// Offset of the [`Call`] from the frame's lower end. In front of it are the caller's `$t9` and the hook's
/// `$gp`.
pub const CALL_AT: usize = MARK_AT as usize + 32;
/// Bytes below the registers of a frame.
const NEEDED: u64 = CALL_AT as u64 + size_of::<Call>() as u64;
/// Size of the smallest frame: the stub saves two registers in it for a moment.
pub const LEAST_FRAME: u64 = NEEDED + 32;
/// Length of a [`Bridge`]'s code. A thread whose PC is in it is on its way into the hook.
pub const BRIDGE_LEN: u64 = 8;

/// Returns the original's stack pointer at its entry and the address of the mark, for the caller's stack
/// pointer `top`.
#[must_use]
pub const fn places(top: u64, frame: u64) -> (u64, u64) {
    let base = top.wrapping_sub(frame);
    (base, base.wrapping_add(MARK_AT))
}

/// Returns the best bridge in `code`, which is at `addr`: `move $t9` of a callee-saved register, `jalr $t9`
/// and a harmless delay slot, in a frame that the tables describe completely, where no other call returns to.
#[must_use]
pub fn bridges(cfi: &CfiModule<'_>, code: &[u8], addr: u64) -> Option<Bridge> {
    const JALR_T9: u32 = 25 << 21 | 31 << 11 | 9;
    let word = |at: usize| Variant::NATIVE.order.word4(code, at);
    let mut best = None;
    for at in (8..code.len()).step_by(4) {
        let Some(register) = word(at).and_then(moved_to_t9) else { continue };
        let calls = word(at.saturating_add(4)) == Some(JALR_T9);
        let delayed = word(at.saturating_add(8)).is_some_and(does_no_harm);
        // A call returns to what follows its delay slot.
        let before = word(at.wrapping_sub(8)).is_none_or(may_be_call);
        if !calls || !delayed || before || word(at.wrapping_sub(4)).is_none_or(may_be_call) {
            continue;
        }
        let back = addr.wrapping_add(at as u64);
        let found = shape::<FullRegs>(cfi, back.wrapping_sub(1), &REGISTERS, FP);
        let new = found.and_then(|s| fit(&s, back, register, NEEDED, 8));
        better(&mut best, new.filter(|b| b.frame >= LEAST_FRAME));
    }
    best
}

/// Returns the index in [`REGISTERS`] of the register that `move $t9, register` moves, encoded as `or` or
/// `daddu`.
fn moved_to_t9(insn: u32) -> Option<usize> {
    const OR: u32 = 25 << 11 | 0x25;
    const DADDU: u32 = 25 << 11 | 0x2d;
    let from = (insn >> 21 & 31) as u16;
    let moves = [OR, DADDU].contains(&(insn & !(31 << 21)));
    // Neither the global pointer nor the return address count; the frame pointer is needed for the frame.
    REGISTERS.iter().take(8).position(|n| *n == from).filter(|_| moves)
}

/// Returns whether an instruction changes nothing but a register that the hook loads again.
fn does_no_harm(insn: u32) -> bool {
    const NOP: u32 = 0;
    let loaded = |n: u32| (16..24).contains(&n) || n == 30;
    let to = match (insn >> 26, insn & 0x7ff) {
        // or, addu, daddu
        (0, 0x25 | 0x21 | 0x2d) => insn >> 11 & 31,
        // addiu, daddiu
        (9 | 25, _) => insn >> 16 & 31,
        _ => return insn == NOP,
    };
    loaded(to)
}

/// Returns whether this is a call, or a branch that may be one.
fn may_be_call(insn: u32) -> bool {
    match insn >> 26 {
        0 => insn & 0x3f == 9,
        // bltzal, bgezal
        1 => insn >> 20 & 1 == 1,
        // jal; release 6: balc, jialc, and those of its compact branches that link
        3 | 0x3a | 0x3e | 6 | 7 | 8 | 24 => true,
        _ => false,
    }
}

/// Slots of a frame of the hook's own: none, as nothing looks for registers in it.
const OWN: Slots = [0; SLOTS + 2];

/// Lays out a frame below the caller's stack pointer. It sets `loads`, the registers at the entry of the
/// original. `come_back` is the address that the original's return has to reach.
///
/// # Safety
/// The stack below the caller's stack pointer must be free but for the [`Call`] itself at its place and what
/// stands in front of it, and `layout.words` words above it must be readable.
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
        loads[9] = top.wrapping_sub(u64::from(slots[FP_AT]).wrapping_mul(8));
    }
    let words = layout.words.min(STACK_WORDS);
    let f = Frame { top, len: layout.frame, slots, words, mark: (layout.back, MARK_AT) };
    // SAFETY: the caller promises that the frame is free, and that the words above it are readable.
    unsafe { put(&f, values(call.regs.pc).map(|value| value as usize)) };
}

/// Stores `$v0` to `$t3`, `hi` and `lo` from the stack pointer up. Of the registers that calls do not
/// preserve, the hook changes no others but `$t8` and `$t9`, and none of the floating-point unit's.
#[cfg(target_arch = "mips64")]
#[macro_export]
macro_rules! save_all {
    () => {
        concat!(
            "sd $2, 0($29)\nsd $3, 8($29)\nsd $4, 16($29)\nsd $5, 24($29)\nsd $6, 32($29)\n",
            "sd $7, 40($29)\nsd $8, 48($29)\nsd $9, 56($29)\nsd $10, 64($29)\nsd $11, 72($29)\n",
            "sd $12, 80($29)\nsd $13, 88($29)\nsd $14, 96($29)\nsd $15, 104($29)\n",
            "mfhi $1\nsd $1, 112($29)\nmflo $1\nsd $1, 120($29)\n",
        )
    };
}

/// Loads what [`save_all`](crate::save_all) has stored; changes `$at`.
#[cfg(target_arch = "mips64")]
#[macro_export]
macro_rules! restore_all {
    () => {
        concat!(
            "ld $1, 112($29)\nmthi $1\nld $1, 120($29)\nmtlo $1\n",
            "ld $2, 0($29)\nld $3, 8($29)\nld $4, 16($29)\nld $5, 24($29)\nld $6, 32($29)\n",
            "ld $7, 40($29)\nld $8, 48($29)\nld $9, 56($29)\nld $10, 64($29)\nld $11, 72($29)\n",
            "ld $12, 80($29)\nld $13, 88($29)\nld $14, 96($29)\nld $15, 104($29)\n",
        )
    };
}

/// Defines an entry `$name` for functions that the user has named, around `$before` and `$after` as
/// [`hook_entry`](crate::hook_entry) does. All registers are as they would be without it, except `$at`, in
/// which compilers keep nothing. Two items must be in scope: `named_frame(call, loads, come_back, returned)`,
/// which lays out the original's frame (see [`lay_out`]), and `FRAME`, the offset of [`Bridge::frame`] in the
/// descriptor.
///
/// The stub has left `$t8` and `$t9` on the stack, and every other register but `$at` as it was.
#[cfg(target_arch = "mips64")]
#[macro_export]
macro_rules! hook_entry_many {
    ($(#[$doc:meta])* $name:ident, $before:path, $after:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".set push",
                ".set noreorder",
                ".set noat",
                "ld $1, {frame}($24)",
                "dsubu $1, $29, $1",
                "daddiu $29, $1, 32 - 240",
                $crate::save_all!(),
                "ld $1, {frame}($24)",
                "daddu $1, $29, $1",
                "daddiu $1, $1, 240", // the caller's stack pointer
                "daddiu $2, $29, 240 + {call}",
                "ld $3, -32($1)", // $t8
                "sd $3, 216($29)",
                "ld $3, -24($1)", // $t9
                "sd $3, 224($29)",
                "sd $3, -16($2)",
                "sd $4, 0($2)",
                "sd $5, 8($2)",
                "sd $6, 16($2)",
                "sd $7, 24($2)",
                "sd $8, 32($2)",
                "sd $9, 40($2)",
                "sd $24, 48($2)",
                "sd $31, 64($2)",
                "sd $1, 72($2)",
                "sd $30, 80($2)",
                "sd $16, 88($2)",
                "sd $17, 96($2)",
                "sd $18, 104($2)",
                "sd $19, 112($2)",
                "sd $20, 120($2)",
                "sd $21, 128($2)",
                "sd $22, 136($2)",
                "sd $23, 144($2)",
                "sd $28, 152($2)",
                "lui $28, %hi(%neg(%gp_rel({name})))",
                "daddu $28, $28, $25",
                "daddiu $28, $28, %lo(%neg(%gp_rel({name})))",
                "sd $28, -8($2)",
                "move $16, $2",
                "ld $25, %got_disp({before})($28)",
                "jalr $25",
                "move $4, $16",
                "beqz $3, 2f",
                "sd $2, 56($16)", // where to go
                "bal 6f",
                "nop",
                // back from the original: $ra is this address now
                "daddiu $29, $29, -240",
                $crate::save_all!(),
                "sd $24, 216($29)",
                "daddiu $16, $29, 240 + {call}",
                "sd $2, 56($16)",
                "ld $28, -8($16)",
                "ld $25, %got_disp({after})($28)",
                "jalr $25",
                "move $4, $16",
                $crate::restore_all!(),
                "ld $24, 216($29)",
                // $25 gets its value at the entry: that of the original is lost on the way.
                "ld $25, -16($16)",
                "ld $17, 96($16)",
                "ld $18, 104($16)",
                "ld $19, 112($16)",
                "ld $20, 120($16)",
                "ld $21, 128($16)",
                "ld $22, 136($16)",
                "ld $23, 144($16)",
                "ld $28, 152($16)",
                "ld $30, 80($16)",
                "ld $31, 64($16)",
                "ld $1, 72($16)",
                "ld $16, 88($16)",
                "jr $31",
                "move $29, $1",
                "2:", // jump, as if the hook had never been entered
                "ld $1, 72($16)",
                "ld $2, 88($16)",
                "sd $2, -32($1)",
                "ld $2, 56($16)",
                "sd $2, -24($1)",
                $crate::restore_all!(),
                "ld $1, 72($16)",
                "ld $24, 216($29)",
                "ld $25, 224($29)",
                "ld $28, 152($16)",
                "ld $31, 64($16)",
                "daddiu $29, $1, -32",
                "ld $16, 0($29)",
                "ld $1, 8($29)",
                "jr $1",
                "daddiu $29, $29, 32",
                "6:",
                "move $4, $16",
                "daddiu $5, $29, 128",
                "move $6, $31",
                "move $7, $31",
                "ld $25, %got_disp({named_frame})($28)",
                "jalr $25",
                "nop",
                $crate::restore_all!(),
                "ld $24, 216($29)",
                "ld $25, 224($29)",
                "ld $1, 56($16)",
                "ld $16, 128($29)",
                "ld $17, 136($29)",
                "ld $18, 144($29)",
                "ld $19, 152($29)",
                "ld $20, 160($29)",
                "ld $21, 168($29)",
                "ld $22, 176($29)",
                "ld $23, 184($29)",
                "ld $28, 192($29)",
                "ld $30, 200($29)",
                "ld $31, 208($29)",
                "jr $1",
                "daddiu $29, $29, 240",
                ".set pop",
                name = sym $name,
                before = sym $before,
                after = sym $after,
                named_frame = sym named_frame,
                frame = const FRAME,
                call = const $crate::mips64::bridge::CALL_AT,
            )
        }
    };
}
