use super::*;
use crate::mips64::insn::{plan_at_entry_in, plan_patch_in};
use crate::mips64::jump::decode_jump_in;
use crate::mips64::variant::Order;

const FUNC: u64 = 0x1000_0000;
const STUB: u64 = 0x1100_0000;
const R2: Variant = Variant { order: Order::Little, release6: false };
const R6: Variant = Variant { order: Order::Little, release6: true };
const JR: u32 = 0x03e0_0008;
const JALR_ZERO_RA: u32 = 0x03e0_0009;
const LI: u32 = 0x2402_0005;
const SD: u32 = 0xffbf_0018;

fn code(variant: Variant, insns: &[u32]) -> Vec<u8> {
    insns.iter().flat_map(|i| variant.order.bytes4(*i)).collect()
}

/// Moves a function that begins with these instructions; returns the result without the load of `$t9`.
fn moved(variant: Variant, insns: &[u32]) -> (Vec<u32>, Relocated) {
    let mut all = insns.to_vec();
    all.resize(0x40, NOP);
    let both = [Order::Little, Order::Big].map(|order| {
        let variant = Variant { order, ..variant };
        let bytes = code(variant, &all);
        let plan = plan_at_entry_in(variant, &bytes, FUNC, Some(bytes.len() as u64)).unwrap();
        let r = relocate_in(variant, &plan, &bytes, FUNC, STUB, true).unwrap();
        let count = r.bytes.len() / 4;
        let words: Vec<u32> =
            (0..count).map(|n| variant.order.word4(&r.bytes, n * 4).unwrap()).collect();
        (words, r)
    });
    let [(words, r), (big, _)] = both;
    assert_eq!(words, big);
    assert_eq!(words[..2], [0x3c19_1000, 0x3739_0000]); // li t9, FUNC
    (words[2..].to_vec(), r)
}

/// Encodes `j` to an offset in the function.
fn j(offset: u64) -> u32 {
    encode_j(STUB, FUNC + offset).unwrap()
}

/// Encodes `li $ra` of an offset in the function.
fn link(offset: u32) -> [u32; 2] {
    [0x3c1f_1000, 0x37ff_0000 | offset]
}

#[test]
fn plain_instructions_and_jumps() {
    let ra8 = link(8);
    let ra12 = link(12);
    let cases: &[(&[u32], &[u32])] = &[
        (&[SD, LI], &[SD, LI, j(8), NOP]),
        // lui gp; daddu gp, gp, t9: as they are.
        (&[0x3c1c_0002, 0x0399_e02d], &[0x3c1c_0002, 0x0399_e02d, j(8), NOP]),
        (&[JR, LI], &[JALR_ZERO_RA, LI]),
        (&[LI, JR, SD], &[LI, JALR_ZERO_RA, SD]),
        (&[0x0800_0010, LI], &[j(64), LI]), // j
        (&[0x1000_0003, LI], &[j(16), LI]), // b
        (&[SD, 0x1000_0003, LI], &[SD, j(20), LI]),
        (&[0x0c00_0010, LI], &[ra8[0], ra8[1], j(64), LI]), // jal
        (&[0x0411_0003, LI], &[ra8[0], ra8[1], j(16), LI]), // bal
        (&[0x0411_0001, LI], &[ra8[0], ra8[1], j(8), LI]),  // bal .+8
        (&[SD, 0x0411_0003, LI], &[SD, ra12[0], ra12[1], j(20), LI]),
        (&[0x0320_f809, LI], &[ra8[0], ra8[1], 0x0320_0009, LI]), // jalr t9
        (&[SD, 0x0320_fc09, LI], &[SD, ra12[0], ra12[1], 0x0320_0409, LI]), // jalr.hb
    ];
    for (insns, want) in cases {
        let (words, relocated) = moved(R2, insns);
        assert_eq!(&words, want, "{insns:x?}: {words:x?}");
        assert!(!relocated.has_call);
        assert_eq!(relocated.map[0], (0, 8));
    }
    // jalr t1, t9 has its own return address register.
    let (words, _) = moved(R2, &[0x0320_6809, LI]);
    assert_eq!(words, [0x3c0d_1000, 0x35ad_0008, 0x0320_0009, LI]);
}

