//! Errors and refusals, with messages for the user.

use crate::RemoteAddr;
use nix::errno::Errno;
use prof_os::Pid;
use prof_trace::values::text::{bytes, time};
use std::path::PathBuf;
use std::time::Duration;

/// Reason why prof will not work on a process. After a refused attach, the process is as it was before.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// No process has this id.
    #[error(
        "no such process: {0}; it has ended, or is in another container and has another number here"
    )]
    NoSuchProcess(Pid),
    /// `/proc` shows the numbers of another pid namespace than prof's.
    #[error("/proc is not that of prof's own pid namespace: {0}")]
    OtherProc(String),
    /// The id is that of a thread.
    #[error("{tid} is a thread of process {pid}; record that: `prof attach {pid}`")]
    IsThread {
        /// Id that the user gave.
        tid: Pid,
        /// Id of the process that the thread belongs to.
        pid: Pid,
    },
    /// The process is a kernel thread, which has no memory of its own.
    #[error("pid {0} ({1}) is a kernel thread; it has no heap to record")]
    KernelThread(Pid, String),
    /// The process has ended.
    #[error(
        "pid {0} ({1}) has ended: all that is left of it is its exit code, until its parent asks for that (a zombie)"
    )]
    Zombie(Pid, String),
    /// Another prof is attaching to the process or detaching from it.
    #[error("another prof is attaching to pid {0} or detaching from it at this moment; try again")]
    Busy(Pid),
    /// Another prof has attached to the process meanwhile.
    #[error(
        "another prof began to record pid {0} a moment ago; `prof detach {0}` ends that recording"
    )]
    Recorded(Pid),
    /// The process is prof itself.
    #[error("pid {0} is prof itself")]
    Myself(Pid),
    /// prof is not permitted to trace the process.
    #[error("not permitted to trace pid {pid} ({comm}): {why}")]
    Permission {
        /// Process id.
        pid: Pid,
        /// Name of the process.
        comm: String,
        /// Setting that forbids it, and what the user can do.
        why: String,
    },
    /// Another tracer, such as a debugger, traces the process.
    #[error("pid {pid} ({comm}) is already traced by pid {tracer} ({tracer_comm}); end that first")]
    Traced {
        /// Process id.
        pid: Pid,
        /// Name of the process.
        comm: String,
        /// Process id of the tracer.
        tracer: Pid,
        /// Name of the tracer.
        tracer_comm: String,
    },
    /// The cgroup of the process is frozen.
    #[error(
        "pid {pid} ({comm}) is frozen by its cgroup ({file}), so no thread of it can stop; thaw it first (`docker unpause`, `systemctl thaw`)", file = file.display()
    )]
    Frozen {
        /// Process id.
        pid: Pid,
        /// Name of the process.
        comm: String,
        /// File that shows it.
        file: PathBuf,
    },
    /// Another process shares the target's memory, and can't be stopped together with it.
    #[error(
        "pid {other} shares the memory of pid {pid} ({comm}), so prof must stop both at once, and can't stop pid {other}: {why}"
    )]
    Shared {
        /// Process id.
        pid: Pid,
        /// Name of the process.
        comm: String,
        /// Id of the other process.
        other: Pid,
        /// Reason why the other process can't be stopped.
        why: String,
    },
    /// The process has inherited prof's patches from its parent, without a note of the original bytes.
    #[error(
        "pid {0} ({1}) can't be recorded: it was forked from a process that was recorded by an older prof, and still has that prof's patches (inactive) in its functions, without a note of the original code; start it again, or record a process that is forked after the end of that recording"
    )]
    Inherited(Pid, String),
    /// A thread has alignment checks on, so that the hook's memory accesses would fault.
    #[error(
        "thread {tid} of pid {pid} ({comm}) has the processor's alignment checks on (EFLAGS.AC); prof's hook makes unaligned accesses, so a recorded call would kill the process (SIGBUS)"
    )]
    ChecksAlignment {
        /// Process id.
        pid: Pid,
        /// Name of the process.
        comm: String,
        /// Thread id.
        tid: Pid,
    },
    /// The memory of the process can't be copied.
    #[error(
        "the memory of pid {pid} ({comm}) can't be copied for --snapshot fork: {why}; --snapshot stop and --snapshot none need no copy"
    )]
    NotCopied {
        /// Process id.
        pid: Pid,
        /// Name of the process.
        comm: String,
        /// Reason why it can't.
        why: String,
    },
    /// The machine's clocks have come so far that the hook can't write their times.
    #[error(
        "pid {0} can't be recorded on this machine until that is restarted: it has been up for more than two years, and its counter and its clock have come so far that prof's events have no room for their times"
    )]
    LateClock(Pid),
    /// Two threads have one thread pointer, so that the hook can't tell them apart.
    #[error(
        "threads {one} and {other} of pid {pid} ({comm}) have the same thread pointer (were they made by clone without CLONE_SETTLS?); prof tells threads apart by it, so what these allocate can't be recorded"
    )]
    OneThreadPointer {
        /// Process id.
        pid: Pid,
        /// Name of the process.
        comm: String,
        /// Id of one of the threads.
        one: Pid,
        /// Id of the other thread.
        other: Pid,
    },
    /// The process has another word size or instruction set than this prof.
    #[error(
        "pid {pid} ({comm}) is a {what} process, and this prof is for {ours}; use a prof built for {what}"
    )]
    WrongArch {
        /// Process id.
        pid: Pid,
        /// Name of the process.
        comm: String,
        /// Architecture of the process.
        what: String,
        /// Architecture that this prof is for.
        ours: &'static str,
    },
    /// Another program translates the process's code, and executes only the translation.
    #[error(
        "the program in pid {pid} ({comm}) runs under {by}, which translates the program's code and executes only the translation, so prof's hooks would never be called; {advice}"
    )]
    Translated {
        /// Process id.
        pid: Pid,
        /// Name of the process.
        comm: String,
        /// Name of the other program.
        by: String,
        /// Advice for the user.
        advice: &'static str,
    },
    /// The process is in seccomp strict mode.
    #[error(
        "pid {0} ({1}) has a thread in seccomp strict mode, where the kernel kills it for any system call but read, write, exit and sigreturn; it can't be recorded"
    )]
    StrictSeccomp(Pid, String),
    /// The processor checks the process's return addresses against a shadow stack.
    #[error(
        "pid {0} ({1}) runs with a shadow stack (CET, or a guarded control stack), which prof does not support; start it with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off, on AArch64 glibc.cpu.aarch64_gcs=0"
    )]
    ShadowStack(Pid, String),
    /// The process has a seccomp filter that prof can't suspend.
    #[error(
        "pid {pid} ({comm}) has a seccomp filter that might kill it for the system calls that prof makes it do; {how}; or give --filter-allows if you know that the filter allows memfd_create, mmap, mremap, munmap, munlock, mprotect, madvise, rt_sigaction, rt_sigprocmask, rt_sigreturn, sigaltstack and close, as the default profiles of Docker, containerd, CRI-O and Podman do"
    )]
    Seccomp {
        /// Process id.
        pid: Pid,
        /// Name of the process.
        comm: String,
        /// Advice for the user: how prof could read the filter.
        how: &'static str,
    },
    /// The process has a seccomp filter that kills it for a call that prof needs.
    #[error(
        "pid {pid} ({comm}) has a seccomp filter that kills it, or sends it SIGSYS, for {call}, a call that prof makes it do; prof can suspend the filter, but if prof is killed at that moment, the filter does so; to accept that risk, run prof with CAP_SYS_ADMIN and --filter-allows"
    )]
    FilterKills {
        /// Process id.
        pid: Pid,
        /// Name of the process.
        comm: String,
        /// The call that the filter kills for.
        call: &'static str,
    },
    /// A process of prof's own, under the same filter, could not make the calls that prof needs.
    #[error(
        "pid {pid} ({comm}) has the same seccomp filter as prof, and prof tried the calls that it needs in a process of its own: {what}; run prof outside of the container as root"
    )]
    TrialFailed {
        /// Process id.
        pid: Pid,
        /// Name of the process.
        comm: String,
        /// Outcome of the trial.
        what: &'static str,
    },
    /// The target has its system calls caught by a handler of its own.
    #[error(
        "pid {0} ({1}) redirects its system calls to a handler of its own (PR_SET_SYSCALL_USER_DISPATCH, as Wine does), and with them those that prof makes it do; try again, as the redirection is off at times"
    )]
    Dispatched(Pid, String),
    /// The process is being recorded.
    #[error("pid {pid} ({comm}) is already being recorded, to {path}; end that with `prof detach {pid}`", path = path.display())]
    AlreadyRecorded {
        /// Process id.
        pid: Pid,
        /// Name of the process.
        comm: String,
        /// Path of the recording.
        path: PathBuf,
    },
    /// The process is not recorded, and the command is for recorded ones.
    #[error("pid {0} is not being recorded; start with `prof attach {0}`")]
    NotRecorded(Pid),
    /// The collector did not do in time what it was asked to do.
    #[error(
        "the collector of pid {0} does not answer; `prof status {0}` says what it does, and another try may succeed"
    )]
    NoAnswer(Pid),
    /// The process is recorded by another version of prof, whose control page this one can't use.
    #[error(
        "pid {pid} is being recorded by {by}, whose recording this version can't control; use that version for `prof detach {pid}`"
    )]
    OtherVersion {
        /// Process id.
        pid: Pid,
        /// Description of that version.
        by: String,
    },
    /// The target has no code that returns from signal handlers (`rt_sigreturn`).
    #[error(
        "pid {0} ({1}) has no code that calls rt_sigreturn (is it a static program that handles no signals?), without which it could crash if prof were killed; link it dynamically, or with another libc"
    )]
    NoSigreturn(Pid, String),
    /// No module of the target defines malloc and free.
    #[error(
        "pid {0} ({1}) has no allocator that prof can find: no module has the symbols malloc and free; name its own with --alloc-fn and --free-fn"
    )]
    NoAllocator(Pid, String),
    /// The target is a Go program without cgo, whose runtime does not call malloc.
    #[error(
        "pid {0} ({1}) is a Go program without cgo: its runtime takes memory from the kernel itself and calls no malloc, so there is nothing to hook; net/http/pprof shows its heap"
    )]
    Go(Pid, String),
    /// The target is a static executable without symbols for malloc and free.
    #[error(
        "pid {0} ({1}) is a static executable without the symbols malloc and free (stripped?), so prof can't find its allocator; run one that has its symbol table"
    )]
    StaticNoAllocator(Pid, String),
    /// An allocator was found, but none of its functions can be patched.
    #[error(
        "pid {pid} ({comm}): none of the functions of its allocator can be hooked, so there would be nothing to record: {function}{}, {reason}; nothing was changed; name others with --alloc-fn and --free-fn", if module.is_empty() { String::new() } else { format!(" in {module}") }
    )]
    NothingHooked {
        /// Process id.
        pid: Pid,
        /// Name of the process.
        comm: String,
        /// Name of one of the functions.
        function: String,
        /// Module of that function; may be empty.
        module: String,
        /// Reason why that function can't be hooked.
        reason: String,
    },
    /// The target's cgroup has no room for what prof adds.
    #[error(
        "pid {pid} ({comm}) has too little memory left for prof, whose smallest recording adds up to {needed}: {little}; nothing was changed; raise that limit, or run prof outside of that cgroup"
    )]
    Memory {
        /// Process id.
        pid: Pid,
        /// Name of the process.
        comm: String,
        /// Memory that the smallest recording needs, with its unit.
        needed: String,
        /// Description of the cgroup and of what it has left.
        little: String,
    },
    /// The modules or the prefix that the user gave have no allocator.
    #[error(
        "pid {pid} ({comm}) has no functions {prefix}malloc and {prefix}free{}", if modules.is_empty() { String::new() } else { format!(" in {modules}") }
    )]
    NoChosenAllocator {
        /// Process id.
        pid: Pid,
        /// Name of the process.
        comm: String,
        /// Prefix that the user gave.
        prefix: String,
        /// Modules that the user gave, as a list.
        modules: String,
    },
    /// The target has no module that the user has named.
    #[error("pid {pid} ({comm}) has no module {module}; it has {there}")]
    NoModule {
        /// Process id.
        pid: Pid,
        /// Name of the process.
        comm: String,
        /// Module that the user gave.
        module: String,
        /// Modules that the target has, as a list.
        there: String,
    },
    /// The target's dynamic linker can't load the hook.
    #[error(
        "the hook can't be loaded into pid {pid} ({comm}) by dlopen: {why}; nothing was changed; `--by map` calls no function of the process"
    )]
    NoDlopen {
        /// Process id.
        pid: Pid,
        /// Name of the process.
        comm: String,
        /// Reason.
        why: String,
    },
    /// The target may not map code that is in no file.
    #[error(
        "prof's code can't be mapped into pid {pid} ({comm}): {why}; nothing was changed; `--by dlopen` has the process load it from a file"
    )]
    NoCode {
        /// Process id.
        pid: Pid,
        /// Name of the process.
        comm: String,
        /// Reason.
        why: String,
    },
    /// The hook gets into the target in neither way.
    #[error(
        "prof's code can't get into pid {pid} ({comm}): it can't be mapped, as {map}; and it can't be loaded by dlopen: {dlopen}; nothing was changed"
    )]
    NoWay {
        /// Process id.
        pid: Pid,
        /// Name of the process.
        comm: String,
        /// Reason why prof can't map it.
        map: String,
        /// Reason why the target's dynamic linker can't load it.
        dlopen: String,
    },
    /// A module has no function that the user has named.
    #[error(
        "pid {pid} ({comm}): {module} has no function {function} in its symbol tables (C++ names are mangled there: try `nm`)"
    )]
    NoFunction {
        /// Process id.
        pid: Pid,
        /// Name of the process.
        comm: String,
        /// Name of the module.
        module: String,
        /// Function that the user gave.
        function: String,
    },
}

