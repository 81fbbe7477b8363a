//! Joins the recordings of a family's folder, for commands on recordings. The result is kept in the folder, or in the
//! user's cache, until one of the recordings changes.

use super::folder::Folder;
use super::journal::{Losses, losses, named};
use crate::failure::usage;
use anyhow::{Context, Result};
use prof_analyze::load::is_recording;
use prof_analyze::rewrite::{
    Ancestor, JOINED, JoinOptions, RewriteError, forked_of, join, join_inherited, target,
};
use prof_analyze::symbols::{SymbolOptions, is_target};
use prof_os::Pid;
use prof_trace::records::{Forked, Target};
use prof_trace::ticks::Ticks;
use prof_trace::values::text::count;
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A recording in a folder, and the process that it is of.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// Path of the recording.
    pub path: PathBuf,
    /// The process.
    pub target: Target,
}

/// Returns the recordings in a folder, of these processes or, if there are none, of all. Of copies one counts, and the others
/// are named on standard error.
///
/// # Errors
/// If there are none.
pub(crate) fn members(folder: &Folder, pids: &[Pid]) -> Result<Vec<Member>> {
    let (all, copies) = found(folder, pids)?;
    for copy in copies {
        crate::term::say(&format!(
            "{} is left out, as another recording in the folder is of the same process and time",
            copy.display()
        ));
    }
    Ok(all)
}

/// Returns the recordings in a folder, and the paths of copies of these.
fn found(folder: &Folder, pids: &[Pid]) -> Result<(Vec<Member>, Vec<PathBuf>)> {
    let entries = fs::read_dir(folder.path()).into_iter().flatten().flatten().map(|e| e.path());
    let is_hidden = |p: &Path| p.file_name().is_none_or(|n| n.as_encoded_bytes()[0] == b'.');
    let is_ours = |p: &PathBuf| p.extension().is_some_and(|x| x == "prof") && !is_hidden(p);
    let member = |path: PathBuf| {
        let target = target(&path).ok()?;
        Some(Member { path, target })
    };
    let mut all: Vec<Member> =
        entries.filter(is_ours).filter(|p| is_recording(p)).filter_map(member).collect();
    let shown = folder.path().display();
    if all.is_empty() {
        return Err(usage(format!("{shown} has no recording")));
    }
    for pid in pids {
        if !all.iter().any(|m| m.target.pid == pid.as_u32()) {
            let known: BTreeSet<u32> = all.iter().map(|m| m.target.pid).collect();
            let known = known.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            return Err(usage(format!(
                "{shown} has no recording of process {pid}; it has those of {known}"
            )));
        }
    }
    all.retain(|m| pids.is_empty() || pids.contains(&Pid::from_u32(m.target.pid)));
    let copies = without_copies(&mut all, &named(folder.path()));
    Ok((all, copies))
}

/// Sorts recordings by the time when they began, and removes all but one that are of the same process from the same moment
/// on. That which is `named` in the journal stays, or else the longest. Returns the paths of the others.
fn without_copies(all: &mut Vec<Member>, named: &[String]) -> Vec<PathBuf> {
    let is_named = |m: &Member| {
        let name = m.path.file_name().and_then(|n| n.to_str());
        name.is_some_and(|n| named.iter().any(|known| known == n))
    };
    let which = |t: &Target| (t.wall_ns, t.start_ticks, t.pid, t.pid_namespace);
    all.sort_by_cached_key(|m| {
        let len = fs::metadata(&m.path).map_or(0, |m| m.len());
        (which(&m.target), !is_named(m), Reverse(len), m.path.clone())
    });
    let mut copies = Vec::new();
    all.dedup_by(|next, kept| {
        let is_copy = which(&next.target) == which(&kept.target);
        if is_copy {
            copies.push(std::mem::take(&mut next.path));
        }
        is_copy
    });
    copies
}

/// Returns the recording that has the blocks of all these processes, and what the family has lost: their own, if there is but
/// one.
///
/// # Errors
/// If they can't be read, or there is no place for the recording.
pub(crate) fn recording(
    folder: &Folder,
    pids: &[Pid],
    symbols: &SymbolOptions,
) -> Result<(PathBuf, Losses)> {
    let all = members(folder, pids)?;
    let losses = if pids.is_empty() { losses(folder.path()) } else { Losses::default() };
    if let [one] = &all[..] {
        return Ok((one.path.clone(), losses));
    }
    let (which, mut state) = names(&all);
    let lost = [losses.recordings, losses.processes, losses.more.into()];
    lost.iter().for_each(|n| add(&mut state, &n.to_le_bytes()));
    // A recording without an end is another thing when its process is gone.
    all.iter().for_each(|m| add(&mut state, &[is_target(&m.target).into()]));
    let options = JoinOptions {
        name: all[0].target.comm.clone(),
        path: folder.absolute(),
        symbols: symbols.clone(),
        lost: losses.recordings,
        missed: losses.processes,
        more: losses.more,
    };
    let mut tries = 1;
    loop {
        // A recording that is folded meanwhile is another file then, and is read from its front on.
        let was_replaced = Cell::new(false);
        let path = kept(folder, (which, state), |file, part, path| {
            write(&all, &options, file, part, path).map_err(|e| {
                was_replaced.set(matches!(e, RewriteError::Replaced(_)));
                match e {
                    e @ RewriteError::Write(..) => anyhow::Error::from(e),
                    e => usage(format!("{e}; --pid names one process")),
                }
            })
        });
        if tries == TRIES || !was_replaced.get() {
            return path.map(|path| (path, losses));
        }
        tries += 1;
    }
}

