//! What the kernel counts as resident, taken apart.

use super::pages::Found;
use prof_trace::records::{Memory, map_kind};
use serde::Serialize;

/// Resident memory, taken apart: `rss_bytes` = `live_bytes` + `beside_bytes` - `not_resident_bytes` + `before_bytes`
/// + `slack_bytes` + all of `maps` but heap and anonymous + `unexplained_bytes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Bytes of the resident set.
    pub rss_bytes: u64,
    /// Bytes of live blocks on the heap, as asked for.
    pub live_bytes: u64,
    /// Bytes beside them on their pages: the allocator's own, free ones, blocks from before the attach.
    pub beside_bytes: u64,
    /// Bytes of those pages that are not resident: never written to, or swapped out.
    pub not_resident_bytes: u64,
    /// Resident bytes of other pages of the heap, as far as they can be from before the attach: no more than
    /// were resident then.
    pub before_bytes: u64,
    /// The rest of those: kept by the allocator, though nothing that was recorded is on them.
    pub slack_bytes: u64,
    /// Bytes of live blocks that are not on the heap; they are in the mappings below.
    pub elsewhere_bytes: u64,
    /// All mappings, by kind.
    pub maps: Vec<MapData>,
    /// What mappings don't account for; negative if they have more.
    pub unexplained_bytes: i64,
    /// Bytes that are swapped out.
    pub swap_bytes: u64,
}

/// Mappings of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MapData {
    /// `heap`, `anonymous`, `stacks`, `files`, `prof`, `other`.
    pub kind: &'static str,
    /// Bytes of address space.
    pub size_bytes: u64,
    /// Resident bytes.
    pub rss_bytes: u64,
}

/// Bytes of the mappings that allocators take memory from.
fn heap_rss(m: &Memory) -> u64 {
    m.heaps.as_chunks::<3>().0.iter().fold(0u64, |sum, h| sum.saturating_add(h[2]))
}

/// Takes a moment apart, given what is on the pages then.
pub(super) fn account(m: &Memory, first: Option<&Memory>, found: &Found, page: u64) -> Account {
    let (mut beside_all, mut missing, mut other) = (0u64, 0u64, 0u64);
    let mut on_heap = 0u64;
    for &[start, end, rss] in m.heaps.as_chunks::<3>().0 {
        let (from, to) = (start / page, end.div_ceil(page));
        let i = found.runs.partition_point(|r| r.end <= from);
        let mut pages = 0u64;
        for r in found.runs[i..].iter().take_while(|r| r.page < to) {
            let n = r.end.min(to).saturating_sub(r.page.max(from));
            pages = pages.saturating_add(n);
            // All of a run, but where it goes on into another mapping.
            let part = u128::from(r.used) * u128::from(n) / u128::from((r.end - r.page).max(1));
            on_heap = on_heap.saturating_add(part as u64);
        }
        let bytes = pages.saturating_mul(page);
        missing = missing.saturating_add(bytes.saturating_sub(rss));
        other = other.saturating_add(rss.saturating_sub(bytes));
        beside_all = beside_all.saturating_add(bytes);
    }
    let on_heap = on_heap.min(found.pages.live_bytes);
    let elsewhere = found.pages.live_bytes - on_heap;
    let before_bytes = first.map_or(0, heap_rss).min(other);
    let maps: Vec<MapData> = m
        .maps
        .as_chunks::<3>()
        .0
        .iter()
        .filter_map(|t| {
            let kind = *map_kind::NAMES.get(usize::try_from(t[0]).ok()?)?;
            Some(MapData { kind, size_bytes: t[1], rss_bytes: t[2] })
        })
        .collect();
    let mapped = maps.iter().map(|m| m.rss_bytes).fold(0, u64::saturating_add);
    Account {
        rss_bytes: m.rss,
        live_bytes: on_heap,
        beside_bytes: beside_all.saturating_sub(on_heap),
        not_resident_bytes: missing,
        before_bytes,
        slack_bytes: other - before_bytes,
        elsewhere_bytes: elsewhere,
        unexplained_bytes: (m.rss as i64).saturating_sub(mapped as i64),
        swap_bytes: m.swap,
        maps,
    }
}
