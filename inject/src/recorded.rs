//! A process that is being recorded, as its own memory describes it.

use crate::clock;
use crate::hooked::functions::{SNMALLOC, SNMALLOC_REALLOC};
use crate::lock::lock;
use crate::permission::may_trace;
use crate::process::foreign;
use crate::process::rings::{ring_in, ring_len, with_ring};
use crate::{Refusal, RemoteAddr, RemoteMemory, Result};
use prof_os::pid_namespace::{self, PidNamespace, Place};
use prof_os::{Pid, maps, process};
use prof_trace::foreign::Foreign;
use prof_trace::protocol::remote::{HookedFunction, Page, ThreadSlot, header};
use prof_trace::protocol::switch;
use prof_trace::shared::{
    Control, Geometry, Header, Kind, LAYOUT, MAGIC, MARK_NAME, SILENCE_S, STABLE_AT, Stable,
    scan_answer, state,
};
use prof_trace::ticks::Ticks;
use std::fs::File;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// A process that has prof's memory.
#[derive(Debug)]
pub struct Recorded {
    /// The process's pid.
    pub pid: Pid,
    /// Address of the ring in the process.
    pub ring: RemoteAddr,
    /// Number of bytes that are mapped there, by the kernel's account: the target may write anything into the control
    /// page.
    pub ring_len: u64,
    /// The part of the control page that every build finds, read when this value was made.
    pub control: Box<Header>,
    pub(crate) mem: RemoteMemory,
}

/// Returns the processes that have the ring of a recorded process that has ended or runs another program.
#[must_use]
pub fn left_by(pid: Pid) -> Vec<Pid> {
    let holds = |p: &Pid| Recorded::open(*p).is_ok_and(|r| r.control.pid == pid.as_u32());
    with_ring().filter(|p| *p != pid).filter(holds).collect()
}

impl Recorded {
    /// Opens a recorded process.
    ///
    /// # Errors
    /// If it is not recorded, or prof may not look at it.
    pub fn open(pid: Pid) -> Result<Self> {
        may_trace(pid)?;
        let maps = maps::of(pid)?;
        let Some(m) = ring_in(&maps) else { return Err(Refusal::NotRecorded(pid).into()) };
        let mem = RemoteMemory::open(pid)?;
        let control: Box<Header> = match header(&mem, m.start.0) {
            // A thread may just have unmapped the ring, by a call that a killed prof has left behind.
            Err(_) if ring_in(&maps::of(pid)?).is_none() => {
                return Err(Refusal::NotRecorded(pid).into());
            }
            read => read?,
        };
        if control.magic != MAGIC {
            return Err(Refusal::NotRecorded(pid).into());
        }
        foreign::check(pid, m, &control, |at, len| mem.read_some(m.start.plus(at), len))?;
        // The collector maps the same memory, and so may others to whom the target has given it.
        if control.ring_addr.load(Relaxed) != m.start.0 {
            return Err(Refusal::NotRecorded(pid).into());
        }
        Ok(Self { pid, ring: m.start, ring_len: ring_len(&maps, m), control, mem })
    }

    /// Returns the build of prof that has attached, if its layout differs from this one's.
    #[must_use]
    pub fn foreign(&self) -> Option<Foreign> {
        Foreign::of(&self.control, |at, len| self.mem.read_some(self.ring.plus(at), len))
    }

    /// Returns the address of a field in the control page's stable part, by its offset in [`Stable`].
    pub(crate) fn stable_at(&self, offset: usize) -> RemoteAddr {
        self.ring.plus((STABLE_AT + offset) as u64)
    }

