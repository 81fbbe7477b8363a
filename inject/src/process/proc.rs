//! Reads `/proc/PID`. The target may choose any content, so paths and names are bytes.

use crate::stopped::memory::words;
use crate::{Error, RemoteAddr, Result};
use prof_trace::process::folder;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// Maximum length of a command line; a process can make its own as long as its memory.
const MAX_CMDLINE: u64 = 1 << 20;

/// One line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// First address.
    pub start: RemoteAddr,
    /// First address behind the mapping.
    pub end: RemoteAddr,
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub exec: bool,
    /// Shared.
    pub shared: bool,
    /// Offset in the file.
    pub offset: u64,
    /// Inode; 0: no file.
    pub inode: u64,
    /// Path, or a name in brackets, as the kernel prints it (a newline is `\012`).
    pub name: Vec<u8>,
}

impl Map {
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

    fn parse(line: &[u8]) -> Option<Self> {
        let mut parts = line.splitn(6, |b| *b == b' ');
        let mut range = parts.next()?.splitn(2, |b| *b == b'-').map(hex);
        let (start, end) = (range.next()??, range.next()??);
        let perms = parts.next()?;
        let offset = hex(parts.next()?)?;
        let _device = parts.next()?;
        let inode = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
        let name = parts.next().unwrap_or_default().trim_ascii_start().to_vec();
        (start < end && perms.len() == 4).then(|| Self {
            start: RemoteAddr(start),
            end: RemoteAddr(end),
            read: perms[0] == b'r',
            write: perms[1] == b'w',
            exec: perms[2] == b'x',
            shared: perms[3] == b's',
            offset,
            inode,
            name,
        })
    }
}

fn hex(b: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(b).ok()?, 16).ok()
}

/// Parses the text of a maps file. Leaves out malformed lines.
#[must_use]
pub fn parse_maps(text: &[u8]) -> Vec<Map> {
    text.split(|b| *b == b'\n').filter_map(Map::parse).collect()
}

fn read(pid: i32, file: &str) -> Result<Vec<u8>> {
    let path = PathBuf::from(folder(pid) + "/" + file);
    fs::read(&path).map_err(|errno| match errno.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => Error::Gone(pid),
        _ => Error::File { path, errno },
    })
}

/// Returns the target's mappings, in the order of their addresses.
///
/// # Errors
/// If they can't be read.
pub fn maps(pid: i32) -> Result<Vec<Map>> {
    Ok(parse_maps(&read(pid, "maps")?))
}

/// Returns the executable mapping of the dynamic linker, which lasts as long as the program. For a static program, or one
/// that the linker was told to run, returns that of the program's entry. `None` if neither is known.
#[must_use]
pub fn linker(pid: i32, maps: &[Map]) -> Option<&Map> {
    linker_of(&read(pid, "auxv").ok()?, maps)
}

/// Keys of the auxiliary vector (getauxval(3)): the dynamic linker's first address, and the program's entry.
const AT_BASE: u64 = 7;
const AT_ENTRY: u64 = 9;

/// Returns what [`linker`] does, by the bytes of the auxiliary vector (getauxval(3)).
fn linker_of<'a>(auxv: &[u8], maps: &'a [Map]) -> Option<&'a Map> {
    let words: Vec<u64> = words(auxv).collect();
    let value = |kind: u64| {
        words.as_chunks::<2>().0.iter().find(|e| e[0] == kind).map(|e| e[1]).filter(|v| *v != 0)
    };
    let at = value(AT_BASE).or_else(|| value(AT_ENTRY))?;
    let file = maps.iter().find(|m| m.holds(RemoteAddr(at)) && m.inode != 0)?;
    // The mapping of its first page has no code in it where segments are separate.
    let is_its = |m: &&Map| m.exec && m.inode == file.inode && m.name == file.name;
    maps.iter().filter(is_its).min_by_key(|m| m.start.0.abs_diff(at))
}

/// Returns the size of a page in bytes.
#[must_use]
pub fn page_size() -> u64 {
    // SAFETY: the call only reads a setting.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096).max(4096)
}

/// Returns the ids of the target's threads.
///
/// # Errors
/// If they can't be read.
pub fn threads(pid: i32) -> Result<Vec<i32>> {
    let path = PathBuf::from(format!("/proc/{pid}/task"));
    let dir = fs::read_dir(&path).map_err(|_| Error::Gone(pid))?;
    Ok(dir.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect())
}

