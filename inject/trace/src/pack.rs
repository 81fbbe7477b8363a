//! Events in a recording, packed: by columns, as differences to what was expected (see
//! `model.rs`), and then compressed.
//!
//! A packed chunk holds runs of events of one or several threads. It can be read without any other
//! chunk. `FORMAT.md` says what stands where.

use crate::event::{Codec, DEFINE_NODES, Visit};
use crate::model::{FEW_ALLOC_GUESSES, FEW_FREE_GUESSES, Model, State, Tables};
use crate::wire::Writer;
use std::boxed::Box;
use std::vec::Vec;

pub use crate::unpack::{Packed, Unpacker};

/// The most events that a packed chunk may hold.
pub const MAX_EVENTS: usize = 1 << 15;
/// The most bytes that all columns may have together.
pub(crate) const MAX_BODY: usize = MAX_EVENTS * 64;
/// An event takes no more bytes of each column: a time has up to 8 in two of them, all else up to 9, and a
/// reallocation has two addresses and a time in one.
const MAX_IN_COLUMN: [usize; COLUMNS] = [1, 1, 7, 27, 9, 9];
/// Bytes behind the columns that may be read and mean nothing.
pub(crate) const PAD: usize = 16;

/// Columns, in the order in which they are written.
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

/// Bits of the control byte, beside the kind (0..2), the guess (2..4, for frees also 5) and the
/// length of the time (6..8).
pub(crate) const NODE_GUESSED: u8 = 1 << 4;
pub(crate) const SIZE_GUESSED: u8 = 1 << 5;
/// No guess was right.
const MISSED_ALLOC: u8 = 3;
const MISSED_FREE: u8 = 7;
/// Bytes of a time beside its lowest, by the code for them.
pub(crate) const TIME_BYTES: [usize; 4] = [0, 1, 2, 7];

/// How events are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compress {
    /// They stand in the recording as in the ring.
    #[default]
    None,
    /// Packed, with LZ4.
    Fast,
    /// Packed, with zstd.
    Best,
}

impl Compress {
    /// All with their names.
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::None, "none"), (Self::Fast, "fast"), (Self::Best, "best")];

    /// The name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|c| c.0 == self).map_or("", |c| c.1)
    }

    /// From a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|c| c.1 == name).map(|c| c.0)
    }
}

/// Numbers of the coders in the payload.
pub(crate) const STORED: u64 = 0;
pub(crate) const LZ4: u64 = 1;
pub(crate) const ZSTD: u64 = 2;

#[inline(always)]
fn zigzag(v: i64) -> u64 {
    ((v << 1) ^ (v >> 63)) as u64
}

/// A column.
#[derive(Default)]
struct Column {
    bytes: Vec<u8>,
    len: usize,
}

impl Column {
    /// For so many bytes.
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

/// Where the columns are written on.
struct Pens([*mut u8; COLUMNS]);

impl Pens {
    /// Writes the lowest `n` bytes of `v`, `n` at most 8.
    #[inline(always)]
    fn put(&mut self, column: usize, v: u64, n: usize) {
        debug_assert!(n <= 8);
        // SAFETY: `make_room` has made room for all that the events of the run can take in a column and
        // for what is written too much, and `Packing::one_more` lets no more events in than that.
        unsafe {
            self.0[column].cast::<u64>().write_unaligned(v.to_le());
            self.0[column] = self.0[column].add(n);
        }
    }

    /// Writes an integer, if `wanted`: 3 bits that say how many bytes follow, then the integer.
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

    /// The same for one of any length.
    #[inline(always)]
    fn put_long(&mut self, column: usize, v: u64) {
        self.put(column, 7, 1);
        self.put(column, v, 8);
    }

