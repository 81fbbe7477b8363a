//! Calls that change mappings, or the settings of the allocator.
//!
//! Such a call may come from the program, from libc while a thread starts or ends, or from inside a hooked allocator,
//! whose own call is recorded when it returns. So [`Slot::inner_sp`] does not decide here whether a call is recorded.
//! It is set only if it is free, so that a detach sees the call. The thread's state is used only after the original has
//! returned, as for an allocation. An enclosing call finds the state as after any other event.

use crate::entry::{CALL, returned, stale};
use crate::mapping::{Shared, add};
use crate::original::{function, pass};
#[cfg(target_arch = "arm")]
use crate::other_args::{FRAME, named_frame};
use crate::record;
use crate::state::Thread;
use crate::{clock, entry, extent, header, memory, sys, thread};
use core::sync::atomic::Ordering::Relaxed;
use prof_arch::native::capture::{Call, Go};
use prof_trace::call::{CallKind, MAX_NAME, RawCall, TEXT_BYTES, pack_prot};
use prof_trace::shared::{Function, Kind, Slot, flags};
use prof_trace::ticks::Ticks;

#[cfg(not(target_arch = "arm"))]
prof_arch::hook_entry!(
    /// Entry of mmap and of all others.
    call, before_call, after_call);
// These functions have more than four arguments.
#[cfg(target_arch = "arm")]
prof_arch::hook_entry_many!(
    /// Entry of mmap and of all others.
    call, before_call, after_call);

/// Flag in the slot's address in a note: the call has marked the slot.
const MARKED: u64 = 1;
/// Option of prctl, and its argument 1, by which it names a mapping.
pub(crate) const PR_SET_VMA: u32 = 0x5356_4d41;
const PR_SET_VMA_ANON_NAME: u32 = 0;
/// Error number of a failed call whose reason can't be read.
const UNKNOWN_ERROR: u16 = 0x7ff;

extern "C" fn before_call(call: &mut Call) -> Go {
    let f = function(call);
    let shared = header::shared();
    let Some((slot, _)) = thread::current(shared) else { return pass(f) };
    if !is_own(shared, slot) {
        return pass(f);
    }
    if takes_own_frame(f, call) {
        add(&slot.lost, 1);
        return pass(f);
    }
    if control_of(f, call).is_some_and(|c| c.is_read()) {
        return pass(f);
    }
    if f.kind == Kind::Brk as u32 && f.break_at != 0 {
        // The function has one argument, so the next one is free.
        // SAFETY: libc's own variable, in the library that the function is in.
        call.args[1] = unsafe { memory::load(f.break_at) };
    }
    // An enclosing call has a mark already, which stays.
    let marks = slot.inner_sp.load(Relaxed) == 0;
    if marks {
        slot.inner_sp.store(call.regs.sp | CALL, Relaxed);
    }
    call.note = [core::ptr::from_ref(slot) as u64 | u64::from(marks), clock::before(shared).0];
    Go { target: f.original, stay: 1 }
}

/// Returns whether the slot belongs to the calling thread, and counts a lost event if not. A thread made by a bare
/// `clone`, and the child of a `vfork`, have the thread pointer of their creator. They can't call an allocator
/// meanwhile, but may map memory. Where the hook may not ask for the thread's id, the thread pointer decides.
fn is_own(shared: &Shared, slot: &Slot) -> bool {
    if !sys::allowed(shared) || sys::gettid() == slot.tid.load(Relaxed) {
        return true;
    }
    // The slot's own counters are another thread's.
    if let Some(away) = shared.control().turned_away.first() {
        away.lost.fetch_add(1, Relaxed);
    }
    false
}

