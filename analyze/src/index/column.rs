//! Columns of a block of rows: each value as its distance to the smallest, in as many whole bytes as
//! the largest distance takes.

use prof_trace::chunk::checksum;

/// What stands in front of a packed column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Packed {
    /// The smallest value.
    pub min: u64,
    /// The largest.
    pub max: u64,
    /// Bytes of a value: 0 (all are equal) to 8.
    pub width: u32,
    /// Checksum of the packed bytes, cut to 32 bits.
    pub sum: u32,
}

/// Words that a [`Packed`] takes in a file.
pub(super) const PACKED_WORDS: usize = 3;

impl Packed {
    /// As words for the file.
    pub(super) fn words(&self) -> [u64; PACKED_WORDS] {
        [self.min, self.max, u64::from(self.sum) << 32 | u64::from(self.width)]
    }

    /// From the words of a file; `None` if they can't be right.
    pub(super) fn from_words(w: [u64; PACKED_WORDS]) -> Option<Self> {
        let p = Self { min: w[0], max: w[1], width: w[2] as u32, sum: (w[2] >> 32) as u32 };
        (p.width <= 8 && p.min <= p.max && p.width == width(p.max - p.min)).then_some(p)
    }

    /// Bytes of so many rows.
    pub(super) fn len(&self, rows: usize) -> usize {
        rows * self.width as usize
    }
}

/// Bytes that a number takes.
fn width(v: u64) -> u32 {
    (64 - v.leading_zeros()).div_ceil(8)
}

fn sum(bytes: &[u8]) -> u32 {
    let s = checksum(0, bytes);
    (s ^ s >> 32) as u32
}

/// Checksum and width as the words of a column have them.
pub(super) fn sum_and_width(bytes: &[u8], width: u32) -> u64 {
    u64::from(sum(bytes)) << 32 | u64::from(width)
}

/// Packs a column and appends it to `out`.
pub(super) fn pack(values: &[u64], out: &mut Vec<u8>) -> Packed {
    let (mut min, mut max) = (u64::MAX, 0);
    for &v in values {
        min = min.min(v);
        max = max.max(v);
    }
    min = min.min(max);
    let width = width(max - min);
    let at = out.len();
    match width {
        0 => {}
        1 => put::<1>(values, min, out),
        2 => put::<2>(values, min, out),
        3 => put::<3>(values, min, out),
        4 => put::<4>(values, min, out),
        5 => put::<5>(values, min, out),
        6 => put::<6>(values, min, out),
        7 => put::<7>(values, min, out),
        _ => put::<8>(values, min, out),
    }
    Packed { min, max, width, sum: sum(&out[at..]) }
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
    out.clear();
    match p.width {
        0 => out.resize(rows, p.min),
        1 => get::<1>(bytes, p.min, out),
        2 => get::<2>(bytes, p.min, out),
        3 => get::<3>(bytes, p.min, out),
        4 => get::<4>(bytes, p.min, out),
        5 => get::<5>(bytes, p.min, out),
        6 => get::<6>(bytes, p.min, out),
        7 => get::<7>(bytes, p.min, out),
        _ => get::<8>(bytes, p.min, out),
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
        for bits in 0..=64u32 {
            let top = if bits == 0 { 0 } else { u64::MAX >> (64 - bits) };
            for base in [0, 7, u64::MAX - top] {
                let values: Vec<u64> =
                    (0..100).map(|i| base + (top / 99).wrapping_mul(i)).collect();
                let mut bytes = vec![9; 3];
                let p = pack(&values, &mut bytes);
                assert_eq!(Packed::from_words(p.words()), Some(p));
                let mut back = Vec::new();
                assert_eq!(unpack(&p, &bytes[3..], 100, &mut back), Some(()));
                assert_eq!(back, values);
                let short = unpack(&p, &bytes[3..], 99, &mut back);
                assert_eq!(short.is_none(), p.width > 0);
                if p.width > 0 {
                    bytes[10] ^= 1;
                    assert_eq!(unpack(&p, &bytes[3..], 100, &mut back), None, "damage is seen");
                }
            }
        }
        assert_eq!(pack(&[], &mut Vec::new()).width, 0);
    }
}
