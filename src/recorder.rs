//! The collector's process: starts it, runs as it, waits for it.

use crate::audit::Audit;
use crate::commands::collect::{CollectArgs, Writing};
use crate::daemon::{become_daemon, open_descriptors};
use crate::folder::{self, Folds};
use crate::kept::{Displaced, Kept, Location};
use crate::notes;
use crate::reporter::{About, Reporter};
use crate::session;
use anyhow::{Context, Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use prof_analyze::rewrite::{Aggregate, AggregateOptions, Cull, CullOptions};
use prof_collect::{Collector, Heir, Limits, MakeSieve};
use prof_inject::Lock;
use prof_os::Pid;
use prof_os::cgroup::{Cgroups, lowest_limit};
use prof_os::process::is_running;
use prof_os::stat::Stat;
use prof_os::status::Status;
use prof_trace::records::End;
use prof_trace::shared::{Shared, begins_ring};
use prof_trace::sieve::Sieve;
use prof_trace::values::text::{duration, time};
use std::fs::File;
use std::io::{PipeReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// Time that a collector may take to begin, at least.
const START: Duration = Duration::from_secs(30);
/// Time that a collector may be idle when it is to end a recording.
const END: Duration = Duration::from_secs(30);
/// Time to wait for a collector that is stopped.
const STOPPED: Duration = Duration::from_secs(5);
/// Time of waiting after which the user is told.
const SOON: Duration = Duration::from_secs(2);
/// Pauses before a collector that could not detach tries again, and before it ends: a thread may wait in the kernel, or
/// get no processor.
const RETRIES: [Duration; 5] = [
    Duration::from_secs(2),
    Duration::from_secs(2),
    Duration::from_secs(10),
    Duration::from_secs(60),
    Duration::from_secs(2),
];

/// The settings of a collector.
#[derive(Debug)]
pub(crate) struct How {
    /// Path of the recording.
    pub path: PathBuf,
    /// Options for writing.
    pub writing: Writing,
    /// Time after which to detach.
    pub duration: Option<Duration>,
    /// Time that it may take to begin.
    pub timeout: Duration,
    /// Whether to write to the system's log.
    pub audit: Audit,
    /// Path of the note for the end of the recording.
    pub note: Option<PathBuf>,
    /// Whether this process hands over a census before events are read.
    pub census: bool,
    /// Whether the process has been recording before there is a collector, as its parent's hook has begun that.
    pub is_heir: bool,
}

/// Starts the collector of a recording in a process group of its own, and waits until it collects: for `timeout`, or for
/// [`START`] if that is longer. `hooked`: the hook is in the process, as another collector has died or as the process is an
/// heir, and the collector holds this lock on the process until it is known there: if this process is killed meanwhile, nobody
/// else starts another one.
pub(crate) fn start(
    pid: Pid,
    ring: OwnedFd,
    out: File,
    how: &How,
    hooked: Option<&Lock>,
) -> Result<Started> {
    let (duration, timeout, audit) = (how.duration, how.timeout, how.audit);
    let (mut ready, write) = std::io::pipe().with_context(|| {
        format!("prof has no descriptor left for the collector of process {pid} (`ulimit -n`)")
    })?;
    let fds = [ring, out.into(), write.into()];
    let from = [0, 1, 2].map(|i: usize| fds[i].as_raw_fd());
    let mut command = Command::new("/proc/self/exe");
    command.arg0("prof").args(["collect", "--pid", &pid.to_string()]);
    for (name, fd) in ["--ring-fd", "--out-fd", "--ready-fd"].into_iter().zip(from) {
        command.args([name, &fd.to_string()]);
    }
    command.arg("--path").arg(&how.path);
    if let Ok(here) = std::env::current_dir() {
        command.arg("--folder").arg(here);
    }
    how.writing.tell(&mut command);
    if let Some(d) = duration {
        command.args(["--duration-ms", &d.as_millis().to_string()]);
    }
    if how.census {
        command.args(["--census-from", &Pid::this().to_string()]);
    }
    let lock = hooked.map(|lock| lock.descriptor().as_raw_fd());
    if let Some(fd) = lock {
        command.args([if how.is_heir { "--begins" } else { "--goes-on" }, &fd.to_string()]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    if let Some(note) = &how.note {
        command.arg("--note").arg(note);
    }
    if audit == Audit::Off {
        command.arg("--no-log");
    }
    let kept: Vec<RawFd> = from.into_iter().chain(lock).collect();
    let open = open_descriptors();
    // SAFETY: between fork and exec `become_daemon` makes only system calls, and does not allocate.
    unsafe { command.pre_exec(move || become_daemon(&kept, &open)) };
    let mut child = command.spawn().with_context(|| {
        format!(
            "cannot start the collector of process {pid} (no process or memory left for it? see {}); the \
             process is as it was",
            limits()
        )
    })?;
    drop(fds);
    let began = Instant::now();
    while !readable(&ready, Duration::from_millis(100))? {
        if let Some(status) = child.try_wait()? {
            bail!(
                "the collector of process {pid} ended before it had begun ({status}): it could not get the memory, a thread or the descriptors that it needs (see {}); the process is as it was",
                limits()
            );
        }
        if began.elapsed() > START.max(timeout) {
            let does = what_it_does(Pid::from_u32(child.id()));
            let _ = child.kill();
            let _ = child.wait();
            let waited = time(began.elapsed());
            bail!(
                "the collector of process {pid} has not begun in {waited} ({does}): this machine has little time \
                 to give; try again when it has more (prof attach waits as long as --timeout says)"
            );
        }
    }
    let mut byte = [0u8; 1];
    if ready.read(&mut byte).unwrap_or(0) == 1 {
        return Ok(Started { process: child, told: ready });
    }
    let status =
        child.wait().with_context(|| format!("cannot wait for the collector of process {pid}"))?;
    bail!(
        "the collector of process {pid} could not begin ({status}): there is no memory, thread or descriptor left for it (see {})",
        limits()
    );
}

/// Returns the state of a process for a message: how its first thread waits, and the processor time it has used.
fn what_it_does(pid: Pid) -> String {
    let status = Status::of(pid).ok();
    let state = status.as_ref().and_then(|s| s.field("State")).unwrap_or("in an unknown state");
    let waits = std::fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
    let waits = if matches!(&*waits, "" | "0") { String::new() } else { format!(" in {waits}") };
    format!(
        "{}{waits}, {} of processor time",
        state.trim(),
        Stat::living(pid).map_or_else(|| duration(0), |s| duration(s.cpu_ms() * 1_000_000))
    )
}

/// Returns where the limits of this process's resources are found: also the number of tasks that its cgroup may have.
fn limits() -> String {
    let group = Cgroups::own().with_controller("pids");
    match group.and_then(|g| lowest_limit(&g, "pids.max")) {
        Some((most, file)) => format!("`ulimit -a`, and {}, which is {most}", file.display()),
        None => "`ulimit -a`".into(),
    }
}

/// A collector that has begun.
pub(crate) struct Started {
    process: Child,
    told: PipeReader,
}

impl Started {
    /// Returns its process ID and start time.
    pub(crate) fn id(&self) -> (Pid, u64) {
        let pid = Pid::from_u32(self.process.id());
        (pid, prof_os::process::start_time(pid).unwrap_or(0))
    }

    /// Returns how it has ended, if it has.
    pub(crate) fn try_wait(&mut self) -> std::io::Result<Option<ExitStatus>> {
        self.process.try_wait()
    }

    /// Waits for its end; returns its message about a recording that is not at its original path.
    pub(crate) fn wait(&mut self) -> Option<Displaced> {
        self.process.wait().ok()?;
        let mut bytes = Vec::new();
        self.told.read_to_end(&mut bytes).ok()?;
        Displaced::decode(&bytes)
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
    }
}

fn readable(fd: &impl AsFd, time: Duration) -> Result<bool> {
    let time = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
    let mut one = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    Ok(poll(&mut one, time).is_ok_and(|n| n > 0))
}

/// Waits until a collector has finished its recording, though its process may still exist (see [`crate::orphans`]). If
/// that takes long, `waits` is called, and told whether the collector is stopped; a stopped one is not waited for much
/// longer.
pub(crate) fn wait(collector: (Pid, u64), waits: impl FnOnce(bool)) -> bool {
    let (began, mut waits) = (Instant::now(), Some(waits));
    let (mut worked, mut last) = (0, began);
    while is_running(collector.0, collector.1) && !crate::orphans::is_done(collector.0) {
        let passed = began.elapsed();
        if passed > SOON {
            // A collector that uses the processor has much to write, or gets little time for it.
            let now = Stat::living(collector.0).map_or(0, |s| s.cpu_ms());
            if now != worked {
                (worked, last) = (now, Instant::now());
            }
            let stopped = Status::of(collector.0)
                .is_ok_and(|s| s.field("State").is_some_and(|f| f.starts_with(['T', 't'])));
            if let Some(waits) = waits.take() {
                waits(stopped);
            }
            if passed > STOPPED && (stopped || last.elapsed() > END) {
                return false;
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Signals that wake the collector's first thread.
const STOP: Signal = Signal::SIGTERM;
const DONE: Signal = Signal::SIGALRM;
const FAILED: Signal = Signal::SIGUSR2;

/// `prof collect`: one thread drains the ring. The first thread waits for the time to detach, for SIGTERM, or for a
/// full disk, and then takes prof out of the target.
pub(crate) fn run(args: &CollectArgs) -> Result<ExitCode> {
    let mut asked = false;
    let code = record(args, &mut asked);
    if asked {
        // All memory and all files have been released by now.
        crate::orphans::wait_for_the_end(args.pid);
    }
    code
}

/// Tells the first thread, when dropped, that the draining thread has ended.
struct Done;

impl Drop for Done {
    fn drop(&mut self) {
        raise(DONE);
    }
}

/// Records until the end. Sets `asked` if another process has detached.
fn record(args: &CollectArgs, asked: &mut bool) -> Result<ExitCode> {
    // Replaces the name that exec took from /proc/self/exe.
    // SAFETY: the kernel only reads the name, which ends with NUL.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"prof".as_ptr()) };
    let mut signals = SigSet::empty();
    [STOP, DONE, FAILED].into_iter().for_each(|s| signals.add(s));
    signals.thread_block().context("cannot block signals")?;
    // SAFETY: `prof attach` has opened these descriptors for this process, and nothing else here owns them.
    let [ring, out, ready] =
        unsafe { [args.ring_fd, args.out_fd, args.ready_fd].map(|fd| OwnedFd::from_raw_fd(fd)) };
    // SAFETY: as above.
    let lock = args.goes_on.or(args.begins).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let is_hooked = lock.is_some();
    let shared = prof_collect::map_ring(ring)?;
    // It is removed at the end, as nobody detaches from a process that ends by itself.
    let _library = prof_inject::kept_library(args.pid, shared.control().library.load(Relaxed));
    let kept = out.try_clone().map(|file| Kept::new(file.into(), args.path.clone()));
    let mut ready = File::from(ready);
    let out = File::from(out);
    let makes_figures = args.going_over(&out)?;
    let mut collector = args.collector(shared, out)?;
    if let Some(about) = args.folds() {
        let kept = kept.as_ref().ok().map(Kept::descriptor);
        let folds = Box::new(Folds::of(about, kept));
        match makes_figures {
            Some(make) => collector.set_going_over(folds, make),
            None => collector.set_folder(folds),
        }
    }
    let reporter = args.reporter()?.map(|(reporter, tell)| {
        // Without a thread that takes it, the number is of no use.
        collector.on_dump(move |n| _ = tell.send(n));
        reporter
    });
    collector.on_failure(|| raise(FAILED));
    if let Some(from) = args.census_from {
        collector.await_census(from);
    }
    collector.look_before();
    let (stop, audit) = (AtomicBool::new(false), Audit::unless(args.no_log));
    let note = args.note.as_deref().and_then(notes::Open::of);
    // This collector detaches itself.
    let mut itself = false;
    let ended = std::thread::scope(|scope| {
        let work = || {
            // Told on every way out: the first thread would wait for ever for one that has panicked.
            let _done = Done;
            collector.run(&stop)
        };
        // Start the thread before the starter relies on it, as it may not be available.
        let drain = std::thread::Builder::new().spawn_scoped(scope, work);
        let drain = drain.with_context(|| {
            format!(
                "cannot start a thread for the collector of process {} (`ulimit -u`?)",
                args.pid
            )
        })?;
        // The process says by now whose recording it is.
        drop(lock);
        // A process with a hook in it is recorded on, though nobody waits for that any more.
        if let Err(e) = ready.write_all(&[1])
            && !is_hooked
        {
            stop.store(true, Relaxed);
            return Err(e).context("the process that started the collector has ended");
        }
        let deadline = args.duration_ms.map(|ms| Instant::now() + Duration::from_millis(ms));
        if wait_signal(&signals, deadline) != Some(DONE) {
            itself = true;
            let gone = RETRIES.iter().any(|pause| {
                // Draining goes on meanwhile, so no thread of the target waits.
                take_out(args.pid, audit)
                    || wait_signal(&signals, Some(Instant::now() + *pause)) == Some(DONE)
            });
            if !gone {
                stop.store(true, Relaxed);
            }
        }
        Ok(drain.join())
    })?;
    if let (Some(note), Ok(ended)) = (&note, &ended) {
        note.finish(ended);
    }
    if ended.as_ref().is_ok_and(|e| e.detached) {
        wait_for_unmap(args.pid);
    }
    if let Some(why) = ended.as_ref().ok().and_then(|e| e.reason.strip_prefix(End::LIMIT)) {
        audit.ended(args.pid, why);
    }
    if ended.as_ref().is_ok_and(|e| e.memory_lives) {
        free_others(args.pid, audit);
    }
    *asked = !itself && ended.as_ref().is_ok_and(|e| e.detached);
    // The reporter ends when the sender of signals is dropped.
    drop(collector);
    if let Some(reporter) = reporter {
        reporter.finish();
    }
    let displaced = kept.ok().and_then(|kept| save(&kept, args.folder.as_deref()));
    let is_in_place = displaced.is_none_or(|d| args.tell_of(&d, note.as_ref(), &mut ready, audit));
    match ended {
        Ok(e) if e.failure.is_none() && is_in_place => Ok(ExitCode::SUCCESS),
        _ => Ok(ExitCode::FAILURE),
    }
}

/// Makes what decides which events are written to the recording `out` of this path; `None`: all are.
fn sieve(
    out: &File,
    path: &Path,
    cull: Option<CullOptions>,
    aggregate: Option<AggregateOptions>,
) -> Result<Option<Box<dyn Sieve>>> {
    let target = || {
        prof_analyze::rewrite::target_of(out)
            .with_context(|| format!("cannot read {}", path.display()))
    };
    Ok(match (cull, aggregate) {
        (Some(cull), _) => Some(Box::new(Cull::new(&target()?, cull))),
        (None, Some(figures)) => Some(Box::new(Aggregate::new(&target()?, figures))),
        (None, None) => None,
    })
}

/// Writes what a child has recorded that has ended before there was a collector for it to `out`, the recording of this path,
/// which has its beginning. `reason` is how the child has ended, see [`End::reason`].
///
/// # Errors
/// If the recording can't be written.
pub(crate) fn finish_ended(
    heir: Heir,
    out: File,
    path: &Path,
    writing: &Writing,
    reason: &str,
) -> Result<()> {
    let sieve = sieve(&out, path, writing.cull, writing.aggregate)?;
    let mut collector = heir.into_collector(out)?;
    collector.set_compress(writing.compress);
    collector.set_limits(writing.limits);
    if let Some(sieve) = sieve {
        collector.set_sieve(sieve);
    }
    let failure = collector.finish(reason).failure;
    failure.map_or(Ok(()), |e| Err(e).with_context(|| format!("cannot write {}", path.display())))
}

impl CollectArgs {
    /// Makes the collector that writes the recording to `out`.
    fn collector(&self, shared: Shared<'static>, out: File) -> Result<Collector<'static>> {
        let pending = self.cull_pending;
        let cull = self.cull_ns.map(|threshold_ns| CullOptions { threshold_ns, pending });
        let aggregate = self.aggregate_ns.map(|every_ns| AggregateOptions { every_ns });
        let sieve = sieve(&out, &self.path, cull, aggregate)?;
        let mut collector = match self.goes_on.is_some() {
            true => Collector::go_on(self.pid, shared, out, &self.path)?,
            false => Collector::new(self.pid, shared, out)?,
        };
        collector.let_leave_session();
        collector.set_compress(self.compress);
        collector.set_limits(Limits { max_disk: self.max_disk, keep_free: self.keep_free });
        if let Some(budget) = self.budget() {
            collector.set_budget(budget);
        }
        if let Some(sieve) = sieve {
            collector.set_sieve(sieve);
        }
        Ok(collector)
    }

    /// Returns what makes figures of the events of the recording at its bound, if that is wanted.
    fn going_over(&self, out: &File) -> Result<Option<MakeSieve>> {
        let Some(every_ns) = self.goes_over_ns else { return Ok(None) };
        let target = prof_analyze::rewrite::target_of(out)
            .with_context(|| format!("cannot read {}", self.path.display()))?;
        let most = self.max_disk.unwrap_or(u64::MAX);
        Ok(Some(Box::new(move || {
            Box::new(Aggregate::new(&target, AggregateOptions { every_ns }).within(most))
        })))
    }

    /// Says that the recording was renamed or deleted while it was written: in its note, to the process that has started
    /// this one and waits, and in the system's log if the recording had to be saved. Returns whether it had not.
    fn tell_of(
        &self,
        displaced: &Displaced,
        note: Option<&notes::Open>,
        ready: &mut File,
        audit: Audit,
    ) -> bool {
        if let (Some(note), Some(path)) = (note, &displaced.path) {
            note.moved(path);
        }
        let _ = ready.write_all(&displaced.encode());
        if !displaced.moved {
            audit.displaced(self.pid, &displaced.message);
        }
        displaced.moved
    }

    /// Returns what folds need to know, if the oldest part of the recording is to go.
    fn folds(&self) -> Option<folder::About> {
        Some(folder::About {
            pid: self.pid,
            path: self.path.clone(),
            recording: self.out_fd,
            memory: self.fold_memory?,
            note: self.note.clone(),
            audit: Audit::unless(self.no_log),
        })
    }

    /// Starts what has reports written at signals, if those are wanted.
    fn reporter(&self) -> Result<Option<(Reporter, Sender<u64>)>> {
        let Some(reports) = self.reports() else { return Ok(None) };
        let about = About {
            pid: self.pid,
            recording: self.path.clone(),
            keep_free: self.keep_free,
            reports,
            note: self.note.clone(),
            audit: Audit::unless(self.no_log),
        };
        Reporter::start(about).map(Some)
    }
}

/// Saves a recording whose file has no visible name any more, unless the process that detaches does that.
fn save(kept: &Kept, folder: Option<&Path>) -> Option<Displaced> {
    if kept.place() == Location::There || !kept.lock() {
        return None;
    }
    kept.save_displaced(&folder.map(Path::to_owned).into_iter().collect::<Vec<_>>())
}

/// Takes this collector's recording out of its target; returns false if something is left. A recording by another
/// collector, which has replaced this one, is not touched.
fn take_out(pid: Pid, audit: Audit) -> bool {
    let is_ours = session::peek(pid).map_or(true, |p| p.collector.0 == Pid::this());
    is_ours
        && session::detach(pid, session::DETACH_TIMEOUT, false, audit).is_ok_and(|d| d.is_clean())
}

/// Takes prof out of processes that share the memory of one that has ended.
fn free_others(pid: Pid, audit: Audit) {
    for pause in RETRIES {
        let all = prof_inject::recorded::left_by(pid);
        if all.into_iter().all(|pid| take_out(pid, audit)) {
            return;
        }
        std::thread::sleep(pause);
    }
}

/// Waits until the target has unmapped the ring. The last process to unmap it frees its memory, which takes some 20 ms;
/// that must not be a stopped thread of the target.
fn wait_for_unmap(pid: Pid) {
    let deadline = Instant::now() + Duration::from_secs(2);
    let mapped = || {
        let maps = prof_os::maps::of(pid).unwrap_or_default();
        maps.iter().any(|m| begins_ring(&m.name, m.offset))
    };
    while mapped() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn raise(signal: Signal) {
    // Send it to the process, whose first thread waits for it.
    let _ = nix::sys::signal::kill(nix::unistd::getpid(), signal);
}

/// Waits for one of the signals, or until the deadline.
fn wait_signal(signals: &SigSet, deadline: Option<Instant>) -> Option<Signal> {
    loop {
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let time = left.unwrap_or(Duration::from_secs(3600));
        let arrived = prof_os::signals::wait(signals, time);
        if let Some(signal) = arrived.and_then(|n| Signal::try_from(n).ok()) {
            return Some(signal);
        }
        if deadline.is_some_and(|d| Instant::now() >= d) {
            return None;
        }
    }
}
