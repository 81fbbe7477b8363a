//! A [`Heap`] as chunks of a recording, and back.

use crate::edges::{Edges, NONE, Root, RootEdge};
use crate::heap::Heap;
use crate::table::{Keys, Table};
use prof_trace::records::{
    Scan, ScanBlock, ScanBlocks, ScanCoder, ScanFrame, ScanPointer, ScanPointers, ScanRoot,
    ScanRoots, ScanStack, kind,
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
    /// Returns a frame with its name. The number of its root is set by the caller.
    fn frame(&self, _frame: &Root) -> ScanFrame {
        ScanFrame::default()
    }
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
        // A frame is saved beside its root, so that a reader that knows none takes its pointers for the root's.
        let (tops, frames) = self.saved_roots();
        (head.roots, head.root_pointers) = (tops.len() as u64, self.of_roots.len() as u64);
        head.frames = frames.len() as u64;
        head.left_out = self.edges.left_out;
        put(kind::SCAN, &head.encode())?;
        for part in tops.chunks(ROOTS) {
            let mut chunk = ScanRoots { ticks, ..ScanRoots::default() };
            part.iter().for_each(|n| chunk.put(&names.root(&self.roots[*n as usize])));
            put(kind::SCAN_ROOTS, &chunk.encode())?;
        }
        for part in frames.chunks(ROOTS) {
            let mut chunk = ScanRoots { ticks, ..ScanRoots::default() };
            for (frame, root) in part {
                let named = names.frame(&self.roots[*frame as usize]);
                chunk.put_frame(&ScanFrame { root: *root, ..named });
            }
            put(kind::SCAN_ROOTS, &chunk.encode())?;
        }
        let numbers_of_roots = numbers_of(&tops, &frames, self.roots.len());
        self.save_blocks(ticks, names, &numbers, &mut put)?;
        for part in self.of_roots.chunks(POINTERS) {
            let mut chunk = ScanPointers { ticks, ..ScanPointers::default() };
            let of = |e: &RootEdge| {
                let (root, frame) = numbers_of_roots[e.root as usize];
                ScanPointer { root, to: e.to, at: e.at, frame }
            };
            chunk.put(&part.iter().map(of).collect::<Vec<_>>());
            put(kind::SCAN_POINTERS, &chunk.encode())?;
        }
        Ok(())
    }

    /// Returns the roots that are no parts of others, and those that are, each with its root's place among the former.
    fn saved_roots(&self) -> (Vec<u32>, Vec<(u32, u32)>) {
        let tops = self.root_parts.of(None).to_vec();
        let parts = (0u32..).zip(&tops).flat_map(|(place, root)| {
            self.root_parts.of(Some(*root)).iter().map(move |part| (*part, place))
        });
        let parts = parts.collect();
        (tops, parts)
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

/// Returns for each root its number in a recording, and that of the frame.
fn numbers_of(tops: &[u32], frames: &[(u32, u32)], roots: usize) -> Vec<(u32, Option<u32>)> {
    let mut numbers = vec![(0, None); roots];
    (0..).zip(tops).for_each(|(i, root)| numbers[*root as usize] = (i, None));
    (0..).zip(frames).for_each(|(i, (frame, root))| numbers[*frame as usize] = (*root, Some(i)));
    numbers
}

/// A scan of a recording that is being read: chunks are added in their order.
#[derive(Debug, Default)]
pub struct Saved {
    head: Scan,
    roots: Vec<ScanRoot>,
    frames: Vec<ScanFrame>,
    keys: Keys,
    starts: Vec<u32>,
    to: Vec<u32>,
    classes: Vec<u32>,
    stacks: Vec<u32>,
    sizes: Vec<u64>,
    /// Pointers of roots; those that stand in frames have the frames' numbers plus those of all roots.
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
        self.found().iter().zip(self.said()).any(|(found, said)| *found > said)
    }

    /// Returns the numbers of blocks, pointers, roots, pointers of roots, and frames so far.
    fn found(&self) -> [u64; 5] {
        let (blocks, roots) = (self.stacks.len(), self.roots.len());
        let all = [blocks, self.to.len(), roots, self.of_roots.len(), self.frames.len()];
        all.map(|n| n as u64)
    }

    /// Returns the same numbers as the head has them.
    fn said(&self) -> [u64; 5] {
        let h = &self.head;
        [h.blocks, h.pointers, h.roots, h.root_pointers, h.frames]
    }

    fn take_roots(&mut self, r: &ScanRoots) -> Option<()> {
        if r.ticks == self.head.ticks {
            self.roots.extend(r.all()?);
            self.frames.extend(r.all_frames()?);
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
            // The frame names the root.
            let (frames, roots) = (&self.frames, self.head.roots);
            let is_of = |f: u32, root: u32| frames.get(f as usize).is_some_and(|f| f.root == root);
            let root = |p: &ScanPointer| match p.frame {
                None => Some(p.root).filter(|root| u64::from(*root) < roots),
                Some(f) if is_of(f, p.root) => u32::try_from(roots).ok()?.checked_add(f),
                Some(_) => None,
            };
            let of = |p: ScanPointer| Some(RootEdge { root: root(&p)?, to: p.to, at: p.at });
            let all: Option<Vec<_>> = p.all()?.into_iter().map(of).collect();
            self.of_roots.extend(all?);
        }
        Some(())
    }

    /// Makes the heap, in which the class of a block is a number of [`Scan::classes`], and each root is
    /// [`Root::Saved`]: first those that are no parts of others, and then the frames. Also returns the head, and both.
    ///
    /// # Errors
    /// If parts are missing, or contradict each other.
    pub fn finish(mut self) -> Result<Read, Unusable> {
        if self.is_bad || self.found() != self.said() {
            return Err(Unusable::Incomplete);
        }
        let (head, n) = (self.head, self.stacks.len());
        let tops = self.roots.len() as u32;
        let roots = tops + self.frames.len() as u32;
        let mut above = vec![NONE; tops as usize];
        above.extend(self.frames.iter().map(|f| f.root));
        let is_block = |to: &u32| (*to as usize) < n;
        let table = Table::new(self.keys);
        let fits = self.to.iter().all(is_block)
            && self.frames.iter().all(|f| f.root < tops)
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
            above,
            of_roots: self.of_roots,
            classes: self.classes,
            tables: (1..=head.classes.len() as u64).collect(),
            left_out: head.left_out,
        };
        let heap = Heap::of_parts(table, edges, self.stacks, self.sizes);
        Ok(Read { heap, head, roots: self.roots, frames: self.frames })
    }
}

