//! Follows mappings through the calls that make, cut, move and end them.

use super::past::{Past, PastRegion};
use super::{Kind, Map, MapEnd, Perms, Region, RegionEnd, Source, UnmapSource};
use prof_trace::ticks::Ticks;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Properties of a mapping that do not depend on its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Of {
    pub perms: Perms,
    /// Offset in the file of the mapping's first byte.
    pub offset: u64,
    /// Device as major · 2^32 + minor.
    pub device: u64,
    pub inode: u64,
    pub name: Arc<str>,
}

/// A region that is there.
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub end: u64,
    /// Place of the mapping in the table.
    pub map: u32,
    /// Index in the regions of the mapping.
    region: u32,
    pub of: Of,
}

/// Number of regions of a mapping from which on the earlier ones are put aside.
const MANY_REGIONS: usize = 64;

/// The mappings that are there, and their regions by first address.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Mappings by their places; those that have ended stay until they are [taken](Table::take_ended).
    pub maps: Vec<Map>,
    pub live: BTreeMap<u64, Live>,
    /// First addresses of the regions of each mapping that are there.
    parts: Vec<Vec<u64>>,
    /// Places that no mapping has.
    free: Vec<u32>,
    /// Places of mappings that have ended.
    ended: Vec<u32>,
    /// Number of the next mapping.
    next: u32,
    /// Earlier regions of mappings that have many.
    pub past: Past<PastRegion>,
}

/// A moment, and the call that is made then.
#[derive(Clone, Copy, Debug)]
pub(super) struct When {
    pub ticks: Ticks,
    pub source: Option<Source>,
}

impl Of {
    /// Returns the properties of a part that begins so many bytes later.
    pub(super) fn later(&self, bytes: u64) -> Self {
        let offset = if self.inode == 0 { 0 } else { self.offset.wrapping_add(bytes) };
        Self { offset, ..self.clone() }
    }
}

impl Table {
    /// Adds a mapping, which replaces what is there. Returns its place.
    pub(super) fn map(&mut self, start: u64, end: u64, of: Of, when: When) -> u32 {
        self.unmap(start, end, when);
        let kind = Kind::of(&of.name, (of.inode, of.offset), of.perms);
        let map = Map {
            id: self.next,
            address: start,
            size: 0,
            peak_size: 0,
            begun: when.ticks,
            before: false,
            source: when.source,
            end: None,
            perms: of.perms,
            name: of.name.clone(),
            kind,
            thread: None,
            peak_rss: 0,
            ours: kind == Kind::Prof,
            regions: Vec::new(),
            past_regions: 0,
            usage: Vec::new(),
        };
        self.next += 1;
        let place = match self.free.pop() {
            Some(place) => {
                self.maps[place as usize] = map;
                place
            }
            None => {
                self.maps.push(map);
                self.parts.push(Vec::new());
                self.maps.len() as u32 - 1
            }
        };
        self.begin(place, start, end, of, when.ticks);
        place
    }

    /// Returns the number of mappings that there have been.
    pub(super) fn count(&self) -> u32 {
        self.next
    }

    /// Removes the mappings that have ended, and passes them on.
    pub(super) fn take_ended(&mut self, mut take: impl FnMut(Map)) {
        for place in std::mem::take(&mut self.ended) {
            let m = &mut self.maps[place as usize];
            // One that was moved over a part of itself goes on.
            if m.end.is_some() && self.parts[place as usize].is_empty() {
                take(std::mem::take(m));
                self.free.push(place);
            }
        }
    }

    /// Returns the mappings that are there.
    pub(super) fn into_live(self) -> Vec<Map> {
        let there = self.maps.into_iter().zip(&self.parts).filter(|(_, parts)| !parts.is_empty());
        there.map(|(m, _)| m).collect()
    }

    /// Puts the earlier regions of a mapping aside, if it has many.
    fn put_aside(&mut self, place: u32) {
        let parts = &self.parts[place as usize];
        let m = &mut self.maps[place as usize];
        if m.regions.len() < MANY_REGIONS + 2 * parts.len() {
            return;
        }
        let mut left = Vec::with_capacity(parts.len());
        let mut moved = std::collections::HashMap::new();
        for (i, r) in std::mem::take(&mut m.regions).into_iter().enumerate() {
            if r.end.is_none() {
                moved.insert(i as u32, left.len() as u32);
                left.push(r);
            } else {
                self.past.push(&PastRegion { map: m.id, region: r });
                m.past_regions += 1;
            }
        }
        m.regions = left;
        for at in parts {
            if let Some(l) = self.live.get_mut(at) {
                l.region = moved.get(&l.region).copied().unwrap_or(u32::MAX);
            }
        }
    }

