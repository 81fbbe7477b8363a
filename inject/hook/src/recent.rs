//! Cache of the stacks that a thread had lately, for programs that change between many of them.
//!
//! A walk compares with the last stack only, and is long if the two share few frames. So this cache keeps the stacks of
//! long walks: the registers of the innermost frame and the words that the steps read, in compact form. As with the
//! remembered stack, if all are unchanged, the stack is what a full unwind would return. The cache is not consulted as
//! long as walks are short, nor, for a while, after few lookups have found a stack.

use crate::mapping::Shared;
use crate::memory::{self, WORD};
use crate::state::{MOST_RECENT, Recent, Thread, WAYS, WORDS};
use core::sync::atomic::Ordering::Relaxed;
use prof_arch::native::{Regs, Rule, Step};

/// Minimum of the mean number of frames per walk at which lookups begin.
const LONG: u32 = 2;
/// Number of lookups in a round, at the end of which their hits are counted.
const ROUND: u16 = 512;
/// Minimum number of hits in a round for lookups to go on.
const WORTH: u16 = ROUND / 8 * 5;
/// Shortest and longest pause of lookups after a round with fewer hits, in walks.
const RESTS: (u32, u32) = (1 << 12, 1 << 17);
/// Number of lookups in a row that find the same stack before a walk takes it. A walk takes several times as long as a lookup.
const SETTLED: u32 = 32;

/// Returns the first of the entries that a stack may occupy.
fn set(r: &Regs, caller: u64) -> usize {
    let h =
        (r.pc ^ r.sp.rotate_left(20) ^ caller.rotate_left(41)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (h >> 59) as usize * WAYS
}

/// Returns whether a lookup is worth its time; counts down a pause.
#[inline(always)]
pub fn is_worth_it(t: &mut Thread) -> bool {
    if t.rest.0 > 0 {
        t.rest.0 -= 1;
        return false;
    }
    t.walked >= LONG * 16
}

/// Updates the moving average of frames per walk.
#[inline(always)]
pub fn walked(t: &mut Thread, frames: usize) {
    t.walked = (t.walked * 3 + frames as u32 * 16) / 4;
}

/// Counts a lookup. Begins a pause at the end of a round with too few hits.
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

/// Counts the lookups in a row that have found the same entry.
#[inline(always)]
pub fn met(t: &mut Thread, at: usize) {
    let before = if t.met.0 == at as u32 { t.met.1 } else { 0 };
    t.met = (at as u32, before + 1);
}

/// Returns whether the thread has had one and the same stack for a while, which is not the remembered one. Only a walk makes
/// it that, so a thread that settles after many stacks would do lookups for ever, and one takes longer than a comparison
/// with the remembered stack.
#[inline(always)]
pub fn has_settled(t: &mut Thread) -> bool {
    let settled = t.met.1 >= SETTLED;
    if settled {
        t.met.1 = 0;
    }
    settled
}

/// Finds the stack with these registers, whose code address has this rule; returns an index of
/// [`Thread::recent`].
pub fn find(shared: &Shared, t: &Thread, r: &Regs, rule: Rule) -> Option<usize> {
    let end = t.extents[0].end;
    let step = rule.step(r, &mut |addr| {
        let near = addr >= r.sp && addr.checked_add(WORD)? <= end;
        // SAFETY: the word is inside the extent of the stack that this thread runs on.
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
    // The first word is the outermost one.
    if places.first().is_none_or(|p| sp + *p as u64 * WORD + WORD > end) {
        return false;
    }
    // The words nearest to the top change most, so they are compared first.
    core::iter::zip(places, values).rev().all(|(p, v)| {
        // SAFETY: the word is between the stack pointer and the end of the stack: no word is further out than
        // the first one, see `keep`.
        *v == unsafe { memory::load(sp + *p as u64 * WORD) }
    })
}

/// Keeps the remembered stack, whose node in this segment is `node`.
pub fn keep(shared: &Shared, t: &mut Thread, node: u16) {
    let len = t.frames_len as usize;
    let (Some(top), Some(caller)) =
        (t.frames.get(len.wrapping_sub(1)), t.frames.get(len.wrapping_sub(2)))
    else {
        return;
    };
    let words = top.words().min(WORDS);
    if t.scattered != 0 || words == 0 || words > MOST_RECENT || len > MOST_RECENT {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_settled_when_lookups_in_a_row_find_one_entry() {
        // SAFETY: all zeroes is a valid state.
        let mut t = unsafe { std::boxed::Box::<Thread>::new_zeroed().assume_init() };
        assert!(!has_settled(&mut t));
        for _ in 1..SETTLED {
            met(&mut t, 7);
            assert!(!has_settled(&mut t));
        }
        // Another stack in between begins the count anew.
        met(&mut t, 8);
        for _ in 1..SETTLED {
            met(&mut t, 7);
            assert!(!has_settled(&mut t));
        }
        met(&mut t, 7);
        assert!(has_settled(&mut t));
        assert!(!has_settled(&mut t), "one walk is enough");
    }
}
