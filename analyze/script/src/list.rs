//! Lists of blocks: selections in an index, which are only computed when they are needed.

use crate::block::Allocation;
use crate::error::{Fault, fault, of_query, of_scan};
use crate::group::AllocationGroupList;
use crate::recording::{Recording, Rows, Shared};
use prof_analyze::answers::{BlockRow, BlocksAsk, Cursor};
use prof_analyze::index::{Column, ScanError};
use prof_analyze::query::value::time;
use prof_analyze::query::{By, Filter, Query, RowSet, Selection};
use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

/// A list of blocks in the order of time: a filter, on all blocks or on a set of them.
#[derive(Clone)]
pub(crate) struct AllocationList {
    pub(crate) shared: Rc<Shared>,
    pub(crate) of: Arc<Recording>,
    /// The set that the filter is applied to; `None`: all blocks.
    base: Option<Rows>,
    filter: Filter,
    /// Values that are computed when they are first needed. Copies of the list share them.
    made: Rc<Made>,
}

#[derive(Default)]
struct Made {
    rows: OnceCell<Rows>,
    /// The rows in the order of time, of lists that are not too long.
    ordered: OnceCell<Vec<u64>>,
}

/// Greatest number of blocks whose order is kept.
const ORDERED: u64 = 1 << 20;

impl AllocationList {
    pub(crate) fn all(shared: &Rc<Shared>, of: &Arc<Recording>) -> Self {
        Self {
            shared: shared.clone(),
            of: of.clone(),
            base: None,
            filter: Filter::default(),
            made: Rc::default(),
        }
    }

    /// Returns the list of a set of rows.
    pub(crate) fn of_set(&self, set: RowSet) -> Result<Self, Fault> {
        let rows = self.shared.keep(&self.of, set)?;
        let list = Self { base: Some(rows.clone()), ..Self::all(&self.shared, &self.of) };
        // The list has no filter, so that the set is its result as well.
        let _ = list.made.rows.set(rows);
        Ok(list)
    }

    /// Returns the list without blocks.
    pub(crate) fn none(&self) -> Result<Self, Fault> {
        self.of_set(RowSet::none(self.of.index()))
    }

