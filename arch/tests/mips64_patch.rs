//! Runs functions that begin with each form of instruction that is relocated, in both byte orders and for
//! releases 2 and 6. An assembler makes them, and qemu runs them unpatched, patched with the flag off, and
//! patched with the flag on and an entry that goes straight to the original.
//!
//! Needs the cross compilers of Debian's gcc-mips64el-linux-gnuabi64 and gcc-mips64-linux-gnuabi64
//! and qemu-user-static; what is missing is skipped with a message.
#![cfg(feature = "relocate")]

use prof_arch::mips64::insn::plan_patch_in;
use prof_arch::mips64::relocate::{StubParams, build_stub_in};
use prof_arch::mips64::{Order, Variant};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Addresses of the functions and, in the same region of 256 MiB, of stubs and data made for them.
const FUNCTIONS: u64 = 0x1000_0000;
const HELPER: u64 = FUNCTIONS + 0x1_0000;
const STUBS: u64 = 0x1400_0000;
const DATA: u64 = 0x1800_0000;
const DESCRIPTORS: u64 = DATA + 64;
const STUB_ROOM: u64 = 512;

/// Names and instructions. Each function takes `$4`, and its own return address also in `$15`; condition 0 of
/// the floating point unit and the lowest bit of `$f0` are set or clear. It returns `$2`.
type Functions = &'static [(&'static str, &'static str)];

/// Functions for all releases.
const COMMON: Functions = &[
    ("plain", "daddiu $2, $4, 1; dsll $2, $2, 3; jr $31; nop"),
    ("t9", "lui $3, 1; daddu $3, $3, $25; jr $31; daddu $2, $3, $4"),
    ("jr_0", "jr $31; daddiu $2, $4, 3"),
    ("jr_1", "move $2, $4; jr $31; daddiu $2, $2, 3"),
    ("b_0", "b 1f; daddiu $2, $4, 3; jr $31; nop; 1: jr $31; daddiu $2, $2, 9"),
    ("b_1", "li $2, 7; b 1f; daddu $2, $2, $4; jr $31; nop; 1: jr $31; daddiu $2, $2, 9"),
    ("j_0", "j helper; daddiu $2, $4, 3"),
    ("j_1", "li $2, 7; j helper; daddu $2, $2, $4"),
    ("jal_0", "jal helper; daddiu $2, $4, 3; daddu $2, $2, $31; jr $15; nop"),
    ("jal_1", "li $2, 7; jal helper; daddu $2, $2, $4; daddu $2, $2, $31; jr $15; nop"),
    ("bal_0", "bal 1f; daddiu $2, $4, 3; daddu $2, $2, $31; jr $15; nop; 1: jr $31; daddiu $2, 9"),
    ("bal_1", "li $2, 7; bal 1f; nop; daddu $2, $2, $31; jr $15; nop; 1: jr $31; daddiu $2, 9"),
    ("bal_next", "bal 1f; li $2, 7; 1: daddu $2, $2, $31; jr $15; nop"),
    ("jalr_1", "lui $12, 0x1001; jalr $12; daddiu $2, $4, 5; daddu $2, $2, $31; jr $15; nop"),
    ("jalr_13", "lui $12, 0x1001; jalr $13, $12; move $31, $13; daddu $2, $13, $31; jr $15; nop"),
];

/// Branches, at the entry and behind one instruction, taken or not, with a delay slot that changes the
/// result.
const BRANCHES: &[&str] =
    &["beq $4, $0,", "bne $4, $0,", "blez $4,", "bgtz $4,", "bltz $4,", "bgez $4,", "beq $4, $25,"];

/// Branches of releases 2 to 5.
const OLD_BRANCHES: &[&str] = &[
    "beql $4, $0,",
    "bnel $4, $0,",
    "blezl $4,",
    "bgtzl $4,",
    "bltzl $4,",
    "bgezl $4,",
    "bc1t",
    "bc1f",
    "bc1tl",
    "bc1fl",
];

/// Calls of releases 2 to 5 that write a return address even if they are not taken.
const OLD_CALLS: &[&str] = &["bltzal $4,", "bgezal $4,", "bltzall $4,", "bgezall $4,"];

/// Branches of release 6.
const NEW_BRANCHES: &[&str] = &["bc1eqz $f0,", "bc1nez $f0,"];

/// Branches of release 6 without a delay slot.
const COMPACT: &[&str] = &[
    "beqzc $4,",
    "bnezc $4,",
    "beqc $4, $25,",
    "bnec $4, $25,",
    "blezc $4,",
    "bgezc $4,",
    "bgtzc $4,",
    "bltzc $4,",
    "bgec $4, $25,",
    "bltc $4, $25,",
    "bgeuc $4, $25,",
    "bltuc $4, $25,",
    "bovc $4, $4,",
    "bnvc $4, $4,",
];

