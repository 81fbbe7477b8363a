//! Finds the processes that share the address space of another one, or its descriptors.

use crate::maps::{self, Map};
use crate::process::{all as processes, exe, living_thread, process_of, threads};
use crate::{Pid, Result};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Type of `kcmp` that compares address spaces (`linux/kcmp.h`).
const KCMP_VM: i32 = 1;
/// Type of `kcmp` that compares tables of descriptors.
const KCMP_FILES: i32 = 2;

/// Returns whether two threads have the same address space; `None` if the kernel does not tell: it was built
/// without `kcmp`, forbids it, or a thread is gone. Two ended threads count as having the same, as neither
/// has any.
#[must_use]
pub fn same_memory(a: Pid, b: Pid) -> Option<bool> {
    same(KCMP_VM, a, b)
}

/// Returns whether two threads have the same table of descriptors; `None` as for [`same_memory`].
#[must_use]
pub fn same_descriptors(a: Pid, b: Pid) -> Option<bool> {
    same(KCMP_FILES, a, b)
}

fn same(kind: i32, a: Pid, b: Pid) -> Option<bool> {
    // SAFETY: the call takes integers only.
    match unsafe { libc::syscall(libc::SYS_kcmp, a.as_raw(), b.as_raw(), kind, 0, 0) } {
        0 => Some(true),
        r if r > 0 => Some(false),
        _ => None,
    }
}

/// Returns a process that shares the descriptors of process `pid`, and not its memory (`CLONE_FILES` without `CLONE_VM`).
/// Who stops all that share the memory does not stop this one. Where the kernel has no `kcmp`, none is found.
#[must_use]
pub fn shares_descriptors(pid: Pid) -> Option<Pid> {
    let own = living_thread(pid)?;
    let shares = |other: &Pid| {
        same_descriptors(own, *other) == Some(true) && same_memory(own, *other) == Some(false)
    };
    processes().into_iter().filter(|other| *other != pid).find(shares)
}

/// Lowest process id that the kernel assigns after the ids wrap around (`RESERVED_PIDS`).
const FIRST_AGAIN: i32 = 300;
/// Number of ids before the last one that are checked again: after the first look, and after later ones. A process
/// gets its id some time before `/proc` shows it.
const BEFORE: (i32, i32) = (4096, 32);

/// A process, and the other processes that share its address space.
#[derive(Debug)]
pub struct Sharers {
    pid: Pid,
    /// Name of the memfd that tells address spaces apart where `kcmp` does not.
    memfd: &'static str,
    others: Vec<Pid>,
    /// Last id that the kernel had assigned before the last look.
    last: Option<i32>,
    /// Processes known to have another address space. They keep that as long as they live.
    strangers: BTreeSet<Pid>,
}

impl Sharers {
    /// Checks all processes, at some microseconds each. It stops none of them.
    ///
    /// Where the kernel has no `kcmp`, those that map the memfd with this name at the same place have the same memory,
    /// provided that children don't inherit its mapping.
    #[must_use]
    pub fn of(pid: Pid, memfd: &'static str) -> Self {
        let (others, strangers) = (Vec::new(), BTreeSet::new());
        let mut all = Self { pid, memfd, others, last: last_id(), strangers };
        if let Some(own) = living_thread(pid) {
            all.add(own, &processes());
            let ids = all.new_ids(BEFORE.0);
            all.add(own, &ids);
        }
        all
    }

    /// Checks the processes that have begun since the last look. This is quick, as ids are assigned in
    /// ascending order.
    pub fn look_again(&mut self) {
        // The kernel may have assigned an id again.
        self.strangers.clear();
        if let Some(own) = living_thread(self.pid) {
            let ids = self.new_ids(BEFORE.1);
            self.add(own, &ids);
        }
    }

    /// Checks the new processes while `stopped` and all other known threads are stopped. This is quicker than
    /// [`Sharers::look_again`].
    pub fn look_while_stopped(&mut self, stopped: Pid) {
        let ids = self.new_ids(BEFORE.1);
        self.add(stopped, &ids);
    }

    /// Returns the ids assigned since the last look, and `before` earlier ones.
    fn new_ids(&mut self, before: i32) -> Vec<Pid> {
        let now = last_id();
        let ids = |from: i32, to: i32| (from..=to).map(Pid::from_raw);
        let ids = match (self.last, now) {
            (Some(from), Some(to)) if from <= to => ids((from - before).max(1), to).collect(),
            (Some(from), Some(to)) => {
                ids((from - before).max(1), highest_id()).chain(ids(FIRST_AGAIN, to)).collect()
            }
            _ => processes(),
        };
        self.last = now;
        ids
    }

