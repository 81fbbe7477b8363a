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
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::UserRegs;
use prof_arch::native::sigframe::{VectorLayout, build_sigframe, sigframe_len};
use prof_arch::native::syscall;
use prof_os::Pid;
use prof_os::maps::{self, Map};
use prof_trace::values::text::time;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Bytes below the stack pointer that are not the frame's.
const KEPT: u64 = waits::RED_ZONE + waits::ROOM;
/// Room for strings below the frame.
const ROOM: u64 = 256;
/// As much of it may be taken by what stands below the frame.
const BELOW: u64 = 16;
/// Time that a call may take. Nothing would be gained by giving up: the thread stays in the kernel until the call ends.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time after which it is asked why a call takes so long.
const SOON: Duration = Duration::from_secs(1);

/// A stopped thread that makes system calls for prof. Dropping it puts the thread back.
#[derive(Debug)]
pub struct Caller<'a> {
    thread: Option<Tracee>,
    mem: &'a RemoteMemory,
    gadgets: Gadgets,
    before: UserRegs,
    mask: syscall::SignalSet,
    /// The stack pointer at a call.
    sp: u64,
    room: RemoteAddr,
    covered: Vec<u8>,
    /// Calls that the target's seccomp filters let pass.
    pass: Pass,
}

impl<'a> Caller<'a> {
    /// Prepares a stopped thread, which slept in `waits_in` before (see [`prof_os::task::waits_in`]), and
    /// whose filters let `pass` what they do. On failure the thread is let go, untouched.
    ///
    /// # Errors
    /// If there is no room for a signal frame, or prof's death in the midst of a call might kill it.
    pub(crate) fn new(
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
        let mut bytes = vec![0; sigframe_len(vector.len())];
        let mut build = |at: u64| {
            build_sigframe(
                &mut bytes,
                at,
                &before.for_sigframe(false, restarted),
                &vector,
                layout(),
                mask,
                gadgets.sigreturn.frame_returns_to(gadgets.syscall),
            )
            .map_err(|e| Error::Nonsense { pid, what: format!("thread {} has registers that prof can't keep for it ({e}); nothing was changed", thread.tid) })
        };
        // Its length is the same wherever it stands.
        let len = build(0)?.len;
        let (tid, sigreturn) = (thread.tid, gadgets.sigreturn);
        let finder = Finder { pid, tid, mem, maps, sigreturn };
        let place = finder.find(&before, KEPT, ROOM + len as u64).or_else(|| {
            // Its stack may have grown since the mappings were read.
            let maps = &maps::of(pid).ok()?;
            Finder { pid, tid, mem, maps, sigreturn }.find(&before, KEPT, ROOM + len as u64)
        });
        let FramePlace { low, covered } = place.ok_or(Error::NoThread(pid))?;
        let at = low.plus(ROOM);
        let frame = build(at.0)?;
        let below = gadgets.below_frame();
        let sp = frame.sp - below.len() as u64;
        let frame = [&below, &bytes[..frame.len]].concat();
        mem.write_data(RemoteAddr(at.0 - below.len() as u64), &frame)?;
        let thread = Some(thread);
        Ok(Self { thread, mem, gadgets, before, mask, sp, room: low, covered, pass })
    }

    /// Writes bytes where a call can point to them; they are good for the next call. The kernel can read
    /// them there, but not always write.
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

    /// Eight bytes of the target's memory; `None` if nothing is mapped there.
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

    /// The error of a call that has failed so.
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
        let pid = self.pid();
        self.pass.one_call(pid, self.gadgets.syscall, number, args)?;
        let Some(t) = self.thread.as_mut() else { return Err(Error::Gone(pid)) };
        let mut regs = self.before;
        regs.set_syscall(number, args);
        let Gadgets { syscall, sigreturn, .. } = self.gadgets;
        regs.enter(syscall.0, self.sp, sigreturn.frame_returns_to(syscall));
        t.set_regs(&regs)?;
        // No handler shall run on the way. In this order: the frame that the thread is now on its
        // way to has the old mask, should prof die here.
        t.set_signal_mask(syscall::ALL_SIGNALS)?;
        let late = |e| match e {
            Error::NotStopping { pid, tid, waited } => Error::Late { pid, tid, what, waited },
            e => e,
        };
        syscall_stop(t).map_err(late)?;
        syscall_stop(t).map_err(late)?;
        let result = t.regs()?.syscall_result();
        if (-4095..0).contains(&result) {
            let errno = Errno::from_raw(-result as i32);
            return Err(Error::Remote { what, pid, errno });
        }
        Ok(result as u64)
    }

    /// Whether it may make a call that prof can do without: no filter kills for it.
    pub(crate) fn may_ask(&self, number: u64, args: [u64; 6]) -> bool {
        self.pass.lets_ask(self.gadgets.syscall, number, args)
    }

    /// Makes a call that only asks, where no filter can kill for it; nothing is known if it fails.
    pub(crate) fn ask(&mut self, what: &'static str, number: u64, args: [u64; 6]) {
        if self.may_ask(number, args)
            && let Err(e) = self.call(what, number, args)
        {
            log::debug!("{e}");
        }
    }

    /// Puts the thread back to what it did, and lets go of it.
    ///
    /// # Errors
    /// If the thread dies; it is in order otherwise.
    pub fn finish(mut self) -> Result<()> {
        match self.thread.take() {
            Some(t) => self.put_back(t),
            None => Ok(()),
        }
    }

    /// The thread stands behind a system call, or where it was stopped first. It is made to stop once
    /// more in the kernel's signal path, where an interrupted call is restarted as after any stop; there
    /// the registers are its own again. (At the entry of a call they could be put back, too, but a
    /// seccomp filter then takes the skipped call for one of the thread's.)
    fn put_back(&self, mut t: Tracee) -> Result<()> {
        if !t.is_stopped() {
            t.interrupt();
            // Until the registers are back, the frame is what the thread would go on from.
            t.set_signal_mask(self.mask)?;
            t.set_regs(&self.before.restored_behind_call())?;
            t.resume(libc::PTRACE_CONT, 0)?;
            if !t.wait_stopped(Instant::now() + PATIENCE)? {
                return Err(Error::Gone(t.pid));
            }
        }
        // From here on the thread does without the frame.
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

/// Runs to the next entry or exit of a system call.
fn syscall_stop(t: &mut Tracee) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut signal = 0;
    loop {
        t.resume(libc::PTRACE_SYSCALL, signal)?;
        match wait_for_call(t, deadline)? {
            Some(Stop::Syscall) => return Ok(()),
            // All signals are blocked but those that can't be.
            Some(Stop::Signal(s)) => signal = s,
            Some(_) => signal = 0,
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
