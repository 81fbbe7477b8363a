//! Which roots are parts of others.

use crate::edges::NONE;

/// The roots below all roots together, and below each: the frames of a thread's stack are parts of it.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// For each root the one that it is a part of, or [`NONE`].
    pub above: Vec<u32>,
    /// Indexes into `below` at which the parts of all, and then of each root, begin. The last index is the end of the last
    /// parts.
    starts: Vec<u32>,
    below: Vec<u32>,
}

impl Parts {
    /// Makes the lists for so many roots. `above` may be shorter: the rest are no parts. A root of which others are parts must
    /// be no part itself.
    pub(crate) fn new(mut above: Vec<u32>, roots: usize) -> Self {
        above.resize(roots, NONE);
        // All together come first.
        let place = |above: &u32| if *above == NONE { 0 } else { *above as usize + 1 };
        let mut starts = vec![0u32; roots + 2];
        above.iter().for_each(|a| starts[place(a) + 1] += 1);
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        let mut below: Vec<u32> = (0..roots as u32).collect();
        below.sort_by_key(|root| place(&above[*root as usize]));
        Self { above, starts, below }
    }

    /// Returns the roots that are no parts (of `None`), or the parts of a root.
    #[inline]
    pub(crate) fn of(&self, root: Option<u32>) -> &[u32] {
        let i = root.map_or(0, |r| r as usize + 1);
        let at = |i: usize| self.starts.get(i).map_or(0, |n| *n as usize);
        &self.below[at(i)..at(i + 1)]
    }

    /// Returns the parts that each root has after roots were merged: `numbers` has for each its new number, below `roots`.
    pub(crate) fn renumbered(&self, numbers: &[u32], roots: usize) -> Self {
        let mut above = vec![NONE; roots];
        for (old, of) in self.above.iter().enumerate().filter(|(_, of)| **of != NONE) {
            above[numbers[old] as usize] = numbers[*of as usize];
        }
        Self::new(above, roots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stand_below_their_roots() {
        let p = Parts::new(vec![NONE, 3, NONE, NONE, 3], 6);
        assert_eq!(p.of(None), [0, 2, 3, 5]);
        assert_eq!((p.of(Some(3)), p.of(Some(0)), p.of(Some(5))), (&[1, 4][..], &[][..], &[][..]));
        // The first and the fourth become one.
        let p = p.renumbered(&[0, 1, 2, 0, 3, 4], 5);
        assert_eq!((p.of(None), p.of(Some(0))), (&[0, 2, 4][..], &[1, 3][..]));
        assert_eq!(Parts::default().of(None), [0u32; 0]);
    }
}
