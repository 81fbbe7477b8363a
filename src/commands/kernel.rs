//! `prof kernel`

mod launch;
mod text;

use super::record::parse_duration;
use crate::failure::{refused, usage};
use crate::new_file::create;
use crate::term::say;
use anyhow::{Context, Result};
use clap::Args;
use launch::Launched;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use prof_kernel::{Backend, Error, Options, Recorder, Scope, What};
use prof_os::Pid;
use prof_trace::values::parse;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Longest time between two looks at the rings.
const PASS: Duration = Duration::from_millis(100);

/// A signal asked for the end.
static STOP: AtomicBool = AtomicBool::new(false);

/// Record the kernel's own allocations, and show which are outstanding, by the kernel's stack
///
/// Slab objects (kmalloc, kmem_cache_alloc), pages and per-CPU memory, of the whole machine or of one process or
/// cgroup, from the kernel's tracepoints. Every INTERVAL it prints the stacks with the most outstanding bytes, the
/// largest last. It ends after COUNT times, with the command, or at Ctrl-C, and leaves a recording for report, leaks,
/// diff and export. It needs root, or CAP_PERFMON and CAP_SYSLOG with a mounted tracefs.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  prof kernel                      the whole machine, every 5 seconds until Ctrl-C
  prof kernel 3 1 --older 1s       once after 3 seconds, what is older than a second
  prof kernel --pid 1234 --slab    slab objects that process 1234 allocates
  prof kernel -c 'ls -lR /usr'     what a command and its children allocate")]
pub(crate) struct KernelArgs {
    /// Time between two summaries
    #[arg(value_name = "INTERVAL", default_value = "5s", value_parser = parse_duration)]
    pub interval: Duration,
    /// Number of summaries after which it ends
    #[arg(value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Only what this process allocates
    #[arg(short, long, value_name = "PID", conflicts_with_all = ["cgroup", "command"])]
    pub pid: Option<Pid>,
    /// Only what the tasks of this cgroup allocate: a folder below /sys/fs/cgroup
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    pub cgroup: Option<PathBuf>,
    /// Run this command, and record only what it and its children allocate, until it ends
    #[arg(short, long, value_name = "COMMAND")]
    pub command: Option<String>,
    /// Record slab objects [default: slab objects, pages and per-CPU memory]
    #[arg(long)]
    pub slab: bool,
    /// Record pages
    #[arg(long)]
    pub pages: bool,
    /// Record per-CPU memory
    #[arg(long)]
    pub percpu: bool,
    /// Show only allocations that are older than this
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = parse_duration)]
    pub older: Duration,
    /// Show so many stacks
    #[arg(short = 'T', long, value_name = "N", default_value_t = 10)]
    pub top: usize,
    /// Show each outstanding allocation, too
    #[arg(short = 'a', long)]
    pub show_allocs: bool,
    /// Record no smaller allocations
    #[arg(short = 'z', long, value_name = "SIZE", value_parser = parse::size)]
    pub min_size: Option<u64>,
    /// Record no larger allocations
    #[arg(short = 'Z', long, value_name = "SIZE", value_parser = parse::size)]
    pub max_size: Option<u64>,
    /// Record one of every N allocations; the figures are estimates then
    #[arg(short = 's', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub sample_rate: Option<u64>,
    /// Keep only totals: no recording, and no ages, so that --older does not count
    #[arg(long, conflicts_with_all = ["show_allocs", "output"])]
    pub combined_only: bool,
    /// Print no summaries, only record
    #[arg(short, long)]
    pub quiet: bool,
    /// The file to record to; it must not exist
    /// [default: ./prof.kernel.PID.TIME.prof]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Size of the memory of each processor that holds events until they are read: a power of two
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = parse_ring)]
    pub ring_size: usize,
    /// How the kernel tells of allocations: by programs (bpf), which cost less, or by perf events; auto takes programs
    /// where they can be used
    #[arg(long, value_name = "WAY", value_enum, default_value_t = Backend::Auto)]
    pub backend: Backend,
}

/// Parses the size of a ring.
fn parse_ring(text: &str) -> Result<usize, String> {
    let n = parse::size(text)?;
    let fits = n.is_power_of_two() && (4096..=1 << 30).contains(&n);
    if fits { Ok(n as usize) } else { Err("give a power of two from 4KiB to 1GiB".into()) }
}

