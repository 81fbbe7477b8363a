extern crate alloc;
use super::*;
use alloc::vec::Vec;

const PAGE: u32 = 0x9000_0010; // adrp x16, .
const LOAD: u32 = 0xf947_fe11; // ldr x17, [x16, #4088]
const ADD16: u32 = 0x913f_e210; // add x16, x16, #0xff8
const BR_X17: u32 = 0xd61f_0220;
const BR_X1: u32 = 0xd61f_0020;
const BTI: u32 = 0xd503_245f;
const PACIASP: u32 = 0xd503_233f;
const AUTIASP: u32 = 0xd503_23bf;
const MAKE: u32 = 0xa9be_7bfd; // stp x29, x30, [sp, #-32]!
const MOVE_FP: u32 = 0x9100_03fd; // mov x29, sp
const UNMAKE: u32 = 0xa8c2_7bfd; // ldp x29, x30, [sp], #32
const BACK: u32 = 0x9100_03bf; // mov sp, x29
const ALLOCA: u32 = 0xcb20_63ff; // sub sp, sp, x0
const DOWN: u32 = 0xd101_43ff; // sub sp, sp, #0x50
const UP: u32 = 0x9101_43ff; // add sp, sp, #0x50
const SAVE: u32 = 0xa903_7bfd; // stp x29, x30, [sp, #48]
const RESTORE: u32 = 0xa943_7bfd; // ldp x29, x30, [sp, #48]
const SPILL: u32 = 0xf900_07fe; // str x30, [sp, #8]
const REFILL: u32 = 0xf940_07fe; // ldr x30, [sp, #8]
const CALL: u32 = 0x9400_0010;
const OTHER: u32 = 0x8b01_0000; // add x0, x0, x1
const RET: u32 = 0xd65f_03c0;
const RETAA: u32 = 0xd65f_0bff;
const BRK: u32 = 0xd420_0020;

/// Address of the code of these tests, in the middle of a piece.
const AT: u64 = 0x4_0040;

fn look(insns: &[u32], pc: u64) -> Option<Rule> {
    let code: Vec<u8> = insns.iter().flat_map(|i| i.to_le_bytes()).collect();
    // The memory around it is readable, but is not code.
    let mut memory = [0; 4096];
    let from = (AT & 0xfff) as usize;
    memory[from..from + code.len()].copy_from_slice(&code);
    before(pc, &mut |at, to| {
        let Some(at) = at.checked_sub(AT & !0xfff) else { return false };
        let Some(bytes) = memory.get(at as usize..).and_then(|m| m.get(..to.len())) else {
            return false;
        };
        to.copy_from_slice(bytes);
        true
    })
}

/// Returns the rules for an interrupt at each of the instructions.
fn rules(insns: &[u32]) -> Vec<Rule> {
    let at = |n: usize| look(insns, AT + n as u64 * 4 + 1).expect("of an instruction");
    (0..insns.len()).map(at).collect()
}

/// Returns the rule at the return address of the call with this instruction number.
fn behind(insns: &[u32], n: u64) -> Option<Rule> {
    look(insns, AT + n * 4 + 4)
}

fn leaf(cfa_off: i32) -> Rule {
    Rule::from_form(Form::Leaf { cfa_off, fp_slot: None })
}

/// Returns the rule of a frame whose record is `below` the CFA.
fn sp(cfa_off: i32, below: i32) -> Rule {
    Rule::from_form(Form::CfaSp { cfa_off, ra_slot: 8 - below, fp_slot: Some(-below) })
}

#[test]
fn leaf_functions() {
    assert_eq!(rules(&[OTHER, OTHER, RET]), [leaf(0); 3]);
    assert_eq!(rules(&[DOWN, OTHER, UP, RET]), [leaf(0), leaf(80), leaf(80), leaf(0)]);
    // cbz x0, to its end; then a loop that ends in the middle.
    let looped = [0xb400_0080, 0xb400_0060, OTHER, 0x17ff_fffe, RET];
    assert_eq!(rules(&looped), [leaf(0); 5]);
    // A tail call of a function that follows.
    assert_eq!(rules(&[UP, 0x1400_0002, BRK, MAKE, UNMAKE, RET])[0], leaf(80));
    assert_eq!(rules(&[0x1400_0002, BRK, MAKE, CALL, UNMAKE, RET])[0], leaf(0));
}

