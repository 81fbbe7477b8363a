//! Marks the blocks that are reached, while memory is read piece by piece in any order.
//!
//! The pointers in a block count as soon as the block is known to be reached. Until then they are kept. A block for whose
//! pointers there is no room is read once more when it is reached, so the memory that marking takes does not depend on
//! the number of pointers.

use crate::freed::Freed;
use crate::word::{Pointers, WORD, word};
use prof_arch::native::wide::{Task, Wide};
use prof_graph::{Bits, Table};
use std::ops::Range;

/// A flag of a list: it is a single pointer, or the last one of a part.
const LAST: u32 = 1 << 31;
/// Ends a part of a list; the next word says where the rest is.
const LINK: u32 = LAST - 1;

/// Pointers that are kept, 64 MiB of them or as many as there are blocks, before blocks are left to be read again.
const KEPT: usize = 1 << 24;
/// Pointers in freed memory that are remembered.
const DOUBTED: usize = 1 << 22;
/// Pointers in advance that the place of their blocks is fetched.
const AHEAD: usize = 12;

/// Origin of the words that are read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Words<'f> {
    /// A word in a block of the table belongs to that block. Any other word is a root, unless it lies in freed memory.
    Owned(&'f Freed),
    /// Every word is a root.
    Roots,
}

/// The blocks of a table that are reached so far.
pub(crate) struct Marker<'a> {
    table: &'a Table,
    pointers: Pointers,
    wide: Wide,
    reached: Bits,
    /// Blocks whose pointers were not kept for want of room.
    dropped: Bits,
    /// For each block its pointers: 0: none are kept; with [`LAST`], the block that the only one points to; else the
    /// index in `kept` at which the list begins.
    lists: Vec<u32>,
    kept: Vec<u32>,
    most: usize,
    /// Blocks that are reached, and whose lists are to be followed.
    work: Vec<u32>,
    /// Blocks that are reached, and are to be read again.
    again: Vec<u32>,
    /// Places in a piece of words that may be pointers.
    found: Vec<u32>,
    /// Pointers in memory that is freed as far as is known, and where; nothing: they don't count.
    doubted: Option<Vec<(u64, u32)>>,
}

impl<'a> Marker<'a> {
    /// Creates a marker with no block reached.
    #[must_use]
    pub(crate) fn new(table: &'a Table, pointers: Pointers) -> Self {
        let n = table.len();
        Self {
            table,
            pointers,
            wide: Wide::here(),
            reached: Bits::new(n),
            dropped: Bits::default(),
            lists: vec![0; n],
            kept: vec![LINK],
            most: n.max(KEPT).min(LINK as usize - 8),
            work: Vec::new(),
            again: Vec::new(),
            found: Vec::new(),
            doubted: None,
        }
    }

    /// Remembers pointers in freed memory, for [`Self::mark_doubted`].
    #[must_use]
    pub(crate) fn doubting(mut self) -> Self {
        self.doubted = Some(Vec::new());
        self
    }

    /// Limits the number of pointers that are kept.
    #[cfg(test)]
    fn keeping(mut self, most: usize) -> Self {
        self.most = most;
        self
    }

