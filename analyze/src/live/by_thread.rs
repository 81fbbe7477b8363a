//! Figures by thread of a recording that grows.

use crate::heap::{Block, End, Watch, weight};
use crate::load::Op;
use prof_trace::capture::Capture;

/// Figures of the blocks that a thread has allocated. They are estimates if the recording is a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ThreadStats {
    /// Bytes of its live blocks.
    pub live_bytes: f64,
    /// Number of its live blocks.
    pub live_count: f64,
    /// Greatest number of bytes of its blocks that were live at any time.
    pub peak_bytes: f64,
    /// Number of its allocations, reallocations included.
    pub allocations: f64,
}

/// Keeps figures by thread while a recording is followed.
#[derive(Clone, Debug, Default)]
pub struct StatsByThread {
    capture: Capture,
    stats: Vec<ThreadStats>,
    /// Number of recorded blocks that are live, by thread.
    blocks: Vec<u64>,
}

impl StatsByThread {
    /// Returns the figures by the index of the thread (see [`Follower::thread_of`](crate::Follower::thread_of)).
    pub fn stats(&self) -> &[ThreadStats] {
        &self.stats
    }

    fn of(&mut self, thread_index: u32) -> (&mut ThreadStats, &mut u64) {
        let at = thread_index as usize;
        if at >= self.stats.len() {
            self.stats.resize(at + 1, ThreadStats::default());
            self.blocks.resize(at + 1, 0);
        }
        (&mut self.stats[at], &mut self.blocks[at])
    }
}

impl Watch for StatsByThread {
    fn start(&mut self, capture: &Capture) {
        self.capture = *capture;
    }

    fn notes(&self, _: &Op) -> bool {
        true
    }

    fn begin(&mut self, op: &Op) {
        let weight = weight(&self.capture, op.size, op.rate);
        let (f, blocks) = self.of(op.thread_index);
        *blocks += 1;
        f.allocations += weight;
        f.live_count += weight;
        f.live_bytes += op.size as f64 * weight;
        f.peak_bytes = f.peak_bytes.max(f.live_bytes);
    }

    fn found(&mut self, _: u32, op: &Op) {
        // Only recordings that have all blocks have these.
        let (f, blocks) = self.of(op.thread_index);
        *blocks += 1;
        f.live_count += 1.0;
        f.live_bytes += op.size as f64;
        f.peak_bytes = f.peak_bytes.max(f.live_bytes);
    }

    fn end(&mut self, _: u64, block: &Block, _: End) {
        let weight = weight(&self.capture, block.size(), block.rate());
        let (f, blocks) = self.of(block.thread_index);
        *blocks = blocks.saturating_sub(1);
        f.live_count -= weight;
        f.live_bytes -= block.size() as f64 * weight;
        // Without blocks the sums are exactly 0: this keeps rounding errors from adding up.
        if *blocks == 0 {
            (f.live_count, f.live_bytes) = (0.0, 0.0);
        }
    }

    fn unknown(&mut self, _: &Op) {}

    fn before(&mut self, _: &Op) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::Fate;
    use crate::load::OpKind;
    use prof_trace::ticks::Ticks;

    #[test]
    fn a_block_counts_for_the_thread_that_allocated_it() {
        let mut all = StatsByThread::default();
        let op = |thread_index, size| Op {
            time: Ticks(1),
            addr: 16,
            size,
            node: 0,
            thread_index,
            kind: OpKind::Alloc,
            header: 0,
            rate: 0,
        };
        all.begin(&op(1, 100));
        all.begin(&op(1, 50));
        let end =
            End { time: Ticks(2), thread_index: 0, node: 0, fate: Fate::Freed, temporary: false };
        all.end(16, &Block::plain(100, 0, Ticks(1), 0, 1), end);
        let f = all.stats();
        assert_eq!(f.len(), 2);
        assert_eq!(f[0], ThreadStats::default());
        let live =
            ThreadStats { live_bytes: 50.0, live_count: 1.0, peak_bytes: 150.0, allocations: 2.0 };
        assert_eq!(f[1], live);
    }
}
