//! The table of blocks: an address to the block that it points into.

use crate::bits::Bits;
use crate::sieve::Sieve;
use prof_arch::native::capture::prefetch;

/// Addresses from here on are no program's on any machine that this reads.
const ADDRESSES: u64 = 1 << 48;
/// Bits of a key that are the size.
const SIZE: u32 = 16;
/// A size that does not fit its key stands in [`Table::large`].
const LARGE: u64 = (1 << SIZE) - 1;
/// Bytes of the address space of an area and of a page, as shifts.
const AREA: u32 = 21;
const PAGE: u32 = 12;
/// Pages of an area.
const PAGES: usize = 1 << (AREA - PAGE);
/// Bytes for each bit of a page, as a shift.
const GRAIN: u32 = 4;
/// An area with fewer blocks has no pages: its blocks are searched. The lower number is for tables of few areas, whose
/// pages take 32 MiB at most.
const CROWD: [usize; 2] = [8, 2048];
const FEW: usize = 1600;
/// An index that stands for none.
const NONE: u32 = u32::MAX;

/// Blocks by address, before they are a table.
#[derive(Debug, Default)]
pub struct Keys {
    keys: Vec<u64>,
    large: Vec<(u64, u64)>,
    beyond: u64,
}

impl Keys {
    /// Adds a block.
    #[inline]
    pub fn push(&mut self, address: u64, size: u64) {
        if address == 0 || address >= ADDRESSES {
            self.beyond += 1;
            return;
        }
        if size >= LARGE {
            self.large.push((address, size));
        }
        self.keys.push(address << SIZE | size.min(LARGE));
    }
}

/// Blocks of an area.
#[derive(Clone, Copy, Debug)]
struct Area {
    /// Index of the first block that starts in it, and of the first that starts behind it.
    first: u32,
    next: u32,
    /// Index of its first page; [`NONE`]: it has none.
    pages: u32,
}

/// Blocks of a page.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    /// A bit for each grain in which a block starts.
    bits: [u64; 4],
    /// Index of the first block that starts in it.
    first: u32,
    /// Number of bits before each word of them. There is none before the first, so 1 there says that blocks share a grain.
    before: [u8; 4],
}

/// Blocks that don't overlap, by address. It takes 8 bytes a block, 4 bits, and 40 bytes a page where there are many.
#[derive(Debug, Default)]
pub struct Table {
    /// The start of each block, and its size as far as that fits, in order.
    keys: Vec<u64>,
    /// Starts and sizes of large blocks, in order.
    large: Vec<(u64, u64)>,
    /// Blocks behind whose end another begins that is not in the table: an address there is the other's.
    adjoined: Option<Bits>,
    /// Blocks that end in another area than they start in, in order.
    across: Vec<u32>,
    /// A hash table of areas: number plus one, and index in `areas`.
    slots: Vec<(u32, u32)>,
    shift: u32,
    areas: Vec<Area>,
    pages: Vec<Page>,
    low: u64,
    span: u64,
    sieve: Sieve,
    nested: u64,
}

impl Table {
    /// Creates the table. A block that begins inside another is left out: its memory counts as the other's, and a pointer
    /// to it keeps the other, so that this proves nothing that is not so.
    #[must_use]
    pub fn new(blocks: Keys) -> Self {
        let Keys { mut keys, mut large, beyond } = blocks;
        keys.sort_unstable();
        large.sort_unstable();
        let mut t = Self { large, nested: beyond, ..Self::default() };
        let most = NONE as usize / 2;
        let (mut end, mut n) = (0, 0);
        let before = keys.len();
        keys.retain(|k| {
            let start = k >> SIZE;
            let keep = start >= end && n < most;
            if keep {
                end = t.end_of(*k);
                n += 1;
            }
            keep
        });
        t.nested += (before - keys.len()) as u64;
        t.keys = keys;
        t.index();
        t
    }

    /// Creates the table of some of the blocks of another.
    #[must_use]
    pub fn of_some(all: &Self, wanted: impl Fn(u32) -> bool) -> Self {
        let n = (0..all.len() as u32).filter(|i| wanted(*i)).count();
        let mut t = Self { keys: Vec::with_capacity(n), ..Self::default() };
        let mut adjoined = Bits::new(n);
        for (i, key) in all.keys.iter().enumerate().filter(|(i, _)| wanted(*i as u32)) {
            let next = all.keys.get(i + 1).map(|k| k >> SIZE);
            if all.is_adjoined(i as u32) || next == Some(all.end_of(*key)) {
                adjoined.set(t.keys.len());
            }
            if key & LARGE == LARGE {
                t.large.push((key >> SIZE, all.size_of(*key)));
            }
            t.keys.push(*key);
        }
        t.adjoined = Some(adjoined);
        t.index();
        t
    }

