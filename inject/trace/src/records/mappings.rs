//! The target's mappings over time, as the kernel lists them.

use crate::ticks::Ticks;
use crate::wire::{Reader, Writer};
use std::string::String;
use std::vec::Vec;

record! {
    /// Changes of the target's mappings between two looks at them, and of their use of memory.
    Mappings {
        /// Ticks when the look began.
        begun: ticks,
        /// Ticks when the look ended.
        ticks: ticks,
        /// 1: the list and the numbers of names begin anew. 2: figures of use that are not given here are 0.
        flags: int,
        /// Names that were not used before: paths and the kernel's names such as `[heap]`. They are numbered from 1 on
        /// in the order in which they appear in such chunks.
        names: texts,
        /// Mappings of the list that are gone or have changed: each start minus the one before.
        gone: ints,
        /// Mappings that are new or have changed, in the order of addresses; see [`Mappings::put`].
        new: ints,
        /// Ticks of the figures of use; 0: there are none.
        usage_ticks: ticks,
        /// Figures of use that have changed; see [`Mappings::put_usage`].
        usage: ints,
        /// prof's own memory, if that has changed: pairs of start and end.
        ours: ints,
        /// Stacks of threads, if these have changed: triples of start, end and thread id.
        stacks: ints,
    }
}

/// [`Mappings::flags`]: the list and the numbers of names begin anew.
pub const MAPPINGS_ANEW: u64 = 1;
/// [`Mappings::flags`]: figures of use that are not given are 0.
pub const USAGE_ANEW: u64 = 2;

/// Permissions of a mapping, as bits.
pub mod perms {
    #![allow(missing_docs)]
    pub const READ: u64 = 1;
    pub const WRITE: u64 = 2;
    pub const EXECUTE: u64 = 4;
    pub const SHARED: u64 = 8;
}

/// One mapping of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappingLine {
    /// First address.
    pub start: u64,
    /// First address behind its end.
    pub end: u64,
    /// Permissions, see [`perms`].
    pub perms: u64,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Device, as major · 2^32 + minor.
    pub device: u64,
    /// Inode; 0: no file.
    pub inode: u64,
    /// Number of its name; 0: none.
    pub name: u64,
}

/// Figures of use of a mapping, in bytes, in the order in which they are encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappingUse {
    /// Resident.
    pub rss: u64,
    /// Resident and anonymous.
    pub anonymous: u64,
    /// Resident, of more than one process, and as in the file.
    pub shared_clean: u64,
    /// Resident, of more than one process, and written to.
    pub shared_dirty: u64,
    /// Resident, of this process alone, and as in the file.
    pub private_clean: u64,
    /// Resident, of this process alone, and written to.
    pub private_dirty: u64,
    /// Swapped out.
    pub swap: u64,
    /// Resident in huge pages, those of the kernel's pool included.
    pub huge: u64,
}

/// Number of integers of a mapping in [`Mappings::new`], and of one in [`Mappings::usage`].
const LINE: usize = 7;
const USE: usize = 10;

impl Mappings {
    /// Appends a mapping to [`Mappings::new`]: start minus the end of the one before, length, permissions, offset,
    /// device, inode, and name. `last` is the end of the one before, at first 0.
    pub fn put(&mut self, line: &MappingLine, last: &mut u64) {
        let m = line;
        let (gap, len) = (m.start.wrapping_sub(*last), m.end.wrapping_sub(m.start));
        self.new.extend([gap, len, m.perms, m.offset, m.device, m.inode, m.name]);
        *last = m.end;
    }

