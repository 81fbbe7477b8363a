//! Unwinds a stopped thread from outside, to see whether prof's code is on its stack.

use crate::process::elf::Module;
use crate::stopped::memory::{WORD, words};
use crate::stopped::starts::Starts;
use crate::stopped::tables::Tables;
use crate::{RemoteAddr, RemoteMemory};
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::insn::rule_by_code;
use prof_arch::native::rule::{is_interrupted_pc, is_sigreturn_code};
use prof_arch::native::{FullRegs, Regs, Rule, Step, UserRegs};
use prof_arch::unwind::{
    CfiContext, CfiRule, FullStep, RegisterSet, compile, saved_registers, step_full,
};
use prof_os::maps::Map;
use prof_os::task::Asleep;
use std::collections::HashMap;
use std::ops::Range;

const MAX_FRAMES: usize = 4096;
/// Maximum number of bytes of all modules' tables that are read beforehand.
const MAX_TABLES: u64 = 512 << 20;
/// Maximum length of a sleeping thread's stack in use that is searched for return addresses.
const SEARCH: u64 = 256 << 10;
/// Maximum number of bytes of a stack that are searched for signal frames if it can't be unwound to its end. A large
/// frame of the handler may lie in front of them; most stacks are no longer than this.
const SEARCH_SIGNALS: u64 = 8 << 20;

/// Number of bytes from the stack pointer on that are searched for return addresses where code has no tables: such
/// functions as an allocator calls (locks, system calls) need no more.
const NEAR: usize = 32 * WORD;

/// A frame of a stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// Address of the instruction that was interrupted, or an address in the call instruction.
    pub at: RemoteAddr,
    /// Index of its module.
    pub module: usize,
    /// Whether this is the frame of a signal that was delivered to the thread.
    pub is_signal: bool,
}

/// The result of following a stack.
enum Followed {
    /// To an address that was looked for.
    Hit,
    /// To the thread's start.
    Whole,
    /// To a frame whose caller can't be found.
    UpTo(FullRegs),
}

/// Unwinds the stacks of one process.
#[derive(Debug)]
pub struct Walker<'a> {
    mem: &'a RemoteMemory,
    modules: Vec<Module>,
    maps: Vec<Map>,
    cfi: HashMap<usize, Tables>,
    /// Whether the last stack led through code without tables.
    by_code: bool,
    /// Whether all code without tables is followed, and not only such as is known to keep its frames in one way.
    follows_code: bool,
    /// Whether the last stack's first frame was taken from a table that holds for calls only.
    by_calls: bool,
}

impl<'a> Walker<'a> {
    /// Makes a walker for a process with these modules and mappings.
    #[must_use]
    pub fn new(mem: &'a RemoteMemory, modules: Vec<Module>, maps: Vec<Map>) -> Self {
        let cfi = HashMap::new();
        Self { mem, modules, maps, cfi, by_code: false, follows_code: false, by_calls: false }
    }

    /// Reads all modules' tables, so that no thread is stopped for that later.
    pub fn read_tables(&mut self) {
        let mut room = MAX_TABLES;
        for (i, m) in self.modules.iter().enumerate() {
            // Larger tables, which a hostile target may claim to have, are read only when a stack leads to them.
            let Some(left) = room.checked_sub(Tables::len_of(m)) else { continue };
            room = left;
            self.cfi.entry(i).or_insert_with(|| Tables::of(self.mem, m));
        }
    }

    /// Returns whether the thread's program counter or a return address on its stack lies in one of the ranges. Where
    /// a stack can't be followed to its end (a JIT's code), `marked` tells whether the hook itself has marked the
    /// thread as inside. Besides that, only a signal frame can return into the ranges.
    pub fn touches(
        &mut self,
        regs: &UserRegs,
        ours: &[Range<u64>],
        marked: impl FnOnce() -> bool,
    ) -> bool {
        let hit = |a: u64| ours.iter().any(|r| r.contains(&a));
        match self.follow(regs, &hit) {
            Followed::Hit => true,
            // Rules from code are nearly always right; the hook's own mark is consulted as well.
            Followed::Whole => self.by_code && marked(),
            Followed::UpTo(_) => marked() || self.search(regs.sp(), &hit),
        }
    }

