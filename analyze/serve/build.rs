//! Packs the files of the page into the program: a table of paths, types and gzip bytes, and one hash for all of them.

use flate2::{Compression, write::GzEncoder};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Folders of `ui` that the page does not need.
const LEFT_OUT: [&str; 3] = ["test", "node_modules", "dist"];
/// Types of the files that are served, by extension.
const TYPES: [(&str, &str); 5] = [
    ("html", "text/html; charset=utf-8"),
    ("js", "text/javascript; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("svg", "image/svg+xml"),
    ("json", "application/json"),
];
/// Files that only developers need.
const DEVELOPERS: [&str; 3] = ["package.json", "package-lock.json", "jsconfig.json"];

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("ui");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    println!("cargo::rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    walk(&root, &mut files)?;
    files.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut table = String::from("pub(super) static FILES: &[File] = &[\n");
    for (i, path) in files.iter().enumerate() {
        println!("cargo::rerun-if-changed={}", path.display());
        let bytes = bare(&name_of(&root, path), fs::read(path)?);
        let name = name_of(&root, path);
        for b in name.bytes().chain(bytes.iter().copied()) {
            hash = (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
        }
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&bytes)?;
        fs::write(out.join(format!("asset{i}.gz")), packed.finish()?)?;
        let packed = format!("include_bytes!(concat!(env!(\"OUT_DIR\"), \"/asset{i}.gz\"))");
        let (kind, len) = (kind(path).unwrap_or_default(), bytes.len());
        let _ = writeln!(
            table,
            "    File {{ path: {name:?}, kind: {kind:?}, len: {len}, packed: {packed} }},"
        );
    }
    let _ = writeln!(
        table,
        "];\n/// A hash of all files.\npub(super) const HASH: &str = \"{hash:016x}\";"
    );
    fs::write(out.join("assets.rs"), table)
}

/// Returns the path below the folder of the page.
fn name_of(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned()
}

/// Leaves out the lines of scripts and style sheets that are comments as a whole, types within lines, and the blanks at
/// the start of lines: a fifth of what would be sent. No text of a script goes over several lines, which a test of the
/// page's modules holds.
fn bare(name: &str, bytes: Vec<u8>) -> Vec<u8> {
    let Some(text) = std::str::from_utf8(&bytes)
        .ok()
        .filter(|_| name.ends_with(".js") || name.ends_with(".css"))
    else {
        return bytes;
    };
    let (mut out, mut inside) = (String::new(), false);
    for line in text.lines().map(str::trim) {
        if inside {
            inside = !line.contains("*/");
        } else if line.starts_with("/*") && !line.contains("*/") {
            inside = true;
        } else if !(line.is_empty()
            || line.starts_with("//")
            || (line.starts_with("/*") && line.ends_with("*/")))
        {
            let mut rest = line;
            while let Some((code, note)) = rest.split_once("/** @type ") {
                out.push_str(code);
                rest = note.split_once("*/ ").map_or("", |(_, more)| more);
            }
            out.push_str(rest);
            out.push('\n');
        }
    }
    out.into_bytes()
}

fn kind(path: &Path) -> Option<&'static str> {
    let extension = path.extension()?.to_str()?;
    TYPES.iter().find(|t| t.0 == extension).map(|t| t.1)
}

fn walk(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
        if name.starts_with('.') || LEFT_OUT.contains(&&*name) || DEVELOPERS.contains(&&*name) {
            continue;
        }
        if path.is_dir() {
            println!("cargo::rerun-if-changed={}", path.display());
            walk(&path, files)?;
        } else if kind(&path).is_some() {
            files.push(path);
        }
    }
    Ok(())
}
