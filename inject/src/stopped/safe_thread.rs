//! Chooses a moment and a thread for a call of a function of libc's.
//!
//! dlopen and dlclose take the lock of the dynamic linker first, and then those of the allocator. So the thread that makes
//! the call must be inside neither, as its stack shows, and no other thread may be inside the linker: one that is there
//! may wait, in a constructor or in a callback, for a lock of the program's that the chosen thread holds. All threads stand
//! still while this is looked at, and until the call has ended, or takes so long that it has to wait for a thread that was
//! stopped inside the allocator. By then the call has the linker's lock, and nobody waits for anything in the allocator.
//!
//! A thread of prof's own, made by a remote clone, would not need such a moment to be safe, but it can't have a harmless
//! one: with libc's locks it needs libc's thread descriptor, whose layout is libc's secret. glibc leaves out locks as long
//! as a process has one thread only, which the new one would not know; and its first `malloc` would make an arena that
//! stays when the thread has gone.

use crate::linker_calls::{self, Deed};
use crate::process::c_library::CLibrary;
use crate::process::elf;
use crate::process::link_map;
use crate::sandbox::Pass;
use crate::stopped::candidates::{Fitness, candidates};
use crate::stopped::gadgets::Gadgets;
use crate::stopped::modules::Modules;
use crate::stopped::ptrace::ptrace;
use crate::stopped::remote::{Caller, layout};
use crate::stopped::threads::{StopTimes, Stopped, stop_all};
use crate::stopped::tracee::Tracee;
use crate::stopped::walk::Walker;
use crate::{Error, RemoteMemory, Result};
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::UserRegs;
use prof_os::maps::{self, Map};
use prof_os::status::Status;
use prof_os::{Pid, task};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Part of the time in which only the first thread may make the call: another may not have allocated yet, and its first
/// allocation makes an arena that stays.
const FIRST_ONLY: f64 = 0.5;

/// Longest pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// The reason why a moment was not the right one.
type Reason = String;

/// Arguments of a search for a moment.
pub(crate) struct Search<'a> {
    pub pid: Pid,
    pub mem: &'a RemoteMemory,
    pub gadgets: Gadgets,
    pub timeout: Duration,
    /// Work of the linker for which the call is made. The seccomp filters of the calling thread must permit it.
    pub deed: Deed,
    /// Functions of the target's libc by which stacks are judged: [`names`](crate::stopped::modules::names).
    pub library: &'a CLibrary,
}