/// Returns the lowest number that is no open descriptor of a process. It may lie above the process's limit, where the
/// limit was lowered after the process had opened others.
#[must_use]
pub fn lowest_descriptor(pid: i32) -> u64 {
    let all = fs::read_dir(folder(pid) + "/fd").into_iter().flatten().flatten();
    let open: BTreeSet<u64> = all.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    (0..).find(|n| !open.contains(n)).unwrap_or(0)
}

/// Returns the name of a process; empty if the process is gone. A process may give itself any name, so control
/// characters are escaped, which could begin a new line where the name is printed.
#[must_use]
pub fn comm(pid: i32) -> String {
    let text = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let text = String::from_utf8_lossy(text.strip_suffix(b"\n").unwrap_or(&text));
    let escape = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.into(),
    };
    text.chars().map(escape).collect()
}

/// Returns the process that a thread or process belongs to; `None` if there is no such thread.
#[must_use]
pub fn process_of(tid: i32) -> Option<i32> {
    Status::of(tid).ok()?.number("Tgid").map(|pid| pid as i32)
}

/// The place where a thread sleeps in the kernel (`/proc/PID/task/TID/syscall`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asleep {
    /// Number of the system call; `None` if the thread sleeps in a page fault or the like.
    pub call: Option<u64>,
    /// The thread's stack pointer.
    pub sp: RemoteAddr,
    /// The thread's program counter.
    pub pc: RemoteAddr,
}

/// Returns where a thread sleeps; `None` if it runs, or if the kernel does not tell.
#[must_use]
pub fn asleep(pid: i32, tid: i32) -> Option<Asleep> {
    parse_asleep(&fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?)
}

fn parse_asleep(text: &str) -> Option<Asleep> {
    let mut words = text.split_whitespace();
    let call = words.next()?.parse::<i64>().ok()?;
    let mut last = words.rev().map(|w| {
        let digits = w.strip_prefix("0x")?.as_bytes();
        hex(digits).map(RemoteAddr)
    });
    let (pc, sp) = (last.next()??, last.next()??);
    Some(Asleep { call: u64::try_from(call).ok(), sp, pc })
}

/// Returns the kernel function in which a sleeping thread waits; empty if the kernel does not tell.
#[must_use]
pub fn waits_in(pid: i32, tid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/task/{tid}/wchan")).unwrap_or_default()
}

/// Returns the path of the executable, as the kernel names it.
#[must_use]
pub fn exe(pid: i32) -> PathBuf {
    fs::read_link(folder(pid) + "/exe").unwrap_or_default()
}

/// Returns the command-line arguments.
#[must_use]
pub fn cmdline(pid: i32) -> Vec<String> {
    let text = PathBuf::from(folder(pid) + "/cmdline");
    let text = prof_trace::files::read_at_most(&text, MAX_CMDLINE).unwrap_or_default();
    let text = text.strip_suffix(&[0]).unwrap_or(&text);
    text.split(|b| *b == 0).map(|a| String::from_utf8_lossy(a).into_owned()).collect()
}

/// Returns the start time in clock ticks since boot (`/proc/PID/stat`, field 22), which tells a process from a later
/// one with the same id.
#[must_use]
pub fn start_time(pid: i32) -> Option<u64> {
    stat_field(&format!("/proc/{pid}"), 22)
}

/// Returns the status, in the form of wait(2), of an ended process that nobody has waited for (field 52).
pub(crate) fn exit_status(pid: i32) -> Option<i32> {
    i32::try_from(stat_field(&format!("/proc/{pid}"), 52)?).ok()
}

/// Returns whether a process has ended, or is about to end and has already released its memory.
#[must_use]
pub fn has_ended(pid: i32) -> bool {
    let Ok(status) = Status::of(pid) else { return true };
    status.is_dead() || (status.field("VmSize").is_none() && !is_kernel_thread(pid))
}

/// Returns whether a process is a thread of the kernel (`PF_KTHREAD` in field 9). Missing memory does not show that,
/// since a process that is just ending has none either.
#[must_use]
pub fn is_kernel_thread(pid: i32) -> bool {
    const PF_KTHREAD: u64 = 0x20_0000;
    stat_field(&format!("/proc/{pid}"), 9).is_some_and(|flags| flags & PF_KTHREAD != 0)
}

