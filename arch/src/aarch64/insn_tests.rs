use super::*;
use alloc::vec;

const ADDR: u64 = 0x40_0000;

fn code(insns: &[u32]) -> Vec<u8> {
    insns.iter().flat_map(|i| i.to_le_bytes()).collect()
}

fn plan(insns: &[u32]) -> Result<PatchPlan, Refusal> {
    plan_at_entry(&code(insns), ADDR, Some(insns.len() as u64 * 4))
}

const RET: u32 = 0xd65f_03c0;
const NOP: u32 = 0xd503_201f;
const BTI_C: u32 = 0xd503_245f;
const PACIASP: u32 = 0xd503_233f;
const STP: u32 = 0xa9be_7bfd; // stp x29, x30, [sp, #-32]!

#[test]
fn pc_relative_forms() {
    use PcUse::{Address, Branch, Call, Conditional, Literal, Other};
    let pc = 0x40_0123_4568_u64;
    let cases = [
        (0x1400_0001, Branch(pc + 4)),
        (0x17ff_ffff, Branch(pc - 4)),
        (0x9400_0002, Call(pc + 8)),
        (0x5400_0040, Conditional(pc + 8, 19)),  // b.eq
        (0x54ff_fff0, Conditional(pc - 4, 19)),  // bc.eq
        (0x3400_0063, Conditional(pc + 12, 19)), // cbz w3
        (0xb5ff_ffe3, Conditional(pc - 4, 19)),  // cbnz x3
        (0x3600_0043, Conditional(pc + 8, 14)),  // tbz w3, #0
        (0xb707_fff3, Conditional(pc - 4, 14)),  // tbnz x19, #32
        (0x1000_0021, Address(pc + 4)),          // adr x1
        (0x30ff_ffe1, Address(pc - 3)),
        (0x9000_0001, Address(0x40_0123_4000)), // adrp x1
        (0xf0ff_ffe1, Address(0x40_0123_3000)),
        (0x1800_0041, Literal(pc + 8)), // ldr w
        (0x58ff_ffe1, Literal(pc - 4)), // ldr x
        (0x9800_0041, Literal(pc + 8)), // ldrsw
        (0xd800_0041, Literal(pc + 8)), // prfm
        (0x1c00_0041, Literal(pc + 8)), // ldr s
        (0x5c00_0041, Literal(pc + 8)), // ldr d
        (0x9c00_0041, Literal(pc + 8)), // ldr q
        (0x7400_0041, Other),
        (0x5500_001f, Other),
        (0xdac1_a3fe, Other), // paciasppc
        (0xd503_24ff, Other), // pacm
    ];
    for (insn, want) in cases {
        assert_eq!(pc_use(insn, pc), Some(want), "{insn:08x}");
    }
    for insn in [RET, NOP, BTI_C, PACIASP, STP, 0xdc00_0041, 0xd63f_0000, 0xd61f_0200, 0xf940_0210]
    {
        assert_eq!(pc_use(insn, pc), None, "{insn:08x}");
    }
}

#[test]
fn where_to_patch() {
    for (insns, offset, terminated) in [
        (&[STP, RET][..], 0, false),
        (&[BTI_C, STP, RET], 4, false),
        (&[0xd503_249f, STP, RET], 4, false), // bti j
        (&[PACIASP, STP, RET], 4, false),
        (&[0xd503_237f, STP, RET], 4, false), // pacibsp
        (&[NOP, RET], 0, false),
        (&[RET], 0, true),
        (&[BTI_C, RET], 4, true),
        (&[0x1400_1000], 0, true),            // b elsewhere
        (&[0xb400_0040, RET, RET], 0, false), // cbz x0
        (&[0xd63f_0000, RET], 0, false),      // blr x0
        (&[STP, 0x97ff_ffff, RET], 0, false), // bl to the entry: recursion
    ] {
        let want = PatchPlan {
            patch_offset: offset,
            lead: crate::patch::Lead::Nothing,
            patch_len: 4,
            displaced_len: 4,
            displaced: vec![offset],
            terminated,
        };
        assert_eq!(plan(insns).as_ref(), Ok(&want), "{insns:x?}");
        assert!((ADDR..ADDR + 16).step_by(4).all(|pc| !want.covers(ADDR, pc)));
    }
}

