//! A scan of the target: its live blocks at a moment, the roots, and all pointers between them, as `prof holds --save`
//! reads them from outside.

use crate::ticks::Ticks;
use crate::wire::{Reader, Writer};
use std::string::String;
use std::vec;
use std::vec::Vec;

record! {
    /// Begins a scan. The other chunks of the scan follow, in the order of their kinds; other chunks may stand between.
    Scan {
        /// Ticks when the pointers were read. All chunks of a scan begin with them.
        ticks: ticks,
        /// Name that the user has given the scan; empty: it has none.
        name: text,
        /// Number of live blocks.
        blocks: int,
        /// Number of pointers that stand in blocks.
        pointers: int,
        /// Number of roots.
        roots: int,
        /// Number of pointers that stand in roots.
        root_pointers: int,
        /// Pointers that were left out for want of room.
        left_out: int,
        /// 1: blocks from before the attach are among the blocks, and not roots.
        census: int,
        /// Cost of the scan, and pointers that it may have missed; see [`ScanFigures`].
        figures: ints,
        /// Names of the C++ classes that blocks begin with, as the Itanium C++ ABI mangles them. They are numbered from 1
        /// on.
        classes: texts,
        /// Number of frames of threads' stacks.
        frames: later,
    }
}

/// Cost of a scan, and circumstances that may hide pointers: the entries of [`Scan::figures`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanFigures {
    /// Bytes of memory that were read.
    pub scanned: u64,
    /// Time that reading took, in nanoseconds.
    pub took_ns: u64,
    /// Processor time that it took, in nanoseconds.
    pub cpu_ns: u64,
    /// Longest stop of a thread, in nanoseconds.
    pub longest_stop_ns: u64,
    /// Time for which all threads were stopped, in nanoseconds; `None`: they ran.
    pub stop_ns: Option<u64>,
    /// Bytes that could not be read.
    pub unreadable: u64,
    /// Bytes of shared mappings without pages in the process.
    pub absent: u64,
    /// Threads whose registers could not be read.
    pub unread_threads: u64,
    /// Descriptors of io_uring.
    pub rings: u64,
    /// Whether requests of aio may have been on their way.
    pub aio: bool,
    /// Blocks that begin inside others, and are part of them here.
    pub nested: u64,
    /// Live blocks that the scan does not have, as they were allocated while it was made: their number, and bytes.
    pub left_out: (u64, u64),
    /// Threads whose stacks could not be followed to their start, so that some of their pointers have no frame.
    pub cut_stacks: u64,
}

impl ScanFigures {
    /// Encodes the figures as [`Scan::figures`].
    pub fn encode(&self) -> Vec<u64> {
        let stop = self.stop_ns.map_or(0, |ns| ns.saturating_add(1));
        let [a, b, c] = [self.unreadable, self.absent, self.unread_threads];
        vec![
            self.scanned,
            self.took_ns,
            self.cpu_ns,
            self.longest_stop_ns,
            stop,
            a,
            b,
            c,
            self.rings,
            self.aio.into(),
            self.nested,
            self.left_out.0,
            self.left_out.1,
            self.cut_stacks,
        ]
    }

    /// Decodes [`Scan::figures`]. What is missing is 0.
    pub fn decode(figures: &[u64]) -> Self {
        let at = |i: usize| figures.get(i).copied().unwrap_or(0);
        Self {
            scanned: at(0),
            took_ns: at(1),
            cpu_ns: at(2),
            longest_stop_ns: at(3),
            stop_ns: at(4).checked_sub(1),
            unreadable: at(5),
            absent: at(6),
            unread_threads: at(7),
            rings: at(8),
            aio: at(9) != 0,
            nested: at(10),
            left_out: (at(11), at(12)),
            cut_stacks: at(13),
        }
    }
}

record! {
    /// Roots of a scan. They are numbered from 0 on over all these chunks.
    ScanRoots {
        /// See [`Scan::ticks`].
        ticks: ticks,
        /// Seven integers for each root: kind (see [`root_kind`]), thread id or 0, address or 0, the indices plus one in
        /// `texts` of the variable, of the module or mapping, and of the source file, and the line; 0: there is none.
        roots: ints,
        /// Names for people, one for each root.
        names: texts,
        /// Names of variables, modules, mappings and source files.
        texts: texts,
        /// Frames of threads' stacks: eight integers for each: number of the root that the stack is; number of the frame,
        /// counted from the innermost, which is 0; code address; the indices plus one in `texts` of the name for people, of
        /// the function, of the module, and of the source file, and the line; 0: there is none. They are numbered from 0 on
        /// over all these chunks.
        frames: later_ints,
    }
}

/// Number of integers of a root in [`ScanRoots::roots`].
const ROOT: usize = 7;

