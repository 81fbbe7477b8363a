//! Reasons why prof will not work on a process, with messages for the user.

use prof_os::Pid;
use std::path::PathBuf;

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
