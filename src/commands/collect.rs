//! The arguments of the processes that prof starts for itself: the collector and the cleaner.

use super::bounds::CULL_PENDING;
use crate::reports::{DumpFormat, Reports, Template};
use clap::{Args, ValueEnum};
use prof_analyze::rewrite::{AggregateOptions, CullOptions};
use prof_collect::{Budget, Limits, Room};
use prof_os::Pid;
use prof_trace::pack::Compress;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Option by which the oldest part goes at a bound.
const FOLD_MEMORY: &str = "--fold-memory";
/// Option with the template of the path of reports.
const REPORT_FILE: &str = "--report-file=";

/// Arguments of the collector's process.
#[derive(Args, Debug)]
pub(crate) struct CollectArgs {
    /// The target
    #[arg(long)]
    pub pid: Pid,
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
    /// Memory for events that wait beside the live blocks
    #[arg(long, default_value_t = CULL_PENDING)]
    pub cull_pending: u64,
    /// Interval in nanoseconds at which figures by stack are written in place of blocks
    #[arg(long)]
    pub aggregate_ns: Option<u64>,
    /// At a bound, make figures by stack of all events, and go on with those at this interval in nanoseconds
    #[arg(long, requires = "fold_memory")]
    pub goes_over_ns: Option<u64>,
    /// Drop the oldest part at a bound, by processes with this much memory
    #[arg(long)]
    pub fold_memory: Option<u64>,
    /// Most time of the collector and the hook, in millionths of a processor
    #[arg(long)]
    pub max_cpu: Option<u64>,
    /// Most time of the hook, in millionths of the target's own
    #[arg(long)]
    pub max_overhead: Option<u64>,
    /// Signal at which a report is written
    #[arg(long)]
    pub dump_signal: Option<u32>,
    /// Template of the report's path
    #[arg(long, requires = "dump_signal")]
    pub report_file: Option<String>,
    /// Folder that this begins in if it is relative
    #[arg(long, requires = "dump_signal")]
    pub report_folder: Option<PathBuf>,
    /// Format of the report
    #[arg(long, value_enum, default_value_t = DumpFormat::Text)]
    pub report_format: DumpFormat,
    /// The process that hands over a census before events are read
    #[arg(long)]
    pub census_from: Option<Pid>,
    /// Go on in the recording of a collector that has died, and close this descriptor of a lock when collecting has begun
    #[arg(long)]
    pub goes_on: Option<i32>,
    /// Begin the recording of a process that its parent's hook has made record, and close this descriptor of a lock when
    /// collecting has begun
    #[arg(long, conflicts_with = "goes_on")]
    pub begins: Option<i32>,
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
    /// Figures by stack that are written in place of blocks.
    pub aggregate: Option<AggregateOptions>,
    /// Figures by stack that are made of the events at a bound, and written from then on.
    pub goes_over: Option<AggregateOptions>,
    /// Memory of the processes by which the oldest part goes at a bound, if it does.
    pub drop_oldest: Option<u64>,
    /// Bounds of what recording may cost.
    pub budget: Option<Budget>,
    /// Reports that are written at a signal.
    pub reports: Option<Reports>,
}

impl CollectArgs {
    /// Returns what recording may cost, if that is bounded.
    pub(crate) fn budget(&self) -> Option<Budget> {
        let (cpu, overhead) = (self.max_cpu, self.max_overhead);
        (cpu.is_some() || overhead.is_some()).then_some(Budget { cpu, overhead })
    }

