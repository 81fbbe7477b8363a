//! System calls made by a thread of the target, safely against the death of prof.
//!
//! Before the thread's registers change, a complete signal frame that restores them (and the vector
//! state, and the signal mask) stands in memory that is nobody's (`frame_place`), and the system call
//! instruction that it is sent to is followed by a return into the target's own `rt_sigreturn`. So a
//! thread that is left alone at any instant finishes the call and goes on where it was. The usual
//! end is another: prof stops the thread once more in the kernel's signal path and puts the registers
//! back itself, such that an interrupted system call is continued, with the rest of its timeout.

use crate::sandbox::Pass;
use crate::stopped::frame_place::{Finder, FramePlace};
use crate::stopped::gadgets::Gadgets;
use crate::stopped::tracee::{Stop, Tracee};
use crate::stopped::waits;
use crate::{Error, RemoteAddr, RemoteMemory, Result};
use nix::errno::Errno;
use prof_arch::generic::stopped::{RED_ZONE, StoppedRegs};
use prof_arch::native::UserRegs;
use prof_arch::native::sigframe::{VectorLayout, build_sigframe, sigframe_len};
use prof_arch::native::syscall;
use prof_os::Pid;
use prof_os::maps::{self, Map};
use prof_trace::values::text::time;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Bytes below the stack pointer that the signal frame leaves free: the thread may still use them.
const KEPT: u64 = RED_ZONE + waits::ROOM;
/// Alignment of the frames for vector registers.
const FRAME_ALIGN: u64 = 64;
/// Room for strings below the frame.
const ROOM: u64 = 256;
/// Part of [`ROOM`] that the words below the frame may take (see [`Gadgets::below_frame`]).
const BELOW: u64 = 16;
/// Time that a call may take. Nothing would be gained by giving up: the thread stays in the kernel until the call ends.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Time after which it is asked why a call takes so long.
const SOON: Duration = Duration::from_secs(1);

/// A stopped thread that makes system calls for prof. Dropping it puts the thread back.
#[derive(Debug)]
pub struct Caller<'a> {
    pub(super) thread: Option<Tracee>,
    pub(super) mem: &'a RemoteMemory,
    pub(super) gadgets: Gadgets,
    pub(super) before: UserRegs,
    /// The call that the thread made first, if the stop has interrupted a restart of it.
    pub(super) restarted: Option<u64>,
    pub(super) mask: syscall::SignalSet,
    /// The stack pointer at a call.
    sp: u64,
    /// The stack pointer with which a child of this thread's, left alone, would exit.
    pub(super) exit_sp: Option<u64>,
    room: RemoteAddr,
    covered: Vec<u8>,
    /// Whether the thread has called a function, which changes more registers than a system call.
    pub(super) called: bool,
    /// Whether the kernel has forgotten what was left of an interrupted wait, which then begins anew.
    pub(super) is_wait_lost: bool,
    /// Calls that the target's seccomp filters let pass.
    pub(super) pass: Pass,
}

impl<'a> Caller<'a> {
    /// Prepares a stopped thread, which slept in `waits_in` before (see [`prof_os::task::waits_in`]), and
    /// whose filters let `pass` what they do. On failure the thread is let go, untouched.
    ///
    /// # Errors
    /// If there is no room for a signal frame, or prof's death in the midst of a call might kill it.
    pub(crate) fn new(
        thread: Tracee,
        mem: &'a RemoteMemory,
        maps: &[Map],
        gadgets: Gadgets,
        waits_in: &str,
        pass: Pass,
    ) -> Result<Self> {
        Self::with_frames(1, thread, mem, maps, gadgets, waits_in, pass)
    }

