//! Names the C++ classes of blocks, by the tables of virtual functions that their first words lead to.

use crate::word::{WORD, word};
use prof_graph::Sum;
use prof_os::maps::Map;
use prof_os::memory::Reader;
use prof_os::{Pid, maps};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Greatest length of a class's mangled name.
const NAME: usize = 512;
/// Number of blocks that are put in order together, greatest distance between the beginnings of two blocks that are read
/// together, so that no page is read that the program may never have touched, and greatest number of bytes that are.
const BLOCKS: usize = 1 << 16;
const NEAR: u64 = 4096;
const PART: u64 = 256 << 10;

/// Beginning of the mangled names of the classes whose objects are information on types (Itanium C++ ABI, 2.9.5).
const OF_TYPES: &str = "N10__cxxabiv1";

/// Returns the data that may hold tables of virtual functions, in order of their addresses: that comes from a file and is no
/// code. Where linkers make no data that is constant from the start on (MIPS), the tables lie in data that can be written to:
/// of a program or library, whose file has code as well.
pub(crate) fn constant(maps: &[Map]) -> Vec<Range<u64>> {
    let file = |m: &Map| (m.device, m.inode);
    let with_code: HashSet<_> = maps.iter().filter(|m| m.inode != 0 && m.exec).map(file).collect();
    let may = |m: &&Map| !m.write || with_code.contains(&file(m));
    let all = maps.iter().filter(|m| m.inode != 0 && m.read && !m.exec && !m.shared);
    all.filter(may).map(|m| m.start.0..m.end.0).collect()
}

/// Returns whether a word may be the address of a table of virtual functions in such data.
pub(crate) fn may_be_table(constant: &[Range<u64>], word: u64) -> bool {
    let n = constant.partition_point(|r| r.start <= word);
    n > 0 && word < constant[n - 1].end && word.is_multiple_of(WORD as u64)
}

/// Returns the name of the class that a table of virtual functions belongs to, as the Itanium C++ ABI (2.9.5) mangles it: the
/// word before the table leads to the type's information, whose second word leads to the name. The first one leads to a table,
/// too: in data that can be written to, many words look like a class's, but not like that.
pub(crate) fn name_of(reader: &Reader, table: u64) -> Option<String> {
    let info = |table: u64| word_at(reader, table.checked_sub(WORD as u64)?);
    let own = info(table)?;
    let kind = text_of(reader, info(word_at(reader, own)?)?)?;
    if !kind.starts_with(OF_TYPES) {
        return None;
    }
    let text = text_of(reader, own)?;
    // GNU's compiler marks names that are not unique by an asterisk, which is no part of them.
    let text = text.strip_prefix('*').unwrap_or(&text);
    let is_type = text.starts_with(|c: char| c.is_ascii_digit() || c == 'N' || c == 'S');
    let is_plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    (is_type && is_plain).then(|| text.to_owned())
}

/// Returns the text to which a type's information leads.
fn text_of(reader: &Reader, info: u64) -> Option<String> {
    let name = word_at(reader, info.checked_add(WORD as u64)?)?;
    let mut bytes = [0; NAME];
    let n = reader.read(name, &mut bytes);
    let end = bytes[..n].iter().position(|b| *b == 0)?;
    std::str::from_utf8(&bytes[..end]).ok().map(str::to_owned)
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
    /// Numbers of the classes whose tables were met; 0: the word leads to no table.
    known: HashMap<u64, u32>,
    /// Names of the classes, mangled. Their numbers begin with 1.
    names: Vec<String>,
    numbers: HashMap<String, u32>,
    bytes: Vec<u8>,
}

impl Classes {
    /// Prepares for the blocks of process `pid`; `None` if it is gone, or its memory may not be read.
    #[must_use]
    pub fn open(pid: Pid) -> Option<Self> {
        let constant = constant(&maps::of(pid).ok()?);
        let reader = Reader::open(pid).ok()?;
        let (known, names, numbers) = (HashMap::new(), Vec::new(), HashMap::new());
        Some(Self { reader, constant, known, names, numbers, bytes: Vec::new() })
    }

    /// Returns the mangled name of the class of the object that begins at an address; `None` if none with virtual functions
    /// does.
    #[must_use]
    pub fn of_block(&mut self, address: u64) -> Option<&str> {
        let table = word_at(&self.reader, address)?;
        let number = self.number_of(table);
        self.names.get((number as usize).checked_sub(1)?).map(|name| &**name)
    }

    /// Returns the names of all classes that were met, mangled. The number of a class is its place, counted from 1 on.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the number of the class that each block belongs to, given their addresses; 0: it begins with no object that has
    /// virtual functions. Neighbours are read together.
    #[must_use]
    pub fn numbers(&mut self, addresses: &[u64]) -> Vec<u32> {
        let tables = self.tables(addresses);
        tables.into_iter().map(|table| self.number_of(table)).collect()
    }

