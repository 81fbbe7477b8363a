//! Folds the oldest part of a recording: of the blocks that ended there only the figures stay.
//!
//! The part up to a pass of the collector is replayed twice: all of its events, and those of the blocks that were live at
//! the end of it. What the second replay counts less than the first is what a reader of the new recording would count too
//! little, so it is saved (FOLDED). Behind that stand the events of the blocks that were live, the events that the order
//! between threads had left for later, and what the threads' next events rely on (FOLD_END). The rest of the recording can
//! be appended as it is.

use super::RewriteError;
use super::add_up::{add_up, is_of_figures};
use super::kept::Kept;
use super::out::Out;
use super::thin::History;
use crate::heap::{Block, End, Fate, NOWHERE, Replay, Watch};
use crate::load::{ChunkFile, Item, LoadOptions, Op, OpKind, Sink, Stream};
use prof_trace::derived::Zipped;
use prof_trace::event::Event;
use prof_trace::records::{FoldEnd, Folded, Thread, ThreadsLeft, kind};
use prof_trace::size::Header;
use prof_trace::ticks::Ticks;
use std::collections::HashSet;
use std::io::Write;
use std::path::Path;

/// Result of folding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fold {
    /// Number of blocks of which only the figures stay, by this and by all earlier folds.
    pub blocks: u64,
    /// Number of blocks that were live at the end of the folded part.
    pub live: u64,
    /// Offset in the recording behind the folded part: what stands there may be appended to the output as it is.
    pub cut: u64,
    /// Length of the output.
    pub bytes: u64,
}

/// Writes the oldest part of a recording to `out`, folded: all but about its last `keep` bytes. Of one that has figures
/// alone the oldest figures are added up.
///
/// # Errors
/// If the recording can't be read, or has nothing that can be folded; if the output can't be written.
pub fn fold(path: &Path, keep: u64, out: &mut dyn Write) -> Result<Fold, RewriteError> {
    if is_of_figures(path)? {
        let [cut, bytes] = add_up(path, keep, out)?;
        return Ok(Fold { cut, bytes, ..Fold::default() });
    }
    let history = History::read(path)?;
    let (cut, until) = history.cut(keep).ok_or_else(|| {
        RewriteError::Different(format!(
            "{} has too little in front of its last {keep} bytes to be folded",
            path.display()
        ))
    })?;
    let mut stream = Stream::open(path, &LoadOptions::default())?;
    let mut all = Replay::new(Halves::default());
    let left = cut.saturating_sub(stream.bytes_read());
    stream.advance_by(left, &mut all)?;
    stream.pass_on(until, &mut all)?;
    let meta = stream.meta();
    if meta.stripped.is_some() || meta.census.is_some() {
        return Err(RewriteError::Different(format!(
            "{} has figures of blocks that are not in it, or blocks from before (--cull, --aggregate, --census, \
             prof strip), so it can't be folded",
            path.display()
        )));
    }
    let halved = stream.halved();
    let live = live_at(&all, &halved);
    let mut of_live = Replay::new(Halves::default());
    let target = &meta.target;
    of_live.begin(&target.capture(), target.early);
    live.iter().for_each(|l| of_live.take(&l.ops(&all)));
    for (time, addr) in halved.iter().filter_map(|i| all.watch().half(*i)) {
        of_live.take(&[end_of(time, addr, halved_thread(&all, &halved, addr))]);
    }
    let folds = meta.folded.as_ref().map_or(0, |f| f.folds) + 1;
    let about = Folded { folds, until, ..Folded::default() };
    let folded = all.folded(&of_live, &about);
    let mut w = Writer {
        to: Out::folded(out)?,
        kept: Kept::default(),
        passes: Vec::new().into_iter().peekable(),
        stream_threads: Vec::new(),
        left: threads_left(&history.left(cut), &stream, &live),
    };
    let counters = w.describe(path, cut, &history, &folded)?;
    w.stream_threads = (0..).map_while(|i| stream.thread_of(i)).collect();
    for l in &live {
        w.live(l, &all)?;
    }
    w.mark_others(&all, &halved, until)?;
    w.later(&mut stream, &all, &halved)?;
    let events = stream.recorded().unwrap_or(0);
    w.finish(&stream, FoldEnd { folds, cut, threads: Vec::new(), events }, counters)?;
    let blocks = folded.first().map_or(0, |f| f.blocks);
    Ok(Fold { blocks, live: live.len() as u64, cut, bytes: w.to.bytes })
}