const NEW: Functions = &[
    ("bc_1", "li $2, 7; bc 1f; li $2, 8; jr $31; nop; 1: jr $31; daddiu $2, $2, 9"),
    ("balc_0", "balc 1f; daddiu $2, $2, 5; jr $15; nop; 1: jr $31; daddiu $2, $4, 9"),
    ("balc_1", "li $2, 7; balc 1f; daddu $2, $2, $31; jr $15; nop; 1: jr $31; daddiu $2, $2, 9"),
    ("jic_1", "lui $12, 0x1001; jic $12, 0"),
    ("jialc_1", "lui $12, 0x1001; jialc $12, 0; daddu $2, $4, $31; jr $15; nop"),
    ("addiupc", "addiupc $2, 64; daddu $2, $2, $4; jr $31; nop"),
    ("auipc", "auipc $2, 1; daddu $2, $2, $4; jr $31; nop"),
    ("aluipc_1", "daddiu $3, $4, 1; aluipc $2, 1; jr $31; daddu $2, $2, $3"),
    ("lwpc", "lwpc $2, 1f; daddu $2, $2, $4; jr $31; nop; 1: .word 0x89abcdef"),
    ("lwupc", "lwupc $2, 1f; daddu $2, $2, $4; jr $31; nop; 1: .word 0x89abcdef"),
    (
        "ldpc_1",
        "daddiu $3, $4, 1; ldpc $2, 1f; jr $31; daddu $2, $2, $3; 1: .dword 0x8123456789abcdef",
    ),
];

fn functions(release6: bool) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> =
        COMMON.iter().map(|(n, c)| (n.to_string(), c.to_string())).collect();
    let (branches, calls) =
        if release6 { (NEW_BRANCHES, &[][..]) } else { (OLD_BRANCHES, OLD_CALLS) };
    let mut add = |name: &str, code: String| {
        let name = name.split([' ', ',']).next().unwrap_or_default();
        all.push((format!("{name}_{}", all.len()), code));
    };
    for insn in BRANCHES.iter().chain(branches) {
        let rest = "daddiu $2, $2, 5; jr $31; daddu $2, $2, $4; 1: jr $31; daddiu $2, $2, 9";
        add(insn, format!("{insn} 1f; li $2, 100; {rest}"));
        add(insn, format!("li $2, 50; {insn} 1f; daddiu $2, $2, 100; {rest}"));
    }
    for insn in calls {
        let rest = "daddiu $2, $31, 5; jr $15; daddu $2, $2, $4; 1: jr $15; daddu $2, $2, $31";
        add(insn, format!("{insn} 1f; li $2, 100; {rest}"));
        add(insn, format!("li $2, 50; {insn} 1f; daddiu $2, $2, 100; {rest}"));
    }
    if release6 {
        for insn in COMPACT {
            let rest = "daddiu $2, $2, 5; jr $31; daddu $2, $2, $4; 1: jr $31; daddiu $2, $2, 9";
            add(insn, format!("{insn} 1f; li $2, 100; {rest}"));
            add(insn, format!("li $2, 50; {insn} 1f; {rest}"));
        }
        all.extend(NEW.iter().map(|(n, c)| (n.to_string(), c.to_string())));
    }
    all
}

