//! Installs prof's memory in the target: everything but the patches. Nothing here changes what the target does.

use crate::hooked::places::{self, Growth};
use crate::hooked::plan;
use crate::hooked::search::{self, FunctionChoice};
use crate::installed::{By, Installed, Options};
use crate::isolated;
use crate::mapped::fit::fit;
use crate::mapped::image::HookImage;
use crate::mapped::mapping::{Mapped, Site};
use crate::mapped::ring::Ring;
use crate::mapped::{library, room, setup};
use crate::process::code::code as mapped_code;
use crate::process::elf::{self, Module};
use crate::process::rings::has_parts;
use crate::process::translated;
use crate::stopped::gadgets::Gadgets;
use crate::stopped::tables::Tables;
use crate::stopped::threads::StopTimes;
use crate::target::Target;
use crate::{Error, Refusal, RemoteAddr, RemoteMemory, Result};
use prof_os::maps;
use prof_trace::shared::Kind;
use std::time::{Duration, Instant};

/// Maximum number of bytes of unwind tables that are copied at an attach, and bytes reserved for those of libraries
/// that are loaded later. What is reserved and not used takes no memory.
const MOST_TABLES: (usize, usize) =
    if cfg!(target_pointer_width = "64") { (256 << 20, 32 << 20) } else { (16 << 20, 4 << 20) };

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

/// Maps everything in the way that the options name, or in the one that the target permits.
fn put_in(target: &Target, options: &Options) -> Result<Installed> {
    let pid = target.pid;
    match options.way_in.by {
        By::Map => put_in_by(target, options, false),
        By::Dlopen => put_in_by(target, options, true),
        By::Auto => {
            let e = match put_in_by(target, options, false) {
                Err(Error::Refused(Refusal::NoCode { why, .. })) if !has_parts(pid) => why,
                other => return other,
            };
            match put_in_by(target, options, true) {
                Ok(mut installed) => {
                    installed
                        .notes
                        .push(format!("the hook got in by dlopen, as prof can't map it: {e}"));
                    Ok(installed)
                }
                Err(Error::Refused(Refusal::NoDlopen { comm, why, .. })) => {
                    Err(Refusal::NoWay { pid, comm, map: e, dlopen: why }.into())
                }
                Err(other) => Err(other),
            }
        }
    }
}

/// Maps everything; `by_linker` says whether the target's dynamic linker loads the hook.
fn put_in_by(target: &Target, options: &Options, by_linker: bool) -> Result<Installed> {
    let pid = target.pid;
    let mem = RemoteMemory::open(pid)?;
    let Sight { maps, modules, functions } = look(target, &mem, options)?;
    let search::Functions { found, mut not_hooked, collects } = functions;
    let gadgets = Gadgets::find(pid, &mem, &maps)?;
    let image = HookImage::new()?;
    crate::inherited::check(pid, &mem, &maps, &found)?;
    let by_linker = by_linker.then(|| library::check(pid, &mem, &modules, gadgets)).transpose()?;
    let mut planned = plan::plan(&mem, &modules, found, &mut not_hooked);
    plan::any_left(target, &planned, &not_hooked)?;
    let mut notes = plan::notes(&planned);
    let mut stops = StopTimes::default();

    let tables = read_tables(&mem, &modules);
    let copied = tables.iter().map(Tables::copied).sum();
    let more = MOST_TABLES.1;
    let geometry = fit(target, options, (copied, copied + more), &mut notes)?;
    let geometry = geometry.with_more_threads(room::more_threads(pid, geometry));
    let mut site = Site::new(pid, &mem, gadgets, options.timeout, &mut stops);
    let windows: Vec<_> = planned.iter().map(|p| p.window.clone()).collect();
    let guard = options.guard.map(|guard| guard(pid));
    site.by_linker = by_linker;
    site.keeps_library = options.way_in.keeps_library;
    site.guard = options.guard;
    let ring = site.make_ring(geometry, &windows)?;
    drop(guard);
    let mut mapped = Mapped::default();
    // If the target has mapped something at the place that the last try chose, this try leaves more room.
    let place = |tried| {
        let maps = maps::of(pid)?;
        Ok(places::place(&maps, &Growth::of(pid), &modules, &mut planned, &mut not_hooked, tried))
    };
    if let Err(e) = site.map_all(&ring, &image, place, &mut mapped) {
        site.unmap_all(&mut mapped);
        return Err(e);
    }
    if site.by_linker.is_some() {
        notes.push(format!(
            "the hook is a library that the process's dynamic linker has loaded, at {:#x}",
            mapped.hook.addr
        ));
    }
    let note = mapped.note(&image);
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
        code: mapped_code(&maps),
        mem,
        gadgets,
        image,
        hook: RemoteAddr(mapped.hook.addr),
        note,
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
    maps: Vec<maps::Map>,
    modules: Vec<Module>,
    functions: search::Functions,
}

/// Time for which a program that has just started may take to load its libraries.
const STARTING: Duration = Duration::from_millis(500);

/// Looks for the allocator. The libraries of a program that has just started are waited for.
fn look(target: &Target, mem: &RemoteMemory, options: &Options) -> Result<Sight> {
    let deadline = Instant::now() + STARTING.min(options.timeout);
    loop {
        let maps = maps::of(target.pid)?;
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
    choice: &FunctionChoice,
) -> Refusal {
    let (pid, comm) = (target.pid, target.name.clone());
    if choice.prefix.is_some() || !choice.modules.is_empty() {
        let prefix = choice.prefix.clone().unwrap_or_default();
        let modules = choice.modules.join(", ");
        return Refusal::NoChosenAllocator { pid, comm, prefix, modules };
    }
    if let Some(by) = maps::of(pid).ok().and_then(|maps| translated::of(pid, &maps)) {
        return by.refusal(pid);
    }
    let is_go = |m: &Module| !m.symbols(pid, mem, |n| n == "runtime.mallocgc").is_empty();
    if modules.first().is_some_and(is_go) {
        return Refusal::Go(pid, comm);
    }
    let files = modules.iter().filter(|m| m.path.as_os_str() != "[vdso]").count();
    if files == 1 { Refusal::StaticNoAllocator(pid, comm) } else { Refusal::NoAllocator(pid, comm) }
}
