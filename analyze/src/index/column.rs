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
    /// The largest value.
    pub max: u64,
    /// Bytes per value: 0 (all are equal) to 8.
    pub width: u32,
    /// The values are stored as distances to the value before.
    pub steps: bool,
    /// Length of the compressed bytes; 0 if they are not compressed.
    pub short: u32,
    /// Checksum of the bytes in the file: the higher half of a [`checksum`].
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
    /// Whether values are stored as distances to the value before.
    pub steps: bool,
    /// Whether the bytes are compressed.
    pub short: bool,
}

thread_local! {
    static PACKER: RefCell<Option<Compressor<'static>>> = RefCell::new(Compressor::new(LEVEL).ok());
    static PLANES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static UNPACKER: RefCell<Option<Decompressor<'static>>> = RefCell::new(Decompressor::new().ok());
}

/// Calls a function for a number of bytes that is a constant in it; for no bytes it does nothing.
macro_rules! with_width {
    ($width:expr, $function:ident, $arguments:tt) => {
        match $width {
            0 => {}
            1 => with_width!(@call $function 1 $arguments),
            2 => with_width!(@call $function 2 $arguments),
            3 => with_width!(@call $function 3 $arguments),
            4 => with_width!(@call $function 4 $arguments),
            5 => with_width!(@call $function 5 $arguments),
            6 => with_width!(@call $function 6 $arguments),
            7 => with_width!(@call $function 7 $arguments),
            _ => with_width!(@call $function 8 $arguments),
        }
    };
    (@call $function:ident $n:literal ($($argument:expr),*)) => {
        $function::<$n>($($argument),*)
    };
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

/// Returns the higher half of the checksum. A multiplication carries upwards only, so the lower half does not depend
/// on the higher half of the last word, nor of the three highest bits of the word before it; and the lower half of the
/// checksum, in which both halves are mixed, becomes just that when it is mixed with the higher half again.
fn sum(bytes: &[u8]) -> u32 {
    (checksum(0, bytes) >> 32) as u32
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

/// Returns whether the distances from value to value are smaller than those to the smallest one. Addresses of a program
/// that uses the same blocks again and again are near each other; those of others are not.
pub(super) fn is_smooth(values: &[u64]) -> bool {
    let bits = |d: u64| u64::from(64 - d.leading_zeros());
    let min = values.iter().copied().min().unwrap_or(0);
    let plain: u64 = values.iter().map(|v| bits(v - min)).sum();
    let steps: u64 = values.windows(2).map(|w| bits(w[0].abs_diff(w[1])) + 1).sum();
    steps < plain
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
    if !(how.short && shorten(values, from, &mut p, out)) {
        with_width!(p.width, put, (values, from, out));
    }
    p.sum = sum(&out[at..]);
    p
}

/// Compresses values of the width that is set, if that makes them shorter, with the lowest bytes of all of them first.
fn shorten(values: &[u64], from: u64, p: &mut Packed, out: &mut Vec<u8>) -> bool {
    let long = p.long(values.len());
    if long < 64 {
        return false;
    }
    PLANES.with_borrow_mut(|planes| {
        planes.clear();
        with_width!(p.width, to_planes, (values, from, planes));
        let short = PACKER.with_borrow_mut(|c| c.as_mut()?.compress(planes).ok());
        let Some(short) = short.filter(|s| s.len() < long) else { return false };
        out.extend(&short);
        p.short = short.len() as u32;
        true
    })
}

/// Decompresses a column of `rows` rows and appends it to `out`; `None` if the bytes are damaged.
fn lengthen(p: &Packed, bytes: &[u8], rows: usize, from: u64, out: &mut Vec<u64>) -> Option<()> {
    PLANES.with_borrow_mut(|planes| {
        planes.resize(p.long(rows), 0);
        let n = UNPACKER.with_borrow_mut(|d| {
            d.as_mut()?.decompress_to_buffer(bytes, planes.as_mut_slice()).ok()
        });
        n.filter(|n| *n == planes.len())?;
        with_width!(p.width, of_planes, (planes, from, out));
        Some(())
    })
}

fn to_planes<const W: usize>(values: &[u64], from: u64, out: &mut Vec<u8>) {
    for plane in 0..W {
        out.extend(values.iter().map(|v| ((v - from) >> (8 * plane)) as u8));
    }
}

fn of_planes<const W: usize>(planes: &[u8], from: u64, out: &mut Vec<u64>) {
    let rows = planes.len() / W;
    let planes: [&[u8]; W] = std::array::from_fn(|i| &planes[i * rows..(i + 1) * rows]);
    out.extend((0..rows).map(|i| {
        let part = |(n, plane): (usize, &&[u8])| u64::from(plane[i]) << (8 * n);
        from.wrapping_add(planes.iter().enumerate().map(part).sum())
    }));
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
    let from = if p.steps { 0 } else { p.min };
    out.clear();
    if p.width == 0 {
        out.resize(rows, from);
    } else if p.short > 0 {
        lengthen(p, bytes, rows, from, out)?;
    } else {
        with_width!(p.width, get, (bytes, from, out));
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
    fn each_flipped_bit_is_seen() {
        // Last words of every length, and words before them.
        for len in 1..=40usize {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 151 + len * 7) as u8).collect();
            let whole = sum(&bytes);
            for bit in 0..len * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(sum(&flipped), whole, "bit {bit} of {len} bytes");
            }
        }
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
