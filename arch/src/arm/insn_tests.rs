use super::*;
use crate::arm::relocate::{StubParams, build_stub, stub_window};
use alloc::vec;

const THUMB_FN: u64 = 0x2_0001;
const ARM_FN: u64 = 0x3_0000;

fn thumb(halves: &[u16]) -> Vec<u8> {
    halves.iter().flat_map(|h| h.to_le_bytes()).collect()
}

fn arm(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn plan(code: &[u8], addr: u64) -> Result<(Vec<usize>, usize, bool), Refusal> {
    let plan = plan_patch(code, addr, Some(code.len() as u64))?;
    Ok((plan.displaced, plan.displaced_len, plan.terminated))
}

#[test]
fn what_is_displaced() {
    // push {r4, lr}; mov r4, r0; ..
    let two = thumb(&[0xb510, 0x4604, 0x4620, 0xbd10]);
    assert_eq!(plan(&two, THUMB_FN), Ok((vec![0, 2], 4, false)));
    // push.w {r4-r8, lr}
    assert_eq!(plan(&thumb(&[0xe92d, 0x41f0, 0xbd10]), THUMB_FN), Ok((vec![0], 4, false)));
    // push {r4}; mov.w r4, #0
    let six = thumb(&[0xb410, 0xf04f, 0x0400, 0xbc10, 0x4770]);
    assert_eq!(plan(&six, THUMB_FN), Ok((vec![0, 2], 6, false)));
    // bx lr, and padding
    assert_eq!(plan(&thumb(&[0x4770, 0xbf00]), THUMB_FN), Ok((vec![0], 2, true)));
    assert_eq!(plan(&arm(&[0xe92d_4010, 0xe12f_ff1e]), ARM_FN), Ok((vec![0], 4, false)));
    assert_eq!(plan(&arm(&[0xe12f_ff1e]), ARM_FN), Ok((vec![0], 4, true)));
}

#[test]
fn what_is_refused() {
    use Refusal::*;
    // A branch to the second instruction, and to the first; also where a literal looks like one.
    let inside = thumb(&[0xb510, 0x3801, 0xd1fd, 0xbd10]);
    assert_eq!(plan(&inside, THUMB_FN), Err(BranchIntoPatch { from: 4 }));
    let entry = thumb(&[0xb510, 0x3801, 0xd1fc, 0xbd10]);
    assert_eq!(plan(&entry, THUMB_FN), Err(BranchToEntry { from: 4 }));
    // ldr r0, [pc, #0]; bx lr; the literal: bne to the entry
    let literal = thumb(&[0x4801, 0xb500, 0xbd00, 0xbf00, 0xd1fa, 0xd1f9]);
    assert_eq!(plan(&literal, THUMB_FN), Ok((vec![0, 2], 4, false)));
    let data = thumb(&[0xb500, 0xb500, 0xbd00, 0xbf00, 0xd1fa, 0xd1f9]);
    assert!(plan(&data, THUMB_FN).is_err());
    assert_eq!(plan(&thumb(&[0x4770, 0xb510]), THUMB_FN), Err(TooShort));
    assert_eq!(plan(&thumb(&[0xb510]), THUMB_FN), Err(TooShort));
    assert_eq!(plan_patch(&two(), THUMB_FN, Some(99)), Err(Incomplete { have: 8, need: 99 }));
    assert_eq!(plan_patch(&two(), 0x2_0002, None), Err(Undecodable { at: 0 }));
    let back = arm(&[0xe92d_4010, 0x1aff_fffd, 0xe8bd_8010]);
    assert_eq!(plan(&back, ARM_FN), Err(BranchToEntry { from: 4 }));
}

#[test]
fn blocks_are_displaced_whole() {
    use Refusal::*;
    // it eq; moveq r0, #0; bx lr
    assert_eq!(plan(&thumb(&[0xbf08, 0x2000, 0x4770]), THUMB_FN), Ok((vec![0, 2], 4, false)));
    // push {r4, lr}; itete cs; four moves; pop {r4, pc}
    let four = thumb(&[0xb510, 0xbf2b, 0x2001, 0x2002, 0xf04f, 0x0003, 0x2004, 0xbd10]);
    assert_eq!(plan(&four, THUMB_FN), Ok((vec![0, 2, 4, 6, 8, 12], 14, false)));
    // A block that begins right behind the patch is not displaced.
    let behind = thumb(&[0xb510, 0x2000, 0xbf08, 0x2001, 0xbd10]);
    assert_eq!(plan(&behind, THUMB_FN), Ok((vec![0, 2], 4, false)));
    // it eq; bxeq lr: the function goes on.
    assert_eq!(plan(&thumb(&[0xbf08, 0x4770, 0x4770]), THUMB_FN), Ok((vec![0, 2], 4, false)));
    // The function ends in the block, with or without code behind it.
    let ends = thumb(&[0xb510, 0xbf2b, 0x2001, 0x2002]);
    assert_eq!(plan(&ends, THUMB_FN), Err(Undecodable { at: 8 }));
    assert_eq!(plan_patch(&four, THUMB_FN, Some(8)), Err(Undecodable { at: 8 }));
    // cmp; itt eq; moveq r0, #0; moveq r1, #1; bne into the block, b to the entry
    let into = thumb(&[0x2800, 0xbf04, 0x2000, 0x2101, 0xd1fd, 0x4770]);
    assert_eq!(plan(&into, THUMB_FN), Err(BranchIntoPatch { from: 8 }));
    let entry = thumb(&[0x2800, 0xbf04, 0x2000, 0x2101, 0xe7fa, 0x4770]);
    assert_eq!(plan(&entry, THUMB_FN), Err(BranchToEntry { from: 8 }));
    // it eq; addeq pc, r0
    let computed = thumb(&[0xbf08, 0x4487, 0x4770]);
    assert_eq!(plan(&computed, THUMB_FN), Err(OwnAddress { at: 2 }));
    // ARM code that would be a block in Thumb code: andeq fp, r0, r8, lsl #30
    assert_eq!(plan(&arm(&[0xbf08, 0xe12f_ff1e]), ARM_FN), Ok((vec![0], 4, false)));
}

#[test]
fn tables_are_no_instructions() {
    use Refusal::*;
    let same = |code: &[u16]| plan(&thumb(code), THUMB_FN);
    // tbb [pc, r0]; two entries; movs; bx lr; movs; bx lr
    let first = [0xe8df, 0xf000, 0x0301, 0x2001, 0x4770, 0x2002, 0x4770];
    assert_eq!(same(&first), Ok((vec![0], 4, true)));
    assert_eq!(same(&[&[0x4608][..], &first].concat()), Ok((vec![0, 2], 6, true)));
    assert_eq!(plan_patch(&thumb(&first), THUMB_FN, None).map(|p| p.displaced_len), Ok(4));
    // push {r4, lr}; nop; tbb [pc, r0]; entries that look like the first half of bl, as only what follows
    // from where they lead to tells: a branch to the second instruction there is seen.
    let mut long = vec![0xb510, 0xbf00, 0xe8df, 0xf000, 0xf4f4];
    long.resize(4 + 0xf4, 0xbf00);
    long.extend([0xe707, 0xbd10]);
    let code = thumb(&long);
    let from = 2 * (4 + 0xf4);
    assert_eq!(plan(&code, THUMB_FN), Err(BranchIntoPatch { from }));
    assert_eq!(plan_patch(&code, THUMB_FN, None), Err(BranchIntoPatch { from }));
    // Right behind the table stands what only comes later leads to: a branch to the second instruction
    // in what must be taken for entries.
    let hidden = [0xb510, 0xbf00, 0xe8df, 0xf000, 0x0404, 0xe7fa, 0xbf00, 0xbf00, 0xbf00, 0xbd10];
    assert_eq!(same(&hidden), Err(BranchIntoPatch { from: 10 }));
    // A table somewhere else, and one that is cut off.
    assert_eq!(same(&[0xe8d1, 0xf000, 0x2001, 0x4770]), Ok((vec![0], 4, true)));
    assert_eq!(same(&[0xb510, 0xbf00, 0xe8df, 0xf010, 0x1000]), Ok((vec![0, 2], 4, false)));
    // tbb [sp, r0]
    assert_eq!(same(&[0xe8dd, 0xf000, 0x2001, 0x4770]), Err(OwnAddress { at: 0 }));
    // Entries of a table that look like a call are none. tbh; two entries; bl +0x100; bx lr
    let called = thumb(&[0xe8df, 0xf010, 0x0002, 0x0002, 0xf000, 0xf87e, 0x4770]);
    assert_eq!(calls(&called, 0x1001), [0x1000 + 12 + 0xfc + 1]);
    // cmp r0, #1; tbb; two places behind a call that stands right behind the table
    let before = thumb(&[0x2801, 0xe8df, 0xf000, 0x0303, 0xf000, 0xf87e, 0x4770]);
    assert_eq!(calls(&before, 0x1001), [0x1000 + 12 + 0xfc + 1]);
}

fn two() -> Vec<u8> {
    thumb(&[0xb510, 0x4604, 0x4620, 0xbd10])
}

#[test]
fn functions_of_unknown_size_end() {
    // beq over a return; another function behind, with a branch to this one.
    let code = thumb(&[0xb510, 0x2800, 0xd000, 0xbd10, 0xbd10, 0xe7f9]);
    assert!(plan_patch(&code, THUMB_FN, None).is_ok());
    assert!(plan_patch(&code, THUMB_FN, Some(12)).is_err());
    // A return in an if-then block does not end the function.
    let code = thumb(&[0xb510, 0x2800, 0xbf08, 0xbd10, 0xe7fa, 0xbd10]);
    assert!(plan_patch(&code, THUMB_FN, None).is_err());
}

#[test]
fn stubs() {
    for (addr, code) in [(THUMB_FN, two()), (ARM_FN, arm(&[0xe92d_4010, 0xe8bd_8010]))] {
        let plan = plan_patch(&code, addr, Some(8)).unwrap();
        let params = StubParams {
            many: false,
            stub_addr: 0x8_0000,
            flag_addr: 0x1111_1110,
            desc_addr: 0x2222_2220,
            entry_addr: 0x3333_3330,
            func_addr: addr,
            code: &code,
            plan: &plan,
        };
        assert!(stub_window(&plan, &code, addr).unwrap().contains(&0x8_0000));
        let stub = build_stub(&params).unwrap();
        assert_eq!((stub.patch_addr, stub.original_addr), (addr & !1, 0x8_0024 | addr & 1));
        assert_eq!(super::super::jump::decode_jump(addr, &stub.patch), Some(0x8_0000 | addr & 1));
        let word = |at: usize| u32::from_le_bytes(stub.bytes[at..at + 4].try_into().unwrap());
        assert_eq!([24, 28, 32].map(word), [0x1111_1110, 0x2222_2220, 0x3333_3330]);
        assert_eq!(stub.bytes[36..], stub.relocated.bytes);
        // Target of the conditional branch.
        let sweep = Sweep::new(&stub.bytes[..24], 0x8_0000 | addr & 1);
        let branches: Vec<_> = sweep
            .filter_map(|place| match place.insn.pc_use {
                Some(PcUse::Conditional(to, _)) => Some(to),
                _ => None,
            })
            .collect();
        assert_eq!(branches, [0x8_0024]);
        let far = StubParams { stub_addr: 0x800_0000, ..params };
        assert_eq!(build_stub(&far), Err(Refusal::OutOfReach));
        let other = thumb(&[0xe92d, 0x41f0, 0xe92d, 0x41f0]);
        if addr == THUMB_FN {
            assert_eq!(build_stub(&StubParams { code: &other, ..params }), Err(Refusal::Changed));
        }
    }
}

#[test]
fn references() {
    // ldr r3, [pc, #8]; nop; add r3, pc; bx lr; .., the distance from the add and 4
    let mut code = thumb(&[0x4b01, 0xbf00, 0x447b, 0x4770]);
    code.extend(0x1234_u32.to_le_bytes());
    assert_eq!(find_reference(&code, 0x1000, 0x1004 + 4 + 0x1234), Some(0x1004));
    assert_eq!(find_reference(&code, 0x1000, 0x1004 + 4 + 0x1235), None);
    // ldr.w r8, [pc, #4]; add r8, pc
    let mut wide = thumb(&[0xf8df, 0x8004, 0x44f8, 0x4770]);
    wide.extend(0x1234_u32.to_le_bytes());
    assert_eq!(find_reference(&wide, 0x1000, 0x1004 + 4 + 0x1234), Some(0x1004));
    // ldr r3, [pc]; add r3, pc, r3
    let words = arm(&[0xe59f_3000, 0xe08f_3003, 0x1234]);
    assert_eq!(find_reference(&words, 0x1000, 0x1004 + 8 + 0x1234), Some(0x1004));
}

#[test]
fn functions_without_tables() {
    // bx lr; push {r4, lr}; bl; pop {r4, pc}; push.w {r4, r8, lr}; nop; pop.w {r4, r8, pc}; push {r4}; nop
    let code =
        thumb(&[0x4770, 0xb510, 0xf000, 0xf87d, 0xbd10, 0xe92d, 0x4110, 0xbf00, 0xe8bd, 0x8110]);
    assert_eq!(function_around(&code, 0x1000, 0x1004), Some(0x1002..0x100a));
    assert_eq!(function_around(&code, 0x1000, 0x1008), Some(0x1002..0x100a));
    assert_eq!(function_around(&code, 0x1000, 0x100e), Some(0x100a..0x1014));
    for outside in [0, 0x1000, 0x1002] {
        assert_eq!(function_around(&code, 0x1000, outside), None, "{outside:x}");
    }
    assert_eq!(function_around(&code, 0x1000, 0x2000), Some(0x100a..0x1014));
}

#[test]
fn where_code_leads() {
    // push {r4, lr}; bl +0x100; blx +0x200; pop; b.w +0x300
    let code = thumb(&[0xb510, 0xf000, 0xf87d, 0xf000, 0xe8fc, 0xf000, 0xb97a]);
    let found = calls(&code, 0x1001);
    assert_eq!(found.len(), 3);
    assert_eq!((found[0] & 1, found[1] & 1, found[2] & 1), (1, 0, 1));
    // add ip, pc, #0; add ip, ip, #0x10000; ldr pc, [ip, #0x88]!
    let stub = arm(&[0xe28f_c600, 0xe28c_ca10, 0xe5bc_f088]);
    assert_eq!(indirect_jump(&stub, 0x1000), Some(0x1008 + 0x1_0000 + 0x88));
    let from_thumb = [thumb(&[0x4778, 0xe7fd]), stub.clone()].concat();
    assert_eq!(indirect_jump(&from_thumb, 0x1001), Some(0x100c + 0x1_0000 + 0x88));
    assert_eq!(indirect_jump(&stub, 0x1001), None);
    assert_eq!(indirect_jump(&stub[..8], 0x1000), None);
}

#[test]
fn any_code_is_safe() {
    let mut seed = 3_u64;
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..24)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 33) as u8
            })
            .collect();
        for addr in [THUMB_FN, ARM_FN] {
            let _ = plan_patch(&bytes, addr, None);
            let _ = calls(&bytes, addr);
            let _ = indirect_jump(&bytes, addr);
            let _ = find_reference(&bytes, addr & !1, addr);
        }
    }
}
