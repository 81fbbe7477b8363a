use super::*;

const THUMB_STATE: u32 = 0x10 | CPSR_T;

/// Returns the registers of a thread stopped at `pc` of Thumb code with these values of r0 and r7, after it
/// was seen asleep in `number`, called with 7, 0, 2, 3, 4, 5 from before 0x1002.
fn at(pc: u32, r0: i32, r7: u64, number: u64) -> UserRegs {
    let mut regs = UserRegs { cpsr: THUMB_STATE, ..UserRegs::default() };
    regs.r[..6].copy_from_slice(&[r0 as u32, 0, 2, 3, 4, 5]);
    (regs.r[7], regs.r[13], regs.r[15]) = (r7 as u32, 0x7000, pc);
    let args = [7, 0, 2, 3, 4, 5];
    regs.set_blocked(Some(Blocked { number, args, sp: 0x7000, pc: 0x1002 }));
    regs
}

#[test]
fn the_struct_is_the_kernels() {
    assert_eq!(core::mem::offset_of!(UserRegs, tp), UserRegs::KERNEL_LEN);
}

#[test]
fn calls_with_a_timeout_go_on() {
    for number in [nr::NANOSLEEP, nr::CLOCK_NANOSLEEP_TIME64, nr::FUTEX, nr::POLL] {
        let regs = at(0x1000, 7, number, number);
        let back = regs.restored_behind_call();
        assert_eq!((back.r[0] as i32, back.orig_r0, back.pc()), (-516, 7, 0x1002), "{number}");
        assert_eq!(u64::from(back.r[7]), number);
        assert_eq!(regs.restored_at_stop(false), regs);
        assert_eq!(regs.for_sigframe(false, None), regs);
        // The call was continued once before, by a kernel that leaves r7 alone.
        let again = at(0x1000, 7, number, nr::RESTART_SYSCALL);
        assert_eq!(again.restored_behind_call().r[0] as i32, -516);
        assert!(!again.is_restarted());
    }
    // Behind a call in ARM code.
    let mut arm = at(0x0ffe, 7, nr::NANOSLEEP, nr::NANOSLEEP);
    arm.cpsr = 0x10;
    assert_eq!(arm.restored_behind_call().pc(), 0x1002);
    let with = |args: [u64; 6], number| {
        let mut regs = at(0x1000, args[0] as i32, number, number);
        regs.r.iter_mut().zip(args).for_each(|(r, a)| *r = a as u32);
        regs.blocked.as_mut().unwrap().args = args;
        regs
    };
    let others = [
        with([7, 1, 2, 3, 4, 5], nr::CLOCK_NANOSLEEP), // absolute
        with([7, 0, 2, 0, 4, 5], nr::FUTEX),           // endless
        with([7, 0, 0xffff_ffff, 3, 4, 5], nr::POLL),  // endless
        at(0x1000, 7, 336, 336),                       // ppoll
        at(0x1002, 7, nr::NANOSLEEP, nr::NANOSLEEP),   // behind it
        at(0x1000, 8, nr::NANOSLEEP, nr::NANOSLEEP),   // another argument
        at(0x1000, 7, nr::NANOSLEEP, nr::POLL),        // another call
        UserRegs { blocked: None, ..at(0x1000, 7, nr::NANOSLEEP, nr::NANOSLEEP) },
    ];
    for regs in others {
        assert_eq!(regs.restored_behind_call(), regs);
    }
}

/// A thread that is stopped again before it sleeps again goes on with the rest of its time.
#[test]
fn calls_that_go_on_are_known_by_the_registers() {
    let mut regs = at(0x1000, 7, nr::CLOCK_NANOSLEEP_TIME64, nr::CLOCK_NANOSLEEP_TIME64);
    regs.orig_r0 = 7;
    assert_eq!(regs.continues_unseen(), None, "it was seen asleep");
    let seen = regs.blocked.take();
    assert_eq!(regs.continues_unseen(), seen);
    regs.set_blocked(regs.continues_unseen());
    assert!(regs.is_in_call());
    assert_eq!(regs.restored_behind_call().r[0] as i32, -516);
    let svc = [0x00, 0xbf, 0x00, 0xdf]; // nop; svc #0
    assert!(regs.is_behind_call(&svc) && !regs.is_behind_call(&[0x00, 0xdf, 0x00, 0xbf]));
    let unseen = |orig_r0| UserRegs { orig_r0, blocked: None, ..regs };
    assert_eq!(unseen(u32::MAX).continues_unseen(), None, "in no call");
    assert_eq!(unseen(8).continues_unseen(), None, "behind a call, or with other registers");
    let minus_one = at(0x1000, -1, nr::POLL, nr::POLL);
    assert_eq!(UserRegs { blocked: None, ..minus_one }.continues_unseen(), None);
}

