//! Questions about one process: its folder in `/proc`, its threads, its name and program, and whether it lives.

use crate::stat::Stat;
use crate::status::Status;
use crate::{Error, Pid, Result, files};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Maximum length of a command line; a process can make its own as long as its memory.
const MAX_CMDLINE: u64 = 1 << 20;

/// Longest wait for the threads of a process that is being killed.
const ENDING: Duration = Duration::from_secs(1);

/// Reads a file in `/proc` that belongs to a process.
pub(crate) fn read(pid: Pid, path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|errno| match errno.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => Error::Gone(pid),
        _ => Error::File { path: path.into(), errno },
    })
}

/// Returns the effective user id of this process.
#[must_use]
pub fn effective_uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// Returns whether a process or thread with this id exists and has not ended.
#[must_use]
pub fn lives(pid: Pid) -> bool {
    Stat::living(pid).is_some()
}

/// Returns a thread through which `/proc` shows a process's memory and files: the first one, or another if the first
/// has ended alone. `None`: all have ended.
#[must_use]
pub fn living_thread(pid: Pid) -> Option<Pid> {
    if lives(pid) {
        return Some(pid);
    }
    threads(pid).unwrap_or_default().into_iter().find(|t| lives(*t))
}

/// Returns the folder in `/proc` that shows a process's memory, files and limits: that of [`living_thread`].
#[must_use]
pub fn folder(pid: Pid) -> String {
    match living_thread(pid) {
        // The kernel shows under a thread's own number all that it shows of a process, though it does not list that number.
        Some(tid) if tid != pid => format!("/proc/{tid}"),
        _ => format!("/proc/{pid}"),
    }
}

/// Returns the ids of all processes.
#[must_use]
pub fn all() -> Vec<Pid> {
    numbers_in(Path::new("/proc")).unwrap_or_default()
}

/// Returns the ids of a process's threads.
///
/// # Errors
/// If the process is gone.
pub fn threads(pid: Pid) -> Result<Vec<Pid>> {
    numbers_in(Path::new(&format!("/proc/{pid}/task"))).ok_or(Error::Gone(pid))
}

/// Returns the names in a folder that are numbers; `None` if there is no such folder.
fn numbers_in<T: FromStr>(folder: &Path) -> Option<Vec<T>> {
    let entries = fs::read_dir(folder).ok()?;
    Some(entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect())
}

/// Returns the lowest number that is no open descriptor of a process. It may lie above the process's limit, where the
/// limit was lowered after the process had opened others.
#[must_use]
pub fn lowest_descriptor(pid: Pid) -> u64 {
    let all: Vec<i32> = numbers_in(Path::new(&(folder(pid) + "/fd"))).unwrap_or_default();
    let open: BTreeSet<i32> = all.into_iter().collect();
    (0..).find(|n| !open.contains(n)).map_or(0, i32::unsigned_abs).into()
}

/// Returns the process that a thread or process belongs to; `None` if there is no such thread.
#[must_use]
pub fn process_of(tid: Pid) -> Option<Pid> {
    Status::of(tid).ok()?.pid("Tgid")
}

/// Returns the name of a process; empty if the process is gone. A process may give itself any name, so control
/// characters are escaped, which could begin a new line where the name is printed.
#[must_use]
pub fn comm(pid: Pid) -> String {
    let text = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    printable(text.strip_suffix(b"\n").unwrap_or(&text))
}

fn printable(name: &[u8]) -> String {
    let escape = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.into(),
    };
    String::from_utf8_lossy(name).chars().map(escape).collect()
}

/// Returns the path of the executable, as the kernel names it; empty if it is not known.
#[must_use]
pub fn exe(pid: Pid) -> PathBuf {
    fs::read_link(folder(pid) + "/exe").unwrap_or_default()
}

/// Returns the command-line arguments.
#[must_use]
pub fn cmdline(pid: Pid) -> Vec<String> {
    let path = PathBuf::from(folder(pid) + "/cmdline");
    arguments(&files::read_at_most(&path, MAX_CMDLINE).unwrap_or_default())
}

/// Splits the text of a `cmdline` file, in which each argument ends with NUL.
fn arguments(text: &[u8]) -> Vec<String> {
    let text = text.strip_suffix(&[0]).unwrap_or(text);
    text.split(|b| *b == 0).map(|a| String::from_utf8_lossy(a).into_owned()).collect()
}

/// Returns the start time in clock ticks since boot, which tells a process from a later one with the same id.
#[must_use]
pub fn start_time(pid: Pid) -> Option<u64> {
    Stat::of(pid)?.start()
}

/// Returns whether the process that began at `start` still runs.
#[must_use]
pub fn is_running(pid: Pid, start: u64) -> bool {
    pid != Pid::NONE && Stat::living(pid).and_then(|s| s.start()) == Some(start)
}

