//! Trees of calls. Only what is open is divided further.

use crate::rows::{Column, Data, Key, Order, Row, View, compare};
use prof_analyze::live::Book;
use std::collections::{HashMap, HashSet};

/// Levels that are opened by themselves, as long as there is one call that matters.
const BY_ITSELF: u16 = 24;
/// Deepest level.
const DEEPEST: u16 = 512;

/// The rows of a tree that are open.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Hashes of the paths that were opened by hand.
    open: HashSet<u64>,
    /// Hashes of the paths that were closed by hand.
    closed: HashSet<u64>,
    /// Number of changes.
    changes: u64,
}

struct Part {
    row: Row,
    stacks: Vec<u32>,
}

impl Tree {
    /// Opens or closes a row; returns whether it has changed.
    pub fn set(&mut self, key: Key, open: bool) -> bool {
        let Key::Node(hash) = key else { return false };
        let (to, from) = match open {
            true => (&mut self.open, &mut self.closed),
            false => (&mut self.closed, &mut self.open),
        };
        from.remove(&hash);
        self.changes += 1;
        to.insert(hash)
    }

    /// Returns a number that is another after each change.
    pub fn version(&self) -> u64 {
        self.changes
    }

    /// Returns the rows that are shown, in their order.
    pub(crate) fn rows(
        &self,
        view: View,
        data: &Data<'_>,
        stacks: &[u32],
        order: Order,
    ) -> Vec<Row> {
        let mut out = Vec::new();
        let total: u64 = stacks.iter().map(|i| data.snapshot.stacks[*i as usize].live).sum();
        self.add(view, data, stacks, (view as u64 + 1, 0), total, order, &mut out);
        out
    }

    #[allow(clippy::too_many_arguments)] // one call, of itself
    fn add(
        &self,
        view: View,
        data: &Data<'_>,
        stacks: &[u32],
        (path, depth): (u64, u16),
        total: u64,
        order: Order,
        out: &mut Vec<Row>,
    ) {
        let mut parts = divided(view, data, stacks, path, depth);
        match order.column {
            Column::Name => parts.sort_by(|a, b| {
                let (a, b) = if order.reversed { (b, a) } else { (a, b) };
                data.book.text(a.row.text).cmp(data.book.text(b.row.text))
            }),
            _ => parts.sort_by(|a, b| compare(&a.row, &b.row, order)),
        }
        let lonely = parts.len() == 1;
        for mut part in parts {
            let Key::Node(hash) = part.row.key else { continue };
            let most = part.row.figures.live.saturating_mul(10) >= total.saturating_mul(8);
            let by_itself = depth < BY_ITSELF && (lonely || (most && total > 0));
            let open = !self.closed.contains(&hash) && (self.open.contains(&hash) || by_itself);
            let deeper = depth + 1 < DEEPEST
                && part.stacks.iter().any(|i| frame(view, data.book, *i, depth + 1).is_some());
            part.row.open = deeper.then_some(open);
            let live = part.row.figures.live;
            out.push(part.row);
            if deeper && open {
                self.add(view, data, &part.stacks, (hash, depth + 1), live, order, out);
            }
        }
    }
}

/// Returns the frame of a stack at a depth of the tree.
fn frame(view: View, book: &Book, stack: u32, depth: u16) -> Option<u32> {
    let s = book.stack(stack)?;
    let depth = depth as usize;
    let inner = s.asker.min(s.frames.len());
    match view {
        View::Tree => {
            let at = s.frames.len().checked_sub(depth + 1)?;
            (at >= inner).then(|| s.frames[at])
        }
        _ => s.frames.get(inner + depth).copied(),
    }
}

fn divided(view: View, data: &Data<'_>, stacks: &[u32], path: u64, depth: u16) -> Vec<Part> {
    let mut at: HashMap<u32, usize> = HashMap::new();
    let mut parts: Vec<Part> = Vec::new();
    let mut most: Vec<Option<u64>> = Vec::new();
    for &i in stacks {
        let found = frame(view, data.book, i, depth);
        let text = match found {
            Some(f) => data.book.function(f),
            None if depth == 0 => u32::MAX,
            None => continue,
        };
        let n = *at.entry(text).or_insert_with(|| {
            let row = Row { text, frame: found, depth, ..Row::new(Key::Node(mixed(path, text))) };
            parts.push(Part { row, stacks: Vec::new() });
            most.push(None);
            parts.len() - 1
        });
        let figures = &data.snapshot.stacks[i as usize];
        let grown = data.baseline.stack(i as usize, figures.live);
        parts[n].row.add(i, figures, grown, &mut most[n]);
        parts[n].stacks.push(i);
    }
    parts
}

/// Returns the hash of a path with one more step.
fn mixed(path: u64, text: u32) -> u64 {
    let x = (path ^ u64::from(text).wrapping_add(0x9e37_79b9_7f4a_7c15))
        .wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^ (x >> 32)
}
