//! A [`Heap`] as chunks of a recording, and back.

use crate::edges::{Edges, NONE, Root, RootEdge};
use crate::heap::Heap;
use crate::table::{Keys, Table};
use prof_trace::records::{
    Scan, ScanBlock, ScanBlocks, ScanCoder, ScanPointer, ScanPointers, ScanRoot, ScanRoots,
    ScanStack, kind,
};
use prof_trace::ticks::Ticks;
use std::fmt;

/// Roots of a chunk, at most.
const ROOTS: usize = 1024;
/// Pointers of roots in a chunk, at most.
const POINTERS: usize = 65_536;
/// Bytes from which on a chunk of blocks is full.
const BLOCK_BYTES: usize = 512 << 10;
/// Classes whose names are looked up, at most: a hostile heap has a word for each.
const CLASSES: usize = 16_384;
/// Pointers of blocks, and of roots, at most: indices of pointers have 32 bits.
const MOST: usize = 1 << 30;

/// A caller of [`Heap::save`] knows what the roots, classes and stacks of the heap are called.
pub trait Naming {
    /// Returns a root with its name.
    fn root(&self, root: &Root) -> ScanRoot;
    /// Returns the mangled name of the class that a table of virtual functions belongs to.
    fn class(&self, table: u64) -> Option<String>;
    /// Returns what a number of a stack stands for.
    fn stack(&self, number: u32) -> ScanStack;
}

impl Heap {
    /// Encodes the heap as chunks of a recording: calls `put` with the kind and the payload of each. `head` has ticks,
    /// name, figures and whether a census was taken; this sets the rest.
    ///
    /// # Errors
    /// Returns the first error of `put`.
    pub fn save<E>(
        &self,
        mut head: Scan,
        names: &impl Naming,
        mut put: impl FnMut(u16, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let ticks = head.ticks;
        let numbers = self.named_classes(names, &mut head.classes);
        head.blocks = self.table.len() as u64;
        head.pointers = self.edges.to.len() as u64;
        (head.roots, head.root_pointers) = (self.roots.len() as u64, self.of_roots.len() as u64);
        head.left_out = self.edges.left_out;
        put(kind::SCAN, &head.encode())?;
        for part in self.roots.chunks(ROOTS) {
            let mut chunk = ScanRoots { ticks, ..ScanRoots::default() };
            part.iter().for_each(|root| chunk.put(&names.root(root)));
            put(kind::SCAN_ROOTS, &chunk.encode())?;
        }
        self.save_blocks(ticks, names, &numbers, &mut put)?;
        for part in self.of_roots.chunks(POINTERS) {
            let mut chunk = ScanPointers { ticks, ..ScanPointers::default() };
            let of = |e: &RootEdge| ScanPointer { root: e.root, to: e.to, at: e.at };
            chunk.put(&part.iter().map(of).collect::<Vec<_>>());
            put(kind::SCAN_POINTERS, &chunk.encode())?;
        }
        Ok(())
    }

    fn save_blocks<E>(
        &self,
        ticks: Ticks,
        names: &impl Naming,
        numbers: &[u32],
        put: &mut impl FnMut(u16, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let chunk_at =
            |first: usize| ScanBlocks { ticks, first: first as u64, ..ScanBlocks::default() };
        let (mut chunk, mut coder) = (chunk_at(0), ScanCoder::default());
        for i in 0..self.table.len() {
            let mut parts = self.pointers_of(i).chunks(POINTERS);
            let block = self.saved_block(i, names, numbers);
            chunk.put(&mut coder, &block, parts.next().unwrap_or_default());
            for more in parts {
                put(kind::SCAN_BLOCKS, &chunk.encode())?;
                (chunk, coder) = (chunk_at(i + 1), ScanCoder::default());
                chunk.put_more(more);
            }
            if chunk.bytes.len() >= BLOCK_BYTES {
                put(kind::SCAN_BLOCKS, &chunk.encode())?;
                (chunk, coder) = (chunk_at(i + 1), ScanCoder::default());
            }
        }
        if chunk.count > 0 || !chunk.more.is_empty() {
            put(kind::SCAN_BLOCKS, &chunk.encode())?;
        }
        Ok(())
    }

    /// Adds the names of classes; returns the number of each table of virtual functions, by its index.
    fn named_classes(&self, names: &impl Naming, to: &mut Vec<String>) -> Vec<u32> {
        let mut numbers = vec![0; self.edges.tables.len()];
        for (number, table) in numbers.iter_mut().zip(&self.edges.tables).take(CLASSES) {
            if let Some(name) = names.class(*table) {
                to.push(name);
                *number = to.len() as u32;
            }
        }
        numbers
    }

    fn saved_block(&self, i: usize, names: &impl Naming, numbers: &[u32]) -> ScanBlock {
        let (address, end) = self.table.block(i as u32);
        let stack = match self.stacks[i] {
            NONE => ScanStack::Freed,
            n => names.stack(n),
        };
        let class = self.edges.classes.get(i).and_then(|c| numbers.get(*c as usize));
        let class = class.copied().unwrap_or(0);
        ScanBlock { address, len: end - address, size: self.sizes[i], stack, class }
    }
}

/// A scan of a recording that is being read: chunks are added in their order.
#[derive(Debug, Default)]
pub struct Saved {
    head: Scan,
    roots: Vec<ScanRoot>,
    keys: Keys,
    starts: Vec<u32>,
    to: Vec<u32>,
    classes: Vec<u32>,
    stacks: Vec<u32>,
    sizes: Vec<u64>,
    of_roots: Vec<RootEdge>,
    /// End of the last block.
    end: u64,
    is_bad: bool,
    /// Blocks are not in order, or overlap.
    is_mixed: bool,
}

/// Why a scan can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// Chunks are missing: it was not written to its end, or some are damaged.
    Incomplete,
    /// The chunks of the scan contradict each other.
    Malformed,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Incomplete => "parts of it are missing or damaged",
            Self::Malformed => "its parts do not belong together",
        })
    }
}

