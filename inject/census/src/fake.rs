//! Memory of tests in which heaps are made up.

/// Words with an address that is a multiple of some power of two.
pub(crate) struct Words {
    all: Vec<u64>,
    skip: usize,
}

impl Words {
    /// Returns so many zeroed words at a multiple of so many bytes. Those that are never written to take no memory.
    pub(crate) fn new(n: usize, align: usize) -> Self {
        // Large memory has a mapping of its own.
        let all = vec![0u64; n.max(1 << 17) + align / 8];
        let start = all.as_ptr().addr();
        let skip = (start.next_multiple_of(align) - start) / 8;
        Self { all, skip }
    }

    /// Returns the address of a word.
    pub(crate) fn at(&self, i: usize) -> u64 {
        (self.all.as_ptr().addr() + (self.skip + i) * 8) as u64
    }

    /// Writes words from one on.
    pub(crate) fn set(&mut self, i: usize, words: &[u64]) {
        self.all[self.skip + i..][..words.len()].copy_from_slice(words);
    }
}
