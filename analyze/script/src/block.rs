//! Single blocks.

use crate::backtrace::Backtrace;
use crate::duration::{Duration, Moment};
use crate::error::{Fault, fault, of_scan};
use crate::list::AllocationList;
use crate::recording::Recording;
use prof_analyze::answers::BlockRow;
use std::sync::Arc;

/// A block of memory.
#[derive(Clone)]
pub(crate) struct Allocation {
    pub(crate) of: Arc<Recording>,
    pub(crate) row: BlockRow,
}

impl Allocation {
    pub(crate) fn of_row(list: &AllocationList, row: u64) -> Result<Self, Fault> {
        let found = list.of.index().block_rows(&[row]).map_err(of_scan)?.pop();
        let row = found.ok_or_else(|| fault("the index has no such block"))?;
        Ok(Self { of: list.of.clone(), row })
    }

    pub(crate) fn backtrace(&self) -> Backtrace {
        Backtrace::new(&self.of, self.row.stack)
    }

    pub(crate) fn deallocation_backtrace(&self) -> Backtrace {
        Backtrace::new(&self.of, self.row.end_stack.unwrap_or(0))
    }

    pub(crate) fn allocated_at(&self) -> Duration {
        Duration::of_ns(self.row.begin_ns)
    }

    pub(crate) fn deallocated_at(&self) -> Moment {
        Moment(self.row.end_ns.map(Duration::of_ns))
    }

    /// Returns the name of the thread that allocated it; its id if it has none.
    pub(crate) fn thread(&self) -> String {
        let thread = self.of.analysis().meta().threads.get(&self.row.thread);
        thread.map_or_else(String::new, |t| match t.name.is_empty() {
            true => t.tid.to_string(),
            false => t.name.to_string(),
        })
    }
}
