//! Takes a scan of the target's memory, which `prof holds --save` has made, into the recording, or the census of an
//! attach.

use super::Collector;
use prof_os::Pid;
use prof_trace::chunk::{self, CHUNK_HEADER, MAX_PAYLOAD, Next};
use prof_trace::derived::Zipped;
use prof_trace::records::kind;
use prof_trace::shared::scan_answer;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Bytes that are taken in at a time: events are collected in between.
const STEP: usize = 1 << 20;

/// A scan that is being taken in.
#[derive(Debug)]
pub(super) struct Incoming {
    file: File,
    at: u64,
    len: u64,
    /// Number of the request.
    number: u64,
    /// It is a census, and no scan.
    is_census: bool,
}

impl Incoming {
    /// Opens the file that the control page names. The target can write into this page, so the file has to be one of
    /// another prof of this build and user: what any other process has open stays its own.
    fn open(from: u64, number: u64, is_census: bool) -> io::Result<Self> {
        let (pid, fd) = (Pid::from_u32((from >> 32) as u32), from as u32);
        let (theirs, ours) = (format!("/proc/{pid}"), "/proc/self");
        let id = |path: String| fs::metadata(path).map(|m| (m.dev(), m.ino()));
        let is_prof = id(format!("{theirs}/exe"))? == id(format!("{ours}/exe"))?
            && fs::metadata(&theirs)?.uid() == fs::metadata(ours)?.uid();
        if !is_prof || pid == Pid::this() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(format!("{theirs}/fd/{fd}"))?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self { file, at: 0, len: meta.len(), number, is_census })
    }

    /// Reads the next chunk. Returns `None` if it is not one of what is taken in.
    fn next(&mut self, bytes: &mut Vec<u8>) -> Option<(u16, usize)> {
        let mut head = [0; CHUNK_HEADER];
        self.file.read_exact_at(&mut head, self.at).ok()?;
        let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if len > MAX_PAYLOAD {
            return None;
        }
        bytes.resize(CHUNK_HEADER + len, 0);
        self.file.read_exact_at(bytes, self.at).ok()?;
        let Next::Chunk(kind, payload, n) = chunk::next(bytes) else { return None };
        let of = match kind {
            kind::ZIPPED => Zipped::decode(payload)?.kind,
            kind => kind,
        };
        self.at += n as u64;
        let wanted = match self.is_census {
            true => matches!(of, kind::CENSUS | kind::CENSUS_CLASSES),
            false => (kind::SCAN..=kind::SCAN_POINTERS).contains(&of),
        };
        wanted.then_some((kind, n))
    }
}

impl Collector<'_> {
    /// Takes in the next part of a scan that was offered. Returns whether there is more.
    pub(super) fn take_scan(&mut self) -> bool {
        let c = self.shared.control();
        let asked = c.scans_asked.load(Acquire);
        if self.incoming.is_none() {
            if asked == c.scans_done.load(Relaxed) {
                return false;
            }
            match Incoming::open(c.scan_from.load(Relaxed), asked, self.awaits.is_some()) {
                Ok(scan) if scan.len > self.out.room() => {
                    self.answer_scan(asked, scan_answer::NO_ROOM);
                }
                Ok(scan) => self.incoming = Some(scan),
                Err(_) => self.answer_scan(asked, scan_answer::UNREADABLE),
            }
        }
        let Some(mut scan) = self.incoming.take() else { return false };
        let (mut bytes, mut taken) = (Vec::new(), 0);
        while scan.at < scan.len && taken < STEP {
            let Some((kind, n)) = scan.next(&mut bytes) else {
                self.answer_scan(scan.number, scan_answer::UNREADABLE);
                return false;
            };
            self.out.put(kind, &bytes[CHUNK_HEADER..n]);
            taken += n;
        }
        // It is in the file when `prof holds` ends.
        self.drain.flush(&self.shared, &mut self.out);
        self.out.flush();
        if scan.at < scan.len {
            self.incoming = Some(scan);
            return true;
        }
        let answer = match self.out.failure() {
            None => scan_answer::WRITTEN,
            Some(_) => scan_answer::NO_ROOM,
        };
        self.answer_scan(scan.number, answer);
        false
    }

    fn answer_scan(&self, number: u64, answer: u64) {
        let c = self.shared.control();
        c.scan_answer.store(answer, Relaxed);
        c.scans_done.store(number, Release);
    }
}
