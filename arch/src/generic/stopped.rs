//! Registers of a stopped thread, and how to make the thread run a system call and continue as if nothing had
//! happened.
//!
//! Architectures differ in what a stop leaves in the registers. On AMD64 and MIPS64 they say which system call the stop
//! has interrupted, and the kernel decides on its restart when the thread goes on. On AArch64 and ARM the kernel has
//! decided before the tracer sees the registers, which do not show the call; so the tracer inspects each thread before
//! it stops it ([`Blocked`]). The provided methods are those of the former.

use crate::blocked::Blocked;

/// Bytes below the stack pointer that belong to the interrupted function: the red zone of the System V AMD64 psABI,
/// 3.2.2. The other architectures have a smaller one or none.
pub const RED_ZONE: u64 = 128;

/// A function of libc's that stores the result register below its frame and changes nothing else. A remote call of a
/// function returns by way of it: on the way to the signal frame's registers the result would be lost.
#[derive(Clone, Copy, Debug)]
pub struct Keeper {
    /// Name of the function.
    pub name: &'static str,
    /// Beginnings of its code, one of which it has.
    pub code: &'static [&'static [u8]],
    /// Bytes from where it stores the result to the word that the first function has returned by.
    pub below: u64,
}

/// Registers of a stopped thread, as ptrace has them, and what else is known of the thread.
///
/// *A call that is not restarted* is one that the kernel ends with EINTR at a stop although no signal was delivered;
/// the tracer makes the thread issue it again.
pub trait StoppedRegs: Copy + Eq + Default {
    /// Length of the kernel's structure at the start of this one, in bytes.
    const KERNEL_LEN: usize;

    /// Returns the program counter.
    #[must_use]
    fn pc(&self) -> u64;

    /// Returns the stack pointer.
    #[must_use]
    fn sp(&self) -> u64;

    /// Sets the program counter, to continue at any address: it need not be a valid target of indirect branches, and
    /// may be in another instruction set.
    fn set_pc(&mut self, pc: u64);

    /// Sends the thread to the system call gadget at `gadget`, which returns to the restorer of the signal frame at
    /// `sp`.
    fn enter(&mut self, gadget: u64, sp: u64, restorer: u64);

    /// Returns the thread pointer, which keys the hook's table of threads.
    #[must_use]
    fn thread_pointer(&self) -> u64;

    /// Sets the thread pointer, as the architecture's `THREAD_POINTER_REGSET` has it. Does nothing where it is among
    /// the general registers.
    fn set_thread_pointer(&mut self, _tp: u64) {}

    /// Returns whether the thread faults at unaligned words although others do not (EFLAGS.AC); the hook writes such
    /// words. On most architectures a program can't choose that.
    #[must_use]
    fn checks_alignment(&self) -> bool {
        false
    }

    /// Prepares a system call; the thread has to continue at a system call instruction. The kernel must not take the
    /// registers for those of a call that the stop has interrupted.
    fn set_syscall(&mut self, number: u64, args: [u64; 6]);

    /// Returns an argument of the system call that the thread is about to make, or is in, counted from 0; 0 from 6 on.
    #[must_use]
    fn argument(&self, index: usize) -> u64;

    /// Sets an argument of the system call that the thread is about to make, or is in.
    fn set_argument(&mut self, index: usize, value: u64);

    /// Returns the result of a system call that has returned; errors are negative.
    #[must_use]
    fn syscall_result(&self) -> i64;

    /// Returns the number of the system call that the thread is in. Where the registers do not say whether it is in
    /// one, this is the number if it is.
    #[must_use]
    fn syscall_number(&self) -> Option<u64>;

    /// Returns whether the thread was stopped in a system call, as far as is known.
    #[must_use]
    fn is_in_call(&self) -> bool;

    /// Sets the system call in which the thread was asleep before the stop. Needed if the architecture's
    /// `NEEDS_BLOCKED` is true.
    fn set_blocked(&mut self, _blocked: Option<Blocked>) {}

    /// Returns the number of the call that has ended with EINTR, if a stop may have ended it and only having seen the
    /// thread asleep could tell, but it was not: it may have fallen asleep after it was inspected.
    #[must_use]
    fn ended_unseen(&self) -> Option<u64> {
        None
    }

