//! A copy of another process's ring, made page by page as needed.
//!
//! Reading a page of the target's mapping that was never written would allocate it, on the target's account. So only
//! those parts of the large tables are read that events refer to.

use crate::Error;
use crate::maps::Maps;
use crate::tree::Bits;
use prof_os::Pid;
use prof_os::maps::Map;
use prof_os::process::folder;
use prof_trace::event::{Codec, DEFINE_NODES, Entry};
use prof_trace::ids::PcId;
use prof_trace::pcs::pc_parts;
use prof_trace::ring;
use prof_trace::shared::{
    Control, FUNCTIONS, Geometry, LAYOUT, MAGIC, MODULES, PC_LEVEL0, PC_LEVELS, Shared, begins_ring,
};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;

const PAGE: usize = 4096;

/// The copy; its memory is unmapped when it is dropped.
#[derive(Debug)]
pub(crate) struct RingCopy {
    /// The copy's memory. It is unmapped at the end of this value, so nobody else gets this lifetime.
    shared: Shared<'static>,
    mem: File,
    addr: u64,
    pages: Bits,
}

/// Returns the first mapping of the ring among a process's mappings.
pub(crate) fn ring_mapping(maps: &Maps) -> Option<&Map> {
    maps.all.iter().find(|m| begins_ring(&m.name, m.offset))
}

/// Returns why the ring at `addr` of process `pid` can't be read. A prof that was killed may have left a thread on its
/// way into the system call that unmaps the ring. Then there is no ring any more, which is not a failure.
pub(crate) fn unreadable(pid: Pid, addr: u64, errno: io::Error) -> Error {
    let Ok(mut maps) = Maps::open(pid) else { return Error::Gone(pid) };
    if !maps.read() {
        return Error::Gone(pid);
    }
    match ring_mapping(&maps) {
        Some(m) if m.start.0 == addr => Error::io("cannot read the ring")(errno),
        _ => Error::NoRing,
    }
}

impl RingCopy {
    /// Copies the control page of the ring of process `pid`; [`RingCopy::copy`] copies the rest.
    ///
    /// # Errors
    /// If there is no ring of this version, or it can't be read.
    pub(crate) fn of(pid: Pid) -> Result<Self, Error> {
        let mut maps = Maps::open(pid).map_err(Error::io("cannot read its mappings"))?;
        if !maps.read() {
            return Err(Error::Gone(pid));
        }
        let addr = ring_mapping(&maps).ok_or(Error::NoRing)?.start.0;
        let mem = OpenOptions::new().read(true).write(true).open(folder(pid) + "/mem");
        let mem = mem.map_err(Error::io("cannot open its memory"))?;
        let mut head = [0u8; 16];
        mem.read_exact_at(&mut head, addr).map_err(|e| unreadable(pid, addr, e))?;
        let word =
            |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if head[..8] != MAGIC.to_ne_bytes() {
            return Err(Error::NotARing("wrong magic number"));
        }
        if word(8) != LAYOUT {
            return Err(Error::OtherLayout { layout: word(8), addr });
        }
        let geometry =
            Geometry::from_segments(word(12)).ok_or(Error::NotARing("impossible size"))?;
        let shared = Self::map(geometry).map_err(Error::io("no memory for a copy"))?;
        let pages = Bits::new(geometry.size() / PAGE);
        let mut ring = Self { shared, mem, addr, pages };
        ring.fetch(0, size_of::<Control>()).map_err(|e| unreadable(pid, addr, e))?;
        Ok(ring)
    }

