//! Reads the memory of a process from outside.

use crate::pagemap::{self, FOUND, IS_FILE, IS_GUARD, IS_PRESENT, IS_SWAPPED, PASSED, Region};
use crate::process::folder;
use crate::status::Status;
use crate::{Pid, page_size};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Pages whose state is read together.
const PAGES: u64 = 1 << 15;

/// Bits of an entry of `/proc/PID/pagemap` (Documentation/admin-guide/mm/pagemap.rst).
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;
const GUARD: u64 = 1 << 58;

/// Returns the bytes of memory that programs can still get without the machine swapping (`MemAvailable` in
/// proc_meminfo(5)); `None`: the kernel does not tell.
#[must_use]
pub fn available() -> Option<u64> {
    let text = std::fs::read("/proc/meminfo").ok()?;
    Status::parse(&text).bytes("MemAvailable")
}

/// Reads the memory of a process. Nothing is written to it.
#[derive(Debug)]
pub struct Reader {
    pid: Pid,
    mem: File,
    pagemap: File,
}

/// Pages of a mapping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Parts with contents of the process's own, in order.
    pub touched: Vec<Range<u64>>,
    /// Guard regions, in order: madvise(2), MADV_GUARD_INSTALL. Kernels before Linux 6.15 don't tell of them.
    pub guards: Vec<Range<u64>>,
}

impl Reader {
    /// Opens the memory of a process.
    ///
    /// # Errors
    /// If it is gone, or may not be read.
    pub fn open(pid: Pid) -> io::Result<Self> {
        let folder = folder(pid);
        let mem = File::open(folder.clone() + "/mem")?;
        Ok(Self { pid, mem, pagemap: File::open(folder + "/pagemap")? })
    }

    /// Returns the process.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Fills `to` with memory from an address on, and returns the number of bytes up to the first that can't be read.
    #[must_use]
    pub fn read(&self, at: u64, to: &mut [u8]) -> usize {
        let mut done = 0;
        while done < to.len() {
            let from = at + done as u64;
            let n = self.quickly(from, &mut to[done..]);
            // That way leads not to pages without the right to read them, which /proc/PID/mem shows.
            let n = if n > 0 { n } else { self.mem.read_at(&mut to[done..], from).unwrap_or(0) };
            if n == 0 {
                break;
            }
            done += n;
        }
        done
    }

    fn quickly(&self, at: u64, to: &mut [u8]) -> usize {
        let Ok(base) = usize::try_from(at) else { return 0 };
        let remote = [RemoteIoVec { base, len: to.len() }];
        let read = process_vm_readv(self.pid.into(), &mut [IoSliceMut::new(to)], &remote);
        read.unwrap_or(0)
    }

    /// Returns the parts of a range that have contents of the process's own, see [`Self::pages`].
    ///
    /// # Errors
    /// If the process is gone.
    pub fn touched(&self, range: Range<u64>, shared: bool) -> io::Result<Vec<Range<u64>>> {
        self.pages(range, shared).map(|p| p.touched)
    }

    /// Returns the parts of a range that have contents of the process's own: pages that it has touched, and not those that
    /// are still as they are in a file. Others were never written to, and a look would add them to the process. The range
    /// lies in one mapping, which is shared or not, and its ends are multiples of a page.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn pages(&self, range: Range<u64>, shared: bool) -> io::Result<Pages> {
        let mut found = Pages::default();
        match self.scan(&range, shared, &mut found) {
            Err(e) if e.raw_os_error() == Some(libc::ENOTTY) => {
                found = Pages::default();
                self.read_entries(&range, shared, &mut found)?;
            }
            done => done?,
        }
        Ok(found)
    }

    /// Has the kernel pass over what has no pages: a program may have reserved terabytes, which takes it a second each by
    /// entries.
    fn scan(&self, range: &Range<u64>, shared: bool, found: &mut Pages) -> io::Result<()> {
        let mut regions = [Region::default(); 512];
        let (of, mut at) = (IS_PRESENT | IS_SWAPPED | IS_GUARD, range.start);
        while at < range.end {
            let part = (at, range.end.min(at.saturating_add(PASSED)));
            let told = of | IS_FILE;
            let (n, next) = pagemap::query(&self.pagemap, part, FOUND, of, told, &mut regions)?;
            for r in &regions[..n] {
                let is = |what: u64| r.categories & what != 0;
                if is(IS_GUARD) {
                    add(&mut found.guards, r.start..r.end);
                } else if is(IS_SWAPPED) || is(IS_PRESENT) && (shared || !is(IS_FILE)) {
                    add(&mut found.touched, r.start..r.end);
                }
            }
            if next <= at {
                break;
            }
            at = next;
        }
        Ok(())
    }

    /// Reads an entry for each page.
    fn read_entries(&self, range: &Range<u64>, shared: bool, found: &mut Pages) -> io::Result<()> {
        let page = page_size();
        let mut bytes = vec![0; (PAGES * 8) as usize];
        let mut at = range.start;
        while at < range.end {
            let pages = ((range.end - at) / page).clamp(1, PAGES);
            let want = &mut bytes[..(pages * 8) as usize];
            let n = self.pagemap.read_at(want, at / page * 8)?;
            if n < 8 {
                break;
            }
            for (k, entry) in want[..n].as_chunks::<8>().0.iter().enumerate() {
                let entry = u64::from_ne_bytes(*entry);
                let start = at + k as u64 * page;
                let there = entry & SWAPPED != 0
                    || entry & PRESENT != 0 && (shared || entry & OF_FILE == 0);
                if entry & GUARD != 0 {
                    add(&mut found.guards, start..start + page);
                } else if there {
                    add(&mut found.touched, start..start + page);
                }
            }
            at += n as u64 / 8 * page;
        }
        Ok(())
    }
}

