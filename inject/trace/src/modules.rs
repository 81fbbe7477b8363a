//! The module table, and the copies of the modules' unwind tables.
//!
//! The hook unwinds from copies in the shared memory. They stay readable whatever the target unloads, and
//! whether or not the hook was told. prof copies the tables of the modules that are loaded at the attach; the
//! hook and the collector copy those of later ones. Entries and copies are only ever added, so that no reader
//! sees one being replaced. A module with equal tables reuses an earlier copy, as does a library that is
//! unloaded and loaded again. Modules and tables for which there is no room are counted, and stacks are cut
//! at their frames.

use crate::shared::{Control, MODULES, Module, Shared, TABLES, UnwindTable};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Values of [`Module::ready`].
pub mod ready {
    /// The module is loaded, and its entry valid.
    pub const LOADED: u32 = 1;
    /// The module is unloaded.
    pub const UNLOADED: u32 = 2;
}

/// Bits of [`Module::flags`].
pub mod bits {
    /// The module is never unloaded: it is the program, or linked to the program.
    pub const STAYS: u32 = 1;
    /// The module was seen in the dynamic linker's list.
    pub const LISTED: u32 = 2;
    /// A copy of its tables is missing.
    pub const INCOMPLETE: u32 = 4;
}

/// A module to be added.
#[derive(Clone, Copy, Debug, Default)]
pub struct New {
    /// See [`Module::start`].
    pub start: u64,
    /// See [`Module::end`].
    pub end: u64,
    /// See [`Module::bias`].
    pub bias: u64,
    /// Address and length of each unwind table, see [`Module::tables`].
    pub tables: [(u64, u64); TABLES],
}

/// Reads memory of the target; returns false if not all of it can be read.
pub type Read<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> bool;

/// Access to the module table and to the copies of unwind tables.
#[derive(Clone, Copy, Debug)]
pub struct Modules<'a> {
    shared: Shared<'a>,
    /// Offsets of the start and of the end of the area for copies.
    part: (u64, u64),
}

impl<'a> Modules<'a> {
    /// Makes the access for prof, which takes the bounds from its own geometry.
    #[must_use]
    pub fn new(shared: Shared<'a>) -> Self {
        let part = shared.geometry().tables();
        Self { shared, part: (part.start as u64, part.end as u64) }
    }

    /// Makes the access for the hook, which takes the bounds from the control page.
    #[must_use]
    #[inline(always)]
    pub fn trusted(shared: Shared<'a>) -> Self {
        let c = shared.control();
        Self { shared, part: (c.tables_at, c.tables_at.wrapping_add(c.tables_len)) }
    }

