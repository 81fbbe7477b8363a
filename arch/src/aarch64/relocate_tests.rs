use super::*;
use crate::aarch64::insn::{plan_at_entry, plan_free, plan_patch};
use alloc::vec;

const FUNC: u64 = 0x40_0000;
const STUB: u64 = 0x50_0000;
const RET: u32 = 0xd65f_03c0;
const PACIASP: u32 = 0xd503_233f;
const AUTIASP: u32 = 0xd503_23bf;

fn bytes(insns: &[u32]) -> Vec<u8> {
    insns.iter().flat_map(|i| i.to_le_bytes()).collect()
}

/// Moves a function that begins with these instructions; returns the instructions up to the literals, and the
/// literals.
fn moved(insns: &[u32]) -> (Vec<u32>, Vec<u64>, Relocated) {
    let mut all = insns.to_vec();
    all.resize(0x40, RET);
    let code = bytes(&all);
    let plan = plan_at_entry(&code, FUNC, Some(code.len() as u64)).unwrap();
    let r = relocate(&plan, &code, FUNC, STUB).unwrap();
    let words: Vec<u32> =
        r.bytes.chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
    // One instruction loads each literal.
    let count = words.iter().filter(|&&w| w & 0xff00_0000 == 0x5800_0000).count();
    let (insns, literals) = r.bytes.split_at(r.bytes.len() - count * 8);
    let literals = literals.chunks(8).map(|b| u64::from_le_bytes(b.try_into().unwrap())).collect();
    (words[..insns.len() / 4].to_vec(), literals, r)
}

/// Encodes `b` from the n-th instruction of the moved code to an offset in the function.
fn b(n: u64, offset: u64) -> u32 {
    u32::from_le_bytes(encode_jump(STUB + 4 * n, FUNC + offset).unwrap())
}

#[test]
fn every_form() {
    let cases: &[(u32, &[u32], &[u64])] = &[
        (0xa9be_7bfd, &[0xa9be_7bfd, b(1, 4)], &[]), // stp
        (0x1400_0004, &[b(0, 16)], &[]),             // b
        (0x5400_0080, &[0x5400_0041, b(1, 16), b(2, 4)], &[]), // b.eq: b.ne
        (0x5400_008e, &[b(0, 16), b(1, 4)], &[]),    // b.al
        (0x5400_0091, &[0x5400_0050, b(1, 16), b(2, 4)], &[]), // bc.ne: bc.eq
        (0xb400_0083, &[0xb500_0043, b(1, 16), b(2, 4)], &[]), // cbz: cbnz
        (0x3500_0083, &[0x3400_0043, b(1, 16), b(2, 4)], &[]), // cbnz: cbz
        (0x3708_0083, &[0x3608_0043, b(1, 16), b(2, 4)], &[]), // tbnz w3, #1
        (0xb6f8_0083, &[0xb7f8_0043, b(1, 16), b(2, 4)], &[]), // tbz x3, #63
        (0x1000_0085, &[0x5800_0045, b(1, 4)], &[FUNC + 16]), // adr x5
        (0xb000_0005, &[0x5800_0045, b(1, 4)], &[FUNC + 0x1000]), // adrp x5
        (0x1800_0085, &[0x5800_0085, 0xb940_00a5, b(2, 4), NOP], &[FUNC + 16]),
        (0x5800_0085, &[0x5800_0085, 0xf940_00a5, b(2, 4), NOP], &[FUNC + 16]),
        (0x9800_0085, &[0x5800_0085, 0xb980_00a5, b(2, 4), NOP], &[FUNC + 16]),
        (0x5800_009f, &[0x5800_0090, 0xf940_021f, b(2, 4), NOP], &[FUNC + 16]), // ldr xzr
        (0xd800_0080, &[0x5800_0090, 0xf980_0200, b(2, 4), NOP], &[FUNC + 16]), // prfm
        (0x1c00_0085, &[0x5800_0090, 0xbd40_0205, b(2, 4), NOP], &[FUNC + 16]), // ldr s5
        (0x5c00_0085, &[0x5800_0090, 0xfd40_0205, b(2, 4), NOP], &[FUNC + 16]), // ldr d5
        (0x9c00_0085, &[0x5800_0090, 0x3dc0_0205, b(2, 4), NOP], &[FUNC + 16]), // ldr q5
        (RET, &[RET], &[]),
    ];
    for (insn, want, literals) in cases {
        let (words, found, r) = moved(&[*insn]);
        assert_eq!((&words[..], &found[..]), (*want, *literals), "{insn:08x}: {words:08x?}");
        assert_eq!((r.map, r.has_call), (vec![(0, 0)], false));
    }
    let (words, _, r) = moved(&[0x9400_0040]); // bl
    assert_eq!(words[0], 0x9400_0000 | imm26(STUB, FUNC + 0x100).unwrap());
    assert!(r.has_call);
    assert!(moved(&[0xd63f_0000]).2.has_call); // blr x0
}

