use super::super::regs::Regs;
use super::super::rule::{Rule, Step};
use super::*;
use crate::unwind::{CfiRule, Goroutine};

/// The instructions behind the call in Go 1.19, which begin with the load of the thread pointer.
const OLD: [u8; 40] = [
    0x64, 0x48, 0x8b, 0x0c, 0x25, 0xf8, 0xff, 0xff, 0xff, 0x48, 0x8b, 0x7c, 0x24, 0x30, 0x48, 0x8b,
    0x77, 0x08, 0x48, 0x2b, 0x74, 0x24, 0x28, 0x64, 0x48, 0x89, 0x3c, 0x25, 0xf8, 0xff, 0xff, 0xff,
    0x48, 0x89, 0xf4, 0x89, 0x44, 0x24, 0x18, 0xc3,
];

fn memory(words: &[(u64, u64)]) -> impl FnMut(u64) -> Option<u64> {
    |at| words.iter().find(|w| w.0 == at).map(|w| w.1)
}

/// Code at an address, beyond which there is nothing.
fn code_at(base: u64, code: &[u8]) -> impl FnMut(u64, &mut [u8]) -> bool {
    move |at, to| {
        let from = at.checked_sub(base).and_then(|from| code.get(from as usize..));
        from.and_then(|c| c.get(..to.len())).map(|c| to.copy_from_slice(c)).is_some()
    }
}

#[test]
fn calls_from_go_are_known_by_what_follows_them() {
    let new = [
        0x48, 0x8b, 0x7c, 0x24, 0x08, 0x48, 0x8b, 0x77, 0x08, 0x48, 0x2b, 0x34, 0x24, 0x48, 0x89,
        0xf4,
    ];
    assert_eq!(go_call(&OLD), Some(Form::GoCall { g_at: 48, depth_at: 40 }));
    assert_eq!(go_call(&new), Some(Form::GoCall { g_at: 8, depth_at: 0 }));
    for code in [&OLD[10..], &OLD[..22], &new[1..], &new[..12], &[0x90; 40], &[]] {
        assert_eq!(go_call(code), None, "{code:x?}");
    }
}

#[test]
fn the_step_to_the_goroutine_reads_what_asmcgocall_has_saved() {
    let rule = Rule::from_code(0x1000, None, &mut code_at(0x1000, &OLD)).expect("a rule");
    assert_eq!(Rule::from_code(0x1001, None, &mut code_at(0x1000, &OLD)), None);
    assert!(rule.leaves_stack() && !rule.is_signal() && !rule.reads_fp() && !rule.writes_fp());
    // The goroutine at 0xc000 has a stack that ends at 0x8000, of which 0x100 bytes are in use.
    let regs = Regs { pc: 0x1000, sp: 0x7000_0000, fp: 0x7f40 };
    let words = [(0x7000_0030, 0xc000), (0x7000_0028, 0x100), (0xc008, 0x8000), (0x7f00, 0x402)];
    let next = Step::Next(Regs { pc: 0x402, sp: 0x7f08, fp: 1 });
    assert_eq!(rule.step(&regs, &mut memory(&words)), next);
    let found = Goroutine { end_at: 0xc008, end: 0x8000, sp: 0x7f00 };
    assert_eq!(rule.goroutine(&regs, &mut memory(&words)), Some(found));
    assert_eq!(Rule::FRAME_POINTER.goroutine(&regs, &mut memory(&words)), None);
    for (gone, _) in words {
        let mut read = |at: u64| memory(&words)(at).filter(|_| at != gone);
        assert_eq!(rule.step(&regs, &mut read), Step::Cut, "without {gone:#x}");
    }
    for (changed, value) in [(0xc008, 0x80), (0xc008, 0x8004), (0x7000_0028, 0)] {
        let mut read = |at: u64| if at == changed { Some(value) } else { memory(&words)(at) };
        assert_eq!(rule.step(&regs, &mut read), Step::Cut, "{changed:#x}: {value:#x}");
    }
}

#[test]
fn the_frame_that_called_asmcgocall_is_measured_by_its_epilogue() {
    // asmcgocall at 0x1000, its call at 0x1080, and behind it one of these epilogues.
    let with = |epilogue: &[u8]| -> Option<Form> {
        let mut code = [0x90; 0x100];
        let call = [0xe8, 0x7b, 0xff, 0xff, 0xff, 0x0f, 0x1f, 0x40, 0x00, 0x8b, 0x44, 0x24, 0x1c];
        for (at, part) in [(0, &ASMCGOCALL[..]), (0x80, &call), (0x8d, epilogue)] {
            code[at..at + part.len()].copy_from_slice(part);
        }
        form(0x1085, &mut code_at(0x1000, &code))
    };
    let sized = |cfa_off| Some(Form::CfaSp { cfa_off, ra_slot: -8, fp_slot: Some(-16) });
    let loads = [0x48, 0x8b, 0x6c, 0x24, 0x28, 0x48, 0x83, 0xc4, 0x30, 0xc3];
    assert_eq!(with(&loads), sized(0x38));
    assert_eq!(with(&[0x48, 0x83, 0xc4, 0x30, 0x5d, 0xc3]), sized(0x40));
    assert_eq!(with(&[0x48, 0x83, 0xec, 0x80, 0x5d, 0xc3]), sized(0x90));
    assert_eq!(with(&[0x48, 0x81, 0xc4, 0x00, 0x01, 0, 0, 0x5d, 0xc3]), sized(0x110));
    let large = [0x48, 0x8b, 0xac, 0x24, 0x98, 0, 0, 0, 0x48, 0x81, 0xc4, 0xa0, 0, 0, 0, 0xc3];
    assert_eq!(with(&large), sized(0xa8));
    // The two numbers do not fit, something is missing, or it is no epilogue.
    for at in 0..loads.len() {
        let mut other = loads;
        other[at] ^= 1;
        assert_eq!(with(&other), None, "{other:x?}");
    }
    assert_eq!(with(&[]), None);
    // A call of something else.
    let mut code = [0x90; 0x100];
    code[0x80..0x85].copy_from_slice(&[0xe8, 0x7b, 0xff, 0xff, 0xff]);
    code[0x85..0x8f].copy_from_slice(&loads);
    assert_eq!(form(0x1085, &mut code_at(0x1000, &code)), None);
}
