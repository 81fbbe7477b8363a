//! The target's memory, through `/proc/PID/mem`.

use crate::{Error, RemoteAddr, Result};
use nix::sys::uio::{RemoteIoVec, process_vm_writev};
use nix::unistd::Pid;
use prof_trace::process::folder;
use std::fs::File;
use std::io::{ErrorKind, IoSlice};
use std::os::unix::fs::FileExt;

/// Bytes of a word: the target's are those of this process.
pub(crate) const WORD: usize = size_of::<usize>();

/// The words that `bytes` are.
pub(crate) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.as_chunks::<WORD>().0.iter().map(|w| usize::from_ne_bytes(*w) as u64)
}

/// Bytes that are read at a time.
const STEP: usize = 1 << 20;

/// Reads and writes the target's memory; writes also reach read-only private pages (`FOLL_FORCE`),
/// so that code is changed without ever being writable.
#[derive(Debug)]
pub struct RemoteMemory {
    pid: i32,
    file: File,
}

impl RemoteMemory {
    /// Opens it; needs the right to trace.
    ///
    /// # Errors
    /// If that is missing, or the process is gone.
    pub fn open(pid: i32) -> Result<Self> {
        let path = folder(pid) + "/mem";
        let file = File::options().read(true).write(true).open(&path);
        match file {
            Ok(file) => Ok(Self { pid, file }),
            // The second: it has let go of its memory, and is about to be gone.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
                Err(Error::Gone(pid))
            }
            Err(errno) => Err(Error::File { path: path.into(), errno }),
        }
    }

    /// Whose memory it is.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Fills `to` from `addr`.
    ///
    /// # Errors
    /// If not all of it is there.
    pub fn read(&self, addr: RemoteAddr, to: &mut [u8]) -> Result<()> {
        let len = to.len();
        self.file.read_exact_at(to, addr.0).map_err(|e| self.failed("read", addr, len, e))
    }

    /// Where nothing is mapped that is an error; nothing at all can be read or written when the process
    /// has ended, or has made an exec.
    fn failed(
        &self,
        what: &'static str,
        addr: RemoteAddr,
        len: usize,
        errno: std::io::Error,
    ) -> Error {
        match errno.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::WriteZero => Error::Gone(self.pid),
            _ => Error::Memory { what, pid: self.pid, addr, len, errno },
        }
    }

    /// As many bytes from `addr` as there are, at most `len`.
    #[must_use]
    pub fn read_some(&self, addr: RemoteAddr, len: usize) -> Vec<u8> {
        let mut b = Vec::new();
        // Room is made as bytes come: a length that the target only claims costs nothing.
        while b.len() < len {
            let have = b.len();
            b.resize(have + (len - have).min(STEP), 0);
            let at = addr.plus(have as u64).0;
            let n = self.file.read_at(&mut b[have..], at).unwrap_or(0);
            b.truncate(have + n);
            if n == 0 {
                break;
            }
        }
        b
    }

    /// A word of the machine's size.
    ///
    /// # Errors
    /// If it is not there.
    pub fn word(&self, addr: RemoteAddr) -> Result<u64> {
        let mut b = [0; WORD];
        self.read(addr, &mut b)?;
        Ok(usize::from_ne_bytes(b) as u64)
    }

    /// Writes all of `bytes` to `addr`, in one call.
    ///
    /// # Errors
    /// If not all of it could be written.
    pub fn write(&self, addr: RemoteAddr, bytes: &[u8]) -> Result<()> {
        let failed = |e| self.failed("write", addr, bytes.len(), e);
        self.file.write_all_at(bytes, addr.0).map_err(failed)
    }

    /// The same for data alone: there is no code that is changed.
    ///
    /// On MIPS stacks are executable, and a kernel that writes there through the file also cares for the
    /// caches of instructions. It then takes a huge page for a table of pages, and dies of it with the
    /// target's mappings locked (Linux 6.1, `local_r4k_flush_cache_page`).
    ///
    /// # Errors
    /// As for [`RemoteMemory::write`].
    pub fn write_data(&self, addr: RemoteAddr, bytes: &[u8]) -> Result<()> {
        if cfg!(target_arch = "mips64") {
            let to = [RemoteIoVec { base: addr.0 as usize, len: bytes.len() }];
            let done = process_vm_writev(Pid::from_raw(self.pid), &[IoSlice::new(bytes)], &to);
            if done == Ok(bytes.len()) {
                return Ok(());
            }
        }
        self.write(addr, bytes)
    }
}
