//! The patch: one branch, and how far it reaches.

use core::ops::Range;

/// Code of a function that returns at once.
pub const RETURN: &[u8] = &0xd65f_03c0u32.to_le_bytes();

/// The breakpoint instruction, `brk #0`. The program counter stays on it.
pub const BREAKPOINT: [u8; 4] = 0xd420_0000_u32.to_le_bytes();

/// Returns the length of the breakpoint instruction that code begins with, whoever put it there: a debugger,
/// or the kernel for a uprobe.
#[must_use]
pub fn breakpoint_len(code: &[u8], _at: u64) -> Option<usize> {
    let word = u32::from_le_bytes(*code.first_chunk()?);
    // brk, with any number.
    (word & 0xffe0_001f == 0xd420_0000).then_some(4)
}

/// Returns the breakpoint instruction for the code at this address.
#[must_use]
pub fn breakpoint(_at: u64) -> &'static [u8] {
    &BREAKPOINT
}

/// Returns the address of the instructions of the function with this address: the same.
#[must_use]
pub const fn code_at(addr: u64) -> u64 {
    addr
}

/// Length of a patch, `b label`. It is one instruction, so that no thread is ever inside.
pub const PATCH_LEN: usize = 4;

/// Range of user addresses that can be mapped: above the usual `mmap_min_addr`, and within 48 bits.
const LOWEST: u64 = 0x1_0000;
const HIGHEST: u64 = 0xffff_ffff_f000;

/// Distance from an address at which code may be placed so that branches between them work in both
/// directions, with 64 KiB to spare for the length of that code.
pub const REACH: u64 = (128 << 20) - (64 << 10);

const BRANCH: u32 = 0x1400_0000;
const BRANCH_MASK: u32 = 0xfc00_0000;

/// Returns the offset field of `b` and `bl` for a branch from `from` to `to`; `None` if that is too far.
pub(super) fn imm26(from: u64, to: u64) -> Option<u32> {
    let distance = to.wrapping_sub(from) as i64;
    let near = (-(1 << 27)..1 << 27).contains(&distance) && distance & 3 == 0;
    near.then_some((distance >> 2) as u32 & !BRANCH_MASK)
}

/// Encodes `b to` at `from`; returns `None` if that is too far, or either is not a multiple of 4.
#[must_use]
pub fn encode_jump(from: u64, to: u64) -> Option<[u8; PATCH_LEN]> {
    Some((BRANCH | imm26(from, to)?).to_le_bytes())
}

/// Returns the target of the branch `bytes` at `from`, if it is one.
#[must_use]
pub fn decode_jump(from: u64, bytes: &[u8]) -> Option<u64> {
    let insn = u32::from_le_bytes(*bytes.first_chunk()?);
    let distance = ((insn << 6) as i32 >> 4) as i64;
    (insn & BRANCH_MASK == BRANCH).then(|| from.wrapping_add_signed(distance))
}

/// Returns the range of addresses from which a stub reaches `addr` and is reached.
#[must_use]
pub fn near_window(addr: u64) -> Range<u64> {
    addr.saturating_sub(REACH).max(LOWEST)..addr.saturating_add(REACH).min(HIGHEST)
}

/// Bytes of a stub behind the instruction that undoes what stands in front of the patch, up to the original.
const TAKEN_BACK: u64 = 16;

/// Returns the offset in a function at which its state is that of a stub's first part, `at` bytes before the
/// original: behind what stands in front of the patch, until the stub has undone that.
#[must_use]
pub fn place_before_original(at: u64, patch_offset: u64) -> u64 {
    if at <= TAKEN_BACK { 0 } else { patch_offset }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps() {
        assert_eq!(encode_jump(0x1000, 0x1000), Some([0, 0, 0, 0x14]));
        assert_eq!(encode_jump(0x1000, 0x1004), Some([1, 0, 0, 0x14]));
        assert_eq!(encode_jump(0x1000, 0xffc), Some([0xff, 0xff, 0xff, 0x17]));
        assert_eq!(encode_jump(0, 0x7ff_fffc), Some([0xff, 0xff, 0xff, 0x15]));
        assert_eq!(encode_jump(0x800_0000, 0), Some([0, 0, 0, 0x16]));
        assert_eq!(encode_jump(0, 0x800_0000), None);
        assert_eq!(encode_jump(0x800_0004, 0), None);
        assert_eq!(encode_jump(0x1000, 0x1002), None);
        for to in [0x10_0000_u64, 0x57ff_fffc, 0x4900_0000] {
            if let Some(bytes) = encode_jump(0x5000_0000, to) {
                assert_eq!(decode_jump(0x5000_0000, &bytes), Some(to));
            }
        }
        assert_eq!(decode_jump(0, &[0, 0, 0, 0x94]), None); // bl
        assert_eq!(decode_jump(0, &[0, 0, 0]), None);
    }

    #[test]
    fn windows() {
        for addr in [0, 0x40_0000, 0xaaaa_aaaa_0000, 0xffff_f7fc_0000] {
            let window = near_window(addr);
            assert!(window.start < window.end);
            for edge in [window.start, window.end] {
                assert!(encode_jump(addr, edge & !3).is_some());
                assert!(encode_jump(edge & !3, addr).is_some());
            }
        }
    }
}
