//! Reads `/proc/PID/stat`, the figures of a process or thread.

use crate::{Pid, clock_ticks};
use std::fs;
use std::path::Path;
use std::str::FromStr;

/// The fields of a `stat` file, numbered as in proc_pid_stat(5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The text from field 3 on, which begins with the letter of the state.
    fields: String,
}

/// Number of the first field in [`Stat::fields`].
const FIRST: usize = 3;

impl Stat {
    /// Reads the figures of a process, or of the thread with this id. Returns `None` if there is none.
    #[must_use]
    pub fn of(pid: Pid) -> Option<Self> {
        Self::read(Path::new(&format!("/proc/{pid}/stat")))
    }

    /// Reads the figures of one thread of a process. Returns `None` if there is none.
    #[must_use]
    pub fn of_thread(pid: Pid, tid: Pid) -> Option<Self> {
        Self::read(Path::new(&format!("/proc/{pid}/task/{tid}/stat")))
    }

    /// Reads the figures of a process that has not ended. Returns `None` if there is none.
    #[must_use]
    pub fn living(pid: Pid) -> Option<Self> {
        Self::of(pid).filter(|s| !s.has_ended())
    }

    /// Reads a `stat` file. Returns `None` if it can't be read.
    #[must_use]
    pub fn read(path: &Path) -> Option<Self> {
        Self::parse(&fs::read(path).ok()?)
    }

