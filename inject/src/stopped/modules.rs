//! Judges by a thread's stack whether it may call a function of libc's, or forbids such a call to all threads.

use crate::RemoteMemory;
use crate::process::c_library::CLibrary;
use crate::process::elf::Module;
use crate::stopped::starts::{MAKERS, Starts};
use crate::stopped::walk::Frame;
use libc::c_long;
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::UserRegs;
use std::collections::HashSet;
use std::ops::Range;

/// Functions of an allocator that libc and the dynamic linker call.
const ALLOCATOR: [&str; 4] = ["malloc", "calloc", "realloc", "free"];

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

/// The system calls of [`WAITING`], by their numbers.
const WAITS: &[c_long] = &[
    #[cfg(not(target_arch = "aarch64"))]
    libc::SYS_poll,
    #[cfg(not(target_arch = "aarch64"))]
    libc::SYS_epoll_wait,
    #[cfg(not(target_arch = "aarch64"))]
    libc::SYS_pause,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_select,
    libc::SYS_clock_nanosleep,
    libc::SYS_epoll_pwait,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_wait4,
];

/// libc's function that calls the program while it holds the linker's lock.
const CALLERS: [&str; 1] = ["dl_iterate_phdr"];
/// Functions of musl's that are its dynamic linker. In glibc they are in a module of their own.
const LINKER: [&str; 4] = ["dladdr", "dlinfo", "dlopen", "dlsym"];
/// libc's function that calls `main`.
const STARTS: [&str; 1] = ["__libc_start_main"];

/// Returns the names of all functions of libc's by which stacks are judged.
pub(crate) fn names() -> HashSet<&'static str> {
    let all: [&[&str]; 6] = [&HARMLESS, &WAITING, &CALLERS, &LINKER, &STARTS, &MAKERS];
    all.concat().into_iter().collect()
}

/// The modules of a process, as far as stacks are judged by them.
pub(crate) struct Modules {
    libc: usize,
    /// Index of the dynamic linker; of musl, which is one file, that of libc.
    linker: usize,
    /// Modules that define functions of an allocator, besides libc.
    allocators: Vec<usize>,
    /// Code of [`HARMLESS`].
    harmless: Vec<Range<u64>>,
    /// Code of [`WAITING`].
    waiting: Vec<Range<u64>>,
    /// Code of [`CALLERS`], and for musl of [`LINKER`].
    callers: Vec<Range<u64>>,
    /// Code of [`STARTS`].
    starts: Vec<Range<u64>>,
    /// Address of the linker's function that it calls when it has linked a program, before any code of the program's.
    linked: Option<u64>,
    begins: Starts,
}

fn within(code: &[Range<u64>], f: &Frame) -> bool {
    code.iter().any(|r| r.contains(&f.at.0))
}

impl Modules {
    /// Finds the allocators among the modules, and the places of libc's functions by which stacks are judged: those with
    /// these [`names`].
    ///
    /// # Errors
    /// The reason why stacks can't be judged.
    pub(crate) fn of(
        mem: &RemoteMemory,
        all: &[Module],
        library: &CLibrary,
    ) -> std::result::Result<Self, String> {
        let Some((libc, linker)) = library.among(all) else {
            return Err("its libc or its dynamic linker has gone".into());
        };
        let allocates = |k: &usize| all[*k].exports(mem, &ALLOCATOR);
        let allocators: Vec<_> =
            (0..all.len()).filter(|k| ![libc, linker].contains(k)).filter(allocates).collect();
        if allocators.contains(&0) {
            return Err("its allocator is a part of the program itself, so that prof can't tell whether a thread is inside of it".into());
        }
        let mut callers = library.code(&CALLERS);
        if library.is_musl() {
            callers.extend(library.code(&LINKER));
        }
        Ok(Self {
            libc,
            linker,
            allocators,
            harmless: library.code(&HARMLESS),
            waiting: library.code(&WAITING),
            callers,
            starts: library.code(&STARTS),
            linked: library.linked(),
            begins: Starts::of(mem, all, library),
        })
    }

    /// Returns the index of libc.
    pub(crate) fn libc(&self) -> usize {
        self.libc
    }

    /// Returns whether a thread with these frames runs libc's own code.
    pub(crate) fn is_libcs(&self, frames: &[Frame]) -> bool {
        frames.first().is_some_and(|f| f.module == self.libc && !f.is_signal)
    }

    /// Returns the code in which threads begin.
    pub(crate) fn begins(&self) -> &Starts {
        &self.begins
    }

