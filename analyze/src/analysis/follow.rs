//! Computes the totals of a recording while it grows.

use super::{Analysis, Source};
use crate::Error;
use crate::aggregate::{Summed, step};
use crate::heap::{Block, Course, Group, Replay, Totals, Watch, restore};
use crate::load::{Kernel, LoadOptions, MapEvent, Meta, Op, OpKind, Sink, Stream};
use crate::query::{Span, Timeline, by_course, resident};
use prof_trace::capture::Capture;
use prof_trace::records::Folded;
use prof_trace::ticks::Ticks;
use std::path::Path;

/// Reads a growing recording incrementally. Its totals describe a moment shortly before the collector's last pass, up
/// to which the order of events is final.
pub struct Follower<W: Watch = ()> {
    stream: Stream,
    replay: Replay<W>,
    /// The figures of a recording without events.
    summed: Option<Box<Summed>>,
}

/// Bytes that are read before [`Follower::poll_until`] asks whether to go on.
const STEP: u64 = 512 << 10;

/// The state of a [`Follower`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of events read, including those that still wait for their turn and are not in `totals`.
    pub events: u64,
    /// Number of events lost.
    pub lost: u64,
    /// Length of the recording in bytes.
    pub bytes: u64,
    /// Figures of all blocks.
    pub totals: Totals,
    /// Whether the recording was finished.
    pub finished: bool,
}

/// An event of a growing recording, as [`Follower::watch`] passes it on.
#[derive(Debug)]
pub enum Seen<'a> {
    /// A block begins or ends. The block that ends, and the node of its stack, are known if it was allocated since the
    /// follower began to read.
    Op(&'a Op, Option<(Block, u32)>),
    /// A call that changes mappings.
    Call(&'a MapEvent),
}

/// Shows each event before it is replayed.
struct Watching<'a, W: Watch, F> {
    replay: &'a mut Replay<W>,
    seen: F,
}

impl<W: Watch, F: FnMut(Seen<'_>)> Sink for Watching<'_, W, F> {
    fn begin(&mut self, capture: &Capture, early: u64) {
        self.replay.begin(capture, early);
    }

    fn fold(&mut self, folded: &Folded) {
        self.replay.fold(folded);
    }

    fn take(&mut self, ops: &[Op]) {
        for op in ops {
            let ends = matches!(op.kind, OpKind::Free | OpKind::ReallocOld);
            let block = if ends { self.replay.block_at(op.addr) } else { None };
            (self.seen)(Seen::Op(op, block));
            self.replay.take(std::slice::from_ref(op));
        }
    }

    fn take_calls(&mut self, calls: &[MapEvent]) {
        calls.iter().for_each(|call| (self.seen)(Seen::Call(call)));
    }
}

impl Follower {
    /// Opens a recording.
    ///
    /// # Errors
    /// If the file can't be read, or is not a recording that this version understands.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::observed(path, ())
    }

    /// Opens a recording at its end: its blocks are those that are allocated from now on. Of what it has by now the
    /// events are passed over, and the other records are read.
    ///
    /// # Errors
    /// If the file can't be read, or is not a recording that this version understands.
    pub fn open_at_end(path: &Path) -> Result<Self, Error> {
        let mut stream = Stream::open_at_end(path, &LoadOptions::default())?;
        stream.follow();
        let mut replay = Replay::default();
        let target = &stream.meta().target;
        replay.begin(&target.capture(), target.early);
        Ok(Self { stream, replay, summed: None })
    }
}

impl<W: Watch> Follower<W> {
    /// Opens a recording whose single blocks `watch` observes.
    ///
    /// # Errors
    /// As [`Follower::open`].
    pub fn observed(path: &Path, watch: W) -> Result<Self, Error> {
        let mut stream = Stream::open(path, &LoadOptions::default())?;
        stream.follow();
        Ok(Self { stream, replay: Replay::new(watch), summed: None })
    }

