//! Checks whether this process may trace another, and explains why not: its user, its capabilities, Yama, another tracer.

use crate::process::frozen;
use crate::{Error, Refusal, RemoteMemory, Result};
use nix::errno::Errno;
use prof_os::pid_namespace::Proc;
use prof_os::process::folder;
use prof_os::status::Status;
use prof_os::{Pid, process};
use std::fs;
use std::path::Path;

/// Checks whether prof may attach to a process, by what the kernel shows of it. Returns the status and the name of the
/// process.
///
/// # Errors
/// A [`Refusal`] with the reason.
pub(crate) fn may_attach(pid: Pid) -> Result<(Status, String)> {
    may_name_processes()?;
    let Ok(status) = Status::of(pid) else { return Err(Refusal::NoSuchProcess(pid).into()) };
    let comm = process::comm(pid);
    let tgid = status.pid("Tgid").unwrap_or(pid);
    if tgid != pid {
        return Err(Refusal::IsThread { tid: pid, pid: tgid }.into());
    }
    if pid == Pid::this() {
        return Err(Refusal::Myself(pid).into());
    }
    is_program(pid, &status)?;
    if status.field("VmSize").is_none() {
        return Err(Error::Gone(pid));
    }
    untraced(&status, &comm)?;
    may_trace(pid)?;
    frozen::thawed(pid)?;
    Ok((status, comm))
}

/// Checks that the numbers of processes in `/proc` are those that this process's system calls take. Otherwise a number names
/// one process in `/proc` and another, or none, for ptrace and kill.
///
/// # Errors
/// If they are those of another pid namespace.
pub fn may_name_processes() -> Result<()> {
    let why = match Proc::of_this_process() {
        Proc::Own => return Ok(()),
        Proc::Above(shown) => format!(
            "prof is process {}, and {shown} there, so system calls do not take its numbers; run prof outside of its \
             namespace, from where it reaches all processes in it, or with the namespace's own /proc (`unshare --pid \
             --fork --mount-proc`, `nsenter --pid --mount`)",
            Pid::this()
        ),
        Proc::Other => "it does not show prof, if it is mounted at all; run prof where /proc/self exists (with `nsenter \
                        --mount` that takes `--pid`, too)"
            .into(),
    };
    Err(Refusal::OtherProc(why).into())
}

/// Checks that a process has memory to look at.
///
/// # Errors
/// If `/proc` is that of another pid namespace, there is none with this id, or it has ended, or is a kernel thread.
pub fn has_memory(pid: Pid) -> Result<()> {
    may_name_processes()?;
    is_program(pid, &Status::of(pid).map_err(|_| Refusal::NoSuchProcess(pid))?)
}

fn is_program(pid: Pid, status: &Status) -> Result<()> {
    if status.is_dead() {
        return Err(Refusal::Zombie(pid, process::comm(pid)).into());
    }
    if process::is_kernel_thread(pid) {
        return Err(Refusal::KernelThread(pid, process::comm(pid)).into());
    }
    Ok(())
}

/// Checks that no other process traces a process. A thread of this prof may still do so: one that the target's thread
/// has not stopped for in time.
pub(crate) fn untraced(status: &Status, comm: &str) -> Result<()> {
    let tracer = status.pid("TracerPid").unwrap_or(Pid::NONE);
    if tracer == Pid::NONE || Path::new(&format!("/proc/self/task/{tracer}")).exists() {
        return Ok(());
    }
    let (pid, tracer_comm) = (status.pid("Pid").unwrap_or(Pid::NONE), process::comm(tracer));
    Err(Refusal::Traced { pid, comm: comm.into(), tracer, tracer_comm }.into())
}

