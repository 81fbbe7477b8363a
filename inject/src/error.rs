//! What can go wrong, in words for the person at the keyboard.

use crate::{RemoteAddr, proc};
use nix::errno::Errno;
use std::path::PathBuf;

/// A process that prof will not attach to, and why. Nothing has been touched.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// There is no such process.
    #[error(
        "no such process: {0}; it has ended, or is in another container and has another number here"
    )]
    NoSuchProcess(i32),
    /// The id is that of a thread.
    #[error("{tid} is a thread of process {pid}; use `prof attach {pid}`")]
    IsThread {
        /// What was asked for.
        tid: i32,
        /// The process it belongs to.
        pid: i32,
    },
    /// A kernel thread has no memory of its own.
    #[error("pid {0} ({1}) is a kernel thread; it has no heap to record")]
    KernelThread(i32, String),
    /// The process has ended.
    #[error(
        "pid {0} ({1}) has ended: all that is left of it is its exit code, until its parent asks for that (a zombie)"
    )]
    Zombie(i32, String),
    /// Another prof is at it.
    #[error("another prof is attaching to pid {0} or detaching from it at this moment; try again")]
    Busy(i32),
    /// It is this very process.
    #[error("pid {0} is prof itself")]
    Myself(i32),
    /// No right to trace it.
    #[error("not permitted to trace pid {pid} ({comm}): {why}")]
    Permission {
        /// The process.
        pid: i32,
        /// Its name.
        comm: String,
        /// Which knob, and what to do.
        why: String,
    },
    /// A debugger is there already.
    #[error("pid {pid} ({comm}) is already traced by pid {tracer} ({tracer_comm}); end that first")]
    Traced {
        /// The process.
        pid: i32,
        /// Its name.
        comm: String,
        /// Who traces it.
        tracer: i32,
        /// The tracer's name.
        tracer_comm: String,
    },
    /// A process that shares its memory, and could not be stopped with it.
    #[error(
        "pid {other} has the same memory as pid {pid} ({comm}), runs the same code, and can't be stopped with it: {why}"
    )]
    Shared {
        /// The process.
        pid: i32,
        /// Its name.
        comm: String,
        /// The one that shares its memory.
        other: i32,
        /// Why that can't be stopped.
        why: String,
    },
    /// It has prof's jumps from its parent.
    #[error(
        "pid {0} ({1}) was forked from a process that was recorded then, and has prof's jumps in its functions, switched off, until it ends or runs another program: it can't be recorded, as the older prof that has recorded its parent does not say there what stood in their place; one that is forked from now on can"
    )]
    Inherited(i32, String),
    /// The hook's writes would fault.
    #[error(
        "thread {tid} of pid {pid} ({comm}) has the processor check that what it reads and writes is aligned (EFLAGS.AC), which prof's hook does not keep to; a recorded call would end it"
    )]
    ChecksAlignment {
        /// The process.
        pid: i32,
        /// Its name.
        comm: String,
        /// The thread.
        tid: i32,
    },
    /// Threads that can't be told apart.
    #[error(
        "threads {one} and {other} of pid {pid} ({comm}) have one thread pointer (made by clone without CLONE_SETTLS?), by which prof tells threads apart; what they allocate can't be recorded"
    )]
    OneThreadPointer {
        /// The process.
        pid: i32,
        /// Its name.
        comm: String,
        /// One of the threads.
        one: i32,
        /// Another one.
        other: i32,
    },
    /// Another width or instruction set.
    #[error(
        "pid {pid} ({comm}) is a {what} process, and this prof is for {ours}; use a prof built for {what}"
    )]
    WrongArch {
        /// The process.
        pid: i32,
        /// Its name.
        comm: String,
        /// What it is.
        what: String,
        /// What this prof is for.
        ours: &'static str,
    },
    /// seccomp strict mode.
    #[error(
        "pid {0} ({1}) runs in seccomp strict mode, where the kernel kills it for any system call but read, write, exit and sigreturn; it can't be recorded"
    )]
    StrictSeccomp(i32, String),
    /// The kernel checks its returns.
    #[error(
        "pid {0} ({1}) runs with a shadow stack (CET, or a guarded control stack), which prof does not support; start it with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off, on AArch64 glibc.cpu.aarch64_gcs=0"
    )]
    ShadowStack(i32, String),
    /// A seccomp filter that can't be suspended.
    #[error(
        "pid {pid} ({comm}) has a seccomp filter, which could kill it for the calls that prof has it make; {how}; or say with --filter-allows that it lets memfd_create, mmap, mremap, munmap, munlock, mprotect, madvise, rt_sigaction, rt_sigprocmask, rt_sigreturn, sigaltstack and close pass, as the default profiles of Docker, containerd, CRI-O and Podman do"
    )]
    Seccomp {
        /// The process.
        pid: i32,
        /// Its name.
        comm: String,
        /// What to do.
        how: &'static str,
    },
    /// A seccomp filter that kills for what prof needs.
    #[error(
        "pid {pid} ({comm}) has a seccomp filter that kills it for {call}, which prof has it call; prof can suspend the filter, but were prof killed at that moment, the process would be, too; --filter-allows takes that risk, where prof has CAP_SYS_ADMIN"
    )]
    FilterKills {
        /// The process.
        pid: i32,
        /// Its name.
        comm: String,
        /// For what.
        call: &'static str,
    },
    /// The same filter did not let a process of prof's own do it.
    #[error(
        "pid {pid} ({comm}) has the same seccomp filter as prof, and in a trial of the calls that prof has it make {what}; run prof outside of the container as root"
    )]
    TrialFailed {
        /// The process.
        pid: i32,
        /// Its name.
        comm: String,
        /// What has happened.
        what: &'static str,
    },
    /// Its own system calls are caught.
    #[error(
        "pid {0} ({1}) has its system calls caught by a handler of its own (PR_SET_SYSCALL_USER_DISPATCH, as Wine does), where the calls that prof makes it do would end; try again at a moment when they pass"
    )]
    Dispatched(i32, String),
    /// Somebody records it.
    #[error("pid {pid} ({comm}) is already being recorded, to {path}; end that with `prof detach {pid}`", path = path.display())]
    AlreadyRecorded {
        /// The process.
        pid: i32,
        /// Its name.
        comm: String,
        /// The recording.
        path: PathBuf,
    },
    /// Not recorded, where a recorded one is needed.
    #[error("pid {0} is not being recorded; start with `prof attach {0}`")]
    NotRecorded(i32),
    /// Recorded by another version, of which this one does not know enough.
    #[error(
        "pid {pid} is being recorded by {by}, of which this prof does not know enough: run `prof detach {pid}` with that one"
    )]
    OtherVersion {
        /// The process.
        pid: i32,
        /// Which version.
        by: String,
    },
    /// Nothing in its code to return from a signal with.
    #[error(
        "pid {0} ({1}) has no code that returns from signal handlers, which prof needs to be able to die safely (a static program that handles no signals?); start it with another libc, or link it dynamically"
    )]
    NoSigreturn(i32, String),
    /// No malloc anywhere.
    #[error(
        "pid {0} ({1}) has no allocator that prof can find: no module has the symbols malloc and free; name its own with --alloc-fn and --free-fn"
    )]
    NoAllocator(i32, String),
    /// A program whose runtime has a heap of its own.
    #[error(
        "pid {0} ({1}) is a Go program without cgo: its runtime takes memory from the kernel itself and calls no malloc, so there is nothing to hook; net/http/pprof shows its heap"
    )]
    Go(i32, String),
    /// The same in a static executable.
    #[error(
        "pid {0} ({1}) is a static executable without the symbols malloc and free (stripped?), so prof can't find its allocator; run one that has its symbol table"
    )]
    StaticNoAllocator(i32, String),
    /// An allocator that was found, and none of its functions can be patched.
    #[error(
        "pid {pid} ({comm}): none of the functions of its allocator can be hooked, so there would be nothing to record: {function}{}, {reason}; nothing was changed; name others with --alloc-fn and --free-fn", if module.is_empty() { String::new() } else { format!(" in {module}") }
    )]
    NothingHooked {
        /// The process.
        pid: i32,
        /// Its name.
        comm: String,
        /// One of the functions.
        function: String,
        /// Where it is.
        module: String,
        /// Why it can't be hooked.
        reason: String,
    },
    /// Its cgroup has no room for what prof adds.
    #[error(
        "pid {pid} ({comm}) has too little memory left for prof, whose smallest recording adds up to {needed}: {little}; nothing was changed; raise that limit, or run prof outside of that cgroup"
    )]
    Memory {
        /// The process.
        pid: i32,
        /// Its name.
        comm: String,
        /// What is needed.
        needed: String,
        /// Which cgroup, and what there is.
        little: String,
    },
    /// No allocator where the user wanted one.
    #[error(
        "pid {pid} ({comm}) has no functions {prefix}malloc and {prefix}free{}", if modules.is_empty() { String::new() } else { format!(" in {modules}") }
    )]
    NoChosenAllocator {
        /// The process.
        pid: i32,
        /// Its name.
        comm: String,
        /// The prefix that was asked for.
        prefix: String,
        /// The modules that were asked for.
        modules: String,
    },
    /// A module that the user has named is not there.
    #[error("pid {pid} ({comm}) has no module {module}; it has {there}")]
    NoModule {
        /// The process.
        pid: i32,
        /// Its name.
        comm: String,
        /// What was asked for.
        module: String,
        /// What there is.
        there: String,
    },
    /// A function that the user has named is not there.
    #[error(
        "pid {pid} ({comm}): {module} has no function {function} in its symbol tables (C++ names are mangled there: try `nm`)"
    )]
    NoFunction {
        /// The process.
        pid: i32,
        /// Its name.
        comm: String,
        /// The module.
        module: String,
        /// What was asked for.
        function: String,
    },
}

