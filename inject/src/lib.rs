//! Attaches to a live process, hooks its allocator, and detaches again.
//!
//! * [`preflight`] checks whether a process can be recorded, and gives the reason if not.
//! * [`install`] and [`Installed::activate`] attach, in two steps, so that a collector can start in between.
//! * [`recorded`] reads the state of a recorded process; [`detach`] takes prof out of it.
//!
//! Below these, [`tracee`] and [`threads`] stop threads, [`remote`] makes system calls in the target, [`elf`] and
//! [`functions`] find the functions to hook, and [`plan`] prepares the patches.

mod activate;
mod addr;
mod again;
mod asleep;
mod bridge;
pub mod cgroup;
pub mod children;
mod debug_frame;
mod detach;
pub mod elf;
pub mod elf_file;
mod error;
mod fibers;
mod filter;
pub mod follow;
mod foreign;
mod frozen;
pub mod functions;
mod image;
pub mod inherited;
pub mod install;
mod isolated;
mod launch;
mod linked;
mod lock;
mod mapping;
mod memory;
mod mips_got;
mod named;
mod operators;
pub mod parting;
mod patience;
mod place;
pub mod plan;
pub mod preflight;
mod probed;
pub mod proc;
pub mod program;
pub mod recorded;
mod remains;
pub mod remote;
mod resident;
mod ring;
mod room;
pub mod runtimes;
pub mod sandbox;
mod search;
mod settle;
mod setup;
mod sharing;
mod shortage;
mod signal;
mod tables;
pub mod threads;
pub mod tracee;
pub mod translated;
mod verify;
mod waits;
pub mod walk;

pub use activate::signal_name;
pub use addr::RemoteAddr;
pub use detach::{DetachOptions, DetachReport, clean, detach};
pub use error::{Error, Refusal, Result};
pub use install::{Installed, Options, install};
use isolated::isolated;
pub use launch::{Launched, launch};
pub use lock::{idle, wait_until_idle};
pub use memory::RemoteMemory;
pub use named::{Named, Role};
pub use plan::no_uprobes;
pub use preflight::{Target, preflight};
pub use probed::begins_with_breakpoint;
pub use prof_arch::native::insn::uprobe;
pub use prof_arch::patch::Probed;
pub use recorded::{Recorded, pause, resume};
pub use search::Choice;
pub use shortage::note_shortage;
pub use threads::StopTimes;
