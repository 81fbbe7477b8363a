//! The recording as it is being written.

use crate::Error;
use prof_trace::chunk::{self, CHUNK_HEADER, Next};
use prof_trace::derived::Zipper;
use prof_trace::event::Codec;
use prof_trace::pack::{Compress, Packed, Packer};
use prof_trace::records::{Hooks, Runtimes, Target, kind};
use prof_trace::runtimes::Runtime;
use prof_trace::wire::{Reader, Writer};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Bytes of events, as they stand in the ring, after which they are written out within a pass.
const FLUSH_AT: usize = 1 << 20;

/// Stack nodes that take fewer bytes are not compressed.
const WORTH_IT: usize = 1 << 10;

/// Creates the file of a recording; it must not exist. Only its owner may read it: addresses and
/// names of a process are nobody else's business.
///
/// # Errors
/// As opening a file.
pub fn create_recording(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Writes what a recording begins with: header, target, hooks.
///
/// # Errors
/// As writing to a file.
pub fn write_prologue(file: &mut File, target: &Target, hooks: &Hooks) -> io::Result<()> {
    let mut b = chunk::file_header().to_vec();
    chunk::put(&mut b, kind::TARGET, &target.encode());
    chunk::put(&mut b, kind::HOOKS, &hooks.encode());
    file.write_all(&b)
}

/// Writes, behind the prologue, what in the target takes memory from the kernel itself.
///
/// # Errors
/// As writing to a file.
pub fn write_runtimes(file: &mut File, runtimes: &[Runtime]) -> io::Result<()> {
    if runtimes.is_empty() {
        return Ok(());
    }
    let names = runtimes.iter().map(|r| r.name().into()).collect();
    let mut b = Vec::new();
    chunk::put(&mut b, kind::RUNTIMES, &Runtimes { names }.encode());
    file.write_all(&b)
}

/// The end of a recording, to which whole chunks are appended.
///
/// What describes events (threads, modules, stack nodes) and the events themselves are gathered
/// apart, and written in that order, so that a reader knows every node before an event names it.
#[derive(Debug)]
pub struct Output {
    file: File,
    end: u64,
    meta: Vec<u8>,
    events: Vec<u8>,
    /// Where in them the last chunk begins.
    chunk_at: usize,
    /// Bytes of events that were added since the last flush, as they stand in the ring.
    added: usize,
    compress: Compress,
    /// There is no time to compress.
    hurry: bool,
    packer: Packer,
    zipper: Zipper,
    failed: Option<io::Error>,
    lost: u64,
}

impl Output {
    /// Appends to `file`, which ends with a whole chunk.
    ///
    /// # Errors
    /// If its size can't be read.
    pub fn new(file: File) -> Result<Self, Error> {
        let end = file.metadata().map_err(Error::io("cannot stat the recording"))?.len();
        let (meta, events) = (Vec::new(), Vec::with_capacity(2 * FLUSH_AT));
        Ok(Self {
            file,
            end,
            meta,
            events,
            chunk_at: 0,
            added: 0,
            compress: Compress::None,
            hurry: false,
            packer: Packer::new(),
            zipper: Zipper::default(),
            failed: None,
            lost: 0,
        })
    }

    /// How events are compressed from now on.
    pub fn set_compress(&mut self, how: Compress) {
        self.end_pack();
        self.compress = how;
    }

    /// Whether events must be written as they are, as the ring fills up.
    pub fn set_hurry(&mut self, hurry: bool) {
        self.hurry = hurry;
    }

    /// Whether events are to be given to [`Output::packer`] rather than to [`Output::put_events`].
    pub fn packs(&self) -> bool {
        self.compress != Compress::None && !self.hurry
    }

    /// Whether they are to be packed as small as can be.
    pub fn packs_small(&self) -> bool {
        self.compress == Compress::Best
    }

    /// Where the events go that so many bytes of a segment can be.
    pub fn packer(&mut self, bytes: usize) -> &mut Packer {
        if !self.packer.has_room(bytes) {
            self.end_pack();
        }
        self.added += bytes;
        &mut self.packer
    }

    /// Makes a chunk of what was packed.
    fn end_pack(&mut self) {
        if self.packer.events() > 0 {
            let mut w = self.begin_chunk();
            self.packer.finish(self.compress, &mut w.bytes);
            self.end_chunk(w, kind::PACKED);
        }
    }

    /// Begins a chunk behind the other events.
    fn begin_chunk(&mut self) -> Writer {
        let mut bytes = std::mem::take(&mut self.events);
        self.chunk_at = bytes.len();
        bytes.extend_from_slice(&[0; CHUNK_HEADER]);
        Writer { bytes }
    }

    fn end_chunk(&mut self, w: Writer, kind: u16) {
        self.events = w.bytes;
        let (head, payload) = self.events[self.chunk_at..].split_at_mut(CHUNK_HEADER);
        let (len, sum) = (payload.len() as u32, chunk::checksum(kind, payload));
        head[..2].copy_from_slice(&kind.to_le_bytes());
        head[4..8].copy_from_slice(&len.to_le_bytes());
        head[8..16].copy_from_slice(&sum.to_le_bytes());
    }

    /// Adds a chunk that describes. Stack nodes are the only ones of which there may be as much as of
    /// events; they are compressed if those are.
    pub fn put(&mut self, kind: u16, payload: &[u8]) {
        if kind == kind::NODE_RUN
            && self.packs()
            && payload.len() >= WORTH_IT
            && let Some(zipped) = self.zipper.zip(kind, payload)
        {
            return chunk::put(&mut self.meta, kind::ZIPPED, &zipped);
        }
        chunk::put(&mut self.meta, kind, payload);
    }

    /// Adds a chunk of events as they are.
    pub fn put_events(&mut self, thread: u32, from: &Codec, count: u32, bytes: &[u8]) {
        self.end_pack();
        self.added += bytes.len();
        let mut w = self.begin_chunk();
        w.int(thread.into()).int(from.time).int(from.addr).int(from.node.into());
        w.int(count.into()).blob(bytes);
        self.end_chunk(w, kind::EVENTS);
    }

    /// Whether it is time to [`Output::flush`].
    pub fn is_full(&self) -> bool {
        self.added + self.meta.len() >= FLUSH_AT
    }

    /// Whether anything waits to be written.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.meta.is_empty() && self.packer.events() == 0
    }

    /// Writes all that was added. After an error the file ends with the last chunk that was written
    /// whole, and all further chunks are dropped; see [`Output::failure`].
    pub fn flush(&mut self) {
        self.end_pack();
        self.added = 0;
        let (mut meta, mut events) =
            (std::mem::take(&mut self.meta), std::mem::take(&mut self.events));
        self.write_chunks(&meta);
        self.write_chunks(&events);
        meta.clear();
        events.clear();
        (self.meta, self.events) = (meta, events);
    }

    fn write_chunks(&mut self, bytes: &[u8]) {
        let mut done = 0;
        while self.failed.is_none() && done < bytes.len() {
            match self.file.write_at(&bytes[done..], self.end + done as u64) {
                Ok(0) => self.failed = Some(io::ErrorKind::WriteZero.into()),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => self.failed = Some(e),
            }
        }
        if self.failed.is_none() {
            self.end += bytes.len() as u64;
            return;
        }
        let whole = whole_chunks(&bytes[..done]);
        if done > whole {
            // If this fails too, readers stop at the damaged chunk all the same.
            let _ = self.file.set_len(self.end + whole as u64);
        }
        self.end += whole as u64;
        self.lost += count_events(&bytes[whole..]);
    }

    /// The error at which writing ended.
    pub fn failure(&self) -> Option<&io::Error> {
        self.failed.as_ref()
    }

    /// The same, for keeps.
    pub fn take_failure(&mut self) -> Option<io::Error> {
        self.failed.take()
    }

    /// Events that could not be written.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Bytes of the file so far.
    pub fn len(&self) -> u64 {
        self.end
    }

    /// Tries a last time, after an error, with a few small chunks: the place that a cut-off chunk
    /// has left is often enough to say how the recording ended.
    pub fn put_last(&mut self, chunks: &[u8]) {
        if self.failed.is_none() {
            self.meta.extend_from_slice(chunks);
            return self.flush();
        }
        let n = self.file.write_at(chunks, self.end).unwrap_or(0);
        if n == chunks.len() {
            self.end += n as u64;
        } else if n > 0 {
            let whole = whole_chunks(&chunks[..n]);
            let _ = self.file.set_len(self.end + whole as u64);
            self.end += whole as u64;
        }
    }
}

