//! Finds out what a thread's seccomp filters do with a system call, by reading the filters and running them in prof.
//!
//! A filter is a program in classic BPF over `struct seccomp_data` (`include/uapi/linux/seccomp.h`). The instructions
//! that it may have are those that `seccomp_check_filter` in the kernel's kernel/seccomp.c accepts.

use crate::stopped::ptrace::ptrace;
use nix::errno::Errno;
use prof_os::Pid;

/// Value of `PTRACE_SECCOMP_GET_FILTER`.
const GET_FILTER: libc::c_uint = 0x420c;
/// Size of `struct seccomp_data`.
const DATA: usize = 64;
/// Maximum number of a program's instructions (`BPF_MAXINSNS`). As it has no jumps back, it ends after as many steps.
const MOST: usize = 4096;

/// Number by which a filter tells this architecture's calls (`AUDIT_ARCH_*` in `include/uapi/linux/audit.h`).
#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;
#[cfg(target_arch = "arm")]
const ARCH: u32 = 0x4000_0028;
#[cfg(all(target_arch = "mips64", target_endian = "big"))]
const ARCH: u32 = 0x8000_0008;
#[cfg(all(target_arch = "mips64", target_endian = "little"))]
const ARCH: u32 = 0xc000_0008;

/// An instruction, as in `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

/// Outcome of a system call under filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The call is made.
    Made,
    /// The call is not made, and returns an error.
    Fails,
    /// The thread or process is killed or gets a signal, another process decides, or the filter's answer is unknown.
    Other,
}

/// All filters of a thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filters(pub Vec<Vec<Instruction>>);

impl Filters {
    /// Reads the filters of a stopped thread.
    ///
    /// # Errors
    /// If prof has no CAP_SYS_ADMIN or runs under a filter itself, or if the kernel lacks the request.
    pub(crate) fn of(tid: Pid) -> nix::Result<Self> {
        let mut all = Vec::new();
        loop {
            // nix lacks the request.
            // SAFETY: without a buffer, the call returns the length and writes nothing.
            let n = unsafe { libc::ptrace(GET_FILTER, tid.as_raw(), all.len(), 0usize) };
            let n = match (n, Errno::last()) {
                (-1, Errno::ENOENT) => return Ok(Self(all)),
                (-1, errno) => return Err(errno),
                (n, _) => n as usize,
            };
            // Filters are only ever added, earlier ones keep their index, and programs never change: the length stays
            // right.
            let mut program = vec![Instruction::default(); n.clamp(1, MOST)];
            if n > MOST {
                return Err(Errno::EOVERFLOW);
            }
            ptrace(GET_FILTER, tid, all.len(), program.as_mut_ptr() as usize)?;
            program.truncate(n);
            all.push(program);
        }
    }

    /// Returns the outcome of this call if the instruction that ends at `after` makes it.
    pub(crate) fn fate(&self, number: u64, args: [u64; 6], after: u64) -> Fate {
        let mut data = [0; DATA];
        let numbers = (number as u32).to_ne_bytes().into_iter().chain(ARCH.to_ne_bytes());
        let words = [after].into_iter().chain(args).map(|w| w as usize as u64);
        let bytes = numbers.chain(words.flat_map(u64::to_ne_bytes));
        data.iter_mut().zip(bytes).for_each(|(to, b)| *to = b);
        // The strictest action counts: the kernel compares their values as signed numbers, and the least one is the
        // strictest.
        let actions = self.0.iter().map(|program| run(program, &data));
        let worst = actions.map(|a| a.map_or(i32::MIN, |a| (a & 0xffff_0000) as i32)).min();
        match worst {
            None | Some(0x7fff_0000 | 0x7ffc_0000) => Fate::Made,
            // An error, or a request to a tracer: as prof does not serve these, the call fails.
            Some(0x0005_0000 | 0x7ff0_0000) => Fate::Fails,
            Some(_) => Fate::Other,
        }
    }
}

