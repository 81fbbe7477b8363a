use super::*;
use crate::aarch64::regs::Aarch64;
use crate::arm::regs::Arm;
use crate::generic::regs::{FullRegs, Step};
use crate::mips64::regs::Mips64;
use crate::unwind::FullStep;
use crate::x86_64::regs::X86_64;

fn memory(words: &[(u64, u64)]) -> impl FnMut(u64) -> Option<u64> + '_ {
    |address| words.iter().find(|w| w.0 == address).map(|w| w.1)
}

/// Maximum distance of the CFA in words, with a link register.
const CFA_MOST: i32 = (1 << 23) - 1;
const LOW: i32 = i16::MIN as i32;
const HIGH: i32 = i16::MAX as i32;

fn by_sp<I: Isa>(cfa: i32, ra: i32, fp: Option<i32>) -> Form {
    let word = i32::from(I::WORD);
    Form::CfaSp { cfa_off: cfa * word, ra_slot: ra * word, fp_slot: fp.map(|n| n * word) }
}

fn by_fp<I: Isa>(cfa: i32, ra: i32, fp: Option<i32>) -> Form {
    let word = i32::from(I::WORD);
    Form::CfaFp { cfa_off: cfa * word, ra_slot: ra * word, fp_slot: fp.map(|n| n * word) }
}

fn survive_packing<I: Isa>(forms: &[Form]) {
    for form in forms {
        let rule = Rule::<I>::from_form(*form);
        assert_eq!(rule.form(), *form, "{:?}", I::default());
        assert_eq!(Rule::from_u64(rule.to_u64()), rule);
        assert_eq!(rule.is_none(), *form == Form::None);
        assert_eq!(rule.is_signal(), *form == Form::Signal);
        assert_eq!(rule.is_leaf(), matches!(form, Form::Leaf { .. }));
    }
}

#[test]
fn forms_survive_packing() {
    fn common<I: Isa>() {
        survive_packing::<I>(&[
            Form::None,
            by_sp::<I>(2, -1, None),
            by_fp::<I>(2, -1, Some(-2)),
            by_fp::<I>(-1, -1, Some(1)),
            Form::FramePointer,
            Form::Signal,
            Form::End,
            Form::Complex,
            Form::Unknown,
        ]);
    }
    fn with_link_register<I: Isa>() {
        let word = i32::from(I::WORD);
        common::<I>();
        survive_packing::<I>(&[
            by_sp::<I>(CFA_MOST, LOW, Some(LOW)),
            by_sp::<I>(-CFA_MOST, HIGH, Some(HIGH)),
            by_fp::<I>(-1, -6, Some(1)),
            Form::Leaf { cfa_off: 0, fp_slot: None },
            Form::Leaf { cfa_off: 4 * word, fp_slot: Some(-2 * word) },
        ]);
        // Forms of AMD64.
        for form in [
            Form::CfaFpDeref { cfa_at: -word, fp_at: None },
            Form::GoCall { g_at: 48, depth_at: 40 },
        ] {
            assert_eq!(Rule::<I>::from_form(form), Rule::COMPLEX);
        }
    }
    common::<X86_64>();
    with_link_register::<Aarch64>();
    with_link_register::<Arm>();
    with_link_register::<Mips64>();
    // AMD64 has neither a link register nor another place for the return address.
    for form in [Form::Leaf { cfa_off: 0, fp_slot: None }, by_sp::<X86_64>(2, -2, None)] {
        assert_eq!(Rule::<X86_64>::from_form(form), Rule::COMPLEX);
    }
}

#[test]
fn forms_that_do_not_fit_take_the_full_evaluation() {
    fn check<I: Isa>() {
        let (word, half) = (i32::from(I::WORD), i32::from(I::WORD) / 2);
        let plain = |cfa_off, ra_slot, fp_slot| Form::CfaSp { cfa_off, ra_slot, fp_slot };
        for form in [
            plain(2 * word + half, -word, None),
            plain(2 * word, -half, None),
            plain(2 * word, -word, Some(-word - half)),
            by_sp::<I>(2, 0, None),
            by_sp::<I>(2, -1, Some(0)),
            by_sp::<I>(CFA_MOST + 1, -1, None),
            by_sp::<I>(2, LOW - 1, None),
            by_sp::<I>(2, -1, Some(HIGH + 1)),
        ] {
            assert_eq!(Rule::<I>::from_form(form), Rule::COMPLEX, "{:?} {form:?}", I::default());
        }
    }
    check::<Aarch64>();
    check::<Arm>();
    check::<Mips64>();
}

#[test]
fn a_step_that_loads_the_frame_pointer_reads_it_last() {
    fn check<I: Isa>() {
        for fp in [None, Some(-2)] {
            let rules = [by_sp::<I>(4, -1, fp), by_fp::<I>(4, -1, fp)].map(Rule::<I>::from_form);
            assert_eq!(rules.map(Rule::reads_fp), [false, true]);
            assert_eq!(rules.map(Rule::writes_fp), [fp.is_some(); 2]);
        }
        let word = u64::from(I::WORD);
        let saved = I::saved_at(0x1000, &mut |_| Some(0x2000)).unwrap();
        let saved_fp = saved + I::SAVED.as_ref()[usize::from(I::FP)];
        let by_sp = Rule::<I>::from_form(by_sp::<I>(4, -1, Some(-2)));
        for (rule, reads, writes, want) in [
            (by_sp, false, true, 0x1000 + 2 * word),
            (Rule::FRAME_POINTER, I::CHAIN, I::CHAIN, if I::CHAIN { 0x1000 } else { 0 }),
            (Rule::SIGNAL, false, true, saved_fp),
            (Rule::END, false, false, 0),
            (Rule::UNKNOWN, false, false, 0),
        ] {
            assert_eq!((rule.reads_fp(), rule.writes_fp()), (reads, writes), "{rule:?}");
            let mut last = 0;
            rule.step(&Regs { pc: 1, sp: 0x1000, fp: 0x1000 }, &mut |at| {
                last = at;
                Some(0x2000)
            });
            assert_eq!(last, want, "{rule:?}");
        }
    }
    check::<Aarch64>();
    check::<Arm>();
    check::<Mips64>();
    check::<X86_64>();
}

