//! Watches the target's process: whether it exists, its size, how it ended.

use crate::Error;
use crate::pages::Pages;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use prof_os::process::{folder, living_thread};
use prof_os::stat::Stat;
use prof_os::status::Status;
use prof_os::{Pid, page_size, process};
use prof_trace::shared::Shared;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// A watched process.
#[derive(Debug)]
pub struct Watched {
    pid: Pid,
    pidfd: Option<OwnedFd>,
    statm: Option<File>,
    mem: Option<File>,
    pages: Option<Pages>,
    /// The root folder of a process that has ended, if it saw other files than this process.
    root: Option<File>,
}

impl Watched {
    /// Opens process `pid`, which must be alive.
    ///
    /// # Errors
    /// If it is gone.
    pub fn new(pid: Pid) -> Result<Self, Error> {
        // SAFETY: the call takes no pointers; it returns a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
        if fd < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH) {
            return Err(Error::Gone(pid));
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        let pidfd = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) });
        let dir = folder(pid);
        let mem = OpenOptions::new().read(true).write(true).open(format!("{dir}/mem")).ok();
        let open = |name: &str| File::open(format!("{dir}/{name}")).ok();
        let (statm, pages) = (open("statm"), open("pagemap").map(Pages::new));
        Ok(Self { pid, pidfd, statm, mem, pages, root: None })
    }

    /// Returns a process that has ended, of which nothing can be read any more but what is below `root`, its root folder, if it
    /// saw other files than this process. It has no process ID: another may have that by now.
    pub(crate) fn ended(root: Option<File>) -> Self {
        Self { pid: Pid::NONE, pidfd: None, statm: None, mem: None, pages: None, root }
    }

    /// Returns its process ID.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns its memory, if it could be opened.
    pub fn mem(&self) -> Option<&File> {
        self.mem.as_ref()
    }

    /// Returns whether the program that ran when this was created is gone, as the open file stays with that program's
    /// address space. It is gone after an exec, and shortly before the process becomes a zombie.
    pub fn has_left(&self) -> bool {
        self.mem.as_ref().is_some_and(|m| matches!(m.read_at(&mut [0], 0), Ok(0)))
    }

    /// Returns whether the memory of a process that has ended still exists, because another process shares it.
    pub fn memory_lives(&self) -> bool {
        self.mem.as_ref().is_some_and(|m| m.read_at(&mut [0], 0).is_err())
    }

    /// Returns whether it sees other files than this process: it has another mount namespace, or another root.
    pub fn is_elsewhere(&self) -> bool {
        self.root.is_some() || is_elsewhere(self.pid)
    }

    /// Returns the path of its root folder for this process.
    pub(crate) fn root(&self) -> PathBuf {
        match &self.root {
            Some(root) => format!("/proc/self/fd/{}", root.as_raw_fd()).into(),
            None => format!("{}/root", folder(self.pid)).into(),
        }
    }

    /// Returns the number of seccomp filters of the thread that has the most, among a limited number of threads. It is
    /// 1 if the kernel does not tell the number (before 5.9).
    pub fn filters(pid: Pid) -> u32 {
        const MOST: usize = 64;
        let of = |tid: Pid| {
            let status = Status::of_thread(pid, tid).unwrap_or_default();
            let is_filtered = status.number("Seccomp").is_some_and(|mode| mode != 0);
            let count = || status.number("Seccomp_filters").and_then(|n| u32::try_from(n).ok());
            if is_filtered { count().unwrap_or(1) } else { 0 }
        };
        let tids = process::threads(pid).unwrap_or_default();
        tids.into_iter().take(MOST).map(of).max().unwrap_or(0)
    }

    /// Waits until the process has ended, or for this time; returns whether it has ended.
    pub fn wait(&self, time: Duration) -> bool {
        let Some(fd) = &self.pidfd else {
            std::thread::sleep(time);
            return living_thread(self.pid).is_none();
        };
        let mut one = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
        let n = ppoll(&mut one, Some(TimeSpec::from_duration(time)), None);
        n == Ok(1) && one[0].revents().is_some_and(|r| r.contains(PollFlags::POLLIN))
    }

    /// Returns the resident pages, and the pages of address space; 0: not known.
    pub fn pages(&self) -> (u64, u64) {
        let sizes = |f: &File| {
            let mut b = [0u8; 128];
            let n = f.read_at(&mut b, 0).unwrap_or(0);
            let text = String::from_utf8_lossy(&b[..n]);
            let mut words = text.split(' ').map(|w| w.parse().unwrap_or(0));
            let (vss, rss) = (words.next().unwrap_or(0), words.next().unwrap_or(0));
            (rss, vss)
        };
        let held = self.statm.as_ref().map_or((0, 0), sizes);
        if held.1 != 0 {
            return held;
        }
        // The open file is that of the first thread, which may have ended.
        File::open(format!("{}/statm", folder(self.pid))).map_or((0, 0), |f| sizes(&f))
    }

    /// Returns the resident bytes that are neither file-backed nor shared; 0: not known.
    pub fn private(&self) -> u64 {
        private(self.pid)
    }

    /// Returns how many of these pages are in the process's page tables, and so count as resident in it.
    pub fn resident(&self, first: u64, count: u64) -> u64 {
        let Some(pages) = &self.pages else { return 0 };
        let page = pages.page();
        let start = first.saturating_mul(page);
        pages.count(start, start.saturating_add(count.saturating_mul(page))).resident / page
    }

    /// Returns whether a process without memory is ending, rather than starting another program. It may wait long for a
    /// processor, or for its core dump.
    pub fn is_ending(&self) -> bool {
        !Status::of(self.pid).is_ok_and(|s| s.has_memory())
    }

    /// Returns how it ended, for [`prof_trace::records::End::reason`]. This is known until its parent has waited for
    /// it, and with newer kernels also after that.
    pub fn how_it_ended(&self) -> String {
        let code = Stat::of(self.pid).and_then(|s| s.exit_code());
        let code = code.or_else(|| reaped_exit_code(self.pidfd.as_ref()?));
        match code {
            Some(c) if c & 0x7f != 0 => format!("killed by signal {}", c & 0x7f),
            Some(_) => "exited".into(),
            None => "ended".into(),
        }
    }
}

