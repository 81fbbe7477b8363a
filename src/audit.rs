//! Writes a line to the system's log at each attach and detach: by which user, to which process, and what was changed
//! in it.

use crate::commands::record::RecordArgs;
use prof_os::Pid;
use prof_trace::records::FoldFailed;
use std::fmt::Write;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// Socket of the syslog service.
const LOG: &str = "/dev/log";
/// Facility authpriv, severity notice (RFC 3164, 4.1.1).
const PRIORITY: u32 = 10 << 3 | 5;
/// Length of a line that every logger accepts.
const LONGEST: usize = 1800;

/// Whether lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audit {
    /// Lines are written.
    On,
    /// `--no-log` was given.
    Off,
}

impl Audit {
    /// Returns the setting that the options ask for.
    pub(crate) fn of(record: &RecordArgs) -> Self {
        Self::unless(record.no_log)
    }

    /// Returns `Off` if `no_log` is set.
    pub(crate) fn unless(no_log: bool) -> Self {
        if no_log { Self::Off } else { Self::On }
    }

    /// Logs that prof has attached to a process.
    pub(crate) fn attached(self, pid: Pid, functions: &[(String, String)], path: &Path) {
        let to = path.display();
        self.write(&format!(
            "attached to {}; hooked {}; recording to {to}",
            process(pid),
            list(functions)
        ));
    }

    /// Logs that prof has detached from a process, with the parts of prof that are left in it.
    pub(crate) fn detached(self, pid: Pid, functions: &[(String, String)], left: &[String]) {
        let bytes = match left {
            [] => "bytes as before".into(),
            left => format!("left in it: {}", left.join(", ")),
        };
        self.write(&format!(
            "detached from {}; unhooked {}; {bytes}",
            process(pid),
            list(functions)
        ));
    }

    /// Logs that a recording has ended at a bound.
    pub(crate) fn ended(self, pid: Pid, why: &str) {
        self.write(&format!("the recording of {} ended at a bound: {why}", process(pid)));
    }

    /// Logs that a report could not be written that signals to a process had asked for.
    pub(crate) fn report_failed(self, pid: Pid, signals: u64, why: &str) {
        let signals = prof_trace::values::text::count(signals, "signal", "signals");
        self.write(&format!("no report for {signals} to {}: {why}", process(pid)));
    }

    /// Logs that the oldest part of a recording could not be dropped, or no figures be made of its events.
    pub(crate) fn fold_failed(self, pid: Pid, failed: &FoldFailed) {
        let (of, why) = (process(pid), &failed.reason);
        let failures = prof_trace::values::text::number(failed.failures);
        self.write(&match failed.over {
            0 => format!(
                "the oldest part of the recording of {of} could not be dropped (failure {failures}): {why}"
            ),
            _ => format!(
                "the recording of {of} could not go over to figures by stack (failure {failures}): {why}"
            ),
        });
    }

    /// Logs that a recording has figures by stack alone from now on.
    pub(crate) fn went_over(self, pid: Pid) {
        self.write(&format!(
            "the recording of {} met its bound, and has figures by stack alone from now on",
            process(pid)
        ));
    }

    /// Logs that the recording of a process is not at its original path.
    pub(crate) fn displaced(self, pid: Pid, message: &str) {
        self.write(&format!("{}: {message}", process(pid)));
    }

    fn write(self, text: &str) {
        if self == Self::Off {
            return;
        }
        let line = line(std::process::id(), &format!("{}: {text}", who()));
        let sent = UnixDatagram::unbound().and_then(|s| {
            s.set_nonblocking(true)?;
            s.send_to(line.as_bytes(), LOG)
        });
        if let Err(e) = sent {
            log::info!("no line in the system's log: {LOG}: {e}");
        }
    }
}

/// Returns a line for syslog. It has no time, which the logger adds.
fn line(me: u32, text: &str) -> String {
    let mut plain: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    if plain.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|i| plain.is_char_boundary(*i)).unwrap_or(0);
        plain.truncate(end);
        plain += " ...";
    }
    format!("<{PRIORITY}>prof[{me}]: {plain}")
}

/// Returns the user who runs prof: as the kernel tells, and as sudo tells.
fn who() -> String {
    let (uid, effective) = (nix::unistd::getuid(), nix::unistd::geteuid());
    let mut text = format!("uid {uid}");
    if effective != uid {
        let _ = write!(text, " as uid {effective}");
    }
    let login = std::fs::read_to_string("/proc/self/loginuid").unwrap_or_default();
    if let Some(login) = login.trim().parse::<u32>().ok().filter(|l| *l != u32::MAX) {
        let _ = write!(text, ", logged in as uid {login}");
    }
    if let Some(user) = std::env::var_os("SUDO_USER") {
        let _ = write!(text, ", sudo by {}", user.to_string_lossy());
    }
    text
}

fn process(pid: Pid) -> String {
    format!("process {pid} ({})", prof_os::process::comm(pid))
}

/// Formats functions by module.
fn list(functions: &[(String, String)]) -> String {
    let mut text = String::new();
    let mut last = "";
    for (name, module) in functions {
        if !last.is_empty() && last != module {
            let _ = write!(text, " in {last}");
        }
        if !text.is_empty() {
            text += ", ";
        }
        text += name;
        last = module;
    }
    if !last.is_empty() {
        let _ = write!(text, " in {last}");
    }
    if text.is_empty() { "nothing".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line_of_bounded_length() {
        assert_eq!(line(7, "a\nb\u{1b}c"), "<85>prof[7]: a?b?c");
        let long = line(7, &"\u{e9}".repeat(3000));
        assert!(long.len() < 2048 && long.ends_with(" ..."));
        let f = |n: &str, m: &str| (n.to_owned(), m.to_owned());
        let all = [f("malloc", "/libc"), f("free", "/libc"), f("put", "/app")];
        assert_eq!(list(&all), "malloc, free in /libc, put in /app");
        assert_eq!(list(&[]), "nothing");
    }
}
