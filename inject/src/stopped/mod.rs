//! Stopped threads: stopping them, reading their stacks and memory, making system calls with them, and resuming
//! them unchanged.

pub(crate) mod asleep;
pub(crate) mod candidates;
pub mod copy;
pub mod copyable;
pub(crate) mod dispatch;
pub(crate) mod fibers;
pub(crate) mod frame_place;
pub(crate) mod function_call;
pub mod gadgets;
pub(crate) mod memory;
pub(crate) mod modules;
pub(crate) mod options;
pub(crate) mod patience;
pub(crate) mod pending_calls;
pub(crate) mod ptrace;
pub mod remote;
pub(crate) mod safe_thread;
pub(crate) mod stack_pointer;
pub(crate) mod starts;
pub mod state;
pub(crate) mod tables;
pub mod threads;
pub mod tracee;
pub(crate) mod waits;
pub mod walk;