    /// Writes an address, if `wanted`, as the difference to another.
    #[inline(always)]
    fn put_address(&mut self, addr: u64, base: u64, wanted: bool) {
        let d = addr.wrapping_sub(base) as i64;
        let v = if d & 15 == 0 { zigzag(d >> 4) << 1 } else { zigzag(d) << 1 | 1 };
        // What is further away stands as it is: no difference is that long.
        let far = zigzag(d) >= 1 << 52;
        self.put_int(ADDRESS, if far { addr } else { v }, wanted && !far);
        if far && wanted {
            self.put_long(ADDRESS, addr);
        }
    }
}

/// Packs events.
pub struct Packer {
    tables: Box<Tables>,
    written: Written,
    body: Vec<u8>,
    coded: Vec<u8>,
    zstd: Option<zstd::bulk::Compressor<'static>>,
}

/// What there is of a chunk.
#[derive(Default)]
struct Written {
    state: State,
    columns: [Column; COLUMNS],
    runs: Writer,
    run_count: usize,
    events: usize,
    /// Events whose run was written with few guesses: what the others are made from does not know of them, as it
    /// does when they are read.
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
    /// With nothing in it.
    pub fn new() -> Self {
        Self {
            tables: Tables::new(),
            written: Written::default(),
            body: Vec::new(),
            coded: Vec::new(),
            zstd: None,
        }
    }

    /// Events in it.
    pub fn events(&self) -> usize {
        self.written.events
    }

    /// Whether so many bytes of events surely fit in.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.events() + bytes / 2 <= MAX_EVENTS
    }

    /// Begins a run of events of a thread: as many as so many bytes can be, for which there must be
    /// room. `from` is the decoding state before them. `ALL` guesses cost a tenth more time and save little of
    /// what is compressed; behind a run with few, none with all has room in a chunk.
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
            model: Model::new(&mut self.tables, state),
            pens: Pens(pens),
            run: Run { thread, count: 0, time: from.time, node: from.node },
            room: most as u32,
            written,
        }
    }

    /// A whole run with all guesses: the events that `bytes` are, up to the first that is none. `codec` is the decoding
    /// state before, and then that after them. `see` is given each event's node. Returns how many
    /// events there were, and how many bytes of them.
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

    /// Gives the payload of a chunk with all events to `out`, and begins a new one. Without events
    /// nothing is given.
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
        // It can't fail: the room is enough for anything.
        let n = lz4_flex::block::compress_into(&self.body, &mut w.bytes[at..]).unwrap_or(0);
        w.bytes.truncate(at + n);
    }

    /// Each column has its own statistics, so each is compressed by itself.
    fn put_zstd(&mut self, w: &mut Writer) {
        for c in &self.written.columns {
            let most = zstd::zstd_safe::compress_bound(c.len);
            self.coded.resize(most, 0);
            // Neither can fail but for want of memory; then what is written has no columns, which
            // readers count as damaged.
            if self.zstd.is_none() {
                self.zstd = zstd::bulk::Compressor::new(1).ok();
            }
            let coder = self.zstd.as_mut();
            let n = coder.and_then(|z| z.compress_to_buffer(c.written(), &mut self.coded[..]).ok());
            w.blob(&self.coded[..n.unwrap_or(0)]);
        }
    }
}

/// A run that is being written. All that changes from event to event is in here and nowhere else, so that it can
/// be in registers.
#[must_use = "what is not ended is not written"]
pub struct Packing<'a, const ALL: bool> {
    model: Model<'a, ALL>,
    pens: Pens,
    run: Run,
    /// How many events the run can have.
    room: u32,
    written: &'a mut Written,
}

impl<const ALL: bool> core::fmt::Debug for Packing<'_, ALL> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Packing").field("run", &self.run).finish_non_exhaustive()
    }
}