#[test]
fn refusals() {
    for (insns, want) in [
        (&[BTI_C][..], Refusal::TooShort),
        (&[], Refusal::TooShort),
        (&[0, RET], Refusal::Undecodable { at: 0 }),
        (&[STP, NOP, 0xb5ff_ffc0, RET], Refusal::BranchToEntry { from: 8 }), // cbnz x0, entry
        (&[BTI_C, STP, 0x17ff_ffff], Refusal::BranchToEntry { from: 8 }),
        (&[BTI_C, STP, 0x17ff_fffe], Refusal::BranchToEntry { from: 8 }),
        (&[0x1400_0000], Refusal::BranchToEntry { from: 0 }),
        (&[0x9400_0001, RET], Refusal::OwnAddress { at: 0 }), // bl .+4
        (&[0x1000_0000, RET], Refusal::OwnAddress { at: 0 }), // adr x0, .
        (&[0x5800_0000, RET], Refusal::OwnAddress { at: 0 }), // ldr x0, .
        (&[0xd503_24ff, PACIASP, RET], Refusal::OwnAddress { at: 0 }),
    ] {
        assert_eq!(plan(insns), Err(want), "{insns:x?}");
    }
    // An adrp of its own page means the page, and an adr further on means data.
    assert!(plan(&[0x9000_0000, RET]).is_ok() && plan(&[0x1000_0020, RET]).is_ok());
    assert_eq!(
        plan_at_entry(&code(&[STP, RET]), ADDR + 2, None),
        Err(Refusal::Undecodable { at: 0 })
    );
    let need = Refusal::Incomplete { have: 8, need: 12 };
    assert_eq!(plan_at_entry(&code(&[STP, RET]), ADDR, Some(12)), Err(need));
}

#[test]
fn without_a_size_the_function_ends_where_it_must() {
    // The branch back to the entry belongs to what follows.
    let insns = [0xb400_0060, NOP, RET, RET, 0x17ff_fffc];
    assert!(plan_at_entry(&code(&insns), ADDR, None).is_ok());
    // Here a branch leads on behind the ret.
    let insns = [0xb400_0060, NOP, RET, 0x17ff_fffd];
    let to_entry = Err(Refusal::BranchToEntry { from: 12 });
    assert_eq!(plan_at_entry(&code(&insns), ADDR, None), to_entry);
}

#[test]
fn references() {
    let target = 0x41_2345;
    // adrp x2, 0x412000; nop; add x0, x2, #0x345
    let adrp = 0x9000_0000 | 2 << 29 | 4 << 5 | 2;
    let insns = [NOP, adrp, NOP, 0x910d_1440, RET];
    assert_eq!(pc_use(adrp, ADDR + 4), Some(PcUse::Address(0x41_2000)));
    assert_eq!(find_reference(&code(&insns), ADDR, target), Some(ADDR + 4));
    assert_eq!(find_reference(&code(&insns), ADDR, target + 1), None);
    assert_eq!(find_reference(&code(&insns[..3]), ADDR, target), None);
    // adr
    assert_eq!(find_reference(&code(&[NOP, 0x3000_0040]), ADDR, ADDR + 13), Some(ADDR + 4));
}

#[test]
fn what_a_function_calls() {
    // bl +0x100; b.eq +8; b -4; b +0x1000; blr x1
    let insns = [0x9400_0040, 0x5400_0040, 0x17ff_ffff, 0x1400_0400, 0xd63f_0020];
    assert_eq!(calls(&code(&insns), ADDR), [ADDR + 0x100, ADDR + 0x100c]);
    assert!(calls(&code(&[RET]), ADDR).is_empty());
}

