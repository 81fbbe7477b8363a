//! Fuzzes the readers of call frame information.

use super::Input;
use prof_arch::unwind::{
    CfiContext, CfiModule, compile, eh_frame_address, function_range, step_full,
};
use prof_arch::x86_64::{FullRegs, Regs, Rule};

/// Pretended address of the sections.
const FRAME: u64 = 0x10_0000;

/// Looks up, compiles and steps rows of a search table and `.eh_frame` at addresses from the input.
pub fn cfi(bytes: &[u8]) {
    let mut input = Input(bytes);
    let hdr_len = input.int(2) as usize;
    let mut pcs = [0u64; 4];
    pcs.iter_mut().for_each(|pc| *pc = input.int(4));
    let seed = input.int(4);
    let hdr = input.bytes(hdr_len);
    let eh_frame = input.0;
    let hdr_addr = FRAME - (hdr.len() as u64).next_multiple_of(8);
    let cfi = CfiModule {
        hdr,
        hdr_addr,
        eh_frame,
        eh_frame_addr: eh_frame_address(hdr, hdr_addr).filter(|_| seed & 1 == 0).unwrap_or(FRAME),
        ..CfiModule::default()
    };
    let mut ctx = CfiContext::new();
    let mut word =
        |at: u64| (!at.is_multiple_of(3)).then(|| at.wrapping_mul(seed | 1).rotate_left(7));
    let mut full = FullRegs { pc: 0, gpr: [0; 16] };
    for (slot, n) in full.gpr.iter_mut().zip(0..) {
        *slot = 0x7fff_0000_1000 + n * 0x1_0010;
    }
    // Use the functions of the table, too, so that the input need not guess its own addresses.
    for pc in pcs.into_iter().chain((0..8).map(|i| FRAME + i * 64)) {
        if let Some(range) = function_range::<Rule>(&cfi, pc) {
            assert!(range.contains(&pc));
        }
        let rule: Rule = compile(&cfi, pc, &mut ctx);
        let _ = rule.form();
        full.pc = pc;
        let _ = rule.step(&Regs::from(&full), &mut word);
        let _ = rule.step_all(&full, &mut word);
        let _ = step_full(&cfi, &full, pc, &mut ctx, &mut word);
    }
}
