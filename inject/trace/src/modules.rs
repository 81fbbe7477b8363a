//! The table of modules, and the copies of their unwind tables.
//!
//! The hook unwinds from copies that stand in the shared memory: what it reads can't go, whatever the
//! target unloads, and no matter whether the hook was told. prof makes those of the modules that are
//! there at the attach; the hook and the collector those of later ones. Entries and copies are only ever
//! added, so that nobody can read what is replaced; a copy is used again by a module with the same tables,
//! which a library that is unloaded and loaded again has. What has no room is counted, and stacks are cut
//! where they come to it.

use crate::shared::{Control, MODULES, Module, Shared};
use crate::tables::TABLES;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Values of [`Module::ready`].
pub mod ready {
    /// It can be used.
    pub const LOADED: u32 = 1;
    /// It is gone.
    pub const UNLOADED: u32 = 2;
}

/// Bits of [`Module::flags`].
pub mod bits {
    /// The program and what it is linked against: never unloaded.
    pub const STAYS: u32 = 1;
    /// The dynamic linker's list was seen to have it.
    pub const LISTED: u32 = 2;
    /// Not all of its tables have a copy.
    pub const INCOMPLETE: u32 = 4;
}

/// What there is to know of a module.
#[derive(Clone, Copy, Debug, Default)]
pub struct New {
    /// See [`Module::start`].
    pub start: u64,
    /// See [`Module::end`].
    pub end: u64,
    /// See [`Module::bias`].
    pub bias: u64,
    /// Address and length of each of its [`Module::tables`].
    pub tables: [(u64, u64); TABLES],
}

/// Reads memory of the target; false if it is not all there.
pub type Read<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> bool;

/// The shared memory, and which part of it is for unwind tables.
#[derive(Clone, Copy, Debug)]
pub struct Modules {
    shared: Shared,
    /// Offsets of the first byte of the part and of the first one behind it.
    part: (u64, u64),
}

impl Modules {
    /// For prof, which knows the geometry.
    #[must_use]
    pub fn new(shared: Shared) -> Self {
        let part = shared.geometry().tables();
        Self { shared, part: (part.start as u64, part.end as u64) }
    }

    /// For the hook, which has mapped as much as the control page says.
    #[must_use]
    #[inline(always)]
    pub fn trusted(shared: Shared) -> Self {
        let c = shared.control();
        Self { shared, part: (c.tables_at, c.tables_at.wrapping_add(c.tables_len)) }
    }

    fn control(&self) -> &'static Control {
        self.shared.control()
    }

    /// Entries in use.
    #[must_use]
    pub fn count(&self) -> usize {
        (self.control().modules.load(Acquire) as usize).min(MODULES)
    }

    /// Those that are loaded, with their indices.
    fn loaded(&self) -> impl Iterator<Item = (usize, &'static Module)> {
        let all = (0..self.count()).filter_map(|i| Some((i, self.shared.module(i)?)));
        all.filter(|(_, m)| m.ready.load(Acquire) == ready::LOADED)
    }

    /// Whether a module is among them, and where.
    #[must_use]
    pub fn find(&self, is: impl Fn(&Module) -> bool) -> Option<usize> {
        self.loaded().find(|(_, m)| is(m)).map(|(i, _)| i)
    }

    /// The bytes of a copy, `len` of them at an offset; nothing if that is not inside the part.
    #[must_use]
    pub fn copy(&self, at: u64, len: u64) -> &'static [u8] {
        let fits = at >= self.part.0 && at <= self.part.1 && len <= self.part.1 - at;
        if !fits || len == 0 || len > isize::MAX as u64 {
            return &[];
        }
        // SAFETY: inside the part, which is mapped for as long as the memory is; copies are written before
        // their entry says so, and never again.
        unsafe { core::slice::from_raw_parts(self.shared.base().add(at as usize), len as usize) }
    }

    /// Takes room for a copy: its offset.
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

    /// Copies what `read` gives; the offset of the copy. It may be called for parts that are longer than
    /// what is there: then nothing is copied.
    fn put(&self, (addr, len): (u64, u64), read: Read<'_>) -> Option<u64> {
        let at = self.room(len)?;
        // SAFETY: this room is nobody else's yet.
        let to = unsafe {
            core::slice::from_raw_parts_mut(self.shared.base().add(at as usize), len as usize)
        };
        read(addr, to).then_some(at)
    }

    /// An earlier module whose tables were the same, byte by byte.
    fn same(&self, new: &New, read: Read<'_>) -> Option<&'static Module> {
        let mut alike = (0..self.count()).rev().filter_map(|i| self.shared.module(i)).filter(|m| {
            let lens = |t: &crate::tables::UnwindTable| t.len.load(Relaxed);
            m.ready.load(Acquire) != 0
                && m.flags.load(Relaxed) & bits::INCOMPLETE == 0
                && m.tables.iter().map(lens).eq(new.tables.iter().map(|t| t.1))
        });
        // The last one that looks alike; to compare more is not worth it.
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

    /// Takes a module out.
    pub fn retire(&self, index: usize) {
        let Some(m) = self.shared.module(index) else { return };
        let was = m.ready.compare_exchange(ready::LOADED, ready::UNLOADED, AcqRel, Relaxed);
        if was.is_ok() {
            self.control().modules_seq.fetch_add(1, AcqRel);
        }
    }

    /// Enters a module, with copies of its tables; `None` if there is no room for one more. What was in its
    /// place is gone. If somebody else enters the same one meanwhile, there are two entries, and no harm.
    pub fn add(&self, new: &New, flags: u32, name: &[u8], read: Read<'_>) -> Option<usize> {
        let c = self.control();
        for (i, m) in self.loaded() {
            let (start, end) = (m.start.load(Relaxed), m.end.load(Relaxed));
            let is_same = (start, end, m.bias.load(Relaxed)) == (new.start, new.end, new.bias);
            // One may lie in a gap of another.
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

/// Bytes that are compared at a time.
const PIECE: usize = 2048;

/// Whether modules may have come and gone unnoticed: recording was off, or nobody tells.
#[must_use]
#[inline(always)]
pub fn in_doubt(c: &Control) -> bool {
    c.doubts.load(Acquire) != c.doubts_settled.load(Relaxed)
}

/// Says so. Until it is settled only modules that stay are taken to be where they were.
pub fn doubt(c: &Control) {
    c.doubts.fetch_add(1, AcqRel);
    c.modules_seq.fetch_add(1, AcqRel);
}

/// All that there was to doubt when [`Control::doubts`] was `seen` has been looked at since.
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

    fn add(m: &Modules, start: u64, tables: [(u64, u64); TABLES], bytes: &[u8]) -> Option<usize> {
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
        // Another version of it does.
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
            // Each of another length, so that none is like another one.
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
