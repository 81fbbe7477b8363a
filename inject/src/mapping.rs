//! prof's mappings in the target, made and taken back by remote calls: one in each stop, so that no
//! stop is long.
//!
//! prof may be killed while the target makes such a call. So where a mapping will be stands in the
//! control page before it is made, and until it has been taken back; whoever takes over looks in the
//! target's maps whether it is there.

use crate::image::Image;
use crate::install::with_caller;
use crate::proc::{self, Map};
use crate::remote::{Caller, Gadgets};
use crate::threads::StopTimes;
use crate::{Error, RemoteAddr, RemoteMemory, Result};
use nix::errno::Errno;
use prof_arch::native::syscall::nr;
use prof_trace::shared::{Area, MEMFD_NAME, STABLE_AT, Shared, Stable, state};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Protection and mapping bits of the kernel's mmap (those for mapping are others on MIPS).
pub(crate) mod bits {
    #![allow(missing_docs)]
    pub const READ: u64 = 1;
    pub const WRITE: u64 = 2;
    pub const EXEC: u64 = 4;
    pub const SHARED: u64 = libc::MAP_SHARED as u64;
    pub const ANON: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    pub const NORESERVE: u64 = libc::MAP_NORESERVE as u64;
    pub const FIXED_NOREPLACE: u64 = libc::MAP_FIXED_NOREPLACE as u64;
    pub const NO_FD: u64 = u64::MAX;
}

/// What was mapped, to be taken back if something fails.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    pub ring: Area,
    pub flag: Area,
    pub hook: Area,
    pub stubs: Vec<Area>,
}

/// The most of the ring that is unmapped in one stop.
const PART: u64 = 64 << 20;

/// Where remote calls are made.
pub(crate) struct Site<'a> {
    pub pid: i32,
    pub mem: &'a RemoteMemory,
    pub gadgets: Gadgets,
    pub timeout: Duration,
    pub stops: &'a mut StopTimes,
}

impl Site<'_> {
    fn stop<T>(&mut self, f: impl FnOnce(&mut Caller<'_>) -> Result<T>) -> Result<T> {
        with_caller(self.pid, self.mem, self.gadgets, self.timeout, self.stops, f)
    }

    /// Maps everything, the stubs where `place` says, the ring at `ring_at` if the kernel agrees (0:
    /// anywhere), and closes the target's descriptor of the ring.
    ///
    /// # Errors
    /// If something can't be mapped; `m` then has what could.
    pub fn map_all(
        &mut self,
        shared: &Shared,
        fd: u64,
        image: &Image,
        ring_at: u64,
        place: impl FnOnce() -> Result<Vec<Area>>,
        m: &mut Mapped,
    ) -> Result<()> {
        use bits::{EXEC, NORESERVE, READ, SHARED, WRITE};
        let len = shared.geometry().size() as u64;
        let mapped = self.map_ring(fd, ring_at, len, READ | WRITE, SHARED | NORESERVE);
        let closed = self.stop(|c| c.call("close", nr::CLOSE, [fd, 0, 0, 0, 0, 0]));
        m.ring = mapped?;
        // SAFETY: the target has it mapped, but nothing there knows of it yet.
        let control = unsafe { shared.control_mut() };
        control.state.store(state::SETUP, Relaxed);
        (control.ring_addr, control.ring_len) = (m.ring.addr, m.ring.len);
        control.pid = self.pid as u32;
        let exe = std::env::current_exe().unwrap_or_default();
        let exe = exe.as_os_str().as_encoded_bytes();
        control.begin(shared.geometry().segments(), env!("CARGO_PKG_VERSION"), exe);
        closed?;
        self.stop(|c| {
            // A thread touches a few pages of its state; a kernel without huge pages refuses this.
            let _ = advise(c, m.ring, libc::MADV_NOHUGEPAGE);
            Ok(())
        })?;
        self.stop(|c| advise(c, m.ring, libc::MADV_DONTFORK))?;
        // Only now, since the kernel has chosen its place for the ring.
        let stubs = place()?;
        m.stubs.resize(stubs.len(), Area::default());
        for ((a, to), done) in stubs.iter().zip(&mut control.stubs).zip(&mut m.stubs) {
            self.map_at(*a, READ | EXEC, |a| (*to, *done) = (a, a))?;
        }
        let (hook_len, page) = (image.len() as u64, proc::page_size());
        let all = hook_len + 2 * page;
        let Some(at) = remote_place(&proc::maps(self.pid)?, all) else {
            return Err(Error::Remote { what: "mmap", pid: self.pid, errno: Errno::ENOMEM });
        };
        let flag = Area { addr: at + hook_len + page, len: page };
        self.map_at(flag, READ | WRITE, |a| {
            (control.flag_addr, control.flag_len) = (a.addr, a.len);
            m.flag = a;
        })?;
        self.stop(|c| advise(c, m.flag, libc::MADV_WIPEONFORK))?;
        // Executable first, and less afterwards: where memory can't become executable (PR_SET_MDWE), it
        // can still be made so.
        self.map_at(Area { addr: at, len: hook_len }, READ | EXEC, |a| {
            (control.hook_addr, control.hook_len) = (a.addr, a.len);
            m.hook = a;
        })?;
        let hook = m.hook.addr;
        let mut protect = |(at, len): (usize, usize), prot: u64| {
            let args = [hook + at as u64, len as u64, prot, 0, 0, 0];
            self.stop(|c| c.call("mprotect", nr::MPROTECT, args))
        };
        protect((0, image.code.0), READ)?;
        protect(image.data, READ | WRITE)?;
        Ok(())
    }

    /// Maps memory at a certain place. `note` is told before, and with an empty area if the kernel
    /// has refused.
    fn map_at(&mut self, a: Area, prot: u64, mut note: impl FnMut(Area)) -> Result<()> {
        use bits::{ANON, FIXED_NOREPLACE, NO_FD};
        note(a);
        match self.stop(|c| map(c, a.addr, a.len, prot, ANON | FIXED_NOREPLACE, NO_FD)) {
            Ok(got) if got.addr == a.addr => Ok(()),
            Ok(got) => {
                // A kernel before 4.17 takes the address as a hint.
                note(got);
                Err(Error::Remote { what: "mmap", pid: self.pid, errno: Errno::EEXIST })
            }
            Err(e) => {
                if matches!(e, Error::Remote { .. }) {
                    note(Area::default());
                }
                Err(e)
            }
        }
    }

    fn map_ring(&mut self, fd: u64, at: u64, len: u64, prot: u64, flags: u64) -> Result<Area> {
        let pid = self.pid;
        let link = std::fs::read_link(format!("/proc/{pid}/fd/{fd}"));
        if !link.is_ok_and(|l| l.to_string_lossy().contains(MEMFD_NAME)) {
            let what = "the target has closed prof's descriptor; try again".into();
            return Err(Error::Nonsense { pid, what });
        }
        self.stop(|c| map(c, at, len, prot, flags, fd))
    }

    /// Takes back what has been mapped; the ring, which says what there is, last.
    pub fn unmap_all(&mut self, m: &Mapped) {
        let stubs = STABLE_AT + core::mem::offset_of!(Stable, stubs);
        for (k, a) in m.stubs.iter().enumerate() {
            self.take_back(m.ring, *a, true, stubs + k * size_of::<Area>());
        }
        let entry = |offset: usize| STABLE_AT + offset;
        self.take_back(m.ring, m.hook, false, entry(core::mem::offset_of!(Stable, hook_addr)));
        self.take_back(m.ring, m.flag, false, entry(core::mem::offset_of!(Stable, flag_addr)));
        self.unmap_ring(m.ring.addr);
    }

    /// In parts, from its end, so that no stop is long; the control page is in the last. What there is
    /// of it say the target's maps: another prof may have been killed in the middle of this.
    fn unmap_ring(&mut self, addr: u64) {
        let maps = proc::maps(self.pid).unwrap_or_default();
        let Some(first) = maps.iter().find(|m| m.start.0 == addr && m.shared) else { return };
        for m in maps.iter().rev().filter(|m| m.shared && m.inode == first.inode) {
            let mut left = m.len();
            while left > 0 {
                let rest = left.saturating_sub(1) / PART * PART;
                if !self.unmap(m.start.0 + rest, left - rest) {
                    return;
                }
                left = rest;
            }
        }
    }

    /// Unmaps an area if it is there, and then takes it out of the control page.
    fn take_back(&mut self, ring: Area, a: Area, exec: bool, entry: usize) {
        if a.len == 0 {
            return;
        }
        let there = proc::maps(self.pid).is_ok_and(|maps| is_ours(&maps, a, exec));
        if there && !self.unmap(a.addr, a.len) {
            return;
        }
        let at = RemoteAddr(ring.addr).plus(entry as u64);
        if ring.len != 0
            && let Err(e) = self.mem.write(at, &[0; size_of::<Area>()])
        {
            e.warn(self.pid, "noting what is unmapped");
        }
    }

    fn unmap(&mut self, addr: u64, len: u64) -> bool {
        let r = self.stop(|c| c.call("munmap", nr::MUNMAP, [addr, len, 0, 0, 0, 0]));
        if let Err(e) = &r {
            e.warn(self.pid, "unmapping");
        }
        r.is_ok()
    }
}

