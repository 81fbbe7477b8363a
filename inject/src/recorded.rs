//! A process that is being recorded: everything that is known of it stands in its own memory.

use crate::preflight::may_trace;
use crate::proc::{self, Map};
use crate::{Refusal, RemoteAddr, RemoteMemory, Result, setup};
use prof_trace::shared::{
    Control, Function, Geometry, LAYOUT, MAGIC, SLOTS, Shared, Slot, TOGGLES, Toggle, set_bits,
};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

/// How the ring's mapping reads in maps.
const RING_NAME: &[u8] = b"/memfd:prof-ring";

/// A process with prof's memory in it.
#[derive(Debug)]
pub struct Recorded {
    /// Its pid.
    pub pid: i32,
    /// Where the ring is in it.
    pub ring: RemoteAddr,
    /// How much of it is mapped there, as the kernel has it; the target may write into the control page
    /// what it likes.
    pub ring_len: u64,
    /// The control page as it was when this was made.
    pub control: Box<Control>,
    pub(crate) mem: RemoteMemory,
}

/// Whether maps have a ring in them.
#[must_use]
pub fn ring_in(maps: &[Map]) -> Option<&Map> {
    maps.iter().find(|m| m.shared && m.name.starts_with(RING_NAME))
}

/// Bytes of the mappings that follow each other from this one on, and are of the same file.
fn ring_len(maps: &[Map], first: &Map) -> u64 {
    let mut end = first.start;
    for m in maps.iter().filter(|m| m.start >= first.start) {
        if m.start != end || m.inode != first.inode || !m.name.starts_with(RING_NAME) {
            break;
        }
        end = m.end;
    }
    end.0 - first.start.0
}

/// All recorded processes that may be looked at.
#[must_use]
pub fn all() -> Vec<i32> {
    let Ok(dir) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = dir.flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let me = std::process::id() as i32;
    let recorded = |pid: &i32| {
        let Ok(maps) = proc::maps(*pid) else { return false };
        // The collector has it mapped, too, but no hook.
        ring_in(&maps).is_some() && Recorded::open(*pid).is_ok_and(|r| r.control.pid == *pid as u32)
    };
    pids.filter(|p| *p != me).filter(recorded).collect()
}

impl Recorded {
    /// Opens it.
    ///
    /// # Errors
    /// If it is not recorded, or may not be looked at.
    pub fn open(pid: i32) -> Result<Self> {
        may_trace(pid)?;
        let maps = proc::maps(pid)?;
        let Some(m) = ring_in(&maps) else { return Err(Refusal::NotRecorded(pid).into()) };
        let mem = RemoteMemory::open(pid)?;
        let control: Box<Control> = match read_struct(&mem, m.start) {
            // A call that a killed prof has left to a thread may just have unmapped it.
            Err(_) if ring_in(&proc::maps(pid)?).is_none() => {
                return Err(Refusal::NotRecorded(pid).into());
            }
            read => read?,
        };
        // The collector maps the same memory, and so may others whom the target has given it.
        if control.magic != MAGIC || control.ring_addr != m.start.0 {
            return Err(Refusal::NotRecorded(pid).into());
        }
        if control.layout != LAYOUT {
            return Err(Refusal::OtherVersion { pid, layout: control.layout }.into());
        }
        Ok(Self { pid, ring: m.start, ring_len: ring_len(&maps, m), control, mem })
    }

