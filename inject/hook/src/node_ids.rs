//! Names stacks: gives node numbers of the current segment to the frames of the remembered stack.
//!
//! A node is a parent node and a code address. The thread remembers which nodes it has defined in this
//! segment, as far as there is room. A node that it has forgotten is defined again, with a new number;
//! readers find that both are the same. So nothing is looked up in memory that other threads write to, and
//! nothing is kept for longer than the segment.

use crate::mapping::Shared;
use crate::record::next_segment;
use crate::state::{NAMES, SeenName, Thread};
use prof_trace::event::{DEFINE_NODES, MAX_DEFINE};
use prof_trace::ids::{PcId, SegmentNode};
use prof_trace::pcs::{self, Found};
use prof_trace::ring::SEGMENT_FULL;
use prof_trace::shared::Slot;

/// Number of bits in a key for the code address id, and for the parent's number.
const PC_BITS: u32 = 21;
const NUMBER_BITS: u32 = 14;
const _: () = assert!(
    prof_trace::shared::PC_LEVEL0 << prof_trace::shared::PC_LEVELS <= 1 << PC_BITS
        && prof_trace::shared::SEGMENT_SIZE <= 1 << NUMBER_BITS
);

/// Number of values of a key's other bits.
pub const EPOCHS: u32 = 1 << (64 - PC_BITS - NUMBER_BITS);

#[inline(always)]
fn key(epoch: u32, parent: u16, code: PcId) -> u64 {
    (epoch as u64) << (PC_BITS + NUMBER_BITS) | (parent as u64) << PC_BITS | code.0 as u64
}

#[inline(always)]
fn place(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize & (NAMES - 1)
}

/// Assigns nodes to the frames that have none in this segment, and to those from `kept` on. Returns the
/// number of the innermost frame's node, or `None` if there is no room in the ring. Afterwards the segment
/// has room for an event.
#[inline(always)]
pub fn name(shared: &Shared, slot: &Slot, t: &mut Thread, kept: usize) -> Option<u16> {
    let i = kept.min(t.named as usize);
    let parent = match i {
        0 if t.cut != 0 => known_root(shared, t),
        0 => Some(0),
        _ => t.frames.get(i - 1).map(|f| f.node),
    };
    let Some(mut parent) = parent else { return define(shared, slot, t, 0) };
    let (epoch, names) = (t.epoch, &t.names);
    for (at, f) in t.frames.iter_mut().enumerate().take(t.frames_len as usize).skip(i) {
        let key = key(epoch, parent, f.code);
        let seen = &names[place(key)];
        if seen.key != key {
            return define(shared, slot, t, at);
        }
        parent = seen.number;
        f.node = parent;
    }
    t.named = t.frames_len;
    Some(parent)
}

/// Returns whether the thread's segment has room for so many bytes, and an event behind them. It has none if there is no segment,
/// where `pos` is the greatest number.
#[inline(always)]
fn has_room_for(t: &Thread, bytes: usize) -> bool {
    t.pos.saturating_add(bytes) <= SEGMENT_FULL
}

/// Defines nodes for the frames from `i` on. Returns as [`name`] does.
#[inline(never)]
fn define(shared: &Shared, slot: &Slot, t: &mut Thread, mut i: usize) -> Option<u16> {
    let len = t.frames_len as usize;
    let most = |n: usize| (n.div_ceil(DEFINE_NODES) + 1) * MAX_DEFINE;
    if !has_room_for(t, most(len - i)) {
        if t.pos != 0 && !next_segment(shared, slot, t) {
            return None;
        }
        i = 0;
    }
    let mut parent = match i.checked_sub(1) {
        Some(k) => t.frames.get(k).map_or(0, |f| f.node),
        None if t.cut == 0 => 0,
        None => known_root(shared, t).unwrap_or_else(|| define_root(shared, t)),
    };
    while i < len {
        let mut pcs = [PcId::NONE; DEFINE_NODES];
        let first = t.codec.defined as u16;
        for (k, (pc, f)) in pcs.iter_mut().zip(t.frames.iter_mut().take(len).skip(i)).enumerate() {
            *pc = f.code;
            f.node = first + 1 + k as u16;
        }
        parent = define_some(t, parent, pcs);
        i += DEFINE_NODES;
    }
    t.named = t.frames_len;
    Some(parent)
}

