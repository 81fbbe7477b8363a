//! Has reports written at signals to the recorded process, one at a time, by processes of their own: a report takes memory
//! and time that the collector needs, and may fail.

use crate::audit::Audit;
use crate::notes;
use crate::reports::Reports;
use anyhow::{Context, Result};
use clap::ValueEnum;
use prof_collect::Room;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
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

/// What is known of a recording, for its reports.
pub(crate) struct About {
    /// The recorded process.
    pub pid: u32,
    /// Path of the recording.
    pub recording: PathBuf,
    /// Room that is left free on a file system.
    pub keep_free: Room,
    /// What is wanted.
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
        let thread = thread.context("no thread for reports (`ulimit -u`?)")?;
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
        // Those that came while a report was written are answered by one.
        let signals = told.try_iter().fold(first, u64::saturating_add);
        done.signals = done.signals.saturating_add(signals);
        match one(about, signals, stop) {
            Ok(path) => {
                done.written += 1;
                (done.last, done.stands_for, done.error) = (Some(path), signals, None);
            }
            Err(why) => {
                done.failed += 1;
                about.audit.report_failed(about.pid.cast_signed(), signals, &why);
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
    let mut child = start(about, signals).map_err(|e| format!("no process for the report: {e}"))?;
    let status = loop {
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
            Err(e) => return Err(format!("nothing is known of the report's process: {e}")),
        }
    };
    let all = |pipe: &mut dyn Read| {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).trim_end().to_owned()
    };
    let path = child.stdout.as_mut().map(|p| all(p)).unwrap_or_default();
    if status.success() && !path.is_empty() {
        return Ok(path);
    }
    let said = child.stderr.as_mut().map(|p| all(p)).unwrap_or_default();
    let said = said.lines().last().unwrap_or_default();
    let said = said.strip_prefix("prof: ").unwrap_or(said);
    match said.is_empty() {
        true => Err(format!("the report's process has ended ({status})")),
        false => Err(said.chars().take(MESSAGE).collect()),
    }
}

fn start(about: &About, signals: u64) -> std::io::Result<Child> {
    let Reports { to, format, .. } = &about.reports;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("prof").args(["write-report", "--pid", &about.pid.to_string()]);
    command.arg(format!("--comm={}", prof_os::process::comm(about.pid.cast_signed())));
    command.arg("--recording").arg(&about.recording).arg("--folder").arg(&to.folder);
    command.arg(format!("--template={}", to.text));
    if let Some(format) = format.to_possible_value() {
        command.args(["--format", format.get_name()]);
    }
    command.args(["--signals", &signals.to_string()]);
    command.args(["--keep-free", &about.keep_free.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).current_dir("/");
    // A target that adopts orphans would get it as a child if the collector were killed.
    let adopts = std::os::unix::process::parent_id() == about.pid;
    // SAFETY: between fork and exec this makes only system calls, whose pointers are to values here.
    unsafe {
        command.pre_exec(move || {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
            libc::nice(NICE);
            if adopts {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            }
            Ok(())
        });
    }
    command.spawn()
}
