//! Putting prof's memory into the target: everything but the patches. Nothing that is done here
//! changes what the target does.

use crate::debug_frame::Frames;
use crate::elf::{self, Module};
use crate::image::Image;
use crate::lock::Lock;
use crate::mapping::{Mapped, Site};
use crate::plan::{self, Growth, Planned};
use crate::preflight::{self, Target};
use crate::proc::{self, Status};
use crate::remote::{Caller, Gadgets, layout};
use crate::search::{self, Choice};
use crate::threads::StopTimes;
use crate::tracee::Tracee;
use crate::tracee::isolated;
use crate::{Error, Refusal, RemoteMemory, Result, setup};
use nix::errno::Errno;
use prof_arch::native::call::is_never_restarted;
use prof_arch::native::syscall::nr;
use prof_trace::capture::Capture;
use prof_trace::records::{Hook, NotHooked};
use prof_trace::shared::{Geometry, Kind, MEMFD_NAME, Shared};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// As much of such tables is put into a target, all in all.
const MOST_FRAMES: usize = if cfg!(target_pointer_width = "64") { 256 << 20 } else { 16 << 20 };
/// `memfd_create`: never to be executed (Linux 6.3).
const MFD_NOEXEC_SEAL: u64 = 8;

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
    /// Which blocks are recorded.
    pub capture: Capture,
    /// Take each stack both ways, and compare.
    pub verify: bool,
    /// Frames at which a stack is cut.
    pub max_depth: u32,
    /// How long to try to stop the target.
    pub timeout: Duration,
    /// Which functions to hook.
    pub choice: Choice,
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
            capture: Capture::default(),
            verify: false,
            max_depth: 1024,
            timeout: Duration::from_secs(5),
            choice: Choice::default(),
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
    /// Unwind tables that are not loaded, by the indices of their modules.
    pub(crate) frames: Vec<(usize, Frames)>,
    pub(crate) mem: RemoteMemory,
    pub(crate) gadgets: Gadgets,
    pub(crate) image: Image,
    pub(crate) done: bool,
    pub(crate) lock: Option<Lock>,
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
    layout();
    let maps = proc::maps(pid)?;
    let deadline = Instant::now() + timeout;
    let fit = candidates(pid)?;
    for (k, (_, tid)) in fit.iter().copied().enumerate() {
        // What can be known beforehand is asked while the thread runs.
        let Ok(status) = Status::of_thread(pid, tid) else { continue };
        let filtered = status.number("Seccomp") == Some(2);
        let waits_in = proc::waits_in(pid, tid);
        let Some(mut t) = Tracee::seize(pid, tid)? else { continue };
        let mut since = Instant::now();
        t.interrupt();
        // The last has all the time that there is.
        let patience = if k + 1 == fit.len() { timeout } else { Duration::from_secs(1) };
        match t.wait_stopped(deadline.min(since + patience)) {
            Ok(true) => {}
            Ok(false) => continue,
            // One after the other, they have been given all the time that there is.
            Err(Error::NotStopping { .. }) if Instant::now() >= deadline => {
                return Err(Error::NotStopping { pid, tid, ms: timeout.as_millis() });
            }
            Err(e) => {
                last = e;
                continue;
            }
        }
        // One that was long in the kernel was not stopped meanwhile.
        if since.elapsed() > Duration::from_millis(5) {
            since = Instant::now();
        }
        if filtered && let Err(errno) = t.suspend_seccomp() {
            return Err(preflight::filtered(pid, errno).into());
        }
        let dispatch = t.dispatch();
        if gadgets.code().any(|at| dispatch.catches(mem, at)) {
            last = Refusal::Dispatched(pid, proc::comm(pid)).into();
            continue;
        }
        match Caller::new(t, mem, &maps, gadgets, &waits_in) {
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

/// How well a thread can be stopped: best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fitness {
    /// Asleep in a call that goes on by itself.
    Asleep,
    /// Running.
    Running,
    /// Asleep in a call that a stop ends with EINTR, until it is mended.
    Fragile,
    /// In the kernel for as long as that likes.
    Stuck,
}

/// Threads in the order in which to try them.
pub(crate) fn candidates(pid: i32) -> Result<Vec<(Fitness, i32)>> {
    let mut all = Vec::new();
    for tid in proc::threads(pid)?.into_iter().take(64) {
        let status = Status::of_thread(pid, tid).unwrap_or_default();
        let state = status.field("State").and_then(|f| f.chars().next());
        let fragile =
            || proc::asleep(pid, tid).and_then(|a| a.call).is_some_and(is_never_restarted);
        let fitness = match state {
            Some('D') => Fitness::Stuck,
            Some('S') if fragile() => Fitness::Fragile,
            Some('S') => Fitness::Asleep,
            _ => Fitness::Running,
        };
        all.push((fitness, tid));
    }
    all.sort_unstable();
    Ok(all)
}

/// Maps everything that prof needs into the target.
///
/// # Errors
/// If it refuses or fails; the target is then as before.
pub fn install(target: &Target, options: &Options) -> Result<Installed> {
    let lock = crate::lock::lock(target.pid)?;
    // Somebody may have been faster since the preflight.
    crate::preflight(target.pid)?;
    if crate::Recorded::open(target.pid).is_ok() {
        let options = crate::DetachOptions { timeout: options.timeout };
        crate::detach::detach_locked(target.pid, &options)?;
    }
    crate::detach::clean_locked(target.pid, options.timeout)?;
    let mut installed = isolated(|| put_in(target, options))?;
    installed.lock = Some(lock);
    Ok(installed)
}

fn put_in(target: &Target, options: &Options) -> Result<Installed> {
    let pid = target.pid;
    let mem = RemoteMemory::open(pid)?;
    let Sight { maps, modules, found, mut not_hooked } = look(target, &mem, options)?;
    let gadgets = Gadgets::find(pid, &mem, &maps)?;
    let image = Image::new()?;
    let mut planned = plan::plan(&mem, &modules, found, &mut not_hooked);
    plan::any_left(target, &planned, &not_hooked)?;
    let notes = plan::notes(&planned);
    let mut stops = StopTimes::default();

    // Room for more threads than there are now; what is not used takes no memory.
    let threads = 4 * proc::threads(pid)?.len();
    let frames = unloaded_frames(&mem, &modules);
    let tables = frames.iter().map(|(_, f)| f.len()).sum();
    let geometry = Geometry::for_ring(options.ring_size).with_threads(threads).with_tables(tables);
    let (ring, remote_fd) = make_ring(pid, &mem, gadgets, options, geometry, &mut stops)?;
    let shared = match setup::map_ring(&ring, geometry) {
        Ok(s) => s,
        Err(e) => {
            close_remote(pid, &mem, gadgets, options, remote_fd, &mut stops);
            return Err(e);
        }
    };
    let mut mapped = Mapped::default();
    let mut site = Site { pid, mem: &mem, gadgets, timeout: options.timeout, stops: &mut stops };
    let planned_windows: Vec<_> = planned.iter().map(|p| p.window.clone()).collect();
    let place = || {
        let maps = proc::maps(pid)?;
        Ok(plan::place(&maps, &Growth::of(pid), &modules, &mut planned, &mut not_hooked))
    };
    let ring_at =
        plan::aside(&maps, proc::start_brk(pid), &planned_windows, geometry.size() as u64);
    let all = site.map_all(&shared, remote_fd, &image, ring_at, place, &mut mapped);
    if let Err(e) = all {
        site.unmap_all(&mapped);
        return Err(e);
    }
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
        notes,
        frames,
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
        let stops = &mut installed.stops;
        Site { pid, mem: &installed.mem, gadgets, timeout, stops }.unmap_all(&mapped);
        return Err(e);
    }
    Ok(installed)
}

