//! Attaches and detaches for `attach`, `detach`, `run` and `demo`: the only file that connects injector and collector.

use crate::attach_messages;
use crate::audit::Audit;
use crate::census;
use crate::cleaner::Cleaner;
use crate::commands::bounds::BoundArgs;
use crate::commands::collect::Writing;
use crate::commands::record::{FunctionArgs, OnFull, RecordArgs};
pub(crate) use crate::ending::{Detached, stays};
use crate::ending::{Ending, departed, held_by_others, is_whole, rest_is_lost, saved};
use crate::failure::{failed, refused, usage};
use crate::kept::Kept;
use crate::new_file::create;
use crate::notes;
use crate::recorder::{self, Started};
use crate::reports::Reports;
use crate::target_record;
use crate::term::say;
use anyhow::{Context, Result, anyhow};
use prof_collect::{Peek, drain_orphan, may_open_rings, open_ring, write_prologue, write_runtimes};
use prof_inject::hooked::functions::LOADER;
use prof_inject::process::program::Program;
use prof_inject::{DetachOptions, Error, Installed, Options, Refusal, Target, WayIn};
use prof_os::Pid;
use prof_trace::records::Hooks;
use prof_trace::runtimes::Runtime;
use prof_trace::shared::state;
use prof_trace::values::text;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time that a detach waits for threads to leave the hook.
pub(crate) const DETACH_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which a cleaner is at work (see [`crate::cleaner`]).
const CLEANING: Duration = Duration::from_millis(50);
/// Time that a thread waits for a free segment.
const WAIT: Duration = Duration::from_millis(100);

/// Settings of a recording, besides [`RecordArgs`].
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Recording is on from the beginning.
    pub on: bool,
    /// The toggle signal; 0: none.
    pub signal: u32,
    /// Reports that are written at another signal.
    pub reports: Option<Reports>,
    /// Time to look for a safe moment.
    pub timeout: Duration,
    /// Time after which to detach.
    pub duration: Option<Duration>,
    /// How the hook gets into the target.
    pub way_in: WayIn,
    /// Longest stop for a census of the blocks from before; `None`: no census is taken.
    pub census: Option<Duration>,
    /// Children are recorded from their fork on, before a collector is there for them.
    pub heirs: bool,
}

impl Default for Settings {
    fn default() -> Self {
        let signal = libc::SIGUSR1 as u32;
        Self {
            on: true,
            signal,
            reports: None,
            timeout: Duration::from_secs(5),
            duration: None,
            way_in: WayIn::default(),
            census: None,
            heirs: false,
        }
    }
}

impl Settings {
    /// Returns the settings for a process whose children are recorded, too: from their fork on, if this process may open the
    /// memory that they will have. A census takes an attach.
    pub(crate) fn with_children(self) -> Self {
        let heirs = self.census.is_none() && may_open_rings();
        Self { heirs, ..self }
    }
}

/// A recording that is running.
pub(crate) struct Attached {
    /// Process ID.
    pub pid: Pid,
    /// Path of the recording, as it was requested.
    pub path: PathBuf,
    /// The collector of the recording.
    pub collector: Started,
    /// Messages: what was hooked, and how long the target was stopped.
    pub messages: Vec<String>,
    /// Runtimes in the target that take memory from the kernel themselves.
    pub runtimes: Vec<Runtime>,
}

/// Result of beginning a recording.
pub(crate) struct Began {
    /// The collector of the recording.
    pub collector: Started,
    /// Messages: what was hooked, and how long the target was stopped.
    pub messages: Vec<String>,
    /// Runtimes in the target that take memory from the kernel themselves.
    pub runtimes: Vec<Runtime>,
}

/// Greatest number of attempts to attach, as an exec removes what an attempt has begun: wrappers run the next wrapper,
/// and the last one the program.
const TRIES: usize = 4;
/// Time that an exec may take until it is noticed: after a refusal, and after another error.
const EXEC: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(300));

