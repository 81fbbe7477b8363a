//! Events as values, for what decides which of them are written.

use prof_trace::event::{Event, Visit};
use prof_trace::size::CodedSize;
use prof_trace::ticks::Ticks;

/// Number of bytes that an event has on average, rather less than more.
const EVENT: usize = 5;

/// Collects events as they are.
pub(crate) struct Decoded(pub Vec<Event>);

impl Decoded {
    /// Creates an empty list, with room for the events of so many bytes of a segment.
    pub(crate) fn with_room_for(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes / EVENT))
    }
}

impl Visit for Decoded {
    type Node = u32;

    #[inline(always)]
    fn alloc(&mut self, time: Ticks, addr: u64, size: CodedSize, node: u32) -> bool {
        self.0.push(Event::Alloc { time, addr, size, node });
        true
    }

    #[inline(always)]
    fn free(&mut self, time: Ticks, addr: u64, node: u32) -> bool {
        self.0.push(Event::Free { time, addr, node });
        true
    }

    #[inline(always)]
    fn realloc(
        &mut self,
        [time_before, time]: [Ticks; 2],
        old: u64,
        addr: u64,
        size: CodedSize,
        node: u32,
    ) -> bool {
        self.0.push(Event::Realloc { time_before, time, old, addr, size, node });
        true
    }
}
