//! Models of the ring: writers that write as the hook does, beside the collector's own `drain`.

use crate::drain::Drain;
use crate::event::Codec;
use crate::ids::{PcId, SegmentNode};
use crate::output::Output;
use crate::pcs_model::{MODULE, PC, code};
use crate::records::PC_IS_TRAMPOLINE;
use crate::ring::{self, SEGMENT_FULL};
use crate::shared::{SEGMENTS, Shared};
use crate::slots;
use crate::sync::AtomicU32;
use crate::threads::Threads;
use crate::tree::Tree;
use loom::sync::atomic::Ordering;
use loom::thread;
use prof_trace::ticks::Ticks;
use std::sync::Arc;

/// Address of an event that fills a segment by itself.
const WIDE: u64 = 1 << 56;
/// Addresses of two events that fill a segment together.
const PAIR: [u64; 2] = [16, 32];
/// Ticks from one event to the next.
const TICKS: u64 = 1 << 16;
/// Module number and flags that are recorded with the address of [`code`].
const TRAMPOLINE: u64 = MODULE as u64 | PC_IS_TRAMPOLINE;

/// Does what the hook's `record` does, but waits for no segment: without one, the event is lost.
struct Writer {
    shared: Arc<Shared<'static>>,
    serial: u32,
    seq: u64,
    segment: Option<usize>,
    pos: usize,
    codec: Codec,
    /// Time and code address id of each event; id 0: without a stack.
    written: Vec<(u64, u32)>,
}

impl Writer {
    fn new(shared: &Arc<Shared<'static>>, serial: u32) -> Self {
        let codec = Codec::default();
        let shared = shared.clone();
        Self { shared, serial, seq: 0, segment: None, pos: usize::MAX, codec, written: Vec::new() }
    }

    fn next_segment(&mut self) -> Option<usize> {
        if self.pos <= SEGMENT_FULL {
            return self.segment;
        }
        if let Some(old) = self.segment.take() {
            ring::close(&self.shared, old);
        }
        let index = ring::take(&self.shared, 0)?;
        self.seq += 1;
        ring::open(&self.shared, index, 0, self.serial, self.serial, self.seq);
        (self.segment, self.pos, self.codec) = (Some(index), 0, Codec::default());
        self.segment
    }

    /// Writes an event, with a stack of one frame unless `code` is 0.
    fn put(&mut self, number: usize, addr: u64, code: u32) {
        let Some(index) = self.next_segment() else { return };
        if code != 0 && self.codec.defined == 0 {
            // SAFETY: `append` passes enough room.
            let n = self.append(index, |c, at| unsafe {
                c.put_define(at, SegmentNode::NONE, [code, 0, 0].map(PcId))
            });
            assert_eq!(n, 4);
        }
        let (time, node) = (number as u64 * TICKS, self.codec.defined.min(code));
        // SAFETY: as above.
        let n = self.append(index, |c, at| unsafe { c.put_free(at, Ticks(time), addr, node) });
        assert!(if addr == WIDE { n == 12 } else { n == 6 || (n == 7 && node != 0) });
        ring::commit(self.shared.head(index).expect("head"), self.pos);
        self.written.push((time, code));
    }

    fn append(&mut self, index: usize, put: impl FnOnce(&mut Codec, *mut u8) -> usize) -> usize {
        // Room for an event and the word behind it.
        let mut bytes = [0u8; 72];
        let n = put(&mut self.codec, bytes.as_mut_ptr());
        // The hook writes whole words, so that some bytes behind the event change, too.
        self.shared.write(index, self.pos, &bytes[..n + 6]);
        self.pos += n;
        n
    }
}

struct Collector {
    drain: Drain,
    threads: Threads,
    tree: Tree,
    out: Output,
}

impl Collector {
    fn new(shared: &Shared) -> Self {
        let (threads, out) = (Threads::default(), Output::default());
        Self { drain: Drain::new(shared), threads, tree: Tree::new(), out }
    }

    fn pass(&mut self, shared: &Shared) {
        let describe = |_: &mut Threads, tree: &mut Tree, out: &mut Output| tree.write(out);
        let epochs = &mut crate::epochs::Epochs;
        self.drain.pass(shared, &mut self.threads, &mut self.tree, &mut self.out, epochs, describe);
        self.drain.flush(shared, &mut self.out);
    }

    /// Reads the rest and returns all segments, after all writers have ended.
    fn finish(mut self, shared: &Shared, writers: &[Writer]) {
        // One pass waits for missing segments, and the last segment is marked after it has been read.
        for _ in 0..2 {
            self.pass(shared);
            self.drain.mark_dead(shared, |_| true);
        }
        self.pass(shared);
        assert_eq!(ring::free_count(shared), SEGMENTS);
        assert_eq!(self.drain.damaged, 0);
        let mut nodes = 0;
        for w in writers {
            let read = self.out.events.remove(&w.serial).unwrap_or_default();
            let stack = |(time, node)| (time, self.out.code(node));
            let read: Vec<_> = read.into_iter().map(stack).collect();
            assert_eq!(read, w.written, "thread {}", w.serial);
            nodes |= usize::from(read.iter().any(|e| e.1 != 0));
        }
        assert!(self.out.events.is_empty());
        assert_eq!(self.out.nodes.len(), nodes, "all that have a stack have the same");
    }
}

