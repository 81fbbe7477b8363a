//! Tests patches of functions: plans and refusals, and moved code that really runs.
#![cfg(all(feature = "relocate", target_arch = "x86_64"))]

mod common;

use prof_arch::patch::Probed;
use prof_arch::unwind::function_range;
use prof_arch::x86_64::Rule;
use prof_arch::x86_64::insn::{Lead, PatchPlan, Refusal, plan_at_entry, plan_patch, uprobe};
use prof_arch::x86_64::jump::PATCH_LEN;
use prof_arch::x86_64::relocate::{StubParams, build_stub, relocate, stub_window};
use std::ptr::null_mut;

const ADDR: u64 = 0x5555_5555_5000;

/// Plans a patch at the entry of a function that consists of all of `code`.
fn plan(code: &[u8]) -> Result<PatchPlan, Refusal> {
    plan_at_entry(code, ADDR, Some(code.len() as u64))
}

#[test]
fn the_first_instruction_is_left_where_it_can_be() {
    let rest = [0x48, 0x89, 0xc1, 0x48, 0x89, 0xc2, 0xc3]; // mov rcx, rax; mov rdx, rax; ret
    let lead = |first: &[u8]| {
        let code = [first, &rest].concat();
        let plan = plan_patch(&code, ADDR, Some(code.len() as u64)).unwrap();
        assert!(plan.patch_offset == 0 || plan.patch_offset == first.len());
        let breaks = uprobe(plan.patch_offset as u64, &code, ADDR) == Probed::Breaks;
        assert_eq!(breaks, plan.patch_offset == 0);
        (plan.patch_offset != 0).then_some(plan.lead)
    };
    let cases: &[(&[u8], Option<Lead>)] = &[
        (&[0xf3, 0x0f, 0x1e, 0xfa], Some(Lead::Nothing)), // endbr64
        (&[0x0f, 0x1f, 0x44, 0, 0], Some(Lead::Nothing)), // nop
        (&[0x41, 0x54], Some(Lead::Down(8))),             // push r12
        (&[0x54], None),                                  // push rsp
        (&[0x48, 0x83, 0xec, 0x58], Some(Lead::Down(0x58))), // sub rsp, 0x58
        (&[0x48, 0x81, 0xec, 0, 1, 0, 0], Some(Lead::Down(256))), // sub rsp, 256
        (&[0x48, 0x29, 0xc4], None),                      // sub rsp, rax
        (&[0x48, 0x83, 0xc4, 0x08], None),                // add rsp, 8
        (&[0x48, 0x85, 0xff], Some(Lead::Again)),         // test rdi, rdi
        (&[0x80, 0x3d, 0, 1, 0, 0, 0], Some(Lead::Again)), // cmp byte ptr [rip + 256], 0
        (&[0x48, 0x89, 0xf0], Some(Lead::Again)),         // mov rax, rsi
        (&[0x31, 0xc0], Some(Lead::Again)),               // xor eax, eax
        (&[0x31, 0xf8], None),                            // xor eax, edi
        (&[0x48, 0x8b, 0x40, 0x08], None),                // mov rax, [rax + 8]
        (&[0x48, 0x8b, 0x47, 0x08], Some(Lead::Again)),   // mov rax, [rdi + 8]
        (&[0x88, 0xf8], None),                            // mov al, bh
        (&[0x48, 0x89, 0xfe], None),                      // mov rsi, rdi
        (&[0x48, 0x01, 0xf8], None),                      // add rax, rdi
    ];
    for (first, want) in cases {
        assert_eq!(lead(first), *want, "{first:02x?}");
    }
    // A uprobe on a first instruction that never goes on to the next does no harm.
    for code in [&[0xc3, 0x90][..], &[0xe9, 0, 1, 0, 0]] {
        assert_eq!(uprobe(0, code, ADDR), Probed::Passes);
    }
}

