//! The target's memory: which of it there is, and its contents.

use crate::ranges::without;
use prof_os::RemoteAddr;
use prof_os::Result;
use prof_os::maps::{self, Map};
use prof_os::memory::Reader;
use prof_trace::shared::is_ring;
use std::ops::Range;

/// Bytes that are read together.
pub(crate) const PIECE: u64 = 1 << 20;

/// Mappings that the kernel makes in every process: they hold no pointers of the program.
const KERNELS: [&[u8]; 4] = [b"[vdso]", b"[vvar]", b"[vvar_vclock]", b"[vsyscall]"];

/// The memory that may hold pointers.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScannedMemory {
    /// The mappings of the process. A guard region inside of one (madvise(2), MADV_GUARD_INSTALL) is a mapping of its own that
    /// nothing may access, as guards were before.
    pub maps: Vec<Map>,
    /// Touched parts of them, in the order of their addresses.
    pub parts: Vec<Range<u64>>,
    /// Bytes of shared mappings whose pages are not mapped at the moment, and so are not looked at.
    pub absent: u64,
    /// Bytes of devices, which are never read: a look may have an effect on them.
    pub devices: u64,
}

impl ScannedMemory {
    /// Lists the memory of a process.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn of(reader: &Reader) -> Result<Self> {
        let mut all = Self::default();
        for m in maps::of(reader.pid())? {
            all.add(reader, m);
        }
        Ok(all)
    }

    /// Adds a mapping behind the others, with the parts of it that are touched.
    pub(crate) fn add(&mut self, reader: &Reader, m: Map) {
        if !may_point(&m) {
            return self.maps.push(m);
        }
        if m.is_device() {
            self.devices += m.len();
            return self.maps.push(m);
        }
        // A mapping that has just gone has no pages any more.
        let found = reader.pages(m.start.0..m.end.0, m.shared).unwrap_or_default();
        if m.shared {
            self.absent += m.len() - found.touched.iter().map(|r| r.end - r.start).sum::<u64>();
        }
        self.parts.extend(found.touched);
        self.maps.extend(split(m, &found.guards));
    }

    /// Removes ranges, which must be in order, from the parts to read.
    pub(crate) fn leave_out(&mut self, ranges: &[Range<u64>]) {
        self.parts = without(&self.parts, ranges);
    }

    /// Returns the pieces to read, in an order that differs from one pass to the next: up, down, and mixed.
    #[must_use]
    pub(crate) fn pieces(&self, pass: u64) -> Vec<Range<u64>> {
        let mut all = Vec::new();
        for p in &self.parts {
            let mut at = p.start;
            while at < p.end {
                let end = ((at / PIECE + 1) * PIECE).min(p.end);
                all.push(at..end);
                at = end;
            }
        }
        match pass % 3 {
            0 => {}
            1 => all.reverse(),
            _ => {
                // The order is a shuffle that the number of the pass decides.
                let mut x = pass.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                for i in (1..all.len()).rev() {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    all.swap(i, ((x >> 11) % (i as u64 + 1)) as usize);
                }
            }
        }
        all
    }

    /// Returns a piece and, where memory goes on behind it, a word more.
    #[must_use]
    pub(crate) fn beyond(&self, piece: &Range<u64>) -> Range<u64> {
        let part = self.parts.partition_point(|p| p.end < piece.end);
        let goes_on = self.parts.get(part).is_some_and(|p| p.end > piece.end);
        let more = if goes_on { size_of::<usize>() as u64 } else { 0 };
        piece.start..piece.end + more
    }

    /// Returns the mapping that an address lies in.
    #[must_use]
    pub(crate) fn map_of(&self, address: u64) -> Option<&Map> {
        let n = self.maps.partition_point(|m| m.start.0 <= address);
        self.maps.get(n.checked_sub(1)?).filter(|m| address < m.end.0)
    }
}

/// Returns the parts of a mapping between guard regions, which must be in order, and these. A mapping of a file stays as it is.
fn split(m: Map, guards: &[Range<u64>]) -> Vec<Map> {
    if guards.is_empty() || m.inode != 0 || m.shared {
        return vec![m];
    }
    let part = |range: Range<u64>, is_guard: bool| Map {
        start: RemoteAddr(range.start),
        end: RemoteAddr(range.end),
        read: m.read && !is_guard,
        write: m.write && !is_guard,
        exec: m.exec && !is_guard,
        ..m.clone()
    };
    let whole = m.start.0..m.end.0;
    let between = without(&[whole], guards).into_iter().map(|r| part(r, false));
    let mut all: Vec<Map> = between.chain(guards.iter().map(|g| part(g.clone(), true))).collect();
    all.sort_by_key(|m| m.start);
    all
}

/// Returns whether a mapping may hold pointers of the program: all but the kernel's and prof's own. Shared memory that the
/// program may only read counts, too: it may have been written by another mapping, which is gone.
pub(crate) fn may_point(m: &Map) -> bool {
    let kernels = KERNELS.contains(&m.name.as_slice());
    !kernels && !is_ring(&m.name, m.offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prof_os::{Pid, page_size};

    #[test]
    fn only_touched_pages_are_listed_and_read() {
        let page = page_size() as usize;
        // SAFETY: the kernel chooses the address, so no existing memory is affected.
        let at = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let (len, prot) = (1 << 30, libc::PROT_READ | libc::PROT_WRITE);
            let at = libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            libc::madvise(at, len, libc::MADV_NOHUGEPAGE);
            at.cast::<u8>()
        };
        let own = Pid::this();
        let reader = Reader::open(own).expect("own memory");
        for k in [3, 4, 700] {
            // SAFETY: the page lies in the mapping from above.
            unsafe { at.add(k * page).write(7) };
        }
        let memory = ScannedMemory::of(&reader).expect("memory");
        let (start, end) = (at as u64, at as u64 + (1 << 30));
        let ours: Vec<_> =
            memory.parts.iter().filter(|p| p.start >= start && p.end <= end).cloned().collect();
        let page = page as u64;
        assert_eq!(
            ours,
            [start + 3 * page..start + 5 * page, start + 700 * page..start + 701 * page]
        );
        let mut b = vec![0; 2 * page as usize];
        assert_eq!(reader.read(start + 3 * page, &mut b), b.len());
        assert_eq!((b[0], b[1], b[page as usize]), (7, 0, 7));
        assert_eq!(reader.read(1, &mut b), 0);
        let mut cut = ScannedMemory { parts: ours, ..ScannedMemory::default() };
        cut.leave_out(&[0..1, start + 4 * page..start + 4 * page + 8]);
        assert_eq!(cut.parts.len(), 3);
        assert_eq!(cut.parts[1], start + 4 * page + 8..start + 5 * page);
    }

    #[test]
    fn each_order_has_every_piece_once() {
        let parts = vec![0x1000..0x50_0000, 0x80_0000..0x80_1000];
        let memory = ScannedMemory { parts, ..ScannedMemory::default() };
        let first = memory.pieces(0);
        let sum: u64 = first.iter().map(|p| p.end - p.start).sum();
        assert_eq!(sum, 0x4f_f000 + 0x1000);
        for pass in 1..7 {
            let mut other = memory.pieces(pass);
            assert_eq!(other == first, pass % 3 == 0, "{pass}");
            other.sort_by_key(|p| p.start);
            assert_eq!(other, first, "{pass}");
        }
    }
}
