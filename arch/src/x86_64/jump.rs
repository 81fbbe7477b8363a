//! The patch: a near jump, and how far it reaches.

use core::ops::Range;

/// Code of a function that returns at once.
pub const RETURN: &[u8] = &[0xc3];

/// The breakpoint instruction. When it has been executed, the program counter is behind it.
pub const BREAKPOINT: [u8; 1] = [0xcc];

/// Returns the length of the breakpoint instruction that code begins with, whoever put it there: a debugger,
/// or the kernel for a uprobe.
#[must_use]
pub fn breakpoint_len(code: &[u8], _at: u64) -> Option<usize> {
    (code.first() == Some(&BREAKPOINT[0])).then_some(BREAKPOINT.len())
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

/// Length of a patch: `jmp rel32`.
pub const PATCH_LEN: usize = 5;

/// Length of the last instruction of a stub's part before the original: `jmp [rip + d]`.
pub const GO_LEN: usize = 6;

/// Returns the offset in a function at which its state is that of a stub's first part, `at` bytes before the
/// original: behind what stands in front of the patch, until the stub has undone that.
#[must_use]
pub fn place_before_original(at: u64, patch_offset: u64) -> u64 {
    if at <= GO_LEN as u64 { 0 } else { patch_offset }
}

/// Range of user addresses that can be mapped: above the usual `mmap_min_addr`, below the end of the lower
/// half.
const LOWEST: u64 = 0x1_0000;
const HIGHEST: u64 = 0x7fff_ffff_f000;

/// Distance from an address at which code may be placed so that jumps between them work in both directions,
/// with 64 KiB to spare for the length of that code.
pub const REACH: u64 = 0x7fff_0000;

/// Encodes `jmp to` at `from`; returns `None` if that is too far.
#[must_use]
pub fn encode_jump(from: u64, to: u64) -> Option<[u8; PATCH_LEN]> {
    let distance = to.wrapping_sub(from.wrapping_add(PATCH_LEN as u64)) as i64;
    let [a, b, c, d] = i32::try_from(distance).ok()?.to_le_bytes();
    Some([0xe9, a, b, c, d])
}

/// Returns the target of the jump `bytes` at `from`, if it is a near jump.
#[must_use]
pub fn decode_jump(from: u64, bytes: &[u8]) -> Option<u64> {
    let &[0xe9, a, b, c, d] = bytes.first_chunk()? else { return None };
    let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
    Some(from.wrapping_add(PATCH_LEN as u64).wrapping_add_signed(distance))
}

/// Returns the range of addresses from which a stub reaches `addr` and is reached.
#[must_use]
pub fn near_window(addr: u64) -> Range<u64> {
    addr.saturating_sub(REACH).max(LOWEST)..addr.saturating_add(REACH).min(HIGHEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps() {
        assert_eq!(encode_jump(0x1000, 0x1005), Some([0xe9, 0, 0, 0, 0]));
        assert_eq!(encode_jump(0x1000, 0x1000), Some([0xe9, 0xfb, 0xff, 0xff, 0xff]));
        assert_eq!(encode_jump(0, 0x8000_0004), Some([0xe9, 0xff, 0xff, 0xff, 0x7f]));
        assert_eq!(encode_jump(0, 0x8000_0005), None);
        for to in [0x10_0000_u64, 0x7000_0000, 0x6000_0000] {
            let bytes = encode_jump(0x5000_0000, to).unwrap();
            assert_eq!(decode_jump(0x5000_0000, &bytes), Some(to));
        }
        assert_eq!(decode_jump(0, &[0xeb, 0, 0, 0, 0]), None);
        assert_eq!(decode_jump(0, &[0xe9, 0, 0, 0]), None);
    }

    #[test]
    fn windows() {
        for addr in [0, 0x40_0000, 0x5555_5555_0000, 0x7fff_f7fc_0000] {
            let window = near_window(addr);
            assert!(window.start < window.end);
            assert!(
                encode_jump(addr, window.start).is_some()
                    && encode_jump(addr, window.end).is_some()
            );
            assert!(
                encode_jump(window.start, addr).is_some()
                    && encode_jump(window.end, addr).is_some()
            );
        }
    }
}
