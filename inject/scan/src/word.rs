//! Machine words, and how they are taken for pointers.

use prof_graph::Table;

/// A machine word: a pointer of the target, which is of the same kind as prof.
pub(crate) const WORD: usize = size_of::<usize>();

/// Rules by which words are taken for pointers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pointers {
    /// Bits of a word that are an address.
    pub mask: u64,
    /// Words at any address are looked at, and not only those at multiples of their size.
    pub unaligned: bool,
}

impl Pointers {
    /// Puts the places of words that may be pointers into `found`, and returns how many there are. There is no branch for
    /// each word, as nobody could foresee it.
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
        if self.unaligned {
            for (k, w) in bytes.windows(WORD).take(len).enumerate() {
                let w = w.first_chunk::<WORD>().map_or(0, |w| usize::from_ne_bytes(*w) as u64);
                found[n] = k as u32;
                n += usize::from(may(w));
            }
        } else {
            let words = bytes[..len.min(bytes.len())].as_chunks::<WORD>().0;
            for (k, w) in words.iter().enumerate() {
                found[n] = (k * WORD) as u32;
                n += usize::from(may(usize::from_ne_bytes(*w) as u64));
            }
        }
        n
    }
}

/// Returns the word at an offset of some bytes; 0 if they end before.
#[inline(always)]
pub(crate) fn word(bytes: &[u8], at: u32) -> u64 {
    let bytes = bytes.get(at as usize..).and_then(|b| b.first_chunk::<WORD>());
    bytes.map_or(0, |w| usize::from_ne_bytes(*w) as u64)
}
