//! Checks that moved ARM and Thumb instructions do what they did. Small programs run twice (natively on ARM,
//! elsewhere under qemu-user): once with an unchanged function, and once with its beginning moved and
//! overwritten with undefined instructions.
#![cfg(feature = "relocate")]

use prof_arch::arm::insn::{State, plan_patch};
use prof_arch::arm::jump::encode_jump;
use prof_arch::arm::relocate::relocate;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

/// Address of the mapped program, its ELF header included.
const BASE: u32 = 0x1_0000;
const START: u32 = BASE + 0x100;
const MOVED: u32 = BASE + 0x200;
const FUNCTION: u32 = BASE + 0x400;
/// Size of the segment in memory: larger than in the file.
const IN_MEMORY: u32 = 0x40_0000;

/// Returns an ELF program of one segment (`Elf32_Ehdr`, `Elf32_Phdr`).
fn program(code: &[(u32, &[u8])]) -> Vec<u8> {
    let end = code.iter().map(|(at, bytes)| (at - BASE) as usize + bytes.len()).max().unwrap();
    let mut file = vec![0; end];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x01\x01\x01");
    let halves = [2_u16, 40]; // an executable, for ARM
    put(16, &halves.map(u16::to_le_bytes).concat());
    let words = [1, START, 52, 0, 0x0500_0400]; // version, entry, program header, EABI 5 with vectors
    put(20, &words.map(u32::to_le_bytes).concat());
    put(40, &[52_u16, 32, 1, 0, 0, 0].map(u16::to_le_bytes).concat());
    let segment = [1, 0, BASE, BASE, end as u32, IN_MEMORY, 7, 0x1_0000];
    put(52, &segment.map(u32::to_le_bytes).concat());
    for (at, bytes) in code {
        put((at - BASE) as usize, bytes);
    }
    file
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn halves(halves: &[u16]) -> Vec<u8> {
    halves.iter().flat_map(|h| h.to_le_bytes()).collect()
}

/// Returns code that calls `to` with 5 in r0, 0 in r1 and all flags clear but Z, and exits with its result.
fn start(to: u32) -> Vec<u8> {
    // mov r0, #5; mov r1, #0; cmp r1, r1; ldr ip, [pc, #8]; blx ip; mov r7, #1; svc 0
    words(&[
        0xe3a0_0005,
        0xe3a0_1000,
        0xe151_0001,
        0xe59f_c008,
        0xe12f_ff3c,
        0xe3a0_7001,
        0xef00_0000,
        to,
    ])
}

fn exit_code(name: &str, program: &[u8]) -> Option<i32> {
    run(name, program).status.code()
}

fn run(name: &str, program: &[u8]) -> Output {
    let file = std::env::temp_dir().join(format!("prof-arm-{}-{name}", std::process::id()));
    std::fs::write(&file, program).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    let run = || if NATIVE { Command::new(&file) } else { Command::new(QEMU) }.arg(&file).output();
    let out = loop {
        match run() {
            // Another test forked while this file was open for writing.
            Err(e) if e.kind() == ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            out => break out.unwrap(),
        }
    };
    std::fs::remove_file(&file).unwrap();
    out
}

/// Runs `code` unchanged and with its first `len` bytes moved; both must return `want`.
#[track_caller]
fn same(name: &str, state: State, at: u32, code: &[u8], len: usize, want: i32) {
    let bit = u32::from(state == State::Thumb);
    let plain = program(&[(START, &start(at | bit)), (at, code)]);
    assert_eq!(exit_code(name, &plain), Some(want), "{name}, as it is");
    let moved = relocate(code, at, state, len).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut useless = code.to_vec();
    let (last, _) = *moved.map.last().unwrap();
    // This halfword is undefined in both states.
    for half in useless[..last.max(len)].as_chunks_mut::<2>().0 {
        *half = 0xdeff_u16.to_le_bytes();
    }
    let all = [(START, &start(MOVED | bit)[..]), (MOVED, &moved.bytes), (at, &useless)];
    assert_eq!(exit_code(name, &program(&all)), Some(want), "{name}, moved: {:02x?}", moved.bytes);
}

/// Whether this machine runs the programs natively.
const NATIVE: bool = cfg!(target_arch = "arm");
const QEMU: &str = "qemu-arm-static";

fn can_run() -> bool {
    let found = NATIVE || Command::new(QEMU).arg("--version").output().is_ok();
    if !found {
        println!("skipped: there is no qemu-arm-static (package qemu-user-static)");
    }
    found
}

#[test]
fn thumb_code() {
    if !can_run() {
        return;
    }
    const RET: u16 = 0x4770;
    let cases: [(&str, &[u16], usize, i32); 17] = [
        // movs r0, #7
        ("plain", &[0x2007, 0xbf00, RET], 4, 7),
        // ldr r0, [pc, #4]; uxtb r0, r0
        ("literal", &[0x4801, 0xb2c0, RET, 0, 0x1234, 0x5678, 0, 0], 4, 0x34),
        // ldrb.w r0, [pc, #4]
        ("byte", &[0xf89f, 0x0004, RET, 0xbf00, 0x1299, 0], 4, 0x99),
        // ldrsh.w r0, [pc, #4]; adds r0, #3
        ("signed half", &[0xf9bf, 0x0008, 0x3003, RET, 0, 0, 0xffff, 0], 4, 2),
        // ldrd r2, r0, [pc, #4]
        ("pair", &[0xe9df, 0x2001, RET, 0xbf00, 1, 0, 44, 0], 4, 44),
        // vldr s0, [pc, #4]; vmov r0, s0
        ("vector", &[0xed9f, 0x0a02, 0xee10, 0x0a10, RET, 0, 55, 0], 4, 55),
        // adr r1, +4; ldrb r0, [r1]
        ("address", &[0xa101, 0x7808, RET, 0, 77, 0], 4, 77),
        // ldr r3, [pc, #4]; add r3, pc; ldrb r0, [r3]: position independent
        ("add", &[0x4b01, 0x447b, 0x7818, RET, 6, 0, 88, 0], 4, 88),
        // mov r3, pc; ldrb r0, [r3, #4]
        ("pc itself", &[0xbf00, 0xbf00, 0x467b, 0x7918, RET, 0, 99, 0], 6, 99),
        // b +4; bl ..
        ("branch", &[0xe001, 0xdeff, 0xdeff, 0x2009, RET], 4, 9),
        // beq: taken
        ("if equal", &[0xd001, 0x2001, RET, 0xbf00, 0x200a, RET], 2, 10),
        // bne: not taken
        ("if not equal", &[0xd101, 0x200b, RET, 0xbf00, 0x2001, RET], 2, 11),
        // cbz r1: taken
        ("if zero", &[0xb111, 0x2001, RET, 0xbf00, 0x200c, RET], 2, 12),
        // cbnz r1: not taken
        ("if not zero", &[0xb911, 0x200d, RET, 0xbf00, 0x2001, RET], 2, 13),
        // beq.w
        ("wide if equal", &[0xf000, 0x8002, 0x2001, RET, 0x200e, RET], 4, 14),
        // push {r4, lr}; bl +4; adds r0, #1; pop {r4, pc}; and what adds 10
        ("call", &[0xb510, 0xf000, 0xf802, 0x3001, 0xbd10, 0x300a, RET], 6, 16),
        // push {r4, lr}; blx to ARM code: add r0, r0, #20; bx lr
        (
            "call in the other state",
            &[0xb510, 0xf000, 0xe802, 0xbd10, 0, 0, 0x0014, 0xe280, 0xff1e, 0xe12f],
            6,
            25,
        ),
    ];
    for (name, code, len, want) in cases {
        same(name, State::Thumb, FUNCTION, &halves(code), len, want);
    }
}

#[test]
fn thumb_code_that_is_not_aligned() {
    if !can_run() {
        return;
    }
    // ldr r0, [pc, #4]; uxtb r0, r0; bx lr, at an odd multiple of two: pc is rounded down to a multiple of
    // four.
    let code = halves(&[0x4801, 0xb2c0, 0x4770, 0x42, 0, 0]);
    same("unaligned", State::Thumb, FUNCTION + 2, &code, 4, 0x42);
    // adr r1; ldrb r0, [r1]
    let code = halves(&[0xa101, 0x7808, 0x4770, 0x43]);
    same("unaligned address", State::Thumb, FUNCTION + 2, &code, 4, 0x43);
}

/// Many functions in one program, each in its own slot, with the address at which it is to be patched.
#[derive(Default)]
struct Functions {
    code: Vec<u8>,
    /// Name, address that is called, address that is patched (Thumb code).
    list: Vec<(String, u32, u32)>,
}

const SLOT: usize = 0x80;
/// Addresses of the slots, the list of called addresses, the relocated code, and the registers after each
/// call.
const SLOTS: u32 = BASE + 0x400;
const LIST: u32 = BASE + 0x4_0000;
const RELOCATED: u32 = BASE + 0x5_0000;
const RESULTS: u32 = BASE + 0x10_0000;
/// Size of a function's results: flags and r0 to r12 for each combination of flags.
const RESULT: usize = 16 * 14 * 4;

impl Functions {
    /// Returns the address of the next function.
    fn next(&self) -> u32 {
        SLOTS + self.code.len() as u32
    }

    fn add(&mut self, name: String, slot: &[u8], entry: u32, patched: u32) {
        assert!(slot.len() <= SLOT);
        self.list.push((name, entry, patched));
        self.code.extend_from_slice(slot);
        self.code.resize(self.list.len() * SLOT, 0);
    }

    /// Returns code that calls all functions with all combinations of flags and writes the resulting
    /// registers.
    fn driver() -> Vec<u8> {
        words(&[
            0xe59f_40b4,
            0xe59f_60b4,
            0xe494_8004,
            0xe358_0000,
            0x0a00_0021,
            0xe3a0_5000,
            0xe92d_0170,
            0xe1a0_9e05,
            0xe128_f009,
            0xe52d_8004,
            0xe3a0_0011,
            0xe3a0_1022,
            0xe3a0_2033,
            0xe3a0_3044,
            0xe3a0_4055,
            0xe3a0_5066,
            0xe3a0_6077,
            0xe3a0_7088,
            0xe3a0_8099,
            0xe3a0_90aa,
            0xe3a0_a0bb,
            0xe3a0_b0cc,
            0xe3a0_c0dd,
            0xe28f_e000,
            0xe49d_f004,
            0xe92d_1fff,
            0xe10f_1000,
            0xe59d_603c,
            0xe8a6_0002,
            0xe3a0_300d,
            0xe49d_0004,
            0xe486_0004,
            0xe253_3001,
            0x1aff_fffb,
            0xe8bd_01b0,
            0xe285_5001,
            0xe355_0010,
            0x1aff_ffdf,
            0xeaff_ffda,
            0xe3a0_0001,
            0xe59f_1018,
            0xe046_2001,
            0xe3a0_7004,
            0xef00_0000,
            0xe3a0_0000,
            0xe3a0_7001,
            0xef00_0000,
            LIST,
            RESULTS,
        ])
    }

    fn results(&self, name: &str, code: &[u8], moved: &[u8]) -> Vec<u8> {
        assert!(code.len() < (LIST - SLOTS) as usize);
        assert!(moved.len() < (RESULTS - RELOCATED) as usize);
        let called: Vec<u32> = self.list.iter().map(|f| f.1 | 1).chain([0]).collect();
        let driver = Self::driver();
        let parts = [(START, &driver[..]), (SLOTS, code), (LIST, &words(&called))];
        let out = run(name, &program(&[&parts[..], &[(RELOCATED, moved)]].concat()));
        assert!(out.status.success(), "{name}: {:?}", out.status);
        assert_eq!(out.stdout.len(), self.list.len() * RESULT);
        out.stdout
    }

    /// Runs all functions unpatched and patched, checks that the results agree, and returns those of each
    /// function.
    fn same(&self, name: &str) -> Vec<Vec<u8>> {
        let (mut code, mut relocated) = (self.code.clone(), Vec::new());
        let mut all_moved = Vec::new();
        for (n, (name, _, from)) in self.list.iter().enumerate() {
            let at = (from - SLOTS) as usize;
            let function = &self.code[at..(n + 1) * SLOT];
            let known = Some(function.len() as u64);
            let plan = plan_patch(function, u64::from(from | 1), known)
                .unwrap_or_else(|e| panic!("{name}: {e}: {function:02x?}"));
            let to = u64::from(RELOCATED) + relocated.len() as u64;
            let moved = relocate(function, *from, State::Thumb, plan.displaced_len)
                .unwrap_or_else(|e| panic!("{name}: {e}: {function:02x?}"));
            assert!(moved.map.iter().map(|(at, _)| at).eq(&plan.displaced), "{name}");
            for half in code[at..at + plan.displaced_len].as_chunks_mut::<2>().0 {
                *half = 0xdeff_u16.to_le_bytes();
            }
            let patch = encode_jump(u64::from(from | 1), to | 1).unwrap();
            code[at..at + patch.len()].copy_from_slice(&patch);
            relocated.extend_from_slice(&moved.bytes);
            all_moved.push(moved.bytes);
        }
        let plain = self.results(name, &self.code, &[]);
        let patched = self.results(name, &code, &relocated);
        let results = plain.chunks(RESULT).zip(patched.chunks(RESULT));
        for ((function, (was, is)), moved) in self.list.iter().zip(results).zip(all_moved) {
            assert_eq!(was, is, "{}, moved: {moved:02x?}", function.0);
        }
        plain.chunks(RESULT).map(<[u8]>::to_vec).collect()
    }
}

fn push(code: &mut Vec<u8>, insn: u32) {
    if insn >> 16 != 0 {
        code.extend(halves(&[(insn >> 16) as u16]));
    }
    code.extend(halves(&[insn as u16]));
}

/// Returns the number of different results in r0 to r12 over the combinations of flags.
fn outcomes(result: &[u8]) -> usize {
    let all: std::collections::BTreeSet<&[u8]> = result.chunks(56).map(|r| &r[4..]).collect();
    all.len()
}

#[test]
fn all_if_then_blocks() {
    if !can_run() {
        return;
    }
    let mut functions = Functions::default();
    for condition in 0..15_u32 {
        for mask in 1..16_u32 {
            if condition == 14 && !mask.is_power_of_two() {
                continue;
            }
            let it = 0xbf00 | condition << 4 | mask;
            let mut code = Vec::new();
            push(&mut code, it);
            // adds rN, #N + 1, which sets no flags here
            for n in 0..4 - mask.trailing_zeros() {
                push(&mut code, 0x3001 | n << 8 | n);
            }
            push(&mut code, 0x4770);
            let at = functions.next();
            functions.add(format!("it {it:x}"), &code, at, at);
        }
    }
    let results = functions.same("blocks");
    assert_eq!(results.len(), 14 * 15 + 4);
    for (result, (name, ..)) in results.iter().zip(&functions.list) {
        assert_eq!(outcomes(result), if name.starts_with("it bfe") { 1 } else { 2 }, "{name}");
        for (flags, left) in result.chunks(56).enumerate() {
            assert_eq!(usize::from(left[3] >> 4), flags, "{name}");
        }
    }
}

/// Returns a function with an if-then block of all kinds of instructions, and its address.
fn any_block(at: u32, random: &mut impl FnMut(u32) -> u32) -> (Vec<u8>, u32) {
    const LITERALS: u32 = 0x40;
    const CALLED: u32 = 0x50;
    const LED_TO: u32 = 0x60;
    /// Instructions that set flags outside of a block only: adds, movs, subs, lsls, ands, muls, negs.
    const NARROW: [u32; 7] = [0x1840, 0x2207, 0x3b01, 0x0040, 0x4011, 0x435a, 0x4259];
    /// Instructions that do the same in a block as outside: cmp, tst, cmp, adds.w, lsrs.w; mov, movw, sub.w.
    const OTHERS: [u32; 8] =
        [0x4288, 0x4213, 0x2a33, 0xf112_0103, 0xea5f_0252, 0x4603, 0xf241_2134, 0xeba0_0001];
    let slot = at & !(SLOT as u32 - 1);
    let mut code = halves(&[0xb500]); // push {lr}
    let count = 1 + random(4);
    push(&mut code, 0xbf00 | random(14) << 4 | (random(16) << (4 - count) | 8 >> (count - 1)) & 15);
    for n in 0..count {
        let pc = at + code.len() as u32 + 4;
        let literal = slot + LITERALS - (pc & !3);
        let last = n == count - 1;
        let to = |place: u32| (slot + place - pc) >> 1;
        let insn = match random(if last { 16 } else { 12 }) {
            0..=2 => NARROW[random(7) as usize],
            3..=5 => OTHERS[random(8) as usize],
            6 => 0x4a00 | literal >> 2, // ldr r2, [pc, #..]
            7 => 0xf8bf_0002 | random(4) << 12 | literal, // ldrh.w
            8 => 0xa100 | literal >> 2, // adr r1
            9 => 0x4478,                // add r0, pc
            10 if last => 0x467b,       // mov r3, pc
            10 => 0x447b,               // add r3, pc
            11 => 0xed9f_0a00 | literal >> 2, // vldr s0, [pc, #..]
            12 => 0xe000 | to(LED_TO),  // b
            13 => 0xf000_b800 | to(LED_TO), // b.w
            14 => 0xf000_f800 | to(CALLED), // bl
            _ => 0xbd00,                // pop {pc}
        };
        push(&mut code, insn);
    }
    // vmov r4, s0; mov ip, r0, in case a call has changed it; pop {pc}
    for insn in [0xee10_4a10, 0x4684, 0xbd00] {
        push(&mut code, insn);
    }
    assert!((at - slot) as usize + code.len() <= LITERALS as usize);
    let begin = (at - slot) as usize;
    let mut bytes = vec![0; SLOT];
    let mut put = |at: u32, code: &[u8]| bytes[at as usize..][..code.len()].copy_from_slice(code);
    put(begin as u32, &code);
    put(LITERALS, &words(&[0x1234_5678 ^ at, 0x9abc_def0]));
    put(CALLED, &halves(&[0xf101, 0x0107, 0x4770])); // add.w r1, r1, #7; bx lr
    put(LED_TO, &halves(&[0xf085, 0x0555, 0x4684, 0xbd00])); // eor r5, r5, #0x55; mov ip, r0; pop {pc}
    (bytes, at)
}

#[test]
fn if_then_blocks_with_anything_in_them() {
    if !can_run() {
        return;
    }
    let mut functions = Functions::default();
    let mut seed = 5_u64;
    let mut random = |n: u32| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as u32 % n
    };
    for n in 0..1000 {
        // Every other function begins at an address that is not a multiple of four.
        let (slot, at) = any_block(functions.next() + n % 2 * 2, &mut random);
        functions.add(format!("block {n}"), &slot, at, at);
    }
    let results = functions.same("any");
    let both = results.iter().filter(|r| outcomes(r) >= 2).count();
    assert!(both > 900, "{both}");
}

