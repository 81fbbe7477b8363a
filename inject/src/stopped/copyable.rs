//! Whether a copy of a process's memory may be made, and what of it would not be as it was.
//!
//! A copy is what fork(2) makes. It shares what the process shares, and lacks what the process keeps from its children. The
//! process goes on with pages of its own where it writes, so it must not be in the midst of something that goes on with
//! the old ones: a device, or the kernel by a request that is on its way.

use crate::process::cgroup::levels;
use crate::{Error, Refusal, Result};
use prof_os::maps::{self, Map};
use prof_os::process::{self, comm, folder};
use prof_os::status::Status;
use prof_os::{Pid, memory};
use prof_trace::values::text::bytes;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;

/// Memory that a child does not have as it was.
#[derive(Debug, Default)]
pub struct Unlike {
    /// In order: shared memory, and what is left out or cleared at a fork (MADV_DONTFORK, MADV_WIPEONFORK).
    pub ranges: Vec<Range<u64>>,
    /// A program is told of page faults there, and maybe of a fork: userfaultfd(2).
    watched: bool,
    /// Private huge pages from the pool of hugetlbfs. Where the pool is empty, a write after a fork may kill the process.
    huge: bool,
}

impl Unlike {
    /// Reads the flags of a process's mappings.
    ///
    /// # Errors
    /// If the process is gone, or the kernel does not tell.
    pub fn of(pid: Pid) -> Result<Self> {
        let path = folder(pid) + "/smaps";
        let text = fs::read(&path).map_err(|errno| Error::File { path: path.into(), errno })?;
        Ok(Self::parse(&text))
    }

    /// Understands `/proc/PID/smaps` (proc_pid_smaps(5), `VmFlags`).
    fn parse(text: &[u8]) -> Self {
        let (mut found, mut map) = (Self::default(), None::<Map>);
        for line in text.split(|b| *b == b'\n') {
            let Some(flags) = line.strip_prefix(b"VmFlags:") else {
                map = Map::parse(line).or(map);
                continue;
            };
            let Some(m) = map.take() else { continue };
            let has = |flag: &[u8; 2]| flags.split(|b| *b == b' ').any(|f| f == flag);
            found.watched |= has(b"um") || has(b"uw") || has(b"ui");
            found.huge |= has(b"ht") && !m.shared;
            if m.shared || has(b"dc") || has(b"wf") {
                found.ranges.push(m.start.0..m.end.0);
            }
        }
        found
    }
}

/// Returns the error that a process's memory can't be copied.
#[must_use]
pub fn not_copied(pid: Pid, why: String) -> Error {
    Refusal::NotCopied { pid, comm: comm(pid), why }.into()
}

/// Returns the memory that a copy would not have as it is, in order.
///
/// # Errors
/// If a copy could harm the process, or there is no room for one.
pub fn may_copy(pid: Pid) -> Result<Vec<Range<u64>>> {
    let has = Unlike::of(pid)?;
    let maps = maps::of(pid)?;
    let device = maps.iter().find(|m| m.is_device());
    let why = if has.watched {
        Some("a part of it is watched by userfaultfd".into())
    } else if has.huge {
        Some("it has private pages of hugetlbfs, of which a copy may need more".into())
    } else if let Some(m) = device {
        Some(format!("a device may write to it ({})", String::from_utf8_lossy(&m.name)))
    } else if has_requests(pid, &maps) {
        Some(
            "the kernel may be writing to it (io_uring, aio), and what is on its way while a copy is made can be lost \
             (open(2), O_DIRECT)"
                .into(),
        )
    } else {
        awaited_namespace(pid).or_else(|| room(pid))
    };
    why.map_or(Ok(has.ranges), |why| Err(not_copied(pid, why)))
}

/// Returns whether the process may have requests on their way whose data the kernel, or a device, writes to its memory
/// while it goes on.
fn has_requests(pid: Pid, maps: &[Map]) -> bool {
    let links = fs::read_dir(folder(pid) + "/fd").into_iter().flatten().flatten();
    let mut links = links.filter_map(|entry| fs::read_link(entry.path()).ok());
    maps.iter().any(|m| m.name.starts_with(b"/[aio]"))
        || links.any(|link| link.as_os_str() == "anon_inode:[io_uring]")
}

/// Returns why a copy would be the first process of a namespace that the process has made for its children: unshare(2) with
/// CLONE_NEWPID or CLONE_NEWTIME. When the first process of a PID namespace ends, there can be no other in it, and the process
/// could not fork any more. The clocks of a time namespace can be set until it has a process.
fn awaited_namespace(pid: Pid) -> Option<String> {
    let threads = process::threads(pid).unwrap_or_default();
    let of = |tid: &Pid, name: &str| PathBuf::from(format!("{}/task/{tid}/ns/{name}", folder(pid)));
    let awaits = |name: &str, tid: &Pid| {
        let [own, next] = [of(tid, name), of(tid, &format!("{name}_for_children"))];
        // A PID namespace that has no process yet can't be read, and old kernels have no such files.
        next.symlink_metadata().is_ok() && fs::read_link(own).ok() != fs::read_link(next).ok()
    };
    let kind = [("pid", "PID"), ("time", "time")];
    let (_, kind) = kind.into_iter().find(|(name, _)| threads.iter().any(|t| awaits(name, t)))?;
    Some(format!(
        "its children get another {kind} namespace than it has (unshare), and the copy would be one of them"
    ))
}

/// Returns why there is no room for a second copy of all memory that the process can write to.
fn room(pid: Pid) -> Option<String> {
    let need = Status::of(pid).ok()?.bytes("RssAnon")?;
    let short = |left: u64, of: String| {
        (left < need).then(|| {
            let (need, left) = (bytes(need), bytes(left));
            format!("a copy may come to need {need}, as the process goes on, and {of} {left} left")
        })
    };
    let in_group = levels(pid, Pid::this()).into_iter().find_map(|l| {
        let left = l.left();
        short(left, format!("its cgroup {} has", l.group))
    });
    in_group.or_else(|| short(memory::available()?, "the machine has".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_child_gets_not_as_it_was_is_known_by_its_flags() {
        let text = b"1000-2000 rw-p 00000000 00:00 0 \nRss:    4 kB\nVmFlags: rd wr mr mw me ac \n\
            2000-3000 rw-p 00000000 00:00 0 \nVmFlags: rd wr mr mw me dc ac \n\
            3000-4000 rw-s 00000000 00:01 7  /dev/zero (deleted)\nVmFlags: rd wr sh mr mw me ms \n\
            8000-9000 rw-p 00000000 00:00 0 \nVmFlags: rd wr mr mw me wf ac \n";
        let found = Unlike::parse(text);
        assert_eq!(found.ranges, [0x2000..0x3000, 0x3000..0x4000, 0x8000..0x9000]);
        assert!(!found.watched && !found.huge);
        let found = Unlike::parse(b"1000-2000 rw-p 0 00:00 0 \nVmFlags: rd wr um \n");
        assert!(found.watched && found.ranges.is_empty());
        let found = Unlike::parse(b"1000-2000 rw-p 0 00:0f 9 /anon_hugepage\nVmFlags: rd wr ht \n");
        assert!(found.huge);
        assert_eq!(Unlike::parse(b"VmFlags: dc\nnonsense\n\xff\xff").ranges, []);
    }
}
