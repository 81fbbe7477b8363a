//! The recording's time, which goes on where the machine's counter goes back.
//!
//! A processor's counter may begin anew when the machine wakes up from a suspend, or be another one when it was
//! moved to another host. Each such time begins an epoch: from then on something is added to the counter, so that
//! times in the recording grow, as readers rely on. Of which epoch an event is says the first time of its segment,
//! as the hook begins another segment when a thread's own times go back (`hook/src/clock.rs`).

use crate::clock::{Clock, monotonic_ns};
use prof_trace::records::{Epoch, Pass};

/// The part of a second that lies between the last time of an epoch and the first of the next, beside what
/// has passed: where the counter stood still the kernel's clock need not have.
const APART: u64 = 100;
/// Counters of two processors differ by less than this part of a second.
const SKEW: u64 = 1000;

/// Raw times are those of the counter; recorded ones have the epoch's offset.
#[derive(Debug)]
pub struct Epochs {
    clock: Clock,
    /// Added to the counter now, and in the epoch before.
    offset: u64,
    before: Option<u64>,
    /// The last look: counter and `CLOCK_MONOTONIC`.
    last: Option<(u64, u64)>,
    begun: Vec<Epoch>,
}

impl Epochs {
    /// The first epoch: nothing is added.
    pub fn new(clock: Clock) -> Self {
        Self { clock, offset: 0, before: None, last: None, begun: Vec::new() }
    }

    /// Goes on where another collector has left a recording.
    pub fn continue_from(&mut self, last: Option<&Pass>, offset: u64) {
        self.offset = offset;
        self.last = last.map(|p| (p.ticks.wrapping_sub(offset), p.clock_ns));
    }

    /// The clock whose times are the recording's.
    pub fn clock(&self) -> Clock {
        self.clock.with(self.offset)
    }

    /// Reads both clocks: the counter, its recorded time, and `CLOCK_MONOTONIC`.
    pub fn look(&mut self) -> (u64, u64, u64) {
        let (raw, ns) = (self.clock.now(), monotonic_ns());
        self.looked(raw, ns);
        (raw, raw.wrapping_add(self.offset), ns)
    }

    /// Takes what the two clocks say.
    fn looked(&mut self, raw: u64, ns: u64) {
        let per_sec = self.clock.ticks_per_sec();
        if let Some((last, last_ns)) = self.last
            && raw.saturating_add(per_sec / SKEW) < last
        {
            let passed =
                u128::from(ns.saturating_sub(last_ns)) * u128::from(per_sec) / 1_000_000_000;
            let recorded = last.wrapping_add(self.offset);
            let now = recorded.saturating_add(passed as u64).saturating_add(per_sec / APART + 1);
            self.before = Some(self.offset);
            self.offset = now.wrapping_sub(raw);
            self.begun.push(Epoch { ticks: now, back: last - raw, offset: self.offset });
        }
        self.last = Some((raw, ns));
    }

    /// What to add to the times of a segment that begins with the raw time `first`. That it is of the epoch before
    /// is plain where it is later than now.
    pub fn offset_of(&mut self, first: u64) -> u64 {
        // The counter may have gone back since the pass began.
        let (raw, _, _) = self.look();
        self.offset_at(first, raw)
    }

    fn offset_at(&self, first: u64, now: u64) -> u64 {
        let later = first > now.saturating_add(self.clock.ticks_per_sec() / SKEW);
        self.before.filter(|_| later).unwrap_or(self.offset)
    }

    /// The recorded time of a raw one.
    pub fn recorded(&mut self, raw: u64) -> u64 {
        raw.wrapping_add(self.offset_of(raw))
    }