/// Kinds of roots.
pub mod root_kind {
    #![allow(missing_docs)]
    pub const VARIABLE: u64 = 1;
    pub const DATA: u64 = 2;
    pub const STACK: u64 = 3;
    pub const THREAD_LOCAL: u64 = 4;
    pub const MAPPING: u64 = 5;
    pub const KERNEL: u64 = 6;
}

/// A root of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanRoot {
    /// See [`root_kind`].
    pub kind: u64,
    /// Name for people.
    pub name: String,
    /// Name of the variable.
    pub variable: Option<String>,
    /// Program or library that the variable is in, or name of the mapping.
    pub module: Option<String>,
    /// Thread id.
    pub thread: Option<u64>,
    /// Address of the variable or the mapping.
    pub address: Option<u64>,
    /// Source file that declares the variable.
    pub file: Option<String>,
    /// Line of the declaration; 0: it is not known.
    pub line: u32,
}

impl ScanRoots {
    /// Returns the index plus one of a text in `texts`, which may become the last one; 0: there is none.
    pub(super) fn index(&mut self, text: Option<&str>) -> u64 {
        let (Some(text), texts) = (text, &mut self.texts) else { return 0 };
        // Roots of one module often follow each other.
        if let Some(n) = texts.iter().rev().take(8).position(|old| old == text) {
            return (texts.len() - n) as u64;
        }
        texts.push(String::from(text));
        texts.len() as u64
    }

    /// Returns the text with an index plus one; `None`: there is none of that number.
    pub(super) fn text(&self, number: u64) -> Option<Option<String>> {
        match number.checked_sub(1) {
            None => Some(None),
            Some(i) => self.texts.get(usize::try_from(i).ok()?).map(|t| Some(t.clone())),
        }
    }

    /// Appends a root.
    pub fn put(&mut self, root: &ScanRoot) {
        let (variable, module) =
            (self.index(root.variable.as_deref()), self.index(root.module.as_deref()));
        let (file, line) = (self.index(root.file.as_deref()), root.line.into());
        let (thread, address) = (root.thread.unwrap_or(0), root.address.unwrap_or(0));
        self.roots.extend([root.kind, thread, address, variable, module, file, line]);
        self.names.push(root.name.clone());
    }

    /// Returns the roots; `None` if the lists do not belong together.
    pub fn all(&self) -> Option<Vec<ScanRoot>> {
        let (roots, rest) = self.roots.as_chunks::<ROOT>();
        if !rest.is_empty() || roots.len() != self.names.len() {
            return None;
        }
        let text = |number: u64| self.text(number);
        let given = |n: u64| (n != 0).then_some(n);
        let root = |(r, name): (&[u64; ROOT], &String)| {
            Some(ScanRoot {
                kind: r[0],
                name: name.clone(),
                variable: text(r[3])?,
                module: text(r[4])?,
                thread: given(r[1]),
                address: given(r[2]),
                file: text(r[5])?,
                line: u32::try_from(r[6]).ok()?,
            })
        };
        roots.iter().zip(&self.names).map(root).collect()
    }
}

record! {
    /// Blocks of a scan, in the order of addresses, with the pointers that stand in them. They are numbered from 0 on
    /// over all these chunks.
    ScanBlocks {
        /// See [`Scan::ticks`].
        ticks: ticks,
        /// Number of the first block.
        first: int,
        /// Number of blocks.
        count: int,
        /// The blocks; see [`ScanBlocks::put`].
        bytes: bytes,
        /// Further pointers of the block in front of the first one, for which there was no room in the chunk before: each
        /// as its block's number minus the one before, at first that block's own, in zigzag coding.
        more: ints,
    }
}

/// Stack of a block of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScanStack {
    /// The block was freed while the memory was read. It passes on pointers, but counts as nobody's.
    #[default]
    Freed,
    /// The block is from before the attach.
    Before,
    /// Node of the stack that allocated the block.
    Node(u32),
}

impl ScanStack {
    fn encode(self) -> u64 {
        match self {
            Self::Freed => 0,
            Self::Before => 1,
            Self::Node(n) => u64::from(n) + 2,
        }
    }

    fn decode(code: u64) -> Option<Self> {
        Some(match code {
            0 => Self::Freed,
            1 => Self::Before,
            n => Self::Node(u32::try_from(n - 2).ok()?),
        })
    }
}

/// A block of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanBlock {
    /// Address of the first byte.
    pub address: u64,
    /// Bytes from the start within which a pointer is one to this block.
    pub len: u64,
    /// Bytes that were requested; 0 if the block was freed meanwhile.
    pub size: u64,
    /// Stack that allocated the block.
    pub stack: ScanStack,
    /// Number of the class in [`Scan::classes`]; 0: none is known.
    pub class: u32,
}

