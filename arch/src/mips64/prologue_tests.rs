extern crate alloc;
use super::*;
use alloc::vec;
use alloc::vec::Vec;

fn slice(variant: Variant, code: &[u8]) -> impl FnMut(u64) -> Option<u32> {
    move |at| variant.order.word4(code, usize::try_from(at).ok()?)
}

/// Returns the rule for the instruction behind `code`, which has the instructions from the function's start.
fn from_function_in(variant: Variant, code: &[u8]) -> Rule {
    let len = code.len() & !3;
    if len / 4 > MOST {
        return Rule::UNKNOWN;
    }
    walk(variant, 0, len as u64, false, false, &mut slice(variant, code)).unwrap_or(Rule::UNKNOWN)
}

const JR: u32 = 0x03e0_0008;
const DOWN: u32 = 0x67bd_ffe0; // daddiu sp, sp, -32
const UP: u32 = 0x67bd_0020;
const SD_RA: u32 = 0xffbf_0018; // sd ra, 24(sp)
const SD_FP: u32 = 0xffbe_0010; // sd fp, 16(sp)
const SD_GP: u32 = 0xffbc_0008;
const LD_RA: u32 = 0xdfbf_0018;
const LD_FP: u32 = 0xdfbe_0010;
const MOVE_FP: u32 = 0x03a0_f025; // move fp, sp
const BACK: u32 = 0x03c0_e825; // move sp, fp
const LUI: u32 = 0x3c1c_0002;
const T9: u32 = 0x0399_e02d; // daddu gp, gp, t9
const CALL: u32 = 0x0320_f809; // jalr t9

/// Returns the rules before each of the instructions, and behind the last.
fn rules(insns: &[u32]) -> Vec<Rule> {
    let both = [Order::Little, Order::Big].map(|order| {
        let variant = Variant { order, release6: false };
        let code: Vec<u8> = insns.iter().flat_map(|i| order.bytes4(*i)).collect();
        (0..=insns.len()).map(|n| from_function_in(variant, &code[..n * 4])).collect::<Vec<_>>()
    });
    assert_eq!(both[0], both[1]);
    both[0].clone()
}

fn sp(cfa_off: i32, fp_slot: Option<i32>) -> Rule {
    Rule::from_form(Form::CfaSp { cfa_off, ra_slot: -8, fp_slot })
}

fn leaf(cfa_off: i32, fp_slot: Option<i32>) -> Rule {
    Rule::from_form(Form::Leaf { cfa_off, fp_slot })
}

fn fp(cfa_off: i32) -> Rule {
    Rule::from_form(Form::CfaFp { cfa_off, ra_slot: -8, fp_slot: Some(-16) })
}

#[test]
fn a_frame_is_made_and_undone() {
    let body = sp(32, Some(-16));
    assert_eq!(
        rules(&[LUI, DOWN, SD_GP, SD_RA, SD_FP, LUI, LD_FP, LD_RA, JR, UP]),
        [
            leaf(0, None),
            leaf(0, None),
            leaf(32, None),
            leaf(32, None),
            sp(32, None),
            body,
            body,
            body,
            body,
            body,
            body // of the next path
        ]
    );
    // A branch over a path's end leads to the next path, with the frame.
    let over = [DOWN, SD_RA, 0x1080_0004, NOP, LD_RA, JR, UP, LUI, LUI];
    assert_eq!(rules(&over)[7..], [sp(32, None); 3]);
    // This branch was made before there was a frame.
    let early = [0x1080_0006, NOP, DOWN, SD_RA, LD_RA, JR, UP, LUI, JR, NOP];
    assert_eq!(rules(&early)[7..10], [leaf(0, None); 3]);
    // A computed jump.
    let table = [DOWN, SD_RA, 0x0040_0008, NOP, LUI];
    assert_eq!(rules(&table)[4..], [sp(32, None); 2]);
}

