//! The arguments of the processes that prof starts for itself: the collector and the cleaner.

use super::bounds::CULL_PENDING;
use clap::Args;
use prof_analyze::rewrite::CullOptions;
use prof_collect::{Limits, Room};
use prof_trace::pack::Compress;
use std::path::PathBuf;
use std::process::Command;

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
    /// Greatest length of the recording
    #[arg(long)]
    pub max_disk: Option<u64>,
    /// Room to leave free on its file system
    #[arg(long, default_value_t = Room::Bytes(0))]
    pub keep_free: Room,
    /// Lifetime in nanoseconds below which blocks are not written
    #[arg(long)]
    pub cull_ns: Option<u64>,
    /// Memory for blocks of which that is not known yet
    #[arg(long, default_value_t = CULL_PENDING)]
    pub cull_pending: u64,
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

/// Options for writing a recording.
#[derive(Clone, Debug)]
pub(crate) struct Writing {
    /// Compression of the events.
    pub compress: Compress,
    /// Bounds of the file.
    pub limits: Limits,
    /// Selects blocks that are not written.
    pub cull: Option<CullOptions>,
}

impl Writing {
    /// Adds the options of `prof collect` that say this.
    pub(crate) fn tell(&self, command: &mut Command) {
        command.args(["--compress", self.compress.name()]);
        if let Some(most) = self.limits.max_disk {
            command.args(["--max-disk", &most.to_string()]);
        }
        command.args(["--keep-free", &self.limits.keep_free.to_string()]);
        if let Some(cull) = self.cull {
            command.args(["--cull-ns", &cull.threshold_ns.to_string()]);
            command.args(["--cull-pending", &cull.pending.to_string()]);
        }
    }
}

/// A collector's options, as read from its command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// Bounds of the file.
    pub limits: Limits,
    /// Selects blocks that are not written.
    pub cull: Option<CullOptions>,
}

impl Told {
    /// Returns what a collector was told; `None` if that can't be read, as its process is another user's or of another
    /// build.
    pub(crate) fn of(collector: u32) -> Option<Self> {
        let words = std::fs::read(format!("/proc/{collector}/cmdline")).ok()?;
        Self::from_words(&words)
    }

    /// Reads a command line of [`CollectArgs`], whose words end with 0 bytes.
    fn from_words(words: &[u8]) -> Option<Self> {
        let words: Vec<&str> = std::str::from_utf8(words).ok()?.split('\0').collect();
        if words.get(1) != Some(&"collect") {
            return None;
        }
        let value = |name: &str| words.iter().skip_while(|w| **w != name).nth(1);
        let number = |name: &str| value(name).map(|n| n.parse::<u64>()).transpose().ok();
        let cull = match (number("--cull-ns")?, number("--cull-pending")?) {
            (Some(threshold_ns), Some(pending)) => Some(CullOptions { threshold_ns, pending }),
            _ => None,
        };
        let keep_free = value("--keep-free")?.parse().ok()?;
        Some(Self { limits: Limits { max_disk: number("--max-disk")?, keep_free }, cull })
    }
}

/// Arguments of the process that cleans the target of a killed attach.
#[derive(Args, Debug)]
pub(crate) struct CleanArgs {
    /// The target
    #[arg(long)]
    pub pid: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_collector_does_is_read_from_what_a_collector_is_started_with() {
        let all = [
            Limits { max_disk: None, keep_free: Room::Usual },
            Limits { max_disk: Some(1 << 30), keep_free: Room::Share(50_000) },
            Limits { max_disk: Some(u64::MAX), keep_free: Room::Bytes(0) },
        ];
        for limits in all {
            let mut command = Command::new("prof");
            command.args(["collect", "--pid", "7"]);
            let cull = limits.max_disk.map(|_| CullOptions { threshold_ns: 7, pending: 1 << 20 });
            Writing { compress: Compress::Fast, limits, cull }.tell(&mut command);
            let mut words = b"prof\0".to_vec();
            for arg in command.get_args() {
                words.extend_from_slice(arg.as_encoded_bytes());
                words.push(0);
            }
            assert_eq!(Told::from_words(&words), Some(Told { limits, cull }));
        }
        for bad in
            [&b""[..], b"sh\0-c\0", b"prof\0collect\0", b"prof\0collect\0--keep-free", b"\xff"]
        {
            assert_eq!(Told::from_words(bad), None);
        }
    }
}
