//! The files of the page: embedded in the program or, in debug builds, read from the source folder, so that an edit
//! shows at the next reload.

use crate::reply::Answer;
use bytes::Bytes;
use flate2::read::GzDecoder;
use std::borrow::Cow;
use std::io::Read;

include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// A file of the page.
pub(super) struct File {
    /// Path below `ui/`.
    path: &'static str,
    /// Media type.
    kind: &'static str,
    /// Length in bytes, unpacked.
    len: usize,
    /// The contents, packed by gzip.
    packed: &'static [u8],
}

/// Greatest length of a file of the page.
const LONGEST: u64 = 8 << 20;

impl File {
    fn find(path: &str) -> Option<&'static Self> {
        FILES.iter().find(|f| f.path == path)
    }

    fn text(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len);
        // The packed bytes are those that the build wrote.
        let _ = GzDecoder::new(self.packed).take(LONGEST).read_to_end(&mut out);
        out
    }
}

/// Reads a file from the source folder, in debug builds: only those that are in the table.
fn edited(file: &File) -> Option<Vec<u8>> {
    if !cfg!(debug_assertions) {
        return None;
    }
    std::fs::read(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/ui")).join(file.path))
        .ok()
}

/// Returns the page itself, with the folder of its modules filled in, and a hint to the browser to load all of them at
/// once.
pub(crate) fn page() -> Option<Answer> {
    let file = File::find("index.html")?;
    let text = edited(file).unwrap_or_else(|| file.text());
    let text = String::from_utf8(text).ok()?;
    let base = format!("/assets/{}", folder());
    let preload: String = FILES
        .iter()
        .filter(|f| f.path.ends_with(".js"))
        .map(|f| format!("<link rel=\"modulepreload\" href=\"{base}/{}\">\n", f.path))
        .collect();
    let text = text.replace("@assets@", &base).replace("@preload@\n", &preload);
    let mut answer = Answer::new(file.kind, text.into_bytes());
    answer.headers.push(("cache-control", "no-cache".into()));
    Some(answer)
}

/// Returns the name of the folder that the files are served in. It changes with their contents, so browsers keep them.
fn folder() -> Cow<'static, str> {
    if cfg!(debug_assertions) { Cow::Borrowed("edited") } else { Cow::Borrowed(HASH) }
}

/// Returns a file of the page; `gzip`: packed, if the client accepts that.
pub(crate) fn file(hash: &str, path: &str, gzip: bool) -> Option<Answer> {
    let file = File::find(path).filter(|_| hash == folder())?;
    let mut answer = match (edited(file), gzip) {
        (Some(text), _) => Answer::new(file.kind, text),
        (None, true) => {
            let mut packed = Answer::new(file.kind, Bytes::from_static(file.packed));
            packed.headers.push(("content-encoding", "gzip".into()));
            packed
        }
        (None, false) => Answer::new(file.kind, file.text()),
    };
    let kept =
        if cfg!(debug_assertions) { "no-store" } else { "public, max-age=31536000, immutable" };
    answer.headers.push(("cache-control", kept.into()));
    answer.headers.push(("vary", "accept-encoding".into()));
    Some(answer)
}

/// Returns the icon of the page, which browsers ask for at the root.
pub(crate) fn icon() -> Option<Answer> {
    let file = File::find("favicon.svg")?;
    Some(Answer::new(file.kind, file.text()))
}
