use super::*;
use crate::aarch64::FullRegs;
use crate::unwind::FullStep;

fn memory(words: &[(u64, u64)]) -> impl FnMut(u64) -> Option<u64> + '_ {
    |address| words.iter().find(|w| w.0 == address).map(|w| w.1)
}

#[test]
fn steps() {
    let regs = Regs { pc: 1, sp: 0x1000, fp: 0x1020 };
    let words = [
        (0x1000, 0x2220),
        (0x1008, 0x401),
        (0x1020, 0x3330),
        (0x1028, 0x0035_0000_0000_0402), // signed
    ];
    let step = |form| Rule::from_form(form).step(&regs, &mut memory(&words));
    let next = |pc, sp, fp| Step::Next(Regs { pc, sp, fp });
    let sp = |cfa_off, ra_slot, fp_slot| Form::CfaSp { cfa_off, ra_slot, fp_slot };
    let fp = |cfa_off, ra_slot, fp_slot| Form::CfaFp { cfa_off, ra_slot, fp_slot };
    assert_eq!(step(sp(16, -8, None)), next(0x401, 0x1010, 0x1020));
    assert_eq!(step(sp(32, -24, Some(-32))), next(0x401, 0x1020, 0x2220));
    assert_eq!(step(fp(16, -8, Some(-16))), next(0x402, 0x1030, 0x3330));
    assert_eq!(step(Form::FramePointer), next(0x402, 0x1031, 0x3330));
    assert_eq!(step(Form::End), Step::End);
    assert_eq!(step(Form::Complex), Step::NeedFull);
    assert_eq!(step(Form::Leaf { cfa_off: 0, fp_slot: None }), Step::NeedFull);
    assert_eq!(step(Form::Unknown), Step::Cut);
    assert_eq!(step(Form::None), Step::Cut);
    // No progress, no memory.
    assert_eq!(step(sp(0, 8, None)), Step::Cut);
    assert_eq!(step(fp(-0x20, 8, None)), Step::Cut);
    assert_eq!(step(sp(0x100, -8, None)), Step::Cut);
    assert_eq!(step(sp(16, -8, Some(0x100))), Step::Cut);
}

#[test]
fn a_signed_return_address_of_zero_ends_the_stack() {
    let regs = Regs { pc: 1, sp: 0x1000, fp: 0x1000 };
    let signed = 0x0035_0000_0000_0000;
    let form = Form::CfaSp { cfa_off: 16, ra_slot: -8, fp_slot: None };
    for form in [form, Form::FramePointer] {
        assert_eq!(Rule::from_form(form).step(&regs, &mut |_| Some(signed)), Step::End);
    }
    let leaf = Rule::from_form(Form::Leaf { cfa_off: 0, fp_slot: None });
    let mut full = FullRegs::from(regs);
    full.gpr[30] = signed;
    assert_eq!(leaf.step_all(&full, &mut |_| None), FullStep::End);
}

#[test]
fn behind_a_frame_record_alone_the_stack_pointer_is_a_bound() {
    let words = [
        (0x1000, 0x1100), // the generated function's record, low in its frame
        (0x1008, 0x42),
        (0x1100, 0x1200), // its caller's, 0x40 below the CFA
        (0x1108, 0x43),
        (0x1138, 0x666), // where the same counted from the bound would lead
    ];
    let step = |form, regs: &Regs| Rule::from_form(form).step(regs, &mut memory(&words));
    let start = Regs { pc: 0x41, sp: 0x1000, fp: 0x1000 };
    let Step::Next(regs) = step(Form::FramePointer, &start) else { panic!("no step") };
    assert_eq!((regs.pc, regs.sp & !15, regs.fp), (0x42, 0x1010, 0x1100));
    assert!(!Rule::knows_sp(&regs) && Rule::knows_sp(&start));
    // Either base leads to the caller, and then the stack pointer is known again.
    let next = Step::Next(Regs { pc: 0x43, sp: 0x1140, fp: 0x1200 });
    let sp = |cfa_off, ra_slot, fp_slot| Form::CfaSp { cfa_off, ra_slot, fp_slot };
    assert_eq!(step(sp(0x60, -0x38, Some(-0x40)), &regs), next);
    let fp = Form::CfaFp { cfa_off: 0x40, ra_slot: -0x38, fp_slot: Some(-0x40) };
    assert_eq!(step(fp, &regs), next);
    // No record, a frame that would reach below the bound, and all forms that need the stack pointer.
    for form in [
        sp(0x60, -0x38, None),
        sp(0x60, -8, Some(-0x40)),
        sp(0x140, -0x38, Some(-0x40)),
        sp(0x68, -0x38, Some(-0x40)),
        Form::Leaf { cfa_off: 0, fp_slot: None },
        Form::Signal,
        Form::Complex,
    ] {
        assert_eq!(step(form, &regs), Step::Cut, "{form:?}");
        let full = FullRegs::from(regs);
        let all = Rule::from_form(form).step_all(&full, &mut memory(&words));
        assert_eq!(all, FullStep::Cut, "{form:?}");
    }
    assert_eq!(step(Form::End, &regs), Step::End);
    let Step::Next(again) = step(Form::FramePointer, &regs) else { panic!("no step") };
    assert_eq!((again.pc, again.sp & !15, Rule::knows_sp(&again)), (0x43, 0x1110, false));
}

#[test]
fn signal_frames_on_a_stack() {
    let head = crate::aarch64::sigframe::FPSIMD_HEAD;
    assert!(is_interrupted_pc(&[0x1234, 0x6000_1000, 77, head, 0]));
    assert!(!is_interrupted_pc(&[0x1234, 0x6000_1000, 77, head + 1]));
    assert!(!is_interrupted_pc(&[0x1234, 0x6000_0005, 77, head]));
    assert!(!is_interrupted_pc(&[0x1234, 0x1_6000_0000, 77, head]));
    assert!(!is_interrupted_pc(&[0x1234, 0, 77]));
}

#[test]
fn restorers() {
    assert!(is_sigreturn_code(&[0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4, 9]));
    assert!(!is_sigreturn_code(&[0x48, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4]));
    assert!(!is_sigreturn_code(&[0x68]));
}