#[test]
fn stubs_of_linkage_tables() {
    // adrp x16, +0x10000; ldr x17, [x16, #0xfb8]; add x16, x16, #0xfb8; br x17
    let plain = [0x9000_0090, 0xf947_de11, 0x913e_e210, 0xd61f_0220];
    let slot = Some(ADDR + 0x10fb8);
    assert_eq!(indirect_jump(&code(&plain), ADDR), slot);
    let padded = [&plain[..], &[NOP, NOP]].concat();
    assert_eq!(indirect_jump(&code(&padded), ADDR), slot);
    let protected = [&[BTI_C], &plain[..3], &[0xd503_219f, plain[3]]].concat();
    assert_eq!(indirect_jump(&code(&protected), ADDR), slot);
    // No jump, another register, another load; too short.
    for other in [
        [plain[0], plain[1], plain[2], RET],
        [plain[0] + 1, plain[1], plain[2], plain[3]],
        [plain[0], plain[1] + 1, plain[2], plain[3]],
    ] {
        assert_eq!(indirect_jump(&code(&other), ADDR), None);
    }
    assert_eq!(indirect_jump(&code(&plain[..3]), ADDR), None);
    assert_eq!(indirect_jump(&[], ADDR), None);
}

#[test]
fn what_can_stay_in_front() {
    use crate::patch::Lead::{Again, Down};
    for (first, lead) in [
        (STP, Down(32)),
        (0xa9bc_7bfd, Down(64)),   // stp x29, x30, [sp, #-64]!
        (0x6dbf_23e9, Down(16)),   // stp d9, d8, [sp, #-16]!
        (0xf81e_0ffe, Down(32)),   // str x30, [sp, #-32]!
        (0xd104_03ff, Down(256)),  // sub sp, sp, #256
        (0xd140_07ff, Down(4096)), // sub sp, sp, #1, lsl #12
        (0xf101_001f, Again),      // cmp x0, #64
        (0x6b01_001f, Again),      // cmp w0, w1
        (0x9000_0009, Again),      // adrp x9
        (0xaa01_03ea, Again),      // mov x10, x1
        (0xd280_0029, Again),      // mov x9, #1
        (0x9100_400b, Again),      // add x11, x0, #16
        (0xf940_0009, Again),      // ldr x9, [x0]
        (0xd53b_d049, Again),      // mrs x9, tpidr_el0
    ] {
        let code = code(&[first, 0xd63f_0000, RET]);
        let plan = plan_patch(&code, ADDR, None).unwrap();
        assert_eq!((plan.patch_offset, plan.lead), (4, lead), "{first:x}");
        assert_eq!(plan.displaced, [4]);
        assert_eq!(uprobe(4, &[], ADDR), Probed::Passes);
    }
    for first in [
        0x9000_0001, // adrp x1, which may be an argument
        0xf940_0129, // ldr x9, [x9]
        0xa901_7bfd, // stp x29, x30, [sp, #16]
        0xa881_7bfd, // stp x29, x30, [sp], #16
        0xaa09_03e9, // mov x9, x9
        0xf280_0029, // movk x9, #1
        0x9100_0210, // add x16, x16, #0
        0xeb01_0000, // subs x0, x0, x1
        0xb400_0040, // cbz x0
    ] {
        let plan = plan_patch(&code(&[first, RET, RET]), ADDR, None).unwrap();
        assert_eq!((plan.patch_offset, plan.lead), (0, Lead::Nothing), "{first:x}");
        assert_eq!(uprobe(0, &[], ADDR), Probed::Hides);
    }
    // A branch leads to what would be moved; a function called with null does nothing.
    let insns = [STP, NOP, 0xb5ff_ffe0, RET];
    assert_eq!(plan_patch(&code(&insns), ADDR, None).unwrap().patch_offset, 0);
    let free = code(&[0xb400_0040, STP, RET]);
    let plan = plan_free(&free, ADDR, None).unwrap();
    assert_eq!((plan.patch_offset, plan.lead), (4, Again));
    let other = code(&[0xb400_0041, NOP, RET]);
    assert_eq!(plan_free(&other, ADDR, None).unwrap().patch_offset, 0);
}
