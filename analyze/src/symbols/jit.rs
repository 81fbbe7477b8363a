//! Code that no module holds: just-in-time compilers write down what they made, in
//! `/tmp/perf-PID.map`.

use super::table::{Found, Table};
use crate::Analysis;
use prof_trace::files::{open_below, open_regular, read_at_most};
use prof_trace::records::Symbols;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// No longer map is read.
const LONGEST: u64 = 512 << 20;

/// The functions of a map.
#[derive(Default)]
pub(super) struct Jit {
    table: Table,
}

impl Jit {
    /// The map of a recording's process, if there is one.
    pub(super) fn load(analysis: &Analysis) -> Self {
        let mut text = Vec::new();
        if let Some(file) = open(analysis) {
            // What could be read counts.
            let _ = file.take(LONGEST).read_to_end(&mut text);
        }
        Self::parse(&text)
    }

    fn parse(text: &[u8]) -> Self {
        // Code is thrown away and its place used again: what was written last counts.
        let mut entries: BTreeMap<u64, (u64, &[u8])> = BTreeMap::new();
        for line in text.split(|b| *b == b'\n') {
            let mut parts = line.splitn(3, |b| *b == b' ');
            let mut number = || {
                let text = std::str::from_utf8(parts.next()?).ok()?;
                u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
            };
            let (Some(start), Some(size)) = (number(), number()) else { continue };
            if let Some(name) = parts.next().filter(|n| !n.is_empty()) {
                entries.insert(start, (size, name));
            }
        }
        let mut symbols = Symbols::default();
        for (start, (size, name)) in entries {
            symbols.symbols.extend([start, size, symbols.names.len() as u64, name.len() as u64]);
            symbols.names.extend(name);
        }
        let mut table = Table::default();
        table.add_recorded(symbols);
        table.finish();
        Self { table }
    }

    /// The function that an address lies in.
    pub(super) fn find(&self, address: u64) -> Option<Found<'_>> {
        self.table.find(address)
    }
}

/// Opens the map: in a folder that was named; while the process is there, as it sees it, by the id
/// that it has itself; else in this machine's folder, if it was written after the recording began.
fn open(analysis: &Analysis) -> Option<File> {
    let (target, options) = (&analysis.meta().target, analysis.symbol_options());
    let name = |pid: u32| format!("perf-{pid}.map");
    let named = options.debug_paths.iter().map(|dir| dir.join(name(target.pid)));
    if let Some(file) = named.filter_map(|p| open_regular(&p).ok()).next() {
        return Some(file);
    }
    if let Some(root) = &options.sysroot {
        let path = PathBuf::from("/tmp").join(name(target.pid));
        return open_below(root, &path).ok();
    }
    if super::is_target(target) {
        let own = own_pid(target.pid).unwrap_or(target.pid);
        let root = PathBuf::from(format!("/proc/{}/root", target.pid));
        return open_below(&root, &Path::new("/tmp").join(name(own))).ok();
    }
    let file = open_regular(&Path::new("/tmp").join(name(target.pid))).ok()?;
    let written = u64::try_from(file.metadata().ok()?.mtime()).ok()?;
    (written >= target.wall_ns / 1_000_000_000).then_some(file)
}

/// The id of a process in its own namespace.
fn own_pid(pid: u32) -> Option<u32> {
    let status = read_at_most(Path::new(&format!("/proc/{pid}/status")), 1 << 16).ok()?;
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find_map(|l| l.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_read_and_the_last_word_counts() {
        let text =
            b"7f0010 20 first\n7f0040 10 LazyCompile:~f /x.js:3\nnonsense\n7f0010 18 second\n\
            0x7f0100 0x8 hex\nzz 1 bad\n7f0200 10 \n7f0300";
        let jit = Jit::parse(text);
        let name = |a| jit.find(a).map(|f| f.name.into_owned());
        assert_eq!(name(0x7f0010).as_deref(), Some("second"));
        assert_eq!(name(0x7f0027).as_deref(), Some("second"));
        assert_eq!(name(0x7f0028), None);
        assert_eq!(name(0x7f004f).as_deref(), Some("LazyCompile:~f /x.js:3"));
        assert_eq!((name(0x7f0104).as_deref(), name(0x7f0208)), (Some("hex"), None));
    }
}