    /// Returns the blocks.
    #[must_use]
    pub(crate) fn table(&self) -> &'a Table {
        self.table
    }

    /// Returns whether a block is reached, as far as is known by now.
    #[inline]
    #[must_use]
    pub(crate) fn is_reached(&self, block: u32) -> bool {
        self.reached.has(block as usize)
    }

    /// Counts a word that is known to be a root.
    pub(crate) fn root(&mut self, word: u64) {
        for address in [word, word & self.pointers.mask] {
            if let Some(block) = self.table.find(address) {
                self.mark(block);
            }
        }
    }

    /// Counts the block at an address as reached, as the program has freed it: it had a pointer to it.
    pub(crate) fn gone(&mut self, address: u64) {
        if let Some(block) = self.table.starting_at(address) {
            self.mark(block);
        }
    }

    /// Counts the remembered pointers that are in these ranges, which are in order: it was not free after all.
    pub(crate) fn mark_doubted(&mut self, used: &[Range<u64>]) {
        for (at, block) in self.doubted.take().unwrap_or_default() {
            let n = used.partition_point(|r| r.end <= at);
            if used.get(n).is_some_and(|r| r.start < at + WORD as u64) {
                self.mark(block);
            }
        }
    }

    /// Counts the words of memory that was read at an address, a multiple of a word's size. Words at other addresses count
    /// if they begin before `len`.
    pub(crate) fn feed(&mut self, at: u64, bytes: &[u8], len: usize, words: Words<'_>) {
        self.wide.run(Feeding { marker: self, at, bytes, len, words });
    }

    #[inline(always)]
    fn take(&mut self, at: u64, bytes: &[u8], len: usize, words: Words<'_>) {
        let mut found = std::mem::take(&mut self.found);
        let n = self.pointers.search(self.table, bytes, len, &mut found);
        if n > 0 {
            match words {
                Words::Roots => {
                    for k in &found[..n] {
                        self.root(word(bytes, *k));
                    }
                }
                Words::Owned(freed) => self.owned(at, bytes, &found[..n], freed),
            }
        }
        self.found = found;
    }

    /// Counts words each of which belongs to its block, or to no block.
    #[inline(always)]
    fn owned(&mut self, at: u64, bytes: &[u8], found: &[u32], freed: &Freed) {
        let table = self.table;
        let mask = self.pointers.mask;
        let all = table.len();
        let mut i = table.first_behind(at + u64::from(found[0]));
        let block = |i: usize| if i < all { table.block(i as u32) } else { (u64::MAX, u64::MAX) };
        let (mut start, mut end) = block(i);
        let mut from = self.kept.len();
        for (n, k) in found.iter().enumerate() {
            if let Some(k) = found.get(n + AHEAD) {
                table.prefetch(word(bytes, *k) & mask);
            }
            let w = word(bytes, *k);
            let Some(to) = self.pointers.find(table, w) else { continue };
            let here = at + u64::from(*k);
            if here >= end {
                self.keep(i as u32, from);
                from = self.kept.len();
                // The block is near, or far behind.
                let near = (i..i + 64).find(|i| *i >= all || table.block(*i as u32).1 > here);
                i = near.unwrap_or_else(|| table.first_behind(here));
                (start, end) = block(i);
            }
            if here < start {
                if !freed.is_own(here, w) {
                    self.of_nobody(here, to, freed);
                }
            } else {
                self.of_block(i as u32, to, from);
            }
        }
        self.keep(i as u32, from);
    }

    fn of_nobody(&mut self, here: u64, to: u32, freed: &Freed) {
        if !freed.has(here) {
            return self.mark(to);
        }
        if self.is_reached(to) {
            return;
        }
        match &mut self.doubted {
            None => {}
            Some(all) if all.len() < DOUBTED => all.push((here, to)),
            Some(_) => self.mark(to),
        }
    }

    #[inline]
    fn of_block(&mut self, owner: u32, to: u32, from: usize) {
        if owner == to || self.is_reached(to) {
            return;
        }
        if self.is_reached(owner) {
            return self.mark(to);
        }
        if !self.dropped.has(owner as usize)
            && (self.kept.len() == from || self.kept.last() != Some(&to))
        {
            self.kept.push(to);
        }
    }

    /// Makes the pointers that were kept since `from` the list of their block, or a part of it.
    fn keep(&mut self, owner: u32, from: usize) {
        let n = self.kept.len() - from;
        if n == 0 {
            return;
        }
        let before = self.lists[owner as usize];
        if n == 1 && before == 0 {
            self.lists[owner as usize] = self.kept[from] | LAST;
            self.kept.truncate(from);
            return;
        }
        if self.kept.len() > self.most {
            self.kept.truncate(from);
            if self.dropped.is_empty() {
                self.dropped = Bits::new(self.table.len());
            }
            self.dropped.set(owner as usize);
            return;
        }
        self.lists[owner as usize] = from as u32;
        match before {
            0 => self.kept[from + n - 1] |= LAST,
            one if one & LAST != 0 => self.kept.push(one),
            before => self.kept.extend([LINK, before]),
        }
    }

    /// Counts a block as reached, with all that is known to be reached from it.
    #[inline]
    fn mark(&mut self, block: u32) {
        if !self.is_reached(block) {
            self.reach(block);
            self.follow();
        }
    }

    fn follow(&mut self) {
        while let Some(block) = self.work.pop() {
            let list = self.lists[block as usize];
            if list & LAST != 0 {
                self.reach(list & !LAST);
                continue;
            }
            let mut at = list as usize;
            loop {
                match self.kept[at] {
                    LINK => at = self.kept[at + 1] as usize,
                    next => {
                        at += 1;
                        self.reach(next & !LAST);
                        if next & LAST != 0 {
                            break;
                        }
                    }
                }
            }
        }
    }

    #[inline]
    fn reach(&mut self, block: u32) {
        if self.reached.has(block as usize) {
            return;
        }
        self.reached.set(block as usize);
        if self.dropped.has(block as usize) {
            self.again.push(block);
        }
        if self.lists[block as usize] != 0 {
            self.work.push(block);
        }
    }

    /// Returns the blocks that are reached and have to be read again, in the order of their addresses; empty: none.
    pub(crate) fn take_again(&mut self) -> Vec<u32> {
        let mut all = std::mem::take(&mut self.again);
        all.sort_unstable();
        all
    }

    /// Returns the blocks that others that were not reached point to, and those that were not reached whose pointers were
    /// not kept.
    pub(crate) fn held(&self) -> (Bits, Vec<u32>) {
        let (mut held, mut unknown) = (Bits::new(self.table.len()), Vec::new());
        for (i, list) in self.lists.iter().enumerate().filter(|(i, _)| !self.reached.has(*i)) {
            if self.dropped.has(i) {
                unknown.push(i as u32);
            }
            if list & LAST != 0 {
                held.set((list & !LAST) as usize);
            } else if *list != 0 {
                let mut at = *list as usize;
                loop {
                    match self.kept[at] {
                        LINK => at = self.kept[at + 1] as usize,
                        next => {
                            at += 1;
                            held.set((next & !LAST) as usize);
                            if next & LAST != 0 {
                                break;
                            }
                        }
                    }
                }
            }
        }
        (held, unknown)
    }
}