/// Returns whether the call may take away the memory of the hook's frame. A program may give back its stack up to the
/// address right below the caller's frame. The hook's frame lies there, and must be whole when the original returns.
fn takes_own_frame(f: &Function, call: &Call) -> bool {
    /// Bytes below the frame's [`Call`] for the original's return address and registers.
    const BELOW: u64 = 512;
    const PROT_WRITE: u64 = 2;
    const MAP_FIXED: u64 = 0x10;
    let (a, low) = (&call.args, (core::ptr::from_ref(call) as u64).saturating_sub(BELOW));
    let overlaps = a[0] < call.regs.sp && low < a[0].saturating_add(a[1]);
    overlaps
        && match Kind::from_u32(f.kind) {
            Some(Kind::Munmap | Kind::Madvise) => true,
            Some(Kind::Mprotect) => a[2] & PROT_WRITE == 0,
            Some(Kind::Mmap | Kind::Mmap64) => a[3] & MAP_FIXED != 0,
            _ => false,
        }
}

extern "C" fn after_call(call: &mut Call) -> u64 {
    if !header::attached() {
        return 0; // this is a child that was forked meanwhile
    }
    let (shared, [slot, begin]) = (header::shared(), call.note);
    returned(call);
    if slot & MARKED != 0 {
        // SAFETY: set from a reference by `before_call` of the same call, but for the lowest bit.
        unsafe { (*((slot & !MARKED) as *const Slot)).inner_sp.store(0, Relaxed) };
    }
    let f = function(call);
    let slot = match control_of(f, call) {
        None => record(shared, call, Ticks(begin), &[]),
        Some(control) => record_control(shared, call, Ticks(begin), &control),
    };
    if let Some(slot) = slot {
        entry::count(slot, f);
    }
    0
}

/// Arguments of `mallctl` or `mallctlbymib`.
struct Control {
    /// Address of the name, or of the numbers of its parts.
    name: u64,
    /// Number of parts; `None`: the name is text.
    parts: Option<u64>,
    /// Address for the old value, address of the new value, and length of that.
    old: u64,
    new: u64,
    len: u64,
}

/// Greatest number of parts of a name that are recorded.
const PARTS: usize = 8;

impl Control {
    /// Returns whether the call only asks for a value. A call that neither writes nor asks is an order.
    fn is_read(&self) -> bool {
        self.new == 0 && self.old != 0
    }

    /// Returns the new value as a number: an integer of 8 bytes as a signed one.
    fn value(&self, shared: &Shared) -> i64 {
        let mut bytes = [0; 8];
        let len = usize::try_from(self.len).unwrap_or(usize::MAX);
        let Some(to) = bytes.get_mut(..len) else { return 0 };
        if self.new == 0 || len == 0 || !memory::read(shared, self.new, to) {
            return 0;
        }
        match bytes {
            [a, ..] if len == 1 => i64::from(a),
            [a, b, c, d, ..] if len == 4 => i64::from(u32::from_ne_bytes([a, b, c, d])),
            all if len == 8 => i64::from_ne_bytes(all),
            _ => 0,
        }
    }

    /// Writes the name, or the numbers of its parts with points between; returns its length.
    fn name(&self, shared: &Shared, to: &mut [u8; MAX_NAME]) -> usize {
        let Some(parts) = self.parts else { return read_text(shared, self.name, to) };
        let mut len = 0;
        for i in 0..parts.min(PARTS as u64) {
            let Some(part) = memory::word(shared, self.name + i * memory::WORD) else { break };
            if i > 0 {
                len = put_digits(None, to, len);
            }
            len = put_digits(Some(part), to, len);
        }
        len
    }
}

/// Writes a number in decimal, or a point, at `at`; returns the end of it.
fn put_digits(number: Option<u64>, to: &mut [u8; MAX_NAME], mut at: usize) -> usize {
    let mut put = |byte: u8| {
        if let Some(b) = to.get_mut(at) {
            (*b, at) = (byte, at + 1);
        }
    };
    let Some(number) = number else {
        put(b'.');
        return at;
    };
    // Computes the last digit first. The divisor is a constant: a division by a variable has a check that can panic.
    let (mut digits, mut rest, mut count) = ([0; 20], number, 0);
    for digit in &mut digits {
        (*digit, rest) = (b'0' + (rest % 10) as u8, rest / 10);
        count += 1;
        if rest == 0 {
            break;
        }
    }
    for digit in digits.iter().take(count).rev() {
        put(*digit);
    }
    at
}

