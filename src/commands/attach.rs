//! `prof attach`

use super::family::{self, SelectArgs};
use super::on_signal::SignalReportArgs;
use super::record::{RecordArgs, parse_duration, pid};
use super::way::WayArgs;
use crate::audit::Audit;
use crate::failure::usage;
use crate::family::find::Which;
use crate::going_on;
use crate::interrupted::{is_interrupted, on_interrupt};
use crate::session::{self, Attached, Settings};
use crate::signals::{parse_signal, signal_name};
use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use nix::sys::signal::Signal;
use prof_analyze::Follower;
use prof_os::Pid;
use prof_trace::values::text;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Start recording a process, or each process of a family
///
/// Returns as soon as recording is on, and leaves a collector behind that writes the recording. The
/// path of the recording is printed to standard output; what was hooked, and how long the process
/// was stopped for it, to standard error. The processes of a family are recorded to files of their
/// own in one folder (-o: its path).
#[derive(Args, Debug)]
pub(crate) struct AttachArgs {
    /// The process
    #[arg(value_parser = pid, required_unless_present = "family", conflicts_with = "family")]
    pub pid: Option<Pid>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub select: SelectArgs,
    /// Process PID and all of its descendants, also those to come: the same as --tree PID --follow
    #[arg(long, help_heading = "Families", value_name = "PID", value_parser = pid, group = "family")]
    pub children: Option<Pid>,
    /// Go on recording processes of the family that are new, or run another program, until `prof detach FOLDER`, or the
    /// end of all processes of a tree
    #[arg(long, help_heading = "Families", requires = "family")]
    pub follow: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub record: RecordArgs,
    /// Stay, and show what is recorded until Ctrl-C, which detaches, or the end of the process
    #[arg(short, long)]
    pub foreground: bool,
    /// Detach after this time, such as 30s or 5m
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Begin with recording off
    #[arg(long)]
    pub paused: bool,
    /// Count the blocks that the process has, too (glibc, jemalloc, mimalloc, tcmalloc, musl): it is stopped while its heap is walked, and all live
    /// blocks are known from then on. Those from before are shown as `(before the attach)`
    #[arg(long)]
    pub census: bool,
    /// Longest stop for the census; a larger heap is refused
    #[arg(long, value_name = "TIME", requires = "census", default_value = "1s", value_parser = parse_duration)]
    pub census_stop: Duration,
    /// The signal that switches recording off and on: USR1, USR2, RTMIN+N or none
    #[arg(long, value_name = "SIGNAL", default_value = "USR1", value_parser = parse_signal)]
    pub signal: u32,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub reports: SignalReportArgs,
    /// Time to wait for threads that do not stop and for the collector to begin, before giving up with
    /// nothing changed
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Once recording is on, check for up to this long that it sees the memory the process takes, and whether worker
    /// processes do its work; shorter for an idle process. 0s: do not check
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub look: Duration,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub way: WayArgs,
    /// Take your word for it that the seccomp filter of the process lets prof's calls pass, where prof cannot
    /// find out, as in a container: memfd_create, mmap, mremap, munmap, munlock, mprotect, madvise,
    /// rt_sigaction, rt_sigprocmask, rt_sigreturn, sigaltstack and close; with `--by dlopen` also those of its
    /// dynamic linker: openat, read, pread64, fstat, newfstatat, futex, brk and getrandom. If one does not, that
    /// kills the process
    #[arg(long)]
    pub filter_allows: bool,
}

/// Interval of updates in the foreground.
const TICK: Duration = Duration::from_millis(100);

/// Runs `prof attach`; in the foreground, stays until the recording ends.
pub(crate) fn run(args: &AttachArgs) -> Result<ExitCode> {
    let settings = Settings {
        on: !args.paused,
        signal: args.signal,
        reports: args.reports.reports(args.signal)?,
        timeout: args.timeout,
        duration: args.duration,
        way_in: args.way.way_in()?,
        census: args.census.then_some(args.census_stop),
        heirs: false,
    };
    if args.filter_allows {
        prof_inject::sandbox::take_word(None);
    }
    let children = args.children.map(Which::Tree);
    if let Some(which) = args.select.which().or(children) {
        return family::attach(args, &which, &settings);
    }
    let pid = args.pid.ok_or_else(|| usage("name a process"))?;
    if args.foreground {
        // From here on Ctrl-C and Ctrl-\ detach.
        on_interrupt()?;
    }
    let mut attached = match going_on::attach(pid, &args.record, &settings)? {
        Some(attached) => attached,
        None => session::attach(pid, &args.record, &settings)?,
    };
    attached.messages.iter().for_each(|line| crate::term::say(line));
    if args.duration.is_some() && args.signal != 0 {
        let name = signal_name(args.signal);
        crate::term::say(&format!(
            "use `prof pause {pid}` and `prof resume {pid}`, which are safe at any time: when the recording has ended, \
             {name} means what it meant before, which for most programs is their end, and while it lasts the signal \
             interrupts waits"
        ));
    }
    crate::term::path(&attached.path);
    if !args.paused {
        crate::look::after(&mut attached, args.look);
    }
    if args.foreground { stay(attached, Audit::of(&args.record)) } else { Ok(ExitCode::SUCCESS) }
}