/// Runs writers of events at these addresses beside a collector that makes some passes.
fn write_and_collect(preemptions: Option<usize>, events: &'static [&'static [u64]], passes: usize) {
    crate::check(preemptions, move || {
        let shared = Arc::new(Shared::with_ring());
        let spawn = |(i, addrs): (usize, &'static &'static [u64])| {
            let mut w = Writer::new(&shared, i as u32 + 1);
            thread::spawn(move || {
                for (i, addr) in addrs.iter().enumerate() {
                    w.put(i + 1, *addr, 0);
                }
                w
            })
        };
        let all: Vec<_> = events.iter().enumerate().map(spawn).collect();
        let mut c = Collector::new(&shared);
        for _ in 0..passes {
            c.pass(&shared);
        }
        let writers: Vec<_> = all.into_iter().map(|h| h.join().expect("writer")).collect();
        c.finish(&shared, &writers);
    });
}

#[test]
fn an_event_is_read_only_when_it_is_whole() {
    write_and_collect(None, &[&PAIR], 1);
}

#[test]
fn segments_of_one_thread_are_read_in_order_and_reused() {
    write_and_collect(Some(2), &[&[WIDE, WIDE, WIDE]], 2);
}

#[test]
fn a_closed_segment_is_read_whole() {
    write_and_collect(Some(3), &[&[PAIR[0], PAIR[1], WIDE]], 1);
}

#[test]
fn two_threads_share_the_ring_with_the_collector() {
    write_and_collect(Some(2), &[&[WIDE, WIDE], &[WIDE, WIDE]], 1);
}

#[test]
fn no_segment_is_taken_twice() {
    crate::check(Some(3), || {
        let shared = Arc::new(Shared::with_ring());
        let take_and_write = |shared: &Shared| {
            let index = ring::take(shared, 0);
            if let Some(index) = index {
                shared.write(index, 0, &[1]);
            }
            index
        };
        let (a, b) = (shared.clone(), shared.clone());
        let a = thread::spawn(move || take_and_write(&a));
        let b = thread::spawn(move || take_and_write(&b));
        let mut taken = vec![take_and_write(&shared)];
        taken.extend([a.join().expect("thread"), b.join().expect("thread")]);
        taken.sort_unstable();
        assert_eq!(taken, [None, Some(0), Some(1)]);
    });
}

#[test]
fn the_segment_of_a_dead_thread_is_read_whole_and_reused() {
    crate::check(Some(2), || {
        let shared = Arc::new(Shared::with_ring());
        let gone = Arc::new(AtomicU32::new(0));
        let mut w = Writer::new(&shared, 1);
        let ends = gone.clone();
        let dying = thread::spawn(move || {
            w.put(1, PAIR[0], 0);
            w.put(2, PAIR[1], 0);
            // The kernel likewise orders a thread's last store before its absence from /proc.
            ends.store(1, Ordering::Release);
            w
        });
        let mut c = Collector::new(&shared);
        c.pass(&shared);
        c.drain.mark_dead(&shared, |_| gone.load(Ordering::Acquire) == 1);
        c.pass(&shared);
        let mut next = Writer::new(&shared, 2);
        next.put(1, WIDE, 0);
        next.put(2, WIDE, 0);
        let writers = [dying.join().expect("writer"), next];
        c.finish(&shared, &writers);
    });
}

#[test]
fn who_gets_a_slot_shows_that_its_last_owner_has_ended() {
    crate::check(Some(2), || {
        let shared = Arc::new(Shared::with_ring_and_slots());
        let s = shared.clone();
        // The second has the first one's memory, which the kernel orders.
        let threads = thread::spawn(move || {
            let mut all = [1, 2].map(|serial| Writer::new(&s, serial));
            for w in &mut all {
                slots::name(s.slot(0).expect("slot"), 64, w.serial, w.serial);
                w.put(1, PAIR[0], 0);
            }
            all
        });
        let mut c = Collector::new(&shared);
        c.pass(&shared);
        c.pass(&shared);
        let writers = threads.join().expect("writers");
        // Nobody has been told that the first has ended. A segment may be missed by a pass.
        c.pass(&shared);
        c.pass(&shared);
        assert_eq!(ring::free_count(&shared), SEGMENTS - 1, "the second's is still its own");
        c.finish(&shared, &writers);
    });
}

/// Runs writers of events with the same stack of one frame, whose address is in no table yet.
fn write_stacks(preemptions: usize, events: &'static [&'static [u64]], passes: usize) {
    crate::check(Some(preemptions), move || {
        let shared = Arc::new(Shared::with_ring_and_pcs());
        let module = Arc::new(AtomicU32::new(0));
        let spawn = |(i, addrs): (usize, &'static &'static [u64])| {
            let (mut w, module) = (Writer::new(&shared, i as u32 + 1), module.clone());
            thread::spawn(move || {
                for (i, addr) in addrs.iter().enumerate() {
                    let code = code(&w.shared, &module);
                    w.put(i + 1, *addr, code.0);
                }
                w
            })
        };
        let all: Vec<_> = events.iter().enumerate().map(spawn).collect();
        let mut c = Collector::new(&shared);
        for _ in 0..passes {
            c.pass(&shared);
            assert!(c.out.pcs.values().all(|p| *p == (PC, TRAMPOLINE)), "all of it, and the rule");
        }
        let writers: Vec<_> = all.into_iter().map(|h| h.join().expect("writer")).collect();
        c.finish(&shared, &writers);
    });
}

#[test]
fn definitions_hold_from_pass_to_pass_and_end_with_their_segment() {
    write_stacks(3, &[&[PAIR[0], PAIR[1], PAIR[0]]], 2);
}

#[test]
fn a_stack_is_the_same_in_all_segments() {
    write_stacks(2, &[&PAIR, &[PAIR[0]]], 1);
}