    /// Does the same with room for a number of signal frames: from the second one, a child of the thread's would exit.
    ///
    /// # Errors
    /// As [`Caller::new`].
    pub(crate) fn with_frames(
        frames: usize,
        mut thread: Tracee,
        mem: &'a RemoteMemory,
        maps: &[Map],
        gadgets: Gadgets,
        waits_in: &str,
        pass: Pass,
    ) -> Result<Self> {
        let pid = thread.pid;
        let before = thread.regs()?;
        let gadgets = gadgets.for_thread(&before).ok_or(Error::NoThread(pid))?;
        pass.usual_calls(pid, gadgets.syscall, gadgets.sigreturn)?;
        if !before.is_in_call() && thread.has_volatile_state() {
            return Err(Error::NoThread(pid));
        }
        let vector = thread.vector_state()?;
        let mask = thread.signal_mask()?;
        let restarted = if before.is_restarted() {
            let mut code = [0; syscall::LOAD_NUMBER_LEN];
            let at = before.syscall_pc().wrapping_sub(code.len() as u64);
            let read = mem.read(RemoteAddr(at), &mut code);
            before.restarted_call(if read.is_ok() { &code } else { &[] }, waits_in)
        } else {
            None
        };
        let frame = |at: u64, regs: &UserRegs| {
            let mut bytes = vec![0; sigframe_len(vector.len())];
            let back = gadgets.sigreturn.frame_returns_to(gadgets.syscall);
            let built = build_sigframe(&mut bytes, at, regs, &vector, layout(), mask, back);
            let frame = built.map_err(|e| Error::Nonsense { pid, what: format!("thread {} has registers that prof can't keep for it ({e}); nothing was changed", thread.tid) })?;
            bytes.truncate(frame.len);
            Ok::<_, Error>((bytes, frame.sp))
        };
        let own = before.for_sigframe(false, restarted);
        // The frame's length does not depend on its place.
        let len = frame(0, &own)?.0.len() as u64;
        let step = len.next_multiple_of(FRAME_ALIGN) + FRAME_ALIGN;
        let need = ROOM + len + (frames as u64 - 1) * step;
        let (tid, sigreturn) = (thread.tid, gadgets.sigreturn);
        let finder = Finder { pid, tid, mem, maps, sigreturn };
        let place = finder.find(&before, KEPT, need).or_else(|| {
            // Its stack may have grown since the mappings were read.
            let maps = &maps::of(pid).ok()?;
            Finder { pid, tid, mem, maps, sigreturn }.find(&before, KEPT, need)
        });
        let FramePlace { low, covered } = place.ok_or(Error::NoThread(pid))?;
        let below = gadgets.below_frame();
        let put = |at: u64, regs: &UserRegs| {
            let (bytes, sp) = frame(at, regs)?;
            let start = RemoteAddr(at - below.len() as u64);
            mem.write_data(start, &[&below, bytes.as_slice()].concat())?;
            Ok::<_, Error>(sp - below.len() as u64)
        };
        let at = low.plus(ROOM).0;
        let sp = put(at, &own)?;
        let exit_sp = (frames > 1).then(|| {
            let mut exit = own;
            exit.set_syscall(syscall::nr::EXIT_GROUP, [0; 6]);
            exit.enter(gadgets.syscall.0, sp, gadgets.sigreturn.frame_returns_to(gadgets.syscall));
            put(at + step, &exit)
        });
        let exit_sp = exit_sp.transpose()?;
        Ok(Self {
            thread: Some(thread),
            mem,
            gadgets,
            before,
            restarted,
            mask,
            sp,
            exit_sp,
            room: low,
            covered,
            called: false,
            is_wait_lost: false,
            pass,
        })
    }

    /// Writes bytes to which the next call may point, and returns their address. The kernel can always read that
    /// memory, but it can't write to memory behind the code of a file.
    ///
    /// # Errors
    /// If there are too many, or memory can't be written.
    pub fn put(&self, bytes: &[u8]) -> Result<RemoteAddr> {
        if bytes.len() as u64 > ROOM - BELOW {
            let what = "too many bytes for a remote call".into();
            return Err(Error::Nonsense { pid: self.pid(), what });
        }
        self.mem.write_data(self.room, bytes)?;
        Ok(self.room)
    }

