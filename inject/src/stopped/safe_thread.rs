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

use crate::hooked::functions::LOADER;
use crate::linker_calls::{self, Deed};
use crate::process::code::linker;
use crate::process::elf::{self, Module};
use crate::process::link_map;
use crate::sandbox::Pass;
use crate::stopped::candidates::{Fitness, candidates};
use crate::stopped::gadgets::Gadgets;
use crate::stopped::ptrace::ptrace;
use crate::stopped::remote::{Caller, layout};
use crate::stopped::starts::Starts;
use crate::stopped::threads::{StopTimes, Stopped, stop_all};
use crate::stopped::tracee::Tracee;
use crate::stopped::walk::{Frame, Walker};
use crate::{Error, RemoteMemory, Result};
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::jump::code_at;
use prof_os::maps::{self, Map};
use prof_os::status::Status;
use prof_os::{Pid, task};
use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Functions of an allocator that libc and the dynamic linker call.
pub(crate) const ALLOCATOR: [&str; 4] = ["malloc", "calloc", "realloc", "free"];

/// Functions of libc in which threads wait, or which call functions of the program, without holding a lock that dlopen
/// takes. Frames of libc below one of these are not examined. None of these functions allocates while it waits.
const HARMLESS: [&str; 78] = [
    "accept",
    "accept4",
    "bsearch",
    "clock_nanosleep",
    "cnd_timedwait",
    "cnd_wait",
    "connect",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "eventfd_read",
    "fdatasync",
    "flock",
    "fsync",
    "futimens",
    "io_getevents",
    "ioctl",
    "lockf",
    "mq_receive",
    "mq_timedreceive",
    "mq_timedsend",
    "msgrcv",
    "msgsnd",
    "mtx_lock",
    "mtx_timedlock",
    "nanosleep",
    "pause",
    "poll",
    "ppoll",
    "pread",
    "pread64",
    "preadv",
    "pselect",
    "pthread_barrier_wait",
    "pthread_clockjoin_np",
    "pthread_cond_clockwait",
    "pthread_cond_timedwait",
    "pthread_cond_wait",
    "pthread_join",
    "pthread_mutex_clocklock",
    "pthread_mutex_lock",
    "pthread_mutex_timedlock",
    "pthread_rwlock_rdlock",
    "pthread_rwlock_timedrdlock",
    "pthread_rwlock_timedwrlock",
    "pthread_rwlock_wrlock",
    "pthread_timedjoin_np",
    "pwrite",
    "pwrite64",
    "pwritev",
    "qsort",
    "qsort_r",
    "read",
    "readv",
    "recv",
    "recvfrom",
    "recvmmsg",
    "recvmsg",
    "sched_yield",
    "select",
    "sem_clockwait",
    "sem_timedwait",
    "sem_wait",
    "semop",
    "semtimedop",
    "send",
    "sendmsg",
    "sendto",
    "sigsuspend",
    "sigtimedwait",
    "sigwait",
    "sigwaitinfo",
    "sleep",
    "syscall",
    "usleep",
    "wait4",
    "waitpid",
    "write",
];

/// Functions of libc's that are system calls in which threads wait without an allocator's lock, whatever function of libc's
/// has called them: one of stdio that waits for input, or `system` for a command.
const WAITING: [&str; 14] = [
    "clock_nanosleep",
    "epoll_wait",
    "nanosleep",
    "pause",
    "poll",
    "ppoll",
    "pselect",
    "read",
    "readv",
    "recv",
    "recvfrom",
    "recvmsg",
    "select",
    "wait4",
];

/// Part of the time in which only the first thread may make the call: another may not have allocated yet, and its first
/// allocation makes an arena that stays.
const FIRST_ONLY: f64 = 0.5;

/// Longest pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// The modules of a process, as far as stacks are judged by them.
pub(crate) struct Modules {
    libc: usize,
    linker: usize,
    /// Modules that define functions of an allocator, besides libc.
    allocators: Vec<usize>,
    /// Code of [`HARMLESS`].
    harmless: Vec<Range<u64>>,
    /// Code of [`WAITING`].
    waiting: Vec<Range<u64>>,
    /// Code of libc's function that calls the program while it holds the linker's lock.
    callers: Vec<Range<u64>>,
    /// Code of libc's function that calls `main`.
    starts: Vec<Range<u64>>,
    /// Address of the linker's function that it calls when it has linked a program, before any code of the program's.
    linked: Option<u64>,
    begins: Starts,
}

fn within(code: &[Range<u64>], f: &Frame) -> bool {
    code.iter().any(|r| r.contains(&f.at.0))
}

