//! Restrictions of the target's system calls: seccomp filters, and the dispatch of system calls to the program's own
//! handler (`PR_SET_SYSCALL_USER_DISPATCH`, which Wine uses). A call that either does not expect may kill the target,
//! so prof has the target make only calls that are known to pass.

use crate::permission;
use crate::process::filter::{Fate, Filters};
use crate::stopped::gadgets::Sigreturn;
use crate::stopped::tracee::Tracee;
use crate::{Error, Refusal, RemoteAddr, Result};
use nix::errno::Errno;
use prof_arch::native::jump::code_at;
use prof_arch::native::syscall::{self, nr};
use prof_os::sharers::Sharers;
use prof_os::status::Status;
use prof_os::{Pid, process};
use prof_trace::shared::{MEMFD_CNAME, MEMFD_NAME};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Modes of seccomp in `/proc/PID/status` (proc(5)): strict, where the kernel kills for all calls but four, and filters.
pub(crate) const STRICT: i64 = 1;
pub(crate) const FILTERED: i64 = 2;

/// Maximum number of threads that are examined.
const MOST: usize = 4096;
/// A bit of `Control::flags` that the hook ignores: the user has vouched for the filters, of which there were as many
/// as the highest byte says.
const TRUSTED: u32 = 1 << 15;
const TRUSTED_FILTERS: u32 = 24;
/// Length from a restorer's start to behind its system call. Filters that test where a call comes from test for whole
/// libraries, so an approximation suffices.
const RESTORER_LEN: u64 = 8;

/// Returns whether a thread that runs the process's code has a seccomp filter. The threads of processes that share
/// its memory count, too.
pub(crate) fn is_filtered(pid: Pid) -> bool {
    let filtered = |s: Status| s.number("Seccomp").is_some_and(|mode| mode != 0);
    let has_filter = |pid: Pid| {
        let tids = process::threads(pid).unwrap_or_default();
        tids.into_iter().take(MOST).any(|tid| Status::of_thread(pid, tid).is_ok_and(filtered))
    };
    has_filter(pid) || Sharers::of(pid, MEMFD_NAME).others().iter().copied().any(has_filter)
}

/// Returns whether a thread is in seccomp's strict mode.
pub(crate) fn is_strict(status: &Status) -> bool {
    status.number("Seccomp") == Some(STRICT)
}

/// The evidence that a thread's filters pass the calls that prof has it make. Suspending the filters is not enough:
/// the suspension ends with the prof that asked for it, and the call may still be in progress then.
#[derive(Debug)]
pub(crate) enum Pass {
    /// The thread has no filters.
    Unfiltered,
    /// The filters have been read, and are evaluated before each call.
    Read(Filters),
    /// The filters are prof's own, too, and a trial in a child of prof's has passed.
    Tried,
    /// The user has vouched for them.
    Word,
}

/// Maximum number of filters that the user has vouched for; -1 if the user has not.
static WORD: AtomicI64 = AtomicI64::new(-1);

/// Notes that the user vouches for the filters of threads with at most `filters` filters, or with any number.
pub fn take_word(filters: Option<u32>) {
    WORD.fetch_max(filters.map_or(i64::MAX, i64::from), Relaxed);
}

/// Returns the user's word in the form of `Control::flags`, for later runs of prof. It covers the number of filters
/// that the process has now.
pub(crate) fn word_to_keep(pid: Pid) -> u32 {
    if WORD.load(Relaxed) < 0 {
        return 0;
    }
    let tids = process::threads(pid).unwrap_or_default();
    let count = |tid: Pid| Some(filters(&Status::of_thread(pid, tid).ok()?).unwrap_or(0));
    let most = tids.into_iter().take(MOST).filter_map(count).max().unwrap_or(0);
    TRUSTED | (most.min(255) << TRUSTED_FILTERS)
}

/// Takes the user's word from `Control::flags`.
pub(crate) fn kept_word(bits: u32) {
    if bits & TRUSTED != 0 {
        take_word(Some(bits >> TRUSTED_FILTERS));
    }
}

/// Returns the number of a thread's filters (Linux 5.9).
fn filters(status: &Status) -> Option<u32> {
    u32::try_from(status.number("Seccomp_filters")?).ok()
}

fn has_word(status: &Status) -> bool {
    filters(status).map_or(i64::MAX, i64::from) <= WORD.load(Relaxed)
}

/// Makes the trial that a filter may require, while the thread with the filter still runs. Returns whether one was made.
pub(crate) fn look_ahead(pid: Pid, thread: &Status) -> bool {
    let may_try = !has_word(thread) && has_the_same(pid, thread);
    if may_try {
        let _ = (trial(), code_trial());
    }
    may_try
}

