//! All pointers to blocks: from blocks, and from the roots.

use crate::classes::{constant, may_be_table};
use crate::freed::Freed;
use crate::memory::may_point;
use crate::word::{Pointers, WORD, word};
use prof_arch::native::wide::{Task, Wide};
use prof_graph::{Edges, NONE, Root, RootEdge, Table};
use prof_os::maps::Map;
use std::collections::HashMap;
use std::ops::Range;

/// Pointers of blocks, and of roots, that are kept at most: indices of pointers have 32 bits.
const MOST: usize = 1 << 30;

/// The mappings with the roots that their words belong to.
#[derive(Debug, Default)]
pub(crate) struct RootRanges {
    /// Mappings, in order, each with its root; `None`: each word is a root of its own.
    maps: Vec<(Range<u64>, Option<u32>)>,
}

/// Collects pointers from memory that is read in the order of its addresses.
pub(crate) struct Collector<'a> {
    table: &'a Table,
    pointers: Pointers,
    wide: Wide,
    edges: Edges,
    numbers: HashMap<Root, u32>,
    root_ranges: RootRanges,
    /// Data that may hold tables of virtual functions, in order.
    constant: Vec<Range<u64>>,
    table_numbers: HashMap<u64, u32>,
    /// The block whose pointers were found last, and where they begin.
    owner: (usize, usize),
    found: Vec<u32>,
    most: usize,
}

impl<'a> Collector<'a> {
    /// Creates a collector without any pointer.
    #[must_use]
    pub(crate) fn new(table: &'a Table, mask: u64, maps: &[Map]) -> Self {
        let edges = Edges {
            starts: vec![0; table.len() + 1],
            to: Vec::new(),
            roots: Vec::new(),
            above: Vec::new(),
            of_roots: Vec::new(),
            classes: Vec::new(),
            tables: Vec::new(),
            left_out: 0,
        };
        Self {
            table,
            pointers: Pointers { mask, unaligned: false },
            wide: Wide::here(),
            edges,
            numbers: HashMap::new(),
            root_ranges: RootRanges::default(),
            constant: constant(maps),
            table_numbers: HashMap::new(),
            owner: (0, 0),
            found: Vec::new(),
            most: MOST,
        }
    }

    /// Limits the number of pointers that are kept.
    #[cfg(test)]
    fn keeping(mut self, most: usize) -> Self {
        self.most = most;
        self
    }

    /// Returns the number of a root.
    pub(crate) fn root(&mut self, root: Root) -> u32 {
        let roots = &mut self.edges.roots;
        *self.numbers.entry(root).or_insert_with_key(|root| {
            roots.push(root.clone());
            (roots.len() - 1) as u32
        })
    }

    /// Learns which memory is what: that of threads' stacks and variables, each with the thread, and all other mappings.
    pub(crate) fn learn(&mut self, maps: &[Map], stacks: &[(Range<u64>, Root)]) {
        let mut stacks: Vec<_> = stacks.iter().collect();
        stacks.sort_by_key(|(r, _)| r.start);
        let mut all = Vec::new();
        // Memory of the kernel's and of prof's holds nothing.
        for (i, m) in maps.iter().enumerate().filter(|(_, m)| may_point(m)) {
            let (mut at, end) = (m.start.0, m.end.0);
            let mut rest = |c: &mut Self, range: Range<u64>| {
                if !range.is_empty() {
                    let is_variable = is_data(maps, i);
                    all.push((range, (!is_variable).then(|| c.root(Root::Mapping(m.start.0)))));
                }
            };
            let mut parts = Vec::new();
            for (r, root) in stacks.iter().filter(|(r, _)| r.start < end && m.start.0 < r.end) {
                let part = r.start.max(at)..r.end.min(end);
                if !part.is_empty() {
                    rest(self, at..part.start);
                    at = part.end;
                    parts.push((part, Some(self.root(root.clone()))));
                }
            }
            rest(self, at..end);
            all.append(&mut parts);
        }
        all.sort_by_key(|(r, _): &(Range<u64>, _)| r.start);
        self.root_ranges.maps = all;
    }

    /// Counts words that are a root's, each of which may point into a block or to its start.
    pub(crate) fn words(&mut self, root: &Root, words: impl IntoIterator<Item = u64>) {
        for w in words {
            if let Some(to) = self.find(w) {
                let root = self.root(root.clone());
                self.keep(RootEdge { root, to, at: 0 });
            }
        }
    }