#[test]
fn calls_that_are_never_restarted() {
    let epoll = at(0x1002, -4, 252, 252);
    assert!(epoll.wants_reissue());
    for again in [epoll.restored_at_stop(false), epoll.for_sigframe(false, None)] {
        assert_eq!((again.pc(), again.r[0], again.r[7], again.r[1]), (0x1000, 7, 252, 0));
    }
    assert_eq!(epoll.restored_at_stop(true), epoll);
    assert_eq!(epoll.for_sigframe(true, None), epoll);
    for other in [
        at(0x1002, -4, nr::CLOSE, nr::CLOSE),
        at(0x1002, -11, 252, 252),
        at(0x1004, -4, 252, 252),
        at(0x1002, -4, 252, 3),
        UserRegs { blocked: None, ..epoll },
    ] {
        assert!(!other.wants_reissue());
        assert_eq!(other.restored_at_stop(false), other);
    }
}

#[test]
fn calls_that_were_interrupted_before() {
    let again = at(0x1000, 7, nr::RESTART_SYSCALL, nr::RESTART_SYSCALL);
    assert!(again.is_restarted() && !at(0x1000, 7, 162, 162).is_restarted());
    assert_eq!(again.syscall_pc(), 0x1000);
    assert_eq!(u64::from(again.for_sigframe(false, Some(162)).r[7]), 162);
    assert_eq!(u64::from(at(0x1000, 7, 168, 168).for_sigframe(false, Some(162)).r[7]), 168);
    let sleep = [0x00, 0xbf, 0xa2, 0x27]; // movs r7, #162
    assert_eq!(again.restarted_call(&sleep, "0"), Some(nr::NANOSLEEP));
    let close = [0x00, 0xbf, 0x06, 0x27];
    assert_eq!(again.restarted_call(&close, "poll_schedule_timeout.constprop.0"), Some(nr::POLL));
    assert_eq!(again.restarted_call(&[], "0"), None);
}

#[test]
fn in_the_call_or_not() {
    assert!(at(0x1000, 7, 162, 162).is_in_call() && at(0x1002, -4, 252, 252).is_in_call());
    assert!(!at(0x1004, 7, 162, 162).is_in_call() && !at(0x1000, 7, 162, 252).is_in_call());
}

#[test]
fn a_thread_is_sent_to_a_call() {
    let mut regs = at(0x1000, 7, 162, 162);
    regs.cpsr = 0x6600_fc30; // in an if-then block
    regs.set_syscall(nr::MMAP, [1, 2, 3, 4, u64::MAX, 6]);
    regs.enter(0x9000, 0x6ff0, 0xa001);
    assert_eq!(regs.r[..6], [1, 2, 3, 4, u32::MAX, 6]);
    assert_eq!((regs.r[7], regs.r[14], regs.pc(), regs.sp()), (192, 0xa001, 0x9000, 0x6ff0));
    assert_eq!(regs.cpsr, 0x6000_0010);
    regs.set_pc(0x9003);
    assert_eq!((regs.pc(), regs.cpsr), (0x9002, 0x6000_0030));
    assert!(regs.stands_on(0x9003) && !regs.stands_on(0x9005));
    regs.r[0] = 0xb6f0_0000;
    assert_eq!(regs.syscall_result(), 0xb6f0_0000);
}

#[test]
fn a_function_is_called_and_left_by_the_restorer() {
    let mut regs = at(0x1000, 7, 162, 162);
    regs.cpsr = 0x6600_fc30; // in an if-then block
    (regs.r[4], regs.r[7], regs.r[11]) = (9, 0x7100, 0x7200);
    let calling = regs.calling(0x5001, 0x6fc0, [1, 2], 0xa001);
    assert_eq!((calling.pc(), calling.sp(), calling.cpsr), (0x5000, 0x6fc0, 0x6000_0030));
    assert_eq!([0, 1, 4, 7, 11, 14].map(|n| calling.r[n]), [1, 2, 9, 0, 0, 0xa001]);
    assert!(!calling.wants_reissue() && !calling.is_in_call());
    let of_arm = regs.calling(0x5000, 0x6fc0, [1, 2], 0xa000);
    assert_eq!(of_arm.cpsr, 0x6000_0010);
    let mut end = UserRegs { ..calling };
    (end.r[0], end.r[7], end.r[15]) = (-4_i32 as u32, nr::RT_SIGRETURN as u32, 0xa004);
    assert_eq!(end.function_result(), Some(0xffff_fffc));
    let skipping = end.skipping(0xa001);
    assert_eq!((skipping.pc(), skipping.r[0], skipping.sp()), (0xa000, 0, 0x6fc0));
    assert_eq!(skipping.cpsr & CPSR_T, CPSR_T);
}

/// The kernel continues a call with a timeout by another number, as a 64-bit one does by itself.
#[test]
fn calls_with_a_timeout_go_on_behind_a_function() {
    let regs = at(0x1000, 7, nr::NANOSLEEP, nr::NANOSLEEP);
    let back = regs.restored_behind_function();
    assert_eq!((back.r[0], back.r[7], back.pc()), (7, 0, 0x1000));
    assert_eq!(back, UserRegs { r: back.r, ..regs });
    let endless = at(0x1000, 7, 336, 336);
    assert_eq!(endless.restored_behind_function(), endless);
}
