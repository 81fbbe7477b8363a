//! The encoding of events in an unpacked recording.

use prof_trace::event::{Codec, MAX_EVENT, Visit};
use prof_trace::size::CodedSize;
use prof_trace::ticks::Ticks;

/// Writes events in the encoding of an unpacked recording.
pub(crate) struct Plain<'a> {
    /// State of the encoding.
    pub codec: Codec,
    /// The encoded events.
    pub to: &'a mut Vec<u8>,
    /// Number of events written.
    pub events: u32,
}

impl Plain<'_> {
    /// Appends the bytes that `write` writes; returns false if there are none.
    #[inline(always)]
    fn put(&mut self, write: impl FnOnce(&mut Codec, *mut u8) -> usize) -> bool {
        self.to.reserve(MAX_EVENT);
        let at = self.to.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        let n = write(&mut self.codec, at);
        // SAFETY: `reserve` made room for MAX_EVENT bytes from `at`, and `write` has initialised `n` of these.
        unsafe { self.to.set_len(self.to.len() + n) };
        self.events += u32::from(n > 0);
        n > 0
    }
}

impl Visit for Plain<'_> {
    type Node = u32;

    #[inline(always)]
    fn alloc(&mut self, time: Ticks, addr: u64, size: CodedSize, node: u32) -> bool {
        // SAFETY: `put` passes a pointer to MAX_EVENT writable bytes.
        self.put(|c, at| unsafe { c.put_alloc(at, time, addr, size, node) })
    }

    #[inline(always)]
    fn free(&mut self, time: Ticks, addr: u64, node: u32) -> bool {
        // SAFETY: `put` passes a pointer to MAX_EVENT writable bytes.
        self.put(|c, at| unsafe { c.put_free(at, time, addr, node) })
    }

    #[inline(always)]
    fn realloc(
        &mut self,
        times: [Ticks; 2],
        old: u64,
        addr: u64,
        size: CodedSize,
        node: u32,
    ) -> bool {
        let [before, time] = times;
        // SAFETY: `put` passes a pointer to MAX_EVENT writable bytes.
        self.put(|c, at| unsafe { c.put_realloc(at, before, time, old, addr, size, node) })
    }
}
