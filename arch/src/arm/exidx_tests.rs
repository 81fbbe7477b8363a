use super::*;
use alloc::vec::Vec;

extern crate alloc;

const TABLE: u64 = 0x2_0000;
const EXTAB: u64 = 0x3_0000;
const STACK: u64 = 0xbeff_0000;
const FUNCTION: u64 = 0x1_0000;

/// Returns the 31-bit distance from `place` to `to`.
fn distance(place: u64, to: u64) -> u32 {
    to.wrapping_sub(place) as u32 & !COMPACT
}

/// Builds an index table from starts of functions and second words.
fn table(rows: &[(u64, u32)]) -> Vec<u8> {
    let words = rows.iter().zip((TABLE..).step_by(ROW));
    words.flat_map(|((f, word), at)| [distance(at, *f), *word]).flat_map(u32::to_le_bytes).collect()
}

/// Returns registers of which each has a value of its own.
fn registers() -> FullRegs {
    let mut regs = FullRegs { pc: FUNCTION + 8, ..FullRegs::default() };
    for n in 0..15 {
        regs.gpr[n] = 0x100 + n as u64;
    }
    regs.set(SP, STACK);
    regs.set(LR, 0x4_0001);
    regs
}

/// Returns a memory with a stack whose words are 0x5000, 0x5001 and so on, and a second table.
fn memory(extab: &[u32]) -> impl FnMut(u64) -> Option<u32> {
    move |at| {
        if (EXTAB..EXTAB + 0x100).contains(&at) {
            return extab.get((at - EXTAB) as usize / 4).copied();
        }
        (STACK..STACK + 0x1000).contains(&at).then(|| 0x5000 + ((at - STACK) / 4) as u32)
    }
}

fn step(word: u32, extab: &[u32]) -> FullStep<FullRegs> {
    let bytes = table(&[(FUNCTION, word)]);
    let exidx = Exidx { bytes: &bytes, addr: TABLE };
    step_exidx(&exidx, &registers(), FUNCTION + 8, &mut memory(extab))
}

/// Executes these instructions, which are in the second table; returns the registers.
fn run(code: &[u8]) -> Option<FullRegs> {
    let mut bytes = code.to_vec();
    while bytes.len() < 2 || !(bytes.len() - 2).is_multiple_of(4) {
        bytes.push(0xb0);
    }
    let words = (bytes.len() - 2) / 4;
    let head = [0x81, words as u8];
    let all: Vec<u8> = head.into_iter().chain(bytes).collect();
    let extab: Vec<u32> = all.as_chunks::<4>().0.iter().map(|w| u32::from_be_bytes(*w)).collect();
    match step(distance(TABLE + 4, EXTAB), &extab) {
        FullStep::Next { regs, signal: false } => Some(regs),
        _ => None,
    }
}

#[test]
fn functions_are_found() {
    let bytes = table(&[(0x1_0000, 1), (0x1_0010, 0x80b0_b0b0), (0x1_0041, 1), (0x1_0080, 1)]);
    let exidx = Exidx { bytes: &bytes, addr: TABLE };
    let function = |pc| exidx.find(pc).map(|r| r.function);
    assert_eq!(function(0xffff), None);
    assert_eq!(function(0x1_0000), Some(0x1_0000));
    assert_eq!(function(0x1_000f), Some(0x1_0000));
    assert_eq!(function(0x1_0010), Some(0x1_0010));
    assert_eq!(function(0x1_0040), Some(0x1_0040)); // Thumb code
    assert_eq!(function(0x1_0081), Some(0x1_0080));
    assert_eq!(Exidx::default().find(0), None);
    // A truncated row is ignored.
    let cut = Exidx { bytes: &bytes[..15], addr: TABLE };
    assert_eq!(cut.find(0x1_0080).map(|r| r.function), Some(0x1_0000));
}

#[test]
fn instructions_in_the_row() {
    // vsp += 8; pop {r4, r14}
    let FullStep::Next { regs, signal: false } = step(0x8001_a8b0, &[]) else { panic!("no step") };
    assert_eq!((regs.pc, regs.get(SP), regs.get(4)), (0x5002, Some(STACK + 16), Some(0x5002)));
    assert_eq!((regs.get(LR), regs.get(5)), (Some(0x5003), Some(0x105)));
}

