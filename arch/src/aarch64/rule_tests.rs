use super::*;
use crate::aarch64::FullRegs;
use crate::unwind::FullStep;

fn memory(words: &[(u64, u64)]) -> impl FnMut(u64) -> Option<u64> + '_ {
    |address| words.iter().find(|w| w.0 == address).map(|w| w.1)
}

#[test]
fn forms_survive_packing() {
    let forms = [
        Form::None,
        Form::CfaSp { cfa_off: 16, ra_slot: -8, fp_slot: None },
        Form::CfaSp { cfa_off: 0x3ff_fff8, ra_slot: -0x4_0000, fp_slot: Some(-0x4_0000) },
        Form::CfaSp { cfa_off: -0x3ff_fff8, ra_slot: 0x3_fff8, fp_slot: Some(0x3_fff8) },
        Form::CfaFp { cfa_off: 16, ra_slot: -8, fp_slot: Some(-16) },
        Form::CfaFp { cfa_off: -8, ra_slot: -48, fp_slot: Some(8) },
        Form::FramePointer,
        Form::Leaf { cfa_off: 0, fp_slot: None },
        Form::Leaf { cfa_off: 32, fp_slot: Some(-16) },
        Form::Signal,
        Form::End,
        Form::Complex,
        Form::Unknown,
    ];
    for form in forms {
        let rule = Rule::from_form(form);
        assert_eq!(rule.form(), form);
        assert_eq!(Rule::from_u64(rule.to_u64()), rule);
        assert_eq!(rule.is_none(), form == Form::None);
        assert_eq!(rule.is_signal(), form == Form::Signal);
    }
}

#[test]
fn what_does_not_fit_takes_the_full_evaluation() {
    for (cfa_off, ra_slot, fp_slot) in [
        (12, -8, None),
        (16, -4, None),
        (16, -8, Some(-12)),
        (16, 0, None),
        (16, -8, Some(0)),
        (0x400_0000, -8, None),
        (16, -0x4_0008, None),
        (16, -8, Some(0x4_0000)),
    ] {
        assert_eq!(Rule::from_form(Form::CfaSp { cfa_off, ra_slot, fp_slot }), Rule::COMPLEX);
    }
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
fn what_a_step_does_with_the_frame_pointer() {
    let slots = [None, Some(-16)];
    for fp_slot in slots {
        let sp = Rule::from_form(Form::CfaSp { cfa_off: 32, ra_slot: -8, fp_slot });
        let fp = Rule::from_form(Form::CfaFp { cfa_off: 32, ra_slot: -8, fp_slot });
        assert_eq!((sp.reads_fp(), fp.reads_fp()), (false, true));
        assert_eq!((sp.writes_fp(), fp.writes_fp()), (fp_slot.is_some(), fp_slot.is_some()));
    }
    for (rule, reads, writes) in [
        (Rule::FRAME_POINTER, true, true),
        (Rule::SIGNAL, false, true),
        (Rule::END, false, false),
        (Rule::UNKNOWN, false, false),
    ] {
        assert_eq!((rule.reads_fp(), rule.writes_fp()), (reads, writes));
        // A step that loads the frame pointer reads it last.
        let mut last = 0;
        let regs = Regs { pc: 1, sp: 0x1000, fp: 0x1000 };
        rule.step(&regs, &mut |at| {
            last = at;
            Some(0x2000)
        });
        let want = if rule == Rule::SIGNAL {
            0x1000 + 544
        } else if writes {
            0x1000
        } else {
            0
        };
        assert_eq!(last, want);
    }
}

#[test]
fn a_return_address_of_zero_ends_the_stack() {
    let regs = Regs { pc: 1, sp: 0x1000, fp: 0x1000 };
    let words = [(0x1000, 0), (0x1008, 0)];
    let form = Form::CfaSp { cfa_off: 16, ra_slot: -8, fp_slot: None };
    for form in [form, Form::FramePointer] {
        assert_eq!(Rule::from_form(form).step(&regs, &mut memory(&words)), Step::End);
        // The signature of zero.
        let signed = |at| memory(&words)(at).map(|word| word | 0x0035_0000_0000_0000);
        assert_eq!(Rule::from_form(form).step(&regs, &mut { signed }), Step::End);
    }
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
fn implausible_frame_pointers_cut() {
    for fp in [0xff8, 0x1001, u64::MAX - 7] {
        let regs = Regs { pc: 1, sp: 0x1000, fp };
        assert_eq!(Rule::FRAME_POINTER.step(&regs, &mut |_| Some(5)), Step::Cut);
    }
}

#[test]
fn senseless_words_do_no_harm() {
    let regs = Regs { pc: 1, sp: 0x1000, fp: u64::MAX };
    for kind in 0..=255_u64 {
        for high in [0, 1, u64::MAX >> 8, 0x80_0000_0080_0000] {
            let _ = Rule::from_u64(high << 8 | kind).step(&regs, &mut |a| Some(a));
            let _ = Rule::from_u64(high << 8 | kind).step(&regs, &mut |_| None);
        }
    }
}

#[test]
fn signal_frames_give_all_registers_back() {
    let frame = 0x7000_0000_u64;
    let mut read = |address: u64| Some(0xaaaa_0000 + (address - frame));
    let regs = Regs { pc: 0x10, sp: frame, fp: 0x99 };
    let want = Regs { pc: 0xaaaa_0000 + 568, sp: 0xaaaa_0000 + 560, fp: 0xaaaa_0000 + 544 };
    assert_eq!(Rule::SIGNAL.step(&regs, &mut read), Step::Next(want));
    let FullStep::Next { regs, signal: true } =
        Rule::SIGNAL.step_all(&FullRegs::from(regs), &mut read)
    else {
        panic!("no step");
    };
    assert_eq!(Regs::from(regs), want);
    assert_eq!((regs.gpr[0], regs.gpr[30]), (0xaaaa_0000 + 312, 0xaaaa_0000 + 552));
    assert_eq!(Rule::SIGNAL.step(&want, &mut |_| None), Step::Cut);
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

#[test]
fn leaf_functions() {
    let rule = |cfa_off, fp_slot| Rule::from_form(Form::Leaf { cfa_off, fp_slot });
    let mut full = FullRegs::from(Regs { pc: 0x100, sp: 0x1000, fp: 0x77 });
    full.gpr[30] = 0x0035_0000_0000_0402; // signed
    let words = [(0x1010, 0x3330)];
    let step = |rule: Rule, full: &FullRegs| rule.step_all(full, &mut memory(&words));
    let next =
        |sp, fp| FullStep::Next { regs: full.with(Regs { pc: 0x402, sp, fp }), signal: false };
    assert_eq!(step(rule(0, None), &full), next(0x1000, 0x77));
    assert_eq!(step(rule(32, Some(-16)), &full), next(0x1020, 0x3330));
    assert_eq!(step(rule(32, Some(-8)), &full), FullStep::Cut);
    assert_eq!(step(rule(-16, None), &full), FullStep::Cut);
    assert_eq!(step(Rule::UNKNOWN, &full), FullStep::NoCfi);
    full.gpr[30] = 0x100;
    assert_eq!(step(rule(0, None), &full), FullStep::Cut);
    full.gpr[30] = 0;
    assert_eq!(step(rule(0, None), &full), FullStep::End);
}
