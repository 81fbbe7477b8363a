//! Calls of functions of libc, made by a thread of the target, safely against the death of prof.
//!
//! As with a system call ([`crate::stopped::remote`]), a signal frame with everything that the thread had stands in memory
//! before its registers change, and the function returns into the target's own `rt_sigreturn`. So a thread that is left
//! alone at any instant completes the function and goes on where it was. Frame and function are on a stack of prof's own:
//! nothing has to be known of the thread's. Its signals are blocked meanwhile, by the kernel, but for those that report a
//! fault: a program may have memory that its handler makes accessible.
//!
//! As long as prof lives, it restores registers and vector state itself, as behind a system call: the kernel then goes on
//! with the wait that it has interrupted.
//!
//! The thread is neither stepped nor stopped by breakpoints, which would outlive prof. prof sees the function's end by the
//! system call that the signal frame is restored by.

use crate::linker_calls;
use crate::stopped::gadgets::Sigreturn;
use crate::stopped::remote::{Caller, PATIENCE, layout};
use crate::stopped::tracee::{Stop, Tracee};
use crate::{Error, RemoteAddr, Result};
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::UserRegs;
use prof_arch::native::sigframe::{build_sigframe, sigframe_len};
use prof_arch::native::syscall::{ALL_BUT_FAULTS, SIGSET_LEN, nr};
use prof_os::stat::Stat;
use prof_os::status::Status;
use prof_trace::shared::Area;
use std::time::{Duration, Instant};

/// Time for which all other threads are held in any case: a multiple of the usual time of the function.
const HELD: Duration = Duration::from_millis(20);
/// Longest time for which they are held. A thread that waits for none of them may have no processor, or wait for a disk.
const MOST_HELD: Duration = Duration::from_millis(500);
/// Bytes that the frame leaves free at the end of the stack.
const END: u64 = 256;

/// A function that a thread of the target is to call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteFunction {
    /// The function's name, for messages.
    pub what: &'static str,
    /// The function's address.
    pub at: RemoteAddr,
    /// Address of the architecture's [`Keeper`](prof_arch::generic::stopped::Keeper), if libc has it.
    pub keeper: Option<RemoteAddr>,
}

impl Caller<'_> {
    /// Returns the thread's pointer to its thread-local storage.
    pub(crate) fn thread_pointer(&self) -> u64 {
        self.before.thread_pointer()
    }

    /// Has the thread call a function on the stack `stack`; returns the function's result, if there is a way to know it.
    /// If that takes long, calls `late` once, which lets other threads go that the function may wait for.
    ///
    /// # Errors
    /// If the thread dies. [`Error::Late`] if the function does not end; the thread
    /// still completes it by itself.
    pub(crate) fn call_function(
        &mut self,
        f: &RemoteFunction,
        args: [u64; 2],
        stack: Area,
        late: &mut dyn FnMut(),
    ) -> Result<Option<u64>> {
        let pid = self.pid();
        let none = Error::NoThread(pid);
        let (Some(t), Sigreturn::Restorer(back)) = (self.thread.as_mut(), self.gadgets.sigreturn)
        else {
            return Err(none);
        };
        let vector = t.vector_state()?;
        let had_sigpipe = has_sigpipe(t);
        let mut frame = vec![0; sigframe_len(vector.len())];
        let words = u64::from(f.keeper.is_some()) * size_of::<usize>() as u64;
        // The stack pointer at the function's first instruction: what its return takes off the stack is there.
        let room = frame.len() as u64 + END + words;
        let first = (stack.addr + stack.len).checked_sub(room).filter(|a| *a > stack.addr);
        let Some(first) = first else { return Err(none) };
        let first = (first & !63) - UserRegs::ENTRY_MISALIGNMENT;
        let regs = self.before.for_sigframe(false, self.restarted);
        let built =
            build_sigframe(&mut frame, first + words, &regs, &vector, layout(), self.mask, back.0);
        let built = built.map_err(|e| Error::Nonsense {
            pid,
            what: format!("thread {} has registers that prof can't keep for it ({e})", t.tid),
        })?;
        frame.truncate(built.len);
        let keeper = f.keeper.map(|k| (k.0 as usize).to_ne_bytes().to_vec()).unwrap_or_default();
        self.mem.write_data(RemoteAddr(first), &[keeper, frame].concat())?;
        t.set_regs(&self.before.calling(f.at.0, first, args, back.0))?;
        self.called = true;
        let end = first + words + UserRegs::RETURN_WORDS * size_of::<usize>() as u64;
        // The mask comes behind the registers, as in a system call: should prof die in between, the frame has the old one.
        let done = t
            .set_signal_mask(ALL_BUT_FAULTS)
            .and_then(|()| run_until(t, f.what, back.0, end, late));
        let kept = UserRegs::KEEPER.filter(|_| f.keeper.is_some());
        let kept = || kept.and_then(|k| self.mem.word(RemoteAddr(first - k.below)).ok());
        let result = done.as_ref().ok().and_then(StoppedRegs::function_result).or_else(kept);
        // The kernel would forget what is left of a wait if the frame were restored (`rt_sigreturn`). So the system call is
        // skipped, and the thread stands in front of it again: without prof it restores the frame after all.
        let skips = linker_calls::let_skip(&self.pass, self.gadgets.syscall);
        self.is_wait_lost |= !skips;
        let restored = done.and_then(|regs| {
            if skips {
                t.skip_call(&regs, back.0)?;
            }
            next_stop(t, f.what, Instant::now() + PATIENCE)?;
            t.set_vector_state(&vector)
        });
        if let Err(e) = restored {
            // The thread is in the midst of the function, so nothing but the frame may put it back.
            self.thread = None;
            return Err(e);
        }
        if !had_sigpipe {
            self.take_sigpipe();
        }
        Ok(result)
    }

    /// Takes away the SIGPIPE that the function has left the thread, as the dynamic linker does if it writes messages
    /// (LD_DEBUG) to a pipe that nobody reads. The signal would end the program.
    fn take_sigpipe(&mut self) {
        /// Bytes of a `struct timespec` of either width, without which the call would wait.
        const TIME: usize = 16;
        if !self.thread.as_ref().is_some_and(has_sigpipe) {
            return;
        }
        let mut set = vec![0; SIGSET_LEN];
        // The kernel's words have its byte order.
        let first = 1usize << (libc::SIGPIPE - 1);
        set[..size_of::<usize>()].copy_from_slice(&first.to_ne_bytes());
        let put = self.put(&[vec![0; TIME], set].concat());
        if let Ok(at) = put {
            let args = [at.plus(TIME as u64).0, 0, at.0, SIGSET_LEN as u64, 0, 0];
            self.ask("rt_sigtimedwait", libc::SYS_rt_sigtimedwait as u64, args);
        }
    }
}

