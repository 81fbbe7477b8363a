use super::*;

#[test]
fn effects() {
    let lose = |sp, fp, lr| Effect::Lose { sp, fp, lr };
    let moves = |load, offset, by, registers| {
        let base = Register::Sp;
        Effect::Move { load, base, offset, by, registers }
    };
    let fp = |n| Some((Register::Fp, n));
    let lr = |n| Some((Register::Lr, n));
    for (insn, want) in [
        (0xe92d_4090, moves(false, -12, -12, [fp(4), lr(8)])), // push {r4, r7, lr}
        (0xe8bd_8090, moves(true, 0, 12, [fp(4), lr(8)])),     // pop {r4, r7, pc}
        (0xe52d_e004, moves(false, -4, -4, [lr(0), None])),    // push {lr}
        (0xe49d_f004, moves(true, 0, 4, [lr(0), None])),       // pop {pc}
        (0xe58d_e008, moves(false, 8, 0, [lr(0), None])),      // str lr, [sp, #8]
        (0xe59d_e008, moves(true, 8, 0, [lr(0), None])),       // ldr lr, [sp, #8]
        (0xe1cd_61d0, moves(true, 16, 0, [None, fp(4)])),      // ldrd r6, r7, [sp, #16]
        (0xe16d_61f0, moves(false, -16, -16, [None, fp(4)])),  // strd r6, r7, [sp, #-16]!
        (0xe0cd_61d0, moves(true, 0, 16, [None, fp(4)])),      // ldrd r6, r7, [sp], #16
        (0xe98d_4080, moves(false, 4, 0, [fp(0), lr(4)])),     // stmib sp, {r7, lr}
        (0xe93d_4080, moves(true, -8, -8, [fp(0), lr(4)])),    // ldmdb sp!, {r7, lr}
        (0xe89d_a800, lose(true, false, false)),               // ldm sp, {r11, sp, pc}
        (0xe24d_dd41, Effect::SpFrom(Register::Sp, -0x1040)),  // sub sp, sp, #0x1040
        (0xe28d_d00c, Effect::SpFrom(Register::Sp, 12)),       // add sp, sp, #12
        (0xe247_d008, Effect::SpFrom(Register::Fp, -8)),       // sub sp, r7, #8
        (0xe1a0_d007, Effect::SpFrom(Register::Fp, 0)),        // mov sp, r7
        (0xe1a0_d00b, lose(true, false, false)),               // mov sp, r11
        (0xe28d_7018, Effect::FpFrom(Register::Sp, 24)),       // add r7, sp, #24
        (0xe1a0_700d, Effect::FpFrom(Register::Sp, 0)),        // mov r7, sp
        (0xe1a0_7000, lose(false, true, false)),               // mov r7, r0
        (0xe3a0_7003, lose(false, true, false)),               // mov r7, #3
        (0xe300_712c, lose(false, true, false)),               // movw r7, #300
        (0xe340_e12c, lose(false, false, true)),               // movt lr, #300
        (0xe04d_d003, lose(true, false, false)),               // sub sp, sp, r3
        (0xe3cd_d007, lose(true, false, false)),               // bic sp, sp, #7
        (0xed2d_8b04, Effect::SpFrom(Register::Sp, -16)),      // vpush {d8, d9}
        (0xecbd_8b04, Effect::SpFrom(Register::Sp, 16)),       // vpop {d8, d9}
        (0xecb7_0b02, lose(false, true, false)),               // vldmia r7!, {d0}
        (0xf42d_070d, lose(true, false, false)),               // vld1.8 {d0}, [sp]!
        (0xe497_0004, lose(false, true, false)),               // ldr r0, [r7], #4
        (0xe590_e000, lose(false, false, true)),               // ldr lr, [r0]
        (0xe5dd_e008, lose(false, false, true)),               // ldrb lr, [sp, #8]
        (0xe7ad_0001, lose(true, false, false)),               // str r0, [sp, r1]!
        (0xe8b0_4080, lose(false, true, true)),                // ldm r0!, {r7, lr}
        (0xe00e_0291, lose(false, false, true)),               // mul lr, r1, r2
        (0xe087_0291, lose(false, true, false)),               // umull r0, r7, r1, r2
        (0xe717_f110, lose(false, true, false)),               // sdiv r7, r0, r1
        (0xe190_ef9f, lose(false, false, true)),               // ldrex lr, [r0]
        (0xe16f_ef10, lose(false, false, true)),               // clz lr, r0
        (0xe10f_e000, lose(false, false, true)),               // mrs lr, apsr
        (0xec5e_7f1e, lose(false, true, false)),               // mrrc p15, 1, r7, lr, c14
        (0xee1d_ef70, lose(false, false, true)),               // mrc p15, 0, lr, c13, c0, 3
        (0xee10_ea10, lose(false, false, true)),               // vmov lr, s0
    ] {
        // One more register may count as written, but none fewer.
        let got = effect(insn);
        let covers = match (got, want) {
            (Effect::Lose { sp, fp, lr }, Effect::Lose { sp: a, fp: b, lr: c }) => {
                sp >= a && fp >= b && lr >= c
            }
            _ => got == want,
        };
        assert!(covers, "{insn:08x}: {got:?}, not {want:?}");
    }
    for insn in [
        0xe59d_0004, // ldr r0, [sp, #4]
        0xe58d_0004, // str r0, [sp, #4]
        0xe1cd_e0b8, // strh lr, [sp, #8]
        0xe8a0_4080, // stm r0!, {r7, lr}
        0xe15d_0007, // cmp sp, r7
        0xe31e_0001, // tst lr, #1
        0xe28d_0008, // add r0, sp, #8
        0xf57f_f05b, // dmb ish
        0xf5d7_f000, // pld [r7]
        0xe320_f000, // nop
        0xe128_f000, // msr apsr_nzcvq, r0
    ] {
        assert_eq!(effect(insn), Effect::None, "{insn:08x}");
        assert_eq!(flow(insn, 0x1000), Flow::Next, "{insn:08x}");
    }
}

