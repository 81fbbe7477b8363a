extern crate alloc;
use super::*;
use alloc::vec::Vec;

/// Returns the rule for the instruction at the `n`th of these halves, which are at 0x1000.
fn rule(halves: &[u16], n: u64) -> Option<Rule> {
    let mut fetch = |at: u64| halves.get(at.checked_sub(0x1000)? as usize / 2).copied();
    from(0x1000 + 2 * n, None, &mut fetch)
}

fn sp(cfa_off: i32, ra_slot: i32, fp_slot: Option<i32>) -> Option<Rule> {
    Some(Rule::from_form(Form::CfaSp { cfa_off, ra_slot, fp_slot }))
}

fn leaf(cfa_off: i32, fp_slot: Option<i32>) -> Option<Rule> {
    Some(Rule::from_form(Form::Leaf { cfa_off, fp_slot }))
}

#[test]
fn everywhere_in_a_function() {
    // push {r4, r7, lr}; sub sp, #12; bl; add sp, #12; pop {r4, r7, pc}
    let code = [0xb590, 0xb083, 0xf000, 0xf800, 0xb003, 0xbd90];
    assert_eq!(rule(&code, 0), leaf(0, None));
    assert_eq!(rule(&code, 1), sp(12, -4, Some(-8)));
    assert_eq!(rule(&code, 2), sp(24, -4, Some(-8)));
    assert_eq!(rule(&code, 4), sp(24, -4, Some(-8)));
    assert_eq!(rule(&code, 5), sp(12, -4, Some(-8)));
}

#[test]
fn leaves() {
    // adds r0, #1; bx lr
    assert_eq!(rule(&[0x3001, 0x4770], 0), leaf(0, None));
    // push {r4, r7}; movs r7, #3; pop {r4, r7}; bx lr
    let code = [0xb490, 0x2703, 0xbc90, 0x4770];
    assert_eq!(rule(&code, 0), leaf(0, None));
    assert_eq!(rule(&code, 1), leaf(8, Some(-4)));
    assert_eq!(rule(&code, 3), leaf(0, None));
    // The link register no longer holds the return address: mov lr, r1; bx lr, and ldr.w lr, [r0]; bx lr
    assert_eq!(rule(&[0x468e, 0x4770], 0), None);
    assert_eq!(rule(&[0xf8d0, 0xe000, 0x4770], 0), None);
    assert_eq!(rule(&[0xfb01, 0xfe02, 0x4770], 0), None); // mul lr, r1, r2
    // str.w lr, [sp, #4]; bl; ldr.w lr, [sp, #4]; bx lr
    let code = [0xf8cd, 0xe004, 0xf000, 0xf800, 0xf8dd, 0xe004, 0x4770];
    assert_eq!(rule(&code, 0), None); // above the stack pointer that it ends with
    let code = [0xb082, 0xf8cd, 0xe004, 0xf000, 0xf800, 0xf8dd, 0xe004, 0xb002, 0x4770];
    assert_eq!(rule(&code, 0), leaf(0, None));
    assert_eq!(rule(&code, 3), sp(8, -4, None));
}

#[test]
fn paths() {
    // b over data; udf; pop {pc}
    assert_eq!(rule(&[0xe001, 0xde00, 0xdead, 0xbd00], 0), sp(4, -4, None));
    // cbz to the return; a call that never comes back, and another function
    let code = [0xb120, 0xf000, 0xf800, 0xb510, 0xbd10, 0xbf00, 0xbd08];
    assert_eq!(rule(&code, 0), sp(8, -4, None));
    // it eq; popeq {r4, pc}: the function may end there
    assert_eq!(rule(&[0xbf08, 0xbd10, 0xde00], 0), sp(8, -4, None));
    // it ne; bne: goes on behind it, too
    assert_eq!(rule(&[0xbf18, 0xe7fe, 0xbd10], 0), sp(8, -4, None));
    // ldr r0, [pc, #4]; b.n to the end; then the literal, to which a path leads: beq
    assert_eq!(rule(&[0xd004, 0x4801, 0xe7fe, 0xbf00, 0xbd00, 0xbd00, 0xbd00], 0), sp(4, -4, None));
    assert_eq!(rule(&[0x4801, 0xd000, 0xe7fe, 0xbf00, 0xbd00, 0xbd00], 0), None);
    // Code without an end, and code that goes in circles.
    assert_eq!(rule(&[0xe7fe], 0), None);
    assert_eq!(rule(&[0xbf00; 8], 0), None);
    // add sp, #8; b to another function, whose end is this one's
    assert_eq!(rule(&[0xb002, 0xe000, 0xde00, 0x4770], 0), leaf(8, None));
    // pop {r4, lr}; b: the return address is where it was
    let code = [0xe8bd, 0x4010, 0xe7fe];
    assert_eq!(rule(&code, 0), sp(8, -4, None));
    // add sp, #8; bx r3: a call that is the last
    assert_eq!(rule(&[0xb002, 0x4718], 0), leaf(8, None));
    assert_eq!(rule(&[0x4718], 0), None);
}

