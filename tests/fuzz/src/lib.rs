//! The fuzz targets: every reader of bytes that a hostile target, or a made-up file, controls. Each function takes any
//! bytes, and must end without a panic, a crash, or an access out of bounds.
//!
//! * [`ring`]: the shared memory, as the collector reads it; its recording must be readable without damage;
//! * [`control`]: the control page and tables of a recorded process, as status, detach and the next attach read them;
//! * [`recording`]: a recording, loaded, replayed and reported;
//! * [`elf`]: an ELF file, as the injector, the collector and the analyser read it;
//! * [`cfi`]: call frame information, compiled and stepped;
//! * [`maps`], a reader of `/proc/PID/maps`;
//! * [`index`]: the index beside a recording, with correct checksums;
//! * [`derived`]: a recording stripped, packed, extracted, exported, and the results read again;
//! * [`names`]: a file of the symbol cache;
//! * `request`: a request to `prof serve`;
//! * `script`: a script, as `prof serve` runs it.

mod analysis;
mod elf_files;
mod maps_text;
mod recordings;
#[cfg(feature = "serve")]
mod requests;
mod rings;
#[cfg(feature = "script")]
mod scripts;
mod unwind;

pub use analysis::{derived, index, names};
pub use elf_files::elf;
pub use maps_text::maps;
pub use recordings::recording;
#[cfg(feature = "serve")]
pub use requests::request;
pub use rings::{control, ring};
#[cfg(feature = "script")]
pub use scripts::script;
pub use unwind::cfi;

use std::fs::File;
use std::os::fd::FromRawFd;

/// A fuzz target.
pub type Target = fn(&[u8]);

/// All targets, by the names of their corpora.
pub const TARGETS: &[(&str, Target)] = &[
    ("ring", ring),
    ("control", control),
    ("recording", recording),
    ("elf", elf),
    ("cfi", cfi),
    ("maps", maps),
    ("index", index),
    ("derived", derived),
    ("names", names),
    #[cfg(feature = "serve")]
    ("request", request),
    #[cfg(feature = "script")]
    ("script", script),
];

/// Takes integers and byte strings from the front of the input; returns zeroes when it is used up.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        head
    }

    fn int(&mut self, size: usize) -> u64 {
        let mut word = [0; 8];
        let bytes = self.bytes(size);
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Creates a file in memory; returns it with a path that leads to it.
fn memory_file(name: &std::ffi::CStr) -> (File, std::path::PathBuf) {
    // SAFETY: the name is a valid C string; the result is a new descriptor, or -1.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "memfd_create: {}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new, and nothing else owns it.
    let file = unsafe { File::from_raw_fd(fd) };
    (file, format!("/proc/self/fd/{fd}").into())
}
