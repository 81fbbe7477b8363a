//! Chunks that are free though they look as if they were in use: those in caches of threads, and in fast bins.

use crate::chunk::{ALIGN, HEADER, LEAST, State};
use crate::view::{Memory as _, View, WORD};
use crate::walk::Walked;

/// Number of lists of a thread's cache by size: of chunks up to 1040 bytes (64-bit), and since 2.42 also of larger ones.
const SMALL: u64 = 64;
const LARGE: u64 = 12;

/// Layout of a thread's cache, which is a block of its arena: a number for each list, then the lists.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Bytes of a number.
    number: u64,
    lists: u64,
}

/// The layouts since glibc 2.26, 2.30 and 2.42.
const LAYOUTS: [Layout; 3] = [
    Layout { number: 1, lists: SMALL },
    Layout { number: 2, lists: SMALL },
    Layout { number: 2, lists: SMALL + LARGE },
];

impl Layout {
    /// Returns the offset of the first list.
    const fn first(self) -> u64 {
        (self.number * self.lists).next_multiple_of(WORD)
    }

    /// Returns whether a chunk of this size may hold it. A free chunk that is taken for it is not split if what is left would be
    /// less than the smallest chunk.
    const fn fits(self, size: u64) -> bool {
        let least = (self.first() + self.lists * WORD + WORD).next_multiple_of(ALIGN);
        least <= size && size < least + LEAST
    }
}

/// Marks the chunks in the caches of threads. Returns the number of links that make no sense, and adds the addresses of
/// the caches themselves, which are blocks that no program has asked for, to `caches`.
pub(crate) fn mark_cached(view: &mut View<'_>, all: &mut Walked, caches: &mut Vec<u64>) -> u64 {
    let is_one = |size: u64| LAYOUTS.iter().any(|l| l.fits(size));
    let chunks = all.chunks.iter();
    let found: Vec<(u64, u64)> = chunks
        .filter(|c| is_one(c.size()) && c.state() == State::InUse)
        .map(|c| (c.user(), c.size()))
        .collect();
    let (mut broken, mut lists) = (0, Vec::new());
    for (user, size) in found {
        for layout in LAYOUTS.iter().filter(|l| l.fits(size)) {
            let from = user + layout.first();
            lists.clear();
            // There may be millions of blocks of this size, so a window serves many.
            lists.extend((0..layout.lists).map_while(|k| view.word(from + k * WORD, u64::MAX)));
            if are_lists(all, &lists, *layout) {
                caches.push(user);
                let heads = lists.iter().enumerate().filter(|(_, head)| **head != 0);
                for (_, head) in heads {
                    broken += mark_list(view, all, *head, State::Cached);
                }
            }
        }
    }
    broken
}

/// Returns whether words are the lists of a cache: each is empty, or begins with a chunk of its size, or where no chunk is
/// known. One at least begins with a chunk: of a cache without any nothing has to be known.
fn are_lists(all: &Walked, lists: &[u64], layout: Layout) -> bool {
    let fits = |(k, head): (usize, &u64)| {
        if *head == 0 {
            return true;
        }
        let Some(chunk) = all.find(*head).map(|i| all.chunks[i]) else {
            return all.lost.iter().any(|r| r.contains(head));
        };
        let small = (k as u64) < SMALL;
        let size = LEAST + k as u64 * ALIGN;
        chunk.state() != State::Binned
            && if small { chunk.size() == size } else { chunk.size() >= LEAST + SMALL * ALIGN }
    };
    lists.len() as u64 == layout.lists
        && lists.iter().any(|head| all.find(*head).is_some())
        && lists.iter().enumerate().all(fits)
}

/// Marks the chunks in fast bins, given the addresses of their heads. Returns the number of links that make no sense.
pub(crate) fn mark_fast(view: &mut View<'_>, all: &mut Walked, heads: &[u64]) -> u64 {
    let mut broken = 0;
    for head in heads {
        let Some([first]) = view.words(*head) else { continue };
        // The lists lead to headers, not to the program's memory.
        let user = first.saturating_add(HEADER);
        match all.find(user) {
            Some(_) => broken += mark_list(view, all, user, State::Fast),
            // An arena without fast bins has other fields there, which are no addresses.
            None => broken += u64::from(first != 0 && view.words::<2>(first).is_some()),
        }
    }
    broken
}

/// Follows a list from the memory of its first chunk on. Returns 1 if it ends at a link that makes no sense.
fn mark_list(view: &mut View<'_>, all: &mut Walked, head: u64, state: State) -> u64 {
    let mut user = head;
    loop {
        let Some(i) = all.find(user) else { return 1 };
        // A list that leads to itself, or to what is free elsewhere, was changed meanwhile, or is damaged.
        if all.chunks[i].state() != State::InUse {
            return 1;
        }
        all.chunks[i].set(state);
        let Some([link]) = view.words(user) else { return 1 };
        // Since 2.32 a link is combined with its own address.
        let to = |link: u64| match state {
            State::Fast if link != 0 => link.wrapping_add(HEADER),
            _ => link,
        };
        let mixed = link ^ (user >> 12);
        let candidates = [to(mixed), to(link)];
        let next = candidates.into_iter().find(|n| *n == 0 || all.find(*n).is_some());
        match next {
            Some(0) => return 0,
            Some(next) => user = next,
            None => return 1,
        }
    }
}
