//! Chooses the mappings that a list shows, without holding the others.

use super::{Map, MapFilter, MapSort, Maps};
use crate::Analysis;

/// The mappings that a list is to show.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageAsk {
    /// Order.
    pub sort: MapSort,
    /// Whether the order is reversed.
    pub reverse: bool,
    /// Number of mappings to pass over.
    pub skip: usize,
    /// Greatest number of mappings to show.
    pub count: usize,
    /// Leave out mappings that have ended.
    pub live: bool,
    /// Leave out prof's own mappings.
    pub without_ours: bool,
}

/// Mappings of a list.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Number of all mappings that were chosen, shown or not.
    pub total: u64,
    /// Number of mappings that were left out as they have ended.
    pub ended: u64,
    /// The mappings to show, with all their regions.
    pub maps: Vec<Map>,
}

/// Number of candidates that are kept beyond those that are asked for, before some are dropped.
const SPARE: usize = 4096;

impl Maps {
    /// Returns a part of the mappings that meet the conditions, in order. Calls `take` with each of them, shown or not.
    pub fn page(
        &self,
        analysis: &Analysis,
        filter: &MapFilter,
        ask: &PageAsk,
        mut take: impl FnMut(&Map),
    ) -> Page {
        let mut has = filter.test(analysis);
        let most = ask.skip.saturating_add(ask.count);
        let (mut page, mut best) = (Page::default(), Vec::new());
        self.each(|m| {
            if (ask.without_ours && m.ours) || !has(m) {
                return;
            }
            if ask.live && m.end.is_some() {
                page.ended += 1;
                return;
            }
            page.total += 1;
            take(m);
            if most == 0 {
                return;
            }
            let (key, id) = (ask.sort.key(m), m.id);
            best.push(if ask.reverse { (!key, !id) } else { (key, id) });
            if best.len() >= most.saturating_mul(2).saturating_add(SPARE) {
                best.select_nth_unstable(most - 1);
                best.truncate(most);
            }
        });
        best.sort_unstable();
        let ids = best.iter().skip(ask.skip).take(ask.count);
        let ids: Vec<u32> = ids.map(|(_, id)| if ask.reverse { !id } else { *id }).collect();
        page.maps = self.some(&ids);
        page
    }
}
