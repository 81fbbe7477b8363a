//! The sums over all mappings, in columns of a timeline.

use super::{Kind, Maps, Totals};
use crate::heap::Extent;
use crate::load::Clock;
use crate::query::{Band, Span};
use prof_trace::ticks::Ticks;

/// The sums over all mappings but prof's own over time, in bytes. Each band has a value for each column of the span. A
/// column without a look has the value of the one before; those before the first look have that of the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapsTimeline {
    /// Address space.
    pub address_space: Band,
    /// Resident.
    pub rss: Band,
    /// Resident and anonymous.
    pub anonymous: Band,
    /// Resident and written to.
    pub dirty: Band,
    /// Resident and as in its file.
    pub clean: Band,
    /// Swapped out.
    pub swap: Band,
    /// In huge pages.
    pub huge: Band,
    /// Resident, by kind; kinds of which nothing ever was resident are left out.
    pub by_kind: Vec<(Kind, Band)>,
}

/// Number of bands but those of the kinds.
const SUMS: usize = 7;

fn values(t: &Totals) -> [u64; SUMS] {
    [t.address_space, t.rss, t.anonymous, t.dirty, t.clean, t.swap, t.huge]
}

impl MapsTimeline {
    /// Returns the bands with their names, which begin with `maps_`.
    #[must_use]
    pub fn bands(&self) -> Vec<(String, &Band)> {
        let sums = [
            ("maps_address_space", &self.address_space),
            ("maps_rss", &self.rss),
            ("maps_anonymous", &self.anonymous),
            ("maps_dirty", &self.dirty),
            ("maps_clean", &self.clean),
            ("maps_swap", &self.swap),
            ("maps_huge", &self.huge),
        ];
        let sums = sums.into_iter().map(|(name, band)| (name.to_owned(), band));
        let kinds = self.by_kind.iter().map(|(k, band)| (format!("maps_kind_{}", k.name()), band));
        sums.chain(kinds).collect()
    }

    /// Returns whether there is a series of this name.
    #[must_use]
    pub fn has_name(name: &str) -> bool {
        let none = Self::default();
        let kind = name.strip_prefix("maps_kind_").and_then(Kind::from_name);
        kind.is_some_and(|k| k != Kind::Prof) || none.bands().iter().any(|b| b.0 == name)
    }
}

/// Returns the band of one value of the sums.
fn band(totals: &[Totals], edges: &[Ticks], value: impl Fn(&Totals) -> u64) -> Band {
    let still = |v: u64| Extent { min: v, max: v, last: v };
    let mut at = totals.partition_point(|t| t.ticks < edges[0]);
    let mut last = value(&totals[at.saturating_sub(1)]);
    let mut band = Band::default();
    for edge in &edges[1..] {
        let mut now: Option<Extent> = None;
        while let Some(t) = totals.get(at).filter(|t| t.ticks < *edge) {
            let next = still(value(t));
            now.get_or_insert(next).follow(&next);
            at += 1;
        }
        let extent = now.unwrap_or(still(last));
        last = extent.last;
        band.push(extent);
    }
    band
}

impl Maps {
    /// Returns the sums over time, if the recording has them. `end` is the last tick of the recording.
    #[must_use]
    pub fn timeline(&self, span: &Span, clock: &Clock, end: Ticks) -> Option<MapsTimeline> {
        let totals = self.totals();
        if totals.is_empty() {
            return None;
        }
        let edges = span.edges(clock, end);
        let sum = |i: usize| band(totals, &edges, |t| values(t)[i]);
        let [address_space, rss, anonymous, dirty, clean, swap, huge] =
            [0, 1, 2, 3, 4, 5, 6].map(sum);
        let there = |k: &Kind| totals.iter().any(|t| t.of(*k) > 0);
        let by_kind = Kind::ALL.into_iter().filter(there);
        let by_kind = by_kind.map(|k| (k, band(totals, &edges, |t| t.of(k)))).collect();
        Some(MapsTimeline { address_space, rss, anonymous, dirty, clean, swap, huge, by_kind })
    }
}