    /// Adds a region to a mapping. Nothing else may be there.
    fn begin(&mut self, map: u32, start: u64, end: u64, of: Of, ticks: Ticks) {
        let m = &mut self.maps[map as usize];
        let region = m.regions.len() as u32;
        m.regions.push(Region {
            address: start,
            size: end - start,
            begun: ticks,
            perms: of.perms,
            offset: of.offset,
            inode: of.inode,
            major: (of.device >> 32) as u32,
            minor: of.device as u32,
            name: of.name.clone(),
            end: None,
        });
        m.perms = of.perms;
        m.size = m.size.saturating_add(end - start);
        m.peak_size = m.peak_size.max(m.size);
        m.end = None;
        self.parts[map as usize].push(start);
        self.live.insert(start, Live { end, map, region, of });
        self.put_aside(map);
    }

    /// Ends a region that is there. Its mapping's size is not changed if nothing else of it is left.
    fn end(&mut self, start: u64, ticks: Ticks, sources: Vec<UnmapSource>) -> Option<Live> {
        let live = self.live.remove(&start)?;
        let m = &mut self.maps[live.map as usize];
        if let Some(r) = m.regions.get_mut(live.region as usize) {
            r.end = Some(RegionEnd { ticks, sources });
        }
        m.size = m.size.saturating_sub(live.end - start);
        let parts = &mut self.parts[live.map as usize];
        if let Some(i) = parts.iter().position(|p| *p == start) {
            parts.swap_remove(i);
        }
        Some(live)
    }

    /// Returns the first addresses of the regions that overlap a range.
    pub(super) fn within(&self, start: u64, end: u64) -> Vec<u64> {
        let first = self.live.range(..start).next_back().filter(|(_, l)| l.end > start);
        let rest = self.live.range(start..end.max(start));
        first.into_iter().chain(rest).map(|(s, _)| *s).collect()
    }

    /// Returns the first addresses of the regions of a mapping that are there.
    pub(super) fn parts(&self, map: u32) -> &[u64] {
        self.parts.get(map as usize).map_or(&[], Vec::as_slice)
    }

    /// Takes a range away from all mappings.
    pub(super) fn unmap(&mut self, start: u64, end: u64, when: When) {
        if start >= end {
            return; // a region around that address would be cut in two
        }
        for at in self.within(start, end) {
            let (from, to) = (at.max(start), self.live[&at].end.min(end));
            let source = UnmapSource { address: from, length: to - from, source: when.source };
            let size = self.maps[self.live[&at].map as usize].size;
            let Some(l) = self.end(at, when.ticks, vec![source]) else { continue };
            self.rest(at, from, to, &l, when.ticks);
            if self.parts(l.map).is_empty() {
                let m = &mut self.maps[l.map as usize];
                m.end = Some(MapEnd { ticks: when.ticks, source: when.source });
                m.size = size;
                self.ended.push(l.map);
            }
        }
    }

    /// Lets what is left of a region go on, when `from` to `to` of it has been taken away.
    fn rest(&mut self, at: u64, from: u64, to: u64, l: &Live, ticks: Ticks) {
        if at < from {
            self.begin(l.map, at, from, l.of.clone(), ticks);
        }
        if to < l.end {
            self.begin(l.map, to, l.end, l.of.later(to - at), ticks);
        }
    }

    /// Gives a range other permissions: whether it can be read, written to, and executed.
    pub(super) fn protect(&mut self, start: u64, end: u64, to: (bool, bool, bool), when: When) {
        for at in self.within(start, end) {
            let was = self.live[&at].of.perms;
            let perms = Perms { read: to.0, write: to.1, execute: to.2, ..was };
            if was == perms {
                continue;
            }
            self.put_apart(at, start, end, perms, when.ticks);
        }
    }

