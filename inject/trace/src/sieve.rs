//! Decides, while a recording is made, which events it gets.
//!
//! The collector knows the format alone; what a block is, and how long it lived, a reader knows. So whoever starts a
//! collector hands it a [`Sieve`].

use crate::event::{Codec, Event};
use crate::records::{Pass, Step, Stripped, kind};
use core::time::Duration;
use std::vec::Vec;

/// Takes all events of a recording that is made, and passes on those that it is to have.
pub trait Sieve: core::fmt::Debug + Send {
    /// Takes `count` events of a thread, encoded as in a recording; `from` is the decoding state before them.
    fn events(&mut self, thread: u32, from: &Codec, count: u32, bytes: &[u8]);

    /// Returns whether it has room for events that are decoded, which takes less time and more memory.
    fn takes_decoded(&self) -> bool {
        false
    }

    /// Takes events of a thread if [`takes_decoded`](Self::takes_decoded), in place of [`events`](Self::events).
    fn decoded(&mut self, _thread: u32, _events: Vec<Event>) {}

    /// Takes the numbers of threads that have ended, and of which all events were taken.
    fn left(&mut self, _threads: &[u64]) {}

    /// Takes the next pass, whose events may have been taken before or are taken now. Passes to `to` what is decided.
    fn pass(&mut self, pass: &Pass, to: &mut dyn Sieved);

    /// Passes everything that is still held back to `to`: no more events follow.
    fn finish(&mut self, to: &mut dyn Sieved);

    /// Returns the record that says, at the front of a recording, that not all blocks are in it.
    fn about(&self) -> Stripped;

    /// Returns the figures of all blocks up to now. Stacks whose figures are the same as at the last call are left out.
    fn figures(&mut self) -> Vec<Figures>;

    /// Returns the number of the events that the figures have up to now.
    fn counted(&self) -> u64;

    /// Takes the number of bytes that the last figures took in the recording.
    fn wrote(&mut self, _bytes: u64) {}

    /// Returns at which interval figures are written; `None`: at one that the recorder chooses.
    fn every(&self) -> Option<Duration> {
        None
    }

    /// Returns the greatest number of stack nodes that it has room for.
    fn most_nodes(&self) -> usize {
        usize::MAX
    }

    /// Returns whether the recording has nothing but figures: neither threads nor mappings.
    fn has_only_figures(&self) -> bool {
        false
    }
}

/// A record with the figures of all blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Figures {
    /// Figures that replace earlier ones.
    Whole(Stripped),
    /// Changes since the figures before.
    Step(Step),
}

impl Figures {
    /// Returns kind and payload of the chunk.
    pub fn encode(&self) -> (u16, Vec<u8>) {
        match self {
            Self::Whole(s) => (kind::STRIPPED, s.encode()),
            Self::Step(s) => (kind::STEP, s.encode()),
        }
    }
}

/// Receives what a [`Sieve`] lets through, in the order in which it is to be written.
pub trait Sieved {
    /// Receives a pass.
    fn pass(&mut self, pass: &Pass);

    /// Receives events of a thread.
    fn events(&mut self, thread: u32, events: &[Event]);
}
