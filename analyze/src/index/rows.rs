//! Writes and reads the blocks of rows.

use super::column::{How, PACKED_WORDS, Packed, is_smooth, pack, unpack};
use super::format::{sealed, unsealed};
use crate::load::EVENT_UNIT;
use prof_trace::size::{CodedSize, Header};
use prof_trace::ticks::Ticks;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of rows of a block.
pub(super) const BLOCK: usize = 8192;

/// Maximum length of uncompressed rows, in hundredths of the length of their events in the recording. A block of rows
/// that would go beyond that is compressed.
const MOST_OF_EVENTS: u128 = 125;

/// Usual length of an uncompressed row, in bytes.
const UNPACKED: u64 = 24;

/// Words between the starts of two columns while they are filled. With a power of two, all values of a row would fall
/// on the same cache set.
const STRIDE: usize = BLOCK + 24;

/// A column of the rows; each row describes one block of memory that was ever allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Address of the block.
    Addr,
    /// Bytes requested.
    Size,
    /// Ticks when it was allocated.
    Begin,
    /// Ticks when it was freed; `u64::MAX` if it never was.
    End,
    /// Index of the group (stack) that it belongs to.
    Group,
    /// Thread index of the thread that allocated it.
    ThreadIndex,
    /// Stack node of its free, if that was recorded; else 0.
    EndNode,
    /// Thread index of the thread that freed it.
    EndThreadIndex,
    /// Bits of [`flags`].
    Flags,
    /// Number of the chain of reallocations that it belongs to; 0: none.
    Chain,
    /// Position in that chain, from 0.
    Position,
    /// glibc's chunk header, as [`Header::code`](prof_trace::size::Header::code); 0: none.
    Header,
    /// Exponent of the distance at which it was sampled (see [`rate`](CodedSize::rate)); 0: the recording's.
    Rate,
}

const COLUMNS: usize = 13;

/// A row on its way to the columns; one cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(super) struct Row {
    pub addr: u64,
    /// Size, chunk header and sampling distance.
    pub sized: CodedSize,
    pub begin: Ticks,
    pub end: Ticks,
    pub group: u32,
    pub thread_index: u32,
    pub end_node: u32,
    pub end_thread_index: u32,
    pub chain: u32,
    pub position: u32,
    pub flags: u64,
}

impl Row {
    /// Returns the values in the order of [`Column`].
    #[inline(always)]
    fn values(&self) -> [u64; COLUMNS] {
        let (size, header) = self.sized.decode();
        [
            self.addr,
            size,
            self.begin.0,
            self.end.0,
            self.group.into(),
            self.thread_index.into(),
            self.end_node.into(),
            self.end_thread_index.into(),
            self.flags,
            self.chain.into(),
            self.position.into(),
            header.map_or(0, Header::code).into(),
            self.sized.rate().into(),
        ]
    }
}

/// Bits of [`Column::Flags`].
pub mod flags {
    /// The block's free was the next event of the thread that allocated it.
    pub const TEMPORARY: u64 = 1;
    /// `realloc` returned the block.
    pub const REALLOCATED: u64 = 2;
    /// The block was passed to `realloc`.
    pub const CONTINUED: u64 = 4;
    /// The block's free was not recorded: another block at its address implies it.
    pub const IMPLIED: u64 = 8;
    /// The block is live at the end of the recording.
    pub const LIVE: u64 = 16;
    /// The block is from before the recording, and a census has found it: nothing is known of its allocation.
    pub const FOUND: u64 = 32;
}

/// The storage of an index.
pub(super) enum Store {
    File(File),
    Memory(Vec<u8>),
    /// Rows of a recording that grows: others come behind them in the file.
    Grown {
        file: Arc<File>,
        /// Position from which on this moment has rows of its own.
        end: u64,
        /// The rows of this moment, from `end` on.
        tail: Box<Store>,
    },
}

impl Store {
    /// Reads `len` bytes from `at` into `buf`.
    pub(super) fn read(&self, at: u64, len: usize, buf: &mut Vec<u8>) -> io::Result<()> {
        buf.clear();
        match self {
            Store::File(f) => {
                buf.resize(len, 0);
                f.read_exact_at(buf, at)
            }
            Store::Memory(v) => {
                let at = usize::try_from(at).unwrap_or(usize::MAX);
                let end = at.saturating_add(len);
                let bytes = v.get(at..end).ok_or(io::ErrorKind::UnexpectedEof)?;
                buf.extend_from_slice(bytes);
                Ok(())
            }
            Store::Grown { tail, end, .. } if at >= *end => tail.read(at - end, len, buf),
            Store::Grown { file, .. } => {
                buf.resize(len, 0);
                file.read_exact_at(buf, at)
            }
        }
    }
}

/// The destination of rows.
pub(super) enum Out {
    File(BufWriter<File>),
    Memory(Vec<u8>),
}