/// Returns the soft limit of a process's address space (`RLIMIT_AS`), if there is one.
#[must_use]
pub fn address_space_limit(pid: i32) -> Option<u64> {
    soft_limit(pid, "Max address space")
}

/// Returns the number of a process's mappings and its maximum, if prof's mappings would exceed it.
#[must_use]
pub fn mappings_used_up(pid: i32) -> Option<(u64, u64)> {
    // More mappings than prof makes.
    const OURS: u64 = 64;
    let most = fs::read_to_string("/proc/sys/vm/max_map_count").ok()?.trim().parse().ok()?;
    let count = maps(pid).ok()?.len() as u64;
    (count + OURS > most).then_some((count, most))
}

/// Returns a soft limit by its name in `/proc/PID/limits`, if there is one.
#[must_use]
pub fn soft_limit(pid: i32, name: &str) -> Option<u64> {
    let text = fs::read_to_string(folder(pid) + "/limits").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the start of the heap (field 47); 0 if it is not known.
#[must_use]
pub fn start_brk(pid: i32) -> u64 {
    stat_field(&folder(pid), 47).unwrap_or(0)
}

/// Returns the size in bytes up to which the first thread's stack may grow (the soft limit `RLIMIT_STACK`); `None` if
/// there is no limit, or it can't be read.
#[must_use]
pub fn stack_limit(pid: i32) -> Option<u64> {
    parse_stack_limit(&fs::read_to_string(folder(pid) + "/limits").ok()?)
}

fn parse_stack_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|l| l.strip_prefix("Max stack size"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns a numeric field of the file `stat` in a folder of `/proc`, counted as in proc(5), from the fourth on.
fn stat_field(folder: &str, number: usize) -> Option<u64> {
    let stat = fs::read(format!("{folder}/stat")).ok()?;
    // The name, in parentheses, may contain anything; the fields behind it are numbers.
    let after = stat.iter().rposition(|b| *b == b')')?;
    let rest = std::str::from_utf8(stat.get(after + 2..)?).ok()?;
    rest.trim_end().split(' ').nth(number - 3)?.parse().ok()
}

/// Fields of `/proc/PID/status`.
#[derive(Clone, Debug, Default)]
pub struct Status {
    text: String,
}

impl Status {
    /// Reads the status of a process: that of its first thread, or of another one if the first has ended alone.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn of(pid: i32) -> Result<Self> {
        Ok(Self { text: String::from_utf8_lossy(&read(pid, "status")?).into_owned() })
    }

    /// Reads the status of one thread of a process.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn of_thread(pid: i32, tid: i32) -> Result<Self> {
        let path = format!("/proc/{pid}/task/{tid}/status");
        let bytes = fs::read(path).map_err(|_| Error::Gone(pid))?;
        Ok(Self { text: String::from_utf8_lossy(&bytes).into_owned() })
    }

    /// Returns the text of a field.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// Returns the first number of a field.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<i64> {
        self.field(name)?.split_whitespace().next()?.parse().ok()
    }

    /// Returns whether the process or thread has ended, even if its parent has not yet reaped it.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.field("State").is_some_and(|s| s.starts_with(['Z', 'X']))
    }

    /// Returns a field that is a set of signals, of which there may be 128.
    #[must_use]
    pub fn signals(&self, name: &str) -> u128 {
        self.field(name).and_then(|f| u128::from_str_radix(f, 16).ok()).unwrap_or(0)
    }

    /// Returns whether a signal is pending that is not blocked.
    #[must_use]
    pub fn signal_due(&self) -> bool {
        (self.signals("SigPnd") | self.signals("ShdPnd")) & !self.signals("SigBlk") != 0
    }

    /// Returns the process's pids, from the pid namespace that `/proc` shows to the innermost.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        let text = self.field("NSpid").or(self.field("Pid")).unwrap_or_default();
        text.split_whitespace().filter_map(|n| n.parse().ok()).collect()
    }

    /// Returns the id in the innermost pid namespace.
    #[must_use]
    pub fn ns_pid(&self) -> Option<u32> {
        self.field("NSpid").or(self.field("Pid"))?.split_whitespace().last()?.parse().ok()
    }
}

/// Returns start, end and inode of each executable mapping of a file.
pub(crate) fn code(maps: &[Map]) -> Vec<(RemoteAddr, RemoteAddr, u64)> {
    let code = maps.iter().filter(|m| m.exec && m.inode != 0);
    code.map(|m| (m.start, m.end, m.inode)).collect()
}

