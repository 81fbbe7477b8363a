//! The arguments of the processes that prof starts for itself: the collector and the cleaner.

use clap::Args;
use prof_trace::pack::Compress;
use std::path::PathBuf;

/// Arguments of the collector's process.
#[derive(Args, Debug)]
pub(crate) struct CollectArgs {
    /// The target
    #[arg(long)]
    pub pid: u32,
    /// Descriptor of the ring
    #[arg(long)]
    pub ring_fd: i32,
    /// Descriptor of the recording
    #[arg(long)]
    pub out_fd: i32,
    /// Absolute path of the recording
    #[arg(long)]
    pub path: PathBuf,
    /// Folder to save the recording in if its file is deleted
    #[arg(long)]
    pub folder: Option<PathBuf>,
    /// Descriptor of a pipe that gets a byte when collecting has begun
    #[arg(long)]
    pub ready_fd: i32,
    /// Compress of the recording
    #[arg(long, value_enum, default_value_t = Compress::None)]
    pub compress: Compress,
    /// Detach after this time
    #[arg(long)]
    pub duration_ms: Option<u64>,
    /// File to note the end of the recording in
    #[arg(long)]
    pub note: Option<PathBuf>,
    /// Write no line to the system's log
    #[arg(long)]
    pub no_log: bool,
}

/// Arguments of the process that cleans the target of a killed attach.
#[derive(Args, Debug)]
pub(crate) struct CleanArgs {
    /// The target
    #[arg(long)]
    pub pid: i32,
}
