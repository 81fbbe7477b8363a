//! Hooked functions.

use crate::wire::{Reader, Writer};
use std::string::String;
use std::vec::Vec;

record! {
    /// A hooked function.
    Hook {
        /// Index of the function, also in [`Counters::calls`](crate::records::Counters::calls).
        index: int32,
        /// Name of the function.
        function: text,
        /// Path of its module.
        module: text,
        /// Method of hooking: `inline` or `got`.
        method: text,
    }
}

record! {
    /// A function that could not be hooked.
    NotHooked {
        /// Name of the function.
        function: text,
        /// Path of its module.
        module: text,
        /// Reason why it could not be hooked.
        reason: text,
    }
}

/// Functions that were hooked, and those that could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    /// Hooked functions, in the order of their indices.
    pub hooked: Vec<Hook>,
    /// Functions that could not be hooked.
    pub not_hooked: Vec<NotHooked>,
}

impl Hooks {
    /// Encodes the payload of a chunk.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.int(self.hooked.len() as u64);
        self.hooked.iter().for_each(|h| h.write(&mut w));
        w.int(self.not_hooked.len() as u64);
        self.not_hooked.iter().for_each(|h| h.write(&mut w));
        w.bytes
    }

    /// Decodes a payload; returns `None` if it is truncated or malformed.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let mut r = Reader::new(payload);
        let mut all = Self::default();
        for _ in 0..r.int()? {
            all.hooked.push(Hook::read(&mut r)?);
        }
        for _ in 0..r.int()? {
            all.not_hooked.push(NotHooked::read(&mut r)?);
        }
        Some(all)
    }
}
