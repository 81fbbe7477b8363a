//! Stacks that the thread had lately, for programs that change between many of them.
//!
//! A walk compares with the last stack only, and where that shares little with the present one it goes
//! far. So the stacks of long walks are kept here, too: the registers of their innermost frame and the
//! words that their steps read, compact. As with the remembered stack, if all are as they were, the
//! stack is what a full unwind would return. Nothing is looked up here as long as walks are short, nor,
//! for a while, where it was seldom of use.

use crate::memory::{self, WORD};
use crate::state::{Thread, WORDS};
use core::sync::atomic::Ordering::Relaxed;
use prof_arch::native::{Regs, Rule, Step};
use prof_trace::shared::Shared;

/// Frames that make walks long ones, on average.
const LONG: u32 = 2;
/// Looks after which it is decided whether they were worth it,
const ROUND: u16 = 512;
/// how many of them must have found something,
const WORTH: u16 = ROUND / 8 * 5;
/// and the shortest and longest rests otherwise, in walks.
const RESTS: (u32, u32) = (1 << 12, 1 << 17);
/// Words that a kept stack may rest on.
const MOST: usize = 40;
const WAYS: usize = 8;
const SETS: usize = 32;
/// Entries of [`Thread::recent`].
pub const RECENT: usize = WAYS * SETS;

/// A stack, and what it rests on.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Recent {
    regs: Regs,
    /// What [`Thread::epoch`] was when it was last named; 0: no stack.
    pub epoch: u32,
    /// What `Control::modules_seq` was.
    modules: u32,
    /// Number of its node in that segment.
    pub node: u16,
    words: u8,
    /// Frames.
    pub len: u8,
    /// It was cut short.
    pub cut: bool,
    /// The frame pointer matters.
    live: bool,
    /// Code address ids, from the root.
    pub codes: [u32; MOST],
    /// Where the words are: from the stack pointer, in words; from the root.
    places: [u16; MOST],
    values: [u64; MOST],
}

/// The entries that a stack may stand in.
fn set(r: &Regs, caller: u64) -> usize {
    let h =
        (r.pc ^ r.sp.rotate_left(20) ^ caller.rotate_left(41)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (h >> 59) as usize * WAYS
}

/// Whether it is worth a look here.
#[inline(always)]
pub fn is_worth_it(t: &mut Thread) -> bool {
    if t.rest.0 > 0 {
        t.rest.0 -= 1;
        return false;
    }
    t.walked >= LONG * 16
}

/// Notes that a walk had to take so many frames: a mean that follows the last few.
#[inline(always)]
pub fn walked(t: &mut Thread, frames: usize) {
    t.walked = (t.walked * 3 + frames as u32 * 16) / 4;
}

/// Notes what a look came to.
#[inline(always)]
pub fn looked(t: &mut Thread, found: bool) {
    t.looks = (t.looks.0 + 1, t.looks.1 + found as u16);
    if t.looks.0 == ROUND {
        t.rest = match t.looks.1 < WORTH {
            true => {
                let rest = (t.rest.1 * 2).clamp(RESTS.0, RESTS.1);
                (rest, rest)
            }
            false => (0, 0),
        };
        t.looks = (0, 0);
    }
}

/// Finds the stack of these registers, whose code address has this rule: an index of
/// [`Thread::recent`].
pub fn find(shared: &Shared, t: &Thread, r: &Regs, rule: Rule) -> Option<usize> {
    let end = t.extents[0].end;
    let step = rule.step(r, &mut |addr| {
        let near = addr >= r.sp && addr.checked_add(WORD)? <= end;
        // SAFETY: inside the extent of the stack this thread runs on.
        near.then(|| unsafe { memory::load(addr) })
    });
    let Step::Next(caller) = step else { return None };
    let modules = shared.control().modules_seq.load(Relaxed);
    let first = set(r, caller.pc);
    let found = t.recent.get(first..first + WAYS)?.iter().position(|e| {
        e.regs.pc == r.pc
            && e.regs.sp == r.sp
            && e.epoch != 0
            && e.modules == modules
            && (e.regs.fp == r.fp || !e.live)
            && holds(e, r.sp, end)
    });
    found.map(|way| first + way)
}

#[inline(always)]
fn holds(e: &Recent, sp: u64, end: u64) -> bool {
    let n = e.words as usize;
    let (Some(places), Some(values)) = (e.places.get(..n), e.values.get(..n)) else { return false };
    // The outermost comes first.
    if places.first().is_none_or(|p| sp + *p as u64 * WORD + WORD > end) {
        return false;
    }
    // Those nearest to the top differ most.
    core::iter::zip(places, values).rev().all(|(p, v)| {
        // SAFETY: between the stack pointer and the end of the stack: no place is further out than
        // the first one, see `keep`.
        *v == unsafe { memory::load(sp + *p as u64 * WORD) }
    })
}

/// Keeps the remembered stack, which was named so.
pub fn keep(shared: &Shared, t: &mut Thread, node: u16) {
    let len = t.frames_len as usize;
    let (Some(top), Some(caller)) =
        (t.frames.get(len.wrapping_sub(1)), t.frames.get(len.wrapping_sub(2)))
    else {
        return;
    };
    let words = top.words().min(WORDS);
    if t.scattered != 0 || words == 0 || words > MOST || len > MOST {
        return;
    }
    let regs = Regs { pc: top.pc, sp: top.sp, fp: top.fp };
    let first = set(&regs, caller.pc);
    t.next_recent = t.next_recent.wrapping_add(1);
    let way = t
        .recent
        .get(first..first + WAYS)
        .and_then(|ways| ways.iter().position(|e| e.epoch == 0))
        .unwrap_or(t.next_recent as usize % WAYS);
    let (live, cut) = (top.is_live(), t.cut != 0);
    let Some(e) = t.recent.get_mut(first + way) else { return };
    e.epoch = 0;
    let outermost = t.words[0].addr;
    for ((w, place), value) in t.words.iter().take(words).zip(&mut e.places).zip(&mut e.values) {
        let from = w.addr.wrapping_sub(regs.sp);
        let Ok(words) = u16::try_from(from / WORD) else { return };
        if !from.is_multiple_of(WORD) || w.addr > outermost {
            return;
        }
        *place = words;
        *value = w.value;
    }
    for (f, code) in t.frames.iter().take(len).zip(&mut e.codes) {
        *code = f.code;
    }
    e.regs = regs;
    e.modules = shared.control().modules_seq.load(Relaxed);
    (e.node, e.words, e.len, e.cut, e.live) = (node, words as u8, len as u8, cut, live);
    e.epoch = t.epoch;
}
