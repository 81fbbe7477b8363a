//! Reads `/proc/PID/status`, the named fields of a process or thread.

use crate::process::{folder, read, threads};
use crate::{Error, Pid, Result};
use std::fs;
use std::path::Path;

/// The fields of a `status` file, by the names that proc_pid_status(5) gives them.
#[derive(Clone, Debug, Default)]
pub struct Status {
    text: String,
}

impl Status {
    /// Reads the status of a process: that of its first thread, or of another one if the first has ended alone.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn of(pid: Pid) -> Result<Self> {
        Ok(Self::parse(&read(pid, Path::new(&(folder(pid) + "/status")))?))
    }

    /// Reads the status of one thread of a process.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn of_thread(pid: Pid, tid: Pid) -> Result<Self> {
        let path = format!("/proc/{pid}/task/{tid}/status");
        Ok(Self::parse(&fs::read(path).map_err(|_| Error::Gone(pid))?))
    }

    /// Parses the text of a `status` file, or of its beginning. Other files of `/proc` have the same form.
    #[must_use]
    pub fn parse(text: &[u8]) -> Self {
        Self { text: String::from_utf8_lossy(text).into_owned() }
    }

    /// Returns the text of a field.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// Returns the first number of a field; `None` if it does not fit.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<i64> {
        self.field(name)?.split_whitespace().next()?.parse().ok()
    }

    /// Returns a field that is an id in the pid namespace of `/proc`: `Pid`, `Tgid`, `PPid`, `TracerPid`. It is
    /// [`Pid::NONE`] if there is no such process, or none that this namespace shows.
    #[must_use]
    pub fn pid(&self, name: &str) -> Option<Pid> {
        self.field(name)?.parse().ok()
    }

    /// Returns the value of a field that counts kilobytes, in bytes.
    #[must_use]
    pub fn bytes(&self, name: &str) -> Option<u64> {
        let kilobytes: u64 = self.field(name)?.split_whitespace().next()?.parse().ok()?;
        Some(kilobytes.saturating_mul(1024))
    }

    /// Returns whether the process or thread has ended, even if its parent has not yet reaped it.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.field("State").is_some_and(|s| s.starts_with(['Z', 'X']))
    }

    /// Returns whether the process has memory of its own; it has none once it is ending, and as a thread of the kernel.
    #[must_use]
    pub fn has_memory(&self) -> bool {
        self.field("VmSize").is_some()
    }

    /// Returns the number of context switches, of both kinds.
    #[must_use]
    pub fn context_switches(&self) -> u64 {
        let of = |name| self.number(name).and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
        of("voluntary_ctxt_switches").wrapping_add(of("nonvoluntary_ctxt_switches"))
    }

    /// Returns a field that is a set of signals, of which there may be 128.
    #[must_use]
    pub fn signals(&self, name: &str) -> u128 {
        self.field(name).and_then(|f| u128::from_str_radix(f, 16).ok()).unwrap_or(0)
    }

    /// Returns whether a signal is pending that is neither blocked nor ignored. To a traced thread the kernel also sends those
    /// that are ignored, such as SIGCHLD of a program without a handler; without a tracer they are never pending, and end no
    /// system call.
    #[must_use]
    pub fn signal_due(&self) -> bool {
        let pending = self.signals("SigPnd") | self.signals("ShdPnd");
        // signal(7), "Standard signals": what the kernel's SIG_KERNEL_IGNORE_MASK has.
        let quiet = [libc::SIGCHLD, libc::SIGCONT, libc::SIGURG, libc::SIGWINCH];
        let quiet = quiet.iter().fold(0, |all, s| all | 1u128 << (s - 1));
        let ignored = self.signals("SigIgn") | (quiet & !self.signals("SigCgt"));
        pending & !self.signals("SigBlk") & !ignored != 0
    }

    /// Returns the ids of the process or thread, from the pid namespace that `/proc` shows to the innermost.
    #[must_use]
    pub fn pids(&self) -> Vec<Pid> {
        let text = self.field("NSpid").or(self.field("Pid")).unwrap_or_default();
        text.split_whitespace().filter_map(|n| n.parse().ok()).collect()
    }

    /// Returns the id in the innermost pid namespace.
    #[must_use]
    pub fn ns_pid(&self) -> Option<Pid> {
        self.field("NSpid").or(self.field("Pid"))?.split_whitespace().last()?.parse().ok()
    }
}

