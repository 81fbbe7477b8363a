//! Compressed chunks, and the chunks that only `prof pack` and `prof strip` add, after the recording.

use crate::chunk::MAX_PAYLOAD;
use crate::records::kind;
use crate::wire::{Reader, Writer};
use std::string::String;
use std::vec::Vec;

/// zstd level of [`Zipped::encode`].
const LEVEL: i32 = 9;

/// A zstd-compressed chunk of another kind: that kind, the length of its payload, and the zstd frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zipped<'a> {
    /// Kind of the compressed chunk.
    pub kind: u16,
    len: usize,
    frame: &'a [u8],
}

impl<'a> Zipped<'a> {
    /// Compresses a payload; returns `None` if zstd fails.
    pub fn encode(kind: u16, payload: &[u8]) -> Option<Vec<u8>> {
        let frame = zstd::bulk::compress(payload, LEVEL).ok()?;
        let mut w = Writer::default();
        w.int(kind.into()).int(payload.len() as u64);
        w.bytes.extend_from_slice(&frame);
        Some(w.bytes)
    }

    /// Decodes a payload; returns `None` if it is malformed, or holds a kind that is never compressed this
    /// way.
    pub fn decode(payload: &'a [u8]) -> Option<Self> {
        let mut r = Reader::new(payload);
        let kind = u16::try_from(r.int()?).ok()?;
        let len = usize::try_from(r.int()?).ok().filter(|n| *n <= MAX_PAYLOAD)?;
        let events = [kind::EVENTS, kind::PACKED, kind::PASS, kind::TARGET, kind::ZIPPED];
        (!events.contains(&kind)).then_some(Self { kind, len, frame: r.rest() })
    }

    /// Returns the length of the zstd frame, in bytes.
    pub fn frame_len(&self) -> usize {
        self.frame.len()
    }

    /// Returns the length of the uncompressed payload, in bytes.
    #[allow(clippy::len_without_is_empty)] // an empty payload is no special case
    pub fn len(&self) -> usize {
        self.len
    }

    /// Decompresses the payload; returns `None` if the frame is malformed.
    pub fn unzip(&self) -> Option<Vec<u8>> {
        let payload = zstd::bulk::decompress(self.frame, self.len).ok()?;
        (payload.len() == self.len).then_some(payload)
    }
}

/// Compresses payloads during recording, when speed counts more than size.
#[derive(Default)]
pub struct Zipper(Option<zstd::bulk::Compressor<'static>>);

impl core::fmt::Debug for Zipper {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Zipper").finish_non_exhaustive()
    }
}

impl Zipper {
    /// Compresses a payload as [`Zipped::encode`] does; returns `None` also if the result is not smaller.
    pub fn zip(&mut self, kind: u16, payload: &[u8]) -> Option<Vec<u8>> {
        if self.0.is_none() {
            self.0 = zstd::bulk::Compressor::new(1).ok();
        }
        let mut w = Writer::default();
        w.int(kind.into()).int(payload.len() as u64);
        let at = w.bytes.len();
        w.bytes.resize(at + zstd::zstd_safe::compress_bound(payload.len()), 0);
        let n = self.0.as_mut()?.compress_to_buffer(payload, &mut w.bytes[at..]).ok()?;
        w.bytes.truncate(at + n);
        (w.bytes.len() < payload.len()).then_some(w.bytes)
    }
}

/// One frame of a symbolized code address; an inlined call has a frame of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamedFrame {
    /// Function name: index in [`Frames::strings`] plus one; 0: unknown.
    pub function: u32,
    /// Offset of the address in the function, in bytes.
    pub offset: Option<u64>,
    /// Source file: index in [`Frames::strings`] plus one; 0: unknown.
    pub file: u32,
    /// Line in the source file.
    pub line: Option<u32>,
    /// Whether the function is inlined into that of the next frame.
    pub inlined: bool,
}

