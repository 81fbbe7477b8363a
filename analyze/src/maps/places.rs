//! Says which blocks lie in mappings.

use super::Maps;

/// An address range in a period of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    start: u64,
    end: u64,
    from: u64,
    to: u64,
}

/// The address ranges of mappings, each in its time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places(Vec<Place>);

impl Places {
    /// Returns the places of the mappings with these numbers.
    ///
    /// # Errors
    /// A message, if the recording has no such mapping.
    pub fn of(maps: &Maps, ids: &[u32]) -> Result<Self, String> {
        if !maps.is_recorded() {
            return Err("--from-map: the recording does not tell of mappings".into());
        }
        let mut all = Vec::new();
        for id in ids {
            let map = maps.get(*id).ok_or_else(|| {
                format!(
                    "--from-map {id}: there is no such mapping; the recording has {}, numbered from 0 on",
                    maps.all().len()
                )
            })?;
            for (i, r) in map.regions.iter().enumerate() {
                let end = r.address.saturating_add(r.size);
                let to = r.end.as_ref().map_or(u64::MAX, |e| e.ticks);
                // A mapping that was seen is older than the look: since what was there before ended.
                let seen = i == 0 && map.source.is_none();
                let from = if seen { before(maps, r.address, end, r.begun) } else { r.begun };
                all.push(Place { start: r.address, end, from, to });
            }
        }
        Ok(Self(all))
    }

    /// Returns whether a block at an address, allocated at a moment, lies in the mappings.
    #[must_use]
    pub fn has(&self, address: u64, ticks: u64) -> bool {
        self.0
            .iter()
            .any(|p| (p.start..p.end).contains(&address) && p.from <= ticks && ticks < p.to)
    }
}

/// Returns when the last region at a range ended before a moment.
fn before(maps: &Maps, start: u64, end: u64, ticks: u64) -> u64 {
    let regions = maps.all().iter().flat_map(|m| &m.regions);
    let over = regions.filter(|r| r.address < end && start < r.address.saturating_add(r.size));
    over.filter_map(|r| r.end.as_ref()).map(|e| e.ticks).filter(|t| *t <= ticks).max().unwrap_or(0)
}
