//! The part of the control page that is the same in every build: what a prof needs to end, pause or inspect
//! the recording of another build.
//!
//! It has two pieces: the head of the page ([`Header`](crate::shared::Header), up to `clock`), and [`Stable`] at [`STABLE_AT`]. A
//! field never moves and never changes its meaning. New fields take the place of [`Stable::reserved`], which
//! is zero, and raise [`EDITION`]; if a prof that does not know them must not detach, they raise [`NEEDS`]
//! too. Parts whose place may change are described here by offsets from the page's start.

use crate::shared::SharedArea;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Offset of [`Stable`] in the control page.
pub const STABLE_AT: usize = 256;
/// Edition number, raised with every field that is added to [`Stable`].
pub const EDITION: u32 = 7;
/// Lowest [`EDITION`] of a prof that may detach from what this build has attached to.
pub const NEEDS: u32 = 5;

/// Age of [`Stable::heartbeat`], in seconds, from which on a collector that can't be seen otherwise counts as dead. A collector
/// that gets a processor gives two signs of life a second.
pub const SILENCE_S: u64 = 3;

/// Value instead of [`NEEDS`] if there is a [`Stable::bridge`].
pub const NEEDS_FOR_BRIDGE: u32 = 5;
/// Value instead of [`NEEDS`] if a dump signal is asked for: a prof that does not know of it would leave its handler
/// installed, and take the handler's code away.
pub const NEEDS_FOR_DUMP: u32 = 6;
/// Value instead of [`NEEDS`] if the target's dynamic linker has loaded the hook: a prof that does not know of that would
/// unmap what the library uses, and leave the library loaded for ever.
pub const NEEDS_FOR_LIBRARY: u32 = 7;

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
    /// [`Function::kind`](crate::shared::Function::kind), 4 bytes.
    pub kind: u32,
    /// [`Function::patched`](crate::shared::Function::patched), 4 bytes.
    pub patched: u32,
    /// [`Function::patch_len`](crate::shared::Function::patch_len), 4 bytes.
    pub patch_len: u32,
    /// [`Function::patch_addr`](crate::shared::Function::patch_addr), 8 bytes.
    pub patch_addr: u32,
    /// [`Function::old_bytes`](crate::shared::Function::old_bytes).
    pub old_bytes: u32,
    /// [`Function::new_bytes`](crate::shared::Function::new_bytes).
    pub new_bytes: u32,
    /// Length of [`Function::old_bytes`](crate::shared::Function::old_bytes) and of [`Function::new_bytes`](crate::shared::Function::new_bytes).
    pub bytes: u32,
    /// [`Function::name`](crate::shared::Function::name).
    pub name: u32,
    /// Length of [`Function::name`](crate::shared::Function::name).
    pub name_len: u32,
    /// [`Function::addr`](crate::shared::Function::addr), 8 bytes.
    pub addr: u32,
}

