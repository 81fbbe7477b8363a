//! The calling thread's stack as a node of the stack tree, by memoized, verified unwinding.
//!
//! A thread keeps its last stack as frames (pc, sp, fp, node) and, for each frame, the words of memory that
//! the step out of it read. The next event unwinds only the frames above the deepest kept frame with the same
//! registers. Then it compares the kept words with memory. Unwinding is a function of the registers and those
//! words alone, so if all are equal, the rest is what a full unwind would return. If a word differs,
//! unwinding continues to beyond the frame whose step read it.
//!
//! Only what matters is compared. Few steps read the frame pointer, and as a general register it changes all
//! the time. So it counts only in frames from which a step further out reads it before another has replaced
//! it ([`Frame::is_live`]).
//!
//! No return address is replaced, so that exceptions, longjmp, fibers and shadow stacks are not disturbed.

use crate::goroutine::Goroutines;
use crate::mapping::{Shared, add};
use crate::node_ids::{name, name_recent};
use crate::range::Extent;
use crate::recent;
use crate::resolve::{self, Code};
use crate::state::{CODES, FRAMES, Frame, Fresh, SeenCode, Thread, WORDS, Word};
use crate::{extent, full_unwind, memory, modules, sys};
use core::sync::atomic::Ordering::Relaxed;
use prof_arch::native::capture::{Call, call_on_stack};
use prof_arch::native::{Regs, Rule, Step};
use prof_arch::unwind::CfiRule;
use prof_trace::ids::PcId;
use prof_trace::modules::in_doubt;
use prof_trace::pcs;
use prof_trace::shared::{Slot, flags};

/// A stack: its node, and whether it was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Number of the innermost frame's node in the segment; 0: no frame is known.
    pub node: u32,
    /// Whether the stack ends before the thread's start.
    pub cut: bool,
}

/// Returns the stack of a call; `None` if there is no room in the ring. The segment has room for an event
/// (see [`has_room`](crate::record::has_room)), before and after.
#[inline(always)]
pub fn capture(shared: &Shared, slot: &Slot, t: &mut Thread, call: &Call) -> Option<Stack> {
    let r = &call.regs;
    let len = t.frames_len;
    let ready = len > 0
        && t.named == len
        && t.scattered == 0
        && t.modules == shared.control().modules_seq.load(Relaxed);
    if ready && extent::is_current(t, r.sp) {
        let f = &t.frames[(len as usize - 1) & (FRAMES - 1)];
        if f.matches(r) && unchanged(&t.words, f.words()) {
            let stack = Stack { node: f.node as u32, cut: t.cut != 0 };
            if shared.control().flags.load(Relaxed) & flags::VERIFY != 0 {
                verify(&mut Job { shared, slot, t, call });
            }
            return Some(stack);
        }
    }
    slow(&mut Job { shared, slot, t, call })
}

/// Returns whether the first `len` kept words, all on the current stack, are equal to memory.
#[inline(always)]
fn unchanged(words: &[Word; WORDS], len: usize) -> bool {
    let words = words.get(..len).unwrap_or(&[]);
    let (fours, rest) = words.as_chunks::<4>();
    // The words nearest to the top change most, so they are compared first.
    for w in rest.iter().rev() {
        // SAFETY: the word is inside the stack extent that the thread runs on; it may be unaligned.
        if unsafe { memory::load(w.addr) } != w.value {
            return false;
        }
    }
    for four in fours.iter().rev() {
        let mut differ = 0;
        for w in four {
            // SAFETY: as above.
            differ |= unsafe { memory::load(w.addr) } ^ w.value;
        }
        if differ != 0 {
            return false;
        }
    }
    true
}

/// Arguments of the slow path, which take it to the scratch stack.
pub(crate) struct Job<'a> {
    pub shared: &'a Shared,
    pub slot: &'a Slot,
    pub t: &'a mut Thread,
    pub call: &'a Call,
}

