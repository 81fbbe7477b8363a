//! The oracle for interrupted instructions on ARM. The tables of glibc's own unwinder (.ARM.exidx) describe calls: at a
//! function's first and last instructions they lead to the caller's caller, or anywhere. The debug information
//! (.debug_frame) describes every instruction. So the program's own frames are computed from that, by gimli, with the
//! registers and the stack that the handler has noted.

use super::hex;
use common::Target;
use gimli::{
    BaseAddresses, CfaRule, DebugFrame, EndianSlice, LittleEndian, Register, RegisterRule,
    UnwindContext, UnwindSection,
};
use goblin::elf::{Elf, header::ET_DYN};
use std::path::Path;

/// Numbers of registers, in the ABI and in DWARF.
const SP: usize = 13;
const LR: usize = 14;
const PC: usize = 15;

/// Number of frames in a noted stack before the interrupted one: the handler and the signal frame.
const INTERRUPTED: usize = 2;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Storage;

impl<T: gimli::ReaderOffset> gimli::UnwindContextStorage<T> for Storage {
    type Rules = [(Register, RegisterRule<T>); 64];
    type Stack = [gimli::UnwindTableRow<T, Self>; 8];
}

/// Registers and stack at an interrupted instruction.
struct Context {
    registers: [u64; 16],
    base: u64,
    stack: Vec<u64>,
}

impl Context {
    fn parse(line: &str) -> Self {
        let words: Vec<u64> = line.split_whitespace().map(hex).collect();
        let registers: [u64; 16] = words[..16].try_into().expect("16 registers");
        Self { registers, base: registers[SP], stack: words[16..].to_vec() }
    }

    fn word(&self, address: u64) -> u64 {
        let index = address.wrapping_sub(self.base) / 4;
        let word = usize::try_from(index).ok().and_then(|i| self.stack.get(i));
        *word.unwrap_or_else(|| panic!("{address:x} is outside of the stack that was noted"))
    }
}

/// The program's own tables, and its load bias.
struct Tables<'a> {
    frame: DebugFrame<EndianSlice<'a, LittleEndian>>,
    bias: u64,
    rows: Box<UnwindContext<usize, Storage>>,
}

impl Tables<'_> {
    /// Steps to the caller; returns false if no table describes this instruction.
    fn step(&mut self, context: &mut Context, lookup: u64) -> bool {
        let found = self.frame.unwind_info_for_address(
            &BaseAddresses::default(),
            &mut self.rows,
            lookup.wrapping_sub(self.bias),
            DebugFrame::cie_from_offset,
        );
        let row = match found {
            Ok(row) => row.clone(),
            Err(gimli::Error::NoUnwindInfoForAddress) => return false,
            Err(e) => panic!("{lookup:x}: {e}"),
        };
        let CfaRule::RegisterAndOffset { register, offset } = row.cfa() else {
            panic!("{lookup:x}: {:?}", row.cfa());
        };
        let cfa = context.registers[usize::from(register.0)].wrapping_add_signed(*offset);
        for number in 0..=LR {
            match row.register(Register(number as u16)) {
                None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => {}
                Some(RegisterRule::Offset(at)) => {
                    context.registers[number] = context.word(cfa.wrapping_add_signed(at));
                }
                Some(rule) => panic!("{lookup:x}: r{number} is {rule:?}"),
            }
        }
        context.registers[SP] = cfa;
        context.registers[PC] = context.registers[LR] & !1;
        true
    }

    /// Returns the return addresses from an interrupted instruction outwards, up to the first outside of the tables;
    /// none if the instruction itself is outside.
    fn callers(&mut self, mut context: Context) -> Vec<u64> {
        let mut all = Vec::new();
        let mut lookup = context.registers[PC];
        while self.step(&mut context, lookup) {
            all.push(context.registers[PC]);
            lookup = context.registers[PC].wrapping_sub(1);
        }
        all
    }
}

/// Returns the load bias of the program.
fn bias(elf: &Elf<'_>, program: &Path, target: &Target) -> u64 {
    if elf.header.e_type != ET_DYN {
        return 0;
    }
    let maps = target.proc("maps");
    let name = program.to_str().expect("a path of ours");
    let first = maps.lines().find(|l| l.ends_with(name)).expect("the program's mapping");
    hex(first.split('-').next().expect("an address"))
}

/// Replaces glibc's callers by those of the debug information where the program's own code was interrupted.
pub fn correct(oracle: &mut [(u64, Vec<u64>)], contexts: &Path, program: &Path, target: &Target) {
    let image = std::fs::read(program).expect("the program");
    let elf = Elf::parse(&image).expect("an ELF file");
    let sections = elf.section_headers.iter();
    let mut named = sections.filter(|s| elf.shdr_strtab.get_at(s.sh_name) == Some(".debug_frame"));
    let section = named.next().expect("test programs have debug information");
    let section = &image[section.file_range().expect("it is in the file")];
    let mut frame = DebugFrame::new(section, LittleEndian);
    frame.set_address_size(4);
    let bias = bias(&elf, program, target);
    let mut tables = Tables { frame, bias, rows: Box::new(UnwindContext::new_in()) };

    let noted = std::fs::read_to_string(contexts).expect("the contexts");
    assert_eq!(noted.lines().count(), oracle.len(), "a context for each sample");
    let mut corrected = 0;
    for ((_, stack), line) in oracle.iter_mut().zip(noted.lines()) {
        let context = Context::parse(line);
        let pc = context.registers[PC];
        // glibc stops at code without a table, and at a function's first instruction uses the function before.
        let same = stack.get(INTERRUPTED).is_none_or(|noted| *noted == pc);
        assert!(same, "{pc:x} was interrupted, not {:x}", stack[INTERRUPTED]);
        assert!(stack.len() >= INTERRUPTED, "handler and signal frame of {pc:x}: {stack:x?}");
        let callers = tables.callers(context);
        if !callers.is_empty() {
            corrected += 1;
            stack.truncate(INTERRUPTED);
            stack.push(pc);
            stack.extend(callers);
        }
    }
    assert!(corrected * 100 >= oracle.len(), "only {corrected} of {} in own code", oracle.len());
}