#[test]
fn plans() {
    type Case<'a> = (&'a [u8], usize, &'a [usize], usize, bool);
    let cases: &[Case<'_>] = &[
        // push rbp; mov rbp, rsp; push rbx; ... ret
        (&[0x55, 0x48, 0x89, 0xe5, 0x53, 0x5b, 0x5d, 0xc3], 0, &[0, 1, 4], 5, false),
        // endbr64 stays in front
        (&[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x83, 0xec, 0x08, 0x31, 0xc0, 0xc3], 4, &[4, 8], 6, false),
        // a single jmp rel32
        (&[0xe9, 0x00, 0x10, 0x00, 0x00], 0, &[0], 5, true),
        // sub rsp, 8; call rel32; a call's return address is behind the patch
        (&[0x48, 0x83, 0xec, 0x08, 0xe8, 0, 1, 0, 0, 0xc3], 0, &[0, 4], 9, false),
        // test rdi, rdi; je +1; ret; ret: the branch leads behind the patch
        (&[0x48, 0x85, 0xff, 0x74, 0x01, 0xc3, 0xc3], 0, &[0, 3], 5, false),
        // xor eax, eax; jrcxz to the next instruction: stays inside the copy
        (&[0x31, 0xc0, 0xe3, 0x00, 0x90, 0x90, 0xc3], 0, &[0, 2, 4], 5, false),
        // mov rax, [rip + far]
        (&[0x48, 0x8b, 0x05, 0, 0x10, 0, 0, 0xc3], 0, &[0], 7, false),
    ];
    for (code, offset, displaced, len, terminated) in cases {
        let plan = plan(code).unwrap_or_else(|e| panic!("{code:02x?}: {e}"));
        assert_eq!(
            (plan.patch_offset, &plan.displaced[..], plan.displaced_len),
            (*offset, *displaced, *len)
        );
        assert_eq!(plan.terminated, *terminated, "{code:02x?}");
    }
}

#[test]
fn refusals() {
    let cases: &[(&[u8], Refusal)] = &[
        // push rbp; mov rbp, rsp; push rbx; jmp to +4
        (&[0x55, 0x48, 0x89, 0xe5, 0x53, 0xeb, 0xfd], Refusal::BranchIntoPatch { from: 5 }),
        // ... je near to +1
        (
            &[0x55, 0x48, 0x89, 0xe5, 0x53, 0x0f, 0x84, 0xf6, 0xff, 0xff, 0xff, 0xc3],
            Refusal::BranchIntoPatch { from: 5 },
        ),
        // ... loop to +1
        (&[0x55, 0x48, 0x89, 0xe5, 0x53, 0xe2, 0xfa, 0xc3], Refusal::BranchIntoPatch { from: 5 }),
        // dec edi; nop; nop; nop; jne to the entry
        (&[0xff, 0xcf, 0x90, 0x90, 0x90, 0x75, 0xf9, 0xc3], Refusal::BranchToEntry { from: 5 }),
        // a displaced branch to endbr64 would pass the patch again
        (
            &[0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0xcf, 0x75, 0xf8, 0x90, 0xc3],
            Refusal::BranchToEntry { from: 6 },
        ),
        // ret, followed by another function
        (&[0xc3], Refusal::TooShort),
        // nothing
        (&[], Refusal::TooShort),
        // call +5: reads its own address
        (&[0xe8, 0, 0, 0, 0, 0x58, 0xc3], Refusal::OwnAddress { at: 0 }),
        // lea rax, [rip - 7]: the function's own entry
        (&[0x48, 0x8d, 0x05, 0xf9, 0xff, 0xff, 0xff, 0xc3], Refusal::OwnAddress { at: 0 }),
        // call rax; ...: a thread may be about to return into the patch
        (&[0xff, 0xd0, 0x90, 0x90, 0x90, 0x90, 0xc3], Refusal::BranchIntoPatch { from: 0 }),
        // push rbp; then no instruction
        (&[0x55, 0x06, 0x90, 0x90, 0x90, 0xc3], Refusal::Undecodable { at: 1 }),
        // the last instruction is incomplete
        (&[0x55, 0x48, 0x89, 0xe5, 0x53, 0xe8, 0x00], Refusal::Undecodable { at: 5 }),
        // ret; then code that only the computed jump behind it can reach
        (&[0xc3, 0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xe0], Refusal::IndirectBranch { from: 6 }),
    ];
    for (code, refusal) in cases {
        assert_eq!(plan(code).as_ref(), Err(refusal), "{code:02x?}");
        assert!(!refusal.to_string().is_empty());
    }
    let incomplete = plan_patch(&[0x55; 8], ADDR, Some(9));
    assert_eq!(incomplete, Err(Refusal::Incomplete { have: 8, need: 9 }));
}

