//! Reads the memory of a process from outside.

use crate::process::folder;
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

/// Reads the memory of a process. Nothing is written to it.
#[derive(Debug)]
pub struct Reader {
    pid: Pid,
    mem: File,
    pagemap: File,
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

    /// Returns the parts of a range that have contents of the process's own: pages that it has touched, and not those that
    /// are still as they are in a file. Others were never written to, and a look would add them to the process. The range
    /// lies in one mapping, which is shared or not, and its ends are multiples of a page.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn touched(&self, range: Range<u64>, shared: bool) -> io::Result<Vec<Range<u64>>> {
        let page = page_size();
        let mut found: Vec<Range<u64>> = Vec::new();
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
                let there = entry & SWAPPED != 0
                    || entry & PRESENT != 0 && (shared || entry & OF_FILE == 0);
                if there {
                    let start = at + k as u64 * page;
                    match found.last_mut() {
                        Some(last) if last.end == start => last.end += page,
                        _ => found.push(start..start + page),
                    }
                }
            }
            at += n as u64 / 8 * page;
        }
        Ok(found)
    }
}
