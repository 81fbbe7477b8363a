//! A thread of the target under ptrace.
//!
//! prof seizes threads and never attaches to them. So no SIGSTOP is sent, a stopped process stays stopped, and if
//! prof dies, the kernel lets go of the thread where it is. `PTRACE_O_EXITKILL` is set for no thread of the target, but
//! only for a copy of its memory ([`super::copy`]).

use crate::permission::explain_denial;
use crate::stopped::asleep;
use crate::stopped::dispatch::{Dispatch, GET_DISPATCH};
use crate::stopped::patience::{Patience, SLEEPS};
use crate::stopped::ptrace::ptrace;
use crate::stopped::waits::Wait;
use crate::{Error, Result};
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use prof_arch::blocked::Blocked;
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::syscall::SignalSet;
use prof_arch::native::{UserRegs, call, sigframe, syscall};
use prof_arch::registers::{GUARDED_STACK, Registers, is_guarded};
use prof_os::Pid;
use prof_os::status::Status;
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;
const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;
const PTRACE_EVENT_STOP: i32 = 128;

/// Time within which threads of a stopped process have to stop again after being let go of.
const STOPS_AGAIN: Duration = Duration::from_millis(200);

/// The reason for a thread's stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// prof has asked for it, or it is a group stop.
    Event,
    /// The thread enters or leaves a system call.
    Syscall,
    /// A signal is about to be delivered.
    Signal(i32),
    /// The thread has made another one, which is traced, too.
    Clone,
    /// The thread is about to end: its registers and its memory are as they were.
    Exit,
    /// Another ptrace event.
    Other,
}

/// Returns whether a thread has ended so far that it can't be traced.
fn ending(pid: Pid, tid: Pid) -> bool {
    let Ok(s) = Status::of_thread(pid, tid) else { return true };
    s.field("State").is_some_and(|f| f.starts_with(['Z', 'X']))
}

/// Returns the system call in which a thread sleeps. The kernel does not tell that of a stopped thread any more.
fn blocked(pid: Pid, tid: Pid) -> Option<Blocked> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
    Blocked::parse(&text)
}

thread_local! {
    /// Threads that this one still traces, because they did not stop to be let go of. They are released when they
    /// stop, and at the latest when this thread ends (see [`crate::isolated()`]).
    static STUCK: RefCell<Vec<(Pid, Pid)>> = const { RefCell::new(Vec::new()) };
}

/// Lets go of the threads in [`STUCK`] that have stopped by now. Returns whether there are others.
pub(crate) fn release_stuck() -> bool {
    let all = STUCK.take();
    for (pid, tid) in all {
        let mut t = Tracee::running(pid, tid);
        match t.look() {
            Ok(true) => drop(t),
            _ => {
                t.gone = true;
                STUCK.with_borrow_mut(|all| all.push((pid, tid)));
            }
        }
    }
    STUCK.with_borrow(|all| !all.is_empty())
}

fn take_stuck(pid: Pid, tid: Pid) -> bool {
    STUCK.with_borrow_mut(|all| {
        let at = all.iter().position(|s| *s == (pid, tid));
        at.map(|i| all.swap_remove(i)).is_some()
    })
}

/// A seized thread. Dropping the value lets the thread go as it is.
#[derive(Debug)]
pub struct Tracee {
    /// Id of the process.
    pub pid: Pid,
    /// Id of the thread.
    pub tid: Pid,
    stopped: bool,
    gone: bool,
    /// Whether the process was stopped by a signal when the thread stopped last.
    group_stopped: bool,
    /// The registers of a call that the stop has ended with EINTR, and those that issue it again.
    ended: Option<(UserRegs, UserRegs)>,
    /// The system call in which the thread slept when it was asked to stop, on machines where that must be known.
    blocked: Option<Blocked>,
    /// The wait in which the thread was seen before that, if a stop ends such a wait.
    wait: Option<Wait>,
    /// The status with which the thread has ended, as in waitpid(2).
    pub(crate) status: i32,
    /// Options of the trace beside those that every thread has.
    pub(super) options: Cell<Options>,
}

impl Tracee {
    pub(crate) fn running(pid: Pid, tid: Pid) -> Self {
        Self {
            pid,
            tid,
            stopped: false,
            gone: false,
            group_stopped: false,
            ended: None,
            blocked: None,
            wait: None,
            status: 0,
            options: Cell::new(Options::empty()),
        }
    }