#[test]
fn branches() {
    // Each branch, moved, and its target in the function.
    let conditional = [
        0x1085_0003,
        0x1485_0003,
        0x1880_0003,
        0x1c80_0003,
        0x0480_0003,
        0x0481_0003,
        0x0482_0003,
        0x0483_0003,
        0x041c_0003,
        0x5085_0003,
        0x5485_0003,
        0x5880_0003,
        0x5c80_0003,
        0x4500_0003,
        0x4501_0003,
        0x4502_0003,
        0x4503_0003,
        0x4521_0003,
        0x4560_0003,
        0x47e0_0003,
        0x4901_0003,
    ];
    for insn in conditional {
        let (words, r) = moved(R2, &[insn, LI]);
        assert_eq!(words, [insn & !0xffff | 3, LI, j(8), NOP, j(16), NOP], "{insn:08x}");
        assert_eq!(r.map, [(0, 8)]);
        let (words, r) = moved(R2, &[SD, insn, LI]);
        assert_eq!(words, [SD, insn & !0xffff | 3, LI, j(12), NOP, j(20), NOP], "{insn:08x}");
        assert_eq!(r.map, [(0, 8), (4, 12)]);
    }
    for (insn, plain) in [
        (0x0490_0003, 0x0480_0003),
        (0x0491_0003, 0x0481_0003),
        (0x0492_0003, 0x0482_0003),
        (0x0493_0003, 0x0483_0003),
    ] {
        let (words, r) = moved(R2, &[insn, LI]);
        let [a, b] = link(8);
        assert_eq!(words, [a, b, plain, LI, j(8), NOP, j(16), NOP], "{insn:08x}");
        assert!(!r.has_call);
    }
}

#[test]
fn release_6() {
    let ra8 = link(8);
    let jump = |offset: u64| [j(offset), NOP];
    let cases: &[(&[u32], Vec<u32>, bool)] = &[
        (&[LI, 0xc800_0003], [&[LI][..], &jump(20)].concat(), false), // bc
        (&[LI, 0xe800_0003], [&[LI][..], &ra8, &jump(20)].concat(), false), // balc
        (&[0xe800_0003, LI], [&[j(16) | JAL, NOP, LI][..], &jump(8)].concat(), true),
        (&[LI, 0xd81f_0000], [LI, 0xd81f_0000].to_vec(), false), // jic ra
        (&[LI, 0xf819_0010], [&[LI][..], &ra8, &[0xd819_0010]].concat(), false), // jialc t9
        (&[0xf819_0010, LI], [&[0xf819_0010, LI][..], &jump(8)].concat(), true),
        (
            &[0xd880_0003, LI], // beqzc a0
            [&[0xd880_0004, NOP, LI][..], &jump(8), &jump(16)].concat(),
            false,
        ),
        (
            &[LI, 0x2085_0003], // beqc a0, a1
            [&[LI, 0x2085_0003, NOP][..], &jump(8), &jump(20)].concat(),
            false,
        ),
        (
            &[0x4520_0003, LI], // bc1eqz
            [&[0x4520_0003, LI][..], &jump(8), &jump(16)].concat(),
            false,
        ),
        (&[0xec80_0004, LI], [&[0x3c04_1000, 0x3484_0010, LI][..], &jump(8)].concat(), false),
        (&[0xec00_0004, LI], [&[NOP, LI][..], &jump(8)].concat(), false), // addiupc zero
        (
            &[0xec88_0004, LI], // lwpc a0
            [&[0x3c04_1000, 0x3484_0010, 0x8c84_0000, LI][..], &jump(8)].concat(),
            false,
        ),
        (
            &[0xec90_0004, LI], // lwupc a0
            [&[0x3c04_1000, 0x3484_0010, 0x9c84_0000, LI][..], &jump(8)].concat(),
            false,
        ),
        (
            &[LI, 0xec98_0002], // ldpc a0
            [&[LI, 0x3c04_1000, 0x3484_0010, 0xdc84_0000][..], &jump(8)].concat(),
            false,
        ),
        (
            &[0xec9e_0001, LI], // auipc a0
            [&[0x3c04_1001, 0x3484_0000, LI][..], &jump(8)].concat(),
            false,
        ),
        (
            &[LI, 0xec9f_0001], // aluipc a0
            [&[LI, 0x3c04_1001, 0x3484_0000][..], &jump(8)].concat(),
            false,
        ),
    ];
    for (insns, want, has_call) in cases {
        let (words, relocated) = moved(R6, insns);
        assert_eq!(&words, want, "{insns:x?}: {words:x?}");
        assert_eq!(relocated.has_call, *has_call, "{insns:x?}");
    }
}

#[test]
fn stubs() {
    for order in [Order::Little, Order::Big] {
        let variant = Variant { order, release6: false };
        let bytes = code(variant, &[SD, LI, JR, NOP]);
        let plan = plan_at_entry_in(variant, &bytes, FUNC, Some(16)).unwrap();
        let params = StubParams {
            many: false,
            stub_addr: STUB,
            flag_addr: 0x11_2222_3333,
            desc_addr: 0x4444_5555,
            entry_addr: 0x8123_4567_89ab_cdef,
            func_addr: FUNC,
            code: &bytes,
            plan: &plan,
        };
        let stub = build_stub_in(variant, &params).unwrap();
        let words: Vec<u32> = (0..).map_while(|n| order.word4(&stub.bytes, n * 4)).collect();
        assert_eq!(words[..4], [0x3c01_0011, 0x3421_2222, 0x0001_0c38, 0x3421_3333]);
        assert_eq!(words[4..7], [0x8c21_0000, 0x1020_000b, NOP]); // lw; beqz at, original
        assert_eq!(words[7..9], [0x3c18_4444, 0x3718_5555]);
        assert_eq!(words[9..15].len(), 6);
        assert_eq!(words[15..17], [0x0320_0009, NOP]);
        assert_eq!(stub.original_addr, STUB + 17 * 4);
        assert_eq!(words[17..19], [0x3c19_1000, 0x3739_0000]);
        assert_eq!(words[19..], [SD, LI, j(8), NOP]);
        assert_eq!(decode_jump_in(order, FUNC, &stub.patch), Some(STUB));
        assert_eq!(stub.patch_addr, FUNC);
        let (func, new) = (FUNC + 4, stub.original_addr + 12);
        assert_eq!(stub.relocated.moved_pc(FUNC, stub.original_addr, func), Some(new));
    }
}

