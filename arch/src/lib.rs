//! All parts of `prof` that know an instruction set.
//!
//! Input and output are bytes: nothing here touches a process, and every architecture is compiled and
//! tested on every host. The only exceptions are the few functions that can only run natively (raw system
//! calls, `cpuid`), behind `cfg(target_arch)`.
//!
//! * [`unwind`]: stack unwinding from DWARF call frame information, over a closure that reads
//!   memory. The hook runs it inside the target, the injector runs it from outside; it is the same
//!   code.
//! * [`generic`]: the parts of the architectures that are written once for all of them, over a trait.
//! * [`x86_64`], [`aarch64`], [`arm`], [`mips64`]: registers, packed unwind rules, prologue relocation,
//!   stubs, system calls, signal frames; the same files and names in each, and [`native`] is this
//!   machine's.
//!
//! Without the feature `relocate` the crate needs no allocator and depends on `gimli` alone: that half is
//! part of the hook. It must not panic: no indexing that can fail, no `unwrap`, wrapping or checked
//! arithmetic.
#![no_std]
// Stable Rust has no inline assembly for MIPS64.
#![cfg_attr(target_arch = "mips64", feature(asm_experimental_arch))]

#[cfg(feature = "relocate")]
extern crate alloc;

pub mod aarch64;
pub mod arm;
pub mod blocked;
pub mod generic;
mod interface;
pub mod laid;
mod marks;
pub mod mips64;
#[cfg(feature = "relocate")]
pub mod patch;
#[cfg(feature = "relocate")]
pub mod refers;
pub mod registers;
pub mod unwind;
pub mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64 as native;
#[cfg(target_arch = "arm")]
pub use arm as native;
#[cfg(target_arch = "mips64")]
pub use mips64 as native;
#[cfg(target_arch = "x86_64")]
pub use x86_64 as native;

pub use marks::Marks;
