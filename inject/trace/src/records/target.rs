//! The recorded process, and what ends its recording.

use crate::capture::Capture;
use crate::ticks::Ticks;
use crate::wire::{Reader, Writer};
use std::string::String;
use std::vec::Vec;

record! {
    /// The recorded process. This is the first chunk of a file.
    Target {
        /// Process id in prof's namespace.
        pid: int32,
        /// Path of the executable.
        exe: text,
        /// Command line arguments.
        cmdline: texts,
        /// Process name (`comm`).
        comm: text,
        /// `x86_64`, `aarch64`, `arm`, `mips64`, `mips64el`.
        arch: text,
        /// Pointer size, in bytes.
        pointer_size: int32,
        /// Page size, in bytes.
        page_size: int32,
        /// Start of the recording, in ns since 1970.
        wall_ns: int,
        /// Start of the recording, in ticks.
        start_ticks: ticks,
        /// Ticks per second.
        ticks_per_sec: int,
        /// Version of the prof that recorded.
        prof_version: text,
        /// See [`Capture::sample_bytes`]; 0: off.
        sample_bytes: later,
        /// See [`Capture::sample_every`]; 0 or 1: off.
        sample_every: later,
        /// Smallest block size recorded, in bytes.
        min_size: later,
        /// Largest block size recorded, in bytes; `u64::MAX` or 0: no limit.
        max_size: later,
        /// Upper bound on how early an unordered (odd) timestamp can be, in ticks (FORMAT.md, section 3); 0:
        /// none is.
        early: later,
        /// 1: see [`Capture::adapts`].
        adapts: later,
        /// The pid namespace that `pid` belongs to (inode of `/proc/self/ns/pid`); 0: not known.
        pid_namespace: later,
    }
}

impl Target {
    /// Returns the filter of the recorded blocks.
    pub fn capture(&self) -> Capture {
        Capture {
            sample_bytes: self.sample_bytes,
            adapts: self.adapts != 0,
            sample_every: self.sample_every,
            min_size: self.min_size,
            max_size: if self.max_size == 0 { u64::MAX } else { self.max_size },
        }
    }
}

impl Joined {
    /// Returns whether the recording lacks anything of the processes that it is of.
    #[must_use]
    pub fn lacks_any(&self) -> bool {
        [self.growing, self.incomplete, self.lost, self.missed, self.more].iter().any(|n| *n > 0)
    }
}

impl Target {
    /// Returns the command line for display: the arguments, or the executable if there are none. Trailing
    /// blanks are dropped, as programs that set their title leave some.
    #[must_use]
    pub fn command(&self) -> String {
        let command = self.cmdline.join(" ");
        let command = command.trim_end();
        if command.is_empty() { self.exe.clone() } else { command.into() }
    }
}

record! {
    /// Runtimes in the target that take memory from the kernel themselves, so that not all their memory is
    /// recorded.
    Runtimes {
        /// Names, see [`Runtime::name`](crate::runtimes::Runtime::name).
        names: texts,
    }
}

record! {
    /// The process was recorded from its fork on, by a process that was recorded itself.
    Forked {
        /// Ticks of the fork.
        ticks: ticks,
        /// The parent's process id in prof's namespace.
        parent: int32,
        /// Name of the parent's recording, a file in the same folder; empty: it had none yet.
        recording: text,
        /// Name of the recording of the nearest ancestor that had one.
        ancestor: text,
        /// Ticks of the fork of this ancestor's child.
        ancestor_ticks: ticks,
    }
}

record! {
    /// The recording was joined from those of several processes. It has an end of its own also if one of them has none, so
    /// this tells whether all that they were to have is in it.
    Joined {
        /// Number of recordings that were joined.
        recordings: int,
        /// Number of those that were still being recorded.
        growing: int,
        /// Number of others that are not complete: they have no end, are damaged or cut off, or lack figures.
        incomplete: int,
        /// Number of recordings that were gone or could not be read, so that they were not joined.
        lost: int,
        /// Number of processes that could not be recorded, most as they had ended before.
        missed: int,
        /// 1: there may have been more of them.
        more: later,
        /// Number of joined recordings that were off for a time, or all the time.
        paused: later,
    }
}

record! {
    /// The last chunk of a recording that was finished.
    End {
        /// Ticks.
        ticks: ticks,
        /// Why recording ended: `detached`, `exited`, `killed by signal N`, `ended` (not known how), `exec`,
        /// `stopped`; or [`End::LIMIT`] and the bound that was reached.
        reason: text,
    }
}

impl End {
    /// Begin of the reason of a recording that ended as it had reached a bound of its length, or of the room on its file
    /// system.
    pub const LIMIT: &str = "limit: ";
    /// Reason of a recording that was finished in place of a collector that had died, with all that this had left.
    pub const DIED: &str = "stopped: the collector had died";

    /// Returns whether the recording could not be written to its end, or what was to be written is lost.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.reason.starts_with("stopped: ") && self.reason != Self::DIED
    }
}
