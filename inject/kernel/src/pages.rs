//! Frees of pages. The kernel may split pages that it allocated together, and free the parts one by one.

use crate::live::{Block, Kind, Outstanding};

/// Greatest order of pages that are allocated together.
const ORDERS: u32 = 11;

/// Finds the block of pages that contains what is freed, at the same or a lower address. `address` is that of the first
/// page, and `bytes` is how much is freed.
pub(crate) fn containing(
    live: &Outstanding,
    address: u64,
    bytes: u64,
    page: u64,
) -> Option<(u64, Block)> {
    let first = bytes.max(page).trailing_zeros();
    let last = page.trailing_zeros() + ORDERS;
    (first..=last).find_map(|bits| {
        let at = address & !((1u64 << bits) - 1);
        let block = live.get(Kind::Page.mark(at))?;
        (address + bytes <= at + block.size).then_some((at, block))
    })
}

/// Returns what remains of a block of pages after a part is freed: address and bytes of each piece, which have sizes
/// as pages allocated together have.
pub(crate) fn remains(at: u64, size: u64, address: u64, bytes: u64) -> Vec<(u64, u64)> {
    let (mut at, mut size, mut all) = (at, size, Vec::new());
    while size > bytes {
        size /= 2;
        if address >= at + size {
            all.push((at, size));
            at += size;
        } else {
            all.push((at + size, size));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use prof_trace::ticks::Ticks;

    #[test]
    fn parts_of_a_block_are_found_and_the_others_stay() {
        let mut live = Outstanding::default();
        let block = Block { size: 4 << 12, time: Ticks(1), stack: 0, thread: 1 };
        live.add(Kind::Page.mark(0x10000), block);
        let find = |a, bytes| containing(&live, a, bytes, 4096).map(|f| f.0);
        assert_eq!(find(0x10000, 4096), Some(0x10000));
        assert_eq!(find(0x13000, 4096), Some(0x10000));
        assert_eq!(find(0x10000, 4 << 12), Some(0x10000));
        assert_eq!((find(0x14000, 4096), find(0x10000, 8 << 12)), (None, None));
        assert_eq!(
            remains(0x10000, 0x4000, 0x11000, 0x1000),
            [(0x12000, 0x2000), (0x10000, 0x1000)]
        );
        assert_eq!(
            remains(0x10000, 0x4000, 0x13000, 0x1000),
            [(0x10000, 0x2000), (0x12000, 0x1000)]
        );
        assert!(remains(0x10000, 0x4000, 0x10000, 0x4000).is_empty());
    }
}
