//! Takes snapshots of everything in a process that a detach must restore.

use super::{Target, numbers_in};
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The state of an idle process. Two are compared with [`Snapshot::assert_same`].
pub struct Snapshot {
    maps: Vec<String>,
    fds: Vec<String>,
    threads: Vec<i32>,
    signals: Vec<String>,
    text: Vec<(String, u64)>,
}

impl Snapshot {
    /// Takes a snapshot of a process.
    #[track_caller]
    pub fn of(target: &Target) -> Self {
        let maps: Vec<String> = target.proc("maps").lines().map(squeeze).collect();
        let fd_dir = format!("/proc/{}/fd", target.pid);
        let fds = numbers_in(Path::new(&fd_dir))
            .into_iter()
            .map(|n| {
                let link = std::fs::read_link(format!("{fd_dir}/{n}")).unwrap_or_default();
                format!("{n} -> {}", link.display())
            })
            .collect();
        let threads = numbers_in(Path::new(&format!("/proc/{}/task", target.pid)));
        let signals = ["SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt", "TracerPid", "Seccomp"]
            .map(|f| format!("{f} {}", target.status(f)))
            .to_vec();
        let text = text_of(target);
        Self { maps, fds, threads, signals, text }
    }

    /// Fails with the differences, if there are any.
    #[track_caller]
    pub fn assert_same(&self, after: &Self) {
        let all = self.differences(after);
        assert!(all.is_empty(), "the process is not as it was before:\n{}", all.join("\n"));
    }

    /// Returns the differences of `after`, a line for each.
    pub fn differences(&self, after: &Self) -> Vec<String> {
        let lines = |what: &str, a: &[String], b: &[String]| {
            let gone = a.iter().filter(|x| !b.contains(x)).map(|x| format!("{what} gone: {x}"));
            let new = b.iter().filter(|x| !a.contains(x)).map(|x| format!("{what} new: {x}"));
            gone.chain(new).collect::<Vec<_>>()
        };
        let threads = |s: &Self| s.threads.iter().map(i32::to_string).collect::<Vec<_>>();
        let text = |s: &Self| s.text.iter().map(|(n, h)| format!("{n} {h:x}")).collect::<Vec<_>>();
        let mut all = lines("mapping", &self.maps, &after.maps);
        all.extend(lines("descriptor", &self.fds, &after.fds));
        all.extend(lines("thread", &threads(self), &threads(after)));
        all.extend(lines("signal state", &self.signals, &after.signals));
        all.extend(lines("text", &text(self), &text(after)));
        all
    }

    /// Returns lines of the memory map that only a recorder causes: memfds and anonymous code. Mappings that this
    /// process has as well are the kernel's: on MIPS a page in which it emulates instructions.
    pub fn foreign(&self) -> Vec<&String> {
        let ours = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let ours: Vec<String> = ours.lines().map(squeeze).collect();
        self.maps.iter().filter(|l| is_foreign(l) && !ours.contains(l)).collect()
    }
}

fn is_foreign(line: &str) -> bool {
    let fields: Vec<_> = line.split(' ').collect();
    let path = fields.get(5).copied().unwrap_or("");
    let code = fields[1].contains('x') && !(STACKS_ARE_CODE && fields[1].contains('w'));
    line.contains("memfd") || line.contains("prof-") || (code && path.is_empty())
}

/// Programs for MIPS have executable stacks, including those of threads, as the kernel needs them without a floating
/// point unit.
const STACKS_ARE_CODE: bool = cfg!(target_arch = "mips64");

fn squeeze(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns a hash of the bytes of every executable mapping in memory. Mappings that the process may write to, such as
/// an executable stack, are left out.
#[track_caller]
fn text_of(target: &Target) -> Vec<(String, u64)> {
    let memory = target.memory();
    let mut all = Vec::new();
    for line in target.proc("maps").lines() {
        let fields: Vec<_> = line.split_whitespace().collect();
        let kernels = ["[vsyscall]", "[vectors]", "[uprobes]"].iter().any(|n| line.contains(n));
        if !fields[1].contains('x') || fields[1].contains('w') || kernels {
            continue;
        }
        let (start, end) = fields[0].split_once('-').expect("a range");
        let [start, end] = [start, end].map(|x| u64::from_str_radix(x, 16).expect("hex"));
        let mut bytes = vec![0; (end - start) as usize];
        memory.read_exact_at(&mut bytes, start).unwrap_or_else(|e| panic!("{line}: {e}"));
        let mut hash = DefaultHasher::new();
        bytes.hash(&mut hash);
        all.push((squeeze(line), hash.finish()));
    }
    all
}
