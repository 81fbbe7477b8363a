//! The patch: a jump and its delay slot, and how far it reaches.
//!
//! `j` is the only jump that needs no register, and it reaches what has the same upper bits as its
//! delay slot: a region of 256 MiB that begins at a multiple of that. (`b` and `bc` reach 128 KiB, or
//! are of release 6 alone.) A jump to anywhere takes six instructions and a register, and a function
//! of 28 bytes, so the stubs are put where `j` leads instead.

use super::variant::{BREAK, NOP, Order};
use core::ops::Range;

/// Code of a function that returns at once. The second word is `nop`, in the delay slot.
pub const RETURN: &[u8] = &{
    let [a, b, c, d] = Order::NATIVE.bytes4(0x03e0_0008);
    [a, b, c, d, 0, 0, 0, 0]
};

/// The breakpoint instruction, `break`. The program counter stays on it.
pub const BREAKPOINT: [u8; 4] = Order::NATIVE.bytes4(BREAK);

/// Returns the length of the breakpoint instruction that code begins with, whoever put it there: a debugger,
/// or the kernel for a uprobe.
#[must_use]
pub fn breakpoint_len(code: &[u8], _at: u64) -> Option<usize> {
    const MAJOR_AND_FUNCTION: u32 = 0xfc00_003f;
    let bytes: [u8; 4] = *code.first_chunk()?;
    let word = match Order::NATIVE {
        Order::Big => u32::from_be_bytes(bytes),
        Order::Little => u32::from_le_bytes(bytes),
    };
    // break, with any number.
    (word & MAJOR_AND_FUNCTION == 0x0000_000d).then_some(4)
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

/// Length of a patch: `j label; nop`. A thread may be between the two.
pub const PATCH_LEN: usize = 8;

/// Range of user addresses that can be mapped: above the usual `mmap_min_addr`, and within 48 bits.
const LOWEST: u64 = 0x1_0000;
const HIGHEST: u64 = 0xffff_ffff_f000;

/// Size of the region that `j` reaches.
const REGION: u64 = 256 << 20;

/// Spare room for the length of the code that is placed.
const SPARE: u64 = 64 << 10;

/// Maximum reach of any jump; how far one reaches depends on where it is: see [`near_window`].
pub const REACH: u64 = REGION - SPARE;

const J: u32 = 0x0800_0000;

/// Encodes `j to` at `from`; returns `None` if `to` is in another region.
pub(super) fn encode_j(from: u64, to: u64) -> Option<u32> {
    let slot = from.wrapping_add(4);
    let near = (slot ^ to) / REGION == 0 && (from | to) & 3 == 0;
    near.then_some(J | (to >> 2) as u32 & 0x03ff_ffff)
}

/// Encodes `j to; nop` at `from`; returns `None` if `to` is in another region, or either is not a multiple of
/// 4.
#[must_use]
pub fn encode_jump_in(order: Order, from: u64, to: u64) -> Option<[u8; PATCH_LEN]> {
    let mut bytes = [0; PATCH_LEN];
    let (jump, slot) = bytes.split_at_mut(4);
    jump.copy_from_slice(&order.bytes4(encode_j(from, to)?));
    slot.copy_from_slice(&order.bytes4(NOP));
    Some(bytes)
}

/// Does what [`encode_jump_in`] does, in this machine's byte order.
#[must_use]
pub fn encode_jump(from: u64, to: u64) -> Option<[u8; PATCH_LEN]> {
    encode_jump_in(Order::NATIVE, from, to)
}

/// Returns the target of the jump `bytes` at `from`, if it is one.
#[must_use]
pub fn decode_jump_in(order: Order, from: u64, bytes: &[u8]) -> Option<u64> {
    let (insn, slot) = (order.word4(bytes, 0)?, order.word4(bytes, 4)?);
    let region = from.wrapping_add(4) & !(REGION - 1);
    let jumps = insn >> 26 == J >> 26 && slot == NOP;
    jumps.then_some(region | u64::from(insn & 0x03ff_ffff) << 2)
}

/// Does what [`decode_jump_in`] does, in this machine's byte order.
#[must_use]
pub fn decode_jump(from: u64, bytes: &[u8]) -> Option<u64> {
    decode_jump_in(Order::NATIVE, from, bytes)
}

/// Returns the range of addresses from which a stub reaches `addr` and is reached.
#[must_use]
pub fn near_window(addr: u64) -> Range<u64> {
    let start = addr.wrapping_add(4) & !(REGION - 1);
    let end = start.saturating_add(REACH).min(HIGHEST);
    start.max(LOWEST).min(end)..end
}

/// Returns the offset in a function at which its state is that of a stub's first part: the entry. The very
/// first instruction undoes what stands in front of the patch.
#[must_use]
pub fn place_before_original(_at: u64, _patch_offset: u64) -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps() {
        let at = 0xff_f7fc_0000;
        let little = |from, to| encode_jump_in(Order::Little, from, to);
        assert_eq!(little(at, at), Some([0, 0, 0xff, 0x09, 0, 0, 0, 0]));
        assert_eq!(encode_jump_in(Order::Big, at, at + 8), Some([0x09, 0xff, 0, 2, 0, 0, 0, 0]));
        assert_eq!(little(0x1000_0000, 0x1fff_fffc), Some([0xff, 0xff, 0xff, 0x0b, 0, 0, 0, 0]));
        assert_eq!(little(0x1000_0000, 0x2000_0000), None);
        assert_eq!(little(0x1000_0000, 0x0fff_fffc), None);
        assert_eq!(little(0x1000_0000, 0x1_1000_0000), None);
        // The region is that of the delay slot.
        assert!(little(0x1fff_fffc, 0x2000_0000).is_some());
        assert_eq!(little(0x1fff_fffc, 0x1000_0000), None);
        assert_eq!(little(0x1002, 0x2000), None);
        assert_eq!(little(0x1000, 0x2002), None);
        for order in [Order::Little, Order::Big] {
            for to in [0x5000_0000_u64, 0x5fff_fffc, 0x5123_4560] {
                let bytes = encode_jump_in(order, 0x5000_1000, to).unwrap();
                assert_eq!(decode_jump_in(order, 0x5000_1000, &bytes), Some(to));
            }
            let call = [order.bytes4(0x0c00_0000), [0; 4]].concat();
            assert_eq!(decode_jump_in(order, 0, &call), None);
            let other_slot = [order.bytes4(J), order.bytes4(1)].concat();
            assert_eq!(decode_jump_in(order, 0, &other_slot), None);
            assert_eq!(decode_jump_in(order, 0, &[0; 7]), None);
        }
        let native = encode_jump(0x5000_1000, 0x5000_2000).unwrap();
        assert_eq!(decode_jump(0x5000_1000, &native), Some(0x5000_2000));
    }

    #[test]
    fn windows() {
        for addr in [0, 0x1_2000_0000, 0x1_2fff_fff8, 0xff_f7fc_0000, 0xffff_ffff_f000] {
            let window = near_window(addr);
            assert!(window.start < window.end, "{addr:#x}");
            for edge in [window.start, window.end] {
                assert!(encode_jump(addr, edge).is_some());
                assert!(
                    encode_jump(edge, addr.wrapping_add(8)).is_some()
                        || addr & 0xfff_ffff > 0xfff_fff0
                );
            }
        }
        // The last address of a region jumps into the next one.
        assert_eq!(near_window(0x1_2fff_fffc).start, 0x1_3000_0000);
    }
}