    fn index(&mut self) {
        let (Some(low), Some(last)) = (self.keys.first(), self.keys.last()) else { return };
        self.low = low >> SIZE;
        self.span = self.end_of(*last).saturating_add(1) - self.low;
        let is_next = |w: &[u64]| w[0] >> SIZE >> AREA != w[1] >> SIZE >> AREA;
        let areas = self.keys.windows(2).filter(|w| is_next(w)).count() + 1;
        let crowd = CROWD[usize::from(areas > FEW)];
        let mut at = 0;
        while at < self.keys.len() {
            let area = self.keys[at] >> SIZE >> AREA;
            let n = self.keys[at..].partition_point(|k| k >> SIZE >> AREA == area);
            let pages = if n < crowd { NONE } else { self.add_pages(at, n) };
            self.areas.push(Area { first: at as u32, next: (at + n) as u32, pages });
            at += n;
        }
        let size = (self.areas.len() * 2).next_power_of_two();
        (self.slots, self.shift) = (vec![(0, 0); size], 64 - size.trailing_zeros());
        for (i, c) in self.areas.iter().enumerate() {
            let area = self.keys[c.first as usize] >> SIZE >> AREA;
            let mut slot = self.home(area);
            while self.slots[slot].0 != 0 {
                slot = (slot + 1) & (size - 1);
            }
            self.slots[slot] = (area as u32 + 1, i as u32);
        }
        let across = |i: &u32| {
            let (start, end) = self.block(*i);
            end >> AREA != start >> AREA
        };
        self.across = (0..self.keys.len() as u32).filter(across).collect();
        self.sieve = Sieve::of((0..self.keys.len() as u32).map(|i| self.block(i)));
    }

    /// Adds the pages of an area with `n` blocks from `first` on, and returns the index of the first page. There is one
    /// more than the area has.
    fn add_pages(&mut self, first: usize, n: usize) -> u32 {
        let from = self.pages.len();
        let mut at = first;
        for p in 0..=PAGES as u64 {
            let mut page = Page { first: at as u32, ..Page::default() };
            while let Some(k) = self.keys[..first + n].get(at) {
                let start = k >> SIZE;
                if (start >> PAGE) % PAGES as u64 != p {
                    break;
                }
                let grain = (start >> GRAIN) as usize % 256;
                page.bits[grain / 64] |= 1 << (grain % 64);
                at += 1;
            }
            let mut sum = 0;
            for (word, before) in page.bits.iter().zip(&mut page.before) {
                *before = sum as u8;
                sum += word.count_ones();
            }
            page.before[0] = u8::from(sum as usize != at - page.first as usize);
            self.pages.push(page);
        }
        from as u32
    }

    #[inline(always)]
    fn home(&self, area: u64) -> usize {
        // A table of one slot has no bits.
        (area.wrapping_mul(0x9e37_79b9_7f4a_7c15).checked_shr(self.shift)).unwrap_or(0) as usize
    }

    #[inline(always)]
    fn area_of(&self, address: u64) -> Option<&Area> {
        let area = address >> AREA;
        let mut slot = self.home(area);
        loop {
            match *self.slots.get(slot)? {
                (0, _) => return None,
                (number, i) if u64::from(number) == area + 1 => {
                    return self.areas.get(i as usize);
                }
                _ => slot = (slot + 1) & (self.slots.len() - 1),
            }
        }
    }

    #[inline(always)]
    fn size_of(&self, key: u64) -> u64 {
        if key & LARGE != LARGE {
            return key & LARGE;
        }
        let at = self.large.binary_search_by_key(&(key >> SIZE), |l| l.0);
        at.map_or(LARGE, |i| self.large[i].1)
    }

    #[inline(always)]
    fn end_of(&self, key: u64) -> u64 {
        (key >> SIZE).saturating_add(self.size_of(key).max(1))
    }

    #[inline(always)]
    fn is_adjoined(&self, i: u32) -> bool {
        self.adjoined.as_ref().is_some_and(|a| a.has(i as usize))
    }

