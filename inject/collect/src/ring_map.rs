//! Maps the shared memory.

use crate::Error;
use crate::maps::Maps;
use crate::ring_copy::ring_mapping;
use prof_os::Pid;
use prof_os::maps::Map;
use prof_os::process::folder;
use prof_trace::shared::{Control, Geometry, HEIR_AT, LAYOUT, MAGIC, Shared};
use std::fs::{File, OpenOptions};
use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

/// Greatest plausible room for unwind tables.
const MOST_TABLES: u64 = 1 << 30;

/// Offset of `segments` in the control page, after magic and layout.
const HEAD: usize = 16;

/// Opens the ring that process `pid` has mapped, whose other users have all ended. The kernel lets only those do that
/// who have `CAP_SYS_ADMIN` or `CAP_CHECKPOINT_RESTORE`.
///
/// # Errors
/// If the process has no ring, or the kernel does not let this process open it.
pub fn open_ring(pid: Pid) -> Result<OwnedFd, Error> {
    let mut maps = Maps::open(pid).map_err(Error::io("cannot read its mappings"))?;
    if !maps.read() {
        return Err(Error::Gone(pid));
    }
    Ok(open_mapped(pid, ring_mapping(&maps).ok_or(Error::NoRing)?)?.into())
}

/// Opens the file of a process's mapping, which is prof's shared memory.
pub(crate) fn open_mapped(pid: Pid, ring: &Map) -> Result<File, Error> {
    let range = format!("{:x}-{:x}", ring.start.0, ring.end.0);
    let opened =
        OpenOptions::new().read(true).write(true).open(folder(pid) + "/map_files/" + &range);
    let file = opened.map_err(Error::io("cannot open prof's memory in the process"))?;
    // A process in a mount namespace of its own may have mapped any file under this name.
    if file.metadata().map_err(Error::io("cannot stat the ring"))?.nlink() != 0 {
        return Err(Error::NotARing("a file"));
    }
    Ok(file)
}

/// Maps a ring for reading and writing, for as long as this process lives.
///
/// The number of segments and the room for unwind tables are read from the memory once, and must fit the size of the
/// file, which is sealed against shrinking. Nothing else in the memory is trusted. The memory that a child was given by its
/// parent begins at [`HEIR_AT`] of its file, which nobody has a descriptor of but who opens it like this.
///
/// # Errors
/// If the descriptor is not a ring of this version.
pub fn map_ring(fd: OwnedFd) -> Result<Shared<'static>, Error> {
    map_file(&File::from(fd))
}

/// Maps a ring as [`map_ring`] does. The memory may be unmapped when nothing uses it any more.
pub(crate) fn map_file(file: &File) -> Result<Shared<'static>, Error> {
    let len = file.metadata().map_err(Error::io("cannot stat the ring"))?.len();
    let mut head = [0u8; HEAD];
    let mut begins =
        |at| file.read_exact_at(&mut head, at).map(|()| head[..8] == MAGIC.to_ne_bytes());
    let is_heir = len > HEIR_AT && begins(HEIR_AT).map_err(Error::io("cannot read the ring"))?;
    let at = if is_heir { HEIR_AT } else { 0 };
    begins(at).map_err(Error::io("cannot read the ring"))?;
    let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if head[..8] != MAGIC.to_ne_bytes() {
        return Err(Error::NotARing("wrong magic number"));
    }
    if word(8) != LAYOUT {
        return Err(Error::NotARing("another layout"));
    }
    let geometry = Geometry::from_segments(word(12)).ok_or(Error::NotARing("impossible size"))?;
    let mut tables = [0u8; 8];
    file.read_exact_at(&mut tables, at + offset_of!(Control, tables_len) as u64)
        .map_err(Error::io("cannot read the ring"))?;
    let tables = u64::from_ne_bytes(tables).min(MOST_TABLES);
    let geometry = geometry.with_tables(tables as usize);
    if len - at < geometry.size() as u64 {
        return Err(Error::NotARing("file too short"));
    }
    // SAFETY: the kernel chooses the address of the new mapping, so no existing memory is affected.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            geometry.size(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            at as libc::off_t,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(Error::io("cannot map the ring")(std::io::Error::last_os_error()));
    }
    // SAFETY: the memory was just mapped with that size, page-aligned, and stays so while it is used. prof has sealed the file
    // against shrinking; where it could not, the worst result is a SIGBUS in this process.
    Ok(unsafe { Shared::new(base.cast(), geometry) })
}