/// A scan of a recording that was read.
#[derive(Debug)]
pub struct Read {
    /// The blocks and pointers.
    pub heap: Heap,
    /// The head.
    pub head: Scan,
    /// The roots that are no parts of others.
    pub roots: Vec<ScanRoot>,
    /// The frames, which are the heap's roots behind those.
    pub frames: Vec<ScanFrame>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::Sum;
    use crate::held::Holder;
    use prof_os::Pid;
    use prof_trace::records::root_kind;

    const THREAD: Pid = Pid::from_raw(7);
    const FRAME: Root = Root::Frame { thread: THREAD, number: 2, pc: 0x500, exact: false };

    struct Plain;

    impl Naming for Plain {
        fn root(&self, root: &Root) -> ScanRoot {
            let name = format!("{root:?}");
            ScanRoot { kind: root_kind::DATA, name, ..ScanRoot::default() }
        }

        fn frame(&self, frame: &Root) -> ScanFrame {
            let Root::Frame { number, pc, .. } = *frame else { panic!("{frame:?}") };
            ScanFrame { number, address: pc, name: "f".into(), ..ScanFrame::default() }
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
            // A frame need not stand behind what it is a part of.
            roots: vec![Root::Global(0x4000), FRAME, Root::Kernel, Root::Stack(THREAD)],
            above: vec![NONE, 3],
            of_roots: vec![
                RootEdge { root: 0, to: 0, at: 0x4000 },
                RootEdge { root: 1, to: 5, at: 0x7000 },
                RootEdge { root: 2, to: n - 1, at: 0 },
                RootEdge { root: 3, to: 6, at: 0x7008 },
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

    fn read(chunks: &[(u16, Vec<u8>)]) -> Result<Read, Unusable> {
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
        let Read { heap: new, head, roots, frames } = read(&all).expect("a scan");
        assert_eq!(
            (new.edges.starts.clone(), &new.edges.to),
            (old.edges.starts.clone(), &old.edges.to)
        );
        assert_eq!((&new.stacks, &new.sizes), (&old.stacks, &old.sizes));
        // The frame has come behind the roots, below its stack.
        let of = |root, to, at| RootEdge { root, to, at };
        let n = new.stacks.len() as u32;
        let expected = [of(0, 0, 0x4000), of(1, n - 2, 0), of(2, 6, 0x7008), of(3, 5, 0x7000)];
        assert_eq!(new.of_roots, expected);
        assert_eq!((new.root_count(), new.root_above(3), new.root_above(2)), (3, Some(2), None));
        let named = ScanFrame {
            root: 2,
            number: 2,
            address: 0x500,
            name: "f".into(),
            ..Default::default()
        };
        assert_eq!(frames, [named]);
        let held = new.held();
        let node = |h: &Holder| held.nodes.iter().position(|n| n.holder == *h).expect("a node");
        let (stack, frame) = (node(&Holder::Root(2)), node(&Holder::Root(3)));
        assert_eq!(held.nodes[frame].parent as usize, stack);
        // The array has pointers to both blocks, too.
        assert_eq!(held.nodes[stack].retained.blocks, 0);
        assert_eq!((new.live(), new.left_out()), (old.live(), 3));
        assert_eq!(roots[1].name, "Kernel");
        assert_eq!(new.roots(), [0, 1, 2, 3].map(Root::Saved));
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
        // A pointer in a frame of another root's, or of none.
        for (i, number) in [(0, 1), (1, 2)] {
            let pointers = edit(kind::SCAN_POINTERS, &|p| {
                let mut p = ScanPointers::decode(p).expect("pointers");
                p.frames[i] = number;
                p.encode()
            });
            assert_eq!(pointers, Err(Unusable::Incomplete));
        }
        let frame = edit(kind::SCAN_ROOTS, &|p| {
            let mut r = ScanRoots::decode(p).expect("frames");
            r.frames[0] = 3;
            r.encode()
        });
        assert!(frame.is_err());
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
