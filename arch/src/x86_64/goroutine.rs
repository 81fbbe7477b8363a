//! Go code that calls C, known by its instructions: Go has no unwind tables that are loaded, and a stripped program has
//! no symbols.
//!
//! Two frames need more than the chain of frame pointers. `runtime.asmcgocall` runs on the thread's own stack and was
//! called on the goroutine's. Its caller, `runtime.cgocall`, is the innermost frame on the goroutine's stack; where its
//! frame pointer points is not known, as the stack may have moved since, so its frame is measured by its epilogue.

use crate::generic::rule::Form;

/// Reads code; returns false if not all of it can be read.
type Read<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> bool;

/// First instructions of `asmcgocall`: both arguments and the stack pointer go to registers.
const ASMCGOCALL: [u8; 13] =
    [0x48, 0x8b, 0x44, 0x24, 0x08, 0x48, 0x8b, 0x5c, 0x24, 0x10, 0x48, 0x89, 0xe2];

/// Returns the form for the return address `pc`, if it is in `asmcgocall` or in a function that called that.
pub(super) fn form(pc: u64, read: Read<'_>) -> Option<Form> {
    let mut code = [0; 40];
    let switched = read(pc, &mut code).then(|| go_call(&code)).flatten();
    switched.or_else(|| calls_asmcgocall(pc, read).then(|| frame(pc, read)).flatten())
}

/// Recognises `asmcgocall` by the code behind its call, which restores the goroutine's stack pointer (`mov rdi,
/// [rsp+G]; mov rsi, [rdi+8]; sub rsi, [rsp+D]`). A load of the thread pointer may stand before it, and G and D
/// differ between versions of Go.
fn go_call(code: &[u8]) -> Option<Form> {
    (0..24).find_map(|at| {
        let (g_at, rest) = from_rsp(code.get(at..)?, 0x8b, 0x3c)?;
        let rest = rest.strip_prefix(&[0x48, 0x8b, 0x77, 0x08])?;
        let (depth_at, _) = from_rsp(rest, 0x2b, 0x34)?;
        Some(Form::GoCall { g_at: g_at.into(), depth_at: depth_at.into() })
    })
}

/// Decodes a 64-bit instruction with this opcode and ModRM byte and the address `[rsp]` or `[rsp+N]`. Returns `N`
/// and the code behind it.
fn from_rsp(code: &[u8], opcode: u8, modrm: u8) -> Option<(i8, &[u8])> {
    match *code {
        [0x48, o, m, 0x24, ref rest @ ..] if (o, m) == (opcode, modrm) => Some((0, rest)),
        [0x48, o, m, 0x24, n, ref rest @ ..] if (o, m) == (opcode, modrm | 0x40) => {
            Some((n as i8, rest))
        }
        _ => None,
    }
}

/// Returns whether the instruction in front of `pc` calls `asmcgocall`.
fn calls_asmcgocall(pc: u64, read: Read<'_>) -> bool {
    let (mut call, mut code) = ([0; 5], ASMCGOCALL);
    code.fill(0);
    if !read(pc.wrapping_sub(5), &mut call) {
        return false;
    }
    let [0xe8, a, b, c, d] = call else { return false };
    let to = pc.wrapping_add(i64::from(i32::from_le_bytes([a, b, c, d])) as u64);
    read(to, &mut code) && code == ASMCGOCALL
}

/// Returns the form of the frame that the first epilogue from `pc` on removes.
fn frame(pc: u64, read: Read<'_>) -> Option<Form> {
    let mut code = [0; 512];
    // The code may end before.
    let len = [512, 256, 128, 64].into_iter().find(|n| {
        let part = code.get_mut(..*n);
        part.is_some_and(|part| read(pc, part))
    })?;
    let fp_at = (0..len).find_map(|at| epilogue(code.get(at..len)?))?;
    let cfa_off = fp_at.checked_add(16).filter(|_| fp_at >= 0)?;
    Some(Form::CfaSp { cfa_off, ra_slot: -8, fp_slot: Some(-16) })
}

/// Decodes an epilogue of Go's: `mov rbp, [rsp+N]; add rsp, N+8; ret`, or since Go 1.21 `add rsp, N; pop rbp; ret`.
/// Returns `N`.
fn epilogue(code: &[u8]) -> Option<i32> {
    let word = |b: &[u8; 4]| i32::from_le_bytes(*b);
    let (loaded, rest) = match code {
        [0x48, 0x8b, 0x6c, 0x24, n, rest @ ..] => (Some(i32::from(*n as i8)), rest),
        [0x48, 0x8b, 0xac, 0x24, rest @ ..] => {
            let (n, rest) = rest.split_first_chunk()?;
            (Some(word(n)), rest)
        }
        _ => (None, code),
    };
    let (added, rest) = match rest {
        [0x48, 0x83, 0xc4, n, rest @ ..] => (i32::from(*n as i8), rest),
        // The shorter way to add 128.
        [0x48, 0x83, 0xec, 0x80, rest @ ..] => (128, rest),
        [0x48, 0x81, 0xc4, rest @ ..] => {
            let (n, rest) = rest.split_first_chunk()?;
            (word(n), rest)
        }
        _ => return None,
    };
    match (loaded, rest) {
        (Some(n), [0xc3, ..]) if n.checked_add(8) == Some(added) => Some(n),
        (None, [0x5d, 0xc3, ..]) => Some(added),
        _ => None,
    }
}

#[cfg(test)]
#[path = "goroutine_tests.rs"]
mod tests;
