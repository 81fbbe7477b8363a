//! Pages of single blocks in any order.

use super::BlockRow;
use crate::Index;
use crate::index::{Block, Column, ScanError};
use crate::query::{Query, Selection};
use prof_trace::ticks::Ticks;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The order of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BlockSort {
    /// By the time when they were allocated.
    #[default]
    Time,
    /// By address.
    Address,
    /// By size.
    Size,
    /// By lifetime; of live blocks up to the end of the recording.
    Lifetime,
}

/// Greatest number of blocks that may be left out in front of a page; a cursor goes further.
pub const MOST_SKIPPED: u64 = 1_000_000;
/// Greatest number of blocks of a page.
pub const MOST_BLOCKS: usize = 100_000;

/// Number of blocks of rows at the end that are looked at first.
const LAST: u64 = 4;
/// Number of rows beyond twice those of a page that a thread keeps before it lowers the limit.
const SOME: usize = 128;

/// A question for blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlocksAsk {
    /// The order.
    pub sort: BlockSort,
    /// The largest first.
    pub descending: bool,
    /// Number of blocks to leave out in front, at most [`MOST_SKIPPED`].
    pub skip: u64,
    /// Greatest number of blocks, at most [`MOST_BLOCKS`].
    pub count: usize,
    /// Leaves out all blocks up to the one that this cursor names.
    pub after: Option<Cursor>,
}

/// A place in an order of blocks. Its text has two hexadecimal numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    key: u64,
    row: u64,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{:x}", self.key, self.row)
    }
}

impl FromStr for Cursor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |t: &str| u64::from_str_radix(t, 16).ok();
        let parts = text.split_once(':').and_then(|(k, r)| Some((number(k)?, number(r)?)));
        let (key, row) = parts.ok_or_else(|| format!("{text:?} is no cursor of a page"))?;
        Ok(Self { key, row })
    }
}

impl Serialize for Cursor {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// A page of blocks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BlockPage {
    /// The blocks.
    pub blocks: Vec<BlockRow>,
    /// Number of all selected blocks.
    pub total: u64,
    /// The place behind the page; `None` if no blocks follow.
    pub next: Option<Cursor>,
}

/// The best rows that a thread has found: sort key and row number, the smallest first.
struct Best {
    selection: Selection,
    columns: [Vec<u64>; 2],
    rows: Vec<(u64, u64)>,
    total: u64,
    /// Number of rows behind the cursor.
    behind: u64,
}

/// The conditions on rows of a page.
struct Wanted<'a> {
    ask: &'a BlocksAsk,
    /// Number of rows that are kept.
    most: usize,
    end: Ticks,
    /// Rows with larger keys can't be on the page.
    limit: AtomicU64,
}

impl Wanted<'_> {
    /// Converts a key and a row so that the first of a page are the smallest.
    fn turned(&self, pair: (u64, u64)) -> (u64, u64) {
        if self.ask.descending { (!pair.0, !pair.1) } else { pair }
    }

    /// Returns the smallest converted key that a block of rows can have.
    fn least(&self, block: &Block<'_>) -> u64 {
        let (min, max) = match self.ask.sort {
            BlockSort::Time => block.range(Column::Begin),
            BlockSort::Address => block.range(Column::Addr),
            BlockSort::Size => block.range(Column::Size),
            // Live blocks have no end, and then nothing is known.
            BlockSort::Lifetime => (0, block.longest()),
        };
        if self.ask.descending { !max } else { min }
    }

    fn keep(&self, rows: &mut Vec<(u64, u64)>) {
        if rows.len() > self.most {
            rows.select_nth_unstable(self.most);
            rows.truncate(self.most);
            let last = rows.iter().map(|r| r.0).max().unwrap_or(u64::MAX);
            self.limit.fetch_min(last, Relaxed);
        }
    }
}

