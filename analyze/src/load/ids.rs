//! A map from small integers, most of them close to zero.

use std::collections::HashMap;

/// Ids below this are indices of a vector.
const DENSE: u32 = 1 << 24;

/// A map keyed by numbers that the hook gave out: dense for those that a real recording has, and
/// correct for the others, so that a hostile id costs no more memory than the table of a real one.
#[derive(Clone, Debug)]
pub struct IdMap<T> {
    dense: Vec<Option<T>>,
    sparse: HashMap<u32, T>,
}

impl<T> Default for IdMap<T> {
    fn default() -> Self {
        Self { dense: Vec::new(), sparse: HashMap::new() }
    }
}

impl<T: Copy> IdMap<T> {
    /// The value of `id`.
    #[inline]
    pub fn get(&self, id: u32) -> Option<T> {
        match self.dense.get(id as usize) {
            Some(v) => *v,
            None if id < DENSE => None,
            None => self.sparse.get(&id).copied(),
        }
    }

    /// Sets the value of `id`.
    pub fn set(&mut self, id: u32, value: T) {
        if id >= DENSE {
            self.sparse.insert(id, value);
            return;
        }
        let at = id as usize;
        if at >= self.dense.len() {
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
        for id in [0, 1, 77, DENSE - 1, DENSE, u32::MAX] {
            assert_eq!(m.get(id), None);
            m.set(id, id ^ 5);
            assert_eq!(m.get(id), Some(id ^ 5));
        }
        assert_eq!(m.get(2), None);
    }
}
