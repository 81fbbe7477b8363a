//! The links of lists of free blocks, which stand in the blocks.

use super::context::PAGE;
use crate::view::{Memory as _, View, WORD, words};

/// Size of blocks up to which the page of one is read as a whole: lists mostly stay on it for long.
const TOGETHER: u64 = 512;

/// Reads links, page by page.
#[derive(Debug, Default)]
pub(super) struct Links {
    page: u64,
    bytes: Vec<u8>,
}

impl Links {
    /// Returns the block that follows a free one of this size on its list, 0 if none.
    pub(super) fn next(&mut self, view: &mut View<'_>, at: u64, size: u64) -> Option<u64> {
        if size > TOGETHER {
            return view.words(at).map(|[link]| link);
        }
        let page = at >> PAGE << PAGE;
        if page != self.page || self.bytes.is_empty() {
            (self.page, self.bytes) = (page, view.all(page..page.checked_add(1 << PAGE)?));
        }
        let from = usize::try_from(at - page).ok()?;
        words(self.bytes.get(from..from + WORD as usize)?).next()
    }
}