/// Length of the chunks at the front of `bytes` that are whole.
fn whole_chunks(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Next::Chunk(_, _, n) = chunk::next(&bytes[at..]) {
        at += n;
    }
    at
}

fn count_events(bytes: &[u8]) -> u64 {
    let (mut at, mut count) = (0, 0);
    while let Next::Chunk(k, payload, n) = chunk::next(&bytes[at..]) {
        at += n;
        count += match k {
            kind::EVENTS => {
                let mut r = Reader::new(payload);
                let mut field = || r.int();
                let fields = [field(), field(), field(), field(), field()];
                fields[4].unwrap_or(0)
            }
            kind::PACKED => Packed::read(payload).map_or(0, |p| p.events() as u64),
            _ => 0,
        };
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_leaves_whole_chunks() {
        // /dev/full refuses every write; a file with a size limit would need a signal handler.
        let file = OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        let mut out = Output::new(file).expect("output");
        out.put_events(1, &Codec::default(), 3, &[1, 2, 3]);
        out.put_events(2, &Codec::default(), 4, &[1, 2, 3]);
        out.flush();
        assert_eq!(out.failure().and_then(|e| e.raw_os_error()), Some(libc::ENOSPC));
        assert_eq!((out.lost(), out.len()), (7, 0));
        out.put_events(2, &Codec::default(), 5, &[1, 2, 3]);
        out.flush();
        assert_eq!(out.lost(), 12);
        out.set_compress(Compress::Fast);
        // Three frees of the address before.
        let frees = [0x02, 0, 0x02, 0, 0x02, 0];
        assert_eq!(out.packer(6).run(3, &mut Codec::default(), &frees, |_| {}), (3, 6));
        assert!(!out.is_empty());
        out.flush();
        assert_eq!((out.lost(), out.is_empty()), (15, true));
    }

    #[test]
    fn only_large_runs_of_nodes_are_compressed_and_only_with_events() {
        let path = std::env::temp_dir().join(format!("prof-zipped-{}", std::process::id()));
        let mut out = Output::new(create_recording(&path).expect("a file")).expect("output");
        let (nodes, few) = (vec![1; WORTH_IT], vec![1; WORTH_IT - 1]);
        out.put(kind::NODE_RUN, &nodes);
        out.set_compress(Compress::Fast);
        for (k, bytes) in [(kind::NODE_RUN, &few), (kind::PCS, &nodes), (kind::NODE_RUN, &nodes)] {
            out.put(k, bytes);
        }
        out.set_hurry(true);
        out.put(kind::NODE_RUN, &nodes);
        out.flush();
        let bytes = std::fs::read(&path).expect("read");
        std::fs::remove_file(&path).expect("remove");
        let (mut at, mut kinds) = (0, Vec::new());
        while let Next::Chunk(k, payload, n) = chunk::next(&bytes[at..]) {
            at += n;
            kinds.push(k);
            if k == kind::ZIPPED {
                let z = prof_trace::derived::Zipped::decode(payload).expect("zipped");
                assert_eq!((z.kind, z.unzip()), (kind::NODE_RUN, Some(nodes.clone())));
            }
        }
        let run = kind::NODE_RUN;
        assert_eq!(kinds, [run, run, kind::PCS, kind::ZIPPED, run]);
    }

    #[test]
    fn cut_off_chunks_are_not_counted_as_whole() {
        let mut b = Vec::new();
        chunk::put(&mut b, 1, b"abc");
        let n = b.len();
        chunk::put(&mut b, 2, b"defg");
        assert_eq!(whole_chunks(&b), b.len());
        assert_eq!(whole_chunks(&b[..b.len() - 1]), n);
        assert_eq!(whole_chunks(&b[..n - 1]), 0);
    }
}
