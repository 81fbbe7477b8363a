//! The calls of a program to its allocator, to be made again.
//!
//! ```text
//! file  = "PROFRPL\n"  u32 version (1, little-endian)  call*  end
//! call  = head  size?
//! head  = LEB128 of slot << 2 | kind: 1 malloc, 2 free, 3 realloc
//! size  = LEB128, of malloc and realloc
//! end   = head 0, then LEB128: number of calls, number of slots, the most bytes that were live
//! ```
//!
//! Calls stand in the order in which they were made, by whatever thread. A slot is where the caller keeps
//! the pointer: malloc puts one into an empty slot, which is the lowest that was never used or the one
//! emptied last; free empties it; realloc replaces it. So slots are as many as blocks were ever live at
//! a time. What was live at the end is not freed. A realloc of a block that was not recorded is a malloc.

use super::{ExportError, Source};
use crate::history;
use std::collections::HashMap;
use std::io::{self, BufRead, Write};

const MAGIC: &[u8; 8] = b"PROFRPL\n";
const VERSION: u32 = 1;

/// A call of an allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Allocates a block.
    Malloc {
        /// Slot to keep the pointer in.
        slot: usize,
        /// Size in bytes.
        size: u64,
    },
    /// Frees a block.
    Free {
        /// Slot of the block.
        slot: usize,
    },
    /// Resizes a block.
    Realloc {
        /// Slot of the block.
        slot: usize,
        /// New size in bytes.
        size: u64,
    },
}

const MALLOC: u64 = 1;
const FREE: u64 = 2;
const REALLOC: u64 = 3;

/// The sums at the end of a file of calls, which a reader checks against its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Number of calls in the file.
    pub calls: u64,
    /// Number of slots that the calls use.
    pub slots: u64,
    /// Greatest number of bytes live at any time.
    pub peak_bytes: u64,
}

struct Writer<'a> {
    out: &'a mut dyn Write,
    /// Slots of live blocks with their sizes, by address.
    live: HashMap<u64, (u64, u64)>,
    empty: Vec<u64>,
    /// Slots and sizes of blocks that were passed to `realloc` and whose new block is yet to come, by chain.
    old_blocks: HashMap<u32, (u64, u64)>,
    sums: Sums,
    bytes: u64,
}

fn int(out: &mut dyn Write, mut v: u64) -> io::Result<()> {
    let (mut b, mut n) = ([0; 10], 0);
    while v >= 0x80 {
        b[n] = v as u8 | 0x80;
        v >>= 7;
        n += 1;
    }
    b[n] = v as u8;
    out.write_all(&b[..=n])
}

impl Writer<'_> {
    fn call(&mut self, kind: u64, slot: u64, size: Option<u64>) -> io::Result<()> {
        self.sums.calls += 1;
        int(self.out, slot << 2 | kind)?;
        size.map_or(Ok(()), |s| int(self.out, s))
    }

    fn malloc(&mut self, addr: u64, size: u64) -> io::Result<()> {
        let next = self.sums.slots;
        let slot = self.empty.pop().unwrap_or(next);
        self.sums.slots = next.max(slot + 1);
        self.keep(addr, slot, size)?;
        self.call(MALLOC, slot, Some(size))
    }

    /// Notes that a block at `addr` is kept in a slot.
    fn keep(&mut self, addr: u64, slot: u64, size: u64) -> io::Result<()> {
        if let Some(old) = self.live.insert(addr, (slot, size)) {
            self.free(old)?;
        }
        self.bytes = self.bytes.saturating_add(size);
        self.sums.peak_bytes = self.sums.peak_bytes.max(self.bytes);
        Ok(())
    }

    fn free(&mut self, (slot, size): (u64, u64)) -> io::Result<()> {
        self.bytes = self.bytes.saturating_sub(size);
        self.empty.push(slot);
        self.call(FREE, slot, None)
    }

    fn step(&mut self, s: &history::Step) -> io::Result<()> {
        if s.begins() {
            let old = if s.again() { self.old_blocks.remove(&s.chain) } else { None };
            return match old {
                Some((slot, size)) => {
                    self.bytes = self.bytes.saturating_sub(size);
                    self.keep(s.addr, slot, s.size)?;
                    self.call(REALLOC, slot, Some(s.size))
                }
                None => self.malloc(s.addr, s.size),
            };
        }
        match self.live.remove(&s.addr) {
            Some(block) if s.continues() && s.chain != 0 => {
                match self.old_blocks.insert(s.chain, block) {
                    Some(lost) => self.free(lost),
                    None => Ok(()),
                }
            }
            Some(block) => self.free(block),
            None => Ok(()),
        }
    }
}

