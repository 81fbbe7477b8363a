//! Keeps the recording's time growing where the machine's counter goes back.
//!
//! A processor's counter may restart when the machine wakes up from a suspend, or be another one after a migration to
//! another host. Each such event begins an epoch: from then on an offset is added to the counter, so that times in the
//! recording grow, as readers require. The first time of a segment tells the epoch of its events, as the hook begins
//! another segment when a thread's own times go back (`hook/src/clock.rs`).

use crate::clock::Clock;
use prof_os::clock::monotonic_ns;
use prof_trace::records::{Epoch, Pass};
use prof_trace::ticks::Ticks;

/// One of this many parts of a second is added between the last time of an epoch and the first of the next, besides the
/// elapsed time: the kernel's clock may have gone on while the counter stood still.
const APART: u64 = 100;
/// Counters of two processors differ by less than one of this many parts of a second.
const SKEW: u64 = 1000;

/// Converts raw times, those of the counter, to recorded ones, which include the epoch's offset.
#[derive(Debug)]
pub(crate) struct Epochs {
    clock: Clock,
    /// Offset of the present epoch, and of the one before.
    offset: u64,
    before: Option<u64>,
    /// The last reading: counter and `CLOCK_MONOTONIC`.
    last: Option<(Ticks, u64)>,
    begun: Vec<Epoch>,
}