#[test]
fn frames() {
    let insns = [BTI, PACIASP, MAKE, MOVE_FP, CALL, OTHER, UNMAKE, AUTIASP, RET];
    let (none, made) = (leaf(0), sp(32, 32));
    let want = [none, none, none, made, made, made, made, none, none];
    assert_eq!(rules(&insns), want);
    assert_eq!(behind(&insns, 4), Some(made));
    let combined = [MAKE, CALL, UNMAKE, RETAA];
    assert_eq!(rules(&combined), [none, made, made, none]);
    // The record in the middle.
    let insns = [DOWN, SAVE, CALL, RESTORE, UP, RET];
    let made = sp(80, 32);
    assert_eq!(rules(&insns), [leaf(0), leaf(80), made, made, leaf(80), leaf(0)]);
    assert_eq!(behind(&insns, 2), Some(made));
    // Large: sub sp, sp, #1, lsl #12, and back.
    let insns = [0xd140_07ff, MAKE, CALL, UNMAKE, 0x9140_07ff, RET];
    assert_eq!(behind(&insns, 2), Some(sp(4128, 4128)));
    assert_eq!(rules(&insns)[1], leaf(4096));
    // Vector registers and others below it.
    let insns = [CALL, 0x3cc1_07e0, 0x28c1_07e0, UNMAKE, RET];
    assert_eq!(behind(&insns, 0), Some(sp(56, 32)));
}

#[test]
fn frames_of_no_fixed_size() {
    let insns = [MAKE, MOVE_FP, ALLOCA, CALL, BACK, UNMAKE, RET];
    let by_fp = Rule::from_form(Form::CfaFp { cfa_off: 32, ra_slot: -24, fp_slot: Some(-32) });
    assert_eq!(behind(&insns, 3), Some(by_fp));
    let made = sp(32, 32);
    assert_eq!(rules(&insns), [leaf(0), made, by_fp, by_fp, by_fp, made, leaf(0)]);
    // sub sp, x29, #16; then add sp, sp, #0x50, with the record not where x29 points to.
    let insns = [CALL, 0xd100_43bf, RESTORE, UP, RET];
    let by_fp = Rule::from_form(Form::CfaFp { cfa_off: 64, ra_slot: -24, fp_slot: Some(-32) });
    assert_eq!(behind(&insns, 0), Some(by_fp));
    // Not undone from x29.
    assert_eq!(behind(&[CALL, ALLOCA, UNMAKE, RET], 0), None);
}

#[test]
fn other_paths() {
    let made = sp(32, 32);
    // Straight ahead is a call that does not return, and another function; cbz branches over it.
    let insns = [MAKE, 0xb400_0060, OTHER, CALL, UNMAKE, RET];
    assert_eq!(rules(&insns)[..3], [leaf(0), made, made]);
    let next = [MAKE, 0xb400_0080, CALL, BTI, RET, UNMAKE, RET];
    assert_eq!(rules(&next)[1], made);
    assert_eq!(rules(&next)[2], Rule::UNKNOWN);
    // A table of places, unless the other way shows.
    let table = [MAKE, 0xb400_0040, BR_X1, UNMAKE, RET];
    assert_eq!(rules(&table)[1..4], [made, Rule::UNKNOWN, made]);
    // In another's place.
    assert_eq!(rules(&[MAKE, CALL, UNMAKE, BR_X1])[..3], [leaf(0), made, made]);
    assert_eq!(rules(&[OTHER, BR_X1]), [Rule::UNKNOWN; 2]);
}

