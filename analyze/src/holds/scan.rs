//! The cost of a scan of a process, and the pointers that it may have missed.

use crate::load::Meta;
use prof_trace::records::ScanFigures;
use prof_trace::runtimes::Runtime;
use prof_trace::values::text::{bytes, count, duration};
use serde::Serialize;
use std::fmt::{self, Write};

/// Cost of a scan, and circumstances that may hide pointers.
#[derive(Clone, Debug, Serialize)]
pub struct ScanData {
    /// Number of passes.
    pub passes: u64,
    /// Enough passes in a row have agreed, or one was made with all threads stopped.
    pub settled: bool,
    /// Time was up before that.
    pub late: bool,
    /// The process has ended before that.
    pub ended: bool,
    /// Bytes of memory that were read.
    pub scanned_bytes: u64,
    /// Time that it took, in nanoseconds.
    pub took_ns: u64,
    /// Processor time of all passes, in nanoseconds.
    pub scan_cpu_ns: u64,
    /// Processor time of the first pass.
    pub first_cpu_ns: u64,
    /// The part of it that finding pointers and marking blocks took; 0: not known.
    pub first_mark_cpu_ns: u64,
    /// Longest stop of a thread, in nanoseconds.
    pub longest_stop_ns: u64,
    /// Time for which all threads were stopped, in nanoseconds; nothing: they were not.
    pub stop_ns: Option<u64>,
    /// Bytes that could not be read.
    pub unreadable_bytes: u64,
    /// Bytes of shared mappings without pages in the process.
    pub absent_shared_bytes: u64,
    /// Threads whose registers could not be read.
    pub unread_threads: u64,
    /// Threads whose stacks could not be followed to their start, so that some of their pointers have no frame.
    pub cut_stacks: u64,
    /// Descriptors of io_uring.
    pub io_uring: u64,
    /// Requests of aio may have been on their way.
    pub aio: bool,
    /// Blocks that begin inside others.
    pub nested_blocks: u64,
    /// Live blocks that are not known, as they were allocated while the scan was made.
    pub left_out_blocks: u64,
    /// Bytes of these blocks.
    pub left_out_bytes: u64,
    /// The process is a Java VM, whose pointers are compressed.
    pub java: bool,
    /// The recording is a sample of all blocks.
    pub sample: bool,
}

impl ScanData {
    /// Returns what is to be said of a scan in a recording.
    #[must_use]
    pub fn of_saved(f: &ScanFigures, meta: &Meta) -> Self {
        Self {
            passes: 1,
            settled: true,
            late: false,
            ended: false,
            scanned_bytes: f.scanned,
            took_ns: f.took_ns,
            scan_cpu_ns: f.cpu_ns,
            first_cpu_ns: f.cpu_ns,
            first_mark_cpu_ns: 0,
            longest_stop_ns: f.longest_stop_ns,
            stop_ns: f.stop_ns,
            unreadable_bytes: f.unreadable,
            absent_shared_bytes: f.absent,
            unread_threads: f.unread_threads,
            cut_stacks: f.cut_stacks,
            io_uring: f.rings,
            aio: f.aio,
            nested_blocks: f.nested,
            left_out_blocks: f.left_out.0,
            left_out_bytes: f.left_out.1,
            java: meta.runtimes.contains(&Runtime::Java),
            sample: !meta.target.capture().is_everything(),
        }
    }

    /// Writes what the passes have cost, and what they may not have seen.
    ///
    /// # Errors
    /// If writing fails.
    pub fn write(&self, out: &mut String) -> fmt::Result {
        let passes = count(self.passes, "pass", "passes");
        let how = match (self.ended, self.settled, self.stop_ns) {
            (true, ..) => {
                "the process ended meanwhile: this is what is known, and not confirmed".into()
            }
            _ if self.late && self.passes == 0 => {
                "time was up when the recording had been read; --timeout gives more time".into()
            }
            _ if self.late => {
                "time was up: what is not decided may be held; --timeout gives more time".into()
            }
            (_, false, _) => {
                "the passes did not come to agree: what is shown may still change".into()
            }
            (.., Some(ns)) => format!("the last with all threads stopped, for {}", duration(ns)),
            _ if self.passes == 1 => {
                "it reached all blocks, so that no other was needed; the process ran meanwhile"
                    .into()
            }
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
    #[must_use]
    pub fn hidden(&self) -> Vec<String> {
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
