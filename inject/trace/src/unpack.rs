//! Decoder of packed events.

use crate::event::Event;
use crate::pack::{
    ADDRESS, ALLOC, COLUMNS, CONTROL, Compress, FREE, LZ4, MAX_BODY, MAX_EVENTS, NODE,
    NODE_GUESSED, PAD, Run, SIZE, SIZE_GUESSED, STORED, TIME_BYTES, TIME_HIGH, TIME_LOW, ZSTD,
};
use crate::predictor::{ALLOC_GUESSES, FREE_GUESSES, Predictor, State, Tables};
use crate::size::CodedSize;
use crate::ticks::Ticks;
use crate::wire::Reader;
use std::boxed::Box;
use std::vec::Vec;

#[inline(always)]
fn unzigzag(v: u64) -> i64 {
    ((v >> 1) as i64) ^ -((v & 1) as i64)
}

/// A packed chunk whose events have not been decoded yet.
#[derive(Clone, Debug)]
pub struct Packed<'a> {
    /// The runs, in order.
    pub runs: Vec<Run>,
    coder: u64,
    lens: [usize; COLUMNS],
    body: Reader<'a>,
}

impl<'a> Packed<'a> {
    /// Reads the head of the chunk from a payload; returns `None` if it is malformed.
    pub fn read(payload: &'a [u8]) -> Option<Self> {
        let mut r = Reader::new(payload);
        let coder = r.int()?;
        let n = r.int()?;
        if coder > ZSTD || n == 0 || n > MAX_EVENTS as u64 {
            return None;
        }
        let (mut runs, mut events) = (Vec::new(), 0);
        for _ in 0..n {
            let (thread, count) = (r.int32()?, r.int32()?);
            let run = Run { thread, count, time: Ticks(r.int()?), node: r.int32()? };
            events += count as usize;
            if count == 0 || events > MAX_EVENTS {
                return None;
            }
            runs.push(run);
        }
        let mut lens = [0; COLUMNS];
        let mut all = 0usize;
        for l in &mut lens {
            *l = usize::try_from(r.int()?).ok().filter(|l| *l <= MAX_BODY)?;
            all += *l;
        }
        (all <= MAX_BODY && lens[CONTROL] == events && lens[TIME_LOW] == events).then_some(Self {
            runs,
            coder,
            lens,
            body: r,
        })
    }

    /// Returns the number of events.
    pub fn events(&self) -> usize {
        self.lens[CONTROL]
    }

    /// Returns how the columns are compressed.
    pub fn compress(&self) -> Compress {
        match self.coder {
            STORED => Compress::None,
            LZ4 => Compress::Fast,
            _ => Compress::Best,
        }
    }

    /// Returns the length of all columns when decompressed, in bytes.
    pub fn unpacked_bytes(&self) -> usize {
        self.lens.iter().sum()
    }
}

/// Decoder of packed chunks; its buffers are reused.
pub struct Unpacker {
    tables: Box<Tables>,
    body: Vec<u8>,
    zstd: Option<zstd::bulk::Decompressor<'static>>,
}

impl core::fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Unpacker").finish_non_exhaustive()
    }
}

impl Default for Unpacker {
    fn default() -> Self {
        Self { tables: Tables::new(), body: Vec::new(), zstd: None }
    }
}

impl Unpacker {
    /// Passes each event, with the index of its run, to `each`. Returns `None` if the chunk is malformed,
    /// perhaps after some events.
    pub fn unpack(
        &mut self,
        packed: &Packed<'_>,
        mut each: impl FnMut(usize, Event),
    ) -> Option<()> {
        self.decompress(packed)?;
        self.tables.reset();
        let mut at = [0; COLUMNS];
        for i in 1..COLUMNS {
            at[i] = at[i - 1] + packed.lens[i - 1];
        }
        let mut r = Columns { body: &self.body, at };
        let mut m = Predictor::<true>::new(&mut self.tables, State::default());
        for (i, run) in packed.runs.iter().enumerate() {
            m.state.time = run.time;
            for _ in 0..run.count {
                each(i, r.event(&mut m)?);
            }
        }
        // Each column must have been read exactly to its end.
        let mut end = 0;
        for (at, len) in r.at.iter().zip(packed.lens) {
            end += len;
            if *at != end {
                return None;
            }
        }
        Some(())
    }

