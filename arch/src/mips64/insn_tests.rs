use super::*;
use crate::mips64::variant::Order;
use alloc::vec;

const ADDR: u64 = 0x1_2000_0000;
const R2: Variant = Variant { order: Order::Little, release6: false };
const R6: Variant = Variant { order: Order::Little, release6: true };

fn code(variant: Variant, insns: &[u32]) -> Vec<u8> {
    insns.iter().flat_map(|i| variant.order.bytes4(*i)).collect()
}

/// Returns the plan, which is the same in both byte orders.
fn plan(variant: Variant, insns: &[u32], sized: bool) -> Result<PatchPlan, Refusal> {
    let size = sized.then_some(insns.len() as u64 * 4);
    let plans = [Order::Little, Order::Big].map(|order| {
        let variant = Variant { order, ..variant };
        plan_at_entry_in(variant, &code(variant, insns), ADDR, size)
    });
    assert_eq!(plans[0], plans[1]);
    plans[0].clone()
}

const JR: u32 = 0x03e0_0008; // jr ra
const DADDIU: u32 = 0x67bd_ffe0; // daddiu sp, sp, -32
const SD: u32 = 0xffbf_0018; // sd ra, 24(sp)
const LI: u32 = 0x2402_0005; // li v0, 5

#[test]
fn where_to_patch() {
    for (variant, insns, len, displaced, terminated) in [
        (R2, &[DADDIU, SD, JR, NOP][..], 8, &[0, 4][..], false),
        (R2, &[JR, NOP], 8, &[0], true),
        (R2, &[LI, JR, NOP], 12, &[0, 4], true),
        (R2, &[LI, 0x1080_0002, NOP, LI, JR, NOP], 12, &[0, 4], false), // beqz a0
        (R2, &[0x1080_0002, NOP, LI, JR, NOP], 8, &[0], false),
        (R2, &[0x5080_0002, LI, LI, JR, NOP], 8, &[0], false), // beql
        (R2, &[0x0320_f809, NOP, JR, NOP], 8, &[0], false),    // jalr t9
        (R2, &[0x0411_0001, NOP, JR, NOP], 8, &[0], false),    // bal .+8
        (R2, &[0x0411_ffff, NOP, JR, NOP], 8, &[0], false),    // bal to the entry: recursion
        (R2, &[0x0800_1000, NOP], 8, &[0], true),              // j elsewhere
        (R6, &[0xd81f_0000, NOP], 4, &[0], true),              // jic ra; padding
        (R6, &[0xd880_0001, LI, JR, NOP], 8, &[0, 4], false),  // beqzc
        (R6, &[0xe800_0100, LI, JR, NOP], 8, &[0, 4], false),  // balc
        (R6, &[LI, 0xe800_0100, JR, NOP], 8, &[0, 4], false),
    ] {
        let want = PatchPlan {
            patch_offset: 0,
            lead: crate::patch::Lead::Nothing,
            patch_len: 8,
            displaced_len: len,
            displaced: displaced.to_vec(),
            terminated,
        };
        let sized = insns != [0xd81f_0000, NOP];
        assert_eq!(plan(variant, insns, sized).as_ref(), Ok(&want), "{insns:x?}");
        assert!(want.covers(ADDR, ADDR + 4) && !want.covers(ADDR, ADDR));
        assert!(!want.covers(ADDR, ADDR + 8));
    }
    // Four bytes, and padding behind.
    let bytes = code(R6, &[0xd81f_0000, NOP, LI]);
    assert!(plan_at_entry_in(R6, &bytes, ADDR, Some(4)).is_ok());
}

