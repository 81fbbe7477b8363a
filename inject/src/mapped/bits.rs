//! Protection and mapping bits of the kernel's mmap. The mapping bits have other values on MIPS.
#![allow(missing_docs)]

pub const NONE: u64 = 0;
pub const READ: u64 = 1;
pub const WRITE: u64 = 2;
pub const EXEC: u64 = 4;
pub const SHARED: u64 = libc::MAP_SHARED as u64;
pub const ANON: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
pub const NORESERVE: u64 = libc::MAP_NORESERVE as u64;
pub const FIXED_NOREPLACE: u64 = libc::MAP_FIXED_NOREPLACE as u64;
pub const NO_FD: u64 = u64::MAX;