impl Query<'_> {
    /// Returns a page of the selected blocks.
    ///
    /// # Errors
    /// If the index can't be read, or the job of this thread is cancelled.
    pub fn blocks(&self, ask: &BlocksAsk) -> Result<BlockPage, ScanError> {
        let (skip, count) = (ask.skip.min(MOST_SKIPPED) as usize, ask.count.min(MOST_BLOCKS));
        let wanted = Wanted {
            ask,
            most: skip + count,
            end: self.index.analysis().end_ticks(),
            limit: AtomicU64::new(u64::MAX),
        };
        let state = || Best {
            selection: Selection::default(),
            columns: Default::default(),
            rows: Vec::new(),
            total: 0,
            behind: 0,
        };
        self.look_at_the_last(&mut state(), &wanted)?;
        let states = self.index.scan(state, |s, block| self.best(s, block, &wanted))?;
        let (mut rows, mut total, mut behind) = (Vec::new(), 0, 0);
        for s in states {
            rows.extend(s.rows);
            (total, behind) = (total + s.total, behind + s.behind);
        }
        rows.sort_unstable();
        rows.truncate(wanted.most);
        let page: Vec<(u64, u64)> = rows.into_iter().skip(skip).map(|r| wanted.turned(r)).collect();
        let more = behind > wanted.most as u64;
        let next = page.last().filter(|_| more).map(|&(key, row)| Cursor { key, row });
        let numbers: Vec<u64> = page.iter().map(|r| r.1).collect();
        Ok(BlockPage { blocks: self.index.block_rows(&numbers)?, total, next })
    }

    /// Lowers the limit by the last blocks of rows: the blocks of memory that lived longest, and the newest, are there.
    /// With them, most other blocks of rows need not be read.
    fn look_at_the_last(&self, s: &mut Best, wanted: &Wanted<'_>) -> Result<(), ScanError> {
        let blocks = self.index.rows().div_ceil(Index::ROWS_OF_BLOCK);
        for number in blocks.saturating_sub(LAST)..blocks {
            self.index.block_of_rows(number, |block| self.best(s, block, wanted))?;
        }
        wanted.keep(&mut s.rows);
        Ok(())
    }

    fn best(&self, s: &mut Best, block: &mut Block<'_>, wanted: &Wanted<'_>) -> Option<()> {
        let ask = wanted.ask;
        let after = ask.after.map(|c| wanted.turned((c.key, c.row)));
        let far = wanted.least(block) > wanted.limit.load(Relaxed);
        if self.is_all() && far && after.is_none() {
            let rows = block.rows() as u64;
            (s.total, s.behind) = (s.total + rows, s.behind + rows);
            return Some(());
        }
        self.select(block, &mut s.selection)?;
        s.total += s.selection.rows.len() as u64;
        if far || wanted.most == 0 {
            s.behind += s.selection.rows.len() as u64;
            return Some(());
        }
        if s.selection.rows.is_empty() {
            return Some(());
        }
        let [a, b] = &mut s.columns;
        match ask.sort {
            BlockSort::Time => block.read(Column::Begin, a)?,
            BlockSort::Address => block.read(Column::Addr, a)?,
            BlockSort::Size => block.read(Column::Size, a)?,
            BlockSort::Lifetime => {
                block.read(Column::End, a)?;
                block.read(Column::Begin, b)?;
                let end = wanted.end;
                let lived = |(a, b): (&mut u64, &u64)| *a = (*a).min(end.0).saturating_sub(*b);
                a.iter_mut().zip(&*b).for_each(lived);
            }
        }
        let first = block.first_row();
        let limit = wanted.limit.load(Relaxed);
        for &i in &s.selection.rows {
            let row = wanted.turned((a[i as usize], first + u64::from(i)));
            if after.is_some_and(|after| row <= after) {
                continue;
            }
            s.behind += 1;
            if row.0 <= limit {
                s.rows.push(row);
            }
        }
        if s.rows.len() > 2 * wanted.most + SOME {
            wanted.keep(&mut s.rows);
        }
        Some(())
    }
}