    /// Reads eight bytes of the target's memory; returns `None` if nothing is mapped there.
    pub(crate) fn word(&self, at: RemoteAddr) -> Option<u64> {
        let mut bytes = [0; 8];
        self.mem.read(at, &mut bytes).ok().map(|()| u64::from_ne_bytes(bytes))
    }

    pub(crate) fn pid(&self) -> Pid {
        self.thread.as_ref().map_or(Pid::NONE, |t| t.pid)
    }

    pub(crate) fn tid(&self) -> Pid {
        self.thread.as_ref().map_or(Pid::NONE, |t| t.tid)
    }

    /// Returns the error of a system call that has failed with `errno`.
    pub(crate) fn failed(&self, what: &'static str, errno: Errno) -> Error {
        Error::Remote { what, pid: self.pid(), errno }
    }

    /// Returns the folder in `/proc` of this thread alone: its descriptors may be others than those
    /// of the first thread.
    pub(crate) fn proc_dir(&self) -> std::path::PathBuf {
        format!("/proc/{}/task/{}", self.pid(), self.tid()).into()
    }

    /// Makes a system call; returns what the kernel returned.
    ///
    /// # Errors
    /// If the kernel refuses the call, or the thread dies.
    pub fn call(&mut self, what: &'static str, number: u64, args: [u64; 6]) -> Result<u64> {
        self.call_seen(what, number, args).map(|(result, _)| result)
    }

    /// Does the same, and returns also the child that the call has made, if the thread is traced for that.
    ///
    /// # Errors
    /// As [`Caller::call`].
    pub(super) fn call_seen(
        &mut self,
        what: &'static str,
        number: u64,
        args: [u64; 6],
    ) -> Result<(u64, Option<Pid>)> {
        let pid = self.pid();
        self.pass.one_call(pid, self.gadgets.syscall, number, args)?;
        let Some(t) = self.thread.as_mut() else { return Err(Error::Gone(pid)) };
        let mut regs = self.before;
        regs.set_syscall(number, args);
        let Gadgets { syscall, sigreturn, .. } = self.gadgets;
        regs.enter(syscall.0, self.sp, sigreturn.frame_returns_to(syscall));
        t.set_regs(&regs)?;
        // Blocks signals, so that no handler runs before the call. The registers are set first: if prof dies here, the
        // signal frame that the thread goes to has the old mask.
        t.set_signal_mask(syscall::ALL_SIGNALS)?;
        let late = |e| match e {
            Error::NotStopping { pid, tid, waited } => Error::Late { pid, tid, what, waited },
            e => e,
        };
        syscall_stop(t).map_err(late)?;
        let child = syscall_stop(t).map_err(late)?;
        let result = t.regs()?.syscall_result();
        if (-4095..0).contains(&result) {
            let errno = Errno::from_raw(-result as i32);
            return Err(Error::Remote { what, pid, errno });
        }
        Ok((result as u64, child))
    }

