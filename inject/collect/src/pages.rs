//! Counts the resident pages of a process, in small steps.
//!
//! The kernel holds the lock of a process's mappings while it walks the page tables, and a thread that maps or unmaps
//! memory waits for that. `/proc/PID/smaps` walks a whole mapping with the lock held. Here the lock is never held for
//! longer than a fraction of a millisecond, whatever the size of the mapping.

use prof_os::pagemap::{
    self, FOUND, IS_FILE, IS_GUARD, IS_HUGE, IS_PRESENT, IS_SWAPPED, IS_ZERO, PASSED, Region,
};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Number of entries of `pagemap` in one read. The kernel releases the lock after each page of page table.
const ENTRIES: usize = 8192;
/// Time of work after which this thread sleeps for as long.
const TURN: Duration = Duration::from_millis(1);

/// Counts of an address range, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Resident, without the shared zero page of memory that was only read.
    pub resident: u64,
    /// Part of `resident` that is file-backed or shared memory.
    pub file: u64,
    /// Swapped out.
    pub swap: u64,
    /// Part of `resident` that may be the zero page, where the kernel does not tell.
    pub doubtful: u64,
    /// Part of `file` that no other process maps, nor this one twice.
    pub file_alone: u64,
    /// Part of `resident` that is mapped by huge pages, where the kernel tells.
    pub huge: u64,
}

impl Counted {
    fn add(&mut self, bytes: u64, resident: bool, file: bool, swap: bool, doubtful: bool) {
        let part = |is: bool| if is { bytes } else { 0 };
        self.resident = self.resident.saturating_add(part(resident));
        self.file = self.file.saturating_add(part(resident && file));
        self.swap = self.swap.saturating_add(part(swap));
        self.doubtful = self.doubtful.saturating_add(part(resident && doubtful));
    }
}

/// Times of its work that a count may take where other processes have the processors.
const WAITS: u32 = 10;

/// Returns the processor time of this thread, in nanoseconds.
pub(crate) fn worked() -> u64 {
    prof_os::clock::thread_ns()
}

/// `/proc/PID/pagemap`.
#[derive(Debug)]
pub(crate) struct Pages {
    file: File,
    page: u64,
    /// The kernel supports queries for ranges (Linux 6.7).
    scans: AtomicBool,
    opened: Instant,
    /// Time since `opened`, in milliseconds, after which nothing is examined any more.
    until: AtomicU64,
    /// Processor time of the thread that examines, in nanoseconds, after which it ends.
    work_until: AtomicU64,
    #[cfg(test)]
    pub calls: AtomicU64,
    /// Number of pages found by all calls, and by the one that found most.
    #[cfg(test)]
    pub found: [AtomicU64; 2],
}

impl Pages {
    /// Creates it from the open file.
    pub(crate) fn new(file: File) -> Self {
        let page = prof_os::page_size();
        Self {
            file,
            page,
            scans: AtomicBool::new(true),
            opened: Instant::now(),
            until: AtomicU64::new(u64::MAX),
            work_until: AtomicU64::new(u64::MAX),
            #[cfg(test)]
            calls: AtomicU64::new(0),
            #[cfg(test)]
            found: Default::default(),
        }
    }

    /// Returns the page size in bytes.
    pub(crate) fn page(&self) -> u64 {
        self.page
    }

    /// Has all counts on this thread end after some time of work. What they return then is incomplete. On a busy machine
    /// that work may take [`WAITS`] times as long. Zero ends the counts of all threads.
    pub(crate) fn end_after(&self, work: Duration) {
        let until = (self.opened.elapsed() + work * WAITS).as_millis();
        self.until.store(u64::try_from(until).unwrap_or(u64::MAX), Relaxed);
        self.work_until.store(worked().saturating_add(work.as_nanos() as u64), Relaxed);
    }

    /// Returns whether the time of [`Self::end_after`] is over.
    pub(crate) fn is_over(&self) -> bool {
        let until = self.until.load(Relaxed);
        until != u64::MAX
            && (self.opened.elapsed().as_millis() >= u128::from(until)
                || worked() >= self.work_until.load(Relaxed))
    }

    /// Returns the address up to which there is no page, from `start` on; `None` if there is none before `end`.
    pub(crate) fn first(&self, start: u64, end: u64) -> Option<u64> {
        let mut at = start;
        while at < end && self.scans.load(Relaxed) && !self.is_over() {
            let mut found = [Region::default(); 1];
            let to = end.min(at.saturating_add(PASSED));
            match self.query(at, to, 1, IS_PRESENT, 0, &mut found) {
                Ok((1.., _)) => return Some(found[0].start),
                Ok((_, next)) if next > at => at = next,
                Err(e) if e.raw_os_error() == Some(libc::ENOTTY) => {
                    self.scans.store(false, Relaxed);
                }
                _ => return None,
            }
        }
        (at < end).then_some(at)
    }

