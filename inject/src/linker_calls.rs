//! System calls that the target's dynamic linker makes when it loads or unloads the hook's library, and whether seccomp
//! filters let them pass.
//!
//! A thread that is left alone by a killed prof goes on with its filters in force, in the midst of `dlopen`. So none of these
//! calls may kill it, and those that `dlopen` can't do without must be made: the filter does not permit them otherwise.

use crate::mapped::bits::{ANON, EXEC, NO_FD, READ, WRITE};
use crate::process::filter::Fate;
use crate::sandbox::{self, Pass};
use crate::stopped::candidates::candidates;
use crate::stopped::gadgets::Gadgets;
use crate::stopped::tracee::Tracee;
use crate::{Error, RemoteAddr, Result};
#[cfg(target_pointer_width = "64")]
use libc::{SYS_fstat as FSTAT, SYS_newfstatat as FSTATAT};
#[cfg(target_pointer_width = "32")]
use libc::{SYS_fstat64 as FSTAT, SYS_fstatat64 as FSTATAT};
use nix::errno::Errno;
use prof_arch::native::syscall::nr;
use prof_os::Pid;
use prof_os::status::Status;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The work for which the dynamic linker is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Loading the library, by glibc's linker.
    Load,
    /// Loading the library, by musl's linker.
    LoadByMusl,
    /// Unloading the library, by glibc's linker.
    Unload,
    /// Taking the library from the list of musl's linker, which unloads nothing. That takes prof's own calls only.
    Unlist,
}

/// A system call of the dynamic linker's.
struct Call {
    what: &'static str,
    number: u64,
    args: [u64; 6],
    /// Whether the call must be made. Otherwise the linker does without it if the filter answers with an error.
    needed: bool,
}

impl Deed {
    /// Returns samples of all calls that the linker makes, the allocator's among them.
    fn calls(self) -> Vec<Call> {
        let needed = |what, number, args| Call { what, number, args, needed: true };
        let other = |what, number, args| Call { what, number, args, needed: false };
        let (at, len, fd) = (0x7000_0000, 1 << 20, 5);
        let private = libc::FUTEX_PRIVATE_FLAG;
        let futex = |op: i32| needed("futex", nr::FUTEX, [at, (op | private) as u64, 1, 0, 0, 0]);
        let mut all = vec![
            needed("munmap", nr::MUNMAP, [at, len, 0, 0, 0, 0]),
            futex(libc::FUTEX_WAIT),
            futex(libc::FUTEX_WAKE),
            other("brk", libc::SYS_brk as u64, [at, 0, 0, 0, 0, 0]),
            other("madvise", nr::MADVISE, [at, len, libc::MADV_DONTNEED as u64, 0, 0, 0]),
        ];
        match self {
            Self::Unload => return all,
            Self::Unlist => return vec![needed("munmap", nr::MUNMAP, [at, len, 0, 0, 0, 0])],
            Self::Load | Self::LoadByMusl => {}
        }
        let here = libc::AT_FDCWD as u64;
        let open = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
        let file = (libc::MAP_PRIVATE | libc::MAP_DENYWRITE) as u64;
        let fixed = libc::MAP_FIXED as u64;
        let map = |what, access, flags, fd| needed(what, nr::MMAP, [at, len, access, flags, fd, 0]);
        let protect = |access| needed("mprotect", nr::MPROTECT, [at, len, access, 0, 0, 0]);
        let stays = (libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP) as u64;
        #[cfg(not(target_arch = "aarch64"))]
        if self == Self::LoadByMusl {
            all.push(needed("open", libc::SYS_open as u64, [at, open, 0, 0, 0, 0]));
        }
        if self == Self::LoadByMusl {
            let (set, close) = (libc::F_SETFD as u64, libc::FD_CLOEXEC as u64);
            all.push(other("fcntl", libc::SYS_fcntl as u64, [fd, set, close, 0, 0, 0]));
        }
        let opens = cfg!(target_arch = "aarch64") || self == Self::Load;
        let openat = [here, at, open, 0, 0, 0];
        all.push(Call { needed: opens, ..other("openat", libc::SYS_openat as u64, openat) });
        all.extend([
            needed("read", nr::READ, [fd, at, 832, 0, 0, 0]),
            other("pread64", libc::SYS_pread64 as u64, [fd, at, 56, 64, 0, 0]),
            other("fstat", FSTAT as u64, [fd, at, 0, 0, 0, 0]),
            other("newfstatat", FSTATAT as u64, [fd, at, at, libc::AT_EMPTY_PATH as u64, 0, 0]),
            other("getrandom", libc::SYS_getrandom as u64, [at, 8, 1, 0, 0, 0]),
            map("mmap of a file", READ, file, fd),
            map("mmap of a file's code", READ | EXEC, file | fixed, fd),
            map("mmap of a file's data", READ | WRITE, file | fixed, fd),
            map("mmap", 0, ANON, NO_FD),
            map("mmap", READ | WRITE, ANON, NO_FD),
            protect(0),
            protect(READ),
            protect(READ | WRITE),
            needed("close", nr::CLOSE, [fd, 0, 0, 0, 0, 0]),
            // glibc asks so first where its other calls have times of 32 bits.
            #[cfg(target_pointer_width = "32")]
            other(
                "statx",
                libc::SYS_statx as u64,
                [fd, at, libc::AT_EMPTY_PATH as u64, 0x7ff, at, 0],
            ),
            // prof's own, for stubs in pages of the library.
            other("mremap", nr::MREMAP, [at, len, len, stays, at, 0]),
        ]);
        all
    }
}