    /// Returns a thread that is to be stopped, with a note of its wait. Only while the thread sleeps does it show for
    /// how long.
    fn looked_at(pid: Pid, tid: Pid) -> Self {
        let mut t = Self::running(pid, tid);
        t.wait = Wait::of(pid, tid);
        t
    }

    /// Seizes a thread, which keeps running. Returns `None` if it has ended.
    ///
    /// # Errors
    /// If the kernel does not permit it.
    pub fn seize(pid: Pid, tid: Pid) -> Result<Option<Self>> {
        // The option TRACESYSGOOD only makes system call stops differ from signals.
        release_stuck();
        if take_stuck(pid, tid) {
            return Ok(Some(Self::looked_at(pid, tid)));
        }
        match ptrace::seize(tid.into(), Options::PTRACE_O_TRACESYSGOOD) {
            Ok(()) => Ok(Some(Self::looked_at(pid, tid))),
            Err(Errno::ESRCH) => Ok(None),
            Err(Errno::EPERM) => {
                if ending(pid, tid) {
                    return Ok(None);
                }
                explain_denial(pid)?;
                Err(Error::Sys { what: "trace a thread of", pid, errno: Errno::EPERM })
            }
            Err(errno) => Err(Error::Sys { what: "trace a thread of", pid, errno }),
        }
    }

    /// Asks the thread to stop; [`Tracee::wait_stopped`] waits for that.
    pub fn interrupt(&mut self) {
        // The look is as late as possible: a call that the thread begins after it can't be issued again.
        if call::NEEDS_BLOCKED
            && let Some(now) = blocked(self.pid, self.tid)
        {
            self.blocked = Some(now);
        }
        if ptrace::interrupt(self.tid.into()) == Err(Errno::ESRCH) {
            self.gone = true;
        }
    }

    /// Returns whether the thread has ended.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Returns whether the thread is stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Waits until the thread has stopped as asked. Signals that come first are delivered. Returns `false` if the
    /// thread has ended instead.
    ///
    /// # Errors
    /// If it does not stop before the deadline.
    pub fn wait_stopped(&mut self, deadline: Instant) -> Result<bool> {
        let mut patience = Patience::until(deadline);
        while !self.look()? {
            patience.rest(self.pid, self.tid)?;
        }
        Ok(!self.gone)
    }

    /// Returns whether the thread has stopped as asked, or ended, without waiting for that.
    ///
    /// # Errors
    /// If it can't be resumed from another stop.
    pub fn look(&mut self) -> Result<bool> {
        while !self.stopped && !self.gone {
            match self.poll() {
                None => return Ok(false),
                Some(None | Some(Stop::Event)) => {}
                Some(Some(Stop::Signal(signal))) => self.resume_interrupted(signal)?,
                Some(Some(_)) => self.resume_interrupted(0)?,
            }
        }
        if self.stopped && self.ended.is_none() {
            self.reissue();
        }
        Ok(true)
    }

    /// Waits for the next stop; returns `None` if the thread has ended.
    ///
    /// # Errors
    /// If nothing happens before the deadline.
    pub fn wait(&mut self, deadline: Instant) -> Result<Option<Stop>> {
        let mut patience = Patience::until(deadline);
        loop {
            match self.poll() {
                Some(stop) => return Ok(stop),
                None => patience.rest(self.pid, self.tid)?,
            }
        }
    }

    /// Returns the next stop without waiting; `None` if there is none, `Some(None)` if the thread has ended.
    fn poll(&mut self) -> Option<Option<Stop>> {
        self.next_stop().map(|(stop, _)| stop)
    }

    /// Returns the same, with the status of waitpid(2).
    pub(crate) fn next_stop(&mut self) -> Option<(Option<Stop>, i32)> {
        let mut status = 0;
        // Not nix's: its result has no place for realtime signals, and an error in place of the status, which is gone then.
        // SAFETY: the call writes the status.
        let r =
            unsafe { libc::waitpid(self.tid.as_raw(), &mut status, libc::__WALL | libc::WNOHANG) };
        if r == self.tid.as_raw() {
            return Some((self.understand(status), status));
        }
        if r == -1 && Errno::last() != Errno::EINTR {
            self.gone = true;
            return Some((None, status));
        }
        None
    }

    /// Returns the number that the kernel tells of the event at which the thread has stopped: the id of a new thread, or
    /// an exit code.
    pub(crate) fn message(&self) -> Option<libc::c_long> {
        ptrace::getevent(self.tid.into()).ok()
    }

