//! The server over its real socket: what it refuses, what it answers, and that the answers are those of the analysis.

#[path = "../../../tests/common/mod.rs"]
mod common;

mod client;
mod compat;
mod growing;
#[cfg(feature = "script")]
mod scripts;
mod security;
mod stats;
