//! Adds up mappings by the stack that made them or, where that is not known, by name.

use super::data::{MapGroupData, Shower};
use super::owned::{Owned, What, is_of_allocator};
use super::{Kind, Map, MapFilter, Maps};
use crate::index::{Index, ScanError};
use crate::query::{Filter, FilterError};
use prof_trace::ticks::Ticks;
use std::collections::{BTreeMap, HashMap};

/// The mappings that a report or an export is about.
pub struct Held<'a> {
    index: &'a Index,
    maps: &'a Maps,
    /// The memory that is asked for.
    pub what: What,
    filter: MapFilter,
    owned: Owned,
    /// prof's own mappings are among them.
    ours: bool,
}

/// Mappings of one stack, or of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldGroup {
    /// Node of the stack; 0: it is not known.
    pub node: u32,
    /// Name of the mappings, or their kind in brackets; empty if the stack is known.
    pub name: String,
    /// Kind of the first of them.
    pub kind: Kind,
    /// Figures of the mappings.
    pub sums: HeldSums,
}

/// Sums over mappings, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldSums {
    /// Number of mappings that are there at the moment.
    pub count: u64,
    /// Address space of these.
    pub size: u64,
    /// Resident bytes of these.
    pub rss: u64,
    /// Sum of the most that was seen resident of each of these.
    pub peak_rss: u64,
    /// Resident bytes of these that were written to.
    pub dirty: u64,
    /// Bytes of these that are swapped out.
    pub swap: u64,
    /// Number of mappings that were made in the recording up to the moment, also those that have ended.
    pub made: u64,
    /// Greatest address space of each of these.
    pub made_bytes: u64,
}

/// The groups of a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldMaps {
    /// Groups in the order of their stacks and names.
    pub groups: Vec<HeldGroup>,
    /// The part of all mappings that is the allocator's; with [`What::All`] it is not in the groups.
    pub allocator: HeldSums,
}

impl HeldSums {
    /// Adds the sums of other mappings.
    pub fn add(&mut self, o: &Self) {
        let pairs = [
            (&mut self.count, o.count),
            (&mut self.size, o.size),
            (&mut self.rss, o.rss),
            (&mut self.peak_rss, o.peak_rss),
            (&mut self.dirty, o.dirty),
            (&mut self.swap, o.swap),
            (&mut self.made, o.made),
            (&mut self.made_bytes, o.made_bytes),
        ];
        for (to, n) in pairs {
            *to = to.saturating_add(n);
        }
    }

    /// Returns the sums as a report shows them.
    #[must_use]
    pub fn data(&self) -> MapGroupData {
        MapGroupData {
            count: self.count,
            size: self.size,
            rss: self.rss,
            peak_rss: self.peak_rss,
            dirty: self.dirty,
            swap: self.swap,
            ..MapGroupData::default()
        }
    }
}

/// Converts the conditions on blocks to those on mappings, which have the same names.
///
/// # Errors
/// If mappings can't be selected by one of them.
pub fn map_filter(of: &Filter) -> Result<MapFilter, FilterError> {
    let mut filter = MapFilter::default();
    for (name, value) in of.given() {
        if *name == "from-map" {
            filter.set("id", value)?;
            continue;
        }
        if super::find(name).is_none() {
            let why = "it selects blocks only; leave it out, or give --what heap".into();
            return Err(FilterError::Value { name, why });
        }
        filter.set(name, value)?;
    }
    Ok(filter)
}

/// The name of a mapping whose stack is not known.
fn name_of(m: &Map) -> String {
    if m.name.is_empty() {
        format!("[{}]", m.kind.name())
    } else {
        crate::style::printable(&m.name)
    }
}

impl<'a> Held<'a> {
    /// Prepares the sums.
    ///
    /// # Errors
    /// If the index can't be read.
    pub fn new(
        index: &'a Index,
        maps: &'a Maps,
        what: What,
        filter: MapFilter,
    ) -> Result<Self, ScanError> {
        let owned = Owned::of(index)?;
        Ok(Self { index, maps, what, filter, owned, ours: false })
    }

    /// Adds prof's own mappings, as far as the filter selects them.
    #[must_use]
    pub fn and_ours(self) -> Self {
        Self { ours: true, ..self }
    }

