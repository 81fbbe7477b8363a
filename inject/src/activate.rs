//! Turning recording on: the toggle signal, the patches, the flag.

use crate::install::{Installed, with_caller};
use crate::memory::{WORD, words};
use crate::proc::{self, Status};
use crate::remote::Caller;
use crate::threads::{Stopped, stop_all};
use crate::{Error, RemoteAddr, RemoteMemory, Result, isolated, setup};
use nix::errno::Errno;
use prof_arch::native::jump::code_at;
use prof_arch::native::syscall::{SIGACTION_LEN, SIGSET_LEN, nr, sigaction, sigaction_handler};
use prof_trace::modules::doubt;
use prof_trace::records::NotHooked;
use prof_trace::shared::{Shared, flags, state};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

/// Bytes of each thread's stack that are searched for signal frames that return into patched bytes.
const STACK_SEARCH: usize = 16 << 10;

impl Installed {
    /// Patches the functions and turns recording on.
    ///
    /// # Errors
    /// If the target can't be stopped, or its memory not be written; everything is then taken back.
    pub fn activate(&mut self) -> Result<()> {
        isolated(|| {
            self.take_signal()?;
            self.patch_all()
        })?;
        let c = self.shared.control();
        c.state.store(state::ATTACHED, Release);
        self.done = true;
        self.lock = None;
        if self.options.on {
            // A library may have come or gone before the dynamic linker's function was hooked.
            if !proc::maps(self.target.pid).is_ok_and(|maps| proc::code(&maps) == self.code) {
                doubt(c);
            }
            note_toggle(&self.shared, 1);
            self.mem.write(RemoteAddr(c.flag_addr), &1u32.to_ne_bytes())?;
        }
        Ok(())
    }

    /// Installs the toggle handler, unless the target has one of its own.
    fn take_signal(&mut self) -> Result<()> {
        let signal = self.options.signal;
        if signal == 0 {
            return Ok(());
        }
        let pid = self.target.pid;
        let bit = 1u128 << (signal - 1);
        let status = Status::of(pid)?;
        if (status.signals("SigCgt") | status.signals("SigIgn")) & bit != 0 {
            self.notes.push(format!(
                "the target handles or ignores {} itself, so that signal does not toggle recording; use `prof pause {pid}` and `prof resume {pid}`",
                signal_name(signal as i32)
            ));
            return Ok(());
        }
        let c = self.shared.control();
        let header = self.image.header_at(RemoteAddr(c.hook_addr));
        let flags = (libc::SA_RESTART | libc::SA_ONSTACK) as u64;
        let action = sigaction(header.handler.0 as u64, flags, header.restorer.0 as u64);
        let at = RemoteAddr(c.flag_addr).plus(1024);
        let old = at.plus(SIGACTION_LEN.next_multiple_of(8) as u64);
        self.mem.write(at, &action)?;
        let (mem, gadgets, timeout) = (&self.mem, self.gadgets, self.options.timeout);
        // The control page knows the signal before the handler is there, so that whoever comes
        // after us takes it back. The old action is the default: neither caught nor ignored.
        // SAFETY: nothing else uses these fields before the patches are in.
        let m = unsafe { self.shared.control_mut() };
        m.signal = signal;
        m.old_action = [0; 8];
        m.old_action_len = SIGACTION_LEN as u32;
        with_caller(pid, mem, gadgets, timeout, &mut self.stops, |c| {
            let args = [u64::from(signal), at.0, old.0, SIGSET_LEN as u64, 0, 0];
            c.call("rt_sigaction", nr::RT_SIGACTION, args)
        })?;
        let mut was = [0u8; size_of::<[u64; 8]>()];
        self.mem.read(old, &mut was[..SIGACTION_LEN])?;
        for (to, from) in m.old_action.iter_mut().zip(was.as_chunks::<8>().0) {
            *to = u64::from_ne_bytes(*from);
        }
        Ok(())
    }