#[test]
fn what_each_instruction_moves_the_stack_pointer_by() {
    // Bytes, and the resulting move: none of these pops a general register.
    let cases: [(&[u8], u64); 22] = [
        (&[0x00], 4),
        (&[0x3f], 0x100),
        (&[0x3f, 0x41], 0x100 - 8),
        (&[0x01, 0x40], 4),
        (&[0xb2, 0x00], 0x204),
        (&[0xb2, 0x7f], 0x204 + 0x7f * 4),
        (&[0xb2, 0x81, 0x01], 0x204 + 0x81 * 4),
        (&[0xb3, 0x80], 12), // FSTMFDX d8
        (&[0xb3, 0x87], 68), // FSTMFDX d8 to d15
        (&[0xb8], 12),       // the same from d8 on
        (&[0xbf], 68),
        (&[0xb4], 4), // signature of the return address
        (&[0xb5, 0x00], 4),
        (&[0xc0], 8), // WMMX
        (&[0xc5], 48),
        (&[0xc6, 0x03], 32),
        (&[0xc7, 0x0b], 12), // three of its control registers
        (&[0xc8, 0x03], 32), // d16 to d19
        (&[0xc9, 0x81], 16), // d8, d9
        (&[0xd0], 8),        // d8
        (&[0xd7], 64),
        (&[0x02, 0xb0, 0x3f], 12), // nothing behind the end
    ];
    for (code, by) in cases {
        let want = FullRegs { pc: 0x4_0000, ..registers() };
        let mut want = want;
        want.set(SP, STACK + by);
        assert_eq!(run(code), Some(want), "{code:02x?}");
    }
}

#[test]
fn which_registers_are_popped() {
    // Bytes, and the registers in the order of the words.
    let cases: [(&[u8], &[u16]); 11] = [
        (&[0x80, 0x08], &[7]),
        (&[0x84, 0x00], &[14]),
        (&[0x88, 0x01], &[4, 15]),
        (&[0x8c, 0xff], &[4, 5, 6, 7, 8, 9, 10, 11, 14, 15]),
        (&[0x81, 0x80], &[11, 12]),
        (&[0xa0], &[4]),
        (&[0xa7], &[4, 5, 6, 7, 8, 9, 10, 11]),
        (&[0xa8], &[4, 14]),
        (&[0xab], &[4, 5, 6, 7, 14]),
        (&[0xaf], &[4, 5, 6, 7, 8, 9, 10, 11, 14]),
        (&[0xb1, 0x0a], &[1, 3]),
    ];
    for (code, popped) in cases {
        let mut want = registers();
        want.set_pc(want.gpr[14]);
        want.set(SP, STACK + 4 * popped.len() as u64);
        for (register, value) in popped.iter().zip(0x5000_u64..) {
            want.set(*register, value);
            if *register >= LR {
                want.set_pc(value);
            }
        }
        assert_eq!(run(code), Some(want), "{code:02x?}");
    }
}

#[test]
fn stack_pointers_from_other_places() {
    // vsp = r7, and from there down to what was saved: the usual frame of Thumb code.
    let bytes = table(&[(FUNCTION, distance(TABLE + 4, EXTAB))]);
    let exidx = Exidx { bytes: &bytes, addr: TABLE };
    for (code, register) in [(0x9741_8408_u32, 7), (0x9b41_8408, 11)] {
        let mut regs = registers();
        regs.set(register, STACK + 0x28);
        let extab = [0x8101_0000 | code >> 16, code << 16 | 0xb0b0];
        let got = step_exidx(&exidx, &regs, FUNCTION, &mut memory(&extab));
        let FullStep::Next { regs: next, .. } = got else { panic!("{got:?}") };
        // r7 and r14 from STACK + 0x20.
        assert_eq!((next.pc, next.get(SP)), (0x5008, Some(STACK + 0x28)));
        assert_eq!((next.get(7), next.get(LR)), (Some(0x5008), Some(0x5009)));
    }
    // The stack pointer is popped among others; it counts when all have been popped.
    let mut want = registers();
    (want.pc, want.gpr[12], want.gpr[13], want.gpr[14]) = (0x5002, 0x5000, 0x5001, 0x5002);
    let low = step_in_low_stack(&[0x87, 0x00]);
    assert_eq!(low, Some(want));
}

/// Does as [`run`], with a stack so low that 0x5001 lies above it.
fn step_in_low_stack(code: &[u8; 2]) -> Option<FullRegs> {
    let word =
        0x80b0_0000 & 0xff00_0000 | u32::from(code[0]) << 16 | u32::from(code[1]) << 8 | 0xb0;
    let bytes = table(&[(FUNCTION, word)]);
    let mut regs = registers();
    regs.set(SP, 0x1000);
    let mut read =
        |at: u64| (0x1000..0x1100).contains(&at).then(|| 0x5000 + (at - 0x1000) as u32 / 4);
    let exidx = Exidx { bytes: &bytes, addr: TABLE };
    match step_exidx(&exidx, &regs, FUNCTION, &mut read) {
        FullStep::Next { regs, .. } => Some(regs),
        _ => None,
    }
}

