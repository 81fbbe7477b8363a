//! A quick answer that an address is of no block, for few blocks in a large memory.

/// Bytes of a line, as a shift.
const LINE: u32 = 6;
/// Bits for each line that a block has.
const SPARSE: usize = 16;
/// Least and greatest number of bits: they stay in a processor's own cache.
const LEAST: usize = 1 << 12;
const MOST: usize = 1 << 23;
/// Greatest number of lines: an eighth of the bits is set at most.
const MOST_LINES: u64 = 1 << 20;

/// Bits for the lines of memory in which blocks are. Lines that are far from each other share a bit.
#[derive(Debug, Default)]
pub(crate) struct Sieve(Vec<u64>);

impl Sieve {
    /// Creates the bits of blocks: the start of each, and the first address behind it, which counts as its own. There are
    /// none if most bits would be set.
    pub(crate) fn of(blocks: impl Iterator<Item = (u64, u64)> + Clone) -> Self {
        let lines = |(start, end): (u64, u64)| start >> LINE..=end >> LINE;
        let mut sum = 0u64;
        for block in blocks.clone() {
            let lines = lines(block);
            // A recording may be of a machine with wider addresses, and its sizes may be anything.
            sum = sum.saturating_add(lines.end() - lines.start() + 1);
            if sum > MOST_LINES {
                return Self::default();
            }
        }
        let bits = (sum as usize * SPARSE).next_power_of_two().clamp(LEAST, MOST);
        let mut all = Self(vec![0; bits / 64]);
        for line in blocks.flat_map(lines) {
            let (word, bit) = all.place(line);
            all.0[word] |= bit;
        }
        all
    }

    #[inline(always)]
    fn place(&self, line: u64) -> (usize, u64) {
        ((line / 64) as usize & (self.0.len() - 1), 1 << (line % 64))
    }

    /// Returns whether an address may be of a block.
    #[inline(always)]
    pub(crate) fn may_have(&self, address: u64) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let (word, bit) = self.place(address >> LINE);
        self.0[word] & bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_blocks_pass_and_most_others_do_not() {
        let base = 0x7f12_3456_7000u64;
        let blocks: Vec<_> =
            (0..20_000u64).map(|i| (base + i * 9616, base + i * 9616 + i % 300)).collect();
        let sieve = Sieve::of(blocks.iter().copied());
        for (start, end) in &blocks {
            assert!((*start..=*end).all(|a| sieve.may_have(a)), "{start:#x}");
        }
        let passed = (0..20_000u64).filter(|i| sieve.may_have(base + i * 9616 + 5000)).count();
        assert!(passed < 4000, "{passed}");
    }

    #[test]
    fn too_many_blocks_and_none_at_all_have_a_right_answer() {
        for end in [1 << 40, u64::MAX] {
            assert!(Sieve::of([(4096, end), (0, end)].into_iter()).may_have(7), "{end:#x}");
        }
        assert!(Sieve::of((0..2_000_000).map(|i| (i * 96, i * 96 + 80))).may_have(88));
        assert!(!Sieve::of(std::iter::empty()).may_have(4096));
    }
}
