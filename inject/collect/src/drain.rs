//! Reading the segments.

use crate::output::Output;
use crate::threads::Threads;
use crate::tree::{Names, Tree};
use prof_trace::event::{Codec, Entry, Event, MAX_EVENT};
use prof_trace::ring::{self, View};
use prof_trace::shared::{SEGMENT_SIZE, Shared};

/// When more than this part of the segments waits to be read, events are not compressed.
const HURRY: usize = 2;

/// How far a segment has been read.
#[derive(Debug, Default)]
struct Progress {
    /// Whose it is; 0 and 0 with nothing drained: nobody's.
    serial: u32,
    seq: u64,
    drained: u32,
    codec: Codec,
    /// The stack nodes that it has defined.
    names: Names,
    /// Encoding state of its events in the recording.
    out: Codec,
    /// It holds what is no event; nothing more is taken from it.
    bad: bool,
    /// Its thread has ended: when this was noticed, all there will be was committed.
    dying: bool,
}

/// Reads what threads have committed, and gives segments back.
#[derive(Debug)]
pub struct Drain {
    segments: Vec<Progress>,
    /// Of segments that were read: what names a segment's nodes should be in the processor's cache.
    spare: Vec<Names>,
    views: Vec<View>,
    copy: Vec<u8>,
    recorded: Vec<u8>,
    read: Vec<usize>,
    pass: u64,
    /// Bytes that were no events.
    pub damaged: u64,
    /// Bytes that were.
    pub bytes: u64,
    /// Events.
    pub events: u64,
    /// Events whose stack was cut here (see [`crate::tree::Node::is_cut`]).
    pub truncated: u64,
}

impl Drain {
    /// Nothing read yet.
    pub fn new(shared: &Shared) -> Self {
        let n = shared.geometry().segments();
        Self {
            segments: std::iter::repeat_with(Progress::default).take(n).collect(),
            spare: Vec::new(),
            views: Vec::with_capacity(n),
            copy: vec![0; SEGMENT_SIZE],
            recorded: Vec::with_capacity(2 * SEGMENT_SIZE),
            read: Vec::new(),
            pass: 1, // a thread's `gap` of 0 is no pass's
            damaged: 0,
            bytes: 0,
            events: 0,
            truncated: 0,
        }
    }

    /// Goes through all segments in use, each thread's in their order; returns how many there were.
    ///
    /// A segment may be missed that was taken behind our back, while its successor is seen. Then
    /// the successor waits for the next pass, which sees both.
    pub fn pass(
        &mut self,
        shared: &Shared,
        threads: &mut Threads,
        tree: &mut Tree,
        out: &mut Output,
        mut describe: impl FnMut(&mut Threads, &mut Tree, &mut Output),
    ) -> usize {
        self.pass += 1;
        self.look(shared);
        let views = std::mem::take(&mut self.views);
        out.set_hurry(views.len() > shared.geometry().segments() / HURRY);
        for group in views.chunk_by(|a, b| a.serial == b.serial) {
            for v in group {
                let t = threads.seen(v.serial, v.tid);
                // Still missing after a whole pass: it never was, or is lost.
                if v.seq > t.next && t.gap != (self.pass - 1, t.next) {
                    t.gap = (self.pass, t.next);
                    break;
                }
                let done = self.segment(shared, v, tree, out);
                t.next = t.next.max(v.seq.saturating_add(done.into()));
                if out.is_full() || tree.is_full() {
                    describe(threads, tree, out);
                    self.flush(shared, out);
                }
            }
        }
        let used = views.len();
        self.views = views;
        used
    }

    /// Writes, and only then gives back what has been written.
    pub fn flush(&mut self, shared: &Shared, out: &mut Output) {
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
        self.views.sort_unstable_by_key(|v| (v.serial, v.seq));
    }

