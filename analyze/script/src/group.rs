//! Groups of blocks with the same stack.

use crate::error::{Fault, fault};
use crate::list::AllocationList;
use crate::sort;
use prof_analyze::heap::Group;
use prof_trace::ticks::Ticks;
use std::rc::Rc;

/// The blocks of one stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct One {
    /// Stack node.
    pub node: u32,
    /// Number of blocks.
    pub count: u64,
    /// Bytes ever allocated.
    pub bytes: u64,
    /// Number of blocks that are live at the end.
    pub live_count: u64,
    /// Bytes that are live at the end.
    pub live_bytes: u64,
    /// Ticks of the first block.
    pub first: Ticks,
}

/// A list of groups, each of the blocks of one stack.
#[derive(Clone)]
pub(crate) struct AllocationGroupList {
    /// The blocks that were grouped.
    pub(crate) list: AllocationList,
    pub(crate) groups: Rc<Vec<One>>,
    /// Groups were left out since.
    fewer: bool,
}

impl AllocationGroupList {
    /// Creates the groups of a list; the nodes of `found` are the indices of groups of the recording.
    pub(crate) fn new(list: AllocationList, found: Vec<Group>) -> Self {
        let all = list.of.analysis().groups();
        let mut groups: Vec<One> = found
            .iter()
            .filter_map(|g| {
                let f = &g.figures;
                let node = all.get(g.node as usize)?.node;
                let count = f.allocations + f.reallocations;
                (count > 0).then_some(One {
                    node,
                    count,
                    bytes: f.allocated_bytes,
                    live_count: f.live_count,
                    live_bytes: f.live_bytes,
                    first: g.first,
                })
            })
            .collect();
        groups.sort_by_key(|g| (g.first, g.node));
        Self { list, groups: Rc::new(groups), fewer: false }
    }

    fn with(&self, groups: Vec<One>) -> Self {
        let fewer = self.fewer || groups.len() < self.groups.len();
        Self { list: self.list.clone(), groups: Rc::new(groups), fewer }
    }

    pub(crate) fn only(&self, right: impl Fn(&One) -> bool) -> Self {
        self.with(self.groups.iter().filter(|g| right(g)).copied().collect())
    }

    /// Returns the groups in the order of a key. Groups with equal keys stay in the order that they had.
    ///
    /// # Errors
    /// If the job was cancelled.
    pub(crate) fn sorted(
        &self,
        key: impl Fn(&One) -> u64,
        descending: bool,
    ) -> Result<Self, Fault> {
        let key = |g: &One| if descending { u64::MAX - key(g) } else { key(g) };
        sort::by_key(self.groups.to_vec(), key).map(|groups| self.with(groups))
    }

    pub(crate) fn take(&self, count: i64) -> Self {
        let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
        self.with(self.groups.iter().take(count).copied().collect())
    }

    /// Returns the blocks of a group.
    pub(crate) fn blocks(&self, group: &One) -> Result<AllocationList, Fault> {
        self.list.filtered("stacks", &group.node.to_string())
    }

    pub(crate) fn at(&self, index: i64) -> Result<AllocationList, Fault> {
        let found = usize::try_from(index).ok().and_then(|i| self.groups.get(i));
        let group = found.ok_or_else(|| {
            let len = self.groups.len();
            fault(format!("index {index} is out of range: there are {len} groups"))
        })?;
        self.blocks(group)
    }

    /// Returns all blocks of the groups.
    pub(crate) fn ungroup(&self) -> Result<AllocationList, Fault> {
        if !self.fewer {
            return Ok(self.list.clone());
        }
        if self.groups.is_empty() {
            return self.list.none();
        }
        self.list.filtered("stacks", &self.ids())
    }

    fn ids(&self) -> String {
        let ids: Vec<String> = self.groups.iter().map(|g| g.node.to_string()).collect();
        ids.join(",")
    }
}

impl IntoIterator for AllocationGroupList {
    type Item = Result<AllocationList, Fault>;
    type IntoIter = Box<dyn Iterator<Item = Self::Item>>;

    fn into_iter(self) -> Self::IntoIter {
        let groups = self.groups.clone();
        Box::new((0..groups.len()).map(move |i| self.blocks(&groups[i])))
    }
}