impl Search<'_> {
    /// Waits, by short stops of all threads, for a moment in which a thread may make the call, and calls `f` in it, with that
    /// thread and a function that lets the other threads go. Returns `Ok(Err(reason))` if there is no such moment in time.
    ///
    /// # Errors
    /// If `f` fails, or the threads can't be stopped.
    pub(crate) fn run<T>(
        &self,
        stops: &mut StopTimes,
        f: impl FnOnce(&mut Caller<'_>, &mut dyn FnMut()) -> Result<T>,
    ) -> Result<std::result::Result<T, Reason>> {
        layout();
        let began = Instant::now();
        let (mut f, mut pause) = (Some(f), Duration::from_millis(1));
        loop {
            let maps = maps::of(self.pid)?;
            let all = elf::modules(self.mem, &maps);
            let modules = match Modules::of(self.mem, &all, self.library) {
                Ok(modules) => modules,
                Err(why) => return Ok(Err(why)),
            };
            let mut walker = Walker::new(self.mem, all, maps.clone());
            walker.read_tables();
            // As long as no module comes or goes, only the stops are repeated.
            let known = crate::process::code::code(&maps);
            loop {
                let why = match self.once(&mut walker, &modules, &maps, stops, began, &mut f)? {
                    Ok(done) => return Ok(Ok(done)),
                    Err(why) => why,
                };
                if began.elapsed() >= self.timeout {
                    return Ok(Err(why));
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSE);
                if crate::process::code::code(&maps::of(self.pid)?) != known {
                    break;
                }
            }
        }
    }

    /// Stops all threads once, and calls `f` if they permit it.
    fn once<F, T>(
        &self,
        walker: &mut Walker<'_>,
        modules: &Modules,
        maps: &[Map],
        stops: &mut StopTimes,
        began: Instant,
        f: &mut Option<F>,
    ) -> Result<std::result::Result<T, Reason>>
    where
        F: FnOnce(&mut Caller<'_>, &mut dyn FnMut()) -> Result<T>,
    {
        let pid = self.pid;
        let order = candidates(pid)?;
        let waits_in: HashMap<Pid, String> =
            order.iter().map(|(_, tid)| (*tid, task::waits_in(pid, *tid))).collect();
        let filtered = filtered(pid, &order);
        let left = self.timeout.saturating_sub(began.elapsed());
        let since = Instant::now();
        let mut stopped = match stop_all(pid, left.max(Duration::from_millis(100))) {
            Err(e @ Error::NotStopping { .. }) => return Ok(Err(e.to_string())),
            stopped => stopped?,
        };
        let fit = match self.judge(walker, modules, &mut stopped, began) {
            Ok(Ok(fit)) => fit,
            Ok(Err(why)) => {
                stopped.resume(stops);
                return Ok(Err(why));
            }
            Err(e) => return Err(e),
        };
        let mut why = String::new();
        let mut chosen: Vec<Pid> =
            order.iter().map(|o| o.1).filter(|tid| fit.contains(tid)).collect();
        chosen.sort_by_key(|tid| *tid != pid);
        for tid in chosen {
            let at = stopped.threads.iter().position(|t| t.tid == tid && t.is_stopped());
            let Some(at) = at else { continue };
            let t = stopped.threads.swap_remove(at);
            let dispatch = t.dispatch();
            if dispatch.is_on() {
                why = format!("thread {tid} catches its system calls");
                stopped.threads.push(t);
                continue;
            }
            let wait = waits_in.get(&tid).map_or("", String::as_str);
            let pass = match self.pass(&t, filtered.get(&tid)) {
                Ok(pass) => pass,
                Err(reason) => {
                    why = reason;
                    stopped.threads.push(t);
                    continue;
                }
            };
            match Caller::new(t, self.mem, maps, self.gadgets, wait, pass) {
                Ok(mut c) => {
                    let mut others = Some(stopped);
                    let mut times = StopTimes::default();
                    let mut let_go = || {
                        if let Some(others) = others.take() {
                            others.resume(&mut times);
                        }
                    };
                    let r = f.take().map_or(Err(Error::NoThread(pid)), |f| f(&mut c, &mut let_go));
                    let end = c.finish();
                    let_go();
                    // The thread that makes the call does nothing else meanwhile.
                    times.lasts(since.elapsed());
                    stops.join(times);
                    return r.and_then(|v| end.map(|()| Ok(v)));
                }
                Err(e) => why = e.to_string(),
            }
        }
        stopped.resume(stops);
        Ok(Err(why))
    }

    /// Returns the evidence that a stopped thread's filters let the call pass; otherwise the reason. `filtered` is its status
    /// if it had filters before it was stopped.
    fn pass(&self, t: &Tracee, filtered: Option<&Status>) -> std::result::Result<Pass, Reason> {
        let now = Status::of_thread(t.pid, t.tid).ok().and_then(|s| s.number("Seccomp"));
        if now.is_some_and(|n| n != 0) && filtered.is_none() {
            return Err(format!("thread {} has restricted its system calls", t.tid));
        }
        let pass = Pass::of(t, filtered).map_err(|e| e.to_string())?;
        linker_calls::check(&pass, self.deed, self.gadgets.syscall)?;
        Ok(pass)
    }

    /// Returns the threads that may make the call; the reason if no thread may make it now.
    fn judge(
        &self,
        walker: &mut Walker<'_>,
        modules: &Modules,
        stopped: &mut Stopped,
        began: Instant,
    ) -> Result<std::result::Result<Vec<Pid>, Reason>> {
        let (mut fit, mut why) = (Vec::new(), String::new());
        let first = stopped.threads.iter().any(|t| t.tid == self.pid && t.is_stopped());
        let only = stopped.threads.len() == 1;
        for t in &mut stopped.threads {
            let (pid, tid) = (t.pid, t.tid);
            let regs = t.regs()?;
            // Threads that the kernel itself has in the process (io_uring's) have no stack.
            if regs.sp() == 0 {
                continue;
            }
            let (frames, is_whole) = walker.frames(&regs, modules.begins());
            // The linker's own start has no call frame information.
            if only
                && modules.is_at_start(&frames)
                && link_map::has_linked(self.mem, walker.modules(), modules.libc())
            {
                return Ok(Ok(vec![tid]));
            }
            // musl's threads begin in code that nothing tells from other code.
            let linker = modules.linker_in_musl().filter(|_| tid != self.pid);
            if let Some(linker) = linker.filter(|_| !is_whole)
                && !walker.may_lead_through(&regs, linker)
            {
                continue;
            }
            if !is_whole {
                return Ok(Err(format!("the stack of thread {tid} can't be followed to its end")));
            }
            if let Some(place) = modules.inside_linker(&frames) {
                return Ok(Err(format!("thread {tid} was {place} at the last look")));
            }
            if pid != self.pid {
                continue;
            }
            let at = || frames.first().map_or("", |f| walker.modules()[f.module].file_name());
            match modules.inside(&frames, modules.waits_in_musl(&regs)) {
                Some(place) => {
                    why = format!("thread {tid} was {place} at the last look ({})", at());
                }
                None if regs.is_in_call() && loses_vectors(t, modules.is_libcs(&frames)) => {
                    why = format!("thread {tid} may keep vectors across its system call");
                }
                // A thread in the kernel is in no restartable sequence, as these may not make system calls.
                None if regs.is_in_call() => fit.push(tid),
                None if walker.is_caller_uncertain() => {
                    why = format!("thread {tid} was in code with coarse tables at the last look");
                }
                None if has_no_sequence(t, self.mem) => fit.push(tid),
                None => {
                    why = format!("thread {tid} was in a restartable sequence at the last look")
                }
            }
        }
        let late = began.elapsed() >= self.timeout.mul_f64(FIRST_ONLY);
        if first && !late {
            fit.retain(|tid| *tid == self.pid);
        }
        if fit.is_empty() && why.is_empty() && modules.linker_in_musl().is_some() {
            why =
                "only the first thread of a program with musl may make the call, and it has ended"
                    .into();
        }
        Ok(if fit.is_empty() { Err(why) } else { Ok(fit) })
    }
}

/// Returns whether a thread in a system call may need vector registers that a function overwrites and that prof can't restore.
/// Compilers keep none of them across a call of libc's, `by_libc`, but they may across an instruction of the program's own.
fn loses_vectors(t: &mut Tracee, by_libc: bool) -> bool {
    UserRegs::CALLS_KEEP_VECTORS && !by_libc && t.has_volatile_state()
}

/// Returns the status of each thread that has a filter, after the trials that the filters may require.
fn filtered(pid: Pid, order: &[(Fitness, Pid)]) -> HashMap<Pid, Status> {
    let with_filter = |(_, tid): &(Fitness, Pid)| {
        let status = Status::of_thread(pid, *tid).ok()?;
        (status.number("Seccomp") == Some(2)).then_some((*tid, status))
    };
    let all: HashMap<Pid, Status> = order.iter().filter_map(with_filter).collect();
    all.values().for_each(|status| linker_calls::look_ahead(pid, status));
    all
}

/// `PTRACE_GET_RSEQ_CONFIGURATION` (Linux 5.13).
const GET_RSEQ: libc::c_uint = 0x420f;

/// `struct ptrace_rseq_configuration`.
#[repr(C)]
#[derive(Default)]
struct Rseq {
    at: u64,
    len: u32,
    signature: u32,
    flags: u32,
    pad: u32,
}

/// Returns whether a stopped thread is certainly in no restartable sequence (rseq(2)). The kernel would not abort it if the
/// thread went elsewhere and came back.
fn has_no_sequence(t: &Tracee, mem: &RemoteMemory) -> bool {
    /// Offset of `rseq_cs` in `struct rseq`.
    const CURRENT: u64 = 8;
    let mut rseq = Rseq::default();
    if ptrace(GET_RSEQ, t.tid, size_of::<Rseq>(), &raw mut rseq as usize).is_err() {
        return false;
    }
    let mut current = [0; 8];
    let at = crate::RemoteAddr(rseq.at).plus(CURRENT);
    rseq.at == 0 || mem.read(at, &mut current).is_ok_and(|()| current == [0; 8])
}
