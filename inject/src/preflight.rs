//! Checks whether prof can attach. This happens while the target runs, before anything is touched.

use crate::permission::may_attach;
use crate::process::rings::ring_in;
use crate::process::translated::{self, Translator};
use crate::recorded::Recorded;
use crate::sandbox;
use crate::stopped::tracee::Tracee;
use crate::target::Target;
use crate::{Error, Refusal, Result};
use prof_arch::registers::HWCAP_GUARDED_STACK;
use prof_os::process::folder;
use prof_os::status::{Status, any_thread};
use prof_os::{Pid, limits, maps, process};
use std::fs;
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

/// Checks whether prof can attach to a process.
///
/// # Errors
/// A [`Refusal`] with the reason.
pub fn preflight(pid: Pid) -> Result<Target> {
    let (_, comm) = may_attach(pid)?;
    architecture(pid, &comm)?;
    // There may be ten thousands of threads, so each is read once.
    let [is_strict, has_shadow_stack] = any_thread(pid, [sandbox::is_strict, has_shadow_stack]);
    if is_strict {
        return Err(Refusal::StrictSeccomp(pid, comm).into());
    }
    if has_shadow_stack || has_guarded_stack(pid)? {
        return Err(Refusal::ShadowStack(pid, comm).into());
    }
    crate::process::sharing::can_be_stopped(pid, &comm)?;
    let maps = maps::of(pid)?;
    let count = maps.len() as u64;
    if let Some(most) = limits::mappings_exceeded(count, MAPPINGS) {
        return Err(Error::Mappings { pid, count, most });
    }
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
    Ok(Target { pid, name: comm, exe: process::exe(pid), cmdline: process::cmdline(pid) })
}

/// Number of mappings that a process has to be able to make: those of prof, and some hundred of its own while it is recorded, which
/// would fail else.
const MAPPINGS: u64 = 512;

/// Returns whether a thread has a shadow stack. Such a thread would be killed by any return that does not belong to a call, as
/// from prof's signal frame.
fn has_shadow_stack(status: &Status) -> bool {
    let features = status.field("x86_Thread_features");
    features.is_some_and(|f| f.split_whitespace().any(|w| w == "shstk"))
}

/// Returns whether a thread of the process has a guarded control stack, the shadow stack of AArch64. Only a stopped
/// thread shows it, so a thread is stopped where the processor has such stacks. Threads inherit the setting, so that
/// one thread tells for all.
fn has_guarded_stack(pid: Pid) -> Result<bool> {
    // SAFETY: the call only looks a number up.
    let capabilities = unsafe { libc::getauxval(libc::AT_HWCAP) } as u64;
    if !cfg!(target_arch = "aarch64") || capabilities & HWCAP_GUARDED_STACK == 0 {
        return Ok(false);
    }
    crate::isolated(|| {
        for tid in process::threads(pid)? {
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

/// Compares class, byte order and machine in the executable's ELF header with this prof's.
fn architecture(pid: Pid, comm: &str) -> Result<()> {
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
