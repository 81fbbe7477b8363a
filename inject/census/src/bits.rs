//! A bit for each place of a run of places of one size: whether it holds a block.

/// Bits of a word.
const BITS: u64 = 64;

/// Returns whether the bit of a place is set.
pub(crate) fn has(bits: &[u64], n: u64) -> bool {
    bits.get((n / BITS) as usize).is_some_and(|word| word >> (n % BITS) & 1 != 0)
}

/// Clears the bit of a place. Returns whether it was set.
pub(crate) fn take_out(bits: &mut [u64], n: u64) -> bool {
    let was = has(bits, n);
    if was {
        bits[(n / BITS) as usize] &= !(1 << (n % BITS));
    }
    was
}

/// Returns bits for so many places, all set.
pub(crate) fn all_set(places: u64) -> Vec<u64> {
    let word = |i: u64| u64::MAX >> (BITS - (places - i * BITS).min(BITS));
    (0..places.div_ceil(BITS)).map(word).collect()
}

/// Returns the number of bits that are set, of so many places from the first one on.
pub(crate) fn count(bits: &[u64], places: u64) -> u64 {
    let words = places.div_ceil(BITS) as usize;
    bits.iter().take(words).map(|word| u64::from(word.count_ones())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_has_a_bit() {
        for places in [0, 1, 63, 64, 65, 200] {
            let mut bits = all_set(places);
            assert_eq!((bits.len() as u64, count(&bits, places)), (places.div_ceil(BITS), places));
            assert!((0..places).all(|n| has(&bits, n)) && !has(&bits, places));
            assert!((0..places).all(|n| take_out(&mut bits, n) && !take_out(&mut bits, n)));
            assert!(bits.iter().all(|w| *w == 0));
        }
    }
}