/// Returns a signed difference as an unsigned integer that is small if the difference is: zigzag coding.
fn zigzag(to: u64, from: u64) -> u64 {
    let d = to.wrapping_sub(from).cast_signed();
    ((d << 1) ^ (d >> 63)).cast_unsigned()
}

/// Returns the number that [`zigzag`] has encoded.
fn unzigzag(code: u64, from: u64) -> u64 {
    from.wrapping_add((code >> 1) ^ (code & 1).wrapping_neg())
}

/// Encodes and decodes the blocks of one [`ScanBlocks`]: what it remembers of the block before.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScanCoder {
    end: u64,
    stack: u64,
}

impl ScanBlocks {
    /// Appends a block and the numbers of the blocks that it points to: start minus the end of the block before it in the
    /// chunk; length; size minus length, in zigzag coding; stack (0: freed; 1: from before the attach; node plus two)
    /// minus that of the block before, in zigzag coding; class; number of pointers; and each pointer as its block's number
    /// minus the one before, at first this block's own, in zigzag coding.
    pub fn put(&mut self, coder: &mut ScanCoder, block: &ScanBlock, to: &[u32]) {
        let mut w = Writer { bytes: std::mem::take(&mut self.bytes) };
        let stack = block.stack.encode();
        w.int(block.address.wrapping_sub(coder.end)).int(block.len);
        w.int(zigzag(block.size, block.len)).int(zigzag(stack, coder.stack));
        w.int(block.class.into()).int(to.len() as u64);
        let mut last = self.first + self.count;
        for t in to {
            w.int(zigzag((*t).into(), last));
            last = (*t).into();
        }
        *coder = ScanCoder { end: block.address.wrapping_add(block.len), stack };
        self.bytes = w.bytes;
        self.count += 1;
    }

    /// Calls `take` with each block and the numbers of the blocks that it points to. Returns `None` if the bytes are
    /// malformed.
    pub fn each(&self, mut take: impl FnMut(ScanBlock, &[u32])) -> Option<()> {
        let mut r = Reader::new(&self.bytes);
        let (mut coder, mut to) = (ScanCoder::default(), Vec::new());
        for i in 0..self.count {
            let address = coder.end.wrapping_add(r.int()?);
            let len = r.int()?;
            let size = unzigzag(r.int()?, len);
            let stack = unzigzag(r.int()?, coder.stack);
            let class = r.int32()?;
            to.clear();
            let mut last = self.first.checked_add(i)?;
            for _ in 0..r.int()? {
                last = unzigzag(r.int()?, last);
                to.push(u32::try_from(last).ok()?);
            }
            coder = ScanCoder { end: address.wrapping_add(len), stack };
            let stack = ScanStack::decode(stack)?;
            take(ScanBlock { address, len, size, stack, class }, &to);
        }
        r.rest().is_empty().then_some(())
    }

    /// Appends pointers of the block in front of the first one. There is one call for each chunk.
    pub fn put_more(&mut self, to: &[u32]) {
        let mut last = self.first.saturating_sub(1);
        for t in to {
            self.more.push(zigzag((*t).into(), last));
            last = (*t).into();
        }
    }

    /// Returns the pointers of the block in front of the first one; `None` if a number is too large, or there is none.
    pub fn more_pointers(&self) -> Option<Vec<u32>> {
        if self.more.is_empty() {
            return Some(Vec::new());
        }
        let mut last = self.first.checked_sub(1)?;
        let next = |code: &u64| {
            last = unzigzag(*code, last);
            u32::try_from(last).ok()
        };
        self.more.iter().map(next).collect()
    }
}

record! {
    /// Pointers that stand in roots of a scan.
    ScanPointers {
        /// See [`Scan::ticks`].
        ticks: ticks,
        /// Three integers for each pointer: root, block, and address of the word or 0; each minus that of the pointer
        /// before it, in zigzag coding.
        pointers: ints,
        /// For each pointer the number plus one of the frame that it stands in, or 0; empty: none stands in a frame.
        frames: later_ints,
    }
}

/// A pointer that stands in a root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScanPointer {
    /// Number of the root.
    pub root: u32,
    /// Number of the block.
    pub to: u32,
    /// Address of the word; 0: it is in a register, or the kernel's.
    pub at: u64,
    /// Number of the frame of the root's stack that it stands in.
    pub frame: Option<u32>,
}