    /// Returns the observer of single blocks.
    pub fn observer(&self) -> &W {
        self.replay.watch()
    }

    /// Returns the observer of single blocks, to be told something.
    pub fn observer_mut(&mut self) -> &mut W {
        self.replay.watch_mut()
    }

    /// Reads what was added since the last call, so that the state is that of the moment `ticks`. The caller knows that
    /// the collector has written all events from before that moment, also those that no later pass stands behind yet.
    /// Returns `false` if `go_on`, which is asked now and then, has ended it before.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn poll_until(&mut self, ticks: Ticks, go_on: impl Fn() -> bool) -> Result<bool, Error> {
        // This reads up to the present end of the file, and no further: a fast writer must not make it endless. If another
        // file has taken its place, that has the rest.
        if !self.read_up_to_now(&go_on)?
            || self.stream.is_replaced() && !self.read_up_to_now(&go_on)?
        {
            return Ok(false);
        }
        self.stream.pass_on(ticks, &mut self.replay)?;
        self.add_steps()?;
        Ok(true)
    }

    /// Reads up to the present end of the file. Returns `false` if `go_on` has ended it before.
    fn read_up_to_now(&mut self, go_on: &impl Fn() -> bool) -> Result<bool, Error> {
        let read = |stream: &Stream| stream.bytes_read();
        if self.stream.is_over() {
            self.stream.turn_to_new_file()?;
        }
        let goal = read(&self.stream).saturating_add(self.stream.bytes_left());
        while read(&self.stream) < goal {
            if !go_on() {
                return Ok(false);
            }
            let before = read(&self.stream);
            self.stream.advance_by(STEP, &mut self.replay)?;
            if read(&self.stream) == before {
                break;
            }
        }
        Ok(true)
    }

    /// Reads what was added since the last call.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn poll(&mut self) -> Result<Progress, Error> {
        self.stream.advance(&mut self.replay)?;
        let finished = self.stream.meta().end.is_some();
        if finished {
            self.stream.finish(&mut self.replay)?;
        }
        self.add_steps()?;
        Ok(self.progress(finished))
    }

    /// Reads about `most` bytes of what was added, and passes on its events. Operations and calls each come in the order
    /// of time.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn watch(&mut self, most: u64, seen: impl FnMut(Seen<'_>)) -> Result<Progress, Error> {
        let mut sink = Watching { replay: &mut self.replay, seen };
        self.stream.advance_by(most, &mut sink)?;
        let finished = self.stream.meta().end.is_some() && self.stream.bytes_left() == 0;
        if finished {
            self.stream.finish(&mut sink)?;
        }
        self.add_steps()?;
        Ok(self.progress(finished))
    }

    /// Returns the number of bytes that the recording has grown by since the last reading.
    pub fn bytes_left(&self) -> u64 {
        self.stream.bytes_left()
    }

    /// Adds the figures that were read since the last call, of a recording without events.
    fn add_steps(&mut self) -> Result<(), Error> {
        if self.stream.is_anew() {
            self.summed = None;
        }
        let meta = self.stream.meta();
        if !meta.is_aggregated() {
            return Ok(());
        }
        let summed = self.summed.get_or_insert_default();
        let new = meta.steps.get(summed.read..).unwrap_or_default();
        if new.is_empty() {
            return Ok(());
        }
        let file = self.stream.same_file()?;
        for at in new {
            match step(&file, at) {
                Some(step) => summed.add(&step),
                None => summed.read += 1,
            }
        }
        Ok(())
    }

    /// Returns the figures of all blocks.
    fn totals(&self) -> Totals {
        self.summed.as_ref().map_or_else(|| self.replay.totals(), |s| s.totals)
    }

    fn progress(&self, finished: bool) -> Progress {
        let counters = &self.stream.meta().counters;
        Progress {
            events: self.stream.events().max(counters.events),
            lost: counters.lost,
            bytes: self.stream.bytes_read(),
            totals: self.totals(),
            finished,
        }
    }

    /// Returns the records other than events, as far as they were read.
    pub fn meta(&self) -> &Meta {
        self.stream.meta()
    }

    /// Returns the nanoseconds from the start of the recording to the last moment that was read.
    pub fn duration_ns(&self) -> u64 {
        self.meta().clock.ns(self.end_ticks())
    }

    fn end_ticks(&self) -> Ticks {
        self.meta().end_ticks(self.totals().last_ticks)
    }

    /// Returns the figures of all blocks over time.
    pub fn course(&self) -> Course {
        self.summed.as_ref().map_or_else(|| self.replay.course(), |s| s.steps.course())
    }

    /// Returns the figures of all blocks in columns of time. It takes a pass over the live blocks, and no other.
    pub fn timeline(&self, span: &Span) -> Timeline {
        let meta = self.meta();
        let edges = span.edges(&meta.clock, self.end_ticks());
        let mut timeline = by_course(&self.course(), &edges, &meta.clock);
        timeline.edges_ns = (0..edges.len()).map(|i| span.edge_ns(i)).collect();
        if let Some((rss, vss)) = resident(meta, &edges) {
            (timeline.rss, timeline.vss) = (Some(rss), Some(vss));
        }
        timeline
    }

    /// Returns the figures by stack.
    pub fn groups(&self) -> Vec<Group> {
        self.summed.as_ref().map_or_else(|| self.replay.groups(), |s| s.groups.clone())
    }

    /// Returns the figures by stack without the ages of their blocks: it does not pass over the live blocks.
    pub fn ageless_groups(&self) -> Vec<Group> {
        self.summed.as_ref().map_or_else(|| self.replay.ageless_groups(), |s| s.groups.clone())
    }

    /// Returns the number of stacks that have had blocks.
    pub fn groups_len(&self) -> usize {
        self.summed.as_ref().map_or_else(|| self.replay.nodes().len(), |s| s.groups.len())
    }

    /// Returns the stack node of a group, given its index in [`Self::groups`]; 0 if there is none.
    pub fn node_of(&self, group: u32) -> u32 {
        let at = group as usize;
        match &self.summed {
            Some(s) => s.groups.get(at).map_or(0, |g| g.node),
            None => self.replay.nodes().get(at).copied().unwrap_or(0),
        }
    }

    /// Returns the live blocks with their addresses, in no particular order. Their groups are indices into
    /// [`Self::groups`].
    pub fn blocks(&self) -> impl Iterator<Item = (u64, Block)> {
        self.replay.live()
    }

    /// Returns the live block at an address.
    pub fn block_at(&self, address: u64) -> Option<Block> {
        self.replay.block_at(address).map(|(block, _)| block)
    }

    /// Returns the number in the recording of a thread, given its index.
    pub fn thread_of(&self, thread_index: u32) -> Option<u32> {
        self.stream.thread_of(thread_index)
    }

    /// Returns the ticks of the last moment that was read.
    pub fn now_ticks(&self) -> Ticks {
        self.end_ticks()
    }

    /// Returns the analysis of what was read so far, for reports with names. The records are copied, but nothing is
    /// read again.
    ///
    /// # Errors
    /// If the file can't be opened.
    pub fn analysis(&self) -> Result<Analysis, Error> {
        let file = self.stream.same_file()?;
        let source = Source::of(&self.stream, file);
        let (mut totals, mut groups) = (self.totals(), self.groups());
        if let Some(s) = source.meta.stripped.as_ref().filter(|_| self.summed.is_none()) {
            restore(s, &mut totals, &mut groups);
        }
        Ok(Analysis::new(source, totals, groups))
    }

    /// Returns the last reading of the target's memory.
    pub fn kernel(&self) -> Option<Kernel> {
        self.stream.meta().kernel
    }

    /// Returns the moment that the figures describe, in nanoseconds since the start of the recording.
    pub fn now_ns(&self) -> u64 {
        self.duration_ns()
    }
}