    /// Returns the reports that are written at a signal.
    pub(crate) fn reports(&self) -> Option<Reports> {
        let folder = self.report_folder.clone()?;
        let to = Template { folder, text: self.report_file.clone()? };
        Some(Reports { signal: self.dump_signal?, to, format: self.report_format })
    }
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
        if let Some(memory) = self.drop_oldest {
            command.args([FOLD_MEMORY, &memory.to_string()]);
        }
        let figures = [("--aggregate-ns", self.aggregate), ("--goes-over-ns", self.goes_over)];
        for (option, figures) in figures {
            let every = figures.map(|f| f.every_ns.to_string());
            command.args(every.iter().flat_map(|ns| [option, ns.as_str()]));
        }
        if let Some(Budget { cpu, overhead }) = self.budget {
            for (option, most) in [("--max-cpu", cpu), ("--max-overhead", overhead)] {
                command.args(most.iter().flat_map(|n| [option.to_string(), n.to_string()]));
            }
        }
        if let Some(Reports { signal, to, format }) = &self.reports {
            command.args(["--dump-signal", &signal.to_string()]);
            command.arg(format!("{REPORT_FILE}{}", to.text));
            command.arg("--report-folder").arg(&to.folder);
            if let Some(format) = format.to_possible_value() {
                command.args(["--report-format", format.get_name()]);
            }
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
    /// Figures by stack that are written in place of blocks.
    pub aggregate: Option<AggregateOptions>,
    /// Figures by stack that are made of the events at a bound, and written from then on.
    pub goes_over: Option<AggregateOptions>,
    /// Memory of the processes by which the oldest part goes at a bound, if it does.
    pub drop_oldest: Option<u64>,
    /// Bounds of what recording may cost.
    pub budget: Option<Budget>,
    /// Signal at which a report is written, and its path with words in braces.
    pub reports: Option<(u32, PathBuf)>,
}

impl Told {
    /// Returns what a collector was told; `None` if that can't be read, as its process is another user's or of another
    /// build.
    pub(crate) fn of(collector: Pid) -> Option<Self> {
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
        let figures = |name| Some(number(name)?.map(|every_ns| AggregateOptions { every_ns }));
        let (aggregate, goes_over) = (figures("--aggregate-ns")?, figures("--goes-over-ns")?);
        let budget = Budget { cpu: number("--max-cpu")?, overhead: number("--max-overhead")? };
        let budget = Some(budget).filter(|b| *b != Budget::default());
        let keep_free = value("--keep-free")?.parse().ok()?;
        let template = words.iter().find_map(|w| w.strip_prefix(REPORT_FILE));
        let to = |t: &str| Path::new(value("--report-folder").unwrap_or(&"")).join(t);
        let signal = number("--dump-signal")?.and_then(|s| u32::try_from(s).ok());
        let reports = signal.zip(template.map(to));
        let limits = Limits { max_disk: number("--max-disk")?, keep_free };
        let drop_oldest = number(FOLD_MEMORY)?;
        Some(Self { limits, cull, aggregate, goes_over, drop_oldest, budget, reports })
    }
}

/// Arguments of the process that cleans the target of a killed attach.
#[derive(Args, Debug)]
pub(crate) struct CleanArgs {
    /// The target
    #[arg(long)]
    pub pid: Pid,
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
            let to = Template { folder: "/a b".into(), text: "--{n}".into() };
            let reports = cull.map(|_| Reports { signal: 12, to, format: DumpFormat::Json });
            let told = cull.map(|_| (12, PathBuf::from("/a b/--{n}")));
            let aggregate = cull.is_none().then_some(AggregateOptions { every_ns: 1 << 33 });
            let goes_over = limits.max_disk.is_none().then_some(AggregateOptions { every_ns: 7 });
            let budget = cull.map(|_| Budget { cpu: Some(20_000), overhead: None });
            let drop_oldest = cull.is_none().then_some(1 << 30);
            let compress = Compress::Fast;
            Writing { compress, limits, cull, aggregate, goes_over, drop_oldest, budget, reports }
                .tell(&mut command);
            let mut words = b"prof\0".to_vec();
            for arg in command.get_args() {
                words.extend_from_slice(arg.as_encoded_bytes());
                words.push(0);
            }
            assert_eq!(
                Told::from_words(&words),
                Some(Told {
                    limits,
                    cull,
                    aggregate,
                    goes_over,
                    drop_oldest,
                    budget,
                    reports: told
                })
            );
        }
        for bad in
            [&b""[..], b"sh\0-c\0", b"prof\0collect\0", b"prof\0collect\0--keep-free", b"\xff"]
        {
            assert_eq!(Told::from_words(bad), None);
        }
    }
}