    /// Returns the number of the system call that the stopped thread is in.
    pub(crate) fn call_number(&self) -> Option<u64> {
        blocked(self.pid, self.tid).map(|call| call.number)
    }

    pub(crate) fn understand(&mut self, status: i32) -> Option<Stop> {
        if !libc::WIFSTOPPED(status) {
            (self.gone, self.status) = (true, status);
            return None;
        }
        let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
        let stop = match (event, signal) {
            (PTRACE_EVENT_STOP, _) => Stop::Event,
            (0, s) if s == libc::SIGTRAP | 0x80 => Stop::Syscall,
            (0, s) => Stop::Signal(s),
            (libc::PTRACE_EVENT_CLONE, _) => Stop::Clone,
            (libc::PTRACE_EVENT_EXIT, _) => Stop::Exit,
            _ => Stop::Other,
        };
        self.stopped = stop == Stop::Event || self.stopped;
        if stop == Stop::Event {
            // ptrace(2), Group-stop: this is the signal that has stopped the process, or SIGTRAP.
            self.group_stopped = signal != libc::SIGTRAP;
        }
        Some(stop)
    }

    /// Resumes the thread from a stop, with a signal (0: none).
    ///
    /// # Errors
    /// If that fails for another reason than that the thread is gone.
    pub fn resume(&mut self, request: libc::c_uint, signal: i32) -> Result<()> {
        self.stopped = false;
        match ptrace(request, self.tid, 0, signal as usize) {
            Ok(()) => Ok(()),
            Err(Errno::ESRCH) => {
                self.gone = true;
                Ok(())
            }
            Err(errno) => Err(Error::Sys { what: "resume a thread of", pid: self.pid, errno }),
        }
    }

    /// Resumes a thread that has stopped for another reason than prof's request. Any stop cancels the request of
    /// PTRACE_INTERRUPT (`ptrace_stop` in the kernel's kernel/signal.c). So a signal on its way at that moment would
    /// be the last stop that prof sees, and prof asks again.
    fn resume_interrupted(&mut self, signal: i32) -> Result<()> {
        if ptrace::interrupt(self.tid.into()) == Err(Errno::ESRCH) {
            self.gone = true;
            return Ok(());
        }
        self.resume(libc::PTRACE_CONT, signal)
    }

    /// Returns the dispatch of the thread's system calls; none where the kernel does not tell (before Linux 6.4).
    pub(crate) fn dispatch(&self) -> Dispatch {
        let mut d = Dispatch::default();
        let read = ptrace(GET_DISPATCH, self.tid, size_of::<Dispatch>(), &raw mut d as usize);
        if read.is_ok() { d } else { Dispatch::default() }
    }

    fn failed(&mut self, what: &'static str, errno: Errno) -> Error {
        if errno == Errno::ESRCH {
            self.gone = true;
            return Error::Gone(self.pid);
        }
        Error::Sys { what, pid: self.pid, errno }
    }

    /// Returns the thread's general registers.
    ///
    /// # Errors
    /// If it is not stopped, or gone.
    pub fn regs(&mut self) -> Result<UserRegs> {
        let mut regs = UserRegs::default();
        let at = std::ptr::from_mut(&mut regs).cast();
        // SAFETY: the struct begins with the kernel's, which consists of integers.
        unsafe { self.get(call::REGSET, at, UserRegs::KERNEL_LEN) }?;
        if let Some(from) = call::THREAD_POINTER_REGSET {
            let mut tp = 0u64;
            // SAFETY: the kernel writes an integer.
            unsafe { self.get(from, std::ptr::from_mut(&mut tp).cast(), size_of::<u64>()) }?;
            regs.set_thread_pointer(tp);
        }
        regs.set_blocked(self.blocked);
        Ok(regs)
    }

    /// Sets the thread's general registers. The kernel then takes the thread to be in no system call.
    ///
    /// # Errors
    /// If it is not stopped, or gone.
    pub fn set_regs(&mut self, regs: &UserRegs) -> Result<()> {
        let at = std::ptr::from_ref(regs).cast();
        self.put(call::REGSET, at, UserRegs::KERNEL_LEN)?;
        if let Some(set) = call::SYSTEM_CALL_REGSET {
            let none = -1i32;
            self.put(Registers::Set(set), std::ptr::from_ref(&none).cast(), size_of::<i32>())?;
        }
        Ok(())
    }