    /// Returns the first argument of the call of [`ended_unseen`](Self::ended_unseen), if the registers tell.
    #[must_use]
    fn first_argument(&self) -> Option<u64> {
        None
    }

    /// Returns the call that the kernel is about to continue for the thread, if the thread was not seen asleep in it and if
    /// there is a system call instruction in front of the address in the result. Only a thread that has not got back to
    /// sleep since an earlier stop loses by it if that is not known: its call would begin anew.
    #[must_use]
    fn continues_unseen(&self) -> Option<Blocked> {
        None
    }

    /// Returns whether `before`, the code in front of an address, ends with a system call instruction. Asked after
    /// [`ended_unseen`](Self::ended_unseen), for the program counter, and after
    /// [`continues_unseen`](Self::continues_unseen).
    #[must_use]
    fn is_behind_call(&self, _before: &[u8]) -> bool {
        false
    }

    /// Returns whether `below`, the stack below the stack pointer, has the frame of a signal that interrupted the
    /// thread right here, so that EINTR was due. Asked after [`ended_unseen`](Self::ended_unseen) only.
    #[must_use]
    fn has_signal_frame(&self, _below: &[u8]) -> bool {
        false
    }

    /// Returns whether the stop has interrupted a system call that is not restarted. This holds only if no signal is
    /// pending or about to be delivered: otherwise EINTR is due.
    #[must_use]
    fn wants_reissue(&self) -> bool;

    /// Returns the registers before the system call instruction, to issue the interrupted call again. Asked only if
    /// [`wants_reissue`](Self::wants_reissue), or if the kernel is going to restart the call.
    #[must_use]
    fn reissued(&self) -> Self;

    /// Returns the registers to write back at a signal-delivery or `PTRACE_INTERRUPT` stop. `self` are those from the
    /// first stop; they are unchanged, except that a call that is not restarted is put back. `signal_pending`: see
    /// [`wants_reissue`](Self::wants_reissue).
    #[must_use]
    fn restored_at_stop(&self, signal_pending: bool) -> Self {
        if !signal_pending && self.wants_reissue() { self.reissued() } else { *self }
    }

    /// Returns the registers to write back behind a remote call; `self` are those from the first stop. Another stop
    /// follows, at which the kernel decides on a restart. Where it has decided before, what it would have done is done
    /// here.
    ///
    /// The remote calls in between must not have set the thread's restart state themselves (sleeps, futex waits,
    /// polls).
    #[must_use]
    fn restored_behind_call(&self) -> Self {
        *self
    }

    /// Returns the registers to write back behind a remote call of a function, in the stop that follows, where
    /// [`CALLS_HIDE`](Self::CALLS_HIDE): the kernel decides on no restart there.
    #[must_use]
    fn restored_behind_function(&self) -> Self {
        self.restored_behind_call()
    }

    /// Returns whether the thread waits in `restart_syscall`: its call was interrupted once before, and its number is
    /// gone.
    #[must_use]
    fn is_restarted(&self) -> bool;

    /// Returns the call that a thread in `restart_syscall` made first, if that is certain: the kernel keeps only the
    /// rest of it. `code` is the code up to the system call instruction, `waits_in` the kernel function in which the
    /// thread was asleep (`/proc/PID/wchan`).
    #[must_use]
    fn restarted_call(&self, code: &[u8], waits_in: &str) -> Option<u64>;

    /// Returns the program counter at the system call instruction of a thread that
    /// [`is_restarted`](Self::is_restarted).
    #[must_use]
    fn syscall_pc(&self) -> u64;

    /// Returns the registers to put into a signal frame, from which the kernel restarts nothing: an interrupted call is
    /// issued again, from its start. A timeout then starts again too; this is what remains if the tracer dies.
    /// `rt_sigreturn` makes the kernel forget the rest of a call, so a thread in `restart_syscall` needs the number of
    /// its first call, `restarted`.
    #[must_use]
    fn for_sigframe(&self, signal_pending: bool, restarted: Option<u64>) -> Self;

    /// Way in which a remote call of a function keeps its result; `None`: this architecture has no such calls.
    const KEEPER: Option<Keeper> = None;

