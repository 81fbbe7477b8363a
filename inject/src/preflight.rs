//! Checks whether prof can attach. This happens while the target runs, before anything is touched.

use crate::process::proc::{self, Status};
use crate::process::translated::{self, Translator};
use crate::recorded::{Recorded, ring_in};
use crate::stopped::tracee::Tracee;
use crate::{Error, Refusal, RemoteMemory, Result};
use nix::errno::Errno;
use prof_arch::registers::HWCAP_GUARDED_STACK;
use prof_trace::process::folder;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// The machine that this prof is built for, and the machine number of its ELF files.
#[cfg(target_arch = "x86_64")]
const OURS: (&str, u16) = ("64-bit AMD64", goblin::elf::header::EM_X86_64);
#[cfg(target_arch = "aarch64")]
const OURS: (&str, u16) = ("64-bit AArch64", goblin::elf::header::EM_AARCH64);
#[cfg(target_arch = "arm")]
const OURS: (&str, u16) = ("32-bit ARM", goblin::elf::header::EM_ARM);
#[cfg(target_arch = "mips64")]
const OURS: (&str, u16) = if cfg!(target_endian = "big") {
    ("64-bit big-endian MIPS", goblin::elf::header::EM_MIPS)
} else {
    ("64-bit little-endian MIPS", goblin::elf::header::EM_MIPS)
};

/// A process that prof may attach to.
#[derive(Clone, Debug)]
pub struct Target {
    /// The process's pid, in this process's namespace.
    pub pid: i32,
    /// The process's name.
    pub name: String,
    /// Path of the executable.
    pub exe: std::path::PathBuf,
    /// The command-line arguments.
    pub cmdline: Vec<String>,
}

/// Checks that no other process traces a process. A thread of this prof may still do so: one that the target's thread
/// has not stopped for in time.
pub(crate) fn untraced(status: &Status, comm: &str) -> Result<()> {
    let (pid, tracer) = (status.number("Pid"), status.number("TracerPid").unwrap_or(0) as i32);
    if tracer == 0 || Path::new(&format!("/proc/self/task/{tracer}")).exists() {
        return Ok(());
    }
    let (pid, tracer_comm) = (pid.unwrap_or(0) as i32, proc::comm(tracer));
    Err(Refusal::Traced { pid, comm: comm.into(), tracer, tracer_comm }.into())
}

/// Checks whether prof can attach to a process.
///
/// # Errors
/// A [`Refusal`] with the reason.
pub fn preflight(pid: i32) -> Result<Target> {
    let Ok(status) = Status::of(pid) else { return Err(Refusal::NoSuchProcess(pid).into()) };
    let comm = proc::comm(pid);
    let tgid = status.number("Tgid").unwrap_or(i64::from(pid)) as i32;
    if tgid != pid {
        return Err(Refusal::IsThread { tid: pid, pid: tgid }.into());
    }
    if pid == std::process::id() as i32 {
        return Err(Refusal::Myself(pid).into());
    }
    if status.is_dead() {
        return Err(Refusal::Zombie(pid, comm).into());
    }
    if proc::is_kernel_thread(pid) {
        return Err(Refusal::KernelThread(pid, comm).into());
    }
    if status.field("VmSize").is_none() {
        return Err(Error::Gone(pid));
    }
    untraced(&status, &comm)?;
    may_trace(pid)?;
    crate::process::frozen::thawed(pid)?;
    architecture(pid, &comm)?;
    if status.number("Seccomp") == Some(1) {
        return Err(Refusal::StrictSeccomp(pid, comm).into());
    }
    if has_shadow_stack(pid) || has_guarded_stack(pid)? {
        return Err(Refusal::ShadowStack(pid, comm).into());
    }
    crate::process::sharing::can_be_stopped(pid, &comm)?;
    let maps = proc::maps(pid)?;
    if let Some(by @ Translator::Whole(_)) = translated::of(pid, &maps) {
        return Err(by.refusal(pid).into());
    }
    if ring_in(&maps).is_some() {
        match Recorded::open(pid) {
            Ok(r) if r.collector_lives() => {
                return Err(Refusal::AlreadyRecorded { pid, comm, path: r.path() }.into());
            }
            // Another version's hooks are in the process, and this prof does not know how to remove them.
            Err(e @ Error::Refused(Refusal::OtherVersion { .. })) => return Err(e),
            _ => {}
        }
    }
    Ok(Target { pid, name: comm, exe: proc::exe(pid), cmdline: proc::cmdline(pid) })
}

/// Returns whether a thread of the process has a shadow stack. Such a thread would be killed by any return that does
/// not belong to a call, as from prof's signal frame.
fn has_shadow_stack(pid: i32) -> bool {
    let enabled = |s: &Status| {
        s.field("x86_Thread_features").is_some_and(|f| f.split_whitespace().any(|w| w == "shstk"))
    };
    let tids = proc::threads(pid).unwrap_or_default();
    tids.into_iter().any(|tid| Status::of_thread(pid, tid).is_ok_and(|s| enabled(&s)))
}