    /// The recording's path.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let n = (self.control.path_len as usize).min(self.control.path.len());
        let bytes = self.control.path[..n].iter().map(|b| b.load(Relaxed)).collect();
        PathBuf::from(std::ffi::OsString::from_vec(bytes))
    }

    /// Whether its collector lives.
    #[must_use]
    pub fn collector_lives(&self) -> bool {
        let pid = self.control.collector_pid.load(Relaxed) as i32;
        pid != 0 && proc::start_time(pid) == Some(self.control.collector_start.load(Relaxed))
    }

    /// Whether it is recording now, not paused.
    ///
    /// # Errors
    /// If its memory can't be read.
    pub fn is_on(&self) -> Result<bool> {
        let mut b = [0; 4];
        self.mem.read(RemoteAddr(self.control.flag_addr), &mut b)?;
        Ok(u32::from_ne_bytes(b) != 0)
    }

    /// Ticks now, on the recording's clock.
    #[must_use]
    pub fn now(&self) -> u64 {
        setup::now(self.control.clock)
    }

    /// The hooked functions.
    #[must_use]
    pub fn functions(&self) -> Vec<Box<Function>> {
        let n = self.control.functions.load(Relaxed).min(prof_trace::shared::FUNCTIONS as u32);
        let at = |i: u32| self.ring.plus(Shared::function_offset(i as usize) as u64);
        (0..n).filter_map(|i| read_struct(&self.mem, at(i)).ok()).collect()
    }

    /// The thread slots in use.
    #[must_use]
    pub fn slots(&self) -> Vec<Box<Slot>> {
        let used = self.ring.plus(core::mem::offset_of!(Control, slots_used) as u64);
        let Ok(words) = read_struct::<[u64; SLOTS / 64]>(&self.mem, used) else {
            return Vec::new();
        };
        let at = |i: usize| self.ring.plus(Shared::slot_offset(i) as u64);
        set_bits(words.iter().copied()).filter_map(|i| read_struct(&self.mem, at(i)).ok()).collect()
    }

    /// Switches recording, as the signal does; `false` if it was so already.
    ///
    /// # Errors
    /// If its memory can't be written.
    pub fn switch(&self, on: bool) -> Result<bool> {
        if self.is_on()? == on {
            return Ok(false);
        }
        let c = self.ring;
        let count_at = c.plus(core::mem::offset_of!(Control, toggle_count) as u64);
        let n = self.mem.word(count_at)?;
        let entry =
            core::mem::offset_of!(Control, toggles) + (n as usize % TOGGLES) * size_of::<Toggle>();
        let at = c.plus(entry as u64);
        self.mem.write(at.plus(8), &u64::from(on).to_ne_bytes())?;
        self.mem.write(at, &self.now().to_ne_bytes())?;
        let unseen_at = c.plus(core::mem::offset_of!(Control, unseen) as u64);
        let unseen = self.mem.word(unseen_at)?.wrapping_add(1);
        self.mem.write(unseen_at, &unseen.to_ne_bytes())?;
        self.mem.write(count_at, &n.wrapping_add(1).to_ne_bytes())?;
        if on {
            let orphaned = core::mem::offset_of!(Control, orphaned);
            self.mem.write(c.plus(orphaned as u64), &0u32.to_ne_bytes())?;
        }
        self.mem.write(RemoteAddr(self.control.flag_addr), &u32::from(on).to_ne_bytes())?;
        Ok(true)
    }

    /// The number of segments, if it can be one.
    #[must_use]
    pub fn geometry(&self) -> Option<Geometry> {
        Geometry::from_segments(self.control.segments)
    }

    /// The memory of the process.
    #[must_use]
    pub fn memory(&self) -> &RemoteMemory {
        &self.mem
    }
}

/// Turns recording off; `false` if it was off.
///
/// # Errors
/// If the process is not recorded, or its memory can't be written.
pub fn pause(pid: i32) -> Result<bool> {
    Recorded::open(pid)?.switch(false)
}

/// Turns recording on; `false` if it was on.
///
/// # Errors
/// If the process is not recorded, or its memory can't be written.
pub fn resume(pid: i32) -> Result<bool> {
    Recorded::open(pid)?.switch(true)
}

/// Reads a struct of integers and atomics.
fn read_struct<T>(mem: &RemoteMemory, at: RemoteAddr) -> Result<Box<T>> {
    let mut b = Box::<T>::new_uninit();
    // SAFETY: the bytes of the box; only called for structs of integers, for which any will do.
    unsafe {
        std::ptr::write_bytes(b.as_mut_ptr().cast::<u8>(), 0, size_of::<T>());
        let bytes = std::slice::from_raw_parts_mut(b.as_mut_ptr().cast::<u8>(), size_of::<T>());
        mem.read(at, bytes)?;
        Ok(b.assume_init())
    }
}