#[test]
fn a_frame_pointer() {
    // dsubu sp, sp, v0
    let insns = [DOWN, SD_RA, SD_FP, MOVE_FP, 0x03a2_e82f, LUI, BACK, LD_RA, LD_FP, JR, UP];
    let rules = rules(&insns);
    assert_eq!(rules[3..8], [sp(32, Some(-16)), fp(32), fp(32), fp(32), fp(32)]);
    // The end of the path; what follows is of another.
    assert_eq!((rules[10], rules[11]), (sp(32, Some(-16)), fp(32)));
}

#[test]
fn what_is_no_frame_pointer() {
    let body = sp(32, Some(-16));
    let all =
        |insns: &[u32]| assert_eq!(rules(insns)[4..], vec![body; insns.len() - 3], "{insns:x?}");
    // daddiu fp, sp, 3: the address of something in the frame.
    all(&[DOWN, SD_RA, SD_FP, LUI, 0x67be_0003, LUI]);
    // move fp, sp: the same, behind a branch.
    all(&[DOWN, SD_RA, SD_FP, LUI, 0x1080_0003, NOP, MOVE_FP, LUI, LUI]);
    // It gets another value later: move fp, a0; daddiu fp, sp, 16; ld fp, 24(sp).
    for other in [0x0080_f025, 0x67be_0010, 0xdfbe_0018] {
        let rules = rules(&[DOWN, SD_RA, SD_FP, MOVE_FP, LUI, other, LUI, LUI]);
        assert_eq!(rules[4..6], [fp(32); 2]);
        assert_eq!(rules[6..], [body; 3], "{other:x}");
    }
    // In the delay slot of the first branch it is still one; also where the caller's is loaded.
    let rules =
        rules(&[DOWN, SD_RA, SD_FP, 0x1080_0006, MOVE_FP, BACK, LD_FP, LD_RA, JR, UP, LUI, LUI]);
    assert_eq!((rules[6], rules[10], rules[11]), (fp(32), fp(32), fp(32)));
}

#[test]
fn what_is_saved_stays_until_the_frame_is_given_up() {
    // ld fp, 216(v1): a value of the function's own. Then both, before a branch, as in front of the
    // check of a stack's protector, whose failure is a call.
    let check = [DOWN, SD_RA, SD_FP, 0xdc7e_00d8, LD_FP, LD_RA, 0x1443_0003, LUI, JR, UP];
    assert_eq!(rules(&check)[3..9], [sp(32, Some(-16)); 6]);
    let fails = [&check[..], &[CALL, NOP]].concat();
    assert_eq!(rules(&fails)[10..], [sp(32, Some(-16)); 3]);
    // Behind the end it is gone.
    let gone = [DOWN, SD_RA, SD_FP, UP, LUI];
    assert_eq!(rules(&gone)[4..], [leaf(0, None); 2]);
}

#[test]
fn a_leaf_function_with_a_frame() {
    // Code that is compiled without optimisation.
    let insns = [DOWN, SD_FP, MOVE_FP, LUI, BACK, LD_FP, JR, UP];
    let body = leaf(32, Some(-16));
    assert_eq!(rules(&insns)[..5], [leaf(0, None), leaf(32, None), body, body, body]);
}

#[test]
fn what_is_not_understood() {
    // dsubu sp, sp, v0 without a frame pointer
    assert_eq!(rules(&[DOWN, SD_RA, 0x03a2_e82f])[3], Rule::UNKNOWN);
    assert_eq!(from_function_in(Variant::NATIVE, &[0; 4 * MOST + 4]), Rule::UNKNOWN);
    assert_eq!(from_function_in(Variant::NATIVE, &[]), leaf(0, None));
}

