//! The IDs of all nodes, by parent and code address.
//!
//! A node's place follows from the hash of its path, which is known before its parent's ID is. So the places of a stack's
//! nodes are fetched together, and the processor waits for memory once.

use prof_arch::native::capture::prefetch;
use std::collections::HashMap;

/// Number of places that a table begins with.
const FEWEST: usize = 1 << 12;
/// Greatest number of places that are looked at for a node. Only made-up stacks need more: these are elsewhere.
const NEAR: usize = 32;

/// A place for a node; the ID is 0 if it is free.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(16))]
struct Place {
    key: u64,
    id: u32,
    hash: u32,
}

/// The IDs of nodes.
#[derive(Debug)]
pub(crate) struct Known {
    /// The nodes, each at the place of its hash or behind it.
    places: Vec<Place>,
    len: usize,
    /// The nodes that found no place near theirs, by key: no place near it is free.
    far: HashMap<u64, Place>,
}

impl Default for Known {
    fn default() -> Self {
        Self { places: vec![Place::default(); FEWEST], len: 0, far: HashMap::new() }
    }
}

impl Known {
    /// Returns the number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the place of a hash.
    #[inline(always)]
    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.places.len() as u64) >> 32) as usize
    }

    /// Returns the places that are looked at for a hash.
    #[inline(always)]
    fn near(&self, hash: u32) -> impl Iterator<Item = usize> + use<> {
        let (home, n) = (self.home(hash), self.places.len());
        (home..home + NEAR).map(move |at| if at < n { at } else { at - n })
    }

    /// Prefetches the place of a hash.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u32) {
        prefetch(&raw const self.places[self.home(hash)]);
    }

    /// Returns the ID of the node with this hash and key.
    #[inline(always)]
    pub(crate) fn get(&self, hash: u32, key: u64) -> Option<u32> {
        for at in self.near(hash) {
            let place = &self.places[at];
            if place.id == 0 {
                return None;
            }
            if place.key == key {
                return Some(place.id);
            }
        }
        self.far.get(&key).map(|place| place.id)
    }

    /// Adds a node, which is not known; the ID must not be 0.
    pub(crate) fn add(&mut self, hash: u32, key: u64, id: u32) {
        self.len += 1;
        if self.len * 8 > self.places.len() * 5 {
            let twice = vec![Place::default(); self.places.len() * 2];
            let near = std::mem::replace(&mut self.places, twice);
            let far = std::mem::take(&mut self.far);
            for place in near.into_iter().chain(far.into_values()).filter(|p| p.id != 0) {
                self.put(place);
            }
        }
        self.put(Place { key, id, hash });
    }

    fn put(&mut self, place: Place) {
        match self.near(place.hash).find(|at| self.places[*at].id == 0) {
            Some(at) => self.places[at] = place,
            None => _ = self.far.insert(place.key, place),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_found_also_where_their_hashes_are_the_same() {
        let mut known = Known::default();
        let hash =
            |i: u32| if i.is_multiple_of(64) { u32::MAX } else { i.wrapping_mul(0x9e37_79b1) };
        for i in 1..50_000 {
            assert_eq!(known.get(hash(i), i.into()), None);
            known.add(hash(i), i.into(), i);
        }
        assert!((1..50_000).all(|i| known.get(hash(i), i.into()) == Some(i)));
        assert_eq!((known.get(u32::MAX, 1 << 40), known.len()), (None, 49_999));
        // Most of those with one hash are elsewhere, and few others.
        assert!((50_000 / 64 - NEAR..50_000 / 64 + 2 * NEAR).contains(&known.far.len()));
    }
}
