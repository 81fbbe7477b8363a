//! A recording by another build of prof: what its control page says of that.

use crate::shared::{Header, LAYOUT};
use std::ffi::OsString;
use std::format;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::string::{String, ToString};
use std::vec::Vec;

/// The first layout whose pages have [`Stable`](crate::shared::Stable).
const FIRST: u32 = 14;

/// Another build of prof, as it has named itself in the control page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// The number of its layout.
    pub layout: u32,
    /// Its version.
    pub version: String,
    /// Where it was.
    pub exe: PathBuf,
}

impl Foreign {
    /// The build that has made a control page; `None` for one of this layout. `read` gives bytes of the
    /// page.
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

    /// In words. The target may have written anything there.
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

/// Whether the stable part stands in a control page.
#[must_use]
pub fn has_stable(h: &Header) -> bool {
    h.layout >= FIRST && h.edition != 0
}
