//! The allocations that are outstanding: made, and not freed so far.

use prof_trace::ticks::Ticks;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A kind of kernel memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An object of `kmalloc` or of a slab cache.
    Slab,
    /// Pages.
    Page,
    /// Per-CPU memory.
    Percpu,
}

/// Mark of pages in a recording's addresses, which otherwise are page numbers times the page size. As the other mark it
/// keeps differences of addresses below 2^55, which is what an event can hold.
const PAGE: u64 = 1 << 53;
/// Mark of per-CPU memory, whose addresses are offsets.
const PERCPU: u64 = 1 << 52;

impl Kind {
    /// Returns the address under which a block is recorded. `address` is a pointer, or a page's number times its size.
    #[inline]
    pub fn mark(self, address: u64) -> u64 {
        match self {
            Kind::Slab => address,
            Kind::Page => address & (PERCPU - 1) | PAGE,
            Kind::Percpu => address & (PERCPU - 1) | PERCPU,
        }
    }

    /// Returns the kind of a recorded address, and the address or page-aligned physical address itself.
    pub fn of(marked: u64) -> (Self, u64) {
        match marked >> 52 {
            2 => (Kind::Page, marked & (PERCPU - 1)),
            1 => (Kind::Percpu, marked & (PERCPU - 1)),
            _ => (Kind::Slab, marked),
        }
    }
}

/// Hashes addresses and words of stacks by multiplication.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Words(u64);

impl Hasher for Words {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|w| self.write_u64(u64::from_ne_bytes(*w)));
        rest.iter().for_each(|b| self.write_u64((*b).into()));
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15_u128;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    #[inline]
    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }

    #[inline]
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
}

/// A map with [`Words`] as its hash.
pub(crate) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Words>>;

/// An outstanding block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Bytes that the kernel took for it.
    pub size: u64,
    /// `CLOCK_MONOTONIC` of the allocation, in ns.
    pub time: Ticks,
    /// Number of its stack.
    pub stack: u32,
    /// Number of the thread that allocated it.
    pub thread: u32,
}

/// The outstanding allocations of one stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Number of the stack.
    pub stack: u32,
    /// Number of blocks.
    pub count: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
}

/// The outstanding blocks, and their totals by stack.
#[derive(Debug, Default)]
pub struct Outstanding {
    blocks: Map<u64, Block>,
    totals: Vec<Row>,
    all: Row,
}

impl Outstanding {
    /// Adds a block. Returns the block that was outstanding at the address, whose free was not seen.
    #[inline]
    pub fn add(&mut self, address: u64, block: Block) -> Option<Block> {
        let stack = block.stack as usize;
        if self.totals.len() <= stack {
            let next = self.totals.len() as u32;
            let rows = (next..=block.stack).map(|stack| Row { stack, ..Row::default() });
            self.totals.extend(rows);
        }
        for row in [&mut self.totals[stack], &mut self.all] {
            row.count += 1;
            row.bytes += block.size;
        }
        let old = self.blocks.insert(address, block);
        if let Some(old) = old {
            self.subtract(old);
        }
        old
    }

    /// Removes a block; `None` if none is outstanding at the address.
    #[inline]
    pub fn remove(&mut self, address: u64) -> Option<Block> {
        let block = self.blocks.remove(&address)?;
        self.subtract(block);
        Some(block)
    }

    #[inline]
    fn subtract(&mut self, block: Block) {
        for row in [&mut self.totals[block.stack as usize], &mut self.all] {
            row.count -= 1;
            row.bytes -= block.size;
        }
    }

    /// Returns the block at an address.
    #[inline]
    pub fn get(&self, address: u64) -> Option<Block> {
        self.blocks.get(&address).copied()
    }

    /// Returns the number of blocks and their bytes.
    pub fn all(&self) -> (u64, u64) {
        (self.all.count, self.all.bytes)
    }

    /// Returns the stacks of all blocks, in no particular order.
    pub fn by_stack(&self) -> Vec<Row> {
        self.totals.iter().filter(|r| r.count > 0).copied().collect()
    }

    /// Returns the stacks of the blocks that were allocated at `time` or before, in no particular order.
    pub fn by_stack_until(&self, time: Ticks) -> Vec<Row> {
        let mut rows: Vec<Row> = vec![Row::default(); self.totals.len()];
        for b in self.blocks.values().filter(|b| b.time <= time) {
            let row = &mut rows[b.stack as usize];
            *row = Row { stack: b.stack, count: row.count + 1, bytes: row.bytes + b.size };
        }
        rows.retain(|r| r.count > 0);
        rows
    }

    /// Returns the blocks of some stacks that were allocated at `time` or before, with their addresses, the oldest
    /// first.
    pub fn blocks_of(&self, stacks: &[u32], time: Ticks) -> Vec<(u64, Block)> {
        let wanted = |b: &Block| b.time <= time && stacks.contains(&b.stack);
        let mut all: Vec<(u64, Block)> =
            self.blocks.iter().filter(|(_, b)| wanted(b)).map(|(a, b)| (*a, *b)).collect();
        all.sort_unstable_by_key(|(a, b)| (b.time, *a));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(size: u64, time: Ticks, stack: u32) -> Block {
        Block { size, time, stack, thread: 1 }
    }

    #[test]
    fn blocks_count_for_their_stacks() {
        let mut o = Outstanding::default();
        assert_eq!(o.add(16, block(100, Ticks(1), 3)), None);
        assert_eq!(o.add(32, block(50, Ticks(2), 3)), None);
        assert_eq!(
            o.add(16, block(7, Ticks(3), 0)),
            Some(block(100, Ticks(1), 3)),
            "its free was not seen"
        );
        assert_eq!(o.all(), (2, 57));
        let rows = o.by_stack();
        assert_eq!(
            rows,
            [Row { stack: 0, count: 1, bytes: 7 }, Row { stack: 3, count: 1, bytes: 50 }]
        );
        assert_eq!(o.by_stack_until(Ticks(2)), [Row { stack: 3, count: 1, bytes: 50 }]);
        assert_eq!(o.blocks_of(&[3], Ticks(9)), [(32, block(50, Ticks(2), 3))]);
        assert_eq!(o.remove(32), Some(block(50, Ticks(2), 3)));
        assert_eq!(o.remove(32), None);
        assert_eq!((o.all(), o.get(16)), ((1, 7), Some(block(7, Ticks(3), 0))));
    }

    #[test]
    fn kinds_have_addresses_of_their_own() {
        for (kind, address) in
            [(Kind::Slab, 0xffff_8881_0000_1000), (Kind::Page, 0x1000), (Kind::Percpu, 0x1000)]
        {
            assert_eq!(Kind::of(kind.mark(address)), (kind, address));
        }
    }
}