#[test]
fn reach() {
    // A branch across the edge of a region.
    let bytes = code(R2, &[0x1080_0010, NOP, JR, NOP]);
    let func = 0x1fff_fff0;
    let plan = plan_at_entry_in(R2, &bytes, func, Some(16)).unwrap();
    let window = stub_window(&plan, &bytes, func).unwrap();
    assert_eq!(window, 0x1000_0000..0x1fff_0000);
    let far = relocate_in(R2, &plan, &bytes, func, window.start, true);
    assert_eq!(far, Err(Refusal::OutOfReach));
    let plan = plan_at_entry_in(R2, &bytes, FUNC, Some(16)).unwrap();
    assert_eq!(relocate_in(R2, &plan, &bytes, FUNC, 0x2000_0000, true), Err(Refusal::OutOfReach));
    assert_eq!(relocate_in(R2, &plan, &bytes[..6], FUNC, STUB, true), Err(Refusal::Changed));
    assert_eq!(stub_window(&plan, &bytes[..6], FUNC), Err(Refusal::Changed));
    // bgezal ra: the register that it tests would be changed before.
    let own = code(R2, &[0x07f1_0010, NOP, JR, NOP]);
    let plan = plan_at_entry_in(R2, &own, FUNC, Some(16)).unwrap();
    assert_eq!(relocate_in(R2, &plan, &own, FUNC, STUB, true), Err(Refusal::CannotMove));
}

#[test]
fn the_largest_stub_fits() {
    let far = 0x8123_4567_89ab_cdef;
    let bytes = code(R2, &[SD, 0x0491_0003, LI, NOP, NOP, NOP]);
    let func = 0xff_f7fc_0000;
    let plan = plan_at_entry_in(R2, &bytes, func, Some(24)).unwrap();
    let stub = build_stub_in(
        R2,
        &StubParams {
            many: false,
            stub_addr: 0xff_f000_0000,
            flag_addr: far,
            desc_addr: far,
            entry_addr: far,
            func_addr: func,
            code: &bytes,
            plan: &plan,
        },
    )
    .unwrap();
    assert!(stub.bytes.len() <= 192, "{}", stub.bytes.len());
}

#[test]
fn stubs_behind_what_stays_in_front() {
    const DADDIU: u32 = 0x67bd_ffe0; // daddiu sp, sp, -32
    for order in [Order::Little, Order::Big] {
        let variant = Variant { order, release6: false };
        let bytes = code(variant, &[DADDIU, SD, LI, JR, NOP]);
        let plan = plan_patch_in(variant, &bytes, FUNC, Some(20)).unwrap();
        let build = |many| {
            let params = StubParams {
                many,
                stub_addr: STUB,
                flag_addr: 0x11_2222_3333,
                desc_addr: 0x4444_5555,
                entry_addr: 0x6666_7777,
                func_addr: FUNC,
                code: &bytes,
                plan: &plan,
            };
            build_stub_in(variant, &params).unwrap()
        };
        let words = |stub: &Stub| -> Vec<u32> {
            (0..).map_while(|n| order.word4(&stub.bytes, n * 4)).collect()
        };
        let (plain, many) = (build(false), build(true));
        let list = words(&plain);
        assert_eq!((list[0], list[6]), (0x67bd_0020, 0x1020_0007)); // daddiu sp, sp, 32; beqz at
        let original = (plain.original_addr - STUB) as usize / 4;
        assert_eq!(list[original..original + 2], [0x3c19_1000, 0x3739_0000]); // li t9
        assert_eq!(list[original + 2..], [DADDIU, SD, LI, j(12), NOP]);
        assert_eq!((plain.patch_addr, plan.lead), (FUNC + 4, crate::patch::Lead::Down(32)));
        // Callers of a named function may rely on these registers.
        let list = words(&many);
        assert_eq!(list[8..11], [0x67bd_ffe0, 0xffb8_0000, 0xffb9_0008]);
        let original = (many.original_addr - STUB) as usize / 4;
        assert_eq!(list[original..], [DADDIU, SD, LI, j(12), NOP]);
    }
}
