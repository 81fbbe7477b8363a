//! Kills a prof at a chosen system call, and collectors.

use super::{until, writers};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// System calls that change nothing: a kill there leaves nothing new half done.
const READS: [libc::c_long; 9] = [
    libc::SYS_kcmp,
    libc::SYS_lseek,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_read,
    libc::SYS_process_vm_readv,
    libc::SYS_statx,
    libc::SYS_clock_nanosleep,
    libc::SYS_getdents64,
];

/// Kills the collector of a recording, and waits for its end.
pub fn kill_collector(recording: &Path) {
    let mut collector = Vec::new();
    // While a fold takes its name, nobody has the recording open for a moment.
    until("somebody writes to the recording", || {
        collector = writers(recording);
        !collector.is_empty()
    });
    for pid in &collector {
        let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
    }
    let has_ended = |pid: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        !status.contains("State:") || status.contains("State:\tZ")
    };
    until("the collector has ended", || collector.iter().all(has_ended));
}

/// Returns whether this process may open what other processes have mapped: a collector can follow a killed one then.
pub fn may_open_mappings() -> bool {
    let all = std::fs::read_dir("/proc/self/map_files").into_iter().flatten().flatten();
    all.map(|entry| entry.path()).any(|path| std::fs::File::open(path).is_ok())
}

/// Runs a command and kills it when its threads have made this many system calls that may change something (`None`:
/// never). Returns their number, and whether it was killed.
pub fn killed_at(command: Command, at: Option<usize>) -> (usize, bool) {
    killed_when(command, |count| at.is_some_and(|at| count >= at))
}

/// Runs a command and kills it at the first system call at which `when` is true. `when` gets the number of calls that
/// may change something. Returns the number of those, and whether the command was killed.
///
/// The command's child processes are neither traced nor killed.
#[allow(clippy::zombie_processes)] // waited for below, with its threads
pub fn killed_when(mut command: Command, mut when: impl FnMut(usize) -> bool) -> (usize, bool) {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: the closure makes one system call and does not allocate.
    unsafe { command.pre_exec(|| Ok(ptrace::traceme()?)) };
    let child = command.spawn().expect("spawn");
    let pid = Pid::from_raw(child.id().cast_signed());
    waitpid(pid, None).expect("the stop at its exec");
    let options =
        Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_EXITKILL;
    ptrace::setoptions(pid, options).expect("options");
    ptrace::syscall(pid, None).expect("go on");
    let mut count = 0;
    loop {
        // Wait for children of this thread only: other tests wait for theirs.
        let any = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        let (tid, signal) = match waitpid(None, Some(any)).expect("wait") {
            WaitStatus::Exited(p, _) if p == pid => return (count, false),
            WaitStatus::Signaled(p, ..) if p == pid => return (count, true),
            WaitStatus::PtraceSyscall(tid) => {
                count += usize::from(enters(tid));
                if when(count) {
                    kill(pid, Signal::SIGKILL).expect("kill");
                    continue;
                }
                (tid, None)
            }
            // A new thread, or the event of the thread that made it.
            WaitStatus::Stopped(tid, Signal::SIGSTOP) | WaitStatus::PtraceEvent(tid, ..) => {
                (tid, None)
            }
            WaitStatus::Stopped(tid, signal) => (tid, Some(signal)),
            _ => continue,
        };
        // If the thread is gone meanwhile, the next wait reports it.
        let _ = ptrace::syscall(tid, signal);
    }
}

/// Returns whether a stopped thread is about to make a system call that counts.
fn enters(tid: Pid) -> bool {
    ptrace::syscall_info(tid).is_ok_and(|info| {
        info.op == libc::PTRACE_SYSCALL_INFO_ENTRY
            // SAFETY: `op` tells that the union holds the member for entries.
            && !READS.contains(&(unsafe { info.u.entry.nr } as libc::c_long))
    })
}
