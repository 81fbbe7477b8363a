//! The shared memory's way into the target, in one stop of all its threads.
//!
//! To map the memory, the target needs a descriptor of it. As long as one of its threads runs, that number is
//! not prof's: the thread may close it, be given it for a file of its own, or fork a child that keeps it. So
//! the memfd is made, proved to be prof's, sized, sealed, mapped and closed while nobody runs, and the number
//! is free again before anybody can see that it was taken. The same holds for what is left of a prof that
//! was killed in between.

use crate::hooked::places;
use crate::mapped::mapping::{Site, advise, map, unmap_at};
use crate::mapped::{bits, ring_file};
use crate::process::rings::{is_named, left};
use crate::stopped::remote::Caller;
use crate::{Error, RemoteAddr, Result};
use nix::errno::Errno;
use prof_arch::native::syscall::nr;
use prof_os::{Pid, maps, process};
use prof_trace::shared::{Area, Geometry, MAGIC, MEMFD_NAME, STABLE_AT, Shared, Stable, state};
use std::fs::{File, Metadata};
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

/// `memfd_create`: never to be executed (Linux 6.3).
const MFD_NOEXEC_SEAL: u64 = 8;

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
    let number = make(pid, c)?;
    let path = c.proc_dir().join(format!("fd/{number}"));
    let entered = open_new(pid, &path).and_then(|file| {
        ring_file::size_ring(pid, &file, geometry)?;
        mark(&file, at, geometry).map_err(|errno| Error::File { path: path.clone(), errno })?;
        map_first(pid, c, number, at)?;
        Ok(file)
    });
    let closed = close(c, number, &path);
    if closed.is_err() && entered.is_ok() {
        let _ = unmap_at(c, Area { addr: at, len: prof_os::page_size() });
    }
    closed.and(entered)
}

fn make(pid: Pid, c: &mut Caller<'_>) -> Result<u64> {
    let flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
    // The ring is never executed. vm.memfd_noexec = 2 demands that this is said; kernels before 6.3 do not
    // know how to.
    for flags in [flags | MFD_NOEXEC_SEAL, flags] {
        let name = c.put(format!("{MEMFD_NAME}\0").as_bytes())?;
        match c.call("memfd_create", nr::MEMFD_CREATE, [name.0, flags, 0, 0, 0, 0]) {
            Err(Error::Remote { errno: Errno::EINVAL, .. }) => {}
            other => return other,
        }
    }
    Err(Error::Remote { what: "memfd_create", pid, errno: Errno::EINVAL })
}

/// Opens the memfd that was just made. That it is the one, and nothing of the target's, is looked at before
/// its size is changed.
fn open_new(pid: Pid, path: &Path) -> Result<File> {
    let failed = |errno| Error::File { path: path.into(), errno };
    let opened = File::options().read(true).write(true).open(path);
    let file = opened.map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => exchanged(pid, "nothing is"),
        _ => failed(e),
    })?;
    let meta = file.metadata().map_err(failed)?;
    // SAFETY: a descriptor of ours, plain integers.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    let open = seals >= 0
        && seals
            & (libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE)
            == 0;
    if is_named(path) && is_memory(&meta) && meta.len() == 0 && open {
        return Ok(file);
    }
    let link = std::fs::read_link(path).unwrap_or_default();
    Err(exchanged(pid, &format!("{} is", link.display())))
}

/// Returns whether a file has no name in any folder.
fn is_memory(meta: &Metadata) -> bool {
    meta.is_file() && meta.nlink() == 0
}

/// Closes the target's descriptor, if it still leads to a memfd of prof's.
fn close(c: &mut Caller<'_>, number: u64, path: &Path) -> Result<()> {
    let is_ours = is_named(path) && std::fs::metadata(path).is_ok_and(|m| is_memory(&m));
    if !is_ours {
        log::warn!(
            "another process has put a file of its own in the place of the descriptor that was made for prof, {}; it stays as it is",
            path.display()
        );
        return Ok(());
    }
    match c.call("close", nr::CLOSE, [number, 0, 0, 0, 0, 0]) {
        // A process that shares descriptors and is not stopped has done it.
        Ok(_) | Err(Error::Remote { errno: Errno::EBADF, .. }) => Ok(()),
        Err(e) => Err(e),
    }
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
    // SAFETY: no code in the target refers to the ring yet.
    let control = unsafe { shared.control_mut() };
    control.state.store(state::SETUP, Relaxed);
    control.ring_addr.store(at.addr, Relaxed);
    control.ring_len.store(at.len, Relaxed);
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

/// Whether the target has the ring at this place: what prof has just written into the file is there. A process that
/// shares descriptors, and no memory, is not stopped, and may have put a file of its own under the number.
fn is_ring(c: &Caller<'_>, at: Area) -> bool {
    let word = |offset: usize| c.word(RemoteAddr(at.addr).plus(offset as u64));
    word(STABLE_AT + offset_of!(Stable, ring_addr)) == Some(at.addr)
        && word(STABLE_AT + offset_of!(Stable, ring_len)) == Some(at.len)
}

/// Returns the error for a descriptor of prof's whose number leads elsewhere.
fn exchanged(pid: Pid, what: &str) -> Error {
    let what = format!(
        "{what} under the descriptor that it has made for prof (does another process share its descriptors?); nothing was changed, try again"
    );
    Error::Nonsense { pid, what }
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

/// Closes what a killed prof has left; all threads of the target stand still. Another's ring is not touched:
/// the collector of another process has one open.
pub(crate) fn close_left(pid: Pid, c: &mut Caller<'_>) -> Result<()> {
    for (number, path) in left(&c.proc_dir()) {
        if is_leftover(pid, &path) {
            close(c, number, &path)?;
        }
    }
    Ok(())
}

/// Whether no other process owns a ring: it has no control page, or that of process `pid`.
fn is_leftover(pid: Pid, path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let word = |at: usize| {
        let mut b = [0; 8];
        file.read_exact_at(&mut b, at as u64).ok().map(|()| b)
    };
    let owner = word(STABLE_AT + offset_of!(Stable, pid))
        .map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
    match word(0).map(u64::from_ne_bytes) {
        Some(MAGIC) => owner == Some(pid.as_u32()),
        _ => true,
    }
}