/// The program that calls them all. It uses no libc, as there is none for release 6.
const PROGRAM: &str = r#"
typedef unsigned long u64;
typedef unsigned char u8;
static long call6(long n, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f) {
    register u64 v0 asm("$2") = n, a0 asm("$4") = a, a1 asm("$5") = b, a2 asm("$6") = c;
    register u64 a3 asm("$7") = d, a4 asm("$8") = e, a5 asm("$9") = f;
    asm volatile("syscall" : "+r"(v0), "+r"(a3) : "r"(a0), "r"(a1), "r"(a2), "r"(a4), "r"(a5)
        : "$1", "$3", "$10", "$11", "$12", "$13", "$14", "$15", "$24", "$25", "memory");
    return a3 ? -(long)v0 : (long)v0;
}
static void say(const char *s) {
    u64 n = 0;
    while (s[n]) n++;
    call6(5001, 1, (u64)s, n, 0, 0, 0);
}
static void fail(const char *a, const char *b) { say(a); say(b); say("\n"); call6(5058, 1, 0, 0, 0, 0, 0); }
static void put(u64 at, const u8 *from, u64 n) {
    for (u64 i = 0; i < n; i++) ((volatile u8 *)at)[i] = from[i];
    call6(5197, at, n, 3, 0, 0, 0); /* cacheflush */
}
static u64 run(u64 code, u64 value, u64 flag) {
    register u64 a0 asm("$4") = value, t9 asm("$25") = code, v0 asm("$2") = 0;
    asm volatile(".set push; .set noreorder\n"
        SET_CONDITION
        "dmtc1 %[flag], $f0\n"
        "jalr $25\n move $15, $31\n .set pop"
        : "+r"(a0), "+r"(t9), "+r"(v0) : [flag] "r"(flag)
        : "$1", "$3", "$5", "$6", "$7", "$8", "$9", "$10", "$11", "$12", "$13", "$14", "$15", "$24",
          "$31", "$f0", "memory");
    return v0;
}
struct function { const char *name; u64 at, original, stub_at, patch_len, stub_len; const u8 *patch, *stub; };
#include "data.h"
#define COUNT (sizeof functions / sizeof *functions)
static const u64 values[] = { 0, 1, 2, -1, -5, 0x8000000000000000, 0x7fffffff, 0x10000000 };
static u64 results[COUNT][16];
static void check(u64 n, u64 at, const char *when) {
    for (u64 i = 0; i < 16; i++)
        if (run(at, values[i / 2], i % 2) != results[n][i]) fail(functions[n].name, when);
}
static void map(u64 at) {
    if (call6(5009, at, 0x100000, 7, 0x812, -1, 0) != (long)at) fail("mmap", "");
}
void __start(void) {
    map(0x10000000); map(0x14000000); map(0x18000000);
    put(0x10000000, blob, sizeof blob);
    volatile unsigned *flag = (volatile unsigned *)0x18000000;
    for (u64 n = 0; n < COUNT; n++) {
        const struct function *f = &functions[n];
        for (u64 i = 0; i < 16; i++) results[n][i] = run(f->at, values[i / 2], i % 2);
        put(f->stub_at, f->stub, f->stub_len);
        put(f->at, f->patch, f->patch_len);
        ((volatile u64 *)0x18000040)[n] = f->original;
        *flag = 0;
        check(n, f->at, ", off");
        *flag = 1;
        check(n, f->at, ", on");
        check(n, f->original, ", the original");
    }
    say("all the same\n");
    call6(5058, 0, 0, 0, 0, 0, 0);
}
"#;

/// Runs a command and returns its output; panics with its messages if it fails.
fn sh(command: &mut Command) -> Vec<u8> {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = String::from_utf8_lossy(&out.stderr);
    let output = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{command:?}: {}: {output}{text}", out.status);
    out.stdout
}

fn is_there(command: &str) -> bool {
    Command::new(command).arg("--version").output().is_ok_and(|o| o.status.success())
}

/// A folder that is removed when this is dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Assembles and links the functions; returns their bytes and the address range of each.
fn assemble(
    dir: &Path,
    gnu: &str,
    flags: &[&str],
    all: &[(String, String)],
) -> (Vec<u8>, Vec<(u64, u64)>) {
    let mut source = String::from(".text\n.set noreorder\n.set noat\n.globl __start\n__start:\n");
    for (name, code) in all {
        let code = code.replace(';', "\n");
        let _ = write!(source, ".balign 8\nt_{name}:\n{code}\ne_{name}:\n.balign 8\n");
    }
    source += "entry: ld $25, 0($24)\njr $25\nnop\n";
    let _ = write!(source, ".org {:#x}\nhelper: jr $31\ndaddiu $2, $2, 32\n", HELPER - FUNCTIONS);
    std::fs::write(dir.join("f.S"), source).unwrap();
    let gcc = format!("{gnu}-gcc");
    sh(Command::new(&gcc).current_dir(dir).args(flags).args([
        "-nostdlib",
        "-static",
        "-fno-pic",
        "-mno-abicalls",
        "-Wl,-Ttext=0x10000000",
        "f.S",
        "-o",
        "f",
    ]));
    sh(Command::new(format!("{gnu}-objcopy"))
        .current_dir(dir)
        .args(["-O", "binary", "-j", ".text", "f", "f.bin"]));
    let symbols =
        String::from_utf8(sh(Command::new(format!("{gnu}-nm")).current_dir(dir).arg("f")));
    let symbols = symbols.unwrap();
    let at = |name: &str| {
        let line = symbols.lines().find(|l| l.split_whitespace().nth(2) == Some(name));
        let word = line.and_then(|l| l.split_whitespace().next());
        u64::from_str_radix(word.unwrap_or_else(|| panic!("no {name}")), 16).unwrap()
    };
    assert_eq!(at("helper"), HELPER);
    let mut places: Vec<(u64, u64)> =
        all.iter().map(|(n, _)| (at(&format!("t_{n}")), at(&format!("e_{n}")))).collect();
    places.push((at("entry"), at("entry") + 12));
    (std::fs::read(dir.join("f.bin")).unwrap(), places)
}