    fn add(&mut self, own: Pid, pids: &[Pid]) {
        let me = Pid::this();
        let kcmp = same_memory(own, own) == Some(true);
        let mark = if kcmp { None } else { Mark::of(self.pid, self.memfd) };
        for pid in pids.iter().copied() {
            if pid == self.pid || pid == me || self.others.contains(&pid) {
                continue;
            }
            if self.strangers.contains(&pid) {
                continue;
            }
            let shares = match &mark {
                _ if kcmp => has_memory_of(own, pid),
                Some(mark) => Some(mark.is_in(pid)),
                None => None,
            };
            match shares {
                // Thread ids are among the new ids, too.
                Some(true) if process_of(pid) == Some(pid) => self.others.push(pid),
                Some(_) => drop(self.strangers.insert(pid)),
                // Most new ids belong to no process any more.
                None => {}
            }
        }
    }

    /// Checks the processes that have begun since the last look, and returns the threads of all processes that share the
    /// memory, each with its process id.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn threads(&mut self) -> Result<Vec<(Pid, Pid)>> {
        let mut tids: Vec<(Pid, Pid)> =
            threads(self.pid)?.into_iter().map(|tid| (self.pid, tid)).collect();
        self.look_again();
        for other in self.others.iter().filter(|p| self.still_shares(**p)) {
            let its = threads(*other).unwrap_or_default();
            tids.extend(its.into_iter().map(|tid| (*other, tid)));
        }
        Ok(tids)
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns the other processes.
    #[must_use]
    pub fn others(&self) -> &[Pid] {
        &self.others
    }

    /// Returns whether one of the others still has the memory; it may have ended, or executed another
    /// program.
    #[must_use]
    pub fn still_shares(&self, other: Pid) -> bool {
        living_thread(self.pid).is_some_and(|own| match same_memory(own, own) {
            Some(true) => has_memory_of(own, other) == Some(true),
            _ => Mark::of(self.pid, self.memfd).is_some_and(|m| m.is_in(other)),
        })
    }
}

/// Returns whether a process shares its memory with a living thread; `None`: no process has this id.
fn has_memory_of(own: Pid, pid: Pid) -> Option<bool> {
    if same_memory(own, pid)? {
        return Some(true);
    }
    // A process whose first thread has ended alone is compared by another thread. An ended process and a
    // kernel thread have no executable either, but no such thread.
    let ended = fs::read_link(format!("/proc/{pid}/exe")).is_err();
    let other = if ended { living_thread(pid).filter(|t| *t != pid) } else { None };
    Some(other.is_some_and(|tid| same_memory(own, tid) == Some(true)))
}

/// Substitute for `kcmp`: a mapping that children don't inherit, so that a process that has it at the same place shares
/// the memory.
struct Mark {
    map: Map,
    exe: PathBuf,
}

impl Mark {
    fn of(pid: Pid, memfd: &str) -> Option<Self> {
        let map = maps::of(pid).ok()?.into_iter().find(|m| m.is_memfd(memfd))?;
        let exe = Some(exe(pid)).filter(|e| !e.as_os_str().is_empty())?;
        Some(Self { map, exe })
    }

    fn is_in(&self, pid: Pid) -> bool {
        // The executable is a property of the address space.
        exe(pid) == self.exe && maps::of(pid).is_ok_and(|all| all.contains(&self.map))
    }
}

/// Returns the id assigned last in this pid namespace. `/proc/loadavg` shows it, too, but in a container may
/// be a substitute file.
fn last_id() -> Option<i32> {
    if let Ok(text) = fs::read_to_string("/proc/sys/kernel/ns_last_pid") {
        return text.trim().parse().ok();
    }
    let device = |path| fs::metadata(path).map(|m| m.dev()).ok();
    if device("/proc/loadavg") != device("/proc") {
        return None;
    }
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next_back()?.parse().ok()
}

fn highest_id() -> i32 {
    let text = fs::read_to_string("/proc/sys/kernel/pid_max").unwrap_or_default();
    text.trim().parse().unwrap_or(1 << 22)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_memory_and_children_do_not() {
        let me = Pid::this();
        let Some(same) = same_memory(me, me) else { return };
        assert!(same);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        // The kernel resumes the parent of a vfork right before the child gets its new memory.
        let began = std::time::Instant::now();
        let mut shared = Some(true);
        while shared == Some(true) && began.elapsed().as_secs() < 10 {
            shared = same_memory(me, Pid::from_u32(child.id()));
        }
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert_eq!(shared, Some(false));
    }
}
