//! Full unwinding, for stacks with a frame that no packed rule describes: each row is evaluated with all
//! registers.

use crate::goroutine::Goroutines;
use crate::mapping::Shared;
use crate::range::Extent;
use crate::stack::{self, Job};
use crate::state::{FRAMES, Frame};
use crate::{modules, resolve};
use prof_arch::native::{FullRegs, Regs, Rule};
use prof_arch::unwind::{CfiContext, CfiRule, FullStep, step_full};
use prof_trace::ids::PcId;

/// Unwinds the job's stack. Runs on the scratch stack.
///
/// # Safety
/// `job` must point to a [`Job`].
pub unsafe extern "C" fn run(job: *mut ()) {
    // SAFETY: `job` points to a `Job`, by the caller's promise.
    let job = unsafe { &mut *job.cast::<Job<'_>>() };
    unwind(job);
}

/// Unwinds the stack and stores it as the remembered one, marked not reusable.
fn unwind(job: &mut Job<'_>) {
    let shared = job.shared;
    let mut r = FullRegs::from(job.call);
    let mut ctx = CfiContext::new();
    let max = (shared.control().max_depth as usize).min(FRAMES);
    let mut count = 0;
    let mut cut = true;
    let mut variant = None;
    job.t.forget();
    while count < max {
        let compute = || resolve::compute(shared, r.pc, variant);
        let code = resolve::known(shared, r.pc).unwrap_or_else(compute);
        if code.id == PcId::NONE {
            break;
        }
        if let Some(f) = job.t.fresh.get_mut(count) {
            f.code = code.id;
        }
        count += 1;
        variant = None;
        if code.rule.is_signal() {
            let t = &mut *job.t;
            let mut read = |addr: u64| stack::far(shared, &t.extents, &mut t.goroutines, addr);
            variant = Rule::interrupted_variant(Regs::from(&r).sp, &mut read);
        }
        let (extents, goroutines) = (&job.t.extents, &mut job.t.goroutines);
        match step(shared, extents, goroutines, &r, code.rule, &mut ctx) {
            Some(Some(next)) => {
                stack::enter_goroutine(shared, job.t, code.rule, &Regs::from(&r));
                r = next;
            }
            Some(None) => {
                cut = false;
                break;
            }
            None => break,
        }
    }
    let t = &mut *job.t;
    for (to, from) in t.frames.iter_mut().zip(t.fresh.iter().take(count).rev()) {
        *to = Frame::new(&Regs::default(), from.code, 0, false);
    }
    t.frames_len = count as u32;
    t.cut = cut as u32;
    t.passing = true;
}

/// Returns the caller's registers; `Some(None)` at the thread's start, `None` if the caller can't be found.
fn step(
    shared: &Shared,
    extents: &[Extent; 4],
    goroutines: &mut Goroutines,
    r: &FullRegs,
    rule: Rule,
    ctx: &mut CfiContext,
) -> Option<Option<FullRegs>> {
    // `far` reads known extents directly, and all else through the kernel if that is allowed.
    let mut read = |addr: u64| stack::far(shared, extents, goroutines, addr);
    if rule.is_signal() {
        // This ignores the tables: a signal frame is the kernel's, and has all registers.
        return match rule.step_all(r, &mut read) {
            FullStep::Next { regs, .. } => {
                Some(Some(FullRegs { pc: regs.pc.wrapping_add(1), ..regs }))
            }
            FullStep::End => Some(None),
            _ => None,
        };
    }
    let look = r.pc.wrapping_sub(1);
    // Tables are used for frames whose stack pointer is known and whose code has not shown the rule itself.
    // If the rule was found without tables that hold for calls only, they are not used here either.
    let without = rule == Rule::FRAME_POINTER && Rule::is_beside_tables(r.pc);
    let by_tables = Rule::knows_sp(&Regs::from(r)) && !rule.is_leaf() && !without;
    let module = modules::find(shared, look).filter(|_| by_tables);
    if let Some((_, m)) = module {
        let cfi = modules::cfi(shared, m)?;
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
    match rule.step_all(r, &mut read) {
        FullStep::Next { regs, .. } => Some(Some(regs)),
        FullStep::End => Some(None),
        _ => None,
    }
}
