//! Stand-in for what the collector remembers of threads.

use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Known {
    pub next: u64,
    pub gap: (u64, u64),
}

#[derive(Debug, Default)]
pub(crate) struct Threads {
    known: BTreeMap<u32, Known>,
}

impl Threads {
    pub(crate) fn seen(&mut self, serial: u32, _tid: u32) -> &mut Known {
        self.known.entry(serial).or_insert(Known { next: 1, gap: (0, 0) })
    }

    pub(crate) fn left(&mut self, serial: u32) {
        self.known.remove(&serial);
    }
}
