//! Installs prof's memory in the target: everything but the patches. Nothing here changes what the target does.

use crate::hooked::plan::{self, Growth, Planned};
use crate::hooked::search::{self, Choice};
use crate::isolated;
use crate::lock::Lock;
use crate::mapped::image::Image;
use crate::mapped::mapping::{Mapped, Site};
use crate::mapped::ring::Ring;
use crate::mapped::{room, setup};
use crate::preflight::Target;
use crate::process::cgroup;
use crate::process::elf::{self, Module};
use crate::process::proc::{self, Status};
use crate::process::translated;
use crate::sandbox::Pass;
use crate::stopped::remote::{Caller, Gadgets, layout};
use crate::stopped::tables::Tables;
use crate::stopped::threads::{StopTimes, stop_all};
use crate::stopped::tracee::Tracee;
use crate::{Error, Refusal, RemoteAddr, RemoteMemory, Result, sandbox};
use prof_arch::native::call::is_never_restarted;
use prof_trace::capture::Capture;
use prof_trace::records::{Hook, NotHooked};
use prof_trace::shared::{Kind, Shared};
use std::any::Any;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Maximum number of bytes of unwind tables that are copied at an attach, and bytes reserved for those of libraries
/// that are loaded later. What is reserved and not used takes no memory.
const MOST_TABLES: (usize, usize) =
    if cfg!(target_pointer_width = "64") { (256 << 20, 32 << 20) } else { (16 << 20, 4 << 20) };

/// Settings of a recording.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of the ring in bytes.
    pub ring_size: usize,
    /// Path of the recording, which the control page keeps for `prof status` and `prof detach`.
    pub path: PathBuf,
    /// Time for which a thread waits for a free segment before it drops an event.
    pub wait: Duration,
    /// Whether recording is on from the attach.
    pub on: bool,
    /// Number of the toggle signal; 0: none.
    pub signal: u32,
    /// Whether stacks of frees are recorded, too.
    pub free_stacks: bool,
    /// Selection of the blocks that are recorded.
    pub capture: Capture,
    /// Whether each stack is also unwound in full, and both results are compared.
    pub verify: bool,
    /// Number of frames after which a stack is cut.
    pub max_depth: u32,
    /// Time for which prof tries to stop the target.
    pub timeout: Duration,
    /// Selection of the functions that are hooked.
    pub choice: Choice,
    /// Called with the pid before the ring is made. What it returns is dropped when the target has no descriptor of the
    /// ring any more.
    pub guard: Option<fn(i32) -> Box<dyn Any>>,
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
            guard: None,
        }
    }
}

/// An attach: prof's memory in a target, which [`Installed::activate`] puts to use. If dropped before that, it is
/// removed.
#[derive(Debug)]
pub struct Installed {
    /// The process that is to be recorded.
    pub target: Target,
    /// Descriptor of the shared memory.
    pub ring_fd: OwnedFd,
    /// The shared memory, mapped in this process until that ends.
    pub shared: Shared,
    /// Settings of the recording.
    pub options: Options,
    /// Functions that will be patched.
    pub planned: Vec<Planned>,
    /// Functions that will be patched, as a recording lists them.
    pub hooked: Vec<Hook>,
    /// Functions that can't be patched, with the reasons.
    pub not_hooked: Vec<NotHooked>,
    /// Whether the target has a garbage collector that stops threads by signals.
    pub(crate) collects: bool,
    /// Modules of the target.
    pub modules: Vec<Module>,
    /// Times for which the target was stopped so far.
    pub stops: StopTimes,
    /// Remarks for the user.
    pub notes: Vec<String>,
    /// Unwind tables of the modules; the last ones' are missing if there are too many.
    pub(crate) tables: Vec<Tables>,
    /// Mappings of code at the time when the modules were read.
    pub(crate) code: Vec<(RemoteAddr, RemoteAddr, u64)>,
    pub(crate) mem: RemoteMemory,
    pub(crate) gadgets: Gadgets,
    pub(crate) image: Image,
    pub(crate) done: bool,
    pub(crate) lock: Option<Lock>,
}

/// Time for which prof waits for a moment in which the target does not catch its system calls, and the interval at
/// which it looks.
const CAUGHT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(10));

