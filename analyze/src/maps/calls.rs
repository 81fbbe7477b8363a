//! Says what recorded calls do to mappings.

use super::table::Of;
use super::{Perms, Source};
use crate::load::MapEvent;
use prof_trace::call::CallKind;
use std::sync::Arc;

/// A change of the mappings by a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub source: Source,
    pub what: What,
}

/// The effect of a call. Ranges are of whole pages, and not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A mapping is made, in place of what is there.
    Map { range: (u64, u64), of: Of },
    /// A range is taken away.
    Unmap { range: (u64, u64) },
    /// The whole mapping that begins there is taken away.
    Detach { start: u64 },
    /// A range is moved, or made longer or shorter.
    Remap { old: (u64, u64), new: (u64, u64) },
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

/// Returns what a call changes, given the page size; a failed call changes nothing.
pub fn changes(e: &MapEvent, page: u64) -> Option<Change> {
    let c = &e.call;
    if c.errno != 0 {
        return None;
    }
    let page = if page.is_power_of_two() { page } else { 4096 };
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
            let (old, new) = (range(c.old_addr, c.old_len)?, range(c.addr, c.len)?);
            What::Remap { old, new }
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
        CallKind::Madvise | CallKind::Mallopt | CallKind::MallocTrim => return None,
    };
    Some(Change { source: Source { ticks: c.at(), thread: e.thread, node: c.node }, what })
}
