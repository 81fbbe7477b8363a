//! A child that its parent's hook has given shared memory of its own: it records, and has no collector yet.

use crate::peek::name_and_module;
use crate::ring_copy::RingCopy;
use crate::{Clock, Error, Peek, open_ring};
use prof_os::Pid;
use prof_os::pid_namespace::PidNamespace;
use prof_os::process::folder;
use prof_trace::records::Hook;
use prof_trace::shared::{Control, FUNCTIONS, HEIR_AT, Kind, STABLE_AT, Shared, Stable};
use prof_trace::ticks::Ticks;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

/// Returns whether this process may open the memory that others have mapped, as [`open_ring`] does.
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

/// Such a child, whose memory is open.
pub struct Heir {
    /// State of its recording.
    pub peek: Peek,
    copy: RingCopy,
    ring: File,
}

impl Heir {
    /// Opens the memory of process `pid`; `None` if it is no such child.
    ///
    /// # Errors
    /// If its memory can't be read or opened.
    pub fn of(pid: Pid) -> Result<Option<Self>, Error> {
        let Some(peek) = Peek::of(pid)? else { return Ok(None) };
        if peek.heir_of.is_none() {
            return Ok(None);
        }
        let ring = File::from(open_ring(pid)?);
        let mut copy = RingCopy::of(pid)?;
        copy.copy_control().map_err(Error::io("cannot read the ring"))?;
        Ok(Some(Self { peek, copy, ring }))
    }

    /// Returns the memory as it was when it was opened.
    #[must_use]
    pub fn shared(&self) -> Shared<'_> {
        self.copy.shared()
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
        let name = self.peek.heir_of.as_deref().and_then(Path::file_name);
        Ancestor {
            recording: name.map(OsString::from).unwrap_or_default(),
            is_parent: c.forks.load(Relaxed) == 1,
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
    pub fn take(self, path: &Path) -> io::Result<OwnedFd> {
        let c = self.copy.shared().control();
        let path = path.as_os_str().as_bytes();
        let path = &path[..path.len().min(c.path.len() - 1)];
        let put = |at: usize, bytes: &[u8]| self.ring.write_all_at(bytes, HEIR_AT + at as u64);
        put(STABLE_AT + offset_of!(Stable, pid), &self.peek.pid.as_u32().to_ne_bytes())?;
        put(offset_of!(Control, path), &[path, &[0]].concat())?;
        put(STABLE_AT + offset_of!(Stable, path_len), &(path.len() as u32).to_ne_bytes())?;
        put(offset_of!(Control, forks), &0u32.to_ne_bytes())?;
        let segments = c.heir_segments.load(Relaxed).to_ne_bytes();
        put(offset_of!(Control, first_segments), &segments)?;
        let namespace = PidNamespace::own().as_raw().to_ne_bytes();
        put(STABLE_AT + offset_of!(Stable, collector_ns), &namespace)?;
        // No process has the start time 0 that stands beside this.
        put(STABLE_AT + offset_of!(Stable, collector_pid), &Pid::this().as_u32().to_ne_bytes())?;
        Ok(self.ring.into())
    }
}
