//! Tests the entries for functions that the user has named, in this process: with and without a return
//! address that is not the hook's, through the original or past the hook.
#![cfg(any(target_arch = "aarch64", target_arch = "arm", target_arch = "mips64"))]
#![allow(missing_docs)]
#![cfg_attr(target_arch = "mips64", feature(asm_experimental_arch))]

use prof_arch::laid::{FP_AT, Slots};
use prof_arch::native::bridge::{LEAST_FRAME, Layout, Loads, STACK_WORDS, lay_out};
use prof_arch::native::capture::{Call, Go};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Descriptor, in which the entry finds the frame's size.
#[repr(C)]
struct Descriptor {
    frame: u64,
    back: u64,
    stay: u64,
}

const FRAME: usize = std::mem::offset_of!(Descriptor, frame);
static RESULT: AtomicU64 = AtomicU64::new(0);

type Twelve = extern "C" fn(
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
) -> usize;

extern "C" fn original(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    _: usize,
    _: usize,
    i: usize,
    j: usize,
    k: usize,
    l: usize,
) -> usize {
    let mut sum: usize = 0;
    for n in [a, b, c, d, e, f, i, j, k, l] {
        sum = std::hint::black_box(sum).wrapping_mul(31).wrapping_add(n);
    }
    sum
}

extern "C" fn before(call: &mut Call) -> Go {
    // SAFETY: the test passes the address of a live `Descriptor`.
    let d = unsafe { &*(call.function as *const Descriptor) };
    call.note[0] = 77;
    Go { target: original as *const () as u64, stay: d.stay }
}

extern "C" fn after(call: &mut Call) -> u64 {
    assert_eq!(call.note[0], 77);
    RESULT.store(call.result, SeqCst);
    0
}

/// Slots of the registers in the frame of [`bridge`].
const SLOTS: Slots = {
    let mut slots = [0; size_of::<Slots>()];
    slots[0] = 3;
    slots[1] = 4;
    slots[FP_AT] = 6;
    slots
};

extern "C" fn named_frame(call: &Call, loads: &mut Loads, come_back: u64, returned: u64) {
    // SAFETY: the test passes the address of a live `Descriptor`.
    let d = unsafe { &*(call.function as *const Descriptor) };
    let (back, frame) = (d.back, d.frame);
    let layout = Layout { back, frame, register: 0, slots: SLOTS, words: STACK_WORDS };
    // SAFETY: the entry has left the frame's place free; the caller's stack goes on above it.
    unsafe { lay_out(call, &layout, loads, come_back, returned) };
}

prof_arch::hook_entry_many!(entry, before, after);

/// Jumps to the entry as a stub does; the descriptor is the seventh argument (the third, where only four are
/// in registers).
#[unsafe(naked)]
extern "C" fn stub(
    _: usize,
    _: usize,
    _: usize,
    _: usize,
    _: usize,
    _: usize,
    _: usize,
    _: usize,
    _: usize,
    _: usize,
    _: usize,
    _: usize,
) -> usize {
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!("mov x17, x6", "b {}", sym entry);
    #[cfg(target_arch = "arm")]
    core::arch::naked_asm!("mov ip, r2", "b {}", sym entry);
    #[cfg(target_arch = "mips64")]
    core::arch::naked_asm!(
        ".set push",
        ".set noreorder",
        "daddiu $29, $29, -32",
        "sd $24, 0($29)",
        "sd $25, 8($29)",
        "move $24, $10",
        "move $25, $11",
        "jr $25",
        "nop",
        ".set pop",
    );
}

/// Code of the target, by way of which the original returns.
#[unsafe(naked)]
extern "C" fn bridge() {
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!("blr x19");
    #[cfg(target_arch = "arm")]
    core::arch::naked_asm!("blx r4");
    #[cfg(target_arch = "mips64")]
    core::arch::naked_asm!(
        ".set push",
        ".set noreorder",
        "move $25, $16",
        "jalr $25",
        "nop",
        ".set pop",
    );
}

#[test]
fn calls_go_through_and_come_back() {
    let entry_at = entry as *const () as usize;
    for (back, stay) in [(0, 0), (0, 1), (bridge as *const () as u64, 1)] {
        let d = Descriptor { frame: LEAST_FRAME + 64, back, stay };
        let at = &raw const d as usize;
        let mut kept = [1_u64, 2, 3, 4, 5, 6, 7, 8, 9, 10];
        for round in 0..100_usize {
            RESULT.store(0, SeqCst);
            // Where only four arguments are in registers, the descriptor is an argument of its own.
            let c = if cfg!(target_arch = "arm") { at } else { round + 3 };
            let call = |f: Twelve| f(round, 2, c, 4, 5, 6, at, entry_at, 9, 10, 11, 12);
            let want = call(original);
            assert_eq!(call(stub), want, "{back:x} {stay}");
            assert_eq!(RESULT.load(SeqCst), if stay == 1 { want as u64 } else { 0 });
            kept.iter_mut().for_each(|k| *k = k.wrapping_mul(3) + round as u64);
        }
        assert_ne!(kept[0], 1);
    }
}
