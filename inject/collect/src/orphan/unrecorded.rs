//! Finds the events in the ring that a recording does not have.

use super::{Last, Left};
use crate::drain::Drain;
use crate::missing::Missing;
use crate::output::Output;
use crate::tree::Tree;
use prof_trace::event::{Codec, Entry};
use prof_trace::ring::{self, View};
use prof_trace::shared::Shared;
use prof_trace::ticks::Ticks;

impl Left {
    /// Makes `drain` begin behind the last recorded event in each thread's segments. Calls that change mappings are recorded up
    /// to the last one of the recording; others in front of the last event are written now.
    pub(super) fn skip(
        &self,
        shared: &Shared,
        drain: &mut Drain,
        tree: &mut Tree,
        out: &mut Output,
    ) {
        let views = views(shared);
        for group in views.chunk_by(|a, b| a.serial == b.serial) {
            let missing = self.missing_calls(group[0].serial);
            let Some((segment, at)) = self.last_recorded(shared, group) else { continue };
            for (i, v) in group.iter().enumerate().take(segment + 1) {
                let to = if i < segment { v.committed } else { at };
                drain.begin_at(shared, tree, v, to, (missing, &mut *out));
            }
        }
    }

    /// Returns the number of events and calls in the ring that are not in the recording.
    pub(super) fn unrecorded(&self, shared: &Shared) -> u64 {
        let (views, mut count) = (views(shared), 0);
        for group in views.chunk_by(|a, b| a.serial == b.serial) {
            let missing = self.missing_calls(group[0].serial);
            let call = missing.after.map(|end| end.wrapping_sub(missing.offset));
            let last = self.last_recorded(shared, group);
            for (i, v) in group.iter().enumerate() {
                each_entry(&segment_bytes(shared, v), |entry, time, _, at| {
                    let is_new = match entry {
                        Entry::Event(_) => last.is_none_or(|last| (i, at) > last),
                        Entry::Call(_) => {
                            last.is_none_or(|last| (i, at) > last)
                                || call.is_none_or(|last| time > last)
                        }
                        _ => false,
                    };
                    count += u64::from(is_new);
                });
            }
        }
        count
    }

    fn missing_calls(&self, serial: u32) -> Missing {
        Missing { after: self.last_call.get(&serial).copied(), offset: self.offset() }
    }

    /// Returns the place in a thread's segments behind the last recorded event, as the segment's index in `group` and the
    /// offset in it. If the event is not in the ring any more, all events older than it are recorded. `None`: none is.
    fn last_recorded(&self, shared: &Shared, group: &[View]) -> Option<(usize, usize)> {
        let serial = group[0].serial;
        // Times in the ring are the counter's, of any epoch.
        let offsets: Vec<u64> = self.offsets.iter().rev().copied().chain([0]).collect();
        let raw = |end: Codec| {
            let raw = |offset: &u64| Codec { time: end.time.wrapping_sub(*offset), ..end };
            offsets.iter().map(raw).collect()
        };
        let ends: Vec<Codec> = self.last.get(&serial).and_then(Last::end).map_or(Vec::new(), raw);
        let missing = self.missing_calls(serial);
        let call = missing.after.map(|end| end.wrapping_sub(missing.offset));
        let newest = ends.first().map(|end| end.time);
        let (mut exact, mut older) = (None, None);
        for (i, v) in group.iter().enumerate() {
            each_entry(&segment_bytes(shared, v), |entry, time, addr, at| match entry {
                // The events in front of it were recorded in the same pass.
                Entry::Call(_) if call.is_some_and(|last| time <= last) => {
                    (exact, older) = (exact.map(|_| (i, at)), Some((i, at)));
                }
                Entry::Event(_) => {
                    if ends.iter().any(|end| (time, addr) == (end.time, end.addr)) {
                        exact = Some((i, at));
                    }
                    if newest.is_some_and(|newest| time <= newest) {
                        older = Some((i, at));
                    }
                }
                _ => {}
            });
        }
        exact.or(older)
    }
}

/// Returns the segments in use, in the order of each thread's events.
fn views(shared: &Shared) -> Vec<View> {
    let mut views: Vec<View> =
        (0..shared.geometry().segments()).filter_map(|i| ring::view(shared, i)).collect();
    views.sort_unstable_by_key(|v| (v.serial, v.seq));
    views
}

/// Calls `visit` with each entry of a segment, its time, its address, and the offset behind it.
fn each_entry(bytes: &[u8], mut visit: impl FnMut(Entry, Ticks, u64, usize)) {
    let (mut codec, mut at) = (Codec::default(), 0);
    while let Some((entry, n)) = codec.get_entry(&bytes[at..]) {
        at += n;
        let time = match &entry {
            Entry::Call(call) => call.time,
            _ => codec.time,
        };
        visit(entry, time, codec.addr, at);
    }
}

fn segment_bytes(shared: &Shared, v: &View) -> Vec<u8> {
    let mut bytes = vec![0; v.committed];
    shared.copy_out(v.index, 0, &mut bytes);
    bytes
}
