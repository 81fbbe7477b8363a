//! Moved ARM and Thumb instructions do what they did: small programs run twice (by themselves on ARM,
//! elsewhere under qemu-user), once with a function as it is, and once with its beginning moved and what
//! was there made useless.
#![cfg(feature = "relocate")]

use prof_arch::arm::insn::State;
use prof_arch::arm::relocate::relocate;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// The program is mapped here, its head included.
const BASE: u32 = 0x1_0000;
const START: u32 = BASE + 0x100;
const MOVED: u32 = BASE + 0x200;
const FUNCTION: u32 = BASE + 0x400;
const LEN: usize = 0x800;

/// An ELF program of one segment (`Elf32_Ehdr`, `Elf32_Phdr`).
fn program(code: &[(u32, &[u8])]) -> Vec<u8> {
    let mut file = vec![0; LEN];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x01\x01\x01");
    let halves = [2_u16, 40]; // an executable, for ARM
    put(16, &halves.map(u16::to_le_bytes).concat());
    let words = [1, START, 52, 0, 0x0500_0400]; // version, entry, program header, EABI 5 with vectors
    put(20, &words.map(u32::to_le_bytes).concat());
    put(40, &[52_u16, 32, 1, 0, 0, 0].map(u16::to_le_bytes).concat());
    let segment = [1, 0, BASE, BASE, LEN as u32, LEN as u32, 7, 0x1_0000];
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

/// Calls `to` with 5 and 0 in r0 and r1, and all flags clear but zero, and exits with what it returns.
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
    let file = std::env::temp_dir().join(format!("prof-arm-{}-{name}", std::process::id()));
    std::fs::write(&file, program).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    let run = || if NATIVE { Command::new(&file) } else { Command::new(QEMU) }.arg(&file).output();
    let out = loop {
        match run() {
            // Another test forked while it was being written.
            Err(e) if e.kind() == ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            out => break out.unwrap(),
        }
    };
    std::fs::remove_file(&file).unwrap();
    out.status.code()
}

/// Runs `code` as it is and with its first `len` bytes moved; both must return `want`.
#[track_caller]
fn same(name: &str, state: State, at: u32, code: &[u8], len: usize, want: i32) {
    let bit = u32::from(state == State::Thumb);
    let plain = program(&[(START, &start(at | bit)), (at, code)]);
    assert_eq!(exit_code(name, &plain), Some(want), "{name}, as it is");
    let moved = relocate(code, at, state, len).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut useless = code.to_vec();
    let (last, _) = *moved.map.last().unwrap();
    // Undefined in both states.
    for half in useless[..last.max(len)].as_chunks_mut::<2>().0 {
        *half = 0xdeff_u16.to_le_bytes();
    }
    let all = [(START, &start(MOVED | bit)[..]), (MOVED, &moved.bytes), (at, &useless)];
    assert_eq!(exit_code(name, &program(&all)), Some(want), "{name}, moved: {:02x?}", moved.bytes);
}

/// Whether this machine runs the programs by itself.
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
    // ldr r0, [pc, #4]; uxtb r0, r0; bx lr, two bytes further: literals count from a multiple of four.
    let code = halves(&[0x4801, 0xb2c0, 0x4770, 0x42, 0, 0]);
    same("unaligned", State::Thumb, FUNCTION + 2, &code, 4, 0x42);
    // adr r1; ldrb r0, [r1]
    let code = halves(&[0xa101, 0x7808, 0x4770, 0x43]);
    same("unaligned address", State::Thumb, FUNCTION + 2, &code, 4, 0x43);
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
