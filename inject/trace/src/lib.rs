//! What the hook, the injector, the collector and the analyser agree on.
//!
//! * [`shared`]: the memory that the target and prof share (one memfd): control page, thread
//!   slots, module table, code addresses, segments of events;
//! * [`shared::Stable`]: the part of the control page that no build changes;
//! * [`pcs`]: the table of code addresses; [`modules`]: that of modules;
//! * [`ring`]: taking, filling and draining the segments;
//! * [`slots`]: whose thread slots are;
//! * [`capture`]: which blocks are recorded; [`samples`]: the set of those;
//! * [`event`]: how an event is encoded in a segment and in a recording;
//! * [`chunk`], [`records`] and [`pack`] (feature `std`): the recording on disk;
//! * [`derived`] (feature `std`): what `prof pack` and `prof strip` add to a recording;
//! * [`runtimes`] (feature `std`): programs whose memory is not malloc's;
//! * [`files`] (feature `std`): opening files that are not to be trusted;
//! * [`family`] (feature `std`): a process's workers;
//! * [`process`] (feature `std`): which thread stands for a process, and who shares its memory.
//!
//! `FORMAT.md` beside this crate is the contract, byte by byte. Nothing here depends on anything
//! of ours, on an allocator (without `std`) or on an instruction set.
#![no_std]

#[cfg(feature = "std")]
extern crate std;

pub mod capture;
#[cfg(feature = "std")]
pub mod chunk;
#[cfg(feature = "std")]
pub mod derived;
pub mod event;
#[cfg(feature = "std")]
pub mod family;
#[cfg(feature = "std")]
pub mod files;
#[cfg(feature = "std")]
pub mod foreign;
mod hook_header;
#[cfg(feature = "std")]
mod model;
pub mod modules;
#[cfg(feature = "std")]
pub mod pack;
pub mod pcs;
#[cfg(feature = "std")]
pub mod process;
#[cfg(feature = "std")]
pub mod records;
pub mod ring;
#[cfg(feature = "std")]
pub mod runtimes;
pub mod samples;
pub mod shared;
pub mod size;
pub mod slots;
mod stable;
mod tables;
#[cfg(feature = "std")]
mod unpack;
#[cfg(feature = "std")]
pub mod wire;

/// The atomics of the algorithms in `pcs`, `ring` and `slots`: a model checker that compiles these
/// files has others (`inject/model`).
mod sync {
    pub use core::sync::atomic::AtomicU64;
}
