//! Machine words, and how they are taken for pointers.

use prof_graph::Table;
use std::array::from_fn;

/// A machine word: a pointer of the target, which is of the same kind as prof.
pub(crate) const WORD: usize = size_of::<usize>();

/// Words that are looked at together.
const GROUP: usize = 8;

/// Rules by which words are taken for pointers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pointers {
    /// Bits of a word that are an address.
    pub mask: u64,
    /// Words at any address are looked at, and not only those at multiples of their size.
    pub unaligned: bool,
}

impl Pointers {
    /// Returns the block that a word points into: as it is, or without the bits that are no address.
    #[inline(always)]
    pub(crate) fn find(self, table: &Table, word: u64) -> Option<u32> {
        let masked = word & self.mask;
        table.find(word).or_else(|| if masked == word { None } else { table.find(masked) })
    }

    /// Puts the places of words that may be pointers into `found`, and returns how many there are.
    #[inline(always)]
    pub(crate) fn search(
        self,
        table: &Table,
        bytes: &[u8],
        len: usize,
        found: &mut Vec<u32>,
    ) -> usize {
        let (low, span) = table.window();
        let mask = self.mask;
        if span == 0 {
            return 0;
        }
        let most = if self.unaligned { len } else { len / WORD } + 1;
        if found.len() < most {
            found.resize(most, 0);
        }
        let found = &mut found[..most];
        let mut n = 0;
        // No address in the window has other bits.
        let is_masked = u64::MAX >> (low + span).leading_zeros() & !mask == 0;
        let may = |w: u64| {
            let masked = (w & mask).wrapping_sub(low) < span;
            masked | (!is_masked & (w.wrapping_sub(low) < span))
        };
        let fits = |a: u64| a.wrapping_sub(low) < span && table.may_have(a);
        let is_likely = |w: u64| fits(w & mask) || !is_masked && fits(w);
        if self.unaligned {
            let from = match Sixths::of(low, span, mask) {
                None => 0,
                Some(sixths) => sixths.each(bytes, |k| {
                    if (k as usize) < len {
                        found[n] = k;
                        let w = word(bytes, k);
                        n += usize::from(may(w) && is_likely(w));
                    }
                }),
            };
            let rest = bytes.get(from..).unwrap_or_default().windows(WORD);
            for (k, w) in rest.take(len.saturating_sub(from)).enumerate() {
                let w = w.first_chunk::<WORD>().map_or(0, |w| usize::from_ne_bytes(*w) as u64);
                found[n] = (from + k) as u32;
                n += usize::from(may(w) && is_likely(w));
            }
        } else {
            let words = bytes[..len.min(bytes.len())].as_chunks::<WORD>().0;
            let (groups, rest) = words.as_chunks::<GROUP>();
            let value = |w: &[u8; WORD]| usize::from_ne_bytes(*w) as u64;
            let mut take = |k: usize| {
                found[n] = (k * WORD) as u32;
                n += usize::from(is_likely(value(&words[k])));
            };
            for (i, group) in groups.iter().enumerate() {
                // Compilers make vector instructions of this.
                let bits: [u64; GROUP] = from_fn(|k| u64::from(may(value(&group[k]))) << k);
                let mut bits = bits.iter().fold(0, |all, bit| all | bit);
                while bits != 0 {
                    take(i * GROUP + bits.trailing_zeros() as usize);
                    bits &= bits - 1;
                }
            }
            let first = groups.len() * GROUP;
            rest.iter()
                .enumerate()
                .filter(|(_, w)| may(value(w)))
                .for_each(|(k, _)| take(first + k));
        }
        n
    }
}

/// A 1 and a 128 in each byte of a word.
const ONES: u64 = u64::MAX / 0xff;
const HIGHS: u64 = ONES << 7;
/// Bytes of an address in front of its sixth byte.
const BEFORE: usize = 5;

/// Finds pairs of bytes that may be the sixth and the seventh of an address in a window. Only behind such a pair's place a
/// whole word is looked at: the addresses of a process have few values there, and so eight places are tried at once.
#[derive(Clone, Copy, Debug)]
struct Sixths {
    /// Bits that make all values of the byte smaller than 128.
    flip: u64,
    /// Numbers that make a byte 128 or more if added to one that is not below the window, and to one that is above it.
    least: u64,
    over: u64,
}

impl Sixths {
    /// Returns how to find them; `None`: they are no rarer than others, or words have no such bytes.
    fn of(low: u64, span: u64, mask: u64) -> Option<Self> {
        let last = low.checked_add(span.checked_sub(1)?)?;
        let (first, end) = (low >> 40, last >> 40);
        let is_told = mask >> 40 & 0xffff == 0xffff && (first ^ end) & 0x80 == 0 && end <= 0xff;
        if WORD != 8 || cfg!(target_endian = "big") || !is_told {
            return None;
        }
        let flip = if first & 0x80 == 0 { 0 } else { HIGHS };
        let (first, end) = (first & 0x7f, end & 0x7f);
        Some(Self { flip, least: (0x80 - first) * ONES, over: (0x7f - end) * ONES })
    }

