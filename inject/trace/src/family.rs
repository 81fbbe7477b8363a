//! Worker processes: descendants of a process that run the same executable.

use crate::process::folder;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::string::String;
use std::vec::Vec;

/// Maximum number of workers returned.
const MOST: usize = 256;
/// Maximum number of threads per process whose children are read.
const MOST_THREADS: usize = 1024;

/// A worker process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Process id.
    pub pid: i32,
    /// Start time, in clock ticks since boot.
    pub start: u64,
    /// Resident set size, in bytes.
    pub rss: u64,
}

/// Returns the descendants of a process that run the same executable, as do all processes between; oldest
/// first.
#[must_use]
pub fn workers(pid: i32) -> Vec<Worker> {
    let Some(own) = program(pid) else { return Vec::new() };
    let by_parent = match fs::metadata(std::format!("/proc/{pid}/task/{pid}/children")) {
        Ok(_) => None,
        Err(_) => Some(all_by_parent()),
    };
    let (mut found, mut ask): (Vec<Worker>, Vec<i32>) = (Vec::new(), std::vec![pid]);
    while let Some(parent) = ask.pop() {
        let children = match &by_parent {
            Some(all) => all.get(&parent).cloned().unwrap_or_default(),
            None => children(parent),
        };
        for child in children {
            if found.len() >= MOST || found.iter().any(|w| w.pid == child) {
                continue;
            }
            let Some(worker) = Worker::of(child).filter(|_| program(child) == Some(own)) else {
                continue;
            };
            found.push(worker);
            ask.push(child);
        }
    }
    found.sort_unstable_by_key(|w| (w.start, w.pid));
    found
}

impl Worker {
    /// Reads the current state of a process; returns `None` if it has ended.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        let stat = Stat::of(pid)?;
        // SAFETY: the call takes no pointers.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as u64;
        Some(Self { pid, start: stat.start, rss: stat.rss.saturating_mul(page) })
    }
}

/// Fields of `/proc/PID/stat` of a process that has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Process id of the parent.
    pub parent: i32,
    /// User and system time, in clock ticks.
    pub cpu: u64,
    /// Start time, in clock ticks since boot.
    pub start: u64,
    /// Resident set size, in pages.
    pub rss: u64,
}

impl Stat {
    /// Reads the fields of a process; returns `None` if it has ended.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        Self::parse(&fs::read(std::format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(stat: &[u8]) -> Option<Self> {
        // The process name, in parentheses, may contain any byte.
        let after = stat.iter().rposition(|b| *b == b')')?;
        let text = String::from_utf8_lossy(stat.get(after + 1..)?);
        let fields: Vec<&str> = text.split_whitespace().collect();
        if matches!(*fields.first()?, "Z" | "X") {
            return None;
        }
        let number = |i: usize| fields.get(i)?.parse::<u64>().ok();
        Some(Self {
            parent: fields.get(1)?.parse().ok()?,
            cpu: number(11)?.saturating_add(number(12)?),
            start: number(19)?,
            rss: number(21)?,
        })
    }

    /// Returns the processor time, in ms.
    #[must_use]
    pub fn cpu_ms(&self) -> u64 {
        self.cpu.saturating_mul(1000) / clock_ticks()
    }

    /// Returns the age of the process, in ms; `None` if the kernel's uptime can't be read.
    #[must_use]
    pub fn age_ms(&self) -> Option<u64> {
        let text = fs::read_to_string("/proc/uptime").ok()?;
        let now: f64 = text.split_whitespace().next()?.parse().ok()?;
        let since = self.start as f64 / clock_ticks() as f64;
        Some(((now - since).max(0.0) * 1e3) as u64)
    }
}

fn clock_ticks() -> u64 {
    // SAFETY: the call takes no pointers.
    unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64
}

/// Returns device and inode of a process's executable.
fn program(pid: i32) -> Option<(u64, u64)> {
    fs::metadata(folder(pid) + "/exe").ok().map(|m| (m.dev(), m.ino()))
}

fn children(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(std::format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts =
        tasks.take(MOST_THREADS).filter_map(|t| fs::read_to_string(t.path().join("children")).ok());
    texts.flat_map(|t| numbers(&t)).collect()
}

fn numbers(text: &str) -> Vec<i32> {
    text.split_whitespace().filter_map(|w| w.parse().ok()).collect()
}

/// Returns all processes by parent, for kernels without `CONFIG_PROC_CHILDREN`.
fn all_by_parent() -> BTreeMap<i32, Vec<i32>> {
    let mut all: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    let dir = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in dir.filter_map(|e| e.file_name().to_str()?.parse().ok()) {
        if let Some(stat) = Stat::of(pid) {
            all.entry(stat.parent).or_default().push(pid);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_blanks_and_parentheses_are_passed_over() {
        let line = b"7 (a) b (c) S 3 7 7 0 -1 4194560 9 0 0 0 12 30 0 0 20 0 1 0 555 1000 77 1 0";
        let stat = Stat::parse(line).expect("a process");
        assert_eq!(stat, Stat { parent: 3, cpu: 42, start: 555, rss: 77 });
        assert_eq!(Stat::parse(b"7 (a) Z 3 7 7 0 -1 4 9 0 0 0 12 30 0 0 20 0 1 0 5 1 7"), None);
        assert_eq!(Stat::parse(b""), None);
    }

    #[test]
    fn a_child_of_another_program_is_no_worker() {
        let me = std::process::id() as i32;
        let mut other = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let pid = other.id() as i32;
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
