//! Names the C++ classes of blocks, by the tables of virtual functions that their first words lead to.

use crate::word::{WORD, word};
use prof_graph::Sum;
use prof_os::maps::Map;
use prof_os::memory::Reader;
use prof_os::{Pid, maps};
use std::collections::HashMap;
use std::ops::Range;

/// Greatest length of a class's mangled name.
const NAME: usize = 512;
/// Number of blocks that are put in order together, greatest distance between the beginnings of two blocks that are read
/// together, so that no page is read that the program may never have touched, and greatest number of bytes that are.
const BLOCKS: usize = 1 << 16;
const NEAR: u64 = 4096;
const PART: u64 = 256 << 10;

/// Returns the data that may hold tables of virtual functions, in order of their addresses: what comes from a file and can't be
/// written to.
pub(crate) fn constant(maps: &[Map]) -> Vec<Range<u64>> {
    let all = maps.iter().filter(|m| m.inode != 0 && !m.exec && !m.write && !m.shared);
    all.map(|m| m.start.0..m.end.0).collect()
}

/// Returns whether a word may be the address of a table of virtual functions in such data.
pub(crate) fn may_be_table(constant: &[Range<u64>], word: u64) -> bool {
    let n = constant.partition_point(|r| r.start <= word);
    n > 0 && word < constant[n - 1].end && word.is_multiple_of(WORD as u64)
}

/// Returns the name of the class that a table of virtual functions belongs to, as the Itanium C++ ABI (2.9.5) mangles it: the
/// word before the table leads to the type's information, whose second word leads to the name.
pub(crate) fn name_of(reader: &Reader, table: u64) -> Option<String> {
    let word = |at: u64| word_at(reader, at);
    let info = word(table.checked_sub(WORD as u64)?)?;
    let name = word(info.checked_add(WORD as u64)?)?;
    // GNU's compiler marks names that are not unique by an asterisk, which is no part of them.
    let mut bytes = [0; NAME];
    let n = reader.read(name, &mut bytes);
    let end = bytes[..n].iter().position(|b| *b == 0)?;
    let text = std::str::from_utf8(&bytes[..end]).ok()?;
    let text = text.strip_prefix('*').unwrap_or(text);
    let is_type = text.starts_with(|c: char| c.is_ascii_digit() || c == 'N' || c == 'S');
    let is_plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    (is_type && is_plain).then(|| text.to_owned())
}

fn word_at(reader: &Reader, at: u64) -> Option<u64> {
    let mut bytes = [0; WORD];
    (reader.read(at, &mut bytes) == WORD).then(|| usize::from_ne_bytes(bytes) as u64)
}

/// Names the classes of a process's blocks, from its memory as it is now.
#[derive(Debug)]
pub struct Classes {
    reader: Reader,
    constant: Vec<Range<u64>>,
    /// The names of the tables that were met, mangled; `None`: the word leads to no table.
    known: HashMap<u64, Option<String>>,
    bytes: Vec<u8>,
}

impl Classes {
    /// Prepares for the blocks of process `pid`; `None` if it is gone, or its memory may not be read.
    #[must_use]
    pub fn open(pid: Pid) -> Option<Self> {
        let constant = constant(&maps::of(pid).ok()?);
        let reader = Reader::open(pid).ok()?;
        Some(Self { reader, constant, known: HashMap::new(), bytes: Vec::new() })
    }

    /// Returns the mangled name of the class of the object that begins at an address; `None` if none with virtual functions
    /// does.
    #[must_use]
    pub fn of_block(&mut self, address: u64) -> Option<&str> {
        let table = word_at(&self.reader, address)?;
        self.of_table(table)
    }

    fn of_table(&mut self, table: u64) -> Option<&str> {
        if !may_be_table(&self.constant, table) {
            return None;
        }
        let reader = &self.reader;
        self.known.entry(table).or_insert_with(|| name_of(reader, table)).as_deref()
    }