    /// Cuts regions at both ends of a range, which goes on as regions of its own.
    pub(super) fn split(&mut self, start: u64, end: u64, when: When) {
        for at in self.within(start, end) {
            let l = &self.live[&at];
            if at < start || l.end > end {
                let perms = l.of.perms;
                self.put_apart(at, start, end, perms, when.ticks);
            }
        }
    }

    /// Makes the part of a region that lies in a range a region of its own, with these permissions.
    fn put_apart(&mut self, at: u64, start: u64, end: u64, perms: Perms, ticks: Ticks) {
        let (from, to) = (at.max(start), self.live[&at].end.min(end));
        let Some(l) = self.end(at, ticks, Vec::new()) else { return };
        self.rest(at, from, to, &l, ticks);
        let of = Of { perms, ..l.of.later(from - at) };
        let accessible = perms.read || perms.write || perms.execute;
        let m = &mut self.maps[l.map as usize];
        // Memory that was reserved first, and is used now, gets the kind that it is used as.
        if m.kind == Kind::Reserved && accessible {
            m.kind = Kind::of(&of.name, (of.inode, of.offset), perms);
        }
        self.begin(l.map, from, to, of, ticks);
    }

    /// Takes away the whole mapping of the region that begins at an address, as `shmdt` does. Returns its ranges.
    pub(super) fn detach(&mut self, start: u64, when: When) -> Vec<(u64, u64)> {
        let Some(map) = self.live.get(&start).map(|l| l.map) else { return Vec::new() };
        let parts = self.parts(map).iter();
        let parts: Vec<_> = parts.map(|at| (*at, self.live[at].end)).collect();
        parts.iter().for_each(|p| self.unmap(p.0, p.1, when));
        parts
    }

    /// Moves a range, and makes it longer or shorter, as `mremap` does. What is at the new place is replaced.
    pub(super) fn remap(&mut self, old: (u64, u64), new: (u64, u64), when: When) {
        let keep = (old.1 - old.0).min(new.1 - new.0);
        self.unmap(old.0 + keep, old.1, when);
        let mut moved = Vec::new();
        for at in self.within(old.0, old.0 + keep) {
            let (from, to) = (at.max(old.0), self.live[&at].end.min(old.0 + keep));
            // A region that stays as it is does not begin anew.
            if old.0 == new.0 && old.1 >= new.1 {
                continue;
            }
            let Some(l) = self.end(at, when.ticks, Vec::new()) else { continue };
            self.rest(at, from, to, &l, when.ticks);
            moved.push((from - old.0, to - old.0, l.map, l.of.later(from - at)));
        }
        // The replaced range does not include the part that was there before.
        if let Some(last) = moved.last_mut() {
            last.1 = last.1.max(new.1 - new.0);
        }
        for (from, to, map, of) in moved {
            self.unmap(new.0 + from, new.0 + to, when);
            self.begin(map, new.0 + from, new.0 + to, of, when.ticks);
        }
    }

    /// Maps what is mapped at `old` at a second place, where it replaces what is there.
    pub(super) fn copy(&mut self, old: u64, new: (u64, u64), when: When) {
        let there = self.live.range(..=old).next_back().filter(|(_, l)| l.end > old);
        let of = there.map(|(at, l)| l.of.later(old - at));
        match of {
            Some(of) => _ = self.map(new.0, new.1, of, when),
            // It is not known: a look will show what is there now.
            None => self.unmap(new.0, new.1, when),
        }
    }

    /// Makes the mapping of the region that begins at `at` longer, to the addresses from `start` to `end`, which adjoin
    /// the region and where nothing else is.
    pub(super) fn grow(&mut self, at: u64, start: u64, end: u64, of: Of, when: When) {
        let Some(l) = self.live.get(&at) else { return };
        let (from, to) = (at.min(start), l.end.max(end));
        let apart = end < at || l.end < start;
        if apart {
            return;
        }
        let Some(l) = self.end(at, when.ticks, Vec::new()) else { return };
        self.begin(l.map, from, to, of, when.ticks);
    }

    /// Notes the file of a region that begins at `at`, given the file's properties so many bytes later.
    pub(super) fn identify(&mut self, at: u64, of: &Of, later: u64) {
        let Some(l) = self.live.get_mut(&at) else { return };
        l.of = Of { offset: of.offset.wrapping_sub(later), ..of.clone() };
        let m = &mut self.maps[l.map as usize];
        m.name = of.name.clone();
        m.perms = of.perms;
        m.kind = Kind::of(&of.name, (of.inode, of.offset), of.perms);
        if let Some(r) = m.regions.get_mut(l.region as usize) {
            (r.name, r.inode, r.offset) = (of.name.clone(), of.inode, l.of.offset);
            (r.major, r.minor, r.perms) = ((of.device >> 32) as u32, of.device as u32, of.perms);
        }
    }