    /// Reads what is new in one segment. True if that was its end.
    fn segment(&mut self, shared: &Shared, seen: &View, tree: &mut Tree, out: &mut Output) -> bool {
        // Looked at again: if a successor was seen, this one is seen closed and whole now.
        let Some(v) = ring::view(shared, seen.index) else { return false };
        let p = &mut self.segments[v.index];
        if (v.serial, v.seq) != (seen.serial, seen.seq) {
            return false;
        }
        if (p.serial, p.seq) != (v.serial, v.seq) {
            p.start(v.serial, v.seq, &mut self.spare);
        }
        let from = p.drained as usize;
        if v.committed > from {
            let bytes = &mut self.copy[from..v.committed];
            shared.copy_out(v.index, from, bytes);
            p.drained = v.committed as u32;
            if p.bad {
                self.damaged += bytes.len() as u64;
            } else {
                let start = p.out;
                let packs = out.packs();
                let done = if packs {
                    let packer = out.packer(bytes.len());
                    packer.begin(v.serial, &start, bytes.len());
                    let done = p.translate(bytes, shared, tree, |codec, e| {
                        codec.follow(&e);
                        packer.put(&e)
                    });
                    packer.end();
                    done
                } else {
                    self.recorded.clear();
                    let to = &mut self.recorded;
                    p.translate(bytes, shared, tree, |codec, e| put(codec, e, to))
                };
                self.damaged += (bytes.len() - done.bytes) as u64;
                p.bad = done.bytes < bytes.len();
                self.events += u64::from(done.events);
                self.truncated += u64::from(done.truncated);
                self.bytes += done.bytes as u64;
                if done.events > 0 && !packs {
                    out.put_events(v.serial, &start, done.events, &self.recorded);
                }
            }
        }
        let end = v.closed || p.dying;
        if end {
            p.names.clear();
            self.spare.push(std::mem::take(&mut p.names));
            self.read.push(v.index);
        }
        end
    }

    /// Has the segment be read from `drained` on, where one of its events ends.
    pub fn begin_at(&mut self, shared: &Shared, tree: &mut Tree, v: &View, drained: usize) {
        let Some(p) = self.segments.get_mut(v.index) else { return };
        p.start(v.serial, v.seq, &mut self.spare);
        let bytes = &mut self.copy[..drained.min(SEGMENT_SIZE)];
        shared.copy_out(v.index, 0, bytes);
        let done = p.translate(bytes, shared, tree, |codec, e| {
            codec.follow(&e);
            true
        });
        p.drained = done.bytes as u32;
    }

    /// Marks the active segments of threads that `gone` tells to have ended.
    pub fn mark_dead(&mut self, shared: &Shared, mut gone: impl FnMut(&View) -> bool) {
        self.look(shared);
        for v in self.views.iter().filter(|v| !v.closed) {
            let p = &mut self.segments[v.index];
            // Not before it has been read once: then it is known whose it is.
            if (p.serial, p.seq) == (v.serial, v.seq) && gone(v) {
                p.dying = true;
            }
        }
    }

    /// Whether a thread with this serial has a segment in use (as of the last look).
    pub fn serials(&self) -> impl Iterator<Item = u32> + '_ {
        self.views.iter().map(|v| v.serial)
    }
}

/// What was translated.
#[derive(Clone, Copy, Debug, Default)]
struct Translated {
    events: u32,
    truncated: u32,
    bytes: usize,
}

impl Progress {
    /// Another segment begins here.
    fn start(&mut self, serial: u32, seq: u64, spare: &mut Vec<Names>) {
        let names = spare.pop().unwrap_or_default();
        *self = Self { serial, seq, names, ..Self::default() };
    }

    /// Gives the events at the front of `bytes` to `put`, with the stack nodes that they have in the
    /// recording, until it returns false: what it was given then can't be an event.
    #[inline(always)]
    fn translate(
        &mut self,
        bytes: &[u8],
        shared: &Shared,
        tree: &mut Tree,
        mut put: impl FnMut(&mut Codec, Event) -> bool,
    ) -> Translated {
        let mut done = Translated::default();
        while let Some((entry, n)) = self.codec.get_entry(&bytes[done.bytes..]) {
            match entry {
                Entry::Define { parent, pcs } => tree.define(shared, &mut self.names, parent, pcs),
                Entry::Event(e) => {
                    let node = self.names.get(e.node());
                    if !put(&mut self.out, e.with_node(node.id)) {
                        break;
                    }
                    done.events += 1;
                    done.truncated += u32::from(node.is_cut);
                }
            }
            done.bytes += n;
        }
        done
    }
}

/// Appends one event to `to`; false if it can't be one.
#[inline(always)]
fn put(codec: &mut Codec, e: Event, to: &mut Vec<u8>) -> bool {
    to.reserve(MAX_EVENT);
    let at = to.spare_capacity_mut().as_mut_ptr().cast::<u8>();
    // SAFETY: MAX_EVENT bytes are reserved from `at`; as many as are written become part of the
    // vector.
    unsafe {
        let n = match e {
            Event::Alloc { time, addr, size, node } => codec.put_alloc(at, time, addr, size, node),
            Event::Free { time, addr, node } => codec.put_free(at, time, addr, node),
            Event::Realloc { time_before, time, old, addr, size, node } => {
                codec.put_realloc(at, time_before, time, old, addr, size, node)
            }
        };
        to.set_len(to.len() + n);
        n > 0
    }
}