/// Returns whether any thread of the process is what each of these says of its status.
#[must_use]
pub fn any_thread<const N: usize>(pid: Pid, of: [fn(&Status) -> bool; N]) -> [bool; N] {
    let mut any = [false; N];
    for tid in threads(pid).unwrap_or_default() {
        let Ok(status) = Status::of_thread(pid, tid) else { continue };
        any.iter_mut().zip(of).for_each(|(any, of)| *any |= of(&status));
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"Name:\ta) b\\nTgid:\\t1\xff\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t70\nPid:\t71\n\
        NSpid:\t71\t9\t2\nVmSize:\t  12 kB\nVmSwap:\t18446744073709551615 kB\nVmPTE:\t99999999999999999999 kB\n\
        SigPnd:\t0000000000000002\nShdPnd:\t0\nSigBlk:\tnonsense\nSeccomp:\t2\n\
        voluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t6";

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let s = Status::parse(TEXT);
        assert_eq!(
            (s.pid("Tgid"), s.pid("Pid"), s.pid("Tg")),
            (Some(Pid::from_raw(70)), Some(Pid::from_raw(71)), None)
        );
        assert_eq!((s.field("State"), s.is_dead()), (Some("S (sleeping)"), false));
        assert_eq!(
            (s.pids(), s.ns_pid()),
            ([71, 9, 2].map(Pid::from_raw).to_vec(), Some(Pid::from_raw(2)))
        );
        assert_eq!((s.bytes("VmSize"), s.has_memory()), (Some(12 << 10), true));
        assert_eq!((s.context_switches(), s.signal_due()), (11, true));
    }

    #[test]
    fn signals_that_are_blocked_or_ignored_end_no_call() {
        let bit = |s: i32| 1u64 << (s - 1);
        let due = |pending: u64, blocked: u64, ignored: u64, caught: u64| {
            let text = format!(
                "SigPnd:\t{:016x}\nShdPnd:\t{pending:016x}\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\n\
                 SigCgt:\t{caught:016x}\n",
                0
            );
            Status::parse(text.as_bytes()).signal_due()
        };
        let (child, usr1) = (bit(libc::SIGCHLD), bit(libc::SIGUSR1));
        assert!(due(usr1, 0, 0, 0) && due(usr1, child, 0, usr1) && due(child | usr1, child, 0, 0));
        assert!(!due(usr1, usr1, 0, usr1) && !due(usr1, 0, usr1, 0));
        // Ignored unless the program has a handler.
        assert!(!due(child, 0, 0, 0) && due(child, 0, 0, child) && !due(child, child, 0, child));
        assert!(!due(
            child | bit(libc::SIGWINCH) | bit(libc::SIGURG) | bit(libc::SIGCONT),
            0,
            0,
            0
        ));
    }

    #[test]
    fn truncated_files_and_huge_numbers_are_bounded() {
        let s = Status::parse(TEXT);
        assert_eq!((s.bytes("VmSwap"), s.bytes("VmPTE")), (Some(u64::MAX), None));
        for cut in 0..TEXT.len() {
            let s = Status::parse(&TEXT[..cut]);
            assert!(s.number("Tgid").is_none_or(|n| n == 70 || n == 7), "{cut}");
            assert!(
                s.pids().len() <= 3
                    && s.ns_pid().is_none_or(|n| [7, 71, 9, 2].contains(&n.as_raw()))
            );
        }
        let none = Status::parse(b"");
        assert_eq!((none.pids(), none.ns_pid(), none.has_memory()), (vec![], None, false));
        assert!(Status::parse(b"State:\tZ (zombie)").is_dead());
    }

    #[test]
    fn this_process_is_understood() {
        let me = Pid::this();
        assert_eq!(Status::of(me).expect("status").pid("Tgid"), Some(me));
        assert!(Status::of_thread(me, me).expect("status").has_memory());
    }
}
