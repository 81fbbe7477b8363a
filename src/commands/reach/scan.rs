//! A scan of a process: its options, what it has cost, and what it may not have seen.

use crate::failure::refused;
use anyhow::Result;
use clap::Args;
use prof_analyze::holds::ScanData;
use prof_analyze::load::Meta;
use prof_os::Pid;
use prof_scan::{Error, Options, ScanStats, Scanner};
use prof_trace::records::ScanFigures;
use prof_trace::values::parse;
use std::time::Duration;

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

/// State of a scan at its end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ends {
    /// See [`ScanData`].
    pub settled: bool,
    pub late: bool,
    pub ended: bool,
}

/// Returns the figures of a scan for a report.
pub(crate) fn data(figures: &ScanStats, ends: Ends, meta: &Meta) -> ScanData {
    let Ends { settled, late, ended } = ends;
    let passes = figures.passes;
    let (first_cpu_ns, first_mark_cpu_ns) = (ns(figures.first_cpu), ns(figures.first_mark));
    ScanData {
        passes,
        settled,
        late,
        ended,
        first_cpu_ns,
        first_mark_cpu_ns,
        ..ScanData::of_saved(&saved(figures), meta)
    }
}

fn ns(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the figures of a scan as a recording keeps them.
pub(crate) fn saved(s: &ScanStats) -> ScanFigures {
    ScanFigures {
        scanned: s.scanned,
        took_ns: ns(s.took),
        cpu_ns: ns(s.cpu),
        longest_stop_ns: ns(s.longest_stop),
        stop_ns: s.stop.map(ns),
        unreadable: s.unreadable,
        absent: s.absent,
        unread_threads: s.unread_threads,
        rings: s.rings,
        aio: s.aio,
        nested: s.nested,
        left_out: (s.left_out.blocks, s.left_out.bytes),
        cut_stacks: s.cut_stacks,
    }
}
