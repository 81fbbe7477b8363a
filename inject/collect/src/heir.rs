//! A child that its parent's hook has given shared memory of its own: it records, and has no collector yet.

use crate::maps::Maps;
use crate::peek::{capture_of, heir_of, name_and_module};
use crate::ring_copy::RingCopy;
use crate::ring_map::{map_file, open_mapped};
use crate::target::is_elsewhere;
use crate::{Clock, Collector, Error, totals};
use prof_os::Pid;
use prof_os::maps::Map;
use prof_os::pid_namespace::PidNamespace;
use prof_os::process::folder;
use prof_os::status::Status;
use prof_trace::capture::Capture;
use prof_trace::records::Hook;
use prof_trace::shared::{
    Control, FUNCTIONS, HEIR_AT, Kind, STABLE_AT, Shared, Stable, is_ring, state,
};
use prof_trace::ticks::Ticks;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

/// Returns whether this process may open the memory that others have mapped, as [`crate::open_ring`] does.
#[must_use]
pub fn may_open_rings() -> bool {
    let own = std::fs::read_dir(folder(Pid::this()) + "/map_files");
    let mut files = own.into_iter().flatten().flatten();
    files.next().is_some_and(|file| file.path().metadata().is_ok())
}

/// Has a recorded process make no memory for its children for a time; zero: it makes some again.
///
/// # Errors
/// If the process is not recorded, or its memory can't be written.
pub fn hold_heirs(pid: Pid, time: Duration) -> Result<(), Error> {
    let ring = RingCopy::of(pid)?;
    let clock = Clock::of(&ring.shared());
    let ticks = (time.as_secs_f64() * clock.ticks_per_sec() as f64) as u64;
    let until = if time.is_zero() { Ticks::ZERO } else { clock.now().saturating_add(ticks) };
    let at = ring.addr() + offset_of!(Control, no_heirs_until) as u64;
    ring.mem()
        .write_all_at(&until.0.to_ne_bytes(), at)
        .map_err(Error::io("cannot write to prof's memory in the process"))
}

/// The nearest ancestor of such a child that had a recording. A process may write anything into its memory.
#[derive(Clone, Debug)]
pub struct Ancestor {
    /// Name of the file.
    pub recording: OsString,
    /// Whether it is the parent.
    pub is_parent: bool,
    /// Times of the fork of the child, and of that by which the ancestor's own child was made.
    pub ticks: [Ticks; 2],
}

/// The open memory of a process that may be such a child. It stays when the process ends.
#[derive(Debug)]
pub struct Held {
    pid: Pid,
    /// The process ID that the process itself sees.
    inner: Pid,
    ring: File,
    /// The mappings of the process when this was made.
    maps: Maps,
    /// The root folder of the process, if it sees other files than this one.
    root: Option<File>,
}

impl Held {
    /// Opens the memory of process `pid`, which may have just been forked; `None` if it has none from its parent.
    ///
    /// # Errors
    /// If its mappings can't be read, or its memory can't be opened.
    pub fn of(pid: Pid) -> Result<Option<Self>, Error> {
        let mut maps = Maps::open(pid).map_err(Error::io("cannot read its mappings"))?;
        // It may move the memory to its place meanwhile.
        let ring = match Self::ring_of(pid, &mut maps)? {
            Some(Err(_)) => Self::ring_of(pid, &mut maps)?,
            other => other,
        };
        let Some(ring) = ring.transpose()? else { return Ok(None) };
        let inner = Status::of(pid).ok().and_then(|s| s.ns_pid()).unwrap_or(pid);
        let root = is_elsewhere(pid).then(|| File::open(folder(pid) + "/root").ok()).flatten();
        Ok(Some(Self { pid, inner, ring, maps, root }))
    }

    /// Opens such memory, if the process has mapped any.
    fn ring_of(pid: Pid, maps: &mut Maps) -> Result<Option<Result<File, Error>>, Error> {
        if !maps.read() {
            return Err(Error::Gone(pid));
        }
        let is_heirs = |m: &&Map| m.offset != 0 && is_ring(&m.name, m.offset);
        Ok(maps.all.iter().find(is_heirs).map(|mapping| open_mapped(pid, mapping)))
    }

    /// Returns whether the process has not taken the memory into use yet, as it has not run since its fork. Of a child that is not
    /// to have it, but has been forked beside that, the same is said.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        let at = HEIR_AT + offset_of!(Control, state) as u64;
        let mut state = [0; 4];
        self.ring.read_exact_at(&mut state, at).is_ok() && u32::from_ne_bytes(state) == state::SETUP
    }

    /// Returns the number of its mappings.
    #[must_use]
    pub fn mappings(&self) -> usize {
        self.maps.all.len()
    }
}

/// Such a child, whose memory is open.
pub struct Heir {
    held: Held,
    memory: Mapped,
    /// The recording of the nearest ancestor that had one.
    recording: PathBuf,
    /// Number of forks between the two.
    forks: u32,
}

/// Shared memory that is unmapped at the end of this value.
struct Mapped(Shared<'static>);

impl Mapped {
    /// Leaves the memory mapped for as long as this process lives.
    fn keep(self) -> Shared<'static> {
        let shared = self.0;
        std::mem::forget(self);
        shared
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let (base, len) = (self.0.base(), self.0.geometry().size());
        // SAFETY: `map_file` mapped this address with that length, and nothing uses it any more.
        unsafe { libc::munmap(base.cast(), len) };
    }
}

impl Heir {
    /// Opens the memory of process `pid`; `None` if it is no such child.
    ///
    /// # Errors
    /// If its memory can't be read or opened.
    pub fn of(pid: Pid) -> Result<Option<Self>, Error> {
        Held::of(pid)?.map_or(Ok(None), Self::new)
    }

