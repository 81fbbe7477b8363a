//! Says what recorded calls do to mappings.

use super::table::Of;
use super::{Perms, Source};
use crate::load::MapEvent;
use prof_trace::call::CallKind;
use prof_trace::records::Call;
use std::sync::Arc;

/// A change of the mappings by a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub source: Source,
    pub what: What,
}

/// The effect of a call. Ranges are of whole pages, and not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A mapping is made, in place of what is there.
    Map { range: (u64, u64), of: Of },
    /// A range is taken away.
    Unmap { range: (u64, u64) },
    /// The whole mapping that begins there is taken away.
    Detach { start: u64 },
    /// A range is moved, or made longer or shorter.
    Remap { old: (u64, u64), new: (u64, u64) },
    /// Memory appears at a second place: at the old one it stays mapped. An empty old range stands for all that is mapped
    /// there from its address on.
    Copy { old: (u64, u64), new: (u64, u64) },
    /// A range gets other permissions.
    Protect { range: (u64, u64), read: bool, write: bool, execute: bool },
    /// The heap becomes longer.
    Grow { range: (u64, u64), of: Of },
    /// A range gets a name.
    Name { range: (u64, u64), name: Arc<str> },
}

/// `PROT_READ`, `PROT_WRITE` and `PROT_EXEC`, the same on all architectures.
const PROT: [u32; 3] = [1, 2, 4];
/// `MAP_SHARED`, and the bits that say whether a mapping is shared.
const MAP_SHARED: u32 = 1;
const MAP_TYPE: u32 = 0xf;
const MAP_SHARED_VALIDATE: u32 = 3;
/// `SHM_RDONLY`.
const SHM_RDONLY: u32 = 0o10000;
/// `MREMAP_DONTUNMAP`.
const DONTUNMAP: u32 = 4;
/// Flags of `mmap` that hold the exponent of the size of huge pages from their pool; 0: the usual size.
const HUGE_SHIFT: u32 = 26;
const HUGE_USUAL: u32 = 21;

/// Sizes of pages, and the flag that asks for huge ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageSizes {
    page: u64,
    huge_flag: u32,
}

impl PageSizes {
    /// Returns those of an architecture, given the page size in bytes.
    pub(super) fn of(arch: &str, page: u64) -> Self {
        let page = if page.is_power_of_two() { page } else { 4096 };
        // `MAP_HUGETLB`.
        let huge_flag = if arch.starts_with("mips") { 0x8_0000 } else { 0x4_0000 };
        Self { page, huge_flag }
    }

    /// Returns the page size of a call's mapping, in bytes: for huge pages from their pool, the kernel rounds lengths up to
    /// whole ones.
    fn of_call(&self, c: &Call) -> u64 {
        if c.kind != CallKind::Mmap || c.flags & self.huge_flag == 0 {
            return self.page;
        }
        let exponent = c.flags >> HUGE_SHIFT;
        1 << if exponent == 0 { HUGE_USUAL } else { exponent.min(40) }
    }
}