/// What went wrong on the way.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Refused beforehand.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It ended meanwhile.
    #[error("pid {0} has ended; nothing of prof is left")]
    Gone(i32),
    /// It is another program meanwhile.
    #[error(
        "pid {0} is replacing its program (exec), which takes what prof had begun in it away; try again when the new program has started"
    )]
    Replaced(i32),
    /// A thread did not stop in time.
    #[error(
        "thread {tid} of pid {pid} did not stop within {ms} ms (is it stuck in the kernel, in state D?); nothing was changed; try again, or wait longer with --timeout"
    )]
    NotStopping {
        /// The process.
        pid: i32,
        /// The thread.
        tid: i32,
        /// How long prof waited.
        ms: u128,
    },
    /// prof itself may not make files of the ring's size.
    #[error(
        "the ring takes {0} bytes, and prof may not make a file of that size (`ulimit -f`); raise that limit"
    )]
    FileLimit(usize),
    /// No thread on which a system call can be made.
    #[error(
        "pid {0} has no thread with enough stack for a remote system call, and no room behind its code for one; nothing was changed; try again, as its threads may be elsewhere by then"
    )]
    NoThread(i32),
    /// prof itself may not open enough files.
    #[error(
        "prof needs {1} descriptors more than it has for working on pid {0}, and may not open so many (`ulimit -n`); nothing was changed, raise that limit"
    )]
    NoDescriptors(i32, usize),
    /// prof's own memory has run out.
    #[error(
        "prof itself can get no more memory (`ulimit -v`, a cgroup?), so pid {0} is left as it was; raise that limit, or ask for a smaller ring with --ring-size"
    )]
    NoMemory(i32),
    /// Memory of the target.
    #[error(
        "can't {what} {len} bytes at {addr} in pid {pid}: {errno}; try again, as the process may have unmapped them at that moment"
    )]
    Memory {
        /// `read` or `write`.
        what: &'static str,
        /// The process.
        pid: i32,
        /// Where.
        addr: RemoteAddr,
        /// How many.
        len: usize,
        /// Why.
        errno: std::io::Error,
    },
    /// A system call of ours.
    #[error(
        "prof could not {what} pid {pid}: {errno}; try again; `prof detach {pid}` takes out what may be left of prof in it"
    )]
    Sys {
        /// What it was for, up to the process.
        what: &'static str,
        /// The process.
        pid: i32,
        /// Why.
        errno: Errno,
    },
    /// A system call that the target was made to do.
    #[error(
        "prof had pid {pid} make the system call {what}, and the kernel refused that: {errno}; try again; `prof detach {pid}` takes out what may be left of prof in it"
    )]
    Remote {
        /// Which.
        what: &'static str,
        /// The process.
        pid: i32,
        /// Why.
        errno: Errno,
    },
    /// Its address space is limited.
    #[error(
        "pid {pid} may not map the memory that prof needs: its address space is limited to {limit} bytes; raise that with `prlimit --pid {pid} --as=unlimited`, or `ulimit -v` before it starts"
    )]
    AddressSpace {
        /// The process.
        pid: i32,
        /// `RLIMIT_AS`.
        limit: u64,
    },
    /// It has as many mappings as the kernel lets a process have.
    #[error(
        "pid {pid} has {count} mappings, and prof needs some more than it may have ({most}); raise that with `sysctl vm.max_map_count={more}`", more = most.saturating_mul(2)
    )]
    Mappings {
        /// The process.
        pid: i32,
        /// How many.
        count: u64,
        /// `vm.max_map_count`.
        most: u64,
    },
    /// Its table of descriptors is full.
    #[error(
        "pid {pid} has all descriptors open that it may have ({limit}), and prof needs one for a moment while it stands still; nothing was changed; raise that with `prlimit --pid {pid} --nofile={more}`, or wait until it has closed one", more = limit + 1
    )]
    Descriptors {
        /// The process.
        pid: i32,
        /// `RLIMIT_NOFILE`.
        limit: u64,
    },
    /// It locks all that it maps, and may lock no more.
    #[error(
        "pid {pid} locks all memory that it maps (mlockall MCL_FUTURE), and has locked all of the {limit} bytes that it may; prof needs a page of that for a moment; nothing was changed; raise that with `prlimit --pid {pid} --memlock={more}`", more = limit + (64 << 10)
    )]
    LockedMemory {
        /// The process.
        pid: i32,
        /// `RLIMIT_MEMLOCK`.
        limit: u64,
    },
    /// Something that prof needs for itself.
    #[error("prof itself could not {what}: {errno}; see `ulimit -a` for what it may have")]
    Own {
        /// What.
        what: &'static str,
        /// Why.
        errno: Errno,
    },
    /// A program that is to be recorded from its start.
    #[error("can't start it: {errno}{}", advice(errno))]
    Start {
        /// Why.
        errno: std::io::Error,
    },
    /// A file.
    #[error("can't open or read {path}: {errno}", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        errno: std::io::Error,
    },
    /// A detach that could not be done, after recording was switched off for it.
    #[error(
        "{why}; recording is off, and what prof has in pid {pid} does nothing: `prof detach {pid}` takes it out later", why = why.without_claim()
    )]
    Unfinished {
        /// The process.
        pid: i32,
        /// Why.
        why: Box<Error>,
    },
    /// prof's own file is damaged.
    #[error(
        "this prof is damaged ({0} in the part of it that is mapped into processes); install it again"
    )]
    Broken(String),
    /// What the target's memory says makes no sense.
    #[error("pid {pid}: {what}")]
    Nonsense {
        /// The process.
        pid: i32,
        /// What.
        what: String,
    },
}

