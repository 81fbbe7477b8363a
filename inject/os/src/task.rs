//! Reads the files of one thread, in `/proc/PID/task/TID`: where it sleeps, and for how long it ran.

use crate::{Pid, RemoteAddr};
use std::fs;
use std::time::Duration;

/// The place where a thread sleeps in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asleep {
    /// Number of the system call; `None` if the thread sleeps in a page fault or the like.
    pub call: Option<u64>,
    /// The thread's stack pointer.
    pub sp: RemoteAddr,
    /// The thread's program counter.
    pub pc: RemoteAddr,
}

impl Asleep {
    /// Parses the text of a `syscall` file; `None` if the thread runs.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        // The line ends with stack pointer and program counter, after the system call's number and arguments, or -1.
        let mut words = text.split_whitespace();
        let call = words.next()?.parse::<i64>().ok()?;
        let mut last = words.rev().map(|w| {
            let address = u64::from_str_radix(w.strip_prefix("0x")?, 16).ok()?;
            Some(RemoteAddr(address))
        });
        let (pc, sp) = (last.next()??, last.next()??);
        Some(Self { call: u64::try_from(call).ok(), sp, pc })
    }
}

fn read(pid: Pid, tid: Pid, file: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/task/{tid}/{file}")).ok()
}

/// Returns where a thread sleeps (`syscall`); `None` if it runs, or if the kernel does not tell.
#[must_use]
pub fn asleep(pid: Pid, tid: Pid) -> Option<Asleep> {
    Asleep::parse(&read(pid, tid, "syscall")?)
}

/// Returns the kernel function in which a sleeping thread waits (`wchan`); empty if the kernel does not tell.
#[must_use]
pub fn waits_in(pid: Pid, tid: Pid) -> String {
    read(pid, tid, "wchan").unwrap_or_default()
}

/// Returns for how long a thread has had a processor (`schedstat`); `None` if the kernel does not tell.
#[must_use]
pub fn ran(pid: Pid, tid: Pid) -> Option<Duration> {
    let text = read(pid, tid, "schedstat")?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

/// Returns when a thread ran last (`sched`), in nanoseconds of the clock of its processor; `None` if the kernel does
/// not tell.
#[must_use]
pub fn last_ran(pid: Pid, tid: Pid) -> Option<u64> {
    exec_start(&read(pid, tid, "sched")?)
}

/// Returns when the calling thread ran last, as [`last_ran`] does.
#[must_use]
pub fn own_last_ran() -> Option<u64> {
    exec_start(&fs::read_to_string("/proc/thread-self/sched").ok()?)
}

/// Returns `se.exec_start`, which is printed in milliseconds with six decimals, in nanoseconds.
fn exec_start(sched: &str) -> Option<u64> {
    let line = sched.lines().find_map(|l| l.strip_prefix("se.exec_start"))?;
    let (ms, rest) = line.split(':').nth(1)?.trim().split_once('.')?;
    let ns = format!("{rest:0<6}").get(..6)?.parse::<u64>().ok()?;
    ms.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeping_threads() {
        let poll =
            Asleep::parse("7 0x0 0x0 0x3e8 0x0 0x0 0x0 0x7ffc10 0x7f00aa\n").expect("asleep");
        assert_eq!((poll.call, poll.sp.0, poll.pc.0), (Some(7), 0x7f_fc10, 0x7f_00aa));
        let fault = Asleep::parse("-1 0x7ffc10 0x7f00aa\n");
        assert_eq!(fault.map(|a| (a.call, a.pc.0)), Some((None, 0x7f_00aa)));
        for none in
            ["running\n", "", "7\n", "7 0x1", "7 0x0 nonsense 0x1\n", "7 0x1 0x10000000000000000"]
        {
            assert_eq!(Asleep::parse(none), None, "{none}");
        }
    }

    #[test]
    fn the_time_of_the_last_run() {
        let sched = "a (1, #threads: 1)\n---\nse.exec_start     :       1308751.086284\nse.vruntime : 1.0\n";
        assert_eq!(exec_start(sched), Some(1_308_751_086_284));
        for none in
            ["nothing", "se.exec_start", "se.exec_start : 7", "se.exec_start : 99999999999999999.1"]
        {
            assert_eq!(exec_start(none), None, "{none}");
        }
    }
}