/// The arguments of [`Marker::feed`].
struct Feeding<'m, 'a, 'b> {
    marker: &'m mut Marker<'a>,
    at: u64,
    bytes: &'b [u8],
    len: usize,
    words: Words<'b>,
}

impl Task for Feeding<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.marker.take(self.at, self.bytes, self.len, self.words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const PLAIN: Pointers = Pointers { mask: u64::MAX, unaligned: false };

    /// Memory of 64 KiB at [`BASE`].
    const BASE: u64 = 0x10_0000;

    struct World {
        bytes: Vec<u8>,
        blocks: Vec<(u64, u64)>,
    }

    impl World {
        fn put(&mut self, at: u64, value: u64) {
            let i = (at - BASE) as usize;
            self.bytes[i..i + WORD].copy_from_slice(&(value as usize).to_ne_bytes());
        }

        /// Reads the memory in pieces of this many bytes, in this order.
        fn run(&self, piece: usize, order: &[usize], keep: usize, pointers: Pointers) -> Vec<u64> {
            let t = Table::from_iter(self.blocks.clone());
            let mut m = Marker::new(&t, pointers).keeping(keep);
            let freed = Freed::default();
            let pieces: Vec<&[u8]> = self.bytes.chunks(piece).collect();
            for k in order {
                m.feed(BASE + (k * piece) as u64, pieces[*k], piece, Words::Owned(&freed));
            }
            loop {
                let again = m.take_again();
                if again.is_empty() {
                    break;
                }
                for b in again {
                    let (start, end) = t.block(b);
                    let part = &self.bytes[(start - BASE) as usize..(end - BASE) as usize];
                    m.feed(start, part, part.len(), Words::Owned(&freed));
                }
            }
            let lost = (0..t.len() as u32).filter(|i| !m.is_reached(*i));
            lost.map(|i| t.block(i).0).collect()
        }
    }

    fn random_world(seed: u64) -> World {
        let mut x = seed | 1;
        let mut random = move |n: u64| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 11) % n
        };
        let len = 64 << 10;
        let (mut blocks, mut at) = (Vec::new(), BASE + 64);
        while at + 2048 < BASE + len {
            let size = 8 + random(6) * 24;
            blocks.push((at, size));
            at += size.next_multiple_of(16) + random(3) * 16;
        }
        let mut w = World { bytes: vec![0; len as usize], blocks };
        let all = w.blocks.clone();
        for (start, size) in &all {
            for k in 0..size / WORD as u64 {
                if random(5) == 0 {
                    let to = all[random(all.len() as u64) as usize];
                    w.put(start + k * WORD as u64, to.0 + random(to.1));
                }
            }
        }
        for k in 0..6 {
            let to = all[random(all.len() as u64) as usize];
            w.put(BASE + k * 8, to.0);
        }
        w
    }

    /// Returns the blocks that are not reached, by a walk over a map.
    fn naive(w: &World) -> Vec<u64> {
        let block = |a: u64| w.blocks.iter().find(|b| b.0 <= a && a < b.0 + b.1).copied();
        let mut roots = Vec::new();
        let mut edges: HashMap<u64, Vec<u64>> = HashMap::new();
        for (k, bytes) in w.bytes.as_chunks::<WORD>().0.iter().enumerate() {
            let (at, to) = (BASE + (k * WORD) as u64, usize::from_ne_bytes(*bytes) as u64);
            let Some(to) = block(to) else { continue };
            match block(at) {
                Some(from) => edges.entry(from.0).or_default().push(to.0),
                None => roots.push(to.0),
            }
        }
        let mut seen = std::collections::HashSet::new();
        while let Some(b) = roots.pop() {
            if seen.insert(b) {
                roots.extend(edges.get(&b).into_iter().flatten());
            }
        }
        w.blocks.iter().map(|b| b.0).filter(|b| !seen.contains(b)).collect()
    }

    #[test]
    fn any_order_and_any_room_give_what_a_walk_gives() {
        for seed in 1..30 {
            let w = random_world(seed * 0x1234_5677);
            let expected = naive(&w);
            assert!(!expected.is_empty() && expected.len() < w.blocks.len(), "{seed}");
            for piece in [4096usize, 64 << 10, 512] {
                let n = w.bytes.len() / piece;
                let up: Vec<usize> = (0..n).collect();
                let down: Vec<usize> = (0..n).rev().collect();
                let mixed: Vec<usize> = (0..n).map(|k| (k * 37 + 11) % n).collect();
                for order in [up, down, mixed] {
                    for keep in [usize::MAX >> 1, 40, 0] {
                        let got = w.run(piece, &order, keep, PLAIN);
                        assert_eq!(got, expected, "seed {seed}, pieces of {piece}, room {keep}");
                    }
                }
            }
        }
    }

    #[test]
    fn words_at_odd_addresses_and_with_tags_count_if_asked_for() {
        let mut w =
            World { bytes: vec![0; 4096], blocks: vec![(BASE + 256, 64), (BASE + 512, 64)] };
        let odd = BASE + 17;
        w.put(odd, BASE + 256);
        let tag = 1u64 << 30;
        w.put(BASE + 64, (BASE + 520) | tag);
        let run = |p| w.run(4096, &[0], 100, p);
        assert_eq!(run(PLAIN), [BASE + 256, BASE + 512]);
        assert_eq!(run(Pointers { unaligned: true, ..PLAIN }), [BASE + 512]);
        assert_eq!(run(Pointers { mask: tag - 1, unaligned: true }), [0u64; 0]);
    }

    #[test]
    fn what_lies_in_freed_memory_holds_nothing_unless_it_is_a_root_for_certain() {
        let mut w = World { bytes: vec![0; 4096], blocks: vec![(BASE + 256, 64)] };
        w.put(BASE + 32, BASE + 256);
        let t = Table::from_iter(w.blocks.clone());
        let mut freed = Freed::from(BASE);
        freed.end_at(u64::MAX);
        freed.add(BASE + 32, 8);
        let mut m = Marker::new(&t, PLAIN);
        m.feed(BASE, &w.bytes, 4096, Words::Owned(&freed));
        assert!(!m.is_reached(0));
        m.feed(BASE + 32, &w.bytes[32..40], 8, Words::Roots);
        assert!(m.is_reached(0));
        let mut m = Marker::new(&t, PLAIN);
        m.root(BASE + 319);
        assert!(m.is_reached(0));
    }

    #[test]
    fn a_word_of_the_allocators_own_holds_nothing_until_it_is_another() {
        let mut w =
            World { bytes: vec![0; 4096], blocks: vec![(BASE + 256, 64), (BASE + 512, 64)] };
        w.put(BASE + 32, BASE + 256);
        w.put(BASE + 40, BASE + 512);
        let t = Table::from_iter(w.blocks.clone());
        let own = [(BASE + 32, BASE + 256), (BASE + 40, BASE + 256)];
        let freed = Freed::default().with_own(own.into());
        let mut m = Marker::new(&t, PLAIN).doubting();
        m.feed(BASE, &w.bytes, 4096, Words::Owned(&freed));
        assert!(!m.is_reached(0) && m.is_reached(1));
        m.mark_doubted(std::slice::from_ref(&(BASE..BASE + 64)));
        assert!(!m.is_reached(0), "it is in doubt for no reason");
    }

    #[test]
    fn a_pointer_in_freed_memory_counts_if_that_was_used_again() {
        let mut w =
            World { bytes: vec![0; 4096], blocks: vec![(BASE + 256, 64), (BASE + 512, 64)] };
        w.put(BASE + 32, BASE + 256);
        w.put(BASE + 264, BASE + 512);
        let t = Table::from_iter(w.blocks.clone());
        let mut freed = Freed::from(BASE);
        freed.end_at(u64::MAX);
        freed.add(BASE + 32, 8);
        for (used, expected) in [(BASE..BASE + 32, false), (BASE + 32..BASE + 40, true)] {
            let mut m = Marker::new(&t, PLAIN).doubting();
            m.feed(BASE, &w.bytes, 4096, Words::Owned(&freed));
            assert!(!m.is_reached(0));
            let held = m.held().0;
            assert!(!held.has(0) && held.has(1));
            m.mark_doubted(&[used]);
            assert!(m.is_reached(0) == expected && m.is_reached(1) == expected);
        }
        let mut m = Marker::new(&t, PLAIN);
        m.feed(BASE, &w.bytes, 4096, Words::Owned(&freed));
        m.gone(BASE + 256);
        assert!(m.is_reached(0) && m.is_reached(1));
    }
}
