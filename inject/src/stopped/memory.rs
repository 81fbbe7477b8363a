//! Access to the target's memory through `/proc/PID/mem`.

use crate::{Error, RemoteAddr, Result};
use nix::sys::uio::{RemoteIoVec, process_vm_writev};
use prof_os::Pid;
use prof_os::process::folder;
use prof_trace::protocol::{Memory, MemoryMut};
use std::fs::File;
use std::io::{ErrorKind, IoSlice};
use std::os::unix::fs::FileExt;

/// Bytes of a word, which are as many in the target as in this process.
pub(crate) const WORD: usize = size_of::<usize>();

/// Splits `bytes` into words.
pub(crate) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.as_chunks::<WORD>().0.iter().map(|w| usize::from_ne_bytes(*w) as u64)
}

/// Bytes that are read at a time.
const STEP: usize = 1 << 20;

/// Reads and writes the target's memory. Writes also reach read-only private pages (`FOLL_FORCE`), so that prof can
/// change code that never becomes writable.
#[derive(Debug)]
pub struct RemoteMemory {
    pid: Pid,
    file: File,
}

impl Memory for RemoteMemory {
    type Error = Error;

    fn read(&self, at: u64, to: &mut [u8]) -> Result<()> {
        self.read(RemoteAddr(at), to)
    }
}

impl MemoryMut for RemoteMemory {
    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.write(RemoteAddr(at), bytes)
    }
}

impl RemoteMemory {
    /// Opens the memory of a process, which requires the permission to trace it.
    ///
    /// # Errors
    /// If that permission is missing, or the process is gone.
    pub fn open(pid: Pid) -> Result<Self> {
        let path = folder(pid) + "/mem";
        let file = File::options().read(true).write(true).open(&path);
        match file {
            Ok(file) => Ok(Self { pid, file }),
            // ESRCH: the process has released its memory and is about to end.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
                Err(Error::Gone(pid))
            }
            Err(errno) => Err(Error::File { path: path.into(), errno }),
        }
    }

    /// Returns the pid of the process.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Fills `to` with the bytes from `addr` on.
    ///
    /// # Errors
    /// If some of these bytes are not mapped.
    pub fn read(&self, addr: RemoteAddr, to: &mut [u8]) -> Result<()> {
        let len = to.len();
        self.file.read_exact_at(to, addr.0).map_err(|e| self.failed("read", addr, len, e))
    }

    /// Chooses the error of a failed access. An access to an address that is not mapped fails with an errno. It
    /// transfers nothing instead if the process has ended or executed another program.
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

    /// Reads at most `len` bytes from `addr` on, up to the first that can't be read.
    #[must_use]
    pub fn read_some(&self, addr: RemoteAddr, len: usize) -> Vec<u8> {
        let mut b = Vec::new();
        // The buffer grows as bytes arrive, so a length that the target merely claims costs nothing.
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

    /// Reads a word of the machine's size.
    ///
    /// # Errors
    /// If the word is not mapped.
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

    /// Writes `bytes` to `addr`, where no code is.
    ///
    /// On MIPS stacks are executable, and when a kernel writes to one through `/proc/PID/mem`, it also flushes the
    /// instruction cache. It then takes a huge page for a page table, and crashes with the target's mappings locked
    /// (Linux 6.1, `local_r4k_flush_cache_page`).
    ///
    /// # Errors
    /// If the bytes can't be written, as for [`RemoteMemory::write`].
    pub fn write_data(&self, addr: RemoteAddr, bytes: &[u8]) -> Result<()> {
        if cfg!(target_arch = "mips64") {
            let to = [RemoteIoVec { base: addr.0 as usize, len: bytes.len() }];
            let done = process_vm_writev(self.pid.into(), &[IoSlice::new(bytes)], &to);
            if done == Ok(bytes.len()) {
                return Ok(());
            }
        }
        self.write(addr, bytes)
    }
}
