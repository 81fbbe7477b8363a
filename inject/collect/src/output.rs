//! Writes the recording.

use crate::Error;
use crate::calls::Gathered;
use crate::plain::Plain;
use prof_trace::call::Part;
use prof_trace::chunk::{self, CHUNK_HEADER, Next};
use prof_trace::derived::Zipper;
use prof_trace::event::{Codec, Event};
use prof_trace::pack::{Compress, Packed, Packer};
use prof_trace::records::{Calls, Forked, Hooks, Pass, Runtimes, Target, ThreadsLeft, kind};
use prof_trace::runtimes::Runtime;
use prof_trace::wire::{Reader, Writer};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

mod end;
mod over;
mod sifted;

use self::end::LAST;
use self::sifted::{Sifted, Sifting};

/// Number of bytes of events, as in the ring, after which they are written within a pass.
const FLUSH_AT: usize = 1 << 20;

/// Usual length of a call that changes mappings, in bytes.
const CALL: usize = 48;

/// Stack nodes with fewer bytes are not compressed.
const WORTH_IT: usize = 1 << 10;

/// Creates the file of a recording, which must not exist. Only its owner may read it, as it contains addresses and
/// names of a process.
///
/// # Errors
/// If the file can't be created.
pub fn create_recording(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Writes the beginning of a recording: header, target, hooks.
///
/// # Errors
/// If the file can't be written to.
pub fn write_prologue(file: &mut File, target: &Target, hooks: &Hooks) -> io::Result<()> {
    let mut b = chunk::file_header().to_vec();
    chunk::put(&mut b, kind::TARGET, &target.encode());
    chunk::put(&mut b, kind::HOOKS, &hooks.encode());
    file.write_all(&b)
}

/// Writes, behind the prologue, the target's runtimes that take memory from the kernel themselves.
///
/// # Errors
/// If the file can't be written to.
pub fn write_runtimes(file: &mut File, runtimes: &[Runtime]) -> io::Result<()> {
    if runtimes.is_empty() {
        return Ok(());
    }
    let names = runtimes.iter().map(|r| r.name().into()).collect();
    let mut b = Vec::new();
    chunk::put(&mut b, kind::RUNTIMES, &Runtimes { names }.encode());
    file.write_all(&b)
}

/// Writes, behind the prologue, from which process the target was forked.
///
/// # Errors
/// If the file can't be written to.
pub fn write_forked(file: &mut File, forked: &Forked) -> io::Result<()> {
    let mut b = Vec::new();
    chunk::put(&mut b, kind::FORKED, &forked.encode());
    file.write_all(&b)
}

/// The end of a recording, to which whole chunks are appended.
///
/// Descriptions (threads, modules, stack nodes) and events are collected separately, and written in that order, so that
/// a reader knows every node before an event names it.
#[derive(Debug)]
pub struct Output {
    file: File,
    end: u64,
    meta: Vec<u8>,
    events: Vec<u8>,
    /// Offset in `events` of the last chunk.
    chunk_at: usize,
    /// Number of bytes of events, as in the ring, that were added since the last flush.
    added: usize,
    compress: Compress,
    /// Whether the ring fills up, so that there is no time to compress.
    hurry: bool,
    packer: Packer,
    zipper: Zipper,
    /// Calls that change mappings, which wait for their files to be found.
    pub(crate) calls: Gathered,
    failed: Option<io::Error>,
    lost: u64,
    /// Length beyond which events are dropped.
    most: u64,
    /// Decides which events are written; `None`: all.
    sieve: Option<Sifted>,
    sifting: Sifting,
    /// Offset up to which room on the file system is kept for the file.
    kept: u64,
    /// The sieve passes on what it has held back, and everything that its events name was added before.
    ends_sieve: bool,
}

impl Output {
    /// Appends to `file`, which must end with a whole chunk.
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
            calls: Gathered::default(),
            failed: None,
            lost: 0,
            most: u64::MAX,
            sieve: None,
            sifting: Sifting::default(),
            kept: 0,
            ends_sieve: false,
        })
    }

    /// Returns the compression of events.
    pub(crate) fn compress(&self) -> Compress {
        self.compress
    }

    /// Sets the compression of further events.
    pub fn set_compress(&mut self, how: Compress) {
        self.end_pack();
        self.compress = how;
    }

    /// Sets the length of the file beyond which events are dropped, and counted as lost.
    pub fn set_most(&mut self, most: u64) {
        self.most = most;
    }

    /// Returns by how many bytes the file may become longer.
    pub fn room(&self) -> u64 {
        self.most.saturating_sub(self.end)
    }

    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Goes on in another file, which has all that this one has and is `len` bytes long. It gets this one's descriptor, by
    /// which other processes find it.
    pub(crate) fn replace(&mut self, new: &File, len: u64) -> io::Result<()> {
        // SAFETY: both descriptors are open, and the second stays this file's.
        let done = unsafe { libc::dup3(new.as_raw_fd(), self.file.as_raw_fd(), libc::O_CLOEXEC) };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        (self.end, self.kept) = (len, 0);
        Ok(())
    }

    /// Sets whether events are written without compression, because the ring fills up.
    pub fn set_hurry(&mut self, hurry: bool) {
        self.hurry = hurry;
    }

    /// Returns whether events go to [`Output::packer`] rather than to [`Output::put_events`].
    pub fn packs(&self) -> bool {
        self.compress != Compress::None && !self.hurry && self.sieve.is_none()
    }

    /// Returns whether events are to be packed as small as possible.
    pub fn packs_small(&self) -> bool {
        self.compress == Compress::Best
    }

    /// Returns the packer, with room for the events in this many bytes of a segment.
    pub fn packer(&mut self, bytes: usize) -> &mut Packer {
        if !self.packer.has_room(bytes) {
            self.end_pack();
        }
        self.added += bytes;
        &mut self.packer
    }

    /// Turns the packed events into a chunk.
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

    /// Adds a chunk other than events. Of these only stack nodes and mappings can be long; they are compressed if
    /// events are.
    pub fn put(&mut self, kind: u16, payload: &[u8]) {
        if kind == kind::PASS
            && let Some(mut s) = self.sieve.take()
        {
            // The chunk is written behind the events before it.
            if let Some(pass) = Pass::decode(payload) {
                s.sieve.pass(&pass, self);
            }
            self.sieve = Some(s);
            return;
        }
        if kind == kind::THREADS_LEFT
            && let Some(s) = &mut self.sieve
            && let Some(left) = ThreadsLeft::decode(payload)
        {
            s.sieve.left(&left.numbers);
        }
        if self.sieve.as_mut().is_some_and(|s| s.leaves_out(kind)) {
            return;
        }
        if matches!(kind, kind::NODE_RUN | kind::MAPPINGS | kind::STRIPPED | kind::STEP)
            && self.compress != Compress::None
            && !self.hurry
            && payload.len() >= WORTH_IT
            && let Some(zipped) = self.zipper.zip(kind, payload)
        {
            return chunk::put(&mut self.meta, kind::ZIPPED, &zipped);
        }
        chunk::put(&mut self.meta, kind, payload);
    }

    /// Adds a chunk of uncompressed events.
    pub fn put_events(&mut self, thread: u32, from: &Codec, count: u32, bytes: &[u8]) {
        self.added += bytes.len();
        if let Some(s) = &mut self.sieve {
            self.sifting.given += u64::from(count);
            return s.sieve.events(thread, from, count, bytes);
        }
        self.put_chunk(thread, from, count, bytes);
    }

    fn put_chunk(&mut self, thread: u32, from: &Codec, count: u32, bytes: &[u8]) {
        self.end_pack();
        let mut w = self.begin_chunk();
        w.int(thread.into()).int(from.time.0).int(from.addr).int(from.node.into());
        w.int(count.into()).blob(bytes);
        self.end_chunk(w, kind::EVENTS);
    }

    /// Adds calls that change mappings.
    pub fn put_calls(&mut self, thread: u32, parts: impl Iterator<Item = Part>) {
        // A recording that has gone over to figures alone goes on getting calls.
        if !self.sieve.as_ref().is_some_and(|s| s.sieve.has_only_figures()) {
            self.calls.add(thread, parts);
        }
    }

    /// Turns the calls into chunks behind the other events.
    fn end_calls(&mut self) {
        if self.calls.len() == 0 {
            return;
        }
        self.end_pack();
        for payload in self.calls.take() {
            chunk::put(&mut self.events, kind::CALLS, &payload);
        }
    }

    /// Returns whether it is time to call [`Output::flush`].
    pub fn is_full(&self) -> bool {
        self.added + self.meta.len() + self.calls.len() * CALL >= FLUSH_AT
    }

    /// Returns whether nothing waits to be written.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
            && self.added == 0
            && self.meta.is_empty()
            && self.packer.events() == 0
            && self.calls.len() == 0
    }

    /// Writes all that was added. After an error the file ends with the last chunk that was written completely, and all
    /// further chunks are dropped; see [`Output::failure`].
    pub fn flush(&mut self) {
        if let Some(mut s) = self.sieve.take_if(|s| s.written.elapsed() >= s.due) {
            self.put_figures(&mut s);
            self.sieve = Some(s);
        }
        self.end_pack();
        self.end_calls();
        self.added = 0;
        let (mut meta, mut events) =
            (std::mem::take(&mut self.meta), std::mem::take(&mut self.events));
        self.write_chunks(&meta);
        if self.failed.is_none() {
            self.sifting.wrote();
        }
        if self.end.saturating_add(events.len() as u64) > self.most {
            self.lost += count_events(&events);
            // No later events are written, so that the recording has all up to there.
            self.most = self.most.min(self.end);
        } else {
            self.write_chunks(&events);
        }
        meta.clear();
        events.clear();
        (self.meta, self.events) = (meta, events);
        self.keep_more_room();
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
            // If this fails too, readers still stop at the damaged chunk.
            let _ = self.file.set_len(self.end + whole as u64);
        }
        self.end += whole as u64;
        self.lost += count_events(&bytes[whole..]);
        // The write has used the room behind the end, or the shorter file has given it back.
        self.keep_room(LAST);
    }

    /// Returns the error that ended the writing.
    pub fn failure(&self) -> Option<&io::Error> {
        self.failed.as_ref()
    }

    /// Removes and returns the error that ended the writing.
    pub fn take_failure(&mut self) -> Option<io::Error> {
        self.failed.take()
    }

    /// Returns the number of events that could not be written, or that no figures have which could.
    pub fn lost(&self) -> u64 {
        // An event that was to be written is in the figures, too: a sum would count some twice.
        let lacks = if self.failed.is_some() { self.sifting.lacks() } else { 0 };
        self.lost.max(lacks)
    }

    /// Returns the length of the file so far.
    pub fn len(&self) -> u64 {
        self.end
    }
}

