//! Formats and algorithms that the hook, the injector, the collector and the analyser share.
//!
//! * [`shared`]: the memory that the target and prof share (one memfd): control page, thread
//!   slots, module table, code addresses, segments of events;
//! * [`shared::Stable`]: the part of the control page that is the same in every build;
//! * [`pcs`]: the table of code addresses; [`modules`]: the table of modules;
//! * [`protocol`]: turning recording on and off, and publishing stacks;
//! * [`ring`]: taking, filling and reading the segments;
//! * [`slots`]: ownership of thread slots;
//! * [`capture`]: the filter of recorded blocks; [`samples`]: the set of recorded blocks;
//! * [`ticks`]: moments on the recording's clock;
//! * [`event`]: encoding of events in a segment and in a recording; [`call`]: calls that change mappings;
//! * [`chunk`], [`records`] and [`pack`] (feature `std`): the recording on disk;
//! * [`derived`] (feature `std`): chunks that `prof pack` and `prof strip` add to a recording;
//! * [`runtimes`] (feature `std`): runtimes with an allocator of their own;
//! * [`values`] (feature `std`): sizes, durations and counts as people write and read them.
//!
//! `FORMAT.md` beside this crate specifies the formats byte by byte. This crate depends on no other crate of
//! the workspace, on no allocator (without `std`) and on no instruction set.
#![no_std]

#[cfg(feature = "std")]
extern crate std;

pub mod call;
pub mod capture;
#[cfg(feature = "std")]
pub mod chunk;
#[cfg(feature = "std")]
pub mod damage;
#[cfg(feature = "std")]
pub mod derived;
pub mod event;
#[cfg(feature = "std")]
pub mod foreign;
pub mod ids;
pub mod modules;
#[cfg(feature = "std")]
pub mod pack;
pub mod pcs;
#[cfg(feature = "std")]
mod predictor;
pub mod protocol;
#[cfg(feature = "std")]
pub mod records;
pub mod ring;
#[cfg(feature = "std")]
pub mod runtimes;
pub mod samples;
pub mod shared;
#[cfg(feature = "std")]
pub mod sieve;
pub mod size;
pub mod slots;
pub mod ticks;
#[cfg(feature = "std")]
mod unpack;
#[cfg(feature = "std")]
pub mod values;
#[cfg(feature = "std")]
pub mod wire;

/// Atomics of the algorithms in `pcs`, `ring` and `slots`: the model checker (`inject/model`) compiles these
/// files with its own.
mod sync {
    pub(crate) use core::sync::atomic::AtomicU64;
}
