//! Errors, with messages for the user.

use crate::{Refusal, RemoteAddr};
use nix::errno::Errno;
use prof_os::Pid;
use prof_trace::values::text::{bytes, time};
use std::path::PathBuf;
use std::time::Duration;

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
