//! Results of earlier looks at the same process: they tell between which two of them the last pointer to a block went.

use prof_scan::Block;
use prof_trace::ticks::Ticks;
use std::collections::HashMap;
use std::time::Duration;

/// The time in which the last pointer to a block went, in nanoseconds since the start of the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Went {
    /// The block was held, or not yet allocated, at this time.
    pub after_ns: u64,
    /// The block was unreachable at this time, the end of the first look that has shown it.
    pub before_ns: u64,
}

/// The looks so far.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// Unreachable blocks by address and time of allocation.
    seen: HashMap<(u64, Ticks), Went>,
    /// Begin of the last look that has come to an end, in nanoseconds.
    last_began_ns: Option<u64>,
    /// Number of looks that were counted.
    pub number: u64,
    /// Blocks that the last look has shown and none before.
    pub new_blocks: u64,
}

impl Looks {
    /// Counts a finished look: its begin and end, and the unreachable blocks with the times of their allocation, all in
    /// nanoseconds since the start of the recording.
    pub(super) fn add(
        &mut self,
        (began_ns, ended_ns): (u64, u64),
        unreachable: impl Iterator<Item = (Block, u64)>,
    ) {
        let before = std::mem::take(&mut self.seen);
        self.new_blocks = 0;
        for (block, allocated_ns) in unreachable {
            let key = (block.address, block.time);
            let went = before.get(&key).copied().unwrap_or_else(|| {
                self.new_blocks += 1;
                let after_ns = self.last_began_ns.map_or(allocated_ns, |b| b.max(allocated_ns));
                Went { after_ns, before_ns: ended_ns }
            });
            self.seen.insert(key, went);
        }
        self.last_began_ns = Some(began_ns);
        self.number += 1;
    }

    /// Returns when the last pointer to a block went.
    pub(super) fn went(&self, block: &Block) -> Option<Went> {
        self.seen.get(&(block.address, block.time)).copied()
    }
}

/// Returns the time in which the last pointers to several blocks went.
pub(super) fn all_of(went: impl Iterator<Item = Went>) -> Option<Went> {
    went.reduce(|a, b| Went {
        after_ns: a.after_ns.min(b.after_ns),
        before_ns: a.before_ns.max(b.before_ns),
    })
}

/// Returns nanoseconds of a duration, as far as they fit.
pub(super) fn ns(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_went_between_the_last_look_that_saw_it_and_the_first_that_did_not() {
        let block = |address, time| Block { address, time, ..Block::default() };
        let (a, b, c) = (block(16, Ticks(1)), block(32, Ticks(2)), block(16, Ticks(9)));
        let mut looks = Looks::default();
        looks.add((100, 110), [(a, 10)].into_iter());
        assert_eq!((looks.number, looks.new_blocks), (1, 1));
        looks.add((200, 210), [(a, 10), (b, 20)].into_iter());
        assert_eq!(looks.new_blocks, 1);
        assert_eq!(looks.went(&a), Some(Went { after_ns: 10, before_ns: 110 }));
        assert_eq!(looks.went(&b), Some(Went { after_ns: 100, before_ns: 210 }));
        // Another block at the address of one that was freed after all.
        looks.add((300, 310), [(b, 20), (c, 250)].into_iter());
        assert_eq!(looks.went(&a), None);
        assert_eq!(looks.went(&c), Some(Went { after_ns: 250, before_ns: 310 }));
        let both = all_of([b, c].iter().filter_map(|b| looks.went(b)));
        assert_eq!(both, Some(Went { after_ns: 100, before_ns: 310 }));
        assert_eq!(all_of(std::iter::empty()), None);
    }
}
