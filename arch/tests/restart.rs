//! Tests interrupted system calls: a thread that waits in one is made to run another, and then waits on as if
//! nothing had happened.
#![cfg(target_arch = "x86_64")]

#[path = "common/tracee.rs"]
mod tracee;

use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::x86_64::sigframe::{VectorLayout, build_sigframe, sigframe_len};
use prof_arch::x86_64::syscall::{RESTORER, SYSCALL_RET, nr};
use std::ptr::null_mut;
use std::time::{Duration, Instant};
use tracee::{Child, shared};

/// End of the tracer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The tracer restores the registers at the enter stop of `rt_sigreturn`.
    Restores,
    /// The tracer dies before that, so that the signal frame alone must do.
    Dies,
}

/// The child's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    Nanosleep,
    Poll,
    Epoll,
    Read,
    Futex,
    Busy,
}

/// Long times, far apart, as a busy machine may delay everybody for a while.
const WAIT: Duration = Duration::from_millis(2400);
const INTERRUPT_AT: Duration = Duration::from_millis(1000);

/// Waits, and returns whether the call did what it should. Makes system calls only, as it runs in a forked
/// child.
fn wait_in(wait: Wait, pipe: [i32; 2]) -> bool {
    let ms = WAIT.as_millis() as i32;
    let time =
        libc::timespec { tv_sec: i64::from(ms) / 1000, tv_nsec: i64::from(ms) % 1000 * 1_000_000 };
    // SAFETY: the system calls get only this function's own variables.
    unsafe {
        match wait {
            Wait::Nanosleep => libc::nanosleep(&time, null_mut()) == 0,
            Wait::Poll => libc::poll(null_mut(), 0, ms) == 0,
            Wait::Epoll => {
                let fd = libc::epoll_create1(0);
                let mut event: libc::epoll_event = core::mem::zeroed();
                fd >= 0 && libc::epoll_wait(fd, &mut event, 1, ms) == 0
            }
            Wait::Read => {
                let mut byte = 0_u8;
                libc::read(pipe[0], (&raw mut byte).cast(), 1) == 1 && byte == 7
            }
            Wait::Futex => {
                let word = 0_u32;
                let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
                let result = libc::syscall(libc::SYS_futex, &word, op, 0, &time);
                result == -1 && *libc::__errno_location() == libc::ETIMEDOUT
            }
            Wait::Busy => {
                let start = Instant::now();
                let mut sum = 0.0_f64;
                while start.elapsed() < WAIT {
                    sum = (sum + 1.0).sqrt();
                }
                (sum - 1.618).abs() < 0.01
            }
        }
    }
}

fn child(wait: Wait, pipe: [i32; 2]) -> Child {
    // SAFETY: the child makes system calls only.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::_exit(if wait_in(wait, pipe) { 42 } else { 43 });
        }
        assert!(pid > 0);
        Child(pid)
    }
}