/// Whether prof's area is mapped, and not something that the target has put there since: all of it
/// private memory of no file, and with code in it where there must be (the hook has none at first).
pub(crate) fn is_ours(maps: &[Map], a: Area, exec: bool) -> bool {
    let end = a.addr.saturating_add(a.len);
    let mut parts = maps.iter().filter(|m| m.start.0 < end && a.addr < m.end.0).peekable();
    if parts.peek().is_none() {
        return false;
    }
    let (mut at, mut code) = (a.addr, false);
    for m in parts {
        if m.shared || m.inode != 0 || !m.name.is_empty() || m.start.0 > at {
            return false;
        }
        at = m.end.0;
        code |= m.exec;
    }
    at >= end && (code || !exec)
}

/// A place for `len` bytes in the middle of nowhere, where the kernel puts nothing by itself.
fn remote_place(maps: &[Map], len: u64) -> Option<u64> {
    // What is behind the last gap does not belong to the process.
    let kernels = |m: &&Map| m.name == b"[vsyscall]" || m.name == b"[vectors]";
    let own = maps.iter().filter(|m| !kernels(m)).collect::<Vec<_>>();
    let gaps = own.windows(2).map(|m| (m[0].end.0, m[1].start.0));
    let (from, to) = gaps.filter(|(from, to)| from < to).max_by_key(|(from, to)| to - from)?;
    // Not always the same place: what is there can be written and executed.
    let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), len);
    let quarter = (to - from) / 4;
    let at = (from + quarter + seed % quarter.max(1)).next_multiple_of(proc::page_size());
    (at.checked_add(len)? <= to).then_some(at)
}

fn map(c: &mut Caller<'_>, at: u64, len: u64, prot: u64, flags: u64, fd: u64) -> Result<Area> {
    let addr = c.call("mmap", nr::MMAP, [at, len, prot, flags, fd, 0])?;
    Ok(Area { addr, len })
}

fn advise(c: &mut Caller<'_>, a: Area, advice: i32) -> Result<()> {
    c.call("madvise", nr::MADVISE, [a.addr, a.len, advice as u64, 0, 0, 0]).map(|_| ())
}