/// Notes which blocks `realloc` returned, and the first halves of reallocations.
#[derive(Default)]
struct Halves {
    /// By thread index: time and address of the block that the thread has passed to `realloc`, and the block if it was
    /// known.
    open: Vec<Option<(Ticks, u64, Option<Block>)>>,
}

impl Halves {
    fn set(&mut self, thread_index: u32, half: Option<(Ticks, u64, Option<Block>)>) {
        let at = thread_index as usize;
        if at >= self.open.len() {
            self.open.resize(at + 1, None);
        }
        self.open[at] = half;
    }

    fn of(&self, thread_index: u32) -> Option<(Ticks, u64, Option<Block>)> {
        self.open.get(thread_index as usize).copied().flatten()
    }

    /// Returns time and address of the block that a thread has passed to `realloc`.
    fn half(&self, thread_index: u32) -> Option<(Ticks, u64)> {
        self.of(thread_index).map(|(time, addr, _)| (time, addr))
    }
}

impl Watch for Halves {
    #[inline(always)]
    fn notes(&self, op: &Op) -> bool {
        op.kind == OpKind::ReallocNew
    }

    fn begin(&mut self, op: &Op) {
        self.set(op.thread_index, None);
    }

    fn found(&mut self, _: u32, _: &Op) {}

    #[inline(always)]
    fn end(&mut self, addr: u64, block: &Block, end: End) {
        if end.fate == Fate::Reallocated {
            self.set(end.thread_index, Some((end.time, addr, Some(*block))));
        }
    }

    fn unknown(&mut self, op: &Op) {
        if op.kind == OpKind::ReallocOld {
            self.set(op.thread_index, Some((op.time, op.addr, None)));
        }
    }

    fn before(&mut self, _: &Op) {}
}

/// A block that was live at the end of the folded part.
#[derive(Clone, Copy, Debug)]
struct Lives {
    addr: u64,
    block: Block,
}

impl Lives {
    /// Returns the operations that begin it.
    fn ops(&self, all: &Replay<Halves>) -> Vec<Op> {
        let b = &self.block;
        let (size, header) = b.sized().decode();
        let op = Op {
            time: b.time,
            addr: self.addr,
            size,
            node: all.nodes().get(b.group as usize).copied().unwrap_or(0),
            thread_index: b.thread_index,
            kind: if b.is_noted() { OpKind::ReallocNew } else { OpKind::Alloc },
            header: header.map_or(0, Header::code),
            rate: b.rate(),
        };
        match op.kind {
            OpKind::ReallocNew => vec![end_of(op.time, NOWHERE, op.thread_index), op],
            _ => vec![op],
        }
    }
}

/// Returns the operation by which a thread passes a block to `realloc`.
fn end_of(time: Ticks, addr: u64, thread_index: u32) -> Op {
    let kind = OpKind::ReallocOld;
    Op { time, addr, size: 0, node: 0, thread_index, kind, header: 0, rate: 0 }
}

/// Returns the thread that is in the midst of a reallocation of the block at an address.
fn halved_thread(all: &Replay<Halves>, halved: &[u32], addr: u64) -> u32 {
    let of = |i: &&u32| all.watch().half(**i).is_some_and(|h| h.1 == addr);
    halved.iter().find(of).copied().unwrap_or(0)
}

/// Returns the blocks that are live, by time, and those of which only the first half of a reallocation is replayed.
fn live_at(all: &Replay<Halves>, halved: &[u32]) -> Vec<Lives> {
    let mut live: Vec<Lives> = all.live().map(|(addr, block)| Lives { addr, block }).collect();
    let half = |i: &u32| {
        let (_, addr, block) = all.watch().of(*i)?;
        Some(Lives { addr, block: block? })
    };
    live.extend(halved.iter().filter_map(half));
    live.sort_by_key(|l| (l.block.time, l.addr));
    live
}

/// Writes the new recording.
struct Writer<'a> {
    to: Out<'a>,
    kept: Kept,
    /// The passes that stay, with their ticks.
    passes: std::iter::Peekable<std::vec::IntoIter<(Ticks, Vec<u8>)>>,
    /// The numbers of the threads, by thread index.
    stream_threads: Vec<u32>,
    left: Left,
}

