//! Scans that were read: the last ones are kept.

use crate::error::Fault;
use crate::recording::{Recording, Shared, Taken};
use prof_analyze::holds::{BEFORE, Holders, LABEL};
use prof_analyze::live::Names;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// A scan that was read.
pub(crate) struct Loaded {
    pub holders: Holders,
    /// The stacks that were looked up so far.
    pub names: RefCell<Names>,
    _memory: Taken,
}

/// Scans that are kept: two, as they are compared.
const KEPT: usize = 2;

/// The scans that were read last, each with its recording and its place there.
#[derive(Default)]
pub(crate) struct Scans(Vec<(Arc<Recording>, usize, Rc<Loaded>)>);

impl Shared {
    /// Returns a scan of a recording, which `read` reads unless it is kept; that takes so much memory at most.
    pub(crate) fn scan(
        &self,
        of: &Arc<Recording>,
        index: usize,
        weight: u64,
        read: impl FnOnce() -> Result<Holders, Fault>,
    ) -> Result<Rc<Loaded>, Fault> {
        let kept = &mut self.scans.borrow_mut().0;
        if let Some((.., found)) = kept.iter().find(|s| Arc::ptr_eq(&s.0, of) && s.1 == index) {
            return Ok(found.clone());
        }
        // An older scan is dropped before another one is read, so that both are never in memory together.
        kept.truncate(KEPT - 1);
        let _memory = self.take(weight)?;
        let holders = read()?;
        let mut names = Names::default();
        names.put_note(BEFORE, LABEL);
        let loaded = Rc::new(Loaded { holders, names: RefCell::new(names), _memory });
        kept.insert(0, (of.clone(), index, loaded.clone()));
        Ok(loaded)
    }
}
