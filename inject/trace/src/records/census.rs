//! The blocks that a process had before its recording began, as a census of its heap has found them.

use crate::size::Header;
use crate::ticks::Ticks;
use crate::wire::{Reader, Writer};
use std::string::String;
use std::vec::Vec;

record! {
    /// A part of a census: blocks that were live when recording began, and that nobody saw being allocated. All parts
    /// have the same ticks, and no event of the recording is older.
    Census {
        /// Ticks of the moment, in which all threads stood still.
        ticks: ticks,
        /// Time for which they stood still, in nanoseconds.
        stop_ns: int,
        /// Number of blocks in this part.
        count: int,
        /// Encoded blocks, see [`Census::put`].
        bytes: bytes,
        /// The blocks whose class is known: for each, the number of blocks that are skipped since the one before it, and
        /// the number of its class.
        classes: later_ints,
    }
}

record! {
    /// Names of C++ classes, to which the blocks of [`Census`] refer.
    CensusClasses {
        /// Number of the first name. Numbers begin with 1.
        first: int,
        /// The names, as the Itanium C++ ABI mangles them.
        names: texts,
    }
}

/// A block from before the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CensusBlock {
    /// Address that the program has.
    pub address: u64,
    /// Bytes that the program can use: what it has asked for is not known.
    pub size: u64,
    /// Arena, and whether the block is mapped on its own.
    pub header: Header,
    /// Number of the C++ class of the object that the block begins with; 0: not known.
    pub class: u32,
}

/// Code of a block that is mapped on its own; below it stand the arenas.
const MAPPED: u64 = 3;

impl Census {
    /// Number of blocks of a part: a reader holds one part at a time.
    pub const PART: usize = 1 << 16;

    /// Appends a block. `at` is the default at first, and is kept between the calls for one part.
    pub fn put(&mut self, at: &mut CensusAt, block: &CensusBlock) {
        match block.class {
            0 => at.skipped += 1,
            class => {
                self.classes.extend([at.skipped, u64::from(class)]);
                at.skipped = 0;
            }
        }
        let mut w = Writer { bytes: core::mem::take(&mut self.bytes) };
        let code = if block.header.mapped { MAPPED } else { u64::from(block.header.arena.min(2)) };
        w.int(block.address.wrapping_sub(at.end)).int(block.size << 2 | code);
        self.bytes = w.bytes;
        self.count += 1;
        at.end = block.address.wrapping_add(block.size);
    }

    /// Returns the blocks, as far as they are not malformed.
    pub fn into_blocks(self) -> CensusBlocks {
        let classes = self.classes.into_iter();
        let mut blocks = CensusBlocks {
            bytes: self.bytes,
            at: 0,
            left: self.count,
            end: 0,
            classes,
            class: None,
        };
        blocks.class = blocks.next_class();
        blocks
    }
}

/// The state of the encoder between two blocks of a part.
#[derive(Clone, Copy, Debug, Default)]
pub struct CensusAt {
    /// End of the last block: the next address is stored as the distance from it.
    end: u64,
    /// Number of blocks without a class since the last one with a class.
    skipped: u64,
}

/// The blocks of a part.
#[derive(Clone, Debug, Default)]
pub struct CensusBlocks {
    bytes: Vec<u8>,
    at: usize,
    left: u64,
    end: u64,
    classes: std::vec::IntoIter<u64>,
    /// Number of blocks in front of the next one with a class, and the number of that.
    class: Option<(u64, u32)>,
}

impl CensusBlocks {
    fn next_class(&mut self) -> Option<(u64, u32)> {
        let skipped = self.classes.next()?;
        // A number that no class can have says that the class is not known.
        Some((skipped, u32::try_from(self.classes.next()?).unwrap_or(0)))
    }

    /// Returns the class of the next block.
    fn take_class(&mut self) -> u32 {
        match &mut self.class {
            None => 0,
            Some((0, class)) => {
                let class = *class;
                self.class = self.next_class();
                class
            }
            Some((skipped, _)) => {
                *skipped -= 1;
                0
            }
        }
    }

    /// Returns the bytes that are not decoded, after the last block; a missing block counts as one.
    pub fn damaged(&self) -> u64 {
        ((self.bytes.len() - self.at) as u64).max(u64::from(self.left > 0))
    }
}

impl Iterator for CensusBlocks {
    type Item = CensusBlock;

    fn next(&mut self) -> Option<CensusBlock> {
        let left = self.left.checked_sub(1)?;
        let mut r = Reader::new(self.bytes.get(self.at..)?);
        let address = self.end.wrapping_add(r.int()?);
        let coded = r.int()?;
        self.at = self.bytes.len() - r.rest().len();
        self.left = left;
        let (size, code) = (coded >> 2, coded & 3);
        self.end = address.wrapping_add(size);
        let mapped = code == MAPPED;
        let header = Header { arena: if mapped { 0 } else { code as u8 }, mapped, extra: 0 };
        Some(CensusBlock { address, size, header, class: self.take_class() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_back_and_bad_ones_end_the_part() {
        let main = Header { arena: 1, ..Header::default() };
        let mapped = Header { mapped: true, ..Header::default() };
        let all = [
            CensusBlock { address: 0x1010, size: 24, header: main, class: 0 },
            CensusBlock {
                address: 0x1030,
                size: 1 << 33,
                header: Header { arena: 2, ..main },
                class: 70_000,
            },
            CensusBlock { address: u64::MAX - 4111, size: 4080, header: mapped, class: 1 },
            CensusBlock { address: 16, ..CensusBlock::default() },
        ];
        let mut c = Census { ticks: Ticks(7), stop_ns: 9, ..Census::default() };
        let mut at = CensusAt::default();
        all.iter().for_each(|b| c.put(&mut at, b));
        let c = Census::decode(&c.encode()).expect("a census");
        assert_eq!((c.ticks, c.stop_ns, c.count), (Ticks(7), 9, 4));
        let mut back = c.clone().into_blocks();
        assert_eq!(back.by_ref().collect::<Vec<_>>(), all);
        assert_eq!(back.damaged(), 0);
        for cut in 0..c.bytes.len() {
            let less = Census { bytes: c.bytes[..cut].to_vec(), ..c.clone() };
            let mut back = less.into_blocks();
            assert!(back.by_ref().count() < 4, "{cut}");
            assert!(back.damaged() > 0, "{cut}");
        }
        let mut fewer = Census { count: 1, ..c.clone() }.into_blocks();
        assert_eq!((fewer.by_ref().count(), fewer.damaged() > 0), (1, true));
        // An earlier version writes no classes, and a list of them may say what cannot be.
        let of = |classes: &[u64]| -> Vec<u32> {
            let c = Census { classes: classes.to_vec(), ..c.clone() };
            c.into_blocks().map(|b| b.class).collect()
        };
        assert_eq!((of(&[]), of(&[1])), ([0; 4].into(), [0; 4].into()));
        assert_eq!(of(&[1, 1 << 32, 0, 3, u64::MAX, 4]), [0, 0, 3, 0]);
    }
}