    /// Returns whether an address lies in a block.
    pub(crate) fn is_block(&self, address: u64) -> bool {
        self.table.find(address).is_some()
    }

    #[inline(always)]
    fn find(&self, word: u64) -> Option<u32> {
        self.pointers.find(self.table, word)
    }

    /// Counts the words of memory at an address, a multiple of a word's size. No call may be for memory below that of an
    /// earlier one.
    pub(crate) fn feed(&mut self, at: u64, bytes: &[u8], freed: &Freed) {
        self.classify(at, bytes);
        self.wide.run(Feeding { to: self, at, bytes, freed });
    }

    #[inline(always)]
    fn take(&mut self, at: u64, bytes: &[u8], freed: &Freed) {
        let mut found = std::mem::take(&mut self.found);
        let n = self.pointers.search(self.table, bytes, bytes.len(), &mut found);
        if n > 0 {
            let (table, all) = (self.table, self.table.len());
            let block =
                |i: usize| if i < all { table.block(i as u32) } else { (u64::MAX, u64::MAX) };
            let mut i = table.first_behind(at + u64::from(found[0]));
            let (mut start, mut end) = block(i);
            for k in &found[..n] {
                let value = word(bytes, *k);
                let Some(to) = self.find(value) else { continue };
                let here = at + u64::from(*k);
                if here >= end {
                    let near = (i..i + 64).find(|i| *i >= all || block(*i).1 > here);
                    i = near.unwrap_or_else(|| table.first_behind(here));
                    (start, end) = block(i);
                }
                if here >= start {
                    self.of_block(i, to);
                } else if !freed.has(here) && !freed.is_own(here, value) {
                    self.of_nobody(here, to);
                }
            }
        }
        self.found = found;
    }

    fn of_block(&mut self, owner: usize, to: u32) {
        if owner != self.owner.0 {
            self.close(owner);
        }
        let is_repeated = self.edges.to.len() > self.owner.1 && self.edges.to.last() == Some(&to);
        if owner as u32 == to || is_repeated {
            return;
        }
        if self.edges.to.len() < self.most {
            self.edges.to.push(to);
        } else {
            self.edges.left_out += 1;
        }
    }

    /// Ends the pointers of the current block, and goes on with those of a later one.
    fn close(&mut self, next: usize) {
        let (owner, from) = self.owner;
        if self.edges.to.len() - from > 1 {
            let mut own = self.edges.to.split_off(from);
            own.sort_unstable();
            own.dedup();
            self.edges.to.append(&mut own);
        }
        let end = self.edges.to.len();
        // The blocks in between have no pointers.
        self.edges.starts[owner + 1..=next].fill(end as u32);
        self.owner = (next, end);
    }

    fn of_nobody(&mut self, here: u64, to: u32) {
        let maps = &self.root_ranges.maps;
        let n = maps.partition_point(|(r, _)| r.start <= here);
        let place = n.checked_sub(1).and_then(|n| maps.get(n)).filter(|(r, _)| here < r.end);
        let root = match place {
            Some((_, Some(root))) => *root,
            Some((_, None)) => self.root(Root::Global(here)),
            // The mapping came to be after the list was made.
            None => self.root(Root::Mapping(here)),
        };
        self.keep(RootEdge { root, to, at: here });
    }

    fn keep(&mut self, edge: RootEdge) {
        if self.edges.of_roots.len() < self.most {
            self.edges.of_roots.push(edge);
        } else {
            self.edges.left_out += 1;
        }
    }

    /// Notes the first words of blocks that are addresses of constant data.
    fn classify(&mut self, at: u64, bytes: &[u8]) {
        let (table, end) = (self.table, at + bytes.len() as u64);
        let mut i = table.first_behind(at);
        if i < table.len() && table.block(i as u32).0 < at {
            i += 1;
        }
        while i < table.len() {
            let start = table.block(i as u32).0;
            if start + WORD as u64 > end {
                break;
            }
            let w = word(bytes, (start - at) as u32);
            if may_be_table(&self.constant, w) {
                if self.edges.classes.is_empty() {
                    self.edges.classes = vec![NONE; table.len()];
                }
                let tables = &mut self.edges.tables;
                let number = *self.table_numbers.entry(w).or_insert_with(|| {
                    tables.push(w);
                    (tables.len() - 1) as u32
                });
                self.edges.classes[i] = number;
            }
            i += 1;
        }
    }