/// Threads that have ended in the folded part.
struct Left {
    /// Threads of which the new recording has nothing.
    gone: HashSet<u32>,
    /// Threads that have live blocks, or events whose order was not final.
    stay: Vec<u64>,
}

/// Returns which of the threads that have ended have something left in the new recording, and which not.
fn threads_left(ended: &HashSet<u32>, stream: &Stream, live: &[Lives]) -> Left {
    let busy = live.iter().map(|l| l.block.thread_index).chain(stream.waiting());
    let busy: HashSet<u32> = busy.filter_map(|i| stream.thread_of(i)).collect();
    let (stay, gone): (Vec<u32>, Vec<u32>) = ended.iter().partition(|n| busy.contains(n));
    let mut stay: Vec<u64> = stay.into_iter().map(u64::from).collect();
    stay.sort_unstable();
    Left { gone: gone.into_iter().collect(), stay }
}

impl Writer<'_> {
    /// Copies what is no event from in front of `cut`, and adds the figures behind the description of the target.
    /// Returns the last counters.
    fn describe(
        &mut self,
        path: &Path,
        cut: u64,
        history: &History,
        folded: &[Folded],
    ) -> Result<Option<Vec<u8>>, RewriteError> {
        let mut file = ChunkFile::open(path)?;
        let stays = history.stays(cut);
        let (mut passes, mut counters, mut failed) = (Vec::new(), None, None);
        let mut first = true;
        while file.position() < cut {
            let at = file.position();
            if file.pass_over(&[kind::EVENTS, kind::PACKED])? {
                continue;
            }
            let Item::Chunk(kind, payload, _) = file.next()? else { break };
            let zipped = Zipped::decode(payload).filter(|_| kind == kind::ZIPPED);
            match zipped.as_ref().map_or(kind, |z| z.kind) {
                kind::EVENTS | kind::PACKED | kind::FOLDED | kind::FOLD_END | kind::END => {}
                kind::COUNTERS => counters = Some(payload.to_vec()),
                kind::FOLD_FAILED => failed = Some(payload.to_vec()),
                kind::PASS => {
                    if let Some(ticks) = stays.pass(at) {
                        passes.push((ticks, payload.to_vec()));
                    }
                }
                // One chunk names those that stay.
                kind::THREADS_LEFT => {}
                kind::THREAD
                    if self
                        .is_gone(zipped.and_then(|z| z.unzip()).as_deref().unwrap_or(payload)) => {}
                _ if stays.drops(at) => {}
                _ => self.to.put_zipped(kind, payload)?,
            }
            if std::mem::take(&mut first) {
                for part in folded {
                    self.to.put_zipped(kind::FOLDED, &part.encode())?;
                }
            }
        }
        // Each names those before it, so the last is enough.
        if let Some(failed) = failed {
            self.to.put_before(kind::FOLD_FAILED, &failed)?;
        }
        passes.sort_by_key(|p| p.0);
        self.passes = passes.into_iter().peekable();
        Ok(counters)
    }

    /// Returns whether a thread, which this describes, has nothing in the new recording.
    fn is_gone(&self, payload: &[u8]) -> bool {
        Thread::decode(payload).is_some_and(|t| self.left.gone.contains(&t.number))
    }

    /// Adds the event that begins a block that was live.
    fn live(&mut self, l: &Lives, all: &Replay<Halves>) -> Result<(), RewriteError> {
        let ops = l.ops(all);
        let Some(op) = ops.last() else { return Ok(()) };
        self.begin(op, (NOWHERE, op.time))
    }

    /// Adds the beginning of a block; `old` is address and time of the block that was passed to `realloc`.
    fn begin(&mut self, op: &Op, (old, time_before): (u64, Ticks)) -> Result<(), RewriteError> {
        let Op { time, addr, node, thread_index, .. } = *op;
        let size = self.kept.sized(thread_index, op.size, op.header, op.rate);
        let event = match op.kind {
            OpKind::ReallocNew => Event::Realloc { time_before, time, old, addr, size, node },
            _ => Event::Alloc { time, addr, size, node },
        };
        self.put(thread_index, event)
    }

    /// Says of the threads whose last event was left out that it was: a block that such a thread frees next would seem
    /// to be temporary.
    fn mark_others(
        &mut self,
        all: &Replay<Halves>,
        halved: &[u32],
        until: Ticks,
    ) -> Result<(), RewriteError> {
        let time = Ticks(until.0.saturating_sub(1));
        for (thread_index, thread) in (0..).zip(self.stream_threads.clone()) {
            if self.left.gone.contains(&thread) {
                continue;
            }
            let seems = self.kept.newest(thread_index);
            let is = all.newest_of(thread_index);
            if seems != 0 && seems != is && !halved.contains(&thread_index) {
                self.put(thread_index, Event::Free { time, addr: NOWHERE, node: 0 })?;
            }
        }
        Ok(())
    }

    /// Adds the events of the folded part that are not older than its end.
    fn later(
        &mut self,
        stream: &mut Stream,
        all: &Replay<Halves>,
        halved: &[u32],
    ) -> Result<(), RewriteError> {
        let mut old = vec![None; self.stream_threads.len()];
        for i in halved {
            if let Some(to) = old.get_mut(*i as usize) {
                *to = all.watch().half(*i).map(|(time, addr)| (addr, time));
            }
        }
        let mut later = Later { to: self, old, failed: None };
        stream.finish(&mut later)?;
        later.failed.map_or(Ok(()), Err)
    }

    fn put(&mut self, thread_index: u32, event: Event) -> Result<(), RewriteError> {
        while let Some((_, pass)) = self.passes.next_if(|p| p.0 <= event.time()) {
            self.write()?;
            self.to.put(kind::PASS, &pass)?;
        }
        // The events themselves tell which blocks are temporary: from the end of the folded part on all of them are here.
        if self.kept.add(thread_index, event, 0, true) { self.write() } else { Ok(()) }
    }

    /// Writes what was added, thread by thread.
    fn write(&mut self) -> Result<(), RewriteError> {
        let (threads, to) = (&self.stream_threads, &mut self.to);
        self.kept.write(|thread_index, events| {
            let thread = threads.get(thread_index as usize).copied().unwrap_or(0);
            Ok(to.events(thread, events)?)
        })
    }

    /// Writes what is left, and the end of the folded part.
    fn finish(
        &mut self,
        stream: &Stream,
        mut end: FoldEnd,
        counters: Option<Vec<u8>>,
    ) -> Result<(), RewriteError> {
        self.write()?;
        for (_, pass) in self.passes.by_ref() {
            self.to.put(kind::PASS, &pass)?;
        }
        for (i, (header, rate, last)) in (0..).zip(stream.carried()) {
            let thread = stream.thread_of(i).unwrap_or(0);
            if self.left.gone.contains(&thread) {
                continue;
            }
            let numbers = [u64::from(thread), u64::from(header), u64::from(rate), last.0];
            end.threads.extend(numbers);
        }
        if let Some(counters) = counters {
            self.to.put(kind::COUNTERS, &counters)?;
        }
        // All events of these threads stand in front of this.
        if !self.left.stay.is_empty() {
            let numbers = std::mem::take(&mut self.left.stay);
            self.to.put_zipped(kind::THREADS_LEFT, &ThreadsLeft { numbers }.encode())?;
        }
        Ok(self.to.put(kind::FOLD_END, &end.encode())?)
    }
}

/// Passes operations on as events.
struct Later<'a, 'b> {
    to: &'a mut Writer<'b>,
    /// By thread index: address and time of the block that the thread has passed to `realloc`.
    old: Vec<Option<(u64, Ticks)>>,
    failed: Option<RewriteError>,
}

impl Later<'_, '_> {
    fn add(&mut self, op: &Op) -> Result<(), RewriteError> {
        let Op { time, addr, node, thread_index, .. } = *op;
        let old = self.old.get_mut(thread_index as usize);
        match op.kind {
            OpKind::Alloc => self.to.begin(op, (NOWHERE, time)),
            OpKind::ReallocNew => {
                let half = old.and_then(Option::take).unwrap_or((NOWHERE, time));
                self.to.begin(op, half)
            }
            OpKind::Free => self.to.put(thread_index, Event::Free { time, addr, node }),
            OpKind::ReallocOld => {
                if let Some(old) = old {
                    *old = Some((addr, time));
                }
                Ok(())
            }
            OpKind::Found => Ok(()),
        }
    }
}

impl Sink for Later<'_, '_> {
    fn take(&mut self, ops: &[Op]) {
        for op in ops {
            if self.failed.is_none() {
                self.failed = self.add(op).err();
            }
        }
    }
}
