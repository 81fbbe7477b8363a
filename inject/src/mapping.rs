//! prof's mappings in the target, made and taken back by remote calls: one in each stop, so that no
//! stop is long. What has been mapped stands in the control page at once, so that another prof finds it
//! if this one dies.

use crate::image::Image;
use crate::install::with_caller;
use crate::remote::{Caller, Gadgets};
use crate::threads::StopTimes;
use crate::{Error, RemoteAddr, RemoteMemory, Result};
use nix::errno::Errno;
use prof_arch::native::syscall::nr;
use prof_trace::shared::{Area, Control, LAYOUT, MAGIC, MEMFD_NAME, Shared, state};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Protection and mapping bits of the kernel's mmap (the same on all architectures but MIPS).
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

    /// Maps everything, the stubs where `place` says, and closes the target's descriptor of the ring.
    ///
    /// # Errors
    /// If something can't be mapped; `m` then has what could.
    pub fn map_all(
        &mut self,
        shared: &Shared,
        fd: u64,
        image: &Image,
        place: impl FnOnce() -> Result<Vec<Area>>,
        m: &mut Mapped,
    ) -> Result<()> {
        use bits::{ANON, EXEC, FIXED_NOREPLACE, NO_FD, NORESERVE, READ, SHARED, WRITE};
        let mapped =
            self.map_ring(fd, shared.geometry().size() as u64, READ | WRITE, SHARED | NORESERVE);
        let closed = self.stop(|c| c.call("close", nr::CLOSE, [fd, 0, 0, 0, 0, 0]));
        m.ring = mapped?;
        // SAFETY: the target has it mapped, but nothing there knows of it yet.
        let control = unsafe { shared.control_mut() };
        control.magic = MAGIC;
        control.layout = LAYOUT;
        control.segments = shared.geometry().segments() as u32;
        control.state.store(state::SETUP, Relaxed);
        (control.ring_addr, control.ring_len) = (m.ring.addr, m.ring.len);
        control.pid = self.pid as u32;
        closed?;
        self.stop(|c| {
            // A thread touches a few pages of its state; a kernel without huge pages refuses this.
            let _ = advise(c, m.ring, libc::MADV_NOHUGEPAGE);
            Ok(())
        })?;
        self.stop(|c| advise(c, m.ring, libc::MADV_DONTFORK))?;
        // Only now, since the kernel has chosen its place for the ring.
        for (a, to) in place()?.iter().zip(&mut control.stubs) {
            let flags = ANON | FIXED_NOREPLACE;
            *to = self.stop(|c| map(c, a.addr, a.len, READ | EXEC, flags, NO_FD))?;
            m.stubs.push(*to);
            if to.addr != a.addr {
                // A kernel before 4.17 takes the address as a hint.
                return Err(Error::Remote { what: "mmap", pid: self.pid, errno: Errno::EEXIST });
            }
        }
        m.flag = self.stop(|c| {
            let a = map(c, 0, 4096, READ | WRITE, ANON, NO_FD)?;
            (control.flag_addr, control.flag_len) = (a.addr, a.len);
            Ok(a)
        })?;
        self.stop(|c| advise(c, m.flag, libc::MADV_WIPEONFORK))?;
        m.hook = self.stop(|c| {
            let a = map(c, 0, image.len() as u64, READ, ANON, NO_FD)?;
            (control.hook_addr, control.hook_len) = (a.addr, a.len);
            Ok(a)
        })?;
        let hook = m.hook.addr;
        let mut protect = |(at, len): (usize, usize), prot: u64| {
            let args = [hook + at as u64, len as u64, prot, 0, 0, 0];
            self.stop(|c| c.call("mprotect", nr::MPROTECT, args))
        };
        protect(image.code, READ | EXEC)?;
        protect(image.data, READ | WRITE)?;
        Ok(())
    }

    fn map_ring(&mut self, fd: u64, len: u64, prot: u64, flags: u64) -> Result<Area> {
        let pid = self.pid;
        let link = std::fs::read_link(format!("/proc/{pid}/fd/{fd}"));
        if !link.is_ok_and(|l| l.to_string_lossy().contains(MEMFD_NAME)) {
            let what = "the target has closed prof's descriptor; try again".into();
            return Err(Error::Nonsense { pid, what });
        }
        self.stop(|c| map(c, 0, len, prot, flags, fd))
    }

    /// Takes back what has been mapped; the ring, which says what there is, last.
    pub fn unmap_all(&mut self, m: &Mapped) {
        for a in m.stubs.iter().chain([&m.hook, &m.flag]).filter(|a| a.len != 0) {
            self.unmap(a.addr, a.len);
        }
        // In parts, from its end, so that no stop is long; the control page, which says how much is
        // left, is in the last.
        let len_at = RemoteAddr(m.ring.addr).plus(core::mem::offset_of!(Control, ring_len) as u64);
        let mut left = m.ring.len;
        while left > 0 {
            let rest = left.saturating_sub(1) / PART * PART;
            if rest > 0
                && let Err(e) = self.mem.write(len_at, &rest.to_ne_bytes())
            {
                log::warn!("{e}");
                return;
            }
            self.unmap(m.ring.addr + rest, left - rest);
            left = rest;
        }
    }

    fn unmap(&mut self, addr: u64, len: u64) {
        if let Err(e) = self.stop(|c| c.call("munmap", nr::MUNMAP, [addr, len, 0, 0, 0, 0])) {
            log::warn!("{e}");
        }
    }
}

fn map(c: &mut Caller<'_>, at: u64, len: u64, prot: u64, flags: u64, fd: u64) -> Result<Area> {
    let addr = c.call("mmap", nr::MMAP, [at, len, prot, flags, fd, 0])?;
    Ok(Area { addr, len })
}

fn advise(c: &mut Caller<'_>, a: Area, advice: i32) -> Result<()> {
    c.call("madvise", nr::MADVISE, [a.addr, a.len, advice as u64, 0, 0, 0]).map(|_| ())
}