/// What to do where a program can't be started.
fn advice(errno: &std::io::Error) -> &'static str {
    match errno.raw_os_error() {
        Some(libc::ENOENT) => {
            "; no program of that name is in PATH, or what its first line names is not there"
        }
        Some(libc::EACCES) => "; make it executable, or give the program that reads it (sh FILE)",
        _ => "",
    }
}

/// As usual.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The same in the words of what is behind it: whatever fails of a process that ends, in the midst of
    /// an attach or a detach, fails for that reason.
    #[must_use]
    pub fn explained(self, pid: i32) -> Self {
        use Refusal::{NoSuchProcess, Zombie};
        match self {
            Self::Refused(NoSuchProcess(_) | Zombie(..)) => self,
            _ if proc::has_ended(pid) => Self::Gone(pid),
            Self::Gone(_) => Self::Replaced(pid),
            Self::Remote { what: "mmap", errno: Errno::ENOMEM, .. } => {
                match (proc::mappings_used_up(pid), proc::address_space_limit(pid)) {
                    (Some((count, most)), _) => Self::Mappings { pid, count, most },
                    (None, Some(limit)) => Self::AddressSpace { pid, limit },
                    (None, None) => self,
                }
            }
            // Where these split a mapping in two.
            Self::Remote {
                what: "mprotect" | "munmap" | "mremap" | "madvise",
                errno: Errno::ENOMEM,
                ..
            } => match proc::mappings_used_up(pid) {
                Some((count, most)) => Self::Mappings { pid, count, most },
                None => self,
            },
            Self::Remote { what: "mmap", errno: Errno::EAGAIN, .. } => {
                match proc::soft_limit(pid, "Max locked memory") {
                    Some(limit) => Self::LockedMemory { pid, limit },
                    None => self,
                }
            }
            Self::Remote { what: "memfd_create", errno: Errno::EMFILE, .. } => {
                let limit = proc::soft_limit(pid, "Max open files");
                Self::Descriptors { pid, limit: limit.unwrap_or(0) }
            }
            e => e,
        }
    }

    /// The same where something has changed by then.
    pub(crate) fn without_claim(&self) -> String {
        self.to_string().replace("; nothing was changed", "")
    }

    /// Says what went wrong beside; that a process has ended leaves nothing to be said.
    pub(crate) fn warn(&self, pid: i32, what: &str) {
        if matches!(self, Self::Gone(_)) || proc::has_ended(pid) {
            log::info!("{what}: {self}");
        } else {
            log::warn!("{what}: {self}");
        }
    }
}
