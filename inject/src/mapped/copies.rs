//! Removes the copies of prof's memory that a forked child may have (`hook/src/fork.rs`).

use crate::mapped::mapping::Site;
use crate::mapped::ours::parts_around;
use crate::{RemoteAddr, RemoteMemory};
use prof_os::maps::{self, Map};
use prof_trace::protocol::remote::header;
use prof_trace::shared::{Area, Control, MAGIC};
use std::mem::offset_of;
use std::sync::atomic::Ordering::Relaxed;

/// Returns the private memory with copies that a child has where its parent has the ring: all of it, or its front and the
/// state of a thread. A copy of the control page is in front; without that, the child has mapped other memory there since.
fn copies(mem: &RemoteMemory, maps: &[Map], ring: Area) -> Vec<Area> {
    let is_there = header(mem, ring.addr)
        .is_ok_and(|h| h.magic == MAGIC && h.ring_addr.load(Relaxed) == ring.addr);
    if !is_there {
        return Vec::new();
    }
    let end = ring.addr.saturating_add(ring.len);
    let is_whole = |m: &Map| !m.shared && m.start.0 <= ring.addr && end <= m.end.0;
    if maps.iter().any(is_whole) {
        return vec![ring];
    }
    let word = |field: usize| {
        let mut bytes = [0; 8];
        let at = RemoteAddr(ring.addr).plus(field as u64);
        mem.read(at, &mut bytes).map_or(0, |()| u64::from_ne_bytes(bytes))
    };
    let states = word(offset_of!(Control, states_addr));
    let stride = word(offset_of!(Control, states_stride));
    if !(ring.addr < states && states < end && stride > 0) {
        return Vec::new();
    }
    let front = Area { addr: ring.addr, len: states - ring.addr };
    let mut all = parts_around(maps, Area { addr: states, len: end - states }, Area::default());
    all.retain(|a| a.len == stride && (a.addr - states).is_multiple_of(stride));
    // The control page goes last: it tells that there are copies.
    all.extend(parts_around(maps, front, Area::default()));
    all
}

impl Site<'_> {
    /// Unmaps the copies that a child has where its parent has the ring. Returns whether they are gone.
    pub(crate) fn unmap_copies(&mut self, ring: Area) -> bool {
        let maps = maps::of(self.pid).unwrap_or_default();
        copies(self.mem, &maps, ring).iter().all(|part| self.unmap(part.addr, part.len))
    }
}