impl std::error::Error for Unusable {}

impl Saved {
    /// Begins with the head.
    #[must_use]
    pub fn new(head: Scan) -> Self {
        Self { head, starts: vec![0], ..Self::default() }
    }

    /// Adds a chunk of this scan. Chunks of other scans, and of other kinds, are ignored. `before` is the number for the
    /// stack of blocks from before the attach.
    pub fn take(&mut self, kind: u16, payload: &[u8], before: u32) {
        // A scan that will be refused takes no more memory.
        if self.is_bad {
            return;
        }
        let good = match kind {
            kind::SCAN_ROOTS => ScanRoots::decode(payload).and_then(|r| self.take_roots(&r)),
            kind::SCAN_BLOCKS => {
                ScanBlocks::decode(payload).and_then(|b| self.take_blocks(&b, before))
            }
            kind::SCAN_POINTERS => {
                ScanPointers::decode(payload).and_then(|p| self.take_pointers(&p))
            }
            _ => Some(()),
        };
        self.is_bad |= good.is_none() || self.is_too_much();
    }

    /// Returns whether there is more than the head says: who asks for a scan knows by it how much memory that takes.
    fn is_too_much(&self) -> bool {
        let found = [self.stacks.len(), self.to.len(), self.roots.len(), self.of_roots.len()];
        let head = &self.head;
        let said = [head.blocks, head.pointers, head.roots, head.root_pointers];
        found.iter().zip(said).any(|(found, said)| *found as u64 > said)
    }

    fn take_roots(&mut self, r: &ScanRoots) -> Option<()> {
        if r.ticks == self.head.ticks {
            self.roots.extend(r.all()?);
        }
        Some(())
    }

    fn take_blocks(&mut self, b: &ScanBlocks, before: u32) -> Option<()> {
        if b.ticks != self.head.ticks {
            return Some(());
        }
        if b.first != self.stacks.len() as u64 || b.first.saturating_add(b.count) > self.head.blocks
        {
            return None;
        }
        self.to.extend(b.more_pointers()?);
        // They are those of the last block up to now.
        *self.starts.last_mut()? = self.to.len() as u32;
        let most = self.head.classes.len() as u64;
        let mut good = true;
        b.each(|block, to| {
            let stack = match block.stack {
                ScanStack::Freed => NONE,
                ScanStack::Before => before,
                ScanStack::Node(n) => n,
            };
            self.is_mixed |= block.address < self.end;
            self.end = block.address.saturating_add(block.len.max(1));
            self.keys.push(block.address, block.len);
            self.stacks.push(stack);
            self.sizes.push(if stack == NONE { 0 } else { block.size });
            self.classes.push(block.class.checked_sub(1).unwrap_or(NONE));
            self.to.extend_from_slice(to);
            self.starts.push(self.to.len() as u32);
            good &= u64::from(block.class) <= most && self.to.len() <= MOST;
        })?;
        good.then_some(())
    }