impl Pass {
    /// Determines the evidence for a stopped thread. `filtered` is the status of a thread that has filters.
    pub(crate) fn of(t: &Tracee, filtered: Option<&Status>) -> Result<Self> {
        // A thread may have got a filter, or have entered the strict mode, before it was stopped.
        let now = Status::of_thread(t.pid, t.tid).unwrap_or_default();
        let mode = now.number("Seccomp");
        if is_strict(&now) {
            return Err(Refusal::StrictSeccomp(t.pid, process::comm(t.pid)).into());
        }
        let status = filtered.or_else(|| Some(&now).filter(|_| mode == Some(FILTERED)));
        let Some(status) = status else { return Ok(Self::Unfiltered) };
        // With the filter suspended, the kernel also makes the calls that the filter would answer with an error.
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
                    Err(Refusal::TrialFailed { pid: t.pid, comm: process::comm(t.pid), what }
                        .into())
                }
            };
        }
        Err(permission::filtered(t.pid, suspended.err()).into())
    }

    /// Returns whether the thread may make a call that prof can do without: no filter kills it for that.
    pub(crate) fn lets_ask(&self, call: RemoteAddr, number: u64, args: [u64; 6]) -> bool {
        match self {
            Self::Unfiltered => true,
            Self::Read(_) => self.one_call(Pid::NONE, call, number, args).is_ok(),
            Self::Tried | Self::Word => false,
        }
    }

    /// Checks, before anything is touched, that no call that the thread will make could harm it if prof died.
    ///
    /// # Errors
    /// If one could.
    pub(crate) fn usual_calls(&self, pid: Pid, call: RemoteAddr, back: Sigreturn) -> Result<()> {
        let Self::Read(filters) = self else { return Ok(()) };
        for (number, args) in usual_calls() {
            self.one_call(pid, call, number, args)?;
        }
        // A thread can return only by this call, so the filter must permit it; an answer by an error is not enough.
        let after = match back {
            Sigreturn::Restorer(at) => at.plus(RESTORER_LEN),
            Sigreturn::PopNumber(_) => call.plus(syscall::SYSCALL_INSN.len() as u64),
        };
        if filters.fate(nr::RT_SIGRETURN, [0; 6], code_at(after.0)) == Fate::Made {
            return Ok(());
        }
        Err(kills(pid, name(nr::RT_SIGRETURN)))
    }

    /// Checks that a call could not harm the thread if prof died.
    ///
    /// # Errors
    /// If it could.
    pub(crate) fn one_call(
        &self,
        pid: Pid,
        call: RemoteAddr,
        number: u64,
        args: [u64; 6],
    ) -> Result<()> {
        match self.fate(call, number, args) {
            Fate::Made | Fate::Fails => Ok(()),
            Fate::Other => Err(kills(pid, name(number))),
        }
    }

    /// Checks what [`Pass::one_call`] does for the mapping that prof's code would be in.
    ///
    /// # Errors
    /// If the call could harm the thread.
    pub(crate) fn mapping_of_code(&self, pid: Pid, call: RemoteAddr) -> Result<()> {
        use crate::mapped::bits::{ANON, EXEC, FIXED_NOREPLACE, NO_FD, READ};
        let args = [0x7000_0000, 1 << 20, READ | EXEC, ANON | FIXED_NOREPLACE, NO_FD, 0];
        let why = match (self, self.fate(call, nr::MMAP, args)) {
            (_, Fate::Other) => {
                "its seccomp filter kills it, or sends it SIGSYS, for mmap of executable memory without a file (with CAP_SYS_ADMIN and --filter-allows, prof suspends the filter for that call, but if prof is killed at that moment, the filter does so)".into()
            }
            (Self::Tried, _) => match code_trial() {
                Ok(()) => return Ok(()),
                Err(what) => format!(
                    "it has the same seccomp filter as prof, and prof tried to map executable memory without a file in a process of its own: {what}"
                ),
            },
            (_, Fate::Made | Fate::Fails) => return Ok(()),
        };
        Err(Refusal::NoCode { pid, comm: process::comm(pid), why }.into())
    }

    /// Returns the outcome of a call. Only filters that were read tell of one that is not made.
    pub(crate) fn fate(&self, call: RemoteAddr, number: u64, args: [u64; 6]) -> Fate {
        let Self::Read(filters) = self else { return Fate::Made };
        filters.fate(number, args, code_at(call.0) + syscall::SYSCALL_INSN.len() as u64)
    }
}