    /// Returns the registers with which the thread calls the function at `at`, with the stack pointer at `sp`. The function
    /// returns by the word at `sp` where [`RETURN_WORDS`](Self::RETURN_WORDS) is 1, and otherwise to `back`. The kernel must
    /// not take the registers for those of a call that the stop has interrupted.
    #[must_use]
    fn calling(&self, at: u64, sp: u64, args: [u64; 2], back: u64) -> Self;

    /// Number of words that a function's return takes off the stack: the return address, or none where that is in a
    /// register.
    const RETURN_WORDS: u64 = 0;

    /// Whether a stop at the entry or the exit of a system call hides a register, by which the kernel tells a tracer the two
    /// apart. What is written to the register in such a stop is lost when the thread goes on.
    const CALLS_HIDE: bool = false;

    /// Returns the result of a function that a thread has left by its return into the restorer, which is about to restore
    /// the signal frame; `None`: the restorer has overwritten it.
    #[must_use]
    fn function_result(&self) -> Option<u64> {
        None
    }

    /// Returns whether a thread that has stopped at the entry or at the exit of a system call is about to make this call, by
    /// the instructions at `restorer`.
    #[must_use]
    fn is_about_to_make(&self, number: u64, _restorer: u64) -> bool {
        self.syscall_number() == Some(number)
    }

    /// Returns the registers with which a thread that is about to make a system call makes none, and goes on at `pc`.
    #[must_use]
    fn skipping(&self, pc: u64) -> Self;

    /// Whether unwind tables may hold for calls only, and may leave out functions such that a stack seems to begin there. Then
    /// the caller of an interrupted function is uncertain, and so is the end of a stack.
    const COARSE_TABLES: bool = false;

    /// Whether a system call leaves registers alone that a signal frame does not restore: those of the architecture's
    /// `SCALABLE_REGSETS`. A thread in a system call that the program's own code has made may then need them.
    const CALLS_KEEP_VECTORS: bool = false;

    /// Returns the difference, in bytes, between an address that has the alignment of signal frames and one that the stack
    /// pointer may have at a function's first instruction.
    const ENTRY_MISALIGNMENT: u64 = 0;

    /// Returns whether the kernel may take a thread that is sent to `gadget` for one whose call is to be restarted
    /// there, because its program counter is on that very instruction.
    #[must_use]
    fn stands_on(&self, _gadget: u64) -> bool {
        false
    }
}

/// Calls that end with `ERESTART_RESTARTBLOCK`, by the kernel functions in which their threads sleep.
pub(crate) struct Restarts<'a> {
    /// Numbers of all these calls.
    pub known: &'a [u64],
    /// Number of `futex`; `None` where the kernel's function does not tell (two calls have it).
    pub futex: Option<u64>,
    /// Number of `poll`; `None` if it does not end so.
    pub poll: Option<u64>,
    /// Numbers of `clock_nanosleep` and `nanosleep`, and the functions beside the sleeping ones that `wchan` may name
    /// then: it skips sleeping functions, and a restarted sleep has no other.
    pub sleeps: Option<(u64, u64, &'a [&'a str])>,
}

impl Restarts<'_> {
    /// Returns what [`StoppedRegs::restarted_call`] does. `loaded` is the number that the code in front of the
    /// instruction loads; `is_clock` says that the call's first argument is the number of a clock, and not a pointer.
    pub(crate) fn find(&self, loaded: Option<u64>, is_clock: bool, waits_in: &str) -> Option<u64> {
        let is = |names: &[&str]| names.iter().any(|n| waits_in.starts_with(n));
        let sleep = || {
            let (clock_nanosleep, nanosleep, others) = self.sleeps?;
            if !is(&["hrtimer_nanosleep", "do_nanosleep"]) && !is(others) {
                return None;
            }
            Some(if is_clock { clock_nanosleep } else { nanosleep })
        };
        loaded
            .filter(|number| self.known.contains(number))
            .or_else(|| self.futex.filter(|_| is(&["futex_", "__futex_"])))
            .or_else(|| {
                self.poll
                    .filter(|_| is(&["poll_schedule_timeout", "do_sys_poll", "do_restart_poll"]))
            })
            .or_else(sleep)
    }
}