#[test]
fn refusals() {
    for (variant, insns, want) in [
        (R2, &[][..], Refusal::TooShort),
        (R2, &[LI], Refusal::TooShort),
        (R2, &[LI, JR], Refusal::TooShort),
        (R6, &[0xd81f_0000, LI], Refusal::TooShort),
        (R2, &[DADDIU, SD, 0x1480_fffd, NOP], Refusal::BranchToEntry { from: 8 }),
        (R2, &[DADDIU, SD, 0x1480_fffe, NOP], Refusal::BranchIntoPatch { from: 8 }),
        (R2, &[DADDIU, SD, 0x0411_fffe, NOP], Refusal::BranchIntoPatch { from: 8 }),
        (R2, &[DADDIU, SD, 0x0800_0001, NOP], Refusal::BranchIntoPatch { from: 8 }),
        (R2, &[0x1000_ffff, NOP], Refusal::BranchToEntry { from: 0 }),
        (R2, &[0x1080_0004, 0x1080_0004, NOP], Refusal::Undecodable { at: 4 }),
        (R2, &[0x7400_0004, NOP, NOP], Refusal::OwnAddress { at: 0 }),
        (R2, &[0xc880_0004, NOP, NOP], Refusal::OwnAddress { at: 0 }),
        (R2, &[0x03e0_f809, NOP, NOP], Refusal::Undecodable { at: 0 }), // jalr ra, ra
        (R6, &[0xf81f_0000, NOP, NOP], Refusal::Undecodable { at: 0 }), // jialc ra
        (R6, &[0x1080_0004, 0xec80_0004, NOP], Refusal::OwnAddress { at: 4 }),
        (R6, &[0xec88_0001, NOP, NOP], Refusal::OwnAddress { at: 0 }), // lwpc .+4
        (R6, &[0x2004_0004, NOP, NOP], Refusal::OwnAddress { at: 0 }), // beqzalc
    ] {
        assert_eq!(plan(variant, insns, true), Err(want), "{insns:x?}");
    }
    // A branch to a delay slot that stays where it is.
    assert!(plan(R2, &[LI, 0x1080_0002, NOP, LI, 0x1480_fffd, NOP], true).is_ok());
    let bytes = code(R2, &[DADDIU, SD]);
    assert_eq!(plan_at_entry_in(R2, &bytes, ADDR + 1, None), Err(Refusal::Undecodable { at: 0 }));
    let need = Refusal::Incomplete { have: 8, need: 12 };
    assert_eq!(plan_at_entry_in(R2, &bytes, ADDR, Some(12)), Err(need));
}

#[test]
fn without_a_size_the_function_ends_where_it_must() {
    // The branch back to the entry belongs to what follows.
    let insns = [DADDIU, SD, 0x1080_0001, NOP, JR, NOP, 0x1000_fff9, NOP];
    assert!(plan(R2, &insns, false).is_ok());
    assert_eq!(plan(R2, &insns, true), Err(Refusal::BranchToEntry { from: 24 }));
    // Here a branch leads on behind the jr.
    let insns = [DADDIU, SD, 0x1080_0003, NOP, JR, NOP, 0x1000_fff9, NOP];
    assert_eq!(plan(R2, &insns, false), Err(Refusal::BranchToEntry { from: 24 }));
}

#[test]
fn references() {
    // lui v0, 2; nop; daddiu v0, v0, -4
    let insns = [NOP, 0x3c02_0002, NOP, 0x6442_fffc, JR];
    for order in [Order::Little, Order::Big] {
        let variant = Variant { order, release6: false };
        let bytes = code(variant, &insns);
        assert_eq!(find_reference_in(variant, &bytes, ADDR, 0x1_fffc), Some(ADDR + 4));
        assert_eq!(find_reference_in(variant, &bytes, ADDR, 0x1_fff8), None);
        assert_eq!(find_reference_in(variant, &bytes, ADDR, 0x1_0001_fffc), None);
        assert_eq!(find_reference_in(variant, &bytes[..12], ADDR, 0x1_fffc), None);
    }
    let bytes = code(R6, &[NOP, 0xec80_0002]);
    assert_eq!(find_reference_in(R6, &bytes, ADDR, ADDR + 12), Some(ADDR + 4));
}

#[test]
fn references_by_the_table() {
    // ld a1, -32752(gp); ld a0, -32744(gp); nop; daddiu a1, a0, 8; daddiu a0, a0, 20904
    let insns = [0xdf85_8010, 0xdf84_8018, NOP, 0x6485_0008, 0x6484_51a8, JR];
    for order in [Order::Little, Order::Big] {
        let variant = Variant { order, release6: false };
        let entry = |n: u64| match order {
            Order::Little => n.to_le_bytes(),
            Order::Big => n.to_be_bytes(),
        };
        let table = [entry(0x1c_0000), entry(0x1d_0000)].concat();
        let code = code(variant, &insns);
        let find = |target| find_reference_by_table_in(variant, &code, ADDR, target, &table);
        assert_eq!(find(0x1d_51a8), Some(ADDR + 4));
        // Another page, another place on it, or no entry.
        assert_eq!([0x1c_51a8, 0x1d_51b0, 0x2d_51a8].map(find), [None, None, None]);
        assert_eq!(find_reference_by_table_in(variant, &code[..16], ADDR, 0x1d_51a8, &table), None);
    }
}

#[test]
fn functions_without_tables() {
    const DOWN: u32 = 0x67bd_ffe0;
    let code = code(R2, &[NOP, DOWN, NOP, 0x67bd_0020, JR, NOP, DOWN, NOP]);
    let around = |n: u64| function_around_in(R2, &code, ADDR, ADDR + 4 * n);
    for n in [1, 2, 5] {
        assert_eq!(around(n), Some(ADDR + 4..ADDR + 24));
    }
    assert_eq!(around(6), Some(ADDR + 24..ADDR + 32));
    assert_eq!((around(0), around(8)), (None, None));
    assert_eq!(function_around_in(R2, &code, ADDR, ADDR - 4), None);
}