#[test]
fn flows() {
    for (insn, want) in [
        (0xea00_000e, Flow::Branch(0x1040)),
        (0x1aff_fffc, Flow::Branch(0xff8)), // bne
        (0xebff_fffe, Flow::Call),          // bl
        (0xfaff_fffe, Flow::Call),          // blx
        (0xe12f_ff33, Flow::Call),          // blx r3
        (0xe12f_ff1e, Flow::Return),        // bx lr
        (0x012f_ff1e, Flow::Return),        // bxeq lr
        (0xe1a0_f00e, Flow::Return),        // mov pc, lr
        (0xe12f_ff13, Flow::Register(3)),   // bx r3
        (0xe1a0_f003, Flow::Register(3)),   // mov pc, r3
        (0xe49d_f004, Flow::Return),        // pop {pc}
        (0xe8bd_8010, Flow::Return),        // pop {r4, pc}
        (0xe59f_f004, Flow::Stop),          // ldr pc, [pc, #4]
        (0xe790_f101, Flow::Stop),          // ldr pc, [r0, r1, lsl #2]
        (0x908f_f103, Flow::Stop),          // addls pc, pc, r3, lsl #2
        (0xe890_8000, Flow::Stop),          // ldm r0, {pc}
        (0xe7f0_00f0, Flow::Stop),          // udf
        (0, Flow::Stop),
        (0xef00_0000, Flow::Next), // svc
        (0xe350_0001, Flow::Next), // cmp r0, #1
        (0xe13f_0000, Flow::Next), // teq pc, r0
    ] {
        assert_eq!(flow(insn, 0x1000), want, "{insn:08x}");
    }
}

#[test]
fn two_words() {
    assert!(loads_two(0xe1cd_61d0)); // ldrd
    assert!(loads_two(0xed9f_0b02)); // vldr d0, [pc, #8]
    assert!(!loads_two(0xed9f_0a02)); // vldr s0, [pc, #8]
    assert!(!loads_two(0xe59f_0004)); // ldr r0, [pc, #4]
    assert!(!loads_two(0xe16d_61f0)); // strd
}

#[test]
fn nothing_panics() {
    let mut insn = 1_u32;
    for n in 0..2_000_000_u32 {
        insn = insn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let _ = (effect(insn ^ n >> 3), flow(insn ^ n >> 3, u64::from(n)), loads_two(insn));
    }
}
