//! Reads the segments of the ring.

use crate::decoded::Decoded;
use crate::epochs::Epochs;
use crate::missing::Missing;
use crate::output::Output;
use crate::parts::{Parts, Place};
use crate::plain::Plain;
use crate::threads::Threads;
use crate::tree::{Names, Tree};
use prof_trace::call::{Part, RawCall, TEXT_BYTES};
use prof_trace::event::{Codec, DEFINE_NODES, Entry, Event, Visit};
use prof_trace::ids::{PcId, SegmentNode};
use prof_trace::pack::Packer;
use prof_trace::ring::{self, View};
use prof_trace::shared::{SEGMENT_SIZE, Shared};
use prof_trace::size::CodedSize;
use prof_trace::ticks::Ticks;
use std::collections::HashSet;

/// Events are not compressed while more than one in this many segments waits to be read.
const HURRY: usize = 2;
/// Number of segments that are given back at once, also if nearly nothing is in them.
const GIVE_BACK: usize = 256;
/// Number of bytes at the front of a segment in which its first event mostly is.
const FRONT: usize = 256;

/// Read progress of a segment.
#[derive(Debug, Default)]
struct Progress {
    /// Serial of its thread and number in that thread's sequence; both 0 if no thread has it.
    serial: u32,
    seq: u64,
    drained: u32,
    codec: Codec,
    /// The stack nodes that the segment has defined.
    names: Names,
    /// Encoder state of its events in the recording.
    out: Codec,
    /// Whether the segment contains something that is not an event; nothing more is read from it.
    bad: bool,
    /// Whether the thread has ended. All its events had been committed when this was noticed.
    dying: bool,
    /// Offset that is added to the segment's times; `None` until its first event is read.
    offset: Option<u64>,
}

/// State of a segment after its new events have been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    /// More events may follow.
    Open,
    /// All its events have been read.
    Ended,
    /// All its events have been read, and they are the last ones of its thread, which has ended.
    Last,
}

/// Reads committed events, and returns the segments to the ring.
#[derive(Debug)]
pub(crate) struct Drain {
    segments: Vec<Progress>,
    /// Node tables of segments that were read, which are used again as they are likely in the processor's cache.
    spare: Vec<Names>,
    /// The segments in use, as of the last look.
    views: Vec<View>,
    /// The segments of the last look, divided into the parts that passes read.
    parts: Parts,
    /// Threads of which a segment is missing in that look.
    gaps: HashSet<u32>,
    copy: Vec<u8>,
    recorded: Vec<u8>,
    read: Vec<usize>,
    /// Calls that change mappings, of the segment that is being read.
    calls: Vec<Part>,
    pass: u64,
    /// Number of segments that threads were writing to at the last look.
    pub open: usize,
    /// Number of segments that were read to their end.
    pub ended: u64,
    /// Number of bytes that were not events.
    pub damaged: u64,
    /// Number of bytes of events.
    pub bytes: u64,
    /// Number of events.
    pub events: u64,
    /// Number of events whose stack was cut by the collector (see [`crate::tree::Node::is_cut`]).
    pub truncated: u64,
}

impl Drain {
    /// Creates a reader for a ring from which nothing was read.
    pub(crate) fn new(shared: &Shared) -> Self {
        let n = shared.segments_now().0;
        Self {
            segments: std::iter::repeat_with(Progress::default).take(n).collect(),
            spare: Vec::new(),
            views: Vec::with_capacity(n),
            parts: Parts::new(),
            gaps: HashSet::new(),
            copy: vec![0; SEGMENT_SIZE],
            recorded: Vec::with_capacity(2 * SEGMENT_SIZE),
            read: Vec::new(),
            calls: Vec::new(),
            pass: 1, // a thread's `gap` of 0 is no pass's
            open: 0,
            ended: 0,
            damaged: 0,
            bytes: 0,
            events: 0,
            truncated: 0,
        }
    }

    /// Has passes read about this many bytes of events each, the oldest ones first.
    pub(crate) fn read_in_parts(&mut self, most: usize) {
        self.parts.set_most(most);
    }