#[test]
fn frame_pointers() {
    // adds r7, #8; mov sp, r7; pop {r7, pc}
    let code = [0x3708, 0x46bd, 0xbd80];
    let fp = Form::CfaFp { cfa_off: 16, ra_slot: -4, fp_slot: Some(-8) };
    assert_eq!(rule(&code, 0), Some(Rule::from_form(fp)));
    // mov r7, sp in the function itself
    assert_eq!(rule(&[0xb580, 0x466f, 0xb082, 0x46bd, 0xbd80], 0), leaf(0, None));
}

#[test]
fn stubs() {
    // add ip, pc, #0, 12; add ip, ip, #0x10000; ldr pc, [ip, #0xf00]!
    let stub = [0xc600, 0xe28f, 0xca10, 0xe28c, 0xff00, 0xe5bc];
    for n in [0, 2, 4] {
        assert_eq!(rule(&stub, n), leaf(0, None));
    }
    // bx pc; nop in front of it
    let code = [&[0x4778, 0x46c0][..], &stub].concat();
    assert_eq!(rule(&code, 0), leaf(0, None));
}

/// Returns the rules for the word with this number, interrupted in the ARM state, and for the call in front
/// of it.
fn arm(words: &[u32], n: u64) -> (Option<Rule>, Option<Rule>) {
    let halves: Vec<u16> = words.iter().flat_map(|w| [*w as u16, (*w >> 16) as u16]).collect();
    let mut fetch = |at: u64| halves.get(at.checked_sub(0x1000)? as usize / 2).copied();
    let at = 0x1000 + 4 * n;
    (from(at, Some(false), &mut fetch), from_call(at, &mut fetch))
}

#[test]
fn the_arm_state() {
    // push {r4, r7, lr}; sub sp, sp, #12; cmp; beq .+8; bl; add sp, sp, #12; pop {r4, r7, pc}; bx lr; nop; nop
    let code = [
        0xe92d_4090,
        0xe24d_d00c,
        0xe350_0000,
        0x0a00_0000,
        0xebff_fffe,
        0xe28d_d00c,
        0xe8bd_8090,
        0xe12f_ff1e,
        0xe320_f000,
        0xe320_f000,
    ];
    assert_eq!(arm(&code, 0).0, leaf(0, None));
    assert_eq!(arm(&code, 1).0, sp(12, -4, Some(-8)));
    assert_eq!(arm(&code, 2).0, sp(24, -4, Some(-8)));
    assert_eq!(arm(&code, 5), (sp(24, -4, Some(-8)), sp(24, -4, Some(-8))));
    assert_eq!(arm(&code, 6), (sp(12, -4, Some(-8)), None));
    assert_eq!(arm(&code, 7).0, leaf(0, None));
    // cmp; popeq {r4, pc}; movne lr, r3; mov r0, r1; pop {r4, pc}
    let code = [0xe350_0000, 0x08bd_8010, 0x11a0_e003, 0xe1a0_0001, 0xe8bd_8010];
    assert_eq!(arm(&code, 0).0, sp(8, -4, None));
    assert_eq!(arm(&code, 2).0, sp(8, -4, None));
    // movne lr, r3; bx lr: it may be lost
    assert_eq!(arm(&[0x11a0_e003, 0xe12f_ff1e], 0).0, None);
    // ldr r0, [pc, #-4]: its own literal's place
    assert_eq!(arm(&[0xe51f_0004, 0xe1a0_0000, 0xe12f_ff1e], 0).0, None);
    // addls pc, pc, r3, lsl #2 and the default behind it
    assert_eq!(arm(&[0x908f_f103, 0xe12f_ff1e], 0).0, leaf(0, None));
    // No word begins in the middle of one.
    let mut fetch = |_| Some(0xe12f);
    assert_eq!(from(0x1002, Some(false), &mut fetch), None);
}

