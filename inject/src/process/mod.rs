//! Facts about a process that prof learns from outside: its mappings, files, filters, cgroup, and who shares
//! its memory.

pub(crate) mod c_library;
pub mod cgroup;
pub(crate) mod code;
pub(crate) mod debug_frame;
pub mod elf;
pub mod elf_file;
pub(crate) mod filter;
pub(crate) mod foreign;
pub(crate) mod frozen;
pub(crate) mod link_map;
pub(crate) mod linked;
pub(crate) mod mips_got;
pub mod program;
pub mod rings;
pub mod runtimes;
pub(crate) mod sharing;
pub mod translated;