    /// Returns whether the last look has more than was read by passes up to now.
    pub(crate) fn is_under_way(&self) -> bool {
        self.parts.has_begun()
    }

    /// Returns the time before which nothing is left of the last look when the next pass has read its part; `None`: that
    /// reads the rest.
    pub(crate) fn bound(&self) -> Option<Ticks> {
        self.parts.bound()
    }

    /// Returns the time before which nothing is left of the last look now, if it is read in the order of time.
    pub(crate) fn first(&self) -> Option<Ticks> {
        self.parts.first()
    }

    /// Looks at the segments in use, for the next passes to read: in the order of time if that is wanted, or if there is
    /// too much for one pass.
    pub(crate) fn begin(&mut self, shared: &Shared, epochs: &mut Epochs, by_time: bool) {
        self.pass += 1;
        self.look(shared);
        self.gaps.clear();
        // Only closed segments count: those that threads hold may have been read nearly to their end.
        let held = |v: &&View| !v.closed && !ring::is_left(shared, v);
        self.open = self.views.iter().filter(held).count();
        let unread = self.views.iter().map(|v| self.unread(v)).sum();
        if self.parts.is_one(unread) && !by_time {
            return self.parts.begin(&self.views);
        }
        let views = std::mem::take(&mut self.views);
        let places = views.iter().map(|v| {
            let unread = self.unread(v);
            let from = if unread > 0 { self.first_unread(shared, v, epochs) } else { None };
            Place { view: *v, unread, from }
        });
        let places = places.collect();
        self.views = views;
        self.parts.begin_by_time(places);
    }

    /// Reads the segments that were in use at the last look, or a part of them, each thread's in their order; looks first
    /// if all were read. Returns the number of segments in use.
    ///
    /// The look at the segments may miss one that was taken meanwhile, but see its successor. Then the successor waits
    /// for the next look, which sees both.
    pub(crate) fn pass(
        &mut self,
        shared: &Shared,
        threads: &mut Threads,
        tree: &mut Tree,
        out: &mut Output,
        epochs: &mut Epochs,
        mut describe: impl FnMut(&mut Threads, &mut Tree, &mut Output),
    ) -> usize {
        if !self.parts.has_begun() {
            self.begin(shared, epochs, false);
        }
        out.set_hurry(self.views.len().saturating_sub(self.open) > shared.segments_now().0 / HURRY);
        while let Some(v) = self.parts.next() {
            if self.gaps.contains(&v.serial) {
                continue;
            }
            let t = threads.seen(v.serial, v.tid);
            // A segment still missing after a whole pass never existed, or is lost.
            if v.seq > t.next && t.gap != (self.pass - 1, t.next) {
                t.gap = (self.pass, t.next);
                self.gaps.insert(v.serial);
                continue;
            }
            // Check this before the committed length is read, which then includes the thread's last events.
            let left = ring::is_left(shared, &v);
            let done = self.segment(shared, &v, left, tree, out, epochs);
            t.next = t.next.max(v.seq.saturating_add((done != Read::Open).into()));
            if done == Read::Last {
                threads.left(v.serial);
            }
            if out.is_full() || tree.is_full() || self.read.len() >= GIVE_BACK {
                describe(threads, tree, out);
                self.flush(shared, out);
            }
        }
        self.views.len()
    }

    /// Returns the number of bytes of a segment that were not read.
    fn unread(&self, v: &View) -> usize {
        v.committed.saturating_sub(self.progress(v).map_or(0, |p| p.drained as usize))
    }

    /// Returns the progress of a segment, if its reading has begun.
    fn progress(&self, v: &View) -> Option<&Progress> {
        let p = self.segments.get(v.index)?;
        ((p.serial, p.seq) == (v.serial, v.seq)).then_some(p)
    }

    /// Returns the time before which none of a segment's events is that were not read; `None`: there are none.
    fn first_unread(&mut self, shared: &Shared, v: &View, epochs: &mut Epochs) -> Option<Ticks> {
        if let Some(p) = self.progress(v)
            && let Some(offset) = p.offset
        {
            return Some(p.codec.time.wrapping_add(offset));
        }
        let first = [FRONT.min(v.committed), v.committed].into_iter().find_map(|n| {
            let front = &mut self.copy[..n];
            shared.copy_out(v.index, 0, front);
            first_time(front)
        })?;
        Some(first.wrapping_add(epochs.offset_of(first)))
    }

