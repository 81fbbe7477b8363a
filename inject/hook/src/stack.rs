//! The calling thread's stack as a node of the stack tree: unwinding that is memoized and verified.
//!
//! A thread keeps its last stack as frames (pc, sp, fp, node) and, for each, the words of memory
//! that the step out of it read. At the next event only the frames above the deepest kept frame
//! with the same registers are unwound; then the kept words are compared with memory. Unwinding is
//! a function of registers and those words alone, so if all are equal the rest is what a full unwind
//! would return, and the node is known without looking anything up. Where a word differs, unwinding
//! goes on from the frame whose step read it.
//!
//! No return address is replaced, so exceptions, longjmp, fibers and shadow stacks are none of our
//! business.

use crate::resolve::{self, Code};
use crate::state::{CODES, FRAMES, Frame, NODES, SeenCode, SeenNode, Thread, WORDS, Word};
use crate::{extent, full, memory};
use core::sync::atomic::Ordering::Relaxed;
use prof_arch::native::capture::{Call, call_on_stack};
use prof_arch::native::{Regs, Rule, Step};
use prof_trace::shared::{Shared, Slot, flags};
use prof_trace::tree::{self, Found};

/// A stack: its node, and whether it ends before the thread's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Node of the innermost frame; 0: no frame could be told.
    pub node: u32,
    /// It was cut short.
    pub cut: bool,
}

/// The stack of a call.
#[inline(always)]
pub fn capture(shared: &Shared, slot: &Slot, t: &mut Thread, call: &Call) -> Stack {
    let r = &call.regs;
    if extent::is_current(t, r.sp) && t.frames_len > 0 {
        let f = &t.frames[(t.frames_len as usize - 1) & (FRAMES - 1)];
        let same = f.pc == r.pc && f.sp == r.sp && f.fp == r.fp;
        if same && t.scattered == 0 && unchanged(&t.words, f.words as usize) {
            let stack = Stack { node: f.node, cut: t.cut != 0 };
            if shared.control().flags.load(Relaxed) & flags::VERIFY != 0 {
                verify(shared, slot, t, call, stack);
            }
            return stack;
        }
    }
    let mut job = Job { shared, slot, t, call, stack: Stack { node: 0, cut: true } };
    slow(&mut job);
    job.stack
}

/// Compares the first `len` kept words, all on the current stack, with memory.
#[inline(always)]
fn unchanged(words: &[Word; WORDS], len: usize) -> bool {
    let words = words.get(..len).unwrap_or(&[]);
    let (fours, rest) = words.as_chunks::<4>();
    // The words nearest to the top change most: begin there.
    for w in rest.iter().rev() {
        // SAFETY: an aligned or unaligned word inside the stack extent that the thread runs on.
        if unsafe { (w.addr as *const u64).read_unaligned() } != w.value {
            return false;
        }
    }
    for four in fours.iter().rev() {
        let mut differ = 0;
        for w in four {
            // SAFETY: as above.
            differ |= unsafe { (w.addr as *const u64).read_unaligned() } ^ w.value;
        }
        if differ != 0 {
            return false;
        }
    }
    true
}

/// What the slow way works on; it may change to the scratch stack with it.
pub(crate) struct Job<'a> {
    pub shared: &'a Shared,
    pub slot: &'a Slot,
    pub t: &'a mut Thread,
    pub call: &'a Call,
    pub stack: Stack,
}

#[cold]
#[inline(never)]
fn slow(job: &mut Job<'_>) {
    let sp = job.call.regs.sp;
    if !extent::is_current(job.t, sp) {
        on_scratch(job, enter);
    }
    match walk(job, true) {
        Walked::Done => {}
        Walked::NeedFull => on_scratch(job, full::run),
    }
    if job.shared.control().flags.load(Relaxed) & flags::VERIFY != 0 {
        verify(job.shared, job.slot, job.t, job.call, job.stack);
    }
}

unsafe extern "C" fn enter(job: *mut ()) {
    // SAFETY: `on_scratch` passes a job.
    let job = unsafe { &mut *job.cast::<Job<'_>>() };
    extent::enter(job.shared, job.slot.tid.load(Relaxed), job.t, job.call.regs.sp);
}

fn on_scratch(job: &mut Job<'_>, f: unsafe extern "C" fn(*mut ())) {
    let top = job.t.scratch();
    // SAFETY: the scratch stack is this thread's alone, and it is not on it: only code that was
    // called from the thread's own stack comes here, once at a time (`busy_sp`).
    unsafe { call_on_stack(f, core::ptr::from_mut(job).cast(), top) };
}

struct Lookup<'a> {
    shared: &'a Shared,
    pc: u64,
    code: Code,
}