    /// Has the thread, which is at the entry of a system call with these registers, make none, and go on at `pc`. A thread
    /// that is left alone before this has succeeded makes the call.
    ///
    /// # Errors
    /// If it is not stopped, or gone.
    pub(crate) fn skip_call(&mut self, regs: &UserRegs, pc: u64) -> Result<()> {
        self.set_regs(&regs.skipping(pc))?;
        let Some(request) = call::SET_CALL else { return Ok(()) };
        ptrace(request, self.tid, 0, usize::MAX)
            .map_err(|e| self.failed("skip a system call of a thread of", e))
    }

    /// Returns the thread's vector state.
    ///
    /// # Errors
    /// If it is not stopped, or gone.
    pub fn vector_state(&mut self) -> Result<Vec<u8>> {
        let mut bytes = vec![0u8; 16 << 10];
        let (at, room) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: the kernel writes bytes.
        let len = unsafe { self.get(Registers::Set(sigframe::VECTOR_REGSET), at, room) }?;
        bytes.truncate(len);
        Ok(bytes)
    }

    /// Sets the thread's vector state to what [`vector_state`](Self::vector_state) has returned.
    ///
    /// # Errors
    /// If it is not stopped, or gone.
    pub(crate) fn set_vector_state(&mut self, state: &[u8]) -> Result<()> {
        self.put(Registers::Set(sigframe::VECTOR_REGSET), state.as_ptr(), state.len())
    }

    /// Returns whether the thread uses registers that a system call would destroy, and that prof's signal frame does
    /// not restore.
    pub fn has_volatile_state(&mut self) -> bool {
        sigframe::SCALABLE_REGSETS.iter().any(|set| {
            let mut header = [0u8; 16];
            // SAFETY: the kernel writes bytes. A processor without these registers has no such set.
            let found =
                unsafe { self.get(Registers::Set(*set), header.as_mut_ptr(), header.len()) };
            found.is_ok_and(|n| sigframe::is_scalable_in_use(header.get(..n).unwrap_or(&header)))
        })
    }

    /// Returns whether the thread's returns are checked against a guarded stack (AArch64).
    pub fn has_guarded_stack(&mut self) -> bool {
        let (mut state, set) = ([0u8; 24], Registers::Set(GUARDED_STACK));
        // SAFETY: the kernel writes bytes. Other processors and kernels have no such set.
        let found = unsafe { self.get(set, state.as_mut_ptr(), state.len()) };
        found.is_ok_and(|n| is_guarded(state.get(..n).unwrap_or(&state)))
    }

    /// Reads registers and returns their length.
    ///
    /// # Safety
    /// `to` must point to `len` bytes that may get any value. For [`Registers::Requests`], `len` must cover
    /// everything that the request writes.
    unsafe fn get(&mut self, from: Registers, to: *mut u8, len: usize) -> Result<usize> {
        let set = match from {
            Registers::Set(set) => set,
            Registers::Requests { get, .. } => {
                ptrace(get, self.tid, 0, to as usize)
                    .map_err(|e| self.failed("read the registers of a thread of", e))?;
                return Ok(len);
            }
        };
        let mut io = libc::iovec { iov_base: to.cast(), iov_len: len };
        let at = std::ptr::from_mut(&mut io) as usize;
        ptrace(libc::PTRACE_GETREGSET, self.tid, set as usize, at)
            .map_err(|e| self.failed("read the registers of a thread of", e))?;
        Ok(io.iov_len)
    }