/// Adds a range behind others, and joins it with the last if they touch.
fn add(all: &mut Vec<Range<u64>>, range: Range<u64>) {
    match all.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => all.push(range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that this thread has read by system calls.
    fn bytes_read() -> Option<u64> {
        let text = std::fs::read_to_string("/proc/thread-self/io").ok()?;
        text.lines().find_map(|l| l.strip_prefix("rchar: "))?.parse().ok()
    }

    /// Maps `len` bytes without huge pages. Returns `None` if the address space has no room for them.
    fn map(len: usize, kind: libc::c_int) -> Option<u64> {
        // SAFETY: the kernel chooses the address, so no existing memory is affected.
        unsafe {
            let flags = kind | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0);
            if at == libc::MAP_FAILED {
                return None;
            }
            libc::madvise(at, len, libc::MADV_NOHUGEPAGE);
            Some(at as u64)
        }
    }

    #[test]
    fn both_ways_find_the_same_pages() {
        let (page, reader) = (page_size(), Reader::open(Pid::this()).expect("own memory"));
        for (kind, shared) in [(libc::MAP_PRIVATE, false), (libc::MAP_SHARED, true)] {
            let at = map(9000 * page as usize, kind).expect("a mapping");
            for n in (0..4000).step_by(2).chain([8000, 8001, 8999]) {
                // SAFETY: the page lies inside of the mapping.
                unsafe { ((at + n * page) as *mut u8).write_volatile(1) };
            }
            let range = at..at + 9000 * page;
            // Linux before 6.13 has no guard regions, and does not tell of them before 6.15.
            const INSTALL: libc::c_int = 102;
            // SAFETY: the page lies inside of the mapping, and nothing reads it.
            let can =
                unsafe { libc::madvise((at + 4001 * page) as *mut _, page as usize, INSTALL) };
            let mut read = Pages::default();
            reader.read_entries(&range, shared, &mut read).expect("entries");
            let Pages { touched, guards } = &read;
            let guard = at + 4001 * page..at + 4002 * page;
            if can == 0 && !guards.is_empty() {
                assert_eq!(*guards, [guard]);
            }
            if !(can == 0 && guards.is_empty()) {
                assert_eq!(touched.len(), 2002);
                assert_eq!(touched[2000], at + 8000 * page..at + 8002 * page);
            }
            assert_eq!(reader.pages(range, shared).expect("ranges"), read);
        }
    }

    /// Programs reserve terabytes (sanitizers, collectors, GHC). The pages of some are looked at while all threads are
    /// stopped, so they must cost nothing.
    #[cfg(target_pointer_width = "64")]
    #[test]
    fn reserved_address_space_is_passed_over() {
        let (page, reader) = (page_size(), Reader::open(Pid::this()).expect("own memory"));
        // Kernels with three levels of page tables give a program 512 GiB (AArch64) or 1 TiB (MIPS64) in all.
        let lens = [40, 38, 36].map(|bits| 1u64 << bits);
        let mapped =
            lens.iter().find_map(|len| Some((*len, map(*len as usize, libc::MAP_PRIVATE)?)));
        let (len, at) = mapped.expect("64 GiB of address space");
        let written = [at + len / 3 / page * page, at + len - page];
        for w in written {
            // SAFETY: the page lies inside of the mapping.
            unsafe { (w as *mut u8).write_volatile(1) };
        }
        let mut one = [Region::default(); 1];
        let has_scan = pagemap::query(&reader.pagemap, (at, at + page), 1, IS_PRESENT, 0, &mut one);
        let Some(before) = bytes_read().filter(|_| has_scan.is_ok()) else { return };
        let found = reader.touched(at..at + len, false).expect("ranges");
        assert_eq!(found, written.map(|w| w..w + page));
        let read = bytes_read().expect("a count") - before;
        assert!(read < 1 << 20, "{read} bytes of entries for two pages");
    }
}
