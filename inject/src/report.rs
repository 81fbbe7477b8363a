//! Result of a detach.

use crate::stopped::threads::StopTimes;
use std::path::PathBuf;

/// Result of a detach.
#[derive(Debug, Default)]
pub struct DetachReport {
    /// Path of the recording.
    pub path: PathBuf,
    /// Times for which the target was stopped.
    pub stops: StopTimes,
    /// Descriptions of what could not be removed; empty if nothing of prof is left.
    pub left: Vec<String>,
    /// Whether the kernel refuses to unmap prof's memory for as long as the process runs this program.
    pub stays: bool,
    /// Observations that were unexpected, but are harmless.
    pub notes: Vec<String>,
}