/// Runs a program. Returns `None` if the kernel would not have accepted it.
fn run(program: &[Instruction], data: &[u8; DATA]) -> Option<u32> {
    let (mut a, mut x, mut scratch) = (0u32, 0u32, [0u32; 16]);
    let mut pc = 0usize;
    for _ in 0..=program.len() {
        let Instruction { code, jt, jf, k } = *program.get(pc)?;
        pc += 1;
        let cell = k as usize;
        let jump = |yes: bool| usize::from(if yes { jt } else { jf });
        let operand = if code & 0x08 != 0 { x } else { k };
        match code {
            // Loads and stores.
            0x20 => a = u32::from_ne_bytes(*data.get(cell..)?.first_chunk()?),
            0x80 => a = DATA as u32,
            0x81 => x = DATA as u32,
            0x00 => a = k,
            0x01 => x = k,
            0x60 => a = *scratch.get(cell)?,
            0x61 => x = *scratch.get(cell)?,
            0x02 => *scratch.get_mut(cell)? = a,
            0x03 => *scratch.get_mut(cell)? = x,
            0x07 => x = a,
            0x87 => a = x,
            // Arithmetic, with a constant or with x.
            0x04 | 0x0c => a = a.wrapping_add(operand),
            0x14 | 0x1c => a = a.wrapping_sub(operand),
            0x24 | 0x2c => a = a.wrapping_mul(operand),
            // A division by zero ends the program with 0.
            0x34 | 0x3c => match a.checked_div(operand) {
                Some(q) => a = q,
                None => return Some(0),
            },
            0x44 | 0x4c => a |= operand,
            0x54 | 0x5c => a &= operand,
            0x64 | 0x6c => a = a.wrapping_shl(operand),
            0x74 | 0x7c => a = a.wrapping_shr(operand),
            0xa4 | 0xac => a ^= operand,
            0x84 => a = a.wrapping_neg(),
            // Jumps, which only go forward.
            0x05 => pc = pc.checked_add(cell)?,
            0x15 | 0x1d => pc += jump(a == operand),
            0x25 | 0x2d => pc += jump(a > operand),
            0x35 | 0x3d => pc += jump(a >= operand),
            0x45 | 0x4d => pc += jump(a & operand != 0),
            0x06 => return Some(k),
            0x16 => return Some(a),
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOW: u32 = 0x7fff_0000;

    fn i(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
        Instruction { code, jt, jf, k }
    }

    /// Returns a filter with another action for one number of a call.
    fn but(number: u32, action: u32) -> Vec<Instruction> {
        vec![i(0x20, 0, 0, 0), i(0x15, 0, 1, number), i(0x06, 0, 0, action), i(0x06, 0, 0, ALLOW)]
    }

    fn fate(programs: &[Vec<Instruction>], number: u64) -> Fate {
        Filters(programs.to_vec()).fate(number, [1, 2, 3, 4, 5, 6], 0x1002)
    }

    #[test]
    fn the_strictest_filter_counts() {
        assert_eq!(fate(&[], 9), Fate::Made);
        for (action, expected) in [
            (0x8000_0000, Fate::Other), // the process is killed
            (0, Fate::Other),           // the thread
            (0x0003_0000, Fate::Other), // SIGSYS
            (0x7fc0_0000, Fate::Other), // another process is asked
            (0x0005_0001, Fate::Fails),
            (0x7ff0_0000, Fate::Fails),
            (0x7ffc_0000, Fate::Made),
            (0x1234_0000, Fate::Other), // unknown: killed
        ] {
            for all in [vec![but(9, action), but(10, 0)], vec![but(10, 0), but(9, action)]] {
                assert_eq!(fate(&all, 9), expected, "{action:#x}");
                assert_eq!(fate(&all, 10), Fate::Other);
                assert_eq!(fate(&all, 11), Fate::Made);
            }
        }
    }

    #[test]
    fn what_a_filter_sees() {
        let equal = |at: u32, value: u32| {
            vec![i(0x20, 0, 0, at), i(0x15, 0, 1, value), i(0x06, 0, 0, ALLOW), i(0x06, 0, 0, 0)]
        };
        let low = if cfg!(target_endian = "big") { 4 } else { 0 };
        assert_eq!(fate(&[equal(4, ARCH)], 9), Fate::Made);
        assert_eq!(fate(&[equal(8 + low, 0x1002)], 9), Fate::Made);
        for n in 0..6 {
            assert_eq!(fate(&[equal(16 + 8 * n + low, n + 1)], 9), Fate::Made);
        }
        assert_eq!(fate(&[equal(16 + low, 2)], 9), Fate::Other);
    }

    #[test]
    fn instructions() {
        let of = |body: &[Instruction]| {
            let program: Vec<_> = body.iter().copied().chain([i(0x16, 0, 0, 0)]).collect();
            run(&program, &[0; DATA])
        };
        assert_eq!(of(&[i(0x00, 0, 0, 7), i(0x04, 0, 0, 5), i(0x24, 0, 0, 3)]), Some(36));
        assert_eq!(
            of(&[i(0x00, 0, 0, 7), i(0x02, 0, 0, 3), i(0x61, 0, 0, 3), i(0x0c, 0, 0, 0)]),
            Some(14)
        );
        assert_eq!(of(&[i(0x00, 0, 0, 7), i(0x34, 0, 0, 2), i(0x64, 0, 0, 4)]), Some(48));
        assert_eq!(of(&[i(0x00, 0, 0, 7), i(0x3c, 0, 0, 0)]), Some(0));
        assert_eq!(of(&[i(0x80, 0, 0, 0), i(0x07, 0, 0, 0), i(0x1c, 0, 0, 0)]), Some(0));
        assert_eq!(of(&[i(0x84, 0, 0, 0), i(0xa4, 0, 0, 6), i(0x54, 0, 0, 4)]), Some(4));
        assert_eq!(of(&[i(0x05, 0, 0, 1), i(0x00, 0, 0, 9)]), Some(0));
        // The kernel would accept none of these.
        assert_eq!(of(&[i(0x20, 0, 0, 64)]), None);
        assert_eq!(of(&[i(0x02, 0, 0, 16)]), None);
        assert_eq!(of(&[i(0x05, 0, 0, 9)]), None);
        assert_eq!(run(&[i(0x00, 0, 0, 9)], &[0; DATA]), None);
        assert_eq!(run(&[i(0x28, 0, 0, 0)], &[0; DATA]), None);
    }
}