/// Begins to record a process. After an error nothing is left in it.
pub(crate) fn attach(pid: Pid, record: &RecordArgs, settings: &Settings) -> Result<Attached> {
    record.check().map_err(usage)?;
    census::check(record, settings.census.is_some(), settings.on).map_err(usage)?;
    prof_inject::follow::ask_to_let_go(pid);
    prof_inject::wait_until_idle(pid);
    let (mut last, mut waited, mut had_exec) = (None, false, false);
    for _ in 0..TRIES {
        let (program, code) = (Program::of(pid), code(pid));
        let e = match try_attach(pid, record, settings) {
            Ok(attached) => return Ok(attached),
            Err(e) => e,
        };
        if !waited && was_busy(pid, &e) {
            (last, waited) = (Some(e), true);
            continue;
        }
        let time = if e.is::<Error>() { EXEC.1 } else { EXEC.0 };
        if program.is_replaced_within(time) {
            log::info!("an exec during the attach: {e:#}");
            (last, had_exec) = (None, true);
        } else if self::code(pid) == code || prof_os::process::has_ended(pid) {
            return Err(e);
        } else {
            log::info!("libraries were loaded during the attach: {e:#}");
            last = Some(e);
        }
    }
    // A program that has just begun loads libraries, and may have no thread for a call then: that is due to the exec.
    let has_no_thread =
        |e: &anyhow::Error| matches!(e.downcast_ref::<Error>(), Some(Error::NoThread(_)));
    let last = last.filter(|e| !(had_exec && has_no_thread(e)));
    Err(last.unwrap_or_else(|| failed(pid, Error::Replaced(pid))))
}

/// Returns whether an error says that another prof is at work on the process, which may be cleaning up after a killed
/// one; waits for a short time until it has finished.
pub(crate) fn was_busy(pid: Pid, e: &anyhow::Error) -> bool {
    let busy = Error::from(Refusal::Busy(pid)).to_string();
    let is_busy = format!("{e:#}").contains(&busy);
    if is_busy {
        prof_inject::wait_until_idle(pid);
    }
    is_busy
}

/// Returns the places of all code in a process. A program that has just begun has not loaded its libraries yet, so what
/// is wanted of it may be missing.
fn code(pid: Pid) -> Vec<u64> {
    let maps = prof_os::maps::of(pid).unwrap_or_default();
    maps.iter().filter(|m| m.exec && m.inode != 0).map(|m| m.start.0).collect()
}

fn try_attach(pid: Pid, record: &RecordArgs, settings: &Settings) -> Result<Attached> {
    adopt(pid, record)?;
    let target = prof_inject::preflight(pid).map_err(|e| failed(pid, e))?;
    if let Some(what) = crate::orphans::adopted_by(pid) {
        say(&what);
    }
    let (path, file) = create(record.output.as_deref(), &target.name, pid)?;
    check_room(&path, &file, &record.bounds)?;
    let absolute = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
    let began = install(&target, record, &options(record, settings, &absolute))
        .and_then(|i| activate(i, file, record, settings));
    match began {
        Ok(Began { collector, messages, runtimes }) => {
            let messages =
                prof_inject::process::translated::note(pid).into_iter().chain(messages).collect();
            Ok(Attached { pid, path, collector, messages, runtimes })
        }
        Err(e) => {
            let _ = fs::remove_file(&absolute);
            // This is the reason for any failure then: the collector, too, could not begin because of it.
            if prof_os::process::has_ended(pid) {
                return Err(failed(pid, Error::Gone(pid)));
            }
            Err(if taken_back(pid, settings.timeout) { e } else { left_behind(pid, e) })
        }
    }
}

/// Refuses to begin a recording on a file system that has less room than is to be left free, and removes its file.
pub(crate) fn check_room(path: &Path, file: &File, bounds: &BoundArgs) -> Result<()> {
    let Some(why) = bounds.limits().is_full(file) else { return Ok(()) };
    let _ = fs::remove_file(path);
    Err(refused(format!(
        "there is no room for {}: {why}; give another file with -o, or another --keep-free (0 for none)",
        path.display()
    )))
}

