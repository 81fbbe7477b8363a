//! Attaches to a live process, hooks its allocator, and detaches again.
//!
//! * [`mod@preflight`] checks whether a process can be recorded, and gives the reason if not.
//! * [`mod@install`] and [`Installed::activate`] attach, in two steps, so that a collector can start in between.
//! * [`recorded`] reads the state of a recorded process; [`fn@detach`] takes prof out of it.
//!
//! Below these, [`process`] is what prof learns of a process from outside, [`stopped`] is what it does with stopped
//! threads, [`hooked`] decides which functions are hooked and how, and `mapped` is what prof maps into the target.

mod activate;
mod again;
pub mod children;
mod clock;
mod detach;
mod error;
mod explain;
pub mod follow;
mod footprint;
mod handler;
pub mod hooked;
pub mod inherited;
pub mod install;
mod installed;
pub mod isolated;
mod launch;
mod linker_calls;
mod lock;
mod mapped;
mod moment;
mod outside;
pub mod parting;
mod permission;
pub mod preflight;
pub mod process;
pub mod recorded;
mod refusal;
mod report;
mod resident;
pub mod sandbox;
mod shortage;
mod signal;
pub mod stopped;
mod target;
mod unpatch;

pub use detach::{DetachOptions, clean, detach};
pub use error::{Error, Result};
pub use footprint::Added;
pub use hooked::plan::no_uprobes;
pub use hooked::probed::begins_with_breakpoint;
pub use hooked::search::FunctionChoice;
pub use hooked::user_named::{Named, Role};
pub use install::install;
pub use installed::{By, Installed, Options, WayIn};
pub use isolated::isolated;
pub use launch::{Launched, launch};
pub use lock::{Lock, idle, lock, wait_until_idle};
pub use mapped::library_file::{LibraryFile, kept_library};
pub use moment::Begun;
pub use permission::{has_memory, may_name_processes};
pub use preflight::preflight;
pub use prof_arch::native::insn::uprobe;
pub use prof_arch::patch::Probed;
pub use prof_os::RemoteAddr;
pub use recorded::{Recorded, ScanAnswer, add_scan, mark, pause, resume};
pub use refusal::Refusal;
pub use report::DetachReport;
pub use shortage::note_shortage;
pub use signal::signal_name;
pub use stopped::memory::RemoteMemory;
pub use stopped::threads::StopTimes;
pub use target::Target;