/// Returns a path from the bytes that the kernel prints in maps, without its mark of deleted files.
#[must_use]
pub fn path_of(name: &[u8]) -> PathBuf {
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    PathBuf::from(OsString::from_vec(name.to_vec()))
}

/// Returns such a path as text for messages.
#[must_use]
pub fn display(name: &[u8]) -> String {
    String::from_utf8_lossy(path_of(name).as_os_str().as_bytes()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_read_whatever_stands_in_them() {
        let text = b"55d0-55d8 r-xp 00001000 08:01 42                 /bin/a b (deleted)\n\
            nonsense\n7f00-7f01 rw-p 00000000 00:00 0 \n10-5 r--p 0 0:0 0\n\xff\xff\n\
            7fff-8000 rw-s 0 00:01 7 /memfd:x\xff";
        let m = parse_maps(text);
        assert_eq!(m.len(), 3);
        assert_eq!(
            (m[0].start.0, m[0].end.0, m[0].offset, m[0].inode),
            (0x55d0, 0x55d8, 0x1000, 42)
        );
        assert!(m[0].exec && !m[0].write && m[1].write && m[2].shared);
        assert_eq!(path_of(&m[0].name), PathBuf::from("/bin/a b"));
        assert_eq!(m[1].name, b"");
        assert_eq!(m[2].name, b"/memfd:x\xff");
    }

    #[test]
    fn the_linker_is_told_from_another_copy_of_itself() {
        let maps = parse_maps(
            b"1000-2000 r--p 0 08:01 7 /lib/ld.so\n2000-3000 r-xp 1000 08:01 7 /lib/ld.so\n\
            8000-9000 r--p 0 08:01 7 /lib/ld.so\n9000-a000 r-xp 1000 08:01 7 /lib/ld.so\n\
            c000-d000 r-xp 0 08:01 9 /bin/program\n",
        );
        let auxv = |all: &[(u64, u64)]| -> Vec<u8> {
            let words = all.iter().flat_map(|(kind, value)| [*kind, *value]);
            words.flat_map(|w| (w as usize).to_ne_bytes()).collect()
        };
        let found = |all: &[(u64, u64)]| linker_of(&auxv(all), &maps).map(|m| m.start.0);
        assert_eq!(found(&[(3, 0xc040), (7, 0x8000), (9, 0xc100)]), Some(0x9000));
        assert_eq!(found(&[(7, 0), (9, 0xc100)]), Some(0xc000), "a static program");
        assert_eq!((found(&[(7, 0x5000)]), found(&[])), (None, None));
    }

    #[test]
    fn stack_limits() {
        let of = |soft| {
            parse_stack_limit(&format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max data size             1                    unlimited            bytes     \n\
                 Max stack size            {soft:20} unlimited            bytes     \n"
            ))
        };
        assert_eq!(of("8388608"), Some(8 << 20));
        assert_eq!((of("unlimited"), parse_stack_limit("")), (None, None));
        let read = stack_limit(std::process::id() as i32);
        let own = fs::read_to_string("/proc/self/limits").expect("our limits");
        assert_eq!(read, parse_stack_limit(&own));
    }

    #[test]
    fn sleeping_threads() {
        let at = |text| parse_asleep(text);
        let poll = at("7 0x0 0x0 0x3e8 0x0 0x0 0x0 0x7ffc10 0x7f00aa\n").expect("asleep");
        assert_eq!((poll.call, poll.sp.0, poll.pc.0), (Some(7), 0x7f_fc10, 0x7f_00aa));
        assert_eq!(at("-1 0x7ffc10 0x7f00aa\n").map(|a| (a.call, a.pc.0)), Some((None, 0x7f_00aa)));
        assert!(at("running\n").is_none() && at("").is_none() && at("7\n").is_none());
        assert!(at("7 0x0 nonsense 0x1\n").is_none());
    }

    #[test]
    fn this_process_is_understood() {
        let me = std::process::id() as i32;
        assert!(
            maps(me)
                .unwrap()
                .iter()
                .any(|m| m.exec && m.holds(RemoteAddr(threads as *const () as u64)))
        );
        assert!(threads(me).unwrap().contains(&me));
        assert_eq!(Status::of(me).unwrap().number("Tgid"), Some(i64::from(me)));
        assert!(start_time(me).unwrap() > 0);
    }
}