    /// Looks into a process's memory; `None` if it is no such child, or has a collector, or the memory is another's: a child by
    /// vfork has its parent's, and one of a thread beside others may have that of a sibling until it runs.
    ///
    /// # Errors
    /// If the memory is not a ring of this version.
    pub fn new(held: Held) -> Result<Option<Self>, Error> {
        let memory = Mapped(map_file(&held.ring)?);
        let c = memory.0.control();
        let forks = c.forks.load(Relaxed);
        if c.main_tid != held.inner.as_u32() {
            return Ok(None);
        }
        let Some(recording) = heir_of(c) else { return Ok(None) };
        Ok(Some(Self { held, memory, recording, forks }))
    }

    /// Returns the process ID.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.held.pid
    }

    /// Returns the memory.
    #[must_use]
    pub fn shared(&self) -> Shared<'_> {
        self.memory.0
    }

    /// Returns the recorded part of the blocks.
    #[must_use]
    pub fn capture(&self) -> Capture {
        capture_of(self.memory.0.control())
    }

    /// Returns the functions that are hooked.
    #[must_use]
    pub fn hooks(&self) -> Vec<Hook> {
        let shared = self.shared();
        let n = (shared.control().functions.load(Acquire) as usize).min(FUNCTIONS);
        let all = (0..n).filter_map(|i| Some((i, shared.function(i)?)));
        all.filter(|(_, f)| Kind::from_u32(f.kind).is_some_and(Kind::is_recorded))
            .map(|(i, f)| {
                let (function, module) = name_and_module(&f.name);
                Hook { index: i as u32, function, module, method: "inline".into() }
            })
            .collect()
    }

    /// Returns the nearest ancestor that had a recording at the fork.
    #[must_use]
    pub fn ancestor(&self) -> Ancestor {
        let shared = self.shared();
        let c = shared.control();
        Ancestor {
            recording: self.recording.file_name().map(OsString::from).unwrap_or_default(),
            is_parent: self.forks == 1,
            ticks: c.forked_at.each_ref().map(|t| Ticks(t.load(Relaxed))),
        }
    }

    /// Returns when the child began to record, and how long ago that was.
    #[must_use]
    pub fn began(&self) -> (Ticks, Duration) {
        let clock = Clock::of(&self.shared());
        let now = clock.now();
        let first = Ticks(self.shared().control().toggles[0].time.load(Acquire));
        if first == Ticks::ZERO || first > now {
            return (now, Duration::ZERO);
        }
        let ago = now.since(first) as f64 / clock.ticks_per_sec() as f64;
        (first, Duration::try_from_secs_f64(ago).unwrap_or_default())
    }

    /// Writes into the memory which process this is, where its recording is, and that all of the memory is to be used: a
    /// collector comes. Until it has come, the memory has a collector that is dead, so that whoever takes prof out of the process
    /// saves what it holds. Returns the memory's descriptor.
    ///
    /// # Errors
    /// If the memory can't be written to.
    pub fn take(&self, path: &Path) -> io::Result<OwnedFd> {
        self.put(STABLE_AT + offset_of!(Stable, pid), &self.pid().as_u32().to_ne_bytes())?;
        self.put_path(path, true)?;
        self.put(offset_of!(Control, forks), &0u32.to_ne_bytes())?;
        // Behind the path: a child without a path of its own may use little memory, whenever this process ends.
        let segments = self.memory.0.control().heir_segments.load(Relaxed);
        self.put(offset_of!(Control, first_segments), &segments.to_ne_bytes())?;
        let namespace = PidNamespace::own().as_raw().to_ne_bytes();
        self.put(STABLE_AT + offset_of!(Stable, collector_ns), &namespace)?;
        // No process has the start time 0 that stands beside this.
        self.put_collector(Pid::this())?;
        self.held.ring.try_clone().map(OwnedFd::from)
    }

    /// Undoes [`Self::take`], as no collector has come.
    ///
    /// # Errors
    /// If the memory can't be written to.
    pub fn give_back(&self) -> io::Result<()> {
        self.put_path(&self.recording, false)?;
        self.put(offset_of!(Control, forks), &self.forks.to_ne_bytes())?;
        self.put_collector(Pid::NONE)
    }

    fn put(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        self.held.ring.write_all_at(bytes, HEIR_AT + at as u64)
    }

    /// Writes the path of a recording. It is the child's own if its length is told.
    fn put_path(&self, path: &Path, is_own: bool) -> io::Result<()> {
        let path = path.as_os_str().as_bytes();
        let most = self.memory.0.control().path.len() - 1;
        let path = &path[..path.len().min(most)];
        self.put(offset_of!(Control, path), &[path, &[0]].concat())?;
        let len = if is_own { path.len() as u32 } else { 0 };
        self.put(STABLE_AT + offset_of!(Stable, path_len), &len.to_ne_bytes())
    }

    fn put_collector(&self, pid: Pid) -> io::Result<()> {
        self.put(STABLE_AT + offset_of!(Stable, collector_pid), &pid.as_u32().to_ne_bytes())
    }

    /// Returns the number of events that the child has recorded.
    #[must_use]
    pub fn events(&self) -> u64 {
        totals(&self.memory.0).events
    }

    /// Creates the collector of the child, which has ended. It appends what the memory holds to `file`, which must end with a
    /// whole chunk. The memory stays mapped for as long as this process lives.
    ///
    /// # Errors
    /// If the file can't be written to.
    pub fn into_collector(self, file: File) -> Result<Collector<'static>, Error> {
        let Held { maps, root, .. } = self.held;
        Collector::of_ended(self.memory.keep(), file, maps, root)
    }
}