impl Modules {
    /// Finds libc, the dynamic linker and the allocators.
    ///
    /// # Errors
    /// The reason why stacks can't be judged.
    pub(crate) fn of(
        pid: Pid,
        mem: &RemoteMemory,
        maps: &[Map],
        all: &[Module],
    ) -> std::result::Result<Self, String> {
        let is_glibc = |m: &Module| m.exports(mem, "gnu_get_libc_version");
        let Some(libc) = all.iter().position(is_glibc) else {
            let other = all.iter().find(|m| m.exports(mem, "dlopen"));
            return Err(other.map_or_else(
                || "it has no dynamic linker (a static program?)".into(),
                |m| {
                    let path = m.path.display().to_string();
                    let musl = if path.contains("musl") { ", and musl's unloads nothing" } else { "" };
                    format!("its libc, {path}, is not glibc, the only one whose dynamic linker prof knows{musl}")
                },
            ));
        };
        let code = linker(pid, maps).map(|m| m.start);
        let of_linker = |m: &Module| code.is_some_and(|at| m.start <= at && at < m.end);
        let Some(linker) = all.iter().position(of_linker) else {
            return Err("prof can't find its dynamic linker".into());
        };
        let allocates = |k: &usize| ALLOCATOR.iter().any(|f| all[*k].exports(mem, f));
        let allocators: Vec<_> =
            (0..all.len()).filter(|k| ![libc, linker].contains(k)).filter(allocates).collect();
        if allocators.contains(&0) {
            return Err("its allocator is a part of the program itself, so that prof can't tell whether a thread is inside of it".into());
        }
        let code = |wanted: &dyn Fn(&str) -> bool| -> Vec<Range<u64>> {
            let found = all[libc].symbols(pid, mem, wanted);
            found.iter().map(|s| code_at(s.addr.0)..s.addr.0.saturating_add(s.size)).collect()
        };
        let harmless = code(&|name| HARMLESS.contains(&name));
        let waiting = code(&|name| WAITING.contains(&name));
        let callers = code(&|name| name == "dl_iterate_phdr");
        let starts = code(&|name| name == "__libc_start_main");
        let linked = all[linker].symbols(pid, mem, |name| name == LOADER);
        let linked = linked.first().map(|s| code_at(s.addr.0));
        let begins = Starts::of(pid, mem, all, &all[libc]);
        Ok(Self { libc, linker, allocators, harmless, waiting, callers, starts, linked, begins })
    }

    /// Returns the index of libc.
    pub(crate) fn libc(&self) -> usize {
        self.libc
    }

    /// Returns whether a thread with these frames has linked a program, and no code of that has run yet: the linker is
    /// where `prof run` holds a program, and nobody but the kernel has called it. It holds no lock then, and the next that it
    /// does is to call the constructors, which may call `dlopen` themselves.
    fn is_at_start(&self, frames: &[Frame]) -> bool {
        frames.first().is_some_and(|f| Some(f.at.0) == self.linked)
            && frames.iter().all(|f| f.module == self.linker && !f.is_signal)
    }

