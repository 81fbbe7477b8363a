use super::*;
use PcUse::{Add, Address, Branch, Call, Conditional, Literal, Other, Table};

/// Address of Thumb code, behind a multiple of four.
const PC: u32 = 0x1_0002;

#[test]
fn thumb_forms() {
    let cases = [
        (0x4802, Literal(0x1_000c)),    // ldr r0, [pc, #8]
        (0xa502, Address(5, 0x1_000c)), // adr r5, +8
        (0xe7fe, Branch(PC)),           // b .
        (0xe002, Branch(PC + 8)),
        (0xd0fe, Conditional(PC, Condition::Flags(0))), // beq .
        (0xb101, Conditional(PC + 4, Condition::Zero(1))), // cbz r1
        (0xbbff, Conditional(PC + 4 + 0x7e, Condition::NotZero(7))), // cbnz r7
        (0x447e, Add(6, PC + 4)),                       // add r6, pc
        (0x44fc, Add(12, PC + 4)),                      // add ip, pc
        (0x4678, Address(0, PC + 4)),                   // mov r0, pc
        (0xbff8, Other),                                // it, with no condition
        (0xbfec, Other),                                // ite al: never
        (0x4778, Other),                                // bx pc
        (0xf8df_0008, Literal(0x1_000c)),               // ldr.w r0, [pc, #8]
        (0xf85f_3004, Literal(0x1_0000)),               // ldr.w r3, [pc, #-4]
        (0xf89f_0008, Literal(0x1_000c)),               // ldrb.w
        (0xf9bf_0008, Literal(0x1_000c)),               // ldrsh.w
        (0xf89f_f008, Literal(0x1_000c)),               // pld
        (0xf8df_f008, Other),                           // ldr.w pc, [pc, #8]
        (0xe9df_0102, Literal(0x1_000c)),               // ldrd r0, r1, [pc, #8]
        (0xed9f_0b02, Literal(0x1_000c)),               // vldr d0, [pc, #8]
        (0xed5f_0a01, Literal(0x1_0000)),               // vldr s1, [pc, #-4]
        (0xf20f_0c08, Address(12, 0x1_000c)),           // adr.w ip, +8
        (0xf6af_71ff, Address(1, 0x1_0004 - 0xfff)),    // adr.w r1, -0xfff
        (0xf000_b804, Branch(PC + 4 + 8)),              // b.w
        (0xf7ff_bffe, Branch(PC)),
        (0xf43f_affe, Conditional(PC, Condition::Flags(0))), // beq.w .
        (0xf2c0_8004, Conditional(PC + 12, Condition::Flags(11))), // blt.w
        (0xf000_f804, Call(PC + 12, State::Thumb)),          // bl
        (0xf400_c000, Call(0xff01_0004, State::Arm)),        // blx
        (0xf000_e804, Call(0x1_0004 + 8, State::Arm)),
        (0xe8df_f001, Table(PC + 4)), // tbb [pc, r1]
        (0xe8df_f01c, Table(PC + 4)), // tbh [pc, ip, lsl #1]
        (0xe8d3_f00e, Table(PC + 4)), // tbb [r3, lr]
        (0xe8dd_f001, Other),         // tbb [sp, r1]
        (0xe8df_f00d, Other),         // tbb [pc, sp]
        (0xe8df_f01f, Other),         // tbh [pc, pc]
        (0xf3de_8f00, Other),         // subs pc, lr
    ];
    for (insn, want) in cases {
        assert_eq!(pc_use_thumb(insn, PC), Some(want), "{insn:x}");
    }
    // push {r4, lr}; pop {r4, pc}; bx lr; mov r0, r1; add r0, r1; nop; it eq; itete cs; itttt al; push.w;
    // pop.w {.., pc}; sub.w sp, sp, #n; mov.w; movw; cmp.w; ldr.w r0, [r1]; dmb; mul; ldr.w pc, [r0]; uxtb.w;
    // clz
    let plain = [
        0xb510,
        0xbd10,
        0x4770,
        0x4608,
        0x4408,
        0xbf00,
        0xbf08,
        0xbf2b,
        0xbfe1,
        0xe92d_4ff0,
        0xe8bd_8ff0,
        0xf5ad_5d80,
        0xf04f_30ff,
        0xf64f_70ff,
        0xf1b0_0fff,
        0xf8d1_0000,
        0xf3bf_8f5b,
        0xfb00_f001,
        0xf8d0_f000,
        0xfa5f_f080,
        0xfab0_f080,
        0xea4f_0081,
        0xebb0_0f41,
        0xb004,
        0x2000,
        0xee1d_0f70,
    ];
    for insn in plain {
        assert_eq!(pc_use_thumb(insn, PC), None, "{insn:x}");
    }
    assert_eq!([0xb510, 0xe7fe, 0xe92d, 0xf8df].map(thumb_len), [2, 2, 4, 4]);
}

