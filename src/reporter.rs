//! Has reports written at signals to the recorded process, one at a time, by processes of their own: a report takes memory
//! and time that the collector needs, and may fail.

use crate::audit::Audit;
use crate::daemon::prepare_helper;
use crate::notes;
use crate::reports::Reports;
use anyhow::{Context, Result};
use clap::ValueEnum;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use prof_collect::Room;
use prof_os::Pid;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Priority of the processes that write reports.
const NICE: i32 = 10;
/// Interval at which the end of such a process is looked for.
const TICK: Duration = Duration::from_millis(10);
/// Time for which the end of a recording waits for reports.
const LAST: Duration = Duration::from_secs(20);
/// Greatest length of a message.
const MESSAGE: usize = 1000;
/// Bytes that are kept of what such a process writes: a path is no longer than PATH_MAX.
const OUTPUT: usize = 8 << 10;

/// The facts about a recording that its reports need.
pub(crate) struct About {
    /// The recorded process.
    pub pid: Pid,
    /// Path of the recording.
    pub recording: PathBuf,
    /// Room that is left free on a file system.
    pub keep_free: Room,
    /// The reports that the user has asked for.
    pub reports: Reports,
    /// The note of the recording.
    pub note: Option<PathBuf>,
    /// Whether the system's log is written to.
    pub audit: Audit,
}

/// Writes reports until it is dropped, or told to finish.
pub(crate) struct Reporter {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
}

/// Results so far.
#[derive(Clone, Debug, Default)]
struct Done {
    signals: u64,
    written: u64,
    failed: u64,
    /// Path of the last report.
    last: Option<String>,
    /// Number of signals that it was written for.
    stands_for: u64,
    /// Why the last attempt failed, if it did.
    error: Option<String>,
}

impl Reporter {
    /// Starts the thread that has reports written. What it returns takes numbers of signals; when that is dropped, no more
    /// reports are wanted.
    ///
    /// # Errors
    /// If there is no thread for it.
    pub(crate) fn start(about: About) -> Result<(Self, Sender<u64>)> {
        let (tell, told) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let work = move || work(&about, &told, &asked);
        let thread = std::thread::Builder::new().spawn(work);
        let thread = thread.context("cannot start a thread for reports (`ulimit -u`?)")?;
        Ok((Self { thread, stop }, tell))
    }

    /// Waits until the reports for all signals are written, for a limited time: one that takes longer is given up.
    pub(crate) fn finish(self) {
        let deadline = Instant::now() + LAST;
        while !self.thread.is_finished() {
            if Instant::now() > deadline {
                self.stop.store(true, Relaxed);
            }
            std::thread::sleep(TICK);
        }
    }
}

fn work(about: &About, told: &Receiver<u64>, stop: &AtomicBool) {
    let note = about.note.as_deref().and_then(notes::Open::again);
    let mut done = Done::default();
    while let Ok(first) = told.recv() {
        // One report answers all signals that came while a report was written.
        let signals = told.try_iter().fold(first, u64::saturating_add);
        done.signals = done.signals.saturating_add(signals);
        match one(about, signals, stop) {
            Ok(path) => {
                done.written += 1;
                (done.last, done.stands_for, done.error) = (Some(path), signals, None);
            }
            Err(why) => {
                done.failed += 1;
                about.audit.report_failed(about.pid, signals, &why);
                done.error = Some(why);
            }
        }
        if let Some(note) = &note {
            note.reports(&done.json());
        }
    }
}

impl Done {
    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "signals": self.signals,
            "written": self.written,
            "failed": self.failed,
            "last": self.last,
            "last_stands_for": self.stands_for,
            "error": self.error,
        })
    }
}

/// Has one report written. Returns its path.
fn one(about: &About, signals: u64, stop: &AtomicBool) -> Result<String, String> {
    let child = start(about, signals).map_err(|e| format!("no process for the report: {e}"))?;
    result(child, stop)
}

/// Waits for a process that writes a report, and returns the path that it prints.
fn result(mut child: Child, stop: &AtomicBool) -> Result<String, String> {
    let mut out = Output::of(child.stdout.take());
    let mut err = Output::of(child.stderr.take());
    let status = loop {
        // A full pipe would keep the process from its end.
        out.read();
        err.read();
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if stop.load(Relaxed) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!(
                    "it was not written within {} s of the end of the recording",
                    LAST.as_secs()
                ));
            }
            Ok(None) => std::thread::sleep(TICK),
            Err(e) => return Err(format!("cannot read the state of the report's process: {e}")),
        }
    };
    let path = out.text();
    if status.success() && !path.is_empty() {
        return Ok(path);
    }
    let said = err.text();
    let said = said.lines().last().unwrap_or_default();
    let said = said.strip_prefix("prof: ").unwrap_or(said);
    match said.is_empty() {
        true => Err(format!("the report's process has ended ({status})")),
        false => Err(said.chars().take(MESSAGE).collect()),
    }
}

/// The end of what a process writes to a pipe.
struct Output<P> {
    pipe: Option<P>,
    last: Vec<u8>,
}

impl<P: Read + AsFd> Output<P> {
    fn of(pipe: Option<P>) -> Self {
        // Closes a pipe that can't be read without waiting: the output is lost, but no process hangs.
        let at_once = |p: &P| fcntl(p.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).is_ok();
        Self { pipe: pipe.filter(at_once), last: Vec::new() }
    }

    /// Reads all bytes that are in the pipe.
    fn read(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        let mut some = [0; 4096];
        while let Ok(n @ 1..) = pipe.read(&mut some) {
            self.last.extend_from_slice(&some[..n]);
            let beyond = self.last.len().saturating_sub(OUTPUT);
            self.last.drain(..beyond);
        }
    }

    /// Returns all that was written, or the end of it.
    fn text(&mut self) -> String {
        self.read();
        String::from_utf8_lossy(&self.last).trim_end().to_owned()
    }
}

fn start(about: &About, signals: u64) -> std::io::Result<Child> {
    let Reports { to, format, .. } = &about.reports;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("prof").args(["write-report", "--pid", &about.pid.to_string()]);
    command.arg(format!("--comm={}", prof_os::process::comm(about.pid)));
    command.arg("--recording").arg(&about.recording).arg("--folder").arg(&to.folder);
    command.arg(format!("--template={}", to.text));
    if let Some(format) = format.to_possible_value() {
        command.args(["--format", format.get_name()]);
    }
    command.args(["--signals", &signals.to_string()]);
    command.args(["--keep-free", &about.keep_free.to_string()]);
    // A target that adopts orphans would get it as a child if the collector were killed.
    let adopts = Pid::from_u32(std::os::unix::process::parent_id()) == about.pid;
    prepare_helper(&mut command, NICE, None, adopts);
    command.spawn()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    fn run(script: &str, stop: bool) -> Result<String, String> {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
        result(command.spawn().expect("sh"), &AtomicBool::new(stop))
    }

    #[test]
    fn a_process_that_says_much_comes_to_its_end() {
        // More than a pipe holds, on both.
        let much = "i=0; while [ $i -lt 4000 ]; do echo 'prof: a line that is said over and over again' >&2; \
                    i=$((i + 1)); done";
        assert_eq!(run(&format!("{much}; echo /a/path"), false), Ok("/a/path".to_owned()));
        let failed = run(&format!("{much}; echo 'prof: the last' >&2; exit 1"), false);
        assert_eq!(failed, Err("the last".to_owned()));
        assert!(run("exit 3", false).expect_err("nothing").contains("has ended"));
        assert!(run("exec sleep 1000", true).expect_err("given up").contains("not written within"));
    }
}
