//! Turns recording on: installs the handler of signals, writes the patches and sets the flag.

use crate::hooked::plan::Planned;
use crate::installed::Installed;
use crate::process::code::code as mapped_code;
use crate::process::rings::has_parts;
use crate::stopped::candidates::with_caller;
use crate::stopped::memory::{WORD, words};
use crate::stopped::threads::{Stopped, stop_all};
use crate::{
    Error, Refusal, RemoteAddr, Result, clock, inherited, isolated, sandbox, shortage, signal,
};
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::jump::code_at;
use prof_arch::native::rule::is_interrupted_pc;
use prof_arch::native::syscall::{SIGACTION_LEN, SIGSET_LEN, nr, sigaction, sigaction_handler};
use prof_os::Pid;
use prof_os::maps::{self, Map};
use prof_trace::modules::doubt;
use prof_trace::protocol::note;
use prof_trace::records::NotHooked;
use prof_trace::shared::{Purpose, flags, state};
use std::collections::HashMap;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

/// Bytes of each thread's stack that are searched for words that lead into patched bytes.
///
/// Within the first number a bare word counts, beyond it only a signal frame. The second number is the most that is
/// searched. Of a stack whose mapping is unknown, only the first is.
const STACK_SEARCH: (usize, u64) = (16 << 10, 1 << 20);

impl Installed {
    /// Patches the functions and turns recording on.
    ///
    /// # Errors
    /// If the target can't be stopped, its memory can't be written, or one of its threads rules recording out.
    /// Dropping `self` then undoes the attach.
    pub fn activate(&mut self) -> Result<()> {
        isolated(|| {
            for purpose in Purpose::ALL {
                self.take_signal(purpose)?;
            }
            self.patch_all()
        })?;
        let c = self.shared.control();
        c.state.store(state::ATTACHED, Release);
        self.done = true;
        self.lock = None;
        if self.options.on {
            // A library may have been loaded or unloaded before the patch of the dynamic linker's function was in
            // force.
            if !maps::of(self.target.pid).is_ok_and(|maps| mapped_code(&maps) == self.code) {
                doubt(c);
            }
            note(c, true, || clock::now(c.clock.load(Relaxed)));
            self.mem.write(RemoteAddr(c.flag_addr.load(Relaxed)), &1u32.to_ne_bytes())?;
        }
        Ok(())
    }

    /// Returns the signal that is wanted for a purpose; 0: none.
    fn wanted(&self, purpose: Purpose) -> u32 {
        match purpose {
            Purpose::Toggle => self.options.signal,
            Purpose::Dump => self.options.dump_signal,
        }
    }

    /// Installs the handler of a signal, unless the target uses the signal itself.
    fn take_signal(&mut self, purpose: Purpose) -> Result<()> {
        let signal = self.wanted(purpose);
        if signal == 0 {
            return Ok(());
        }
        let pid = self.target.pid;
        shortage::check(pid)?;
        if let Some(does) = signal::in_use(pid, &self.mem, signal)? {
            self.not_taken(purpose, does);
            return Ok(());
        }
        let c = self.shared.control();
        let fields = c.taken(purpose);
        let header = self.image.header_at(self.hook);
        let flags = (libc::SA_RESTART | libc::SA_ONSTACK) as u64;
        let action = sigaction(header.handler.0 as u64, flags, header.restorer.0 as u64);
        let at = RemoteAddr(c.flag_addr.load(Relaxed)).plus(1024);
        let old = at.plus(SIGACTION_LEN.next_multiple_of(8) as u64);
        self.mem.write(at, &action)?;
        let (mem, gadgets, timeout) = (&self.mem, self.gadgets, self.options.timeout);
        // The control page names the signal before the handler is installed, so that a detach removes the handler
        // even if prof is killed in between. The old action is the default: the target neither catches nor ignores
        // the signal.
        c.handler.store(header.handler.0 as u64, Relaxed);
        fields.action.iter().for_each(|w| w.store(0, Relaxed));
        fields.action_len.store(SIGACTION_LEN as u32, Relaxed);
        fields.signal.store(signal, Release);
        let mut was = [0u8; size_of::<[u64; 8]>()];
        let taken = with_caller(pid, mem, gadgets, timeout, &mut self.stops, |c| {
            let (set, number) = (SIGSET_LEN as u64, u64::from(signal));
            c.call("rt_sigaction", nr::RT_SIGACTION, [number, at.0, old.0, set, 0, 0])?;
            mem.read(old, &mut was[..SIGACTION_LEN])?;
            let default = sigaction_handler(&was[..SIGACTION_LEN]) == libc::SIG_DFL as u64;
            if !default {
                // The target has installed an action since the check above: it gets that back at once.
                c.call("rt_sigaction", nr::RT_SIGACTION, [number, old.0, 0, set, 0, 0])?;
            }
            Ok(default)
        })?;
        if !taken {
            fields.signal.store(0, Relaxed);
            if Purpose::ALL.iter().all(|p| c.taken(*p).signal.load(Relaxed) == 0) {
                c.handler.store(0, Relaxed);
            }
            self.not_taken(purpose, "handles or ignores");
            return Ok(());
        }
        for (to, from) in fields.action.iter().zip(was.as_chunks::<8>().0) {
            to.store(u64::from_ne_bytes(*from), Relaxed);
        }
        Ok(())
    }

