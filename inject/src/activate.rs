//! Turning recording on: the toggle signal, the patches, the flag.

use crate::install::{Installed, with_caller};
use crate::memory::{WORD, words};
use crate::plan::Planned;
use crate::proc::{self, Map};
use crate::threads::{Stopped, stop_all};
use crate::{
    Error, Refusal, RemoteAddr, Result, inherited, isolated, sandbox, setup, shortage, signal,
};
use prof_arch::native::jump::code_at;
use prof_arch::native::rule::is_interrupted_pc;
use prof_arch::native::syscall::{SIGACTION_LEN, SIGSET_LEN, nr, sigaction, sigaction_handler};
use prof_trace::modules::doubt;
use prof_trace::records::NotHooked;
use prof_trace::shared::{Shared, flags, state};
use std::collections::HashMap;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

/// Bytes of each thread's stack that are searched for anything that leads into patched bytes, and for signal
/// frames that return into them.
const STACK_SEARCH: (usize, u64) = (16 << 10, 1 << 20);

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
        shortage::check(pid)?;
        if let Some(does) = signal::in_use(pid, &self.mem, signal)? {
            self.not_taken(does);
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
        m.handler = header.handler.0 as u64;
        m.signal = signal;
        m.old_action = [0; 8];
        m.old_action_len = SIGACTION_LEN as u32;
        let mut was = [0u8; size_of::<[u64; 8]>()];
        let taken = with_caller(pid, mem, gadgets, timeout, &mut self.stops, |c| {
            let (set, number) = (SIGSET_LEN as u64, u64::from(signal));
            c.call("rt_sigaction", nr::RT_SIGACTION, [number, at.0, old.0, set, 0, 0])?;
            mem.read(old, &mut was[..SIGACTION_LEN])?;
            let default = sigaction_handler(&was[..SIGACTION_LEN]) == libc::SIG_DFL as u64;
            if !default {
                // Installed since it was looked for: it is the target's again before it runs on.
                c.call("rt_sigaction", nr::RT_SIGACTION, [number, old.0, 0, set, 0, 0])?;
            }
            Ok(default)
        })?;
        if !taken {
            (m.signal, m.handler) = (0, 0);
            self.not_taken("handles or ignores");
            return Ok(());
        }
        for (to, from) in m.old_action.iter_mut().zip(was.as_chunks::<8>().0) {
            *to = u64::from_ne_bytes(*from);
        }
        Ok(())
    }

    /// Notes that the toggle signal stays the target's.
    fn not_taken(&mut self, does: &str) {
        let (pid, name) = (self.target.pid, signal_name(self.options.signal as i32));
        self.notes.push(format!(
            "the target {does} {name} itself, so that signal does not toggle recording; use `prof pause {pid}` and `prof resume {pid}`, or choose another with --signal"
        ));
    }

    fn patch_all(&mut self) -> Result<()> {
        let deadline = Instant::now() + self.options.timeout;
        let c = self.shared.control();
        let note = RemoteAddr(c.hook_addr).plus(self.image.len() as u64);
        inherited::leave(&self.mem, RemoteAddr(c.ring_addr), self.planned.len(), note)?;
        loop {
            shortage::check(self.target.pid)?;
            let maps = proc::maps(self.target.pid)?;
            let mut stopped = stop_all(self.target.pid, self.options.timeout)?;
            let c = self.shared.control();
            if stopped.threads.iter().any(|t| t.dispatch().is_on()) {
                c.flags.fetch_and(!flags::SYSCALLS, Relaxed);
            } else if c.flags.load(Relaxed) & flags::SYSCALLS == 0
                && sandbox::may_mask(&stopped.threads, c.hook_addr)
            {
                let maps = sandbox::may_map(&stopped.threads, c.hook_addr);
                c.flags.fetch_or(flags::MASKS | if maps { flags::MAPS } else { 0 }, Relaxed);
            }
            self.tell_apart(&mut stopped)?;
            let clear = self.clear_the_way(&mut stopped, &maps)?;
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

    /// Each thread that may come to the hook must have a thread pointer of its own: what the hook keeps of a thread
    /// is written by nobody else. A libc's allocator, or another library's, needs that as well; a program's own may
    /// do without.
    fn tell_apart(&self, stopped: &mut Stopped) -> Result<()> {
        let pid = self.target.pid;
        let own = |p: &Planned| p.found.kind.has_many_entry() || p.found.module == 0;
        if !self.planned.iter().any(own) {
            return Ok(());
        }
        let mut seen = HashMap::new();
        for t in stopped.threads.iter_mut().filter(|t| t.pid == pid) {
            let regs = t.regs()?;
            // The kernel's own threads in the process (io_uring's) have no stack.
            if regs.sp() != 0
                && let Some(one) = seen.insert(regs.thread_pointer(), t.tid)
            {
                let comm = self.target.name.clone();
                return Err(Refusal::OneThreadPointer { pid, comm, one, other: t.tid }.into());
            }
        }
        Ok(())
    }

    /// Moves threads that stand in bytes to be patched to the relocated copy. `false`: a signal
    /// handler will return into such bytes.
    fn clear_the_way(&self, stopped: &mut Stopped, maps: &[Map]) -> Result<bool> {
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
            if regs.checks_alignment() {
                let (pid, comm) = (self.target.pid, self.target.name.clone());
                return Err(Refusal::ChecksAlignment { pid, comm, tid: t.tid }.into());
            }
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
            let stack = maps.iter().find(|m| m.holds(from));
            let len = stack.map_or(STACK_SEARCH.0 as u64, |m| m.end.0 - from.0);
            // A thread's descriptor stands at the end of its stack, where several stacks are one mapping.
            let own = regs.thread_pointer().wrapping_sub(from.0);
            let len = if own == 0 { len } else { len.min(own) };
            let bytes = self.mem.read_some(from, len.min(STACK_SEARCH.1) as usize);
            let all: Vec<u64> = words(&bytes).collect();
            // A pointer to a function is none to the inside of it, whatever it says of its state. Far from
            // the top a word alone may be what an earlier frame has left.
            let near = STACK_SEARCH.0 / WORD;
            let leads_in =
                |i: usize| hit(code_at(all[i])) && (i < near || is_interrupted_pc(&all[i..]));
            if (0..all.len()).any(leads_in) {
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
                Ok(r) => r.left.iter().for_each(|l| {
                    log::warn!(
                        "what this attach has begun is not all taken back; left in pid {pid}: {l}"
                    )
                }),
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
    t.time.store(setup::now(c.clock.load(Relaxed)), Release);
}

/// `SIGUSR1` and its like.
#[must_use]
pub fn signal_name(signal: i32) -> String {
    match nix::sys::signal::Signal::try_from(signal) {
        Ok(s) => s.as_str().into(),
        Err(_) => format!("SIGRTMIN+{}", signal - libc::SIGRTMIN()),
    }
}