/// Shows the progress of the recording, until Ctrl-C (SIGINT, SIGTERM, SIGQUIT, SIGHUP) or the end of the collector.
fn stay(mut attached: Attached, audit: Audit) -> Result<ExitCode> {
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{spinner} {msg}").context("progress line")?);
    let mut follower = Follower::open(&attached.path).ok();
    let mut rate = Rate::new();
    let (mut clean, mut shown) = (true, true);
    let status = loop {
        if let Some(status) = attached.collector.try_wait().with_context(|| {
            let pid = attached.pid;
            format!("cannot wait for the collector of process {pid}; `prof detach {pid}` ends it")
        })? {
            break status;
        }
        if is_interrupted() {
            // Clears the display, so that messages do not mix with it.
            (shown, clean) = (false, true);
            bar.finish_and_clear();
            match session::detach(attached.pid, session::DETACH_TIMEOUT, false, audit) {
                Ok(d) => {
                    clean = d.is_clean() && d.whole;
                    super::detach::say(&d);
                    attached.path = if d.whole { attached.path } else { d.path };
                }
                // The process may have ended by itself at the same moment.
                Err(e) if prof_os::process::has_ended(attached.pid) => {
                    log::info!("{e:#}")
                }
                Err(e) => crate::term::say(&format!("{e:#}")),
            }
        }
        if shown {
            show(&bar, &attached.path, &mut follower, &mut rate);
        }
        std::thread::sleep(TICK);
    };
    bar.finish_and_clear();
    if let Some(displaced) = attached.collector.wait() {
        crate::term::say(&displaced.message);
        return Ok(ExitCode::from(crate::failure::FAILED));
    }
    if let Some(why) = crate::look::limit(&attached.path) {
        crate::term::say(&why);
    }
    crate::term::say(&attached.path.to_string_lossy());
    if !status.success() {
        let (path, pid) = (attached.path.display(), attached.pid);
        if let Some(signal) = status.signal() {
            let signal = Signal::try_from(signal).map_or("a signal", Signal::as_str);
            bail!(
                "the collector of process {pid} was killed ({signal}; by a person, or by the kernel, if memory ran out): \
                 the process goes on, and `prof report` reads what is in {path}; the same command as before goes on in \
                 it where that is possible, and `prof detach {pid}` saves what the process's memory still has"
            );
        }
        bail!(
            "{path} could not be written to its end: is the disk full? What is in it can be read by `prof report`"
        );
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::from(crate::failure::FAILED) })
}

/// Computes events per second, over about a second.
struct Rate {
    since: Instant,
    events: u64,
    per_sec: f64,
}

impl Rate {
    fn new() -> Self {
        Self { since: Instant::now(), events: 0, per_sec: 0.0 }
    }

    fn update(&mut self, events: u64) -> u64 {
        let t = self.since.elapsed().as_secs_f64();
        if t >= 0.5 {
            self.per_sec = events.saturating_sub(self.events) as f64 / t;
            (self.since, self.events) = (Instant::now(), events);
        }
        self.per_sec as u64
    }
}

fn show(bar: &ProgressBar, path: &Path, follower: &mut Option<Follower>, rate: &mut Rate) {
    let Some(p) = follower.as_mut().and_then(|f| f.poll().ok()) else {
        // Another file may have taken the recording's place (--on-limit).
        *follower = Follower::open(path).ok();
        return;
    };
    let text = format!(
        "{} events/s, {} live, recording {}, {} events lost",
        text::number(rate.update(p.events)),
        text::bytes(p.totals.figures.live_bytes),
        text::bytes(p.bytes),
        text::number(p.lost)
    );
    bar.set_message(text);
    bar.tick();
}
