//! Recordings by another build of prof: what the control page tells about that build.

use crate::shared::{Header, LAYOUT};
use std::ffi::OsString;
use std::format;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::string::{String, ToString};
use std::vec::Vec;

/// First layout whose control page has [`Stable`](crate::shared::Stable).
const FIRST: u32 = 14;

/// Another build of prof, as it identifies itself in the control page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Layout number of that build.
    pub layout: u32,
    /// Version; empty if unknown.
    pub version: String,
    /// Path of the executable; empty if unknown.
    pub exe: PathBuf,
}

impl Foreign {
    /// Returns the build that made a control page; `None` if the page has this build's layout. `read` returns
    /// bytes of the page, by offset and length.
    pub fn of(h: &Header, read: impl Fn(u64, usize) -> Vec<u8>) -> Option<Self> {
        const MOST: u32 = 4096;
        if h.layout == LAYOUT {
            return None;
        }
        if !has_stable(h) {
            return Some(Self { layout: h.layout, version: String::new(), exe: PathBuf::new() });
        }
        let len = (h.version_len as usize).min(h.version.len());
        let exe = read(h.exe_at, h.exe_len.min(MOST) as usize);
        Some(Self {
            layout: h.layout,
            version: String::from_utf8_lossy(&h.version[..len]).into_owned(),
            exe: OsString::from_vec(exe).into(),
        })
    }

    /// Describes the build in words. Control characters are replaced, as the target may have written anything
    /// there.
    #[must_use]
    pub fn describe(&self) -> String {
        let plain = |s: &str| s.replace(|c: char| c.is_control(), "?");
        let version = if self.version.is_empty() { "an unknown version" } else { &self.version };
        let mut text = format!("prof {} (layout {})", plain(version), self.layout);
        if !self.exe.as_os_str().is_empty() {
            text += &format!(", {}", plain(&self.exe.display().to_string()));
        }
        text
    }
}

/// Returns whether a control page has the stable part.
#[must_use]
pub fn has_stable(h: &Header) -> bool {
    h.layout >= FIRST && h.edition != 0
}
