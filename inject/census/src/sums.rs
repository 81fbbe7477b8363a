//! Blocks, and their sums by size.

/// Bytes and number of blocks. Bytes are those that the blocks take, with their headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Bytes.
    pub bytes: u64,
    /// Number.
    pub blocks: u64,
}

impl Sum {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.blocks += 1;
    }
}

/// Blocks of similar sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeClass {
    /// Least and greatest number of bytes that a program can use of such a block.
    pub sizes: (u64, u64),
    /// Blocks in use.
    pub in_use: Sum,
    /// Free blocks, wherever they are kept.
    pub free: Sum,
}

/// A block that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The address that the program has.
    pub address: u64,
    /// Bytes that the program can use.
    pub size: u64,
}

/// Returns the class of a size: powers of two, each in four steps from 128 bytes on, by its greatest size.
pub(crate) fn class_of(usable: u64) -> (u64, u64) {
    let usable = usable.max(1);
    let step = match usable {
        0..=128 => 32,
        _ => usable.next_power_of_two() / 8,
    };
    let most = usable.div_ceil(step) * step;
    (most - step + 1, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_sizes_adjoin_each_other() {
        let mut last = 0;
        for usable in 1..100_000 {
            let (least, most) = class_of(usable);
            assert!((least..=most).contains(&usable), "{usable}");
            assert!(least == last + 1 || most == last, "{usable}: {least} to {most} after {last}");
            last = most;
        }
        assert_eq!(class_of(129), (129, 160));
        assert_eq!(class_of(1 << 40).1, 1 << 40);
    }
}
