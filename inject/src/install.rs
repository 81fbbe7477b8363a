//! Putting prof's memory into the target: everything but the patches. Nothing that is done here
//! changes what the target does.

use crate::cgroup;
use crate::elf::{self, Module};
use crate::image::Image;
use crate::lock::Lock;
use crate::mapping::{Mapped, Site};
use crate::plan::{self, Growth, Planned};
use crate::preflight::Target;
use crate::proc::{self, Status};
use crate::remote::{Caller, Gadgets, layout};
use crate::ring::Ring;
use crate::sandbox::Pass;
use crate::search::{self, Choice};
use crate::tables::Tables;
use crate::threads::{StopTimes, stop_all};
use crate::tracee::Tracee;
use crate::tracee::isolated;
use crate::{Error, Refusal, RemoteAddr, RemoteMemory, Result, room, sandbox, setup};
use prof_arch::native::call::is_never_restarted;
use prof_trace::capture::Capture;
use prof_trace::records::{Hook, NotHooked};
use prof_trace::shared::{Kind, Shared};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// As many bytes of unwind tables are copied at an attach, and there is room for as many of libraries that
/// come later. What is not used of it takes no memory.
const MOST_TABLES: (usize, usize) =
    if cfg!(target_pointer_width = "64") { (256 << 20, 32 << 20) } else { (16 << 20, 4 << 20) };

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
    /// Whether the target has a garbage collector that stops threads by signals.
    pub(crate) collects: bool,
    /// The target's modules.
    pub modules: Vec<Module>,
    /// How long the target was stopped so far.
    pub stops: StopTimes,
    /// Remarks for the user.
    pub notes: Vec<String>,
    /// The modules' unwind tables; those of the last ones are missing if there are too many.
    pub(crate) tables: Vec<Tables>,
    /// Where code was mapped when the modules were looked at.
    pub(crate) code: Vec<(RemoteAddr, RemoteAddr, u64)>,
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
        if filtered {
            sandbox::look_ahead(pid, &status);
        }
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

/// Stops all threads, has one of them make system calls for prof in `f`, and lets all go. For what no other
/// thread may see half done: see [`crate::ring`].
pub(crate) fn with_all_stopped<T>(
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
                let r = f(&mut c);
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

/// More threads are not tried, each in a stop of all of them.
const MOST_CALLERS: usize = 8;
/// `kcmp`: whether two threads have one table of descriptors.
const KCMP_FILES: i32 = 2;

/// Those of the threads that have the table of descriptors of the first one that lives: that is where
/// what was left by a prof that was killed is looked for.
fn of_one_table(fit: Vec<(Fitness, i32)>) -> Vec<i32> {
    let lowest = fit.iter().map(|f| f.1).min().unwrap_or(0);
    let other = |tid: i32| {
        // SAFETY: plain integers. Where the kernel can't tell, it is taken for the same.
        unsafe { libc::syscall(libc::SYS_kcmp, lowest, tid, KCMP_FILES, 0, 0) > 0 }
    };
    fit.into_iter().map(|f| f.1).filter(|tid| !other(*tid)).collect()
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
            // The first thread may have ended alone.
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
/// If it refuses or fails; the target is then as before.
pub fn install(target: &Target, options: &Options) -> Result<Installed> {
    let lock = crate::lock::lock(target.pid)?;
    crate::shortage::check_descriptors(target.pid)?;
    // Somebody may have been faster since the preflight.
    crate::preflight(target.pid)?;
    if crate::Recorded::open(target.pid).is_ok() {
        let options = crate::DetachOptions { timeout: options.timeout, children: false };
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
    let mut site = Site {
        pid,
        mem: &mem,
        gadgets,
        timeout: options.timeout,
        stops: &mut stops,
        refused: None,
    };
    let windows: Vec<_> = planned.iter().map(|p| p.window.clone()).collect();
    let ring = site.make_ring(geometry, &windows)?;
    let mut mapped = Mapped::default();
    // A place that a thread has taken in the last try is left more room.
    let place = |tried| {
        let maps = proc::maps(pid)?;
        Ok(plan::place(&maps, &Growth::of(pid), &modules, &mut planned, &mut not_hooked, tried))
    };
    if let Err(e) = site.map_all(&ring, &image, place, &mut mapped) {
        site.unmap_all(&mapped);
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
        // The control page may not say enough yet for an ordinary detach.
        installed.done = true;
        let timeout = options.timeout;
        let stops = &mut installed.stops;
        Site { pid, mem: &installed.mem, gadgets, timeout, stops, refused: None }
            .unmap_all(&mapped);
        return Err(e);
    }
    Ok(installed)
}

/// The modules' unwind tables, of as many modules as there may be room for.
fn read_tables(mem: &RemoteMemory, modules: &[Module]) -> Vec<Tables> {
    let mut room = MOST_TABLES.0;
    let each = modules.iter().map_while(|m| {
        let tables = Tables::of(mem, m);
        room = room.checked_sub(tables.copied())?;
        Some(tables)
    });
    each.collect()
}

/// What is mapped in a process, and the functions in it that are to be hooked.
struct Sight {
    maps: Vec<proc::Map>,
    modules: Vec<Module>,
    functions: search::Functions,
}

/// So long a program is given to load its libraries.
const STARTING: Duration = Duration::from_millis(500);

/// Looks for the allocator. A program that has just started has no libraries yet; they are waited for.
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
    let is_go = |m: &Module| !m.symbols(pid, mem, |n| n == "runtime.mallocgc").is_empty();
    if modules.first().is_some_and(is_go) {
        return Refusal::Go(pid, comm);
    }
    let files = modules.iter().filter(|m| m.path.as_os_str() != "[vdso]").count();
    if files == 1 { Refusal::StaticNoAllocator(pid, comm) } else { Refusal::NoAllocator(pid, comm) }
}
