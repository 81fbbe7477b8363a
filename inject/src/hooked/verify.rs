//! Compares code with its file.

use crate::process::elf::Module;
use crate::{RemoteAddr, RemoteMemory};
use prof_os::Pid;
use prof_os::maps::Map;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes that are compared at a time where it is not known which pages have changed.
const STEP: u64 = 1 << 20;
/// Entries of `/proc/PID/pagemap` that are read at a time.
const ENTRIES: u64 = 4096;

/// Compares a module's executable mappings with its file, and describes the first difference. Text relocations and
/// other tools' patches differ, too, so this is only a remark.
pub(crate) fn text_differs(
    pid: Pid,
    mem: &RemoteMemory,
    m: &Module,
    maps: &[Map],
) -> Option<String> {
    let file = m.open(pid, mem)?;
    if m.path.as_os_str() == "[vdso]" {
        return None;
    }
    let pagemap = File::open(prof_os::process::folder(pid) + "/pagemap").ok();
    for map in
        maps.iter().filter(|p| p.exec && p.inode != 0 && m.start <= p.start && p.end <= m.end)
    {
        let len = map.len().min(file.len().saturating_sub(map.offset));
        let pieces = pagemap.as_ref().and_then(|p| own_pages(p, map));
        let all = || (0..len).step_by(STEP as usize).map(|at| (at, STEP)).collect();
        for (at, n) in pieces.unwrap_or_else(all) {
            let n = n.min(len.saturating_sub(at));
            let have = mem.read_some(map.start.plus(at), n as usize);
            let want = file.read(map.offset.checked_add(at)?, n)?;
            if have.len() != want.len() {
                return None;
            }
            if have != want {
                let k = have.iter().zip(&want).position(|(a, b)| a != b).unwrap_or(0);
                let addr = map.start.plus(at + k as u64);
                return Some(format!(
                    "{}: the code at {addr} differs from the file",
                    m.path.display()
                ));
            }
        }
    }
    None
}

/// Returns the pages of a file's private mapping that belong to the process itself, as offset and length. Only these
/// can differ from the file. Reading the others would add them to the target's resident memory. Returns `None` if the
/// kernel does not tell.
fn own_pages(pagemap: &File, map: &Map) -> Option<Vec<(u64, u64)>> {
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const OF_FILE: u64 = 1 << 61;
    let page = prof_os::page_size();
    let RemoteAddr(start) = map.start;
    let mut own = Vec::new();
    for first in (0..map.len() / page).step_by(ENTRIES as usize) {
        let mut bytes = vec![0; ((map.len() / page - first).min(ENTRIES) * 8) as usize];
        pagemap.read_exact_at(&mut bytes, (start / page + first) * 8).ok()?;
        let entries = bytes.as_chunks::<8>().0.iter().map(|b| u64::from_ne_bytes(*b));
        let is_own = |e: u64| e & (PRESENT | SWAPPED) != 0 && e & OF_FILE == 0;
        let its = (first..).zip(entries).filter(|(_, e)| is_own(*e));
        own.extend(its.map(|(n, _)| (n * page, page)));
    }
    Some(own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    #[test]
    fn only_pages_that_were_written_are_the_processs_own() {
        let page = prof_os::page_size() as usize;
        let mut file = tempfile();
        file.write_all(&vec![7; 4 * page]).expect("write");
        // SAFETY: the mapping is new and private, its file keeps its size, and only this test uses it.
        let at = unsafe {
            let rw = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(
                std::ptr::null_mut(),
                4 * page,
                rw,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            let bytes = at.cast::<u8>();
            assert_eq!(bytes.add(page).read_volatile(), 7);
            bytes.add(2 * page).write_volatile(8);
            at as u64
        };
        let pid = Pid::this();
        let maps = prof_os::maps::of(pid).expect("maps");
        let map = maps.iter().find(|m| m.start.0 == at).expect("mapped");
        let pagemap = File::open("/proc/self/pagemap").expect("pagemap");
        let page = page as u64;
        assert_eq!(own_pages(&pagemap, map), Some(vec![(2 * page, page)]));
    }

    fn tempfile() -> File {
        let path = std::env::temp_dir().join(format!("prof-verify-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let _ = std::fs::remove_file(&path);
        file.expect("a file")
    }
}