    pub(crate) fn query(&self) -> Result<Query<'_>, Fault> {
        if let Some(rows) = self.made.rows.get() {
            let all = Query::new(self.of.index(), &Filter::default()).map_err(of_query)?;
            return Ok(all.within(rows.set().clone()));
        }
        let query = Query::new(self.of.index(), &self.filter).map_err(of_query)?;
        Ok(match &self.base {
            Some(rows) => query.within(rows.set().clone()),
            None => query,
        })
    }

    /// Returns whether the list has all blocks of the recording.
    fn is_all(&self) -> bool {
        self.base.is_none() && self.filter.is_empty()
    }

    pub(crate) fn rows(&self) -> Result<Rows, Fault> {
        if let Some(rows) = self.made.rows.get() {
            return Ok(rows.clone());
        }
        let rows = self.shared.rows_of(&self.of, &self.query()?)?;
        let _ = self.made.rows.set(rows.clone());
        Ok(rows)
    }

    /// Returns the fields that the list was filtered by, if it was made of all blocks by filters alone.
    pub(crate) fn given(&self) -> &[(&'static str, String)] {
        self.filter.given()
    }

    /// Returns the number of marks of the recording.
    pub(crate) fn marks(&self) -> usize {
        self.of.analysis().meta().marks.len()
    }

    /// Returns the blocks of the list that meet a condition, which is that of the command line's filter.
    pub(crate) fn filtered(&self, field: &str, text: &str) -> Result<Self, Fault> {
        let mut made = Self {
            base: self.base.clone(),
            filter: self.filter.clone(),
            ..Self::all(&self.shared, &self.of)
        };
        // What is known of the list is not computed again.
        if let Some(rows) = self.made.rows.get() {
            (made.base, made.filter) = (Some(rows.clone()), Filter::default());
        }
        if !made.can_meet(field, text)? {
            return self.none();
        }
        made.filter.set(field, text).map_err(|e| fault(e.to_string()))?;
        Ok(made)
    }

    /// Returns whether a block can meet a condition on the time of its allocation. For the command line it is an error
    /// if none can; a list is then empty.
    fn can_meet(&self, field: &str, text: &str) -> Result<bool, Fault> {
        let runtime = self.of.runtime_ns();
        let ns = |text: &str| time(text).map(|t| t.ns(runtime)).map_err(fault);
        let given = |name: &'static str| {
            self.filter.given().iter().filter(move |g| g.0 == name).map(|g| ns(&g.1))
        };
        match field {
            "from" => {
                let from = ns(text)?;
                let mut to = given("to");
                Ok(from <= runtime
                    && to.try_fold(true, |ok, to| Ok::<_, Fault>(ok && to? >= from))?)
            }
            "to" => {
                let to = ns(text)?;
                let mut from = given("from");
                from.try_fold(true, |ok, from| Ok(ok && from? <= to))
            }
            _ => Ok(true),
        }
    }

    fn same(&self, other: &Self) -> Result<(), Fault> {
        if Arc::ptr_eq(&self.of, &other.of) {
            return Ok(());
        }
        Err(fault(
            "the two lists are of different recordings, so that they have no blocks in common",
        ))
    }

    /// Returns the blocks that are in either list.
    pub(crate) fn plus(self, other: Self) -> Result<Self, Fault> {
        self.same(&other)?;
        if self.is_all() || other.is_all() {
            return Ok(if self.is_all() { self } else { other });
        }
        self.of_set(self.rows()?.set().or(other.rows()?.set()))
    }

    /// Returns the blocks that are in this list and not in the other.
    pub(crate) fn minus(self, other: Self) -> Result<Self, Fault> {
        self.same(&other)?;
        self.of_set(self.rows()?.set().minus(other.rows()?.set()))
    }

    /// Returns the blocks that are in both lists.
    pub(crate) fn and(self, other: Self) -> Result<Self, Fault> {
        self.same(&other)?;
        if self.is_all() || other.is_all() {
            return Ok(if self.is_all() { other } else { self });
        }
        self.of_set(self.rows()?.set().and(other.rows()?.set()))
    }

    /// Returns the number of blocks.
    pub(crate) fn count(&self) -> Result<u64, Fault> {
        if self.is_all() {
            // The index of figures alone has no rows, which is not to say that there were no blocks.
            return match self.of.analysis().meta().is_aggregated() {
                true => Err(of_scan(ScanError::NoBlocks)),
                false => Ok(self.of.index().rows()),
            };
        }
        Ok(self.rows()?.len())
    }

    /// Returns the rows in the order of time, if there are not too many.
    pub(crate) fn ordered(&self) -> Result<Option<&[u64]>, Fault> {
        if let Some(rows) = self.made.ordered.get() {
            return Ok(Some(rows));
        }
        if self.count()? > ORDERED {
            return Ok(None);
        }
        let query = self.query()?;
        let state = || (Selection::default(), Vec::new(), Vec::new());
        let states = self.of.index().scan(state, |(selection, begins, found), block| {
            query.select(block, selection)?;
            if selection.rows.is_empty() {
                return Some(());
            }
            block.read(Column::Begin, begins)?;
            let first = block.first_row();
            found.extend(
                selection.rows.iter().map(|i| (begins[*i as usize], first + u64::from(*i))),
            );
            Some(())
        });
        let mut all: Vec<(u64, u64)> =
            states.map_err(of_scan)?.into_iter().flat_map(|s| s.2).collect();
        all.sort_unstable();
        Ok(Some(self.made.ordered.get_or_init(|| all.into_iter().map(|r| r.1).collect())))
    }

    /// Returns a block by its place in the order of time.
    pub(crate) fn at(&self, index: i64) -> Result<Allocation, Fault> {
        let wrong =
            |len: u64| fault(format!("index {index} is out of range: the list has {len} blocks"));
        let Ok(n) = u64::try_from(index) else { return Err(wrong(self.count()?)) };
        let row = match self.ordered()? {
            Some(rows) => rows.get(usize::try_from(n).unwrap_or(usize::MAX)).copied(),
            None => self.query()?.nth(n).map_err(of_scan)?,
        };
        Allocation::of_row(self, row.ok_or_else(|| wrong(self.count().unwrap_or(0)))?)
    }

    pub(crate) fn group_by_backtrace(&self) -> Result<AllocationGroupList, Fault> {
        let groups = self.of.analysis().groups().len();
        let (found, _) = self.query()?.sums(By::Stacks, groups, None).map_err(of_scan)?;
        Ok(AllocationGroupList::new(self.clone(), found))
    }

    /// Returns sums over the list: bytes ever allocated, and bytes and blocks that are live at the end.
    pub(crate) fn sums(&self) -> Result<Sums, Fault> {
        let groups = self.of.analysis().groups().len();
        let (found, _) = self.query()?.sums(By::Stacks, groups, None).map_err(of_scan)?;
        let mut sums = Sums::default();
        for g in found {
            sums.allocated_bytes = sums.allocated_bytes.saturating_add(g.figures.allocated_bytes);
            sums.live_bytes = sums.live_bytes.saturating_add(g.figures.live_bytes);
            sums.live_count += g.figures.live_count;
        }
        Ok(sums)
    }
}

/// Sums over a list.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub allocated_bytes: u64,
    pub live_bytes: u64,
    pub live_count: u64,
}

/// Number of blocks that an iteration reads at a time.
const PAGE: usize = 4096;

/// Goes through the blocks of a list in the order of time.
pub(crate) struct Blocks {
    list: AllocationList,
    page: std::vec::IntoIter<BlockRow>,
    /// Number of blocks read so far, of a list whose order is kept.
    read: usize,
    after: Option<Cursor>,
    ended: bool,
}

impl Blocks {
    /// Reads the next blocks.
    fn fill(&mut self) -> Result<(), Fault> {
        if let Some(rows) = self.list.ordered()? {
            let rows = rows.get(self.read..).unwrap_or_default();
            let rows = &rows[..rows.len().min(PAGE)];
            self.read += rows.len();
            self.ended = rows.is_empty();
            self.page = self.list.of.index().block_rows(rows).map_err(of_scan)?.into_iter();
            return Ok(());
        }
        let count = 16 * PAGE;
        let ask = BlocksAsk { count, after: self.after.take(), ..BlocksAsk::default() };
        let page = self.list.query()?.blocks(&ask).map_err(of_scan)?;
        self.ended = page.next.is_none();
        self.after = page.next;
        self.page = page.blocks.into_iter();
        Ok(())
    }
}

impl Iterator for Blocks {
    type Item = Result<Allocation, Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.page.next() {
                return Some(Ok(Allocation { of: self.list.of.clone(), row }));
            }
            if self.ended {
                return None;
            }
            if let Err(e) = self.fill() {
                self.ended = true;
                return Some(Err(e));
            }
        }
    }
}

impl IntoIterator for AllocationList {
    type Item = Result<Allocation, Fault>;
    type IntoIter = Blocks;

    fn into_iter(self) -> Blocks {
        Blocks { list: self, page: Vec::new().into_iter(), read: 0, after: None, ended: false }
    }
}