    fn control(&self) -> &'a Control {
        self.shared.control()
    }

    /// Returns the number of entries in use.
    #[must_use]
    pub fn count(&self) -> usize {
        (self.control().modules.load(Acquire) as usize).min(MODULES)
    }

    /// Returns the loaded modules with their indices.
    fn loaded(&self) -> impl Iterator<Item = (usize, &'a Module)> {
        let all = (0..self.count()).filter_map(|i| Some((i, self.shared.module(i)?)));
        all.filter(|(_, m)| m.ready.load(Acquire) == ready::LOADED)
    }

    /// Returns the index of the first loaded module for which `is` returns true.
    #[must_use]
    pub fn find(&self, is: impl Fn(&Module) -> bool) -> Option<usize> {
        self.loaded().find(|(_, m)| is(m)).map(|(i, _)| i)
    }

    /// Returns `len` bytes of a copy at an offset; an empty slice if they are not inside the area for copies.
    #[must_use]
    pub fn copy(&self, at: u64, len: u64) -> &'a [u8] {
        let fits = at >= self.part.0 && at <= self.part.1 && len <= self.part.1 - at;
        if !fits || len == 0 || len > isize::MAX as u64 {
            return &[];
        }
        // SAFETY: the range is inside the area, which stays mapped as long as the memory does. A copy is
        // complete before its entry names it, and never changes afterwards.
        unsafe { core::slice::from_raw_parts(self.shared.base().add(at as usize), len as usize) }
    }

    /// Reserves room for a copy; returns its offset.
    fn room(&self, len: u64) -> Option<u64> {
        let c = self.control();
        let mut next = c.tables_next.load(Relaxed);
        loop {
            let at = next.max(self.part.0);
            let end = at.checked_add(len)?.checked_next_multiple_of(8)?;
            if end > self.part.1 {
                return None;
            }
            match c.tables_next.compare_exchange_weak(next, end, AcqRel, Relaxed) {
                Ok(_) => return Some(at),
                Err(now) => next = now,
            }
        }
    }

    /// Copies a table of the target; returns the offset of the copy, or `None` if there is no room or not all
    /// of the table can be read.
    fn put(&self, (addr, len): (u64, u64), read: Read<'_>) -> Option<u64> {
        let at = self.room(len)?;
        // SAFETY: the range was reserved above, so that nobody else accesses it.
        let to = unsafe {
            core::slice::from_raw_parts_mut(self.shared.base().add(at as usize), len as usize)
        };
        read(addr, to).then_some(at)
    }

    /// Returns an earlier module whose tables are equal byte by byte.
    fn same(&self, new: &New, read: Read<'_>) -> Option<&'a Module> {
        let mut alike = (0..self.count()).rev().filter_map(|i| self.shared.module(i)).filter(|m| {
            let lens = |t: &UnwindTable| t.len.load(Relaxed);
            m.ready.load(Acquire) != 0
                && m.flags.load(Relaxed) & bits::INCOMPLETE == 0
                && m.tables.iter().map(lens).eq(new.tables.iter().map(|t| t.1))
        });
        // Only the newest module with equal lengths is compared: comparing more is not worth the time.
        let m = alike.next()?;
        let equal = new.tables.iter().zip(&m.tables).all(|((addr, len), t)| {
            let copy = self.copy(t.at.load(Relaxed), *len);
            let pieces = copy.chunks(PIECE);
            copy.len() as u64 == *len
                && pieces.enumerate().all(|(k, piece)| {
                    let mut now = [0; PIECE];
                    let Some(now) = now.get_mut(..piece.len()) else { return false };
                    read(addr.wrapping_add((k * PIECE) as u64), now) && *now == *piece
                })
        });
        equal.then_some(m)
    }

    /// Marks a module as unloaded.
    pub fn retire(&self, index: usize) {
        let Some(m) = self.shared.module(index) else { return };
        let was = m.ready.compare_exchange(ready::LOADED, ready::UNLOADED, AcqRel, Relaxed);
        if was.is_ok() {
            self.control().modules_seq.fetch_add(1, AcqRel);
        }
    }

    /// Adds a module with copies of its tables; returns its index, or `None` if the module table is full.
    /// Loaded modules that overlap it are retired. If two threads add the same module at a time, there are
    /// two entries, which does no harm.
    pub fn add(&self, new: &New, flags: u32, name: &[u8], read: Read<'_>) -> Option<usize> {
        let c = self.control();
        for (i, m) in self.loaded() {
            let (start, end) = (m.start.load(Relaxed), m.end.load(Relaxed));
            let is_same = (start, end, m.bias.load(Relaxed)) == (new.start, new.end, new.bias);
            // A module may lie in a gap between the segments of another.
            let overlaps = start < new.end && new.start < end;
            let within =
                (start < new.start && new.end < end) || (new.start < start && end < new.end);
            if overlaps && !is_same && !(within && m.flags.load(Relaxed) & bits::STAYS != 0) {
                self.retire(i);
            }
        }
        let i = c.modules.fetch_add(1, AcqRel) as usize;
        let Some(m) = self.shared.module(i) else {
            c.modules.store(MODULES as u32, Relaxed);
            c.modules_lost.fetch_add(1, Relaxed);
            return None;
        };
        m.start.store(new.start, Relaxed);
        m.end.store(new.end, Relaxed);
        m.bias.store(new.bias, Relaxed);
        for (to, from) in m.name.iter().take(m.name.len() - 1).zip(name) {
            to.store(*from, Relaxed);
        }
        let mut flags = flags;
        let same = self.same(new, read);
        for (k, (to, (addr, len))) in m.tables.iter().zip(new.tables).enumerate() {
            let at = match same.and_then(|s| s.tables.get(k)) {
                _ if len == 0 => Some(0),
                Some(t) => Some(t.at.load(Relaxed)),
                None => self.put((addr, len), read),
            };
            if at.is_none() {
                flags |= bits::INCOMPLETE;
            }
            to.addr.store(addr, Relaxed);
            to.at.store(at.unwrap_or(0), Relaxed);
            to.len.store(if at.is_some() { len } else { 0 }, Relaxed);
        }
        if flags & bits::INCOMPLETE != 0 {
            c.tables_lost.fetch_add(1, Relaxed);
        }
        m.flags.store(flags, Relaxed);
        m.ready.store(ready::LOADED, Release);
        c.modules_seq.fetch_add(1, AcqRel);
        Some(i)
    }
}

/// Bytes compared at a time.
const PIECE: usize = 2048;

/// Returns whether modules may have come and gone unnoticed: recording was off, or nobody reports changes.
#[must_use]
#[inline(always)]
pub fn in_doubt(c: &Control) -> bool {
    c.doubts.load(Acquire) != c.doubts_settled.load(Relaxed)
}