/// Checks whether this process may trace another. The kernel applies the checks of ptrace to memory access, too.
///
/// # Errors
/// With the reason, and what to do.
pub(crate) fn may_trace(pid: Pid) -> Result<()> {
    may_name_processes()?;
    match RemoteMemory::open(pid) {
        Ok(_) => {}
        Err(Error::Gone(_)) => {
            return has_memory(pid).and(Err(Refusal::NoSuchProcess(pid).into()));
        }
        Err(_) => return Err(permission(pid, true).into()),
    }
    if yama() == 3 {
        return Err(permission(pid, false).into());
    }
    Ok(())
}

/// Finds out why the kernel has refused to let prof trace a thread of a process (EPERM). The preflight had found that the
/// process may be traced, so another tracer has come first, or the process has changed.
///
/// # Errors
/// The reason, if one is found.
pub(crate) fn explain_denial(pid: Pid) -> Result<()> {
    may_attach(pid)?;
    yama_allows(pid)
}

/// Checks whether Yama could be why tracing was refused. Yama restricts tracing, but not access to memory.
///
/// # Errors
/// If it could be.
fn yama_allows(pid: Pid) -> Result<()> {
    let root = nix::unistd::geteuid().is_root();
    if yama() > 0 && !root && !has_ptrace_capability() {
        return Err(permission(pid, false).into());
    }
    Ok(())
}

fn yama() -> i32 {
    let text = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

fn has_ptrace_capability() -> bool {
    const CAP_SYS_PTRACE: u128 = 1 << 19;
    let me = Pid::this();
    Status::of(me).is_ok_and(|s| s.signals("CapEff") & CAP_SYS_PTRACE != 0)
}

fn permission(pid: Pid, memory: bool) -> Refusal {
    let comm = process::comm(pid);
    let scope = yama();
    let me = Status::of(Pid::this()).unwrap_or_default();
    let it = Status::of(pid).unwrap_or_default();
    let uid =
        |s: &Status| s.field("Uid").and_then(|f| f.split_whitespace().next()).map(str::to_owned);
    let why = if scope == 3 {
        "kernel.yama.ptrace_scope is 3, which forbids tracing to everybody until the next boot"
            .into()
    } else if uid(&me) != uid(&it) {
        format!(
            "it runs as uid {}, prof as uid {}; run prof as that user, as root, or with CAP_SYS_PTRACE",
            uid(&it).unwrap_or_default(),
            uid(&me).unwrap_or_default()
        )
    } else if !memory && scope > 0 {
        format!(
            "kernel.yama.ptrace_scope is {scope}; run prof as root or with CAP_SYS_PTRACE, or `sudo sysctl kernel.yama.ptrace_scope=0`"
        )
    } else if namespace(pid).is_some_and(|its| Some(its) != namespace(Pid::this())) {
        "it runs in another user namespace; run prof as root there or outside, or with CAP_SYS_PTRACE".into()
    } else {
        "it is not dumpable (it has changed its user, is set-uid, or has called prctl PR_SET_DUMPABLE) or it has capabilities that prof lacks; run prof as root or with CAP_SYS_PTRACE".into()
    };
    Refusal::Permission { pid, comm, why }
}

/// Returns the refusal of a process whose seccomp filter can't be read.
pub(crate) fn filtered(pid: Pid, errno: Option<Errno>) -> Refusal {
    // ptrace(2), PTRACE_O_SUSPEND_SECCOMP: only for a tracer that has no filter itself.
    let me = Status::of(Pid::this()).unwrap_or_default();
    let how = match (me.number("Seccomp"), errno) {
        (_, Some(Errno::EINVAL) | None) => "this kernel can't show the filter to prof",
        (Some(2), _) => {
            "prof has a filter itself, as in most containers, and so can't read the filter of the process: run prof outside of the container as root"
        }
        _ => "run prof with CAP_SYS_ADMIN, so that it can read the filter",
    };
    Refusal::Seccomp { pid, comm: process::comm(pid), how }
}

fn namespace(pid: Pid) -> Option<std::path::PathBuf> {
    fs::read_link(folder(pid) + "/ns/user").ok()
}
