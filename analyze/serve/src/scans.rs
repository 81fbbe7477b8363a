//! Scans that were read: the last ones are kept, as a page asks one thing after the other of them.

use crate::reply::Failure;
use crate::work::lock;
use prof_analyze::Analysis;
use prof_analyze::holds::{self, BEFORE, Holders, HoldsError, LABEL};
use prof_analyze::live::Names;
use std::sync::{Arc, Mutex, MutexGuard};

/// Bytes of scans that are kept. The last one is kept however large it is, and so are two that are compared.
const KEPT: u64 = 1 << 30;
/// Bytes of a scan that is read at all.
const MOST: u64 = 4 << 30;

/// A scan that was read.
pub(crate) struct Kept {
    pub holders: Holders,
    names: Mutex<Names>,
    weight: u64,
}

impl Kept {
    /// Returns the names of stacks that were looked up so far.
    pub(crate) fn names(&self) -> MutexGuard<'_, Names> {
        lock(&self.names)
    }
}

/// The scans, each with the generation of its recording and its place there; those asked for last come first.
#[derive(Default)]
pub(crate) struct Scans(Mutex<Vec<(u64, usize, Arc<Kept>)>>);

impl Scans {
    /// Returns a scan, which is read if it is not kept. One is read at a time.
    pub(crate) fn get(
        &self,
        analysis: &Analysis,
        generation: u64,
        index: usize,
    ) -> Result<Arc<Kept>, Failure> {
        let mut all = lock(&self.0);
        let found = all.iter().position(|s| (s.0, s.1) == (generation, index));
        if let Some(at) = found {
            let found = all.remove(at);
            all.insert(0, found);
            return Ok(all[0].2.clone());
        }
        let weight = analysis.meta().scans.get(index).map_or(0, prof_analyze::load::ScanAt::weight);
        if weight > MOST {
            return Err(Failure::new(
                422,
                format!(
                    "the scan has more than the {} GiB of blocks and pointers that the server reads; `prof holds FILE \
                     --scan {}` shows it",
                    MOST >> 30,
                    index + 1
                ),
            ));
        }
        // Older scans are dropped before another one is read, so that both are never over the limit together. One stays, to
        // compare with.
        while all.len() > 1 && all.iter().map(|s| s.2.weight).sum::<u64>() + weight > KEPT {
            all.pop();
        }
        let holders = holds::read(analysis, index).map_err(|e| match e {
            HoldsError::Cancelled => Failure::gone(),
            HoldsError::Unusable(why) => Failure::new(422, why),
        })?;
        let mut names = Names::default();
        names.put_note(BEFORE, LABEL);
        let kept = Arc::new(Kept { holders, names: Mutex::new(names), weight });
        all.insert(0, (generation, index, kept.clone()));
        Ok(kept)
    }
}