    /// Returns the number of the class that a table belongs to, or 0.
    fn number_of(&mut self, table: u64) -> u32 {
        if !may_be_table(&self.constant, table) {
            return 0;
        }
        if let Some(number) = self.known.get(&table) {
            return *number;
        }
        let number = name_of(&self.reader, table).map_or(0, |name| {
            let next = self.names.len() as u32 + 1;
            let number = *self.numbers.entry(name.clone()).or_insert(next);
            if number == next {
                self.names.push(name);
            }
            number
        });
        self.known.insert(table, number);
        number
    }

    /// Adds up blocks, each with its address and size, by the class of the object that they begin with. Returns the sums by
    /// the classes' mangled names. Blocks that begin with no such object are left out.
    #[must_use]
    pub fn sums(&mut self, blocks: impl Iterator<Item = (u64, u64)>) -> HashMap<String, Sum> {
        let (mut by_number, mut blocks) = (HashMap::<u32, Sum>::new(), blocks.peekable());
        while blocks.peek().is_some() {
            let (addresses, sizes): (Vec<u64>, Vec<u64>) = blocks.by_ref().take(BLOCKS).unzip();
            let numbers = self.numbers(&addresses).into_iter().zip(sizes);
            for (number, bytes) in numbers.filter(|(number, _)| *number > 0) {
                *by_number.entry(number).or_default() += Sum { bytes, blocks: 1 };
            }
        }
        let name = |number: u32| self.names[number as usize - 1].clone();
        by_number.into_iter().map(|(number, sum)| (name(number), sum)).collect()
    }

    /// Returns the first word of each block if it may be the address of a table, else 0.
    fn tables(&mut self, addresses: &[u64]) -> Vec<u64> {
        let mut order: Vec<usize> = (0..addresses.len()).collect();
        order.sort_unstable_by_key(|i| addresses[*i]);
        let (mut tables, mut rest) = (vec![0; addresses.len()], &order[..]);
        while let Some(start) = rest.first().map(|i| addresses[*i]) {
            let near = |w: &[usize]| {
                let [before, next] = [addresses[w[0]], addresses[w[1]]];
                next - before <= NEAR && next - start <= PART
            };
            let n = 1 + rest.windows(2).take_while(|w| near(w)).count();
            let (some, others) = rest.split_at(n);
            let end = addresses[some[n - 1]];
            self.bytes.resize((end - start) as usize + WORD, 0);
            let read = self.reader.read(start, &mut self.bytes);
            for i in some {
                let at = (addresses[*i] - start) as usize;
                let table = match self.bytes[..read].get(at..at + WORD) {
                    Some(bytes) => word(bytes, 0),
                    // A page in between is gone, or may not be read.
                    None => word_at(&self.reader, addresses[*i]).unwrap_or(0),
                };
                tables[*i] = if may_be_table(&self.constant, table) { table } else { 0 };
            }
            rest = others;
        }
        tables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Information on the class whose objects are information on types, and the table of that class, as a compiler makes them.
    struct Kind {
        info: [usize; 2],
        table: [usize; 2],
    }

    impl Kind {
        fn new(name: &'static std::ffi::CStr) -> Box<Self> {
            let mut kind = Box::new(Self { info: [0, name.as_ptr() as usize], table: [0; 2] });
            kind.table[0] = kind.info.as_ptr() as usize;
            kind
        }

        /// Returns information on a type with a name.
        fn of(&self, name: &std::ffi::CStr) -> [usize; 2] {
            [&raw const self.table[1] as usize, name.as_ptr() as usize]
        }
    }

    const CLASS: &std::ffi::CStr = c"N10__cxxabiv117__class_type_infoE";

    #[test]
    fn data_that_can_be_written_to_counts_in_files_with_code() {
        let lines = [
            "1000-2000 r-xp 00000000 fe:00 7 /bin/app",
            "2000-3000 r--p 00001000 fe:00 7 /bin/app",
            "3000-4000 rw-p 00002000 fe:00 7 /bin/app",
            "5000-6000 rw-p 00000000 00:00 0 ",
            "6000-7000 r--p 00000000 fe:00 8 /data/read",
            "7000-8000 rw-p 00000000 fe:00 9 /data/written",
            "8000-9000 rw-s 00000000 fe:00 7 /bin/app",
        ];
        let maps = lines.map(|line| Map::parse(line.as_bytes()).expect("a mapping"));
        assert_eq!(constant(&maps), [0x2000..0x3000, 0x3000..0x4000, 0x6000..0x7000]);
    }

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
        let (kind, other) = (Kind::new(CLASS), Kind::new(c"7Session"));
        let named = |kind: &Kind, name: &std::ffi::CStr| {
            let info = kind.of(name);
            let table = [info.as_ptr() as usize, 0];
            name_of(&reader, &raw const table[1] as u64)
        };
        let name = |name: &std::ffi::CStr| named(&kind, name);
        assert_eq!(named(&other, c"7Session"), None, "no information on a type");
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
        let kind = Kind::new(CLASS);
        let info = kind.of(name);
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
