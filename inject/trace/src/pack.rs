//! Packed events: stored in columns, as differences to the guesses of `predictor.rs`, and then compressed.
//!
//! A packed chunk holds runs of events of one or several threads and is decoded without any other chunk.
//! `FORMAT.md` specifies it.

use crate::event::{Codec, Visit};
use crate::predictor::{FEW_ALLOC_GUESSES, FEW_FREE_GUESSES, Predictor, State, Tables};
use crate::size::CodedSize;
use crate::ticks::Ticks;
use crate::wire::Writer;
use std::boxed::Box;
use std::vec::Vec;

pub use crate::unpack::{Packed, Unpacker};

/// Maximum number of events in a packed chunk.
pub const MAX_EVENTS: usize = 1 << 15;
/// Maximum length of all columns together, in bytes.
pub(crate) const MAX_BODY: usize = MAX_EVENTS * 64;
/// Maximum bytes of an event in each column: a time takes up to 8 in its two columns, any other value up to
/// 9; a reallocation has two addresses and a time in one column.
const MAX_IN_COLUMN: [usize; COLUMNS] = [1, 1, 7, 27, 9, 9];
/// Readable bytes behind the columns, without meaning.
pub(crate) const PAD: usize = 16;

/// Number of columns; the constants below are their indices, in the order in which they are written.
pub(crate) const COLUMNS: usize = 6;
pub(crate) const CONTROL: usize = 0;
pub(crate) const TIME_LOW: usize = 1;
pub(crate) const TIME_HIGH: usize = 2;
pub(crate) const ADDRESS: usize = 3;
pub(crate) const SIZE: usize = 4;
pub(crate) const NODE: usize = 5;

const REALLOC: u8 = 0;
pub(crate) const FREE: u8 = 1;
pub(crate) const ALLOC: u8 = 2;
const FREE_STACK: u8 = 3;

/// Flags of the control byte, beside kind (bits 0..2), guess (2..4, for frees also 5) and length of the time
/// (6..8).
pub(crate) const NODE_GUESSED: u8 = 1 << 4;
pub(crate) const SIZE_GUESSED: u8 = 1 << 5;
/// Guess code: no guess was right.
const MISSED_ALLOC: u8 = 3;
const MISSED_FREE: u8 = 7;
/// Bytes of a time in column [`TIME_HIGH`], by length code.
pub(crate) const TIME_BYTES: [usize; 4] = [0, 1, 2, 7];

/// Compression of the events in a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Compress {
    /// Not at all: events are stored as in the ring
    #[default]
    None,
    /// To about a third, at little cost (packed, then LZ4)
    Fast,
    /// To about a quarter (packed, then zstd)
    Best,
}

impl Compress {
    /// All values with their names.
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::None, "none"), (Self::Fast, "fast"), (Self::Best, "best")];

    /// Returns the name used on the command line.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|c| c.0 == self).map_or("", |c| c.1)
    }
}

/// Coder numbers in the payload.
pub(crate) const STORED: u64 = 0;
pub(crate) const LZ4: u64 = 1;
pub(crate) const ZSTD: u64 = 2;

#[inline(always)]
fn zigzag(v: i64) -> u64 {
    ((v << 1) ^ (v >> 63)) as u64
}

/// A column, of which `len` bytes are in use.
#[derive(Default)]
struct Column {
    bytes: Vec<u8>,
    len: usize,
}

impl Column {
    /// Makes room for `bytes` more bytes and the padding.
    fn make_room(&mut self, bytes: usize) {
        let want = self.len + bytes + PAD;
        if self.bytes.len() < want {
            self.bytes.resize(want, 0);
        }
    }