/// Address space that prof takes in a process by default, as measured.
const NEEDED: &str =
    if cfg!(target_pointer_width = "64") { ", and prof needs about 660 MiB of it" } else { "" };

/// Error of an attach, a detach, or another operation on a process.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// prof refuses to work on the process.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The process has ended meanwhile.
    #[error("pid {0} has ended; nothing of prof is left")]
    Gone(Pid),
    /// The process runs another program meanwhile (exec).
    #[error(
        "pid {0} is replacing its program (exec), which removes everything of prof's from it; try again when the new program has started"
    )]
    Replaced(Pid),
    /// A thread of the target did not stop in time.
    #[error(
        "thread {tid} of pid {pid} did not stop within {} (is it stuck in the kernel, in state D, or does it wait for a child of vfork?); nothing was changed; try again, or wait longer with --timeout", time(*waited)
    )]
    NotStopping {
        /// Process id.
        pid: Pid,
        /// Thread id.
        tid: Pid,
        /// Time that prof waited.
        waited: Duration,
    },
    /// A call of prof's in the target, of the kernel or of a function, did not end in time.
    #[error(
        "the call of {what} that prof had thread {tid} of pid {pid} make did not end within {} (is this machine short of memory?); the thread goes on when it ends; `prof detach {pid}` takes out what is left of prof then", time(*waited)
    )]
    Late {
        /// Process id.
        pid: Pid,
        /// Thread id.
        tid: Pid,
        /// Name of the system call or the function.
        what: &'static str,
        /// Time that prof waited.
        waited: Duration,
    },
    /// prof may not create a file of the ring's size.
    #[error(
        "the ring takes {}, and prof may not make a file of that size (`ulimit -f`); raise that limit", bytes(*.0 as u64)
    )]
    FileLimit(usize),
    /// The target has no thread that can make a remote call.
    #[error(
        "pid {0} has no thread in which prof can make a system call now: no stack has enough room left, nor has the end of a page of code; nothing was changed; try again, as its threads will have moved on"
    )]
    NoThread(Pid),
    /// prof may not open as many files as it needs.
    #[error(
        "prof needs {1} more file descriptors to work on pid {0} than it may open (`ulimit -n`); nothing was changed; raise that limit"
    )]
    NoDescriptors(Pid, usize),
    /// prof itself could not allocate memory.
    #[error(
        "prof itself can get no more memory (`ulimit -v`, a cgroup?), so pid {0} is left as it was; raise that limit, or ask for a smaller ring with --ring-size"
    )]
    NoMemory(Pid),
    /// Reading or writing the target's memory failed.
    #[error(
        "can't {what} {len} bytes at {addr} in pid {pid}: {errno}; try again, as the process may have unmapped them at that moment"
    )]
    Memory {
        /// `read` or `write`.
        what: &'static str,
        /// Process id.
        pid: Pid,
        /// First address.
        addr: RemoteAddr,
        /// Number of bytes.
        len: usize,
        /// Error of the system call.
        errno: std::io::Error,
    },
    /// A system call of prof's own failed.
    #[error(
        "prof could not {what} pid {pid}: {errno}; try again; `prof detach {pid}` takes out what may be left of prof in it"
    )]
    Sys {
        /// Attempted action, worded so that the process id can follow.
        what: &'static str,
        /// Process id.
        pid: Pid,
        /// Error of the system call.
        errno: Errno,
    },
    /// A remote call failed.
    #[error(
        "prof had pid {pid} make the system call {what}, and the kernel refused that: {errno}; try again; `prof detach {pid}` takes out what may be left of prof in it"
    )]
    Remote {
        /// Name of the system call.
        what: &'static str,
        /// Process id.
        pid: Pid,
        /// Error of the system call.
        errno: Errno,
    },
    /// The target's address space is limited (`RLIMIT_AS`).
    #[error(
        "pid {pid} may not map the memory that prof needs: its address space is limited to {}{NEEDED}; raise that with `prlimit --pid {pid} --as=unlimited`, or `ulimit -v` before it starts", bytes(*limit)
    )]
    AddressSpace {
        /// Process id.
        pid: Pid,
        /// Value of `RLIMIT_AS`.
        limit: u64,
    },
    /// The target has as many mappings as the kernel lets a process have.
    #[error(
        "pid {pid} has {count} mappings, of {most} that it may have, and would have too few left beside those of prof; raise that with `sysctl vm.max_map_count={more}`", more = most.saturating_mul(2)
    )]
    Mappings {
        /// Process id.
        pid: Pid,
        /// Number of mappings.
        count: u64,
        /// Value of `vm.max_map_count`.
        most: u64,
    },
    /// The target has all descriptors open that it may have.
    #[error(
        "pid {pid} has reached its limit of {limit} open descriptors, and prof needs one in it for a moment, while its threads are stopped; nothing was changed; raise that with `prlimit --pid {pid} --nofile={needed}`, or wait until it has closed one"
    )]
    Descriptors {
        /// Process id.
        pid: Pid,
        /// Value of `RLIMIT_NOFILE`.
        limit: u64,
        /// Value with which there is room for one more.
        needed: u64,
    },
    /// The target locks all memory that it maps, and may lock no more.
    #[error(
        "pid {pid} locks all memory that it maps (mlockall MCL_FUTURE), and has locked all of the {} that it may; prof needs a page of that for a moment; nothing was changed; raise that with `prlimit --pid {pid} --memlock={more}`", bytes(*limit), more = limit + (64 << 10)
    )]
    LockedMemory {
        /// Process id.
        pid: Pid,
        /// Value of `RLIMIT_MEMLOCK`.
        limit: u64,
    },
    /// prof could not get something that it needs for itself.
    #[error("prof itself could not {what}: {errno}; see `ulimit -a` for what it may have")]
    Own {
        /// Attempted action.
        what: &'static str,
        /// Error of the system call.
        errno: Errno,
    },
    /// The program to be recorded can't be started.
    #[error("can't start it: {errno}{}", advice(errno))]
    Start {
        /// Error of the system call.
        errno: std::io::Error,
    },
    /// A file can't be opened or read.
    #[error("can't open or read {path}: {errno}", path = path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system call.
        errno: std::io::Error,
    },
    /// A detach failed after it had switched recording off.
    #[error(
        "{why}; recording is off, and prof's code stays in pid {pid} without effect until `prof detach {pid}` succeeds", why = why.without_claim()
    )]
    Unfinished {
        /// Process id.
        pid: Pid,
        /// Error that the detach ended with.
        why: Box<Error>,
    },
    /// The hook in prof's own executable is damaged.
    #[error(
        "this prof is damaged ({0} in the part of it that is mapped into processes); install it again"
    )]
    Broken(String),
    /// Another state of the target in which prof can't go on.
    #[error("pid {pid}: {what}")]
    Nonsense {
        /// Process id.
        pid: Pid,
        /// Description of that state.
        what: String,
    },
}

/// Returns advice on a program that can't be started.
fn advice(errno: &std::io::Error) -> &'static str {
    match errno.raw_os_error() {
        Some(libc::ENOENT) => {
            "; no program of that name is in PATH, or what its first line names is not there"
        }
        Some(libc::EACCES) => "; make it executable, or give the program that reads it (sh FILE)",
        _ => "",
    }
}

/// Result of an operation on a process.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<prof_os::Error> for Error {
    fn from(e: prof_os::Error) -> Self {
        match e {
            prof_os::Error::Gone(pid) => Self::Gone(pid),
            prof_os::Error::File { path, errno } => Self::File { path, errno },
        }
    }
}

impl Error {
    /// Returns the message without the claim that nothing was changed, for use after a change.
    pub(crate) fn without_claim(&self) -> String {
        self.to_string().replace("; nothing was changed", "")
    }
}