    /// Calls `take` with the offset of each word that has such a pair, in order. Returns the offset from which on words are
    /// to be looked at one by one.
    #[inline(always)]
    fn each(self, bytes: &[u8], mut take: impl FnMut(u32)) -> usize {
        let words = bytes.as_chunks::<8>().0;
        // This also finds some bytes that follow a zero, which is looked at then.
        let zeros = |w: u64| w.wrapping_sub(ONES) & !w & HIGHS;
        let Some((first, others)) = words.split_first() else { return 0 };
        let mut w = u64::from_ne_bytes(*first);
        let mut zero = zeros(w);
        for (i, next) in others.iter().enumerate() {
            let next = u64::from_ne_bytes(*next);
            let next_zero = zeros(next);
            let x = w ^ self.flip;
            let low = x & !HIGHS;
            let is_sixth = low.wrapping_add(self.least) & !low.wrapping_add(self.over) & !x;
            let mut places = is_sixth & (zero >> 8 | next_zero << 56) & HIGHS;
            while places != 0 {
                let place = i * 8 + places.trailing_zeros() as usize / 8;
                places &= places - 1;
                if let Some(k) = place.checked_sub(BEFORE) {
                    take(k as u32);
                }
            }
            (w, zero) = (next, next_zero);
        }
        (others.len() * 8).saturating_sub(BEFORE)
    }
}

/// Returns the word at an offset of some bytes; 0 if they end before.
#[inline(always)]
pub(crate) fn word(bytes: &[u8], at: u32) -> u64 {
    let bytes = bytes.get(at as usize..).and_then(|b| b.first_chunk::<WORD>());
    bytes.map_or(0, |w| usize::from_ne_bytes(*w) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_at_odd_addresses_are_found_as_a_look_at_each_finds_them() {
        let mut x = 0x2545_f491_4f6c_dd1du64;
        let mut random = move |n: u64| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 11) % n
        };
        // A heap, a heap and mappings, addresses with a high byte, low ones, and those across a boundary.
        let windows = [
            (0x5566_0000_0000, 1 << 30),
            (0x5566_0000_0000, 0x2a00_0000_0000),
            (0xaaaa_0000_0000, 1 << 30),
            (0x1000, 1 << 20),
            (0x7eff_ffff_f000, 1 << 16),
            (0x7fff_0000_0000, 1 << 40),
        ];
        let bytes_of = [0, 1, 0x54, 0x55, 0x7e, 0x7f, 0x80, 0xaa, 0xff];
        let (mut all, mut found) = (0, Vec::new());
        for case in 0..6000 {
            let (low, span) = windows[case % windows.len()];
            // Of one large block each address is likely, of two small ones hardly any.
            let large = Table::from_iter([(low, span)]);
            let small = Table::from_iter([(low, 16), (low + span - 16, 16)]);
            let n = random(200) as usize;
            let byte = |random: &mut dyn FnMut(u64) -> u64| bytes_of[random(9) as usize];
            let mut bytes: Vec<u8> = (0..n).map(|_| byte(&mut random)).collect();
            for _ in 0..random(6) {
                let w = ((low + random(span)) | random(2) << 57) as usize;
                if let Some(at) = n.checked_sub(WORD) {
                    let at = random(at as u64 + 1) as usize;
                    bytes[at..at + WORD].copy_from_slice(&w.to_ne_bytes());
                }
            }
            let len = if random(2) == 0 { n } else { n.saturating_sub(WORD) };
            let masks = [u64::MAX, (1 << 56) - 1, (1 << 44) - 1];
            for (mask, t) in masks.into_iter().flat_map(|m| [(m, &large), (m, &small)]) {
                let p = Pointers { mask, unaligned: true };
                let n = p.search(t, &bytes, len, &mut found);
                let (low, span) = t.window();
                let is_in = |w: u64| w.wrapping_sub(low) < span && t.may_have(w);
                let may = |k: &u32| is_in(word(&bytes, *k)) || is_in(word(&bytes, *k) & mask);
                let whole = (bytes.len() + 1).saturating_sub(WORD).min(len) as u32;
                let expected: Vec<u32> = (0..whole).filter(may).collect();
                assert_eq!(found[..n], expected, "{case}: {bytes:x?}, {len}");
                all += n;
            }
        }
        assert!(all > 1000, "{all}");
    }
}