    /// Returns what a thread with these frames is inside of that forbids a call by any thread, if anything.
    fn inside_linker(&self, frames: &[Frame]) -> Option<&'static str> {
        let is = |f: &Frame| f.module == self.linker || within(&self.callers, f);
        frames.iter().any(is).then_some("in the dynamic linker")
    }

    /// Returns what a thread with these frames is inside of that forbids a call by this thread, if anything.
    fn inside(&self, frames: &[Frame]) -> Option<&'static str> {
        let first_run = frames.iter().take_while(|f| f.module == self.libc && !f.is_signal).count();
        // On ARM, they call a function that makes the system call.
        let waits = frames[..first_run.min(2)].iter().any(|f| within(&self.waiting, f));
        // Frames of libc's that follow one another are judged by the function that other code has called.
        for (k, f) in frames.iter().enumerate() {
            if f.is_signal {
                return Some("in a signal handler");
            } else if self.allocators.contains(&f.module) {
                return Some("in the allocator");
            } else if f.module != self.libc {
                continue;
            }
            match frames.get(k + 1) {
                Some(next) if next.module == self.libc && !next.is_signal => {}
                // The thread's start: libc has called the program.
                next if (next.is_none() || within(&self.starts, f))
                    && frames[..k].iter().any(|f| f.module != self.libc) => {}
                _ if within(&self.harmless, f) => {}
                _ if waits && k < first_run => {}
                _ => return Some("in libc"),
            }
        }
        None
    }
}

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
            let modules = match Modules::of(self.pid, self.mem, &maps, &all) {
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
            let (frames, is_whole) = walker.frames(&regs);
            // The linker's own start has no call frame information.
            if only
                && modules.is_at_start(&frames)
                && link_map::has_linked(self.mem, walker.modules(), modules.libc)
            {
                return Ok(Ok(vec![tid]));
            }
            if !is_whole || !modules.begins.has(frames.last()) {
                return Ok(Err(format!("the stack of thread {tid} can't be followed to its end")));
            }
            if let Some(place) = modules.inside_linker(&frames) {
                return Ok(Err(format!("thread {tid} was {place} at the last look")));
            }
            if pid != self.pid {
                continue;
            }
            let at = || frames.first().map_or("", |f| walker.modules()[f.module].file_name());
            match modules.inside(&frames) {
                Some(place) => {
                    why = format!("thread {tid} was {place} at the last look ({})", at());
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
        Ok(if fit.is_empty() { Err(why) } else { Ok(fit) })
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RemoteAddr;

    /// Modules of the frames below.
    const PROGRAM: usize = 0;
    const LIBC: usize = 1;
    const LINKER: usize = 2;
    const OTHER_ALLOCATOR: usize = 3;

    fn one(start: u64) -> Vec<Range<u64>> {
        std::iter::once(start..start + 16).collect()
    }

    fn modules() -> Modules {
        Modules {
            libc: LIBC,
            linker: LINKER,
            allocators: vec![OTHER_ALLOCATOR],
            harmless: one(0x100),
            waiting: one(0x400),
            callers: one(0x200),
            starts: one(0x300),
            linked: Some(0x500),
            begins: Starts::unknown(),
        }
    }

    fn frame(module: usize, at: u64) -> Frame {
        Frame { at: RemoteAddr(at), module, is_signal: false }
    }

    /// The frames in which `main` has called something: those of libc's start, and the program's own.
    const MAIN: [(usize, u64); 4] = [(PROGRAM, 1), (LIBC, 0x900), (LIBC, 0x305), (PROGRAM, 2)];

    fn judged(inner: &[(usize, u64)]) -> (Option<&'static str>, Option<&'static str>) {
        let frames: Vec<_> = inner.iter().chain(&MAIN).map(|(m, at)| frame(*m, *at)).collect();
        (modules().inside(&frames), modules().inside_linker(&frames))
    }

    #[test]
    fn what_a_thread_is_inside_of() {
        assert_eq!(judged(&[]), (None, None));
        assert_eq!(judged(&[(LIBC, 0x105)]), (None, None), "a function that only waits");
        assert_eq!(judged(&[(LIBC, 0x700), (LIBC, 0x105)]), (None, None), "a part of it");
        let in_libc = (Some("in libc"), None);
        assert_eq!(judged(&[(LIBC, 0x700)]), in_libc);
        assert_eq!(judged(&[(LIBC, 0x105), (LIBC, 0x700)]), in_libc, "called by another");
        assert_eq!(judged(&[(PROGRAM, 3), (LIBC, 0x700)]), in_libc, "called back from another");
        assert_eq!(judged(&[(LIBC, 0x405), (LIBC, 0x700)]), (None, None), "it waits for input");
        let inner = [(LIBC, 0x405), (PROGRAM, 3), (LIBC, 0x700)];
        assert_eq!(judged(&inner), in_libc, "it waits in a function that another has called");
        assert_eq!(judged(&[(PROGRAM, 3), (LIBC, 0x105)]), (None, None), "called back");
        assert_eq!(judged(&[(OTHER_ALLOCATOR, 3)]), (Some("in the allocator"), None));
        assert_eq!(judged(&[(PROGRAM, 3), (LINKER, 3)]).1, Some("in the dynamic linker"));
        assert_eq!(judged(&[(PROGRAM, 3), (LIBC, 0x205)]).1, Some("in the dynamic linker"));
    }

    #[test]
    fn the_start_of_a_program_is_where_the_linker_alone_has_run() {
        let at_start = |all: &[(usize, u64)]| {
            let frames: Vec<_> = all.iter().map(|(m, at)| frame(*m, *at)).collect();
            modules().is_at_start(&frames)
        };
        assert!(at_start(&[(LINKER, 0x500), (LINKER, 0x900)]));
        assert!(!at_start(&[(LINKER, 0x501), (LINKER, 0x900)]), "another place in it");
        assert!(!at_start(&[(LINKER, 0x500), (LIBC, 0x900), (PROGRAM, 1)]), "by dlopen");
        assert!(!at_start(&[(LINKER, 0x500), (LINKER, 0x900), (PROGRAM, 1)]), "in a constructor");
        assert!(!at_start(&[]));
    }

    #[test]
    fn a_thread_that_starts_or_ends_is_in_libc() {
        let frames =
            |all: &[(usize, u64)]| -> Vec<_> { all.iter().map(|(m, at)| frame(*m, *at)).collect() };
        let inside = |all| modules().inside(&frames(all));
        assert_eq!(inside(&[(LIBC, 0x700), (LIBC, 0x701)]), Some("in libc"));
        assert_eq!(inside(&[(LIBC, 0x700), (LIBC, 0x305), (PROGRAM, 2)]), Some("in libc"));
        assert_eq!(inside(&[(PROGRAM, 1), (LIBC, 0x700), (LIBC, 0x701)]), None);
    }

    #[test]
    fn a_signal_handler_is_no_place_for_it() {
        let restorer = Frame { is_signal: true, ..frame(LIBC, 0x800) };
        let frames = [frame(PROGRAM, 7), restorer, frame(PROGRAM, 1)];
        assert_eq!(modules().inside(&frames), Some("in a signal handler"));
        let frames = [frame(PROGRAM, 7), restorer, frame(LINKER, 1), frame(PROGRAM, 1)];
        assert_eq!(modules().inside_linker(&frames), Some("in the dynamic linker"));
    }
}