    /// Returns the number of blocks.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns whether there are no blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the number of blocks that were left out, as they begin inside others.
    #[must_use]
    pub fn nested(&self) -> u64 {
        self.nested
    }

    /// Returns the first address of a block, and the first one behind it.
    #[inline]
    #[must_use]
    pub fn block(&self, i: u32) -> (u64, u64) {
        let key = self.keys[i as usize];
        (key >> SIZE, self.end_of(key))
    }

    /// Returns the lowest address, and the number of bytes above it, in which addresses may be of blocks.
    #[inline]
    #[must_use]
    pub fn window(&self) -> (u64, u64) {
        (self.low, self.span)
    }

    /// Returns false if [`Self::find`] would find no block at an address. It may return true if it would not, either.
    #[inline(always)]
    #[must_use]
    pub fn may_have(&self, address: u64) -> bool {
        self.sieve.may_have(address)
    }

    /// Has the processor fetch what [`Self::find`] will look at first.
    #[inline]
    pub fn prefetch(&self, address: u64) {
        if let Some(c) = self.area_of(address).filter(|c| c.pages != NONE) {
            let page = c.pages as usize + (address >> PAGE) as usize % PAGES;
            if let Some(page) = self.pages.get(page) {
                prefetch(page);
            }
        }
    }

    /// Returns the block that an address points into. The address behind a block counts as its own unless another block
    /// begins there: loops that go backwards, and stacks that grow downwards, are held by it.
    #[inline(always)]
    #[must_use]
    pub fn find(&self, address: u64) -> Option<u32> {
        if address.wrapping_sub(self.low) >= self.span {
            return None;
        }
        let Some(c) = self.area_of(address) else { return self.find_across(address) };
        let mut starts = match c.pages {
            NONE => self.starts(c.first, c.next, address),
            pages => {
                let page = pages as usize + (address >> PAGE) as usize % PAGES;
                let p = &self.pages[page];
                if p.before[0] == 0 {
                    let grain = (address >> GRAIN) as usize % 256;
                    let upto = u64::MAX >> (63 - grain % 64);
                    let in_word = (p.bits[grain / 64] & upto).count_ones();
                    p.first + u32::from(p.before[grain / 64]) + in_word
                } else {
                    self.starts(p.first, self.pages[page + 1].first, address)
                }
            }
        };
        if starts > 0 && self.keys[starts as usize - 1] >> SIZE > address {
            starts -= 1;
        }
        self.holds(starts.checked_sub(1)?, address)
    }

    /// Returns the number of blocks that start at an address or before, of which those in front of `first` do, and those
    /// from `next` on do not.
    #[inline]
    fn starts(&self, first: u32, next: u32, address: u64) -> u32 {
        let keys = &self.keys[first as usize..next as usize];
        first + keys.partition_point(|k| k >> SIZE <= address) as u32
    }

    /// Finds the block of an address in an area in which no block starts.
    #[cold]
    fn find_across(&self, address: u64) -> Option<u32> {
        let n = self.across.partition_point(|i| self.keys[*i as usize] >> SIZE <= address);
        self.holds(self.across[n.checked_sub(1)?], address)
    }

    #[inline(always)]
    fn holds(&self, i: u32, address: u64) -> Option<u32> {
        let end = self.end_of(self.keys[i as usize]);
        (address < end || address == end && !self.is_adjoined(i)).then_some(i)
    }

    /// Returns the block that begins at an address.
    #[must_use]
    pub fn starting_at(&self, address: u64) -> Option<u32> {
        self.find(address).filter(|i| self.keys[*i as usize] >> SIZE == address)
    }

    /// Returns the index of the first block that ends behind an address.
    #[must_use]
    pub fn first_behind(&self, address: u64) -> usize {
        let n = self.keys.partition_point(|k| k >> SIZE <= address);
        match n.checked_sub(1) {
            Some(i) if self.end_of(self.keys[i]) > address => i,
            _ => n,
        }
    }
}