/// Number of times that recordings are read anew, as one of them was folded while they were read.
const TRIES: u32 = 4;

/// Returns the recording that has the blocks of a process, and those that it has from its parents.
///
/// # Errors
/// If it is not one process, was not recorded from its fork on, or the recordings can't be read.
pub(crate) fn with_inherited(
    folder: &Folder,
    pids: &[Pid],
    symbols: &SymbolOptions,
) -> Result<PathBuf> {
    let all = members(folder, pids)?;
    let [one] = &all[..] else {
        let shown = all.iter().map(|m| m.path.display().to_string()).collect::<Vec<_>>().join(", ");
        return Err(usage(format!(
            "--inherited is about one recording, and these are several: {shown}"
        )));
    };
    let ancestors = ancestors(folder, &one.path)?;
    if ancestors.is_empty() {
        return Err(usage(format!(
            "{} was not recorded from its fork on, so it is not known what it has inherited",
            one.path.display()
        )));
    }
    let options = JoinOptions {
        name: one.target.comm.clone(),
        path: one.path.clone(),
        symbols: symbols.clone(),
        lost: 0,
        missed: 0,
        more: false,
    };
    kept(folder, of_inherited(one, &ancestors), |file, part, path| {
        finish(file, part, path, |out| join_inherited(&one.path, &ancestors, &options, out))
            .map_err(|e| match e {
                e @ RewriteError::Write(..) => anyhow::Error::from(e),
                e => usage(format!("what it has inherited is not known: {e}")),
            })
    })
}

/// Greatest number of forks between a process and the eldest that is recorded.
const GENERATIONS: usize = 64;

/// Returns from which processes one was forked, whose recording this is: the eldest first.
fn ancestors(folder: &Folder, path: &Path) -> Result<Vec<Ancestor>> {
    let (mut all, mut of): (Vec<Ancestor>, _) = (Vec::new(), path.to_owned());
    let of_process = |pid: u32, ticks: Ticks| {
        let all = found(folder, &[Pid::from_u32(pid)]).ok()?.0;
        let mut before = all.into_iter().filter(|m| m.target.start_ticks <= ticks);
        before.next_back().map(|m| m.path)
    };
    while all.len() < GENERATIONS {
        let forked = File::open(&of).and_then(|file| forked_of(&file));
        let forked = forked.with_context(|| format!("cannot read {}", of.display()))?;
        let Some(Forked { ticks, parent, recording, ancestor, ancestor_ticks }) = forked else {
            break;
        };
        // A recording may name any path: only its folder's are read. The file of this name may be that of the program that the
        // process has run since, by exec.
        let named = |name: &str, until: Ticks| {
            let path = folder.path().join(Path::new(name).file_name()?);
            let about = is_recording(&path).then(|| target(&path).ok()).flatten()?;
            if about.start_ticks <= until { Some(path) } else { of_process(about.pid, until) }
        };
        let of_parent = named(&recording, ticks).or_else(|| of_process(parent, ticks));
        // Of a parent that ended before it was recorded nothing is known: its child has what that got from its own parent.
        let next = of_parent.map(|path| (path, ticks));
        let of_ancestor = || Some((named(&ancestor, ancestor_ticks)?, ancestor_ticks));
        let Some(next) = next.or_else(of_ancestor) else {
            return Err(usage(format!(
                "the recordings of the parents of {} are not in {}, so it is not known what it has inherited",
                path.display(),
                folder.path().display()
            )));
        };
        of = next.0;
        all.push(Ancestor { path: of.clone(), until: next.1 });
    }
    all.reverse();
    Ok(all)
}