    /// Writes the recording, and only then returns the segments that were read to the ring.
    pub(crate) fn flush(&mut self, shared: &Shared, out: &mut Output) {
        out.flush();
        for index in self.read.drain(..) {
            self.segments[index] = Progress::default();
            ring::give_back(shared, index);
        }
    }

    /// Collects the segments in use, sorted.
    fn look(&mut self, shared: &Shared) {
        self.views.clear();
        for w in 0..shared.geometry().segments() / 64 {
            let Some(word) = shared.free_word(w) else { break };
            let mut used = !word.load(std::sync::atomic::Ordering::Relaxed);
            while used != 0 {
                let index = w * 64 + used.trailing_zeros() as usize;
                used &= used - 1;
                self.views.extend(ring::view(shared, index));
            }
        }
        let most = self.views.last().map_or(0, |v| v.index + 1);
        if most > self.segments.len() {
            self.segments.resize_with(most, Progress::default);
        }
        self.views.sort_unstable_by_key(|v| (v.serial, v.seq));
    }

    /// Reads the new events of a segment, whose thread is known to have ended if `left`.
    fn segment(
        &mut self,
        shared: &Shared,
        seen: &View,
        left: bool,
        tree: &mut Tree,
        out: &mut Output,
        epochs: &mut Epochs,
    ) -> Read {
        // Look again: if a successor was seen, this segment is closed and complete by now.
        let Some(v) = ring::view(shared, seen.index) else { return Read::Open };
        let p = &mut self.segments[v.index];
        if (v.serial, v.seq) != (seen.serial, seen.seq) {
            return Read::Open;
        }
        if (p.serial, p.seq) != (v.serial, v.seq) {
            p.start(v.serial, v.seq, &mut self.spare);
        }
        let from = p.drained as usize;
        if v.committed > from {
            if p.offset.is_none() {
                let front = &mut self.copy[..v.committed];
                shared.copy_out(v.index, 0, front);
                p.offset = first_time(front).map(|time| epochs.offset_of(time));
            }
            let bytes = &mut self.copy[from..v.committed];
            shared.copy_out(v.index, from, bytes);
            p.drained = v.committed as u32;
            if p.bad {
                self.damaged += bytes.len() as u64;
            } else {
                let start = p.out;
                let (packs, all) = (out.packs(), out.packs_small());
                let done = if packs {
                    let packer = out.packer(bytes.len());
                    if all {
                        p.pack::<true>(bytes, shared, (tree, &mut self.calls), packer)
                    } else {
                        p.pack::<false>(bytes, shared, (tree, &mut self.calls), packer)
                    }
                } else if out.takes_decoded() {
                    let mut events = Decoded::with_room_for(bytes.len());
                    let done = p.translate(bytes, shared, (tree, &mut self.calls), &mut events);
                    if !events.0.is_empty() {
                        out.put_decoded(v.serial, events.0, done.bytes);
                    }
                    done
                } else {
                    self.recorded.clear();
                    let mut plain = Plain { codec: start, to: &mut self.recorded, events: 0 };
                    let mut done = p.translate(bytes, shared, (tree, &mut self.calls), &mut plain);
                    done.plain = plain.events;
                    done
                };
                self.damaged += (bytes.len() - done.bytes) as u64;
                p.bad = done.bytes < bytes.len();
                self.events += u64::from(done.events);
                self.truncated += u64::from(done.truncated);
                self.bytes += done.bytes as u64;
                if done.plain > 0 {
                    out.put_events(v.serial, &start, done.plain, &self.recorded);
                }
                if !self.calls.is_empty() {
                    out.put_calls(v.serial, self.calls.drain(..));
                }
            }
        }
        if !(v.closed || p.dying || left) {
            return Read::Open;
        }
        self.ended += 1;
        p.names.clear();
        self.spare.push(std::mem::take(&mut p.names));
        self.read.push(v.index);
        // A thread that closed this segment after the first look may have written to another one before it ended.
        if left && !v.closed { Read::Last } else { Read::Ended }
    }