/// Names a stack of [`Thread::recent`]. Returns as [`name`] does.
#[inline(always)]
pub fn name_recent(shared: &Shared, slot: &Slot, t: &mut Thread, at: usize) -> Option<u16> {
    let e = t.recent.get(at)?;
    if e.epoch == t.epoch { Some(e.node) } else { rename(shared, slot, t, at) }
}

#[inline(never)]
fn rename(shared: &Shared, slot: &Slot, t: &mut Thread, at: usize) -> Option<u16> {
    let e = t.recent.get(at)?;
    let (len, cut) = (e.len as usize, e.cut);
    if !has_room_for(t, (len + 1) * MAX_DEFINE) && t.pos != 0 && !next_segment(shared, slot, t) {
        return None;
    }
    let mut parent = match cut {
        true => known_root(shared, t).unwrap_or_else(|| define_root(shared, t)),
        false => 0,
    };
    let mut i = 0;
    while i < len {
        let codes = &t.recent.get(at)?.codes;
        let key = key(t.epoch, parent, *codes.get(i)?);
        let seen = t.names[place(key)];
        if seen.key == key {
            parent = seen.number;
            i += 1;
            continue;
        }
        let mut pcs = [PcId::NONE; DEFINE_NODES];
        for (pc, code) in pcs.iter_mut().zip(codes.iter().take(len).skip(i)) {
            *pc = *code;
        }
        parent = define_some(t, parent, pcs);
        i += DEFINE_NODES;
    }
    let epoch = t.epoch;
    let e = t.recent.get_mut(at)?;
    (e.epoch, e.node) = (epoch, parent);
    Some(parent)
}

/// Defines a chain of nodes; returns the number of the last one.
#[inline(always)]
fn define_some(t: &mut Thread, mut parent: u16, pcs: [PcId; DEFINE_NODES]) -> u16 {
    let first = t.codec.defined as u16;
    put(t, parent, pcs);
    for (k, pc) in pcs.iter().enumerate().take_while(|(_, pc)| **pc != PcId::NONE) {
        let number = first + 1 + k as u16;
        remember(t, parent, *pc, number);
        parent = number;
    }
    parent
}

#[inline(always)]
fn remember(t: &mut Thread, parent: u16, code: PcId, number: u16) {
    let key = key(t.epoch, parent, code);
    t.names[place(key)] = SeenName { key, number };
}

#[inline(always)]
fn put(t: &mut Thread, parent: u16, pcs: [PcId; DEFINE_NODES]) {
    // SAFETY: the callers ensure that MAX_EVENT bytes are left behind all definitions.
    t.pos += unsafe { t.codec.put_define(t.data.add(t.pos), SegmentNode(parent.into()), pcs) };
}

/// Returns the code address id of the mark that stands outside the outermost frame of cut stacks;
/// [`PcId::NONE`] if the table is full.
fn mark(shared: &Shared) -> PcId {
    match pcs::add_pc(shared, pcs::CUT, 0) {
        Found::Id(id) => id,
        _ => PcId::NONE,
    }
}

/// Returns the mark's node, if this segment has it.
#[cold]
#[inline(never)]
fn known_root(shared: &Shared, t: &Thread) -> Option<u16> {
    let key = key(t.epoch, 0, mark(shared));
    let seen = t.names[place(key)];
    (seen.key == key).then_some(seen.number)
}

fn define_root(shared: &Shared, t: &mut Thread) -> u16 {
    let mark = mark(shared);
    if mark == PcId::NONE {
        return 0;
    }
    put(t, 0, [mark, PcId::NONE, PcId::NONE]);
    let number = t.codec.defined as u16;
    remember(t, 0, mark, number);
    number
}