#[test]
fn functions_that_never_return() {
    let nop = 0xe320_f000;
    // push {r4, r7, lr}; sub sp, sp, #12; ldr r0, [pc, #-8], its own literal's place behind a branch over
    // it; bl; addeq sp, sp, #12; b back
    let code = [
        0xe92d_4090,
        0xe24d_d00c,
        0xe51f_0000,
        0xea00_0000,
        0xe24d_d00c,
        0xebff_fffe,
        0x028d_d00c,
        0xeaff_fffc,
        nop,
        nop,
        nop,
    ];
    assert_eq!(arm(&code, 6).1, sp(24, -4, Some(-8)));
    // A way out in between: add sp, sp, #12; pop {r4, r7, pc}
    let code = [
        0xe92d_4090,
        0xe24d_d00c,
        0xe28d_d00c,
        0xe8bd_8090,
        0xebff_fffe,
        0xeaff_fffd,
        nop,
        nop,
        nop,
        nop,
        nop,
    ];
    assert_eq!(arm(&code, 5).1, sp(24, -4, Some(-8)));
    // Arguments are saved first: push {r1, r2, r3}; push {lr}
    let mut code = [0xe92d_000e, 0xe52d_e004, 0xebff_fffe, 0xeaff_fffd, nop, nop, nop, nop, nop];
    assert_eq!(arm(&code, 3).1, sp(16, -16, None));
    // r7 is lost, or the stack pointer is: mov r7, r0; sub sp, sp, r3
    code[1] = 0xe1a0_7000;
    assert_eq!(arm(&code, 3).1, None);
    let code = [0xe52d_e004, 0xe04d_d003, 0xebff_fffe, 0xeaff_fffd, nop, nop, nop, nop, nop];
    assert_eq!(arm(&code, 3).1, None);
    // No return address is saved, down to where there is no code.
    let code = [nop, nop, 0xebff_fffe, 0xeaff_fffd, nop, nop, nop, nop, nop];
    assert_eq!(arm(&code, 3).1, None);
}

#[test]
fn code_of_a_state_that_is_not_known() {
    // mov r0, r1; and so on; bx lr
    let mut code: Vec<u16> = [0x0001, 0xe1a0].repeat(8);
    code.extend([0xff1e, 0xe12f]);
    assert_eq!(rule(&code, 0), leaf(0, None));
    // All of this looks like Thumb code that returns: pop {pc}
    let code: Vec<u16> = [0xbd00, 0xe1a0].repeat(8);
    assert_eq!(rule(&code, 0), None);
    let mut fetch = |at: u64| code.get(at.checked_sub(0x1000)? as usize / 2).copied();
    assert_eq!(from(0x1000, Some(true), &mut fetch), sp(4, -4, None));
    assert_eq!(from(0x1002, Some(false), &mut fetch), None);
}

#[test]
fn any_code_is_safe() {
    let mut seed = 88_172_645_463_325_252_u64;
    for _ in 0..20_000 {
        let mut halves = [0; 64];
        for half in &mut halves {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            *half = seed as u16;
        }
        let _ = rule(&halves, 0);
        let mut fetch = |at: u64| halves.get(at.checked_sub(0x1000)? as usize / 2).copied();
        let _ = (from(0x1000, Some(false), &mut fetch), from_call(0x1020, &mut fetch));
    }
}

/// The hook's own entries, through which a stack leads where the original calls another hooked function.
#[test]
fn the_hooks_entries() {
    // The end of an entry for functions with few arguments: blx ip; str r0, [sp, #80]; add r0, sp, #24; bl; cmp r0, #0;
    // bne to `elsewhere`; ldr r0, [sp, #80]; add sp, sp, #112; pop {r4-r10}; add sp, sp, #20; pop {r11, pc}; elsewhere:
    // mov ip, r0; add lr, sp, #112; ldm lr, {r4-r10}; mov sp, r11; pop {r11, lr}; bx ip
    let code = [
        0xe12f_ff3c,
        0xe58d_0050,
        0xe28d_0018,
        0xebff_fffe,
        0xe350_0000,
        0x1a00_0004,
        0xe59d_0050,
        0xe28d_d070,
        0xe8bd_07f0,
        0xe28d_d014,
        0xe8bd_8800,
        0xe1a0_c000,
        0xe28d_e070,
        0xe89e_07f0,
        0xe1a0_d00b,
        0xe8bd_4800,
        0xe12f_ff1c,
    ];
    assert_eq!(arm(&code, 1).1, sp(168, -4, Some(-44)));
    // The end of one for many: blx ip; sub sp, sp, #72; str r0, [sp, #16]; add r4, sp, #216; mov r0, r4; bl; ldr r0,
    // [sp, #16]; ldr ip, [r4, #48]; ldr ip, [ip, #8]; cmp ip, #296; beq to `smallest`; add ip, r4, #96; ldm ip,
    // {r6-r11}; ldr lr, [r4, #-8]; ldr ip, [r4, #72]; mov sp, ip; bx lr; smallest: add sp, sp, #304; pop {r4-r11}; add
    // sp, sp, #28; pop {pc}
    let code = [
        0xe12f_ff3c,
        0xe24d_d048,
        0xe58d_0010,
        0xe28d_40d8,
        0xe1a0_0004,
        0xebff_fffe,
        0xe59d_0010,
        0xe594_c030,
        0xe59c_c008,
        0xe35c_0f4a,
        0x0a00_0005,
        0xe284_c060,
        0xe89c_0fc0,
        0xe514_e008,
        0xe594_c048,
        0xe1a0_d00c,
        0xe12f_ff1e,
        0xe28d_de13,
        0xe8bd_0ff0,
        0xe28d_d01c,
        0xe49d_f004,
    ];
    assert_eq!(arm(&code, 1).1, sp(296, -4, Some(-52)));
}