/// Returns a function at `slot` that jumps by a table (tbb, tbh), and the address to patch.
fn by_table(slot: u32, wide: u32, n: u32, m: u32, before: u32) -> (Vec<u8>, u32) {
    const TABLE: u32 = 0x60;
    let movw = |to: u32, value: u32| {
        let fields = (value >> 12 & 15) << 16 | (value >> 11 & 1) << 26 | (value >> 8 & 7) << 12;
        0xf240_0000 | fields | to << 8 | value & 0xff
    };
    let mut code = halves(&[0xb500]); // push {lr}
    // The index is that of the second or third of the entries.
    let entry = 2 - wide + (n + m + before) % 2;
    push(&mut code, movw(m, entry));
    if n != 15 {
        push(&mut code, movw(n, (slot + TABLE) & 0xffff));
        push(&mut code, 0x0080_0000 | movw(n, (slot + TABLE) >> 16));
    }
    if (n + m + wide).is_multiple_of(2) {
        push(&mut code, 0xbf00);
    }
    let patched = slot + code.len() as u32;
    if before != 0 {
        push(&mut code, before);
    }
    push(&mut code, 0xe8d0_f000 | n << 16 | wide << 4 | m);
    // The table has two targets. If the jump is skipped by its condition, a branch in the place of the first
    // entries leads to a third one.
    let table = match wide {
        0 => halves(&[0xe00e, 13 << 8 | 10]),
        _ => halves(&[0xe00e, 10, 13]),
    };
    let behind = code.len();
    code.extend(&table);
    code.resize(behind + 20, 0);
    for place in 1..4_u16 {
        // eor r0, r0, #place << 24 (and lower bits); pop {pc}
        code.extend(halves(&[0xf080, 0x4000 | place << 8 | 0x80, 0xbd00]));
    }
    assert!(code.len() <= TABLE as usize);
    code.resize(TABLE as usize, 0);
    code.extend(&table);
    (code, patched)
}

