use super::*;
use crate::mips64::{FullRegs, Regs};
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
    let words = [(0x1000, 0x2220), (0x1008, 0x401), (0x1020, 0x3330), (0x1028, 0x402)];
    let step = |form| Rule::from_form(form).step(&regs, &mut memory(&words));
    let next = |pc, sp, fp| Step::Next(Regs { pc, sp, fp });
    let sp = |cfa_off, ra_slot, fp_slot| Form::CfaSp { cfa_off, ra_slot, fp_slot };
    let fp = |cfa_off, ra_slot, fp_slot| Form::CfaFp { cfa_off, ra_slot, fp_slot };
    assert_eq!(step(sp(16, -8, None)), next(0x401, 0x1010, 0x1020));
    assert_eq!(step(sp(32, -24, Some(-32))), next(0x401, 0x1020, 0x2220));
    assert_eq!(step(fp(16, -8, Some(-16))), next(0x402, 0x1030, 0x3330));
    assert_eq!(step(Form::FramePointer), Step::Cut);
    assert_eq!(step(Form::Leaf { cfa_off: 0, fp_slot: None }), Step::NeedFull);
    assert_eq!(step(Form::End), Step::End);
    assert_eq!(step(Form::Complex), Step::NeedFull);
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
        (Rule::FRAME_POINTER, false, false),
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
        let want = if rule == Rule::SIGNAL { 0x1000 + 192 + 8 * 30 } else { 0 };
        assert_eq!(last, want);
    }
}

#[test]
fn a_return_address_of_zero_ends_the_stack() {
    let regs = Regs { pc: 1, sp: 0x1000, fp: 0x1000 };
    let words = [(0x1008, 0)];
    let form = Form::CfaSp { cfa_off: 16, ra_slot: -8, fp_slot: None };
    assert_eq!(Rule::from_form(form).step(&regs, &mut memory(&words)), Step::End);
}

#[test]
fn leaf_functions() {
    let rule = |cfa_off, fp_slot| Rule::from_form(Form::Leaf { cfa_off, fp_slot });
    let mut regs = FullRegs { pc: 0x100, ..FullRegs::default() };
    regs.gpr[SP as usize] = 0x1000;
    regs.gpr[RA as usize] = 0x200;
    let words = [(0x1010, 0x77)];
    for (rule, want) in [
        (rule(0, None), Regs { pc: 0x200, sp: 0x1000, fp: 0 }),
        (rule(32, Some(-16)), Regs { pc: 0x200, sp: 0x1020, fp: 0x77 }),
    ] {
        let FullStep::Next { regs: next, signal: false } =
            rule.step_all(&regs, &mut memory(&words))
        else {
            panic!("no step");
        };
        assert_eq!(Regs::from(next), want);
        // No progress.
        assert_eq!(rule.step_all(&next, &mut memory(&words)), FullStep::Cut);
        assert_eq!(rule.step(&Regs::from(regs), &mut memory(&words)), Step::NeedFull);
    }
    assert_eq!(rule(32, Some(-8)).step_all(&regs, &mut |_| None), FullStep::Cut);
    assert_eq!(rule(-32, None).step_all(&regs, &mut |_| None), FullStep::Cut);
    regs.gpr[RA as usize] = 0;
    assert_eq!(rule(0, None).step_all(&regs, &mut |_| None), FullStep::End);
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
    let want = Regs { pc: 0xaaaa_0000 + 768, sp: 0xaaaa_0000 + 424, fp: 0xaaaa_0000 + 432 };
    assert_eq!(Rule::SIGNAL.step(&regs, &mut read), Step::Next(want));
    let FullStep::Next { regs, signal: true } =
        Rule::SIGNAL.step_all(&FullRegs::from(regs), &mut read)
    else {
        panic!("no step");
    };
    assert_eq!(Regs::from(regs), want);
    assert_eq!((regs.gpr[0], regs.gpr[1], regs.gpr[31]), (0, 0xaaaa_0000 + 200, 0xaaaa_0000 + 440));
    assert_eq!(Rule::SIGNAL.step(&want, &mut |_| None), Step::Cut);
}

#[test]
fn signal_frames_on_a_stack() {
    let check = |order, control: u32, used: u32, mask: u64| {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&Order::bytes4(order, control));
        bytes[4..].copy_from_slice(&Order::bytes4(order, used));
        let word = order.word8(&bytes, 0).unwrap();
        is_interrupted_pc_in(order, &[0x1234, word, 0, mask, 9])
    };
    for order in [Order::Little, Order::Big] {
        assert!(check(order, 0x0108_0001, 3, 0x1_0000));
        assert!(check(order, 0, 0, 0));
        assert!(!check(order, 0x0010_0000, 3, 0));
        assert!(!check(order, 0, 16, 0));
        assert!(!check(order, 0, 3, 1 << 8) && !check(order, 0, 3, 1 << 22));
        assert!(!is_interrupted_pc_in(order, &[0x1235, 0, 0, 0]));
    }
    assert!(is_interrupted_pc(&[0x1234, 0, 0, 0]) && !is_interrupted_pc(&[0x1234, 0, 0]));
}

#[test]
fn restorers() {
    assert!(is_sigreturn_code_in(Order::Little, &[0x5b, 0x14, 0x02, 0x24, 0x0c, 0, 0, 0, 9]));
    assert!(is_sigreturn_code_in(Order::Big, &[0x24, 0x02, 0x14, 0x5b, 0, 0, 0, 0x0c]));
    assert!(!is_sigreturn_code_in(Order::Little, &[0x24, 0x02, 0x14, 0x5b, 0, 0, 0, 0x0c]));
    assert!(!is_sigreturn_code(&[0x5b]) && is_sigreturn_code(&crate::mips64::syscall::RESTORER));
}