impl ScanPointers {
    /// Appends pointers. There is one call for each chunk.
    pub fn put(&mut self, pointers: &[ScanPointer]) {
        let mut last = ScanPointer::default();
        for p in pointers {
            let root = zigzag(p.root.into(), last.root.into());
            self.pointers.extend([
                root,
                zigzag(p.to.into(), last.to.into()),
                zigzag(p.at, last.at),
            ]);
            last = *p;
        }
        if pointers.iter().any(|p| p.frame.is_some()) {
            let number = |p: &ScanPointer| p.frame.map_or(0, |f| u64::from(f) + 1);
            self.frames.extend(pointers.iter().map(number));
        }
    }

    /// Returns the pointers; `None` if a number is too large, or the lists do not belong together.
    pub fn all(&self) -> Option<Vec<ScanPointer>> {
        let mut last = ScanPointer::default();
        let (all, rest) = self.pointers.as_chunks::<3>();
        let next = |(i, p): (usize, &[u64; 3])| {
            let root = u32::try_from(unzigzag(p[0], last.root.into())).ok()?;
            let to = u32::try_from(unzigzag(p[1], last.to.into())).ok()?;
            let frame = self.frames.get(i).and_then(|f| f.checked_sub(1));
            let frame = frame.map(u32::try_from).transpose().ok()?;
            last = ScanPointer { root, to, at: unzigzag(p[2], last.at), frame };
            Some(last)
        };
        if !rest.is_empty() || !self.frames.is_empty() && self.frames.len() != all.len() {
            return None;
        }
        all.iter().enumerate().map(next).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_back_with_their_pointers() {
        let block =
            |address, len, size, stack, class| ScanBlock { address, len, size, stack, class };
        let all = [
            (block(0x1000, 32, 24, ScanStack::Node(7), 0), vec![0, 2]),
            (block(0x1020, 1, 0, ScanStack::Before, 1), vec![]),
            (block(u64::MAX - 16, 16, 16, ScanStack::Freed, 3), vec![0, 1, u32::MAX]),
        ];
        let mut b = ScanBlocks { ticks: Ticks(5), first: 9, ..ScanBlocks::default() };
        let mut coder = ScanCoder::default();
        all.iter().for_each(|(block, to)| b.put(&mut coder, block, to));
        let b = ScanBlocks::decode(&b.encode()).expect("blocks");
        let mut back = Vec::new();
        assert_eq!(b.each(|block, to| back.push((block, to.to_vec()))), Some(()));
        assert_eq!(back, all);
        let mut more = ScanBlocks { first: 9, ..ScanBlocks::default() };
        assert_eq!(more.more_pointers(), Some(vec![]));
        more.put_more(&[7, 9, u32::MAX]);
        assert_eq!(more.more_pointers(), Some(vec![7, 9, u32::MAX]));
        assert_eq!(ScanBlocks { first: 0, ..more }.more_pointers(), None);
        for cut in 0..b.bytes.len() {
            let less = ScanBlocks { bytes: b.bytes[..cut].to_vec(), ..b.clone() };
            assert_eq!(less.each(|_, _| {}), None, "{cut}");
        }
    }

    #[test]
    fn roots_and_their_pointers_come_back() {
        let mut r = ScanRoots { ticks: Ticks(5), ..ScanRoots::default() };
        let module: Option<String> = Some("/bin/x".into());
        let variable = ScanRoot {
            kind: root_kind::VARIABLE,
            name: "v in x".into(),
            variable: Some("v".into()),
            module: module.clone(),
            thread: None,
            address: Some(0x4000),
            file: Some("x.c".into()),
            line: 12,
        };
        let stack = ScanRoot { kind: root_kind::STACK, thread: Some(9), ..ScanRoot::default() };
        let all = [variable.clone(), stack, ScanRoot { module, ..variable }];
        all.iter().for_each(|root| r.put(root));
        let mut r = ScanRoots::decode(&r.encode()).expect("roots");
        assert_eq!((r.all().as_deref(), r.texts.len()), (Some(&all[..]), 3));
        r.texts.pop();
        assert_eq!(r.all(), None);
        let pointers = [(0, 5, 0x4000), (0, 4, 0x3000), (7, 0, 0)];
        let pointers = pointers.map(|(root, to, at)| ScanPointer { root, to, at, frame: None });
        let mut p = ScanPointers::default();
        p.put(&pointers);
        assert_eq!(p.all().as_deref(), Some(&pointers[..]));
        p.pointers.pop();
        assert_eq!(p.all(), None);
    }

    #[test]
    fn figures_come_back() {
        let f = ScanFigures {
            scanned: 7,
            stop_ns: Some(0),
            aio: true,
            nested: 3,
            left_out: (4, 5),
            cut_stacks: 2,
            ..Default::default()
        };
        assert_eq!(ScanFigures::decode(&f.encode()), f);
        assert_eq!(ScanFigures::decode(&[]), ScanFigures::default());
    }
}
