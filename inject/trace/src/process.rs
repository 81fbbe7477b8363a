//! Queries about processes that several crates need: a living thread of a process, and the processes that
//! share its memory.

use crate::shared::MEMFD_NAME;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::string::{String, ToString};
use std::vec::Vec;

/// Type of `kcmp` that compares address spaces (`linux/kcmp.h`).
const KCMP_VM: i32 = 1;

/// Returns the state letter of a process or thread from its folder in `/proc`; `None` if there is none.
fn state(folder: &str) -> Option<u8> {
    let stat = fs::read(std::format!("{folder}/stat")).ok()?;
    // The process name, in parentheses, may contain any byte.
    let after = stat.iter().rposition(|b| *b == b')')?;
    stat.get(after + 2).copied()
}

/// Returns whether a process or thread with this id exists and has not ended.
#[must_use]
pub fn lives(pid: i32) -> bool {
    !matches!(state(&std::format!("/proc/{pid}")), None | Some(b'Z' | b'X'))
}

/// Returns a thread through which `/proc` shows a process's memory and files: the first one, or another if
/// the first has ended alone. `None`: all have ended.
#[must_use]
pub fn living_thread(pid: i32) -> Option<i32> {
    if lives(pid) {
        return Some(pid);
    }
    tasks(pid).into_iter().find(|t| lives(*t))
}

