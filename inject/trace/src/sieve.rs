//! Decides, while a recording is made, which events it gets.
//!
//! The collector knows the format alone; what a block is, and how long it lived, a reader knows. So whoever starts a
//! collector hands it a [`Sieve`].

use crate::event::{Codec, Event};
use crate::records::{Pass, Stripped};
use std::vec::Vec;

/// Takes all events of a recording that is made, and passes on those that it is to have.
pub trait Sieve: core::fmt::Debug + Send {
    /// Takes `count` events of a thread, encoded as in a recording; `from` is the decoding state before them.
    fn events(&mut self, thread: u32, from: &Codec, count: u32, bytes: &[u8]);

    /// Takes the next pass, whose events may have been taken before or are taken now. Passes to `to` what is decided.
    fn pass(&mut self, pass: &Pass, to: &mut dyn Sieved);

    /// Passes everything that is still held back to `to`: no more events follow.
    fn finish(&mut self, to: &mut dyn Sieved);

    /// Returns the figures of all blocks up to now, in records that replace earlier ones. Stacks whose figures are the
    /// same as at the last call are left out.
    fn figures(&mut self) -> Vec<Stripped>;
}

/// Receives what a [`Sieve`] lets through, in the order in which it is to be written.
pub trait Sieved {
    /// Receives a pass.
    fn pass(&mut self, pass: &Pass);

    /// Receives events of a thread.
    fn events(&mut self, thread: u32, events: &[Event]);
}
