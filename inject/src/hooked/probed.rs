//! Changes that others have made to the functions that are to be patched: breakpoints of uprobes (bpftrace, bcc,
//! `perf probe`) or of a debugger, and other tools' jumps.
//!
//! A uprobe is a breakpoint in the process's copy of the page. When it is hit, the kernel executes the instruction
//! that the *file* has there at another place, and continues behind it. So such a breakpoint must be neither moved
//! nor overwritten, and the instructions that prof moves must come from the file.

use crate::process::elf::{Module, has_text_relocations};
use crate::recorded::Patched;
use crate::{RemoteAddr, RemoteMemory};
use prof_arch::native::jump::{breakpoint, breakpoint_len, code_at, decode_jump};

/// A function's code, with the file's bytes in place of breakpoints.
#[derive(Debug, Default)]
pub(crate) struct Code {
    pub bytes: Vec<u8>,
    /// Offsets from the function's start of breakpoints that the file does not have.
    pub breakpoints: Vec<usize>,
    /// Offset of the first other difference, with a description.
    changed: Option<(usize, String)>,
}

impl Code {
    /// Reads the `len` bytes of code at a function's address.
    pub(crate) fn read(mem: &RemoteMemory, m: &Module, addr: RemoteAddr, len: u64) -> Self {
        let at = code_at(addr.0);
        let have = mem.read_some(RemoteAddr(at), len as usize);
        let file = m.open(mem.pid(), mem).filter(|_| m.path.as_os_str() != "[vdso]");
        let want = file.and_then(|f| f.at_address(at.wrapping_sub(m.bias), have.len() as u64));
        let moves = || has_text_relocations(mem, m);
        Self::compare(have, want.as_deref(), addr.0, moves)
    }

    /// Compares the code in memory with `want`, the bytes that the file has. `relocated` returns whether the dynamic
    /// linker writes into code.
    fn compare(
        mut have: Vec<u8>,
        want: Option<&[u8]>,
        addr: u64,
        relocated: impl Fn() -> bool,
    ) -> Self {
        let mut code = Code::default();
        let Some(want) = want else {
            // The original code is unknown. No function begins with a breakpoint of its own.
            code.breakpoints.extend(breakpoint_len(&have, addr).map(|_| 0));
            code.bytes = have;
            return code;
        };
        let mut at = 0;
        while at < have.len().min(want.len()) {
            if have[at] == want[at] {
                at += 1;
                continue;
            }
            // If breakpoints are words, they may have bytes in common with the original, so that the first
            // differing byte may be behind the breakpoint's start.
            let begins = |n: &usize| {
                *n <= at && breakpoint_len(&have[at - n..], addr).is_some_and(|len| len > *n)
            };
            if let Some(back) = (0..4).find(begins) {
                let start = at - back;
                let len = breakpoint_len(&have[start..], addr).unwrap_or(1);
                let end = (start + len).min(want.len());
                have[start..end].copy_from_slice(&want[start..end]);
                code.breakpoints.push(start);
                at = end;
                continue;
            }
            if code.changed.is_none() && !relocated() {
                let to = decode_jump(code_at(addr).wrapping_add(at as u64), &have[at..]);
                let what = match to {
                    Some(to) => format!(
                        "its code at offset {at:#x} was replaced by a jump to {to:#x} (another tool's hook?)"
                    ),
                    None => {
                        format!(
                            "its code at offset {at:#x} differs from its file (changed by another tool?)"
                        )
                    }
                };
                code.changed = Some((at, what));
            }
            at += 1;
        }
        code.bytes = have;
        code
    }

    /// Returns why the bytes `from..to` can't be moved elsewhere, if there is a reason.
    pub(crate) fn reason(&self, from: usize, to: usize) -> Option<String> {
        let in_front = |at: &&usize| (from..to).contains(*at);
        if let Some(at) = self.breakpoints.iter().find(in_front) {
            return Some(format!(
                "a breakpoint stands at offset {at:#x}: a uprobe (bpftrace, bcc, perf probe) or a debugger's; remove it and attach again"
            ));
        }
        self.changed.as_ref().filter(|(at, _)| *at < to).map(|(_, what)| what.clone())
    }
}

/// Returns whether code begins with a breakpoint of any tool.
#[must_use]
pub fn begins_with_breakpoint(code: &[u8], addr: u64) -> bool {
    breakpoint_len(code, addr).is_some()
}

