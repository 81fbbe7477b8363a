//! jemalloc's size classes: the sizes that it rounds requests up to.

/// Binary logarithm of the least size.
const LEAST: u32 = 3;
/// Number of sizes between two powers of two.
const STEPS: u64 = 4;
/// Greatest size.
const MOST: u64 = 7 << 60;

/// Binary logarithms of the quanta that jemalloc may be built with. Redis' own copy has sizes in steps of 8 bytes.
pub(crate) const QUANTA: [u32; 2] = [4, 3];

/// Returns the usable bytes of each class, smallest first: powers of two, each in four steps; below four quanta in steps
/// of one.
pub(crate) fn classes(quantum: u32) -> Vec<u64> {
    let mut all: Vec<u64> = (LEAST..quantum).map(|lg| 1 << lg).collect();
    all.extend((1..=STEPS).map(|n| n << quantum));
    let bases = quantum + STEPS.ilog2()..u64::BITS - 1;
    let sizes = bases.flat_map(|lg| (1..=STEPS).map(move |n| (STEPS + n) << (lg - STEPS.ilog2())));
    all.extend(sizes.take_while(|size| *size <= MOST));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_those_of_the_allocator() {
        let plain = classes(4);
        assert_eq!(plain[..10], [8, 16, 32, 48, 64, 80, 96, 112, 128, 160]);
        assert_eq!((plain.len(), plain.last()), (232, Some(&MOST)));
        // The least size of large blocks with pages of 4 KiB.
        assert_eq!(plain[36], 16 << 10);
        let fine = classes(3);
        assert_eq!(fine[..10], [8, 16, 24, 32, 40, 48, 56, 64, 80, 96]);
        assert_eq!((fine.len(), fine[39]), (235, 16 << 10));
        assert!(plain.is_sorted_by(|a, b| a < b) && fine.is_sorted_by(|a, b| a < b));
    }
}
