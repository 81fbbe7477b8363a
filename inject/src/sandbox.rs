//! What a target has put between itself and the kernel: seccomp filters, and the dispatch of its own
//! system calls to a handler of its own (`PR_SET_SYSCALL_USER_DISPATCH`, as Wine uses it). A call that
//! either does not expect may kill it, so none is made that is not known to pass.

use crate::elf::{Module, Symbol};
use crate::filter::{Fate, Filters};
use crate::preflight;
use crate::proc::{self, Status};
use crate::remote::Sigreturn;
use crate::search::{Found, is_libc};
use crate::tracee::Tracee;
use crate::{Error, Refusal, RemoteAddr, RemoteMemory, Result};
use nix::errno::Errno;
use prof_arch::native::jump::code_at;
use prof_arch::native::syscall::{self, nr};
use prof_trace::process::Sharers;
use prof_trace::shared::Kind;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// `PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG` (Linux 6.4).
pub(crate) const GET_DISPATCH: libc::c_uint = 0x4211;
const PR_SET_SYSCALL_USER_DISPATCH: u8 = 59;
/// Functions of libc that such a thing is asked for with, and those that make a child: newer libcs make all of
/// them by the first of these.
pub const FUNCTIONS: [&str; 6] = ["prctl", "syscall", FORKS[0], FORKS[1], FORKS[2], FORKS[3]];
/// The latter alone.
pub const FORKS: [&str; 4] = ["_Fork", "fork", "__libc_fork", "__fork"];
/// More threads are not looked at.
const MOST: usize = 4096;
/// A bit of `Control::flags` that no hook looks at: the user's word counts, for as many filters as stand
/// in the highest byte.
const TRUSTED: u32 = 1 << 15;
const TRUSTED_FILTERS: u32 = 24;
/// From a restorer's start to behind its system call; filters that ask where a call comes from ask for whole
/// libraries.
const RESTORER_LEN: u64 = 8;

/// How a thread's system calls are dispatched (`struct ptrace_sud_config`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dispatch {
    mode: u64,
    /// Address of a byte that says whether they are at the moment; 0: always.
    selector: u64,
    /// From here on they are not,
    offset: u64,
    /// for so many bytes.
    len: u64,
}

impl Dispatch {
    /// Whether they are dispatched at all.
    pub(crate) fn is_on(&self) -> bool {
        self.mode != 0
    }

    /// Whether a call in this code of the stopped thread would end in a signal.
    pub(crate) fn catches(&self, mem: &RemoteMemory, code: RemoteAddr) -> bool {
        let mut byte = [1];
        let mut allowed = || {
            self.selector != 0
                && mem.read(RemoteAddr(self.selector), &mut byte).is_ok()
                && byte == [0]
        };
        self.is_on() && code.0.wrapping_sub(self.offset) >= self.len && !allowed()
    }
}

/// Whether a thread that runs the process's code has a seccomp filter: one of its own, or of a process that
/// shares its memory.
pub(crate) fn is_filtered(pid: i32) -> bool {
    let filtered = |s: Status| s.number("Seccomp") == Some(2);
    let has_filter = |pid: i32| {
        let tids = proc::threads(pid).unwrap_or_default();
        tids.into_iter().take(MOST).any(|tid| Status::of_thread(pid, tid).is_ok_and(filtered))
    };
    has_filter(pid) || Sharers::of(pid).others().iter().copied().any(has_filter)
}

/// The functions of libc that are watched, so that the hook makes no system calls any more from the
/// moment on in which the target begins to restrict its own.
pub(crate) fn watched(
    pid: i32,
    mem: &RemoteMemory,
    index: usize,
    module: &Module,
    alone: bool,
) -> Vec<Found> {
    if !(alone || is_libc(module)) {
        return Vec::new();
    }
    let symbols = module.symbols(pid, mem, |n| FUNCTIONS.contains(&n));
    let named = |name: &str| symbols.iter().find(|s| !s.indirect && s.name == name);
    let asked = ["prctl", "syscall"].into_iter().filter_map(named).map(|s| watch(s, index));
    let forks = FORKS.into_iter().find_map(named).map(|s| Found::new(s, Kind::Fork, index));
    asked.chain(forks).collect()
}