    /// Adds up blocks, each with its address and size, by the class of the object that they begin with. Returns the sums by
    /// the classes' mangled names. Blocks that begin with no such object are left out. Neighbours are read together.
    #[must_use]
    pub fn sums(&mut self, blocks: impl Iterator<Item = (u64, u64)>) -> HashMap<String, Sum> {
        let (mut by_table, mut blocks) = (HashMap::<u64, Sum>::new(), blocks.peekable());
        while blocks.peek().is_some() {
            let mut some: Vec<(u64, u64)> = blocks.by_ref().take(BLOCKS).collect();
            some.sort_unstable();
            let mut rest = &some[..];
            while let Some(&(start, _)) = rest.first() {
                let near = |w: &[(u64, u64)]| w[1].0 - w[0].0 <= NEAR && w[1].0 - start <= PART;
                let n = 1 + rest.windows(2).take_while(|w| near(w)).count();
                self.add_up(&rest[..n], &mut by_table);
                rest = &rest[n..];
            }
        }
        let mut by_name: HashMap<String, Sum> = HashMap::new();
        for (table, sum) in by_table {
            if let Some(name) = self.of_table(table) {
                *by_name.entry(name.to_owned()).or_default() += sum;
            }
        }
        by_name
    }

    /// Adds up blocks that lie near each other, in the order of their addresses, by their first words if these may lead to
    /// tables.
    fn add_up(&mut self, blocks: &[(u64, u64)], by_table: &mut HashMap<u64, Sum>) {
        let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else { return };
        self.bytes.resize((last.0 - first.0) as usize + WORD, 0);
        let n = self.reader.read(first.0, &mut self.bytes);
        for (address, size) in blocks {
            let at = (address - first.0) as usize;
            let table = match self.bytes[..n].get(at..at + WORD) {
                Some(bytes) => word(bytes, 0),
                // A page in between is gone, or may not be read.
                None => word_at(&self.reader, *address).unwrap_or(0),
            };
            if may_be_table(&self.constant, table) {
                *by_table.entry(table).or_default() += Sum { bytes: *size, blocks: 1 };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_of_constant_data_may_be_tables() {
        let constant = [0x1000..0x2000, 0x4000..0x5000];
        for (word, may_be) in [
            (0, false),
            (0x0ff8, false),
            (0x1000, true),
            (0x1004 | 1, false),
            (0x1ff8, true),
            (0x2000, false),
            (0x4ff8, true),
            (0x5000, false),
        ] {
            assert_eq!(may_be_table(&constant, word), may_be, "{word:#x}");
        }
        assert!(!may_be_table(&[], 0x1000));
    }

    #[test]
    fn a_name_is_read_by_way_of_the_types_information() {
        let reader = Reader::open(Pid::this()).expect("own memory");
        let name = |name: &std::ffi::CStr| {
            let info = [0, name.as_ptr() as usize];
            let table = [info.as_ptr() as usize, 0];
            name_of(&reader, &raw const table[1] as u64)
        };
        assert_eq!(name(c"7Session"), Some("7Session".into()));
        assert_eq!(name(c"*N4shop4CartE"), Some("N4shop4CartE".into()));
        assert_eq!((name(c"session"), name(c"7Ses sion"), name(c"")), (None, None, None));
        // Without virtual functions, anything may stand there.
        assert_eq!((name_of(&reader, 0), name_of(&reader, 8)), (None, None));
        let mut classes = Classes::open(Pid::this()).expect("own memory");
        let block = Box::new([1usize, 2]);
        assert_eq!(classes.of_block(block.as_ptr() as u64), None);
        assert_eq!(classes.of_block(1), None);
    }

    #[test]
    fn blocks_are_added_up_by_class_wherever_they_lie() {
        // A program's own constant data is what a compiler puts tables into; here the heap has to do.
        let name = c"7Session";
        let info = [0, name.as_ptr() as usize];
        let tables = [info.as_ptr() as usize, 0, info.as_ptr() as usize, 0];
        let table = |i: usize| &raw const tables[i] as usize;
        let mut memory = vec![0usize; 1 << 17];
        let at: Vec<usize> = (0..1000).chain((1000..memory.len()).step_by(701)).collect();
        for (k, i) in at.iter().enumerate() {
            memory[*i] = [table(1), table(3), 5][k % 3];
        }
        let mut classes = Classes::open(Pid::this()).expect("own memory");
        let all = &raw const tables[0] as u64;
        classes.constant.push(all..all + size_of_val(&tables) as u64);
        classes.constant.sort_unstable_by_key(|r| r.start);
        let mut blocks: Vec<(u64, u64)> =
            at.iter().map(|i| (&raw const memory[*i] as u64, 8)).collect();
        // The last is not there.
        blocks.push((8, 8));
        blocks.reverse();
        let sums = classes.sums(blocks.into_iter());
        let expected = (at.len() - at.len() / 3) as u64;
        assert_eq!(sums.len(), 1);
        assert_eq!(sums["7Session"], Sum { bytes: expected * 8, blocks: expected });
    }
}