#[inline(never)]
fn slow(job: &mut Job<'_>) -> Option<Stack> {
    if !extent::is_current(job.t, job.call.regs.sp) {
        on_scratch(job, enter);
    }
    let c = job.shared.control();
    let verifying = c.flags.load(Relaxed) & flags::VERIFY != 0;
    let modules = c.modules_seq.load(Relaxed);
    if job.t.modules != modules {
        if in_doubt(c) {
            on_scratch(job, settle_doubts);
        }
        // Other code may be where the code of the remembered frames was.
        job.t.forget();
        job.t.forget_goroutines();
        job.t.modules = modules;
    }
    let many = recent::is_worth_it(job.t) && !recent::has_settled(job.t);
    if many {
        let stack = find_recent(job, verifying);
        recent::looked(job.t, stack.is_some());
        // Without a segment there is no room for the stack, whether it is known or not.
        if stack.is_some() || job.t.head.is_null() {
            return stack;
        }
    }
    let mut found = walk(job, true);
    if found.needs_another {
        found = walk(job, false);
    }
    recent::walked(job.t, found.fresh);
    let full = found.needs_full && on_scratch(job, full_unwind::run);
    if !full {
        found.cut |= found.needs_full;
        join(job.t, &found);
        if verifying && !found.needs_full {
            verify(job);
        }
    }
    let t = &mut *job.t;
    let cut = t.cut != 0;
    let node = name(job.shared, job.slot, t, found.kept);
    match node {
        Some(node) if !t.passing => {
            // A deep stack is found again by its remembered frames alone.
            if many && !t.deep {
                recent::keep(job.shared, t, node);
            }
        }
        _ => t.forget(),
    }
    Some(Stack { node: node? as u32, cut })
}

/// Looks for the stack among the thread's recent ones. Returns `None` if it is not there, or if the ring has no room.
#[inline(never)]
fn find_recent(job: &mut Job<'_>, verifying: bool) -> Option<Stack> {
    let (shared, r) = (job.shared, &job.call.regs);
    let code = code_of(shared, job.t, r.pc);
    let at = recent::find(shared, job.t, r, code.rule)?;
    if verifying {
        let found = walk(job, false);
        let e = job.t.recent.get(at)?;
        let same = !found.needs_full
            && found.cut == e.cut
            && found.fresh == e.len as usize
            && job.t.fresh.iter().take(found.fresh).rev().zip(&e.codes).all(|(f, c)| f.code == *c);
        count_verified(job.slot, same);
    }
    recent::met(job.t, at);
    let node = name_recent(shared, job.slot, job.t, at)?;
    Some(Stack { node: node as u32, cut: job.t.recent.get(at)?.cut })
}

fn count_verified(slot: &Slot, same: bool) {
    add(&slot.verified, 1);
    if !same {
        add(&slot.mismatches, 1);
    }
}