    /// Makes reading of the segment begin at byte `drained`, which must be the end of an event. Calls in front of it that
    /// are not in the recording are written to `out`.
    pub(crate) fn begin_at(
        &mut self,
        shared: &Shared,
        tree: &mut Tree,
        v: &View,
        drained: usize,
        missing: (Missing, &mut Output),
    ) {
        if v.index >= self.segments.len() {
            self.segments.resize_with(v.index + 1, Progress::default);
        }
        let Some(p) = self.segments.get_mut(v.index) else { return };
        p.start(v.serial, v.seq, &mut self.spare);
        let bytes = &mut self.copy[..drained.min(SEGMENT_SIZE)];
        shared.copy_out(v.index, 0, bytes);
        let done = p.translate(bytes, shared, (tree, &mut self.calls), &mut Nothing);
        p.drained = done.bytes as u32;
        let (missing, out) = missing;
        let calls = missing.of(&mut self.calls);
        if !calls.is_empty() {
            self.events += calls.iter().filter(|c| matches!(c, Part::Call(..))).count() as u64;
            out.put_calls(v.serial, calls.into_iter());
        }
    }

    /// Returns the number of segments up to the last one that was ever seen in use.
    pub(crate) fn reached(&self) -> usize {
        self.segments.len()
    }

    /// Marks the active segments of threads that have ended according to `gone`, and returns whether there are any.
    pub(crate) fn mark_dead(
        &mut self,
        shared: &Shared,
        mut gone: impl FnMut(&View) -> bool,
    ) -> bool {
        self.look(shared);
        let mut any = false;
        for v in self.views.iter().filter(|v| !v.closed) {
            let p = &mut self.segments[v.index];
            // Only after the first read is it known which thread the segment belongs to.
            if (p.serial, p.seq) == (v.serial, v.seq) && gone(v) {
                p.dying = true;
                any = true;
            }
        }
        any
    }

    /// Returns the serials of the threads with a segment in use, as of the last look.
    pub(crate) fn serials(&self) -> impl Iterator<Item = u32> + '_ {
        self.views.iter().map(|v| v.serial)
    }
}

/// Returns the time of the first event, given the first bytes of a segment.
fn first_time(bytes: &[u8]) -> Option<Ticks> {
    let (mut codec, mut at) = (Codec::default(), 0);
    loop {
        let (entry, n) = codec.get_entry(bytes.get(at..)?)?;
        match entry {
            Entry::Event(Event::Realloc { time_before, .. }) => return Some(time_before),
            Entry::Event(event) => return Some(event.time()),
            Entry::Call(call) => return Some(call.time),
            Entry::Define { .. } | Entry::Text(..) => {}
        }
        at += n;
    }
}

/// Counts of a translation.
#[derive(Clone, Copy, Debug, Default)]
struct Translated {
    /// Events, and calls that change mappings.
    events: u32,
    /// Events that were written in the encoding of an unpacked recording.
    plain: u32,
    truncated: u32,
    bytes: usize,
}

impl Progress {
    /// Starts to read another segment in this place.
    fn start(&mut self, serial: u32, seq: u64, spare: &mut Vec<Names>) {
        let names = spare.pop().unwrap_or_default();
        *self = Self { serial, seq, names, ..Self::default() };
    }

    /// Packs the events at the front of `bytes`.
    fn pack<const ALL: bool>(
        &mut self,
        bytes: &[u8],
        shared: &Shared,
        to_describe: (&mut Tree, &mut Vec<Part>),
        to: &mut Packer,
    ) -> Translated {
        let mut run = to.begin::<ALL>(self.serial, &self.out, bytes.len());
        let done = self.translate(bytes, shared, to_describe, &mut run);
        run.end();
        done
    }