    fn take_pointers(&mut self, p: &ScanPointers) -> Option<()> {
        if p.ticks == self.head.ticks {
            let of = |p: ScanPointer| RootEdge { root: p.root, to: p.to, at: p.at };
            self.of_roots.extend(p.all()?.into_iter().map(of));
        }
        Some(())
    }

    /// Makes the heap, in which the class of a block is a number of [`Scan::classes`], and each root is
    /// [`Root::Saved`]. Also returns the head and the roots.
    ///
    /// # Errors
    /// If parts are missing, or contradict each other.
    pub fn finish(mut self) -> Result<(Heap, Scan, Vec<ScanRoot>), Unusable> {
        let (head, n) = (self.head, self.stacks.len());
        let counts = [n, self.to.len(), self.roots.len(), self.of_roots.len()];
        let wanted = [head.blocks, head.pointers, head.roots, head.root_pointers];
        if self.is_bad || counts.map(|n| n as u64) != wanted {
            return Err(Unusable::Incomplete);
        }
        let roots = self.roots.len() as u32;
        let is_block = |to: &u32| (*to as usize) < n;
        let table = Table::new(self.keys);
        let fits = self.to.iter().all(is_block)
            && self.of_roots.iter().all(|e| e.root < roots && is_block(&e.to))
            && self.of_roots.len() <= MOST
            && table.len() == n
            && !self.is_mixed;
        if !fits {
            return Err(Unusable::Malformed);
        }
        self.of_roots.sort_unstable();
        let edges = Edges {
            starts: self.starts,
            to: self.to,
            roots: (0..roots).map(Root::Saved).collect(),
            of_roots: self.of_roots,
            classes: self.classes,
            tables: (1..=head.classes.len() as u64).collect(),
            left_out: head.left_out,
        };
        Ok((Heap::of_parts(table, edges, self.stacks, self.sizes), head, self.roots))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::Sum;
    use prof_trace::records::root_kind;

    struct Plain;

    impl Naming for Plain {
        fn root(&self, root: &Root) -> ScanRoot {
            let name = format!("{root:?}");
            ScanRoot { kind: root_kind::DATA, name, ..ScanRoot::default() }
        }

        fn class(&self, table: u64) -> Option<String> {
            (table != 0x99).then(|| format!("{table:x}"))
        }

        fn stack(&self, number: u32) -> ScanStack {
            if number == 77 { ScanStack::Before } else { ScanStack::Node(number) }
        }
    }

    /// A large array of pointers, the blocks that it points to, and one that was freed and one that nothing holds.
    fn heap() -> Heap {
        let n = 100_000u32;
        let blocks = (0..n).map(|i| (0x100_0000 + u64::from(i) * 32, 24));
        let t = std::iter::once((0x1000, 900_000)).chain(blocks).collect();
        let mut starts = vec![n - 2; n as usize + 2];
        starts[0] = 0;
        let mut stacks = vec![5; n as usize + 1];
        (stacks[0], stacks[3], stacks[9]) = (4, NONE, 77);
        let mut sizes = vec![20; n as usize + 1];
        sizes[3] = 0;
        let mut classes = vec![NONE; n as usize + 1];
        (classes[1], classes[2], classes[4]) = (0, 2, 1);
        let edges = Edges {
            starts,
            to: (1..n - 1).collect(),
            roots: vec![Root::Global(0x4000), Root::Kernel],
            of_roots: vec![
                RootEdge { root: 0, to: 0, at: 0x4000 },
                RootEdge { root: 1, to: n - 1, at: 0 },
            ],
            classes,
            tables: vec![0x42, 0x99, 0x43],
            left_out: 3,
        };
        Heap::of_parts(t, edges, stacks, sizes)
    }

    fn chunks(heap: &Heap) -> Vec<(u16, Vec<u8>)> {
        let head = Scan { ticks: Ticks(9), ..Scan::default() };
        let mut all = Vec::new();
        let put = |kind, payload: &[u8]| {
            all.push((kind, payload.to_vec()));
            Ok::<_, ()>(())
        };
        heap.save(head, &Plain, put).expect("saved");
        all
    }

    fn read(chunks: &[(u16, Vec<u8>)]) -> Result<(Heap, Scan, Vec<ScanRoot>), Unusable> {
        let mut saved = Saved::new(Scan::decode(&chunks[0].1).expect("a head"));
        chunks[1..].iter().for_each(|(kind, payload)| saved.take(*kind, payload, 77));
        saved.finish()
    }

    #[test]
    fn a_heap_comes_back_as_it_was() {
        let old = heap();
        let all = chunks(&old);
        let blocks = all.iter().filter(|c| c.0 == kind::SCAN_BLOCKS).count();
        assert!(blocks > 2, "the array's pointers stand in {blocks} chunks");
        let (new, head, roots) = read(&all).expect("a scan");
        assert_eq!(
            (new.edges.starts.clone(), &new.edges.to),
            (old.edges.starts.clone(), &old.edges.to)
        );
        assert_eq!(
            (&new.stacks, &new.sizes, &new.of_roots),
            (&old.stacks, &old.sizes, &old.of_roots)
        );
        assert_eq!((new.live(), new.left_out()), (old.live(), 3));
        assert_eq!(roots[1].name, "Kernel");
        assert_eq!(new.roots(), [Root::Saved(0), Root::Saved(1)]);
        assert_eq!(head.classes, ["42", "43"]);
        let of = |at: u64| new.class_of(at).map(|n| head.classes[n as usize - 1].as_str());
        assert_eq!(
            (of(0x100_0000), of(0x100_0020), of(0x100_0060)),
            (Some("42"), Some("43"), None)
        );
        assert_eq!(new.held().unreachable, old.held().unreachable);
        assert_eq!(new.held().unreachable, Sum { bytes: 20, blocks: 1 });
    }

    #[test]
    fn scans_that_lack_a_part_or_lie_are_refused() {
        let all = chunks(&heap());
        for without in 1..all.len() {
            let mut less = all.clone();
            less.remove(without);
            assert_eq!(read(&less).map(|_| ()), Err(Unusable::Incomplete), "{without}");
        }
        let edit = |kind: u16, change: &dyn Fn(&[u8]) -> Vec<u8>| {
            let mut lies = all.clone();
            let at = lies.iter().rposition(|c| c.0 == kind).expect("a chunk");
            lies[at].1 = change(&lies[at].1);
            read(&lies).map(|_| ())
        };
        let pointers = edit(kind::SCAN_POINTERS, &|p| {
            let mut p = ScanPointers::decode(p).expect("pointers");
            p.pointers[1] = 1 << 30;
            p.encode()
        });
        assert_eq!(pointers, Err(Unusable::Malformed));
        // More blocks than the head says are not even kept.
        let mut more = all.clone();
        let mut head = Scan::decode(&more[0].1).expect("a head");
        head.blocks = 10;
        more[0].1 = head.encode();
        let mut saved = Saved::new(head);
        more[1..].iter().for_each(|(kind, payload)| saved.take(*kind, payload, 77));
        assert!(saved.stacks.len() <= 10, "{} blocks", saved.stacks.len());
        assert_eq!(saved.finish().map(|_| ()), Err(Unusable::Incomplete));
        // Blocks that are not in order.
        let blocks = edit(kind::SCAN_BLOCKS, &|p| {
            let mut b = ScanBlocks::decode(p).expect("blocks");
            let mut all = Vec::new();
            b.each(|block, to| all.push((block, to.to_vec()))).expect("blocks");
            (b.bytes, b.count) = (Vec::new(), 0);
            all.swap(2, 3);
            let mut coder = ScanCoder::default();
            all.iter().for_each(|(block, to)| b.put(&mut coder, block, to));
            b.encode()
        });
        assert_eq!(blocks, Err(Unusable::Malformed));
        let cut = edit(kind::SCAN_BLOCKS, &|p| p[..p.len() - 1].to_vec());
        assert_eq!(cut, Err(Unusable::Incomplete));
    }
}
