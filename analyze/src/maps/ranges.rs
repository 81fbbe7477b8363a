//! Says which blocks lie in mappings.

use super::{Maps, Region};
use prof_trace::ticks::Ticks;

/// An address range in a period of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RangeInTime {
    start: u64,
    end: u64,
    from: Ticks,
    to: Ticks,
}

/// The address ranges of mappings, each in its time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MappedRanges(Vec<RangeInTime>);

impl MappedRanges {
    /// Returns the address ranges of the mappings with these numbers.
    ///
    /// # Errors
    /// A message, if the recording has no such mapping.
    pub fn of(maps: &Maps, ids: &[u32]) -> Result<Self, String> {
        if !maps.is_recorded() {
            return Err("--from-map: the recording does not tell of mappings".into());
        }
        if let Some(id) = ids.iter().find(|id| **id >= maps.count()) {
            return Err(format!(
                "--from-map {id}: there is no such mapping; the recording has {}, numbered from 0 on",
                maps.count()
            ));
        }
        let (mut all, mut seen) = (Vec::new(), Vec::new());
        for map in maps.some(ids) {
            for (i, r) in map.regions.iter().enumerate() {
                let end = r.address.saturating_add(r.size);
                let to = r.end.as_ref().map_or(Ticks::MAX, |e| e.ticks);
                // A mapping that was seen is older than the look: since what was there before ended.
                if i == 0 && map.source.is_none() {
                    seen.push(all.len());
                }
                all.push(RangeInTime { start: r.address, end, from: r.begun, to });
            }
        }
        let mut of: Vec<RangeInTime> = seen
            .iter()
            .map(|i| RangeInTime { from: Ticks::ZERO, to: all[*i].from, ..all[*i] })
            .collect();
        before(maps, &mut of);
        seen.iter().zip(of).for_each(|(i, p)| all[*i].from = p.from);
        Ok(Self(all))
    }

    /// Returns whether a block at an address, allocated at a moment, lies in the mappings.
    #[must_use]
    pub fn has(&self, address: u64, ticks: Ticks) -> bool {
        self.0
            .iter()
            .any(|p| (p.start..p.end).contains(&address) && p.from <= ticks && ticks < p.to)
    }
}

/// Sets the beginning of each place to when the last region there ended, before the end of the place.
fn before(maps: &Maps, ranges: &mut [RangeInTime]) {
    if ranges.is_empty() {
        return;
    }
    let mut take = |r: &Region| {
        let Some(e) = &r.end else { return };
        let end = r.address.saturating_add(r.size);
        for p in ranges.iter_mut().filter(|p| r.address < p.end && p.start < end) {
            if e.ticks <= p.to {
                p.from = p.from.max(e.ticks);
            }
        }
    };
    maps.each(|m| m.regions.iter().for_each(&mut take));
    maps.each_past_region(take);
}