/// Returns whether a SIGPIPE is pending for a stopped thread.
fn has_sigpipe(t: &Tracee) -> bool {
    let pending = Status::of_thread(t.pid, t.tid).map_or(0, |s| s.signals("SigPnd"));
    pending >> (libc::SIGPIPE - 1) & 1 == 1
}

/// Lets the thread run until it is about to restore a signal frame with the stack pointer at `end`. Returns its registers.
fn run_until(
    t: &mut Tracee,
    what: &'static str,
    restorer: u64,
    end: u64,
    late: &mut dyn FnMut(),
) -> Result<UserRegs> {
    let (began, mut held) = (Instant::now(), true);
    let mut deadline = began + HELD;
    let mut resume = true;
    loop {
        match if resume { next_stop(t, what, deadline) } else { wait(t, what, deadline) } {
            Ok(()) => resume = true,
            // The others would see the linker's descriptor, and could close it.
            Err(Error::Late { .. }) if held && began.elapsed() < MOST_HELD && !sleeps(t) => {
                (deadline, resume) = (Instant::now() + HELD, false);
                continue;
            }
            Err(Error::Late { .. }) if held => {
                late();
                (held, deadline, resume) = (false, began + PATIENCE, false);
                continue;
            }
            Err(e) => return Err(e),
        }
        let regs = t.regs()?;
        if regs.is_about_to_make(nr::RT_SIGRETURN, restorer) && regs.sp() == end {
            return Ok(regs);
        }
    }
}

/// Returns whether a thread sleeps until somebody wakes it: it waits for a lock, or for a reader.
fn sleeps(t: &Tracee) -> bool {
    Stat::of_thread(t.pid, t.tid).is_some_and(|s| s.state() == b'S')
}

/// Lets the thread run to its next entry or exit of a system call.
fn next_stop(t: &mut Tracee, what: &'static str, deadline: Instant) -> Result<()> {
    t.resume(libc::PTRACE_SYSCALL, 0)?;
    wait(t, what, deadline)
}

/// Waits for the thread's next entry or exit of a system call.
fn wait(t: &mut Tracee, what: &'static str, deadline: Instant) -> Result<()> {
    let late = |e| match e {
        Error::NotStopping { pid, tid, waited } => Error::Late { pid, tid, what, waited },
        e => e,
    };
    loop {
        // Of signals, only those arrive here that can't be blocked.
        let signal = match t.wait(deadline).map_err(late)? {
            Some(Stop::Syscall) => return Ok(()),
            Some(Stop::Signal(s)) => s,
            Some(_) => 0,
            None => return Err(Error::Gone(t.pid)),
        };
        t.resume(libc::PTRACE_SYSCALL, signal)?;
    }
}
