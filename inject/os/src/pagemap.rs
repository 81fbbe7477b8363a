//! Asks the kernel for ranges of pages by their state: the ioctl PAGEMAP_SCAN on `/proc/PID/pagemap` (Linux 6.7).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A page of a file, or of shared memory.
pub const IS_FILE: u64 = 1 << 2;
/// A page in memory.
pub const IS_PRESENT: u64 = 1 << 3;
/// A page in swap.
pub const IS_SWAPPED: u64 = 1 << 4;
/// The zero page of memory that was only read.
pub const IS_ZERO: u64 = 1 << 5;
/// A part of a huge page.
pub const IS_HUGE: u64 = 1 << 6;
/// A page of a guard region, which faults at each access: madvise(2), MADV_GUARD_INSTALL. Known since Linux 6.15; the kernel
/// also calls such a page swapped.
pub const IS_GUARD: u64 = 1 << 8;

/// Greatest number of pages that one call should find, if the process runs: 0.2 ms, if none of the kernel's data is in a
/// cache. The kernel holds the lock of the mappings meanwhile.
pub const FOUND: u64 = 1 << 11;
/// Greatest number of bytes of address space that one call should walk: an entry without a page costs 2 ns.
pub const PASSED: u64 = 4 << 30;

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// A range of pages that are equal in what was asked: `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Address of the first byte.
    pub start: u64,
    /// Address behind the last byte.
    pub end: u64,
    /// Categories that these pages have, of those that were to be told.
    pub categories: u64,
}

/// Whether the kernel may know [`IS_GUARD`].
static KNOWS_GUARDS: AtomicBool = AtomicBool::new(true);

/// Has the kernel find at most `most` pages of any of the categories `of`, in ranges that are equal in the categories
/// `told`. Returns the number of ranges, and the address where it stopped. A kernel that does not know [`IS_GUARD`] tells of none.
///
/// # Errors
/// `ENOTTY` if the kernel is older; if the process is gone, or the range is none.
pub fn query(
    pagemap: &File,
    range: (u64, u64),
    most: u64,
    of: u64,
    told: u64,
    found: &mut [Region],
) -> io::Result<(usize, u64)> {
    let knows = KNOWS_GUARDS.load(Relaxed);
    let asked = |what: u64| if knows { what } else { what & !IS_GUARD };
    let mut scan = Scan {
        size: size_of::<Scan>() as u64,
        start: range.0,
        end: range.1,
        vec: found.as_mut_ptr() as u64,
        vec_len: found.len() as u64,
        max_pages: most,
        category_anyof_mask: asked(of),
        return_mask: asked(told),
        ..Scan::default()
    };
    let request = libc::_IOWR::<Scan>(u32::from(b'f'), 16);
    // SAFETY: the argument has the size that it names, and `vec` has room for `vec_len` entries.
    let n = unsafe { libc::ioctl(pagemap.as_raw_fd(), request, &raw mut scan) };
    if let Ok(n) = usize::try_from(n) {
        return Ok((n, scan.walk_end));
    }
    let error = io::Error::last_os_error();
    // An older kernel refuses a category that it does not know.
    if knows && (of | told) & IS_GUARD != 0 && error.raw_os_error() == Some(libc::EINVAL) {
        let done = query(pagemap, range, most, of & !IS_GUARD, told & !IS_GUARD, found)?;
        KNOWS_GUARDS.store(false, Relaxed);
        return Ok(done);
    }
    Err(error)
}
