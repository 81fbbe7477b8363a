//! Integers and strings in the payload of a chunk: LEB128, and bytes preceded by their length.

use std::string::String;
use std::vec::Vec;

/// Appends values to a payload.
#[derive(Debug, Default)]
pub struct Writer {
    /// The payload so far.
    pub bytes: Vec<u8>,
}

impl Writer {
    /// Appends an unsigned integer, as LEB128.
    pub fn int(&mut self, mut v: u64) -> &mut Self {
        while v >= 0x80 {
            self.bytes.push(v as u8 | 0x80);
            v >>= 7;
        }
        self.bytes.push(v as u8);
        self
    }

    /// Appends a length and that many bytes.
    pub fn blob(&mut self, b: &[u8]) -> &mut Self {
        self.int(b.len() as u64);
        self.bytes.extend_from_slice(b);
        self
    }
}

/// Reads values from a payload. Each method returns `None` at the end or if the bytes are malformed.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Makes a reader at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns the bytes that have not been read.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Reads an unsigned integer.
    pub fn int(&mut self) -> Option<u64> {
        let mut v = 0u64;
        for shift in (0..64).step_by(7) {
            let (&b, rest) = self.rest.split_first()?;
            self.rest = rest;
            if shift == 63 && b > 1 {
                return None;
            }
            v |= ((b & 0x7f) as u64) << shift;
            if b & 0x80 == 0 {
                return Some(v);
            }
        }
        None
    }

    /// Reads an unsigned integer that fits 32 bits.
    pub fn int32(&mut self) -> Option<u32> {
        self.int()?.try_into().ok()
    }

    /// Reads a length and that many bytes.
    pub fn blob(&mut self) -> Option<&'a [u8]> {
        let n: usize = self.int()?.try_into().ok()?;
        let b = self.rest.get(..n)?;
        self.rest = self.rest.get(n..)?;
        Some(b)
    }

    /// Reads a string; replaces what is not UTF-8 in it.
    pub fn text(&mut self) -> Option<String> {
        Some(String::from_utf8_lossy(self.blob()?).into_owned())
    }
}