    /// Returns whether a thread is inside of an allocator's code, or may be: where its stack can't be followed in the
    /// module that the code belongs to, return addresses near the stack pointer count, though they may be remains of
    /// earlier calls.
    pub(crate) fn may_be_inside(&mut self, regs: &UserRegs, code: &[Range<u64>]) -> bool {
        let hit = |a: u64| code.iter().any(|r| r.contains(&a));
        match self.follow(regs, &hit) {
            Followed::Hit => true,
            // The rules that have led to the end may have been wrong.
            Followed::Whole => self.by_code && self.is_near(&FullRegs::from(regs), code, &hit),
            Followed::UpTo(last) => self.search(regs.sp(), &hit) || self.is_near(&last, code, &hit),
        }
    }

    /// Returns whether code of a module has been reached that has code of these ranges, and one of the words near the
    /// stack pointer is an address in them.
    fn is_near(&self, at: &FullRegs, code: &[Range<u64>], hit: &dyn Fn(u64) -> bool) -> bool {
        let module = self.module_of(at.pc).map(|i| &self.modules[i]);
        let is_its =
            |r: &Range<u64>| module.is_some_and(|m| m.start.0 <= r.start && r.end <= m.end.0);
        code.iter().any(is_its) && {
            let sp = Regs::from(at).sp;
            let bytes = self.mem.read_some(RemoteAddr(sp & !(WORD as u64 - 1)), NEAR);
            words(&bytes).any(hit)
        }
    }

    /// Follows a stack up to a frame whose address is wanted, to its end, or as far as it can be.
    fn follow(&mut self, regs: &UserRegs, hit: &dyn Fn(u64) -> bool) -> Followed {
        let mut full = FullRegs::from(regs);
        let mut exact = true;
        self.by_code = false;
        for _ in 0..MAX_FRAMES {
            if hit(full.pc) {
                return Followed::Hit;
            }
            match self.step_live(&full, exact) {
                Some(Some((next, signal))) => {
                    full = next;
                    exact = signal;
                }
                Some(None) => return Followed::Whole,
                None => break,
            }
        }
        Followed::UpTo(full)
    }

    /// Returns the frames of a thread's stack, the innermost first, as far as call frame information leads, and whether that is
    /// to its end: a frame in which a thread begins. Where most C code has no such information
    /// ([`COARSE_TABLES`](StoppedRegs::COARSE_TABLES), musl), the code itself leads on.
    pub(crate) fn frames(&mut self, regs: &UserRegs, begins: &Starts) -> (Vec<Frame>, bool) {
        let mem = self.mem;
        let mut full = FullRegs::from(regs);
        let (mut exact, mut all) = (true, Vec::<Frame>::new());
        self.begin(full.pc);
        self.follows_code = begins.by_code();
        self.by_calls |= self.follows_code && !self.is_covered(full.pc);
        for _ in 0..MAX_FRAMES {
            let at = if exact { full.pc } else { full.pc.wrapping_sub(1) };
            let Some(module) = self.module_of(full.pc) else { break };
            let is_signal = is_sigreturn_code(&self.mem.read_some(RemoteAddr(full.pc), 16));
            let frame = Frame { at: RemoteAddr(at), module, is_signal };
            let is_called = all.last().is_some_and(|l| l.module != module && !l.is_signal);
            all.push(frame);
            if is_called && begins.calls_main(&frame, Regs::from(&full).sp) {
                return (all, true);
            }
            match self.step_live(&full, exact) {
                Some(_) if self.is_beside_tables() && !self.follows_code => break,
                Some(Some((next, signal))) => (full, exact) = (next, signal),
                // musl's stacks end as above.
                Some(None) if self.follows_code => break,
                Some(None) if begins.has(&frame) => return (all, true),
                // Coarse tables may mark a function that they leave out like one without a caller (ARM's epoll_wait).
                Some(None) => {
                    match self.step_by_code(&full, at, &mut |a| mem.word(RemoteAddr(a)).ok()) {
                        Some(Some((next, signal))) => (full, exact) = (next, signal),
                        _ => break,
                    }
                }
                None => break,
            }
        }
        (all, false)
    }