    fn put(&mut self, to: Registers, from: *const u8, len: usize) -> Result<()> {
        let set = match to {
            Registers::Set(set) => set,
            Registers::Requests { set, .. } => {
                return ptrace(set, self.tid, 0, from as usize)
                    .map_err(|e| self.failed("set the registers of a thread of", e));
            }
        };
        let mut io = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: len };
        let at = std::ptr::from_mut(&mut io) as usize;
        ptrace(libc::PTRACE_SETREGSET, self.tid, set as usize, at)
            .map_err(|e| self.failed("set the registers of a thread of", e))
    }

    /// Returns the thread's signal mask.
    ///
    /// # Errors
    /// If it is not stopped, or gone.
    pub fn signal_mask(&mut self) -> Result<SignalSet> {
        let mut mask = SignalSet::default();
        let at = std::ptr::from_mut(&mut mask) as usize;
        ptrace(PTRACE_GETSIGMASK, self.tid, syscall::SIGSET_LEN, at)
            .map_err(|e| self.failed("read the signal mask of a thread of", e))?;
        Ok(mask)
    }

    /// Sets the thread's signal mask.
    ///
    /// # Errors
    /// If it is not stopped, or gone.
    pub fn set_signal_mask(&mut self, mask: SignalSet) -> Result<()> {
        let at = std::ptr::from_ref(&mask) as usize;
        ptrace(PTRACE_SETSIGMASK, self.tid, syscall::SIGSET_LEN, at)
            .map_err(|e| self.failed("set the signal mask of a thread of", e))
    }

    /// Lets go of a stopped thread.
    pub fn detach(self) {
        wait_stopped_again(Self::detach_all([self]));
    }

    /// Lets go of stopped threads, and returns those to pass to [`wait_stopped_again`].
    pub(crate) fn detach_all(threads: impl IntoIterator<Item = Self>) -> Vec<(Pid, Pid)> {
        let let_go = |mut t: Self| {
            t.let_go();
            t.group_stopped.then_some((t.pid, t.tid))
        };
        threads.into_iter().filter_map(let_go).collect()
    }

    /// Issues a call again that the stop has ended with EINTR and that the kernel never restarts by itself. This
    /// happens at once, since a tracer that dies could not do it any more. Notes a call that the kernel restarts.
    fn reissue(&mut self) {
        let Ok(mut was) = self.regs() else { return };
        let (pid, tid) = (self.pid, self.tid);
        let ended = asleep::ended(pid, tid, &was, |number| self.asked(number));
        if let Some(call) = ended.or_else(|| asleep::continued(pid, tid, &was)) {
            self.blocked = Some(call);
            was.set_blocked(self.blocked);
        }
        let whole = was.restored_at_stop(false);
        if whole == was {
            return;
        }
        let wait = self.wait.as_ref();
        let short = wait.and_then(|w| w.shorter(self.pid, self.tid, &whole));
        let again = short.unwrap_or(whole);
        if self.set_regs(&again).is_ok() {
            self.ended = Some((was, again));
        }
    }

    /// Returns the first argument of the system call that the stopped thread has left, on machines where the kernel
    /// only tells it of a thread in a call. The thread counts as being in that call while the question is asked.
    fn asked(&mut self, number: u64) -> Option<u64> {
        let set = Registers::Set(call::SYSTEM_CALL_REGSET?);
        let number = i32::try_from(number).ok()?;
        let none = -1i32;
        self.put(set, std::ptr::from_ref(&number).cast(), size_of::<i32>()).ok()?;
        let seen = blocked(self.pid, self.tid);
        self.put(set, std::ptr::from_ref(&none).cast(), size_of::<i32>()).ok()?;
        seen.filter(|b| b.number == number as u64).map(|b| b.args[0])
    }

    /// Lets the interrupted call end with EINTR after all if a signal is pending now, which would have ended it.
    fn keep_interrupted(&mut self) {
        let Some((was, again)) = self.ended.take() else { return };
        let due = Status::of_thread(self.pid, self.tid).is_ok_and(|s| s.signal_due());
        if due && self.regs().is_ok_and(|now| now == again) {
            let _ = self.set_regs(&was);
        }
    }

    fn let_go(&mut self) {
        if self.gone {
            return;
        }
        if self.stopped {
            self.keep_interrupted();
        }
        if !self.stopped && ptrace::detach(self.tid.into(), None).is_err() {
            // Only a stopped thread can be let go of.
            self.interrupt();
            let deadline = Instant::now() + Duration::from_millis(50);
            match self.wait_stopped(deadline) {
                Ok(true) => {}
                Ok(false) => return,
                Err(_) => {
                    STUCK.with_borrow_mut(|all| all.push((self.pid, self.tid)));
                    self.gone = true;
                    return;
                }
            }
        }
        let _ = ptrace::detach(self.tid.into(), None);
        self.gone = true;
    }
}

/// Waits for released threads of a stopped process. They wake up, and stop again before they return to their program
/// (`__ptrace_unlink` in the kernel's kernel/ptrace.c). Until then others see them running.
pub(crate) fn wait_stopped_again(mut threads: Vec<(Pid, Pid)>) {
    let running = |(pid, tid): &(Pid, Pid)| {
        let status = Status::of_thread(*pid, *tid);
        status.is_ok_and(|s| s.field("State").is_some_and(|f| f.starts_with('R')))
    };
    let began = Instant::now();
    loop {
        threads.retain(running);
        // A thread that was continued meanwhile simply runs.
        if threads.is_empty() || began.elapsed() >= STOPS_AGAIN {
            return;
        }
        std::thread::sleep(SLEEPS.0);
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        self.let_go();
    }
}
