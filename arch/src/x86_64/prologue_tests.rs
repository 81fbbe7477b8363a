use super::*;

/// Returns the form of the rule at an offset of some code, which is at 0x1000.
fn at(code: &[u8], offset: u64) -> Option<Form> {
    form(code, offset, true)
}

fn form(code: &[u8], offset: u64, exact: bool) -> Option<Form> {
    let mut read = |at: u64, to: &mut [u8]| {
        let from = at.checked_sub(0x1000).map(|n| n as usize);
        let bytes = from.and_then(|n| code.get(n..n + to.len()));
        bytes.map(|b| to.copy_from_slice(b)).is_some()
    };
    rule_by_code(0x1000 + offset, exact, &mut read).map(|rule| rule.form())
}

fn by_sp(cfa_off: i32, fp_slot: Option<i32>) -> Option<Form> {
    Some(Form::CfaSp { cfa_off, ra_slot: -8, fp_slot })
}

/// sub rsp, 16; push 0; call; mov rdi, rax; call; add rsp, 24; ret
const WAITS: [u8; 24] = [
    0x48, 0x83, 0xec, 0x10, 0x6a, 0x00, 0xe8, 0, 1, 0, 0, 0x48, 0x89, 0xc7, 0xe8, 0, 2, 0, 0, 0x48,
    0x83, 0xc4, 0x18, 0xc3,
];

#[test]
fn a_function_that_makes_room() {
    assert_eq!(at(&WAITS, 0), by_sp(8, None));
    assert_eq!(at(&WAITS, 4), by_sp(24, None));
    assert_eq!(at(&WAITS, 11), by_sp(32, None));
    assert_eq!(at(&WAITS, 19), by_sp(32, None));
    assert_eq!(at(&WAITS, 23), by_sp(8, None));
}

#[test]
fn saved_frame_pointers_are_found() {
    // push rbx; push rbp; mov rbp, rdi; call; pop rbp; pop rbx; ret
    let code = [0x53, 0x55, 0x48, 0x89, 0xfd, 0xe8, 0, 1, 0, 0, 0x5d, 0x5b, 0xc3];
    assert_eq!(at(&code, 10), by_sp(24, Some(-24)));
    assert_eq!(at(&code, 11), by_sp(16, None));
    // push rbp; mov rbp, rsp; and rsp, -32; call; leave; ret
    let code = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xe4, 0xe0, 0xe8, 0, 1, 0, 0, 0xc9, 0xc3];
    assert_eq!(at(&code, 13), Some(Form::CfaFp { cfa_off: 16, ra_slot: -8, fp_slot: Some(-16) }));
}

#[test]
fn a_call_that_never_returns_ends_the_path() {
    // mov rax, [rsp]; test rax, rax; jne +5; add rsp, 8; ret; call; nop word; push rbx; ret
    let code = [
        0x48, 0x8b, 0x04, 0x24, 0x48, 0x85, 0xc0, 0x75, 0x05, 0x48, 0x83, 0xc4, 0x08, 0xc3, 0xe8,
        0, 1, 0, 0, 0x66, 0x90, 0x53, 0xc3,
    ];
    assert_eq!(at(&code, 0), by_sp(16, None));
    assert_eq!(form(&code, 19, false), None, "behind the call");
    // The other way round: the call is met first.
    // test eax, eax; je +5; call; nop; add rsp, 8; ret
    let code = [0x85, 0xc0, 0x74, 0x06, 0xe8, 0, 1, 0, 0, 0x90, 0x48, 0x83, 0xc4, 0x08, 0xc3];
    assert_eq!(at(&code, 0), by_sp(16, None));
}

#[test]
fn a_jump_to_another_function_is_followed() {
    // add rsp, 24; jmp +3; int3 (3); ret
    let code = [0x48, 0x83, 0xc4, 0x18, 0xeb, 0x03, 0xcc, 0xcc, 0xcc, 0xc3];
    assert_eq!(at(&code, 0), by_sp(32, None));
    assert_eq!(at(&code, 6), None);
}

#[test]
fn what_is_not_certain_gives_no_rule() {
    // mov rsp, rax; ret
    assert_eq!(at(&[0x48, 0x89, 0xc4, 0xc3], 0), None);
    // xor ebp, ebp; ret: the caller's frame pointer is lost
    assert_eq!(at(&[0x31, 0xed, 0xc3], 0), None);
    // jmp rax; an invalid instruction; the end of the code
    assert_eq!(at(&[0xff, 0xe0], 0), None);
    assert_eq!(at(&[0x06], 0), None);
    assert_eq!(at(&[0x90], 0), None);
}
