//! Unwinding a stopped thread from outside, to see whether prof's code is on its stack.

use crate::elf::Module;
use crate::memory::{WORD, words};
use crate::proc::{Asleep, Map};
use crate::tables::Tables;
use crate::{RemoteAddr, RemoteMemory};
use prof_arch::native::rule::{is_interrupted_pc, is_sigreturn_code};
use prof_arch::native::{FullRegs, Regs, Rule, Step, UserRegs};
use prof_arch::unwind::{CfiContext, CfiRule, FullStep, RegisterSet, compile, step_full};
use std::collections::HashMap;
use std::ops::Range;

const MAX_FRAMES: usize = 4096;
/// The most that is read of all modules' tables beforehand.
const MAX_TABLES: u64 = 512 << 20;
/// What is searched of a stack that can't be unwound to its end.
const SEARCH: u64 = 256 << 10;
/// The same for signal frames alone, which a large frame of the handler may keep away: as much as most stacks have.
const SEARCH_SIGNALS: u64 = 8 << 20;

/// Walks stacks of one process.
#[derive(Debug)]
pub struct Walker<'a> {
    mem: &'a RemoteMemory,
    modules: Vec<Module>,
    maps: Vec<Map>,
    cfi: HashMap<usize, Tables>,
    /// The last stack led through code without tables.
    by_code: bool,
}

impl<'a> Walker<'a> {
    /// For a process with these modules and mappings.
    #[must_use]
    pub fn new(mem: &'a RemoteMemory, modules: Vec<Module>, maps: Vec<Map>) -> Self {
        Self { mem, modules, maps, cfi: HashMap::new(), by_code: false }
    }

    /// Reads all modules' tables, so that no thread is stopped meanwhile.
    pub fn read_tables(&mut self) {
        let mut room = MAX_TABLES;
        for (i, m) in self.modules.iter().enumerate() {
            // What a hostile target claims beyond that is read when a stack leads to it.
            let Some(left) = room.checked_sub(Tables::len_of(m)) else { continue };
            room = left;
            self.cfi.entry(i).or_insert_with(|| Tables::of(self.mem, m));
        }
    }

    /// Whether the thread's pc or a return address on its stack lies in one of the ranges. Where a
    /// stack can't be followed to its end (code of a JIT), `marked` tells whether the hook itself says
    /// that the thread is inside; beyond that only a signal frame can return into it.
    pub fn touches(
        &mut self,
        regs: &UserRegs,
        ours: &[Range<u64>],
        marked: impl FnOnce() -> bool,
    ) -> bool {
        let hit = |a: u64| ours.iter().any(|r| r.contains(&a));
        let mut full = FullRegs::from(regs);
        let mut exact = true;
        self.by_code = false;
        for _ in 0..MAX_FRAMES {
            if hit(full.pc) {
                return true;
            }
            match self.step(&full, exact) {
                Some(Some((next, signal))) => {
                    full = next;
                    exact = signal;
                }
                // What code says is nearly always right: the hook's own note is asked as well.
                Some(None) => return self.by_code && marked(),
                None => break,
            }
        }
        marked() || self.search(regs.sp(), &hit)
    }

    /// Whether a sleeping thread is certainly outside of the ranges, as no word of its stack points
    /// into them: then it need not be stopped. (If it wakes up meanwhile, the frames that would return
    /// there stand until they have.) Not in a signal handler, whose frames may go on on another stack.
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
        // A leaf's return address is in a register, where there is one for that.
        let all_there = bytes.len() as u64 == len && (!FullRegs::LINK || self.has_frame(at));
        // As the unwinder takes them: some have a signature above the address.
        let mut as_pc = FullRegs::default();
        let mut words = words.map(|w| {
            as_pc.set_pc(w);
            as_pc.pc
        });
        all_there && !words.any(|w| hit(w) || self.is_restorer(w))
    }

    /// Whether the call frame information says that the function at this address has its return address
    /// on the stack.
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

    /// Looks for signal frames that were entered from prof's code. Other words that look like
    /// addresses of it are what earlier calls have left on the stack.
    fn search(&self, sp: u64, hit: &dyn Fn(u64) -> bool) -> bool {
        let end = self.maps.iter().find(|m| m.holds(RemoteAddr(sp))).map_or(sp, |m| m.end.0);
        let len = (end - sp).min(SEARCH_SIGNALS) as usize;
        let bytes = self.mem.read_some(RemoteAddr(sp & !(WORD as u64 - 1)), len);
        let words: Vec<u64> = words(&bytes).collect();
        (0..words.len()).any(|i| hit(words[i]) && is_interrupted_pc(&words[i..]))
    }

    fn module_of(&self, pc: u64) -> Option<usize> {
        self.modules.iter().position(|m| m.start.0 <= pc && pc < m.end.0)
    }

    /// One frame out: `Some(None)` at the thread's start, `None` where the way is lost.
    fn step(&mut self, regs: &FullRegs, exact: bool) -> Option<Option<(FullRegs, bool)>> {
        let look = if exact { regs.pc } else { regs.pc.wrapping_sub(1) };
        let mem = self.mem;
        let mut read = |a: u64| mem.word(RemoteAddr(a)).ok();
        if is_sigreturn_code(&mem.read_some(RemoteAddr(regs.pc), 16)) {
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
            FullStep::NoCfi => self.step_by_code(regs, look),
            FullStep::Cut => None,
        }
    }

    /// The same where no table covers the code, and what it does can be told from its instructions.
    fn step_by_code(&mut self, regs: &FullRegs, look: u64) -> Option<Option<(FullRegs, bool)>> {
        let mem = self.mem;
        let mut code = |at: u64, to: &mut [u8]| mem.read(RemoteAddr(at), to).is_ok();
        let rule = Rule::from_code(look.wrapping_add(1), None, &mut code)?;
        self.by_code = true;
        match rule.step_all(regs, &mut |a: u64| mem.word(RemoteAddr(a)).ok()) {
            FullStep::Next { regs, signal } if regs.pc != 0 => Some(Some((regs, signal))),
            FullStep::Next { .. } | FullStep::End => Some(None),
            _ => None,
        }
    }
}
