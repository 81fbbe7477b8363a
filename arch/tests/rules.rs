//! Compares compiled rules with the tables that they come from, over every function of every module of this
//! process.
#![cfg(target_arch = "x86_64")]

mod common;

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EndianSlice, LittleEndian, Register, RegisterRule,
    UnwindSection,
};
use prof_arch::unwind::{CfiContext, CfiModule, FullStep, compile, function_range, step_full};
use prof_arch::x86_64::rule::Form;
use prof_arch::x86_64::{FullRegs, Regs, Rule, Step};

#[derive(Debug, Clone, PartialEq, Eq)]
struct Big;

impl<T: gimli::ReaderOffset> gimli::UnwindContextStorage<T> for Big {
    type Rules = [(Register, RegisterRule<T>); 192];
    type Stack = [gimli::UnwindTableRow<T, Self>; 8];
}

type Row = gimli::UnwindTableRow<usize, Big>;

/// Passes on every row of every function, with the section that holds its expressions, by a linear walk
/// through the section.
fn rows(
    cfi: &CfiModule<'static>,
    mut each: impl FnMut(&Row, &EhFrame<EndianSlice<'static, LittleEndian>>),
) {
    let section = EhFrame::new(cfi.eh_frame, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(cfi.eh_frame_addr);
    let mut entries = section.entries(&bases);
    let mut ctx = Box::new(gimli::UnwindContext::<usize, Big>::new_in());
    while let Some(entry) = entries.next().unwrap() {
        let gimli::CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(EhFrame::cie_from_offset).unwrap();
        let mut table = fde.rows(&section, &bases, &mut ctx).unwrap();
        while let Some(row) = table.next_row().unwrap() {
            if row.start_address() < row.end_address() {
                each(row, &section);
            }
        }
    }
}

/// Returns the form of a row's rule, if it is a plain one.
fn expected(row: &Row) -> Option<Form> {
    let fp_slot = match row.register(Register(6)) {
        None | Some(RegisterRule::SameValue | RegisterRule::Undefined) => None,
        Some(RegisterRule::Offset(slot)) => Some(slot as i32),
        Some(_) => return None,
    };
    match (row.register(Register(16)), row.cfa()) {
        (Some(RegisterRule::Undefined), _) => Some(Form::End),
        (Some(RegisterRule::Offset(-8)), CfaRule::RegisterAndOffset { register, offset }) => {
            let cfa_off = *offset as i32;
            match register.0 {
                7 => Some(Form::CfaSp { cfa_off, ra_slot: -8, fp_slot }),
                6 => Some(Form::CfaFp { cfa_off, ra_slot: -8, fp_slot }),
                _ => Some(Form::Complex),
            }
        }
        _ => None,
    }
}

#[test]
fn rules_are_what_the_tables_say() {
    for module in common::modules() {
        let mut ctx = CfiContext::new();
        let (mut total, mut plain, mut complex, mut other) = (0, 0, 0, 0);
        rows(&module.cfi, |row, _| {
            let (start, end) = (row.start_address(), row.end_address());
            for pc in [start, start + (end - start) / 2, end - 1] {
                let rule: Rule = compile(&module.cfi, pc, &mut ctx);
                total += 1;
                match expected(row) {
                    Some(form) => {
                        assert_eq!(rule.form(), form, "{} {pc:#x}", module.name);
                        plain += 1;
                    }
                    None => {
                        let known = matches!(
                            rule.form(),
                            Form::CfaSp { .. }
                                | Form::CfaFp { .. }
                                | Form::CfaFpDeref { .. }
                                | Form::Signal
                                | Form::Complex
                        );
                        assert!(known, "{} {pc:#x} {rule:?}", module.name);
                        other += 1;
                    }
                }
                complex += i32::from(rule == Rule::COMPLEX);
            }
        });
        println!(
            "{:40} {total} addresses, {plain} plain, {other} other, {complex} complex",
            module.name
        );
        assert!(total > 0 && complex * 100 <= total, "{}: {complex} of {total}", module.name);
    }
}

/// Returns a word for every address: always an address some way above it, as on a stack.
fn memory(address: u64) -> Option<u64> {
    Some(
        address
            .wrapping_add(0x10_0000)
            .wrapping_add(address.wrapping_mul(0x9e37_79b9) >> 20 & 0xfff8),
    )
}

#[test]
fn the_fast_step_and_the_full_step_agree() {
    let mut full = FullRegs { pc: 0, gpr: [0; 16] };
    for (slot, n) in full.gpr.iter_mut().zip(0..) {
        *slot = 0x7fff_0000_1000 + n * 0x1_0010;
    }
    let mut signals = 0;
    for module in common::modules() {
        let mut ctx = CfiContext::new();
        rows(&module.cfi, |row, _| {
            let (start, end) = (row.start_address(), row.end_address());
            for pc in [start, end - 1] {
                full.pc = pc;
                let rule: Rule = compile(&module.cfi, pc, &mut ctx);
                let fast = rule.step(&Regs::from(&full), &mut memory);
                let slow = step_full(&module.cfi, &full, pc, &mut ctx, &mut memory);
                match (fast, slow) {
                    (Step::Next(fast), FullStep::Next { regs, signal }) => {
                        assert_eq!(fast, Regs::from(&regs), "{} {pc:#x} {rule:?}", module.name);
                        assert_eq!(signal, rule.is_signal());
                        if signal {
                            signals += 1;
                            let all = rule.step_all(&full, &mut memory);
                            assert_eq!(all, FullStep::Next { regs, signal });
                        }
                    }
                    (Step::End, FullStep::End) | (Step::Cut, FullStep::Cut) => {}
                    (Step::NeedFull, FullStep::Next { .. } | FullStep::Cut) => {}
                    different => panic!("{} {pc:#x} {rule:?}: {different:x?}", module.name),
                }
            }
        });
    }
    assert!(signals > 0, "no signal frame seen");
}

#[test]
fn functions_and_the_space_between_them() {
    for module in common::modules() {
        let mut ctx = CfiContext::new();
        assert_eq!(compile::<Rule>(&module.cfi, 0, &mut ctx), Rule::UNKNOWN);
        assert_eq!(compile::<Rule>(&module.cfi, u64::MAX, &mut ctx), Rule::UNKNOWN);
        // Without the search table the results must be equal.
        let linear = CfiModule { hdr: &[], ..module.cfi };
        let step =
            module.text.iter().map(|r| (r.end - r.start) as usize / 97).max().unwrap().max(1);
        for pc in module.text.iter().flat_map(|r| r.clone().step_by(step)) {
            let rule: Rule = compile(&module.cfi, pc, &mut ctx);
            assert_eq!(compile::<Rule>(&linear, pc, &mut ctx), rule, "{} {pc:#x}", module.name);
            let range = function_range::<Rule>(&module.cfi, pc);
            assert_eq!(range.is_some(), rule != Rule::UNKNOWN);
            assert!(range.is_none_or(|r| r.contains(&pc)));
        }
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 11) as usize % limit.max(1)
    }
}

/// Calls all functions on call frame information that may be damaged.
fn try_all(cfi: &CfiModule<'_>, pc: u64, ctx: &mut CfiContext) {
    let rule: Rule = compile(cfi, pc, ctx);
    let regs = FullRegs { pc, gpr: [0x7fff_0000_1000; 16] };
    let _ = rule.step(&Regs::from(&regs), &mut memory);
    let _ = rule.step_all(&regs, &mut memory);
    let _ = step_full(cfi, &regs, pc, ctx, &mut memory);
    let _ = function_range::<Rule>(cfi, pc);
}

#[test]
fn damaged_tables_do_no_harm() {
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut ctx = CfiContext::new();
    for module in common::modules() {
        let text = module.text[0].clone();
        // A part of the real section, in which some bytes are changed again and again.
        let eh_len = module.cfi.eh_frame.len().min(6000);
        let (mut eh, mut hdr) = (module.cfi.eh_frame[..eh_len].to_vec(), module.cfi.hdr.to_vec());
        let (eh_good, hdr_good) = (eh.clone(), hdr.clone());
        for round in 0..6000 {
            for _ in 0..1 + random.below(4) {
                let at = random.below(eh.len());
                eh[at] = random.next() as u8;
                if round % 4 == 0 {
                    let at = random.below(if round % 8 == 0 { 12 } else { hdr.len() });
                    hdr[at] = random.next() as u8;
                }
            }
            let cut = if round % 5 == 0 { random.below(hdr.len()) } else { hdr.len() };
            let hdr_bytes: &[u8] = if round % 3 == 0 { &[] } else { &hdr[..cut] };
            let cfi = CfiModule { hdr: hdr_bytes, eh_frame: &eh, ..module.cfi };
            for _ in 0..4 {
                let pc = text.start + random.next() % (text.end - text.start).min(40_000);
                try_all(&cfi, pc, &mut ctx);
            }
            if round % 64 == 63 {
                eh.copy_from_slice(&eh_good);
                hdr.copy_from_slice(&hdr_good);
            }
        }
    }
}

#[test]
fn random_tables_do_no_harm() {
    let mut random = Random(0xfeed_5678_9abc_def1);
    let mut ctx = CfiContext::new();
    for _ in 0..20_000 {
        let len = random.below(200);
        let mut bytes: Vec<u8> = (0..len).map(|_| (random.next() >> 24) as u8).collect();
        let hdr_len = random.below(64);
        let mut hdr: Vec<u8> = (0..hdr_len).map(|_| (random.next() >> 24) as u8).collect();
        if let Some(head) = hdr.first_chunk_mut() {
            *head = [1, 0x1b, 0x03, 0x3b];
        }
        if let Some(length) = bytes.first_chunk_mut() {
            *length = 40_u32.to_le_bytes();
        }
        let base = if random.below(2) == 0 { random.next() } else { 0x1000 };
        let cfi = CfiModule {
            hdr: &hdr,
            hdr_addr: base.wrapping_sub(64),
            eh_frame: &bytes,
            eh_frame_addr: base,
            text_addr: base,
            data_addr: base,
            ..CfiModule::default()
        };
        let _ = prof_arch::unwind::eh_frame_address(&hdr, base);
        try_all(&cfi, random.next(), &mut ctx);
        try_all(&cfi, base, &mut ctx);
    }
}