#[test]
fn behind_a_signature() {
    let (words, _, r) = moved(&[PACIASP, 0xb400_0083]);
    assert_eq!(words, [PACIASP, 0xb500_0043, b(2, 4 + 16), b(3, 8)]);
    assert_eq!(r.map, [(4, 4)]);
    assert_eq!(r.moved_pc(FUNC, STUB, FUNC + 4), Some(STUB + 4));
}

fn stub(insns: &[u32]) -> Stub {
    let code = bytes(insns);
    let plan = plan_at_entry(&code, FUNC, None).unwrap();
    build_stub(&StubParams {
        many: false,
        stub_addr: STUB,
        flag_addr: 0x1111,
        desc_addr: 0x2222,
        entry_addr: 0x3333,
        func_addr: FUNC,
        code: &code,
        plan: &plan,
    })
    .unwrap()
}

/// Returns the register and the value of the literal load at `at`.
fn loaded(stub: &Stub, at: usize) -> (u32, u64) {
    let insn = word(&stub.bytes, at).unwrap();
    assert_eq!(insn & 0xff00_0000, 0x5800_0000);
    let from = at + (insn >> 5 & 0x7_ffff) as usize * 4;
    (insn & 31, u64::from_le_bytes(stub.bytes[from..from + 8].try_into().unwrap()))
}

#[test]
fn stubs() {
    let plain = stub(&[0xa9be_7bfd, RET]);
    assert_eq!(
        [0, 16, 20].map(|at| loaded(&plain, at)),
        [(16, 0x1111), (17, 0x2222), (16, 0x3333)]
    );
    assert_eq!(word(&plain.bytes, 8), Some(0x3400_00d0)); // cbz w16, .+24: 32
    assert_eq!(word(&plain.bytes, 12), Some(NOP));
    assert_eq!((plain.original_addr, plain.patch_addr), (STUB + 32, FUNC));
    assert_eq!(plain.patch, encode_jump(FUNC, STUB).unwrap());

    let signed = stub(&[PACIASP, 0xa9be_7bfd, RET]);
    assert_eq!(word(&signed.bytes, 8), Some(0x3400_00f0)); // cbz w16, .+28: 36
    assert_eq!(word(&signed.bytes, 12), Some(AUTIASP));
    assert_eq!(word(&signed.bytes, 32), Some(PACIASP));
    assert_eq!(signed.patch_addr, FUNC + 4);
}

#[test]
fn reach() {
    let code = bytes(&[0x15ff_ffff, RET]); // b to the far end
    let plan = plan_at_entry(&code, FUNC, Some(8)).unwrap();
    let window = stub_window(&plan, &code, FUNC).unwrap();
    assert!(window.start > FUNC && window.end < FUNC + (128 << 20));
    assert_eq!(relocate(&plan, &code, FUNC, FUNC - 0x1000), Err(Refusal::OutOfReach));
    assert_eq!(relocate(&plan, &code[..2], FUNC, STUB), Err(Refusal::Changed));
    assert!(relocate(&plan, &code, FUNC, window.start).is_ok());
}

/// Builds a stub with the patch behind the first instruction.
fn behind(insns: &[u32], free: bool) -> Stub {
    let code = bytes(insns);
    let plan = if free { plan_free(&code, FUNC, None) } else { plan_patch(&code, FUNC, None) };
    build_stub(&StubParams {
        many: false,
        stub_addr: STUB,
        flag_addr: 0x1111,
        desc_addr: 0x2222,
        entry_addr: 0x3333,
        func_addr: FUNC,
        code: &code,
        plan: &plan.unwrap(),
    })
    .unwrap()
}

#[test]
fn behind_what_stays_in_front() {
    const STP: u32 = 0xa9be_7bfd; // stp x29, x30, [sp, #-32]!
    let down = behind(&[STP, NOP, RET], false);
    assert_eq!(word(&down.bytes, 8), Some(0x3400_00f0)); // cbz w16, .+28: over the stp
    assert_eq!(word(&down.bytes, 12), Some(0x9100_83ff)); // add sp, sp, #32
    assert_eq!([32, 36].map(|at| word(&down.bytes, at).unwrap()), [STP, NOP]);
    assert_eq!((down.patch_addr, &down.relocated.map[..]), (FUNC + 4, &[(4, 4)][..]));
    let again = behind(&[0xf101_001f, NOP, RET], false); // cmp x0, #64
    assert_eq!([12, 32].map(|at| word(&again.bytes, at).unwrap()), [NOP, 0xf101_001f]);
    // The cbz x0 takes two instructions in the stub.
    let free = behind(&[0xb400_0040, STP, RET], true);
    assert_eq!(word(&free.bytes, 8), Some(0x3400_0110)); // cbz w16, .+32
    assert_eq!(word(&free.bytes, 32), Some(0xb500_0040)); // cbnz x0, .+8
    assert_eq!((word(&free.bytes, 40), &free.relocated.map[..]), (Some(STP), &[(4, 8)][..]));
}
