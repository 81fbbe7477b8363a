//! A process that is being recorded, as its own memory describes it.

use crate::clock;
use crate::permission::may_trace;
use crate::process::foreign;
use crate::process::rings::{ring_in, ring_len, with_ring};
use crate::{Refusal, RemoteAddr, RemoteMemory, Result};
use prof_os::process::living_thread;
use prof_os::{maps, process};
use prof_trace::foreign::Foreign;
use prof_trace::protocol::switch;
use prof_trace::shared::{Control, Geometry, Header, LAYOUT, MAGIC, STABLE_AT, Slot, Table, state};
use std::mem::offset_of;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// A collector that has not looked for longer than this, in seconds, is not waited for.
const HEARTBEAT_S: u64 = 3;

/// A process that has prof's memory.
#[derive(Debug)]
pub struct Recorded {
    /// The process's pid.
    pub pid: i32,
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
pub fn left_by(pid: i32) -> Vec<i32> {
    let holds = |p: &i32| Recorded::open(*p).is_ok_and(|r| r.control.pid == pid as u32);
    with_ring().filter(|p| *p != pid).filter(holds).collect()
}

impl Recorded {
    /// Opens a recorded process.
    ///
    /// # Errors
    /// If it is not recorded, or prof may not look at it.
    pub fn open(pid: i32) -> Result<Self> {
        may_trace(pid)?;
        let maps = maps::of(pid)?;
        let Some(m) = ring_in(&maps) else { return Err(Refusal::NotRecorded(pid).into()) };
        let mem = RemoteMemory::open(pid)?;
        let control: Box<Header> = match read_struct(&mem, m.start) {
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

    /// Returns the address of a field in the control page's stable part, by its offset in [`Stable`](prof_trace::shared::Stable).
    pub(crate) fn stable_at(&self, offset: usize) -> RemoteAddr {
        self.ring.plus((STABLE_AT + offset) as u64)
    }

    /// Returns the recording's path.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        const MOST: u32 = 4096;
        let len = self.control.path_len.min(MOST) as usize;
        let bytes = self.mem.read_some(self.ring.plus(self.control.path_at), len);
        PathBuf::from(std::ffi::OsString::from_vec(bytes))
    }

    /// Returns whether the process's collector lives.
    #[must_use]
    pub fn collector_lives(&self) -> bool {
        let pid = self.control.collector_pid.load(Relaxed) as i32;
        // One that was killed is in /proc until its parent has waited for it.
        pid != 0
            && process::start_time(pid) == Some(self.control.collector_start.load(Relaxed))
            && living_thread(pid).is_some()
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
    pub fn now(&self) -> u64 {
        clock::now(self.control.clock)
    }

    /// Returns the hooked functions.
    #[must_use]
    pub fn functions(&self) -> Vec<Patched> {
        let c = &self.control;
        let table = bounded(c.function_table);
        let n = c.functions.load(Relaxed).min(table.count);
        (0..n).filter_map(|i| Patched::read(self, self.entry(table, i)?)).collect()
    }

    /// Returns the thread slots in use.
    #[must_use]
    pub fn slots(&self) -> Vec<SlotNote> {
        let c = &self.control;
        let (table, used) = (bounded(c.slot_table), bounded(c.slots_used_table));
        let words = self.mem.read_some(self.ring.plus(used.at), used.count as usize * 8);
        let words = words.as_chunks::<8>().0.iter().map(|w| u64::from_ne_bytes(*w));
        let slots = prof_trace::shared::set_bits(words).filter(|i| *i < table.count as usize);
        slots.filter_map(|i| SlotNote::read(self, self.entry(table, i as u32)?)).collect()
    }

    fn entry(&self, table: Table, index: u32) -> Option<RemoteAddr> {
        let at = table.at.checked_add(u64::from(table.stride) * u64::from(index))?;
        Some(RemoteAddr(self.ring.0.checked_add(at)?))
    }

    /// Has the collector look at the process's memory while events are still recorded, and waits for that, but no longer
    /// than `most`: afterwards nobody knows which blocks are live. Does nothing if no collector of this build is at work.
    pub fn have_memory_looked_at(&self, most: Duration) {
        let at = |field: usize| self.ring.plus(field as u64);
        let (asked, done) =
            (at(offset_of!(Control, looks_asked)), at(offset_of!(Control, looks_done)));
        let beat = self.control.heartbeat.load(Relaxed);
        let late = self.control.ticks_per_sec.load(Relaxed).saturating_mul(HEARTBEAT_S);
        let silent = self.now().wrapping_sub(beat).cast_signed() > late.cast_signed();
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

/// Bounds the count of a table, since the target may have written any into the control page.
fn bounded(t: Table) -> Table {
    const MOST: u32 = 1 << 20;
    Table { count: t.count.min(MOST), ..t }
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
    pub(crate) fn read(r: &Recorded, at: RemoteAddr) -> Option<Self> {
        const MOST: usize = 64;
        let f = &r.control.function_fields;
        let field = |offset: u32| RemoteAddr(at.0.wrapping_add(u64::from(offset)));
        let number = |offset: u32| {
            let mut b = [0; 4];
            r.mem.read(field(offset), &mut b).ok().map(|()| u32::from_ne_bytes(b))
        };
        let len = (number(f.patch_len)?.min(f.bytes) as usize).min(MOST);
        let mut name = r.mem.read_some(field(f.name), (f.name_len as usize).min(1024));
        name.truncate(name.iter().position(|b| *b == 0).unwrap_or(name.len()));
        Some(Self {
            patched_at: field(f.patched),
            is_patched: number(f.patched)? != 0,
            patch_addr: RemoteAddr(r.mem.word(field(f.patch_addr)).ok()?),
            old_bytes: r.mem.read_some(field(f.old_bytes), len),
            new_bytes: r.mem.read_some(field(f.new_bytes), len),
            name: String::from_utf8_lossy(&name).into_owned(),
        })
        .filter(|p| p.old_bytes.len() == len && p.new_bytes.len() == len)
    }
}

/// The part of a thread's slot that tells where the thread is.
#[derive(Clone, Copy, Debug)]
pub struct SlotNote {
    /// The thread pointer.
    pub tp: u64,
    /// Whether a thread has the slot.
    pub is_live: bool,
    /// The stack pointers with which the thread entered the hook; 0 if it is not in the hook.
    pub inside: [u64; 2],
    /// [`Slot::abandoned`]; 0 if another build has attached.
    pub abandoned: u64,
}

impl SlotNote {
    fn read(r: &Recorded, at: RemoteAddr) -> Option<Self> {
        const MOST: usize = 4096;
        let f = &r.control.slot_fields;
        let abandoned = offset_of!(Slot, abandoned) as u32;
        let fields = [f.tp, f.state, f.busy_sp, f.inner_sp, abandoned];
        let end = fields.into_iter().max()? as usize + 8;
        let bytes = r.mem.read_some(at, end.min(MOST));
        let word = |offset: u32| {
            let bytes = bytes.get(offset as usize..)?.first_chunk::<8>()?;
            Some(u64::from_ne_bytes(*bytes))
        };
        let state = bytes.get(f.state as usize..)?.first_chunk::<4>()?;
        let is_live = u32::from_ne_bytes(*state) & f.mask == f.live;
        let own = r.control.layout == LAYOUT;
        let abandoned = if own { word(abandoned)? } else { 0 };
        let inside = [word(f.busy_sp)?, word(f.inner_sp)?];
        Some(Self { tp: word(f.tp)?, is_live, inside, abandoned })
    }
}

/// Turns recording off. Returns `false` if it was off.
///
/// # Errors
/// If the process is not recorded, or its memory can't be written.
pub fn pause(pid: i32) -> Result<bool> {
    Recorded::open(pid)?.switch(false)
}

/// Turns recording on. Returns `false` if it was on.
///
/// # Errors
/// If the process is not recorded, or its memory can't be written.
pub fn resume(pid: i32) -> Result<bool> {
    Recorded::open(pid)?.switch(true)
}

/// Reads a struct that consists of integers and atomics.
pub(crate) fn read_struct<T>(mem: &RemoteMemory, at: RemoteAddr) -> Result<Box<T>> {
    let mut b = Box::<T>::new_uninit();
    // SAFETY: the slice covers the box, which has been zeroed. Any bytes are valid for structs of integers, and this
    // is only called for these.
    unsafe {
        std::ptr::write_bytes(b.as_mut_ptr().cast::<u8>(), 0, size_of::<T>());
        let bytes = std::slice::from_raw_parts_mut(b.as_mut_ptr().cast::<u8>(), size_of::<T>());
        mem.read(at, bytes)?;
        Ok(b.assume_init())
    }
}