#[test]
fn without_the_start() {
    for order in [Order::Little, Order::Big] {
        let variant = Variant { order, release6: false };
        let rule = |insns: &[u32], is_call: bool| {
            let call = is_call.then_some(CALL);
            let insns = insns.iter().chain(&call);
            let code: Vec<u8> = insns.flat_map(|i| order.bytes4(*i)).collect();
            before_in(variant, code.len() as u64, is_call, &mut slice(variant, &code))
        };
        for is_call in [false, true] {
            assert_eq!(rule(&[JR, NOP, LUI, DOWN, SD_RA, LUI], is_call), sp(32, None));
            assert_eq!(rule(&[LUI, NOP], is_call), Rule::UNKNOWN);
            assert_eq!(rule(&[], is_call), Rule::UNKNOWN);
        }
        let behind = [DOWN, SD_RA, LUI, LD_RA, JR, UP, LUI];
        assert_eq!(rule(&behind, false), leaf(0, None));
        assert_eq!(rule(&behind, true), sp(32, None));
        // A branch leads there, or further: forwards, or back from there.
        let over = [DOWN, SD_RA, 0x1080_0005, NOP, LD_RA, JR, UP, LUI, LUI, LUI];
        assert_eq!(rule(&over, false), sp(32, None));
        let back = [DOWN, SD_RA, LUI, LD_RA, JR, UP, LUI, 0x1480_fffa, NOP];
        assert_eq!(rule(&back, false), Rule::UNKNOWN);
        // A loop of the next function only.
        let own = [DOWN, SD_RA, LUI, LD_RA, JR, UP, LUI, 0x1480_fffe, NOP];
        assert_eq!(rule(&own, false), leaf(0, None));
        // A table of places.
        let table = [DOWN, SD_RA, 0x0040_0008, NOP, LD_RA, JR, UP, LUI];
        assert_eq!(rule(&table, false), sp(32, None));
        // A tail call is no jump by a table. Then code that nothing leads to, and a call that may not return.
        let tail = [DOWN, SD_RA, UP, 0x0320_0008, NOP, NOP, LUI];
        assert_eq!(rule(&tail, false), leaf(0, None));
        for before in [[JR, NOP, NOP], [CALL, NOP, NOP]] {
            let insns = [&[DOWN, SD_RA, 0x0040_0008, NOP][..], &before, &[LUI, NOP, T9]].concat();
            for n in [7, 8, 9] {
                let code = insns.iter().flat_map(|i| order.bytes4(*i)).collect::<Vec<_>>();
                let found = before_in(variant, n * 4, false, &mut slice(variant, &code));
                assert_eq!(found, leaf(0, None), "{n}");
            }
        }
        // Behind a call that does not come back, and what fills the space: slti t2, a2, 16. Unless the call came
        // back: bnez a0 to the instruction before it.
        let ends = [DOWN, SD_RA, LUI, CALL, NOP, NOP, NOP, NOP, 0x28ca_0010, LUI];
        let code = |insns: &[u32]| insns.iter().flat_map(|i| order.bytes4(*i)).collect::<Vec<_>>();
        assert_eq!(before_in(variant, 36, false, &mut slice(variant, &code(&ends))), leaf(0, None));
        let goes_on = code(&[&ends[..], &[0x1480_fff7, NOP]].concat());
        assert_eq!(before_in(variant, 36, false, &mut slice(variant, &goes_on)), sp(32, None));
        // A leaf's loop, behind a path's end, with a branch over it: daddiu sp, sp, -32; beqz a0, +9; b +3.
        let leaf_loop =
            [DOWN, 0x1080_0009, NOP, 0x1000_0003, NOP, LUI, LUI, LUI, 0x1480_fffc, NOP, JR, UP];
        assert_eq!(
            before_in(variant, 20, false, &mut slice(variant, &code(&leaf_loop))),
            leaf(32, None)
        );
        // The next function's beginning: nothing leads back to it.
        let next = [DOWN, 0x1080_0009, NOP, JR, UP, LUI, LUI, LUI, LUI, NOP, LUI];
        assert_eq!(before_in(variant, 24, false, &mut slice(variant, &code(&next))), leaf(0, None));
        // Interrupted where the next one makes its frame.
        let code: Vec<u8> =
            [DOWN, SD_RA, JR, NOP, DOWN, LUI].iter().flat_map(|i| order.bytes4(*i)).collect();
        assert_eq!(before_in(variant, 16, false, &mut slice(variant, &code)), leaf(0, None));
        // The first function of the code makes its frame; no call can be in front of it.
        assert_eq!(before_in(variant, 0, false, &mut slice(variant, &code)), leaf(0, None));
        assert_eq!(before_in(variant, 0, true, &mut slice(variant, &code)), Rule::UNKNOWN);
        // A frame in two steps.
        assert_eq!(rule(&[JR, NOP, DOWN, SD_RA, DOWN, LUI], true), sp(64, None));
        // The linker's frame, which a stub of lazy binding calls: sd $15, 24(sp). Then a caller that has kept
        // return address at all.
        assert_eq!(rule(&[JR, NOP, DOWN, 0xffaf_0018, LUI], true), sp(32, None));
        assert_eq!(rule(&[JR, NOP, DOWN, LUI], true), Rule::UNKNOWN);
        assert_eq!(rule(&[JR, NOP, DOWN, 0xffaf_0018, SD_FP, LUI], false), leaf(32, Some(-16)));
        // Room that is made later: with a frame pointer, and without one.
        assert_eq!(rule(&[DOWN, SD_RA, SD_FP, MOVE_FP, LUI, DOWN, LUI], true), fp(32));
        assert_eq!(rule(&[DOWN, SD_RA, JR, NOP, DOWN, LUI], true), Rule::UNKNOWN);
        // This is no return address.
        let code: Vec<u8> = [DOWN, SD_RA, LUI, LUI].iter().flat_map(|i| order.bytes4(*i)).collect();
        assert_eq!(before_in(variant, 16, true, &mut slice(variant, &code)), Rule::UNKNOWN);
        // The entry of a program, which does not return.
        let start = [DOWN, SD_RA, JR, NOP, NO_RETURN[0], LUI];
        assert_eq!(rule(&start, true), Rule::END);
        assert_eq!(rule(&[NO_RETURN[0], DOWN, SD_RA, LUI], true), sp(32, None));
        // It is used as a general register: sd ra, 8(sp); daddu v0, v1, ra; bne ra, v0.
        for used in [0xffbf_0008, 0x007f_102d, 0x17e2_0003] {
            let insns = [DOWN, SD_RA, NO_RETURN[0], used, NOP, LUI];
            assert_eq!(rule(&insns, true), sp(32, None), "{used:x}");
        }
    }
}

