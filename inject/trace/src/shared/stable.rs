//! The part of the control page that is the same in every build: what a prof needs to end, pause or inspect
//! the recording of another build.
//!
//! It has two pieces: the head of the page ([`Header`], up to `clock`), and [`Stable`] at [`STABLE_AT`]. A
//! field never moves and never changes its meaning. New fields take the place of [`Stable::reserved`], which
//! is zero, and raise [`EDITION`]; if a prof that does not know them must not detach, they raise [`NEEDS`]
//! too. Parts whose place may change are described here by offsets from the page's start.

use crate::shared::{
    Area, Control, FUNCTIONS, Function, LAYOUT, MAGIC, SLOTS, Shared, Slot, TOGGLES, Toggle, slot,
};
use core::mem::offset_of;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, fence};

/// Offset of [`Stable`] in the control page.
pub const STABLE_AT: usize = 256;
/// Edition number, raised with every field that is added to [`Stable`].
pub const EDITION: u32 = 5;
/// Lowest [`EDITION`] of a prof that may detach from what this build has attached to.
pub const NEEDS: u32 = 5;

/// Value instead of [`NEEDS`] if there is a [`Stable::bridge`].
pub const NEEDS_FOR_BRIDGE: u32 = 5;

/// Location of a table in the shared memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Offset of the first entry from the control page.
    pub at: u64,
    /// Bytes from one entry to the next.
    pub stride: u32,
    /// Number of entries.
    pub count: u32,
}

/// Offsets of the fields in an entry of the function table.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionFields {
    /// [`Function::kind`], 4 bytes.
    pub kind: u32,
    /// [`Function::patched`], 4 bytes.
    pub patched: u32,
    /// [`Function::patch_len`], 4 bytes.
    pub patch_len: u32,
    /// [`Function::patch_addr`], 8 bytes.
    pub patch_addr: u32,
    /// [`Function::old_bytes`].
    pub old_bytes: u32,
    /// [`Function::new_bytes`].
    pub new_bytes: u32,
    /// Length of [`Function::old_bytes`] and of [`Function::new_bytes`].
    pub bytes: u32,
    /// [`Function::name`].
    pub name: u32,
    /// Length of [`Function::name`].
    pub name_len: u32,
    /// [`Function::addr`], 8 bytes.
    pub addr: u32,
}

/// Offsets of the fields in a thread slot, and the state bits of a slot that is owned.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotFields {
    /// [`Slot::tp`], 8 bytes.
    pub tp: u32,
    /// [`Slot::state`], 4 bytes.
    pub state: u32,
    /// [`Slot::busy_sp`], 8 bytes.
    pub busy_sp: u32,
    /// [`Slot::inner_sp`], 8 bytes.
    pub inner_sp: u32,
    /// [`Slot::events`], 8 bytes.
    pub events: u32,
    /// [`Slot::lost`], 8 bytes.
    pub lost: u32,
    /// Mask of the state bits that say whether a thread owns the slot.
    pub mask: u32,
    /// Value of these bits if a thread does.
    pub live: u32,
}