/// Calls `step` with `f` until `step` has taken that, or the target catches its system calls no longer, or for too long.
fn until_calls_pass<F, T>(
    timeout: Duration,
    f: F,
    mut step: impl FnMut(&mut Option<F>) -> Result<T>,
) -> Result<T> {
    let deadline = Instant::now() + timeout.min(CAUGHT.0);
    let mut f = Some(f);
    loop {
        let done = step(&mut f);
        let is_caught = matches!(done, Err(Error::Refused(Refusal::Dispatched(..))));
        if !is_caught || f.is_none() || Instant::now() >= deadline {
            return done;
        }
        std::thread::sleep(CAUGHT.1);
    }
}

/// Stops one thread that can make system calls for prof, calls `f` with it, and restores and resumes it. Waits for a
/// while if the target catches its system calls at the moment.
pub(crate) fn with_caller<T>(
    pid: i32,
    mem: &RemoteMemory,
    gadgets: Gadgets,
    timeout: Duration,
    stops: &mut StopTimes,
    f: impl FnOnce(&mut Caller<'_>) -> Result<T>,
) -> Result<T> {
    until_calls_pass(timeout, f, |f| try_callers(pid, mem, gadgets, timeout, stops, f))
}

/// As [`with_caller`], but tries each thread only once. Takes `f` when it calls it.
fn try_callers<T>(
    pid: i32,
    mem: &RemoteMemory,
    gadgets: Gadgets,
    timeout: Duration,
    stops: &mut StopTimes,
    f: &mut Option<impl FnOnce(&mut Caller<'_>) -> Result<T>>,
) -> Result<T> {
    let mut last = Error::NoThread(pid);
    layout();
    let maps = proc::maps(pid)?;
    let deadline = Instant::now() + timeout;
    let fit = candidates(pid)?;
    for (k, (_, tid)) in fit.iter().copied().enumerate() {
        // Whatever can be asked beforehand is asked while the thread still runs.
        let Ok(status) = Status::of_thread(pid, tid) else { continue };
        let filtered = status.number("Seccomp") == Some(2);
        if filtered {
            sandbox::look_ahead(pid, &status);
        }
        let waits_in = proc::waits_in(pid, tid);
        let Some(mut t) = Tracee::seize(pid, tid)? else { continue };
        let mut since = Instant::now();
        t.interrupt();
        // The last candidate gets all the time that is left, the others a second each.
        let patience = if k + 1 == fit.len() { timeout } else { Duration::from_secs(1) };
        match t.wait_stopped(deadline.min(since + patience)) {
            Ok(true) => {}
            Ok(false) => continue,
            // All candidates together have used up the time.
            Err(Error::NotStopping { .. }) if Instant::now() >= deadline => {
                return Err(Error::NotStopping { pid, tid, ms: timeout.as_millis() });
            }
            Err(e) => {
                last = e;
                continue;
            }
        }
        // A thread that took long to stop was in the kernel, and ran on until then: that time does not count as a
        // stop.
        if since.elapsed() > Duration::from_millis(5) {
            since = Instant::now();
        }
        let pass = match Pass::of(&t, filtered.then_some(&status)) {
            Ok(pass) => pass,
            Err(e) => {
                last = e;
                continue;
            }
        };
        let dispatch = t.dispatch();
        if gadgets.code().any(|at| dispatch.catches(mem, at)) {
            last = Refusal::Dispatched(pid, proc::comm(pid)).into();
            continue;
        }
        match Caller::new(t, mem, &maps, gadgets, &waits_in, pass) {
            Ok(mut c) => {
                let r = f.take().map_or(Err(Error::NoThread(pid)), |f| f(&mut c));
                let end = c.finish();
                stops.add(since);
                return r.and_then(|v| end.map(|()| v));
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Stops all threads, has one of them make system calls for prof in `f`, and resumes all. Used for what no other
/// thread may see half done: see [`crate::mapped::ring`].
pub(crate) fn with_all_stopped<T>(
    pid: i32,
    mem: &RemoteMemory,
    gadgets: Gadgets,
    timeout: Duration,
    stops: &mut StopTimes,
    f: impl FnOnce(&mut Caller<'_>) -> Result<T>,
) -> Result<T> {
    until_calls_pass(timeout, f, |f| try_with_all_stopped(pid, mem, gadgets, timeout, stops, f))
}

/// As [`with_all_stopped`], but tries each thread only once. Takes `f` when it calls it.
fn try_with_all_stopped<T>(
    pid: i32,
    mem: &RemoteMemory,
    gadgets: Gadgets,
    timeout: Duration,
    stops: &mut StopTimes,
    f: &mut Option<impl FnOnce(&mut Caller<'_>) -> Result<T>>,
) -> Result<T> {
    let mut last = Error::NoThread(pid);
    layout();
    let maps = proc::maps(pid)?;
    let deadline = Instant::now() + timeout;
    for tid in of_one_table(candidates(pid)?).into_iter().take(MOST_CALLERS) {
        let Ok(status) = Status::of_thread(pid, tid) else { continue };
        let filtered = status.number("Seccomp") == Some(2);
        if filtered {
            sandbox::look_ahead(pid, &status);
        }
        let waits_in = proc::waits_in(pid, tid);
        let mut stopped = stop_all(pid, deadline.saturating_duration_since(Instant::now()))?;
        let at = stopped.threads.iter().position(|t| t.tid == tid && t.is_stopped());
        let Some(t) = at.map(|at| stopped.threads.swap_remove(at)) else {
            stopped.resume(stops);
            continue;
        };
        let dispatch = t.dispatch();
        let caller = if gadgets.code().any(|at| dispatch.catches(mem, at)) {
            Err(Refusal::Dispatched(pid, proc::comm(pid)).into())
        } else {
            Pass::of(&t, filtered.then_some(&status))
                .and_then(|pass| Caller::new(t, mem, &maps, gadgets, &waits_in, pass))
        };
        match caller {
            Ok(mut c) => {
                let r = f.take().map_or(Err(Error::NoThread(pid)), |f| f(&mut c));
                let end = c.finish();
                stopped.resume(stops);
                return r.and_then(|v| end.map(|()| v));
            }
            Err(e) => last = e,
        }
        stopped.resume(stops);
    }
    Err(last)
}

/// Maximum number of threads that are tried, as each try stops all of them.
const MOST_CALLERS: usize = 8;
/// `KCMP_FILES`: has `kcmp` compare two threads' tables of descriptors.
const KCMP_FILES: i32 = 2;

/// Returns the threads that share the table of descriptors of the first living thread. Descriptors that a killed prof
/// left are looked for in that table.
fn of_one_table(fit: Vec<(Fitness, i32)>) -> Vec<i32> {
    let lowest = fit.iter().map(|f| f.1).min().unwrap_or(0);
    let other = |tid: i32| {
        // SAFETY: the call takes integers only. Where the kernel can't compare, the table counts as the same.
        unsafe { libc::syscall(libc::SYS_kcmp, lowest, tid, KCMP_FILES, 0, 0) > 0 }
    };
    fit.into_iter().map(|f| f.1).filter(|tid| !other(*tid)).collect()
}

/// How suitable a thread is for being stopped, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fitness {
    /// The thread sleeps in a call that continues by itself after a stop.
    Asleep,
    /// The thread runs.
    Running,
    /// The thread sleeps in a call that a stop ends with EINTR, until prof restarts it.
    Fragile,
    /// The thread sleeps in the kernel and can't be interrupted (state D).
    Stuck,
}

/// Returns at most 64 living threads, in the order in which to try them.
pub(crate) fn candidates(pid: i32) -> Result<Vec<(Fitness, i32)>> {
    let mut all = Vec::new();
    for tid in proc::threads(pid)?.into_iter().take(64) {
        let status = Status::of_thread(pid, tid).unwrap_or_default();
        let state = status.field("State").and_then(|f| f.chars().next());
        let fragile =
            || proc::asleep(pid, tid).and_then(|a| a.call).is_some_and(is_never_restarted);
        let fitness = match state {
            // The first thread may have ended before the others.
            None | Some('Z' | 'X') => continue,
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
/// If prof refuses, or a step fails. The target is then as it was before.
pub fn install(target: &Target, options: &Options) -> Result<Installed> {
    let lock = crate::lock::lock(target.pid)?;
    crate::shortage::check_descriptors(target.pid)?;
    // Another prof may have attached since the preflight, before this one had the lock.
    crate::preflight(target.pid)?;
    if let Ok(r) = crate::Recorded::open(target.pid) {
        // This one has waited for the lock until the other had attached.
        if r.is_attached() {
            return Err(Refusal::Recorded(target.pid).into());
        }
        let options =
            crate::DetachOptions { timeout: options.timeout, children: false, leftovers: true };
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
    let Sight { maps, modules, functions } = look(target, &mem, options)?;
    let search::Functions { found, mut not_hooked, collects } = functions;
    let gadgets = Gadgets::find(pid, &mem, &maps)?;
    let image = Image::new()?;
    crate::inherited::check(pid, &mem, &maps, &found)?;
    let mut planned = plan::plan(&mem, &modules, found, &mut not_hooked);
    plan::any_left(target, &planned, &not_hooked)?;
    let mut notes = plan::notes(&planned);
    let mut stops = StopTimes::default();

    let tables = read_tables(&mem, &modules);
    let copied = tables.iter().map(Tables::copied).sum();
    let more = MOST_TABLES.1;
    let geometry = cgroup::fit(target, options, (copied, copied + more), &mut notes)?;
    let geometry = geometry.with_more_threads(room::more_threads(pid, geometry.states()));
    let mut site = Site::new(pid, &mem, gadgets, options.timeout, &mut stops);
    let windows: Vec<_> = planned.iter().map(|p| p.window.clone()).collect();
    let guard = options.guard.map(|guard| guard(pid));
    let ring = site.make_ring(geometry, &windows)?;
    drop(guard);
    let mut mapped = Mapped::default();
    // If the target has mapped something at the place that the last try chose, this try leaves more room.
    let place = |tried| {
        let maps = proc::maps(pid)?;
        Ok(plan::place(&maps, &Growth::of(pid), &modules, &mut planned, &mut not_hooked, tried))
    };
    if let Err(e) = site.map_all(&ring, &image, place, &mut mapped) {
        site.unmap_all(&mut mapped);
        return Err(e);
    }
    let Ring { fd, shared, .. } = ring;
    let mut installed = Installed {
        target: target.clone(),
        ring_fd: fd,
        shared,
        options: options.clone(),
        hooked: Vec::new(),
        planned,
        not_hooked,
        collects,
        modules,
        stops,
        notes,
        tables,
        code: proc::code(&maps),
        mem,
        gadgets,
        image,
        done: false,
        lock: None,
    };
    if let Err(e) = setup::fill(&mut installed, &maps, &mapped) {
        // The control page may not hold enough yet for an ordinary detach.
        installed.done = true;
        let timeout = options.timeout;
        let stops = &mut installed.stops;
        Site::new(pid, &installed.mem, gadgets, timeout, stops).unmap_all(&mut mapped);
        return Err(e);
    }
    Ok(installed)
}

/// Reads the unwind tables of as many modules as there is room for.
fn read_tables(mem: &RemoteMemory, modules: &[Module]) -> Vec<Tables> {
    let mut room = MOST_TABLES.0;
    let each = modules.iter().map_while(|m| {
        let tables = Tables::of(mem, m);
        room = room.checked_sub(tables.copied())?;
        Some(tables)
    });
    each.collect()
}

/// A process's mappings and modules, and the functions in it that are to be hooked.
struct Sight {
    maps: Vec<proc::Map>,
    modules: Vec<Module>,
    functions: search::Functions,
}

/// Time for which a program that has just started may take to load its libraries.
const STARTING: Duration = Duration::from_millis(500);

/// Looks for the allocator. The libraries of a program that has just started are waited for.
fn look(target: &Target, mem: &RemoteMemory, options: &Options) -> Result<Sight> {
    let deadline = Instant::now() + STARTING.min(options.timeout);
    loop {
        let maps = proc::maps(target.pid)?;
        let modules = elf::modules(mem, &maps);
        let functions = search::find(target.pid, mem, &modules, &options.choice)?;
        if functions.found.iter().any(|f| matches!(f.kind, Kind::Malloc | Kind::NamedAlloc)) {
            return Ok(Sight { maps, modules, functions });
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
    if let Some(by) = proc::maps(pid).ok().and_then(|maps| translated::of(pid, &maps)) {
        return by.refusal(pid);
    }
    let is_go = |m: &Module| !m.symbols(pid, mem, |n| n == "runtime.mallocgc").is_empty();
    if modules.first().is_some_and(is_go) {
        return Refusal::Go(pid, comm);
    }
    let files = modules.iter().filter(|m| m.path.as_os_str() != "[vdso]").count();
    if files == 1 { Refusal::StaticNoAllocator(pid, comm) } else { Refusal::NoAllocator(pid, comm) }
}
