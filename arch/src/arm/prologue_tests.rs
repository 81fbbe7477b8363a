extern crate alloc;
use super::*;
use alloc::vec::Vec;

const CALL: [u16; 2] = [0xf000, 0xf800];

/// Returns the rule for the call that these halves end with, which are at 0x1000.
fn rule(halves: &[u16]) -> Option<Rule> {
    let code: Vec<u16> = halves.iter().copied().chain(CALL).collect();
    let end = 0x1000 + 2 * code.len() as u64;
    let mut fetch = |at: u64| {
        let n = at.checked_sub(0x1000)? / 2;
        code.get(n as usize).copied()
    };
    before_in(end, &mut fetch)
}

fn sp(cfa_off: i32, ra_slot: i32, fp_slot: Option<i32>) -> Option<Rule> {
    Some(Rule::from_form(Form::CfaSp { cfa_off, ra_slot, fp_slot }))
}

#[test]
fn frames() {
    // push {r4, r5, lr}; mov ip, r1; ldr r4, [pc, #176]; sub sp, #44: setitimer of glibc
    assert_eq!(rule(&[0xb530, 0x468c, 0x4c2c, 0xb08b]), sp(56, -4, None));
    // push {r3, r4, r7, lr}
    assert_eq!(rule(&[0xb598]), sp(16, -4, Some(-8)));
    // stmdb sp!, {r4-r9, lr}; vpush {d8}; sub.w sp, sp, #1024
    assert_eq!(rule(&[0xe92d, 0x43f0, 0xed2d, 0x8b02, 0xf5ad, 0x6d80]), sp(1060, -4, Some(-16)));
    // str lr, [sp, #-4]!; sub sp, #12
    assert_eq!(rule(&[0xf84d, 0xed04, 0xb083]), sp(16, -4, None));
    // push {r1, r2, r3}; movs r0, #1; push {r4, lr}: any number of arguments
    assert_eq!(rule(&[0xbf00, 0xb40e, 0x2001, 0xb510]), sp(20, -16, None));
    // Not across the end of another function.
    assert_eq!(rule(&[0xb40e, 0x4770, 0xb510]), sp(8, -4, None));
}

#[test]
fn frame_pointers() {
    // push {r7, lr}; sub sp, #8; add r7, sp, #0; sub.w sp, sp, r3
    let moved = Rule::from_form(Form::CfaFp { cfa_off: 16, ra_slot: -4, fp_slot: Some(-8) });
    assert_eq!(rule(&[0xb580, 0xb082, 0xaf00, 0xebad, 0x0d03]), Some(moved));
    // Without one.
    assert_eq!(rule(&[0xb580, 0xb082, 0xebad, 0x0d03]), Some(Rule::UNKNOWN));
    // Back: mov sp, r7
    assert_eq!(rule(&[0xb580, 0xb082, 0xaf00, 0xebad, 0x0d03, 0x46bd]), sp(16, -4, Some(-8)));
}

#[test]
fn paths() {
    // cbz r0, +2; pop {r4, pc}: what follows has the frame.
    assert_eq!(rule(&[0xb510, 0xb082, 0xb108, 0xb002, 0xbd10]), sp(16, -4, None));
    // Without the branch, only the code behind leads there.
    assert_eq!(rule(&[0xb510, 0xb082, 0xb002, 0xbd10]), sp(16, -4, None));
    // it ne; popne {r4, pc}
    assert_eq!(rule(&[0xb510, 0xbf18, 0xbd10]), sp(8, -4, None));
    // A return that nothing needs: pop {r4, lr}, and a call that has none.
    assert_eq!(rule(&[0xb510, 0xe8bd, 0x4010]), Some(Rule::UNKNOWN));
    // A branch to behind a call that does not come back.
    assert_eq!(rule(&[0xb510, 0xb110, 0xb082, 0xf041, 0xfa83]), sp(8, -4, None));
}