    /// Returns whether a stack may lead through a signal handler, or through code of these ranges, by all of its words: those
    /// that are remains of earlier calls count as well.
    pub(crate) fn may_lead_through(&self, regs: &UserRegs, code: &[Range<u64>]) -> bool {
        let sp = regs.sp() & !(WORD as u64 - 1);
        let Some(stack) = self.maps.iter().find(|m| m.holds(RemoteAddr(sp))) else { return true };
        let len = stack.end.0 - sp;
        let bytes = self.mem.read_some(RemoteAddr(sp), len.min(SEARCH_SIGNALS) as usize);
        let hit = |w: u64| code.iter().any(|r| r.contains(&w.wrapping_sub(1)));
        hit(regs.pc().wrapping_add(1))
            || bytes.len() as u64 != len
            || words(&bytes).any(|w| hit(w) || self.is_restorer(w))
    }

    /// Forgets what was found out about the stack before, and looks at the first address of another.
    pub(super) fn begin(&mut self, pc: u64) {
        (self.by_code, self.by_calls) = (false, UserRegs::COARSE_TABLES && !self.is_covered(pc));
    }

    /// Returns whether the stack that is being followed has led through code without tables, where that is no rule.
    pub(super) fn is_beside_tables(&self) -> bool {
        self.by_code && !UserRegs::COARSE_TABLES
    }

    /// Returns whether the first frame's caller is uncertain on the stack that [`frames`](Self::frames) has returned last,
    /// unless the thread was at a call. The caller may have been passed over.
    pub(crate) fn is_caller_uncertain(&self) -> bool {
        self.by_calls
    }

    /// Returns whether call frame information covers each instruction at this address.
    fn is_covered(&mut self, pc: u64) -> bool {
        let Some(index) = self.module_of(pc) else { return false };
        let (mem, m) = (self.mem, &self.modules[index]);
        self.cfi.entry(index).or_insert_with(|| Tables::of(mem, m)).cfi().covers(pc)
    }

    /// Returns the modules by whose tables stacks are unwound.
    pub(crate) fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// Returns whether a sleeping thread is certainly outside of the ranges because no word of its stack points into
    /// them. Such a thread need not be stopped: if it wakes up meanwhile, frames that would return there stay on its
    /// stack until they have. Returns `false` for a thread in a signal handler, whose frames may continue on another
    /// stack.
    #[must_use]
    pub fn is_clear(&self, at: &Asleep, ours: &[Range<u64>]) -> bool {
        let hit = |a: u64| ours.iter().any(|r| r.contains(&a));
        let Some(stack) = self.maps.iter().find(|m| m.holds(at.sp)) else { return false };
        let from = at.sp.0 & !(WORD as u64 - 1);
        let len = stack.end.0 - from;
        if hit(at.pc.0) || len > SEARCH {
            return false;
        }
        let bytes = self.mem.read_some(RemoteAddr(from), len as usize);
        let words = words(&bytes);
        // With a link register, the return address of a leaf function is in that.
        let all_there = bytes.len() as u64 == len && (!FullRegs::LINK || self.has_frame(at));
        // Set as by the unwinder, since some addresses have a signature in their upper bits.
        let mut as_pc = FullRegs::default();
        let mut words = words.map(|w| {
            as_pc.set_pc(w);
            as_pc.pc
        });
        all_there && !words.any(|w| hit(w) || self.is_restorer(w))
    }

    /// Returns whether the call frame information shows that the function at this address has its return address on
    /// the stack.
    fn has_frame(&self, at: &Asleep) -> bool {
        let Some(index) = self.module_of(at.pc.0) else { return false };
        let Some(tables) = self.cfi.get(&index) else { return false };
        let rule: Rule = compile(&tables.cfi(), at.pc.0, &mut CfiContext::new());
        ![Rule::COMPLEX, Rule::UNKNOWN].contains(&rule)
    }

    fn is_restorer(&self, at: u64) -> bool {
        self.maps.iter().any(|m| m.exec && m.holds(RemoteAddr(at)))
            && is_sigreturn_code(&self.mem.read_some(RemoteAddr(at), 16))
    }

    /// Finds signal frames whose handler has interrupted prof's code. Other words that look like addresses of prof's
    /// code are remains of earlier calls.
    fn search(&self, sp: u64, hit: &dyn Fn(u64) -> bool) -> bool {
        let end = self.maps.iter().find(|m| m.holds(RemoteAddr(sp))).map_or(sp, |m| m.end.0);
        let len = (end - sp).min(SEARCH_SIGNALS) as usize;
        let bytes = self.mem.read_some(RemoteAddr(sp & !(WORD as u64 - 1)), len);
        let words: Vec<u64> = words(&bytes).collect();
        (0..words.len()).any(|i| hit(words[i]) && is_interrupted_pc(&words[i..]))
    }

