//! Integers and strings in the payload of a chunk: LEB128, and bytes with their length before them.

use std::string::String;
use std::vec::Vec;

/// Appends values to a payload.
#[derive(Debug, Default)]
pub struct Writer {
    /// What has been written.
    pub bytes: Vec<u8>,
}

impl Writer {
    /// An unsigned integer, LEB128.
    pub fn int(&mut self, mut v: u64) -> &mut Self {
        while v >= 0x80 {
            self.bytes.push(v as u8 | 0x80);
            v >>= 7;
        }
        self.bytes.push(v as u8);
        self
    }

    /// A length and that many bytes.
    pub fn blob(&mut self, b: &[u8]) -> &mut Self {
        self.int(b.len() as u64);
        self.bytes.extend_from_slice(b);
        self
    }
}

/// Takes values from a payload. Everything returns `None` at the end or on nonsense.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What has not been read.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// An unsigned integer.
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

    /// An unsigned integer that fits 32 bits.
    pub fn int32(&mut self) -> Option<u32> {
        self.int()?.try_into().ok()
    }

    /// A length and that many bytes.
    pub fn blob(&mut self) -> Option<&'a [u8]> {
        let n: usize = self.int()?.try_into().ok()?;
        let b = self.rest.get(..n)?;
        self.rest = self.rest.get(n..)?;
        Some(b)
    }

    /// A string; what is not UTF-8 in it is replaced.
    pub fn text(&mut self) -> Option<String> {
        Some(String::from_utf8_lossy(self.blob()?).into_owned())
    }
}
