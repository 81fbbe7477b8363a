//! Names the C++ classes of blocks, by the tables of virtual functions that their first words lead to.

use crate::word::WORD;
use prof_os::maps::Map;
use prof_os::memory::Reader;
use prof_os::{Pid, maps};
use std::collections::HashMap;
use std::ops::Range;

/// Greatest length of a class's mangled name.
const NAME: usize = 512;

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

/// Names the classes of a process's blocks one by one, from its memory as it is now.
#[derive(Debug)]
pub struct Classes {
    reader: Reader,
    constant: Vec<Range<u64>>,
    /// The names of the tables that were met, mangled; `None`: the word leads to no table.
    known: HashMap<u64, Option<String>>,
}

impl Classes {
    /// Prepares for the blocks of process `pid`; `None` if it is gone, or its memory may not be read.
    #[must_use]
    pub fn open(pid: Pid) -> Option<Self> {
        let constant = constant(&maps::of(pid).ok()?);
        Some(Self { reader: Reader::open(pid).ok()?, constant, known: HashMap::new() })
    }

    /// Returns the mangled name of the class of the object that begins at an address; `None` if none with virtual functions
    /// does.
    #[must_use]
    pub fn of_block(&mut self, address: u64) -> Option<&str> {
        let table = word_at(&self.reader, address)?;
        if !may_be_table(&self.constant, table) {
            return None;
        }
        let reader = &self.reader;
        self.known.entry(table).or_insert_with(|| name_of(reader, table)).as_deref()
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
        assert_eq!((name(c"Session"), name(c"7Ses sion"), name(c"")), (None, None, None));
        // Without virtual functions, anything may stand there.
        assert_eq!((name_of(&reader, 0), name_of(&reader, 8)), (None, None));
        let mut classes = Classes::open(Pid::this()).expect("own memory");
        let block = Box::new([1usize, 2]);
        assert_eq!(classes.of_block(block.as_ptr() as u64), None);
        assert_eq!(classes.of_block(1), None);
    }
}