/// Returns whether a process sees other files than this one: it has another mount namespace, or another root.
pub(crate) fn is_elsewhere(pid: Pid) -> bool {
    let id = |path: String| fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    let differs = |what: &str| {
        let theirs = id(format!("{}/{what}", folder(pid)));
        theirs.is_some() && theirs != id(format!("/proc/self/{what}"))
    };
    differs("ns/mnt") || differs("root")
}

/// Returns the resident bytes of a process that are neither file-backed nor shared; 0: not known.
#[must_use]
pub fn private(pid: Pid) -> u64 {
    let text = fs::read_to_string(format!("{}/statm", folder(pid))).unwrap_or_default();
    let pages: Vec<u64> = text.split_whitespace().take(3).filter_map(|w| w.parse().ok()).collect();
    let [_, resident, shared] = pages[..] else { return 0 };
    resident.saturating_sub(shared).saturating_mul(page_size())
}

/// `struct pidfd_info`, up to the fields of its first version.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

/// Returns the exit status of a process that its parent has waited for (`PIDFD_GET_INFO`, Linux 6.15).
fn reaped_exit_code(pidfd: &OwnedFd) -> Option<i32> {
    const PIDFS_MAGIC: u32 = 0xff;
    const PIDFD_INFO_EXIT: u64 = 8;
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
    let request = libc::_IOWR::<PidfdInfo>(PIDFS_MAGIC, 11);
    // SAFETY: the kernel writes no more than the size that is part of the request, which is that of `info`.
    let r = unsafe { libc::ioctl(pidfd.as_raw_fd(), request, &raw mut info) };
    (r == 0 && info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code)
}

/// Switches recording off in the target, from outside.
///
/// # Errors
/// If its memory can't be written.
pub fn switch_off(mem: &File, shared: &Shared) -> io::Result<()> {
    let at = shared.control().flag_addr.load(Relaxed);
    if at == 0 {
        return Ok(());
    }
    mem.write_all_at(&0u32.to_ne_bytes(), at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_pages_are_those_that_were_touched() {
        // SAFETY: `sysconf` takes no pointers, and the memory is new and used by this test alone.
        let (page, at) = unsafe {
            let page = page_size() as usize;
            let rw = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
            let at = libc::mmap(std::ptr::null_mut(), 9000 * page, rw, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            libc::madvise(at, 9000 * page, libc::MADV_NOHUGEPAGE);
            for n in [0, 7, 8999] {
                at.cast::<u8>().add(n * page).write_volatile(1);
            }
            (page as u64, at as u64)
        };
        let w = Watched::new(Pid::this()).expect("alive");
        assert_eq!(w.resident(at / page, 9000), 3);
        assert_eq!(w.resident(at / page + 1, 7), 1);
        assert_eq!(w.resident(u64::MAX / page, 1), 0);
    }

    #[test]
    fn an_end_is_noticed_and_understood() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let w = Watched::new(Pid::from_u32(child.id())).expect("alive");
        assert!(!w.wait(Duration::from_millis(1)));
        assert!(w.pages().1 > 0);
        child.kill().expect("kill");
        assert!(w.wait(Duration::from_secs(10)));
        assert_eq!(w.how_it_ended(), "killed by signal 9");
        child.wait().expect("wait");
        // Where the kernel does not tell, the reason stays general.
        let told = w.pidfd.as_ref().and_then(reaped_exit_code);
        let how = if told.is_some() { "killed by signal 9" } else { "ended" };
        assert_eq!(w.how_it_ended(), how);
        assert!(told.is_none_or(|code| code == 9), "{told:?}");
        assert!(matches!(Watched::new(Pid::from_u32(child.id())), Err(Error::Gone(_))));
    }
}