    fn written(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Write positions in the columns.
struct Pens([*mut u8; COLUMNS]);

impl Pens {
    /// Writes the lowest `n` bytes of `v`; `n` is at most 8.
    #[inline(always)]
    fn put(&mut self, column: usize, v: u64, n: usize) {
        debug_assert!(n <= 8);
        // SAFETY: `begin` has made room in each column for all events of the run and for the bytes written
        // beyond them, and `Packing::one_more` admits no more events than that.
        unsafe {
            self.0[column].cast::<u64>().write_unaligned(v.to_le());
            self.0[column] = self.0[column].add(n);
        }
    }

    /// Writes an integer if `wanted`: 3 bits with the number of bytes that follow, then the integer.
    #[inline(always)]
    fn put_int(&mut self, column: usize, v: u64, wanted: bool) {
        if v >= 1 << 53 {
            return if wanted {
                self.put_long(column, v)
            };
        }
        let n = (67 - (v | 1).leading_zeros()).div_ceil(8);
        self.put(column, v << 3 | (n - 1) as u64, if wanted { n as usize } else { 0 });
    }

    /// Writes an integer of any length in the long form.
    #[inline(always)]
    fn put_long(&mut self, column: usize, v: u64) {
        self.put(column, 7, 1);
        self.put(column, v, 8);
    }

    /// Writes an address if `wanted`, as the difference to `base`.
    #[inline(always)]
    fn put_address(&mut self, addr: u64, base: u64, wanted: bool) {
        let d = addr.wrapping_sub(base) as i64;
        let v = if d & 15 == 0 { zigzag(d >> 4) << 1 } else { zigzag(d) << 1 | 1 };
        // A distant address is written as it is, in the long form: no difference is that long.
        let far = zigzag(d) >= 1 << 52;
        self.put_int(ADDRESS, if far { addr } else { v }, wanted && !far);
        if far && wanted {
            self.put_long(ADDRESS, addr);
        }
    }
}

/// Encoder of packed chunks.
pub struct Packer {
    tables: Box<Tables>,
    written: Written,
    body: Vec<u8>,
    coded: Vec<u8>,
    zstd: Option<zstd::bulk::Compressor<'static>>,
}

/// The chunk under construction.
#[derive(Default)]
struct Written {
    state: State,
    columns: [Column; COLUMNS],
    runs: Writer,
    run_count: usize,
    events: usize,
    /// Events in runs with few guesses. These runs leave the tables of the other guesses as they are, whereas
    /// a reader updates them; so no run with all guesses may follow.
    few: usize,
}

impl core::fmt::Debug for Packer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Packer").field("events", &self.events()).finish_non_exhaustive()
    }
}

impl Default for Packer {
    fn default() -> Self {
        Self::new()
    }
}

impl Packer {
    /// Makes an empty packer.
    pub fn new() -> Self {
        Self {
            tables: Tables::new(),
            written: Written::default(),
            body: Vec::new(),
            coded: Vec::new(),
            zstd: None,
        }
    }

    /// Returns the number of events in the chunk.
    pub fn events(&self) -> usize {
        self.written.events
    }

