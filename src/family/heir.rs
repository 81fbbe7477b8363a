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
use prof_collect::{Ancestor, Heir, Peek, write_forked, write_prologue, write_runtimes};
use prof_inject::Target;
use prof_os::process;
use prof_trace::records::{Forked, Hooks, Runtimes};
use prof_trace::runtimes::Runtime;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

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
    let ago = put_begin(&heir, seen, &mut file, &path)?;
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
    let begun = begun.inspect_err(|_| notes::forget(how.note.as_deref()))?;
    // A hook whose memory is full turns recording off when no collector has given a sign for seconds.
    if Peek::of(pid).ok().flatten().is_some_and(|p| p.orphaned && !p.recording) {
        let _ = prof_inject::resume(pid);
    }
    Ok(begun)
}

/// Writes the beginning of the recording of such a child. Returns how long ago it began to record.
fn put_begin(heir: &Heir, seen: &Seen, file: &mut File, path: &Path) -> Result<Duration> {
    let pid = seen.pid;
    let (exe, cmdline) = (process::exe(pid), process::cmdline(pid));
    let target = Target { pid, name: process::comm(pid), exe, cmdline };
    let (ticks, ago) = heir.began();
    let mut about = target_record::of(&target, &heir.shared(), &heir.peek.capture);
    about.start_ticks = ticks;
    about.wall_ns = about.wall_ns.saturating_sub(ago.as_nanos() as u64);
    let Ancestor { recording, is_parent, ticks: [ticks, ancestor_ticks] } = heir.ancestor();
    let known = Known::of(&path.with_file_name(&recording));
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

/// Begins the recording of a child of which no supervisor has taken notice, so that the detach that follows saves what its memory
/// holds.
///
/// # Errors
/// If it is no such child any more, or there is no place for the recording.
pub(crate) fn leave(folder: &Folder, seen: &Seen) -> Result<PathBuf> {
    let heir = Heir::of(seen.pid)?.ok_or_else(|| anyhow!("it has ended or is recorded"))?;
    let path = folder.new_recording(&seen.comm, seen.pid);
    let (path, mut file) = create(Some(&path), &seen.comm, seen.pid)?;
    let absolute = fs::canonicalize(&path)?;
    put_begin(&heir, seen, &mut file, &absolute)?;
    heir.take(&absolute)?;
    Ok(path)
}

/// Facts from the recording of an ancestor, in the same folder, that hold for its descendants, too.
struct Known {
    pid: u32,
    hooks: Hooks,
    runtimes: Vec<Runtime>,
}

impl Known {
    fn of(recording: &Path) -> Option<Self> {
        let file = recording.symlink_metadata().ok().filter(fs::Metadata::is_file);
        let file = file.and_then(|_| File::open(recording).ok())?;
        let (hooks, Runtimes { names }) = hooks_of(&file).ok()?;
        let runtimes = names.iter().filter_map(|n| Runtime::from_name(n)).collect();
        Some(Self { pid: target_of(&file).ok()?.pid, hooks, runtimes })
    }
}