#[test]
fn data_among_instructions() {
    // ldr r3, [pc, #0]; b +2; .word 0xb5f0b5f0: no function starts there
    assert_eq!(rule(&[0xb510, 0xbf00, 0x4b00, 0xe001, 0xb5f0, 0xffff]), sp(8, -4, None));
    // tbb [pc, r0]; two places, two bytes behind the table and further
    assert_eq!(rule(&[0xb510, 0xe8df, 0xf000, 0x0201, 0xb082, 0xb002]), sp(8, -4, None));
    // Three places, and a byte of padding
    assert_eq!(rule(&[0xb510, 0xe8df, 0xf000, 0x0302, 0x0003, 0xb082, 0xb002]), sp(8, -4, None));
    // cmp r0, #1; tbb [pc, r0]; two places far away: what follows them is code.
    let far = [0xb510, 0x2801, 0xe8df, 0xf000, 0x4040, 0xb082];
    assert_eq!(rule(&far), sp(16, -4, None));
    let wide = [0xb510, 0xf1b9, 0x0f01, 0xe8df, 0xf019, 0x0040, 0x0040, 0xb082]; // cmp.w r9; tbh
    assert_eq!(rule(&wide), sp(16, -4, None));
    // A comparison of another register says nothing of it: of four places none is code.
    assert_eq!(rule(&[0xb510, 0x2901, 0xe8df, 0xf000, 0x0202, 0xb082]), sp(8, -4, None));
    // The second half of an instruction is no push: ldr.w r11, [r1, #0x510]
    assert_eq!(rule(&[0xb530, 0xf8d1, 0xb510]), sp(12, -4, None));
    // But it is one right behind a whole long instruction: bl
    assert_eq!(rule(&[0xb530, 0xf041, 0xfa83, 0xb510]), sp(8, -4, None));
}

#[test]
fn calls() {
    let behind = |halves: &[u16]| {
        let mut fetch = |at: u64| halves.get(at as usize / 2).copied();
        call_before(2 * halves.len() as u64, &mut fetch)
    };
    assert_eq!(behind(&[0xf79f, 0xffad]), Some(0)); // bl
    assert_eq!(behind(&[0xf79f, 0xefac]), Some(0)); // blx, to ARM code
    assert_eq!(behind(&[0xbf00, 0x4798]), Some(2)); // blx r3
    assert_eq!(behind(&[0xbf00, 0x4718]), None); // bx r3
    assert_eq!(behind(&[0xf79f, 0xb900]), None); // b
}

#[test]
fn effects() {
    for (insn, want) in [
        (0xb013, Effect::AddSp(76)),
        (0xb093, Effect::AddSp(-76)),
        (0xb40f, Effect::Push(15, 16)),
        (0xbd30, Effect::Pop(0x8030, 12)),
        (0xaf02, Effect::FpFromSp(8)),
        (0x3708, Effect::AddFp(8)),
        (0x46bd, Effect::SpFromFp),
        (0x466f, Effect::FpFromSp(0)),
        (0x449d, Effect::LoseSp), // add sp, r3
        (0x461f, Effect::LoseFp), // mov r7, r3
        (0xe92d_4ff0, Effect::Push(0x4ff0, 36)),
        (0xe8bd_83f0, Effect::Pop(0x83f0, 28)),
        (0xf85d_eb04, Effect::Pop(1 << 14, 4)),
        (0xe96d_4504, Effect::Push(0x30, 16)), // strd r4, r5, [sp, #-16]!
        (0xf5ad_6d80, Effect::AddSp(-1024)),
        (0xf2ad_4d04, Effect::AddSp(-1028)),
        (0xf10d_0d10, Effect::AddSp(16)),
        (0xf10d_0708, Effect::FpFromSp(8)),
        (0xecbd_8b04, Effect::AddSp(16)),
        (0xf8d3_d000, Effect::LoseSp), // ldr.w sp, [r3]
        (0x4618, Effect::None),
        (0xf8cd_e004, Effect::None),
    ] {
        assert_eq!(effect(insn), want, "{insn:08x}");
    }
}
