//! Goes on in a recording whose collector has died: the hook is still in the process, and the ring has what came since.

use crate::audit::Audit;
use crate::commands::collect::Writing;
use crate::commands::record::RecordArgs;
use crate::ending::cut_off;
use crate::failure::{failed, refused, usage};
use crate::session::{self, Attached, Settings};
use crate::{attach_messages, notes, recorder};
use anyhow::{Context, Result};
use prof_collect::{Peek, open_orphan, open_ring};
use prof_os::Pid;
use prof_trace::shared::state;
use prof_trace::values::text;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Begins to record a process again to the file of an earlier recording whose collector has died; `None` if the file that
/// is wanted is new. An existing file that can't be continued is refused before anything is changed.
pub(crate) fn attach(
    pid: Pid,
    record: &RecordArgs,
    settings: &Settings,
) -> Result<Option<Attached>> {
    let Some(path) = record.output.as_deref().filter(|path| path.symlink_metadata().is_ok()) else {
        return Ok(None);
    };
    record.check().map_err(usage)?;
    prof_inject::may_name_processes().map_err(|e| failed(pid, e))?;
    prof_inject::wait_until_idle(pid);
    let exists = || usage(format!("{} exists; give another file with -o", path.display()));
    let orphan = || match Peek::settled(pid).ok().flatten() {
        None => Ok(None),
        Some(peek) if session::is_recorded(&peek) => Err(session::already_recorded(&peek, record)),
        Some(peek) if is_same(path, &peek.path) && !peek.collector_alive => Ok(Some(peek)),
        // Nothing is done to an earlier recording of the process either.
        Some(_) => Err(exists()),
    };
    if orphan()?.is_none() {
        return Ok(None);
    }
    let lock = prof_inject::lock(pid).map_err(|e| failed(pid, e))?;
    // Another prof may have been faster.
    let Some(peek) = orphan()? else { return Ok(None) };
    let cannot = |why: &str| {
        refused(format!(
            "{} is the recording of process {pid}, whose collector has died, and can't be continued: {why}; give another \
             file with -o, and it is finished first",
            path.display()
        ))
    };
    if let Some(why) = hindrance(&peek, record, settings) {
        return Err(cannot(&why));
    }
    let orphan = open_orphan(pid, &peek.path).map_err(|e| cannot(&e.to_string()))?;
    let ring = open_ring(pid).map_err(|e| {
        cannot(&format!("{e} (that takes root's rights, or CAP_CHECKPOINT_RESTORE)"))
    })?;
    let too_long = no_room(&orphan.file, record).map_err(|why| cannot(&why))?;
    let name = prof_os::process::comm(pid);
    let how = recorder::How {
        path: peek.path.clone(),
        writing: Writing { reports: settings.reports.clone(), ..record.writing() },
        duration: settings.duration,
        timeout: settings.timeout,
        audit: Audit::of(record),
        note: notes::begin(pid, &name, &peek.path),
        census: false,
        is_heir: false,
    };
    let again = ring.try_clone().context("prof has no descriptor left (`ulimit -n`)")?;
    let missing = orphan.missing(again).unwrap_or_default();
    let begun = recorder::start(pid, ring, orphan.file, &how, Some(&lock));
    let collector = begun.inspect_err(|_| notes::forget(how.note.as_deref()))?;
    drop(lock);
    let mut messages = switch(&peek, settings.on)?;
    messages.extend(cut_off(missing).into_iter().chain(too_long));
    let path = path.to_owned();
    Ok(Some(Attached { pid, path, collector, messages, runtimes: Vec::new() }))
}

/// Returns what is to be said of a recording that is longer than these bounds, where it is made to fit.
///
/// # Errors
/// Why it would end at once.
fn no_room(file: &fs::File, record: &RecordArgs) -> Result<Option<String>, String> {
    let limits = record.bounds.limits();
    if let Some(why) = limits.is_full(file) {
        return Err(format!("there is no room for it: {why}"));
    }
    let len = file.metadata().map_or(0, |m| m.len());
    let Some(most) = limits.max_disk.filter(|_| !limits.lets_grow(len)) else { return Ok(None) };
    let (len, most) = (text::bytes(len), text::bytes(most));
    if record.bounds.folds() {
        return Ok(Some(format!(
            "it has {len}, and --max-disk is {most}: its oldest part is dropped first, and until then it is longer"
        )));
    }
    Err(format!(
        "it has {len}, and would end at once with --max-disk {most}; go on with a larger --max-disk or without, or with \
         --on-limit drop-oldest, which makes it fit"
    ))
}

fn is_same(a: &Path, b: &Path) -> bool {
    let id = |path| fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    id(a).is_some() && id(a) == id(b)
}

/// Returns what stands against going on with these options: the hook stays as it is.
fn hindrance(peek: &Peek, record: &RecordArgs, settings: &Settings) -> Option<String> {
    let says = |what: &str| Some(what.to_owned());
    if peek.state != state::ATTACHED || peek.foreign.is_some() {
        return says("prof is not whole in the process, or is another version");
    }
    if !peek.capture.is_as(&record.capture()) {
        let captured = attach_messages::captured(&peek.capture);
        return Some(format!("it was begun with other settings ({captured})"));
    }
    if record.bounds.cull().is_some() || record.bounds.aggregate {
        return says(
            "with --cull and --aggregate, the collector has to know all blocks from the begin on",
        );
    }
    if record.bounds.goes_over().is_some() {
        return says(
            "with --on-limit aggregate, the names that the collector gives to stacks have to stay the same from the begin \
             on; --on-limit drop-oldest goes on",
        );
    }
    if settings.census.is_some() {
        return says("a census stands at the begin of a recording");
    }
    let signal = settings.reports.as_ref().map_or(0, |r| r.signal);
    if signal != 0 && signal != peek.dump_signal {
        return says("it was begun without this --dump-signal");
    }
    None
}

/// Switches recording on or off, as wanted, and returns what to say of the time before.
fn switch(peek: &Peek, on: bool) -> Result<Vec<String>> {
    let pid = peek.pid;
    let mut messages = vec![format!("its collector had died; {} goes on", peek.path.display())];
    if peek.orphaned {
        messages.push(
            "recording had turned itself off, as nobody emptied the ring: what was allocated and freed since is unknown"
                .into(),
        );
    }
    if peek.counters.lost > 0 {
        let lost = text::number(peek.counters.lost);
        messages.push(format!("{lost} events were lost up to now"));
    }
    let was_paused = !peek.recording && !peek.orphaned;
    if was_paused {
        messages.push(format!("recording is paused, as before: `prof resume {pid}`"));
    }
    let now = Peek::of(pid).ok().flatten();
    match now.is_some_and(|p| p.recording) {
        true if !on => prof_inject::pause(pid),
        // The collector has begun, so the hook does not switch it off again.
        false if on && !was_paused => prof_inject::resume(pid),
        _ => Ok(false),
    }
    .map_err(|e| failed(pid, e))?;
    Ok(messages)
}