/// The call frame information of modules that have it in their files only.
fn unloaded_frames(mem: &RemoteMemory, modules: &[Module]) -> Vec<(usize, Frames)> {
    let mut room = MOST_FRAMES;
    let without = modules.iter().enumerate().filter(|(_, m)| m.eh_frame.1 == 0);
    without
        .filter_map(|(k, m)| {
            let frames = Frames::of(mem, m)?;
            room = room.checked_sub(frames.len())?;
            Some((k, frames))
        })
        .collect()
}

/// What is mapped in a process, and the functions in it that are to be hooked.
struct Sight {
    maps: Vec<proc::Map>,
    modules: Vec<Module>,
    found: Vec<search::Found>,
    not_hooked: Vec<NotHooked>,
}

/// So long a program is given to load its libraries.
const STARTING: Duration = Duration::from_millis(500);

/// Looks for the allocator. A program that has just started has no libraries yet; they are waited for.
fn look(target: &Target, mem: &RemoteMemory, options: &Options) -> Result<Sight> {
    let deadline = Instant::now() + STARTING.min(options.timeout);
    loop {
        let maps = proc::maps(target.pid)?;
        let modules = elf::modules(mem, &maps);
        let (found, not_hooked) = search::find(target.pid, mem, &modules, &options.choice)?;
        if found.iter().any(|f| matches!(f.kind, Kind::Malloc | Kind::NamedAlloc)) {
            return Ok(Sight { maps, modules, found, not_hooked });
        }
        if !search::is_starting(&modules) || Instant::now() >= deadline {
            return Err(no_allocator(target, mem, &modules, &options.choice).into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn no_allocator(
    target: &Target,
    mem: &RemoteMemory,
    modules: &[Module],
    choice: &Choice,
) -> Refusal {
    let (pid, comm) = (target.pid, target.name.clone());
    if choice.prefix.is_some() || !choice.modules.is_empty() {
        let prefix = choice.prefix.clone().unwrap_or_default();
        let modules = choice.modules.join(", ");
        return Refusal::NoChosenAllocator { pid, comm, prefix, modules };
    }
    let is_go = |m: &Module| !m.symbols(pid, mem, |n| n == "runtime.mallocgc").is_empty();
    if modules.first().is_some_and(is_go) {
        return Refusal::Go(pid, comm);
    }
    let files = modules.iter().filter(|m| m.path.as_os_str() != "[vdso]").count();
    if files == 1 { Refusal::StaticNoAllocator(pid, comm) } else { Refusal::NoAllocator(pid, comm) }
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
        let flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        // The ring is never executed. vm.memfd_noexec = 2 demands that this is said; kernels before 6.3
        // do not know how to.
        for flags in [flags | MFD_NOEXEC_SEAL, flags] {
            let name = c.put(format!("{MEMFD_NAME}\0").as_bytes())?;
            match c.call("memfd_create", nr::MEMFD_CREATE, [name.0, flags, 0, 0, 0, 0]) {
                Err(Error::Remote { errno: Errno::EINVAL, .. }) => {}
                other => return other,
            }
        }
        Err(Error::Remote { what: "memfd_create", pid, errno: Errno::EINVAL })
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
        e.warn(pid, &format!("closing descriptor {fd}"));
    }
}