/// Checks that a thread's filters let the dynamic linker do its deed. `call` is a system call instruction of its code.
///
/// # Errors
/// With the reason.
pub(crate) fn check(pass: &Pass, deed: Deed, call: RemoteAddr) -> std::result::Result<(), String> {
    match pass {
        Pass::Unfiltered | Pass::Word => Ok(()),
        Pass::Read(_) => deed.calls().iter().try_for_each(|c| {
            let does = match pass.fate(call, c.number, c.args) {
                Fate::Made => return Ok(()),
                Fate::Fails if !c.needed => return Ok(()),
                Fate::Fails => "refuses",
                Fate::Other => "kills it, sends it SIGSYS, or asks another process, for",
            };
            Err(format!("its seccomp filter {does} {}, a call that its dynamic linker makes", c.what))
        }),
        Pass::Tried if deed == Deed::LoadByMusl => {
            Err("its seccomp filter can't be read, and prof has tried only the calls of glibc's dynamic linker".into())
        }
        Pass::Tried => trial().map_err(|what| {
            format!("it has the same seccomp filter as prof, and prof tried the calls of its dynamic linker in a process of its own: {what}")
        }),
    }
}

/// Makes the trials that a filter may require, while all threads still run.
pub(crate) fn look_ahead(pid: Pid, thread: &Status) {
    if sandbox::look_ahead(pid, thread) {
        let _ = (trial(), skipping());
    }
}

/// Number of the system call that the kernel takes a thread to make if a tracer has it make none. Filters are asked for it.
const SKIPPED: u64 = u64::MAX;

/// Returns whether a thread's filters do it no harm if its next system call is skipped. `call` is a system call instruction of
/// its code.
pub(crate) fn let_skip(pass: &Pass, call: RemoteAddr) -> bool {
    match pass {
        Pass::Unfiltered => true,
        Pass::Read(_) => pass.fate(call, SKIPPED, [0; 6]) != Fate::Other,
        Pass::Tried => skipping(),
        // The user vouches for the calls of prof and of the linker, and may not know of this one.
        Pass::Word => false,
    }
}

/// Makes a call with the number of a skipped one in a child of prof's. Returns whether that does no harm.
fn skipping() -> bool {
    static DONE: OnceLock<bool> = OnceLock::new();
    *DONE.get_or_init(|| {
        let skips = || {
            // SAFETY: there is no such call.
            unsafe { libc::syscall(-1) };
            true
        };
        sandbox::in_a_child(skips).is_ok()
    })
}

/// Time for which a thread is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Checks, before anything is touched, that the filters of some thread let the dynamic linker do its deed. Returns the
/// reason if none do.
///
/// # Errors
/// If a filter can't be read, or no thread can be stopped.
pub(crate) fn look(
    pid: Pid,
    gadgets: Gadgets,
    deed: Deed,
) -> Result<std::result::Result<(), String>> {
    let mut threads: Vec<Pid> = candidates(pid)?.into_iter().map(|c| c.1).collect();
    threads.sort_by_key(|tid| *tid != pid);
    let mut last = Err(Error::NoThread(pid));
    for tid in threads {
        let Ok(status) = Status::of_thread(pid, tid) else { continue };
        match status.number("Seccomp") {
            None | Some(0) => return Ok(Ok(())),
            Some(2) => {}
            _ => continue,
        }
        look_ahead(pid, &status);
        let Some(mut t) = Tracee::seize(pid, tid)? else { continue };
        t.interrupt();
        match t.wait_stopped(Instant::now() + PATIENCE) {
            Ok(true) => {}
            Ok(false) => continue,
            Err(e) => {
                last = Err(e);
                continue;
            }
        }
        let said = Pass::of(&t, Some(&status)).map(|p| check(&p, deed, gadgets.syscall));
        t.detach();
        match said {
            Ok(Ok(())) => return Ok(Ok(())),
            other => last = other,
        }
    }
    last
}

