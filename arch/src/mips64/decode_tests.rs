use super::*;
use crate::mips64::variant::{NOP, Order};

const R2: Variant = Variant { order: Order::Little, release6: false };
const R6: Variant = Variant { order: Order::Little, release6: true };
const JR: u32 = 0x03e0_0008; // jr ra

#[test]
fn pc_relative_forms() {
    use PcUse::{Branch, Call, Conditional, ConditionalCall, Other};
    let pc = 0x40_1123_4568_u64;
    let next = pc + 4;
    for (insn, want, behind) in [
        (0x0800_0001, Branch(0x40_1000_0004), Slot::Delay), // j
        (0x0fff_ffff, Call(0x40_1fff_fffc), Slot::Delay),   // jal
        (0x7400_0001, Other, Slot::Delay),                  // jalx
        (0x1000_0002, Branch(next + 8), Slot::Delay),       // b
        (0x1085_ffff, Conditional(next - 4), Slot::Delay),  // beq a0, a1
        (0x1485_8000, Conditional(next - 0x2_0000), Slot::Delay),
        (0x1880_7fff, Conditional(next + 0x1_fffc), Slot::Delay), // blez
        (0x1c80_0001, Conditional(next + 4), Slot::Delay),        // bgtz
        (0x0480_0001, Conditional(next + 4), Slot::Delay),        // bltz
        (0x0481_0001, Conditional(next + 4), Slot::Delay),        // bgez
        (0x0482_0001, Conditional(next + 4), Slot::Likely),       // bltzl
        (0x0483_0001, Conditional(next + 4), Slot::Likely),       // bgezl
        (0x0490_0001, ConditionalCall(next + 4), Slot::Delay),    // bltzal
        (0x0491_0001, ConditionalCall(next + 4), Slot::Delay),    // bgezal
        (0x0411_0001, Call(next + 4), Slot::Delay),               // bal
        (0x0410_0001, ConditionalCall(next + 4), Slot::Delay),    // bltzal zero
        (0x0492_0001, ConditionalCall(next + 4), Slot::Likely),   // bltzall
        (0x0493_0001, ConditionalCall(next + 4), Slot::Likely),   // bgezall
        (0x041c_0001, Conditional(next + 4), Slot::Delay),        // bposge32
        (0x5085_0001, Conditional(next + 4), Slot::Likely),       // beql
        (0x5485_0001, Conditional(next + 4), Slot::Likely),       // bnel
        (0x5880_0001, Conditional(next + 4), Slot::Likely),       // blezl
        (0x5c80_0001, Conditional(next + 4), Slot::Likely),       // bgtzl
        (0x4500_0001, Conditional(next + 4), Slot::Delay),        // bc1f
        (0x4505_0001, Conditional(next + 4), Slot::Delay),        // bc1t $fcc1
        (0x4502_0001, Conditional(next + 4), Slot::Likely),       // bc1fl
        (0x4503_0001, Conditional(next + 4), Slot::Likely),       // bc1tl
        (0x4521_0001, Conditional(next + 4), Slot::Delay),        // bc1any2t
        (0x4541_0001, Conditional(next + 4), Slot::Delay),        // bc1any4t
        (0x4560_0001, Conditional(next + 4), Slot::Delay),        // bz.v
        (0x45e0_0001, Conditional(next + 4), Slot::Delay),        // bnz.v
        (0x4700_0001, Conditional(next + 4), Slot::Delay),        // bz.b
        (0x47e0_0001, Conditional(next + 4), Slot::Delay),        // bnz.d
        (0x4900_0001, Conditional(next + 4), Slot::Delay),        // bc2f
        (0x4902_0001, Conditional(next + 4), Slot::Likely),       // bc2fl
        (0xc880_0001, Other, Slot::Delay),                        // bbit0, lwc2
    ] {
        assert_eq!(pc_use(R2, insn, pc), Some(want), "{insn:08x}");
        assert_eq!(slot(R2, insn), behind, "{insn:08x}");
        assert!(is_transfer(R2, insn));
    }
    // jr, jalr, jalr.hb
    for insn in [JR, 0x0320_f809, 0x0320_fc09] {
        assert_eq!((pc_use(R2, insn, pc), slot(R2, insn)), (None, Slot::Delay));
        assert!(is_transfer(R2, insn));
    }
    for insn in [
        NOP,
        0x67bd_ffe0,
        0xffbf_0018,
        0x2402_0005,
        0x2084_0001,
        0x6084_0001,
        0xec40_0001,
        0x3c1c_0001,
        12,
    ] {
        assert_eq!((pc_use(R2, insn, pc), slot(R2, insn)), (None, Slot::None), "{insn:08x}");
        assert!(!is_transfer(R2, insn));
    }
}