impl FromIterator<(u64, u64)> for Table {
    /// Creates the table of blocks with these addresses and sizes.
    fn from_iter<T: IntoIterator<Item = (u64, u64)>>(blocks: T) -> Self {
        let mut keys = Keys::default();
        blocks.into_iter().for_each(|(address, size)| keys.push(address, size));
        Self::new(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(blocks: impl IntoIterator<Item = (u64, u64)>) -> Table {
        blocks.into_iter().collect()
    }

    fn naive(blocks: &[(u64, u64)], address: u64) -> Option<u64> {
        let inside = |b: &&(u64, u64)| b.0 <= address && address < b.0 + b.1.max(1);
        let ended = |b: &&(u64, u64)| b.0 + b.1.max(1) == address;
        blocks.iter().find(inside).or_else(|| blocks.iter().find(ended)).map(|b| b.0)
    }

    fn random(seed: u64) -> impl FnMut(u64) -> u64 {
        let mut x = seed | 1;
        move |n| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 11) % n
        }
    }

    fn check(
        t: &Table,
        blocks: &[(u64, u64)],
        every: usize,
        expected: impl Fn(u64) -> Option<u64>,
    ) {
        for (start, size) in blocks.iter().step_by(every) {
            let end = start + size.max(&1);
            let around = [start - 1, *start, start + 1, start + size / 2, end - 1, end, end + 1];
            for a in around.into_iter().chain([end + 4096, end + (1 << 21), start - 5000]) {
                let found = t.find(a).map(|i| t.block(i).0);
                assert_eq!(found, expected(a), "{a:#x} of {start:#x} {size}");
            }
        }
    }

    #[test]
    fn every_address_is_found_as_a_search_of_all_blocks_finds_it() {
        let mut random = random(0x9e37_79b9_7f4a_7c15);
        let (mut blocks, mut at) = (Vec::new(), 0x7f00_0000_0010u64);
        for _ in 0..600 {
            let size = match random(20) {
                0 => random(200_000),
                1 => random(9 << 20),
                2 => 0,
                _ => random(300),
            };
            blocks.push((at, size));
            at += size.max(1);
            at += match random(10) {
                0 => random(100_000),
                1 => 1 << 30,
                2..5 => 0,
                _ => random(64),
            };
        }
        let t = of(blocks.clone());
        assert_eq!((t.len(), t.nested()), (600, 0));
        check(&t, &blocks, 1, |a| naive(&blocks, a));
        for a in [0, 1, u64::MAX, blocks[0].0 - 1] {
            assert_eq!(t.find(a), None);
        }
        assert_eq!(Table::default().find(7), None);
        assert_eq!(of([(64, 8)]).find(65), Some(0));
        // In a table of some of them the others' addresses are nobody's.
        let some = Table::of_some(&t, |i| i % 3 == 0);
        let all = |a| naive(&blocks, a).filter(|s| t.starting_at(*s).is_some_and(|i| i % 3 == 0));
        assert_eq!(some.len(), 200);
        check(&some, &blocks, 1, all);
        let fewer = Table::of_some(&some, |i| i % 2 == 0);
        let all = |a| naive(&blocks, a).filter(|s| t.starting_at(*s).is_some_and(|i| i % 6 == 0));
        check(&fewer, &blocks, 1, all);
    }

    #[test]
    fn crowded_areas_are_found_by_their_pages() {
        for (step, size) in [(8, 8), (16, 16), (24, 20), (112, 100), (48, 48), (1024, 900)] {
            let mut random = random(step);
            let base = 0x5555_0000_0000 + step;
            let mut blocks = Vec::new();
            for k in 0..40_000 {
                if random(10) > 0 {
                    blocks.push((base + k * step, random(size + 1)));
                }
            }
            let t = of(blocks.clone());
            assert!(t.areas.iter().any(|c| c.pages != NONE) || step > 900, "{step}");
            let near = |a: u64| {
                let n = blocks.partition_point(|b| b.0 <= a);
                naive(&blocks[n.saturating_sub(3)..(n + 3).min(blocks.len())], a)
            };
            check(&t, &blocks, 7, near);
        }
    }

    #[test]
    fn blocks_inside_others_are_left_out_and_counted() {
        let t = of([(0x1000, 0x100), (0x1080, 0x200), (0x1100, 8), (0x1040, 8)]);
        assert_eq!((t.len(), t.nested()), (2, 2));
        assert_eq!(t.find(0x1090), Some(0));
        assert_eq!(t.starting_at(0x1100), Some(1));
        assert_eq!(t.starting_at(0x1101), None);
        let huge = of([(u64::MAX - 16, 1 << 55), (16, 1 << 56), (0, 8)]);
        assert_eq!((huge.find(1 << 40), huge.find(u64::MAX), huge.nested()), (Some(0), None, 2));
    }
}
