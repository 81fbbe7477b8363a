//! The patch: one branch, and how far it reaches.
//!
//! Addresses of functions have bit 0 set where they are Thumb code ([`code_at`]).

use super::decode::{PcUse, State, pc_use_arm, pc_use_thumb};
use super::regs::THUMB;
use core::ops::Range;

/// Code of a function that returns at once. It is in the ARM state, as the hook's code is.
pub const RETURN: &[u8] = &0xe12f_ff1eu32.to_le_bytes();

/// Breakpoint instructions of the kernel (`arch/arm/kernel/ptrace.c`), for Thumb and for ARM code. The
/// program counter stays on it.
const BREAKPOINTS: (u16, u32) = (0xde01, 0xe7f0_01f0);

/// Returns the length of the breakpoint instruction that code begins with, whoever put it there: a debugger,
/// or the kernel for a uprobe.
#[must_use]
pub fn breakpoint_len(code: &[u8], at: u64) -> Option<usize> {
    const OF_UPROBES: u32 = 0xe7f0_01f9;
    match state_at(at) {
        State::Thumb => {
            let half = u16::from_le_bytes(*code.first_chunk()?);
            // bkpt, and the instruction that the kernel takes for a breakpoint.
            (half == BREAKPOINTS.0 || half >> 8 == 0xbe).then_some(2)
        }
        State::Arm => {
            let word = u32::from_le_bytes(*code.first_chunk()?);
            (word == BREAKPOINTS.1 || word == OF_UPROBES || word & 0xfff0_00f0 == 0xe120_0070)
                .then_some(4)
        }
    }
}

/// Returns the breakpoint instruction for the code at this address.
#[must_use]
pub fn breakpoint(at: u64) -> &'static [u8] {
    const OF_THUMB: [u8; 2] = BREAKPOINTS.0.to_le_bytes();
    const OF_ARM: [u8; 4] = BREAKPOINTS.1.to_le_bytes();
    match state_at(at) {
        State::Thumb => &OF_THUMB,
        State::Arm => &OF_ARM,
    }
}

/// Length of a patch: `b.w label`, or `b label`.
pub const PATCH_LEN: usize = 4;

/// Range of user addresses that can be mapped: above the usual `mmap_min_addr`, and below the page of the
/// kernel's helpers. A 32-bit kernel keeps the last gibibyte for itself, a 64-bit one nothing.
const LOWEST: u64 = 0x1_0000;
const HIGHEST: u64 = 0xffff_0000;

/// Distance from an address at which code may be placed so that branches between them work in both directions
/// and states, with 64 KiB to spare for the length of that code.
pub const REACH: u64 = (16 << 20) - (64 << 10);

/// Returns the address of the instructions of the function with this address.
#[must_use]
pub const fn code_at(addr: u64) -> u64 {
    addr & !THUMB
}

/// Returns the state in which the function with this address runs.
#[must_use]
pub const fn state_at(addr: u64) -> State {
    if addr & THUMB == 0 { State::Arm } else { State::Thumb }
}

/// Encodes a branch to `to` at `from`, both in the state that bit 0 of `from` says; returns `None` if that is
/// too far, or either is not aligned.
#[must_use]
pub fn encode_jump(from: u64, to: u64) -> Option<[u8; PATCH_LEN]> {
    let (at, to) = (code_at(from), code_at(to));
    match state_at(from) {
        State::Arm => {
            let distance = to.wrapping_sub(at.wrapping_add(8)) as i64;
            let near = (-(1 << 25)..1 << 25).contains(&distance) && (at | to) & 3 == 0;
            let field = (distance >> 2) as u32 & 0xff_ffff;
            near.then_some((0xea00_0000 | field).to_le_bytes())
        }
        State::Thumb => {
            let distance = to.wrapping_sub(at.wrapping_add(4)) as i64;
            let near = (-(1 << 24)..1 << 24).contains(&distance);
            let bit = |n: u32| (distance >> n) as u32 & 1;
            let sign = bit(24);
            let (j1, j2) = (!(bit(23) ^ sign) & 1, !(bit(22) ^ sign) & 1);
            let high = 0xf000 | sign << 10 | (distance >> 12) as u32 & 0x3ff;
            let low = 0x9000 | j1 << 13 | j2 << 11 | (distance >> 1) as u32 & 0x7ff;
            near.then_some((high | low << 16).to_le_bytes())
        }
    }
}

/// Returns the target of the branch `bytes` at `from`, if it is one, in the same state.
#[must_use]
pub fn decode_jump(from: u64, bytes: &[u8]) -> Option<u64> {
    let word = u32::from_le_bytes(*bytes.first_chunk()?);
    let at = code_at(from) as u32;
    let found = match state_at(from) {
        State::Arm => pc_use_arm(word, at),
        State::Thumb => pc_use_thumb(word.rotate_left(16), at),
    };
    match found {
        Some(PcUse::Branch(to)) => Some(u64::from(to) | from & THUMB),
        _ => None,
    }
}

/// Returns the range of addresses from which a stub reaches `addr` and is reached.
#[must_use]
pub fn near_window(addr: u64) -> Range<u64> {
    addr.saturating_sub(REACH).max(LOWEST)..addr.saturating_add(REACH).min(HIGHEST)
}

/// Returns the offset in a function at which its state is that of a stub's first part: the entry.
#[must_use]
pub fn place_before_original(_at: u64, _patch_offset: u64) -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps() {
        assert_eq!(encode_jump(0x1000, 0x1008), Some([0, 0, 0, 0xea]));
        assert_eq!(encode_jump(0x1000, 0x1000), Some([0xfe, 0xff, 0xff, 0xea]));
        assert_eq!(encode_jump(0x1000, 0x1002), None);
        assert_eq!(encode_jump(0x1000, 0x1000 + 8 + (1 << 25)), None);
        assert_eq!(encode_jump(0x1001, 0x1005), Some([0x00, 0xf0, 0x00, 0xb8]));
        assert_eq!(encode_jump(0x1003, 0x1003), Some([0xff, 0xf7, 0xfe, 0xbf]));
        assert_eq!(encode_jump(0x1001, 0x1001 + 4 + (1 << 24)), None);
        for state in [0, 1] {
            for to in [0x4f10_0000_u64, 0x50ef_fffc, 0x4fff_fff0, 0x5000_1004, 0x5040_0000] {
                let bytes = encode_jump(0x5000_0000 | state, to).unwrap();
                assert_eq!(decode_jump(0x5000_0000 | state, &bytes), Some(to | state), "{to:x}");
            }
        }
        assert_eq!(decode_jump(0, &[0, 0, 0, 0xeb]), None); // bl
        assert_eq!(decode_jump(0, &[0, 0, 0]), None);
        assert_eq!((breakpoint(0x1001).len(), breakpoint(0x1000).len()), (2, 4));
    }

    #[test]
    fn windows() {
        for addr in [0, 0x1_0001, 0x40_0000, 0xb6f0_0001, 0xbefc_0000, 0xf7ac_0001, 0xffff_0000] {
            let window = near_window(addr);
            assert!(window.start < window.end);
            for edge in [window.start, window.end] {
                let edge = edge & !3 | addr & 1;
                assert!(encode_jump(addr, edge).is_some());
                assert!(encode_jump(edge, addr).is_some());
            }
        }
    }
}