    /// Returns what was found. Pointers of roots are in no order, and may be there several times.
    #[must_use]
    pub(crate) fn finish(mut self) -> Edges {
        self.close(self.table.len());
        self.edges
    }
}

/// Returns whether a mapping is data of a program or library: of its file, private and written to, or the zeroed memory
/// right behind it.
fn is_data(maps: &[Map], i: usize) -> bool {
    let m = &maps[i];
    if m.shared || m.exec {
        return false;
    }
    if m.inode != 0 {
        return true;
    }
    let before = i.checked_sub(1).map(|k| &maps[k]);
    m.is_anonymous() && before.is_some_and(|b| b.end == m.start && b.inode != 0 && b.write)
}

/// The arguments of [`Collector::feed`].
struct Feeding<'c, 'a, 'b> {
    to: &'c mut Collector<'a>,
    at: u64,
    bytes: &'b [u8],
    freed: &'b Freed,
}

impl Task for Feeding<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.to.take(self.at, self.bytes, self.freed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prof_os::Pid;

    #[test]
    fn pointers_belong_to_the_block_or_the_root_in_which_they_stand() {
        let base = 0x10_0000u64;
        let t = Table::from_iter([(base, 32), (base + 32, 64), (base + 0x100, 16)]);
        let mut bytes = vec![0u8; 0x200];
        let mut put = |at: u64, w: u64| {
            bytes[at as usize..at as usize + WORD].copy_from_slice(&(w as usize).to_ne_bytes());
        };
        put(0, base + 0x108); // from the first block to the third, twice, and to itself
        put(8, base + 8);
        put(16, base + 0x100);
        put(32, base); // from the second to the first
        put(0x80, base + 32); // from nobody's memory to the second
        put(0x88, base + 32);
        let map = Map::parse(b"00100000-00101000 rw-p 00000000 00:00 0 \n").expect("a mapping");
        let mut c = Collector::new(&t, u64::MAX, std::slice::from_ref(&map));
        c.learn(std::slice::from_ref(&map), &[]);
        c.words(&Root::Registers(Pid::from_raw(7)), [base + 0x10f, base + 0x111, 5]);
        // In two pieces: a block may reach from one into the next.
        c.feed(base, &bytes[..24], &Freed::default());
        c.feed(base + 24, &bytes[24..], &Freed::default());
        let e = c.finish().settled();
        assert_eq!((e.starts, e.to), (vec![0, 1, 2, 2], vec![2, 0]));
        assert_eq!(e.roots, [Root::Mapping(base), Root::Registers(Pid::from_raw(7))]);
        let of = |root, to, at| RootEdge { root, to, at };
        assert_eq!(e.of_roots, [of(0, 1, base + 0x80), of(1, 2, 0)]);
        // A thread's variables may be a part of a mapping.
        let mut parts = Collector::new(&t, u64::MAX, std::slice::from_ref(&map));
        let own = Root::ThreadLocal(Pid::from_raw(7));
        parts.learn(std::slice::from_ref(&map), &[(base + 0x88..base + 0x90, own.clone())]);
        parts.feed(base, &bytes, &Freed::default());
        let e = parts.finish().settled();
        assert_eq!(e.roots, [Root::Mapping(base), own]);
        assert_eq!(e.of_roots, [of(0, 1, base + 0x80), of(1, 1, base + 0x88)]);
        // Pointers beyond the limit are counted: one of the two of blocks, and the two of the register and of memory.
        let mut few = Collector::new(&t, u64::MAX, std::slice::from_ref(&map)).keeping(1);
        few.learn(std::slice::from_ref(&map), &[]);
        few.words(&Root::Registers(Pid::from_raw(7)), [base + 0x10f]);
        few.feed(base, &bytes, &Freed::default());
        let e = few.finish().settled();
        assert_eq!(
            (e.starts, e.to, e.of_roots.len(), e.left_out),
            (vec![0, 1, 1, 1], vec![2], 1, 3)
        );
    }
}