#[test]
fn what_is_of_another_function_does_not_count() {
    // These stand behind a call that does not return.
    for next in [&[RET][..], &[MAKE, CALL, UNMAKE, RET], &[DOWN, SAVE, CALL, RESTORE, UP, RET]] {
        let insns = [&[MAKE, OTHER, CALL], next].concat();
        assert_eq!(rules(&insns)[..3], [Rule::UNKNOWN; 3]);
        assert_eq!(behind(&insns, 2), None);
    }
    // Traps, system calls that end the process, loops.
    assert_eq!(rules(&[MAKE, BRK, RET])[..2], [Rule::UNKNOWN; 2]);
    assert_eq!(rules(&[MAKE, 0x1400_0000, RET])[1], Rule::UNKNOWN);
}

#[test]
fn the_link_register_as_any_other() {
    // mov x30, x1, spilled and loaded; then the return address.
    let insns = [0xaa01_03fe, SPILL, OTHER, REFILL, UNMAKE, RET];
    assert_eq!(rules(&insns)[2..5], [sp(32, 32); 3]);
    // There is no known place for it.
    assert_eq!(rules(&[SPILL, OTHER, REFILL, 0x1400_0001, RET])[0], Rule::UNKNOWN);
    assert_eq!(rules(&[0xaa01_03fe, RET])[0], Rule::UNKNOWN);
    // ldr x29, [x0], whose value is never restored.
    assert_eq!(rules(&[0xf940_001d, RET])[0], Rule::UNKNOWN);
}

#[test]
fn linkage_tables() {
    let entry = [PAGE, LOAD, ADD16, BR_X17];
    assert_eq!(rules(&entry), [leaf(0); 4]);
    assert_eq!(rules(&[&[BTI][..], &entry].concat()), [leaf(0); 5]);
    let signed = [PAGE, LOAD, ADD16, AUTIA1716, BR_X17];
    assert_eq!(rules(&signed), [leaf(0); 5]);
    // The first, which the others lead to until they are bound.
    let pushed = Rule::from_form(Form::CfaSp { cfa_off: 16, ra_slot: -8, fp_slot: None });
    for first in [&[PUSH][..], &[BTI, PUSH]] {
        let insns = [first, &entry, &[0xd503_201f; 3], &entry].concat();
        let found = rules(&insns);
        let (before, behind) = found.split_at(first.len());
        assert!(before.iter().all(|rule| *rule == leaf(0)), "{before:?}");
        assert_eq!(behind[..4], [pushed; 4]);
        assert_eq!(behind[7..], [leaf(0); 4]);
    }
}

#[test]
fn code_that_cannot_be_read() {
    for pc in [AT + 1, AT + 4, 1, 0, u64::MAX, u64::MAX - 2, u64::MAX - 3] {
        let unknown = (pc & 3 == 1).then_some(Rule::UNKNOWN);
        assert_eq!(before(pc, &mut |_, _| false), unknown, "{pc:x}");
    }
    // The code ends without an answer.
    assert_eq!(rules(&[OTHER; 1008])[0], Rule::UNKNOWN);
    // These are no addresses of instructions.
    assert_eq!(look(&[OTHER, RET], AT + 2), None);
    assert_eq!(look(&[OTHER, RET], AT + 3), None);
}

#[test]
fn garbage_ends() {
    let mut seed = 1_u64;
    for round in 0..300_u64 {
        let mut reads = 0;
        let mut read = |at: u64, to: &mut [u8]| {
            reads += 1;
            let mut x = at ^ seed;
            for word in to.chunks_mut(4) {
                x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                // Many branches, in some rounds.
                let insn = match (round % 3, x >> 62) {
                    (1, 0) => 0xb400_0000 | (x >> 32) as u32 & 0xff_ffff,
                    (2, 0) => 0x1400_0000 | (x >> 32) as u32 & 0x3ff_ffff,
                    _ => (x >> 32) as u32,
                };
                word.copy_from_slice(&insn.to_le_bytes());
            }
            true
        };
        let rule = before(round << 40 | 1, &mut read);
        assert!(rule.is_some_and(|rule| rule != Rule::COMPLEX));
        before(round << 40, &mut read);
        assert!(reads <= 2 * ahead::MOST, "{reads}");
        seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    }
    // Nothing but branches to the next: bounded as well.
    for insn in [0x1400_0001, 0xb400_0020, OTHER, 0x1400_0400] {
        let mut read = |_: u64, to: &mut [u8]| {
            to.chunks_mut(4).for_each(|word| word.copy_from_slice(&u32::to_le_bytes(insn)));
            true
        };
        assert_eq!(before(0x1001, &mut read), Some(Rule::UNKNOWN));
    }
}