fn tasks(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(std::format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|t| t.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the folder in `/proc` that shows a process's memory, files and limits: that of [`living_thread`].
#[must_use]
pub fn folder(pid: i32) -> String {
    match living_thread(pid) {
        Some(tid) if tid != pid => std::format!("/proc/{pid}/task/{tid}"),
        _ => std::format!("/proc/{pid}"),
    }
}

/// Returns whether two threads have the same address space; `None` if the kernel does not tell: it was built
/// without `kcmp`, forbids it, or a thread is gone. Two ended threads count as having the same, as neither
/// has any.
#[must_use]
pub fn same_memory(a: i32, b: i32) -> Option<bool> {
    // SAFETY: the call takes integers only.
    match unsafe { libc::syscall(libc::SYS_kcmp, a, b, KCMP_VM, 0, 0) } {
        0 => Some(true),
        r if r > 0 => Some(false),
        _ => None,
    }
}

/// Lowest process id that the kernel assigns after the ids wrap around (`RESERVED_PIDS`).
const FIRST_AGAIN: i32 = 300;
/// How many ids before the last one are checked again: after the first look, and after later ones. A process
/// gets its id some time before `/proc` shows it.
const BEFORE: (i32, i32) = (4096, 32);

/// A process, and the other processes that share its address space.
#[derive(Debug)]
pub struct Sharers {
    pid: i32,
    others: Vec<i32>,
    /// Last id that the kernel had assigned before the last look.
    last: Option<i32>,
    /// Processes known to have another address space. They keep that as long as they live.
    strangers: BTreeSet<i32>,
}

impl Sharers {
    /// Checks all processes, at some microseconds each. It stops none of them.
    #[must_use]
    pub fn of(pid: i32) -> Self {
        let mut all = Self { pid, others: Vec::new(), last: last_id(), strangers: BTreeSet::new() };
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
    pub fn look_while_stopped(&mut self, stopped: i32) {
        let ids = self.new_ids(BEFORE.1);
        self.add(stopped, &ids);
    }

    /// Returns the ids assigned since the last look, and `before` earlier ones.
    fn new_ids(&mut self, before: i32) -> Vec<i32> {
        let now = last_id();
        let ids = match (self.last, now) {
            (Some(from), Some(to)) if from <= to => ((from - before).max(1)..=to).collect(),
            (Some(from), Some(to)) => {
                ((from - before).max(1)..=highest_id()).chain(FIRST_AGAIN..=to).collect()
            }
            _ => processes(),
        };
        self.last = now;
        ids
    }

    fn add(&mut self, own: i32, pids: &[i32]) {
        let me = std::process::id().cast_signed();
        let kcmp = same_memory(own, own) == Some(true);
        let ring = if kcmp { None } else { Ring::of(self.pid) };
        for pid in pids.iter().copied() {
            if pid == self.pid || pid == me || self.others.contains(&pid) {
                continue;
            }
            if self.strangers.contains(&pid) {
                continue;
            }
            let shares = match &ring {
                _ if kcmp => has_memory_of(own, pid),
                Some(ring) => Some(ring.is_in(pid)),
                None => None,
            };
            match shares {
                // Thread ids are among the new ids, too.
                Some(true) if is_process(pid) => self.others.push(pid),
                Some(_) => drop(self.strangers.insert(pid)),
                // Most new ids belong to no process any more.
                None => {}
            }
        }
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns the other processes.
    #[must_use]
    pub fn others(&self) -> &[i32] {
        &self.others
    }

    /// Returns whether one of the others still has the memory; it may have ended, or executed another
    /// program.
    #[must_use]
    pub fn still_shares(&self, other: i32) -> bool {
        living_thread(self.pid).is_some_and(|own| match same_memory(own, own) {
            Some(true) => has_memory_of(own, other) == Some(true),
            _ => Ring::of(self.pid).is_some_and(|r| r.is_in(other)),
        })
    }
}

/// Returns whether a process shares its memory with a living thread; `None`: no process has this id.
fn has_memory_of(own: i32, pid: i32) -> Option<bool> {
    if same_memory(own, pid)? {
        return Some(true);
    }
    // A process whose first thread has ended alone is compared by another thread. An ended process and a
    // kernel thread have no executable either, but no such thread.
    let ended = fs::read_link(std::format!("/proc/{pid}/exe")).is_err();
    let other = if ended { living_thread(pid).filter(|t| *t != pid) } else { None };
    Some(other.is_some_and(|tid| same_memory(own, tid) == Some(true)))
}

/// Substitute for `kcmp`. Children do not inherit the mapping of prof's ring, so a process that has it at the
/// same place shares the memory.
struct Ring {
    line: Vec<u8>,
    exe: PathBuf,
}

impl Ring {
    fn of(pid: i32) -> Option<Self> {
        let name = std::format!("/memfd:{MEMFD_NAME}");
        let maps = fs::read(folder(pid) + "/maps").ok()?;
        let has_name = |l: &&[u8]| l.windows(name.len()).any(|w| w == name.as_bytes());
        let line = maps.split(|b| *b == b'\n').find(has_name)?.to_vec();
        Some(Self { line, exe: exe(pid)? })
    }

    fn is_in(&self, pid: i32) -> bool {
        // The executable is a property of the address space.
        exe(pid).as_ref() == Some(&self.exe)
            && fs::read(folder(pid) + "/maps")
                .is_ok_and(|maps| maps.split(|b| *b == b'\n').any(|l| l == self.line))
    }
}

fn exe(pid: i32) -> Option<PathBuf> {
    fs::read_link(folder(pid) + "/exe").ok()
}

fn processes() -> Vec<i32> {
    let dir = fs::read_dir("/proc").into_iter().flatten().flatten();
    dir.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

fn is_process(pid: i32) -> bool {
    let status = fs::read_to_string(std::format!("/proc/{pid}/status")).unwrap_or_default();
    let group = status.lines().find_map(|l| l.strip_prefix("Tgid:"));
    group.is_some_and(|g| g.trim() == pid.to_string())
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
    fn the_first_thread_stands_for_a_process_that_lives() {
        let me = std::process::id() as i32;
        assert!(lives(me));
        assert_eq!(living_thread(me), Some(me));
        assert_eq!(folder(me), std::format!("/proc/{me}"));
    }

    #[test]
    fn an_ended_process_has_no_thread() {
        let mut child = std::process::Command::new("true").spawn().expect("true");
        let pid = child.id() as i32;
        while lives(pid) {
            std::thread::yield_now();
        }
        assert_eq!(living_thread(pid), None);
        child.wait().expect("wait");
        assert_eq!(living_thread(pid), None);
        assert_eq!(same_memory(std::process::id() as i32, pid), None);
    }

    #[test]
    fn threads_share_memory_and_children_do_not() {
        let me = std::process::id() as i32;
        let Some(same) = same_memory(me, me) else { return };
        assert!(same);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        // The kernel resumes the parent of a vfork right before the child gets its new memory.
        let began = std::time::Instant::now();
        let mut shared = Some(true);
        while shared == Some(true) && began.elapsed().as_secs() < 10 {
            shared = same_memory(me, child.id() as i32);
        }
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert_eq!(shared, Some(false));
    }
}