/// Returns numbers for a recording with what its process has inherited, and for their present contents. Of a parent that is
/// still recorded, only what it had at the fork counts.
fn of_inherited(one: &Member, ancestors: &[Ancestor]) -> (u64, u64) {
    /// Time after which all events of a moment are in a recording, in ns.
    const WRITTEN: u64 = 5_000_000_000;
    let (mut which, mut state) = names(std::slice::from_ref(one));
    for ancestor in ancestors {
        add(&mut which, b"inherited");
        if let Ok(m) = fs::metadata(&ancestor.path) {
            let changed = m.mtime() as u64 * 1_000_000_000 + m.mtime_nsec() as u64;
            let is_final = changed > one.target.wall_ns + WRITTEN;
            let of_file = [m.dev(), m.ino(), if is_final { 0 } else { m.len() }];
            of_file.iter().for_each(|n| add(&mut state, &n.to_le_bytes()));
        }
    }
    (which, state)
}

/// Returns the path of the recording that has these numbers, and has it written if it is not there.
fn kept(
    folder: &Folder,
    (which, state): (u64, u64),
    write: impl Fn(File, &Path, &Path) -> Result<()>,
) -> Result<PathBuf> {
    let beginning = format!("{JOINED}{which:016x}-");
    let name = format!("{beginning}{state:016x}.prof");
    let mut full = None;
    for dir in places(folder) {
        let path = dir.join(&name);
        if is_recording(&path) {
            return Ok(path);
        }
        let Ok(file) = create(&dir, &name) else { continue };
        forget(&dir, &beginning);
        match write(file, &dir.join(part(&name)), &path) {
            Err(e) if is_full(&e) => full = Some(e),
            done => return done.map(|()| path),
        }
    }
    let shown = folder.path().display();
    if let Some(e) = full {
        return Err(e.context(format!(
            "the recordings of {shown} have to be joined, and neither there nor in the cache folder is room for that; \
             XDG_CACHE_HOME may name another folder"
        )));
    }
    Err(usage(format!(
        "the recordings of {shown} have to be joined, and neither there nor in the cache folder can a file be written"
    )))
}

/// Returns whether a recording could not be written as the disk is full.
fn is_full(e: &anyhow::Error) -> bool {
    let kinds = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded];
    matches!(e.downcast_ref(), Some(RewriteError::Write(_, e)) if kinds.contains(&e.kind()))
}

/// Number of what joined recordings contain: it changes when they get more, so that those of builds before are made anew.
const EDITION: u8 = 1;

/// Returns numbers for which recordings these are, and for their present contents.
fn names(all: &[Member]) -> (u64, u64) {
    let (mut which, mut state) = (0xcbf2_9ce4_8422_2325u64, 0xcbf2_9ce4_8422_2325u64);
    add(&mut state, env!("CARGO_PKG_VERSION").as_bytes());
    add(&mut state, &[EDITION]);
    for member in all {
        add(&mut which, member.path.file_name().unwrap_or_default().as_encoded_bytes());
        if let Ok(m) = fs::metadata(&member.path) {
            let of_file = [m.dev(), m.ino(), m.len(), m.mtime() as u64, m.mtime_nsec() as u64];
            of_file.iter().for_each(|n| add(&mut state, &n.to_le_bytes()));
        }
    }
    (which, state)
}

/// Adds bytes to a number (FNV-1a).
fn add(sum: &mut u64, bytes: &[u8]) {
    bytes.iter().for_each(|b| *sum = (*sum ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
}

/// Returns the folders for joined recordings.
fn places(folder: &Folder) -> Vec<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    let cache = cache.map(|dir| dir.join("prof").join("joined"));
    if let Some(dir) = &cache {
        let _ = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    }
    std::iter::once(folder.path().to_owned()).chain(cache).collect()
}

fn part(name: &str) -> String {
    format!("{name}.{}.part", std::process::id())
}

fn create(dir: &Path, name: &str) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    // As with all recordings, only the owner may read it.
    options.write(true).create_new(true).mode(0o600).open(dir.join(part(name)))
}

/// Removes the files that were joined from the same recordings before these changed, with their indexes.
fn forget(dir: &Path, beginning: &str) {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(beginning) && !name.ends_with(".part") {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn write(
    all: &[Member],
    options: &JoinOptions,
    file: File,
    part: &Path,
    path: &Path,
) -> Result<(), RewriteError> {
    let paths: Vec<PathBuf> = all.iter().map(|m| m.path.clone()).collect();
    let left_out = finish(file, part, path, |out| join(&paths, options, out))?.left_out;
    if !left_out.is_empty() {
        let n = count(left_out.len() as u64, "recording is", "recordings are");
        crate::term::say(&format!("{n} left out, as it can't be read: {}", left_out[0].1));
    }
    Ok(())
}

/// Has a recording written, which gets its name when it is whole.
fn finish<T>(
    file: File,
    part: &Path,
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<T, RewriteError>,
) -> Result<T, RewriteError> {
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let done = write(&mut out).and_then(|done| {
        let kept = out.flush().and_then(|()| fs::rename(part, path));
        kept.map(|()| done).map_err(|e| RewriteError::Write(path.display().to_string(), e))
    });
    if done.is_err() {
        let _ = fs::remove_file(part);
    }
    done
}
