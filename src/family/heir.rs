//! Begins the recording of a child that its parent's hook has made record from its fork on: only a collector is missing.

use super::find::Seen;
use super::folder::Folder;
use crate::audit::Audit;
use crate::commands::collect::Writing;
use crate::commands::record::RecordArgs;
use crate::new_file::create;
use crate::recorder;
use crate::session::{Attached, Settings, check_room};
use crate::{notes, target_record};
use anyhow::{Result, anyhow};
use prof_analyze::rewrite::{hooks_of, target_of};
use prof_collect::{Ancestor, Heir, Held, Peek, write_forked, write_prologue, write_runtimes};
use prof_inject::Target;
use prof_os::process;
use prof_trace::records::{Forked, Hooks, Runtimes};
use prof_trace::runtimes::Runtime;
use prof_trace::ticks::Ticks;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Greatest number of mappings of a child that is kept: some 200 bytes each.
const MOST_MAPPINGS: usize = 4096;

/// Starts the collector of such a child; `None` if it is none, or that is not possible. The child can be attached to then as any
/// process, which takes out first what its parent's hook has given it.
pub(super) fn take(seen: &Seen, record: &RecordArgs, settings: &Settings) -> Option<Attached> {
    // Nothing is locked, and no file made, for what is no heir.
    let is_heir = |heir: Result<Option<Heir>, _>| heir.ok().flatten();
    is_heir(Heir::of(seen.pid))?;
    let lock = prof_inject::lock(seen.pid).ok()?;
    let heir = is_heir(Heir::of(seen.pid))?;
    let name = process::comm(seen.pid);
    let (path, file) = create(record.output.as_deref(), &name, seen.pid).ok()?;
    let begun = check_room(&path, &file, &record.bounds)
        .and_then(|()| begin(heir, seen, file, &lock, record, settings));
    match begun {
        Ok(collector) => {
            let (messages, runtimes) = (Vec::new(), Vec::new());
            Some(Attached { pid: seen.pid, path, collector, messages, runtimes })
        }
        Err(e) => {
            log::info!("{}: its recording from its fork on could not begin: {e:#}", seen.pid);
            let _ = fs::remove_file(&path);
            None
        }
    }
}

fn begin(
    heir: Heir,
    seen: &Seen,
    mut file: File,
    lock: &prof_inject::Lock,
    record: &RecordArgs,
    settings: &Settings,
) -> Result<recorder::Started> {
    let (pid, path) = (seen.pid, record.output.as_deref().ok_or_else(|| anyhow!("no path"))?);
    let path = fs::canonicalize(path)?;
    let ago = put_begin(&heir, target(seen), seen, &mut file, &path)?;
    let name = process::comm(pid);
    let how = recorder::How {
        writing: Writing { reports: settings.reports.clone(), ..record.writing() },
        duration: settings.duration.map(|d| d.saturating_sub(ago).max(Duration::from_millis(1))),
        timeout: settings.timeout,
        audit: Audit::of(record),
        note: notes::begin(pid, &name, &path),
        census: false,
        is_heir: true,
        path,
    };
    let ring = heir.take(&how.path)?;
    let begun = recorder::start(pid, ring, file, &how, Some(lock));
    let begun = begun.inspect_err(|_| {
        notes::forget(how.note.as_deref());
        let _ = heir.give_back();
    })?;
    // A hook whose memory is full turns recording off when no collector has given a sign for seconds.
    if Peek::of(pid).ok().flatten().is_some_and(|p| p.orphaned && !p.recording) {
        let _ = prof_inject::resume(pid);
    }
    Ok(begun)
}

/// Describes a process that runs.
fn target(seen: &Seen) -> Target {
    let pid = seen.pid;
    let (exe, cmdline) = (process::exe(pid), process::cmdline(pid));
    let name = Some(process::comm(pid)).filter(|name| !name.is_empty());
    Target { pid, name: name.unwrap_or_else(|| seen.comm.clone()), exe, cmdline }
}

/// Writes the beginning of the recording of such a child, the process `target`. Returns how long ago it began to record.
fn put_begin(
    heir: &Heir,
    target: Target,
    seen: &Seen,
    file: &mut File,
    path: &Path,
) -> Result<Duration> {
    let (ticks, ago) = heir.began();
    let mut about = target_record::of(&target, &heir.shared(), &heir.capture());
    about.start_ticks = ticks;
    about.wall_ns = about.wall_ns.saturating_sub(ago.as_nanos() as u64);
    let Ancestor { recording, is_parent, ticks: [ticks, ancestor_ticks] } = heir.ancestor();
    let until = if is_parent { ticks } else { ancestor_ticks };
    let known = Known::of(&path.with_file_name(&recording), until);
    let (hooks, runtimes) = match &known {
        Some(known) => (known.hooks.clone(), known.runtimes.clone()),
        None => (Hooks { hooked: heir.hooks(), not_hooked: Vec::new() }, Vec::new()),
    };
    write_prologue(file, &about, &hooks)?;
    write_runtimes(file, &runtimes)?;
    let parent = known.filter(|_| is_parent).map_or(seen.parent.as_u32(), |p| p.pid);
    let ancestor = recording.to_string_lossy().into_owned();
    let recording = if is_parent { ancestor.clone() } else { String::new() };
    write_forked(file, &Forked { ticks, parent, recording, ancestor, ancestor_ticks })?;
    Ok(ago)
}