fn watch(s: &Symbol, index: usize) -> Found {
    let is_prctl = s.name == "prctl";
    let number = if is_prctl { libc::PR_SET_SECCOMP as u64 } else { libc::SYS_seccomp as u64 };
    Found {
        // See `Kind::Sandbox`.
        nothrow: Some(RemoteAddr(number)),
        args: (if is_prctl { PR_SET_SYSCALL_USER_DISPATCH } else { 0 }, 0),
        ..Found::new(s, Kind::Sandbox, index)
    }
}

/// How it is known that a thread's filters let pass what prof has it do. A suspended filter is not enough:
/// the suspension ends with the prof that asked for it, and the call may still be on its way then.
#[derive(Debug)]
pub(crate) enum Pass {
    /// There are none.
    Unfiltered,
    /// They have been read, and are asked before each call.
    Read(Filters),
    /// They are prof's own too, and a trial in a process of prof's own has shown it.
    Tried,
    /// The user has said so.
    Word,
}

/// The most filters that the user's word is good for; without it, none.
static WORD: AtomicI64 = AtomicI64::new(-1);

/// Takes the user's word that filters let prof's calls pass: those of threads with at most so many.
pub fn take_word(filters: Option<u32>) {
    WORD.fetch_max(filters.map_or(i64::MAX, i64::from), Relaxed);
}

/// The user's word as it stands in `Control::flags`, for later profs: how many filters the
/// process has now.
pub(crate) fn word_to_keep(pid: i32) -> u32 {
    if WORD.load(Relaxed) < 0 {
        return 0;
    }
    let tids = proc::threads(pid).unwrap_or_default();
    let count = |tid: i32| Some(filters(&Status::of_thread(pid, tid).ok()?).unwrap_or(0));
    let most = tids.into_iter().take(MOST).filter_map(count).max().unwrap_or(0);
    TRUSTED | (most.min(255) << TRUSTED_FILTERS)
}

/// The same read again.
pub(crate) fn kept_word(bits: u32) {
    if bits & TRUSTED != 0 {
        take_word(Some(bits >> TRUSTED_FILTERS));
    }
}

/// How many filters a thread has (Linux 5.9).
fn filters(status: &Status) -> Option<u32> {
    u32::try_from(status.number("Seccomp_filters")?).ok()
}

fn has_word(status: &Status) -> bool {
    filters(status).map_or(i64::MAX, i64::from) <= WORD.load(Relaxed)
}

/// Makes the trial that a filter may call for, while the thread that has it still runs.
pub(crate) fn look_ahead(pid: i32, thread: &Status) {
    if !has_word(thread) && has_the_same(pid, thread) {
        let _ = trial();
    }
}

impl Pass {
    /// Of a stopped thread; `filtered` says more of one that has filters.
    pub(crate) fn of(t: &Tracee, filtered: Option<&Status>) -> Result<Self> {
        let Some(status) = filtered else { return Ok(Self::Unfiltered) };
        // What a filter answers with an error is made nevertheless.
        let suspended = t.suspend_seccomp();
        if has_word(status) {
            return Ok(Self::Word);
        }
        if let Ok(filters) = suspended.and_then(|()| Filters::of(t.tid)) {
            return Ok(Self::Read(filters));
        }
        if has_the_same(t.pid, status) {
            return match trial() {
                Ok(()) => Ok(Self::Tried),
                Err(what) => {
                    Err(Refusal::TrialFailed { pid: t.pid, comm: proc::comm(t.pid), what }.into())
                }
            };
        }
        Err(preflight::filtered(t.pid, suspended.err()).into())
    }

