//! Recognises allocators by texts in their files.

use super::Found;
use prof_trace::records::allocator;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Greatest length of a file that is searched.
const MAX_FILE: u64 = 512 << 20;
/// Length of the pieces that are read, and the number of bytes before and behind a text that belong to it at most.
const PIECE: usize = 1 << 20;
const AROUND: usize = 256;

/// Version of the tcmalloc of Google's, which is another allocator than the one of gperftools.
pub const GOOGLES: &str = "(Google's)";

/// A text that only an allocator's file has.
struct Mark {
    text: &'static [u8],
    name: &'static str,
    /// Finds the version in the text that contains the mark.
    version: fn(&str) -> Option<String>,
}

/// The marks. Several may belong to an allocator: one of them says the version.
const MARKS: [Mark; 7] = [
    Mark { text: b"GNU C Library (", name: allocator::GLIBC, version: of_glibc },
    Mark { text: b"<jemalloc>: ", name: allocator::JEMALLOC, version: none },
    Mark { text: b"-0-g", name: "", version: of_jemalloc },
    Mark { text: b"gperftools ", name: allocator::TCMALLOC, version: of_gperftools },
    Mark { text: b"TCMALLOC_HPAA_CONTROL", name: allocator::TCMALLOC, version: of_google },
    Mark { text: b"mimalloc: ", name: allocator::MIMALLOC, version: none },
    Mark { text: b"musl libc (", name: allocator::MUSL, version: none },
];

fn none(_: &str) -> Option<String> {
    None
}

/// `GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.`
fn of_glibc(text: &str) -> Option<String> {
    let rest = text.split_once(" version ")?.1;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    Some(rest[..end].trim_end_matches('.').into())
}

/// `5.3.0-0-g54eaed1d8b56b1aa528be3bdd1877e59c56fa90c`
fn of_jemalloc(text: &str) -> Option<String> {
    let (version, commit) = text.split_once("-0-g")?;
    let is_version = is_number(version);
    (is_version && commit.len() == 40 && commit.bytes().all(|b| b.is_ascii_hexdigit()))
        .then(|| version.into())
}

/// `gperftools 2.10`
fn of_gperftools(text: &str) -> Option<String> {
    let version = text.strip_prefix("gperftools ")?;
    is_number(version).then(|| version.into())
}

/// The name of a setting that only Google's tcmalloc has. It has no releases.
fn of_google(_: &str) -> Option<String> {
    Some(GOOGLES.into())
}