/// Notes that modules may have changed unnoticed. Until that is settled, only modules that are never unloaded
/// count as loaded.
pub fn doubt(c: &Control) {
    c.doubts.fetch_add(1, AcqRel);
    c.modules_seq.fetch_add(1, AcqRel);
}

/// Settles all doubts up to the value `seen` of [`Stable::doubts`](crate::shared::Stable::doubts): the
/// modules have been checked since.
pub fn settle(c: &Control, seen: u32) {
    c.doubts_settled.store(seen, Release);
    c.modules_seq.fetch_add(1, AcqRel);
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn memory() -> Vec<u8> {
        (0..=255u8).cycle().take(4096).collect()
    }

    fn add(
        m: &Modules<'_>,
        start: u64,
        tables: [(u64, u64); TABLES],
        bytes: &[u8],
    ) -> Option<usize> {
        let new = New { start, end: start + 0x1000, bias: start, tables };
        m.add(&new, 0, b"lib", &mut |at, to| {
            let from = (at - start) as usize;
            bytes.get(from..from + to.len()).map(|b| to.copy_from_slice(b)).is_some()
        })
    }

    #[test]
    fn a_library_that_comes_again_takes_no_more_room() {
        let s = Shared::leaked_with(1 << 16);
        let m = Modules::new(s);
        let mut bytes = memory();
        let tables = |start: u64| [(start + 16, 100), (start + 200, 3000), (0, 0), (0, 0)];
        let mut used = Vec::new();
        for k in 1..50u64 {
            let start = k << 20;
            let i = add(&m, start, tables(start), &bytes).expect("room");
            let e = s.module(i).expect("entry");
            let t = &e.tables[1];
            assert_eq!(m.copy(t.at.load(Relaxed), t.len.load(Relaxed)), &bytes[200..3200]);
            used.push(s.control().tables_next.load(Relaxed));
            m.retire(i);
        }
        assert!(used.windows(2).all(|w| w[0] == w[1]), "{used:?}");
        // Another version of the library gets a copy of its own.
        bytes[1000] ^= 1;
        add(&m, 50 << 20, tables(50 << 20), &bytes).expect("room");
        assert!(s.control().tables_next.load(Relaxed) > used[0]);
        assert_eq!(s.control().tables_lost.load(Relaxed), 0);
    }

    #[test]
    fn what_has_no_room_or_can_not_be_read_is_counted() {
        let s = Shared::leaked_with(1 << 16);
        let m = Modules::new(s);
        let bytes = memory();
        let i = add(&m, 1 << 20, [((1 << 20) + 4000, 200), (0, 0), (0, 0), (0, 0)], &bytes);
        let e = s.module(i.expect("an entry")).expect("entry");
        assert_eq!(e.tables[0].len.load(Relaxed), 0);
        assert_ne!(e.flags.load(Relaxed) & bits::INCOMPLETE, 0);
        let mut lost = 1;
        assert_eq!(s.control().tables_lost.load(Relaxed), lost);
        for k in 2..40u64 {
            // Each length is different, so that no module equals another.
            let start = k << 20;
            add(&m, start, [(start, 2000 + k), (0, 0), (0, 0), (0, 0)], &bytes).expect("an entry");
            lost = s.control().tables_lost.load(Relaxed);
        }
        assert!(lost > 5, "{lost}");
        assert!(s.control().tables_next.load(Relaxed) <= s.geometry().tables().end as u64);
    }

    #[test]
    fn numbers_in_the_memory_lead_nowhere() {
        let s = Shared::leaked_with(1 << 16);
        let m = Modules::new(s);
        for next in [0, 1, u64::MAX, u64::MAX - 7, s.geometry().tables().end as u64 - 8] {
            s.control().tables_next.store(next, Relaxed);
            add(&m, 1 << 20, [(1 << 20, 64), (0, 0), (0, 0), (0, 0)], &memory());
            for len in [0, 1, u64::MAX] {
                assert!(m.copy(next, len).len() <= 1 << 16);
            }
        }
    }

    #[test]
    fn what_is_in_its_place_is_gone() {
        let s = Shared::leaked_with(1 << 16);
        let m = Modules::new(s);
        let none = [(0, 0); TABLES];
        let a = add(&m, 0x10_0000, none, &[]).expect("room");
        let b = add(&m, 0x10_0800, none, &[]).expect("room");
        let c = add(&m, 0x20_0000, none, &[]).expect("room");
        let now = |i: usize| s.module(i).expect("entry").ready.load(Relaxed);
        assert_eq!([a, b, c].map(now), [ready::UNLOADED, ready::LOADED, ready::LOADED]);
        assert!(!in_doubt(s.control()));
        doubt(s.control());
        assert!(in_doubt(s.control()));
        settle(s.control(), s.control().doubts.load(Relaxed));
        assert!(!in_doubt(s.control()));
    }
}
