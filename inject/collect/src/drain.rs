//! Reading the segments.

use crate::output::Output;
use crate::threads::Threads;
use crate::tree::Tree;
use prof_trace::event::{Codec, Event};
use prof_trace::ring::{self, View};
use prof_trace::shared::{SEGMENT_SIZE, Shared};

/// How far a segment has been read.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// Whose it is; 0 and 0 with nothing drained: nobody's.
    serial: u32,
    seq: u64,
    drained: u32,
    codec: Codec,
    /// It holds what is no event; nothing more is taken from it.
    bad: bool,
    /// Its thread has ended: when this was noticed, all there will be was committed.
    dying: bool,
}

/// Reads what threads have committed, and gives segments back.
#[derive(Debug)]
pub struct Drain {
    segments: Vec<Progress>,
    views: Vec<View>,
    copy: Vec<u8>,
    read: Vec<usize>,
    pass: u64,
    /// Bytes that were no events.
    pub damaged: u64,
    /// Bytes that were.
    pub bytes: u64,
    /// Events.
    pub events: u64,
}

/// Whether a node id can be one is left to [`Tree::see`].
#[inline(always)]
fn node_of(e: &Event) -> u32 {
    match *e {
        Event::Alloc { node, .. } | Event::Free { node, .. } | Event::Realloc { node, .. } => node,
    }
}

impl Drain {
    /// Nothing read yet.
    pub fn new(shared: &Shared) -> Self {
        let n = shared.geometry().segments();
        Self {
            segments: vec![Progress::default(); n],
            views: Vec::with_capacity(n),
            copy: vec![0; SEGMENT_SIZE],
            read: Vec::new(),
            pass: 1, // a thread's `gap` of 0 is no pass's
            damaged: 0,
            bytes: 0,
            events: 0,
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
                if out.is_full() {
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
            *p = Progress { serial: v.serial, seq: v.seq, ..Default::default() };
        }
        let from = p.drained as usize;
        if v.committed > from {
            let bytes = &mut self.copy[from..v.committed];
            copy_out(shared, v.index, from, bytes);
            p.drained = v.committed as u32;
            if p.bad {
                self.damaged += bytes.len() as u64;
            } else {
                let start = p.codec;
                let (count, good) = scan(&mut p.codec, bytes, shared, tree);
                self.damaged += (bytes.len() - good) as u64;
                p.bad = good < bytes.len();
                self.events += u64::from(count);
                self.bytes += good as u64;
                if count > 0 {
                    out.put_events(v.serial, &start, count, &bytes[..good]);
                }
            }
        }
        let end = v.closed || p.dying;
        if end {
            self.read.push(v.index);
        }
        end
    }

    /// Has the segment be read from `drained` on, with this decoding state.
    pub fn begin_at(&mut self, v: &View, drained: usize, codec: Codec) {
        let (serial, seq, drained) = (v.serial, v.seq, drained.min(SEGMENT_SIZE) as u32);
        if let Some(p) = self.segments.get_mut(v.index) {
            *p = Progress { serial, seq, drained, codec, bad: false, dying: false };
        }
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

/// Copies a part of a segment that its thread has committed.
pub fn copy_out(shared: &Shared, index: usize, from: usize, to: &mut [u8]) {
    let Some(data) = shared.data(index) else { return };
    if from + to.len() > SEGMENT_SIZE {
        return;
    }
    // SAFETY: in bounds of the segment. The target may write to it meanwhile (an honest one does
    // not): what is copied is then arbitrary, and is checked after it was copied.
    unsafe { std::ptr::copy_nonoverlapping(data.add(from), to.as_mut_ptr(), to.len()) }
}

/// Decodes events; returns how many there are, and how many bytes of them.
fn scan(codec: &mut Codec, bytes: &[u8], shared: &Shared, tree: &mut Tree) -> (u32, usize) {
    let (mut count, mut at) = (0, 0);
    while let Some((event, n)) = codec.get(&bytes[at..]) {
        tree.see(shared, node_of(&event));
        count += 1;
        at += n;
    }
    (count, at)
}