    /// The epochs that have begun since the last call.
    pub fn begun(&mut self) -> impl Iterator<Item = Epoch> + '_ {
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
        e.looked(500 * SECOND, 7 * SECOND);
        // Less than two processors may differ by is nothing.
        e.looked(500 * SECOND - 1000, 7 * SECOND);
        assert_eq!(e.begun().count(), 0);
        e.looked(501 * SECOND, 8 * SECOND);
        assert_eq!(e.offset_at(499 * SECOND, 501 * SECOND), 0);
        // A suspend: it begins anew, and half a second has passed.
        e.looked(2 * SECOND, 8 * SECOND + SECOND / 2);
        let begun: Vec<Epoch> = e.begun().collect();
        let now = 501 * SECOND + SECOND / 2 + SECOND / APART + 1;
        let (back, offset) = (499 * SECOND, now - 2 * SECOND);
        assert_eq!(begun, [Epoch { ticks: now, back, offset }]);
        // A segment from before, and one from after it was noticed, or shortly before that.
        assert_eq!(e.offset_at(501 * SECOND + 7, 2 * SECOND), 0);
        assert_eq!(e.offset_at(3 * SECOND, 3 * SECOND), offset);
        let soon = 2 * SECOND - SECOND / 3;
        assert_eq!(e.offset_at(soon, 2 * SECOND), offset);
        assert!(soon + offset > 501 * SECOND);
        // And once more.
        e.looked(SECOND, 9 * SECOND);
        let again = e.begun().next().expect("another epoch");
        assert!(again.ticks > now && again.back == SECOND, "{again:?}");
        assert_eq!(e.offset_at(5 * SECOND, SECOND), offset);
        assert_eq!(e.offset_at(SECOND, SECOND), again.offset);
    }

    #[test]
    fn another_collector_goes_on_in_the_same_epoch() {
        let mut e = epochs();
        let pass = Pass { ticks: 900 * SECOND, clock_ns: 5 * SECOND, ..Pass::default() };
        e.continue_from(Some(&pass), 890 * SECOND);
        e.looked(11 * SECOND, 6 * SECOND);
        assert_eq!((e.begun().count(), e.offset_at(0, 11 * SECOND)), (0, 890 * SECOND));
        // The machine slept while nobody collected.
        e.looked(SECOND, 8 * SECOND);
        assert_eq!(e.begun().next().map(|b| b.ticks), Some(903 * SECOND + SECOND / APART + 1));
    }

    /// Writes a closed segment with one allocation at each of these times.
    fn segment(shared: &prof_trace::shared::Shared, thread: u32, seq: u64, times: &[u64]) {
        let index = ring::take(shared, 0).expect("a segment");
        ring::open(shared, index, thread, thread, thread, seq);
        let (data, mut codec, mut at) = (shared.data(index).expect("data"), Codec::default(), 0);
        for time in times {
            assert!(at + MAX_EVENT <= prof_trace::shared::SEGMENT_SIZE);
            // SAFETY: inside of the segment, which nobody else has.
            at += unsafe { codec.put_alloc(data.add(at), *time, 0x1000, 8, 0) };
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
        let (mut drain, mut threads) = (Drain::new(&shared), Threads::new(std::process::id()));
        let (mut tree, mut e) = (Tree::new(), epochs());
        let now = e.clock.now();
        let old = now + 1000 * SECOND;
        // What the counter was when the last pass began, and events of that time.
        e.last = Some((old, monotonic_ns()));
        segment(&shared, 1, 1, &[old - 20, old + 30]);
        let mut pass = |drain: &mut Drain, e: &mut Epochs, out: &mut Output| {
            drain.pass(&shared, &mut threads, &mut tree, out, e, |_, _, _| {});
            drain.flush(&shared, out);
        };
        // It has gone back by now: one of both threads has noticed, the other one was there before.
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
        let later = |time: u64| time + offset;
        let of_first = [(1, old - 20), (1, old + 30), (1, later(now)), (1, later(now + 5))];
        let of_second = [(2, old + 40), (2, later(now + 9))];
        assert_eq!(seen, [&of_first[..], &of_second].concat());
        assert!(later(now) > old + 40, "{offset}");
    }
}
