//! Tests `build_sigframe` with the kernel: a thread whose registers were all changed must get all of them
//! back.
#![cfg(target_arch = "x86_64")]

#[path = "common/tracee.rs"]
mod tracee;

use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::x86_64::UserRegs;
use prof_arch::x86_64::sigframe::{SigframeError, VectorLayout, build_sigframe, sigframe_len};
use prof_arch::x86_64::syscall::{RESTORER, SYSCALL_RET};
use std::ptr::null_mut;
use tracee::{Child, shared};

/// XSAVE features that the test fills with values: x87, SSE, AVX, and the three of AVX-512.
const FEATURES: u64 = 0b1110_0111;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Forks a child that stops under ptrace and has an alternate signal stack.
fn child(altstack: *mut u8) -> Child {
    // SAFETY: the child makes system calls only.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            let stack = libc::stack_t { ss_sp: altstack.cast(), ss_flags: 0, ss_size: 16384 };
            libc::sigaltstack(&stack, null_mut());
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::raise(libc::SIGSTOP);
            libc::_exit(1);
        }
        assert!(pid > 0);
        let child = Child(pid);
        assert_eq!(child.wait_stopped(), libc::SIGSTOP);
        child
    }
}

/// Fills in random vector state, of those of these features that this machine has. The others get their initial state.
fn random_xsave(image: &mut [u8], features: u64, random: &mut Random) {
    let word = |image: &[u8], at: usize| u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
    let supported = word(image, 464) & features;
    let layout = VectorLayout::native();
    let fill = |image: &mut [u8], from: usize, to: usize, random: &mut Random| {
        image[from..to].chunks_mut(8).for_each(|c| c.copy_from_slice(&random.next().to_le_bytes()));
    };
    fill(image, 160, 416, random);
    for feature in [2, 5, 6, 7].into_iter().filter(|f| supported >> f & 1 == 1) {
        let end = layout.end[feature] as usize;
        let len = [0, 0, 256, 0, 0, 64, 512, 1024][feature];
        fill(image, end - len, end, random);
    }
    for register in 0..8 {
        let at = 32 + register * 16;
        image[at..at + 8].copy_from_slice(&(random.next() | 1 << 63).to_le_bytes());
        image[at + 8..at + 10].copy_from_slice(&0x4001_u16.to_le_bytes());
    }
    image[0..2].copy_from_slice(&(0x007f | (random.next() as u16 & 0xc00) | 0x300).to_le_bytes());
    image[4] = 0xff; // All x87 registers are in use.
    image[24..28].copy_from_slice(&(0x1f80 | (random.next() as u32 & 0xe03f)).to_le_bytes());
    let in_use = word(image, 512) & !FEATURES | supported | 3;
    image[512..520].copy_from_slice(&in_use.to_le_bytes());
}

/// Returns random general registers, with the segment registers and bases of `base`.
fn random_regs(base: &UserRegs, random: &mut Random) -> UserRegs {
    let mut r = *base;
    for slot in [
        &mut r.r15, &mut r.r14, &mut r.r13, &mut r.r12, &mut r.rbp, &mut r.rbx, &mut r.r11,
        &mut r.r10, &mut r.r9, &mut r.r8, &mut r.rax, &mut r.rcx, &mut r.rdx, &mut r.rsi,
        &mut r.rdi, &mut r.rsp,
    ] {
        *slot = random.next();
    }
    // Flags: carry, parity, adjust, zero, sign, direction, overflow, alignment check.
    r.eflags = 0x202 | (random.next() & 0x4_0cd5 & !0x4_0000);
    r.orig_rax = u64::MAX;
    r
}