unsafe extern "C" fn compute(arg: *mut ()) {
    // SAFETY: `code_of` passes a lookup.
    let l = unsafe { &mut *arg.cast::<Lookup<'_>>() };
    l.code = resolve::compute(l.shared, l.pc);
}

/// The rule for a code address: from the thread's own memory, the shared table, or computed.
#[inline(always)]
fn code_of(shared: &Shared, t: &mut Thread, pc: u64) -> Code {
    let place = (pc.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize & (CODES - 1);
    let modules = shared.control().modules_seq.load(Relaxed);
    let seen = &t.codes[place];
    if seen.pc == pc && seen.modules == modules {
        return Code { id: seen.id, rule: Rule::from_u64(seen.rule) };
    }
    look_up(shared, t, pc, place, modules)
}

#[cold]
#[inline(never)]
fn look_up(shared: &Shared, t: &mut Thread, pc: u64, place: usize, modules: u32) -> Code {
    let code = match resolve::known(shared, pc) {
        Some(code) => code,
        None => {
            let mut l = Lookup { shared, pc, code: Code { id: 0, rule: Rule::UNKNOWN } };
            // SAFETY: as in `on_scratch`.
            unsafe { call_on_stack(compute, core::ptr::from_mut(&mut l).cast(), t.scratch()) };
            l.code
        }
    };
    if code.id != 0 {
        t.codes[place & (CODES - 1)] =
            SeenCode { pc, rule: code.rule.to_u64(), id: code.id, modules };
    }
    code
}

/// The node of a frame below `parent`; 0 if the tree is full.
#[inline(always)]
fn node_of(shared: &Shared, nodes: &mut [SeenNode; NODES], parent: u32, code: u32) -> u32 {
    let key = (parent as u64) << 32 | code as u64;
    let place = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55) as usize & (NODES - 1);
    if nodes[place].key == key {
        return nodes[place].id as u32;
    }
    match tree::node(shared, parent, code) {
        Found::Id(id) => {
            nodes[place] = SeenNode { key, id: id as u64 };
            id
        }
        _ => 0,
    }
}

enum Walked {
    Done,
    NeedFull,
}

/// The frames and words that a walk has found, written from the end of the thread's arrays down,
/// since they are found from the innermost out and kept from the root in.
struct New {
    frames: usize,
    words: usize,
    scattered: bool,
    cut: bool,
}

/// Unwinds until a kept frame matches, or to the end; with `memo` false, without looking at what
/// is kept.
fn walk(job: &mut Job<'_>, memo: bool) -> Walked {
    let (shared, max) = (job.shared, job.shared.control().max_depth as usize);
    let t = &mut *job.t;
    let mut kept = if memo { (t.frames_len as usize).min(FRAMES) } else { 0 };
    let mut new = New { frames: FRAMES, words: WORDS, scattered: false, cut: false };
    let mut r = job.call.regs;
    loop {
        while kept > 0 && t.frames[kept - 1].sp < r.sp {
            kept -= 1;
        }
        if kept > 0 && same(&t.frames[kept - 1], &r) {
            match rejoin(shared, t, &mut new, kept) {
                Rejoin::All => break,
                Rejoin::From(k, code) => {
                    kept = k;
                    // The frame that the changed word belongs to: step out of it anew.
                    let f = t.frames[k];
                    r = Regs { pc: f.pc, sp: f.sp, fp: f.fp };
                    match advance(shared, t, &mut new, &mut r, code, kept) {
                        Advance::Go => continue,
                        Advance::Root => kept = 0,
                        Advance::NeedFull => return Walked::NeedFull,
                    }
                    break;
                }
                Rejoin::NoRoom => {
                    kept = 0;
                }
            }
        }
        if FRAMES - new.frames + kept.min(1) >= max {
            new.cut = true;
            kept = 0;
            break;
        }
        if kept > 0 && (new.frames <= kept + 1 || new.words < t.frames[kept - 1].words as usize + 8)
        {
            // No room for both: what is kept was of another stack.
            kept = 0;
        }
        let code = code_of(shared, t, r.pc);
        if code.rule == Rule::UNKNOWN {
            // No code at all: a frame pointer has led astray.
            new.cut = true;
            kept = 0;
            break;
        }
        match advance(shared, t, &mut new, &mut r, code, kept) {
            Advance::Go => {}
            Advance::Root => {
                kept = 0;
                break;
            }
            Advance::NeedFull => return Walked::NeedFull,
        }
    }
    job.stack = join(shared, t, &new, kept, max);
    Walked::Done
}

#[inline(always)]
fn same(f: &Frame, r: &Regs) -> bool {
    f.pc == r.pc && f.sp == r.sp && f.fp == r.fp
}

enum Advance {
    Go,
    Root,
    NeedFull,
}

/// Adds the frame `r` and steps out of it.
fn advance(
    shared: &Shared,
    t: &mut Thread,
    new: &mut New,
    r: &mut Regs,
    code: Code,
    kept: usize,
) -> Advance {
    if new.frames <= kept || new.frames == 0 || code.id == 0 {
        new.cut = true;
        return Advance::Root;
    }
    let before = new.words;
    let sp = r.sp;
    let (extents, words) = (&t.extents, &mut t.words);
    let floor =
        (t.words_len as usize).min(if kept > 0 { t.frames[kept - 1].words as usize } else { 0 });
    let (mut at, mut scattered) = (new.words, new.scattered);
    let step = code.rule.step(r, &mut |addr| {
        let near =
            extents[0].start <= addr && addr.saturating_add(8) <= extents[0].end && addr >= sp;
        let value =
            if near || extents.iter().any(|e| e.start <= addr && addr.saturating_add(8) <= e.end) {
                // SAFETY: inside an extent that was found readable, of a stack this thread runs on.
                unsafe { (addr as *const u64).read_unaligned() }
            } else {
                memory::word(shared, addr)?
            };
        scattered |= !near;
        at = at.checked_sub(1)?;
        if at < floor {
            return None;
        }
        *words.get_mut(at)? = Word { addr, value };
        Some(value)
    });
    new.words = at;
    new.scattered = scattered;
    new.frames -= 1;
    t.frames[new.frames & (FRAMES - 1)] =
        Frame { pc: r.pc, sp: r.sp, fp: r.fp, node: code.id, words: (before - at) as u32 };
    match step {
        Step::Next(mut next) => {
            if code.rule.is_signal() {
                // Code addresses are looked up one below; an interrupted one is meant exactly.
                next.pc = next.pc.wrapping_add(1);
            }
            *r = next;
            Advance::Go
        }
        Step::End => Advance::Root,
        Step::Cut => {
            new.cut = !is_start(shared, r, code);
            Advance::Root
        }
        Step::NeedFull => Advance::NeedFull,
    }
}

/// Whether a frame without a way out is where its thread began: entry code that has no call frame
/// information, with the frame pointer that the kernel gave it (psABI AMD64, 3.4.1: zero there marks
/// the deepest frame).
#[cold]
fn is_start(shared: &Shared, r: &Regs, code: Code) -> bool {
    let module = tree::pc_parts(shared, code.id).map_or(0, |p| p.1);
    r.fp == 0 && code.rule == Rule::FRAME_POINTER && module != 0
}

enum Rejoin {
    /// Everything from the matching frame to the root is as it was.
    All,
    /// The step out of kept frame `.0` (whose code is `.1`) must be done again; the frames above it
    /// have been added to the new ones.
    From(usize, Code),
    /// Not enough room to put the kept frames aside.
    NoRoom,
}

/// The frame `kept - 1` matches: how much of what is kept below it still holds?
fn rejoin(shared: &Shared, t: &mut Thread, new: &mut New, kept: usize) -> Rejoin {
    let len = (t.frames[kept - 1].words as usize).min(WORDS);
    if t.scattered == 0 && unchanged(&t.words, len) {
        return Rejoin::All;
    }
    let Some(bad) = (0..len).rev().find(|i| !holds(shared, t, *i)) else {
        return Rejoin::All;
    };
    // The frame whose step read the changed word.
    let mut k = kept - 1;
    while k > 0 && t.frames[k - 1].words as usize > bad {
        k -= 1;
    }
    // Frames kept-1 ..= k hold, the steps out of kept-1 .. k+1 too: they are new frames now.
    let moved = kept - 1 - k;
    let base = t.frames[k].words as usize;
    let words = len.saturating_sub(base);
    if new.frames < kept + moved || new.words < len + words {
        return Rejoin::NoRoom;
    }
    let mut above = len as u32;
    for i in (k + 1..kept).rev() {
        let mut f = t.frames[i];
        let below = t.frames[i - 1].words;
        f.words = above.saturating_sub(below);
        above = below;
        let Some((_, pc_id)) = tree::node_parts(shared, f.node) else { return Rejoin::NoRoom };
        f.node = pc_id;
        new.frames -= 1;
        t.frames[new.frames & (FRAMES - 1)] = f;
    }
    new.words -= words;
    shift(&mut t.words, base, new.words, words);
    new.scattered |= t.scattered != 0;
    let f = t.frames[k];
    let Some((_, id)) = tree::node_parts(shared, f.node) else { return Rejoin::NoRoom };
    let Some(e) = shared.pc((id as usize).wrapping_sub(1)) else { return Rejoin::NoRoom };
    let rule = Rule::from_u64(e.rule.load(Relaxed));
    Rejoin::From(k, Code { id, rule })
}

/// The node below which stacks stand that were cut short, so that each says so itself.
#[cold]
pub(crate) fn cut_root(shared: &Shared) -> u32 {
    let Found::Id(mark) = tree::add_pc(shared, tree::CUT, 0) else { return 0 };
    match tree::node(shared, 0, mark) {
        Found::Id(id) => id,
        _ => 0,
    }
}

/// Moves `count` elements from one place of an array to another; nothing if they are not all inside.
fn shift<T: Copy>(all: &mut [T], from: usize, to: usize, count: usize) {
    if count <= all.len() && from <= all.len() - count && to <= all.len() - count {
        // SAFETY: both ranges are inside the slice.
        unsafe {
            let p = all.as_mut_ptr();
            core::ptr::copy(p.add(from), p.add(to), count);
        }
    }
}

/// Whether a kept word stands in memory as it did.
fn holds(shared: &Shared, t: &Thread, i: usize) -> bool {
    let Some(w) = t.words.get(i) else { return false };
    if extent::is_known(t, w.addr) {
        // SAFETY: inside an extent that was found readable, of a stack this thread runs on.
        return unsafe { (w.addr as *const u64).read_unaligned() } == w.value;
    }
    memory::word(shared, w.addr) == Some(w.value)
}

/// Puts the new frames behind the `kept` ones, finds their nodes, and returns the stack.
fn join(shared: &Shared, t: &mut Thread, new: &New, kept: usize, max: usize) -> Stack {
    let (mut parent, mut words) = (0, 0);
    if kept > 0 {
        let f = &t.frames[kept - 1];
        (parent, words) = (f.node, f.words);
    } else {
        t.cut = 0;
        t.scattered = 0;
        if new.cut {
            parent = cut_root(shared);
        }
    }
    t.scattered |= new.scattered as u32;
    t.cut |= new.cut as u32;
    let count = FRAMES.wrapping_sub(new.frames);
    // Always so: new frames and words are only added where there is room behind the kept ones.
    if new.frames > FRAMES || kept > new.frames || new.words > WORDS || words as usize > new.words {
        t.forget();
        return Stack { node: 0, cut: true };
    }
    shift(&mut t.words, new.words, words as usize, WORDS - new.words);
    shift(&mut t.frames, new.frames, kept, count);
    for i in kept..kept + count {
        let f = &mut t.frames[i & (FRAMES - 1)];
        let node = node_of(shared, &mut t.nodes, parent, f.node);
        if node == 0 {
            // The tree is full: what is known of the stack is its outer part.
            t.forget();
            return Stack { node: parent, cut: true };
        }
        parent = node;
        words += f.words;
        f.node = parent;
        f.words = words;
    }
    t.frames_len = (kept + count) as u32;
    t.words_len = words;
    let stack = Stack { node: parent, cut: t.cut != 0 };
    if kept + count > max || (t.cut != 0 && count >= max) {
        // Which frames a cut stack shows depends on where it was begun: unwind it in full next time.
        t.forget();
        if kept + count > max {
            return Stack { node: parent, cut: true };
        }
    }
    stack
}

/// Takes the stack once more without the memo, and compares (`flags::VERIFY`).
#[cold]
#[inline(never)]
fn verify(shared: &Shared, slot: &Slot, t: &mut Thread, call: &Call, memoized: Stack) {
    t.forget();
    let mut job = Job { shared, slot, t, call, stack: Stack { node: 0, cut: true } };
    if let Walked::NeedFull = walk(&mut job, false) {
        on_scratch(&mut job, full::run);
    }
    if job.stack != memoized {
        crate::record::add(&slot.mismatches, 1);
    }
}
