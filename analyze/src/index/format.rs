//! The file of an index: a header, blocks of rows, tables.
//!
//! ```text
//! file   = header (HEADER bytes)  block*  course  tables
//! block  = number of rows, the longest life of a row in ticks, a Packed for each column, a checksum of this head;
//!          the packed columns one after the other
//! course = the figures of all blocks over time, see [`super::course`]
//! tables = where each block begins, the groups, the threads' numbers, frees of blocks from before the recording
//!          (ticks and address), a checksum; compressed where that makes them shorter
//! ```
//!
//! All numbers are 64-bit and little-endian. The index belongs to one recording, which it names by
//! device, inode, length, time of the last change and a checksum of its ends; one of another version
//! is made anew, and so is one in which anything is wrong.

use super::before::Before;
use crate::heap::{BlockStats, Course, Errors, Group, Totals};
use crate::load::Tail;
use prof_trace::chunk::checksum;
use prof_trace::ticks::Ticks;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"PROFIDX\n");
/// Version of the format. An index of another version is made anew.
pub(super) const VERSION: u64 = 10;
/// Bytes in front of the first block.
pub(super) const HEADER: u64 = 512;
/// Number of bytes at both ends of a recording that are part of its identity.
const ENDS: u64 = 64 << 10;

/// Identifies the recording that an index belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity([u64; 6]);

impl Identity {
    /// Computes the identity of an open recording.
    pub(super) fn of(file: &File) -> io::Result<Self> {
        let m = file.metadata()?;
        let mut ends = vec![0; m.len().min(ENDS) as usize];
        let mut sum = 0;
        for at in [0, m.len() - ends.len() as u64] {
            file.read_exact_at(&mut ends, at)?;
            sum ^= checksum(at as u16, &ends);
        }
        let (s, ns) = (m.mtime() as u64, m.mtime_nsec() as u64);
        Ok(Self([m.dev(), m.ino(), m.len(), s, ns, sum]))
    }
}

/// Everything in an index except the rows.
#[derive(Clone, Debug)]
pub(super) struct Summary {
    pub identity: Identity,
    pub tail: Tail,
    pub bytes: u64,
    pub events: u64,
    pub damaged_bytes: u64,
    pub packed: bool,
    pub totals: Totals,
    pub rows: u64,
    pub chains: u64,
    pub groups: Vec<Group>,
    /// Numbers of the threads, by thread index.
    pub thread_numbers: Vec<u32>,
    /// Frees of blocks from before the recording.
    pub before: Before,
    /// File offsets of the blocks.
    pub blocks: Vec<u64>,
    /// The figures of all blocks over time.
    pub course: Course,
}

const FIGURES: usize = 10;

fn figures_words(f: &BlockStats) -> [u64; FIGURES] {
    [
        f.live_count,
        f.live_bytes,
        f.peak_count,
        f.peak_bytes,
        f.allocations,
        f.reallocations,
        f.allocated_bytes,
        f.temporary,
        f.found,
        f.found_bytes,
    ]
}

fn figures_of(w: &[u64; FIGURES]) -> BlockStats {
    let [
        live_count,
        live_bytes,
        peak_count,
        peak_bytes,
        allocations,
        reallocations,
        allocated_bytes,
        temporary,
        found,
        found_bytes,
    ] = *w;
    BlockStats {
        live_count,
        live_bytes,
        peak_count,
        peak_bytes,
        allocations,
        reallocations,
        allocated_bytes,
        temporary,
        found,
        found_bytes,
    }
}

const ERRORS: usize = 8;

fn errors_words(e: &Errors) -> [u64; ERRORS] {
    [
        e.live_count,
        e.live_bytes,
        e.peak_count,
        e.peak_bytes,
        e.allocations,
        e.reallocations,
        e.allocated_bytes,
        e.frees,
    ]
}

fn errors_of(w: &[u64; ERRORS]) -> Errors {
    let [
        live_count,
        live_bytes,
        peak_count,
        peak_bytes,
        allocations,
        reallocations,
        allocated_bytes,
        frees,
    ] = *w;
    Errors {
        live_count,
        live_bytes,
        peak_count,
        peak_bytes,
        allocations,
        reallocations,
        allocated_bytes,
        frees,
    }
}

/// Number of words of a group: node, oldest live block plus one, first, last, peak, figures, errors.
const GROUP: usize = 5 + FIGURES + ERRORS;

fn group_words(g: &Group) -> [u64; GROUP] {
    let mut w = [0; GROUP];
    let oldest = g.oldest.map_or(0, |t| t.0.saturating_add(1));
    w[..5].copy_from_slice(&[g.node.into(), oldest, g.first.0, g.last.0, g.peak_ticks.0]);
    w[5..5 + FIGURES].copy_from_slice(&figures_words(&g.figures));
    w[5 + FIGURES..].copy_from_slice(&errors_words(&g.errors));
    w
}