#[test]
fn if_then_blocks() {
    let conditions = |it: u32, want: &[u32]| {
        let mut state = IfThen::default();
        assert_eq!(state.condition(), None);
        state = state.behind(it);
        for condition in want {
            assert_eq!(state.condition(), Some(*condition), "{it:x}");
            state = state.behind(0xbf00);
        }
        assert_eq!((state, state.behind(0xbf00)), (IfThen::default(), IfThen::default()));
    };
    conditions(0xbf08, &[0]); // it eq
    conditions(0xbf1c, &[1, 1]); // itt ne
    conditions(0xbf0c, &[0, 1]); // ite eq
    conditions(0xbfba, &[11, 11, 10]); // itte lt
    conditions(0xbf2b, &[2, 3, 2, 3]); // itete cs
    conditions(0xbfe1, &[14; 4]); // itttt al
    conditions(0xbf00, &[]); // nop
    conditions(0xf3af_8000, &[]); // nop.w
}

#[test]
fn arm_forms() {
    let pc = 0x1_0000;
    let cases = [
        (0xe59f_0004, Literal(pc + 12)),           // ldr r0, [pc, #4]
        (0xe51f_0004, Literal(pc + 4)),            // ldr r0, [pc, #-4]
        (0xe5df_0004, Literal(pc + 12)),           // ldrb
        (0xe1df_01b4, Literal(pc + 8 + 0x14)),     // ldrh
        (0xe1cf_01d4, Literal(pc + 8 + 0x14)),     // ldrd
        (0xed9f_0b02, Literal(pc + 16)),           // vldr
        (0xf5df_f004, Literal(pc + 12)),           // pld
        (0xe28f_0f41, Address(0, pc + 8 + 0x104)), // adr
        (0xe24f_1004, Address(1, pc + 4)),
        (0xe1a0_300f, Address(3, pc + 8)), // mov r3, pc
        (0xe08f_3003, Add(3, pc + 8)),     // add r3, pc, r3
        (0xe083_300f, Add(3, pc + 8)),
        (0xe08f_3004, Other), // add r3, pc, r4
        (0xe79f_3003, Other), // ldr r3, [pc, r3]
        (0xea00_0002, Branch(pc + 16)),
        (0xeaff_fffe, Branch(pc)),
        (0x0a00_0002, Conditional(pc + 16, Condition::Flags(0))), // beq
        (0xeb00_0002, Call(pc + 16, State::Arm)),
        (0x0b00_0002, Other),                       // bleq
        (0xfb00_0002, Call(pc + 18, State::Thumb)), // blx
        (0x059f_0004, Other),                       // ldreq r0, [pc, #4]
        (0xe58f_0004, Other),                       // str r0, [pc, #4]
        (0xe580_f000, Other),                       // str pc, [r0]
        (0xe92d_8010, Other),                       // push {r4, pc}
        (0xe12f_ff1f, Other),                       // bx pc
        (0xe59f_f004, Other),                       // ldr pc, [pc, #4]
    ];
    for (insn, want) in cases {
        assert_eq!(pc_use_arm(insn, pc), Some(want), "{insn:08x}");
    }
    // push {r4, lr}; pop {r4, pc}; bx lr; mov pc, lr; nop; sub sp, sp, #8; movw r0, #0xffff; cmp; mul;
    // ldr pc, [r0]; mrc (the thread pointer); vmrs; dmb; svc; ldrex
    let plain = [
        0xe92d_4010,
        0xe8bd_8010,
        0xe12f_ff1e,
        0xe1a0_f00e,
        0xe320_f000,
        0xe24d_d008,
        0xe30f_0fff,
        0xe350_0000,
        0xe000_0291,
        0xe590_f000,
        0xee1d_0f70,
        0xeef1_fa10,
        0xf57f_f05b,
        0xef00_0000,
        0xe191_0f9f & 0xffff_fff0 | 0xf,
    ];
    for insn in plain {
        assert_eq!(pc_use_arm(insn, pc), None, "{insn:08x}");
    }
}