    /// Whether the thread may be asked something that prof can do without: for certain no filter kills for it.
    pub(crate) fn lets_ask(&self, call: RemoteAddr, number: u64, args: [u64; 6]) -> bool {
        match self {
            Self::Unfiltered => true,
            Self::Read(_) => self.one_call(0, call, number, args).is_ok(),
            Self::Tried | Self::Word => false,
        }
    }

    /// Before anything is touched: whether prof's death could harm the thread in any of the calls that it
    /// is made to do.
    ///
    /// # Errors
    /// If it could.
    pub(crate) fn usual_calls(&self, pid: i32, call: RemoteAddr, back: Sigreturn) -> Result<()> {
        let Self::Read(filters) = self else { return Ok(()) };
        for (number, args) in usual_calls() {
            self.one_call(pid, call, number, args)?;
        }
        // The way back has no other.
        let after = match back {
            Sigreturn::Restorer(at) => at.plus(RESTORER_LEN),
            Sigreturn::PopNumber(_) => call.plus(syscall::SYSCALL_INSN.len() as u64),
        };
        if filters.fate(nr::RT_SIGRETURN, [0; 6], code_at(after.0)) == Fate::Made {
            return Ok(());
        }
        Err(kills(pid, nr::RT_SIGRETURN))
    }

    /// The same for one call.
    ///
    /// # Errors
    /// If it could.
    pub(crate) fn one_call(
        &self,
        pid: i32,
        call: RemoteAddr,
        number: u64,
        args: [u64; 6],
    ) -> Result<()> {
        let Self::Read(filters) = self else { return Ok(()) };
        let after = code_at(call.0) + syscall::SYSCALL_INSN.len() as u64;
        match filters.fate(number, args, after) {
            Fate::Made | Fate::Fails => Ok(()),
            Fate::Other => Err(kills(pid, number)),
        }
    }
}

/// Whether the filters of all these stopped threads let the hook, which lies at `hook`, block signals and ask for
/// the stack of a handler: they have been read, or are prof's own, or the user has said so.
pub(crate) fn may_mask(threads: &[Tracee], hook: u64) -> bool {
    const SET_MASK: u64 = libc::SIG_SETMASK as u64;
    let at = hook + 1;
    let calls = [
        (nr::RT_SIGPROCMASK, [SET_MASK, at, at, syscall::SIGSET_LEN as u64, 0, 0]),
        (nr::SIGALTSTACK, [0, at, 0, 0, 0, 0]),
    ];
    may_make(threads, at, &calls, true)
}

/// Returns whether they let the hook map and unmap memory of its own, as it does for a child that a signal handler
/// forks. The user's word is about other calls.
pub(crate) fn may_map(threads: &[Tracee], hook: u64) -> bool {
    use crate::mapping::bits::{ANON, FIXED_NOREPLACE, NO_FD, NORESERVE, READ, WRITE};
    let (at, len) = (hook + 1, 1 << 20);
    let map = |at: u64, flags: u64| {
        (nr::MMAP, [at, len, READ | WRITE, ANON | NORESERVE | flags, NO_FD, 0])
    };
    let calls = [
        map(0, 0),
        map(at, FIXED_NOREPLACE),
        (nr::MADVISE, [at, len, libc::MADV_NOHUGEPAGE as u64, 0, 0, 0]),
        (nr::MUNMAP, [at, len, 0, 0, 0, 0]),
        (nr::GETPID, [0; 6]),
    ];
    may_make(threads, at, &calls, false)
}

/// Returns whether the filters of all these stopped threads let the hook make these calls from `at`; `word`: the
/// user's word is enough.
fn may_make(threads: &[Tracee], at: u64, calls: &[(u64, [u64; 6])], word: bool) -> bool {
    threads.len() <= MOST
        && threads.iter().all(|t| {
            if let Ok(filters) = Filters::of(t.tid) {
                return calls.iter().all(|(n, args)| filters.fate(*n, *args, at) == Fate::Made);
            }
            let Ok(status) = Status::of_thread(t.pid, t.tid) else { return false };
            status.number("Seccomp") != Some(2)
                || (word && has_word(&status))
                || (has_the_same(t.pid, &status) && trial().is_ok())
        })
}