fn group_of(w: &[u64; GROUP]) -> Option<Group> {
    Some(Group {
        node: u32::try_from(w[0]).ok()?,
        oldest: w[1].checked_sub(1).map(Ticks),
        first: Ticks(w[2]),
        last: Ticks(w[3]),
        peak_ticks: Ticks(w[4]),
        figures: figures_of(w[5..].first_chunk()?),
        errors: errors_of(w.last_chunk()?),
    })
}

fn tail_words(tail: Tail) -> [u64; 3] {
    match tail {
        Tail::Whole => [0, 0, 0],
        Tail::Partial { at, unread } => [1, at, unread],
        Tail::Damaged { at, unread } => [2, at, unread],
    }
}

fn tail_of(w: [u64; 3]) -> Option<Tail> {
    let [_, at, unread] = w;
    match w[0] {
        0 => Some(Tail::Whole),
        1 => Some(Tail::Partial { at, unread }),
        2 => Some(Tail::Damaged { at, unread }),
        _ => None,
    }
}

/// Returns words as little-endian bytes.
pub(super) fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// Returns little-endian bytes as words.
pub(super) fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)).collect()
}

/// Returns words as bytes, followed by their checksum.
pub(super) fn sealed(words: &[u64]) -> Vec<u8> {
    let mut bytes = bytes_of(words);
    let sum = checksum(1, &bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

/// Returns the words in front of a checksum; `None` if it does not match.
pub(super) fn unsealed(bytes: &[u8]) -> Option<Vec<u64>> {
    let (words, sum) = bytes.split_last_chunk::<8>()?;
    (checksum(1, words) == u64::from_le_bytes(*sum)).then(|| words_of(words))
}

/// Index of the header's word with the file offset of the course.
const COURSE_AT: usize = 20 + FIGURES + 7 + ERRORS + 2;

/// Maximum length of tables that are compressed, as the reader allocates memory for them before it can check them.
const MOST_TABLES: usize = 256 << 20;

/// Decompresses tables of this length; `None` if they are damaged.
fn lengthened(short: &[u8], len: usize) -> Option<Vec<u8>> {
    zstd::bulk::decompress(short, len).ok().filter(|t| t.len() == len)
}

/// Number of words of the header, without its checksum.
const HEADER_WORDS: usize = 63;

/// Reads the totals, and whether the recording is packed.
fn read_totals(next: &mut impl FnMut() -> Option<u64>) -> Option<(Totals, bool)> {
    let mut f = [0; FIGURES];
    for word in &mut f {
        *word = next()?;
    }
    let mut totals = Totals {
        figures: figures_of(&f),
        frees: next()?,
        unknown_frees: next()?,
        implied_frees: next()?,
        peak_ticks: Ticks(next()?),
        last_ticks: Ticks(next()?),
        nonsense: next()?,
        errors: Errors::default(),
    };
    let packed = next()? != 0;
    let mut e = [0; ERRORS];
    for word in &mut e {
        *word = next()?;
    }
    totals.errors = errors_of(&e);
    Some((totals, packed))
}

impl Summary {
    /// Returns the tables that follow the blocks, compressed if `short` is set and that makes them shorter.
    pub(super) fn tables(&self, short: bool) -> Vec<u8> {
        let mut words = self.blocks.clone();
        words.extend(self.groups.iter().flat_map(group_words));
        words.extend(self.thread_numbers.iter().map(|n| u64::from(*n)));
        words.extend(self.before.frees().iter().flat_map(|(time, addr)| [time.0, *addr]));
        let plain = sealed(&words);
        let short = (short && plain.len() <= MOST_TABLES).then(|| zstd::bulk::compress(&plain, 1));
        match short {
            Some(Ok(short)) if short.len() < plain.len() => short,
            _ => plain,
        }
    }

    /// Returns the header, given the file offsets of the course and of the tables.
    pub(super) fn header(&self, course_at: u64, tables_at: u64) -> Vec<u8> {
        let t = &self.totals;
        let mut w = vec![MAGIC, VERSION];
        w.extend(self.identity.0);
        w.extend(tail_words(self.tail));
        w.extend([self.bytes, self.events, self.damaged_bytes, self.rows, self.chains]);
        w.extend([
            self.blocks.len() as u64,
            self.groups.len() as u64,
            self.thread_numbers.len() as u64,
        ]);
        w.push(tables_at);
        w.extend(figures_words(&t.figures));
        w.extend([t.frees, t.unknown_frees, t.implied_frees]);
        w.extend([t.peak_ticks.0, t.last_ticks.0, t.nonsense, u64::from(self.packed)]);
        w.extend(errors_words(&t.errors));
        w.extend([self.before.frees().len() as u64, self.before.each()]);
        debug_assert_eq!(w.len(), COURSE_AT);
        w.push(course_at);
        w.resize(HEADER_WORDS, 0);
        sealed(&w)
    }

    /// Decodes the header and, by `read`, the tables; `None` if any of it is damaged.
    pub(super) fn read(
        header: &[u8],
        len: u64,
        read: impl Fn(u64, usize) -> Option<Vec<u8>>,
    ) -> Option<Self> {
        let w = unsealed(header)?;
        let mut w = w.into_iter();
        let mut next = || w.next();
        if next()? != MAGIC || next()? != VERSION {
            return None;
        }
        let mut six = || Some([next()?, next()?, next()?, next()?, next()?, next()?]);
        let identity = Identity(six()?);
        let tail = tail_of([next()?, next()?, next()?])?;
        let (bytes, events, damaged_bytes) = (next()?, next()?, next()?);
        let (rows, chains) = (next()?, next()?);
        let counts = [next()?, next()?, next()?];
        let tables_at = next()?;
        let (totals, packed) = read_totals(&mut next)?;
        let (frees, each) = (usize::try_from(next()?).ok()?, next()?);
        let course_at = next()?;
        // Counts are checked against the length of the file before memory is allocated for them.
        let table = len.checked_sub(tables_at).filter(|n| tables_at >= HEADER && *n >= 8)? as usize;
        let [blocks, groups, thread_numbers] =
            counts.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let expected =
            groups.checked_mul(GROUP)?.checked_add(blocks)?.checked_add(thread_numbers)?;
        let expected = frees.checked_mul(2)?.checked_add(expected)?;
        let plain = expected.checked_add(1)?.checked_mul(8)?;
        if table > plain || (table < plain && plain > MOST_TABLES) {
            return None;
        }
        let course = tables_at.checked_sub(course_at).filter(|_| course_at >= HEADER)?;
        let course = usize::try_from(course).ok()?;
        let course = super::course::decode(&read(course_at, course)?)?;
        let tables = read(tables_at, table)?;
        let tables = if table < plain { lengthened(&tables, plain)? } else { tables };
        let words = unsealed(&tables)?;
        let (blocks, rest) = words.split_at_checked(blocks)?;
        let (groups, rest) = rest.split_at_checked(groups * GROUP)?;
        let (thread_numbers, frees) = rest.split_at_checked(thread_numbers)?;
        let frees = frees.as_chunks::<2>().0.iter().map(|w| (Ticks(w[0]), w[1])).collect();
        Some(Self {
            identity,
            tail,
            bytes,
            events,
            damaged_bytes,
            packed,
            totals,
            rows,
            chains,
            groups: groups.as_chunks::<GROUP>().0.iter().map(group_of).collect::<Option<_>>()?,
            thread_numbers: thread_numbers
                .iter()
                .map(|n| u32::try_from(*n).ok())
                .collect::<Option<_>>()?,
            blocks: blocks.to_vec(),
            before: Before::of(frees, each)?,
            course,
        })
    }
}

/// Corrects the checksums and the recording's identity in bytes that may be an index, as far as its parts can be found.
/// Fuzzing uses it to reach the code behind these checks.
pub fn reseal(index: &mut [u8], recording: &File) {
    let word = |b: &[u8], at: usize| {
        b.get(at..).and_then(|b| b.first_chunk::<8>()).map(|w| u64::from_le_bytes(*w))
    };
    let tables = word(index, 19 * 8).and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    let blocks = word(index, 16 * 8).unwrap_or(0).min(index.len() as u64 / 8) as usize;
    let of_blocks = index.get(tables..).unwrap_or_default();
    let of_blocks = zstd::bulk::decompress(of_blocks, MOST_TABLES).unwrap_or(of_blocks.to_vec());
    for at in words_of(&of_blocks).into_iter().take(blocks) {
        let block = usize::try_from(at).ok().and_then(|at| index.get_mut(at..));
        if let Some(b) = block {
            super::rows::reseal(b);
        }
    }
    if let Some(t) = index.get_mut(tables..) {
        reseal_words(t);
    }
    let course = word(index, COURSE_AT * 8).and_then(|n| usize::try_from(n).ok());
    let course = course.and_then(|at| index.get_mut(at..tables));
    if let Some(c) = course {
        reseal_words(c);
    }
    if let (Some(h), Ok(identity)) = (index.get_mut(..HEADER as usize), Identity::of(recording)) {
        h[16..64].copy_from_slice(&bytes_of(&identity.0));
        reseal_words(h);
    }
}

/// Corrects the checksum behind words.
pub(super) fn reseal_words(bytes: &mut [u8]) {
    if let Some((words, sum)) = bytes.split_last_chunk_mut::<8>() {
        *sum = checksum(1, words).to_le_bytes();
    }
}
