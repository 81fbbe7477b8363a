//! Records the kernel's own allocations: slab objects, pages and per-CPU memory, each with the kernel's stack.
//!
//! The kernel reports them through its tracepoints, which this crate reads as perf events: a descriptor for each
//! tracepoint and processor, and a ring of memory for each processor. All of it belongs to the process that opened it,
//! so nothing stays behind when that process ends in any way.
//!
//! * [`Recorder`]: opens the events, reads them pass by pass, and writes a recording;
//! * [`What`], [`Scope`]: which allocations, and whose;
//! * [`Outstanding`]: the allocations that are not freed, by stack;
//! * [`Names`]: the kernel's functions, from `/proc/kallsyms`.

mod bpf;
mod format;
mod live;
mod names;
mod pages;
mod perf;
mod recorder;
mod ring;
mod sample;
mod stacks;
mod sys;
mod tasks;
mod tracefs;
mod tracepoints;
mod write;

pub use live::{Block, Kind, Outstanding, Row};
pub use names::{KernelFunction, Names};
pub use prof_os::clock::monotonic_ns as now;
pub use recorder::{Backend, KernelStats, Options, Recorder};
pub use tasks::Scope;
pub use tracepoints::What;

use std::io;

/// Why the kernel's allocations can't be recorded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The tracepoints' descriptions can't be read.
    #[error(
        "cannot read the kernel's tracepoints ({0}): prof needs tracefs; run it as root, or mount it with `mount -t \
         tracefs none /sys/kernel/tracing` (in a container: on its host)"
    )]
    NoTracefs(io::Error),
    /// The kernel lacks a tracepoint, or describes it in another way than expected.
    #[error("this kernel's tracepoint {name} can't be used: {why}")]
    Tracepoint {
        /// Name of the tracepoint, such as `kmem:kmalloc`.
        name: &'static str,
        /// The reason.
        why: String,
    },
    /// The kernel refuses perf events.
    #[error("the kernel refuses to report its allocations ({source}): {advice}")]
    Refused {
        /// The system's error.
        source: io::Error,
        /// Advice for the user.
        advice: String,
    },
    /// The kernel does not run prof's programs, or they can't do what is asked for.
    #[error("--backend bpf can't be used: {0}; --backend perf records the same")]
    NoPrograms(String),
    /// The process may not open as many descriptors as are needed.
    #[error(
        "recording the kernel's allocations takes {needed} descriptors, more than this process may have (`ulimit -n`)"
    )]
    Descriptors {
        /// Number of descriptors.
        needed: usize,
    },
    /// The process is gone.
    #[error("process {0} is gone")]
    Gone(prof_os::Pid),
    /// The recording can't be written.
    #[error(transparent)]
    Collect(#[from] prof_collect::Error),
    /// The operating system refused something else.
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
