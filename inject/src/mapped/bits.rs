//! Protection and mapping bits of the kernel's mmap. The mapping bits have other values on MIPS.
#![allow(missing_docs)]

pub(crate) const NONE: u64 = 0;
pub(crate) const READ: u64 = 1;
pub(crate) const WRITE: u64 = 2;
pub(crate) const EXEC: u64 = 4;
pub(crate) const SHARED: u64 = libc::MAP_SHARED as u64;
pub(crate) const ANON: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
pub(crate) const NORESERVE: u64 = libc::MAP_NORESERVE as u64;
pub(crate) const FIXED_NOREPLACE: u64 = libc::MAP_FIXED_NOREPLACE as u64;
pub(crate) const NO_FD: u64 = u64::MAX;
