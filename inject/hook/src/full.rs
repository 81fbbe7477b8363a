//! Stacks with a frame that no packed rule describes: every row evaluated with all registers.

use crate::stack::{Job, Stack, cut_root};
use crate::state::{FRAMES, Frame};
use crate::{memory, modules, resolve};
use prof_arch::native::{FullRegs, Regs, regs};
use prof_arch::native::{Rule, Step};
use prof_arch::unwind::{CfiContext, FullStep, step_full};
use prof_trace::shared::Shared;
use prof_trace::tree::{self, Found};

/// Unwinds the job's stack. Runs on the scratch stack.
///
/// # Safety
/// `job` must point to a [`Job`].
pub unsafe extern "C" fn run(job: *mut ()) {
    // SAFETY: the caller's promise.
    let job = unsafe { &mut *job.cast::<Job<'_>>() };
    job.stack = unwind(job);
    job.t.forget();
}

fn registers(job: &Job<'_>) -> FullRegs {
    let mut r = FullRegs::from(job.call.regs);
    let numbers = [regs::RBX, regs::R12, regs::R13, regs::R14, regs::R15];
    for (n, v) in numbers.iter().zip(job.call.saved) {
        if let Some(g) = r.gpr.get_mut(*n as usize) {
            *g = v;
        }
    }
    r
}

fn unwind(job: &mut Job<'_>) -> Stack {
    let shared = job.shared;
    let mut r = registers(job);
    let mut ctx = CfiContext::new();
    let max = (shared.control().max_depth as usize).min(FRAMES);
    let mut count = 0;
    let mut cut = true;
    while count < max {
        let code = resolve::known(shared, r.pc).unwrap_or_else(|| resolve::compute(shared, r.pc));
        if code.id == 0 {
            break;
        }
        count += 1;
        let frame = Frame { pc: r.pc, sp: 0, fp: 0, node: code.id, words: 0 };
        job.t.frames[(FRAMES - count) & (FRAMES - 1)] = frame;
        match step(shared, &r, code.rule, &mut ctx) {
            Some(Some(next)) => r = next,
            Some(None) => {
                cut = false;
                break;
            }
            None => break,
        }
    }
    let mut parent = if cut { cut_root(shared) } else { 0 };
    for f in job.t.frames.iter().skip(FRAMES - count) {
        match tree::node(shared, parent, f.node) {
            Found::Id(id) => parent = id,
            _ => return Stack { node: parent, cut: true },
        }
    }
    Stack { node: parent, cut }
}

/// The caller's registers; `Some(None)` at the thread's start, `None` where the way is lost.
fn step(
    shared: &Shared,
    r: &FullRegs,
    rule: Rule,
    ctx: &mut CfiContext,
) -> Option<Option<FullRegs>> {
    let mut read = |addr: u64| memory::word(shared, addr);
    let look = r.pc.wrapping_sub(1);
    if let Some((_, m)) = modules::find(shared, look) {
        // SAFETY: `r.pc` is a return address on the calling thread's stack.
        let cfi = unsafe { modules::cfi(m) };
        match step_full(&cfi, r, look, ctx, &mut read) {
            FullStep::Next { mut regs, signal } => {
                if signal {
                    regs.pc = regs.pc.wrapping_add(1);
                }
                return if regs.pc == 0 { Some(None) } else { Some(Some(regs)) };
            }
            FullStep::End => return Some(None),
            FullStep::Cut => return None,
            FullStep::NoCfi => {}
        }
    }
    match rule.step(&Regs::from(r), &mut read) {
        Step::Next(mut next) => {
            if rule.is_signal() {
                next.pc = next.pc.wrapping_add(1);
            }
            Some(Some(r.with(next)))
        }
        Step::End => Some(None),
        _ => None,
    }
}
