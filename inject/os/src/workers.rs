//! Worker processes: descendants of a process that run the same executable.

use crate::process::{self, folder, threads};
use crate::sharers::same_memory;
use crate::stat::Stat;
use crate::{Pid, page_size};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Maximum number of workers returned.
const MOST: usize = 256;
/// Maximum number of threads per process whose children are read.
const MOST_THREADS: usize = 1024;

/// A worker process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Process id.
    pub pid: Pid,
    /// Start time, in clock ticks since boot.
    pub start: u64,
    /// Resident set size, in bytes.
    pub rss: u64,
}

/// Returns the descendants of a process that run the same executable, as do all processes between; oldest
/// first.
#[must_use]
pub fn workers(pid: Pid) -> Vec<Worker> {
    let Some(own) = program(pid) else { return Vec::new() };
    let by_parent = match fs::metadata(format!("/proc/{pid}/task/{pid}/children")) {
        Ok(_) => None,
        Err(_) => Some(all_by_parent()),
    };
    let (mut found, mut ask): (Vec<Worker>, Vec<Pid>) = (Vec::new(), vec![pid]);
    while let Some(parent) = ask.pop() {
        let children = match &by_parent {
            Some(all) => all.get(&parent).cloned().unwrap_or_default(),
            None => children(parent),
        };
        for child in children {
            if ask.len() >= MOST || found.len() >= MOST || found.iter().any(|w| w.pid == child) {
                continue;
            }
            let Some(worker) = Worker::of(child).filter(|_| program(child) == Some(own)) else {
                continue;
            };
            ask.push(child);
            // One that shares the memory (clone with CLONE_VM, vfork) is recorded with it.
            if same_memory(pid, child) != Some(true) {
                found.push(worker);
            }
        }
    }
    found.sort_unstable_by_key(|w| (w.start, w.pid));
    found
}

impl Worker {
    /// Reads the current state of a process; returns `None` if it has ended.
    #[must_use]
    pub fn of(pid: Pid) -> Option<Self> {
        let stat = Stat::living(pid)?;
        Some(Self { pid, start: stat.start()?, rss: stat.rss()?.saturating_mul(page_size()) })
    }
}

/// Returns device and inode of a process's executable.
fn program(pid: Pid) -> Option<(u64, u64)> {
    fs::metadata(folder(pid) + "/exe").ok().map(|m| (m.dev(), m.ino()))
}

fn children(pid: Pid) -> Vec<Pid> {
    let tasks = threads(pid).unwrap_or_default().into_iter().take(MOST_THREADS);
    let text = |tid| fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).ok();
    tasks.filter_map(text).flat_map(|t| numbers(&t)).collect()
}

fn numbers(text: &str) -> Vec<Pid> {
    text.split_whitespace().filter_map(|w| w.parse().ok()).collect()
}

/// Returns all processes by parent, for kernels without `CONFIG_PROC_CHILDREN`.
fn all_by_parent() -> BTreeMap<Pid, Vec<Pid>> {
    let mut all: BTreeMap<Pid, Vec<Pid>> = BTreeMap::new();
    for pid in process::all() {
        if let Some(parent) = Stat::living(pid).and_then(|s| s.parent()) {
            all.entry(parent).or_default().push(pid);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_shares_the_memory_is_no_worker() {
        extern "C" fn wait(_: *mut libc::c_void) -> i32 {
            // SAFETY: the calls use no memory but their own arguments.
            unsafe {
                libc::pause();
                libc::_exit(0);
            }
        }
        let me = Pid::this();
        let started = |flags: i32| {
            let mut stack = vec![0u64; 8192];
            // SAFETY: the end of a stack of 64 KiB, aligned to 16 bytes, that is kept until the child has been waited for.
            let end = unsafe { stack.as_mut_ptr().add(stack.len()) }.cast();
            // SAFETY: the child only makes system calls, on a stack of its own.
            let pid =
                unsafe { libc::clone(wait, end, flags | libc::SIGCHLD, std::ptr::null_mut()) };
            (pid, stack)
        };
        let (sharer, fork) = (started(libc::CLONE_VM), started(0));
        let found: Vec<Pid> = workers(me).iter().map(|w| w.pid).collect();
        for (pid, _stack) in [&sharer, &fork] {
            // SAFETY: the calls take no memory of this process.
            unsafe {
                libc::kill(*pid, libc::SIGKILL);
                libc::waitpid(*pid, std::ptr::null_mut(), 0);
            }
        }
        let has = |pid: i32| found.contains(&Pid::from_raw(pid));
        assert!(has(fork.0) && !has(sharer.0), "{found:?}");
    }

    #[test]
    fn a_child_of_another_program_is_no_worker() {
        let me = Pid::this();
        let mut other = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let pid = Pid::from_u32(other.id());
        let own = program(me);
        let began = std::time::Instant::now();
        // Until its exec the child runs the same executable.
        while program(pid) == own && began.elapsed().as_secs() < 10 {
            std::thread::yield_now();
        }
        assert!(children(me).contains(&pid) || all_by_parent()[&me].contains(&pid));
        assert!(workers(me).iter().all(|w| w.pid != pid));
        other.kill().expect("kill");
        other.wait().expect("wait");
    }
}
