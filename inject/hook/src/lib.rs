//! The hook: what runs inside the target, in the threads of the target, at each call of a hooked
//! function.
//!
//! It runs in somebody's production process, under any libc, in any state that process may be in.
//! So: no allocation, no libc, no TLS, no locks, no panics; at most 512 bytes of the thread's stack
//! on the usual path (what needs more runs on a scratch stack, [`state::Thread::scratch`]); no
//! system calls but those in [`sys`]. It keeps no state of its own but the two addresses in
//! [`header::HEADER`]; everything else stands in memory that the injector mapped.
//!
//! * [`entry`]: the calls themselves, from the stub and back; [`named`]: those with their arguments in
//!   other places;
//! * [`thread`]: finding the thread's state; [`state`]: what that is;
//! * [`stack`]: the stack as a node of the stack tree, by memoized, verified unwinding;
//! * [`resolve`]: the unwind rule of a code address at its first sight; [`modules`]: whose code it is;
//! * [`memory`]: reading memory that may not be there; [`extent`]: how far a stack reaches;
//! * [`chunk`]: what glibc's header of a block says;
//! * [`record`]: putting events into the ring; [`clock`]; [`toggle`]: the signal.
#![no_std]
// Stable Rust has no inline assembly for MIPS64.
#![cfg_attr(target_arch = "mips64", feature(asm_experimental_arch))]

#[cfg(test)]
extern crate std;

pub mod chunk;
pub mod clock;
pub mod entry;
pub mod extent;
pub mod fork;
pub mod full;
pub mod header;
mod left;
pub mod memory;
pub mod modules;
pub mod name;
pub mod named;
mod owner;
pub mod recent;
pub mod record;
pub mod resolve;
pub mod sample;
pub mod stack;
pub mod state;
pub mod sys;
pub mod thread;
pub mod toggle;
