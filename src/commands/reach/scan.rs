//! A scan of a process: its options, what it has cost, and what it may not have seen.

use crate::failure::refused;
use anyhow::Result;
use clap::Args;
use prof_analyze::load::Meta;
use prof_os::Pid;
use prof_scan::{Error, Options, ScanStats, Scanner};
use prof_trace::runtimes::Runtime;
use prof_trace::values::parse;
use prof_trace::values::text::{bytes, count, duration};
use serde::Serialize;
use std::fmt::{self, Write};

/// Options of every scan.
#[derive(Args, Clone, Debug)]
pub(crate) struct ScanArgs {
    /// Bits of a word that are an address, for programs that keep other things in the rest of their pointers, such as
    /// 0x0000ffffffffffff; a word counts as it is, too
    #[arg(long, value_name = "MASK", value_parser = parse::address)]
    pub pointer_mask: Option<u64>,

    /// The most of a processor that the scan takes, in percent
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub max_cpu: Option<u32>,
}

impl ScanArgs {
    /// Opens a process for a scan.
    ///
    /// # Errors
    /// If the process is gone, or its memory may not be read.
    pub(crate) fn open(&self, pid: Pid) -> Result<Scanner> {
        let defaults = Options::default();
        let options = Options {
            mask: self.pointer_mask.unwrap_or(defaults.mask),
            max_cpu: self.max_cpu.unwrap_or(0),
            ..defaults
        };
        Scanner::open(pid, options).map_err(failed)
    }
}

/// Returns the error that a command ends with if a scan fails.
pub(crate) fn failed(e: Error) -> anyhow::Error {
    match e {
        Error::Blocks(e) => anyhow::Error::from_boxed(e),
        e => refused(e.to_string()),
    }
}

/// What may hide pointers, and what the scan has cost.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ScanData {
    /// Number of passes.
    pub passes: u64,
    /// Enough passes in a row have agreed, or one was made with all threads stopped.
    pub settled: bool,
    /// Time was up before that.
    pub late: bool,
    /// The process has ended before that.
    pub ended: bool,
    pub scanned_bytes: u64,
    pub took_ns: u64,
    /// Processor time of all passes, and of the first one.
    pub scan_cpu_ns: u64,
    pub first_cpu_ns: u64,
    pub longest_stop_ns: u64,
    /// Time for which all threads were stopped; nothing: they were not.
    pub stop_ns: Option<u64>,
    pub unreadable_bytes: u64,
    pub absent_shared_bytes: u64,
    pub unread_threads: u64,
    pub io_uring: u64,
    pub aio: bool,
    pub nested_blocks: u64,
    pub java: bool,
    pub sample: bool,
}

/// How a scan has come to its end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ends {
    /// See [`ScanData`].
    pub settled: bool,
    pub late: bool,
    pub ended: bool,
}

impl ScanData {
    /// Returns what is to be said of a scan.
    pub(crate) fn new(figures: &ScanStats, ends: Ends, meta: &Meta) -> Self {
        let Ends { settled, late, ended } = ends;
        Self {
            passes: figures.passes,
            settled,
            late,
            ended,
            scanned_bytes: figures.scanned,
            took_ns: figures.took.as_nanos() as u64,
            scan_cpu_ns: figures.cpu.as_nanos() as u64,
            first_cpu_ns: figures.first_cpu.as_nanos() as u64,
            longest_stop_ns: figures.longest_stop.as_nanos() as u64,
            stop_ns: figures.stop.map(|d| d.as_nanos() as u64),
            unreadable_bytes: figures.unreadable,
            absent_shared_bytes: figures.absent,
            unread_threads: figures.unread_threads,
            io_uring: figures.rings,
            aio: figures.aio,
            nested_blocks: figures.nested,
            java: meta.runtimes.contains(&Runtime::Java),
            sample: !meta.target.capture().is_everything(),
        }
    }

    /// Writes what the passes have cost, and what they may not have seen.
    ///
    /// # Errors
    /// If writing fails.
    pub(crate) fn write(&self, out: &mut String) -> fmt::Result {
        let passes = count(self.passes, "pass", "passes");
        let how = match (self.ended, self.settled, self.stop_ns) {
            (true, ..) => {
                "the process ended meanwhile: this is what is known, and not confirmed".into()
            }
            _ if self.late => {
                "time was up: what is not decided may be held; --timeout gives more time".into()
            }
            (_, false, _) => {
                "the passes did not come to agree: what is shown may still change".into()
            }
            (.., Some(ns)) => format!("the last with all threads stopped, for {}", duration(ns)),
            _ => "the last of them agree; the process ran meanwhile".into(),
        };
        writeln!(out, "  {passes}: {how}")?;
        let rate = self.scanned_bytes as f64 / (self.took_ns.max(1) as f64 / 1e9);
        writeln!(
            out,
            "  {} scanned in {} ({}/s); longest stop of a thread: {}",
            bytes(self.scanned_bytes),
            duration(self.took_ns),
            bytes(rate as u64),
            duration(self.longest_stop_ns)
        )?;
        for line in self.hidden() {
            writeln!(out, "  may hide pointers: {line}")?;
        }
        if self.nested_blocks > 0 {
            let n = count(self.nested_blocks, "block lies", "blocks lie");
            writeln!(out, "  not judged: {n} in others")?;
        }
        if self.sample {
            writeln!(out, "  the recording is a sample: these are the blocks in it, and not all")?;
        }
        Ok(())
    }

    /// Returns what may hold pointers that the scan does not see.
    pub(crate) fn hidden(&self) -> Vec<String> {
        let mut all = Vec::new();
        if self.unreadable_bytes > 0 {
            all.push(format!("{} that could not be read", bytes(self.unreadable_bytes)));
        }
        if self.absent_shared_bytes > 0 {
            let n = bytes(self.absent_shared_bytes);
            all.push(format!("{n} of shared mappings that have no pages in the process now"));
        }
        if self.unread_threads > 0 {
            let n = count(self.unread_threads, "thread", "threads");
            all.push(format!("registers of {n} that did not stop"));
        }
        if self.io_uring > 0 {
            all.push("requests of io_uring that are on their way".into());
        }
        if self.aio {
            all.push("requests of aio that are on their way".into());
        }
        if self.java {
            all.push("the heap of Java, where pointers are compressed".into());
        }
        all
    }
}
