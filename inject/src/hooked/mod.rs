//! The functions that are hooked, and the way in which each is patched.

pub mod calls;
pub(crate) mod found;
pub mod functions;
pub(crate) mod operators;
pub(crate) mod places;
pub mod plan;
pub(crate) mod probed;
pub(crate) mod search;
pub(crate) mod user_named;
pub(crate) mod verify;
pub mod watched;
