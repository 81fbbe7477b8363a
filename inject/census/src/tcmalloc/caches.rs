//! Free blocks in tcmalloc's central lists, in batches (`CentralFreeList::tc_slots_`), and in the caches of threads
//! (`ThreadCache`), in which spans have them as taken.

use super::Heap;
use super::context::{CENTRAL, Context, LIST, is_cache};
use super::links::Links;
use crate::sums::Sum;
use crate::view::{Memory as _, View, WORD, words};
use std::collections::BTreeSet;

/// Where in a central list its batches begin, and their number stands, and the greatest number of them.
const BATCHES: u64 = 16 * WORD;
const MOST_BATCHES: u64 = 64;
const BATCH: u64 = 2 * WORD;
const NUMBER: u64 = BATCHES + MOST_BATCHES * BATCH;
/// Where in a cache the addresses of the next one and the one before stand: behind 128 lists and six words.
const LINKS: u64 = 128 * LIST + 6 * WORD;
/// Greatest number of caches.
const MOST: usize = 1 << 18;

impl Heap {
    /// Takes the blocks out that are in central lists.
    pub(super) fn take_transfers(&mut self, view: &mut View<'_>, context: &Context) {
        let Some(first) = context.central else { return };
        let (mut transfer, mut links) = (Sum::default(), Links::default());
        for (class, size) in context.sizes.iter().enumerate().skip(1) {
            let list = first + class as u64 * CENTRAL;
            let Some([number]) = view.words(list + NUMBER) else {
                self.links += 1;
                continue;
            };
            let number = number & u64::from(u32::MAX);
            if number > MOST_BATCHES {
                self.links += 1;
                continue;
            }
            for i in 0..number {
                let batch = view.words(list + BATCHES + i * BATCH);
                let Some([head, tail]) = batch else {
                    self.links += 1;
                    break;
                };
                let (n, last) = self.take_list(view, &mut links, (head, *size));
                add(&mut transfer, n, *size);
                self.links += u64::from(last != Some(tail));
            }
        }
        self.transfer = transfer;
    }

    /// Takes the blocks out that are in caches of threads.
    pub(super) fn take_caches(&mut self, view: &mut View<'_>, context: &Context) {
        let mut seen = BTreeSet::new();
        for place in &context.caches {
            let Some([cache]) = view.words(*place) else { continue };
            self.links += u64::from(!all_caches(view, context, cache, &mut seen));
        }
        let (mut cached, mut links) = (Sum::default(), Links::default());
        for cache in &seen {
            let lists = view.all(*cache..*cache + context.sizes.len() as u64 * LIST);
            let lists: Vec<u64> = words(&lists).collect();
            let lists = lists.as_chunks::<{ (LIST / WORD) as usize }>().0;
            self.links += u64::from(lists.len() != context.sizes.len());
            for ([head, length, ..], size) in lists.iter().zip(&context.sizes).skip(1) {
                let (n, last) = self.take_list(view, &mut links, (*head, *size));
                add(&mut cached, n, *size);
                let length = length & u64::from(u32::MAX);
                self.links += u64::from(last.is_none() && *head != 0 || n != length);
            }
        }
        (self.cached, self.caches) = (cached, seen.len() as u64);
    }

    /// Takes the blocks of a list out. Returns their number, and the last one; `None` if a link makes no sense, or there is
    /// none. Each block can be taken out once, so every list ends.
    fn take_list(
        &mut self,
        view: &mut View<'_>,
        links: &mut Links,
        (head, size): (u64, u64),
    ) -> (u64, Option<u64>) {
        let (mut at, mut n, mut last) = (head, 0, None);
        while at != 0 {
            if !self.take_out(at, size) {
                return (n, None);
            }
            let Some(link) = links.next(view, at, size) else {
                return (n + 1, None);
            };
            (n, last, at) = (n + 1, Some(at), link);
        }
        (n, last)
    }
}

fn add(sum: &mut Sum, blocks: u64, size: u64) {
    sum.blocks += blocks;
    sum.bytes += blocks * size;
}

/// Reads the addresses of a cache's neighbours: the next one, and the one before.
fn neighbours(view: &mut View<'_>, cache: u64) -> Option<[u64; 2]> {
    view.words(cache.checked_add(LINKS)?)
}

/// Adds all caches of the list that one belongs to. Returns `false` if a link makes no sense. What only looks like a cache,
/// as that of a thread that has ended, belongs to no list.
fn all_caches(
    view: &mut View<'_>,
    context: &Context,
    cache: u64,
    seen: &mut BTreeSet<u64>,
) -> bool {
    let is_one = cache != 0 && !seen.contains(&cache) && is_cache(view, cache, &context.sizes);
    let ends = is_one.then(|| neighbours(view, cache)).flatten();
    let Some([next, before]) = ends else { return true };
    // Its neighbours lead back to it.
    let follows = before == 0 || neighbours(view, before).is_some_and(|[next, _]| next == cache);
    let leads = next == 0 || neighbours(view, next).is_some_and(|[_, before]| before == cache);
    if !follows || !leads {
        return true;
    }
    seen.insert(cache);
    let mut is_whole = true;
    for (forward, first) in [(true, next), (false, before)] {
        let (mut last, mut at) = (cache, first);
        while at != 0 {
            let is_one = is_cache(view, at, &context.sizes);
            let there = is_one.then(|| neighbours(view, at)).flatten();
            let back = |[next, before]: &[u64; 2]| if forward { *before } else { *next };
            let Some([next, before]) = there.filter(|l| back(l) == last && seen.len() < MOST)
            else {
                is_whole = false;
                break;
            };
            if !seen.insert(at) {
                is_whole = false;
                break;
            }
            (last, at) = (at, if forward { next } else { before });
        }
    }
    is_whole
}
