//! Passes, events, and what changes the meaning or the recording of later events.

use crate::event::{Codec, Event};
#[allow(unused_imports)] // for the documentation
use crate::records::Thread;
use crate::ticks::Ticks;
use crate::wire::{Reader, Writer};
use std::string::String;
use std::vec::Vec;

record! {
    /// Start of a pass, in which the collector reads the segments of all threads. All events with a time
    /// below `ticks` of a pass stand before the next pass, except those of threads that were interrupted
    /// between taking the time and publishing the event.
    Pass {
        /// Number of the pass, from 0.
        number: int,
        /// Ticks at the start of the pass.
        ticks: ticks,
        /// `CLOCK_MONOTONIC` at the same moment, in ns.
        clock_ns: int,
        /// Resident set size of the target, in pages; 0: not read in this pass.
        rss_pages: int,
        /// Address space of the target, in pages; 0: not read in this pass.
        vss_pages: int,
    }
}

record! {
    /// Events of one thread, in their order. The chunks of all threads of a pass follow each other.
    Events {
        /// Thread number, see [`Thread`].
        thread: int32,
        /// Time of the decoding state before the first event.
        time: ticks,
        /// Address of that decoding state.
        addr: int,
        /// Stack node of that decoding state.
        node: int32,
        /// Number of events.
        count: int32,
        /// Encoded events, see [`crate::event`].
        bytes: bytes,
    }
}

impl Events {
    /// Returns the decoding state before the first event.
    pub fn codec(&self) -> Codec {
        Codec { time: self.time, addr: self.addr, node: self.node, defined: 0 }
    }

    /// Returns the events; `None` if there are bytes among them that are none.
    pub fn decoded(&self) -> Option<Vec<Event>> {
        let (mut codec, mut at, mut events) = (self.codec(), 0, Vec::new());
        while let Some((event, n)) = codec.get(self.bytes.get(at..)?) {
            at += n;
            events.push(event);
        }
        (at == self.bytes.len()).then_some(events)
    }
}

record! {
    /// The machine's counter has gone back. The collector corrects times, so that those of the recording
    /// continue.
    Epoch {
        /// Ticks of the recording when this was noticed.
        ticks: ticks,
        /// Ticks by which the counter went back.
        back: int,
        /// Offset that is added to the counter from then on, modulo 2^64.
        offset: int,
    }
}

record! {
    /// The sampling distance changed. Distances that threads have drawn before stay valid, so the distance that a block
    /// states decides about its weight.
    Distance {
        /// Ticks.
        ticks: ticks,
        /// Bytes.
        bytes: int,
    }
}

record! {
    /// Recording was turned on or off.
    Toggle {
        /// Ticks.
        ticks: ticks,
        /// 1: on; 0: off.
        on: int32,
    }
}

/// Greatest number of marks of a recording.
pub const MARKS: usize = 4096;

record! {
    /// A moment that a user has given a name, as a bound of what is asked for later.
    Mark {
        /// Ticks.
        ticks: ticks,
        /// Name; empty: it has none, and is called by its number. Names may occur more than once.
        name: text,
    }
}

record! {
    /// Totals up to this point; the last such chunk is valid.
    Counters {
        /// Events written by the hook.
        events: int,
        /// Events lost because no segment was free in time, or the thread had no slot.
        lost: int,
        /// Calls not recorded because a signal handler made them inside the hook.
        reentered: int,
        /// Stacks that were cut.
        truncated: int,
        /// Stacks that differ between memoized and full unwinding (debugging).
        mismatches: int,
        /// Bytes of damaged events that the collector skipped.
        damaged_bytes: int,
        /// Calls, by index of the hooked function.
        calls: ints,
        /// Stacks that were unwound both with and without the memo.
        verified: later,
        /// Threads whose counters the target has overwritten; the totals have their values from before.
        doubtful: later,
    }
}
