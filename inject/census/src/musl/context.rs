//! The data of musl's allocator: the areas in which it describes its groups of slots (`struct malloc_context`,
//! `struct meta_area` and `struct meta` in src/malloc/mallocng/meta.h of musl 1.2.1 and later).
//!
//! No symbol is needed to find them. Each area begins with a secret number, which stands in the allocator's variables as
//! well, a few words in front of the address of the first area.

use crate::data::{each_word, segments};
use crate::view::{Memory as _, View, WORD};
use prof_os::maps::Map;
use std::collections::HashSet;
use std::ops::Range;

/// Bytes of an area, and its alignment, whatever the kernel's pages.
pub(super) const AREA: u64 = 4096;
/// Bytes in front of an area's descriptions: the secret, the address of the next area, and how many descriptions it has.
pub(super) const HEAD: u64 = 8 + 2 * WORD;
/// Bytes of a description: three addresses, two masks of four bytes, and a word of small fields.
pub(super) const META: u64 = 4 * WORD + 8;
/// Bytes from the secret to the address of the first area, where the size of a page is a constant. Else it is a word more.
const TO_AREAS: u64 = 16 + 5 * WORD;
/// Greatest length of a segment of data that is searched.
const SEGMENT: u64 = 1 << 30;
/// Greatest number of allocators and of areas that are looked at. Areas of one process describe 10 GiB at least.
const MOST: usize = 4;
const MOST_AREAS: usize = 1 << 22;

/// The variables of one allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    secret: [u8; 8],
    /// Address of the pointer to the first area.
    areas: u64,
}

/// Reads what an area begins with: the secret, and the address of the next area. `None` if it is none.
fn head(view: &mut View<'_>, area: u64) -> Option<([u8; 8], u64)> {
    let bytes = view.all(area..area.checked_add(HEAD)?);
    let bytes: &[u8; HEAD as usize] = bytes.as_slice().try_into().ok()?;
    let (secret, rest) = bytes.split_first_chunk::<8>()?;
    let (next, rest) = rest.split_first_chunk::<{ WORD as usize }>()?;
    let (number, _) = rest.split_first_chunk::<4>()?;
    let is_full = u64::from(u32::from_ne_bytes(*number)) == (AREA - HEAD) / META;
    (is_full && *secret != [0; 8]).then(|| (*secret, usize::from_ne_bytes(*next) as u64))
}

/// Finds the allocators of a process: mostly none or one.
pub(crate) fn find(view: &mut View<'_>, maps: &[Map]) -> Vec<Context> {
    let data = segments(maps).into_iter().filter(|s| s.end - s.start < SEGMENT);
    let mut all: Vec<Context> = data.flat_map(|data| in_data(view, &data)).collect();
    all.truncate(MOST);
    all
}

/// Finds the allocators whose variables lie in a segment of data.
pub(super) fn in_data(view: &mut View<'_>, data: &Range<u64>) -> Vec<Context> {
    let mut found: Vec<Context> = Vec::new();
    each_word(view, data.clone(), |view, at, word| {
        let area = word.is_multiple_of(AREA).then(|| head(view, word)).flatten();
        let Some((secret, _)) = area else { return true };
        let is_one = [TO_AREAS, TO_AREAS + WORD].into_iter().any(|distance| {
            at.checked_sub(distance).is_some_and(|from| view.all(from..from + 8) == secret)
        });
        // The address of the last area stands behind that of the first, which may be damaged. In front of the address of
        // the first stands a small number.
        if is_one && found.iter().all(|c| c.secret != secret) {
            let before = at.checked_sub(WORD).and_then(|at| view.words(at).map(|[word]| word));
            let is_last = before.is_some_and(|word| word >= AREA);
            found.push(Context { secret, areas: if is_last { at - WORD } else { at } });
        }
        found.len() < MOST
    });
    found
}

impl Context {
    #[cfg(test)]
    pub(super) fn new(secret: [u8; 8], areas: u64) -> Self {
        Self { secret, areas }
    }

    /// Returns the place of the pointer to the first area.
    pub(super) fn place(&self) -> Range<u64> {
        self.areas..self.areas + WORD
    }

    /// Returns the areas, each with its contents. `false`: the list of areas makes no sense from some area on.
    pub(super) fn areas(&self, view: &mut View<'_>) -> (Vec<(u64, Vec<u8>)>, bool) {
        let (mut all, mut seen) = (Vec::new(), HashSet::new());
        let Some([mut next]) = view.words(self.areas) else { return (all, false) };
        while next != 0 {
            let is_area = head(view, next).filter(|(secret, _)| *secret == self.secret);
            let Some((_, behind)) = is_area.filter(|_| seen.insert(next) && all.len() < MOST_AREAS)
            else {
                return (all, false);
            };
            let bytes = view.all(next..next + AREA);
            if bytes.len() as u64 != AREA {
                return (all, false);
            }
            all.push((next, bytes));
            next = behind;
        }
        (all, true)
    }
}
