//! The control page as any build may read it, and the start of a page of this build.

use crate::shared::{
    Control, EDITION, FUNCTIONS, Function, FunctionFields, LAYOUT, MAGIC, NEEDS, SLOTS, STABLE_AT,
    Shared, Slot, SlotFields, Stable, TOGGLES, Table, Toggle, slot,
};
use core::mem::offset_of;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU32, fence};

/// Start of the control page, as any build may read it.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`LAYOUT`].
    pub layout: u32,
    /// [`Control::segments`].
    pub segments: u32,
    /// [`Control::state`].
    pub state: AtomicU32,
    /// [`Control::flags`].
    pub flags: AtomicU32,
    /// [`Control::clock`].
    pub clock: u32,
    /// Fields that depend on the layout.
    pub own: [u8; STABLE_AT - 28],
    /// Fields that all builds share.
    pub stable: Stable,
}

const _: () = {
    assert!(offset_of!(Control, stable) == STABLE_AT && offset_of!(Header, stable) == STABLE_AT);
    assert!(offset_of!(Control, layout) == offset_of!(Header, layout));
    assert!(offset_of!(Control, segments) == offset_of!(Header, segments));
    assert!(offset_of!(Control, state) == offset_of!(Header, state));
    assert!(offset_of!(Control, flags) == offset_of!(Header, flags));
    assert!(offset_of!(Control, clock) == offset_of!(Header, clock));
};

impl core::ops::Deref for Header {
    type Target = Stable;

    #[inline(always)]
    fn deref(&self) -> &Stable {
        &self.stable
    }
}

impl Control {
    /// Writes the identity of the page and the locations of its tables. `exe` is the path of the attaching
    /// prof. [`Stable::ring_addr`] must have been set.
    pub fn begin(&mut self, segments: usize, version: &str, exe: &[u8]) {
        (self.layout, self.segments) = (LAYOUT, segments as u32);
        let table = |at: usize, stride: usize, count: usize| Table {
            at: at as u64,
            stride: stride as u32,
            count: count as u32,
        };
        let n = put(&self.exe, exe);
        let s = &mut self.stable;
        (s.edition, s.needs) = (EDITION, NEEDS);
        s.path_at = offset_of!(Control, path) as u64;
        s.exe_at = offset_of!(Control, exe) as u64;
        s.exe_len = n as u32;
        let version = &version.as_bytes()[..version.len().min(s.version.len())];
        s.version[..version.len()].copy_from_slice(version);
        s.version_len = version.len() as u32;
        s.toggle_table = table(offset_of!(Control, toggles), size_of::<Toggle>(), TOGGLES);
        s.function_table = table(Shared::function_offset(0), size_of::<Function>(), FUNCTIONS);
        s.function_fields = FunctionFields {
            kind: offset_of!(Function, kind) as u32,
            patched: offset_of!(Function, patched) as u32,
            patch_len: offset_of!(Function, patch_len) as u32,
            patch_addr: offset_of!(Function, patch_addr) as u32,
            old_bytes: offset_of!(Function, old_bytes) as u32,
            new_bytes: offset_of!(Function, new_bytes) as u32,
            bytes: len(|f| &f.new_bytes),
            name: offset_of!(Function, name) as u32,
            name_len: len(|f| &f.name),
            addr: offset_of!(Function, addr) as u32,
        };
        s.slot_table = table(Shared::slot_offset(0), size_of::<Slot>(), SLOTS);
        s.slots_used_table = table(offset_of!(Control, slots_used), 8, SLOTS / 64);
        s.slot_fields = SlotFields {
            tp: offset_of!(Slot, tp) as u32,
            state: offset_of!(Slot, state) as u32,
            busy_sp: offset_of!(Slot, busy_sp) as u32,
            inner_sp: offset_of!(Slot, inner_sp) as u32,
            events: offset_of!(Slot, events) as u32,
            lost: offset_of!(Slot, lost) as u32,
            mask: (1 << slot::BITS) - 1,
            live: slot::LIVE,
        };
        // The magic number comes last: a page with it is complete, even if prof was killed meanwhile.
        fence(Release);
        // SAFETY: a field of `self`, which is exclusively borrowed.
        unsafe { core::ptr::write_volatile(&raw mut self.magic, MAGIC) };
    }

    /// Writes the recording's path.
    pub fn set_path(&mut self, path: &[u8]) {
        self.stable.path_len = put(&self.path, path) as u32;
    }
}

/// Returns the length of a byte field.
fn len<const N: usize>(_: fn(&Function) -> &[u8; N]) -> u32 {
    N as u32
}

/// Copies as many bytes as there is room for; returns their number.
fn put(to: &[AtomicU8], bytes: &[u8]) -> usize {
    to.iter().zip(bytes).for_each(|(to, from)| to.store(*from, Relaxed));
    bytes.len().min(to.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::{Area, SharedArea};

    /// Released builds rely on these offsets: if this fails, do not change the numbers.
    #[test]
    fn the_places_of_the_stable_fields_never_change() {
        assert_eq!(offset_of!(Header, layout), 8);
        assert_eq!(offset_of!(Header, segments), 12);
        assert_eq!(offset_of!(Header, state), 16);
        assert_eq!(offset_of!(Header, flags), 20);
        assert_eq!(offset_of!(Header, clock), 24);
        assert_eq!(offset_of!(Control, stable), 256);
        assert_eq!(size_of::<Stable>(), 1280);
        macro_rules! at {
            ($($field:ident $at:literal)*) => {
                $(assert_eq!(offset_of!(Stable, $field), $at, stringify!($field));)*
            };
        }
        at!(edition 0 needs 4 pid 8 signal 12 signal_ignored 16 old_action_len 20 old_action 24
            ring_addr 88 ring_len 96 hook_addr 104 hook_len 112 flag_addr 120 flag_len 128
            unseen 136 toggle_count 144 ticks_per_sec 152 path_at 160 exe_at 168 path_len 176
            exe_len 180 functions 184 version_len 188 stubs 192 heartbeat 704 collector_start 712
            collector_ns 720 collector_pid 728 orphaned 732 toggle_table 736 function_table 752
            function_fields 768 slot_table 808 slots_used_table 824 slot_fields 840 version 872
            place 936 guards 952 doubts 984 modules_seq 988 bridge 992 bridge_frame 1000
            handler 1008 dump_signal 1016 dump_ignored 1020 dump_action_len 1024 dump_action 1032
            library 1096 linker_stack 1104 reserved 1120);
        assert_eq!([size_of::<Table>(), size_of::<Area>(), size_of::<SharedArea>()], [16; 3]);
        assert_eq!([size_of::<FunctionFields>(), size_of::<SlotFields>()], [40, 32]);
        assert_eq!(offset_of!(FunctionFields, addr), 36);
        assert_eq!([offset_of!(SlotFields, lost), offset_of!(SlotFields, live)], [20, 28]);
        assert_eq!([offset_of!(Toggle, time), offset_of!(Toggle, on)], [0, 8]);
    }
}