#[test]
fn effects() {
    let lose = |sp, fp, lr| Effect::Lose { sp, fp, lr };
    let moves = |load, offset, by, registers| Effect::Move {
        load,
        base: Register::Sp,
        offset,
        by,
        registers,
    };
    for (insn, want) in [
        (DOWN, Effect::SpFrom(Register::Sp, -80)),
        (0x9100_c3fd, Effect::FpFrom(Register::Sp, 48)), // add x29, sp, #48
        (0xd100_43bf, Effect::SpFrom(Register::Fp, -16)), // sub sp, x29, #16
        (MAKE, moves(false, -32, -32, [Some((Register::Fp, 0)), Some((Register::Lr, 8))])),
        (UNMAKE, moves(true, 0, 32, [Some((Register::Fp, 0)), Some((Register::Lr, 8))])),
        (0xa941_03fe, moves(true, 16, 0, [Some((Register::Lr, 0)), None])), // ldp x30, x0, [sp, #16]
        (0xf81f_0ffe, moves(false, -16, -16, [Some((Register::Lr, 0)), None])), // str x30, [sp, #-16]!
        (0x6dbf_27e8, moves(false, -16, -16, [None; 2])), // stp d8, d9, [sp, #-16]!
        (0x3cc1_07e0, moves(true, 0, 16, [None; 2])),     // ldr q0, [sp], #16
        (0x28c1_07e0, moves(true, 0, 8, [None; 2])),      // ldp w0, w1, [sp], #8
        (ALLOCA, lose(true, false, false)),
        (0x927c_ec1f, lose(true, false, false)), // and sp, x0, #-16
        (0x043f_57ff, lose(true, false, false)), // addvl sp, sp, #-1
        (0x4cdf_73e0, lose(true, false, false)), // ld1 {v0.16b}, [sp], #16
        (0xb940_0bfe, lose(false, false, true)), // ldr w30, [sp, #8]
        (0xaa01_03fe, lose(false, false, true)), // mov x30, x1
        (0xd53b_d05e, lose(false, false, true)), // mrs x30, tpidr_el0
        (0x4e08_3c1e, lose(false, false, true)), // umov x30, v0.d[0]
        (0xc85f_7c1e, lose(false, false, true)), // ldxr x30, [x0]
        (0x5800_005e, lose(false, false, true)), // ldr x30, .+8
        (0xf940_001d, lose(false, true, false)), // ldr x29, [x0]
        (0xf820_803d, lose(false, true, false)), // swp x0, x29, [x1]
        (0xdac1_43fe, Effect::None),             // xpaci x30
        (0xf980_07e0, Effect::None),             // prfm
        (0x9100_03e0, Effect::None),             // mov x0, sp
        (0xeb01_001f, Effect::None),             // cmp x0, x1
        (PACIASP, Effect::Entry),
        (AUTIASP, Effect::None),
        (OTHER, Effect::None),
    ] {
        assert_eq!(effect(insn), want, "{insn:08x}");
    }
    for (insn, want) in [
        (CALL, Flow::Call),
        (0xd63f_0020, Flow::Call), // blr x1
        (0x17ff_fffd, Flow::Branch(0xff4)),
        (0xb708_0040, Flow::Conditional(0x1008)), // tbnz
        (0x54ff_ffe1, Flow::Conditional(0xffc)),  // b.ne
        (BR_X1, Flow::Register(1)),
        (0xd71f_0822, Flow::Register(1)), // braa x1, x2
        (RET, Flow::Return),
        (RETAA, Flow::Return),
        (0xd65f_0020, Flow::Stop), // ret x1
        (BRK, Flow::Stop),
        (0, Flow::Stop),
        (OTHER, Flow::Next),
    ] {
        assert_eq!(flow(insn, 0x1000), want, "{insn:08x}");
    }
}