/// Returns whether a text consists of numbers and points.
fn is_number(text: &str) -> bool {
    text.contains('.') && text.bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

/// Returns whether a file's name is that of libc.
pub(super) fn is_libc(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    ["libc.so", "libc-2.", "ld-musl", "libc.musl"].iter().any(|p| name.starts_with(p))
}

/// Returns whether a file's name is that of an allocator, or of libc.
pub(super) fn is_named(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let parts = ["jemalloc", "mimalloc", "tcmalloc"];
    is_libc(path) || parts.iter().any(|p| name.contains(p))
}

/// Returns the version in a file's name: `libmimalloc.so.2.0`.
fn version_of_name(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    let version = name.split_once(".so.").map_or("", |v| v.1);
    if is_number(version) { version.into() } else { String::new() }
}

/// Returns the allocators whose marks a file has.
pub(super) fn search(file: &File, path: &str) -> Vec<Found> {
    let name = path.rsplit('/').next().unwrap_or_default();
    if name.starts_with("ld-musl") || name.starts_with("libc.musl") {
        let version =
            texts(file, true).into_iter().find_map(|(_, t)| of_musl(&t)).unwrap_or_default();
        return vec![Found { name: allocator::MUSL, version, symbols: Vec::new() }];
    }
    let (mut found, mut jemalloc): (Vec<Found>, _) = (Vec::new(), None);
    for (mark, text) in texts(file, false) {
        let version = (MARKS[mark].version)(&text);
        if MARKS[mark].name.is_empty() {
            jemalloc = jemalloc.or(version);
            continue;
        }
        match found.iter_mut().find(|f| f.name == MARKS[mark].name) {
            Some(f) if f.version.is_empty() => f.version = version.unwrap_or_default(),
            Some(_) => {}
            None => {
                let (name, version) = (MARKS[mark].name, version.unwrap_or_default());
                // gperftools has profilers without the allocator, too.
                if name != allocator::TCMALLOC || !version.is_empty() {
                    found.push(Found { name, version, symbols: Vec::new() });
                }
            }
        }
    }
    for f in &mut found {
        match f.name {
            allocator::JEMALLOC => f.version = jemalloc.take().unwrap_or_default(),
            allocator::MIMALLOC => f.version = version_of_name(path),
            _ => {}
        }
    }
    found
}

/// Returns musl's version, `1.2.3`, if a text is one.
fn of_musl(text: &str) -> Option<String> {
    let is_version = text.starts_with("1.") && text.split('.').count() == 3 && is_number(text);
    is_version.then(|| text.into())
}

/// Returns the printable texts of a file that contain a mark, with the mark's index; with `musl` also those that
/// may be its version.
fn texts(file: &File, musl: bool) -> Vec<(usize, String)> {
    let len = file.metadata().map_or(0, |m| m.len()).min(MAX_FILE);
    let mut all = Vec::new();
    let mut bytes = vec![0; PIECE + 2 * AROUND];
    let mut at = 0u64;
    while at < len {
        let from = at.saturating_sub(AROUND as u64);
        let Ok(n) = file.read_at(&mut bytes, from) else { break };
        let skip = (at - from) as usize;
        let end = n.min(skip + PIECE);
        let mut i = skip;
        while let Some(k) = bytes[i..end]
            .iter()
            .position(|b| matches!(b, b'G' | b'<' | b'-' | b'g' | b'T' | b'm' | b'1'))
        {
            i += k;
            let rest = &bytes[i..n];
            // A C compiler puts each text behind the end of another.
            let begins = i > 0 && bytes[i - 1] == 0;
            let fits = |m: &Mark| (begins || m.name.is_empty()) && rest.starts_with(m.text);
            let mark = MARKS.iter().position(fits);
            // A version of musl is a text of its own.
            let own = musl && begins && rest.starts_with(b"1.");
            if let Some(mark) = mark.or(own.then_some(MARKS.len() - 1)) {
                all.push((mark, around(&bytes[..n], i)));
            }
            i += 1;
            if all.len() > 1000 {
                return all;
            }
        }
        at += PIECE as u64;
    }
    all
}

/// Returns the printable text around a place.
fn around(bytes: &[u8], at: usize) -> String {
    let is_text = |b: &u8| (b' '..0x7f).contains(b);
    let from = bytes[..at].iter().rposition(|b| !is_text(b)).map_or(0, |i| i + 1);
    let to = bytes[at..].iter().position(|b| !is_text(b)).map_or(bytes.len(), |i| at + i);
    let from = from.max(at.saturating_sub(AROUND));
    String::from_utf8_lossy(&bytes[from..to.min(at + AROUND)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(content: &[u8], name: &str) -> Vec<(&'static str, String)> {
        let path = std::env::temp_dir().join(format!("prof-marks-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        let path = path.join(name);
        std::fs::write(&path, content).expect("written");
        let file = File::open(&path).expect("open");
        let all = search(&file, path.to_str().expect("a path"));
        std::fs::remove_file(&path).expect("removed");
        all.into_iter().map(|f| (f.name, f.version)).collect()
    }

    #[test]
    fn versions_are_in_the_texts() {
        let glibc = b"\0GNU C Library (Debian GLIBC 2.36-9+deb12u14) stable release version 2.36.\nCopyright\0";
        assert_eq!(found(glibc, "a"), [(allocator::GLIBC, "2.36".into())]);
        let jemalloc =
            b"\0<jemalloc>: out\0x-0-gy\x005.3.0-0-g54eaed1d8b56b1aa528be3bdd1877e59c56fa90c\0";
        assert_eq!(found(jemalloc, "b"), [(allocator::JEMALLOC, "5.3.0".into())]);
        assert_eq!(found(b"\0gperftools 2.10\0", "c"), [(allocator::TCMALLOC, "2.10".into())]);
        let google = found(b"\0TCMALLOC_HPAA_CONTROL\0", "h");
        assert_eq!(google, [(allocator::TCMALLOC, GOOGLES.into())]);
        assert_eq!(found(b"\0uses gperftools here\0", "d"), []);
        let mimalloc = b"\0mimalloc: \0";
        assert_eq!(found(mimalloc, "libmimalloc.so.2.0"), [(allocator::MIMALLOC, "2.0".into())]);
        let musl = found(b"\x001.2\x001.2.3\0", "libc.musl-x86_64.so.1");
        assert_eq!(musl, [(allocator::MUSL, "1.2.3".into())]);
        assert_eq!(found(b"nothing\x001.2.3\0", "e"), []);
        // As in this very program.
        assert_eq!(found(b"\0x<jemalloc>: GNU C Library (", "g"), []);
    }

    #[test]
    fn texts_across_pieces_are_found_once() {
        let text = b"\0GNU C Library (X) stable release version 2.40.\n";
        for shift in [0, 5, 20, 47] {
            let mut content = vec![0; PIECE - shift];
            content.extend(text);
            content.resize(2 * PIECE + 9, 0);
            assert_eq!(found(&content, "f"), [(allocator::GLIBC, "2.40".into())]);
        }
    }
}