#[test]
fn everything_is_restored() {
    let code = shared(4096);
    let memory = shared(65536);
    let altstack = shared(16384);
    let (gadget, restorer, trap) = (0_usize, 16, 32);
    for (at, bytes) in [(gadget, &SYSCALL_RET[..]), (restorer, &RESTORER[..]), (trap, &[0xcc][..])]
    {
        // SAFETY: the bytes are within the page of `code`.
        unsafe { code.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
    // Nothing behind a frame can be read.
    let top = memory as u64 + 65536 - 4096;
    // SAFETY: nobody uses the last page of the mapping.
    assert_eq!(unsafe { libc::mprotect(top as *mut _, 4096, libc::PROT_NONE) }, 0);
    let child = child(altstack);
    let code = code as u64;
    let original = child.regs();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..64 {
        // State A, as the kernel reports it, which has to come back.
        let mut image = child.xsave();
        if round > 0 {
            let features = [FEATURES, 0b111, 0b11][round % 3];
            random_xsave(&mut image, features, &mut random);
        }
        child.set_xsave(&image);
        let mut regs = random_regs(&original, &mut random);
        regs.rip = code + trap as u64;
        child.set_regs(&regs);
        let mask = random.next()
            & !(1 << (libc::SIGTRAP - 1) | 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1));
        child.set_sigmask(mask);
        let (regs, image) = (child.regs(), child.xsave());

        let mut frame = vec![0; sigframe_len(image.len())];
        let (layout, back) = (VectorLayout::native(), code + restorer as u64);
        let mut build = |at| build_sigframe(&mut frame, at, &regs, &image, &layout, mask, back);
        // A frame's length depends on its address modulo 64.
        let above = 8 * (round as u64 % 9);
        let len = build(above).unwrap().len as u64;
        let built = build(((top - len - above) & !63) + above).unwrap();
        assert!((top - 63..=top).contains(&(built.sp + built.len as u64)));
        // SAFETY: the frame ends in front of the page that can't be written.
        unsafe { (built.sp as *mut u8).copy_from_nonoverlapping(frame.as_ptr(), built.len) };

        // State B: everything differs.
        let mut other = child.xsave();
        random_xsave(&mut other, FEATURES, &mut random);
        child.set_xsave(&other);
        child.set_sigmask(!mask);
        let mut call = random_regs(&original, &mut random);
        call.rip = code + gadget as u64;
        call.rsp = built.sp;
        call.set_syscall(libc::SYS_getpid as u64, [0; 6]);
        child.set_regs(&call);
        child.ptrace(libc::PTRACE_CONT, 0, null_mut());
        assert_eq!(child.wait_stopped(), libc::SIGTRAP, "round {round}: {:x?}", child.regs());

        let after = child.regs();
        assert_eq!(
            after,
            UserRegs { rip: regs.rip + 1, orig_rax: u64::MAX, ..regs },
            "round {round}"
        );
        assert_eq!(child.sigmask(), mask, "round {round}");
        let after = child.xsave();
        let differing: Vec<usize> = (0..image.len()).filter(|&i| image[i] != after[i]).collect();
        assert!(differing.is_empty(), "round {round}: xsave differs at {differing:?}");
    }
    // The child itself tells whether its alternate stack is still there.
    let mut regs = original;
    (regs.rip, regs.rsp) = (code, memory as u64 + 32768);
    // SAFETY: the address is within the mapping.
    unsafe { (regs.rsp as *mut u64).write(code + trap as u64) };
    regs.set_syscall(libc::SYS_sigaltstack as u64, [0, memory as u64, 0, 0, 0, 0]);
    child.set_regs(&regs);
    child.ptrace(libc::PTRACE_CONT, 0, null_mut());
    assert_eq!((child.wait_stopped(), child.regs().rax), (libc::SIGTRAP, 0));
    // SAFETY: the child has written a `stack_t` there.
    let stack = unsafe { memory.cast::<libc::stack_t>().read() };
    assert_eq!((stack.ss_sp as u64, stack.ss_size), (altstack as u64, 16384));
}

#[test]
fn bad_input_is_refused() {
    let (regs, layout) = (UserRegs::default(), VectorLayout::native());
    let image = vec![0; 576];
    let mut out = vec![0; sigframe_len(576)];
    assert!(build_sigframe(&mut out, 0x1000, &regs, &image, &layout, 0, 0).is_ok());
    assert_eq!(
        build_sigframe(&mut out, 0x1004, &regs, &image, &layout, 0, 0),
        Err(SigframeError::Misaligned { align: 8 })
    );
    let short = build_sigframe(&mut out, 0x1000, &regs, &image[..575], &layout, 0, 0);
    assert_eq!(short, Err(SigframeError::BadVector));
    assert_eq!(
        build_sigframe(&mut out, 0x1000, &regs, &[], &layout, 0, 0),
        Err(SigframeError::BadVector)
    );
    let need = sigframe_len(576);
    let narrow = build_sigframe(&mut out[..need - 1], 0x1000, &regs, &image, &layout, 0, 0);
    assert_eq!(narrow, Err(SigframeError::NoRoom { need }));
}