#[test]
fn of_a_process() {
    let insns = [NOP, DOWN, SD_RA, LUI, 0x0320_f809, NOP, LD_RA]; // jalr t9
    let code: Vec<u8> = insns.iter().flat_map(|i| Order::NATIVE.bytes4(*i)).collect();
    let mut page = code.clone();
    page.resize(PIECE as usize, 0);
    let mut read = |at: u64, to: &mut [u8]| {
        to.copy_from_slice(&page);
        at == 0x1000
    };
    // Behind the delay slot of the call; interrupted before the save.
    assert_eq!(before(0x1018, &mut read), sp(32, None));
    assert_eq!(before(0x1009, &mut read), leaf(32, None));
    assert_eq!(before(0x1005, &mut read), leaf(0, None));
    assert_eq!(before(0x1001, &mut read), Rule::UNKNOWN);
    assert_eq!(before(0x2018, &mut read), Rule::UNKNOWN);
}

#[test]
fn effects() {
    for (insn, want) in [
        (DOWN, Effect::AddSp(-32)),
        (0x03a2_e82d, Effect::LoseSp),       // daddu sp, sp, v0
        (0xdfbd_0000, Effect::LoseSp),       // ld sp, 0(sp)
        (0x67be_0010, Effect::FpFromSp(16)), // daddiu fp, sp, 16
        (0x67dd_0020, Effect::SpFromFp(32)), // daddiu sp, fp, 32
        (0x03a0_f02d, Effect::FpFromSp(0)),  // daddu fp, sp, zero
        (0x0080_f025, Effect::LoseFp),       // move fp, a0
        (0xffdf_0008, Effect::Save { register: 31, base: 30, offset: 8 }),
        (LD_FP, Effect::Load { register: 30, base: 29, offset: 16 }),
        (0xdc7e_00d8, Effect::Load { register: 30, base: 3, offset: 216 }), // ld fp, 216(v1)
        (0xff9f_0008, Effect::None),                                        // sd ra, 8(gp)
        (NOP, Effect::None),
        (JR, Effect::None),
    ] {
        assert_eq!(effect(insn), want, "{insn:08x}");
    }
}