#[test]
fn what_a_function_calls() {
    // bal +0x100; beqz +8; b -4; j elsewhere; jalr
    let insns = [0x0411_0040, NOP, 0x1080_0002, NOP, 0x1000_fffe, NOP, 0x0800_1000, 0x0320_f809];
    assert_eq!(calls_in(R2, &code(R2, &insns), ADDR), [ADDR + 0x104, ADDR + 0x4000]);
    assert!(calls_in(R2, &code(R2, &[JR]), ADDR).is_empty());
}

#[test]
fn what_a_function_calls_by_the_table() {
    // ld t9, -0x7f98(gp); ld t9, 0x10(v0); then what is no call: ld v0, -0x7fa0(gp); ld t9, 8(sp)
    let insns = [0xdf99_8068, 0xdc59_0010, 0xdf82_8060, 0xdfb9_0008];
    for order in [Order::Little, Order::Big] {
        let variant = Variant { order, release6: false };
        let slots = called_slots_in(variant, &code(variant, &insns), 0x2_0000);
        assert_eq!(slots, [0x2_0058, 0x2_8000]);
    }
}

#[test]
fn entries_of_linkage_tables() {
    // lui t2, 0x2002; ld t9, -0x7ff8(t2); jr t9; daddiu t8, t2, -0x7ff8
    let entry = [0x3c0e_2002, 0xddd9_8008, 0x0320_0008, 0x65d8_8008];
    let slot = Some(0x2001_8008);
    for order in [Order::Little, Order::Big] {
        let variant = Variant { order, release6: false };
        assert_eq!(indirect_jump_in(variant, &code(variant, &entry)), slot);
        let late = [entry[0], entry[1], entry[3], entry[2]];
        assert_eq!(indirect_jump_in(variant, &code(variant, &late)), slot);
        for other in [[entry[0], entry[1], JR, JR], [entry[0], entry[1] | 1 << 21, entry[2], 0]] {
            assert_eq!(indirect_jump_in(variant, &code(variant, &other)), None);
        }
        assert_eq!(indirect_jump_in(variant, &code(variant, &entry[..2])), None);
    }
    assert_eq!(plan(R2, &entry, true).map(|p| p.displaced), Ok(vec![0, 4]));
}

#[test]
fn what_can_stay_in_front() {
    use crate::patch::Lead::{Again, Down};
    let plan = |variant, insns: &[u32]| {
        let size = Some(insns.len() as u64 * 4);
        plan_patch_in(variant, &code(variant, insns), ADDR, size)
    };
    for (first, lead) in [
        (DADDIU, Down(32)),
        (0x67bd_8000, Down(32768)),
        (LI, Again),
        (0x0085_001d, Again), // dmultu a0, a1
        (0x0080_602d, Again), // move t0, a0
        (0x3c03_0014, Again), // lui v1
    ] {
        let found = plan(R2, &[first, SD, SD, JR, NOP]).unwrap();
        assert_eq!((found.patch_offset, found.lead), (4, lead), "{first:x}");
        assert_eq!((&found.displaced[..], found.displaced_len), (&[4, 8][..], 8));
        assert!(found.covers(ADDR, ADDR + 8) && !found.covers(ADDR, ADDR + 4));
        assert_eq!(found.continuation(), 12);
        assert_eq!(uprobe(4, &[], ADDR), Probed::Passes);
    }
    // An argument, a register of its own, one that is kept, the stack pointer up.
    for first in [0x6484_0001, 0x6442_0001, 0x3c1c_0014, 0x67bd_0020] {
        let found = plan(R2, &[first, SD, SD, JR, NOP]).unwrap();
        assert_eq!((found.patch_offset, found.lead), (0, Lead::Nothing), "{first:x}");
    }
    // No room behind it; release 6 has no such multiplication.
    assert_eq!(plan(R2, &[DADDIU, JR]), Err(Refusal::TooShort));
    assert_eq!(plan(R2, &[DADDIU, SD, JR, NOP, 0x1000_fffd, NOP]).unwrap().patch_offset, 0);
    assert_eq!(plan(R6, &[0x0085_001d, SD, SD, JR, NOP]).unwrap().patch_offset, 0);
    assert_eq!(uprobe(0, &[], ADDR), Probed::Breaks);
    let native = code(Variant::NATIVE, &[0x1080_0004, NOP, DADDIU, SD, JR, NOP]); // beqz a0
    let found = plan_free(&native, ADDR, Some(24)).unwrap();
    assert_eq!((found.patch_offset, found.lead), (8, Again));
    let native = code(Variant::NATIVE, &[0x1080_0004, SD, DADDIU, SD, JR, NOP]);
    assert_eq!(plan_free(&native, ADDR, Some(24)).unwrap().patch_offset, 0);
}
