//! Putting prof's memory into the target: everything but the patches. Nothing that is done here
//! changes what the target does.

use crate::elf::{self, Module};
use crate::functions;
use crate::image::Image;
use crate::plan::{self, Planned};
use crate::preflight::Target;
use crate::proc::{self, Status};
use crate::remote::{Caller, Gadgets};
use crate::threads::StopTimes;
use crate::tracee::Tracee;
use crate::tracee::isolated;
use crate::{Error, Refusal, RemoteAddr, RemoteMemory, Result, setup};
use prof_arch::native::syscall::nr;
use prof_trace::records::{Hook, NotHooked};
use prof_trace::shared::{Area, Geometry, Kind, MEMFD_NAME, Shared};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How to record.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the ring.
    pub ring_size: usize,
    /// The recording, for status and detach to find.
    pub path: PathBuf,
    /// How long a thread waits for a free segment before it drops an event.
    pub wait: Duration,
    /// Recording is on when the hooks are in.
    pub on: bool,
    /// The toggle signal; 0: none.
    pub signal: u32,
    /// Record stacks of frees, too.
    pub free_stacks: bool,
    /// Take each stack both ways, and compare.
    pub verify: bool,
    /// Frames at which a stack is cut.
    pub max_depth: u32,
    /// How long to try to stop the target.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ring_size: 64 << 20,
            path: PathBuf::new(),
            wait: Duration::from_millis(100),
            on: true,
            signal: libc::SIGUSR1 as u32,
            free_stacks: false,
            verify: false,
            max_depth: 1024,
            timeout: Duration::from_secs(5),
        }
    }
}

/// prof's memory in a target, not yet in use.
#[derive(Debug)]
pub struct Installed {
    /// The target.
    pub target: Target,
    /// The shared memory.
    pub ring_fd: OwnedFd,
    /// The same, mapped here for as long as this process lives.
    pub shared: Shared,
    /// How to record.
    pub options: Options,
    /// What will be patched.
    pub planned: Vec<Planned>,
    /// The same, as it stands in a recording.
    pub hooked: Vec<Hook>,
    /// What can't be.
    pub not_hooked: Vec<NotHooked>,
    /// The target's modules.
    pub modules: Vec<Module>,
    /// How long the target was stopped so far.
    pub stops: StopTimes,
    /// Remarks for the user.
    pub notes: Vec<String>,
    pub(crate) mem: RemoteMemory,
    pub(crate) gadgets: Gadgets,
    pub(crate) image: Image,
    pub(crate) done: bool,
    pub(crate) lock: Option<File>,
}