/// Fields at [`STABLE_AT`], the same in every build.
#[repr(C, align(256))]
#[derive(Debug)]
pub struct Stable {
    /// [`EDITION`] of the build that attached.
    pub edition: u32,
    /// [`NEEDS`] of the build that attached.
    pub needs: u32,
    /// The target's pid, as prof saw it.
    pub pid: u32,
    /// The toggle signal, 0: none.
    pub signal: u32,
    /// Set before the toggle signal is ignored for a moment, on the way to its old action. If prof is killed
    /// there, the next one knows that it was not the target that ignored the signal.
    pub signal_ignored: AtomicU32,
    /// Number of valid bytes in [`Stable::old_action`].
    pub old_action_len: u32,
    /// The kernel's `struct sigaction` of [`Stable::signal`] from before the attach.
    pub old_action: [u64; 8],
    /// Address of the shared memory in the target.
    pub ring_addr: u64,
    /// Length of the mapping.
    pub ring_len: u64,
    /// Address of the hook's image in the target.
    pub hook_addr: u64,
    /// Length of the hook's mapping.
    pub hook_len: u64,
    /// Address of the flag page (private, wiped in forked children). Its first `u32` is 1 while recording.
    /// Its second `u32` is [`FLAG_COOKIE`](crate::shared::FLAG_COOKIE) as long as the hook is attached.
    pub flag_addr: u64,
    /// Length of the flag mapping.
    pub flag_len: u64,
    /// Number of times that events may have been missed: recording was switched, or a free was lost.
    pub unseen: AtomicU64,
    /// Number of toggles so far; entry `n % TOGGLES` holds toggle number `n`.
    pub toggle_count: AtomicU64,
    /// Ticks per second.
    pub ticks_per_sec: u64,
    /// Offset of the recording's path from the control page.
    pub path_at: u64,
    /// Offset of the path of the prof that attached, from the control page.
    pub exe_at: u64,
    /// Length of the recording's path.
    pub path_len: u32,
    /// Length of the path of the prof that attached.
    pub exe_len: u32,
    /// Number of [`Function`]s in use.
    pub functions: AtomicU32,
    /// Length of [`Stable::version`].
    pub version_len: u32,
    /// Areas of stubs, see [`Area`]; unused ones have length 0.
    pub stubs: [Area; 32],
    /// Ticks at the collector's last look; 0: none yet.
    pub heartbeat: AtomicU64,
    /// The collector's start time (`/proc/PID/stat`, field 22).
    pub collector_start: AtomicU64,
    /// The pid namespace that the collector's pid belongs to (inode of `/proc/self/ns/pid`).
    pub collector_ns: AtomicU64,
    /// The collector's pid, in prof's namespace.
    pub collector_pid: AtomicU32,
    /// Set by the hook when it has turned recording off because the collector is gone.
    pub orphaned: AtomicU32,
    /// Location of the [`Toggle`]s: time, then on or off, 8 bytes each.
    pub toggle_table: Table,
    /// Location of the [`Function`]s.
    pub function_table: Table,
    /// Layout of a [`Function`].
    pub function_fields: FunctionFields,
    /// Location of the [`Slot`]s.
    pub slot_table: Table,
    /// Location of the words of 8 bytes that have a bit for each slot that was ever taken.
    pub slots_used_table: Table,
    /// Layout of a [`Slot`].
    pub slot_fields: SlotFields,
    /// Version of the prof that attached.
    pub version: [u8; 64],
    /// Mapping of the hook and the flag page, with guard pages before, between and behind them. Edition 2.
    pub place: Area,
    /// Guard pages below and above the shared memory; those of stubs are part of [`Stable::stubs`]. Edition
    /// 2.
    pub guards: [Area; 2],
    /// Number of times that modules may have come and gone unnoticed. Whoever turns recording on adds one
    /// here and to [`Stable::modules_seq`]. Edition 3.
    pub doubts: AtomicU32,
    /// Number of changes of the set of modules; a new value makes the hook look again. Edition 3.
    pub modules_seq: AtomicU32,
    /// Address of the bridge: code of the target's own that calls the hook when the original of a named
    /// function has returned to it. 0: none. A thread with this address on its stack is inside the hook.
    /// Edition 4.
    pub bridge: u64,
    /// Size of the bridge's frame, in bytes: from behind the return address that leads to it to behind its
    /// own. Edition 4.
    pub bridge_frame: u64,
    /// Address of the toggle signal's handler; 0: none installed. Edition 5.
    pub handler: u64,
    /// Zeroes; space for fields to come.
    pub reserved: [u64; 33],
}

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

impl core::ops::Deref for Control {
    type Target = Stable;

    #[inline(always)]
    fn deref(&self) -> &Stable {
        &self.stable
    }
}

impl core::ops::DerefMut for Control {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Stable {
        &mut self.stable
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
            handler 1008 reserved 1016);
        assert_eq!([size_of::<Table>(), size_of::<Area>()], [16, 16]);
        assert_eq!([size_of::<FunctionFields>(), size_of::<SlotFields>()], [40, 32]);
        assert_eq!(offset_of!(FunctionFields, addr), 36);
        assert_eq!([offset_of!(SlotFields, lost), offset_of!(SlotFields, live)], [20, 28]);
        assert_eq!([offset_of!(Toggle, time), offset_of!(Toggle, on)], [0, 8]);
    }
}