impl Epochs {
    /// Begins with the first epoch, whose offset is 0.
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, offset: 0, before: None, last: None, begun: Vec::new() }
    }

    /// Continues with the last pass and offset of another collector's recording.
    pub(crate) fn continue_from(&mut self, last: Option<&Pass>, offset: u64) {
        self.offset = offset;
        self.last = last.map(|p| (p.ticks.wrapping_sub(offset), p.clock_ns));
    }

    /// Returns the clock that reads recorded times.
    pub(crate) fn clock(&self) -> Clock {
        self.clock.with(self.offset)
    }

    /// Reads both clocks: the counter, its recorded time, and `CLOCK_MONOTONIC`.
    pub(crate) fn look(&mut self) -> (Ticks, Ticks, u64) {
        let (raw, ns) = (self.clock.now(), monotonic_ns());
        self.looked(raw, ns);
        (raw, raw.wrapping_add(self.offset), ns)
    }

    /// Evaluates a reading of the two clocks; begins an epoch if the counter has gone back.
    fn looked(&mut self, raw: Ticks, ns: u64) {
        let per_sec = self.clock.ticks_per_sec();
        if let Some((last, last_ns)) = self.last
            && raw.saturating_add(per_sec / SKEW) < last
        {
            let passed =
                u128::from(ns.saturating_sub(last_ns)) * u128::from(per_sec) / 1_000_000_000;
            let recorded = last.wrapping_add(self.offset);
            let now = recorded.saturating_add(passed as u64).saturating_add(per_sec / APART + 1);
            self.before = Some(self.offset);
            self.offset = now.wrapping_since(raw);
            self.begun.push(Epoch { ticks: now, back: last - raw, offset: self.offset });
        }
        self.last = Some((raw, ns));
    }

    /// Returns the offset of a segment that begins with the raw time `first`. A time later than the present belongs to
    /// the epoch before.
    pub(crate) fn offset_of(&mut self, first: Ticks) -> u64 {
        // The counter may have gone back since the pass began.
        let (raw, _, _) = self.look();
        self.offset_at(first, raw)
    }

    fn offset_at(&self, first: Ticks, now: Ticks) -> u64 {
        let later = first > now.saturating_add(self.clock.ticks_per_sec() / SKEW);
        self.before.filter(|_| later).unwrap_or(self.offset)
    }

    /// Returns the recorded time of a raw one.
    pub(crate) fn recorded(&mut self, raw: Ticks) -> Ticks {
        raw.wrapping_add(self.offset_of(raw))
    }

    /// Returns the epochs that have begun since the last call.
    pub(crate) fn begun(&mut self) -> impl Iterator<Item = Epoch> + '_ {
        self.begun.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::Drain;
    use crate::output::{Output, create_recording};
    use crate::threads::Threads;
    use crate::tree::Tree;
    use prof_os::Pid;
    use prof_trace::chunk::{Next, next};
    use prof_trace::event::{Codec, MAX_EVENT};
    use prof_trace::records::{Events, kind};
    use prof_trace::ring;
    use prof_trace::shared::clock::COUNTER;

    const SECOND: u64 = 1_000_000_000;

    fn epochs() -> Epochs {
        Epochs::new(Clock::new(COUNTER, SECOND))
    }

    #[test]
    fn times_go_on_where_the_counter_goes_back() {
        let mut e = epochs();
        e.looked(Ticks(500 * SECOND), 7 * SECOND);
        // A difference that two processors may have does not count.
        e.looked(Ticks(500 * SECOND - 1000), 7 * SECOND);
        assert_eq!(e.begun().count(), 0);
        e.looked(Ticks(501 * SECOND), 8 * SECOND);
        assert_eq!(e.offset_at(Ticks(499 * SECOND), Ticks(501 * SECOND)), 0);
        // A suspend: the counter restarts, and half a second has passed.
        e.looked(Ticks(2 * SECOND), 8 * SECOND + SECOND / 2);
        let begun: Vec<Epoch> = e.begun().collect();
        let now = 501 * SECOND + SECOND / 2 + SECOND / APART + 1;
        let (back, offset) = (499 * SECOND, now - 2 * SECOND);
        assert_eq!(begun, [Epoch { ticks: Ticks(now), back, offset }]);
        // A segment from before the suspend, one from after it was noticed, and one from shortly before that.
        assert_eq!(e.offset_at(Ticks(501 * SECOND + 7), Ticks(2 * SECOND)), 0);
        assert_eq!(e.offset_at(Ticks(3 * SECOND), Ticks(3 * SECOND)), offset);
        let soon = 2 * SECOND - SECOND / 3;
        assert_eq!(e.offset_at(Ticks(soon), Ticks(2 * SECOND)), offset);
        assert!(soon + offset > 501 * SECOND);
        // A second jump.
        e.looked(Ticks(SECOND), 9 * SECOND);
        let again = e.begun().next().expect("another epoch");
        assert!(again.ticks > Ticks(now) && again.back == SECOND, "{again:?}");
        assert_eq!(e.offset_at(Ticks(5 * SECOND), Ticks(SECOND)), offset);
        assert_eq!(e.offset_at(Ticks(SECOND), Ticks(SECOND)), again.offset);
    }

    #[test]
    fn another_collector_goes_on_in_the_same_epoch() {
        let mut e = epochs();
        let pass = Pass { ticks: Ticks(900 * SECOND), clock_ns: 5 * SECOND, ..Pass::default() };
        e.continue_from(Some(&pass), 890 * SECOND);
        e.looked(Ticks(11 * SECOND), 6 * SECOND);
        assert_eq!(
            (e.begun().count(), e.offset_at(Ticks::ZERO, Ticks(11 * SECOND))),
            (0, 890 * SECOND)
        );
        // The machine was suspended while no collector ran.
        e.looked(Ticks(SECOND), 8 * SECOND);
        assert_eq!(
            e.begun().next().map(|b| b.ticks),
            Some(Ticks(903 * SECOND + SECOND / APART + 1))
        );
    }

    /// Writes a closed segment with one allocation at each of these times.
    fn segment(shared: &prof_trace::shared::Shared, thread: u32, seq: u64, times: &[Ticks]) {
        let index = ring::take(shared, 0).expect("a segment");
        ring::open(shared, index, thread, thread, thread, seq);
        let (data, mut codec, mut at) = (shared.data(index).expect("data"), Codec::default(), 0);
        for time in times {
            assert!(at + MAX_EVENT <= prof_trace::shared::SEGMENT_SIZE);
            // SAFETY: the write stays inside of the segment, by the assertion, and no other thread uses the segment.
            at += unsafe { codec.put_alloc(data.add(at), *time, 0x1000, 8.into(), 0) };
        }
        ring::commit(shared.head(index).expect("a head"), at);
        ring::close(shared, index);
    }

    #[test]
    fn threads_stay_in_order_over_a_counter_that_goes_back() {
        let shared = crate::ring_copy::empty();
        ring::fill(&shared);
        let path = std::env::temp_dir().join(format!("prof-epochs-{}", std::process::id()));
        let mut out = Output::new(create_recording(&path).expect("a file")).expect("its size");
        let (mut drain, mut threads) = (Drain::new(&shared), Threads::new(Pid::this()));
        let (mut tree, mut e) = (Tree::new(), epochs());
        let now = e.clock.now();
        let old = now + 1000 * SECOND;
        // The counter when the last pass began, and events of that time.
        e.last = Some((old, monotonic_ns()));
        segment(&shared, 1, 1, &[old - 20, old + 30]);
        let mut pass = |drain: &mut Drain, e: &mut Epochs, out: &mut Output| {
            drain.pass(&shared, &mut threads, &mut tree, out, e, |_, _, _| {});
            drain.flush(&shared, out);
        };
        // The counter has gone back by now: one thread has noticed, the other still has a segment from before.
        segment(&shared, 1, 2, &[now, now + 5]);
        segment(&shared, 2, 1, &[old + 40]);
        segment(&shared, 2, 2, &[now + 9]);
        pass(&mut drain, &mut e, &mut out);
        pass(&mut drain, &mut e, &mut out);
        let bytes = std::fs::read(&path).expect("the recording");
        std::fs::remove_file(&path).expect("remove");
        let (mut at, mut seen) = (0, Vec::new());
        while let Next::Chunk(k, payload, n) = next(&bytes[at..]) {
            at += n;
            if k != kind::EVENTS {
                continue;
            }
            let events = Events::decode(payload).expect("events");
            let (mut codec, mut from) = (events.codec(), 0);
            while let Some((event, n)) = codec.get(&events.bytes[from..]) {
                from += n;
                seen.push((events.thread, event.time()));
            }
        }
        let offset = e.offset;
        assert!(offset > 1000 * SECOND && e.begun().count() == 1);
        let later = |time: Ticks| time + offset;
        let of_first = [(1, old - 20), (1, old + 30), (1, later(now)), (1, later(now + 5))];
        let of_second = [(2, old + 40), (2, later(now + 9))];
        assert_eq!(seen, [&of_first[..], &of_second].concat());
        assert!(later(now) > old + 40, "{offset}");
    }
}