/// Stops one thread that can make system calls for prof, does `f` with it, and puts it back.
pub(crate) fn with_caller<T>(
    pid: i32,
    mem: &RemoteMemory,
    gadgets: Gadgets,
    timeout: Duration,
    stops: &mut StopTimes,
    f: impl FnOnce(&mut Caller<'_>) -> Result<T>,
) -> Result<T> {
    let mut last = Error::NoThread(pid);
    let maps = proc::maps(pid)?;
    for tid in candidates(pid)? {
        let Some(mut t) = Tracee::seize(pid, tid)? else { continue };
        let since = Instant::now();
        t.interrupt();
        match t.wait_stopped(since + timeout.min(Duration::from_secs(1))) {
            Ok(true) => {}
            Ok(false) => continue,
            Err(e) => {
                last = e;
                continue;
            }
        }
        let filtered = Status::of_thread(pid, tid)?.number("Seccomp") == Some(2);
        if filtered && t.suspend_seccomp().is_err() {
            return Err(Refusal::Seccomp(pid, proc::comm(pid)).into());
        }
        match Caller::new(t, mem, &maps, gadgets) {
            Ok(mut c) => {
                let r = f(&mut c);
                let end = c.finish();
                stops.add(since);
                return r.and_then(|v| end.map(|()| v));
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Threads in the order in which to try them: those asleep in a system call first.
fn candidates(pid: i32) -> Result<Vec<i32>> {
    let mut all: Vec<(bool, i32)> = Vec::new();
    for tid in proc::threads(pid)?.into_iter().take(64) {
        let asleep = Status::of_thread(pid, tid)
            .is_ok_and(|s| s.field("State").is_some_and(|f| f.starts_with('S')));
        all.push((!asleep, tid));
    }
    all.sort();
    Ok(all.into_iter().map(|(_, tid)| tid).collect())
}

/// Protection and mapping bits of the kernel's mmap (the same on all architectures but MIPS).
pub(crate) mod bits {
    #![allow(missing_docs)]
    pub const READ: u64 = 1;
    pub const WRITE: u64 = 2;
    pub const EXEC: u64 = 4;
    pub const SHARED: u64 = libc::MAP_SHARED as u64;
    pub const ANON: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    pub const NORESERVE: u64 = libc::MAP_NORESERVE as u64;
    pub const FIXED_NOREPLACE: u64 = libc::MAP_FIXED_NOREPLACE as u64;
    pub const NO_FD: u64 = u64::MAX;
}

/// What was mapped, to be taken back if something fails.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    pub ring: Area,
    pub flag: Area,
    pub states: Area,
    pub hook: Area,
    pub stubs: Vec<Area>,
    pub states_count: u64,
}

/// Maps everything that prof needs into the target.
///
/// # Errors
/// If it refuses or fails; the target is then as before.
pub fn install(target: &Target, options: &Options) -> Result<Installed> {
    let lock = crate::lock::lock(target.pid)?;
    // Somebody may have been faster since the preflight.
    crate::preflight(target.pid)?;
    let mut installed = isolated(|| put_in(target, options))?;
    installed.lock = Some(lock);
    Ok(installed)
}

fn put_in(target: &Target, options: &Options) -> Result<Installed> {
    let pid = target.pid;
    let mem = RemoteMemory::open(pid)?;
    let maps = proc::maps(pid)?;
    let modules = elf::modules(&mem, &maps);
    let (found, mut not_hooked) = functions::find(pid, &mem, &modules);
    if !found.iter().any(|f| f.kind == Kind::Malloc) {
        return Err(Refusal::NoAllocator(pid, target.name.clone()).into());
    }
    let gadgets = Gadgets::find(pid, &mem, &maps)?;
    let image = Image::new()?;
    let mut planned = plan::plan(&mem, &modules, found, &mut not_hooked);
    let areas = plan::place(&maps, proc::start_brk(pid), &mut planned, &mut not_hooked);
    let mut stops = StopTimes::default();

    let geometry = Geometry::for_ring(options.ring_size);
    let (ring, remote_fd) = make_ring(pid, &mem, gadgets, options, geometry, &mut stops)?;
    let shared = match setup::map_ring(&ring, geometry) {
        Ok(s) => s,
        Err(e) => {
            close_remote(pid, &mem, gadgets, options, remote_fd, &mut stops);
            return Err(e);
        }
    };
    let mut mapped = Mapped { stubs: Vec::new(), ..Mapped::default() };
    let result = with_caller(pid, &mem, gadgets, options.timeout, &mut stops, |c| {
        let link = std::fs::read_link(format!("/proc/{pid}/fd/{remote_fd}"));
        if !link.is_ok_and(|l| l.to_string_lossy().contains(MEMFD_NAME)) {
            let what = "the target has closed prof's descriptor; try again".into();
            return Err(Error::Nonsense { pid, what });
        }
        let r = map_all(c, geometry, remote_fd, &image, &areas, &mut mapped);
        let _ = c.call("close", nr::CLOSE, [remote_fd, 0, 0, 0, 0, 0]);
        if r.is_err() {
            unmap_all(c, &mapped);
        }
        r
    });
    result?;
    let mut installed = Installed {
        target: target.clone(),
        ring_fd: ring,
        shared,
        options: options.clone(),
        hooked: Vec::new(),
        planned,
        not_hooked,
        modules,
        stops,
        notes: Vec::new(),
        mem,
        gadgets,
        image,
        done: false,
        lock: None,
    };
    if let Err(e) = setup::fill(&mut installed, &maps, &mapped) {
        // The control page may not say enough yet for an ordinary detach.
        installed.done = true;
        let timeout = options.timeout;
        let _ = with_caller(pid, &installed.mem, gadgets, timeout, &mut installed.stops, |c| {
            unmap_all(c, &mapped);
            Ok(())
        });
        return Err(e);
    }
    Ok(installed)
}

/// Lets the target make the memfd, and opens it here: the one way that works in any namespace.
fn make_ring(
    pid: i32,
    mem: &RemoteMemory,
    gadgets: Gadgets,
    options: &Options,
    geometry: Geometry,
    stops: &mut StopTimes,
) -> Result<(OwnedFd, u64)> {
    let fd = with_caller(pid, mem, gadgets, options.timeout, stops, |c| {
        let name = c.put(format!("{MEMFD_NAME}\0").as_bytes())?;
        let flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        c.call("memfd_create", nr::MEMFD_CREATE, [name.0, flags, 0, 0, 0, 0])
    })?;
    let path = std::path::PathBuf::from(format!("/proc/{pid}/fd/{fd}"));
    let opened = File::options().read(true).write(true).open(&path);
    let ready = opened
        .map_err(|errno| Error::File { path, errno })
        .and_then(|f| setup::size_ring(pid, &f, geometry).map(|()| OwnedFd::from(f)));
    match ready {
        Ok(ring) => Ok((ring, fd)),
        Err(e) => {
            close_remote(pid, mem, gadgets, options, fd, stops);
            Err(e)
        }
    }
}

fn close_remote(
    pid: i32,
    mem: &RemoteMemory,
    gadgets: Gadgets,
    options: &Options,
    fd: u64,
    stops: &mut StopTimes,
) {
    let r = with_caller(pid, mem, gadgets, options.timeout, stops, |c| {
        c.call("close", nr::CLOSE, [fd, 0, 0, 0, 0, 0])
    });
    if let Err(e) = r {
        log::warn!("closing descriptor {fd} of pid {pid}: {e}");
    }
}

fn map_all(
    c: &mut Caller<'_>,
    geometry: Geometry,
    fd: u64,
    image: &Image,
    areas: &[Area],
    m: &mut Mapped,
) -> Result<()> {
    use bits::{ANON, EXEC, FIXED_NOREPLACE, NO_FD, NORESERVE, READ, SHARED, WRITE};
    let map = |c: &mut Caller<'_>, at: u64, len: u64, prot: u64, flags: u64, fd: u64| {
        let addr = c.call("mmap", nr::MMAP, [at, len, prot, flags, fd, 0])?;
        Ok::<_, Error>(Area { addr, len })
    };
    // First what must lie at certain places, before the kernel chooses places for the rest.
    for a in areas {
        let area = map(c, a.addr, a.len, READ | EXEC, ANON | FIXED_NOREPLACE, NO_FD)?;
        m.stubs.push(area);
        if area.addr != a.addr {
            // A kernel before 4.17 takes the address as a hint.
            let errno = nix::errno::Errno::EEXIST;
            return Err(Error::Remote { what: "mmap at a fixed address", pid: 0, errno });
        }
    }
    let ring_len = geometry.size() as u64;
    m.ring = map(c, 0, ring_len, READ | WRITE, SHARED | NORESERVE, fd)?;
    advise(c, m.ring, libc::MADV_DONTFORK)?;
    m.flag = map(c, 0, 4096, READ | WRITE, ANON, NO_FD)?;
    advise(c, m.flag, libc::MADV_WIPEONFORK)?;
    let size = image.header_at(RemoteAddr(0)).state_size;
    for count in [4096u64, 1024, 256, 64] {
        match map(c, 0, size * count, READ | WRITE, ANON | NORESERVE, NO_FD) {
            Ok(a) => {
                m.states = a;
                m.states_count = count;
                break;
            }
            Err(e) if count == 64 => return Err(e),
            Err(_) => {}
        }
    }
    advise(c, m.states, libc::MADV_DONTFORK)?;
    // A thread touches a few pages of its state; a kernel without huge pages refuses the advice.
    let _ = advise(c, m.states, libc::MADV_NOHUGEPAGE);
    m.hook = map(c, 0, image.len() as u64, READ, ANON, NO_FD)?;
    let protect = |c: &mut Caller<'_>, (at, len): (usize, usize), prot: u64| {
        c.call("mprotect", nr::MPROTECT, [m.hook.addr + at as u64, len as u64, prot, 0, 0, 0])
    };
    protect(c, image.code, READ | EXEC)?;
    protect(c, image.data, READ | WRITE)?;
    Ok(())
}

fn advise(c: &mut Caller<'_>, a: Area, advice: i32) -> Result<()> {
    c.call("madvise", nr::MADVISE, [a.addr, a.len, advice as u64, 0, 0, 0]).map(|_| ())
}

pub(crate) fn unmap_all(c: &mut Caller<'_>, m: &Mapped) {
    for a in m.stubs.iter().chain([&m.hook, &m.states, &m.flag, &m.ring]) {
        if a.len != 0
            && let Err(e) = c.call("munmap", nr::MUNMAP, [a.addr, a.len, 0, 0, 0, 0])
        {
            log::warn!("{e}");
        }
    }
}