/// Makes the calls of the dynamic linker's in a child of prof's.
fn trial() -> std::result::Result<(), &'static str> {
    static DONE: OnceLock<std::result::Result<(), &'static str>> = OnceLock::new();
    *DONE.get_or_init(|| sandbox::in_a_child(passes))
}

/// Makes the calls of the trial. Those that the linker can do without may fail, and must not kill.
fn passes() -> bool {
    let page = prof_os::page_size() as usize;
    let (read, code) = (libc::PROT_READ, libc::PROT_READ | libc::PROT_EXEC);
    let file = libc::MAP_PRIVATE | libc::MAP_DENYWRITE;
    // SAFETY: nothing uses the memory that is mapped here, the calls affect nothing else, and `words` is larger than what the
    // kernel writes.
    unsafe {
        // A futex has to be aligned, or the kernel refuses the call.
        let mut words = [0u64; 104];
        let to = words.as_mut_ptr().cast::<u8>();
        let path = c"/proc/self/exe".as_ptr();
        let fd = libc::openat(libc::AT_FDCWD, path, libc::O_RDONLY | libc::O_CLOEXEC);
        if fd < 0 || libc::read(fd, to.cast(), size_of_val(&words)) <= 0 {
            return false;
        }
        libc::syscall(libc::SYS_pread64, fd, to, 56, 64);
        libc::syscall(FSTAT, fd, to);
        libc::syscall(FSTATAT, fd, c"".as_ptr(), to, libc::AT_EMPTY_PATH);
        #[cfg(target_pointer_width = "32")]
        libc::syscall(libc::SYS_statx, fd, c"".as_ptr(), libc::AT_EMPTY_PATH, 0x7ff, to);
        libc::syscall(libc::SYS_getrandom, to, 8, 1);
        libc::syscall(libc::SYS_brk, 0);
        let at = libc::mmap(std::ptr::null_mut(), page, read, file, fd, 0);
        if at == libc::MAP_FAILED {
            return false;
        }
        let fixed = file | libc::MAP_FIXED;
        let wait = libc::syscall(
            libc::SYS_futex,
            to,
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            !to.cast::<u32>().read(),
            0,
        );
        let waits = wait == -1 && Errno::last() == Errno::EAGAIN;
        libc::mprotect(at, page, libc::PROT_NONE) == 0
            && libc::mmap(at, page, code, fixed, fd, 0) == at
            && libc::mmap(at, page, read | libc::PROT_WRITE, fixed, fd, 0) == at
            && libc::mprotect(at, page, read) == 0
            && libc::close(fd) == 0
            && libc::munmap(at, page) == 0
            && waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::filter::{Filters, Instruction};

    /// Returns a filter with another action for one call.
    fn but(number: u64, action: u32) -> Pass {
        let i = |code, jt, jf, k| Instruction { code, jt, jf, k };
        Pass::Read(Filters(vec![vec![
            i(0x20, 0, 0, 0),
            i(0x15, 0, 1, number as u32),
            i(0x06, 0, 0, action),
            i(0x06, 0, 0, 0x7fff_0000),
        ]]))
    }

    #[test]
    fn filters_are_asked_for_each_call() {
        const FAILS: u32 = 0x0005_0001;
        for deed in [Deed::Load, Deed::LoadByMusl, Deed::Unload, Deed::Unlist] {
            for c in deed.calls() {
                let said = |action| check(&but(c.number, action), deed, RemoteAddr(0x1000));
                let killed = said(0x8000_0000).expect_err("the call kills");
                assert!(killed.contains("kills it") && killed.contains("a call"), "{killed}");
                let one_is_needed = deed.calls().iter().any(|o| o.number == c.number && o.needed);
                assert_eq!(said(FAILS).is_err(), one_is_needed, "{}", c.what);
            }
        }
        let open = but(libc::SYS_openat as u64, FAILS);
        assert!(
            check(&open, Deed::Load, RemoteAddr(0x1000)).unwrap_err().contains("refuses openat")
        );
        // A filter that came since the library was loaded does not keep it there.
        assert_eq!(check(&open, Deed::Unload, RemoteAddr(0x1000)), Ok(()));
    }

    #[test]
    fn the_trial_passes_without_a_filter() {
        assert_eq!(trial(), Ok(()));
    }
}