/// Packs events, for which there must be room.
fn show<const ALL: bool>(packer: &mut Packer, thread: u32, from: &Codec, events: &[Event]) {
    let mut run = packer.begin::<ALL>(thread, from, 2 * events.len());
    for event in events {
        event.show(&mut run);
    }
    run.end();
}

/// Returns the length of the whole chunks at the front of `bytes`.
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
            kind::CALLS => Calls::count(payload).unwrap_or(0),
            _ => 0,
        };
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use prof_trace::records::Stripped;
    use prof_trace::sieve::{Figures, Sieve, Sieved};
    use prof_trace::ticks::Ticks;

    #[test]
    fn a_full_disk_leaves_whole_chunks() {
        // /dev/full refuses every write; a limit on file sizes would need a signal handler.
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

    /// Passes on so many frees at the end.
    #[derive(Debug)]
    struct Holds(u64);

    impl Sieve for Holds {
        fn events(&mut self, _: u32, _: &Codec, _: u32, _: &[u8]) {}

        fn pass(&mut self, pass: &Pass, to: &mut dyn Sieved) {
            to.pass(pass);
        }

        fn finish(&mut self, to: &mut dyn Sieved) {
            let free = |i| Event::Free { time: Ticks(i), addr: 16 * i, node: 0 };
            let events: Vec<Event> = (1..=self.0).map(free).collect();
            events.chunks(1000).for_each(|part| to.events(1, part));
        }

        fn about(&self) -> Stripped {
            Stripped::default()
        }

        fn counted(&self) -> u64 {
            0
        }

        fn figures(&mut self) -> Vec<Figures> {
            Vec::new()
        }
    }

    #[test]
    fn events_that_no_written_figures_have_are_lost_where_the_disk_is_full() {
        let full = OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        let null = OpenOptions::new().write(true).open("/dev/null").expect("/dev/null");
        for (file, lost) in [(full, 12), (null, 0)] {
            let mut out = Output::new(file).expect("output");
            out.set_sieve(Box::new(Holds(3)));
            out.put_events(2, &Codec::default(), 5, &[1, 2, 3]);
            out.flush();
            out.put_events(2, &Codec::default(), 7, &[1, 2, 3]);
            out.end_sieve();
            assert_eq!(out.lost(), lost);
        }
    }

    #[test]
    fn what_a_sieve_held_back_is_written_bit_by_bit_behind_passes_and_nodes() {
        for compress in [Compress::None, Compress::Fast] {
            let path = std::env::temp_dir().join(format!("prof-held-{}", std::process::id()));
            let mut out = Output::new(create_recording(&path).expect("a file")).expect("output");
            out.set_compress(compress);
            let n = 1_000_000;
            out.set_sieve(Box::new(Holds(n)));
            out.put(kind::PASS, &Pass::default().encode());
            out.put(kind::NODES, &[]);
            out.end_sieve();
            // The rest was written when there was as much as is written within a pass.
            assert!(out.events.capacity() < 4 * FLUSH_AT, "{}", out.events.capacity());
            let bytes = std::fs::read(&path).expect("read");
            std::fs::remove_file(&path).expect("remove");
            let (mut at, mut kinds) = (0, Vec::new());
            while let Next::Chunk(k, _, n) = chunk::next(&bytes[at..]) {
                at += n;
                kinds.push(k);
            }
            assert_eq!((count_events(&bytes), at, out.lost()), (n, bytes.len(), 0));
            assert_eq!(kinds[..3], [kind::STRIPPED, kind::NODES, kind::PASS]);
            assert!(kinds[3..].iter().all(|k| [kind::EVENTS, kind::PACKED].contains(k)));
        }
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
