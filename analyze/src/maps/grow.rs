//! Finds mappings that only grow.

use super::data::Shower;
use super::owned::{Owned, is_of_allocator};
use super::{Kind, Map, Maps};
use crate::index::{Index, ScanError};
use crate::report::FrameData;
use prof_trace::ticks::Ticks;
use serde::Serialize;

/// Least growth that is told, in bytes.
const LEAST: u64 = 1 << 20;
/// Least number of times that the use of a mapping must have changed.
const LOOKS: usize = 3;

/// A mapping whose resident memory only grew.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GrowingMap {
    /// Number of the mapping.
    pub id: u32,
    /// Path or name of the mapping.
    pub name: String,
    /// Kind of the mapping.
    pub kind: Kind,
    /// Bytes of address space.
    pub size: u64,
    /// Resident bytes when seen last.
    pub rss: u64,
    /// By how many bytes that grew since it was seen first.
    pub grown_bytes: u64,
    /// Time from the first look to the last growth, in nanoseconds.
    pub grown_ns: u64,
    /// The stack that made it, innermost first; empty if it was seen, not caught.
    pub frames: Vec<FrameData>,
}

/// Returns by how many bytes a mapping grew, if it did so all the time, and in the second half of the time, too.
fn growth(m: &Map, end: Ticks) -> Option<u64> {
    let (first, last) = (m.usage.first()?, m.usage.last()?);
    let grown = last.rss.checked_sub(first.rss)?;
    let steady = m.usage.is_sorted_by_key(|u| u.rss) && m.usage.len() >= LOOKS;
    let half = first.ticks + end.since(first.ticks) / 2;
    (steady && grown >= LEAST && last.ticks >= half).then_some(grown)
}

/// Returns the mappings that only grew and are not the allocator's, which `prof leaks` judges by its blocks; those that
/// grew most first.
///
/// # Errors
/// If the index can't be read.
pub fn growing(index: &Index, maps: &Maps) -> Result<Vec<GrowingMap>, ScanError> {
    let analysis = index.analysis();
    let end = analysis.end_ticks();
    let mut found: Vec<(u64, &Map)> = Vec::new();
    let kinds = [Kind::Anonymous, Kind::Shared, Kind::File];
    for m in maps.live().iter().filter(|m| kinds.contains(&m.kind)) {
        found.extend(growth(m, end).map(|g| (g, m)));
    }
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let owned = Owned::of(index)?;
    let mut shower = Shower::new(analysis);
    let mut all = Vec::new();
    for (grown_bytes, m) in found {
        let frames = shower.frames(m.source.map_or(0, |s| s.node));
        let theirs = owned.of_map(m).1;
        if is_of_allocator(&frames) || theirs > m.last_usage().rss / 2 {
            continue;
        }
        let clock = &analysis.meta().clock;
        let ticks = |u: Option<&super::Usage>| u.map_or(Ticks::ZERO, |u| u.ticks);
        all.push(GrowingMap {
            id: m.id,
            name: crate::style::printable(&m.name),
            kind: m.kind,
            size: m.size,
            rss: m.last_usage().rss,
            grown_bytes,
            grown_ns: clock.between(ticks(m.usage.first()), ticks(m.usage.last())),
            frames,
        });
    }
    all.sort_by_key(|g| std::cmp::Reverse(g.grown_bytes));
    Ok(all)
}