/// Undoes a failed attach; returns whether nothing of it is left. If another tracer came during the attach, nothing
/// could be undone then, so it is tried again for as long as an attach may wait.
fn taken_back(pid: Pid, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    let options = DetachOptions { timeout, children: false, leftovers: true };
    while prof_inject::process::rings::has_parts(pid) {
        // The memory belongs to another prof, which records the process by now.
        if prof_inject::Recorded::open(pid).is_ok_and(|r| r.collector_lives()) {
            return true;
        }
        let _ = prof_inject::detach(pid, &options);
        let _ = prof_inject::clean(pid, timeout);
        if Instant::now() >= deadline {
            return !prof_inject::process::rings::has_parts(pid);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Adds to an error what the attach has left, and how to remove that.
fn left_behind(pid: Pid, e: anyhow::Error) -> anyhow::Error {
    let why = e.to_string().replace("; nothing was changed", "");
    anyhow!(
        "{why}; what prof had mapped into process {pid} by then could not be taken back, and does nothing there: \
         `prof detach {pid}` removes it when nobody else traces the process and its system calls pass"
    )
}

/// Converts the options of the command line for the injector.
pub(crate) fn options(record: &RecordArgs, settings: &Settings, path: &Path) -> Options {
    Options {
        ring_size: usize::try_from(record.ring_size).unwrap_or(usize::MAX),
        path: path.to_owned(),
        wait: if record.on_full == OnFull::Wait { WAIT } else { Duration::ZERO },
        on: settings.on,
        signal: settings.signal,
        dump_signal: settings.reports.as_ref().map_or(0, |r| r.signal),
        free_stacks: record.free_stacks,
        capture: record.capture(),
        verify: record.verify_stacks,
        timeout: settings.timeout,
        choice: prof_inject::FunctionChoice {
            // A recording of figures by stack has no mappings.
            mappings: !record.functions.no_maps && !record.bounds.aggregate,
            heirs: settings.heirs,
            ..functions(&record.functions)
        },
        way_in: settings.way_in,
        guard: Some(|pid| Box::new(Cleaner::start(pid))),
        ..Options::default()
    }
}

/// Returns which functions to hook.
fn functions(args: &FunctionArgs) -> prof_inject::FunctionChoice {
    prof_inject::FunctionChoice {
        modules: args.obj.clone(),
        prefix: args.symbols_prefix.clone(),
        mappings: !args.no_maps,
        heirs: false,
        named: [&args.alloc_fn, &args.realloc_fn, &args.free_fn].map(Clone::clone).concat(),
    }
}

/// Writes the beginning of the recording, starts the collector, and activates the hooks. If that fails, `installed` is
/// dropped, which takes everything out of the target again.
pub(crate) fn activate(
    mut installed: Installed,
    mut file: File,
    record: &RecordArgs,
    settings: &Settings,
) -> Result<Began> {
    let (duration, audit) = (settings.duration, Audit::of(record));
    let writing = Writing { reports: settings.reports.clone(), ..record.writing() };
    let pid = installed.target.pid;
    // The hook can do without these.
    let watched = |n: &str| prof_inject::hooked::watched::FUNCTIONS.contains(&n);
    installed.not_hooked.retain(|n| !watched(&n.function) && n.function != LOADER);
    let target =
        target_record::of(&installed.target, &installed.shared, &installed.options.capture);
    let hooks =
        Hooks { hooked: installed.hooked.clone(), not_hooked: installed.not_hooked.clone() };
    let runtimes = prof_inject::process::runtimes::of(&installed);
    write_prologue(&mut file, &target, &hooks)
        .and_then(|()| write_runtimes(&mut file, &runtimes))
        .with_context(|| format!("cannot write {}", installed.options.path.display()))?;
    let ring = installed.ring_fd.try_clone().with_context(|| {
        format!("prof has no descriptor left for the collector of process {pid} (`ulimit -n`)")
    })?;
    let timeout = installed.options.timeout;
    let note = notes::begin(pid, &installed.target.name, &installed.options.path);
    let path = installed.options.path.clone();
    let census = settings.census.is_some();
    let is_heir = false;
    let how = recorder::How { writing, duration, timeout, audit, note, path, census, is_heir };
    let begun = recorder::start(pid, ring, file, &how, None);
    let mut collector = begun.inspect_err(|_| notes::forget(how.note.as_deref()))?;
    let counted = match census::begin(&mut installed, settings.census) {
        Ok(counted) => counted,
        Err(e) => {
            installed.undo();
            collector.kill();
            let _ = collector.wait();
            notes::forget(how.note.as_deref());
            return Err(e.downcast().map_or_else(|e| e, |e| failed(pid, e)));
        }
    };
    let hooked: Vec<_> =
        installed.hooked.iter().map(|h| (h.function.clone(), h.module.clone())).collect();
    audit.attached(pid, &hooked, &installed.options.path);
    let messages = attach_messages::describe(&installed).into_iter().chain(counted).collect();
    Ok(Began { collector, messages, runtimes })
}

/// Takes prof out of a process, and waits until its recording is finished.
pub(crate) fn detach(
    pid: Pid,
    timeout: Duration,
    children: bool,
    audit: Audit,
) -> Result<Detached> {
    finished(leave(pid, timeout, children, audit))
}

fn finished(detached: Result<Detached>) -> Result<Detached> {
    detached.map(|mut detached| {
        detached.finish();
        detached
    })
}

/// Takes prof out of a process.
pub(crate) fn leave(pid: Pid, timeout: Duration, children: bool, audit: Audit) -> Result<Detached> {
    take_out(pid, DetachOptions { timeout, children, leftovers: false }, audit)
}

fn take_out(pid: Pid, options: DetachOptions, audit: Audit) -> Result<Detached> {
    let DetachOptions { timeout, children, .. } = options;
    prof_inject::may_name_processes().map_err(|e| failed(pid, e))?;
    prof_inject::follow::ask_to_let_go(pid);
    let program = Program::of(pid);
    let peek = match peek(pid) {
        Ok(peek) => peek,
        // An attach that was killed before it wrote its state leaves mappings behind, too.
        Err(_) if prof_inject::preflight(pid).is_ok() && clean(pid, timeout) => {
            let messages = vec!["removed what an interrupted attach had left".into()];
            audit.detached(pid, &[], &[]);
            return Ok(Detached::without_recording(pid, Vec::new(), messages));
        }
        // The process has ended meanwhile.
        Err(_) if prof_os::process::has_ended(pid) => return Err(ended(pid)),
        Err(e) => match take_out_of_child(pid, timeout, audit)? {
            Some(detached) => return Ok(detached),
            None => return Err(held_by_others(pid).unwrap_or(e)),
        },
    };
    // An attach or detach that is in progress may be another prof's.
    prof_inject::idle(pid).map_err(|e| failed(pid, e))?;
    let (mut messages, mut whole) = (Vec::new(), true);
    // An attach that was refused in the middle has no recording.
    let begun = !peek.path.as_os_str().is_empty()
        && peek.collector.0 != Pid::NONE
        && (peek.state != state::SETUP || peek.counters.events > 0);
    if !peek.collector_alive && begun {
        // Events after the last look at the ring would be lost.
        let _ = prof_inject::pause(pid);
        match drain_orphan(pid, &peek.path) {
            Ok(d) => {
                whole &= is_whole(&d);
                messages.push(saved(&d));
            }
            Err(_) if peek.counters.events == 0 => {}
            Err(e) => {
                whole = false;
                messages.push(rest_is_lost(&peek, &e));
            }
        }
    }
    let last = Peek::of(pid).ok().flatten().unwrap_or(peek.clone());
    // This process keeps the file open when the collector ends.
    let kept = Kept::of(&peek).filter(Kept::lock);
    let me = Pid::this();
    let lives = peek.collector_alive && peek.collector.0 != me;
    let ring = if lives { open_ring(pid).ok() } else { None };
    let report = match prof_inject::detach(pid, &options) {
        Ok(report) if report.left.is_empty() || !prof_os::process::has_ended(pid) => report,
        // The end of the process may be the reason for any failure.
        failed => match departed(&program, pid)? {
            Some(how) => {
                audit.detached(pid, &last.functions, &[]);
                messages.push(how);
                let ending = lives.then_some(Ending { collector: peek.collector, kept, ring });
                return Ok(Detached::from_departed(pid, peek.path, messages, ending, children));
            }
            None => {
                return Err(crate::failure::failed(pid, failed.err().unwrap_or(Error::Gone(pid))));
            }
        },
    };
    audit.detached(pid, &last.functions, &report.left);
    messages.extend(report.notes);
    if last.orphaned {
        messages.push("recording had turned itself off, as nobody emptied the ring".into());
    }
    if last.counters.lost > 0 {
        let lost = text::number(last.counters.lost);
        messages.push(format!(
            "{lost} events were lost: the ring was full, or there were more threads than it has room for (--ring-size); blocks whose frees are among them count as live"
        ));
    }
    messages.push(attach_messages::stops(&report.stops));
    // While a thread is still in the hook, the recording goes on.
    let ends = report.left.is_empty() && lives;
    let ending = ends.then_some(Ending { collector: peek.collector, kept, ring });
    let (path, left, stays) = (peek.path, report.left, report.stays);
    Ok(Detached { path, pid, left, stays, messages, gone: false, ending, whole })
}

/// Takes prof out of a process that was forked while its parent was recorded. Returns `None` if it is no such process,
/// or has no note of the original bytes.
fn take_out_of_child(pid: Pid, timeout: Duration, audit: Audit) -> Result<Option<Detached>> {
    if prof_inject::preflight(pid).is_err() {
        return Ok(None);
    }
    let report = prof_inject::children::take_out_alone(pid, timeout).map_err(|e| failed(pid, e))?;
    let Some(report) = report else { return Ok(None) };
    audit.detached(pid, &[], &report.left);
    let mut messages = vec![format!(
        "process {pid} was forked while its parent was recorded: prof's patches are removed from it"
    )];
    messages.extend(report.notes);
    messages.push(attach_messages::stops(&report.stops));
    Ok(Some(Detached::without_recording(pid, report.left, messages)))
}

/// Installs the hook in a process; removes the hook of its parent first, if it was forked while that was recorded.
fn install(target: &Target, record: &RecordArgs, options: &Options) -> Result<Installed> {
    let pid = target.pid;
    match prof_inject::install(target, options) {
        Err(Error::Refused(Refusal::Inherited(..))) => {
            let rid = take_out_of_child(pid, options.timeout, Audit::of(record))?;
            rid.iter().flat_map(|d| &d.messages).for_each(|line| say(line));
            prof_inject::install(target, options)
        }
        installed => installed,
    }
    .map_err(|e| overtaken(pid, e))
}

/// Returns the state of a process that is being recorded; fails during an attach and after a detach.
pub(crate) fn attached(pid: Pid) -> Result<Peek> {
    let peek = peek(pid)?;
    if peek.state == state::ATTACHED {
        return Ok(peek);
    }
    let what = if is_left(&peek) {
        format!(
            "is not recorded any more, and has prof's memory left in it; `prof detach {pid}` tries to remove that"
        )
    } else if peek.state == state::SETUP {
        "is just being attached to; try again".into()
    } else {
        "is just being detached from".into()
    };
    Err(refused(format!("process {pid} {what}")))
}

/// Returns whether a detach has left something in the process that it could not remove.
pub(crate) fn is_left(peek: &Peek) -> bool {
    matches!(peek.state, state::DETACHING | state::DETACHED) && prof_inject::idle(peek.pid).is_ok()
}

fn clean(pid: Pid, timeout: Duration) -> bool {
    prof_inject::clean(pid, timeout).unwrap_or_else(|e| {
        if !prof_os::process::has_ended(pid) {
            log::warn!("{e}");
        }
        false
    })
}

/// Creates the error that names how a process is not there any more.
pub(crate) fn ended(pid: Pid) -> anyhow::Error {
    failed(pid, prof_inject::preflight(pid).err().unwrap_or(Error::Gone(pid)))
}

/// Returns the state of a process's recording.
pub(crate) fn peek(pid: Pid) -> Result<Peek> {
    let again = |_| {
        // A cleaner may be removing what a killed prof has left.
        std::thread::sleep(CLEANING);
        prof_inject::wait_until_idle(pid);
        Peek::settled(pid)
    };
    match Peek::settled(pid).or_else(again) {
        Ok(Some(p)) => Ok(p),
        Ok(None) if prof_os::process::has_ended(pid) => Err(ended(pid)),
        Ok(None) if prof_inject::inherited::is_copy(pid) => Err(refused(format!(
            "process {pid} is not being recorded; it was forked from a process that was, and has prof's patches in its \
             functions, inactive, until it ends or runs another program{}",
            match prof_inject::inherited::says_what_stood_where(pid) {
                true => format!("; `prof detach {pid}` takes them out"),
                false => String::new(),
            }
        ))),
        Ok(None) => Err(refused(format!(
            "process {pid} is not being recorded; start with `prof attach {pid}`"
        ))),
        // The preflight has a better reason why it can't be read.
        Err(e) => match prof_inject::preflight(pid) {
            Err(r) => Err(failed(pid, r)),
            Ok(_) => Err(refused(format!("process {pid}: {e}"))),
        },
    }
}

/// Returns whether a process is being recorded, by a collector that lives.
pub(crate) fn is_recorded(peek: &Peek) -> bool {
    peek.collector_alive && peek.state == state::ATTACHED
}

/// Returns the error that a process is being recorded, perhaps otherwise than is wanted.
pub(crate) fn already_recorded(peek: &Peek, record: &RecordArgs) -> anyhow::Error {
    // The settings can't change while events are written with them.
    let other = match &peek.foreign {
        Some(by) => format!(" by {}", by.describe()),
        None if peek.capture.is_as(&record.capture()) => String::new(),
        None => format!(" with other settings ({})", attach_messages::captured(&peek.capture)),
    };
    let (pid, path) = (peek.pid, peek.path.display());
    refused(format!(
        "process {pid} is already being recorded{other}, to {path}; `prof detach {pid}` ends that"
    ))
}

/// Refuses a process that is being recorded. If its collector has died, that recording is finished first instead.
fn adopt(pid: Pid, record: &RecordArgs) -> Result<()> {
    let Ok(Some(peek)) = Peek::settled(pid) else { return Ok(()) };
    // An attach that was killed in the middle leaves a collector without anything to collect; so may a detach that
    // could not remove everything. If one is in progress, it holds the lock, and detaching reports that.
    if is_recorded(&peek) {
        return Err(already_recorded(&peek, record));
    }
    // Another prof may attach between this look and the lock.
    let options = DetachOptions { timeout: DETACH_TIMEOUT, children: false, leftovers: true };
    let old = finished(take_out(pid, options, Audit::of(record))).with_context(|| {
        let path = match peek.path.as_os_str().is_empty() {
            true => "parts of an attach that was interrupted, or is in progress,".into(),
            false => format!("an earlier recording in it, {},", peek.path.display()),
        };
        format!("process {pid} has {path} that can't be ended now; try again, or end it with `prof detach {pid}`")
    })?;
    if !old.path.as_os_str().is_empty() {
        say(&format!("finished an earlier recording, {}", old.path.display()));
    }
    old.messages.iter().for_each(|s| say(s));
    if old.is_clean() {
        return Ok(());
    }
    Err(refused(match old.stays {
        true => {
            format!("process {pid} has prof's memory of an earlier recording in it: {}", stays(pid))
        }
        false => format!(
            "process {pid} still has parts of an earlier recording in it ({}); they do nothing; try again later, or take them out with `prof detach {pid}`",
            old.left.join(", ")
        ),
    }))
}

/// Converts the error: another tracer may have come since the preflight, and is then the reason.
fn overtaken(pid: Pid, e: Error) -> anyhow::Error {
    match e {
        Error::Sys { errno: nix::errno::Errno::EPERM, .. } => {
            let now = prof_inject::preflight(pid).err().map(|r| r.to_string());
            refused(now.unwrap_or_else(|| {
                format!(
                    "the kernel does not let prof trace process {pid} at this moment (EPERM): another tracer may have \
                     been faster; try again, or run prof with the rights that `prof doctor {pid}` names"
                )
            }))
        }
        e => failed(pid, e),
    }
}