/// Records the kernel's allocations, and prints what is outstanding.
pub(crate) fn run(args: &KernelArgs) -> Result<ExitCode> {
    let options = options(args)?;
    let mut child = args.command.as_deref().map(launch::start).transpose()?;
    let scope = match &child {
        Some(c) => Scope::Family(c.pid()),
        None => options.scope.clone(),
    };
    let options = Options { scope, ..options };
    let pid = args.pid.unwrap_or(Pid::this());
    let file = match args.combined_only {
        true => None,
        false => Some(create(args.output.as_deref(), "kernel", pid)?),
    };
    let (path, file) = file.unzip();
    let started = Recorder::start(options, file, &title(args));
    let mut recorder = started.map_err(|e| {
        // There is nothing in it.
        path.iter().for_each(|p| drop(std::fs::remove_file(p)));
        match e {
            Error::Io { .. } | Error::Collect(_) => anyhow::Error::from(e),
            e => refused(e.to_string()),
        }
    })?;
    stop_on_signals()?;
    text::beginning(&recorder, args).iter().for_each(|line| say(line));
    let code = match follow(&mut recorder, args, child.as_mut()) {
        Ok(code) => code,
        Err(e) => {
            let _ = recorder.finish("stopped");
            return Err(e);
        }
    };
    let reason = if child.is_some() && !STOP.load(SeqCst) { "exited" } else { "detached" };
    let done = recorder.finish(reason);
    text::ending(&recorder, args).iter().for_each(|line| say(line));
    if let Some(path) = &path {
        say(&format!("recorded to {}", path.display()));
    }
    done?;
    Ok(code)
}

/// Returns the scope of the recording. The scope of a command is set later.
fn options(args: &KernelArgs) -> Result<Options> {
    let (min_size, max_size) = (args.min_size.unwrap_or(0), args.max_size.unwrap_or(u64::MAX));
    if min_size > max_size {
        return Err(usage(format!(
            "--min-size ({min_size}) is larger than --max-size ({max_size}): nothing would be recorded"
        )));
    }
    if args.interval.is_zero() {
        return Err(usage("give an INTERVAL that is not 0"));
    }
    let some = What { slab: args.slab, pages: args.pages, percpu: args.percpu };
    let all = !(args.slab || args.pages || args.percpu);
    Ok(Options {
        what: if all { What::ALL } else { some },
        scope: match (args.pid, &args.cgroup) {
            (Some(pid), _) => Scope::Process(pid),
            (None, Some(path)) => Scope::Cgroup(path.clone()),
            (None, None) => Scope::Machine,
        },
        min_size,
        max_size,
        sample_every: args.sample_rate.unwrap_or(1),
        ring: args.ring_size,
        backend: args.backend,
    })
}

/// Returns what a recording is of, as its command line.
fn title(args: &KernelArgs) -> String {
    let name = |pid: Pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    match (args.pid, &args.cgroup, &args.command) {
        (Some(pid), ..) => format!("kernel, for process {pid} ({})", name(pid).trim()),
        (_, Some(path), _) => format!("kernel, for cgroup {}", path.display()),
        (.., Some(command)) => format!("kernel, for the command {command}"),
        _ => "kernel, for the whole machine".into(),
    }
}

/// Reads events, and prints summaries, until it is to end. Returns the exit code.
fn follow(
    recorder: &mut Recorder,
    args: &KernelArgs,
    mut child: Option<&mut Launched>,
) -> Result<ExitCode> {
    if let Some(c) = child.as_mut() {
        c.go()?;
    }
    let mut next = Instant::now() + args.interval;
    let mut left = args.count;
    loop {
        let now = Instant::now();
        recorder.pass(PASS.min(next.saturating_duration_since(now)));
        if let Some(e) = recorder.failure() {
            return Err(anyhow::anyhow!("cannot write the recording: {e}"));
        }
        let ended = match child.as_mut() {
            Some(c) => c.ended()?,
            None => None,
        };
        let due = Instant::now() >= next;
        if due || ended.is_some() {
            next += args.interval;
            if ended.is_some() {
                recorder.pass(Duration::ZERO); // what happened before the last look
            }
            if !args.quiet && !text::print(&text::summary(recorder, args)) {
                return Ok(ExitCode::SUCCESS); // nobody reads
            }
            left = left.map(|n| n - 1);
        }
        if let Some(code) = ended {
            return Ok(code);
        }
        if left == Some(0) || STOP.load(SeqCst) {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

extern "C" fn stop(_: i32) {
    STOP.store(true, SeqCst);
}

/// Makes the signals that ask for an end do so in order.
fn stop_on_signals() -> Result<()> {
    let action = SigAction::new(SigHandler::Handler(stop), SaFlags::empty(), SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { sigaction(signal, &action) }.context("cannot set a signal handler")?;
    }
    Ok(())
}
