//! The shared memory's way into the target, in one stop of all its threads.
//!
//! To map the memory, the target needs a descriptor of it, for the time of that stop ([`crate::mapped::memfd`]).

use crate::hooked::places;
use crate::mapped::mapping::{Site, advise, map, unmap_at};
use crate::mapped::memfd::{NewMemfd, exchanged};
use crate::mapped::{bits, ring_file};
use crate::stopped::remote::Caller;
use crate::{Error, RemoteAddr, Result};
use nix::errno::Errno;
use prof_arch::native::syscall::nr;
use prof_os::{Pid, maps, process};
use prof_trace::shared::{Area, Geometry, MEMFD_NAME, STABLE_AT, Shared, Stable, state};
use std::fs::File;
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;

/// The shared memory, mapped in the target and here.
#[derive(Debug)]
pub(crate) struct Ring {
    pub fd: OwnedFd,
    pub shared: Shared<'static>,
    /// Place of the ring in the target.
    pub at: Area,
}

impl Site<'_> {
    /// Makes the ring and maps it into the target, outside of `windows`, where stubs must be, and far from other
    /// mappings if possible.
    ///
    /// # Errors
    /// If that is not possible; the target is then as before.
    pub(crate) fn make_ring(&mut self, geometry: Geometry, windows: &[Range<u64>]) -> Result<Ring> {
        let pid = self.pid;
        let len = geometry.size() as u64;
        let maps = maps::of(pid)?;
        let places = places::ring_places(&maps, process::start_brk(pid), windows, len);
        let needs_code = self.by_linker.is_none();
        let ring = self.alone(|c| {
            if needs_code {
                c.may_map_code()?;
            }
            in_one_stop(pid, c, geometry, &places)
        })?;
        if let Err(e) = ring_file::allocate_ring(pid, &ring.fd, geometry) {
            self.unmap_ring(ring.at.addr);
            return Err(e);
        }
        Ok(ring)
    }
}

/// Makes the ring at the first of the places that is free; all threads of the target stand still.
fn in_one_stop(pid: Pid, c: &mut Caller<'_>, geometry: Geometry, places: &[u64]) -> Result<Ring> {
    let mut last = Error::Remote { what: "mmap", pid, errno: Errno::ENOMEM };
    for at in places {
        match make_at(pid, c, geometry, *at) {
            Err(e @ Error::Remote { errno: Errno::EEXIST | Errno::ENOMEM, .. }) => last = e,
            other => return other,
        }
    }
    Err(last)
}

/// Makes the ring at one place. On an error the target is as before.
fn make_at(pid: Pid, c: &mut Caller<'_>, geometry: Geometry, at: u64) -> Result<Ring> {
    let file = enter(pid, c, geometry, at)?;
    let first = Area { addr: at, len: prof_os::page_size() };
    let at = Area { addr: at, len: geometry.size() as u64 };
    let made = complete(pid, c, &file, geometry, at);
    match made {
        Ok(shared) => Ok(Ring { fd: file.into(), shared, at }),
        Err(e) => {
            let _ = unmap_at(c, first);
            Err(e)
        }
    }
}

/// Maps the first page of a new memfd into the target and returns the file. Until the end of this function the target
/// has a descriptor of it, which stays open if prof is killed now. So nothing is done here that can wait.
fn enter(pid: Pid, c: &mut Caller<'_>, geometry: Geometry, at: u64) -> Result<File> {
    let made = NewMemfd::make(pid, c, MEMFD_NAME)?;
    let entered = ring_file::size_ring(pid, &made.file, geometry).and_then(|()| {
        mark(&made.file, at, geometry).map_err(|errno| made.failed(errno))?;
        map_first(pid, c, made.number, at)
    });
    let (file, closed) = made.close(c);
    if closed.is_err() && entered.is_ok() {
        let _ = unmap_at(c, Area { addr: at, len: prof_os::page_size() });
    }
    closed.and(entered).map(|()| file)
}

/// Writes into the control page where the ring will be, by which [`is_ring`] recognises the page in the target.
fn mark(file: &File, at: u64, geometry: Geometry) -> std::io::Result<()> {
    let write = |field: usize, value: u64| {
        file.write_all_at(&value.to_ne_bytes(), (STABLE_AT + field) as u64)
    };
    write(offset_of!(Stable, ring_addr), at)?;
    write(offset_of!(Stable, ring_len), geometry.size() as u64)
}

