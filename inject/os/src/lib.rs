//! The floor for the operating system: what Linux tells of processes and files, read and parsed in one place.
//!
//! Every text of `/proc` can be chosen by the process that it describes, in parts at least: names and paths are bytes,
//! numbers may be huge, and a process may end between two reads. The parsers leave out what they don't understand.
//!
//! * [`maps`], [`stat`], [`status`], [`limits`], [`task`]: the files of `/proc/PID` with these names, parsed;
//! * [`process`]: questions about one process: its folder in `/proc`, its threads, name, program, and whether it lives;
//! * [`pid_namespace`]: which numbers a process has in other pid namespaces, and whether those of `/proc` are this process's;
//! * [`sharers`]: the processes that share an address space; [`workers`]: the descendants that run the same program;
//! * [`memory`]: the contents of a process's memory, and which of its pages it has touched; [`pagemap`]: ranges of pages by
//!   their state;
//! * [`cgroup`]: the folders of a process's cgroups;
//! * [`files`]: opens files that somebody else may have put there;
//! * [`signals`]: waits for signals; [`elf`]: the build ID and the dynamic section of an ELF image, however it is read;
//! * [`clock`]: the kernel's clocks; [`page_size`], [`clock_ticks`]: its settings; [`is_wider_than_arm`].
//!
//! The crate depends on no other crate of prof, and every crate but the hook and its formats may use it.

mod addr;
pub mod cgroup;
pub mod clock;
pub mod elf;
mod error;
pub mod files;
mod kernel;
pub mod limits;
pub mod maps;
pub mod memory;
pub mod pagemap;
mod pid;
pub mod pid_namespace;
pub mod process;
pub mod sharers;
pub mod signals;
pub mod stat;
pub mod status;
pub mod task;
pub mod workers;

pub use addr::RemoteAddr;
pub use error::{Error, Result};
pub use kernel::{clock_ticks, is_wider_than_arm, page_size};
pub use pid::Pid;