unsafe extern "C" fn enter(job: *mut ()) {
    // SAFETY: `on_scratch` passes a job.
    let job = unsafe { &mut *job.cast::<Job<'_>>() };
    extent::enter(job.shared, job.slot.tid.load(Relaxed), job.t, job.call.regs.sp);
}

unsafe extern "C" fn settle_doubts(job: *mut ()) {
    // SAFETY: `on_scratch` passes a job.
    let job = unsafe { &*job.cast::<Job<'_>>() };
    modules::settle_doubts(job.shared);
}

/// Calls one function on the scratch stack; returns false if that was not possible.
fn on_scratch(job: &mut Job<'_>, f: unsafe extern "C" fn(*mut ())) -> bool {
    let (shared, top) = (job.shared, job.t.scratch());
    // SAFETY: the scratch stack is this thread's alone and not in use: only code that was called from the
    // thread's own stack comes here, once at a time (`busy_sp`).
    unsafe { call_undisturbed(shared, f, core::ptr::from_mut(job).cast(), top) }
}

/// Calls `f(arg)` on a scratch stack with this top, with signals blocked. A garbage collector that stops
/// threads by signals takes the stack pointer that its handler sees for the thread's, and a handler that
/// needs much stack would overrun the thread's state. Where signals can't be blocked and the target has such
/// a collector, nothing is called, and it returns false: the stack is cut there.
///
/// # Safety
/// As [`call_on_stack`].
pub(crate) unsafe fn call_undisturbed(
    shared: &Shared,
    f: unsafe extern "C" fn(*mut ()),
    arg: *mut (),
    top: *mut u8,
) -> bool {
    let mask = sys::block_signals(shared);
    if mask.is_none() && !sys::may_be_seen(shared) {
        return false;
    }
    // SAFETY: the caller's promise is that of `call_on_stack`.
    unsafe { call_on_stack(f, arg, top) };
    if let Some(mask) = mask {
        sys::unblock_signals(&mask);
    }
    true
}

struct Lookup<'a> {
    shared: &'a Shared,
    pc: u64,
    variant: Option<bool>,
    code: Code,
}

unsafe extern "C" fn compute(arg: *mut ()) {
    // SAFETY: `code_of` passes a lookup.
    let l = unsafe { &mut *arg.cast::<Lookup<'_>>() };
    l.code = resolve::compute(l.shared, l.pc, l.variant);
}

/// Returns the index of a code address in [`Thread::codes`].
#[inline(always)]
fn place_of(pc: u64) -> usize {
    (pc.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55) as usize & (CODES - 1)
}

/// Returns the rule for a code address: from the thread's cache, from the shared table, or computed.
#[inline(always)]
fn code_of(shared: &Shared, t: &mut Thread, pc: u64) -> Code {
    let place = place_of(pc);
    let modules = shared.control().modules_seq.load(Relaxed);
    let seen = &t.codes[place];
    if seen.pc == pc && seen.modules == modules {
        return Code { id: seen.id, rule: Rule::from_u64(seen.rule) };
    }
    look_up(shared, t, pc, place, modules, None)
}

/// Looks up the address `pc` of an instruction that the signal frame at `sp` has interrupted, if the rule
/// depends on what that frame says.
#[cold]
fn look_up_interrupted(shared: &Shared, t: &mut Thread, pc: u64, sp: u64) {
    let extents = t.extents;
    let mut read = |addr| far(shared, &extents, &mut t.goroutines, addr);
    let Some(variant) = Rule::interrupted_variant(sp, &mut read) else { return };
    let modules = shared.control().modules_seq.load(Relaxed);
    look_up(shared, t, pc, place_of(pc), modules, Some(variant));
}

#[cold]
#[inline(never)]
fn look_up(
    shared: &Shared,
    t: &mut Thread,
    pc: u64,
    place: usize,
    modules: u32,
    variant: Option<bool>,
) -> Code {
    let code = match resolve::known(shared, pc) {
        Some(code) => code,
        None => {
            let code = Code { id: PcId::NONE, rule: Rule::UNKNOWN };
            let mut l = Lookup { shared, pc, variant, code };
            // SAFETY: as in `on_scratch`; `compute` gets a lookup.
            unsafe {
                call_undisturbed(shared, compute, core::ptr::from_mut(&mut l).cast(), t.scratch());
            }
            l.code
        }
    };
    if code.id != PcId::NONE {
        t.codes[place & (CODES - 1)] =
            SeenCode { pc, rule: code.rule.to_u64(), id: code.id, modules };
    }
    code
}

/// Result of a walk: the remembered frames that still hold, and the fresh ones above them.
#[derive(Default)]
struct Found {
    /// Number of remembered frames, from the root, that are part of the stack.
    kept: usize,
    /// Number of fresh frames, see [`Thread::fresh`].
    fresh: usize,
    /// Number of words that the steps out of the fresh frames read.
    words: usize,
    scattered: bool,
    cut: bool,
    /// Whether the stack has more frames than are kept: the outermost of them depends on where the walk began.
    deep: bool,
    /// Whether the walk must be repeated without the memo: found and kept frames are too many together.
    needs_another: bool,
    /// Whether a frame needs an evaluation with all registers.
    needs_full: bool,
}

/// Unwinds until a kept frame matches, or to the end; if `memo` is false, kept frames are ignored.
fn walk(job: &mut Job<'_>, memo: bool) -> Found {
    let (shared, t) = (job.shared, &mut *job.t);
    let max = (shared.control().max_depth as usize).min(FRAMES);
    let mut kept = if memo { (t.frames_len as usize).min(FRAMES) } else { 0 };
    let mut found = Found::default();
    let mut r = job.call.regs;
    let mut words = 0;
    // What lies on the current stack, from the caller's frame on, can be read directly.
    let (low, end) = (r.sp, t.extents[0].end);
    let Some(span) = end.checked_sub(memory::WORD).and_then(|last| last.checked_sub(low)) else {
        return Found { cut: true, ..found };
    };
    loop {
        while kept > 0 && t.frames[kept - 1].sp < r.sp {
            kept -= 1;
        }
        if kept > 0 && t.frames[kept - 1].matches(&r) {
            match first_changed(shared, t, kept - 1) {
                None => break,
                Some(k) => kept = k,
            }
        }
        let code = code_of(shared, t, r.pc);
        if found.fresh == max || code.id == PcId::NONE || code.rule == Rule::UNKNOWN {
            // The stack is too deep, or the address is not code: a wrong frame pointer has led there.
            found.cut = true;
            found.deep = found.fresh == max;
            kept = 0;
            break;
        }
        let before = words;
        let step = {
            let (extents, list, goroutines) = (&t.extents, &mut t.fresh_words, &mut t.goroutines);
            code.rule.step(&r, &mut |addr| {
                let value = if addr.wrapping_sub(low) <= span {
                    // SAFETY: the word is inside the extent of the stack that this thread runs on.
                    unsafe { memory::load(addr) }
                } else {
                    found.scattered = true;
                    far(shared, extents, goroutines, addr)?
                };
                *list.get_mut(words)? = Word { addr, value };
                words += 1;
                Some(value)
            })
        };
        let stepped = matches!(step, Step::Next(_) | Step::End);
        if let Some(fresh) = t.fresh.get_mut(found.fresh) {
            *fresh = Fresh {
                regs: r,
                code: code.id,
                reads_fp: code.rule.reads_fp() || !stepped || !Rule::knows_sp(&r),
                writes_fp: code.rule.writes_fp() && stepped,
                words: (words - before) as u16,
            };
        }
        found.fresh += 1;
        match step {
            Step::Next(next) => {
                r = match code.rule.leaves_stack() {
                    true => arrive(shared, t, code.rule, &r, next),
                    false => next,
                };
                continue;
            }
            Step::End => {}
            Step::Cut => found.cut = !is_start(shared, &r, code),
            Step::NeedFull => found.needs_full = true,
        }
        kept = 0;
        break;
    }
    let room = kept.checked_sub(1).map_or(0, |k| t.frames[k].words()) + words;
    let all = kept + found.fresh;
    // Of a deep stack, another number of frames would end at another one.
    let shifted = kept > 0 && t.deep && all != max;
    found.needs_another = memo && (all > max || shifted || room > WORDS);
    found.kept = kept;
    found.words = words;
    found
}

/// Prepares for frames on another stack, to which the step out of the frame `from` has led. Returns the registers of
/// the first.
#[cold]
#[inline(never)]
fn arrive(shared: &Shared, t: &mut Thread, rule: Rule, from: &Regs, to: Regs) -> Regs {
    if !rule.is_signal() {
        enter_goroutine(shared, t, rule, from);
        return to;
    }
    // Lookups subtract one, so one is added to the exact address of an interrupted instruction.
    let pc = to.pc.wrapping_add(1);
    look_up_interrupted(shared, t, pc, from.sp);
    Regs { pc, ..to }
}

/// Reads a word outside of the used part of the current stack.
#[cold]
#[inline(never)]
pub(crate) fn far(
    shared: &Shared,
    extents: &[Extent; 4],
    goroutines: &mut Goroutines,
    addr: u64,
) -> Option<u64> {
    match known(extents, goroutines, addr) {
        // SAFETY: the word is inside memory that was found readable, of a stack.
        Some(_) => Some(unsafe { memory::load(addr) }),
        None => memory::word(shared, addr),
    }
}

/// Returns the memory around the word at `addr` that can be read directly: a stack that this thread has run on, or a
/// page of the goroutines'.
#[inline]
fn known(extents: &[Extent; 4], goroutines: &mut Goroutines, addr: u64) -> Option<Extent> {
    let stack = extents.iter().find(|e| e.has_word(addr)).copied();
    stack.or_else(|| goroutines.page(addr)).filter(|e| e.has_word(addr))
}

/// Remembers the stack of the goroutine that the step by `rule` has led to, if it has led to one.
#[cold]
pub(crate) fn enter_goroutine(shared: &Shared, t: &mut Thread, rule: Rule, from: &Regs) {
    let (extents, goroutines) = (&t.extents, &mut t.goroutines);
    if let Some(g) = rule.goroutine(from, &mut |addr| far(shared, extents, goroutines, addr)) {
        t.met_goroutines = true;
        goroutines.enter(shared, &g);
    }
}

/// Returns whether a frame without a caller is where its thread began: entry code without call frame
/// information, with the frame pointer that the kernel gave it (psABI AMD64, 3.4.1: zero there marks the
/// deepest frame).
#[cold]
fn is_start(shared: &Shared, r: &Regs, code: Code) -> bool {
    let module = pcs::pc_parts(shared, code.id).map_or(0, |p| p.1);
    r.fp == 0 && code.rule == Rule::FRAME_POINTER && module != 0
}

/// Compares the words that the steps out of the kept frames `0..=top` read with memory. Returns `None` if all
/// are equal, else the innermost frame whose step read one that differs.
#[inline(always)]
fn first_changed(shared: &Shared, t: &mut Thread, top: usize) -> Option<usize> {
    let len = t.frames[top & (FRAMES - 1)].words().min(WORDS);
    if t.scattered != 0 {
        return first_changed_scattered(shared, t, top);
    }
    if unchanged(&t.words, len) {
        return None;
    }
    // SAFETY: without scattered words, each is inside the stack extent that the thread runs on.
    let differs = |w: &Word| w.value != unsafe { memory::load(w.addr) };
    let bad = t.words.get(..len)?.iter().rposition(differs)?;
    Some((0..top).rev().find(|k| t.frames[k & (FRAMES - 1)].words() <= bad).map_or(0, |k| k + 1))
}

/// Computes the result of [`first_changed`] for words of several stacks. It compares the words in the order in which
/// the steps read them: if a word has changed, the address that it led to may not be readable any more.
#[cold]
#[inline(never)]
fn first_changed_scattered(shared: &Shared, t: &mut Thread, top: usize) -> Option<usize> {
    let mut around = t.extents[0];
    (0..=top.min(FRAMES - 1)).rev().find(|k| {
        let from = k.checked_sub(1).map_or(0, |k| t.frames[k].words());
        let to = t.frames[*k].words();
        (from..to).any(|i| {
            !t.words
                .get(i)
                .is_some_and(|w| holds(shared, &t.extents, &mut t.goroutines, w, &mut around))
        })
    })
}

/// Returns whether a kept word is equal to memory. `around` is the memory around the previous word that can be read
/// directly.
#[inline]
fn holds(
    shared: &Shared,
    extents: &[Extent; 4],
    goroutines: &mut Goroutines,
    w: &Word,
    around: &mut Extent,
) -> bool {
    if !around.has_word(w.addr) {
        match known(extents, goroutines, w.addr) {
            Some(e) => *around = e,
            None => return memory::word(shared, w.addr) == Some(w.value),
        }
    }
    // SAFETY: the word is inside memory that was found readable, of a stack.
    w.value == unsafe { memory::load(w.addr) }
}

/// Appends the fresh frames to the kept ones.
///
/// Words that do not matter are left out: saved frame pointers that no frame further out reads.
#[inline(always)]
fn join(t: &mut Thread, found: &Found) {
    let (mut words, mut live) = (0, false);
    match found.kept.checked_sub(1) {
        Some(k) => {
            let f = &t.frames[k & (FRAMES - 1)];
            (words, live) = (f.words(), f.is_live());
        }
        None => {
            t.cut = 0;
            t.scattered = 0;
            t.passing = false;
            t.deep = found.deep;
        }
    }
    t.scattered |= found.scattered as u32;
    t.cut |= found.cut as u32;
    let mut at = found.kept;
    let mut next = found.words;
    for f in t.fresh.iter().take(found.fresh).rev() {
        let count = f.words as usize;
        next -= count;
        let dead = f.writes_fp && !live;
        for i in next..next + count - dead as usize {
            let (Some(to), Some(from)) = (t.words.get_mut(words), t.fresh_words.get(i)) else {
                t.passing = true;
                break;
            };
            *to = *from;
            words += 1;
        }
        live = f.reads_fp || (live && !f.writes_fp);
        t.frames[at & (FRAMES - 1)] = Frame::new(&f.regs, f.code, words, live);
        at += 1;
    }
    t.frames_len = at as u32;
    t.named = t.named.min(found.kept as u32);
}

/// Unwinds the stack once more without the memo, and compares (`flags::VERIFY`).
#[cold]
#[inline(never)]
fn verify(job: &mut Job<'_>) {
    let found = walk(job, false);
    let t = &*job.t;
    let same = !found.needs_full
        && found.cut == (t.cut != 0)
        && found.fresh == t.frames_len as usize
        && t.fresh
            .iter()
            .take(found.fresh)
            .rev()
            .zip(&t.frames)
            .all(|(a, b)| a.code == b.code && a.regs.sp == b.sp);
    count_verified(job.slot, same);
}