/// Returns the arguments of a call of `mallctl` or `mallctlbymib`; `None` of another function.
#[inline(always)]
fn control_of(f: &Function, call: &Call) -> Option<Control> {
    let [name, a, b, c, d, e, ..] = call.args;
    if f.kind == Kind::Mallctl as u32 {
        return Some(Control { name, parts: None, old: a, new: c, len: d });
    }
    (f.kind == Kind::MallctlByMib as u32).then_some(Control {
        name,
        parts: Some(a),
        old: b,
        new: d,
        len: e,
    })
}

/// Records a call of jemalloc's functions for its settings, with the setting's name.
#[cold]
#[inline(never)]
fn record_control(
    shared: &Shared,
    call: &Call,
    begin: Ticks,
    control: &Control,
) -> Option<&'static Slot> {
    let mut bytes = [0; MAX_NAME];
    let n = control.name(shared, &mut bytes);
    record(shared, call, begin, bytes.get(..n).unwrap_or(&[]))
}

/// Records a call, unless a signal handler made it while the thread was inside the hook. Returns the thread's slot if
/// the call was recorded, or was lost because the ring had no room.
#[inline(always)]
fn record(shared: &Shared, call: &Call, begin: Ticks, name: &[u8]) -> Option<&'static Slot> {
    let (slot, t) = thread::current(shared)?;
    let (sp, busy) = (call.regs.sp, slot.busy_sp.load(Relaxed));
    if busy != 0 && !stale(slot, t, sp, busy, 0) {
        return None;
    }
    slot.busy_sp.store(sp, Relaxed);
    let time = clock::after(shared);
    let time = clock::not_before(shared, t, time);
    if let Some((start, len)) = taken_away(function(call), call) {
        extent::release(t, start, len);
    }
    if name.is_empty() || put_name(shared, slot, t, name) {
        // The stack is taken first: while the calls that this takes are in progress, nothing of the event is on the
        // thread's own stack, which may be small.
        if let Some(node) = entry::stack_node(shared, slot, t, call) {
            put(shared, slot, t, call, [begin, time], node, name.len());
        }
    }
    slot.busy_sp.store(0, Relaxed);
    Some(slot)
}

/// Returns the start and length of the memory that a call has taken away, or replaced by other memory. Stacks may have
/// been there.
#[inline(always)]
fn taken_away(f: &Function, call: &Call) -> Option<(u64, u64)> {
    const PROT_READ: u64 = 1;
    const MAP_FIXED: u64 = 0x10;
    let a = &call.args;
    match Kind::from_u32(f.kind)? {
        Kind::Munmap | Kind::Mremap => Some((a[0], a[1])),
        // The length is not known; a segment does not begin within a stack.
        Kind::Shmdt => Some((a[0], 1)),
        Kind::Mprotect => (a[2] & PROT_READ == 0).then_some((a[0], a[1])),
        Kind::Mmap | Kind::Mmap64 => (a[3] & MAP_FIXED != 0).then_some((a[0], a[1])),
        _ => None,
    }
}

/// Writes the name in front of a call; returns false if there is no room for it.
#[cold]
#[inline(never)]
fn put_name(shared: &Shared, slot: &Slot, t: &mut Thread, name: &[u8]) -> bool {
    for part in name.chunks(TEXT_BYTES) {
        if !record::has_room(shared, slot, t) {
            add(&slot.lost, 1);
            return false;
        }
        record::extra(t, |codec, at| {
            // SAFETY: `extra` passes a place of MAX_EVENT bytes.
            unsafe { codec.put_text(at, part) }
        });
    }
    true
}

#[inline(never)]
fn put(
    shared: &Shared,
    slot: &Slot,
    t: &mut Thread,
    call: &Call,
    times: [Ticks; 2],
    node: u32,
    name: usize,
) {
    let [begin, time] = times;
    let took = time.since(begin);
    let mut raw = RawCall { time, took, node, ..describe(function(call), call) };
    if raw.kind.has_name() {
        raw.second = name as u64;
    }
    record::event(shared, slot, t, |codec, at| {
        // SAFETY: `event` passes a place of MAX_EVENT bytes.
        unsafe { codec.put_call(at, &raw) }
    });
}