/// Runs one case; gives how long the child waited. `before`: the wait was interrupted once before, and
/// has gone on.
fn interrupt(wait: Wait, end: End, before: bool) -> Duration {
    let code = shared(4096);
    let memory = shared(65536);
    for (at, bytes) in [(0, &SYSCALL_RET[..]), (16, &RESTORER[..])] {
        // SAFETY: within the page of `code`.
        unsafe { code.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
    let mut pipe = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    let start = Instant::now();
    let child = child(wait, pipe);
    child.ptrace(libc::PTRACE_SEIZE, 0, libc::PTRACE_O_TRACESYSGOOD as *mut _);
    if before {
        std::thread::sleep(INTERRUPT_AT / 3);
        child.ptrace(libc::PTRACE_INTERRUPT, 0, null_mut());
        child.wait_stopped();
        child.set_regs(&child.regs().restored_at_stop(false));
        child.ptrace(libc::PTRACE_CONT, 0, null_mut());
        std::thread::sleep(INTERRUPT_AT * 2 / 3);
    } else {
        std::thread::sleep(INTERRUPT_AT);
    }
    let wchan = std::fs::read_to_string(format!("/proc/{}/wchan", child.0)).unwrap_or_default();
    child.ptrace(libc::PTRACE_INTERRUPT, 0, null_mut());
    child.wait_stopped();

    let (regs, image, mask) = (child.regs(), child.xsave(), child.sigmask());
    let mut frame = vec![0; sigframe_len(image.len())];
    // A forked child has the code of its parent.
    // SAFETY: the bytes before an instruction of a function.
    let before_call = unsafe { std::slice::from_raw_parts((regs.rip - 7) as *const u8, 5) };
    let restarted = regs.restarted_call(before_call, &wchan);
    assert!(!regs.is_restarted() || restarted.is_some(), "{wait:?}: asleep in {wchan:?}");
    let kept = regs.for_sigframe(false, restarted);
    let layout = VectorLayout::native();
    let (at, restorer) = (memory as u64, code as u64 + 16);
    let built = build_sigframe(&mut frame, at, &kept, &image, &layout, mask, restorer).unwrap();
    // SAFETY: the frame is smaller than the mapping.
    unsafe { memory.copy_from_nonoverlapping(frame.as_ptr(), built.len) };
    let mut call = regs;
    (call.rip, call.rsp) = (code as u64, built.sp);
    call.set_syscall(nr::GETPID, [0; 6]);
    child.set_regs(&call);
    if end == End::Restores {
        // Into getpid and out of it.
        for number in [nr::GETPID, nr::GETPID] {
            child.ptrace(libc::PTRACE_SYSCALL, 0, null_mut());
            assert_eq!(child.wait_stopped(), libc::SIGTRAP | 0x80);
            assert_eq!(child.regs().syscall_number(), Some(number));
        }
        // The kernel restarts the call at one more stop in its signal path.
        child.ptrace(libc::PTRACE_INTERRUPT, 0, null_mut());
        child.set_sigmask(mask);
        child.set_regs(&regs.restored_at_stop(false).restored_behind_call());
        child.ptrace(libc::PTRACE_CONT, 0, null_mut());
        child.wait_stopped();
    }
    child.ptrace(libc::PTRACE_DETACH, 0, null_mut());
    if wait == Wait::Read {
        std::thread::sleep(INTERRUPT_AT);
        // SAFETY: one byte, and the pipe's two ends, which are ours.
        unsafe { assert_eq!(libc::write(pipe[1], [7_u8].as_ptr().cast(), 1), 1) };
    }
    let mut status = 0;
    // SAFETY: our own child, and descriptors that are not used any more.
    unsafe {
        assert_eq!(libc::waitpid(child.0, &mut status, 0), child.0);
        for fd in pipe {
            libc::close(fd);
        }
    }
    std::mem::forget(child);
    let waited = start.elapsed();
    assert!(libc::WIFEXITED(status), "{wait:?} {end:?}: {status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 42, "{wait:?} {end:?}");
    waited
}

/// A little less than `WAIT`: clocks tick where they like.
const ENOUGH: Duration = Duration::from_millis(2395);

/// All cases at once.
fn each(waits: &[Wait], case: impl Fn(Wait) + Sync) {
    std::thread::scope(|s| {
        for wait in waits {
            s.spawn(|| case(*wait));
        }
    });
}

#[test]
fn the_wait_goes_on_with_what_is_left_of_it() {
    for before in [false, true] {
        each(&[Wait::Nanosleep, Wait::Poll, Wait::Futex, Wait::Busy], |wait| {
            let waited = interrupt(wait, End::Restores, before);
            // Less than if the wait had begun again when it was interrupted.
            let again = WAIT + INTERRUPT_AT;
            assert!(waited >= ENOUGH && waited < again, "{wait:?} took {waited:?}, {before}");
        });
    }
}

#[test]
fn calls_without_a_rest_are_issued_again() {
    assert!(interrupt(Wait::Epoll, End::Restores, false) >= ENOUGH);
    interrupt(Wait::Read, End::Restores, false);
}

#[test]
fn a_tracer_that_dies_leaves_no_trace() {
    let all = [Wait::Nanosleep, Wait::Poll, Wait::Futex, Wait::Epoll, Wait::Read, Wait::Busy];
    for before in [false, true] {
        each(&all, |wait| {
            let waited = interrupt(wait, End::Dies, before);
            assert!(wait == Wait::Read || waited >= ENOUGH, "{wait:?} took {waited:?}, {before}");
        });
    }
}