#[test]
fn a_return_address_of_zero_ends_the_stack() {
    fn check<I: Isa>() {
        let regs = Regs { pc: 1, sp: 0x1000, fp: 0x1000 };
        let forms = [by_sp::<I>(2, -1, None), Form::FramePointer];
        for form in forms.iter().take(if I::CHAIN { 2 } else { 1 }) {
            assert_eq!(Rule::<I>::from_form(*form).step(&regs, &mut |_| Some(0)), Step::End);
        }
    }
    check::<Aarch64>();
    check::<Arm>();
    check::<Mips64>();
    check::<X86_64>();
}

#[test]
fn implausible_frame_pointers_cut() {
    fn check<I: Isa>() {
        for fp in [0xff8, 0x1001, u64::MAX - 7] {
            let regs = Regs { pc: 1, sp: 0x1000, fp };
            assert_eq!(Rule::<I>::FRAME_POINTER.step(&regs, &mut |_| Some(5)), Step::Cut);
        }
    }
    check::<Aarch64>();
    check::<Arm>();
    check::<Mips64>();
    check::<X86_64>();
}

#[test]
fn senseless_words_do_no_harm() {
    fn check<I: Isa>() {
        let regs = Regs { pc: 1, sp: 0x1000, fp: u64::MAX };
        for kind in 0..=255_u64 {
            for high in [0, 1, u64::MAX >> 8, 0x80_0000_0080_0000] {
                let rule = Rule::<I>::from_u64(high << 8 | kind);
                let _ = (rule.form(), rule.reads_fp(), rule.writes_fp());
                let _ = rule.step(&regs, &mut |a| Some(a));
                let _ = rule.step(&regs, &mut |_| None);
                let _ = rule.step_all(&FullRegs::from(regs), &mut |a| Some(a));
            }
        }
    }
    check::<Aarch64>();
    check::<Arm>();
    check::<Mips64>();
    check::<X86_64>();
}

#[test]
fn signal_frames_give_all_registers_back() {
    fn check<I: Isa>() {
        let mut read = |address: u64| Some(0xaaaa_0000 + (address - 0x7000_0000));
        let regs = Regs { pc: 0x10, sp: 0x7000_0000, fp: 0x99 };
        let at = I::saved_at(regs.sp, &mut read).unwrap();
        let mut gpr = I::SAVED;
        for offset in gpr.as_mut() {
            *offset = read(at + *offset).unwrap();
        }
        if let Some(zero) = I::ZERO {
            gpr.as_mut()[usize::from(zero)] = 0;
        }
        let want = FullRegs::<I> { pc: read(at + I::SAVED_PC).unwrap(), gpr };
        let step = Rule::SIGNAL.step_all(&FullRegs::from(regs), &mut read);
        assert_eq!(step, FullStep::Next { regs: want, signal: true });
        let want = Regs::from(want);
        assert_eq!(Rule::<I>::SIGNAL.step(&regs, &mut read), Step::Next(want));
        assert_eq!(Rule::<I>::SIGNAL.step(&regs, &mut |_| None), Step::Cut);
    }
    check::<Aarch64>();
    check::<Arm>();
    check::<Mips64>();
    check::<X86_64>();
}

#[test]
fn leaf_functions() {
    fn check<I: Isa>() {
        let word = i32::from(I::WORD);
        let rule = |cfa: i32, fp: Option<i32>| {
            let fp_slot = fp.map(|n| n * word);
            Rule::<I>::from_form(Form::Leaf { cfa_off: cfa * word, fp_slot })
        };
        let mut full = FullRegs::<I>::from(Regs { pc: 0x100, sp: 0x1000, fp: 0x77 });
        full.set_general(I::RA, 0x402);
        let end = 0x1000 + 4 * u64::from(I::WORD);
        let words = [(end - 2 * u64::from(I::WORD), 0x3330)];
        let step = |rule: Rule<I>, full: &FullRegs<I>| rule.step_all(full, &mut memory(&words));
        let next =
            |sp, fp| FullStep::Next { regs: full.with(Regs { pc: 0x402, sp, fp }), signal: false };
        assert_eq!(step(rule(0, None), &full), next(0x1000, 0x77));
        assert_eq!(step(rule(4, Some(-2)), &full), next(end, 0x3330));
        assert_eq!(step(rule(4, Some(-1)), &full), FullStep::Cut);
        assert_eq!(step(rule(-2, None), &full), FullStep::Cut);
        assert_eq!(step(Rule::UNKNOWN, &full), FullStep::NoCfi);
        let fast = rule(0, None).step(&Regs::from(full), &mut memory(&words));
        assert_eq!(fast, Step::NeedFull);
        // Without progress.
        full.set_general(I::RA, 0x100);
        assert_eq!(step(rule(0, None), &full), FullStep::Cut);
        full.set_general(I::RA, 0);
        assert_eq!(step(rule(0, None), &full), FullStep::End);
    }
    check::<Aarch64>();
    check::<Arm>();
    check::<Mips64>();
}