impl<const ALL: bool> Packing<'_, ALL> {
    /// Ends the run.
    #[inline]
    pub fn end(self) {
        let Self { model, pens, run, written, .. } = self;
        written.state = model.state;
        for (c, pen) in written.columns.iter_mut().zip(pens.0) {
            c.len = pen.addr() - c.bytes.as_ptr().addr();
        }
        let Run { thread, count, time, node } = run;
        if count > 0 {
            written.runs.int(thread.into()).int(count.into()).int(time).int(node.into());
            written.run_count += 1;
            written.events += count as usize;
            written.few += if ALL { 0 } else { count as usize };
        }
    }

    /// Counts one more event of the run; false if it has as many as it can have.
    #[inline(always)]
    fn one_more(&mut self) -> bool {
        let fits = self.run.count != self.room;
        self.run.count += u32::from(fits);
        fits
    }

    /// Writes a time, and returns its bits of the control byte.
    #[inline(always)]
    fn time(&mut self, time: u64) -> u8 {
        let d = time.wrapping_sub(self.model.state.time);
        self.model.state.time = time;
        let code = (d > 0xff) as usize + (d > 0xffff) as usize + (d > 0xff_ffff) as usize;
        self.pens.put(TIME_LOW, d, 1);
        self.pens.put(TIME_HIGH, d >> 8, TIME_BYTES[code]);
        (code as u8) << 6
    }

    #[inline(always)]
    fn node(&mut self, node: u32) -> u8 {
        let guess = self.model.node_guess();
        let right = *guess == node;
        *guess = node;
        let d = zigzag(node as i64 - self.model.state.node as i64);
        self.pens.put_int(NODE, d, !right);
        self.model.saw_node(node);
        if right { NODE_GUESSED } else { 0 }
    }

    #[inline(always)]
    fn allocated(&mut self, kind: u8, time: u64, addr: u64, size: u64, node: u32) {
        let mut control = kind | self.time(time) | self.node(node);
        let guess = self.model.size_guess(node);
        let right = *guess == size;
        *guess = size;
        self.pens.put_int(SIZE, size, !right);
        control |= if right { SIZE_GUESSED } else { 0 };
        let guesses = self.model.guess_allocated(size);
        let made = if ALL { &guesses[..] } else { &guesses[..FEW_ALLOC_GUESSES] };
        let code = which(made, addr, MISSED_ALLOC);
        self.pens.put_address(addr, self.model.state.allocated, code == MISSED_ALLOC);
        self.model.saw_allocated(addr, size);
        self.pens.put(CONTROL, (control | code << 2).into(), 1);
    }

    #[inline(always)]
    fn freed(&mut self, time: u64, addr: u64, node: u32) {
        let mut control = self.time(time);
        control |= if node == 0 { FREE } else { FREE_STACK | self.node(node) };
        let guesses = self.model.guess_freed();
        let made = if ALL { &guesses[..] } else { &guesses[..FEW_FREE_GUESSES] };
        let code = which(made, addr, MISSED_FREE);
        self.pens.put_address(addr, self.model.state.freed, code == MISSED_FREE);
        self.model.saw_freed(addr);
        control |= (code & 3) << 2 | (code & 4) << 3;
        self.pens.put(CONTROL, control.into(), 1);
    }
}

/// Each adds an event to the run; false if it has as many as it can have.
impl<const ALL: bool> Visit for Packing<'_, ALL> {
    #[inline(always)]
    fn define(&mut self, _: u32, _: [u32; DEFINE_NODES]) -> bool {
        false // recordings have their nodes elsewhere
    }

    #[inline(always)]
    fn alloc(&mut self, time: u64, addr: u64, size: u64, node: u32) -> bool {
        let fits = self.one_more();
        if fits {
            self.allocated(ALLOC, time, addr, size, node);
        }
        fits
    }

    #[inline(always)]
    fn free(&mut self, time: u64, addr: u64, node: u32) -> bool {
        let fits = self.one_more();
        if fits {
            self.freed(time, addr, node);
        }
        fits
    }

    #[inline(always)]
    fn realloc(&mut self, times: [u64; 2], old: u64, addr: u64, size: u64, node: u32) -> bool {
        let fits = self.one_more();
        if fits {
            let [before, time] = times;
            self.allocated(REALLOC, time, addr, size, node);
            self.pens.put_address(old, addr, true);
            self.pens.put_int(ADDRESS, time.wrapping_sub(before), true);
        }
        fits
    }
}

/// Which guess is right: its number, or `missed`.
#[inline(always)]
fn which(guesses: &[u64], addr: u64, missed: u8) -> u8 {
    let mut code = missed;
    for (i, g) in guesses.iter().enumerate().rev() {
        code = if *g == addr { i as u8 } else { code };
    }
    code
}

/// Events of one thread in a packed chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Number of the thread.
    pub thread: u32,
    /// How many events.
    pub count: u32,
    /// Decoding state before the first event: time.
    pub time: u64,
    /// The same: stack node.
    pub node: u32,
}