/// A child of which no supervisor has taken notice, and whose recording has nothing but its beginning yet.
pub(crate) struct Left {
    /// The recording.
    pub path: PathBuf,
    /// The child.
    pub seen: Seen,
    heir: Heir,
    /// Length of the beginning.
    len: u64,
}

impl Left {
    /// Begins the recording of such a child, so that the detach that follows saves what its memory holds.
    ///
    /// # Errors
    /// If it is no such child any more, or there is no place for the recording.
    pub(crate) fn begin(folder: &Folder, seen: &Seen) -> Result<Self> {
        let heir = Heir::of(seen.pid)?.ok_or_else(|| anyhow!("it has ended or is recorded"))?;
        let path = folder.new_recording(&seen.comm, seen.pid);
        let (path, mut file) = create(Some(&path), &seen.comm, seen.pid)?;
        let absolute = fs::canonicalize(&path)?;
        put_begin(&heir, target(seen), seen, &mut file, &absolute)?;
        heir.take(&absolute)?;
        let len = file.metadata()?.len();
        Ok(Self { path, seen: seen.clone(), heir, len })
    }

    /// Finishes the recording if the child has ended before the detach came to it.
    ///
    /// # Errors
    /// If the recording can't be written.
    pub(crate) fn end(self) -> Result<()> {
        let file = File::options().append(true).read(true).open(&self.path)?;
        if self.seen.is_there() || file.metadata()?.len() != self.len {
            return Ok(());
        }
        let failure = self.heir.into_collector(file)?.finish("ended").failure;
        failure.map_or(Ok(()), |e| Err(e.into()))
    }
}

/// Such a child as it was soon after its fork, and its memory, which stays when the child ends.
pub(super) struct Kept {
    held: Held,
    target: Target,
}

impl Kept {
    /// Opens the memory of a process that was just forked; `None` if it has none from its parent, or so many mappings that they
    /// would take too much memory.
    pub(super) fn of(seen: &Seen) -> Option<Self> {
        let held = Held::of(seen.pid).ok().flatten().filter(|h| h.mappings() <= MOST_MAPPINGS)?;
        Some(Self { held, target: target(seen) })
    }

    /// Returns whether the process has not run since its fork, as far as can be told.
    pub(super) fn is_pending(&self) -> bool {
        self.held.is_pending()
    }

    /// Writes the recording of the process, which has ended as `reason` says. Returns the recording's path and its number of events;
    /// `None` if there are none.
    ///
    /// # Errors
    /// If the recording can't be written, or the process did not get to take its memory, or another prof has.
    pub(super) fn save(
        self,
        seen: &Seen,
        record: &RecordArgs,
        reason: &str,
    ) -> Result<Option<(PathBuf, u64)>> {
        let heir = Heir::new(self.held)?.ok_or_else(|| anyhow!("it has recorded nothing"))?;
        let events = heir.events();
        if events == 0 {
            return Ok(None);
        }
        let (path, mut file) = create(record.output.as_deref(), &seen.comm, seen.pid)?;
        let written = || {
            check_room(&path, &file, &record.bounds)?;
            put_begin(&heir, self.target, seen, &mut file, &fs::canonicalize(&path)?)?;
            recorder::finish_ended(heir, file, &path, &record.writing(), reason)
        };
        let written = written();
        written.inspect_err(|_| _ = fs::remove_file(&path))?;
        Ok(Some((path, events)))
    }
}

/// Facts from the recording of an ancestor, in the same folder, that hold for its descendants, too.
struct Known {
    pid: u32,
    began: Ticks,
    hooks: Hooks,
    runtimes: Vec<Runtime>,
}

impl Known {
    /// Reads the recording of an ancestor that had a descendant forked at the time `until`. The file of this name may be that of
    /// the program that the ancestor has run since, by exec.
    fn of(recording: &Path, until: Ticks) -> Option<Self> {
        let named = Self::in_file(recording)?;
        if named.began <= until {
            return Some(named);
        }
        let folder = recording.parent().and_then(Folder::open)?;
        let others = folder.recordings().into_iter().filter_map(|path| Self::in_file(&path));
        let fits = |other: &Self| other.pid == named.pid && other.began <= until;
        others.filter(fits).max_by_key(|other| other.began)
    }

    fn in_file(recording: &Path) -> Option<Self> {
        let file = recording.symlink_metadata().ok().filter(fs::Metadata::is_file);
        let file = file.and_then(|_| File::open(recording).ok())?;
        let (hooks, Runtimes { names }) = hooks_of(&file).ok()?;
        let runtimes = names.iter().filter_map(|n| Runtime::from_name(n)).collect();
        let target = target_of(&file).ok()?;
        Some(Self { pid: target.pid, began: target.start_ticks, hooks, runtimes })
    }
}