    /// Returns whether a thread with these frames has linked a program, and no code of that has run yet: the linker is
    /// where `prof run` holds a program, and nobody but the kernel has called it. It holds no lock then, and the next that it
    /// does is to call the constructors, which may call `dlopen` themselves.
    pub(crate) fn is_at_start(&self, frames: &[Frame]) -> bool {
        let callers = frames.get(1..).unwrap_or_default();
        frames.first().is_some_and(|f| Some(f.at.0) == self.linked)
            && frames.iter().all(|f| f.module == self.linker && !f.is_signal)
            && !callers.iter().any(|f| within(&self.callers, f))
    }

    /// Returns what a thread with these frames is inside of that forbids a call by any thread, if anything.
    pub(crate) fn inside_linker(&self, frames: &[Frame]) -> Option<&'static str> {
        let is = |f: &Frame| {
            f.module == self.linker && self.linker != self.libc || within(&self.callers, f)
        };
        frames.iter().any(is).then_some("in the dynamic linker")
    }

    /// Returns the code that forbids a call by any thread while one is inside of it, if libc is musl.
    pub(crate) fn linker_in_musl(&self) -> Option<&[Range<u64>]> {
        (self.libc == self.linker).then_some(&self.callers)
    }

    /// Returns whether a thread waits in a system call that musl makes, without an allocator's lock. musl's functions make such
    /// calls by themselves, as that of stdio which waits for input.
    pub(crate) fn waits_in_musl(&self, regs: &UserRegs) -> bool {
        let number = regs.syscall_number().filter(|_| regs.is_in_call());
        self.libc == self.linker && number.is_some_and(|n| WAITS.contains(&(n as c_long)))
    }

    /// Returns what a thread with these frames is inside of that forbids a call by this thread, if anything. `waits` is what
    /// [`waits_in_musl`](Self::waits_in_musl) says of it.
    pub(crate) fn inside(&self, frames: &[Frame], waits: bool) -> Option<&'static str> {
        let first_run = frames.iter().take_while(|f| f.module == self.libc && !f.is_signal).count();
        // On ARM, they call a function that makes the system call.
        let waits = waits || frames[..first_run.min(2)].iter().any(|f| within(&self.waiting, f));
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
        (modules().inside(&frames, false), modules().inside_linker(&frames))
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
    fn the_linker_of_musl_is_a_part_of_libc() {
        let modules = Modules { linker: LIBC, ..modules() };
        let frames = |inner: &[(usize, u64)]| -> Vec<_> {
            inner.iter().chain(&MAIN).map(|(m, at)| frame(*m, *at)).collect()
        };
        let waits = frames(&[(LIBC, 0x700), (LIBC, 0x800)]);
        assert_eq!(modules.inside_linker(&waits), None);
        assert_eq!(modules.inside(&waits, true), None, "stdio waits for input");
        assert_eq!(modules.inside(&waits, false), Some("in libc"));
        let opens = frames(&[(LIBC, 0x700), (LIBC, 0x205)]);
        assert_eq!(modules.inside_linker(&opens), Some("in the dynamic linker"));
        let at_start = |all: &[(usize, u64)]| {
            let frames: Vec<_> = all.iter().map(|(m, at)| frame(*m, *at)).collect();
            modules.is_at_start(&frames)
        };
        assert!(at_start(&[(LIBC, 0x500), (LIBC, 0x900)]));
        assert!(!at_start(&[(LIBC, 0x500), (LIBC, 0x205)]), "by dlopen");
    }

    #[test]
    fn the_first_frame_says_whose_code_makes_a_call() {
        let is_libcs = |first: Frame| modules().is_libcs(&[first, frame(PROGRAM, 1)]);
        assert!(is_libcs(frame(LIBC, 0x405)) && !is_libcs(frame(PROGRAM, 3)));
        assert!(!is_libcs(Frame { is_signal: true, ..frame(LIBC, 0x800) }), "a handler returns");
        assert!(!modules().is_libcs(&[]));
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
        let inside = |all| modules().inside(&frames(all), false);
        assert_eq!(inside(&[(LIBC, 0x700), (LIBC, 0x701)]), Some("in libc"));
        assert_eq!(inside(&[(LIBC, 0x700), (LIBC, 0x305), (PROGRAM, 2)]), Some("in libc"));
        assert_eq!(inside(&[(PROGRAM, 1), (LIBC, 0x700), (LIBC, 0x701)]), None);
    }

    #[test]
    fn a_signal_handler_is_no_place_for_it() {
        let restorer = Frame { is_signal: true, ..frame(LIBC, 0x800) };
        let frames = [frame(PROGRAM, 7), restorer, frame(PROGRAM, 1)];
        assert_eq!(modules().inside(&frames, false), Some("in a signal handler"));
        let frames = [frame(PROGRAM, 7), restorer, frame(LINKER, 1), frame(PROGRAM, 1)];
        assert_eq!(modules().inside_linker(&frames), Some("in the dynamic linker"));
    }
}