    /// Adds a note for the user: a signal is left to the target.
    fn not_taken(&mut self, purpose: Purpose, does: &str) {
        let (pid, name) = (self.target.pid, signal::signal_name(self.wanted(purpose) as i32));
        let but = match purpose {
            Purpose::Toggle => format!(
                "does not toggle recording; use `prof pause {pid}` and `prof resume {pid}`, or choose another with --signal"
            ),
            Purpose::Dump => format!(
                "writes no report; use `prof dump {pid}`, or choose another with --dump-signal"
            ),
        };
        self.notes.push(format!("the target {does} {name} itself, so that signal {but}"));
    }

    fn patch_all(&mut self) -> Result<()> {
        let deadline = Instant::now() + self.options.timeout;
        let c = self.shared.control();
        inherited::leave(
            &self.mem,
            RemoteAddr(c.ring_addr.load(Relaxed)),
            self.planned.len(),
            self.note,
        )?;
        loop {
            shortage::check(self.target.pid)?;
            let maps = maps::of(self.target.pid)?;
            let mut stopped = stop_all(self.target.pid, self.options.timeout)?;
            let c = self.shared.control();
            if stopped.threads.iter().any(|t| t.dispatch().is_on()) {
                c.flags.fetch_and(!flags::SYSCALLS, Relaxed);
            } else if c.flags.load(Relaxed) & flags::SYSCALLS == 0
                && sandbox::may_mask(&stopped.threads, self.hook.0)
            {
                let maps = sandbox::may_map(&stopped.threads, self.hook.0);
                c.flags.fetch_or(flags::MASKS | if maps { flags::MAPS } else { 0 }, Relaxed);
            }
            self.tell_apart(&mut stopped)?;
            let in_the_way = self.clear_the_way(&mut stopped, &maps)?;
            let result = if in_the_way.is_none() { self.write_patches() } else { Ok(()) };
            stopped.resume(&mut self.stops);
            result?;
            let Some((tid, function)) = in_the_way else { return Ok(()) };
            if Instant::now() >= deadline {
                return Err(Error::Nonsense {
                    pid: self.target.pid,
                    what: format!(
                        "thread {tid} was interrupted by a signal in the first instructions of {function}, which prof has to patch, and has not returned there; nothing was changed; try again when its signal handler has ended"
                    ),
                });
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Refuses a target in which two threads have one thread pointer. The hook finds a thread's state by the thread
    /// pointer, and no other thread may write to that state. An allocator of libc or of another library needs
    /// distinct thread pointers itself, so the check is made only for an allocator in the program, and for functions
    /// that the user has named.
    fn tell_apart(&self, stopped: &mut Stopped) -> Result<()> {
        let pid = self.target.pid;
        let own = |p: &Planned| p.found.kind.has_many_entry() || p.found.module == 0;
        if !self.planned.iter().any(own) {
            return Ok(());
        }
        let mut seen = HashMap::new();
        for t in stopped.threads.iter_mut().filter(|t| t.pid == pid) {
            let regs = t.regs()?;
            // Threads that the kernel itself has in the process (io_uring's) have no stack.
            if regs.sp() != 0
                && let Some(one) = seen.insert(regs.thread_pointer(), t.tid)
            {
                let comm = self.target.name.clone();
                return Err(Refusal::OneThreadPointer { pid, comm, one, other: t.tid }.into());
            }
        }
        Ok(())
    }

    /// Moves each thread whose pc is in bytes to be patched to the same instruction of the relocated copy. Returns
    /// the thread and the function because of which the patches can't be written now, if so: a signal handler will
    /// return into such bytes, or the copy lacks the instruction.
    fn clear_the_way(&self, stopped: &mut Stopped, maps: &[Map]) -> Result<Option<(Pid, String)>> {
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
                let Some(new) = new else { return Ok(Some((t.tid, self.patched_at(regs.pc())))) };
                let mut moved = regs;
                moved.set_pc(new);
                moves.push((k, moved));
            }
            let from = RemoteAddr(regs.sp() & !(WORD as u64 - 1));
            let stack = maps.iter().find(|m| m.holds(from));
            let len = stack.map_or(STACK_SEARCH.0 as u64, |m| m.end.0 - from.0);
            // Several stacks may be one mapping; libc's thread descriptor marks the end of this thread's own.
            let own = regs.thread_pointer().wrapping_sub(from.0);
            let len = if own == 0 { len } else { len.min(own) };
            let bytes = self.mem.read_some(from, len.min(STACK_SEARCH.1) as usize);
            let all: Vec<u64> = words(&bytes).collect();
            // `code_at` removes the bit by which a function pointer may name the instruction set: it does not lead
            // into the function. Far from the stack's top, a bare word may be left over from an earlier frame.
            let near = STACK_SEARCH.0 / WORD;
            let leads_in =
                |i: usize| hit(code_at(all[i])) && (i < near || is_interrupted_pc(&all[i..]));
            if let Some(i) = (0..all.len()).find(|i| leads_in(*i)) {
                return Ok(Some((t.tid, self.patched_at(code_at(all[i])))));
            }
        }
        for (k, regs) in moves {
            stopped.threads[k].set_regs(&regs)?;
        }
        Ok(None)
    }

    /// Returns the name of the function whose patch covers an address.
    fn patched_at(&self, addr: u64) -> String {
        let covers = |p: &&crate::hooked::plan::Planned| {
            let stub = p.stub.as_ref();
            stub.is_some_and(|s| addr.wrapping_sub(s.patch_addr) < s.patch.len() as u64)
        };
        let patched = self.planned.iter().find(covers);
        patched.map_or("an allocator function".into(), |p| p.found.name.clone())
    }

    fn write_patches(&mut self) -> Result<()> {
        for (index, p) in self.planned.iter().enumerate() {
            let (Some(stub), Some(f)) = (&p.stub, self.shared.function(index)) else { continue };
            let at = RemoteAddr(stub.patch_addr);
            let mut now = [0u8; 8];
            let len = stub.patch.len();
            let reason = match self.mem.read(at, &mut now[..len]) {
                Ok(()) if now[..len] == *p.replaced(stub) => None,
                Ok(()) => Some("its code has changed meanwhile (another tool?)"),
                Err(Error::Memory { .. }) => Some("its library has been unloaded meanwhile"),
                Err(e) => return Err(e),
            };
            if let Some(reason) = reason {
                self.not_hooked.push(NotHooked {
                    function: p.found.name.clone(),
                    module: self.modules[p.found.module].path.display().to_string(),
                    reason: reason.into(),
                });
                continue;
            }
            // The mark is set first: a detach compares the bytes anyway, so a mark without a patch does no harm.
            f.patched.store(1, Release);
            self.mem.write(at, &stub.patch)?;
        }
        Ok(())
    }

    /// Undoes the attach, whatever it has done so far. Has no effect after [`Self::activate`] has succeeded.
    pub fn undo(&mut self) {
        if !self.done {
            self.done = true;
            let pid = self.target.pid;
            match crate::detach::undo_locked(pid, self.options.timeout) {
                Ok(r) => r.left.iter().for_each(|l| {
                    log::warn!(
                        "the failed attach could not be undone completely; left in pid {pid}: {l}; `prof detach {pid}` tries again"
                    )
                }),
                // An exec has removed everything.
                Err(e) if !has_parts(pid) => log::info!("undo: {e}"),
                Err(e) => e.warn_by(
                    pid,
                    &format!(
                        "the failed attach could not be undone ({e}); remove what is left with `prof detach {pid}`"
                    ),
                ),
            }
        }
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        self.undo();
    }
}
