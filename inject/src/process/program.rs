//! Detects that a process has executed another program.

use prof_os::Pid;
use prof_os::status::Status;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// The program that a process runs.
#[derive(Debug)]
pub struct Program {
    pid: Pid,
    /// The program's memory, which reads as empty after an exec.
    mem: Option<File>,
}

impl Program {
    /// Returns the program that runs now.
    #[must_use]
    pub fn of(pid: Pid) -> Self {
        Self { pid, mem: File::open(prof_os::process::folder(pid) + "/mem").ok() }
    }

    /// Returns whether the program has gone while the process lives. An exec does not show if another process shares
    /// the old memory.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        let gone = self.mem.as_ref().is_some_and(|m| matches!(m.read_at(&mut [0], 0), Ok(0)));
        gone && Status::of(self.pid).is_ok_and(|s| s.has_memory())
    }

    /// Waits up to `time` for the program to be replaced, and returns whether it was. This is for errors that an exec
    /// may explain: it releases the old memory only after it has ended the process's other threads.
    #[must_use]
    pub fn is_replaced_within(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        while !self.is_replaced() {
            if self.mem.is_none() || Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}
