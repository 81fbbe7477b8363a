//! Compares with a disassembler, over samples of all instruction words, which ARM and Thumb instructions use
//! their own address. No instruction that uses it may be taken for one that does not; the opposite error only
//! makes prof refuse a function.
#![cfg(feature = "relocate")]

use prof_arch::arm::insn::{PcUse, State, pc_use_arm, pc_use_thumb, thumb_len};
use yaxpeax_arch::{Decoder, U8Reader};
use yaxpeax_arm::armv7::{InstDecoder, Instruction, Operand};

const PC: u32 = 0x10_0000;

/// Returns the instruction; `None` if the disassembler does not know it, or panics.
fn disassemble(decoder: &InstDecoder, bytes: &[u8]) -> Option<Instruction> {
    let decode = || decoder.decode(&mut U8Reader::new(bytes)).ok();
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(decode)).ok().flatten()
}

/// Runs `f` and shows none of its panics.
fn quietly(f: impl FnOnce()) {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let shown = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    f();
    std::panic::set_hook(shown);
}

/// Returns the distance of a branch.
fn distance(insn: &Instruction) -> Option<i32> {
    insn.operands.iter().find_map(|o| match o {
        Operand::BranchOffset(n) => Some(n << 2),
        Operand::BranchThumbOffset(n) => Some(n << 1),
        _ => None,
    })
}

/// Returns whether the disassembler's text names pc as a source, or shows a distance.
fn reads_pc(insn: &Instruction) -> bool {
    let text = insn.to_string();
    let (name, operands) = text.split_once(' ').unwrap_or((&text, ""));
    let named =
        |text: &str| text.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == "pc");
    let stores = ["st", "push", "cmp", "cmn", "tst", "teq", "b", "cb"];
    let stores = stores.iter().any(|s| name.starts_with(s))
        && !name.starts_with("bic")
        && !name.starts_with("bf");
    // Lists of registers to load are in braces.
    let sources = match operands.split_once('{') {
        Some((before, _)) if !stores => before,
        _ => operands,
    };
    let sources = if stores { sources } else { sources.split_once(',').map_or("", |s| s.1) };
    named(sources) || distance(insn).is_some()
}

#[derive(Default)]
struct Count {
    known: u32,
    reading: u32,
    careful: u32,
    wrong: Vec<String>,
}

impl Count {
    fn compare(&mut self, word: u32, theirs: &Instruction, ours: Option<PcUse>, here: u32) {
        self.known += 1;
        let reads = reads_pc(theirs);
        self.reading += u32::from(reads);
        let near = match ours {
            Some(PcUse::Branch(to) | PcUse::Conditional(to, _) | PcUse::Call(to, _)) => Some(to),
            _ => None,
        };
        let far = distance(theirs);
        let blx = matches!(ours, Some(PcUse::Call(_, State::Arm))) && here & 2 == 0
            || matches!(ours, Some(PcUse::Call(_, State::Thumb)));
        let same = match (near, far) {
            // The disassembler leaves out the change of state, and counts sometimes from the instruction,
            // sometimes from two bytes before pc.
            (Some(_), Some(_)) if blx => true,
            (Some(to), Some(far)) => {
                [0, 2, 8].contains(&here.wrapping_add_signed(far).wrapping_sub(to))
            }
            (Some(_), None) => false,
            (None, _) => true,
        };
        if reads && ours.is_none() || !same {
            self.wrong.push(format!("{word:08x} {theirs}: {ours:x?}"));
        }
        self.careful += u32::from(!reads && ours == Some(PcUse::Other));
    }

    #[track_caller]
    fn check(&self, known: u32, reading: u32) {
        let some: Vec<_> = self.wrong.iter().take(30).collect();
        assert!(self.wrong.is_empty(), "{} of {}: {some:#?}", self.wrong.len(), self.known);
        let (k, r, c) = (self.known, self.reading, self.careful);
        assert!(k > known && r > reading, "{k} instructions, {r} use the pc");
        assert!(c < k / 5, "{c} of {k} are not moved though they could be");
    }
}

/// Returns every value of the upper half with some of the lower.
fn sample() -> impl Iterator<Item = u32> {
    let mut low = 0x1234_u32;
    (0..=u16::MAX).flat_map(|high| (0..6).map(move |_| high)).map(move |high| {
        low = low.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        u32::from(high) << 16 | low >> 16
    })
}

#[test]
fn arm_as_a_disassembler_sees_it() {
    let decoder = InstDecoder::default();
    let mut count = Count::default();
    quietly(|| {
        for word in sample() {
            let Some(theirs) = disassemble(&decoder, &word.to_le_bytes()) else { continue };
            count.compare(word, &theirs, pc_use_arm(word, PC), PC + 8);
        }
    });
    count.check(100_000, 1000);
}

#[test]
fn thumb_as_a_disassembler_sees_it() {
    let decoder = InstDecoder::default_thumb();
    let mut count = Count::default();
    quietly(|| {
        for half in (0..=u16::MAX).filter(|half| thumb_len(*half) == 2) {
            let Some(theirs) = disassemble(&decoder, &half.to_le_bytes()) else { continue };
            count.compare(half.into(), &theirs, pc_use_thumb(half.into(), PC), PC + 4);
        }
        for word in sample().filter(|word| thumb_len((word >> 16) as u16) == 4) {
            let halves = [(word >> 16) as u16, word as u16];
            let bytes: Vec<u8> = halves.iter().flat_map(|h| h.to_le_bytes()).collect();
            let Some(theirs) = disassemble(&decoder, &bytes) else { continue };
            count.compare(word, &theirs, pc_use_thumb(word, PC), PC + 4);
        }
    });
    count.check(50_000, 1000);
}
