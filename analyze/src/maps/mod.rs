//! The mappings of a process over time: who made each, what became of it, and how much of it was resident.
//!
//! [`Maps::of`] puts the collector's looks at the target's mappings ([`looks`]) into one model ([`table`]). A mapping
//! keeps its number for its whole life: one that is cut, moved or partly replaced is the same mapping with other
//! *regions*, and the kernel's merging of neighbours does not make one mapping of two. Mappings that were found by a
//! look and not by the call that made them are *seen, not caught*, and have no stack.

mod beside;
mod calls;
mod course;
mod data;
mod filter;
mod grow;
mod held;
mod kind;
mod looks;
mod owned;
mod page;
mod past;
mod ranges;
mod table;
mod text;
mod totals;
mod usage_history;

use crate::Analysis;
use past::{Past, PastRegion};
use prof_trace::records::{MappingUse, Mappings};
use prof_trace::ticks::Ticks;
use std::collections::BTreeSet;
use std::sync::Arc;

pub use beside::Beside;
pub use course::MapsTimeline;
pub use data::{
    MapData, MapEndData, MapGroupBy, MapGroupData, MapRegionData, MapSort, MapSourceData,
    MapTotalsData, MapUsageData, MapsOptions, MapsReport, Shower, Timeval, Timing,
};
pub use filter::{FIELDS, MapFilter, find};
pub use grow::{GrowingMap, growing};
pub use held::{Held, HeldGroup, HeldMaps, HeldSums, map_filter};
pub use kind::Kind;
pub use owned::What;
pub use page::{Page, PageAsk};
pub use ranges::MappedRanges;
pub use totals::Totals;

/// All mappings that a recording tells of.
///
/// Those that are there at the end are held as they are; those that have ended, and earlier regions of mappings that
/// have many, take a few bytes each and are unpacked when they are asked for.
#[derive(Clone, Debug, Default)]
pub struct Maps {
    /// Mappings that are there at the end, in the order in which they were made.
    live: Vec<Map>,
    past: Past<Map>,
    past_regions: Past<PastRegion>,
    count: u32,
    /// Files that code is mapped of: device and inode.
    code: BTreeSet<(u64, u64)>,
    totals: Vec<Totals>,
    looks: u64,
}

/// A mapping, from its making to its end. Sizes are in bytes, times in ticks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map {
    /// Number of the mapping, in the order in which they were made or seen first.
    pub id: u32,
    /// First address that it had.
    pub address: u64,
    /// Address space that it takes; if it has ended, that it took last.
    pub size: u64,
    /// Greatest address space that it ever took.
    pub peak_size: u64,
    /// Ticks when it was made, or seen first.
    pub begun: Ticks,
    /// Whether the mapping was there at the first look, and so is from before the attach.
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
    /// Whether the mapping is prof's own.
    pub ours: bool,
    /// Address ranges, in the order in which they began.
    pub regions: Vec<Region>,
    /// Number of earlier address ranges that are not among [`Map::regions`]; [`Maps::get`] has them all.
    pub past_regions: u32,
    /// The mapping's use, whenever that was seen to change.
    pub usage: Vec<Usage>,
}

/// Permissions of a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Perms {
    /// Whether the memory can be read.
    pub read: bool,
    /// Whether the memory can be written to.
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
    pub ticks: Ticks,
    /// Number of the thread, as in [`Meta::threads`](crate::load::Meta::threads).
    pub thread: u32,
    /// Node of its stack; 0: none.
    pub node: u32,
}

/// The end of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEnd {
    /// Ticks when it ended, or was first seen to be gone.
    pub ticks: Ticks,
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
    pub begun: Ticks,
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
    pub ticks: Ticks,
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
    pub ticks: Ticks,
    /// Address space.
    pub address_space: u64,
    /// Resident.
    pub rss: u64,
    /// Resident and anonymous.
    pub anonymous: u64,
    /// Bytes of several processes that are as in the file.
    pub shared_clean: u64,
    /// Bytes of several processes that were written to.
    pub shared_dirty: u64,
    /// Bytes of this process alone that are as in the file.
    pub private_clean: u64,
    /// Bytes of this process alone that were written to.
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
    pub fn usage_at(&self, ticks: Ticks) -> Usage {
        let i = self.usage.partition_point(|u| u.ticks <= ticks);
        i.checked_sub(1).map(|i| self.usage[i]).unwrap_or_default()
    }

    /// Returns the use that was seen last.
    #[must_use]
    pub fn last_usage(&self) -> Usage {
        self.usage.last().copied().unwrap_or_default()
    }

    /// Returns the address space that the mapping took at a moment; when earlier regions have been put aside, as it was
    /// seen last before that moment.
    #[must_use]
    pub fn size_at(&self, ticks: Ticks) -> u64 {
        let first = self.regions.iter().map(|r| r.begun).min().unwrap_or(Ticks::ZERO);
        if self.past_regions > 0 && ticks < first {
            return self.usage_at(ticks).address_space;
        }
        let there =
            |r: &&Region| r.begun <= ticks && r.end.as_ref().is_none_or(|e| e.ticks > ticks);
        self.regions.iter().filter(there).map(|r| r.size).fold(0, u64::saturating_add)
    }

    /// Returns whether the mapping was there at a moment.
    #[must_use]
    pub fn is_alive_at(&self, ticks: Ticks) -> bool {
        self.begun <= ticks && self.end.is_none_or(|e| e.ticks > ticks)
    }

    /// Returns the call that made the mapping was recorded.
    #[must_use]
    pub fn is_caught(&self) -> bool {
        self.source.is_some()
    }
}

