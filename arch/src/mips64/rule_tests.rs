use super::*;
use crate::mips64::Regs;

fn memory(words: &[(u64, u64)]) -> impl FnMut(u64) -> Option<u64> + '_ {
    |address| words.iter().find(|w| w.0 == address).map(|w| w.1)
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