/// Returns whether a thread of the process has a guarded control stack, the shadow stack of AArch64. Only a stopped
/// thread shows it, so a thread is stopped where the processor has such stacks. Threads inherit the setting, so that
/// one thread tells for all.
fn has_guarded_stack(pid: i32) -> Result<bool> {
    // SAFETY: the call only looks a number up.
    let capabilities = unsafe { libc::getauxval(libc::AT_HWCAP) } as u64;
    if !cfg!(target_arch = "aarch64") || capabilities & HWCAP_GUARDED_STACK == 0 {
        return Ok(false);
    }
    crate::isolated(|| {
        for tid in proc::threads(pid)? {
            let Some(mut t) = Tracee::seize(pid, tid)? else { continue };
            t.interrupt();
            // A thread that does not stop in time is skipped, and the next one is asked.
            let stopped = t.wait_stopped(Instant::now() + Duration::from_millis(100));
            let guarded = matches!(stopped, Ok(true)).then(|| t.has_guarded_stack());
            t.detach();
            if let Some(guarded) = guarded {
                return Ok(guarded);
            }
        }
        Ok(false)
    })
}

/// Checks whether this process may trace another. The kernel applies the checks of ptrace to memory access, too.
///
/// # Errors
/// With the reason, and what to do.
pub fn may_trace(pid: i32) -> Result<()> {
    match RemoteMemory::open(pid) {
        Ok(_) => {}
        Err(Error::Gone(_)) => return Err(Refusal::NoSuchProcess(pid).into()),
        Err(_) => return Err(permission(pid, true).into()),
    }
    if yama() == 3 {
        return Err(permission(pid, false).into());
    }
    Ok(())
}

/// Checks whether Yama could be why tracing was refused. Yama restricts tracing, but not access to memory.
///
/// # Errors
/// If it could be.
pub(crate) fn yama_allows(pid: i32) -> Result<()> {
    // SAFETY: the call has no arguments.
    let root = unsafe { libc::geteuid() } == 0;
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
    let me = std::process::id() as i32;
    Status::of(me).is_ok_and(|s| s.signals("CapEff") & CAP_SYS_PTRACE != 0)
}

fn permission(pid: i32, memory: bool) -> Refusal {
    let comm = proc::comm(pid);
    let scope = yama();
    let me = Status::of(std::process::id() as i32).unwrap_or_default();
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
    } else if namespace(pid).is_some_and(|its| Some(its) != namespace(std::process::id() as i32)) {
        "it runs in another user namespace; run prof as root there or outside, or with CAP_SYS_PTRACE".into()
    } else {
        "it is not dumpable (it has changed its user, is set-uid, or has called prctl PR_SET_DUMPABLE) or it has capabilities that prof lacks; run prof as root or with CAP_SYS_PTRACE".into()
    };
    Refusal::Permission { pid, comm, why }
}

/// Returns the refusal of a process whose seccomp filter can't be read.
pub(crate) fn filtered(pid: i32, errno: Option<Errno>) -> Refusal {
    // ptrace(2), PTRACE_O_SUSPEND_SECCOMP: only for a tracer that has no filter itself.
    let me = Status::of(std::process::id() as i32).unwrap_or_default();
    let how = match (me.number("Seccomp"), errno) {
        (_, Some(Errno::EINVAL) | None) => "this kernel can't show the filter to prof",
        (Some(2), _) => {
            "prof has a filter itself, as in most containers, and so can't read the filter of the process: run prof outside of the container as root"
        }
        _ => "run prof with CAP_SYS_ADMIN, so that it can read the filter",
    };
    Refusal::Seccomp { pid, comm: proc::comm(pid), how }
}

fn namespace(pid: i32) -> Option<std::path::PathBuf> {
    fs::read_link(folder(pid) + "/ns/user").ok()
}

/// Compares class, byte order and machine in the executable's ELF header with this prof's.
fn architecture(pid: i32, comm: &str) -> Result<()> {
    use std::io::Read;
    let mut head = [0u8; 20];
    let read = fs::File::open(folder(pid) + "/exe").and_then(|mut f| f.read_exact(&mut head));
    if read.is_err() || head[..4] != *b"\x7fELF" {
        return Ok(()); // the header says nothing
    }
    let big = head[5] == 2;
    let number = [head[18], head[19]];
    let machine = if big { u16::from_be_bytes(number) } else { u16::from_le_bytes(number) };
    let mine = (cfg!(target_pointer_width = "64"), cfg!(target_endian = "big"));
    if (head[4] == 2, big) == mine && machine == OURS.1 {
        return Ok(());
    }
    let width = if head[4] == 2 { 64 } else { 32 };
    let name = goblin::elf::header::machine_to_str(machine).trim_start_matches("EM_").to_owned();
    let what = format!("{width}-bit {name}");
    Err(Refusal::WrongArch { pid, comm: comm.into(), what, ours: OURS.0 }.into())
}
