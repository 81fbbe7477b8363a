//! The collector: drains the memory that a target shares with prof into a recording, and watches the target.
//!
//! The target is not trusted. Everything that is read from the shared memory is copied before it is examined, bounded
//! by prof's own geometry, and followed for a bounded number of steps, so that nothing a target writes there can crash
//! the collector, block it, or make it grow.
//!
//! * [`Collector`]: the loop; [`Ended`]: its result;
//! * [`Output`]: the recording, as a file that is valid at every moment;
//! * [`Limits`]: how long it may become; [`Budget`]: how much time recording may take;
//! * [`create_recording`], [`write_prologue`]: its beginning;
//! * [`map_ring`]: the shared memory, from its file descriptor;
//! * [`Peek`]: the state of a process's recording, read from outside;
//! * [`drain_orphan`]: saves the events that a dead collector left in the ring; [`open_orphan`]: its recording,
//!   in which another may go on;
//! * [`Heir`]: a child that records in memory from its parent, and has no collector yet;
//! * [`read_allocators`]: the allocators of a process, their settings and arenas; [`list_allocators`]: their names alone;
//! * [`module_symbols`]: the build ID and the symbols of a module's file.

mod allocators;
mod arenas;
mod budget;
mod calls;
mod census;
mod cgroup;
mod clock;
mod collector;
mod counters;
mod decoded;
mod drain;
mod epochs;
mod fineness;
mod folding;
mod foreign;
mod heaps;
mod heart;
mod heir;
mod known;
mod limits;
mod mappings;
mod maps;
mod missing;
mod modules;
mod orphan;
mod output;
mod pace;
mod pages;
mod parts;
mod peek;
mod plain;
mod ring_copy;
mod ring_map;
mod smaps;
mod stacks;
mod symbols;
mod target;
mod threads;
mod tree;
mod watch;

pub use allocators::{GOOGLES, list_allocators, read_allocators};
pub use budget::Budget;
pub use clock::Clock;
pub use collector::{Collector, Ended, Memory};
pub use counters::totals;
pub use folding::{Copied, Folder, MakeSieve, new_path, remove_left};
pub use heir::{Ancestor, Heir, Held, hold_heirs, may_open_rings};
pub use limits::{Limits, Room};
pub use orphan::{Drained, Orphan, drain_orphan, drain_rest, finish_unattended, open_orphan};
pub use output::{Output, create_recording, write_forked, write_prologue, write_runtimes};
pub use peek::{Peek, Probe, all_recorded};
pub use ring_map::{map_ring, open_ring};
pub use symbols::module_symbols;
pub use target::{Watched, private, switch_off};

use std::io;

/// Why a recording could not begin or be continued.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The mapping is not a ring of this version of prof.
    #[error("the memory that is mapped as prof's is damaged, or is not prof's ({0})")]
    NotARing(&'static str),
    /// The ring belongs to a build of prof with another layout.
    #[error(
        "its events have the format of another version of prof (layout {layout}), which this one can't read; use that version"
    )]
    OtherLayout {
        /// Number of its layout.
        layout: u32,
        /// Address of the ring in the target.
        addr: u64,
    },
    /// The process has no ring.
    #[error("the process is not being recorded")]
    NoRing,
    /// The file to continue is not a recording.
    #[error("{0} is no recording of this version of prof")]
    NotARecording(std::path::PathBuf),
    /// The file to continue is a recording of another process, or belongs to another user.
    #[error("{0} is not a recording of process {1} that may be continued; it is left as it is")]
    NotItsRecording(std::path::PathBuf, prof_os::Pid),
    /// The recording to continue names its process by a number that can't be seen from here.
    #[error(
        "{0} was begun outside of this pid namespace (container), and which process it is of can only be seen there; run \
         prof there"
    )]
    OtherNamespace(std::path::PathBuf),
    /// The recording to continue is finished.
    #[error("{0} is finished")]
    Finished(std::path::PathBuf),
    /// The recording to continue has figures in place of blocks, which only the collector that counted them could go on
    /// with.
    #[error(
        "{0} has figures in place of blocks (--cull, --aggregate), which died with its collector"
    )]
    HasFigures(std::path::PathBuf),
    /// The process is gone.
    #[error("process {0} is gone")]
    Gone(prof_os::Pid),
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Io {
        /// Description of the attempted operation.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what: what.into(), source }
    }
}