impl Out {
    pub(super) fn file(file: File) -> Self {
        Out::File(BufWriter::with_capacity(1 << 20, file))
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Out::File(f) => f.write_all(bytes),
            Out::Memory(v) => {
                v.extend_from_slice(bytes);
                Ok(())
            }
        }
    }
}

/// Collects rows and writes them in blocks.
pub(super) struct Writer {
    out: Out,
    /// Length of an event in the recording; see [`Stream::event_bytes`](crate::load::Stream::event_bytes).
    event_bytes: Arc<AtomicU64>,
    /// Number of bytes that the rows so far, with those being written, may take uncompressed.
    most: u64,
    /// Position of the next byte.
    pub at: u64,
    columns: Box<[[u64; STRIDE]; COLUMNS]>,
    used: usize,
    /// Number of rows written in blocks.
    pub rows: u64,
    /// Positions of the blocks.
    pub blocks: Vec<u64>,
    bytes: Vec<u8>,
    /// The first error.
    failed: Option<io::Error>,
}

impl Writer {
    /// Creates a writer that begins at position `at`.
    pub(super) fn new(out: Out, at: u64, event_bytes: Arc<AtomicU64>) -> Self {
        let columns = vec![[0; STRIDE]; COLUMNS].into_boxed_slice();
        let columns = columns.try_into().unwrap_or_else(|_| Box::new([[0; STRIDE]; COLUMNS]));
        Self {
            out,
            event_bytes,
            most: at,
            at,
            columns,
            used: 0,
            rows: 0,
            blocks: Vec::new(),
            bytes: Vec::new(),
            failed: None,
        }
    }

    /// Creates a writer of rows that follow those of this one for a moment: it begins with the rows that are in no block
    /// yet, and its blocks are behind those of this one. Hands over to the kernel what was written so far.
    ///
    /// # Errors
    /// If writing has failed.
    pub(super) fn branch(&mut self, out: Out) -> io::Result<Self> {
        if let Some(e) = self.failed.take() {
            return Err(e);
        }
        if let Out::File(f) = &mut self.out {
            f.flush()?;
        }
        let mut branch = Self::new(out, self.at, Arc::clone(&self.event_bytes));
        // It is used for a moment: compressing it would take longer than it is worth.
        branch.most = u64::MAX;
        branch.used = self.used;
        for (to, from) in branch.columns.iter_mut().zip(&*self.columns) {
            to[..self.used].copy_from_slice(&from[..self.used]);
        }
        branch.rows = self.rows;
        branch.blocks.clone_from(&self.blocks);
        Ok(branch)
    }

    /// Returns what was written as a store, without a header.
    ///
    /// # Errors
    /// If writing has failed.
    pub(super) fn into_store(self) -> io::Result<Store> {
        if let Some(e) = self.failed {
            return Err(e);
        }
        match self.out {
            Out::File(f) => Ok(Store::File(f.into_inner().map_err(|e| e.into_error())?)),
            Out::Memory(v) => Ok(Store::Memory(v)),
        }
    }

    /// Adds a row.
    #[inline(always)]
    pub(super) fn push(&mut self, row: &Row) {
        let n = self.used & (BLOCK - 1);
        for (column, value) in self.columns.iter_mut().zip(row.values()) {
            column[n] = value;
        }
        self.used += 1;
        if self.used == BLOCK {
            self.flush();
        }
    }

    #[cold]
    fn flush(&mut self) {
        let rows = std::mem::take(&mut self.used);
        if rows == 0 || self.failed.is_some() {
            return;
        }
        self.bytes.clear();
        let [begins, ends] =
            [Column::Begin, Column::End].map(|c| &self.columns[c as usize][..rows]);
        let mut head = vec![rows as u64, longest(begins, ends)];
        // An index in memory is mostly that of a recording that is too short for a file.
        let in_file = self.is_in_file();
        let flags = &self.columns[Column::Flags as usize][..rows];
        let event_bytes = self.event_bytes.load(Relaxed);
        self.most = self.most.saturating_add(most(flags, event_bytes));
        let short = in_file && self.at.saturating_add(UNPACKED * rows as u64) > self.most;
        for (k, column) in self.columns.iter().enumerate() {
            let column = &column[..rows];
            let grows = k == Column::Begin as usize || k == Column::End as usize;
            let steps = grows || (k == Column::Addr as usize && short && is_smooth(column));
            let how = How { steps: in_file && steps, short };
            head.extend(pack(column, how, &mut self.bytes).words());
        }
        self.blocks.push(self.at);
        self.rows += rows as u64;
        let head = sealed(&head);
        self.write(&head);
        let bytes = std::mem::take(&mut self.bytes);
        self.write(&bytes);
        self.bytes = bytes;
    }

