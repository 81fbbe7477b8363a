//! What is asked about processes from more than one side: which thread stands for one, and who has the same
//! memory.

use crate::shared::MEMFD_NAME;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::string::{String, ToString};
use std::vec::Vec;

/// The resource of `kcmp` that is compared: the address space (`linux/kcmp.h`).
const KCMP_VM: i32 = 1;

/// The state of a process or thread, as in `/proc/PID/stat`; `None` if there is none with this id.
fn state(folder: &str) -> Option<u8> {
    let stat = fs::read(std::format!("{folder}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let after = stat.iter().rposition(|b| *b == b')')?;
    stat.get(after + 2).copied()
}

/// Whether there is a process or thread with this id that has not ended.
#[must_use]
pub fn lives(pid: i32) -> bool {
    !matches!(state(&std::format!("/proc/{pid}")), None | Some(b'Z' | b'X'))
}

/// The thread by which a process's memory and files can be reached: its first one, or another if that has
/// ended alone. `None`: all have ended.
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

/// The folder in `/proc` that shows a process's memory, files and limits: that of [`living_thread`].
#[must_use]
pub fn folder(pid: i32) -> String {
    match living_thread(pid) {
        Some(tid) if tid != pid => std::format!("/proc/{pid}/task/{tid}"),
        _ => std::format!("/proc/{pid}"),
    }
}

/// Whether two threads have one address space; `None` where the kernel does not say: it was built without
/// `kcmp`, forbids it, or one of them is gone. Threads that have ended have the same: none.
#[must_use]
pub fn same_memory(a: i32, b: i32) -> Option<bool> {
    // SAFETY: plain integers.
    match unsafe { libc::syscall(libc::SYS_kcmp, a, b, KCMP_VM, 0, 0) } {
        0 => Some(true),
        r if r > 0 => Some(false),
        _ => None,
    }
}

/// The lowest id that the kernel gives again when it has come to the last one (`RESERVED_PIDS`).
const FIRST_AGAIN: i32 = 300;
/// So many ids before the last one are looked at again after the first look, and later: a process gets its id
/// some time before others can see it.
const BEFORE: (i32, i32) = (4096, 32);

/// A process and those that share its memory.
#[derive(Debug)]
pub struct Sharers {
    pid: i32,
    others: Vec<i32>,
    /// The id that was given last before the last look.
    last: Option<i32>,
    /// Processes that have another memory, and so will have for as long as they live.
    strangers: BTreeSet<i32>,
}

impl Sharers {
    /// Looks at all processes: some microseconds for each, in which nothing is stopped.
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

    /// Looks at the processes that have begun since the last look. That is quick: ids are given in ascending
    /// order.
    pub fn look_again(&mut self) {
        // An id may have been given again.
        self.strangers.clear();
        if let Some(own) = living_thread(self.pid) {
            let ids = self.new_ids(BEFORE.1);
            self.add(own, &ids);
        }
    }

    /// The same while `stopped` and all other threads that are known are stopped: quicker still.
    pub fn look_while_stopped(&mut self, stopped: i32) {
        let ids = self.new_ids(BEFORE.1);
        self.add(stopped, &ids);
    }

    /// The ids that were given since the last look, and some before.
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
                // Ids of threads are among those that were given since.
                Some(true) if is_process(pid) => self.others.push(pid),
                Some(_) => drop(self.strangers.insert(pid)),
                // Most often there is no such process.
                None => {}
            }
        }
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The others.
    #[must_use]
    pub fn others(&self) -> &[i32] {
        &self.others
    }

    /// Whether one of the others still has that memory: it may have ended, or run another program.
    #[must_use]
    pub fn still_shares(&self, other: i32) -> bool {
        living_thread(self.pid).is_some_and(|own| match same_memory(own, own) {
            Some(true) => has_memory_of(own, other) == Some(true),
            _ => Ring::of(self.pid).is_some_and(|r| r.is_in(other)),
        })
    }
}

/// Whether a process has the memory of a living thread; `None`: there is none with this id.
fn has_memory_of(own: i32, pid: i32) -> Option<bool> {
    if same_memory(own, pid)? {
        return Some(true);
    }
    // Of a process whose first thread has ended alone another one is asked; what has ended altogether, and
    // threads of the kernel, have no executable either.
    let ended = fs::read_link(std::format!("/proc/{pid}/exe")).is_err();
    let other = if ended { living_thread(pid).filter(|t| *t != pid) } else { None };
    Some(other.is_some_and(|tid| same_memory(own, tid) == Some(true)))
}

/// Where the kernel does not compare memory: prof's ring, which children do not inherit, is mapped at the same
/// place in those that have the same.
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
        // The executable's name belongs to the memory.
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

/// The id that was given last in this pid namespace. `/proc/loadavg` says so, too, but may be another's file
/// there: containers have one that is made for them.
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
        // The kernel lets go of a vfork's parent right before the child gets its new memory.
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