/// Returns the bytes to write in place of a patch that was changed, and a description of the change. For a uprobe,
/// the kernel writes a breakpoint over the patch's first instruction, and the *file's* bytes when the uprobe goes.
/// Either is kept, and the rest of the patch is replaced by the original code. Any other change is left as it is.
pub(crate) fn restored(at: RemoteAddr, now: &[u8], f: &Patched) -> (Vec<u8>, &'static str) {
    let (old, new) = (&f.old_bytes[..], &f.new_bytes[..]);
    // On ARM, bit 0 of an address tells the instruction set.
    let probe = breakpoint_len(now, at.0).or_else(|| breakpoint_len(now, at.0 | 1)).unwrap_or(0);
    let rest = |from: usize| from < now.len() && new.get(from..) == now.get(from..);
    if probe != 0 && rest(probe) && old.len() == now.len() {
        let bytes = [&now[..probe], &old[probe..]].concat();
        return (
            bytes,
            "a breakpoint (a uprobe?) was put on prof's patch; prof kept it and restored the rest",
        );
    }
    // When a uprobe goes, the kernel restores as many bytes as its breakpoint has.
    let len = breakpoint(at.0).len();
    if rest(len) && old.get(..len) == now.get(..len) {
        return (
            old.to_vec(),
            "a uprobe had changed prof's patch; prof restored the original code",
        );
    }
    (now.to_vec(), "another tool has changed its code since; prof left it as it is")
}

#[cfg(test)]
mod tests {
    use super::*;
    use prof_arch::native::jump::{PATCH_LEN, encode_jump};

    const ADDR: u64 = 0x40_0000;

    fn file() -> Vec<u8> {
        (0..64u8).map(|n| n.wrapping_mul(3) | 0x40).collect()
    }

    #[test]
    fn a_breakpoint_is_read_as_what_the_file_has() {
        let same = Code::compare(file(), Some(&file()), ADDR, || false);
        assert!(same.breakpoints.is_empty() && same.reason(0, 64).is_none());
        let mut have = file();
        let brk = breakpoint(ADDR);
        have[8..8 + brk.len()].copy_from_slice(brk);
        let code = Code::compare(have.clone(), Some(&file()), ADDR, || false);
        assert_eq!((code.bytes.as_slice(), &code.breakpoints[..]), (&file()[..], &[8][..]));
        assert_eq!(code.reason(0, 8), None);
        assert!(code.reason(4, 12).unwrap().contains("uprobe"));
        assert_eq!(code.reason(12, 20), None);
        // Without the file, only a breakpoint at the entry is certain to be one.
        let unknown = Code::compare(have[8..].to_vec(), None, ADDR, || false);
        assert_eq!(unknown.breakpoints, [0]);
    }

    #[test]
    fn other_changes_are_named() {
        let mut have = file();
        let jump = encode_jump(ADDR, ADDR + 0x1000).expect("near");
        have[..PATCH_LEN].copy_from_slice(&jump);
        let code = Code::compare(have.clone(), Some(&file()), ADDR, || false);
        assert!(code.reason(0, 8).unwrap().contains("jump to 0x401000"));
        assert_eq!(Code::compare(have, Some(&file()), ADDR, || true).reason(0, 8), None);
        let mut have = file();
        have[32] ^= 1;
        let code = Code::compare(have, Some(&file()), ADDR, || false);
        assert_eq!(code.reason(0, 8), None);
        assert!(code.reason(0, 40).unwrap().contains("file"));
    }

    #[test]
    fn a_patch_that_a_uprobe_was_put_on_is_taken_back() {
        let at = RemoteAddr(ADDR);
        let brk = breakpoint(ADDR);
        let patch: Vec<u8> = (0..8).map(|n| 0xa0 + n).collect();
        let old = file()[..8].to_vec();
        let f = Patched {
            patched_at: RemoteAddr(0),
            is_patched: true,
            patch_addr: at,
            old_bytes: old.clone(),
            new_bytes: patch.clone(),
            name: "f".into(),
        };
        let probed = [brk, &patch[brk.len()..]].concat();
        let (bytes, what) = restored(at, &probed, &f);
        assert_eq!(bytes, [brk, &old[brk.len()..]].concat(), "{what}");
        // The uprobe has gone, and the kernel has restored the file's bytes.
        let half = [&old[..brk.len()], &patch[brk.len()..]].concat();
        assert_eq!(restored(at, &half, &f).0, old);
        let other = vec![0x11; 8];
        assert_eq!(restored(at, &other, &f).0, other);
    }
}