/// Offsets of the fields in a thread slot, and the state bits of a slot that is owned.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotFields {
    /// [`Slot::tp`](crate::shared::Slot::tp), 8 bytes.
    pub tp: u32,
    /// [`Slot::state`](crate::shared::Slot::state), 4 bytes.
    pub state: u32,
    /// [`Slot::busy_sp`](crate::shared::Slot::busy_sp), 8 bytes.
    pub busy_sp: u32,
    /// [`Slot::inner_sp`](crate::shared::Slot::inner_sp), 8 bytes.
    pub inner_sp: u32,
    /// [`Slot::events`](crate::shared::Slot::events), 8 bytes.
    pub events: u32,
    /// [`Slot::lost`](crate::shared::Slot::lost), 8 bytes.
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
    pub signal: AtomicU32,
    /// Set before the toggle signal is ignored for a moment, on the way to its old action. If prof is killed
    /// there, the next one knows that it was not the target that ignored the signal.
    pub signal_ignored: AtomicU32,
    /// Number of valid bytes in [`Stable::old_action`].
    pub old_action_len: AtomicU32,
    /// The kernel's `struct sigaction` of [`Stable::signal`] from before the attach.
    pub old_action: [AtomicU64; 8],
    /// Address of the shared memory in the target.
    pub ring_addr: AtomicU64,
    /// Length of the mapping.
    pub ring_len: AtomicU64,
    /// Address of the hook's image in the target.
    pub hook_addr: u64,
    /// Length of the hook's mapping.
    pub hook_len: u64,
    /// Address of the flag page (private, wiped in forked children). Its first `u32` is 1 while recording. The second is [`FLAG_COOKIE`](crate::shared::FLAG_COOKIE)
    /// as long as the hook is attached.
    pub flag_addr: AtomicU64,
    /// Length of the flag mapping.
    pub flag_len: u64,
    /// Number of times that events may have been missed: recording was switched, or a free was lost.
    pub unseen: AtomicU64,
    /// Number of toggles so far; entry `n % TOGGLES` holds toggle number `n`.
    pub toggle_count: AtomicU64,
    /// Ticks per second.
    pub ticks_per_sec: AtomicU64,
    /// Offset of the recording's path from the control page.
    pub path_at: u64,
    /// Offset of the path of the prof that attached, from the control page.
    pub exe_at: u64,
    /// Length of the recording's path.
    pub path_len: u32,
    /// Length of the path of the prof that attached.
    pub exe_len: u32,
    /// Number of [`Function`](crate::shared::Function)s in use.
    pub functions: AtomicU32,
    /// Length of [`Stable::version`].
    pub version_len: u32,
    /// Areas of stubs, see [`Area`](crate::shared::Area); unused ones have length 0.
    pub stubs: [SharedArea; 32],
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
    /// Location of the [`Toggle`](crate::shared::Toggle)s: time, then on or off, 8 bytes each.
    pub toggle_table: Table,
    /// Location of the [`Function`](crate::shared::Function)s.
    pub function_table: Table,
    /// Layout of a [`Function`](crate::shared::Function).
    pub function_fields: FunctionFields,
    /// Location of the [`Slot`](crate::shared::Slot)s.
    pub slot_table: Table,
    /// Location of the words of 8 bytes that have a bit for each slot that was ever taken.
    pub slots_used_table: Table,
    /// Layout of a [`Slot`](crate::shared::Slot).
    pub slot_fields: SlotFields,
    /// Version of the prof that attached.
    pub version: [u8; 64],
    /// Mapping of the hook and the flag page, with guard pages before, between and behind them. Edition 2.
    pub place: SharedArea,
    /// Guard pages below and above the shared memory; those of stubs are part of [`Stable::stubs`]. Edition
    /// 2.
    pub guards: [SharedArea; 2],
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
    /// Address of the handler of the toggle signal and of the dump signal; 0: none installed. Edition 5.
    pub handler: AtomicU64,
    /// The signal at which a report is written, 0: none. Edition 6.
    pub dump_signal: AtomicU32,
    /// As [`Stable::signal_ignored`], for the dump signal. Edition 6.
    pub dump_ignored: AtomicU32,
    /// Number of valid bytes in [`Stable::dump_action`]. Edition 6.
    pub dump_action_len: AtomicU32,
    /// Zero; space for a field to come.
    pub reserved_word: u32,
    /// As [`Stable::old_action`], for the dump signal. Edition 6.
    pub dump_action: [AtomicU64; 8],
    /// Number in the path of the hook's library, set before the target's dynamic linker is asked to load it; 0: the hook is
    /// mapped by prof. Edition 7.
    pub library: AtomicU64,
    /// Stack on which a thread of the target loads and unloads that library; a part of [`Stable::place`]. Edition 7.
    pub linker_stack: SharedArea,
    /// Zeroes; space for fields to come.
    pub reserved: [u64; 20],
}

/// Purposes of the signals that prof uses in the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The signal switches recording off and on.
    Toggle,
    /// The signal asks for a report.
    Dump,
}

impl Purpose {
    /// All purposes, in the order in which the signals are taken.
    pub const ALL: [Self; 2] = [Self::Toggle, Self::Dump];
}

/// The fields of [`Stable`] about a signal that prof has taken.
#[derive(Clone, Copy, Debug)]
pub struct Taken<'a> {
    /// [`Stable::signal`] or [`Stable::dump_signal`].
    pub signal: &'a AtomicU32,
    /// [`Stable::signal_ignored`] or [`Stable::dump_ignored`].
    pub ignored: &'a AtomicU32,
    /// Offset of that field in [`Stable`].
    pub ignored_at: usize,
    /// [`Stable::old_action_len`] or [`Stable::dump_action_len`].
    pub action_len: &'a AtomicU32,
    /// [`Stable::old_action`] or [`Stable::dump_action`].
    pub action: &'a [AtomicU64; 8],
}

impl Stable {
    /// Returns the fields about the signal that is taken for a purpose.
    #[must_use]
    pub fn taken(&self, purpose: Purpose) -> Taken<'_> {
        match purpose {
            Purpose::Toggle => Taken {
                signal: &self.signal,
                ignored: &self.signal_ignored,
                ignored_at: offset_of!(Self, signal_ignored),
                action_len: &self.old_action_len,
                action: &self.old_action,
            },
            Purpose::Dump => Taken {
                signal: &self.dump_signal,
                ignored: &self.dump_ignored,
                ignored_at: offset_of!(Self, dump_ignored),
                action_len: &self.dump_action_len,
                action: &self.dump_action,
            },
        }
    }
}