/// Returns whether the filters of all these stopped threads let the hook at `hook` block signals and ask for the
/// handler's stack. The filters have been read or tried, or the user has vouched for them.
pub(crate) fn may_mask(threads: &[Tracee], hook: u64) -> bool {
    const SET_MASK: u64 = libc::SIG_SETMASK as u64;
    let at = hook + 1;
    let calls = [
        (nr::RT_SIGPROCMASK, [SET_MASK, at, at, syscall::SIGSET_LEN as u64, 0, 0]),
        (nr::SIGALTSTACK, [0, at, 0, 0, 0, 0]),
    ];
    may_make(threads, at, &calls, true)
}

/// Returns whether the filters let the hook map and unmap memory of its own, as it does for a child that a signal
/// handler forks. The user's word does not cover these calls.
pub(crate) fn may_map(threads: &[Tracee], hook: u64) -> bool {
    use crate::mapped::bits::{ANON, FIXED_NOREPLACE, NO_FD, NORESERVE, READ, WRITE};
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

/// Returns whether the filters of all these stopped threads let the hook make these calls from `at`. With `word`, the
/// user's word suffices.
fn may_make(threads: &[Tracee], at: u64, calls: &[(u64, [u64; 6])], word: bool) -> bool {
    threads.len() <= MOST
        && threads.iter().all(|t| {
            if let Ok(filters) = Filters::of(t.tid) {
                return calls.iter().all(|(n, args)| filters.fate(*n, *args, at) == Fate::Made);
            }
            let Ok(status) = Status::of_thread(t.pid, t.tid) else { return false };
            let mode = status.number("Seccomp").unwrap_or(0);
            mode == 0
                || mode == FILTERED
                    && ((word && has_word(&status))
                        || (has_the_same(t.pid, &status) && trial().is_ok()))
        })
}

fn kills(pid: Pid, call: &'static str) -> Error {
    Refusal::FilterKills { pid, comm: process::comm(pid), call }.into()
}

/// Returns the name of a call that prof makes.
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

/// Returns samples of all calls that prof makes, except for that of [`Pass::mapping_of_code`], which not every attach makes
/// and no detach.
fn usual_calls() -> Vec<(u64, [u64; 6])> {
    use crate::mapped::bits::{ANON, FIXED_NOREPLACE, NO_FD, NORESERVE, READ, SHARED, WRITE};
    let (at, len, fd) = (0x7000_0000, 1 << 20, 5);
    let flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
    let advise = |what: i32| (nr::MADVISE, [at, len, what as u64, 0, 0, 0]);
    vec![
        (nr::MEMFD_CREATE, [at, flags, 0, 0, 0, 0]),
        (nr::MMAP, [at, len, READ | WRITE, SHARED | NORESERVE | FIXED_NOREPLACE, fd, 0]),
        (nr::MUNLOCK, [at, len, 0, 0, 0, 0]),
        (nr::MREMAP, [at, len, 2 * len, 0, 0, 0]),
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

/// Returns whether a thread has the filters of this process. Filters are inherited and can only be added, so a
/// process has the same ones as an ancestor with the same number. Besides, a container's runtime gives the same
/// filters to everything that it starts in a container, that is, to the ancestors whose parents can't be seen from
/// within.
fn has_the_same(pid: Pid, thread: &Status) -> bool {
    let me = Pid::this();
    let count = filters(thread);
    if count.is_none_or(|n| n == 0) {
        return false;
    }
    /// Maximum number of ancestors that are followed.
    const MOST: usize = 256;
    let all_have_it = |from: Pid, until: Pid| {
        let mut at = from;
        for _ in 0..MOST {
            let Ok(status) = Status::of(at) else { return None };
            if filters(&status) != count {
                return None;
            }
            let parent = status.pid("PPid")?;
            if at == until || parent == Pid::NONE {
                return Some(at);
            }
            at = parent;
        }
        None
    };
    let Some(root) = all_have_it(pid, me) else { return false };
    root == me || (same_container(pid) && all_have_it(me, Pid::NONE).is_some())
}

/// Returns whether a process has the pid, mount and cgroup namespaces of this one.
fn same_container(pid: Pid) -> bool {
    let link = |p: &str, what: &str| std::fs::read_link(format!("/proc/{p}/ns/{what}")).ok();
    let pid = pid.to_string();
    ["pid", "mnt", "cgroup"].iter().all(|n| {
        let own = link("self", n);
        own.is_some() && own == link(&pid, n)
    })
}

/// Makes the target's future calls in a child of prof's. If the child is killed, the target would have been, too.
///
/// # Errors
/// With what went wrong.
fn trial() -> Result<(), &'static str> {
    static DONE: OnceLock<Result<(), &'static str>> = OnceLock::new();
    *DONE.get_or_init(|| in_a_child(passes))
}

/// Makes the call in a child of prof's that not every attach makes, see [`Pass::mapping_of_code`].
///
/// # Errors
/// With what went wrong.
fn code_trial() -> Result<(), &'static str> {
    static DONE: OnceLock<Result<(), &'static str>> = OnceLock::new();
    *DONE.get_or_init(|| in_a_child(maps_code))
}

/// Returns whether `calls` returns true in a child of prof's that it does not kill. `calls` may only make system calls, and
/// nothing that takes a lock or allocates: prof has other threads.
///
/// # Errors
/// With what went wrong.
pub(crate) fn in_a_child(calls: fn() -> bool) -> Result<(), &'static str> {
    // By libc's functions, as nix has no `_exit`.
    // SAFETY: the child only makes system calls that use no memory of other threads, and ends.
    match unsafe { libc::fork() } {
        -1 => Err("no process could be made for the trial"),
        // SAFETY: the call ends the child at once. A filter that kills leaves no core file.
        0 => unsafe {
            let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &limit);
            libc::_exit(i32::from(!calls()))
        },
        child => {
            let mut status = 0;
            // SAFETY: the kernel writes the status.
            while unsafe { libc::waitpid(child, &mut status, 0) } == -1 {
                if Errno::last() != Errno::EINTR {
                    return Err("the exit status of the trial could not be read");
                }
            }
            match status {
                0 => Ok(()),
                s if libc::WIFSIGNALED(s) => Err("the filter killed that process"),
                _ => Err("a call was refused there"),
            }
        }
    }
}

