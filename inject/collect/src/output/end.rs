//! Writes how a recording ended, also where the disk is full.

use super::{Output, whole_chunks};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// Room that is kept for the chunks which say how a recording ended, in bytes.
pub(super) const LAST: u64 = 4096;

impl Output {
    /// Keeps more room behind the end if there is too little for the last chunks.
    pub(super) fn keep_more_room(&mut self) {
        if self.failed.is_none() && self.end + LAST > self.kept {
            self.keep_room(4 * LAST);
        }
    }

    /// Keeps room behind the end for the last chunks. On a file system without such a call there is none.
    pub(super) fn keep_room(&mut self, bytes: u64) {
        let (fd, keep) = (self.file.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE);
        // SAFETY: the call reads and writes no memory of this process.
        if unsafe { libc::fallocate64(fd, keep, self.end as i64, bytes as i64) } == 0 {
            self.kept = self.end + bytes;
        }
    }

    /// After an error, tries to write a few small chunks: the room that an incomplete chunk has left is often enough to
    /// record how the recording ended.
    pub fn put_last(&mut self, chunks: &[u8]) {
        if self.failed.is_none() {
            self.meta.extend_from_slice(chunks);
            self.flush();
            return self.give_back_room();
        }
        let n = self.file.write_at(chunks, self.end).unwrap_or(0);
        if n == chunks.len() {
            self.end += n as u64;
        } else if n > 0 {
            let whole = whole_chunks(&chunks[..n]);
            let _ = self.file.set_len(self.end + whole as u64);
            self.end += whole as u64;
        }
        self.give_back_room();
    }

    /// Gives back the room behind the end, if nobody has made the file longer.
    fn give_back_room(&mut self) {
        let is_ours = self.file.metadata().is_ok_and(|m| m.len() == self.end);
        if self.kept > self.end && is_ours {
            let _ = self.file.set_len(self.end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::create_recording;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn room_is_kept_behind_the_end_and_given_back() {
        let path = std::env::temp_dir().join(format!("prof-room-{}", std::process::id()));
        let mut out = Output::new(create_recording(&path).expect("a file")).expect("output");
        let taken = || {
            let m = std::fs::metadata(&path).expect("its size");
            (m.len(), m.blocks() * 512)
        };
        out.put(1, &[7; 100]);
        out.flush();
        let (len, room) = taken();
        assert_eq!(len, out.len());
        // A file system may have no such call.
        assert!(out.kept == 0 || room >= len + LAST, "{room} bytes for {len}");
        out.put_last(&[]);
        let (at_end, left) = taken();
        assert_eq!(at_end, len);
        assert!(out.kept == 0 || left < room, "{left} bytes are left of {room}");
        std::fs::remove_file(&path).expect("removed");
    }
}
