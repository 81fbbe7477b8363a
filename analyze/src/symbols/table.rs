//! Symbol tables, which map addresses to functions.

use super::elf::{ObjectFile, Symbol};
use prof_trace::records::Symbols;
use std::borrow::Cow;
use std::sync::Arc;

/// Number of symbols at or below an address that are examined for one that covers it.
const LOOK_BACK: usize = 16;

/// A symbol.
#[derive(Clone, Copy)]
struct Entry {
    start: u64,
    size: u64,
    /// Rank among symbols of the same address; the lowest is the best.
    rank: u8,
    names: u8,
    at: u64,
    len: u32,
}

/// The storage of names.
enum Names {
    Object(Arc<ObjectFile>),
    Recorded(Vec<u8>),
}

/// A symbol that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found<'a> {
    /// Mangled name.
    pub name: Cow<'a, str>,
    /// Address of the symbol.
    pub start: u64,
}

/// The symbols of a module's functions, or of its variables, by their addresses in its file.
#[derive(Default)]
pub(super) struct Table {
    entries: Vec<Entry>,
    names: Vec<Names>,
}

impl Table {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds the function symbols of a file.
    pub(super) fn add_image(&mut self, image: &Arc<ObjectFile>) {
        image.symbols(|s| self.add(s));
        self.names.push(Names::Object(image.clone()));
    }

    /// Adds the symbols of a file's variables.
    pub(super) fn add_variables(&mut self, image: &Arc<ObjectFile>) {
        image.variables(|s| self.add(s));
        self.names.push(Names::Object(image.clone()));
    }

    /// Adds a symbol of the file whose names come next.
    fn add(&mut self, s: Symbol) {
        let (names, at) = (self.names.len() as u8, s.name_at);
        let Symbol { start, size, rank, .. } = s;
        self.entries.push(Entry { start, size, rank, names, at, len: u32::MAX });
    }

    /// Adds the recorded symbols of a module.
    pub(super) fn add_recorded(&mut self, s: Symbols) {
        let names = self.names.len() as u8;
        let entry = |q: &[u64; 4]| Entry {
            start: q[0],
            size: q[1],
            rank: 0,
            names,
            at: q[2],
            len: u32::try_from(q[3]).unwrap_or(0),
        };
        self.entries.extend(s.symbols.as_chunks::<4>().0.iter().map(entry));
        self.names.push(Names::Recorded(s.names));
    }

    /// Sorts the symbols; must be called after the last addition.
    pub(super) fn finish(&mut self) {
        let mut entries = std::mem::take(&mut self.entries);
        entries.sort_by_cached_key(|e| {
            let name = self.name(e).unwrap_or_default();
            let underscores = name.bytes().take_while(|b| *b == b'_').count();
            (e.start, e.rank, e.size == 0, underscores, name.len(), name.into_owned())
        });
        entries.dedup_by_key(|e| e.start);
        self.entries = entries;
    }

    fn name(&self, e: &Entry) -> Option<Cow<'_, str>> {
        let bytes = match self.names.get(e.names as usize)? {
            Names::Object(i) => i.name(e.at)?,
            Names::Recorded(names) => {
                let at = usize::try_from(e.at).ok()?;
                names.get(at..at.checked_add(e.len as usize)?)?
            }
        };
        Some(String::from_utf8_lossy(bytes))
    }

    /// Returns the symbol that covers an address. A symbol without a size reaches to the next.
    pub(super) fn find(&self, address: u64) -> Option<Found<'_>> {
        let end = self.entries.partition_point(|e| e.start <= address);
        let back = self.entries[..end].iter().rev().take(LOOK_BACK);
        for (i, e) in back.enumerate() {
            if address - e.start < e.size || (e.size == 0 && i == 0) {
                let name = self.name(e).filter(|n| !n.is_empty())?;
                return Some(Found { name, start: e.start });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_symbols_are_found() {
        let mut t = Table::default();
        t.add_recorded(Symbols {
            module: 1,
            symbols: vec![0x100, 0x50, 0, 5, 0x110, 4, 5, 5, 0x200, 0, 10, 4, 0x300, 8, 999, 9, 7],
            names: b"outerinnerlast".to_vec(),
        });
        t.finish();
        let name = |a| t.find(a).map(|f| f.name.into_owned());
        assert_eq!(name(0xff), None);
        assert_eq!(name(0x100).as_deref(), Some("outer"));
        assert_eq!(name(0x113).as_deref(), Some("inner"));
        assert_eq!(name(0x114).as_deref(), Some("outer"));
        assert_eq!(name(0x150), None);
        assert_eq!(name(0x2f0).as_deref(), Some("last"));
        assert_eq!(name(0x301), None);
        assert_eq!(name(u64::MAX), None);
    }
}
