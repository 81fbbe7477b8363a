//! Reads `/proc/PID/maps`, the list of a process's mappings.

use crate::process::{folder, read};
use crate::{Pid, RemoteAddr, Result};
use memchr::memmem;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Suffix that the kernel appends to the path of a deleted file.
const DELETED: &[u8] = b" (deleted)";
/// Prefix of the names of memfd files.
const MEMFD: &[u8] = b"/memfd:";

/// One line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// First address.
    pub start: RemoteAddr,
    /// First address behind the mapping.
    pub end: RemoteAddr,
    /// The process may read it.
    pub read: bool,
    /// The process may write it.
    pub write: bool,
    /// The process may execute code in it.
    pub exec: bool,
    /// Writes are seen by others that map the same file or memory.
    pub shared: bool,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Major and minor number of the file's device; zeroes if no file is mapped.
    pub device: (u32, u32),
    /// Inode of the file; 0 if no file is mapped.
    pub inode: u64,
    /// Path, with newlines as in the file system, or a name in brackets; empty if there is none. A path that was
    /// deleted ends with ` (deleted)`, as may any other path.
    pub name: Vec<u8>,
}

impl Map {
    /// Parses one line, with or without the newline at its end. Returns `None` if it is malformed.
    #[must_use]
    pub fn parse(line: &[u8]) -> Option<Self> {
        let mut rest = line.strip_suffix(b"\n").unwrap_or(line);
        let mut word = || {
            let (word, behind) = rest.split_at(memchr::memchr(b' ', rest).unwrap_or(rest.len()));
            rest = behind.get(1..).unwrap_or_default();
            word
        };
        let (range, perms, offset, device, inode) = (word(), word(), word(), word(), word());
        let dash = memchr::memchr(b'-', range)?;
        let (start, end) = (hex(&range[..dash])?, hex(&range[dash + 1..])?);
        let colon = memchr::memchr(b':', device)?;
        let device = (hex(&device[..colon])?, hex(&device[colon + 1..])?);
        let [read, write, exec, kind] = *perms else { return None };
        (start < end).then_some(())?;
        Some(Self {
            start: RemoteAddr(start),
            end: RemoteAddr(end),
            read: read == b'r',
            write: write == b'w',
            exec: exec == b'x',
            shared: kind == b's',
            offset: hex(offset)?,
            device: (u32::try_from(device.0).ok()?, u32::try_from(device.1).ok()?),
            inode: std::str::from_utf8(inode).ok()?.parse().ok()?,
            name: unescape(rest.trim_ascii_start()),
        })
    }

    /// Returns whether both are mappings of the same file. Inode numbers are those of one device: a file on another one
    /// may have the same.
    #[must_use]
    pub fn is_of_file_of(&self, other: &Self) -> bool {
        (self.device, self.inode, &self.name) == (other.device, other.inode, &other.name)
    }

    /// Returns whether an address lies in the mapping.
    #[must_use]
    pub fn holds(&self, a: RemoteAddr) -> bool {
        self.start <= a && a < self.end
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Returns whether the mapping is empty, which the kernel's never are.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the permissions as the kernel prints them, such as `rw-p`.
    #[must_use]
    pub fn perms(&self) -> [u8; 4] {
        let letter = |is, letter| if is { letter } else { b'-' };
        let kind = if self.shared { b's' } else { b'p' };
        [letter(self.read, b'r'), letter(self.write, b'w'), letter(self.exec, b'x'), kind]
    }

    /// Returns whether no file is mapped and the kernel gives the mapping no special name: memory from `mmap`, also
    /// where the process has named it (`[anon:NAME]`).
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        self.inode == 0 && (self.name.is_empty() || self.name.starts_with(b"[anon"))
    }

    /// Returns whether a device is mapped, and not memory below `/dev`.
    #[must_use]
    pub fn is_device(&self) -> bool {
        let memory: [&[u8]; 3] = [b"/dev/shm/", b"/dev/zero", b"/dev/hugepages/"];
        self.name.starts_with(b"/dev/") && !memory.iter().any(|name| self.name.starts_with(name))
    }

    /// Returns whether a memfd of this name is mapped.
    #[must_use]
    pub fn is_memfd(&self, name: &str) -> bool {
        memfd_name(&self.name) == Some(name.as_bytes())
    }

    /// Returns the path without the mark of deleted files.
    #[must_use]
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(undeleted(&self.name)))
    }

    /// Returns the name as text; what is not UTF-8 in it is replaced.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.name)
    }
}

/// Returns a name without the mark of deleted files.
#[must_use]
pub fn undeleted(name: &[u8]) -> &[u8] {
    name.strip_suffix(DELETED).unwrap_or(name)
}

/// Returns the name that the maker of a memfd gave it, if the name of a mapping, or the target of a link in
/// `/proc/PID/fd`, is that of one.
#[must_use]
pub fn memfd_name(name: &[u8]) -> Option<&[u8]> {
    undeleted(name).strip_prefix(MEMFD)
}

/// Parses the text of a maps file. Leaves out malformed lines.
#[must_use]
pub fn parse(text: &[u8]) -> Vec<Map> {
    text.split(|b| *b == b'\n').filter_map(Map::parse).collect()
}

/// Returns the mappings of a process, in the order of their addresses.
///
/// # Errors
/// If they can't be read.
pub fn of(pid: Pid) -> Result<Vec<Map>> {
    Ok(parse(&read(pid, Path::new(&(folder(pid) + "/maps")))?))
}

