//! Unwinds this process's own stacks and compares with glibc's `backtrace`.
#![cfg(target_arch = "x86_64")]

mod common;

use common::Module;
use prof_arch::unwind::{CfiContext, FullStep, compile, step_full};
use prof_arch::x86_64::regs::{R12, R13, R14, R15, RBP, RBX, RSP};
use prof_arch::x86_64::{FullRegs, Regs, Rule, Step};
use std::arch::{asm, global_asm};
use std::sync::Mutex;

unsafe extern "C" {
    fn backtrace(buffer: *mut *mut libc::c_void, size: libc::c_int) -> libc::c_int;
}

/// Returns the registers at this place: those that calls preserve, and pc.
#[inline(always)]
fn here() -> FullRegs {
    let mut regs = FullRegs::default();
    let mut buffer = [0_u64; 8];
    // SAFETY: the code stores registers to the buffer, and changes only the register that it declares.
    unsafe {
        asm!(
            "lea {pc}, [rip]", "mov [{b}], {pc}", "mov [{b} + 8], rsp", "mov [{b} + 16], rbp",
            "mov [{b} + 24], rbx",
            "mov [{b} + 32], r12", "mov [{b} + 40], r13", "mov [{b} + 48], r14",
            "mov [{b} + 56], r15",
            b = in(reg) buffer.as_mut_ptr(), pc = out(reg) _, options(nostack, preserves_flags),
        );
    }
    regs.pc = buffer[0];
    for (register, value) in [RSP, RBP, RBX, R12, R13, R14, R15].into_iter().zip(&buffer[1..]) {
        regs.gpr[usize::from(register)] = *value;
    }
    regs
}

fn read(address: u64) -> Option<u64> {
    // SAFETY: the unwinder reads the stacks of this process, which are mapped; a wrong address fails the
    // test.
    (address > 0x1_0000).then(|| unsafe { (address as *const u64).read() })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Fast,
    Full,
}

/// Returns all pcs from `regs` on, and whether the stack's end was found.
fn walk(start: &FullRegs, how: How) -> (Vec<u64>, bool) {
    let modules = common::modules();
    let mut ctx = Box::new(CfiContext::new());
    let (mut full, mut regs) = (*start, Regs::from(start));
    let (mut pcs, mut exact) = (vec![start.pc], true);
    while pcs.len() < 500 {
        let pc = if how == How::Fast { regs.pc } else { full.pc };
        let lookup = if exact { pc } else { pc - 1 };
        let Some(Module { cfi, .. }) = modules.iter().find(|m| m.contains(lookup)) else {
            return (pcs, false);
        };
        if how == How::Full {
            match step_full(cfi, &full, lookup, &mut ctx, &mut read) {
                FullStep::Next { regs, signal } => (full, exact) = (regs, signal),
                end => return (pcs, end == FullStep::End),
            }
            pcs.push(full.pc);
        } else {
            let rule: Rule = compile(cfi, lookup, &mut ctx);
            match rule.step(&regs, &mut read) {
                Step::Next(next) => (regs, exact) = (next, rule.is_signal()),
                end => return (pcs, end == Step::End),
            }
            pcs.push(regs.pc);
        }
    }
    (pcs, false)
}

fn glibc() -> Vec<u64> {
    let mut buffer = [std::ptr::null_mut(); 500];
    // SAFETY: the buffer has 500 elements.
    let n = unsafe { backtrace(buffer.as_mut_ptr(), 500) };
    buffer[..n as usize].iter().map(|p| *p as u64).collect()
}

/// Asserts that our frames from the first caller on are the oracle's, which may have some more at the top
/// (its own).
fn assert_same(ours: &[u64], oracle: &[u64]) {
    let skip = oracle.iter().take(3).position(|pc| Some(pc) == ours.get(1));
    let skip = skip.unwrap_or_else(|| panic!("{ours:x?}\n{oracle:x?}"));
    assert_eq!(&ours[1..], &oracle[skip..]);
}

/// Compares both ways of unwinding from here with the oracle: all frames above the one that calls this.
#[inline(always)]
fn compare() -> usize {
    let regs = here();
    let oracle = glibc();
    let (fast, fast_end) = walk(&regs, How::Fast);
    let (full, full_end) = walk(&regs, How::Full);
    assert_same(&fast, &oracle);
    assert_eq!(fast, full);
    assert!(fast_end && full_end, "{fast_end} {full_end} {fast:x?}");
    fast.len()
}

#[test]
fn a_plain_stack() {
    assert!(compare() > 4);
}

