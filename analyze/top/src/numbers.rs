//! The numbers of stacks, which stay the same when a recording is read anew: names, growth and the chosen row go by them.

use prof_analyze::Follower;
use prof_analyze::heap::Watch;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// Numbers of the groups of a follower. At first these are the groups' own indices.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// Of a follower that has taken another's place.
    later: Option<Later>,
}

/// Numbers of the groups of a follower that has taken another's place.
#[derive(Debug)]
struct Later {
    hasher: RandomState,
    /// Numbers by the hash of the stack.
    known: HashMap<u64, u32>,
    /// Numbers by group.
    numbers: Vec<u32>,
    /// Groups by number.
    groups: Vec<Option<u32>>,
}

impl Later {
    fn hash<W: Watch>(&self, follower: &Follower<W>, group: u32) -> u64 {
        let (meta, node) = (follower.meta(), follower.node_of(group));
        self.hasher.hash_one((meta.stack(node), meta.is_cut(node)))
    }
}

impl Numbers {
    /// Keeps the numbers of a follower's stacks for another one that takes its place.
    pub(crate) fn keep<W: Watch>(&mut self, before: &Follower<W>) {
        let count = self.count(before.groups_len());
        let (known, numbers, groups) = (HashMap::new(), Vec::new(), vec![None; count]);
        let mut later = Later { hasher: RandomState::new(), known, numbers, groups };
        for number in 0..count as u32 {
            if let Some(group) = self.group(number) {
                later.known.insert(later.hash(before, group), number);
            }
        }
        self.later = Some(later);
    }

    /// Gives numbers to the groups that are new.
    pub(crate) fn give<W: Watch>(&mut self, follower: &Follower<W>) {
        let Some(later) = &mut self.later else { return };
        for group in later.numbers.len() as u32..follower.groups_len() as u32 {
            let known = later.known.get(&later.hash(follower, group)).copied();
            let free = known.filter(|n| later.groups[*n as usize].is_none());
            let number = free.unwrap_or_else(|| {
                later.groups.push(None);
                later.groups.len() as u32 - 1
            });
            later.groups[number as usize] = Some(group);
            later.numbers.push(number);
        }
    }

    /// Returns the number of numbers, given the number of groups.
    pub(crate) fn count(&self, groups: usize) -> usize {
        self.later.as_ref().map_or(groups, |l| l.groups.len())
    }

    /// Returns the group that has a number.
    pub(crate) fn group(&self, number: u32) -> Option<u32> {
        match &self.later {
            None => Some(number),
            Some(l) => l.groups.get(number as usize).copied().flatten(),
        }
    }
}