    /// Returns the longest range that is to be divided into small pieces: with small steps, a kernel that can't be asked
    /// for ranges takes too long for more.
    pub(crate) fn most(&self) -> u64 {
        if self.scans.load(Relaxed) { u64::MAX } else { 1 << 40 }
    }

    /// Counts the pages from `start` to `end`. Pages that can't be examined count as absent.
    pub(crate) fn count(&self, start: u64, end: u64) -> Counted {
        self.count_as(start, end, true)
    }

    /// Counts the pages as [`Self::count`]; `files`: distinguish file-backed memory. The kernel then reads its
    /// description of each page, which takes ten times as long.
    pub(crate) fn count_as(&self, start: u64, end: u64, files: bool) -> Counted {
        let mut all = Counted::default();
        let mut turn = Instant::now();
        let mut at = start;
        while at < end && !self.is_over() {
            let next = match self.scans.load(Relaxed) {
                true => self.scan(at, end.min(at.saturating_add(PASSED)), files, &mut all),
                false => self.read(at, end, &mut all),
            };
            match next {
                Ok(next) if next > at => at = next,
                Err(e) if e.raw_os_error() == Some(libc::ENOTTY) => {
                    self.scans.store(false, Relaxed);
                }
                _ => break,
            }
            if turn.elapsed() > TURN {
                std::thread::sleep(turn.elapsed().min(TURN * 4));
                turn = Instant::now();
            }
        }
        all
    }

    /// Queries ranges of equal pages; returns the address where it stopped.
    fn scan(&self, start: u64, end: u64, files: bool, all: &mut Counted) -> io::Result<u64> {
        let mut found = [Region::default(); 512];
        let told = IS_PRESENT | IS_SWAPPED | IS_GUARD | IS_ZERO | IS_HUGE;
        let told = told | if files { IS_FILE } else { 0 };
        let (n, next) = self.query(start, end, FOUND, IS_PRESENT | IS_SWAPPED, told, &mut found)?;
        for r in found.iter().take(n) {
            let is = |what: u64| r.categories & what != 0;
            let resident = is(IS_PRESENT) && !is(IS_ZERO);
            let bytes = r.end.saturating_sub(r.start);
            // The kernel calls guards swapped.
            all.add(bytes, resident, is(IS_FILE), is(IS_SWAPPED) && !is(IS_GUARD), false);
            if resident && is(IS_HUGE) {
                all.huge = all.huge.saturating_add(bytes);
            }
            if resident && is(IS_FILE) {
                all.file_alone = all.file_alone.saturating_add(self.alone(r.start, r.end));
            }
        }
        Ok(next)
    }

    /// Returns the bytes of a range of file-backed pages that are mapped once only.
    fn alone(&self, start: u64, end: u64) -> u64 {
        let first = start / self.page;
        let pages = (end.div_ceil(self.page).saturating_sub(first)).min(FOUND);
        let mut bytes = vec![0; pages as usize * 8];
        let n = first.checked_mul(8).and_then(|at| self.file.read_at(&mut bytes, at).ok());
        let entries = bytes[..n.unwrap_or(0) / 8 * 8].as_chunks::<8>().0;
        let once = |e: &&[u8; 8]| u64::from_ne_bytes(**e) >> 56 & 1 == 1;
        entries.iter().filter(once).count() as u64 * self.page
    }

    /// Has the kernel find at most `most` pages of any of the categories `of`, in ranges that are equal in the
    /// categories `told`. Returns the number of ranges, and the address where it stopped.
    fn query(
        &self,
        start: u64,
        end: u64,
        most: u64,
        of: u64,
        told: u64,
        found: &mut [Region],
    ) -> io::Result<(usize, u64)> {
        #[cfg(test)]
        self.calls.fetch_add(1, Relaxed);
        let (n, next) = pagemap::query(&self.file, (start, end), most, of, told, found)?;
        #[cfg(test)]
        self.note_found(found[..n].iter().map(|r| (r.end - r.start) / self.page).sum());
        Ok((n, next))
    }

    #[cfg(test)]
    fn note_found(&self, pages: u64) {
        self.found[0].fetch_add(pages, Relaxed);
        self.found[1].fetch_max(pages, Relaxed);
    }