/// Returns why a recording tells of no mappings.
#[must_use]
pub fn why_unrecorded(meta: &crate::load::Meta) -> &'static str {
    match (meta.is_of_kernel(), meta.is_aggregated()) {
        (true, _) => "it is a recording of the kernel's own memory, which has no mappings",
        (_, true) => "it has only figures by stack (--aggregate)",
        _ => "an earlier prof made it, or it ended before they were looked at",
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
        let calls = crate::load::CallReader::new(meta, |at| analysis.payload(at));
        let mut reader = looks::Looks::new(calls, page, target.ticks_per_sec / 20);
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

    /// Returns the number of mappings that there have been.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Calls `take` with each mapping: first those that have ended, in the order of their ends, then those that are there
    /// at the end, in the order in which they were made.
    pub fn each(&self, mut take: impl FnMut(&Map)) {
        self.each_past(|_, _| true, &mut take);
        self.live.iter().for_each(take);
    }

    fn each_past(&self, wanted: impl Fn(u32, u32) -> bool, mut take: impl FnMut(&Map)) {
        self.past.each(wanted, |mut m| {
            looks::divide(&mut m, &self.code);
            take(&m);
        });
    }

    /// Calls `take` with each region that has been put aside.
    fn each_past_region(&self, mut take: impl FnMut(&Region)) {
        self.past_regions.each(|_, _| true, |r| take(&r.region));
    }

    /// Returns the mappings that are there at the end of the recording, in the order in which they were made.
    #[must_use]
    pub fn live(&self) -> &[Map] {
        &self.live
    }

    /// Returns the mapping with this number, with all its regions.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<Map> {
        self.some(&[id]).pop()
    }

    /// Returns the mappings with these numbers, with all their regions, in the order of the numbers.
    #[must_use]
    pub fn some(&self, ids: &[u32]) -> Vec<Map> {
        let mut sorted: Vec<u32> = ids.to_vec();
        sorted.sort_unstable();
        let any = |a: u32, b: u32| {
            let i = sorted.partition_point(|id| *id < a);
            sorted.get(i).is_some_and(|id| *id <= b)
        };
        let has = |id: u32| sorted.binary_search(&id).is_ok();
        let mut found: std::collections::HashMap<u32, Map> = std::collections::HashMap::new();
        let mut put = |m: &Map| {
            if has(m.id) {
                found.insert(m.id, m.clone());
            }
        };
        self.each_past(any, &mut put);
        self.live.iter().for_each(put);
        if found.values().any(|m| m.past_regions > 0) {
            let mut past: std::collections::HashMap<u32, Vec<Region>> = Default::default();
            self.past_regions.each(any, |r| {
                if has(r.map) {
                    past.entry(r.map).or_default().push(r.region);
                }
            });
            for (id, mut all) in past {
                if let Some(m) = found.get_mut(&id) {
                    all.append(&mut m.regions);
                    all.sort_by_key(|r| r.begun);
                    (m.regions, m.past_regions) = (all, 0);
                }
            }
        }
        ids.iter().filter_map(|id| found.get(id).cloned()).collect()
    }

    /// Returns the sums over all mappings but prof's own, over time.
    #[must_use]
    pub fn totals(&self) -> &[Totals] {
        &self.totals
    }

    /// Returns the sums that were seen last before a moment.
    #[must_use]
    pub fn totals_at(&self, ticks: Ticks) -> Option<&Totals> {
        let i = self.totals.partition_point(|t| t.ticks <= ticks);
        i.checked_sub(1).map(|i| &self.totals[i])
    }
}
