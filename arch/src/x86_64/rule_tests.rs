use super::*;

fn memory(words: &[(u64, u64)]) -> impl FnMut(u64) -> Option<u64> + '_ {
    |address| words.iter().find(|w| w.0 == address).map(|w| w.1)
}

#[test]
fn a_rule_is_eight_bytes() {
    assert_eq!(size_of::<Rule>(), 8);
    assert_eq!(size_of::<Option<Regs>>(), 32);
}

#[test]
fn forms_survive_packing() {
    let forms = [
        Form::None,
        Form::CfaSp { cfa_off: 8, ra_slot: -8, fp_slot: None },
        Form::CfaSp { cfa_off: i32::MAX, ra_slot: -8, fp_slot: Some(-16) },
        Form::CfaSp { cfa_off: i32::MIN, ra_slot: -8, fp_slot: Some(i16::MIN.into()) },
        Form::CfaFp { cfa_off: 16, ra_slot: -8, fp_slot: Some(-16) },
        Form::CfaFp { cfa_off: -1, ra_slot: -8, fp_slot: Some(i16::MAX.into()) },
        Form::CfaFpDeref { cfa_at: -8, fp_at: Some(0) },
        Form::CfaFpDeref { cfa_at: -8, fp_at: None },
        Form::FramePointer,
        Form::Signal,
        Form::GoCall { g_at: 48, depth_at: 40 },
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
fn steps() {
    let regs = Regs { pc: 1, sp: 0x1000, fp: 0x1020 };
    let words = [
        (0x1008, 0x401),
        (0x1000, 0x2222),
        (0x1020, 0x3333),
        (0x1028, 0x402),
        (0x1018, 0x1040),
        (0x1038, 0x403),
    ];
    let step = |form| Rule::from_form(form).step(&regs, &mut memory(&words));
    let next = |pc, sp, fp| Step::Next(Regs { pc, sp, fp });
    assert_eq!(
        step(Form::CfaSp { cfa_off: 16, ra_slot: -8, fp_slot: None }),
        next(0x401, 0x1010, 0x1020)
    );
    assert_eq!(
        step(Form::CfaSp { cfa_off: 16, ra_slot: -8, fp_slot: Some(-16) }),
        next(0x401, 0x1010, 0x2222)
    );
    assert_eq!(
        step(Form::CfaFp { cfa_off: 16, ra_slot: -8, fp_slot: Some(-16) }),
        next(0x402, 0x1030, 0x3333)
    );
    assert_eq!(step(Form::CfaFpDeref { cfa_at: -8, fp_at: Some(0) }), next(0x403, 0x1040, 0x3333));
    assert_eq!(step(Form::FramePointer), next(0x402, 0x1030, 0x3333));
    assert_eq!(step(Form::End), Step::End);
    assert_eq!(step(Form::Complex), Step::NeedFull);
    assert_eq!(step(Form::Unknown), Step::Cut);
    assert_eq!(step(Form::None), Step::Cut);
    // No progress, no memory.
    assert_eq!(step(Form::CfaSp { cfa_off: 0, ra_slot: -8, fp_slot: None }), Step::Cut);
    assert_eq!(step(Form::CfaFp { cfa_off: -0x20, ra_slot: -8, fp_slot: None }), Step::Cut);
    assert_eq!(step(Form::CfaSp { cfa_off: 0x100, ra_slot: -8, fp_slot: None }), Step::Cut);
    assert_eq!(step(Form::CfaSp { cfa_off: 16, ra_slot: -8, fp_slot: Some(0x100) }), Step::Cut);
}

#[test]
fn expressions_that_are_recognised() {
    let plt = [0x77, 0x08, 0x80, 0x00, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
    assert_eq!(plt_offset(&plt, 0x1000), Some(8));
    assert_eq!(plt_offset(&plt, 0x100a), Some(8));
    assert_eq!(plt_offset(&plt, 0x100b), Some(16));
    assert_eq!(plt_offset(&plt[..10], 0x100b), None);
    assert_eq!(breg(&[0x76, 0x78]), Some((RBP, -8)));
    assert_eq!(breg(&[0x76, 0x78, 0x06]), None);
    assert_eq!(breg_deref(&[0x76, 0x78, 0x06]), Some((RBP, -8)));
    assert_eq!(breg_deref(&[0x76]), None);
    assert_eq!(breg(&[0x90, 0x00]), None);
    assert_eq!(breg(&[]), None);
}

#[test]
fn restorers() {
    assert!(is_sigreturn_code(&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05, 0x90]));
    assert!(is_sigreturn_code(&[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05]));
    assert!(!is_sigreturn_code(&[0xb8, 0x0e, 0, 0, 0, 0x0f, 0x05]));
    assert!(!is_sigreturn_code(&[0xb8]));
}