    /// Passes the events at the front of `bytes` to `to`, with the recording's stack nodes, until that returns false:
    /// what it refuses can't be an event.
    #[inline(always)]
    fn translate(
        &mut self,
        bytes: &[u8],
        shared: &Shared,
        (tree, calls): (&mut Tree, &mut Vec<Part>),
        to: &mut impl Visit<Node = u32>,
    ) -> Translated {
        let (names, node, offset) = (&mut self.names, self.out.node, self.offset.unwrap_or(0));
        let (events, truncated) = (0, 0);
        let mut t = Translation { shared, tree, names, calls, to, node, offset, events, truncated };
        let at = self.codec.visit(bytes, &mut t);
        if t.events > 0 {
            self.out.time = self.codec.time.wrapping_add(offset);
        }
        self.out.addr = self.codec.addr;
        self.out.node = t.node;
        Translated { events: t.events, plain: 0, truncated: t.truncated, bytes: at }
    }
}

/// Translates the events of a segment for a recording.
struct Translation<'a, V> {
    shared: &'a Shared<'a>,
    tree: &'a mut Tree,
    names: &'a mut Names,
    calls: &'a mut Vec<Part>,
    to: &'a mut V,
    /// Stack node of the last event.
    node: u32,
    /// Offset of the times, see [`Progress::offset`].
    offset: u64,
    events: u32,
    truncated: u32,
}

impl<V: Visit<Node = u32>> Translation<'_, V> {
    /// Returns the recording's id of a node.
    #[inline(always)]
    fn name(&mut self, node: SegmentNode) -> u32 {
        let node = self.names.get(node);
        self.truncated += u32::from(node.is_cut);
        node.id
    }

    #[inline(always)]
    fn count(&mut self, taken: bool) -> bool {
        self.events += u32::from(taken);
        taken
    }
}

impl<V: Visit<Node = u32>> Visit for Translation<'_, V> {
    type Node = SegmentNode;

    #[inline(always)]
    fn define(&mut self, parent: SegmentNode, pcs: [PcId; DEFINE_NODES]) -> bool {
        self.tree.define(self.shared, self.names, parent, pcs);
        true
    }

    #[inline(always)]
    fn alloc(&mut self, time: Ticks, addr: u64, size: CodedSize, node: SegmentNode) -> bool {
        let node = self.name(node);
        self.node = node;
        let taken = self.to.alloc(time.wrapping_add(self.offset), addr, size, node);
        self.count(taken)
    }

    #[inline(always)]
    fn free(&mut self, time: Ticks, addr: u64, node: SegmentNode) -> bool {
        let mut id = 0;
        if node != SegmentNode::NONE {
            id = self.name(node);
            // As in the encoding, a free without a stack keeps the last node.
            self.node = if id == 0 { self.node } else { id };
        }
        let taken = self.to.free(time.wrapping_add(self.offset), addr, id);
        self.count(taken)
    }

    #[inline(always)]
    fn realloc(
        &mut self,
        times: [Ticks; 2],
        old: u64,
        addr: u64,
        size: CodedSize,
        node: SegmentNode,
    ) -> bool {
        let node = self.name(node);
        self.node = node;
        let times = times.map(|time| time.wrapping_add(self.offset));
        let taken = self.to.realloc(times, old, addr, size, node);
        self.count(taken)
    }

    fn call(&mut self, call: &RawCall) -> bool {
        let node = self.name(SegmentNode(call.node));
        let time = call.time.wrapping_add(self.offset);
        self.calls.push(Part::Call(RawCall { time, ..*call }, node));
        self.count(true)
    }

    fn text(&mut self, text: &[u8]) -> bool {
        let mut bytes = [0; TEXT_BYTES];
        let n = text.len().min(TEXT_BYTES);
        bytes[..n].copy_from_slice(&text[..n]);
        self.calls.push(Part::Text(bytes, n));
        true
    }
}

/// Discards events.
struct Nothing;

impl Visit for Nothing {
    type Node = u32;

    fn alloc(&mut self, _: Ticks, _: u64, _: CodedSize, _: u32) -> bool {
        true
    }

    fn free(&mut self, _: Ticks, _: u64, _: u32) -> bool {
        true
    }

    fn realloc(&mut self, _: [Ticks; 2], _: u64, _: u64, _: CodedSize, _: u32) -> bool {
        true
    }
}