    pub(super) fn module_of(&self, pc: u64) -> Option<usize> {
        self.modules.iter().position(|m| m.start.0 <= pc && pc < m.end.0)
    }

    /// Takes one step to the caller's frame, by the stack as it is now.
    fn step_live(&mut self, regs: &FullRegs, exact: bool) -> Option<Option<(FullRegs, bool)>> {
        let mem = self.mem;
        self.step(regs, exact, &mut |a| mem.word(RemoteAddr(a)).ok())
    }

    /// Returns whether a signal handler returns to this address.
    pub(super) fn is_sigreturn(&self, pc: u64) -> bool {
        is_sigreturn_code(&self.mem.read_some(RemoteAddr(pc), 16))
    }

    /// Calls `take` with each of its caller's registers that a frame's function has saved, and the address of the word.
    /// Returns whether that is known.
    pub(super) fn saved_registers(
        &mut self,
        regs: &FullRegs,
        look: u64,
        read: &mut dyn FnMut(u64) -> Option<u64>,
        take: &mut dyn FnMut(u16, u64),
    ) -> bool {
        let Some(index) = self.module_of(look) else { return false };
        let (mem, m) = (self.mem, &self.modules[index]);
        let cfi = self.cfi.entry(index).or_insert_with(|| Tables::of(mem, m)).cfi();
        saved_registers(&cfi, regs, look, &mut CfiContext::new(), &mut |a| read(a), take)
    }

    /// Takes one step to the caller's frame. `read` returns the word at an address of the stack. Returns `Some(None)` at the
    /// thread's start, and `None` if the caller can't be found.
    pub(super) fn step(
        &mut self,
        regs: &FullRegs,
        exact: bool,
        read: &mut dyn FnMut(u64) -> Option<u64>,
    ) -> Option<Option<(FullRegs, bool)>> {
        let look = if exact { regs.pc } else { regs.pc.wrapping_sub(1) };
        let mem = self.mem;
        let mut read = |a: u64| read(a);
        if self.is_sigreturn(regs.pc) {
            return match Rule::SIGNAL.step_all(regs, &mut read) {
                FullStep::Next { regs, .. } => Some(Some((regs, true))),
                _ => None,
            };
        }
        let index = self.module_of(look)?;
        let m = &self.modules[index];
        let cfi = self.cfi.entry(index).or_insert_with(|| Tables::of(mem, m)).cfi();
        let mut ctx = CfiContext::new();
        let rule: Rule = compile(&cfi, look, &mut ctx);
        if let Step::Next(next) = rule.step(&Regs::from(regs), &mut |_| None) {
            return Some(Some((regs.with(next), false)));
        }
        match step_full(&cfi, regs, look, &mut ctx, &mut read) {
            FullStep::Next { regs, .. } if regs.pc == 0 => Some(None),
            FullStep::Next { regs, signal } => Some(Some((regs, signal))),
            FullStep::End => Some(None),
            FullStep::NoCfi => self.step_by_code(regs, look, &mut read),
            FullStep::Cut => None,
        }
    }

    /// Takes one step where no table covers the code, if its instructions show the way.
    fn step_by_code(
        &mut self,
        regs: &FullRegs,
        look: u64,
        read: &mut impl FnMut(u64) -> Option<u64>,
    ) -> Option<Option<(FullRegs, bool)>> {
        let mem = self.mem;
        let mut code = |at: u64, to: &mut [u8]| mem.read(RemoteAddr(at), to).is_ok();
        let rule = if self.follows_code {
            rule_by_code(regs.pc, look == regs.pc, &mut code)
        } else {
            Rule::from_code(look.wrapping_add(1), None, &mut code)
        };
        let rule: Rule = rule?;
        self.by_code = true;
        match rule.step_all(regs, read) {
            FullStep::Next { regs, signal } if regs.pc != 0 => Some(Some((regs, signal))),
            FullStep::Next { .. } | FullStep::End => Some(None),
            _ => None,
        }
    }
}