#[test]
fn recursion_is_no_branch() {
    // push rbp; mov rbp, rsp; push rbx; call to the entry; ret
    let code = [0x55, 0x48, 0x89, 0xe5, 0x53, 0xe8, 0xf6, 0xff, 0xff, 0xff, 0xc3];
    assert!(plan(&code).is_ok());
}

#[test]
fn short_functions_and_their_padding() {
    let short = |padding: &[u8]| {
        let mut code = vec![0x31, 0xc0, 0xc3]; // xor eax, eax; ret
        code.extend_from_slice(padding);
        (plan_at_entry(&code, ADDR, Some(3)), plan_at_entry(&code, ADDR, None))
    };
    let (known, unknown) = short(&[0xcc; 13]);
    let known = known.unwrap();
    assert_eq!(
        (known.displaced_len, &known.displaced[..], known.terminated),
        (3, &[0, 2][..], true)
    );
    assert_eq!(unknown.unwrap(), known);
    // Long nops: nop word ptr [rax + rax], and a two-byte one.
    let nops = [0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x0f, 0x1f, 0x00];
    assert_eq!(short(&nops).0.unwrap(), known);
    // Padding that is too short, of unknown length, or not padding.
    for padding in
        [&[0xcc; 12][..], &[], &[0; 13], &[0xcc, 0xcc, 0xcc, 0x55, 0, 0, 0, 0, 0, 0, 0, 0, 0]]
    {
        assert_eq!(short(padding).0, Err(Refusal::TooShort), "{padding:02x?}");
    }
    // The function ends at a multiple of 16: any bytes behind it are another function.
    assert_eq!(
        plan_patch(&[0xc3, 0xcc, 0xcc, 0xcc, 0xcc], ADDR + 15, Some(1)),
        Err(Refusal::TooShort)
    );
    // xor eax, eax, then on into the next function, over which the patch would lie.
    assert_eq!(
        plan_patch(&[[0x31, 0xc0], [0x90; 2]].concat(), ADDR, Some(2)),
        Err(Refusal::TooShort)
    );
    // A single jmp short.
    let mut jump = vec![0xcc; 16];
    jump[..2].copy_from_slice(&[0xeb, 0x40]);
    let plan = plan_patch(&jump, ADDR, Some(2)).unwrap();
    let moved = relocate(&plan, &jump, ADDR, ADDR + 0x10_0000).unwrap();
    assert_eq!(moved.bytes, [0xe9, 0x3d, 0x00, 0xf0, 0xff]);
}

#[test]
fn threads_are_moved() {
    let code = [0x55, 0x48, 0x89, 0xe5, 0x53, 0x5b, 0x5d, 0xc3];
    let plan = plan(&code).unwrap();
    let stub = ADDR + 0x4000;
    let moved = relocate(&plan, &code, ADDR, stub).unwrap();
    assert_eq!(moved.map, [(0, 0), (1, 1), (4, 4)]);
    assert_eq!(moved.moved_pc(ADDR, stub, ADDR + 4), Some(stub + 4));
    assert_eq!(moved.moved_pc(ADDR, stub, ADDR + 2), None);
    let covered: Vec<u64> = (ADDR - 2..ADDR + 8).filter(|&pc| plan.covers(ADDR, pc)).collect();
    assert_eq!(covered, [ADDR + 1, ADDR + 2, ADDR + 3, ADDR + 4]);
    assert!(!moved.has_call);
}