    /// Returns the recording's path.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(std::ffi::OsString::from_vec(self.page().path()))
    }

    /// Returns whether the process's collector lives. If the collector's pid namespace is out of sight, its heartbeat tells.
    #[must_use]
    pub fn collector_lives(&self) -> bool {
        match self.collector() {
            Place::Here(pid) => {
                process::is_at_work(pid, self.control.collector_start.load(Relaxed))
            }
            Place::Gone => false,
            Place::OutOfSight => {
                let begun = self.control.collector_pid.load(Relaxed) != 0;
                begun && self.heartbeat().is_ok_and(|beat| !self.is_silent(beat))
            }
        }
    }

    /// Finds the process that is the collector, or was.
    pub(crate) fn collector(&self) -> Place {
        let c = &self.control;
        let id = Pid::from_u32(c.collector_pid.load(Relaxed));
        let space = PidNamespace::from_raw(c.collector_ns.load(Relaxed));
        pid_namespace::find(id, c.collector_start.load(Relaxed), space, self.pid)
    }

    /// Returns whether a collector whose last sign of life this is gives none any more.
    fn is_silent(&self, heartbeat: u64) -> bool {
        let late = self.control.ticks_per_sec.load(Relaxed).saturating_mul(SILENCE_S);
        self.now().wrapping_since(Ticks(heartbeat)).cast_signed() > late.cast_signed()
    }

    /// Returns whether an attach was completed, and its collector is at work.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.control.state.load(Relaxed) == state::ATTACHED && self.collector_lives()
    }

    /// Returns whether the process is recording rather than paused.
    ///
    /// # Errors
    /// If its memory can't be read.
    pub fn is_on(&self) -> Result<bool> {
        let mut b = [0; 4];
        self.mem.read(RemoteAddr(self.control.flag_addr.load(Relaxed)), &mut b)?;
        Ok(u32::from_ne_bytes(b) != 0)
    }

    /// Returns the present time in ticks of the recording's clock.
    #[must_use]
    pub fn now(&self) -> Ticks {
        clock::now(self.control.clock)
    }

    /// Returns the ticks of the collector's last sign of life.
    ///
    /// # Errors
    /// If the process's memory can't be read.
    pub fn heartbeat(&self) -> Result<u64> {
        let mut b = [0; 8];
        self.mem.read(self.stable_at(offset_of!(Stable, heartbeat)), &mut b)?;
        Ok(u64::from_ne_bytes(b))
    }

    /// Returns the hooked functions.
    #[must_use]
    pub fn functions(&self) -> Vec<Patched> {
        self.page().functions().map(Patched::of).collect()
    }

    /// Returns the thread slots in use.
    #[must_use]
    pub fn slots(&self) -> Vec<ThreadSlot> {
        self.page().slots().collect()
    }

    /// Returns access to the parts of the control page that every build describes alike.
    pub(crate) fn page(&self) -> Page<'_, RemoteMemory> {
        Page::new(&self.mem, self.ring.0, &self.control)
    }

    /// Returns the name of a function that the user has named as one of an allocator, if there is one.
    #[must_use]
    pub fn user_named(&self) -> Option<String> {
        let is_users = |f: &HookedFunction| {
            let name = f.text.split(|c| *c == 0).next().unwrap_or_default();
            let name = String::from_utf8_lossy(name).into_owned();
            let kind = Kind::from_u32(f.kind).filter(|k| k.is_of_the_user());
            // prof hooks this function of snmalloc's in the same way by itself.
            let is_own = name.strip_prefix(SNMALLOC) == Some(SNMALLOC_REALLOC);
            kind.filter(|_| !is_own).map(|_| name)
        };
        self.page().functions().find_map(|f| is_users(&f))
    }

    /// Asks the collector to read the process's memory while events are still recorded, because later the live blocks
    /// are unknown. Waits for it for `most` at the longest. Does nothing if no collector of this build is running.
    pub fn have_memory_looked_at(&self, most: Duration) {
        let at = |field: usize| self.ring.plus(field as u64);
        let (asked, done) =
            (at(offset_of!(Control, looks_asked)), at(offset_of!(Control, looks_done)));
        let silent = self.is_silent(self.control.heartbeat.load(Relaxed));
        if self.control.layout != LAYOUT || silent || !self.collector_lives() {
            return;
        }
        let ask = || -> Result<()> {
            let number = self.mem.word(done)?.wrapping_add(1);
            self.mem.write(asked, &number.to_ne_bytes())?;
            let deadline = Instant::now() + most;
            while self.mem.word(done)? != number && Instant::now() < deadline {
                if !self.collector_lives() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        };
        if let Err(e) = ask() {
            log::debug!("no last look at the memory of process {}: {e}", self.pid);
        }
    }

    /// See [`mark`].
    fn mark(&self, name: &str) -> Result<Option<u64>> {
        if let Some(by) = self.foreign() {
            return Err(Refusal::OtherVersion { pid: self.pid, by: by.describe() }.into());
        }
        let at = |field: usize| self.ring.plus(field as u64);
        let done = at(offset_of!(Control, marks_done));
        let mut bytes = [0; MARK_NAME];
        bytes.iter_mut().zip(name.as_bytes()).for_each(|(to, from)| *to = *from);
        self.mem.write(at(offset_of!(Control, mark_name)), &bytes)?;
        let asked = at(offset_of!(Control, marks_asked));
        let number = self.ask(asked, done, Instant::now() + MARK_TIME)?;
        let ticks = self.mem.word(at(offset_of!(Control, mark_ticks)))?;
        Ok((ticks != 0).then_some(number))
    }

    /// Raises a request's counter, and waits until the collector has answered. Returns the number of the request.
    fn ask(&self, asked: RemoteAddr, done: RemoteAddr, until: Instant) -> Result<u64> {
        let number = self.mem.word(done)?.wrapping_add(1);
        self.mem.write(asked, &number.to_ne_bytes())?;
        while self.mem.word(done)? != number {
            if Instant::now() > until || !self.collector_lives() {
                return Err(Refusal::NoAnswer(self.pid).into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(number)
    }

    /// See [`add_scan`].
    fn add_scan(&self, file: &File, until: Instant) -> Result<ScanAnswer> {
        if let Some(by) = self.foreign() {
            return Err(Refusal::OtherVersion { pid: self.pid, by: by.describe() }.into());
        }
        let at = |field: usize| self.ring.plus(field as u64);
        let from = u64::from(Pid::this().as_u32()) << 32 | file.as_raw_fd() as u64;
        self.mem.write(at(offset_of!(Control, scan_from)), &from.to_ne_bytes())?;
        let asked = at(offset_of!(Control, scans_asked));
        self.ask(asked, at(offset_of!(Control, scans_done)), until)?;
        Ok(match self.mem.word(at(offset_of!(Control, scan_answer)))? {
            scan_answer::WRITTEN => ScanAnswer::Written,
            scan_answer::NO_ROOM => ScanAnswer::NoRoom,
            _ => ScanAnswer::Unreadable,
        })
    }

    /// Turns recording on or off, as the toggle signal does. Returns `false` if it was so already.
    ///
    /// # Errors
    /// If the process's memory can't be written.
    pub fn switch(&self, on: bool) -> Result<bool> {
        if self.is_on()? == on {
            return Ok(false);
        }
        let c = &self.control;
        switch(&self.mem, self.ring.0, c, on, self.now())?;
        Ok(true)
    }

    /// Returns the ring's geometry, if the control page's number of segments is valid.
    #[must_use]
    pub fn geometry(&self) -> Option<Geometry> {
        Geometry::from_segments(self.control.segments)
    }

    /// Returns access to the process's memory.
    #[must_use]
    pub fn memory(&self) -> &RemoteMemory {
        &self.mem
    }
}

/// A hooked function, as far as all builds describe it alike.
#[derive(Clone, Debug)]
pub struct Patched {
    /// Address of the word that tells whether the function is patched.
    pub patched_at: RemoteAddr,
    /// Whether the patch is in the code.
    pub is_patched: bool,
    /// Address of the patched bytes.
    pub patch_addr: RemoteAddr,
    /// The bytes before the patch.
    pub old_bytes: Vec<u8>,
    /// The bytes of the patch, which are as many.
    pub new_bytes: Vec<u8>,
    /// The function's name.
    pub name: String,
}

impl Patched {
    pub(crate) fn of(f: HookedFunction) -> Self {
        let name = f.text.split(|b| *b == 0).next().unwrap_or_default();
        Self {
            patched_at: RemoteAddr(f.patched_at),
            is_patched: f.is_patched,
            patch_addr: RemoteAddr(f.patch_addr),
            name: String::from_utf8_lossy(name).into_owned(),
            old_bytes: f.old_bytes,
            new_bytes: f.new_bytes,
        }
    }
}

/// Turns recording off. Returns `false` if it was off.
///
/// # Errors
/// If the process is not recorded, or its memory can't be written.
pub fn pause(pid: Pid) -> Result<bool> {
    Recorded::open(pid)?.switch(false)
}

/// Time that the collector may take for a mark.
const MARK_TIME: Duration = Duration::from_secs(5);

/// Has the collector write a mark into the recording: the present moment, by a name. Returns the mark's number, from 1
/// on; `None`: the recording has as many marks as it may have.
///
/// # Errors
/// If the process is not recorded, another prof is at work on it, its memory can't be written, or no collector of this
/// build answers.
pub fn mark(pid: Pid, name: &str) -> Result<Option<u64>> {
    let _lock = lock(pid)?;
    Recorded::open(pid)?.mark(name)
}

/// Answer of a collector that was asked to write a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanAnswer {
    /// The scan is in the recording.
    Written,
    /// The collector could not read the file: it runs in another namespace, or as another user or build.
    Unreadable,
    /// The recording may not become as long, or could not be written to.
    NoRoom,
}

/// Has the collector of a process append a scan to the recording, and waits for that. The file has the scan as chunks of a
/// recording from its start on.
///
/// # Errors
/// If the process is not recorded, another prof is at work on it, its memory can't be written, or no collector of this
/// build answers by `until`.
pub fn add_scan(pid: Pid, file: &File, until: Instant) -> Result<ScanAnswer> {
    let _lock = lock(pid)?;
    Recorded::open(pid)?.add_scan(file, until)
}

/// Turns recording on. Returns `false` if it was on.
///
/// # Errors
/// If the process is not recorded, or its memory can't be written.
pub fn resume(pid: Pid) -> Result<bool> {
    Recorded::open(pid)?.switch(true)
}