    /// Has the kernel trace the children that the thread makes, or not any more.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(super) fn trace_clones(&mut self, on: bool) -> Result<()> {
        let pid = self.pid();
        let Some(t) = self.thread.as_ref() else { return Err(Error::Gone(pid)) };
        t.trace_clones(on).map_err(|errno| Error::Sys {
            what: "set the trace options of a thread of",
            pid,
            errno,
        })
    }

    /// Checks that no seccomp filter could kill the thread for the mapping that prof's code would be in.
    ///
    /// # Errors
    /// If one could.
    pub(crate) fn may_map_code(&self) -> Result<()> {
        self.pass.mapping_of_code(self.pid(), self.gadgets.syscall)
    }

    /// Returns whether the thread may make a call that prof can do without: no seccomp filter kills the thread for it.
    pub(crate) fn may_ask(&self, number: u64, args: [u64; 6]) -> bool {
        self.pass.lets_ask(self.gadgets.syscall, number, args)
    }

    /// Makes a call that prof can do without, unless a seccomp filter could kill the thread for it. An error is only
    /// logged.
    pub(crate) fn ask(&mut self, what: &'static str, number: u64, args: [u64; 6]) {
        if self.may_ask(number, args)
            && let Err(e) = self.call(what, number, args)
        {
            log::debug!("{e}");
        }
    }

    /// Restores the thread's registers and memory, and lets go of it.
    ///
    /// # Errors
    /// If the thread dies meanwhile.
    pub fn finish(mut self) -> Result<()> {
        match self.thread.take() {
            Some(t) => self.put_back(t),
            None => Ok(()),
        }
    }

    fn set_all(&self, t: &mut Tracee, regs: &UserRegs) -> Result<()> {
        t.set_signal_mask(self.mask)?;
        t.set_regs(regs)
    }

    /// Restores a thread that stands behind a system call, or where it was first stopped.
    ///
    /// The thread has to stop once more in the kernel's signal path, where the kernel restarts an interrupted call as
    /// after any stop. prof sets the registers there. The entry of a call would be another place, but a seccomp filter
    /// would take the skipped call for one of the thread's own.
    fn put_back(&self, mut t: Tracee) -> Result<()> {
        if !t.is_stopped() {
            t.interrupt();
            // If this stop hides a register, only the next one lets prof set all of them. A system call has not changed
            // the hidden one.
            let next = UserRegs::CALLS_HIDE && self.called;
            // If prof dies before the registers are set, the thread goes on from the frame.
            let begins_anew = || self.before.for_sigframe(false, self.restarted);
            if !next {
                let goes_on = self.before.restored_behind_call();
                self.set_all(&mut t, &if self.is_wait_lost { begins_anew() } else { goes_on })?;
            }
            t.resume(libc::PTRACE_CONT, 0)?;
            if !t.wait_stopped(Instant::now() + PATIENCE)? {
                return Err(Error::Gone(t.pid));
            }
            if next {
                let goes_on = self.before.restored_behind_function();
                self.set_all(&mut t, &if self.is_wait_lost { begins_anew() } else { goes_on })?;
            }
        }
        // The thread does not need the frame any more.
        self.mem.write_data(self.room, &self.covered)?;
        t.detach();
        Ok(())
    }
}

/// The layout of the vector state. Asking the processor takes long in a virtual machine, some 60 exits,
/// so it is done once, while no thread is stopped.
pub(crate) fn layout() -> &'static VectorLayout {
    static LAYOUT: OnceLock<VectorLayout> = OnceLock::new();
    LAYOUT.get_or_init(VectorLayout::native)
}

/// Waits for a stop of a thread that makes a call. If its cgroup was frozen meanwhile, nothing can be undone before it
/// is thawed, so the user is told what prof waits for.
fn wait_for_call(t: &mut Tracee, deadline: Instant) -> Result<Option<Stop>> {
    match t.wait(deadline.min(Instant::now() + SOON)) {
        Err(Error::NotStopping { .. }) => {}
        done => return done,
    }
    if let Err(e) = crate::process::frozen::thawed(t.pid) {
        log::warn!("{e}; prof waits for that for up to {}", time(PATIENCE));
    }
    t.wait(deadline)
}

/// Runs to the next entry or exit of a system call. Returns the child that the call has made, if that is traced.
fn syscall_stop(t: &mut Tracee) -> Result<Option<Pid>> {
    let deadline = Instant::now() + PATIENCE;
    let (mut signal, mut child) = (0, None);
    loop {
        t.resume(libc::PTRACE_SYSCALL, signal)?;
        signal = 0;
        match wait_for_call(t, deadline)? {
            Some(Stop::Syscall) => return Ok(child),
            // Only signals that can't be blocked arrive here.
            Some(Stop::Signal(s)) => signal = s,
            Some(Stop::Clone) => {
                child = t.message().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
            }
            Some(_) => {}
            None => return Err(Error::Gone(t.pid)),
        }
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        if let Some(t) = self.thread.take()
            && let pid = t.pid
            && let Err(e) = self.put_back(t)
        {
            e.warn(pid, "a thread goes on by its signal frame, as prof could not put it back");
        }
    }
}
