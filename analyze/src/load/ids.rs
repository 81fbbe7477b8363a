//! A map from small integers, most of them close to zero.

use std::collections::HashMap;

/// IDs below this are always indices of the vector.
const SMALL: usize = 1 << 16;
/// IDs below this many times the number of IDs are dense, too.
const SPREAD: usize = 128;

/// A map keyed by the hook's numbers: a vector for the numbers of a real recording, and a hash map for others, so that
/// a made-up ID costs no more memory than its entry.
#[derive(Clone, Debug)]
pub struct IdMap<T> {
    dense: Vec<Option<T>>,
    sparse: HashMap<u32, T>,
    sets: usize,
}

impl<T> Default for IdMap<T> {
    fn default() -> Self {
        Self { dense: Vec::new(), sparse: HashMap::new(), sets: 0 }
    }
}

impl<T: Copy> IdMap<T> {
    /// Returns the value of `id`.
    #[inline]
    pub fn get(&self, id: u32) -> Option<T> {
        match self.dense.get(id as usize) {
            Some(Some(v)) => Some(*v),
            _ if self.sparse.is_empty() => None,
            _ => self.sparse.get(&id).copied(),
        }
    }

    /// Returns all values, in no particular order.
    pub fn values(&self) -> impl Iterator<Item = T> {
        self.dense.iter().flatten().copied().chain(self.sparse.values().copied())
    }

    /// Returns all IDs with their values, in no particular order.
    pub fn entries(&self) -> impl Iterator<Item = (u32, T)> {
        let dense = (0..).zip(&self.dense).filter_map(|(id, v)| Some((id, (*v)?)));
        dense.chain(self.sparse.iter().map(|(id, v)| (*id, *v)))
    }

    /// Returns whether no value was set.
    pub fn is_empty(&self) -> bool {
        self.sets == 0
    }

    /// Sets the value of `id`.
    pub fn set(&mut self, id: u32, value: T) {
        let at = id as usize;
        self.sets += 1;
        if at >= self.dense.len() {
            if at >= SMALL && at / SPREAD >= self.sets {
                self.sparse.insert(id, value);
                return;
            }
            self.dense.resize(at + 1, None);
        }
        self.dense[at] = Some(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_ids_are_kept() {
        let mut m = IdMap::default();
        for id in [0, 1, 77, 65_535, 65_536, 1 << 24, u32::MAX] {
            assert_eq!(m.get(id), None);
            m.set(id, id ^ 5);
            assert_eq!(m.get(id), Some(id ^ 5));
        }
        assert_eq!(m.get(2), None);
        assert!(m.dense.len() <= SMALL);
    }

    #[test]
    fn an_id_that_was_far_out_can_be_set_again() {
        let mut m = IdMap::default();
        m.set(200_000, 1);
        for i in 0..200_000 {
            m.set(i, 2);
        }
        assert_eq!(m.get(200_000), Some(1));
        m.set(200_000, 3);
        assert_eq!((m.get(200_000), m.get(199_999)), (Some(3), Some(2)));
    }
}