/// Returns what a call changes, given the page size; a failed call changes nothing.
pub(super) fn changes(e: &MapEvent, sizes: PageSizes) -> Option<Change> {
    let c = &e.call;
    if c.errno != 0 {
        return None;
    }
    let page = sizes.of_call(c);
    let up = |n: u64| n.checked_next_multiple_of(page);
    let range = |start: u64, len: u64| {
        let end = up(start.checked_add(len)?)?;
        (start < end).then_some((start, end))
    };
    let [read, write, execute] = PROT.map(|bit| c.prot & bit != 0);
    let name = |n: &str| Arc::<str>::from(n);
    let file = |perms: Perms| {
        let f = e.file.as_deref();
        Of {
            perms,
            offset: if f.is_some() { c.offset } else { 0 },
            device: f.map_or(0, |f| f.device),
            inode: f.map_or(0, |f| f.inode),
            name: name(f.map_or("", |f| &f.path)),
        }
    };
    let what = match c.kind {
        CallKind::Mmap => {
            let kind = c.flags & MAP_TYPE;
            let shared = kind == MAP_SHARED || kind == MAP_SHARED_VALIDATE;
            let of = file(Perms { read, write, execute, shared });
            What::Map { range: range(c.addr, c.len)?, of }
        }
        CallKind::Shmat => {
            let write = c.flags & SHM_RDONLY == 0;
            let of = file(Perms { read: true, write, execute: false, shared: true });
            What::Map { range: range(c.addr, c.len)?, of }
        }
        CallKind::Munmap => What::Unmap { range: range(c.addr, c.len)? },
        CallKind::Shmdt => What::Detach { start: c.addr },
        CallKind::Mremap => {
            let new = range(c.addr, c.len)?;
            match range(c.old_addr, c.old_len) {
                // A length of 0 asks for another mapping of what is shared there.
                None if c.old_len == 0 => What::Copy { old: (c.old_addr, c.old_addr), new },
                None => return None,
                Some(old) if c.flags & DONTUNMAP != 0 => What::Copy { old, new },
                Some(old) => What::Remap { old, new },
            }
        }
        CallKind::Mprotect => What::Protect { range: range(c.addr, c.len)?, read, write, execute },
        CallKind::Brk | CallKind::Sbrk => {
            let (old, new) = (up(c.old_addr)?, up(c.addr)?);
            let perms = Perms { read: true, write: true, ..Perms::default() };
            let of = Of { perms, offset: 0, device: 0, inode: 0, name: name("[heap]") };
            match old.cmp(&new) {
                _ if old == 0 => return None,
                std::cmp::Ordering::Less => What::Grow { range: (old, new), of },
                std::cmp::Ordering::Greater => What::Unmap { range: (new, old) },
                std::cmp::Ordering::Equal => return None,
            }
        }
        CallKind::NameVma => {
            let text = if c.name.is_empty() { String::new() } else { format!("[anon:{}]", c.name) };
            What::Name { range: range(c.addr, c.len)?, name: text.into() }
        }
        CallKind::Madvise
        | CallKind::Mallopt
        | CallKind::MallocTrim
        | CallKind::MallocInfo
        | CallKind::Mallctl
        | CallKind::MallctlByMib => return None,
    };
    Some(Change { source: Source { ticks: c.at(), thread: e.thread, node: c.node }, what })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(call: Call, arch: &str) -> Option<What> {
        changes(&MapEvent { thread: 1, call, file: None }, PageSizes::of(arch, 4096))
            .map(|c| c.what)
    }

    #[test]
    fn huge_pages_are_mapped_whole() {
        let mmap = |len, flags| Call { addr: 0x4000_0000, len, flags, ..Call::default() };
        let end = |call, arch| match of(call, arch) {
            Some(What::Map { range, .. }) => range.1 - range.0,
            other => panic!("{other:?}"),
        };
        assert_eq!(end(mmap(1, 0x4_0022), "x86_64"), 2 << 20);
        assert_eq!(end(mmap(1, 0x4_0022 | 30 << 26), "aarch64"), 1 << 30);
        // There the flag is another, and this one asks for a stack.
        assert_eq!(end(mmap(1, 0x4_0022), "mips64"), 4096);
        assert_eq!(end(mmap(1, 0x8_0022), "mips64"), 2 << 20);
        assert_eq!(end(mmap(1, 0x22 | 21 << 26), "x86_64"), 4096);
    }

    #[test]
    fn memory_that_is_mapped_twice_stays_at_the_old_place() {
        let mremap = |old_len, flags| {
            let (old_addr, kind) = (0x1000, CallKind::Mremap);
            Call { kind, addr: 0x9000, len: 0x2000, old_addr, old_len, flags, ..Call::default() }
        };
        let new = (0x9000, 0xb000);
        let old = (0x1000, 0x3000);
        assert_eq!(of(mremap(0x2000, 1), "arm"), Some(What::Remap { old, new }));
        assert_eq!(of(mremap(0x2000, 1 | 4), "arm"), Some(What::Copy { old, new }));
        let old = (0x1000, 0x1000);
        assert_eq!(of(mremap(0, 1), "arm"), Some(What::Copy { old, new }));
    }
}