    /// Returns whether `bytes` bytes of events are certain to fit.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.events() + bytes / 2 <= MAX_EVENTS
    }

    /// Begins a run of events of a thread, at most as many as `bytes` bytes can hold, for which there must be
    /// room. `from` is the decoding state before them. `ALL` guesses cost a tenth more time and save little
    /// of the compressed size. After a run with few guesses, a run with all guesses gets no room in the
    /// chunk.
    #[inline]
    pub fn begin<const ALL: bool>(
        &mut self,
        thread: u32,
        from: &Codec,
        bytes: usize,
    ) -> Packing<'_, ALL> {
        let fits = self.has_room(bytes) && (!ALL || self.written.few == 0);
        let most = if fits { bytes / 2 } else { 0 };
        let written = &mut self.written;
        let mut pens = [core::ptr::null_mut(); COLUMNS];
        for ((c, max), pen) in written.columns.iter_mut().zip(MAX_IN_COLUMN).zip(&mut pens) {
            c.make_room(most * max);
            *pen = c.bytes[c.len..].as_mut_ptr();
        }
        let mut state = written.state;
        state.time = from.time;
        Packing {
            predictor: Predictor::new(&mut self.tables, state),
            pens: Pens(pens),
            run: Run { thread, count: 0, time: from.time, node: from.node },
            room: most as u32,
            written,
        }
    }

    /// Packs a whole run with all guesses: the events in `bytes`, up to the first malformed one. `codec` is
    /// the decoding state, which the events change. `see` gets the node of each event. Returns the number of
    /// events and of bytes packed.
    pub fn run(
        &mut self,
        thread: u32,
        codec: &mut Codec,
        bytes: &[u8],
        mut see: impl FnMut(u32),
    ) -> (u32, usize) {
        if !self.has_room(bytes.len()) {
            return (0, 0);
        }
        let mut packing = self.begin::<true>(thread, codec, bytes.len());
        let (mut count, mut at) = (0u32, 0);
        while let Some((event, n)) = codec.get(&bytes[at..]) {
            at += n;
            count += 1;
            see(event.node());
            event.show(&mut packing);
        }
        packing.end();
        (count, at)
    }

    /// Appends the payload of a chunk with all events to `out`, and begins a new chunk. Appends nothing if
    /// there are no events.
    pub fn finish(&mut self, how: Compress, out: &mut Vec<u8>) {
        let written = &self.written;
        if written.events == 0 {
            return;
        }
        let mut w = Writer { bytes: core::mem::take(out) };
        let coder = match how {
            Compress::None => STORED,
            Compress::Fast => LZ4,
            Compress::Best => ZSTD,
        };
        w.int(coder).int(written.run_count as u64);
        w.bytes.extend_from_slice(&written.runs.bytes);
        for c in &written.columns {
            w.int(c.len as u64);
        }
        match coder {
            ZSTD => self.put_zstd(&mut w),
            LZ4 => self.put_lz4(&mut w),
            _ => {
                for c in &written.columns {
                    w.bytes.extend_from_slice(c.written());
                }
            }
        }
        *out = w.bytes;
        self.reset();
    }

    fn reset(&mut self) {
        self.tables.reset();
        let written = &mut self.written;
        written.state = State::default();
        written.columns.iter_mut().for_each(|c| c.len = 0);
        written.runs.bytes.clear();
        (written.run_count, written.events, written.few) = (0, 0, 0);
    }

    fn put_lz4(&mut self, w: &mut Writer) {
        self.body.clear();
        for c in &self.written.columns {
            self.body.extend_from_slice(c.written());
        }
        let most = lz4_flex::block::get_maximum_output_size(self.body.len());
        let at = w.bytes.len();
        w.bytes.resize(at + most, 0);
        // It can't fail: the buffer has the maximum output size.
        let n = lz4_flex::block::compress_into(&self.body, &mut w.bytes[at..]).unwrap_or(0);
        w.bytes.truncate(at + n);
    }

    /// Compresses each column by itself, as each has its own statistics.
    fn put_zstd(&mut self, w: &mut Writer) {
        for c in &self.written.columns {
            let most = zstd::zstd_safe::compress_bound(c.len);
            self.coded.resize(most, 0);
            // Both calls fail only without memory. The payload then lacks columns, which readers count as
            // damaged.
            if self.zstd.is_none() {
                self.zstd = zstd::bulk::Compressor::new(1).ok();
            }
            let coder = self.zstd.as_mut();
            let n = coder.and_then(|z| z.compress_to_buffer(c.written(), &mut self.coded[..]).ok());
            w.blob(&self.coded[..n.unwrap_or(0)]);
        }
    }
}

/// A run under construction. All state that changes per event is in here by value, so that it can be in
/// registers.
#[must_use = "what is not ended is not written"]
pub struct Packing<'a, const ALL: bool> {
    predictor: Predictor<'a, ALL>,
    pens: Pens,
    run: Run,
    /// Maximum number of events of the run.
    room: u32,
    written: &'a mut Written,
}

impl<const ALL: bool> core::fmt::Debug for Packing<'_, ALL> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Packing").field("run", &self.run).finish_non_exhaustive()
    }
}

