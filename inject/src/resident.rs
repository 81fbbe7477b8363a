//! Brings prof's own code into memory before a target is stopped.
//!
//! A target may serve the file system that prof runs from (a FUSE daemon: sshfs, gocryptfs, rclone). If prof touched
//! a page of its executable or of a library for the first time while it holds such a target, both would wait for each
//! other.

use nix::errno::Errno;
use prof_os::Pid;
use prof_os::maps::{self, Map};
use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// `MADV_POPULATE_READ` and `MADV_POPULATE_WRITE` (Linux 5.14).
const POPULATE: (i32, i32) = (22, 23);

/// Faults in all pages of prof's executable and libraries. Nothing is reported: what can't be read now fails in the
/// same way without this.
pub(crate) fn fault_in() {
    let Ok(maps) = maps::of(Pid::this()) else { return };
    for m in code(&maps) {
        if populate(m) == Err(Errno::EINVAL) {
            touch(m);
        }
    }
}

/// Returns the mappings of files that have code. Others, such as the ring, may be large and stay sparse.
fn code(maps: &[Map]) -> impl Iterator<Item = &Map> {
    let files: HashSet<(u64, &[u8])> =
        maps.iter().filter(|m| m.exec).map(|m| (m.inode, m.name.as_slice())).collect();
    let is_code = move |m: &&Map| {
        m.inode != 0 && m.read && !m.shared && files.contains(&(m.inode, m.name.as_slice()))
    };
    maps.iter().filter(is_code)
}

/// Has the kernel map all pages. Those of a writable mapping are copied now, as the first write would read the file.
fn populate(m: &Map) -> Result<(), Errno> {
    let advice = if m.write { POPULATE.1 } else { POPULATE.0 };
    let len = usize::try_from(m.len()).map_err(|_| Errno::EINVAL)?;
    // SAFETY: populating changes no contents, and addresses that are not mapped any more make the call fail.
    let r = unsafe { libc::madvise(m.start.0 as *mut libc::c_void, len, advice) };
    Errno::result(r).map(|_| ())
}

/// Reads a byte of each page, on a kernel that can't populate. The kernel reads it, so a page that the file does not
/// have any more makes the read fail, where an access would end prof by SIGBUS.
fn touch(m: &Map) {
    let Ok(mem) = File::open("/proc/self/mem") else { return };
    let step = usize::try_from(prof_os::page_size()).unwrap_or(4096);
    for at in (m.start.0..m.end.0).step_by(step) {
        let _ = mem.read_at(&mut [0], at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isolated;
    use std::os::fd::AsRawFd;

    /// Maps this program's file once more, with none of its pages present.
    fn map_again() -> Map {
        let file = File::open("/proc/self/exe").expect("the test program");
        let len = file.metadata().expect("its length").len().min(4 << 20) as usize;
        let (prot, private) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE);
        // SAFETY: the kernel chooses the address, so no existing memory is affected.
        let at = unsafe {
            let fd = file.as_raw_fd();
            let at = libc::mmap(std::ptr::null_mut(), len, prot, private, fd, 0);
            assert_ne!(at, libc::MAP_FAILED);
            libc::madvise(at, len, libc::MADV_RANDOM);
            at as u64
        };
        let maps = maps::of(Pid::this()).expect("maps");
        maps.into_iter().find(|m| m.start.0 == at).expect("the mapping")
    }

    /// Returns the numbers of pages, and of present ones.
    fn present(m: &Map) -> (u64, u64) {
        let (page, pagemap) = (prof_os::page_size(), File::open("/proc/self/pagemap"));
        let mut entries = vec![0; (m.len() / page * 8) as usize];
        let at = m.start.0 / page * 8;
        pagemap.and_then(|f| f.read_exact_at(&mut entries, at)).expect("pagemap");
        let there = |e: &&[u8; 8]| u64::from_ne_bytes(**e) >> 63 == 1;
        let count = entries.as_chunks::<8>().0.iter().filter(there).count();
        (m.len() / page, count as u64)
    }

    #[test]
    fn all_code_is_present_before_a_target_is_stopped() {
        let m = map_again();
        let (all, before) = present(&m);
        assert!(all > 16 && before < all / 2, "{before} of {all} pages are present beforehand");
        assert_eq!(isolated(|| present(&m)), (all, all));
    }

    #[test]
    fn all_code_is_present_before_a_command_is_stopped() {
        let m = map_again();
        let pid = crate::launch::start(&["true".into()]).expect("a stopped command");
        let (all, there) = present(&m);
        let other = map_again();
        let followed = crate::follow::Follow::new(pid);
        let (many, present) = present(&other);
        // SAFETY: the process is a child of this one, which nobody else waits for.
        unsafe {
            libc::kill(pid.as_raw(), libc::SIGKILL);
            drop(followed);
            libc::waitpid(pid.as_raw(), std::ptr::null_mut(), libc::__WALL);
        }
        assert_eq!((there, present), (all, many));
    }

    #[test]
    fn a_kernel_that_cannot_populate_is_made_to_read() {
        let m = map_again();
        touch(&m);
        let (all, there) = present(&m);
        assert_eq!(there, all);
    }

    #[test]
    fn only_files_with_code_are_read() {
        let text = b"1000-2000 r--p 00000000 08:01 7 /bin/p\n2000-3000 r-xp 00001000 08:01 7 /bin/p\n\
            3000-4000 rw-p 00002000 08:01 7 /bin/p\n4000-5000 ---p 00003000 08:01 7 /bin/p\n\
            5000-6000 r--p 00000000 08:01 8 /data\n6000-7000 rw-s 00000000 00:01 9 /memfd:prof-ring\n\
            7000-8000 r-xp 00000000 00:00 0 [vdso]\n";
        let maps = maps::parse(text);
        let starts: Vec<u64> = code(&maps).map(|m| m.start.0).collect();
        assert_eq!(starts, [0x1000, 0x2000, 0x3000]);
    }
}