    /// Parses the text of a `stat` file. Returns `None` if it has no state.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        // The name, in parentheses, may contain any byte; the fields behind it are a letter and numbers.
        let name_ends = memchr::memrchr(b')', text)?;
        let fields = text[name_ends + 1..].strip_prefix(b" ")?.trim_ascii_end();
        let fields = str::from_utf8(fields).ok().filter(|f| !f.is_empty())?;
        Some(Self { fields: fields.to_owned() })
    }

    /// Returns a field by its number; `None` if it is not there, or out of the type's range.
    fn field<T: FromStr>(&self, number: usize) -> Option<T> {
        self.fields.split(' ').nth(number - FIRST)?.parse().ok()
    }

    /// Returns the letter of the state.
    #[must_use]
    pub fn state(&self) -> u8 {
        self.fields.as_bytes()[0]
    }

    /// Returns whether the process or thread has ended, even if nobody has waited for it yet.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.state(), b'Z' | b'X')
    }

    /// Returns the process id of the parent.
    #[must_use]
    pub fn parent(&self) -> Option<Pid> {
        self.field(4)
    }

    /// Returns whether it is a thread of the kernel (`PF_KTHREAD`). Missing memory does not show that, since a process
    /// that is just ending has none either.
    #[must_use]
    pub fn is_kernel_thread(&self) -> bool {
        const PF_KTHREAD: u64 = 0x20_0000;
        self.field(9).is_some_and(|flags: u64| flags & PF_KTHREAD != 0)
    }

    /// Returns user and system time, in clock ticks.
    #[must_use]
    pub fn cpu(&self) -> u64 {
        let of = |number| self.field(number).unwrap_or(0u64);
        of(14).saturating_add(of(15))
    }

    /// Returns user and system time, in milliseconds.
    #[must_use]
    pub fn cpu_ms(&self) -> u64 {
        self.cpu().saturating_mul(1000) / clock_ticks()
    }

    /// Returns the start time in clock ticks since boot, which tells a process from a later one with the same id.
    #[must_use]
    pub fn start(&self) -> Option<u64> {
        self.field(22)
    }

    /// Returns the age in milliseconds; `None` if the kernel's uptime can't be read.
    #[must_use]
    pub fn age_ms(&self) -> Option<u64> {
        let text = fs::read_to_string("/proc/uptime").ok()?;
        let now: f64 = text.split_whitespace().next()?.parse().ok()?;
        let since = self.start()? as f64 / clock_ticks() as f64;
        Some(((now - since).max(0.0) * 1e3) as u64)
    }

    /// Returns the resident set size, in pages.
    #[must_use]
    pub fn rss(&self) -> Option<u64> {
        self.field(24)
    }

    /// Returns the stack pointer with which the kernel has started the program; `None` for who may not trace it.
    #[must_use]
    pub fn start_stack(&self) -> Option<u64> {
        self.field(28).filter(|at| *at != 0)
    }

    /// Returns the signal that its parent gets when it ends; 0: none.
    #[must_use]
    pub fn exit_signal(&self) -> Option<i32> {
        self.field(38)
    }

    /// Returns the processor that it ran on last.
    #[must_use]
    pub fn processor(&self) -> Option<usize> {
        self.field(39)
    }

    /// Returns the start of the heap.
    #[must_use]
    pub fn start_brk(&self) -> Option<u64> {
        self.field(47)
    }

    /// Returns the status, in the form of wait(2), of a process that has ended and that nobody has waited for; `None` if
    /// it has not ended, or the reader may not know.
    #[must_use]
    pub fn exit_code(&self) -> Option<i32> {
        self.field(52).filter(|_| self.has_ended())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields 3 to 52, with the numbers of the fields as values.
    fn text(name: &str, state: char) -> String {
        let fields: Vec<String> = (4..=52).map(|n| n.to_string()).collect();
        format!("7 ({name}) {state} {}\n", fields.join(" "))
    }

    #[test]
    fn names_with_blanks_parentheses_and_newlines_are_passed_over() {
        for name in ["a", "a) b (c", ") R 1 1 (", "a) Z 3\n) ", "", ") "] {
            let stat = Stat::parse(text(name, 'S').as_bytes()).expect(name);
            assert_eq!(
                (stat.state(), stat.parent(), stat.cpu()),
                (b'S', Some(Pid::from_raw(4)), 29),
                "{name}"
            );
            assert_eq!(
                (stat.start(), stat.rss(), stat.start_brk()),
                (Some(22), Some(24), Some(47))
            );
            assert_eq!((stat.processor(), stat.exit_code()), (Some(39), None));
            assert!(!stat.has_ended() && !stat.is_kernel_thread());
        }
        let mut raw = text("NAME", 'Z').into_bytes();
        raw[3..5].copy_from_slice(b"\xff)");
        let zombie = Stat::parse(&raw).expect("a name that is not UTF-8");
        assert_eq!((zombie.has_ended(), zombie.exit_code()), (true, Some(52)));
    }

    #[test]
    fn truncated_files_have_the_fields_that_are_there() {
        for none in ["", "7", "7 (a", "7 (a)", "7 (a) ", "7 (a)S 3"] {
            assert_eq!(Stat::parse(none.as_bytes()), None, "{none}");
        }
        let stat = Stat::parse(b"7 (a) S 3 7 7").expect("a state");
        assert_eq!(
            (stat.parent(), stat.start(), stat.cpu(), stat.rss()),
            (Some(Pid::from_raw(3)), None, 0, None)
        );
    }

    #[test]
    fn numbers_out_of_range_are_unknown() {
        let huge = "99999999999999999999999";
        let line = format!("7 (a) S {huge} 0 0 0 0 {huge} 0 0 0 0 {} {} 0", u64::MAX, u64::MAX);
        let stat = Stat::parse(line.as_bytes()).expect("a state");
        assert_eq!((stat.parent(), stat.is_kernel_thread(), stat.cpu()), (None, false, u64::MAX));
        assert!(stat.cpu_ms() > 0);
    }

    #[test]
    fn threads_of_the_kernel_have_a_flag() {
        let of =
            |flags: u64| Stat::parse(format!("2 (kthreadd) S 0 0 0 0 -1 {flags} 0").as_bytes());
        assert!(of(0x20_8040).expect("a state").is_kernel_thread());
        assert!(!of(0x40_0100).expect("a state").is_kernel_thread());
    }

    #[test]
    fn this_process_is_understood() {
        let stat = Stat::living(Pid::this()).expect("alive");
        assert_eq!(stat.parent(), Some(Pid::from_u32(std::os::unix::process::parent_id())));
        assert!(stat.start().is_some_and(|s| s > 0) && stat.age_ms().is_some());
        assert!(stat.rss().is_some_and(|pages| pages > 0));
    }
}
