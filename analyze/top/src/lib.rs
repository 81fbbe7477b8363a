//! `prof top`: recordings that grow, on a terminal.
//!
//! * [`feed`]: follows a recording in a thread, and makes [`snapshot`]s of it;
//! * [`rows`], [`tree`], [`filter`]: what of a snapshot is shown, and in which order;
//! * [`app`]: the state of the screen; [`keys`]: what changes it; [`view`]: draws it;
//! * [`terminal`]: the terminal itself, and the loop.
//!
//! It only reads recordings. What changes a process is done by the caller, through [`terminal::Control`].

pub mod app;
pub mod feed;
pub mod filter;
pub mod keys;
mod numbers;
pub mod rows;
pub mod snapshot;
pub mod terminal;
pub mod tree;
mod tty;
pub mod view;
