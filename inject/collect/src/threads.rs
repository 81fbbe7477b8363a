//! Tracks the target's threads: their numbers, names, and whether they are alive.

use crate::census::Census;
use crate::output::Output;
use prof_trace::process::Sharers;
use prof_trace::records::{Thread, kind};
use prof_trace::shared::{SLOTS, Shared};
use prof_trace::slots;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

/// Number of names that are read again per second.
const RENAMES: usize = 256;
/// Number of known threads above which ended ones are forgotten at once.
const MANY: usize = 4 * SLOTS;

/// What is known of one thread.
#[derive(Debug)]
pub struct Known {
    /// Sequence number of the segment that is read now, or comes next.
    pub next: u64,
    /// The last pass in which a segment was missing, and its number.
    pub gap: (u64, u64),
    tid: u32,
    name: String,
    written: bool,
}

/// All threads that have events.
#[derive(Debug)]
pub struct Threads {
    sharers: Sharers,
    known: HashMap<u32, Known>,
    fresh: Vec<u32>,
    nested: bool,
    outer: HashMap<u32, u32>,
    rename_at: u32,
    born: usize,
}

impl Threads {
    /// Creates an empty list for process `pid`.
    pub fn new(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let nested = ns_pids(&status).is_some_and(|n| n.0 != n.1);
        let (known, fresh, outer) = Default::default();
        let sharers = Sharers::of(pid.cast_signed());
        Self { sharers, known, fresh, nested, outer, rename_at: 0, born: 0 }
    }

    /// Returns the entry of a thread that has a segment in use; adds it if it is new.
    pub fn seen(&mut self, serial: u32, tid: u32) -> &mut Known {
        self.known.entry(serial).or_insert_with(|| {
            self.fresh.push(serial);
            self.born += 1;
            Known { next: 1, gap: (0, 0), tid, name: String::new(), written: false }
        })
    }

    /// Returns the number of threads that were first seen since the last call.
    pub fn born(&mut self) -> usize {
        std::mem::take(&mut self.born)
    }

    /// Returns whether there are more threads than a genuine target would have.
    pub fn are_many(&self) -> bool {
        self.known.len() > MANY
    }

    /// Writes the names of new threads.
    pub fn write(&mut self, out: &mut Output) {
        for serial in std::mem::take(&mut self.fresh) {
            self.write_name(serial, out);
        }
    }

    fn write_name(&mut self, serial: u32, out: &mut Output) {
        let Some(tid) = self.known.get(&serial).map(|k| k.tid) else { return };
        let name = self.name_of(tid);
        let Some(k) = self.known.get_mut(&serial) else { return };
        if k.written && (name.is_empty() || name == k.name) {
            return;
        }
        k.written = true;
        k.name.clone_from(&name);
        out.put(kind::THREAD, &Thread { number: serial, tid, name }.encode());
    }

    fn name_of(&mut self, tid: u32) -> String {
        let Some(outer) = self.outer_tid(tid) else { return String::new() };
        let folder = self.folders().find(|f| is_there(&f.join(outer.to_string())));
        let name = folder.and_then(|f| fs::read(f.join(format!("{outer}/comm"))).ok());
        let name = name.unwrap_or_default();
        String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
    }

    /// Converts a thread ID of the target's PID namespace to prof's.
    fn outer_tid(&mut self, tid: u32) -> Option<u32> {
        if !self.nested {
            return Some(tid);
        }
        if !self.outer.contains_key(&tid) {
            self.read_outer();
        }
        self.outer.get(&tid).copied()
    }

    fn read_outer(&mut self) {
        self.outer.clear();
        let folders: Vec<PathBuf> = self.folders().collect();
        let tasks = folders.iter().flat_map(fs::read_dir).flatten().flatten();
        for entry in tasks {
            let status = fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            if let Some((outer, inner)) = ns_pids(&status) {
                self.outer.insert(inner, outer);
            }
        }
    }

    /// Reads some names again, as threads are named after they have started.
    pub fn rename(&mut self, out: &mut Output) {
        let mut serials: Vec<u32> = self.known.keys().copied().collect();
        serials.sort_unstable();
        let from = serials.partition_point(|s| *s < self.rename_at);
        let some: Vec<u32> = serials[from..].iter().take(RENAMES).copied().collect();
        self.rename_at = some.last().filter(|_| some.len() == RENAMES).map_or(0, |s| s + 1);
        for serial in some {
            self.write_name(serial, out);
        }
    }

    /// Forgets threads whose serials are not among `used`, and that have no slot marked as live.
    pub fn forget(&mut self, shared: &Shared, used: impl Iterator<Item = u32>) {
        let mut keep: HashSet<u32> = used.collect();
        for s in shared.used_slots() {
            if slots::is_live(s.state.load(Relaxed)) {
                keep.insert(s.serial.load(Relaxed));
            }
        }
        self.known.retain(|serial, _| keep.contains(serial));
    }

    /// Returns the processes that share the target's memory, the target first.
    pub fn processes(&self) -> impl Iterator<Item = u32> + '_ {
        let all = std::iter::once(self.sharers.pid()).chain(self.sharers.others().iter().copied());
        all.map(i32::cast_unsigned)
    }

    /// Returns the folders that list their threads.
    fn folders(&self) -> impl Iterator<Item = PathBuf> + '_ {
        self.processes().map(|pid| PathBuf::from(format!("/proc/{pid}/task")))
    }

    /// Finds out which threads are alive.
    pub fn census(&mut self, shared: &Shared) -> Census {
        self.sharers.look_again();
        if self.nested {
            self.read_outer();
        }
        Census::take(shared, |tid| self.is_alive(tid))
    }

    /// Asks for this very thread: a listing of `/proc/PID/task` may skip some while others end.
    fn is_alive(&self, tid: u32) -> bool {
        let outer = if self.nested { self.outer.get(&tid).copied() } else { Some(tid) };
        outer.is_some_and(|t| self.folders().any(|f| is_there(&f.join(t.to_string()))))
    }

    /// Returns whether the thread with this ID and serial has ended.
    pub fn has_ended(&self, census: &Census, tid: u32, serial: u32) -> bool {
        census.has_ended(tid, serial, |tid| self.is_alive(tid))
    }
}

fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Parses `/proc/PID/status`: returns the PID in prof's namespace and in the innermost one.
fn ns_pids(status: &str) -> Option<(u32, u32)> {
    let line = status.lines().find_map(|l| l.strip_prefix("NSpid:"))?;
    let mut ids = line.split_whitespace().map(|w| w.parse().ok());
    let first = ids.next()??;
    Some((first, ids.next_back().flatten().unwrap_or(first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_told_apart() {
        assert_eq!(ns_pids("Name:\tx\nNSpid:\t12\n"), Some((12, 12)));
        assert_eq!(ns_pids("NSpid:\t120\t7\t1\n"), Some((120, 1)));
        assert_eq!(ns_pids("Name:\tx\n"), None);
    }
}