    fn patch_all(&mut self) -> Result<()> {
        let deadline = Instant::now() + self.options.timeout;
        loop {
            let mut stopped = stop_all(self.target.pid, self.options.timeout)?;
            if stopped.threads.iter().any(|t| t.dispatch().is_on()) {
                self.shared.control().flags.fetch_and(!flags::SYSCALLS, Relaxed);
            }
            let clear = self.clear_the_way(&mut stopped)?;
            let result = if clear { self.write_patches() } else { Ok(()) };
            stopped.resume(&mut self.stops);
            result?;
            if clear {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Error::Nonsense {
                    pid: self.target.pid,
                    what: "a thread was interrupted by a signal in the first instructions of an allocator function and stays there; nothing was changed, try again".into(),
                });
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Moves threads that stand in bytes to be patched to the relocated copy. `false`: a signal
    /// handler will return into such bytes.
    fn clear_the_way(&self, stopped: &mut Stopped) -> Result<bool> {
        let mut inside: Vec<(u64, u64)> = Vec::new();
        for p in &self.planned {
            if let Some(s) = &p.stub {
                inside.push((s.patch_addr + 1, s.patch_addr + s.patch.len() as u64));
            }
        }
        let low = inside.iter().map(|r| r.0).min().unwrap_or(0);
        let high = inside.iter().map(|r| r.1).max().unwrap_or(0);
        let hit = |a: u64| a >= low && a < high && inside.iter().any(|r| r.0 <= a && a < r.1);
        let mut moves = Vec::new();
        for (k, t) in stopped.threads.iter_mut().enumerate() {
            let regs = t.regs()?;
            if hit(regs.pc()) {
                let new = self.planned.iter().find_map(|p| {
                    let s = p.stub.as_ref()?;
                    let function = code_at(p.found.addr.0);
                    s.relocated.moved_pc(function, s.original_addr, regs.pc())
                });
                let Some(new) = new else { return Ok(false) };
                let mut moved = regs;
                moved.set_pc(new);
                moves.push((k, moved));
            }
            let from = RemoteAddr(regs.sp() & !(WORD as u64 - 1));
            // A pointer to a function is none to the inside of it, whatever it says of its state.
            if words(&self.mem.read_some(from, STACK_SEARCH)).any(|w| hit(code_at(w))) {
                return Ok(false);
            }
        }
        for (k, regs) in moves {
            stopped.threads[k].set_regs(&regs)?;
        }
        Ok(true)
    }

    fn write_patches(&mut self) -> Result<()> {
        for (index, p) in self.planned.iter().enumerate() {
            let (Some(stub), Some(f)) = (&p.stub, self.shared.function(index)) else { continue };
            let at = RemoteAddr(stub.patch_addr);
            let mut now = [0u8; 8];
            let len = stub.patch.len();
            self.mem.read(at, &mut now[..len])?;
            if now[..len] != f.old_bytes[..len] {
                self.not_hooked.push(NotHooked {
                    function: p.found.name.clone(),
                    module: self.modules[p.found.module].path.display().to_string(),
                    reason: "its code has changed meanwhile (another tool?)".into(),
                });
                continue;
            }
            // Marked first: whoever cleans up after us looks at the bytes themselves anyway.
            f.patched.store(1, Release);
            self.mem.write(at, &stub.patch)?;
        }
        Ok(())
    }

    /// Takes everything back, whatever state it is in.
    pub fn undo(&mut self) {
        if !self.done {
            self.done = true;
            let pid = self.target.pid;
            match crate::detach::undo_locked(pid, self.options.timeout) {
                Ok(r) => r.left.iter().for_each(|l| log::warn!("undoing: left in it: {l}")),
                Err(e) => e.warn(pid, &format!("`prof detach {pid}` removes what is left")),
            }
        }
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        self.undo();
    }
}

/// Notes that recording is switched.
pub(crate) fn note_toggle(shared: &Shared, on: u64) {
    let c = shared.control();
    let n = c.toggle_count.fetch_add(1, Relaxed);
    let t = &c.toggles[n as usize % c.toggles.len()];
    t.on.store(on, Relaxed);
    t.time.store(setup::now(c.clock), Release);
}

/// `SIGUSR1` and its like.
#[must_use]
pub fn signal_name(signal: i32) -> String {
    match nix::sys::signal::Signal::try_from(signal) {
        Ok(s) => s.as_str().into(),
        Err(_) => format!("SIGRTMIN+{}", signal - libc::SIGRTMIN()),
    }
}

/// What [`restore_signal`] puts back, and how it knows what is in force.
pub(crate) struct OldAction<'a> {
    pub signal: u32,
    /// The kernel's structure.
    pub old: &'a [u8],
    /// Where our handler is.
    pub ours: std::ops::Range<u64>,
    /// `Control::signal_ignored`, and where it is.
    pub ignored: (bool, RemoteAddr),
    /// Where the kernel may write what is in force.
    pub scratch: RemoteAddr,
}

/// Puts a signal's old disposition back; what is pending is thrown away first, as it was meant for
/// the handler.
///
/// Only if the handler in force is ours: a target that has installed its own since keeps it.
pub(crate) fn restore_signal(
    c: &mut Caller<'_>,
    mem: &RemoteMemory,
    action: &OldAction<'_>,
) -> Result<bool> {
    let OldAction { signal, old, ref ours, ignored, scratch } = *action;
    let at = c.put(&[0; SIGACTION_LEN])?;
    let set = SIGSET_LEN as u64;
    let mut ask = |at: RemoteAddr| {
        let args = [u64::from(signal), 0, at.0, set, 0, 0];
        c.call("rt_sigaction", nr::RT_SIGACTION, args).map(|_| at)
    };
    let at = match ask(at) {
        // Where prof's bytes stand in memory that can only be read.
        Err(Error::Remote { errno: Errno::EFAULT, .. }) => ask(scratch)?,
        other => other?,
    };
    let mut now = [0u8; SIGACTION_LEN];
    mem.read(at, &mut now)?;
    let now = sigaction_handler(&now);
    let half_way = ignored.0 && now == libc::SIG_IGN as u64;
    if !ours.contains(&now) && !half_way {
        // An earlier detach may have come this far.
        return Ok(old.len() == SIGACTION_LEN && sigaction_handler(old) == now);
    }
    mem.write(ignored.1, &1u32.to_ne_bytes())?;
    let ignore = sigaction(libc::SIG_IGN as u64, 0, 0);
    for action in [&ignore[..], old] {
        let at = c.put(action)?;
        let args = [u64::from(signal), at.0, 0, set, 0, 0];
        c.call("rt_sigaction", nr::RT_SIGACTION, args)?;
    }
    Ok(true)
}