#[test]
fn jumps_by_tables() {
    if !can_run() {
        return;
    }
    // The jump stands alone, behind mov ip, r0, and in a block: it cs.
    for (before, name) in [(0, "tables"), (0x4684, "tables2"), (0xbf28, "tables3")] {
        let mut functions = Functions::default();
        let registers = || (0..13).chain([14]);
        for (wide, n) in (0..2).flat_map(|wide| registers().chain([15]).map(move |n| (wide, n))) {
            for m in registers().filter(|m| *m != n && (before != 0x4684 || ![n, *m].contains(&12)))
            {
                let slot = functions.next();
                let (code, patched) = by_table(slot, wide, n, m, before);
                let name = format!("{name} {wide} [r{n}, r{m}]");
                functions.add(name, &code, slot, patched);
            }
        }
        let results = functions.same(name);
        assert!(results.len() > 300);
        for (result, (name, ..)) in results.iter().zip(&functions.list) {
            assert_eq!(outcomes(result), if before == 0xbf28 { 2 } else { 1 }, "{name}");
        }
    }
}

#[test]
fn arm_code() {
    if !can_run() {
        return;
    }
    const RET: u32 = 0xe12f_ff1e;
    let cases: [(&str, &[u32], usize, i32); 15] = [
        ("arm plain", &[0xe3a0_0007, RET], 4, 7),
        // ldr r0, [pc]
        ("arm literal", &[0xe59f_0000, RET, 8], 4, 8),
        // ldrb r0, [pc]
        ("arm byte", &[0xe5df_0000, RET, 0x1209], 4, 9),
        // ldrh r0, [pc]
        ("arm half", &[0xe1df_00b0, RET, 10], 4, 10),
        // ldrd r2, r3, [pc]; mov r0, r3
        ("arm pair", &[0xe1cf_20d4, 0xe1a0_0003, RET, 1, 11], 4, 11),
        // vldr s0, [pc, #4]; vmov r0, s0
        ("arm vector", &[0xed9f_0a01, 0xee10_0a10, RET, 12], 4, 12),
        // pld [pc]; mov r0, #13
        ("arm preload", &[0xf5df_f000, 0xe3a0_000d, RET], 4, 13),
        // adr r1; ldrb r0, [r1]
        ("arm address", &[0xe28f_1004, 0xe5d1_0000, RET, 14], 4, 14),
        // mov r1, pc; ldrb r0, [r1, #4]
        ("arm pc itself", &[0xe1a0_100f, 0xe5d1_0004, RET, 15], 4, 15),
        // ldr r3, [pc, #8]; add r3, pc, r3; ldrb r0, [r3]; bx lr
        ("arm add", &[0xe59f_3008, 0xe08f_3003, 0xe5d3_0000, RET, 8, 16], 8, 16),
        // b
        ("arm branch", &[0xea00_0000, 0xe7f0_00f0, 0xe3a0_0011, RET], 4, 17),
        // beq, taken
        ("arm if equal", &[0x0a00_0001, 0xe3a0_0001, RET, 0xe3a0_0012, RET], 4, 18),
        // bne, not taken
        ("arm if not equal", &[0x1a00_0001, 0xe3a0_0013, RET, 0xe3a0_0001, RET], 4, 19),
        // push {r4, lr}; bl; add r0, r0, #1; pop {r4, pc}; add r0, r0, #14; bx lr
        (
            "arm call",
            &[0xe92d_4010, 0xeb00_0001, 0xe280_0001, 0xe8bd_8010, 0xe280_000e, RET],
            8,
            20,
        ),
        // push {r4, lr}; blx to Thumb code; pop {r4, pc}; adds r0, #16; bx lr
        (
            "arm call in the other state",
            &[0xe92d_4010, 0xfa00_0000, 0xe8bd_8010, 0x4770_3010],
            8,
            21,
        ),
    ];
    for (name, code, len, want) in cases {
        same(name, State::Arm, FUNCTION, &words(code), len, want);
    }
}
