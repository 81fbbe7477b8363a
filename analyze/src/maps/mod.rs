//! The mappings of a process over time: who made each, what became of it, and how much of it was resident.
//!
//! [`Maps::of`] puts the collector's looks at the target's mappings ([`looks`]) into one model ([`table`]). A mapping
//! keeps its number for its whole life: one that is cut, moved or partly replaced is the same mapping with other
//! *regions*, and the kernel's merging of neighbours does not make one mapping of two. Mappings that were found by a
//! look and not by the call that made them are *seen, not caught*, and have no stack.

mod beside;
mod calls;
mod data;
mod filter;
mod grow;
mod kind;
mod looks;
mod places;
mod table;
mod text;
mod totals;

use crate::Analysis;
use prof_trace::records::{MappingUse, Mappings};
use std::sync::Arc;

pub use beside::{Beside, What};
pub use data::{
    MapData, MapEndData, MapGroupBy, MapGroupData, MapRegionData, MapSort, MapSourceData,
    MapTotalsData, MapUsageData, MapsOptions, MapsReport, Shower, Timeval, Timing,
};
pub use filter::{FIELDS, MapFilter, find};
pub use grow::{GrowingMap, growing};
pub use kind::Kind;
pub use places::Places;
pub use totals::Totals;

/// All mappings that a recording tells of.
#[derive(Clone, Debug, Default)]
pub struct Maps {
    all: Vec<Map>,
    totals: Vec<Totals>,
    looks: u64,
}

/// A mapping, from its making to its end. Sizes are in bytes, times in ticks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// Number of the mapping: its index in [`Maps::all`].
    pub id: u32,
    /// First address that it had.
    pub address: u64,
    /// Address space that it takes; if it has ended, that it took last.
    pub size: u64,
    /// Greatest address space that it ever took.
    pub peak_size: u64,
    /// Ticks when it was made, or seen first.
    pub begun: u64,
    /// It was there at the first look: it is from before the attach.
    pub before: bool,
    /// The call that made it; `None`: it was seen, not caught.
    pub source: Option<Source>,
    /// The mapping's end; `None` if it is there at the end of the recording.
    pub end: Option<MapEnd>,
    /// Permissions of its last region.
    pub perms: Perms,
    /// Path of its file, or the kernel's name such as `[heap]`; empty if there is none.
    pub name: Arc<str>,
    /// Kind of memory.
    pub kind: Kind,
    /// The part of [`Map::kind`] that names a thread's stack: the thread's id.
    pub thread: Option<u64>,
    /// Most that was ever seen resident.
    pub peak_rss: u64,
    /// It is prof's own.
    pub ours: bool,
    /// Address ranges, in the order in which they began.
    pub regions: Vec<Region>,
    /// The mapping's use, whenever that was seen to change.
    pub usage: Vec<Usage>,
}

/// Permissions of a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Perms {
    /// It can be read.
    pub read: bool,
    /// It can be written to.
    pub write: bool,
    /// The mapping's content can be executed.
    pub execute: bool,
    /// Writes to it are shared with other processes, and with the file.
    pub shared: bool,
}

/// A call that made or ended a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Time of the call.
    pub ticks: u64,
    /// Number of the thread, as in [`Meta::threads`](crate::load::Meta::threads).
    pub thread: u32,
    /// Node of its stack; 0: none.
    pub node: u32,
}

/// The end of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEnd {
    /// Ticks when it ended, or was first seen to be gone.
    pub ticks: u64,
    /// The call that ended it; `None`: it was seen, not caught.
    pub source: Option<Source>,
}

/// An address range of a mapping, for as long as it stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// First address.
    pub address: u64,
    /// Length.
    pub size: u64,
    /// Ticks when the region began.
    pub begun: u64,
    /// Permissions.
    pub perms: Perms,
    /// Offset in the file.
    pub offset: u64,
    /// Inode; 0: no file.
    pub inode: u64,
    /// Device of the file.
    pub major: u32,
    /// Device of the file.
    pub minor: u32,
    /// Path of the file, or the kernel's name.
    pub name: Arc<str>,
    /// The region's end; `None` if there is none.
    pub end: Option<RegionEnd>,
}

/// The end of a region. What is left of it goes on as other regions of its mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionEnd {
    /// Ticks of the end.
    pub ticks: u64,
    /// The parts that were unmapped, or replaced by another mapping; empty if it grew, moved, or has other permissions.
    pub sources: Vec<UnmapSource>,
}

/// A part of a region that was unmapped or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnmapSource {
    /// First address.
    pub address: u64,
    /// Length.
    pub length: u64,
    /// The call; of a part that was replaced, the one that made the other mapping. `None`: seen, not caught.
    pub source: Option<Source>,
}