/// Returns whether a thread of the process that began at `start` still runs: the first thread may have ended alone.
#[must_use]
pub fn has_thread(pid: Pid, start: u64) -> bool {
    let stat = Stat::of(pid).filter(|s| pid != Pid::NONE && s.start() == Some(start));
    stat.is_some_and(|s| !s.has_ended() || living_thread(pid).is_some())
}

/// Returns whether the process that began at `start` still runs, as [`is_running`] does. The first thread of a process that is
/// being killed may have ended before the others, which may be in the midst of a write. Those are waited for, for up to a
/// second.
#[must_use]
pub fn is_at_work(pid: Pid, start: u64) -> bool {
    if is_running(pid, start) {
        return true;
    }
    let began = Instant::now();
    let is_ending = || start_time(pid) == Some(start) && living_thread(pid).is_some();
    while pid != Pid::NONE && is_ending() && began.elapsed() < ENDING {
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// Returns whether a process has ended, or is about to end and has already released its memory.
#[must_use]
pub fn has_ended(pid: Pid) -> bool {
    let Ok(status) = Status::of(pid) else { return true };
    status.is_dead() || (!status.has_memory() && !is_kernel_thread(pid))
}

/// Returns whether all threads of a process have ended, or the first that has not is about to, as [`has_ended`] says.
#[must_use]
pub fn is_gone(pid: Pid) -> bool {
    living_thread(pid).is_none_or(has_ended)
}

/// Returns whether a process is a thread of the kernel.
#[must_use]
pub fn is_kernel_thread(pid: Pid) -> bool {
    Stat::of(pid).is_some_and(|s| s.is_kernel_thread())
}

/// Returns the start of the heap; 0 if it is not known.
#[must_use]
pub fn start_brk(pid: Pid) -> u64 {
    Stat::read(Path::new(&(folder(pid) + "/stat"))).and_then(|s| s.start_brk()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_thread_stands_for_a_process_that_lives() {
        let me = Pid::this();
        assert!(lives(me));
        assert_eq!(living_thread(me), Some(me));
        assert_eq!(folder(me), format!("/proc/{me}"));
    }

    #[test]
    fn an_ended_process_has_no_thread() {
        let mut child = std::process::Command::new("true").spawn().expect("true");
        let pid = Pid::from_u32(child.id());
        while lives(pid) {
            std::thread::yield_now();
        }
        assert_eq!(living_thread(pid), None);
        assert!(has_ended(pid));
        assert_eq!(Stat::of(pid).and_then(|s| s.exit_code()), Some(0));
        child.wait().expect("wait");
        assert_eq!(living_thread(pid), None);
        assert!(threads(pid).is_err() && has_ended(pid));
    }

    /// A thread that ends its process after a while.
    extern "C" fn last_thread(_: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: both calls take integers only.
        unsafe {
            libc::usleep(300_000);
            libc::_exit(0)
        }
    }

    #[test]
    fn the_threads_of_a_process_whose_first_one_has_ended_are_waited_for() {
        // SAFETY: the child makes a thread and ends its own, and touches nothing that a thread of the parent may hold.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: see above; the new thread uses no memory of this one.
            unsafe {
                let mut thread = std::mem::zeroed();
                let null = std::ptr::null_mut();
                libc::pthread_create(&raw mut thread, std::ptr::null(), last_thread, null);
                libc::syscall(libc::SYS_exit, 0);
            }
        }
        let pid = Pid::from_raw(child);
        let start = start_time(pid).expect("a start time");
        while lives(pid) {
            std::thread::yield_now();
        }
        let began = Instant::now();
        assert!(living_thread(pid).is_some(), "the last thread has ended already");
        assert!(!is_at_work(pid, start));
        assert_eq!(living_thread(pid), None);
        assert!(began.elapsed() < ENDING);
        assert!(!is_at_work(pid, start) && !is_at_work(Pid::NONE, 0));
        // SAFETY: the child is this test's own.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    }

    #[test]
    fn this_process_is_understood() {
        let me = Pid::this();
        assert!(threads(me).expect("threads").contains(&me) && all().contains(&me));
        assert_eq!(process_of(me), Some(me));
        let start = start_time(me).expect("a start time");
        assert!(
            is_running(me, start) && !is_running(me, start + 1) && !is_running(Pid::NONE, start)
        );
        assert!(!has_ended(me) && !is_kernel_thread(me));
        assert_eq!(cmdline(me), std::env::args().collect::<Vec<_>>());
        assert!(lowest_descriptor(me) > 2);
    }

    #[test]
    fn names_and_arguments_are_made_printable_and_kept_apart() {
        assert_eq!(printable(b"a\nb\x1b[31m\xff "), "a\\nb\\u{1b}[31m\u{fffd} ");
        assert_eq!(arguments(b"a b\0\0c\nd\0"), ["a b", "", "c\nd"]);
        assert_eq!(arguments(b"cut"), ["cut"]);
    }
}