/// Returns whether a result is an error of a function that returns an address.
fn is_no_address(result: u64) -> bool {
    result as usize == usize::MAX
}

fn zigzag(v: i64) -> u64 {
    ((v << 1) ^ (v >> 63)) as u64
}

/// Returns the record of a call that has returned, without its times and stack.
fn describe(f: &Function, call: &Call) -> RawCall {
    let (a, result) = (&call.args, call.result);
    let (flags, prot) = (a[3] as u32, pack_prot(a[2]));
    let no_address = is_no_address(result);
    let address_or = |argument: u64| if no_address { argument } else { result };
    let range = RawCall { addr: a[0], len: a[1], ..RawCall::default() };
    let id = |word: u64| u64::from((word as u32).wrapping_add(1));
    let mmap = RawCall {
        kind: CallKind::Mmap,
        addr: address_or(a[0]),
        prot,
        flags,
        first: a[5],
        second: id(a[4]),
        ..range
    };
    let failed = result as u32 == u32::MAX;
    let (raw, failed) = match Kind::from_u32(f.kind) {
        Some(Kind::Mmap) => (mmap, no_address),
        Some(Kind::Mmap64) => (RawCall { first: long_offset(call), ..mmap }, no_address),
        Some(Kind::Mremap) => {
            let (first, second) = (a[0], a[1]);
            let new = RawCall { addr: address_or(a[0]), len: a[2], ..range };
            (RawCall { kind: CallKind::Mremap, flags, first, second, ..new }, no_address)
        }
        Some(Kind::Shmat) => {
            let (addr, flags, second) = (address_or(a[1]), a[2] as u32, id(a[0]));
            let kind = CallKind::Shmat;
            (RawCall { kind, addr, flags, second, ..RawCall::default() }, no_address)
        }
        Some(Kind::Shmdt) => (RawCall { kind: CallKind::Shmdt, len: 0, ..range }, failed),
        Some(Kind::Madvise) => {
            (RawCall { kind: CallKind::Madvise, flags: a[2] as u32, ..range }, failed)
        }
        Some(Kind::Mprotect) => (RawCall { kind: CallKind::Mprotect, prot, ..range }, failed),
        Some(Kind::Brk) => {
            // The old break is what `before_call` has put there, if it knows where libc keeps it.
            let first = if f.break_at == 0 { 0 } else { a[1] };
            (RawCall { len: 0, first, ..broken(f, call) }, failed)
        }
        Some(Kind::Mallopt) => {
            let (flags, first) = (a[0] as u32, zigzag(i64::from(a[1] as i32)));
            let (kind, second) = (CallKind::Mallopt, u64::from(result as u32));
            (RawCall { kind, flags, first, second, ..RawCall::default() }, false)
        }
        Some(Kind::MallocTrim) => {
            let (kind, second) = (CallKind::MallocTrim, u64::from(result as u32));
            (RawCall { kind, len: a[0], second, ..RawCall::default() }, false)
        }
        Some(Kind::MallocInfo) => {
            let (kind, second) = (CallKind::MallocInfo, u64::from(result as u32));
            (RawCall { kind, flags: a[0] as u32, second, ..RawCall::default() }, false)
        }
        Some(Kind::Mallctl | Kind::MallctlByMib) => return controlled(f, call),
        Some(Kind::Sandbox) => {
            // Of prctl, or of syscall with prctl's number in front. The result is not known.
            let at = if f.size_arg != 0 { 2 } else { 3 };
            let [addr, len] = [a.get(at), a.get(at + 1)].map(|word| word.copied().unwrap_or(0));
            (RawCall { kind: CallKind::NameVma, addr, len, ..RawCall::default() }, false)
        }
        _ => (RawCall { kind: CallKind::Munmap, ..range }, failed),
    };
    RawCall { errno: if failed { error_number(f) } else { 0 }, ..raw }
}