#[test]
fn the_forms_of_tables() {
    let there = distance(TABLE + 4, EXTAB);
    let sp = |word, extab: &[u32]| match step(word, extab) {
        FullStep::Next { regs, .. } => regs.get(SP).map(|sp| sp - STACK),
        _ => None,
    };
    // Three bytes in the row, or in the other table.
    assert_eq!(sp(0x8001_0203, &[]), Some(8 + 12 + 16));
    assert_eq!(sp(there, &[0x8001_0203]), Some(8 + 12 + 16));
    // Two bytes and further words; the last may be incomplete.
    assert_eq!(sp(there, &[0x8100_0102]), Some(8 + 12));
    assert_eq!(sp(there, &[0x8101_0102, 0x03b0_b0b0]), Some(8 + 12 + 16));
    assert_eq!(sp(there, &[0x8202_0000, 0, 0x0000_00b0]), Some(4 * 9));
    // A personality routine of its own, as C++ has one.
    let own = distance(EXTAB, 0x1234);
    assert_eq!(sp(there, &[own, 0x0001_0203]), Some(8 + 12 + 16));
    assert_eq!(sp(there, &[own, 0x0101_0203, 0x04b0_b0b0]), Some(8 + 12 + 16 + 20));
    // These forms do not exist.
    for word in [0x8101_0203, 0x8f01_0203, 0x9001_0203, 0xc001_0203] {
        assert_eq!(step(word, &[]), FullStep::Cut, "{word:08x}");
        if word != 0x8101_0203 {
            assert_eq!(step(there, &[word]), FullStep::Cut, "{word:08x}");
        }
    }
    assert_eq!(step(there, &[]), FullStep::Cut, "no memory");
    assert_eq!(step(there, &[0x8101_0102]), FullStep::Cut, "no memory for the second word");
}

#[test]
fn where_stacks_end() {
    assert_eq!(step(CANT_UNWIND, &[]), FullStep::End);
    let bytes = table(&[(FUNCTION, 0x80b0_b0b0)]);
    let exidx = Exidx { bytes: &bytes, addr: TABLE };
    assert_eq!(step_exidx(&exidx, &registers(), 0xfff0, &mut memory(&[])), FullStep::NoCfi);
    // The first function's return address is 0.
    let mut regs = registers();
    regs.set(LR, 0);
    assert_eq!(step_exidx(&exidx, &regs, FUNCTION, &mut memory(&[])), FullStep::End);
    // No progress.
    regs.set(LR, regs.pc | 1);
    assert_eq!(step_exidx(&exidx, &regs, FUNCTION, &mut memory(&[])), FullStep::Cut);
}

#[test]
fn what_is_refused() {
    // Reserved, spare, "refuse to unwind", below the stack, without memory, endless, cut off.
    let cases: [&[u8]; 16] = [
        &[0x80, 0x00],
        &[0x9d],
        &[0x9f],
        &[0xb1, 0x00],
        &[0xb1, 0x10],
        &[0xb6],
        &[0xb7],
        &[0xc7, 0x00],
        &[0xc7, 0x10],
        &[0xca],
        &[0xcf],
        &[0xd8],
        &[0xff],
        &[0x41],
        &[0x90, 0xa0],
        &[0xb2, 0xff, 0xff, 0xff, 0xff, 0xff],
    ];
    for code in cases {
        assert_eq!(run(code), None, "{code:02x?}");
    }
    assert_eq!(step(0x8000_0080, &[]), FullStep::Cut, "an instruction without its second byte");
}

#[test]
fn any_bytes_are_safe() {
    let mut seed = 1_u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 32) as u32
    };
    let mut found = 0;
    for _ in 0..20_000 {
        let extab: [u32; 8] = core::array::from_fn(|_| random());
        let head = [0x8000_0000, 0x8100_0000, 0x8200_0000, 0][random() as usize % 4];
        let extab: Vec<u32> = [head | extab[0] & 0xff_ffff].into_iter().chain(extab).collect();
        found +=
            u32::from(matches!(step(distance(TABLE + 4, EXTAB), &extab), FullStep::Next { .. }));
        let bytes: Vec<u8> = (0..random() % 64).map(|_| random() as u8).collect();
        let exidx = Exidx { bytes: &bytes, addr: u64::from(random()) };
        let _ = step_exidx(&exidx, &registers(), u64::from(random()), &mut memory(&extab));
    }
    assert!(found > 100, "{found}");
}