extern "C" fn nothing(_: i32) {}

/// Maps executable memory without a file, as a part of a trial.
fn maps_code() -> bool {
    let page = prof_os::page_size() as usize;
    let (rx, anon) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: nothing uses the memory that is mapped here.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), page, rx, anon, -1, 0);
        at != libc::MAP_FAILED
            && libc::munmap(at, page) == 0
            && libc::mmap(at, page, rx, anon | libc::MAP_FIXED_NOREPLACE, -1, 0) == at
    }
}

/// Makes the calls of the trial, in the child of a process with threads: with libc's functions, which only make the
/// system call.
fn passes() -> bool {
    let (page, anon) = (4 * prof_os::page_size() as usize, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: nothing uses the memory that is mapped here, and the calls affect nothing else.
    unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        let mut stack: libc::stack_t = std::mem::zeroed();
        if libc::sigprocmask(libc::SIG_SETMASK, std::ptr::null(), &mut mask) != 0
            || libc::sigaltstack(std::ptr::null(), &mut stack) != 0
        {
            return false;
        }
        let fd =
            libc::memfd_create(MEMFD_CNAME.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        let shared = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let ring = libc::mmap(std::ptr::null_mut(), page, rw, shared, fd, 0);
        let fixed = libc::MAP_FIXED_NOREPLACE;
        let other = libc::mmap(std::ptr::null_mut(), page, rw, anon, -1, 0);
        if fd < 0 || ring == libc::MAP_FAILED || other == libc::MAP_FAILED {
            return false;
        }
        let own = libc::mmap(std::ptr::null_mut(), page, rw, anon | libc::MAP_NORESERVE, -1, 0);
        // Kernels without huge pages do not know this advice.
        libc::madvise(own, page, libc::MADV_NOHUGEPAGE);
        let calls = [
            libc::munmap(own, page),
            libc::munmap(other, page),
            i32::from(libc::mmap(other, page, rw, anon | fixed, -1, 0) != other),
            libc::madvise(ring, page, libc::MADV_DONTFORK),
            libc::madvise(ring, page, libc::MADV_DONTDUMP),
            i32::from(libc::mremap(ring, page, page / 2, 0) != ring),
            libc::munlock(ring, page / 2),
            libc::mprotect(other, page, libc::PROT_READ),
            libc::mprotect(other, page, rw),
            libc::madvise(other, page, libc::MADV_WIPEONFORK),
            libc::munmap(other, page),
            libc::munmap(ring, page),
            libc::close(fd),
        ];
        // The handler returns by rt_sigreturn, which is thereby tried, too.
        let handled = prof_os::signals::handle(libc::SIGUSR1, nothing).is_ok()
            && libc::raise(libc::SIGUSR1) == 0;
        calls.iter().all(|r| *r == 0) && handled
    }
}
