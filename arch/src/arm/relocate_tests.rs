use super::*;

const FROM: u32 = 0x2_0002;

fn thumb(halves: &[u16]) -> Vec<u8> {
    halves.iter().flat_map(|h| h.to_le_bytes()).collect()
}

fn arm(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

#[test]
fn a_usual_function_of_thumb_code() {
    // push {r3-r7, lr}; ldr r6, [pc, #0x20]; add r6, pc
    let code = thumb(&[0xb5f8, 0x4e08, 0x447e, 0xbf00]);
    let moved = relocate(&code, FROM, State::Thumb, 6).unwrap();
    let insns = [
        0xb5f8_u16, 0xf8df, 0x6014, 0x6836, // ldr.w r6, =address; ldr r6, [r6]
        0xb401, 0xf8df, 0x0010, 0x4406,
        0xbc01, // push {r0}; ldr.w r0, =pc; add r6, r0; pop {r0}
        0xf8df, 0xf00c, 0xbf00, // ldr.w pc, =back
    ];
    let mut want = thumb(&insns);
    // From the literal's base, the end of the function's head, and the rest of the function.
    want.extend(arm(&[((FROM + 6) & !3) + 0x20, FROM + 4 + 4, (FROM + 6) | 1]));
    assert_eq!(moved.bytes, want, "{:x?}", moved.bytes);
    assert_eq!((moved.map, moved.has_call), ([(0, 0), (2, 2), (4, 8)].to_vec(), false));
    // Whole instructions, however many bytes are asked for.
    let short = relocate(&code, FROM, State::Thumb, 1).unwrap();
    assert_eq!(short.map, [(0, 0)]);
    assert_eq!(short.bytes[short.bytes.len() - 4..], ((FROM + 2) | 1).to_le_bytes());
}

#[test]
fn what_is_refused() {
    let thumb_cases: [&[u16]; 14] = [
        &[0xbf08],                 // it eq, and nothing
        &[0xbff8, 0x2000],         // it with no condition
        &[0xbf04, 0xbf08, 0x2000], // it in a block
        &[0xbf08, 0xb100],         // cbz in a block
        &[0xbf08, 0xd002],         // beq in a block
        &[0xbf08, 0x4487],         // addeq pc, r0
        &[0xbf08, 0x4478, 0xe7fe], // b . behind a block
        &[0xe8dd, 0xf000],         // tbb [sp, r0]
        &[0x4778],                 // bx pc
        &[0x44fd],                 // add sp, pc
        &[0xf8df, 0xd008],         // ldr.w sp, [pc, #8]
        &[0xe7fe],                 // b .
        &[0x2000, 0xd0fd],         // beq to the first of them
        &[0xf8df],                 // cut off
    ];
    for code in thumb_cases {
        let len = code.len() * 2;
        assert!(relocate(&thumb(code), FROM, State::Thumb, len).is_err(), "{code:x?}");
    }
    for code in [0xe79f_3003_u32, 0xe59f_d008, 0x0b00_0002, 0xe51f_0008, 0xe24f_0008] {
        assert!(relocate(&arm(&[code]), 0x2_0000, State::Arm, 4).is_err(), "{code:x}");
    }
    assert!(relocate(&[], FROM, State::Arm, 4).is_err());
}

#[test]
fn a_block_with_a_literal() {
    // ittet ne; addne r0, r0, r1; ldrne r2, [pc, #16]; moveq.w r3, #1; bne +0x20
    let code = thumb(&[0xbf1b, 0x1840, 0x4a04, 0xf04f, 0x0301, 0xe00e]);
    // The block is moved as a whole, however few of its bytes are to be moved.
    for len in [1, 4, 12] {
        let moved = relocate(&code, FROM, State::Thumb, len).unwrap();
        let insns = [
            0xbf18_u16, 0x1840, // it ne; addne r0, r0, r1
            0xd002, 0xf8df, 0x2014, 0x6812, // beq over; ldr.w r2, =address; ldr r2, [r2]
            0xbf08, 0xf04f, 0x0301, // it eq; moveq.w r3, #1
            0xd001, 0xf8df, 0xf008, // beq over; ldr.w pc, =target
            0xf8df, 0xf008, // ldr.w pc, =back
        ];
        let mut want = thumb(&insns);
        want.extend(arm(&[((FROM + 8) & !3) + 16, (FROM + 14 + 28) | 1, (FROM + 12) | 1]));
        assert_eq!(moved.bytes, want, "{:x?}", moved.bytes);
        // A thread continues in each instruction as if outside of a block.
        assert_eq!(moved.map, [(0, 0), (2, 0), (4, 4), (6, 12), (10, 18)]);
        assert_eq!(moved.moved_pc(0x1000, 0x5000, 0x1006), Some(0x500c));
        assert!(!moved.has_call);
    }
    // it eq; bleq
    let call = thumb(&[0xb510, 0xbf08, 0xf000, 0xf802]);
    let moved = relocate(&call, FROM, State::Thumb, 4).unwrap();
    assert_eq!((&moved.map[..], moved.has_call), (&[(0, 0), (2, 2), (4, 2)][..], true));
    // it al; movs
    let always = relocate(&thumb(&[0xbfe8, 0x2001]), FROM, State::Thumb, 4).unwrap();
    assert_eq!(always.bytes[..4], thumb(&[0xbfe8, 0x2001]));
}

#[test]
fn jumps_by_tables() {
    // tbb [pc, r0]
    let moved = relocate(&thumb(&[0xe8df, 0xf000]), FROM, State::Thumb, 4).unwrap();
    let insns = [
        0xb486_u16, 0xf8df, 0x1018, // push {r1, r2, r7}; ldr.w r1, =table
        0xf811, 0x2000, // ldrb r2, [r1, r0]
        0xf8df, 0x1014, 0xeb01, 0x0142, // ldr.w r1, =table + 1; add.w r1, r1, r2, lsl #1
        0x9102, 0xbd06, // str r1, [sp, #8]; pop {r1, r2, pc}
        0xf8df, 0xf00c, 0xbf00, // ldr.w pc, =behind: not executed
    ];
    let mut want = thumb(&insns);
    want.extend(arm(&[FROM + 4, FROM + 5, FROM + 5]));
    assert_eq!(moved.bytes, want, "{:x?}", moved.bytes);
    // it eq; tbheq [r1, r0, lsl #1]
    let moved = relocate(&thumb(&[0xbf08, 0xe8d1, 0xf010]), FROM, State::Thumb, 4).unwrap();
    let insns = [
        0xd108_u16, 0xb48c, // bne over; push {r2, r3, r7}
        0xf831, 0x3010, // ldrh r3, [r1, r0, lsl #1]
        0xf8df, 0x200c, 0xeb02, 0x0243, 0x9202, 0xbd0c, 0xf8df, 0xf004,
    ];
    assert_eq!(moved.bytes[..24], thumb(&insns), "{:x?}", moved.bytes);
    assert_eq!(moved.map, [(0, 0), (2, 0)]);
}

#[test]
fn any_code_is_safe() {
    let mut seed = 7_u64;
    for _ in 0..50_000 {
        let code: [u8; 12] = core::array::from_fn(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 40) as u8
        });
        for state in [State::Arm, State::Thumb] {
            if let Ok(moved) = relocate(&code, FROM, state, 8) {
                assert!(moved.bytes.len() < 160 && !moved.map.is_empty());
            }
        }
    }
}