pub(super) fn write(source: &Source<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    out.write_all(MAGIC)?;
    out.write_all(&VERSION.to_le_bytes())?;
    let mut w = Writer {
        out,
        live: HashMap::new(),
        empty: Vec::new(),
        old_blocks: HashMap::new(),
        sums: Sums::default(),
        bytes: 0,
    };
    let select = |block: &mut crate::index::Block<'_>, s: &mut _| source.query.select(block, s);
    history::steps(source.index, select, source.until(), |s| w.step(s).map_err(ExportError::from))?;
    // These blocks were passed to `realloc`, but the filter leaves out what it returned: free them.
    for block in std::mem::take(&mut w.old_blocks).into_values().collect::<Vec<_>>() {
        w.free(block)?;
    }
    let Sums { calls, slots, peak_bytes } = w.sums;
    for v in [0, calls, slots, peak_bytes] {
        int(w.out, v)?;
    }
    Ok(())
}

/// Defect of a file of calls.
#[derive(Debug, thiserror::Error)]
pub enum CallsError {
    /// The file can't be read.
    #[error("cannot read it: {0}")]
    Read(#[from] io::Error),
    /// The file is of another kind.
    #[error("it holds no calls to replay; make such a file with `prof export replay`")]
    NotCalls,
    /// The file was made by a newer prof.
    #[error("it was made by a newer prof (format {0}, this prof reads up to {VERSION})")]
    Newer(u32),
    /// The file ends in the middle of a call, or is inconsistent.
    #[error("it is damaged or cut off at its call number {0}")]
    Damaged(u64),
}

/// Reads calls, and checks that each uses its slot consistently.
pub struct Calls<R> {
    from: R,
    /// For each slot the size of its block plus one; 0 if it is empty.
    slots: Vec<u64>,
    live: u64,
    sums: Sums,
    done: bool,
}

impl<R: BufRead> Calls<R> {
    /// Reads the header of a file of calls.
    ///
    /// # Errors
    /// If it is not such a file, or was made by a newer prof.
    pub fn new(mut from: R) -> Result<Self, CallsError> {
        let mut head = [0; 12];
        match from.read_exact(&mut head) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Err(CallsError::NotCalls),
            other => other?,
        }
        let (magic, version) = (&head[..8], [head[8], head[9], head[10], head[11]]);
        match u32::from_le_bytes(version) {
            _ if magic != MAGIC => return Err(CallsError::NotCalls),
            0 => return Err(CallsError::NotCalls),
            v if v > VERSION => return Err(CallsError::Newer(v)),
            _ => {}
        }
        Ok(Self { from, slots: Vec::new(), live: 0, sums: Sums::default(), done: false })
    }

    fn int(&mut self) -> Result<u64, CallsError> {
        let mut v = 0u64;
        for shift in (0..64).step_by(7) {
            let Some(&b) = self.from.fill_buf()?.first() else { break };
            self.from.consume(1);
            if shift == 63 && b > 1 {
                break;
            }
            v |= u64::from(b & 0x7f) << shift;
            if b & 0x80 == 0 {
                return Ok(v);
            }
        }
        Err(CallsError::Damaged(self.sums.calls))
    }

    /// Returns the sums over the calls read so far.
    pub fn sums(&self) -> Sums {
        self.sums
    }

    fn read(&mut self) -> Result<Option<Call>, CallsError> {
        let head = self.int()?;
        let kind = head & 3;
        if kind == 0 {
            let sums = Sums { calls: self.int()?, slots: self.int()?, peak_bytes: self.int()? };
            let right = head == 0 && sums == self.sums;
            return if right { Ok(None) } else { Err(CallsError::Damaged(self.sums.calls)) };
        }
        let damaged = CallsError::Damaged(self.sums.calls);
        let size = if kind == FREE { 0 } else { self.int()? };
        let Ok(slot) = usize::try_from(head >> 2) else { return Err(damaged) };
        // A new slot is always the next number, so there are no more slots than calls.
        if kind == MALLOC && slot == self.slots.len() {
            self.slots.push(0);
        }
        let Some(held) = self.slots.get_mut(slot) else { return Err(damaged) };
        if (*held == 0) != (kind == MALLOC) || size == u64::MAX {
            return Err(damaged);
        }
        self.live = self.live.saturating_sub(held.saturating_sub(1)).saturating_add(size);
        *held = if kind == FREE { 0 } else { size + 1 };
        self.sums.calls += 1;
        self.sums.slots = self.slots.len() as u64;
        self.sums.peak_bytes = self.sums.peak_bytes.max(self.live);
        Ok(Some(match kind {
            MALLOC => Call::Malloc { slot, size },
            FREE => Call::Free { slot },
            _ => Call::Realloc { slot, size },
        }))
    }
}

impl<R: BufRead> Iterator for Calls<R> {
    type Item = Result<Call, CallsError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let call = self.read().transpose();
        self.done = !matches!(call, Some(Ok(_)));
        call
    }
}
