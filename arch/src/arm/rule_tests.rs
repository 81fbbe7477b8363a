use super::*;
use crate::generic::regs::Regs;
use crate::unwind::CfiRule;

fn memory(words: &[(u64, u64)]) -> impl FnMut(u64) -> Option<u64> + '_ {
    |address| words.iter().find(|w| w.0 == address).map(|w| w.1)
}

fn by_sp(cfa_off: i32, ra_slot: i32, fp_slot: Option<i32>) -> Form {
    Form::CfaSp { cfa_off, ra_slot, fp_slot }
}

fn by_fp(cfa_off: i32, ra_slot: i32, fp_slot: Option<i32>) -> Form {
    Form::CfaFp { cfa_off, ra_slot, fp_slot }
}

#[test]
fn steps() {
    let regs = Regs { pc: 1, sp: 0x1000, fp: 0x1010 };
    let words = [(0x1000, 0x2220), (0x1004, 0x401), (0x1010, 0x3330), (0x1014, 0x402)];
    let step = |form| Rule::from_form(form).step(&regs, &mut memory(&words));
    let next = |pc, sp, fp| Step::Next(Regs { pc, sp, fp });
    // Return addresses of Thumb and of ARM code.
    assert_eq!(step(by_sp(8, -4, None)), next(0x400, 0x1008, 0x1010));
    assert_eq!(step(by_sp(16, -12, Some(-16))), next(0x400, 0x1010, 0x2220));
    assert_eq!(step(by_fp(8, -4, Some(-8))), next(0x402, 0x1018, 0x3330));
    assert_eq!(step(Form::End), Step::End);
    assert_eq!(step(Form::Complex), Step::NeedFull);
    for form in [Form::Unknown, Form::None, Form::FramePointer] {
        assert_eq!(step(form), Step::Cut);
    }
    // No progress, no memory; a return address of zero.
    assert_eq!(step(by_sp(0, 4, None)), Step::Cut);
    assert_eq!(step(by_fp(-0x10, 4, None)), Step::Cut);
    assert_eq!(step(by_sp(0x100, -4, None)), Step::Cut);
    assert_eq!(step(by_sp(8, -4, Some(0x100))), Step::Cut);
    let zero = Rule::from_form(by_sp(8, -4, None)).step(&regs, &mut |_| Some(1));
    assert_eq!(zero, Step::End);
}

#[test]
fn signal_frames_give_all_registers_back() {
    // The frame of a handler with SA_SIGINFO, and that of one without.
    for (first, context) in [(10, 128 + 32), (PLAIN_FRAME, 32)] {
        let frame = 0x7000_0000_u64;
        let mut read = |at: u64| Some(if at == frame { first } else { 0xaaaa_0000 + (at - frame) });
        let regs = Regs { pc: 0x10, sp: frame, fp: 0x99 };
        let of = |n: u64| 0xaaaa_0000 + context + 4 * n;
        let want = Regs { pc: of(15), sp: of(13), fp: of(7) };
        assert_eq!(Rule::SIGNAL.step(&regs, &mut read), Step::Next(want));
        let step = Rule::SIGNAL.step_all(&FullRegs::from(regs), &mut read);
        let FullStep::Next { regs, signal: true } = step else { panic!("no step") };
        assert_eq!(Regs::from(regs), want);
        assert_eq!((regs.gpr[0], regs.gpr[14]), (of(0), of(14)));
    }
    assert_eq!(Rule::SIGNAL.step(&Regs::default(), &mut |_| None), Step::Cut);
}

#[test]
fn signal_frames_on_a_stack() {
    let mut words = [0; 36];
    words[1] = 0x6000_0030;
    words[35] = 0x5646_5001;
    assert!(is_interrupted_pc(&words));
    assert!(!is_interrupted_pc(&words[..35]));
    for (at, other) in [(1, 0x6000_0013), (1, 0x6000_0230), (35, 0x5646_5002)] {
        let mut words = words;
        words[at] = other;
        assert!(!is_interrupted_pc(&words));
    }
}

#[test]
fn restorers() {
    for code in [[0xad, 0x70, 0xa0, 0xe3, 0, 0, 0, 0xef], [0x4f, 0xf0, 0xad, 0x07, 0, 0xdf, 0, 0]] {
        assert!(is_sigreturn_code(&code));
        assert!(!is_sigreturn_code(&code[1..]));
        assert!(!is_sigreturn_code(&code[..5]));
    }
}

/// Compiles a table with one row, for a function at 0x1_0000.
fn compiled(code: u32) -> Form {
    const TABLE: u64 = 0x2_0000;
    let distance = (0x1_0000_u32.wrapping_sub(TABLE as u32)) & 0x7fff_ffff;
    let exidx = [distance.to_le_bytes(), code.to_le_bytes()].concat();
    let cfi = CfiModule { exidx: &exidx, exidx_addr: TABLE, narrow: true, ..CfiModule::default() };
    Rule::from_tables(&cfi, 0x1_0010).form()
}

#[test]
fn rules_from_the_index_table() {
    // pop {r4-r7, r14}; vsp += 8, pop {r4, r14}; vsp = r7, vsp += 16, pop {r4-r7, r14}
    assert_eq!(compiled(0x80ab_b0b0), by_sp(20, -4, Some(-8)));
    assert_eq!(compiled(0x8001_a8b0), by_sp(16, -4, None));
    assert_eq!(compiled(0x8097_03ab), by_fp(36, -4, Some(-8)));
    // A leaf function, and a CFA by r11; then an entry that can't be unwound, which is where threads begin.
    assert_eq!(compiled(0x80b0_b0b0), Form::Complex);
    assert_eq!(compiled(0x809b_a8b0), Form::Complex);
    assert_eq!(compiled(1), Form::End);
    // A step with all registers must have the same result.
    let exidx = [0x7fff_0000_u32.to_le_bytes(), 0x80ab_b0b0_u32.to_le_bytes()].concat();
    let cfi = CfiModule { exidx: &exidx, exidx_addr: 0x2_0000, ..CfiModule::default() };
    let regs = FullRegs::from(Regs { pc: 0x1_0010, sp: 0x1000, fp: 0 });
    let mut read = |at: u64| Some(at + 1);
    let step = crate::unwind::step_full(
        &cfi,
        &regs,
        0x1_0010,
        &mut crate::unwind::CfiContext::new(),
        &mut read,
    );
    let FullStep::Next { regs, signal: false } = step else { panic!("{step:?}") };
    assert_eq!(Regs::from(regs), Regs { pc: 0x1010, sp: 0x1014, fp: 0x100d });
}

#[test]
fn code_without_tables_is_not_where_threads_begin() {
    const TABLE: u64 = 0x2_0000;
    let exidx = [0x7fff_0000_u32.to_le_bytes(), 1_u32.to_le_bytes()].concat();
    let cfi = CfiModule { exidx: &exidx, exidx_addr: TABLE, ..CfiModule::default() };
    assert_eq!(Rule::from_tables(&cfi, 0x1_0040), Rule::END);
    assert_eq!(Rule::from_tables(&cfi, 0x1_0100), Rule::UNKNOWN);
    assert_eq!(crate::unwind::function_range::<Rule>(&cfi, 0x1_0040), None);
}