fn kills(pid: i32, number: u64) -> Error {
    Refusal::FilterKills { pid, comm: proc::comm(pid), call: name(number) }.into()
}

/// The name of a call that prof makes.
fn name(number: u64) -> &'static str {
    match number {
        nr::MEMFD_CREATE => "memfd_create",
        nr::MMAP => "mmap",
        nr::MUNMAP => "munmap",
        nr::MPROTECT => "mprotect",
        nr::MADVISE => "madvise",
        nr::RT_SIGACTION => "rt_sigaction",
        nr::RT_SIGRETURN => "rt_sigreturn",
        nr::CLOSE => "close",
        nr::MREMAP => "mremap",
        nr::MUNLOCK => "munlock",
        _ => "a call",
    }
}

/// Calls as prof makes them.
fn usual_calls() -> Vec<(u64, [u64; 6])> {
    use crate::mapping::bits::{
        ANON, EXEC, FIXED_NOREPLACE, NO_FD, NORESERVE, READ, SHARED, WRITE,
    };
    let (at, len, fd) = (0x7000_0000, 1 << 20, 5);
    let flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
    let advise = |what: i32| (nr::MADVISE, [at, len, what as u64, 0, 0, 0]);
    vec![
        (nr::MEMFD_CREATE, [at, flags, 0, 0, 0, 0]),
        (nr::MMAP, [at, len, READ | WRITE, SHARED | NORESERVE | FIXED_NOREPLACE, fd, 0]),
        (nr::MUNLOCK, [at, len, 0, 0, 0, 0]),
        (nr::MREMAP, [at, len, 2 * len, 0, 0, 0]),
        (nr::MMAP, [at, len, READ | EXEC, ANON | FIXED_NOREPLACE, NO_FD, 0]),
        (nr::MMAP, [at, len, READ | WRITE, ANON | FIXED_NOREPLACE, NO_FD, 0]),
        (nr::MPROTECT, [at, len, READ, 0, 0, 0]),
        (nr::MPROTECT, [at, len, READ | WRITE, 0, 0, 0]),
        advise(libc::MADV_NOHUGEPAGE),
        advise(libc::MADV_DONTFORK),
        advise(libc::MADV_DONTDUMP),
        advise(libc::MADV_WIPEONFORK),
        (nr::RT_SIGACTION, [libc::SIGUSR1 as u64, at, at, syscall::SIGSET_LEN as u64, 0, 0]),
        (nr::MUNMAP, [at, len, 0, 0, 0, 0]),
        (nr::CLOSE, [fd, 0, 0, 0, 0, 0]),
    ]
}

/// Whether a thread has the same filters as this process. They are inherited, and can only be added: a
/// process with as many as one that it descends from has the same. And a container's runtime gives the same
/// to whatever it starts in it: to the ancestors of which no more is to be seen from within.
fn has_the_same(pid: i32, thread: &Status) -> bool {
    let me = std::process::id() as i32;
    let count = filters(thread);
    if count.is_none_or(|n| n == 0) {
        return false;
    }
    /// More ancestors are not believed.
    const MOST: usize = 256;
    let all_have_it = |from: i32, until: i32| {
        let mut at = from;
        for _ in 0..MOST {
            let Ok(status) = Status::of(at) else { return None };
            if filters(&status) != count {
                return None;
            }
            let parent = status.number("PPid")? as i32;
            if at == until || parent == 0 {
                return Some(at);
            }
            at = parent;
        }
        None
    };
    let Some(root) = all_have_it(pid, me) else { return false };
    root == me || (same_container(pid) && all_have_it(me, 0).is_some())
}