impl<const ALL: bool> Packing<'_, ALL> {
    /// Ends the run, and adds it to the chunk.
    #[inline]
    pub fn end(self) {
        let Self { predictor, pens, run, written, .. } = self;
        written.state = predictor.state;
        for (c, pen) in written.columns.iter_mut().zip(pens.0) {
            c.len = pen.addr() - c.bytes.as_ptr().addr();
        }
        let Run { thread, count, time, node } = run;
        if count > 0 {
            written.runs.int(thread.into()).int(count.into()).int(time.0).int(node.into());
            written.run_count += 1;
            written.events += count as usize;
            written.few += if ALL { 0 } else { count as usize };
        }
    }

    /// Counts an event of the run; returns false if the run is full.
    #[inline(always)]
    fn one_more(&mut self) -> bool {
        let fits = self.run.count != self.room;
        self.run.count += u32::from(fits);
        fits
    }

    /// Writes a time; returns the length code for the control byte.
    #[inline(always)]
    fn time(&mut self, time: Ticks) -> u8 {
        let d = time.wrapping_since(self.predictor.state.time);
        self.predictor.state.time = time;
        let code = (d > 0xff) as usize + (d > 0xffff) as usize + (d > 0xff_ffff) as usize;
        self.pens.put(TIME_LOW, d, 1);
        self.pens.put(TIME_HIGH, d >> 8, TIME_BYTES[code]);
        (code as u8) << 6
    }

    #[inline(always)]
    fn node(&mut self, node: u32) -> u8 {
        let guess = self.predictor.node_guess();
        let right = *guess == node;
        *guess = node;
        let d = zigzag(node as i64 - self.predictor.state.node as i64);
        self.pens.put_int(NODE, d, !right);
        self.predictor.saw_node(node);
        if right { NODE_GUESSED } else { 0 }
    }

    #[inline(always)]
    fn allocated(&mut self, kind: u8, time: Ticks, addr: u64, size: u64, node: u32) {
        let mut control = kind | self.time(time) | self.node(node);
        let guess = self.predictor.size_guess(node);
        let right = *guess == size;
        *guess = size;
        self.pens.put_int(SIZE, size, !right);
        control |= if right { SIZE_GUESSED } else { 0 };
        let guesses = self.predictor.guess_allocated(size);
        let made = if ALL { &guesses[..] } else { &guesses[..FEW_ALLOC_GUESSES] };
        let code = which(made, addr, MISSED_ALLOC);
        self.pens.put_address(addr, self.predictor.state.allocated, code == MISSED_ALLOC);
        self.predictor.saw_allocated(addr, size);
        self.pens.put(CONTROL, (control | code << 2).into(), 1);
    }

    #[inline(always)]
    fn freed(&mut self, time: Ticks, addr: u64, node: u32) {
        let mut control = self.time(time);
        control |= if node == 0 { FREE } else { FREE_STACK | self.node(node) };
        let guesses = self.predictor.guess_freed();
        let made = if ALL { &guesses[..] } else { &guesses[..FEW_FREE_GUESSES] };
        let code = which(made, addr, MISSED_FREE);
        self.pens.put_address(addr, self.predictor.state.freed, code == MISSED_FREE);
        self.predictor.saw_freed(addr);
        control |= (code & 3) << 2 | (code & 4) << 3;
        self.pens.put(CONTROL, control.into(), 1);
    }
}

/// Each method adds an event to the run; it returns false if the run is full.
impl<const ALL: bool> Visit for Packing<'_, ALL> {
    type Node = u32;

    #[inline(always)]
    fn alloc(&mut self, time: Ticks, addr: u64, size: CodedSize, node: u32) -> bool {
        let fits = self.one_more();
        if fits {
            self.allocated(ALLOC, time, addr, size.0, node);
        }
        fits
    }

    #[inline(always)]
    fn free(&mut self, time: Ticks, addr: u64, node: u32) -> bool {
        let fits = self.one_more();
        if fits {
            self.freed(time, addr, node);
        }
        fits
    }

    #[inline(always)]
    fn realloc(
        &mut self,
        times: [Ticks; 2],
        old: u64,
        addr: u64,
        size: CodedSize,
        node: u32,
    ) -> bool {
        let fits = self.one_more();
        if fits {
            let [before, time] = times;
            self.allocated(REALLOC, time, addr, size.0, node);
            self.pens.put_address(old, addr, true);
            self.pens.put_int(ADDRESS, time.wrapping_since(before), true);
        }
        fits
    }
}

/// Returns the number of the first right guess, or `missed`.
#[inline(always)]
fn which(guesses: &[u64], addr: u64, missed: u8) -> u8 {
    let mut code = missed;
    for (i, g) in guesses.iter().enumerate().rev() {
        code = if *g == addr { i as u8 } else { code };
    }
    code
}

/// A run: events of one thread in a packed chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Thread number.
    pub thread: u32,
    /// Number of events.
    pub count: u32,
    /// Time of the decoding state before the first event.
    pub time: Ticks,
    /// Stack node of that decoding state.
    pub node: u32,
}