/// The use of a mapping at a moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Ticks.
    pub ticks: u64,
    /// Address space.
    pub address_space: u64,
    /// Resident.
    pub rss: u64,
    /// Resident and anonymous.
    pub anonymous: u64,
    /// Of several processes, and as in the file.
    pub shared_clean: u64,
    /// Of several processes, and written to.
    pub shared_dirty: u64,
    /// Of this process alone, and as in the file.
    pub private_clean: u64,
    /// Of this process alone, and written to.
    pub private_dirty: u64,
    /// Swapped out.
    pub swap: u64,
    /// In huge pages.
    pub huge: u64,
}

impl Usage {
    fn add(&mut self, u: &MappingUse, part: u64, of: u64) {
        let share = |n: u64| (u128::from(n) * u128::from(part) / u128::from(of.max(1))) as u64;
        let pairs = [
            (&mut self.rss, u.rss),
            (&mut self.anonymous, u.anonymous),
            (&mut self.shared_clean, u.shared_clean),
            (&mut self.shared_dirty, u.shared_dirty),
            (&mut self.private_clean, u.private_clean),
            (&mut self.private_dirty, u.private_dirty),
            (&mut self.swap, u.swap),
            (&mut self.huge, u.huge),
        ];
        for (to, n) in pairs {
            *to = to.saturating_add(share(n));
        }
    }
}

impl Map {
    /// Returns the use that was seen last before a moment.
    #[must_use]
    pub fn usage_at(&self, ticks: u64) -> Usage {
        let i = self.usage.partition_point(|u| u.ticks <= ticks);
        i.checked_sub(1).map(|i| self.usage[i]).unwrap_or_default()
    }

    /// Returns the use that was seen last.
    #[must_use]
    pub fn last_usage(&self) -> Usage {
        self.usage.last().copied().unwrap_or_default()
    }

    /// Returns whether the mapping was there at a moment.
    #[must_use]
    pub fn is_alive_at(&self, ticks: u64) -> bool {
        self.begun <= ticks && self.end.is_none_or(|e| e.ticks > ticks)
    }

    /// Returns the call that made the mapping was recorded.
    #[must_use]
    pub fn is_caught(&self) -> bool {
        self.source.is_some()
    }
}

impl Maps {
    /// Puts the looks at the mappings and the recorded calls of a recording together.
    ///
    /// # Errors
    /// If the recording can't be read.
    pub fn of(analysis: &Analysis) -> Result<Self, crate::Error> {
        let meta = analysis.meta();
        let target = &meta.target;
        let page = calls::PageSizes::of(&target.arch, u64::from(target.page_size));
        let mut changes = Vec::new();
        crate::load::calls(&analysis.path(), |e| changes.extend(calls::changes(e, page)))?;
        // A release counts from its begin on, but is read when it has ended, perhaps behind calls that began later.
        changes.sort_by_key(|c: &calls::Change| c.source.ticks);
        let mut reader = looks::Looks::new(changes, meta.target.ticks_per_sec / 20);
        for at in &meta.mappings {
            let payload = analysis.payload(at);
            if let Some(m) = payload.and_then(|p| Mappings::decode(&p)) {
                reader.take(&m);
            }
        }
        Ok(reader.finish())
    }

    /// Returns whether the recording tells of mappings; those of an earlier prof do not.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.looks > 0
    }

    /// Returns all mappings, in the order in which they were made or seen first.
    #[must_use]
    pub fn all(&self) -> &[Map] {
        &self.all
    }

    /// Returns the mapping with this number.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&Map> {
        self.all.get(id as usize)
    }

    /// Returns the sums over all mappings but prof's own, over time.
    #[must_use]
    pub fn totals(&self) -> &[Totals] {
        &self.totals
    }

    /// Returns the sums that were seen last before a moment.
    #[must_use]
    pub fn totals_at(&self, ticks: u64) -> Option<&Totals> {
        let i = self.totals.partition_point(|t| t.ticks <= ticks);
        i.checked_sub(1).map(|i| &self.totals[i])
    }

    /// Returns the mapping that an address was in at a moment.
    #[must_use]
    pub fn at(&self, address: u64, ticks: u64) -> Option<&Map> {
        self.all.iter().find(|m| {
            m.is_alive_at(ticks)
                && m.regions.iter().any(|r| {
                    let there = r.begun <= ticks && r.end.as_ref().is_none_or(|e| e.ticks > ticks);
                    there && address.wrapping_sub(r.address) < r.size
                })
        })
    }
}