fn bytes_in_c(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b},");
        s
    })
}

/// Returns what the program includes: the functions, and the stub and patch of each.
fn data(variant: Variant, all: &[(String, String)], blob: &[u8], places: &[(u64, u64)]) -> String {
    let entry_addr = places[all.len()].0;
    let (mut arrays, mut table) = (String::new(), String::new());
    for (n, ((name, _), &(from, to))) in all.iter().zip(places).enumerate() {
        let code = &blob[(from - FUNCTIONS) as usize..(to - FUNCTIONS) as usize];
        let plan = plan_patch_in(variant, code, from, Some(code.len() as u64))
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let stub_addr = STUBS + n as u64 * STUB_ROOM;
        let stub = build_stub_in(
            variant,
            &StubParams {
                many: false,
                stub_addr,
                flag_addr: DATA,
                desc_addr: DESCRIPTORS + n as u64 * 8,
                entry_addr,
                func_addr: from,
                code,
                plan: &plan,
            },
        )
        .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(stub.bytes.len() as u64 <= STUB_ROOM);
        // The patch together with the bytes in front of it.
        let patch = [&code[..plan.patch_offset], &stub.patch].concat();
        let (patch, bytes) = (bytes_in_c(&patch), bytes_in_c(&stub.bytes));
        let _ = writeln!(arrays, "static const u8 p{n}[] = {{{patch}}}, s{n}[] = {{{bytes}}};");
        let original = stub.original_addr;
        let _ = writeln!(
            table,
            "{{\"{name}\", {from}, {original}, {stub_addr}, sizeof p{n}, sizeof s{n}, p{n}, s{n}}},"
        );
    }
    let blob = bytes_in_c(blob);
    format!(
        "static const u8 blob[] = {{{blob}}};\n{arrays}static const struct function functions[] = {{\n{table}}};\n"
    )
}

fn patched_functions_do_the_same(order: Order, release6: bool) {
    let suffix = if order == Order::Little { "el" } else { "" };
    let gnu = format!("mips64{suffix}-linux-gnuabi64");
    let qemu = format!("qemu-mips64{suffix}-static");
    for tool in [format!("{gnu}-gcc"), qemu.clone()] {
        if !is_there(&tool) {
            eprintln!("skipped: there is no {tool}");
            return;
        }
    }
    let dir = std::env::temp_dir().join(format!(
        "prof-mips64-{}-{suffix}{}",
        std::process::id(),
        u8::from(release6)
    ));
    std::fs::create_dir_all(&dir).unwrap();
    let dir = Folder(dir);
    let release = if release6 { "-march=mips64r6" } else { "-march=mips64r2" };
    let flags = ["-mabi=64", release];
    let variant = Variant { order, release6 };
    let all = functions(release6);
    let (blob, places) = assemble(&dir.0, &gnu, &flags, &all);
    std::fs::write(dir.0.join("data.h"), data(variant, &all, &blob, &places)).unwrap();
    std::fs::write(dir.0.join("m.c"), PROGRAM).unwrap();
    // Condition 0 is a bit of the control register, which release 6 does not have.
    let condition = if release6 {
        "-DSET_CONDITION="
    } else {
        r#"-DSET_CONDITION="dsll $3, %[flag], 23\n ctc1 $3, $31\n""#
    };
    sh(Command::new(format!("{gnu}-gcc")).current_dir(&dir.0).args(flags).arg(condition).args([
        "-O1",
        "-nostdlib",
        "-static",
        "-ffreestanding",
        "-fno-builtin",
        "-fno-pic",
        "-mno-abicalls",
        "-G0",
        "m.c",
        "-o",
        "m",
    ]));
    let cpu = if release6 { "I6400" } else { "MIPS64R2-generic" };
    let out = sh(Command::new(&qemu).current_dir(&dir.0).args(["-cpu", cpu, "./m"]));
    assert_eq!(String::from_utf8_lossy(&out), "all the same\n");
}

#[test]
fn little_endian() {
    patched_functions_do_the_same(Order::Little, false);
}

#[test]
fn big_endian() {
    patched_functions_do_the_same(Order::Big, false);
}

#[test]
fn little_endian_release_6() {
    patched_functions_do_the_same(Order::Little, true);
}

#[test]
fn big_endian_release_6() {
    patched_functions_do_the_same(Order::Big, true);
}
