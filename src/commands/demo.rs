//! `prof demo`: records a process made for that purpose, and prints the report.

use super::record::RecordArgs;
use crate::audit::Audit;
use crate::session::{self, DETACH_TIMEOUT, Settings};
use crate::term::line;
use anyhow::{Context, Result};
use clap::Args;
use prof_os::Pid;
use std::collections::HashMap;
use std::hint::black_box;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

/// Record a live demo process and show its report
#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// Keep the recording in this file
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Show the recording in a browser afterwards: print the address of its page, and serve it until Ctrl-C
    #[cfg(feature = "serve")]
    #[arg(long)]
    pub serve: bool,
}

/// Duration of the demo's recording.
const TIME: Duration = Duration::from_secs(2);

/// Starts the process, records it for a while, and prints the report.
pub(crate) fn run(args: &DemoArgs) -> Result<ExitCode> {
    with_target(|pid| record(pid, args))
}

/// Starts a process that allocates, calls `f` with its PID, and ends the process.
///
/// # Errors
/// If it can't be started, or `f` fails.
pub(crate) fn with_target<T>(f: impl FnOnce(Pid) -> Result<T>) -> Result<T> {
    let mut child = Command::new("/proc/self/exe")
        .arg("demo-target")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the demo process")?;
    let mut ready = [0u8; 1];
    let out = child.stdout.as_mut().context("no pipe")?;
    let started = out.read_exact(&mut ready).context("the demo process did not start");
    let result = started.and_then(|()| f(Pid::from_u32(child.id())));
    // The process ends when its standard input is closed.
    drop(child.stdin.take());
    let _ = child.wait();
    result
}

fn record(pid: Pid, args: &DemoArgs) -> Result<ExitCode> {
    let temporary = std::env::temp_dir().join(format!("prof.demo.{pid}.prof"));
    let path: PathBuf = args.output.clone().unwrap_or_else(|| temporary.clone());
    let record = RecordArgs::unlogged(path.clone(), 64 << 20);
    line(&format!("$ prof attach {pid}        # a live process: a small server with a leak"));
    let mut attached = session::attach(pid, &record, &Settings::default())?;
    attached.messages.iter().for_each(|line| crate::term::say(line));
    line(&format!("{}", path.display()));
    std::thread::sleep(TIME);
    line(&format!("$ prof detach {pid}        # after {} s", TIME.as_secs()));
    let detached = session::detach(pid, DETACH_TIMEOUT, false, Audit::Off)?;
    let _ = attached.collector.wait();
    super::detach::say(&detached);
    line(&format!("$ prof report {}", path.display()));
    super::run::show(&path)?;
    line(
        "\nWhat there is to see: sessions are opened and never closed (open_session), a cache grows \
         without\na limit (remember), and requests come and go (handle_request): much allocated, \
         nothing live.",
    );
    #[cfg(feature = "serve")]
    if args.serve {
        line(&format!("$ prof serve {}        # until Ctrl-C", path.display()));
        return super::serve::demo(path, args.output.is_none());
    }
    if args.output.is_none() {
        let _ = std::fs::remove_file(&temporary);
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the process to be recorded, which ends with its standard input.
pub(crate) fn target() -> Result<ExitCode> {
    let spawn = |name: &str, work: fn()| {
        std::thread::Builder::new().name(name.into()).spawn(work).context("cannot start a thread")
    };
    // In place of the last part of /proc/self/exe.
    // SAFETY: reads the name.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"prof-demo".as_ptr()) };
    spawn("sessions", sessions)?;
    spawn("cache", cache)?;
    spawn("requests", requests)?;
    writeln!(std::io::stdout(), "!").context("cannot write to standard output")?;
    let mut rest = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut rest);
    Ok(ExitCode::SUCCESS)
}

fn pause(us: u64) {
    std::thread::sleep(Duration::from_micros(us));
}

struct Session {
    _user: String,
    _buffer: Vec<u8>,
}

fn sessions() {
    let mut open = Vec::new();
    for user in 0u64.. {
        open.push(open_session(user));
        pause(1000);
    }
}

#[inline(never)]
fn open_session(user: u64) -> Session {
    Session { _user: format!("user number {user}"), _buffer: read_buffer(8 << 10) }
}

#[inline(never)]
fn read_buffer(size: usize) -> Vec<u8> {
    black_box(vec![1; size])
}

fn cache() {
    let mut known = HashMap::new();
    for key in 0u64.. {
        remember(&mut known, key);
        pause(300);
    }
}

#[inline(never)]
fn remember(known: &mut HashMap<u64, String>, key: u64) {
    known.insert(key, "answer ".repeat(30));
}

fn requests() {
    for n in 0u64.. {
        black_box(handle_request(n));
        pause(50);
    }
}

#[inline(never)]
fn handle_request(n: u64) -> usize {
    let words: Vec<String> = (0..20).map(|i| format!("word {n} {i}")).collect();
    parse(&words.join(" "))
}

#[inline(never)]
fn parse(text: &str) -> usize {
    let sorted: std::collections::BTreeSet<String> = text.split(' ').map(str::to_owned).collect();
    sorted.len()
}
