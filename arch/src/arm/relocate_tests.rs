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
    let thumb_cases: [&[u16]; 8] = [
        &[0xbf08, 0x2000], // it eq
        &[0xe8df, 0xf000], // tbb
        &[0x4778],         // bx pc
        &[0x44fd],         // add sp, pc
        &[0xf8df, 0xd008], // ldr.w sp, [pc, #8]
        &[0xe7fe],         // b .
        &[0x2000, 0xd0fd], // beq to the first of them
        &[0xf8df],         // cut off
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
fn any_code_is_safe() {
    let mut seed = 7_u64;
    for _ in 0..50_000 {
        let code: [u8; 12] = core::array::from_fn(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 40) as u8
        });
        for state in [State::Arm, State::Thumb] {
            if let Ok(moved) = relocate(&code, FROM, state, 8) {
                assert!(moved.bytes.len() < 128 && !moved.map.is_empty());
            }
        }
    }
}
