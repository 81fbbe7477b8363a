//! Packs the columns of a block of rows. A value is stored as its distance to the smallest, in as many whole bytes as
//! the largest distance needs, or, in columns that mostly grow, as its distance to the value before.
//!
//! In a file these bytes may be compressed, with the lowest bytes of all values first: values repeat mostly in some of
//! their bytes. That takes a quarter of the time of making an index and reading it, so it is done only where an index
//! would become much longer than its recording. Compressed, it is about as long; uncompressed, up to nine times as
//! long.

use prof_trace::chunk::checksum;
use std::cell::RefCell;
use zstd::bulk::{Compressor, Decompressor};

/// Describes a packed column; stored in the head of its block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Packed {
    /// The smallest value.
    pub min: u64,
    /// The largest.
    pub max: u64,
    /// Bytes per value: 0 (all are equal) to 8.
    pub width: u32,
    /// The values are stored as distances to the value before.
    pub steps: bool,
    /// Length of the compressed bytes; 0 if they are not compressed.
    pub short: u32,
    /// Checksum of the bytes in the file, truncated to 32 bits.
    pub sum: u32,
}

/// Layout of the third word of a [`Packed`]: width in the lowest bits, the flag for distances, and the compressed
/// length.
const STEPS: u32 = 1 << 4;
const SHORT: u32 = 5;

/// zstd's compression level: the highest one that is as fast as the reader of the recording.
const LEVEL: i32 = 1;

/// The way a column is packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct How {
    /// As distances to the value before.
    pub steps: bool,
    /// Compressed.
    pub short: bool,
}

thread_local! {
    static PACKER: RefCell<Option<Compressor<'static>>> = RefCell::new(Compressor::new(LEVEL).ok());
    static UNPACKER: RefCell<Option<Decompressor<'static>>> = RefCell::new(Decompressor::new().ok());
}

/// Number of words of a [`Packed`] in a file.
pub(super) const PACKED_WORDS: usize = 3;

impl Packed {
    /// Returns the words for the file.
    pub(super) fn words(&self) -> [u64; PACKED_WORDS] {
        let how = self.width | if self.steps { STEPS } else { 0 } | self.short << SHORT;
        [self.min, self.max, u64::from(self.sum) << 32 | u64::from(how)]
    }

    /// Decodes the words of a file; `None` if they are not valid.
    pub(super) fn from_words(w: [u64; PACKED_WORDS]) -> Option<Self> {
        let how = w[2] as u32;
        let p = Self {
            min: w[0],
            max: w[1],
            width: how & (STEPS - 1),
            steps: how & STEPS != 0,
            short: how >> SHORT,
            sum: (w[2] >> 32) as u32,
        };
        let fits = p.steps || p.width == width(p.max - p.min);
        (p.width <= 8 && p.min <= p.max && fits).then_some(p)
    }

    /// Returns the length in the file of a column of `rows` rows.
    pub(super) fn len(&self, rows: usize) -> usize {
        match self.short {
            0 => self.long(rows),
            n => n as usize,
        }
    }

    /// Returns the uncompressed length of a column of `rows` rows.
    fn long(&self, rows: usize) -> usize {
        rows * self.width as usize
    }
}

/// Returns the number of bytes that a number needs.
fn width(v: u64) -> u32 {
    (64 - v.leading_zeros()).div_ceil(8)
}

fn sum(bytes: &[u8]) -> u32 {
    let s = checksum(0, bytes);
    (s ^ s >> 32) as u32
}

/// Returns the third word of a column: its checksum and how it is packed.
pub(super) fn sum_and_how(bytes: &[u8], how: u32) -> u64 {
    u64::from(sum(bytes)) << 32 | u64::from(how)
}

/// Returns the length in the file of a column of `rows` rows, given the third word of its [`Packed`].
pub(super) fn len_of(how: u32, rows: usize) -> usize {
    match how >> SHORT {
        0 => rows * (how & (STEPS - 1)).min(8) as usize,
        n => n as usize,
    }
}

/// Returns the distances of each value from the one before, zigzag-coded; that of the first is from `from`.
fn steps(values: &[u64], from: u64) -> Vec<u64> {
    let mut last = from;
    let step = |v: &u64| {
        let d = v.wrapping_sub(last);
        last = *v;
        d << 1 ^ 0u64.wrapping_sub(d >> 63)
    };
    values.iter().map(step).collect()
}

/// Packs a column and appends it to `out`.
pub(super) fn pack(values: &[u64], how: How, out: &mut Vec<u8>) -> Packed {
    let (mut min, mut max) = (u64::MAX, 0);
    for &v in values {
        min = min.min(v);
        max = max.max(v);
    }
    min = min.min(max);
    let mut p = Packed { min, max, ..Packed::default() };
    let at = out.len();
    p.steps = how.steps && min != max;
    let (values, from) = match p.steps {
        true => (&*steps(values, min), 0),
        false => (values, min),
    };
    p.width = match p.steps {
        true => width(values.iter().copied().max().unwrap_or(0)),
        false => width(max - min),
    };
    match p.width {
        0 => {}
        1 => put::<1>(values, from, out),
        2 => put::<2>(values, from, out),
        3 => put::<3>(values, from, out),
        4 => put::<4>(values, from, out),
        5 => put::<5>(values, from, out),
        6 => put::<6>(values, from, out),
        7 => put::<7>(values, from, out),
        _ => put::<8>(values, from, out),
    }
    if how.short {
        p.short = shorten(values.len(), out, at);
    }
    p.sum = sum(&out[at..]);
    p
}