    /// Gives the region that begins at `at` another name, as `prctl` or the end of its file does.
    pub(super) fn rename(&mut self, at: u64, name: &Arc<str>) {
        let Some(l) = self.live.get_mut(&at) else { return };
        l.of.name = name.clone();
        let m = &mut self.maps[l.map as usize];
        if let Some(r) = m.regions.get_mut(l.region as usize) {
            r.name = name.clone();
        }
        m.name = name.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> Of {
        let perms = Perms { read: true, write: true, ..Perms::default() };
        Of { perms, offset: 0, device: 0, inode: 0, name: name.into() }
    }

    fn at(time: u64) -> When {
        let ticks = Ticks(time);
        When { ticks, source: Some(Source { ticks, thread: 1, node: time as u32 }) }
    }

    fn live(t: &Table) -> Vec<(u64, u64, u32)> {
        t.live.iter().map(|(s, l)| (*s, l.end, l.map)).collect()
    }

    #[test]
    fn a_mapping_that_is_cut_is_one_with_regions() {
        let mut t = Table::default();
        t.map(0x1000, 0x9000, of("a"), at(1));
        t.unmap(0x1000, 0x2000, at(2)); // its start
        t.unmap(0x8000, 0xa000, at(3)); // its end
        t.unmap(0x4000, 0x5000, at(4)); // its middle
        assert_eq!(live(&t), [(0x2000, 0x4000, 0), (0x5000, 0x8000, 0)]);
        let m = &t.maps[0];
        assert_eq!((m.address, m.size, m.peak_size, m.end), (0x1000, 0x5000, 0x8000, None));
        let regions: Vec<_> = m.regions.iter().map(|r| (r.address, r.size, r.begun.0)).collect();
        let expected = [
            (0x1000, 0x8000, 1),
            (0x2000, 0x7000, 2),
            (0x2000, 0x6000, 3),
            (0x2000, 0x2000, 4),
            (0x5000, 0x3000, 4),
        ];
        assert_eq!(regions, expected);
        let cut = &m.regions[2].end.as_ref().expect("cut").sources;
        assert_eq!(
            cut[..],
            [UnmapSource { address: 0x4000, length: 0x1000, source: at(4).source }]
        );
        t.unmap(0, 0x7000, at(5));
        t.unmap(0x7000, 0x8000, at(6));
        let m = &t.maps[0];
        assert_eq!(m.end, Some(MapEnd { ticks: Ticks(6), source: at(6).source }));
        assert_eq!((m.size, live(&t)), (0x1000, vec![]));
    }

    #[test]
    fn the_end_of_a_replaced_part_has_the_stack_of_the_other_mapping() {
        let mut t = Table::default();
        t.map(0x1000, 0x9000, of("a"), at(1));
        t.map(0x3000, 0x5000, of("b"), at(2));
        assert_eq!(live(&t), [(0x1000, 0x3000, 0), (0x3000, 0x5000, 1), (0x5000, 0x9000, 0)]);
        let end = t.maps[0].regions[0].end.as_ref().expect("cut");
        let by = UnmapSource { address: 0x3000, length: 0x2000, source: t.maps[1].source };
        assert_eq!((end.ticks, &end.sources[..]), (Ticks(2), &[by][..]));
        t.map(0, 0x10000, of("c"), at(3));
        let ends: Vec<_> = t.maps.iter().map(|m| m.end.map(|e| e.source)).collect();
        assert_eq!(ends, [Some(at(3).source), Some(at(3).source), None]);
    }

    #[test]
    fn a_mapping_is_moved_grown_and_shrunk() {
        let mut t = Table::default();
        t.map(0x1000, 0x3000, of("a"), at(1));
        t.map(0x20000, 0x23000, of("b"), at(2));
        t.remap((0x1000, 0x3000), (0x1000, 0x6000), at(3)); // grown in place
        assert_eq!(live(&t)[0], (0x1000, 0x6000, 0));
        t.remap((0x1000, 0x6000), (0x21000, 0x2a000), at(4)); // moved over a part of the other, and grown
        assert_eq!(live(&t), [(0x20000, 0x21000, 1), (0x21000, 0x2a000, 0)]);
        t.remap((0x21000, 0x2a000), (0x21000, 0x22000), at(5)); // shrunk
        assert_eq!(live(&t), [(0x20000, 0x21000, 1), (0x21000, 0x22000, 0)]);
        let m = &t.maps[0];
        assert_eq!((m.size, m.peak_size, m.end, m.source), (0x1000, 0x9000, None, at(1).source));
        let sources: Vec<_> =
            m.regions.iter().map(|r| r.end.as_ref().map(|e| e.sources.len())).collect();
        assert_eq!(sources, [Some(0), Some(0), Some(1), None]);
        t.remap((0x21000, 0x22000), (0x20800, 0x21800), at(6)); // the ranges overlap
        assert_eq!(live(&t), [(0x20000, 0x20800, 1), (0x20800, 0x21800, 0)]);
    }

    #[test]
    fn a_second_place_leaves_the_first() {
        let mut t = Table::default();
        let file = Of { offset: 0x5000, inode: 7, ..of("/f") };
        t.map(0x1000, 0x4000, file, at(1));
        t.map(0x8000, 0xa000, of("b"), at(2));
        t.copy(0x2000, (0x8000, 0x9000), at(3));
        assert_eq!(live(&t), [(0x1000, 0x4000, 0), (0x8000, 0x9000, 2), (0x9000, 0xa000, 1)]);
        let copied = &t.maps[2];
        assert_eq!((copied.regions[0].offset, copied.source), (0x6000, at(3).source));
        t.copy(0x7000, (0x9000, 0xa000), at(4));
        assert_eq!(live(&t), [(0x1000, 0x4000, 0), (0x8000, 0x9000, 2)]);
    }

    #[test]
    fn many_regions_are_put_aside_and_places_used_again() {
        let mut t = Table::default();
        t.map(0x1000, 0x4000, of("a"), at(1));
        for i in 0..1000u64 {
            t.protect(0x2000, 0x3000, (true, i % 2 == 1, false), at(2 + i));
        }
        let m = &t.maps[0];
        assert!(m.regions.len() < 2 * MANY_REGIONS, "{}", m.regions.len());
        let mut past = Vec::new();
        t.past.each(|_, _| true, |r: PastRegion| past.push(r));
        // The first cuts the mapping in three; each of the others ends one region and begins one.
        assert_eq!(past.len() + m.regions.len(), 4 + 999);
        assert_eq!(
            (past.len() as u32, m.regions.iter().filter(|r| r.end.is_none()).count()),
            (m.past_regions, 3)
        );
        assert!(past.iter().all(|r| r.map == 0 && r.region.end.is_some()));
        assert!(past.is_sorted_by_key(|r| r.region.begun));
        let mut ended = Vec::new();
        for i in 0..100u64 {
            t.map(0x9000, 0xa000, of("b"), at(2000 + 2 * i));
            t.unmap(0x9000, 0xa000, at(2001 + 2 * i));
            t.take_ended(|m| ended.push(m.id));
        }
        assert_eq!((ended.len(), t.maps.len(), t.count()), (100, 2, 101));
        assert!(ended.iter().copied().eq(1..=100));
        assert_eq!(t.into_live().len(), 1);
    }

    #[test]
    fn permissions_cut_regions_but_end_nothing() {
        let mut t = Table::default();
        let file = Of { offset: 0x5000, inode: 7, ..of("/f") };
        t.map(0x1000, 0x4000, file, at(1));
        let none = (false, false, false);
        t.protect(0x2000, 0x3000, none, at(2));
        let regions: Vec<_> =
            t.live.iter().map(|(s, l)| (*s, l.of.offset, l.of.perms.read)).collect();
        assert_eq!(
            regions,
            [(0x1000, 0x5000, true), (0x2000, 0x6000, false), (0x3000, 0x7000, true)]
        );
        assert_eq!((t.maps.len(), t.maps[0].size, t.maps[0].end), (1, 0x3000, None));
        t.protect(0x2000, 0x3000, none, at(3));
        assert_eq!(t.maps[0].regions.len(), 4, "nothing changes");
    }
}
