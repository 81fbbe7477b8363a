//! What somebody else has written into the functions that are to be patched: breakpoints of uprobes
//! (bpftrace, bcc, `perf probe`) or of a debugger, and other tools' jumps.
//!
//! A uprobe is a breakpoint in the process's copy of the page. When it is hit, the kernel executes
//! the instruction that the *file* has there, somewhere else, and goes on behind it. So such a
//! breakpoint must never be moved, nor be overwritten, and what is moved must come from the file.

use crate::elf::{Module, has_text_relocations};
use crate::recorded::Patched;
use crate::{RemoteAddr, RemoteMemory};
use prof_arch::native::jump::{breakpoint, breakpoint_len, code_at, decode_jump};

/// A function's code, as its file has it where breakpoints stand.
#[derive(Debug, Default)]
pub(crate) struct Code {
    pub bytes: Vec<u8>,
    /// Where breakpoints stand that the file does not have, from the function's start.
    pub breakpoints: Vec<usize>,
    /// The first place where other bytes differ, and what stands there.
    changed: Option<(usize, String)>,
}

impl Code {
    /// The code at a function's address, `len` bytes of it.
    pub fn read(mem: &RemoteMemory, m: &Module, addr: RemoteAddr, len: u64) -> Self {
        let at = code_at(addr.0);
        let have = mem.read_some(RemoteAddr(at), len as usize);
        let file = m.open(mem.pid(), mem).filter(|_| m.path.as_os_str() != "[vdso]");
        let want = file.and_then(|f| f.at_address(at.wrapping_sub(m.bias), have.len() as u64));
        let moves = || has_text_relocations(mem, m);
        Self::compare(have, want.as_deref(), addr.0, moves)
    }

    /// `want` is what the file has, as much as it has; `relocated` whether the linker writes into code.
    fn compare(
        mut have: Vec<u8>,
        want: Option<&[u8]>,
        addr: u64,
        relocated: impl Fn() -> bool,
    ) -> Self {
        let mut code = Code::default();
        let Some(want) = want else {
            // Nobody knows what was there. No function begins with a breakpoint.
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
            // Architectures whose breakpoints are words may have bytes in common with what was there.
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
                    Some(to) => format!("a jump to {to:#x} at +{at:#x} (another tool's hook?)"),
                    None => {
                        format!("its code at +{at:#x} is not what its file has (another tool?)")
                    }
                };
                code.changed = Some((at, what));
            }
            at += 1;
        }
        code.bytes = have;
        code
    }

    /// Why the bytes `from..to` can't be moved elsewhere, if so.
    pub fn reason(&self, from: usize, to: usize) -> Option<String> {
        let in_front = |at: &&usize| (from..to).contains(*at);
        if let Some(at) = self.breakpoints.iter().find(in_front) {
            return Some(format!(
                "a breakpoint stands at +{at:#x}: a uprobe (bpftrace, bcc, perf probe) or a debugger's; take it away first"
            ));
        }
        self.changed.as_ref().filter(|(at, _)| *at < to).map(|(_, what)| what.clone())
    }
}

/// Whether code begins with a breakpoint, whoever put it there.
#[must_use]
pub fn begins_with_breakpoint(code: &[u8], addr: u64) -> bool {
    breakpoint_len(code, addr).is_some()
}

/// What to put back where a patch was, if it is not all there any more: the kernel writes a breakpoint
/// over its first instruction for a uprobe, and what the *file* has there when the uprobe goes. Both
/// stay; the rest of the patch is taken back. Also says what was found.
pub(crate) fn restored(at: RemoteAddr, now: &[u8], f: &Patched) -> (Vec<u8>, &'static str) {
    let (old, new) = (&f.old_bytes[..], &f.new_bytes[..]);
    // Bit 0 says on ARM which instruction set it is.
    let probe = breakpoint_len(now, at.0).or_else(|| breakpoint_len(now, at.0 | 1)).unwrap_or(0);
    let rest = |from: usize| from < now.len() && new.get(from..) == now.get(from..);
    if probe != 0 && rest(probe) && old.len() == now.len() {
        let bytes = [&now[..probe], &old[probe..]].concat();
        return (bytes, "a breakpoint (a uprobe?) stands over the hook, and stays");
    }
    // As long as a breakpoint: what a uprobe takes with it when it goes.
    let len = breakpoint(at.0).len();
    if rest(len) && old.get(..len) == now.get(..len) {
        return (old.to_vec(), "a uprobe had written over the hook; taken back");
    }
    (now.to_vec(), "somebody else has changed its code; left as it is")
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
        // Without the file, only one at the entry is known to be one.
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
        // The uprobe has gone, and has brought the file's bytes back.
        let half = [&old[..brk.len()], &patch[brk.len()..]].concat();
        assert_eq!(restored(at, &half, &f).0, old);
        let other = vec![0x11; 8];
        assert_eq!(restored(at, &other, &f).0, other);
    }
}
