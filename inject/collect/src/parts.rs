//! Divides the segments of a look at the ring into parts, so that what is written of each is bounded: a recording may have
//! to be folded in between. Each part is a pass of the recording. So it has to take the oldest events, of whichever
//! thread: no event of a later part may be older than what its pass states.

use prof_trace::ring::View;
use prof_trace::ticks::Ticks;

/// A segment in a look at the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub view: View,
    /// Number of its bytes that were not read yet.
    pub unread: usize,
    /// Time, in ticks of the recording, before which none of the events is that were not read; `None`: there are none.
    pub from: Option<Ticks>,
}

/// The order in which the segments of a look are read.
#[derive(Debug)]
pub(crate) struct Parts {
    /// Number of bytes of events after which a part ends.
    most: usize,
    all: Vec<Place>,
    /// For each segment the time before which no unread event in it, or in those behind it, is. Empty where all are one part.
    bounds: Vec<Ticks>,
    at: usize,
    /// End of the present part.
    end: usize,
    begun: bool,
}

impl Parts {
    /// Creates parts without a look. Further looks are read in one part each.
    pub(crate) fn new() -> Self {
        let (all, bounds) = (Vec::new(), Vec::new());
        Self { most: usize::MAX, all, bounds, at: 0, end: 0, begun: false }
    }

    /// Has further looks read in parts of about this many bytes of events.
    pub(crate) fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    /// Returns whether so many bytes are read in one part.
    pub(crate) fn is_one(&self, bytes: usize) -> bool {
        bytes <= self.most
    }

    /// Returns whether a look has segments that were not read yet.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Begins to read the segments of a look in one part, in this order.
    pub(crate) fn begin(&mut self, views: &[View]) {
        self.bounds.clear();
        self.all.clear();
        self.all.extend(views.iter().map(|view| Place { view: *view, unread: 0, from: None }));
        (self.at, self.end, self.begun) = (0, self.all.len(), true);
    }

    /// Begins to read the segments of a look in the order of time, where those of a thread stay in the given order.
    pub(crate) fn begin_by_time(&mut self, places: Vec<Place>) {
        let mut before: Option<(u32, Ticks)> = None;
        let mut order: Vec<(Ticks, Place)> = places
            .into_iter()
            .map(|place| {
                let least =
                    before.filter(|b| b.0 == place.view.serial).map_or(Ticks::ZERO, |b| b.1);
                let key = place.from.map_or(least, |from| from.max(least));
                before = Some((place.view.serial, key));
                (key, place)
            })
            .collect();
        order.sort_by_key(|(key, place)| (*key, place.view.serial));
        self.all.clear();
        self.all.extend(order.into_iter().map(|(_, place)| place));
        let mut least = Ticks(u64::MAX);
        self.bounds.clear();
        self.bounds.extend(self.all.iter().rev().map(|place| {
            least = least.min(place.from.unwrap_or(least));
            least
        }));
        self.bounds.reverse();
        (self.at, self.begun) = (0, true);
        self.find_end();
    }

    /// Returns the time before which nothing is left to read when this part is read; `None`: it is the last one.
    pub(crate) fn bound(&self) -> Option<Ticks> {
        self.bounds.get(self.end).copied()
    }

    /// Returns the time before which nothing is left to read now, if that is known.
    pub(crate) fn first(&self) -> Option<Ticks> {
        self.bounds.get(self.at).copied()
    }

    /// Returns the next segment of this part; `None` at its end, after which the next part begins, if there is one.
    pub(crate) fn next(&mut self) -> Option<View> {
        if self.at < self.end {
            self.at += 1;
            return Some(self.all[self.at - 1].view);
        }
        self.begun = self.at < self.all.len();
        self.find_end();
        None
    }

    fn find_end(&mut self) {
        let mut bytes = 0usize;
        self.end = self.at;
        // Segments without anything to read are no part of their own.
        while let Some(place) = self.all.get(self.end)
            && (bytes < self.most || place.unread == 0)
        {
            bytes += place.unread;
            self.end += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(serial: u32, seq: u64, unread: usize, from: Option<u64>) -> Place {
        let (index, tid, slot) = (seq as usize, serial, serial);
        let view = View { index, serial, tid, slot, seq, closed: true, committed: unread };
        Place { view, unread, from: from.map(Ticks) }
    }

    /// A part: its bound, and serial and number of its segments.
    type Part = (Option<u64>, Vec<(u32, u64)>);

    fn parts(most: usize, places: &[Place]) -> Vec<Part> {
        let mut parts = Parts::new();
        parts.set_most(most);
        parts.begin_by_time(places.to_vec());
        let mut all = Vec::new();
        while parts.has_begun() {
            let (bound, mut read) = (parts.bound().map(|t| t.0), Vec::new());
            while let Some(v) = parts.next() {
                read.push((v.serial, v.seq));
            }
            all.push((bound, read));
        }
        all
    }

    #[test]
    fn the_oldest_events_come_first_and_each_part_states_what_is_left() {
        let places = [
            place(1, 1, 10, Some(100)),
            place(1, 2, 10, Some(300)),
            place(1, 3, 0, None),
            place(2, 7, 10, Some(200)),
            // An interrupted thread: what its segment says is older than the one before.
            place(3, 1, 10, Some(250)),
            place(3, 2, 10, Some(150)),
        ];
        assert_eq!(
            parts(20, &places),
            [
                (Some(150), vec![(1, 1), (2, 7)]),
                (Some(300), vec![(3, 1), (3, 2)]),
                (None, vec![(1, 2), (1, 3)]),
            ]
        );
        assert_eq!(parts(1000, &places).len(), 1);
        assert_eq!(parts(1, &places).len(), 5, "a part has a byte at least");
        assert_eq!(parts(1, &[]), [(None, vec![])], "a look that found nothing is a part, too");
    }
}
