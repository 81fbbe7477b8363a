//! The hook: code that runs inside the target, in the target's threads, at each call of a hooked function.
//!
//! It runs in production processes, under any libc, in any state that a process may be in. So: no allocation,
//! no libc, no TLS, no locks, no panics; at most 512 bytes of the thread's stack on the usual path (what
//! needs more runs on a scratch stack, [`state::Thread::scratch`]); no system calls but those in [`sys`]. Its
//! static data are two addresses in [`header::LOCATIONS`] and one in [`modules`]; all other state is in memory
//! that the injector mapped.
//!
//! - [`entry`]: calls of hooked functions, from the stub and back; [`other_args`]: calls of functions with their
//!   arguments in other places;
//! - [`calls`]: calls that change mappings, which may happen inside an allocator's;
//! - [`thread`]: finding the thread's state; [`state`]: its layout;
//! - [`stack`]: the stack as a node of the stack tree, by memoized, verified unwinding;
//! - [`resolve`]: the unwind rule of a code address; [`modules`]: the module of a code address;
//! - [`memory`]: reading memory that may be unmapped; [`extent`]: extents of stacks; `goroutine`: those in Go's heap;
//! - [`block_header`]: glibc's chunk headers;
//! - [`record`]: writing events to the ring; [`clock`]: time stamps; [`toggle`]: the toggle signal and the dump signal.
#![no_std]
// Stable Rust has no inline assembly for MIPS64.
#![cfg_attr(target_arch = "mips64", feature(asm_experimental_arch))]

#[cfg(test)]
extern crate std;

pub mod block_header;
pub mod calls;
pub mod clock;
pub mod entry;
pub mod extent;
pub mod fork;
pub mod full_unwind;
pub mod give_up;
mod goroutine;
pub mod header;
mod heir;
mod left;
mod limit;
pub mod mapping;
pub mod memory;
pub mod modules;
pub mod node_ids;
mod original;
pub mod other_args;
mod owner;
mod range;
pub mod recent;
pub mod record;
pub mod resolve;
pub mod sample;
pub mod stack;
pub mod state;
pub mod sys;
pub mod table;
pub mod thread;
pub mod toggle;