/// A code address with its symbolized frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedAddress {
    /// Code address in the target.
    pub address: u64,
    /// Module number; 0: none.
    pub module: u32,
    /// Whether this is the address of an interrupted instruction, not a return address.
    pub exact: bool,
    /// The frames, innermost first.
    pub frames: Vec<NamedFrame>,
}

/// Symbolized code addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    /// Names of functions and source files.
    pub strings: Vec<String>,
    /// The addresses, each with its frames.
    pub addresses: Vec<NamedAddress>,
}

/// Encodes an optional value as one integer: 0 for `None`, else the value plus one.
fn or_none(v: Option<u64>) -> u64 {
    v.map_or(0, |v| v.saturating_add(1))
}

impl Frames {
    /// Encodes the payload of a FRAMES chunk.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.int(self.strings.len() as u64);
        self.strings.iter().for_each(|s| {
            w.blob(s.as_bytes());
        });
        w.int(self.addresses.len() as u64);
        for a in &self.addresses {
            w.int(a.address).int(a.module.into()).int(a.exact.into()).int(a.frames.len() as u64);
            for f in &a.frames {
                w.int(f.function.into()).int(or_none(f.offset)).int(f.file.into());
                w.int(or_none(f.line.map(u64::from))).int(f.inlined.into());
            }
        }
        w.bytes
    }

    /// Decodes the payload of a FRAMES chunk; returns `None` if it is malformed.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let mut r = Reader::new(payload);
        let mut all = Self::default();
        // Counts are not trusted: no memory is reserved before the elements have been read.
        for _ in 0..r.int()? {
            all.strings.push(r.text()?);
        }
        let name = |r: &mut Reader<'_>| r.int32().filter(|n| (*n as usize) <= all.strings.len());
        for _ in 0..r.int()? {
            let (address, module, exact) = (r.int()?, r.int32()?, r.int()? != 0);
            let mut frames = Vec::new();
            for _ in 0..r.int()? {
                let function = name(&mut r)?;
                let offset = r.int()?.checked_sub(1);
                let file = name(&mut r)?;
                let line = r.int()?.checked_sub(1).and_then(|l| u32::try_from(l).ok());
                let inlined = r.int()? != 0;
                frames.push(NamedFrame { function, offset, file, line, inlined });
            }
            all.addresses.push(NamedAddress { address, module, exact, frames });
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn frames_and_compressed_chunks_come_back() {
        let f = Frames {
            strings: vec!["main".into(), "a.c".into()],
            addresses: vec![
                NamedAddress::default(),
                NamedAddress {
                    address: u64::MAX,
                    module: 7,
                    exact: true,
                    frames: vec![
                        NamedFrame { function: 1, inlined: true, ..NamedFrame::default() },
                        NamedFrame {
                            function: 0,
                            offset: Some(0),
                            file: 2,
                            line: Some(9),
                            inlined: false,
                        },
                    ],
                },
            ],
        };
        let bytes = f.encode();
        assert_eq!(Frames::decode(&bytes), Some(f.clone()));
        for cut in 0..bytes.len() {
            assert_eq!(Frames::decode(&bytes[..cut]), None, "{cut}");
        }
        let mut wrong = f;
        wrong.strings.pop();
        assert_eq!(Frames::decode(&wrong.encode()), None, "a name that is not there");

        let zipped = Zipped::encode(kind::FRAMES, &bytes).expect("compressed");
        let z = Zipped::decode(&zipped).expect("a chunk");
        assert_eq!((z.kind, z.unzip()), (kind::FRAMES, Some(bytes.clone())));
        let shorter = Zipped { len: bytes.len() - 1, ..z };
        let longer = Zipped { len: bytes.len() + 1, ..z };
        assert_eq!((shorter.unzip(), longer.unzip()), (None, None));
        let inner = Zipped::encode(kind::ZIPPED, &zipped).expect("compressed");
        assert_eq!(Zipped::decode(&inner), None, "one in the other");
        let mut w = Writer::default();
        w.int(kind::FRAMES.into()).int(MAX_PAYLOAD as u64 + 1);
        assert_eq!(Zipped::decode(&w.bytes), None, "too long");
    }
}