    /// Writes bytes behind what was written before.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            match self.out.write(bytes) {
                Ok(()) => self.at += bytes.len() as u64,
                Err(e) => self.failed = Some(e),
            }
        }
    }

    /// Returns whether the rows are written to a file.
    pub(super) fn is_in_file(&self) -> bool {
        matches!(self.out, Out::File(_))
    }

    /// Writes the last, incomplete block.
    pub(super) fn finish_rows(&mut self) {
        self.flush();
    }

    /// Writes the header at the beginning, and returns the storage.
    pub(super) fn finish(self, header: &[u8]) -> io::Result<Store> {
        let mut store = self.into_store()?;
        match &mut store {
            Store::Memory(v) => v[..header.len()].copy_from_slice(header),
            Store::File(f) => f.write_all_at(header, 0)?,
            Store::Grown { .. } => {}
        }
        Ok(store)
    }
}

/// Returns the longest time between two columns; `u64::MAX` if a block is never freed.
fn longest(begins: &[u64], ends: &[u64]) -> u64 {
    let life = |(begin, end): (&u64, &u64)| match end {
        &u64::MAX => u64::MAX,
        end => end.saturating_sub(*begin),
    };
    begins.iter().zip(ends).map(life).max().unwrap_or(0)
}

/// Returns the maximum length of uncompressed rows with these flags. A row stands for the event that began its block and
/// the one that ended it; a reallocation belongs to the row that it begins.
fn most(flags: &[u64], event_bytes: u64) -> u64 {
    let no_end = flags::LIVE | flags::CONTINUED | flags::IMPLIED;
    let ends = flags.iter().filter(|f| **f & no_end == 0).count();
    let bytes = (flags.len() + ends) as u128 * u128::from(event_bytes) / u128::from(EVENT_UNIT);
    u64::try_from(bytes * MOST_OF_EVENTS / 100).unwrap_or(u64::MAX)
}

/// Number of words in front of the columns' in the head of a block.
const FRONT: usize = 2;
const HEAD: usize = (FRONT + COLUMNS * PACKED_WORDS + 1) * 8;

/// Corrects the checksums of a block, as far as its columns can be found.
pub(super) fn reseal(block: &mut [u8]) {
    let Some((head, mut rest)) = block.split_at_mut_checked(HEAD) else { return };
    let Some((front, words)) = head.as_chunks_mut::<8>().0.split_first_chunk_mut::<FRONT>() else {
        return;
    };
    let rows = u64::from_le_bytes(front[0]).min(BLOCK as u64) as usize;
    for c in words.as_chunks_mut::<PACKED_WORDS>().0 {
        let how = u64::from_le_bytes(c[2]) as u32;
        let len = super::column::len_of(how, rows);
        let Some((bytes, behind)) = rest.split_at_mut_checked(len) else { break };
        c[2] = super::column::sum_and_how(bytes, how).to_le_bytes();
        rest = behind;
    }
    super::format::reseal_words(head);
}

/// A block of rows: the ranges of its columns and, on request, their values.
pub struct Block<'a> {
    store: &'a Store,
    /// Index among the blocks of rows.
    number: usize,
    rows: usize,
    longest: u64,
    /// Position of the first column.
    at: u64,
    columns: [Packed; COLUMNS],
    bytes: Vec<u8>,
}

impl<'a> Block<'a> {
    /// Reads the head of a block, given its number and position; `None` if it can't be read or is damaged.
    pub(super) fn open(
        store: &'a Store,
        (number, at): (usize, u64),
        mut bytes: Vec<u8>,
    ) -> Option<Self> {
        store.read(at, HEAD, &mut bytes).ok()?;
        let words = unsealed(&bytes)?;
        let ([rows, longest], packed) = words.split_first_chunk::<FRONT>()?;
        let rows = usize::try_from(*rows).ok().filter(|n| *n <= BLOCK)?;
        let mut columns = [Packed::default(); COLUMNS];
        for (c, w) in columns.iter_mut().zip(packed.as_chunks::<PACKED_WORDS>().0) {
            *c = Packed::from_words(*w)?;
        }
        Some(Self { store, number, rows, longest: *longest, at: at + HEAD as u64, columns, bytes })
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of its first row. All blocks of rows but the last have the same number of rows.
    pub fn first_row(&self) -> u64 {
        (self.number * BLOCK) as u64
    }

    /// Returns the longest time in ticks from a row's begin to its end; `u64::MAX` if one has none.
    pub fn longest(&self) -> u64 {
        self.longest
    }

    /// Returns the smallest and the largest value of a column.
    pub fn range(&self, column: Column) -> (u64, u64) {
        let p = &self.columns[column as usize];
        (p.min, p.max)
    }

    /// Reads the values of a column into `out`; `None` if they can't be read or are damaged.
    #[must_use]
    pub fn read(&mut self, column: Column, out: &mut Vec<u64>) -> Option<()> {
        let n = column as usize;
        let before: usize = self.columns[..n].iter().map(|p| p.len(self.rows)).sum();
        let p = self.columns[n];
        let len = p.len(self.rows);
        if len == 0 {
            self.bytes.clear();
        } else {
            self.store.read(self.at + before as u64, len, &mut self.bytes).ok()?;
        }
        unpack(&p, &self.bytes, self.rows, out)
    }

    /// Returns the buffer for the next block.
    pub(super) fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }
}