#[test]
fn forms_of_release_6() {
    use PcUse::{Address, Branch, Call, Conditional, Literal, Other};
    let pc = 0x40_1123_456c_u64;
    let next = pc + 4;
    for (insn, want, behind) in [
        (0xc800_0001, Branch(next + 4), Slot::None), // bc
        (0xcbff_ffff, Branch(next - 4), Slot::None),
        (0xe800_0001, Call(next + 4), Slot::None), // balc
        (0xd880_0001, Conditional(next + 4), Slot::Forbidden), // beqzc a0
        (0xf89f_ffff, Conditional(next - 4), Slot::Forbidden), // bnezc a0
        (0x2085_0001, Conditional(next + 4), Slot::Forbidden), // beqc a0, a1
        (0x20a4_0001, Conditional(next + 4), Slot::Forbidden), // bovc a1, a0
        (0x6085_0001, Conditional(next + 4), Slot::Forbidden), // bnec
        (0x60a4_0001, Conditional(next + 4), Slot::Forbidden), // bnvc
        (0x2004_0001, Other, Slot::Forbidden),     // beqzalc
        (0x6004_0001, Other, Slot::Forbidden),     // bnezalc
        (0x5804_0001, Conditional(next + 4), Slot::Forbidden), // blezc
        (0x5884_0001, Conditional(next + 4), Slot::Forbidden), // bgezc
        (0x5885_0001, Conditional(next + 4), Slot::Forbidden), // bgec
        (0x5c04_0001, Conditional(next + 4), Slot::Forbidden), // bgtzc
        (0x1885_0001, Conditional(next + 4), Slot::Forbidden), // bgeuc
        (0x1c85_0001, Conditional(next + 4), Slot::Forbidden), // bltuc
        (0x1804_0001, Other, Slot::Forbidden),     // blezalc
        (0x1c84_0001, Other, Slot::Forbidden),     // bltzalc
        (0x1880_0001, Conditional(next + 4), Slot::Delay), // blez
        (0x4520_0001, Conditional(next + 4), Slot::Delay), // bc1eqz
        (0x45a0_0001, Conditional(next + 4), Slot::Delay), // bc1nez
        (0x4920_0001, Conditional(next + 4), Slot::Delay), // bc2eqz
        (0x0411_0001, Call(next + 4), Slot::Delay), // bal
        (0xec80_0001, Address(pc + 4), Slot::None), // addiupc
        (0xec87_ffff, Address(pc - 4), Slot::None),
        (0xec88_0001, Literal(pc + 4), Slot::None), // lwpc
        (0xec97_ffff, Literal(pc - 4), Slot::None), // lwupc
        (0xec98_0001, Literal(pc + 4), Slot::None), // ldpc: pc & !7 + 8
        (0xec9b_ffff, Literal(pc - 12), Slot::None),
        (0xec9e_0001, Address(pc + 0x1_0000), Slot::None), // auipc
        (0xec9f_ffff, Address(0x40_1122_0000), Slot::None), // aluipc
        (0xec9c_0001, Other, Slot::None),                  // reserved
    ] {
        assert_eq!(pc_use(R6, insn, pc), Some(want), "{insn:08x}");
        assert_eq!(slot(R6, insn), behind, "{insn:08x}");
    }
    // Likely branches are gone; jic and jialc go by register; daui.
    for insn in [0x5085_0001, 0x0482_0001, 0x4502_0001, 0xd804_0000, 0xf804_0000, 0x7484_0001] {
        assert_eq!((pc_use(R6, insn, pc), slot(R6, insn)), (None, Slot::None), "{insn:08x}");
    }
    assert_eq!(compact_register_jump(R6, 0xd81f_0000), Some((31, false)));
    assert_eq!(compact_register_jump(R6, 0xf819_0000), Some((25, true)));
    assert_eq!(compact_register_jump(R2, 0xf819_0000), None);
}