/// The same processes, files and limits are to be seen.
fn same_container(pid: i32) -> bool {
    let link = |p: &str, what: &str| std::fs::read_link(format!("/proc/{p}/ns/{what}")).ok();
    let pid = pid.to_string();
    ["pid", "mnt", "cgroup"].iter().all(|n| {
        let own = link("self", n);
        own.is_some() && own == link(&pid, n)
    })
}

/// Does in a process of prof's own what the target would have to do. If that is killed, so would the target
/// have been.
///
/// # Errors
/// With what went wrong.
fn trial() -> Result<(), &'static str> {
    static DONE: OnceLock<Result<(), &'static str>> = OnceLock::new();
    *DONE.get_or_init(|| {
        // SAFETY: the child does nothing but system calls that need no memory of others' making, and ends.
        match unsafe { libc::fork() } {
            -1 => Err("no process could be made for it"),
            // SAFETY: ends the child at once.
            0 => unsafe { libc::_exit(i32::from(!passes())) },
            child => {
                let mut status = 0;
                // SAFETY: writes the status.
                while unsafe { libc::waitpid(child, &mut status, 0) } == -1 {
                    if Errno::last() != Errno::EINTR {
                        return Err("its end could not be seen");
                    }
                }
                match status {
                    0 => Ok(()),
                    s if libc::WIFSIGNALED(s) => Err("it was killed"),
                    _ => Err("a call was refused"),
                }
            }
        }
    })
}

extern "C" fn nothing(_: i32) {}

/// The trial itself, in the child.
fn passes() -> bool {
    let (page, anon) = (4 * proc::page_size() as usize, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let (rw, rx) = (libc::PROT_READ | libc::PROT_WRITE, libc::PROT_READ | libc::PROT_EXEC);
    // SAFETY: what is mapped here is not used, and the calls concern nothing else.
    unsafe {
        let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &limit);
        let mut mask: libc::sigset_t = std::mem::zeroed();
        let mut stack: libc::stack_t = std::mem::zeroed();
        if libc::sigprocmask(libc::SIG_SETMASK, std::ptr::null(), &mut mask) != 0
            || libc::sigaltstack(std::ptr::null(), &mut stack) != 0
        {
            return false;
        }
        let fd =
            libc::memfd_create(c"prof-ring".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        let shared = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let ring = libc::mmap(std::ptr::null_mut(), page, rw, shared, fd, 0);
        let fixed = libc::MAP_FIXED_NOREPLACE;
        let code = libc::mmap(std::ptr::null_mut(), page, rx, anon, -1, 0);
        if fd < 0 || ring == libc::MAP_FAILED || code == libc::MAP_FAILED {
            return false;
        }
        let own = libc::mmap(std::ptr::null_mut(), page, rw, anon | libc::MAP_NORESERVE, -1, 0);
        // Kernels without huge pages do not know it.
        libc::madvise(own, page, libc::MADV_NOHUGEPAGE);
        let calls = [
            libc::munmap(own, page),
            libc::munmap(code, page),
            i32::from(libc::mmap(code, page, rx, anon | fixed, -1, 0) != code),
            libc::madvise(ring, page, libc::MADV_DONTFORK),
            libc::madvise(ring, page, libc::MADV_DONTDUMP),
            i32::from(libc::mremap(ring, page, page / 2, 0) != ring),
            libc::munlock(ring, page / 2),
            libc::mprotect(code, page, libc::PROT_READ),
            libc::mprotect(code, page, rw),
            libc::madvise(code, page, libc::MADV_WIPEONFORK),
            libc::munmap(code, page),
            libc::munmap(ring, page),
            libc::close(fd),
        ];
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        // The way back from a handler is rt_sigreturn.
        let signal = libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut())
            | libc::raise(libc::SIGUSR1);
        calls.iter().all(|r| *r == 0) && signal == 0
    }
}