/// Returns the record of a call of jemalloc's settings functions, whose result is an error number.
#[cold]
#[inline(never)]
fn controlled(f: &Function, call: &Call) -> RawCall {
    let Some(control) = control_of(f, call) else { return RawCall::default() };
    let kind = if control.parts.is_none() { CallKind::Mallctl } else { CallKind::MallctlByMib };
    let errno = u16::try_from(call.result as u32).map_or(UNKNOWN_ERROR, |e| e.min(UNKNOWN_ERROR));
    let (len, first) = (control.len, zigzag(control.value(header::shared())));
    RawCall { kind, len, first, errno, ..RawCall::default() }
}

/// Returns the record of a call of `brk` or, if libc's `sbrk` made it, of `sbrk`. The recorded break is the present
/// one, which is the old one after an error.
fn broken(f: &Function, call: &Call) -> RawCall {
    let by_sbrk = call.regs.pc.wrapping_sub(f.caller.addr) < f.caller.len;
    let kind = if by_sbrk { CallKind::Sbrk } else { CallKind::Brk };
    let addr = match f.break_at {
        0 => call.args[0],
        // SAFETY: libc's own variable, in the library that the function is in.
        at => unsafe { memory::load(at) },
    };
    RawCall { kind, addr, ..RawCall::default() }
}

/// Returns the last argument of `mmap64` on a 32-bit machine: it stands behind the fifth, at a multiple of 8.
fn long_offset(call: &Call) -> u64 {
    let at = call.regs.sp + 8;
    // SAFETY: an argument of the call, on the caller's stack.
    let half = |n: u64| u64::from(unsafe { ((at + 4 * n) as *const u32).read_unaligned() });
    half(0) | half(1) << 32
}

/// Returns the value of `errno` after the original has returned.
fn error_number(f: &Function) -> u16 {
    if f.errno_at == 0 {
        return UNKNOWN_ERROR;
    }
    // SAFETY: libc's `__errno_location`, in the library that the function is in. It computes the address of a
    // variable of the calling thread, and does nothing else.
    let errno = unsafe {
        let location: extern "C" fn() -> *const i32 =
            core::mem::transmute(f.errno_at as usize as *const ());
        location().read_volatile()
    };
    u16::try_from(errno).ok().filter(|e| *e != 0).map_or(UNKNOWN_ERROR, |e| e.min(UNKNOWN_ERROR))
}

/// Records a call of `prctl` that names a mapping, given the argument behind the option and the one with the name. This
/// is done before the call, so its result is not known.
#[cold]
#[inline(never)]
pub(crate) fn name(call: &Call, what: u64, text: u64) {
    let shared = header::shared();
    let on = header::flag()[0].load(Relaxed) == 1;
    let recorded = shared.control().flags.load(Relaxed) & flags::MAPPINGS != 0;
    if !on || !recorded || what as u32 != PR_SET_VMA_ANON_NAME {
        return;
    }
    let mut bytes = [0; MAX_NAME];
    let n = read_text(shared, text, &mut bytes);
    record(shared, call, clock::before(shared), bytes.get(..n).unwrap_or(&[]));
}

/// Reads a string up to its end, or as much of it as there is room for; returns its length, 0 if it can't be read.
fn read_text(shared: &Shared, at: u64, to: &mut [u8; MAX_NAME]) -> usize {
    const PAGE: u64 = 4096;
    let here = ((PAGE - (at & (PAGE - 1))) as usize).min(MAX_NAME);
    let end = |bytes: &[u8]| bytes.iter().position(|b| *b == 0);
    let Some((first, rest)) = to.split_at_mut_checked(here) else { return 0 };
    if !memory::read(shared, at, first) {
        return 0;
    }
    match end(first) {
        Some(n) => n,
        None if rest.is_empty() || !memory::read(shared, at + here as u64, rest) => here,
        None => here + end(rest).unwrap_or(rest.len()),
    }
}