/// Parses a hexadecimal number; only digits are accepted.
fn hex(digits: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(digits).ok().filter(|t| !t.starts_with('+'))?;
    u64::from_str_radix(text, 16).ok()
}

/// Decodes `\012`: the kernel escapes newlines in paths, and nothing else.
fn unescape(name: &[u8]) -> Vec<u8> {
    const NEWLINE: &[u8] = br"\012";
    let mut decoded = Vec::with_capacity(name.len());
    let mut from = 0;
    for at in memmem::find_iter(name, NEWLINE) {
        decoded.extend_from_slice(&name[from..at]);
        decoded.push(b'\n');
        from = at + NEWLINE.len();
    }
    decoded.extend_from_slice(&name[from..]);
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_every_kind_are_understood() {
        let text = b"55d0-55d8 r-xp 00001000 08:01 42                 /bin/a b (deleted)\n\
            nonsense\n7f00-7f01 rw-p 00000000 00:00 0 \n10-5 r--p 0 0:0 0\n\xff\xff\n\
            7fff-8000 rw-s 0 00:01 7 /memfd:x\xff\n9000-9001 ---p 0 fe:1f 0  [anon:my heap]";
        let m = parse(text);
        assert_eq!(m.len(), 4);
        assert_eq!(
            (m[0].start.0, m[0].end.0, m[0].offset, m[0].inode, m[0].device),
            (0x55d0, 0x55d8, 0x1000, 42, (8, 1))
        );
        assert!(m[0].exec && !m[0].write && m[1].write && m[2].shared);
        assert_eq!((m[0].path(), &*m[0].text()), (Path::new("/bin/a b"), "/bin/a b (deleted)"));
        assert_eq!((&*m[1].name, m[1].is_anonymous()), (&b""[..], true));
        assert_eq!((&*m[2].name, &*m[2].text()), (&b"/memfd:x\xff"[..], "/memfd:x\u{fffd}"));
        assert_eq!([0, 1, 2, 3].map(|i| m[i].perms()), [*b"r-xp", *b"rw-p", *b"rw-s", *b"---p"]);
        assert!(m[3].is_anonymous() && !m[3].read && m[3].device == (0xfe, 0x1f));
        assert_eq!(m[3].name, b"[anon:my heap]");
    }

    #[test]
    fn newlines_in_paths_are_decoded_and_nothing_else() {
        let name = |name: &[u8]| {
            let line = [b"1000-2000 r-xp 0 08:01 9    ", name, b"\n"].concat();
            parse(&line).pop().expect("a mapping").name
        };
        assert_eq!(name(br"/tmp/a\012b\012"), b"/tmp/a\nb\n");
        assert_eq!(name(br"/tmp/a\040b\01"), br"/tmp/a\040b\01");
        assert_eq!(name(b"/tmp/a  b (deleted) (deleted)"), b"/tmp/a  b (deleted) (deleted)");
        assert_eq!(undeleted(b"/x (deleted) (deleted)"), b"/x (deleted)");
    }

    #[test]
    fn truncated_and_huge_lines_are_left_out() {
        let whole = b"7f0000000000-7f0000001000 r-xp 00001000 fe:01 1234 /lib/a";
        assert!(Map::parse(whole).is_some());
        // Without the inode the line is malformed; a shorter name can't be told from a whole one.
        let end_of_device = whole.len() - b" 1234 /lib/a".len();
        for cut in 0..=end_of_device + 1 {
            assert_eq!(Map::parse(&whole[..cut]), None, "{cut}");
        }
        for line in [
            &b"10000000000000000-20000000000000000 r-xp 0 08:01 9"[..],
            b"1000-2000 r-xp 10000000000000000 08:01 9",
            b"1000-2000 r-xp 0 08:01 99999999999999999999",
            b"1000-2000 r-xp 0 100000000:01 9",
            b"1000-2000 r-xp 0 08 9",
            b"+1000-2000 r-xp 0 08:01 9",
            b"1000-2000 r-x 0 08:01 9",
            b"1000-2000 r-xps 0 08:01 9",
            b"1000-1000 r-xp 0 08:01 9",
            b"",
        ] {
            assert_eq!(Map::parse(line), None, "{}", line.escape_ascii());
        }
        let last = Map::parse(b"0-ffffffffffffffff r-xp ffffffffffffffff ffffffff:ffffffff 0");
        assert_eq!(last.expect("the largest numbers").len(), u64::MAX);
    }

    #[test]
    fn a_memfd_is_known_by_its_whole_name() {
        let is = |name: &str| {
            let line = format!("1000-2000 rw-s 0 00:01 7 {name}");
            Map::parse(line.as_bytes()).expect("a mapping").is_memfd("ring")
        };
        assert!(is("/memfd:ring (deleted)") && is("/memfd:ring"));
        assert!(!is("/memfd:ring2 (deleted)") && !is("/tmp/memfd:ring") && !is("ring"));
    }

    #[test]
    fn this_process_is_understood() {
        let here = RemoteAddr(parse as *const () as u64);
        let all = of(Pid::this()).expect("mappings");
        let own = all.iter().find(|m| m.holds(here)).expect("mapped");
        assert_eq!(own.path(), std::fs::read_link("/proc/self/exe").expect("exe"));
        assert!(own.exec && own.inode != 0 && all.is_sorted_by_key(|m| m.start));
    }
}