    fn map(geometry: Geometry) -> io::Result<Shared<'static>> {
        // SAFETY: the kernel chooses the address of the new mapping, so no existing memory is affected.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                geometry.size(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the memory was just mapped with that size. It is unmapped when the copy is dropped, which lends it for
        // no longer than it lives; a test's is never unmapped.
        Ok(unsafe { Shared::new(base.cast(), geometry) })
    }

    /// Returns the copy, in the layout of the original.
    pub(crate) fn shared(&self) -> Shared<'_> {
        self.shared
    }

    /// Returns the address of the original in the target.
    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns the memory of the target.
    pub(crate) fn mem(&self) -> &File {
        &self.mem
    }

    /// Copies the control page, the thread slots in use and the hooked functions.
    ///
    /// # Errors
    /// If the target's memory can't be read any more.
    pub(crate) fn copy_control(&mut self) -> io::Result<()> {
        self.pages = Bits::new(self.shared.geometry().size() / PAGE);
        self.fetch(0, size_of::<Control>())?;
        let s = self.shared;
        for slot in s.used_slots() {
            self.fetch_entry(slot)?;
        }
        let functions = (s.control().functions.load(Relaxed) as usize).min(FUNCTIONS);
        for f in (0..functions).filter_map(|i| s.function(i)) {
            self.fetch_entry(f)?;
        }
        Ok(())
    }

    /// Copies, besides [`Self::copy_control`], the modules and all segments in use.
    ///
    /// # Errors
    /// If the target's memory can't be read any more.
    pub(crate) fn copy(&mut self) -> io::Result<()> {
        self.copy_control()?;
        let s = self.shared;
        let [_, _, _, (heads, heads_len), _] = s.geometry().hot_ranges();
        let modules = (s.control().modules.load(Relaxed) as usize).min(MODULES);
        for m in (0..modules).filter_map(|i| s.module(i)) {
            self.fetch_entry(m)?;
        }
        self.fetch(heads, heads_len)?;
        for w in 0..s.geometry().segments() / 64 {
            let Some(word) = s.free_word(w) else { break };
            self.fetch_entry(word)?;
            let mut used = !word.load(Relaxed);
            while used != 0 {
                let index = w * 64 + used.trailing_zeros() as usize;
                used &= used - 1;
                if let (Some(v), Some(data)) = (ring::view(&s, index), s.data(index)) {
                    self.fetch(data as usize - s.base() as usize, v.committed)?;
                }
            }
        }
        Ok(())
    }

    /// Copies the code addresses that the copied segments name.
    ///
    /// # Errors
    /// If the target's memory can't be read any more.
    pub(crate) fn follow(&mut self) -> io::Result<()> {
        let s = self.shared;
        let mut seen = Bits::new(PC_LEVEL0 << PC_LEVELS);
        for index in 0..s.geometry().segments() {
            let (Some(v), Some(data)) = (ring::view(&s, index), s.data(index)) else { continue };
            // SAFETY: `committed` bytes are within the segment, in private memory that nothing changes here.
            let bytes = unsafe { std::slice::from_raw_parts(data, v.committed) };
            let (mut codec, mut at) = (Codec::default(), 0);
            while let Some((entry, n)) = codec.get_entry(&bytes[at..]) {
                at += n;
                if let Entry::Define { pcs, .. } = entry {
                    self.follow_pcs(pcs, &mut seen)?;
                }
            }
        }
        Ok(())
    }

    fn follow_pcs(&mut self, pcs: [PcId; DEFINE_NODES], seen: &mut Bits) -> io::Result<()> {
        for pc in pcs {
            let Some(entry) = pc.position().and_then(|i| self.shared.pc(i)) else {
                continue;
            };
            if !seen.add(pc.0 as usize) {
                continue;
            }
            self.fetch_entry(entry)?;
            let module = pc_parts(&self.shared, pc).map_or(0, |p| usize::from(p.1));
            if let Some(m) = module.checked_sub(1).and_then(|i| self.shared.module(i)) {
                self.fetch_entry(m)?;
            }
        }
        Ok(())
    }

    /// Copies the pages of an entry. It takes no reference, since the bytes change meanwhile.
    fn fetch_entry<T>(&mut self, entry: *const T) -> io::Result<()> {
        let at = entry as usize - self.shared.base() as usize;
        self.fetch(at, size_of::<T>())
    }

    /// Copies the pages of a range that have not been copied yet.
    fn fetch(&mut self, at: usize, len: usize) -> io::Result<()> {
        let end = (at + len).min(self.shared.geometry().size());
        for page in at / PAGE..end.div_ceil(PAGE) {
            if self.pages.get(page) != Some(false) {
                continue;
            }
            let mut bytes = [0; PAGE];
            self.mem.read_exact_at(&mut bytes, self.addr + (page * PAGE) as u64)?;
            // SAFETY: the page is within the copy, whose size is a multiple of a page, and no reference that is used
            // afterwards leads to a field of it that is not an atomic.
            unsafe {
                let to = self.shared.base().add(page * PAGE);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, PAGE);
            }
            self.pages.add(page);
        }
        Ok(())
    }
}

impl Drop for RingCopy {
    fn drop(&mut self) {
        let (base, len) = (self.shared.base(), self.shared.geometry().size());
        // SAFETY: `map` mapped this address with that length, and nothing uses it any more.
        unsafe { libc::munmap(base.cast(), len) };
    }
}

/// Returns an empty ring, for tests.
#[cfg(test)]
pub(crate) fn empty() -> Shared<'static> {
    empty_with(0)
}

/// Returns such a ring with `bytes` bytes for events.
#[cfg(test)]
pub(crate) fn empty_with(bytes: usize) -> Shared<'static> {
    RingCopy::map(Geometry::for_ring(bytes)).expect("memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use prof_trace::shared::MEMFD_CNAME;
    use std::os::fd::FromRawFd;

    /// A ring that can't be read is an error while it is mapped, and does not exist once it is unmapped.
    #[test]
    fn a_ring_that_goes_meanwhile_is_none() {
        // SAFETY: the name is a valid C string, and the kernel chooses the address of the mapping.
        let (file, at) = unsafe {
            let fd = libc::memfd_create(MEMFD_CNAME.as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0);
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(std::ptr::null_mut(), PAGE, prot, libc::MAP_SHARED, fd, 0);
            assert_ne!(at, libc::MAP_FAILED);
            (File::from_raw_fd(fd), at)
        };
        let me = Pid::this();
        // The file is empty, so its mapping has no page that could be read.
        let error = RingCopy::of(me).expect_err("nothing to read");
        assert!(matches!(error, Error::Io { .. }), "{error}");
        let errno = io::Error::from_raw_os_error(libc::EIO);
        // SAFETY: the page was mapped above, and nothing uses it.
        unsafe { libc::munmap(at, PAGE) };
        assert!(matches!(unreadable(me, at as u64, errno), Error::NoRing));
        drop(file);
    }
}