#[test]
fn stubs_too_far_away_are_refused() {
    let code = [0x48, 0x8b, 0x05, 0, 0, 0, 0x70, 0xc3];
    let plan = plan(&code).unwrap();
    let window = stub_window(&plan, &code, ADDR).unwrap();
    assert!(window.contains(&(ADDR + 0x1000)) && !window.contains(&(ADDR - 0x2000_0000)));
    assert_eq!(relocate(&plan, &code, ADDR, ADDR - 0x2000_0000), Err(Refusal::CannotMove));
    let code = [0x55, 0x48, 0x89, 0xe5, 0x53, 0xc3];
    let plan = self::plan(&code).unwrap();
    assert_eq!(relocate(&plan, &code, ADDR, ADDR + (1 << 32)), Err(Refusal::OutOfReach));
    assert_eq!(relocate(&plan, &code[..3], ADDR, ADDR + 4096), Err(Refusal::Changed));
}

/// Pages of executable memory, for this test only.
struct Page(*mut u8);

impl Page {
    fn new() -> Page {
        let prot = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        // SAFETY: the call makes a new anonymous mapping, which stays until the test ends.
        let p = unsafe {
            libc::mmap(null_mut(), 16384, prot, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(p, libc::MAP_FAILED);
        Page(p.cast())
    }

    fn put(&self, at: usize, bytes: &[u8]) -> u64 {
        // SAFETY: the tests write within the mapping only.
        unsafe { self.0.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.0 as u64 + at as u64
    }

    fn call(address: u64, argument: u64) -> u64 {
        // SAFETY: the code at `address` was put there as a function of one argument.
        unsafe { core::mem::transmute::<u64, extern "C" fn(u64) -> u64>(address)(argument) }
    }
}

/// Functions of one argument that use all kinds of instructions in their first bytes, at offset 0 of their
/// page. At offset 0x100 there is data (a word of 1000), at 0x200 a helper that doubles `rdi`.
const FUNCTIONS: &[(&str, &[u8])] = &[
    ("stack", &[0x48, 0x83, 0xec, 0x08, 0x48, 0x89, 0x3c, 0x24, 0x58, 0xc3]),
    (
        "large stack",
        &[0x48, 0x81, 0xec, 0, 1, 0, 0, 0x48, 0x89, 0xf8, 0x48, 0x81, 0xc4, 0, 1, 0, 0, 0xc3],
    ),
    ("plain", &[0x55, 0x48, 0x89, 0xe5, 0x48, 0x8d, 0x47, 0x07, 0x5d, 0xc3]),
    ("endbr64", &[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x89, 0xf8, 0x48, 0xff, 0xc0, 0xc3]),
    ("rip-relative load", &[0x48, 0x8b, 0x05, 0xf9, 0, 0, 0, 0x48, 0x01, 0xf8, 0xc3]),
    // test rdi, rdi; je +4; lea rax, [rdi + rdi]; ret; mov eax, 99; ret
    (
        "short branch",
        &[0x48, 0x85, 0xff, 0x74, 0x05, 0x48, 0x8d, 0x04, 0x3f, 0xc3, 0xb8, 99, 0, 0, 0, 0xc3],
    ),
    // cmp rdi, 1; ja near +5; xor eax, eax; ret; nop; nop; mov rax, rdi; ret
    (
        "near branch",
        &[
            0x48, 0x83, 0xff, 0x01, 0x0f, 0x87, 5, 0, 0, 0, 0x31, 0xc0, 0xc3, 0x90, 0x90, 0x48,
            0x89, 0xf8, 0xc3,
        ],
    ),
    // mov rcx, rdi; jrcxz +4; lea rax, [rdi + 1]; ret ... mov eax, 55; ret
    (
        "jrcxz",
        &[0x48, 0x89, 0xf9, 0xe3, 0x05, 0x48, 0x8d, 0x47, 0x01, 0xc3, 0xb8, 55, 0, 0, 0, 0xc3],
    ),
    // xor eax, eax; mov ecx, edi; inc ecx; (loop: ) inc eax; loop -4 ...: the loop is behind the
    // patch
    ("loop", &[0x31, 0xc0, 0x89, 0xf9, 0xff, 0xc1, 0xff, 0xc0, 0xe2, 0xfc, 0xc3]),
    // mov ecx, edi; inc ecx; loop +0 (a branch to the next instruction); mov eax, ecx; ret
    ("loop moved", &[0x89, 0xf9, 0xff, 0xc1, 0xe2, 0x02, 0x31, 0xd2, 0x89, 0xc8, 0xc3]),
    // push rdi; call helper; pop rdi; add rax, rdi; ret
    ("call", &[0x57, 0xe8, 0xfa, 0x01, 0, 0, 0x5f, 0x48, 0x01, 0xf8, 0xc3]),
    // call [rip + slot]: the slot at 0x108 holds the helper's address
    ("indirect call", &[0xff, 0x15, 0x02, 0x01, 0, 0, 0x48, 0xff, 0xc0, 0xc3]),
    ("jump", &[0xe9, 0xfb, 0x01, 0, 0]),
    ("indirect jump", &[0xff, 0x25, 0x02, 0x01, 0, 0]),
    (
        "short",
        &[
            0x89, 0xf8, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
            0xcc, 0xcc,
        ],
    ),
    // mov eax, edi; cmp eax, 3 | jl back to ... a displaced backward branch inside the copy: inc
    // edi; test dil, 7 ...
    ("inner branch", &[0xff, 0xc7, 0x75, 0x01, 0x90, 0x89, 0xf8, 0xc3]),
];

type Planner = fn(&[u8], u64, Option<u64>) -> Result<PatchPlan, Refusal>;

#[test]
fn moved_code_does_the_same() {
    for (name, code) in FUNCTIONS {
        for planner in [plan_patch as Planner, plan_at_entry] {
            moved_code_does(name, code, planner, false);
            moved_code_does(name, code, planner, true);
        }
    }
}

fn moved_code_does(name: &str, code: &[u8], planner: Planner, many: bool) {
    let page = Page::new();
    let func_addr = page.put(0, code);
    page.put(0x100, &1000_u64.to_le_bytes());
    let helper = page.put(0x200, &[0x48, 0x8d, 0x04, 0x3f, 0xc3]);
    page.put(0x108, &helper.to_le_bytes());
    let arguments = [0_u64, 1, 2, 7, 100];
    let expected = arguments.map(|a| Page::call(func_addr, a));

    // The descriptor holds the original's address and a count. The entry code counts and continues at the
    // original.
    let entry_addr = page.put(0x300, &[0x41, 0x5b, 0x49, 0xff, 0x43, 0x08, 0x41, 0xff, 0x23]);
    // The entry code begins with pop r11, which is needed only if the descriptor's address is on the stack.
    let entry_addr = if many { entry_addr } else { entry_addr + 2 };
    let flag_addr = page.put(0x310, &[0; 8]);
    let desc_addr = page.put(0x320, &[0; 16]);
    let size = if name == "short" { 3 } else { code.len() as u64 };
    let plan = planner(code, func_addr, Some(size)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let stub_addr = func_addr + 0x1000;
    assert!(stub_window(&plan, code, func_addr).unwrap().contains(&stub_addr));
    let params = StubParams {
        many,
        stub_addr,
        flag_addr,
        desc_addr,
        entry_addr,
        func_addr,
        code,
        plan: &plan,
    };
    let stub = build_stub(&params).unwrap_or_else(|e| panic!("{name}: {e}"));
    page.put(0x1000, &stub.bytes);
    page.put(0x320, &stub.original_addr.to_le_bytes());
    assert_eq!(arguments.map(|a| Page::call(stub.original_addr, a)), expected, "{name}: original");
    page.put(plan.patch_offset, &stub.patch);
    assert_eq!(stub.patch_addr, func_addr + plan.patch_offset as u64);

    // SAFETY: the address is within the mapping.
    let count = || unsafe { (desc_addr as *const u64).add(1).read_volatile() };
    assert_eq!(arguments.map(|a| Page::call(func_addr, a)), expected, "{name}: off");
    assert_eq!(count(), 0, "{name}");
    page.put(0x310, &[1]);
    assert_eq!(arguments.map(|a| Page::call(func_addr, a)), expected, "{name}: on");
    assert_eq!(count(), 5, "{name}");
    assert_eq!(stub.relocated.has_call, name.contains("call"), "{name}");

    // The patch is removed again.
    page.put(plan.patch_offset, &code[plan.patch_offset..][..PATCH_LEN]);
    assert_eq!(arguments.map(|a| Page::call(func_addr, a)), expected, "{name}: restored");
}

/// Returns the bytes of a function of this process and of what follows it.
fn bytes_of(address: u64) -> &'static [u8] {
    // SAFETY: libc's text goes on for more than 4096 bytes behind each of its allocation functions.
    unsafe { std::slice::from_raw_parts(address as *const u8, 4096) }
}

#[test]
fn the_allocator_of_this_process_can_be_patched() {
    let names = [
        c"malloc",
        c"free",
        c"calloc",
        c"realloc",
        c"memalign",
        c"posix_memalign",
        c"aligned_alloc",
        c"valloc",
        c"pvalloc",
        c"reallocarray",
        c"malloc_usable_size",
        c"mmap",
        c"munmap",
        c"strdup",
    ];
    for name in names {
        // SAFETY: `name` is a C string.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as u64;
        assert_ne!(address, 0, "{name:?}");
        let code = bytes_of(address);
        match plan_patch(code, address, None) {
            Ok(plan) => {
                let stub_addr = address.saturating_sub(0x1000_0000);
                let moved = relocate(&plan, code, address, stub_addr);
                println!("{name:?}: {plan:?} {:02x?}", moved.as_ref().map(|m| &m.bytes));
                assert!(moved.is_ok(), "{name:?}: {moved:?}");
            }
            Err(refusal) => panic!("{name:?}: {refusal}: {:02x?}", &code[..32]),
        }
    }
}

#[test]
fn most_functions_of_libc_can_be_patched() {
    let modules = common::modules();
    let libc = modules.iter().find(|m| m.name.contains("libc.so")).expect("glibc");
    let (mut planned, mut refused) = (0, std::collections::BTreeMap::new());
    let text = libc.text[0].clone();
    let mut pc = text.start;
    while pc < text.end {
        let Some(range) = function_range::<Rule>(&libc.cfi, pc) else {
            pc += 1;
            continue;
        };
        pc = range.end.max(pc + 1);
        let (size, known) = (range.end - range.start, text.end - range.start);
        // SAFETY: the range is from the function to the end of its segment, which stays mapped.
        let code = unsafe { std::slice::from_raw_parts(range.start as *const u8, known as usize) };
        match plan_patch(code, range.start, Some(size)) {
            Ok(plan) => {
                let stub = text.start - 0x10_0000;
                relocate(&plan, code, range.start, stub).unwrap();
                planned += 1;
            }
            Err(refusal) => {
                let kind = format!("{refusal:?}");
                let kind = kind.split([' ', '{']).next().unwrap().to_owned();
                *refused.entry(kind).or_insert(0) += 1;
            }
        }
    }
    println!("{planned} functions planned, refused: {refused:?}");
    assert!(planned > 1000 && refused.values().sum::<i32>() * 10 < planned, "{refused:?}");
}

/// Maps executable memory in `window`, below `address`.
fn near(address: u64, window: &std::ops::Range<u64>) -> Page {
    let prot = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    for step in 1..1000 {
        let at = (address & !0xfff) - step * 0x10_0000;
        // SAFETY: MAP_FIXED_NOREPLACE maps only where nothing is mapped yet.
        let p = unsafe { libc::mmap(at as *mut _, 16384, prot, flags, -1, 0) };
        if p != libc::MAP_FAILED {
            assert!(p as u64 == at && window.contains(&at));
            return Page(p.cast());
        }
    }
    panic!("no room near {address:#x}");
}

/// Returns the address of the original in a stub for a function of libc, which itself is not patched.
fn stub_of(name: &std::ffi::CStr) -> u64 {
    // SAFETY: `name` is a C string.
    let func_addr = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as u64;
    let code = bytes_of(func_addr);
    let plan = plan_patch(code, func_addr, None).unwrap();
    let page = near(func_addr, &stub_window(&plan, code, func_addr).unwrap());
    let flag_addr = page.put(0x1000, &[0; 8]);
    let (stub_addr, plan) = (page.put(0, &[]), &plan);
    let params = StubParams {
        many: false,
        stub_addr,
        flag_addr,
        desc_addr: 0,
        entry_addr: 0,
        func_addr,
        code,
        plan,
    };
    let stub = build_stub(&params).unwrap();
    page.put(0, &stub.bytes);
    stub.original_addr
}

#[test]
fn the_moved_allocator_allocates() {
    let [malloc, calloc, realloc, free] = [c"malloc", c"calloc", c"realloc", c"free"].map(stub_of);
    // SAFETY: the stubs lead to functions of these types; blocks are used as the allocator allows.
    unsafe {
        let malloc: extern "C" fn(usize) -> *mut u8 = std::mem::transmute(malloc);
        let calloc: extern "C" fn(usize, usize) -> *mut u8 = std::mem::transmute(calloc);
        let realloc: extern "C" fn(*mut u8, usize) -> *mut u8 = std::mem::transmute(realloc);
        let free: extern "C" fn(*mut u8) = std::mem::transmute(free);
        let blocks: Vec<*mut u8> = (1..500).map(|n| malloc(n * 37)).collect();
        for (p, n) in blocks.iter().zip(1..) {
            p.write_bytes(n as u8, n * 37);
        }
        for (p, n) in blocks.into_iter().zip(1..) {
            let p = realloc(p, n * 41);
            assert!((0..n * 37).all(|i| *p.add(i) == n as u8));
            free(p);
        }
        let p = calloc(100, 100);
        assert!((0..10_000).all(|i| *p.add(i) == 0));
        free(p);
        free(null_mut());
    }
}

#[test]
fn random_bytes_do_no_harm() {
    let mut x = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    let mut planned = 0;
    for _ in 0..200_000 {
        let len = (next() % 40) as usize;
        let code: Vec<u8> = (0..len).map(|_| (next() >> 32) as u8).collect();
        let address = if next() % 8 == 0 { next() } else { ADDR };
        let size = [None, Some(len as u64), Some(next() % 48), Some(next())][(next() % 4) as usize];
        if let Ok(plan) = plan_patch(&code, address, size) {
            planned += 1;
            assert!(plan.displaced_len >= PATCH_LEN || plan.terminated);
            let _ = stub_window(&plan, &code, address);
            if let Ok(moved) =
                relocate(&plan, &code, address, address.wrapping_add(next() % (1 << 32)))
            {
                let lead = usize::from(plan.lead != Lead::Nothing);
                assert_eq!(moved.map.len(), plan.displaced.len() + lead);
                assert!(moved.map.iter().all(|(_, new)| *new < moved.bytes.len()));
            }
        }
    }
    assert!(planned > 100);
}
