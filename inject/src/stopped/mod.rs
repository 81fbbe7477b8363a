//! Stopped threads: stopping them, reading their stacks and memory, making them do system calls, letting them go as if
//! nothing had been.

pub(crate) mod asleep;
pub(crate) mod candidates;
pub(crate) mod dispatch;
pub(crate) mod fibers;
pub mod gadgets;
pub(crate) mod memory;
pub(crate) mod patience;
pub(crate) mod place;
pub(crate) mod ptrace;
pub mod remote;
pub(crate) mod settle;
pub(crate) mod tables;
pub mod threads;
pub mod tracee;
pub(crate) mod waits;
pub mod walk;