    /// Reads entries page by page; returns the address where it stopped.
    fn read(&self, start: u64, end: u64, all: &mut Counted) -> io::Result<u64> {
        let first = start / self.page;
        let pages = (end.div_ceil(self.page) - first).min(ENTRIES as u64);
        let mut bytes = vec![0; pages as usize * 8];
        let from = first.checked_mul(8).ok_or(io::ErrorKind::InvalidInput)?;
        let n = self.file.read_at(&mut bytes, from)? / 8;
        #[cfg(test)]
        self.note_found(n as u64);
        for e in bytes[..n * 8].as_chunks::<8>().0 {
            let entry = u64::from_ne_bytes(*e);
            let is = |bit: u32| entry >> bit & 1 == 1;
            // A page neither of a file nor mapped by this process alone: shared after a fork, or the zero page.
            all.add(self.page, is(63), is(61), is(62) && !is(58), !is(61) && !is(56));
            if is(63) && is(61) && is(56) {
                all.file_alone = all.file_alone.saturating_add(self.page);
            }
        }
        Ok((first + n as u64).saturating_mul(self.page))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Maps new memory without huge pages.
    pub(crate) fn map(len: usize, flags: libc::c_int) -> *mut u8 {
        // SAFETY: the kernel chooses the address, so no existing memory is affected.
        unsafe {
            let rw = libc::PROT_READ | libc::PROT_WRITE;
            let flags = flags | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let at = libc::mmap(std::ptr::null_mut(), len, rw, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            libc::madvise(at, len, libc::MADV_NOHUGEPAGE);
            at.cast()
        }
    }

    fn pages() -> Pages {
        Pages::new(File::open("/proc/self/pagemap").expect("pagemap"))
    }

    #[test]
    fn both_ways_count_the_same() {
        let p = pages();
        let page = p.page() as usize;
        let (private, shared) =
            (map(9000 * page, libc::MAP_PRIVATE), map(9000 * page, libc::MAP_SHARED));
        // SAFETY: the pages lie inside of these mappings.
        unsafe {
            for n in [0, 7, 8, 8999] {
                private.add(n * page).write_volatile(1);
                shared.add(n * page).write_volatile(1);
            }
            private.add(100 * page).read_volatile();
            // A guard is in no count, where the kernel tells of guards (Linux 6.15).
            let (guard, mut entry) = (private.add(200 * page), [0; 8]);
            libc::madvise(guard.cast(), page, 102);
            let at = guard as u64 / p.page() * 8;
            p.file.read_exact_at(&mut entry, at).expect("an entry");
            if u64::from_ne_bytes(entry) >> 58 & 1 == 0 {
                libc::madvise(guard.cast(), page, 103);
            }
        }
        let at = |m: *mut u8| (m as u64, m as u64 + 9000 * page as u64);
        let bytes = 4 * p.page();
        let scanned = p.scans.load(Relaxed).then(|| p.count(at(private).0, at(private).1));
        if p.scans.load(Relaxed) {
            let none = Counted::default();
            assert_eq!(scanned, Some(Counted { resident: bytes, ..none }));
            let shared = p.count(at(shared).0, at(shared).1);
            let file = Counted { resident: bytes, file: bytes, file_alone: bytes, ..none };
            assert_eq!(shared, file);
        }
        p.scans.store(false, Relaxed);
        let read = p.count(at(private).0, at(private).1);
        assert_eq!(read.resident - read.doubtful, bytes, "{read:?}");
        assert_eq!(read.doubtful, p.page(), "{read:?}");
        let read = p.count(at(shared).0, at(shared).1);
        assert_eq!((read.resident, read.file, read.doubtful), (bytes, bytes, 0));
        assert_eq!(p.count(u64::MAX - 5000 * p.page(), u64::MAX), Counted::default());
    }

    #[test]
    fn address_space_without_pages_is_passed_quickly() {
        let p = pages();
        // Use less where the kernel has to be queried page by page.
        let len = if cfg!(target_pointer_width = "64") { 1usize << 36 } else { 1 << 28 };
        let at = map(len, libc::MAP_PRIVATE);
        // SAFETY: the address lies inside of the mapping.
        unsafe { at.add(len / 2).write_volatile(1) };
        assert_eq!(p.count(at as u64, (at as usize + len) as u64).resident, p.page());
    }

    #[test]
    fn the_first_page_is_found_and_a_count_can_be_given_up() {
        let p = pages();
        let len = 100 * p.page();
        let at = map(len as usize, libc::MAP_PRIVATE) as u64;
        let written = at + 70 * p.page();
        // SAFETY: the address lies inside of the mapping.
        unsafe { (written as *mut u8).write_volatile(1) };
        let first = p.first(at, at + len);
        if p.scans.load(Relaxed) {
            assert_eq!(first, Some(written));
            assert_eq!(p.first(at, written), None);
        }
        p.end_after(Duration::ZERO);
        assert_eq!(p.count(at, at + len), Counted::default());
        p.end_after(Duration::from_secs(600));
        assert_eq!(p.count(at, at + len).resident, p.page());
    }
}