    /// Returns the mappings in [`Mappings::new`]; those that make no sense are left out.
    pub fn lines(&self) -> impl Iterator<Item = MappingLine> + '_ {
        let mut last = 0u64;
        self.new.as_chunks::<LINE>().0.iter().filter_map(move |l| {
            let start = last.wrapping_add(l[0]);
            let end = start.checked_add(l[1]).filter(|end| *end > start);
            last = start.wrapping_add(l[1]);
            let [_, _, perms, offset, device, inode, name] = *l;
            Some(MappingLine { start, end: end?, perms, offset, device, inode, name })
        })
    }

    /// Returns the starts in [`Mappings::gone`].
    pub fn gone_starts(&self) -> impl Iterator<Item = u64> + '_ {
        self.gone.iter().scan(0u64, |at, d| {
            *at = at.wrapping_add(*d);
            Some(*at)
        })
    }

    /// Appends the use of an address range to [`Mappings::usage`]: start minus the end of the one before, length, and
    /// the fields of [`MappingUse`].
    pub fn put_usage(&mut self, start: u64, end: u64, u: &MappingUse, last: &mut u64) {
        self.usage.extend([start.wrapping_sub(*last), end.wrapping_sub(start)]);
        self.usage.extend([u.rss, u.anonymous, u.shared_clean, u.shared_dirty]);
        self.usage.extend([u.private_clean, u.private_dirty, u.swap, u.huge]);
        *last = end;
    }

    /// Returns start, end and use of the ranges in [`Mappings::usage`]; those that make no sense are left out.
    pub fn uses(&self) -> impl Iterator<Item = (u64, u64, MappingUse)> + '_ {
        let mut last = 0u64;
        self.usage.as_chunks::<USE>().0.iter().filter_map(move |u| {
            let start = last.wrapping_add(u[0]);
            let end = start.checked_add(u[1]).filter(|end| *end > start);
            last = start.wrapping_add(u[1]);
            let [rss, anonymous, shared_clean, shared_dirty] = [u[2], u[3], u[4], u[5]];
            let [private_clean, private_dirty, swap, huge] = [u[6], u[7], u[8], u[9]];
            let clean_and_dirty = MappingUse {
                shared_clean,
                shared_dirty,
                private_clean,
                private_dirty,
                ..Default::default()
            };
            Some((start, end?, MappingUse { rss, anonymous, swap, huge, ..clean_and_dirty }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn mappings_come_back_as_they_were_put() {
        let lines = [
            MappingLine {
                start: 0x1000,
                end: 0x3000,
                perms: 5,
                offset: 0x2000,
                device: 7,
                inode: 9,
                name: 1,
            },
            MappingLine { start: 0x3000, end: 0x4000, perms: 3, ..MappingLine::default() },
            MappingLine {
                start: u64::MAX - 0x1fff,
                end: u64::MAX - 0xfff,
                ..MappingLine::default()
            },
        ];
        let mut m = Mappings {
            begun: Ticks(1),
            ticks: Ticks(2),
            flags: MAPPINGS_ANEW,
            ..Mappings::default()
        };
        let mut last = 0;
        lines.iter().for_each(|l| m.put(l, &mut last));
        m.gone = vec![0x1000, 0x1000, 0x5000];
        let used = MappingUse {
            rss: 1,
            anonymous: 2,
            shared_clean: 3,
            shared_dirty: 4,
            private_clean: 5,
            private_dirty: 6,
            swap: 7,
            huge: 8,
        };
        let mut last = 0;
        m.put_usage(0x1000, 0x2000, &used, &mut last);
        m.put_usage(0x8000, 0x9000, &MappingUse::default(), &mut last);
        m.names = vec!["/a b".into()];
        let back = Mappings::decode(&m.encode()).expect("a record");
        assert_eq!(back, m);
        assert_eq!(back.lines().collect::<Vec<_>>(), lines);
        assert_eq!(back.gone_starts().collect::<Vec<_>>(), [0x1000, 0x2000, 0x7000]);
        let uses: Vec<_> = back.uses().collect();
        assert_eq!(uses, [(0x1000, 0x2000, used), (0x8000, 0x9000, MappingUse::default())]);
    }

    #[test]
    fn lines_that_make_no_sense_are_left_out() {
        let m = Mappings {
            new: vec![5, 0, 1, 0, 0, 0, 0, u64::MAX - 9, 100, 0, 0, 0, 0, 0, 1],
            ..Mappings::default()
        };
        assert_eq!(m.lines().count(), 0);
        let m = Mappings { usage: vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 0], ..Mappings::default() };
        assert_eq!(m.uses().count(), 0);
    }
}