#[inline(never)]
fn recurse(depth: u32) -> usize {
    let len = if depth == 0 { compare() } else { recurse(depth - 1) };
    std::hint::black_box(len) + 1
}

#[test]
fn a_deep_stack() {
    assert!(recurse(100) > 200);
}

static SEEN: Mutex<usize> = Mutex::new(0);

extern "C" fn in_qsort(a: *const libc::c_void, b: *const libc::c_void) -> libc::c_int {
    *SEEN.lock().unwrap() = compare();
    // SAFETY: qsort passes addresses of elements of the array.
    unsafe { i32::from(*a.cast::<u8>()) - i32::from(*b.cast::<u8>()) }
}

#[test]
fn through_frames_of_libc() {
    let mut bytes = *b"deabcz";
    // SAFETY: the array has six elements of one byte.
    unsafe { libc::qsort(bytes.as_mut_ptr().cast(), 6, 1, Some(in_qsort)) };
    assert_eq!(&bytes, b"abcdez");
    assert!(*SEEN.lock().unwrap() > 5);
}

static IN_HANDLER: Mutex<Vec<usize>> = Mutex::new(Vec::new());

extern "C" fn handler(_: libc::c_int) {
    let len = compare();
    IN_HANDLER.lock().unwrap().push(len);
}

#[inline(never)]
fn trap() {
    // SAFETY: SIGTRAP has a handler, which returns.
    unsafe { asm!("int3") };
    std::hint::black_box(());
}

#[test]
fn through_signal_frames() {
    let mut stack = vec![0_u8; 1 << 20];
    // SAFETY: the handler is of the right type; it runs once on the thread's own stack, once on an alternate
    // one that outlives it.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut());
        trap();
        libc::raise(libc::SIGTRAP);
        let alternate =
            libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
        let mut before: libc::stack_t = std::mem::zeroed();
        libc::sigaltstack(&alternate, &mut before);
        action.sa_flags = libc::SA_ONSTACK;
        libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut());
        trap();
        libc::sigaltstack(&before, std::ptr::null_mut());
    }
    let lens = IN_HANDLER.lock().unwrap();
    assert!(lens.len() == 3 && lens.iter().all(|len| *len > 6), "{lens:?}");
}

// A function that realigns its stack as GCC does, and one whose CFA is in rbx: only the full step knows that
// register. Both call the function in rdi.
global_asm!(
    ".type realigned, @function",
    "realigned:",
    ".cfi_startproc",
    "lea r10, [rsp + 8]",
    ".cfi_def_cfa r10, 0",
    "and rsp, -64",
    "push qword ptr [r10 - 8]",
    "push rbp",
    "mov rbp, rsp",
    ".cfi_escape 0x10, 0x6, 0x2, 0x76, 0",
    "push r10",
    ".cfi_escape 0xf, 0x3, 0x76, 0x78, 0x6",
    "sub rsp, 56",
    "call rdi",
    "mov r10, [rbp - 8]",
    ".cfi_def_cfa r10, 0",
    "leave",
    "lea rsp, [r10 - 8]",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size realigned, . - realigned",
    ".type through_rbx, @function",
    "through_rbx:",
    ".cfi_startproc",
    "push rbx",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbx, -16",
    "mov rbx, rsp",
    ".cfi_def_cfa_register rbx",
    "sub rsp, 64",
    "and rsp, -64",
    "call rdi",
    "mov rsp, rbx",
    ".cfi_def_cfa_register rsp",
    "pop rbx",
    ".cfi_def_cfa_offset 8",
    "ret",
    ".cfi_endproc",
    ".size through_rbx, . - through_rbx",
);

unsafe extern "C" {
    fn realigned(f: extern "C" fn());
    fn through_rbx(f: extern "C" fn());
}

extern "C" fn compare_c() {
    assert!(compare() > 5);
}

extern "C" fn compare_full() {
    let regs = here();
    let oracle = glibc();
    let (fast, end) = walk(&regs, How::Fast);
    assert!(!end && fast.len() < oracle.len(), "the fast walk stops where it needs more registers");
    let (full, end) = walk(&regs, How::Full);
    assert!(end);
    assert_same(&full, &oracle);
}

#[test]
fn realigned_stacks() {
    // SAFETY: the assembly above calls the function that it is passed, with an aligned stack.
    unsafe { realigned(compare_c) };
}

#[test]
fn frames_that_need_all_registers() {
    // SAFETY: the assembly above calls the function that it is passed, with an aligned stack.
    unsafe { through_rbx(compare_full) };
}