/// Maps the first page of the memfd.
fn map_first(pid: Pid, c: &mut Caller<'_>, number: u64, at: u64) -> Result<()> {
    use bits::{FIXED_NOREPLACE, NORESERVE, READ, SHARED, WRITE};
    let flags = SHARED | NORESERVE | FIXED_NOREPLACE;
    match map(c, at, prof_os::page_size(), READ | WRITE, flags, number) {
        Ok(got) if got.addr != at => {
            // A kernel before 4.17 takes the address as a hint.
            unmap_at(c, got)?;
            Err(c.failed("mmap", Errno::EEXIST))
        }
        Ok(_) => Ok(()),
        Err(Error::Remote { errno: Errno::EBADF, .. }) => Err(exchanged(pid, "nothing is")),
        Err(Error::Remote { errno: Errno::EACCES | Errno::EINVAL | Errno::ENODEV, .. }) => {
            Err(exchanged(pid, "another file is"))
        }
        Err(e) => Err(e),
    }
}

/// Completes the ring of which the target has mapped the first page: lets the mapping grow, and writes its control page.
/// Where all that is mapped gets locked (`mlockall(MCL_FUTURE)`), a mapping of the whole ring would be made at once, and
/// count as locked. So the one page is unlocked and then grows: what a mapping grows by is as locked as the mapping is.
fn complete(
    pid: Pid,
    c: &mut Caller<'_>,
    file: &File,
    geometry: Geometry,
    at: Area,
) -> Result<Shared<'static>> {
    if !is_ring(c, at) {
        return Err(exchanged(pid, "another file was"));
    }
    let first = Area { addr: at.addr, len: prof_os::page_size() };
    // Done as early as possible, so that no forked child inherits a part of the ring.
    advise(c, first, libc::MADV_DONTFORK)?;
    let shared = ring_file::map_ring(file, geometry)?;
    if let Err(e) = grow(c, first, at) {
        // SAFETY: no reference to the ring has been given out.
        unsafe { ring_file::unmap_ring(shared) };
        return Err(e);
    }
    let is_closed = match close_second_part(pid, c, geometry, at) {
        Ok(is_closed) => is_closed,
        Err(e) => {
            let _ = unmap_at(c, at);
            // SAFETY: no reference to the ring has been given out.
            unsafe { ring_file::unmap_ring(shared) };
            return Err(e);
        }
    };
    // SAFETY: no code in the target refers to the ring yet.
    let control = unsafe { shared.control_mut() };
    control.state.store(state::SETUP, Relaxed);
    control.ring_addr.store(at.addr, Relaxed);
    control.ring_len.store(at.len, Relaxed);
    let more = geometry.more_states() as u64;
    control.more_offered.store(more, Relaxed);
    control.more_count.store(if is_closed { 0 } else { more }, Relaxed);
    control.pid = pid.as_u32();
    let exe = std::env::current_exe().unwrap_or_default();
    // The next prof takes a ring that has its magic number for a whole one, so the number comes after the last page.
    control.begin(
        geometry.segments(),
        env!("CARGO_PKG_VERSION"),
        exe.as_os_str().as_encoded_bytes(),
    );
    Ok(shared)
}

/// Takes the access away from what is reserved for threads to come, so that it gets no pages where the process locks its memory
/// (`mlockall`), or reads all that it can. The first thread that finds no slot opens it again. Returns false, and changes nothing,
/// where a filter may forbid the hook to open it, or the kernel refuses.
///
/// # Errors
/// If it is not known whether the part has access.
fn close_second_part(pid: Pid, c: &mut Caller<'_>, geometry: Geometry, at: Area) -> Result<bool> {
    const NO_ACCESS: u64 = 0;
    let part = geometry.second_part();
    if part.is_empty() || crate::sandbox::is_filtered(pid) {
        return Ok(false);
    }
    let start = at.addr + part.start as u64;
    match c.call("mprotect", nr::MPROTECT, [start, part.len() as u64, NO_ACCESS, 0, 0, 0]) {
        Ok(_) => Ok(true),
        Err(Error::Remote { .. }) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Whether the target has the ring at this place: what prof has just written into the file is there. A process that
/// shares descriptors, and no memory, is not stopped, and may have put a file of its own under the number.
fn is_ring(c: &Caller<'_>, at: Area) -> bool {
    let word = |offset: usize| c.word(RemoteAddr(at.addr).plus(offset as u64));
    word(STABLE_AT + offset_of!(Stable, ring_addr)) == Some(at.addr)
        && word(STABLE_AT + offset_of!(Stable, ring_len)) == Some(at.len)
}

/// Lets a page that was just mapped grow to the whole area, unlocked; takes it back if that fails.
pub(crate) fn grow(c: &mut Caller<'_>, first: Area, all: Area) -> Result<()> {
    let _ = c.call("munlock", nr::MUNLOCK, [first.addr, first.len, 0, 0, 0, 0]);
    if first.len == all.len {
        return Ok(());
    }
    // The message names mmap, because to its reader a mapping can't be made.
    let grown = c.call("mmap", nr::MREMAP, [first.addr, first.len, all.len, 0, 0, 0]);
    if grown.is_err() {
        unmap_at(c, first)?;
    }
    grown.map(|_| ())
}
