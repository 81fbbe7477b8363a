//! Finds the tasks whose allocations are recorded, and the names of threads.

use crate::live::Map;
use prof_os::Pid;
use std::fs;
use std::path::PathBuf;

/// The tasks whose allocations are recorded. Frees are always those of the whole machine, as others may free what one
/// allocates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The whole machine's.
    Machine,
    /// A process's, without its children.
    Process(Pid),
    /// A process's and those of the children that it makes from then on.
    Family(Pid),
    /// The tasks of a cgroup, by its folder in the cgroup file system.
    Cgroup(PathBuf),
}

impl Scope {
    /// Returns the process; `None` for the machine and for a cgroup.
    pub fn process(&self) -> Option<Pid> {
        match self {
            Self::Process(pid) | Self::Family(pid) => Some(*pid),
            Self::Machine | Self::Cgroup(_) => None,
        }
    }
}

/// Returns the threads of a process; `None` if it is gone.
pub(crate) fn threads_of(pid: Pid) -> Option<Vec<Pid>> {
    let all = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    Some(all.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect())
}

/// The threads of a recording.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    numbers: Map<Pid, u32>,
    names: Map<Pid, String>,
    count: u32,
    /// Threads to write: number, id, name.
    pub new: Vec<(u32, Pid, String)>,
}

impl Threads {
    /// Returns the number of a thread in the recording.
    #[inline]
    pub(crate) fn number(&mut self, tid: Pid) -> u32 {
        match self.numbers.get(&tid) {
            Some(n) => *n,
            None => self.add(tid),
        }
    }

    fn add(&mut self, tid: Pid) -> u32 {
        self.count += 1;
        self.numbers.insert(tid, self.count);
        let name = self.names.entry(tid).or_insert_with(|| name_of(tid).unwrap_or_default());
        self.new.push((self.count, tid, name.clone()));
        self.count
    }

    /// Notes a thread's new name.
    pub(crate) fn rename(&mut self, tid: Pid, name: &[u8]) {
        let name = String::from_utf8_lossy(name).into_owned();
        if let Some(number) = self.numbers.get(&tid) {
            self.new.push((*number, tid, name.clone()));
        }
        self.names.insert(tid, name);
    }

    /// Notes that a thread made another one, which has its name, and is not the one that had its id before.
    pub(crate) fn fork(&mut self, tid: Pid, by: Pid) {
        self.numbers.remove(&tid);
        let name = self.names.get(&by).cloned().or_else(|| name_of(by));
        match name {
            Some(name) => self.names.insert(tid, name),
            None => self.names.remove(&tid),
        };
    }
}

fn name_of(tid: Pid) -> Option<String> {
    if tid == Pid::NONE {
        return Some("swapper".into()); // interrupts while a processor is idle
    }
    let bytes = fs::read(format!("/proc/{tid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim_end_matches('\n').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_keep_their_numbers_until_the_id_is_used_again() {
        let mut t = Threads::default();
        let (me, new) = (Pid::this(), Pid::from_raw(i32::MAX));
        let n = t.number(me);
        assert_eq!((t.number(me), n), (1, 1));
        assert!(!t.new[0].2.is_empty());
        t.rename(me, b"other");
        assert_eq!(t.new[1], (1, me, "other".to_owned()));
        t.fork(new, me);
        assert_eq!(t.number(new), 2);
        assert_eq!(t.new[2].2, "other");
        t.fork(new, me);
        assert_eq!(t.number(new), 3);
        assert!(threads_of(me).is_some_and(|all| all.contains(&me)));
    }
}
