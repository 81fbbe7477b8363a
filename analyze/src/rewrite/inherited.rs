//! The blocks that a process has from its parents: those that were live in them when it was forked.

use crate::analysis::read_all;
use crate::load::{LoadOptions, Op, OpKind, Sink, Stream};
use prof_trace::ticks::Ticks;
use std::collections::HashMap;
use std::path::PathBuf;

/// A process from which another was forked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ancestor {
    /// Path of the recording.
    pub path: PathBuf,
    /// When its child was forked, in ticks of the child's clock.
    pub until: Ticks,
}

/// The blocks of one ancestor that its last descendant has.
pub(super) struct Inherited {
    /// The recording, read to the end.
    pub stream: Stream,
    /// The operations by which it got these blocks, in their order.
    pub ops: Vec<Op>,
}

/// Reads the recordings of a process's ancestors, the eldest first. What one has inherited its children have, too, as far as it
/// has not freed it before their fork.
///
/// # Errors
/// If one of them can't be read.
pub(super) fn of(ancestors: &[Ancestor]) -> Result<Vec<Inherited>, crate::Error> {
    let (mut live, mut streams) = (HashMap::new(), Vec::new());
    for (index, ancestor) in ancestors.iter().enumerate() {
        let mut stream = Stream::open(&ancestor.path, &LoadOptions::default())?;
        read_all(&mut stream, &mut Until { index, ticks: ancestor.until, live: &mut live })?;
        streams.push(stream);
    }
    let mut all: Vec<Inherited> =
        streams.into_iter().map(|stream| Inherited { stream, ops: Vec::new() }).collect();
    for (index, op) in live.into_values() {
        all[index].ops.push(op);
    }
    all.iter_mut().for_each(|one| one.ops.sort_by_key(|op| (op.time, op.addr)));
    Ok(all)
}

/// Follows which blocks are live, up to a moment.
struct Until<'a> {
    index: usize,
    ticks: Ticks,
    /// For each block, by address, the ancestor that has allocated it, and how.
    live: &'a mut HashMap<u64, (usize, Op)>,
}

impl Sink for Until<'_> {
    fn take(&mut self, ops: &[Op]) {
        for op in ops.iter().filter(|op| op.time <= self.ticks) {
            match op.kind {
                OpKind::Free | OpKind::ReallocOld => {
                    self.live.remove(&op.addr);
                }
                OpKind::Alloc | OpKind::ReallocNew | OpKind::Found => {
                    self.live.insert(op.addr, (self.index, *op));
                }
            }
        }
    }
}