    /// Returns all mappings of the recording.
    #[must_use]
    pub fn maps(&self) -> &'a Maps {
        self.maps
    }

    /// Calls `take` with each selected mapping, prof's own left out unless asked for, and with the bytes of its address space, and of its
    /// resident memory at the end of the recording, that are an allocator's (`u64::MAX`: all of it ever was).
    pub fn each(&self, mut take: impl FnMut(&Map, (u64, u64))) {
        let analysis = self.index.analysis();
        let mut shower = Shower::new(analysis);
        let mut known: HashMap<u32, bool> = HashMap::new();
        let mut has = self.filter.test(analysis);
        self.maps.each(|m| {
            if m.ours && !self.ours || !has(m) {
                return;
            }
            let node = m.source.map_or(0, |s| s.node);
            let by_allocator =
                *known.entry(node).or_insert_with(|| is_of_allocator(&shower.frames(node)));
            let theirs = match m.kind == Kind::Heap || by_allocator {
                true => (u64::MAX, u64::MAX),
                false => self.owned.of_map(m),
            };
            take(m, theirs);
        });
    }

    /// Calls `take` as [`Held::each`] does, and with node and name of the mapping's group.
    pub fn each_grouped(&self, mut take: impl FnMut(&Map, &(u32, String), (u64, u64))) {
        self.each(|m, theirs| {
            let node = m.source.map_or(0, |s| s.node);
            let name = if node == 0 { name_of(m) } else { String::new() };
            take(m, &(node, name), theirs);
        });
    }

    /// Returns the sums at a moment (`None`: the end).
    #[must_use]
    pub fn at(&self, at: Option<Ticks>) -> HeldMaps {
        let at = at.unwrap_or_else(|| self.index.analysis().end_ticks());
        let mut groups: BTreeMap<(u32, String), HeldGroup> = BTreeMap::new();
        let mut allocator = HeldSums::default();
        self.each_grouped(|m, key, theirs| {
            if m.begun > at {
                return;
            }
            let whole = sums(m, at);
            let mut left = whole;
            if theirs != (0, 0) {
                let out = part(&whole, theirs);
                allocator.add(&out);
                if self.what == What::All {
                    left = less(&whole, &out);
                    if left.size == 0 && left.made_bytes == 0 {
                        return;
                    }
                }
            }
            if let Some(g) = groups.get_mut(key) {
                g.sums.add(&left);
                return;
            }
            let (node, name) = key.clone();
            groups.insert(key.clone(), HeldGroup { node, name, kind: m.kind, sums: left });
        });
        HeldMaps { groups: groups.into_values().collect(), allocator }
    }
}

/// Returns the figures of one mapping at a moment.
fn sums(m: &Map, at: Ticks) -> HeldSums {
    let made = u64::from(!m.before);
    let made = HeldSums { made, made_bytes: made * m.peak_size, ..HeldSums::default() };
    if !m.is_alive_at(at) {
        return made;
    }
    let u = m.usage_at(at);
    HeldSums {
        count: 1,
        size: m.size_at(at),
        rss: u.rss,
        peak_rss: m.peak_rss,
        dirty: u.shared_dirty.saturating_add(u.private_dirty).min(u.rss),
        swap: u.swap,
        ..made
    }
}

/// Returns the part of a mapping's figures that is an allocator's.
fn part(whole: &HeldSums, (size, rss): (u64, u64)) -> HeldSums {
    HeldSums {
        size: size.min(whole.size),
        rss: rss.min(whole.rss),
        peak_rss: rss.min(whole.peak_rss),
        dirty: rss.min(whole.dirty),
        made_bytes: size.min(whole.made_bytes),
        // Nothing tells whose pages were swapped out.
        swap: if rss == u64::MAX { whole.swap } else { 0 },
        ..*whole
    }
}

/// Returns the figures without an allocator's part. A mapping of which nothing is left does not count.
fn less(whole: &HeldSums, out: &HeldSums) -> HeldSums {
    let (size, made_bytes) = (whole.size - out.size, whole.made_bytes - out.made_bytes);
    HeldSums {
        count: if size == 0 { 0 } else { whole.count },
        size,
        rss: whole.rss - out.rss,
        peak_rss: whole.peak_rss - out.peak_rss,
        dirty: whole.dirty.min(whole.rss - out.rss),
        swap: whole.swap - out.swap,
        made: if made_bytes == 0 { 0 } else { whole.made },
        made_bytes,
    }
}