/// Compresses the bytes from `at` on if that makes them shorter, and returns the new length, or 0.
fn shorten(rows: usize, out: &mut Vec<u8>, at: usize) -> u32 {
    let long = &out[at..];
    if long.len() < 64 {
        return 0;
    }
    let mut planes = vec![0; long.len()];
    let width = long.len() / rows;
    for (plane, to) in planes.chunks_exact_mut(rows).enumerate() {
        let of_row = long[plane..].iter().step_by(width);
        to.iter_mut().zip(of_row).for_each(|(to, b)| *to = *b);
    }
    let short = PACKER.with_borrow_mut(|c| c.as_mut()?.compress(&planes).ok());
    let Some(short) = short.filter(|s| s.len() < long.len()) else { return 0 };
    out.truncate(at);
    out.extend(&short);
    short.len() as u32
}

/// Decompresses a column of `rows` rows; `None` if the bytes are damaged.
fn lengthen(p: &Packed, bytes: &[u8], rows: usize) -> Option<Vec<u8>> {
    let long = p.long(rows);
    let mut planes = vec![0; long];
    let n = UNPACKER
        .with_borrow_mut(|d| d.as_mut()?.decompress_to_buffer(bytes, planes.as_mut_slice()).ok());
    n.filter(|n| *n == long)?;
    let mut out = vec![0; long];
    for (plane, from) in planes.chunks_exact(rows.max(1)).enumerate() {
        let of_row = out[plane..].iter_mut().step_by(p.width as usize);
        of_row.zip(from).for_each(|(to, b)| *to = *b);
    }
    Some(out)
}

fn put<const W: usize>(values: &[u64], min: u64, out: &mut Vec<u8>) {
    let at = out.len();
    out.resize(at + values.len() * W, 0);
    for (to, v) in out[at..].as_chunks_mut::<W>().0.iter_mut().zip(values) {
        let bytes = (v - min).to_le_bytes();
        to.copy_from_slice(&bytes[..W]);
    }
}

/// Unpacks a column of `rows` rows into `out`; `None` if the bytes are not those that were packed.
pub(super) fn unpack(p: &Packed, bytes: &[u8], rows: usize, out: &mut Vec<u64>) -> Option<()> {
    if bytes.len() != p.len(rows) || sum(bytes) != p.sum {
        return None;
    }
    let long = if p.short > 0 { Some(lengthen(p, bytes, rows)?) } else { None };
    let bytes = long.as_deref().unwrap_or(bytes);
    let from = if p.steps { 0 } else { p.min };
    out.clear();
    match p.width {
        0 => out.resize(rows, from),
        1 => get::<1>(bytes, from, out),
        2 => get::<2>(bytes, from, out),
        3 => get::<3>(bytes, from, out),
        4 => get::<4>(bytes, from, out),
        5 => get::<5>(bytes, from, out),
        6 => get::<6>(bytes, from, out),
        7 => get::<7>(bytes, from, out),
        _ => get::<8>(bytes, from, out),
    }
    if p.steps {
        let mut last = p.min;
        for v in out {
            last = last.wrapping_add(*v >> 1 ^ 0u64.wrapping_sub(*v & 1));
            *v = last;
        }
    }
    Some(())
}

fn get<const W: usize>(bytes: &[u8], min: u64, out: &mut Vec<u64>) {
    out.extend(bytes.as_chunks::<W>().0.iter().map(|b| {
        let mut v = [0; 8];
        v[..W].copy_from_slice(b);
        min.wrapping_add(u64::from_le_bytes(v))
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_come_back_in_every_width() {
        let ways = [(false, false), (false, true), (true, false), (true, true)];
        let hows = ways.map(|(steps, short)| How { steps, short });
        for (bits, how) in (0..=64u32).flat_map(|b| hows.map(|h| (b, h))) {
            let top = if bits == 0 { 0 } else { u64::MAX >> (64 - bits) };
            for base in [0, 7, u64::MAX - top] {
                let values: Vec<u64> =
                    (0..100).map(|i| base + (top / 99).wrapping_mul(i * 37 % 100)).collect();
                let mut bytes = vec![9; 3];
                let p = pack(&values, how, &mut bytes);
                assert_eq!(Packed::from_words(p.words()), Some(p));
                assert_eq!(bytes.len() - 3, p.len(100));
                assert_eq!(len_of(p.words()[2] as u32, 100), p.len(100));
                let mut back = Vec::new();
                assert_eq!(unpack(&p, &bytes[3..], 100, &mut back), Some(()));
                assert_eq!(back, values);
                let other = unpack(&p, &bytes[3..], 99, &mut back);
                assert_eq!(other.is_none(), p.width > 0);
                if p.width > 0 {
                    bytes[10] ^= 1;
                    assert_eq!(unpack(&p, &bytes[3..], 100, &mut back), None, "damage is seen");
                }
            }
        }
        assert_eq!(pack(&[], hows[1], &mut Vec::new()).width, 0);
    }

    #[test]
    fn what_repeats_takes_little_room() {
        let times: Vec<u64> = (0..8192u64).map(|i| (1 << 40) + i * 300 + i % 7 * 8).collect();
        let mut bytes = Vec::new();
        let p = pack(&times, How { steps: true, short: true }, &mut bytes);
        assert!(p.short > 0 && bytes.len() < times.len() / 4, "{}", bytes.len());
        // A wrong length is damage, whether or not the column is compressed.
        let mut back = Vec::new();
        for wrong in [Packed { width: 8, ..p }, Packed { short: 0, ..p }] {
            assert_eq!(unpack(&wrong, &bytes, 8192, &mut back), None);
        }
    }
}