    fn decompress(&mut self, packed: &Packed<'_>) -> Option<()> {
        let all: usize = packed.lens.iter().sum();
        self.body.resize(all + PAD, 0);
        self.body[all..].fill(0);
        let to = &mut self.body[..all];
        let mut from = packed.body;
        match packed.coder {
            STORED => to.copy_from_slice(from.rest().get(..all)?),
            LZ4 => {
                let n = lz4_flex::block::decompress_into(from.rest(), to).ok()?;
                return (n == all).then_some(());
            }
            _ => {
                if self.zstd.is_none() {
                    self.zstd = Some(zstd::bulk::Decompressor::new().ok()?);
                }
                let (z, mut done) = (self.zstd.as_mut()?, 0);
                for len in packed.lens {
                    let part = &mut to[done..done + len];
                    if z.decompress_to_buffer(from.blob()?, part).ok()? != len {
                        return None;
                    }
                    done += len;
                }
            }
        }
        Some(())
    }
}

/// Read positions in the columns. A read beyond the end of a column returns bytes of the next one, which
/// `unpack` notices at the end.
struct Columns<'a> {
    body: &'a [u8],
    at: [usize; COLUMNS],
}

impl Columns<'_> {
    #[inline(always)]
    fn byte(&mut self, column: usize) -> Option<u8> {
        let b = *self.body.get(self.at[column])?;
        self.at[column] += 1;
        Some(b)
    }

    #[inline(always)]
    fn bytes(&mut self, column: usize, n: usize) -> Option<u64> {
        let b = self.body.get(self.at[column]..)?.first_chunk::<8>()?;
        self.at[column] += n;
        Some(u64::from_le_bytes(*b) & ((1u64 << (n * 8)) - 1))
    }

    /// Reads an integer; also returns whether it has the long form.
    #[inline(always)]
    fn int(&mut self, column: usize) -> Option<(u64, bool)> {
        // Two loads: of nine bytes one by one the compiler does not make them.
        let b = self.body.get(self.at[column]..)?.first_chunk::<9>()?;
        let w = u64::from_le_bytes(*b.first_chunk::<8>()?);
        let n = (w & 7) as usize;
        if n == 7 {
            self.at[column] += 9;
            return Some((u64::from_le_bytes(*b.last_chunk::<8>()?), true));
        }
        self.at[column] += n + 1;
        Some(((w & ((1u64 << (n * 8 + 8)) - 1)) >> 3, false))
    }

    #[inline(always)]
    fn address(&mut self, base: u64) -> Option<u64> {
        let (v, long) = self.int(ADDRESS)?;
        if long {
            return Some(v);
        }
        let d = unzigzag(v >> 1);
        let d = if v & 1 == 0 { d.wrapping_shl(4) } else { d };
        Some(base.wrapping_add(d as u64))
    }

    #[inline(always)]
    fn node(&mut self, m: &mut Predictor<'_, true>, control: u8) -> Option<u32> {
        let node = if control & NODE_GUESSED != 0 {
            *m.node_guess()
        } else {
            let d = unzigzag(self.int(NODE)?.0);
            let node = (m.state.node as i64).wrapping_add(d) as u32;
            *m.node_guess() = node;
            node
        };
        m.saw_node(node);
        Some(node)
    }

    #[inline(always)]
    fn event(&mut self, m: &mut Predictor<'_, true>) -> Option<Event> {
        let control = self.byte(CONTROL)?;
        let low = self.byte(TIME_LOW)? as u64;
        let high = self.bytes(TIME_HIGH, TIME_BYTES[(control >> 6) as usize])?;
        let time = m.state.time.wrapping_add(high << 8 | low);
        m.state.time = time;
        let kind = control & 3;
        if kind & 1 == 1 {
            let node = if kind == FREE { 0 } else { self.node(m, control)? };
            let code = (control >> 2 & 3 | control >> 3 & 4) as usize;
            let addr = match code {
                0..FREE_GUESSES => m.guess_freed()[code],
                _ => self.address(m.state.freed)?,
            };
            m.saw_freed(addr);
            return Some(Event::Free { time, addr, node });
        }
        let node = self.node(m, control)?;
        let size = if control & SIZE_GUESSED != 0 {
            *m.size_guess(node)
        } else {
            let size = self.int(SIZE)?.0;
            *m.size_guess(node) = size;
            size
        };
        let code = (control >> 2 & 3) as usize;
        let addr = match code {
            0..ALLOC_GUESSES => m.guess_allocated(size)[code],
            _ => self.address(m.state.allocated)?,
        };
        m.saw_allocated(addr, size);
        if kind == ALLOC {
            return Some(Event::Alloc { time, addr, size: CodedSize(size), node });
        }
        let old = self.address(addr)?;
        let time_before = time.wrapping_sub(self.int(ADDRESS)?.0);
        Some(Event::Realloc { time_before, time, old, addr, size: CodedSize(size), node })
    }
}
